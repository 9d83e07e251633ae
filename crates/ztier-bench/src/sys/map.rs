//! Memory from mmap: page-aligned buffers, and files accessed through a shared map.
//!
//! Invariant: a map covers all bytes `0..len` of a file that this process made and does not shrink
//! while it is mapped. A read that fails on the device still raises SIGBUS; therefore the file
//! tests run in a separate process.

use rustix::mm::{
    Advice, MapFlags, MsyncFlags, ProtFlags, madvise, mmap, mmap_anonymous, msync, munmap,
};
use std::fs::File;
use std::ops::{Deref, DerefMut};
use std::ptr::{NonNull, null_mut};
use ztier::BLOCK_SIZE;
use ztier::error::{Context, Error, Result};

struct Map {
    start: NonNull<u8>,
    len: usize,
}

// SAFETY: the map is owned memory; nothing in it is tied to the thread that made it.
unsafe impl Send for Map {}
// SAFETY: shared references to the owners give only shared access to the bytes.
unsafe impl Sync for Map {}

impl Map {
    fn new(start: *mut std::ffi::c_void, len: usize) -> Result<Self> {
        let start =
            NonNull::new(start.cast()).ok_or_else(|| Error::failure("mmap gave address 0"))?;
        Ok(Self { start, len })
    }
}

impl Drop for Map {
    fn drop(&mut self) {
        // SAFETY: `start` and `len` are those of one successful mmap; no reference outlives the
        // owner.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.len) };
    }
}

/// Zeroed bytes that begin at a page boundary, as direct I/O requires.
pub struct AlignedBuf(Map);

impl AlignedBuf {
    /// `len` bytes of zeros, `len` > 0.
    pub fn new(len: usize) -> Result<Self> {
        // SAFETY: a new private anonymous map at an address of the kernel's choice aliases nothing.
        let start = unsafe {
            mmap_anonymous(null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)
        }
        .context(format!("cannot allocate {len} bytes"))?;
        Ok(Self(Map::new(start, len)?))
    }

    /// Such bytes in pages of 2 MiB where the system has them, all allocated.
    pub fn ready(len: usize) -> Result<Self> {
        let mut buf = Self::new(len)?;
        // SAFETY: the range is the map's own, and the advice changes no content.
        let _ = unsafe { madvise(buf.0.start.as_ptr().cast(), len, Advice::LinuxHugepage) };
        for page in buf.chunks_mut(BLOCK_SIZE) {
            page[0] = 0;
        }
        Ok(buf)
    }

    /// Such bytes in pages of 4 KiB, so that the kernel swaps them one by one.
    pub fn small_pages(len: usize) -> Result<Self> {
        let buf = Self::new(len)?;
        // SAFETY: the range is the map's own, and the advice changes no content.
        let advised = unsafe { madvise(buf.0.start.as_ptr().cast(), len, Advice::LinuxNoHugepage) };
        // A kernel without huge pages does not know this advice.
        match advised {
            Err(e) if e != rustix::io::Errno::INVAL => Err(e).context("cannot ask for small pages"),
            _ => Ok(buf),
        }
    }

    /// Locks the bytes in memory.
    ///
    /// # Errors
    /// More bytes than this process may lock.
    pub fn lock(&self) -> Result<()> {
        // SAFETY: the range is the map's own; locking changes no content.
        unsafe { rustix::mm::mlock(self.0.start.as_ptr().cast(), self.0.len) }
            .context(format!("cannot lock {} bytes in memory", self.0.len))
    }

    /// A copy.
    pub fn duplicate(&self) -> Result<Self> {
        let mut copy = Self::new(self.len())?;
        copy.copy_from_slice(self);
        Ok(copy)
    }
}

impl Deref for AlignedBuf {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        // SAFETY: the map holds `len` initialised bytes and lives as long as `self`.
        unsafe { std::slice::from_raw_parts(self.0.start.as_ptr(), self.0.len) }
    }
}

impl DerefMut for AlignedBuf {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and `&mut self` makes it the only access.
        unsafe { std::slice::from_raw_parts_mut(self.0.start.as_ptr(), self.0.len) }
    }
}

/// A file, mapped shared, read and written by copying one page after the other: a C library may
/// copy a whole record from its end on (glibc does where both ends have the same offset in their
/// pages), and then a disk would see every record read backwards.
pub struct MappedFile(Map);

impl MappedFile {
    /// Maps the first `len` bytes of a file that is at least as long.
    pub fn new(file: &File, len: usize) -> Result<Self> {
        // SAFETY: a new map at an address of the kernel's choice aliases no Rust object; the bytes
        // are only ever copied, never borrowed.
        let start = unsafe {
            let prot = ProtFlags::READ | ProtFlags::WRITE;
            mmap(null_mut(), len, prot, MapFlags::SHARED, file, 0)
        }
        .context("cannot map the test file")?;
        Ok(Self(Map::new(start, len)?))
    }

    /// Advises that all of the map will be needed (`MADV_WILLNEED`).
    ///
    /// # Errors
    /// The kernel's error.
    pub fn will_need(&self) -> Result<()> {
        // SAFETY: the range is the map's own, and the advice changes no content.
        unsafe { madvise(self.0.start.as_ptr().cast(), self.0.len, Advice::WillNeed) }
            .context("cannot advise on the test file")
    }

    /// Copies `data` to `offset`.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        self.demand(offset, data.len());
        for (page, data) in data.chunks(BLOCK_SIZE).enumerate() {
            // SAFETY: the range lies in the map (just asserted); `data` is Rust memory, hence
            // elsewhere.
            unsafe {
                let at = self.0.start.as_ptr().add(offset + page * BLOCK_SIZE);
                std::ptr::copy_nonoverlapping(data.as_ptr(), at, data.len());
            }
        }
    }

    /// Fills `buf` from `offset`.
    pub fn read(&self, offset: usize, buf: &mut [u8]) {
        self.demand(offset, buf.len());
        for (page, buf) in buf.chunks_mut(BLOCK_SIZE).enumerate() {
            // SAFETY: as in `write`, the other way round.
            unsafe {
                let at = self.0.start.as_ptr().add(offset + page * BLOCK_SIZE);
                std::ptr::copy_nonoverlapping(at, buf.as_mut_ptr(), buf.len());
            }
        }
    }

    /// `msync(MS_SYNC)` of a range that begins at a page boundary.
    ///
    /// # Errors
    /// The error of the device below.
    pub fn sync(&self, offset: usize, len: usize) -> Result<()> {
        self.demand(offset, len);
        // SAFETY: the range lies in the map.
        unsafe { msync(self.0.start.as_ptr().add(offset).cast(), len, MsyncFlags::SYNC) }
            .context("msync of the test file")
    }

    fn demand(&self, offset: usize, len: usize) {
        assert!(offset.checked_add(len).is_some_and(|end| end <= self.0.len), "outside the map");
    }
}

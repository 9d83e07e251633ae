//! A memory file (`memfd`) mapped whole: sparse, addressed by offset, returned page by page.
//!
//! Invariants:
//! - the mapping has a fixed address and length for as long as the [`Arena`] lives;
//! - a stored reference to a place in it is an offset, never an address;
//! - an arena that ends becomes a spare one (see [`super::Spares`]) only if nothing else refers to
//!   its file, and all its bytes are zeros.
//!
//! On a memory file `MADV_DONTNEED` frees nothing: the file keeps its pages. `MADV_REMOVE` frees
//! them, but is refused on locked mappings, so [`Arena::remove`] punches the hole into the file
//! itself, which is what `MADV_REMOVE` does inside the kernel.

use super::PAGE;
use super::spares::Home;
use crate::error::{Context, Error, Result};
use rustix::fs::{FallocateFlags, SeekFrom, fallocate, seek};
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap, munmap};
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::ptr::NonNull;
use std::sync::Arc;

/// A sparse range of memory behind a memory file.
#[derive(Debug)]
pub struct Arena {
    file: Arc<OwnedFd>,
    base: NonNull<u8>,
    len: usize,
    /// The spares that it becomes one of when it ends; `None`: its memory goes back to the machine.
    home: Option<Box<Home>>,
}

/// Bytes of memory that a spare arena keeps. To zero them is faster than to fault them in again.
const SPARED: usize = 256 << 10;

// SAFETY: an `Arena` is an address range. It hands out raw pointers only; the code that
// dereferences them answers for races. Its own calls are system calls that the kernel serializes.
unsafe impl Send for Arena {}
// SAFETY: as above.
unsafe impl Sync for Arena {}

impl Arena {
    /// Maps a memory file of `len` bytes, whole pages.
    ///
    /// # Errors
    /// The system's, with the name and size.
    pub(super) fn over(file: Arc<OwnedFd>, name: &str, len: usize) -> Result<Self> {
        let what = || format!("cannot reserve {len} bytes of address space for {name}");
        // SAFETY: a new shared mapping at an address of the kernel's choice overlaps nothing.
        let base = unsafe {
            mmap(
                std::ptr::null_mut(),
                len,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED | MapFlags::NORESERVE,
                &*file,
                0,
            )
        }
        .context(what())?;
        // A core dump would contain the content, and allocate each page that has no memory yet.
        // SAFETY: advice on our own mapping changes no contents.
        let _ = unsafe { madvise(base, len, Advice::LinuxDontDump) };
        let base = NonNull::new(base.cast()).ok_or_else(|| Error::failure(what()))?;
        Ok(Self { file, base, len, home: None })
    }

    /// This arena, which becomes one of the spares of `home` when it ends.
    pub(super) fn with_home(mut self, home: Home) -> Self {
        self.home = Some(Box::new(home));
        self
    }

    /// The file behind it.
    pub(super) fn file(&self) -> &Arc<OwnedFd> {
        &self.file
    }

    /// Bytes of address space.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Never: an arena has at least a page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Asks for huge pages. Where the machine gives none (`shmem_enabled` is `never`) this changes
    /// nothing.
    pub fn prefer_huge_pages(&self) {
        // SAFETY: advice on our own mapping changes no contents.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxHugepage) };
    }

    /// Refuses huge pages, even where the machine gives them to all files (`shmem_enabled` is
    /// `always`): memory that is touched page by page would take 2 MiB each time.
    pub fn refuse_huge_pages(&self) {
        // SAFETY: advice on our own mapping changes no contents.
        let _ = unsafe { madvise(self.base.as_ptr().cast(), self.len, Advice::LinuxNoHugepage) };
    }

    /// Keeps every page resident from the moment it is first touched.
    ///
    /// # Errors
    /// The system's, when the process may not lock that much.
    pub fn lock(&self) -> Result<()> {
        // SAFETY: locking our own mapping changes no contents.
        unsafe {
            rustix::mm::mlock_with(
                self.base.as_ptr().cast(),
                self.len,
                rustix::mm::MlockFlags::ONFAULT,
            )
        }
        .context("cannot lock the volume's memory")
        .map_err(|e| e.hint("run as root, or raise the limit (ulimit -l)"))
    }

    /// The address of `offset`.
    ///
    /// # Panics
    /// When `offset` is outside; offsets come from the index and the segment table only.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len, "offset {offset} outside an arena of {} bytes", self.len);
        // SAFETY: just checked to be inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Makes the pages of a range present and writable, so that no later access faults or fails.
    ///
    /// # Errors
    /// `ENOMEM` and its like: the machine has no memory left.
    pub fn populate(&self, offset: usize, len: usize) -> rustix::io::Result<()> {
        assert!(offset + len <= self.len, "range outside the arena");
        // SAFETY: inside our own mapping; populating changes no contents.
        unsafe { madvise(self.at(offset).cast(), len, Advice::LinuxPopulateWrite) }
    }

    /// Ranges that have memory behind them, ascending, in whole pages; all else reads as zeros.
    /// Only for a process that takes over the memory of another: no thread may change it meanwhile.
    pub fn present(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        Present { arena: self, at: 0 }
    }

    /// Gives the pages of a range back to the machine. They read as zeros afterwards.
    pub fn remove(&self, offset: usize, len: usize) {
        assert!(offset + len <= self.len, "range outside the arena");
        let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        // A memory file of ours always takes this call. If it did not, the stale memory would stay
        // ours, and would be written anew before it is read again.
        let _ = fallocate(&*self.file, hole, offset as u64, len as u64);
    }

    /// Zeroes all bytes, and gives memory beyond the first [`SPARED`] bytes of it back. Returns
    /// whether the machine has confirmed that all bytes are zeros now. No pointer of [`Self::at`]
    /// may be in use.
    fn empty(&mut self) -> bool {
        let (mut at, mut spared) = (0, SPARED);
        loop {
            // What has no memory behind it reads as zeros already.
            let start = match seek(&*self.file, SeekFrom::Data(at)) {
                Ok(start) => start as usize,
                Err(error) => return error == Errno::NXIO,
            };
            let Ok(end) = seek(&*self.file, SeekFrom::Hole(start as u64)) else { return false };
            let kept = spared.min(end as usize - start);
            // SAFETY: the file is as long as our mapping, so the range is inside; `self` is
            // exclusive, and the caller says that nothing uses an address of this memory.
            unsafe { self.at(start).write_bytes(0, kept) };
            let rest = (start + kept) as u64..end;
            let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
            if !rest.is_empty()
                && fallocate(&*self.file, hole, rest.start, rest.end - rest.start).is_err()
            {
                return false;
            }
            (at, spared) = (end, spared - kept);
        }
    }

    /// Becomes spare instead of ending, if nothing else refers to the file; returns whether it did.
    fn becomes_spare(&mut self) -> bool {
        let Some(home) = self.home.take() else { return false };
        // The set is gone when this is the only reference to the file: nothing gives it out later.
        if Arc::get_mut(&mut self.file).is_none() || home.is_shared() || !self.empty() {
            return false;
        }
        let Self { ref file, base, len, .. } = *self;
        home.keep(Self { file: file.clone(), base, len, home: None });
        true
    }
}

/// Ranges of a file that have memory behind them, in whole pages.
struct Present<'a> {
    arena: &'a Arena,
    at: u64,
}

impl Iterator for Present<'_> {
    type Item = Range<usize>;

    fn next(&mut self) -> Option<Range<usize>> {
        let file = &*self.arena.file;
        // The call fails when no data is behind `at`: that is the end.
        let start = seek(file, SeekFrom::Data(self.at)).ok()?;
        let end = seek(file, SeekFrom::Hole(start)).unwrap_or(self.arena.len as u64);
        self.at = end;
        Some(start as usize / PAGE * PAGE..(end as usize).next_multiple_of(PAGE))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        if self.becomes_spare() {
            return;
        }
        // SAFETY: the mapping is ours, was not passed on, and no reference into it can outlive
        // `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::super::Memory;

    #[test]
    fn memory_comes_and_goes() {
        let arena = Memory::default().arena("test", 1 << 30).unwrap();
        arena.populate(1 << 20, 8192).unwrap();
        // SAFETY: populated, ours alone.
        unsafe {
            arena.at(1 << 20).write(7);
            assert_eq!(arena.at(1 << 20).read(), 7);
            arena.remove(1 << 20, 4096);
            assert_eq!(arena.at(1 << 20).read(), 0);
        }
        let there: Vec<_> = arena.present().collect();
        assert_eq!(there.len(), 1);
        assert_eq!(there[0], 1 << 20..(1 << 20) + 8192);
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn outside_is_refused() {
        let arena = Memory::default().arena("test", 4096).unwrap();
        arena.at(4096);
    }
}

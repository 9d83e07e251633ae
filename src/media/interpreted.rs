//! Memory files and mappings for Miri, which has no such system calls: a file is a descriptor, and
//! its bytes are on the heap.
//!
//! Invariants: all mappings of a file are at one address, for as long as the descriptor of
//! [`memfd_create`] is open; a copy of that descriptor is no memory file. The names, and what they
//! do with contents, are those of `rustix`.

use parking_lot::Mutex;
use rustix::fs::{FallocateFlags, MemfdFlags, SeekFrom};
use rustix::io::{Errno, Result};
use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags};
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::ffi::c_void;
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};

/// Bytes on the heap.
#[derive(Clone, Copy)]
struct Bytes {
    start: *mut u8,
    len: usize,
}

// SAFETY: an address range, which belongs to no thread.
unsafe impl Send for Bytes {}

/// The bytes of each descriptor. Those of a closed one stay until it is used again.
static FILES: Mutex<Vec<(RawFd, Bytes)>> = Mutex::new(Vec::new());
/// Mappings of no file.
static PRIVATE: Mutex<Vec<Bytes>> = Mutex::new(Vec::new());

impl Bytes {
    const NONE: Self = Self { start: std::ptr::null_mut(), len: 0 };

    fn layout(len: usize) -> Result<Layout> {
        Layout::from_size_align(len, super::PAGE).map_err(|_| Errno::INVAL)
    }

    fn new(len: usize) -> Result<Self> {
        if len == 0 {
            return Err(Errno::INVAL);
        }
        // SAFETY: the layout has a size.
        Ok(Self { start: unsafe { alloc_zeroed(Self::layout(len)?) }, len })
    }

    fn free(self) -> Result<()> {
        if self.len > 0 {
            // SAFETY: from `new`, with this length; the registers had it once, and no longer do.
            unsafe { dealloc(self.start, Self::layout(self.len)?) };
        }
        Ok(())
    }
}

/// The bytes of a file.
fn bytes_of(file: impl AsFd) -> Result<Bytes> {
    let number = file.as_fd().as_raw_fd();
    let files = FILES.lock();
    files.iter().find(|(known, _)| *known == number).map(|(_, bytes)| *bytes).ok_or(Errno::BADF)
}

pub(super) fn memfd_create(_name: String, _flags: MemfdFlags) -> Result<OwnedFd> {
    let file = OwnedFd::from(File::open("/dev/null").map_err(|_| Errno::NFILE)?);
    let mut files = FILES.lock();
    if let Some(at) = files.iter().position(|(known, _)| *known == file.as_raw_fd()) {
        files.swap_remove(at).1.free()?;
    }
    files.push((file.as_raw_fd(), Bytes::NONE));
    Ok(file)
}

/// Sets the length, once.
pub(super) fn ftruncate(file: impl AsFd, len: u64) -> Result<()> {
    let number = file.as_fd().as_raw_fd();
    let bytes = Bytes::new(len as usize)?;
    let mut files = FILES.lock();
    let entry = files.iter_mut().find(|(known, bytes)| *known == number && bytes.len == 0);
    entry.map(|(_, empty)| *empty = bytes).ok_or(Errno::BADF)
}

/// All bytes are data.
pub(super) fn seek(file: impl AsFd, to: SeekFrom) -> Result<u64> {
    let len = bytes_of(file)?.len as u64;
    match to {
        SeekFrom::Data(at) if at < len => Ok(at),
        SeekFrom::Hole(_) => Ok(len),
        _ => Err(Errno::NXIO),
    }
}

/// Zeroes a range, which is all that is asked for.
pub(super) fn fallocate(file: impl AsFd, _: FallocateFlags, at: u64, len: u64) -> Result<()> {
    let bytes = bytes_of(file)?;
    if at.checked_add(len).is_none_or(|end| end > bytes.len as u64) {
        return Err(Errno::INVAL);
    }
    // SAFETY: inside the file's bytes. Callers use none of these bytes meanwhile.
    unsafe { bytes.start.add(at as usize).write_bytes(0, len as usize) };
    Ok(())
}

/// # Safety
/// None is needed: the address is not used.
pub(super) unsafe fn mmap_anonymous(
    _: *mut c_void,
    len: usize,
    _: ProtFlags,
    _: MapFlags,
) -> Result<*mut c_void> {
    let bytes = Bytes::new(len)?;
    PRIVATE.lock().push(bytes);
    Ok(bytes.start.cast())
}

/// # Safety
/// None is needed: the address is not used.
pub(super) unsafe fn mmap(
    _: *mut c_void,
    len: usize,
    _: ProtFlags,
    _: MapFlags,
    file: impl AsFd,
    from: u64,
) -> Result<*mut c_void> {
    let bytes = bytes_of(file)?;
    if from.checked_add(len as u64).is_none_or(|end| end > bytes.len as u64) {
        return Err(Errno::INVAL);
    }
    Ok(bytes.start.wrapping_add(from as usize).cast())
}

/// # Safety
/// No reference into the mapping exists.
pub(super) unsafe fn munmap(start: *mut c_void, _len: usize) -> Result<()> {
    let mut private = PRIVATE.lock();
    match private.iter().position(|bytes| bytes.start.cast() == start) {
        Some(at) => private.swap_remove(at).free(),
        None => Ok(()),
    }
}

/// # Safety
/// The range is in a mapping; for advice that changes contents, no reference into it exists.
pub(super) unsafe fn madvise(start: *mut c_void, len: usize, advice: Advice) -> Result<()> {
    if advice == Advice::LinuxDontNeed {
        // SAFETY: the caller's promise.
        unsafe { start.cast::<u8>().write_bytes(0, len) };
    }
    Ok(())
}

/// # Safety
/// The range is in a mapping.
pub(super) unsafe fn mlock(_start: *mut c_void, _len: usize) -> Result<()> {
    Ok(())
}

/// # Safety
/// The range is in a mapping.
pub(super) unsafe fn mlock_with(_start: *mut c_void, _len: usize, _: MlockFlags) -> Result<()> {
    Ok(())
}

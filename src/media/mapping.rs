//! Mapped memory that belongs to one value.
//!
//! Invariants: a mapping has a fixed address and length for as long as it lives, and ends with it;
//! it hands out addresses only, so code that makes references of them answers for races; none of
//! its own calls but [`Mapping::forget`] changes contents.

#[cfg(miri)]
use super::interpreted::{madvise, mlock, mlock_with, mmap, mmap_anonymous, munmap};
use rustix::fd::AsFd;
use rustix::io::Result;
use rustix::mm::{Advice, MapFlags, MlockFlags, ProtFlags};
#[cfg(not(miri))]
use rustix::mm::{madvise, mlock, mlock_with, mmap, mmap_anonymous, munmap};
use std::ops::Range;
use std::ptr::NonNull;

/// See the module.
#[derive(Debug)]
pub struct Mapping {
    base: NonNull<u8>,
    len: usize,
}

// SAFETY: a mapping is an address range of the process and belongs to no thread. It hands out raw
// pointers only; its calls are system calls, which the kernel serializes.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

/// What the process may do with mapped memory of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MappedFor {
    /// Read it.
    Reading,
    /// Read it; all of it is made present, as far as possible.
    ReadingAll,
    /// Read and write it.
    Writing,
}

/// Advice that changes no contents.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hint {
    /// Leave it out of core dumps, which would contain the content and allocate each page that has
    /// no memory yet.
    DontDump,
    /// Huge pages. Where the machine gives none (`shmem_enabled` is `never`) this changes nothing.
    HugePages,
    /// No huge pages, even where the machine gives them to all files (`always`).
    NoHugePages,
    /// Swap it out.
    PageOut,
    /// Make its pages present.
    PopulateRead,
    /// Make its pages present and writable, so that no later access faults or fails.
    PopulateWrite,
}

impl Mapping {
    /// No memory.
    pub const EMPTY: Self = Self { base: NonNull::dangling(), len: 0 };

    /// `len` bytes of zeros, whole pages of private memory that is taken at the first access.
    ///
    /// # Errors
    /// The system's: no address space is left.
    pub fn anonymous(len: usize) -> Result<Self> {
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        Self::of(unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) }?, len)
    }

    /// `len` bytes of `file` from `from` on, a multiple of the page size, shared with other users
    /// of the file.
    ///
    /// # Errors
    /// The system's.
    pub fn shared(file: impl AsFd, access: MappedFor, from: u64, len: usize) -> Result<Self> {
        let (access, extra) = match access {
            MappedFor::Reading => (ProtFlags::READ, MapFlags::NORESERVE),
            MappedFor::ReadingAll => (ProtFlags::READ, MapFlags::POPULATE),
            MappedFor::Writing => (ProtFlags::READ | ProtFlags::WRITE, MapFlags::NORESERVE),
        };
        let flags = MapFlags::SHARED | extra;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        Self::of(unsafe { mmap(std::ptr::null_mut(), len, access, flags, file, from) }?, len)
    }

    fn of(base: *mut std::ffi::c_void, len: usize) -> Result<Self> {
        let base = NonNull::new(base.cast()).ok_or(rustix::io::Errno::NOMEM)?;
        Ok(Self { base, len })
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it is [`Mapping::EMPTY`].
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The memory, which this value no longer has.
    pub fn take(&mut self) -> Self {
        std::mem::replace(self, Self::EMPTY)
    }

    /// The address of `offset`.
    ///
    /// # Panics
    /// When `offset` is outside.
    pub fn at(&self, offset: usize) -> *mut u8 {
        assert!(offset < self.len, "offset {offset} outside a mapping of {} bytes", self.len);
        // SAFETY: just checked to be inside the mapping.
        unsafe { self.base.as_ptr().add(offset) }
    }

    /// Gives a hint for a range.
    ///
    /// # Errors
    /// The system's: the kernel lacks it, or the machine has no memory left.
    ///
    /// # Panics
    /// When the range is outside.
    pub fn hint(&self, range: Range<usize>, hint: Hint) -> Result<()> {
        // The kernel takes a range that begins with a page, and goes on to the end of the last.
        let page = rustix::param::page_size();
        self.advise(
            range.start / page * page..range.end,
            match hint {
                Hint::DontDump => Advice::LinuxDontDump,
                Hint::HugePages => Advice::LinuxHugepage,
                Hint::NoHugePages => Advice::LinuxNoHugepage,
                Hint::PageOut => Advice::LinuxPageOut,
                Hint::PopulateRead => Advice::LinuxPopulateRead,
                Hint::PopulateWrite => Advice::LinuxPopulateWrite,
            },
        )
    }

    /// Gives a hint for all of it. Best effort: without what is hinted at, the memory works.
    pub fn prefer(&self, hint: Hint) {
        let _ = self.hint(0..self.len, hint);
    }

    /// Frees the pages of a range of private memory, in memory and in swap; the range reads as
    /// zeros afterwards. Takes `&mut`, because no reference into the range may exist.
    ///
    /// # Errors
    /// The system's.
    ///
    /// # Panics
    /// When the range is outside.
    pub fn forget(&mut self, range: Range<usize>) -> Result<()> {
        self.check(&range);
        let pages = inner(&range, rustix::param::page_size());
        for edge in [range.start..pages.start, pages.end..range.end] {
            let start = self.base.as_ptr().wrapping_add(edge.start);
            // SAFETY: inside our own mapping (just checked), and no reference into it exists.
            unsafe { start.write_bytes(0, edge.len()) };
        }
        self.advise(pages, Advice::LinuxDontNeed)
    }

    fn check(&self, range: &Range<usize>) {
        assert!(range.start <= range.end && range.end <= self.len, "range outside the mapping");
    }

    fn advise(&self, range: Range<usize>, advice: Advice) -> Result<()> {
        self.check(&range);
        let start = self.base.as_ptr().wrapping_add(range.start);
        // SAFETY: inside our own mapping (just checked); no advice here changes contents but that
        // of `forget`, whose `&mut` excludes references into it.
        unsafe { madvise(start.cast(), range.len(), advice) }
    }

    /// Keeps each page in memory, and makes all present.
    ///
    /// # Errors
    /// The system's: the process may not lock that much.
    pub fn lock(&self) -> Result<()> {
        // SAFETY: locking our own mapping changes no contents.
        unsafe { mlock(self.base.as_ptr().cast(), self.len) }
    }

    /// Keeps each page in memory from the moment it is first touched.
    ///
    /// # Errors
    /// The system's: the process may not lock that much.
    pub fn lock_on_fault(&self) -> Result<()> {
        let start = self.base.as_ptr().cast();
        // SAFETY: locking our own mapping changes no contents.
        unsafe { mlock_with(start, self.len, MlockFlags::ONFAULT) }
    }
}

/// The whole pages of `page` bytes inside a range; empty, at an end of the range, if there is none.
fn inner(range: &Range<usize>, page: usize) -> Range<usize> {
    let start = range.start.next_multiple_of(page).min(range.end);
    start..(range.end / page * page).max(start)
}

impl Drop for Mapping {
    fn drop(&mut self) {
        if self.is_empty() {
            return;
        }
        // SAFETY: the mapping is ours, was not passed on, and code that made references into it
        // keeps none beyond `self`.
        let _ = unsafe { munmap(self.base.as_ptr().cast(), self.len) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::media::PAGE;

    #[test]
    fn private_memory_is_zeros_again_once_it_is_forgotten() {
        let mut memory = Mapping::anonymous(2 * PAGE).unwrap();
        // SAFETY: ours alone.
        unsafe { memory.at(2 * PAGE - 1).write(7) };
        memory.hint(0..PAGE, Hint::PopulateWrite).unwrap();
        memory.forget(PAGE..2 * PAGE).unwrap();
        // SAFETY: as above.
        assert_eq!(unsafe { memory.at(2 * PAGE - 1).read() }, 0);
    }

    #[test]
    fn part_of_a_larger_page_is_not_forgotten_with_it() {
        for (range, pages) in [
            (0..16384, 0..16384),
            (4096..40960, 16384..32768),
            (4096..16384, 16384..16384),
            (4096..8192, 8192..8192),
            (20480..28672, 28672..28672),
            (16384..20480, 16384..16384),
        ] {
            assert_eq!(inner(&range, 16384), pages, "{range:?}");
        }
        let mut memory = Mapping::anonymous(2 * PAGE).unwrap();
        // SAFETY: ours alone.
        unsafe { memory.at(0).write_bytes(7, 2 * PAGE) };
        memory.forget(100..PAGE + 100).unwrap();
        // SAFETY: as above.
        let left = (0..2 * PAGE).filter(|n| unsafe { memory.at(*n).read() } == 7);
        assert!(left.eq((0..100).chain(PAGE + 100..2 * PAGE)));
    }

    #[test]
    #[cfg(not(miri))]
    fn what_is_shared_is_the_file_s() {
        let file = tempfile::tempfile().unwrap();
        file.set_len(2 * PAGE as u64).unwrap();
        let write = Mapping::shared(&file, MappedFor::Writing, 0, 2 * PAGE).unwrap();
        let read = Mapping::shared(&file, MappedFor::ReadingAll, PAGE as u64, PAGE).unwrap();
        // SAFETY: no other thread has either.
        unsafe { write.at(PAGE + 1).write(9) };
        // SAFETY: as above.
        assert_eq!(unsafe { read.at(1).read() }, 9);
        assert!(Mapping::shared(&file, MappedFor::Reading, 1, PAGE).is_err());
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_hint_outside_is_refused() {
        let memory = Mapping::anonymous(PAGE).unwrap();
        let _ = memory.hint(0..PAGE + 1, Hint::DontDump);
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn an_address_outside_is_refused() {
        Mapping::anonymous(PAGE).unwrap().at(PAGE);
    }
}

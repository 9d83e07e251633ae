//! A memory file (`memfd`) mapped whole: sparse, addressed by offset, returned page by page.
//!
//! Invariants:
//! - a stored reference to a place in it is an offset, never an address;
//! - an arena that ends becomes a spare one (see [`super::Spares`]) only if nothing else refers to
//!   its file, and all its bytes are zeros.
//!
//! On a memory file `MADV_DONTNEED` frees nothing: the file keeps its pages. `MADV_REMOVE` frees
//! them, but is refused on locked mappings, so [`Arena::remove`] punches the hole into the file
//! itself, which is what `MADV_REMOVE` does inside the kernel.

use super::PAGE;
#[cfg(miri)]
use super::interpreted::{fallocate, seek};
use super::mapping::{Hint, MappedFor, Mapping};
use super::spares::Home;
use crate::error::{Context, Result};
use rustix::fs::{FallocateFlags, SeekFrom};
#[cfg(not(miri))]
use rustix::fs::{fallocate, seek};
use rustix::io::Errno;
use std::ops::Range;
use std::os::fd::OwnedFd;
use std::sync::Arc;

/// A sparse range of memory behind a memory file.
#[derive(Debug)]
pub struct Arena {
    file: Arc<OwnedFd>,
    memory: Mapping,
    /// The spares that it becomes one of when it ends; `None`: its memory goes back to the machine.
    home: Option<Box<Home>>,
}

/// Bytes of memory that a spare arena keeps. To zero them is faster than to fault them in again.
const SPARED: usize = 256 << 10;

impl Arena {
    /// Maps a memory file of `len` bytes, whole pages.
    ///
    /// # Errors
    /// The system's, with the name and size.
    pub(super) fn over(file: Arc<OwnedFd>, name: &str, len: usize) -> Result<Self> {
        let what = || format!("cannot reserve {len} bytes of address space for {name}");
        let memory = Mapping::shared(&*file, MappedFor::Writing, 0, len).context(what())?;
        memory.prefer(Hint::DontDump);
        Ok(Self { file, memory, home: None })
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
        self.memory.len()
    }

    /// Never: an arena has at least a page.
    pub fn is_empty(&self) -> bool {
        false
    }

    /// Asks for huge pages.
    pub fn prefer_huge_pages(&self) {
        self.memory.prefer(Hint::HugePages);
    }

    /// Refuses huge pages: memory that is touched page by page would take 2 MiB each time.
    pub fn refuse_huge_pages(&self) {
        self.memory.prefer(Hint::NoHugePages);
    }

    /// Keeps every page resident from the moment it is first touched.
    ///
    /// # Errors
    /// The system's, when the process may not lock that much.
    pub fn lock(&self) -> Result<()> {
        let locked = self.memory.lock_on_fault().context("cannot lock the volume's memory");
        locked.map_err(|e| e.hint("run as root, or raise the limit (ulimit -l)"))
    }

    /// The address of `offset`.
    ///
    /// # Panics
    /// When `offset` is outside; offsets come from the index and the segment table only.
    pub fn at(&self, offset: usize) -> *mut u8 {
        self.memory.at(offset)
    }

    /// Makes the pages of a range present and writable, so that no later access faults or fails.
    ///
    /// # Errors
    /// `ENOMEM` and its like: the machine has no memory left.
    ///
    /// # Panics
    /// When the range is outside.
    pub fn populate(&self, offset: usize, len: usize) -> rustix::io::Result<()> {
        self.memory.hint(offset..offset + len, Hint::PopulateWrite)
    }

    /// Ranges that have memory behind them, ascending, in whole pages; all else reads as zeros.
    /// Only for a process that takes over the memory of another: no thread may change it meanwhile.
    pub fn present(&self) -> impl Iterator<Item = Range<usize>> + '_ {
        Present { arena: self, at: 0 }
    }

    /// Gives the pages of a range back to the machine. They read as zeros afterwards.
    pub fn remove(&self, offset: usize, len: usize) {
        assert!(offset + len <= self.len(), "range outside the arena");
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

    /// Becomes spare instead of ending, if nothing else refers to the file.
    fn becomes_spare(&mut self) {
        let Some(home) = self.home.take() else { return };
        // The set is gone when this is the only reference to the file: nothing gives it out later.
        if Arc::get_mut(&mut self.file).is_none() || home.is_shared() || !self.empty() {
            return;
        }
        home.keep(Self { file: self.file.clone(), memory: self.memory.take(), home: None });
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
        let end = seek(file, SeekFrom::Hole(start)).unwrap_or(self.arena.len() as u64);
        self.at = end;
        Some(start as usize / PAGE * PAGE..(end as usize).next_multiple_of(PAGE))
    }
}

impl Drop for Arena {
    fn drop(&mut self) {
        self.becomes_spare();
    }
}

#[cfg(test)]
mod tests {
    use super::super::Memory;

    #[test]
    #[cfg(not(miri))]
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

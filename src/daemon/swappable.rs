//! Anonymous memory of a companion process whose pages are to be swapped out, and what the kernel
//! says of each page.

use crate::error::{Context, Result};
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};
use std::ffi::c_void;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of a page.
pub(super) const PAGE: usize = 4096;
/// In an entry of `/proc/self/pagemap`: the page is swapped out.
const SWAPPED: u64 = 1 << 62;
/// The bits of an entry with the number of the swap area; the slot's number follows.
const AREA_BITS: u32 = 5;
/// The bits of an entry with the numbers of area and slot.
const PLACE_BITS: u32 = 55;

/// Where a page is swapped out to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    /// The kernel's number of the swap area (`type`).
    pub area: u64,
    /// The number of the slot, which is that of the page on the device.
    pub slot: u64,
}

impl Slot {
    /// Of an entry of `/proc/self/pagemap`; `None`: the page is not swapped out.
    pub fn of(entry: u64) -> Option<Self> {
        let place = entry & ((1 << PLACE_BITS) - 1);
        let slot = Self { area: place & ((1 << AREA_BITS) - 1), slot: place >> AREA_BITS };
        (entry & SWAPPED != 0).then_some(slot)
    }
}

/// Private memory that this process alone accesses, by one thread.
pub(super) struct Swappable {
    start: *mut c_void,
    len: usize,
    map: File,
}

impl Swappable {
    /// `len` bytes of zeros, whole pages, that take no memory yet.
    ///
    /// # Errors
    /// There is no address space, or the kernel does not say where pages are.
    pub fn new(len: usize) -> Result<Self> {
        let (access, flags) =
            (ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE | MapFlags::NORESERVE);
        let len = len.max(PAGE);
        // SAFETY: a new mapping, at an address of the kernel's choice.
        let start = unsafe { mmap_anonymous(std::ptr::null_mut(), len, access, flags) }
            .context("no address space for pages to swap out")?;
        let map = File::open("/proc/self/pagemap").context("cannot open /proc/self/pagemap")?;
        let memory = Self { start, len, map };
        // A huge page would take one slot where the kernel swaps it out whole. Without huge pages
        // the call fails.
        let _ = memory.advise(0, len, Advice::LinuxNoHugepage);
        Ok(memory)
    }

    /// Writes `bytes` from `at` on.
    ///
    /// # Panics
    /// The range is outside.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        assert!(at + bytes.len() <= self.len, "range outside the pages");
        for (byte, at) in bytes.iter().zip(at..) {
            // SAFETY: within the mapping, which only this thread accesses. Volatile: the compiler
            // must not leave out writes whose values no code reads.
            unsafe { self.start.cast::<u8>().add(at).write_volatile(*byte) };
        }
    }

    /// Asks the kernel to swap out `len` bytes from `at` on, whole pages.
    ///
    /// # Errors
    /// The system's.
    pub fn page_out(&self, at: usize, len: usize) -> Result<()> {
        self.advise(at, len, Advice::LinuxPageOut).context("cannot swap pages out")
    }

    /// Frees `len` bytes from `at` on, whole pages, in memory and in swap.
    ///
    /// # Errors
    /// The system's.
    pub fn free(&self, at: usize, len: usize) -> Result<()> {
        self.advise(at, len, Advice::LinuxDontNeed).context("cannot free pages")
    }

    /// The entries of the pages of `len` bytes from `at` on, for [`Slot::of`].
    ///
    /// # Errors
    /// The system's.
    pub fn entries(&self, at: usize, len: usize) -> Result<Vec<u64>> {
        let mut entries = vec![0; len / PAGE * 8];
        let first = (self.start.addr() + at) / PAGE;
        let read = self.map.read_exact_at(&mut entries, first as u64 * 8);
        read.context("cannot read /proc/self/pagemap")?;
        Ok(entries.as_chunks::<8>().0.iter().map(|entry| u64::from_ne_bytes(*entry)).collect())
    }

    fn advise(&self, at: usize, len: usize, how: Advice) -> rustix::io::Result<()> {
        assert!(at + len <= self.len, "range outside the pages");
        // SAFETY: the range is within the mapping, to which no reference exists.
        unsafe { madvise(self.start.byte_add(at), len, how) }
    }
}

impl Drop for Swappable {
    fn drop(&mut self) {
        // SAFETY: the mapping belongs to this value, and no reference to it exists.
        let _ = unsafe { munmap(self.start, self.len) };
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn an_entry_names_area_and_slot() {
        assert_eq!(Slot::of(1 << 63 | 5), None);
        let entry = SWAPPED | 1 << 55 | 12345 << 5 | 3;
        assert_eq!(Slot::of(entry), Some(Slot { area: 3, slot: 12345 }));
    }

    #[test]
    fn pages_are_present_once_they_are_written_and_until_they_are_freed() {
        let memory = Swappable::new(4 * PAGE).unwrap();
        let present = || {
            let entries = memory.entries(0, 4 * PAGE).unwrap();
            entries.iter().map(|entry| entry >> 63 == 1).collect::<Vec<_>>()
        };
        assert_eq!(present(), [false; 4]);
        memory.write(PAGE - 1, &[1, 2]);
        assert_eq!(present(), [true, true, false, false]);
        memory.free(PAGE, PAGE).unwrap();
        assert_eq!(present(), [true, false, false, false]);
    }
}

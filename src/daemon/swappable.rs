//! Anonymous memory of a companion process whose pages are to be swapped out, and what the kernel
//! says of each page.

use crate::error::{Context, Result};
use crate::media::{Hint, Mapping};
use crate::system::page_size;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of a page.
pub(super) const PAGE: usize = page_size::USUAL;
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
    pages: Mapping,
    map: File,
}

impl Swappable {
    /// `len` bytes of zeros, whole pages, that take no memory yet.
    ///
    /// # Errors
    /// The kernel's pages are larger, there is no address space, or the kernel does not say where
    /// pages are.
    pub fn new(len: usize) -> Result<Self> {
        page_size::usual()?;
        let pages = Mapping::anonymous(len.max(PAGE));
        let pages = pages.context("no address space for pages to swap out")?;
        let map = File::open("/proc/self/pagemap").context("cannot open /proc/self/pagemap")?;
        // A huge page would take one slot where the kernel swaps it out whole.
        pages.prefer(Hint::NoHugePages);
        Ok(Self { pages, map })
    }

    /// Writes `bytes` from `at` on.
    ///
    /// # Panics
    /// The range is outside.
    pub fn write(&self, at: usize, bytes: &[u8]) {
        for (byte, at) in bytes.iter().zip(at..) {
            // SAFETY: within the mapping, which only this thread accesses. Volatile: the compiler
            // must not leave out writes whose values no code reads.
            unsafe { self.pages.at(at).write_volatile(*byte) };
        }
    }

    /// Asks the kernel to swap out `len` bytes from `at` on, whole pages.
    ///
    /// # Errors
    /// The system's.
    pub fn page_out(&self, at: usize, len: usize) -> Result<()> {
        self.pages.hint(at..at + len, Hint::PageOut).context("cannot swap pages out")
    }

    /// Frees `len` bytes from `at` on, whole pages, in memory and in swap.
    ///
    /// # Errors
    /// The system's.
    pub fn free(&mut self, at: usize, len: usize) -> Result<()> {
        self.pages.forget(at..at + len).context("cannot free pages")
    }

    /// The entries of the pages of `len` bytes from `at` on, for [`Slot::of`].
    ///
    /// # Errors
    /// The system's.
    pub fn entries(&self, at: usize, len: usize) -> Result<Vec<u64>> {
        let mut entries = vec![0; len / PAGE * 8];
        let first = self.pages.at(at).addr() / PAGE;
        let read = self.map.read_exact_at(&mut entries, first as u64 * 8);
        read.context("cannot read /proc/self/pagemap")?;
        Ok(entries.as_chunks::<8>().0.iter().map(|entry| u64::from_ne_bytes(*entry)).collect())
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
        let mut memory = Swappable::new(4 * PAGE).unwrap();
        let present = |memory: &Swappable| {
            let entries = memory.entries(0, 4 * PAGE).unwrap();
            entries.iter().map(|entry| entry >> 63 == 1).collect::<Vec<_>>()
        };
        assert_eq!(present(&memory), [false; 4]);
        memory.write(PAGE - 1, &[1, 2]);
        assert_eq!(present(&memory), [true, true, false, false]);
        memory.free(PAGE, PAGE).unwrap();
        assert_eq!(present(&memory), [true, false, false, false]);
    }
}

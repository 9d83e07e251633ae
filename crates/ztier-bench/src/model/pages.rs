//! The memory behind a modelled drive: pages that exist only after a write.
//!
//! Invariants: an all-zero page takes no memory of its own, though slabs stay; each page is read
//! and written as a whole, under the lock of its shard.

use crate::sys::map::AlignedBuf;
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use ztier::media::ALIGN;
use ztier::sync::Mutex;

/// Pages in a group, which one lock protects: 256 KiB.
const GROUP: u64 = 64;
const SHARDS: usize = 64;
const PAGE: u64 = ALIGN as u64;

/// Pages in a slab: 2 MiB, which the system can back with one huge page.
const SLAB: usize = 512;

/// Position in the shard of each page of a group.
type Group = Vec<Option<u32>>;

/// A part of the memory: slabs of pages, and a list of free pages.
#[derive(Default)]
struct Shard {
    groups: HashMap<u64, Group>,
    slabs: Vec<AlignedBuf>,
    free: Vec<u32>,
}

impl Shard {
    fn page(&self, at: u32) -> &[u8] {
        let from = at as usize % SLAB * ALIGN;
        &self.slabs[at as usize / SLAB][from..from + ALIGN]
    }

    fn page_mut(&mut self, at: u32) -> &mut [u8] {
        let from = at as usize % SLAB * ALIGN;
        &mut self.slabs[at as usize / SLAB][from..from + ALIGN]
    }

    /// Takes a free page.
    fn take(&mut self) -> u32 {
        if self.free.is_empty() {
            self.grow();
        }
        self.free.pop().unwrap_or_default()
    }

    /// Adds a slab.
    fn grow(&mut self) {
        let first = (self.slabs.len() * SLAB) as u32;
        let slab = AlignedBuf::ready(SLAB * ALIGN);
        // Fails as any allocation does without memory.
        self.slabs.push(slab.unwrap_or_else(|e| panic!("{e}")));
        self.free.splice(0..0, (first..first + SLAB as u32).rev());
    }
}

/// Sparse memory of any size.
pub struct Pages {
    shards: Vec<Mutex<Shard>>,
    kept: AtomicU64,
}

impl Pages {
    /// All zeros.
    pub fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::default()).collect();
        Self { shards, kept: AtomicU64::new(0) }
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.kept.load(Ordering::Relaxed) * PAGE
    }

    /// Allocates memory for `bytes` at any offset, so that writes need not.
    pub fn reserve(&self, bytes: u64) {
        let slabs = bytes.div_ceil((SLAB * ALIGN * SHARDS) as u64);
        for shard in &self.shards {
            let mut shard = shard.lock();
            (0..slabs).for_each(|_| shard.grow());
        }
    }

    fn shard(&self, group: u64) -> &Mutex<Shard> {
        &self.shards[(group % SHARDS as u64) as usize]
    }

    /// Fills `buf`, whole pages, from offset `at` on, a multiple of the page size.
    pub fn read(&self, at: u64, buf: &mut [u8]) {
        let mut left = buf;
        for (group, first, count) in groups(at, left.len() as u64) {
            let (here, rest) = left.split_at_mut(count * ALIGN);
            left = rest;
            let shard = self.shard(group).lock();
            match shard.groups.get(&group) {
                Some(pages) => {
                    for (to, from) in here.chunks_exact_mut(ALIGN).zip(&pages[first..]) {
                        match from {
                            Some(page) => to.copy_from_slice(shard.page(*page)),
                            None => to.fill(0),
                        }
                    }
                }
                None => here.fill(0),
            }
        }
    }

    /// Stores `data`, whole pages, from offset `at` on, a multiple of the page size.
    pub fn write(&self, at: u64, data: &[u8]) {
        let mut left = data;
        for (group, first, count) in groups(at, left.len() as u64) {
            let (here, rest) = left.split_at(count * ALIGN);
            left = rest;
            let mut shard = self.shard(group).lock();
            // Out of the map while it is changed, because the rest of the shard changes, too.
            let mut pages =
                shard.groups.remove(&group).unwrap_or_else(|| vec![None; GROUP as usize]);
            for (from, to) in here.chunks_exact(ALIGN).zip(&mut pages[first..]) {
                let zero = is_zero(from);
                self.count(to.is_some(), !zero);
                match *to {
                    Some(page) if zero => {
                        shard.free.push(page);
                        *to = None;
                    }
                    None if zero => {}
                    page => {
                        let page = page.unwrap_or_else(|| shard.take());
                        shard.page_mut(page).copy_from_slice(from);
                        *to = Some(page);
                    }
                }
            }
            shard.groups.insert(group, pages);
        }
    }

    /// Zeroes `len` bytes from `at` on, both multiples of the page size.
    pub fn zero(&self, at: u64, len: u64) {
        for (group, first, count) in groups(at, len) {
            let mut shard = self.shard(group).lock();
            let Some(mut pages) = shard.groups.remove(&group) else { continue };
            for page in &mut pages[first..first + count] {
                self.count(page.is_some(), false);
                shard.free.extend(page.take());
            }
            if pages.iter().any(Option::is_some) {
                shard.groups.insert(group, pages);
            }
        }
    }

    fn count(&self, was: bool, is: bool) {
        match (was, is) {
            (false, true) => _ = self.kept.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = self.kept.fetch_sub(1, Ordering::Relaxed),
            _ => {}
        }
    }
}

/// The groups in a range: number, first page within the group, number of pages.
fn groups(at: u64, len: u64) -> impl Iterator<Item = (u64, usize, usize)> {
    let (mut page, end) = (at / PAGE, (at + len) / PAGE);
    std::iter::from_fn(move || {
        let first = page % GROUP;
        let count = (GROUP - first).min(end.checked_sub(page).filter(|&left| left > 0)?);
        let group = page / GROUP;
        page += count;
        Some((group, first as usize, count as usize))
    })
}

fn is_zero(page: &[u8]) -> bool {
    page.chunks(64).all(|line| line.iter().fold(0, |all, byte| all | byte) == 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_and_zeros_take_nothing() {
        let pages = Pages::new();
        let far = (1 << 39) - 5 * PAGE;
        let data: Vec<u8> = (0..200 * ALIGN).map(|n| (n / ALIGN + 1) as u8).collect();
        pages.write(far, &data);
        assert_eq!(pages.bytes(), data.len() as u64);
        let mut back = vec![9; 202 * ALIGN];
        pages.read(far - PAGE, &mut back);
        assert!(back[..ALIGN].iter().chain(&back[201 * ALIGN..]).all(|&b| b == 0));
        assert!(back[ALIGN..201 * ALIGN] == data);

        pages.write(far, &vec![0; 3 * ALIGN]);
        pages.zero(far + 100 * PAGE, 1 << 38);
        assert_eq!(pages.bytes(), 97 * PAGE);
        pages.write(far + 100 * PAGE, &data[..ALIGN]);
        pages.write(far + 100 * PAGE, &data[ALIGN..2 * ALIGN]);
        assert_eq!(pages.bytes(), 98 * PAGE);
        pages.read(far, &mut back[..101 * ALIGN]);
        assert!(back[..3 * ALIGN].iter().all(|&b| b == 0));
        assert!(back[3 * ALIGN..100 * ALIGN] == data[3 * ALIGN..100 * ALIGN]);
        assert!(back[100 * ALIGN..101 * ALIGN].iter().all(|&b| b == 2));
        pages.zero(0, 1 << 40);
        assert_eq!(pages.bytes(), 0);
    }
}

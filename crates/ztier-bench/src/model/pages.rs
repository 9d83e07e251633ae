//! The memory behind a modelled drive: pages that exist once something was written to them.
//!
//! Invariants: a page that is all zeros takes no memory; each page is read and written as a whole,
//! under the lock of its shard.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use ztier::media::ALIGN;
use ztier::sync::Mutex;

/// Pages in a group, which one lock protects: 256 KiB.
const GROUP: u64 = 64;
const SHARDS: usize = 64;
const PAGE: u64 = ALIGN as u64;

type Group = Vec<Option<Box<[u8]>>>;

/// Sparse memory of any size.
#[derive(Debug)]
pub struct Pages {
    shards: Vec<Mutex<HashMap<u64, Group>>>,
    kept: AtomicU64,
}

impl Pages {
    /// All zeros.
    pub fn new() -> Self {
        let shards = (0..SHARDS).map(|_| Mutex::new(HashMap::new())).collect();
        Self { shards, kept: AtomicU64::new(0) }
    }

    /// Bytes that are kept.
    pub fn bytes(&self) -> u64 {
        self.kept.load(Ordering::Relaxed) * PAGE
    }

    fn shard(&self, group: u64) -> &Mutex<HashMap<u64, Group>> {
        &self.shards[(group % SHARDS as u64) as usize]
    }

    /// Fills `buf`, a whole number of pages, from `at` on, a multiple of the page's size.
    pub fn read(&self, at: u64, buf: &mut [u8]) {
        let mut left = buf;
        for (group, first, count) in groups(at, left.len() as u64) {
            let (here, rest) = left.split_at_mut(count * ALIGN);
            left = rest;
            let shard = self.shard(group).lock();
            match shard.get(&group) {
                Some(pages) => {
                    for (to, from) in here.chunks_exact_mut(ALIGN).zip(&pages[first..]) {
                        match from {
                            Some(page) => to.copy_from_slice(page),
                            None => to.fill(0),
                        }
                    }
                }
                None => here.fill(0),
            }
        }
    }

    /// Stores `data`, a whole number of pages, from `at` on, a multiple of the page's size.
    pub fn write(&self, at: u64, data: &[u8]) {
        let mut left = data;
        for (group, first, count) in groups(at, left.len() as u64) {
            let (here, rest) = left.split_at(count * ALIGN);
            left = rest;
            let mut shard = self.shard(group).lock();
            let pages = shard.entry(group).or_insert_with(|| vec![None; GROUP as usize]);
            for (from, to) in here.chunks_exact(ALIGN).zip(&mut pages[first..]) {
                match to {
                    _ if is_zero(from) => self.count(to.take().is_some(), false),
                    Some(page) => page.copy_from_slice(from),
                    None => {
                        *to = Some(from.into());
                        self.count(false, true);
                    }
                }
            }
        }
    }

    /// Makes `len` bytes from `at` on zeros, both multiples of the page's size.
    pub fn zero(&self, at: u64, len: u64) {
        for (group, first, count) in groups(at, len) {
            let mut shard = self.shard(group).lock();
            let Some(pages) = shard.get_mut(&group) else { continue };
            for page in &mut pages[first..first + count] {
                self.count(page.take().is_some(), false);
            }
            if pages.iter().all(Option::is_none) {
                shard.remove(&group);
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

/// The groups that a range touches: number, first page in it, pages.
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

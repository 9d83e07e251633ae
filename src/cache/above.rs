//! What a cache knows of the page cache above it.
//!
//! Invariant: a region is read past the page cache only after many of its blocks were asked for
//! again that the page cache was to have.

use super::hints::Hints;
use super::seal::Seal;
use super::seals::Seals;
use crate::BLOCK_SIZE;
use crate::error::{Context, Result};
use crate::sync::atomic::{AtomicU16, AtomicU64, Ordering};
use highway::{HighwayHash, HighwayHasher, Key};
use rustix::rand::{GetRandomFlags, getrandom};
use std::sync::Arc;

/// One in this many bytes of the limit may be seals and hints.
const PART: u64 = 16;
/// Blocks of a region, 4 MiB, and counters of regions; several regions may share one.
const REGION_BITS: u32 = 10;
const REGIONS: usize = if cfg!(shuttle) { 2 } else { 4096 };
/// A region is read past the page cache when its counter has this value. It begins at [`NEW`]; a
/// block that was asked for again, while the page cache was to have it, counts [`AGAIN`], and one
/// that was dropped there and is known, one less. So when files are read in order, which are
/// dropped before they are asked for again, a quarter of the pages may be unknown.
const PAST: u16 = 512;
const NEW: u16 = PAST - 64;
const AGAIN: u16 = 2;
/// The most that a counter can have.
const MOST: u16 = PAST + 64;
/// Part of the machine's memory for which there are seals at most, in eighths: they are not spread
/// evenly over their places.
const EIGHTHS: u64 = 9;
/// Most lost pages that may be asked for again and say nothing about a region.
const LOST_MOST: u64 = 16 << 10;

/// See the module.
#[derive(Debug)]
pub struct Above {
    key: [u64; 4],
    /// The limit that it was made for, in bytes.
    limit: u64,
    hints: Arc<Hints>,
    /// Bytes for all seals.
    seals: u64,
    /// Bytes of what brings dropped pages.
    beside: u64,
    regions: Vec<AtomicU16>,
    /// Dropped pages that were lost and not asked for again, or fewer.
    lost: AtomicU64,
}

impl Above {
    /// For a cache with a limit of `limit` bytes, and `beside` more for what brings dropped pages.
    ///
    /// # Errors
    /// There is no random number.
    pub fn new(limit: u64, beside: u64) -> Result<Self> {
        let mut bytes = [[0; 8]; 4];
        if !cfg!(shuttle) {
            getrandom(bytes.as_flattened_mut(), GetRandomFlags::empty())
                .context("no random number")?;
        }
        Ok(Self::with(bytes.map(u64::from_ne_bytes), limit, beside))
    }

    /// Whether it has about the size for a limit, which may adapt in small steps.
    pub fn fits(&self, limit: u64) -> bool {
        limit >= self.limit / 4 * 3 && limit <= self.limit / 3 * 4
    }

    /// The same for another limit: nothing is known of what was sealed.
    #[must_use]
    pub fn resized(&self, limit: u64) -> Self {
        Self::with(self.key, limit, self.beside)
    }

    fn with(key: [u64; 4], limit: u64, beside: u64) -> Self {
        let seals = seals(limit, memory());
        Self {
            key,
            limit,
            hints: Arc::new(Hints::with_room(seals / Seals::EACH * Hints::EACH)),
            seals,
            beside,
            regions: (0..REGIONS).map(|_| AtomicU16::new(NEW)).collect(),
            lost: AtomicU64::new(0),
        }
    }

    /// Memory in bytes, without seals, once all hints are there.
    pub fn bytes(&self) -> u64 {
        self.hints.bytes() + size_of_val(&self.regions[..]) as u64 + self.beside
    }

    /// Bytes for all seals.
    pub fn seals(&self) -> u64 {
        self.seals
    }

    /// Which blocks may have a seal.
    pub fn hints(&self) -> &Arc<Hints> {
        &self.hints
    }

    /// The seal of a block's content.
    pub fn seal(&self, content: &[u8; BLOCK_SIZE]) -> Seal {
        let [low, high] = HighwayHasher::new(Key(self.key)).hash128(content);
        Seal::new(u128::from(high) << 64 | u128::from(low))
    }

    fn region(&self, block: u64) -> &AtomicU16 {
        &self.regions[(block >> REGION_BITS) as usize % REGIONS]
    }

    /// Pages were dropped that did not come.
    pub fn lost(&self, pages: u64) {
        let more = |lost: u64| Some((lost + pages).min(LOST_MOST));
        let _ = self.lost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// A block was asked for again although the page cache was to have it, or has dropped it and
    /// the page was lost.
    pub fn asked_again(&self, block: u64) {
        let less = |lost: u64| lost.checked_sub(1);
        if self.lost.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less).is_ok() {
            return;
        }
        let more = |count: u16| Some((count + AGAIN).min(MOST));
        let _ = self.region(block).fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// A block that the page cache has dropped was known.
    pub fn dropped(&self, block: u64) {
        let less = |count: u16| count.checked_sub(1);
        let _ = self.region(block).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Whether the page cache gets the blocks around `block`: else they are read past it.
    pub fn has(&self, block: u64) -> bool {
        self.region(block).load(Ordering::Relaxed) < PAST
    }
}

/// Bytes for all seals of a cache with a limit of `limit` bytes, on a machine with `memory` bytes;
/// as many hints go with them. The page cache has no more pages than there is memory.
fn seals(limit: u64, memory: u64) -> u64 {
    let fit = limit / PART / (Seals::EACH + Hints::EACH);
    fit.min(memory / BLOCK_SIZE as u64 / 8 * EIGHTHS) * Seals::EACH
}

/// The machine's memory, in bytes.
fn memory() -> u64 {
    let info = rustix::system::sysinfo();
    #[allow(clippy::useless_conversion)] // the field is narrower on 32-bit machines
    u64::from(info.totalram).saturating_mul(u64::from(info.mem_unit))
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_block_is_found_by_its_content() {
        let above = Above::new(64 << 20, 0).unwrap();
        let content = |n: u64| {
            let mut block = [0; BLOCK_SIZE];
            block[100..108].copy_from_slice(&n.to_le_bytes());
            block
        };
        let hints = above.hints();
        (0..50_000).for_each(|n| hints.note(above.seal(&content(n)), n * 3));
        let found = |n: &u64| hints.blocks(above.seal(&content(*n))).any(|block| block == n * 3);
        let found = (0..50_000).filter(found).count();
        assert!(found > 49_500, "{found} of 50000");
        assert_eq!(hints.blocks(above.seal(&content(99_999))).count(), 0);
        let other = Above::new(64 << 20, 0).unwrap();
        assert_ne!(above.seal(&content(1)), other.seal(&content(1)), "the key is random");
        assert!(above.bytes() + above.seals() <= (64 << 20) / PART + 4 * REGIONS as u64);
    }

    #[test]
    fn there_are_no_more_seals_than_pages_fit_above() {
        let count = |limit: u64, memory: u64| seals(limit, memory) / Seals::EACH;
        let gib = 1u64 << 30;
        assert_eq!(count(gib, gib), gib / 4096 / 8 * 9);
        assert_eq!(count(gib / 2, gib), gib / 4096 / 8 * 9, "the limit has room for more");
        let least = count(gib / 10, gib);
        assert!(least < gib / 4096 && least == count(gib / 10, 64 * gib));
        assert!(memory() > 1 << 24);
    }

    #[test]
    fn what_is_asked_for_again_is_read_past_the_page_cache() {
        let above = Above::new(8 << 20, 0).unwrap();
        (0..40).for_each(|_| above.asked_again(5000));
        assert!(!above.has(5000) && above.has(50));
        (0..40).for_each(|_| above.dropped(5001));
        assert!(above.has(5000));
        above.lost(40);
        (0..40).for_each(|_| above.asked_again(9000));
        assert!(above.has(9000), "the page cache had dropped these");
        (0..40).for_each(|_| above.asked_again(9000));
        assert!(!above.has(9000));
    }
}

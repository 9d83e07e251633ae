//! What a cache knows of the page cache above it, and how it finds the block of a dropped page.
//!
//! Invariants: a hint is only a hint: the shard of the block decides by the block's seal; hints are
//! read and written without a lock.

use super::seals::{Seal, Seals};
use crate::BLOCK_SIZE;
use crate::error::{Context, Result};
use crate::sync::atomic::{AtomicU8, AtomicU32, AtomicU64, Ordering};
use highway::{HighwayHash, HighwayHasher, Key};
use rustix::rand::{GetRandomFlags, getrandom};

/// One in this many bytes of the limit may be seals and hints.
const PART: u64 = 16;
/// Hints of which a new one takes the place of another.
const WAYS: usize = 8;
/// A hint has the block in its low bits, and bits of the seal above them.
const BLOCK_BITS: u32 = 40;
/// Blocks of a region, 4 MiB, and counters of regions; several regions may share one.
const REGION_BITS: u32 = 10;
const REGIONS: usize = if cfg!(shuttle) { 2 } else { 4096 };
/// Most hints: the schedule explorer looks at each.
const HINTS: usize = if cfg!(shuttle) { 2 * WAYS } else { 1 << 32 };
/// A region is read past the page cache when its counter has this value; what a block that was
/// asked for again counts, while the page cache was to have it. One that is dropped there counts
/// one less.
const PAST: u8 = 64;
const AGAIN: u8 = 4;

/// See the module.
#[derive(Debug)]
pub struct Above {
    key: [u64; 4],
    /// The limit that it was made for, in bytes.
    limit: u64,
    hints: Vec<AtomicU64>,
    /// Bytes of what brings dropped pages.
    beside: u64,
    turn: AtomicU32,
    regions: Vec<AtomicU8>,
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
        let hints = ((seals(limit) / Seals::EACH) as usize).min(HINTS) / WAYS * WAYS;
        Self {
            key,
            limit,
            hints: (0..hints).map(|_| AtomicU64::new(0)).collect(),
            beside,
            turn: AtomicU32::new(0),
            regions: (0..REGIONS).map(|_| AtomicU8::new(0)).collect(),
        }
    }

    /// Memory in bytes, without seals.
    pub fn bytes(&self) -> u64 {
        (self.hints.len() * size_of::<AtomicU64>() + self.regions.len()) as u64 + self.beside
    }

    /// The seal of a block's content.
    pub fn seal(&self, content: &[u8; BLOCK_SIZE]) -> Seal {
        let [low, high] = HighwayHasher::new(Key(self.key)).hash128(content);
        Seal::new(u128::from(high) << 64 | u128::from(low))
    }

    fn ways(&self, seal: Seal) -> &[AtomicU64] {
        let sets = (self.hints.len() / WAYS) as u64;
        let set = (((seal.bits() & u64::from(u32::MAX)) * sets) >> 32) as usize;
        self.hints.get(set * WAYS..(set + 1) * WAYS).unwrap_or_default()
    }

    fn hint(seal: Seal, block: u64) -> u64 {
        // Never 0, which is no hint.
        (seal.bits() >> 32 | 1) << BLOCK_BITS | block & ((1 << BLOCK_BITS) - 1)
    }

    /// Notes that `block` has that seal.
    pub fn note(&self, seal: Seal, block: u64) {
        let (hint, ways) = (Self::hint(seal, block), self.ways(seal));
        let mut free = None;
        for (n, way) in ways.iter().enumerate() {
            match way.load(Ordering::Relaxed) {
                there if there == hint => return,
                0 if free.is_none() => free = Some(n),
                _ => {}
            }
        }
        let next = || self.turn.fetch_add(1, Ordering::Relaxed) as usize % WAYS;
        if let Some(way) = ways.get(free.unwrap_or_else(next)) {
            way.store(hint, Ordering::Relaxed);
        }
    }

    /// Blocks that may have that seal.
    pub fn blocks(&self, seal: Seal) -> impl Iterator<Item = u64> {
        let name = Self::hint(seal, 0) >> BLOCK_BITS;
        let hints = self.ways(seal).iter().map(|way| way.load(Ordering::Relaxed));
        hints
            .filter(move |hint| hint >> BLOCK_BITS == name)
            .map(|hint| hint & ((1 << BLOCK_BITS) - 1))
    }

    fn region(&self, block: u64) -> &AtomicU8 {
        &self.regions[(block >> REGION_BITS) as usize % REGIONS]
    }

    /// A block was asked for again although the page cache was to have it.
    pub fn asked_again(&self, block: u64) {
        let more = |count: u8| Some(count.saturating_add(AGAIN).min(2 * PAST));
        let _ = self.region(block).fetch_update(Ordering::Relaxed, Ordering::Relaxed, more);
    }

    /// A block that the page cache has dropped was known.
    pub fn dropped(&self, block: u64) {
        let less = |count: u8| count.checked_sub(1);
        let _ = self.region(block).fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
    }

    /// Whether the page cache gets the blocks around `block`: else they are read past it.
    pub fn has(&self, block: u64) -> bool {
        self.region(block).load(Ordering::Relaxed) < PAST
    }
}

/// Bytes for all seals of a cache with a limit of `limit` bytes; as many hints go with them.
pub fn seals(limit: u64) -> u64 {
    let each = Seals::EACH + size_of::<AtomicU64>() as u64;
    limit / PART / each * Seals::EACH
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
        (0..50_000).for_each(|n| above.note(above.seal(&content(n)), n * 3));
        let found = |n: &u64| above.blocks(above.seal(&content(*n))).any(|block| block == n * 3);
        let found = (0..50_000).filter(found).count();
        assert!(found > 48_000, "{found} of 50000");
        assert_eq!(above.blocks(above.seal(&content(99_999))).count(), 0);
        let other = Above::new(64 << 20, 0).unwrap();
        assert_ne!(above.seal(&content(1)), other.seal(&content(1)), "the key is random");
        assert!(above.bytes() + seals(64 << 20) <= (64 << 20) / PART + 3 * REGIONS as u64);
    }

    #[test]
    fn what_is_asked_for_again_is_read_past_the_page_cache() {
        let above = Above::new(8 << 20, 0).unwrap();
        (0..20).for_each(|_| above.asked_again(5000));
        assert!(!above.has(5000) && above.has(50));
        (0..40).for_each(|_| above.dropped(5001));
        assert!(above.has(5000));
    }
}

//! Hints at the blocks that may have some content, by the seal of it.
//!
//! Invariants: a hint is only a hint: the shard of the block decides by the block's seal; hints are
//! read and written without a lock; memory is taken when a hint first needs it.

use super::seal::Seal;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::sync::OnceLock;

/// Hints of which a new one takes the place of another.
const WAYS: usize = 16;
/// Hints of a chunk, in which memory is taken.
const CHUNK: usize = if cfg!(shuttle) { WAYS } else { 512 };
/// Makes the second set of a seal independent of the first: the golden ratio, odd.
const OTHER: u32 = 0x9e37_79b9;
/// A hint has the block in its low bits, and bits of the seal above them. 0 is none.
const BLOCK_BITS: u32 = 40;
/// Most chunks: the schedule explorer looks at each hint.
const CHUNKS: u64 = if cfg!(shuttle) { 2 } else { 1 << 24 };

type Chunk = OnceLock<Box<[AtomicU64; CHUNK]>>;

/// See the module.
#[derive(Debug)]
pub struct Hints {
    chunks: Vec<Chunk>,
    turn: AtomicU32,
}

impl Hints {
    /// Bytes of a hint.
    pub const EACH: u64 = size_of::<AtomicU64>() as u64;
    const CHUNK_BYTES: u64 = (size_of::<Chunk>() + size_of::<[AtomicU64; CHUNK]>()) as u64;

    /// Room for as many hints as fit into `bytes`.
    pub fn with_room(bytes: u64) -> Self {
        let chunks = (bytes / Self::CHUNK_BYTES).min(CHUNKS);
        Self { chunks: (0..chunks).map(|_| OnceLock::new()).collect(), turn: AtomicU32::new(0) }
    }

    /// Memory in bytes, once all are there.
    pub fn bytes(&self) -> u64 {
        self.chunks.len() as u64 * Self::CHUNK_BYTES
    }

    /// The two sets that may have a seal's hints, as for seals: the chunk of each, and its first
    /// hint there.
    fn sets(&self, seal: Seal) -> impl Iterator<Item = (&Chunk, usize)> {
        let sets = (self.chunks.len() * CHUNK / WAYS) as u64;
        let bits = seal.bits() as u32;
        [bits, bits.wrapping_mul(OTHER)].into_iter().filter_map(move |bits| {
            let set = ((u64::from(bits) * sets) >> 32) as usize;
            self.chunks.get(set * WAYS / CHUNK).map(|chunk| (chunk, set * WAYS % CHUNK))
        })
    }

    /// The hints that a seal can have, if there is memory for them yet.
    fn ways(&self, seal: Seal) -> impl Iterator<Item = &AtomicU64> {
        self.sets(seal)
            .filter_map(|(chunk, first)| chunk.get().map(|all| &all[first..][..WAYS]))
            .flatten()
    }

    /// Bits of the seal, by which its hints are told from others; never 0.
    fn name(seal: Seal) -> u64 {
        (seal.bits() >> 32 | 1) & ((1 << (u64::BITS - BLOCK_BITS)) - 1)
    }

    /// Notes that `block` has that seal.
    pub fn note(&self, seal: Seal, block: u64) {
        let hint = Self::name(seal) << BLOCK_BITS | block & ((1 << BLOCK_BITS) - 1);
        if self.ways(seal).any(|way| way.load(Ordering::Relaxed) == hint) {
            return;
        }
        let free = |ways: &[AtomicU64]| {
            let is_free = |way: &&AtomicU64| way.load(Ordering::Relaxed) == 0;
            ways.iter().filter(is_free).count()
        };
        let new = || Box::new(std::array::from_fn(|_| AtomicU64::new(0)));
        let sets = self.sets(seal).map(|(chunk, first)| &chunk.get_or_init(new)[first..][..WAYS]);
        let Some(ways) = sets.max_by_key(|ways| free(ways)) else { return };
        let next = || &ways[self.turn.fetch_add(1, Ordering::Relaxed) as usize % WAYS];
        let way = ways.iter().find(|way| way.load(Ordering::Relaxed) == 0);
        way.unwrap_or_else(next).store(hint, Ordering::Relaxed);
    }

    /// A block does not have that seal any more: drops one of its hints.
    pub fn forget(&self, seal: Seal) {
        let is_its =
            |way: &&AtomicU64| way.load(Ordering::Relaxed) >> BLOCK_BITS == Self::name(seal);
        if let Some(way) = self.ways(seal).find(is_its) {
            way.store(0, Ordering::Relaxed);
        }
    }

    /// Blocks that may have that seal.
    pub fn blocks(&self, seal: Seal) -> impl Iterator<Item = u64> {
        let name = Self::name(seal);
        let hints = self.ways(seal).map(|way| way.load(Ordering::Relaxed));
        hints
            .filter(move |hint| hint >> BLOCK_BITS == name)
            .map(|hint| hint & ((1 << BLOCK_BITS) - 1))
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_found_until_they_are_forgotten() {
        let hints = Hints::with_room(1 << 20);
        assert!(hints.bytes() <= 1 << 20);
        // Nine tenths of the room.
        let count = (1 << 17) / 10 * 9;
        let seal = |n: u64| Seal::new(u128::from(n.wrapping_mul(0x9e37_79b9_7f4a_7c15)) << 64);
        (0..count).for_each(|n| hints.note(seal(n), n * 3));
        let is_found = |n: &u64| hints.blocks(seal(*n)).any(|block| block == n * 3);
        let found = (0..count).filter(is_found).count() as u64;
        assert!(found > count / 1000 * 995, "{found} of {count}");
        (0..count / 2).for_each(|n| hints.forget(seal(n)));
        assert_eq!((0..count / 2).filter(is_found).count(), 0);
        // Now there is room for others.
        (count..count / 2 * 3).for_each(|n| hints.note(seal(n), n * 3));
        let found = (count / 2..count / 2 * 3).filter(is_found).count() as u64;
        assert!(found > count / 1000 * 990, "{found} of {count}");
    }
}

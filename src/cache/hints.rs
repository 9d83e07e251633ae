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

    /// The chunk of a seal's hints, and the first of them there.
    fn chunk(&self, seal: Seal) -> Option<(&Chunk, usize)> {
        let sets = (self.chunks.len() * CHUNK / WAYS) as u64;
        let set = (((seal.bits() & u64::from(u32::MAX)) * sets) >> 32) as usize;
        self.chunks.get(set * WAYS / CHUNK).map(|chunk| (chunk, set * WAYS % CHUNK))
    }

    /// The hints that a seal can have, if there is memory for them yet.
    fn ways(&self, seal: Seal) -> &[AtomicU64] {
        let ways = self.chunk(seal).and_then(|(chunk, first)| {
            chunk.get().and_then(|chunk| chunk.get(first..first + WAYS))
        });
        ways.unwrap_or_default()
    }

    /// Bits of the seal, by which its hints are told from others; never 0.
    fn name(seal: Seal) -> u64 {
        (seal.bits() >> 32 | 1) & ((1 << (u64::BITS - BLOCK_BITS)) - 1)
    }

    /// Notes that `block` has that seal.
    pub fn note(&self, seal: Seal, block: u64) {
        let hint = Self::name(seal) << BLOCK_BITS | block & ((1 << BLOCK_BITS) - 1);
        let Some((chunk, first)) = self.chunk(seal) else { return };
        let chunk = chunk.get_or_init(|| Box::new(std::array::from_fn(|_| AtomicU64::new(0))));
        let (ways, mut free) = (&chunk[first..first + WAYS], None);
        for (n, way) in ways.iter().enumerate() {
            match way.load(Ordering::Relaxed) {
                there if there == hint => return,
                0 if free.is_none() => free = Some(n),
                _ => {}
            }
        }
        let next = || self.turn.fetch_add(1, Ordering::Relaxed) as usize % WAYS;
        ways[free.unwrap_or_else(next)].store(hint, Ordering::Relaxed);
    }

    /// A block does not have that seal any more: drops one of its hints.
    pub fn forget(&self, seal: Seal) {
        let is_its =
            |way: &&AtomicU64| way.load(Ordering::Relaxed) >> BLOCK_BITS == Self::name(seal);
        if let Some(way) = self.ways(seal).iter().find(is_its) {
            way.store(0, Ordering::Relaxed);
        }
    }

    /// Blocks that may have that seal.
    pub fn blocks(&self, seal: Seal) -> impl Iterator<Item = u64> {
        let name = Self::name(seal);
        let hints = self.ways(seal).iter().map(|way| way.load(Ordering::Relaxed));
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
        assert!(found > count / 100 * 95, "{found} of {count}");
        (0..count / 2).for_each(|n| hints.forget(seal(n)));
        assert_eq!((0..count / 2).filter(is_found).count(), 0);
        // Now there is room for others.
        (count..count / 2 * 3).for_each(|n| hints.note(seal(n), n * 3));
        let found = (count / 2..count / 2 * 3).filter(is_found).count() as u64;
        assert!(found > count / 100 * 90, "{found} of {count}");
    }
}

//! Seals: for blocks whose content was served or written, a hash of it, by the block's key.
//!
//! A page that the page cache drops is known by its content alone: it becomes a copy of the block
//! that has its hash. Nothing else about it is believed, so a page that is late, or of a file that
//! was truncated and whose block is used again, matches nothing.
//!
//! Invariants: a seal is of what the block holds now: it is set only for blocks of a flight that
//! are alive, and removed when a write of the block begins; there are never more seals than there
//! was room for at the beginning, and a new one takes the place of the oldest of a few. Memory is
//! taken when a seal first needs it.

use super::hints::Hints;
use super::numbers;
use super::seal::{self, Seal};
use super::table::spread;
use std::sync::Arc;

/// Seals of which a new one takes the place of the oldest.
const WAYS: usize = 16;
/// Seals of a chunk: 5 KiB.
const CHUNK: usize = if cfg!(shuttle) { WAYS } else { 256 };
/// In a place without a seal. Keys are smaller.
const NONE: u32 = u32::MAX;
/// Bits of the word of a seal; the other bits are of the hash.
const ABOVE: u128 = 1;
const GIVEN: u128 = (numbers::MOST as u128) << GIVEN_SHIFT;
const GIVEN_SHIFT: u32 = 1;
const BITS: u128 = seal::FREE;
const _: () = assert!(ABOVE | GIVEN == BITS);

/// Seals side by side, or none yet.
#[derive(Debug, Default)]
struct Chunk {
    keys: Vec<u32>,
    /// The hash, [`ABOVE`] and [`GIVEN`].
    words: Vec<u128>,
}

impl Chunk {
    /// Makes room for its seals; `false`: the machine has no memory for them.
    fn fill(&mut self) -> bool {
        if !self.keys.is_empty() {
            return true;
        }
        let reserved = self.keys.try_reserve_exact(CHUNK).is_ok()
            && self.words.try_reserve_exact(CHUNK).is_ok();
        if reserved {
            self.keys.resize(CHUNK, NONE);
            self.words.resize(CHUNK, 0);
        }
        reserved
    }
}

/// What is known of a block that gets a seal.
#[derive(Clone, Copy, Debug)]
pub struct Known {
    /// The page cache has the block.
    pub above: bool,
    /// How often in a row it got the block from a copy, which went then.
    pub given: u8,
}

/// See the module.
#[derive(Debug, Default)]
pub struct Seals {
    chunks: Vec<Chunk>,
    hints: Option<Arc<Hints>>,
}

/// Where the seals of a set are: their chunk, and the first of them.
#[derive(Clone, Copy)]
struct Set {
    chunk: usize,
    first: usize,
}

impl Seals {
    /// Bytes of a seal.
    pub const EACH: u64 = (size_of::<u32>() + size_of::<u128>()) as u64;

    /// Room for as many seals as fit into `bytes`; none when the machine has no memory for them.
    /// Seals that go take their `hints` along.
    pub fn with_room(bytes: u64, hints: &Arc<Hints>) -> Self {
        let each = size_of::<Chunk>() as u64 + CHUNK as u64 * Self::EACH;
        let (count, mut chunks) = ((bytes / each) as usize, Vec::new());
        if chunks.try_reserve_exact(count).is_ok() {
            chunks.resize_with(count, Chunk::default);
        }
        Self { chunks, hints: Some(Arc::clone(hints)) }
    }

    /// Memory in bytes, once all are set.
    pub fn bytes(&self) -> u64 {
        let each = size_of::<Chunk>() as u64 + CHUNK as u64 * Self::EACH;
        self.chunks.len() as u64 * each
    }

    /// The two sets of a key; they may be the same.
    fn sets_of(&self, key: u32) -> [Set; 2] {
        let sets = self.chunks.len() * CHUNK / WAYS;
        [key, !key].map(|key| {
            let set = ((u64::from(spread(key)) * sets as u64) >> 32) as usize;
            Set { chunk: set * WAYS / CHUNK, first: set * WAYS % CHUNK }
        })
    }

    /// The keys of a set; none if it has no memory yet.
    fn keys(&self, set: Set) -> &[u32] {
        let keys = self.chunks.get(set.chunk).map(|chunk| &chunk.keys[..]);
        keys.and_then(|keys| keys.get(set.first..set.first + WAYS)).unwrap_or_default()
    }

    /// The set with the seal of a key, and its place there.
    fn find(&self, key: u32) -> Option<(Set, usize)> {
        self.sets_of(key).into_iter().find_map(|set| {
            let at = self.keys(set).iter().position(|there| *there == key)?;
            Some((set, set.first + at))
        })
    }

    fn word(&self, key: u32) -> Option<u128> {
        self.find(key).map(|(set, at)| self.chunks[set.chunk].words[at])
    }

    fn word_mut(&mut self, key: u32) -> Option<&mut u128> {
        self.find(key).map(|(set, at)| &mut self.chunks[set.chunk].words[at])
    }

    /// The place for a seal of a block without one: the last that is in use of the set with fewer,
    /// or the first free one there. `None`: there is no memory.
    fn place(&mut self, key: u32) -> Option<(Set, usize)> {
        let free = |set: Set| match self.keys(set) {
            [] => WAYS,
            keys => keys.iter().filter(|there| **there == NONE).count(),
        };
        let [one, other] = self.sets_of(key);
        let set = if free(other) > free(one) { other } else { one };
        let chunk = self.chunks.get_mut(set.chunk)?;
        if !chunk.fill() {
            return None;
        }
        let free = chunk.keys[set.first..set.first + WAYS].iter().position(|there| *there == NONE);
        Some((set, set.first + free.unwrap_or(WAYS - 1)))
    }

    /// Seals a block.
    pub fn set(&mut self, key: u32, seal: Seal, known: Known) {
        let given = u128::from(known.given.min(numbers::MOST)) << GIVEN_SHIFT;
        // The block's own place, or a free one, or that of the oldest.
        let Some((Set { chunk, first }, last)) = self.find(key).or_else(|| self.place(key)) else {
            return;
        };
        let chunk = &mut self.chunks[chunk];
        let gone = (chunk.keys[last] != NONE).then(|| Seal::new(chunk.words[last]));
        // The newest comes first.
        chunk.keys.copy_within(first..last, first + 1);
        chunk.words.copy_within(first..last, first + 1);
        chunk.keys[first] = key;
        chunk.words[first] = seal.hash() | given | if known.above { ABOVE } else { 0 };
        if let (Some(hints), Some(gone)) = (&self.hints, gone.filter(|gone| *gone != seal)) {
            hints.forget(gone);
        }
    }

    /// Whether the block has that seal.
    pub fn has(&self, key: u32, seal: Seal) -> bool {
        self.word(key).is_some_and(|word| word & !BITS == seal.hash())
    }

    /// Whether the page cache has the block, as far as is known.
    pub fn is_above(&self, key: u32) -> bool {
        self.word(key).is_some_and(|word| word & ABOVE != 0)
    }

    /// The page cache has dropped the block.
    pub fn dropped(&mut self, key: u32) {
        if let Some(word) = self.word_mut(key) {
            *word &= !ABOVE;
        }
    }

    /// How often in a row copies of the block were given away.
    pub fn given(&self, key: u32) -> u8 {
        self.word(key).map_or(0, |word| ((word & GIVEN) >> GIVEN_SHIFT) as u8)
    }

    /// The block's copy was evicted: its seal goes, unless the page cache has the block.
    pub fn evicted(&mut self, key: u32) {
        if !self.is_above(key) {
            self.remove(key);
        }
    }

    /// Removes the seal of a block.
    pub fn remove(&mut self, key: u32) {
        let Some((set, at)) = self.find(key) else { return };
        let chunk = &mut self.chunks[set.chunk];
        chunk.keys[at] = NONE;
        let gone = Seal::new(chunk.words[at]);
        self.hints.iter().for_each(|hints| hints.forget(gone));
    }

    /// Removes the seals of the keys that are `inside`.
    pub fn remove_all(&mut self, inside: impl Fn(u32) -> bool) {
        let keys = self.chunks.iter_mut().flat_map(|chunk| &mut chunk.keys);
        keys.filter(|key| **key != NONE && inside(**key)).for_each(|key| *key = NONE);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ABOVE: Known = Known { above: true, given: 0 };
    const BELOW: Known = Known { above: false, given: 0 };

    #[test]
    fn a_seal_is_of_the_newest_content() {
        let hints = Arc::new(Hints::with_room(64 << 10));
        let mut seals = Seals::with_room(6 << 10, &hints);
        let seal = |n: u128| Seal::new(n << 8);
        seals.set(7, seal(1), ABOVE);
        assert!(seals.has(7, seal(1)) && seals.is_above(7) && !seals.has(8, seal(1)));
        seals.set(7, seal(2), ABOVE);
        assert!(seals.has(7, seal(2)) && !seals.has(7, seal(1)));
        seals.dropped(7);
        assert!(!seals.is_above(7) && seals.given(7) == 0);
        for (given, kept) in [(1, 1), (3, 3), (200, 3)] {
            seals.set(7, seal(2), Known { above: true, given });
            assert!(seals.has(7, seal(2)) && seals.is_above(7) && seals.given(7) == kept);
        }
        seals.set(7, seal(3), BELOW);
        assert!(seals.given(7) == 0 && !seals.is_above(7));
        seals.set(7, seal(3), Known { above: true, given: 2 });
        seals.remove(7);
        assert!(!seals.has(7, seal(3)) && seals.given(7) == 0);
    }

    #[test]
    fn nearly_all_places_are_in_use_before_one_has_to_go() {
        let hints = Arc::new(Hints::with_room(1 << 20));
        let mut seals = Seals::with_room(1 << 20, &hints);
        let count = (seals.bytes() / Seals::EACH) as u32 / 100 * 95;
        let seal = |key: u32| Seal::new(u128::from(key) << 8);
        (0..count).for_each(|key| seals.set(key, seal(key), ABOVE));
        let lost = (0..count).filter(|key| !seals.has(*key, seal(*key))).count() as u32;
        assert!(lost * 200 < count, "{lost} of {count}");
    }

    #[test]
    fn the_oldest_give_way_and_none_is_there_twice() {
        let hints = Arc::new(Hints::with_room(64 << 10));
        let mut seals = Seals::with_room(6 << 10, &hints);
        assert!((5 << 10..6 << 10).contains(&seals.bytes()));
        for key in 0..10_000 {
            seals.set(key, Seal::new(u128::from(key) << 8), BELOW);
        }
        let there = |key: &u32| seals.has(*key, Seal::new(u128::from(*key) << 8));
        assert!((0..10_000).filter(there).count() == 256);
        assert!((9_990..10_000).all(|key| there(&key)) && !(0..5_000).any(|key| there(&key)));
        seals.remove_all(|key| key >= 9_995);
        assert!(
            !seals.has(9_999, Seal::new(9_999 << 8)) && seals.has(9_990, Seal::new(9_990 << 8))
        );
        let mut none = Seals::default();
        none.remove(1);
        none.set(1, Seal::new(256), ABOVE);
        assert!(!none.has(1, Seal::new(256)) && none.bytes() == 0);
    }
}

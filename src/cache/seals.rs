//! Seals: for blocks whose content was served or written, a hash of it, by the block's key.
//!
//! A page that the page cache drops is known by its content alone: it becomes a copy of the block
//! that has its hash. Nothing else about it is believed, so a page that is late, or of a file that
//! was truncated and whose block is used again, matches nothing.
//!
//! Invariants: a seal is of what the block holds now: it is set only for blocks of a flight that
//! are alive, and removed when a write of the block begins; there are never more seals than there
//! was room for at the beginning, and a new one takes the place of the oldest of a few.

use super::table::spread;

/// Seals of which a new one takes the place of the oldest.
const WAYS: usize = 8;
/// In a place without a seal. Keys are smaller.
const NONE: u32 = u32::MAX;
/// Bits of the word of a seal; the other bits are of the hash.
const ABOVE: u128 = 1;
const GIVEN: u128 = 2;
const BITS: u128 = ABOVE | GIVEN;

/// The hash of a block's content. Without the key, which is random, content with a given hash
/// can't be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal(u128);

impl Seal {
    /// Of a hash.
    pub fn new(hash: u128) -> Self {
        Self(hash & !BITS)
    }

    /// Bits that no place in the table depends on.
    pub fn bits(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

/// See the module.
#[derive(Debug, Default)]
pub struct Seals {
    keys: Vec<u32>,
    /// The hash, [`ABOVE`] and [`GIVEN`].
    words: Vec<u128>,
}

impl Seals {
    /// Bytes of a seal.
    pub const EACH: u64 = (size_of::<u32>() + size_of::<u128>()) as u64;

    /// Room for as many seals as fit into `bytes`; none when the machine has no memory for them.
    pub fn with_room(bytes: u64) -> Self {
        let count = (bytes / Self::EACH) as usize / WAYS * WAYS;
        let (mut keys, mut words) = (Vec::new(), Vec::new());
        if keys.try_reserve_exact(count).is_err() || words.try_reserve_exact(count).is_err() {
            return Self::default();
        }
        keys.resize(count, NONE);
        words.resize(count, 0);
        Self { keys, words }
    }

    /// Memory in bytes.
    pub fn bytes(&self) -> u64 {
        self.keys.len() as u64 * Self::EACH
    }

    fn ways(&self, key: u32) -> std::ops::Range<usize> {
        let sets = self.keys.len() / WAYS;
        let set = ((u64::from(spread(key)) * sets as u64) >> 32) as usize;
        set * WAYS..(set + 1) * WAYS
    }

    fn find(&self, key: u32) -> Option<usize> {
        self.ways(key).find(|at| self.keys.get(*at) == Some(&key))
    }

    /// Seals a block that the page cache now has (`above`) or lacks.
    pub fn set(&mut self, key: u32, seal: Seal, above: bool) {
        let (ways, old) = (self.ways(key), self.find(key));
        if self.keys.is_empty() {
            return;
        }
        let given = old.map_or(0, |at| self.words[at] & GIVEN);
        // The newest comes first; the oldest, or the block's own, goes.
        let last = old.unwrap_or(ways.end - 1);
        self.keys.copy_within(ways.start..last, ways.start + 1);
        self.words.copy_within(ways.start..last, ways.start + 1);
        self.keys[ways.start] = key;
        self.words[ways.start] = seal.0 | given | if above { ABOVE } else { 0 };
    }

    /// Whether the block has that seal.
    pub fn has(&self, key: u32, seal: Seal) -> bool {
        self.find(key).is_some_and(|at| self.words[at] & !BITS == seal.0)
    }

    /// Whether the page cache has the block, as far as is known.
    pub fn is_above(&self, key: u32) -> bool {
        self.find(key).is_some_and(|at| self.words[at] & ABOVE != 0)
    }

    /// The page cache has dropped the block.
    pub fn dropped(&mut self, key: u32) {
        if let Some(at) = self.find(key) {
            self.words[at] &= !ABOVE;
        }
    }

    /// The page cache gets the block, whose copy may go; `false`: the block has no seal.
    pub fn give(&mut self, key: u32) -> bool {
        let found = self.find(key);
        found.map(|at| self.words[at] |= ABOVE | GIVEN).is_some()
    }

    /// Whether the block's copy was once given away.
    pub fn was_given(&self, key: u32) -> bool {
        self.find(key).is_some_and(|at| self.words[at] & GIVEN != 0)
    }

    /// Removes the seal of a block.
    pub fn remove(&mut self, key: u32) {
        if let Some(at) = self.find(key) {
            self.keys[at] = NONE;
        }
    }

    /// Removes the seals of the keys that are `inside`.
    pub fn remove_all(&mut self, inside: impl Fn(u32) -> bool) {
        for key in self.keys.iter_mut().filter(|key| **key != NONE && inside(**key)) {
            *key = NONE;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seal_is_of_the_newest_content() {
        let mut seals = Seals::with_room(Seals::EACH * 64);
        let seal = |n: u128| Seal::new(n << 8);
        seals.set(7, seal(1), true);
        assert!(seals.has(7, seal(1)) && seals.is_above(7) && !seals.has(8, seal(1)));
        seals.set(7, seal(2), true);
        assert!(seals.has(7, seal(2)) && !seals.has(7, seal(1)));
        seals.dropped(7);
        assert!(!seals.is_above(7) && !seals.was_given(7));
        assert!(seals.give(7) && seals.is_above(7) && seals.was_given(7));
        seals.set(7, seal(3), false);
        assert!(seals.was_given(7) && !seals.is_above(7));
        seals.remove(7);
        assert!(!seals.has(7, seal(3)) && !seals.give(7) && !seals.was_given(7));
    }

    #[test]
    fn the_oldest_give_way_and_none_is_there_twice() {
        let mut seals = Seals::with_room(Seals::EACH * 256);
        assert_eq!(seals.bytes(), 256 * Seals::EACH);
        for key in 0..10_000 {
            seals.set(key, Seal::new(u128::from(key) << 8), false);
        }
        let there = |key: &u32| seals.has(*key, Seal::new(u128::from(*key) << 8));
        assert!((0..10_000).filter(there).count() == 256);
        assert!((9_990..10_000).all(|key| there(&key)) && !(0..5_000).any(|key| there(&key)));
        seals.remove_all(|key| key >= 9_995);
        assert!(
            !seals.has(9_999, Seal::new(9_999 << 8)) && seals.has(9_990, Seal::new(9_990 << 8))
        );
        let mut none = Seals::default();
        none.set(1, Seal::new(256), true);
        assert!(!none.has(1, Seal::new(256)) && none.bytes() == 0);
    }
}

//! Ghosts: blocks whose copy was evicted not long ago, 2 bytes each.
//!
//! Buckets of eight, the newest first; a ninth pushes the oldest out. So a block is remembered
//! until about as many others are evicted as there are ghosts, without a list to keep. A ghost is
//! 16 bits of a hash, of which other bits choose the bucket: one block in 8000 is taken for another
//! that is remembered, which costs nothing but a better place than it has earned.

use super::table::spread;
use std::ops::Range;

/// Blocks in a bucket.
const BUCKET: usize = 8;
/// An empty slot.
const NONE: u16 = 0;

/// The ghosts of a shard.
#[derive(Debug, Default)]
pub struct Ghosts {
    slots: Vec<u16>,
}

impl Ghosts {
    /// Memory in bytes.
    pub fn bytes(&self) -> u64 {
        (self.slots.capacity() * size_of::<u16>()) as u64
    }

    /// Makes room for `blocks` blocks, and forgets all. If the machine has no memory for that,
    /// nothing is remembered.
    pub fn resize(&mut self, blocks: usize) {
        let slots = blocks.next_multiple_of(BUCKET);
        self.slots = Vec::new();
        if self.slots.try_reserve_exact(slots).is_ok() {
            self.slots.resize(slots, NONE);
        }
    }

    /// Where the slots of a bucket are, if there are any.
    fn place(&self, hash: u32) -> Range<usize> {
        let buckets = self.slots.len() / BUCKET;
        let at = ((u64::from(hash) * buckets as u64) >> 32) as usize * BUCKET;
        at..at + BUCKET
    }

    fn bucket(&mut self, hash: u32) -> Option<&mut [u16]> {
        let place = self.place(hash);
        self.slots.get_mut(place)
    }

    /// Remembers a block.
    pub fn insert(&mut self, key: u32) {
        let hash = spread(key);
        if let Some(bucket) = self.bucket(hash) {
            bucket.rotate_right(1);
            bucket[0] = (hash as u16).max(1);
        }
    }

    /// Whether a block is remembered.
    pub fn has(&self, key: u32) -> bool {
        let hash = spread(key);
        let mark = (hash as u16).max(1);
        self.slots.get(self.place(hash)).is_some_and(|bucket| bucket.contains(&mark))
    }

    /// Whether a block is remembered; forgets it.
    pub fn take(&mut self, key: u32) -> bool {
        let hash = spread(key);
        let Some(bucket) = self.bucket(hash) else { return false };
        let mark = (hash as u16).max(1);
        let Some(at) = bucket.iter().position(|other| *other == mark) else { return false };
        bucket[at..].rotate_left(1);
        bucket[BUCKET - 1] = NONE;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_ones_are_remembered_once() {
        let mut ghosts = Ghosts::default();
        ghosts.insert(1);
        assert!(!ghosts.take(1), "there is no room");
        ghosts.resize(10_000);
        assert_eq!(ghosts.bytes(), 20_000);
        (0..30_000).for_each(|key| ghosts.insert(key));
        let known = |ghosts: &mut Ghosts, keys: std::ops::Range<u32>| {
            keys.filter(|key| ghosts.take(*key)).count()
        };
        assert!(known(&mut ghosts, 1_000_000..1_100_000) < 50, "others");
        assert!(known(&mut ghosts, 0..10_000) < 500);
        let has = (25_000..30_000).filter(|key| ghosts.has(*key)).count();
        assert!(has > 4500 && (25_000..30_000).filter(|key| ghosts.has(*key)).count() == has);
        assert!(known(&mut ghosts, 25_000..30_000) > 4500);
        assert!(known(&mut ghosts, 25_000..30_000) < 10);
        ghosts.resize(0);
        assert_eq!(ghosts.bytes(), 0);
        assert!(!ghosts.has(29_999) && !ghosts.take(29_999));
    }
}

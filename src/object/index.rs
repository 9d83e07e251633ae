//! Where in the chain each block is.
//!
//! Invariant: the index is that of the windows that were applied, in their order.

use super::format::{Entry, OFFSET_BITS, SLOTS_MAX, payloads};
use crate::codec::Coding;
use crate::intervals::{BYTES_PER_RANGE, Intervals};
use std::collections::BTreeMap;
use std::ops::Range;

/// Blocks of a leaf.
pub const LEAF: u64 = 64;
/// Bytes that a leaf takes.
const LEAF_BYTES: u64 = LEAF * size_of::<Option<Place>>() as u64;

/// Where a block's payload is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// Slot and offset; see [`place`].
    pub at: u64,
    /// The payload's check word.
    pub check: u32,
    /// Bytes.
    pub len: u16,
    /// How it is coded.
    pub coding: Coding,
}

const _: () = assert!(size_of::<Option<Place>>() == 16);

/// A slot and an offset in its object, as one number.
pub fn place(slot: u64, offset: u32) -> u64 {
    debug_assert!(slot < SLOTS_MAX && offset < 1 << OFFSET_BITS);
    slot << OFFSET_BITS | u64::from(offset)
}

impl Place {
    /// The slot of the object.
    pub fn slot(&self) -> u64 {
        self.at >> OFFSET_BITS
    }

    /// The first byte in the object.
    pub fn offset(&self) -> u32 {
        self.at as u32 & ((1 << OFFSET_BITS) - 1)
    }
}

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Index {
    leaves: BTreeMap<u64, Box<[Option<Place>; LEAF as usize]>>,
    blocks: u64,
    live_bytes: u64,
    stored_bytes: u64,
    /// Blocks whose content is lost.
    lost: Intervals,
}

impl Index {
    /// Where `block` is; `None`: it reads as zeros, unless it is lost.
    pub fn get(&self, block: u64) -> Option<Place> {
        self.leaves.get(&(block / LEAF))?[(block % LEAF) as usize]
    }

    /// Applies a window: its parts, each with its slot.
    pub fn apply(&mut self, parts: &[(u64, Vec<Entry>)]) {
        for (slot, entries) in parts {
            for (entry, bytes) in payloads(entries) {
                match *entry {
                    Entry::Zeros { first, count } => self.zero(first..first + u64::from(count)),
                    Entry::Lost { first, count } => {
                        let blocks = first..first + u64::from(count);
                        self.zero(blocks.clone());
                        self.lost.insert(blocks);
                    }
                    Entry::Mark { .. } => {}
                    Entry::Block { block, coding, len, check } => {
                        let at = place(*slot, bytes.start);
                        self.stored_bytes += u64::from(len);
                        self.set(block, Place { at, check, len, coding });
                    }
                }
            }
        }
    }

    fn set(&mut self, block: u64, place: Place) {
        let leaf =
            self.leaves.entry(block / LEAF).or_insert_with(|| Box::new([None; LEAF as usize]));
        self.live_bytes += u64::from(place.len);
        self.lost.remove(block..block + 1);
        match leaf[(block % LEAF) as usize].replace(place) {
            Some(before) => self.live_bytes -= u64::from(before.len),
            None => self.blocks += 1,
        }
    }

    fn zero(&mut self, blocks: Range<u64>) {
        self.lost.remove(blocks.clone());
        let (first, last) = (blocks.start / LEAF, blocks.end.div_ceil(LEAF));
        let leaves: Vec<u64> = self.leaves.range(first..last).map(|(number, _)| *number).collect();
        for number in leaves {
            let Some(leaf) = self.leaves.get_mut(&number) else { continue };
            let start = blocks.start.max(number * LEAF) - number * LEAF;
            let end = blocks.end.min((number + 1) * LEAF) - number * LEAF;
            for place in &mut leaf[start as usize..end as usize] {
                if let Some(before) = place.take() {
                    self.live_bytes -= u64::from(before.len);
                    self.blocks -= 1;
                }
            }
            if leaf.iter().all(Option::is_none) {
                self.leaves.remove(&number);
            }
        }
    }

    /// The first leaf from the number `from` on: its number, and its blocks.
    pub fn leaf(&self, from: u64) -> Option<(u64, &[Option<Place>; LEAF as usize])> {
        self.leaves.range(from..).next().map(|(number, leaf)| (*number, &**leaf))
    }

    /// Puts a leaf, which a checkpoint has. Returns whether there was none of that number.
    pub fn restore(&mut self, number: u64, places: [Option<Place>; LEAF as usize]) -> bool {
        let there = places.iter().flatten();
        self.live_bytes += there.clone().map(|place| u64::from(place.len)).sum::<u64>();
        self.blocks += there.count() as u64;
        self.leaves.insert(number, Box::new(places)).is_none()
    }

    /// The lost blocks, as ranges.
    pub fn lost(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.lost.iter()
    }

    /// Notes lost blocks, which a checkpoint has.
    pub fn restore_lost(&mut self, blocks: Range<u64>) {
        self.lost.insert(blocks);
    }

    /// Notes the bytes of payloads in all windows before a checkpoint.
    pub fn restore_stored(&mut self, bytes: u64) {
        self.stored_bytes = bytes;
    }

    /// Whether the content of `block` is lost.
    pub fn is_lost(&self, block: u64) -> bool {
        self.lost.contains(block)
    }

    /// Blocks whose content is lost.
    pub fn lost_blocks(&self) -> u64 {
        self.lost.total()
    }

    /// Blocks that are not zeros.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// Bytes of payloads that blocks have.
    pub fn live_bytes(&self) -> u64 {
        self.live_bytes
    }

    /// Bytes of payloads in all windows.
    pub fn stored_bytes(&self) -> u64 {
        self.stored_bytes
    }

    /// Memory of the index, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        self.leaves.len() as u64 * LEAF_BYTES + (self.lost.ranges() * BYTES_PER_RANGE) as u64
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn block(block: u64, len: u16) -> Entry {
        Entry::Block { block, coding: Coding::Lz4, len, check: block as u32 }
    }

    #[test]
    fn a_later_window_replaces_and_frees() {
        let mut index = Index::default();
        index.apply(&[(16, vec![block(5, 100), block(600, 50), block(1 << 32, 7)])]);
        let place = index.get(600).unwrap();
        assert_eq!((place.slot(), place.offset(), place.len), (16, 80 + 3 * 16 + 100, 50));
        assert_eq!((index.blocks(), index.live_bytes(), index.stored_bytes()), (3, 157, 157));
        let zeros = Entry::Zeros { first: 6, count: u32::MAX };
        index.apply(&[(17, vec![zeros, block(700, 9)]), (18, vec![block(5, 200)])]);
        assert_eq!((index.get(600), index.get(1 << 32).map(|p| p.slot())), (None, None));
        assert_eq!(index.get(5).map(|p| (p.slot(), p.len)), Some((18, 200)));
        assert_eq!((index.blocks(), index.live_bytes(), index.stored_bytes()), (2, 209, 366));
        assert_eq!(index.memory_bytes(), 2 * LEAF_BYTES);
        index.apply(&[(19, vec![Entry::Zeros { first: 0, count: 1024 }])]);
        assert_eq!((index.blocks(), index.live_bytes(), index.memory_bytes()), (0, 0, 0));
    }

    #[test]
    fn a_lost_block_is_lost_until_it_is_written_or_zeroed() {
        let mut index = Index::default();
        let lost = Entry::Lost { first: 5, count: 10 };
        index.apply(&[(16, vec![block(5, 100), block(4, 100), lost])]);
        assert_eq!((index.blocks(), index.live_bytes(), index.lost_blocks()), (1, 100, 10));
        assert!(index.get(5).is_none() && index.is_lost(5) && !index.is_lost(4));
        index.apply(&[(17, vec![Entry::Zeros { first: 0, count: 6 }, block(6, 9)])]);
        assert_eq!([5, 6, 7].map(|block| index.is_lost(block)), [false, false, true]);
    }
}

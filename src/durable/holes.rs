//! Ranges of blocks that a record without payload covers: discarded, or lost.
//!
//! Invariant: ranges do not overlap. A block that the map names is not looked up here: whoever adds
//! a range removes the blocks from the map, and a block that is written afterwards shadows the
//! range.

use super::format::{Kind, SEGMENT_MAX};
use crate::media::ALIGN;
use std::collections::BTreeMap;
use std::ops::Range;

/// Where a record's chunk begins if nobody knows: anywhere in its segment.
pub const ANYWHERE: u32 = u32::MAX;
// How items of sheets have it: bits 44 to 63 of the first word.
const _: () = assert!(SEGMENT_MAX as usize / ALIGN < (1 << 20) - 1);

/// What covers a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The segment of the record.
    pub segment: u64,
    /// Where in it the record's chunk begins, in bytes, or [`ANYWHERE`].
    pub offset: u32,
    /// [`Kind::Zeros`] or [`Kind::Lost`].
    pub kind: Kind,
}

impl Hole {
    /// With the blocks that it covers, from `start` to before `end`, as an item of a sheet.
    pub fn item(&self, start: u64, end: u64) -> [u64; 3] {
        let place = match self.offset {
            ANYWHERE => 0,
            offset => u64::from(offset) / ALIGN as u64 + 1,
        };
        [start | (self.kind as u64) << 40 | place << 44, end - start, self.segment]
    }

    /// The first block, the end and what covers them, of such an item; `None` if it makes no sense.
    pub fn from_item([first, count, segment]: [u64; 3]) -> Option<(u64, u64, Self)> {
        let start = first & ((1 << 40) - 1);
        let kind = Kind::from_bits(first >> 40 & 15)?;
        let offset = match first >> 44 {
            0 => ANYWHERE,
            place => (place as u32 - 1) * ALIGN as u32,
        };
        Some((start, start.checked_add(count)?, Self { segment, offset, kind }))
    }
}

/// A discard whose record cannot be read. It still has its turn among the other records: older ones
/// come before it, newer ones after.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tombstone {
    /// The segment of the record.
    pub segment: u64,
    /// As in [`Hole`].
    pub offset: u32,
    /// The first block.
    pub start: u64,
    /// The end.
    pub end: u64,
}

/// The ranges, by their first block.
#[derive(Default)]
pub struct Holes {
    ranges: BTreeMap<u64, (u64, Hole)>,
}

impl Holes {
    /// What covers a block.
    pub fn get(&self, block: u64) -> Option<Hole> {
        let (_, &(end, hole)) = self.ranges.range(..=block).next_back()?;
        (block < end).then_some(hole)
    }

    /// Covers the blocks from `start` to before `end`, in place of what covered them.
    pub fn insert(&mut self, start: u64, end: u64, hole: Hole) {
        self.remove(start, end);
        self.ranges.insert(start, (end, hole));
    }

    /// Uncovers the blocks from `start` to before `end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        let cut: Vec<_> = self
            .ranges
            .range(..end)
            .rev()
            .take_while(|(_, range)| range.0 > start)
            .map(|(&from, &range)| (from, range))
            .collect();
        for (from, (to, hole)) in cut {
            self.ranges.remove(&from);
            if from < start {
                self.ranges.insert(from, (start, hole));
            }
            if to > end {
                self.ranges.insert(end, (to, hole));
            }
        }
    }

    /// Forgets the zeroed ranges of segments before this one.
    pub fn retire(&mut self, segment: u64) {
        self.ranges.retain(|_, (_, hole)| hole.segment >= segment);
    }

    /// The ranges from this block on: first block, end, what covers it.
    pub fn from(&self, block: u64) -> impl Iterator<Item = (u64, u64, Hole)> + '_ {
        self.ranges.range(block..).map(|(&start, &(end, hole))| (start, end, hole))
    }

    /// How many ranges there are.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// The discards whose record is in this part of a segment, or may be.
    pub fn discards_in(&self, segment: u64, part: &Range<u32>) -> Vec<Tombstone> {
        let there = |hole: &Hole| {
            let within = hole.offset == ANYWHERE || part.contains(&hole.offset);
            hole.kind == Kind::Zeros && hole.segment == segment && within
        };
        let ranges = self.ranges.iter().filter(|(_, (_, hole))| there(hole));
        let stone = |start, end, offset| Tombstone { segment, offset, start, end };
        ranges.map(|(&start, &(end, hole))| stone(start, end, hole.offset)).collect()
    }

    /// The lost ranges of segments before this one, as first block and count.
    pub fn lost_before(&self, segment: u64) -> Vec<(u64, u64)> {
        let lost = |hole: &Hole| hole.kind == Kind::Lost && hole.segment < segment;
        let ranges = self.ranges.iter().filter(|(_, (_, hole))| lost(hole));
        ranges.map(|(&start, &(end, _))| (start, end - start)).collect()
    }

    /// Whether no range waits to be zeroed in the backing store, which has what segments before
    /// this one say.
    pub fn are_written(&self, written: u64) -> bool {
        self.ranges.values().all(|(_, hole)| hole.kind == Kind::Lost || hole.segment < written)
    }

    /// Whether there are none.
    #[cfg(test)]
    pub fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hole(segment: u64) -> Hole {
        Hole { segment, offset: 0, kind: Kind::Zeros }
    }

    #[test]
    fn an_item_of_a_sheet_says_all() {
        let last = SEGMENT_MAX - ALIGN as u32;
        for (offset, kind) in [(0, Kind::Zeros), (last, Kind::Lost), (ANYWHERE, Kind::Zeros)] {
            let hole = Hole { segment: u64::MAX, offset, kind };
            let (start, end) = ((1 << 40) - 2, (1 << 40) - 1);
            assert_eq!(Hole::from_item(hole.item(start, end)), Some((start, end, hole)));
        }
        assert_eq!(Hole::from_item([15 << 40, 1, 0]), None);
        assert_eq!(Hole::from_item([1 | (Kind::Zeros as u64) << 40, u64::MAX, 0]), None);
    }

    #[test]
    fn discards_are_found_by_where_their_records_are() {
        let mut holes = Holes::default();
        let page = ALIGN as u32;
        for (start, segment, offset, kind) in [
            (1, 5, page, Kind::Zeros),
            (2, 5, 2 * page, Kind::Zeros),
            (3, 5, ANYWHERE, Kind::Zeros),
            (4, 5, page, Kind::Lost),
            (5, 6, page, Kind::Zeros),
        ] {
            holes.insert(start, start + 1, Hole { segment, offset, kind });
        }
        let found = |segment, part: Range<u32>| -> Vec<u64> {
            holes.discards_in(segment, &part).iter().map(|stone| stone.start).collect()
        };
        assert_eq!(found(5, 0..2 * page), [1, 3]);
        assert_eq!(found(5, 2 * page..8 * page), [2, 3]);
        assert_eq!(found(6, 0..8 * page), [5]);
    }

    #[test]
    fn newer_ranges_cut_older_ones() {
        let mut holes = Holes::default();
        holes.insert(10, 20, hole(1));
        holes.insert(30, 40, hole(1));
        holes.insert(15, 35, hole(2));
        holes.insert(18, 19, hole(3));
        let of = |block| holes.get(block).map(|h| h.segment);
        let expected =
            [(9, None), (10, Some(1)), (14, Some(1)), (15, Some(2)), (18, Some(3)), (19, Some(2))];
        for (block, segment) in expected {
            assert_eq!(of(block), segment, "block {block}");
        }
        assert_eq!((of(34), of(35), of(40)), (Some(2), Some(1), None));
        holes.retire(2);
        assert_eq!((holes.get(10), holes.get(39)), (None, None));
        holes.remove(0, 100);
        assert!(holes.is_empty());
    }
}

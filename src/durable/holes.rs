//! Ranges of blocks that a record without payload covers: discarded, or lost.
//!
//! Invariant: ranges do not overlap. A block that the map names is not looked up here: whoever adds
//! a range removes the blocks from the map, and a block that is written afterwards shadows the
//! range.

use super::format::Kind;
use std::collections::BTreeMap;

/// What covers a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The segment of the record.
    pub segment: u64,
    /// [`Kind::Zeros`] or [`Kind::Lost`].
    pub kind: Kind,
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

    /// The ranges of a kind whose record is in this segment, as first block and count.
    pub fn of(&self, segment: u64, kind: Kind) -> Vec<(u64, u64)> {
        let sought = Hole { segment, kind };
        let ranges = self.ranges.iter().filter(|(_, (_, hole))| *hole == sought);
        ranges.map(|(&start, &(end, _))| (start, end - start)).collect()
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
        Hole { segment, kind: Kind::Zeros }
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

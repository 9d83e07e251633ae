//! Ranges of blocks that a record without payload covers: discarded, or lost.
//!
//! Invariant: ranges do not overlap. The map has precedence: the caller that adds a range removes
//! its blocks from the map, and a block written afterwards shadows the range. Each range is also in
//! one of two sets ordered by record, so the ranges of a segment are found without a scan of all
//! others. Neighbouring ranges of one chunk and kind are one range: otherwise each of a million
//! zeros that are written one after the other would take as much as a discard of them all. Such
//! records have no order among themselves that matters. Blocks of zeroed ranges are counted by
//! segment, until the segment is written back.

use crate::log::disk::format::{BLOCKS_MAX, Kind, SEGMENT_MAX};
use crate::log::planted::visit;
use crate::media::ALIGN;
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};

/// The offset of a record whose chunk is unknown: it may be anywhere in its segment.
pub const ANYWHERE: u32 = u32::MAX;
// Items of pages hold the chunk's place in bits 44 to 63 of the first word.
const _: () = assert!(SEGMENT_MAX as usize / ALIGN < (1 << 20) - 1);
const _: () = assert!(BLOCKS_MAX <= Record::BLOCKS && ANYWHERE as usize / ALIGN < 1 << 24);

/// The record that covers a range of blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hole {
    /// The segment of the record.
    pub segment: u64,
    /// Offset of the record's chunk in the segment, in bytes, or [`ANYWHERE`].
    pub offset: u32,
    /// [`Kind::Zeros`] or [`Kind::Lost`].
    pub kind: Kind,
}

impl Hole {
    /// The item of a checkpoint page for the blocks `start..end`, which this record covers.
    pub fn item(&self, start: u64, end: u64) -> [u64; 3] {
        let place = match self.offset {
            ANYWHERE => 0,
            offset => u64::from(offset) / ALIGN as u64 + 1,
        };
        [start | (self.kind as u64) << 40 | place << 44, end - start, self.segment]
    }

    /// Decodes such an item into first block, end and record; `None` if it is invalid.
    pub fn from_item([first, count, segment]: [u64; 3]) -> Option<(u64, u64, Self)> {
        let start = first & ((1 << 40) - 1);
        let kind = Kind::from_bits(first >> 40 & 15)?;
        if !matches!(kind, Kind::Zeros | Kind::Lost) {
            return None;
        }
        let offset = match first >> 44 {
            0 => ANYWHERE,
            place => (place as u32 - 1) * ALIGN as u32,
        };
        Some((start, start.checked_add(count)?, Self { segment, offset, kind }))
    }
}

/// A discard whose record cannot be read. It keeps its place in the order of records: after all
/// older ones, before all newer ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Tombstone {
    /// The segment of the record.
    pub segment: u64,
    /// As in [`Hole`].
    pub offset: u32,
    /// The first block.
    pub start: u64,
    /// The end, exclusive.
    pub end: u64,
}

/// The key of a range, ordered by the record that made the range: segment (64 bits), offset of the
/// record's chunk in the segment (24 bits, in pages), first block of the range (40 bits).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Record(u128);

impl Record {
    const BLOCKS: u64 = (1 << 40) - 1;

    fn new(segment: u64, offset: u32, start: u64) -> Self {
        let page = u64::from(offset) / ALIGN as u64;
        Self(u128::from(segment) << 64 | u128::from(page << 40 | start))
    }

    /// The lowest and the highest key of an offset in a segment.
    pub fn all_of(segment: u64, offset: u32) -> [Self; 2] {
        [0, Self::BLOCKS].map(|start| Self::new(segment, offset, start))
    }

    /// The next key in order; the highest key stays.
    #[must_use]
    pub fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }

    /// The segment.
    pub fn segment(self) -> u64 {
        (self.0 >> 64) as u64
    }

    fn start(self) -> u64 {
        self.0 as u64 & Self::BLOCKS
    }
}

/// Bytes that a range takes: an entry in each of two B-trees whose nodes are two thirds full.
const BYTES_PER_RANGE: usize = 3 * (size_of::<(u64, u64, Hole)>() + size_of::<Record>()) / 2;

/// The ranges, by first block and by record. Each method takes time logarithmic in the number of
/// ranges, and linear in the number of ranges that it touches or returns.
#[derive(Default)]
pub struct Holes {
    ranges: BTreeMap<u64, (u64, Hole)>,
    /// Keys of the ranges that read as zeros.
    zeroed: BTreeSet<Record>,
    /// Keys of the lost ranges.
    lost: BTreeSet<Record>,
    /// Segments before this one are written back.
    written: u64,
    /// Blocks of zeroed ranges in each segment that is not written back, and in all of these.
    unwritten: BTreeMap<u64, u64>,
    unwritten_blocks: u64,
}

impl Holes {
    /// The record that covers `block`.
    pub fn get(&self, block: u64) -> Option<Hole> {
        let (_, &(end, hole)) = self.ranges.range(..=block).next_back()?;
        (block < end).then_some(hole)
    }

    /// Covers the blocks `start..end`, replacing what covered them.
    pub fn insert(&mut self, mut start: u64, mut end: u64, hole: Hole) {
        self.remove(start, end);
        if let Some((&from, &(to, before))) = self.ranges.range(..start).next_back()
            && (to, before) == (start, hole)
        {
            self.take(from);
            start = from;
        }
        if let Some(&(to, after)) = self.ranges.get(&end)
            && after == hole
        {
            self.take(end);
            end = to;
        }
        self.add(start, end, hole);
    }

    /// Uncovers the blocks `start..end`.
    pub fn remove(&mut self, start: u64, end: u64) {
        while let Some((&from, &(to, hole))) = self.ranges.range(..end).next_back()
            && to > start
        {
            self.take(from);
            if from < start {
                self.add(from, start, hole);
            }
            if to > end {
                self.add(end, to, hole);
            }
        }
    }

    fn records(&mut self, kind: Kind) -> &mut BTreeSet<Record> {
        if kind == Kind::Lost { &mut self.lost } else { &mut self.zeroed }
    }

    fn add(&mut self, start: u64, end: u64, hole: Hole) {
        visit();
        if self.is_unwritten(&hole) {
            *self.unwritten.entry(hole.segment).or_default() += end - start;
            self.unwritten_blocks += end - start;
        }
        self.ranges.insert(start, (end, hole));
        self.records(hole.kind).insert(Record::new(hole.segment, hole.offset, start));
    }

    fn take(&mut self, start: u64) {
        visit();
        let Some((end, hole)) = self.ranges.remove(&start) else { return };
        self.records(hole.kind).remove(&Record::new(hole.segment, hole.offset, start));
        if self.is_unwritten(&hole)
            && let Entry::Occupied(mut blocks) = self.unwritten.entry(hole.segment)
        {
            *blocks.get_mut() -= end - start;
            self.unwritten_blocks -= end - start;
            if *blocks.get() == 0 {
                blocks.remove();
            }
        }
    }

    /// Whether the backing store lacks the zeros of a range.
    fn is_unwritten(&self, hole: &Hole) -> bool {
        hole.kind == Kind::Zeros && hole.segment >= self.written
    }

    /// Notes that the segments before `segment` are written back.
    pub fn wrote(&mut self, segment: u64) {
        self.written = self.written.max(segment);
        while let Some(oldest) = self.unwritten.first_entry()
            && *oldest.key() < segment
        {
            self.unwritten_blocks -= oldest.remove();
        }
    }

    /// Blocks of zeroed ranges in segments that are not written back. A block that was written
    /// afterwards counts, too: writeback zeroes it first.
    pub fn unwritten_blocks(&self) -> u64 {
        self.unwritten_blocks
    }

    /// Forgets up to `most` ranges of segments before `segment`; returns whether none is left.
    pub fn retire(&mut self, segment: u64, most: usize) -> bool {
        for _ in 0..most {
            let oldest = [self.zeroed.first(), self.lost.first()].into_iter().flatten().min();
            match oldest {
                Some(oldest) if oldest.segment() < segment => self.take(oldest.start()),
                _ => return true,
            }
        }
        false
    }

    /// The ranges that begin at `block` or later: first block, end, record.
    pub fn from(&self, block: u64) -> impl Iterator<Item = (u64, u64, Hole)> + '_ {
        self.ranges.range(block..).map(|(&start, &(end, hole))| (start, end, hole))
    }

    /// Number of ranges.
    pub fn len(&self) -> usize {
        self.ranges.len()
    }

    /// Memory that the ranges take, in bytes.
    pub fn memory(&self) -> usize {
        self.len() * BYTES_PER_RANGE
    }

    fn stone(&self, record: &Record) -> Option<Tombstone> {
        let start = record.start();
        let (end, Hole { segment, offset, .. }) = *self.ranges.get(&start)?;
        Some(Tombstone { segment, offset, start, end })
    }

    /// The first discard in `from..=last`, in the order of records.
    pub fn next_discard(&self, from: Record, last: Record) -> Option<(Record, Tombstone)> {
        let record = self.zeroed.range(from..=last).next()?;
        Some((*record, self.stone(record)?))
    }

    /// The first lost range at `from` or later, in the order of records.
    pub fn next_lost(&self, from: Record) -> Option<(Record, Tombstone)> {
        let record = self.lost.range(from..).next()?;
        Some((*record, self.stone(record)?))
    }

    /// The lost ranges that meet `start..end`, as first block and end.
    pub fn lost_within(&self, start: u64, end: u64) -> impl Iterator<Item = (u64, u64)> + '_ {
        // Ranges do not overlap, so of those that begin before `start` only the last can reach in.
        let before = self.ranges.range(..start).next_back();
        let all = before.into_iter().chain(self.ranges.range(start..end));
        let lost = all.filter(move |(_, (to, hole))| hole.kind == Kind::Lost && *to > start);
        lost.map(|(&from, &(to, _))| (from, to))
    }

    /// Whether a segment before `segment` has a lost range.
    pub fn has_lost_before(&self, segment: u64) -> bool {
        self.lost.first().is_some_and(|oldest| oldest.segment() < segment)
    }

    /// Whether no range is still to be zeroed in the backing store, if the segments before
    /// `written` are written back.
    pub fn are_written(&self, written: u64) -> bool {
        self.zeroed.last().is_none_or(|newest| newest.segment() < written)
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::log::planted::visited;
    use proptest::prelude::*;
    use std::ops::Range;

    fn hole(segment: u64) -> Hole {
        Hole { segment, offset: 0, kind: Kind::Zeros }
    }

    #[test]
    fn an_item_of_a_page_says_all() {
        let last = SEGMENT_MAX - ALIGN as u32;
        for (offset, kind) in [(0, Kind::Zeros), (last, Kind::Lost), (ANYWHERE, Kind::Zeros)] {
            let hole = Hole { segment: u64::MAX, offset, kind };
            let (start, end) = ((1 << 40) - 2, (1 << 40) - 1);
            assert_eq!(Hole::from_item(hole.item(start, end)), Some((start, end, hole)));
        }
        assert_eq!(Hole::from_item([15 << 40, 1, 0]), None);
        assert_eq!(Hole::from_item([(Kind::Raw as u64) << 40, 1, 0]), None);
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
            let [first, last] = [part.start, part.end - 1].map(|at| Record::all_of(segment, at));
            let (mut from, mut found) = (first[0], Vec::new());
            while let Some((record, stone)) = holes.next_discard(from, last[1]) {
                found.push(stone.start);
                from = record.next();
            }
            found
        };
        assert_eq!(found(5, 0..2 * page), [1]);
        assert_eq!(found(5, 2 * page..8 * page), [2]);
        assert_eq!(found(5, 2 * page..2 * page + 1), [2]);
        assert_eq!(found(6, 0..8 * page), [5]);
        let [anywhere, last] = Record::all_of(5, ANYWHERE);
        assert_eq!(holes.next_discard(anywhere, last).unwrap().1.start, 3);
        let (record, lost) = holes.next_lost(Record::default()).unwrap();
        assert_eq!(lost, Tombstone { segment: 5, offset: page, start: 4, end: 5 });
        assert_eq!(holes.next_lost(record.next()), None);
        assert!(!holes.has_lost_before(5) && holes.has_lost_before(6));
        assert!(!holes.are_written(6) && holes.are_written(7));
    }

    #[test]
    fn neighbours_of_one_chunk_are_one_range() {
        let (mut holes, elsewhere) = (Holes::default(), Hole { offset: ALIGN as u32, ..hole(1) });
        // Two writers in turn, one of them backwards.
        for i in 0..1000 {
            holes.insert(i, i + 1, hole(1));
            holes.insert(1999 - i, 2000 - i, hole(1));
        }
        assert_eq!((holes.len(), holes.memory()), (1, BYTES_PER_RANGE));
        holes.insert(2000, 2001, elsewhere);
        holes.insert(2001, 2002, Hole { kind: Kind::Lost, ..elsewhere });
        holes.insert(2002, 2003, hole(2));
        assert_eq!(holes.len(), 4, "other chunks, kinds and segments stay apart");
        holes.remove(10, 20);
        assert_eq!(holes.from(0).nth(1), Some((20, 2000, hole(1))));
        holes.insert(10, 20, hole(1));
        assert_eq!((holes.len(), holes.unwritten_blocks()), (4, 2002));
        holes.wrote(2);
        assert_eq!(holes.unwritten_blocks(), 1);
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
        assert!(!holes.retire(2, 2) && holes.retire(2, 1));
        assert_eq!((holes.get(10), holes.get(39)), (None, None));
        holes.remove(0, 100);
        assert_eq!((holes.len(), holes.memory()), (0, 0));
    }

    /// What covers each of a few blocks.
    type Model = Vec<Option<Hole>>;

    /// The ranges of a model: neighbouring blocks that one chunk covers.
    fn ranges(model: &Model) -> Vec<(u64, u64, Hole)> {
        let mut ranges: Vec<(u64, u64, Hole)> = Vec::new();
        for (block, covered) in (0..).zip(model) {
            let Some(hole) = *covered else { continue };
            match ranges.last_mut() {
                Some((_, end, last)) if *last == hole && *end == block => *end += 1,
                _ => ranges.push((block, block + 1, hole)),
            }
        }
        ranges
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]
        #[test]
        fn they_are_what_each_block_says(
            steps in prop::collection::vec((0u8..12, 0u64..60, 1u64..20, 0u64..6, 0u32..4), 0..80),
        ) {
            let (mut holes, mut model, mut written) = (Holes::default(), vec![None; 80], 0);
            for (op, start, count, segment, offset) in steps {
                let (all, offset) = (start as usize..(start + count) as usize, offset * 4096);
                let kind = if op % 3 == 0 { Kind::Lost } else { Kind::Zeros };
                match op {
                    0..8 => {
                        let hole = Hole { segment, offset, kind };
                        holes.insert(start, start + count, hole);
                        model[all].fill(Some(hole));
                    }
                    8..11 => {
                        holes.remove(start, start + count);
                        model[all].fill(None);
                    }
                    _ => {
                        while !holes.retire(segment, 1) {}
                        let stays = |hole: Hole| hole.segment >= segment;
                        model.iter_mut().for_each(|c| *c = c.filter(|hole| stays(*hole)));
                    }
                }
                if op == 8 {
                    written = written.max(segment);
                    holes.wrote(segment);
                }
                let expected = ranges(&model);
                prop_assert!(holes.from(0).eq(expected.iter().copied()));
                prop_assert_eq!(holes.len(), expected.len());
                let of = |kind| expected.iter().filter(move |(.., hole)| hole.kind == kind);
                let record = |(start, _, hole): &(u64, u64, Hole)| {
                    Record::new(hole.segment, hole.offset, *start)
                };
                let zeroed = of(Kind::Zeros).map(record);
                prop_assert_eq!(&holes.zeroed, &zeroed.collect());
                let unwritten = of(Kind::Zeros).filter(|(.., hole)| hole.segment >= written);
                let blocks: u64 = unwritten.map(|(start, end, _)| end - start).sum();
                prop_assert_eq!(holes.unwritten_blocks(), blocks);
                prop_assert_eq!(holes.unwritten.values().sum::<u64>(), blocks);
                let lost = of(Kind::Lost).map(record);
                prop_assert_eq!(&holes.lost, &lost.collect());
                let meets = |s: u64, e: u64| s < start + count && e > start;
                let within = of(Kind::Lost).filter(|(s, e, _)| meets(*s, *e));
                let within = within.map(|(s, e, _)| (*s, *e));
                prop_assert!(holes.lost_within(start, start + count).eq(within));
                for (block, covered) in (0..).zip(&model) {
                    prop_assert_eq!(holes.get(block), *covered);
                }
            }
        }
    }

    #[test]
    fn work_grows_with_what_is_touched() {
        let work = |n: u64| {
            let (mut holes, before) = (Holes::default(), visited());
            let order = |i: u64| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40;
            (0..n).for_each(|i| holes.insert(order(i), order(i) + 2, hole(i / 100)));
            while !holes.retire(n / 200, 64) {}
            (0..n).for_each(|i| holes.remove(order(i), order(i) + 1));
            visited() - before
        };
        let (few, many) = (work(1000), work(4000));
        assert!(many < 5 * few, "{few} and {many}");
    }
}

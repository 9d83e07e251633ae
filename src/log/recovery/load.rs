//! Reads a checkpoint: the index as it was, merged from a whole copy and its increments.
//!
//! Invariants: a checkpoint counts only if all of it is there, in the order in which it was made;
//! what a later run says of a block overrides an earlier run; items of segments that were freed
//! since are left out. To have no checkpoint costs time and nothing else.

use super::step::Step;
use crate::log::core::holes::{Hole, Holes};
use crate::log::core::map::{Map, Packed, Pages};
use crate::log::core::segment::Segment;
use crate::log::disk::checkpoint_page::{Content, Front, ITEM, chain, check_of, get8};
use crate::log::disk::format::{Kind, Pointer, Superblock};
use crate::log::planted::{self, Bug, mark, visit};
use crate::media::{Buffer, Drive};
use std::collections::BinaryHeap;

/// Bytes of a checkpoint that are read at once.
const LOAD: u64 = 32 << 20;

/// Fewest pages for a thread: verifying fewer takes less time than starting it.
const SHARE_MIN: usize = 8;

/// The index of a log, as far as a checkpoint has it.
pub(super) struct Loaded {
    pub map: Map,
    pub holes: Holes,
}

impl Loaded {
    /// The blocks that the superblock says are lost, as if records in front of all others said so.
    pub(super) fn new(sb: &Superblock) -> Self {
        let (map, mut holes) = (Map::default(), Holes::default());
        for &(block, count) in &sb.lost {
            let hole = Hole { segment: sb.written.segment, offset: 0, kind: Kind::Lost };
            holes.insert(block, block + count, hole);
        }
        Self { map, holes }
    }
}

/// A range: first block, end, what covers it.
type Covered = (u64, u64, Hole);

/// The whole copy, or an increment.
#[derive(Default)]
struct Run {
    ranges: Vec<Covered>,
    /// Entries in the order of blocks.
    blocks: Vec<Packed>,
    /// Its block pages have begun: all its segments and ranges have been read.
    has_blocks: bool,
}

/// A checkpoint while it is being read.
struct Loading<'a> {
    sb: &'a Superblock,
    pointer: &'a Pointer,
    /// The chained check words of the pages so far.
    sum: u32,
    /// Segments that were in use when the checkpoint was made and still are, from the tail on.
    segments: Vec<Segment>,
    map: Map,
    runs: Vec<Run>,
}

/// A page that was verified.
struct Page {
    check: u32,
    items: Items,
}

enum Items {
    /// Segments, from this number on.
    Segments(u64, Vec<u8>),
    Ranges(Vec<u8>),
    /// Pages of the index.
    Pages(Vec<Vec<Packed>>),
    /// Entries of an increment.
    Blocks(Vec<Packed>),
}

/// The checkpoint, if the log's tail has not passed it.
pub(super) fn usable(sb: &Superblock) -> Option<Pointer> {
    let pointer = sb.checkpoint?;
    let passed = pointer.is_passed(&sb.tail);
    if passed {
        mark("recover.checkpoint_passed");
    }
    (!passed).then_some(pointer)
}

/// Reads a checkpoint; `None` if not all of it is there.
pub(super) fn load(
    log: &dyn Drive,
    sb: &Superblock,
    pointer: &Pointer,
    progress: &dyn Fn(Step),
) -> Option<(Loaded, Vec<Segment>)> {
    let found = Loading::new(sb, pointer).read(log, progress);
    if found.is_none() {
        mark("recover.checkpoint_damaged");
    }
    found?.finish()
}

impl<'a> Loading<'a> {
    fn new(sb: &'a Superblock, pointer: &'a Pointer) -> Self {
        let (segments, map, runs) = (Vec::new(), Map::default(), Vec::new());
        Self { sb, pointer, sum: 0, segments, map, runs }
    }

    fn read(mut self, log: &dyn Drive, progress: &dyn Fn(Step)) -> Option<Self> {
        let Pointer { count, page, .. } = *self.pointer;
        let at = self.sb.area_at(self.pointer.area);
        let at_once = (LOAD / u64::from(page)).max(1) as usize;
        for first in (0..count).step_by(at_once) {
            let [done, of] = [first, count].map(|pages| u64::from(pages) * u64::from(page));
            progress(Step::Checkpoint { done, of });
            let wanted = (first..count).take(at_once);
            let wanted = wanted.map(|i| at + u64::from(i) * u64::from(page));
            let wanted = wanted.map(|at| (at, Buffer::new(page as usize)));
            let read: Result<Vec<_>, _> = log.read_many(wanted.collect()).into_iter().collect();
            for page in self.verify_all(first, &read.ok()?)? {
                self.take(page)?;
            }
        }
        let noted = self.pointer.sum;
        (noted == 0 || noted == self.sum).then_some(self)
    }

    /// Verifies pages, with up to one thread for each processor.
    fn verify_all(&self, first: u32, pages: &[(u64, Buffer)]) -> Option<Vec<Page>> {
        let share = match pages.len() {
            few if few <= SHARE_MIN => SHARE_MIN,
            many => {
                let workers = std::thread::available_parallelism().map_or(1, usize::from);
                many.div_ceil(workers).max(SHARE_MIN)
            }
        };
        let verify = |(first, pages): (u32, &[(u64, Buffer)])| -> Option<Vec<Page>> {
            (first..).zip(pages).map(|(index, (_, page))| self.verify(index, page)).collect()
        };
        let mut shares = (first..).step_by(share).zip(pages.chunks(share));
        std::thread::scope(|scope| {
            let own = shares.next()?;
            let others: Vec<_> = shares
                .map(|share| {
                    let thread = std::thread::Builder::new();
                    (share, thread.spawn_scoped(scope, move || verify(share)).ok())
                })
                .collect();
            let mut all = verify(own)?;
            for (share, thread) in others {
                // Without another thread, this one verifies the share.
                all.extend(match thread {
                    Some(thread) => thread.join().ok()??,
                    None => verify(share)?,
                });
            }
            Some(all)
        })
    }

    /// Verifies and decodes page `index`; `None` if it is not that page of this checkpoint.
    fn verify(&self, index: u32, page: &[u8]) -> Option<Page> {
        let (front, items) = Front::decode(page, self.pointer.seed, index)?;
        let items = match front.content {
            Content::Segments => Items::Segments(front.base, items.to_vec()),
            Content::Ranges => Items::Ranges(items.to_vec()),
            // Without increments, all block pages belong to the whole copy.
            Content::Blocks if index < self.pointer.whole || self.pointer.whole == 0 => {
                let mut pages = Pages::default();
                self.used(front.first, items, |packed| pages.push(packed))?;
                Items::Pages(pages.into_inner())
            }
            Content::Blocks => {
                let mut blocks = Vec::with_capacity(items.len() / Content::Blocks.size());
                self.used(front.first, items, |packed| {
                    blocks.push(packed);
                    Some(())
                })?;
                Items::Blocks(blocks)
            }
        };
        Some(Page { check: check_of(page), items })
    }

    /// Passes those entries of a page to `take` whose segments are still in use.
    fn used(
        &self,
        first: u64,
        items: &[u8],
        mut take: impl FnMut(Packed) -> Option<()>,
    ) -> Option<()> {
        let (slots, at) = (self.sb.segments, first % self.sb.segments);
        for item in items.chunks_exact(Content::Blocks.size()) {
            let packed = Packed::from_words([get8(item, 0), get8(item, 8)])?;
            let slot = u64::from(packed.slot());
            let segment = first + if slot >= at { slot - at } else { slot + slots - at };
            if packed.is_copy() && segment < self.sb.void && !planted::on(Bug::ServeVoid) {
                mark("recover.checkpoint_void");
            } else if segment >= self.sb.tail.segment || planted::on(Bug::CheckpointKeepsFreed) {
                take(packed)?;
            } else {
                mark("recover.checkpoint_freed");
            }
        }
        Some(())
    }

    /// Takes the next page; `None` if it does not fit to those before.
    fn take(&mut self, page: Page) -> Option<()> {
        self.sum = chain(self.sum, page.check);
        if let Items::Segments(base, items) = &page.items {
            if self.runs.last().is_none_or(|run| run.has_blocks) {
                self.runs.push(Run::default());
            }
            return self.take_segments(*base, items);
        }
        let run = self.runs.last_mut()?;
        match page.items {
            Items::Segments(..) => {}
            Items::Ranges(items) => take_ranges(&items, self.sb.tail.segment, &mut run.ranges)?,
            Items::Pages(pages) => {
                run.has_blocks = true;
                pages.into_iter().try_for_each(|page| self.map.push_page(page))?;
            }
            Items::Blocks(blocks) => {
                run.has_blocks = true;
                let last = run.blocks.last().map(|last| last.block());
                let follows = blocks.first().is_none_or(|first| last < Some(first.block()));
                let ascends = blocks.windows(2).all(|two| two[0].block() < two[1].block());
                run.blocks.extend(blocks);
                (follows && ascends).then_some(())?;
            }
        }
        Some(())
    }

    fn take_segments(&mut self, base: u64, items: &[u8]) -> Option<()> {
        let tail = self.sb.tail.segment;
        // An increment overrides what was known of the segment where it begins.
        self.segments.truncate(base.saturating_sub(tail) as usize);
        for (number, item) in (base..).zip(items.chunks_exact(ITEM)) {
            let (epoch, chunk, rest) = (get8(item, 0), get8(item, 8), get8(item, 16));
            if number < tail {
                continue;
            }
            if number != tail + self.segments.len() as u64 {
                return None;
            }
            let (prev, used) = (rest as u32, (rest >> 32) as u32);
            let (pins, changes, finished) = (0, 0, true);
            self.segments.push(Segment { epoch, chunk, prev, used, pins, changes, finished });
        }
        Some(())
    }

    /// Merges the runs; `None` if the segments do not reach to where replay begins.
    fn finish(mut self) -> Option<(Loaded, Vec<Segment>)> {
        let reach = self.sb.tail.segment + self.segments.len() as u64;
        if reach < self.pointer.segment {
            return None;
        }
        let mut loaded = Loaded::new(self.sb);
        for _ in 1..self.runs.len() {
            mark("recover.increment");
        }
        let mut covers = Covers::new(&self.runs);
        let changed = newest(&mut self.runs, covers.again());
        loaded.map = match changed.is_empty() && covers.is_empty() {
            true => self.map,
            false => self.map.with(changed.into_iter(), |block| covers.last(block).is_some())?,
        };
        for (start, end, hole) in self.runs.into_iter().flat_map(|run| run.ranges) {
            loaded.holes.insert(start, end, hole);
        }
        Some((loaded, self.segments))
    }
}

fn take_ranges(items: &[u8], tail: u64, ranges: &mut Vec<Covered>) -> Option<()> {
    for item in items.chunks_exact(ITEM) {
        let range = Hole::from_item([get8(item, 0), get8(item, 8), get8(item, 16)])?;
        if range.2.segment >= tail {
            ranges.push(range);
        }
    }
    Some(())
}

/// The ranges of all increments, in a sweep over the blocks: a range is looked at when the sweep
/// reaches its first block, and never again once the sweep has passed its end.
struct Covers {
    /// First block, end, which run; ascending.
    ranges: Vec<(u64, u64, usize)>,
    next: usize,
    /// Ranges that the sweep has reached, as run and end; the latest run first.
    begun: BinaryHeap<(usize, u64)>,
}

impl Covers {
    fn new(runs: &[Run]) -> Self {
        let increments = runs.iter().enumerate().skip(1);
        let all = increments.flat_map(|(i, run)| run.ranges.iter().map(move |r| (r.0, r.1, i)));
        let mut ranges: Vec<_> =
            if planted::on(Bug::IncrementIgnoresRanges) { Vec::new() } else { all.collect() };
        ranges.sort_unstable();
        Self { ranges, next: 0, begun: BinaryHeap::new() }
    }

    /// A new sweep from the first block on.
    fn again(&self) -> Self {
        Self { ranges: self.ranges.clone(), next: 0, begun: BinaryHeap::new() }
    }

    fn is_empty(&self) -> bool {
        self.ranges.is_empty()
    }

    /// The last run that has a range over `block`. The caller asks for ascending blocks.
    fn last(&mut self, block: u64) -> Option<usize> {
        while let Some(&(start, end, run)) = self.ranges.get(self.next)
            && start <= block
        {
            visit();
            self.next += 1;
            self.begun.push((run, end));
        }
        while self.begun.peek().is_some_and(|(_, end)| *end <= block) {
            visit();
            self.begun.pop();
        }
        self.begun.peek().map(|(run, _)| *run)
    }
}

/// The entries of all increments, ascending by block: of each block the last one, unless a later
/// run has a range over it.
fn newest(runs: &mut [Run], mut covers: Covers) -> Vec<Packed> {
    let increments = runs.iter_mut().enumerate().skip(1);
    let mut all: Vec<(Packed, usize)> = increments
        .flat_map(|(i, run)| std::mem::take(&mut run.blocks).into_iter().map(move |b| (b, i)))
        .collect();
    // The input is a row of sorted runs, which this sort detects; it is stable, so later runs stay
    // behind.
    all.sort_by_key(|(entry, _)| entry.block());
    let mut newest = Vec::with_capacity(all.len());
    for (i, (entry, run)) in all.iter().enumerate() {
        visit();
        if all.get(i + 1).is_some_and(|(next, _)| next.block() == entry.block()) {
            continue;
        }
        if covers.last(entry.block()).is_some_and(|covered| covered > *run) {
            mark("recover.increment_discards");
        } else {
            newest.push(*entry);
        }
    }
    newest
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::log::core::map::Place;
    use crate::log::planted::visited;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn entry(block: u64, check: u32) -> Packed {
        let place = Place { slot: 1, offset: 16, len: 1, kind: Kind::Raw, check, copy: false };
        let mut map = Map::default();
        map.insert(block, place);
        map.packed_from(0).next().unwrap()
    }

    fn run(ranges: impl Iterator<Item = (u64, u64)>, blocks: impl Iterator<Item = Packed>) -> Run {
        let hole = Hole { segment: 1, offset: 0, kind: Kind::Zeros };
        let ranges = ranges.map(|(start, end)| (start, end, hole)).collect();
        Run { ranges, blocks: blocks.collect(), has_blocks: true }
    }

    /// The index that runs make of the map of a whole copy.
    fn put_together(map: Map, mut runs: Vec<Run>) -> Map {
        let mut covers = Covers::new(&runs);
        let changed = newest(&mut runs, covers.again());
        map.with(changed.into_iter(), |block| covers.last(block).is_some()).unwrap()
    }

    proptest! {
        #[test]
        fn later_runs_count_before_earlier_ones(
            whole in prop::collection::btree_set(0u64..200, 0..100),
            increments in prop::collection::vec(
                (
                    prop::collection::btree_set((0u64..200, 1u64..20), 0..8),
                    prop::collection::btree_set(0u64..200, 0..30),
                ),
                0..8,
            ),
        ) {
            let (mut map, mut model) = (Map::default(), BTreeMap::new());
            for block in whole {
                map.insert(block, entry(block, 0).place());
                model.insert(block, 0);
            }
            // Ranges of the whole copy change nothing here: a real one has none over its blocks.
            let mut runs = vec![run([(0, 200)].into_iter(), [].into_iter())];
            for (number, (ranges, blocks)) in (1..).zip(increments) {
                for (start, count) in &ranges {
                    model.retain(|block, _| !(*start..start + count).contains(block));
                }
                model.extend(blocks.iter().map(|block| (*block, number)));
                let ranges = ranges.into_iter().map(|(start, count)| (start, start + count));
                runs.push(run(ranges, blocks.iter().map(|block| entry(*block, number))));
            }
            let found = put_together(map, runs);
            prop_assert!(found.iter().map(|(block, place)| (block, place.check)).eq(model));
        }
    }

    /// Many increments, each of a few blocks and ranges.
    #[test]
    fn work_grows_with_what_the_runs_have_not_with_their_number() {
        let work = |n: u64| {
            let mut map = Map::default();
            for block in 0..4 * n {
                map.insert(block, entry(block, 0).place());
            }
            let mut runs = vec![run([].into_iter(), [].into_iter())];
            for i in 0..n / 10 {
                let ranges = (0..5).map(|k| (k * n / 5 + i, k * n / 5 + i + 40));
                runs.push(run(ranges, (0..5).map(|k| entry(k * n / 5 + i * 7, 1))));
            }
            let before = visited();
            put_together(map, runs);
            visited() - before
        };
        let (few, many) = (work(1000), work(4000));
        assert!(many < 5 * few, "{few} and {many}");
    }
}

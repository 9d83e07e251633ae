//! The product's policies, by its own functions: block by block, and by segments as the cache frees
//! memory.

use super::lists::Lists;
use super::{Cache, Dropped};
use std::collections::VecDeque;
use ztier::cache::policy::{Came, Fate, Gate, Queue, Rules};

const PROBATION: usize = 0;
const MAIN: usize = 1;
const GHOSTS: usize = 2;
/// Free segments required to open one: that segment, and one for records appended again.
const RESERVE: usize = 2;
/// Segments are merged when at least one part in this number is garbage; the most at a time.
const GARBAGE_PART: usize = 16;
const RUN_MOST: usize = 8;
/// Blocks of a run on the device: of those that the page cache drops one after the other, copies
/// have the fate of the first.
const RUN: u64 = 32;

fn list_of(queue: Queue) -> usize {
    match queue {
        Queue::Probation => PROBATION,
        Queue::Main => MAIN,
    }
}

fn queue_of(list: usize) -> Option<Queue> {
    match list {
        PROBATION => Some(Queue::Probation),
        MAIN => Some(Queue::Main),
        _ => None,
    }
}

/// Where the copies of a run that the page cache drops go.
#[derive(Clone, Copy, Default)]
struct Last(Option<(u64, (Queue, u8))>);

impl Last {
    /// The place of a dropped block: that of the copy before it in its run, if its queue `holds`
    /// another; that of what was hit before; or by the rules.
    fn place(
        &mut self,
        dropped: Dropped,
        holds: impl Fn(Queue) -> bool,
        by_rules: impl FnOnce() -> Option<(Queue, u8)>,
    ) -> Option<(Queue, u8)> {
        let run = dropped.number / RUN;
        let last = self.0.filter(|(last, (queue, _))| *last == run && holds(*queue));
        if let Some((_, place)) = last {
            return Some(place);
        }
        let place = match dropped.given {
            0 => by_rules(),
            given => Some((Queue::Main, given)),
        };
        self.0 = place.map(|place| (run, place));
        place
    }
}

/// Block by block: each rule takes effect at once.
pub struct Blocks {
    gate: Gate,
    lists: Lists<3>,
    hits: Vec<u8>,
    most: usize,
    ghosts: usize,
    last: Last,
}

impl Blocks {
    /// A cache of at most `most` blocks, for blocks below `blocks`.
    pub fn new(rules: Rules, blocks: u32, most: usize) -> Self {
        Self {
            gate: Gate::new(rules),
            lists: Lists::new(blocks),
            hits: vec![0; blocks as usize],
            most,
            ghosts: most * usize::from(rules.ghosts_permille) / 1000,
            last: Last::default(),
        }
    }

    fn queue(&self, block: u32) -> Option<Queue> {
        self.lists.of(block).and_then(queue_of)
    }

    fn bring(&mut self, block: u32, came: Came) {
        let place = self.place_by_rules(block, came);
        self.bring_to(block, place);
    }

    fn place_by_rules(&mut self, block: u32, came: Came) -> Option<(Queue, u8)> {
        let remembered = self.lists.of(block) == Some(GHOSTS);
        self.lists.take(block);
        let has_room = self.len() < self.most;
        if has_room {
            self.gate.widen();
        }
        let bytes = (self.lists.len(MAIN) as u64, self.most as u64);
        self.gate.enter(came, remembered, bytes, |_| has_room)
    }

    fn bring_to(&mut self, block: u32, place: Option<(Queue, u8)>) {
        let Some((queue, hits)) = place else { return };
        self.lists.take(block);
        while self.len() >= self.most {
            self.make_room();
        }
        self.hits[block as usize] = hits;
        self.lists.push(list_of(queue), block);
    }

    fn make_room(&mut self) {
        let (probation, main) = (self.lists.len(PROBATION), self.lists.len(MAIN));
        let queue = self.gate.rules().gives(probation as u64, main as u64);
        let Some(block) = self.lists.pop(list_of(queue)) else { return };
        let fate = self.gate.leave(queue, self.hits[block as usize], self.most as u64);
        match fate {
            Fate::Again(queue, hits) => {
                self.hits[block as usize] = hits;
                self.lists.push(list_of(queue), block);
            }
            Fate::Remembered => {
                self.lists.push(GHOSTS, block);
                if self.lists.len(GHOSTS) > self.ghosts {
                    self.lists.pop(GHOSTS);
                }
            }
            Fate::Gone => {}
        }
    }
}

impl Cache for Blocks {
    fn read(&mut self, block: u32) -> bool {
        let hit = self.queue(block).is_some();
        if hit {
            let hits = &mut self.hits[block as usize];
            *hits = self.gate.rules().hit(*hits);
        } else {
            self.bring(block, Came::Missed);
        }
        hit
    }

    fn write(&mut self, block: u32) {
        match self.queue(block) {
            // A new copy goes behind the others of its queue.
            Some(queue) => {
                self.lists.take(block);
                self.lists.push(list_of(queue), block);
            }
            None => self.bring(block, Came::Written),
        }
    }

    fn discard(&mut self, block: u32) {
        self.lists.take(block);
    }

    fn len(&self) -> usize {
        self.lists.len(PROBATION) + self.lists.len(MAIN)
    }

    fn has(&self, block: u32) -> bool {
        self.queue(block).is_some()
    }

    fn keep_dropped(&mut self, block: u32, dropped: Dropped) {
        let mut last = self.last;
        let holds = |_| !self.gate.is_filling() || self.len() < self.most;
        let keeps = holds(Queue::Main);
        let by_rules = || self.place_by_rules(block, Came::Dropped);
        let place = last.place(dropped, |_| keeps, by_rules);
        self.last = last;
        self.bring_to(block, place);
    }
}

/// Position of a block's copy.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Place {
    segment: u32,
    at: u32,
}

const NOWHERE: Place = Place { segment: u32::MAX, at: 0 };

/// Frees memory a segment at a time: eviction scans the oldest segment of a queue, and appends
/// again what stays. Overwritten and moved records leave garbage, which takes room until its
/// segment is freed.
pub struct Segments {
    gate: Gate,
    /// Blocks that fit in a segment.
    each: usize,
    segments: Vec<Vec<u32>>,
    free: Vec<u32>,
    /// Segments of each queue, the oldest first; the last is the open one.
    queues: [VecDeque<u32>; 2],
    queue: Vec<Queue>,
    /// Garbage records of each segment.
    dead: Vec<usize>,
    places: Vec<Place>,
    hits: Vec<u8>,
    ghosts: Lists<1>,
    ghosts_most: usize,
    most: usize,
    /// Copies that were appended again.
    copied: u64,
    /// Copies added.
    came: u64,
    last: Last,
}

impl Segments {
    /// A cache of at most `most` blocks, for blocks below `blocks`, in `count` segments (at least
    /// 4).
    pub fn new(rules: Rules, blocks: u32, most: usize, count: usize) -> Self {
        let each = (most / count).max(1);
        let count = (most / each).max(4);
        Self {
            gate: Gate::new(rules),
            each,
            segments: vec![Vec::with_capacity(each); count],
            free: (0..count as u32).rev().collect(),
            queues: Default::default(),
            queue: vec![Queue::Main; count],
            dead: vec![0; count],
            places: vec![NOWHERE; blocks as usize],
            hits: vec![0; blocks as usize],
            ghosts: Lists::new(blocks),
            ghosts_most: most * usize::from(rules.ghosts_permille) / 1000,
            most,
            copied: 0,
            came: 0,
            last: Last::default(),
        }
    }

    /// Copies appended again, for each copy added.
    pub fn copied(&self) -> f64 {
        self.copied as f64 / self.came.max(1) as f64
    }

    /// Whether the open segment of a queue has room.
    fn fits(&self, queue: Queue) -> bool {
        let open = self.queues[list_of(queue)].back();
        open.is_some_and(|&segment| self.segments[segment as usize].len() < self.each)
    }

    fn open(&mut self, queue: Queue) -> bool {
        let Some(segment) = self.free.pop() else { return false };
        self.queue[segment as usize] = queue;
        self.queues[list_of(queue)].push_back(segment);
        true
    }

    fn append(&mut self, queue: Queue, block: u32) {
        let Some(&segment) = self.queues[list_of(queue)].back() else { return };
        let records = &mut self.segments[segment as usize];
        self.places[block as usize] = Place { segment, at: records.len() as u32 };
        records.push(block);
    }

    /// Whether a record fits without eviction.
    fn has_room(&self, queue: Queue) -> bool {
        self.fits(queue) || self.free.len() >= RESERVE
    }

    fn bring(&mut self, block: u32, queue: Queue, hits: u8) {
        let mut gone_over = 0;
        while !self.fits(queue) {
            if self.free.len() >= RESERVE {
                self.open(queue);
            } else if !self.merge() {
                self.evict(gone_over);
                gone_over += 1;
            }
        }
        self.came += 1;
        self.hits[block as usize] = hits;
        self.append(queue, block);
    }

    fn live(&self, segment: u32) -> usize {
        self.segments[segment as usize].len() - self.dead[segment as usize]
    }

    /// Size of a queue's copies, in blocks.
    fn taken(&self, list: usize) -> u64 {
        self.queues[list].iter().map(|&s| self.live(s) as u64).sum()
    }

    /// Puts neighbours together in one segment less, if a sixteenth of all records is garbage.
    fn merge(&mut self) -> bool {
        let used: usize = self.segments.iter().map(Vec::len).sum();
        if self.dead.iter().sum::<usize>() * GARBAGE_PART < used {
            return false;
        }
        let run = |&(list, first, count): &(usize, usize, usize)| {
            (first..first + count).map(|at| self.live(self.queues[list][at])).sum::<usize>()
        };
        let found = (2..=RUN_MOST).find_map(|count| {
            let runs = [PROBATION, MAIN].into_iter().flat_map(|list| {
                let sealed = self.queues[list].len().saturating_sub(1);
                (0..(sealed + 1).saturating_sub(count)).map(move |first| (list, first, count))
            });
            runs.filter(|r| run(r) <= (count - 1) * self.each).min_by_key(run)
        });
        let Some((list, first, count)) = found else { return false };
        let ids: Vec<u32> = self.queues[list].range(first..first + count).copied().collect();
        let mut kept = Vec::with_capacity(count * self.each);
        for &segment in &ids {
            for (at, block) in
                std::mem::take(&mut self.segments[segment as usize]).into_iter().enumerate()
            {
                if self.places[block as usize] == (Place { segment, at: at as u32 }) {
                    kept.push(block);
                }
            }
            self.dead[segment as usize] = 0;
        }
        self.copied += kept.len() as u64;
        for (segment, blocks) in ids.iter().zip(kept.chunks(self.each)) {
            for (at, &block) in blocks.iter().enumerate() {
                self.places[block as usize] = Place { segment: *segment, at: at as u32 };
            }
            self.segments[*segment as usize] = blocks.to_vec();
        }
        self.queues[list].remove(first + count - 1);
        self.free.push(ids[count - 1]);
        true
    }

    /// Evicts the oldest segment of a queue, after `gone_over` segments for the same copy.
    fn evict(&mut self, gone_over: u32) {
        let bytes = (self.taken(PROBATION), self.taken(MAIN));
        let (queue, may_stay) = self.gate.rules().gives_after(gone_over, bytes);
        let asked = list_of(queue);
        // The open segment is spared while there is another.
        let list = [asked, 1 - asked].into_iter().find(|&l| self.queues[l].len() > 1);
        let Some(segment) = self.queues[list.unwrap_or(asked)].pop_front() else { return };
        let queue = self.queue[segment as usize];
        let mut records = std::mem::take(&mut self.segments[segment as usize]);
        for (at, &block) in records.iter().enumerate() {
            if self.places[block as usize] != (Place { segment, at: at as u32 }) {
                continue;
            }
            self.places[block as usize] = NOWHERE;
            let fate = self.gate.leave(queue, self.hits[block as usize], self.most as u64);
            match fate {
                Fate::Again(queue, hits) if may_stay && (self.fits(queue) || self.open(queue)) => {
                    self.hits[block as usize] = hits;
                    self.copied += 1;
                    self.append(queue, block);
                }
                Fate::Gone => {}
                Fate::Again(..) | Fate::Remembered => {
                    self.ghosts.push(0, block);
                    if self.ghosts.len(0) > self.ghosts_most {
                        self.ghosts.pop(0);
                    }
                }
            }
        }
        records.clear();
        self.dead[segment as usize] = 0;
        self.segments[segment as usize] = records;
        self.free.push(segment);
    }

    /// Makes the copy of a block garbage; returns its former position.
    fn forget(&mut self, block: u32) -> Place {
        let place = std::mem::replace(&mut self.places[block as usize], NOWHERE);
        if place != NOWHERE {
            self.dead[place.segment as usize] += 1;
        }
        place
    }

    fn place_new(&mut self, block: u32, came: Came) {
        if let Some((queue, hits)) = self.place_by_rules(block, came) {
            self.bring(block, queue, hits);
        }
    }

    fn place_by_rules(&mut self, block: u32, came: Came) -> Option<(Queue, u8)> {
        let remembered = self.ghosts.of(block).is_some();
        self.ghosts.take(block);
        // Capacity of the queues when no room is left.
        let most = (self.segments.len() + 1 - RESERVE) * self.each;
        let bytes = (self.taken(MAIN), most as u64);
        let mut gate = self.gate;
        let place = gate.enter(came, remembered, bytes, |queue| self.has_room(queue));
        self.gate = gate;
        place
    }
}

impl Cache for Segments {
    fn read(&mut self, block: u32) -> bool {
        let hit = self.places[block as usize] != NOWHERE;
        if hit {
            let hits = &mut self.hits[block as usize];
            *hits = self.gate.rules().hit(*hits);
        } else {
            self.place_new(block, Came::Missed);
        }
        hit
    }

    fn write(&mut self, block: u32) {
        let place = self.forget(block);
        if place == NOWHERE {
            self.place_new(block, Came::Written);
        } else {
            self.bring(block, self.queue[place.segment as usize], self.hits[block as usize]);
        }
    }

    fn discard(&mut self, block: u32) {
        self.forget(block);
        self.ghosts.take(block);
    }

    fn len(&self) -> usize {
        self.segments.iter().map(Vec::len).sum()
    }

    fn has(&self, block: u32) -> bool {
        self.places[block as usize] != NOWHERE
    }

    fn keep_dropped(&mut self, block: u32, dropped: Dropped) {
        let mut last = self.last;
        let filling = self.gate.is_filling();
        let rooms = [Queue::Probation, Queue::Main].map(|queue| self.has_room(queue));
        let holds = |queue| !filling || rooms[list_of(queue)];
        let place = last.place(dropped, holds, || self.place_by_rules(block, Came::Dropped));
        self.last = last;
        self.ghosts.take(block);
        if let Some((queue, hits)) = place {
            self.bring(block, queue, hits);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::synth::{self, Scale};
    use super::super::trace::Trace;
    use super::super::{hits, small_traces};
    use super::*;

    const RULES: [Rules; 2] = [Rules::CLOCK, Rules::S3_FIFO];

    fn rules() -> impl Iterator<Item = Rules> {
        RULES.into_iter().chain([Rules::default()])
    }

    #[test]
    fn nothing_takes_more_than_its_size() {
        let small = small_traces(40, 400, 20);
        let scale = Scale { blocks: 1024, times: 4 };
        for trace in small.into_iter().chain(synth::all(scale)) {
            let replay = trace.replay();
            for rules in rules() {
                for most in [8, 20] {
                    let mut caches: [Box<dyn Cache>; 3] = [
                        Box::new(Blocks::new(rules, replay.blocks, most)),
                        Box::new(Segments::new(rules, replay.blocks, most, 4)),
                        Box::new(Segments::new(rules, replay.blocks, most, 8)),
                    ];
                    for cache in &mut caches {
                        for access in &replay.accesses {
                            super::super::step(&mut **cache, *access);
                            assert!(cache.len() <= most, "{}: {rules:?}", trace.name);
                        }
                    }
                }
            }
        }
    }

    /// Live copies and counted garbage add up to all records.
    #[test]
    fn segments_know_what_is_garbage() {
        for trace in small_traces(40, 400, 20) {
            let replay = trace.replay();
            let mut cache = Segments::new(Rules::default(), replay.blocks, 24, 6);
            for access in &replay.accesses {
                super::super::step(&mut cache, *access);
                let copies = cache.places.iter().filter(|place| **place != NOWHERE).count();
                let garbage: usize = cache.dead.iter().sum();
                assert_eq!(cache.len(), copies + garbage, "{}", trace.name);
            }
        }
    }

    #[test]
    fn clock_gives_what_was_hit_another_chance() {
        let mut trace = Trace::new("a", "");
        trace.reads([0, 1, 0, 2, 0, 1]);
        let replay = trace.replay();
        // 0 was hit, so 1 was evicted for 2.
        assert_eq!(hits(&mut Blocks::new(Rules::CLOCK, replay.blocks, 2), &replay), 2);
    }

    #[test]
    fn what_is_asked_for_again_soon_after_it_went_is_kept() {
        let mut trace = Trace::new("a", "");
        trace.reads((0..40).chain([28, 29]).chain(100..130).chain([28, 29]));
        let replay = trace.replay();
        let kept = |rules| hits(&mut Blocks::new(rules, replay.blocks, 10), &replay);
        assert_eq!((kept(Rules::CLOCK), kept(Rules::S3_FIFO)), (0, 2));
        let forgetful = Rules { ghosts_permille: 0, ..Rules::S3_FIFO };
        assert_eq!(kept(forgetful), 0);
    }

    #[test]
    fn a_loop_larger_than_the_cache_does_not_empty_it() {
        let mut trace = Trace::new("a", "");
        for _ in 0..20 {
            trace.reads(0..150);
        }
        let replay = trace.replay();
        let kept = |rules| {
            let blocks = hits(&mut Blocks::new(rules, replay.blocks, 100), &replay);
            let segments = hits(&mut Segments::new(rules, replay.blocks, 100, 20), &replay);
            [blocks, segments].map(|hits| hits as f64 / replay.reads() as f64)
        };
        assert_eq!(kept(Rules::CLOCK), [0.0, 0.0]);
        assert!(
            kept(Rules::default()).iter().all(|kept| *kept > 0.45),
            "{:?}",
            kept(Rules::default())
        );
    }
}

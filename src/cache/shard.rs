//! A shard: a part of the cache under one lock. It has the copies of some groups of blocks, all of
//! their memory, and their flights.
//!
//! Invariants: an entry of the index names a record in a segment that exists; all parts together
//! take at most the shard's limit, except for flights; a caller that needs room evicts.

use super::ahead::Ahead;
use super::flights::{Before, Flights, GROUP, bits};
use super::planted::{self, Bug};
use super::policy::{Came, Fate, Gate, Queue, Rules};
use super::record::Header;
use super::seal::Seal;
use super::seals::{Known, Seals};
use super::segment::Segment;
use super::segments::Segments;
use super::table::{Place, SEGMENT_MAX, Table};
use crate::media::{Frame, Pool};
use crate::stats::CacheCounts;
use crate::sync::atomic::Ordering;
use std::sync::Arc;

/// The smallest segment in bytes.
const SEGMENT_MIN: usize = 16 << 10;
/// Blocks of a run, 128 KiB: of those that the page cache drops one after the other, copies go
/// where that of the first went. A request for a run of which one block has to come from a disk
/// takes about as long as if all had.
const RUN: u32 = 32;

/// A part of the cache.
#[derive(Debug)]
pub struct Shard {
    gate: Gate,
    pool: Arc<Pool>,
    limit: u64,
    table: Table,
    ghosts: super::ghosts::Ghosts,
    segments: Segments,
    flights: Flights,
    /// Of blocks that a page cache above may have; empty if none is followed.
    seals: Seals,
    /// The run of the block that the page cache dropped last, and where its copy went.
    dropped_last: Option<(u32, (Queue, u8))>,
    counts: CacheCounts,
    ahead: Arc<Ahead>,
}

/// Bytes of a segment: a 32nd of the limit, within bounds.
fn segment_len(limit: u64, most: usize) -> usize {
    let len = (limit / 32).next_power_of_two().min(SEGMENT_MAX as u64) as usize;
    len.clamp(SEGMENT_MIN, most)
}

impl Shard {
    /// An empty shard.
    pub fn new(rules: Rules, pool: Arc<Pool>, ahead: Arc<Ahead>, limit: u64) -> Self {
        let segments = Segments::new(segment_len(limit, pool.frame()));
        Self {
            gate: Gate::new(rules),
            pool,
            limit,
            table: Table::default(),
            ghosts: Default::default(),
            segments,
            flights: Flights::default(),
            seals: Seals::default(),
            dropped_last: None,
            counts: CacheCounts::default(),
            ahead,
        }
    }

    /// Bytes of everything but segments and spare frames.
    pub fn index_bytes(&self) -> u64 {
        let tables = self.segments.table_bytes() + self.flights.bytes();
        self.table.bytes() + self.ghosts.bytes() + self.seals.bytes() + tables
    }

    /// Bytes of everything.
    pub fn used(&self) -> u64 {
        self.index_bytes() + self.segments.held()
    }

    /// Bytes of the live records.
    pub fn stored(&self) -> u64 {
        self.segments.live(Queue::Probation) + self.segments.live(Queue::Main)
    }

    /// Blocks that have a copy.
    pub fn blocks(&self) -> u64 {
        self.table.len() as u64
    }

    /// The counters, now.
    pub fn counts(&self) -> CacheCounts {
        self.counts
    }

    /// Blocks that were read or written and not kept, because of writes or zeroes at the same time.
    pub fn lost(&self) -> u64 {
        self.flights.lost
    }

    /// Copies the record of a block to `out`, which has room for the largest, and returns its
    /// header. The caller verifies it. `None`: there is no copy.
    pub fn hit(&mut self, key: u32, out: &mut [u8]) -> Option<Header> {
        let place = self.place(key)?;
        self.hit_at(key, place, out)
    }

    /// Where the copy of a block is.
    pub fn place(&self, key: u32) -> Option<Place> {
        self.table.get(key)
    }

    /// As [`Self::hit`], for a copy that is at `place`, or was a moment ago.
    pub fn hit_at(&mut self, key: u32, place: Place, out: &mut [u8]) -> Option<Header> {
        let found = self.segments.record(place);
        let believed = planted::on(Bug::ServeWhateverIsThere);
        let Some((header, record, _)) = found.filter(|(h, ..)| h.key == key || believed) else {
            self.damaged(key);
            return None;
        };
        out[..record.len()].copy_from_slice(record);
        self.counts.hit_blocks += 1;
        if header.ahead {
            // The first request of this block: for other blocks the first one is a miss, and no hit
            // either.
            self.segments.asked_for(place);
            self.ahead.used.fetch_add(1, Ordering::Relaxed);
        } else {
            let hits = self.gate.rules().hit(place.hits());
            if hits != place.hits() {
                self.table.set(key, place.with_hits(hits));
            }
        }
        Some(header)
    }

    /// Whether there is a copy.
    pub fn has(&self, key: u32) -> bool {
        self.table.get(key).is_some()
    }

    /// Begins to seal blocks, with room for `seals`, or ends it.
    pub fn follow(&mut self, seals: Option<Seals>) {
        self.gate.follow(seals.is_some());
        self.seals = seals.unwrap_or_default();
    }

    /// Seals a block that is alive; see [`Seals::set`].
    pub fn seal(&mut self, key: u32, seal: Seal, known: Known) {
        self.seals.set(key, seal, known);
    }

    /// Whether a page cache above is to have the block.
    pub fn is_above(&self, key: u32) -> bool {
        self.seals.is_above(key)
    }

    /// The block has been read from its copy, which the page cache above gets. The caller seals it
    /// under the same lock.
    pub fn give(&mut self, key: u32) {
        self.counts.given_blocks += u64::from(self.forget(key).is_some());
    }

    /// A page cache above has dropped a page. Whether its content is that of the block.
    pub fn page_dropped(&mut self, key: u32, seal: Seal) -> bool {
        let is_it = self.seals.has(key, seal);
        if is_it {
            self.seals.dropped(key);
        }
        is_it
    }

    /// The copy of a block is damaged: drops it.
    pub fn damaged(&mut self, key: u32) {
        self.counts.damaged_copies += 1;
        self.forget(key);
    }

    /// Drops the copy of a block; returns its queue and hits.
    fn forget(&mut self, key: u32) -> Option<(Queue, u8)> {
        let place = self.table.remove(key)?;
        let queue = self.segments.died(place)?;
        Some((queue, place.hits()))
    }

    /// Counts the blocks from `key` on whose bits are set as missed. If they `go_above`, the page
    /// cache is to have them and no place is looked for that would count their ghosts, which stay
    /// until the blocks come back.
    pub fn missed(&mut self, key: u32, blocks: u64, go_above: bool) {
        self.counts.missed_blocks += u64::from(blocks.count_ones());
        // A larger cache would not have what the page cache has or lost.
        let gone = |key: &u32| self.ghosts.has(*key) && !self.seals.is_above(*key);
        if go_above {
            let missed = (0..64).filter(|at| blocks >> at & 1 == 1).map(|at| key + at);
            self.counts.ghosts_hit_blocks += missed.filter(gone).count() as u64;
        }
    }

    /// Begins a fill: a read of the blocks whose bits are set in `wanted`, counted from `first` on.
    /// Whether any of them may be kept; then the caller calls [`Shard::end`].
    pub fn begin_fill(&mut self, id: u64, first: u64, wanted: u64) -> bool {
        self.flights.fill(id, first, wanted)
    }

    /// Begins a write of `count` blocks from `first` on, whose keys are those from `key` on: drops
    /// their copies.
    pub fn begin_write(&mut self, id: u64, (first, key): (u64, u32), count: u64) {
        debug_assert!(count <= GROUP);
        let mut before = Before::default();
        for at in 0..count {
            let key = key + at as u32;
            if !planted::on(Bug::SealOverWrite) {
                self.seals.remove(key);
            }
            if let Some((queue, hits)) = self.forget(key) {
                before.note(at, queue, hits);
            }
        }
        self.flights.write(id, first, count, before);
    }

    /// Begins to zero any number of blocks: drops their copies. `inside` says whether the block of
    /// a key is among them.
    pub fn begin_zero(&mut self, id: u64, first: u64, count: u64, inside: impl Fn(u32) -> bool) {
        self.flights.zero(id, first, count);
        if planted::on(Bug::KeepZeroed) {
            return;
        }
        if !planted::on(Bug::SealOverZero) {
            self.seals.remove_all(&inside);
        }
        let mut from = 0;
        while let Some((at, key)) = self.table.seek(from, |key, _| inside(key)) {
            self.forget(key);
            from = at;
        }
    }

    /// Which blocks of a flight may be kept, as bits from its first block on, and the copies that
    /// it dropped.
    pub fn alive(&self, id: u64, first: u64) -> (u64, Before) {
        self.flights.alive(id, first)
    }

    /// Ends a flight.
    pub fn end(&mut self, id: u64, first: u64) {
        self.flights.end(id, first);
    }

    /// Keeps a copy, if the rules and the machine's memory allow it. One that replaces a dropped
    /// copy gets the queue and the hits that this had `before`. A block that the page cache has
    /// dropped needs no seal any more.
    pub fn keep(
        &mut self,
        header: &Header,
        record: &[u8],
        came: Came,
        before: Option<(Queue, u8)>,
    ) {
        self.keep_copy(header, record, came, before);
        if came == Came::Dropped {
            self.seals.remove(header.key);
        }
    }

    fn keep_copy(
        &mut self,
        header: &Header,
        record: &[u8],
        came: Came,
        before: Option<(Queue, u8)>,
    ) {
        if self.table.get(header.key).is_some() {
            return;
        }
        let Some((queue, hits)) = before.or_else(|| self.place_new(header, came)) else { return };
        let mut gone_over = 0;
        let space = header.space();
        if !self.make_room(queue, space, &mut gone_over) || !self.make_entry(&mut gone_over) {
            return;
        }
        if !self.segments.fits(queue, header.space()) {
            // Records that survived the eviction for the entry have taken the room.
            return;
        }
        if let Some((segment, at)) = self.segments.append(queue, record, header) {
            let place = Place::new(segment, at, hits);
            self.table.insert(header.key, place);
            if came == Came::Dropped {
                self.segments.note_given(place, self.seals.given(header.key));
            }
            self.counts.kept_blocks += 1;
            self.ahead.kept.fetch_add(u64::from(came == Came::Ahead), Ordering::Relaxed);
        }
    }

    /// Where the first copy of a block goes, and the hits that it begins with.
    fn place_new(&mut self, header: &Header, came: Came) -> Option<(Queue, u8)> {
        let remembered = self.ghosts.take(header.key);
        self.counts.ghosts_hit_blocks += u64::from(remembered && came == Came::Missed);
        if came != Came::Dropped {
            return self.place_by_rules(header, came, remembered);
        }
        self.counts.dropped_pages += 1;
        let run = header.key / RUN;
        // While a cache fills, a place is as good as its room.
        let holds = |queue| !self.gate.is_filling() || self.has_room(queue, header);
        let last = self.dropped_last.filter(|(last, (queue, _))| *last == run && holds(*queue));
        if let Some((_, place)) = last {
            return Some(place);
        }
        let place = match self.seals.given(header.key) {
            0 => self.place_by_rules(header, came, remembered),
            // It was asked for while it had a copy: hits outlive the copies that they were of.
            given => Some((Queue::Main, given.min(self.gate.rules().hits_most))),
        };
        self.dropped_last = place.map(|place| (run, place));
        place
    }

    fn place_by_rules(
        &mut self,
        header: &Header,
        came: Came,
        remembered: bool,
    ) -> Option<(Queue, u8)> {
        let most = self.for_frames().saturating_sub(self.segments.len() as u64);
        let bytes = (self.segments.live(Queue::Main), most);
        // A copy of the gate, so that the closure can borrow `self`.
        let mut gate = self.gate;
        let place = gate.enter(came, remembered, bytes, |queue| self.has_room(queue, header));
        self.gate = gate;
        place
    }

    /// Whether a record fits without an eviction.
    fn has_room(&self, queue: Queue, header: &Header) -> bool {
        self.segments.fits(queue, header.space()) || self.may_open()
    }

    /// Whether another segment may be opened. Room for one more stays in reserve, for records that
    /// survive an eviction.
    fn may_open(&self) -> bool {
        self.segments.in_use() + 2 * self.segments.len() as u64 <= self.for_frames()
    }

    /// What is left of the limit for frames.
    fn for_frames(&self) -> u64 {
        self.limit.saturating_sub(self.index_bytes())
    }

    /// Makes room for a record at the end of a queue.
    fn make_room(&mut self, queue: Queue, space: usize, gone_over: &mut u32) -> bool {
        while !self.segments.fits(queue, space) {
            // If the limit allows more segments than there are frames, the present ones have to do.
            let frame = if self.may_open() { self.frame(0) } else { None };
            let opened = frame.is_some_and(|frame| self.segments.open(queue, frame));
            if !opened && !self.merge() && !self.evict(gone_over) {
                return false;
            }
        }
        true
    }

    /// Makes room in the index.
    fn make_entry(&mut self, gone_over: &mut u32) -> bool {
        while self.table.is_full() {
            // For a moment there are two tables.
            let len = self.segments.len() as u64;
            let needed = self.segments.in_use() + len + self.table.next_bytes();
            if needed <= self.for_frames() {
                while self.segments.held() + self.table.next_bytes() > self.for_frames()
                    && self.segments.drop_spare()
                {}
                self.ghosts.resize(0);
                let grown = self.table.grow();
                self.fit_ghosts();
                if !grown {
                    return false;
                }
            } else if !self.evict(gone_over) {
                return false;
            }
        }
        true
    }

    fn fit_ghosts(&mut self) {
        let blocks = self.table.bytes() as usize / 8 / 8 * 7;
        self.ghosts.resize(blocks * usize::from(self.gate.rules().ghosts_permille) / 1000);
    }

    /// A frame for a new segment, beside the `others` bytes of a segment that is being evicted.
    fn frame(&mut self, others: usize) -> Option<Frame> {
        let len = self.segments.len();
        self.segments.spare().or_else(|| {
            let fits = self.segments.held() + (len + others) as u64 <= self.for_frames();
            fits.then(|| self.pool.take(len)).flatten()
        })
    }

    /// Puts the records of neighbours together, if a sixteenth of all is garbage; whether that
    /// freed a segment. Records keep their order.
    fn merge(&mut self) -> bool {
        if self.segments.garbage() * 16 < self.segments.in_use() {
            return false;
        }
        let Some(mut run) = self.segments.take_run() else { return false };
        let (counts, ahead, seals) = (&mut self.counts, &self.ahead, &mut self.seals);
        let hidden = run.compact(&mut self.table, |header| {
            seals.evicted(header.key);
            counts.evicted_blocks += 1;
            ahead.useless.fetch_add(u64::from(header.ahead), Ordering::Relaxed);
        });
        let mut parts = run.into_parts().peekable();
        while let Some((id, segment)) = parts.next() {
            let is_last = parts.peek().is_none();
            if is_last {
                self.segments.release(id, segment, true);
            } else {
                self.segments.put_back(id, segment);
            }
            match (hidden, is_last) {
                (true, true) => self.sweep(id),
                (true, false) => self.sweep_unread(id),
                _ => {}
            }
        }
        true
    }

    /// The place that the index names for a key, if that is byte `at` of `segment`.
    fn named(&self, key: u32, segment: u32, at: usize) -> Option<Place> {
        self.table.get(key).filter(|place| place.segment() == segment && place.at() == at)
    }

    /// Evicts the oldest segment of a queue, after `gone_over` segments for the same record.
    /// `false`: there is none.
    fn evict(&mut self, gone_over: &mut u32) -> bool {
        let live = |queue| self.segments.live(queue);
        let live = (live(Queue::Probation), live(Queue::Main));
        let (queue, may_stay) = self.gate.rules().gives_after(*gone_over, live);
        let Some((id, segment)) = self.segments.take_oldest(queue) else { return false };
        let (mut at, mut left) = (0, segment.live());
        while let Some(header) = segment.header(at).filter(|_| left > 0) {
            if let Some(place) = self.named(header.key, id, at) {
                let blocks = self.table.len() as u64;
                let fate = self.gate.leave(segment.queue(), place.hits(), blocks);
                if !may_stay || !self.stays(&segment, at, &header, fate) {
                    self.leaves(&header, fate);
                }
                left -= 1;
            }
            at += header.space();
        }
        *gone_over = gone_over.saturating_add(1);
        if left > 0 {
            self.sweep(id);
        }
        let keep = self.segments.held() + self.segments.len() as u64 <= self.for_frames();
        self.segments.release(id, segment, keep);
        true
    }

    /// Appends a record again, if the rules say so and there is room at the end of its queue;
    /// whether it stays.
    fn stays(&mut self, from: &Segment, at: usize, header: &Header, fate: Fate) -> bool {
        let Fate::Again(queue, hits) = fate else { return false };
        if !self.segments.fits(queue, header.space()) {
            let Some(frame) = self.frame(from.len()) else { return false };
            if !self.segments.open(queue, frame) {
                return false;
            }
        }
        let record = from.bytes(at, header);
        match self.segments.append(queue, record, header) {
            Some((segment, at)) => self.table.set(header.key, Place::new(segment, at, hits)),
            None => false,
        }
    }

    fn leaves(&mut self, header: &Header, fate: Fate) {
        self.table.remove(header.key);
        self.seals.evicted(header.key);
        self.counts.evicted_blocks += 1;
        self.ahead.useless.fetch_add(u64::from(header.ahead), Ordering::Relaxed);
        if fate != Fate::Gone {
            self.ghosts.insert(header.key);
        }
    }

    /// Removes entries of the index that name records in a segment that is gone: damage hid these
    /// from the walk over its records.
    fn sweep(&mut self, segment: u32) {
        while let Some((_, key)) = self.table.seek(0, |_, place| place.segment() == segment) {
            self.table.remove(key);
            self.counts.damaged_copies += 1;
        }
    }

    /// Removes entries of the index that name records in a merged segment where no walk over its
    /// records leads: they are not there, or are still there in the place of another record, and
    /// not counted.
    fn sweep_unread(&mut self, segment: u32) {
        loop {
            let strange = |key: u32, place: Place| {
                place.segment() == segment && !self.segments.leads_to(key, place)
            };
            let Some((_, key)) = self.table.seek(0, strange) else { return };
            self.table.remove(key);
            self.counts.damaged_copies += 1;
        }
    }

    /// Changes the limit, at once.
    pub fn set_limit(&mut self, limit: u64) {
        if limit > self.limit {
            self.gate.widen();
        }
        self.limit = limit;
        if limit == 0 {
            self.forget_all();
        }
        self.segments.set_len(segment_len(limit, self.pool.frame()));
        // The oldest segment goes, however often its records were hit.
        let mut gone_over = u32::MAX;
        while self.used() > limit {
            let sparse = self.table.bytes() > 16 * self.table.len() as u64;
            if sparse && self.table.shrink() {
                self.fit_ghosts();
            } else if !self.segments.drop_spare() && !self.evict(&mut gone_over) {
                // Only the memory that the lists of segments once needed is left.
                if self.segments.in_use() == 0 {
                    self.segments.clear();
                }
                break;
            }
        }
    }

    /// Drops all copies and ghosts. No flight keeps anything.
    pub fn forget_all(&mut self) {
        if !planted::on(Bug::KeepOverFailedFlush) {
            self.flights.end_all();
        }
        self.gate = self.gate.anew();
        self.table = Table::default();
        if !planted::on(Bug::SealOverFailedFlush) {
            self.seals.remove_all(|_| true);
        }
        self.ghosts.resize(0);
        self.segments.clear();
    }

    /// Damages the copy of a block; `false` if there is none.
    pub fn flip(&mut self, key: u32, bit: u32) -> bool {
        self.table.get(key).is_some_and(|place| self.segments.flip(place, bit))
    }

    /// Checks all parts against each other, while nothing is in flight.
    ///
    /// # Errors
    /// What does not agree.
    pub fn audit(&self) -> Result<(), String> {
        for (key, place) in self.table.entries() {
            match self.segments.record(place) {
                Some((header, ..)) if header.key == key => {}
                found => return Err(format!("block {key} is named at {place:?}: {found:?}")),
            }
        }
        if !self.flights.is_empty() {
            return Err("something never ended".into());
        }
        if self.used() > self.limit.max(self.index_bytes()) {
            return Err(format!("{} bytes of {}", self.used(), self.limit));
        }
        self.segments.audit(self.table.len())
    }
}

/// A mask of the first `count` blocks.
pub fn all(count: u64) -> u64 {
    bits(0, count)
}

#[cfg(all(test, not(miri), not(shuttle)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::record::{RECORD_MAX, encode};
    use super::*;
    use crate::BLOCK_SIZE;
    use crate::codec::{Algorithm, Codec};
    use crate::media::Given;
    use std::ops::Range;

    /// For any number of blocks, and also while the index grows.
    #[test]
    fn the_index_takes_at_most_24_bytes_a_block() {
        let pool = Arc::new(Pool::new("test", 1024, SEGMENT_MAX).unwrap());
        let mut shard = Shard::new(Rules::default(), pool, Arc::default(), 32 << 20);
        let (mut codec, mut record) = (Codec::new(Algorithm::Lz4), vec![0; RECORD_MAX]);
        // Two words: as short as records get, so that there are as many as can be.
        let mut block = [0; BLOCK_SIZE];
        let (mut least, mut most) = (u64::MAX, 0);
        for key in 0..400_000u32 {
            block.as_chunks_mut::<8>().0.fill(u64::from(key).to_le_bytes());
            let header =
                encode(&mut codec, (key.into(), key), Given::Plain(&block), false, &mut record)
                    .unwrap();
            let growing = if shard.table.is_full() {
                shard.table.bytes() + shard.table.next_bytes()
            } else {
                0
            };
            shard.keep(&header, &record[..header.record_len()], Came::Missed, None);
            let blocks = shard.blocks();
            if blocks > 2000 {
                let tenths = 10 * shard.index_bytes() / blocks;
                assert!(tenths <= 240 && growing <= 24 * blocks, "{tenths} {growing} {blocks}");
                (least, most) = (least.min(tenths), most.max(tenths));
            }
        }
        assert!(shard.blocks() == 400_000 && most < 180, "{least} to {most} tenths");
        shard.audit().unwrap();
    }

    #[test]
    fn neighbours_with_garbage_are_put_together_before_anything_goes() {
        let pool = Arc::new(Pool::new("test", 1024, SEGMENT_MAX).unwrap());
        let mut shard = Shard::new(Rules::default(), pool, Arc::default(), 1 << 20);
        let (mut codec, mut record) = (Codec::new(Algorithm::Lz4), vec![0; RECORD_MAX]);
        let mut x = 1u64;
        let mut noise = || {
            let mut block = [0; BLOCK_SIZE];
            for word in block.as_chunks_mut::<8>().0 {
                x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(23) + 1;
                *word = x.to_le_bytes();
            }
            block
        };
        // 150 of the 230 that there is room for, each written several times.
        for round in 0..10 {
            for key in (0..150u32).map(|i| i * 7 % 150) {
                shard.begin_write(round, (key.into(), key), 1);
                let (alive, before) = shard.alive(round, key.into());
                assert_eq!(alive, 1);
                let name = (key.into(), key);
                let header =
                    encode(&mut codec, name, Given::Plain(&noise()), false, &mut record).unwrap();
                let record = &record[..header.record_len()];
                shard.keep(&header, record, Came::Written, before.of(0));
                shard.end(round, key.into());
            }
        }
        assert_eq!((shard.blocks(), shard.counts().evicted_blocks), (150, 0));
        shard.audit().unwrap();
        let mut out = vec![0; RECORD_MAX];
        for key in 0..150 {
            let header = shard.hit(key, &mut out).unwrap();
            assert!(header.verify(&out, key.into()), "{key}");
        }
    }

    /// A block of half noise, whose record is shorter than half of a block.
    fn half(key: u32) -> [u8; BLOCK_SIZE] {
        let (mut x, mut block) = (u64::from(key) + 1, [0; BLOCK_SIZE]);
        for word in &mut block.as_chunks_mut::<8>().0[..230] {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(23) + 1;
            *word = x.to_le_bytes();
        }
        block
    }

    fn fill(shard: &mut Shard, keys: Range<u32>) {
        let (mut codec, mut record) = (Codec::new(Algorithm::Lz4), vec![0; RECORD_MAX]);
        for key in keys {
            let header =
                encode(&mut codec, (key.into(), key), Given::Plain(&half(key)), false, &mut record)
                    .unwrap();
            shard.keep(&header, &record[..header.record_len()], Came::Missed, None);
        }
    }

    #[test]
    fn damaged_lengths_are_survived_where_segments_are_put_together() {
        for in_second in [false, true] {
            let pool = Arc::new(Pool::new("test", 1024, SEGMENT_MAX).unwrap());
            let mut shard = Shard::new(Rules::CLOCK, pool, Arc::default(), 1 << 20);
            fill(&mut shard, 0..40);
            let is_in = |key: &u32, segment| shard.place(*key).unwrap().segment() == segment;
            let first = (0..40).filter(|key| is_in(key, 0)).count() as u32;
            assert!(is_in(&(2 * first - 1), 1) && is_in(&(2 * first), 2));
            // The live records fit into one segment, but not if one of them were longer.
            let live = [0..first / 2, first..first + first.div_ceil(2)];
            let dead = [live[0].end..first, live[1].end..2 * first];
            dead.into_iter().flatten().for_each(|key| assert!(shard.forget(key).is_some()));
            let damaged = live[usize::from(in_second)].end - 1;
            let before = shard.blocks();
            // 2048 bytes more.
            assert!(shard.flip(damaged, 13 * 8 + 3));
            assert!(shard.merge());
            shard.audit().unwrap();
            // The one that finds no room counts as evicted.
            let CacheCounts { damaged_copies, evicted_blocks, .. } = shard.counts();
            assert_eq!((damaged_copies + evicted_blocks, shard.blocks()), (1, before - 1));
            let mut out = vec![0; RECORD_MAX];
            let mut is_sound = |key: &u32| {
                let found = shard.hit(*key, &mut out);
                found.is_some_and(|header| header.verify(&out, u64::from(*key)))
            };
            // A longer record of the first segment has taken the room of the last record.
            let lost = if in_second { vec![damaged] } else { vec![damaged, live[1].end - 1] };
            let all = live.into_iter().flatten();
            assert_eq!(all.filter(|key| !is_sound(key)).collect::<Vec<u32>>(), lost);
        }
    }

    /// A fifth of each segment has died, so five neighbours have the records of four.
    #[test]
    fn many_segments_are_put_together_in_one_less() {
        let pool = Arc::new(Pool::new("test", 1024, SEGMENT_MAX).unwrap());
        let mut shard = Shard::new(Rules::CLOCK, pool, Arc::default(), 4 << 20);
        fill(&mut shard, 0..1000);
        let segments = |shard: &Shard| shard.segments.in_use() / shard.segments.len() as u64;
        for key in (0..1000).filter(|key| key % 9 < 2) {
            assert!(shard.forget(key).is_some());
        }
        let (before, mut merges) = (segments(&shard), 0);
        while shard.merge() {
            merges += 1;
            shard.audit().unwrap();
        }
        assert!(merges > before / 12, "{merges} of {before}");
        assert_eq!(segments(&shard), before - merges);
        let mut out = vec![0; RECORD_MAX];
        for key in (0..1000).filter(|key| key % 9 >= 2) {
            let header = shard.hit(key, &mut out);
            assert!(header.is_some_and(|header| header.verify(&out, u64::from(key))), "{key}");
        }
        assert_eq!(shard.counts().evicted_blocks, 0);
    }

    #[test]
    fn what_a_damaged_length_covers_is_not_there() {
        let pool = Arc::new(Pool::new("test", 1024, SEGMENT_MAX).unwrap());
        let mut shard = Shard::new(Rules::CLOCK, pool, Arc::default(), 1 << 20);
        fill(&mut shard, 0..40);
        let first = (0..40).filter(|key| shard.place(*key).unwrap().segment() == 0).count() as u32;
        let dead = (first / 2..first).chain(first + first.div_ceil(2)..2 * first);
        dead.for_each(|key| assert!(shard.forget(key).is_some()));
        // 2048 bytes more: the record now covers the next one, which stays where it is.
        assert!(shard.flip(0, 13 * 8 + 3));
        assert!(shard.merge());
        shard.audit().unwrap();
        assert!(!shard.has(1) && shard.has(first));
        // Nothing is counted twice when it goes.
        for key in 0..40 {
            shard.forget(key);
        }
        shard.audit().unwrap();
    }

    /// The lists of a thousand segments take more than the reduced limit.
    #[test]
    fn after_a_large_reduction_it_still_keeps_something() {
        let pool = Arc::new(Pool::new("test", 2048, SEGMENT_MAX).unwrap());
        let mut shard = Shard::new(Rules::default(), pool, Arc::default(), 64 << 20);
        fill(&mut shard, 0..40_000);
        assert!(shard.segments.table_bytes() > 48 << 10, "{}", shard.segments.table_bytes());
        shard.set_limit(48 << 10);
        assert!(shard.used() <= 48 << 10, "{}", shard.used());
        fill(&mut shard, 0..100);
        assert!(shard.has(99) && shard.used() <= 48 << 10, "{} blocks", shard.blocks());
        shard.audit().unwrap();
    }

    #[test]
    fn where_there_are_no_more_frames_the_oldest_go() {
        let pool = Arc::new(Pool::new("test", 6, SEGMENT_MAX).unwrap());
        let mut shard = Shard::new(Rules::default(), pool, Arc::default(), 8 << 20);
        fill(&mut shard, 0..2000);
        assert!(
            shard.blocks() > 100 && shard.counts().evicted_blocks > 1000,
            "{:?}",
            shard.counts()
        );
        assert!((1950..2000).all(|key| shard.has(key)), "the newest are there");
        shard.audit().unwrap();
        // As soon as there are more frames, the shard grows.
        shard.pool = Arc::new(Pool::new("test", 1024, SEGMENT_MAX).unwrap());
        fill(&mut shard, 2000..4000);
        assert!((2000..4000).all(|key| shard.has(key)), "{:?}", shard.counts());
        shard.audit().unwrap();
    }
}

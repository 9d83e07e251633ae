//! The memory of a shard: segments of records, in two queues.
//!
//! Invariants: records lie side by side from the begin of a segment up to `used`; the open segment,
//! which takes new records, is the last of its queue; the live records of a segment are those that
//! the index names in it.

use super::policy::Queue;
use super::record::{self, Header};
use super::run::{self, Run};
use super::segment::Segment;
use super::table::{Place, SEGMENTS_MAX};
use crate::media::Frame;
use std::collections::VecDeque;

/// All segments of a shard.
#[derive(Debug)]
pub struct Segments {
    all: Vec<Option<Segment>>,
    free: Vec<u32>,
    /// The numbers of the segments in each queue, oldest first.
    queues: [VecDeque<u32>; 2],
    open: [Option<u32>; 2],
    /// Frames without a segment, all of them of `len` bytes.
    spare: Vec<Frame>,
    len: usize,
    in_use: u64,
    used: u64,
    live: [u64; 2],
}

impl Segments {
    /// No segments; new ones get `len` bytes.
    pub fn new(len: usize) -> Self {
        Self {
            all: Vec::new(),
            free: Vec::new(),
            queues: Default::default(),
            open: [None; 2],
            spare: Vec::new(),
            len,
            in_use: 0,
            used: 0,
            live: [0; 2],
        }
    }

    /// Bytes of a new segment.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Changes the bytes of a new segment. Spare frames go back to the machine.
    pub fn set_len(&mut self, len: usize) {
        self.len = len;
        self.spare.clear();
    }

    /// Bytes of all segments.
    pub fn in_use(&self) -> u64 {
        self.in_use
    }

    /// Bytes of all segments and of spare frames.
    pub fn held(&self) -> u64 {
        self.in_use + (self.spare.len() * self.len) as u64
    }

    /// Bytes of the tables.
    pub fn table_bytes(&self) -> u64 {
        let ids = self.free.capacity() + self.queues.iter().map(VecDeque::capacity).sum::<usize>();
        let segments = self.all.capacity() * size_of::<Option<Segment>>();
        let spare = self.spare.capacity() * size_of::<Frame>();
        (segments + spare + ids * size_of::<u32>()) as u64
    }

    /// Bytes of live records in a queue.
    pub fn live(&self, queue: Queue) -> u64 {
        self.live[queue as usize]
    }

    /// Bytes of dead records: the index does not name them any more.
    pub fn garbage(&self) -> u64 {
        self.used - self.live.iter().sum::<u64>()
    }

    /// Whether the open segment of a queue has room for `space` bytes.
    pub fn fits(&self, queue: Queue, space: usize) -> bool {
        self.open_of(queue).is_some_and(|segment| segment.fits(space))
    }

    fn open_of(&self, queue: Queue) -> Option<&Segment> {
        let id = self.open[queue as usize]?;
        self.all[id as usize].as_ref()
    }

    /// Takes a spare frame.
    pub fn spare(&mut self) -> Option<Frame> {
        self.spare.pop()
    }

    /// Gives a spare frame back to the machine; `false` if there is none.
    pub fn drop_spare(&mut self) -> bool {
        self.spare.pop().is_some()
    }

    /// Keeps a frame as a spare one if `keep` and its size allow that, else gives it back to the
    /// machine.
    pub fn keep(&mut self, frame: Frame, keep: bool) {
        if keep && frame.bytes().len() == self.len && self.spare.try_reserve(1).is_ok() {
            self.spare.push(frame);
        }
    }

    /// Opens a segment at the end of a queue; `false` if there is no number or no memory for it.
    pub fn open(&mut self, queue: Queue, frame: Frame) -> bool {
        let reserved = self.queues[queue as usize].try_reserve(1).is_ok()
            && self.all.try_reserve(1).is_ok()
            && self.free.try_reserve(1).is_ok();
        let id = match self.free.pop() {
            _ if !reserved => None,
            Some(id) => Some(id),
            None if (self.all.len() as u32) < SEGMENTS_MAX => {
                self.all.push(None);
                Some(self.all.len() as u32 - 1)
            }
            None => None,
        };
        let Some(id) = id else {
            self.keep(frame, true);
            return false;
        };
        self.in_use += frame.bytes().len() as u64;
        let segment = Segment { frame, used: 0, live: 0, live_bytes: 0, queue };
        self.all[id as usize] = Some(segment);
        self.queues[queue as usize].push_back(id);
        self.open[queue as usize] = Some(id);
        true
    }

    /// Appends a record to the open segment of a queue, which has room for it; returns its place.
    pub fn append(&mut self, queue: Queue, record: &[u8], header: &Header) -> Option<(u32, usize)> {
        let id = self.open[queue as usize]?;
        let segment = self.all[id as usize].as_mut()?;
        let at = segment.append(record, header);
        self.used += header.space() as u64;
        self.live[queue as usize] += header.space() as u64;
        Some((id, at))
    }

    /// The record at a place, with its header and queue, if there can be one.
    pub fn record(&self, place: Place) -> Option<(Header, &[u8], Queue)> {
        let segment = self.all.get(place.segment() as usize)?.as_ref()?;
        let header = segment.header(place.at())?;
        Some((header, segment.bytes(place.at(), &header), segment.queue))
    }

    /// Whether a walk over the records of a segment reaches one of `key` at this place.
    pub fn leads_to(&self, key: u32, place: Place) -> bool {
        let Some(Some(segment)) = self.all.get(place.segment() as usize) else { return false };
        let mut at = 0;
        while let Some(header) = segment.header(at).filter(|_| at < place.at()) {
            at += header.space();
        }
        at == place.at() && segment.header(at).is_some_and(|header| header.key == key)
    }

    /// Notes in the record at a place that its block was requested.
    pub fn asked_for(&mut self, place: Place) {
        if let Some(Some(segment)) = self.all.get_mut(place.segment() as usize) {
            record::asked_for(&mut segment.frame.bytes_mut()[place.at()..]);
        }
    }

    /// Notes in the record at a place how often its block was given; see [`Header::given`].
    pub fn note_given(&mut self, place: Place, given: u8) {
        if let Some(Some(segment)) = self.all.get_mut(place.segment() as usize) {
            record::note_given(&mut segment.frame.bytes_mut()[place.at()..], given);
        }
    }

    /// The index does not name a record any more: counts it as dead. Returns its queue.
    pub fn died(&mut self, place: Place) -> Option<Queue> {
        let segment = self.all.get_mut(place.segment() as usize)?.as_mut()?;
        // A damaged header may say another length: then the counts are off until the segment goes.
        let space = segment.header(place.at()).map_or(0, |header| header.space());
        let space = space.min(segment.live_bytes);
        segment.live -= 1;
        segment.live_bytes -= space;
        self.live[segment.queue as usize] -= space as u64;
        Some(segment.queue)
    }

    /// Takes the oldest segment out of a queue: of `asked` if that has more than one, else of the
    /// other if that has, else the only one. Its number stays taken.
    pub fn take_oldest(&mut self, asked: Queue) -> Option<(u32, Segment)> {
        let other = if asked == Queue::Main { Queue::Probation } else { Queue::Main };
        let of = |queue: Queue| self.queues[queue as usize].len();
        let closed = [asked, other].into_iter().find(|queue| of(*queue) > 1);
        let queue = closed.or([asked, other].into_iter().find(|queue| of(*queue) > 0))?;
        let id = self.queues[queue as usize].pop_front()?;
        if self.open[queue as usize] == Some(id) {
            self.open[queue as usize] = None;
        }
        self.take(id).map(|segment| (id, segment))
    }

    fn take(&mut self, id: u32) -> Option<Segment> {
        let segment = self.all[id as usize].take()?;
        self.in_use -= segment.frame.bytes().len() as u64;
        self.used -= segment.used as u64;
        self.live[segment.queue as usize] -= segment.live_bytes as u64;
        Some(segment)
    }

    /// Frees the number of a segment that was taken out. Its frame becomes a spare one if `keep`.
    pub fn release(&mut self, id: u32, segment: Segment, keep: bool) {
        self.free.push(id);
        self.keep(segment.frame, keep);
    }

    /// Takes out neighbours of a queue whose live records fit into one segment less, about: as few
    /// as possible, and of these the ones with the fewest bytes to move.
    pub fn take_run(&mut self) -> Option<Run> {
        let (queue, first, count) = (2..=run::MOST).find_map(|count| {
            let least = |queue| self.least_run(queue, count).map(|(live, at)| (live, queue, at));
            let (_, queue, at) = [Queue::Probation, Queue::Main]
                .into_iter()
                .filter_map(least)
                .min_by_key(|l| l.0)?;
            Some((queue, at, count))
        })?;
        let mut run = Run::default();
        for at in first..first + count {
            let id = self.queues[queue as usize][at];
            run.push((id, self.take(id)?));
        }
        self.queues[queue as usize].remove(first + count - 1);
        Some(run)
    }

    /// Of all runs of `count` closed segments of a queue that fit into one less, the live bytes and
    /// the begin of the one with the fewest; of equal ones, the oldest. Each step adds a segment to
    /// the sums of the run and takes one away: requests wait for this.
    fn least_run(&self, queue: Queue, count: usize) -> Option<(usize, usize)> {
        let ids = &self.queues[queue as usize];
        let closed = ids.len().saturating_sub(usize::from(self.open[queue as usize].is_some()));
        let part = |at: usize| self.all[ids[at] as usize].as_ref();
        let (mut live, mut records, mut room) = (0, 0, 0);
        let mut least: Option<(usize, usize)> = None;
        for (last, ending) in (0..closed).map(|at| (at, part(at))) {
            live += ending.map_or(0, |part| part.live_bytes);
            records += ending.map_or(0, |part| part.live as usize);
            if let Some(first) = (last + 1).checked_sub(count) {
                // At the end of each but the last, half a record finds no room, on average.
                let waste = (count - 2) * live / (2 * records).max(1);
                if live + waste <= room && least.is_none_or(|(fewest, _)| live < fewest) {
                    least = Some((live, first));
                }
                let beginning = part(first);
                live -= beginning.map_or(0, |part| part.live_bytes);
                records -= beginning.map_or(0, |part| part.live as usize);
                room -= beginning.map_or(0, Segment::len);
            }
            room += ending.map_or(0, Segment::len);
        }
        least
    }

    /// Puts a segment back that kept its place.
    pub fn put_back(&mut self, id: u32, segment: Segment) {
        self.in_use += segment.frame.bytes().len() as u64;
        self.used += segment.used as u64;
        self.live[segment.queue as usize] += segment.live_bytes as u64;
        self.all[id as usize] = Some(segment);
    }

    /// Gives everything back to the machine.
    pub fn clear(&mut self) {
        *self = Self::new(self.len);
    }

    /// Flips a bit of the record at a place, to damage it; `false` if there is none.
    pub fn flip(&mut self, place: Place, bit: u32) -> bool {
        let Some(Some(segment)) = self.all.get_mut(place.segment() as usize) else { return false };
        let Some(header) = segment.header(place.at()) else { return false };
        let bit = bit as usize % (header.record_len() * 8);
        segment.frame.bytes_mut()[place.at() + bit / 8] ^= 1 << (bit % 8);
        true
    }

    /// Compares the counters with the segments: bytes in use, bytes used, live records.
    ///
    /// # Errors
    /// What does not agree.
    pub fn audit(&self, live_records: usize) -> Result<(), String> {
        let all = || self.all.iter().flatten();
        let in_use: u64 = all().map(|s| s.frame.bytes().len() as u64).sum();
        let used: u64 = all().map(|s| s.used as u64).sum();
        let live: usize = all().map(|s| s.live as usize).sum();
        let queued = self.queues.iter().map(VecDeque::len).sum::<usize>();
        let agrees = (in_use, used, live) == (self.in_use, self.used, live_records)
            && all().count() == queued
            && queued + self.free.len() == self.all.len();
        let found = format!("{in_use} {used} {live} in {queued} of {}", self.all.len());
        agrees.then_some(()).ok_or_else(|| {
            format!("segments: {found}, counted {} {} {live_records}", self.in_use, self.used)
        })
    }
}

#[cfg(all(test, not(miri), not(shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::table::SEGMENT_MAX;
    use super::*;
    use crate::media::Pool;

    /// As [`Segments::least_run`], by looking at each run anew.
    fn least_run(segments: &Segments, queue: Queue, count: usize) -> Option<(usize, usize)> {
        let ids = &segments.queues[queue as usize];
        let closed = ids.len() - usize::from(segments.open[queue as usize].is_some());
        let run = |first: usize| {
            let part = |at: usize| segments.all[ids[at] as usize].as_ref().unwrap();
            let parts = || (first..first + count).map(part);
            let live: usize = parts().map(|part| part.live_bytes).sum();
            let records: usize = parts().map(|part| part.live as usize).sum();
            let room: usize = parts().take(count - 1).map(Segment::len).sum();
            let waste = (count - 2) * live / (2 * records).max(1);
            (live + waste <= room).then_some((live, first))
        };
        (0..(closed + 1).saturating_sub(count)).filter_map(run).min()
    }

    #[test]
    fn the_run_with_the_fewest_bytes_is_found() {
        let pool = Pool::new("test", 64, SEGMENT_MAX).unwrap();
        let mut x = 1u64;
        let mut random = |most: usize| {
            x = x.wrapping_mul(0x5851_f42d_4c95_7f2d).rotate_left(23) + 1;
            (x >> 32) as usize % most
        };
        let (mut found, mut none) = (0, 0);
        for round in 0..300 {
            let mut segments = Segments::new(SEGMENT_MAX);
            // Few values, so that runs are alike; or nearly full ones.
            let (count, step) = (random(30), [1, 100, SEGMENT_MAX / 8][round % 3]);
            for _ in 0..count {
                let len = SEGMENT_MAX >> random(3);
                let queue = [Queue::Probation, Queue::Main][random(2)];
                assert!(segments.open(queue, pool.take(len).unwrap()));
                let id = segments.open[queue as usize].unwrap();
                let segment = segments.all[id as usize].as_mut().unwrap();
                let part = 1 + random(20);
                let dead = random(len / part);
                segment.live_bytes = (len - dead) / step * step;
                segment.live = (segment.live_bytes / (32 + random(4000))) as u32;
                if random(4) == 0 {
                    segments.open[queue as usize] = None;
                }
            }
            for queue in [Queue::Probation, Queue::Main] {
                for count in 2..=run::MOST {
                    let expected = least_run(&segments, queue, count);
                    assert_eq!(segments.least_run(queue, count), expected, "{round} {count}");
                    *if expected.is_some() { &mut found } else { &mut none } += 1;
                }
            }
        }
        assert!(found > 500 && none > 500, "{found} {none}");
    }
}

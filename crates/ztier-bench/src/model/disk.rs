//! A rotating disk: a queue, a volatile write cache, and one arm.
//!
//! Reads and writes arrive in a queue, of which the drive knows the first 32. A write completes as
//! soon as the cache has room for it. The arm takes the request that it reaches first (seek,
//! settling and rotation together): reads before writes of the cache, unless the cache is nearly
//! full or a flush waits. After a read the arm reads ahead.
//!
//! Invariants: a flush is a barrier in the queue, as on SATA: later requests wait for it, and it
//! completes when all earlier ones are done and the cache is empty; flushes that arrive meanwhile
//! have nothing newer to flush and complete with it. Waiting raises a request's priority, so none
//! waits for ever.

use super::geometry::{Geometry, Place};
use super::params::DiskParams;
use super::{Done, Nanos, Request, Ticket, transfer};
use std::collections::VecDeque;

/// Limit in bytes on a write that joins neighbours in the cache.
const JOINED_MAX: u64 = 1 << 20;

/// A byte range on the medium.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Extent {
    at: u64,
    len: u64,
}

impl Extent {
    fn end(self) -> u64 {
        self.at + self.len
    }

    fn contains(self, other: Self) -> bool {
        self.at <= other.at && other.end() <= self.end()
    }
}

/// A request in the queue.
#[derive(Clone, Copy, Debug)]
struct Waiting {
    ticket: Ticket,
    request: Request,
    since: Nanos,
}

/// Writes in the cache that go to the medium as one write.
#[derive(Clone, Copy, Debug)]
struct Dirty {
    extent: Extent,
    since: Nanos,
}

/// The last action of the arm.
#[derive(Debug)]
struct Arm {
    /// Time at which the action ends.
    free: Nanos,
    /// Track on which the action ended.
    track: u64,
    /// The byte after the action.
    end: u64,
    /// Whether the action was a read, so that the drive reads ahead.
    read: bool,
}

/// A possible next action of the arm.
#[derive(Clone, Copy, Debug)]
enum Candidate {
    /// A request in the queue, by position.
    Waiting(usize),
    /// A write in the cache, by position.
    Dirty(usize),
}

/// The state machine.
#[derive(Debug)]
pub struct Disk {
    p: DiskParams,
    geometry: Geometry,
    /// Time of the latest event.
    clock: Nanos,
    link_free: Nanos,
    arm: Arm,
    /// Requests that have neither completed nor been taken by the arm or the cache, in order of
    /// arrival.
    waiting: VecDeque<Waiting>,
    /// Flushes that complete with the one in the queue.
    joined: Vec<Ticket>,
    /// Time until which a flush delays later requests.
    flushed: Nanos,
    /// Writes in the cache that the arm has not begun, in order of arrival.
    dirty: VecDeque<Dirty>,
    /// Bytes of the cache in use, including those that the arm is writing.
    cached: u64,
    /// Bytes that the arm is writing from the cache.
    writing: u64,
}

impl Disk {
    /// An idle disk with its arm at the outer edge.
    pub fn new(p: DiskParams) -> Self {
        Self {
            geometry: Geometry::new(&p),
            p,
            clock: 0,
            link_free: 0,
            arm: Arm { free: 0, track: 0, end: 0, read: false },
            waiting: VecDeque::new(),
            joined: Vec::new(),
            flushed: 0,
            dirty: VecDeque::new(),
            cached: 0,
            writing: 0,
        }
    }

    /// As [`super::Model::submit`].
    pub fn submit(&mut self, now: Nanos, ticket: Ticket, request: Request, done: &mut Vec<Done>) {
        self.advance(now, done);
        self.clock = self.clock.max(now);
        if request == Request::Flush && self.flush_waits() {
            self.joined.push(ticket);
        } else if request == Request::Flush && self.clock < self.flushed {
            done.push((ticket, self.flushed));
        } else {
            self.waiting.push_back(Waiting { ticket, request, since: self.clock });
        }
        self.admit(done);
        self.advance(now, done);
    }

    /// As [`super::Model::advance`].
    pub fn advance(&mut self, now: Nanos, done: &mut Vec<Done>) {
        loop {
            let time = self.arm.free.max(self.clock);
            if time > now {
                return;
            }
            self.clock = time;
            self.cached -= std::mem::take(&mut self.writing);
            self.admit(done);
            let Some(candidate) = self.pick() else { return };
            self.perform(candidate, done);
        }
    }

    /// As [`super::Model::next`].
    pub fn next(&self) -> Option<Nanos> {
        (!self.waiting.is_empty()).then_some(self.arm.free.max(self.clock))
    }

    fn flush_waits(&self) -> bool {
        self.waiting.iter().any(|waiting| waiting.request == Request::Flush)
    }

    /// Number of requests that the drive knows: those before a flush, up to the queue's size.
    fn known(&self) -> usize {
        let queue = self.waiting.iter().take(self.p.queue);
        queue.take_while(|waiting| waiting.request != Request::Flush).count()
    }

    /// Takes all that needs no arm, as far as possible now: writes into the cache, reads from the
    /// cache, a flush with nothing before it.
    fn admit(&mut self, done: &mut Vec<Done>) {
        let mut position = 0;
        while position < self.known() {
            let Waiting { ticket, request, .. } = self.waiting[position];
            let at = match request {
                Request::Write { at, len } => self.cache(Extent { at, len }),
                Request::Read { at, len } => self.cached_read(Extent { at, len }),
                Request::Zero { .. } | Request::Flush => None,
            };
            if let Some(at) = at {
                done.push((ticket, at));
                self.waiting.remove(position);
            } else {
                position += 1;
            }
        }
        let Some(&Waiting { ticket, request: Request::Flush, .. }) = self.waiting.front() else {
            return;
        };
        if self.cached == 0 && self.arm.free <= self.clock {
            self.flushed = self.clock.max(self.link_free) + self.p.command;
            self.link_free = self.flushed;
            self.waiting.pop_front();
            done.extend(self.joined.drain(..).chain([ticket]).map(|ticket| (ticket, self.flushed)));
            self.admit(done);
        }
    }

    /// Takes a write into the cache; returns when it completes, or `None` without room.
    fn cache(&mut self, new: Extent) -> Option<Nanos> {
        if self.cached > 0 && self.cached + new.len > self.p.cache {
            return None;
        }
        if !self.dirty.iter().any(|old| old.extent.contains(new)) {
            self.cached += new.len;
            match self.dirty.back_mut() {
                Some(Dirty { extent: last, .. })
                    if last.end() == new.at && last.len + new.len <= JOINED_MAX =>
                {
                    last.len += new.len;
                }
                _ => self.dirty.push_back(Dirty { extent: new, since: self.clock }),
            }
        }
        Some(self.link(self.clock, new.len))
    }

    /// When a read completes that the write cache holds completely; `None` otherwise.
    fn cached_read(&mut self, wanted: Extent) -> Option<Nanos> {
        let hit = self.dirty.iter().any(|old| old.extent.contains(wanted));
        hit.then(|| self.link(self.clock, wanted.len))
    }

    /// The link carries a command and its data; returns when that ends.
    fn link(&mut self, now: Nanos, len: u64) -> Nanos {
        let start = now.max(self.link_free);
        self.link_free = start + self.p.command + transfer(len, self.p.link);
        self.link_free
    }

    /// The next action of the arm: the one that it reaches first, less a bonus for waiting.
    fn pick(&self) -> Option<Candidate> {
        // Writes that are still in the queue wait for room.
        let in_queue = (0..self.known())
            .filter(|&n| !matches!(self.waiting[n].request, Request::Write { .. }))
            .map(Candidate::Waiting);
        let pressed = self.cached > self.p.cache / 4 * 3 || self.flush_waits();
        let cache_too = pressed || in_queue.clone().next().is_none();
        let window = if cache_too { self.dirty.len().min(self.p.queue) } else { 0 };
        // Writes in the cache have completed already: only their order counts.
        let youngest = self.dirty.get(window.saturating_sub(1)).map_or(0, |dirty| dirty.since);
        let from_cache = (0..window).map(Candidate::Dirty);
        in_queue.chain(from_cache).min_by_key(|&candidate| {
            let waited = match candidate {
                Candidate::Waiting(n) => self.clock - self.waiting[n].since,
                Candidate::Dirty(n) => youngest - self.dirty[n].since,
            };
            self.reach(candidate).0.cast_signed() - (waited / self.p.aging).cast_signed()
        })
    }

    fn extent(&self, candidate: Candidate) -> (Extent, bool) {
        match candidate {
            Candidate::Dirty(n) => (self.dirty[n].extent, true),
            Candidate::Waiting(n) => match self.waiting[n].request {
                Request::Read { at, len } => (Extent { at, len }, false),
                Request::Zero { at, len } | Request::Write { at, len } => {
                    (Extent { at, len }, true)
                }
                Request::Flush => (Extent { at: self.arm.end, len: 0 }, false),
            },
        }
    }

    /// How long from now until the arm can begin `candidate`, and when that is. The begin is in the
    /// past if the data is in the range being read ahead.
    fn reach(&self, candidate: Candidate) -> (Nanos, Nanos) {
        let (extent, write) = self.extent(candidate);
        let now = self.clock;
        let place = self.geometry.place(extent.at);
        let follows = extent.at == self.arm.end;
        let streams = follows && now == self.arm.free && write != self.arm.read;
        let start = if streams { now } else { now + self.p.decide };
        let there = start + self.geometry.seek(self.arm.track, place.track, write);
        let mut begin = there + self.geometry.rotation(there, place);
        if !write && let Some(ahead) = self.comes_by(extent.at, place) {
            begin = begin.min(ahead);
        }
        (begin.saturating_sub(now), begin)
    }

    /// When a byte passes the head, if the arm reads on from its place.
    fn comes_by(&self, at: u64, place: Place) -> Option<Nanos> {
        let gap = at.checked_sub(self.arm.end)?;
        if !self.arm.read || gap >= self.p.ahead {
            return None;
        }
        let (time, track) = self.geometry.transfer(self.arm.end, gap);
        // The arm stops when it has read enough.
        let kept = (self.p.ahead - gap) * self.p.turn / place.bytes;
        let there = (self.arm.free + time).max(self.clock.saturating_sub(kept));
        Some(there + self.geometry.seek(track, place.track, false))
    }

    /// Moves the arm to `candidate` and transfers.
    fn perform(&mut self, candidate: Candidate, done: &mut Vec<Done>) {
        let (extent, write) = self.extent(candidate);
        let (_, begin) = self.reach(candidate);
        let (time, track) = self.geometry.transfer(extent.at, extent.len);
        self.arm = Arm { free: begin + time, track, end: extent.end(), read: !write };
        match candidate {
            Candidate::Dirty(n) => {
                self.dirty.remove(n);
                self.writing = extent.len;
            }
            Candidate::Waiting(n) => {
                if let Some(Waiting { ticket, request, .. }) = self.waiting.remove(n) {
                    let data = if matches!(request, Request::Read { .. }) { extent.len } else { 0 };
                    // The link transfers while the medium is read, so only its lag counts.
                    let link = self.link(self.clock, data);
                    done.push((ticket, link.max(self.arm.free + self.p.command)));
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::HDD_7200;
    use super::super::{Kind, Model};
    use super::*;
    use crate::data::Rng;

    const US: Nanos = 1_000;
    const MS: Nanos = 1_000_000;
    const GIB: u64 = 1 << 30;
    const TURN: Nanos = HDD_7200.turn;

    fn model() -> Model {
        Model::new(Kind::Hdd7200.into())
    }

    fn read(at: u64) -> Request {
        Request::Read { at, len: 4096 }
    }

    fn write(at: u64) -> Request {
        Request::Write { at, len: 4096 }
    }

    /// Advances time until every request is decided.
    fn finish(model: &mut Model, done: &mut Vec<Done>) {
        while let Some(next) = model.next() {
            model.advance(next, done);
        }
    }

    #[test]
    fn a_read_elsewhere_takes_a_seek_and_on_average_half_a_turn() {
        let (mut model, mut rng) = (model(), Rng::new(1));
        let (mut now, mut sum) = (0, 0);
        for _ in 0..2000 {
            let end = model.serve(now, read(rng.below(HDD_7200.capacity / 4096) * 4096));
            assert!(end - now < HDD_7200.seek_full + TURN + MS, "{}", end - now);
            sum += end - now;
            now = end + 100 * US;
        }
        // Manual: 11 ms of seek, 4.17 ms of latency.
        let mean = sum / 2000;
        assert!((14 * MS..17 * MS).contains(&mean), "{mean}");
    }

    #[test]
    fn reads_in_order_stream_and_are_read_ahead() {
        let mut model = model();
        let len = 1 << 20;
        let mut now = model.serve(0, Request::Read { at: 0, len });
        let start = now;
        for n in 1..100 {
            // The host needs some time, but less than the medium.
            now = model.serve(now + 200 * US, Request::Read { at: n * len, len });
        }
        let rate = 99 * len * 1000 / ((now - start) / MS);
        assert!((99_000_000..101_000_000).contains(&rate), "{rate}");
        let idle = now + 100 * MS;
        assert!(model.serve(idle, read(100 * len)) - idle < 100 * US, "from the cache");
        // A little further on, where the drive has read, too.
        let idle = idle + MS;
        let past = model.serve(idle, read(100 * len + len / 2)) - idle;
        assert!(past < 100 * US, "over a gap: {past}");
        let late = model.serve(idle, read(50 * len)) - idle;
        assert!(late > MS, "elsewhere: {late}");
    }

    #[test]
    fn a_write_completes_in_the_cache_and_a_flush_on_the_medium() {
        let mut model = model();
        let first = model.serve(0, write(10 * GIB));
        assert!(first < 100 * US);
        let flushed = model.serve(first, Request::Flush);
        assert!((2 * MS..30 * MS).contains(&(flushed - first)), "{}", flushed - first);
        let again = model.serve(flushed + 1, Request::Flush);
        assert!(again - flushed < MS, "nothing to do");
        // The next block comes just too late, so the disk needs another turn.
        let next = model.serve(again, write(10 * GIB + 4096));
        let turn = model.serve(next, Request::Flush) - flushed;
        assert!(turn.abs_diff(TURN) < MS / 2, "{turn}");
    }

    #[test]
    fn a_flush_is_a_barrier_that_others_join() {
        let (mut model, mut done) = (model(), Vec::new());
        for (ticket, request) in
            [write(GIB), Request::Flush, write(0), read(2 * GIB), Request::Flush]
                .into_iter()
                .enumerate()
        {
            model.submit(0, ticket as Ticket, request, &mut done);
        }
        finish(&mut model, &mut done);
        done.sort_unstable();
        let at: Vec<Nanos> = done.iter().map(|&(_, at)| at).collect();
        assert_eq!(at.len(), 5);
        assert!(at[0] < MS && at[1] > 2 * MS && at[4] == at[1], "{at:?}");
        assert!(at[2] > at[1] && at[3] > at[1], "{at:?}");
    }

    #[test]
    fn writes_wait_for_room_and_reads_come_first() {
        let (mut model, mut done) = (model(), Vec::new());
        let full = HDD_7200.cache / 4096;
        for ticket in 0..full + 8 {
            model.submit(0, ticket, write(ticket * 977 % (4 << 20) * 4096), &mut done);
        }
        assert_eq!(done.len() as u64, full, "the first is on its way, but its room is not free");
        let last = done.iter().map(|d| d.1).max().unwrap_or(0);
        assert!(last < 400 * MS, "the link alone: {last}");
        let mut quiet = self::model();
        quiet.submit(0, 0, write(10 * GIB), &mut done);
        quiet.submit(0, 1, write(10 * GIB + 4096 * 5000), &mut done);
        assert!(quiet.serve(0, read(20 * GIB)) < 60 * MS);
    }

    #[test]
    fn reads_and_writes_of_all_kinds_end_in_bounded_time_and_the_same_each_time() {
        let run = || {
            let (mut model, mut done, mut rng) = (model(), Vec::new(), Rng::new(3));
            let mut begun = Vec::new();
            let mut now = 0;
            for ticket in 0..5000 {
                now += rng.below(20 * MS);
                let at = rng.below(1 << 22) * 4096;
                let request = match rng.below(20) {
                    0 => Request::Flush,
                    1 => Request::Zero { at, len: 1 << 20 },
                    2..8 => read(at),
                    _ => write(at),
                };
                begun.push(now);
                model.submit(now, ticket, request, &mut done);
            }
            finish(&mut model, &mut done);
            done.sort_unstable();
            assert!(done.iter().map(|d| d.0).eq(0..5000), "each once");
            for &(ticket, end) in &done {
                let took = end.checked_sub(begun[ticket as usize]);
                assert!(took.is_some_and(|took| took < 10_000 * MS), "{ticket}: {took:?}");
            }
            done
        };
        assert_eq!(run(), run());
    }

    #[test]
    fn the_oldest_is_not_passed_over_for_ever() {
        let (mut model, mut done, mut rng) = (model(), Vec::new(), Rng::new(4));
        // A distant request among many that are near each other and keep coming.
        model.submit(0, Ticket::MAX, read(0), &mut done);
        model.submit(0, 0, read(400 * GIB), &mut done);
        let mut next = 1;
        for _ in 0..40 {
            model.submit(0, next, read(rng.below(1 << 15) * 4096), &mut done);
            next += 1;
        }
        while done.iter().all(|d| d.0 != 0) {
            let time = model.next().unwrap_or(0);
            let before = done.len();
            model.advance(time, &mut done);
            for _ in before..done.len() {
                model.submit(time, next, read(rng.below(1 << 15) * 4096), &mut done);
                next += 1;
            }
            assert!(next < 3000, "passed over");
        }
        assert!(next > 100, "it is far away: {next}");
    }
}

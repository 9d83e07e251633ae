//! Flash with a controller, as an SSD, an eMMC or an SD card: a link, a write buffer, and dies that
//! work in parallel.
//!
//! A write occupies the link, completes when it is in the buffer, and is programmed from there in
//! pieces, on each die in turn; without a volatile cache it completes when it is programmed. A read
//! occupies its die, its channel and the link. Overwriting costs erasing, and cleaning: by a
//! formula where pages are mapped, and by what [`Units`] count where allocation units are. The
//! completion time of each request is known when it arrives.
//!
//! Invariants: the link serves commands in order of arrival, and a command waits while the queue is
//! full. A flush is not queued, as on SATA: later requests wait for it, and flushes that arrive
//! before it ends have nothing newer to flush and complete with it.

use super::params::{FlashParams, Mapping};
use super::units::Units;
use super::used::{PAGE, Used};
use super::{Nanos, Request, transfer};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};

/// Weight of a one-page write in the moving share of scattered writes.
const SHARE: f64 = 1.0 / 1024.0;

/// The state machine.
#[derive(Debug)]
pub struct Flash {
    p: FlashParams,
    /// Time at which the latest command was in the queue.
    clock: Nanos,
    /// When each command in the queue completes.
    queue: BinaryHeap<Reverse<Nanos>>,
    link_free: Nanos,
    channels: Vec<Nanos>,
    dies: Vec<Die>,
    /// The die that programs next.
    next: usize,
    /// Bytes in the buffer that do not fill a program yet.
    open: u64,
    /// Programs in flight: when each ends, and its bytes in the buffer.
    programs: VecDeque<(Nanos, u64)>,
    /// Bytes of the buffer in use.
    buffered: u64,
    /// Time at which the last program ends.
    drained: Nanos,
    /// Whether data was written or discarded since the last flush began.
    changed: bool,
    /// Time at which the last flush ends.
    flushed: Nanos,
    used: Used,
    cleaning: Cleaning,
    /// Programs that cleaning still has to do.
    owed: f64,
}

/// The account of garbage.
#[derive(Debug)]
enum Cleaning {
    /// By a formula.
    Pages(Scattered),
    /// By the units that are open.
    Units(Units),
}

/// How scattered the writes are.
#[derive(Debug, Default)]
struct Scattered {
    /// End of the last write.
    end: u64,
    /// Share of scattered writes among the recent ones.
    share: f64,
}

#[derive(Clone, Debug, Default)]
struct Die {
    free: Nanos,
    /// Programs since the last erase.
    programs: u32,
}

impl Flash {
    /// A drive of which the host uses `size` bytes: empty if it maps pages, otherwise as after
    /// years of use without discards, with data everywhere.
    pub fn new(p: FlashParams, size: u64) -> Self {
        let (used, cleaning) = match p.mapping {
            Mapping::Pages { .. } => (Used::none(size), Cleaning::Pages(Scattered::default())),
            Mapping::Units { bytes, open } => {
                (Used::all(size), Cleaning::Units(Units::new(bytes, open)))
            }
        };
        Self {
            clock: 0,
            queue: BinaryHeap::new(),
            link_free: 0,
            channels: vec![0; p.channels],
            dies: vec![Die::default(); p.dies],
            next: 0,
            open: 0,
            programs: VecDeque::new(),
            buffered: 0,
            drained: 0,
            changed: false,
            flushed: 0,
            used,
            cleaning,
            owed: 0.0,
            p,
        }
    }

    /// When a request that arrives at `now` completes.
    pub fn submit(&mut self, now: Nanos, request: Request) -> Nanos {
        if request == Request::Flush && self.p.through {
            // No command at all: without a cache, Linux sends none.
            return now.max(self.clock);
        }
        self.clock = self.enter(now);
        self.settle(self.clock);
        let end = match request {
            Request::Read { at, len } => self.read(at, len),
            Request::Write { at, len } => self.write(at, len),
            Request::Zero { at, len } => {
                self.used.set(at, len, false);
                self.changed = true;
                self.occupy(self.p.command_zero) + self.p.latency
            }
            Request::Flush => self.flush(),
        };
        self.queue.push(Reverse(end));
        end
    }

    /// When a command that arrives at `now` is in the queue, which may be full until then.
    fn enter(&mut self, now: Nanos) -> Nanos {
        let mut at = now.max(self.clock);
        while let Some(&Reverse(end)) = self.queue.peek()
            && (end <= at || self.queue.len() >= self.p.queue)
        {
            at = at.max(end);
            self.queue.pop();
        }
        at
    }

    /// Occupies the link for `time`; returns when that ends.
    fn occupy(&mut self, time: Nanos) -> Nanos {
        self.link_free = self.link_free.max(self.clock) + time;
        self.link_free
    }

    fn read(&mut self, at: u64, len: u64) -> Nanos {
        // In turn on the link, but without delaying others while the dies work.
        let link = self.occupy(self.p.command_read + transfer(len, self.p.link_read));
        let start = self.clock.max(self.flushed);
        let mut last = 0;
        let (mut at, end) = (at, at + len);
        while at < end {
            let stripe = at / self.p.program_bytes;
            let next = ((stripe + 1) * self.p.program_bytes).min(end);
            let die = (stripe % self.dies.len() as u64) as usize;
            let sensed = self.dies[die].free.max(start) + self.p.sense;
            self.dies[die].free = sensed;
            last = self.carry(die, sensed, next - at).max(last);
            at = next;
        }
        // The last page goes over the link when its die has read it.
        link.max(last + transfer(PAGE, self.p.link_read)) + self.p.latency
    }

    /// The die's channel carries `len` bytes, not before `from`; returns when that ends.
    fn carry(&mut self, die: usize, from: Nanos, len: u64) -> Nanos {
        let channel = die % self.channels.len();
        let end = self.channels[channel].max(from) + transfer(len, self.p.channel);
        self.channels[channel] = end;
        end
    }

    fn write(&mut self, at: u64, len: u64) -> Nanos {
        self.changed = true;
        self.used.set(at, len, true);
        self.note(at, len);
        let mut arrived = self.occupy(self.p.command_write);
        let mut left = len;
        while left > 0 {
            let piece = left.min(self.p.program_bytes - self.open);
            left -= piece;
            arrived += transfer(piece, self.p.link_write);
            while self.buffered + piece > self.p.buffer {
                let Some(&(end, _)) = self.programs.front() else { break };
                arrived = arrived.max(end);
                self.settle(arrived);
            }
            self.buffered += piece;
            self.open += piece;
            if self.open == self.p.program_bytes {
                self.program(arrived);
            }
        }
        self.link_free = arrived;
        if self.p.through {
            self.pad(arrived);
            arrived = arrived.max(self.drained);
        }
        arrived + self.p.latency
    }

    /// Programs the open bytes, if there are any, without waiting for more.
    fn pad(&mut self, now: Nanos) {
        if self.open == 0 {
            return;
        }
        let empty = self.p.program_bytes - self.open;
        self.program(now);
        if let Cleaning::Units(units) = &mut self.cleaning {
            let moved = units.fill(empty / PAGE, &self.used);
            self.moves(moved);
        }
    }

    /// Drops programs that have ended.
    fn settle(&mut self, now: Nanos) {
        while let Some(&(_, bytes)) = self.programs.front().filter(|(end, _)| *end <= now) {
            self.buffered -= bytes;
            self.programs.pop_front();
        }
    }

    /// Updates the account of garbage for a write.
    fn note(&mut self, at: u64, len: u64) {
        let stripe = self.p.program_bytes * self.dies.len() as u64;
        match &mut self.cleaning {
            Cleaning::Pages(scattered) => scattered.note(at, len, stripe),
            Cleaning::Units(units) => {
                let moved = units.write(at, len, &self.used);
                self.moves(moved);
            }
        }
    }

    /// Moves pages to other blocks, before what is programmed next.
    fn moves(&mut self, pages: u64) {
        self.owed += (pages * PAGE) as f64 / self.p.program_bytes as f64;
        self.clean(self.next);
    }

    /// Programs for each one that the host requests, including cleaning.
    ///
    /// Agarwal and Marrow, "A closed-form expression for write amplification in NAND flash" (2010):
    /// (1 + s) / 2s with s the spare flash in relation to the flash in use, for uniformly random
    /// writes; never less than 1. Sequential writes cost no cleaning.
    ///
    /// [`Units`] say themselves what is moved.
    fn amplification(&self) -> f64 {
        let (Mapping::Pages { physical }, Cleaning::Pages(scattered)) =
            (self.p.mapping, &self.cleaning)
        else {
            return 1.0;
        };
        let in_use = (self.used.pages() * PAGE) as f64 / physical as f64;
        let random = (1.0 / (2.0 * (1.0 - in_use).max(0.01))).max(1.0);
        1.0 + scattered.share * (random - 1.0)
    }

    /// Programs the open bytes on the next die.
    fn program(&mut self, now: Nanos) {
        let bytes = std::mem::take(&mut self.open);
        let die = self.next;
        self.next = (die + 1) % self.dies.len();
        let there = self.carry(die, now, bytes);
        let end = self.dies[die].free.max(there) + self.p.program;
        self.programs.push_back((end, bytes));
        self.drained = self.drained.max(end);
        self.occupy_die(die, end);
        self.owed += self.amplification() - 1.0;
        self.clean(die);
    }

    /// Does the moves that cleaning owes, on each die in turn, from `die` on.
    fn clean(&mut self, mut die: usize) {
        while self.owed >= 1.0 {
            self.owed -= 1.0;
            let start = self.dies[die].free.max(self.clock);
            self.occupy_die(die, start + self.p.sense + self.p.program);
            die = (die + 1) % self.dies.len();
        }
    }

    /// A die programs until `end`, and erases a block if it has filled one.
    fn occupy_die(&mut self, die: usize, end: Nanos) {
        let die = &mut self.dies[die];
        die.free = end;
        die.programs += 1;
        if die.programs >= self.p.block_programs {
            die.programs -= self.p.block_programs;
            die.free += self.p.erase;
        }
    }

    fn flush(&mut self) -> Nanos {
        if self.clock < self.flushed {
            return self.flushed;
        }
        let start = self.occupy(self.p.command_write) + self.p.latency;
        self.pad(start);
        let end = start.max(self.drained);
        self.flushed = end + if std::mem::take(&mut self.changed) { self.p.journal } else { 0 };
        self.link_free = self.flushed;
        self.flushed
    }
}

impl Scattered {
    /// Counts a write, on a drive with stripes of `stripe` bytes over all dies.
    fn note(&mut self, at: u64, len: u64, stripe: u64) {
        // A write that spans a stripe, or continues the last one, leaves whole erase blocks behind.
        let share = if at == self.end || len >= stripe { 0.0 } else { 1.0 };
        let weight = (SHARE * len as f64 / PAGE as f64).min(1.0);
        self.share += (share - self.share) * weight;
        self.end = at + len;
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::{FlashParams, SD_A1, SSD_840PRO};
    use super::*;
    use crate::data::Rng;

    const US: Nanos = 1_000;
    const MS: Nanos = 1_000_000;
    const MIB: u64 = 1 << 20;

    fn flash(size: u64) -> Flash {
        Flash::new(SSD_840PRO, size)
    }

    fn write(at: u64) -> Request {
        Request::Write { at, len: 4096 }
    }

    #[test]
    fn single_requests_take_what_the_data_sheet_says() {
        let mut flash = flash(SSD_840PRO.capacity);
        let write = flash.submit(0, write(0));
        assert!(write.abs_diff(32 * US) < US, "{write}");
        let now = 10 * MS;
        let read = flash.submit(now, Request::Read { at: 0, len: 4096 }) - now;
        assert!(read.abs_diff(101 * US) < 2 * US, "{read}");
    }

    #[test]
    fn a_flush_costs_a_program_and_the_journal_once() {
        let mut flash = flash(SSD_840PRO.capacity);
        let now = flash.submit(0, write(0));
        let end = flash.submit(now, Request::Flush);
        assert!((end - now).abs_diff(2 * MS) < 50 * US, "{}", end - now);
        assert_eq!(flash.submit(now + MS, Request::Flush), end, "joins");
        assert!(flash.submit(now + MS, write(4096)) > end, "not queued");
        let mut flash = self::flash(SSD_840PRO.capacity);
        assert!(flash.submit(0, Request::Flush) < 50 * US, "nothing to do");
    }

    #[test]
    fn writes_wait_when_the_buffer_is_full() {
        // With a link faster than the dies, the buffer fills, and then the dies set the rate.
        let p = FlashParams { link_write: 5_000_000_000, ..SSD_840PRO };
        let mut flash = Flash::new(p, 1 << 34);
        let mut now = 0;
        let mut at_link = 0;
        for n in 0..256 {
            let end = flash.submit(now, Request::Write { at: n * MIB, len: MIB });
            if n == 15 {
                at_link = end;
            }
            now = end;
        }
        assert!(at_link < 10 * MS, "{at_link}");
        let rate = 240 * MIB * 1000 / ((now - at_link) / MS);
        // 524 MB/s, less erasing, plus what the buffer took at first.
        assert!((490_000_000..600_000_000).contains(&rate), "{rate}");
    }

    /// Megabytes a second of random 4 KiB writes from `start` on, many in flight.
    fn random_writes(flash: &mut Flash, start: Nanos, size: u64) -> u64 {
        let mut rng = Rng::new(5);
        let count = 100_000;
        let mut now = start;
        for _ in 0..count {
            now = flash.submit(now, write(rng.below(size / 4096) * 4096)) - SSD_840PRO.latency;
        }
        count * 4096 * 1000 / (now - start)
    }

    #[test]
    fn a_full_drive_cleans_unless_it_is_told_what_is_free() {
        let size = SSD_840PRO.capacity;
        let mut flash = flash(size);
        let fresh = random_writes(&mut flash, 0, size);
        assert!((195..209).contains(&fresh), "{fresh}");
        // Sequential writes of the whole drive.
        flash.used.set(0, size, true);
        assert_eq!(flash.used.pages(), size / 4096);
        let full = random_writes(&mut flash, 1 << 40, size);
        assert!((40..110).contains(&full), "{full}");
        let now = flash.submit(1 << 41, Request::Zero { at: 0, len: size });
        assert_eq!(flash.used.pages(), 0);
        assert!(random_writes(&mut flash, now, size).abs_diff(fresh) <= 1);
        // Written in order, a full drive is as fast as a fresh one.
        flash.used.set(0, size, true);
        let start = 1 << 42;
        let mut now = start;
        for n in 0..2000 {
            now = flash.submit(now, Request::Write { at: n * MIB, len: MIB });
        }
        let rate = 2000 * MIB * 1000 / (now - start);
        assert!((262..270).contains(&rate), "{rate}");
    }

    /// Milliseconds of a 4 KiB write at `at`, with nothing else in flight.
    fn alone(flash: &mut Flash, now: &mut Nanos, at: u64) -> u64 {
        let start = *now;
        *now = flash.submit(start, write(at)) + 10_000 * MS;
        (*now - 10_000 * MS - start) / MS
    }

    #[test]
    fn a_card_has_one_command_at_a_time_and_nothing_to_flush() {
        let mut card = Flash::new(SD_A1, SD_A1.capacity);
        let reads: Vec<Nanos> =
            (0..4).map(|n| card.submit(0, Request::Read { at: n * MIB, len: 4096 })).collect();
        assert!(reads.windows(2).all(|pair| pair[1] - pair[0] == reads[0]), "{reads:?}");
        let written = card.submit(reads[3], write(0));
        assert!(written - reads[3] > SD_A1.program, "programmed when it completes");
        assert_eq!(card.submit(written, Request::Flush), written);
        let mut ssd = flash(SSD_840PRO.capacity);
        let read = |n| Request::Read { at: n * SSD_840PRO.program_bytes, len: 4096 };
        let last = (0..32).map(|n| ssd.submit(0, read(n))).max();
        assert!(last.is_some_and(|last| last < MS), "{last:?}");
    }

    #[test]
    fn a_write_outside_of_the_open_units_waits_for_a_unit_that_moves() {
        let (mut card, mut now) = (Flash::new(SD_A1, SD_A1.capacity), 0);
        let Mapping::Units { bytes, open } = SD_A1.mapping else { panic!("units are mapped") };
        for unit in 0..open as u64 {
            assert!(alone(&mut card, &mut now, unit * bytes) < 3);
        }
        assert!(alone(&mut card, &mut now, 4096) < 3, "open");
        let elsewhere = alone(&mut card, &mut now, open as u64 * bytes);
        assert!((400..500).contains(&elsewhere), "{elsewhere}");
        // What is discarded is not moved.
        now = card.submit(now, Request::Zero { at: 2 * bytes, len: bytes });
        let discarded = alone(&mut card, &mut now, 1000 * bytes);
        assert!(discarded < 3, "{discarded}");
        assert!(alone(&mut card, &mut now, 1001 * bytes) > 400, "the next unit");
    }
}

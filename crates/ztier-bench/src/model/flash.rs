//! An SSD: a link, a volatile write buffer, and dies that work in parallel.
//!
//! A write occupies the link, completes when it is in the buffer, and is programmed from there in
//! pieces, on each die in turn. A read occupies its die, its channel and the link. Overwriting
//! costs cleaning, by a formula, and erasing. The completion time of each request is known when it
//! arrives.
//!
//! Invariants: the link serves commands in order of arrival. A flush is not queued, as on SATA:
//! later requests wait for it, and flushes that arrive before it ends have nothing newer to flush
//! and complete with it.

use super::params::FlashParams;
use super::{Nanos, Request, transfer};
use std::collections::VecDeque;

const PAGE: u64 = 4096;
/// Weight of a one-page write in the moving share of scattered writes.
const SHARE: f64 = 1.0 / 1024.0;

/// The state machine.
#[derive(Debug)]
pub struct Flash {
    p: FlashParams,
    /// Time of the latest arrival.
    clock: Nanos,
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
    /// End of the last write.
    end: u64,
    /// Share of scattered writes among the recent ones.
    scattered: f64,
    /// Programs that cleaning still has to do.
    owed: f64,
}

#[derive(Clone, Debug, Default)]
struct Die {
    free: Nanos,
    /// Programs since the last erase.
    programs: u32,
}

impl Flash {
    /// An empty drive of which the host uses `size` bytes.
    pub fn new(p: FlashParams, size: u64) -> Self {
        Self {
            clock: 0,
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
            used: Used::new(size),
            end: 0,
            scattered: 0.0,
            owed: 0.0,
            p,
        }
    }

    /// When a request that arrives at `now` completes.
    pub fn submit(&mut self, now: Nanos, request: Request) -> Nanos {
        self.clock = self.clock.max(now);
        self.settle(self.clock);
        match request {
            Request::Read { at, len } => self.read(at, len),
            Request::Write { at, len } => self.write(at, len),
            Request::Zero { at, len } => {
                self.used.set(at, len, false);
                self.changed = true;
                self.occupy(self.p.command_zero) + self.p.latency
            }
            Request::Flush => self.flush(),
        }
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
        arrived + self.p.latency
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
        self.used.set(at, len, true);
        // A write that spans a stripe over all dies, or continues the last one, leaves whole erase
        // blocks behind.
        let whole = at == self.end || len >= self.p.program_bytes * self.p.dies as u64;
        let share = if whole { 0.0 } else { 1.0 };
        let weight = (SHARE * len as f64 / PAGE as f64).min(1.0);
        self.scattered += (share - self.scattered) * weight;
        self.end = at + len;
    }

    /// Programs for each one that the host requests, including cleaning.
    ///
    /// Agarwal and Marrow, "A closed-form expression for write amplification in NAND flash" (2010):
    /// (1 + s) / 2s with s the spare flash in relation to the flash in use, for uniformly random
    /// writes; never less than 1. Sequential writes cost no cleaning.
    fn amplification(&self) -> f64 {
        let in_use = (self.used.pages * PAGE) as f64 / self.p.physical as f64;
        let random = (1.0 / (2.0 * (1.0 - in_use).max(0.01))).max(1.0);
        1.0 + self.scattered * (random - 1.0)
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
        self.owed += self.amplification() - 1.0;
        let mut cleaned = 0;
        while self.owed >= 1.0 {
            self.owed -= 1.0;
            cleaned += 1;
        }
        let die = &mut self.dies[die];
        die.free = end + u64::from(cleaned) * (self.p.sense + self.p.program);
        die.programs += 1 + cleaned;
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
        if self.open > 0 {
            self.program(start);
        }
        let end = start.max(self.drained);
        self.flushed = end + if std::mem::take(&mut self.changed) { self.p.journal } else { 0 };
        self.link_free = self.flushed;
        self.flushed
    }
}

/// The pages that hold data.
#[derive(Debug)]
struct Used {
    bits: Vec<u64>,
    pages: u64,
}

impl Used {
    fn new(size: u64) -> Self {
        Self { bits: vec![0; (size / PAGE).div_ceil(64) as usize], pages: 0 }
    }

    fn set(&mut self, at: u64, len: u64, used: bool) {
        let (mut page, end) = (at / PAGE, (at + len) / PAGE);
        while page < end {
            let count = (64 - page % 64).min(end - page);
            let mask = (u64::MAX >> (64 - count)) << (page % 64);
            let Some(word) = self.bits.get_mut((page / 64) as usize) else { return };
            let before = word.count_ones();
            *word = if used { *word | mask } else { *word & !mask };
            self.pages = self.pages + u64::from(word.count_ones()) - u64::from(before);
            page += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::params::{FlashParams, SSD_840PRO};
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
        assert_eq!(flash.used.pages, size / 4096);
        let full = random_writes(&mut flash, 1 << 40, size);
        assert!((40..110).contains(&full), "{full}");
        let now = flash.submit(1 << 41, Request::Zero { at: 0, len: size });
        assert_eq!(flash.used.pages, 0);
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

    #[test]
    fn pages_in_use_are_counted_once() {
        let mut used = Used::new(MIB);
        used.set(4096, 70 * 4096, true);
        used.set(0, 3 * 4096, true);
        assert_eq!(used.pages, 71);
        used.set(2 * 4096, 64 * 4096, false);
        assert_eq!(used.pages, 7);
        used.set(0, MIB, true);
        used.set(0, MIB, true);
        assert_eq!(used.pages, 256);
    }
}

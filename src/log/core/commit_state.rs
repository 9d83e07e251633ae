//! How far commits and flushes are; the steps: [`super::commit`].

use super::chunk::Sealed;
use crate::stats::histogram::Histogram;
use std::collections::{BTreeMap, VecDeque};

/// Times that chunks are laid out anew in a row before the log fails.
pub(in crate::log) const REWRITES: u32 = 3;

/// What a flush waits for: that every chunk below this number is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub(super) u64);

impl Ticket {
    /// Whether the flush is done, if chunks below `durable` are durable.
    pub fn is_done(self, durable: u64) -> bool {
        durable >= self.0
    }
}

/// The state of a flush.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It waits for a commit.
    Pending,
    /// The log has failed, and what the flush covers is being written back.
    Rescue,
    /// What the flush covers is durable.
    Done,
    /// The log failed before that.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Health {
    Well,
    /// A write or flush failed; commands in flight have to end before new ones begin.
    Broken,
    /// Chunks were laid out anew; they may be written when a superblock names their epoch.
    Rewriting,
    Failed,
}

#[derive(Clone, Copy, Debug)]
pub(super) enum Flight {
    Chunks { first: u64, count: usize, bytes: usize },
    Flush { covers: u64, superblock: u64, checkpoint: bool },
    Superblock,
    CheckpointPage,
}

/// The state of commits.
pub(super) struct Commit {
    pub(super) health: Health,
    pub(super) rewrites: u32,
    /// Chunks below this are durable.
    pub(super) durable: u64,
    /// CRC of the header of the last durable chunk.
    pub(super) durable_prev: u32,
    /// A closed chunk's header says that chunks below this are durable.
    pub(super) marked: u64,
    /// One more than the number of the last chunk with entries.
    pub(super) data: u64,
    /// Chunks below this have been given to the drive.
    pub(super) issued: u64,
    /// Whether each chunk from `durable` on is written.
    pub(super) written: VecDeque<bool>,
    /// Chunks below this are written, durable or not.
    pub(super) written_to: u64,
    /// Bytes of closed chunks that are not written.
    pub(super) unwritten: u64,
    /// Chunk numbers that flushes wait for, ascending, with the number of flushes and the time of
    /// the first, in microseconds.
    pub(super) wanted: VecDeque<(u64, u32, u64)>,
    /// How long commits took, from their first flush on.
    pub(super) took: Histogram,
    /// The open chunk is closed when the commit at work has ended, and the flushers that it served
    /// are back.
    pub(super) seal_next: bool,
    /// Flushes that wait for that chunk.
    pub(super) joined: u32,
    /// How many flushers are expected, and until when.
    pub(super) expected: u32,
    pub(super) gather_until_us: u64,
    /// One of the waiting flushers watches the clock for all.
    pub(super) watched: bool,
    /// When the last chunk was closed for a flush.
    pub(super) began_us: u64,
    pub(super) flights: BTreeMap<u64, Flight>,
    pub(super) flushing: bool,
    pub(super) next_id: u64,
    /// Which write of a superblock waits for a flush; 0 for none.
    pub(super) superblock_unflushed: u64,
    pub(super) now_us: u64,
    pub(super) touched_us: u64,
}

impl Commit {
    pub(super) fn new(next_chunk: u64, prev: u32) -> Self {
        Self {
            health: Health::Well,
            rewrites: 0,
            durable: next_chunk,
            durable_prev: prev,
            marked: next_chunk,
            data: next_chunk,
            issued: next_chunk,
            written: VecDeque::new(),
            written_to: next_chunk,
            unwritten: 0,
            wanted: VecDeque::new(),
            took: Histogram::default(),
            seal_next: false,
            joined: 0,
            expected: 0,
            gather_until_us: 0,
            watched: false,
            began_us: 0,
            flights: BTreeMap::new(),
            flushing: false,
            next_id: 0,
            superblock_unflushed: 0,
            now_us: 0,
            touched_us: 0,
        }
    }

    /// Chunks below this are durable.
    pub(super) fn durable(&self) -> u64 {
        self.durable
    }

    /// The number of the first chunk that is not durable, and the CRC of the header before it.
    pub(super) fn durable_end(&self) -> (u64, u32) {
        (self.durable, self.durable_prev)
    }

    /// Whether nothing is in flight.
    pub(super) fn is_still(&self) -> bool {
        self.flights.is_empty()
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.now_us / 1000
    }

    pub(super) fn touch(&mut self) {
        self.touched_us = self.now_us;
    }

    pub(super) fn is_idle(&self, idle_ms: u64) -> bool {
        self.now_us.saturating_sub(self.touched_us) >= idle_ms * 1000
    }

    /// Whether everything is durable and the drive does not say so yet.
    pub(super) fn lacks_mark(&self) -> bool {
        self.health == Health::Well && self.data > self.marked
    }

    /// Notes that the superblock, not a header, will say that everything is durable.
    pub(super) fn note_marked(&mut self) {
        self.marked = self.durable;
    }

    pub(super) fn sealed(&mut self, sealed: &Sealed) {
        self.written.push_back(false);
        self.unwritten += u64::from(sealed.header.len);
        self.marked = self.marked.max(sealed.header.durable);
        if !sealed.entries.is_empty() {
            self.data = sealed.header.chunk + 1;
        }
    }

    /// Asks for a commit up to a chunk, without a flush that waits for it.
    pub(super) fn want(&mut self, target: u64) {
        self.want_for(target, 0);
    }

    pub(super) fn want_for(&mut self, target: u64, flushes: u32) {
        match self.wanted.back_mut() {
            _ if target <= self.durable => {}
            Some((last, count, _)) if *last >= target => *count += flushes,
            _ => self.wanted.push_back((target, flushes, self.now_us)),
        }
    }

    /// Whether more flushers are expected to share the commit that others wait for.
    pub(super) fn gathers(&self) -> bool {
        self.joined < self.expected && self.now_us < self.gather_until_us
    }

    /// Notes that `count` chunks from `first` on are written.
    pub(super) fn note_written(&mut self, first: u64, count: usize) {
        let Some(at) = first.checked_sub(self.durable) else { return };
        for written in self.written.iter_mut().skip(at as usize).take(count) {
            *written = true;
        }
        while self.written.get((self.written_to - self.durable) as usize) == Some(&true) {
            self.written_to += 1;
        }
    }

    /// Bytes of closed chunks that are not written.
    pub(super) fn unwritten(&self) -> u64 {
        self.unwritten
    }

    /// Whether a commit is at work: closed chunks are wanted, or the drive is being flushed.
    pub(super) fn is_busy(&self) -> bool {
        self.flushing || !self.wanted.is_empty()
    }

    /// Whether something failed, and nothing is in flight any more.
    pub(super) fn is_stuck(&self) -> bool {
        self.health == Health::Broken && self.flights.is_empty()
    }

    /// Whether chunks were laid out anew [`REWRITES`] times, and none became durable since.
    pub(super) fn is_hopeless(&self) -> bool {
        self.rewrites == REWRITES
    }

    /// Prepares to close and write again all that is not durable: returns the number of the first
    /// chunk, and the CRC of the header before it.
    pub(super) fn begin_again(&mut self) -> (u64, u32) {
        self.written.clear();
        (self.unwritten, self.issued, self.written_to) = (0, self.durable, self.durable);
        self.durable_end()
    }

    /// Notes that chunks were laid out anew, and wait for a superblock.
    pub(super) fn rewrites(&mut self) {
        self.rewrites += 1;
        self.health = Health::Rewriting;
    }

    /// That superblock is durable: asks for a commit of the chunks below `next_chunk`.
    pub(super) fn rewrite_may_begin(&mut self, next_chunk: u64) {
        if self.health == Health::Rewriting {
            self.health = Health::Well;
            self.want(next_chunk);
        }
    }

    pub(super) fn launch(&mut self, flight: Flight) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.flights.insert(id, flight);
        id
    }
}

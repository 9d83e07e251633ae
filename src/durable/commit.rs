//! From closed chunks to durable ones: who waits for what, writes in flight, failures.
//!
//! Invariants: chunks become durable in order; a chunk is durable when it and every one before it
//! were written *before* a flush of the drive began that has ended well. A flush of the log that
//! arrives while another is at work shares the next one. A drive whose write or flush failed is not
//! asked to flush the same again: what was not durable is written to other segments, in a new
//! epoch.

use super::chunk::{CHUNK_MAX, Closing, Sealed};
use super::core::{Core, Refused, Segment};
use super::format::{EPOCHS_MAX, Epoch, Header, LOST_MAX};
use super::planted::{self, Bug, mark};
use super::window::After;
use crate::media::{Buffer, DriveError};
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Writes of chunks that are in flight at once.
const DEPTH: usize = 32;
/// Buffers that are kept for new chunks.
const SPARE: usize = 16;
/// Times that chunks are written elsewhere before the log is given up.
const REWRITES: u32 = 3;

/// Which drive a command is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Device {
    /// The log's.
    Log,
    /// The backing store.
    Backing,
}

/// What a drive shall do.
#[derive(Clone, Debug)]
pub enum Op {
    /// Read so many bytes.
    Read(usize),
    /// Write these bytes of the buffer.
    Write(Arc<Buffer>, Range<usize>),
    /// Make so many bytes read as zeros.
    Zero(u64),
    /// Make all writes durable that have ended.
    Flush,
}

/// Something to do; commands that are out at the same time may be done in any order.
#[derive(Clone, Debug)]
pub struct Command {
    /// What [`Core::complete`] is told.
    pub id: u64,
    /// Which drive.
    pub device: Device,
    /// From where on, in bytes.
    pub at: u64,
    /// What.
    pub op: Op,
}

/// What became of a command.
#[derive(Debug)]
pub enum Outcome {
    /// It is done.
    Done,
    /// It is done, and these are the bytes.
    Bytes(Buffer),
    /// It failed.
    Failed(DriveError),
}

/// What a flush waits for: that every chunk below this number is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ticket(pub(super) u64);

/// How a flush stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    /// It waits.
    Pending,
    /// What it covers is durable.
    Done,
    /// The log failed before that.
    Failed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    Well,
    /// Something failed; what is in flight has to end before anything begins.
    Broken,
    /// Chunks were laid out anew; they may be written when a superblock says so.
    Rewriting,
    Failed,
}

#[derive(Clone, Copy, Debug)]
enum Flight {
    Chunk(u64),
    Flush { covers: u64, superblock: u64 },
    Superblock,
}

/// The state of commits.
pub(super) struct Commit {
    health: Health,
    rewrites: u32,
    /// Chunks below this are durable.
    durable: u64,
    /// CRC of the header of the last of them.
    durable_prev: u32,
    /// Chunks below this have a header on the drive that says that they are durable.
    marked: u64,
    /// One more than the number of the last chunk that is no mark.
    data: u64,
    /// Chunks below this have been given to the drive.
    issued: u64,
    /// Chunks from `durable` on: whether each is written.
    written: VecDeque<bool>,
    /// What flushes wait for, ascending.
    wanted: VecDeque<u64>,
    /// The open chunk is closed when the commit at work has ended.
    seal_next: bool,
    flights: BTreeMap<u64, Flight>,
    flushing: bool,
    next_id: u64,
    /// Which write of a superblock waits for a flush; 0 for none.
    pub(super) superblock_unflushed: u64,
    now_ms: u64,
    touched_ms: u64,
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
            wanted: VecDeque::new(),
            seal_next: false,
            flights: BTreeMap::new(),
            flushing: false,
            next_id: 0,
            superblock_unflushed: 0,
            now_ms: 0,
            touched_ms: 0,
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

    pub(super) fn clock(&mut self, now_ms: u64) {
        self.now_ms = now_ms;
    }

    pub(super) fn touch(&mut self) {
        self.touched_ms = self.now_ms;
    }

    pub(super) fn is_idle(&self, idle_ms: u64) -> bool {
        self.now_ms.saturating_sub(self.touched_ms) >= idle_ms
    }

    /// Whether everything is durable and the drive does not say so yet.
    pub(super) fn lacks_mark(&self) -> bool {
        self.health == Health::Well && self.data > self.marked
    }

    /// Something else than a header will say that everything is durable.
    pub(super) fn note_marked(&mut self) {
        self.marked = self.durable;
    }

    pub(super) fn sealed(&mut self, sealed: &Sealed) {
        self.written.push_back(false);
        self.marked = self.marked.max(sealed.header.durable);
        if std::mem::take(&mut self.seal_next) {
            self.want(sealed.header.chunk + 1);
        }
        if !sealed.entries.is_empty() {
            self.data = sealed.header.chunk + 1;
        }
    }

    /// Asks for a commit up to a chunk.
    pub(super) fn want(&mut self, target: u64) {
        if target > self.durable && self.wanted.back().is_none_or(|&last| last < target) {
            self.wanted.push_back(target);
        }
    }

    /// Chunks below this are written, durable or not.
    fn written_to(&self) -> u64 {
        self.durable + self.written.iter().take_while(|w| **w).count() as u64
    }

    /// Whether a commit is at work: somebody waits for chunks that are closed.
    fn is_busy(&self) -> bool {
        self.flushing || !self.wanted.is_empty()
    }

    fn launch(&mut self, flight: Flight) -> u64 {
        let id = self.next_id;
        self.next_id += 1;
        self.flights.insert(id, flight);
        id
    }
}

impl Core {
    /// Makes everything that was taken so far durable; the ticket says when that is done.
    pub fn flush(&mut self) -> Ticket {
        self.counts.flushes += 1;
        if self.commit.health == Health::Failed {
            // What was taken and never became durable may be forgotten: no number stands for it.
            return Ticket(u64::MAX);
        }
        let waiting = self.open.as_ref().is_some_and(|open| !open.is_empty());
        if waiting && self.commit.is_busy() {
            mark("flush.shares_next");
            self.commit.seal_next = true;
            return Ticket(self.next_chunk + 1);
        }
        if waiting {
            self.seal();
        }
        self.commit.want(self.next_chunk);
        Ticket(self.next_chunk)
    }

    /// How a flush stands.
    pub fn progress(&self, ticket: Ticket) -> Progress {
        if self.commit.durable >= ticket.0 {
            Progress::Done
        } else if self.is_failed() {
            // Everything that was taken is in the backing store when it is the volume.
            match self.rescue.refusal() {
                Refused::Through => Progress::Done,
                Refused::Full => Progress::Pending,
                Refused::Failed => Progress::Failed,
            }
        } else if planted::on(Bug::AcknowledgeUnflushed) && self.commit.written_to() >= ticket.0 {
            Progress::Done
        } else {
            Progress::Pending
        }
    }

    /// The next thing for the log's drive to do, if there is one now.
    pub fn next_command(&mut self) -> Option<Command> {
        self.mend();
        self.step_window();
        if self.commit.health == Health::Broken {
            return None;
        }
        if let Some((at, bytes)) = self.next_superblock() {
            let id = self.commit.launch(Flight::Superblock);
            self.counts.written_bytes += bytes.len() as u64;
            let all = 0..bytes.len();
            return Some(Command { id, device: Device::Log, at, op: Op::Write(bytes, all) });
        }
        if self.commit.health == Health::Well
            && let Some(command) = self.next_chunk_write()
        {
            return Some(command);
        }
        self.next_flush()
    }

    fn next_chunk_write(&mut self) -> Option<Command> {
        let at = (self.commit.issued - self.commit.durable) as usize;
        let writing = |f: &&Flight| matches!(f, Flight::Chunk(_));
        if self.commit.flights.values().filter(writing).count() >= DEPTH {
            return None;
        }
        let chunk = self.sealed.get(at)?;
        let place = self.sb.place(chunk.header.segment) + u64::from(chunk.header.offset);
        let (bytes, len) = (Arc::clone(&chunk.bytes), chunk.header.len as usize);
        let id = self.commit.launch(Flight::Chunk(chunk.header.chunk));
        self.commit.issued += 1;
        self.counts.written_bytes += len as u64;
        Some(Command { id, device: Device::Log, at: place, op: Op::Write(bytes, 0..len) })
    }

    fn next_flush(&mut self) -> Option<Command> {
        if self.commit.flushing {
            return None;
        }
        let mut covers = self.commit.written_to();
        if planted::on(Bug::FlushBeforeWritten) {
            covers = self.commit.issued;
        }
        let mut wanted = self.commit.wanted.front().is_some_and(|&target| target <= covers);
        if self.is_failed() {
            // A flush for a superblock makes no chunk durable that was written before the failure.
            (covers, wanted) = (self.commit.durable, false);
        }
        let superblock = std::mem::take(&mut self.commit.superblock_unflushed);
        if !wanted && superblock == 0 {
            return None;
        }
        self.commit.flushing = true;
        self.counts.drive_flushes += 1;
        let id = self.commit.launch(Flight::Flush { covers, superblock });
        Some(Command { id, device: Device::Log, at: 0, op: Op::Flush })
    }

    /// Says what became of a command. An `id` that is not out is ignored.
    pub fn complete(&mut self, id: u64, outcome: &Outcome) {
        let Some(flight) = self.commit.flights.remove(&id) else { return };
        let well = !matches!(outcome, Outcome::Failed(_));
        if !well {
            self.counts.errors += 1;
        }
        match flight {
            Flight::Chunk(chunk) => self.chunk_written(chunk, well),
            Flight::Flush { covers, superblock } => {
                self.commit.flushing = false;
                if superblock > 0 {
                    self.superblock_flushed(superblock, well);
                }
                if well { self.flushed(covers) } else { self.broken() }
            }
            Flight::Superblock => self.superblock_written(well),
        }
    }

    fn chunk_written(&mut self, chunk: u64, well: bool) {
        if !well {
            mark("commit.write_failed");
            return self.broken();
        }
        let Some(at) = chunk.checked_sub(self.commit.durable) else { return };
        if let Some(written) = self.commit.written.get_mut(at as usize) {
            *written = true;
        }
    }

    fn flushed(&mut self, covers: u64) {
        if covers > self.commit.durable + 1 {
            mark("flush.covers_several");
        }
        while self.commit.durable < covers {
            let Some(chunk) = self.sealed.pop_front() else { break };
            self.sealed_bytes -= u64::from(chunk.header.len);
            self.commit.written.pop_front();
            self.commit.durable_prev = chunk.sum;
            if self.spare.len() < SPARE
                && chunk.bytes.len() >= CHUNK_MAX.min(self.sb.segment) as usize
            {
                self.spare.extend(Arc::try_unwrap(chunk.bytes).ok());
            }
            self.commit.durable += 1;
            self.commit.rewrites = 0;
        }
        self.commit.issued = self.commit.issued.max(self.commit.durable);
        while self.commit.wanted.front().is_some_and(|&target| target <= self.commit.durable) {
            self.commit.wanted.pop_front();
        }
        if self.commit.seal_next {
            mark("flush.sealed_next");
            self.seal();
        }
    }

    fn broken(&mut self) {
        if self.commit.health == Health::Well {
            self.commit.health = Health::Broken;
        }
    }

    /// Gives the log up: what it holds is brought to the backing store.
    pub(super) fn fail(&mut self) {
        mark("commit.failed");
        self.commit.health = Health::Failed;
        self.counts.failed_unix_s = self.window.now_s();
        self.give_windows_up();
    }

    /// Whether the log takes anything.
    pub(super) fn check_health(&self) -> Result<(), Refused> {
        if self.is_failed() { Err(self.rescue.refusal()) } else { Ok(()) }
    }

    /// When what was in flight has ended after a failure: lays out anew what is not durable.
    fn mend(&mut self) {
        if self.commit.health != Health::Broken || !self.commit.flights.is_empty() {
            return;
        }
        self.commit.rewrites += 1;
        if self.commit.rewrites > REWRITES || self.lay_out_anew().is_err() {
            self.fail();
            return;
        }
        mark("commit.rewritten");
        self.commit.health = Health::Rewriting;
        self.write_superblock(After::Rewrite);
    }

    fn lay_out_anew(&mut self) -> Result<(), Refused> {
        self.seal_open();
        if !self.has_room_anew() {
            // Nothing has changed: what is in memory is still found there.
            mark("commit.no_room");
            return Err(Refused::Full);
        }
        let old: Vec<Sealed> = self.sealed.drain(..).collect();
        self.sealed_bytes = 0;
        self.commit.written.clear();
        self.commit.issued = self.commit.durable;
        self.next_chunk = self.commit.durable;
        self.prev = self.commit.durable_prev;
        self.trim(&old);
        if !planted::on(Bug::RewriteInOldEpoch) {
            let from = self.commit.durable;
            self.begin_epoch(from, next_epoch(self.epoch()));
        }
        self.open_segment(0)?;
        for chunk in old {
            let (segment, offset) = self.place_for(chunk.header.len)?;
            let closing =
                Closing { chunk: self.next_chunk, prev: self.prev, durable: self.commit.durable };
            let moved = chunk.moved(segment, offset, self.epoch(), closing);
            for entry in &moved.entries {
                self.index(segment, entry);
            }
            self.push_sealed(moved);
        }
        Ok(())
    }

    /// Whether the free segments have room for everything that is not durable.
    fn has_room_anew(&self) -> bool {
        let (mut segments, mut used) = (self.segments.len() as u64 + 1, 0);
        for len in self.sealed.iter().map(|sealed| sealed.header.len) {
            if used + len > self.sb.segment {
                (segments, used) = (segments + 1, 0);
            }
            used += len;
        }
        segments <= self.sb.segments
    }

    pub(super) fn seal_open(&mut self) {
        match &self.open {
            Some(open) if open.is_empty() => self.open = None,
            _ => self.seal(),
        }
    }

    /// Takes chunks that will be elsewhere out of their segments.
    fn trim(&mut self, old: &[Sealed]) {
        let (chunk, prev) = (self.next_chunk, self.prev);
        for segment in self.segments.iter_mut().rev().take_while(|s| s.chunk >= chunk) {
            *segment = Segment { chunk, prev, used: 0, ..*segment };
        }
        if let Some(Header { segment, offset, .. }) = old.first().map(|sealed| sealed.header)
            && let Some(segment) = self.segment_mut(segment)
        {
            segment.used = offset;
        }
        for segment in &mut self.segments {
            segment.finished = true;
        }
    }

    fn place_for(&mut self, len: u32) -> Result<(u64, u32), Refused> {
        let size = self.sb.segment;
        let last = self.first + self.segments.len() as u64 - 1;
        match self.segments.back() {
            Some(segment) if segment.used + len <= size => Ok((last, segment.used)),
            _ => Ok((self.open_segment(0)?, 0)),
        }
    }

    /// Chunks from this one on are of a new epoch.
    pub(super) fn begin_epoch(&mut self, from: u64, id: u64) {
        let epochs = &mut self.sb.epochs;
        epochs.retain(|epoch| epoch.from < from);
        while epochs.len() + LOST_MAX >= EPOCHS_MAX {
            epochs.remove(0);
        }
        epochs.push(Epoch { from, id });
    }

    /// The superblock that names the new epoch is durable: chunks may be written again.
    pub(super) fn rewrite_may_begin(&mut self) {
        if self.commit.health == Health::Rewriting {
            self.commit.health = Health::Well;
            self.commit.want(self.next_chunk);
        }
    }

    /// Whether the log's drive failed for good.
    pub fn is_failed(&self) -> bool {
        self.commit.health == Health::Failed
    }

    /// Whether all that was closed is durable and nothing is in flight.
    pub fn is_quiet(&self) -> bool {
        self.sealed.is_empty() && self.commit.flights.is_empty() && self.window.is_idle()
    }
}

/// A number that is as random as the epoch that it is made of (`SplitMix64`).
pub(super) fn next_epoch(epoch: u64) -> u64 {
    let mut z = epoch.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

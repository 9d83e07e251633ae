//! Commits: closed chunks become durable. Waiting flushes, writes in flight, failures.
//!
//! Invariants: chunks become durable in order; a chunk is durable when it and every one before it
//! were written *before* a flush of the drive began that has ended well. A flush of the log that
//! arrives while a commit is at work shares the next commit. A drive whose write or flush failed is
//! not asked to flush the same again: what was not durable is written to other segments, in a new
//! epoch.
//!
//! Group commit: a flusher that has just been served often flushes again soon. If each commit began
//! with the first of several such flushers, it would leave the others to the next commit, again and
//! again. So the next chunk stays open until all flushers are back that the last commit served, or
//! that came meanwhile. It waits for at most a part of the time that the last commit took, and
//! never for a single flusher.

use super::answer::Refused;
use super::chunk::Open;
use super::command::{Command, Device, Op, Outcome, Parts};
use super::commit_state::{Flight, Health, Progress, Ticket};
use super::state::Core;
use crate::log::disk::format::{Header, Superblock};
use crate::log::planted::{self, Bug, mark};
use crate::media::Buffer;
use std::sync::Arc;
use std::time::Duration;

/// Most writes of chunks in flight.
const DEPTH: usize = 32;
/// Bytes of chunk writes in flight after which no more begin: a flush may have to wait for all of
/// them, and meanwhile memory fills up.
const IN_FLIGHT: usize = 8 << 20;
/// Most bytes of neighbouring chunks that are written as one.
pub(in crate::log) const JOINED: usize = 1 << 20;
/// Bytes of chunk memory that an idle log keeps. Under load it keeps all that it has: new memory
/// from the system costs more than filling it.
const SPARE: usize = 16 << 20;
/// Longest time that a commit waits for more flushers, in microseconds.
const GATHER_MAX_US: u64 = 10_000;
impl Core {
    /// Begins to make all changes so far durable; the ticket says when that is done.
    pub fn flush(&mut self) -> Ticket {
        self.flush_for(1)
    }

    /// Like [`Self::flush`], on behalf of `flushes` flushers.
    pub(super) fn flush_for(&mut self, flushes: u32) -> Ticket {
        self.counts.flushes += 1;
        if self.commit.health == Health::Failed {
            // Changes that never became durable may be forgotten, so no chunk number stands for
            // them.
            return Ticket(u64::MAX);
        }
        if self.open.as_ref().is_none_or(Open::is_empty) {
            self.commit.want_for(self.next_chunk, flushes);
            return Ticket(self.next_chunk);
        }
        self.commit.seal_next = true;
        self.commit.joined += flushes;
        let ticket = Ticket(self.next_chunk + 1);
        if self.commit.is_busy() {
            mark("flush.shares_next");
        } else if self.commit.gathers() {
            mark("flush.waits_for_others");
        } else {
            self.seal_for_flushes();
        }
        ticket
    }

    /// Chunks below this are durable.
    pub fn durable(&self) -> u64 {
        self.commit.durable
    }

    /// Sets the clock to `now_us`, in microseconds, which never falls.
    pub fn clock(&mut self, now_us: u64) {
        self.commit.now_us = now_us;
    }

    /// Microseconds after which the caller, whose flush is pending, must ask for commands although
    /// no command has ended; one caller is enough. `watches` says that it is this caller, and stays
    /// set if something else wakes the caller.
    pub fn patience_us(&mut self, watches: &mut bool) -> Option<u64> {
        let commit = &mut self.commit;
        if !commit.seal_next || commit.is_busy() {
            *watches = false;
            return None;
        }
        *watches |= !std::mem::replace(&mut commit.watched, true);
        watches.then(|| commit.gather_until_us.saturating_sub(commit.now_us))
    }

    /// The state of a flush.
    pub fn progress(&self, ticket: Ticket) -> Progress {
        if self.commit.durable >= ticket.0 {
            Progress::Done
        } else if self.is_failed() {
            // When writes go to the backing store, it has every earlier change, too.
            match self.rescue.refusal() {
                Refused::Through => Progress::Done,
                Refused::Full => Progress::Rescue,
                Refused::Failed => Progress::Failed,
            }
        } else if planted::on(Bug::AcknowledgeUnflushed) && self.commit.written_to >= ticket.0 {
            Progress::Done
        } else {
            Progress::Pending
        }
    }

    /// The next command for the log's drive, if there is one now.
    pub fn next_command(&mut self) -> Option<Command> {
        self.rewrite_if_stuck();
        self.recommit();
        self.step_window();
        self.step_release();
        self.end_gathering();
        if self.commit.health == Health::Broken {
            return None;
        }
        if self.commit.health == Health::Well {
            self.step_checkpoint();
        }
        if let Some((at, bytes)) = self.next_superblock() {
            let id = self.commit.launch(Flight::Superblock);
            self.counts.written_bytes += bytes.len() as u64;
            let all = 0..bytes.len();
            return Some(Command { id, device: Device::Log, at, op: Op::Write(bytes, all) });
        }
        if self.commit.health == Health::Well {
            // Under load there is always a chunk to write, so a late page goes first.
            let page = if self.is_checkpoint_late() { self.next_page() } else { None };
            if let Some(command) = page.or_else(|| self.next_chunk_write()) {
                return Some(command);
            }
        }
        self.next_flush().or_else(|| self.next_page())
    }

    fn next_chunk_write(&mut self) -> Option<Command> {
        let (mut writes, mut in_flight) = (0, 0);
        for flight in self.commit.flights.values() {
            if let Flight::Chunks { bytes, .. } = flight {
                (writes, in_flight) = (writes + 1, in_flight + bytes);
            }
        }
        if writes >= DEPTH || in_flight >= IN_FLIGHT {
            return None;
        }
        let (first, at, mut parts) = self.next_neighbours()?;
        let (count, bytes) = (parts.len(), parts.iter().map(|(_, len)| len).sum());
        let op = match parts.pop() {
            Some((bytes, len)) if count == 1 => Op::Write(bytes, 0..len),
            last => {
                mark("commit.joined");
                parts.extend(last);
                Op::Join(parts)
            }
        };
        let id = self.commit.launch(Flight::Chunks { first, count, bytes });
        self.commit.issued += count as u64;
        if planted::on(Bug::LetGoEarly) {
            self.kept.let_go(self.commit.issued);
        }
        self.counts.written_bytes += bytes as u64;
        Some(Command { id, device: Device::Log, at, op })
    }

    /// The oldest closed chunk that was not given to the drive, and the chunks that directly follow
    /// it on the drive: number, offset, bytes.
    fn next_neighbours(&mut self) -> Option<(u64, u64, Parts)> {
        let from = (self.commit.issued - self.commit.durable) as usize;
        let place = |sb: &Superblock, h: &Header| sb.place(h.segment) + u64::from(h.offset);
        let first = self.sealed.get(from)?.header;
        let (mut end, mut total) = (place(&self.sb, &first), 0);
        let mut parts = Parts::new();
        for at in from..self.sealed.len() {
            let header = self.sealed[at].header;
            let len = header.len as usize;
            if place(&self.sb, &header) != end || (total > 0 && total + len > JOINED) {
                break;
            }
            if !self.complete_chunk(at) {
                mark("write.waits_for_fill");
                break;
            }
            (end, total) = (end + len as u64, total + len);
            parts.extend(self.sealed[at].bytes().map(|bytes| (Arc::clone(bytes), len)));
        }
        (!parts.is_empty()).then(|| (first.chunk, place(&self.sb, &first), parts))
    }

    fn next_flush(&mut self) -> Option<Command> {
        if self.commit.flushing {
            return None;
        }
        let mut covers = self.commit.written_to;
        if planted::on(Bug::FlushBeforeWritten) {
            covers = self.commit.issued;
        }
        let mut wanted = self.commit.wanted.front().is_some_and(|&(target, ..)| target <= covers);
        if self.is_failed() {
            // A flush for a superblock makes no chunk durable that was written before the failure.
            (covers, wanted) = (self.commit.durable, false);
        }
        let superblock = std::mem::take(&mut self.commit.superblock_unflushed);
        let checkpoint = self.checkpoint.take_unflushed();
        if !wanted && superblock == 0 && !checkpoint {
            return None;
        }
        self.commit.flushing = true;
        self.counts.drive_flushes += 1;
        let id = self.commit.launch(Flight::Flush { covers, superblock, checkpoint });
        Some(Command { id, device: Device::Log, at: 0, op: Op::Flush })
    }

    /// Takes the outcome of a command; returns whether threads may wait for it. Ignores an `id`
    /// that is not in flight.
    pub fn complete(&mut self, id: u64, outcome: &Outcome) -> bool {
        let Some(flight) = self.commit.flights.remove(&id) else { return false };
        let well = !matches!(outcome, Outcome::Failed(_));
        if !well {
            self.counts.errors += 1;
        }
        match flight {
            Flight::Chunks { first, count, bytes } if well => {
                self.commit.unwritten -= bytes as u64;
                self.commit.note_written(first, count);
            }
            Flight::Chunks { .. } => {
                mark("commit.write_failed");
                self.broken();
            }
            Flight::CheckpointPage => self.page_written(well),
            Flight::Flush { covers, superblock, checkpoint } => {
                self.commit.flushing = false;
                if checkpoint && well {
                    self.checkpoint.flushed();
                }
                if superblock > 0 {
                    self.superblock_flushed(superblock, well);
                }
                if well { self.flushed(covers) } else { self.broken() }
            }
            Flight::Superblock => self.superblock_written(well),
        }
        matches!(flight, Flight::Flush { .. }) || !well
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
            self.commit.durable += 1;
            self.commit.rewrites = 0;
        }
        self.kept.let_go(self.commit.durable);
        self.commit.issued = self.commit.issued.max(self.commit.durable);
        self.commit.written_to = self.commit.written_to.max(self.commit.durable);
        let mut served = 0;
        while let Some(&(target, flushes, since_us)) = self.commit.wanted.front()
            && target <= self.commit.durable
        {
            served += flushes;
            self.commit.wanted.pop_front();
            if flushes > 0 {
                let us = self.commit.now_us.saturating_sub(since_us);
                self.commit.took.record(Duration::from_micros(us));
            }
        }
        self.gather(served);
    }

    /// Expects the `served` flushers of the last commit back.
    fn gather(&mut self, served: u32) {
        let commit = &mut self.commit;
        if let Some(took) = commit.now_us.checked_sub(commit.began_us)
            && served > 0
        {
            commit.expected = served + commit.joined;
            let part = took.checked_div(self.options.gather_part).unwrap_or(0);
            commit.gather_until_us = commit.now_us + part.min(GATHER_MAX_US);
        }
        self.end_gathering();
    }

    /// Closes the chunk that flushes wait for, if no more flushers are expected.
    fn end_gathering(&mut self) {
        if self.commit.seal_next && !self.commit.is_busy() && !self.commit.gathers() {
            mark("flush.sealed_next");
            self.seal_for_flushes();
        }
    }

    /// Closes the open chunk, and asks for a commit on behalf of all flushes that wait for it.
    fn seal_for_flushes(&mut self) {
        self.seal();
        let commit = &mut self.commit;
        (commit.seal_next, commit.watched) = (false, false);
        commit.began_us = commit.now_us;
        let joined = std::mem::take(&mut commit.joined);
        commit.want_for(self.next_chunk, joined);
    }

    fn broken(&mut self) {
        if self.commit.health == Health::Well {
            self.commit.health = Health::Broken;
        }
        // Its pages may name chunks that will be laid out anew.
        self.checkpoint.abort();
    }

    /// Fails the log for good; its content is then written back.
    pub(super) fn fail(&mut self) {
        mark("commit.failed");
        self.commit.health = Health::Failed;
        self.counts.failed_unix_s = self.window.now_s();
        self.give_windows_up();
    }

    /// Refuses changes if the log has failed.
    pub(super) fn check_health(&self) -> Result<(), Refused> {
        if self.is_failed() { Err(self.rescue.refusal()) } else { Ok(()) }
    }

    /// The bytes of all closed chunks; `None` while a payload of one is not there yet.
    pub(super) fn complete_sealed(&mut self) -> Option<Vec<Arc<Buffer>>> {
        let all = (0..self.sealed.len()).all(|at| self.complete_chunk(at));
        all.then(|| self.sealed.iter().filter_map(|sealed| sealed.bytes().cloned()).collect())
    }

    fn complete_chunk(&mut self, at: usize) -> bool {
        self.sealed.get_mut(at).is_some_and(|sealed| sealed.complete())
    }

    /// Gives memory back that an idle log does not need.
    pub(super) fn rest(&mut self) {
        self.kept.rest(SPARE);
    }

    /// Whether the log's drive failed for good.
    pub fn is_failed(&self) -> bool {
        self.commit.health == Health::Failed
    }

    /// Whether all that was closed is durable and nothing is in flight.
    pub fn is_quiet(&self) -> bool {
        let still = self.sealed.is_empty() && self.commit.flights.is_empty();
        still && self.window.is_idle() && !self.is_releasing()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::fill::Fills;
    use super::super::kept::Kept;
    use super::super::options::Options;
    use super::*;
    use crate::log::disk::format::{DATA_MIN, Epoch, IDENTITY, Kind, Tail};
    use crate::media::{ChangeCounter, Memory};

    fn core() -> Core {
        let sb = Superblock {
            uuid: [0; 16],
            generation: 1,
            segment: 1 << 20,
            segments: 16,
            data_at: DATA_MIN,
            blocks: 1000,
            open: true,
            tail: Tail::default(),
            written: Tail::default(),
            void: 0,
            at_s: 0,
            change_counter: ChangeCounter::default(),
            copies: false,
            durable: 0,
            identity: [0; IDENTITY],
            checkpoint: None,
            past_s: 0,
            mixture_s: 0,
            spent: false,
            lost: Vec::new(),
            epochs: vec![Epoch { from: 0, id: 7 }],
        };
        Core::new(sb, Options::default(), (0, 0), Kept::new(&Memory::default()).unwrap())
    }

    fn write(core: &mut Core, block: u64) {
        let mut fills = Fills::default();
        core.reserve(block, Kind::Raw, (4096, 0), &mut fills).unwrap();
        fills.fill(&[1; 4096]);
        assert!(!fills.finish());
    }

    /// A writer writes a block and flushes.
    fn sync(core: &mut Core, block: u64) -> Ticket {
        write(core, block);
        core.flush()
    }

    /// Completes all commands at a time, also those that follow; returns how many.
    fn carry_out(core: &mut Core, now_us: u64) -> usize {
        core.clock(now_us);
        let commands = std::iter::from_fn(|| {
            let command = core.next_command()?;
            core.complete(command.id, &Outcome::Done);
            Some(())
        });
        commands.count()
    }

    #[test]
    fn a_single_flusher_does_not_wait() {
        let mut core = core();
        for n in 0..10 {
            core.clock(n * 1000);
            let ticket = sync(&mut core, n);
            assert_eq!(core.patience_us(&mut false), None);
            assert_eq!(carry_out(&mut core, n * 1000 + 900), 2, "a write and a flush");
            assert_eq!(core.progress(ticket), Progress::Done);
        }
    }

    /// Two writers: the second is too late for the commit of the first, which has just ended.
    fn two() -> (Core, Ticket) {
        let mut core = core();
        sync(&mut core, 0);
        let write = core.next_command().unwrap();
        let late = sync(&mut core, 1);
        core.complete(write.id, &Outcome::Done);
        assert_eq!(core.next_command().map(|c| matches!(c.op, Op::Flush)), Some(true));
        core.clock(800);
        core.complete(write.id + 1, &Outcome::Done);
        (core, late)
    }

    #[test]
    fn a_commit_waits_for_whom_the_last_one_served() {
        let (mut core, late) = two();
        assert_eq!(carry_out(&mut core, 850), 0);
        let mut watches = false;
        assert_eq!(core.patience_us(&mut watches), Some(50), "a part of 800");
        assert_eq!(core.patience_us(&mut false), None, "one that watches the clock is enough");
        core.clock(870);
        assert_eq!(core.patience_us(&mut watches), Some(30), "whatever woke it");
        let back = sync(&mut core, 2);
        assert_eq!(carry_out(&mut core, 1650), 2, "one commit for both");
        assert!([late, back].iter().all(|t| core.progress(*t) == Progress::Done));
        // Both are expected now, whichever comes first.
        let first = sync(&mut core, 3);
        assert_eq!(carry_out(&mut core, 1660), 0);
        sync(&mut core, 4);
        assert_eq!(carry_out(&mut core, 1670), 2);
        assert_eq!(core.progress(first), Progress::Done);
    }

    #[test]
    fn a_commit_does_not_wait_long_for_whom_does_not_come() {
        let (mut core, late) = two();
        assert_eq!(carry_out(&mut core, 899), 0);
        assert_eq!(carry_out(&mut core, 900), 2);
        assert_eq!(core.progress(late), Progress::Done);
        // A chunk that is full does not end the waiting, and what waits for it is not forgotten.
        let (mut core, late) = two();
        for block in 0..300 {
            write(&mut core, block);
        }
        assert_eq!(carry_out(&mut core, 899), 1, "a full chunk is written, and not flushed");
        assert_eq!(carry_out(&mut core, 900), 2);
        assert_eq!(core.progress(late), Progress::Done);
    }
}

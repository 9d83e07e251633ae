//! The actors around a volume: flusher, readers, media, clock; the writers are in `writers.rs`.
//!
//! A writer waits when the log is full, and the flusher waits for a sync. Then only the media work,
//! and only they can end the wait. If no command is in flight and none begins, the run hangs.

use crate::atomic::{self, is_lost};
use crate::content::Value;
use crate::drive::Request;
use crate::fault::Kind as Fault;
use crate::image::{Image, PAGE};
use crate::oracle::{self, Seen};
use crate::program::{Order, Side, Slow};
use crate::rng::mix;
use crate::trouble::{Kind, Trouble};
use crate::volume::{Source, on_backing};
use crate::world::{Flying, Reader, World};
use ztier::log::disk::format::DATA_MIN;
use ztier::log::{Device, Found, Op, Outcome, Progress, Refused, Ticket, join};
use ztier::media::{Blocks, Buffer, Drive};

/// Limit on the events that an actor waits for; `IDLE_MAX` limits the steps in a row without one.
const WAIT_MAX: u32 = 100_000;
/// Limit on these events where faults explain the wait.
const TROUBLED_MAX: u32 = 1000;
const IDLE_MAX: u32 = 20;
/// Limit on the events until the core has work that needs no drive.
const STEPPING_MAX: u32 = 2000;
/// Limit on the windows of a drain, in addition to one for each segment.
const DRAIN_MAX: u32 = 20;

/// Milliseconds until a commit that has failed is tried again.
const COMMIT_PAUSE_MS: u64 = 1000;

/// Limit on the windows of a rescue, in addition to one for each segment, in case a drive keeps
/// failing.
const RESCUES_MAX: u32 = 100;

/// The outcome of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Taken {
    /// The log has it.
    Yes,
    /// Not taken, and faults explain that.
    No,
    /// The log has failed: the change goes to the backing store.
    Through,
}

/// Outcome of one step of waiting.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Progressed {
    /// A command ended or began.
    Yes,
    /// No command is in flight.
    No,
}

impl World<'_> {
    /// Flushes the backing store, as a flush does after the log has failed.
    fn flush_through(&mut self) {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.backing.begin(ticket, Request::Flush);
        if self.backing.finish(ticket).is_ok() {
            self.history.acknowledge(self.history.submitted());
        }
    }

    /// Tries until the log takes the change; returns whether it did. Only faults explain a `No`.
    pub(crate) fn submit(
        &mut self,
        mut attempt: impl FnMut(&mut Self) -> Result<(), Refused>,
    ) -> Result<Taken, Trouble> {
        let mut idle = 0;
        for waited in 0..WAIT_MAX {
            match attempt(self) {
                Ok(()) => return Ok(Taken::Yes),
                Err(Refused::Through) => return Ok(Taken::Through),
                Err(Refused::Failed) if self.is_troubled() => return Ok(Taken::No),
                Err(Refused::Failed) => {
                    return Err(Trouble::new(Kind::Failed, "the log has failed"));
                }
                Err(Refused::Full) => {}
            }
            self.say(|| "full".into());
            if !self.volume.core.is_failed() {
                self.begin_window(self.setup.window);
            }
            if waited >= self.setup.patience || self.is_stuck {
                return Ok(Taken::No);
            }
            if waited > TROUBLED_MAX && self.is_troubled() {
                break;
            }
            match self.work()? {
                Progressed::Yes => idle = 0,
                Progressed::No => idle += 1,
            }
            if idle > IDLE_MAX {
                if self.is_troubled() {
                    return Ok(Taken::No);
                }
                return Err(Trouble::new(Kind::Hang, "the log stays full"));
            }
        }
        // A full log that has to record lost blocks, and has no room left for that after a rewrite,
        // retries again and again; so does a window that a broken drive keeps from reading.
        self.is_stuck = self.lies || self.is_troubled();
        if self.is_stuck {
            return Ok(Taken::No);
        }
        Err(Trouble::new(Kind::Hang, "the log stays full, busily"))
    }

    /// The flusher requests a flush.
    pub(crate) fn flush(&mut self) -> Ticket {
        if self.volume.core.is_through() {
            self.flush_through();
        }
        let ticket = self.volume.core.flush();
        self.say(|| format!("{ticket:?} covers {}", self.history.submitted()));
        self.flushes.push((ticket, self.history.submitted()));
        ticket
    }

    /// The flusher requests a flush and waits for it.
    pub(crate) fn sync(&mut self) -> Result<(), Trouble> {
        let ticket = self.flush();
        let waits = |progress| matches!(progress, Progress::Pending | Progress::Rescue);
        self.wait("a flush", |world| !waits(world.volume.core.progress(ticket)))?;
        self.is_secured = self.volume.core.progress(ticket) == Progress::Done;
        self.check_rescued()
    }

    /// Asserts that the backing store has all that a failed, still readable log had made durable.
    fn check_rescued(&mut self) -> Result<(), Trouble> {
        let core = &self.volume.core;
        let kinds = [Fault::Forever, Fault::ReadOnly, Fault::Worn];
        let read = !self.lies && !self.is_unreadable();
        if !core.is_failed() || core.is_rescuing() || !read || self.is_faulty(Side::Backing, &kinds)
        {
            return Ok(());
        }
        if core.is_through() {
            return match self.differing(&self.backing.current()) {
                None => Ok(()),
                Some(block) => {
                    let text = format!("rescued: {block} is not {:?}", self.history.now()[block]);
                    Err(Trouble::new(Kind::Backing, text))
                }
            };
        }
        let durable = self.backing.durable();
        let seen: Vec<Seen> =
            (0..self.setup.blocks).map(|block| on_backing(&durable, block)).collect();
        let found = oracle::prefix(&self.history, &seen);
        found.map(drop).map_err(|why| Trouble::new(Kind::Backing, format!("rescued: {why}")))
    }

    /// The first block of the backing store that differs from the volume.
    fn differing(&self, backing: &Image) -> Option<usize> {
        (0..)
            .zip(self.history.now())
            .position(|(block, value)| backing.value(block) != Some(*value))
    }

    /// Upper bound on the segments of the log.
    fn segments(&self) -> u32 {
        (self.setup.log / u64::from(self.setup.segment)) as u32
    }

    /// Whether a fault of one of these kinds was planned for a drive.
    fn is_faulty(&self, side: Side, kinds: &[Fault]) -> bool {
        self.faults.iter().any(|(at, fault)| *at == side && kinds.contains(&fault.kind))
    }

    /// Whether reads of the log fail, or have failed.
    fn is_unreadable(&self) -> bool {
        let kinds = [Fault::Forever, Fault::BadPage];
        self.is_faulty(Side::Log, &kinds) && self.log.counts().1 > 0
    }

    /// Whether a page of the log is bad: its content may be lost, also after a recovery.
    fn has_bad_page(&self) -> bool {
        self.is_faulty(Side::Log, &[Fault::BadPage]) && self.log.counts().1 > 0
    }

    /// Works until a condition holds; returns whether it does. Only faults explain that it does
    /// not.
    pub(crate) fn wait(
        &mut self,
        what: &str,
        mut done: impl FnMut(&Self) -> bool,
    ) -> Result<bool, Trouble> {
        let mut idle = 0;
        for waited in 0..WAIT_MAX {
            self.poll()?;
            if done(self) {
                return Ok(true);
            }
            if waited > TROUBLED_MAX && self.is_broken() {
                return Ok(false);
            }
            match self.work()? {
                Progressed::Yes => idle = 0,
                Progressed::No => idle += 1,
            }
            if idle > IDLE_MAX {
                if self.is_broken() {
                    return Ok(false);
                }
                return Err(Trouble::new(Kind::Hang, format!("{what} never ends")));
            }
        }
        Err(Trouble::new(Kind::Hang, format!("{what} never ends, busily")))
    }

    /// Lets the media do something; if they have nothing to do, readers end and time passes.
    fn work(&mut self) -> Result<Progressed, Trouble> {
        if self.volume.core.is_rescuing() && self.rescues < RESCUES_MAX + self.segments() {
            self.begin_window(self.setup.window);
        }
        if !self.writers.is_empty() && self.choices.chance(self.setup.filled) {
            let choice = self.choices.bits() as u32;
            self.fill(choice);
            return Ok(Progressed::Yes);
        }
        let before = self.flying.len();
        self.take(self.setup.depth);
        if self.flying.len() > before {
            return Ok(Progressed::Yes);
        }
        if !self.flying.is_empty() {
            self.finish_any()?;
            return Ok(Progressed::Yes);
        }
        if !self.writers.is_empty() {
            self.fill(0);
            return Ok(Progressed::Yes);
        }
        if !self.readers.is_empty() {
            self.end_read(0)?;
            return Ok(Progressed::Yes);
        }
        if self.volume.is_stepping() {
            return Ok(Progressed::Yes);
        }
        self.tick(500);
        Ok(Progressed::No)
    }

    /// Everything in flight ends: writes, reads, commands, and every flush.
    pub(crate) fn settle(&mut self) -> Result<(), Trouble> {
        while !self.writers.is_empty() {
            self.fill(0);
        }
        while !self.readers.is_empty() {
            self.end_read(0)?;
        }
        self.take(self.setup.depth);
        let mut rounds = 0;
        while !self.flying.is_empty() || self.volume.is_stepping() {
            if !self.flying.is_empty() {
                self.finish_any()?;
            }
            self.take(self.setup.depth);
            rounds += 1;
            if rounds > WAIT_MAX {
                return Err(Trouble::new(Kind::Hang, "what is in flight never ends"));
            }
        }
        self.wait("a flush", |world| world.flushes.is_empty())?;
        Ok(())
    }

    /// Works until the core has work that needs no drive, or nothing is left to do.
    pub(crate) fn work_until_stepping(&mut self) -> Result<(), Trouble> {
        for _ in 0..STEPPING_MAX {
            if self.volume.core.is_stepping() || self.work()? == Progressed::No {
                break;
            }
        }
        Ok(())
    }

    /// Works until no window is at work; returns whether that succeeded.
    pub(crate) fn finish_windows(&mut self) -> Result<bool, Trouble> {
        self.wait("a window", |world| world.volume.is_between_windows() && world.flying.is_empty())
    }

    /// Writes everything back; then the backing store must equal the volume.
    pub(crate) fn drain(&mut self) -> Result<(), Trouble> {
        let mut rounds = 0;
        while !self.volume.core.is_clean() {
            rounds += 1;
            self.volume.core.finish_segment();
            self.sync()?;
            self.begin_window(u64::MAX);
            self.finish_windows()?;
            if self.is_troubled() {
                self.stats.errors += 1;
                return Ok(());
            }
            if rounds > DRAIN_MAX + self.segments() {
                return Err(Trouble::new(Kind::Hang, "the drain never ends"));
            }
        }
        self.settle()?;
        if self.is_troubled() || self.has_bad_page() {
            return Ok(());
        }
        self.history.acknowledge(self.history.submitted());
        match self.differing(&self.backing.durable()) {
            None => Ok(()),
            Some(block) => {
                let text = format!("block {block} is not {:?}", self.history.now()[block]);
                Err(Trouble::new(Kind::Backing, text))
            }
        }
    }

    /// Lets `ms` milliseconds pass.
    pub(crate) fn tick(&mut self, ms: u64) {
        self.now_ms += ms;
        self.volume.core.tick(self.now_ms);
    }

    /// Writeback begins with the oldest segments, unless a window is at work.
    pub(crate) fn begin_window(&mut self, bytes: u64) {
        if self.volume.begin_window(bytes) {
            Drive::begin(&self.backing);
            self.rescues += u32::from(self.volume.core.is_failed());
            self.say(|| "a window begins".into());
        }
    }

    /// The media take up to `count` commands.
    pub(crate) fn take(&mut self, count: usize) {
        for _ in 0..count {
            if self.flying.len() >= self.setup.depth {
                return;
            }
            let Some((source, command)) = self.volume.next_command() else {
                return self.take_commit();
            };
            let side = match command.device {
                Device::Log => Side::Log,
                Device::Backing => Side::Backing,
            };
            let request = match &command.op {
                Op::Read(len) => Request::Read(command.at, *len),
                Op::Write(bytes, range) => Request::write(command.at, &bytes[range.clone()]),
                Op::WritePacked(run) => Request::write(command.at, &unpacked(run.blocks())),
                Op::Join(parts) => Request::write(command.at, &join(parts)),
                Op::Zero(len) => Request::zero(command.at, *len),
                Op::Flush => Request::Flush,
            };
            self.say(|| format!("begins: {source:?} {} {side:?} {request}", command.id));
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            let is_read = matches!(request, Request::Read(..));
            let is_flush = matches!(request, Request::Flush);
            self.drive(side).begin(ticket, request);
            let id = command.id;
            let is_slow = match self.setup.slow {
                Slow::Nothing => false,
                Slow::Some(permille) => mix(self.setup.seed ^ ticket) % 1000 < u64::from(permille),
                Slow::Superblocks => side == Side::Log && command.at < DATA_MIN && !is_flush,
                Slow::Flushes => is_flush,
                Slow::Backing => side == Side::Backing,
            };
            self.flying.push(Flying { source, id, side, ticket, is_read, is_slow });
        }
    }

    /// An atomic backing store takes the commit that is due.
    fn take_commit(&mut self) {
        let under_way = self.flying.iter().any(|flying| flying.source == Source::Commit);
        let due = self.volume.core.commit_due();
        let Some(commit) = due.filter(|_| !under_way && self.now_ms >= self.commit_at_ms) else {
            return;
        };
        self.say(|| format!("begins: {commit:?}"));
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.backing.begin(ticket, Request::Commit(commit));
        // An upload takes long beside anything else.
        let is_slow = !mix(self.setup.seed ^ ticket).is_multiple_of(4);
        let (source, side) = (Source::Commit, Side::Backing);
        self.flying.push(Flying { source, id: 0, side, ticket, is_read: false, is_slow });
    }

    /// Chooses the command in flight that ends next; `None` if only slow commands are left.
    fn choose(&self, choice: u32) -> Option<usize> {
        // Once in 64 choices a slow command may end.
        let slow_too = choice.is_multiple_of(64);
        let candidates: Vec<usize> =
            (0..self.flying.len()).filter(|at| slow_too || !self.flying[*at].is_slow).collect();
        match self.setup.order {
            Order::First => candidates.first().copied(),
            Order::Last => candidates.last().copied(),
            Order::Any if candidates.is_empty() => None,
            Order::Any => Some(candidates[(choice / 64) as usize % candidates.len()]),
        }
    }

    /// An actor waits until the media end a command; at least one is in flight.
    fn finish_any(&mut self) -> Result<(), Trouble> {
        let choice = self.choices.bits() as u32;
        let all_slow = self.flying.iter().all(|flying| flying.is_slow);
        self.finish(if all_slow { choice / 64 * 64 } else { choice })
    }

    /// The media end a command, chosen by the setup's order and `choice`.
    pub(crate) fn finish(&mut self, choice: u32) -> Result<(), Trouble> {
        let Some(at) = self.choose(choice) else {
            return Ok(());
        };
        let Flying { source, id, side, ticket, is_read, .. } = self.flying.remove(at);
        let fired = self.fired();
        let outcome = match self.drive(side).finish(ticket) {
            Err(error) => Outcome::Failed(error),
            Ok(data) if is_read => Outcome::Bytes(data),
            Ok(_) => Outcome::Done,
        };
        self.say(|| format!("ends: {source:?} {id} {outcome:?}"));
        self.note_faults(fired);
        self.stats.commands += 1;
        let done = matches!(outcome, Outcome::Done);
        if source == Source::Commit && !done {
            self.commit_at_ms = self.now_ms + COMMIT_PAUSE_MS;
        }
        self.volume.complete(source, id, outcome);
        if source == Source::Commit && done {
            self.judge_store()?;
        }
        self.poll()
    }

    /// Collects the flushes that have ended.
    fn poll(&mut self) -> Result<(), Trouble> {
        let mut waiting = std::mem::take(&mut self.flushes);
        let mut failed = false;
        waiting.retain(|(ticket, position)| match self.volume.core.progress(*ticket) {
            Progress::Pending | Progress::Rescue => true,
            Progress::Done => {
                self.say(|| format!("{ticket:?} is done"));
                self.history.acknowledge(*position);
                false
            }
            Progress::Failed => {
                failed = true;
                false
            }
        });
        self.flushes = waiting;
        if failed && !self.is_troubled() {
            return Err(Trouble::new(Kind::Failed, "a flush has failed"));
        }
        Ok(())
    }

    /// A reader begins: a payload in memory ends the read at once.
    pub(crate) fn begin_read(&mut self, block: u32) -> Result<(), Trouble> {
        let value = self.history.now()[block as usize];
        let written = self.history.written_at(block);
        let reading = match self.volume.locate(block) {
            Found::Zeros => return self.compare(block, &[value], Some(Value::Zero)),
            Found::Memory(kind) => {
                let Some(page) = self.volume.decoded(block, kind) else {
                    return self.lost(block, written);
                };
                let found = Value::recognise(block, page);
                return self.compare(block, &[value], found);
            }
            Found::Lost | Found::Before(_) => return self.lost(block, written),
            Found::Filling if self.fill_blocks(block..block + 1) => return self.begin_read(block),
            Found::Filling => {
                let text = format!("a read of {block} waits for a writer, and there is none");
                return Err(Trouble::new(Kind::Hang, text));
            }
            Found::Log(reading) => Some(reading),
            Found::Backing => None,
        };
        let copy = self.volume.core.has_clean(block.into());
        self.readers.push(Reader { block, reading, copy, written, allowed: vec![value] });
        Ok(())
    }

    /// A reader ends: it reads from a drive the payload that it located when it began.
    pub(crate) fn end_read(&mut self, choice: u32) -> Result<(), Trouble> {
        if self.readers.is_empty() {
            return Ok(());
        }
        let reader = self.readers.swap_remove(choice as usize % self.readers.len());
        let block = reader.block;
        let Some(reading) = &reader.reading else { return self.read_backing(&reader) };
        let first = reading.at / PAGE as u64 * PAGE as u64;
        let skip = (reading.at - first) as usize;
        let len = (skip + reading.len as usize).next_multiple_of(PAGE);
        let data = self.read_now(Side::Log, first, len)?;
        self.volume.core.release(reading);
        let Some(data) = data else { return Ok(()) };
        let payload = &data[skip..][..reading.len as usize];
        let has_left = self.volume.core.has_left(reading);
        match self.volume.verified(reading, reading.check, payload) {
            Some(page) => {
                let found = Value::recognise(block, page);
                self.compare(block, &reader.allowed, found)
            }
            None if reader.copy => {
                self.volume.core.drop_copy(reading, block.into());
                self.read_backing(&reader)
            }
            // The payload had to leave the log at once, and its room is reused.
            None if has_left => self.begin_read(block),
            None => self.lost(block, reader.written),
        }
    }

    /// Ends a read from the backing store: the log has no payload, or a damaged copy.
    fn read_backing(&mut self, reader: &Reader) -> Result<(), Trouble> {
        let at = u64::from(reader.block) * PAGE as u64;
        let Some(data) = self.read_now(Side::Backing, at, PAGE)? else { return Ok(()) };
        let page = data.as_chunks::<PAGE>().0.first();
        if page.is_some_and(is_lost) {
            return self.lost(reader.block, reader.written);
        }
        let found = page.and_then(|page| Value::recognise(reader.block, page));
        self.compare(reader.block, &reader.allowed, found)
    }

    /// Reads from a drive, at once; `None` if a planned fault fails the read.
    fn read_now(&mut self, side: Side, at: u64, len: usize) -> Result<Option<Buffer>, Trouble> {
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        self.drive(side).begin(ticket, Request::Read(at, len));
        let fired = self.fired();
        let result = self.drive(side).finish(ticket);
        self.note_faults(fired);
        match result {
            Ok(data) => Ok(Some(data)),
            Err(_) => {
                self.stats.errors += 1;
                Ok(None)
            }
        }
    }

    fn compare(
        &mut self,
        block: u32,
        allowed: &[Value],
        found: Option<Value>,
    ) -> Result<(), Trouble> {
        self.stats.reads += 1;
        match found {
            Some(value) if allowed.contains(&value) => Ok(()),
            _ => Err(Trouble::new(
                Kind::Read,
                format!("block {block} should hold one of {allowed:?}, and held {found:?}"),
            )),
        }
    }

    /// A read reported that the value written to a block at position `written` is lost. Only a lie
    /// explains that, and only for writes before the lie.
    pub(crate) fn lost(&mut self, block: u32, written: u64) -> Result<(), Trouble> {
        self.stats.lost += 1;
        if (self.lies || self.is_unreadable()) && written <= self.lied_at {
            return Ok(());
        }
        Err(Trouble::new(Kind::Lost, format!("block {block}, and nothing explains it")))
    }
}

/// What an atomic backing store gets: blocks that are packed, and others as they are. One that does
/// not decode can't be read any more.
fn unpacked(blocks: Blocks<'_>) -> Vec<u8> {
    let (mut whole, good) = blocks.unpack();
    for (block, good) in whole.as_chunks_mut().0.iter_mut().zip(good) {
        if !good {
            *block = atomic::lost();
        }
    }
    whole.to_vec()
}

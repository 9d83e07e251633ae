//! Moves the tail of the log: windows of writeback, and the superblock that names the new tail.
//!
//! [`Core::begin_window`] plans a window, a [`Writeback`](super::writeback::Writeback) of its own
//! carries the window out, and [`Core::end_window`] takes it back. Invariants: a window holds whole
//! segments that are durable, from the tail on. When it ends well, the backing store durably holds
//! the state of the volume at the window's end. Only then does the index forget entries that name
//! the window's segments; then a superblock with the new tail is made durable, one copy after the
//! other; only then are the slots free. The work after a window is done in steps, one for each call
//! of [`Core::next_command`]: a step visits a bounded number of blocks, ranges or segments.

use super::commit_state::{Progress, Ticket};
use super::release::Release;
use super::state::Core;
use super::window_state::{After, Copying, Ended, Judged, Plan, Planned, STEP, Stage, Step};
use crate::log::disk::format::{IDENTITY, SUPER, SUPER_AT, Tail};
use crate::log::planted::{self, Bug, mark, visits};
use crate::media::{Buffer, ChangeCounter};
use std::sync::Arc;

/// Times that a superblock whose write or flush failed is written again.
const TRIES: u32 = 3;
/// Windows in a row that may fail because the log cannot be read; after them a window goes on
/// without what cannot be read.
const READ_TRIES: u32 = 5;
impl Core {
    /// Sets the time, in seconds since 1970; first after opening, before any other call.
    pub fn wall(&mut self, unix_s: u64) {
        self.window.now_s = unix_s;
        if self.window.opened_s == 0 {
            self.window.opened_s = unix_s;
            if self.is_clean() {
                (self.sb.past_s, self.sb.mixture_s) = (unix_s, 0);
            }
        }
    }

    /// Resumes after the last volume, which ended `in_order`, or else may have had a window at
    /// work.
    pub(in crate::log) fn resume(&mut self, in_order: bool) {
        if let Some(last) = self.end().checked_sub(1).filter(|last| *last >= self.written) {
            self.window.changed(last, self.written, self.commit.now_ms());
        }
        if self.fullness().0 == 0 {
            self.sb.mixture_s = 0;
        } else if !in_order && !self.options.atomic || self.sb.mixture_s > 0 {
            self.sb.mixture_s = self.sb.mixture_s.max(self.sb.past_s).max(1);
            self.window.reached = self.first + self.segments.len() as u64;
        }
    }

    /// The time of the last state of the volume that the backing store alone was in; 0: unknown.
    pub(super) fn past_s(&self) -> u64 {
        if self.is_clean() { self.window.now_s } else { self.sb.past_s }
    }

    /// Notes that the segments before `end` begin to be written to the backing store.
    pub(super) fn mixes(&mut self, end: u64) {
        self.window.reached = self.window.reached.max(end);
        if self.sb.mixture_s == 0 {
            self.sb.mixture_s = self.window.now_s.max(1);
        }
    }

    /// Notes that the segments before `end` have been written to the backing store.
    pub(super) fn mixed(&mut self, end: u64) {
        self.sb.past_s = self.past_at(end);
        while self.window.times.front().is_some_and(|(s, _)| *s < end) {
            self.window.times.pop_front();
        }
        // The mixture ends, unless a larger window has begun to write segments behind this end.
        if end >= self.window.reached {
            self.sb.mixture_s = 0;
        }
    }

    /// The time of the state with the segments before `end`.
    pub(super) fn past_at(&self, end: u64) -> u64 {
        let before = self.window.times.iter().take_while(|(segment, _)| *segment < end).last();
        before.map_or(self.sb.past_s, |(_, time)| *time).max(self.window.opened_s)
    }

    /// Begins the next window: the oldest durable segments that are not written back, at most
    /// `bytes` of them (at least one segment). `None` when there is none, or a window is at work.
    pub fn begin_window(&mut self, bytes: u64) -> Option<Plan> {
        if self.is_failed() {
            return self.begin_rescue(bytes);
        }
        if !matches!(self.window.step, Step::Idle) || self.window.copying.is_some() {
            return None;
        }
        let most = (bytes / u64::from(self.sb.segment)).max(1) as usize;
        let durable = self.commit.durable();
        let skip = (self.written - self.first) as usize;
        let count = (skip..self.segments.len().min(skip + most)).take_while(|&i| {
            let next = self.segments.get(i + 1).map_or(self.next_chunk, |s| s.chunk);
            let early = planted::on(Bug::WindowBeforeDurable);
            self.segments[i].finished && (next <= durable || early)
        });
        let count = count.count();
        if count == 0 {
            return None;
        }
        let end = self.written + count as u64;
        let there = (self.written..end).zip(self.segments.iter().skip(skip));
        let planned = there.map(|(number, s)| Planned {
            number,
            at: self.sb.place(number),
            from: 0,
            used: s.used,
            epoch: s.epoch,
            chunk: s.chunk,
            prev: s.prev,
        });
        let segments = planned.collect();
        if planted::on(Bug::DropTombstone) {
            self.holes.retire(end, usize::MAX);
        }
        self.window.step = Step::Away { end, reached: self.window.reached };
        if !self.options.atomic {
            self.mixes(end);
        }
        mark("window.begun");
        let (stones, records) = self.window.unread_parts.before(end);
        let patient = self.is_patient() && stones.is_empty();
        let packs = self.options.atomic;
        Some(Plan { segments, patient, packs, images: Vec::new(), stones, records })
    }

    /// Whether no window is at work.
    pub fn is_between_windows(&self) -> bool {
        matches!(self.window.step, Step::Idle)
    }

    /// Whether there is more to do that needs no drive: the thread that drives the core asks for a
    /// command again at once.
    pub fn is_stepping(&self) -> bool {
        let steps = match &self.window.step {
            Step::Judging(_) | Step::Forgetting { .. } => true,
            Step::Leaving { end } => self.leaves_on(*end),
            _ => false,
        };
        steps || self.is_stepping_copies()
    }

    /// Whether a window is past its writeback, or is one of a failed log: it may change index and
    /// superblock.
    pub(super) fn window_moves(&self) -> bool {
        !matches!(self.window.step, Step::Idle | Step::Away { .. })
    }

    /// Whether the index forgets segments that the superblock still counts as part of the log.
    pub(super) fn is_moving_tail(&self) -> bool {
        let moving = matches!(self.window.step, Step::Forgetting { .. } | Step::Moving { .. });
        moving || self.is_releasing()
    }

    /// Finishes the segment that is being filled, so that the next window can take it.
    pub fn finish_segment(&mut self) {
        self.seal();
        if let Some(last) = self.segments.back_mut() {
            last.finished = last.used > 0;
        }
    }

    /// Takes back a window, and begins to judge it.
    pub fn end_window(&mut self, ended: Ended) {
        if matches!(ended, Ended::Badly { unread: true }) {
            mark("window.unread");
            self.counts.windows_unread += 1;
            self.window.unread += 1;
        }
        let (end, reached, rescues) = match std::mem::take(&mut self.window.step) {
            Step::Away { .. } if self.is_failed() => return,
            Step::Away { end, reached } => (end, reached, false),
            Step::Rescuing { end, reached } => (end, reached, true),
            step => {
                self.window.step = step;
                return;
            }
        };
        let Ended::Well { cut, blocks, damaged, unreadable, lost } = ended else {
            mark("window.failed");
            self.counts.windows_failed += 1;
            if rescues {
                self.rescue_tried(false);
            }
            return;
        };
        if rescues {
            self.rescue_tried(true);
        }
        if let Some(cut) = cut {
            self.window.reached = reached.max(cut);
        }
        let end = cut.unwrap_or(end);
        if self.options.atomic && !unreadable.is_empty() {
            mark("window.mixes");
            // Blocks that only newer segments have now keep an older state than the window's.
            self.mixes(self.end());
        }
        let judged = Judged { end, rescues, blocks, lost };
        if planted::on(Bug::CommitBeforeJudging) && self.options.atomic && !rescues {
            return self.settled(judged);
        }
        let judging = self.begin_judging(judged, damaged, &unreadable);
        self.window.step = Step::Judging(Box::new(judging));
        self.step_window();
    }

    /// Ends judging: the tail may move when all that judging appended is durable.
    pub(super) fn end_judging(&mut self, ticket: Ticket, judged: Judged) {
        self.window.step = Step::Securing { ticket, judged };
    }

    /// Notes that nothing of the segments before `end` has to be read again.
    pub(super) fn read_well(&mut self, end: u64) {
        self.window.unread = 0;
        self.window.unread_parts.forget(end, self.sb.segment);
    }

    /// Carries a window that came back one step further.
    pub(super) fn step_window(&mut self) {
        match std::mem::take(&mut self.window.step) {
            Step::Judging(judging) => {
                match self.judge(judging) {
                    Some(judging) => self.window.step = Step::Judging(judging),
                    // Mostly nothing was appended, and there is nothing to wait for.
                    None if matches!(self.window.step, Step::Securing { .. }) => self.step_window(),
                    None => {}
                }
            }
            Step::Securing { ticket, judged } => {
                if self.progress(ticket) != Progress::Done {
                    self.window.step = Step::Securing { ticket, judged };
                    return;
                }
                self.settled(judged);
            }
            // Ranges first: a block that the index forgets must not uncover an older range.
            Step::Forgetting { end, blocks, retired: false } => {
                let retired = self.holes.retire(end, STEP);
                mark(if retired { "window.retired" } else { "window.retires_on" });
                self.window.step = Step::Forgetting { end, blocks, retired };
            }
            Step::Forgetting { end, mut blocks, retired } => {
                let from = blocks.len().saturating_sub(STEP);
                visits(blocks.len() - from);
                for block in blocks.drain(from..) {
                    let place = self.map.get(block);
                    if place.is_some_and(|p| self.segment_of(p.slot) < end) {
                        self.forget_block(block);
                    }
                }
                if from == 0 {
                    if planted::on(Bug::ForgetBeforeRetiring) {
                        self.holes.retire(end, usize::MAX);
                    }
                    self.move_tail(end, true);
                } else {
                    mark("window.forgets_on");
                    self.window.step = Step::Forgetting { end, blocks, retired };
                }
            }
            Step::Leaving { end } => {
                self.window.step = Step::Leaving { end };
                self.leave(end);
            }
            step @ (Step::Idle
            | Step::Away { .. }
            | Step::Rescuing { .. }
            | Step::Committing(_)
            | Step::Moving { .. }) => self.window.step = step,
        }
    }

    /// Begins to forget the segments before `end`, which the backing store has, and their `blocks`.
    pub(super) fn forget_window(&mut self, end: u64, blocks: Vec<u64>) {
        if !self.frees_at_once() {
            mark("window.leaves_copies");
            if planted::on(Bug::RetireBeforeCopies) {
                self.holes.retire(end, usize::MAX);
            }
            return self.move_tail(end, false);
        }
        let retired = planted::on(Bug::ForgetBeforeRetiring);
        self.window.step = Step::Forgetting { end, blocks, retired };
    }

    /// Gives windows up when the log fails: only the return of a writeback at work is awaited.
    pub(super) fn give_windows_up(&mut self) {
        match &self.window.step {
            Step::Away { .. } | Step::Rescuing { .. } | Step::Committing(_) => {}
            Step::Judging(judging) if judging.rescues() => {}
            Step::Forgetting { end, .. } | Step::Moving { end, .. } | Step::Leaving { end } => {
                // The index has begun to rely on the backing store for these segments.
                self.rescued(*end);
                self.window.step = Step::Idle;
            }
            Step::Idle | Step::Judging(_) | Step::Securing { .. } => self.window.step = Step::Idle,
        }
        self.release = Release::default();
        self.window.copying = None;
        self.window.purposes.clear();
        self.window.tries = 0;
        self.commit.superblock_unflushed = 0;
    }

    /// Begins a window of a failed log, of the segments before `end`.
    pub(super) fn rescue_until(&mut self, end: u64) {
        self.window.step = Step::Rescuing { end, reached: self.window.reached };
        if !self.options.atomic {
            self.mixes(end);
        }
    }

    /// Whether the next window is given up when the log cannot be read.
    pub(super) fn is_patient(&self) -> bool {
        self.window.unread < READ_TRIES
    }

    fn move_tail(&mut self, end: u64, frees: bool) {
        self.sb.written = self.tail_at(end);
        // All other lost ranges were appended again.
        self.sb.lost = std::mem::take(&mut self.window.lost);
        if frees {
            self.sb.tail = self.sb.written;
            self.drop_epochs();
        }
        self.window.step = Step::Moving { end, frees };
        self.write_superblock(After::Tail);
        if planted::on(Bug::ReuseBeforeSuperblock) && frees {
            self.wrote(end);
            self.leave(end);
            while self.leaves_on(end) {
                self.leave(end);
            }
        }
    }

    /// The tail of a log that begins with `segment`.
    pub(super) fn tail_at(&self, segment: u64) -> Tail {
        let at = self.segments.get((segment - self.first) as usize);
        let (chunk, prev) = at.map_or((self.next_chunk, self.prev), |s| (s.chunk, s.prev));
        Tail { segment, chunk, prev }
    }

    /// Drops the epochs whose chunks are all before the tail.
    pub(super) fn drop_epochs(&mut self) {
        let old = self.sb.epochs.iter().filter(|e| e.from <= self.sb.tail.chunk).count();
        self.sb.epochs.drain(..old.saturating_sub(1));
    }

    /// The superblock with the new tail is durable.
    fn moved(&mut self) {
        let Step::Moving { end, frees } = self.window.step else { return };
        self.wrote(end);
        if frees {
            return self.leave(end);
        }
        self.counts.windows += 1;
        mark("window.ended");
        self.window.step = Step::Idle;
    }

    /// Frees the slots before `end`, if no reader is left.
    fn leave(&mut self, end: u64) {
        if !self.free(end) {
            self.window.step = Step::Leaving { end };
            return;
        }
        self.counts.windows += 1;
        mark("window.ended");
        self.window.step = Step::Idle;
    }

    /// Frees slots before `end`, the oldest first; `false` while there are more, which readers hold
    /// or the next step frees.
    pub(super) fn free(&mut self, end: u64) -> bool {
        for _ in 0..STEP {
            if self.first >= end {
                return true;
            }
            if !self.leaves_on(end) && !planted::on(Bug::IgnorePins) {
                mark("window.pinned");
                return false;
            }
            self.segments.pop_front();
            self.first += 1;
        }
        self.first >= end
    }

    /// Whether the oldest segment is before `end`, and no reader holds it.
    pub(super) fn leaves_on(&self, end: u64) -> bool {
        self.first < end && self.segments.front().is_some_and(|oldest| oldest.pins == 0)
    }

    /// Begins to write the superblock, or begins again if it is being written.
    pub(super) fn write_superblock(&mut self, purpose: After) {
        self.sb.generation += 1;
        (self.sb.durable, self.sb.at_s) = (self.commit.durable(), self.window.now_s);
        if !self.window.purposes.contains(&purpose) {
            self.window.purposes.push(purpose);
        }
        let fresh = Copying { copy: 0, stage: Stage::Due, serial: 0, more: true, again: false };
        self.window.copying = Some(match self.window.copying {
            None => fresh,
            Some(now) if now.stage == Stage::Writing => {
                mark("superblock.again");
                Copying { again: true, ..now }
            }
            // The copy that is not durable yet comes first.
            Some(now) => Copying { copy: now.copy, ..fresh },
        });
    }

    /// The superblock to write now, if there is one: offset and bytes.
    pub(super) fn next_superblock(&mut self) -> Option<(u64, Arc<Buffer>)> {
        let now = self.window.copying.as_mut().filter(|now| now.stage == Stage::Due)?;
        now.stage = Stage::Writing;
        let mut bytes = Buffer::new(SUPER);
        bytes.copy_from_slice(&self.sb.encode());
        Some((SUPER_AT[now.copy], Arc::new(bytes)))
    }

    pub(super) fn superblock_written(&mut self, well: bool) {
        let Some(now) = self.window.copying.as_mut() else { return };
        if !well {
            mark("superblock.write_failed");
            now.stage = Stage::Due;
            return self.superblock_failed();
        }
        if planted::on(Bug::SuperblocksTogether) && now.more {
            (now.copy, now.more, now.stage) = (1 - now.copy, false, Stage::Due);
            return;
        }
        self.window.serial += 1;
        (now.stage, now.serial) = (Stage::Flushing, self.window.serial);
        self.commit.superblock_unflushed = self.window.serial;
    }

    pub(super) fn superblock_flushed(&mut self, serial: u64, well: bool) {
        let Some(now) = self.window.copying.as_mut() else { return };
        if now.stage != Stage::Flushing || now.serial != serial {
            return;
        }
        if !well {
            mark("superblock.flush_failed");
            now.stage = Stage::Due;
            return self.superblock_failed();
        }
        if now.more || now.again {
            *now = Copying {
                copy: 1 - now.copy,
                stage: Stage::Due,
                serial: 0,
                more: now.again,
                again: false,
            };
            return;
        }
        self.window.copying = None;
        self.window.tries = 0;
        for purpose in std::mem::take(&mut self.window.purposes) {
            match purpose {
                After::Rewrite => self.commit.rewrite_may_begin(self.next_chunk),
                After::Identity => {}
                After::Checkpoint => self.checkpoint.named(),
                After::Close => self.window.closed = true,
                After::Spent => self.spent(),
                After::Tail => self.moved(),
                After::Release => self.released(),
            }
        }
    }

    fn superblock_failed(&mut self) {
        self.window.tries += 1;
        if self.window.tries > TRIES && self.is_failed() {
            self.give_windows_up();
            self.cannot_mark();
        } else if self.window.tries > TRIES {
            self.fail();
        }
    }

    /// Writes a superblock that says that the log was closed in order; [`Self::is_closed`] says
    /// when that is done. Call it when everything is durable, and make no change afterwards.
    /// `counter` is the change counter of the backing store.
    pub fn close(&mut self, counter: ChangeCounter) {
        (self.sb.open, self.sb.change_counter) = (false, counter);
        self.settle_copies();
        self.checkpoint.abort();
        self.write_superblock(After::Close);
    }

    /// Notes what identifies the backing store, for the next superblock that is written.
    pub fn note_identity(&mut self, identity: [u8; IDENTITY]) {
        self.sb.identity = identity;
    }

    /// Notes what identifies the backing store now; durable when [`Self::is_written`], unless the
    /// log has failed.
    pub fn identify(&mut self, identity: [u8; IDENTITY]) {
        self.note_identity(identity);
        if !self.is_failed() || self.is_rescuing() {
            self.write_superblock(After::Identity);
        }
    }

    /// The volume has this many blocks from now on; durable as [`Self::identify`] is. The backing
    /// store must have them already: it refuses a log that is larger.
    pub fn grow(&mut self, blocks: u64) {
        self.sb.blocks = blocks;
        if (!self.is_failed() || self.is_rescuing()) && !planted::on(Bug::GrowUnwritten) {
            self.write_superblock(After::Identity);
        }
    }

    /// Whether the superblock on the drive is the newest.
    pub fn is_written(&self) -> bool {
        self.window.copying.is_none()
    }

    /// Whether [`Self::close`] is done.
    pub fn is_closed(&self) -> bool {
        self.window.closed
    }
}

//! How a thread of a logged volume waits: it carries the core's commands out itself, and sleeps
//! only when there are none.
//!
//! Invariants: threads sleep in one place only, `Logged::wait`, and each sleep names what it awaits
//! ([`super::waits`]). A request that waits for room, or for the rescue of a failed log, waits
//! while the drives do their part; when they fail, it waits [`PATIENCE`].

use super::logged::{Fault, Logged};
use super::planted::{self, Bug};
use super::waits::{self, Awaited};
use crate::BLOCK_SIZE;
use crate::log::core::{Command, Core, Device, Op, Outcome, Progress};
use crate::media::DriveError;
use crate::sync::atomic::Ordering;
use crate::sync::{Instant, MutexGuard, now, step_aside};
use std::time::Duration;

/// Longest sleep before a thread looks again.
const WAIT: Duration = Duration::from_millis(50);
/// While writeback fails, a request that waits for room fails with the drive's error only after it
/// has waited this long and this many windows in a row have failed.
const PATIENCE: Duration = Duration::from_secs(10);
const FAILURES: u32 = 3;

impl Logged {
    /// A command of a window has failed.
    pub(super) fn note_failure(&self, failure: DriveError) {
        *self.failure.lock() = Some(failure);
    }

    /// A window has ended.
    pub(super) fn note_window(&self, well: bool) {
        if well {
            self.failures.store(0, Ordering::Release);
        } else {
            self.failures.fetch_add(1, Ordering::AcqRel);
            // Requests that wait for room check whether to give up.
            self.events.notify();
        }
    }

    /// The fault of a request that has waited for room since `began` and gives up; else `None`.
    pub(super) fn gives_up(&self, began: Instant) -> Option<Fault> {
        let few = self.failures.load(Ordering::Acquire) < FAILURES;
        if few || now() - began < PATIENCE || planted::on(Bug::WaitForRoomForEver) {
            return None;
        }
        Some(self.failure.lock().map_or(Fault::Failed, Fault::Drive))
    }

    /// Makes all writes durable that were acknowledged before. Those of a failed log are durable
    /// when all of them are in the backing store.
    ///
    /// # Errors
    /// The log has failed, and what it held is not in the backing store.
    pub fn flush(&self) -> Result<(), Fault> {
        self.flush_awaiting(Awaited::Writeback)
    }

    /// As [`Self::flush`], for threads that must not wait for the rescue of a failed log.
    ///
    /// # Errors
    /// The log has failed.
    pub(super) fn commit(&self) -> Result<(), Fault> {
        self.flush_awaiting(Awaited::Commit)
    }

    fn flush_awaiting(&self, most: Awaited) -> Result<(), Fault> {
        self.touch();
        let mut core = self.core.lock();
        if core.is_through() {
            drop(core);
            return Ok(self.backing.flush()?);
        }
        core.clock(self.now_us());
        let ticket = core.flush();
        let (mut worked, mut watches) = (false, false);
        loop {
            let awaited = match core.progress(ticket) {
                Progress::Pending => Awaited::Commit,
                Progress::Rescue if most >= Awaited::Writeback => Awaited::Writeback,
                progress => {
                    self.hand_over(worked);
                    return if progress == Progress::Done { Ok(()) } else { Err(Fault::Failed) };
                }
            };
            (core, worked) = self.act(core);
            if !worked {
                let soon = core.patience_us(&mut watches).map_or(WAIT, Duration::from_micros);
                let seen = self.events.seen();
                drop(core);
                self.wait(awaited, seen, soon.min(WAIT));
                if ticket.is_done(self.durable.load(Ordering::Acquire)) {
                    return Ok(());
                }
                core = self.core.lock();
            }
        }
    }

    /// Waits until the log has taken the chunks that a dead process left in memory.
    ///
    /// # Errors
    /// The log has failed before, or there is no room because writeback fails.
    pub fn recommit(&self) -> Result<(), Fault> {
        self.wait_for_room(|core| match (core.is_recommitting(), core.is_failed()) {
            (false, _) => Some(Ok(())),
            (true, true) => Some(Err(Fault::Failed)),
            (true, false) => None,
        })?
    }

    /// Carries out the core's commands until `ready` returns a value. It may need room in the log.
    ///
    /// # Errors
    /// There is no room, because writeback fails.
    pub(super) fn wait_for_room<T>(
        &self,
        mut ready: impl FnMut(&mut Core) -> Option<T>,
    ) -> Result<T, Fault> {
        let began = now();
        self.settle(Awaited::Writeback, |core| match ready(core) {
            Some(value) => Some(Ok(value)),
            None => self.gives_up(began).map(Err),
        })
    }

    /// Carries out the core's commands until `ready` returns a value. This thread waits for
    /// `awaited`.
    pub(super) fn settle<T>(
        &self,
        awaited: Awaited,
        mut ready: impl FnMut(&mut Core) -> Option<T>,
    ) -> T {
        let mut core = self.core.lock();
        let mut worked = false;
        loop {
            if let Some(value) = ready(&mut core) {
                self.hand_over(worked);
                return value;
            }
            (core, worked) = self.act(core);
            // Asking for a command may have taken a step.
            if !worked && let Some(value) = ready(&mut core) {
                return value;
            }
            if !worked && core.is_stepping() {
                // In steps: between two of them other threads get the lock.
                core = step_aside(&self.core, core);
            } else if !worked {
                let seen = self.events.seen();
                drop(core);
                self.wait(awaited, seen, WAIT);
                core = self.core.lock();
            }
        }
    }

    /// The one place where a thread waits for other threads of the log.
    pub(super) fn wait(&self, awaited: Awaited, seen: u32, most: Duration) {
        waits::check(awaited);
        self.events.wait(seen, most);
    }

    /// Carries out a command of the core; `false` if there is none.
    fn act<'a>(&'a self, mut core: MutexGuard<'a, Core>) -> (MutexGuard<'a, Core>, bool) {
        core.clock(self.now_us());
        let Some(command) = core.next_command() else { return (core, false) };
        drop(core);
        let outcome = self.carry_out(&command);
        let mut core = self.core.lock();
        self.note(&mut core, command.id, &outcome);
        (core, true)
    }

    /// Wakes waiters if this thread has `worked`: it may leave commands that no waiter knows of.
    fn hand_over(&self, worked: bool) {
        if worked {
            self.events.notify();
        }
    }

    /// Flushes the backing store.
    pub(super) fn flush_backing(&self) -> Outcome {
        self.backing.flush().map_or_else(Outcome::Failed, |()| Outcome::Done)
    }

    /// Carries out a command, and counts the bytes that it has written to the backing store or
    /// zeroed in it: by these a drain shows that it goes on.
    pub(super) fn carry_out(&self, command: &Command) -> Outcome {
        let outcome = command.carry_out(&*self.log, &*self.backing);
        if command.device == Device::Backing && matches!(outcome, Outcome::Done) {
            let (counter, bytes) = match &command.op {
                Op::Write(_, range) => (&self.written_back, range.len()),
                Op::WritePacked(run) => (&self.written_back, run.blocks().count() * BLOCK_SIZE),
                Op::Zero(len) => (&self.zeroed_back, *len as usize),
                Op::Read(_) | Op::Join(_) | Op::Flush => return outcome,
            };
            counter.fetch_add(bytes as u64, Ordering::Relaxed);
        }
        outcome
    }
}

//! Ends a volume: by `down`, by leaving it to the next daemon, or by a signal.
//!
//! Invariants: an impossible request is refused before anything changes; a request changes
//! something only after its caller has agreed ([`Asking::agree`]); a signal gives up no data, and
//! neither does a daemon that leaves the volume to the next one.

use super::draining;
use super::evicted;
use super::log;
use super::memory_holder::Kept;
use super::phase::{Change, End, Turn};
use super::relog;
use super::running::Running;
use super::signals::Event;
use super::unsent;
use crate::config::export::Export;
use crate::config::{Plan, size};
use crate::control::{Asking, Ended, EventKind, LeftInLog, NewLog};
use crate::device::{self, Device};
use crate::error::{Error, Result};
use crate::remedy;
use std::sync::Arc;
use std::time::Instant;

/// Options of `down`.
#[derive(Clone, Copy)]
pub(super) struct Down {
    /// Take it down even if data is lost.
    pub discard: bool,
    /// Take it down even if the device is held.
    pub force: bool,
    /// First write everything back to the backing store.
    pub drain: bool,
}

impl Running {
    /// Runs `work`, which may stop the export. If it does, even with an error, the daemon ends
    /// after the answer was sent.
    pub(super) fn ending<T>(
        &self,
        change: Change,
        asking: &mut Asking<'_>,
        work: impl FnOnce(&Turn<'_>, &mut Asking<'_>) -> Result<T>,
    ) -> Result<T> {
        let turn = self.phase.begin(change)?;
        let done = work(&turn, asking);
        if turn.ends() {
            let events = self.served.events.clone();
            asking.afterwards(move || {
                // Without a receiver the daemon is already ending.
                let _ = events.send(Event::Ended);
            });
        }
        done
    }

    /// Takes the volume down. Returns what remains only in the log.
    pub(super) fn down(&self, how: Down, asking: &mut Asking<'_>) -> Result<Ended> {
        let name = &self.served.name;
        if !how.force {
            match self.served.usage() {
                None => self.served.refuse_holders(remedy::HELD)?,
                Some(usage) => self.served.refuse_holders_beside(&usage, remedy::HELD)?,
            }
        }
        let volatile = self.served.volume.volatile_bytes();
        // Ending swap brings swapped-out data back to memory, so nothing is lost.
        if volatile > 0 && !how.discard && !self.holds_only_swap() {
            return Err(Error::would_lose(format!(
                "volume `{name}` holds {} that exist nowhere else",
                size::human(volatile)
            ))
            .hint(remedy::ONLY_IN_MEMORY));
        }
        if !how.discard {
            self.keep_all()?;
        }
        self.refuse_job(how.force)?;
        asking.agree()?;
        self.stop(how.force, End::Down)?;
        let drained = if how.drain { draining::drain(&*self.served.volume) } else { Ok(()) };
        let loss = self.stats().loss();
        // A drained log has nothing left, also while a window goes over segments of garbage.
        let left = if how.drain && drained.is_ok() { None } else { self.left_in_log() };
        Ok(Ended { left, undrained: drained.err().map(|e| e.to_string()), loss })
    }

    /// The data that only the log has. The export is stopped, so no more writes come.
    fn left_in_log(&self) -> Option<LeftInLog> {
        let log = self.stats().log.filter(|log| !log.clean)?;
        let plan = self.served.state.lock().plan.log.clone()?;
        let bytes = log.left_bytes();
        Some(LeftInLog { bytes, log: plan.log, backing: plan.backing })
    }

    /// Ends the device's use and stops the export; with `force` also while the device is held. The
    /// daemon then ends by `end`. If the export can't be stopped, the use begins again.
    fn stop(&self, force: bool, end: End) -> Result<()> {
        match self.end_job(force).and_then(|()| self.end_use()) {
            Err(e) if force => log::line(&format!("forced: {e}")),
            ended => ended?,
        }
        let stopped = self.stop_export(force, end);
        if stopped.is_err() && !force {
            self.use_again();
        }
        stopped
    }

    /// Begins the device's use again, which was ended in vain.
    fn use_again(&self) {
        if let Err(e) = self.begin_use(&|_| {}) {
            log::line(&e.to_string());
        }
    }

    fn stop_export(&self, force: bool, end: End) -> Result<()> {
        let reads = evicted::hold_reads();
        let mut slot = self.served.export()?;
        let Some(export) = slot.as_mut() else { return Ok(()) };
        match export.stop() {
            Ok(()) => {}
            Err(e) if force => {
                log::line(&format!("forced: {e}"));
                export.stop_by_force()?;
            }
            Err(e) => {
                self.served.note_endpoints(export.endpoints());
                return Err(e);
            }
        }
        *slot = None; // dropping it also stops what `stop` refused to stop
        self.served.note_endpoints(Vec::new());
        reads.for_good();
        self.phase.end(end);
        Ok(())
    }

    /// Makes everything durable that can be, before the volume ends for good.
    fn keep_all(&self) -> Result<()> {
        let name = &self.served.name;
        self.flush().map_err(|e| {
            Error::would_lose(format!("volume `{name}` would lose data: {e}"))
                .hint(remedy::NOT_DURABLE.of(name))
        })
    }

    /// Makes all earlier writes durable.
    fn flush(&self) -> Result<()> {
        if let Some(log) = self.served.volume.log() {
            return log.secure();
        }
        let device = Arc::clone(&self.served.volume) as Arc<dyn Device>;
        device
            .channel()
            .submit(device::Request::Flush, Instant::now())
            .map_err(|e| Error::failure(format!("what was written can't be made durable: {e}")))
    }

    /// Leaves the volume to a daemon that is about to start, with another log if `log` is given;
    /// with `force` also if its device can't wait and is held.
    pub(super) fn restart(
        &self,
        force: bool,
        log: Option<&NewLog>,
        turn: &Turn<'_>,
        asking: &mut Asking<'_>,
    ) -> Result<()> {
        // `ztier run` would take a daemon that leaves for one that died.
        self.refuse_job(force)?;
        self.refuse_unkept()?;
        let next = match log {
            None => None,
            Some(log) => {
                let next = relog::plan(&self.served.state.lock().plan, log, &self.served.records)?;
                relog::refuse_lost(&*self.served.volume)?;
                Some(next)
            }
        };
        // Holders by the daemon's own use end with that use.
        if self.served.state.lock().plan.usage.is_none() {
            self.refuse_left(force)?;
        }
        // No daemon finds what a store has not got, also by force.
        if unsent::store(&*self.served.volume).is_some() {
            // A flush would fail later than the caller waits.
            let lacking = unsent::lacking(&*self.served.volume);
            if let Some(why) = lacking.and_then(|store| store.trouble) {
                let text = format!("the store has not got all that was written: {why}");
                return Err(Error::would_lose(text).hint(remedy::NOT_SENT));
            }
            self.flush().map_err(|e| e.hint(remedy::NOT_SENT))?;
        } else if !force {
            self.flush().map_err(|e| e.hint(remedy::NOT_DURABLE_YET))?;
        }
        asking.agree()?;
        let foreground = self.served.state.lock().foreground;
        self.make_way(force, if foreground { End::Again } else { End::Left })?;
        if let Some(next) = next {
            draining::drain(&*self.served.volume)?;
            self.tell_log(&next);
            turn.go_on_with(next);
        }
        Ok(())
    }

    /// Tells of the log of the `next` plan, and of the present one, which is drained.
    fn tell_log(&self, next: &Plan) {
        let (now, history) = (self.served.plan(), &self.served.history);
        let about = Some("log");
        if let Some(old) = &now.log {
            let text = format!("{} is no longer its log, and is drained", old.log.display());
            history.add(EventKind::LogDetached, about, &text);
        }
        if let Some(new) = &next.log {
            let text = format!("{} is its log from now on", new.log.display());
            history.add(EventKind::LogAttached, about, &text);
        }
    }

    /// Refuses if the next daemon would not find data that is only in memory.
    fn refuse_unkept(&self) -> Result<()> {
        if self.served.volume.volatile_bytes() == 0 || self.is_kept() {
            return Ok(());
        }
        let (name, socket) = (&self.served.name, self.served.files.keep.display());
        Err(Error::would_lose(format!(
            "the memory of `{name}` has no memory holder: {socket} does not answer"
        ))
        .hint("copy what you need, then take the volume down and up again"))
    }

    /// Whether the next daemon finds the data in memory.
    fn is_kept(&self) -> bool {
        self.threads.renew_memory_holder();
        Kept::is_there(&self.served.files.keep)
    }

    /// Ends the use of a device that can't wait, which the next daemon starts again, and leaves;
    /// the daemon then ends by `end`.
    fn make_way(&self, force: bool, end: End) -> Result<()> {
        let leave = || {
            let force = self.refuse_left(force)?;
            self.secure()?;
            self.leave(end).or_else(|e| if force { self.stop(true, end) } else { Err(e) })
        };
        if self.served.waits() {
            return leave();
        }
        self.end_job(force)?;
        self.end_use()?;
        let left = leave();
        if left.is_err() {
            self.use_again();
        }
        left
    }

    /// Refuses to leave a device that can't wait while it has holders, unless `force` is set and
    /// the export can disconnect them. Returns whether to disconnect them.
    fn refuse_left(&self, force: bool) -> Result<bool> {
        let export = self.served.state.lock().plan.export.clone();
        // A loop device can't be taken from its holders.
        let by_fuse = export == Export::Fuse;
        let force = force && !by_fuse;
        let holders = if force || self.served.waits() {
            Vec::new()
        } else {
            self.served.holders_that_stay()?
        };
        if holders.is_empty() {
            return Ok(force);
        }
        let (name, kind) = (&self.served.name, export.kind());
        Err(Error::busy(format!(
            "volume `{name}` is in use ({}), and a device by {kind} can't wait for its daemon",
            holders.join(", ")
        ))
        .hint(match by_fuse {
            true => "end that first".to_owned(),
            false => remedy::CONNECTED.into(),
        }))
    }

    /// Makes durable what can be, before the next daemon goes on. Fails if that would not find the
    /// rest: the memory holder has what is in memory, and nothing of what a store has not got.
    fn secure(&self) -> Result<()> {
        let Err(e) = self.flush() else { return Ok(()) };
        let volume = &*self.served.volume;
        if unsent::store(volume).is_some() {
            return Err(e.hint(remedy::NOT_SENT));
        }
        if volume.log().is_none() && volume.volatile_bytes() == 0 {
            // It is no more durable while this daemon goes on.
            log::line(&e.to_string());
            return Ok(());
        }
        if !self.is_kept() {
            return Err(e);
        }
        log::line(&format!("{e}: it stays in memory, for the next daemon"));
        Ok(())
    }

    /// Stops the export so that the next daemon can take it over; this one then ends by `end`. What
    /// has to be found then is secure ([`Self::secure`]).
    fn leave(&self, end: End) -> Result<()> {
        let reads = evicted::hold_reads();
        let mut slot = self.served.export()?;
        let Some(export) = slot.as_mut() else { return Ok(()) };
        export.leave()?;
        let leftovers = export.leftovers();
        *slot = None;
        self.served.note_endpoints(Vec::new());
        reads.for_good();
        self.phase.end(end);
        drop(slot);
        self.served.note_left(leftovers);
        Ok(())
    }

    /// Whether the device waits for the next daemon when a signal ends this one.
    pub(super) fn waits_for_next(&self) -> bool {
        self.served.state.lock().plan.job.is_none() && self.served.waits()
    }

    /// Tells what would be lost if the memory was given up; `None` if nothing would.
    fn holds_alone(&self) -> Option<String> {
        let (has_job, logs) = {
            let state = self.served.state.lock();
            (state.plan.job.is_some(), state.plan.log.is_some())
        };
        // By then, swapped-out data is back in memory, or worthless.
        if has_job || self.holds_only_swap() {
            return None;
        }
        match self.served.volume.volatile_bytes() {
            0 if logs => self.flush().err().map(|e| e.to_string()),
            0 => None,
            bytes => Some(format!("{} exist nowhere else", size::human(bytes))),
        }
    }

    /// Ends because of a signal, unless a request is changing the device's use, or the device is
    /// held, or a store has not got all. Data that exists nowhere else stays with the memory
    /// holder.
    pub(super) fn end_by_signal(&self) -> Result<()> {
        let _turn = self.phase.begin(Change::Signal)?;
        self.unsent.refuse(&self.served.volume, self.waits_for_next())?;
        if self.waits_for_next() {
            self.secure()?;
            return self.leave(End::Left);
        }
        if let Some(usage) = self.served.usage() {
            // Else the use would end, and begin again, with each try.
            self.served.refuse_holders_beside(&usage, "end that first")?;
        }
        let Some(what) = self.holds_alone() else { return self.stop(false, End::Down) };
        self.refuse_unkept()?;
        self.make_way(false, End::Left)?;
        self.say_kept(&what);
        Ok(())
    }

    /// Ends because of a second signal, even while the device is held. Data that exists nowhere
    /// else still stays with the memory holder, if there is one; a store gets a last chance to take
    /// what it has not got.
    pub(super) fn end_by_force(&self) {
        if let Some(store) = unsent::lacking(&*self.served.volume) {
            let (place, bytes) = (store.place, size::human(store.waiting_bytes));
            log::line(&format!("{bytes} are lost unless {place} takes them within a minute"));
        }
        let Some(what) = self.holds_alone().filter(|_| self.is_kept()) else {
            return self.give_up();
        };
        self.give_up();
        self.phase.force(End::Left);
        self.served.note_left(Vec::new());
        self.say_kept(&what);
    }

    /// Ends even while the device is held, and leaves nothing.
    pub(super) fn give_up(&self) {
        if let Err(e) = self.stop(true, End::Down) {
            log::line(&e.to_string());
        }
        self.phase.force(End::Down);
    }

    fn say_kept(&self, what: &str) {
        let remedy = remedy::KEPT_ASIDE.of(&self.served.name);
        log::line(&format!("{what}: the memory is kept; {remedy}"));
    }
}

//! The use that a daemon makes of its own device, swap or a file system: its begin and its end; and
//! the job of `ztier run` that uses it.

use super::homes::{Homes, measured};
use super::running::Running;
use super::{log, notify, state};
use crate::config::{Job, Usage};
use crate::error::{Error, Result};
use crate::system::reclaim::make_present;
use crate::system::usage;
use std::path::Path;
use std::time::Duration;

impl Running {
    /// Starts the device's use that the plan says. Returns a note for the user.
    pub(super) fn begin_use(&self, progress: &dyn Fn(&str)) -> Result<Option<String>> {
        let progress = |what: &str| {
            notify::extend(what);
            progress(what);
        };
        let Some(mut usage) = self.served.usage() else { return Ok(None) };
        let is_swap = matches!(usage, Usage::Swap { .. });
        if is_swap && let Ok(Some(what)) = self.other_than_swap(&self.served.device()?) {
            return self.give_swap_up(&usage, &what).map(Some);
        }
        let mut notes = Vec::new();
        state::plan_settings(&self.served.files, &mut usage, &mut notes);
        // In the state file before it is set.
        self.served.note_usage(Some(usage.clone()))?;
        let (empty, homes) = (self.served.volume.volatile_bytes() == 0, self.homes());
        if is_swap {
            make_present();
        }
        let device = self.served.device()?;
        usage::begin(&usage, &device, (empty, homes.announced()), &progress)?;
        notes.extend(usage::tune(&usage));
        notes.iter().for_each(|failed| log::line(failed));
        self.threads.follow_swap(&self.served, &usage, &device);
        Ok(homes.about().filter(|_| is_swap && empty))
    }

    /// Has the device no longer as swap, because a user has ended that by hand and it holds `what`
    /// since. Returns that as a note for the user.
    fn give_swap_up(&self, usage: &Usage, what: &str) -> Result<String> {
        self.carry_none()?;
        state::untune(&self.served.files, Some(usage));
        self.served.note_usage(None)?;
        let note = format!("{} is no swap any more: it holds {what}", self.served.name);
        log::line(&note);
        Ok(note)
    }

    /// Ends the device's use.
    pub(super) fn end_use(&self) -> Result<()> {
        let Some(usage) = self.served.usage() else { return Ok(()) };
        self.end_within(&usage, &self.served.device()?, usage::END)?;
        state::untune(&self.served.files, Some(&usage));
        Ok(())
    }

    /// Ends the processes of a job whose runner has ended; with `force` even if it has not.
    pub(super) fn end_job(&self, force: bool) -> Result<()> {
        self.refuse_job(force)?;
        let Some(job) = self.served.state.lock().plan.job.clone() else { return Ok(()) };
        match job.clear()? {
            0 => {}
            n => log::line(&format!("{n} processes that `ztier run` had left were ended")),
        }
        Ok(())
    }

    pub(super) fn refuse_job(&self, force: bool) -> Result<()> {
        let job = self.served.state.lock().plan.job.clone();
        match job.filter(|job| !force && job.exists() && job.runner().is_some()) {
            Some(job) => Err(busy(&self.served.name, &job)),
            None => Ok(()),
        }
    }

    /// Ends the use `usage` of the device within `limit`, and first its ballast, which must not
    /// come back to memory.
    pub(super) fn end_within(&self, usage: &Usage, device: &Path, limit: Duration) -> Result<()> {
        self.threads.end_swap();
        let ended = usage::end_within(usage, device, limit);
        ended.inspect_err(|_| self.threads.follow_swap(&self.served, usage, device))
    }

    /// Remembers the present compression ratio, if enough is stored to tell.
    pub(super) fn look_how_it_compresses(&self) {
        if let Some(percent) = measured(&self.served.volume.stats()) {
            self.served.state.lock().compresses_percent = Some(percent);
        }
    }

    /// The room for pages that are swapped out.
    pub(super) fn homes(&self) -> Homes {
        self.look_how_it_compresses();
        let (stats, size) = (self.served.volume.stats(), self.served.volume.size());
        let state = self.served.state.lock();
        Homes::of(&state.plan, size, &stats, state.compresses_percent)
    }
}

/// The error for a volume that a job needs.
pub(super) fn busy(name: &str, job: &Job) -> Error {
    Error::busy(format!("volume `{name}` is that of `ztier run` (process {})", job.pid))
        .hint("end that, and the volume goes with it")
}

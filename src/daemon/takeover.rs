//! Takes over what an earlier daemon of the same volume left.
//!
//! If the memory was kept, the volume goes on with it: the settings that describe the memory are
//! those of the earlier daemon, all others come from the present plan. Otherwise all leftovers are
//! removed.
//!
//! Invariants: kept memory is never given up here; only `ztier down NAME --discard` does that. A
//! device that waited goes on only over what its users saw last.

use super::memory_holder::{Kept, Manifest};
use super::state::{self, State};
use crate::config::paths::VolumeFiles;
use crate::config::{Bounds, Plan, Usage, machine, size};
use crate::device::{LastSession, MEMORY_LAYOUT, last_session, ram_limit_max_of};
use crate::error::{Context, Error, Result};
use crate::export::Leftover;
use crate::media::Memory;
use crate::remedy;
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::{Duration, Instant};

/// Interval between reports of work under way.
const TELL: Duration = Duration::from_secs(1);

/// What an earlier daemon left.
pub(super) struct Inherited {
    kept: Option<Kept>,
    state: Option<State>,
    /// Why a device that waits can't go on.
    stale: Option<String>,
    /// The session that had the volume in its store last.
    session: Option<String>,
}

impl Inherited {
    /// Looks for kept memory and a state file. The caller holds the lock.
    ///
    /// # Errors
    /// Memory was kept that this program can't take over.
    pub fn find(files: &VolumeFiles, name: &str) -> Result<Self> {
        let kept = Kept::find(&files.keep)?;
        let Some(found) = &kept else {
            return Ok(Self { kept, state: State::read(files)?, stale: None, session: None });
        };
        let refuse = |why: String| {
            Err(Error::would_lose(format!("the memory that was kept for volume `{name}` {why}"))
                .hint(remedy::KEPT_IN_VAIN.of(name)))
        };
        let Manifest { layout, volume, program, .. } = &found.manifest;
        if *layout != MEMORY_LAYOUT {
            return Err(Error::would_lose(format!(
                "the memory that was kept for volume `{name}` is laid out as ztier {program} does \
                 it (version {layout}, here {MEMORY_LAYOUT})"
            ))
            .hint(remedy::KEPT_BY_ANOTHER.of(name)));
        }
        if volume != name {
            return refuse(format!("is that of volume `{volume}`"));
        }
        match State::read(files) {
            Ok(Some(state)) => Ok(Self { kept, state: Some(state), stale: None, session: None }),
            Ok(None) => refuse(format!("has no {} beside it", files.state.display())),
            Err(e) => refuse(format!("can't be used: {e}")),
        }
    }

    /// Looks whether the store of a volume in one has what the users of a device that waits saw
    /// last: not if another owner has had the volume since, and not if writes that had not come
    /// there yet were in the daemon's memory alone, without a log. `owner`: the name of this one.
    ///
    /// # Errors
    /// The store can't be read.
    pub fn compare_store(&mut self, owner: &str) -> Result<()> {
        let Some(state) = self.state.as_ref().filter(|state| {
            state.plan.is_in_store() && state.leftovers.iter().any(Leftover::waits)
        }) else {
            return Ok(());
        };
        let place = state.plan.backing_store();
        let Some(last) = place.map(last_session).transpose()?.flatten() else { return Ok(()) };
        let is_ours = last.owner == owner;
        let noted = state.session.as_ref().map(|noted| *noted == last.session);
        self.stale = why_stale(&last, (is_ours, noted), state.plan.log.is_some());
        self.session = Some(last.session);
        Ok(())
    }

    /// The session that must have had the volume last, for a device that goes on.
    pub fn session(&self, plan: &Plan) -> Option<String> {
        self.session.clone().filter(|_| !self.taken_up(plan).is_empty())
    }

    /// Whether there was no earlier daemon, or it took its volume down.
    pub fn is_nothing(&self) -> bool {
        self.kept.is_none() && self.state.is_none()
    }

    /// Whether the volume goes on with kept memory.
    pub fn goes_on(&self) -> bool {
        self.kept.is_some()
    }

    /// The number of daemons that have taken the volume over, including this one.
    pub fn restarts(&self) -> u64 {
        self.state.as_ref().filter(|_| self.goes_on()).map_or(0, |state| state.restarts + 1)
    }

    /// The compression ratio when swap last ended; see [`State::compresses_percent`].
    pub fn compresses(&self) -> Option<u64> {
        self.state.as_ref().filter(|_| self.goes_on()).and_then(|state| state.compresses_percent)
    }

    /// The plan to carry out instead of `plan`, and notes for the user.
    pub fn fit(&self, mut plan: Plan) -> (Plan, Vec<String>) {
        let mut notes = Vec::new();
        let Some(before) = &self.state else { return (plan, notes) };
        let name = plan.name.clone();
        if !self.goes_on() {
            if before.kept {
                notes.push(format!(
                    "the memory of `{name}` is gone, with what was not durable when its daemon died"
                ));
            }
            return (plan, notes);
        }
        notes.push(format!("{name} goes on with what it held when its last daemon ended"));
        let was = &before.plan;
        if let Some(why) = &self.stale {
            notes.push(format!("the device that waited is gone: {why}; open or mount it again"));
        } else if self.taken_up(&plan).is_empty() {
            let kind = was.export.kind();
            notes.push(format!("a device by {kind} can't wait: open or mount it again"));
        }
        if plan.size_bytes < was.size_bytes {
            notes.push(format!("its size stays {}", size::human(was.size_bytes)));
            plan.size_bytes = was.size_bytes;
        }
        if plan.segment_bytes != was.segment_bytes {
            notes.push(format!("its segments stay {}", size::exact(was.segment_bytes.into())));
            plan.segment_bytes = was.segment_bytes;
        }
        if let (Some(asked), Some(sector)) = (plan.sector_bytes, was.sector_bytes)
            && asked != sector
        {
            notes.push(format!("its sectors stay {sector} bytes"));
        }
        plan.sector_bytes = was.sector_bytes;
        // A device that waits keeps its use, whatever `plan` says now.
        if plan.usage.is_none() && !self.taken_up(&plan).is_empty() {
            plan.usage = was.usage.clone().filter(|usage| matches!(usage, Usage::Swap { .. }));
        }
        if let Some(Usage::Swap { tuned, .. }) = &mut plan.usage
            && let Some(Usage::Swap { tuned: before, .. }) = &was.usage
            && tuned.is_empty()
        {
            // What the machine's settings were before they were set.
            tuned.clone_from(before);
        }
        let drives = |plan: &Plan| {
            let log = plan.log.as_ref().map(|l| (l.log.clone(), l.backing.clone()));
            (log, plan.backing.clone(), plan.spill.as_ref().map(|spill| spill.device.clone()))
        };
        if drives(&plan) != drives(was) {
            notes.push("its drives stay what they were".into());
            (plan.log, plan.backing) = (was.log.clone(), was.backing.clone());
            plan.spill = was.spill.clone();
        }
        if plan.is_volatile() {
            notes.extend(self.fit_limit(&mut plan, was));
        }
        (plan, notes)
    }

    /// Fits the memory limit of `plan` to the kept memory: a lower limit discards nothing, and the
    /// memory has no frames above the limit that it was made for. Returns a note if the limit
    /// changes.
    fn fit_limit(&self, plan: &mut Plan, was: &Plan) -> Option<String> {
        let memory = &self.kept.as_ref()?.memory;
        // If the memory can't be read, making the volume fails with the reason.
        let (most, stored) = (ram_limit_max_of(memory).ok()??, memory.resident_bytes().ok()?);
        let highest = |plan: &Plan| match plan.ram_auto {
            Some(bounds) => bounds.max_bytes,
            None => plan.ram_limit_bytes,
        };
        let needs = stored + plan.limits().least;
        let (asked, before) = (highest(plan), highest(was));
        let (limit, why) = if asked > most {
            (most, "its memory was made for no more".to_owned())
        } else if plan.spill.is_none() && asked < needs.min(before) {
            (before.min(most), format!("what it holds takes {}", size::human(stored)))
        } else {
            return None;
        };
        match &mut plan.ram_auto {
            Some(bounds) => {
                *bounds = Bounds { min_bytes: bounds.min_bytes.min(limit), max_bytes: limit };
            }
            None => plan.ram_limit_bytes = limit,
        }
        Some(format!("its ram-limit is {}: {why}", size::human(limit)))
    }

    /// Removes all leftovers that the export of `plan` does not take over. Returns in words what
    /// was removed.
    ///
    /// # Errors
    /// A leftover is held or can't be removed.
    pub fn clean(
        &self,
        files: &VolumeFiles,
        plan: &Plan,
        progress: &dyn Fn(&str),
    ) -> Result<Vec<String>> {
        let again = self.taken_up(plan);
        // Its users get errors, and know that they have to begin anew.
        let force = self.stale.is_some();
        let removed = telling(progress, || {
            state::remove_leftovers(files, |left| !again.contains(left), force)
        });
        removed.context("an earlier daemon of this volume left something behind")
    }

    /// The leftovers that the export of `plan` takes over: devices that wait for their daemon.
    pub fn taken_up(&self, plan: &Plan) -> Vec<Leftover> {
        let goes_on = self.goes_on() && self.stale.is_none();
        let Some(state) = self.state.as_ref().filter(|_| goes_on) else { return vec![] };
        if state.plan.export.kind() != plan.export.kind() {
            return vec![];
        }
        state.leftovers.iter().filter(|leftover| leftover.waits()).cloned().collect()
    }

    /// The memory for the volume of `plan`: the kept memory, or new memory.
    pub fn into_memory(self, plan: &Plan) -> Kept {
        self.kept.unwrap_or_else(|| {
            let memory = Memory::resident();
            let manifest = Manifest {
                layout: MEMORY_LAYOUT,
                volume: plan.name.clone(),
                segment_bytes: plan.segment_bytes,
                ram_limit_max_bytes: machine::memory_bytes().max(plan.ram_limit_bytes),
                program: env!("CARGO_PKG_VERSION").into(),
                resident: memory.is_resident(),
            };
            Kept::fresh(manifest, memory)
        })
    }
}

/// Does `work`, and calls `progress` now and then: the kernel may take a minute to give back a ublk
/// device whose daemon died, and the process that started this one waits less without a word.
fn telling<T: Send>(progress: &dyn Fn(&str), work: impl FnOnce() -> T + Send) -> T {
    let (works, ended) = mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let thread = scope.spawn(move || {
            let _works = works; // until it is dropped
            work()
        });
        let begun = Instant::now();
        while ended.recv_timeout(TELL) == Err(RecvTimeoutError::Timeout) {
            let seconds = begun.elapsed().as_secs();
            progress(&format!("removing what an earlier daemon left, {seconds} s"));
        }
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Why a device that waits can't go on over a store whose volume was owned like this last. Whether
/// that was this owner, and whether the state file names the session: earlier versions noted none;
/// and a daemon that took the store over, and failed before it noted that, had found the device
/// good and has served nothing.
fn why_stale(
    last: &LastSession,
    (is_ours, noted): (bool, Option<bool>),
    logs: bool,
) -> Option<String> {
    if !is_ours && noted != Some(true) {
        return Some(format!("{} has had the volume since", last.owner));
    }
    let lacks = !logs && !last.ended && noted != Some(false);
    lacks.then(|| "its daemon died with writes that the store may lack".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_device_goes_on_only_over_what_its_users_saw_last() {
        let last = |ended| LastSession { session: String::new(), owner: "other".into(), ended };
        let (died, other) = (
            Some("its daemon died with writes that the store may lack"),
            Some("other has had the volume since"),
        );
        for (ended, whose, logs, expected) in [
            (true, (true, Some(true)), false, None),
            (false, (true, Some(true)), true, None),
            (false, (true, Some(true)), false, died),
            (true, (false, Some(false)), false, other),
            (true, (false, Some(false)), true, other),
            (true, (false, None), true, other),
            // The host has another name by now.
            (true, (false, Some(true)), true, None),
            // A daemon of this owner that failed before it served anything.
            (false, (true, Some(false)), false, None),
            // An earlier version.
            (false, (true, None), false, died),
            (true, (true, None), false, None),
        ] {
            assert_eq!(why_stale(&last(ended), whose, logs).as_deref(), expected, "{whose:?}");
        }
    }
}

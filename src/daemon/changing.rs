//! Changes a running volume: its sizes, and settings of its engine.
//!
//! Invariant: an impossible change is refused before anything changes; a change that fails says
//! what was changed before it.

use super::phase::BUSY;
use super::running::Running;
use crate::config::limit::{Given, Range};
use crate::config::log::{LogChange, LogPlan};
use crate::config::{Amount, Bounds, Limit, Plan, plan, size};
use crate::control::{AdaptChange, Asking, EventKind, RecompressChange, VolumeChange};
use crate::device::{self, Recompress};
use crate::error::{Error, Result};

impl Running {
    fn recompress(&self, change: RecompressChange) -> Result<()> {
        let memory = self.served.volume.in_memory().ok_or_else(no_recompression)?;
        let when = match change {
            RecompressChange::Now => return memory.recompress(),
            RecompressChange::Idle => Recompress::Idle,
            RecompressChange::Off => Recompress::Off,
        };
        memory.set_recompress(when)?;
        let mut state = self.served.state.lock();
        state.plan.recompress = when;
        state.write(&self.served.files)
    }

    pub(super) fn set(&self, change: VolumeChange, asking: &mut Asking<'_>) -> Result<()> {
        let before = self.served.plan();
        refuse_impossible(&before, &change)?;
        let done = self.set_sizes(&change, &before, asking);
        // What is changed counts, whatever failed after it.
        let follows = self.threads.follow_limit(&self.served);
        done.and(follows)?;
        let Some(recompress) = change.recompress else { return Ok(()) };
        // Last, because a higher limit may be what it needs.
        let changed = self.served.plan() != before;
        self.recompress(recompress).map_err(|e| match changed {
            true => e.after("all but recompress is changed: "),
            false => e,
        })
    }

    /// Changes sizes, settings of the log, and the spill device.
    fn set_sizes(
        &self,
        change: &VolumeChange,
        before: &Plan,
        asking: &mut Asking<'_>,
    ) -> Result<()> {
        let _changing =
            self.served.sizes.try_lock_for(BUSY).ok_or_else(|| self.served.being_changed())?;
        let new = self.planned(change)?;
        asking.agree()?;
        let taken = self.take_on(&new);
        self.tell_changes(before);
        taken?;
        let done = self.set_spill(change, asking);
        done.map_err(|e| after_changes(before, &self.served.plan(), e))
    }

    /// Changes the spill device, after a higher limit, which may be what it needs.
    fn set_spill(&self, change: &VolumeChange, asking: &Asking<'_>) -> Result<()> {
        if let Some(spill) = &change.spill {
            self.respill(spill, asking)?;
        }
        change.spill_daily_bytes.map_or(Ok(()), |bytes| self.spill_daily(bytes))
    }

    /// Tells of the sizes that differ from those of the plan `before`.
    fn tell_changes(&self, before: &Plan) {
        let (now, history) = (self.served.plan(), &self.served.history);
        let change = |from, to| format!("{} -> {}: set", size::human(from), size::human(to));
        if now.ram_limit_bytes != before.ram_limit_bytes {
            let text = change(before.ram_limit_bytes, now.ram_limit_bytes);
            history.add(EventKind::LimitChanged, Some("memory"), &format!("ram-limit {text}"));
        }
        if now.size_bytes != before.size_bytes {
            let text = change(before.size_bytes, now.size_bytes);
            history.add(EventKind::SizeChanged, None, &format!("size {text}"));
        }
    }

    /// The plan with the changes. Fails if one of them is impossible.
    fn planned(&self, change: &VolumeChange) -> Result<Plan> {
        let old = self.served.plan();
        let size_bytes = change.size_bytes.unwrap_or(old.size_bytes);
        let mut new = Plan { size_bytes, ..old.clone() };
        change_limit(&mut new, change.ram_limit_bytes, change.adapt)?;
        check_change(&old, &new)?;
        change_log(&mut new, change.log)?;
        if new.size_bytes != old.size_bytes
            && let Some(export) = &*self.served.export()?
        {
            export.may_resize()?;
        }
        Ok(new)
    }

    /// Applies the sizes and settings of `new` to volume, export and plan.
    fn take_on(&self, new: &Plan) -> Result<()> {
        let export = self.served.export()?;
        let mut now = self.served.plan();
        let resizes = new.size_bytes != now.size_bytes;
        // It may have to spill much, so those that only look do not wait for it.
        let changed = self.change_volume(new, &mut now);
        let mut state = self.served.state.lock();
        let Plan { log, ram_limit_bytes, ram_auto, size_bytes, .. } = now;
        state.plan = Plan { log, ram_limit_bytes, ram_auto, size_bytes, ..state.plan.clone() };
        // Write the state first: the next daemon grows a device that is behind the plan, but cannot
        // shrink one that is ahead. What has changed counts, whatever failed after it.
        state.write(&self.served.files)?;
        drop(state);
        changed?;
        match export.as_ref().filter(|_| resizes) {
            Some(export) => export.resized(),
            None => Ok(()),
        }
    }

    /// Applies `new` to the volume, and each change that worked to the plan `now`.
    fn change_volume(&self, new: &Plan, now: &mut Plan) -> Result<()> {
        if let Some(log) = new.log.as_ref().filter(|_| new.log != now.log) {
            self.served.volume.log().ok_or_else(device::no_log)?.tune(&tuning(log));
            now.log = new.log.clone();
        }
        if new.ram_limit_bytes != now.ram_limit_bytes {
            self.served.volume.set_ram_limit(new.ram_limit_bytes)?;
            now.ram_limit_bytes = new.ram_limit_bytes;
        }
        now.ram_auto = new.ram_auto;
        if new.size_bytes != now.size_bytes {
            self.served.volume.grow(new.size_bytes)?;
            now.size_bytes = new.size_bytes;
        }
        Ok(())
    }
}

/// Refuses changes of what the volume does not have.
fn refuse_impossible(now: &Plan, change: &VolumeChange) -> Result<()> {
    let of_spill = change.spill.is_some() || change.spill_daily_bytes.is_some();
    if of_spill && !now.is_volatile() {
        return Err(Error::usage("spill is for a volume in memory alone"));
    }
    let will_spill = match &change.spill {
        Some(new) => new.device.is_some(),
        None => now.spill.is_some(),
    };
    if change.spill_daily_bytes.is_some() && !will_spill {
        return Err(device::no_spill_device());
    }
    if change.recompress.is_some() && !now.is_volatile() {
        return Err(no_recompression());
    }
    Ok(())
}

/// The error of a change that failed after others, which are named in front.
fn after_changes(before: &Plan, now: &Plan, e: Error) -> Error {
    let device = |plan: &Plan| plan.spill.as_ref().map(|spill| spill.device.clone());
    // A limit that adapts changes by itself.
    let fixed = |plan: &Plan| plan.ram_auto.is_none().then_some(plan.ram_limit_bytes);
    let limit = |plan: &Plan| (plan.ram_auto, fixed(plan));
    let changed = [
        ("size", now.size_bytes != before.size_bytes),
        ("ram-limit", limit(now) != limit(before)),
        ("spill", device(now) != device(before)),
    ];
    let changed: Vec<_> = changed.iter().filter(|(_, is)| *is).map(|(key, _)| *key).collect();
    match changed.is_empty() {
        true => e,
        false => e.after(format_args!("only {} is changed: ", changed.join(" and "))),
    }
}

fn no_recompression() -> Error {
    Error::usage("only a volume in memory recompresses").hint("leave out recompress")
}

/// Applies a change of the limit, or of the bounds for adapting, to the plan.
fn change_limit(plan: &mut Plan, fixed: Option<u64>, adapt: AdaptChange) -> Result<()> {
    if fixed.is_some() && adapt.auto {
        return Err(Error::usage("ram-limit is given twice").hint("give it once"));
    }
    let amount = |bytes: Option<u64>| bytes.map(Amount::Bytes);
    let adapts = adapt.auto || fixed.is_none() && plan.ram_auto.is_some();
    let limit = match fixed {
        Some(bytes) => Some(Limit::At(Amount::Bytes(bytes))),
        None => adapts.then_some(Limit::Auto),
    };
    let given = Given { limit, min: amount(adapt.min_bytes), max: amount(adapt.max_bytes) };
    let range = plan.limits();
    // Earlier bounds still hold where no new ones are given, as far as the size allows.
    let before = plan.ram_auto.map(|bounds| Bounds {
        min_bytes: bounds.min_bytes.max(range.least),
        max_bytes: bounds.max_bytes.max(range.least),
    });
    let default = plan.ram_limit_bytes;
    let bounds = before.unwrap_or(range.bounds);
    let range = Range { default, start: default, bounds, ..range };
    (plan.ram_limit_bytes, plan.ram_auto) = given.resolve(&range)?;
    Ok(())
}

/// Checks a change of the log's settings, and applies it to the plan.
fn change_log(plan: &mut Plan, change: LogChange) -> Result<()> {
    if change == LogChange::default() {
        return Ok(());
    }
    let Some(log) = &mut plan.log else {
        return Err(device::no_log());
    };
    *log = log.clone().with(&change)?;
    Ok(())
}

fn tuning(log: &LogPlan) -> device::Tuning {
    device::Tuning {
        policy: log.policy(),
        commit_interval_ms: log.commit_interval_ms,
        keep_percent: log.keep_percent,
    }
}

fn check_change(old: &Plan, new: &Plan) -> Result<()> {
    plan::check_size(new.size_bytes)?;
    if new.size_bytes < old.size_bytes {
        return Err(Error::usage(format!(
            "size {} is below the present {}",
            size::exact(new.size_bytes),
            size::exact(old.size_bytes)
        ))
        .hint("sizes grow, never shrink; make a new volume instead"));
    }
    let same_limit = new.ram_limit_bytes == old.ram_limit_bytes;
    if same_limit && (new.size_bytes == old.size_bytes || !new.is_volatile()) {
        return Ok(());
    }
    new.check_memory()
}

//! Changes of a running volume: sizes, and how it works.
//!
//! Invariant: what can't be is refused before anything is changed.

use super::running::Running;
use crate::config::{Plan, plan, size};
use crate::control::{LogChange, RecompressChange};
use crate::error::{Error, Result};
use crate::volume::{self, Recompress};

impl Running {
    fn recompress(&self, change: RecompressChange) -> Result<()> {
        let when = match change {
            RecompressChange::Now => return self.volume.recompress(),
            RecompressChange::Idle => Recompress::Idle,
            RecompressChange::Off => Recompress::Off,
        };
        self.volume.set_recompress(when)?;
        let mut state = self.state.lock();
        state.plan.recompress = when;
        state.write(&self.files)
    }

    pub(super) fn set(
        &self,
        size: Option<u64>,
        ram_limit: Option<u64>,
        log: LogChange,
        recompress: Option<RecompressChange>,
    ) -> Result<()> {
        let before = self.state.lock().plan.clone();
        if recompress.is_some() && !before.is_volatile() {
            return Err(
                Error::usage("only a volume in memory recompresses").mend("leave out recompress")
            );
        }
        self.set_sizes(size, ram_limit, log)?;
        recompress.map_or(Ok(()), |change| self.recompress(change))
    }

    fn set_sizes(&self, size: Option<u64>, ram_limit: Option<u64>, log: LogChange) -> Result<()> {
        let export = self.export()?;
        let mut state = self.state.lock();
        let (old, plan) = (state.plan.clone(), &mut state.plan);
        plan.size_bytes = size.unwrap_or(old.size_bytes);
        plan.ram_limit_bytes = ram_limit.unwrap_or(old.ram_limit_bytes);
        let checked = check_change(&old, plan).and_then(|()| change_log(plan, log));
        let new = plan.clone();
        state.plan = old.clone();
        checked?;
        if let Some(export) = export.as_ref().filter(|_| new.size_bytes != old.size_bytes) {
            export.may_resize()?;
        }
        if let Some(log) = new.log.as_ref().filter(|_| new.log != old.log) {
            self.volume.tune(&tuning(log))?;
            state.plan.log = new.log.clone();
        }
        if new.ram_limit_bytes != old.ram_limit_bytes {
            self.volume.set_ram_limit(new.ram_limit_bytes)?;
            state.plan.ram_limit_bytes = new.ram_limit_bytes;
        }
        if new.size_bytes != old.size_bytes {
            self.volume.grow(new.size_bytes)?;
            state.plan.size_bytes = new.size_bytes;
            export.as_ref().map_or(Ok(()), |export| export.resized())?;
        }
        state.write(&self.files)
    }
}

/// Checks a change of the log's ways, and makes it in the plan.
fn change_log(plan: &mut Plan, change: LogChange) -> Result<()> {
    if change == LogChange::default() {
        return Ok(());
    }
    let Some(log) = &mut plan.log else {
        return Err(Error::usage("the volume has no log, so nothing of one can be set"));
    };
    let LogChange { writeback, writeback_threshold_percent, .. } = change;
    log.writeback = writeback.unwrap_or(log.writeback);
    let percent = writeback_threshold_percent.unwrap_or(log.writeback_threshold_percent);
    plan::check_threshold(percent)?;
    log.writeback_threshold_percent = percent;
    let window = change.writeback_window_bytes.unwrap_or(log.writeback_window_bytes);
    log.writeback_window_bytes = window;
    let interval = change.commit_interval_ms.unwrap_or(log.commit_interval_ms);
    plan::check_interval(interval)?;
    log.commit_interval_ms = interval;
    let keep = change.keep_percent.unwrap_or(log.keep_percent);
    plan::check_keep(keep)?;
    log.keep_percent = keep;
    Ok(())
}

fn tuning(log: &plan::LogPlan) -> volume::Tuning {
    volume::Tuning {
        policy: volume::Policy {
            threshold_percent: log.writeback_threshold_percent,
            window: log.writeback_window_bytes,
            enabled: log.writeback,
        },
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
        .mend("sizes grow, never shrink; make a new volume instead"));
    }
    if !new.is_volatile() {
        let same = new.ram_limit_bytes == old.ram_limit_bytes;
        return if same { Ok(()) } else { plan::check_cache_limit(new.ram_limit_bytes) };
    }
    plan::check_ram_limit(new.ram_limit_bytes, new.size_bytes, new.segment_bytes)
}

//! A daemon's answers on its control socket.

use super::draining;
use super::leaving::Down;
use super::log;
use super::phase::{BUSY, Change, Turn, taken_down};
use super::running::Running;
use crate::config::Plan;
use crate::control::{Asking, Handler, Noted, Request, Sample, Status, Version};
use crate::device::LogControl;
use crate::error::{Context, Error, Result};
use crate::remedy;
use crate::stats::{LogStats, Stats};
use serde_json::value::{RawValue, to_raw_value};
use std::thread;
use std::time::{Duration, Instant};

/// Interval at which a drain checks its progress, and whether its caller still waits.
const LOOK: Duration = Duration::from_millis(20);
/// The number of writeback windows that may fail during a drain.
const FAILURES: u64 = 3;
/// A drain without any progress for this long gives up.
const STUCK: Duration = Duration::from_secs(120);

impl Handler for Running {
    fn handle(&self, request: Request, asking: &mut Asking<'_>) -> Result<Box<RawValue>> {
        let value = match request {
            Request::Ping => to_raw_value(&Version {
                version: env!("CARGO_PKG_VERSION").into(),
                pid: std::process::id(),
            }),
            Request::Status => to_raw_value(&self.status(self.holders()?)),
            Request::Stats => to_raw_value(&self.stats()),
            Request::Sample => to_raw_value(&self.sample()),
            Request::Events(since) => to_raw_value(&self.events(&since, asking)?),
            Request::Holders => {
                let holders = self.holders()?.ok_or_else(|| self.served.being_changed())?;
                to_raw_value(&holders)
            }
            Request::Drain => to_raw_value(&self.drain(asking)?),
            Request::AcceptLoss => {
                asking.agree()?;
                let lost_blocks = self.served.volume.log().map_or(Ok(0), LogControl::note_loss)?;
                if lost_blocks > 0 {
                    log::line(&format!("note was taken of {lost_blocks} blocks that are lost"));
                }
                to_raw_value(&Noted { lost_blocks })
            }
            Request::Set(change) => {
                self.set(change, asking)?;
                // It is done, whatever another thread does to the volume by now.
                to_raw_value(&self.status(self.holders().unwrap_or_default()))
            }
            Request::Swapon(ask) => {
                let _turn = self.phase.begin(Change::Swapon)?;
                to_raw_value(&self.swapon(&ask, asking)?)
            }
            Request::Swapoff { force } => {
                let _turn = self.phase.begin(Change::Swapoff)?;
                to_raw_value(&self.swapoff(force, asking)?)
            }
            Request::Restart { force, log } => {
                self.ending(Change::Restart, asking, |turn, asking| {
                    self.restart(force, log.as_ref(), turn, asking)
                })?;
                to_raw_value(&())
            }
            Request::Down { discard, force, drain } => {
                let how = Down { discard, force, drain };
                let down = |_: &Turn<'_>, asking: &mut Asking<'_>| self.down(how, asking);
                to_raw_value(&self.ending(Change::Down, asking, down)?)
            }
        };
        value.context("cannot encode the answer")
    }
}

impl Running {
    /// The holders of the device; `None` while another thread changes the volume for longer than
    /// [`BUSY`].
    fn holders(&self) -> Result<Option<Vec<String>>> {
        let Some(export) = self.served.export.try_lock_for(BUSY) else { return Ok(None) };
        let export = export.as_ref().ok_or_else(|| taken_down(&self.served.name))?;
        Ok(Some(export.holders()))
    }

    fn status(&self, holders: Option<Vec<String>>) -> Status {
        let endpoints = self.served.endpoints();
        let state = self.served.state.lock();
        Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: state.pid,
            started_unix_s: state.started_unix_s,
            restarts: state.restarts,
            plan: Plan { size_bytes: self.served.volume.size(), ..state.plan.clone() },
            endpoints,
            holders,
            adapting: self.threads.adapting(),
            ballast_bytes: self.threads.ballast_bytes(),
            stats: self.stats_by(&state.plan),
        }
    }

    fn sample(&self) -> Sample {
        let endpoints = self.served.endpoints();
        let state = self.served.state.lock();
        Sample {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: state.pid,
            started_unix_s: state.started_unix_s,
            restarts: state.restarts,
            plan: Plan { size_bytes: self.served.volume.size(), ..state.plan.clone() },
            endpoints,
            adapting: self.threads.adapting(),
            ballast_bytes: self.threads.ballast_bytes(),
            stats: self.stats_by(&state.plan),
            latencies: self.served.volume.latencies(),
        }
    }

    /// Writes back what the log holds now, as long as the caller waits.
    fn drain(&self, asking: &Asking<'_>) -> Result<Stats> {
        let first = self.log_of(&self.stats())?;
        let (_hurry, until_segment) = self.drains.begin(&*self.served.volume)?;
        let (mut seen, mut moved) = (progress(&self.stats(), &first), Instant::now());
        loop {
            let stats = self.stats();
            let log = self.log_of(&stats)?;
            if log.clean || log.segment_tail >= until_segment {
                return Ok(stats);
            }
            if asking.is_gone() {
                return Err(Error::failure("the caller has hung up"));
            }
            draining::refuse_overtaken(&stats, &log)?;
            drop(self.served.export()?);
            if std::mem::replace(&mut seen, progress(&stats, &log)) != seen {
                moved = Instant::now();
            }
            let gave_up = log.failed && !log.rescuing && !log.through;
            let fails = gave_up || log.windows_failed > first.windows_failed + FAILURES;
            if fails || moved.elapsed() >= STUCK {
                return Err(self.undrained(&stats, &log, fails));
            }
            thread::sleep(LOOK);
        }
    }

    /// The error of a drain that can't go on.
    fn undrained(&self, stats: &Stats, log: &LogStats, fails: bool) -> Error {
        let (name, blocks) = (&self.served.name, log.left_bytes() / crate::BLOCK_SIZE as u64);
        if let Some(trouble) = stats.object.as_ref().and_then(|object| object.trouble.as_ref()) {
            let text = format!("volume `{name}` still has {blocks} blocks in its log: {trouble}");
            return Error::degraded(text)
                .hint("repair the store or the way to it; what the log holds gets there then");
        }
        let last = stats.drives.iter().max_by_key(|drive| drive.last_unix_s());
        let why = match (fails, last) {
            (true, Some(drive)) => format!("fails: {}", drive.last().unwrap_or_default()),
            (true, None) => "fails".into(),
            (false, _) => "does not answer".into(),
        };
        let text = format!("volume `{name}` still has {blocks} blocks in its log: a drive {why}");
        Error::degraded(text).hint(remedy::DRIVE_FAILS)
    }

    fn log_of(&self, stats: &Stats) -> Result<LogStats> {
        stats.log.ok_or_else(|| {
            Error::usage(format!(
                "volume `{}` has no log, so there is nothing to drain",
                self.served.name
            ))
        })
    }
}

/// The counters by which a drain's progress shows.
fn progress(stats: &Stats, log: &LogStats) -> [u64; 7] {
    let sent = stats.object.as_ref().map_or(0, |object| object.durable_slot);
    [
        log.blocks_dirty,
        log.blocks_zeroed,
        log.segment_tail,
        log.segment_durable,
        log.written_back_bytes,
        log.zeroed_back_bytes,
        sent,
    ]
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A drive that has to write zeros takes minutes for a window that has nothing else.
    #[test]
    fn a_window_of_zeros_is_progress() {
        let stats = Stats::default();
        let before = LogStats { blocks_zeroed: 1 << 20, ..LogStats::default() };
        let zeroes = LogStats { zeroed_back_bytes: 64 << 20, ..before };
        assert_ne!(progress(&stats, &before), progress(&stats, &zeroes));
        let meanwhile = LogStats { blocks_zeroed: 0, ..before };
        assert_ne!(progress(&stats, &before), progress(&stats, &meanwhile));
    }
}

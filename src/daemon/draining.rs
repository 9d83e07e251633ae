//! Drains a log: while requests ask for it, and all that is left when no client can write to the
//! volume any more.
//!
//! Invariant: the latter ends within [`PATIENCE`], and earlier if a drive fails.

use super::relog::refuse_lost;
use crate::config::size::human;
use crate::device::Serving;
use crate::error::{Error, Result};
use crate::remedy;
use crate::stats::{LogStats, Stats};
use parking_lot::Mutex;
use std::time::{Duration, Instant};

/// How long the rest may take that was written after the volume was drained while in use.
const PATIENCE: Duration = Duration::from_secs(50);
/// The number of writeback windows that may fail meanwhile.
const FAILURES: u64 = 3;
/// Interval between checks.
const GLANCE: Duration = Duration::from_millis(2);

/// The number of control requests that wait for the log to be drained.
#[derive(Default)]
pub(super) struct Drains {
    waiting: Mutex<usize>,
}

impl Drains {
    /// Drains the log of `volume` for one more request, until [`Hurry`] is dropped. Returns the
    /// segment up to which the log is written back, too.
    ///
    /// # Errors
    /// See [`hurry`].
    pub fn begin<'a>(&'a self, volume: &'a dyn Serving) -> Result<(Hurry<'a>, u64)> {
        let mut waiting = self.waiting.lock();
        let until_segment = hurry(volume, true)?;
        *waiting += 1;
        drop(waiting);
        Ok((Hurry { drains: self, volume }, until_segment))
    }
}

/// A request that waits for the log to be drained.
pub(super) struct Hurry<'a> {
    drains: &'a Drains,
    volume: &'a dyn Serving,
}

impl Drop for Hurry<'_> {
    fn drop(&mut self) {
        let mut waiting = self.drains.waiting.lock();
        *waiting -= 1;
        if *waiting == 0 {
            // Starting worked, so stopping does.
            let _ = hurry(self.volume, false);
        }
    }
}

/// Starts or stops draining a log. Returns the segment up to which the log is written back; 0 if
/// there is nothing to write back.
///
/// # Errors
/// The volume has no backing store.
fn hurry(volume: &dyn Serving, on: bool) -> Result<u64> {
    match volume.log() {
        Some(log) => Ok(log.drain(on)),
        None if volume.in_memory().is_none() => Ok(0),
        None => Err(Error::usage("the volume has no log, so there is nothing to drain")
            .hint("`ztier down` takes it down")),
    }
}

/// Refuses to drain a log to a store that has another owner.
///
/// # Errors
/// It has.
pub(super) fn refuse_overtaken(stats: &Stats, log: &LogStats) -> Result<()> {
    let by = stats.object.as_ref().and_then(|object| object.successor.as_ref());
    let Some(by) = by else { return Ok(()) };
    let left = human(log.left_bytes());
    let text = format!("the log still holds {left}, and the volume was taken over by {by}");
    Err(Error::degraded(text).hint(remedy::LOG_OVERTAKEN))
}

/// Writes back everything that is left in the log.
///
/// # Errors
/// It takes too long, a drive fails, or blocks are lost; the log still holds the rest.
pub(super) fn drain(volume: &dyn Serving) -> Result<()> {
    let until = Instant::now() + PATIENCE;
    let mut failed_before = None;
    loop {
        hurry(volume, true)?;
        let stats = volume.stats();
        let Some(log) = stats.log else { return Ok(()) };
        if log.clean {
            return refuse_lost(volume);
        }
        refuse_overtaken(&stats, &log)?;
        let before = *failed_before.get_or_insert(log.windows_failed);
        let fails = log.windows_failed >= before + FAILURES;
        let failed = log.failed && !log.rescuing && !log.through;
        if failed || fails || Instant::now() >= until {
            hurry(volume, false)?;
            let (why, left) = (
                if failed || fails { "a drive fails" } else { "it took too long" },
                human(log.left_bytes()),
            );
            return Err(Error::degraded(format!("the log still holds {left}: {why}"))
                .hint("bring the volume up with that log, then drain it"));
        }
        std::thread::sleep(GLANCE);
    }
}

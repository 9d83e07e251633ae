//! One run of the load on one system.
//!
//! Invariants: every wait has a limit; the load has ended before its swap is turned off, in every
//! case; guards restore what the run changed.

use super::limit::Limit;
use super::load::Outcome;
use super::system::{Contender, Counters};
use super::watch::{Range, Sample, range, watch};
use crate::sys::command::run;
use crate::sys::cpu::Stopwatch;
use crate::sys::usage::swapped;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use ztier::BLOCK_SIZE;
use ztier::error::{Context, Error, Result};

/// Time that a load may take to begin and to end, beyond its own duration.
const SLACK: Duration = Duration::from_secs(60);

/// The work of a load, and its limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Memory of the load, in MiB.
    pub mib: u64,
    /// Number of passes.
    pub passes: u32,
    /// Memory limit of the load, in MiB; `None`: the machine's size.
    pub limit_mib: Option<u64>,
    /// Time after which the load stops.
    pub time: Duration,
    /// Interval between samples of the swap in use.
    pub look: Duration,
}

/// The results of a run.
#[derive(Clone, Debug)]
pub struct Measured {
    /// The load's own results.
    pub outcome: Outcome,
    /// Busy time of the machine, in percent of one CPU.
    pub machine_percent: f64,
    /// CPU time of the process that serves the pages.
    pub serving: Option<Duration>,
    /// Maximum memory of the load's group.
    pub peak: Option<u64>,
    /// Maximum memory of the compressed pages that is not in `peak`.
    pub store: Option<u64>,
    /// Swap in use during the passes.
    pub range: Option<Range>,
    /// Samples of the swap in use, from the beginning.
    pub samples: Vec<Sample>,
    /// Bytes that the kernel read from the swap device.
    pub bytes_in: u64,
    /// Bytes that the kernel wrote to the swap device.
    pub bytes_out: u64,
    /// Bytes written to a disk.
    pub written: u64,
    /// Whether the device is a ublk device.
    pub ublk: bool,
    /// Counters of ztier.
    pub counters: Option<Counters>,
}

impl Shape {
    /// Size of the swap space: twice the maximum that can be swapped out.
    pub fn swap_bytes(&self) -> u64 {
        ((2 * self.mib) << 20).next_power_of_two()
    }

    /// A description for reports.
    pub fn about(&self) -> String {
        let limit =
            self.limit_mib.map_or("what memory there is".to_owned(), |m| format!("{m} MiB"));
        format!("{} MiB, {} passes, in {limit}", self.mib, self.passes)
    }
}

impl Contender {
    /// Runs the load on this system.
    ///
    /// # Errors
    /// A wrong page; the load was killed or took too long; the system could not be used.
    pub fn measure(&self, shape: &Shape) -> Result<Measured> {
        let on = self.on()?;
        let limit = shape.limit_mib.map(|mib| Limit::new(mib << 20)).transpose()?;
        let before = (swapped()?, self.counters()?, self.serving()?);
        let watching = Stopwatch::start();
        let (outcome, samples) = self.load(shape, limit.as_ref(), &on.swap)?;
        let machine_percent = watching.stop().machine_percent;
        let after = (swapped()?, self.counters()?, self.serving()?);
        let bytes = |now: u64, then: u64| (now - then) * BLOCK_SIZE as u64;
        let bytes_out = bytes(after.0.pages_out, before.0.pages_out);
        let counters = before.1.zip(after.1).map(|(before, after)| after.since(before));
        let passes = Duration::from_secs_f64((outcome.elapsed_s - outcome.fill_s).max(0.0));
        Ok(Measured {
            machine_percent,
            serving: before.2.zip(after.2).map(|(before, after)| after.saturating_sub(before)),
            peak: limit.as_ref().map(Limit::peak).transpose()?,
            store: self.store(&samples, limit.as_ref()),
            range: range(&samples, passes),
            samples,
            bytes_in: bytes(after.0.pages_in, before.0.pages_in),
            bytes_out,
            written: self.written(bytes_out, counters),
            ublk: crate::workload::over_ublk(self.device()),
            counters,
            outcome,
        })
    }

    fn load(
        &self,
        shape: &Shape,
        limit: Option<&Limit>,
        swap: &super::swap::SwapOn,
    ) -> Result<(Outcome, Vec<Sample>)> {
        let own = std::env::current_exe().context("cannot find out where this program is")?;
        let seconds = shape.time.as_secs_f64().to_string();
        let mut args =
            vec!["scan-load".to_owned(), shape.mib.to_string(), shape.passes.to_string()];
        args.extend(["--seconds".to_owned(), seconds]);
        if let Some(limit) = limit {
            args.extend(["--join".to_owned(), limit.join().to_string_lossy().into_owned()]);
        }
        let ended = AtomicBool::new(false);
        let (text, samples) = std::thread::scope(|scope| {
            let watcher = scope.spawn(|| watch(self, swap, shape.look, &ended));
            let text = run(own, &args, shape.time + SLACK);
            ended.store(true, Ordering::Relaxed);
            watcher.thread().unpark();
            (text, watcher.join().unwrap_or_default())
        });
        let killed = limit.map_or(0, Limit::killed);
        let text = text.map_err(|e| match killed {
            0 => e,
            _ => Error::failure(format!("the load was killed for want of memory: {e}")),
        })?;
        let outcome = serde_json::from_str(&text).context("the load printed no figures")?;
        Ok((outcome, samples))
    }

    /// The maximum memory of the compressed pages, unless the load's group includes it.
    fn store(&self, samples: &[Sample], limit: Option<&Limit>) -> Option<u64> {
        let seen = samples.iter().filter_map(|sample| sample.memory).max();
        let in_group = seen.is_some() && self.memory_max().is_none();
        if in_group && limit.is_some_and(Limit::counts_zswap) {
            return Some(0);
        }
        self.memory_max().max(seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn swap_space_is_ample_and_round() {
        let shape = |mib| Shape {
            mib,
            passes: 1,
            limit_mib: Some(1),
            time: Duration::ZERO,
            look: Duration::ZERO,
        };
        assert_eq!(shape(480).swap_bytes(), 1 << 30);
        assert_eq!(shape(24).swap_bytes(), 64 << 20);
        assert_eq!(shape(480).about(), "480 MiB, 1 passes, in 1 MiB");
    }
}

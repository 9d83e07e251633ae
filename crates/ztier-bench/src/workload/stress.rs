//! The source's stress test: all IOzone tests on 1 and 2 GiB files of a 3 GiB device, while the
//! page cache is dropped every second, and a final check of the error counters.

use super::Context;
use super::iozone::{DEVICE_BYTES, Place, SERIES_LIMIT, Series, full_plan, in_child};
use crate::report::{print, say};
use crate::rival::Disk;
use crate::rival::ext4::Ext4;
use crate::rival::ztier::Up;
use crate::sys::caches::CacheDropper;
use std::time::Instant;
use ztier::error::{Context as _, Error, Result};

/// Counters of the historic statistics that must be zero at the end.
const MUST_BE_ZERO: [&str; 3] = ["FailedReads", "FailedWrites", "InvalidIO"];

/// Runs the source's stress `runs` times.
pub fn full(context: &Context, runs: u32) -> Result<()> {
    stress(context, runs, &full_plan())
}

/// A short form: one series on a 1 GiB file, one on a 2 GiB file.
pub fn short(context: &Context) -> Result<()> {
    stress(context, 1, &[(1 << 30, 64 << 10), (2 << 30, 1 << 20)])
}

fn stress(context: &Context, runs: u32, plan: &[(u64, usize)]) -> Result<()> {
    let up = Up::new(DEVICE_BYTES, "auto")?;
    say(&format!("stress: {}", up.about()));
    let fs = Ext4::new(up.path())?;
    let caches = CacheDropper::start()?;
    let start = Instant::now();
    for run in 1..=runs {
        for &kind in &context.data {
            for &mode in &context.modes {
                for &(file_bytes, record_bytes) in plan {
                    let series = Series::new(file_bytes, record_bytes, mode, kind)?;
                    let place = Place { dir: fs.path().into(), ..Place::default() };
                    in_child(&place, series, SERIES_LIMIT)
                        .context(format!("stress run {run}, {series}"))?;
                    say(&format!("run {run} of {runs}, {series}: no error"));
                }
            }
        }
    }
    let drops = caches.drops();
    drop((caches, fs));
    let stats = up.stats("zramconfig")?;
    print(&stats);
    check_counters(&stats)?;
    let seconds = start.elapsed().as_secs_f64();
    print(&format!(
        "stress: {runs} run(s), {seconds:.0} s, page cache dropped {drops} times: no I/O error, no wrong data"
    ));
    Ok(())
}

/// # Errors
/// A counter is missing, or not zero.
fn check_counters(stats: &str) -> Result<()> {
    for name in MUST_BE_ZERO {
        let value = stats
            .lines()
            .find_map(|line| line.trim().strip_prefix(name)?.strip_prefix(':'))
            .and_then(|rest| rest.split_whitespace().next()?.parse::<u64>().ok())
            .ok_or_else(|| Error::failure(format!("the statistics do not show {name}")))?;
        if value != 0 {
            return Err(Error::failure(format!("{name} is {value} after the stress, not 0")));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// As the source prints them.
    const GOOD: &str = "DiskSize:        3145728 kB\nFailedReads:           0  <----\\\n\
                        FailedWrites:          0\nInvalidIO:             0\n";

    #[test]
    fn every_counter_must_be_there_and_zero() {
        assert!(check_counters(GOOD).is_ok());
        assert!(check_counters(&GOOD.replace("Writes:          0", "Writes:          3")).is_err());
        assert!(check_counters(&GOOD.replace("InvalidIO", "Invalid")).is_err());
        assert!(check_counters("").is_err());
    }
}

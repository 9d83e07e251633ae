//! Overwrites for a long time: memory must not grow.

use super::SEED;
use super::engine::OwnVolume;
use super::random::{InProcess, Op, Order, pools, work};
use crate::data::Kind;
use crate::report::{print, say, slope};
use crate::sys::interrupt;
use std::sync::Arc;
use std::time::{Duration, Instant};
use ztier::BLOCK_SIZE;
use ztier::error::{Context as _, Error, Result};

const MIB: f64 = (1 << 20) as f64;
/// Tolerated growth in an hour, as a share of the memory in use.
const GROWTH_MAX: f64 = 0.01;
/// Share of a run at the beginning that does not count, as memory settles.
const SETTLING: f64 = 0.25;
/// Standard errors by which a slope must exceed the limit.
const SIGNIFICANT: f64 = 3.0;

/// Overwrites a volume of `size` bytes with random blocks of changing size for `time`.
///
/// # Errors
/// A write fails; memory grows by more than one percent an hour.
pub fn run(size: u64, time: Duration) -> Result<()> {
    let kinds = [Kind::Mix(2.0), Kind::Mix(2.5), Kind::Mix(2.2)];
    let mut data = kinds.iter().map(|&kind| pools(kind, 2)).collect::<Result<Vec<_>>>()?;
    let blocks = size / BLOCK_SIZE as u64;
    let volume = OwnVolume::new(size, size)?;
    let target = InProcess(Arc::clone(&volume.0));
    work(&target, Op::Write(0), Order::Each, blocks, &mut data[0], SEED)?;
    say(&format!("soak: {} MiB, {} minutes", size >> 20, time.as_secs_f64() / 60.0));

    let (start, mut next_note) = (Instant::now(), Duration::ZERO);
    // A slice covers all data once: samples are taken at the same phase.
    let slice = (time / 200).clamp(Duration::from_millis(300), Duration::from_secs(5));
    let mut samples: Vec<(f64, f64, f64)> = Vec::new();
    let mut generation = 0;
    while start.elapsed() < time {
        for pools in &mut data {
            generation += 1;
            let order = Order::For(slice / 3);
            work(
                &target,
                Op::Write(generation),
                order,
                blocks,
                pools,
                SEED + u64::from(generation),
            )?;
        }
        interrupt::check()?;
        let (resident, used) = (resident_bytes()?, volume.0.stats().mem_used_bytes as f64);
        let elapsed = start.elapsed();
        samples.push((elapsed.as_secs_f64() / 3600.0, resident, used));
        if elapsed >= next_note {
            next_note = elapsed + time / 12;
            say(&format!(
                "{:6.1} min: mem_used {:.1} MiB, resident {:.1} MiB",
                elapsed.as_secs_f64() / 60.0,
                used / MIB,
                resident / MIB
            ));
        }
    }
    judge(&samples[(samples.len() as f64 * SETTLING) as usize..])
}

/// Samples: hours, resident bytes, bytes in use as reported by the volume.
fn judge(samples: &[(f64, f64, f64)]) -> Result<()> {
    let Some(&(_, resident, used)) = samples.first() else {
        return Err(Error::failure("the soak was too short to take samples"));
    };
    let series = |f: fn(&(f64, f64, f64)) -> (f64, f64)| samples.iter().map(f).collect::<Vec<_>>();
    let mut grown = Vec::new();
    for (name, at_first, (slope, error)) in [
        ("resident memory of the process", resident, slope(&series(|s| (s.0, s.1)))),
        ("mem_used of the volume", used, slope(&series(|s| (s.0, s.2)))),
    ] {
        // Memory varies as segments fill and are cleaned: only more than that counts as growth.
        let (limit, noise) = (at_first * GROWTH_MAX, error * SIGNIFICANT);
        let verdict = match slope {
            _ if slope - noise > limit => "short",
            _ if noise > limit => "too short a run to tell",
            _ => "pass",
        };
        print(&format!(
            "{name}: {:+.2} ± {:.2} MiB an hour at {:.1} MiB (at most {:.2}): {verdict}",
            slope / MIB,
            noise / MIB,
            at_first / MIB,
            limit / MIB
        ));
        if slope - noise > limit {
            grown.push(name);
        }
    }
    if grown.is_empty() {
        Ok(())
    } else {
        Err(Error::failure(format!("memory grows: {}", grown.join(", "))))
    }
}

/// All resident bytes of this process, shared ones (memfd) included.
fn resident_bytes() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/self/status").context("cannot read own status")?;
    text.lines()
        .find_map(|line| line.strip_prefix("VmRSS:"))
        .and_then(|rest| rest.split_whitespace().next()?.parse::<f64>().ok())
        .map(|kib| kib * 1024.0)
        .ok_or_else(|| Error::failure("/proc/self/status shows no VmRSS"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn growth_of_either_measure_fails() {
        let line = |r: f64, u: f64| -> Vec<(f64, f64, f64)> {
            (0..60)
                .map(|m| f64::from(m) / 60.0)
                .map(|h| (h, MIB * (100.0 + r * h), MIB * (90.0 + u * h)))
                .collect()
        };
        judge(&line(0.0, -3.0)).unwrap();
        judge(&line(0.5, 0.5)).unwrap();
        assert!(judge(&line(2.0, 0.0)).is_err());
        assert!(judge(&line(0.0, 2.0)).is_err());
        assert!(judge(&[]).is_err());
        // The same growth within larger noise.
        let noisy = |grow: f64| -> Vec<(f64, f64, f64)> {
            let noise = |m: i32| if m % 2 == 0 { 5.0 } else { -5.0 };
            let at = |m: i32| MIB * (100.0 + grow * f64::from(m) / 60.0 + noise(m));
            (0..60).map(|m| (f64::from(m) / 60.0, at(m), MIB)).collect()
        };
        judge(&noisy(2.0)).unwrap();
        assert!(judge(&noisy(20.0)).is_err());
    }

    #[test]
    fn this_process_is_resident() {
        assert!(resident_bytes().unwrap() > 1e6);
    }
}

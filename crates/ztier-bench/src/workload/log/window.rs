//! Growth of a log's work with the number of changed blocks and zeroed ranges that it holds.
//!
//! The drives are memory, so only the processor counts. The log is filled, opened again as after a
//! power cut, and drained; each step runs once with a quarter of the number, and once with all of
//! it. Invariants: both sizes take turns; no two blocks and no two ranges are neighbours, so none
//! are merged.

use super::compact::{Compact, Nothing};
use super::own::epoch;
use super::{BLOCK, Plan};
use crate::model::{Kind as Model, Name};
use crate::report::{Report, Row, Table, Target as Goal, median, print};
use crate::sys::{cpu, interrupt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ztier::BLOCK_SIZE;
use ztier::device::{Algorithm, Device, LogOptions, LogVolume, Policy, Request};
use ztier::error::{Context as _, Error, Result};
use ztier::log;
use ztier::log::disk::format::IDENTITY;
use ztier::media::Drive;

const SECTION: &str = "window";
const SEGMENT: u32 = 1 << 20;
/// Bytes of log for each request: its block, its header, and spare room.
const LOG_PER_REQUEST: u64 = 6 << 10;
/// Requests of the larger log ÷ those of the smaller one.
const STEP: u64 = 4;
/// Seconds of CPU time below which a step says nothing about growth.
const LEAST: f64 = 0.02;
/// Limit on the time of a drain.
const PATIENCE: Duration = Duration::from_secs(600);
/// Pause between two writes during a drain.
const PAUSE: Duration = Duration::from_millis(5);

/// The content of the log.
#[derive(Clone, Copy, Debug)]
enum Load {
    /// Single blocks.
    Blocks,
    /// Zeroed ranges of two blocks.
    Zeroed,
    /// Discarded ranges of two blocks.
    Discarded,
    /// Blocks and zeroed blocks, alternating.
    Alternating,
    /// Blocks first, then zeroing of every other one.
    Overwritten,
}

impl Load {
    const ALL: [Self; 5] =
        [Self::Blocks, Self::Zeroed, Self::Discarded, Self::Alternating, Self::Overwritten];

    const fn name(self) -> &'static str {
        match self {
            Self::Blocks => "blocks",
            Self::Zeroed => "zeroed",
            Self::Discarded => "discarded",
            Self::Alternating => "alternating",
            Self::Overwritten => "overwritten",
        }
    }

    /// Request `i` of `count`.
    fn request(self, i: u64, count: u64, data: &mut [u8]) -> Request<'_> {
        let (offset, len) = (i * 4 * BLOCK, 2 * BLOCK);
        let zero = |offset, len| Request::WriteZeroes { offset, len, no_hole: false, fua: false };
        let half = count / 2;
        match self {
            Self::Zeroed => return zero(offset, len),
            Self::Discarded => return Request::Discard { offset, len },
            Self::Alternating if i % 2 == 1 => return zero(offset, BLOCK),
            Self::Overwritten if i >= half => return zero((i - half) * 8 * BLOCK, BLOCK),
            Self::Blocks | Self::Alternating | Self::Overwritten => {}
        }
        data[..8].copy_from_slice(&(i + 1).to_le_bytes());
        Request::Write { offset, data, fua: false }
    }
}

/// The cost of one run: CPU seconds of the steps, longest requests, memory.
#[derive(Clone, Copy, Default)]
struct Cost {
    steps: [f64; 3],
    /// Longest requests in milliseconds: during the fill, and during the drain.
    longest: [f64; 2],
    index_bytes: u64,
}

const STEPS: [&str; 3] = ["fill", "open", "drain"];

impl Plan<'_> {
    /// Measures all loads and numbers.
    pub(super) fn window(&self, report: &mut Report, quick: bool) -> Result<()> {
        let most: u64 = if quick { 100_000 } else { 1_000_000 };
        report.note(SECTION, "drives", "memory; processor time");
        let table = Table::new(&[
            ("holds", 11),
            ("requests", 9),
            ("fill, s", 7),
            ("open, s", 7),
            ("drain, s", 8),
            ("longest, ms", 11),
            ("beside", 7),
            ("index, MiB", 10),
        ]);
        print(&table.head());
        for load in Load::ALL {
            let counts = [most / STEP, most];
            let mut runs: [Vec<Cost>; 2] = Default::default();
            for _ in 0..self.rounds {
                for (count, runs) in counts.iter().zip(&mut runs) {
                    runs.push(measure(load, *count)?);
                }
            }
            for (count, runs) in counts.iter().zip(&runs) {
                let of = |figure: &dyn Fn(&Cost) -> f64| median(&each(runs, figure));
                let mut cells = vec![load.name().to_owned(), count.to_string()];
                cells.extend((0..3).map(|step| format!("{:.3}", of(&|cost| cost.steps[step]))));
                cells.extend((0..2).map(|at| format!("{:.1}", of(&|cost| cost.longest[at]))));
                cells.push(format!("{:.1}", of(&|cost| cost.index_bytes as f64) / 1048576.0));
                print(&table.line(&cells));
                rows(report, load, *count, runs);
            }
            for (step, growth) in growth(counts, &runs) {
                let name = format!("window_growth_{}_{step}", load.name());
                report.ratio(&name, growth, Goal::AtMost(1.5));
            }
        }
        Ok(())
    }
}

fn each(runs: &[Cost], figure: &dyn Fn(&Cost) -> f64) -> Vec<f64> {
    runs.iter().map(figure).collect()
}

fn rows(report: &mut Report, load: Load, count: u64, runs: &[Cost]) {
    let mut row = |case: &str, unit: &'static str, figure: &dyn Fn(&Cost) -> f64| {
        report.silent_row(Row {
            section: SECTION.into(),
            system: format!("{count} requests, {}", load.name()),
            case: case.into(),
            unit,
            runs: each(runs, figure),
            ..Row::default()
        });
    };
    for (step, name) in STEPS.iter().enumerate() {
        row(name, "s", &|cost| cost.steps[step]);
    }
    row("longest request of the fill", "ms", &|cost| cost.longest[0]);
    row("longest write beside the drain", "ms", &|cost| cost.longest[1]);
    row("index", "B", &|cost| cost.index_bytes as f64);
}

/// The growth of each step from one to [`STEP`] times the requests, divided by that of n log n.
/// Quadratic work has 3.6 at 10^6. Very short steps are left out.
fn growth(counts: [u64; 2], runs: &[Vec<Cost>; 2]) -> Vec<(&'static str, f64)> {
    let [few, many] = counts.map(|count| count as f64);
    let fair = many * many.log2() / (few * few.log2());
    let of = |step: usize, runs: &[Cost]| median(&each(runs, &|cost| cost.steps[step]));
    let steps = STEPS.into_iter().enumerate();
    let steps = steps.map(|(step, name)| (name, of(step, &runs[0]), of(step, &runs[1])));
    steps
        .filter(|(_, few, _)| *few >= LEAST)
        .map(|(name, few, many)| (name, many / few / fair))
        .collect()
}

/// Fills a log with `count` requests, opens it again and drains it.
fn measure(load: Load, count: u64) -> Result<Cost> {
    let mut cost = Cost::default();
    let bytes = (count * LOG_PER_REQUEST).next_multiple_of(SEGMENT.into()) + (64 << 20);
    let drive = Arc::new(Compact::new(bytes, Name { size: bytes, ..Model::Ssd840Pro.into() }));
    // Writes during the drain go behind the others.
    let backing: Arc<dyn Drive> = Arc::new(Nothing((count * 4 + 1024) * BLOCK));
    let blocks = backing.size() / BLOCK;
    log::format(&*drive, [1; 16], [0; IDENTITY], blocks, SEGMENT).context("a log in memory")?;
    let open = || {
        let (log, backing) = (Arc::clone(&drive) as Arc<dyn Drive>, Arc::clone(&backing));
        LogVolume::open(log, backing, options(), epoch()).context("a log in memory")
    };
    let volume = open()?;
    volume.start(None)?;
    let before = cpu::process();
    cost.longest[0] = fill(&volume, load, count)?;
    cost.steps[0] = (cpu::process() - before).as_secs_f64();
    // The volume ends here without closing its log.
    drop(volume);
    let before = cpu::process();
    let volume = open()?;
    cost.steps[1] = (cpu::process() - before).as_secs_f64();
    volume.start(None)?;
    cost.index_bytes = volume.stats().log.unwrap_or_default().index_bytes;
    let before = cpu::process();
    cost.longest[1] = drain(&volume, count)?;
    cost.steps[2] = (cpu::process() - before).as_secs_f64();
    volume.close().context("the drained log")?;
    Ok(cost)
}

/// Options without automatic writeback.
fn options() -> LogOptions {
    let policy = Policy { threshold_percent: 101, ..Policy::default() };
    LogOptions { algorithm: Algorithm::None, policy, ..LogOptions::default() }
}

/// Fills the log; returns the time of the longest request in milliseconds.
fn fill(volume: &Arc<LogVolume>, load: Load, count: u64) -> Result<f64> {
    let mut channel = Arc::clone(volume).channel();
    let mut data = [0; BLOCK_SIZE];
    let mut longest = Duration::ZERO;
    for i in 0..count {
        if i % 1024 == 0 {
            interrupt::check()?;
        }
        let begun = Instant::now();
        channel.submit(load.request(i, count, &mut data), begun).context("a request")?;
        longest = longest.max(begun.elapsed());
    }
    channel.submit(Request::Flush, Instant::now()).context("flush")?;
    Ok(longest.as_secs_f64() * 1e3)
}

/// Writes back all that the log holds now, and writes a block now and then meanwhile; returns the
/// time of the longest of these writes in milliseconds.
fn drain(volume: &Arc<LogVolume>, count: u64) -> Result<f64> {
    let (until, stop) = (Instant::now() + PATIENCE, AtomicBool::new(false));
    let end = volume.drain(true);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| beside(volume, count * 4, &stop));
        let waited = loop {
            if volume.stats().log.unwrap_or_default().segment_tail >= end {
                break Ok(());
            }
            if Instant::now() >= until {
                break Err(Error::failure(format!("a drain of {count} requests takes too long")));
            }
            if let Err(e) = interrupt::sleep(PAUSE * 4) {
                break Err(e);
            }
        };
        stop.store(true, Ordering::Relaxed);
        let longest = writer.join().map_err(|_| Error::failure("the writer panicked"))?;
        waited.and(longest)
    })
}

fn beside(volume: &Arc<LogVolume>, first: u64, stop: &AtomicBool) -> Result<f64> {
    let mut channel = Arc::clone(volume).channel();
    let (mut longest, mut n) = (Duration::ZERO, 0);
    while !stop.load(Ordering::Relaxed) {
        let begun = Instant::now();
        let offset = (first + n % 1024) * BLOCK;
        channel
            .submit(Request::Write { offset, data: &[1; BLOCK_SIZE], fua: false }, begun)
            .context("a write beside the drain")?;
        longest = longest.max(begun.elapsed());
        n += 1;
        std::thread::sleep(PAUSE);
    }
    Ok(longest.as_secs_f64() * 1e3)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn each_load_is_filled_found_again_and_drained() {
        for load in Load::ALL {
            let cost = measure(load, 600).unwrap();
            assert!(cost.steps.iter().all(|step| *step > 0.0), "{load:?}");
            assert!(cost.longest.iter().all(|time| *time > 0.0), "{load:?}");
            assert!(cost.index_bytes > 0, "{load:?}");
        }
    }

    #[test]
    fn quadratic_work_is_seen() {
        let of = |steps| vec![Cost { steps, ..Cost::default() }];
        let runs = [of([0.1, 0.1, 0.001]), of([0.44, 1.6, 1.0])];
        let found = growth([250_000, 1_000_000], &runs);
        let [("fill", fair), ("open", quadratic)] = found[..] else { panic!("{found:?}") };
        assert!((fair - 1.0).abs() < 0.05 && (quadratic - 3.6).abs() < 0.05, "{found:?}");
    }
}

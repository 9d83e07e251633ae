//! The time to open a log that was not closed, by its size and by the load that filled it.
//!
//! The product itself writes the log: requests go through a volume, then the volume ends without
//! closing the log, as at a power cut: when the log is full, or just before a checkpoint is due
//! that is the last one in the log. The distance of checkpoints is measured while the log fills.
//! The log's drive is memory that keeps only nonzero bytes, because payloads do not matter. So the
//! result is the time of all processors together, and the time of the reads on a modelled drive is
//! stated beside it.

use super::BLOCK;
use super::Plan;
use super::compact::{Compact, Nothing, Reads};
use super::own::epoch;
use crate::data::Rng;
use crate::model::{Kind as Model, Name};
use crate::report::{Report, Row, Table, Target as Goal, available_bytes, median, print};
use crate::sys::{cpu, interrupt};
use crate::workload::SEED;
use std::sync::Arc;
use std::time::Instant;
use ztier::BLOCK_SIZE;
use ztier::device::{Algorithm, Device, LogOptions, LogVolume, Policy, Request};
use ztier::error::{Context as _, Error, Result};
use ztier::log;
use ztier::log::disk::format::IDENTITY;
use ztier::media::Drive;
use ztier::stats::LogStats;
use ztier::sync::Mutex;

const SECTION: &str = "recovery";
const GIB: u64 = 1 << 30;
const SEGMENT: u64 = 1 << 20;
/// Threads that fill a log at full speed.
const WRITERS: u64 = 2;
/// Upper bound on the memory here for a GiB of log: its kept bytes, its index, and the memory for
/// opening.
const MEMORY_PER_GIB: u64 = 100 << 20;
/// Memory that stays free.
const SPARE: u64 = 2 << 30;

/// Percent of the distance to the next checkpoint at which the log is cut.
const CUT: u64 = 97;
/// Seconds of opening after which a log is not opened another time.
const LONG: f64 = 20.0;

/// The load that filled the log.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Load {
    /// 4 KiB blocks at full speed.
    Speed,
    /// 4 KiB blocks, each with a flush.
    Synced,
}

/// The distance of checkpoints, from the counters.
#[derive(Default)]
struct Pace {
    /// Bytes since the last checkpoint began, at the last check.
    since: u64,
    /// The smallest distance so far: some checkpoints wait for a moment at which they may begin.
    apart: Option<u64>,
}

impl Pace {
    /// Checks the counters; returns whether the log is cut here.
    fn is_over(&mut self, stats: &LogStats) -> bool {
        let since = stats.since_checkpoint_bytes;
        if since < self.since {
            self.apart = Some(self.apart.unwrap_or(u64::MAX).min(self.since));
        }
        self.since = since;
        // The content of memory must still fit.
        let room = log::Options::default().memory / SEGMENT + 32;
        let left = stats.segments.saturating_sub(stats.segments_used + room) * SEGMENT;
        let due = |apart| since >= apart * CUT / 100 && left < apart;
        left == 0 || self.apart.is_some_and(due)
    }

    /// Percent of the distance to the next checkpoint; `None` without any checkpoint.
    fn percent(&self) -> Option<u64> {
        self.apart.map(|apart| 100 * self.since / apart)
    }
}

/// A log that was not closed.
struct Left {
    drive: Arc<Compact>,
    backing: Arc<dyn Drive>,
    blocks: u64,
    chunks: u64,
    /// Blocks in its index.
    named: u64,
    /// Bytes written to its drive for each byte requested, if there were checkpoints.
    amplification: Option<f64>,
    /// Segments in use.
    used: u64,
    /// Percent of the distance from a checkpoint to the next.
    cut: Option<u64>,
}

/// The times of opening.
struct Opened {
    /// Wall time, with as many threads as processors and no wait for a drive.
    seconds: Vec<f64>,
    /// CPU time of all processors.
    spent: Vec<f64>,
    reads: Reads,
    named: u64,
}

impl Plan<'_> {
    /// Measures all sizes and loads.
    pub(super) fn recovery(&self, report: &mut Report, quick: bool) -> Result<()> {
        let sizes: &[u64] = if quick { &[1, 2] } else { &[1, 4, 16, 100] };
        let text = format!(
            "in memory without what is zero, left as by a cut of power; read times as of {}",
            Name::from(Model::Ssd840Pro)
        );
        report.note(SECTION, "logs", text);
        let table = Table::new(&[
            ("log, GiB", 8),
            ("filled by", 16),
            ("full, %", 8),
            ("cut at, %", 10),
            ("blocks, 10^6", 12),
            ("chunks, 10^6", 12),
            ("kept, MiB", 9),
            ("reads", 9),
            ("read, MiB", 9),
            ("no drive, s", 11),
            ("drive, s", 9),
            ("s/100 GiB", 10),
            ("with drive", 10),
        ]);
        print(&table.head());
        for load in [Load::Speed, Load::Synced] {
            let what = if load == Load::Speed { "4 KiB" } else { "4 KiB + flush" };
            let mut last = None;
            for &size in sizes {
                let needed = size * MEMORY_PER_GIB + SPARE;
                if available_bytes() < needed {
                    let text = format!("needs {} MiB of memory", needed >> 20);
                    report.missing(SECTION, &format!("{size} GiB by {what}"), text);
                    continue;
                }
                let left = fill(size * GIB, load, log::Options::default().checkpoint)?;
                let opened = left.open(self.rounds.max(2))?;
                let seconds = median(&opened.seconds);
                let drive = opened.reads.drive as f64 / 1e9;
                let used = (left.used * SEGMENT) as f64 / GIB as f64;
                let scale = 100.0 / used;
                print(&table.line(&[
                    size.to_string(),
                    what.into(),
                    format!("{:.0}", 100.0 * used / size as f64),
                    left.cut.map_or("-".into(), |cut| cut.to_string()),
                    format!("{:.2}", left.blocks as f64 / 1e6),
                    format!("{:.3}", left.chunks as f64 / 1e6),
                    (left.drive.kept_bytes() >> 20).to_string(),
                    opened.reads.requests.to_string(),
                    (opened.reads.bytes >> 20).to_string(),
                    format!("{seconds:.3}"),
                    format!("{drive:.3}"),
                    format!("{:.2}", seconds * scale),
                    format!("{:.2}", (seconds + drive) * scale),
                ]));
                rows(report, size, what, &left, &opened);
                last = Some((seconds * scale, (seconds + drive) * scale, left.amplification));
            }
            if let Some(largest) = last {
                ratios(report, load, largest);
            }
        }
        Ok(())
    }
}

/// For the largest log: seconds for 100 GiB without the drive, and with it; bytes written for each
/// byte requested.
fn ratios(report: &mut Report, load: Load, (processor, all, written): (f64, f64, Option<f64>)) {
    let (synced, most) = if load == Load::Speed { ("", 1.05) } else { ("_synced", 2.1) };
    let name = format!("recovery_s_per_100gib{synced}");
    report.ratio(&name, processor, Goal::AtMost(1.0));
    report.ratio(&format!("{name}_with_drive"), all, Goal::None);
    if let Some(written) = written {
        let name = format!("write_amplification{synced}_with_checkpoints");
        report.ratio(&name, written, Goal::AtMost(most));
    }
}

fn rows(report: &mut Report, size: u64, what: &str, left: &Left, opened: &Opened) {
    let mut row = |case: &str, unit: &'static str, runs: Vec<f64>| {
        report.silent_row(Row {
            section: SECTION.into(),
            system: format!("{size} GiB filled by {what}"),
            case: case.into(),
            unit,
            runs,
            ..Row::default()
        });
    };
    row("without the drive", "s", opened.seconds.clone());
    row("time of processors", "s", opened.spent.clone());
    row("drive", "s", vec![opened.reads.drive as f64 / 1e9]);
    row("reads", "", vec![opened.reads.requests as f64]);
    row("read", "MiB", vec![(opened.reads.bytes >> 20) as f64]);
    row("blocks found", "", vec![opened.named as f64]);
    row("segments used", "", vec![left.used as f64]);
    if let Some(cut) = left.cut {
        row("cut at", "%", vec![cut as f64]);
    }
}

fn options(checkpoint: u64) -> LogOptions {
    // Prevents all writeback.
    let policy = Policy { threshold_percent: 101, ..Policy::default() };
    let log = log::Options { checkpoint, ..log::Options::default() };
    LogOptions { algorithm: Algorithm::None, policy, log, ..LogOptions::default() }
}

/// Fills a log of `bytes`, with `checkpoint` bytes between checkpoints, as far as [`Pace`] allows.
fn fill(bytes: u64, load: Load, checkpoint: u64) -> Result<Left> {
    let name = Name { size: bytes, ..Model::Ssd840Pro.into() };
    let drive = Arc::new(Compact::new(bytes, name));
    // Twice as many blocks as the log can hold, so that most records are live.
    let backing: Arc<dyn Drive> = Arc::new(Nothing(2 * bytes));
    log::format(&*drive, [1; 16], [0; IDENTITY], 2 * bytes / BLOCK, SEGMENT as u32)
        .context("a log in memory")?;
    let log = Arc::clone(&drive) as Arc<dyn Drive>;
    let volume = LogVolume::open(log, Arc::clone(&backing), options(checkpoint), epoch())
        .context("a log in memory")?;
    volume.start(None)?;
    let lanes = if load == Load::Speed { WRITERS } else { 1 };
    let pace = Mutex::new(Pace::default());
    std::thread::scope(|scope| -> Result<()> {
        let lane = |n| {
            let (volume, pace) = (&volume, &pace);
            move || fill_lane(volume, load, n, pace)
        };
        let lanes: Vec<_> = (0..lanes).map(|n| scope.spawn(lane(n))).collect();
        for lane in lanes {
            lane.join().map_err(|_| Error::failure("a writer panicked"))??;
        }
        Ok(())
    })?;
    let mut channel = Arc::clone(&volume).channel();
    channel.submit(Request::Flush, Instant::now()).context("flush")?;
    let stats = volume.stats().log.unwrap_or_default();
    // The volume ends here without closing its log.
    let (blocks, chunks, named) = (stats.blocks_appended, stats.chunks, stats.blocks_dirty);
    let mut pace = pace.into_inner();
    pace.is_over(&stats);
    let (used, cut) = (stats.segments_used, pace.percent());
    let amplification = stats.written_bytes as f64 / stats.asked_bytes.max(1) as f64;
    let amplification = (stats.checkpoints > 0).then_some(amplification);
    Ok(Left { drive, backing, blocks, chunks, named, amplification, used, cut })
}

fn fill_lane(volume: &Arc<LogVolume>, load: Load, n: u64, pace: &Mutex<Pace>) -> Result<()> {
    let mut channel = Arc::clone(volume).channel();
    let mut rng = Rng::new(SEED + n);
    let mut data = [0; BLOCK_SIZE];
    let blocks = volume.size() / BLOCK;
    // The time to count is proportional to the size of the index.
    let count = (blocks / 8192).clamp(16, 1024);
    for i in 0u64.. {
        if i % count == 0 {
            interrupt::check()?;
            // Counted under the lock, so that counts arrive in order.
            let mut pace = pace.lock();
            if pace.is_over(&volume.stats().log.unwrap_or_default()) {
                return Ok(());
            }
        }
        let block = rng.below(blocks);
        // Not one repeated word, so that it is stored, though nearly all zeros.
        data[..8].copy_from_slice(&(block + 1).to_le_bytes());
        let write =
            Request::Write { offset: block * BLOCK, data: &data, fua: load == Load::Synced };
        channel.submit(write, Instant::now()).context("write")?;
    }
    Ok(())
}

impl Left {
    /// Opens the log `times` times, fewer if that takes long, and never closes it.
    fn open(&self, times: u32) -> Result<Opened> {
        let (seconds, spent) = (Vec::new(), Vec::new());
        let mut opened = Opened { seconds, spent, reads: Reads::default(), named: 0 };
        for _ in 0..times {
            interrupt::check()?;
            if opened.seconds.iter().sum::<f64>() > LONG {
                break;
            }
            self.drive.count();
            let log = Arc::clone(&self.drive) as Arc<dyn Drive>;
            let (start, spent) = (Instant::now(), cpu::process());
            let volume = LogVolume::open(log, Arc::clone(&self.backing), options(0), epoch())
                .context("opening the log again")?;
            opened.seconds.push(start.elapsed().as_secs_f64());
            opened.spent.push((cpu::process() - spent).as_secs_f64());
            opened.reads = self.drive.count();
            opened.named = volume.stats().log.unwrap_or_default().blocks_dirty;
            if opened.named != self.named {
                let (found, wanted) = (opened.named, self.named);
                return Err(Error::failure(format!("opening found {found} of {wanted} blocks")));
            }
        }
        Ok(opened)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_filled_a_log_is_found_again() {
        for load in [Load::Speed, Load::Synced] {
            let left = fill(128 << 20, load, 4 << 30).unwrap();
            assert_eq!(left.cut, None);
            let opened = left.open(2).unwrap();
            assert!(opened.named > left.blocks / 2);
            assert_eq!(opened.seconds.len(), 2);
            // Nearly all of the written bytes are zeros.
            assert!(opened.reads.requests > 0 && left.drive.kept_bytes() < 64 << 20);
            let synced = left.chunks >= left.blocks;
            assert_eq!(synced, load == Load::Synced);
        }
    }

    #[test]
    fn a_log_is_cut_before_the_last_checkpoint_that_would_fit() {
        let left = fill(512 << 20, Load::Synced, 64 << 20).unwrap();
        let cut = left.cut.unwrap();
        // More, if the drive was too busy for a checkpoint that was due.
        assert!(cut >= CUT, "{cut} %");
        assert!(left.used > 250, "{} segments", left.used);
        let opened = left.open(1).unwrap();
        assert!(opened.named > left.blocks / 2);
    }

    #[test]
    fn the_last_checkpoint_that_fits_is_waited_for() {
        let mut pace = Pace::default();
        let mut over = |used, since_mib| {
            let since_checkpoint_bytes = since_mib * SEGMENT;
            let stats = LogStats {
                segments: 1000,
                segments_used: used,
                since_checkpoint_bytes,
                ..LogStats::default()
            };
            (pace.is_over(&stats), pace.percent())
        };
        assert_eq!(over(99, 99), (false, None));
        assert_eq!(over(101, 1), (false, Some(1)));
        // Others fit before 904, where the content of memory may fill the rest.
        assert_eq!(over(198, 98), (false, Some(98)));
        assert_eq!(over(700, 120), (false, Some(121)));
        assert_eq!(over(801, 1), (false, Some(1)));
        assert_eq!(over(895, 95), (false, Some(95)));
        assert_eq!(over(897, 97), (true, Some(97)));
        assert_eq!(over(904, 4), (true, Some(4)));
    }
}

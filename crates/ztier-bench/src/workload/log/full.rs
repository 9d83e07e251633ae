//! Random writes beyond the log's size: a full log takes writes as fast as writeback makes room.
//!
//! The result is compared with the backing store alone, which writes as many random blocks of the
//! same span as a window has, sorted. Invariant: the log's figure is taken from the end of one
//! window to the end of a later one, never within a window, because room comes a window at a time.

use super::own::{Latencies, OwnLog, small_pools};
use super::watched::Watched;
use super::{BLOCK, Plan};
use crate::data::{Pool, Rng};
use crate::report::{Report, Row, Table, Target as Goal, median, print, say};
use crate::rival::raw::RawDevice;
use crate::sys::interrupt;
use crate::workload::SEED;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use ztier::BLOCK_SIZE;
use ztier::device::{Algorithm, Device, LogOptions, Policy, Request};
use ztier::error::{Context as _, Error, Result};
use ztier::media::{Buffer, Drive};

const SECTION: &str = "full";
/// Number of writers without pauses.
const WRITERS: usize = 2;
/// Windows before the steady state: one that begins before the log is full, and one that frees the
/// room that the writers then fill.
const SKIPPED: u64 = 2;
/// Requests in flight on the drive alone; the best result counts.
const DEPTHS: [usize; 3] = [1, 4, 32];
/// Limit in blocks on a write of neighbours.
const RUN: usize = 256;
/// Limit on the time of a window.
const PATIENCE: Duration = Duration::from_secs(600);

/// Parameters of a fill.
#[derive(Clone, Copy)]
struct Fill {
    log_bytes: u64,
    span: u64,
    /// Bytes of a window in the policy; a full log uses four times this.
    window: u64,
    /// Minimal number of windows that count.
    windows: u64,
    paced: Duration,
}

/// The results of a full log.
#[derive(Default)]
struct Sustained {
    blocks_per_second: f64,
    /// Blocks for which a window made room.
    per_window: f64,
    seconds_per_window: f64,
    busy_percent: f64,
    depth: f64,
    mean_write: f64,
    write: Latencies,
    paced: Paced,
}

/// Latencies of requests at a steady pace.
#[derive(Default)]
struct Paced {
    write: Latencies,
    read: Latencies,
}

impl Plan<'_> {
    /// Measures the full log, and the traffic of a window on the backing store.
    pub(super) fn full(&self, report: &mut Report, quick: bool) -> Result<()> {
        // The same density of blocks in a window.
        let gib = 1 << 30;
        let span = self.span.min(if quick { gib / 16 } else { gib });
        let (window, windows) = if quick { (4 << 20, 2) } else { (64 << 20, 2) };
        // At the end of a window the disk is flushed and readers wait: that must fall into the
        // measured time.
        let paced = Duration::from_secs(if quick { 2 } else { 30 });
        let fill = Fill { log_bytes: 16 * window, span, window, windows, paced };
        let text = format!(
            "{} MiB of log before {} MiB, windows of up to {} MiB, {WRITERS} writers",
            fill.log_bytes >> 20,
            span >> 20,
            (4 * window) >> 20
        );
        report.note(SECTION, "load", text);
        let mut pools = small_pools(self.data, WRITERS)?;
        report.note(SECTION, "data", &pools[0]);
        let (mut ours, mut sorted) = (Vec::new(), DEPTHS.map(|_| Vec::new()));
        let mut idle = Vec::new();
        for round in 0..self.rounds {
            let found = self.fill(fill, &mut pools, round)?;
            say(&format!("round {} of {}: the log is done", round + 1, self.rounds));
            for (depth, runs) in DEPTHS.into_iter().zip(&mut sorted) {
                let drive = self.drives.backing.open(span)?.drive;
                let (start, mut rates) = (Instant::now(), Vec::new());
                while rates.is_empty() || start.elapsed() < self.time / 2 {
                    let seed = u64::from(round) << 32 | rates.len() as u64;
                    rates.push(sort_and_write(&*drive, found.per_window as u64, depth, seed)?);
                }
                runs.push(median(&rates));
            }
            let alone: Arc<dyn Device> = Arc::new(RawDevice(self.drives.backing.open(span)?.drive));
            idle.push(pace(&alone, &mut pools, paced, || true)?);
            ours.push(found);
        }
        let rates: Vec<f64> = ours.iter().map(|found| found.blocks_per_second).collect();
        let rate = row(report, "ztier, in process", "random writes, log full", rates);
        let alone: Vec<f64> = DEPTHS
            .into_iter()
            .zip(sorted)
            .map(|(depth, runs)| {
                row(report, "backing alone", &format!("the same, sorted, depth {depth}"), runs)
            })
            .collect();
        let best = alone.into_iter().fold(f64::NAN, f64::max);
        report.ratio("full_log_vs_sorted_backing", rate / best, Goal::AtLeast(0.9));
        window_rows(report, &ours);
        latencies(report, &mut ours, &mut idle);
        Ok(())
    }

    /// Fills a new log, and continues until enough windows have ended.
    fn fill(&self, fill: Fill, pools: &mut [Pool], round: u32) -> Result<Sustained> {
        let backing = self.drives.backing.open(fill.span)?.drive;
        let backing = Arc::new(Watched::new(backing));
        let policy = Policy { window: fill.window, ..Policy::default() };
        let options = LogOptions { algorithm: Algorithm::Lz4, policy, ..LogOptions::default() };
        let opened = self.drives.log.open(fill.log_bytes)?;
        let log = OwnLog::with(&opened, Arc::clone(&backing) as _, self.segment, options)?;
        let device = log.device();
        let blocks = fill.span / BLOCK;
        let (done, counts, stop) =
            (AtomicU64::new(0), AtomicBool::new(false), AtomicBool::new(false));
        let mut found = Sustained::default();
        std::thread::scope(|scope| -> Result<()> {
            let mut lanes = Vec::new();
            for (lane, pool) in (0..).zip(pools.iter_mut()) {
                let (device, done, counts, stop) = (&device, &done, &counts, &stop);
                lanes.push(scope.spawn(move || -> Result<Latencies> {
                    let mut channel = Arc::clone(device).channel();
                    let mut rng = Rng::new(SEED + lane + (u64::from(round) << 32));
                    let mut latencies = Latencies::default();
                    while !stop.load(Ordering::Relaxed) {
                        let offset = rng.below(blocks) * BLOCK;
                        let data = pool.record(offset, round, BLOCK_SIZE);
                        let begun = Instant::now();
                        let write = Request::Write { offset, data, fua: false };
                        channel.submit(write, begun).context("write")?;
                        done.fetch_add(1, Ordering::Relaxed);
                        if counts.load(Ordering::Relaxed) {
                            latencies.push(begun.elapsed());
                        }
                    }
                    Ok(latencies)
                }));
            }
            let watched = (|| {
                until(&log, SKIPPED)?;
                let (start, before) = (Instant::now(), done.load(Ordering::Relaxed));
                counts.store(true, Ordering::Relaxed);
                backing.take();
                let mut windows = fill.windows;
                until(&log, SKIPPED + windows)?;
                while start.elapsed() < self.time {
                    windows = log.stats().windows - SKIPPED + 1;
                    until(&log, SKIPPED + windows)?;
                }
                let (seconds, seen) = (start.elapsed().as_secs_f64(), backing.take());
                Ok((seconds, done.load(Ordering::Relaxed) - before, windows as f64, seen))
            })();
            stop.store(true, Ordering::Relaxed);
            for lane in lanes {
                let lane = lane.join().map_err(|_| Error::failure("a writer panicked"))?;
                found.write.append(&mut lane?);
            }
            let (seconds, blocks, windows, seen) = watched?;
            found.blocks_per_second = blocks as f64 / seconds;
            found.per_window = blocks as f64 / windows;
            found.seconds_per_window = seconds / windows;
            (found.busy_percent, found.depth) = (seen.busy_percent(), seen.depth());
            found.mean_write = seen.mean_write();
            Ok(())
        })?;
        // With room, and writeback still running.
        until(&log, log.stats().windows + 1)?;
        let at_work = || {
            let stats = log.stats();
            stats.segments_used * 100 >= stats.segments * 45
        };
        found.paced = pace(&device, pools, fill.paced, at_work)?;
        Ok(found)
    }
}

fn row(report: &mut Report, system: &str, case: &str, blocks_per_second: Vec<f64>) -> f64 {
    let mb = blocks_per_second.iter().map(|rate| rate * BLOCK as f64 / 1e6).collect();
    report.row(Row {
        section: SECTION.into(),
        system: system.into(),
        case: case.into(),
        unit: "MB/s",
        runs: mb,
        ..Row::default()
    })
}

/// Waits until `windows` windows have ended.
fn until(log: &OwnLog, windows: u64) -> Result<()> {
    let begun = Instant::now();
    loop {
        let stats = log.stats();
        if stats.windows >= windows {
            return Ok(());
        }
        if stats.failed || begun.elapsed() > PATIENCE {
            return Err(Error::failure("writeback does not go on"));
        }
        interrupt::sleep(Duration::from_millis(5))?;
    }
}

/// Writes random blocks, as many as were drawn for a window, each once and in order, with a flush;
/// returns drawn blocks a second.
fn sort_and_write(drive: &dyn Drive, drawn: u64, depth: usize, seed: u64) -> Result<f64> {
    let mut rng = Rng::new(SEED + 7 + seed);
    let blocks = drive.size() / BLOCK;
    let drawn = drawn.max(1);
    let sorted: BTreeSet<u64> = (0..drawn).map(|_| rng.below(blocks)).collect();
    let mut runs: Vec<(u64, usize)> = Vec::new();
    for block in sorted {
        match runs.last_mut() {
            Some((first, count)) if *first + *count as u64 == block && *count < RUN => *count += 1,
            _ => runs.push((block, 1)),
        }
    }
    let next = AtomicUsize::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        let lane = || -> Result<()> {
            let mut data = Buffer::new(RUN * BLOCK_SIZE);
            Rng::new(SEED).fill(&mut data);
            while let Some(&(first, count)) = runs.get(next.fetch_add(1, Ordering::Relaxed)) {
                interrupt::check()?;
                let data = &data[..count * BLOCK_SIZE];
                drive.write(first * BLOCK, data).context("the backing store")?;
            }
            Ok(())
        };
        let lanes: Vec<_> = (0..depth).map(|_| scope.spawn(lane)).collect();
        for lane in lanes {
            lane.join().map_err(|_| Error::failure("a writer panicked"))??;
        }
        drive.flush().context("the backing store")
    })?;
    Ok(drawn as f64 / start.elapsed().as_secs_f64())
}

/// A write each 2 ms and a read each 10 ms, while `goes_on` is true.
fn pace(
    device: &Arc<dyn Device>,
    pools: &mut [Pool],
    time: Duration,
    goes_on: impl Fn() -> bool + Sync,
) -> Result<Paced> {
    let [first, ..] = pools else { return Ok(Paced::default()) };
    let blocks = device.size() / BLOCK;
    let begun = Instant::now();
    let more = || begun.elapsed() < time && goes_on() && !interrupt::requested();
    let mut paced = Paced::default();
    std::thread::scope(|scope| -> Result<()> {
        let reader = scope.spawn(|| -> Result<Latencies> {
            let mut channel = Arc::clone(device).channel();
            let (mut rng, mut times) = (Rng::new(SEED + 11), Latencies::default());
            let mut buf = Buffer::new(BLOCK_SIZE);
            while more() {
                let (offset, begun) = (rng.below(blocks) * BLOCK, Instant::now());
                channel.submit(Request::Read { offset, buf: &mut buf }, begun).context("read")?;
                times.push(begun.elapsed());
                std::thread::sleep(Duration::from_millis(10).saturating_sub(begun.elapsed()));
            }
            Ok(times)
        });
        let mut channel = Arc::clone(device).channel();
        let mut rng = Rng::new(SEED + 12);
        while more() {
            let offset = rng.below(blocks) * BLOCK;
            let data = first.record(offset, 1, BLOCK_SIZE);
            let begun = Instant::now();
            let write = Request::Write { offset, data, fua: false };
            channel.submit(write, begun).context("write")?;
            paced.write.push(begun.elapsed());
            std::thread::sleep(Duration::from_millis(2).saturating_sub(begun.elapsed()));
        }
        paced.read = reader.join().map_err(|_| Error::failure("a reader panicked"))??;
        Ok(())
    })?;
    interrupt::check()?;
    Ok(paced)
}

/// The work of a window, to explain why it is slower than the sorted writes.
fn window_rows(report: &mut Report, ours: &[Sustained]) {
    let mut state = |case: &str, unit: &'static str, of: fn(&Sustained) -> f64| {
        report.row(Row {
            section: SECTION.into(),
            system: "a window of a full log".into(),
            case: case.into(),
            unit,
            runs: ours.iter().map(of).collect(),
            ..Row::default()
        });
    };
    state("takes", "s", |found| found.seconds_per_window);
    state("makes room for", "blocks", |found| found.per_window);
    state("backing store at work", "%", |found| found.busy_percent);
    state("requests on it, while at work", "", |found| found.depth);
    state("a write to it", "KiB", |found| found.mean_write / 1024.0);
}

/// Latencies of all requests meanwhile.
fn latencies(report: &mut Report, ours: &mut [Sustained], idle: &mut [Paced]) {
    let table = Table::new(&[
        ("", 46),
        ("50 %, ms", 10),
        ("99 %, ms", 10),
        ("99.9 %, ms", 10),
        ("most", 10),
    ]);
    print(&table.head());
    let mut last = Vec::new();
    let write = |found: &mut Sustained| std::mem::take(&mut found.write);
    let (paced_write, paced_read) = (
        |found: &mut Sustained| std::mem::take(&mut found.paced.write),
        |found: &mut Sustained| std::mem::take(&mut found.paced.read),
    );
    let cases: [(&str, &str, Vec<Latencies>); 5] = [
        ("ztier, in process", "write, log full, 2 writers", ours.iter_mut().map(write).collect()),
        (
            "ztier, in process",
            "write each 2 ms, writeback at work",
            ours.iter_mut().map(paced_write).collect(),
        ),
        (
            "backing alone",
            "write each 2 ms",
            idle.iter_mut().map(|p| std::mem::take(&mut p.write)).collect(),
        ),
        (
            "ztier, in process",
            "read each 10 ms, writeback at work",
            ours.iter_mut().map(paced_read).collect(),
        ),
        (
            "backing alone",
            "read each 10 ms",
            idle.iter_mut().map(|p| std::mem::take(&mut p.read)).collect(),
        ),
    ];
    for (system, case, mut rounds) in cases {
        let mut cells = vec![format!("{:53}", format!("{system}: {case}"))];
        for (part, name) in [(0.5, "50 %"), (0.99, "99 %"), (0.999, "99.9 %"), (1.0, "most")] {
            let runs: Vec<f64> = rounds.iter_mut().map(|r| r.quantile_ms(part)).collect();
            cells.push(format!("{:.3}", median(&runs)));
            if part == 0.999 {
                last.push(median(&runs));
            }
            report.silent_row(Row {
                section: SECTION.into(),
                system: system.into(),
                case: format!("{case}, {name}"),
                unit: "ms",
                runs,
                ..Row::default()
            });
        }
        print(&table.line(&cells));
    }
    let [_, ours_write, raw_write, ours_read, raw_read] = last[..] else { return };
    report.ratio("write_p999_in_writeback_vs_raw", ours_write / raw_write, Goal::None);
    report.ratio("read_p999_in_writeback_vs_raw", ours_read / raw_read, Goal::None);
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::{Kind as Model, ModelDrive, Name};

    #[test]
    fn the_rival_writes_each_drawn_block_once_and_joins_neighbours() {
        const DRAWN: u64 = 300;
        let name = Name { kind: Model::SsdNull, size: 1 << 20 };
        let model = Arc::new(ModelDrive::virtual_time(name));
        let drive = Watched::new(Arc::clone(&model) as _);
        assert!(sort_and_write(&drive, DRAWN, 4, 0).unwrap() > 0.0);
        // 256 blocks, each drawn with a probability of 1 - (255/256)^300 = 0.69.
        let blocks = model.kept_bytes() / BLOCK;
        assert!((150..210).contains(&blocks), "{blocks}");
        let seen = drive.take();
        let writes = (blocks * BLOCK) as f64 / seen.mean_write();
        assert!(writes < 100.0, "{writes} writes");
    }
}

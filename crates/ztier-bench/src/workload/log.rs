//! The durable log on modelled drives: the source's rows A to F, synced writes, and opening.
//!
//! Invariants: what is written is counted until the flush after it has returned, so what the log
//! has in memory counts for nothing; each rival runs on a drive of its own, made new.

use super::random::{InProcess, Op, Order, pools, work};
use super::{Context, SEED};
use crate::data::{Kind, Pool};
use crate::model::job::{self, Action, Job};
use crate::model::{Kind as Model, ModelDrive, Name};
use crate::report::{Report, Row, Target as Goal, median};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use ztier::BLOCK_SIZE;
use ztier::durable::{self, format::crc};
use ztier::error::{Context as _, Error, Result};
use ztier::media::{Buffer, Drive};
use ztier::volume::{Algorithm, Device, LogOptions, LogVolume, Request};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The source's `size=16GB`.
const SPAN: u64 = 16 << 30;
/// The source's row C, 10^6 bytes a second, and the others, for comparison.
const SOURCE: [(&str, f64); 6] =
    [("A", 0.883), ("B", 202.0), ("C", 266.0), ("D", 259.0), ("E", 184.0), ("F", 1579.0)];

/// A log on a model before a model, with its threads.
struct OwnLog {
    volume: Arc<LogVolume>,
    log: Arc<ModelDrive>,
    backing: Arc<ModelDrive>,
}

fn sized(kind: Model, size: u64) -> Arc<ModelDrive> {
    Arc::new(ModelDrive::real_time(Name { kind, size }))
}

impl OwnLog {
    fn new(log: Model, backing: Model, log_bytes: u64, segment: u32) -> Result<Self> {
        Self::on(sized(log, log_bytes), sized(backing, SPAN), segment)
    }

    fn on(log: Arc<ModelDrive>, backing: Arc<ModelDrive>, segment: u32) -> Result<Self> {
        let blocks = backing.size() / BLOCK;
        durable::format(&*log, [0; 16], [0; 64], blocks, segment).context("making the log")?;
        let options = LogOptions { algorithm: Algorithm::Lz4, ..LogOptions::default() };
        let (on, before) = (Arc::clone(&log) as Arc<dyn Drive>, Arc::clone(&backing));
        let volume = LogVolume::open(on, before, options, SEED).context("opening the log")?;
        volume.start(None)?;
        Ok(Self { volume, log, backing })
    }

    fn flush(&self) -> Result<()> {
        let mut channel = Arc::clone(&self.volume).channel();
        channel.submit(Request::Flush, Instant::now()).context("flush")
    }

    /// Random blocks for a time by as many threads as there are pools, and a flush: 10^6 bytes a
    /// second.
    fn write(&self, pools: &mut [Pool], blocks: u64, time: Duration, round: u32) -> Result<f64> {
        let target = InProcess(Arc::clone(&self.volume));
        let start = Instant::now();
        let seed = SEED + u64::from(round);
        let rate = work(&target, Op::Write(round), Order::For(time), blocks, pools, seed)?;
        self.flush()?;
        Ok(rate.iops * time.as_secs_f64() * BLOCK as f64 / 1e6 / start.elapsed().as_secs_f64())
    }
}

impl Drop for OwnLog {
    fn drop(&mut self) {
        if let Err(e) = self.volume.close() {
            crate::report::warn(&e.to_string());
        }
    }
}

/// How long and how often.
struct Plan {
    rounds: u32,
    time: Duration,
    log_bytes: u64,
}

/// Runs the table.
///
/// # Errors
/// A drive fails; interrupted.
pub fn run(context: &mut Context) -> Result<()> {
    let plan = Plan {
        rounds: context.pick(1, 3),
        time: Duration::from_millis(context.pick(1500, 6000)),
        log_bytes: context.pick(2 << 30, 4 << 30),
    };
    let report = &mut context.report;
    report.note(
        "log",
        "drives",
        "models, in real time; see `ztier-bench models` for what they are",
    );
    let sequential = plan.source_rows(report)?;
    plan.log_rows(report, sequential)?;
    plan.fast_drive(report)?;
    plan.synced(report)?;
    plan.opening(report, context.quick)
}

fn row(report: &mut Report, system: &str, case: &str, unit: &'static str, runs: Vec<f64>) -> f64 {
    report.row(Row {
        section: "log".into(),
        system: system.into(),
        case: case.into(),
        unit,
        runs,
        ..Row::default()
    })
}

fn source(letter: &str) -> f64 {
    SOURCE.iter().find(|(l, _)| *l == letter).map_or(0.0, |(_, mb)| *mb)
}

impl Plan {
    /// Rows A to C: the drives alone. Returns what C reaches.
    fn source_rows(&self, report: &mut Report) -> Result<f64> {
        let random = Job {
            action: Action::Write,
            random: true,
            block: BLOCK,
            depth: 64,
            span: 1 << 30,
            warm_up: 0,
            count: 0,
        };
        let rows = [
            ("A", "HDD (rand)", Model::Hdd7200, Job { span: SPAN, ..random }),
            ("B", "SSD (rand)", Model::Ssd840Pro, random),
            ("C", "SSD (seq)", Model::Ssd840Pro, Job { random: false, block: 1 << 20, ..random }),
        ];
        let mut last = 0.0;
        for (letter, case, kind, job) in rows {
            let mut runs = Vec::new();
            for _ in 0..self.rounds {
                let drive = ModelDrive::real_time(Name { kind, size: SPAN });
                let warm_up = Duration::from_secs(1);
                let reached = job::measure(&drive, &job, (warm_up, self.time), SEED)?;
                runs.push(reached.bytes_per_second / 1e6);
            }
            let case = format!("({letter}) {case}, source {} MB/s", source(letter));
            last = row(report, "drive alone", &case, "MB/s", runs);
        }
        Ok(last)
    }

    /// Rows D and E, on data that does not shrink and on data that does.
    fn log_rows(&self, report: &mut Report, sequential: f64) -> Result<()> {
        let rows: [(&str, u32, f64, &str, Goal); 3] = [
            ("D", 1 << 20, 1.0, "randwrite_vs_ssd_seq", Goal::AtLeast(0.97)),
            ("E", 32 << 10, 1.0, "randwrite_32k_vs_ssd_seq", Goal::AtLeast(0.9)),
            ("D", 1 << 20, 2.0, "randwrite_compressible_vs_ssd_seq", Goal::AtLeast(1.5)),
        ];
        for (letter, segment, ratio, name, goal) in rows {
            let mut pools = pools(Kind::Ratio(ratio), 2)?;
            let mut runs = Vec::new();
            let mut amplification = Vec::new();
            for round in 0..self.rounds {
                let log = OwnLog::new(Model::Ssd840Pro, Model::Hdd7200, self.log_bytes, segment)?;
                runs.push(log.write(&mut pools, SPAN / BLOCK, self.time, round)?);
                let stats = log.volume.stats().log.unwrap_or_default();
                amplification.push(stats.written_bytes as f64 / stats.asked_bytes.max(1) as f64);
            }
            let case = format!(
                "({letter}) HDD+SSD (rand) seg={}K, {ratio}:1, source {} MB/s",
                segment >> 10,
                source(letter)
            );
            let reached = row(report, "ztier, in process", &case, "MB/s", runs);
            report.ratio(name, reached / sequential, goal);
            if name == "randwrite_vs_ssd_seq" {
                let goal = Goal::AtMost(1.05);
                report.ratio("write_amplification", median(&amplification), goal);
            }
        }
        Ok(())
    }

    /// Row F: a drive that costs nothing, against memory that is copied and summed.
    fn fast_drive(&self, report: &mut Report) -> Result<()> {
        let mut pools = pools(Kind::Ratio(1.0), 2)?;
        let (mut ours, mut memory) = (Vec::new(), Vec::new());
        for round in 0..self.rounds {
            let time = self.time.min(Duration::from_secs(2));
            let log = OwnLog::new(Model::SsdNull, Model::SsdNull, 4 * self.log_bytes, 1 << 20)?;
            ours.push(log.write(&mut pools, SPAN / BLOCK / 16, time, round)?);
            drop(log);
            memory.push(copy_and_sum(&mut pools, time)?);
        }
        let case = format!("(F) HDD+MaxSSD (rand), source {} MB/s", source("F"));
        let ours = row(report, "ztier, in process", &case, "MB/s", ours);
        let case = "4 KiB blocks copied and summed, 2 threads";
        let memory = row(report, "memory", case, "MB/s", memory);
        report.ratio("maxssd_vs_memcpy_crc", ours / memory, Goal::AtLeast(0.5));
        Ok(())
    }

    /// 4 KiB written and flushed, by 1, 4 and 16 writers.
    fn synced(&self, report: &mut Report) -> Result<()> {
        for writers in [1u64, 4, 16] {
            let (mut ours, mut raw, mut written) = (Vec::new(), Vec::new(), Vec::new());
            for round in 0..self.rounds {
                let time = self.time.min(Duration::from_secs(2));
                let drive = ModelDrive::real_time(Name { kind: Model::Ssd840Pro, size: SPAN });
                let job = Job {
                    action: Action::SyncWrite,
                    random: true,
                    block: BLOCK,
                    depth: writers,
                    span: 1 << 30,
                    warm_up: 0,
                    count: 0,
                };
                let reached = job::measure(&drive, &job, (Duration::ZERO, time), SEED)?;
                raw.push(reached.bytes_per_second / BLOCK as f64);
                let log = OwnLog::new(Model::Ssd840Pro, Model::Hdd7200, 1 << 30, 1 << 20)?;
                ours.push(sync_writers(&log, writers, time, round)?);
                let stats = log.volume.stats().log.unwrap_or_default();
                written.push(stats.written_bytes as f64 / stats.asked_bytes.max(1) as f64);
            }
            let case = format!("4 KiB written and flushed, {writers} writers");
            let raw = row(report, "drive alone", &case, "IOPS", raw);
            let ours = row(report, "ztier, in process", &case, "IOPS", ours);
            let goal = if writers == 16 { Goal::AtLeast(2.0) } else { Goal::None };
            report.ratio(&format!("sync_write_vs_raw_{writers}"), ours / raw, goal);
            if writers == 1 {
                let goal = Goal::AtMost(2.1);
                report.ratio("write_amplification_synced", median(&written), goal);
            }
        }
        Ok(())
    }

    /// How long a full log takes to open, without a model's times: what this machine does with
    /// what it reads.
    fn opening(&self, report: &mut Report, quick: bool) -> Result<()> {
        let bytes: u64 = if quick { 512 << 20 } else { 3 << 30 };
        let log = OwnLog::new(Model::SsdNull, Model::SsdNull, bytes * 5 / 2, 1 << 20)?;
        let mut pools = pools(Kind::Ratio(1.0), 2)?;
        let target = InProcess(Arc::clone(&log.volume));
        work(&target, Op::Write(1), Order::Each, bytes / BLOCK, &mut pools, SEED)?;
        log.flush()?;
        let (drive, used) = (Arc::clone(&log.log), log.volume.stats().log.unwrap_or_default());
        let filled = used.segments_used << 20;
        let mut runs = Vec::new();
        for _ in 0..self.rounds.max(3) {
            let start = Instant::now();
            let found = durable::open(&*drive, durable::Options::default(), SEED, false);
            let (core, _) = found.context("opening the log again")?;
            runs.push(start.elapsed().as_secs_f64());
            drop(core);
        }
        report.note("log", "opening", format!("{} MiB of 4 KiB records in memory", filled >> 20));
        let seconds = row(report, "ztier, in process", "a log that is opened", "s", runs);
        let per_100_gib = seconds * (100u64 << 30) as f64 / filled.max(1) as f64;
        report.ratio("recovery_s_per_100gib", per_100_gib, Goal::AtMost(1.0));
        debug_assert!(log.backing.size() > 0);
        Ok(())
    }
}

/// Blocks copied and summed by as many threads as there are pools: 10^6 bytes a second.
fn copy_and_sum(pools: &mut [Pool], time: Duration) -> Result<f64> {
    let done = AtomicU64::new(0);
    let start = Instant::now();
    std::thread::scope(|scope| {
        for pool in pools.iter_mut() {
            let done = &done;
            scope.spawn(move || {
                let mut to = Buffer::new(64 << 20);
                let (mut blocks, mut sum) = (0, 0);
                while start.elapsed() < time {
                    for (i, to) in (0..).zip(to.chunks_exact_mut(BLOCK_SIZE)) {
                        let block = pool.record(i * BLOCK, 1, BLOCK_SIZE);
                        sum ^= crc(block);
                        to.copy_from_slice(block);
                        blocks += 1;
                    }
                }
                std::hint::black_box(sum);
                done.fetch_add(blocks, Ordering::Relaxed);
            });
        }
    });
    Ok(done.into_inner() as f64 * BLOCK as f64 / 1e6 / start.elapsed().as_secs_f64())
}

/// Each of the writers writes a block and flushes, again and again: pairs a second.
fn sync_writers(log: &OwnLog, writers: u64, time: Duration, round: u32) -> Result<f64> {
    let (done, stop) = (AtomicU64::new(0), AtomicBool::new(false));
    let pool = Pool::build(Kind::Ratio(1.0), crate::data::POOL_BYTES, SEED)?;
    let start = Instant::now();
    std::thread::scope(|scope| -> Result<()> {
        let mut lanes = Vec::new();
        for writer in 0..writers {
            let mut pool = pool.duplicate()?;
            let (done, stop) = (&done, &stop);
            lanes.push(scope.spawn(move || -> Result<()> {
                let mut channel = Arc::clone(&log.volume).channel();
                let mut rng = crate::data::Rng::new(SEED + writer + u64::from(round) * 100);
                while !stop.load(Ordering::Relaxed) {
                    let offset = rng.below(SPAN / BLOCK) * BLOCK;
                    let data = pool.record(offset, round, BLOCK_SIZE);
                    let arrived = Instant::now();
                    channel
                        .submit(Request::Write { offset, data, fua: true }, arrived)
                        .context("write")?;
                    done.fetch_add(1, Ordering::Relaxed);
                }
                Ok(())
            }));
        }
        let slept = crate::sys::interrupt::sleep(time);
        stop.store(true, Ordering::Relaxed);
        for lane in lanes {
            lane.join().map_err(|_| Error::failure("a writer panicked"))??;
        }
        slept
    })?;
    Ok(done.into_inner() as f64 / start.elapsed().as_secs_f64())
}

//! Memory for the same data, in ztier and in the kernel's zram: fresh, aged, after discards, and
//! cold.

use super::engine::OwnVolume;
use super::random::{Direct, InProcess, Op, Order, Target, pools, work};
use super::{Context, SEED};
use crate::data::{Kind, Pool, Rng};
use crate::report::{Report, Row, Target as Goal, say};
use crate::rival::Disk;
use crate::rival::zram::{self, Zram};
use crate::sys::{direct, interrupt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ztier::BLOCK_SIZE;
use ztier::device::{Device, Request, Volume};
use ztier::error::{Context as _, Error, Result};
use ztier::stats::Stats;

const SECTION: &str = "memory";
const OURS: &str = "ztier (in process)";
/// Idle time of a store before a measurement.
const QUIET: Duration = Duration::from_secs(5);
/// Interval between samples of memory under load.
const SAMPLE: Duration = Duration::from_millis(5);
/// Percent of the blocks that are discarded.
const DISCARDED: usize = 40;
/// Data of the first fill and of each overwriting round.
const FILL: Kind = Kind::Mix(2.0);
const ROUNDS: [Kind; 3] = [Kind::Mix(3.0), Kind::Mix(1.5), Kind::Mix(2.0)];

/// The two systems with the same data.
struct Pair<'a> {
    volume: &'a OwnVolume,
    zram: Option<&'a Zram>,
    blocks: u64,
}

/// Runs the section.
pub fn run(context: &mut Context) -> Result<()> {
    let bytes = context.pick(192u64 << 20, 1 << 30);
    let volume = OwnVolume::new(bytes, 2 * bytes)?;
    let zram = Zram::new(bytes);
    if let Err(e) = &zram {
        context.report.missing(SECTION, zram::NAME, e);
    }
    let zram = zram.ok();
    let pair = Pair { volume: &volume, zram: zram.as_ref(), blocks: bytes / BLOCK_SIZE as u64 };
    let report = &mut context.report;

    let mut pools = pools(FILL, 2)?;
    report.note(SECTION, "data", format!("{} MiB of {}", bytes >> 20, pools[0]));
    pair.write(Op::Write(0), Order::Each, &mut pools)?;
    interrupt::sleep(Duration::from_secs(1))?;
    let fresh = pair.compare(report, "fresh", Goal::AtLeast(1.0))?;

    let peak = pair.age(report)?;
    interrupt::sleep(QUIET)?;
    let aged = pair.compare(report, "aged", Goal::AtLeast(1.05))?;
    report.ratio("mem_over_payload_under_load", measured(peak), Goal::AtMost(1.25));
    report.ratio("mem_over_payload_quiet", over_payload(&aged), Goal::AtMost(1.10));
    let metadata = fresh.metadata_bytes_per_block.max(aged.metadata_bytes_per_block);
    report.ratio("metadata_bytes_per_block", measured(metadata), Goal::AtMost(12.0));

    pair.discard()?;
    interrupt::sleep(QUIET)?;
    let trimmed = pair.compare(report, "after_trim", Goal::AtLeast(1.4))?;
    if let Some(zram) = pair.zram {
        // Users of zram have to request that, those of ztier need not.
        zram.compact()?;
        pair.compare(report, "after_trim_compacted", Goal::None)?;
    }
    let over = over_payload(&trimmed);
    report.ratio("mem_over_payload_quiet_after_trim", over, Goal::AtMost(1.10));
    recompress(report, &volume, "after_trim")?;
    pair.compare(report, "after_trim_cold", Goal::None)?;
    drop((volume, zram));
    cold(context)
}

/// Real files, which are typical cold data: recompressed by ztier, and by the kernel where it can.
fn cold(context: &mut Context) -> Result<()> {
    let bytes = context.pick(192u64 << 20, 1 << 30);
    let report = &mut context.report;
    let mut pools = match pools(Kind::Files, 2) {
        Ok(pools) => pools,
        Err(e) => {
            report.missing(SECTION, "cold data", e);
            return Ok(());
        }
    };
    let volume = OwnVolume::new(bytes, 2 * bytes)?;
    let (zram, can) = match Zram::recompressing(bytes) {
        Ok(zram) => (Some(zram), true),
        Err(e) => {
            report.missing(SECTION, zram::RECOMPRESSED_NAME, e);
            (Zram::new(bytes).ok(), false)
        }
    };
    let pair = Pair { volume: &volume, zram: zram.as_ref(), blocks: bytes / BLOCK_SIZE as u64 };
    report.note(SECTION, "data", format!("cold: {} MiB of {}", bytes >> 20, pools[0]));
    pair.write(Op::Write(0), Order::Each, &mut pools)?;
    pair.compare(report, "before_cold", Goal::None)?;
    recompress(report, &volume, "cold")?;
    interrupt::sleep(Duration::from_secs(1))?;
    pair.compare(report, "cold", Goal::AtLeast(1.25))?;
    read(report, &volume, &mut pools)?;
    let Some(zram) = zram.as_ref().filter(|_| can) else { return Ok(()) };
    let start = Instant::now();
    zram.recompress()?;
    seconds(report, zram::RECOMPRESSED_NAME, "cold: time", start.elapsed());
    let theirs = zram.mm_stat()?;
    mib(report, zram::RECOMPRESSED_NAME, "cold: payload", theirs.compr_data_size);
    mib(report, zram::RECOMPRESSED_NAME, "cold: mem_used_total", theirs.mem_used_total);
    let ours = volume.0.stats().mem_used_bytes as f64;
    let ratio = theirs.mem_used_total as f64 / ours;
    report.ratio("data_per_mem_cold_vs_recompressed", ratio, Goal::AtLeast(1.05));
    Ok(())
}

/// Recompresses all cold data, and waits for the end.
fn recompress(report: &mut Report, volume: &OwnVolume, state: &str) -> Result<()> {
    let before = volume.0.stats();
    say("memory: recompressing");
    volume.0.recompress()?;
    while volume.0.stats().recompressing {
        interrupt::sleep(SAMPLE)?;
    }
    let after = volume.0.stats();
    let spent = Duration::from_millis(after.recompress_ms - before.recompress_ms);
    seconds(report, OURS, &format!("{state}: time to recompress"), spent);
    let blocks = after.blocks_recompressed - before.blocks_recompressed;
    mib(report, OURS, &format!("{state}: recompressed"), blocks * BLOCK_SIZE as u64);
    Ok(())
}

/// The time to read a block, inside and outside of a cluster: each of a few random blocks is read
/// twice in place, and is then in the same place as before.
fn read(report: &mut Report, volume: &OwnVolume, pools: &mut [Pool]) -> Result<()> {
    const READS: u64 = 4000;
    let blocks = volume.0.stats().disk_size_bytes / BLOCK_SIZE as u64;
    let mut channel = Arc::clone(&volume.0).channel();
    let mut buf = vec![0; BLOCK_SIZE];
    for case in ["once, in clusters", "again, and out of it", "after that"] {
        let mut rng = Rng::new(SEED ^ 7);
        let mut spent = Vec::new();
        for _ in 0..READS {
            let offset = rng.below(blocks) * BLOCK_SIZE as u64;
            let now = Instant::now();
            channel.submit(Request::Read { offset, buf: &mut buf }, now).context("a read")?;
            spent.push(now.elapsed().as_secs_f64() * 1e6);
            if !pools[0].matches(offset, 0, &buf) {
                return Err(Error::failure(format!("what was read at {offset} is wrong")));
            }
        }
        spent.sort_by(f64::total_cmp);
        report.row(Row {
            section: SECTION.into(),
            system: OURS.into(),
            case: format!("cold: a read {case}, median"),
            unit: "µs",
            runs: vec![spent[spent.len() / 2]],
            ..Row::default()
        });
    }
    Ok(())
}

impl Pair<'_> {
    fn targets(&self) -> Vec<Box<dyn Target>> {
        let mut targets: Vec<Box<dyn Target>> =
            vec![Box::new(InProcess(Arc::clone(&self.volume.0)))];
        if let Some(zram) = self.zram {
            targets.push(Box::new(Direct(zram.path().to_owned(), zram::NAME)));
        }
        targets
    }

    fn write(&self, op: Op, order: Order, pools: &mut [Pool]) -> Result<()> {
        for target in self.targets() {
            work(target.as_ref(), op, order, self.blocks, pools, SEED)?;
        }
        Ok(())
    }

    /// Overwrites in rounds; returns ztier's maximum of memory over payload meanwhile.
    fn age(&self, report: &mut Report) -> Result<f64> {
        let mut peak: f64 = 0.0;
        for (kind, generation) in ROUNDS.into_iter().zip(1..) {
            let mut pools = pools(kind, 2)?;
            report.note(SECTION, "data", format!("then overwritten at random with {}", pools[0]));
            let op = Op::Write(generation);
            for (i, target) in self.targets().iter().enumerate() {
                let mut round = || {
                    let seed = SEED ^ u64::from(generation);
                    work(target.as_ref(), op, Order::Draws, self.blocks, &mut pools, seed)
                };
                if i == 0 {
                    peak = peak.max(sampled(&self.volume.0, round)?);
                } else {
                    round()?;
                }
            }
        }
        Ok(peak)
    }

    /// Discards the same random blocks in both.
    fn discard(&self) -> Result<()> {
        let mut blocks: Vec<u64> = (0..self.blocks).collect();
        Rng::new(SEED).shuffle(&mut blocks);
        blocks.truncate(blocks.len() * DISCARDED / 100);
        say(&format!("memory: discarding {} random blocks", blocks.len()));
        let device = self.zram.map(|zram| direct::open(zram.path())).transpose()?;
        let mut channel = Arc::clone(&self.volume.0).channel();
        let len = BLOCK_SIZE as u64;
        for block in blocks {
            let offset = block * len;
            channel
                .submit(Request::Discard { offset, len }, Instant::now())
                .context(format!("discard of block {block}"))?;
            if let Some(device) = &device {
                direct::discard(device, offset, len)?;
            }
        }
        Ok(())
    }

    /// Reports both and their ratio.
    fn compare(&self, report: &mut Report, state: &str, goal: Goal) -> Result<Stats> {
        let ours = self.volume.0.stats();
        let all = ours.mem_used_bytes as f64;
        mib(report, OURS, &format!("{state}: payload"), ours.compr_data_bytes);
        mib(report, OURS, &format!("{state}: memory, all in"), ours.mem_used_bytes);
        let Some(zram) = self.zram else { return Ok(ours) };
        let theirs = zram.mm_stat()?;
        let with_table = theirs.mem_used_total + zram.table_bytes();
        mib(report, zram::NAME, &format!("{state}: payload"), theirs.compr_data_size);
        mib(report, zram::NAME, &format!("{state}: mem_used_total"), theirs.mem_used_total);
        mib(report, zram::NAME, &format!("{state}: with its table"), with_table);
        report.ratio(&format!("data_per_mem_{state}"), theirs.mem_used_total as f64 / all, goal);
        report.ratio(&format!("data_per_mem_{state}_all_in"), with_table as f64 / all, Goal::None);
        Ok(ours)
    }
}

/// Runs `load` while another thread samples memory; returns the maximum of memory ÷ payload.
fn sampled<T>(volume: &Volume, load: impl FnOnce() -> Result<T>) -> Result<f64> {
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let sampler = scope.spawn(|| {
            let mut peak: f64 = 0.0;
            while !done.load(Ordering::Relaxed) {
                peak = peak.max(over_payload(&volume.stats()));
                std::thread::sleep(SAMPLE);
            }
            peak
        });
        let result = load();
        done.store(true, Ordering::Relaxed);
        let peak = sampler.join().unwrap_or(f64::NAN);
        result.map(|_| peak)
    })
}

fn over_payload(stats: &Stats) -> f64 {
    measured(stats.mem_used_bytes as f64) / stats.compr_data_bytes as f64
}

/// A volume that holds data and reports no memory measured nothing.
fn measured(value: f64) -> f64 {
    if value > 0.0 { value } else { f64::NAN }
}

fn seconds(report: &mut Report, system: &str, case: &str, time: Duration) {
    report.row(Row {
        section: SECTION.into(),
        system: system.into(),
        case: case.into(),
        unit: "s",
        runs: vec![time.as_secs_f64()],
        ..Row::default()
    });
}

fn mib(report: &mut Report, system: &str, case: &str, bytes: u64) {
    report.row(Row {
        section: SECTION.into(),
        system: system.into(),
        case: case.into(),
        unit: "MiB",
        runs: vec![bytes as f64 / f64::from(1 << 20)],
        ..Row::default()
    });
}

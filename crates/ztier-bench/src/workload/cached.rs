//! The cost of the read cache: a hit, and a miss beside the same read of the drive alone.
//!
//! In process, one thread, 4 KiB at random offsets, each offset read once unless hits are measured.

use super::SEED;
use crate::data::{Kind, Pool, Rng};
use crate::model::{self, ModelDrive};
use crate::report::{Report, Row, Target};
use crate::sys::cpu::Stopwatch;
use std::sync::Arc;
use ztier::BLOCK_SIZE;
use ztier::cache::Cached;
use ztier::error::{Context as _, Result};
use ztier::media::{Buffer, Drive, DriveError};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Memory of the cache, and the hot part of the data.
const LIMIT: u64 = 128 << 20;
const HOT: u64 = 32 << 20;
/// Bytes of distinct content.
const DISTINCT: usize = 64 << 20;
/// Targets of a miss.
const CPU_GOAL: Target = Target::AtMost(15.0);
const ELAPSED_GOAL: Target = Target::AtMost(1.03);

/// A drive with the timing of a model, or of none, whose content repeats.
struct Repeated {
    content: Vec<u8>,
    model: Option<ModelDrive>,
    size: u64,
}

impl Repeated {
    fn new(kind: Kind, slow: bool) -> Result<Self> {
        let mut pool = Pool::build(kind, DISTINCT, SEED)?;
        let mut content = Vec::with_capacity(DISTINCT);
        for at in (0..DISTINCT as u64).step_by(BLOCK_SIZE) {
            content.extend_from_slice(pool.record(at, 0, BLOCK_SIZE));
        }
        let model = slow.then(|| ModelDrive::real_time(model::Kind::Hdd7200.into()));
        let size = model.as_ref().map_or(64 << 30, Drive::size);
        Ok(Self { content, model, size })
    }
}

impl Drive for Repeated {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> std::result::Result<(), DriveError> {
        if let Some(model) = &self.model {
            model.read(at, buf)?;
        }
        for (i, out) in buf.chunks_mut(BLOCK_SIZE).enumerate() {
            let from = (at as usize + i * BLOCK_SIZE) % DISTINCT;
            out.copy_from_slice(&self.content[from..from + out.len()]);
        }
        Ok(())
    }

    fn write(&self, _: u64, _: &[u8]) -> std::result::Result<(), DriveError> {
        Ok(())
    }

    fn zero(&self, _: u64, _: u64) -> std::result::Result<(), DriveError> {
        Ok(())
    }

    fn flush(&self) -> std::result::Result<(), DriveError> {
        Ok(())
    }
}

/// Microseconds of CPU and of wall time for a read.
struct Took {
    cpu: f64,
    elapsed: f64,
}

/// Reads `count` blocks of the first `span` bytes.
fn read(drive: &dyn Drive, span: u64, count: u64, rng: &mut Rng) -> Result<Took> {
    let mut buffer = Buffer::new(BLOCK_SIZE);
    let watch = Stopwatch::start();
    for _ in 0..count {
        let at = rng.below(span / BLOCK) * BLOCK;
        drive.read(at, &mut buffer).context("a drive fails")?;
    }
    let spent = watch.stop();
    let elapsed = spent.wall.as_secs_f64() * 1e6 / count as f64;
    Ok(Took { cpu: elapsed * spent.own_percent / 100.0, elapsed })
}

fn cached(drive: &Arc<Repeated>) -> Result<Arc<Cached>> {
    Cached::over(Arc::clone(drive) as Arc<dyn Drive>, LIMIT, LIMIT)
}

/// All rows, for data of one kind.
///
/// # Errors
/// No memory; interrupted.
pub fn run(report: &mut Report, data: Kind, quick: bool) -> Result<()> {
    let (rounds, reads, slow_reads) = if quick { (3, 40_000, 150) } else { (5, 200_000, 600) };
    let (fast, slow) =
        (Arc::new(Repeated::new(data, false)?), Arc::new(Repeated::new(data, true)?));
    let mut hits = Vec::new();
    let (mut alone, mut missed, mut extra) = (Vec::new(), Vec::new(), Vec::new());
    let (mut slow_alone, mut slow_missed) = (Vec::new(), Vec::new());
    for round in 0..rounds {
        let cache = cached(&fast)?;
        let rng = || Rng::new(SEED + round);
        // Filled before the measurement: from then on a miss has to evict, too.
        read(&*cache, fast.size, 2 * LIMIT / BLOCK, &mut Rng::new(SEED * 3 + round))?;
        let bare = read(&*fast, fast.size, reads, &mut rng())?;
        let miss = read(&*cache, fast.size, reads, &mut rng())?;
        extra.push(miss.cpu - bare.cpu);
        alone.push(bare.cpu);
        missed.push(miss.cpu);
        (0..3).try_for_each(|_| read(&*cache, HOT, 4 * HOT / BLOCK, &mut rng()).map(drop))?;
        hits.push(read(&*cache, HOT, reads, &mut rng())?.elapsed);
        let cache = cached(&slow)?;
        slow_alone.push(read(&*slow, slow.size, slow_reads, &mut rng())?.elapsed);
        slow_missed.push(read(&*cache, slow.size, slow_reads, &mut rng())?.elapsed);
    }
    let mut row = |system: &str, case: &str, runs| {
        report.row(Row {
            section: format!("4 KiB random read, data {data}"),
            system: system.into(),
            case: case.into(),
            unit: "µs",
            runs,
            ..Row::default()
        })
    };
    row("a drive without cost", "CPU", alone);
    row("the same with a full cache", "CPU, miss", missed);
    row("the same with a full cache", "elapsed, hit", hits);
    let extra = row("cache", "CPU, miss, more than the drive alone", extra);
    let bare = row("sim:hdd-7200", "elapsed", slow_alone);
    let with = row("sim:hdd-7200 with a cache", "elapsed, miss", slow_missed);
    report.ratio("miss_cpu_us", extra, CPU_GOAL);
    report.ratio("miss_elapsed_vs_bare", with / bare, ELAPSED_GOAL);
    Ok(())
}

//! The engine in process compared with the kernel's zram on the same data: 4 KiB random reads and
//! writes.

use super::Context;
use super::random::{Gathered, InProcess, Op, Order, Target, pools, rival_targets, work};
use crate::data::{Kind, Pool};
use crate::report::Target as Goal;
use crate::rival::Disk;
use crate::rival::zram::{self, Zram};
use std::sync::Arc;
use std::time::Duration;
use ztier::BLOCK_SIZE;
use ztier::device::{Algorithm, Options, Volume};
use ztier::error::Result;

const SECTION: &str = "engine";
/// Overwriting rounds that age a store.
const ROUNDS: u32 = 3;
/// The limit of the aged volume, as a multiple of its payload.
const LIMIT_OVER_PAYLOAD: f64 = 1.15;
/// Target relative to the best rival.
const READ_GOAL: Goal = Goal::AtLeast(2.0);
const WRITE_GOAL: Goal = Goal::AtLeast(1.2);
const AGED_GOAL: Goal = Goal::AtLeast(1.0);
const SCALING_GOAL: Goal = Goal::AtLeast(1.8);

/// A volume in this process; dropping it ends its threads.
pub struct OwnVolume(pub Arc<Volume>);

impl OwnVolume {
    /// A volume of `size` bytes under a limit, with the defaults of `ztier up`.
    pub fn new(size: u64, ram_limit: u64) -> Result<Self> {
        let options = Options {
            size,
            ram_limit,
            ram_limit_max: ram_limit,
            segment: 1 << 20,
            algorithm: Algorithm::Lz4,
            lock_memory: false,
        };
        Ok(Self(Volume::create(&options)?))
    }
}

impl Drop for OwnVolume {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Parameters shared by the measurements of this section.
struct Plan {
    blocks: u64,
    rounds: u64,
    time: Duration,
}

/// Runs the section.
pub fn run(context: &mut Context) -> Result<()> {
    let bytes = context.pick(192u64 << 20, 1 << 30);
    let plan = Plan {
        blocks: bytes / BLOCK_SIZE as u64,
        rounds: context.pick(3, 5),
        time: Duration::from_millis(context.pick(200, 1000)),
    };
    let zram = match Zram::new(bytes) {
        Ok(zram) => Some(zram),
        Err(e) => {
            context.report.missing(SECTION, zram::NAME, e);
            None
        }
    };
    fresh(context, &plan, bytes, zram.as_ref())?;
    aged(context, &plan, bytes, zram.as_ref())
}

fn targets<'a>(volume: &OwnVolume, zram: Option<&'a Zram>) -> Vec<Box<dyn Target + 'a>> {
    let mut targets: Vec<Box<dyn Target>> = vec![Box::new(InProcess(Arc::clone(&volume.0)))];
    if let Some(zram) = zram {
        targets.extend(rival_targets(zram.path(), zram::NAME));
    }
    targets
}

fn fresh(context: &mut Context, plan: &Plan, bytes: u64, zram: Option<&Zram>) -> Result<()> {
    let mut pools = pools(context.data[0], 2)?;
    context.report.note(SECTION, "data", format!("{} MiB of {}", bytes >> 20, pools[0]));
    let volume = OwnVolume::new(bytes, 2 * bytes)?;
    let targets = targets(&volume, zram);
    // The last two targets access the same device.
    for target in targets.iter().take(2) {
        work(target.as_ref(), Op::Write(0), Order::Each, plan.blocks, &mut pools, 1)?;
    }
    for (name, op, goal) in [("read", Op::Read, READ_GOAL), ("write", Op::Write(1), WRITE_GOAL)] {
        let one = measure(context, plan, &targets, op, &mut pools[..1], &format!("random {name}"))?;
        let two = measure(context, plan, &targets, op, &mut pools, &format!("random {name}"))?;
        let scaling = format!("engine_{name}_scaling");
        context.report.ratio(&scaling, two[0] / one[0], SCALING_GOAL);
        if zram.is_some() {
            // The worse result of one and two threads.
            let ratio = against_best(&one).min(against_best(&two));
            context.report.ratio(&format!("engine_rand{name}_vs_kernel_zram"), ratio, goal);
        }
    }
    Ok(())
}

fn aged(context: &mut Context, plan: &Plan, bytes: u64, zram: Option<&Zram>) -> Result<()> {
    let mut pools = pools(Kind::Mix(2.0), 2)?;
    let payload = pools[0].mean_compressed() * plan.blocks as f64;
    let limit = (payload * LIMIT_OVER_PAYLOAD) as u64 / 4096 * 4096;
    let text = format!(
        "aged: {ROUNDS} rounds of overwriting with {}; ours limited to {} MiB",
        pools[0],
        limit >> 20
    );
    context.report.note(SECTION, "data", text);
    let volume = OwnVolume::new(bytes, limit)?;
    let targets = targets(&volume, zram);
    for target in targets.iter().take(2) {
        work(target.as_ref(), Op::Write(0), Order::Each, plan.blocks, &mut pools, 1)?;
        for round in 1..=ROUNDS {
            let op = Op::Write(round);
            work(target.as_ref(), op, Order::Draws, plan.blocks, &mut pools, round.into())?;
        }
    }
    let op = Op::Write(ROUNDS + 1);
    let rates = measure(context, plan, &targets, op, &mut pools, "random write, aged, at limit")?;
    if zram.is_some() {
        let ratio = against_best(&rates);
        context.report.ratio("engine_randwrite_aged_vs_kernel_zram", ratio, AGED_GOAL);
    }
    Ok(())
}

/// Measures all targets in turn, several times; returns their medians.
fn measure(
    context: &mut Context,
    plan: &Plan,
    targets: &[Box<dyn Target + '_>],
    op: Op,
    pools: &mut [Pool],
    case: &str,
) -> Result<Vec<f64>> {
    let mut gathered: Vec<Gathered> = targets.iter().map(|t| Gathered::new(t.as_ref())).collect();
    for round in 0..plan.rounds {
        for (target, rates) in targets.iter().zip(&mut gathered) {
            let order = Order::For(plan.time);
            rates.push(work(target.as_ref(), op, order, plan.blocks, pools, 100 + round)?);
        }
    }
    let threads = pools.len();
    let plural = if threads == 1 { "" } else { "s" };
    let case = format!("{case}, {threads} thread{plural}");
    let medians: Vec<f64> =
        gathered.iter().map(|g| context.report.row(g.row(SECTION, &case))).collect();
    if let Some(best) = best_rival(&medians) {
        context.report.note(SECTION, "best rival", targets[best].name());
    }
    Ok(medians)
}

/// Index of the fastest system after the first (ztier).
fn best_rival(medians: &[f64]) -> Option<usize> {
    (1..medians.len()).max_by(|&a, &b| medians[a].total_cmp(&medians[b]))
}

/// ztier (the first) ÷ the best of the others.
fn against_best(medians: &[f64]) -> f64 {
    best_rival(medians).map_or(f64::NAN, |best| medians[0] / medians[best])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_rivals_best_counts() {
        assert!((against_best(&[6.0, 2.0, 3.0]) - 2.0).abs() < 1e-12);
        assert!(against_best(&[6.0]).is_nan());
    }
}

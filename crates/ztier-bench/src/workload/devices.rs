//! Block devices as programs use them: random 4 KiB at queue depth 32, and 1 MiB sequential, with
//! direct I/O, ztier and its rivals in turn.

use super::random::{Op, Order, Uring, pools, work};
use super::{Context, sequential};
use crate::report::{Row, Target as Goal, geomean};
use crate::rival::{Disk, System};
use std::time::Duration;
use ztier::BLOCK_SIZE;
use ztier::error::Result;

const SECTION: &str = "devices";
/// Test, unit, name in ratios, and target relative to kernel zram with lz4 over an export that can
/// reach it.
const CASES: [(&str, &str, &str, f64); 4] = [
    ("sequential write, 1 MiB", "MiB/s", "seq_write", 1.0),
    ("sequential read, 1 MiB", "MiB/s", "seq_read", 1.0),
    ("random write, 4 KiB, QD32", "IOPS", "randwrite", 0.5),
    ("random read, 4 KiB, QD32", "IOPS", "randread", 0.5),
];

/// A running system and its results.
struct Contender {
    system: System,
    disk: Box<dyn Disk>,
    runs: [Vec<f64>; 4],
}

/// Runs the section.
pub fn run(context: &mut Context) -> Result<()> {
    let bytes: u64 = context.pick(128 << 20, 256 << 20);
    let time = Duration::from_millis(context.pick(700, 3000));
    let mut pools = pools(context.data[0], 1)?;
    context.report.note(SECTION, "data", format!("{} MiB of {}", bytes >> 20, pools[0]));
    let mut contenders = Vec::new();
    for system in context.systems.clone() {
        match system.up(bytes) {
            Ok(disk) => {
                context.report.note(SECTION, system.name(), disk.about());
                contenders.push(Contender { system, disk, runs: Default::default() });
            }
            Err(e) if system == System::Ztier => return Err(e),
            Err(e) => context.report.missing(SECTION, system.name(), e),
        }
    }
    for round in 0..context.pick(3, 7) {
        for contender in &mut contenders {
            let path = contender.disk.path().to_owned();
            let mib = bytes as f64 / f64::from(1 << 20);
            for (runs, write) in contender.runs.iter_mut().zip([true, false]) {
                let spent = sequential::pass(&path, bytes, &mut pools[0], round, write)?;
                runs.push(mib / spent.wall.as_secs_f64());
            }
            let target = Uring(path, contender.system.name());
            for (runs, op) in contender.runs[2..].iter_mut().zip([Op::Write(round), Op::Read]) {
                let blocks = bytes / BLOCK_SIZE as u64;
                let seed = super::SEED + u64::from(round);
                runs.push(work(&target, op, Order::For(time), blocks, &mut pools, seed)?.iops);
            }
        }
    }
    state(context, &contenders);
    Ok(())
}

fn state(context: &mut Context, contenders: &[Contender]) {
    let goals = super::over_ublk(contenders[0].disk.path());
    let mut medians = vec![Vec::new(); contenders.len()];
    for (i, (case, unit, ..)) in CASES.into_iter().enumerate() {
        for (contender, medians) in contenders.iter().zip(&mut medians) {
            medians.push(context.report.row(Row {
                section: SECTION.into(),
                system: contender.system.name().into(),
                case: case.into(),
                unit,
                runs: contender.runs[i].clone(),
                ..Row::default()
            }));
        }
    }
    if context.counted {
        count(context, contenders, &medians);
    }
    for (rival, theirs) in contenders.iter().zip(&medians).skip(1) {
        let ratios: Vec<f64> = medians[0].iter().zip(theirs).map(|(a, b)| a / b).collect();
        for (ratio, (_, _, name, goal)) in ratios.iter().zip(CASES) {
            let name = format!("device_{name}_vs_{}", rival.system.word());
            let counts = goals && rival.system == System::KernelZram;
            let goal = if counts { Goal::AtLeast(goal) } else { Goal::None };
            context.report.ratio(&name, *ratio, goal);
        }
        let name = format!("device_geomean_vs_{}", rival.system.word());
        context.report.ratio(&name, geomean(&ratios), Goal::None);
    }
}

/// Where the clock advances by a nanosecond with each instruction, 10^9 divided by the requests a
/// second is the number of instructions of a request, including those of the kernel and of the
/// program that sends the request.
fn count(context: &mut Context, contenders: &[Contender], medians: &[Vec<f64>]) {
    for (contender, medians) in contenders.iter().zip(medians) {
        for (iops, (case, ..)) in medians.iter().zip(CASES).skip(2) {
            context.report.row(Row {
                section: SECTION.into(),
                system: contender.system.name().into(),
                case: case.into(),
                unit: "instructions a request",
                runs: vec![1e9 / iops],
                ..Row::default()
            });
        }
    }
}

//! What is uploaded for what is written at a steady rate: bytes, requests, and the daemon's CPU
//! time, beside the same load on the same log before a local file, and on the log alone.
//!
//! Invariant: all is uploaded that was written, as the load ends with a drain, whose cost counts.
//! The log alone is that of a local file to which nothing is brought.

use super::load::{BATCH, Pace, skewed, write};
use super::place::{Spot, Stores};
use super::{BLOCK, GIB, MIB, Plan, cell, figure, note, step};
use crate::data::{Kind, POOL_BYTES, Pool, Rng};
use crate::report::{Report, Table, Target as Goal, median, print};
use crate::rival::stored::{Used, Volume};
use crate::workload::SEED;
use std::time::{Duration, Instant};
use ztier::error::{Error, Result};

const SECTION: &str = "upload";
/// Bytes a second of the load.
const RATE: f64 = 24.0 * MIB;
/// The rate at which the targets begin.
const STEADY: f64 = 20.0 * MIB;
/// Time between two flushes, as of a file system that commits.
const COMMIT: Duration = Duration::from_secs(1);

/// The cost of the load on a volume.
#[derive(Default)]
struct Cost {
    written: f64,
    /// Bytes a second until the load ended, without the drain.
    rate: f64,
    cpu_s: f64,
    memory: f64,
}

/// The rounds at one store.
#[derive(Default)]
struct Runs {
    rate: Vec<f64>,
    ratio: Vec<f64>,
    puts: Vec<f64>,
    /// CPU seconds a GiB uploaded: in all, of the log alone, the rest; and of the log before a
    /// local file, for as much that was written.
    cpu: Vec<f64>,
    log: Vec<f64>,
    rest: Vec<f64>,
    local: Vec<f64>,
    memory: Vec<f64>,
    /// Bytes that the daemon counted ÷ bytes that the proxy counted.
    check: Vec<f64>,
}

/// Measures all stores.
pub fn run(report: &mut Report, plan: &Plan, stores: &Stores) -> Result<()> {
    let mut pool = Pool::build(Kind::Ratio(2.0), POOL_BYTES, SEED)?;
    let (time, rounds) = plan.upload;
    let about = format!(
        "4 KiB over {} MiB, four fifths of them on a fifth of the blocks, {:.0} MiB/s for {} s, a \
         flush a second, then a drain; default max-unsent; a log of {} MiB; {rounds} rounds. The \
         targets are meant for a volume of at least 8 GiB, overwritten three times, and include \
         the collection of garbage, which there is none of",
        plan.span >> 20,
        RATE / MIB,
        time.as_secs(),
        plan.log >> 20
    );
    note(report, SECTION, "load", about);
    note(report, SECTION, "data", &pool);
    let table = Table::new(&[
        ("store", 9),
        ("MiB/s", 5),
        ("up ÷ written", 12),
        ("PUTs/GiB", 8),
        ("CPU s/GiB", 9),
        ("log", 5),
        ("rest", 5),
        ("local", 5),
        ("MiB", 4),
    ]);
    print(&table.head());
    for spot in stores.chosen(plan) {
        step(&format!("upload, {}", spot.name()))?;
        let mut runs = Runs::default();
        for round in 0..rounds {
            one(plan, stores, spot, &mut pool, round, &mut runs)?;
        }
        state(report, spot, &runs)?;
        print(&table.line(&[
            spot.name(),
            cell(median(&runs.rate) / MIB, 1),
            cell(median(&runs.ratio), 3),
            cell(median(&runs.puts), 0),
            cell(median(&runs.cpu), 2),
            cell(median(&runs.log), 2),
            cell(median(&runs.rest), 2),
            cell(median(&runs.local), 2),
            cell(median(&runs.memory) / MIB, 0),
        ]));
    }
    print("targets: up ÷ written ≤ 0.9; PUTs ≤ 130; the rest of the CPU time ≤ 1");
    Ok(())
}

/// The load on a volume in the store, on one before a local file, and on a log alone, in turn.
fn one(
    plan: &Plan,
    stores: &Stores,
    spot: Spot,
    pool: &mut Pool,
    round: u32,
    runs: &mut Runs,
) -> Result<()> {
    let (mut alone, mut local) = (Cost::default(), Cost::default());
    let mut beside = |pool: &mut Pool| -> Result<()> {
        alone = on_local(plan, stores, pool, round, false)?;
        local = on_local(plan, stores, pool, round, true)?;
        Ok(())
    };
    if round % 2 == 1 {
        beside(pool)?;
    }
    let (cost, passed) = on_store(plan, stores, spot, pool, round)?;
    if round.is_multiple_of(2) {
        beside(pool)?;
    }
    if passed.uploaded <= 0.0 {
        return Err(Error::failure("nothing was uploaded"));
    }
    // The same writes; with as many bytes uploaded as divisor, the parts add up.
    let a_gib = |other: &Cost| other.cpu_s / other.written * cost.written / (passed.uploaded / GIB);
    runs.rate.push(cost.rate);
    runs.ratio.push(passed.uploaded / cost.written);
    runs.puts.push(passed.puts / (cost.written / GIB));
    runs.cpu.push(a_gib(&cost));
    runs.log.push(a_gib(&alone));
    runs.rest.push(a_gib(&cost) - a_gib(&alone));
    runs.local.push(a_gib(&local));
    runs.memory.push(cost.memory);
    runs.check.extend(passed.check);
    Ok(())
}

/// What went to the store.
struct Passed {
    uploaded: f64,
    puts: f64,
    /// Bytes that the daemon counted ÷ bytes that the proxy counted, if there is one.
    check: Option<f64>,
}

fn on_store(
    plan: &Plan,
    stores: &Stores,
    spot: Spot,
    pool: &mut Pool,
    round: u32,
) -> Result<(Cost, Passed)> {
    let log = stores.file("log", plan.log)?;
    let host = stores.host()?;
    stores.enter(Spot::Bucket(0));
    let (place, size) = (stores.place(spot), plan.span.to_string());
    let volume = host.up(&["--backing", &place, "--log", &log.text(), "--size", &size])?;
    stores.enter(spot);
    let before = stores.counts(spot);
    let (bytes, objects) = (volume.counted("sent_bytes")?, volume.counted("sent_objects")?);
    let cost = load(plan, &volume, pool, round, true)?;
    let bytes = (volume.counted("sent_bytes")? - bytes) as f64;
    let objects = (volume.counted("sent_objects")? - objects) as f64;
    let passed = stores.counts(spot).zip(before).map(|(after, before)| after.since(before));
    stores.enter(Spot::Bucket(0));
    let passed = match passed {
        Some(passed) => Passed {
            uploaded: passed.put_bytes as f64,
            puts: passed.puts as f64,
            check: Some(bytes / passed.put_bytes as f64),
        },
        None => Passed { uploaded: bytes, puts: objects, check: None },
    };
    Ok((cost, passed))
}

fn on_local(
    plan: &Plan,
    stores: &Stores,
    pool: &mut Pool,
    round: u32,
    writeback: bool,
) -> Result<Cost> {
    let (log, backing) = (stores.file("log", plan.log)?, stores.file("backing", plan.span)?);
    let host = stores.host()?;
    let (log, backing) = (log.text(), backing.text());
    let mut args = vec!["--backing", &backing, "--log", &log];
    if !writeback {
        args.extend(["--writeback", "off"]);
    }
    let volume = host.up(&args)?;
    load(plan, &volume, pool, round, writeback)
}

fn load(
    plan: &Plan,
    volume: &Volume<'_>,
    pool: &mut Pool,
    round: u32,
    drains: bool,
) -> Result<Cost> {
    let mut client = volume.connect()?;
    let mut rng = Rng::new(SEED + u64::from(round));
    let (blocks, generation) = (plan.span / BLOCK, round + 1);
    let before = volume.used()?;
    let (begun, mut pace, mut commit) = (Instant::now(), Pace::new(RATE), Instant::now());
    let (mut batch, mut written, mut memory) = (Vec::new(), 0, 0);
    while begun.elapsed() < plan.upload.0 {
        batch.clear();
        batch.extend((0..BATCH).map(|_| skewed(&mut rng, blocks)));
        write(&mut client, pool, &batch, generation)?;
        let bytes = BATCH as u64 * BLOCK;
        written += bytes;
        if commit.elapsed() >= COMMIT {
            client.flush()?;
            memory = volume.used()?.memory.max(memory);
            commit = Instant::now();
        }
        pace.keep(bytes)?;
    }
    client.flush()?;
    let rate = written as f64 / begun.elapsed().as_secs_f64();
    if drains {
        volume.drain()?;
    }
    let Used { cpu, memory: last } = volume.used()?;
    Ok(Cost {
        written: written as f64,
        rate,
        cpu_s: (cpu - before.cpu).as_secs_f64(),
        memory: last.max(memory) as f64,
    })
}

fn state(report: &mut Report, spot: Spot, runs: &Runs) -> Result<()> {
    let mib = |all: &[f64]| all.iter().map(|bytes| bytes / MIB).collect::<Vec<_>>();
    for (what, unit, runs) in [
        ("rate", "MiB/s", &mib(&runs.rate)),
        ("uploaded ÷ written", "", &runs.ratio),
        ("PUTs a GiB written", "", &runs.puts),
        ("CPU of the daemon, a GiB uploaded", "s", &runs.cpu),
        ("of it the log alone", "s", &runs.log),
        ("the rest", "s", &runs.rest),
        ("the same before a local file", "s", &runs.local),
        ("memory of the daemon, most", "MiB", &mib(&runs.memory)),
        ("bytes the daemon counted ÷ the proxy", "", &runs.check),
    ] {
        figure(report, SECTION, &spot.name(), what, unit, runs);
    }
    // Below that rate the targets are others.
    let goal = |goal| if median(&runs.rate) >= STEADY { goal } else { Goal::None };
    let word = spot.word();
    report.ratio(
        &format!("uploaded_vs_written_{word}"),
        median(&runs.ratio),
        goal(Goal::AtMost(0.9)),
    );
    report.ratio(&format!("puts_a_gib_{word}"), median(&runs.puts), goal(Goal::AtMost(130.0)));
    report.ratio(&format!("cpu_s_a_gib_{word}"), median(&runs.cpu), Goal::None);
    report.ratio(&format!("cpu_s_a_gib_beside_log_{word}"), median(&runs.rest), Goal::AtMost(1.0));
    let check = median(&runs.check);
    // The sign of life, and the root, are in the proxy's count alone.
    if !runs.check.is_empty() && !(0.97..=1.03).contains(&check) {
        let text = format!("the daemon counts {check:.3} of the bytes that the proxy counts");
        return Err(Error::failure(text));
    }
    Ok(())
}

//! The time from `ztier up` on a second host, whose SSD has nothing, until a read and a write are
//! answered, after the first host has died.
//!
//! Invariants: the volume holds blocks in scattered order, all of them in the store. Each takeover
//! is by a host without files of an earlier one. Its target is of a volume of 1 TiB: a smaller one
//! can miss it, and never meets it.

use super::load::{fill, scattered};
use super::place::{Spot, Stores};
use super::{BLOCK, MIB, Plan, cell, figure, note, step};
use crate::data::{Kind, POOL_BYTES, Pool};
use crate::report::{Report, Table, Target as Goal, median, print, say};
use crate::workload::SEED;
use std::time::Instant;
use ztier::BLOCK_SIZE;
use ztier::error::{Error, Result};

const SECTION: &str = "takeover";
/// Seconds for a volume of this size.
const GOAL_S: f64 = 3.0;
const GOAL_BYTES: u64 = 1 << 40;
/// Shrinks well, so that large volumes fit the disk.
const DATA: Kind = Kind::Ratio(8.0);
const LOG_SIZE: &str = "64M";

/// The takeovers of one kind at one store.
#[derive(Default)]
struct Runs {
    read: Vec<f64>,
    write: Vec<f64>,
    gets: Vec<f64>,
    got: Vec<f64>,
    cpu: Vec<f64>,
    memory: Vec<f64>,
    index: Vec<f64>,
}

/// Measures all stores.
pub fn run(report: &mut Report, plan: &Plan, stores: &Stores) -> Result<()> {
    let mut pool = Pool::build(DATA, POOL_BYTES, SEED)?;
    let blocks = plan.volume / BLOCK;
    let about = format!(
        "{blocks} blocks of 4 KiB in scattered order, {} GiB; the host before was killed; without \
         a log and with a new one; {} takeovers each",
        plan.volume as f64 / (1_u64 << 30) as f64,
        plan.takeovers
    );
    note(report, SECTION, "volume", about);
    note(report, SECTION, "data", &pool);
    let table = Table::new(&[
        ("store", 9),
        ("log", 4),
        ("read s", 7),
        ("write s", 7),
        ("GETs", 6),
        ("MiB got", 7),
        ("CPU s", 6),
        ("daemon MiB", 10),
        ("index", 5),
    ]);
    print(&table.head());
    let mut last: Option<(Spot, String)> = None;
    for spot in stores.spots() {
        // Buckets differ in nothing but latency: one volume does for all.
        let place = match &last {
            Some((Spot::Bucket(_), place)) => place.clone(),
            _ => made(stores, spot, &mut pool, blocks)?,
        };
        for log in [false, true] {
            step(&format!(
                "takeover, {}, {}",
                spot.name(),
                if log { "new log" } else { "no log" }
            ))?;
            let mut runs = Runs::default();
            for n in 0..plan.takeovers {
                let at = scattered(u64::from(n) * 7919 + 17, blocks);
                one(stores, spot, &place, log, at, &mut pool, &mut runs)?;
            }
            state(report, plan, spot, log, &runs);
            print(&table.line(&[
                spot.name(),
                if log { "new" } else { "none" }.into(),
                cell(median(&runs.read), 3),
                cell(median(&runs.write), 3),
                cell(median(&runs.gets), 0),
                cell(median(&runs.got) / MIB, 1),
                cell(median(&runs.cpu), 2),
                cell(median(&runs.memory) / MIB, 0),
                cell(median(&runs.index) / MIB, 0),
            ]));
        }
        last = Some((spot, place));
    }
    print("target: ≤ 3 s for a volume of 1 TiB");
    Ok(())
}

/// A new volume that holds all blocks, and whose host has died.
fn made(stores: &Stores, spot: Spot, pool: &mut Pool, blocks: u64) -> Result<String> {
    stores.enter(Spot::Bucket(0));
    let place = stores.place(spot);
    let host = stores.host()?;
    let size = (blocks * BLOCK).to_string();
    let volume = host.up(&["--backing", &place, "--log", "none", "--size", &size])?;
    let begun = Instant::now();
    fill(&mut volume.connect()?, pool, blocks)?;
    let held = volume.counted("blocks")?;
    if held != blocks {
        return Err(Error::failure(format!("the volume holds {held} blocks, not {blocks}")));
    }
    say(&format!("takeover, volume written in {:.0} s", begun.elapsed().as_secs_f64()));
    volume.kill()?;
    volume.wait_for_death()?;
    Ok(place)
}

fn one(
    stores: &Stores,
    spot: Spot,
    place: &str,
    log: bool,
    at: u64,
    pool: &mut Pool,
    runs: &mut Runs,
) -> Result<()> {
    let host = stores.host()?;
    let path = stores.vacant("log");
    let log_path = path.text();
    let mut args = vec!["--backing", place, "--force"];
    match log {
        true => args.extend(["--log", &log_path, "--log-size", LOG_SIZE]),
        false => args.extend(["--log", "none"]),
    }
    let offset = at * BLOCK;
    stores.enter(spot);
    let (before, begun) = (stores.counts(spot), Instant::now());
    let volume = host.up(&args)?;
    let mut client = volume.connect()?;
    let mut data = vec![0; BLOCK_SIZE];
    client.read(offset, &mut data)?;
    let read = begun.elapsed().as_secs_f64();
    let is_right = pool.matches(offset, 0, &data);
    // The content that it has anyway: the volume is taken over again.
    client.write_blocks(&[offset / BLOCK], |_, out| out.copy_from_slice(&data))?;
    let write = begun.elapsed().as_secs_f64();
    let passed = stores.counts(spot).zip(before).map(|(after, before)| after.since(before));
    stores.enter(Spot::Bucket(0));
    if !is_right {
        return Err(Error::failure(format!("the block at {offset} is not what was written")));
    }
    let used = volume.used()?;
    runs.read.push(read);
    runs.write.push(write);
    runs.gets.extend(passed.map(|passed| passed.gets as f64));
    runs.got.extend(passed.map(|passed| passed.get_bytes as f64));
    runs.cpu.push(used.cpu.as_secs_f64());
    runs.memory.push(used.memory as f64);
    runs.index.push(volume.counted("index_bytes")? as f64);
    volume.kill()?;
    volume.wait_for_death()
}

fn state(report: &mut Report, plan: &Plan, spot: Spot, log: bool, runs: &Runs) {
    let system = format!("{}, {}", spot.name(), if log { "new log" } else { "no log" });
    let mib = |all: &[f64]| all.iter().map(|bytes| bytes / MIB).collect::<Vec<_>>();
    for (what, unit, runs) in [
        ("up until a read is answered", "s", &runs.read),
        ("up until a write is answered", "s", &runs.write),
        ("GETs", "", &runs.gets),
        ("bytes of their answers", "MiB", &mib(&runs.got)),
        ("CPU of the daemon", "s", &runs.cpu),
        ("memory of the daemon", "MiB", &mib(&runs.memory)),
        ("of it the index", "MiB", &mib(&runs.index)),
    ] {
        figure(report, SECTION, &system, what, unit, runs);
    }
    let seconds = median(&runs.write);
    let is_of_goal = plan.volume >= GOAL_BYTES || seconds > GOAL_S;
    let goal = if is_of_goal { Goal::AtMost(GOAL_S) } else { Goal::None };
    let what = if log { "_new_log" } else { "" };
    report.ratio(&format!("takeover_s{what}_{}", spot.word()), seconds, goal);
}

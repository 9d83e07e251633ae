//! Memory of a daemon at rest: of a volume in the store, and of one with a local backing store,
//! empty and with blocks in scattered order.

use super::load::fill;
use super::place::{LocalFile, Stores};
use super::{BLOCK, MIB, Plan, cell, figure, note, step};
use crate::data::{Kind, POOL_BYTES, Pool};
use crate::report::{Report, Table, Target as Goal, print};
use crate::sys::interrupt;
use crate::workload::SEED;
use std::time::Duration;
use ztier::error::Result;

const SECTION: &str = "memory";
/// Time after which a daemon is at rest.
const REST: Duration = Duration::from_secs(2);
/// Beside the index.
const GOAL_MIB: f64 = 64.0;
/// An empty volume beside one with a local backing store.
const IDLE_GOAL_MIB: f64 = 1.0;

/// The volumes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A log before a local file.
    Local,
    /// The same log before the store.
    Log,
    /// The store alone.
    NoLog,
}

impl Way {
    const ALL: [Self; 3] = [Self::Local, Self::Log, Self::NoLog];

    fn name(self) -> &'static str {
        match self {
            Self::Local => "log, local file",
            Self::Log => "log, store",
            Self::NoLog => "store, no log",
        }
    }
}

/// Bytes.
#[derive(Clone, Copy, Default)]
struct Found {
    empty: f64,
    full: f64,
    /// Of the store's index and of the log's, as the daemon counts them.
    index: f64,
}

/// Measures all volumes.
pub fn run(report: &mut Report, plan: &Plan, stores: &Stores) -> Result<()> {
    let mut pool = Pool::build(Kind::Ratio(2.0), POOL_BYTES, SEED)?;
    let blocks = plan.resting / BLOCK;
    let about = format!(
        "PSS of the daemon and its children, {} s after the last request: of a new volume, and \
         with {blocks} blocks of 4 KiB that were written in scattered order and drained; no cache \
         of reads (--ram-limit 0); a log of {} MiB",
        REST.as_secs(),
        plan.log >> 20
    );
    note(report, SECTION, "load", about);
    let spot = stores.fastest();
    stores.enter(spot);
    let table = Table::new(&[
        ("volume", 15),
        ("empty MiB", 9),
        ("with blocks MiB", 15),
        ("its indexes MiB", 15),
        ("rest MiB", 8),
    ]);
    print(&table.head());
    let mut all = Vec::new();
    for way in Way::ALL {
        step(&format!("memory, {}", way.name()))?;
        let found = one(plan, stores, way, &mut pool)?;
        let mib = [found.empty, found.full, found.index, found.full - found.index];
        let mib = mib.map(|bytes| bytes / MIB);
        for (what, value) in ["empty", "with blocks", "its indexes", "the rest"].iter().zip(mib) {
            figure(report, SECTION, way.name(), what, "MiB", &[value]);
        }
        let cells = mib.map(|mib| cell(mib, 1));
        print(&table.line(&[&[way.name().to_owned()][..], &cells].concat()));
        all.push(found);
    }
    print(&format!("store: {}", spot.name()));
    let [local, log, none] = &all[..] else { return Ok(()) };
    let beside = |found: &Found| (found.empty - local.empty) / MIB;
    report.ratio("idle_mib_beside_local", beside(log), Goal::AtMost(IDLE_GOAL_MIB));
    report.ratio("idle_mib_beside_local_no_log", beside(none), Goal::None);
    for (found, name) in [(log, "log"), (none, "no_log")] {
        let rest = (found.full - found.index) / MIB;
        report.ratio(&format!("mib_beside_index_{name}"), rest, Goal::AtMost(GOAL_MIB));
    }
    report.ratio("memory_vs_local", log.full / local.full, Goal::None);
    Ok(())
}

fn one(plan: &Plan, stores: &Stores, way: Way, pool: &mut Pool) -> Result<Found> {
    let mut files: Vec<LocalFile> = Vec::new();
    let mut args = vec!["--ram-limit".to_owned(), "0".to_owned()];
    args.push("--backing".to_owned());
    if way == Way::Local {
        files.push(stores.file("backing", plan.resting)?);
        args.extend(files.last().map(LocalFile::text));
    } else {
        args.push(stores.place(stores.fastest()));
        args.extend(["--size".to_owned(), plan.resting.to_string()]);
    }
    args.push("--log".to_owned());
    if way == Way::NoLog {
        args.push("none".to_owned());
    } else {
        files.push(stores.file("log", plan.log)?);
        args.extend(files.last().map(LocalFile::text));
    }
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    let host = stores.host()?;
    let volume = host.up(&args)?;
    interrupt::sleep(REST)?;
    let empty = volume.used()?.memory as f64;
    let mut client = volume.connect()?;
    fill(&mut client, pool, plan.resting / BLOCK)?;
    if way != Way::NoLog {
        volume.drain()?;
    }
    drop(client);
    interrupt::sleep(REST)?;
    let full = volume.used()?.memory as f64;
    let stats = volume.stats()?;
    let index = |part: &str| stats[part]["index_bytes"].as_u64().unwrap_or(0);
    Ok(Found { empty, full, index: (index("object") + index("log")) as f64 })
}

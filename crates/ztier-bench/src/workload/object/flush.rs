//! 4 KiB written at random and flushed, one after the other: a log before the store beside the same
//! log before a local file, `--sync-remote`, and no log.
//!
//! Invariant: the volumes of a store are up at the same time and take turns; each has brought to
//! its backing store what it holds before the next one's turn.

use super::place::{LocalFile, Spot, Stores};
use super::{MIB, Plan, cell, figure, note, nothing, step};
use crate::report::{Report, Table, Target as Goal, median, print};
use crate::rival::fio::{self, Job, Target};
use crate::rival::stored::{Host, Volume};
use ztier::error::Result;

const SECTION: &str = "flush";
/// At most this many times the time with a local backing store.
const GOAL: Goal = Goal::AtMost(1.1);

/// What stands where a flush ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    /// A log before a local file.
    Local,
    /// The same log before the store.
    Log,
    /// The store, behind the same log.
    SyncRemote,
    /// The store.
    NoLog,
}

impl Way {
    const ALL: [Self; 4] = [Self::Local, Self::Log, Self::SyncRemote, Self::NoLog];

    fn name(self) -> &'static str {
        match self {
            Self::Local => "log, local file",
            Self::Log => "log",
            Self::SyncRemote => "--sync-remote",
            Self::NoLog => "--log none",
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Log => "log",
            Self::SyncRemote => "sync_remote",
            Self::NoLog => "no_log",
        }
    }

    fn goal(self) -> Goal {
        if self == Self::Log { GOAL } else { Goal::None }
    }
}

/// The rounds of one volume.
#[derive(Default)]
struct Runs {
    per_second: Vec<f64>,
    /// Median of the time of flushes.
    flush_ms: Vec<f64>,
    cpu_us: Vec<f64>,
    memory_mib: Vec<f64>,
}

/// Measures all stores.
pub fn run(report: &mut Report, plan: &Plan, stores: &Stores) -> Result<()> {
    if !crate::sys::command::exists("fio") {
        return Err(nothing("a flush (fio is not installed)"));
    }
    let about = format!(
        "4 KiB at random over {} MiB, a flush each, fio over NBD; {}; a log of {} MiB; {} rounds \
         of {:.1} s",
        plan.span >> 20,
        fio::DATA,
        plan.log >> 20,
        plan.rounds,
        plan.time.as_secs_f64()
    );
    note(report, SECTION, "load", about);
    let table = Table::new(&[
        ("store", 9),
        ("flush ends at", 15),
        ("writes/s", 8),
        ("flush ms", 8),
        ("CPU µs", 6),
        ("MiB", 5),
        ("time ÷ local", 12),
    ]);
    print(&table.head());
    for spot in stores.chosen(plan) {
        step(&format!("flush, {}", spot.name()))?;
        let runs = at(plan, stores, spot)?;
        let local = median(&runs[0].per_second);
        for (way, runs) in Way::ALL.into_iter().zip(&runs) {
            let ratio = local / median(&runs.per_second);
            state(report, spot, way, runs);
            if way != Way::Local {
                let name = format!("{}_flush_time_vs_local_{}", way.word(), spot.word());
                report.ratio(&name, ratio, way.goal());
            }
            let short = way.goal().short();
            print(&table.line(&[
                spot.name(),
                way.name().into(),
                cell(median(&runs.per_second), 0),
                cell(median(&runs.flush_ms), 2),
                cell(median(&runs.cpu_us), 0),
                cell(median(&runs.memory_mib), 0),
                format!("{} {short}", cell(ratio, 2)).trim_end().to_owned(),
            ]));
        }
    }
    Ok(())
}

fn state(report: &mut Report, spot: Spot, way: Way, runs: &Runs) {
    for (what, unit, runs) in [
        ("writes and flushes", "IOPS", &runs.per_second),
        ("a flush, median", "ms", &runs.flush_ms),
        ("CPU of the daemon, a write", "µs", &runs.cpu_us),
        ("memory of the daemon", "MiB", &runs.memory_mib),
    ] {
        figure(report, SECTION, way.name(), &format!("{what}, {}", spot.name()), unit, runs);
    }
}

/// The rounds of all volumes at one store.
fn at(plan: &Plan, stores: &Stores, spot: Spot) -> Result<Vec<Runs>> {
    // Files go behind the daemons that use them.
    let mut files: Vec<LocalFile> = Vec::new();
    let hosts = Way::ALL.iter().map(|_| stores.host()).collect::<Result<Vec<Host>>>()?;
    let mut volumes: Vec<(Way, Volume<'_>)> = Vec::new();
    // Making a volume takes many requests, which are not what is measured.
    stores.enter(Spot::Bucket(0));
    for (way, host) in Way::ALL.into_iter().zip(&hosts) {
        let args = arguments(plan, stores, spot, way, &mut files)?;
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        volumes.push((way, host.up(&args)?));
    }
    stores.enter(spot);
    let mut all: Vec<Runs> = Way::ALL.map(|_| Runs::default()).into();
    for _ in 0..plan.rounds {
        for ((way, volume), runs) in volumes.iter().zip(&mut all) {
            one(plan, *way, volume, runs)?;
        }
    }
    // Logs may have something left, which must not wait for a slow store.
    stores.enter(Spot::Bucket(0));
    Ok(all)
}

/// The arguments of a new volume; adds its files.
fn arguments(
    plan: &Plan,
    stores: &Stores,
    spot: Spot,
    way: Way,
    files: &mut Vec<LocalFile>,
) -> Result<Vec<String>> {
    let mut file = |what: &str, bytes| -> Result<String> {
        let file = stores.file(what, bytes)?;
        let text = file.text();
        files.push(file);
        Ok(text)
    };
    let backing = match way {
        Way::Local => file("backing", plan.span)?,
        _ => stores.place(spot),
    };
    let log = match way {
        Way::NoLog => "none".to_owned(),
        _ => file("log", plan.log)?,
    };
    let mut args = vec!["--backing".to_owned(), backing, "--log".to_owned(), log];
    if way != Way::Local {
        args.extend(["--size".to_owned(), plan.span.to_string()]);
    }
    args.extend((way == Way::SyncRemote).then(|| "--sync-remote".to_owned()));
    Ok(args)
}

fn one(plan: &Plan, way: Way, volume: &Volume<'_>, runs: &mut Runs) -> Result<()> {
    let before = volume.used()?;
    let job = Job {
        target: Target::Nbd(volume.uri()),
        depth: 1,
        size: plan.span,
        time: Some(plan.time),
        flush_after: 1,
        ..fio::LIKE
    };
    let reached = fio::measure(&job)?;
    let after = volume.used()?;
    let writes = reached.iops * plan.time.as_secs_f64();
    runs.per_second.push(reached.iops);
    runs.flush_ms.push(reached.p50_ms);
    runs.cpu_us.push((after.cpu - before.cpu).as_secs_f64() * 1e6 / writes);
    runs.memory_mib.push(after.memory as f64 / MIB);
    if way == Way::NoLog { Ok(()) } else { volume.drain() }
}

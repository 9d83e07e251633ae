//! Rivals on the same store: s3backer, nbdkit's plugin for S3 and Ceph's RBD, where they are.
//!
//! Invariant: each write of a rival is in the store when its flush returns, as with `--log none`.

use super::place::{LocalFile, Spot, Stores};
use super::{MIB, Plan, cell, figure, missing, note, nothing, step};
use crate::report::{Report, Table, Target as Goal, median, print};
use crate::rival::fio::{self, Job, Target};
use crate::rival::s3backer::{self, S3backer};
use crate::sys::command::{exists, run as run_program};
use crate::sys::interrupt;
use crate::sys::usage::{Usage, pss_of_family};
use std::time::Duration;
use ztier::error::{Error, Result};

const SECTION: &str = "rivals";
/// Bytes that are read in order.
const READ: u64 = 64 << 20;
/// Bytes of s3backer's file, which it writes an object for each 4 KiB.
const S3BACKER: u64 = 16 << 20;
const PLUGIN_LIMIT: Duration = Duration::from_secs(10);

/// What is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum System {
    Log,
    NoLog,
    S3backer,
}

impl System {
    fn name(self) -> &'static str {
        match self {
            Self::Log => "ztier, log",
            Self::NoLog => "ztier, no log",
            Self::S3backer => s3backer::NAME,
        }
    }
}

/// The rounds of one system at one store.
#[derive(Default)]
struct Runs {
    writes: Vec<f64>,
    read: Vec<f64>,
    cpu_us: Vec<f64>,
    memory: Vec<f64>,
}

/// Measures all stores.
pub fn run(report: &mut Report, plan: &Plan, stores: &Stores) -> Result<()> {
    if !exists("fio") {
        return Err(nothing("a rival (fio is not installed)"));
    }
    absent(report);
    let about = format!(
        "1 MiB reads in order on a new host of {} MiB that were written in order, {} of \
         s3backer's; 4 KiB at random and a flush each for {:.1} s; s3backer with its default \
         blocks of 4 KiB and --blockCacheSync, as its fsync waits for nothing",
        READ >> 20,
        S3BACKER >> 20,
        plan.time.as_secs_f64()
    );
    note(report, SECTION, "load", about);
    let mut systems = vec![System::Log, System::NoLog];
    if stores.endpoint().is_some() && exists("s3backer") {
        systems.push(System::S3backer);
    } else if !exists("s3backer") {
        missing(report, SECTION, s3backer::NAME, "skipped: it is not installed");
    }
    let table = Table::new(&[
        ("store", 9),
        ("system", 13),
        ("writes/s", 8),
        ("CPU µs a write", 14),
        ("MiB", 5),
        ("read MiB/s", 10),
    ]);
    print(&table.head());
    for spot in stores.buckets() {
        let mut all: Vec<(System, Runs)> = systems.iter().map(|s| (*s, Runs::default())).collect();
        for _ in 0..if plan.quick { 1 } else { 3 } {
            for (system, runs) in &mut all {
                step(&format!("rivals, {}, {}", spot.name(), system.name()))?;
                let done = match system {
                    System::S3backer => rival(plan, stores, spot, runs),
                    _ => ours(plan, stores, spot, *system, runs),
                };
                if let Err(e) = done {
                    interrupt::check()?;
                    missing(report, SECTION, &format!("{}, {}", system.name(), spot.name()), e);
                }
            }
        }
        stores.enter(Spot::Bucket(0));
        for (system, runs) in &all {
            print(&table.line(&state(report, spot, *system, runs)));
        }
        let of = |wanted| all.iter().find(|(system, _)| *system == wanted).map(|(_, runs)| runs);
        for (system, word) in [(System::Log, "log"), (System::NoLog, "no_log")] {
            let (Some(ours), Some(other)) = (of(system), of(System::S3backer)) else { continue };
            let ratio = median(&ours.writes) / median(&other.writes);
            let name = format!("{word}_writes_vs_s3backer_{}", spot.word());
            report.ratio(&name, ratio, Goal::None);
        }
    }
    Ok(())
}

/// Names the rivals that this table does not have.
fn absent(report: &mut Report) {
    let plugin = run_program("nbdkit", &["S3", "--dump-plugin"], PLUGIN_LIMIT);
    let why = match plugin {
        Ok(_) => "skipped: it only reads and writes whole objects that are there already",
        Err(_) => "skipped: nbdkit here has no plugin S3 (Debian 12 has none)",
    };
    missing(report, SECTION, "nbdkit S3", why);
    missing(report, SECTION, "Ceph RBD", "skipped: this table sets up no cluster");
}

/// 1 MiB requests, once over `size`.
fn in_order<'a>(target: Target<'a>, pattern: &'a str, size: u64) -> Job<'a> {
    Job { target, pattern, block: 1 << 20, depth: 1, size, ..fio::LIKE }
}

/// 4 KiB at random and a flush each.
fn flushed<'a>(target: Target<'a>, size: u64, plan: &Plan) -> Job<'a> {
    Job { target, depth: 1, size, time: Some(plan.time), flush_after: 1, ..fio::LIKE }
}

fn ours(plan: &Plan, stores: &Stores, spot: Spot, system: System, runs: &mut Runs) -> Result<()> {
    let place = stores.place(spot);
    let mut files: Vec<LocalFile> = Vec::new();
    let log = match system {
        System::Log => {
            files.push(stores.file("log", plan.log)?);
            files.last().map(LocalFile::text).unwrap_or_default()
        }
        _ => "none".to_owned(),
    };
    stores.enter(Spot::Bucket(0));
    let host = stores.host()?;
    let size = READ.to_string();
    let args = ["--backing", &place, "--log", &log, "--size", &size];
    let volume = host.up(&args)?;
    let write = Job { flush_after: 64, ..in_order(Target::Nbd(volume.uri()), "write", READ) };
    fio::measure(&write)?;
    if system == System::Log {
        volume.drain()?;
    }
    volume.down()?;
    read(stores, spot, &place, runs)?;
    let volume = host.up(&[&args[..4], &["--force"]].concat())?;
    stores.enter(spot);
    let before = volume.used()?;
    let reached = fio::measure(&flushed(Target::Nbd(volume.uri()), READ, plan))?;
    let after = volume.used()?;
    let writes = reached.iops * plan.time.as_secs_f64();
    runs.writes.push(reached.iops);
    runs.cpu_us.push((after.cpu - before.cpu).as_secs_f64() * 1e6 / writes);
    runs.memory.push(after.memory as f64);
    stores.enter(Spot::Bucket(0));
    Ok(())
}

/// Reads in order on a host that has nothing of the volume.
fn read(stores: &Stores, spot: Spot, place: &str, runs: &mut Runs) -> Result<()> {
    let host = stores.host()?;
    let volume = host.up(&["--backing", place, "--log", "none"])?;
    stores.enter(spot);
    let job = in_order(Target::Nbd(volume.uri()), "read", READ);
    runs.read.push(fio::measure(&job)?.bytes_per_second);
    stores.enter(Spot::Bucket(0));
    Ok(())
}

fn rival(plan: &Plan, stores: &Stores, spot: Spot, runs: &mut Runs) -> Result<()> {
    let none = || Error::failure("there is no bucket");
    let endpoint = stores.endpoint().ok_or_else(none)?;
    let prefix = stores.place(spot).rsplit('/').next().unwrap_or_default().to_owned();
    let prefix = format!("s3backer-{prefix}-");
    stores.enter(Spot::Bucket(0));
    let mounted = S3backer::new(&endpoint, &prefix, S3BACKER, false)?;
    fio::measure(&in_order(Target::File(mounted.path()), "write", S3BACKER))?;
    mounted.end()?;
    let mounted = S3backer::new(&endpoint, &prefix, S3BACKER, true)?;
    stores.enter(spot);
    let before = Usage::of(mounted.id())?.cpu();
    let reached = fio::measure(&flushed(Target::File(mounted.path()), S3BACKER, plan))?;
    let cpu = Usage::of(mounted.id())?.cpu() - before;
    runs.writes.push(reached.iops);
    runs.cpu_us.push(cpu.as_secs_f64() * 1e6 / (reached.iops * plan.time.as_secs_f64()));
    runs.memory.push(pss_of_family(mounted.id())? as f64);
    stores.enter(Spot::Bucket(0));
    mounted.end()?;
    // A new mount, so nothing is in its cache or the kernel's.
    let mounted = S3backer::new(&endpoint, &prefix, S3BACKER, true)?;
    stores.enter(spot);
    let reached = fio::measure(&in_order(Target::File(mounted.path()), "read", S3BACKER))?;
    runs.read.push(reached.bytes_per_second);
    stores.enter(Spot::Bucket(0));
    mounted.end()
}

/// Adds the figures; returns the line of the table.
fn state(report: &mut Report, spot: Spot, system: System, runs: &Runs) -> [String; 6] {
    let mib = |all: &[f64]| all.iter().map(|bytes| bytes / MIB).collect::<Vec<_>>();
    for (what, unit, runs) in [
        ("writes and flushes", "IOPS", &runs.writes),
        ("CPU, a write", "µs", &runs.cpu_us),
        ("memory", "MiB", &mib(&runs.memory)),
        ("reads in order", "MiB/s", &mib(&runs.read)),
    ] {
        figure(report, SECTION, system.name(), &format!("{what}, {}", spot.name()), unit, runs);
    }
    [
        spot.name(),
        system.name().into(),
        cell(median(&runs.writes), 0),
        cell(median(&runs.cpu_us), 0),
        cell(median(&runs.memory) / MIB, 0),
        cell(median(&runs.read) / MIB, 1),
    ]
}

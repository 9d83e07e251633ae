//! Rows like zramperf's: the device is written and read once from the start, 1 MiB at a time.

use super::{Context, SEED};
use crate::data::{POOL_BYTES, Pool, check_stamps};
use crate::report::Row;
use crate::rival::System;
use crate::rival::fio::{self, Job};
use crate::rival::nbdkit::{self, Nbdkit};
use crate::rival::ztier::Up;
use crate::sys::cpu::{Spent, Stopwatch};
use crate::sys::map::AlignedBuf;
use crate::sys::{direct, interrupt};
use std::os::unix::fs::FileExt;
use std::path::Path;
use ztier::error::{Context as _, Result};

const SECTION: &str = "sequential";
const REQUEST: usize = 1 << 20;

/// Runs the section.
pub fn run(context: &mut Context) -> Result<()> {
    devices(context)?;
    servers(context)
}

/// Block devices, as with `dd` and O_DIRECT.
fn devices(context: &mut Context) -> Result<()> {
    let bytes: u64 = context.pick(128 << 20, 1 << 30);
    let rounds: u32 = context.pick(3, 5);
    let mut pool = Pool::build(context.data[0], POOL_BYTES, SEED)?;
    context.report.note(SECTION, "data", format!("{} MiB of {pool}", bytes >> 20));
    let mut disks = Vec::new();
    for system in context.systems.clone() {
        match system.up(bytes) {
            Ok(disk) => {
                context.report.note(SECTION, system.name(), disk.about());
                disks.push((system, disk, [Vec::new(), Vec::new()]));
            }
            Err(e) if system == System::Ztier => return Err(e),
            Err(e) => context.report.missing(SECTION, system.name(), e),
        }
    }
    for round in 0..rounds {
        for (_, disk, [writes, reads]) in &mut disks {
            writes.push(pass(disk.path(), bytes, &mut pool, round, true)?);
            reads.push(pass(disk.path(), bytes, &mut pool, round, false)?);
        }
    }
    for (system, _, passes) in &disks {
        for (case, spent) in ["write, direct", "read, direct"].into_iter().zip(passes) {
            context.report.row(row(system.name(), case, bytes, spent));
        }
    }
    Ok(())
}

/// Reads or writes the first `bytes` of a device once, 1 MiB at a time; reads must return
/// generation `round`.
pub fn pass(device: &Path, bytes: u64, pool: &mut Pool, round: u32, write: bool) -> Result<Spent> {
    let file = direct::open(device)?;
    let mut buf = AlignedBuf::new(REQUEST)?;
    let watch = Stopwatch::start();
    for offset in (0..bytes).step_by(REQUEST) {
        if write {
            let data = pool.record(offset, round, REQUEST);
            file.write_all_at(data, offset).context("sequential write")?;
        } else {
            file.read_exact_at(&mut buf, offset).context("sequential read")?;
            check_stamps(offset, round, &buf)?;
        }
        interrupt::check()?;
    }
    Ok(watch.stop())
}

fn row(system: &str, case: &str, bytes: u64, passes: &[Spent]) -> Row {
    let median =
        |f: fn(&Spent) -> f64| crate::report::median(&passes.iter().map(f).collect::<Vec<_>>());
    let mib = bytes as f64 / f64::from(1 << 20);
    Row {
        section: SECTION.into(),
        system: system.into(),
        case: case.into(),
        unit: "MiB/s",
        runs: passes.iter().map(|p| mib / p.wall.as_secs_f64()).collect(),
        cpu_own_percent: Some(median(|p| p.own_percent)),
        cpu_machine_percent: Some(median(|p| p.machine_percent)),
        ..Row::default()
    }
}

/// NBD servers, through fio's nbd engine, on fio's data.
fn servers(context: &mut Context) -> Result<()> {
    let bytes: u64 = context.pick(128 << 20, 1 << 30);
    let rounds: u32 = context.pick(2, 5);
    if !crate::sys::command::exists("fio") {
        context.report.missing(SECTION, "NBD servers", "fio is not installed");
        return Ok(());
    }
    let text = format!("over NBD: {} MiB of {}", bytes >> 20, fio::DATA);
    context.report.note(SECTION, "data", text);
    let ours = Up::new(bytes, "nbd")?;
    let mut servers = vec![("ztier (NBD)", ours.endpoint().into_owned())];
    let rival = Nbdkit::new(bytes);
    match &rival {
        Ok(rival) => servers.push((nbdkit::NAME, rival.uri())),
        Err(e) => context.report.missing(SECTION, nbdkit::NAME, e),
    }
    let mut runs = vec![[Vec::new(), Vec::new()]; servers.len()];
    for _ in 0..rounds {
        for ((_, uri), runs) in servers.iter().zip(&mut runs) {
            for (pattern, runs) in ["write", "read"].into_iter().zip(runs) {
                runs.push(fio::measure(&Job {
                    target: fio::Target::Nbd(uri),
                    pattern,
                    block: REQUEST as u64,
                    depth: 4,
                    size: bytes,
                    ..fio::LIKE
                })?);
            }
        }
    }
    for ((name, _), runs) in servers.iter().zip(&runs) {
        for (case, runs) in ["write, fio nbd", "read, fio nbd"].into_iter().zip(runs) {
            let cpu: Vec<f64> = runs.iter().map(|r| r.cpu_percent).collect();
            context.report.row(Row {
                section: SECTION.into(),
                system: (*name).into(),
                case: case.into(),
                unit: "MiB/s",
                runs: runs.iter().map(|r| r.bytes_per_second / f64::from(1 << 20)).collect(),
                cpu_own_percent: Some(crate::report::median(&cpu)),
                ..Row::default()
            });
        }
    }
    Ok(())
}

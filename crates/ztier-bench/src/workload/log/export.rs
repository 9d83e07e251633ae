//! The source's job through the product as users have it: `ztier up` on files or devices, over NBD
//! and over FUSE with a loop device, compared with the log in process and with the drives alone.

use super::drives::{Drives, REAL_DIR, Source};
use super::own::{OwnLog, Synced, small_pools};
use super::{BLOCK, Plan};
use crate::data::{Kind, Pool};
use crate::report::{Report, Row, Target as Goal, median};
use crate::rival::fio::{self, Job, Target};
use crate::rival::ztier::Up;
use crate::sys::command::exists;
use std::path::Path;
use std::time::Duration;
use ztier::device::Device;
use ztier::error::{Error, Result};

const SECTION: &str = "export";

/// The paths to a drive, in the order in which they take turns.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    Backing,
    LogDrive,
    InProcess,
    Nbd,
    Fuse,
}

impl Way {
    const ALL: [Self; 5] = [Self::Backing, Self::LogDrive, Self::InProcess, Self::Nbd, Self::Fuse];

    fn name(self) -> &'static str {
        match self {
            Self::Backing => "backing store alone, fio",
            Self::LogDrive => "log's drive alone, fio",
            Self::InProcess => "ztier, in process",
            Self::Nbd => "ztier up, NBD, fio",
            Self::Fuse => "ztier up, FUSE and loop, fio",
        }
    }
}

/// The writes of a case.
#[derive(Clone, Copy)]
struct Load {
    case: &'static str,
    depth: u32,
    flush_after: u64,
    /// What the percentile measures.
    timed: &'static str,
    /// Part of the ratio's name.
    name: &'static str,
}

/// Name of the first load in process.
const IN_PROCESS: &str = "4 KiB random, two threads";

const LOADS: [Load; 2] = [
    Load {
        case: "4 KiB random, depth 64",
        depth: 64,
        flush_after: 0,
        timed: "write",
        name: "export",
    },
    Load {
        case: "4 KiB and flush, depth 1",
        depth: 1,
        flush_after: 1,
        timed: "flush",
        name: "export_synced",
    },
];

/// Rounds of one path.
#[derive(Default)]
struct Runs {
    mb: Vec<f64>,
    p999: Vec<f64>,
}

impl Plan<'_> {
    /// Measures all paths.
    pub(super) fn export(&self, report: &mut Report, quick: bool) -> Result<()> {
        if !exists("fio") {
            report.missing(SECTION, "all", "fio is not installed");
            return Ok(());
        }
        let made;
        let drives = if self.drives.log.path().and(self.drives.backing.path()).is_some() {
            self.drives
        } else {
            // A daemon takes no models.
            let dir = Path::new(REAL_DIR);
            let (log, backing) = if quick { (1 << 29, 1 << 29) } else { (4 << 30, 8 << 30) };
            made = Drives {
                log: Source::make(dir, "export-log", log)?,
                backing: Source::make(dir, "export-backing", backing)?,
            };
            &made
        };
        report.note(SECTION, "drives here", format!("{}, {}", drives.log, drives.backing));
        let mut pools = small_pools(self.data, 2)?;
        report.note(SECTION, "data", &pools[0]);
        let ways =
            Way::ALL.into_iter().filter(|way| match (way, ztier::export::fuse::available(true)) {
                (Way::Fuse, Err(reason)) => {
                    report.missing(SECTION, way.name(), reason);
                    false
                }
                _ => true,
            });
        let ways: Vec<Way> = ways.collect();
        for load in LOADS {
            let mut runs: Vec<Runs> = ways.iter().map(|_| Runs::default()).collect();
            for round in 0..self.rounds {
                for (way, runs) in ways.iter().zip(&mut runs) {
                    self.run_way(*way, load, drives, &mut pools, round, runs)?;
                }
            }
            state(report, load, &ways, &runs);
        }
        Ok(())
    }

    fn run_way(
        &self,
        way: Way,
        load: Load,
        drives: &Drives,
        pools: &mut [Pool],
        round: u32,
        runs: &mut Runs,
    ) -> Result<()> {
        let time = self.time.min(Duration::from_secs(8)) / 2;
        let (Some(log), Some(backing)) = (drives.log.path(), drives.backing.path()) else {
            return Err(Error::failure("an export needs files or devices"));
        };
        let size = drives.span()?;
        let fio = |target: Target<'_>, size: u64| {
            let (depth, flush_after) = (load.depth, load.flush_after);
            let job = Job {
                target,
                depth,
                size,
                time: Some(time),
                shrinks: self.data != Kind::Ratio(1.0),
                flush_after,
                ..fio::LIKE
            };
            fio::measure(&job).map(|reached| (reached.bytes_per_second / 1e6, reached.p999_ms))
        };
        let up = |export| {
            drives.log.clear()?;
            Up::with_log(log, backing, self.segment, export)
        };
        let (mb, p999) = match way {
            Way::Backing => fio(Target::Direct(backing), size)?,
            Way::LogDrive => {
                let size = drives.log.open(size)?.drive.size();
                fio(Target::Direct(log), size)?
            }
            Way::InProcess => in_process(load, drives, self.segment, time, pools, round)?,
            Way::Nbd => fio(Target::Nbd(&up("nbd")?.endpoint()), size)?,
            Way::Fuse => fio(Target::Direct(Path::new(&*up("fuse")?.endpoint())), size)?,
        };
        runs.mb.push(mb);
        if p999.is_finite() {
            runs.p999.push(p999);
        }
        Ok(())
    }
}

fn in_process(
    load: Load,
    drives: &Drives,
    segment: u32,
    time: Duration,
    pools: &mut [Pool],
    round: u32,
) -> Result<(f64, f64)> {
    let log = OwnLog::new(drives, u64::MAX, segment)?;
    if load.flush_after == 0 {
        return Ok((log.write(pools, time, round)?, f64::NAN));
    }
    let load = Synced { writers: 1, each: load.flush_after, span: log.volume.size(), time };
    let mut found = load.run(&log.device(), pools, round)?;
    Ok((found.blocks_per_second * BLOCK as f64 / 1e6, found.flushes.quantile_ms(0.999)))
}

fn state(report: &mut Report, load: Load, ways: &[Way], runs: &[Runs]) {
    let figure = |wanted: Way| {
        let found = ways.iter().zip(runs).find(|(way, _)| **way == wanted);
        found.map_or(f64::NAN, |(_, runs)| median(&runs.mb))
    };
    for (way, runs) in ways.iter().zip(runs) {
        let mut row = |case: String, unit: &'static str, runs: &[f64]| {
            report.row(Row {
                section: SECTION.into(),
                system: way.name().into(),
                case,
                unit,
                runs: runs.to_vec(),
                ..Row::default()
            });
        };
        // In process each thread has one request in flight.
        let two = *way == Way::InProcess && load.flush_after == 0;
        row(if two { IN_PROCESS } else { load.case }.into(), "MB/s", &runs.mb);
        if !runs.p999.is_empty() {
            row(format!("{}, {} 99.9 %", load.case, load.timed), "ms", &runs.p999);
        }
    }
    for (way, name) in
        [(Way::Nbd, "nbd"), (Way::Fuse, "fuse")].iter().filter(|w| ways.contains(&w.0))
    {
        for (other, than) in [(Way::InProcess, "in_process"), (Way::Backing, "backing")] {
            let ratio = figure(*way) / figure(other);
            report.ratio(&format!("{}_{name}_vs_{than}", load.name), ratio, Goal::None);
        }
    }
}

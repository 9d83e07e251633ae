//! The systems that take turns: file systems on slow disks, with ours between them or without, in a
//! memory of their own.
//!
//! Invariants: a system stays up from its first series to its last; the memory of its daemons
//! counts as that of the programs above them, and that of the disks does not; guards undo all of it
//! from top to bottom.

use super::disk::{Disk, Slow};
use crate::report::Report;
use crate::rival::Disk as _;
use crate::rival::ext4::Ext4;
use crate::rival::ztier::Up;
use crate::sys::dirty::Dirty;
use crate::workload::iozone::{Figure, Place, Series, in_child};
use crate::workload::log::Source;
use crate::workload::scan::limit::Limit;
use clap::ValueEnum;
use rustix::thread::CapabilitySet;
use std::path::PathBuf;
use std::time::Duration;
use ztier::error::{Context as _, Error, Result};
use ztier::log::Options;
use ztier::system::reclaim;

/// Longer than any series takes.
const SERIES_LIMIT: Duration = Duration::from_secs(3600);
/// Room on a disk beside the file: a journal and tables.
const ROOM: u64 = 128 << 20;

/// What is between the file system and the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// Nothing.
    Bare,
    /// A read cache.
    Cache,
    /// The same behind a log on a fast disk.
    Log,
}

impl System {
    /// As it is called in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "without ztier",
            Self::Cache => "with ztier",
            Self::Log => "with ztier and a log",
        }
    }
}

/// What a system is made with.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Memory of the machine, in bytes.
    pub memory: u64,
    /// The disks.
    pub slow: Slow,
    /// Bytes of each file.
    pub file: u64,
    /// Volumes, each on a disk of its own with a pool of its own.
    pub volumes: usize,
    /// On how many of them tests run, at the same time.
    pub busy: usize,
    /// The limit of a pool, in percent of the memory.
    pub percent: u32,
    /// Where logs are.
    pub dir: PathBuf,
}

impl Shape {
    /// What of the memory a kernel leaves to programs and files, in bytes. In a virtual machine of
    /// 1024 MiB, Linux 6.12 with no more than a shell says after its start that 849 are available.
    pub fn group(&self) -> u64 {
        self.memory / 1024 * 849
    }

    /// The limit of a pool, in bytes.
    fn pool(&self) -> u64 {
        self.memory / 100 * u64::from(self.percent)
    }

    /// The size of a log, in bytes: enough for all that a series writes, so that what is measured
    /// is not its writeback.
    fn log(&self) -> u64 {
        2 * self.file
    }

    /// The most memory that a volume at work takes beyond what its daemon has when it is up, in
    /// bytes: its pool, and what is not durable yet in a log (an eighth of a small one). One that
    /// nothing happens on takes none.
    fn more(&self, system: System) -> u64 {
        match system {
            System::Bare => 0,
            System::Cache => self.pool(),
            System::Log => self.pool() + Options::default().memory.min(self.log() / 8),
        }
    }
}

/// Whether daemons may be in the group whose writes they serve. Without the capability to say what
/// they are, they could wait there for their own devices; then they are outside, and what each has
/// when it is up, and the most that those at work take later, is taken off the group's limit.
pub fn serves_inside() -> bool {
    reclaim::has(CapabilitySet::SYS_RESOURCE)
}

/// What a volume's cache said after a series.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pool {
    /// Its limit, in bytes.
    pub limit: f64,
    /// Bytes of blocks that it held.
    pub holds: f64,
    /// Memory that they took, in bytes.
    pub used: f64,
}

/// A system that is up. What is above goes first.
pub struct Machine {
    /// Which.
    pub system: System,
    lanes: Vec<Lane>,
    busy: usize,
    group: Limit,
}

struct Lane {
    fs: Ext4,
    _dirty: Dirty,
    up: Option<Up>,
    log: Option<Source>,
    disk: Disk,
}

impl Lane {
    fn new(system: System, shape: &Shape, number: usize, group: &Limit) -> Result<Self> {
        let size = (shape.file + ROOM).next_multiple_of(1 << 20);
        let disk = Disk::new(&shape.slow, size, number, number < shape.busy)?;
        let name = format!("log{number}");
        let log = match system {
            System::Log => Some(Source::make(&shape.dir, &name, shape.log())?),
            _ => None,
        };
        let up = match system {
            System::Bare => None,
            _ => {
                let log = log.as_ref().and_then(Source::path);
                let join = serves_inside().then(|| group.join());
                Some(Up::cached(disk.path(), &shape.pool().to_string(), log, join.as_deref())?)
            }
        };
        let device = up.as_ref().map_or(disk.path(), |up| up.path());
        let dirty = Dirty::limited(device, shape.group())?;
        let fs = Ext4::new(device)?;
        Ok(Self { fs, _dirty: dirty, up, log, disk })
    }

    fn pool(&self) -> Result<Option<Pool>> {
        let Some(up) = &self.up else { return Ok(None) };
        let status = up.status()?;
        let cache = &status["stats"]["cache"];
        let field = |name: &str| {
            let missing = || Error::failure(format!("`ztier status --json` lacks {name}"));
            cache[name].as_f64().ok_or_else(missing)
        };
        let (limit, used) = (field("limit_bytes")?, field("used_bytes")?);
        Ok(Some(Pool { limit, holds: field("original_bytes")?, used }))
    }
}

impl Machine {
    /// Brings one up, with a file system on each volume.
    ///
    /// # Errors
    /// What this machine lacks for it.
    pub fn up(system: System, shape: &Shape) -> Result<Self> {
        let group = Limit::new(shape.group())?;
        // Disks that nothing happens on cost the system without ours nothing.
        let volumes = if system == System::Bare { shape.busy } else { shape.volumes };
        let lanes = (0..volumes).map(|n| Lane::new(system, shape, n, &group));
        let lanes = lanes.collect::<Result<Vec<_>>>()?;
        if !serves_inside() {
            let daemons = lanes.iter().filter_map(|lane| lane.up.as_ref());
            let idle = daemons.map(Up::memory).sum::<Result<u64>>()?;
            let taken = idle + shape.busy as u64 * shape.more(system);
            group.set(shape.group().saturating_sub(taken))?;
        }
        Ok(Self { system, lanes, busy: shape.busy, group })
    }

    /// States what it consists of.
    pub fn describe(&self, report: &mut Report, section: &str) {
        let Some(lane) = self.lanes.first() else { return };
        let mut about = lane.disk.about();
        if let Some(up) = &lane.up {
            about = format!("{} over {about}; {} volumes", up.about(), self.lanes.len());
        }
        if let Some(log) = &lane.log {
            about += &format!("; log {log}, so large that nothing is written back in the time");
        }
        report.note(section, self.system.name(), about);
    }

    /// Runs a series on each busy volume, all at the same time.
    ///
    /// # Errors
    /// An I/O error; wrong data; no memory.
    pub fn series(&self, series: Series) -> Result<Vec<[Figure; 9]>> {
        let one = |lane: &Lane| {
            let place = Place {
                dir: lane.fs.path().into(),
                join: Some(self.group.join()),
                disk: Some(lane.disk.path().into()),
            };
            in_child(&place, series, SERIES_LIMIT)?.nine()
        };
        let all: Result<Vec<_>> = std::thread::scope(|scope| {
            let threads: Vec<_> =
                self.lanes[..self.busy].iter().map(|lane| scope.spawn(move || one(lane))).collect();
            let panicked = |_| Err(Error::failure("a thread of the benchmark panicked"));
            threads.into_iter().map(|thread| thread.join().unwrap_or_else(panicked)).collect()
        });
        let killed = self.group.killed();
        all.context(format!(
            "{}, {series}, {killed} processes killed for want of memory",
            self.system.name()
        ))
    }

    /// What the cache of the first volume holds; `None` without one.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn pool(&self) -> Result<Option<Pool>> {
        self.lanes.first().map_or(Ok(None), Lane::pool)
    }
}

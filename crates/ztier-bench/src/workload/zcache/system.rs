//! The systems that take turns: file systems on slow disks, with ztier between them or without,
//! each in a limited memory.
//!
//! Invariants: a system stays up from its first series to its last; the memory of its daemons
//! counts as that of the programs above them, and that of the disks does not; guards undo
//! everything from top to bottom.

use super::disk::{Disk, Slow};
use crate::report::Report;
use crate::rival::Disk as _;
use crate::rival::ext4::Ext4;
use crate::rival::ztier::Up;
use crate::sys::dirty::Dirty;
use crate::sys::interrupt;
use crate::workload::iozone::{Figure, Place, Series, in_child};
use crate::workload::log::Source;
use crate::workload::scan::limit::Limit;
use clap::ValueEnum;
use rustix::thread::CapabilitySet;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use ztier::error::{Context as _, Error, Result};
use ztier::log::Options;
use ztier::system::reclaim;

/// Limit on the time of a series.
const SERIES_LIMIT: Duration = Duration::from_secs(3600);
/// Room on a disk in addition to the file: a journal and tables.
const ROOM: u64 = 128 << 20;

/// What is between the file system and the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum System {
    /// Nothing.
    Bare,
    /// A read cache.
    Cache,
    /// A read cache that has what the page cache has dropped.
    Exclusive,
    /// A read cache behind a log on a fast disk.
    Log,
}

impl System {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Bare => "without ztier",
            Self::Cache => "with ztier",
            Self::Exclusive => "with ztier, exclusive",
            Self::Log => "with ztier and a log",
        }
    }
}

/// The parameters of a system.
#[derive(Clone, Debug)]
pub struct Shape {
    /// Memory of the machine, in bytes.
    pub memory: u64,
    /// The disks.
    pub slow: Slow,
    /// Bytes of each file.
    pub file: u64,
    /// Number of volumes, each on its own disk with its own pool.
    pub volumes: usize,
    /// Number of volumes on which tests run at the same time.
    pub busy: usize,
    /// The limit of a pool, in percent of the memory.
    pub percent: u32,
    /// Directory of the logs.
    pub dir: PathBuf,
}

impl Shape {
    /// Bytes of the memory that a kernel leaves to programs and files. In a virtual machine of 1024
    /// MiB, Linux 6.12 with only a shell reports 849 available after its start.
    pub fn group(&self) -> u64 {
        self.memory / 1024 * 849
    }

    /// The limit of a pool, in bytes.
    fn pool(&self) -> u64 {
        self.memory / 100 * u64::from(self.percent)
    }

    /// The size of a log, in bytes: enough for all writes of a series, so that its writeback is not
    /// measured.
    fn log(&self) -> u64 {
        2 * self.file
    }

    /// Upper bound in bytes on the memory that a busy volume takes beyond its daemon's memory after
    /// the start: its pool, and the data of a log that is not durable yet (an eighth of a small
    /// log). An idle volume takes none.
    fn more(&self, system: System) -> u64 {
        match system {
            System::Bare => 0,
            System::Cache | System::Exclusive => self.pool(),
            System::Log => self.pool() + Options::default().memory.min(self.log() / 8),
        }
    }
}

/// Whether daemons may be in the group whose writes they serve. Without the capability to declare
/// themselves as such, they could wait there for their own devices. Then they stay outside, and the
/// group's limit is reduced by the memory of each after its start, and by the maximum that the busy
/// ones take later.
pub fn serves_inside() -> bool {
    reclaim::has(CapabilitySet::SYS_RESOURCE)
}

/// Statistics of a volume's cache after a series.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pool {
    /// Its limit, in bytes.
    pub limit: f64,
    /// Bytes of cached blocks.
    pub holds: f64,
    /// Bytes of memory that they took.
    pub used: f64,
    /// Pages that the page cache dropped, those that were not copied, those that were kept, and
    /// copies that went back.
    pub pages: [f64; 4],
}

/// A running system. Upper parts are dropped first.
pub struct Machine {
    /// The kind of system.
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
                let (pool, exclusive) = (shape.pool().to_string(), system == System::Exclusive);
                Some(Up::cached(disk.path(), &pool, log, exclusive, join.as_deref())?)
            }
        };
        if let Some(up) = up.as_ref().filter(|_| system == System::Exclusive) {
            wait_until_exclusive(up)?;
        }
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
        let [dropped, lost] = [field("seen_pages")?, field("lost_pages")?];
        let pages = [dropped, lost, field("dropped_pages")?, field("given_blocks")?];
        Ok(Some(Pool { limit, holds: field("original_bytes")?, used, pages }))
    }
}

/// Waits until the cache of a volume has what the page cache drops.
fn wait_until_exclusive(up: &Up) -> Result<()> {
    let end = Instant::now() + Duration::from_secs(20);
    while Instant::now() < end {
        let status = up.status()?;
        if let Some(why) = status["stats"]["not_exclusive"].as_str() {
            return Err(Error::failure(format!("no exclusive cache: {why}")));
        }
        if status["stats"]["cache"]["exclusive"] == true {
            return Ok(());
        }
        interrupt::sleep(Duration::from_millis(50))?;
    }
    Err(Error::failure("the cache does not become exclusive"))
}

impl Machine {
    /// Brings a system up, with a file system on each volume.
    ///
    /// # Errors
    /// A prerequisite that this machine lacks.
    pub fn up(system: System, shape: &Shape) -> Result<Self> {
        let group = Limit::new(shape.group())?;
        // Idle disks cost the system without ztier nothing.
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

    /// Reports its parts.
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
        let one = |lane| in_child(&self.place_of(lane), series, SERIES_LIMIT)?.nine();
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

    fn place_of(&self, lane: &Lane) -> Place {
        Place {
            dir: lane.fs.path().into(),
            join: Some(self.group.join()),
            disk: Some(lane.disk.path().into()),
        }
    }

    /// The first volume.
    ///
    /// # Errors
    /// There is none.
    pub fn place(&self) -> Result<Place> {
        let first = self.lanes.first().map(|lane| self.place_of(lane));
        first.ok_or_else(|| Error::failure("no volume"))
    }

    /// Statistics of the first volume's cache; `None` without one.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn pool(&self) -> Result<Option<Pool>> {
        self.lanes.first().map_or(Ok(None), Lane::pool)
    }
}

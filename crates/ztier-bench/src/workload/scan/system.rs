//! The systems that take turns: each has a device to swap on, and a description.
//!
//! Invariant: a system stays up from its first run to its last, and only one is used as swap at a
//! time; so each ages as a machine's own would, and none helps another.

use super::swap;
use crate::model::{Kind, ModelDrive, Name};
use crate::report::say;
use crate::rival::Disk;
use crate::rival::raw::RawDevice;
use crate::rival::served::{QUEUE, Served};
use crate::rival::zram::{self, Zram};
use crate::rival::zswap::{self, Zswap};
use crate::rival::ztier::{self, Up};
use crate::sys::usage::Usage;
use crate::workload::log::{Source, Spec};
use ::ztier::error::{Context as _, Error, Result};
use clap::ValueEnum;
use clap::builder::PossibleValue;
use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// Memory that must stay free while this process serves swap.
const ROOM: u64 = 2 << 30;

/// A modelled drive that is slow, in real time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Slow {
    /// `sim:hdd-7200`.
    Hdd,
    /// `sim:emmc-5.1`.
    Emmc,
    /// `sim:sd-a1`.
    Sd,
}

impl Slow {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Hdd, Self::Emmc, Self::Sd];

    fn kind(self) -> Kind {
        match self {
            Self::Hdd => Kind::Hdd7200,
            Self::Emmc => Kind::Emmc51,
            Self::Sd => Kind::SdA1,
        }
    }

    /// The end of the names of ratios: none for the disk, which was the first.
    pub fn suffix(self) -> &'static str {
        match self {
            Self::Hdd => "",
            Self::Emmc => "_emmc_5_1",
            Self::Sd => "_sd_a1",
        }
    }
}

/// The system that takes the pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum System {
    /// Ours, by `ztier up … --export auto`, all in memory.
    Ztier,
    /// Kernel zram with lz4.
    ZramLz4,
    /// Kernel zram with the algorithm that it takes by itself.
    Zram,
    /// Zswap before the disk.
    Zswap,
    /// The disk.
    Disk,
    /// Ours, with half of the memory that the data would take, and the rest spilled to the disk.
    Spill,
    /// Disk swap on a modelled drive, on a smaller scan.
    ModelledDisk(Slow),
    /// As `spill`, to a modelled drive, on the smaller scan.
    ModelledSpill(Slow),
}

impl ValueEnum for System {
    fn value_variants<'a>() -> &'a [Self] {
        const ALL: &[System] = &[
            System::Ztier,
            System::ZramLz4,
            System::Zram,
            System::Zswap,
            System::Disk,
            System::Spill,
            System::ModelledDisk(Slow::Hdd),
            System::ModelledSpill(Slow::Hdd),
            System::ModelledDisk(Slow::Emmc),
            System::ModelledSpill(Slow::Emmc),
            System::ModelledDisk(Slow::Sd),
            System::ModelledSpill(Slow::Sd),
        ];
        ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let (name, help) = match self {
            Self::Ztier => ("ztier", "Ours, all in memory"),
            Self::ZramLz4 => ("zram-lz4", "Kernel zram with lz4"),
            Self::Zram => ("zram", "Kernel zram with the algorithm that it takes by itself"),
            Self::Zswap => ("zswap", "Zswap before the disk"),
            Self::Disk => ("disk", "The disk"),
            Self::Spill => ("spill", "Ours, with half in memory, the rest spilled to the disk"),
            Self::ModelledDisk(Slow::Hdd) => ("modelled-disk", "sim:hdd-7200, on a smaller scan"),
            Self::ModelledDisk(Slow::Emmc) => ("modelled-emmc", "sim:emmc-5.1, on that scan"),
            Self::ModelledDisk(Slow::Sd) => ("modelled-sd", "sim:sd-a1, on that scan"),
            Self::ModelledSpill(Slow::Hdd) => ("modelled-spill", "As spill, to sim:hdd-7200"),
            Self::ModelledSpill(Slow::Emmc) => ("modelled-spill-emmc", "As spill, to sim:emmc-5.1"),
            Self::ModelledSpill(Slow::Sd) => ("modelled-spill-sd", "As spill, to sim:sd-a1"),
        };
        Some(PossibleValue::new(name).help(help))
    }
}

impl System {
    /// Name in reports.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ztier => "ztier",
            Self::ZramLz4 => zram::NAME,
            Self::Zram => zram::DEFAULT_NAME,
            Self::Zswap => zswap::NAME,
            Self::Disk => "disk swap",
            Self::Spill => "ztier, half spilled",
            Self::ModelledDisk(Slow::Hdd) => "disk swap on sim:hdd-7200",
            Self::ModelledDisk(Slow::Emmc) => "disk swap on sim:emmc-5.1",
            Self::ModelledDisk(Slow::Sd) => "disk swap on sim:sd-a1",
            Self::ModelledSpill(Slow::Hdd) => "half spilled to sim:hdd",
            Self::ModelledSpill(Slow::Emmc) => "half spilled to sim:emmc",
            Self::ModelledSpill(Slow::Sd) => "half spilled to sim:sd",
        }
    }

    /// Whether no page goes to a disk.
    pub fn stays_in_memory(self) -> bool {
        matches!(self, Self::Ztier | Self::ZramLz4 | Self::Zram)
    }

    /// Whether pages go to a modelled drive.
    pub fn is_modelled(self) -> bool {
        matches!(self, Self::ModelledDisk(_) | Self::ModelledSpill(_))
    }

    /// Whether a run has it without `--only`. A quick run has one modelled drive, because each
    /// takes a quarter of a minute.
    pub fn is_default(self, quick: bool) -> bool {
        let further = matches!(
            self,
            Self::ModelledDisk(Slow::Emmc | Slow::Sd) | Self::ModelledSpill(Slow::Emmc | Slow::Sd)
        );
        !(quick && further)
    }
}

/// The place of disk swap.
#[derive(Clone, Debug)]
pub enum Place {
    /// A file that is made in this directory.
    Directory(PathBuf),
    /// Block devices that hold nothing.
    Devices(Vec<PathBuf>),
}

impl Place {
    /// A file or device for one of the systems that need any, separate for each.
    fn source(&self, system: System, bytes: u64) -> Result<Source> {
        let takers = [System::Disk, System::Zswap, System::Spill];
        let number = takers.iter().position(|taker| *taker == system).unwrap_or(0);
        match self {
            Self::Devices(paths) => {
                let path = paths.get(number).ok_or_else(|| {
                    let given = paths.len();
                    Error::failure(format!("no device is left of the {given} of --disk"))
                        .hint("give one more, or a directory")
                })?;
                Source::new(Spec::Path(path.clone()))
            }
            Self::Directory(dir) => {
                let source = Source::make(dir, ["swap", "zswap", "spill"][number], bytes)?;
                if let Some(path) = source.path() {
                    let only_root = std::fs::Permissions::from_mode(0o600);
                    std::fs::set_permissions(path, only_root).context("cannot protect a file")?;
                }
                Ok(source)
            }
        }
    }
}

/// A running system. The server of the pages is dropped before what is below it.
pub struct Contender {
    behind: Behind,
    device: PathBuf,
}

enum Behind {
    Ztier(Up),
    /// ztier with a spill device.
    Spill(Up, Below),
    Zram(Zram),
    Disk(Source),
    /// With its limit and its description.
    Zswap(Source, Option<u32>, String),
    Modelled(Served),
}

/// The spill device of ztier.
enum Below {
    Drive(Source),
    Modelled(Box<Served>, Slow),
}

impl Below {
    fn path(&self) -> Result<&Path> {
        match self {
            Self::Drive(source) => {
                source.path().ok_or_else(|| Error::failure("spilling needs a file or a device"))
            }
            Self::Modelled(served, _) => Ok(served.path()),
        }
    }
}

/// Options of some systems.
#[derive(Clone, Copy, Debug, Default)]
pub struct More {
    /// The memory limit of [`System::Spill`].
    pub limit: Option<u64>,
    /// Percent of the machine's memory for [`System::Zswap`].
    pub zswap_percent: Option<u32>,
}

/// The counters of ztier that the table needs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counters {
    /// Maximum memory.
    pub memory_max: u64,
    /// Bytes written to the volume.
    pub asked: u64,
    /// Bytes written to the spill device.
    pub spill_written: u64,
    /// Number of read requests; their 50th and 99th percentile, from the arrival in the daemon to
    /// the end.
    pub reads: u64,
    /// See `reads`.
    pub read_p50_ns: f64,
    /// See `reads`.
    pub read_p99_ns: f64,
}

impl Contender {
    /// Brings a system up with swap space of `size` bytes.
    ///
    /// # Errors
    /// A prerequisite that this machine lacks.
    pub fn up(system: System, size: u64, place: &Place, more: More) -> Result<Self> {
        let behind = match system {
            System::Ztier => Behind::Ztier(Up::for_swap(size, None, None)?),
            System::ZramLz4 => Behind::Zram(Zram::new(size)?),
            System::Zram => Behind::Zram(Zram::with_default(size)?),
            System::Zswap => {
                // Only a trial: zswap is on while the system is used as swap.
                let tried = Zswap::new(more.zswap_percent)?;
                let about = Zswap::about();
                drop(tried);
                zswap::memory()?;
                Behind::Zswap(place.source(system, size)?, more.zswap_percent, about)
            }
            System::Disk => Behind::Disk(place.source(system, size)?),
            System::Spill => spilling(size, Below::Drive(place.source(system, size)?), more.limit)?,
            System::ModelledDisk(slow) => Behind::Modelled(modelled(slow, size)?),
            System::ModelledSpill(slow) => {
                let served = Box::new(modelled(slow, size)?);
                spilling(size, Below::Modelled(served, slow), more.limit)?
            }
        };
        let path = match &behind {
            Behind::Ztier(up) | Behind::Spill(up, _) => up.path(),
            Behind::Zram(zram) => zram.path(),
            Behind::Disk(source) | Behind::Zswap(source, ..) => {
                source.path().ok_or_else(|| Error::failure("disk swap needs a file or a device"))?
            }
            Behind::Modelled(served) => served.path(),
        };
        let contender = Self { device: path.to_owned(), behind };
        if contender.own().is_none() {
            swap::make(&contender.device)?;
        }
        Ok(contender)
    }

    /// Turns swap on. The parts of the result are dropped in order.
    ///
    /// # Errors
    /// The error of the system.
    pub fn on(&self) -> Result<On> {
        let zswap = match self.behind {
            Behind::Zswap(_, percent, _) => Some(Zswap::new(percent)?),
            _ => None,
        };
        let swap = match self.own() {
            Some(up) => {
                let end = Box::new(up.swapoff(swap::OFF));
                swap::SwapOn::by(&self.device, || up.swapon(swap::PRIORITY), end)?
            }
            None => swap::SwapOn::new(&self.device)?,
        };
        Ok(On { swap, _zswap: zswap })
    }

    /// The volume, for ztier.
    fn own(&self) -> Option<&Up> {
        match &self.behind {
            Behind::Ztier(up) | Behind::Spill(up, _) => Some(up),
            _ => None,
        }
    }

    /// The swap device.
    pub fn device(&self) -> &Path {
        &self.device
    }

    /// The description for reports.
    pub fn about(&self) -> String {
        match &self.behind {
            Behind::Ztier(up) => up.about(),
            Behind::Spill(up, Below::Drive(source)) => {
                format!("{}, spilling to {source}", up.about())
            }
            Behind::Spill(up, Below::Modelled(_, slow)) => {
                format!("{}, spilling to {}", up.about(), Name::from(slow.kind()))
            }
            Behind::Zram(zram) => zram.about(),
            Behind::Disk(source) => source.to_string(),
            Behind::Zswap(source, _, about) => format!("{about}, before {source}"),
            Behind::Modelled(_) => {
                let device = self.device.display();
                format!("{device}: FUSE and a loop device, {QUEUE} requests under way at most")
            }
        }
    }

    /// Present memory of the compressed pages, where that is cheap to read.
    pub fn memory(&self) -> Option<u64> {
        match &self.behind {
            Behind::Zram(zram) => Some(zram.mm_stat().ok()?.mem_used_total + zram.table_bytes()),
            Behind::Zswap(..) => zswap::memory().ok(),
            Behind::Ztier(up) | Behind::Spill(up, _) => up.all_memory().ok(),
            _ => None,
        }
    }

    /// Maximum memory of the compressed pages, where it is counted; for ztier, without what its
    /// processes have beside the volume.
    pub fn memory_max(&self) -> Option<u64> {
        match &self.behind {
            Behind::Zram(zram) => Some(zram.mm_stat().ok()?.mem_used_max + zram.table_bytes()),
            Behind::Ztier(_) | Behind::Spill(..) => Some(self.counters().ok()??.memory_max),
            Behind::Disk(_) | Behind::Modelled(_) => Some(0),
            Behind::Zswap(..) => None,
        }
    }

    /// The counters of ztier; `None` for others.
    ///
    /// # Errors
    /// The daemon does not answer.
    pub fn counters(&self) -> Result<Option<Counters>> {
        let Some(up) = self.own() else { return Ok(None) };
        let missing = || Error::failure("`ztier status --json` lacks what is counted");
        Ok(Some(counters(&up.status()?).ok_or_else(missing)?))
    }

    /// CPU time of the process that serves the pages; `None` where the kernel serves them.
    ///
    /// # Errors
    /// The process is gone.
    pub fn serving(&self) -> Result<Option<Duration>> {
        match &self.behind {
            Behind::Ztier(up) | Behind::Spill(up, _) => {
                let status = up.status()?;
                let pid = status["pid"].as_u64().and_then(|pid| u32::try_from(pid).ok());
                let pid = pid.ok_or_else(|| Error::failure("`ztier status --json` has no pid"))?;
                Ok(Some(Usage::of(pid)?.cpu()))
            }
            Behind::Modelled(_) => Ok(Some(Usage::of(std::process::id())?.cpu())),
            _ => Ok(None),
        }
    }

    /// Bytes written to a disk while the kernel wrote `swapped` bytes to the device and ztier's
    /// counters rose by `counters`.
    pub fn written(&self, swapped: u64, counters: Option<Counters>) -> u64 {
        match self.behind {
            Behind::Disk(_) | Behind::Zswap(..) | Behind::Modelled(_) => swapped,
            Behind::Spill(..) => counters.map_or(0, |counters| counters.spill_written),
            Behind::Ztier(_) | Behind::Zram(_) => 0,
        }
    }
}

/// Active swap, and zswap in front of it. Dropped in order: turning swap off empties zswap.
pub struct On {
    /// The swap of the device.
    pub swap: swap::SwapOn,
    _zswap: Option<Zswap>,
}

fn spilling(size: u64, below: Below, limit: Option<u64>) -> Result<Behind> {
    if !ztier::takes("--spill")? {
        return Err(Error::failure("this `ztier up` has no --spill"));
    }
    let limit = limit.ok_or_else(|| {
        Error::failure("how much memory half of the data takes is not known without `ztier`")
    })?;
    say(&format!("spilling above {} KiB of memory", limit >> 10));
    let up = Up::for_swap(size, Some(&limit.to_string()), Some(below.path()?))?;
    Ok(Behind::Spill(up, below))
}

/// The beginning of a modelled drive, served by this process.
fn modelled(slow: Slow, size: u64) -> Result<Served> {
    let available = crate::report::available_bytes();
    if available < 4 * size + ROOM {
        let free = available >> 20;
        return Err(Error::failure(format!(
            "{free} MiB of memory are too few for a drive that is kept in memory, below swap"
        )));
    }
    let drive = ModelDrive::real_time(Name { kind: slow.kind(), size });
    drive.reserve(size);
    let device = Arc::new(RawDevice(Arc::new(drive)));
    // The serving threads should not wait for the memory that they serve, if this process may
    // request that; they inherit the setting from the thread that starts them. This must not be the
    // thread that later starts the load, which has to wait. The memory required above keeps the
    // threads from waiting in any case.
    let serve = || {
        let _ = rustix::process::configure_io_flusher_behavior(true);
        Served::by(device, "modelled", QUEUE)
    };
    std::thread::scope(|scope| scope.spawn(serve).join())
        .unwrap_or_else(|_| Err(Error::failure("a thread of the benchmark panicked")))
}

fn counters(status: &Value) -> Option<Counters> {
    let stats = &status["stats"];
    let (waiting, serving) = (&stats["read"]["waiting"], &stats["read"]["serving"]);
    // Upper bound: of a sum only the sums of both quantiles are known.
    let ns = |quantile: &str| Some(waiting[quantile].as_f64()? + serving[quantile].as_f64()?);
    Some(Counters {
        memory_max: stats["mem_used_max_bytes"].as_u64()?,
        asked: stats["write"]["bytes"].as_u64()?,
        // Only volumes with a spill device have it.
        spill_written: stats["spill_written_bytes"].as_u64().unwrap_or(0),
        reads: serving["count"].as_u64()?,
        read_p50_ns: ns("p50_ns")?,
        read_p99_ns: ns("p99_ns")?,
    })
}

impl Counters {
    /// The counts since `before`; values that are no sums stay.
    pub fn since(self, before: Self) -> Self {
        Self {
            asked: self.asked - before.asked,
            spill_written: self.spill_written - before.spill_written,
            reads: self.reads - before.reads,
            ..self
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use ::ztier::stats::Stats;

    #[test]
    fn each_modelled_drive_has_disk_swap_and_a_spill_of_its_own_names() {
        let parsed = |name: &str| System::from_str(name, false).unwrap();
        let disks = ["modelled-disk", "modelled-emmc", "modelled-sd"];
        let spills = ["modelled-spill", "modelled-spill-emmc", "modelled-spill-sd"];
        for (slow, (disk, spill)) in Slow::ALL.into_iter().zip(disks.into_iter().zip(spills)) {
            assert_eq!(parsed(disk), System::ModelledDisk(slow));
            assert_eq!(parsed(spill), System::ModelledSpill(slow));
            let drive = Name::from(slow.kind()).to_string();
            assert_eq!(parsed(disk).name(), format!("disk swap on {drive}"));
            assert!(parsed(disk).is_default(false) && parsed(spill).is_default(false));
            assert_eq!(parsed(disk).is_default(true), slow == Slow::Hdd);
        }
        let names: std::collections::HashSet<&str> =
            System::value_variants().iter().map(|system| system.name()).collect();
        assert_eq!(names.len(), System::value_variants().len());
    }

    #[test]
    fn counters_are_those_that_the_product_prints() {
        let mut stats = Stats { mem_used_max_bytes: 7, ..Stats::default() };
        stats.write.bytes = 8;
        stats.read.serving.p50_ns = 9;
        stats.read.serving.p99_ns = 10;
        stats.read.waiting.p99_ns = 4;
        let status = serde_json::json!({ "pid": 1, "stats": stats });
        let found = counters(&status).unwrap();
        assert_eq!((found.memory_max, found.asked, found.spill_written), (7, 8, 0));
        assert!((found.read_p99_ns - found.read_p50_ns - 5.0).abs() < 1e-9);
        assert_eq!(counters(&serde_json::json!({ "stats": {} })), None);
        let later = Counters { asked: 12, memory_max: 9, ..found };
        assert_eq!((later.since(found).asked, later.since(found).memory_max), (4, 9));
    }
}

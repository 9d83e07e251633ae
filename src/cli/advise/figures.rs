//! What was seen of a machine: the figures on which advice rests.
//!
//! Invariants: plain data; rates are per second of the time watched, shares are 0 to 1. What the
//! kernel does not tell is `None`.

use serde::Serialize;
use std::path::PathBuf;

/// All that was seen.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Figures {
    /// Seconds between the two looks at counters.
    pub seconds: f64,
    pub memory: Memory,
    pub pressure: Pressure,
    pub paging: Paging,
    pub swaps: Vec<Swap>,
    /// Whether zswap is enabled.
    pub zswap: bool,
    /// Whether the kernel has zram, as a module or built in.
    pub zram: bool,
    pub disks: Vec<Disk>,
    /// Mount points of file systems from servers.
    pub network: Vec<PathBuf>,
    /// What programs have in memory.
    pub of_memory: Compression,
    /// What files have; of the paths that were named.
    pub of_files: Compression,
    /// What was named to be put on a RAM disk, if anything was.
    pub named: Option<Named>,
}

/// Bytes, from `/proc/meminfo`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Memory {
    pub total_bytes: u64,
    pub available_bytes: u64,
    /// Pages of programs that are no files.
    pub anonymous_bytes: u64,
    /// Pages of files, which can be dropped.
    pub file_bytes: u64,
    /// tmpfs and shared memory.
    pub shared_bytes: u64,
}

/// The part of the time in which tasks waited; `None` without `/proc/pressure`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Pressure {
    pub memory: Option<f64>,
    pub io: Option<f64>,
    pub cpu: Option<f64>,
}

/// Pages per second, from `/proc/vmstat`.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Paging {
    pub swapped_in: f64,
    pub swapped_out: f64,
    /// Pages of files that were read again after the kernel had dropped them.
    pub refaults_file: Option<f64>,
    /// Pages of programs that were swapped in soon after they were swapped out.
    pub refaults_anon: Option<f64>,
    /// Pages that the kernel looked at because memory was short.
    pub scanned: Option<f64>,
}

/// A swap area.
#[derive(Clone, Debug, Serialize)]
pub struct Swap {
    pub path: PathBuf,
    pub kind: SwapKind,
    pub size_bytes: u64,
    pub used_bytes: u64,
}

/// Where a swap area is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum SwapKind {
    Zram,
    Ztier,
    Partition,
    File,
}

/// How data compresses with LZ4, records and index included.
#[derive(Clone, Copy, Debug, Serialize)]
pub struct Compression {
    pub from: From,
    pub ratio: f64,
    /// The range in which the ratio is, 95 times of 100.
    pub low: f64,
    pub high: f64,
}

/// Where a ratio is from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum From {
    /// A sample of the paths.
    Paths,
    /// A sample of pages of programs.
    Programs,
    /// Nothing was sampled.
    Assumed,
}

/// The ratio where nothing was sampled: less than most data has.
pub const ASSUMED: f64 = 2.0;

impl Default for Compression {
    fn default() -> Self {
        Self { from: From::Assumed, ratio: ASSUMED, low: ASSUMED, high: ASSUMED }
    }
}

/// A disk with nothing below it that is a disk, too.
#[derive(Clone, Debug, Default, Serialize)]
pub struct Disk {
    /// As in `/proc/diskstats`: `sda`.
    pub name: String,
    pub kind: DiskKind,
    pub reads: Requests,
    pub writes: Requests,
    pub flushes: Requests,
    /// The part of the time in which a request was under way.
    pub busy: f64,
    /// The device with a mounted file system that was used most: this disk, a partition, or a
    /// device above them.
    pub target: Option<Target>,
}

/// A device with a mounted file system.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Target {
    /// Its node: `/dev/sda1`.
    pub device: PathBuf,
    /// One of its mount points.
    pub point: PathBuf,
    /// Bytes that its file system could still take.
    pub free_bytes: u64,
}

/// Requests per second, the bytes in one, and how long one took.
#[derive(Clone, Copy, Debug, Default, Serialize)]
pub struct Requests {
    /// Requests in the time watched.
    pub count: u64,
    pub per_second: f64,
    pub mean_bytes: f64,
    /// Milliseconds from issue to end, on average.
    pub mean_ms: f64,
    /// Neighbours that the kernel joined to a request, on average.
    pub merged: f64,
}

/// What a disk is, by name and by `queue/rotational`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum DiskKind {
    Platters,
    Nvme,
    /// SATA, SAS or USB without platters.
    Flash,
    /// An SD card or eMMC.
    Card,
    /// Of a hypervisor: anything may be below it.
    Virtual,
    /// Behind a network, or a loop device above a server's file.
    Network,
    #[default]
    Other,
}

impl DiskKind {
    pub fn name(self) -> &'static str {
        match self {
            Self::Platters => "with platters",
            Self::Nvme => "NVMe",
            Self::Flash => "SSD",
            Self::Card => "card",
            Self::Virtual => "virtual",
            Self::Network => "network",
            Self::Other => "of a kind not known",
        }
    }

    /// Whether a log may be on it: small writes in order wear it little and cost little.
    pub fn is_for_logs(self) -> bool {
        matches!(self, Self::Nvme | Self::Flash | Self::Virtual)
    }
}

/// Paths that were named.
#[derive(Clone, Debug, Serialize)]
pub struct Named {
    pub data_bytes: u64,
    /// Whether that is all; else there is more.
    pub complete: bool,
    /// The disk below the first path, if it is one of the list.
    pub disk: Option<String>,
}

//! The inputs of a decision, and the report about it.

use super::reason::Reason;
use crate::BLOCK_SIZE;
use crate::config::Bounds;
use crate::stats::CacheStats;
use serde::{Deserialize, Serialize};

/// What becomes of data that a volume's memory has no room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// There is no other place for it: writes fail.
    Sole,
    /// Like `Sole`, for pages that the machine has swapped out.
    SoleSwap,
    /// It goes down to another device, and can come back.
    Spills,
    /// Like `Spills`, for pages that the machine has swapped out.
    SpillsSwap,
    /// It is a copy, and is dropped.
    Copies,
}

impl Role {
    /// Whether its data has nowhere else to go.
    pub fn is_sole(self) -> bool {
        matches!(self, Self::Sole | Self::SoleSwap)
    }

    /// Whether its data is swapped-out pages.
    pub fn is_swap(self) -> bool {
        matches!(self, Self::SoleSwap | Self::SpillsSwap)
    }
}

/// The block device that a volume is shown as.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its numbers, major and minor.
    pub numbers: (u32, u32),
    /// Whether the machine swaps to it; otherwise it is taken to have files.
    pub is_swap: bool,
}

/// What was read from disks since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskReads {
    /// Bytes.
    pub bytes: u64,
    /// Nanoseconds that all those reads took together.
    pub ns: u64,
}

/// What the machine reports, or the control group that runs short of memory first. Counters begin
/// at its start; an unknown value is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// All memory, in bytes.
    pub total_bytes: u64,
    /// Bytes that are available without swapping.
    pub available_bytes: Option<u64>,
    /// Refaults: pages of files that were read again after they had been dropped.
    pub refaults: Option<u64>,
    /// Pages that the machine scanned because it was short of memory. This does not grow if only
    /// control groups are short of their own memory: what others give up does not help them.
    pub scanned: Option<u64>,
    /// Microseconds in which some task waited for memory (`/proc/pressure/memory`, some).
    pub stalled_us: Option<u64>,
    /// What was read from disks.
    pub disk_reads: Option<DiskReads>,
    /// Nanoseconds in which those disks were busy.
    pub disk_busy_ns: Option<u64>,
}

/// What a volume reports. Counters begin at its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ours {
    /// What becomes of data that there is no memory for.
    pub role: Role,
    /// The limit, in bytes.
    pub limit_bytes: u64,
    /// Memory in use, in bytes.
    pub used_bytes: u64,
    /// Whether the volume would use a higher limit.
    pub is_full: bool,
    /// Uncompressed bytes of its data in memory.
    pub data_bytes: u64,
    /// Blocks that were read.
    pub read_blocks: u64,
    /// Requests to the device below that a reader waited for.
    pub misses: u64,
    /// Nanoseconds that all misses took together.
    pub miss_ns: u64,
    /// Misses that more memory would have avoided; absent: all.
    pub regretted: Option<u64>,
    /// Nanoseconds in which data was moved to the device below for want of memory.
    pub leaving_ns: u64,
    /// What this volume itself read from disks.
    pub own_reads: DiskReads,
}

impl Ours {
    /// The numbers of a volume that keeps copies of a disk's blocks.
    pub fn of_copies(cache: &CacheStats) -> Self {
        // The time of a miss includes the readahead that was done with it.
        let fetched = cache.missed_blocks + cache.ahead_blocks;
        Self {
            role: Role::Copies,
            limit_bytes: cache.limit_bytes,
            used_bytes: cache.used_bytes,
            is_full: cache.full,
            data_bytes: cache.original_bytes,
            read_blocks: cache.hit_blocks + cache.missed_blocks,
            misses: cache.missed_blocks,
            miss_ns: cache.missed_ns,
            regretted: Some(cache.ghosts_hit_blocks),
            leaving_ns: 0,
            own_reads: DiskReads { bytes: fetched * BLOCK_SIZE as u64, ns: cache.missed_ns },
        }
    }
}

/// Machine and volume at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The machine.
    pub machine: Machine,
    /// The volume.
    pub ours: Ours,
}

/// Waits, as shares of the time: 0.5 is half a second a second. More than 1 is possible if several
/// tasks wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    /// For files that were dropped from memory.
    pub files: f64,
    /// For this volume's data that was evicted.
    pub missed: f64,
    /// The wait that would be added if the coldest twentieth of the data went, at most.
    pub coldest: f64,
}

/// A change of a limit.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Change {
    /// Before, in bytes.
    pub from_bytes: u64,
    /// After, in bytes.
    pub to_bytes: u64,
    /// When, in seconds since 1970.
    pub unix_s: u64,
    /// Why.
    pub reason: Reason,
}

/// How an adapting limit is doing.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// The bounds of the limit.
    #[serde(flatten)]
    pub bounds: Bounds,
    /// The reason of the last decision, also if nothing was changed.
    pub reason: Reason,
    /// The same in words.
    pub why: String,
    /// The last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change: Option<Change>,
    /// Number of changes.
    pub changes: u64,
    /// Number of changes in the other direction than the one before.
    pub turns: u64,
    /// The waits.
    pub waits: Waits,
    /// Memory that is available to others, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    /// How much of that must stay available, in bytes.
    pub floor_bytes: u64,
    /// The share of the time in which some task waited for memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<f64>,
    /// What this machine does not report, and what is done without it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

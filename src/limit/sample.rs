//! What a decision is made of, and what is told about it.

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
    /// The same, of pages that the machine has swapped out.
    SoleSwap,
    /// It goes down to another device, and can come back.
    Spills,
    /// The same, of pages that the machine has swapped out.
    SpillsSwap,
    /// It is a copy, and is dropped.
    Copies,
}

impl Role {
    /// Whether its data has nowhere else to go.
    pub fn is_sole(self) -> bool {
        matches!(self, Self::Sole | Self::SoleSwap)
    }

    /// Whether its data is what the machine swapped out.
    pub fn is_swap(self) -> bool {
        matches!(self, Self::SoleSwap | Self::SpillsSwap)
    }
}

/// The block device as which a volume is seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shown {
    /// Its numbers, major and minor.
    pub numbers: (u32, u32),
    /// Whether the machine swaps to it; otherwise it is taken to have files.
    pub is_swap: bool,
}

/// What was read of disks since the machine started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DiskReads {
    /// Bytes.
    pub bytes: u64,
    /// Nanoseconds that all those reads took together.
    pub ns: u64,
}

/// What the machine, or the control group that is short first, says. Counters are since its start;
/// what can't be had is absent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Machine {
    /// All memory, in bytes.
    pub total_bytes: u64,
    /// Bytes that could be had without swapping.
    pub available_bytes: Option<u64>,
    /// Pages of files that were read again after they had to go.
    pub refaults: Option<u64>,
    /// Pages that the machine looked at because it was short of memory. Where control groups alone
    /// are short of theirs, that does not grow: nothing that others give up helps them.
    pub scanned: Option<u64>,
    /// Microseconds in which some task waited for memory (`/proc/pressure/memory`, some).
    pub stalled_us: Option<u64>,
    /// What was read of disks.
    pub disk_reads: Option<DiskReads>,
    /// Nanoseconds in which those disks had anything to do.
    pub disk_busy_ns: Option<u64>,
}

/// What a volume says. Counters are since its start.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ours {
    /// What becomes of data that there is no memory for.
    pub role: Role,
    /// The limit, in bytes.
    pub limit_bytes: u64,
    /// Memory in use, in bytes.
    pub used_bytes: u64,
    /// Whether a higher limit would be made use of.
    pub is_full: bool,
    /// Data that was given to it, in bytes, as far as it is in memory.
    pub data_bytes: u64,
    /// Blocks that were read.
    pub read_blocks: u64,
    /// Times that the device below was asked for something that a reader waited for.
    pub misses: u64,
    /// Nanoseconds that those took together.
    pub miss_ns: u64,
    /// Of the misses, those that memory would have saved; absent: all.
    pub regretted: Option<u64>,
    /// Nanoseconds in which data was brought to the device below, for want of memory.
    pub leaving_ns: u64,
    /// What this volume itself read of disks.
    pub own_reads: DiskReads,
}

impl Ours {
    /// That of a volume which keeps copies of what a disk has.
    pub fn of_copies(cache: &CacheStats) -> Self {
        // The time of a miss is also that of what was read ahead with it.
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

/// Everything at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The machine.
    pub machine: Machine,
    /// The volume.
    pub ours: Ours,
}

/// For what is waited, as parts of the time: 0.5 is half a second a second. More than 1 is possible
/// where several wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Waits {
    /// For files that were in memory and had to go.
    pub files: f64,
    /// For this volume's data that had to go.
    pub missed: f64,
    /// What would be waited more if the coldest twentieth of it went, at most.
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
    /// What may be chosen.
    #[serde(flatten)]
    pub bounds: Bounds,
    /// What was decided last, or why nothing was changed.
    pub reason: Reason,
    /// The same in words.
    pub why: String,
    /// The last change.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub last_change: Option<Change>,
    /// How many there were.
    pub changes: u64,
    /// How many went the other way than the one before.
    pub turns: u64,
    /// For what is waited.
    pub waits: Waits,
    /// Memory that others could have, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub available_bytes: Option<u64>,
    /// How much of that is to stay, in bytes.
    pub floor_bytes: u64,
    /// The part of the time in which some task waited for memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stalled: Option<f64>,
    /// What this machine does not tell, and what is done without it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<String>,
}

//! The changing values of a volume, for clients that poll often.
//!
//! Invariant: a daemon makes a sample without looking at other processes and without any long wait,
//! even while its volume is being changed or taken down.

use super::Status;
use crate::BLOCK_SIZE;
use crate::config::Plan;
use crate::limit::Report;
use crate::stats::{Latencies, Stats};
use serde::{Deserialize, Serialize};

/// A running volume at one moment.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Sample {
    /// The program's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// When the daemon became usable, in seconds since 1970.
    pub started_unix_s: u64,
    /// The number of daemons that have taken this volume over from an earlier one.
    pub restarts: u64,
    /// The plan as carried out.
    pub plan: Plan,
    /// The paths or addresses that users open; empty once the volume is going down.
    pub endpoints: Vec<String>,
    /// How the memory limit adapts; `None` if it is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapting: Option<Report>,
    /// Bytes of the swap area that are ballast.
    #[serde(default)]
    pub ballast_bytes: u64,
    /// All counters.
    pub stats: Stats,
    /// How long requests took, with all buckets.
    pub latencies: Latencies,
}

impl From<Sample> for Status {
    fn from(sample: Sample) -> Self {
        let Sample { version, pid, started_unix_s, restarts, plan, endpoints, .. } = sample;
        let Sample { adapting, ballast_bytes, stats, .. } = sample;
        Self {
            version,
            pid,
            started_unix_s,
            restarts,
            plan,
            endpoints,
            holders: None,
            adapting,
            ballast_bytes,
            stats,
        }
    }
}

/// The kind of a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// In memory alone.
    Ram,
    /// In memory, with the coldest data on a spill device.
    Spill,
    /// A read cache of its backing store.
    Cache,
    /// A durable log in front of its backing store.
    Log,
}

impl Role {
    /// The role of a plan's volume.
    pub fn of(plan: &Plan) -> Self {
        match plan {
            Plan { log: Some(_), .. } => Self::Log,
            Plan { backing: Some(_), .. } => Self::Cache,
            Plan { spill: Some(_), .. } => Self::Spill,
            _ => Self::Ram,
        }
    }

    /// The role in one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Spill => "spill",
            Self::Cache => "cache",
            Self::Log => "log",
        }
    }
}

/// Where the blocks of a volume are, in bytes before compression. With a backing store these
/// overlap: blocks in memory are also below, and the log may have blocks that the backing store
/// has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Homes {
    /// In memory: data, or copies of it.
    pub ram: u64,
    /// On the spill device and not in memory.
    pub spill: u64,
    /// In the log.
    pub log: u64,
    /// The part of `log` that the backing store lacks.
    pub dirty: u64,
    /// Up to date in the backing store.
    pub backing: u64,
}

impl Sample {
    /// The volume's role.
    pub fn role(&self) -> Role {
        Role::of(&self.plan)
    }

    /// Where the volume's blocks are.
    pub fn homes(&self) -> Homes {
        Homes::of(&self.plan, &self.stats)
    }

    /// The compression ratio of data in memory or on the spill device; `None` if there is no data.
    pub fn compression(&self) -> Option<f64> {
        let (data, packed) = match self.stats.cache {
            Some(cache) => (cache.original_bytes, cache.stored_bytes),
            None => (self.stats.orig_data_bytes, self.stats.compr_data_bytes),
        };
        (packed > 0).then(|| data as f64 / packed as f64)
    }
}

impl Homes {
    /// Where the blocks of a plan's volume are, by its counters.
    pub fn of(plan: &Plan, stats: &Stats) -> Self {
        const BLOCK: u64 = BLOCK_SIZE as u64;
        if !matches!(Role::of(plan), Role::Log | Role::Cache) {
            let spill = stats.spilled_blocks * BLOCK;
            let ram = stats.orig_data_bytes.saturating_sub(spill);
            return Self { ram, spill, ..Self::default() };
        }
        let (dirty, clean) = stats.log.map_or((0, 0), |log| (log.blocks_dirty, log.blocks_clean));
        Self {
            ram: stats.cache.map_or(0, |cache| cache.original_bytes),
            spill: 0,
            log: (dirty + clean) * BLOCK,
            dirty: dirty * BLOCK,
            backing: match &stats.object {
                Some(store) => store.blocks * BLOCK,
                None => stats.disk_size_bytes.saturating_sub(dirty * BLOCK),
            },
        }
    }

    /// Bytes of data, before compression, that the volume itself holds, without its backing store.
    pub fn held(&self, role: Role) -> u64 {
        match role {
            Role::Ram | Role::Spill => self.ram + self.spill,
            Role::Cache => self.ram,
            Role::Log => self.log,
        }
    }
}

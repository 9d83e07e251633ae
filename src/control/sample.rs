//! What changes from moment to moment, for clients that look often.
//!
//! Invariant: a daemon makes one without looking at other processes and without waiting for
//! anything that takes long, also while its volume is being changed or taken down.

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
    /// When it became usable, in seconds since 1970.
    pub started_unix_s: u64,
    /// How many daemons have gone on with what an earlier one had in memory.
    pub restarts: u64,
    /// What was asked for, as it is now.
    pub plan: Plan,
    /// What users open; empty while that changes.
    pub endpoints: Vec<String>,
    /// How the limit on memory adapts, where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapting: Option<Report>,
    /// All counters.
    pub stats: Stats,
    /// How long requests took, to the last bucket.
    pub latencies: Latencies,
}

impl From<Sample> for Status {
    fn from(sample: Sample) -> Self {
        let Sample { version, pid, started_unix_s, restarts, plan, endpoints, .. } = sample;
        let Sample { adapting, stats, .. } = sample;
        let holders = None;
        Self { version, pid, started_unix_s, restarts, plan, endpoints, holders, adapting, stats }
    }
}

/// What a volume is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// In memory alone.
    Ram,
    /// In memory, and what is coldest on a spill device.
    Spill,
    /// A read cache of its backing store.
    Cache,
    /// A durable log before its backing store.
    Log,
}

impl Role {
    /// What the volume of a plan is.
    pub fn of(plan: &Plan) -> Self {
        match plan {
            Plan { log: Some(_), .. } => Self::Log,
            Plan { backing: Some(_), .. } => Self::Cache,
            Plan { spill: Some(_), .. } => Self::Spill,
            _ => Self::Ram,
        }
    }

    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Ram => "ram",
            Self::Spill => "spill",
            Self::Cache => "cache",
            Self::Log => "log",
        }
    }
}

/// Where the blocks of a volume are, in bytes before compression. The homes of one with a backing
/// store overlap: what is in memory is below, too, and the log may have what the backing store has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Homes {
    /// In memory: data, or copies of it.
    pub ram: u64,
    /// On the spill device and not in memory.
    pub spill: u64,
    /// In the log.
    pub log: u64,
    /// Part of `log`: what the backing store lacks.
    pub dirty: u64,
    /// In the backing store, as it is now.
    pub backing: u64,
}

impl Sample {
    /// What the volume is.
    pub fn role(&self) -> Role {
        Role::of(&self.plan)
    }

    /// Where its blocks are.
    pub fn homes(&self) -> Homes {
        Homes::of(&self.plan, &self.stats)
    }

    /// What data is for each byte that it takes compressed, in memory or on the spill device;
    /// `None` when there is none.
    pub fn compression(&self) -> Option<f64> {
        let (data, packed) = match self.stats.cache {
            Some(cache) => (cache.original_bytes, cache.stored_bytes),
            None => (self.stats.orig_data_bytes, self.stats.compr_data_bytes),
        };
        (packed > 0).then(|| data as f64 / packed as f64)
    }
}

impl Homes {
    /// Where the blocks of the volume of a plan are, by its counters.
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
            backing: stats.disk_size_bytes.saturating_sub(dirty * BLOCK),
        }
    }

    /// Bytes of data, before compression, that the volume itself holds: not its backing store.
    pub fn held(&self, role: Role) -> u64 {
        match role {
            Role::Ram | Role::Spill => self.ram + self.spill,
            Role::Cache => self.ram,
            Role::Log => self.log,
        }
    }
}

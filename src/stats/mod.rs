//! The counters, with the definitions of the programs that counted first.
//!
//! [`Stats`] is a snapshot: every number in it, with its unit in its name, is what `--json` prints.
//! The historic layouts (`ramzswap`, `zramconfig`, `zram`) are only other ways to print it.

mod cache;
pub mod declare;
mod distribution;
pub mod drives;
pub mod health;
pub mod histogram;
pub mod layout;
mod log;
mod object;
pub mod time;
mod volume;

pub use cache::{CacheCounts, CacheStats};
pub use distribution::{Distribution, Latencies, Spent};
pub use log::LogStats;
pub use object::ObjectStats;
pub use volume::{Counts, Stats};

pub use health::{About, Health, Trouble};

use serde::{Deserialize, Serialize};

/// Latencies of one kind of request, in nanoseconds. All zero when nothing was measured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latency {
    /// How many requests were measured.
    pub count: u64,
    /// The sum of all latencies.
    #[serde(default)]
    pub sum_ns: u64,
    /// The arithmetic mean.
    pub mean_ns: u64,
    /// Half of the requests took no longer.
    pub p50_ns: u64,
    /// 99 of 100 requests took no longer.
    pub p99_ns: u64,
    /// 999 of 1000 requests took no longer.
    pub p999_ns: u64,
    /// The slowest one.
    pub max_ns: u64,
}

/// One kind of request (read, write, flush, discard, write-zeroes).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Requests {
    /// Requests that ended, well or badly.
    pub requests: u64,
    /// Bytes requested, also by those that failed.
    pub bytes: u64,
    /// Those that ended with an error.
    pub failed: u64,
    /// From arrival in this process to the start of service, and stalls for want of memory.
    pub waiting: Latency,
    /// The rest: from the start of service to the end.
    pub serving: Latency,
}

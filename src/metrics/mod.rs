//! Metrics of all volumes in Prometheus' text format: one table defines them, and everything else
//! (the text, `docs/metrics.md`, the tests of the dashboard) follows it.
//!
//! Invariants: a scrape asks every daemon once and waits for none longer than [`PATIENCE`]; a
//! daemon that does not answer is shown as down and affects no other volume. No daemon serves
//! metrics: a scrape takes memory, which a daemon that carries swap must not.

mod describe;
mod http;
mod metric;
mod page;
mod serve;
mod table;
mod text;

pub use describe::describe;
pub use metric::{Group, Kind, Metric, Scrape};
pub use page::text;
pub use serve::Server;
pub use table::GROUPS;

use std::time::Duration;

/// How long a scrape waits for all daemons together.
pub const PATIENCE: Duration = Duration::from_secs(1);

/// Buckets of the histograms end one nanosecond below these powers of two, as some of the daemons'
/// finer buckets do: from 1 µs to 17 s. Those of waits use every second power.
const BUCKETS: std::ops::RangeInclusive<u32> = 10..=34;

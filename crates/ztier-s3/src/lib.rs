//! Servers of S3 on loopback, and a proxy before them with delays, faults and counts: what tests
//! and benchmarks of volumes in buckets need.
//!
//! Invariants: a server ends with the process that started it, however that ends; nothing listens
//! beyond loopback; a directory belongs to the caller, which removes it.

mod engine;
mod http;
mod proxy;

pub use engine::{BUCKET, Engine, KEY, Kind, SECRET, Tls, Trouble};
pub use proxy::{Counts, FAULTS, Fault, Proxy, Refusal};

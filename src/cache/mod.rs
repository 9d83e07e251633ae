//! Compressed copies, in memory, of what is on a slow drive.
//!
//! [`Cached`] is that drive: layers above read and write it like any other. Blocks belong to
//! shards, a group of them to each (`shard_map.rs`); a shard has an index, segments of records, a
//! memory of what has left, and a list of what is on its way, all under one lock (`shard.rs`).
//!
//! Invariant: a copy is never the only one, and never other than what the drive holds: what is on
//! its way from or to the drive is kept only if nothing came between (`flights.rs`).

mod cached;
mod flights;
mod ghosts;
mod io_context;
pub mod planted;
pub mod policy;
mod record;
mod segments;
mod shard;
mod shard_map;
mod streams;
mod table;

pub use cached::{Cached, RAM_LIMIT_MIN, check_limit};

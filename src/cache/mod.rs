//! The read cache: compressed copies, in memory, of blocks of a slow drive.
//!
//! [`Cached`] is a drive around that drive: layers above read and write it like any other. Groups
//! of blocks belong to shards (`shard_map.rs`). A shard has an index, segments of records, ghosts
//! of evicted blocks, and flights, all under one lock (`shard.rs`).
//!
//! Invariant: a copy is never all that there is of a block, and never differs from what the drive
//! holds: blocks in flight from or to the drive are kept only if nothing came between
//! (`flights.rs`).

mod above;
mod ahead;
mod cached;
mod flights;
mod found;
mod ghosts;
mod hints;
mod io_context;
mod limit;
mod numbers;
pub mod planted;
pub mod policy;
mod record;
mod run;
mod seal;
mod seals;
mod segment;
mod segments;
mod shard;
mod shard_map;
mod streams;
mod table;
mod window_set;

pub use cached::Cached;
pub use limit::{RAM_LIMIT_MIN, check_limit};

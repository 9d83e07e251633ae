//! What became of blocks that were read ahead, in all shards.
//!
//! Invariant: a block that was kept counts as used or as useless at most once.

use crate::sync::atomic::AtomicU64;

/// See the module.
#[derive(Debug, Default)]
pub struct Ahead {
    /// Blocks that were read ahead and kept.
    pub kept: AtomicU64,
    /// Those of them that were requested later.
    pub used: AtomicU64,
    /// Those of them that were evicted without a request.
    pub useless: AtomicU64,
}

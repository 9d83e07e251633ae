//! How the limit of a cache is divided.
//!
//! Invariant: all parts together are within the limit.

use super::io_context::Most;
use crate::BLOCK_SIZE;
use crate::error::{Error, Result};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// The least limit that is not 0, in bytes.
pub const RAM_LIMIT_MIN: u64 = 1 << 20;
/// Most I/O contexts: requests that can compute at the same time. None has one while it waits for
/// the drive.
const CONTEXTS_MAX: u64 = 16;
/// One in this many bytes of the limit may be taken by all contexts, and by one readahead window.
const CONTEXTS_PART: u64 = 8;
const AHEAD_PART: u64 = 32;
/// Bytes of the largest and of the smallest readahead window; fewest and most windows; and, one in
/// this many bytes, the part of the limit that more than the fewest may take.
const AHEAD_MAX: u64 = 1 << 20;
const AHEAD_MIN: u64 = 128 << 10;
const AHEADS: (u64, u64) = (2, 8);
const AHEADS_PART: u64 = 16;

/// How a limit is divided.
pub struct Share {
    /// What requests may have.
    pub most: Most,
    /// Bytes for each shard.
    pub shard: u64,
}

/// Divides `limit` among `shards`; `beside` has bytes that no shard counts. There are few windows
/// for readahead unless the cache `reads_ahead`.
pub fn share(
    limit: u64,
    (shards, beside): (u64, u64),
    context_bytes: u64,
    reads_ahead: bool,
) -> Share {
    if limit == 0 {
        return Share { most: Most::default(), shard: 0 };
    }
    let window = (limit / AHEAD_PART).min(AHEAD_MAX) / BLOCK * BLOCK;
    let most = if reads_ahead { AHEADS.1 } else { AHEADS.0 };
    let windows = (limit / AHEADS_PART / window.max(1)).clamp(AHEADS.0, most) as usize;
    let (windows, window) = if window < AHEAD_MIN { (0, 0) } else { (windows, window as usize) };
    let contexts = (limit / CONTEXTS_PART / context_bytes).clamp(1, CONTEXTS_MAX) as usize;
    let most = Most { contexts, windows, window };
    let fixed = most.bytes(context_bytes) + beside;
    Share { most, shard: limit.saturating_sub(fixed) / shards }
}

/// Checks a limit in bytes.
///
/// # Errors
/// It is neither 0 nor at least [`RAM_LIMIT_MIN`].
pub fn check_limit(bytes: u64) -> Result<()> {
    if bytes == 0 || bytes >= RAM_LIMIT_MIN {
        return Ok(());
    }
    Err(Error::usage(format!("ram-limit {bytes} is too little for a cache"))
        .hint("give at least 1M, or 0 for none"))
}

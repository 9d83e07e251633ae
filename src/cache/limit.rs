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
/// The same below a page cache that is followed, beside one a processor: for requests whose thread
/// had to give way. What more of them would take is worth more as copies.
const CONTEXTS_SPARE: u64 = 2;
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

/// Divides `limit` among `shards`; `beside` has bytes that no shard counts. Below a page cache that
/// is followed, on a machine with that many `processors`, there are no windows for readahead: it
/// reads ahead by itself.
pub fn share(
    limit: u64,
    (shards, beside): (u64, u64),
    context_bytes: u64,
    processors: Option<u64>,
) -> Share {
    if limit == 0 {
        return Share { most: Most::default(), shard: 0 };
    }
    let window = (limit / AHEAD_PART).min(AHEAD_MAX) / BLOCK * BLOCK;
    let windows = (limit / AHEADS_PART / window.max(1)).clamp(AHEADS.0, AHEADS.1) as usize;
    let none = processors.is_some() || window < AHEAD_MIN;
    let (windows, window) = if none { (0, 0) } else { (windows, window as usize) };
    let most = processors.map_or(CONTEXTS_MAX, |count| CONTEXTS_MAX.min(count + CONTEXTS_SPARE));
    let contexts = (limit / CONTEXTS_PART / context_bytes).clamp(1, most) as usize;
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

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn below_a_page_cache_that_is_followed_more_is_left_for_copies() {
        let parts = |limit, processors| {
            let Share { most, shard } = share(limit, (1, 1000), 84_000, processors);
            assert!(most.bytes(84_000) + shard + 1000 <= limit);
            (most.contexts, most.windows, most.window as u64)
        };
        assert_eq!(parts(64 * MIB, None), (16, 4, MIB));
        assert_eq!(parts(64 * MIB, Some(2)), (4, 0, 0));
        assert_eq!(parts(64 * MIB, Some(64)), (16, 0, 0));
        // Few contexts fit into a low limit anyway, and no window.
        assert_eq!(parts(2 * MIB, None), (3, 0, 0));
        assert_eq!(parts(2 * MIB, Some(4)), (3, 0, 0));
    }
}

//! What is counted about a read cache; see [`super::declare`].

use super::declare::{Exported, Number, Row, Shown, Subject, declare};
use serde::{Deserialize, Serialize};

declare! {
/// What a cache of a backing store's blocks holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStats, sums CacheCounts: u64 {
    Cache {
        /// The limit on all its memory; 0: there is no cache.
        limit_bytes: u64 = bytes "cache limit";
        /// All its memory.
        used_bytes: u64 = bytes "  used";
        /// Whether the limit binds: nearly all of it is in use, or copies were evicted since the
        /// limit was set.
        full: bool;
        /// Whether it holds what the page cache drops, and not what that has.
        exclusive: bool;
        /// Part of `used_bytes`: index, ghosts, tables.
        index_bytes: u64 = bytes "  index"
            => gauge "ztier_cache_index_bytes" "Memory of index, ghosts and tables.";
        /// Blocks that have a copy.
        blocks: u64 = count "blocks with a copy";
        /// `blocks` × 4096.
        original_bytes: u64 = bytes "  their bytes"
            => gauge "ztier_cache_copies_bytes" "Copied data before compression.";
        /// What the copies take, headers included.
        stored_bytes: u64 = bytes "  compressed"
            => gauge "ztier_cache_stored_bytes" "Bytes of copies, headers included.";
        /// Blocks read that had a copy.
        [shard] hit_blocks: u64 = count "blocks read: hit"
            => counter "ztier_cache_hit_blocks_total" "Blocks read that had a copy.";
        /// Blocks read that had none.
        [shard] missed_blocks: u64 = count "  missed"
            => counter "ztier_cache_missed_blocks_total" "Blocks read that had none.";
        /// Nanoseconds that the backing store took to read the missed blocks.
        missed_ns: u64
            => counter ns "ztier_cache_miss_seconds_total"
                "Time the backing store took for misses.";
        /// Reads of which some blocks had a copy and others had none.
        requests_mixed: u64 = count "reads of both kinds"
            => counter "ztier_cache_mixed_reads_total" "Reads with hits and misses.";
        /// Reads that bypassed the cache, because it has no memory for more of them in flight.
        requests_bypassed: u64 = count "  past the cache"
            => counter "ztier_cache_bypassed_reads_total"
                "Reads past the cache: too many under way.";
        /// Copies that were made.
        [shard] kept_blocks: u64 = count "copies made"
            => counter "ztier_cache_kept_blocks_total" "Copies made.";
        /// Part of `kept_blocks`: pages that the page cache has dropped.
        [shard] dropped_pages: u64 = count "  of dropped pages"
            => counter "ztier_cache_dropped_pages_total" "Copies of pages that the page cache dropped.";
        /// Pages that the page cache has dropped, of files or not.
        seen_pages: u64 = count "pages it dropped"
            => counter "ztier_cache_seen_pages_total" "Pages that the page cache dropped.";
        /// Part of `seen_pages`: they came too fast to be copied.
        lost_pages: u64 = count "  not copied"
            => counter "ztier_cache_lost_pages_total" "Pages dropped too fast to be copied.";
        /// Copies that went with a read, because the page cache has the block since.
        [shard] given_blocks: u64 = count "  given back to it"
            => counter "ztier_cache_given_blocks_total" "Copies that went back to the page cache.";
        /// Copies that were evicted to make room.
        [shard] evicted_blocks: u64 = count "  gone to make room"
            => counter "ztier_cache_evicted_blocks_total" "Copies evicted to make room.";
        /// Missed blocks that had been evicted not long before.
        [shard] ghosts_hit_blocks: u64 = count "    gone not long before"
            => counter "ztier_cache_ghost_hit_blocks_total"
                "Misses of recently evicted blocks: a larger cache would hit.";
        /// Blocks that were read ahead and kept.
        ahead_blocks: u64 = count "blocks read ahead"
            => counter "ztier_cache_readahead_blocks_total" "Blocks read ahead and kept.";
        /// Blocks read ahead that a read asked for.
        ahead_used_blocks: u64 = count "  used"
            => counter "ztier_cache_readahead_used_blocks_total"
                "Blocks read ahead, then requested.";
        /// Blocks read ahead that were evicted before a read asked for them.
        ahead_useless_blocks: u64 = count "  useless"
            => counter "ztier_cache_readahead_useless_blocks_total"
                "Blocks read ahead, evicted before requested.";
        /// Copies whose check word did not hold; they were read again from the backing store.
        [shard] damaged_copies: u64 = count "damaged copies"
            => counter "ztier_cache_damaged_copies_total"
                "Damaged copies, read again from the backing store.";
        /// Blocks that were read or written and not kept, because they were written meanwhile.
        lost_blocks: u64 = count "  not made, changed meanwhile"
            => counter "ztier_cache_overtaken_blocks_total" "Blocks not kept: written meanwhile.";
        /// Requests to the backing store that failed.
        backing_errors: u64 = count "errors of the backing store"
            => counter "ztier_backing_errors_total" "Failed requests to the backing store.";
    }
}
}

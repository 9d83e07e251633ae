//! The counters, with the definitions of the programs that counted first.
//!
//! [`Stats`] is a snapshot: every number in it, with its unit in its name, is what `--json` prints.
//! The historic layouts (`ramzswap`, `zramconfig`, `zram`) are only other ways to print it.

mod distribution;
pub mod drives;
pub mod health;
pub mod histogram;
pub mod layout;
pub mod time;

pub use distribution::{Distribution, Latencies, Spent};

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

/// Everything that is counted about a volume, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats {
    /// Size of the device in bytes (historic: `DiskSize`).
    pub disk_size_bytes: u64,
    /// The limit on *all* memory of the volume, in bytes.
    pub ram_limit_bytes: u64,

    /// Read requests.
    pub read: Requests,
    /// Write requests.
    pub write: Requests,
    /// Flush requests.
    pub flush: Requests,
    /// Discard requests.
    pub discard: Requests,
    /// Write-zeroes requests.
    pub write_zeroes: Requests,
    /// Requests that lay outside the device (historic: `InvalidIO`).
    pub invalid_io: u64,
    /// Blocks that were stored and are freed by a discard or write-zeroes (historic:
    /// `PagesDiscard`).
    pub blocks_discarded: u64,
    /// Blocks of swap that were stored and are freed because the kernel has freed their slots.
    #[serde(default)]
    pub freed_slots: u64,
    /// Bytes of programs' pages for which memory and swap have room, while this volume is swap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub swap_room_bytes: Option<u64>,
    /// Whether that is so little that memory and swap are nearly full.
    #[serde(default)]
    pub swap_nearly_full: bool,

    /// Blocks stored as records: neither holes nor same-filled (historic: `PagesStored`).
    pub blocks_stored: u64,
    /// Blocks that read as one repeated 8-byte word other than zero, or as written zeros.
    pub blocks_same: u64,
    /// Of those, blocks of written zeros (historic: `ZeroPages`).
    pub blocks_zero: u64,
    /// Stored blocks of at most half their size (historic: the count behind `GoodCompress`).
    pub blocks_good: u64,
    /// Stored blocks that did not shrink below three quarters: more than 3072 bytes
    /// (historic: the count behind `NoCompress`).
    pub blocks_poor: u64,
    /// Stored blocks kept as they are because no codec made them smaller.
    pub blocks_raw: u64,
    /// How many blocks were ever stored as they are.
    pub blocks_raw_total: u64,

    /// `blocks_stored` × 4096.
    pub orig_data_bytes: u64,
    /// Payload: what the stored blocks take after compression, without headers.
    pub compr_data_bytes: u64,
    /// All memory of the volume: frames, index, tables, buffers, headers.
    pub mem_used_bytes: u64,
    /// The most that `mem_used_bytes` ever was.
    pub mem_used_max_bytes: u64,
    /// Part of `mem_used_bytes`: RAM frames that hold segments or are kept ready to.
    pub frames_bytes: u64,
    /// Part of `mem_used_bytes`: what is not frames (index leaves, directory, tables, zero map).
    pub metadata_bytes: u64,
    /// Part of `mem_used_bytes`: codec state and scratch memory of the channels.
    pub buffers_bytes: u64,
    /// Part of `frames_bytes`: headers of live records.
    pub record_headers_bytes: u64,
    /// `metadata_bytes` ÷ (`blocks_stored` + `blocks_same`); 0 when nothing is stored.
    pub metadata_bytes_per_block: f64,

    /// Segments that hold live records.
    pub segments: u64,
    /// Segments that the cleaner emptied.
    pub segments_cleaned: u64,
    /// Blocks that the cleaner moved (historic: `pages_compacted`).
    pub blocks_moved: u64,
    /// Bytes that the cleaner moved.
    pub bytes_moved: u64,
    /// Writes that had to wait for the cleaner to make room, or for a frame of the mempool.
    pub stalls: u64,
    /// Writes refused because nothing more fits.
    pub no_space: u64,
    /// Records whose checksum did not hold when they were read.
    pub corrupt_records: u64,

    /// Blocks that are compressed together with their neighbours.
    #[serde(default)]
    pub blocks_clustered: u64,
    /// Part of `compr_data_bytes`: what those blocks take, headers included.
    #[serde(default)]
    pub cluster_bytes: u64,
    /// Blocks recompressed so far.
    #[serde(default)]
    pub blocks_recompressed: u64,
    /// Bytes that recompressing has saved.
    #[serde(default)]
    pub recompress_saved_bytes: u64,
    /// Groups of neighbours that were tried, and left because too little would have been saved.
    #[serde(default)]
    pub recompress_in_vain: u64,
    /// Blocks that left their clusters because they were read again.
    #[serde(default)]
    pub recompress_promoted_blocks: u64,
    /// Milliseconds spent on recompressing.
    #[serde(default)]
    pub recompress_ms: u64,
    /// Whether a user asked for everything to be recompressed, and it is not done yet.
    #[serde(default)]
    pub recompressing: bool,

    /// Read requests to the spill device (historic: `BDevNumReads`).
    #[serde(default)]
    pub spill_device_reads: u64,
    /// Write requests to the spill device (historic: `BDevNumWrites`).
    #[serde(default)]
    pub spill_device_writes: u64,
    /// Nanoseconds that those reads took together.
    #[serde(default)]
    pub spill_reading_ns: u64,
    /// Nanoseconds that those writes took together.
    #[serde(default)]
    pub spill_writing_ns: u64,
    /// Bytes read from the spill device.
    #[serde(default)]
    pub spill_read_bytes: u64,
    /// Bytes written to the spill device.
    #[serde(default)]
    pub spill_written_bytes: u64,
    /// Bytes that the daily limit of the spill device still allows; absent without such a limit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill_allowed_bytes: Option<u64>,
    /// Slots on the spill device, of a segment each; 0 where there is none.
    #[serde(default)]
    pub spill_slots: u64,
    /// Slots that hold a segment.
    #[serde(default)]
    pub spill_slots_used: u64,
    /// Segments that went down to the spill device so far.
    #[serde(default)]
    pub spilled_segments: u64,
    /// Blocks that are on the spill device and not in memory.
    #[serde(default)]
    pub spilled_blocks: u64,
    /// Bytes of the records of those blocks.
    #[serde(default)]
    pub spilled_bytes: u64,
    /// Blocks that came back into memory because they were read again.
    #[serde(default)]
    pub spill_promoted_blocks: u64,
    /// Requests to the spill device that failed.
    #[serde(default)]
    pub spill_errors: u64,
    /// Whether the last write to the spill device failed: it is tried again in at most a minute.
    #[serde(default)]
    pub spill_failed: bool,

    /// The durable log, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogStats>,
    /// Blocks that were damaged in the log before they reached the backing store, as first block
    /// and count.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub log_lost_blocks: Vec<(u64, u64)>,
    /// Whether a user has taken note of all of those.
    #[serde(default)]
    pub log_loss_noted: bool,
    /// The read cache of a backing store, where there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cache: Option<CacheStats>,
    /// Drives on which something has failed, since the daemon began.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub drives: Vec<drives::Failing>,
    /// Bytes of data that still fit into a volume in memory, if they compress like what is stored.
    /// Absent while too little is stored to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub room_bytes: Option<u64>,
    /// How the volume is, in one word.
    #[serde(default)]
    pub health: Health,
}

impl Stats {
    /// Requests of all kinds by their names.
    pub fn kinds(&self) -> [(&'static str, &Requests); 5] {
        [
            ("read", &self.read),
            ("write", &self.write),
            ("flush", &self.flush),
            ("discard", &self.discard),
            ("write_zeroes", &self.write_zeroes),
        ]
    }

    /// These counters with those of the read cache.
    #[must_use]
    pub fn with_cache(self, cache: Option<CacheStats>) -> Self {
        let Some(copies) = cache else { return self };
        Self {
            ram_limit_bytes: copies.limit_bytes,
            mem_used_bytes: self.mem_used_bytes + copies.used_bytes,
            cache,
            ..self
        }
    }
}

/// What a cache of a backing store's blocks holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CacheStats {
    /// The limit on all its memory; 0: there is no cache.
    pub limit_bytes: u64,
    /// All its memory.
    pub used_bytes: u64,
    /// Whether the limit binds: nearly all of it is in use, or copies were evicted since the limit
    /// was set.
    #[serde(default)]
    pub full: bool,
    /// Part of `used_bytes`: index, ghosts, tables.
    pub index_bytes: u64,
    /// Blocks that have a copy.
    pub blocks: u64,
    /// `blocks` × 4096.
    pub original_bytes: u64,
    /// What the copies take, headers included.
    pub stored_bytes: u64,
    /// Blocks read that had a copy.
    pub hit_blocks: u64,
    /// Blocks read that had none.
    pub missed_blocks: u64,
    /// Nanoseconds that the backing store took to read the missed blocks.
    #[serde(default)]
    pub missed_ns: u64,
    /// Reads of which some blocks had a copy and others had none.
    pub requests_mixed: u64,
    /// Reads that bypassed the cache, because it has no memory for more of them in flight.
    pub requests_bypassed: u64,
    /// Copies that were made.
    pub kept_blocks: u64,
    /// Copies that were evicted to make room.
    pub evicted_blocks: u64,
    /// Missed blocks that had been evicted not long before.
    pub ghosts_hit_blocks: u64,
    /// Blocks that were read ahead and kept.
    pub ahead_blocks: u64,
    /// Blocks read ahead that a read asked for.
    pub ahead_used_blocks: u64,
    /// Blocks read ahead that were evicted before a read asked for them.
    pub ahead_useless_blocks: u64,
    /// Copies whose check word did not hold; they were read again from the backing store.
    pub damaged_copies: u64,
    /// Blocks that were read or written and not kept, because they were written meanwhile.
    pub lost_blocks: u64,
    /// Requests to the backing store that failed.
    pub backing_errors: u64,
}

/// What a durable log holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStats {
    /// Segments of the log (historic: `nr_segments`).
    pub segments: u64,
    /// Segments that are not written back: they may hold dirty blocks.
    pub segments_used: u64,
    /// Segments that are written back and still serve reads.
    #[serde(default)]
    pub segments_clean: u64,
    /// Number of the oldest segment that is not written back; all before it are (historic:
    /// `last_writeback_segment_id` is the one before).
    #[serde(default)]
    pub segment_tail: u64,
    /// Number of the last segment of which everything is durable (historic:
    /// `last_flushed_segment_id`).
    #[serde(default)]
    pub segment_durable: u64,
    /// Number of the newest segment (historic: `current_id`, `cursor`).
    #[serde(default)]
    pub segment_newest: u64,
    /// Dirty blocks: the backing store lacks them (historic: `nr_dirty_cache_blocks`).
    pub blocks_dirty: u64,
    /// Clean blocks: the log has them, and the backing store, too.
    #[serde(default)]
    pub blocks_clean: u64,
    /// Blocks read from the log that were clean.
    #[serde(default)]
    pub reads_clean: u64,
    /// Blocks of the backing store that were appended because they were read again and again.
    #[serde(default)]
    pub copies_kept: u64,
    /// Blocks that the backing store has, and that were appended again before their segment was
    /// freed, because they had been read.
    #[serde(default)]
    pub copies_kept_again: u64,
    /// Bytes that both kinds of copies took.
    #[serde(default)]
    pub copies_bytes: u64,
    /// Clean blocks whose segment was freed.
    #[serde(default)]
    pub copies_released: u64,
    /// Blocks that could not be read from the log, and were read from the backing store.
    #[serde(default)]
    pub copies_damaged: u64,
    /// Whether the clean blocks that the log had when the volume came up have served reads since.
    #[serde(default)]
    pub warm: bool,
    /// Memory of the index.
    pub index_bytes: u64,
    /// Blocks appended.
    pub blocks_appended: u64,
    /// Bytes of those blocks, before compression.
    pub asked_bytes: u64,
    /// Appended blocks that were compressed together with their neighbours.
    #[serde(default)]
    pub blocks_clustered: u64,
    /// Bytes that those blocks took, compressed.
    #[serde(default)]
    pub cluster_bytes: u64,
    /// Bytes written to the log's drive.
    pub written_bytes: u64,
    /// Bytes of checkpoints among those.
    pub checkpoint_bytes: u64,
    /// Checkpoints made.
    pub checkpoints: u64,
    /// Bytes of chunks closed since the last checkpoint began.
    #[serde(default)]
    pub since_checkpoint_bytes: u64,
    /// Chunks closed.
    pub chunks: u64,
    /// Chunks closed with room for more, because a request waited for the commit, or no write came
    /// (historic: `nr_partial_flushed`).
    #[serde(default)]
    pub chunks_partial: u64,
    /// Blocks read from the log's memory.
    #[serde(default)]
    pub reads_memory: u64,
    /// Blocks read from the log's drive.
    #[serde(default)]
    pub reads_log: u64,
    /// Blocks read that the log knows as zeros.
    #[serde(default)]
    pub reads_zeros: u64,
    /// Blocks read that the log did not have.
    #[serde(default)]
    pub reads_backing: u64,
    /// Parts of requests that read less than a block.
    #[serde(default)]
    pub reads_partial: u64,
    /// Blocks written that the log had in memory.
    #[serde(default)]
    pub writes_over_memory: u64,
    /// Blocks written that the log had on its drive.
    #[serde(default)]
    pub writes_over_log: u64,
    /// Blocks written that the log did not have.
    #[serde(default)]
    pub writes_new: u64,
    /// Parts of requests that wrote less than a block, and had to read it first.
    #[serde(default)]
    pub writes_partial: u64,
    /// Bytes that writeback wrote to the backing store.
    #[serde(default)]
    pub written_back_bytes: u64,
    /// Flushes asked of the log.
    pub flushes: u64,
    /// Flushes of the log's drive.
    pub drive_flushes: u64,
    /// Commits that flushes or synced writes waited for: from the close of their last chunk until
    /// it is durable. The flush requests' own times have the wait for an earlier commit, too.
    #[serde(default)]
    pub commits: Latency,
    /// Requests to the log's drive that failed.
    pub errors: u64,
    /// Windows of writeback that ended well.
    pub windows: u64,
    /// Windows of writeback that failed and are tried again.
    pub windows_failed: u64,
    /// Records appended again, because their content was nowhere else when their segment was
    /// freed.
    pub repeated: u64,
    /// Windows of writeback that failed because the log could not be read.
    #[serde(default)]
    pub windows_unread: u64,
    /// Whether the log's drive failed for good.
    pub failed: bool,
    /// When the log's drive failed, in seconds since 1970.
    #[serde(default)]
    pub failed_unix_s: u64,
    /// Whether the log has failed, and its data is being brought to the backing store.
    #[serde(default)]
    pub rescuing: bool,
    /// Whether the log has failed, and writes go to the backing store.
    #[serde(default)]
    pub through: bool,
    /// Since when writes go to the backing store, in seconds since 1970.
    #[serde(default)]
    pub through_unix_s: u64,
    /// The backing store alone was last a past state of the volume: that of this time at the
    /// latest, in seconds since 1970; 0 when it is not known.
    #[serde(default)]
    pub past_unix_s: u64,
    /// Since when the backing store alone may be a mixture of states, in seconds since 1970; 0
    /// while it is a state that the volume had.
    #[serde(default)]
    pub mixture_since_unix_s: u64,
    /// Whether the backing store alone is the volume, but for lost blocks.
    pub clean: bool,
}

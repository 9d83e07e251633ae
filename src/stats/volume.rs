//! What is counted about a volume; see [`super::declare`].

use super::declare::{Exported, Number, Row, Shown, Subject, declare};
use super::{CacheStats, Health, LogStats, ObjectStats, Requests, drives};
use serde::{Deserialize, Serialize};

declare! {
/// Everything that is counted about a volume, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Stats, sums Counts: i64 {
    Any {
        /// Size of the device in bytes (historic: `DiskSize`).
        disk_size_bytes: u64 = bytes "device" => gauge "ztier_size_bytes" "Size of the device.";
        /// The limit on *all* memory of the volume, in bytes.
        ram_limit_bytes: u64 = bytes "memory limit"
            => gauge "ztier_memory_limit_bytes"
                "Limit on all memory; with a backing store, on copies.";
        /// Read requests.
        read: Requests;
        /// Write requests.
        write: Requests;
        /// Flush requests.
        flush: Requests;
        /// Discard requests.
        discard: Requests;
        /// Write-zeroes requests.
        write_zeroes: Requests;
        /// Requests that lay outside the device (historic: `InvalidIO`).
        invalid_io: u64 = count "outside the device"
            => counter "ztier_invalid_requests_total" "Requests outside the device.";
        /// Bytes of programs' pages for which memory and swap have room, while this volume is swap.
        #[serde(skip_serializing_if = "Option::is_none")]
        swap_room_bytes: Option<u64>
            => gauge "ztier_swap_room_bytes"
                "Pages for which the machine's memory and swap have room.";
        /// Whether that is so little that memory and swap are nearly full.
        swap_nearly_full: bool;
        /// All memory of the volume: frames, index, tables, buffers, headers.
        mem_used_bytes: u64 = bytes "memory used"
            => gauge "ztier_memory_used_bytes" "All memory used; with a backing store, by copies.";
        /// Records whose checksum did not hold when they were read.
        [thread] corrupt_records: u64 = count "damaged records"
            => counter "ztier_corrupt_records_total" "Records read with a wrong checksum.";
        /// The durable log, where there is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        log: Option<LogStats>;
        /// Blocks that were damaged in the log before they reached the backing store, as first
        /// block and count.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        log_lost_blocks: Vec<(u64, u64)>;
        /// Whether a user has taken note of all of those.
        log_loss_noted: bool;
        /// The read cache of a backing store, where there is one.
        #[serde(skip_serializing_if = "Option::is_none")]
        cache: Option<CacheStats>;
        /// Why that holds what the page cache has, too, although it was asked not to.
        #[serde(skip_serializing_if = "Option::is_none")]
        not_exclusive: Option<String>;
        /// The store of objects that the volume is in, if it is in one.
        #[serde(skip_serializing_if = "Option::is_none")]
        object: Option<ObjectStats>;
        /// Drives on which something has failed, since the daemon began.
        #[serde(skip_serializing_if = "Vec::is_empty")]
        drives: Vec<drives::Failing>;
        /// Bytes of data that still fit into a volume in memory, if they compress like what is
        /// stored. Absent while too little is stored to tell.
        #[serde(skip_serializing_if = "Option::is_none")]
        room_bytes: Option<u64>
            => gauge "ztier_room_bytes"
                "Data that still fits in memory at the present compression; absent while too \
                 little is stored.";
        /// How the volume is, in one word.
        health: Health;
    }
    Memory {
        /// Blocks that were stored and are freed by a discard or write-zeroes (historic:
        /// `PagesDiscard`).
        [thread] blocks_discarded: u64 = count "blocks discarded"
            => counter "ztier_discarded_blocks_total"
                "Stored blocks freed by discard or write-zeroes.";
        /// Blocks of swap that were stored and are freed because the kernel has freed their slots.
        [thread] freed_slots: u64 = count "swap slots freed"
            => counter "ztier_swap_freed_slots_total"
                "Stored blocks freed because the kernel freed their swap slots.";
        /// Blocks stored as records: neither holes nor same-filled (historic: `PagesStored`).
        [thread] blocks_stored: u64 = count "blocks stored"
            => gauge "ztier_stored_blocks" "Blocks of 4096 bytes stored as records.";
        /// Blocks that read as one repeated 8-byte word other than zero, or as written zeros.
        [thread] blocks_same: u64 = count "blocks same-filled"
            => gauge "ztier_same_filled_blocks"
                "Blocks of one repeated word, zeros included: no memory.";
        /// Of those, blocks of written zeros (historic: `ZeroPages`).
        [thread] blocks_zero: u64 = count "  zeros"
            => gauge "ztier_zero_blocks" "Written blocks of zeros.";
        /// Stored blocks of at most half their size (historic: the count behind `GoodCompress`).
        [thread] blocks_good: u64 = count "  at most half"
            => gauge "ztier_half_size_blocks" "Stored blocks of at most half their size.";
        /// Stored blocks that did not shrink below three quarters: more than 3072 bytes
        /// (historic: the count behind `NoCompress`).
        [thread] blocks_poor: u64 = count "  above 3/4"
            => gauge "ztier_poorly_compressed_blocks"
                "Stored blocks above three quarters of their size.";
        /// Stored blocks kept as they are because no codec made them smaller.
        [thread] blocks_raw: u64 = count "  raw"
            => gauge "ztier_raw_blocks" "Stored blocks that no codec made smaller.";
        /// How many blocks were ever stored as they are.
        [thread] blocks_raw_total: u64
            => counter "ztier_raw_blocks_written_total" "Blocks ever stored as they are.";
        /// `blocks_stored` × 4096.
        orig_data_bytes: u64 = bytes "data stored"
            => gauge "ztier_data_bytes"
                "Stored data before compression, without same-filled blocks.";
        /// Payload: what the stored blocks take after compression, without headers.
        [thread] compr_data_bytes: u64 = bytes "  as payload"
            => gauge "ztier_compressed_bytes" "Stored data after compression, without headers.";
        /// The most that `mem_used_bytes` ever was.
        mem_used_max_bytes: u64 = bytes "memory at most"
            => gauge "ztier_memory_used_peak_bytes" "Most memory ever used.";
        /// Part of `mem_used_bytes`: RAM frames that hold segments or are kept ready to.
        frames_bytes: u64 = bytes "  frames"
            => gauge "ztier_memory_frames_bytes" "Memory of frames, used or ready.";
        /// Part of `mem_used_bytes`: what is not frames (index leaves, directory, tables, zero
        /// map).
        metadata_bytes: u64 = bytes "  metadata"
            => gauge "ztier_memory_metadata_bytes" "Memory of index and tables.";
        /// Part of `mem_used_bytes`: codec state and scratch memory of the channels.
        buffers_bytes: u64 = bytes "  buffers"
            => gauge "ztier_memory_buffers_bytes" "Memory of threads: state and scratch.";
        /// Part of `frames_bytes`: headers of live records.
        [thread] record_headers_bytes: u64
            => gauge "ztier_record_headers_bytes" "Headers of live records, part of the frames.";
        /// `metadata_bytes` ÷ (`blocks_stored` + `blocks_same`); 0 when nothing is stored.
        metadata_bytes_per_block: f64;
        /// Segments that hold live records.
        segments: u64 = count "segments" => gauge "ztier_segments" "Segments with live records.";
        /// Segments that the cleaner emptied.
        [thread] segments_cleaned: u64 = count "  cleaned"
            => counter "ztier_cleaned_segments_total" "Segments the cleaner emptied.";
        /// Blocks that the cleaner moved (historic: `pages_compacted`).
        [thread] blocks_moved: u64 = count "blocks moved"
            => counter "ztier_cleaner_moved_blocks_total" "Blocks the cleaner moved.";
        /// Bytes that the cleaner moved.
        [thread] bytes_moved: u64 = bytes "  bytes"
            => counter "ztier_cleaner_moved_bytes_total" "Bytes the cleaner moved.";
        /// Writes that had to wait for the cleaner to make room, or for a frame of the mempool.
        stalls: u64 = count "stalls"
            => counter "ztier_write_stalls_total" "Writes that waited for room or memory.";
        /// Writes refused because nothing more fits.
        no_space: u64 = count "without space"
            => counter "ztier_no_space_writes_total" "Writes refused for lack of space.";
        /// Blocks that are compressed together with their neighbours.
        [thread] blocks_clustered: u64 = count "blocks in clusters"
            => gauge "ztier_clustered_blocks" "Blocks compressed with their neighbours.";
        /// Part of `compr_data_bytes`: what those blocks take, headers included.
        [thread] cluster_bytes: u64 = bytes "  as payload"
            => gauge "ztier_clusters_bytes" "Bytes of clusters, headers included.";
        /// Blocks recompressed so far.
        [thread] blocks_recompressed: u64 = count "blocks recompressed"
            => counter "ztier_recompressed_blocks_total" "Blocks recompressed.";
        /// Bytes that recompressing has saved.
        [thread] recompress_saved_bytes: u64
            => counter "ztier_recompression_saved_bytes_total" "Bytes saved by recompression.";
        /// Groups of neighbours that were tried, and left because too little would have been saved.
        [thread] recompress_in_vain: u64
            => counter "ztier_recompression_abandoned_groups_total"
                "Groups not recompressed: too little to save.";
        /// Blocks that left their clusters because they were read again.
        recompress_promoted_blocks: u64
            => counter "ztier_recompression_promoted_blocks_total"
                "Blocks that left their clusters: read again.";
        /// Milliseconds spent on recompressing.
        recompress_ms: u64
            => counter ms "ztier_recompression_seconds_total" "Time spent recompressing.";
        /// Whether a user asked for everything to be recompressed, and it is not done yet.
        recompressing: bool;
        /// Blocks that were given up with a spill device since the daemon's start: reading them
        /// fails until they are written or discarded.
        spill_lost_blocks: u64 = count "lost with a spill device"
            => counter "ztier_spill_lost_blocks_total"
                "Blocks given up with a spill device: only that had them.";
    }
    Spill {
        /// Read requests to the spill device (historic: `BDevNumReads`).
        spill_device_reads: u64 = count "spill device: reads"
            => counter "ztier_spill_reads_total" "Reads of the spill device.";
        /// Spilled blocks that were read; a read of the device serves several.
        [thread] spill_read_blocks: u64 = count "  blocks read by them"
            => counter "ztier_spill_read_blocks_total" "Spilled blocks that requests read.";
        /// Write requests to the spill device (historic: `BDevNumWrites`).
        spill_device_writes: u64 = count "  writes"
            => counter "ztier_spill_writes_total" "Writes to the spill device.";
        /// Nanoseconds that those reads took together.
        spill_reading_ns: u64 => counter ns "ztier_spill_read_seconds_total" "Time in those reads.";
        /// Nanoseconds that those writes took together.
        spill_writing_ns: u64
            => counter ns "ztier_spill_write_seconds_total" "Time in those writes.";
        /// Bytes read from the spill device.
        spill_read_bytes: u64 = bytes "  read"
            => counter "ztier_spill_read_bytes_total" "Bytes read from the spill device.";
        /// Bytes written to the spill device.
        spill_written_bytes: u64 = bytes "  written"
            => counter "ztier_spill_written_bytes_total" "Bytes written to the spill device.";
        /// Bytes that the daily limit of the spill device still allows; absent without such a
        /// limit.
        #[serde(skip_serializing_if = "Option::is_none")]
        spill_allowed_bytes: Option<u64>
            => gauge "ztier_spill_allowance_bytes"
                "Bytes left of the daily limit; absent without one.";
        /// Slots on the spill device, of a segment each; 0 where there is none.
        spill_slots: u64 = count "  slots"
            => gauge "ztier_spill_slots" "Slots of the spill device, a segment each.";
        /// Slots that hold a segment.
        spill_slots_used: u64 = count "  slots in use"
            => gauge "ztier_spill_used_slots" "Slots in use.";
        /// Segments that went down to the spill device so far.
        [thread] spilled_segments: u64 = count "segments spilled"
            => counter "ztier_spilled_segments_total" "Segments spilled.";
        /// Blocks that are on the spill device and not in memory.
        spilled_blocks: u64 = count "blocks spilled"
            => gauge "ztier_spilled_blocks" "Blocks only on the spill device.";
        /// Bytes of the records of those blocks.
        spilled_bytes: u64 = bytes "  as payload"
            => gauge "ztier_spilled_bytes" "Bytes of spilled blocks' records.";
        /// Blocks that came back into memory because they were read again.
        spill_promoted_blocks: u64 = count "  back in memory"
            => counter "ztier_spill_promoted_blocks_total" "Blocks back in memory: read again.";
        /// Requests to the spill device that failed.
        spill_errors: u64 = count "  failed requests"
            => counter "ztier_spill_errors_total" "Failed requests to the spill device.";
        /// Whether the last write to the spill device failed: it is tried again in at most a
        /// minute.
        spill_failed: bool
            => gauge "ztier_spill_failed"
                "Whether the last write to the spill device failed; retried within a minute.";
    }
}
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

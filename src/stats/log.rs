//! What is counted about a log; see [`super::declare`].

use super::Latency;
use super::declare::{Exported, Number, Row, Shown, Subject, declare};
use serde::{Deserialize, Serialize};

declare! {
/// What a durable log holds and has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct LogStats {
    Log {
        /// Segments of the log (historic: `nr_segments`).
        segments: u64 = count "log segments" => gauge "ztier_log_segments" "Segments of the log.";
        /// Segments that are not written back: they may hold dirty blocks.
        segments_used: u64 = count "  not written back"
            => gauge "ztier_log_used_segments" "Segments not written back.";
        /// Segments that are written back and still serve reads.
        segments_clean: u64 = count "  written back"
            => gauge "ztier_log_clean_segments" "Segments written back that serve reads.";
        /// Number of the oldest segment that is not written back; all before it are (historic:
        /// `last_writeback_segment_id` is the one before).
        segment_tail: u64 = count "  number of the oldest";
        /// Number of the last segment of which everything is durable (historic:
        /// `last_flushed_segment_id`).
        segment_durable: u64 = count "  of the newest durable";
        /// Number of the newest segment (historic: `current_id`, `cursor`).
        segment_newest: u64 = count "  of the newest";
        /// Dirty blocks: the backing store lacks them (historic: `nr_dirty_cache_blocks`).
        blocks_dirty: u64 = count "blocks not in backing"
            => gauge blocks "ztier_log_dirty_bytes" "Data in the log that the backing store lacks.";
        /// Blocks of discarded and zeroed ranges that are still to be zeroed in the backing store.
        blocks_zeroed: u64 = count "blocks to zero in backing"
            => gauge blocks "ztier_log_zeroed_bytes"
                "Discarded and zeroed ranges still to be zeroed in the backing store.";
        /// Clean blocks: the log has them, and the backing store, too.
        blocks_clean: u64 = count "blocks in both"
            => gauge blocks "ztier_log_clean_bytes"
                "Clean data in the log: the backing store has it, too.";
        /// Blocks read from the log that were clean.
        reads_clean: u64 = count "  read there"
            => counter "ztier_log_clean_read_blocks_total" "Clean blocks read from the log.";
        /// Blocks of the backing store that were appended because they were read again and again.
        copies_kept: u64 = count "  kept"
            => counter "ztier_log_kept_copies_total"
                "Blocks of the backing store appended: read repeatedly.";
        /// Blocks that the backing store has, and that were appended again before their segment was
        /// freed, because they had been read.
        copies_kept_again: u64 = count "  kept again"
            => counter "ztier_log_kept_again_copies_total"
                "Copies appended again, because read, before their segment was freed.";
        /// Bytes that both kinds of copies took.
        copies_bytes: u64;
        /// Clean blocks whose segment was freed.
        copies_released: u64 = count "  gone"
            => counter "ztier_log_released_copies_total" "Clean blocks freed with their segment.";
        /// Blocks that could not be read from the log, and were read from the backing store.
        copies_damaged: u64 = count "  damaged"
            => counter "ztier_log_damaged_copies_total"
                "Blocks unreadable in the log, read from the backing store.";
        /// Whether the clean blocks that the log had when the volume came up have served reads
        /// since.
        warm: bool;
        /// Memory of the index.
        index_bytes: u64 => gauge "ztier_log_index_bytes" "Memory of the log's index.";
        /// Blocks appended.
        blocks_appended: u64;
        /// Bytes of those blocks, before compression.
        asked_bytes: u64 = bytes "asked to be written"
            => counter "ztier_log_asked_bytes_total" "Appended data before compression.";
        /// Appended blocks that were compressed together with their neighbours.
        blocks_clustered: u64 = count "  blocks in clusters"
            => counter "ztier_log_clustered_blocks_total"
                "Blocks compressed with their neighbours.";
        /// Bytes that those blocks took, compressed.
        cluster_bytes: u64 = bytes "    compressed";
        /// Bytes written to the log's drive.
        written_bytes: u64 = bytes "  log written"
            => counter "ztier_log_written_bytes_total" "Bytes written to the log's drive.";
        /// Bytes of checkpoints among those.
        checkpoint_bytes: u64 = bytes "  in checkpoints"
            => counter "ztier_log_checkpoint_bytes_total"
                "Bytes of checkpoints written to the log's drive.";
        /// Checkpoints made.
        checkpoints: u64 = count "checkpoints"
            => counter "ztier_log_checkpoints_total" "Checkpoints made.";
        /// Bytes of chunks closed since the last checkpoint began.
        since_checkpoint_bytes: u64
            => gauge "ztier_log_since_checkpoint_bytes"
                "Bytes since the last checkpoint began: opening the log reads them.";
        /// Chunks closed.
        chunks: u64 = count "chunks" => counter "ztier_log_chunks_total" "Chunks closed.";
        /// Chunks closed with room for more, because a request waited for the commit, or no write
        /// came (historic: `nr_partial_flushed`).
        chunks_partial: u64 = count "  closed with room left"
            => counter "ztier_log_partial_chunks_total"
                "Chunks closed not full: a flush or synced write waited, or no write came.";
        /// Blocks read from the log's memory.
        reads_memory: u64 = count "blocks read: memory";
        /// Blocks read from the log's drive.
        reads_log: u64 = count "  log";
        /// Blocks read that the log knows as zeros.
        reads_zeros: u64 = count "  zeros";
        /// Blocks read that the log did not have.
        reads_backing: u64 = count "  backing";
        /// Parts of requests that read less than a block.
        reads_partial: u64 = count "  parts of blocks";
        /// Blocks written that the log had in memory.
        writes_over_memory: u64 = count "blocks written: over memory";
        /// Blocks written that the log had on its drive.
        writes_over_log: u64 = count "  over log";
        /// Blocks written that the log did not have.
        writes_new: u64 = count "  new";
        /// Parts of requests that wrote less than a block, and had to read it first.
        writes_partial: u64 = count "  parts of blocks";
        /// Bytes that writeback wrote to the backing store.
        written_back_bytes: u64 = bytes "  backing written"
            => counter "ztier_writeback_bytes_total" "Bytes written back.";
        /// Bytes that writeback zeroed in the backing store.
        zeroed_back_bytes: u64 = bytes "  backing zeroed"
            => counter "ztier_writeback_zeroed_bytes_total"
                "Bytes zeroed in the backing store by writeback.";
        /// Flushes asked of the log.
        flushes: u64 = count "flushes"
            => counter "ztier_log_flushes_total" "Flushes asked of the log.";
        /// Flushes of the log's drive.
        drive_flushes: u64 = count "  of the log's drive"
            => counter "ztier_log_drive_flushes_total" "Flushes of the log's drive.";
        /// Commits that flushes or synced writes waited for: from the close of their last chunk
        /// until it is durable. The flush requests' own times have the wait for an earlier commit,
        /// too.
        commits: Latency;
        /// Requests to the log's drive that failed.
        errors: u64 = count "errors of the log's drive"
            => counter "ztier_log_errors_total" "Requests to the log's drive that failed.";
        /// Windows of writeback that ended well.
        windows: u64 = count "windows"
            => counter "ztier_writeback_windows_total" "Writeback windows that succeeded.";
        /// Windows of writeback that failed and are tried again.
        windows_failed: u64 = count "  failed"
            => counter "ztier_writeback_failed_windows_total"
                "Writeback windows that failed; they are retried.";
        /// Records appended again, because their content was nowhere else when their segment was
        /// freed.
        repeated: u64;
        /// Windows of writeback that failed because the log could not be read.
        windows_unread: u64 = count "    to read the log";
        /// Whether the log's drive failed for good.
        failed: bool => gauge "ztier_log_failed" "Whether the log's drive failed for good.";
        /// When the log's drive failed, in seconds since 1970.
        failed_unix_s: u64;
        /// Whether the log has failed, and its data is being brought to the backing store.
        rescuing: bool
            => gauge "ztier_log_rescuing"
                "Whether the log's drive failed and its data is moving to the backing store.";
        /// Whether the log has failed, and writes go to the backing store.
        through: bool;
        /// Since when writes go to the backing store, in seconds since 1970.
        through_unix_s: u64;
        /// The backing store alone was last a past state of the volume: that of this time at the
        /// latest, in seconds since 1970; 0 when it is not known.
        past_unix_s: u64;
        /// Since when the backing store alone may be a mixture of states, in seconds since 1970; 0
        /// while it is a state that the volume had.
        mixture_since_unix_s: u64
            => gauge unless_0 "ztier_backing_mixture_since_seconds"
                "Unix time since when the backing store alone may be a mixture of states; absent \
                 while it is one state that the volume had.";
        /// Age of the oldest change that the backing store lacks, in seconds; one of an earlier
        /// process counts from the opening on.
        unsent_age_s: u64
            => gauge "ztier_log_oldest_change_seconds"
                "Age of the oldest change that the backing store lacks.";
        /// Whether the backing store alone is the volume, but for lost blocks.
        clean: bool
            => gauge "ztier_log_clean"
                "Whether the backing store alone is the volume, but for lost blocks.";
    }
}
}

impl LogStats {
    /// Bytes of changes that the backing store lacks, data and zeros; 0 if it lacks none.
    pub fn left_bytes(&self) -> u64 {
        (self.blocks_dirty + self.blocks_zeroed) * crate::BLOCK_SIZE as u64
    }
}

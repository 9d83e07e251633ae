//! The metrics of volumes with a log; see [`super::table`].

use super::metric::{Kind, Metric, Source, counter, gauge};
use super::text::{Number, seconds};
use crate::BLOCK_SIZE;

fn blocks(count: u64) -> Number {
    (count * BLOCK_SIZE as u64).into()
}

pub(super) const LOG: &[Metric] = &[
    gauge("ztier_log_segments", "Segments of the log.", Source::Log(|l| l.segments.into())),
    gauge(
        "ztier_log_used_segments",
        "Segments not written back.",
        Source::Log(|l| l.segments_used.into()),
    ),
    gauge(
        "ztier_log_clean_segments",
        "Segments written back that serve reads.",
        Source::Log(|l| l.segments_clean.into()),
    ),
    gauge(
        "ztier_log_dirty_bytes",
        "Data in the log that the backing store lacks.",
        Source::Log(|l| blocks(l.blocks_dirty)),
    ),
    gauge(
        "ztier_log_clean_bytes",
        "Clean data in the log: the backing store has it, too.",
        Source::Log(|l| blocks(l.blocks_clean)),
    ),
    gauge(
        "ztier_log_index_bytes",
        "Memory of the log's index.",
        Source::Log(|l| l.index_bytes.into()),
    ),
    counter(
        "ztier_log_read_blocks_total",
        "Blocks read, by source: memory, log, zeros, backing.",
        Source::Sample(|sample, volume, f| {
            let Some(log) = &sample.stats.log else { return };
            for (source, count) in [
                ("memory", log.reads_memory),
                ("log", log.reads_log),
                ("zeros", log.reads_zeros),
                ("backing", log.reads_backing),
            ] {
                f.sample(&[("volume", volume), ("source", source)], count);
            }
        }),
    )
    .by(&["source"]),
    counter(
        "ztier_log_clean_read_blocks_total",
        "Clean blocks read from the log.",
        Source::Log(|l| l.reads_clean.into()),
    ),
    counter(
        "ztier_log_written_blocks_total",
        "Blocks written, by what they replaced in the log: memory, log, new (none).",
        Source::Sample(|sample, volume, f| {
            let Some(log) = &sample.stats.log else { return };
            for (over, count) in [
                ("memory", log.writes_over_memory),
                ("log", log.writes_over_log),
                ("new", log.writes_new),
            ] {
                f.sample(&[("volume", volume), ("over", over)], count);
            }
        }),
    )
    .by(&["over"]),
    counter(
        "ztier_log_asked_bytes_total",
        "Appended data before compression.",
        Source::Log(|l| l.asked_bytes.into()),
    ),
    counter(
        "ztier_log_written_bytes_total",
        "Bytes written to the log's drive.",
        Source::Log(|l| l.written_bytes.into()),
    ),
    counter(
        "ztier_log_checkpoint_bytes_total",
        "Bytes of checkpoints written to the log's drive.",
        Source::Log(|l| l.checkpoint_bytes.into()),
    ),
    counter(
        "ztier_log_checkpoints_total",
        "Checkpoints made.",
        Source::Log(|l| l.checkpoints.into()),
    ),
    gauge(
        "ztier_log_since_checkpoint_bytes",
        "Bytes since the last checkpoint began: opening the log reads them.",
        Source::Log(|l| l.since_checkpoint_bytes.into()),
    ),
    counter("ztier_log_chunks_total", "Chunks closed.", Source::Log(|l| l.chunks.into())),
    counter(
        "ztier_log_partial_chunks_total",
        "Chunks closed not full: a flush or synced write waited, or no write came.",
        Source::Log(|l| l.chunks_partial.into()),
    ),
    counter(
        "ztier_log_clustered_blocks_total",
        "Blocks compressed with their neighbours.",
        Source::Log(|l| l.blocks_clustered.into()),
    ),
    counter(
        "ztier_log_flushes_total",
        "Flushes asked of the log.",
        Source::Log(|l| l.flushes.into()),
    ),
    counter(
        "ztier_log_drive_flushes_total",
        "Flushes of the log's drive.",
        Source::Log(|l| l.drive_flushes.into()),
    ),
    gauge(
        "ztier_log_commit_duration_seconds",
        "Summary: commits that flushes or synced writes waited for, since the daemon began.",
        Source::Sample(|sample, volume, f| {
            let Some(log) = &sample.stats.log else { return };
            let took = &log.commits;
            let quantiles = [
                ("0.5", seconds(took.p50_ns)),
                ("0.99", seconds(took.p99_ns)),
                ("0.999", seconds(took.p999_ns)),
            ];
            f.summary(&[("volume", volume)], &quantiles, (seconds(took.sum_ns), took.count));
        }),
    )
    .of_kind(Kind::Summary),
    counter(
        "ztier_log_kept_copies_total",
        "Blocks of the backing store appended: read repeatedly.",
        Source::Log(|l| l.copies_kept.into()),
    ),
    counter(
        "ztier_log_kept_again_copies_total",
        "Copies appended again, because read, before their segment was freed.",
        Source::Log(|l| l.copies_kept_again.into()),
    ),
    counter(
        "ztier_log_released_copies_total",
        "Clean blocks freed with their segment.",
        Source::Log(|l| l.copies_released.into()),
    ),
    counter(
        "ztier_log_damaged_copies_total",
        "Blocks unreadable in the log, read from the backing store.",
        Source::Log(|l| l.copies_damaged.into()),
    ),
    counter(
        "ztier_writeback_bytes_total",
        "Bytes written back.",
        Source::Log(|l| l.written_back_bytes.into()),
    ),
    counter(
        "ztier_writeback_windows_total",
        "Writeback windows that succeeded.",
        Source::Log(|l| l.windows.into()),
    ),
    counter(
        "ztier_writeback_failed_windows_total",
        "Writeback windows that failed; they are retried.",
        Source::Log(|l| l.windows_failed.into()),
    ),
    gauge(
        "ztier_backing_mixture_since_seconds",
        "Unix time since when the backing store alone may be a mixture of states; absent while it \
         is one state that the volume had.",
        Source::Log(|l| Some(l.mixture_since_unix_s).filter(|s| *s > 0).into()),
    ),
    gauge(
        "ztier_log_clean",
        "Whether the backing store alone is the volume, but for lost blocks.",
        Source::Log(|l| l.clean.into()),
    ),
    counter(
        "ztier_log_errors_total",
        "Requests to the log's drive that failed.",
        Source::Log(|l| l.errors.into()),
    ),
    gauge(
        "ztier_log_failed",
        "Whether the log's drive failed for good.",
        Source::Log(|l| l.failed.into()),
    ),
    gauge(
        "ztier_log_rescuing",
        "Whether the log's drive failed and its data is moving to the backing store.",
        Source::Log(|l| l.rescuing.into()),
    ),
    gauge(
        "ztier_log_lost_blocks",
        "Blocks damaged in the log before writeback.",
        Source::Sample(|sample, volume, f| {
            let lost = sample.stats.lost_blocks();
            f.sample(&[("volume", volume)], sample.stats.log.map(|_| lost));
        }),
    ),
    gauge(
        "ztier_log_loss_noted",
        "Whether a user has noted all lost blocks (`ztier accept-loss`).",
        Source::Sample(|sample, volume, f| {
            let noted = sample.stats.log_loss_noted;
            f.sample(&[("volume", volume)], sample.stats.log.map(|_| noted));
        }),
    ),
];

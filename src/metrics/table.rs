//! The table of all metrics: name, kind, meaning, labels, and where the value comes from.
//!
//! Invariants (checked by the tests): names are Prometheus' (`ztier_` first, base units, `_total`
//! for counters alone), and what a metric writes has no other labels than it says.

use super::metric::{Group, Kind, Metric, Source, counter, gauge};
use super::of_log::LOG;
use super::text::{Family, seconds};
use crate::control::{Role, Sample};
use crate::daemon::survey::Seen;
use crate::stats::Health;
use crate::volume::Algorithm;
use std::path::Path;

/// Every metric there is, in the order in which they are written.
pub static GROUPS: &[Group] = &[
    Group { title: "The exporter", metrics: EXPORTER },
    Group { title: "Every volume", metrics: VOLUME },
    Group { title: "Volumes that are up", metrics: UP },
    Group { title: "Requests", metrics: REQUESTS },
    Group { title: "Volumes in memory", metrics: MEMORY },
    Group { title: "Volumes with a spill device", metrics: SPILL },
    Group { title: "Volumes with copies of a backing store's blocks", metrics: CACHE },
    Group { title: "Volumes with a log", metrics: LOG },
    Group { title: "Volumes whose limit adapts", metrics: LIMIT },
];

const EXPORTER: &[Metric] = &[
    gauge(
        "ztier_build_info",
        "1; the label has the version of the exporter.",
        Source::Exporter(|_, f| f.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1u64)),
    )
    .by(&["version"]),
    gauge(
        "ztier_scrape_duration_seconds",
        "How long it took to ask all volumes.",
        Source::Exporter(|scrape, f| f.sample(&[], scrape.took.as_secs_f64())),
    ),
];

const STATES: [&str; 4] = ["up", "starting", "busy", "dead"];

const VOLUME: &[Metric] = &[
    gauge(
        "ztier_volume_up",
        "Whether the volume's daemon answered (1) or not (0).",
        Source::Seen(|seen, volume, f| f.sample(&[("volume", volume)], seen.sample().is_some())),
    ),
    gauge(
        "ztier_volume_state",
        "1 for the state that the volume is in: up, starting, busy (lives, does not answer), dead.",
        Source::Seen(|seen, volume, f| {
            for state in STATES {
                f.sample(&[("volume", volume), ("state", state)], seen.state() == state);
            }
        }),
    )
    .by(&["state"]),
    gauge(
        "ztier_volume_memory_kept",
        "Whether what a dead daemon had in memory is kept for the next one.",
        Source::Seen(|seen, volume, f| {
            if let Seen::Dead { kept, .. } = seen {
                f.sample(&[("volume", volume)], *kept);
            }
        }),
    ),
];

fn info(sample: &Sample, volume: &str, family: &mut Family<'_>) {
    let plan = &sample.plan;
    let path = |path: Option<&Path>| path.map(|p| p.display().to_string()).unwrap_or_default();
    let log = plan.log.as_ref();
    let algorithm = match plan.algorithm {
        Algorithm::Lz4 => "lz4",
        Algorithm::Zstd => "zstd",
        Algorithm::None => "none",
    };
    let labels = [
        ("volume", volume),
        ("role", sample.role().name()),
        ("export", plan.export.kind()),
        ("algorithm", algorithm),
        ("endpoint", sample.endpoints.first().map_or("", String::as_str)),
        ("log", &path(log.map(|log| log.log.as_path()))),
        ("backing", &path(log.map(|log| log.backing.as_path()).or(plan.backing.as_deref()))),
        ("spill", &path(plan.spill.as_ref().map(|spill| spill.device.as_path()))),
        ("version", &sample.version),
    ];
    family.sample(&labels, 1u64);
}

const UP: &[Metric] = &[
    gauge("ztier_volume_info", "1; the labels say what the volume is.", Source::Sample(info))
        .by(&["role", "export", "algorithm", "endpoint", "log", "backing", "spill", "version"]),
    gauge(
        "ztier_volume_start_time_seconds",
        "When the volume's daemon became ready, in seconds since 1970.",
        Source::Number(|s| s.started_unix_s.into()),
    ),
    gauge(
        "ztier_volume_health",
        "1 for how the volume is: ok, filling (little room is left), degraded (something below does not work, or did not within \
         the last hour), failed (takes nothing more), lost (data that no user has taken note of).",
        Source::Sample(|sample, volume, f| {
            for health in Health::ALL {
                let labels = [("volume", volume), ("health", health.name())];
                f.sample(&labels, sample.stats.health == health);
            }
        }),
    )
    .by(&["health"]),
    counter(
        "ztier_drive_errors_total",
        "Requests that a drive below has failed, by what the drive is to the volume (log, backing, \
         spill), what was asked, and the errno.",
        Source::Sample(|sample, volume, f| {
            for drive in &sample.stats.drives {
                for failure in &drive.failures {
                    let labels = [
                        ("volume", volume),
                        ("drive", drive.role.name()),
                        ("operation", failure.operation.name()),
                        ("errno", &failure.errno.to_string()),
                    ];
                    f.sample(&labels, failure.count);
                }
            }
        }),
    )
    .by(&["drive", "operation", "errno"]),
    gauge(
        "ztier_drive_last_error_timestamp_seconds",
        "When a drive below failed a request last, in seconds since 1970.",
        Source::Sample(|sample, volume, f| {
            for drive in &sample.stats.drives {
                let labels = [("volume", volume), ("drive", drive.role.name())];
                f.sample(&labels, drive.last_unix_s());
            }
        }),
    )
    .by(&["drive"]),
    counter(
        "ztier_volume_restarts_total",
        "Daemons that have gone on with what an earlier one had in memory.",
        Source::Number(|s| s.restarts.into()),
    ),
    gauge(
        "ztier_size_bytes",
        "Size of the device.",
        Source::Number(|s| s.stats.disk_size_bytes.into()),
    ),
    gauge(
        "ztier_home_bytes",
        "Data, before compression, that a home holds. A block may be in several: ram are copies \
         where there is a backing store, log what is there (also what the backing store has, too), \
         backing what is there as it is now.",
        Source::Sample(|sample, volume, f| {
            let homes = sample.homes();
            let backed = matches!(sample.role(), Role::Cache | Role::Log);
            for (home, is_there, bytes) in [
                ("ram", true, homes.ram),
                ("spill", sample.role() == Role::Spill, homes.spill),
                ("log", sample.role() == Role::Log, homes.log),
                ("backing", backed, homes.backing),
            ] {
                let labels = [("volume", volume), ("home", home)];
                f.sample(&labels, is_there.then_some(bytes));
            }
        }),
    )
    .by(&["home"]),
    gauge(
        "ztier_compression_ratio",
        "Bytes of data for each byte that they take compressed; absent while there are none.",
        Source::Number(|s| s.compression().into()),
    ),
    gauge(
        "ztier_memory_limit_bytes",
        "The limit on all memory of the volume; with a backing store, on that for copies.",
        Source::Number(|s| s.stats.ram_limit_bytes.into()),
    ),
    gauge(
        "ztier_room_bytes",
        "Bytes of data that a volume in memory has room for yet, as what is stored compresses; \
         absent while too little is stored to tell.",
        Source::Sample(|sample, volume, f| {
            if let Some(room) = sample.stats.room_bytes {
                f.sample(&[("volume", volume)], room);
            }
        }),
    ),
    gauge(
        "ztier_memory_used_bytes",
        "All memory of the volume; with a backing store, that for copies.",
        Source::Number(|s| s.stats.mem_used_bytes.into()),
    ),
];

const REQUESTS: &[Metric] = &[
    counter(
        "ztier_requests_total",
        "Requests that ended, well or badly.",
        Source::Sample(|sample, volume, f| {
            for (operation, kind) in sample.stats.kinds() {
                f.sample(&[("volume", volume), ("operation", operation)], kind.requests);
            }
        }),
    )
    .by(&["operation"]),
    counter(
        "ztier_request_bytes_total",
        "Bytes that requests asked for.",
        Source::Sample(|sample, volume, f| {
            for (operation, kind) in sample.stats.kinds() {
                f.sample(&[("volume", volume), ("operation", operation)], kind.bytes);
            }
        }),
    )
    .by(&["operation"]),
    counter(
        "ztier_request_failures_total",
        "Requests that ended with an error.",
        Source::Sample(|sample, volume, f| {
            for (operation, kind) in sample.stats.kinds() {
                f.sample(&[("volume", volume), ("operation", operation)], kind.failed);
            }
        }),
    )
    .by(&["operation"]),
    counter(
        "ztier_invalid_requests_total",
        "Requests that lay outside the device.",
        Source::Number(|s| s.stats.invalid_io.into()),
    ),
    gauge(
        "ztier_request_service_duration_seconds",
        "How long requests were served.",
        Source::Sample(|sample, volume, f| {
            for (operation, spent) in sample.latencies.kinds() {
                f.histogram(&[("volume", volume), ("operation", operation)], &spent.serving, 1);
            }
        }),
    )
    .of_kind(Kind::Histogram)
    .by(&["operation"]),
    gauge(
        "ztier_request_wait_duration_seconds",
        "How long requests waited before they were served, stalls for want of memory included.",
        Source::Sample(|sample, volume, f| {
            for (operation, spent) in sample.latencies.kinds() {
                let labels = [("volume", volume), ("operation", operation)];
                // Most do not wait; how long the others do is asked for by its order of magnitude.
                f.histogram(&labels, &spent.waiting, 2);
            }
        }),
    )
    .of_kind(Kind::Histogram)
    .by(&["operation"]),
];

const MEMORY: &[Metric] = &[
    gauge(
        "ztier_memory_used_peak_bytes",
        "The most memory that was ever used.",
        Source::Memory(|s| s.mem_used_max_bytes.into()),
    ),
    gauge(
        "ztier_memory_frames_bytes",
        "Part of the memory used: frames that hold segments or are kept ready to.",
        Source::Memory(|s| s.frames_bytes.into()),
    ),
    gauge(
        "ztier_memory_metadata_bytes",
        "Part of the memory used: index and tables.",
        Source::Memory(|s| s.metadata_bytes.into()),
    ),
    gauge(
        "ztier_memory_buffers_bytes",
        "Part of the memory used: state and scratch memory of threads.",
        Source::Memory(|s| s.buffers_bytes.into()),
    ),
    gauge(
        "ztier_record_headers_bytes",
        "Part of the frames: headers of live records.",
        Source::Memory(|s| s.record_headers_bytes.into()),
    ),
    gauge(
        "ztier_data_bytes",
        "Stored data before compression, same-filled blocks left out.",
        Source::Memory(|s| s.orig_data_bytes.into()),
    ),
    gauge(
        "ztier_compressed_bytes",
        "What stored data takes after compression, without headers.",
        Source::Memory(|s| s.compr_data_bytes.into()),
    ),
    gauge(
        "ztier_stored_blocks",
        "Blocks of 4096 bytes that are stored as records.",
        Source::Memory(|s| s.blocks_stored.into()),
    ),
    gauge(
        "ztier_same_filled_blocks",
        "Blocks that are one repeated word and take no memory, zeros included.",
        Source::Memory(|s| s.blocks_same.into()),
    ),
    gauge(
        "ztier_zero_blocks",
        "Blocks of zeros that were written.",
        Source::Memory(|s| s.blocks_zero.into()),
    ),
    gauge(
        "ztier_half_size_blocks",
        "Stored blocks of at most half their size.",
        Source::Memory(|s| s.blocks_good.into()),
    ),
    gauge(
        "ztier_poorly_compressed_blocks",
        "Stored blocks above three quarters of their size.",
        Source::Memory(|s| s.blocks_poor.into()),
    ),
    gauge(
        "ztier_raw_blocks",
        "Blocks stored as they are because no codec made them smaller.",
        Source::Memory(|s| s.blocks_raw.into()),
    ),
    counter(
        "ztier_raw_blocks_written_total",
        "Blocks that were ever stored as they are.",
        Source::Memory(|s| s.blocks_raw_total.into()),
    ),
    counter(
        "ztier_discarded_blocks_total",
        "Stored blocks that were freed by a discard or write-zeroes.",
        Source::Memory(|s| s.blocks_discarded.into()),
    ),
    gauge(
        "ztier_segments",
        "Segments that hold live records.",
        Source::Memory(|s| s.segments.into()),
    ),
    counter(
        "ztier_cleaned_segments_total",
        "Segments that the cleaner emptied.",
        Source::Memory(|s| s.segments_cleaned.into()),
    ),
    counter(
        "ztier_cleaner_moved_blocks_total",
        "Blocks that the cleaner moved.",
        Source::Memory(|s| s.blocks_moved.into()),
    ),
    counter(
        "ztier_cleaner_moved_bytes_total",
        "Bytes that the cleaner moved.",
        Source::Memory(|s| s.bytes_moved.into()),
    ),
    counter(
        "ztier_write_stalls_total",
        "Writes that had to wait for room or for memory in stock.",
        Source::Memory(|s| s.stalls.into()),
    ),
    counter(
        "ztier_no_space_writes_total",
        "Writes that were refused because nothing more fits.",
        Source::Memory(|s| s.no_space.into()),
    ),
    counter(
        "ztier_corrupt_records_total",
        "Records whose checksum did not hold when they were read.",
        Source::Number(|s| s.stats.corrupt_records.into()),
    ),
    gauge(
        "ztier_clustered_blocks",
        "Blocks that are compressed together with their neighbours.",
        Source::Memory(|s| s.blocks_clustered.into()),
    ),
    gauge(
        "ztier_clusters_bytes",
        "What those take, headers included.",
        Source::Memory(|s| s.cluster_bytes.into()),
    ),
    counter(
        "ztier_recompressed_blocks_total",
        "Blocks recompressed.",
        Source::Memory(|s| s.blocks_recompressed.into()),
    ),
    counter(
        "ztier_recompression_saved_bytes_total",
        "Bytes that recompressed blocks took less afterwards.",
        Source::Memory(|s| s.recompress_saved_bytes.into()),
    ),
    counter(
        "ztier_recompression_abandoned_groups_total",
        "Groups of neighbours left as they were because too little would have been saved.",
        Source::Memory(|s| s.recompress_in_vain.into()),
    ),
    counter(
        "ztier_recompression_promoted_blocks_total",
        "Blocks that left their clusters because they were read again.",
        Source::Memory(|s| s.recompress_promoted_blocks.into()),
    ),
    counter(
        "ztier_recompression_seconds_total",
        "Time spent on recompressing.",
        Source::Memory(|s| (s.recompress_ms as f64 / 1e3).into()),
    ),
];

const SPILL: &[Metric] = &[
    counter(
        "ztier_spill_reads_total",
        "Read requests to the spill device.",
        Source::Spill(|s| s.spill_device_reads.into()),
    ),
    counter(
        "ztier_spill_writes_total",
        "Write requests to the spill device.",
        Source::Spill(|s| s.spill_device_writes.into()),
    ),
    counter(
        "ztier_spill_read_seconds_total",
        "Time that reads of the spill device took together.",
        Source::Spill(|s| seconds(s.spill_reading_ns).into()),
    ),
    counter(
        "ztier_spill_write_seconds_total",
        "Time that writes to the spill device took together.",
        Source::Spill(|s| seconds(s.spill_writing_ns).into()),
    ),
    counter(
        "ztier_spill_read_bytes_total",
        "Bytes read from the spill device.",
        Source::Spill(|s| s.spill_read_bytes.into()),
    ),
    counter(
        "ztier_spill_written_bytes_total",
        "Bytes written to the spill device.",
        Source::Spill(|s| s.spill_written_bytes.into()),
    ),
    gauge(
        "ztier_spill_allowance_bytes",
        "Bytes that the daily limit still lets through; absent without one.",
        Source::Spill(|s| s.spill_allowed_bytes.into()),
    ),
    gauge(
        "ztier_spill_slots",
        "Slots on the spill device, of a segment each.",
        Source::Spill(|s| s.spill_slots.into()),
    ),
    gauge(
        "ztier_spill_used_slots",
        "Slots that hold something.",
        Source::Spill(|s| s.spill_slots_used.into()),
    ),
    counter(
        "ztier_spilled_segments_total",
        "Segments that went down to the spill device.",
        Source::Spill(|s| s.spilled_segments.into()),
    ),
    gauge(
        "ztier_spilled_blocks",
        "Blocks that are on the spill device and not in memory.",
        Source::Spill(|s| s.spilled_blocks.into()),
    ),
    gauge(
        "ztier_spilled_bytes",
        "Bytes of their records.",
        Source::Spill(|s| s.spilled_bytes.into()),
    ),
    counter(
        "ztier_spill_promoted_blocks_total",
        "Blocks that came back into memory because they were read again.",
        Source::Spill(|s| s.spill_promoted_blocks.into()),
    ),
    counter(
        "ztier_spill_errors_total",
        "Requests to the spill device that failed.",
        Source::Spill(|s| s.spill_errors.into()),
    ),
    gauge(
        "ztier_spill_failed",
        "Whether the spill device failed to take what it was given last; it is tried again in at most \
         a minute.",
        Source::Spill(|s| s.spill_failed.into()),
    ),
];

const CACHE: &[Metric] = &[
    gauge(
        "ztier_cache_index_bytes",
        "Part of the memory used: index, ghosts and tables.",
        Source::Cache(|c| c.index_bytes.into()),
    ),
    gauge(
        "ztier_cache_copies_bytes",
        "Data that there are copies of, before compression.",
        Source::Cache(|c| c.original_bytes.into()),
    ),
    gauge(
        "ztier_cache_stored_bytes",
        "What the copies take, headers included.",
        Source::Cache(|c| c.stored_bytes.into()),
    ),
    counter(
        "ztier_cache_hit_blocks_total",
        "Blocks read that had a copy.",
        Source::Cache(|c| c.hit_blocks.into()),
    ),
    counter(
        "ztier_cache_missed_blocks_total",
        "Blocks read that had none.",
        Source::Cache(|c| c.missed_blocks.into()),
    ),
    counter(
        "ztier_cache_miss_seconds_total",
        "Time that the backing store took to give them.",
        Source::Cache(|c| seconds(c.missed_ns).into()),
    ),
    counter(
        "ztier_cache_mixed_reads_total",
        "Reads of which some blocks had a copy and others had none.",
        Source::Cache(|c| c.requests_mixed.into()),
    ),
    counter(
        "ztier_cache_bypassed_reads_total",
        "Reads that went past the cache, because too many were under way.",
        Source::Cache(|c| c.requests_bypassed.into()),
    ),
    counter(
        "ztier_cache_kept_blocks_total",
        "Copies that were made.",
        Source::Cache(|c| c.kept_blocks.into()),
    ),
    counter(
        "ztier_cache_evicted_blocks_total",
        "Copies that left to make room.",
        Source::Cache(|c| c.evicted_blocks.into()),
    ),
    counter(
        "ztier_cache_ghost_hit_blocks_total",
        "Blocks missed that had left not long before: a larger cache would have had them.",
        Source::Cache(|c| c.ghosts_hit_blocks.into()),
    ),
    counter(
        "ztier_cache_overtaken_blocks_total",
        "Blocks that were not kept because they were written meanwhile.",
        Source::Cache(|c| c.lost_blocks.into()),
    ),
    counter(
        "ztier_cache_readahead_blocks_total",
        "Blocks that were read ahead and kept.",
        Source::Cache(|c| c.ahead_blocks.into()),
    ),
    counter(
        "ztier_cache_readahead_used_blocks_total",
        "Of those, the ones that a request asked for.",
        Source::Cache(|c| c.ahead_used_blocks.into()),
    ),
    counter(
        "ztier_cache_readahead_useless_blocks_total",
        "Of those, the ones that left before a request asked for them.",
        Source::Cache(|c| c.ahead_useless_blocks.into()),
    ),
    counter(
        "ztier_cache_damaged_copies_total",
        "Copies whose check word did not hold; they were read again from the backing store.",
        Source::Cache(|c| c.damaged_copies.into()),
    ),
    counter(
        "ztier_backing_errors_total",
        "Requests to the backing store that failed.",
        Source::Cache(|c| c.backing_errors.into()),
    ),
];

const LIMIT: &[Metric] = &[
    gauge(
        "ztier_limit_min_bytes",
        "The lowest that the limit on memory may be.",
        Source::Limit(|r| r.bounds.min_bytes.into()),
    ),
    gauge("ztier_limit_max_bytes", "The highest.", Source::Limit(|r| r.bounds.max_bytes.into())),
    counter(
        "ztier_limit_changes_total",
        "How often it was changed.",
        Source::Limit(|r| r.changes.into()),
    ),
    counter(
        "ztier_limit_turns_total",
        "Changes that went the other way than the one before.",
        Source::Limit(|r| r.turns.into()),
    ),
    gauge(
        "ztier_limit_last_change_timestamp_seconds",
        "When it was changed last, in seconds since 1970; absent before the first change.",
        Source::Limit(|r| r.last_change.map(|change| change.unix_s).into()),
    ),
    gauge(
        "ztier_limit_reason",
        "1 for the reason why it is what it is (docs/limit.md).",
        Source::Sample(|sample, volume, f| {
            if let Some(report) = &sample.adapting {
                f.sample(&[("volume", volume), ("reason", report.reason.kind())], 1u64);
            }
        }),
    )
    .by(&["reason"]),
    gauge(
        "ztier_limit_wait_ratio",
        "Part of the time that is waited: for files that the machine had to drop (files), for data \
         of the volume that had to go (missed), for its coldest data if that went, at most \
         (coldest).",
        Source::Sample(|sample, volume, f| {
            let Some(report) = &sample.adapting else { return };
            let waits = report.waits;
            for (cause, part) in
                [("files", waits.files), ("missed", waits.missed), ("coldest", waits.coldest)]
            {
                f.sample(&[("volume", volume), ("cause", cause)], part);
            }
        }),
    )
    .by(&["cause"]),
    gauge(
        "ztier_limit_available_bytes",
        "Memory that others could have; absent where the machine does not tell.",
        Source::Limit(|r| r.available_bytes.into()),
    ),
    gauge(
        "ztier_limit_floor_bytes",
        "How much of that is to stay.",
        Source::Limit(|r| r.floor_bytes.into()),
    ),
    gauge(
        "ztier_limit_stalled_ratio",
        "Part of the time that a process waits for memory; absent where the machine does not tell.",
        Source::Limit(|r| r.stalled.into()),
    ),
];

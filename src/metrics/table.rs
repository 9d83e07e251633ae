//! The table of all metrics: name, kind, meaning, labels, and where the value comes from.
//!
//! Invariants (checked by the tests): names are Prometheus' (`ztier_` first, base units, `_total`
//! for counters alone), and what a metric writes has no other labels than it says.

use super::metric::{Group, Kind, Metric, Source, counter, gauge};
use super::of_log::LOG;
use super::text::{Family, Number, seconds};
use crate::control::{Role, Sample};
use crate::daemon::survey::Seen;
use crate::device::Algorithm;
use crate::stats::Health;
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
        "1; the exporter's version.",
        Source::Exporter(|_, f| f.sample(&[("version", env!("CARGO_PKG_VERSION"))], 1u64)),
    )
    .by(&["version"]),
    gauge(
        "ztier_scrape_duration_seconds",
        "Time to ask all volumes.",
        Source::Exporter(|scrape, f| f.sample(&[], scrape.took.as_secs_f64())),
    ),
];

const STATES: [&str; 4] = ["up", "starting", "busy", "dead"];

const VOLUME: &[Metric] = &[
    gauge(
        "ztier_volume_up",
        "1 if the daemon answered, 0 if not.",
        Source::Seen(|seen, volume, f| f.sample(&[("volume", volume)], seen.sample().is_some())),
    ),
    gauge(
        "ztier_volume_state",
        "1 for the state: up, starting, busy (lives, does not answer), dead.",
        Source::Seen(|seen, volume, f| {
            for state in STATES {
                f.sample(&[("volume", volume), ("state", state)], seen.state() == state);
            }
        }),
    )
    .by(&["state"]),
    gauge(
        "ztier_volume_memory_kept",
        "Whether a dead daemon's memory is kept for the next one.",
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
        "Unix time when the daemon became ready.",
        Source::Number(|s| s.started_unix_s.into()),
    ),
    gauge(
        "ztier_volume_health",
        "1 for the health: ok, filling (little room is left), degraded (a part fails, or \
         did within the last hour), failed (takes nothing more), lost (lost data that no user \
         noted).",
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
        "Requests that a drive below (log, backing, spill) failed, by operation and errno.",
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
        "Unix time of the last request that a drive failed.",
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
        "Daemons that took over an earlier one's memory.",
        Source::Number(|s| s.restarts.into()),
    ),
    gauge(
        "ztier_size_bytes",
        "Size of the device.",
        Source::Number(|s| s.stats.disk_size_bytes.into()),
    ),
    gauge(
        "ztier_home_bytes",
        "Data before compression in each home: ram (with a backing store: copies), spill, log \
         (clean, too), backing (what is current). A block may be in several.",
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
        "Bytes of data per compressed byte; absent without data.",
        Source::Number(|s| s.compression().into()),
    ),
    gauge(
        "ztier_memory_limit_bytes",
        "Limit on all memory; with a backing store, on copies.",
        Source::Number(|s| s.stats.ram_limit_bytes.into()),
    ),
    gauge(
        "ztier_room_bytes",
        "Data that still fits in memory at the present compression; absent while too little is \
         stored.",
        Source::Sample(|sample, volume, f| {
            if let Some(room) = sample.stats.room_bytes {
                f.sample(&[("volume", volume)], room);
            }
        }),
    ),
    gauge(
        "ztier_memory_used_bytes",
        "All memory used; with a backing store, by copies.",
        Source::Number(|s| s.stats.mem_used_bytes.into()),
    ),
];

const REQUESTS: &[Metric] = &[
    counter(
        "ztier_requests_total",
        "Requests ended, with or without error.",
        Source::Sample(|sample, volume, f| {
            for (operation, kind) in sample.stats.kinds() {
                f.sample(&[("volume", volume), ("operation", operation)], kind.requests);
            }
        }),
    )
    .by(&["operation"]),
    counter(
        "ztier_request_bytes_total",
        "Bytes asked for.",
        Source::Sample(|sample, volume, f| {
            for (operation, kind) in sample.stats.kinds() {
                f.sample(&[("volume", volume), ("operation", operation)], kind.bytes);
            }
        }),
    )
    .by(&["operation"]),
    counter(
        "ztier_request_failures_total",
        "Requests ended with an error.",
        Source::Sample(|sample, volume, f| {
            for (operation, kind) in sample.stats.kinds() {
                f.sample(&[("volume", volume), ("operation", operation)], kind.failed);
            }
        }),
    )
    .by(&["operation"]),
    counter(
        "ztier_invalid_requests_total",
        "Requests outside the device.",
        Source::Number(|s| s.stats.invalid_io.into()),
    ),
    gauge(
        "ztier_request_service_duration_seconds",
        "Histogram: time in service.",
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
        "Histogram: wait before service, memory stalls included.",
        Source::Sample(|sample, volume, f| {
            for (operation, spent) in sample.latencies.kinds() {
                let labels = [("volume", volume), ("operation", operation)];
                // Most requests do not wait; for the other waits, the order of magnitude is enough.
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
        "Most memory ever used.",
        Source::Memory(|s| s.mem_used_max_bytes.into()),
    ),
    gauge(
        "ztier_swap_ballast_bytes",
        "Swap in use by ballast.",
        Source::Number(|s| {
            let in_memory = matches!(s.role(), Role::Ram | Role::Spill);
            in_memory.then_some(s.ballast_bytes).map(Number::from).into()
        }),
    ),
    gauge(
        "ztier_memory_frames_bytes",
        "Memory of frames, used or ready.",
        Source::Memory(|s| s.frames_bytes.into()),
    ),
    gauge(
        "ztier_memory_metadata_bytes",
        "Memory of index and tables.",
        Source::Memory(|s| s.metadata_bytes.into()),
    ),
    gauge(
        "ztier_memory_buffers_bytes",
        "Memory of threads: state and scratch.",
        Source::Memory(|s| s.buffers_bytes.into()),
    ),
    gauge(
        "ztier_record_headers_bytes",
        "Headers of live records, part of the frames.",
        Source::Memory(|s| s.record_headers_bytes.into()),
    ),
    gauge(
        "ztier_data_bytes",
        "Stored data before compression, without same-filled blocks.",
        Source::Memory(|s| s.orig_data_bytes.into()),
    ),
    gauge(
        "ztier_compressed_bytes",
        "Stored data after compression, without headers.",
        Source::Memory(|s| s.compr_data_bytes.into()),
    ),
    gauge(
        "ztier_stored_blocks",
        "Blocks of 4096 bytes stored as records.",
        Source::Memory(|s| s.blocks_stored.into()),
    ),
    gauge(
        "ztier_same_filled_blocks",
        "Blocks of one repeated word, zeros included: no memory.",
        Source::Memory(|s| s.blocks_same.into()),
    ),
    gauge(
        "ztier_zero_blocks",
        "Written blocks of zeros.",
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
        "Stored blocks that no codec made smaller.",
        Source::Memory(|s| s.blocks_raw.into()),
    ),
    counter(
        "ztier_raw_blocks_written_total",
        "Blocks ever stored as they are.",
        Source::Memory(|s| s.blocks_raw_total.into()),
    ),
    counter(
        "ztier_discarded_blocks_total",
        "Stored blocks freed by discard or write-zeroes.",
        Source::Memory(|s| s.blocks_discarded.into()),
    ),
    counter(
        "ztier_swap_freed_slots_total",
        "Stored blocks freed because the kernel freed their swap slots.",
        Source::Memory(|s| s.freed_slots.into()),
    ),
    gauge(
        "ztier_swap_room_bytes",
        "Pages for which the machine's memory and swap have room.",
        Source::Number(|s| s.stats.swap_room_bytes.map(Number::from).into()),
    ),
    gauge("ztier_segments", "Segments with live records.", Source::Memory(|s| s.segments.into())),
    counter(
        "ztier_cleaned_segments_total",
        "Segments the cleaner emptied.",
        Source::Memory(|s| s.segments_cleaned.into()),
    ),
    counter(
        "ztier_cleaner_moved_blocks_total",
        "Blocks the cleaner moved.",
        Source::Memory(|s| s.blocks_moved.into()),
    ),
    counter(
        "ztier_cleaner_moved_bytes_total",
        "Bytes the cleaner moved.",
        Source::Memory(|s| s.bytes_moved.into()),
    ),
    counter(
        "ztier_write_stalls_total",
        "Writes that waited for room or memory.",
        Source::Memory(|s| s.stalls.into()),
    ),
    counter(
        "ztier_no_space_writes_total",
        "Writes refused for lack of space.",
        Source::Memory(|s| s.no_space.into()),
    ),
    counter(
        "ztier_corrupt_records_total",
        "Records read with a wrong checksum.",
        Source::Number(|s| s.stats.corrupt_records.into()),
    ),
    gauge(
        "ztier_clustered_blocks",
        "Blocks compressed with their neighbours.",
        Source::Memory(|s| s.blocks_clustered.into()),
    ),
    gauge(
        "ztier_clusters_bytes",
        "Bytes of clusters, headers included.",
        Source::Memory(|s| s.cluster_bytes.into()),
    ),
    counter(
        "ztier_recompressed_blocks_total",
        "Blocks recompressed.",
        Source::Memory(|s| s.blocks_recompressed.into()),
    ),
    counter(
        "ztier_recompression_saved_bytes_total",
        "Bytes saved by recompression.",
        Source::Memory(|s| s.recompress_saved_bytes.into()),
    ),
    counter(
        "ztier_recompression_abandoned_groups_total",
        "Groups not recompressed: too little to save.",
        Source::Memory(|s| s.recompress_in_vain.into()),
    ),
    counter(
        "ztier_recompression_promoted_blocks_total",
        "Blocks that left their clusters: read again.",
        Source::Memory(|s| s.recompress_promoted_blocks.into()),
    ),
    counter(
        "ztier_recompression_seconds_total",
        "Time spent recompressing.",
        Source::Memory(|s| (s.recompress_ms as f64 / 1e3).into()),
    ),
];

const SPILL: &[Metric] = &[
    counter(
        "ztier_spill_reads_total",
        "Reads of the spill device.",
        Source::Spill(|s| s.spill_device_reads.into()),
    ),
    counter(
        "ztier_spill_writes_total",
        "Writes to the spill device.",
        Source::Spill(|s| s.spill_device_writes.into()),
    ),
    counter(
        "ztier_spill_read_seconds_total",
        "Time in those reads.",
        Source::Spill(|s| seconds(s.spill_reading_ns).into()),
    ),
    counter(
        "ztier_spill_write_seconds_total",
        "Time in those writes.",
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
        "Bytes left of the daily limit; absent without one.",
        Source::Spill(|s| s.spill_allowed_bytes.into()),
    ),
    gauge(
        "ztier_spill_slots",
        "Slots of the spill device, a segment each.",
        Source::Spill(|s| s.spill_slots.into()),
    ),
    gauge("ztier_spill_used_slots", "Slots in use.", Source::Spill(|s| s.spill_slots_used.into())),
    counter(
        "ztier_spilled_segments_total",
        "Segments spilled.",
        Source::Spill(|s| s.spilled_segments.into()),
    ),
    gauge(
        "ztier_spilled_blocks",
        "Blocks only on the spill device.",
        Source::Spill(|s| s.spilled_blocks.into()),
    ),
    gauge(
        "ztier_spilled_bytes",
        "Bytes of spilled blocks' records.",
        Source::Spill(|s| s.spilled_bytes.into()),
    ),
    counter(
        "ztier_spill_promoted_blocks_total",
        "Blocks back in memory: read again.",
        Source::Spill(|s| s.spill_promoted_blocks.into()),
    ),
    counter(
        "ztier_spill_errors_total",
        "Failed requests to the spill device.",
        Source::Spill(|s| s.spill_errors.into()),
    ),
    gauge(
        "ztier_spill_failed",
        "Whether the last write to the spill device failed; retried within a minute.",
        Source::Spill(|s| s.spill_failed.into()),
    ),
];

const CACHE: &[Metric] = &[
    gauge(
        "ztier_cache_index_bytes",
        "Memory of index, ghosts and tables.",
        Source::Cache(|c| c.index_bytes.into()),
    ),
    gauge(
        "ztier_cache_copies_bytes",
        "Copied data before compression.",
        Source::Cache(|c| c.original_bytes.into()),
    ),
    gauge(
        "ztier_cache_stored_bytes",
        "Bytes of copies, headers included.",
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
        "Time the backing store took for misses.",
        Source::Cache(|c| seconds(c.missed_ns).into()),
    ),
    counter(
        "ztier_cache_mixed_reads_total",
        "Reads with hits and misses.",
        Source::Cache(|c| c.requests_mixed.into()),
    ),
    counter(
        "ztier_cache_bypassed_reads_total",
        "Reads past the cache: too many under way.",
        Source::Cache(|c| c.requests_bypassed.into()),
    ),
    counter(
        "ztier_cache_kept_blocks_total",
        "Copies made.",
        Source::Cache(|c| c.kept_blocks.into()),
    ),
    counter(
        "ztier_cache_evicted_blocks_total",
        "Copies evicted to make room.",
        Source::Cache(|c| c.evicted_blocks.into()),
    ),
    counter(
        "ztier_cache_ghost_hit_blocks_total",
        "Misses of recently evicted blocks: a larger cache would hit.",
        Source::Cache(|c| c.ghosts_hit_blocks.into()),
    ),
    counter(
        "ztier_cache_overtaken_blocks_total",
        "Blocks not kept: written meanwhile.",
        Source::Cache(|c| c.lost_blocks.into()),
    ),
    counter(
        "ztier_cache_readahead_blocks_total",
        "Blocks read ahead and kept.",
        Source::Cache(|c| c.ahead_blocks.into()),
    ),
    counter(
        "ztier_cache_readahead_used_blocks_total",
        "Blocks read ahead, then requested.",
        Source::Cache(|c| c.ahead_used_blocks.into()),
    ),
    counter(
        "ztier_cache_readahead_useless_blocks_total",
        "Blocks read ahead, evicted before requested.",
        Source::Cache(|c| c.ahead_useless_blocks.into()),
    ),
    counter(
        "ztier_cache_damaged_copies_total",
        "Damaged copies, read again from the backing store.",
        Source::Cache(|c| c.damaged_copies.into()),
    ),
    counter(
        "ztier_backing_errors_total",
        "Failed requests to the backing store.",
        Source::Cache(|c| c.backing_errors.into()),
    ),
];

const LIMIT: &[Metric] = &[
    gauge(
        "ztier_limit_min_bytes",
        "Lowest possible memory limit.",
        Source::Limit(|r| r.bounds.min_bytes.into()),
    ),
    gauge(
        "ztier_limit_max_bytes",
        "Highest possible memory limit.",
        Source::Limit(|r| r.bounds.max_bytes.into()),
    ),
    counter(
        "ztier_limit_changes_total",
        "Changes of the limit.",
        Source::Limit(|r| r.changes.into()),
    ),
    counter(
        "ztier_limit_turns_total",
        "Changes in the other direction than the one before.",
        Source::Limit(|r| r.turns.into()),
    ),
    gauge(
        "ztier_limit_last_change_timestamp_seconds",
        "Unix time of the last change; absent before the first.",
        Source::Limit(|r| r.last_change.map(|change| change.unix_s).into()),
    ),
    gauge(
        "ztier_limit_reason",
        "1 for the reason of the present limit (docs/limit.md).",
        Source::Sample(|sample, volume, f| {
            if let Some(report) = &sample.adapting {
                f.sample(&[("volume", volume), ("reason", report.reason.kind())], 1u64);
            }
        }),
    )
    .by(&["reason"]),
    gauge(
        "ztier_limit_wait_ratio",
        "Part of time waited: for dropped files (files), evicted data (missed), the coldest data \
         if evicted, at most (coldest).",
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
        "Memory available to others; absent if unknown.",
        Source::Limit(|r| r.available_bytes.into()),
    ),
    gauge(
        "ztier_limit_floor_bytes",
        "Memory to leave to others.",
        Source::Limit(|r| r.floor_bytes.into()),
    ),
    gauge(
        "ztier_limit_stalled_ratio",
        "Part of time that a process waits for memory; absent if unknown.",
        Source::Limit(|r| r.stalled.into()),
    ),
];

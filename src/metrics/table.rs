//! The table of all metrics: name, kind, meaning, labels, and where the value comes from.
//!
//! Invariants (checked by the tests): names are Prometheus' (`ztier_` first, base units, `_total`
//! for counters alone), and what a metric writes has no other labels than it says.

use super::metric::{Group, Kind, Metric, Source, counter, gauge};
use super::text::{Family, seconds};
use crate::control::{Role, Sample};
use crate::daemon::survey::Seen;
use crate::device::Algorithm;
use crate::stats::declare::{Number, Subject};
use crate::stats::{CacheStats, Health, LogStats, ObjectStats, Stats};
use std::path::Path;
use std::sync::LazyLock;

/// Every metric there is, in the order in which they are written: those of one number come from its
/// declaration in [`crate::stats`], the others stand here.
pub static GROUPS: LazyLock<Vec<Group>> = LazyLock::new(|| {
    let group = |title, declared: Vec<Metric>, here: &[Metric]| Group {
        title,
        metrics: [&declared, here].concat(),
    };
    let cache = CacheStats::METRICS.iter().map(|d| Metric::of(d, Source::Cache(d.value)));
    let log = LogStats::METRICS.iter().map(|d| Metric::of(d, Source::Log(d.value)));
    let object = ObjectStats::METRICS.iter().map(|d| Metric::of(d, Source::Object(d.value)));
    vec![
        group("The exporter", vec![], EXPORTER),
        group("Every volume", vec![], VOLUME),
        group("Volumes that are up", of_stats(Subject::Any), UP),
        group("Requests", vec![], REQUESTS),
        group("Volumes in memory", of_stats(Subject::Memory), MEMORY),
        group("Volumes with a spill device", of_stats(Subject::Spill), &[]),
        group("Volumes with copies of a backing store's blocks", cache.collect(), &[]),
        group("Volumes with a log", log.collect(), LOG),
        group("Volumes in a store of objects", object.collect(), &[]),
        group("Volumes whose limit adapts", vec![], LIMIT),
    ]
});

fn of_stats(subject: Subject) -> Vec<Metric> {
    let declared = Stats::METRICS.iter().filter(|d| d.subject == subject);
    declared.map(|d| Metric::of(d, Source::Stats(subject, d.value))).collect()
}

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

const MEMORY: &[Metric] = &[gauge(
    "ztier_swap_ballast_bytes",
    "Swap in use by ballast.",
    Source::Number(|s| {
        let in_memory = matches!(s.role(), Role::Ram | Role::Spill);
        in_memory.then_some(s.ballast_bytes).map(Number::from).into()
    }),
)];

const LOG: &[Metric] = &[
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

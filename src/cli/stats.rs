//! `ztier stats`: the counters of one volume, in today's layout or a historic one.

use super::{PATIENCE, client, output, sound};
use crate::config::Paths;
use crate::config::size::human;
use crate::control::Request;
use crate::daemon::survey::{Seen, Volumes};
use crate::error::Result;
use crate::metrics::{self, Scrape};
use crate::stats::{self, layout};
use clap::{Args, ValueEnum};
use std::time::Instant;

/// Print the counters of a volume
#[derive(Args)]
pub struct Stats {
    /// Name of the volume
    name: String,
    /// A table, JSON, Prometheus' format, or the layout of /proc/ramzswap, of `zramconfig --stats`,
    /// or of a zram device's mm_stat, io_stat and bd_stat
    #[arg(long, value_enum, default_value = "table")]
    format: Format,
}

#[derive(Clone, Copy, ValueEnum)]
enum Format {
    Table,
    Json,
    Ramzswap,
    Zramconfig,
    Zram,
    Prometheus,
}

impl Stats {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let paths = Paths::of_this_user()?;
        if matches!(self.format, Format::Prometheus) {
            return prometheus(&paths, &self.name);
        }
        let stats: stats::Stats = client(&paths, &self.name)?.ask(&Request::Stats, PATIENCE)?;
        match self.format {
            Format::Json => output::json(&stats)?,
            Format::Ramzswap => output::print(&layout::ramzswap(&stats))?,
            Format::Zramconfig => output::print(&layout::zramconfig(&stats))?,
            Format::Zram => output::print(&layout::zram(&stats))?,
            Format::Table | Format::Prometheus => output::print(&table(&stats))?,
        }
        sound(&self.name, stats.loss().as_deref())
    }
}

/// The metrics of one volume.
fn prometheus(paths: &Paths, name: &str) -> Result<()> {
    let begun = Instant::now();
    let sample = Box::new(client(paths, name)?.ask(&Request::Sample, PATIENCE)?);
    let seen = Seen::Up { sample, at: Instant::now() };
    let volumes = Volumes::from([(name.to_owned(), seen)]);
    output::print(&metrics::text(&Scrape { volumes: &volumes, took: begun.elapsed() }))
}

fn table(stats: &stats::Stats) -> String {
    let micros = |ns: u64| format!("{:.1}", ns as f64 / 1000.0);
    let requests = [
        ("read", &stats.read),
        ("write", &stats.write),
        ("flush", &stats.flush),
        ("discard", &stats.discard),
        ("write zeroes", &stats.write_zeroes),
    ];
    let rows: Vec<Vec<String>> = requests
        .iter()
        .map(|(kind, r)| {
            vec![
                (*kind).into(),
                r.requests.to_string(),
                human(r.bytes),
                r.failed.to_string(),
                micros(r.waiting.p50_ns),
                micros(r.waiting.p99_ns),
                micros(r.serving.p50_ns),
                micros(r.serving.p99_ns),
                micros(r.serving.p999_ns),
                micros(r.serving.max_ns),
            ]
        })
        .collect();
    let head = [
        "REQUESTS",
        "COUNT>",
        "BYTES>",
        "FAILED>",
        "WAIT p50>",
        "p99>",
        "SERVE p50>",
        "p99>",
        "p99.9>",
        "max>",
    ];
    let count = |n: u64| n.to_string();
    output::table(&head, &rows)
        + "(waiting and service in µs)\n\n"
        + &output::pairs(&[
            ("device", human(stats.disk_size_bytes)),
            ("memory limit", human(stats.ram_limit_bytes)),
            ("memory used", human(stats.mem_used_bytes)),
            ("  most ever", human(stats.mem_used_max_bytes)),
            ("  frames", human(stats.frames_bytes)),
            ("  metadata", human(stats.metadata_bytes)),
            ("  buffers", human(stats.buffers_bytes)),
            ("data stored", human(stats.orig_data_bytes)),
            ("  as payload", human(stats.compr_data_bytes)),
            ("blocks stored", count(stats.blocks_stored)),
            ("  at most half", count(stats.blocks_good)),
            ("  above 3/4", count(stats.blocks_poor)),
            ("  raw", count(stats.blocks_raw)),
            ("blocks same-filled", count(stats.blocks_same)),
            ("  zeros", count(stats.blocks_zero)),
            ("blocks discarded", count(stats.blocks_discarded)),
            ("swap slots freed", count(stats.freed_slots)),
            ("segments", count(stats.segments)),
            ("  cleaned", count(stats.segments_cleaned)),
            ("blocks moved", count(stats.blocks_moved)),
            ("stalls", count(stats.stalls)),
            ("without space", count(stats.no_space)),
            ("outside the device", count(stats.invalid_io)),
            ("damaged records", count(stats.corrupt_records)),
        ])
        + &stats.cache.as_ref().map(cache).unwrap_or_default()
        + &stats.log.as_ref().map(log).unwrap_or_default()
}

fn cache(cache: &stats::CacheStats) -> String {
    let count = |n: u64| n.to_string();
    "\n".to_owned()
        + &output::pairs(&[
            ("cache limit", human(cache.limit_bytes)),
            ("  used", human(cache.used_bytes)),
            ("  index", human(cache.index_bytes)),
            ("blocks with a copy", count(cache.blocks)),
            ("  their bytes", human(cache.original_bytes)),
            ("  compressed", human(cache.stored_bytes)),
            ("blocks read: hit", count(cache.hit_blocks)),
            ("  missed", count(cache.missed_blocks)),
            ("    gone not long before", count(cache.ghosts_hit_blocks)),
            ("reads of both kinds", count(cache.requests_mixed)),
            ("  past the cache", count(cache.requests_bypassed)),
            ("copies made", count(cache.kept_blocks)),
            ("  gone to make room", count(cache.evicted_blocks)),
            ("  not made, changed meanwhile", count(cache.lost_blocks)),
            ("blocks read ahead", count(cache.ahead_blocks)),
            ("  used", count(cache.ahead_used_blocks)),
            ("  useless", count(cache.ahead_useless_blocks)),
            ("damaged copies", count(cache.damaged_copies)),
            ("errors of the backing store", count(cache.backing_errors)),
        ])
}

fn log(log: &stats::LogStats) -> String {
    let count = |n: u64| n.to_string();
    let micros = |ns: u64| format!("{:.1}", ns as f64 / 1000.0);
    let (used, segments) = (log.segments_used, log.segments);
    let cursors = (log.segment_tail, log.segment_durable, log.segment_newest);
    "\n".to_owned()
        + &output::pairs(&[
            ("log segments", format!("{used} used of {segments}")),
            ("  oldest, durable, newest", format!("{} {} {}", cursors.0, cursors.1, cursors.2)),
            ("blocks not in backing", count(log.blocks_dirty)),
            ("blocks in both", count(log.blocks_clean)),
            ("  read there", count(log.reads_clean)),
            ("  kept, again", format!("{}, {}", log.copies_kept, log.copies_kept_again)),
            ("  gone, damaged", format!("{}, {}", log.copies_released, log.copies_damaged)),
            ("blocks read: memory", count(log.reads_memory)),
            ("  log", count(log.reads_log)),
            ("  zeros", count(log.reads_zeros)),
            ("  backing", count(log.reads_backing)),
            ("  parts of blocks", count(log.reads_partial)),
            ("blocks written: over memory", count(log.writes_over_memory)),
            ("  over log", count(log.writes_over_log)),
            ("  new", count(log.writes_new)),
            ("  parts of blocks", count(log.writes_partial)),
            ("asked to be written", human(log.asked_bytes)),
            ("  log written", human(log.written_bytes)),
            ("  blocks in clusters", count(log.blocks_clustered)),
            ("    compressed", human(log.cluster_bytes)),
            ("  backing written", human(log.written_back_bytes)),
            ("chunks", count(log.chunks)),
            ("  closed with room left", count(log.chunks_partial)),
            ("flushes", count(log.flushes)),
            ("  of the log's drive", count(log.drive_flushes)),
            ("commits, µs: p50", micros(log.commits.p50_ns)),
            ("  p99", micros(log.commits.p99_ns)),
            ("  max", micros(log.commits.max_ns)),
            ("windows", count(log.windows)),
            ("  failed", count(log.windows_failed)),
            ("    to read the log", count(log.windows_unread)),
            ("errors of the log's drive", count(log.errors)),
        ])
}

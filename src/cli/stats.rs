//! `ztier stats`: the counters of one volume, in today's layout or a historic one.

use super::{PATIENCE, client, output, sound};
use crate::config::Paths;
use crate::config::size::human;
use crate::control::Request;
use crate::daemon::survey::{Seen, Volumes};
use crate::error::Result;
use crate::metrics::{self, Scrape};
use crate::stats::declare::{Number, Row, Shown, Subject};
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
    let in_memory = stats.cache.is_none() && stats.log.is_none();
    let has = |subject| match subject {
        Subject::Memory => in_memory,
        Subject::Spill => stats.spill_slots > 0,
        _ => true,
    };
    output::table(&head, &rows)
        + "(waiting and service in µs)\n"
        + &pairs(stats::Stats::ROWS, stats, has)
        + &stats.cache.map(|cache| pairs(stats::CacheStats::ROWS, &cache, has)).unwrap_or_default()
        + &stats
            .object
            .as_ref()
            .map(|object| pairs(stats::ObjectStats::ROWS, object, has))
            .unwrap_or_default()
        + &stats.log.map(|log| of_log(&log)).unwrap_or_default()
}

/// The declared rows of the subjects that the volume has.
fn pairs<T>(rows: &[Row<T>], all: &T, has: impl Fn(Subject) -> bool) -> String {
    let mut shown = Vec::new();
    for Row { label, shown: form, value, .. } in rows.iter().filter(|row| has(row.subject)) {
        let value = match (value(all), form) {
            (Number::Whole(n), Shown::Count) => n.to_string(),
            (Number::Whole(n), Shown::Bytes) => human(n),
            (Number::Real(x), _) => format!("{x:.3}"),
            (Number::Absent, _) => continue,
        };
        shown.push((*label, value));
    }
    "\n".to_owned() + &output::pairs(&shown)
}

fn of_log(log: &stats::LogStats) -> String {
    let micros = |ns: u64| format!("{:.1}", ns as f64 / 1000.0);
    pairs(stats::LogStats::ROWS, log, |_| true)
        + &output::pairs(&[
            ("commits, µs: p50", micros(log.commits.p50_ns)),
            ("  p99", micros(log.commits.p99_ns)),
            ("  max", micros(log.commits.max_ns)),
        ])
}

//! What a program took, as a table for people or as JSON.

use super::Stage;
use crate::cli::output;
use crate::config::size::{human, ratio};
use crate::control::{Client, Request};
use crate::stats::{Requests, Stats};
use crate::system::footprint;
use crate::system::job::{Present, Usage};
use serde::Serialize;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the daemon may take to answer: a short time, because signals wait meanwhile.
const PATIENCE: Duration = Duration::from_secs(2);

/// Samples a volume's counters now and then.
pub struct Sampler {
    client: Client,
    daemon: u32,
    cgroup: PathBuf,
    asked: Instant,
    /// Before the program began.
    first: Stats,
    /// When the volume held most.
    fullest: Stats,
    last: Stats,
    peaks: Peaks,
}

/// Peaks of what was sampled at the same moments, in bytes; 0 if the kernel does not report it.
#[derive(Clone, Copy, Default)]
struct Peaks {
    /// The memory of the program, and that of all processes of the store.
    with_store: u64,
    /// The memory that the program would have had without swap.
    alone: u64,
}

/// The samples of a volume: before the program, when it held most, and the last.
pub struct Sampled {
    first: Stats,
    fullest: Stats,
    last: Stats,
    peaks: Peaks,
}

impl Sampler {
    /// A sampler of the volume whose control socket is `socket`, of its daemon's process, and of a
    /// program's cgroup, from now on.
    pub fn new(socket: &Path, daemon: u32, cgroup: &Path) -> Self {
        let mut sampler = Self {
            client: Client::new(socket),
            daemon,
            cgroup: cgroup.to_owned(),
            asked: Instant::now(),
            first: Stats::default(),
            fullest: Stats::default(),
            last: Stats::default(),
            peaks: Peaks::default(),
        };
        sampler.ask();
        sampler.first = sampler.last.clone();
        sampler
    }

    /// Samples if the last sample is at least `pause` ago.
    pub fn sample(&mut self, pause: Duration) {
        if self.asked.elapsed() >= pause {
            self.ask();
            self.asked = Instant::now();
        }
    }

    fn ask(&mut self) {
        // A daemon that does not answer is noticed elsewhere.
        let Ok(stats) = self.client.ask::<Stats>(&Request::Stats, PATIENCE) else { return };
        if let Some(program) = Present::of(&self.cgroup) {
            let peaks = &mut self.peaks;
            // After the daemon died, what the next one has beside the volume is left out.
            let store = footprint::of_family(self.daemon).unwrap_or(0).max(stats.mem_used_bytes);
            peaks.with_store = peaks.with_store.max(program.memory + store);
            peaks.alone = peaks.alone.max(program.both);
        }
        if held(&stats) >= held(&self.fullest) {
            self.fullest = stats.clone();
        }
        self.last = stats;
    }

    /// Takes the last sample.
    pub fn last(mut self) -> Sampled {
        self.ask();
        let Self { first, fullest, last, peaks, .. } = self;
        Sampled { first, fullest, last, peaks }
    }
}

/// Bytes of all stored blocks, uncompressed.
fn held(stats: &Stats) -> u64 {
    stats.orig_data_bytes + stats.blocks_same * crate::BLOCK_SIZE as u64
}

/// What a program took.
#[derive(Serialize)]
pub struct Report {
    name: String,
    program: String,
    exit_status: u8,
    seconds: f64,
    export: &'static str,
    mem_limit_bytes: u64,
    #[serde(flatten)]
    program_took: Usage,
    swap_bytes: u64,
    swapped_out_bytes: u64,
    swapped_in_bytes: u64,
    /// The most that was swapped out at once.
    swapped_most_bytes: u64,
    /// The compressed payload of that.
    compressed_bytes: u64,
    ram_limit_bytes: u64,
    /// The most memory that the volume took.
    store_peak_bytes: u64,
    /// The most memory that program and all processes of the volume took at the same time; 0:
    /// unknown.
    with_store_peak_bytes: u64,
    /// The most memory that the program would have had without swap; 0: unknown.
    without_swap_peak_bytes: u64,
    spilled_bytes: u64,
    /// The time of all requests of the volume, added up, in seconds.
    serving_seconds: f64,
    no_space: u64,
}

impl Report {
    /// What the program of `stage` took.
    pub fn new(
        stage: &Stage<'_>,
        program: &[OsString],
        exit_status: u8,
        seconds: f64,
        took: Usage,
        Sampled { first, fullest, last, peaks }: Sampled,
    ) -> Self {
        let words: Vec<_> = program.iter().map(|word| word.to_string_lossy()).collect();
        let time = |r: &Requests| {
            let each = |l: &crate::stats::Latency| l.mean_ns as f64 * l.count as f64;
            (each(&r.waiting) + each(&r.serving)) / 1e9
        };
        let spent = |stats: &Stats| {
            let Stats { read, write, discard, write_zeroes, flush, .. } = stats;
            [read, write, discard, write_zeroes, flush].into_iter().map(time).sum::<f64>()
        };
        // Another daemon, after one that died, counts from 0 again.
        let since = |last: u64, first: u64| last.saturating_sub(first);
        Self {
            name: stage.plan.name.clone(),
            program: words.join(" "),
            exit_status,
            seconds,
            export: stage.plan.export.kind(),
            mem_limit_bytes: stage.memory,
            program_took: took,
            swap_bytes: stage.plan.size_bytes,
            swapped_out_bytes: since(last.write.bytes, first.write.bytes),
            swapped_in_bytes: since(last.read.bytes, first.read.bytes),
            swapped_most_bytes: held(&fullest),
            compressed_bytes: fullest.compr_data_bytes,
            ram_limit_bytes: stage.plan.ram_limit_bytes,
            store_peak_bytes: last.mem_used_max_bytes,
            with_store_peak_bytes: peaks.with_store,
            without_swap_peak_bytes: peaks.alone,
            spilled_bytes: since(last.spill_written_bytes, first.spill_written_bytes),
            serving_seconds: (spent(&last) - spent(&first)).max(0.0),
            no_space: last.no_space,
        }
    }

    /// What program and store take together, beside what the program would take without swap.
    fn together(&self) -> String {
        match (self.with_store_peak_bytes, self.without_swap_peak_bytes) {
            (0, _) | (_, 0) => "unknown".into(),
            (with, without) => {
                format!("at most {}, instead of {} without swap", human(with), human(without))
            }
        }
    }

    /// The report as a table for people.
    pub fn table(&self) -> String {
        let took = &self.program_took;
        let of = |what: Option<String>| what.unwrap_or_else(|| "unknown".into());
        let limit = human(self.mem_limit_bytes);
        let swapped = took.swap_peak_bytes.filter(|bytes| *bytes > 0);
        let beside = swapped.map_or(String::new(), |b| format!(", and {} of swap", human(b)));
        let times = match self.compressed_bytes {
            0 => String::new(),
            to => format!(" ({})", ratio(self.swapped_most_bytes as f64 / to as f64)),
        };
        let mut rows = vec![
            ("program", self.program.clone()),
            ("exit status", format!("{} after {:.2} s", self.exit_status, self.seconds)),
            ("peak memory", format!("{} of {limit}{beside}", of(took.peak_bytes.map(human)))),
            (
                "swapped",
                format!(
                    "{} out, {} in",
                    human(self.swapped_out_bytes),
                    human(self.swapped_in_bytes)
                ),
            ),
            (
                "compressed",
                format!(
                    "at most {} to {}{times}",
                    human(self.swapped_most_bytes),
                    human(self.compressed_bytes)
                ),
            ),
            (
                "store",
                format!(
                    "at most {} of {} of memory",
                    human(self.store_peak_bytes),
                    human(self.ram_limit_bytes)
                ),
            ),
            ("program and store", self.together()),
            ("spilled", human(self.spilled_bytes)),
            ("time serving swap", format!("{:.2} s", self.serving_seconds)),
        ];
        let waited = |us: u64| format!("{:.2} s", us as f64 / 1e6);
        rows.extend(took.pressure_us.map(|us| ("time short of memory", waited(us))));
        if let Some(n) = took.oom_kills.filter(|n| *n > 0) {
            rows.push((
                "out of memory",
                match n {
                    1 => "the kernel ended a process".into(),
                    n => format!("the kernel ended {n} processes"),
                },
            ));
        }
        if self.no_space > 0 {
            rows.push(("store full", format!("{} requests refused", self.no_space)));
        }
        output::pairs(&rows)
    }
}

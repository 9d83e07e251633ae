//! `ztier estimate`: how much memory files or a device would take in a compressed RAM disk.

use super::output;
use super::progress_line::ProgressLine;
use super::sampler::Sources;
use super::trial::Trial;
use crate::config::size::{human, ratio};
use crate::device::Algorithm;
use crate::error::{Error, Result};
use clap::{Args, ValueHint};
use serde::Serialize;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The part of the time in which files are looked for.
const FINDING: f64 = 0.4;
/// Mount points that are named.
const NAMED: usize = 3;

/// Sample files, directories or a block device and predict their size in memory
///
/// Other file systems that are mounted below a directory are passed over unless they are local.
#[derive(Args)]
pub struct Estimate {
    /// What to sample
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Blocks of 4 KiB to read at most; more are more exact
    #[arg(long, value_name = "N", default_value_t = 32_768,
          value_parser = clap::value_parser!(u64).range(1..=1 << 28))]
    blocks: u64,
    /// Seconds to take at most
    #[arg(long, value_name = "N", default_value_t = 5,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Read everything, however long it takes
    #[arg(long, conflicts_with_all = ["blocks", "seconds"])]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// How much work a sample may be.
#[derive(Clone, Copy)]
pub(super) struct Effort {
    pub blocks: u64,
    /// `None`: without end.
    pub time: Option<Duration>,
}

/// What a sample of paths shows.
#[derive(Serialize)]
pub(super) struct Report {
    pub files: u64,
    pub data_bytes: u64,
    /// Whether all files were found in the time; else there is more data than `data_bytes`.
    pub complete: bool,
    pub sampled_blocks: u64,
    pub skipped: u64,
    pub first_skipped: Option<String>,
    /// Mounted file systems that were passed over.
    pub left_out: Vec<PathBuf>,
    pub same_filled_share: f64,
    pub algorithms: Vec<Prediction>,
}

#[derive(Serialize)]
pub(super) struct Prediction {
    pub algorithm: Algorithm,
    pub memory_bytes: u64,
    /// Data ÷ memory.
    pub ratio: f64,
    /// The range in which the ratio of all data is, 95 times of 100.
    pub ratio_low: f64,
    pub ratio_high: f64,
    pub raw_share: f64,
}

impl Estimate {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let effort = if self.all {
            Effort { blocks: u64::MAX, time: None }
        } else {
            Effort { blocks: self.blocks, time: Some(Duration::from_secs(self.seconds)) }
        };
        let report = sample(&self.paths, effort)?;
        if self.json {
            return output::json(&report);
        }
        output::print(&text(&report))
    }
}

/// Samples what is below `paths`.
///
/// # Errors
/// One of them cannot be read, or there is nothing to read.
pub(super) fn sample(paths: &[PathBuf], effort: Effort) -> Result<Report> {
    let progress = ProgressLine::new();
    let began = Instant::now();
    let until = |part: f64| effort.time.map(|time| began + time.mul_f64(part));
    let told = &mut |files| progress.show(&format!("looking for files: {files} so far"));
    let mut sources = Sources::find(paths, until(FINDING), told)?;
    if sources.blocks == 0 {
        return Err(nothing(&sources));
    }
    let mut trials = [Algorithm::Lz4, Algorithm::Zstd].map(|a| (a, Trial::new(a)));
    let all = effort.blocks.min(sources.blocks);
    let mut done = 0;
    sources.sample(effort.blocks, until(1.0), &mut |block| {
        trials.iter_mut().for_each(|(_, trial)| trial.show(block));
        done += 1;
        progress.show(&format!("sampling: {} %", done * 100 / all));
    });
    progress.end();
    if done == 0 {
        let why = sources.first_skipped.unwrap_or_default();
        return Err(Error::failure(format!("nothing of what was named could be read: {why}"))
            .hint("run as a user who may read it"));
    }
    Ok(report(sources, &trials))
}

fn nothing(sources: &Sources) -> Error {
    let text = "there is no data to sample in what was named";
    if sources.cut {
        return Error::failure("no file was found in the time")
            .hint("give more --seconds, or --all");
    }
    match &sources.first_skipped {
        Some(why) => Error::failure(format!("{text}: {why}")).hint("run as a user who may read it"),
        None => Error::failure(text).hint("name files or directories that hold some"),
    }
}

fn report(sources: Sources, trials: &[(Algorithm, Trial)]) -> Report {
    let (_, first) = &trials[0];
    let share = |part: u64| part as f64 / first.blocks as f64;
    let predict = |(algorithm, trial): &(Algorithm, Trial)| {
        let ratio = trial.ratio(sources.blocks);
        Prediction {
            algorithm: *algorithm,
            memory_bytes: (share(trial.memory) * sources.blocks as f64) as u64,
            ratio: ratio.measured,
            ratio_low: ratio.low,
            ratio_high: ratio.high,
            raw_share: share(trial.raw),
        }
    };
    Report {
        files: sources.files,
        data_bytes: sources.blocks * crate::BLOCK_SIZE as u64,
        complete: !sources.cut,
        sampled_blocks: first.blocks,
        skipped: sources.skipped,
        same_filled_share: share(first.same),
        algorithms: trials.iter().map(predict).collect(),
        first_skipped: sources.first_skipped,
        left_out: sources.left_out,
    }
}

fn text(report: &Report) -> String {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let data = format!("{} in {} files", human(report.data_bytes), report.files);
    let data = match report.complete {
        true => data,
        false => format!("{data} were found in the time; --seconds, --all find more"),
    };
    let mut rows = vec![("data", data)];
    if let Some(first) = &report.first_skipped {
        rows.push(("not read", format!("{}, the first: {first}", report.skipped)));
    }
    if !report.left_out.is_empty() {
        let named: Vec<String> =
            report.left_out.iter().take(NAMED).map(|path| path.display().to_string()).collect();
        let more = report.left_out.len() - named.len();
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        rows.push(("left out", format!("mounted on {}{more}", named.join(", "))));
    }
    rows.push(("sampled", format!("{} blocks of 4 KiB", report.sampled_blocks)));
    rows.push(("same-filled", percent(report.same_filled_share)));
    let mut text = output::pairs(&rows);
    let rows: Vec<Vec<String>> = report
        .algorithms
        .iter()
        .map(|p| {
            let name = if p.algorithm == Algorithm::Lz4 { "lz4" } else { "zstd" };
            let range = format!("{} to {}", ratio(p.ratio_low), ratio(p.ratio_high));
            let raw = percent(p.raw_share);
            vec![name.into(), human(p.memory_bytes), ratio(p.ratio), range, raw]
        })
        .collect();
    text.push('\n');
    text.push_str(&output::table(&["ALGORITHM", "MEMORY>", "RATIO>", "95 % IN>", "RAW>"], &rows));
    text
}

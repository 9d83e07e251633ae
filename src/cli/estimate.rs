//! `ztier estimate`: how much memory files or a device would take in a compressed RAM disk.

use super::output;
use super::sampler::{Sources, Trial};
use crate::config::size::{human, ratio};
use crate::device::Algorithm;
use crate::error::{Error, Result};
use clap::{Args, ValueHint};
use serde::Serialize;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;

/// Sample files, directories or a block device and predict their size in memory
#[derive(Args)]
pub struct Estimate {
    /// What to sample
    #[arg(required = true, value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Blocks of 4 KiB to read at most; more are more exact
    #[arg(long, value_name = "N", default_value_t = 32_768,
          value_parser = clap::value_parser!(u64).range(1..=1 << 28))]
    blocks: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    files: usize,
    data_bytes: u64,
    sampled_blocks: u64,
    skipped: u64,
    same_filled_share: f64,
    algorithms: Vec<Prediction>,
}

#[derive(Serialize)]
struct Prediction {
    algorithm: Algorithm,
    memory_bytes: u64,
    /// Data ÷ memory.
    ratio: f64,
    raw_share: f64,
}

impl Estimate {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let mut sources = Sources::find(&self.paths)?;
        if sources.blocks == 0 {
            return Err(Error::failure("there is no data to sample in what was named")
                .hint("name files or directories that hold some"));
        }
        let report = sample(&mut sources, self.blocks)?;
        if self.json {
            return output::json(&report);
        }
        print(&report)
    }
}

fn sample(sources: &mut Sources, blocks: u64) -> Result<Report> {
    let mut trials = [Algorithm::Lz4, Algorithm::Zstd].map(|a| (a, Trial::new(a)));
    let mut progress = Progress::new(blocks.min(sources.blocks));
    sources.sample(blocks, |block| {
        for (_, trial) in &mut trials {
            trial.show(block);
        }
        progress.step();
    });
    progress.end();
    let sampled = trials[0].1.blocks;
    if sampled == 0 {
        return Err(Error::failure("nothing of what was named could be read")
            .hint("run as a user who may read it"));
    }
    let share = |part: u64| part as f64 / sampled as f64;
    let data_bytes = sources.blocks * crate::BLOCK_SIZE as u64;
    let predict = |(algorithm, trial): &(Algorithm, Trial)| {
        let memory = share(trial.memory) * sources.blocks as f64;
        Prediction {
            algorithm: *algorithm,
            memory_bytes: memory as u64,
            ratio: data_bytes as f64 / memory,
            raw_share: share(trial.raw),
        }
    };
    Ok(Report {
        files: sources.files(),
        data_bytes,
        sampled_blocks: sampled,
        skipped: sources.skipped,
        same_filled_share: share(trials[0].1.same),
        algorithms: trials.iter().map(predict).collect(),
    })
}

fn print(report: &Report) -> Result<()> {
    let percent = |share: f64| format!("{:.1} %", share * 100.0);
    let skipped = match report.skipped {
        0 => String::new(),
        n => format!(", {n} could not be read"),
    };
    let mut text = output::pairs(&[
        ("data", format!("{} in {} files{skipped}", human(report.data_bytes), report.files)),
        ("sampled", format!("{} blocks of 4 KiB", report.sampled_blocks)),
        ("same-filled", percent(report.same_filled_share)),
    ]);
    let rows: Vec<Vec<String>> = report
        .algorithms
        .iter()
        .map(|p| {
            let name = if p.algorithm == Algorithm::Lz4 { "lz4" } else { "zstd" };
            vec![name.into(), human(p.memory_bytes), ratio(p.ratio), percent(p.raw_share)]
        })
        .collect();
    text.push('\n');
    text.push_str(&output::table(&["ALGORITHM", "MEMORY>", "RATIO>", "RAW>"], &rows));
    output::print(&text)
}

/// Shows percent on a terminal, nothing elsewhere.
struct Progress {
    all: u64,
    done: u64,
    shown: Option<u64>,
}

impl Progress {
    fn new(all: u64) -> Self {
        let shown = std::io::stderr().is_terminal().then_some(u64::MAX);
        Self { all, done: 0, shown }
    }

    fn step(&mut self) {
        self.done += 1;
        let percent = self.done * 100 / self.all;
        if self.shown.is_some_and(|shown| shown != percent) {
            self.shown = Some(percent);
            // Progress that can't be shown is no reason to stop.
            let _ = write!(std::io::stderr(), "\rsampling: {percent} %");
        }
    }

    fn end(&self) {
        if self.shown.is_some() {
            let _ = write!(std::io::stderr(), "\r{:20}\r", ""); // likewise
        }
    }
}

//! `ztier advise`: which role would help on this machine, and how much.
//!
//! Invariants: it only looks. The table has at most 80 columns; commands, which are to be pasted,
//! are on one line.

mod commands;
mod disks;
mod figures;
mod pages;
mod rules;
#[cfg(test)]
mod situations;
mod watch;

use super::estimate::{Effort, Report as Estimated, sample};
use super::output;
use super::progress_line::ProgressLine;
use crate::config::size::human;
use crate::device::Algorithm;
use crate::error::Result;
use clap::{Args, ValueHint};
use figures::{Compression, Figures, From, Named};
use rules::{Advice, Role, Verdict};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use watch::Watch;

/// What a sample of paths, and one of programs' memory, may be.
const BLOCKS: u64 = 16_384;
const SAMPLING: Duration = Duration::from_secs(4);
/// How often the progress is shown.
const TICK: Duration = Duration::from_millis(250);

/// Watch this machine, and say which role would help here and how much
///
/// Run it while the machine does what is too slow. It reads counters of the kernel, and as root a
/// sample of pages of programs, of which it keeps nothing but how well they compress.
#[derive(Args)]
pub struct Advise {
    /// Files to sample: what a RAM disk would hold, or what is on the slow disk
    #[arg(value_hint = ValueHint::AnyPath)]
    paths: Vec<PathBuf>,
    /// Seconds to watch
    #[arg(long, value_name = "N", default_value_t = 10,
          value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: u64,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Serialize)]
struct Report {
    figures: Figures,
    /// What the kernel does not tell, and the like.
    missing: Vec<String>,
    advice: Vec<Advice>,
}

impl Advise {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let watch = Watch::of_this_machine();
        // Before the time that is watched, of which a sample would be a part.
        let effort = Effort { blocks: BLOCKS, time: Some(SAMPLING) };
        let estimated =
            if self.paths.is_empty() { None } else { Some(sample(&self.paths, effort)?) };
        let before = watch.look();
        wait(Duration::from_secs(self.seconds));
        let after = watch.look();
        let mut figures = watch.figures(&before, &after);
        let of_memory = pages::sample(Path::new("/proc"), Instant::now() + SAMPLING);
        figures.of_memory = of_memory.unwrap_or_default();
        if let Some(estimated) = &estimated {
            let disk = disks::below(&self.paths[0], &figures.disks, &watch.mounts());
            figures.of_files = compression(estimated);
            let Estimated { data_bytes, complete, .. } = *estimated;
            figures.named = Some(Named { data_bytes, complete, disk });
        }
        let missing = rules::missing(&figures);
        let report = Report { advice: rules::advise(&figures), missing, figures };
        if self.json {
            return output::json(&report);
        }
        output::print(&report.text())
    }
}

fn compression(estimated: &Estimated) -> Compression {
    let lz4 = estimated.algorithms.iter().find(|p| p.algorithm == Algorithm::Lz4);
    lz4.map_or_else(Compression::default, |lz4| Compression {
        from: From::Paths,
        ratio: lz4.ratio,
        low: lz4.ratio_low,
        high: lz4.ratio_high,
    })
}

fn wait(time: Duration) {
    let progress = ProgressLine::new();
    let until = Instant::now() + time;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return;
        }
        progress.show(&format!("watching: {} s left", left.as_secs() + 1));
        std::thread::sleep(left.min(TICK));
    }
}

impl Role {
    fn of(self, disk: Option<&str>) -> String {
        let disk = disk.unwrap_or_default();
        match self {
            Self::RamDisk => "RAM disk".to_owned(),
            Self::Swap => "compressed swap".to_owned(),
            Self::SpilledSwap => "swap that spills".to_owned(),
            Self::Cache => format!("cache for {disk}"),
            Self::Log => format!("log for {disk}"),
        }
    }
}

impl Verdict {
    fn word(self) -> &'static str {
        match self {
            Self::Helps => "yes",
            Self::No => "no",
            Self::Harms => "harms",
            Self::Unknown => "?",
        }
    }
}

impl Report {
    fn text(&self) -> String {
        let mut out = self.machine();
        let rows: Vec<Vec<String>> = self
            .advice
            .iter()
            .map(|a| vec![a.role.of(a.disk.as_deref()), a.verdict.word().into(), a.short.clone()])
            .collect();
        out.push('\n');
        out.push_str(&output::table(&["ROLE", "HELPS", "HOW MUCH, OR WHY NOT"], &rows));
        for advice in self.advice.iter().filter(|advice| !advice.why.is_empty()) {
            let role = advice.role.of(advice.disk.as_deref());
            out.push_str(&format!("\n{role}: {}\n", advice.verdict.word()));
            for why in &advice.why {
                out.push_str(&output::wrapped(&format!("  {why}"), 4));
                out.push('\n');
            }
            for command in &advice.commands {
                out.push_str(&format!("  # {command}\n"));
            }
        }
        if !self.advice.iter().any(|advice| advice.verdict == Verdict::Helps) {
            out.push_str(
                "\nnothing here would help, by what was seen; watch while it is slow, \
                 see --seconds\n",
            );
        }
        out
    }

    /// What was seen, and what was not.
    fn machine(&self) -> String {
        let Figures { memory, pressure, paging, .. } = &self.figures;
        let share = |share: Option<f64>| {
            share.map_or("not told".to_owned(), |share| format!("{:.0} %", share * 100.0))
        };
        let rate = |rate: Option<f64>| rate.map_or("?".to_owned(), |rate| format!("{rate:.0}"));
        let mut rows = vec![
            ("watched", format!("{:.0} s", self.figures.seconds)),
            (
                "memory",
                format!(
                    "{} of {} available; {} of files, {} of programs",
                    human(memory.available_bytes),
                    human(memory.total_bytes),
                    human(memory.file_bytes),
                    human(memory.anonymous_bytes)
                ),
            ),
            (
                "waiting",
                format!(
                    "for memory {}, for disks {}, for processors {}",
                    share(pressure.memory),
                    share(pressure.io),
                    share(pressure.cpu)
                ),
            ),
            (
                "pages/s",
                format!(
                    "swapped in {:.0}, out {:.0}; refaults of files {}; scanned {}",
                    paging.swapped_in,
                    paging.swapped_out,
                    rate(paging.refaults_file),
                    rate(paging.scanned)
                ),
            ),
        ];
        for disk in self.figures.disks.iter().filter(|disk| disk.busy > 0.0) {
            rows.push((
                "disk",
                format!(
                    "{} ({}): {:.0} reads/s, {:.0} writes/s, busy {:.0} %",
                    disk.name,
                    disk.kind.name(),
                    disk.reads.per_second,
                    disk.writes.per_second,
                    disk.busy * 100.0
                ),
            ));
        }
        let mut out = output::pairs(&rows);
        for missing in &self.missing {
            out.push_str(&output::wrapped(missing, 2));
            out.push('\n');
        }
        out
    }
}

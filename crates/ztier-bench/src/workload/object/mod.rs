//! Volumes in stores of objects, by the latency of the store: flushes, uploads, what is lost when a
//! host dies, takeovers, memory, and rivals.
//!
//! Invariants: the store is versitygw behind a proxy that delays each request, both of this run, or
//! a directory. What is compared takes turns in one run; a figure is the median of its rounds, but
//! for losses, whose worst counts. The daemon's CPU time and memory are part of each result.

mod flush;
mod load;
mod loss;
mod memory;
mod place;
mod rivals;
mod takeover;
mod upload;

use crate::report::{Report, Row, print, say};
use crate::sys::interrupt;
use clap::ValueEnum;
use place::Stores;
use std::time::Duration;
use ztier::error::{Error, Result};

pub use place::LATENCY_MAX_MS;

/// Width of a page.
const COLUMNS: usize = 80;
const BLOCK: u64 = ztier::BLOCK_SIZE as u64;
const MIB: f64 = 1_048_576.0;
const GIB: f64 = 1024.0 * MIB;

/// The parts of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// 4 KiB written and flushed: a log before the store beside the same log before a local file.
    Flush,
    /// What is uploaded for what is written, in how many requests, and what that costs.
    Upload,
    /// What the store lacks after the host has died.
    Loss,
    /// The time until a second host reads and writes.
    Takeover,
    /// Memory of a daemon at rest.
    Memory,
    /// s3backer and others on the same store.
    Rivals,
}

/// Options of the command line.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Short runs, little data.
    pub quick: bool,
    /// The only sections; empty for all.
    pub sections: Vec<Section>,
    /// Milliseconds that a request takes; empty for the usual ones.
    pub latencies: Vec<u64>,
    /// Bytes of blocks of the volume that is taken over.
    pub volume: Option<u64>,
}

/// Durations, sizes and repetitions.
struct Plan {
    rounds: u32,
    /// Duration of a run of fio.
    time: Duration,
    /// Bytes of a volume that is written at random, a power of two.
    span: u64,
    /// Bytes of a log.
    log: u64,
    /// Duration of the load that is uploaded, and its rounds; three of them take turns.
    upload: (Duration, u32),
    /// Hosts that die at each latency.
    deaths: u32,
    /// Bytes of blocks of the volume that is taken over, a power of two, and its takeovers.
    volume: u64,
    takeovers: u32,
    /// Bytes of blocks of the volume whose memory is measured, a power of two.
    resting: u64,
    latencies: Vec<u64>,
    quick: bool,
}

impl Plan {
    fn new(choice: &Choice) -> Self {
        let quick = choice.quick;
        let usual = if quick { vec![0, 30] } else { vec![0, 10, 30, 100] };
        let given = Some(choice.latencies.clone()).filter(|some| !some.is_empty());
        let pick = |short: u64, long: u64| if quick { short } else { long };
        Self {
            rounds: if quick { 3 } else { 5 },
            time: Duration::from_millis(pick(1500, 6000)),
            span: pick(256 << 20, 1 << 30),
            log: pick(256 << 20, 1 << 30),
            upload: (Duration::from_secs(pick(8, 30)), if quick { 1 } else { 3 }),
            deaths: if quick { 1 } else { 5 },
            volume: choice.volume.unwrap_or(pick(1 << 30, 16 << 30)),
            takeovers: if quick { 1 } else { 3 },
            resting: pick(256 << 20, 1 << 30),
            latencies: given.unwrap_or(usual),
            quick,
        }
    }
}

/// Runs the sections; returns those that failed.
///
/// # Errors
/// There is no directory for stores.
pub fn run(report: &mut Report, choice: &Choice) -> Result<Vec<String>> {
    let plan = Plan::new(choice);
    let stores = Stores::open(&plan)?;
    stores.describe(report);
    let mut failed = Vec::new();
    let all = Section::value_variants().iter();
    for section in all.filter(|s| choice.sections.is_empty() || choice.sections.contains(s)) {
        let name = format!("{section:?}").to_lowercase();
        print(&format!("\n== {name}"));
        let start = std::time::Instant::now();
        let done = match section {
            Section::Flush => flush::run(report, &plan, &stores),
            Section::Upload => upload::run(report, &plan, &stores),
            Section::Loss => loss::run(report, &plan, &stores),
            Section::Takeover => takeover::run(report, &plan, &stores),
            Section::Memory => memory::run(report, &plan, &stores),
            Section::Rivals => rivals::run(report, &plan, &stores),
        };
        match done {
            Ok(()) => say(&format!("{name} took {:.1} s", start.elapsed().as_secs_f64())),
            Err(e) => {
                missing(report, &name, "section", &e);
                failed.push(name);
                // Earlier sections are still reported and saved.
                if interrupt::requested() {
                    break;
                }
            }
        }
    }
    Ok(failed)
}

/// Adds figures without printing them: the tables do.
fn figure(
    report: &mut Report,
    section: &str,
    system: &str,
    case: &str,
    unit: &'static str,
    runs: &[f64],
) {
    let runs: Vec<f64> = runs.iter().copied().filter(|run| run.is_finite()).collect();
    if !runs.is_empty() {
        let (section, system, case) = (section.into(), system.into(), case.into());
        report.silent_row(Row { section, system, case, unit, runs, ..Row::default() });
    }
}

/// Adds a note, and prints it in lines that fit.
fn note(report: &mut Report, section: &str, about: &str, text: impl std::fmt::Display) {
    let text = text.to_string();
    print(&wrapped(&format!("{about}: {text}")));
    report.quiet_note(section, about, text);
}

/// Adds the reason why a figure could not be measured, and prints it in lines that fit.
fn missing(report: &mut Report, section: &str, system: &str, reason: impl std::fmt::Display) {
    let reason = reason.to_string();
    print(&wrapped(&format!("{system}: missing: {reason}")));
    report.quiet_missing(section, system, reason);
}

/// Lines of at most [`COLUMNS`], all but the first set in.
fn wrapped(text: &str) -> String {
    let (mut all, mut line) = (String::new(), String::new());
    for word in text.split(' ') {
        if !line.is_empty() && line.chars().count() + 1 + word.chars().count() > COLUMNS {
            all += &format!("{line}\n");
            line = String::from(" ");
        }
        line += if line.is_empty() { "" } else { " " };
        line += word;
    }
    all + &line
}

/// A cell with a number, or a dash where there is none.
fn cell(value: f64, digits: usize) -> String {
    if value.is_finite() { format!("{value:.digits$}") } else { "–".into() }
}

/// Names a step of a section on standard error.
fn step(text: &str) -> Result<()> {
    interrupt::check()?;
    say(text);
    Ok(())
}

/// The error of a section that had nothing to measure.
fn nothing(what: &str) -> Error {
    Error::failure(format!("{what} was not measured"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notes_fit_the_page() {
        let text = wrapped(&"word ".repeat(40));
        assert!(text.lines().count() > 2 && text.lines().all(|line| line.len() <= COLUMNS));
        assert!(text.lines().skip(1).all(|line| line.starts_with("  word")), "{text}");
        assert_eq!(wrapped("a b"), "a b");
    }
}

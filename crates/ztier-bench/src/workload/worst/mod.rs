//! The cost of compressed swap for a load that wants all memory for files, and the share of a fixed
//! limit's gain elsewhere that an adaptive limit keeps.
//!
//! Invariants: systems take turns in each round, in the same machine; a system that this machine or
//! this build lacks is named; swap is off between turns.

mod found;
mod plan;
mod system;

pub use plan::{Choice, Plan};
pub use system::System;

use super::iozone::{Mode, Outcome, Place, Series, in_child};
use super::scan::limit::Limit;
use super::scan::load;
use crate::data::{Kind, Pool};
use crate::report::{Report, Row, median, print, say};
use crate::rival::ext4::Ext4;
use crate::sys::command::{Running, run as run_program};
use crate::sys::interrupt;
use crate::sys::map::AlignedBuf;
use found::Found;
use std::path::Path;
use std::time::{Duration, Instant};
use system::Swap;
use ztier::BLOCK_SIZE;
use ztier::error::{Context as _, Error, Result};

/// Limit on the time of one series.
const SERIES_LIMIT: Duration = Duration::from_secs(1800);
/// Limits on the time of a scan, and on its beginning and end.
const SCAN_TIME: Duration = Duration::from_secs(300);
const SLACK: Duration = Duration::from_secs(60);
/// The first four tests.
pub const TESTS: [&str; 4] = ["write", "rewrite", "read", "reread"];

/// Runs the table; returns the failures.
///
/// # Errors
/// The run is interrupted; the machine has no disk for the files.
pub fn run(report: &mut Report, choice: &Choice, svg: Option<&Path>) -> Result<Vec<String>> {
    let plan = choice.plan();
    for (about, text) in plan.about() {
        report.note("worst-case", about, text);
    }
    let fs = Ext4::new(Path::new(system::FILES))?;
    let mut turns =
        Turns { report, plan: &plan, dir: fs.path(), gone: Vec::new(), failed: Vec::new() };
    let found = turns.files()?;
    let scans = turns.scans()?;
    let failed = turns.failed;
    found::tables(report, &plan, &found);
    found::ratios(report, &found, &scans);
    if let Some(path) = svg {
        found::picture(&plan, &found, path)?;
    }
    Ok(failed)
}

struct Turns<'a> {
    report: &'a mut Report,
    plan: &'a Plan,
    dir: &'a Path,
    /// Unavailable systems.
    gone: Vec<System>,
    failed: Vec<String>,
}

impl Turns<'_> {
    /// Measures the source's load.
    fn files(&mut self) -> Result<Vec<Found>> {
        let mut all: Vec<Found> = self.plan.systems.iter().map(|&s| Found::new(s)).collect();
        for round in 1..=self.plan.runs {
            for found in &mut all {
                let begun = Instant::now();
                let outcomes = self.turn("files", found.system, Self::series)?;
                let Some(outcomes) = outcomes else { continue };
                let (name, took) = (found.system.name(), begun.elapsed().as_secs_f64());
                say(&format!("files, {name}, run {round} of {}: {took:.0} s", self.plan.runs));
                for (series, outcome) in &outcomes {
                    self.rows(found.system, *series, outcome);
                }
                found.runs.push(outcomes);
            }
        }
        all.retain(|found| !found.runs.is_empty());
        Ok(all)
    }

    /// Runs all series, one after the other, beside a program that only occupies memory.
    fn series(plan: &Plan, dir: &Path) -> Result<Vec<(Series, Outcome)>> {
        let own = std::env::current_exe().context("cannot find out where this program is")?;
        let _heap = Running::start(&own.to_string_lossy(), &["idle-heap", &plan.heap.to_string()])?;
        let mut outcomes = Vec::new();
        for &file in &plan.files {
            for &record in &plan.records {
                let series = Series {
                    four: true,
                    ..Series::new(file << 20, record, Mode::Kept, Kind::Iozone)?
                };
                let place = Place { dir: dir.into(), ..Place::default() };
                outcomes.push((series, in_child(&place, series, SERIES_LIMIT)?));
            }
        }
        Ok(outcomes)
    }

    /// Seconds of a scan on the disk, with the fixed limit and with the adaptive one.
    fn scans(&mut self) -> Result<Vec<(System, f64)>> {
        let wanted = [System::Disk, System::Fixed, System::Auto];
        let systems: Vec<System> =
            wanted.into_iter().filter(|s| self.plan.systems.contains(s)).collect();
        let mut all: Vec<(System, Vec<f64>)> = systems.iter().map(|&s| (s, Vec::new())).collect();
        for _ in 0..self.plan.runs {
            for (system, runs) in &mut all {
                let took = self.turn("scan", *system, |plan, _| scan(plan))?;
                runs.extend(took);
            }
        }
        let mut medians = Vec::new();
        for (system, runs) in all.into_iter().filter(|(_, runs)| !runs.is_empty()) {
            medians.push((system, median(&runs)));
            self.report.row(Row {
                section: "scan".into(),
                system: system.name().into(),
                case: self.plan.scan_about(),
                unit: "s",
                runs,
                ..Row::default()
            });
        }
        Ok(medians)
    }

    /// One turn of a system; `None` where it is unavailable.
    fn turn<T>(
        &mut self,
        section: &str,
        system: System,
        work: impl FnOnce(&Plan, &Path) -> Result<T>,
    ) -> Result<Option<T>> {
        interrupt::check()?;
        if self.gone.contains(&system) {
            return Ok(None);
        }
        let swap = match Swap::on(system, self.plan.memory << 21) {
            Ok(swap) => swap,
            Err(e) => {
                interrupt::check()?;
                self.report.missing(section, system.name(), e);
                self.gone.push(system);
                return Ok(None);
            }
        };
        match work(self.plan, self.dir) {
            Ok(done) => {
                if let Some(about) = swap.about()? {
                    self.report.note(section, system.name(), about);
                }
                Ok(Some(done))
            }
            Err(e) => {
                interrupt::check()?;
                self.report.missing(section, system.name(), &e);
                self.failed.push(format!("{section}, {}", system.name()));
                self.gone.push(system);
                Ok(None)
            }
        }
    }

    fn rows(&mut self, system: System, series: Series, outcome: &Outcome) {
        let mut row = |case: String, unit, value| {
            self.report.silent_row(Row {
                section: "files".into(),
                system: system.name().into(),
                case,
                unit,
                runs: vec![value],
                ..Row::default()
            });
        };
        for (test, figure) in TESTS.iter().zip(&outcome.figures) {
            row(format!("{test}, {series}"), "KiB/s", figure.kib_per_second);
        }
        row(format!("elapsed, {series}"), "s", outcome.elapsed_s);
        for (name, unit, of) in found::COSTS {
            row(format!("{name}, {series}"), unit, of(&outcome.cost));
        }
    }
}

/// Seconds of one scan.
fn scan(plan: &Plan) -> Result<f64> {
    let own = std::env::current_exe().context("cannot find out where this program is")?;
    let group = Limit::new(plan.scan_limit() << 20)?;
    let args = [
        "scan-load".to_owned(),
        plan.scan_mib.to_string(),
        plan.passes.to_string(),
        "--seconds".to_owned(),
        SCAN_TIME.as_secs().to_string(),
        "--join".to_owned(),
        group.join().to_string_lossy().into_owned(),
    ];
    let text = run_program(own, &args, SCAN_TIME + SLACK)?;
    let outcome: load::Outcome =
        serde_json::from_str(&text).context("the load printed no figures")?;
    if outcome.cut {
        let text = format!("a scan did not end within {} s", SCAN_TIME.as_secs());
        return Err(Error::failure(text));
    }
    Ok(outcome.elapsed_s)
}

/// Fills `mib` MiB of memory, and waits for the end.
///
/// # Errors
/// No memory; the run has to end.
pub fn idle(mib: u64) -> Result<()> {
    rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::TERM))
        .context("cannot tie a program to its run")?;
    let len = usize::try_from(mib << 20).context("more memory than there can be")?;
    let mut memory = AlignedBuf::small_pages(len)?;
    {
        let mut pool: Pool = load::data()?;
        for (page, bytes) in memory.chunks_exact_mut(BLOCK_SIZE).enumerate() {
            bytes.copy_from_slice(pool.record((page * BLOCK_SIZE) as u64, 1, BLOCK_SIZE));
        }
    }
    print("filled");
    loop {
        interrupt::sleep(Duration::from_secs(3600))?;
    }
}

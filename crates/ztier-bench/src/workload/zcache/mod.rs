//! The read cache below a file system: IOzone's nine tests on a file as large as the memory, on a
//! slow disk, with ztier and without.
//!
//! Invariants: systems take turns, a series each; ztier's memory counts as memory of the programs
//! above it. A mean is over record sizes, as in the source, of the median of runs.

mod disk;
mod files;
mod found;
mod plan;
mod sweep;
mod system;

pub use plan::{Choice, Section};
pub use system::System;

use super::iozone::{Mode, Series, TESTS};
use crate::data::{Kind, POOL_BYTES, Pool};
use crate::report::{Report, Row, Target, print, say};
use crate::sys::interrupt;
use crate::workload::SEED;
use crate::workload::scan::limit::Limit;
use found::Found;
use plan::Plan;
use std::time::Instant;
use system::{Machine, Shape};
use ztier::error::Result;

/// The source's results.
const SOURCE: [f64; 9] = [1.02, 2.52, 2.41, 2.42, 3.06, 1.84, 2.82, 1.40, 3.47];
/// Target of random writes with a log.
const LOG_GOAL: f64 = 10.0;
/// Index of the random write among the tests.
const RANDOM_WRITE: usize = 5;

/// Remaining series, and the time of those before.
pub struct Progress {
    begun: Instant,
    done: usize,
    all: usize,
}

impl Progress {
    fn new(all: usize) -> Self {
        Self { begun: Instant::now(), done: 0, all }
    }

    fn next(&mut self, what: &str, took: f64) {
        self.done += 1;
        let mean = self.begun.elapsed().as_secs_f64() / self.done as f64;
        let left = mean * self.all.saturating_sub(self.done) as f64;
        let (done, all) = (self.done, self.all.max(self.done));
        say(&format!("{done} of {all}: {what}: {took:.0} s; {:.0} min left", (left / 60.0).ceil()));
    }
}

/// Runs the table; returns the sections that failed.
///
/// # Errors
/// The run is interrupted; the settings cannot be changed.
pub fn run(report: &mut Report, choice: &Choice) -> Result<Vec<String>> {
    let plan = choice.plan();
    for (about, text) in plan.about() {
        report.note("zcache", about, text);
    }
    report.note("zcache", "group", Limit::new(plan.shape().group())?.about());
    if !system::serves_inside() {
        let text = "outside of the group, whose limit is lower by what they have when they are up \
                    and by what those at work may take later, their pools and what is not durable \
                    yet in a log (but not its index): they lack CAP_SYS_RESOURCE";
        report.note("zcache", "daemons", text);
    }
    for &kind in &plan.data {
        report.note("zcache", "data", Pool::build(kind, POOL_BYTES, SEED)?);
    }
    let mut progress = Progress::new(plan.series());
    let mut failed = Vec::new();
    let mut kept = Vec::new();
    for &section in &plan.sections {
        print(&format!("\n== {}", section.word()));
        let done = match section {
            Section::Nine => nine(report, &plan, &mut progress, &mut kept),
            Section::Volumes => volumes(report, &plan, &mut progress),
            Section::Disk => real(report, &plan, &mut progress),
            Section::Sweep => sweep::run(report, &plan, &mut progress, choice.svg.as_deref()),
            Section::Files => files::run(report, &plan, &mut progress),
        };
        if let Err(e) = done {
            interrupt::check()?;
            report.missing(section.word(), "section", &e);
            failed.push(section.word().to_owned());
        }
    }
    if let (Some(path), false) = (&choice.svg, kept.is_empty()) {
        found::picture(&kept, path)?;
    }
    Ok(failed)
}

/// The source's table, with its own data and with data that compresses to half.
fn nine(
    report: &mut Report,
    plan: &Plan,
    progress: &mut Progress,
    kept: &mut Vec<(Kind, Vec<Found>)>,
) -> Result<()> {
    for &kind in &plan.data {
        let systems = plan.turns(kind);
        let section = format!("nine, {kind}");
        let shape = plan.shape();
        let found = turns(
            report,
            &section,
            plan,
            (&shape, plan.records_of(kind), kind),
            &systems,
            progress,
        )?;
        for found in &found {
            found.print_table(&format!("{}, {kind}", found.system.name()));
        }
        found::compare(report, &section, &found, goals(kind));
        if kind == Kind::Iozone {
            ratios(report, &found, "", |test| Target::AtLeast(SOURCE[test]));
        } else {
            let suffix = format!("_{}", kind.to_string().replace(':', "to"));
            ratios(report, &found, &suffix, |_| Target::None);
            found::best(report, &section, &found);
        }
        kept.push((kind, found));
    }
    Ok(())
}

fn goals(kind: Kind) -> Option<[f64; 9]> {
    (kind == Kind::Iozone).then_some(SOURCE)
}

/// Several volumes in use at the same time.
fn volumes(report: &mut Report, plan: &Plan, progress: &mut Progress) -> Result<()> {
    let shape = Shape { volumes: 2, busy: 2, ..plan.small_shape() };
    side(report, plan, progress, "volumes", &shape, "_two_volumes")
}

/// On a disk of this machine.
fn real(report: &mut Report, plan: &Plan, progress: &mut Progress) -> Result<()> {
    let shape = Shape { slow: plan.real.clone(), volumes: 1, ..plan.small_shape() };
    side(report, plan, progress, "disk", &shape, "_held_disk")
}

fn side(
    report: &mut Report,
    plan: &Plan,
    progress: &mut Progress,
    section: &str,
    shape: &Shape,
    suffix: &str,
) -> Result<()> {
    let what = (shape, &plan.small_records[..], Kind::Iozone);
    let found = turns(report, section, plan, what, &[System::Bare, System::Cache], progress)?;
    found::compare(report, section, &found, None);
    ratios(report, &found, suffix, |_| Target::None);
    Ok(())
}

/// Brings the systems up and runs each series on them in turn.
fn turns(
    report: &mut Report,
    section: &str,
    plan: &Plan,
    (shape, records, kind): (&Shape, &[usize], Kind),
    systems: &[System],
    progress: &mut Progress,
) -> Result<Vec<Found>> {
    let mut machines = Vec::new();
    for &system in systems {
        let machine = Machine::up(system, shape)?;
        machine.describe(report, section);
        machines.push((machine, Found::new(system)));
    }
    for _ in 0..plan.runs {
        for &record in records {
            for (machine, found) in &mut machines {
                interrupt::check()?;
                let series = Series {
                    sample: plan.sample(shape.file),
                    ..Series::new(shape.file, record, Mode::Kept, kind)?
                };
                let begun = Instant::now();
                let figures = machine.series(series)?;
                for figures in figures {
                    rows(report, section, machine.system, series, &figures);
                    found.add(record, shape.file, figures);
                }
                found.pool = machine.pool()?;
                let what = format!("{section}, {}, {series}", machine.system.name());
                progress.next(&what, begun.elapsed().as_secs_f64());
            }
        }
    }
    Ok(machines.into_iter().map(|(_, found)| found).collect())
}

fn rows(
    report: &mut Report,
    section: &str,
    system: System,
    series: Series,
    figures: &[super::iozone::Figure; 9],
) {
    for (test, figure) in TESTS.iter().zip(figures) {
        report.silent_row(Row {
            section: section.into(),
            system: system.name().into(),
            case: format!("{test}, {series}"),
            unit: "KiB/s",
            runs: vec![figure.kib_per_second],
            cpu_own_percent: Some(figure.cpu_own_percent),
            cpu_machine_percent: Some(figure.cpu_machine_percent),
            cpu_kernel_percent: Some(figure.cpu_kernel_percent),
            ..Row::default()
        });
        for (what, bytes) in
            figure.disk.iter().flat_map(|d| [("disk read", d.read), ("disk written", d.written)])
        {
            report.silent_row(Row {
                section: section.into(),
                system: system.name().into(),
                case: format!("{test}, {series}, {what}"),
                unit: "MiB",
                runs: vec![bytes as f64 / (1 << 20) as f64],
                ..Row::default()
            });
        }
    }
}

/// The target of an exclusive cache: of data that shrinks to half, where an inclusive one loses.
fn exclusive_goal(suffix: &str, test: usize) -> Target {
    match (suffix, TESTS[test]) {
        ("_2to1", "random read") => Target::AtLeast(1.5),
        ("_2to1", "stride read") => Target::AtLeast(1.3),
        // Rewriting one record asks no disk.
        (_, "record rewrite") => Target::None,
        ("_2to1", _) => Target::AtLeast(0.95),
        _ => Target::None,
    }
}

/// Ratios of means, of each system with ztier to the one without.
fn ratios(report: &mut Report, found: &[Found], suffix: &str, goal: impl Fn(usize) -> Target) {
    let Some((bare, rest)) = found.split_first() else { return };
    for ours in rest {
        for (test, name) in TESTS.iter().enumerate() {
            let word = name.replace(' ', "_");
            let ratio = ours.average(test) / bare.average(test);
            let (log, goal) = match ours.system {
                System::Log if test == RANDOM_WRITE => ("_with_log", Target::AtLeast(LOG_GOAL)),
                System::Log => ("_with_log", Target::None),
                System::Exclusive => ("_exclusive", exclusive_goal(suffix, test)),
                _ => ("", goal(test)),
            };
            report.ratio(&format!("{word}{log}{suffix}"), ratio, goal);
        }
    }
}

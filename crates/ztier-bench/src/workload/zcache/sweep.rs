//! Limits of the pool, a measurement that the source left open.

use super::found::Found;
use super::plan::Plan;
use super::system::{Shape, System};
use super::{Progress, turns};
use crate::data::Kind;
use crate::report::{Line, Lines, Picture, Report, Row, Table, Target, print};
use crate::workload::iozone::TESTS;
use std::path::Path;
use ztier::error::{Context as _, Result};

const SECTION: &str = "sweep";

/// Runs the section. Its picture is in a file beside `svg`.
///
/// # Errors
/// The errors of its systems.
pub fn run(
    report: &mut Report,
    plan: &Plan,
    progress: &mut Progress,
    svg: Option<&Path>,
) -> Result<()> {
    let mut swept = Vec::new();
    let records = &plan.small_records[..];
    let mut one = |report: &mut Report, system, percent| {
        let section = format!("{SECTION}, {percent} %");
        let shape = Shape { percent, ..plan.small_shape() };
        let what = (&shape, records, Kind::Ratio(2.0));
        turns(report, &section, plan, what, &[system], progress)
    };
    let bare = one(report, System::Bare, 0)?;
    let Some(bare) = bare.first() else { return Ok(()) };
    for &percent in &plan.limits {
        for system in plan.swept() {
            let found = one(report, system, percent)?;
            let ratios = found.first().map(|found| ratios(bare, found));
            swept.extend(ratios.map(|ratios| Swept { system, percent, ratios }));
        }
    }
    table(report, &swept);
    match svg {
        Some(path) => picture(&swept, &path.with_extension("sweep.svg")),
        None => Ok(()),
    }
}

/// How many times as fast as without ztier each test is.
struct Swept {
    system: System,
    percent: u32,
    ratios: [f64; 9],
}

fn ratios(bare: &Found, ours: &Found) -> [f64; 9] {
    std::array::from_fn(|test| ours.average(test) / bare.average(test))
}

/// The target of an exclusive cache at a limit.
fn goal(test: &str, percent: u32) -> Target {
    if test == "random read" && percent >= 20 { Target::AtLeast(3.0) } else { Target::None }
}

fn table(report: &mut Report, swept: &[Swept]) {
    print("\nsweep: how many times as fast as without ztier, by the limit; data 2:1; with *, the");
    print("cache holds what the page cache has dropped");
    let mut columns = vec![("limit", 7)];
    columns.extend(TESTS.map(|test| (test, 8)));
    let table = Table::new(&columns);
    print(&table.head());
    for Swept { system, percent, ratios } in swept {
        let is_exclusive = *system == System::Exclusive;
        let (star, word) = if is_exclusive { ("*", "exclusive, ") } else { ("", "") };
        let mut cells = vec![format!("{percent} %{star}")];
        cells.extend(ratios.map(|ratio| format!("{ratio:.2}")));
        print(&table.line(&cells));
        for (test, ratio) in TESTS.iter().zip(ratios) {
            report.silent_row(Row {
                section: SECTION.into(),
                system: format!("{word}limit of {percent} %"),
                case: (*test).into(),
                unit: "times",
                runs: vec![*ratio],
                ..Row::default()
            });
            if is_exclusive {
                let test_word = test.replace(' ', "_");
                let name = format!("{test_word}_exclusive_2to1_{percent}_percent");
                report.ratio(&name, *ratio, goal(test, *percent));
            }
        }
    }
}

/// A panel for each test: speedup over the limit.
fn picture(swept: &[Swept], path: &Path) -> Result<()> {
    let of = |system| swept.iter().filter(move |one| one.system == system);
    let mut percents: Vec<u32> = swept.iter().map(|one| one.percent).collect();
    percents.dedup();
    let line = |system, test: usize| {
        let at = |percent: &u32| {
            of(system).find(|one| one.percent == *percent).map(|one| one.ratios[test])
        };
        percents.iter().map(at).collect()
    };
    let panel = |(test, name): (usize, &&str)| Lines {
        title: (*name).to_owned(),
        unit: "times as fast".into(),
        across: "limit of the pool, part of the memory".into(),
        places: percents.iter().map(|percent| format!("{percent} %")).collect(),
        lines: vec![
            line(System::Cache, test),
            line(System::Exclusive, test),
            percents.iter().map(|_| Some(1.0)).collect(),
        ],
    };
    let picture = Picture {
        title: "A file as large as the memory on a slow disk, by the limit of the read cache; \
                data 2:1"
            .into(),
        legend: vec![
            Line::new(System::Cache.name()),
            Line::new(System::Exclusive.name()),
            Line::new("without"),
        ],
        columns: 3,
        charts: TESTS.iter().enumerate().map(panel).collect(),
    };
    std::fs::write(path, picture.svg()).context(format!("cannot write {}", path.display()))
}

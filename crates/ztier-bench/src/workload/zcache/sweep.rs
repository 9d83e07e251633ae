//! Limits of the pool, a measurement that the source left open.

use super::found::Found;
use super::plan::Plan;
use super::system::{Shape, System};
use super::{Progress, turns};
use crate::data::Kind;
use crate::report::{Line, Lines, Picture, Report, Row, Table, print};
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
    let mut all = Vec::new();
    let records = &plan.small_records[..];
    let mut one = |report: &mut Report, system, percent| {
        let section = format!("{SECTION}, {percent} %");
        let shape = Shape { percent, ..plan.small_shape() };
        let what = (&shape, records, Kind::Ratio(2.0));
        turns(report, &section, plan, what, &[system], progress)
    };
    let bare = one(report, System::Bare, 0)?;
    for &percent in &plan.limits {
        all.push((percent, one(report, System::Cache, percent)?));
    }
    let Some(bare) = bare.first() else { return Ok(()) };
    let swept: Vec<(u32, [f64; 9])> = all
        .iter()
        .filter_map(|(percent, found)| Some((*percent, ratios(bare, found.first()?))))
        .collect();
    table(report, &swept);
    match svg {
        Some(path) => picture(&swept, &path.with_extension("sweep.svg")),
        None => Ok(()),
    }
}

fn ratios(bare: &Found, ours: &Found) -> [f64; 9] {
    std::array::from_fn(|test| ours.average(test) / bare.average(test))
}

fn table(report: &mut Report, swept: &[(u32, [f64; 9])]) {
    print("\nsweep: how many times as fast as without ztier, by the limit; data 2:1");
    let mut columns = vec![("limit", 7)];
    columns.extend(TESTS.map(|test| (test, 8)));
    let table = Table::new(&columns);
    print(&table.head());
    for (percent, ratios) in swept {
        let mut cells = vec![format!("{percent} %")];
        cells.extend(ratios.map(|ratio| format!("{ratio:.2}")));
        print(&table.line(&cells));
        for (test, ratio) in TESTS.iter().zip(ratios) {
            report.silent_row(Row {
                section: SECTION.into(),
                system: format!("limit of {percent} %"),
                case: (*test).into(),
                unit: "times",
                runs: vec![*ratio],
                ..Row::default()
            });
        }
    }
}

/// A panel for each test: speedup over the limit.
fn picture(swept: &[(u32, [f64; 9])], path: &Path) -> Result<()> {
    let panel = |(test, name): (usize, &&str)| Lines {
        title: format!("{name}, times as fast"),
        across: "limit of the pool, part of the memory".into(),
        places: swept.iter().map(|(percent, _)| format!("{percent} %")).collect(),
        lines: vec![
            swept.iter().map(|(_, ratios)| Some(ratios[test])).collect(),
            swept.iter().map(|_| Some(1.0)).collect(),
        ],
    };
    let picture = Picture {
        title: "A file as large as the memory on a slow disk, by the limit of the read cache; \
                data 2:1"
            .into(),
        legend: vec![Line::new("with ztier"), Line::new("without")],
        columns: 3,
        charts: TESTS.iter().enumerate().map(panel).collect(),
    };
    std::fs::write(path, picture.svg()).context(format!("cannot write {}", path.display()))
}

//! What every table has: ratios beside targets, figures by case, conditions, what is missing.

use super::found::{Row, Table, Tables};
use super::model::{Bar, Bars, Cell, Chart, Charts, Figure, Grid, Item};
use crate::report::{Line, Lines, Target};
use crate::suite::{Run, State};

/// Runs of a figure that are one after the other in time, when there are so many.
const IN_TIME: usize = 12;

/// A ratio that a report speaks of also where it was not measured.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// As tables name it.
    pub name: &'static str,
    /// What is divided by what.
    pub what: &'static str,
    /// What it should be, unless the table that measured it says otherwise.
    pub target: Target,
    /// What the source had.
    pub source: Option<f64>,
}

/// One that a report speaks of.
pub const fn wanted(
    name: &'static str,
    what: &'static str,
    target: Target,
    source: Option<f64>,
) -> Wanted {
    Wanted { name, what, target, source }
}

/// Ratios beside what the source had and their targets.
pub fn ratios(caption: &str, table: Option<&Table>, all: &[Wanted]) -> Grid {
    let mut grid = Grid::new(caption, &["ratio", "", "source", "here", "target", "verdict"]);
    for one in all {
        let found = table.and_then(|table| table.ratios.get(one.name).copied());
        let target = match (found, table) {
            (Some(_), Some(table)) => table.goal(one.name),
            _ => one.target,
        };
        grid.rows.push(vec![
            Cell::text(one.name),
            Cell::text(one.what),
            Cell::maybe(one.source),
            Cell::maybe(found),
            if target == Target::None { Cell::None } else { Cell::text(target.short()) },
            verdict(found, target),
        ]);
    }
    grid
}

/// Whether a target was met; nothing without one, and nothing of what was not measured.
pub fn verdict(found: Option<f64>, target: Target) -> Cell {
    match found {
        Some(value) if target != Target::None => Cell::Verdict(target.met(value)),
        _ => Cell::None,
    }
}

/// The ratios of a table that are not in `known`.
pub fn other_ratios(table: &Table, known: &[Wanted]) -> Option<Item> {
    let mut grid = Grid::new("All other ratios", &["ratio", "here", "target", "verdict"]);
    for (name, &value) in &table.ratios {
        if known.iter().any(|one| one.name == name) {
            continue;
        }
        let target = table.goal(name);
        grid.rows.push(vec![
            Cell::text(name),
            Cell::Number(value),
            if target == Target::None { Cell::None } else { Cell::text(target.short()) },
            verdict(Some(value), target),
        ]);
    }
    let item = || Item::More("All other ratios".into(), vec![Item::Grid(grid.clone())]);
    (!grid.rows.is_empty()).then(item)
}

/// The figures of a section: a table, a chart a case, and lines where a figure is a course in time.
pub fn figures(table: &Table, section: &str, title: &str) -> Vec<Item> {
    let rows: Vec<&Row> = table.figures(section).collect();
    if rows.is_empty() {
        return Vec::new();
    }
    let mut grid = Grid::new(title, &["system", "case", "value", "unit", "spread and CPU use"]);
    let mut cases: Vec<(&str, &str)> = Vec::new();
    for row in rows.iter().filter(|row| row.runs.len() <= IN_TIME) {
        grid.rows.push(vec![
            Cell::text(&row.system),
            Cell::text(&row.case),
            Cell::maybe(row.value),
            Cell::text(&row.unit),
            Cell::text(row.note()),
        ]);
        let case = (row.case.as_str(), row.unit.as_str());
        if !cases.contains(&case) {
            cases.push(case);
        }
    }
    let bars = cases.into_iter().filter_map(|(case, unit)| {
        let fits = |row: &&&Row| row.case == case && row.unit == unit && row.runs.len() <= IN_TIME;
        let of: Vec<&&Row> = rows.iter().filter(fits).collect();
        let bar = |row: &&&Row| Bar {
            name: row.system.clone(),
            value: row.value.unwrap_or(0.0),
            note: row.note(),
            source: false,
        };
        let bars = || Bars {
            title: case.to_owned(),
            unit: unit.to_owned(),
            bars: of.iter().map(bar).collect(),
        };
        (of.len() > 1).then(|| Chart::Bars(bars()))
    });
    let charts: Vec<Chart> = bars.collect();
    let mut items = vec![Item::Heading(title.to_owned())];
    if !charts.is_empty() {
        // The heading says what they show.
        let caption = String::new();
        items.push(Item::Charts(Charts { caption, legend: Vec::new(), charts }));
    }
    items.extend(courses(&rows).into_iter().map(Item::Charts));
    items.push(Item::More(format!("{title}: all figures"), vec![Item::Grid(grid)]));
    items
}

/// Figures that go on in time, one chart a case, all systems in it.
fn courses(rows: &[&Row]) -> Vec<Charts> {
    let long: Vec<&&Row> = rows.iter().filter(|row| row.runs.len() > IN_TIME).collect();
    let mut cases: Vec<&str> = long.iter().map(|row| row.case.as_str()).collect();
    cases.dedup();
    cases.sort_unstable();
    cases.dedup();
    let one = |case: &str| {
        let of: Vec<&&&Row> = long.iter().filter(|row| row.case == case).collect();
        let most = of.iter().map(|row| row.runs.len()).max().unwrap_or(0);
        let line = |row: &&&&Row| (0..most).map(|n| row.runs.get(n).copied()).collect();
        let unit = of.first().map_or("", |row| &row.unit);
        let lines = Lines {
            title: format!("{case}, {unit}"),
            across: "looks, one after the other".into(),
            places: (1..=most).map(|n| n.to_string()).collect(),
            lines: of.iter().map(line).collect(),
        };
        let legend = of.iter().map(|row| Line::new(&row.system));
        let (caption, legend) = (case.to_owned(), legend.collect());
        Charts { caption, legend, charts: vec![Chart::Lines(lines)] }
    };
    cases.into_iter().map(one).collect()
}

/// What a table says of how it measured.
pub fn conditions(table: &Table) -> Option<Item> {
    let mut notes: Vec<(String, String)> = Vec::new();
    let about = |row: &&Row| row.value.is_none() && row.missing.is_none();
    for row in table.rows.iter().filter(about) {
        let note = (format!("{}: {}", row.section, row.system), row.case.clone());
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    (!notes.is_empty()).then(|| Item::More("How it was measured".into(), vec![Item::Notes(notes)]))
}

/// Why a part of the run has no figures, or not all.
pub fn shortfall(run: &Run, part: &str) -> Option<Item> {
    let Some(part) = run.parts.iter().find(|other| other.name == part) else {
        return Some(Item::Text(format!("`{part}` was left out of this run.")));
    };
    let why = part.reason.as_deref().unwrap_or("no reason is known");
    let text = match part.state {
        State::Done => return None,
        State::Waiting => format!("`{}` has not run yet.", part.name),
        State::Running => format!("`{}` was cut off.", part.name),
        State::Failed => format!("`{}` failed: {why}. What it had found before counts.", part.name),
        State::Absent => format!("`{}` cannot run on this machine: {why}.", part.name),
    };
    Some(Item::Text(text))
}

/// All that could not be measured, with the reasons.
pub fn missing(run: &Run, tables: &Tables) -> Vec<(String, String)> {
    let mut all = Vec::new();
    for part in &run.parts {
        if let Some(Item::Text(text)) = shortfall(run, &part.name) {
            all.push((part.name.clone(), text));
        }
        let rows = tables.get(&part.name).into_iter().flat_map(|table| &table.rows);
        for row in rows {
            if let Some(why) = &row.missing {
                let name = format!("{}: {}, {}", part.name, row.section, row.system);
                let note = (name, why.clone());
                if !all.contains(&note) {
                    all.push(note);
                }
            }
        }
    }
    all
}

/// Every row and ratio of a table for the CSV.
pub fn listed(part: &str, table: &Table) -> Vec<Figure> {
    let row = |row: &Row| Figure {
        origin: "here",
        part: part.to_owned(),
        section: row.section.clone(),
        system: row.system.clone(),
        case: row.case.clone(),
        value: row.value,
        unit: row.unit.clone(),
        cpu_own_percent: row.cpu_own_percent,
        cpu_machine_percent: row.cpu_machine_percent,
        runs: row.runs.clone(),
        missing: row.missing.clone().unwrap_or_default(),
        ..Figure::default()
    };
    let ratio = |(name, &value): (&String, &f64)| {
        let target = table.goal(name);
        Figure {
            origin: "here",
            part: part.to_owned(),
            section: "ratios".into(),
            case: name.clone(),
            value: Some(value),
            target: target.short(),
            verdict: match verdict(Some(value), target) {
                Cell::Verdict(met) => Cell::Verdict(met).shown(),
                _ => String::new(),
            },
            ..Figure::default()
        }
    };
    table.rows.iter().map(row).chain(table.ratios.iter().map(ratio)).collect()
}

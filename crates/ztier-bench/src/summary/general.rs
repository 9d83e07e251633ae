//! Parts common to all tables: ratios beside targets, figures by case, conditions, missing figures.

use super::found::{Row, Table, Tables};
use super::model::{Bar, Bars, Cell, Chart, Charts, Figure, Grid, Item};
use crate::report::{Line, Lines, Target};
use crate::suite::plan::NAMES;
use crate::suite::{Run, State};

/// Number of runs from which on they count as a course in time.
const IN_TIME: usize = 12;

/// A ratio that the report mentions even if it was not measured.
#[derive(Clone, Copy, Debug)]
pub struct Wanted {
    /// Its name in tables.
    pub name: &'static str,
    /// Numerator and denominator.
    pub what: &'static str,
    /// Its target, unless the table that measured it has another.
    pub target: Target,
    /// The source's value.
    pub source: Option<f64>,
}

/// A ratio that the report mentions.
pub const fn wanted(
    name: &'static str,
    what: &'static str,
    target: Target,
    source: Option<f64>,
) -> Wanted {
    Wanted { name, what, target, source }
}

/// The result of comparing a ratio with its target.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// The target is met.
    Met,
    /// The target is missed.
    Short,
    /// Has a target, and was not measured.
    Absent,
    /// Measured under conditions for which its target is not meant.
    Elsewhere,
    /// Never has a target.
    Free,
}

/// A ratio of a run.
#[derive(Clone, Copy, Debug)]
pub struct Judged {
    /// The measured value.
    pub found: Option<f64>,
    /// The target in this run.
    pub target: Target,
    /// The verdict.
    pub standing: Standing,
}

impl Judged {
    /// The cells for value, target and verdict.
    pub fn cells(&self) -> [Cell; 3] {
        let verdict = match self.standing {
            Standing::Met => Cell::Verdict(true),
            Standing::Short => Cell::Verdict(false),
            Standing::Absent => Cell::text("not measured"),
            Standing::Elsewhere => Cell::text("no target here"),
            Standing::Free => Cell::None,
        };
        [Cell::maybe(self.found), target_cell(self.target), verdict]
    }
}

impl Wanted {
    /// The verdict in a run. The target of the table that measured it has precedence.
    pub fn judged(&self, table: Option<&Table>) -> Judged {
        let found = table.and_then(|table| table.ratios.get(self.name).copied());
        let target = match (found, table) {
            (Some(_), Some(table)) => table.goal(self.name),
            _ => self.target,
        };
        let standing = match (found, target) {
            (_, Target::None) if self.target == Target::None => Standing::Free,
            (_, Target::None) => Standing::Elsewhere,
            (None, _) => Standing::Absent,
            (Some(value), _) if target.met(value) => Standing::Met,
            _ => Standing::Short,
        };
        Judged { found, target, standing }
    }
}

fn target_cell(target: Target) -> Cell {
    if target == Target::None { Cell::None } else { Cell::text(target.short()) }
}

/// Ratios beside the source's values and their targets.
pub fn ratios(caption: &str, table: Option<&Table>, all: &[Wanted]) -> Grid {
    let mut grid = Grid::new(caption, &["ratio", "", "source", "here", "target", "verdict"]);
    for one in all {
        let first = [Cell::text(one.name), Cell::text(one.what), Cell::maybe(one.source)];
        grid.rows.push(first.into_iter().chain(one.judged(table).cells()).collect());
    }
    grid
}

/// Whether a target was met; empty without a target.
fn verdict(value: f64, target: Target) -> Cell {
    if target == Target::None { Cell::None } else { Cell::Verdict(target.met(value)) }
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
            target_cell(target),
            verdict(value, target),
        ]);
    }
    let item = || Item::More("All other ratios".into(), vec![Item::Grid(grid.clone())]);
    (!grid.rows.is_empty()).then(item)
}

/// The figures of a section: a table, a chart a case, and lines for courses in time.
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
        // The heading describes them.
        let caption = String::new();
        items.push(Item::Charts(Charts { caption, legend: Vec::new(), charts }));
    }
    items.extend(courses(&rows).into_iter().map(Item::Charts));
    items.push(Item::More(format!("{title}: all figures"), vec![Item::Grid(grid)]));
    items
}

/// Courses in time, one chart a case, with all systems in it.
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
        let unit = of.first().map_or("", |row| &row.unit[..]);
        let lines = Lines {
            title: case.to_owned(),
            unit: unit.to_owned(),
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

/// The notes of a table on its measurement.
pub fn conditions(table: &Table) -> Option<Item> {
    let mut notes: Vec<(String, String)> = Vec::new();
    for row in table.rows.iter().filter(|row| row.is_note()) {
        let note = (format!("{}: {}", row.section, row.system), row.case.clone());
        if !notes.contains(&note) {
            notes.push(note);
        }
    }
    (!notes.is_empty()).then(|| Item::More("How it was measured".into(), vec![Item::Notes(notes)]))
}

/// Reason why a part of the run has no figures, or not all.
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

/// All figures that could not be measured, with the reasons.
pub fn missing(run: &Run, tables: &Tables) -> Vec<(String, String)> {
    let mut all = Vec::new();
    // Including parts that were not chosen: nothing else mentions their absence.
    for part in NAMES {
        if let Some(Item::Text(text)) = shortfall(run, part) {
            all.push((part.to_owned(), text));
        }
        let rows = tables.get(part).into_iter().flat_map(|table| &table.rows);
        for row in rows {
            if let Some(why) = &row.missing {
                let name = format!("{part}: {}, {}", row.section, row.system);
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
        cpu_kernel_percent: row.cpu_kernel_percent,
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
            verdict: match verdict(value, target) {
                Cell::None => String::new(),
                verdict => verdict.shown(),
            },
            ..Figure::default()
        }
    };
    let rows = table.rows.iter().filter(|row| !row.is_empty());
    rows.map(row).chain(table.ratios.iter().map(ratio)).collect()
}

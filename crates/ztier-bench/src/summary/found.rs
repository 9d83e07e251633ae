//! The figures that tables have left in a run's directory.
//!
//! Invariant: a missing or incomplete file counts as no figures, and never as an error: a report
//! shows what exists.

use crate::report::{Target, median};
use crate::suite::{Folder, Part, Run, State};
use serde::Deserialize;
use serde_json::Value;
use std::collections::BTreeMap;

/// One figure of one system, the reason for its absence, or a note.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Row {
    /// Section of the table.
    pub section: String,
    /// The measured system.
    pub system: String,
    /// The test; of a note, its text.
    #[serde(default)]
    pub case: String,
    /// The median of `runs`.
    #[serde(default)]
    pub value: Option<f64>,
    /// Unit of `value` and `runs`.
    #[serde(default)]
    pub unit: String,
    /// Each run.
    #[serde(default)]
    pub runs: Vec<f64>,
    /// User and system time of the measuring threads, in percent of one CPU.
    #[serde(default)]
    pub cpu_own_percent: Option<f64>,
    /// Busy time of the machine, percent of one CPU.
    #[serde(default)]
    pub cpu_machine_percent: Option<f64>,
    /// The part of that in the kernel.
    #[serde(default)]
    pub cpu_kernel_percent: Option<f64>,
    /// Reason for the absence of a figure.
    #[serde(default)]
    pub missing: Option<String>,
}

impl Row {
    /// Whether the row is a note on the measurement: without value, reason and unit.
    pub fn is_note(&self) -> bool {
        self.value.is_none() && self.missing.is_none() && self.unit.is_empty()
    }

    /// Whether the row is a figure without runs: a unit, but neither value nor reason.
    pub fn is_empty(&self) -> bool {
        self.value.is_none() && self.missing.is_none() && !self.unit.is_empty()
    }

    /// Half of the range of the runs in percent of its middle, and CPU use, as far as they are
    /// known.
    pub fn note(&self) -> String {
        let mut all = Vec::new();
        let low = self.runs.iter().copied().fold(f64::INFINITY, f64::min);
        let high = self.runs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if self.runs.len() > 1 && high + low > 0.0 {
            let spread = 100.0 * (high - low) / (high + low);
            all.push(format!("±{spread:.0} % of {} runs", self.runs.len()));
        }
        if let Some(own) = self.cpu_own_percent {
            all.push(format!("CPU {own:.0} %"));
        }
        if let Some(machine) = self.cpu_machine_percent {
            all.push(format!("machine {machine:.0} %"));
        }
        all.join(", ")
    }
}

/// The results of a table.
#[derive(Clone, Debug, Default, Deserialize)]
pub struct Table {
    /// The machine that it ran on.
    #[serde(default)]
    pub machine: Value,
    /// Its figures, in order.
    #[serde(default)]
    pub rows: Vec<Row>,
    /// Its ratios.
    #[serde(default)]
    pub ratios: BTreeMap<String, f64>,
    /// Targets of the ratios.
    #[serde(default)]
    pub goals: BTreeMap<String, Target>,
}

impl Table {
    /// Names of the sections, in order.
    pub fn sections(&self) -> Vec<&str> {
        let mut all: Vec<&str> = Vec::new();
        for row in &self.rows {
            if !all.contains(&row.section.as_str()) {
                all.push(&row.section);
            }
        }
        all
    }

    /// Systems with figures in a section, in order.
    pub fn systems<'a>(&'a self, section: &'a str) -> Vec<&'a str> {
        let mut all: Vec<&str> = Vec::new();
        for row in self.figures(section) {
            if !all.contains(&row.system.as_str()) {
                all.push(&row.system);
            }
        }
        all
    }

    /// Figures of a section.
    pub fn figures<'a>(&'a self, section: &'a str) -> impl Iterator<Item = &'a Row> {
        self.rows.iter().filter(move |row| row.section == section && row.value.is_some())
    }

    /// A figure of a section; the median of several.
    pub fn value(&self, section: &str, system: &str, case: &str) -> Option<f64> {
        let fits = |row: &&Row| row.system == system && row.case == case;
        let values: Vec<f64> =
            self.figures(section).filter(fits).filter_map(|row| row.value).collect();
        (!values.is_empty()).then(|| median(&values))
    }

    /// The target of a ratio.
    pub fn goal(&self, name: &str) -> Target {
        self.goals.get(name).copied().unwrap_or(Target::None)
    }
}

/// The tables of a run, by the names of its parts.
#[derive(Clone, Debug, Default)]
pub struct Tables(BTreeMap<String, Table>);

impl Tables {
    /// The tables that have left figures in this run. The file of a part that waits, or that can't
    /// run here any more, comes from an earlier build or other arguments.
    pub fn load(folder: &Folder, run: &Run) -> Self {
        let table = |name: &String| {
            let text = std::fs::read_to_string(folder.file(name, "json")).ok()?;
            Some((name.clone(), serde_json::from_str(&text).ok()?))
        };
        let ran = |part: &&Part| matches!(part.state, State::Running | State::Done | State::Failed);
        Self(run.parts.iter().filter(ran).filter_map(|part| table(&part.name)).collect())
    }

    /// A part's figures.
    pub fn get(&self, part: &str) -> Option<&Table> {
        self.0.get(part)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_a_table_writes_is_read_back() {
        use crate::report::{Report, Row as Written};
        let mut report = Report::new("zram");
        for run in [3.0, 5.0] {
            report.silent_row(Written {
                section: "engine".into(),
                system: "ztier".into(),
                case: "random read".into(),
                unit: "IOPS",
                runs: vec![run],
                cpu_own_percent: Some(99.6),
                ..Written::default()
            });
        }
        report.missing("engine", "kernel zram", "no root");
        report.ratio("a", 1.5, Target::AtLeast(2.0));
        report.ratio("b", 1.5, Target::None);
        let table: Table = serde_json::from_str(&report.json().unwrap()).unwrap();
        assert_eq!(table.sections(), ["engine"]);
        assert_eq!(table.value("engine", "ztier", "random read"), Some(4.0));
        assert_eq!(table.value("engine", "ztier", "else"), None);
        assert_eq!((table.goal("a"), table.goal("b")), (Target::AtLeast(2.0), Target::None));
        assert_eq!(table.rows[0].note(), "CPU 100 %");
        assert_eq!(table.rows[2].missing.as_deref(), Some("no root"));
    }

    #[test]
    fn a_figure_without_runs_is_no_note() {
        use crate::report::{Report, Row as Written};
        let mut report = Report::new("log");
        report.silent_row(Written { case: "cut at".into(), unit: "%", ..Written::default() });
        report.quiet_note("recovery", "drives", "a model");
        report.missing("recovery", "64 GiB", "no room");
        let table: Table = serde_json::from_str(&report.json().unwrap()).unwrap();
        let kinds: Vec<_> = table.rows.iter().map(|row| (row.is_note(), row.is_empty())).collect();
        assert_eq!(kinds, [(false, true), (true, false), (false, false)]);
    }

    #[test]
    fn figures_of_an_earlier_try_are_not_those_of_a_part_that_waits() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::of(dir.path().into());
        let entries: Vec<_> = crate::suite::plan::entries(true).iter().take(1).collect();
        let mut run = Run::new(String::new(), true, String::new(), &entries);
        let name = run.parts[0].name.clone();
        std::fs::write(folder.file(&name, "json"), r#"{"ratios": {"a": 1.0}}"#).unwrap();
        for (state, counts) in [
            (State::Waiting, false),
            (State::Running, true),
            (State::Done, true),
            (State::Failed, true),
            (State::Absent, false),
        ] {
            run.parts[0].state = state;
            assert_eq!(Tables::load(&folder, &run).get(&name).is_some(), counts, "{state:?}");
        }
    }
}

//! Results of a run: rows as they come, ratios beside their targets, JSON and CSV.
//!
//! Invariant: a figure is the median of its runs, and a ratio is made of medians of the same run. A
//! figure that could not be measured is named, with the reason; it never turns into a number.

mod layout;
pub mod lines;
mod machine;
pub mod picture;
mod stats;
mod table;

pub use layout::{Column, IozoneTable, csv_field};
pub use lines::{Line, Lines};
pub use machine::{available_bytes, describe as machine};
pub use picture::Picture;
pub use stats::{geomean, median, slope};
pub use table::{Table, bars};

use clap::Args;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};
use ztier::error::{Context, Result};

/// Prints a line of progress to standard error.
pub fn say(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "# {text}");
}

/// Prints a warning to standard error.
pub fn warn(text: &str) {
    let _ = writeln!(std::io::stderr().lock(), "warning: {text}");
}

/// Prints a part of the report to standard output.
pub fn print(text: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{}", text.trim_end_matches('\n'));
}

/// One figure of one system, or the reason for its absence, or a note (no `value`, no `missing`).
#[derive(Clone, Debug, Default, Serialize)]
pub struct Row {
    /// Section of the table.
    pub section: String,
    /// The measured system: `ztier`, `kernel zram lz4`, …
    pub system: String,
    /// The test: `random read, 2 threads`.
    pub case: String,
    /// The median of `runs`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<f64>,
    /// Unit of `value` and `runs`.
    #[serde(skip_serializing_if = "str::is_empty")]
    pub unit: &'static str,
    /// Each run, in order.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub runs: Vec<f64>,
    /// User and system time of the measuring threads, percent of one CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_own_percent: Option<f64>,
    /// Busy time of the whole machine, percent of one CPU.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_machine_percent: Option<f64>,
    /// The part of that in the kernel.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_kernel_percent: Option<f64>,
    /// Reason for the absence of a figure.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub missing: Option<String>,
}

/// Where the figures of a table go, besides standard output.
#[derive(Clone, Debug, Default, Args)]
pub struct Output {
    /// Write all figures as JSON.
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Write all figures as CSV.
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,
}

/// A comparison of a ratio with its target; in JSON `{"at_least": 2.0}`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Target {
    /// At least this.
    AtLeast(f64),
    /// At most this.
    AtMost(f64),
    /// No further from 1 than this.
    Within(f64),
    /// No target.
    None,
}

impl Target {
    fn number(self) -> Option<f64> {
        match self {
            Self::AtLeast(t) | Self::AtMost(t) => Some(t),
            Self::Within(_) => Some(1.0),
            Self::None => None,
        }
    }

    /// Whether a ratio meets its target; always true without a target.
    pub fn met(self, value: f64) -> bool {
        match self {
            Self::AtLeast(t) => value >= t,
            Self::AtMost(t) => value <= t,
            Self::Within(t) => (value - 1.0).abs() <= t,
            Self::None => true,
        }
    }

    /// The text of a cell; empty without a target.
    pub fn short(self) -> String {
        match self {
            Self::AtLeast(t) => format!("≥ {t}"),
            Self::AtMost(t) => format!("≤ {t}"),
            Self::Within(t) => format!("1 ± {t}"),
            Self::None => String::new(),
        }
    }

    fn verdict(self, value: f64) -> String {
        let (sign, target) = match self {
            Self::AtLeast(t) => ("≥", t),
            Self::AtMost(t) => ("≤", t),
            Self::Within(t) => ("1 ±", t),
            Self::None => return "no target".into(),
        };
        let verdict = if self.met(value) { "pass" } else { "short" };
        format!("{sign} {target:<6} {verdict}")
    }
}

/// All results of a run of one table.
#[derive(Debug)]
pub struct Report {
    table: &'static str,
    rows: Vec<Row>,
    ratios: BTreeMap<String, (f64, Target)>,
}

/// The file format: `{"table", "machine", "rows", "ratios", "targets", "goals"}`. `goals` has for
/// each target the required side.
#[derive(Serialize)]
struct Json<'a> {
    table: &'a str,
    machine: serde_json::Value,
    rows: &'a [Row],
    ratios: BTreeMap<&'a str, f64>,
    targets: BTreeMap<&'a str, f64>,
    goals: BTreeMap<&'a str, Target>,
}

impl Report {
    /// An empty report.
    pub fn new(table: &'static str) -> Self {
        Self { table, rows: Vec::new(), ratios: BTreeMap::new() }
    }

    /// Adds a figure and prints it; returns the median.
    pub fn row(&mut self, mut row: Row) -> f64 {
        let value = median(&row.runs);
        row.value = Some(value);
        print(&layout::row_line(&row));
        self.rows.push(row);
        value
    }

    /// Adds a figure that is printed elsewhere (the IOzone tables).
    pub fn silent_row(&mut self, mut row: Row) {
        row.value = Some(median(&row.runs));
        self.rows.push(row);
    }

    /// Adds and prints a note beside the figures: the data used, how a device was made.
    pub fn note(&mut self, section: &str, about: &str, text: impl std::fmt::Display) {
        print(&format!("{about}: {text}"));
        self.quiet_note(section, about, text);
    }

    /// Adds a note without printing it.
    pub fn quiet_note(&mut self, section: &str, about: &str, text: impl std::fmt::Display) {
        self.rows.push(Row {
            section: section.into(),
            system: about.into(),
            case: text.to_string(),
            ..Row::default()
        });
    }

    /// Adds and prints the reason why a figure could not be measured.
    pub fn missing(&mut self, section: &str, system: &str, reason: impl std::fmt::Display) {
        self.quiet_missing(section, system, reason);
        self.rows.last().into_iter().for_each(|row| print(&layout::row_line(row)));
    }

    /// Adds the reason why a figure could not be measured, without printing it.
    pub fn quiet_missing(&mut self, section: &str, system: &str, reason: impl std::fmt::Display) {
        self.rows.push(Row {
            section: section.into(),
            system: system.into(),
            missing: Some(reason.to_string()),
            ..Row::default()
        });
    }

    /// Adds a ratio; one that is not a number (a division by nothing measured) is left out.
    pub fn ratio(&mut self, name: &str, value: f64, target: Target) {
        if value.is_finite() {
            self.ratios.insert(name.into(), (value, target));
        } else {
            self.missing("ratios", name, "nothing to divide by");
        }
    }

    /// The ratios beside their targets.
    pub fn ratio_table(&self) -> String {
        let width = self.ratios.keys().map(String::len).max().unwrap_or(0);
        let mut text = String::new();
        for (name, (value, target)) in &self.ratios {
            text += &format!("{name:width$}  {value:9.3}  {}\n", target.verdict(*value));
        }
        text
    }

    /// The JSON text.
    pub fn json(&self) -> Result<String> {
        let goals = self.ratios.iter().filter(|(_, (_, target))| *target != Target::None);
        let goals: BTreeMap<&str, Target> =
            goals.map(|(name, (_, target))| (name.as_str(), *target)).collect();
        let json = Json {
            table: self.table,
            machine: machine(),
            rows: &self.rows,
            ratios: self.ratios.iter().map(|(name, (value, _))| (name.as_str(), *value)).collect(),
            targets: goals
                .iter()
                .filter_map(|(name, goal)| Some((*name, goal.number()?)))
                .collect(),
            goals,
        };
        serde_json::to_string_pretty(&json).context("cannot make JSON")
    }

    /// The rows as CSV, one a line.
    pub fn csv(&self) -> String {
        let mut text = String::from(
            "table,section,system,case,value,unit,cpu_own_percent,cpu_machine_percent,\
             cpu_kernel_percent,runs,missing\n",
        );
        let number = |n: Option<f64>| n.map_or(String::new(), |n| format!("{n:.3}"));
        for row in &self.rows {
            let runs: Vec<String> = row.runs.iter().map(|r| format!("{r:.3}")).collect();
            let fields = [
                self.table.into(),
                row.section.clone(),
                row.system.clone(),
                row.case.clone(),
                number(row.value),
                row.unit.into(),
                number(row.cpu_own_percent),
                number(row.cpu_machine_percent),
                number(row.cpu_kernel_percent),
                runs.join(" "),
                row.missing.clone().unwrap_or_default(),
            ];
            text += &fields.map(|f| layout::csv_field(&f)).join(",");
            text.push('\n');
        }
        text
    }

    /// Writes the requested files.
    ///
    /// # Errors
    /// A file can't be written.
    pub fn save(&self, output: &Output) -> Result<()> {
        let write = |path: &Path, text: String| {
            std::fs::write(path, text).context(format!("cannot write {}", path.display()))
        };
        if let Some(path) = &output.json {
            write(path, self.json()? + "\n")?;
        }
        if let Some(path) = &output.csv {
            write(path, self.csv())?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn sample() -> Report {
        let mut report = Report::new("zram");
        report.row(Row {
            section: "engine".into(),
            system: "ztier".into(),
            case: "random read, 2 threads".into(),
            unit: "IOPS",
            runs: vec![3.0, 1.0, 2.0],
            ..Row::default()
        });
        report.missing("sequential", "nbdkit memory", "nbdkit is not installed");
        report.ratio("a", 1.5, Target::AtLeast(2.0));
        report.ratio("b", 1.05, Target::AtMost(1.1));
        report.ratio("c", 0.5, Target::None);
        report.ratio("d", f64::NAN, Target::AtLeast(1.0));
        report
    }

    #[test]
    fn json_has_the_six_keys_and_no_invented_numbers() {
        let json: serde_json::Value = serde_json::from_str(&sample().json().unwrap()).unwrap();
        let keys: Vec<_> = json.as_object().unwrap().keys().cloned().collect();
        assert_eq!(keys, ["goals", "machine", "ratios", "rows", "table", "targets"]);
        assert_eq!(json["rows"][0]["value"], 2.0);
        assert_eq!(json["rows"][1]["missing"], "nbdkit is not installed");
        assert!(json["rows"][1].get("value").is_none());
        assert_eq!(json["ratios"], serde_json::json!({"a": 1.5, "b": 1.05, "c": 0.5}));
        assert_eq!(json["targets"], serde_json::json!({"a": 2.0, "b": 1.1}));
        let goals = serde_json::json!({"a": {"at_least": 2.0}, "b": {"at_most": 1.1}});
        assert_eq!(json["goals"], goals);
    }

    #[test]
    fn ratios_stand_beside_their_targets() {
        let table = sample().ratio_table();
        let lines: Vec<&str> = table.lines().collect();
        assert!(lines[0].ends_with("≥ 2      short"), "{table}");
        assert!(lines[1].ends_with("≤ 1.1    pass"), "{table}");
        assert!(lines[2].ends_with("no target"), "{table}");
        assert_eq!(lines.len(), 3);
        for (value, verdict) in [(0.89, "short"), (0.91, "pass"), (1.09, "pass"), (1.11, "short")] {
            assert_eq!(Target::Within(0.1).verdict(value), format!("1 ± 0.1    {verdict}"));
        }
    }

    #[test]
    fn csv_quotes_what_holds_commas() {
        let csv = sample().csv();
        let line = csv.lines().nth(1).unwrap();
        let runs = "3.000 1.000 2.000";
        assert_eq!(
            line,
            format!("zram,engine,ztier,\"random read, 2 threads\",2.000,IOPS,,,,{runs},")
        );
    }
}

//! `ztier list`: every volume of this user, also those whose daemon died.
//!
//! Invariant: the survey asks each daemon once, all at the same time, and only for what the daemon
//! knows without looking at other processes: the time for one does not grow with the number of
//! volumes.

use super::{PATIENCE, ill, output, told};
use crate::config::Paths;
use crate::config::size::human;
use crate::control::{Homes, Role};
use crate::daemon::survey::{Seen, Survey};
use crate::daemon::{self, Found};
use crate::error::{Error, Result};
use crate::remedy;
use crate::stats::Health;
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::cmp::Ordering;

/// List volumes, including those whose daemon died
#[derive(Args)]
pub struct List {
    /// Columns to print, with commas between
    #[arg(long, short, value_name = "COLUMNS", value_enum, value_delimiter = ',',
        default_values_t = Column::value_variants().to_vec(), hide_default_value = true,
        conflicts_with = "json")]
    output: Vec<Column>,
    /// Print no headings
    #[arg(long, alias = "noheadings", conflicts_with = "json")]
    no_headings: bool,
    /// Print sizes in bytes
    #[arg(long, short, conflicts_with = "json")]
    bytes: bool,
    /// Order by this column: sizes from the largest, the others by alphabet
    #[arg(
        long,
        value_name = "COLUMN",
        value_enum,
        default_value = "name",
        hide_default_value = true
    )]
    sort: Column,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// What is printed of a volume.
#[derive(Clone, Copy, Debug, PartialEq, ValueEnum)]
enum Column {
    Name,
    State,
    Export,
    Size,
    Data,
    Memory,
    Open,
}

#[derive(Default, Serialize)]
struct Row {
    name: String,
    state: &'static str,
    /// Health of a volume that is up.
    health: Option<Health>,
    export: Option<&'static str>,
    size_bytes: Option<u64>,
    data_bytes: Option<u64>,
    mem_used_bytes: Option<u64>,
    endpoints: Vec<String>,
    /// What a dead daemon left behind.
    left: Vec<String>,
    /// Whether what a dead daemon had in memory is kept.
    kept: bool,
    error: Option<String>,
    /// What is wrong with the volume.
    #[serde(skip)]
    wrong: Option<Error>,
}

impl List {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let paths = Paths::of_this_user()?;
        let mut survey = Survey::new(paths.clone());
        survey.look_around(PATIENCE)?;
        let mut rows: Vec<Row> =
            survey.known().iter().map(|(name, seen)| row(&paths, name, seen)).collect();
        rows.sort_by(|a, b| self.sort.compare(a, b));
        if self.json {
            output::json(&rows)?;
        } else {
            output::print(&self.table(&rows))?;
        }
        for (row, error) in rows.iter().filter_map(|row| Some((row, row.error.as_ref()?))) {
            if row.wrong.is_none() {
                output::remark(&format!("{}: {error}", row.name));
            }
        }
        told(rows.into_iter().filter_map(|row| row.wrong).collect())
    }

    fn table(&self, rows: &[Row]) -> String {
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| self.output.iter().map(|column| column.cell(row, self.bytes)).collect())
            .collect();
        let headings: Vec<&str> = self.output.iter().map(|column| column.heading()).collect();
        if !self.no_headings {
            return output::table(&headings, &cells);
        }
        // Headings must not widen a column either.
        let none: Vec<&str> =
            headings.iter().map(|h| if h.ends_with('>') { ">" } else { "" }).collect();
        let text = output::table(&none, &cells);
        text.split_once('\n').map_or(String::new(), |(_, rows)| rows.to_owned())
    }
}

impl Column {
    /// As in [`output::table`].
    fn heading(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::State => "STATE",
            Self::Export => "EXPORT",
            Self::Size => "SIZE>",
            Self::Data => "DATA>",
            Self::Memory => "MEMORY>",
            Self::Open => "OPEN",
        }
    }

    /// The number of bytes in it, if it is a size.
    fn bytes(self, row: &Row) -> Option<u64> {
        match self {
            Self::Size => row.size_bytes,
            Self::Data => row.data_bytes,
            Self::Memory => row.mem_used_bytes,
            _ => None,
        }
    }

    fn cell(self, row: &Row, in_bytes: bool) -> String {
        let size = |bytes: u64| if in_bytes { bytes.to_string() } else { human(bytes) };
        match self {
            Self::Name => row.name.clone(),
            Self::State => row.health.map_or(row.state, Health::name).into(),
            Self::Export => row.export.unwrap_or("-").into(),
            Self::Size | Self::Data | Self::Memory => self.bytes(row).map_or("-".into(), size),
            Self::Open if row.endpoints.is_empty() => "-".into(),
            Self::Open => row.endpoints.join(" "),
        }
    }

    /// Volumes that are alike stay ordered by name.
    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let sizes = self.bytes(b).cmp(&self.bytes(a));
        sizes.then_with(|| match self {
            Self::Size | Self::Data | Self::Memory => Ordering::Equal,
            _ => self.cell(a, false).cmp(&self.cell(b, false)),
        })
    }
}

/// The error for a volume whose daemon died.
fn dead(name: &str, left: &[String], kept: bool) -> Error {
    let left = if left.is_empty() { "its state file".into() } else { left.join(", ") };
    let remedy = if kept { remedy::DEAD_WITH_DATA } else { remedy::DEAD_WITHOUT };
    Error::degraded(format!("volume `{name}`: its daemon is gone and left {left}"))
        .hint(remedy.of(name))
}

/// The error for a volume whose daemon is alive and does not answer.
fn silent(paths: &Paths, name: &str, why: &str) -> Option<Error> {
    // Without a socket the daemon is ending.
    let is_there = paths.volume(name).control.exists();
    is_there.then(|| Error::degraded(format!("volume `{name}`: {why}")))
}

fn row(paths: &Paths, name: &str, seen: &Seen) -> Row {
    let plan = seen.plan();
    let row = Row {
        name: name.to_owned(),
        state: seen.state(),
        export: plan.map(|plan| plan.export.kind()),
        size_bytes: plan.map(|plan| plan.size_bytes),
        ..Row::default()
    };
    match seen {
        Seen::Up { sample, .. } => {
            let homes = Homes::of(&sample.plan, &sample.stats);
            Row {
                health: Some(sample.stats.health),
                wrong: ill(name, &sample.stats),
                data_bytes: Some(match &sample.stats.object {
                    Some(_) => homes.backing,
                    None => homes.held(Role::of(&sample.plan)),
                }),
                mem_used_bytes: Some(sample.stats.mem_used_bytes),
                endpoints: sample.endpoints.clone(),
                ..row
            }
        }
        Seen::Starting { step } => Row { error: step.clone(), ..row },
        Seen::Silent { why, .. } => {
            let why = why.clone().unwrap_or_else(|| "its daemon does not answer".to_owned());
            Row { wrong: silent(paths, name, &why), error: Some(why), ..row }
        }
        Seen::Dead { kept, .. } => {
            let left = left(paths, name);
            Row { wrong: Some(dead(name, &left, *kept)), kept: *kept, left, ..row }
        }
        Seen::Broken { why } => Row {
            wrong: Some(Error::degraded(format!("volume `{name}`: {why}"))),
            error: Some(why.clone()),
            ..row
        },
    }
}

/// What the dead daemon of a volume left.
fn left(paths: &Paths, name: &str) -> Vec<String> {
    let Found::Dead(state) = daemon::find(paths, name) else { return Vec::new() };
    state.leftovers.iter().filter(|l| l.exists()).map(|l| l.describe()).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::cli::Cli;
    use clap::Parser;

    fn shown(args: &str, rows: &mut [Row]) -> String {
        let args = ["ztier", "list"].into_iter().chain(args.split_whitespace());
        let super::super::Command::List(list) = Cli::try_parse_from(args).unwrap().command else {
            unreachable!()
        };
        rows.sort_by(|a, b| list.sort.compare(a, b));
        list.table(rows)
    }

    #[test]
    fn columns_order_and_sizes() {
        let row = |name: &str, size: Option<u64>| Row {
            name: name.into(),
            state: "up",
            size_bytes: size,
            ..Row::default()
        };
        let mut rows = [row("a", None), row("b", Some(4096)), row("c", Some(1 << 30))];
        let all = shown("", &mut rows);
        assert!(all.starts_with("NAME  STATE  EXPORT   SIZE  DATA  MEMORY  OPEN\na "), "{all}");
        let some = shown("-o size,name --sort size", &mut rows);
        assert_eq!(some, " SIZE  NAME\n1 GiB  c\n4 KiB  b\n    -  a\n");
        let bytes = shown("--no-headings --bytes -o name,size", &mut rows);
        assert_eq!(bytes, "a           -\nb        4096\nc  1073741824\n");
        assert_eq!(shown("--noheadings -o name", &mut []), "");
    }

    #[test]
    fn unknown_columns_are_refused_with_the_known_ones() {
        let error = Cli::try_parse_from(["ztier", "list", "-o", "nam"]).err().unwrap().to_string();
        assert!(error.contains("name, state, export, size, data, memory, open"), "{error}");
        assert!(Cli::try_parse_from(["ztier", "list", "--json", "--bytes"]).is_err());
    }
}

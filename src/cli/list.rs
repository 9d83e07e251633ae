//! `ztier list`: every volume of this user, also those whose daemon died.
//!
//! Invariant: the survey asks each daemon once, all at the same time, and only for what the daemon
//! knows without looking at other processes: the time for one does not grow with the number of
//! volumes.

use super::{PATIENCE, ill, output, print_all_but_last};
use crate::config::Paths;
use crate::config::size::{human, ratio};
use crate::control::{Homes, Role};
use crate::daemon::survey::{Seen, Survey};
use crate::daemon::{self, Found};
use crate::error::{Error, Result};
use crate::remedy;
use crate::stats::Health;
use crate::system::mounts::{MountEntry, mounts, number_of};
use crate::system::usage;
use anstyle::{AnsiColor, Style};
use clap::{Args, ValueEnum};
use serde::Serialize;
use std::cmp::Ordering;
use std::fs;
use std::path::{Path, PathBuf};

/// The columns that are printed if none are asked for, and those that give way to a terminal that
/// is too narrow for them, the first of them first.
const USUAL: [Column; 11] = [
    Column::Name,
    Column::State,
    Column::Role,
    Column::Size,
    Column::Limit,
    Column::Data,
    Column::Memory,
    Column::Ratio,
    Column::Mount,
    Column::Device,
    Column::Open,
];
const SPARE: [Column; 7] = [
    Column::Limit,
    Column::Device,
    Column::Role,
    Column::Ratio,
    Column::Data,
    Column::Mount,
    Column::Memory,
];

/// List volumes, including those whose daemon died
#[derive(Args)]
pub struct List {
    /// Columns to print, with commas between [default: as many of them as fit the terminal]
    #[arg(
        long,
        short,
        value_name = "COLUMNS",
        value_enum,
        value_delimiter = ',',
        conflicts_with = "json"
    )]
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
    /// ram, spill, cache or log
    Role,
    Export,
    Size,
    /// Limit on memory
    Limit,
    /// Data stored, before compression
    Data,
    /// Memory used
    Memory,
    /// Data in memory for its memory
    Ratio,
    /// Where its device is mounted, or [SWAP]
    Mount,
    /// The kernel's device, like /dev/loop0 or /dev/ublkb0
    Device,
    /// What programs open
    Open,
}

#[derive(Default, Serialize)]
struct Row {
    name: String,
    state: &'static str,
    /// Health of a volume that is up.
    health: Option<Health>,
    role: Option<&'static str>,
    export: Option<&'static str>,
    size_bytes: Option<u64>,
    ram_limit_bytes: Option<u64>,
    data_bytes: Option<u64>,
    mem_used_bytes: Option<u64>,
    /// Data in memory, before compression, for a byte of memory used.
    stored_ratio: Option<f64>,
    /// The kernel's device.
    device: Option<PathBuf>,
    /// Where it is mounted.
    mounts: Vec<PathBuf>,
    /// Whether it is swap.
    swap: bool,
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
        let table = mounts();
        let row = |(name, seen): (&String, &Seen)| row(&paths, name, seen).used(&table);
        let mut rows: Vec<Row> = survey.known().iter().map(row).collect();
        rows.sort_by(|a, b| self.sort.compare(a, b));
        if self.json {
            output::json(&rows)?;
        } else {
            let columns = self.columns(&rows, output::columns());
            output::print_styled(&self.table(&rows, &columns, output::has_colours()))?;
        }
        for (row, error) in rows.iter().filter_map(|row| Some((row, row.error.as_ref()?))) {
            if row.wrong.is_none() {
                output::remark(&format!("{}: {error}", row.name));
            }
        }
        print_all_but_last(rows.into_iter().filter_map(|row| row.wrong).collect())
    }

    /// The columns to print on a terminal of `width` columns, or elsewhere.
    fn columns(&self, rows: &[Row], width: Option<usize>) -> Vec<Column> {
        if !self.output.is_empty() {
            return self.output.clone();
        }
        let mut columns = USUAL.to_vec();
        let Some(width) = width else { return columns };
        for spare in SPARE {
            let text = self.table(rows, &columns, false);
            if text.lines().all(|line| line.chars().count() <= width) {
                break;
            }
            columns.retain(|column| *column != spare);
        }
        columns
    }

    fn table(&self, rows: &[Row], columns: &[Column], colours: bool) -> String {
        let cells: Vec<Vec<String>> = rows
            .iter()
            .map(|row| columns.iter().map(|column| column.cell(row, self.bytes)).collect())
            .collect();
        let headings: Vec<&str> = columns.iter().map(|column| column.heading()).collect();
        let style = |row: usize, column: usize| match columns[column] {
            Column::State if colours => rows[row].style(),
            _ => Style::new(),
        };
        if !self.no_headings {
            return output::styled_table(&headings, &cells, &style);
        }
        // Headings must not widen a column either.
        let none: Vec<&str> =
            headings.iter().map(|h| if h.ends_with('>') { ">" } else { "" }).collect();
        let text = output::styled_table(&none, &cells, &style);
        text.split_once('\n').map_or(String::new(), |(_, rows)| rows.to_owned())
    }
}

impl Column {
    /// As in [`output::table`].
    fn heading(self) -> &'static str {
        match self {
            Self::Name => "NAME",
            Self::State => "STATE",
            Self::Role => "ROLE",
            Self::Export => "EXPORT",
            Self::Size => "SIZE>",
            Self::Limit => "LIMIT>",
            Self::Data => "DATA>",
            Self::Memory => "MEMORY>",
            Self::Ratio => "RATIO>",
            Self::Mount => "MOUNT",
            Self::Device => "DEVICE",
            Self::Open => "OPEN",
        }
    }

    /// The number of bytes in it, if it is a size.
    fn bytes(self, row: &Row) -> Option<u64> {
        match self {
            Self::Size => row.size_bytes,
            Self::Limit => row.ram_limit_bytes,
            Self::Data => row.data_bytes,
            Self::Memory => row.mem_used_bytes,
            _ => None,
        }
    }

    fn cell(self, row: &Row, in_bytes: bool) -> String {
        let size = |bytes: u64| if in_bytes { bytes.to_string() } else { human(bytes) };
        match self {
            Self::Name => row.name.clone(),
            Self::State => row.condition().into(),
            Self::Role => row.role.unwrap_or("-").into(),
            Self::Export => row.export.unwrap_or("-").into(),
            Self::Size | Self::Limit | Self::Data | Self::Memory => {
                self.bytes(row).map_or("-".into(), size)
            }
            Self::Ratio => row.stored_ratio.map_or("-".into(), ratio),
            Self::Mount if row.swap => "[SWAP]".into(),
            Self::Mount => match &row.mounts[..] {
                [] => "-".into(),
                [one] => one.display().to_string(),
                [one, more @ ..] => format!("{} +{}", one.display(), more.len()),
            },
            Self::Device => row.device.as_ref().map_or("-".into(), |at| at.display().to_string()),
            Self::Open if row.endpoints.is_empty() => "-".into(),
            Self::Open => row.endpoints.join(" "),
        }
    }

    /// Volumes that are alike stay ordered by name.
    fn compare(self, a: &Row, b: &Row) -> Ordering {
        let sizes = self.bytes(b).cmp(&self.bytes(a));
        sizes.then_with(|| match self {
            Self::Size | Self::Limit | Self::Data | Self::Memory => Ordering::Equal,
            Self::Ratio => {
                let of = |row: &Row| row.stored_ratio.unwrap_or(-1.0);
                of(b).total_cmp(&of(a))
            }
            _ => self.cell(a, false).cmp(&self.cell(b, false)),
        })
    }
}

impl Row {
    /// State or health in one word.
    fn condition(&self) -> &'static str {
        self.health.map_or(self.state, Health::name)
    }

    /// How a terminal with colours shows the state.
    fn style(&self) -> Style {
        let in_colour = |colour: AnsiColor| Style::new().fg_color(Some(colour.into()));
        match self.condition() {
            "dead" | "failed" | "lost" => in_colour(AnsiColor::Red).bold(),
            "degraded" | "filling" | "busy" => in_colour(AnsiColor::Yellow),
            _ => Style::new(),
        }
    }

    /// The row with the device of the volume, and what it is used for.
    fn used(mut self, table: &[MountEntry]) -> Self {
        let devices = self.endpoints.iter().map(Path::new).filter(|path| path.starts_with("/dev"));
        let Some(device) = devices.filter_map(|path| fs::canonicalize(path).ok()).next() else {
            return self;
        };
        if let Some(number) = number_of(&device) {
            let here = table.iter().filter(|mount| mount.is_of(number));
            self.mounts = here.map(|mount| mount.point.clone()).collect();
        }
        self.swap = usage::is_swap(&device);
        self.device = Some(device);
        self
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
        role: plan.map(|plan| Role::of(plan).name()),
        export: plan.map(|plan| plan.export.kind()),
        size_bytes: plan.map(|plan| plan.size_bytes),
        ram_limit_bytes: plan.map(|plan| plan.ram_limit_bytes),
        ..Row::default()
    };
    match seen {
        Seen::Up { sample, .. } => {
            let homes = Homes::of(&sample.plan, &sample.stats);
            let used = sample.stats.mem_used_bytes;
            let times = homes.ram as f64 / used.max(1) as f64;
            Row {
                health: Some(sample.stats.health),
                stored_ratio: (homes.ram > 0).then_some(times),
                wrong: ill(name, &sample.stats),
                data_bytes: Some(match &sample.stats.object {
                    Some(_) => homes.backing,
                    None => homes.held(Role::of(&sample.plan)),
                }),
                mem_used_bytes: Some(used),
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
        list.table(rows, &list.columns(rows, None), false)
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
        let heads = "NAME  STATE  ROLE   SIZE  LIMIT  DATA  MEMORY  RATIO  MOUNT  DEVICE  OPEN\n";
        assert!(all.starts_with(heads), "{all}");
        let some = shown("-o size,name --sort size", &mut rows);
        assert_eq!(some, " SIZE  NAME\n1 GiB  c\n4 KiB  b\n    -  a\n");
        let bytes = shown("--no-headings --bytes -o name,size", &mut rows);
        assert_eq!(bytes, "a           -\nb        4096\nc  1073741824\n");
        assert_eq!(shown("--noheadings -o name", &mut []), "");
    }

    #[test]
    fn unknown_columns_are_refused_with_the_known_ones() {
        let error = Cli::try_parse_from(["ztier", "list", "-o", "nam"]).err().unwrap().to_string();
        assert!(error.contains("name, state, role, export, size, limit, data, memory"), "{error}");
        assert!(Cli::try_parse_from(["ztier", "list", "--json", "--bytes"]).is_err());
    }

    #[test]
    fn a_narrow_terminal_has_fewer_columns_and_colours_are_of_the_state() {
        let list = List {
            output: Vec::new(),
            no_headings: false,
            bytes: false,
            sort: Column::Name,
            json: false,
        };
        let rows = [Row {
            name: "data".into(),
            state: "dead",
            role: Some("log"),
            size_bytes: Some(1 << 40),
            stored_ratio: Some(2.614),
            mounts: vec!["/srv/data".into(), "/mnt".into()],
            device: Some("/dev/loop7".into()),
            endpoints: vec!["/dev/ztier/data".into()],
            ..Row::default()
        }];
        for width in [60, 80, 100, 120] {
            let columns = list.columns(&rows, Some(width));
            let text = list.table(&rows, &columns, false);
            assert!(text.lines().all(|line| line.chars().count() <= width), "{width}: {text}");
            assert_eq!(columns.len() == USUAL.len(), width >= 100, "{width}: {text}");
            assert!(text.contains("data  dead ") && text.contains("/dev/ztier/data"), "{text}");
        }
        let all = list.table(&rows, &USUAL, true);
        assert!(all.contains("data  \u{1b}[1m\u{1b}[31mdead\u{1b}[0m   log "), "{all:?}");
        assert!(all.contains("  2.61x  /srv/data +1  /dev/loop7  /dev/ztier/data\n"), "{all}");
        assert_eq!(
            list.columns(&rows, Some(10)),
            [Column::Name, Column::State, Column::Size, Column::Open]
        );
    }
}

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
use clap::Args;
use serde::Serialize;

/// List volumes, including those whose daemon died
#[derive(Args)]
pub struct List {
    /// Print JSON
    #[arg(long)]
    json: bool,
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
        let rows: Vec<Row> =
            survey.known().iter().map(|(name, seen)| row(&paths, name, seen)).collect();
        if self.json {
            output::json(&rows)?;
        } else {
            output::print(&table(&rows))?;
        }
        for (row, error) in rows.iter().filter_map(|row| Some((row, row.error.as_ref()?))) {
            if row.wrong.is_none() {
                output::remark(&format!("{}: {error}", row.name));
            }
        }
        told(rows.into_iter().filter_map(|row| row.wrong).collect())
    }
}

fn table(rows: &[Row]) -> String {
    let size = |bytes: Option<u64>| bytes.map_or("-".into(), human);
    let cells: Vec<Vec<String>> = rows
        .iter()
        .map(|row| {
            vec![
                row.name.clone(),
                row.health.map_or(row.state, Health::name).into(),
                row.export.unwrap_or("-").into(),
                size(row.size_bytes),
                size(row.data_bytes),
                size(row.mem_used_bytes),
                if row.endpoints.is_empty() { "-".into() } else { row.endpoints.join(" ") },
            ]
        })
        .collect();
    output::table(&["NAME", "STATE", "EXPORT", "SIZE>", "DATA>", "MEMORY>", "OPEN"], &cells)
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

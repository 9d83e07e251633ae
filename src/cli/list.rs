//! `ztier list`: every volume of this user, also those whose daemon died.

use super::status::told;
use super::{PATIENCE, ill, output};
use crate::config::Paths;
use crate::config::size::human;
use crate::control::{Client, Homes, Request, Role, Status};
use crate::daemon::keeper::Kept;
use crate::daemon::{self, Found};
use crate::error::{self, Error, Result};
use crate::remedy;
use crate::stats::Health;
use clap::Args;
use serde::Serialize;

/// List volumes, also those whose daemon died
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
    /// How one is that is up.
    health: Option<Health>,
    export: Option<&'static str>,
    size_bytes: Option<u64>,
    data_bytes: Option<u64>,
    mem_used_bytes: Option<u64>,
    endpoints: Vec<String>,
    holders: Vec<String>,
    /// What a dead daemon left behind.
    left: Vec<String>,
    /// Whether what a dead daemon had in memory is kept.
    kept: bool,
    error: Option<String>,
    /// What is wrong with it.
    #[serde(skip)]
    wrong: Option<Error>,
}

impl List {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let paths = Paths::of_this_user()?;
        let names = if paths.exists()? { daemon::names(&paths) } else { vec![] };
        let rows: Vec<Row> = names.into_iter().filter_map(|name| row(&paths, name)).collect();
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

/// What to say of a volume whose daemon died.
fn dead(name: &str, left: &[String], kept: bool) -> Error {
    let left = if left.is_empty() { "its state file".into() } else { left.join(", ") };
    let remedy = if kept { remedy::DEAD_WITH_DATA } else { remedy::DEAD_WITHOUT };
    Error::degraded(format!("volume `{name}`: its daemon is gone and left {left}"))
        .mend(remedy.of(name))
}

/// What to say of a volume whose daemon lives and does not answer, unless it says itself that it is
/// at work.
fn stuck(name: &str, e: &Error) -> Option<Error> {
    let error = Error::degraded(format!("volume `{name}`: {e}"));
    (e.status() != error::Status::Busy).then_some(error)
}

fn row(paths: &Paths, name: String) -> Option<Row> {
    let row = match daemon::find(paths, &name) {
        Found::Nothing => return None, // it ended while we looked
        Found::Dead(state) => {
            let kept = Kept::is_there(&paths.volume(&name).keep);
            let left = state.leftovers.iter().filter(|l| l.exists());
            let left: Vec<String> = left.map(|left| left.describe()).collect();
            Row {
                state: "dead",
                export: Some(state.plan.export.kind()),
                size_bytes: Some(state.plan.size_bytes),
                kept,
                wrong: Some(dead(&name, &left, kept)),
                left,
                ..Row::default()
            }
        }
        Found::Broken(e) => Row {
            state: "dead",
            error: Some(e.to_string()),
            wrong: Some(Error::degraded(format!("volume `{name}`: {e}"))),
            ..Row::default()
        },
        Found::Up(state) => {
            let files = paths.volume(&name);
            let client = Client::new(&files.control);
            match client.ask::<Status>(&Request::Status, PATIENCE) {
                Ok(status) => Row {
                    state: "up",
                    health: Some(status.stats.health),
                    wrong: ill(&name, &status.stats),
                    export: Some(status.plan.export.kind()),
                    size_bytes: Some(status.plan.size_bytes),
                    data_bytes: Some(
                        Homes::of(&status.plan, &status.stats).held(Role::of(&status.plan)),
                    ),
                    mem_used_bytes: Some(status.stats.mem_used_bytes),
                    endpoints: status.endpoints,
                    holders: status.holders,
                    ..Row::default()
                },
                // It ended while we looked.
                Err(_) if !matches!(daemon::find(paths, &name), Found::Up(_)) => {
                    return row(paths, name);
                }
                Err(e) => Row {
                    state: "busy", // starting, ending, or stuck
                    export: state.as_ref().map(|state| state.plan.export.kind()),
                    size_bytes: state.as_ref().map(|state| state.plan.size_bytes),
                    error: Some(e.to_string()),
                    wrong: files.control.exists().then(|| stuck(&name, &e)).flatten(),
                    ..Row::default()
                },
            }
        }
    };
    Some(Row { name, ..row })
}

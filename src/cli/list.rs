//! `ztier list`: every volume of this user, also those whose daemon died.

use super::{PATIENCE, output};
use crate::config::Paths;
use crate::config::size::human;
use crate::control::{Client, Request, Status};
use crate::daemon::keeper::Kept;
use crate::daemon::{self, Found};
use crate::error::Result;
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
}

impl List {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let paths = Paths::of_this_user()?;
        let names = if paths.exists()? { daemon::names(&paths) } else { vec![] };
        let rows: Vec<Row> = names.into_iter().filter_map(|name| row(&paths, name)).collect();
        if self.json {
            return output::json(&rows);
        }
        let mut cells = Vec::new();
        for row in &rows {
            let size = |bytes: Option<u64>| bytes.map_or("-".into(), human);
            cells.push(vec![
                row.name.clone(),
                row.state.into(),
                row.export.unwrap_or("-").into(),
                size(row.size_bytes),
                size(row.data_bytes),
                size(row.mem_used_bytes),
                if row.endpoints.is_empty() { "-".into() } else { row.endpoints.join(" ") },
            ]);
        }
        let head = ["NAME", "STATE", "EXPORT", "SIZE>", "DATA>", "MEMORY>", "OPEN"];
        output::print(&output::table(&head, &cells))?;
        for row in rows.iter().filter(|row| row.state == "dead") {
            let left =
                if row.left.is_empty() { "its state file".into() } else { row.left.join(", ") };
            let name = &row.name;
            let way = if row.kept {
                format!("`ztier restart {name}` goes on with its data")
            } else {
                format!("`ztier down {name}` removes it")
            };
            output::remark(&format!("{name}: its daemon is gone and left {left}; {way}"));
        }
        for (row, error) in rows.iter().filter_map(|row| Some((row, row.error.as_ref()?))) {
            output::remark(&format!("{}: {error}", row.name));
        }
        Ok(())
    }
}

fn row(paths: &Paths, name: String) -> Option<Row> {
    let row = match daemon::find(paths, &name) {
        Found::Nothing => return None, // it ended while we looked
        Found::Dead(state) => Row {
            state: "dead",
            export: Some(state.plan.export.kind()),
            size_bytes: Some(state.plan.size_bytes),
            kept: Kept::is_there(&paths.volume(&name).keep),
            left: state.leftovers.iter().filter(|l| l.exists()).map(|l| l.describe()).collect(),
            ..Row::default()
        },
        Found::Broken(e) => Row { state: "dead", error: Some(e.to_string()), ..Row::default() },
        Found::Up(state) => {
            let client = Client::new(&paths.volume(&name).control);
            match client.ask::<Status>(&Request::Status, PATIENCE) {
                Ok(status) => Row {
                    state: "up",
                    export: Some(status.plan.export.kind()),
                    size_bytes: Some(status.plan.size_bytes),
                    data_bytes: Some(status.stats.orig_data_bytes),
                    mem_used_bytes: Some(status.stats.mem_used_bytes),
                    endpoints: status.endpoints,
                    holders: status.holders,
                    ..Row::default()
                },
                Err(e) => Row {
                    state: "busy", // starting, ending, or stuck
                    export: state.as_ref().map(|state| state.plan.export.kind()),
                    size_bytes: state.as_ref().map(|state| state.plan.size_bytes),
                    error: Some(e.to_string()),
                    ..Row::default()
                },
            }
        }
    };
    Some(Row { name, ..row })
}

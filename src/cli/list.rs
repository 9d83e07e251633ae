//! `ztier list`: every volume of this user, also those whose daemon died.
//!
//! Invariant: each daemon is asked once, all at the same time, and only for what it knows without
//! looking at other processes: however many volumes there are, the time for each stays the same.

use super::{PATIENCE, output};
use crate::config::Paths;
use crate::config::size::human;
use crate::daemon::survey::{Seen, Survey};
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
        let mut survey = Survey::new(paths.clone());
        survey.look_around(PATIENCE)?;
        let rows: Vec<Row> =
            survey.known().iter().map(|(name, seen)| row(&paths, name, seen)).collect();
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
        Seen::Up { sample, .. } => Row {
            data_bytes: Some(sample.stats.orig_data_bytes),
            mem_used_bytes: Some(sample.stats.mem_used_bytes),
            endpoints: sample.endpoints.clone(),
            ..row
        },
        Seen::Starting { step } => Row { error: step.clone(), ..row },
        Seen::Silent { why, .. } => {
            let why = why.clone().unwrap_or_else(|| "its daemon does not answer".to_owned());
            Row { error: Some(why), ..row }
        }
        Seen::Dead { kept, .. } => Row { kept: *kept, left: left(paths, name), ..row },
        Seen::Broken { why } => Row { error: Some(why.clone()), ..row },
    }
}

/// What the dead daemon of a volume left.
fn left(paths: &Paths, name: &str) -> Vec<String> {
    let Found::Dead(state) = daemon::find(paths, name) else { return Vec::new() };
    state.leftovers.iter().filter(|l| l.exists()).map(|l| l.describe()).collect()
}

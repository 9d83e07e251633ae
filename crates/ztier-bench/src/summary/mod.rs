//! The report of a run: for each source document its figures, those of ztier and of its rivals, as
//! HTML, Markdown, CSV and a picture.
//!
//! Invariant: the report is made only of the files in the run's directory, so it can be made anew
//! at any time; this module measures nothing.

mod csv;
mod found;
mod general;
mod glance;
mod html;
mod markdown;
mod model;
mod overview;
mod pictures;
mod series;
mod source;

use crate::suite::{Folder, Part, Run, State, words};
use found::Tables;
use model::{Cell, Document, Grid, Item, Section};
use serde_json::Value;
use source::Given;
use std::path::PathBuf;
use ztier::error::Result;

/// Writes all files into the run's directory; returns the path of the HTML.
///
/// # Errors
/// A file can't be written.
pub fn write(folder: &Folder, run: &Run) -> Result<PathBuf> {
    let tables = Tables::load(folder, run);
    let document = document(run, &tables);
    folder.replace("report.md", markdown::text(&document).as_bytes())?;
    folder.replace("report.csv", csv::text(&document).as_bytes())?;
    folder.replace("report.html", html::page(&document).as_bytes())?;
    for (name, picture) in pictures::files(&document) {
        folder.replace(&name, picture.as_bytes())?;
    }
    Ok(folder.file("report", "html"))
}

/// The content of the report.
fn document(run: &Run, tables: &Tables) -> Document {
    let given = Given { run, tables };
    let mut sections = vec![overview::section(given)];
    sections.extend(source::ALL.iter().map(|source| source.section(given)));
    sections.push(missing(given));
    sections.push(made_with(given));
    let mut figures: Vec<model::Figure> = source::ALL.iter().flat_map(|s| (s.figures)()).collect();
    for part in &run.parts {
        let table = tables.get(&part.name);
        figures.extend(table.into_iter().flat_map(|table| general::listed(&part.name, table)));
    }
    Document {
        title: "ztier beside its sources and rivals".into(),
        glance: glance::items(tables),
        lead: lead(run),
        sections,
        figures,
    }
}

/// Whether parts come from different builds: several sessions of `--resume --only` made a long run.
fn is_mixed(run: &Run) -> bool {
    run.parts.iter().filter_map(|part| part.build.as_ref()).any(|build| *build != run.build)
}

/// Whether parts ran on different machines, for the same reason.
fn is_scattered(run: &Run) -> bool {
    run.parts.iter().filter_map(|part| part.machine.as_ref()).any(|on| *on != run.machine)
}

fn lead(run: &Run) -> Vec<String> {
    let took: f64 = run.parts.iter().filter_map(|part| part.seconds).sum();
    let form = if run.quick { "A quick run" } else { "A full run" };
    let others = match (is_mixed(run), is_scattered(run)) {
        (false, false) => "",
        (true, false) => "; parts of it by other builds, as said at the end",
        (false, true) => "; parts of it on other machines, as said at the end",
        (true, true) => "; parts of it by other builds or on other machines, as said at the end",
    };
    let mut lead = vec![format!(
        "{form} of `./bench all`, begun {}, {} of measuring, by {}{others}.",
        run.begun,
        words(took),
        run.build
    )];
    if run.quick {
        lead.push(
            "Quick means little data, few sizes of records and mostly one run of each: its ratios \
             scatter, and what a small volume keeps ready weighs more. The commands at the end \
             say what was measured."
                .into(),
        );
    }
    lead.push(
        "Rivals ran in turn with ours, in the same run. Ratios are what counts; absolute figures \
         depend on the machine. Figures of the sources are as they state them, from machines of \
         2009 to 2013. What could not be measured is named, and never a number."
            .into(),
    );
    lead
}

fn missing(given: Given<'_>) -> Section {
    let notes = general::missing(given.run, given.tables);
    let items = if notes.is_empty() {
        vec![Item::Text("Everything was measured.".into())]
    } else {
        let count = format!("{} figures, with the reasons", notes.len());
        vec![Item::More(count, vec![Item::Notes(notes)])]
    };
    Section { id: "missing".into(), title: "What could not be measured".into(), items }
}

/// The machine, versions, and the exact commands.
fn made_with(given: Given<'_>) -> Section {
    let run = given.run;
    let mut machine = Grid::new("Machine and versions", &["", ""]);
    let mut say = |what: &str, text: String| {
        machine.rows.push(vec![Cell::text(what), Cell::text(text)]);
    };
    say("ztier", run.build.clone());
    for (what, value) in run.machine.as_object().into_iter().flatten() {
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        say(&what.replace('_', " "), text);
    }
    run.versions.iter().for_each(|(what, version)| say(what, version.clone()));
    let inside = run.parts.iter().filter_map(|part| {
        let machine = &given.tables.get(&part.name)?.machine;
        let host = part.machine.as_ref().unwrap_or(&run.machine);
        let (kernel, own) = (machine.get("kernel")?.as_str()?, host.get("kernel"));
        let cpu = machine.get("cpu_model").and_then(|model| model.as_str()).unwrap_or("unknown");
        (own.and_then(|own| own.as_str()) != Some(kernel))
            .then(|| (part.name.clone(), format!("Linux {kernel}, {cpu}")))
    });
    inside.for_each(|(part, text)| say(&format!("{part}, in a virtual machine"), text));
    let mut head =
        vec!["part", "command", "how it ended", "took", "others’ work before, % of a CPU"];
    let mixed = is_mixed(run);
    if mixed {
        head.push("by");
    }
    let scattered = is_scattered(run);
    if scattered {
        head.push("on");
    }
    let mut typed = run.commands.clone();
    typed.dedup();
    let mut commands =
        Grid::new(format!("Commands; all of them by `{}`", typed.join("`, `")), &head);
    for part in &run.parts {
        let mut row = vec![
            Cell::text(&part.name),
            Cell::text(format!("`{}`", command(part))),
            Cell::text(ended(part)),
            Cell::text(part.seconds.map_or(String::new(), words)),
            part.busy_percent.map_or(Cell::None, |busy| Cell::text(format!("{busy:.0}"))),
        ];
        if mixed {
            row.push(part.build.as_ref().map_or(Cell::None, Cell::text));
        }
        if scattered {
            row.push(part.machine.as_ref().map_or(Cell::None, |on| Cell::text(in_short(on))));
        }
        commands.rows.push(row);
    }
    let commands = Item::More("The commands".into(), vec![Item::Grid(commands)]);
    let items = vec![Item::Grid(machine), commands];
    Section { id: "made-with".into(), title: "Machine, versions, commands".into(), items }
}

/// A short description of a machine.
fn in_short(machine: &Value) -> String {
    let text = |name: &str| machine.get(name).and_then(|v| v.as_str()).unwrap_or("unknown");
    let number = |name: &str| machine.get(name).and_then(|v| v.as_u64()).unwrap_or(0);
    let (cpus, gib) = (number("cpus"), number("ram_kib") as f64 / 1_048_576.0);
    format!("{cpus} × {}, {gib:.1} GiB, Linux {}", text("cpu_model"), text("kernel"))
}

fn command(part: &Part) -> String {
    let (args, name) = (part.args.join(" "), &part.name);
    format!("./bench {args} --json {name}.json --csv {name}.csv")
}

fn ended(part: &Part) -> String {
    let state = match part.state {
        State::Waiting => "has not run",
        State::Running => "cut off",
        State::Done => "well",
        State::Failed => "failed",
        State::Absent => "not possible here",
    };
    match &part.reason {
        Some(why) => format!("{state}: {why}"),
        None => state.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::suite::plan::entries;

    #[test]
    fn parts_of_several_builds_say_so() {
        let dir = tempfile::tempdir().unwrap();
        let entries: Vec<_> = entries(true).iter().collect();
        let mut run = Run::new(String::new(), true, "of today".into(), &entries);
        let tables = Tables::load(&Folder::of(dir.path().into()), &run);
        let commands = |run: &Run| {
            let made = made_with(Given { run, tables: &tables });
            let Some(Item::More(_, inside)) = made.items.last() else { panic!() };
            let [Item::Grid(grid)] = &inside[..] else { panic!() };
            grid.rows.iter().map(|row| row.last().unwrap().shown()).collect::<Vec<_>>()
        };
        run.parts.iter_mut().for_each(|part| part.build = Some("of today".into()));
        assert!(!lead(&run)[0].contains("other builds"));
        assert!(!commands(&run).contains(&"of today".into()));
        run.parts[2].build = Some("of yesterday".into());
        assert!(lead(&run)[0].contains("other builds"));
        assert_eq!(commands(&run)[1..3], ["of today", "of yesterday"]);
    }

    #[test]
    fn parts_of_several_machines_say_so() {
        let dir = tempfile::tempdir().unwrap();
        let entries: Vec<_> = entries(true).iter().collect();
        let mut run = Run::new(String::new(), true, "of today".into(), &entries);
        let machine = |cpus: u32| serde_json::json!({"cpus": cpus, "cpu_model": "A CPU"});
        run.move_to(machine(2));
        run.parts[1].begun = Some(String::new());
        run.move_to(machine(2));
        assert!(!lead(&run)[0].contains("machines"));
        run.move_to(machine(4));
        assert!(lead(&run)[0].contains("on other machines"));
        let tables = Tables::load(&Folder::of(dir.path().into()), &run);
        let made = made_with(Given { run: &run, tables: &tables });
        let Some(Item::More(_, inside)) = made.items.last() else { panic!() };
        let [Item::Grid(grid)] = &inside[..] else { panic!() };
        let on = |n: usize| grid.rows[n].last().unwrap().shown();
        assert!(on(1).starts_with("2 × A CPU, "), "{}", on(1));
        assert!(!on(2).contains("A CPU"), "{}", on(2));
    }
}

//! The source documents: what each of them found, and ours beside it.
//!
//! Invariant: figures of the sources are copied, never computed; where one of them contradicts
//! itself, that is said.

pub mod log;
pub mod swap;
pub mod worst;
pub mod zcache;
pub mod zram;

use super::found::Tables;
use super::general::Wanted;
use super::model::{Figure, Item, Section};
use crate::suite::Run;

/// What sections are made of.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// The run.
    pub run: &'a Run,
    /// What its tables found.
    pub tables: &'a Tables,
}

/// A source document.
pub struct Source {
    /// A word for links.
    pub id: &'static str,
    /// The heading of its section.
    pub title: &'static str,
    /// The part of the run that reproduces it.
    pub part: &'static str,
    /// The document, as it calls itself.
    pub cited: &'static str,
    /// Ratios of the main table, by the part of the run that measures them.
    pub main: &'static [(&'static str, &'static [Wanted])],
    /// What stands below the citation.
    pub items: fn(Given<'_>) -> Vec<Item>,
    /// Its figures.
    pub figures: fn() -> Vec<Figure>,
}

impl Source {
    /// Its section.
    pub fn section(&self, given: Given<'_>) -> Section {
        let mut items = vec![Item::Text(format!("Source: {}", self.cited))];
        items.extend(super::general::shortfall(given.run, self.part));
        items.extend((self.items)(given));
        Section { id: self.id.into(), title: self.title.into(), items }
    }
}

/// All of them.
pub const ALL: [Source; 5] =
    [zram::SOURCE, swap::SOURCE, zcache::SOURCE, worst::SOURCE, log::SOURCE];

/// Figures of a document.
fn figure(part: &str, system: &str, case: &str, value: f64, unit: &str) -> Figure {
    Figure {
        origin: "source",
        part: part.to_owned(),
        system: system.to_owned(),
        case: case.to_owned(),
        value: Some(value),
        unit: unit.to_owned(),
        runs: vec![value],
        ..Figure::default()
    }
}

/// The same of tables as IOzone prints them.
fn iozone(part: &str, system: &str, table: &str) -> Vec<Figure> {
    use crate::workload::iozone::TESTS;
    let mut all = Vec::new();
    for line in table.lines() {
        let numbers: Vec<f64> = line.split_whitespace().filter_map(|n| n.parse().ok()).collect();
        let [file, record, speeds @ ..] = &numbers[..] else { continue };
        for (test, speed) in TESTS.iter().zip(speeds) {
            let case = format!("{test}, {:.0} MiB, records of {record:.0} KiB", file / 1024.0);
            all.push(figure(part, system, &case, *speed, "KiB/s"));
        }
    }
    all
}

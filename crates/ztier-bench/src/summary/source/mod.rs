//! The source documents: the results of each, with ztier's beside them.
//!
//! Invariant: figures of the sources are copied, never computed; where a source contradicts itself,
//! the report says so.

pub mod log;
pub mod object;
pub mod swap;
pub mod worst;
pub mod zcache;
pub mod zram;

use super::found::Tables;
use super::general::Wanted;
use super::model::{Figure, Item, Section};
use crate::suite::Run;

/// Input of sections.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    /// The run.
    pub run: &'a Run,
    /// The results of its tables.
    pub tables: &'a Tables,
}

/// A part of the run, and its ratios in the overview.
#[derive(Clone, Copy)]
pub struct Measured {
    /// Name of the part.
    pub part: &'static str,
    /// Ratios mentioned even if they were not measured.
    pub wanted: &'static [Wanted],
    /// The kind of the other ratios, if they are too many for a row each.
    pub many: Option<Many>,
}

impl Measured {
    /// A part with a row for each ratio.
    pub const fn of(part: &'static str, wanted: &'static [Wanted]) -> Self {
        Self { part, wanted, many: None }
    }
}

/// Ratios of one kind.
#[derive(Clone, Copy)]
pub struct Many {
    /// Numerator and denominator.
    pub what: &'static str,
    /// The common end of their names, after the individual part.
    pub end: &'static str,
}

/// A source document.
pub struct Source {
    /// Anchor for links.
    pub id: &'static str,
    /// The heading of its section.
    pub title: &'static str,
    /// The part of the run that reproduces it.
    pub part: &'static str,
    /// Citation of the document.
    pub cited: &'static str,
    /// The parts of the run whose ratios belong to it, in order.
    pub main: &'static [Measured],
    /// Other ratios that may have a target: names, with numerator and denominator.
    pub texts: &'static [(&'static str, &'static str)],
    /// Makes the content below the citation.
    pub items: fn(Given<'_>) -> Vec<Item>,
    /// Makes its figures.
    pub figures: fn() -> Vec<Figure>,
}

impl Source {
    /// Numerator and denominator of a ratio; parts share ratios of the same name.
    pub fn text(&self, name: &str) -> Option<&'static str> {
        let texts = self.texts.iter().copied();
        let wanted = self.main.iter().flat_map(|measured| measured.wanted);
        let mut all = texts.chain(wanted.map(|one| (one.name, one.what)));
        all.find(|(other, _)| *other == name).map(|(_, text)| text)
    }

    /// Its section.
    pub fn section(&self, given: Given<'_>) -> Section {
        let mut items: Vec<Item> =
            super::general::shortfall(given.run, self.part).into_iter().collect();
        let mut rest = (self.items)(given);
        // What a reader looks at first is open: the first charts. The overview has the ratios.
        let first = rest.iter().position(|item| matches!(item, Item::Charts(_)));
        items.extend(first.map(|at| rest.remove(at)));
        rest.insert(0, Item::Text(format!("Source: {}", self.cited)));
        items.push(Item::More(
            "The source, all tables and charts, how it was measured".into(),
            rest,
        ));
        Section { id: self.id.into(), title: self.title.into(), items }
    }
}

/// All source documents.
pub const ALL: [Source; 6] =
    [zram::SOURCE, swap::SOURCE, zcache::SOURCE, worst::SOURCE, log::SOURCE, object::SOURCE];

/// A figure of a document.
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

/// The figures of a table as IOzone prints it.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::suite::plan::NAMES;

    #[test]
    fn each_part_belongs_to_one_document() {
        let mut parts: Vec<&str> =
            ALL.iter().flat_map(|source| source.main).map(|measured| measured.part).collect();
        let mut names = NAMES;
        parts.sort_unstable();
        names.sort_unstable();
        assert_eq!(parts, names);
    }
}

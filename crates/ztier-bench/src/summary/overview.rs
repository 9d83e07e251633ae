//! The overview of a report: every ratio with a target, and the number of targets met.
//!
//! Invariants: each ratio with a target that a part of the run has left is counted once, whatever
//! the report says of it elsewhere; so is each that should have been measured and was not. A ratio
//! that was measured where its target is not meant is shown and not counted.

use super::found::Table;
use super::general::{Judged, Standing};
use super::model::{Cell, Grid, Item, Section, number, title};
use super::source::{self, Given, Many, Measured, Source};
use crate::report::Target;

const COUNTS: [&str; 5] = ["document", "targets", "met", "short", "not measured"];
const RATIOS: [&str; 5] = ["ratio", "source", "here", "target", "verdict"];

/// Numbers of targets of a document, by verdict.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Counts {
    met: u32,
    short: u32,
    absent: u32,
}

impl Counts {
    fn count(&mut self, standing: Standing) {
        match standing {
            Standing::Met => self.met += 1,
            Standing::Short => self.short += 1,
            Standing::Absent => self.absent += 1,
            Standing::Elsewhere | Standing::Free => {}
        }
    }

    fn row(self, document: &str) -> Vec<Cell> {
        let Self { met, short, absent } = self;
        let counts = [met + short + absent, met, short, absent];
        let cells = counts.map(|count| Cell::text(count.to_string()));
        std::iter::once(Cell::text(document)).chain(cells).collect()
    }
}

/// The section of the overview.
pub fn section(given: Given<'_>) -> Section {
    let mut counts = Grid::new("Targets", &COUNTS);
    let mut main = Grid::new("Every ratio that has a target", &RATIOS);
    for source in &source::ALL {
        let (rows, of) = document(given, source);
        main.rows.push(title(source.title, RATIOS.len()));
        main.rows.extend(rows);
        counts.rows.push(of.row(source.title));
    }
    let items = vec![Item::Grid(counts), Item::Grid(main)];
    Section { id: "overview".into(), title: "Overview".into(), items }
}

/// The rows of a document: the ratios that readers look for, then all others with a target.
fn document(given: Given<'_>, source: &Source) -> (Vec<Vec<Cell>>, Counts) {
    let (mut rows, mut counts) = (Vec::new(), Counts::default());
    for measured in source.main {
        for one in measured.wanted {
            let judged = one.judged(given.tables.get(measured.part));
            counts.count(judged.standing);
            if judged.standing != Standing::Free {
                rows.push(row(measured.part, one.what, one.source, &judged));
            }
        }
    }
    for measured in source.main {
        let Some(table) = given.tables.get(measured.part) else { continue };
        let others = others(table, measured);
        others.iter().for_each(|(_, judged)| counts.count(judged.standing));
        let (alone, together) = match measured.many {
            None => (others, None),
            Some(many) => {
                let (met, short): (Vec<_>, Vec<_>) =
                    others.into_iter().partition(|(_, judged)| judged.standing == Standing::Met);
                (short, together(measured.part, many, &met))
            }
        };
        let text = |name: &str| text(source, measured, name);
        rows.extend(alone.iter().map(|(name, j)| row(measured.part, &text(name), None, j)));
        rows.extend(together);
    }
    (rows, counts)
}

/// The ratios of a part with a target that are not always mentioned.
fn others<'a>(table: &'a Table, measured: &Measured) -> Vec<(&'a str, Judged)> {
    let known = |name: &str| measured.wanted.iter().any(|one| one.name == name);
    let judged = |(name, &value): (&'a String, &f64)| {
        let target = table.goal(name);
        let standing = if target.met(value) { Standing::Met } else { Standing::Short };
        let judged = Judged { found: Some(value), target, standing };
        (target != Target::None && !known(name)).then_some((name.as_str(), judged))
    };
    table.ratios.iter().filter_map(judged).collect()
}

/// Numerator and denominator of a ratio, or its name.
fn text(source: &Source, measured: &Measured, name: &str) -> String {
    let of = |many: Many| Some(format!("{}: {}", many.what, name.strip_suffix(many.end)?));
    let known = source.text(name).map(str::to_owned);
    known.or_else(|| of(measured.many?)).unwrap_or_else(|| format!("`{name}`"))
}

fn row(part: &str, text: &str, source: Option<f64>, judged: &Judged) -> Vec<Cell> {
    let first = [Cell::text(placed(part, text)), Cell::maybe(source)];
    first.into_iter().chain(judged.cells()).collect()
}

/// Where the ratio was measured, if not on this machine.
fn placed(part: &str, text: &str) -> String {
    match part.strip_suffix("-vm") {
        Some(_) => format!("{text}; in a virtual machine, by ublk"),
        None => text.to_owned(),
    }
}

/// One row for all targets met.
fn together(part: &str, many: Many, met: &[(&str, Judged)]) -> Option<Vec<Cell>> {
    let values = || met.iter().filter_map(|(_, judged)| judged.found);
    let least = values().min_by(f64::total_cmp)?;
    let most = values().max_by(f64::total_cmp)?;
    let mut targets: Vec<String> = met.iter().map(|(_, judged)| judged.target.short()).collect();
    targets.dedup();
    let text = format!("{}: {} more, all of them met", many.what, met.len());
    Some(vec![
        Cell::text(placed(part, &text)),
        Cell::None,
        Cell::text(format!("{} to {}", number(least), number(most))),
        Cell::text(targets.join(", ")),
        Cell::Verdict(true),
    ])
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::report::Report;
    use crate::suite::plan::entries;
    use crate::suite::{Folder, Run, State};
    use crate::summary::found::Tables;
    use crate::summary::general::listed;

    /// A real quick run, shortened.
    const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sample");

    type Ratios<'a> = &'a [(&'a str, f64, Target)];

    /// A run of some tables, with given ratios.
    fn run(tables: &[(&'static str, Ratios<'_>)]) -> (Run, Tables) {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::of(dir.path().into());
        let names: Vec<&str> = tables.iter().map(|(name, _)| *name).collect();
        let entries: Vec<_> =
            entries(true).iter().filter(|entry| names.contains(&entry.name)).collect();
        let mut run = Run::new(String::new(), true, String::new(), &entries);
        run.parts.iter_mut().for_each(|part| part.state = State::Done);
        for (name, ratios) in tables {
            let mut report = Report::new(name);
            ratios.iter().for_each(|(name, value, target)| report.ratio(name, *value, *target));
            std::fs::write(folder.file(name, "json"), report.json().unwrap()).unwrap();
        }
        let tables = Tables::load(&folder, &run);
        (run, tables)
    }

    fn grids(run: &Run, tables: &Tables) -> (Vec<String>, Vec<String>) {
        let section = section(Given { run, tables });
        let [Item::Grid(counts), Item::Grid(main)] = &section.items[..] else { panic!() };
        let line = |row: &Vec<Cell>| row.iter().map(Cell::shown).collect::<Vec<_>>().join("|");
        (counts.rows.iter().map(line).collect(), main.rows.iter().map(line).collect())
    }

    /// The sums of the counts: targets, met, short, not measured.
    fn sums(counts: &[String]) -> [usize; 4] {
        let mut sums = [0; 4];
        for line in counts {
            let numbers = line.split('|').skip(1).map(|cell| cell.parse::<usize>().unwrap());
            sums.iter_mut().zip(numbers).for_each(|(sum, number)| *sum += number);
        }
        sums
    }

    /// Numbers of ratios in the CSV: targets met, and targets missed.
    fn in_csv(run: &Run, tables: &Tables) -> (usize, usize) {
        let figures = run.parts.iter().flat_map(|part| {
            tables.get(&part.name).map_or(Vec::new(), |table| listed(&part.name, table))
        });
        let verdicts: Vec<String> = figures.map(|figure| figure.verdict).collect();
        let count = |word: &str| verdicts.iter().filter(|verdict| *verdict == word).count();
        (count("met"), count("short"))
    }

    /// Number of wanted ratios that a run lacks.
    fn lacking(tables: &Tables) -> usize {
        let all = source::ALL.iter().flat_map(|source| source.main).flat_map(|measured| {
            measured.wanted.iter().map(|one| one.judged(tables.get(measured.part)).standing)
        });
        all.filter(|standing| *standing == Standing::Absent).count()
    }

    #[test]
    fn targets_are_counted_and_what_was_not_measured_is_said() {
        let (run, tables) = run(&[(
            "scan",
            &[
                ("vs_disk_swap", 1.6, Target::AtLeast(1.5)),
                ("swap_in_p99_vs_median", 3.1, Target::AtMost(3.0)),
                // The table's target has precedence: over this export, none.
                ("vs_kernel_zram", 0.5, Target::None),
            ],
        )]);
        let (counts, main) = grids(&run, &tables);
        assert_eq!(counts[1], "Compressed swap|12|1|1|10");
        let title = main.iter().position(|line| line.starts_with("Compressed swap|")).unwrap();
        let rows = &main[title + 1..];
        assert_eq!(rows[0], "time on disk swap ÷ ours|1.50|1.60|≥ 1.5|met");
        assert_eq!(rows[1], "time on kernel zram, lz4 ÷ ours|–|0.500|–|no target here");
        assert!(rows[2].ends_with("|–|–|≤ 1.08|not measured"), "{rows:#?}");
        assert!(rows[3].ends_with("|–|–|≥ 10|not measured"), "{rows:#?}");
        assert!(rows[4].ends_with("|3.10|≤ 3|short"), "{rows:#?}");
    }

    #[test]
    fn what_has_a_target_is_shown_whether_or_not_it_is_known() {
        let at_least = Target::AtLeast(0.9);
        let (run, tables) = run(&[
            ("zcache", &[("write", 1.1, Target::AtLeast(1.02)), ("write_2to1", 1.0, Target::None)]),
            ("cache", &[("miss_cpu_us", 5.0, Target::AtMost(15.0))]),
            (
                "policy",
                &[
                    ("zipf_vs_best", 0.95, at_least),
                    ("loop_vs_best", 1.0, at_least),
                    ("mixed_vs_best", 0.36, at_least),
                    ("default_vs_best_least", 0.36, at_least),
                    ("lru_vs_best_least", 0.1, Target::None),
                ],
            ),
            ("models", &[("row_a_virtual_time_vs_source", 0.8, Target::Within(0.1))]),
            (
                "scan-vm",
                &[
                    ("spill_vs_disk_swap", 4.0, Target::AtLeast(3.0)),
                    ("of_tomorrow", 1.0, Target::AtMost(2.0)),
                ],
            ),
        ]);
        let (counts, main) = grids(&run, &tables);
        assert_eq!(counts[2], "Read cache below a file system|15|4|2|9");
        for line in [
            "a miss: µs of a processor, more than the drive alone takes|–|5.00|≤ 15|met",
            "hits ÷ those of the best policy: mixed|–|0.360|≥ 0.9|short",
            "hits ÷ those of the best policy: the least of all traces|–|0.360|≥ 0.9|short",
            "hits ÷ those of the best policy: 2 more, all of them met|–|0.950 to 1.00|≥ 0.9|met",
            "the model of the disk ÷ the source’s row A|–|0.800|1 ± 0.1|short",
            "time on disk swap ÷ ours, half spilled; in a virtual machine, by ublk|–|4.00|≥ 3|met",
            "`of_tomorrow`; in a virtual machine, by ublk|–|1.00|≤ 2|met",
        ] {
            assert!(main.iter().any(|other| other == line), "{line}: {main:#?}");
        }
        let (met, short) = in_csv(&run, &tables);
        let absent = lacking(&tables);
        assert_eq!((met, short), (6, 3));
        assert_eq!(sums(&counts), [met + short + absent, met, short, absent]);
    }

    #[test]
    fn the_counts_are_those_of_the_csv() {
        let folder = Folder::of(SAMPLE.into());
        let run = folder.load().unwrap();
        let tables = Tables::load(&folder, &run);
        let (met, short) = in_csv(&run, &tables);
        let absent = lacking(&tables);
        assert!(met > 50 && short > 20, "{met} met, {short} short");
        let (counts, main) = grids(&run, &tables);
        assert_eq!(sums(&counts), [met + short + absent, met, short, absent]);
        // Each missed target has its own row; no sum hides one.
        assert_eq!(main.iter().filter(|line| line.ends_with("|short")).count(), short);
    }
}

//! compcache's worst case: files want all memory, and almost nothing is swapped.

use super::{Given, Measured, Source, figure};
use crate::report::Target::{AtLeast, AtMost, None as No};
use crate::summary::found::Table;
use crate::summary::general::{Wanted, conditions, figures, other_ratios, ratios, wanted};
use crate::summary::model::{Bar, Bars, Cell, Chart, Charts, Figure, Grid, Item};
use crate::summary::series::{charts, gather};
use crate::workload::iozone::Series;

/// The document, and ztier's figures.
pub const SOURCE: Source = Source {
    id: "worst-case",
    title: "Swap where files want all memory",
    part: "worst-case",
    cited: "compcache, worst case: “Any workload that has filesystem cache requirement that is \
            nearly equal to amount of RAM while has minimal anonymous (heap) memory requirement, \
            is expected to suffer maximum loss in performance with compcache enabled.” (Linux \
            2.6.31-rc6, Core 2 Duo T9600, mem=512m, a disk of 7200 RPM; iozone -a -B -n 256M -g \
            1G -R -i 0 -i 1 -M -+u -+A 4)",
    main: &[Measured::of("worst-case", &MAIN)],
    texts: &[],
    items,
    figures: source_figures,
};

const PART: &str = "003 worst case";
const FILES: &str = "files";

const MAIN: [Wanted; 4] = [
    wanted("slowdown", "time with a limit that adapts ÷ with disk swap", AtMost(1.03), None),
    wanted("slowdown_fixed", "time with 25 % of the memory ÷ with disk swap", No, Some(1.29)),
    wanted("slowdown_vs_no_swap", "time with a limit that adapts ÷ without swap", No, None),
    wanted(
        "auto_keeps_of_scan_gain",
        "of what a fixed limit gains where memory is scanned, the adapting one keeps",
        AtLeast(0.9),
        None,
    ),
];
/// Elapsed time in seconds: 59:18 and 1:16:41.
const STATED: [(&str, f64); 2] = [("without ramzswap", 3558.0), ("with ramzswap", 4601.0)];

fn items(given: Given<'_>) -> Vec<Item> {
    let table = given.tables.get("worst-case");
    let mut grid = Grid::new("The source: elapsed time of all files", &["system", "time", "s"]);
    for ((name, seconds), time) in STATED.iter().zip(["59:18", "1:16:41"]) {
        grid.rows.push(vec![Cell::text(*name), Cell::text(time), Cell::Number(*seconds)]);
    }
    let mut items = vec![Item::Grid(grid)];
    items.push(Item::Text(
        "The source states a slowdown of 24.8 %; its own times make 29.3 %, which is what stands \
         here. Its charts are lost."
            .into(),
    ));
    items.push(Item::Grid(ratios("Ours beside disk swap", table, &MAIN)));
    let bar = |(name, value): &(&str, f64)| Bar {
        name: format!("source, {name}"),
        value: *value,
        note: String::new(),
        source: true,
    };
    let title = "elapsed, the source’s 256 MB to 1 GB".to_owned();
    let bars = STATED.iter().map(bar).collect();
    let mut elapsed = vec![Chart::Bars(Bars { title, unit: "s".into(), bars })];
    let Some(table) = table else {
        items.push(charts_of("The source", elapsed));
        return items;
    };
    let systems = table.systems(FILES);
    let sums = sums(table, &systems);
    if let Some((_, times)) = sums.iter().find(|(what, _)| what == "elapsed, s") {
        let bar = |(name, time): (&&str, &Option<f64>)| {
            Some(Bar { name: (*name).to_owned(), value: (*time)?, ..Bar::default() })
        };
        let bars: Vec<Bar> = systems.iter().zip(times).filter_map(bar).collect();
        let title = "elapsed here, all files".to_owned();
        elapsed.push(Chart::Bars(Bars { title, unit: "s".into(), bars }));
    }
    items.push(charts_of("Elapsed time", elapsed));
    let mut head = vec![""];
    head.extend(&systems);
    let mut grid = Grid::new("Sums over all files, medians of runs, in terms of `time -v`", &head);
    for (what, values) in sums {
        let cells = values.into_iter().map(Cell::maybe);
        grid.rows.push(std::iter::once(Cell::text(what)).chain(cells).collect());
    }
    items.push(Item::Grid(grid));
    items.extend(speeds(table));
    for section in table.sections().into_iter().filter(|section| *section != FILES) {
        items.extend(figures(table, section, "The same memory, scanned"));
    }
    items.extend(other_ratios(table, &MAIN));
    items.extend(conditions(table));
    items
}

fn charts_of(caption: &str, charts: Vec<Chart>) -> Item {
    Item::Charts(Charts { caption: caption.into(), legend: Vec::new(), charts })
}

/// Quantity and series of a case: `elapsed` of `elapsed, 256 MiB, records of …`; `None` without a
/// series.
fn split(case: &str) -> Option<(&str, Series)> {
    let (what, series) = case.split_once(", ")?;
    Some((what, series.parse().ok()?))
}

/// Times and counts of all series together, by system.
fn sums(table: &Table, systems: &[&str]) -> Vec<(String, Vec<Option<f64>>)> {
    let mut all: Vec<(String, Vec<Option<f64>>)> = Vec::new();
    let mut seen: Vec<(&str, &str)> = Vec::new();
    for row in table.figures(FILES).filter(|row| row.unit != "KiB/s") {
        let Some((what, _)) = split(&row.case) else { continue };
        // Each run has a row; the median of all counts once.
        if seen.contains(&(&row.system, &row.case)) {
            continue;
        }
        seen.push((&row.system, &row.case));
        let name = if row.unit.is_empty() { what.into() } else { format!("{what}, {}", row.unit) };
        let at = all.iter().position(|(other, _)| *other == name).unwrap_or_else(|| {
            all.push((name, vec![None; systems.len()]));
            all.len() - 1
        });
        let system = systems.iter().position(|system| *system == row.system).unwrap_or(0);
        let sum = &mut all[at].1[system];
        let value = table.value(FILES, &row.system, &row.case).unwrap_or(0.0);
        let before = sum.unwrap_or(0.0);
        *sum = Some(if what.starts_with("maximum") { before.max(value) } else { before + value });
    }
    all
}

/// Throughput over the size of records, a group of charts for each file size.
fn speeds(table: &Table) -> Vec<Item> {
    let found = gather(table, FILES);
    let mut files: Vec<u64> = found.iter().map(|speeds| speeds.file_mib).collect();
    files.sort_unstable();
    files.dedup();
    let group = |file: u64| {
        let of: Vec<_> = found.iter().filter(|speeds| speeds.file_mib == file).collect();
        let (legend, charts) = charts(&of);
        let caption = format!("Files of {file} MiB: throughput by the size of records");
        Item::Charts(Charts { caption, legend, charts })
    };
    files.into_iter().map(group).collect()
}

fn source_figures() -> Vec<Figure> {
    STATED.iter().map(|(name, value)| figure(PART, name, "elapsed", *value, "s")).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_slowdown_is_what_the_times_make() {
        let ratio = STATED[1].1 / STATED[0].1;
        assert!((ratio - MAIN[1].source.unwrap()).abs() < 0.005, "{ratio}");
    }

    #[test]
    fn series_are_summed_and_runs_are_not() {
        let row = |what: &str, mib: u64, value: f64| {
            let case = format!("{what}, {mib} MiB, records of 1024 KiB, kept, iozone");
            serde_json::json!({
                "section": "files", "system": "disk swap", "case": case, "unit": "s",
                "value": value, "runs": [value],
            })
        };
        let table = serde_json::json!({ "rows": [
            row("elapsed", 256, 10.0), row("elapsed", 256, 14.0), row("elapsed", 512, 30.0),
            row("maximum resident set", 256, 5.0), row("maximum resident set", 512, 4.0),
        ]});
        let table: Table = serde_json::from_value(table).unwrap();
        let sums = sums(&table, &table.systems(FILES));
        assert_eq!(sums[0], ("elapsed, s".into(), vec![Some(42.0)]));
        assert_eq!(sums[1].1, [Some(5.0)]);
    }
}

//! ramzswap: repeated scans of more memory than fits.

use super::{Given, Measured, Source, figure};
use crate::report::Target::{AtLeast, AtMost, None as No};
use crate::summary::found::Table;
use crate::summary::general::{
    Wanted, conditions, figures, other_ratios, ratios, shortfall, wanted,
};
use crate::summary::model::{Bar, Bars, Cell, Chart, Charts, Figure, Grid, Item};

/// The document, and ztier's figures.
pub const SOURCE: Source = Source {
    id: "swap",
    title: "Compressed swap",
    part: "scan",
    cited: "compcache, ramzswap: “Tests on Linux VM with RAM: 512MB, vCPU: 1. We use simple scan \
            benchmark - it does scans of anonymous mapped memory, both cyclic and use once.” \
            (Linux 2.6.29, VirtualBox, a disk of 7200 RPM; ./scan 480 10, five times)",
    main: &[Measured::of("scan", &MAIN), Measured::of("scan-vm", &INSIDE)],
    texts: &[("spill_bytes_vs_zswap", "bytes spilled ÷ those that zswap wrote")],
    items,
    figures: source_figures,
};

const PART: &str = "001 ramzswap";

const MAIN: [Wanted; 15] = [
    wanted("vs_disk_swap", "time on disk swap ÷ ours", No, Some(1.5)),
    wanted("vs_kernel_zram", "time on kernel zram, lz4 ÷ ours", AtLeast(0.95), None),
    wanted(
        "vs_kernel_zram_at_its_best",
        "time on kernel zram, lz4, at the better vm.page-cluster for it ÷ ours",
        No,
        None,
    ),
    wanted(
        "memory_vs_kernel_zram",
        "memory of load and pages, with all processes ÷ that with kernel zram, lz4",
        AtMost(1.08),
        None,
    ),
    wanted("vs_zswap", "time on zswap ÷ ours", No, None),
    wanted("vs_modelled_disk", "a pass on a modelled disk of 7200 rpm ÷ ours", AtLeast(10.0), None),
    wanted(
        "swap_in_p99_vs_median",
        "reads, in the daemon: time that 99 of 100 take at most ÷ the median",
        AtMost(3.0),
        None,
    ),
    wanted("spill_vs_disk_swap", "time on disk swap ÷ ours, half spilled", No, None),
    wanted(
        "spill_vs_modelled_disk",
        "a pass on the modelled disk ÷ ours, half spilled",
        AtLeast(3.0),
        None,
    ),
    wanted("vs_modelled_disk_emmc_5_1", "a pass on a modelled eMMC 5.1 ÷ ours", No, None),
    wanted(
        "spill_vs_modelled_disk_emmc_5_1",
        "a pass on the modelled eMMC ÷ ours, half spilled to one",
        AtLeast(3.0),
        None,
    ),
    wanted("vs_modelled_disk_sd_a1", "a pass on a modelled SD card, class A1 ÷ ours", No, None),
    wanted(
        "spill_vs_modelled_disk_sd_a1",
        "a pass on the modelled SD card ÷ ours, half spilled to one",
        AtLeast(3.0),
        None,
    ),
    wanted(
        "spill_bytes_vs_uncompressed",
        "bytes spilled ÷ the same pages as they are",
        AtMost(0.45),
        None,
    ),
    wanted("spill_vs_zswap", "half spilled ÷ zswap, times", AtMost(1.0), None),
];
/// The same in a virtual machine, by ublk.
const INSIDE: [Wanted; 4] = [
    wanted("vs_disk_swap", "time on disk swap ÷ ours", No, None),
    wanted("vs_kernel_zram", "time on kernel zram, lz4 ÷ ours", AtLeast(1.0), None),
    wanted(
        "memory_vs_kernel_zram",
        "memory of load and pages, with all processes ÷ that with kernel zram, lz4",
        AtMost(1.08),
        None,
    ),
    wanted(
        "swap_in_p99_vs_median",
        "reads, in the daemon: time that 99 of 100 take at most ÷ the median",
        AtMost(3.0),
        None,
    ),
];
/// Real, user and system time of each run, in seconds.
const DISK: [[f64; 3]; 5] = [
    [84.260, 9.019, 12.075],
    [220.464, 4.726, 36.359],
    [208.918, 4.400, 36.537],
    [192.444, 4.935, 38.034],
    [204.138, 5.268, 37.390],
];
const RAMZSWAP: [[f64; 3]; 5] = [
    [43.674, 14.830, 9.478],
    [142.095, 16.832, 32.918],
    [137.664, 16.645, 32.999],
    [139.759, 17.020, 31.122],
    [133.606, 16.365, 33.111],
];
/// Means without the first runs, as the source states them.
const STATED: [(&str, f64); 2] = [("disk swap", 206.0), ("ramzswap", 137.0)];
/// Columns: name in the table, and heading.
const COLUMNS: [(&str, &str); 11] = [
    ("elapsed, first run", "first, s"),
    ("elapsed", "elapsed, s"),
    ("user time of the load", "user, s"),
    ("system time of the load", "system, s"),
    ("CPU use of the load", "CPU, %"),
    ("CPU time of the serving process", "serving, s"),
    ("waiting for pages", "waiting, s"),
    ("swap in use, least", "swap least, MiB"),
    ("swap in use, most", "swap most, MiB"),
    ("memory of compressed pages, most", "compressed, MiB"),
    ("written to a disk", "to disk, MiB"),
];

fn items(given: Given<'_>) -> Vec<Item> {
    let bars = STATED.iter().map(|(name, value)| Bar {
        name: format!("source, {name}"),
        value: *value,
        note: "mean of runs 2 to 5".into(),
        source: true,
    });
    let title = "elapsed, the source’s 480 MB ten times".into();
    let chart = Chart::Bars(Bars { title, unit: "s".into(), bars: bars.collect() });
    let caption = "The source".to_owned();
    let charts = Item::Charts(Charts { caption, legend: Vec::new(), charts: vec![chart] });
    let mut items =
        vec![Item::More("The source’s own runs".into(), vec![Item::Grid(theirs()), charts])];
    items.extend(elapsed(given));
    let table = given.tables.get("scan");
    items.push(Item::Grid(ratios("Ours beside the rivals", table, &MAIN)));
    if let Some(table) = table {
        items.extend(all(table));
        items.extend(other_ratios(table, &MAIN));
        items.extend(conditions(table));
    }
    items.push(Item::Heading("In a virtual machine with one CPU and 512 MiB, by ublk".into()));
    items.extend(shortfall(given.run, "scan-vm"));
    if let Some(table) = given.tables.get("scan-vm") {
        items.push(Item::Grid(ratios("Ours beside the rivals there", Some(table), &INSIDE)));
        items.extend(all(table));
        items.extend(other_ratios(table, &INSIDE));
        items.extend(conditions(table));
    }
    items
}

/// Elapsed time of each section, by system.
fn elapsed(given: Given<'_>) -> Option<Item> {
    let mut charts = Vec::new();
    for (part, place) in [("scan", ""), ("scan-vm", ", in a virtual machine")] {
        let Some(table) = given.tables.get(part) else { continue };
        for section in table.sections() {
            let Some(load) = load(table, section) else { continue };
            let case = format!("{}{load}", COLUMNS[1].0);
            let bar = |system: &str| {
                let value = table.value(section, system, &case)?;
                Some(Bar { name: system.to_owned(), value, ..Bar::default() })
            };
            let bars: Vec<Bar> = table.systems(section).into_iter().filter_map(bar).collect();
            let title = format!("{section}{load}{place}");
            charts.push(Chart::Bars(Bars { title, unit: "s".into(), bars }));
        }
    }
    let caption = "Elapsed time".to_owned();
    (!charts.is_empty()).then_some(Item::Charts(Charts { caption, legend: Vec::new(), charts }))
}

/// What follows the name of each figure of a section: its load.
fn load(table: &Table, section: &str) -> Option<String> {
    let any = table.figures(section).next()?;
    Some(any.case.strip_prefix(COLUMNS[0].0).unwrap_or_default().to_owned())
}

/// The source's runs.
fn theirs() -> Grid {
    let head = ["run", "disk: real", "user", "system", "ramzswap: real", "user", "system"];
    let mut grid = Grid::new("The source’s runs of ./scan 480 10, in seconds", &head);
    for (n, (disk, ramzswap)) in DISK.iter().zip(&RAMZSWAP).enumerate() {
        let cells = disk.iter().chain(ramzswap).map(|&value| Cell::Number(value));
        let run = Cell::text((n + 1).to_string());
        grid.rows.push(std::iter::once(run).chain(cells).collect());
    }
    let mean = |n: usize| [Cell::Number(STATED[n].1), Cell::None, Cell::None];
    let first = Cell::text("mean of 2 to 5, as stated");
    grid.rows.push(std::iter::once(first).chain(mean(0)).chain(mean(1)).collect());
    grid
}

/// A table in the source's terms and charts of each section.
fn all(table: &Table) -> Vec<Item> {
    let mut items = Vec::new();
    for section in table.sections() {
        let Some(load) = load(table, section) else { continue };
        let heads: Vec<&str> = std::iter::once("system").chain(COLUMNS.map(|(_, h)| h)).collect();
        let caption = format!("{section}{load}; {}", counted(table, section, &load));
        let mut grid = Grid::new(caption, &heads);
        for system in table.systems(section) {
            let value = |(what, _): (&str, &str)| {
                Cell::maybe(table.value(section, system, &format!("{what}{load}")))
            };
            grid.rows.push(std::iter::once(Cell::text(system)).chain(COLUMNS.map(value)).collect());
        }
        items.push(Item::Grid(grid));
        items.extend(figures(table, section, section));
    }
    items
}

/// The runs that a section's figures count: the first one only if it is the only one.
fn counted(table: &Table, section: &str, load: &str) -> &'static str {
    let runs = |system: &str, what: &str| {
        let case = format!("{what}{load}");
        let mut of = table.figures(section).filter(|row| row.system == system && row.case == case);
        of.next().map(|row| row.runs.clone())
    };
    let is_first = |system: &&str| {
        let elapsed = runs(system, "elapsed");
        elapsed.is_some() && elapsed == runs(system, COLUMNS[0].0)
    };
    let systems = table.systems(section);
    match systems.iter().filter(|system| is_first(system)).count() {
        0 => "medians without the first run",
        first if first == systems.len() => "of one run, the first",
        _ => "medians without the first run, where there was another",
    }
}

fn source_figures() -> Vec<Figure> {
    let mut all = Vec::new();
    for (system, runs) in [("disk swap", DISK), ("ramzswap", RAMZSWAP)] {
        for (n, run) in runs.iter().enumerate() {
            for (what, value) in ["real", "user", "system"].iter().zip(run) {
                all.push(figure(PART, system, &format!("{what}, run {}", n + 1), *value, "s"));
            }
        }
    }
    for (system, mean) in STATED {
        all.push(figure(PART, system, "real, mean of runs 2 to 5", mean, "s"));
    }
    all
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn it_is_said_where_the_first_run_is_all_there_is() {
        let row = |system: &str, case: &str, runs: &[f64]| {
            let (case, value) = (format!("{case}, 96 MiB"), runs[0]);
            serde_json::json!({
                "section": "scan", "system": system, "case": case, "value": value, "runs": runs,
            })
        };
        let said = |rows: &[serde_json::Value]| {
            let table = serde_json::from_value(serde_json::json!({ "rows": rows })).unwrap();
            counted(&table, "scan", ", 96 MiB")
        };
        let mut rows = vec![row("a", "elapsed, first run", &[8.5]), row("a", "elapsed", &[8.5])];
        assert_eq!(said(&rows), "of one run, the first");
        rows.push(row("b", "elapsed, first run", &[8.5]));
        rows.push(row("b", "elapsed", &[7.5, 8.5]));
        assert!(said(&rows).ends_with("where there was another"));
        assert_eq!(said(&rows[2..]), "medians without the first run");
    }

    #[test]
    fn means_of_the_source_are_those_that_it_states() {
        for (runs, (_, stated)) in [DISK, RAMZSWAP].iter().zip(STATED) {
            let mean = runs[1..].iter().map(|run| run[0]).sum::<f64>() / 4.0;
            // 206.5 and 138.3: the source truncates, and is off by one in the second.
            assert!((mean - stated).abs() < 1.5, "{mean}");
        }
        assert!((STATED[0].1 / STATED[1].1 - MAIN[0].source.unwrap_or_default()).abs() < 0.01);
    }
}

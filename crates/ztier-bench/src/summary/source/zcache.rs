//! zcache: the nine IOzone tests on a file as large as the memory, with and without a read cache.

use super::{Given, Many, Measured, Source, iozone};
use crate::report::Target::AtLeast;
use crate::report::{Line, Lines};
use crate::summary::found::Table;
use crate::summary::general::{Wanted, conditions, figures, other_ratios, shortfall, wanted};
use crate::summary::model::{Cell, Chart, Charts, Figure, Grid, Item};
use crate::summary::series::{Speeds, charts, cpu, gather};
use crate::workload::iozone::TESTS;

/// The document, and ztier's figures.
pub const SOURCE: Source = Source {
    id: "zcache",
    title: "Read cache below a file system",
    part: "zcache",
    cited: "compcache, zcache: “Test to measure effects of zcache on I/O performance using IOzone \
            benchmark” (Linux 2.6.35-rc5, AMD Phenom 9850, 1 GB of memory, pools of 10 %; iozone \
            -a -M -B -s 1G -y 4k -+u)",
    main: &[
        Measured::of("zcache", &MAIN),
        Measured::of("cache", &[]),
        Measured { part: "policy", wanted: &[], many: Some(POLICIES) },
    ],
    texts: &TEXTS,
    items,
    figures: source_figures,
};

const PART: &str = "000 zcache";
const NINE: &str = "nine, iozone";
const BARE: &str = "without ztier";
const CACHE: &str = "with ztier";
const LOG: &str = "with ztier and a log";
const EXCLUSIVE: &str = "with ztier, exclusive";
/// What the names of the systems of the sweep begin with.
const LIMIT: &str = "limit of ";

/// With ztier ÷ without, means over sizes of records.
const MAIN: [Wanted; 10] = [
    wanted("write", "write, with ÷ without", AtLeast(1.02), Some(1.02)),
    wanted("rewrite", "rewrite, with ÷ without", AtLeast(2.52), Some(2.52)),
    wanted("read", "read, with ÷ without", AtLeast(2.41), Some(2.41)),
    wanted("reread", "reread, with ÷ without", AtLeast(2.42), Some(2.42)),
    wanted("random_read", "random read, with ÷ without", AtLeast(3.06), Some(3.06)),
    wanted("random_write", "random write, with ÷ without", AtLeast(1.84), Some(1.84)),
    wanted("backward_read", "backward read, with ÷ without", AtLeast(2.82), Some(2.82)),
    wanted("record_rewrite", "record rewrite, with ÷ without", AtLeast(1.4), Some(1.4)),
    wanted("stride_read", "stride read, with ÷ without", AtLeast(3.47), Some(3.47)),
    wanted("random_write_with_log", "random write, with a log ÷ without", AtLeast(10.0), None),
];
const TEXTS: [(&str, &str); 3] = [
    ("miss_cpu_us", "a miss: µs of a processor, more than the drive alone takes"),
    ("miss_elapsed_vs_bare", "a miss, time ÷ that of the disk (a model of 7200 rpm) alone"),
    ("default_vs_best_least", "hits ÷ those of the best policy: the least of all traces"),
];
/// One ratio for each trace.
const POLICIES: Many = Many { what: "hits ÷ those of the best policy", end: "_vs_best" };
/// Means as the source states them, in KB a second.
const STATED: [(f64, f64); 9] = [
    (83_644.0, 85_031.0),
    (33_051.0, 83_320.0),
    (74_315.0, 179_252.0),
    (74_555.0, 180_196.0),
    (52_544.0, 160_645.0),
    (21_525.0, 39_693.0),
    (101_463.0, 285_731.0),
    (48_773.0, 68_307.0),
    (64_052.0, 222_025.0),
];

fn items(given: Given<'_>) -> Vec<Item> {
    let table = given.tables.get("zcache");
    let found = table.map_or(Vec::new(), |table| gather(table, NINE));
    let (without, with) = theirs();
    let files = sizes(&found);
    let caption =
        format!("Throughput by the size of records, IOzone’s pattern; the source on 1 GiB{files}");
    let mut items = vec![Item::Grid(averages(table)), lines(&caption, [&without, &with], &found)];
    if let Some(table) = table {
        items.push(Item::Grid(cpu(&found.iter().collect::<Vec<_>>())));
        items.extend(other_data(table));
        items.extend(sweep(table));
        items.extend(figures(table, "files", "Files read through the page cache again"));
        items.push(verbatim(&without, &with, &found));
        items.extend(other_ratios(table, &MAIN));
        items.extend(conditions(table));
    }
    items.push(Item::Heading("What a hit and a miss cost".into()));
    items.extend(shortfall(given.run, "cache"));
    if let Some(table) = given.tables.get("cache") {
        let sections = table.sections().into_iter();
        items.extend(sections.flat_map(|section| figures(table, section, section)));
        items.extend(other_ratios(table, &[]));
        items.extend(conditions(table));
    }
    items.push(Item::Heading("Which copies are kept".into()));
    items.extend(shortfall(given.run, "policy"));
    if let Some(table) = given.tables.get("policy") {
        items.extend(table.sections().into_iter().filter_map(|section| policies(table, section)));
        items.extend(other_ratios(table, &[]));
    }
    items
}

/// File sizes of this run, to follow those of the source.
fn sizes(found: &[Speeds]) -> String {
    let mut all: Vec<u64> = found.iter().map(|speeds| speeds.file_mib).collect();
    all.sort_unstable();
    all.dedup();
    let all: Vec<String> = all.iter().map(u64::to_string).collect();
    if all.is_empty() { String::new() } else { format!(", here on {} MiB", all.join(" and ")) }
}

/// The tests with less compressible data.
fn other_data(table: &Table) -> Vec<Item> {
    let mut items = Vec::new();
    for section in table.sections() {
        let Some(data) = section.strip_prefix("nine, ") else { continue };
        let speeds = gather(table, section);
        if section != NINE && !speeds.is_empty() {
            let title = format!("Throughput by the size of records, data {data}{}", sizes(&speeds));
            items.push(lines(&title, [], &speeds));
        }
    }
    items
}

fn verbatim(without: &Speeds, with: &Speeds, found: &[Speeds]) -> Item {
    let ours = |speeds: &Speeds| {
        let title = format!("{}, file of {} MiB, {}", speeds.system, speeds.file_mib, speeds.about);
        Item::Verbatim(title, speeds.verbatim())
    };
    let mut all = vec![
        Item::Verbatim("The source, without zcache".into(), without.verbatim()),
        Item::Verbatim("The source, with zcache".into(), with.verbatim()),
    ];
    all.extend(found.iter().map(ours));
    Item::More("All of it as IOzone prints it, KiB/s".into(), all)
}

/// A chart for each trace: hits over the size of the cache, a line for each policy.
fn policies(table: &Table, section: &str) -> Option<Item> {
    let systems = table.systems(section);
    let mut traces: Vec<(&str, Vec<&str>)> = Vec::new();
    for row in table.figures(section).filter(|row| row.unit == "%") {
        let Some((trace, size)) = row.case.rsplit_once(", ") else { continue };
        match traces.iter_mut().find(|(other, _)| *other == trace) {
            Some((_, sizes)) if sizes.contains(&size) => {}
            Some((_, sizes)) => sizes.push(size),
            None => traces.push((trace, vec![size])),
        }
    }
    let chart = |(trace, sizes): (&str, Vec<&str>)| {
        let hits = |system: &&str| {
            let at = |size: &&str| table.value(section, system, &format!("{trace}, {size}"));
            sizes.iter().map(at).collect()
        };
        Chart::Lines(Lines {
            title: trace.to_owned(),
            unit: "hits in %".into(),
            across: "size of the cache, part of the blocks".into(),
            places: sizes.iter().map(|&size| size.to_owned()).collect(),
            lines: systems.iter().map(hits).collect(),
        })
    };
    let charts: Vec<Chart> = traces.into_iter().map(chart).collect();
    let legend = systems.iter().map(|&name| Line::new(name)).collect();
    let caption = format!("Hits by the size of the cache, a line a policy: {section}");
    let charts =
        (!charts.is_empty()).then_some(Charts { caption: caption.clone(), legend, charts });
    charts.map(|charts| Item::More(caption, vec![Item::Charts(charts)]))
}

fn theirs() -> (Speeds, Speeds) {
    let of = |name: &str, table| Speeds::of_source(name, 1024, table);
    (of("source, without zcache", WITHOUT), of("source, with zcache", WITH))
}

/// The source's comparison, with ztier and a log beside it.
fn averages(table: Option<&Table>) -> Grid {
    let found = table.map_or(Vec::new(), |table| gather(table, NINE));
    let mut grid = Grid::new(
        format!(
            "Averages over sizes of records, KiB/s; ratios are with ÷ without; the source on 1 \
             GiB{}",
            sizes(&found)
        ),
        &[
            "test",
            "source without",
            "source with",
            "source ratio",
            "here without",
            "here with",
            "ratio",
            "target",
            "verdict",
            "with a log",
            "ratio",
        ],
    );
    let average =
        |system: &str, test| found.iter().find(|speeds| speeds.system == system)?.average(test);
    for (test, name) in TESTS.iter().enumerate() {
        let (without, with) = STATED[test];
        let word = name.replace(' ', "_");
        let ratio = |name: &str| table.and_then(|table| table.ratios.get(name).copied());
        let one = &MAIN[test];
        let [ours, target, verdict] = one.judged(table).cells();
        grid.rows.push(vec![
            Cell::text(*name),
            Cell::Number(without),
            Cell::Number(with),
            Cell::maybe(one.source),
            Cell::maybe(average(BARE, test)),
            Cell::maybe(average(CACHE, test)),
            ours,
            target,
            verdict,
            Cell::maybe(average(LOG, test)),
            Cell::maybe(ratio(&format!("{word}_with_log"))),
        ]);
    }
    grid
}

/// A chart for each test.
fn lines<const N: usize>(caption: &str, sources: [&Speeds; N], found: &[Speeds]) -> Item {
    let all: Vec<&Speeds> = sources.into_iter().chain(found).collect();
    let (legend, charts) = charts(&all);
    Item::Charts(Charts { caption: caption.into(), legend, charts })
}

/// The work that the source left open: other limits of a pool.
fn sweep(table: &Table) -> Vec<Item> {
    let all = table.systems("sweep");
    let limits: Vec<&str> = all.iter().copied().filter(|name| name.starts_with(LIMIT)).collect();
    if limits.is_empty() {
        return Vec::new();
    }
    let mut grid =
        Grid::new("How many times as fast as without, by the limit; data 2:1", &["test"]);
    grid.head.extend(all.iter().map(|&name| name.to_owned()));
    let mut charts = Vec::new();
    for test in TESTS {
        let value = |name: &str| table.value("sweep", name, test);
        let cells = all.iter().map(|name| Cell::maybe(value(name)));
        grid.rows.push(std::iter::once(Cell::text(test)).chain(cells).collect());
        let one = limits.iter().map(|_| Some(1.0)).collect();
        let inclusive = limits.iter().map(|limit| value(limit)).collect();
        let exclusive = limits.iter().map(|limit| value(&format!("exclusive, {limit}"))).collect();
        charts.push(Chart::Lines(Lines {
            title: test.to_owned(),
            unit: "times as fast".into(),
            across: "limit of the pool, part of the memory".into(),
            places: limits.iter().map(|limit| limit.trim_start_matches(LIMIT).into()).collect(),
            lines: vec![inclusive, one, exclusive],
        }));
    }
    let legend = [CACHE, BARE, EXCLUSIVE].map(Line::new).into();
    let caption = "Gain by the limit of the pool".to_owned();
    vec![
        Item::Heading("Different limits, which the source had left to do".into()),
        Item::Charts(Charts { caption, legend, charts }),
        Item::Grid(grid),
    ]
}

fn source_figures() -> Vec<Figure> {
    let mut all = iozone(PART, "without zcache", WITHOUT);
    all.extend(iozone(PART, "with zcache", WITH));
    all
}

/// Without zcache: file and record size in KiB, then the nine tests in KiB a second.
const WITHOUT: &str = "\
1048576     4 81747 35641 73644 73894   2770   805  40026 29575   7645
1048576     8 83705 32300 73820 74538   5038  1574  40421 28497   8405
1048576    16 84598 32695 74155 74055   7264  2665  67044 29447  16401
1048576    32 83284 33775 74330 74011  11335  4968  89200 38146  16536
1048576    64 84624 31663 74443 74886  20401  7904  87859 52953  15252
1048576   128 84119 32181 73625 74184  29406 13388 108887 45291  40198
1048576   256 85066 32399 74223 74669  49404 19665 100221 61621  64905
1048576   512 84766 32393 74304 74493  67391 27464 100663 56411  79136
1048576  1024 84106 31842 74621 74230  77566 33689 104536 53872 101085
1048576  2048 83457 34314 74327 73969  91260 37762 132794 59247 116495
1048576  4096 82397 32363 74860 75167 111522 43053 141978 56101 106958
1048576  8192 83243 33081 74453 75310 103258 41675 154065 63781 133428
1048576 16384 82272 35016 75297 75820 106463 45219 151327 59112 126241";
/// With zcache, in the same columns.
const WITH: &str = "\
1048576     4 81631 82966 170791 182281  70232  3767 315319 45913 236752
1048576     8 83628 84875 178837 180704 122548  3974 258612 34192  58622
1048576    16 86304 83955 182102 182047 169258  8889 349967 39811 211067
1048576    32 85563 84217 179635 179207 215550 13790 366341 42330 286812
1048576    64 85659 84699 180742 178811 219179 16523 366110 66318 296575
1048576   128 85799 84037 181291 178420 189617 29399 372189 80316 223222
1048576   256 86227 83899 180636 177483 174331 38991 319907 82751 288582
1048576   512 85894 80082 178110 179869 167583 51452 282554 83002 194232
1048576  1024 85372 80135 182361 181431 130953 59845 194552 82461 210398
1048576  2048 85931 85151 179580 180170 124217 65891 220392 80128 188798
1048576  4096 83560 77782 178131 180214 172986 77165 199148 86217 175917
1048576  8192 85394 85720 178419 180836 165107 75002 261217 81979 259541
1048576 16384 84441 85645 179645 181085 166825 71333 208200 82581 255815";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn averages_of_the_source_are_those_that_it_states() {
        let (without, with) = theirs();
        for (test, stated) in STATED.iter().enumerate() {
            for (speeds, stated) in [(&without, stated.0), (&with, stated.1)] {
                let average = speeds.average(test).unwrap_or_default();
                assert!((average - stated).abs() <= 1.0, "{}: {average}", TESTS[test]);
            }
            // The source's ratios are truncated or rounded to two digits.
            let ratio = stated.1 / stated.0;
            assert!((ratio - MAIN[test].source.unwrap_or_default()).abs() < 0.011, "{ratio}");
        }
        assert_eq!(source_figures().len(), 2 * 13 * 9);
    }
}

//! dm-lc: random writes on a disk, on an SSD, and on a log in front of the disk.

use super::{Given, Measured, Source, figure};
use crate::report::Target::{AtLeast, AtMost, None as No};
use crate::summary::found::Table;
use crate::summary::general::{
    Wanted, conditions, figures, other_ratios, ratios, shortfall, wanted,
};
use crate::summary::model::{Bar, Bars, Cell, Chart, Charts, Figure, Grid, Item};

/// The document, and ztier's figures.
pub const SOURCE: Source = Source {
    id: "log",
    title: "Durable log before a slow drive",
    part: "log",
    cited: "dm-lc, “Performance”, “(1) Measuring throughput by fio tool” (Linux 3.9.8, Core \
            i7-3770, Samsung 840 Pro, a Seagate disk; fio bs=4k size=16GB iodepth=64 rw=randwrite)",
    main: &[
        Measured::of("log", &MAIN),
        Measured::of("log-vm", &INSIDE),
        Measured::of("models", &[]),
    ],
    texts: &TEXTS,
    items,
    figures: source_figures,
};

const PART: &str = "004 dm-lc";
const ROWS: &str = "rows";

const MAIN: [Wanted; 10] = [
    wanted(
        "randwrite_vs_ssd_seq",
        "row D, segments of 1 MiB ÷ row C, the SSD in order",
        AtLeast(0.97),
        Some(0.97),
    ),
    wanted(
        "randwrite_32k_vs_ssd_seq",
        "row E, segments of 32 KiB ÷ row C",
        AtLeast(0.9),
        Some(0.69),
    ),
    wanted("randwrite_compressible_vs_ssd_seq", "row D, data of 2:1 ÷ row C", AtLeast(1.5), None),
    wanted("maxssd_vs_memcpy_crc", "row F, an SSD that costs nothing ÷ memory", AtLeast(0.5), None),
    wanted("sync_write_vs_raw_16", "16 writers who flush ÷ the drive alone", AtLeast(2.0), None),
    wanted(
        "full_log_vs_sorted_backing",
        "a full log ÷ sorted writes of the backing store",
        AtLeast(0.9),
        None,
    ),
    wanted(
        "write_amplification_with_checkpoints",
        "bytes written ÷ asked, with checkpoints (a quick run has none)",
        AtMost(1.05),
        None,
    ),
    wanted(
        "write_amplification_synced",
        "bytes written ÷ asked, a flush each, before a checkpoint",
        AtMost(2.1),
        None,
    ),
    wanted(
        "recovery_s_per_100gib",
        "opening 100 GiB, seconds, without the drive’s (a quick run has small logs only)",
        AtMost(1.0),
        None,
    ),
    wanted("sqlite_vs_backing", "SQLite commits ÷ the backing store", No, None),
];
/// The same in a virtual machine, by ublk.
const INSIDE: [Wanted; 4] = [
    wanted("randwrite_vs_dm_writecache", "4 KiB random writes ÷ dm-writecache", AtLeast(1.2), None),
    wanted("randwrite_vs_bcache", "4 KiB random writes ÷ bcache", AtLeast(1.5), None),
    wanted("fsync_vs_dm_writecache", "8 writers who flush ÷ dm-writecache", AtLeast(1.0), None),
    wanted("fsync_vs_bcache", "8 writers who flush ÷ bcache", AtLeast(1.0), None),
];
const TEXTS: [(&str, &str); 14] = [
    ("write_amplification", "bytes written ÷ asked, before a checkpoint"),
    (
        "write_amplification_synced_with_checkpoints",
        "bytes written ÷ asked, a flush each, with checkpoints",
    ),
    (
        "recovery_s_per_100gib_synced",
        "opening 100 GiB of writes that were flushed each, seconds, without the drive’s (a quick \
         run has small logs only)",
    ),
    ("row_a_virtual_time_vs_source", "the model of the disk ÷ the source’s row A"),
    ("row_b_virtual_time_vs_source", "the model of the SSD, at random ÷ the source’s row B"),
    ("row_c_virtual_time_vs_source", "the model of the SSD, in order ÷ the source’s row C"),
    (
        "emmc_random_read_virtual_time_vs_published",
        "the model of the eMMC, random reads ÷ published",
    ),
    (
        "emmc_random_write_virtual_time_vs_published",
        "the model of the eMMC, random writes ÷ published",
    ),
    ("emmc_read_virtual_time_vs_published", "the model of the eMMC, reads in order ÷ published"),
    ("emmc_write_virtual_time_vs_published", "the model of the eMMC, writes in order ÷ published"),
    (
        "sd_random_read_virtual_time_vs_published",
        "the model of the SD card, random reads ÷ its class",
    ),
    (
        "sd_random_write_virtual_time_vs_published",
        "the model of the SD card, random writes ÷ its class",
    ),
    ("sd_read_virtual_time_vs_published", "the model of the SD card, reads in order ÷ published"),
    ("sd_write_virtual_time_vs_published", "the model of the SD card, writes in order ÷ its class"),
];
/// The source's table, in 10^6 bytes a second.
const STATED: [(&str, &str, f64); 6] = [
    ("A", "HDD(rand)", 0.883),
    ("B", "SSD(rand)", 202.0),
    ("C", "SSD(seq)", 266.0),
    ("D", "HDD+SSD(rand) seg=1M", 259.0),
    ("E", "HDD+SSD(rand) seg=32K", 184.0),
    ("F", "HDD+MaxSSD(rand)", 1579.0),
];

fn items(given: Given<'_>) -> Vec<Item> {
    let table = given.tables.get("log");
    let mut items = vec![Item::Grid(rows(table)), Item::Charts(charts(table))];
    items.push(Item::Grid(ratios("Ours beside the drives", table, &MAIN)));
    if let Some(table) = table {
        for section in table.sections().into_iter().filter(|section| *section != ROWS) {
            items.extend(figures(table, section, title(section)));
        }
        items.extend(other_ratios(table, &MAIN));
        items.extend(conditions(table));
    }
    items.push(Item::Heading(
        "In a virtual machine, by ublk, beside dm-writecache and bcache".into(),
    ));
    items.extend(shortfall(given.run, "log-vm"));
    if let Some(table) = given.tables.get("log-vm") {
        items.push(Item::Grid(ratios("Ours ÷ the kernel’s caches", Some(table), &INSIDE)));
        for section in table.sections() {
            items.extend(figures(table, section, title(section)));
        }
        items.extend(other_ratios(table, &INSIDE));
        items.extend(conditions(table));
    }
    if let Some(table) = given.tables.get("models") {
        items.push(Item::Heading("The modelled drives".into()));
        for section in table.sections() {
            items.extend(figures(table, section, &format!("Models: {section}")));
        }
        items.extend(other_ratios(table, &[]));
    }
    items
}

fn title(section: &str) -> &str {
    match section {
        "synced" => "A flush after each 1, 8 and 64 writes",
        "large" => "Large writes that shrink",
        "full" => "A full log",
        "recovery" => "Opening a log",
        "window" => "Work, by what the log holds",
        "export" => "Through the exports",
        "kernel" => "Beside the kernel’s caches",
        "everyday" => "Everyday work",
        other => other,
    }
}

/// The letter of a row, `D` of `(D) HDD+SSD seg=1M 1:1, source 259`, and the rest of its text.
fn letter(case: &str) -> Option<(&str, &str)> {
    let (letter, rest) = case.strip_prefix('(')?.split_once(") ")?;
    Some((letter, rest.split_once(", source").map_or(rest, |(rest, _)| rest)))
}

/// The source's rows, each with all of ztier's.
fn rows(table: Option<&Table>) -> Grid {
    let head = ["row", "source, MB/s", "here, MB/s", "here ÷ source", "here by", "spread"];
    let mut grid = Grid::new("The source’s table and ours; drives of ours are models", &head);
    for (of, name, source) in STATED {
        let row = Cell::text(format!("({of}) {name}"));
        let of_here = table.into_iter().flat_map(|table| table.figures(ROWS));
        let here: Vec<_> = of_here
            .filter_map(|row| Some((row, letter(&row.case)?)))
            .filter(|(_, (letter, _))| *letter == of)
            .collect();
        if here.is_empty() {
            let none = [Cell::None, Cell::None, Cell::None, Cell::None];
            let first = [row.clone(), Cell::Number(source)];
            grid.rows.push(first.into_iter().chain(none).collect());
        }
        for (n, (found, (_, about))) in here.into_iter().enumerate() {
            let value = found.value.unwrap_or_default();
            grid.rows.push(vec![
                if n == 0 { row.clone() } else { Cell::text("") },
                if n == 0 { Cell::Number(source) } else { Cell::text("") },
                Cell::Number(value),
                Cell::Number(value / source),
                Cell::text(format!("{}; {about}", found.system)),
                Cell::text(found.note()),
            ]);
        }
    }
    let memory = table.into_iter().flat_map(|table| table.figures(ROWS));
    for row in memory.filter(|row| letter(&row.case).is_none()) {
        grid.rows.push(vec![
            Cell::text("what (F) is compared with"),
            Cell::None,
            Cell::maybe(row.value),
            Cell::None,
            Cell::text(format!("{}; {}", row.system, row.case)),
            Cell::text(row.note()),
        ]);
    }
    grid
}

/// A chart for each row: the source has one chart for all, in which (A) is invisible.
fn charts(table: Option<&Table>) -> Charts {
    let one = |(of, name, source): (&str, &str, f64)| {
        let theirs = Bar { name: "source".into(), value: source, source: true, ..Bar::default() };
        let here = table.into_iter().flat_map(|table| table.figures(ROWS));
        let ours = here.filter_map(|row| {
            let (letter, about) = letter(&row.case)?;
            let name = match about.rsplit_once(' ') {
                Some((_, ratio)) if ratio.ends_with(":1") => {
                    format!("{}, data {ratio}", row.system)
                }
                _ => row.system.clone(),
            };
            (letter == of).then(|| Bar {
                name,
                value: row.value.unwrap_or_default(),
                note: row.note(),
                source: false,
            })
        });
        let bars = std::iter::once(theirs).chain(ours).collect();
        Chart::Bars(Bars { title: format!("({of}) {name}"), unit: "MB/s".into(), bars })
    };
    let caption = "The source’s rows, each on a scale of its own".to_owned();
    Charts { caption, legend: Vec::new(), charts: STATED.map(one).into() }
}

fn source_figures() -> Vec<Figure> {
    let one = |(letter, name, value): &(&str, &str, f64)| {
        figure(PART, "dm-lc", &format!("({letter}) {name}"), *value, "MB/s")
    };
    STATED.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_found_by_their_letters() {
        let case = "(D) HDD+SSD seg=1M 2:1, source 259";
        assert_eq!(letter(case), Some(("D", "HDD+SSD seg=1M 2:1")));
        assert_eq!(letter("4 KiB copied and summed, 2 threads"), None);
        // The source's statements about its own ratios.
        let value = |of: &str| STATED.iter().find(|(l, ..)| *l == of).map_or(0.0, |row| row.2);
        for (letter, wanted) in [("D", &MAIN[0]), ("E", &MAIN[1])] {
            let ratio = value(letter) / value("C");
            assert!((ratio - wanted.source.unwrap_or_default()).abs() < 0.01, "{ratio}");
        }
    }
}

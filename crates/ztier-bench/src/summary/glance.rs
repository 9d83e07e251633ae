//! A report at a glance: where ztier is ahead of what users have otherwise, level with it, behind.
//!
//! Invariants: a factor above 1 says that ztier is better, whatever its ratio divides; only
//! measured ratios are there; one that is 0 or not finite is left out.

use super::found::Tables;
use super::model::{Factor, Factors, Item, number};
use std::fmt::Write as _;

/// A ratio that readers look for first.
struct Headline {
    /// The part of the run.
    part: &'static str,
    /// Its name there.
    ratio: &'static str,
    /// The job.
    what: &'static str,
    /// What does it otherwise.
    beside: &'static str,
    /// Whether the ratio is of time or memory, ztier's ÷ the other's.
    less_is_better: bool,
}

const fn more(
    part: &'static str,
    ratio: &'static str,
    what: &'static str,
    beside: &'static str,
) -> Headline {
    Headline { part, ratio, what, beside, less_is_better: false }
}

const fn less(
    part: &'static str,
    ratio: &'static str,
    what: &'static str,
    beside: &'static str,
) -> Headline {
    Headline { part, ratio, what, beside, less_is_better: true }
}

const HEADLINES: [Headline; 19] = [
    more("zram-vm", "device_randread_vs_kernel_zram", "RAM disk, random reads", "kernel zram"),
    more("zram-vm", "device_randwrite_vs_kernel_zram", "RAM disk, random writes", "kernel zram"),
    more("zram", "data_per_mem_aged", "RAM disk, data in the same memory", "kernel zram"),
    more("scan", "vs_kernel_zram", "swap", "kernel zram"),
    more("scan", "vs_disk_swap", "swap", "swap on this machine’s drive"),
    more("scan", "vs_modelled_disk", "swap", "a modelled disk of 7200 rpm"),
    less("scan", "spill_vs_zswap", "swap, half of it spilled", "zswap"),
    less("scan", "memory_vs_kernel_zram", "memory of swap", "kernel zram"),
    more("zcache", "random_read", "cache, random reads, data of 100:1", "no cache"),
    more("zcache", "random_read_2to1", "cache, random reads, data of 2:1", "no cache"),
    more("zcache", "read_2to1", "cache, reads in order, data of 2:1", "no cache"),
    more("zcache", "random_write_with_log", "log and cache, random writes", "the disk alone"),
    more("log", "untar_vs_backing", "log, unpacking a tree", "the disk alone"),
    more("log", "sqlite_vs_backing", "log, SQLite commits", "the disk alone"),
    more("log-vm", "randwrite_vs_dm_writecache", "log, random writes", "dm-writecache"),
    more("log-vm", "randwrite_vs_bcache", "log, random writes", "bcache"),
    more("log-vm", "fsync_vs_dm_writecache", "log, writes with a flush each", "dm-writecache"),
    more("log-vm", "fsync_vs_bcache", "log, writes with a flush each", "bcache"),
    less(
        "object",
        "log_flush_time_vs_local_30ms",
        "log before a store, flushes",
        "one before a local file",
    ),
];

/// Where a part with this end of its name was measured.
const INSIDE: (&str, &str) = ("-vm", ", in a virtual machine");

/// From this factor on a difference counts.
const TENTH: f64 = 1.1;

/// Three sentences, and a chart of the same; nothing without figures.
pub fn items(tables: &Tables) -> Vec<Item> {
    let mut factors: Vec<Factor> = HEADLINES.iter().filter_map(|one| one.found(tables)).collect();
    if factors.is_empty() {
        return Vec::new();
    }
    factors.sort_by(|a, b| b.factor.total_cmp(&a.factor));
    let ahead = |f: &&Factor| f.factor >= TENTH;
    let behind = |f: &&Factor| f.factor <= 1.0 / TENTH;
    let of = |begin: &str, which: &dyn Fn(&&Factor) -> bool| {
        sentence(begin, &factors.iter().filter(which).collect::<Vec<_>>())
    };
    let mut items = vec![
        Item::Text(of("Ahead", &ahead)),
        Item::Text(of("Level, within a tenth", &|f| !ahead(f) && !behind(f))),
        Item::Text(of("Behind", &behind)),
    ];
    items.push(Item::Factors(Factors { caption: "ztier beside the others".into(), factors }));
    items
}

impl Headline {
    fn found(&self, tables: &Tables) -> Option<Factor> {
        let ratio = *tables.get(self.part)?.ratios.get(self.ratio)?;
        let factor = if self.less_is_better { 1.0 / ratio } else { ratio };
        let place = if self.part.ends_with(INSIDE.0) { INSIDE.1 } else { "" };
        let (what, beside) = (self.what.to_owned(), format!("{}{place}", self.beside));
        (ratio > 0.0 && factor.is_finite()).then_some(Factor { what, beside, factor })
    }
}

fn sentence(begin: &str, factors: &[&Factor]) -> String {
    let mut text = format!("{begin}: ");
    for (n, one) in factors.iter().enumerate() {
        let comma = if n == 0 { "" } else { "; " };
        let Factor { what, beside, factor } = one;
        let _ = write!(text, "{comma}{what} ({} × {beside})", number(*factor));
    }
    if factors.is_empty() {
        text += "nothing";
    }
    text + "."
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::suite::Folder;

    const SAMPLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/sample");

    #[test]
    fn a_figure_is_said_once_and_on_the_right_side() {
        let folder = Folder::of(SAMPLE.into());
        let run = folder.load().unwrap();
        let tables = Tables::load(&folder, &run);
        let items = items(&tables);
        let [Item::Text(ahead), Item::Text(level), Item::Text(behind), Item::Factors(chart)] =
            &items[..]
        else {
            panic!("{items:?}")
        };
        assert!(ahead.contains("random reads, data of 100:1 (14.3 × no cache)"), "{ahead}");
        // 1.874 times the time of zswap.
        assert!(behind.contains("half of it spilled (0.534 × zswap)"), "{behind}");
        assert!(level.contains("dm-writecache"), "{level}");
        let said: usize =
            [ahead, level, behind].iter().map(|text| text.matches(" × ").count()).sum();
        assert_eq!(chart.factors.len(), said);
        assert!(chart.factors.is_sorted_by(|a, b| a.factor >= b.factor));
    }

    #[test]
    fn each_headline_is_a_ratio_that_tables_have() {
        let folder = Folder::of(SAMPLE.into());
        let run = folder.load().unwrap();
        let tables = Tables::load(&folder, &run);
        // The sample is older than these.
        let new = ["memory_vs_kernel_zram"];
        for one in HEADLINES.iter().filter(|one| !new.contains(&one.ratio)) {
            assert!(one.found(&tables).is_some(), "{} of {}", one.ratio, one.part);
        }
    }
}

//! zram: IOzone's tests on ext4 while the page cache is dropped, and further measurements of a
//! compressed RAM disk.

use super::{Given, Measured, Source, figure, iozone};
use crate::report::Target::{AtLeast, AtMost, None as No};
use crate::report::geomean;
use crate::summary::found::Table;
use crate::summary::general::{
    Wanted, conditions, figures, other_ratios, ratios, shortfall, wanted,
};
use crate::summary::model::{Cell, Charts, Figure, Grid, Item};
use crate::summary::series::{Speeds, charts, cpu, gather};
use crate::workload::iozone::TESTS;

/// The document, and ztier's figures.
pub const SOURCE: Source = Source {
    id: "zram",
    title: "Compressed RAM disk",
    part: "zram",
    cited: "compcache, zram: “IOzone is a filesystem benchmark tool. It was used to generate \
            variety of filesystem (ext4) workload over zram devices.” (Linux 2.6.34, Core 2 Duo \
            T9600, 4 GB of memory, 3 GB devices; iozone -a -B -n 1G -g 2G -G -R -M -+u, the page \
            cache dropped every second)",
    main: &[Measured::of("zram", &MAIN), Measured::of("zram-vm", &INSIDE)],
    texts: &TEXTS,
    items,
    figures: source_figures,
};

const PART: &str = "002 zram";
const SECTION: &str = "iozone";

const MAIN: [Wanted; 14] = [
    wanted(
        "engine_randread_vs_kernel_zram",
        "4 KiB random reads in process ÷ kernel zram",
        AtLeast(2.0),
        None,
    ),
    wanted(
        "engine_randwrite_vs_kernel_zram",
        "4 KiB random writes in process ÷ kernel zram",
        AtLeast(1.2),
        None,
    ),
    wanted(
        "engine_randwrite_aged_vs_kernel_zram",
        "4 KiB random writes after three rounds of overwriting, at the limit ÷ kernel zram",
        AtLeast(1.0),
        None,
    ),
    wanted(
        "data_per_mem_fresh",
        "data in the same memory ÷ kernel zram’s: fresh",
        AtLeast(1.0),
        None,
    ),
    wanted(
        "data_per_mem_aged",
        "data in the same memory ÷ kernel zram’s: overwritten three times (zram not compacted)",
        AtLeast(1.05),
        None,
    ),
    wanted(
        "data_per_mem_after_trim",
        "data in the same memory ÷ kernel zram’s: 40 % discarded (zram not compacted)",
        AtLeast(1.4),
        None,
    ),
    wanted(
        "data_per_mem_after_trim_compacted",
        "data in the same memory ÷ kernel zram’s: 40 % discarded, zram compacted by hand",
        No,
        None,
    ),
    wanted(
        "data_per_mem_cold",
        "data in the same memory ÷ kernel zram’s: files, ours cold and recompressed with zstd, \
         zram’s lz4",
        AtLeast(1.25),
        None,
    ),
    wanted("mem_over_payload_quiet", "memory ÷ compressed payload, quiet", AtMost(1.1), None),
    wanted(
        "mem_over_payload_under_load",
        "memory ÷ compressed payload, while overwriting",
        AtMost(1.25),
        None,
    ),
    wanted("export_efficiency", "device ÷ plain memory behind the same export", AtLeast(0.8), None),
    wanted("iozone_geomean_vs_kernel_zram", IOZONE, No, None),
    wanted(
        "iozone_geomean_vs_ramdisk",
        "IOzone, geometric mean of all tests at every size of records ÷ a RAM disk",
        No,
        None,
    ),
    wanted("startup_s", "seconds of `ztier up` until the device reads", AtMost(1.0), None),
];

/// The same in a virtual machine, by ublk.
const INSIDE: [Wanted; 5] = [
    wanted(
        "device_randread_vs_kernel_zram",
        "4 KiB random reads ÷ kernel zram",
        AtLeast(0.5),
        None,
    ),
    wanted(
        "device_randwrite_vs_kernel_zram",
        "4 KiB random writes ÷ kernel zram",
        AtLeast(0.5),
        None,
    ),
    wanted(
        "device_seq_read_vs_kernel_zram",
        "1 MiB reads in order ÷ kernel zram",
        AtLeast(1.0),
        None,
    ),
    wanted(
        "device_seq_write_vs_kernel_zram",
        "1 MiB writes in order ÷ kernel zram",
        AtLeast(1.0),
        None,
    ),
    wanted("iozone_geomean_vs_kernel_zram", IOZONE, AtLeast(0.8), None),
];

const IOZONE: &str = "IOzone, geometric mean of all tests at every size of records ÷ kernel zram";

const TEXTS: [(&str, &str); 8] = [
    ("engine_read_scaling", "4 KiB random reads in process, two threads ÷ one"),
    ("engine_write_scaling", "4 KiB random writes in process, two threads ÷ one"),
    ("metadata_bytes_per_block", "bytes of tables for each block"),
    ("mem_over_payload_quiet_after_trim", "memory ÷ compressed payload, quiet, 40 % discarded"),
    (
        "data_per_mem_cold_vs_recompressed",
        "data in the same memory ÷ kernel zram’s: files, cold, both recompressed with zstd",
    ),
    (
        "export_efficiency_fio_like",
        "device ÷ plain memory behind the same export, data as fio makes it",
    ),
    (
        "export_efficiency_nbd",
        "device by NBD ÷ plain memory behind the same export, data as fio makes it",
    ),
    ("restart_stall_s", "seconds that a request waits at most while the daemon is replaced"),
];

fn items(given: Given<'_>) -> Vec<Item> {
    let table = given.tables.get("zram");
    let mut items = vec![Item::Grid(ratios("Ours beside the rivals", table, &MAIN))];
    let sources = theirs();
    let found = table.map_or(Vec::new(), |table| gather(table, SECTION));
    // The source's charts are for one file size; ztier's are for the first data and the first
    // access.
    let first = |speeds: &&Speeds| found.first().is_some_and(|f| f.about == speeds.about);
    let files = found.iter().filter(first).map(|speeds| speeds.file_mib);
    let file = files.min().unwrap_or(0);
    let ours: Vec<&Speeds> =
        found.iter().filter(first).filter(|speeds| speeds.file_mib == file).collect();
    let here = ours.first().map_or(String::new(), |speeds| {
        format!(", here on {} MiB ({})", speeds.file_mib, speeds.about)
    });
    items.extend(nine(&sources, &ours, &here));
    if let Some(table) = table {
        items.extend(others(&found, &ours));
        items.push(verbatim(&sources, &found));
        items.extend(sections(table, &[SECTION]));
        items.extend(other_ratios(table, &MAIN));
        items.extend(conditions(table));
    }
    items.extend(inside(given));
    items
}

/// Means and charts of the nine tests, and notes on ztier's if there are some.
fn nine(sources: &[Speeds; 4], ours: &[&Speeds], here: &str) -> Vec<Item> {
    let mut items = vec![Item::Heading("IOzone’s nine tests".into())];
    items.push(Item::Grid(averages(sources, ours, here)));
    let mut text = String::from(
        "“Actual numbers do not matter since the effect of pagecache make R/W appear faster than \
         reality”, says the source.",
    );
    if !ours.is_empty() {
        text += " Here each reading test begins with its file out of the page cache. The last row \
                 is of these averages, in which large records weigh most; the ratio \
                 `iozone_geomean_vs_…` is of each test at each size of records, with all files \
                 and ways of access of the first data.";
    }
    items.push(Item::Text(text));
    let all: Vec<&Speeds> = sources.iter().take(2).chain(ours.iter().copied()).collect();
    let (legend, charts) = charts(&all);
    let caption = format!("Throughput by the size of records; the source on files of 1 GiB{here}");
    items.push(Item::Charts(Charts { caption, legend, charts }));
    if !ours.is_empty() {
        items.push(Item::Grid(cpu(ours)));
    }
    items
}

/// The sections of a table, without those in `but`.
pub fn sections(table: &Table, but: &[&str]) -> Vec<Item> {
    let wanted = table.sections().into_iter().filter(|section| !but.contains(section));
    wanted.flat_map(|section| figures(table, section, &title(section))).collect()
}

fn title(section: &str) -> String {
    let text = match section {
        "engine" => "4 KiB at random, in process",
        "memory" => "Memory for the same data",
        "sequential" => "Whole devices, 1 MiB at a time",
        "devices" => "Block devices past the page cache",
        "export" => "Behind the same export: ours and plain memory",
        "startup" => "Until the device can be read",
        "restart" => "While the daemon is replaced",
        "iozone" => "IOzone’s nine tests",
        other => other,
    };
    text.to_owned()
}

/// In a virtual machine, compared with its kernel's devices.
fn inside(given: Given<'_>) -> Vec<Item> {
    let mut items =
        vec![Item::Heading("In a virtual machine, by ublk, beside what its kernel has".into())];
    items.extend(shortfall(given.run, "zram-vm"));
    let Some(table) = given.tables.get("zram-vm") else { return items };
    items.push(Item::Grid(ratios("Ours ÷ kernel zram there", Some(table), &INSIDE)));
    let found = gather(table, SECTION);
    if !found.is_empty() {
        let (legend, charts) = charts(&found.iter().collect::<Vec<_>>());
        let caption = "Throughput by the size of records, in the virtual machine".to_owned();
        items.push(Item::Charts(Charts { caption, legend, charts }));
    }
    items.extend(sections(table, &[SECTION]));
    items.extend(other_ratios(table, &INSIDE));
    items.extend(conditions(table));
    items
}

/// A RAM disk and zram on files of 1 GiB, and both on files of 2 GiB.
fn theirs() -> [Speeds; 4] {
    [
        Speeds::of_source("source, RAM disk", 1024, RAM_DISK),
        Speeds::of_source("source, zram", 1024, ZRAM),
        Speeds::of_source("source, RAM disk", 2048, RAM_DISK),
        Speeds::of_source("source, zram", 2048, ZRAM),
    ]
}

/// The mean of each test over sizes of records.
fn averages(sources: &[Speeds; 4], ours: &[&Speeds], here: &str) -> Grid {
    let mut head: Vec<String> =
        ["test", "source: RAM disk", "source: zram", "zram ÷ RAM disk"].map(str::to_owned).into();
    head.extend(ours.iter().map(|speeds| speeds.system.clone()));
    let base = ours.first();
    head.extend(ours.iter().skip(1).map(|speeds| format!("ours ÷ {}", speeds.system)));
    let mut rows = Vec::new();
    let mut geo: Vec<Vec<f64>> = vec![Vec::new(); 1 + ours.len().saturating_sub(1)];
    for (test, name) in TESTS.iter().enumerate() {
        let (disk, zram) = (sources[0].average(test), sources[1].average(test));
        let divided = |a: Option<f64>, b: Option<f64>| Some(a? / b?);
        let mut quotients = vec![divided(zram, disk)];
        let own = base.and_then(|speeds| speeds.average(test));
        quotients.extend(ours.iter().skip(1).map(|speeds| divided(own, speeds.average(test))));
        for (all, quotient) in geo.iter_mut().zip(&quotients) {
            all.extend(quotient);
        }
        let mut row = vec![
            Cell::text(*name),
            Cell::maybe(disk),
            Cell::maybe(zram),
            Cell::maybe(quotients[0]),
        ];
        row.extend(ours.iter().map(|speeds| Cell::maybe(speeds.average(test))));
        row.extend(quotients[1..].iter().map(|quotient| Cell::maybe(*quotient)));
        rows.push(row);
    }
    let mut last = vec![Cell::text("geometric mean of these averages"), Cell::None, Cell::None];
    last.push(Cell::maybe(Some(geomean(&geo[0]))));
    last.extend(ours.iter().map(|_| Cell::None));
    last.extend(geo[1..].iter().map(|all| Cell::maybe(Some(geomean(all)))));
    rows.push(last);
    let caption =
        format!("Averages over sizes of records, KiB/s; the source on files of 1 GiB{here}");
    Grid { caption, head, rows }
}

/// Charts for other files, data and ways of access.
fn others(found: &[Speeds], shown: &[&Speeds]) -> Vec<Item> {
    let mut groups: Vec<(String, Vec<&Speeds>)> = Vec::new();
    for speeds in found {
        if shown.iter().any(|other| std::ptr::eq(*other, speeds)) {
            continue;
        }
        let title = format!("IOzone on files of {} MiB, {}", speeds.file_mib, speeds.about);
        match groups.iter_mut().find(|(other, _)| *other == title) {
            Some((_, group)) => group.push(speeds),
            None => groups.push((title, vec![speeds])),
        }
    }
    let more = |(title, group): (String, Vec<&Speeds>)| {
        let (legend, charts) = charts(&group);
        let charts = Item::Charts(Charts { caption: title.clone(), legend, charts });
        Item::More(title, vec![charts])
    };
    groups.into_iter().map(more).collect()
}

fn verbatim(sources: &[Speeds; 4], found: &[Speeds]) -> Item {
    let one = |speeds: &Speeds| {
        let about = if speeds.source { String::new() } else { format!(", {}", speeds.about) };
        let title = format!("{}, file of {} MiB{about}", speeds.system, speeds.file_mib);
        Item::Verbatim(title, speeds.verbatim())
    };
    let all = sources.iter().chain(found).map(one).collect();
    Item::More("All of it as IOzone prints it, KiB/s".into(), all)
}

fn source_figures() -> Vec<Figure> {
    let mut all = iozone(PART, "RAM disk", RAM_DISK);
    all.extend(iozone(PART, "zram", ZRAM));
    for (case, value, unit) in [
        ("NumReads", 4_990_928.0, ""),
        ("NumWrites", 59_131_245.0, ""),
        ("FailedReads", 0.0, ""),
        ("FailedWrites", 0.0, ""),
        ("InvalidIO", 0.0, ""),
        ("OrigDataSize", 2_843_448.0, "kB"),
        ("ComprDataSize", 25_377.0, "kB"),
        ("MemUsedTotal", 29_124.0, "kB"),
    ] {
        all.push(figure(PART, "zram", case, value, unit));
    }
    all
}

/// A RAM disk: file and record size in KiB, then the nine tests in KiB a second.
const RAM_DISK: &str = "\
1048576    64 309500 346052 741827 692543 668591 342610  943661 375120 986910
1048576   128 359506 390935 608138 870010 493423 310893  783716 391109 654727
1048576   256 389008 371681 868290 870373 641083 356326  986793 389621 825965
1048576   512 411349 346160 808808 779252 666401 403118 1093451 409388 886225
1048576  1024 434998 377833 790972 744039 538548 398744 1026594 402078 734151
1048576  2048 397826 340499 728962 698772 657706 394667  647407 397864 935239
1048576  4096 400690 354910 653682 588612 473785 376885  781584 395144 602351
1048576  8192 391729 351347 656444 561333 674144 385264  738427 388412 692058
1048576 16384 380419 383663 488296 627425 639278 381618  769378 385701 464041
2097152    64 290187 343444 656998 708405 557515 289988  701520 313568 742025
2097152   128 341624 347826 752151 743522 419107 233937  725035 366825 548462
2097152   256 381127 365021 711029 718995 533597 289949  743980 354228 526949
2097152   512 398443 362675 778044 755627 614676 334848  744319 374755 731869
2097152  1024 395428 374523 534204 675757 611516 350119  723927 374815 591226
2097152  2048 395592 375151 631266 652976 628337 374699  671840 371318 605499
2097152  4096 379787 357786 486780 599601 595327 328224  624011 353998 527587
2097152  8192 378041 359126 567922 524867 476484 356595  607510 367276 576345
2097152 16384 370599 361646 608814 598262 590169 367291  531728 363478 563297";
/// zram, in the same columns.
const ZRAM: &str = "\
1048576    64 226178 255617  479036  460596 2244167 193102  905992 230000 1111346
1048576   128 274232 230013  578938 2271981  269776 170376 2232842 221372 2251926
1048576   256 311753 251856 2285788 1180270 2244234 183105 2256977 235259 1475296
1048576   512 330645 236067  536017  962596  758183 248576 2255977 258073 2236008
1048576  1024 344364 237175  454852 2255695 1577881 249907 2240691 232577 2255987
1048576  2048 348098 233300 2145572 1237024 2123702 224368 2123672 242684 1066512
1048576  4096 348580 232020 1390494  432517 1394587 225765 1156772 223862  859950
1048576  8192 348501 230655 1247663  374442  575120 247239  804708 244736  659031
1048576 16384 339752 226126  807560  528928  630223 265362  453253 228401  971366
2097152    64 230949 219985 2235560 2304147 2266475 171366 1333621 208522 1285780
2097152   128 280088 220032  934568  745437 1920407 170593  810684 215980  370272
2097152   256 311173 218876  587314  433425  881887 186110 1748379 226138  409723
2097152   512 329355 223234  564243 2342699  364212 214951  936711 237650 1283409
2097152  1024 339664 242885 1102029 2139366 1850092 234779  810483 230460 1114067
2097152  2048 342278 236132  498602  617058  500605 226954 1060779 228319  850868
2097152  4096 344085 223445  417500  550464  386282 221147  440016 233749  410492
2097152  8192 345870 228366  543570  395759  434723 237362  527818 235590  449568
2097152 16384 341133 239329  484319  491404  520720 239360  559416 235280  434267";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_said_of_files_that_were_not_there() {
        let none = nine(&theirs(), &[], "");
        assert!(!format!("{none:?}").to_lowercase().contains("here "), "{none:?}");
        let ours = Speeds::of_source("ours", 1024, ZRAM);
        let some = nine(&theirs(), &[&ours], ", here on 1024 MiB (kept, 2:1)");
        // ztier's results add a table of CPU use.
        assert_eq!((none.len(), some.len()), (4, 5));
    }

    #[test]
    fn both_tables_of_the_source_are_whole() {
        for speeds in theirs() {
            assert_eq!(speeds.records().len(), 9);
            for test in 0..9 {
                assert!(speeds.records().iter().all(|&r| speeds.speed(r, test).is_some()));
            }
        }
        assert_eq!(theirs()[1].speed(64 << 10, 4), Some(2_244_167.0));
        assert_eq!(theirs()[2].speed(16 << 20, 8), Some(563_297.0));
    }
}

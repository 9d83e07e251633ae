//! Statistics in the layouts that people and their scripts know: ramzswap's `/proc` file,
//! `zramconfig --stats`, and the attributes of a zram device.
//!
//! Every name keeps its historic meaning; what has no counterpart here is printed as 0.

use super::Stats;
use std::fmt::Write;

const PAGE: u64 = 4096;

/// The two historic percentages: stored blocks at most half their size, and above three quarters.
fn quality(stats: &Stats) -> (u64, u64) {
    let percent = |part: u64| (100 * part).checked_div(stats.blocks_stored).unwrap_or(0);
    (percent(stats.blocks_good), percent(stats.blocks_poor))
}

/// `/proc/ramzswap`: a tab, then eight columns.
pub fn ramzswap(stats: &Stats) -> String {
    let (good, poor) = quality(stats);
    let mut out = String::new();
    let mut line = |key: &str, value: u64, unit: &str| {
        // Writing to a string can't fail.
        let _ = writeln!(out, "{key}:\t{value:>8}{unit}");
    };
    line("DiskSize", stats.disk_size_bytes >> 10, " kB");
    line("MemLimit", stats.ram_limit_bytes >> 10, " kB");
    line("NumReads", stats.read.requests, "");
    line("NumWrites", stats.write.requests, "");
    line("FailedReads", stats.read.failed, "");
    line("FailedWrites", stats.write.failed, "");
    line("InvalidIO", stats.invalid_io, "");
    line("PagesDiscard", stats.blocks_discarded, "");
    line("ZeroPages", stats.blocks_zero, "");
    line("GoodCompress", good, " %");
    line("NoCompress", poor, " %");
    line("PagesStored", stats.blocks_stored, "");
    line("PagesUsed", stats.mem_used_bytes / PAGE, "");
    line("OrigDataSize", stats.orig_data_bytes >> 10, " kB");
    line("ComprDataSize", stats.compr_data_bytes >> 10, " kB");
    line("MemUsedTotal", stats.mem_used_bytes >> 10, " kB");
    line("BDevNumReads", stats.spill_device_reads, "");
    line("BDevNumWrites", stats.spill_device_writes, "");
    out
}

/// `zramconfig DEVICE --stats`: numbers that end in column 24.
pub fn zramconfig(stats: &Stats) -> String {
    let (good, poor) = quality(stats);
    let mut out = String::new();
    let mut line = |key: &str, value: u64, unit: &str| {
        let width = 24 - key.len();
        // Writing to a string can't fail.
        let _ = writeln!(out, "{key}{value:>width$}{unit}");
    };
    line("DiskSize:", stats.disk_size_bytes >> 10, " kB");
    line("NumReads:", stats.read.requests, "");
    line("NumWrites:", stats.write.requests, "");
    line("FailedReads:", stats.read.failed, "");
    line("FailedWrites:", stats.write.failed, "");
    line("InvalidIO:", stats.invalid_io, "");
    line("NotifyFree:", stats.blocks_discarded, "");
    line("ZeroPages:", stats.blocks_zero, "");
    line("GoodCompress:", good, " %");
    line("NoCompress:", poor, " %");
    line("PagesStored:", stats.blocks_stored, "");
    line("PagesUsed:", stats.mem_used_bytes / PAGE, "");
    line("OrigDataSize:", stats.orig_data_bytes >> 10, " kB");
    line("ComprDataSize:", stats.compr_data_bytes >> 10, " kB");
    line("MemUsedTotal:", stats.mem_used_bytes >> 10, " kB");
    out
}

/// The attributes `mm_stat`, `io_stat` and `bd_stat` of a zram device, one line each. As there, the
/// original size includes same-filled blocks, and `mem_used_total` here is all memory.
pub fn zram(stats: &Stats) -> String {
    let orig = stats.orig_data_bytes + stats.blocks_same * PAGE;
    let mm = [
        orig,
        stats.compr_data_bytes,
        stats.mem_used_bytes,
        stats.ram_limit_bytes,
        stats.mem_used_max_bytes,
        stats.blocks_same,
        stats.blocks_moved,
        stats.blocks_raw,
        stats.blocks_raw_total,
    ];
    let io = [stats.read.failed, stats.write.failed, stats.invalid_io, stats.blocks_discarded];
    let row = |values: &[u64]| {
        values.iter().map(|value| format!("{value:>8}")).collect::<Vec<_>>().join(" ") + "\n"
    };
    let bd =
        [stats.spilled_blocks, stats.spill_read_bytes / PAGE, stats.spill_written_bytes / PAGE];
    row(&mm) + &row(&io) + &row(&bd)
}

#[cfg(test)]
mod tests {
    use super::super::Requests;
    use super::*;

    /// The counters behind the statistics at the end of the zram stress of 2010.
    fn stress() -> Stats {
        Stats {
            disk_size_bytes: 3_145_728 << 10,
            ram_limit_bytes: 75_452 << 10,
            read: Requests { requests: 4_990_928, ..Requests::default() },
            write: Requests { requests: 59_131_245, ..Requests::default() },
            blocks_zero: 12_341,
            blocks_same: 12_400,
            blocks_stored: 710_862,
            blocks_good: 704_000,
            blocks_poor: 5_000,
            blocks_raw: 17,
            blocks_raw_total: 18,
            blocks_moved: 19,
            orig_data_bytes: 2_843_448 << 10,
            compr_data_bytes: 25_377 << 10,
            mem_used_bytes: 29_124 << 10,
            mem_used_max_bytes: 30_000 << 10,
            ..Stats::default()
        }
    }

    #[test]
    fn zramconfig_prints_what_it_printed_in_2010() {
        let golden = "\
DiskSize:        3145728 kB
NumReads:        4990928
NumWrites:      59131245
FailedReads:           0
FailedWrites:          0
InvalidIO:             0
NotifyFree:            0
ZeroPages:         12341
GoodCompress:         99 %
NoCompress:            0 %
PagesStored:      710862
PagesUsed:          7281
OrigDataSize:    2843448 kB
ComprDataSize:     25377 kB
MemUsedTotal:      29124 kB
";
        assert_eq!(zramconfig(&stress()), golden);
    }

    #[test]
    fn ramzswap_prints_what_it_printed_in_2009() {
        let scan = Stats {
            disk_size_bytes: 1_048_576 << 10,
            ram_limit_bytes: 75_452 << 10,
            read: Requests { requests: 4_616_690, ..Requests::default() },
            write: Requests { requests: 4_634_882, ..Requests::default() },
            blocks_discarded: 4_463_021,
            blocks_zero: 218,
            blocks_stored: 45_291,
            blocks_good: 45_291,
            orig_data_bytes: 181_164 << 10,
            compr_data_bytes: 2_785 << 10,
            mem_used_bytes: 3_116 << 10,
            ..Stats::default()
        };
        let golden = "\
DiskSize:\t 1048576 kB
MemLimit:\t   75452 kB
NumReads:\t 4616690
NumWrites:\t 4634882
FailedReads:\t       0
FailedWrites:\t       0
InvalidIO:\t       0
PagesDiscard:\t 4463021
ZeroPages:\t     218
GoodCompress:\t     100 %
NoCompress:\t       0 %
PagesStored:\t   45291
PagesUsed:\t     779
OrigDataSize:\t  181164 kB
ComprDataSize:\t    2785 kB
MemUsedTotal:\t    3116 kB
BDevNumReads:\t       0
BDevNumWrites:\t       0
";
        assert_eq!(ramzswap(&scan), golden);
    }

    #[test]
    fn zram_prints_its_attributes() {
        let golden = "\
2962481152 25986048 29822976 77262848 30720000    12400       19       17       18
       0        0        0        0
       0        0        0
";
        assert_eq!(zram(&stress()), golden);
    }

    #[test]
    fn nothing_stored_divides_by_nothing() {
        let empty = Stats::default();
        assert!(zramconfig(&empty).contains("GoodCompress:          0 %"));
    }
}

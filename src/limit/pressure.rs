//! Parses the kernel's texts about memory, whose lines differ between kernels: a missing value is
//! absent, an unknown line is skipped.

use super::sample::{DiskReads, Shown};
use crate::system::footprint::number;

/// Beginnings of the names of devices above other devices or above files: a read from one is also a
/// read from those below.
const ABOVE: [&str; 6] = ["dm-", "md", "bcache", "drbd", "loop", "zd"];
/// Beginnings of the names of devices in memory.
const IN_MEMORY: [&str; 2] = ["ram", "zram"];

/// Refaults: pages of files that were read again after the kernel had dropped them. Kernels before
/// Linux 5.9 do not tell them from other pages.
pub fn refaults(text: &str) -> Option<u64> {
    let keys = ["total_workingset_refault_file", "workingset_refault_file", "workingset_refault"];
    keys.iter().find_map(|key| number(text, key))
}

/// Pages that the kernel scanned because memory was short.
pub fn scanned(text: &str) -> Option<u64> {
    let kinds = ["pgscan_kswapd", "pgscan_direct"].map(|key| number(text, key));
    match kinds {
        [None, None] => None,
        [a, b] => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
    }
}

/// All reads from disks, by `/proc/diskstats`, and the nanoseconds in which the disks were busy, if
/// all lines have that. Devices in memory do not count. Each read counts once, at the lowest disk,
/// because a volume subtracts its own reads once. The device as which the volume is `shown` counts,
/// whatever is below it, because files are on it, unless it is swap.
pub fn disk_reads(text: &str, shown: Option<Shown>) -> Option<(DiskReads, Option<u64>)> {
    let mut sum: Option<(DiskReads, Option<u64>)> = None;
    let mut disk = "";
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let numbers = (|| Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?)))();
        let (Some(numbers), Some(name)) = (numbers, words.next()) else { continue };
        if is_partition(name, disk) {
            continue;
        }
        disk = name;
        let counts = match shown.filter(|shown| shown.numbers == numbers) {
            Some(shown) => !shown.is_swap,
            None => is_at_bottom(name, text),
        };
        let fields: [Option<u64>; 4] = [(); 4].map(|()| words.next()?.parse().ok());
        let [_, _, Some(sectors), Some(ms)] = fields else { continue };
        if !counts {
            continue;
        }
        let (all, busy) = sum.get_or_insert((DiskReads::default(), Some(0)));
        all.bytes = all.bytes.saturating_add(sectors.saturating_mul(512));
        all.ns = all.ns.saturating_add(ms.saturating_mul(1_000_000));
        // Skips four fields about writes, and the requests in flight.
        let busy_ms = words.nth(5).and_then(|word| word.parse::<u64>().ok());
        *busy = busy.zip(busy_ms).map(|(ns, ms)| ns.saturating_add(ms.saturating_mul(1_000_000)));
    }
    sum
}

/// Whether `name` is that of a partition of `disk`; partitions are listed after their disk.
pub fn is_partition(name: &str, disk: &str) -> bool {
    let ends_in_digit = disk.ends_with(|c: char| c.is_ascii_digit());
    let rest = name.strip_prefix(disk);
    let number = if ends_in_digit { rest.and_then(|rest| rest.strip_prefix('p')) } else { rest };
    number.is_some_and(|text| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Whether a read from this disk is a read from no other listed disk.
pub fn is_at_bottom(name: &str, text: &str) -> bool {
    let is_one_of = |kinds: &[&str]| kinds.iter().any(|kind| name.starts_with(kind));
    !is_one_of(&ABOVE) && !is_one_of(&IN_MEMORY) && !has_paths(name, text)
}

/// Whether the paths to an NVMe disk are listed, too, as `nvme0c1n1` is one to `nvme0n1`. Paths
/// count reads on all kernels, the disk itself only on newer ones.
fn has_paths(name: &str, text: &str) -> bool {
    let Some((disk, space)) = nvme(name) else { return false };
    let names = text.lines().filter_map(|line| line.split_ascii_whitespace().nth(2));
    names
        .filter_map(nvme)
        .any(|(way, other)| other == space && way.split_once('c').is_some_and(|(of, _)| of == disk))
}

/// The two parts of an NVMe disk's name: the disk, and the namespace on it.
fn nvme(name: &str) -> Option<(&str, &str)> {
    name.strip_prefix("nvme")?.split_once('n')
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::system::footprint::{field, stalled_us};
    use proptest::prelude::*;

    const VMSTAT: &str = "nr_free_pages 5407657\nworkingset_nodes 10120\n\
        workingset_refault_anon 7\nworkingset_refault_file 457475\npgscan_kswapd 30\n\
        pgscan_direct 12\npgscan_direct_throttle 99\n";
    const DISKS: &str = "   7       0 loop0 5 0 80 2 0 0 0 0 0 0 0\n \
        254       0 vda 72287 9644 6082378 135613 15837 29851 5761664 22470 0 25644 159387 5479\n \
        254       1 vda1 1 2 8 4\n 253       0 zram0 9 9 9999 9999 0\n garbage\n 1 2\n";

    #[test]
    fn what_kernels_say() {
        assert_eq!(refaults(VMSTAT), Some(457_475));
        assert_eq!(refaults("workingset_refault 5\n"), Some(5), "Linux 4.19");
        let group = "workingset_refault_file 0\ntotal_workingset_refault_file 477017\n";
        assert_eq!(refaults(group), Some(477_017), "of version 1, with those below");
        assert_eq!(scanned(VMSTAT), Some(42));
        assert_eq!(scanned("pgscan_direct 3\n"), Some(3));
        assert_eq!(scanned("pgscan_direct_throttle 3\n"), None);
    }

    #[test]
    fn what_disks_read() {
        let shown = |numbers, is_swap| disk_reads(DISKS, Some(Shown { numbers, is_swap }));
        let found = DiskReads { bytes: 6_082_378 * 512, ns: 135_613_000_000 };
        let disk = Some((found, Some(25_644_000_000)));
        assert_eq!(disk_reads(DISKS, None), disk);
        // The volume has files on it, whatever is below it; or swapped-out pages.
        let both = DiskReads { bytes: found.bytes + 80 * 512, ns: found.ns + 2_000_000 };
        assert_eq!(shown((7, 0), false), Some((both, Some(25_644_000_000))));
        assert_eq!((shown((7, 0), true), shown((254, 0), true)), (disk, None));
        let old = format!("{DISKS} 8 0 sda 1 2 8 4\n");
        assert_eq!(disk_reads(&old, None).map(|(_, busy)| busy), Some(None), "sda does not tell");
        assert_eq!(disk_reads("", None), None);
    }

    /// Names of devices in the order of the list, and those of them that count.
    #[test]
    fn each_read_counts_once() {
        for (listed, counted) in [
            ("sda sda1 sda2 sdb sdaa", "sda sdb sdaa"),
            ("nvme0n1 nvme0n1p1 nvme0n1p2 dm-0 dm-1", "nvme0n1"),
            ("sda sda1 sdb sdb1 md127 md127p1 md_d0", "sda sdb"),
            ("sda sdb dm-0 dm-1 dm-2", "sda sdb"),
            ("loop0 loop0p1 loop1 sda", "sda"),
            ("sda bcache0 drbd0 zd0 zd16 zd16p1 zram0 ram1", "sda"),
            ("nvme0c0n1 nvme0c1n1 nvme0n1 nvme0n1p1", "nvme0c0n1 nvme0c1n1"),
            ("nvme0n1 nvme0n2 nvme10n1 nvme0c3n1", "nvme0n2 nvme10n1 nvme0c3n1"),
            ("mmcblk0 mmcblk0p1 mmcblk0boot0 sr0", "mmcblk0 mmcblk0boot0 sr0"),
            ("ublkb1 ublkb1p1 ublkb10 nbd0 nbd0p1 rbd0", "ublkb1 ublkb10 nbd0 rbd0"),
            ("xvda1 xvda2", "xvda1 xvda2"),
        ] {
            let bit = |name| 1u64 << listed.split(' ').take_while(|other| *other != name).count();
            let line = |name| format!("8 0 {name} 1 0 {} 1 0 0 0 0 0 1 1\n", bit(name));
            let text: String = listed.split(' ').map(line).collect();
            let sectors: u64 = counted.split(' ').map(bit).sum();
            let found = disk_reads(&text, None).map(|(reads, _)| reads.bytes / 512);
            assert_eq!(found, Some(sectors), "{listed}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z_ 0-9:=.\n]{0,200}") {
            let _ = (field(&text, "a"), refaults(&text), scanned(&text), stalled_us(&text));
            let _ = (number(&text, "a"), disk_reads(&text, None));
        }
    }
}

//! The kernel's texts about memory, of which every kernel has other lines: what is not there is
//! absent, what is not understood is passed over.

use super::sample::DiskReads;

/// The number behind a word at the beginning of a line, as in `vmstat` and `memory.stat`.
pub fn number(text: &str, key: &str) -> Option<u64> {
    text.lines().find_map(|line| {
        let mut words = line.split_ascii_whitespace();
        (words.next()? == key).then(|| words.next()?.parse().ok())?
    })
}

/// The bytes behind a word of `meminfo`, which has a colon and counts in KiB.
pub fn meminfo(text: &str, key: &str) -> Option<u64> {
    let kib = text.lines().find_map(|line| {
        let rest = line.strip_prefix(key)?.strip_prefix(':')?;
        rest.split_ascii_whitespace().next()?.parse::<u64>().ok()
    })?;
    kib.checked_mul(1024)
}

/// Pages of files that were read again after they had to go. Before Linux 5.9 nobody tells them
/// from other pages.
pub fn refaults(text: &str) -> Option<u64> {
    let keys = ["total_workingset_refault_file", "workingset_refault_file", "workingset_refault"];
    keys.iter().find_map(|key| number(text, key))
}

/// Pages that the machine looked at because memory was short.
pub fn scanned(text: &str) -> Option<u64> {
    let kinds = ["pgscan_kswapd", "pgscan_direct"].map(|key| number(text, key));
    match kinds {
        [None, None] => None,
        [a, b] => Some(a.unwrap_or(0).saturating_add(b.unwrap_or(0))),
    }
}

/// Microseconds in which somebody waited, of a text such as `/proc/pressure/memory`.
pub fn stalled_us(text: &str) -> Option<u64> {
    let line = text.lines().find_map(|line| line.strip_prefix("some "))?;
    line.split_ascii_whitespace().find_map(|word| word.strip_prefix("total=")?.parse().ok())
}

/// All that was read of disks, by `/proc/diskstats`, and the nanoseconds in which they had anything
/// to do, where all lines say that; not of what is in memory, and not of the device with numbers
/// `except`. Partitions count again, and so do disks below others: who divides one number by the
/// other does not mind.
pub fn disk_reads(text: &str, except: Option<(u32, u32)>) -> Option<(DiskReads, Option<u64>)> {
    let mut sum: Option<(DiskReads, Option<u64>)> = None;
    for line in text.lines() {
        let mut words = line.split_ascii_whitespace();
        let numbers = (|| Some((words.next()?.parse().ok()?, words.next()?.parse().ok()?)))();
        let (Some(numbers), Some(name)) = (numbers, words.next()) else { continue };
        let in_memory = name.starts_with("zram") || name.starts_with("ram");
        let fields: [Option<u64>; 4] = [(); 4].map(|()| words.next()?.parse().ok());
        let [_, _, Some(sectors), Some(ms)] = fields else { continue };
        if in_memory || except == Some(numbers) {
            continue;
        }
        let (all, busy) = sum.get_or_insert((DiskReads::default(), Some(0)));
        all.bytes = all.bytes.saturating_add(sectors.saturating_mul(512));
        all.ns = all.ns.saturating_add(ms.saturating_mul(1_000_000));
        // After four words of writes, and what is under way.
        let busy_ms = words.nth(5).and_then(|word| word.parse::<u64>().ok());
        *busy = busy.zip(busy_ms).map(|(ns, ms)| ns.saturating_add(ms.saturating_mul(1_000_000)));
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const VMSTAT: &str = "nr_free_pages 5407657\nworkingset_nodes 10120\n\
        workingset_refault_anon 7\nworkingset_refault_file 457475\npgscan_kswapd 30\n\
        pgscan_direct 12\npgscan_direct_throttle 99\n";
    const DISKS: &str = "   7       0 loop0 5 0 80 2 0 0 0 0 0 0 0\n \
        254       0 vda 72287 9644 6082378 135613 15837 29851 5761664 22470 0 25644 159387 5479\n \
        254       1 vda1 1 2 8 4\n 253       0 zram0 9 9 9999 9999 0\n garbage\n 1 2\n";

    #[test]
    fn what_kernels_say() {
        let meminfo_text = "MemTotal:       24684092 kB\nMemAvailable:   23879924 kB\n";
        assert_eq!(meminfo(meminfo_text, "MemTotal"), Some(24_684_092 * 1024));
        assert_eq!(meminfo(meminfo_text, "MemAvailable"), Some(23_879_924 * 1024));
        assert_eq!(meminfo("MemAvailableX: 1 kB", "MemAvailable"), None);
        assert_eq!(refaults(VMSTAT), Some(457_475));
        assert_eq!(refaults("workingset_refault 5\n"), Some(5), "Linux 4.19");
        let group = "workingset_refault_file 0\ntotal_workingset_refault_file 477017\n";
        assert_eq!(refaults(group), Some(477_017), "of version 1, with those below");
        assert_eq!(scanned(VMSTAT), Some(42));
        assert_eq!(scanned("pgscan_direct 3\n"), Some(3));
        assert_eq!(scanned("pgscan_direct_throttle 3\n"), None);
        let psi = "some avg10=0.23 avg60=0.29 avg300=0.66 total=16659249\nfull avg10=0.00 total=9";
        assert_eq!(stalled_us(psi), Some(16_659_249));
    }

    #[test]
    fn what_disks_read() {
        let all = |except| disk_reads(DISKS, except);
        let bytes = (80 + 6_082_378 + 8) * 512;
        let found = DiskReads { bytes, ns: (2 + 135_613 + 4) * 1_000_000 };
        assert_eq!(all(None), Some((found, None)), "a partition has no more in old kernels");
        let but_loop = DiskReads { bytes: bytes - 80 * 512, ns: found.ns - 2_000_000 };
        assert_eq!(all(Some((7, 0))), Some((but_loop, None)));
        let new: String = DISKS.lines().take(2).map(|line| format!("{line}\n")).collect();
        let busy = disk_reads(&new, None).and_then(|(_, busy)| busy);
        assert_eq!(busy, Some(25_644_000_000));
        assert_eq!(disk_reads("", None), None);
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z_ 0-9:=.\n]{0,200}") {
            let _ = (meminfo(&text, "a"), refaults(&text), scanned(&text), stalled_us(&text));
            let _ = (number(&text, "a"), disk_reads(&text, None));
        }
    }
}

//! The plan of a run of everything: tables, their arguments, and their approximate times.
//!
//! Invariant: the quick plan should take 15 minutes at most on an idle machine with two processors.
//! Its restrictions are in the arguments, which the report prints.

/// Names of all parts, in the order in which they run.
pub const NAMES: [&str; 12] = [
    "models",
    "policy",
    "cache",
    "zram",
    "scan",
    "zcache",
    "worst-case",
    "log",
    "object",
    "zram-vm",
    "log-vm",
    "scan-vm",
];

/// A table with its arguments.
#[derive(Clone, Copy, Debug)]
pub struct Entry {
    /// Name, also in the names of its files.
    pub name: &'static str,
    /// Arguments of this program, separated by blanks.
    pub args: &'static str,
    /// Seconds that the table takes on an idle machine with two processors: measured for the quick
    /// plan, except in virtual machines; those and the full plan are estimated from parts.
    pub typical_s: f64,
}

const fn entry(name: &'static str, args: &'static str, typical_s: f64) -> Entry {
    Entry { name, args, typical_s }
}

const QUICK: [Entry; 12] = [
    entry("models", "models", 3.0),
    entry("policy", "policy --quick", 4.0),
    entry("cache", "cache --quick", 20.0),
    entry("zram", "zram --quick --keep-going", 88.0),
    entry("scan", "scan --quick", 40.0),
    entry("zcache", "zcache --quick", 113.0),
    entry("worst-case", "worst-case --quick --only disk,fixed,auto --files 192", 200.0),
    entry("log", "log --quick --keep-going", 110.0),
    entry("object", "object --quick --latency 30 --only flush,upload,takeover,memory", 80.0),
    entry("zram-vm", "zram --vm --quick --keep-going --only devices,iozone", 132.0),
    entry("log-vm", "log --vm --quick --keep-going", 46.0),
    entry("scan-vm", "scan --vm --quick --only ztier,zram-lz4,disk --runs 1", 51.0),
];

const FULL: [Entry; 12] = [
    entry("models", "models", 2.0),
    entry("policy", "policy", 16.0),
    entry("cache", "cache", 105.0),
    entry("zram", "zram --keep-going --mode mmap", 1500.0),
    entry("scan", "scan --page-cluster 5,0", 1500.0),
    entry("zcache", "zcache", 3100.0),
    entry("worst-case", "worst-case", 2230.0),
    entry("log", "log --keep-going", 1800.0),
    entry("object", "object", 3800.0),
    entry("zram-vm", "zram --vm --keep-going --mode mmap", 820.0),
    entry("log-vm", "log --vm --keep-going", 280.0),
    entry("scan-vm", "scan --vm --quick --runs 3 --zswap-percent 3", 200.0),
];

/// All parts, in their order.
pub fn entries(quick: bool) -> &'static [Entry] {
    if quick { &QUICK } else { &FULL }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_plans_have_each_part_once_and_the_quick_one_fits_its_time() {
        for quick in [true, false] {
            let names: Vec<&str> = entries(quick).iter().map(|entry| entry.name).collect();
            assert_eq!(names, NAMES);
        }
        let all: f64 = QUICK.iter().map(|entry| entry.typical_s).sum();
        assert!(all <= 900.0, "{all}");
    }
}

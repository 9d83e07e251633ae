//! The amount of measurement.

use super::System;
use clap::ValueEnum;

/// Options of the command line.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Whether to end within a few minutes.
    pub quick: bool,
    /// All of the source's record sizes.
    pub full: bool,
    /// Memory of the machine, in MiB.
    pub memory: u32,
    /// `--files`, in MiB.
    pub files: Vec<u64>,
    /// `--runs`.
    pub runs: Option<u32>,
    /// `--only`.
    pub systems: Vec<System>,
}

/// The measurements of a table.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Memory of the machine, in MiB.
    pub memory: u64,
    /// Sizes of files, in MiB.
    pub files: Vec<u64>,
    /// Sizes of records, in bytes.
    pub records: Vec<usize>,
    /// Memory of the program that only occupies memory, in MiB.
    pub heap: u64,
    /// Memory of the scan, in MiB, and its passes.
    pub scan_mib: u64,
    /// See `scan_mib`.
    pub passes: u32,
    /// Rounds.
    pub runs: u32,
    /// Systems that take turns.
    pub systems: Vec<System>,
}

impl Choice {
    /// The plan for these options.
    pub fn plan(&self) -> Plan {
        let memory = u64::from(self.memory);
        let files = match &self.files[..] {
            [] if self.quick => vec![memory * 4 / 3],
            [] => vec![memory / 2, memory, memory * 2],
            given => given.to_vec(),
        };
        let records = if self.full { (0..9).map(|n| 65536 << n).collect() } else { vec![1 << 20] };
        let systems = match &self.systems[..] {
            [] => System::value_variants().to_vec(),
            given => given.to_vec(),
        };
        Plan {
            memory,
            files,
            records,
            heap: memory / 16,
            // In this small memory a quarter, less the memory of an empty volume, does not hold
            // half.
            scan_mib: if self.quick { memory / 3 } else { memory / 2 },
            passes: if self.quick { 1 } else { 3 },
            runs: self.runs.unwrap_or(if self.quick || self.full { 1 } else { 3 }),
            systems,
        }
    }
}

impl Plan {
    /// Memory limit of a scan's load, in MiB.
    pub fn scan_limit(&self) -> u64 {
        self.scan_mib * 5 / 8
    }

    /// A description of the scan.
    pub fn scan_about(&self) -> String {
        let (mib, passes, limit) = (self.scan_mib, self.passes, self.scan_limit());
        format!("{mib} MiB, {passes} passes, in {limit} MiB")
    }

    /// The notes for the report.
    pub fn about(&self) -> Vec<(&'static str, String)> {
        let files: Vec<String> = self.files.iter().map(|mib| format!("{mib} MiB")).collect();
        vec![
            (
                "tests",
                "as iozone -a -B -i 0 -i 1 -+A 4: mapped, nothing synced, MADV_WILLNEED; blocks \
                 are told by eight bytes each as they are read"
                    .to_owned(),
            ),
            ("files", format!("{}, in {} MiB of memory", files.join(", "), self.memory)),
            (
                "heap",
                format!(
                    "beside it, a program with {} MiB that it never looks at; the load's own data, \
                     two records, is locked in memory",
                    self.heap
                ),
            ),
            ("scan", format!("{}, in a control group of its own", self.scan_about())),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_the_sources() {
        let full = Choice { full: true, memory: 512, ..Choice::default() }.plan();
        assert_eq!(full.files, [256, 512, 1024]);
        assert_eq!((full.records[0], full.records[8]), (64 << 10, 16 << 20));
        assert_eq!((full.heap, full.scan_mib, full.scan_limit(), full.runs), (32, 256, 160, 1));
        let quick = Choice { quick: true, memory: 192, ..Choice::default() }.plan();
        assert_eq!((&quick.files[..], quick.runs, quick.systems.len()), (&[256][..], 1, 4));
    }
}

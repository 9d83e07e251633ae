//! The amount of measurement.

use super::disk::Slow;
use super::system::{Shape, System};
use crate::data::Kind;
use crate::workload::iozone::STRIDES;
use crate::workload::log::REAL_DIR;
use clap::ValueEnum;
use std::path::PathBuf;

/// The source's limit of a pool, in percent of the memory, and its number of pools.
const PERCENT: u32 = 10;
const VOLUMES: usize = 3;
/// Limits of the sweep, in percent.
const LIMITS: [u32; 4] = [5, 10, 20, 40];

/// The parts of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Section {
    /// The source's table: one file, three pools; its data and some that shrinks to half; and a
    /// log.
    Nine,
    /// Two volumes at work at the same time.
    Volumes,
    /// On a file of this machine's disk, held to a bandwidth.
    Disk,
    /// Limits of 5 to 40 % of the memory, with data that shrinks to half.
    Sweep,
    /// fio at random, a tree of real files, a database.
    Files,
}

impl Section {
    /// Name on the command line.
    pub fn word(self) -> &'static str {
        match self {
            Self::Nine => "nine",
            Self::Volumes => "volumes",
            Self::Disk => "disk",
            Self::Sweep => "sweep",
            Self::Files => "files",
        }
    }
}

/// Options of the command line.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// Whether to end within a minute.
    pub quick: bool,
    /// Whether to use all record sizes with all data, and the source's memory in all sections.
    pub full: bool,
    /// `--memory`, in MiB.
    pub memory: Option<u64>,
    /// `--records`, in bytes.
    pub records: Vec<usize>,
    /// `--limits`, in percent.
    pub limits: Vec<u32>,
    /// `--runs`.
    pub runs: Option<u32>,
    /// `--bandwidth`, in bytes a second.
    pub bandwidth: u64,
    /// `--only`.
    pub sections: Vec<Section>,
    /// `--systems`.
    pub systems: Vec<System>,
    /// `--data`.
    pub data: Vec<Kind>,
    /// `--svg`.
    pub svg: Option<PathBuf>,
}

/// The measurements of a table.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Memory of the main section, and size of a file in it, in bytes.
    pub memory: u64,
    /// The same for the other sections.
    pub small_memory: u64,
    /// Record sizes of the main section with the source's data.
    pub records: Vec<usize>,
    /// Record sizes of the main section with other data.
    pub other_records: Vec<usize>,
    /// Record sizes of the other sections.
    pub small_records: Vec<usize>,
    /// Limits of the sweep, in percent.
    pub limits: Vec<u32>,
    /// Runs of each series.
    pub runs: u32,
    /// The rate-limited disk.
    pub real: Slow,
    /// The sections to measure.
    pub sections: Vec<Section>,
    /// Systems that take turns in the main section, in addition to the one without ztier.
    pub systems: Vec<System>,
    /// Data of the main section.
    pub data: Vec<Kind>,
}

impl Choice {
    /// The plan for these options.
    pub fn plan(&self) -> Plan {
        let usual = if self.quick { 128 } else { 1024 };
        let memory = self.memory.unwrap_or(usual) << 20;
        let small_memory = match (self.full, self.memory) {
            (true, _) | (_, Some(_)) => memory,
            _ => memory / 8,
        };
        let sizes = |kib: &[usize]| kib.iter().map(|kib| kib << 10).collect::<Vec<_>>();
        let records = match &self.records[..] {
            [] if self.quick => sizes(&[1024]),
            [] => (0..13).map(|n| 4096 << n).collect(),
            given => given.to_vec(),
        };
        let other_records = match &self.records[..] {
            [] if !self.full => sizes(&[1024]),
            _ => records.clone(),
        };
        let small_records = match &self.records[..] {
            [] if self.full => sizes(&[4, 64, 1024, 16384]),
            [] => sizes(&[1024]),
            given => given.to_vec(),
        };
        let sections = match &self.sections[..] {
            [] if self.quick => vec![Section::Nine],
            [] => Section::value_variants().to_vec(),
            given => given.to_vec(),
        };
        Plan {
            memory,
            small_memory,
            records,
            other_records,
            small_records,
            limits: or(&self.limits, &LIMITS),
            runs: self.runs.unwrap_or(1),
            real: Slow::Real(REAL_DIR.into(), self.bandwidth),
            sections,
            systems: or(&self.systems, &[System::Cache, System::Exclusive, System::Log]),
            data: or(&self.data, &[Kind::Iozone, Kind::Ratio(2.0)]),
        }
    }
}

/// The requested values, or the default ones.
fn or<T: Clone>(asked: &[T], usual: &[T]) -> Vec<T> {
    if asked.is_empty() { usual.to_vec() } else { asked.to_vec() }
}

impl Plan {
    /// The shape of the main section's systems.
    pub fn shape(&self) -> Shape {
        Shape {
            memory: self.memory,
            slow: Slow::Modelled,
            file: self.memory,
            volumes: VOLUMES,
            busy: 1,
            percent: PERCENT,
            dir: REAL_DIR.into(),
        }
    }

    /// The shape of the other sections' systems.
    pub fn small_shape(&self) -> Shape {
        let memory = self.small_memory;
        Shape { memory, file: memory, volumes: 1, ..self.shape() }
    }

    /// Limit on the records that tests in random order touch: the number of 256 KiB records in the
    /// file, so that strides touch the number of 64 KiB ones.
    #[allow(clippy::unused_self)]
    pub fn sample(&self, file: u64) -> u64 {
        file / (256 << 10)
    }

    /// Record sizes of the main section for a kind of data.
    pub fn records_of(&self, kind: Kind) -> &[usize] {
        if kind == Kind::Iozone { &self.records } else { &self.other_records }
    }

    /// Systems that take turns for a kind of data. Behind a log, the limits of a cache have no
    /// effect.
    pub fn turns(&self, kind: Kind) -> Vec<System> {
        let wanted = |system: &&System| kind == Kind::Iozone || **system != System::Log;
        let ours = self.systems.iter().filter(|system| **system != System::Bare).filter(wanted);
        std::iter::once(System::Bare).chain(ours.copied()).collect()
    }

    /// Systems of the sweep, in addition to the one without ztier.
    pub fn swept(&self) -> impl Iterator<Item = System> {
        let wanted = |system: &System| matches!(system, System::Cache | System::Exclusive);
        self.systems.iter().copied().filter(wanted)
    }

    /// Number of series, and of tasks with files.
    pub fn series(&self) -> usize {
        let with = |&kind: &Kind| self.turns(kind).len() * self.records_of(kind).len();
        let (runs, small) = (self.runs as usize, self.small_records.len());
        let of = |section: &Section| match section {
            Section::Nine => runs * self.data.iter().map(with).sum::<usize>(),
            Section::Volumes | Section::Disk => runs * 2 * small,
            Section::Sweep => runs * (1 + self.limits.len() * self.swept().count()) * small,
            // A task has all its runs in a row.
            Section::Files => super::files::TASKS * (1 + self.swept().count()),
        };
        self.sections.iter().map(of).sum()
    }

    /// The notes for the report.
    pub fn about(&self) -> Vec<(&'static str, String)> {
        let (main, small) = (self.memory >> 20, self.small_memory >> 20);
        vec![
            (
                "tests",
                "as iozone -a -B: mapped, nothing synced, the page cache left as it is".to_owned(),
            ),
            (
                "sample",
                format!(
                    "random tests touch at most {} records of {main} MiB, strides {STRIDES} times \
                     as many; random writes of such a part are synced within the time",
                    self.sample(self.memory)
                ),
            ),
            (
                "dirty",
                "of each device a fifth of the memory at most (strict_limit, max_bytes, min_bytes)"
                    .to_owned(),
            ),
            (
                "file",
                format!("as large as the memory: {main} MiB in `nine`, {small} MiB elsewhere"),
            ),
            ("memory", "of programs, page cache and ztier's daemons; not of the disks".to_owned()),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plans_are_as_large_as_they_should_be() {
        let plan = |choice: Choice| choice.plan();
        let quick = plan(Choice { quick: true, ..Choice::default() });
        assert_eq!((quick.memory >> 20, quick.series()), (128, 7));
        let full = plan(Choice { full: true, ..Choice::default() });
        assert_eq!((full.memory, full.small_memory), (1 << 30, 1 << 30));
        assert_eq!((full.records[0], full.records[12], full.records.len()), (4096, 16 << 20, 13));
        assert_eq!(full.series(), 7 * 13 + 2 * 4 + 2 * 4 + 9 * 4 + 12);
        let usual = plan(Choice::default());
        assert_eq!((usual.memory, usual.small_memory), (1 << 30, 128 << 20));
        assert_eq!((usual.records.len(), &usual.other_records[..]), (13, &[1 << 20][..]));
        assert_eq!(usual.series(), 4 * 13 + 3 + 2 + 2 + 9 + 12);
        assert_eq!(usual.sample(usual.memory), 4096);
    }
}

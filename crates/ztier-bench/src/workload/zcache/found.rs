//! The results of a system: tables, means, reads saved on the disk, the picture.

use super::Target;
use super::system::{Pool, System};
use crate::data::Kind;
use crate::report::{Column, IozoneTable, Line, Lines, Picture, Report, Table, median, print};
use crate::workload::iozone::{Figure, TESTS};
use std::collections::BTreeMap;
use std::path::Path;
use ztier::error::{Context as _, Result};

/// Reading tests that read each block once, and whose blocks existed before.
const READS: [usize; 5] = [2, 3, 4, 6, 8];

/// The results of one system.
#[derive(Debug)]
pub struct Found {
    /// The system.
    pub system: System,
    /// Its cache after the last series.
    pub pool: Option<Pool>,
    /// Runs by record size.
    runs: BTreeMap<usize, Vec<[Figure; 9]>>,
    file: u64,
}

impl Found {
    /// No results yet.
    pub fn new(system: System) -> Self {
        Self { system, pool: None, runs: BTreeMap::new(), file: 0 }
    }

    /// Adds a run on files of `file` bytes.
    pub fn add(&mut self, record: usize, file: u64, figures: [Figure; 9]) {
        self.file = file;
        self.runs.entry(record).or_default().push(figures);
    }

    /// The sizes of records.
    pub fn records(&self) -> Vec<usize> {
        self.runs.keys().copied().collect()
    }

    /// The median of the runs with this record size, in KiB a second.
    pub fn speed(&self, record: usize, test: usize) -> Option<f64> {
        self.median_of(record, |figures| figures[test].kib_per_second)
    }

    fn median_of(&self, record: usize, of: impl Fn(&[Figure; 9]) -> f64) -> Option<f64> {
        let runs = self.runs.get(&record)?;
        Some(median(&runs.iter().map(of).collect::<Vec<_>>()))
    }

    /// The mean over all record sizes, in KiB a second, as in the source.
    pub fn average(&self, test: usize) -> f64 {
        self.average_of(|figures| figures[test].kib_per_second)
    }

    fn average_of(&self, of: impl Fn(&[Figure; 9]) -> f64) -> f64 {
        let values: Vec<f64> =
            self.runs.keys().filter_map(|&record| self.median_of(record, &of)).collect();
        values.iter().sum::<f64>() / values.len() as f64
    }

    /// Seconds of processors that a GiB took, in the mean over all record sizes: of the machine,
    /// and of its kernel.
    fn cpu(&self, test: usize) -> [f64; 2] {
        let seconds =
            |percent: f64, kib_per_second: f64| percent / 100.0 * 1_048_576.0 / kib_per_second;
        let of: [fn(&Figure) -> f64; 2] = [|f| f.cpu_machine_percent, |f| f.cpu_kernel_percent];
        of.map(|of| {
            self.average_of(|figures| seconds(of(&figures[test]), figures[test].kib_per_second))
        })
    }

    /// Bytes that the disk read during a test, in the mean over all record sizes; where a test
    /// touched few records, also for those alone.
    fn disk_read(&self, test: usize) -> Option<f64> {
        let all = self.runs.values().flatten().filter_map(|run| run[test].disk);
        let bytes: Vec<f64> = all.map(|moved| moved.read as f64).collect();
        (!bytes.is_empty()).then(|| bytes.iter().sum::<f64>() / bytes.len() as f64)
    }

    /// Prints IOzone's own table.
    pub fn print_table(&self, title: &str) {
        let table = IozoneTable::new(title);
        let mut text = table.header("ztier-bench, as iozone -a -M -B -+u -R", Column::KibPerSecond);
        for &record in self.runs.keys() {
            let values: Vec<f64> =
                (0..9).map(|test| self.speed(record, test).unwrap_or(f64::NAN)).collect();
            let values: [f64; 9] = values.try_into().unwrap_or([f64::NAN; 9]);
            text += "\n";
            text += &IozoneTable::row(self.file >> 10, record as u64 >> 10, &values);
        }
        print(&(text + "\n"));
    }
}

/// Means side by side, as in the source, and the disk's traffic.
pub fn compare(report: &mut Report, section: &str, found: &[Found], goals: Option<[f64; 9]>) {
    let Some((bare, rest)) = found.split_first() else { return };
    let mut lines = Vec::new();
    for ours in rest {
        print(&format!("\n{section}: average KiB/s, {}", ours.system.name()));
        let table = Table::new(&[
            ("test", 15),
            ("without ztier", 13),
            ("with", 10),
            ("ratio", 7),
            ("source", 7),
            ("disk read, MiB", 14),
            ("with", 10),
        ]);
        print(&table.head());
        for (test, name) in TESTS.iter().enumerate() {
            let (without, with) = (bare.average(test), ours.average(test));
            let mib = |found: &Found| {
                found.disk_read(test).map_or(String::new(), |b| format!("{:.0}", b / 1048576.0))
            };
            let goal = goals.map_or(String::new(), |goals| Target::AtLeast(goals[test]).short());
            lines.push(table.line(&[
                (*name).to_owned(),
                format!("{without:.0}"),
                format!("{with:.0}"),
                format!("{:.2}", with / without),
                if ours.system == System::Cache { goal } else { String::new() },
                mib(bare),
                mib(ours),
            ]));
            print(lines.last().map_or("", String::as_str));
        }
        compare_cpu(section, bare, ours);
        if let Some(pool) = ours.pool {
            let mib = |bytes: f64| bytes / 1_048_576.0;
            let text = format!(
                "{:.0} MiB in {:.1} MiB of at most {:.1} MiB",
                mib(pool.holds),
                mib(pool.used),
                mib(pool.limit)
            );
            report.note(section, &format!("the pool at the end, {}", ours.system.name()), text);
            let [dropped, lost, kept, given] = pool.pages;
            if dropped > 0.0 {
                let text = format!(
                    "{dropped} pages dropped, {lost} of them not copied, {kept} kept; {given} \
                     copies given back"
                );
                report.note(section, &format!("page cache, {}", ours.system.name()), text);
            }
        }
    }
}

/// What the tests cost in processor time, side by side.
fn compare_cpu(section: &str, bare: &Found, ours: &Found) {
    let name = ours.system.name();
    print(&format!("\n{section}: seconds of processors for a GiB, {name}; kernel: its part"));
    let columns = [("test", 15), ("without ztier", 13), ("kernel", 10), ("with", 10)];
    let table = Table::new(&[&columns[..], &[("kernel", 10)]].concat());
    print(&table.head());
    for (test, name) in TESTS.iter().enumerate() {
        let mut cells = vec![(*name).to_owned()];
        let cpu = [bare.cpu(test), ours.cpu(test)];
        cells.extend(cpu.as_flattened().iter().map(|seconds| format!("{seconds:.2}")));
        print(&table.line(&cells));
    }
}

/// Number of the disk's reads saved, beside the maximum for a cache of the same size: in a test
/// that reads each block once, the blocks that it holds when the test begins.
pub fn best(report: &mut Report, section: &str, found: &[Found]) {
    let [bare, ours, ..] = found else { return };
    let Some(pool) = ours.pool.filter(|pool| pool.used > 0.0) else { return };
    let room = (pool.limit * pool.holds / pool.used).min(ours.file as f64);
    for test in READS {
        let (Some(alone), Some(with)) = (bare.disk_read(test), ours.disk_read(test)) else {
            continue;
        };
        let most = room.min(alone);
        let ratio = ours.average(test) / bare.average(test);
        // Saved reads take no time, and the others as long as without the cache.
        let bound = alone / (alone - most).max(1.0);
        report.note(
            section,
            TESTS[test],
            format!(
                "{ratio:.2} times as fast, of {bound:.2} at most; {:.0} MiB of the disk's reads \
                 spared, of {:.0} at most",
                (alone - with) / 1_048_576.0,
                most / 1_048_576.0
            ),
        );
    }
}

/// A panel for each test: speed over the record size.
///
/// # Errors
/// The file can't be written.
pub fn picture(all: &[(Kind, Vec<Found>)], path: &Path) -> Result<()> {
    let (legend, runs): (Vec<Line>, Vec<&Found>) = all
        .iter()
        .flat_map(|(kind, found)| found.iter().map(move |found| (kind, found)))
        .map(|(kind, found)| (Line::new(format!("{}, {kind}", found.system.name())), found))
        .unzip();
    let records = runs.first().map_or(Vec::new(), |found| found.records());
    let size = |bytes: &usize| match bytes >> 20 {
        0 => format!("{}K", bytes >> 10),
        mib => format!("{mib}M"),
    };
    let panel = |(test, name): (usize, &&str)| Lines {
        title: (*name).to_owned(),
        unit: "KiB/s".into(),
        across: "record".into(),
        places: records.iter().map(size).collect(),
        lines: runs
            .iter()
            .map(|found| records.iter().map(|&record| found.speed(record, test)).collect())
            .collect(),
    };
    let picture = Picture {
        title: "The nine IOzone tests on a slow disk, without a read cache and with".into(),
        legend,
        columns: 3,
        charts: TESTS.iter().enumerate().map(panel).collect(),
    };
    std::fs::write(path, picture.svg()).context(format!("cannot write {}", path.display()))
}

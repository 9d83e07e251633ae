//! The results of the systems: tables in the terms of `time -v`, ratios, the picture.

use super::plan::Plan;
use super::{System, TESTS};
use crate::report::{Line, Lines, Picture, Report, Table, Target, bars, median, print};
use crate::sys::usage::Cost;
use crate::workload::iozone::{Outcome, Series};
use std::path::Path;
use ztier::error::{Context as _, Result};

/// Limit on the slowdown of the source's load.
const SLOWDOWN: f64 = 1.03;
/// Share of the gain of a fixed limit that the adaptive one should keep.
const KEPT: f64 = 0.9;

/// A figure of `time -v`: its name, its unit, its getter.
type CostLine = (&'static str, &'static str, fn(&Cost) -> f64);

/// The costs of a process.
pub const COSTS: [CostLine; 9] = [
    ("user time", "s", |c| c.user_s),
    ("system time", "s", |c| c.system_s),
    ("major page faults", "", |c| c.major_faults as f64),
    ("minor page faults", "", |c| c.minor_faults as f64),
    ("maximum resident set", "KiB", |c| c.resident_max_kib as f64),
    ("voluntary switches", "", |c| c.voluntary_switches as f64),
    ("involuntary switches", "", |c| c.involuntary_switches as f64),
    ("read from disks", "MiB", |c| c.read_bytes as f64 / 1_048_576.0),
    ("written to disks", "MiB", |c| c.written_bytes as f64 / 1_048_576.0),
];

/// All runs of one system.
pub struct Found {
    /// The system.
    pub system: System,
    /// Each run: all series in order.
    pub runs: Vec<Vec<(Series, Outcome)>>,
}

impl Found {
    /// No results yet.
    pub fn new(system: System) -> Self {
        Self { system, runs: Vec::new() }
    }

    /// The median over runs of the value that `of` computes for one.
    fn median_of(&self, of: impl Fn(&[(Series, Outcome)]) -> f64) -> f64 {
        median(&self.runs.iter().map(|run| of(run)).collect::<Vec<_>>())
    }

    /// Wall time of all series, in seconds.
    pub fn elapsed(&self) -> f64 {
        self.median_of(|run| run.iter().map(|(_, outcome)| outcome.elapsed_s).sum())
    }

    fn cost(&self, name: &str, of: fn(&Cost) -> f64) -> f64 {
        let values = |run: &[(Series, Outcome)]| {
            run.iter().map(|(_, outcome)| of(&outcome.cost)).collect::<Vec<_>>()
        };
        self.median_of(|run| match name {
            "maximum resident set" => values(run).into_iter().fold(0.0, f64::max),
            _ => values(run).into_iter().sum(),
        })
    }

    fn speed(&self, file_mib: u64, record: usize, test: usize) -> Option<f64> {
        let of = |run: &[(Series, Outcome)]| {
            let wanted = |s: &Series| s.file_bytes == file_mib << 20 && s.record_bytes == record;
            let (_, outcome) = run.iter().find(|(series, _)| wanted(series))?;
            Some(outcome.figures.get(test)?.kib_per_second)
        };
        let speeds: Vec<f64> = self.runs.iter().filter_map(|run| of(run)).collect();
        (!speeds.is_empty()).then(|| median(&speeds))
    }
}

/// The figures side by side, and bars for each test and file size.
pub fn tables(report: &mut Report, plan: &Plan, all: &[Found]) {
    print("\nmedians of all series together");
    let mut columns = vec![("", 22)];
    columns.extend(all.iter().map(|found| (found.system.name(), 12)));
    let table = Table::new(&columns);
    print(&table.head());
    let line = |name: &str, of: &dyn Fn(&Found) -> f64, digits: usize| {
        let mut cells = vec![name.to_owned()];
        cells.extend(all.iter().map(|found| format!("{:.digits$}", of(found))));
        print(&table.line(&cells));
    };
    line("elapsed, s", &|found| found.elapsed(), 1);
    for (name, unit, of) in COSTS {
        let title = if unit.is_empty() { name.to_owned() } else { format!("{name}, {unit}") };
        line(&title, &|found| found.cost(name, of), usize::from(unit == "s"));
    }
    for &file in &plan.files {
        for (test, name) in TESTS.iter().enumerate() {
            let groups: Vec<(String, Vec<(String, f64)>)> = plan
                .records
                .iter()
                .map(|&record| {
                    let speed = |found: &Found| {
                        Some((found.system.name().to_owned(), found.speed(file, record, test)?))
                    };
                    (format!("{} KiB", record >> 10), all.iter().filter_map(speed).collect())
                })
                .collect();
            print(&format!("\n{name}, {file} MiB, KiB/s by the size of records"));
            print(&bars(&groups, 40));
        }
    }
    report.quiet_note("files", "tables", "medians of runs; sums over all series");
}

/// Relative to disk swap, as in the source.
pub fn ratios(report: &mut Report, all: &[Found], scans: &[(System, f64)]) {
    let elapsed = |system| all.iter().find(|found| found.system == system).map(Found::elapsed);
    let scan = |wanted| scans.iter().find(|(system, _)| *system == wanted).map(|(_, s)| *s);
    let (disk, none) = (elapsed(System::Disk), elapsed(System::None));
    let (fixed, auto) = (elapsed(System::Fixed), elapsed(System::Auto));
    let mut ratio = |name: &str, above: Option<f64>, below: Option<f64>, goal| {
        if let (Some(above), Some(below)) = (above, below) {
            report.ratio(name, above / below, goal);
        }
    };
    ratio("slowdown", auto, disk, Target::AtMost(SLOWDOWN));
    ratio("slowdown_fixed", fixed, disk, Target::None);
    ratio("slowdown_vs_no_swap", auto, none, Target::None);
    ratio("slowdown_fixed_vs_no_swap", fixed, none, Target::None);
    let scanned = (scan(System::Disk), scan(System::Fixed), scan(System::Auto));
    ratio("scan_disk_vs_fixed", scanned.0, scanned.1, Target::None);
    ratio("scan_disk_vs_auto", scanned.0, scanned.2, Target::None);
    let (Some(disk), Some(fixed), Some(auto)) = scanned else { return };
    if fixed < disk {
        let kept = (disk - auto) / (disk - fixed);
        report.ratio("auto_keeps_of_scan_gain", kept, Target::AtLeast(KEPT));
    } else {
        report.missing("ratios", "auto_keeps_of_scan_gain", "the fixed limit gains nothing here");
    }
}

/// A panel for each test and file size.
///
/// # Errors
/// The file can't be written.
pub fn picture(plan: &Plan, all: &[Found], path: &Path) -> Result<()> {
    let size = |bytes: &usize| match bytes >> 20 {
        0 => format!("{}K", bytes >> 10),
        mib => format!("{mib}M"),
    };
    let panel = |file: u64, test: usize| Lines {
        title: format!("{}, {file} MiB", TESTS[test]),
        unit: "KiB/s".into(),
        across: "record".into(),
        places: plan.records.iter().map(size).collect(),
        lines: all
            .iter()
            .map(|found| plan.records.iter().map(|&r| found.speed(file, r, test)).collect())
            .collect(),
    };
    let picture = Picture {
        title: format!("Files and {} MiB of memory, by where swap goes", plan.memory),
        legend: all.iter().map(|found| Line::new(found.system.name())).collect(),
        columns: TESTS.len(),
        charts: plan
            .files
            .iter()
            .flat_map(|&file| (0..TESTS.len()).map(move |test| panel(file, test)))
            .collect(),
    };
    std::fs::write(path, picture.svg()).context(format!("cannot write {}", path.display()))
}

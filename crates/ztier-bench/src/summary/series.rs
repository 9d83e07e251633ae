//! IOzone's tests as in tables: by system, kind of file and size of records.

use super::found::Table;
use super::model::{Cell, Chart, Grid};
use crate::report::{IozoneTable, Line, Lines, median};
use crate::workload::iozone::{Series, TESTS};
use std::collections::BTreeMap;

/// Results of a test.
#[derive(Clone, Debug, Default)]
struct Point {
    kib: Vec<f64>,
    own: Vec<f64>,
    machine: Vec<f64>,
    kernel: Vec<f64>,
}

/// Results of one system for one file size, one way of access and one kind of data.
#[derive(Clone, Debug, Default)]
pub struct Speeds {
    /// Name of the system.
    pub system: String,
    /// Size of the file, in MiB.
    pub file_mib: u64,
    /// Access and data: `mmap, 2:1`.
    pub about: String,
    /// Whether these are figures of the source.
    pub source: bool,
    by: BTreeMap<(usize, usize), Point>,
}

impl Speeds {
    /// The source's results, from the lines of IOzone's own table.
    pub fn of_source(system: &str, file_mib: u64, table: &str) -> Self {
        let mut all = Self { system: system.to_owned(), file_mib, source: true, ..Self::default() };
        for line in table.lines() {
            let mut numbers = line.split_whitespace().map(str::parse::<f64>);
            let (Some(Ok(file)), Some(Ok(record))) = (numbers.next(), numbers.next()) else {
                continue;
            };
            if file as u64 == file_mib << 10 {
                for (test, kib) in numbers.flatten().enumerate() {
                    let point = all.by.entry(((record as usize) << 10, test)).or_default();
                    point.kib.push(kib);
                }
            }
        }
        all
    }

    /// The sizes of records, in bytes.
    pub fn records(&self) -> Vec<usize> {
        let mut records: Vec<usize> = self.by.keys().map(|(record, _)| *record).collect();
        records.dedup();
        records
    }

    /// The median of the runs, in KiB a second.
    pub fn speed(&self, record: usize, test: usize) -> Option<f64> {
        let point = self.by.get(&(record, test))?;
        (!point.kib.is_empty()).then(|| median(&point.kib))
    }

    /// The mean over the sizes of records, as in the source.
    pub fn average(&self, test: usize) -> Option<f64> {
        self.mean(test, |point| &point.kib)
    }

    /// The mean CPU use in percent of one CPU: of the measuring threads, of the machine, and of its
    /// kernel.
    pub fn cpu(&self, test: usize) -> [Option<f64>; 3] {
        let of: [fn(&Point) -> &Vec<f64>; 3] = [|p| &p.own, |p| &p.machine, |p| &p.kernel];
        of.map(|of| self.mean(test, of))
    }

    fn mean(&self, test: usize, of: fn(&Point) -> &Vec<f64>) -> Option<f64> {
        let points = self.by.iter().filter(|((_, other), _)| *other == test);
        let values: Vec<f64> = points
            .map(|(_, point)| of(point))
            .filter(|all| !all.is_empty())
            .map(|v| median(v))
            .collect();
        (!values.is_empty()).then(|| values.iter().sum::<f64>() / values.len() as f64)
    }

    /// The table as IOzone prints it.
    pub fn verbatim(&self) -> String {
        let mut text = String::from(
            "                                                            random  random    bkwd   \
             record   stride\n              KB  reclen   write rewrite    read    reread    read   \
             write    read  rewrite     read",
        );
        for record in self.records() {
            let value = |test| self.speed(record, test).unwrap_or(f64::NAN);
            let values: [f64; 9] = std::array::from_fn(value);
            text.push('\n');
            text += &IozoneTable::row(self.file_mib << 10, record as u64 >> 10, &values);
        }
        text
    }
}

/// All series in a section of a table, in its order.
pub fn gather(table: &Table, section: &str) -> Vec<Speeds> {
    let mut all: Vec<Speeds> = Vec::new();
    for row in table.figures(section) {
        let Some((test, rest)) = row.case.split_once(", ") else { continue };
        let Some(test) = TESTS.iter().position(|name| *name == test) else { continue };
        // Other rows of a test, such as the disk's traffic, are no series.
        let Ok(series) = rest.parse::<Series>() else { continue };
        let about = format!("{}, {}", series.mode, series.kind);
        let file_mib = series.file_bytes >> 20;
        let same =
            |s: &Speeds| s.system == row.system && s.file_mib == file_mib && s.about == about;
        let at = all.iter().position(same).unwrap_or_else(|| {
            let system = row.system.clone();
            all.push(Speeds { system, file_mib, about, ..Speeds::default() });
            all.len() - 1
        });
        let point = all[at].by.entry((series.record_bytes, test)).or_default();
        point.kib.extend(row.value);
        point.own.extend(row.cpu_own_percent);
        point.machine.extend(row.cpu_machine_percent);
        point.kernel.extend(row.cpu_kernel_percent);
    }
    all
}

/// A chart for each test: throughput over the size of records, one line for each system.
pub fn charts(all: &[&Speeds]) -> (Vec<Line>, Vec<Chart>) {
    let mut records: Vec<usize> = all.iter().flat_map(|speeds| speeds.records()).collect();
    records.sort_unstable();
    records.dedup();
    let line = |speeds: &&Speeds| Line { name: speeds.system.clone(), source: speeds.source };
    let chart = |(test, name): (usize, &&str)| {
        let points =
            |speeds: &&Speeds| records.iter().map(|&record| speeds.speed(record, test)).collect();
        Lines {
            title: (*name).to_owned(),
            unit: "KiB/s".into(),
            across: "size of records".into(),
            places: records.iter().map(|&record| size(record)).collect(),
            lines: all.iter().map(points).collect(),
        }
    };
    let charts = TESTS.iter().enumerate().map(chart).filter(|lines| !lines.is_empty());
    (all.iter().map(line).collect(), charts.map(Chart::Lines).collect())
}

/// CPU use of the tests, of the machine, and of the kernel in that.
pub fn cpu(all: &[&Speeds]) -> Grid {
    let mut grid = Grid::new("CPU use, percent of one CPU, mean over sizes of records", &["test"]);
    grid.head.extend(all.iter().flat_map(|speeds| {
        ["test", "machine", "kernel"].map(|of| format!("{}: {of}", speeds.system))
    }));
    for (test, name) in TESTS.iter().enumerate() {
        let cells = all.iter().flat_map(|speeds| speeds.cpu(test).map(Cell::maybe));
        grid.rows.push(std::iter::once(Cell::text(*name)).chain(cells).collect());
    }
    grid
}

/// Short: `64K`, `16M`.
fn size(bytes: usize) -> String {
    match bytes >> 20 {
        0 => format!("{}K", bytes >> 10),
        mib => format!("{mib}M"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::data::Kind;
    use crate::workload::iozone::Mode;

    #[test]
    fn series_are_read_as_they_are_written() {
        for (mode, kind) in [
            (Mode::Mmap, Kind::Ratio(2.0)),
            (Mode::Plain, Kind::Mix(2.5)),
            (Mode::Kept, Kind::Iozone),
            (Mode::Kept, Kind::Files),
        ] {
            let text = Series::new(128 << 20, 1 << 20, mode, kind).unwrap().to_string();
            let read: Series = text.parse().unwrap();
            assert_eq!(read.to_string(), text);
            assert_eq!((read.file_bytes, read.record_bytes), (128 << 20, 1 << 20));
            assert!(format!("{text}, disk read").parse::<Series>().is_err());
        }
        assert!("elapsed".parse::<Series>().is_err());
    }

    #[test]
    fn runs_become_medians_and_sizes_an_average() {
        let row = |test: &str, record: u64, kib: f64| {
            serde_json::json!({
                "section": "nine", "system": "a", "unit": "KiB/s", "value": kib, "runs": [kib],
                "case": format!("{test}, 64 MiB, records of {record} KiB, kept, iozone"),
                "cpu_own_percent": 50.0, "cpu_machine_percent": 150.0,
            })
        };
        let table = serde_json::json!({ "rows": [
            row("read", 64, 1.0), row("read", 64, 2.0), row("read", 64, 9.0),
            row("read", 1024, 4.0), row("stride read", 1024, 7.0), row("else", 64, 1.0),
            { "section": "nine", "system": "a", "case": "read, 64 MiB, records of 64 KiB, kept, iozone, disk read", "value": 5.0 },
        ]});
        let table: Table = serde_json::from_value(table).unwrap();
        let all = gather(&table, "nine");
        assert_eq!(all.len(), 1);
        assert_eq!(all[0].records(), [64 << 10, 1 << 20]);
        assert_eq!((all[0].speed(64 << 10, 2), all[0].average(2)), (Some(2.0), Some(3.0)));
        assert_eq!((all[0].average(0), all[0].cpu(2)), (None, [Some(50.0), Some(150.0), None]));
        let (legend, charts) = charts(&[&all[0]]);
        assert_eq!((legend.len(), charts.len()), (1, 2));
    }
}

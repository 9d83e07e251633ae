//! The modelled drives beside the rows of the source with which they are calibrated.
//!
//! Invariant: the source's job runs on the model; its figure is compared, never assumed.

use super::SEED;
use crate::model::job::{self, Action, Job, Reached};
use crate::model::{Kind, Model, ModelDrive, Name, lateness};
use crate::report::{Report, Row, Target, median};
use std::time::Duration;
use ztier::error::{Context as _, Result};
use ztier::media::{Buffer, Drive};

const SECTION: &str = "calibration";
/// Limit on the relative deviation of a calibrated row from the source's.
const WITHIN: f64 = 0.1;
/// Times of a row in real time: until caches are full, and the measurement.
const REAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));
/// In real time all writes take memory; for flash the offsets do not matter.
const REAL_SPAN: u64 = 256 << 20;

/// A row of the source's table.
#[derive(Clone, Copy)]
pub struct SourceRow {
    letter: char,
    case: &'static str,
    kind: Kind,
    /// 10^6 bytes a second.
    mb_per_second: f64,
    job: Job,
}

/// fio's job: `rw=randwrite bs=4k iodepth=64 size=16GB norandommap`, with enough requests for a
/// steady figure (all of its 16 GB would take the disk five hours).
const RANDOM: Job = Job {
    action: Action::Write,
    random: true,
    block: 4096,
    depth: 64,
    span: 16 << 30,
    // Twice the blocks in the disk's cache.
    warm_up: 8192,
    count: 20_000,
};

/// The rows of a drive alone; the others need a log.
pub const ROWS: [SourceRow; 3] = [
    SourceRow {
        letter: 'A',
        case: "HDD(rand)",
        kind: Kind::Hdd7200,
        mb_per_second: 0.883,
        job: RANDOM,
    },
    SourceRow {
        letter: 'B',
        case: "SSD(rand)",
        kind: Kind::Ssd840Pro,
        mb_per_second: 202.0,
        // All of the 16 GB.
        job: Job { count: (16 << 30) / 4096, ..RANDOM },
    },
    SourceRow {
        letter: 'C',
        case: "SSD(seq)",
        kind: Kind::Ssd840Pro,
        mb_per_second: 266.0,
        job: Job { random: false, block: 1 << 20, warm_up: 64, count: 16 << 10, ..RANDOM },
    },
];

impl SourceRow {
    /// In virtual time.
    fn simulate(&self) -> Reached {
        job::simulate(&mut Model::new(self.kind.into()), &self.job, SEED)
    }

    /// By threads on a drive in real time.
    fn measure(&self) -> Result<Reached> {
        let drive = ModelDrive::real_time(self.kind.into());
        let span = if self.kind == Kind::Hdd7200 { self.job.span } else { REAL_SPAN };
        job::measure(&drive, &Job { span, ..self.job }, REAL, SEED)
    }
}

/// Further loads for each drive, in the order of the columns.
const LOADS: [(&str, Job); 8] = [
    ("4 KiB written and flushed, 1 writer", small(Action::SyncWrite(1), 1)),
    ("4 KiB written and flushed, 16 writers", small(Action::SyncWrite(1), 16)),
    ("4 KiB random write, depth 1", small(Action::Write, 1)),
    ("4 KiB random write, depth 32", small(Action::Write, 32)),
    ("4 KiB random read, depth 1", small(Action::Read, 1)),
    ("4 KiB random read, depth 32", small(Action::Read, 32)),
    ("1 MiB sequential write, depth 1", large(Action::Write)),
    ("1 MiB sequential read, depth 1", large(Action::Read)),
];

const fn small(action: Action, depth: u64) -> Job {
    Job { action, depth, count: 10_000, ..RANDOM }
}

const fn large(action: Action) -> Job {
    Job {
        action,
        random: false,
        block: 1 << 20,
        depth: 1,
        span: 16 << 30,
        warm_up: 64,
        count: 1000,
    }
}

/// The calibrated rows, the tables of the drives `names`, and with `real_time` the rows by threads.
///
/// # Errors
/// A drive fails; interrupted.
pub fn run(report: &mut Report, names: &[Name], real_time: bool) -> Result<()> {
    report.note(
        SECTION,
        "rows A to C",
        "fio's randwrite job and its sequential form; MB are 10^6 bytes",
    );
    for row in &ROWS {
        calibrate(report, row, "virtual time", &row.simulate());
    }
    for &name in names {
        describe(report, name);
        append(report, name)?;
    }
    if !real_time {
        return Ok(());
    }
    for row in &ROWS {
        calibrate(report, row, "real time", &row.measure()?);
    }
    waits(report);
    for &name in names {
        own_cost(report, name)?;
    }
    Ok(())
}

fn calibrate(report: &mut Report, row: &SourceRow, time: &str, reached: &Reached) {
    let SourceRow { letter, case, kind, mb_per_second, .. } = *row;
    let found = report.row(Row {
        section: SECTION.into(),
        system: format!("{} ({time})", Name::from(kind)),
        case: format!("({letter}) {case}, source {mb_per_second}"),
        unit: "MB/s",
        runs: vec![reached.bytes_per_second / 1e6],
        ..Row::default()
    });
    let name = format!("row_{}_{}_vs_source", letter.to_ascii_lowercase(), time.replace(' ', "_"));
    report.ratio(&name, found / mb_per_second, Target::Within(WITHIN));
}

/// The loads that fit on a drive, within `span` bytes.
fn loads(name: Name, span: u64) -> impl Iterator<Item = (&'static str, Job)> {
    let fit = move |(case, job): (_, Job)| (case, Job { span: span.min(name.size), ..job });
    LOADS.into_iter().map(fit).filter(|(_, job)| job.span >= job.block)
}

/// Latencies and throughputs of a drive, in virtual time.
fn describe(report: &mut Report, name: Name) {
    for (case, job) in loads(name, RANDOM.span) {
        let reached = job::simulate(&mut Model::new(name), &job, SEED);
        let mut row = |case: String, unit: &'static str, value: f64| {
            report.row(Row {
                section: "drives".into(),
                system: name.to_string(),
                case,
                unit,
                runs: vec![value],
                ..Row::default()
            });
        };
        row(format!("{case}, median"), "µs", reached.median / 1e3);
        row(format!("{case}, 99 %"), "µs", reached.p99 / 1e3);
        if reached.bytes_per_second.is_finite() {
            row(case.to_owned(), "MB/s", reached.bytes_per_second / 1e6);
        }
    }
}

/// Blocks appended and flushed one by one, as by a journal: on the drive, in virtual time.
fn append(report: &mut Report, name: Name) -> Result<()> {
    let drive = ModelDrive::virtual_time(name);
    let mut block = Buffer::new(4096);
    block.fill(0x5a);
    let mut runs = Vec::new();
    for n in 0..(name.size / 4096).min(1000) {
        let start = drive.now();
        drive.write(n * 4096, &block).and_then(|()| drive.flush()).context(name)?;
        runs.push((drive.now() - start) as f64 / 1e3);
    }
    report.row(Row {
        section: "drives".into(),
        system: name.to_string(),
        case: "4 KiB appended and flushed, median".into(),
        unit: "µs",
        runs: vec![median(&runs)],
        ..Row::default()
    });
    Ok(())
}

/// The delay with which this machine wakes waiting threads.
fn waits(report: &mut Report) {
    for (case, precise) in [("alone", true), ("without spinning", false)] {
        for us in [20, 200, 4000] {
            report.row(Row {
                section: "waits".into(),
                system: format!("a wait of {us} µs, {case}"),
                case: "late by, median".into(),
                unit: "µs",
                runs: vec![median(&lateness(us * 1000, 200, precise)) / 1e3],
                ..Row::default()
            });
        }
    }
}

/// The results of a drive in real time, beside those of its model.
fn own_cost(report: &mut Report, name: Name) -> Result<()> {
    let span = if name.kind == Kind::Hdd7200 { RANDOM.span } else { REAL_SPAN };
    for (case, job) in loads(name, span) {
        let drive = ModelDrive::real_time(name);
        let (_, time) = REAL;
        let reached = job::measure(&drive, &job, (time / 8, time / 4), SEED)?;
        report.row(Row {
            section: "real time".into(),
            system: format!("{name} (real time)"),
            case: format!("{case}, median"),
            unit: "µs",
            runs: vec![reached.median / 1e3],
            ..Row::default()
        });
        if reached.bytes_per_second.is_finite() {
            report.row(Row {
                section: "real time".into(),
                system: format!("{name} (real time)"),
                case: format!("{case}; {} MiB kept", drive.kept_bytes() >> 20),
                unit: "MB/s",
                runs: vec![reached.bytes_per_second / 1e6],
                ..Row::default()
            });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_sources_job_on_the_models_gives_the_sources_figures() {
        for row in &ROWS {
            let found = row.simulate().bytes_per_second / 1e6;
            let ratio = found / row.mb_per_second;
            assert!(
                (ratio - 1.0).abs() <= WITHIN,
                "({}) {}: {found:.3} MB/s, the source has {}",
                row.letter,
                row.case,
                row.mb_per_second
            );
        }
    }
}

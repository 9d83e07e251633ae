//! The modelled drives beside the figures with which they are calibrated: rows of the source, and
//! what is published of other drives.
//!
//! Invariant: the job behind a figure runs on the model; the figure is compared, never assumed.

use super::SEED;
use crate::model::job::{self, Action, Job, Reached};
use crate::model::{Kind, Model, ModelDrive, Name, lateness};
use crate::report::{Report, Row, Target, median};
use std::time::Duration;
use ztier::error::{Context as _, Result};
use ztier::media::{Buffer, Drive};

const SECTION: &str = "calibration";
/// Limit on the relative deviation of a calibrated row from its figure.
const WITHIN: f64 = 0.1;
/// Times of a row in real time: until caches are full, and the measurement.
const REAL: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(4));
/// In real time all writes take memory. For drives that map pages the offsets do not matter.
const REAL_SPAN: u64 = 256 << 20;

/// A figure that a drive is calibrated by.
#[derive(Clone, Copy)]
struct Calibrated {
    /// First part of the name of its ratio.
    name: &'static str,
    case: &'static str,
    kind: Kind,
    origin: &'static str,
    figure: f64,
    unit: Unit,
    job: Job,
}

/// The unit of a figure.
#[derive(Clone, Copy)]
enum Unit {
    /// 10^6 bytes a second.
    Megabytes,
    /// Requests a second.
    Requests,
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

const SOURCE: &str = "source";

const fn source(
    name: &'static str,
    case: &'static str,
    kind: Kind,
    figure: f64,
    job: Job,
) -> Calibrated {
    Calibrated { name, case, kind, origin: SOURCE, figure, unit: Unit::Megabytes, job }
}

/// What is published of a drive is measured as Raspberry Pi OS tests cards for class A1: in 64 MiB,
/// which have been written before.
const fn published(
    name: &'static str,
    case: &'static str,
    kind: Kind,
    figure: f64,
    unit: Unit,
    job: Job,
) -> Calibrated {
    let job = Job { span: 64 << 20, ..job };
    Calibrated { name, case, kind, origin: "published", figure, unit, job }
}

/// The rows of the source that show a drive alone (the others need a log), and what is published.
const ROWS: [Calibrated; 11] = {
    // All of the 16 GB.
    let all = Job { count: (16 << 30) / 4096, ..RANDOM };
    let ordered = Job { random: false, block: 1 << 20, warm_up: 64, count: 16 << 10, ..RANDOM };
    let (read, write) = (Action::Read, Action::Write);
    // At first all units fill up, and are cleaned, at about the same time.
    let long = Job { warm_up: 200_000, count: 200_000, ..small(write, 32) };
    let (emmc, sd) = (Kind::Emmc51, Kind::SdA1);
    let (iops, mb) = (Unit::Requests, Unit::Megabytes);
    [
        source("row_a", "(A) HDD(rand)", Kind::Hdd7200, 0.883, RANDOM),
        source("row_b", "(B) SSD(rand)", Kind::Ssd840Pro, 202.0, all),
        source("row_c", "(C) SSD(seq)", Kind::Ssd840Pro, 266.0, ordered),
        published("emmc_random_read", "4 KiB random read", emmc, 11_000.0, iops, small(read, 32)),
        published("emmc_random_write", "4 KiB random write", emmc, 13_000.0, iops, long),
        published("emmc_read", "1 MiB sequential read", emmc, 250.0, mb, large(read)),
        published("emmc_write", "1 MiB sequential write", emmc, 125.0, mb, large(write)),
        published("sd_random_read", "4 KiB random read", sd, 1500.0, iops, small(read, 4)),
        published(
            "sd_random_write",
            "4 KiB random write",
            sd,
            500.0,
            iops,
            Job { depth: 4, ..long },
        ),
        published("sd_read", "1 MiB sequential read", sd, 95.0, mb, large(read)),
        published("sd_write", "1 MiB sequential write", sd, 10.0, mb, large(write)),
    ]
};

impl Calibrated {
    /// In virtual time.
    fn simulate(&self) -> Reached {
        job::simulate(&mut Model::new(self.kind.into()), &self.job, SEED)
    }

    /// By threads on a drive in real time.
    fn measure(&self) -> Result<Reached> {
        let drive = ModelDrive::real_time(self.kind.into());
        let span = self.job.span.min(real_span(self.kind));
        job::measure(&drive, &Job { span, ..self.job }, REAL, SEED)
    }

    /// What was reached, in the unit of the figure.
    fn found(&self, reached: &Reached) -> f64 {
        match self.unit {
            Unit::Megabytes => reached.bytes_per_second / 1e6,
            Unit::Requests => reached.bytes_per_second / self.job.block as f64,
        }
    }
}

/// Bytes of a drive that loads cover in real time.
fn real_span(kind: Kind) -> u64 {
    match kind {
        Kind::Hdd7200 | Kind::Emmc51 | Kind::SdA1 => RANDOM.span,
        Kind::Ssd840Pro | Kind::SsdNull => REAL_SPAN,
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
    report.note(
        SECTION,
        "published",
        "Samsung's first eMMC 5.1 of 64 GB; the least of SD's class A1, and the first such card's \
         reading; in 64 MiB",
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
    // The units of cheap flash take minutes to be as full as in long use.
    for row in ROWS.iter().filter(|row| row.origin == SOURCE) {
        calibrate(report, row, "real time", &row.measure()?);
    }
    waits(report);
    for &name in names {
        own_cost(report, name)?;
    }
    Ok(())
}

fn calibrate(report: &mut Report, row: &Calibrated, time: &str, reached: &Reached) {
    let Calibrated { name, case, kind, origin, figure, unit, .. } = *row;
    let found = report.row(Row {
        section: SECTION.into(),
        system: format!("{} ({time})", Name::from(kind)),
        case: format!("{case}, {origin} {figure}"),
        unit: match unit {
            Unit::Megabytes => "MB/s",
            Unit::Requests => "IOPS",
        },
        runs: vec![row.found(reached)],
        ..Row::default()
    });
    let name = format!("{name}_{}_vs_{origin}", time.replace(' ', "_"));
    report.ratio(&name, found / figure, Target::Within(WITHIN));
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
    for (case, job) in loads(name, real_span(name.kind)) {
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
    fn the_jobs_on_the_models_give_the_figures_that_they_are_calibrated_by() {
        for row in &ROWS {
            let found = row.found(&row.simulate());
            let Calibrated { case, kind, origin, figure, .. } = *row;
            let ratio = found / figure;
            assert!(
                (ratio - 1.0).abs() <= WITHIN,
                "{}, {case}: {found:.3}, {origin} {figure}",
                Name::from(kind)
            );
        }
    }

    /// What the models are for: scattered writes cost a copy of a unit each.
    #[test]
    fn cheap_flash_is_slow_where_writes_are_scattered() {
        let reached = |kind: Kind, job: Job| {
            let job = Job { count: 200, warm_up: 300, ..job };
            job::simulate(&mut Model::new(kind.into()), &job, SEED).bytes_per_second
        };
        for (kind, times) in [(Kind::Emmc51, 20.0), (Kind::SdA1, 100.0)] {
            let scattered = small(Action::Write, 4);
            let near = Job { span: 64 << 20, ..scattered };
            let slower = reached(kind, near) / reached(kind, scattered);
            assert!(slower > times, "{}: {slower}", Name::from(kind));
            let ordered = reached(kind, large(Action::Write)) / reached(kind, near);
            assert!(ordered > 2.0, "{}: {ordered}", Name::from(kind));
        }
    }
}

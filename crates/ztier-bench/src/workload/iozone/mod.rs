//! The nine IOzone tests of the source on an ext4, for each system in turn.
//!
//! A series (one file size, one record size, nine tests) runs in a separate process: a device that
//! fails a read of a mapped page kills the process with SIGBUS, and the run must survive that to
//! report it.

mod tests;

pub use tests::{Mode, STRIDES, Series};

use super::{Context, SEED};
use crate::data::{POOL_BYTES, Pool};
use crate::report::{Column, IozoneTable, Row, Target as Goal, geomean, print, say};
use crate::rival::ext4::Ext4;
use crate::rival::{Disk, System};
use crate::sys::caches::CacheDropper;
use crate::sys::command;
use crate::sys::usage::{Cost, Moved};
use rustix::process::Signal;
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;
use ztier::error::{Context as _, Error, Result};

const SECTION: &str = "iozone";
/// Size of the source's device.
pub const DEVICE_BYTES: u64 = 3 << 30;
/// Limit on the time of a series: longer than any takes on a working device.
pub const SERIES_LIMIT: Duration = Duration::from_secs(900);
/// The tests, in the order of the table's columns.
pub const TESTS: [&str; 9] = [
    "write",
    "rewrite",
    "read",
    "reread",
    "random read",
    "random write",
    "backward read",
    "record rewrite",
    "stride read",
];

/// The result of one test of a series.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Figure {
    /// KiB a second.
    pub kib_per_second: f64,
    /// CPU time of the test (user + system), in percent.
    pub cpu_own_percent: f64,
    /// Busy time of the machine, in percent of one CPU.
    pub cpu_machine_percent: f64,
    /// The part of it in the kernel.
    pub cpu_kernel_percent: f64,
    /// Traffic of the disk during the test, where that is counted.
    pub disk: Option<Moved>,
}

/// The results of a series.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Outcome {
    /// The figures of its tests, in order.
    pub figures: Vec<Figure>,
    /// Wall time of all of them.
    pub elapsed_s: f64,
    /// Resources that they used.
    pub cost: Cost,
}

impl Outcome {
    /// The figures of all nine tests.
    ///
    /// # Errors
    /// Fewer tests ran.
    pub fn nine(self) -> Result<[Figure; 9]> {
        let found = self.figures.len();
        let wrong = |_| Error::failure(format!("a series has {found} figures, not nine"));
        self.figures.try_into().map_err(wrong)
    }
}

/// The environment of a series.
#[derive(Clone, Debug, Default)]
pub struct Place {
    /// The directory of its file.
    pub dir: PathBuf,
    /// The file for process ids of a control group; the data of a series is made before the process
    /// joins it.
    pub join: Option<PathBuf>,
    /// The block device whose traffic is counted.
    pub disk: Option<PathBuf>,
}

/// The source's file and record sizes: `-n 1G -g 2G`, records from 64 KiB to 16 MiB.
pub fn full_plan() -> Vec<(u64, usize)> {
    let records = (0..9).map(|i| (64 << 10) << i);
    let files = [1u64 << 30, 2 << 30];
    files.iter().flat_map(|&file| records.clone().map(move |record| (file, record))).collect()
}

/// A running system with its file system and results. The mount is dropped before the device.
struct Contender {
    system: System,
    fs: Ext4,
    disk: Box<dyn Disk>,
    figures: Vec<f64>,
    lines: Vec<[String; 3]>,
}

/// File and record sizes that suffice to show the effect of other data or another access.
fn short_plan() -> Vec<(u64, usize)> {
    [64 << 10, 1 << 20, 16 << 20].map(|record| (1 << 30, record)).into()
}

/// File and record sizes for a small machine.
fn small_plan() -> Vec<(u64, usize)> {
    [64 << 10, 1 << 20, 16 << 20].map(|record| (192 << 20, record)).into()
}

/// Runs the section: all sizes with the first data and the first access, fewer sizes with the
/// others.
pub fn run(context: &mut Context) -> Result<()> {
    let quick = vec![(64 << 20, 64 << 10), (64 << 20, 1 << 20)];
    let mut contenders = Vec::new();
    for system in context.systems.clone() {
        match Contender::new(system) {
            Ok(contender) => {
                context.report.note(SECTION, system.name(), contender.disk.about());
                contenders.push(contender);
            }
            // Without ztier there is nothing to compare.
            Err(e) if system == System::Ztier => return Err(e),
            Err(e) => context.report.missing(SECTION, system.name(), e),
        }
    }
    let _caches = CacheDropper::start()?;
    for (i, kind) in context.data.clone().into_iter().enumerate() {
        let ratio = Pool::build(kind, POOL_BYTES, SEED)?.to_string();
        context.report.note(SECTION, "data", &ratio);
        for (j, mode) in context.modes.clone().into_iter().enumerate() {
            let full = if (i, j) == (0, 0) { full_plan() } else { short_plan() };
            let plan = match context.small {
                true => context.pick(quick[..1].to_vec(), small_plan()),
                false => context.pick(quick.clone(), full),
            };
            for &(file_bytes, record_bytes) in &plan {
                let series = Series::new(file_bytes, record_bytes, mode, kind)?;
                round(context, &mut contenders, series)?;
            }
            for contender in &mut contenders {
                contender.print_tables(&format!("{mode}, {ratio}"), mode);
            }
        }
        if i == 0 {
            ratios(context, &contenders);
        }
    }
    Ok(())
}

/// One series on each system in turn.
fn round(context: &mut Context, contenders: &mut [Contender], series: Series) -> Result<()> {
    for contender in contenders {
        let name = contender.system.name();
        let place = Place { dir: contender.fs.path().into(), ..Place::default() };
        let figures =
            in_child(&place, series, SERIES_LIMIT).context(format!("{name}, {series}"))?.nine()?;
        say(&format!("{name}, {series}: done"));
        for (test, figure) in TESTS.iter().zip(&figures) {
            context.report.silent_row(Row {
                section: SECTION.into(),
                system: name.into(),
                case: format!("{test}, {series}"),
                unit: "KiB/s",
                runs: vec![figure.kib_per_second],
                cpu_own_percent: Some(figure.cpu_own_percent),
                cpu_machine_percent: Some(figure.cpu_machine_percent),
                cpu_kernel_percent: Some(figure.cpu_kernel_percent),
                ..Row::default()
            });
        }
        contender.add(series, &figures);
    }
    Ok(())
}

/// Geometric means over all tests of the first data; with a target only where the export could meet
/// it.
fn ratios(context: &mut Context, contenders: &[Contender]) {
    let Some((ours, rivals)) = contenders.split_first() else { return };
    let over_ublk = super::over_ublk(ours.disk.path());
    for rival in rivals {
        let counts = over_ublk && matches!(rival.system, System::KernelZram);
        let goal = if counts { Goal::AtLeast(0.8) } else { Goal::None };
        let name = format!("iozone_geomean_vs_{}", rival.system.word());
        let ratios: Vec<f64> =
            ours.figures.iter().zip(&rival.figures).map(|(a, b)| a / b).collect();
        context.report.ratio(&name, geomean(&ratios), goal);
    }
}

/// Runs a series in a separate process.
///
/// # Errors
/// An I/O error, also in a mapped page; wrong data; the series takes longer than `limit`.
pub fn in_child(place: &Place, series: Series, limit: Duration) -> Result<Outcome> {
    let own = std::env::current_exe().context("cannot find out where this program is")?;
    let mut args = vec!["iozone-series".to_owned()];
    let mut add = |option: &str, value: String| args.extend([option.to_owned(), value]);
    add("--dir", place.dir.display().to_string());
    add("--file-bytes", series.file_bytes.to_string());
    add("--record-bytes", series.record_bytes.to_string());
    add("--mode", series.mode.to_string());
    add("--data", series.kind.to_string());
    add("--sample", series.sample.to_string());
    if series.four {
        args.push("--four".to_owned());
    }
    let mut add = |option: &str, value: String| args.extend([option.to_owned(), value]);
    let both = [("--join", &place.join), ("--disk", &place.disk)];
    for (option, path) in both {
        path.iter().for_each(|path| add(option, path.display().to_string()));
    }
    let text = command::run(own, &args, limit).map_err(|e| {
        if e.to_string().contains("killed by signal 7") {
            Error::failure("I/O error in a mapped page (SIGBUS)")
        } else {
            e
        }
    })?;
    serde_json::from_str(&text).context("cannot read the figures of a series")
}

/// Runs in the child: prints figures as JSON on standard output.
pub fn child(place: &Place, series: Series) -> Result<()> {
    // If the parent is killed, no process waits for the figures.
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))
        .context("cannot tie a series to its run")?;
    // Where swap is compared, the load has as little data of its own as IOzone, and none of it is
    // swapped.
    let bytes = if series.four { series.record_bytes } else { POOL_BYTES };
    let mut pool = Pool::build(series.kind, bytes, SEED)?;
    if series.four {
        pool.lock()?;
    }
    if let Some(file) = &place.join {
        let id = std::process::id().to_string();
        std::fs::write(file, id).context(format_args!("cannot write {}", file.display()))?;
    }
    let outcome = tests::run(place, series, &mut pool)?;
    print(&serde_json::to_string(&outcome).context("cannot make JSON")?);
    Ok(())
}

/// IOzone's command line for this mode.
fn command_line(mode: Mode) -> &'static str {
    match mode {
        Mode::Mmap => {
            "ztier-bench, as iozone -a -B -n 1G -g 2G -G -R -M -+u, file uncached before each read test"
        }
        Mode::Plain => {
            "ztier-bench, as iozone -a -e -n 1G -g 2G -R -M -+u, file uncached before each read test"
        }
        Mode::Kept => "ztier-bench, as iozone -a -B -R -M -+u",
    }
}

impl Contender {
    fn new(system: System) -> Result<Self> {
        let disk = system.up(DEVICE_BYTES)?;
        let fs = Ext4::new(disk.path())?;
        Ok(Self { system, fs, disk, figures: Vec::new(), lines: Vec::new() })
    }

    fn add(&mut self, series: Series, figures: &[Figure; 9]) {
        self.figures.extend(figures.iter().map(|f| f.kib_per_second));
        let line = |f: fn(&Figure) -> f64| {
            let record_kib = series.record_bytes as u64 >> 10;
            IozoneTable::row(series.file_bytes >> 10, record_kib, &figures.each_ref().map(f))
        };
        self.lines.push([
            line(|f| f.kib_per_second),
            line(|f| f.cpu_own_percent),
            line(|f| f.cpu_machine_percent),
        ]);
    }

    fn print_tables(&mut self, what: &str, mode: Mode) {
        let table = IozoneTable::new(format!("{}, {what}", self.system.name()));
        let columns = [Column::KibPerSecond, Column::CpuOwn, Column::CpuMachine];
        for (i, column) in columns.into_iter().enumerate() {
            let mut text = table.header(command_line(mode), column);
            for lines in &self.lines {
                text += "\n";
                text += &lines[i];
            }
            print(&(text + "\n\niozone test complete.\n"));
        }
        self.lines.clear();
    }
}

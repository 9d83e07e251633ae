//! The command line: the table, its size, and the files for its figures.

mod all;
mod cached;
mod object;
mod scan;
mod worst;
mod zcache;

use crate::data::Kind;
use crate::model;
use crate::policy;
use crate::report::{Output, Report, print, say, warn};
use crate::rival::{self, System};
use crate::suite::{self, Turn};
use crate::sys::cpu::Stopwatch;
use crate::sys::{dirty, interrupt, knob, remains};
use crate::vm::{Flavour, Inside, Speed};
use crate::workload::iozone::{self, Mode, Series};
use crate::workload::{
    Context, devices, engine, export, log, memory, models, restart, sequential, soak, startup,
    stress,
};
use clap::{Args, Parser, Subcommand, ValueEnum};
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;
use ztier::config::size;
use ztier::error::{Error, Result};
use ztier::log::disk::format::{SEGMENT_MAX, SEGMENT_MIN};

/// Reproduces the tables of the source documents: ours and its rivals, in turn, in one run.
///
/// Rivals use only devices that this program makes, and removes again. Ratios are what counts;
/// absolute figures depend on the machine and on what else it does.
#[derive(Parser)]
#[command(name = "ztier-bench", version)]
struct Cli {
    /// Wait for a run that measures on this machine now, instead of failing.
    #[arg(long, global = true)]
    wait: bool,
    /// The process that has started this table as a part of a run of everything.
    #[arg(long, value_name = "PID", hide = true)]
    suite: Option<u32>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Every table, one after the other, and a report of all of them: HTML, Markdown, CSV.
    All(all::AllArgs),
    /// The report of a run of `all`, made anew of its figures.
    Report(all::ReportArgs),
    #[command(flatten)]
    Table(Table),
    /// Memory that is filled once and never looked at again.
    #[command(hide = true)]
    IdleHeap(worst::HeapArgs),
    /// The load of `scan`, in a process of its own.
    #[command(hide = true)]
    ScanLoad(scan::LoadArgs),
    /// One IOzone series on files in a directory; used by the other commands.
    #[command(hide = true)]
    IozoneSeries(SeriesArgs),
}

/// What measures.
#[derive(Subcommand)]
enum Table {
    /// The compressed RAM disk: IOzone, sequential and in-process rows against kernel zram and
    /// others.
    Zram(ZramArgs),
    /// The durable log: the source's rows, synced writes, a full log, opening, exports, everyday
    /// work; on modelled drives or real ones.
    Log(LogArgs),
    /// Swap: memory that does not fit, gone over again and again, on ours, kernel zram, zswap and
    /// disks.
    Scan(scan::ScanArgs),
    /// Overwrites a volume for a long time and states how its memory grows (fails if it does).
    Soak(SoakArgs),
    /// The modelled drives: the figures that they are calibrated by, and what they cost.
    Models(ModelsArgs),
    /// What the read cache costs: a hit, a miss, beside the drive alone.
    Cache(cached::CacheArgs),
    /// Volumes in stores of objects, by the latency of the store: flushes, uploads, losses when a
    /// host dies, takeovers, memory, and rivals.
    Object(object::ObjectArgs),
    /// The read cache: IOzone on a file as large as the memory, on a slow disk, with ours and
    /// without.
    Zcache(zcache::ZcacheArgs),
    /// Swap where files want all memory: what ours takes from the page cache, and what a limit that
    /// adapts makes of it; in a virtual machine of 512 MiB.
    WorstCase(worst::WorstArgs),
    /// Which copies a cache should keep: traces through policies at five sizes, beside the
    /// optimum.
    Policy(PolicyArgs),
}

#[derive(Args)]
struct ZramArgs {
    /// End within about a minute and a half: small data, few runs.
    #[arg(long)]
    quick: bool,
    /// Instead of measuring: N full runs of the source's stress, with every byte verified.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    stress: Option<u32>,
    /// Instead of measuring: a short form of the stress, one 1 GiB and one 2 GiB file.
    #[arg(long, conflicts_with = "stress")]
    stress_quick: bool,
    #[command(flatten)]
    output: Output,
    /// Only these sections (all by default).
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    only: Vec<Section>,
    /// Go on with the other sections when one fails; the exit status is still 1.
    #[arg(long)]
    keep_going: bool,
    /// Data of the speed tests: 2:1 (or any ratio), mix-2:1 (blocks of varying size), runs-2:1 (as
    /// fio: random bytes, then zeros), files (real ones of this machine), iozone (its own
    /// pattern). All use the first; IOzone's tests run all sizes with it, and some with the
    /// others. By default 2:1, and in a full run iozone and files too (with --vm no files, of which
    /// that machine has none).
    #[arg(long, value_name = "DATA", value_delimiter = ',')]
    data: Vec<Kind>,
    /// How the IOzone tests access their files. By default mmap, and in a full run plain too.
    #[arg(long, value_name = "MODE", value_delimiter = ',')]
    mode: Vec<Mode>,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Args)]
struct MachineArgs {
    /// In a virtual machine with a kernel of its own (QEMU, emulated CPUs), beside rivals that it
    /// has and this machine may lack.
    #[arg(long)]
    vm: bool,
    /// With --vm: count CPU instructions a request instead of taking times.
    #[arg(long, requires = "vm")]
    instructions: bool,
    /// This is such a machine.
    #[arg(long, value_name = "WHAT", hide = true, conflicts_with = "vm")]
    inside: Option<String>,
    /// Its clock counts instructions.
    #[arg(long, requires = "inside", hide = true)]
    counted: bool,
}

#[derive(Args)]
struct LogArgs {
    /// End within about two minutes: short runs, small logs.
    #[arg(long)]
    quick: bool,
    /// The log's drive: sim:ssd-840pro (the default), another model of `models`, or a block
    /// device or file that holds nothing. It is overwritten.
    #[arg(long, value_name = "DRIVE")]
    log: Option<log::Spec>,
    /// The backing store: sim:hdd-7200 by default, or as --log. It is overwritten.
    #[arg(long, value_name = "DRIVE")]
    backing: Option<log::Spec>,
    /// Both on files of this machine, made in this directory and removed again.
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = log::REAL_DIR,
        conflicts_with_all = ["log", "backing"])]
    real: Option<PathBuf>,
    /// Data of all sections but rows, which has both: 1:1 (random, the default), 2:1, …
    #[arg(long, value_name = "DATA", default_value = "1:1")]
    data: Kind,
    /// Bytes in a segment of all sections but rows, which has two sizes.
    #[arg(long, value_name = "BYTES", default_value = "1M", value_parser = size::parse_bytes)]
    segment: u64,
    /// Only these sections (all by default).
    #[arg(long, value_name = "SECTION", value_delimiter = ',')]
    only: Vec<log::Section>,
    /// Only these rows of the source's table, A to F (all by default).
    #[arg(long, value_name = "LETTER", value_delimiter = ',', value_parser = ["A", "B", "C", "D", "E", "F"])]
    rows: Vec<String>,
    /// Go on with the other sections when one fails; the exit status is still 1.
    #[arg(long)]
    keep_going: bool,
    #[command(flatten)]
    output: Output,
    #[command(flatten)]
    machine: MachineArgs,
}

#[derive(Args)]
struct SoakArgs {
    /// How long.
    #[arg(long, default_value_t = 60.0)]
    minutes: f64,
    /// Size of the volume in MiB.
    #[arg(long, default_value_t = 512, value_parser = clap::value_parser!(u64).range(16..=65536))]
    mib: u64,
}

#[derive(Args)]
struct ModelsArgs {
    /// Also let threads wait for drives in real time; takes two minutes.
    #[arg(long)]
    real_time: bool,
    /// Drives to describe, such as sim:hdd-7200 or sim:ssd-840pro:16G (by default all).
    #[arg(long, value_name = "DRIVE", value_delimiter = ',')]
    drive: Vec<model::Name>,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
struct PolicyArgs {
    /// Shorter traces: ends within a minute.
    #[arg(long)]
    quick: bool,
    /// Instead of comparing: record the traces of real work anew, into files in DIR (needs root).
    #[arg(long, value_name = "DIR", conflicts_with = "quick")]
    record: Option<PathBuf>,
    #[command(flatten)]
    output: Output,
}

#[derive(Args)]
struct SeriesArgs {
    #[arg(long)]
    dir: PathBuf,
    #[arg(long)]
    file_bytes: u64,
    #[arg(long)]
    record_bytes: usize,
    #[arg(long)]
    mode: Mode,
    #[arg(long)]
    data: Kind,
    #[arg(long, default_value_t = u64::MAX)]
    sample: u64,
    #[arg(long)]
    four: bool,
    #[arg(long)]
    join: Option<PathBuf>,
    #[arg(long)]
    disk: Option<PathBuf>,
}

/// The parts of the table.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Section {
    /// 4 KiB random reads and writes in process, fresh and aged.
    Engine,
    /// Memory for the same data: fresh, aged, after discards.
    Memory,
    /// The nine IOzone tests on ext4.
    Iozone,
    /// Whole devices and NBD servers, 1 MiB at a time.
    Sequential,
    /// Block devices at queue depth 32, and 1 MiB at a time.
    Devices,
    /// How long requests wait while the daemon of a ublk device is replaced.
    Restart,
    /// Our engine against plain memory behind the same export.
    Export,
    /// `ztier up` until the device can be read.
    Startup,
}

impl Section {
    fn run(self, context: &mut Context) -> Result<()> {
        match self {
            Self::Engine => engine::run(context),
            Self::Memory => memory::run(context),
            Self::Iozone => iozone::run(context),
            Self::Sequential => sequential::run(context),
            Self::Devices => devices::run(context),
            Self::Restart => restart::run(context),
            Self::Export => export::run(context),
            Self::Startup => startup::run(context),
        }
    }
}

/// Runs the command line of this process.
pub fn main() -> ExitCode {
    let cli = Cli::parse();
    match interrupt::install().and_then(|()| run(cli)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            warn_error(&e);
            ExitCode::from(e.exit_status())
        }
    }
}

fn warn_error(e: &Error) {
    use std::io::Write;
    let _ = writeln!(std::io::stderr().lock(), "ztier-bench: {e}");
}

fn run(cli: Cli) -> Result<()> {
    match cli.command {
        Command::All(args) => args.run(Turn::take(cli.wait)?),
        Command::Report(args) => args.run(),
        Command::Table(table) => {
            // A run of everything keeps its turn until its last table has ended.
            let _turn = match cli.suite {
                Some(suite) => suite::tie(suite).map(|()| None),
                None => Turn::take(cli.wait).map(Some),
            }?;
            clear();
            table.run()
        }
        Command::IdleHeap(args) => args.run(),
        Command::ScanLoad(args) => args.run(),
        Command::IozoneSeries(args) => series(args),
    }
}

/// Cleans up after killed runs; no other run measures meanwhile.
fn clear() {
    remains::clear(&rival::ztier::down_of);
    knob::put_back();
    dirty::put_back();
}

impl Table {
    fn run(self) -> Result<()> {
        match self {
            Self::Zram(args) => zram(args),
            Self::Soak(args) => {
                let time = Duration::try_from_secs_f64(args.minutes * 60.0)
                    .ok()
                    .filter(|t| !t.is_zero())
                    .ok_or_else(|| Error::usage("--minutes must be a positive number"))?;
                soak::run(args.mib << 20, time)
            }
            Self::Models(args) => drive_models(args),
            Self::Cache(args) => cached::run(&args),
            Self::Log(args) => durable_log(args),
            Self::Scan(args) => args.run(),
            Self::Object(args) => args.run(),
            Self::Zcache(args) => args.run(),
            Self::WorstCase(args) => args.run(),
            Self::Policy(args) => replays(args),
        }
    }
}

fn series(args: SeriesArgs) -> Result<()> {
    let series = Series::new(args.file_bytes, args.record_bytes, args.mode, args.data)?;
    let series = Series { sample: args.sample, four: args.four, ..series };
    let SeriesArgs { dir, join, disk, .. } = args;
    iozone::child(&iozone::Place { dir, join, disk }, series)
}

fn zram(args: ZramArgs) -> Result<()> {
    let inside = args.machine.inside.is_some();
    if args.machine.vm {
        return zram_in_machine(&args);
    }
    let mut context = Context {
        report: Report::new("zram"),
        quick: args.quick,
        small: inside,
        counted: args.machine.counted,
        systems: if inside { System::INSIDE.into() } else { System::USUAL.into() },
        data: args.data,
        modes: args.mode,
    };
    let measuring = args.stress.is_none() && !args.stress_quick;
    context.set_defaults(measuring && !args.quick);
    if let Some(runs) = args.stress {
        return stress::full(&context, runs);
    }
    if args.stress_quick {
        return stress::short(&context);
    }
    warn_if_busy()?;
    let sections = match args.only.is_empty() {
        true if inside => vec![Section::Devices, Section::Iozone, Section::Restart],
        true => Section::value_variants().to_vec(),
        false => args.only,
    };
    let (keep_going, wanted) = (args.keep_going, sections.iter().map(|s| (name_of(s), *s)));
    let failed = each(wanted.collect(), keep_going, &mut context, Section::run);
    finish(&context.report, &args.output, &failed)
}

/// Runs the same table in a virtual machine.
fn zram_in_machine(args: &ZramArgs) -> Result<()> {
    let mut inside = vec!["zram".to_owned(), "--keep-going".to_owned()];
    inside.extend(args.quick.then(|| "--quick".to_owned()));
    for section in &args.only {
        inside.extend(["--only".to_owned(), name_of(section)]);
    }
    for kind in &args.data {
        inside.extend(["--data".to_owned(), kind.to_string()]);
    }
    for mode in &args.mode {
        inside.extend(["--mode".to_owned(), mode.to_string()]);
    }
    let machine = Inside {
        args: inside,
        kernel: Flavour::Cloud,
        memory: 2560,
        cpus: 2,
        disks: &[],
        speed: Speed::AsFiles,
        modules: "fuse loop ublk_drv zram",
        prepare: "",
        counted: args.machine.instructions,
        output: &args.output,
        svg: None,
    };
    machine.run()
}

/// Compares the kernel's caches and ztier on the same disks, in a virtual machine.
fn log_in_machine(args: &LogArgs) -> Result<()> {
    let mut inside: Vec<String> =
        ["log", "--keep-going", "--only", "kernel", "--log", "/disk/log", "--backing"]
            .map(str::to_owned)
            .into();
    inside.extend(["/disk/backing".to_owned(), "--data".to_owned(), args.data.to_string()]);
    inside.extend(args.quick.then(|| "--quick".to_owned()));
    let machine = Inside {
        args: inside,
        kernel: Flavour::Cloud,
        memory: 1024,
        cpus: 2,
        disks: &[("log", 2 << 30), ("backing", 4 << 30)],
        speed: Speed::AsFiles,
        modules: "fuse loop ublk_drv dm-writecache bcache",
        prepare: "",
        counted: args.machine.instructions,
        output: &args.output,
        svg: None,
    };
    machine.run()
}

/// The name of a section on the command line.
fn name_of(section: &impl ValueEnum) -> String {
    section.to_possible_value().map_or(String::new(), |value| value.get_name().to_owned())
}

/// Runs the sections one after the other; returns those that failed.
fn each<S>(
    sections: Vec<(String, S)>,
    keep_going: bool,
    context: &mut Context,
    mut run: impl FnMut(S, &mut Context) -> Result<()>,
) -> Vec<String> {
    let mut failed = Vec::new();
    for (name, section) in sections {
        print(&format!("\n== {name}"));
        let start = std::time::Instant::now();
        if let Err(e) = run(section, context) {
            context.report.missing(&name, "section", &e);
            failed.push(name);
            // Earlier results are still reported and saved.
            if !keep_going || interrupt::requested() {
                break;
            }
        } else {
            say(&format!("{name} took {:.1} s", start.elapsed().as_secs_f64()));
        }
    }
    failed
}

fn finish(report: &Report, output: &Output, failed: &[String]) -> Result<()> {
    print("\n== ratios (medians of this run)");
    print(&report.ratio_table());
    report.save(output)?;
    if failed.is_empty() {
        Ok(())
    } else {
        interrupt::check()?;
        Err(Error::failure(format!("failed: {}", failed.join(", "))))
    }
}

fn durable_log(args: LogArgs) -> Result<()> {
    if args.machine.vm {
        return log_in_machine(&args);
    }
    warn_if_busy()?;
    let mut context = Context {
        report: Report::new("log"),
        quick: args.quick,
        small: args.machine.inside.is_some(),
        counted: args.machine.counted,
        systems: vec![],
        data: vec![],
        modes: vec![],
    };
    let segment = u32::try_from(args.segment)
        .ok()
        .filter(|s| s.is_power_of_two() && (SEGMENT_MIN..=SEGMENT_MAX).contains(s))
        .ok_or_else(|| Error::usage("--segment must be a power of two from 32K to 16M"))?;
    let choice = log::Choice {
        log: args.log,
        backing: args.backing,
        real: args.real,
        data: args.data,
        segment,
        rows: args.rows,
    };
    let drives = choice.drives(args.quick)?;
    let sections =
        if args.only.is_empty() { log::Section::value_variants().to_vec() } else { args.only };
    let wanted = sections.iter().map(|s| (name_of(s), *s)).collect();
    let failed =
        each(wanted, args.keep_going, &mut context, |section, c| section.run(c, &choice, &drives));
    finish(&context.report, &args.output, &failed)
}

fn drive_models(args: ModelsArgs) -> Result<()> {
    if args.real_time {
        warn_if_busy()?;
    }
    let mut names = args.drive;
    if names.is_empty() {
        names = model::Kind::ALL.map(model::Name::from).into();
    }
    let mut report = Report::new("models");
    let done = models::run(&mut report, &names, args.real_time);
    print("\n== ratios");
    print(&report.ratio_table());
    // Results from before a failure are still saved.
    report.save(&args.output)?;
    done
}

fn replays(args: PolicyArgs) -> Result<()> {
    if let Some(dir) = &args.record {
        return policy::record(dir);
    }
    let mut report = Report::new("policy");
    policy::run(&mut report, &policy::Choice { quick: args.quick })?;
    finish(&report, &args.output, &[])
}

/// Warns if other processes use the machine, as that makes every figure worse.
fn warn_if_busy() -> Result<()> {
    let watch = Stopwatch::start();
    interrupt::sleep(Duration::from_millis(500))?;
    let busy = watch.stop().machine_percent;
    if busy > 20.0 {
        warn(&format!(
            "the machine is busy ({busy:.0} % of a CPU): these figures are worth little"
        ));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::suite::plan;
    use clap::CommandFactory;

    #[test]
    fn parts_of_a_run_of_everything_are_tables() {
        for quick in [true, false] {
            for entry in plan::entries(quick) {
                let line = format!("ztier-bench {} --json a --csv b", entry.args);
                assert!(Cli::try_parse_from(line.split(' ')).is_ok(), "{line}");
            }
        }
    }

    #[test]
    fn the_command_line_is_consistent_and_takes_what_is_documented() {
        Cli::command().debug_assert();
        for line in [
            "all --quick --only zram,scan --skip scan --verbose --dir results",
            "all --resume",
            "all --resume bench-results/one --skip log-vm",
            "report bench-results/one",
            "zram --quick --only engine,memory --json a --csv b --keep-going",
            "zram --stress 5 --data iozone,2:1,files --mode mmap,plain",
            "zram --stress-quick",
            "log --quick --json a --only rows,full --keep-going",
            "log --backing /dev/sdb --log sim:ssd-840pro:16G",
            "log --real --quick --data 2:1 --segment 32K",
            "log --real /mnt --only synced",
            "log --only rows --rows C,D",
            "scan --quick --vm --json a --csv b",
            "scan --only ztier,zram-lz4,modelled-disk --mib 480 --passes 10 --runs 5 --limit 300",
            "scan --quick --only ztier,modelled-emmc,modelled-spill-emmc,modelled-sd,modelled-spill-sd",
            "scan --page-cluster 0,3,5 --disk /dev/sdb,/dev/sdc",
            "scan-load 480 10 --seconds 30 --join /sys/fs/cgroup/a/cgroup.procs",
            "policy --quick --json a --csv b",
            "policy --record traces",
            "soak --minutes 60",
            "worst-case --quick --vm --svg a.svg --json a --csv b",
            "worst-case --full --runs 2 --memory 256 --files 256,512 --only disk,fixed,auto",
            "idle-heap 8",
            "object --quick --json a --csv b --only flush,upload,loss,takeover,memory,rivals",
            "object --latency 0,30 --volume 64G",
            "zcache --quick --svg a.svg --json a --csv b",
            "zcache --full --runs 3 --only nine,volumes,disk,sweep",
            "zcache --systems cache,log --data iozone,2:1,files",
            "zcache --memory 256 --records 4K,1M --limits 5,40 --bandwidth 50M",
            "cache --quick --data files --json a",
            "--suite 12 --wait cache --quick",
            "scan --wait",
            "models --real-time --drive sim:hdd-7200,sim:ssd-840pro:16G,sim:sd-a1 --json a",
        ] {
            let words = std::iter::once("ztier-bench").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_ok(), "{line}");
        }
        for line in [
            "all --only nothing",
            "all --dir a --resume b",
            "report",
            "zram --stress 0",
            "zram --only nothing",
            "zram --data zeros",
            "soak --mib 1",
            "models --drive sim:floppy",
            "log --log sim:floppy",
            "log --real /mnt --log sim:ssd-null",
            "log --only everything",
            "log --rows G",
            "scan --mib 1",
            "scan --only everything",
            "scan --page-cluster 11",
            "scan --runs 0",
            "scan-load 480",
            "object --only everything",
            "zcache --quick --full",
            "worst-case --quick --full",
            "worst-case --only everything",
            "zcache --memory 1",
            "zcache --only everything",
            "zcache --limits 90",
        ] {
            let words = std::iter::once("ztier-bench").chain(line.split(' '));
            assert!(Cli::try_parse_from(words).is_err(), "{line}");
        }
    }
}

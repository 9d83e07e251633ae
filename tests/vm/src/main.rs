//! Machines by hand: runs a script in a machine, or a check that takes too long for a test.

mod pressure;
mod pulled;

use clap::{Args, Parser, Subcommand};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use ztier::config::size;
use ztier::error::{Context, Error, Result};
use ztier_vm::cache::Cache;
use ztier_vm::kernel::{Flavour, Kernel};
use ztier_vm::programs::libraries;
use ztier_vm::{Lab, Machine, Setup, Trouble};

/// Limit on the time to copy a file into a machine.
const BRING: Duration = Duration::from_secs(60);

/// Boots a real kernel in a virtual machine (QEMU, an emulated CPU) and runs things in it.
#[derive(Parser)]
#[command(name = "ztier-vm", version)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs a script of `sh` in a machine; ends with its exit status.
    ///
    /// The machine has busybox, this system's tools for block devices and file systems, fio, and
    /// `ztier` as it was last built. Disks are `/disk/a`, `/disk/b` and so on. What the script
    /// leaves in `/results` comes back, with --results.
    Run(RunArgs),
    /// Pulls the fast drive of a cache out for good, and says what the slow one alone is worth
    /// then: for ztier, dm-writecache and bcache, idle and at work.
    Pulled(pulled::Options),
    /// Reboots a Debian with systemd again and again that has ext4, LVM, LUKS and swap on volumes;
    /// takes minutes a round. Makes that Debian the first time, which needs root and mmdebstrap.
    Reboots {
        /// How often.
        #[arg(long, value_name = "N", default_value_t = 10)]
        rounds: u32,
        /// How volumes are exported.
        #[arg(long, value_name = "EXPORT", default_value = "auto")]
        export: String,
    },
    /// Puts swap on a volume under pressure for ten minutes: a load of twice the memory there is,
    /// which compares every byte; in a machine that is short of memory as a whole, and in a
    /// control group.
    Pressure(pressure::Options),
    /// Says which kernel machines boot; with --renew, after asking for a newer one.
    Kernel {
        /// Ask Debian for a newer one.
        #[arg(long)]
        renew: bool,
    },
}

#[derive(Args)]
struct RunArgs {
    /// The script; `-` is the standard input.
    script: PathBuf,
    /// Memory.
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = size::parse_bytes)]
    memory: u64,
    /// Boot the kernel for all machines, which has zswap and tells which swap slots it frees.
    #[arg(long)]
    full_kernel: bool,
    /// CPUs.
    #[arg(long, value_name = "N", default_value_t = 2, value_parser = clap::value_parser!(u32).range(1..=64))]
    cpus: u32,
    /// A disk of this size, empty; may be given several times.
    #[arg(long, value_name = "SIZE", value_parser = size::parse_bytes)]
    disk: Vec<u64>,
    /// A program of this system that the machine lacks, like `perf`; may be given several times.
    /// It is in `/brought/bin`, its libraries in `/brought/lib`.
    #[arg(long, value_name = "PROGRAM")]
    bring: Vec<PathBuf>,
    /// The CPU that is emulated, as `qemu-system-x86_64 -cpu` takes it.
    #[arg(long, value_name = "MODEL")]
    cpu: Option<String>,
    /// The longest that the script may take, in seconds.
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    limit: u64,
    /// Unpack the machine's /results into this directory, which is made.
    #[arg(long, value_name = "DIRECTORY")]
    results: Option<PathBuf>,
    /// Keep the disks and what the console showed, and say where.
    #[arg(long)]
    keep: bool,
}

fn main() -> ExitCode {
    let done = match Cli::parse().command {
        Command::Run(args) => run(&args),
        Command::Pulled(options) => pulled::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Reboots { rounds, export } => lab().and_then(|lab| {
            ztier_vm::reboots::reboots(&lab, rounds, &export, std::io::stdout())?;
            Ok(ExitCode::SUCCESS)
        }),
        Command::Pressure(options) => pressure::run(&options).map(|()| ExitCode::SUCCESS),
        Command::Kernel { renew } => kernel(renew),
    };
    done.unwrap_or_else(|error| {
        eprintln!("ztier-vm: {error}");
        ExitCode::from(error.exit_status())
    })
}

#[expect(clippy::print_stdout, reason = "what was asked for")]
fn kernel(renew: bool) -> Result<ExitCode> {
    let kernel = Kernel::open(&Cache::of_user()?, Flavour::default(), renew)?;
    println!("{} {}", kernel.release(), kernel.vmlinuz().display());
    Ok(ExitCode::SUCCESS)
}

fn lab() -> Result<Lab> {
    Lab::open(&["ztier"]).map_err(Trouble::into_error)
}

fn run(args: &RunArgs) -> Result<ExitCode> {
    let script = if args.script.as_os_str() == "-" {
        std::io::read_to_string(std::io::stdin()).context("cannot read the script")?
    } else {
        std::fs::read_to_string(&args.script)
            .context(format_args!("cannot read {}", args.script.display()))?
    };
    let flavour = if args.full_kernel { Flavour::Full } else { Flavour::Cloud };
    let lab = Lab::of(flavour, &["ztier"]).map_err(Trouble::into_error)?;
    let memory =
        u32::try_from(args.memory >> 20).context("a machine can't have that much memory")?;
    let mut setup = Setup::new(&lab).memory(memory).cpus(args.cpus);
    let kept = tempfile::Builder::new().prefix("ztier-vm-kept-").tempdir();
    let kept = kept.context("cannot make a directory for the disks")?;
    for (size, letter) in args.disk.iter().zip('a'..='z') {
        let path = kept.path().join(format!("disk-{letter}"));
        let file = std::fs::File::create(&path).context("cannot make a disk")?;
        file.set_len(*size).context("cannot size a disk")?;
        setup = setup.file_disk(&letter.to_string(), &path, ztier_vm::Cache::Writeback);
    }
    if let Some(model) = &args.cpu {
        setup = setup.args(&["-cpu", model]);
    }
    let began = Instant::now();
    let machine = setup.boot()?;
    args.bring.iter().try_for_each(|program| bring(&machine, program))?;
    eprintln!(
        "ztier-vm: {} is up after {:.1} s",
        lab.kernel.release(),
        began.elapsed().as_secs_f64()
    );
    let limit = Duration::from_secs(args.limit);
    let status = machine.begin(&script)?.follow(limit, std::io::stdout());
    if let Some(directory) = &args.results {
        std::fs::create_dir_all(directory).context("cannot make the directory for results")?;
        machine.ok("mkdir -p /results; tar -C /results -cf /tmp/results.tar .", limit)?;
        let archive = machine.get("/tmp/results.tar", limit)?;
        unpack(&archive, directory)?;
    }
    if args.keep {
        std::fs::write(kept.path().join("console"), machine.console()).context("cannot keep")?;
    }
    if status.is_ok() {
        machine.off()?;
    } else {
        eprint!("{}", machine.console());
        drop(machine);
    }
    if args.keep {
        eprintln!("ztier-vm: disks and console are in {}", kept.keep().display());
    }
    Ok(ExitCode::from(u8::try_from(status?).unwrap_or(1)))
}

/// Copies a program and its libraries into the machine, which may have other versions of both.
fn bring(machine: &Machine, program: &Path) -> Result<()> {
    let put = |file: &Path, place: &str| {
        let content = std::fs::read(file).context(format!("cannot read {}", file.display()))?;
        let name = file.file_name().unwrap_or_default().to_string_lossy();
        let at = format!("/brought/{place}/{name}");
        machine.ok(&format!("mkdir -p /brought/{place}"), BRING)?;
        machine.put(&at, &content, BRING)?;
        machine.ok(&format!("chmod 755 '{at}'"), BRING)
    };
    for library in libraries(program)? {
        put(&library, "lib")?;
    }
    put(program, "bin").map(drop)
}

fn unpack(archive: &[u8], directory: &Path) -> Result<()> {
    let mut tar = std::process::Command::new("tar")
        .arg("-xC")
        .arg(directory)
        .stdin(std::process::Stdio::piped())
        .spawn()
        .context("cannot run tar")?;
    if let Some(mut input) = tar.stdin.take() {
        input.write_all(archive).context("cannot unpack the results")?;
    }
    if tar.wait().context("cannot wait for tar")?.success() {
        Ok(())
    } else {
        Err(Error::failure("cannot unpack the results"))
    }
}

//! Swap under pressure by hand: in a machine that is short of memory as a whole, and in a control
//! group on this machine.

use clap::{Args, ValueEnum};
use std::fs::OpenOptions;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use ztier::config::size::parse_bytes;
use ztier::error::{Context, Error, Result};
use ztier_vm::kernel::Flavour;
use ztier_vm::programs::ours;
use ztier_vm::{Lab, Setup, Trouble};

/// The program that makes the pressure, in the machine and here.
const PROGRAM: &str = "ztier-vm-pressure";
/// Time that a run may take beyond its own duration.
const GRACE: Duration = Duration::from_secs(400);

/// Where memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Over {
    /// In a virtual machine as a whole, with swap by ublk.
    Machine,
    /// In a control group of this machine, with swap by FUSE and a loop device; needs root.
    Group,
    /// One after the other.
    Both,
}

/// How much pressure.
#[derive(Args)]
pub struct Options {
    /// Where memory is short
    #[arg(long, value_enum, default_value = "both")]
    over: Over,
    /// How long, in seconds
    #[arg(long, value_name = "N", default_value_t = 600)]
    seconds: u64,
    /// Memory of the virtual machine
    #[arg(long, value_name = "SIZE", default_value = "512M", value_parser = parse_bytes)]
    machine_memory: u64,
    /// CPUs of the virtual machine
    #[arg(long, value_name = "N", default_value_t = 2)]
    cpus: u32,
    /// Memory of the group
    #[arg(long, value_name = "SIZE", default_value = "256M", value_parser = parse_bytes)]
    group_memory: u64,
    /// The load's memory, as a multiple of the group's
    #[arg(long, value_name = "N", default_value_t = 2.0)]
    times: f64,
    /// What stress-ng writes: its `--vm-method`
    #[arg(long, value_name = "METHOD", default_value = "rand-set")]
    method: String,
    /// Take the coldest to a disk or file of this size; 0: do without
    #[arg(long, value_name = "SIZE", default_value = "1G", value_parser = parse_bytes)]
    spill: u64,
    /// Limit on the memory of the swap
    #[arg(long, value_name = "BYTES|%")]
    ram_limit: Option<String>,
}

/// Runs the pressure that `options` describe.
///
/// # Errors
/// A condition was violated, or the run is impossible here.
pub fn run(options: &Options) -> Result<()> {
    if options.over != Over::Group {
        // The kernel that tells which slots it frees.
        let lab = Lab::of(Flavour::Full, &["ztier", PROGRAM]).map_err(Trouble::into_error)?;
        options.machine(&lab)?;
    }
    if options.over != Over::Machine {
        options.group()?;
    }
    Ok(())
}

impl Options {
    fn args(&self, over: &str) -> Vec<String> {
        let Self { seconds, times, method, .. } = self;
        let text =
            format!("stress --over {over} --seconds {seconds} --times {times} --method {method}");
        let mut args: Vec<_> = text.split(' ').map(str::to_owned).collect();
        args.extend(self.ram_limit.iter().flat_map(|l| ["--ram-limit".to_owned(), l.clone()]));
        args
    }

    fn limit(&self) -> Duration {
        Duration::from_secs(self.seconds) + GRACE
    }

    fn machine(&self, lab: &Lab) -> Result<()> {
        let _turn = lab.turn(GRACE)?;
        let mib = u32::try_from(self.machine_memory >> 20)
            .context("a machine can't have that much memory")?;
        let mut setup = Setup::new(lab).memory(mib).cpus(self.cpus).disk("other", 64 << 20);
        let mut args = self.args("machine").join(" ");
        if self.spill > 0 {
            setup = setup.disk("spill", self.spill);
            args += " --spill /disk/spill";
        }
        let machine = setup.boot()?;
        // If tasks hang, the console tells what each processor does.
        let script = format!(
            "echo 8 >/proc/sys/kernel/printk; cd /proc/sys/kernel && \
             echo 1 >hung_task_all_cpu_backtrace; cd /; \
             modprobe ublk_drv; mkfs.ext4 -q /disk/other && mount /disk/other /mnt && \
             exec {PROGRAM} {args} --export ublk --file /mnt/probe"
        );
        let (release, mib) = (lab.kernel.release(), mib);
        eprintln!(
            "ztier-vm: Linux {release} under QEMU, {} CPUs, {mib} MiB, swap by ublk",
            self.cpus
        );
        let status = machine.begin(&script)?.follow(self.limit(), std::io::stdout());
        if !matches!(status, Ok(0)) {
            eprint!("{}", machine.console());
        }
        match status? {
            0 => machine.off(),
            _ => Err(Error::failure("the machine did not stand the pressure")),
        }
    }

    fn group(&self) -> Result<()> {
        let place = tempfile::Builder::new().prefix("ztier-pressure-").tempdir();
        let place = place.context("cannot make a directory")?;
        let mut command = self.group_command(place.path())?;
        eprintln!("ztier-vm: a group of this machine, swap by FUSE and a loop device");
        match command.status().context("cannot put a group under pressure")?.success() {
            true => Ok(()),
            false => Err(Error::failure("the group did not stand the pressure")),
        }
    }

    /// The command that puts a group under pressure, with its files in `place`.
    fn group_command(&self, place: &Path) -> Result<Command> {
        let (program, ztier) = (ours(PROGRAM)?, ours("ztier")?);
        let path = std::env::var_os("PATH").unwrap_or_default();
        let own = ztier.parent().map(std::path::Path::to_owned);
        let path = std::env::join_paths(own.into_iter().chain(std::env::split_paths(&path)));
        let mut command = Command::new("timeout");
        command
            .args(["-k", "60", &self.limit().as_secs().to_string()])
            .arg(program)
            .args(self.args("group"))
            .args(["--export", "fuse", "--memory", &self.group_memory.to_string(), "--file"])
            .arg(place.join("probe"))
            .env("PATH", path.context("cannot name the programs")?)
            .env("ZTIER_RUN_DIR", place.join("run"))
            .env("ZTIER_STATE_DIR", place.join("state"))
            .stdin(Stdio::null());
        if self.spill > 0 {
            let below = place.join("spill");
            let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&below);
            let made = file.and_then(|file| file.set_len(self.spill));
            made.context(format!("cannot make {}", below.display()))?;
            command.arg("--spill").arg(below);
        }
        Ok(command)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Whole {
        #[command(flatten)]
        options: Options,
    }

    /// The programs are built apart, and a run takes minutes.
    #[test]
    fn the_program_knows_all_that_a_group_is_given() {
        let Whole { options } = Whole::parse_from(["pressure", "--ram-limit", "20%"]);
        let place = tempfile::tempdir().unwrap();
        let mut command = options.group_command(place.path()).unwrap();
        // The first argument that is wrong is told.
        let done = command.args(["--swap-size", "none"]).output().unwrap();
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(said.contains("invalid value 'none' for '--swap-size"), "{said}");
        assert!(place.path().join("spill").metadata().unwrap().len() == options.spill);
    }
}

//! `ztier run`: runs a program with little memory, and a volume as swap.
//!
//! Invariants: the volume's daemon notes everything before it is made; whatever happens to this
//! process, the daemon ends the rest of the program, and then itself; the limit does not apply to
//! the daemon.

mod relay;
mod report;

use super::down::Down;
use super::swap::changed;
use super::{output, progress_line::ProgressLine};
use crate::config::export::Kind;
use crate::config::limit::Range;
use crate::config::plan;
use crate::config::settings::word;
use crate::config::size::{self, human};
use crate::config::tunable::OF_SWAPPINESS;
use crate::config::{
    Amount, Ballast, Choice, Job, Limit, Paths, Plan, Settings, SlotNews, Tunable, Use, machine,
    name,
};
use crate::daemon::memory_holder::Kept;
use crate::daemon::{self, Ready, state};
use crate::error::{Context, Error, Result};
use crate::system::job::{self, Parent};
use crate::system::usage;
use clap::{Args, ValueHint};
use relay::Relay;
use report::{Report, Sampler};
use std::ffi::OsString;
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command};
use std::time::Instant;

/// The smallest limit on a program's memory, in bytes.
const LEAST_MEMORY: u64 = 4 << 20;
/// Default size of the swap, as a multiple of the program's memory.
const SWAP_TIMES: u64 = 4;
/// Bytes of the machine's memory that other programs keep, at least.
const RESERVE: u64 = 128 << 20;
/// Added to the errno of joining the cgroup, to tell it from that of starting the program.
const JOINING: i32 = 1 << 16;

/// Run a program with little memory, and compressed swap below it
///
/// Makes a volume, uses it as swap, and runs the program in a cgroup with that limit. At the end it
/// prints what the program took, and removes everything. Signals are passed on, and the program's
/// exit status is that of this command (128 + the signal that ended it; 127: there is no such
/// program; 126: it can't be started). Swap serves the whole machine: other programs may be swapped
/// out to it.
#[derive(Args)]
#[command(after_help = size::HELP)]
pub struct Run {
    /// Memory of the program and all that it starts, like 512M
    #[arg(long, value_name = "BYTES|%")]
    mem: Amount,
    /// Size of the swap below it [default: four times the memory]
    #[arg(long, value_name = "BYTES")]
    swap_size: Option<Amount>,
    /// Limit on the memory of that swap [default: its size, or what the machine can spare]. `auto`:
    /// adapts to the machine and the swap, up to that default
    #[arg(long, value_name = "BYTES|%|auto")]
    ram_limit: Option<Limit>,
    /// Device or file for the coldest pages once that memory is full; it is overwritten
    #[arg(long, value_name = "DEV|FILE", value_hint = ValueHint::AnyPath)]
    spill: Option<PathBuf>,
    /// Name of the volume [default: run-PROCESS]
    #[arg(long)]
    name: Option<String>,
    /// How to offer the volume: `ublk`, `fuse`, or `auto` for the best that works here
    #[arg(long, value_parser = word::<Choice>(&["auto", "ublk", "fuse"]))]
    export: Option<Choice>,
    /// vm.page-cluster meanwhile [default: 5]
    #[arg(long, value_name = "N|keep")]
    page_cluster: Option<Tunable>,
    /// vm.swappiness meanwhile, 0 to 200 [default: 100]
    #[arg(long, value_name = "N|keep")]
    swappiness: Option<Tunable>,
    /// Whether the kernel is made to free the swap slots of pages that are read back; `auto`: while
    /// there is no other swap [default: auto]
    #[arg(long, value_name = "WHEN", value_parser = word::<Ballast>(&["auto", "on", "off"]))]
    ballast: Option<Ballast>,
    /// Whether blocks of freed swap slots are dropped; `auto`: where the kernel tells which
    /// [default: auto]
    #[arg(long, value_name = "WHEN", value_parser = word::<SlotNews>(&["auto", "off"]))]
    freed_slots: Option<SlotNews>,
    /// Write what the program took to this file as JSON, in place of printing it
    #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
    json: Option<PathBuf>,
    /// The program and its arguments
    #[arg(required = true, last = true, value_name = "PROGRAM", value_hint = ValueHint::CommandWithArguments)]
    program: Vec<OsString>,
}

/// Everything that is made for a program. Dropping it removes that, best effort.
struct Stage<'a> {
    plan: Plan,
    paths: &'a Paths,
    job: Job,
    memory: u64,
    ready: Ready,
    up: bool,
}

impl Run {
    /// Runs the command; returns the exit status.
    ///
    /// # Errors
    /// Something that the program needs can't be made, or can't be removed.
    pub fn run(self) -> Result<u8> {
        let paths = Paths::of_this_user()?;
        clean_up_dead(&paths)?;
        let parent = Parent::find()?;
        let (plan, memory) = self.plan(&paths, &parent)?;
        let mut stage = Stage::set(plan, &paths, memory)?;
        stage.announce();
        let own = OF_SWAPPINESS.resolve(self.swappiness)?;
        parent.make(&stage.job.cgroup, memory, own)?;
        let begun = Instant::now();
        // From here on signals go to the program.
        let relay = Relay::new()?;
        let control = paths.volume(&stage.plan.name).control;
        let mut sampler = Sampler::new(&control, stage.ready.pid, &stage.job.cgroup);
        let mut child = match self.start(&stage, &relay) {
            Ok(child) => child,
            Err(failed) => {
                stage.strike()?;
                return self.not_started(&failed);
            }
        };
        let status = relay.wait(&mut child, &mut stage, &mut sampler)?;
        let seconds = begun.elapsed().as_secs_f64();
        let took = job::Usage::of(&stage.job.cgroup);
        let report = Report::new(&stage, &self.program, status, seconds, took, sampler.last());
        let struck = stage.strike();
        self.tell(&report)?;
        struck.map(|()| status)
    }

    /// The volume for the program, and the program's memory in bytes.
    fn plan(&self, paths: &Paths, parent: &Parent) -> Result<(Plan, u64)> {
        let volume = match &self.name {
            Some(volume) => volume.clone(),
            None => format!("run-{}", std::process::id()),
        };
        name::check(&volume).map_err(Error::usage)?;
        let memory = self.mem.of(machine::memory_bytes()) & !4095;
        if memory < LEAST_MEMORY {
            return Err(Error::usage(format!("mem {} is less than programs need", human(memory)))
                .hint(format!("give at least {}", human(LEAST_MEMORY))));
        }
        let size = match self.swap_size {
            Some(Amount::Bytes(size)) => size,
            Some(share) => share.of(machine::memory_bytes()).next_multiple_of(4096),
            None => memory.saturating_mul(SWAP_TIMES),
        };
        let spared = || store_limit(memory, size, self.spill.is_some()).map(Amount::Bytes);
        let (ram_limit, ram_max) = match self.ram_limit {
            Some(Limit::Auto) => (Limit::Auto, Some(spared()?)),
            Some(limit) => (limit, None),
            None => (Limit::At(spared()?), None),
        };
        let settings = Settings {
            size: Some(Amount::Bytes(size)),
            ram_limit: Some(ram_limit),
            ram_max,
            spill: self.spill.clone(),
            export: self.export,
            usage: Some(Use::Swap),
            ballast: self.ballast,
            freed_slots: self.freed_slots,
            page_cluster: self.page_cluster,
            swappiness: self.swappiness,
            ..Settings::default()
        };
        let chosen = daemon::choose(&settings)?;
        if chosen.kind == Kind::Nbd {
            return Err(Error::failure(format!("no swap can be made here: {}", chosen.why))
                .hint("run as root (CAP_SYS_ADMIN); `ztier doctor` says what block devices need"));
        }
        let mut plan = Plan::resolve(&volume, &settings, chosen.kind, paths)?;
        if let Some(usage) = &mut plan.usage {
            let mut notes = Vec::new();
            state::plan_settings(&paths.volume(&volume), usage, &mut notes);
            notes.iter().for_each(|note| output::remark(note));
        }
        plan.job = Some(Job::of_this_process(parent.child(&volume)?)?);
        Ok((plan, memory))
    }

    /// Starts the program in its cgroup.
    fn start(&self, stage: &Stage<'_>, relay: &Relay) -> io::Result<Child> {
        let procs = stage.job.cgroup.join("cgroup.procs");
        let procs = std::fs::OpenOptions::new().write(true).open(procs);
        let mut procs = procs.map_err(joining)?;
        let unblock = relay.before();
        let mut command = Command::new(&self.program[0]);
        command.args(&self.program[1..]);
        let enter = move || {
            io::Write::write_all(&mut procs, b"0").map_err(joining)?;
            unblock.restore()
        };
        // SAFETY: between fork and exec the closure writes to an open descriptor and sets the
        // signal mask; both are single system calls, without allocation and locks.
        unsafe { command.pre_exec(enter) };
        command.spawn()
    }

    /// Reports a program that could not be started, and returns the exit status.
    fn not_started(&self, failed: &io::Error) -> Result<u8> {
        let program = Path::new(&self.program[0]).display();
        let code = failed.raw_os_error().unwrap_or_default();
        if code >= JOINING {
            let why = io::Error::from_raw_os_error(code - JOINING);
            return Err(Error::failure(format!("cannot put {program} into its cgroup: {why}"))
                .hint("run as root, where cgroups can be written"));
        }
        output::remark(&format!("ztier: cannot run {program}: {failed}"));
        Ok(if failed.kind() == io::ErrorKind::NotFound { 127 } else { 126 })
    }

    fn tell(&self, report: &Report) -> Result<()> {
        let Some(file) = &self.json else {
            report.table().lines().for_each(output::remark);
            return Ok(());
        };
        let text = serde_json::to_string_pretty(report).context("cannot encode the result")?;
        std::fs::write(file, text + "\n").context(format!("cannot write {}", file.display()))
    }
}

/// Marks an error as one of joining the cgroup.
fn joining(e: io::Error) -> io::Error {
    io::Error::from_raw_os_error(JOINING + e.raw_os_error().unwrap_or_default())
}

/// The memory limit of a swap volume of `size` bytes for a program of `memory` bytes: all that the
/// volume may ever need, if the machine can spare that.
fn store_limit(memory: u64, size: u64, spills: bool) -> Result<u64> {
    let (segment, buffers) = (plan::DEFAULT_SEGMENT, plan::block_device_buffers());
    let tables = Range::in_memory(size, segment, spills, buffers).least;
    // Hardly any data compresses to less than an eighth, and the kernel has its own tables for
    // swap.
    let least = tables.max(size / 8);
    let there = usage::room(Path::new("")).map_or(u64::MAX, |room| room.memory);
    let there = there.min(machine::memory_bytes());
    let spare = there.saturating_sub(memory).saturating_sub(RESERVE.max(there / 10));
    if spare < least {
        return Err(Error::failure(format!(
            "the machine can spare {}, and {} for the program with {} of swap need {} more",
            human(there),
            human(memory),
            human(size),
            human(least)
        ))
        .hint("give less with --mem or --swap-size, or end some programs"));
    }
    // Data that does not compress takes a little more than its size.
    Ok(spare.min(size + size / 64 + tables))
}

/// Removes what is left of runs that were killed together with their daemons.
fn clean_up_dead(paths: &Paths) -> Result<()> {
    if !paths.exists()? {
        return Ok(());
    }
    for volume in daemon::names(paths) {
        let daemon::Found::Dead(found) = daemon::find(paths, &volume) else { continue };
        if found.plan.job.is_none_or(|job| job.runner().is_some()) {
            continue;
        }
        match Down::after_death(paths, &volume) {
            Ok(removed) => output::remark(&format!(
                "{volume}, an earlier run that was killed: removed {}",
                removed.join(", ")
            )),
            Err(e) => output::remark(&format!("{volume}, an earlier run that was killed: {e}")),
        }
    }
    Ok(())
}

impl<'a> Stage<'a> {
    /// Makes the volume and puts it to use as swap.
    fn set(plan: Plan, paths: &'a Paths, memory: u64) -> Result<Self> {
        let job = plan.job.clone().ok_or_else(|| Error::failure("the volume has no job"))?;
        let progress_line = ProgressLine::new();
        let progress = |what: &str| progress_line.show(&format_args!("{}: {what}", plan.name));
        let ready = daemon::spawn(&plan, paths, &progress)?;
        Ok(Self { plan, paths, job, memory, ready, up: true })
    }

    /// Prints the settings that were chosen.
    fn announce(&self) {
        let Plan { name, size_bytes, ram_limit_bytes, ram_auto, export, usage, .. } = &self.plan;
        let settings = usage.as_ref().map(usage::tuned).unwrap_or_default();
        output::remark(&format!(
            "{name}: {} for the program; {} of swap by {}, in at most {} of memory beside it{}{}; \
             swap is the whole machine's: others may be swapped out to it, too",
            human(self.memory),
            human(*size_bytes),
            export.kind(),
            human(*ram_limit_bytes),
            if ram_auto.is_some() { ", as it adapts" } else { "" },
            changed(settings, |t| (t.before, t.set)),
        ));
        for note in &self.ready.notes {
            output::remark(&format!("{name}: {note}"));
        }
    }

    /// Starts another daemon after one died, if the device waits for it. If no device waits, what
    /// was swapped out is lost, and the program is ended.
    fn daemon_died(&mut self) {
        let name = &self.plan.name;
        let files = self.paths.volume(name);
        let waits = state::State::read(&files)
            .is_ok_and(|state| state.is_some_and(|s| s.leftovers.iter().any(|l| l.waits())));
        if waits && Kept::is_there(&files.keep) {
            let next = daemon::Starting::begin(&self.plan, self.paths, daemon::LOOKERS, true);
            match next.and_then(|next| next.finish(&|_| {})) {
                Ok(ready) => {
                    output::remark(&format!("{name}: its daemon died; another goes on"));
                    self.ready = ready;
                    return;
                }
                Err(e) => output::remark(&format!("ztier: {e}")),
            }
        }
        output::remark(&format!(
            "ztier: the daemon of volume `{name}` died, with what was swapped out; the program is \
             ended"
        ));
        // A waiting device is removed by force: the program can't end before its requests fail.
        let gone = Down::by_force(self.paths, name).map(drop);
        for failed in [gone, self.job.clear().map(drop)].into_iter().filter_map(Result::err) {
            output::remark(&format!("ztier: {failed}"));
        }
    }

    /// Ends what the program left, and removes everything.
    fn strike(&mut self) -> Result<()> {
        self.up = false;
        let name = &self.plan.name;
        match self.job.clear()? {
            0 => {}
            n => output::remark(&format!("{name}: {n} processes that the program left were ended")),
        }
        Down::quietly(self.paths, name)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        if self.up
            && let Err(e) = self.strike()
        {
            output::remark(&format!("ztier: {e}"));
        }
    }
}

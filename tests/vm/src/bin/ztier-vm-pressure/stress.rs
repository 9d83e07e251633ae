//! A volume as swap, the load above it, and the probe beside it.
//!
//! Invariants: the volume is removed and the machine's setting restored in any case; a load that
//! does not end is killed.

use crate::kernel::{self, Counters, Log, Said};
use crate::say;
use crate::table::Seen;
use crate::work::Work;
use clap::{Args, ValueEnum};
use rustix::process::{Pid, Signal, kill_process};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::io::{BufRead, BufReader, Read};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};
use ztier::config::size::{human, parse_bytes};
use ztier::error::{Context, Error, Result};

/// The volume's name.
const NAME: &str = "pressure";
/// Time that a load may take beyond its own duration.
const GRACE: Duration = Duration::from_secs(120);
/// A load that has swapped nothing in runs again for twice as long, up to this number of seconds,
/// as a slow machine needs longer to fill its memory.
const LONG_ENOUGH: u64 = 120;
/// Interval between checks.
const LOOK: Duration = Duration::from_millis(200);
/// Interval between progress lines.
const TELL: Duration = Duration::from_secs(10);
/// Seconds of waiting after which a task counts as hung.
const HUNG_SECONDS: &str = "30";
const HUNG: &str = "/proc/sys/kernel/hung_task_timeout_secs";

/// Whose memory is short.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Over {
    /// That of the whole machine.
    Machine,
    /// That of a control group, which `ztier run` makes.
    Group,
}

/// How much pressure.
#[derive(Clone, Debug, Args)]
pub struct Stress {
    /// Whose memory is short
    #[arg(long, value_enum)]
    over: Over,
    /// How long
    #[arg(long, default_value_t = 600)]
    seconds: u64,
    /// The group's memory
    #[arg(long, default_value = "256M", value_parser = parse_bytes)]
    memory: u64,
    /// The load's memory, as a multiple of that
    #[arg(long, default_value_t = 2.0)]
    times: f64,
    /// What stress-ng writes: its `--vm-method`
    #[arg(long, default_value = "rand-set")]
    method: String,
    /// Size of the swap, in place of four times the memory
    #[arg(long, value_parser = parse_bytes)]
    swap_size: Option<u64>,
    /// How the volume is exported
    #[arg(long, default_value = "auto")]
    export: String,
    /// Where the coldest goes
    #[arg(long)]
    spill: Option<PathBuf>,
    /// Limit on the memory of the swap
    #[arg(long)]
    ram_limit: Option<String>,
    /// The file that the probe beside the load uses, on another drive
    #[arg(long)]
    file: PathBuf,
}

impl Stress {
    /// Runs the test, prints the result.
    ///
    /// # Errors
    /// Any condition was violated.
    pub fn run(&self) -> Result<()> {
        let stop = Arc::new(AtomicBool::new(false));
        for signal in [SIGINT, SIGTERM] {
            let flag = Arc::clone(&stop);
            signal_hook::flag::register(signal, flag).context("cannot heed signals")?;
        }
        let log = Log::begin()?;
        let _hung = Hung::set();
        let left = Left::now();
        let mut seen = Seen { available_least: u64::MAX, ..Seen::default() };
        let done = self.under_pressure(&log, &stop, &mut seen);
        // Also after a failure: the table shows why.
        if left != Left::now() {
            seen.wrong.push(format!("left behind: {:?}, before {left:?}", Left::now()));
        }
        say(seen.table().trim_end());
        done?;
        let wrongs = seen.wrongs();
        match wrongs.len() {
            0 => {
                say("nothing was wrong");
                Ok(())
            }
            n => {
                wrongs.iter().for_each(|wrong| say(&format!("wrong: {wrong}")));
                Err(Error::failure(format!("{n} things were wrong")))
            }
        }
    }

    fn under_pressure(&self, log: &Log, stop: &AtomicBool, seen: &mut Seen) -> Result<()> {
        let memory = if self.over == Over::Machine { kernel::memory() } else { self.memory };
        let mib = (memory as f64 * self.times) as u64 >> 20;
        let of = human(memory);
        seen.load = format!("{mib} MiB ({} of stress-ng's {}) in {of}", mib - mib / 4, self.method);
        let json = tempfile::NamedTempFile::new().context("cannot make a file")?;
        let volume = (self.over == Over::Machine).then(|| self.up(memory)).transpose()?;
        let (sender, heard) = channel();
        let mut probe = self.probe(&sender)?;
        let before = Counters::now();
        let begun = Instant::now();
        let mut lines = Vec::new();
        let mut seconds = self.seconds;
        loop {
            let mut command = match &volume {
                Some(_) => Command::new(current_program()?),
                None => self.job(json.path())?,
            };
            // A quarter is this program's own load, which compares all of its pages each time, in
            // order.
            let work = Work::new(mib - mib / 4, 2, &self.method, mib / 4, seconds);
            let child = command.args(work.args()).stdin(Stdio::null()).stdout(Stdio::piped());
            let mut child = child.spawn().context("cannot start the load")?;
            listen(child.stdout.take(), Who::Load, &sender);
            let patience = Duration::from_secs(seconds) + GRACE;
            let mut each = || lines.extend(log.lines());
            seen.failed = watch(&mut child, &heard, stop, seen, patience, &mut each)
                .err()
                .map(|e| e.to_string());
            seen.seconds = begun.elapsed().as_secs_f64();
            seen.counters = Counters::now().since(before);
            if seen.failed.is_some() || seen.pressed() || seconds >= LONG_ENOUGH {
                break;
            }
            seconds *= 2;
            say(&format!("the load was too slow to swap; again, for {seconds} s"));
        }
        end_probe(&mut probe, seen);
        drop(sender);
        heard.try_iter().for_each(|word| seen.take(word));
        seen.stats = match &volume {
            Some(volume) => volume.stats()?,
            None => serde_json::from_reader(json.reopen().context("cannot read figures")?)
                .map(of_run)
                .context("`ztier run` left no figures")?,
        };
        let down = volume.map_or(Ok(()), Volume::down);
        lines.extend(log.lines());
        seen.said = Said::of(&lines);
        down
    }

    /// Starts the probe beside the load.
    fn probe(&self, sender: &Sender<(Who, String)>) -> Result<Child> {
        let mut command = Command::new(current_program()?);
        command.arg("probe").arg(&self.file).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().context("cannot start the one beside the load")?;
        listen(child.stdout.take(), Who::Probe, sender);
        Ok(child)
    }

    fn swap_bytes(&self, memory: u64) -> u64 {
        self.swap_size.unwrap_or((memory * 4).next_multiple_of(1 << 20))
    }

    fn limits(&self) -> Vec<String> {
        let spill = self.spill.iter().flat_map(|at| ["--spill".into(), at.display().to_string()]);
        let ram = self.ram_limit.iter().flat_map(|most| ["--ram-limit".into(), most.clone()]);
        spill.chain(ram).collect()
    }

    /// The `ztier run` command up to the program's arguments.
    fn job(&self, json: &std::path::Path) -> Result<Command> {
        let own = current_program()?;
        let mut command = Command::new("ztier");
        let (memory, swap) = (self.memory.to_string(), self.swap_bytes(self.memory).to_string());
        command.args(["run", "--mem", &memory, "--swap-size", &swap, "--export", &self.export]);
        command.args(self.limits()).arg("--json").arg(json).arg("--").arg(own);
        Ok(command)
    }

    /// Makes a volume the machine's swap.
    fn up(&self, memory: u64) -> Result<Volume> {
        let size = self.swap_bytes(memory).to_string();
        let up = ["up", NAME, "--size", &size, "--export", &self.export].map(str::to_owned);
        ztier(&[&up[..], &self.limits()].concat())?;
        let volume = Volume { up: true };
        say(ztier(&["swapon".into(), NAME.into()])?.trim_end());
        Ok(volume)
    }
}

/// Waits for the end of the load.
fn watch(
    child: &mut Child,
    heard: &Receiver<(Who, String)>,
    stop: &AtomicBool,
    seen: &mut Seen,
    patience: Duration,
    each: &mut impl FnMut(),
) -> Result<()> {
    let begun = Instant::now();
    let mut tell = TELL;
    loop {
        let ended = child.try_wait().context("cannot wait for the load")?;
        while let Ok(word) = heard.try_recv() {
            seen.take(word);
        }
        each();
        seen.swap_most = seen.swap_most.max(kernel::swap_in_use());
        seen.available_least = seen.available_least.min(kernel::available());
        if let Some(status) = ended {
            return match status.success() {
                true => Ok(()),
                false => Err(Error::failure(format!("it ended with {status}"))),
            };
        }
        if begun.elapsed() >= patience || stop.load(Ordering::Relaxed) {
            end(child);
            let seconds = begun.elapsed().as_secs();
            return Err(Error::failure(format!("it was ended after {seconds} s")));
        }
        if begun.elapsed() >= tell {
            tell += TELL;
            let [memory, file] = seen.longest.map(|ms| ms.unwrap_or(0));
            let swap = human(kernel::swap_in_use());
            let (now, there) = (begun.elapsed().as_secs(), human(kernel::available()));
            say(&format!(
                "{now} s: {swap} swapped out, {there} available; longest waits {memory} ms for \
                 memory, {file} ms for a file"
            ));
        }
        std::thread::sleep(LOOK);
    }
}

/// The path of this program.
fn current_program() -> Result<PathBuf> {
    std::env::current_exe().context("cannot find this program")
}

/// The process that printed a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    Load,
    Probe,
}

impl Seen {
    fn take(&mut self, (who, line): (Who, String)) {
        match who {
            Who::Probe => self.hear(&line),
            Who::Load => self.lines.push(line),
        }
    }
}

/// Sends what a process prints to `sender`, line by line.
fn listen(out: Option<impl Read + Send + 'static>, who: Who, sender: &Sender<(Who, String)>) {
    let sender = sender.clone();
    let read = move || {
        for line in
            out.into_iter().flat_map(|out| BufReader::new(out).lines()).map_while(|l| l.ok())
        {
            // The receiver is gone, so the line is not needed.
            let _ = sender.send((who, line));
        }
    };
    std::thread::spawn(read);
}

/// Ends the probe, which prints a last line.
fn end_probe(probe: &mut Child, seen: &mut Seen) {
    drop(probe.stdin.take());
    let deadline = Instant::now() + GRACE;
    loop {
        match probe.try_wait() {
            Ok(Some(status)) if status.success() => return,
            Ok(Some(status)) => seen.wrong.push(format!("the probe ended with {status}")),
            Ok(None) if Instant::now() < deadline => {
                std::thread::sleep(LOOK / 10);
                continue;
            }
            _ => {
                seen.wrong.push("the probe beside the load does not end".into());
                let _ = probe.kill(); // it may just have
            }
        }
        return;
    }
}

/// Ends the load: with SIGTERM, soon after with SIGKILL.
fn end(child: &mut Child) {
    for signal in [Signal::TERM, Signal::KILL] {
        // Not reaped yet, so the pid still belongs to the child.
        let _ = kill_process(Pid::from_child(child), signal);
        let deadline = Instant::now() + GRACE / 4;
        while Instant::now() < deadline {
            if !matches!(child.try_wait(), Ok(None)) {
                return;
            }
            std::thread::sleep(LOOK / 10);
        }
    }
}

/// The figures of `ztier run` under the names of `ztier stats`.
fn of_run(mut took: serde_json::Value) -> serde_json::Value {
    for (name, other) in
        [("mem_used_max_bytes", "store_peak_bytes"), ("spill_written_bytes", "spilled_bytes")]
    {
        took[name] = took[other].take();
    }
    took
}

/// A volume used as swap; taken down when dropped.
struct Volume {
    up: bool,
}

impl Volume {
    fn stats(&self) -> Result<serde_json::Value> {
        let text = ztier(&["stats", NAME, "--format", "json"].map(str::to_owned))?;
        serde_json::from_str(&text).context("cannot understand `ztier stats`")
    }

    fn down(mut self) -> Result<()> {
        self.up = false;
        say(ztier(&["swapoff".into(), NAME.into()])?.trim_end());
        ztier(&["down", NAME, "--discard"].map(str::to_owned)).map(drop)
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if self.up {
            for args in [&["swapoff", NAME, "--force"][..], &["down", NAME, "--discard"]] {
                let args: Vec<_> = args.iter().map(|&arg| arg.to_owned()).collect();
                if let Err(e) = ztier(&args) {
                    eprintln!("ztier-vm-pressure: {e}");
                }
            }
        }
    }
}

/// Runs a `ztier` command, which has to succeed.
fn ztier(args: &[String]) -> Result<String> {
    let what = format!("ztier {}", args.join(" "));
    let out = Command::new("ztier").args(args).stdin(Stdio::null()).output();
    let out = out.context(format!("cannot run {what}"))?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => {
            let said = String::from_utf8_lossy(&out.stderr);
            Err(Error::failure(format!("{what} failed: {}", said.trim())))
        }
    }
}

/// The kernel's setting of the time after which a task counts as hung; restored when dropped.
struct Hung(Option<String>);

impl Hung {
    fn set() -> Self {
        let before = std::fs::read_to_string(HUNG).ok();
        // Some kernels do not check for hung tasks.
        Self(before.filter(|_| std::fs::write(HUNG, HUNG_SECONDS).is_ok()))
    }
}

impl Drop for Hung {
    fn drop(&mut self) {
        if let Some(before) = &self.0
            && let Err(e) = std::fs::write(HUNG, before.trim())
        {
            eprintln!("ztier-vm-pressure: cannot put {HUNG} back: {e}");
        }
    }
}

/// Leftovers that a run may leave on a machine.
#[derive(Debug, PartialEq, Eq)]
struct Left {
    swaps: Vec<String>,
    settings: Vec<String>,
}

impl Left {
    fn now() -> Self {
        let read = |path: &str| std::fs::read_to_string(path).unwrap_or_default();
        let swaps = read("/proc/swaps");
        let names = swaps.lines().skip(1).filter_map(|line| line.split_whitespace().next());
        let settings =
            ["page-cluster", "swappiness"].map(|key| read(&format!("/proc/sys/vm/{key}")));
        Self { swaps: names.map(str::to_owned).collect(), settings: settings.to_vec() }
    }
}

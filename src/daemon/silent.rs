//! Handles a daemon that does not answer: tells whether it is being ended, and ends it.
//!
//! Invariants: every wait here is bounded; a FUSE connection is aborted, and a ublk device stopped,
//! only after the process that serves it was killed.

use super::process::{Condition, Process};
use super::state::Lock;
use super::{opening, serve};
use crate::config::paths::VolumeFiles;
use crate::control::{Client, Request, Version};
use crate::error::{Error, Result, Status};
use crate::export::Leftover;
use crate::patience::eventually;
use crate::remedy;
use rustix::process::Signal;
use std::time::{Duration, Instant};

/// How long one request waits for its answer before the process's condition is checked.
const GLANCE: Duration = Duration::from_secs(1);
/// Interval between checks.
const LOOK: Duration = Duration::from_millis(10);
/// How long the kernel usually takes at most to end a killed process.
const DYING: Duration = Duration::from_secs(3);
/// How many times as long the kernel may take after that: it frees the process's memory first.
const DYING_AT_MOST: u32 = 10;

/// Whether a daemon answers.
#[derive(Debug)]
pub enum Answering {
    /// The daemon answers.
    Yes,
    /// No daemon runs any more.
    Gone,
    /// The daemon does not answer.
    No(Process),
}

/// Asks the volume's daemon whether it answers, for `patience` at most; gives up at once if it is
/// stopped. Waits until a killed daemon is gone.
pub fn answering(files: &VolumeFiles, patience: Duration) -> Answering {
    let client = Client::new(&files.control);
    let deadline = Instant::now() + patience;
    loop {
        let Some(process) = Process::of(files) else {
            if !Lock::is_held(files) {
                return Answering::Gone;
            }
            // The process is not visible here (another namespace): only the socket can tell.
            match client.ask::<Version>(&Request::Ping, GLANCE) {
                Err(_) if Instant::now() < deadline => std::thread::sleep(LOOK),
                _ => return Answering::Yes,
            }
            continue;
        };
        match process.condition() {
            Condition::Dying if released(files, DYING) => return Answering::Gone,
            Condition::Dying | Condition::Stopped => return Answering::No(process),
            Condition::Alive => {}
        }
        match client.ask::<Version>(&Request::Ping, GLANCE) {
            Ok(_) => return Answering::Yes,
            // The daemon answered that it is degraded.
            Err(e) if e.status() == Status::Degraded => return Answering::Yes,
            Err(_) => {}
        }
        if Instant::now() >= deadline {
            return Answering::No(process);
        }
        std::thread::sleep(LOOK);
    }
}

/// The error for a daemon that does not answer and so can't be asked to end, with what to do.
pub fn refusal(files: &VolumeFiles, process: &Process) -> Error {
    let (name, pid) = (&files.name, process.pid());
    let force = remedy::SILENT.of(name);
    let error = |what: String| Error::degraded(format!("the daemon of volume `{name}` {what}"));
    match (process.condition(), opening::noted(files)) {
        (Condition::Stopped, _) => error(format!("(process {pid}) is stopped"))
            .hint(format!("`kill -CONT {pid}` lets it go on, {force}")),
        (_, Some(step)) => error(format!("(process {pid}) is coming up: {step}"))
            .hint(format!("wait for it, or {force}")),
        _ => error(format!("(process {pid}) does not answer"))
            .hint(format!("it may wait for a drive (see `dmesg`); {force}")),
    }
}

/// Ends a daemon that does not answer: kills it, and aborts requests to its own device if it waits
/// for them in the kernel; to a device that waits for its next daemon only if this `cuts` its users
/// off. `progress` is called with what was done. The leftovers are those of a daemon that died.
///
/// # Errors
/// The process does not end.
pub fn end(
    files: &VolumeFiles,
    process: &Process,
    cuts: bool,
    progress: &dyn Fn(&str),
) -> Result<()> {
    let (name, pid) = (&files.name, process.pid());
    if process.condition() != Condition::Dying {
        process.signal(Signal::KILL);
        progress(&format!("{name}: its daemon (process {pid}) did not answer and was killed"));
    }
    if released(files, DYING) {
        return Ok(());
    }
    let mut told = false;
    for _ in 0..DYING_AT_MOST {
        // The kernel may take a while to see that a ublk device has lost its server.
        let may = |left: &&Leftover| cuts || !left.waits();
        let cut = serve::traces(files).iter().filter(may).find_map(Leftover::abort);
        if let Some(what) = cut.filter(|_| !told) {
            told = true;
            progress(&format!(
                "{name}: its daemon (process {pid}) was killed and did not end; {what}, and \
                 requests to the device fail"
            ));
        }
        if released(files, DYING) {
            return Ok(());
        }
    }
    let seconds = (DYING + DYING * DYING_AT_MOST).as_secs();
    Err(Error::failure(format!(
        "the daemon of volume `{name}` (process {pid}) was killed and does not end in {seconds} s"
    ))
    .hint(format!("the kernel holds it: see `dmesg` and /proc/{pid}/stack")))
}

/// Waits until no process holds the volume's lock, for `patience` at most. Returns whether none
/// does.
fn released(files: &VolumeFiles, patience: Duration) -> bool {
    eventually(patience, LOOK, || !Lock::is_held(files))
}

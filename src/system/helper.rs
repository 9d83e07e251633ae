//! Runs a task on a device of this process in another process, `ztier helper TASK`, if the kernel
//! may need this process to complete the task.
//!
//! A thread that waits in the kernel for a request to its own process cannot be killed: after the
//! kill no thread answers the request, so the waiting thread does not return. The kernel closes the
//! descriptors of a process, which fails the request, only when its last thread is gone. Opening
//! and closing the FUSE file, attaching, detaching and growing its loop device, reading its
//! partitions and setting its queue can all wait that way, and so can flushing a ublk device and
//! closing it. A helper has none of its parent's descriptors, so its requests fail as soon as the
//! parent is gone, or wait for the next daemon.
//!
//! Invariants: a process that serves a device leaves each [`Task`] on it to a helper; it waits for
//! the helper no longer than [`Task::limit`]; a helper whose parent is gone undoes what it has
//! attached, and gives up what it has claimed.

use super::claim::claim;
use super::loopdev;
use crate::error::{Context, Error, Result, Status};
use crate::patience::{eventually, readable};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use rustix::stdio::stdin;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a helper may take: longer than its own waits.
const LIMIT: Duration = Duration::from_secs(20);
/// The same for a claim, which flushes; shorter, with what follows, than `ztier down` waits.
const LIMIT_OF_CLAIM: Duration = Duration::from_secs(40);
/// How long a helper may take to give up a claim: it closes a device, mostly one that is stopped.
const TO_GIVE_UP: Duration = Duration::from_secs(2);
/// Interval between looks whether it has.
const LOOK: Duration = Duration::from_millis(1);
/// The most bytes of a helper's answer.
const LONGEST: usize = 16 << 10;

/// The word that starts a helper: `ztier helper TASK`.
pub const WORD: &str = "helper";

/// A helper's task.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(crate) enum Task {
    /// Attaches a loop device to a file; the outcome is the path of the device.
    Attach {
        /// The file.
        file: PathBuf,
        /// Bytes of a logical block.
        block_size: u32,
        /// Whether requests may wait for a drive; see [`loopdev::tune`].
        waits: bool,
    },
    /// Detaches a loop device from its file.
    Detach {
        /// The device.
        device: PathBuf,
        /// The expected backing file.
        file: PathBuf,
        /// Whether requests may wait for a drive; see [`loopdev::tune`].
        waits: bool,
    },
    /// Grows a loop device to the size of its file.
    Grow {
        /// The device.
        device: PathBuf,
        /// The expected backing file.
        file: PathBuf,
    },
    /// Claims a block device that no process uses, and flushes it. The helper keeps the claim until
    /// its input ends.
    Claim {
        /// The device.
        device: PathBuf,
        /// What errors call it.
        shown: PathBuf,
    },
    /// Writes values to files below `/sys`. Best effort: the kernel may refuse some.
    Set {
        /// Files and values.
        values: Vec<(PathBuf, String)>,
    },
}

/// The process that runs tasks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Helper {
    /// A process of this program, `ztier`.
    Program(PathBuf),
    /// This process itself, not for daemons: if it is killed while it waits for its own answer, it
    /// stays until its FUSE connection is aborted.
    Here,
}

impl Helper {
    /// The helper of a process that is itself `ztier`.
    pub fn of_this_program() -> Self {
        Self::Program("/proc/self/exe".into())
    }

    /// Runs `task`, and returns its outcome.
    ///
    /// # Errors
    /// The task fails; or no helper can be started, or it does not end in time.
    pub(crate) fn run(&self, task: &Task) -> Result<String> {
        match self {
            Self::Here => task.run().map(|(outcome, _)| outcome),
            Self::Program(path) => delegate(path, task),
        }
    }

    /// Claims `device`, which errors call `shown`, after a little wait for processes that only look
    /// at it, and flushes it. A device that is gone need not be claimed.
    ///
    /// # Errors
    /// As [`Helper::run`]; the device is held, and the text says by what.
    pub(crate) fn claim(&self, device: &Path, shown: &Path) -> Result<Claim> {
        let task = Task::Claim { device: device.to_owned(), shown: shown.to_owned() };
        match self {
            Self::Here => task.run().map(|(_, node)| Claim { helper: None, _node: node }),
            Self::Program(path) => {
                let (helper, text) = ask(path, &task, Stdio::piped())?;
                let claim = Claim { helper: Some(helper), _node: None };
                match answer_in(&text) {
                    Some(claimed) => claimed.map(|_| claim),
                    None => Err(Error::failure(format!("{}: no answer", task.cannot_start()))),
                }
            }
        }
    }
}

/// A block device that no other process can begin to use while this lives.
pub(crate) struct Claim {
    /// The process that has the device open.
    helper: Option<Child>,
    _node: Option<OwnedFd>,
}

impl Drop for Claim {
    fn drop(&mut self) {
        let Some(mut helper) = self.helper.take() else { return };
        drop(helper.stdin.take()); // it waits for this
        if !eventually(TO_GIVE_UP, LOOK, || !matches!(helper.try_wait(), Ok(None))) {
            end(helper);
        }
    }
}

/// What a helper answers.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Answer {
    Done(String),
    Failed(Status, String),
}

/// Runs `task` in a helper process.
fn delegate(program: &Path, task: &Task) -> Result<String> {
    let (mut child, text) = ask(program, task, Stdio::null())?;
    // It has answered, or ended.
    let ended = eventually(TO_GIVE_UP, LOOK, || !matches!(child.try_wait(), Ok(None)));
    let status = child.try_wait().ok().flatten().map_or("no exit".into(), |it| it.to_string());
    if !ended {
        end(child);
    }
    answer_in(&text).unwrap_or_else(|| {
        Err(Error::failure(format!("{}: it ended by {status}", task.cannot_start())))
    })
}

/// Starts a helper for `task`. Returns it with what it said, its answer if all is well.
fn ask(program: &Path, task: &Task, input: Stdio) -> Result<(Child, Vec<u8>)> {
    let what = || task.cannot_start();
    let order = serde_json::to_string(task).context(what())?;
    let mut child = Command::new(program)
        .arg0("ztier")
        .args([WORD, &order])
        .current_dir("/")
        // A terminal's signals are for the daemon, which ends in order.
        .process_group(0)
        .stdin(input)
        .stdout(Stdio::piped())
        .spawn()
        .context(what())?;
    let limit = task.limit();
    match child.stdout.take().and_then(|out| listen(out, Instant::now() + limit)) {
        Some(text) => Ok((child, text)),
        None => {
            end(child);
            let (what, seconds) = (task.describe(), limit.as_secs());
            Err(Error::failure(format!("{what} takes longer than {seconds} s"))
                .hint("the kernel's log (dmesg) may say why"))
        }
    }
}

/// The outcome that a helper has told; `None` if it has not.
fn answer_in(text: &[u8]) -> Option<Result<String>> {
    Some(match serde_json::from_slice::<Answer>(text).ok()? {
        Answer::Done(outcome) => Ok(outcome),
        Answer::Failed(status, text) => Err(Error::new(status, text)),
    })
}

/// A line of a helper's output, or all of it; `None` if neither ends in time.
fn listen(mut out: ChildStdout, deadline: Instant) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    // Where waiting fails, the read waits.
    while readable(&out, deadline).unwrap_or(true) {
        let mut part = [0; 512];
        match out.read(&mut part) {
            Ok(n) if n > 0 && text.len() < LONGEST => {
                text.extend_from_slice(&part[..n]);
                if text.ends_with(b"\n") {
                    return Some(text);
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            _ => return Some(text),
        }
    }
    None
}

/// Ends a late helper. It may wait in the kernel until its request is answered.
fn end(mut child: Child) {
    let _ = child.kill(); // the helper may have ended just now
    let wait = move || child.wait();
    // Without this thread, the ended helper stays a zombie until this process ends.
    let _ = std::thread::Builder::new().name("ztier-reaper".to_owned()).spawn(wait);
}

/// Runs the task of a daemon in this process, and writes its outcome to standard output.
///
/// # Errors
/// `order` is no task.
pub fn main(order: &str) -> Result<()> {
    let task: Task = serde_json::from_str(order)
        .context("cannot understand the task of a helper")
        .map_err(|e| e.hint("a daemon starts `ztier helper`"))?;
    let outcome = task.run();
    let answer = match &outcome {
        Ok((done, _)) => Answer::Done(done.clone()),
        Err(e) => Answer::Failed(e.status(), e.to_string()),
    };
    let mut text = serde_json::to_vec(&answer).context("cannot encode the answer of a helper")?;
    text.push(b'\n');
    let mut out = std::io::stdout();
    let told = out.write_all(&text).and_then(|()| out.flush());
    match (told, outcome) {
        (Err(_), Ok((done, _))) => task.undo(&done), // the daemon is gone
        (Ok(()), Ok((_, Some(claimed)))) => keep(claimed),
        _ => {}
    }
    Ok(())
}

/// Keeps a claim until the input ends: the daemon gives the claim up, or is gone.
fn keep(claimed: OwnedFd) {
    while matches!(rustix::io::read(stdin(), &mut [0; 1]), Err(Errno::INTR)) {}
    drop(claimed);
}

impl Task {
    /// Runs the task. Returns its outcome, and what is to stay open.
    fn run(&self) -> Result<(String, Option<OwnedFd>)> {
        let outcome = match self {
            Self::Attach { file, block_size, waits } => {
                let device = loopdev::attach(file, *block_size)?;
                loopdev::tune(&device, *waits);
                device.display().to_string()
            }
            Self::Detach { device, file, waits } => {
                let detached = loopdev::detach(device, file);
                if detached.is_err() {
                    loopdev::tune(device, *waits); // the attempt may have put the defaults back
                }
                detached.map(|()| String::new())?
            }
            Self::Grow { device, file } => loopdev::grow(device, file).map(|()| String::new())?,
            Self::Claim { device, shown } => return Ok((String::new(), claim(device, shown)?)),
            Self::Set { values } => set(values),
        };
        Ok((outcome, None))
    }

    /// How long a helper may take.
    fn limit(&self) -> Duration {
        if let Self::Claim { .. } = self { LIMIT_OF_CLAIM } else { LIMIT }
    }

    /// What failed if there is no helper.
    fn cannot_start(&self) -> String {
        format!("cannot start a helper ({})", self.describe())
    }

    /// Undoes the outcome of the task.
    fn undo(&self, outcome: &str) {
        if let Self::Attach { file, .. } = self {
            // If this fails, the next daemon finds the device by its backing file.
            let _ = loopdev::detach(Path::new(outcome), file);
        }
    }

    /// The task in words, for messages.
    fn describe(&self) -> String {
        match self {
            Self::Attach { file, .. } => format!("attaching {}", file.display()),
            Self::Detach { device, .. } => format!("detaching {}", device.display()),
            Self::Grow { device, .. } => format!("growing {}", device.display()),
            Self::Claim { device, .. } => format!("claiming and flushing {}", device.display()),
            Self::Set { values } => setting(values),
        }
    }
}

fn set(values: &[(PathBuf, String)]) -> String {
    for (file, value) in values {
        let _ = fs::write(file, value); // if the kernel refuses the value, the old one stays
    }
    String::new()
}

fn setting(values: &[(PathBuf, String)]) -> String {
    let files: Vec<_> = values.iter().map(|(file, _)| file.display().to_string()).collect();
    format!("setting {}", files.join(" and "))
}

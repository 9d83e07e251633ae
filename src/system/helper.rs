//! Work on a device of this process that the kernel may answer only with the help of this process,
//! done by a process of its own: `ztier helper TASK`.
//!
//! A thread that waits in the kernel for a request that its own process serves can't be ended: when
//! the process is killed no thread answers any more, the one that waits does not return before it
//! has an answer, and the kernel closes the descriptors of a process, which fails the request, only
//! when the last thread is gone. Opening and closing the FUSE file, attaching, detaching and
//! growing its loop device, reading its partitions and setting its queue can all wait that way. A
//! helper has none of the descriptors of its parent, so its requests fail as soon as the parent is
//! gone.
//!
//! Invariants: a process that serves a device has a helper do each [`Task`] on it; it waits for the
//! helper no longer than [`LIMIT`]; a helper whose parent is gone undoes what it has attached.

use super::loopdev;
use crate::error::{Context, Error, Result, Status};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

/// How long a helper may take: longer than what it waits for by itself.
const LIMIT: Duration = Duration::from_secs(20);
/// The most bytes of a helper's answer.
const LONGEST: usize = 16 << 10;

/// The word by which a helper is started: `ztier helper TASK`.
pub const WORD: &str = "helper";

/// What a helper does.
#[derive(Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase")]
pub(crate) enum Task {
    /// Makes a loop device on a file; the outcome is its path.
    Attach {
        /// The file.
        file: PathBuf,
        /// Bytes of a logical block.
        block_size: u32,
        /// Whether requests may wait for a drive.
        waits: bool,
    },
    /// Takes a loop device off its file.
    Detach {
        /// The device.
        device: PathBuf,
        /// The file that it must show.
        file: PathBuf,
        /// Whether requests may wait for a drive.
        waits: bool,
    },
    /// Makes a loop device as large as its file.
    Grow {
        /// The device.
        device: PathBuf,
        /// The file that it must show.
        file: PathBuf,
    },
    /// Writes values to files below `/sys`, as far as the kernel takes them.
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
    /// This process itself. If it is killed while it waits for itself, it stays until its FUSE
    /// connection is aborted: not for daemons.
    Here,
}

impl Helper {
    /// For a process that is `ztier`.
    pub fn of_this_program() -> Self {
        Self::Program("/proc/self/exe".into())
    }

    /// Has `task` done. Returns its outcome.
    ///
    /// # Errors
    /// Those of the task; or that no helper can be started, or that it does not end in time.
    pub(crate) fn run(&self, task: &Task) -> Result<String> {
        match self {
            Self::Here => task.run(),
            Self::Program(path) => delegate(path, task),
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

/// Has a helper do `task`.
fn delegate(program: &Path, task: &Task) -> Result<String> {
    let what = || format!("cannot start a helper ({})", task.describe());
    let order = serde_json::to_string(task).context(what())?;
    let mut child = Command::new(program)
        .arg0("ztier")
        .args([WORD, &order])
        .current_dir("/")
        // What a terminal signals is for the daemon, which ends in order.
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()
        .context(what())?;
    let heard = child.stdout.take().and_then(|out| listen(out, Instant::now() + LIMIT));
    let Some(text) = heard else {
        end(child);
        let (what, seconds) = (task.describe(), LIMIT.as_secs());
        return Err(Error::failure(format!("{what} takes longer than {seconds} s"))
            .hint("the kernel's log (dmesg) may say why"));
    };
    let status = child.wait().context(what())?;
    match serde_json::from_slice(&text) {
        Ok(Answer::Done(outcome)) => Ok(outcome),
        Ok(Answer::Failed(status, text)) => Err(Error::new(status, text)),
        Err(_) => Err(Error::failure(format!("{}: it ended by {status}", what()))),
    }
}

/// All that a helper says; `None` if that does not end in time.
fn listen(mut out: ChildStdout, deadline: Instant) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let timeout = Timespec::try_from(left).ok().filter(|_| !left.is_zero())?;
        let ready = poll(&mut [PollFd::new(&out, PollFlags::IN)], Some(&timeout));
        if matches!(ready, Ok(0) | Err(rustix::io::Errno::INTR)) {
            continue;
        }
        let mut part = [0; 512];
        match out.read(&mut part) {
            Ok(n) if n > 0 && text.len() < LONGEST => text.extend_from_slice(&part[..n]),
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            _ => return Some(text),
        }
    }
}

/// Ends a helper that is late. It may wait in the kernel until its request is answered.
fn end(mut child: Child) {
    let _ = child.kill(); // it may have ended just now
    let wait = move || child.wait();
    // Without the thread the process stays in the list until this one ends, and does nothing else.
    let _ = std::thread::Builder::new().name("ztier-reaper".to_owned()).spawn(wait);
}

/// Does what a daemon asks of this process, and tells it the outcome on standard output.
///
/// # Errors
/// When the task is none.
pub fn main(order: &str) -> Result<()> {
    let task: Task = serde_json::from_str(order)
        .context("cannot understand the task of a helper")
        .map_err(|e| e.hint("a daemon starts `ztier helper`"))?;
    let outcome = task.run();
    let answer = match &outcome {
        Ok(done) => Answer::Done(done.clone()),
        Err(e) => Answer::Failed(e.status(), e.to_string()),
    };
    let text = serde_json::to_vec(&answer).context("cannot encode the answer of a helper")?;
    let mut out = std::io::stdout();
    let told = out.write_all(&text).and_then(|()| out.flush());
    if let (Err(_), Ok(done)) = (&told, &outcome) {
        task.undo(done); // the daemon is gone
    }
    Ok(())
}

impl Task {
    fn run(&self) -> Result<String> {
        match self {
            Self::Attach { file, block_size, waits } => {
                let device = loopdev::attach(file, *block_size)?;
                loopdev::tune(&device, *waits);
                Ok(device.display().to_string())
            }
            Self::Detach { device, file, waits } => {
                let detached = loopdev::detach(device, file);
                if detached.is_err() {
                    loopdev::tune(device, *waits); // the attempt may have put the defaults back
                }
                detached.map(|()| String::new())
            }
            Self::Grow { device, file } => loopdev::grow(device, file).map(|()| String::new()),
            Self::Set { values } => Ok(set(values)),
        }
    }

    /// Undoes what came of the task.
    fn undo(&self, outcome: &str) {
        if let Self::Attach { file, .. } = self {
            // What stays is found by the file behind it.
            let _ = loopdev::detach(Path::new(outcome), file);
        }
    }

    /// In words.
    fn describe(&self) -> String {
        match self {
            Self::Attach { file, .. } => format!("attaching {}", file.display()),
            Self::Detach { device, .. } => format!("detaching {}", device.display()),
            Self::Grow { device, .. } => format!("growing {}", device.display()),
            Self::Set { values } => setting(values),
        }
    }
}

fn set(values: &[(PathBuf, String)]) -> String {
    for (file, value) in values {
        let _ = fs::write(file, value); // a kernel that does not take it goes on as it is
    }
    String::new()
}

fn setting(values: &[(PathBuf, String)]) -> String {
    let files: Vec<_> = values.iter().map(|(file, _)| file.display().to_string()).collect();
    format!("setting {}", files.join(" and "))
}

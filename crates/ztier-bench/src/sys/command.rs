//! External programs, each with a time limit.
//!
//! Invariants: output goes to anonymous memory files, never to pipes, so that a program which
//! leaves a daemon behind cannot block the reader. Every child has its own process group, so that a
//! ^C on the terminal reaches only this process, which then ends its children itself, by their ids.

use super::interrupt;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, PidfdFlags, Signal, WaitId, WaitIdOptions};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};

/// How long a child may take to die after SIGTERM, and again after SIGKILL.
const GRACE: Duration = Duration::from_secs(5);

/// Result of a program.
#[derive(Debug)]
pub struct Output {
    /// Its standard output.
    pub stdout: String,
    /// Its exit status.
    pub status: ExitStatus,
    stderr: String,
}

impl Output {
    /// The first line of either output.
    pub fn first_line(&self) -> String {
        let lines = self.stdout.lines().chain(self.stderr.lines());
        lines.map(str::trim).find(|line| !line.is_empty()).unwrap_or_default().to_owned()
    }

    /// The line that explains a failure best: the last output line, or the exit status.
    fn complaint(&self) -> String {
        let last =
            |text: &str| text.lines().rev().find(|l| !l.trim().is_empty()).map(str::to_owned);
        last(&self.stderr).or_else(|| last(&self.stdout)).unwrap_or_else(|| self.status.to_string())
    }
}

/// Whether `program` is in a directory of `PATH`.
pub fn exists(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// Runs a program to its end and demands success.
///
/// # Errors
/// It cannot be started, takes longer than `limit` (it is killed then), fails, or the run is
/// interrupted.
pub fn run<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: &[S],
    limit: Duration,
) -> Result<String> {
    let output = run_any(program.as_ref(), args, limit, true)?;
    demand(program.as_ref(), output)
}

/// Runs a program that undoes work: an interruption does not stop it.
///
/// # Errors
/// As [`run`], without the interruption.
pub fn undo<S: AsRef<OsStr>>(
    program: impl AsRef<OsStr>,
    args: &[S],
    limit: Duration,
) -> Result<String> {
    let output = run_any(program.as_ref(), args, limit, false)?;
    demand(program.as_ref(), output)
}

fn demand(program: &OsStr, output: Output) -> Result<String> {
    if output.status.success() {
        return Ok(output.stdout);
    }
    let name = program.to_string_lossy();
    match output.status.signal() {
        Some(signal) => Err(Error::failure(format!("{name} was killed by signal {signal}"))),
        None => Err(Error::failure(format!("{name}: {}", output.complaint()))),
    }
}

/// Runs a program to its end, however it ends.
///
/// # Errors
/// It cannot be started, takes longer than `limit`, or the run is interrupted (if `interruptible`).
pub fn run_any<S: AsRef<OsStr>>(
    program: &OsStr,
    args: &[S],
    limit: Duration,
    interruptible: bool,
) -> Result<Output> {
    let name = program.to_string_lossy().into_owned();
    let (mut stdout, mut stderr) = (memory_file(&name)?, memory_file(&name)?);
    let mut command = Command::new(program);
    command
        .args(args)
        .stdin(Stdio::null())
        .stdout(stdout.try_clone().context("cannot duplicate a file")?)
        .stderr(stderr.try_clone().context("cannot duplicate a file")?)
        .process_group(0);
    let mut running = Running::spawn(command, &name)?;
    let status = running.wait(limit, interruptible)?;
    Ok(Output { status, stdout: contents(&mut stdout)?, stderr: contents(&mut stderr)? })
}

fn memory_file(name: &str) -> Result<File> {
    let fd = rustix::fs::memfd_create(c"output", MemfdFlags::CLOEXEC)
        .context(format!("cannot keep the output of {name}"))?;
    Ok(File::from(fd))
}

fn contents(file: &mut File) -> Result<String> {
    let mut bytes = Vec::new();
    file.seek(SeekFrom::Start(0)).context("cannot read the output of a command")?;
    file.read_to_end(&mut bytes).context("cannot read the output of a command")?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// A child process; dropping it ends it: SIGTERM, then SIGKILL.
pub struct Running {
    child: Child,
    pidfd: OwnedFd,
    name: String,
}

impl Running {
    /// Starts a program whose output is discarded, in its own process group.
    pub fn start<S: AsRef<OsStr>>(program: &str, args: &[S]) -> Result<Self> {
        let mut command = Command::new(program);
        command
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0);
        Self::spawn(command, program)
    }

    fn spawn(mut command: Command, name: &str) -> Result<Self> {
        let mut child = command.spawn().context(format!("cannot start {name}"))?;
        // Not reaped before `wait`, so the id still belongs to the child.
        let pidfd = rustix::process::pidfd_open(Pid::from_child(&child), PidfdFlags::empty());
        match pidfd {
            Ok(pidfd) => Ok(Self { child, pidfd, name: name.to_owned() }),
            Err(e) => {
                let _ = child.kill();
                let _ = child.wait();
                Err(Error::failure(format!("cannot watch {name}: {e}")))
            }
        }
    }

    /// Its process.
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// Whether the child still runs.
    pub fn alive(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(None))
    }

    fn wait(&mut self, limit: Duration, interruptible: bool) -> Result<ExitStatus> {
        let end = Instant::now() + limit;
        loop {
            if self.ended_within(end.saturating_duration_since(Instant::now()).min(GRACE / 50)) {
                return self.child.wait().context(format!("cannot wait for {}", self.name));
            }
            if interruptible {
                interrupt::check()?;
            }
            if Instant::now() >= end {
                return Err(Error::failure(format!(
                    "{} did not end within {} s",
                    self.name,
                    limit.as_secs()
                )));
            }
        }
    }

    fn ended_within(&self, time: Duration) -> bool {
        let timeout = Timespec {
            tv_sec: i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: time.subsec_nanos().into(),
        };
        let mut fds = [PollFd::new(&self.pidfd, PollFlags::IN)];
        matches!(poll(&mut fds, Some(&timeout)), Ok(n) if n > 0)
    }

    fn signal(&self, signal: Signal) {
        // By pidfd: never a process that reused the id.
        let _ = rustix::process::pidfd_send_signal(self.pidfd.as_fd(), signal);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let peek = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        match rustix::process::waitid(WaitId::PidFd(self.pidfd.as_fd()), peek) {
            // No child any more: reaped by `wait`.
            Err(_) => return,
            Ok(Some(_)) => {}
            Ok(None) => {
                self.signal(Signal::TERM);
                if !self.ended_within(GRACE) {
                    self.signal(Signal::KILL);
                    if !self.ended_within(GRACE) {
                        crate::report::warn(&format!("{} does not die", self.name));
                        return;
                    }
                }
            }
        }
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_command_that_hangs_is_ended() {
        let start = Instant::now();
        let error = run("sleep", &["60"], Duration::from_millis(200)).unwrap_err();
        assert!(error.to_string().contains("did not end"), "{error}");
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_daemon_left_behind_does_not_hold_the_reader() {
        let start = Instant::now();
        let out = run("sh", &["-c", "sleep 12 & echo up"], Duration::from_secs(60)).unwrap();
        assert_eq!(out, "up\n");
        assert!(start.elapsed() < Duration::from_secs(10));
    }

    #[test]
    fn a_failure_names_the_reason() {
        let error = run("sh", &["-c", "echo no such thing >&2; exit 3"], GRACE).unwrap_err();
        assert_eq!(error.to_string(), "sh: no such thing");
        let error = run("sh", &["-c", "kill -BUS $$"], GRACE).unwrap_err();
        assert!(error.to_string().contains("signal 7"), "{error}");
    }
}

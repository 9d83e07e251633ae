//! Finds the process that serves a volume by the lock that it holds, even if the volume's files
//! were removed, or it does not answer.
//!
//! Invariant: a process is signalled only if it had this very volume's lock open after the handle
//! for the signal was made, or the kernel is already ending it; so a reused process number does no
//! harm.

use crate::config::paths::VolumeFiles;
use crate::kernel_text::kernel_text;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// On this signal a daemon makes its removed files in the run directory anew.
pub(super) const RESTORE: Signal = Signal::USR1;

/// A process that holds the lock of a volume.
#[derive(Debug)]
pub struct Process {
    pid: u32,
    handle: OwnedFd,
}

/// The condition of a process that does not answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Condition {
    /// It runs or waits.
    Alive,
    /// It was stopped (`SIGSTOP`), and continues on `SIGCONT`.
    Stopped,
    /// It was killed, and the kernel is ending it.
    Dying,
}

impl Process {
    /// The process that holds the lock of a volume, even in a removed lock file.
    pub fn of(files: &VolumeFiles) -> Option<Self> {
        Self::find(files, None)
    }

    /// As [`Process::of`], but never this process.
    pub fn beside_me(files: &VolumeFiles) -> Option<Self> {
        Self::find(files, Some(std::process::id()))
    }

    fn find(files: &VolumeFiles, but: Option<u32>) -> Option<Self> {
        let path = true_path(&files.lock);
        let inode = fs::symlink_metadata(&path).ok().map(|meta| meta.ino());
        let locks = fs::read_to_string("/proc/locks").ok()?;
        let mut locks = locks.lines().filter_map(parse_lock).filter(|(pid, _)| Some(*pid) != but);
        locks.find_map(|(pid, of)| {
            let handle = pidfd_open(Pid::from_raw(i32::try_from(pid).ok()?)?, PidfdFlags::empty());
            let process = Self { pid, handle: handle.ok()? };
            let is_it = match process.opened(&path) {
                Some(is_open) => is_open,
                // Its descriptors are being closed, and closing one of them does not end.
                None => inode == Some(of) && process.condition() == Condition::Dying,
            };
            is_it.then_some(process)
        })
    }

    /// The process number.
    pub fn pid(&self) -> u32 {
        self.pid
    }

    /// The present condition.
    pub fn condition(&self) -> Condition {
        condition(&self.about("status"), &self.about("stat"))
    }

    /// Whether the process handles `RESTORE`.
    pub fn restores(&self) -> bool {
        signals(&self.about("status"), "SigCgt") & bit(RESTORE) != 0
    }

    /// Sends a signal; a process that has ended does not get it.
    pub fn signal(&self, signal: Signal) {
        let _ = pidfd_send_signal(&self.handle, signal);
    }

    fn about(&self, file: &str) -> String {
        kernel_text(format!("/proc/{}/{file}", self.pid)).unwrap_or_default()
    }

    /// Whether the process has the file `path` open, even if the file was removed; `None` if it has
    /// no file open at all.
    fn opened(&self, path: &Path) -> Option<bool> {
        let mut removed = path.as_os_str().to_owned();
        removed.push(" (deleted)");
        let fds = fs::read_dir(format!("/proc/{}/fd", self.pid)).into_iter().flatten().flatten();
        let links = fds.filter_map(|fd| fs::read_link(fd.path()).ok());
        links.fold(None, |found, link| {
            Some(found == Some(true) || link == path || link.as_os_str() == removed)
        })
    }
}

/// The path of a file as the kernel writes it: with links in the directory's path resolved.
fn true_path(file: &Path) -> PathBuf {
    let dir = file.parent().and_then(|dir| fs::canonicalize(dir).ok());
    dir.zip(file.file_name()).map_or_else(|| file.to_owned(), |(dir, name)| dir.join(name))
}

/// Process and inode of a line of `/proc/locks`: `1: FLOCK ADVISORY WRITE PID MAJOR:MINOR:INODE …`.
fn parse_lock(line: &str) -> Option<(u32, u64)> {
    let mut words = line.split_whitespace().skip(1);
    if words.next()? != "FLOCK" {
        return None; // a waiter, too: `1: -> FLOCK …`
    }
    let pid = words.nth(2)?.parse().ok()?;
    Some((pid, words.next()?.rsplit(':').next()?.parse().ok()?))
}

/// The condition by `/proc/PID/status` and `/proc/PID/stat`; both are empty if the process is gone.
fn condition(status: &str, stat: &str) -> Condition {
    /// `PF_EXITING` of the kernel.
    const EXITING: u64 = 4;
    let mut stat = stat.rsplit(')').next().unwrap_or_default().split_whitespace();
    let state = stat.next();
    let flags: u64 = stat.nth(5).and_then(|flags| flags.parse().ok()).unwrap_or(EXITING);
    let pending = signals(status, "SigPnd") | signals(status, "ShdPnd");
    match state {
        _ if flags & EXITING != 0 || pending & bit(Signal::KILL) != 0 => Condition::Dying,
        None | Some("Z" | "X") => Condition::Dying,
        Some("T") => Condition::Stopped,
        _ => Condition::Alive,
    }
}

/// A set of signals in `/proc/PID/status`.
fn signals(status: &str, set: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix(set)?.strip_prefix(':'));
    line.and_then(|hex| u64::from_str_radix(hex.trim(), 16).ok()).unwrap_or(0)
}

fn bit(signal: Signal) -> u64 {
    1 << (signal.as_raw() - 1)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::state::Lock;
    use super::*;
    use crate::config::Paths;
    use std::io::Read;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    #[test]
    fn the_holder_of_a_lock_is_found_also_without_its_file() {
        let dir = tempfile::tempdir().unwrap();
        let real = dir.path().join("real");
        fs::create_dir(&real).unwrap();
        let run = dir.path().join("run");
        std::os::unix::fs::symlink(&real, &run).unwrap();
        let paths = Paths { run, config: dir.path().into(), state: dir.path().into() };
        let (files, other) = (paths.volume("x"), paths.volume("y"));
        assert!(Process::of(&files).is_none());
        let lock = Lock::acquire(&files, Duration::ZERO).unwrap().unwrap();
        let _other = Lock::acquire(&other, Duration::ZERO).unwrap().unwrap();
        let found = |files| Process::of(files).map(|process: Process| process.pid());
        assert_eq!(found(&files), Some(std::process::id()));
        fs::remove_file(&files.lock).unwrap();
        assert_eq!(found(&files), Some(std::process::id()));
        assert!(Process::beside_me(&files).is_none());
        drop(lock);
        assert_eq!(found(&files), None);
    }

    #[test]
    fn a_process_whose_name_is_not_utf_8_is_alive() {
        let script = r"printf '\377x' > /proc/self/comm; echo; read x";
        let mut child = Command::new("sh");
        child.args(["-c", script]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = child.spawn().unwrap();
        child.stdout.as_mut().unwrap().read_exact(&mut [0]).unwrap();
        let pid = child.id();
        let raw = Pid::from_raw(pid.try_into().unwrap()).unwrap();
        let process = Process { pid, handle: pidfd_open(raw, PidfdFlags::empty()).unwrap() };
        let found = process.condition();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(found, Condition::Alive);
    }

    #[test]
    fn conditions_are_told_apart() {
        let of = |pending: u64, state: &str, flags: u64| {
            let status = format!("SigPnd:\t{pending:016x}\nShdPnd:\t0000000000000000\n");
            condition(&status, &format!("7 (a) b) {state} 1 7 7 0 -1 {flags} 0 0"))
        };
        assert_eq!(of(0, "S", 0x40_0000), Condition::Alive);
        assert_eq!(of(bit(Signal::TERM), "T", 0x40_0000), Condition::Stopped);
        assert_eq!(of(bit(Signal::KILL), "D", 0x40_0000), Condition::Dying);
        assert_eq!(of(0, "D", 0x40_0004), Condition::Dying);
        assert_eq!(of(0, "Z", 0), Condition::Dying);
        assert_eq!(condition("", ""), Condition::Dying);
    }

    #[test]
    fn lines_of_locks_are_taken_apart() {
        let line = "12: FLOCK  ADVISORY  WRITE 9160 fe:00:5736405 0 EOF";
        assert_eq!(parse_lock(line), Some((9160, 5_736_405)));
        for other in ["4: OFDLCK ADVISORY  WRITE -1 00:27:2 0 EOF", "12: -> FLOCK ADVISORY", ""] {
            assert_eq!(parse_lock(other), None, "{other}");
        }
    }
}

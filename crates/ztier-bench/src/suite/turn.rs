//! One measurement at a time on a machine: two concurrent ones would each measure the other.
//!
//! Invariants: a run that measures holds a lock on one file, which ends with the last process that
//! holds it, in whichever way that ends. A table of a suite has its suite's lock as standard input,
//! so that a killed suite keeps others waiting until its table has ended, too; children of a table
//! do not inherit the lock.

use super::progress::Progress;
use crate::sys::interrupt;
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions, Permissions, TryLockError};
use std::io::{ErrorKind, Read, Seek, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};

/// Path of the lock file; otherwise it is in the directory for temporary files.
const PATH: &str = "/run/lock/ztier-bench.lock";
/// Variable with another path: tests use their own.
const PLACE: &str = "ZTIER_BENCH_LOCK";
/// Interval between attempts.
const LOOK: Duration = Duration::from_millis(200);
/// Limit on the bytes read of the holder's note.
const NOTE_MAX: u64 = 200;

/// The right to measure, until it is dropped.
pub struct Turn(File);

impl Turn {
    /// Takes the right to measure; if `wait`, waits until it is free.
    ///
    /// # Errors
    /// Another run has it and `wait` is false; interrupted; there is no place for the lock.
    pub fn take(wait: bool) -> Result<Self> {
        let usual = || vec![PathBuf::from(PATH), std::env::temp_dir().join("ztier-bench.lock")];
        let places = std::env::var_os(PLACE).map_or_else(usual, |place| vec![place.into()]);
        let mut failed = Error::failure("there is no place for a lock");
        for path in places {
            match open(&path).context(format!("cannot open the lock {}", path.display())) {
                Ok(file) => return Self::of(file, wait),
                Err(e) => failed = e.hint("make its directory writable"),
            }
        }
        Err(failed)
    }

    #[cfg(test)]
    pub fn at(path: &Path, wait: bool) -> Result<Self> {
        Self::of(open(path).context("cannot open")?, wait)
    }

    fn of(mut file: File, wait: bool) -> Result<Self> {
        let (begun, mut progress) = (Instant::now(), None);
        while !is_locked(&file)? {
            let who = holder(&mut file);
            if !wait {
                let text = format!("{who} measures on this machine");
                return Err(Error::failure(text).hint("wait until it has ended, or add --wait"));
            }
            let progress = progress.get_or_insert_with(|| {
                let mut progress = Progress::new();
                progress.say(&format!("waiting for {who}, which measures on this machine"));
                progress
            });
            let been = super::words(begun.elapsed().as_secs_f64());
            progress.show(&format!("waiting for {who}"), &been);
            interrupt::sleep(LOOK)?;
        }
        // Waiting runs print this note. The file of another user may refuse it: that is no error.
        let typed: Vec<String> = std::env::args().skip(1).collect();
        let note = format!("process {} (ztier-bench {})\n", std::process::id(), typed.join(" "));
        let _ = file.set_len(0).and_then(|()| file.rewind()).and_then(|()| write!(file, "{note}"));
        Ok(Self(file))
    }

    /// Standard input for a process that shares this turn.
    ///
    /// # Errors
    /// The limit on open files is reached.
    pub fn share(&self) -> Result<Stdio> {
        Ok(self.0.try_clone().context("cannot duplicate a file")?.into())
    }
}

/// Opens or makes a file that every user may lock; does not follow a link in its place.
fn open(path: &Path) -> std::io::Result<File> {
    let flags = OFlags::NOFOLLOW.bits() as i32;
    let both = || OpenOptions::new().read(true).write(true).custom_flags(flags).open(path);
    match both() {
        Err(e) if e.kind() == ErrorKind::NotFound => {}
        Err(e) if e.kind() == ErrorKind::PermissionDenied => {
            return OpenOptions::new().read(true).custom_flags(flags).open(path);
        }
        done => return done,
    }
    match File::create_new(path) {
        Err(e) if e.kind() == ErrorKind::AlreadyExists => both(),
        made => {
            made?.set_permissions(Permissions::from_mode(0o666))?;
            both()
        }
    }
}

/// Whether this process holds the lock now.
fn is_locked(file: &File) -> Result<bool> {
    match file.try_lock() {
        Ok(()) => Ok(true),
        Err(TryLockError::WouldBlock) => Ok(false),
        Err(TryLockError::Error(e)) => Err(e).context("cannot lock this machine for a measurement"),
    }
}

/// The run that holds the lock, from its note.
fn holder(file: &mut File) -> String {
    let mut text = String::new();
    // A note that is not text, or not written yet, is ignored.
    let _ = file.rewind().and_then(|()| file.take(NOTE_MAX).read_to_string(&mut text));
    let line: String = text.lines().next().unwrap_or_default().replace(char::is_control, " ");
    if line.is_empty() { "another ztier-bench".to_owned() } else { line }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn one_has_it_and_others_fail_or_wait() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let turn = Turn::at(&path, false).unwrap();
        let error = Turn::at(&path, false).err().unwrap().to_string();
        let own = format!("process {} (ztier-bench ", std::process::id());
        assert!(error.starts_with(&own) && error.ends_with("or add --wait"), "{error}");
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| Turn::at(&path, true).map(drop));
            std::thread::sleep(LOOK * 2);
            assert!(!waits.is_finished());
            drop(turn);
            waits.join().unwrap().unwrap();
        });
    }

    #[test]
    fn it_lasts_as_long_as_a_process_that_shares_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("lock");
        let turn = Turn::at(&path, false).unwrap();
        let mut table = std::process::Command::new("sleep")
            .arg("60")
            .stdin(turn.share().unwrap())
            .spawn()
            .unwrap();
        drop(turn);
        assert!(Turn::at(&path, false).is_err());
        table.kill().unwrap();
        table.wait().unwrap();
        Turn::at(&path, false).unwrap();
    }

    #[test]
    fn a_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("lock"));
        std::fs::write(&file, "content").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(open(&link).is_err());
        assert_eq!(std::fs::read(&file).unwrap(), b"content");
    }
}

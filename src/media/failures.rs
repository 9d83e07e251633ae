//! What has failed on a drive, kept by the drive itself.
//!
//! Invariants: only failed requests come here, so the others pay nothing; noting a failure
//! allocates nothing and waits only for a short lock of its own, because the drive may carry swap.

use super::drive::{Action, DriveError};
use crate::stats::drives::{Failure, Operation};
use parking_lot::Mutex;
use rustix::io::Errno;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

/// How many kinds of failure (action and errno) are told apart; a new kind replaces the one that
/// was seen least recently.
const KINDS: usize = 8;

/// Called when something has failed. It must neither wait nor allocate.
pub type Alarm = Box<dyn Fn() + Send + Sync>;

/// The failures of one drive.
pub struct Failures {
    path: PathBuf,
    kinds: Mutex<Kinds>,
    alarm: OnceLock<Alarm>,
}

/// The kinds of failure seen so far.
#[derive(Clone, Copy, Default)]
struct Kinds {
    all: [Option<Kind>; KINDS],
    /// How many requests have failed.
    failed: u64,
}

#[derive(Clone, Copy)]
struct Kind {
    /// The number of its last failure among all failures.
    number: u64,
    last: DriveError,
    count: u64,
    first_unix_s: u64,
    last_unix_s: u64,
}

impl Kind {
    fn is_of(&self, e: &DriveError) -> bool {
        (self.last.action, self.last.errno) == (e.action, e.errno)
    }
}

impl Failures {
    /// No failures yet, for the drive at `path`.
    pub fn new(path: &Path) -> Self {
        Self { path: path.into(), kinds: Mutex::default(), alarm: OnceLock::new() }
    }

    /// The drive's path.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Calls `alarm` for each failure from now on.
    pub fn heed(&self, alarm: Alarm) {
        let _ = self.alarm.set(alarm); // the first one stays
    }

    /// Notes a failed request.
    pub fn note(&self, e: &DriveError) {
        self.note_at(e, crate::stats::time::now());
        if let Some(alarm) = self.alarm.get() {
            alarm();
        }
    }

    fn note_at(&self, e: &DriveError, now: u64) {
        let Kinds { all, failed } = &mut *self.kinds.lock();
        *failed += 1;
        let known = all.iter().position(|kind| kind.is_some_and(|kind| kind.is_of(e)));
        let oldest = || (0..KINDS).min_by_key(|i| all[*i].map_or(0, |kind| kind.number));
        let at = known.or_else(oldest).unwrap_or(0);
        let before = all[at].filter(|kind| kind.is_of(e));
        all[at] = Some(Kind {
            number: *failed,
            last: *e,
            count: before.map_or(0, |kind| kind.count) + 1,
            first_unix_s: before.map_or(now, |kind| kind.first_unix_s),
            last_unix_s: now,
        });
    }

    /// The failures so far, the latest first.
    pub fn seen(&self) -> Vec<Failure> {
        let Kinds { mut all, .. } = *self.kinds.lock();
        all.sort_unstable_by_key(|kind| std::cmp::Reverse(kind.map(|kind| kind.number)));
        all.iter().flatten().map(failure_of).collect()
    }
}

impl fmt::Debug for Failures {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Failures({:?})", self.seen())
    }
}

fn failure_of(kind: &Kind) -> Failure {
    let Kind { last, count, first_unix_s, last_unix_s, .. } = *kind;
    let DriveError { action, at, len, errno } = last;
    Failure {
        operation: operation(action),
        errno,
        reason: reason(errno),
        count,
        offset: if action == Action::Flush { 0 } else { at },
        bytes: len,
        first_unix_s,
        last_unix_s,
    }
}

fn operation(action: Action) -> Operation {
    match action {
        Action::Read => Operation::Read,
        Action::Write => Operation::Write,
        Action::Zero => Operation::Zero,
        Action::Flush => Operation::Flush,
    }
}

/// The name and the words of an errno: `ENOSPC: No space left on device`.
pub fn reason(errno: i32) -> String {
    // Other errnos are shown by number.
    const NAMES: [(Errno, &str); 14] = [
        (Errno::IO, "EIO"),
        (Errno::NOSPC, "ENOSPC"),
        (Errno::FBIG, "EFBIG"),
        (Errno::DQUOT, "EDQUOT"),
        (Errno::ROFS, "EROFS"),
        (Errno::NODEV, "ENODEV"),
        (Errno::NXIO, "ENXIO"),
        (Errno::NOMEDIUM, "ENOMEDIUM"),
        (Errno::TIMEDOUT, "ETIMEDOUT"),
        (Errno::NOMEM, "ENOMEM"),
        (Errno::INVAL, "EINVAL"),
        (Errno::ILSEQ, "EILSEQ"),
        (Errno::STALE, "ESTALE"),
        (Errno::NOTCONN, "ENOTCONN"),
    ];
    let words = std::io::Error::from_raw_os_error(errno).to_string();
    let words = words.split(" (os error").next().unwrap_or_default().to_owned();
    match NAMES.iter().find(|(known, _)| known.raw_os_error() == errno) {
        Some((_, name)) => format!("{name}: {words}"),
        None => format!("errno {errno}: {words}"),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn kinds_are_told_apart_and_the_oldest_gives_way() {
        let failures = Failures::new(Path::new("/dev/x"));
        let error = |action, at, errno| DriveError { action, at, len: 4096, errno };
        assert!(failures.seen().is_empty());
        failures.note_at(&error(Action::Write, 0, 28), 100);
        failures.note_at(&error(Action::Write, 8192, 28), 102);
        failures.note_at(&error(Action::Read, 4096, 5), 101);
        let seen = failures.seen();
        // The kind that was seen last comes first, whatever the clock says.
        let seen = [&seen[1], &seen[0]];
        assert_eq!((seen[0].count, seen[0].offset, seen[0].first_unix_s), (2, 8192, 100));
        assert_eq!(seen[0].reason, "ENOSPC: No space left on device");
        assert_eq!((seen[1].operation, seen[1].errno), (Operation::Read, 5));
        for errno in 0..KINDS as i32 {
            failures.note_at(&error(Action::Flush, 7, 60 + errno), 200);
        }
        let seen = failures.seen();
        assert_eq!(seen.len(), KINDS);
        assert!(
            seen.iter().all(|failure| failure.operation == Operation::Flush && failure.offset == 0)
        );
        assert!(reason(60).starts_with("errno 60: "), "{}", reason(60));
    }

    #[test]
    fn an_alarm_hears_of_each_failure_of_its_drive() {
        let failures = Failures::new(Path::new("/dev/x"));
        let heard = std::sync::Arc::new(std::sync::atomic::AtomicU32::new(0));
        let count = std::sync::Arc::clone(&heard);
        let error = DriveError { action: Action::Flush, at: 0, len: 0, errno: 5 };
        failures.note(&error);
        failures.heed(Box::new(move || {
            count.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        }));
        failures.note(&error);
        failures.note(&error);
        assert_eq!(heard.load(std::sync::atomic::Ordering::Relaxed), 2);
        assert_eq!(failures.seen()[0].count, 3);
    }
}

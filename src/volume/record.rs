//! What this machine knows of a backing store whose log is, or may one day be, gone.
//!
//! A small file for each backing store, by the drive's own id, below the state directory: which log
//! it has, and from when the backing store's own state is. Invariants: it is written before a
//! volume comes up and before a window changes the backing store, and removed when the log holds
//! nothing any more; unless a log was given up, which is remembered for good, so that it cannot
//! come back. It is no part of what makes data durable: without it, a log is known by its
//! superblock alone.

use crate::error::{Context, Error, Result};
use crate::media::{FileDrive, StableId};
use crate::stats::LogStats;
use crate::stats::time::rfc3339;
use serde::{Deserialize, Serialize};
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};

/// The content of the file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Record {
    /// Where the backing store was.
    pub backing: PathBuf,
    /// Where its log was.
    pub log: PathBuf,
    /// UUID of the log.
    pub uuid: [u8; 16],
    /// The log holds, or may hold, what the backing store lacks; or it alone knows that blocks are
    /// lost.
    pub dirty: bool,
    /// See [`LogStats::past_unix_s`].
    pub past_unix_s: u64,
    /// See [`LogStats::mixture_since_unix_s`].
    pub mixture_since_unix_s: u64,
    /// An earlier log was given up.
    pub gave_up: bool,
    /// Lost blocks of which somebody has taken note, as first block and count, in order.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub noted: Vec<(u64, u64)>,
}

impl Record {
    /// The same after a volume's log has gone on; `lost`: blocks were, and without the log nobody
    /// would know.
    pub(super) fn after(&self, log: &LogStats, lost: bool) -> Self {
        Self {
            dirty: !log.through || lost,
            past_unix_s: log.past_unix_s,
            mixture_since_unix_s: log.mixture_since_unix_s,
            ..self.clone()
        }
    }

    /// What the backing store alone is, in words.
    pub(super) fn state(&self) -> String {
        state(self.past_unix_s, self.mixture_since_unix_s)
    }
}

/// What is in both lists of ranges, given as first block and count, in order and joined.
pub(super) fn common(some: &[(u64, u64)], others: &[(u64, u64)]) -> Vec<(u64, u64)> {
    let (mut some, mut others) = (some.iter().peekable(), others.iter().peekable());
    let mut both = Vec::new();
    while let (Some(&&(a, n)), Some(&&(b, m))) = (some.peek(), others.peek()) {
        let (from, to) = (a.max(b), (a + n).min(b + m));
        if from < to {
            both.push((from, to - from));
        }
        if a + n < b + m {
            some.next()
        } else {
            others.next()
        };
    }
    both
}

/// What a backing store alone is, in words.
pub(super) fn state(past_s: u64, mixture_s: u64) -> String {
    match (past_s, mixture_s) {
        (0, 0) => "of its state nothing is known".into(),
        (past, 0) => format!("its state is that of {} at the latest", rfc3339(past)),
        (0 | 1, _) => "it may be a mixture of states".into(),
        (past, mixture) => format!(
            "since {} it may be a mixture of states, and was that of {} at the latest before",
            rfc3339(mixture),
            rfc3339(past)
        ),
    }
}

/// The file of a backing store.
#[derive(Clone, Debug)]
pub(super) struct Book {
    path: PathBuf,
}

impl Book {
    /// The file for a backing store, in a directory.
    pub(super) fn of(dir: &Path, backing: &FileDrive) -> Self {
        let id = StableId::of(backing);
        let number = match id.number() {
            // A drive without a name of its own is known by that of its node.
            0 => {
                let path = std::fs::canonicalize(backing.path());
                let path = path.unwrap_or_else(|_| backing.path().into());
                crc_fast::crc64_nvme(path.as_os_str().as_encoded_bytes())
            }
            number => number,
        };
        Self { path: dir.join(format!("backing-{}-{number:016x}.json", id.kind() as u8)) }
    }

    /// What is known.
    ///
    /// # Errors
    /// The file cannot be read or understood.
    pub(super) fn load(&self) -> Result<Option<Record>> {
        let what = || format!("cannot read {}", self.path.display());
        match std::fs::read(&self.path) {
            Ok(bytes) => serde_json::from_slice(&bytes).map(Some).context(what()).map_err(|e| {
                Error::failure(e.to_string()).mend("remove it if no log of that drive has data")
            }),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).context(what()),
        }
    }

    /// Writes what is known, durably.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn save(&self, record: &Record) -> Result<()> {
        let what = || format!("cannot write {}", self.path.display());
        let bytes = serde_json::to_vec(record).context(what())?;
        let dir = self.path.parent().unwrap_or(Path::new("/"));
        let fresh = self.path.with_extension("new");
        let write = || {
            std::fs::create_dir_all(dir)?;
            let mut file = std::fs::File::create(&fresh)?;
            file.write_all(&bytes)?;
            file.sync_all()?;
            std::fs::rename(&fresh, &self.path)?;
            std::fs::File::open(dir)?.sync_all()
        };
        write().context(what()).map_err(|e| {
            Error::failure(e.to_string())
                .mend("set ZTIER_STATE_DIR to a directory that can be written")
        })
    }

    /// The log holds nothing any more.
    ///
    /// # Errors
    /// The system's.
    pub(super) fn settle(&self, record: &Record) -> Result<()> {
        if record.gave_up {
            return self.save(&Record { dirty: false, ..record.clone() });
        }
        match std::fs::remove_file(&self.path) {
            Err(e) if e.kind() != ErrorKind::NotFound => {
                Err(e).context(format!("cannot remove {}", self.path.display()))
            }
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::common;

    #[test]
    fn what_two_lists_of_ranges_have_in_common() {
        let known = [(0, 4), (10, 10), (30, 1)];
        for (ranges, both) in [
            (&[][..], &[][..]),
            (&[(0, 4)], &[(0, 4)]),
            (&[(1, 2), (10, 1), (12, 8), (30, 1)], &[(1, 2), (10, 1), (12, 8), (30, 1)]),
            (&[(3, 2)], &[(3, 1)]),
            (&[(4, 6), (31, 1)], &[]),
            (&[(2, 50)], &[(2, 2), (10, 10), (30, 1)]),
        ] {
            assert_eq!(common(&known, ranges), both, "{ranges:?}");
            assert_eq!(common(ranges, &known), both, "{ranges:?}");
        }
    }
}

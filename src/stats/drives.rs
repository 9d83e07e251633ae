//! What has failed on the drives below a volume: which drive, what, where, why, how often and when.

use super::time::with;
use serde::{Deserialize, Serialize};
use std::fmt;

/// The role of a drive in its volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Role {
    /// It has the log.
    Log,
    /// It is the backing store.
    Backing,
    /// Cold data goes there.
    Spill,
}

impl Role {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Log => "log",
            Self::Backing => "backing",
            Self::Spill => "spill",
        }
    }
}

/// What was asked of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Operation {
    /// Bytes from it.
    Read,
    /// Bytes to it.
    Write,
    /// A range made to read as zeros.
    Zero,
    /// Its cache emptied.
    Flush,
}

impl Operation {
    /// In one word.
    pub fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Zero => "zero",
            Self::Flush => "flush",
        }
    }
}

/// A drive on which something has failed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failing {
    /// The drive's role in the volume.
    pub role: Role,
    /// Its path.
    pub path: String,
    /// What has failed, the latest first.
    pub failures: Vec<Failure>,
}

/// Requests of one kind that have failed for one reason.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// What was asked.
    pub operation: Operation,
    /// The system's number for the reason.
    pub errno: i32,
    /// Its name and words: `ENOSPC: No space left on device`.
    pub reason: String,
    /// Number of failures.
    pub count: u64,
    /// Offset of the last one on the drive, in bytes; 0 for a flush.
    pub offset: u64,
    /// Length of the last one, in bytes; 0 for a flush.
    pub bytes: u64,
    /// When the first one was, in seconds since 1970.
    pub first_unix_s: u64,
    /// When the last one was.
    pub last_unix_s: u64,
}

impl Failing {
    /// What failed last, in one line.
    pub fn last(&self) -> Option<String> {
        self.failures.first().map(|failure| self.describe(failure))
    }

    /// The drive and one of its failures, in one line.
    pub fn describe(&self, failure: &Failure) -> String {
        format!("{} {}: {failure}", self.role.name(), self.path)
    }

    /// When the last request failed, in seconds since 1970.
    pub fn last_unix_s(&self) -> u64 {
        self.failures.iter().map(|failure| failure.last_unix_s).max().unwrap_or(0)
    }

    /// Number of failed requests.
    pub fn count(&self) -> u64 {
        self.failures.iter().map(|failure| failure.count).sum()
    }
}

impl fmt::Display for Failing {
    /// The drive and all its failures, in one line.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}: ", self.role.name(), self.path)?;
        for (i, failure) in self.failures.iter().enumerate() {
            let before = if i == 0 { "" } else { "; " };
            write!(f, "{before}{failure}")?;
        }
        Ok(())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { count, reason, .. } = self;
        write!(f, "{} failed ({reason})", self.operation.name())?;
        if self.bytes > 0 {
            write!(f, " at byte {}, {} bytes", self.offset, self.bytes)?;
        }
        let last = with(" at", self.last_unix_s);
        match count {
            1 => f.write_str(&last),
            _ if last.is_empty() => write!(f, ", {count} times"),
            _ => write!(f, ", {count} times, last{last}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_told_with_reason_drive_and_place() {
        let failure = Failure {
            operation: Operation::Write,
            errno: 28,
            reason: "ENOSPC: No space left on device".into(),
            count: 1,
            offset: 1 << 20,
            bytes: 4096,
            first_unix_s: 1_700_000_000,
            last_unix_s: 1_700_000_000,
        };
        let flush = Failure {
            operation: Operation::Flush,
            errno: 5,
            reason: "EIO: Input/output error".into(),
            count: 3,
            offset: 0,
            bytes: 0,
            first_unix_s: 12,
            last_unix_s: 13,
        };
        let failures = vec![failure, flush];
        let failing = Failing { role: Role::Log, path: "/dev/x".into(), failures };
        assert_eq!(
            failing.to_string(),
            "log /dev/x: write failed (ENOSPC: No space left on device) at byte 1048576, 4096 bytes \
             at 2023-11-14T22:13:20Z; flush failed (EIO: Input/output error), 3 times"
        );
        assert_eq!((failing.count(), failing.last_unix_s()), (4, 1_700_000_000));
    }
}

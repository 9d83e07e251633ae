//! The progress of opening a log, for the user that waits for it.

use std::fmt;

/// What opening or verifying a log is at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The checkpoint is read.
    Checkpoint {
        /// Bytes of it that are.
        done: u64,
        /// All its bytes.
        of: u64,
    },
    /// The chain of chunks is followed; where it ends is only known there.
    Chain {
        /// Segments behind the one where it begins.
        done: u64,
        /// How many there are at most.
        most: u64,
    },
    /// Every record is verified.
    Records {
        /// Chunks of which they are.
        done: u64,
        /// All chunks.
        of: u64,
    },
    /// What was read goes into the index.
    Index {
        /// Changes that were read.
        changes: u64,
    },
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes >> 20;
        match *self {
            Self::Checkpoint { done, of } => {
                write!(f, "reading the checkpoint, {} of {} MiB", mib(done), mib(of))
            }
            Self::Chain { done, most } => {
                write!(f, "reading the log, segment {done} of at most {most}")
            }
            Self::Records { done, of } => write!(f, "verifying records, chunk {done} of {of}"),
            Self::Index { changes } => write!(f, "taking {changes} changes into the index"),
        }
    }
}

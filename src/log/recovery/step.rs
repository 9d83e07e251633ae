//! The progress of opening a log, for the user that waits for it.

use std::fmt;

/// A stage of opening or verifying a log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// The checkpoint is read.
    Checkpoint {
        /// Bytes that were read.
        done: u64,
        /// Bytes of the checkpoint.
        of: u64,
    },
    /// The chain of chunks is followed; its length is known only at its end.
    Chain {
        /// Segments passed since its begin.
        done: u64,
        /// Most segments that it can have.
        most: u64,
    },
    /// Every record is verified.
    Records {
        /// Chunks whose records are verified.
        done: u64,
        /// All chunks.
        of: u64,
    },
    /// The changes that were read go into the index.
    Index {
        /// How many changes.
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

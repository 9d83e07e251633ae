//! What opening a log found, and with which losses it is accepted.

use serde::{Deserialize, Serialize};
use std::fmt;

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The log had been closed in order.
    pub closed: bool,
    /// One copy of the superblock was damaged; opening repairs it.
    pub mended: bool,
    /// Blocks that a checkpoint names.
    pub known: u64,
    /// The checkpoint is damaged: all chunks were read instead.
    pub checkpoint_lost: bool,
    /// Chunks that count and were read.
    pub chunks: u64,
    /// Entries in these chunks.
    pub entries: u64,
    /// Whether a torn tail was cut off behind the last chunk.
    pub torn: bool,
    /// Ranges of missing chunks, if losses were accepted: number of the first, and how many.
    pub missing: Vec<(u64, u64)>,
    /// Places that could not be read, if losses were accepted.
    pub unread: u64,
    /// Changes that the log's drive lacked, and that were in memory.
    pub recommitted: u64,
    /// The losses with which the log may be opened again, if it was opened.
    pub accepted: Accepted,
}

/// The known losses of a log.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Accepted {
    /// Ranges of lost durable chunks: number of the first, and how many. Later chunks are there, so
    /// no new chunks get these numbers.
    pub missing: Vec<(u64, u64)>,
    /// Places that could not be read.
    pub unread: u64,
}

impl Accepted {
    /// Whether nothing is lost.
    pub fn is_empty(&self) -> bool {
        self.missing.is_empty() && self.unread == 0
    }

    pub(super) fn has(&self, &(first, count): &(u64, u64)) -> bool {
        // Ascending, as the walk found them.
        let after = self.missing.partition_point(|(from, _)| *from <= first);
        let last = after.checked_sub(1).and_then(|at| self.missing.get(at));
        last.is_some_and(|(from, n)| first.saturating_add(count) <= from.saturating_add(*n))
    }
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.closed { "closed in order" } else { "not closed" };
        write!(f, "log {how}: {} changes in {} chunks", self.entries, self.chunks)?;
        if self.known > 0 {
            write!(f, " after a checkpoint of {} blocks", self.known)?;
        }
        if self.checkpoint_lost {
            f.write_str("; the checkpoint was damaged")?;
        }
        if self.torn {
            f.write_str("; a torn end was cut off")?;
        }
        if self.mended {
            f.write_str("; one superblock was damaged")?;
        }
        for (first, count) in &self.missing {
            write!(f, "; {count} chunks from {first} on are missing")?;
        }
        if self.unread > 0 {
            write!(f, "; {} places could not be read", self.unread)?;
        }
        if self.recommitted > 0 {
            write!(f, "; {} changes more were in memory", self.recommitted)?;
        }
        Ok(())
    }
}

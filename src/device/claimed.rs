//! A log's drive and a backing store, both claimed for this volume, and three checks: do the two
//! belong together, was the backing store written to since the log was closed, is the log as new as
//! this machine has seen it?
//!
//! Invariant: this module writes nothing.

use super::backing::Backing;
use super::record::{Book, Record, Seen};
use crate::error::Result;
use crate::log::disk::format::Superblock;
use crate::log::{self, Inspection};
use crate::media::{FileDrive, Match};
use std::sync::Arc;

/// Both drives, and this machine's record of the backing store.
pub(super) struct Claimed {
    pub log: Arc<FileDrive>,
    pub backing: Arc<dyn Backing>,
    pub book: Book,
    pub record: Option<Record>,
}

impl Claimed {
    /// Compares the backing store with the identity in the log's superblock, or with the newer
    /// identity in this machine's record; `None` if the identity is damaged.
    ///
    /// # Errors
    /// The backing store cannot be read.
    pub fn compare(&self, sb: &Superblock) -> Result<Option<Match>> {
        let unmarked = self.record.as_ref().and_then(|record| record.unmarked(sb));
        self.backing.compare(sb, &unmarked.unwrap_or(sb.identity))
    }

    /// Whether a log belongs to another backing store.
    pub fn is_foreign(&self, sb: &Superblock) -> bool {
        let compared = self.compare(sb).ok().flatten();
        !matches!(compared, Some(Match::Same | Match::Changed { .. } | Match::Behind { .. }))
    }

    /// Whether certainly nothing was written to the backing store since its log was closed.
    pub fn is_untouched(&self) -> bool {
        let Ok((sb, ..)) = log::read_superblock(&*self.log) else { return false };
        let same = matches!(self.compare(&sb), Ok(Some(Match::Same)));
        same && self.backing.is_untouched(&sb)
    }

    /// The log's last known state, if that is newer than this superblock.
    pub fn newer(&self, sb: &Superblock) -> Option<Seen> {
        self.book.seen(self.record.as_ref(), sb.uuid).filter(|seen| seen.is_after(sb))
    }
}

/// Whether a log holds data, or has lost data.
pub(super) fn holds_data(found: &Inspection) -> bool {
    let report = &found.report;
    let whole = report.missing.is_empty() && report.unread == 0;
    found.holds_changes() || !found.superblock.lost.is_empty() || !whole
}

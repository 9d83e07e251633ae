//! A log's drive and a backing store, both claimed for this volume, and three checks: do the two
//! belong together, was the backing store written to since the log was closed, is the log as new as
//! this machine has seen it?
//!
//! Invariant: this module writes nothing.

use super::drives::failed;
use super::record::{Book, Record, Seen};
use crate::error::Result;
use crate::log::disk::format::Superblock;
use crate::log::{self, Inspection};
use crate::media::{ChangeCounter, Drive, FileDrive, Identity, Match, StableId};

/// Both drives, and this machine's record of the backing store.
pub(super) struct Claimed {
    pub log: FileDrive,
    pub backing: FileDrive,
    pub book: Book,
    pub record: Option<Record>,
}

impl Claimed {
    /// The identity of the backing store, now.
    pub fn identity(&self) -> Result<Identity> {
        Identity::of(&self.backing, &StableId::of(&self.backing))
            .map_err(|e| failed(self.backing.path(), &e))
    }

    /// Compares the backing store with the identity in the log's superblock, or with the newer
    /// identity in this machine's record; `None` if the identity is damaged.
    ///
    /// # Errors
    /// The backing store cannot be read.
    pub fn compare(&self, sb: &Superblock) -> Result<Option<Match>> {
        let unmarked = self.record.as_ref().and_then(|record| record.unmarked(sb));
        let Some(stored) = unmarked.or_else(|| Identity::decode(&sb.identity)) else {
            return Ok(None);
        };
        let now = stored.alike(&self.backing, &StableId::of(&self.backing));
        Ok(Some(stored.compare(&now.map_err(|e| failed(self.backing.path(), &e))?)))
    }

    /// Whether a log belongs to another backing store.
    pub fn is_foreign(&self, sb: &Superblock) -> bool {
        let compared = self.compare(sb).ok().flatten();
        !matches!(compared, Some(Match::Same | Match::Changed { .. }))
    }

    /// The change counters now, if the log was closed in order and its superblock has counters to
    /// compare with.
    fn change_counter(&self, sb: &Superblock) -> Option<ChangeCounter> {
        // The kernel counts dirty pages of other programs only when it writes them.
        let known = !sb.open
            && sb.change_counter != ChangeCounter::default()
            && self.backing.flush().is_ok();
        known.then(|| ChangeCounter::of(&self.backing))
    }

    /// Whether certainly nothing was written to the backing store since its log was closed.
    pub fn is_untouched(&self) -> bool {
        let Ok((sb, ..)) = log::read_superblock(&self.log) else { return false };
        let same = matches!(self.compare(&sb), Ok(Some(Match::Same)));
        same && self.change_counter(&sb).is_some_and(|now| sb.change_counter.is_sure(&now))
    }

    /// Whether the kernel counted writes to the backing store since the log was closed.
    pub fn is_written_to(&self, sb: &Superblock) -> bool {
        self.change_counter(sb).is_some_and(|now| sb.change_counter.is_changed(&now))
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

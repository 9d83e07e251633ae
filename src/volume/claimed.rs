//! A log's drive and a backing store that are ours, and what can be told of them: whether they
//! belong together, whether somebody has written to the backing store since, and whether the log is
//! as new as this machine has seen it.
//!
//! Invariant: nothing is written here.

use super::attach::failed;
use super::record::{Book, Record, Seen};
use crate::durable::format::Superblock;
use crate::durable::{self, Inspection};
use crate::error::Result;
use crate::media::{Drive, FileDrive, Identity, Match, StableId, Witness};

/// Drives that are ours, and what is known of them.
pub(super) struct Claimed {
    pub log: FileDrive,
    pub backing: FileDrive,
    pub book: Book,
    pub record: Option<Record>,
}

impl Claimed {
    /// The identity of the backing store, as it is now.
    pub fn identity(&self) -> Result<Identity> {
        Identity::of(&self.backing, &StableId::of(&self.backing))
            .map_err(|e| failed(self.backing.path(), &e))
    }

    /// How the backing store compares with the one that a log has; `None` if that does not say.
    ///
    /// # Errors
    /// The backing store cannot be read.
    pub fn compare(&self, sb: &Superblock) -> Result<Option<Match>> {
        let Some(stored) = Identity::decode(&sb.identity) else { return Ok(None) };
        let now = stored.alike(&self.backing, &StableId::of(&self.backing));
        Ok(Some(stored.compare(&now.map_err(|e| failed(self.backing.path(), &e))?)))
    }

    /// Whether a log has data of another backing store than this.
    pub fn is_foreign(&self, sb: &Superblock) -> bool {
        let compared = self.compare(sb).ok().flatten();
        !matches!(compared, Some(Match::Same | Match::Changed { .. }))
    }

    /// What is known of the backing store now, to be compared with what a log that was closed in
    /// order has.
    fn witness(&self, sb: &Superblock) -> Option<Witness> {
        // What somebody still has in the page cache is not counted before it is written.
        let known = !sb.open && sb.witness != Witness::default() && self.backing.flush().is_ok();
        known.then(|| Witness::of(&self.backing))
    }

    /// Whether nobody has written to the backing store since its log was closed, for certain.
    pub fn is_untouched(&self) -> bool {
        let Ok((sb, ..)) = durable::read_superblock(&self.log) else { return false };
        let same = matches!(self.compare(&sb), Ok(Some(Match::Same)));
        same && self.witness(&sb).is_some_and(|now| sb.witness.is_sure(&now))
    }

    /// Whether the kernel has counted changes of the backing store since the log was closed.
    pub fn is_written_to(&self, sb: &Superblock) -> bool {
        self.witness(sb).is_some_and(|now| sb.witness.is_changed(&now))
    }

    /// The log as this machine has seen it, if that was newer.
    pub fn newer(&self, sb: &Superblock) -> Option<Seen> {
        self.book.seen(self.record.as_ref(), sb.uuid).filter(|seen| seen.is_after(sb))
    }
}

/// Whether a log has something that would be missed.
pub(super) fn holds_data(found: &Inspection) -> bool {
    let report = &found.report;
    let whole = report.missing.is_empty() && report.unread == 0;
    found.holds_changes() || !found.superblock.lost.is_empty() || !whole
}

//! Does a log fit its backing store, in the present state of both? If not: why, and what to do.
//!
//! Invariants: nothing is written here. Each exception that may lose data has a flag of its own,
//! and a flag that excepts nothing is refused.

use super::claimed::{Claimed, holds_data};
use super::object_setup::is_store;
use super::pair::{Granted, Pair};
use super::record::{Record, Seen, moment, state};
use crate::BLOCK_SIZE;
use crate::error::{Error, Result};
use crate::log::disk::format::Superblock;
use crate::log::{Inspection, Kept, OpenError};
use crate::media::{Action, Match};
use crate::remedy;
use std::path::Path;

impl Pair {
    /// The error if the log is missing that holds what the backing store lacks.
    pub(super) fn lacks(&self, record: &Record, why: &str) -> Error {
        let (backing, log) = (self.backing.display(), record.log.display());
        let remedy = match is_store(&self.backing) {
            true => remedy::LOG_MISSED_STORE,
            false => remedy::LOG_MISSED,
        };
        Error::would_lose(format!("{backing} lacks what its log on {log} holds: {why}"))
            .hint(format!("{} ({})", remedy.on(&self.backing, None), record.state()))
    }

    /// Refuses flags that accept nothing: left in a script, they would later take effect unnoticed.
    pub(super) fn refuse_vain(&self, granted: &Granted) -> Result<()> {
        let (log, backing) = (self.log.display(), self.backing.display());
        if self.accept_changed && !granted.changed {
            return Err(Error::usage(format!("nothing shows that {backing} was changed"))
                .hint("leave out --accept-changed-backing"));
        }
        if self.accept_older && !granted.older {
            return Err(Error::usage(format!(
                "nothing shows that {log} is older than its log was"
            ))
            .hint("leave out --accept-older-log"));
        }
        Ok(())
    }

    /// Checks that a log belongs to the backing store, in the present state of both.
    pub(super) fn suits(
        &self,
        claimed: &Claimed,
        kept: &Kept,
        found: &Inspection,
    ) -> Result<Granted> {
        let (sb, dirty) = (&found.superblock, found.holds_changes() || !kept.is_empty());
        let compared = self.belongs(claimed, sb, dirty)?;
        let mut granted = Granted::default();
        self.is_newest(claimed, found, dirty, &mut granted)?;
        // A store that lost what its log had brought lacks that, also if the log holds no more.
        if dirty || matches!(compared, Match::Behind { .. }) {
            self.is_as_left(claimed, sb, compared, &mut granted)?;
        }
        Ok(granted)
    }

    /// Checks that a log is not older than the state of it that this machine has seen.
    fn is_newest(
        &self,
        claimed: &Claimed,
        found: &Inspection,
        dirty: bool,
        granted: &mut Granted,
    ) -> Result<()> {
        let (sb, record) = (&found.superblock, claimed.record.as_ref());
        let holds = holds_data(found) || dirty;
        let another = record.filter(|record| record.uuid != sb.uuid);
        if let Some(record) = another.filter(|record| record.dirty) {
            return Err(self.lacks(record, "another log was given"));
        }
        let lacking = record.is_some_and(|record| record.dirty);
        let newer = claimed.newer(sb).filter(|_| holds || lacking);
        let unknown = another.is_some_and(|record| record.gave_up) && holds;
        if newer.is_none() && !unknown {
            return Ok(());
        }
        if !self.accept_older {
            return Err(match newer {
                Some(seen) if !seen.gave_up => self.older(sb, seen, record.filter(|r| r.dirty)),
                _ => self.stale(record),
            });
        }
        granted.older = true;
        granted.notes.push(format!(
            "{} goes on with what {} held in the state {}: what was written since then is lost, or \
             mixed with it",
            self.backing.display(),
            self.log.display(),
            moment(sb.at_s)
        ));
        Ok(())
    }

    /// Checks that the backing store is as its log left it. The log holds newer data of it.
    fn is_as_left(
        &self,
        claimed: &Claimed,
        sb: &Superblock,
        compared: Match,
        granted: &mut Granted,
    ) -> Result<()> {
        let (log, backing) = (self.log.display(), self.backing.display());
        let what = match compared {
            Match::Moved { compared } if !self.moved => return Err(self.moved(compared)),
            Match::Moved { compared: 0 } => {
                granted.notes.push(format!(
                    "{backing} has the size of the drive that {log} had, and that is all that could \
                     be compared: the log has no sample of it that it did not change itself"
                ));
                return Ok(());
            }
            Match::Changed { what } => format!("it differs in {what}"),
            Match::Behind { what } => return self.is_behind(sb, &what, granted),
            _ if claimed.backing.is_written_to(sb) => {
                "the kernel counted changes, which no sample shows".to_owned()
            }
            _ => return Ok(()),
        };
        let since = match sb.open {
            true => format!("after a state of the log {}", moment(sb.at_s)),
            false => format!("after the log was closed in a state {}", moment(sb.at_s)),
        };
        if !self.accept_changed {
            return Err(Error::would_lose(format!(
                "{backing} was changed while {log} held newer data of it ({what}; {since})"
            ))
            .hint(match is_store(&self.backing) {
                true => remedy::LOG_BEHIND_STORE,
                false => remedy::LOG_BEHIND,
            }));
        }
        granted.changed = true;
        let note = format!("{log} goes over {backing}, which was changed meanwhile ({what})");
        granted.notes.push(note);
        Ok(())
    }

    /// Refuses a store that lacks what its log had brought it.
    fn is_behind(&self, sb: &Superblock, what: &str, granted: &mut Granted) -> Result<()> {
        let (log, backing) = (self.log.display(), self.backing.display());
        if !self.accept_changed {
            return Err(Error::would_lose(format!(
                "{backing} is in an older state than {log} had brought it to ({what}; the log is in \
                 a state {})",
                moment(sb.at_s)
            ))
            .hint(remedy::STORE_BEHIND));
        }
        granted.changed = true;
        granted.notes.push(format!("{log} goes on over an older state of {backing} ({what})"));
        Ok(())
    }

    /// The error for a log that cannot be opened, and what to do without it.
    pub(super) fn unusable(&self, e: &OpenError, lacking: Option<&Record>) -> Error {
        let error = cannot_use(&self.log, e);
        let state = lacking.map(|record| format!("what it held: {}", record.state()));
        match (e, state) {
            (OpenError::Damaged | OpenError::Shrunk { .. }, Some(state)) => error.and(state),
            _ => error,
        }
    }

    /// The error for a log with data, if the backing store was used without it.
    fn stale(&self, record: Option<&Record>) -> Error {
        let (log, backing) = (self.log.display(), self.backing.display());
        let its = record.map(|record| format!(" (its log is that on {})", record.log.display()));
        Error::would_lose(format!(
            "{log} holds data that {backing} has gone on without{}",
            its.unwrap_or_default()
        ))
        .hint(remedy::LOG_STALE)
    }

    /// The error for a log of which this machine has seen a newer state. `lacking`: the record, if
    /// the backing store lacks what the newer log held.
    fn older(&self, sb: &Superblock, seen: Seen, lacking: Option<&Record>) -> Error {
        let (log, backing) = (self.log.display(), self.backing.display());
        let text = format!(
            "{log} holds the log of {backing} in an older state ({}, generation {}) than this machine \
             has seen ({}, generation {})",
            moment(sb.at_s),
            sb.generation,
            moment(seen.at_unix_s),
            seen.generation
        );
        let place = lacking.map(|record| format!(", last on {}", record.log.display()));
        let error = Error::would_lose(text + &place.unwrap_or_default());
        error.hint(match lacking {
            Some(_) => remedy::LOG_OLDER,
            None => remedy::LOG_OLDER_THAN_BACKING,
        })
    }

    /// The error for a log with data of a drive with another id. `compared`: how many samples
    /// agreed.
    pub(super) fn moved(&self, compared: usize) -> Error {
        let (log, backing) = (self.log.display(), self.backing.display());
        let (why, hint) = match compared {
            0 => ("and has no sample of that left to compare", remedy::LOG_MOVED_UNSEEN),
            _ => ("though of the same content", remedy::LOG_MOVED),
        };
        let text = format!("{log} holds data of another drive than {backing}, {why}");
        Error::would_lose(text).hint(hint)
    }

    /// What the backing store holds without the log that is given up, in words.
    pub(super) fn abandoned(&self, lacking: Option<&Record>, own: Option<&Superblock>) -> String {
        let state = match (lacking, own) {
            (Some(record), _) => record.state(),
            (None, Some(sb)) if sb.open => state(sb.past_s, sb.mixture_s.max(sb.past_s).max(1)),
            (None, Some(sb)) => state(sb.past_s, sb.mixture_s),
            (None, None) => state(0, 0),
        };
        let log = lacking.map_or(&self.log, |record| &record.log);
        format!(
            "{} goes on without what its log on {} held: {state}",
            self.backing.display(),
            log.display()
        )
    }

    /// Checks that a log was made for this backing store, and returns how the drive compares with
    /// the identity in the log.
    pub(super) fn belongs(&self, claimed: &Claimed, sb: &Superblock, dirty: bool) -> Result<Match> {
        let (log, backing) = (self.log.display(), self.backing.display());
        let blocks = claimed.backing.bytes() / BLOCK_SIZE as u64;
        let compared = claimed.compare(sb)?.ok_or_else(|| {
            Error::failure(format!("{log} does not say which backing store it has"))
                .hint(remedy::LOG_NAMELESS)
        })?;
        let refuse = |text: String| {
            Err(match dirty {
                true => Error::would_lose(text).hint(remedy::LOG_OF_ANOTHER),
                false => Error::failure(text)
                    .hint("the log is empty: make it anew with `ztier log format`"),
            })
        };
        let resized = sb.blocks != blocks && !claimed.backing.grows();
        let (then, now) = (sb.blocks * BLOCK_SIZE as u64, claimed.backing.bytes());
        match compared {
            Match::Other { what } => refuse(format!(
                "{log} is the log of another drive than {backing} (it differs in {what})"
            )),
            // This may be the right drive: advice for another would have the data given up.
            Match::Changed { .. } if resized && dirty => Err(Error::would_lose(format!(
                "{backing} had {then} bytes when {log} got newer data of it, and has {now} now"
            ))
            .hint(remedy::LOG_RESIZED)),
            _ if resized => refuse(format!(
                "{log} is the log of a drive with {then} bytes, and {backing} has {now}"
            )),
            compared => Ok(compared),
        }
    }
}

/// The error for a log that cannot be made or opened, with what to do about it.
pub fn cannot_use(path: &Path, e: &OpenError) -> Error {
    let text = format!("{} can't be used as log: {e}", path.display());
    let error = match e {
        OpenError::Unread(_)
        | OpenError::Damaged
        | OpenError::Shrunk { .. }
        | OpenError::Version(_)
        | OpenError::Lost { .. }
        | OpenError::OtherMemory
        | OpenError::GoneOn
        | OpenError::Forgotten { .. } => Error::would_lose(text),
        _ => Error::failure(text),
    };
    match e {
        OpenError::Drive(e) if e.action != Action::Read => error.hint(remedy::LOG_FAILS_WRITES),
        OpenError::Drive(_) => error.hint(remedy::DRIVE_FAILS),
        OpenError::NoLog => error.hint("make one with `ztier log format`"),
        OpenError::Damaged => error.hint(remedy::LOG_BROKEN),
        OpenError::Shrunk { .. } => error.hint(remedy::LOG_SHRUNK),
        OpenError::Version(_) => error.hint("use the ztier that made it"),
        OpenError::Segment(_) | OpenError::Memory(_) => error,
        OpenError::OtherMemory => error.hint(remedy::MEMORY_OF_ANOTHER_LOG),
        OpenError::GoneOn | OpenError::Forgotten { .. } => error.hint(remedy::MEMORY_OUTDATED),
        OpenError::Segments(_) => error.hint("give a larger drive, or another --segment"),
        OpenError::Unread(_) => error.hint(remedy::LOG_UNREAD),
        OpenError::Lost { .. } => error.hint(remedy::LOG_DAMAGED),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::media::DriveError;

    /// An SSD at its end often returns what it has, and takes nothing.
    #[test]
    fn what_a_drive_still_returns_is_to_be_copied() {
        let said = |action| {
            let failed = DriveError { action, at: 0, len: 4096, errno: 5 };
            cannot_use(Path::new("/dev/x"), &OpenError::Drive(failed)).to_string()
        };
        assert!(said(Action::Write).contains("copy it whole"), "{}", said(Action::Write));
        assert!(said(Action::Flush).contains("copy it whole"), "{}", said(Action::Flush));
        assert!(!said(Action::Read).contains("copy it whole"), "{}", said(Action::Read));
    }
}

//! The part that ends a window, and the mark of the log in it.

use super::Mark;
use super::format::{Damage, Entry, Identity, Seed, Session, payloads};
use super::store::{Failure, Store, slot as key};
use std::ops::Range;

/// Where a part has the mark of a log: bytes of the object, and the check word.
pub type MarkAt = (Range<u32>, u32);

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowEnd {
    /// Its slot.
    pub slot: u64,
    /// Its check word.
    pub check: u32,
    /// The session that made it.
    pub session: Session,
    /// Its mark, if a log has made the window.
    pub mark: Option<MarkAt>,
}

impl WindowEnd {
    /// That of a window whose last part is in `slot`, with this check word and these entries.
    pub fn new((slot, check): (u64, u32), session: Session, entries: &[Entry]) -> Self {
        let mark = payloads(entries).find_map(|(entry, range)| match entry {
            Entry::Mark { check, .. } => Some((range, *check)),
            _ => None,
        });
        Self { slot, check, session, mark }
    }

    /// Reads the mark.
    ///
    /// # Errors
    /// The store fails.
    pub fn read_mark(
        &self,
        store: &dyn Store,
        volume: &Identity,
    ) -> Result<Result<Option<Mark>, Damage>, Failure> {
        let Some((range, word)) = &self.mark else { return Ok(Ok(None)) };
        let range = u64::from(range.start)..u64::from(range.end);
        let bytes = store.get_range(&key(self.slot), range)?;
        let seed = Seed { volume: *volume, session: self.session, slot: self.slot };
        Ok(Mark::decode(&bytes, &seed, *word).map(Some))
    }
}

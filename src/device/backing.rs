//! A backing store, as the opening of its log sees it: which one it is, and whether it is as the
//! log left it.
//!
//! Invariant: nothing here changes the backing store.

use super::drives::failed;
use crate::error::Result;
use crate::log::disk::format::{IDENTITY, Superblock};
use crate::media::{ChangeCounter, Commit, Drive, FileDrive, Identity, Match, StableId};

/// See the module.
pub(super) trait Backing {
    /// Bytes.
    fn bytes(&self) -> u64;

    /// # Errors
    /// Its size is no multiple of a block.
    fn require_whole(&self) -> Result<()>;

    /// Whether it may be larger than its log says, which then grows, too. If it is smaller,
    /// [`Self::compare`] says so.
    fn grows(&self) -> bool {
        false
    }

    /// What a log's superblock says of it.
    ///
    /// # Errors
    /// It can't be read.
    fn identity(&self) -> Result<[u8; IDENTITY]>;

    /// Compares it with what is `stored` in the log of `sb`; `None` if that is damaged, or of
    /// another kind of backing store.
    ///
    /// # Errors
    /// It can't be read.
    fn compare(&self, sb: &Superblock, stored: &[u8; IDENTITY]) -> Result<Option<Match>>;

    /// Whether certainly nothing was written to it since its log was closed, if it compares as the
    /// same.
    fn is_untouched(&self, sb: &Superblock) -> bool;

    /// Whether certainly something was written to it since its log was closed.
    fn is_written_to(&self, sb: &Superblock) -> bool;

    /// Its newest commit, if that is of the log of `sb`.
    fn committed(&self, _sb: &Superblock) -> Option<Commit> {
        None
    }
}

impl Backing for FileDrive {
    fn bytes(&self) -> u64 {
        Drive::size(self)
    }

    fn require_whole(&self) -> Result<()> {
        Self::require_whole(self)
    }

    fn identity(&self) -> Result<[u8; IDENTITY]> {
        let identity = Identity::of(self, &StableId::of(self));
        identity.map(|identity| identity.encode()).map_err(|e| failed(self.path(), &e))
    }

    fn compare(&self, _: &Superblock, stored: &[u8; IDENTITY]) -> Result<Option<Match>> {
        let Some(stored) = Identity::decode(stored) else { return Ok(None) };
        let now = stored.alike(self, &StableId::of(self));
        Ok(Some(stored.compare(&now.map_err(|e| failed(self.path(), &e))?)))
    }

    fn is_untouched(&self, sb: &Superblock) -> bool {
        change_counter(self, sb).is_some_and(|now| sb.change_counter.is_sure(&now))
    }

    fn is_written_to(&self, sb: &Superblock) -> bool {
        change_counter(self, sb).is_some_and(|now| sb.change_counter.is_changed(&now))
    }
}

/// The change counters now, if the log was closed in order and its superblock has counters to
/// compare with.
fn change_counter(drive: &FileDrive, sb: &Superblock) -> Option<ChangeCounter> {
    // The kernel counts dirty pages of other programs only when it writes them.
    let known = !sb.open && sb.change_counter != ChangeCounter::default() && drive.flush().is_ok();
    known.then(|| ChangeCounter::of(drive))
}

//! The identity of the backing store in the log's superblock, kept true while windows change the
//! backing store.
//!
//! Invariants: before a window writes to a range that has a sample, a superblock without that
//! sample is durable; a sample comes back only when the backing store has its content durably. So
//! each sample in a superblock is true at any power cut. If the drive of a failed log takes no
//! superblock, this machine's record of the backing store holds the identity instead.

use crate::BLOCK_SIZE;
use crate::log::disk::format::IDENTITY;
use crate::media::{Drive, DriveError, Identity, StableId};
use crate::sync::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// An encoded identity, as the superblock keeps it.
type Stored = [u8; IDENTITY];

/// The identity of a backing store. `None`: its log does not keep one.
#[derive(Default)]
pub(super) struct Watched(Mutex<Option<Inner>>);

struct Inner {
    /// What the superblock has, or will have when the next window ends.
    identity: Identity,
    /// The identity that the superblock of a failed log may lack.
    unmarked: Option<Stored>,
    id: StableId,
    /// The drive itself, without copies.
    drive: Arc<dyn Drive>,
}

impl Watched {
    /// Begins to keep `identity` true.
    pub fn begin(&self, identity: Identity, id: StableId, drive: Arc<dyn Drive>) {
        *self.0.lock() = Some(Inner { identity, unmarked: None, id, drive });
    }

    /// The ranges with samples, in blocks.
    pub fn samples(&self) -> Vec<Range<u64>> {
        let inner = self.0.lock();
        let ranges = inner.iter().flat_map(|inner| inner.identity.ranges());
        ranges.map(|bytes| blocks_of(&bytes)).collect()
    }

    /// Drops the samples of ranges for which `changes` is true. If it dropped any, returns the
    /// identity that must be durable before the change.
    pub fn forget(&self, changes: impl Fn(&Range<u64>) -> bool) -> Option<Stored> {
        let mut inner = self.0.lock();
        let identity = &mut inner.as_mut()?.identity;
        let before = identity.clone();
        identity.forget(|bytes| changes(&blocks_of(&bytes)));
        (*identity != before).then(|| identity.encode())
    }

    /// The superblock may lack the identity, because the log has failed.
    pub fn set_unmarked(&self) {
        if let Some(inner) = self.0.lock().as_mut() {
            inner.unmarked = Some(inner.identity.encode());
        }
    }

    /// The identity that the superblock may lack.
    pub fn unmarked(&self) -> Option<Stored> {
        self.0.lock().as_ref()?.unmarked
    }

    /// Reads dropped samples again, once a change is durable. Returns the identity for the next
    /// superblock, if it is a new one.
    pub fn remember(&self) -> Option<Stored> {
        let mut inner = self.0.lock();
        let inner = inner.as_mut().filter(|i| !i.identity.is_whole())?;
        // Unreadable samples stay unknown.
        inner.identity = inner.identity.renewed(&*inner.drive).ok()?;
        let stored = inner.identity.encode();
        inner.unmarked = inner.unmarked.map(|_| stored);
        Some(stored)
    }

    /// Reads all samples again, after the last write. Returns the identity for the last superblock.
    ///
    /// # Errors
    /// The drive fails.
    pub fn renew(&self) -> Result<Option<Stored>, DriveError> {
        let mut inner = self.0.lock();
        let Some(Inner { identity, id, drive, .. }) = inner.as_mut() else { return Ok(None) };
        *identity = Identity::of(&**drive, id)?;
        Ok(Some(identity.encode()))
    }
}

/// The blocks that a range of bytes touches.
fn blocks_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / BLOCK_SIZE as u64..bytes.end.div_ceil(BLOCK_SIZE as u64)
}

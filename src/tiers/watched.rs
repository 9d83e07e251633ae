//! What the log's superblock has of the backing store's identity.
//!
//! Invariants: before a window changes what the identity has a sample of, a superblock without that
//! sample is durable; a sample is noted again only of what the backing store has durably. So
//! whatever the superblock has is true, at whatever moment power goes.

use crate::BLOCK_SIZE;
use crate::durable::format::IDENTITY;
use crate::media::{Drive, DriveError, Identity, StableId};
use crate::sync::Mutex;
use std::ops::Range;
use std::sync::Arc;

/// An identity as the superblock keeps it.
type Stored = [u8; IDENTITY];

/// The identity of a backing store, if its log keeps that.
#[derive(Default)]
pub(super) struct Watched(Mutex<Option<Inner>>);

struct Inner {
    /// As the superblock has it, or will have it with the next window that ends.
    identity: Identity,
    id: StableId,
    /// The drive itself, without copies.
    drive: Arc<dyn Drive>,
}

impl Watched {
    /// From now on it is kept.
    pub fn begin(&self, identity: Identity, id: StableId, drive: Arc<dyn Drive>) {
        *self.0.lock() = Some(Inner { identity, id, drive });
    }

    /// The parts of the backing store that there are samples of, as blocks.
    pub fn samples(&self) -> Vec<Range<u64>> {
        let inner = self.0.lock();
        let ranges = inner.iter().flat_map(|inner| inner.identity.ranges());
        ranges.map(|bytes| blocks_of(&bytes)).collect()
    }

    /// The backing store will change where `changes` says: what a superblock has to say before, if
    /// a sample goes by that.
    pub fn forget(&self, changes: impl Fn(&Range<u64>) -> bool) -> Option<Stored> {
        let mut inner = self.0.lock();
        let identity = &mut inner.as_mut()?.identity;
        let before = identity.clone();
        identity.forget(|bytes| changes(&blocks_of(&bytes)));
        (*identity != before).then(|| identity.encode())
    }

    /// The backing store has changed, durably: what the next superblock may say, if samples were
    /// forgotten.
    pub fn remember(&self) -> Option<Stored> {
        let mut inner = self.0.lock();
        let Inner { identity, drive, .. } = inner.as_mut().filter(|i| !i.identity.is_whole())?;
        // What cannot be read stays unknown.
        *identity = identity.renewed(&**drive).ok()?;
        Some(identity.encode())
    }

    /// Nothing will be written to the backing store any more: what the last superblock says.
    ///
    /// # Errors
    /// The drive fails.
    pub fn renew(&self) -> Result<Option<Stored>, DriveError> {
        let mut inner = self.0.lock();
        let Some(Inner { identity, id, drive }) = inner.as_mut() else { return Ok(None) };
        *identity = Identity::of(&**drive, id)?;
        Ok(Some(identity.encode()))
    }
}

/// The blocks that bytes are in.
fn blocks_of(bytes: &Range<u64>) -> Range<u64> {
    bytes.start / BLOCK_SIZE as u64..bytes.end.div_ceil(BLOCK_SIZE as u64)
}

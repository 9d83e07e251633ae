//! What the core answers to its volume.

use crate::log::disk::format::{Kind, Seed};

/// Why a change was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    /// No room until a commit or writeback makes some, or while a failed log is written back: try
    /// again.
    #[error("the log is full")]
    Full,
    /// The log has failed, and the backing store has all of it: write there.
    #[error("the log has failed, and writes go to the backing store")]
    Through,
    /// The log's drive failed; the log takes nothing more.
    #[error("the log has failed")]
    Failed,
}

/// Where a block's current content is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Found {
    /// The block is all zeros.
    Zeros,
    /// In memory: the payload, of this kind, was copied out.
    Memory(Kind),
    /// The writer has reserved the place but not filled it yet, so the write is not acknowledged:
    /// wait for the writer, then look again.
    Filling,
    /// On the log's drive. A pin keeps the payload there until [`Core::release`].
    Log(Reading),
    /// The backing store has the block's current content.
    Backing,
    /// The content was damaged in the log before it reached the backing store.
    Lost,
    /// In the same payload as the block before, a cluster; this is the block's own check word.
    Before(u32),
}

/// A payload to read from the log's drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Offset on the drive, in bytes; not aligned.
    pub at: u64,
    /// Length in bytes.
    pub len: u32,
    /// How to decode it.
    pub kind: Kind,
    /// Its check word.
    pub check: u32,
    /// The seed of that check word.
    pub seed: Seed,
}

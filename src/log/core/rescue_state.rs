//! How far a rescue is, and what it has found lost; the steps: [`super::rescue`].

use super::answer::Refused;
use super::holes::{Record, Tombstone};
use std::collections::BTreeSet;

/// Failed windows in a row after which requests no longer wait, but fail.
pub(super) const PATIENCE: u32 = 3;

/// How far a rescue is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// The durable content of the log is written back.
    #[default]
    Log,
    /// The superblocks are written that say that the log is spent.
    Marking,
    /// Content that is only in memory is written back.
    Memory,
    /// Writes go to the backing store.
    Through,
    /// The log takes nothing more.
    Stranded,
}

/// The state of a rescue.
#[derive(Debug, Default)]
pub(super) struct Rescue {
    pub(super) stage: Stage,
    /// Segments before this one are in the backing store.
    pub(super) next: u64,
    /// Discards in segments from `next` on whose records cannot be read any more.
    pub(super) stones: BTreeSet<Tombstone>,
    /// Blocks whose record cannot be read any more.
    pub(super) lost: BTreeSet<u64>,
    /// Blocks whose last durable record cannot be read any more, and that have a newer record in
    /// memory: lost if power fails before that record is in the backing store.
    pub(super) owed: BTreeSet<u64>,
    /// Windows that have failed in a row.
    pub(super) failures: u32,
    /// The epoch that begins where the log is spent. Each attempt uses the same one: kept memory
    /// notes only the last few epochs, and must know the one that is on the drive.
    pub(super) epoch: Option<u64>,
    /// The superblocks could not be written.
    pub(super) unmarkable: bool,
    /// When that write failed, in milliseconds.
    pub(super) unmarkable_ms: u64,
}

/// A search for blocks that cannot be read any more: see [`Core::more_lost`].
#[derive(Debug, Default)]
pub struct Lost {
    pub(super) found: Vec<(u64, u64)>,
    /// Where the search goes on: at this block for single blocks, at this record for ranges.
    pub(super) block: u64,
    pub(super) record: Record,
    /// The rest of the range at work.
    pub(super) range: Option<(u64, u64)>,
}

impl Lost {
    /// The blocks that were found, as first block and count, in order and joined.
    pub fn ranges(self) -> Vec<(u64, u64)> {
        merge(self.found)
    }
}

impl Rescue {
    /// How the log refuses a change.
    pub(super) fn refusal(&self) -> Refused {
        match self.stage {
            Stage::Through => Refused::Through,
            Stage::Log | Stage::Marking | Stage::Memory if self.failures < PATIENCE => {
                Refused::Full
            }
            _ => Refused::Failed,
        }
    }

    pub(super) fn is_through(&self) -> bool {
        self.stage == Stage::Through
    }

    /// Whether the rescue is at work: neither complete nor stranded.
    pub(super) fn is_at_work(&self) -> bool {
        !matches!(self.stage, Stage::Through | Stage::Stranded)
    }
}

/// Sorts and joins ranges of first block and count.
pub(super) fn merge(mut ranges: Vec<(u64, u64)>) -> Vec<(u64, u64)> {
    ranges.sort_unstable();
    let mut merged: Vec<(u64, u64)> = Vec::new();
    for (block, count) in ranges {
        match merged.last_mut() {
            Some((first, known)) if *first + *known >= block => {
                *known = (*known).max(block + count - *first);
            }
            _ => merged.push((block, count)),
        }
    }
    merged
}

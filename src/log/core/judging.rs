//! What is known of parts that cannot be read; the steps: [`super::judge`].

use super::answer::Refused;
use super::holes::{Record, Tombstone};
use crate::intervals::Intervals;
use crate::log::disk::format::{Data, Kind};
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

/// A part of a segment: the segment's number, and bytes in it.
pub type Part = (u64, Range<u32>);

/// What is known of segments whose chunks cannot be read.
#[derive(Debug, Default)]
pub(super) struct Unread {
    /// Parts that were looked up in the index, in bytes from the begin of segment 0.
    pub(super) parts: Intervals,
    /// The records that the index named there, with their segments, in no order.
    pub(super) records: Arc<Vec<(u64, Data)>>,
    /// Discards that could not be appended again for lack of room: a window carries them out, each
    /// at its place in the order of the log.
    pub(super) stones: BTreeSet<Tombstone>,
}

impl Unread {
    /// What a window of the segments before `end` has to know.
    pub(super) fn before(&self, end: u64) -> (Vec<Tombstone>, Arc<Vec<(u64, Data)>>) {
        let stones = self.stones.iter().take_while(|stone| stone.segment < end);
        (stones.copied().collect(), Arc::clone(&self.records))
    }

    /// Forgets what is known of the segments before `end`, which have `segment` bytes each.
    pub(super) fn forget(&mut self, end: u64, segment: u32) {
        self.parts.remove(0..end.saturating_mul(u64::from(segment)));
        if !self.records.is_empty() {
            Arc::make_mut(&mut self.records).retain(|(of, _)| *of >= end);
        }
    }

    /// Forgets the discards of the segments before `end`, which a window has carried out.
    pub(super) fn carried(&mut self, end: u64) {
        let first = Tombstone { segment: end, offset: 0, start: 0, end: 0 };
        self.stones = self.stones.split_off(&first);
    }

    /// Whether a window has carried out a discard, as a part of the same record.
    pub(super) fn has_carried(&self, stone: &Tombstone) -> bool {
        let last = self.stones.range(..=Tombstone { end: u64::MAX, ..*stone }).next_back();
        last.is_some_and(|done| {
            (done.segment, done.offset) == (stone.segment, stone.offset) && stone.end <= done.end
        })
    }
}

/// What is judged next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum At {
    /// The index, from this block on.
    Index(u64),
    /// Discards in parts that cannot be read.
    Discards,
    /// Damaged records.
    Damaged,
    /// Ranges that were lost before, from this record on.
    Lost(Record),
}

/// A window that is being judged.
#[derive(Debug)]
pub(super) struct Judging {
    /// The segment before which it ended.
    pub(super) end: u64,
    /// Whether the log has failed.
    pub(super) rescues: bool,
    /// Blocks that its segments name.
    pub(super) blocks: Vec<u64>,
    /// Blocks whose content is lost in the state at the window's end, as first block and count.
    pub(super) lost: Vec<(u64, u64)>,
    pub(super) at: At,
    /// Parts to look up in the index, as [`Unread::parts`].
    pub(super) unknown: Intervals,
    /// The index named records there that the window lacked: the window is taken again.
    pub(super) again: bool,
    /// Ranges of records in which discards are looked for, in reverse order.
    pub(super) spans: Vec<(Record, Record)>,
    pub(super) damaged: Vec<(u64, Data)>,
    /// The rest of a range to append again, as discarded or lost.
    pub(super) range: Option<(Tombstone, Kind)>,
    /// Something was unreadable, damaged or lost: newer records have to be durable first.
    pub(super) judges: bool,
    /// An error if there was no room for an append.
    pub(super) full: Result<(), Refused>,
}

impl Judging {
    /// Whether it is a window of a log that has failed.
    pub(super) fn rescues(&self) -> bool {
        self.rescues
    }
}

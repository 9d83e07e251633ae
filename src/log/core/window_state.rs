//! The window at work, and the superblock that is being written; the steps: [`super::window`].

use super::commit_state::Ticket;
use super::holes::Tombstone;
use super::judging::{Judging, Part, Unread};
use crate::log::disk::format::Data;
use crate::media::Buffer;
use std::collections::VecDeque;
use std::sync::Arc;

/// Index entries, ranges or segments that one step forgets or frees; one for the simulator, whose
/// windows are small.
pub(super) const STEP: usize = if cfg!(sim) { 1 } else { 1024 };

/// Why a superblock is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum After {
    /// The tail moves.
    Tail,
    /// Chunks are written elsewhere, in a new epoch.
    Rewrite,
    /// The log is closed.
    Close,
    /// The identity or size of the backing store, the note of copies, or the durable mark changes.
    Identity,
    /// There is a newer checkpoint.
    Checkpoint,
    /// Copies leave the log.
    Release,
    /// The log has failed, and all that was durable in it is in the backing store.
    Spent,
}

/// A window: segments to write back, and what is known of them.
#[derive(Debug)]
pub struct Plan {
    /// The segments, oldest first.
    pub segments: Vec<Planned>,
    /// Whether a failing read ends the window; else the window goes on without what cannot be read.
    pub patient: bool,
    /// Whether the backing store takes blocks as they are packed.
    pub packs: bool,
    /// The content of the segments, if it is not on the log's drive; else empty.
    pub images: Vec<Buffer>,
    /// Discards in these segments whose records cannot be read.
    pub stones: Vec<Tombstone>,
    /// Records that the index named in parts that cannot be read as chunks, with their segments;
    /// also of segments outside this window.
    pub records: Arc<Vec<(u64, Data)>>,
}

/// A segment to write back.
#[derive(Clone, Copy, Debug)]
pub struct Planned {
    /// Its number.
    pub number: u64,
    /// Where it is on the log's drive, in bytes.
    pub at: u64,
    /// Offset of its first chunk in the segment, in bytes.
    pub from: u32,
    /// End of its last chunk in the segment, in bytes.
    pub used: u32,
    /// Its epoch.
    pub epoch: u64,
    /// Number of its first chunk.
    pub chunk: u64,
    /// CRC of the header before that chunk.
    pub prev: u32,
}

/// How a window ended.
#[derive(Debug)]
pub enum Ended {
    /// The backing store durably holds the state at the window's end, except what is damaged.
    Well {
        /// The window ended before this segment, which is left to the next window with all behind
        /// it.
        cut: Option<u64>,
        /// Blocks that the window's segments name.
        blocks: Vec<u64>,
        /// Records whose payload is damaged, with their segments.
        damaged: Vec<(u64, Data)>,
        /// Parts of segments that cannot be read as chunks.
        unreadable: Vec<Part>,
        /// Blocks whose content is lost in the state at the window's end, as first block and count.
        lost: Vec<(u64, u64)>,
    },
    /// A drive failed; the changes in the window are still dirty.
    Badly {
        /// The log could not be read.
        unread: bool,
    },
}

/// A window that was judged.
#[derive(Debug)]
pub(super) struct Judged {
    /// The segment before which it ended.
    pub(super) end: u64,
    /// Whether the log has failed.
    pub(super) rescues: bool,
    /// Blocks that its segments name.
    pub(super) blocks: Vec<u64>,
    /// See [`Ended::Well`].
    pub(super) lost: Vec<(u64, u64)>,
}

#[derive(Debug, Default)]
pub(super) enum Step {
    #[default]
    Idle,
    /// A writeback works on the segments before `end`; `reached` is [`Window::reached`] from
    /// before.
    Away { end: u64, reached: u64 },
    /// The same, for a log that has failed.
    Rescuing { end: u64, reached: u64 },
    /// The writeback came back, and what it could not do is judged.
    Judging(Box<Judging>),
    /// Records that had to be appended become durable.
    Securing { ticket: Ticket, judged: Judged },
    /// An atomic backing store is to commit the window.
    Committing(Judged),
    /// The index forgets all ranges before `end`, and once these are `retired`, the blocks.
    Forgetting { end: u64, blocks: Vec<u64>, retired: bool },
    /// The superblock with the new tail is written.
    Moving { end: u64, frees: bool },
    /// Readers still hold slots before `end`.
    Leaving { end: u64 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Due,
    Writing,
    Flushing,
}

/// A superblock that is being written to both copies, one after the other: while one copy is not
/// durable, the other is.
#[derive(Clone, Copy, Debug)]
pub(super) struct Copying {
    pub(super) copy: usize,
    pub(super) stage: Stage,
    /// Tells writes apart, so that a flush that began too early does not count.
    pub(super) serial: u64,
    /// The other copy is written next.
    pub(super) more: bool,
    /// The content is newer: both copies are written again.
    pub(super) again: bool,
}

/// The window at work, and the superblock that is being written.
#[derive(Debug, Default)]
pub(super) struct Window {
    pub(super) step: Step,
    pub(super) copying: Option<Copying>,
    pub(super) purposes: Vec<After>,
    pub(super) tries: u32,
    pub(super) serial: u64,
    pub(super) closed: bool,
    /// Windows in a row that have failed because the log could not be read.
    pub(super) unread: u32,
    /// Seconds since 1970, now and when the log was opened.
    pub(super) now_s: u64,
    pub(super) opened_s: u64,
    /// Segments since the opening, each with the time when its last chunk was closed.
    pub(super) times: VecDeque<(u64, u64)>,
    /// An atomic backing store has committed the segments before this one.
    pub(super) brought: u64,
    /// When changes came that the backing store lacks: a segment, and the time in milliseconds of
    /// the first change in it, or in those since the entry before.
    pub(super) changed_ms: VecDeque<(u64, u64)>,
    /// Segments before this one have been written back, at least in part.
    pub(super) reached: u64,
    /// What is known of chunks that cannot be read.
    pub(super) unread_parts: Unread,
    /// Lost ranges that have no record in the log.
    pub(super) lost: Vec<(u64, u64)>,
}

impl Window {
    pub(super) fn is_idle(&self) -> bool {
        matches!(self.step, Step::Idle) && self.copying.is_none()
    }

    /// Notes a change in `segment`, while those before `written` are in the backing store.
    pub(super) fn changed(&mut self, segment: u64, written: u64, now_ms: u64) {
        if self.changed_ms.back().is_none_or(|(last, _)| *last < segment) {
            self.changed_ms.push_back((segment, now_ms));
        }
        while self.changed_ms.front().is_some_and(|(oldest, _)| *oldest < written) {
            self.changed_ms.pop_front();
        }
    }

    /// Notes when a chunk of `segment` was closed.
    pub(super) fn sealed(&mut self, segment: u64) {
        match self.times.back_mut() {
            Some((last, time)) if *last == segment => *time = self.now_s,
            _ => self.times.push_back((segment, self.now_s)),
        }
    }

    pub(super) fn now_s(&self) -> u64 {
        self.now_s
    }
}

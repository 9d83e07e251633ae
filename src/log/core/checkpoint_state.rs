//! How far a checkpoint has come; the steps: [`super::checkpoint`].

use crate::log::disk::checkpoint_page::{Content, Draft};
use crate::log::disk::format::Pointer;
use crate::log::planted::mark;

/// How far a checkpoint has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Idle,
    /// Pages are made; this item of this content is next.
    Copying(Content, u64),
    /// All pages are made, and some are being written.
    Ending,
    /// The pages are written; the drive has to be flushed, then is being flushed.
    Unflushed,
    Flushing,
    /// The pages are durable; all chunks below `end` have to become durable.
    Durable,
    /// The superblock that names it is being written.
    Naming,
}

/// The checkpoint that is being made.
#[derive(Debug)]
pub(in crate::log) struct Checkpoint {
    pub(super) stage: Stage,
    pub(super) pointer: Pointer,
    /// The page that is being filled.
    pub(super) draft: Option<Draft>,
    /// For an increment: only entries of segments from this one on are copied.
    pub(super) since: Option<u64>,
    /// Pages in flight, also of a checkpoint that was given up.
    pub(super) flying: u32,
    /// Its pages may know of chunks below this, and of no others.
    pub(super) end: u64,
    /// Bytes of chunks closed since the last checkpoint began, and since the last whole copy began.
    pub(super) grown: [u64; 2],
    /// Entries of chunks closed since the named checkpoint began, and how many of them the
    /// checkpoint at work covers.
    pub(super) entries: [usize; 2],
    pub(super) attempts: u64,
    /// Whether the index has forgotten an entry without a record that says so: since the named
    /// whole copy began, and since the last whole copy began.
    pub(super) spoilt: [bool; 2],
    /// Number of checkpoints made.
    pub(super) made: u64,
}

impl Checkpoint {
    pub(super) fn new() -> Self {
        Self {
            stage: Stage::Idle,
            pointer: Pointer::default(),
            draft: None,
            since: None,
            flying: 0,
            end: 0,
            grown: [0; 2],
            entries: [0; 2],
            attempts: 0,
            spoilt: [false; 2],
            made: 0,
        }
    }

    /// Counts a closed chunk of `bytes` and `entries`.
    pub(super) fn grow(&mut self, bytes: u32, entries: usize) {
        self.grown = self.grown.map(|grown| grown + u64::from(bytes));
        self.entries[0] += entries;
    }

    /// Bytes of chunks closed since the last checkpoint began.
    pub(super) fn grown(&self) -> u64 {
        self.grown[0]
    }

    /// Notes that a checkpoint was loaded whose whole copy began `bytes` of log before its end.
    pub(in crate::log) fn loaded(&mut self, bytes: u64) {
        self.grown[1] += bytes;
    }

    /// Notes that the index forgets where a block is, and no record says so: an increment cannot
    /// say so either, and the whole copy before it would bring the entry back.
    pub(super) fn spoil(&mut self) {
        self.spoilt = [true; 2];
        if self.since.is_some() {
            self.abort();
        }
    }

    /// Gives up the checkpoint at work, unless the superblock that names it is being written.
    pub(super) fn abort(&mut self) {
        if !matches!(self.stage, Stage::Idle | Stage::Naming) {
            mark("checkpoint.aborted");
            self.stage = Stage::Idle;
            self.draft = None;
        }
    }

    /// Whether a flush of the drive is wanted; from here on that flush counts as begun.
    pub(super) fn take_unflushed(&mut self) -> bool {
        let wanted = self.stage == Stage::Unflushed;
        if wanted {
            self.stage = Stage::Flushing;
        }
        wanted
    }

    /// A flush that began after [`Self::take_unflushed`] has ended well.
    pub(super) fn flushed(&mut self) {
        if self.stage == Stage::Flushing {
            self.stage = Stage::Durable;
        }
    }

    /// A durable superblock names the checkpoint.
    pub(super) fn named(&mut self) {
        mark("checkpoint.ended");
        self.made += 1;
        self.entries[0] -= self.entries[1];
        if self.since.is_none() {
            self.spoilt[0] = self.spoilt[1];
        }
        self.stage = Stage::Idle;
    }
}

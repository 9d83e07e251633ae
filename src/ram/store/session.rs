//! The state that one thread needs to use a store: its place in the epochs, its codec, its scratch
//! memory, its counters. Allocates only when it is made.

use super::Store;
use super::epoch::Participant;
use super::format::RECORD_MAX;
use super::thread_counters::ThreadCounters;
use super::version::Version;
use crate::BLOCK_SIZE;
use crate::GROUP;
use crate::codec::{Codec, Coding};
use crate::stats::Counts;
use std::sync::Arc;
use std::time::Duration;

/// A block that is encoded and not committed yet.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Staged {
    /// The repeated word; `None` for a record of `record_len` bytes in the session's scratch
    /// memory.
    pub(super) same: Option<u32>,
    pub(super) record_len: u32,
    pub(super) coding: Option<Coding>,
    pub(super) digest: u32,
}

/// One thread's access to a [`Store`].
pub struct Session {
    participant: Participant,
    pub(super) codec: Codec,
    /// Room for a group of blocks that did not shrink.
    pub(super) scratch: Box<[u8]>,
    pub(super) staged: [Staged; GROUP],
    pub(super) staged_count: usize,
    pub(super) counters: Arc<ThreadCounters>,
    pub(super) again: Again,
    /// Time spent waiting for memory; the channel that measures it takes it and sets it to zero.
    pub stalled: Duration,
    memory: u64,
}

/// While it lives, nothing that the index names is reused.
pub struct Pin<'a> {
    store: &'a Store,
    participant: Participant,
}

/// Blocks that were read once more in a slow place: a slot, or a cluster.
#[derive(Default)]
pub(super) struct Again {
    blocks: [Option<ReadAgain>; GROUP],
    count: usize,
}

/// A block that was read once more in a slot or a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadAgain {
    /// The block's number.
    pub block: u64,
    /// The version that was read.
    pub version: Version,
    /// Whether it is in a slot; otherwise it is in a cluster in memory.
    pub below: bool,
}

impl Again {
    /// Notes a block; drops it when the list is full.
    pub(super) fn note(&mut self, block: ReadAgain) {
        if let Some(place) = self.blocks.get_mut(self.count) {
            *place = Some(block);
            self.count += 1;
        }
    }
}

impl Session {
    /// Takes a block off the list of those that were read once more where reading is slow.
    pub fn read_again(&mut self) -> Option<ReadAgain> {
        self.again.count = self.again.count.checked_sub(1)?;
        self.again.blocks[self.again.count].take()
    }

    pub(super) fn new(store: &Store) -> Option<Self> {
        let participant = store.epochs.join()?;
        let codec = Codec::new(store.shape.algorithm);
        let scratch = vec![0; GROUP * RECORD_MAX].into_boxed_slice();
        let memory =
            codec.memory() + scratch.len() + size_of::<Self>() + size_of::<ThreadCounters>();
        let memory = memory as u64;
        store.budget.add(memory);
        let counters = store.counters.join();
        let staged = [Staged::default(); GROUP];
        Some(Self {
            participant,
            codec,
            scratch,
            staged,
            staged_count: 0,
            counters,
            again: Again::default(),
            stalled: Duration::ZERO,
            memory,
        })
    }

    pub(super) fn leave(&self, store: &Store) {
        store.counters.leave(&self.counters);
        store.epochs.leave(&self.participant);
        store.budget.give(self.memory);
    }

    /// Bytes of memory that this session takes.
    pub fn memory(&self) -> u64 {
        self.memory
    }

    /// Pins the current epoch. Pins do not nest.
    pub fn pin<'a>(&self, store: &'a Store) -> Pin<'a> {
        store.epochs.pin(&self.participant);
        Pin { store, participant: self.participant }
    }

    pub(super) fn count(&self, change: &Counts) {
        self.counters.add(change);
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.store.epochs.unpin(&self.participant);
    }
}

const _: () = assert!(RECORD_MAX > BLOCK_SIZE);

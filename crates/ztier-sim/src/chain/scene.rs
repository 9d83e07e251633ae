//! What all processes of a run share: store, network, oracle, random numbers, counters and trace.

use super::oracle::Oracle;
use super::store::{Network, Store};
use crate::rng::Rng;
use crate::trouble::{Kind, Trouble};
use ztier::object::{Entry, Identity, Root, Seed, Session};
use ztier::{BLOCK_SIZE, codec::Coding};

/// The volume of every run.
pub const VOLUME: Identity = *b"simulated volume";
/// Blocks of the volume: few, so that windows write the same ones.
pub const BLOCKS: u64 = 4;
/// From one to the next: each has a leaf of the index for itself, and so may have a piece.
pub const APART: u64 = 64;

/// Counters of a run, or of many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Takeovers that led to an owner.
    pub takeovers: u64,
    /// Takeovers that began again.
    pub again: u64,
    /// Sealed windows.
    pub windows: u64,
    /// Acknowledged flushes.
    pub acknowledged: u64,
    /// Owners that found a fence in a slot of theirs.
    pub fenced: u64,
    /// Processes that died.
    pub deaths: u64,
    /// Answers that were lost.
    pub lost: u64,
    /// Requests that were carried out after their process had given them up.
    pub late: u64,
    /// Processes that were copied.
    pub copies: u64,
    /// Checkpoints that the root named.
    pub checkpoints: u64,
    /// Takeovers that began with one.
    pub restored: u64,
}

impl Stats {
    pub fn add(&mut self, other: &Self) {
        self.takeovers += other.takeovers;
        self.again += other.again;
        self.windows += other.windows;
        self.acknowledged += other.acknowledged;
        self.fenced += other.fenced;
        self.deaths += other.deaths;
        self.lost += other.lost;
        self.late += other.late;
        self.copies += other.copies;
        self.checkpoints += other.checkpoints;
        self.restored += other.restored;
    }
}

/// See the module.
pub struct Scene {
    pub rng: Rng,
    pub store: Store,
    pub network: Network,
    pub oracle: Oracle,
    pub stats: Stats,
    /// What has happened, if asked for.
    pub trace: Option<Vec<String>>,
    processes: u32,
    values: u32,
}

impl Scene {
    pub fn new(seed: u64, with_trace: bool) -> Self {
        let root = Root { ended: false, ..Root::new(VOLUME, BLOCKS * APART * BLOCK_SIZE as u64) };
        Self {
            rng: Rng::new(seed),
            store: Store::new(&root),
            network: Network::default(),
            oracle: Oracle::default(),
            stats: Stats::default(),
            trace: with_trace.then(Vec::new),
            processes: 0,
            values: 0,
        }
    }

    /// Adds a line to the trace.
    pub fn note(&mut self, line: impl FnOnce() -> String) {
        if let Some(trace) = &mut self.trace {
            trace.push(line());
        }
    }

    /// The number of a new process.
    pub fn process(&mut self) -> u32 {
        self.processes += 1;
        self.processes
    }

    /// A new session.
    pub fn session(&mut self) -> Session {
        (u128::from(self.rng.bits()) << 64 | u128::from(self.rng.bits())).to_be_bytes()
    }

    /// A write of a value that no other write has, or of zeros.
    pub fn write(&mut self) -> Entry {
        let block = self.rng.below(BLOCKS) * APART;
        if self.rng.chance(150) {
            let count = (self.rng.between(1, 2) * APART) as u32;
            return Entry::Zeros { first: block, count };
        }
        self.values += 1;
        Entry::Block { block, coding: Coding::Raw, len: 8, check: self.values }
    }
}

/// The seed of the object in a slot of the volume.
pub fn seed(session: Session, slot: u64) -> Seed {
    Seed { volume: VOLUME, session, slot }
}

/// A failure that a line describes.
pub fn wrong<T>(kind: Kind, text: String) -> Result<T, Trouble> {
    Err(Trouble::new(kind, text))
}

//! How bytes are kept: index, log, segments, codec, and the two ways in: [`Store::commit`] and
//! [`Store::read`].
//!
//! A write is *check, reserve, fill, publish* under its blocks' stripe lock, so the order of
//! records in the log is the order of changes to the index, block by block. Compression happens
//! before, and none of these steps waits for another thread. Reads take no lock: pin an epoch, load
//! the entry, check and decode the record.
//!
//! The store never makes room. When there is none it says what is missing ([`Blocked`]), and the
//! tier above opens a segment, cleans, or gives up.
//!
//! Cold neighbours can be put together into clusters ([`Store::recompress_segment`]), in segments
//! of their own: those are the only ones whose order says nothing about the order of changes.
//!
//! Invariants:
//! - a published record is immutable until its segment is freed, and a segment is freed only when
//!   nothing points into it and every reader of that time is gone;
//! - at most one stripe lock is held at a time, and nothing is waited for while it is;
//! - only the thread that has claimed a segment empties it or takes it down, so no other thread
//!   changes where it is.

mod audit;
mod clean;
mod cluster;
pub mod epoch;
pub mod format;
pub mod frames;
pub mod index;
pub mod log;
pub mod planted;
mod read;
mod recompress;
mod recount;
pub mod segment;
mod session;
pub mod slots;
mod spill;
pub mod thread_counters;
mod window;
mod write;

pub use clean::Cleaned;
pub use read::{Stopped, Version, Why};
pub use recompress::{Ended, How, Pack, Tried};
pub use session::{ReadAgain, Session};
pub use spill::{Below, Going, Spilled, Survey};
pub use write::{Blocked, Progress};

use crate::GROUP;
use crate::codec::Algorithm;
use crate::error::{Context, Error, Result};
use crate::media::Memory;
use crate::media::budget::Budget;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use cluster::Pool;
use epoch::{Epochs, Stamp};
use format::Entry;
use frames::Frames;
use index::Index;
use log::LogBuffer;
use segment::Segments;
use slots::Slots;
use std::sync::OnceLock;
use thread_counters::CounterSet;
use window::Windows;

/// Stripe locks. Two groups of blocks share one now and then, which costs a wait and nothing else.
const STRIPES: usize = if cfg!(shuttle) { 2 } else { 512 };

/// Segments' worth of memory that only the cleaner may take: one to copy into, and one because a
/// copy can straddle the end of the first.
pub const RESERVE_SEGMENTS: u64 = 2;

/// What a store is made of.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks that the index can name: up to [`format::BLOCKS_MAX`].
    pub blocks_max: u64,
    /// Bytes in a segment: a power of two.
    pub segment: u32,
    /// Frames that can ever be in use.
    pub frames: u32,
    /// Slots of the spill device; 0 where there is none.
    pub slots: u32,
    /// How blocks are compressed.
    pub algorithm: Algorithm,
}

impl Shape {
    /// Bytes of all frames: the most that a limit on memory can be of use for.
    pub fn ram_limit_max(&self) -> u64 {
        u64::from(self.frames) * u64::from(self.segment)
    }
}

/// The store of one volume.
#[derive(Debug)]
pub struct Store {
    shape: Shape,
    index: Index,
    segments: Segments,
    frames: Frames,
    slots: Slots,
    /// What was read of slots, where there are any.
    windows: Option<Windows>,
    log: LogBuffer,
    epochs: Epochs,
    counters: CounterSet,
    stripes: Box<[Stripe]>,
    retired: Mutex<Retired>,
    /// Serializes the openings of segments.
    rolling: Mutex<()>,
    /// What it takes to read clusters: there before there are any.
    clusters: OnceLock<Pool>,
    /// Whether reads set hot bits although nothing can go down.
    watching: AtomicBool,
    budget: Budget,
}

#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(Mutex<()>);

/// What is not needed any more but may still be looked at.
#[derive(Debug)]
struct Retired {
    segments: Vec<(u32, Stamp)>,
    /// Frames of segments that were spilled.
    frames: Vec<(u32, Stamp)>,
}

impl Retired {
    /// Room for all of them, which costs no memory until it is used: these lists grow where memory
    /// is short.
    fn new(most: usize) -> Self {
        Self { segments: Vec::with_capacity(most), frames: Vec::with_capacity(most) }
    }
}

impl Store {
    /// An empty store with a limit of `limit` bytes on all its memory.
    ///
    /// # Errors
    /// When the machine refuses the address space.
    pub fn new(memory: &Memory, shape: Shape, limit: u64) -> Result<Self> {
        let stripes: Box<[Stripe]> = (0..STRIPES).map(|_| Stripe::default()).collect();
        let epochs = Epochs::default();
        // Opening a segment costs its row of the table too, for which the budget is not asked; the
        // last one that a writer opened before the reserve has one as well.
        let rows = (RESERVE_SEGMENTS + 1) * segment::BYTES_PER_SEGMENT as u64;
        let budget = Budget::new(limit, RESERVE_SEGMENTS * u64::from(shape.segment) + rows);
        budget.add((epochs.memory() + STRIPES * size_of::<Stripe>()) as u64);
        let slots = Slots::new(shape.slots);
        budget.add(slots.memory());
        let windows = (shape.slots > 0).then(|| Windows::new(shape.segment, limit));
        budget.add(windows.as_ref().map_or(0, Windows::memory) as u64);
        Ok(Self {
            shape,
            index: Index::new(memory, shape.blocks_max)?,
            segments: Segments::new(memory, shape.frames, shape.slots)?,
            frames: Frames::new(memory, shape.frames, shape.segment)?,
            slots,
            windows,
            log: LogBuffer::new(shape.segment),
            epochs,
            counters: CounterSet::default(),
            stripes,
            retired: Mutex::new(Retired::new((shape.frames + shape.slots) as usize)),
            rolling: Mutex::new(()),
            clusters: OnceLock::new(),
            watching: AtomicBool::new(false),
            budget,
        })
    }

    /// Keeps all memory of the store resident.
    ///
    /// # Errors
    /// See [`crate::media::Arena::lock`].
    pub fn lock_memory(&self) -> Result<()> {
        self.index.lock()?;
        self.segments.lock()?;
        self.frames.lock()
    }

    /// Makes all tables present that changes of the first `blocks` blocks need, and keeps them so,
    /// until [`Store::let_go`]: such a change then asks the machine for no memory but frames.
    ///
    /// # Errors
    /// The limit is too low for that, or the machine has no memory.
    pub fn keep_tables(&self, blocks: u64) -> Result<()> {
        self.segments.populate().context("no memory for the table of segments")?;
        self.index.keep_all(blocks, &self.budget).map_err(|index::NoMemory| {
            let bytes = blocks.div_ceil(index::LEAF) * crate::media::PAGE as u64;
            Error::failure(format!("no room for an index of {bytes} bytes"))
                .hint("give a higher ram-limit (ztier set NAME ram-limit=…), or a smaller volume")
        })
    }

    /// Lets empty parts of the index go again.
    pub fn let_go(&self) {
        self.index.let_go();
    }

    /// A way in for one thread.
    ///
    /// # Errors
    /// When too many threads have one.
    pub fn session(&self) -> Result<Session> {
        Session::new(self).ok_or_else(|| {
            Error::failure(format!(
                "more than {} threads use this volume at once",
                epoch::PARTICIPANTS_MAX
            ))
            .hint("use fewer connections")
        })
    }

    /// Ends a session: its numbers stay, its memory goes.
    pub fn leave(&self, session: &Session) {
        session.leave(self);
    }

    /// Bytes in a segment.
    pub fn segment_size(&self) -> u32 {
        self.shape.segment
    }

    /// What the store is made of.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The limit on memory and what is used of it.
    pub fn budget(&self) -> &Budget {
        &self.budget
    }

    /// The index.
    pub fn index(&self) -> &Index {
        &self.index
    }

    /// The segment table.
    pub fn segments(&self) -> &Segments {
        &self.segments
    }

    /// The RAM frames.
    pub fn frames(&self) -> &Frames {
        &self.frames
    }

    /// The slots of the spill device.
    pub fn slots(&self) -> &Slots {
        &self.slots
    }

    /// The log's front.
    pub fn log(&self) -> &LogBuffer {
        &self.log
    }

    /// The epochs.
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// What is stored, added up over all threads.
    pub fn counters(&self) -> &CounterSet {
        &self.counters
    }

    /// Bytes of memory that are neither frames nor buffers, for a device of `size` bytes: index
    /// leaves, directory, zero map, segment table, locks and epochs.
    pub fn metadata_bytes(&self, size: u64) -> u64 {
        let blocks = size / crate::BLOCK_SIZE as u64;
        let fixed = self.epochs.memory() + STRIPES * size_of::<Stripe>();
        let table = self.segments.used() as usize * segment::BYTES_PER_SEGMENT;
        let table = table + self.slots.memory() as usize;
        self.index.leaf_bytes() + self.index.table_bytes(blocks) + (fixed + table) as u64
    }

    /// The entry of `block`, as of now.
    pub fn entry(&self, session: &Session, block: u64) -> Entry {
        let _pin = session.pin(self);
        self.index.load(block)
    }

    /// Has reads note what was read, although nothing can go down; or not.
    pub fn watch_reads(&self, on: bool) {
        self.watching.store(on, Ordering::Relaxed);
    }

    fn watches_reads(&self) -> bool {
        self.shape.slots > 0 || self.watching.load(Ordering::Relaxed)
    }

    fn stripe(&self, block: u64) -> MutexGuard<'_, ()> {
        self.stripes[(block / GROUP as u64) as usize % STRIPES].0.lock()
    }
}

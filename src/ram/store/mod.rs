//! How the memory engine keeps bytes: index, log, segments, codec, and the two entry points
//! [`Store::commit`] and [`Store::read`].
//!
//! A write is *check, reserve, fill, publish* under its blocks' stripe lock, so for each block the
//! order of records in the log is the order of changes to the index. Compression happens before
//! these steps, and none of them waits for another thread. A read takes no lock: it pins an epoch,
//! loads the entry, checks the record and decodes it.
//!
//! Blocks that their owner gives up without a request become holes ([`Store::drop_freed`]).
//!
//! The store never makes room. When it lacks room it says what is missing ([`Blocked`]), and the
//! tier above opens a segment, cleans, or gives up.
//!
//! [`Store::recompress_segment`] puts cold neighbours together into clusters. Clusters have
//! segments of their own: the only ones whose order says nothing about the order of changes.
//!
//! Invariants:
//! - a published record is immutable until its segment is freed, and a segment is freed only when
//!   nothing points into it and every reader of that time is gone;
//! - a thread holds at most one stripe lock at a time, and waits for nothing while it holds one;
//! - only the thread that has claimed a segment empties or spills it, so no other thread changes
//!   where it is.

mod ahead;
mod audit;
mod clean;
mod cluster;
pub mod epoch;
pub mod format;
pub mod frames;
mod freed;
pub mod index;
pub mod log;
pub mod planted;
mod read;
mod recompress;
mod records;
mod recount;
pub mod segment;
mod session;
pub mod slots;
mod spill;
pub mod thread_counters;
mod version;
mod window;
mod write;

pub use clean::Cleaned;
pub use freed::{FreedBits, has_freed};
pub use read::{Stopped, Why};
pub use recompress::{Ended, How, Pack, Tried};
pub use session::{ReadAgain, Session};
pub use spill::{Going, Spilled, Survey};
pub use version::Version;
pub use window::Below;
pub use write::{Blocked, Progress};

use crate::GROUP;
use crate::codec::Algorithm;
use crate::error::{Context, Error, Result};
use crate::media::Memory;
use crate::media::budget::Budget;
use crate::sync::atomic::{AtomicBool, Ordering};
use crate::sync::{Mutex, MutexGuard};
use ahead::Ahead;
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

/// Stripe locks. Two groups of blocks may share one, which costs a wait and nothing else.
const STRIPES: usize = if cfg!(shuttle) { 2 } else { 512 };

/// Segments' worth of memory that only the cleaner may take: one to copy into, and a second because
/// a copy can straddle the end of the first.
pub const RESERVE_SEGMENTS: u64 = 2;

/// Sizes and codec of a store.
#[derive(Clone, Copy, Debug)]
pub struct Shape {
    /// Blocks that the index can name: up to [`format::BLOCKS_MAX`].
    pub blocks_max: u64,
    /// Bytes in a segment: a power of two.
    pub segment: u32,
    /// The most frames that can be in use at once.
    pub frames: u32,
    /// Slots of the spill device at first; 0 without one.
    pub slots: u32,
    /// How blocks are compressed.
    pub algorithm: Algorithm,
}

impl Shape {
    /// Bytes of all frames: a higher limit on memory is of no use.
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
    /// Parts of slots that were read; made with the first slots.
    windows: OnceLock<Windows>,
    ahead: Ahead,
    log: LogBuffer,
    epochs: Epochs,
    counters: CounterSet,
    stripes: Box<[Stripe]>,
    retired: Mutex<Retired>,
    /// Serializes the openings of segments.
    rolling: Mutex<()>,
    /// Decoders and buffers for reading clusters, made before the first cluster.
    clusters: OnceLock<Pool>,
    /// Whether reads set hot bits although nothing can be spilled.
    watching: AtomicBool,
    budget: Budget,
}

/// The lock of some groups of blocks, with the bits of those that were freed, if the store follows
/// them.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Stripe(Mutex<Option<FreedBits>>);

/// Memory that is not needed any more but that readers may still look at.
#[derive(Debug)]
struct Retired {
    segments: Vec<(u32, Stamp)>,
    /// Frames of segments that were spilled.
    frames: Vec<(u32, Stamp)>,
}

impl Retired {
    /// Lists with room for all segments and frames, so that they never grow while memory is short.
    /// The room costs no memory until it is used.
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
        // Each segment also costs its row of the table, for which the budget is not asked: those of
        // the reserve, and the last one that a writer opened before the reserve.
        let rows = (RESERVE_SEGMENTS + 1) * segment::BYTES_PER_SEGMENT as u64;
        let budget = Budget::new(limit, RESERVE_SEGMENTS * u64::from(shape.segment) + rows);
        budget.add((epochs.memory() + STRIPES * size_of::<Stripe>()) as u64);
        let slots = Slots::new(shape.slots);
        budget.add(slots.memory());
        let segments = Segments::new(memory, shape.frames, shape.slots)?;
        let rows = segments.rows() as usize;
        let store = Self {
            shape,
            index: Index::new(memory, shape.blocks_max)?,
            segments,
            frames: Frames::new(memory, shape.frames, shape.segment)?,
            slots,
            windows: OnceLock::new(),
            ahead: Ahead::default(),
            log: LogBuffer::new(shape.segment),
            epochs,
            counters: CounterSet::default(),
            stripes,
            retired: Mutex::new(Retired::new(rows)),
            rolling: Mutex::new(()),
            clusters: OnceLock::new(),
            watching: AtomicBool::new(false),
            budget,
        };
        if shape.slots > 0 {
            store.make_windows();
        }
        Ok(store)
    }

    /// Makes the windows for reads of slots, if there are none yet.
    fn make_windows(&self) {
        self.windows.get_or_init(|| {
            let windows = Windows::new(self.shape.segment, self.budget.limit());
            self.budget.add(windows.memory() as u64);
            windows
        });
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

    /// Makes all tables present that changes of the first `blocks` blocks need, and keeps them
    /// until [`Store::let_go`]. Until then such a change asks the machine for no memory but frames.
    ///
    /// # Errors
    /// The limit is too low for that, or the machine has no memory.
    pub fn keep_tables(&self, blocks: u64) -> Result<()> {
        let rows = self.segments.populate(self.slots.count());
        rows.context("no memory for the table of segments")?;
        self.index.keep_all(blocks, &self.budget).map_err(|index::NoMemory| {
            let bytes = blocks.div_ceil(index::LEAF) * crate::media::PAGE as u64;
            Error::failure(format!("no room for an index of {bytes} bytes"))
                .hint("give a higher ram-limit (ztier set NAME ram-limit=…), or a smaller volume")
        })
    }

    /// Allows the index to drop empty leaves again.
    pub fn let_go(&self) {
        self.index.let_go();
    }

    /// A session for one thread.
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

    /// Ends a session: its counters stay, its memory is given back to the budget.
    pub fn leave(&self, session: &Session) {
        session.leave(self);
    }

    /// Bytes in a segment.
    pub fn segment_size(&self) -> u32 {
        self.shape.segment
    }

    /// Sizes and codec of the store.
    pub fn shape(&self) -> &Shape {
        &self.shape
    }

    /// The limit on memory, and how much of it is used.
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

    /// The head of the log.
    pub fn log(&self) -> &LogBuffer {
        &self.log
    }

    /// The epochs.
    pub fn epochs(&self) -> &Epochs {
        &self.epochs
    }

    /// The counters of all threads.
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

    /// The current entry of `block`.
    pub fn entry(&self, session: &Session, block: u64) -> Entry {
        let _pin = session.pin(self);
        self.index.load(block)
    }

    /// Sets whether reads set hot bits although nothing can be spilled.
    pub fn watch_reads(&self, on: bool) {
        self.watching.store(on, Ordering::Relaxed);
    }

    fn watches_reads(&self) -> bool {
        self.slots.count() > 0 || self.watching.load(Ordering::Relaxed)
    }

    fn stripe(&self, block: u64) -> MutexGuard<'_, Option<FreedBits>> {
        self.stripes[(block / GROUP as u64) as usize % STRIPES].0.lock()
    }
}

#[cfg(all(test, not(shuttle)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::codec::Algorithm;

    #[test]
    fn one_thread_too_many_is_refused_until_another_leaves() {
        let shape = Shape {
            blocks_max: 1 << 12,
            segment: 64 << 10,
            frames: 16,
            slots: 0,
            algorithm: Algorithm::Lz4,
        };
        let store = Store::new(&Memory::default(), shape, 8 << 20).unwrap();
        let before = store.budget().used();
        let mut sessions: Vec<_> =
            (0..epoch::PARTICIPANTS_MAX).map(|_| store.session().unwrap()).collect();
        let used = store.budget().used();
        for _ in 0..2 {
            let refused = store.session().map(drop).unwrap_err().to_string();
            let says = "more than 265 threads use this volume at once; use fewer connections";
            assert_eq!(refused, says);
        }
        assert_eq!(store.budget().used(), used, "a refusal costs nothing");
        store.leave(&sessions.pop().unwrap());
        sessions.push(store.session().unwrap());
        sessions.iter().for_each(|session| store.leave(session));
        assert_eq!(store.budget().used(), before);
    }
}

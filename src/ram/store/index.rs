//! The index maps a block's number to its newest version: 8 bytes a block, in leaves of 512 blocks
//! made on demand.
//!
//! The entries are one sparse array in a memory file. A leaf is a page of it, found without a
//! pointer. Each leaf has a directory word, which says whether the page may be touched and counts
//! what needs the page.
//!
//! A leaf is *absent* (all holes, or all zeros if it is in the zero map), *present*, or *leaving*
//! (no longer present, but late readers may still look at its zeroed page).
//!
//! Invariants:
//! - entries change only under their block's stripe lock and while the leaf is retained, except for
//!   the hot bit, which says nothing about the block's content;
//! - the directory's count is the number of entries that are no holes, plus the retains in force,
//!   so a leaf whose count is 0 has only holes;
//! - a leaf in the zero map is absent or leaving;
//! - one damaged bit never gives a block other content, and never takes out a leaf that has
//!   entries.

use super::epoch::{Epochs, Stamp};
use super::format::Entry;
use super::planted::{Bug, on};
use crate::error::Result;
use crate::intervals::{BYTES_PER_RANGE, Intervals};
use crate::media::budget::{Budget, Taker};
use crate::media::{Memory, PAGE, Words, prefetch};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::ops::Range;

/// Blocks in a leaf.
pub const LEAF: u64 = (PAGE / 8) as u64;

/// Either bit means present: one damaged bit loses no leaf.
const PRESENT: u64 = 3 << 62;
const LEAVING: u64 = 1 << 61;
/// The leaf was seen empty and is on the list `Rare::empty`.
const NOTED: u64 = 1 << 60;

/// The index of one volume.
#[derive(Debug)]
pub struct Index {
    entries: Words,
    directory: Words,
    rare: Mutex<Rare>,
    leaves: AtomicU64,
    /// Blocks in the zero map; lets the usual case skip the lock.
    zeroed: AtomicU64,
    /// Blocks that ever went from the zero map to entries of their own; never shrinks.
    unfolded: AtomicU64,
    blocks_max: u64,
    /// While set, no leaf is taken out.
    kept: AtomicBool,
}

/// State that seldom changes, under one lock.
#[derive(Debug)]
struct Rare {
    /// Leaves that read as written zeros.
    zeroed: Intervals,
    leaving: Vec<(u64, Stamp)>,
    /// Leaves that were seen empty; [`Index::drop_empty`] looks at them.
    empty: Vec<u64>,
}

impl Rare {
    /// Lists with room for their usual length, so that they seldom grow while memory is short.
    fn new() -> Self {
        const ROOM: usize = 1024;
        let (leaving, empty) = (Vec::with_capacity(ROOM), Vec::with_capacity(ROOM));
        Self { zeroed: Intervals::default(), leaving, empty }
    }
}

/// The leaf is absent, and there is no memory to make it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoMemory;

/// Proof that a leaf stays present; give it back with [`Index::release`].
#[derive(Debug)]
pub struct Retained(u64);

impl Index {
    /// An empty index for up to `blocks_max` blocks.
    ///
    /// # Errors
    /// See [`Words::new`].
    pub fn new(memory: &Memory, blocks_max: u64) -> Result<Self> {
        let leaves = blocks_max.div_ceil(LEAF);
        Ok(Self {
            entries: Words::new(memory, "index", (leaves * LEAF) as usize)?,
            directory: Words::new(memory, "directory", leaves as usize)?,
            rare: Mutex::new(Rare::new()),
            leaves: AtomicU64::new(0),
            zeroed: AtomicU64::new(0),
            unfolded: AtomicU64::new(0),
            blocks_max: leaves * LEAF,
            kept: AtomicBool::new(false),
        })
    }

    /// Makes the leaves of the first `blocks` blocks, and takes no leaf out from now on, so no
    /// change of these blocks needs memory any more.
    ///
    /// # Errors
    /// [`NoMemory`]; then leaves are taken out as before.
    pub fn keep_all(&self, blocks: u64, budget: &Budget) -> std::result::Result<(), NoMemory> {
        {
            // A thread that takes leaves out holds this lock: it has finished, or will see the
            // flag.
            let _rare = self.rare.lock();
            self.kept.store(true, Ordering::SeqCst);
        }
        let made = (0..blocks.div_ceil(LEAF)).all(|leaf| self.ensure(leaf * LEAF, budget));
        if made {
            return Ok(());
        }
        self.let_go();
        Err(NoMemory)
    }

    /// Allows empty leaves to be taken out again.
    pub fn let_go(&self) {
        self.kept.store(false, Ordering::SeqCst);
        for leaf in self.directory.present().flatten() {
            self.note_empty(leaf as u64);
        }
    }

    /// See [`Words::lock`].
    ///
    /// # Errors
    /// See [`Words::lock`].
    pub fn lock(&self) -> Result<()> {
        self.entries.lock()?;
        self.directory.lock()
    }

    /// Bytes of leaves that the budget was charged for.
    pub fn leaf_bytes(&self) -> u64 {
        self.leaves.load(Ordering::Relaxed) * PAGE as u64
    }

    /// Bytes of the directory for a device of `blocks` blocks, if all of it is touched, and bytes
    /// of the zero map as it is now.
    pub fn table_bytes(&self, blocks: u64) -> u64 {
        let directory = (blocks.div_ceil(LEAF) * 8).next_multiple_of(PAGE as u64);
        directory + (self.rare.lock().zeroed.ranges() * BYTES_PER_RANGE) as u64
    }

    /// Blocks in the zero map.
    pub fn zeroed_blocks(&self) -> u64 {
        self.zeroed.load(Ordering::Relaxed)
    }

    /// Blocks that ever went from the zero map to zero entries of their own; the threads' counters
    /// do not count them.
    pub fn unfolded_blocks(&self) -> u64 {
        self.unfolded.load(Ordering::Relaxed)
    }

    /// The entry of `block`. A record's frame stays readable only while the caller is pinned.
    pub fn load(&self, block: u64) -> Entry {
        if !self.is_present(block / LEAF) {
            return Entry::HOLE;
        }
        Entry(self.entries.get(block as usize).load(Ordering::Acquire))
    }

    /// Whether a leaf is present. If it is not, its blocks need not be looked at one by one.
    pub fn is_present(&self, leaf: u64) -> bool {
        self.directory.get(leaf as usize).load(Ordering::Acquire) & PRESENT != 0
    }

    /// Whether `block` reads as zeros because its whole leaf was zeroed.
    pub fn is_zeroed(&self, block: u64) -> bool {
        self.zeroed.load(Ordering::Relaxed) != 0 && self.rare.lock().zeroed.contains(block / LEAF)
    }

    /// Takes over the leaves of another process, and calls `each` for every entry that is no hole.
    /// No other thread uses the index meanwhile.
    pub(super) fn recount(&self, budget: &Budget, mut each: impl FnMut(u64, Entry)) {
        let words: Vec<_> = self.directory.present().collect();
        for leaf in words.into_iter().flatten() {
            let word = self.directory.get(leaf);
            if word.load(Ordering::Relaxed) & PRESENT == 0 {
                word.store(0, Ordering::Relaxed);
                continue;
            }
            let entries = self.each_in(leaf as u64, &mut each);
            word.store(PRESENT | entries, Ordering::Relaxed);
            budget.add(PAGE as u64);
            self.leaves.fetch_add(1, Ordering::Relaxed);
            if entries == 0 {
                word.fetch_or(NOTED, Ordering::Relaxed);
                self.rare.lock().empty.push(leaf as u64);
            }
        }
        // Pages of leaves that were being made, or were leaving.
        let pages: Vec<_> = self.entries.present().collect();
        for leaf in pages.into_iter().flat_map(|w| w.start as u64 / LEAF..w.end as u64 / LEAF) {
            if !self.is_present(leaf) {
                let first = (leaf * LEAF) as usize;
                self.entries.remove_pages(first..first + LEAF as usize);
            }
        }
    }

    /// Calls `each` for every entry that is no hole.
    pub(super) fn each_present(&self, mut each: impl FnMut(u64, Entry)) {
        for leaf in self.directory.present().flatten() {
            if self.is_present(leaf as u64) {
                self.each_in(leaf as u64, &mut each);
            }
        }
    }

    /// Calls `each` for every entry of a present leaf that is no hole; returns their number.
    fn each_in(&self, leaf: u64, each: &mut impl FnMut(u64, Entry)) -> u64 {
        let mut entries = 0;
        for block in leaf * LEAF..(leaf + 1) * LEAF {
            let entry = Entry(self.entries.get(block as usize).load(Ordering::Relaxed));
            if !entry.is_hole() {
                entries += 1;
                each(block, entry);
            }
        }
        entries
    }

    /// Keeps the leaf of `block` present until [`Index::release`]; makes the leaf if it is absent.
    ///
    /// # Errors
    /// [`NoMemory`].
    pub fn retain(&self, block: u64, budget: &Budget) -> std::result::Result<Retained, NoMemory> {
        let leaf = block / LEAF;
        loop {
            if let Some(retained) = self.retain_present(block) {
                return Ok(retained);
            }
            self.make(leaf, budget)?;
        }
    }

    /// Keeps the leaf of `block` present if it is; `None` if it is absent.
    pub fn retain_present(&self, block: u64) -> Option<Retained> {
        let word = self.directory.get((block / LEAF) as usize);
        if word.fetch_add(1, Ordering::AcqRel) & PRESENT != 0 {
            return Some(Retained(block / LEAF));
        }
        // Another thread may have made and emptied the leaf meanwhile, and this +1 kept it from
        // being noted as empty.
        self.release(&Retained(block / LEAF), 0);
        None
    }

    /// Makes the leaf of `block` present; it stays so until empty leaves are taken out. `false`
    /// when there is no memory.
    pub fn ensure(&self, block: u64, budget: &Budget) -> bool {
        self.retain(block, budget).map(|leaf| self.release(&leaf, 0)).is_ok()
    }

    /// Gives a leaf back; `delta` is the change of the number of its entries that are no holes.
    pub fn release(&self, retained: &Retained, delta: i64) {
        let word = self.directory.get(retained.0 as usize);
        let before = word.fetch_add((delta - 1) as u64, Ordering::AcqRel);
        let emptied = before.wrapping_add((delta - 1) as u64) == PRESENT;
        if emptied && !self.kept.load(Ordering::SeqCst) {
            self.note_empty(retained.0);
        }
    }

    /// Puts a leaf on the list of leaves to take out, if it is empty and not on the list.
    fn note_empty(&self, leaf: u64) {
        let word = self.directory.get(leaf as usize);
        let noted =
            word.compare_exchange(PRESENT, PRESENT | NOTED, Ordering::AcqRel, Ordering::Acquire);
        if noted.is_ok() {
            self.rare.lock().empty.push(leaf);
        }
    }

    /// Replaces an entry and returns the old one. The caller holds the block's stripe lock and has
    /// retained the leaf.
    pub fn swap(&self, _leaf: &Retained, block: u64, entry: Entry) -> Entry {
        Entry(self.entries.get(block as usize).swap(entry.0, Ordering::AcqRel))
    }

    /// Changes an entry's hot bit, unless the entry has changed since it was loaded. The caller has
    /// been pinned since before it loaded the entry, so the leaf's page is still there.
    pub fn warm(&self, block: u64, from: Entry, to: Entry) {
        debug_assert!(from.same_place(to));
        let word = self.entries.get(block as usize);
        let _ = word.compare_exchange(from.0, to.0, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// Hints that `block`'s entry is wanted soon.
    pub fn prefetch(&self, block: u64) {
        if block < self.blocks_max && self.is_present(block / LEAF) {
            prefetch(self.entries.get(block as usize));
        }
    }

    /// Blocks that the index can name.
    pub fn blocks_max(&self) -> u64 {
        self.blocks_max
    }

    fn make(&self, leaf: u64, budget: &Budget) -> std::result::Result<(), NoMemory> {
        let mut rare = self.rare.lock();
        let word = self.directory.get(leaf as usize);
        let state = word.load(Ordering::Acquire);
        if state & PRESENT != 0 {
            return Ok(());
        }
        if state & LEAVING != 0 {
            // The leaf's page is still there and zero. Take the leaf back from the list; readers
            // see holes until something is published.
            rare.leaving.retain(|(leaving, _)| *leaving != leaf);
        } else {
            if !budget.take(PAGE as u64, Taker::Ordinary) {
                return Err(NoMemory);
            }
            if self.entries.populate_page((leaf * LEAF) as usize).is_err() {
                budget.give(PAGE as u64);
                return Err(NoMemory);
            }
            self.leaves.fetch_add(1, Ordering::Relaxed);
        }
        let mut entries = 0;
        if rare.zeroed.contains(leaf) {
            for block in leaf * LEAF..(leaf + 1) * LEAF {
                self.entries.get(block as usize).store(Entry::ZERO.0, Ordering::Relaxed);
            }
            entries = LEAF;
            self.unfolded.fetch_add(LEAF, Ordering::Relaxed);
            self.change_zeroed(&mut rare, budget, |zeroed| zeroed.remove(leaf..leaf + 1));
        }
        // Other threads may be within `retain_present` with their +1 and -1, so bits and counts are
        // added, and nothing is stored.
        let flags = PRESENT.wrapping_sub(state & LEAVING);
        word.fetch_add(flags.wrapping_add(entries), Ordering::AcqRel);
        Ok(())
    }

    /// Takes out leaves that were noted as empty and still have only holes. Their memory is
    /// returned when every present reader is gone ([`Index::collect`]).
    pub fn drop_empty(&self, epochs: &Epochs) {
        let mut rare = self.rare.lock();
        while let Some(leaf) = rare.empty.pop() {
            if !self.drop_one(&mut rare, leaf, epochs) {
                self.directory.get(leaf as usize).fetch_and(!NOTED, Ordering::AcqRel);
                // It may have become empty again while it was still noted.
                self.drop_one(&mut rare, leaf, epochs);
            }
        }
    }

    fn drop_one(&self, rare: &mut Rare, leaf: u64, epochs: &Epochs) -> bool {
        if self.kept.load(Ordering::SeqCst) || !self.has_only_holes(leaf) {
            return false;
        }
        let word = self.directory.get(leaf as usize);
        // Fails when the leaf has entries or retains in force.
        let leave = |from| {
            word.compare_exchange(from, LEAVING, Ordering::AcqRel, Ordering::Acquire).is_ok()
        };
        let careless = || on(Bug::DropRetainedLeaf) && leave(word.load(Ordering::Acquire));
        if !leave(PRESENT | NOTED) && !leave(PRESENT) && !careless() {
            return false;
        }
        rare.leaving.push((leaf, epochs.stamp()));
        true
    }

    /// Whether the leaf really has only holes: the directory's count may be damaged.
    fn has_only_holes(&self, leaf: u64) -> bool {
        let mut blocks = leaf * LEAF..(leaf + 1) * LEAF;
        let is_hole = |word: u64| Entry(word).is_hole();
        !self.is_present(leaf)
            || on(Bug::DropRetainedLeaf)
            || blocks.all(|b| is_hole(self.entries.get(b as usize).load(Ordering::Relaxed)))
    }

    /// Flips one bit of the entry of `block`, or of the directory word of its leaf. For tests of
    /// damage detection.
    pub fn flip_bit(&self, block: u64, bit: u32, directory: bool) {
        let word = match directory {
            true => self.directory.get((block / LEAF) as usize),
            false => self.entries.get(block as usize),
        };
        word.fetch_xor(1 << bit, Ordering::AcqRel);
    }

    /// Makes whole leaves read as written zeros: takes empty leaves out and puts them into the zero
    /// map. A leaf that a thread writes to at this moment keeps its entries (holes, or what was
    /// written).
    pub fn zero(&self, leaves: Range<u64>, epochs: &Epochs, budget: &Budget) {
        let mut rare = self.rare.lock();
        let mut run: Option<Range<u64>> = None;
        for leaf in leaves {
            let absent = !self.is_present(leaf) || self.drop_one(&mut rare, leaf, epochs);
            if absent {
                run = Some(run.map_or(leaf..leaf + 1, |r| r.start..leaf + 1));
            } else if let Some(run) = run.take() {
                self.add_zeroed(&mut rare, budget, run);
            }
        }
        if let Some(run) = run {
            self.add_zeroed(&mut rare, budget, run);
        }
    }

    /// Takes whole leaves out of the zero map: their blocks are holes again.
    pub fn unzero(&self, leaves: Range<u64>, budget: &Budget) {
        if self.zeroed.load(Ordering::Relaxed) != 0 {
            let mut rare = self.rare.lock();
            self.change_zeroed(&mut rare, budget, |zeroed| zeroed.remove(leaves));
        }
    }

    /// Adds a run to the zero map. Without memory for that the run stays holes, which also read as
    /// zeros: zeroing always succeeds.
    fn add_zeroed(&self, rare: &mut Rare, budget: &Budget, run: Range<u64>) {
        if budget.fits(BYTES_PER_RANGE as u64, Taker::Ordinary) {
            self.change_zeroed(rare, budget, |zeroed| zeroed.insert(run));
        }
    }

    fn change_zeroed(&self, rare: &mut Rare, budget: &Budget, change: impl FnOnce(&mut Intervals)) {
        let before = rare.zeroed.ranges();
        change(&mut rare.zeroed);
        let after = rare.zeroed.ranges();
        if after > before {
            budget.add(((after - before) * BYTES_PER_RANGE) as u64);
        } else {
            budget.give(((before - after) * BYTES_PER_RANGE) as u64);
        }
        self.zeroed.store(rare.zeroed.total() * LEAF, Ordering::Relaxed);
    }

    /// Gives back the memory of leaves that no reader can see any more; returns their number.
    pub fn collect(&self, epochs: &Epochs, budget: &Budget) -> usize {
        let mut rare = self.rare.lock();
        if rare.leaving.is_empty() {
            return 0;
        }
        // In place: a thread that makes room may be unable to allocate.
        let horizon = epochs.horizon();
        rare.leaving.sort_unstable_by_key(|(leaf, stamp)| (*stamp >= horizon, *leaf));
        let gone = rare.leaving.partition_point(|(_, stamp)| *stamp < horizon);
        for run in rare.leaving[..gone].chunk_by(|(a, _), (b, _)| a + 1 == *b) {
            let first = (run[0].0 * LEAF) as usize;
            self.entries.remove_pages(first..first + run.len() * LEAF as usize);
            for (leaf, _) in run {
                self.directory.get(*leaf as usize).fetch_and(!LEAVING, Ordering::AcqRel);
            }
            budget.give((run.len() * PAGE) as u64);
            self.leaves.fetch_sub(run.len() as u64, Ordering::Relaxed);
        }
        rare.leaving.drain(..gone);
        gone
    }
}

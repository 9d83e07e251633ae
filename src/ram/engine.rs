//! The RAM tier: a store that keeps its limit, keeps its memory near its payload, and fails a write
//! only when nothing more fits.
//!
//! The thread that needs room makes it. A thread that opens a segment while garbage is above its
//! share first cleans some of it, so memory stays bounded however fast writes come, and no write
//! waits for a background thread to clean. A thread of the volume's own does the same when writes
//! have ceased ([`Ram::maintain`]).
//!
//! Invariants:
//! - one thread at a time cleans with the reserve; without the reserve several may, each its own
//!   segment;
//! - no thread holds a stripe lock or pins an epoch while it waits for the cleaner.

use super::lower::Lower;
use super::mempool::Mempool;
use super::policy;
use super::recompression::Recompression;
use super::spill::SpillTo;
use crate::BLOCK_SIZE;
use crate::error::Result;
use crate::media::Memory;
use crate::media::budget::Taker;
use crate::ram::store::segment::Sealed;
use crate::ram::store::{Blocked, Cleaned, Session, Shape, Store, Version};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread::Thread;
use std::time::Instant;

/// Nothing more fits under the limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NoSpace;

/// Frames kept ready while writes go on: this many, and one in [`READY_PART`] of those in use.
const READY_BUSY: usize = 4;
/// See [`READY_BUSY`].
const READY_PART: u64 = 100;

/// A store, its limit, and its cleaner.
pub struct Ram {
    store: Store,
    /// The thread that holds this may use the reserve.
    cleaner: Mutex<Session>,
    /// Segments to clean next, the emptiest last.
    victims: Mutex<Vec<Sealed>>,
    /// Segments that writes opened: tells a quiet volume from a busy one.
    opened: AtomicU64,
    /// Writers that are cleaning a segment without holding `cleaner`.
    assisting: AtomicU64,
    /// Bytes of memory that a session takes.
    session_memory: u64,
    stalls: AtomicU64,
    no_space: AtomicU64,
    /// The spill device, if there is one.
    lower: Mutex<Option<Arc<Lower>>>,
    lost_below: AtomicU64,
    /// The thread that keeps the reserve of free memory.
    spiller: OnceLock<Thread>,
    /// The thread that reads ahead.
    reads_ahead: OnceLock<Thread>,
    pub(super) mempool: Mempool,
    recompression: Recompression,
}

impl Ram {
    /// A tier over `memory`: empty, or with the content that another process left there.
    ///
    /// # Errors
    /// See [`Store::new`] and [`Store::recount`].
    pub fn new(memory: &Memory, shape: Shape, limit: u64) -> Result<Self> {
        Self::above(memory, shape, limit, (None, false))
    }

    /// The same above a spill device, whose slots keep their content if another process left the
    /// memory. If the device of that process is gone, gives up what only it held.
    ///
    /// # Errors
    /// As [`Ram::new`].
    pub fn above(
        memory: &Memory,
        shape: Shape,
        limit: u64,
        (below, gone): (Option<SpillTo>, bool),
    ) -> Result<Self> {
        debug_assert_eq!(shape.slots, below.as_ref().map_or(0, |below| below.slots));
        let store = Store::new(memory, shape, limit)?;
        if memory.is_inherited() {
            store.recount(gone)?;
        }
        let session = store.session()?;
        let session_memory = session.memory();
        let zero = || AtomicU64::new(0);
        let gone = gone && memory.is_inherited();
        let lost = if gone { store.give_up_slots(&session) } else { 0 };
        let lower = below.map(|below| Arc::new(Lower::new(below, &store)));
        Ok(Self {
            store,
            lower: Mutex::new(lower),
            lost_below: AtomicU64::new(lost),
            spiller: OnceLock::new(),
            reads_ahead: OnceLock::new(),
            mempool: Mempool::default(),
            recompression: Recompression::default(),
            cleaner: Mutex::new(session),
            victims: Mutex::new(Vec::with_capacity(policy::VICTIMS_MAX)),
            opened: zero(),
            assisting: zero(),
            session_memory,
            stalls: zero(),
            no_space: zero(),
        })
    }

    /// The spill device. A thread that has found or taken a slot asks for it afterwards: only this
    /// one certainly has the slot.
    pub(super) fn lower(&self) -> Option<Arc<Lower>> {
        self.lower.lock().clone()
    }

    /// Takes another spill device, or none.
    pub(super) fn set_lower(&self, lower: Option<Arc<Lower>>) {
        *self.lower.lock() = lower;
    }

    /// Whether there is a spill device.
    pub(super) fn spills(&self) -> bool {
        self.store.slots().count() > 0
    }

    /// Blocks that were given up with a spill device so far.
    pub fn lost_below(&self) -> u64 {
        self.lost_below.load(Ordering::Relaxed)
    }

    pub(super) fn count_lost_below(&self, blocks: u64) {
        self.lost_below.fetch_add(blocks, Ordering::Relaxed);
    }

    pub(super) fn recompression(&self) -> &Recompression {
        &self.recompression
    }

    /// Makes the calling thread the one that is woken when the reserve has to be refilled.
    pub fn keep_awake(&self) {
        self.spiller.get_or_init(std::thread::current);
    }

    /// Makes the calling thread the one that is woken for [`Ram::read_ahead`].
    pub fn serve_streams(&self) {
        self.reads_ahead.get_or_init(std::thread::current);
    }

    /// Wakes the thread that reads ahead, if that has something to do.
    pub(super) fn wake_for_ahead(&self) {
        if self.store.has_ahead()
            && let Some(thread) = self.reads_ahead.get()
        {
            thread.unpark();
        }
    }

    /// The store below.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Writes that had to wait for the cleaner at the limit, or for a frame of the mempool.
    pub fn stalls(&self) -> u64 {
        self.stalls.load(Ordering::Relaxed)
    }

    pub(super) fn count_stall(&self) {
        self.stalls.fetch_add(1, Ordering::Relaxed);
    }

    /// Writes that were refused.
    pub fn refusals(&self) -> u64 {
        self.no_space.load(Ordering::Relaxed)
    }

    /// Writes whole blocks of one group.
    ///
    /// # Errors
    /// [`NoSpace`]; the blocks before the one that did not fit are written.
    pub fn write(
        &self,
        session: &mut Session,
        first: u64,
        blocks: &[[u8; BLOCK_SIZE]],
    ) -> std::result::Result<(), NoSpace> {
        self.store.stage(session, blocks);
        self.commit(session, first, None).map(|_| ())
    }

    /// Writes one block if it is still the version `expect`; otherwise returns `false`.
    ///
    /// # Errors
    /// [`NoSpace`]; nothing is written.
    pub fn write_if(
        &self,
        session: &mut Session,
        block: u64,
        data: &[u8; BLOCK_SIZE],
        expect: Version,
    ) -> std::result::Result<bool, NoSpace> {
        self.store.stage(session, std::slice::from_ref(data));
        self.commit(session, block, Some(expect))
    }

    fn commit(
        &self,
        session: &mut Session,
        first: u64,
        expect: Option<Version>,
    ) -> std::result::Result<bool, NoSpace> {
        let mut done = 0;
        loop {
            let progress = self.store.commit(session, first, done, expect);
            done = progress.done;
            match progress.blocked {
                None => return Ok(true),
                Some(Blocked::Changed) => return Ok(false),
                Some(Blocked::Segment(len)) => self.roll(session, len)?,
                Some(Blocked::Leaf) => self.reclaim(session, |store| {
                    store.frames().trim_to(store.budget(), 0);
                    store.index().ensure(first, store.budget())
                })?,
            }
        }
    }

    /// Opens a segment with room for `len` bytes. When garbage is above its share, or the limit is
    /// near, the caller first cleans as much as it is about to fill; several threads may do so at
    /// once.
    fn roll(&self, session: &mut Session, len: u32) -> std::result::Result<(), NoSpace> {
        self.opened.fetch_add(1, Ordering::Relaxed);
        self.store.collect();
        self.assisting.fetch_add(1, Ordering::AcqRel);
        let mut cleaned = 0;
        while cleaned < policy::PAY_SEGMENTS * self.store.segment_size()
            && (self.over(policy::BUSY_PERMILLE) || self.tight())
        {
            let part = match (self.tight(), self.can_spill()) {
                (true, true) => policy::SPILL_WORTH_PART,
                (true, false) => policy::WORTH_PART,
                (false, _) => policy::BUSY_WORTH_PART,
            };
            let Some(gain) = self.clean_one(session, Taker::Ordinary, part) else { break };
            cleaned += gain;
            self.store.collect();
        }
        self.assisting.fetch_sub(1, Ordering::AcqRel);
        if self.wants_reserve()
            && let Some(spiller) = self.spiller.get()
        {
            spiller.unpark();
        }
        self.trim_surplus();
        self.store.frames().prepare(self.store.budget());
        self.look_at_mempool();
        let open = || self.store.open_segment(Taker::Ordinary, len);
        if open() || self.await_mempool(session) && open() {
            return Ok(());
        }
        self.reclaim(session, |store| store.open_segment(Taker::Ordinary, len))
    }

    /// Returns ready frames that a busy volume does not need.
    fn trim_surplus(&self) {
        let frames = self.store.budget().used() / u64::from(self.store.segment_size());
        let keep = READY_BUSY + (frames / READY_PART) as usize;
        self.store.frames().trim(self.store.budget(), keep);
    }

    /// Whether the limit is near.
    fn tight(&self) -> bool {
        self.free() < policy::TIGHT_SEGMENTS * u64::from(self.store.segment_size())
    }

    /// Bytes of memory that writers can still take.
    pub(super) fn free(&self) -> u64 {
        let (budget, segment) = (self.store.budget(), u64::from(self.store.segment_size()));
        let ready = self.store.frames().ready() as u64 * segment;
        (budget.limit() + ready).saturating_sub(budget.used() + budget.reserve())
    }

    /// Counts the caller among the threads that make room while `work` runs.
    pub(super) fn assist<T>(&self, work: impl FnOnce() -> T) -> T {
        self.assisting.fetch_add(1, Ordering::AcqRel);
        let result = work();
        self.assisting.fetch_sub(1, Ordering::AcqRel);
        result
    }

    /// Makes room at the limit for the writer of `session`, until `enough` returns `true`.
    fn reclaim(
        &self,
        session: &mut Session,
        mut enough: impl FnMut(&Store) -> bool,
    ) -> std::result::Result<(), NoSpace> {
        self.count_stall();
        let start = Instant::now();
        let result = {
            let cleaner = self.cleaner.lock();
            self.reclaim_locked(&cleaner, &mut enough)
        };
        session.stalled += start.elapsed();
        if result.is_err() {
            self.no_space.fetch_add(1, Ordering::Relaxed);
        }
        result
    }

    fn reclaim_locked(
        &self,
        cleaner: &Session,
        enough: &mut dyn FnMut(&Store) -> bool,
    ) -> std::result::Result<(), NoSpace> {
        self.drop_empty_leaves();
        let mut waited = false;
        loop {
            self.settle();
            if enough(&self.store) {
                return Ok(());
            }
            if self.make_some_room(cleaner) {
                waited = false;
                continue;
            }
            if std::mem::replace(&mut waited, true) {
                return Err(NoSpace);
            }
            // Memory that other threads clean, are about to fill, or leave behind may become room a
            // moment later, and empty leaves are given back when no thread looks at them. None of
            // those threads waits for this one.
            let mut round = 0;
            while self.assisting.load(Ordering::Acquire) > 0 {
                crate::sync::relax(round);
                round = round.saturating_add(1);
            }
            self.store.epochs().wait();
        }
    }

    /// Cleans or spills a segment, or frees a slot. `false` when nothing helps.
    fn make_some_room(&self, cleaner: &Session) -> bool {
        let clean = |part| self.clean_one(cleaner, Taker::Cleaner, part).is_some();
        if !self.spills() {
            let seal = || self.seal_garbage() || self.seal_clusters() || self.end_clusters();
            return clean(policy::WORTH_PART) || seal();
        }
        let compact = |part| self.can_spill() && self.compact_one(cleaner, Taker::Cleaner, part);
        // Emptying a slot takes memory before it gives any: cleaning that is hardly worth it would
        // use up that memory.
        let few = self.store.slots().free() == 0;
        self.can_spill() && clean(policy::SPILL_WORTH_PART)
            || few && compact(policy::SLOT_WORTH_PART)
            || self.demote_one(cleaner, Taker::Cleaner)
            || clean(policy::WORTH_PART)
            || self.seal_garbage()
            || self.seal_clusters()
            || compact(policy::WORTH_PART)
            || self.end_clusters()
    }

    /// Makes room for `bytes` of tables or buffers, which the caller charges afterwards. `false`
    /// when they do not fit.
    pub fn make_room(&self, bytes: u64) -> bool {
        let fits = |store: &Store| store.budget().fits(bytes, Taker::Ordinary);
        let mut enough = |store: &Store| {
            store.frames().trim_to(store.budget(), 0);
            fits(store)
        };
        fits(&self.store) || self.reclaim_locked(&self.cleaner.lock(), &mut enough).is_ok()
    }

    /// A session for one thread, with room made for its buffers. Exceeds the limit if necessary: a
    /// client must be able to discard.
    ///
    /// # Errors
    /// See [`Store::session`].
    pub fn session(&self) -> Result<Session> {
        self.make_room(self.session_memory);
        self.store.session()
    }

    /// Waits until everything that was retired is free. Pins are short, so this wait is short too.
    pub(super) fn settle(&self) {
        let mut round = 0;
        self.store.collect();
        while self.store.retired() > 0 {
            crate::sync::relax(round);
            round += 1;
            self.store.collect();
        }
    }

    /// Cleans the emptiest segment, if that gives back at least one part in `worth_part` of a
    /// segment. Returns the bytes that are free again; `None` when no segment is worth it, or there
    /// is no room to clean.
    pub(super) fn clean_one(&self, session: &Session, who: Taker, worth_part: u32) -> Option<u32> {
        let size = self.store.segment_size();
        let least = size / worth_part;
        loop {
            let chosen = {
                let segments = self.store.segments();
                let mut victims = self.victims.lock();
                // A list whose best segment is not worth it may be old, or made for a caller that
                // accepts less: it says nothing about the garbage of now.
                if victims.last().is_none_or(|last| policy::gain(last, size) < least) {
                    let most = policy::batch(segments.in_use());
                    policy::victims(segments.all_sealed(), (size, least), most, &mut victims);
                }
                victims.pop()?
            };
            // The list may be old: the segment may be gone, or have more garbage by now.
            let Some(victim) = self.store.segments().claim(chosen.segment, chosen.sequence) else {
                continue;
            };
            match self.store.clean(session, victim, who) {
                Cleaned::Emptied => return Some(policy::gain(&victim, size)),
                Cleaned::Damaged => {}
                Cleaned::NoRoom => return None,
            }
        }
    }

    /// Seals the open segment if its garbage is worth cleaning. `false` when it is not.
    fn seal_garbage(&self) -> bool {
        let Some((segment, end)) = self.store.log().open() else { return false };
        let dead = self.store.segments().dead_bytes(segment);
        let size = self.store.segment_size();
        dead >= (size / policy::WORTH_PART).max(1)
            && end > 0
            && self.store.open_segment(Taker::Cleaner, size)
    }

    fn drop_empty_leaves(&self) {
        self.store.index().drop_empty(self.store.epochs());
    }

    fn over(&self, permille: u64) -> bool {
        let mut payload = self.store.counters().sum().compr_data_bytes.max(0) as u64;
        let mut index = 0;
        if let Some(lower) = self.lower() {
            // Of spilled data, only the index is in memory, and that cannot be cleaned.
            payload = payload.saturating_sub(lower.live());
            index = self.store.index().leaf_bytes();
        }
        // Cleaning makes more ready frames, so ready frames must not cause cleaning. Nor must
        // frames that wait for a pinned thread, which may be another writer that cleans.
        let ready = self.store.frames().ready() as u64 * u64::from(self.store.segment_size());
        let coming = self.store.retired_bytes();
        let used = self.store.budget().used().saturating_sub(ready + coming + index);
        policy::over(used, payload, permille, self.store.segment_size())
    }

    /// The periodic work of the cleaner thread; `quiet` when no segment was opened for a while.
    /// Stops early when `stop` says so.
    pub fn maintain(&self, quiet: bool, stop: &dyn Fn() -> bool) {
        self.store.collect();
        if !quiet {
            self.trim_surplus();
            return;
        }
        self.seal_clusters();
        while self.over(policy::QUIET_PERMILLE) && !stop() {
            let Some(cleaner) = self.cleaner.try_lock() else { return };
            if self.clean_one(&cleaner, Taker::Ordinary, policy::WORTH_PART).is_none() {
                break;
            }
            self.store.collect();
            self.store.frames().trim(self.store.budget(), READY_BUSY);
        }
        self.drop_empty_leaves();
        if let Some(lower) = self.lower() {
            self.store.free_dead_slots();
            lower.look(&self.store);
        }
        self.store.collect();
        self.store.frames().trim(self.store.budget(), 0);
    }

    /// Segments opened by writes so far.
    pub fn opened(&self) -> u64 {
        self.opened.load(Ordering::Relaxed)
    }

    /// Lowers or raises the limit. `false`, and nothing changes, when the stored data does not fit.
    /// If data is spilled for it, the limit goes down in steps: a writer that is out of room waits
    /// for one step, not for all.
    pub fn set_limit(&self, bytes: u64) -> bool {
        let budget = self.store.budget();
        let before = budget.limit();
        if bytes < before {
            self.store.fit_windows(bytes);
        }
        let step = policy::LOWER_SEGMENTS * u64::from(self.store.segment_size());
        let mut now = before.min(bytes.max(budget.used()));
        while self.spills() && now > bytes + step {
            if !self.set_limit_to(now) {
                break; // the last one tells
            }
            now -= step;
        }
        let done = self.set_limit_to(bytes);
        if !done {
            budget.set_limit(before);
            self.fit_mempool();
        }
        self.store.fit_windows(budget.limit());
        done
    }

    fn set_limit_to(&self, bytes: u64) -> bool {
        // Held to the end: a writer that is out of room waits until it is known which limit holds.
        let cleaner = &*self.cleaner.lock();
        let before = self.store.budget().limit();
        self.store.budget().set_limit(bytes);
        self.fit_mempool();
        // Swapping depends on the mempool, so the mempool is given up only if nothing else helps.
        let fits = |keep: usize| {
            let mut fits = |store: &Store| {
                store.frames().trim_to(store.budget(), keep);
                store.budget().fits(0, Taker::Ordinary)
            };
            self.reclaim_locked(cleaner, &mut fits).is_ok()
        };
        let mempool = self.store.frames().mempool();
        if bytes >= before || fits(mempool) || mempool > 0 && fits(0) {
            return true;
        }
        self.store.budget().set_limit(before);
        self.fit_mempool();
        false
    }
}

impl Drop for Ram {
    fn drop(&mut self) {
        self.store.leave(&self.cleaner.lock());
    }
}

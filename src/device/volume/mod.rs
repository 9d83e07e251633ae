//! A volume in compressed memory, and its threads: helpers for large requests, the cleaner, the
//! spiller, the read-ahead thread, the recompressor, and the thread that refills the mempool.
//!
//! Invariant: every thread works through its own [`Channel`] or session. Front-ends have at most
//! [`THREADS_MAX`] of them; no thread waits for another one to free a session.

mod below;
mod channel;
mod cleaner;
mod io_context;
mod packer;
mod readahead;
mod refill;
mod spiller;
mod worker_pool;

use super::contract::{
    Channel, Device, Extent, ExtentKind, InMemory, IoError, Serving, SpillChange, inside,
};
use super::counters::{Accounts, Counters};
use super::drives::Alarm;
use super::front::Front;
use super::precedence::Precedence;
use super::worker::Worker;
use crate::BLOCK_SIZE;
use crate::codec::Algorithm;
use crate::error::{Error, Result};
use crate::media::Memory;
use crate::ram::store::epoch::PARTICIPANTS_MAX;
use crate::ram::store::format::{BLOCKS_MAX, Home, SEGMENT_MAX, SEGMENT_MIN, SEGMENTS_MAX};
use crate::ram::store::frames::FILE as FRAMES_FILE;
use crate::ram::store::index::LEAF;
use crate::ram::store::{FreedBits, RESERVE_SEGMENTS, Session, Shape, has_freed};
use crate::ram::{Pass, Ram, Recompressed};
use crate::ram::{Recompress, SpillTo};
use crate::stats::drives::Role;
use crate::stats::{Latencies, Stats};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
pub(crate) use below::no_spill_device;
use parking_lot::{RwLock, RwLockReadGuard};
use std::sync::{Arc, OnceLock};
use worker_pool::WorkerPool;

/// The layout of memory files: entries, records, tables, and the name of each file. Every change
/// increments it, so that no program takes over memory of another layout.
pub const MEMORY_LAYOUT: u32 = 4;

/// Blocks or leaves that one call of [`Device::extents`] looks at, so that no caller waits for
/// long.
const EXTENTS_LOOK: u32 = 16 << 10;
/// Threads that need a session of the store but serve no front-end: the cleaner, the spiller, the
/// recompressor, the inspector, the flusher of a daemon that leaves, a change of the spill device,
/// and the helpers.
const OWN_THREADS: usize = 6 + worker_pool::HELPERS_MAX;
/// The most threads that can serve a volume at once. Each of them gets a session.
pub const THREADS_MAX: usize = PARTICIPANTS_MAX - OWN_THREADS;

/// The largest device, in bytes: 16 TiB.
pub const SIZE_MAX: u64 = BLOCKS_MAX * BLOCK_SIZE as u64;

/// Settings of a volume.
#[derive(Clone, Debug)]
pub struct Options {
    /// Size of the device in bytes: a multiple of 4096, 4096 to [`SIZE_MAX`].
    pub size: u64,
    /// Limit on all memory of the volume, in bytes: at least [`min_ram_limit`].
    pub ram_limit: u64,
    /// The highest limit that the volume can ever get, in bytes: address space, not memory. Raised
    /// to `ram_limit` if it is less. Memory that is taken over keeps its own maximum.
    pub ram_limit_max: u64,
    /// Bytes in a segment: a power of two, 32 KiB to 16 MiB.
    pub segment: u32,
    /// How blocks are compressed.
    pub algorithm: Algorithm,
    /// Keep all memory of the volume resident, so that the volume may carry swap.
    pub lock_memory: bool,
}

/// A block device in compressed memory. All front-ends share it; every thread works through its own
/// [`Channel`].
pub struct Volume {
    ram: Ram,
    size: AtomicU64,
    /// Serializes [`Volume::grow`].
    growing: Mutex<()>,
    accounts: Accounts,
    /// Session for calls from threads without a channel.
    inspector: Mutex<Option<Session>>,
    workers: Mutex<Vec<Worker>>,
    /// The volume's own threads share it, each while it moves data; an audit locks it exclusively.
    turns: RwLock<()>,
    pool: OnceLock<WorkerPool>,
    orders: packer::Orders,
    precedence: Precedence,
    below: below::Below,
}

/// The least limit, in bytes, for a device of `size` bytes with segments of `segment` bytes:
/// tables, the cleaner's reserve, and a few segments to write into.
pub fn min_ram_limit(size: u64, segment: u32) -> u64 {
    let directory = (size.div_ceil(LEAF * BLOCK_SIZE as u64) * 8).next_multiple_of(4096);
    directory + (RESERVE_SEGMENTS + 4) * u64::from(segment) + (4 << 20)
}

/// Incompressible data has an overhead of one part in `BESIDE_FULL`: index leaves, record headers,
/// ends of segments, and the garbage that cleaning needs.
const BESIDE_FULL: u64 = 16;

/// Bytes of memory that `size` bytes of incompressible data take, beside [`min_ram_limit`].
pub fn ram_in_full(size: u64) -> u64 {
    size + size / BESIDE_FULL
}

/// The inverse of [`ram_in_full`]: the bytes of incompressible data that `ram` bytes hold.
pub fn held_in_full(ram: u64) -> u64 {
    (u128::from(ram) * u128::from(BESIDE_FULL) / u128::from(BESIDE_FULL + 1)) as u64
}

/// The least limit, in bytes, for a device of `size` bytes above a spill device.
pub fn min_ram_limit_above(size: u64, segment: u32) -> u64 {
    min_ram_limit(size, segment) + u64::from(segment)
}

impl Volume {
    /// Makes an empty volume and starts its threads.
    ///
    /// # Errors
    /// An option is out of its range (usage); or address space is missing, or the right to lock
    /// memory (failure).
    pub fn create(options: &Options) -> Result<Arc<Self>> {
        Self::create_in(options, &Memory::default())
    }

    /// As [`Volume::create`], in `memory`. Takes over what another process left there.
    ///
    /// # Errors
    /// As [`Volume::create`], or the memory is not of such a volume.
    pub fn create_in(options: &Options, memory: &Memory) -> Result<Arc<Self>> {
        Self::create_over(options, memory, None)
    }

    /// As [`Volume::create_in`], above a spill device. Slots keep their content if another process
    /// left the memory.
    ///
    /// # Errors
    /// As [`Volume::create_in`].
    pub fn create_over(
        options: &Options,
        memory: &Memory,
        below: Option<SpillTo>,
    ) -> Result<Arc<Self>> {
        Self::make(options, memory, (below, false)).and_then(Self::started)
    }

    /// As [`Volume::create_in`], without the spill device that another process had: what only that
    /// held is given up.
    ///
    /// # Errors
    /// As [`Volume::create_in`].
    pub fn create_without_spill(options: &Options, memory: &Memory) -> Result<Arc<Self>> {
        Self::make(options, memory, (None, true)).and_then(Self::started)
    }

    fn started(self) -> Result<Arc<Self>> {
        let volume = Arc::new(self);
        let spills = volume.ram.store().slots().count() > 0;
        volume.workers.lock().push(cleaner::start(&volume)?);
        volume.workers.lock().push(packer::start(&volume)?);
        volume.below.begin(&volume);
        if spills {
            volume.start_spilling()?;
        }
        volume.workers.lock().push(refill::start(&volume)?);
        if let Some(pool) = WorkerPool::start(&volume)? {
            volume.pool.get_or_init(|| pool);
        }
        Ok(volume)
    }

    /// A volume without threads of its own: only writers clean memory.
    ///
    /// # Errors
    /// As [`Volume::create`].
    pub fn new(options: &Options) -> Result<Self> {
        Self::new_in(options, &Memory::default())
    }

    /// As [`Volume::new`], in `memory`.
    ///
    /// # Errors
    /// As [`Volume::create_in`].
    pub fn new_in(options: &Options, memory: &Memory) -> Result<Self> {
        Self::new_over(options, memory, None)
    }

    /// As [`Volume::new_in`], above a spill device. Slots keep their content if another process
    /// left the memory.
    ///
    /// # Errors
    /// As [`Volume::create_in`].
    pub fn new_over(options: &Options, memory: &Memory, below: Option<SpillTo>) -> Result<Self> {
        Self::make(options, memory, (below, false))
    }

    fn make(
        options: &Options,
        memory: &Memory,
        (below, gone): (Option<SpillTo>, bool),
    ) -> Result<Self> {
        check(options)?;
        let least = min_ram_limit_above(options.size, options.segment);
        if below.is_some() && options.ram_limit < least && !cfg!(shuttle) {
            return Err(too_little(options.ram_limit, least));
        }
        let slots = below.as_ref().map_or(0, |below| below.slots);
        let shape = Shape {
            blocks_max: if cfg!(shuttle) { options.size / BLOCK_SIZE as u64 } else { BLOCKS_MAX },
            segment: options.segment,
            frames: frames(options, memory, slots)?,
            slots,
            algorithm: options.algorithm,
        };
        let limit = options.ram_limit.min(shape.ram_limit_max());
        let ram = Ram::above(memory, shape, limit, (below, gone))?;
        if options.lock_memory {
            ram.store().lock_memory()?;
        }
        let inspector = ram.store().session()?;
        ram.store().budget().add(directory_bytes(options.size));
        Ok(Self {
            ram,
            size: AtomicU64::new(options.size),
            growing: Mutex::new(()),
            accounts: Accounts::default(),
            inspector: Mutex::new(Some(inspector)),
            workers: Mutex::new(Vec::new()),
            turns: RwLock::new(()),
            pool: OnceLock::new(),
            orders: packer::Orders::default(),
            precedence: Precedence::default(),
            below: below::Below::default(),
        })
    }

    /// Keeps all memory of the volume resident from now on.
    ///
    /// # Errors
    /// The process may not lock this much memory.
    pub fn lock_memory(&self) -> Result<()> {
        self.ram.store().lock_memory()
    }

    fn size_now(&self) -> u64 {
        self.size.load(Ordering::Acquire)
    }

    fn pool(&self) -> Option<&WorkerPool> {
        self.pool.get()
    }

    fn ram(&self) -> &Ram {
        &self.ram
    }

    /// Makes the device larger, at once.
    ///
    /// # Errors
    /// The size is smaller than now, no multiple of 4096, above [`SIZE_MAX`], or too large for the
    /// limit on memory (usage); or there is no room for its tables (failure). Then nothing changes.
    pub fn grow(&self, size: u64) -> Result<()> {
        check_size(size)?;
        let _growing = self.growing.lock();
        let now = self.size_now();
        if size < now {
            return Err(Error::usage(format!("size {size} is less than the {now} bytes it has"))
                .hint("sizes grow, never shrink"));
        }
        let limit = self.ram.store().budget().limit();
        let least = self.least_limit(size);
        if limit < least && !cfg!(shuttle) {
            return Err(too_little(limit, least));
        }
        let tables = directory_bytes(size) - directory_bytes(now);
        if !self.ram.make_room(tables) {
            return Err(Error::failure(format!("no room for {tables} bytes of tables"))
                .hint("discard something (fstrim) or give a higher ram-limit first"));
        }
        self.ram.store().budget().add(tables);
        self.size.store(size, Ordering::Release);
        Ok(())
    }

    fn least_limit(&self, size: u64) -> u64 {
        let store = self.ram.store();
        match store.slots().count() {
            0 => min_ram_limit(size, store.segment_size()),
            _ => min_ram_limit_above(size, store.segment_size()),
        }
    }

    /// Changes the limit on memory, in bytes.
    ///
    /// # Errors
    /// The limit is below [`min_ram_limit`] or above [`Options::ram_limit_max`] (usage), or below
    /// what is stored (failure); then nothing changes.
    pub fn set_ram_limit(&self, bytes: u64) -> Result<()> {
        let shape = self.ram.store().shape();
        let least = self.least_limit(self.size_now());
        let most = shape.ram_limit_max();
        if bytes < least {
            return Err(too_little(bytes, least));
        }
        if bytes > most {
            return Err(Error::usage(format!("ram-limit {bytes} is above {most}"))
                .hint(format!("this volume can be given at most {most} bytes")));
        }
        if self.ram.set_limit(bytes) {
            return Ok(());
        }
        let used = self.ram.store().budget().used();
        Err(Error::would_lose(format!(
            "ram-limit {bytes} is less than what is stored takes ({used} bytes)"
        ))
        .hint("discard something (fstrim) or give a higher limit"))
    }

    /// Changes when cold data is recompressed. A volume without threads of its own recompresses
    /// only data that it spills.
    ///
    /// # Errors
    /// There is no memory for recompression; then nothing changes.
    pub fn set_recompress(&self, when: Recompress) -> Result<()> {
        if !self.ram.recompress_by_itself(when == Recompress::Idle) {
            return Err(no_room_to_recompress());
        }
        self.orders.wake();
        Ok(())
    }

    /// Starts to recompress everything that was not read lately. The counter `recompressing` shows
    /// whether it is still under way.
    ///
    /// # Errors
    /// There is no memory for recompression.
    pub fn recompress(&self) -> Result<()> {
        if !self.ram.can_recompress() {
            return Err(no_room_to_recompress());
        }
        self.orders.ask();
        Ok(())
    }

    /// The number of requests so far.
    fn requests(&self) -> u64 {
        self.accounts.requests()
    }

    /// All counters, now.
    pub fn stats(&self) -> Stats {
        let store = self.ram.store();
        let counts = store.counters().sum();
        let totals = self.accounts.totals();
        let at_least_0 = |n: i64| n.max(0) as u64;
        let (index, budget) = (store.index(), store.budget());
        let unfolded = index.unfolded_blocks() as i64;
        let zero = at_least_0(counts.blocks_zero + unfolded) + index.zeroed_blocks();
        let same = at_least_0(counts.blocks_same - counts.blocks_zero) + zero;
        let segment = u64::from(store.segment_size());
        let metadata = store.metadata_bytes(self.size_now());
        let frames = store.frames().warm() as u64 * segment;
        let stored = at_least_0(counts.blocks_stored);
        let used = budget.used();
        Stats {
            disk_size_bytes: self.size_now(),
            ram_limit_bytes: budget.limit(),
            blocks_same: same,
            blocks_zero: zero,
            orig_data_bytes: stored * BLOCK_SIZE as u64,
            mem_used_bytes: used,
            mem_used_max_bytes: budget.peak(),
            frames_bytes: frames,
            metadata_bytes: metadata,
            buffers_bytes: used.saturating_sub(frames + metadata),
            metadata_bytes_per_block: match stored + same {
                0 => 0.0,
                blocks => metadata as f64 / blocks as f64,
            },
            segments: u64::from(store.segments().in_use()),
            stalls: self.ram.stalls(),
            no_space: self.ram.refusals(),
            ..self.with_recompression(self.with_spill(totals.stats().with_sums(&counts)))
        }
    }

    fn with_recompression(&self, stats: Stats) -> Stats {
        let spent = self.ram.recompress_counts();
        Stats {
            recompressing: self.orders.is_under_way(),
            recompress_promoted_blocks: spent.promoted,
            recompress_ms: spent.spent_ns / 1_000_000,
            ..stats
        }
    }

    fn with_spill(&self, stats: Stats) -> Stats {
        let (ram, store) = (&self.ram, self.ram.store());
        let stats = Stats { spill_lost_blocks: ram.lost_below(), ..stats };
        let Some(counts) = ram.spill_counts() else { return stats };
        let failing = ram.spill_failures(|failures| super::drives::failing(Role::Spill, failures));
        let (slots, (bytes, blocks)) = (store.slots(), store.segments().live_below());
        Stats {
            spill_device_reads: counts.reads,
            spill_device_writes: counts.writes,
            spill_reading_ns: counts.reading_ns,
            spill_writing_ns: counts.writing_ns,
            spill_read_bytes: counts.read_bytes,
            spill_written_bytes: counts.written_bytes,
            spill_allowed_bytes: ram.spill_allowed(),
            spill_slots: slots.count().into(),
            spill_slots_used: (slots.count() - slots.free()).into(),
            spilled_blocks: blocks,
            spilled_bytes: bytes,
            spill_promoted_blocks: ram.promoted(),
            spill_errors: counts.errors,
            spill_failed: ram.spill_failed(),
            drives: failing.flatten().into_iter().collect(),
            ..stats
        }
    }

    /// Cleans as after a long quiet time, at once. With a spill device, also refills the reserve
    /// that writers take from.
    pub fn clean_now(&self) {
        self.ram.maintain(true, &|| false);
        if let Some(session) = &*self.inspector.lock() {
            self.ram.keep_reserve(session, &|| false);
        }
    }

    /// Spills everything that can be spilled, for tests.
    #[doc(hidden)]
    pub fn spill_now(&self) {
        if let Some(session) = &*self.inspector.lock() {
            self.ram.spill_all(session);
        }
    }

    /// Brings a part of a slot that a stream of reads comes to next, as the read-ahead thread does,
    /// for tests. `false` when there is none.
    #[doc(hidden)]
    pub fn read_ahead_now(&self) -> bool {
        self.ram.read_ahead()
    }

    /// Recompresses what was not read lately while there is room and memory to, for tests.
    #[doc(hidden)]
    pub fn recompress_now(&self) {
        if !self.ram.can_recompress() {
            return;
        }
        if let Some(session) = &*self.inspector.lock() {
            let mut pass = Pass::over_all(&self.ram);
            while self.ram.recompress_one(session, &mut pass, &|| false) == Recompressed::On {}
        }
    }

    /// Compacts a slot that has any garbage, for tests.
    #[doc(hidden)]
    pub fn compact_now(&self) {
        if let Some(session) = &*self.inspector.lock() {
            self.ram.compact_any(session);
        }
    }

    /// Flips a bit in the record of a block, for tests of detection. Returns `false` if the block
    /// has no record.
    #[doc(hidden)]
    pub fn damage(&self, block: u64, bit: u32) -> bool {
        self.ram.store().flip_bit(block, bit)
    }

    /// Damages the index: flips one bit of the entry of `block`, or of its leaf's word in the
    /// directory. For tests of detection.
    pub fn damage_index(&self, block: u64, bit: u32, directory: bool) {
        self.ram.store().index().flip_bit(block, bit, directory);
    }

    /// A turn of one of the volume's own threads. The thread ends it before it waits for anything
    /// else.
    fn turn(&self) -> RwLockReadGuard<'_, ()> {
        self.turns.read()
    }

    /// Recounts everything from the index and compares it with the counters. The volume's own
    /// threads wait meanwhile: a slot or segment that one of them works on would count as lost. The
    /// caller makes sure that no request is in flight.
    ///
    /// # Errors
    /// The counters do not agree; says which.
    pub fn audit(&self) -> std::result::Result<(), String> {
        let _alone = self.turns.write();
        self.ram.store().audit(self.size_now() / BLOCK_SIZE as u64)?;
        self.ram.store().audit_order()
    }

    /// Ends the volume's own threads. Requests still work afterwards, and only writers clean.
    pub fn close(&self) {
        // Threads end without this lock held: others may need it meanwhile.
        let workers = std::mem::take(&mut *self.workers.lock());
        drop(workers);
        if let Some(pool) = self.pool.get() {
            pool.stop();
        }
    }

    fn leave(&self, session: &Session, counters: &Arc<Counters>) {
        self.ram.store().leave(session);
        self.ram.store().budget().give(size_of::<Counters>() as u64);
        self.accounts.leave(counters);
    }

    fn extent_of(&self, block: u64, session: &Session) -> ExtentKind {
        let store = self.ram.store();
        match store.entry(session, block).home() {
            Home::Hole if store.index().is_zeroed(block) => ExtentKind::Zero,
            Home::Hole => ExtentKind::Hole,
            Home::Same(0) => ExtentKind::Zero,
            Home::Same(_) | Home::Record(_) | Home::Damaged => ExtentKind::Data,
        }
    }
}

fn no_room_to_recompress() -> Error {
    Error::failure("there is no memory to recompress with")
        .hint("discard something (fstrim) or give a higher ram-limit first")
}

impl Device for Volume {
    fn size(&self) -> u64 {
        self.size_now()
    }

    fn flushes(&self) -> bool {
        false
    }

    fn worth_shipping(&self) -> Option<usize> {
        self.pool.get().map(|_| worker_pool::WORTH_SHARING)
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        let Ok(session) = self.ram.session() else { return Box::new(channel::Refused) };
        self.ram.store().budget().add(size_of::<Counters>() as u64);
        let counters = self.accounts.enter();
        Box::new(Front::new(channel::VolumeThread::new(self, session), counters))
    }

    fn extents(
        &self,
        offset: u64,
        len: u64,
        most: usize,
    ) -> std::result::Result<Vec<Extent>, IoError> {
        const BLOCK: u64 = BLOCK_SIZE as u64;
        inside(offset, len, self.size_now())?;
        let end = offset + len;
        let inspector = self.inspector.lock();
        let Some(session) = inspector.as_ref() else { return Err(IoError::Busy) };
        let mut runs: Vec<Extent> = Vec::new();
        let (mut at, mut looked) = (offset, 0);
        while at < end && looked < EXTENTS_LOOK {
            let block = at / BLOCK;
            let kind = self.extent_of(block, session);
            // An absent leaf is of one kind throughout.
            let absent = !self.ram.store().index().is_present(block / LEAF);
            let next = if absent { (block / LEAF + 1) * LEAF } else { block + 1 };
            looked += 1;
            let stop = end.min(next * BLOCK);
            let full = runs.len() >= most.max(1);
            match runs.last_mut() {
                Some(run) if run.kind == kind => run.len += stop - at,
                _ if full => break,
                _ => runs.push(Extent { len: stop - at, kind }),
            }
            at = stop;
        }
        Ok(runs)
    }
}

impl Serving for Volume {
    fn stats(&self) -> Stats {
        self.stats()
    }

    fn latencies(&self) -> Latencies {
        self.accounts.totals().latencies()
    }

    fn set_ram_limit(&self, bytes: u64) -> Result<()> {
        self.set_ram_limit(bytes)
    }

    fn heed(&self, alarm: &Alarm) {
        self.below.heed(alarm);
        self.ram.spill_failures(|failures| super::drives::heed(failures, alarm));
    }

    fn close(&self) -> Result<()> {
        self.close();
        Ok(())
    }

    fn in_memory(&self) -> Option<&dyn InMemory> {
        Some(self)
    }
}

impl InMemory for Volume {
    fn stored_bytes(&self) -> u64 {
        let stats = self.stats();
        (stats.blocks_stored + stats.blocks_same) * BLOCK_SIZE as u64
    }

    fn grow(&self, size: u64) -> Result<()> {
        self.grow(size)
    }

    fn set_recompress(&self, when: Recompress) -> Result<()> {
        self.set_recompress(when)
    }

    fn recompress(&self) -> Result<()> {
        self.recompress()
    }

    fn carry_swap(&self, on: bool) -> Result<()> {
        if !on {
            self.precedence.set(false);
            self.ram.end_mempool();
            return Ok(());
        }
        if self.ram.recompresses() {
            // Allocate now, before memory is short. Without room, nothing is recompressed.
            self.ram.can_recompress();
        }
        self.ram.begin_mempool(self.size_now() / BLOCK_SIZE as u64)?;
        self.precedence.set(true);
        Ok(())
    }

    fn memory_is_plenty(&self, plenty: bool) {
        self.ram.memory_is_plenty(plenty);
    }

    fn swap_rests(&self, rests: bool) {
        self.ram.swap_rests(rests);
    }

    fn follow_freed(&self, bits: Option<&FreedBits>) {
        self.ram.store().follow_freed(bits);
    }

    fn drop_freed(&self, bits: &FreedBits, stop: &dyn Fn() -> bool) {
        let words = (self.size_now() / BLOCK_SIZE as u64).div_ceil(64);
        for word in (0..words.min(bits.len() as u64)).filter(|word| has_freed(bits, *word)) {
            // Held for a word's blocks, because others wait for this session.
            let mut inspector = self.inspector.lock();
            let Some(session) = inspector.as_mut().filter(|_| !stop()) else { return };
            let _turn = self.turn();
            self.ram.store().drop_freed(session, word);
        }
    }

    fn change_spill(&self, change: SpillChange<'_>) -> Result<u64> {
        self.change_spill(change)
    }

    fn set_spill_daily(&self, bytes: u64) -> Result<()> {
        self.set_spill_daily(bytes)
    }

    fn disown(&self) {
        self.ram.disown();
    }
}

impl Drop for Volume {
    fn drop(&mut self) {
        if let Some(session) = self.inspector.lock().take() {
            self.ram.store().leave(&session);
        }
    }
}

/// The most frames: as many as the highest limit allows, or as memory that is taken over has.
/// Frames and slots together must not exceed the number of segments.
fn frames(options: &Options, memory: &Memory, slots: u32) -> Result<u32> {
    let segment = u64::from(options.segment);
    if let Some(bytes) = ram_limit_max_of(memory)? {
        return Ok((bytes / segment).min(u64::from(SEGMENTS_MAX)) as u32);
    }
    let limit_max = options.ram_limit.max(options.ram_limit_max);
    Ok(limit_max.div_ceil(segment).min(u64::from(SEGMENTS_MAX.saturating_sub(slots))) as u32)
}

/// The highest limit of a volume in memory that is taken over, in bytes; `None` if the memory is
/// new, or its volume is not in memory.
///
/// # Errors
/// The system call fails.
pub fn ram_limit_max_of(memory: &Memory) -> Result<Option<u64>> {
    memory.len_of(FRAMES_FILE)
}

fn directory_bytes(size: u64) -> u64 {
    (size.div_ceil(LEAF * BLOCK_SIZE as u64) * 8).next_multiple_of(4096)
}

fn check_size(size: u64) -> Result<()> {
    if size == 0 {
        return Err(Error::usage("size is 0").hint("give at least 4096 bytes"));
    }
    if !size.is_multiple_of(BLOCK_SIZE as u64) {
        let near = size.next_multiple_of(BLOCK_SIZE as u64);
        return Err(Error::usage(format!("size {size} is not a multiple of 4096"))
            .hint(format!("the next one is {near}")));
    }
    if size > SIZE_MAX {
        return Err(Error::usage(format!("size {size} is larger than can be addressed"))
            .hint("give at most 16T"));
    }
    Ok(())
}

fn too_little(limit: u64, least: u64) -> Error {
    Error::usage(format!("ram-limit {limit} is too small for this size and segment"))
        .hint(format!("give at least {least} bytes"))
}

fn check(options: &Options) -> Result<()> {
    check_size(options.size)?;
    let segment = options.segment;
    if !segment.is_power_of_two() || !(SEGMENT_MIN..=SEGMENT_MAX).contains(&segment) {
        return Err(Error::usage(format!("segment {segment} is not usable"))
            .hint("give a power of two from 32K to 16M"));
    }
    let least = min_ram_limit(options.size, segment);
    if options.ram_limit < least && !cfg!(shuttle) {
        return Err(too_little(options.ram_limit, least));
    }
    Ok(())
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn frames_and_slots_have_a_number_each() -> Result<()> {
        let segment = SEGMENT_MIN;
        let options = |ram_limit_max| Options {
            size: 1 << 40,
            ram_limit: 1 << 30,
            ram_limit_max,
            segment,
            algorithm: Algorithm::Lz4,
            lock_memory: false,
        };
        let most = u64::from(SEGMENTS_MAX) * u64::from(segment);
        for (max, slots) in [(1 << 31, 0), (most, 0), (most, SEGMENTS_MAX / 2), (2 * most, 7)] {
            let frames = frames(&options(max), &Memory::default(), slots)?;
            let wanted = max / u64::from(segment);
            assert_eq!(u64::from(frames), wanted.min(u64::from(SEGMENTS_MAX - slots)));
        }
        Ok(())
    }
}

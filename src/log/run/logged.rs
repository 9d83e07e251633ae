//! Blocks in a durable log in front of a backing store: the log's core, its drives, and their I/O.
//!
//! The core does no I/O; its callers do. A thread that waits for a commit carries commands out
//! itself, so a small synced write needs no other thread; the log's own threads carry out the rest.
//! A write reserves its places under the core's lock, and fills them without it.
//!
//! Invariants: no thread holds the core's lock during I/O, or while it fills a place. A thread
//! holds a block's stripe from before it reserves the place, or from the read of a
//! read-modify-write, until it has filled the place; it takes several stripes in ascending order.
//! [`super::progress`] says how threads wait.

use super::coalesce::ReadCoalescer;
use super::event_count::EventCount;
use super::frequency::FrequencySketch;
use super::goal::Goal;
use super::packing::Packing;
use super::waits::Awaited;
use super::watched::Watched;
use super::write_throttle::WriteThrottle;
use super::writeback_throttle::WritebackThrottle;
use crate::BLOCK_SIZE;
use crate::GROUP;
use crate::codec::Algorithm;
use crate::log::core::{Core, Fills, Found, Lost, Outcome, Reading, Refused};
use crate::log::disk::cluster::Unpacked;
use crate::log::disk::format::{CLUSTER_MAX, IDENTITY, Kind, Seed, crc};
use crate::media::{Commit, Drive, DriveError, Identity, StableId, Waker};
use crate::stats::LogStats;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Instant, Mutex, MutexGuard, lock_within, now};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const STRIPES: usize = 256;

/// Threads that carry out a window.
pub(super) const MOVERS: usize = 4;
/// Most blocks in the admission queue.
const WANTED: usize = 1 << 16;
/// Longest wait of a reader for the stripe of a payload that is being filled, before it looks
/// again.
const FILL: Duration = Duration::from_millis(1);

/// Why a request on a logged volume failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A drive failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// This block's only copy is damaged.
    #[error("block {0} is damaged")]
    Damaged(u64),
    /// The log's drive failed, and the log takes nothing more.
    #[error("the log has failed")]
    Failed,
}

/// How far an append came.
enum Taken {
    /// The log has all blocks. With its backlog: bytes that wait for the drive, and the most that
    /// may.
    All((u64, u64)),
    /// No chunk has room for the next blocks as a cluster: append them one by one.
    Apart,
    /// The log refused the next block.
    Refused(Refused),
}

/// One thread's buffers for requests.
pub struct LogIoContext {
    packing: Packing,
    unpacked: Unpacked,
    fills: Fills,
    found: Vec<Found>,
    coalescer: ReadCoalescer,
    block: Box<[u8; BLOCK_SIZE]>,
}

impl LogIoContext {
    /// Buffers for one thread, which compresses its writes by `algorithm`.
    pub fn new(algorithm: Algorithm) -> Self {
        Self {
            packing: Packing::new(algorithm),
            unpacked: Unpacked::default(),
            fills: Fills::default(),
            found: Vec::with_capacity(GROUP),
            coalescer: ReadCoalescer::new(CLUSTER_MAX as usize),
            block: Box::new([0; BLOCK_SIZE]),
        }
    }
}

/// The state of a log that matters for its backing store.
pub struct Standing {
    /// Its counters.
    pub stats: LogStats,
    /// Ranges of blocks that cannot be read any more, as first block and count.
    pub lost: Vec<(u64, u64)>,
    /// The backing store's identity, if the superblock of a failed log could not take it before
    /// the backing store was changed.
    pub unmarked: Option<[u8; IDENTITY]>,
}

/// A callback that gets the standing of a log.
pub type Listener = Box<dyn Fn(&Standing) + Send + Sync>;

/// A log, its backing store, and their state.
pub struct Logged {
    pub(super) core: Arc<Mutex<Core>>,
    /// Notified when a command has completed, or when there is a new one.
    pub(super) events: EventCount,
    /// Chunks below this are durable; never ahead of the core.
    pub(super) durable: AtomicU64,
    pub(super) log: Arc<dyn Drive>,
    pub(super) backing: Arc<dyn Drive>,
    stripes: Vec<Mutex<()>>,
    stopping: AtomicBool,
    /// When the last request came, in milliseconds since `began`.
    last_request_ms: AtomicU64,
    began: Instant,
    damaged_reads: AtomicU64,
    /// Bytes that commands have written to the backing store, and zeroed in it.
    pub(super) written_back: AtomicU64,
    pub(super) zeroed_back: AtomicU64,
    /// The identity of the backing store, if the log keeps one.
    watched: Watched,
    /// Lets writeback give way to reads of the backing store.
    writeback_throttle: WritebackThrottle,
    /// Gives writers of a nearly full log many short waits instead of a long one.
    write_throttle: WriteThrottle,
    /// Called before and after the backing store changes.
    listener: OnceLock<Listener>,
    /// Roughly how often blocks were read lately.
    frequency: FrequencySketch,
    /// The admission queue: blocks that were read twice from below the log.
    wanted: Mutex<Vec<u64>>,
    /// Whether the log keeps copies of blocks that were read.
    keeps: AtomicBool,
    /// Wakes the commit thread.
    waker: OnceLock<Waker>,
    /// Windows that have failed in a row.
    pub(super) failures: AtomicU32,
    /// The drive error of the last failed window.
    pub(super) failure: Mutex<Option<DriveError>>,
    /// What flushes wait for that ask for the backing store.
    remote: Goal,
    /// Whether there are such flushes.
    is_remote: AtomicBool,
    /// Brings a commit into the superblock's note of the backing store.
    noting: OnceLock<Noting>,
}

/// The superblock's note of an atomic backing store, with one more commit; `None`: it stays.
pub type Noting = fn(&[u8; IDENTITY], &Commit) -> Option<[u8; IDENTITY]>;

impl Logged {
    /// Serves an opened log, with its drives.
    pub fn new(core: Arc<Mutex<Core>>, log: Arc<dyn Drive>, backing: Arc<dyn Drive>) -> Self {
        core.lock().wall(crate::stats::time::now());
        let kept = core.lock().keep_bytes();
        Self {
            core,
            frequency: FrequencySketch::new(kept / (BLOCK_SIZE as u64 / 2)),
            wanted: Mutex::default(),
            keeps: AtomicBool::new(kept > 0),
            events: EventCount::default(),
            durable: AtomicU64::new(0),
            log,
            backing,
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            stopping: AtomicBool::new(false),
            last_request_ms: AtomicU64::new(0),
            began: now(),
            damaged_reads: AtomicU64::new(0),
            written_back: AtomicU64::new(0),
            zeroed_back: AtomicU64::new(0),
            watched: Watched::default(),
            writeback_throttle: WritebackThrottle::new(MOVERS),
            write_throttle: WriteThrottle::default(),
            listener: OnceLock::new(),
            waker: OnceLock::new(),
            failures: AtomicU32::new(0),
            failure: Mutex::new(None),
            remote: Goal::default(),
            is_remote: AtomicBool::new(false),
            noting: OnceLock::new(),
        }
    }

    pub(super) fn log_drive(&self) -> Arc<dyn Drive> {
        Arc::clone(&self.log)
    }

    pub(super) fn wakes(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    /// Reports the outcome of a command to the core.
    pub(super) fn completed(&self, id: u64, outcome: &Outcome) {
        self.note(&mut self.core.lock(), id, outcome);
    }

    pub(super) fn note(&self, core: &mut Core, id: u64, outcome: &Outcome) {
        core.clock(self.now_us());
        if core.complete(id, outcome) {
            self.durable.store(core.durable(), Ordering::Release);
            self.events.notify();
        }
    }

    /// Has `noting` bring each commit into the superblock, before its tail moves.
    pub fn note_commits(&self, noting: Noting) {
        let _ = self.noting.set(noting); // called once
    }

    /// The backing store has made a commit.
    pub(super) fn committed(&self, commit: &Commit) {
        let mut core = self.core();
        let note = self.noting.get().and_then(|noting| noting(&core.superblock().identity, commit));
        if let Some(note) = note {
            core.note_identity(note);
        }
        core.committed();
        drop(core);
        self.events.notify();
    }

    /// Prepares for [`Self::flush_remote`].
    pub fn expect_remote(&self) {
        self.is_remote.store(true, Ordering::Release);
    }

    pub(super) fn is_remote(&self) -> bool {
        self.is_remote.load(Ordering::Acquire)
    }

    pub(super) fn remote(&self) -> &Goal {
        &self.remote
    }

    pub(super) fn writeback_throttle(&self) -> &WritebackThrottle {
        &self.writeback_throttle
    }

    pub(super) fn write_throttle(&self) -> &WriteThrottle {
        &self.write_throttle
    }

    /// Lets writers take more room: a window has done `gone` steps of
    /// [`WAY`](super::write_throttle::WAY).
    pub(super) fn advance(&self, gone: u64) {
        if self.write_throttle.advance(gone) {
            self.events.notify();
        }
    }

    /// Sets the listener. It is called before and after the backing store changes.
    pub fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }

    /// The present standing of the log.
    pub fn standing(&self) -> Standing {
        let stats = self.core.lock().stats();
        Standing { stats, lost: self.lost(), unmarked: self.watched.unmarked() }
    }

    /// Calls the listener with the present standing.
    pub(super) fn note_backing(&self) {
        if let Some(listener) = self.listener.get() {
            listener(&self.standing());
        }
    }

    pub(super) fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Begins to keep the superblock's identity of the backing store true. `identity` is what the
    /// superblock has; `drive` is the backing store itself, without copies.
    pub fn watch(&self, identity: Identity, id: StableId, drive: Arc<dyn Drive>) {
        self.watched.begin(identity, id, drive);
    }

    /// Writes the backing store's identity, if there is one, to the log's superblocks.
    ///
    /// # Errors
    /// The log has failed.
    fn identify(&self, identity: Option<[u8; IDENTITY]>) -> Result<(), Fault> {
        let Some(identity) = identity else { return Ok(()) };
        self.core.lock().identify(identity);
        // If the log has failed, the write is only tried: saving the log's content is worth more.
        self.settle(Awaited::Commit, |core| core.is_written().then_some(Ok(())))
    }

    /// Notes durably that the backing store, and so the volume, has this many blocks. A log that
    /// fails meanwhile notes it if it can: the next opening takes the size from the backing store.
    pub fn grow(&self, blocks: u64) {
        self.core.lock().grow(blocks);
        self.settle(Awaited::Commit, |core| core.is_written().then_some(()));
    }

    /// The ranges of blocks of the backing store that its identity has samples of.
    pub(super) fn samples(&self) -> Vec<Range<u64>> {
        self.watched.samples()
    }

    /// Drops the samples for which `changes` is true from the superblocks. Called before the
    /// backing store changes there.
    ///
    /// # Errors
    /// The log has failed.
    pub(super) fn forget(&self, changes: impl Fn(&Range<u64>) -> bool) -> Result<(), Fault> {
        let identity = self.watched.forget(changes);
        let identified = self.identify(identity);
        if identity.is_some() && self.core.lock().is_failed() {
            // The superblock may lack the identity. Then this machine's record has it.
            self.watched.set_unmarked();
            self.note_backing();
        }
        identified
    }

    /// Puts the dropped samples back into the superblock that moves the tail. Called when the
    /// change of the backing store is durable.
    pub(super) fn remember(&self) {
        if let Some(identity) = self.watched.remember() {
            self.core.lock().note_identity(identity);
        }
    }

    /// Writes the backing store's present identity to the superblocks. Called after the last write
    /// to the backing store.
    ///
    /// # Errors
    /// A drive fails.
    pub(super) fn renew_identity(&self) -> Result<(), Fault> {
        self.identify(self.watched.renew()?)
    }

    /// The backing store, with its copies.
    pub(super) fn backing(&self) -> &dyn Drive {
        &*self.backing
    }

    pub(super) fn frequency(&self) -> &FrequencySketch {
        &self.frequency
    }

    /// Takes up to `most` blocks out of the admission queue.
    pub(super) fn take_wanted(&self, most: usize) -> Vec<u64> {
        let mut wanted = self.wanted.lock();
        let some = wanted.len().min(most);
        wanted.drain(..some).collect()
    }

    /// Puts blocks back into the admission queue, as far as it has room.
    pub(super) fn want(&self, mut blocks: Vec<u64>) {
        let mut wanted = self.wanted.lock();
        blocks.truncate(WANTED.saturating_sub(wanted.len()));
        wanted.append(&mut blocks);
    }

    /// Sets the percentage of the log that copies of read blocks may take.
    pub fn keep(&self, percent: u64) {
        self.core.lock().set_keep_percent(percent);
        self.keeps.store(percent > 0, Ordering::Relaxed);
    }

    /// Counts a read of each block. One that is read for the second or third time, now from `below`
    /// the log, goes to the admission queue.
    fn note_reads(&self, first: u64, count: usize, below: bool) {
        if !self.keeps.load(Ordering::Relaxed) {
            return;
        }
        for block in (first..).take(count) {
            if matches!(self.frequency.touch(block), 1 | 2)
                && below
                && let Some(mut wanted) = self.wanted.try_lock()
                && wanted.len() < WANTED
            {
                wanted.push(block);
            }
        }
    }

    /// Locks the core.
    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// Ranges of blocks that cannot be read any more, as first block and count. Asks the core in
    /// steps: between two of them other threads get the lock.
    pub fn lost(&self) -> Vec<(u64, u64)> {
        let mut lost = Lost::default();
        while self.core.lock().more_lost(&mut lost) {}
        lost.ranges()
    }

    /// Reads of damaged blocks.
    pub fn damaged_reads(&self) -> u64 {
        self.damaged_reads.load(Ordering::Relaxed)
    }

    /// Bytes that writeback wrote to the backing store, and those that it zeroed there.
    pub fn brought_back(&self) -> [u64; 2] {
        [&self.written_back, &self.zeroed_back].map(|bytes| bytes.load(Ordering::Relaxed))
    }

    pub(super) fn now_ms(&self) -> u64 {
        (now() - self.began).as_millis() as u64
    }

    pub(super) fn now_us(&self) -> u64 {
        (now() - self.began).as_micros() as u64
    }

    /// The time since the last request.
    pub(super) fn idle(&self) -> Duration {
        let last = self.last_request_ms.load(Ordering::Relaxed);
        Duration::from_millis(self.now_ms().saturating_sub(last))
    }

    pub(super) fn touch(&self) {
        self.last_request_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn stop_threads(&self) {
        self.stopping.store(true, Ordering::Release);
        let _core = self.core.lock();
        self.events.notify();
        self.wake();
    }

    fn stripe(&self, block: u64) -> &Mutex<()> {
        &self.stripes[(block / GROUP as u64) as usize % STRIPES]
    }

    /// Reads up to [`GROUP`] blocks that share a stripe.
    ///
    /// # Errors
    /// A drive fails, or a block is damaged; what was read before that is in `out`.
    pub fn read(
        &self,
        io: &mut LogIoContext,
        first: u64,
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> Result<(), Fault> {
        self.touch();
        self.locate(io, first, out.len());
        while io.found.contains(&Found::Filling) {
            self.release(io);
            // The writer holds the stripe until it has filled the block, or longer if it then waits
            // for room.
            let _stripe = lock_within(self.stripe(first), FILL);
            self.locate(io, first, out.len());
        }
        self.fetch_all(io, first, out)
    }

    fn locate(&self, io: &mut LogIoContext, first: u64, count: usize) {
        io.found.clear();
        io.coalescer.clear();
        let payloads = io.packing.payloads.iter_mut().take(count).map(|p| &mut p.bytes);
        self.core.lock().locate_all(first, payloads, &mut io.found);
    }

    /// Unpins what was located.
    fn release(&self, io: &LogIoContext) {
        let mut core = self.core.lock();
        for found in &io.found {
            if let Found::Log(reading) = found {
                core.release(reading);
            }
        }
    }

    /// Reads everything that was located.
    fn fetch_all(
        &self,
        io: &mut LogIoContext,
        first: u64,
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> Result<(), Fault> {
        let mut result = Ok(());
        let mut i = 0;
        while i < out.len() {
            let here = io.found[i];
            let shares = |found: &&Found| match found {
                Found::Before(_) => true,
                found => here == Found::Backing && **found == Found::Backing,
            };
            let count = 1 + io.found[i + 1..].iter().take_while(shares).count();
            let blocks = &mut out[i..i + count];
            let done = self.fetch(io, i, here, first + i as u64, blocks);
            if done.is_ok() {
                self.note_reads(first + i as u64, count, here == Found::Backing);
            }
            if let (Ok(()), Err(fault)) = (&result, done) {
                result = Err(fault);
            }
            i += count;
        }
        result
    }

    /// Reads what was located: one block, some of a cluster, or a run of blocks of the backing
    /// store.
    fn fetch(
        &self,
        io: &mut LogIoContext,
        i: usize,
        found: Found,
        block: u64,
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> Result<(), Fault> {
        match found {
            Found::Zeros => out.as_flattened_mut().fill(0),
            // `Filling` never comes here: `read` has waited for it, or this thread holds the
            // stripe.
            Found::Lost | Found::Filling => return Err(self.damaged(block)),
            Found::Backing => {
                let (began, moving) = (now(), self.writeback_throttle.is_moving());
                let at = block * BLOCK_SIZE as u64;
                if self.backing.read_noting(at, out.as_flattened_mut())? {
                    let moving = moving || self.writeback_throttle.is_moving();
                    self.writeback_throttle.note(now() - began, moving, self.now_ms());
                }
            }
            Found::Memory(kind) => {
                let Packing { codec, payloads, .. } = &mut io.packing;
                let payload = &payloads[i].bytes;
                if !io.unpacked.decode(codec, kind, payload, block, out) {
                    return Err(self.damaged(block));
                }
            }
            Found::Log(reading) => {
                let result = self.read_log(io, i, &reading, out);
                self.core.lock().release(&reading);
                result?;
            }
            // This block was read with the one before.
            Found::Before(_) => {}
        }
        Ok(())
    }

    /// Reads the payload of the `i`-th block, and of those that share it, from the log's drive.
    fn read_log(
        &self,
        io: &mut LogIoContext,
        i: usize,
        reading: &Reading,
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> Result<(), Fault> {
        let payload = io.coalescer.payload(&*self.log, reading, &io.found[i + 1..])?;
        let first = reading.seed.block;
        let sum = crc(payload);
        let checks = io.found[i..].iter().map(|found| match found {
            Found::Before(check) => *check,
            _ => reading.check,
        });
        for (block, check) in (first..).zip(checks.take(out.len())) {
            if (Seed { block, ..reading.seed }).check(sum) != check {
                return self.read_elsewhere(reading, block, out);
            }
        }
        if !io.unpacked.decode(&mut io.packing.codec, reading.kind, payload, first, out) {
            return self.read_elsewhere(reading, first, out);
        }
        Ok(())
    }

    /// Reads blocks whose payload does not verify where it was located. They are damaged, unless
    /// their segment had to leave the log at once, so that its slot is used again. Then this looks
    /// the blocks up again, and does not read the backing store, which has an older state: they
    /// have another place, or are lost if they were damaged.
    fn read_elsewhere(
        &self,
        reading: &Reading,
        block: u64,
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> Result<(), Fault> {
        if !self.core.lock().has_left(reading) {
            return Err(self.damaged(block));
        }
        self.read(&mut LogIoContext::new(Algorithm::None), reading.seed.block, out)
    }

    fn damaged(&self, block: u64) -> Fault {
        self.damaged_reads.fetch_add(1, Ordering::Relaxed);
        Fault::Damaged(block)
    }

    /// Writes up to [`GROUP`] blocks that share a stripe.
    ///
    /// # Errors
    /// The log has failed; some of the blocks may have been taken.
    pub fn write(
        &self,
        io: &mut LogIoContext,
        first: u64,
        blocks: &[[u8; BLOCK_SIZE]],
    ) -> Result<(), Fault> {
        self.touch();
        io.packing.encode_all(first, blocks);
        let _stripe = self.stripe(first).lock();
        if self.append(io, first, blocks)? {
            return Ok(());
        }
        self.write_through(first, blocks)
    }

    /// Writes blocks to the backing store, because the log has failed.
    fn write_through(&self, first: u64, blocks: &[[u8; BLOCK_SIZE]]) -> Result<(), Fault> {
        self.refuse_lost(first, blocks.len() as u64)?;
        Ok(self.backing.write(first * BLOCK_SIZE as u64, blocks.as_flattened())?)
    }

    /// Refuses writes to lost blocks: of a failed log, nothing durable could say any more that a
    /// lost block was written.
    fn refuse_lost(&self, first: u64, count: u64) -> Result<(), Fault> {
        let lost = self.core.lock().first_lost(first, count);
        lost.map_or(Ok(()), |block| Err(self.damaged(block)))
    }

    /// Appends encoded blocks, whose stripe the caller holds. `false`: they must go to the backing
    /// store.
    fn append(
        &self,
        io: &mut LogIoContext,
        first: u64,
        blocks: &[[u8; BLOCK_SIZE]],
    ) -> Result<bool, Fault> {
        let mut done = 0;
        loop {
            let (taken, sealed) = self.reserve(io, first, blocks, &mut done)?;
            let awaited = io.fills.finish();
            if awaited {
                self.events.notify();
            }
            if awaited || sealed {
                self.wake();
            }
            match taken {
                Taken::All(backlog) => {
                    io.packing.backlog = backlog;
                    return Ok(true);
                }
                Taken::Apart => {
                    if let Some(blocks) = blocks[done..].first_chunk() {
                        io.packing.encode_apart(done, blocks);
                    }
                }
                Taken::Refused(Refused::Full) => {}
                Taken::Refused(Refused::Through) => return Ok(false),
                Taken::Refused(Refused::Failed) => return Err(Fault::Failed),
            }
        }
    }

    /// Reserves room for the blocks from index `done` on, for as many as there is room for, and
    /// fills it. Waits while there is room for none. Returns how far it came, and whether it closed
    /// chunks.
    ///
    /// # Errors
    /// There is no room, because writeback fails.
    fn reserve(
        &self,
        io: &mut LogIoContext,
        first: u64,
        blocks: &[[u8; BLOCK_SIZE]],
        done: &mut usize,
    ) -> Result<(Taken, bool), Fault> {
        let LogIoContext { packing, fills, .. } = io;
        let mut sums = [0; GROUP];
        let mut i = *done;
        while i < blocks.len() {
            let (_, payload, count) = packing.encoded(first, i, &blocks[i]);
            sums[i] = crc(payload);
            i += count;
        }
        let from = *done;
        let taken = self.wait_for_room(|core| {
            if self.write_throttle.holds(core.fullness()) {
                return None;
            }
            let chunks = core.chunks();
            let mut taken = Taken::Apart;
            while *done < blocks.len() {
                let (kind, payload, count) = packing.encoded(first, *done, &blocks[*done]);
                let (block, sized) = (first + *done as u64, (payload.len(), sums[*done]));
                let reserved = match kind {
                    Kind::Zeros => core.discard(block, packing.zeros(first, *done, blocks)),
                    Kind::Cluster => {
                        let fits = core.reserve_cluster(block, sized, fills);
                        fits.map(|fits| if fits { count as u64 } else { 0 })
                    }
                    _ => core.reserve(block, kind, sized, fills).map(|()| 1),
                };
                match reserved {
                    Ok(0) => break,
                    Ok(more) => *done += more as usize,
                    Err(refused) => {
                        taken = Taken::Refused(refused);
                        break;
                    }
                }
            }
            if *done == blocks.len() {
                taken = Taken::All(core.backlog());
            }
            // A writer fills what it has reserved before it waits for room: other threads wait for
            // these fills.
            let waits = matches!(taken, Taken::Refused(Refused::Full)) && *done == from;
            (!waits).then(|| (taken, core.chunks() > chunks))
        })?;
        let mut i = from;
        while i < *done {
            let (kind, payload, count) = packing.encoded(first, i, &blocks[i]);
            if kind != Kind::Zeros {
                fills.fill(payload);
            }
            i += count;
        }
        Ok(taken)
    }

    /// Reads a block, changes it and writes it, atomically for all other requests.
    ///
    /// # Errors
    /// As [`Self::read`] and [`Self::write`].
    pub fn modify(
        &self,
        io: &mut LogIoContext,
        block: u64,
        change: impl FnOnce(&mut [u8; BLOCK_SIZE]),
    ) -> Result<(), Fault> {
        let _stripe = self.stripe(block).lock();
        let mut content = std::mem::replace(&mut io.block, Box::new([0; BLOCK_SIZE]));
        self.touch();
        self.locate(io, block, 1);
        let read = self.fetch_all(io, block, std::slice::from_mut(&mut *content));
        let result = read.and_then(|()| {
            change(&mut content);
            io.packing.encode_all(block, std::slice::from_ref(&content));
            match self.append(io, block, std::slice::from_ref(&content))? {
                true => Ok(()),
                false => self.write_through(block, std::slice::from_ref(&content)),
            }
        });
        io.block = content;
        result
    }

    /// Makes `count` blocks, at least one, read as zeros.
    ///
    /// # Errors
    /// The log has failed.
    pub fn discard(&self, first: u64, count: u64) -> Result<(), Fault> {
        self.touch();
        // A read-modify-write in the range must come before or after the discard, not around it.
        let groups = first / GROUP as u64..=(first + count - 1) / GROUP as u64;
        let mut stripes: Vec<usize> =
            groups.take(STRIPES).map(|group| group as usize % STRIPES).collect();
        stripes.sort_unstable();
        let _stripes: Vec<_> = stripes.iter().map(|&i| self.stripes[i].lock()).collect();
        let (mut next, end) = (first, first + count);
        while next < end {
            let taken = self.wait_for_room(|core| match core.discard(next, end - next) {
                Ok(taken) => Some(Ok(Some(taken))),
                Err(Refused::Full) => None,
                Err(Refused::Through) => Some(Ok(None)),
                Err(Refused::Failed) => Some(Err(Fault::Failed)),
            })??;
            let Some(taken) = taken else {
                self.refuse_lost(next, end - next)?;
                let (at, len) = (next * BLOCK_SIZE as u64, (end - next) * BLOCK_SIZE as u64);
                return Ok(self.backing.zero(at, len)?);
            };
            next += taken;
        }
        Ok(())
    }
}

//! Blocks in a durable log before a backing store: the log's core, its drives, and their I/O.
//!
//! The core does no I/O; its callers do. A thread that waits for a commit carries commands out
//! itself, so a small synced write needs no other thread; a few threads of the log's own write what
//! no request waits for. A write reserves its places under the core's lock, and fills them without
//! it.
//!
//! Invariants: the core's lock is held neither during I/O nor while payloads are copied; a block's
//! stripe is held from before its place is reserved, or from the read of a read-modify-write, until
//! it is filled; a thread that takes several stripes takes them in order. How threads wait is in
//! [`super::progress`].

use super::coalesce::ReadCoalescer;
use super::event_count::EventCount;
use super::frequency::FrequencySketch;
use super::packing::Packing;
use super::runtime::MOVERS;
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
use crate::media::{Drive, DriveError, Identity, StableId, Waker};
use crate::stats::LogStats;
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Instant, Mutex, MutexGuard, lock_within, now};
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

const STRIPES: usize = 256;

/// Blocks that wait to be kept at most.
const WANTED: usize = 1 << 16;
/// How long a reader waits for the stripe of a payload that is being copied before looking again.
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
    /// The log's drive failed; nothing more is taken.
    #[error("the log has failed")]
    Failed,
}

/// How far a thread came with what it has to append.
enum Taken {
    /// The log has all; so much of it waits for its drive, of at most so much.
    All((u64, u64)),
    /// The next ones are a cluster that finds no room: they go one by one.
    Apart,
    /// The next one was refused.
    Refused(Refused),
}

/// One thread's memory for requests.
pub struct LogIoContext {
    packing: Packing,
    unpacked: Unpacked,
    fills: Fills,
    found: Vec<Found>,
    coalescer: ReadCoalescer,
    block: Box<[u8; BLOCK_SIZE]>,
}

impl LogIoContext {
    /// Memory for one thread; what it writes is compressed as `algorithm` says.
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

/// What a log means for its backing store.
pub struct Standing {
    /// Its counters.
    pub stats: LogStats,
    /// Blocks that cannot be read any more, as first block and count.
    pub lost: Vec<(u64, u64)>,
    /// The backing store's identity, if the superblock of a failed log could not take it before
    /// the backing store was changed.
    pub unmarked: Option<[u8; IDENTITY]>,
}

/// Hears how a log stands.
pub type Listener = Box<dyn Fn(&Standing) + Send + Sync>;

/// A log, its backing store, and their state.
pub struct Logged {
    pub(super) core: Arc<Mutex<Core>>,
    /// Something was completed, or there is something to do.
    pub(super) events: EventCount,
    /// Chunks below this are durable; never ahead of the core.
    pub(super) durable: AtomicU64,
    pub(super) log: Arc<dyn Drive>,
    pub(super) backing: Arc<dyn Drive>,
    stripes: Vec<Mutex<()>>,
    stopping: AtomicBool,
    /// Milliseconds since `began` at the last request.
    last_request_ms: AtomicU64,
    began: Instant,
    damaged_reads: AtomicU64,
    pub(super) written_back: AtomicU64,
    /// What identifies the backing store.
    watched: Watched,
    /// Lets writeback give way to reads of the backing store.
    writeback_throttle: WritebackThrottle,
    /// Lets writers of a nearly full log wait a little instead of long.
    write_throttle: WriteThrottle,
    /// Hears what became of the backing store, when a window begins and ends.
    listener: OnceLock<Listener>,
    /// How often blocks were read.
    frequency: FrequencySketch,
    /// Blocks that were read twice from below the log.
    wanted: Mutex<Vec<u64>>,
    /// Whether anything is kept in the log that was read.
    keeps: AtomicBool,
    /// Ends the sleep of the thread that writes what no request waits for.
    waker: OnceLock<Waker>,
    /// Windows that have failed in a row.
    pub(super) failures: AtomicU32,
    /// What a drive said when a window failed last.
    pub(super) failure: Mutex<Option<DriveError>>,
}

impl Logged {
    /// A log that was opened, with its drives.
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
            watched: Watched::default(),
            writeback_throttle: WritebackThrottle::new(MOVERS),
            write_throttle: WriteThrottle::default(),
            listener: OnceLock::new(),
            waker: OnceLock::new(),
            failures: AtomicU32::new(0),
            failure: Mutex::new(None),
        }
    }

    pub(super) fn log_drive(&self) -> Arc<dyn Drive> {
        Arc::clone(&self.log)
    }

    pub(super) fn wakes(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    /// Says what became of a command of the core.
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

    pub(super) fn writeback_throttle(&self) -> &WritebackThrottle {
        &self.writeback_throttle
    }

    pub(super) fn write_throttle(&self) -> &WriteThrottle {
        &self.write_throttle
    }

    /// A window has gone so much of its way.
    pub(super) fn advance(&self, gone: u64) {
        if self.write_throttle.advance(gone) {
            self.events.notify();
        }
    }

    /// Sets what hears what becomes of the backing store, before it changes and after.
    pub fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }

    /// How the log stands now.
    pub fn standing(&self) -> Standing {
        let stats = self.core.lock().stats();
        Standing { stats, lost: self.lost(), unmarked: self.watched.unmarked() }
    }

    /// Tells the listener how the log stands.
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

    /// Says what the superblock has of the backing store's identity: from now on it is kept true.
    /// `drive` is the backing store itself.
    pub fn watch(&self, identity: Identity, id: StableId, drive: Arc<dyn Drive>) {
        self.watched.begin(identity, id, drive);
    }

    /// Notes on the log's drive what identifies the backing store.
    ///
    /// # Errors
    /// The log has failed.
    fn identify(&self, identity: Option<[u8; IDENTITY]>) -> Result<(), Fault> {
        let Some(identity) = identity else { return Ok(()) };
        self.core.lock().identify(identity);
        // Of a log that has failed it is tried: to save its content is worth more.
        self.settle(Awaited::Commit, |core| core.is_written().then_some(Ok(())))
    }

    /// The parts of the backing store that its identity has samples of, as blocks.
    pub(super) fn samples(&self) -> Vec<Range<u64>> {
        self.watched.samples()
    }

    /// Before the backing store changes where `changes` says: the identity in the log forgets it.
    ///
    /// # Errors
    /// The log has failed.
    pub(super) fn forget(&self, changes: impl Fn(&Range<u64>) -> bool) -> Result<(), Fault> {
        let identity = self.watched.forget(changes);
        let identified = self.identify(identity);
        if identity.is_some() && self.core.lock().is_failed() {
            // The superblock may not have it. This machine's record then does.
            self.watched.set_unmarked();
            self.note_backing();
        }
        identified
    }

    /// After a change of the backing store is durable: the superblock that moves the tail has the
    /// dropped samples again.
    pub(super) fn remember(&self) {
        if let Some(identity) = self.watched.remember() {
            self.core.lock().note_identity(identity);
        }
    }

    /// When nothing will be written to the backing store any more: its identity as it is now.
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

    /// Up to so many blocks that were read twice from below the log.
    pub(super) fn take_wanted(&self, most: usize) -> Vec<u64> {
        let mut wanted = self.wanted.lock();
        let some = wanted.len().min(most);
        wanted.drain(..some).collect()
    }

    /// Those are still wanted.
    pub(super) fn want(&self, mut blocks: Vec<u64>) {
        let mut wanted = self.wanted.lock();
        blocks.truncate(WANTED.saturating_sub(wanted.len()));
        wanted.append(&mut blocks);
    }

    /// Percent of the log that what was read may take from now on.
    pub fn keep(&self, percent: u64) {
        self.core.lock().set_keep_percent(percent);
        self.keeps.store(percent > 0, Ordering::Relaxed);
    }

    /// Blocks were read, from below the log or from it.
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

    /// The core, for questions.
    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// Blocks that cannot be read any more, as first block and count. The core is asked in steps,
    /// so that others have their turn between them.
    pub fn lost(&self) -> Vec<(u64, u64)> {
        let mut lost = Lost::default();
        while self.core.lock().more_lost(&mut lost) {}
        lost.ranges()
    }

    /// Reads of damaged blocks.
    pub fn damaged_reads(&self) -> u64 {
        self.damaged_reads.load(Ordering::Relaxed)
    }

    /// Bytes that writeback wrote to the backing store.
    pub fn written_back_bytes(&self) -> u64 {
        self.written_back.load(Ordering::Relaxed)
    }

    pub(super) fn now_ms(&self) -> u64 {
        (now() - self.began).as_millis() as u64
    }

    pub(super) fn now_us(&self) -> u64 {
        (now() - self.began).as_micros() as u64
    }

    /// How long there has been no request.
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
            // The writer holds the stripe until it has filled the block in; longer, if it then
            // waits for room.
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

    /// Forgets what was located.
    fn release(&self, io: &LogIoContext) {
        let mut core = self.core.lock();
        for found in &io.found {
            if let Found::Log(reading) = found {
                core.release(reading);
            }
        }
    }

    /// Gets everything that was located.
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

    /// Gets what was located: one block, some of a cluster, or a run of them from the backing
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
            // Only a thread that holds the stripe fills.
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
            // It was fetched with the block before.
            Found::Before(_) => {}
        }
        Ok(())
    }

    /// Reads a payload from the log's drive: that of the `i`-th block, and of those that share it.
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

    /// Reads what was not where it was located. Its segment may have had to go at once, and its
    /// room is used again: then the blocks are somewhere else. They are looked up again, because
    /// what was damaged there is lost by now, and the backing store has something older.
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

    /// Nothing durable could say any more that a lost block has been written.
    fn refuse_lost(&self, first: u64, count: u64) -> Result<(), Fault> {
        let lost = self.core.lock().first_lost(first, count);
        lost.map_or(Ok(()), |block| Err(self.damaged(block)))
    }

    /// Writes blocks that were encoded, whose stripe the caller holds; `false` if they must go to
    /// the backing store.
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

    /// Reserves room for those from the one on that comes after what is `done`, and fills it: as
    /// many as there is room for, but not none. How far it came, and whether chunks were closed.
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
                    Kind::Zeros => core.discard(block, 1).map(|_| true),
                    Kind::Cluster => core.reserve_cluster(block, sized, fills),
                    _ => core.reserve(block, kind, sized, fills).map(|()| true),
                };
                match reserved {
                    Ok(true) => *done += count,
                    Ok(false) => break,
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
            // that.
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
        // A read-modify-write of a block in the range must come before or after, not around.
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

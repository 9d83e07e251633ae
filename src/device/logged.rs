//! A volume whose changes go to a durable log before they reach the backing store.
//!
//! Invariants: a write is acknowledged when it is in the log's memory, a flush when the log's drive
//! has all writes before it; every request is counted once. A request is cut at groups of 16
//! blocks, which the contract allows.

use super::contract::{Channel, Device, IoError, LogControl, Serving, Tuning};
use super::counters::{Accounts, Counters};
use super::drives::{self, Alarm};
use super::front::{Engine, Front};
use super::record::{Book, Record, common};
use super::split::{Piece, Split, each, each_mut};
use super::stored;
use crate::BLOCK_SIZE;
use crate::cache::Cached;
use crate::codec::Algorithm;
use crate::error::{Context, Result};
use crate::log::{
    self, Fault, Inspection, Kept, LogIoContext, LogReadDrive, Logged, OpenError, Policy, Runtime,
    Standing,
};
use crate::media::{self, Action, Drive, Failures, Identity, MadeFor, Memory, Ring, StableId};
use crate::object::ObjectDrive;
use crate::stats::drives::Role;
use crate::stats::{Latencies, LogStats, Stats};
use crate::sync::{Mutex, ready_to_wait};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// The read cache reads ahead after this many blocks (2 MiB) in a row: few requests are as long.
const LONG_BLOCKS: u64 = 512;

/// Settings of a logged volume.
#[derive(Clone, Copy, Debug, Default)]
pub struct LogOptions {
    /// How blocks are compressed.
    pub algorithm: Algorithm,
    /// Acknowledge a write when it is durable, not when it is in memory.
    pub sync: bool,
    /// A flush waits until the store of objects has it.
    pub sync_remote: bool,
    /// Memory and commits of the log.
    pub log: log::Options,
    /// When and how much is written back.
    pub policy: Policy,
    /// Open the log although durable chunks are missing; the blocks in them read as they were
    /// before.
    pub accept_loss: bool,
    /// Memory for copies of the backing store's blocks, in bytes; 0: none.
    pub ram_limit: u64,
    /// The highest limit that [`Serving::set_ram_limit`] accepts, in bytes; 0: no copies.
    pub ram_limit_max: u64,
}

/// Reads the change counter of a backing store.
pub type CountChanges = Box<dyn Fn() -> media::ChangeCounter + Send>;

/// A block device over a log and a backing store.
pub struct LogVolume {
    logged: Arc<Logged>,
    /// The read cache of the backing store, if there is one.
    cache: Option<Arc<Cached>>,
    /// Only grows.
    blocks: AtomicU64,
    discards: bool,
    options: LogOptions,
    runtime: Mutex<Option<Runtime>>,
    accounts: Accounts,
    report: log::Report,
    /// Parts of requests that read (`[0]`) and wrote (`[1]`) less than a block.
    partial: [AtomicU64; 2],
    /// This machine's record of the backing store, and the file that holds it.
    record: Mutex<Option<(Book, Arc<Mutex<Record>>)>>,
    /// Lost blocks that the user has noted, in order.
    noted: Arc<Mutex<Vec<(u64, u64)>>>,
    /// Called when blocks turn out to be lost.
    alarm: Arc<OnceLock<Alarm>>,
    drives: [(Role, Arc<dyn Drive>); 2],
    /// Reads the backing store's change counters when the volume closes.
    count_changes: Mutex<Option<CountChanges>>,
    /// The backing store, if it is a store of objects.
    object: OnceLock<Arc<ObjectDrive>>,
}

impl LogVolume {
    /// Opens the log on `log`, which belongs to `backing`, and starts its threads. `epoch` is a
    /// random number.
    ///
    /// # Errors
    /// See [`log::open`]; or a thread cannot be started.
    pub fn open(
        log: Arc<dyn Drive>,
        backing: Arc<dyn Drive>,
        options: LogOptions,
        epoch: u64,
    ) -> std::result::Result<Arc<Self>, OpenError> {
        Self::open_in(log, backing, options, epoch, &Memory::default())
    }

    /// As [`LogVolume::open`], with `memory` for what is not durable. Takes over what another
    /// process left there.
    ///
    /// # Errors
    /// As [`LogVolume::open`]; or `memory` does not belong to this state of the log.
    pub fn open_in(
        log: Arc<dyn Drive>,
        backing: Arc<dyn Drive>,
        options: LogOptions,
        epoch: u64,
        memory: &Memory,
    ) -> std::result::Result<Arc<Self>, OpenError> {
        let kept = Kept::new(memory).map_err(|e| OpenError::Memory(e.to_string()))?;
        let found = log::inspect(&*log, options.accept_loss, false)?;
        Self::open_found(found, (log, backing), options, epoch, kept)
    }

    /// As [`LogVolume::open_in`], with a log that was inspected already and not written to since.
    ///
    /// # Errors
    /// The drive fails.
    pub(super) fn open_found(
        mut found: Inspection,
        (log, mut backing): (Arc<dyn Drive>, Arc<dyn Drive>),
        options: LogOptions,
        epoch: u64,
        kept: Kept,
    ) -> std::result::Result<Arc<Self>, OpenError> {
        let fitted = options.log.fitted(&found.superblock);
        found.superblock.at_s = crate::stats::time::now();
        if found.superblock.spent {
            // The new superblock removes the mark `spent`. Writes that bypassed the spent log are
            // only in the backing store, and no flush of the log covers them.
            backing.flush()?;
        }
        let (core, report) = found.open(&*log, fitted, epoch, kept)?;
        let blocks = core.blocks();
        let core = Arc::new(Mutex::new(core));
        backing = Arc::new(LogReadDrive::new(Arc::clone(&core), Arc::clone(&log), backing));
        let mut cache = None;
        if options.ram_limit_max > 0 {
            let cached = Cached::over(backing, options.ram_limit, options.ram_limit_max);
            let cached = cached.map_err(|e| OpenError::Memory(e.to_string()))?;
            let cached = cached.in_parts_of(LONG_BLOCKS);
            backing = Arc::clone(&cached) as Arc<dyn Drive>;
            cache = Some(cached);
        }
        let discards = backing.zeroes_quickly();
        let drives = [(Role::Log, Arc::clone(&log)), (Role::Backing, Arc::clone(&backing))];
        Ok(Arc::new(Self {
            logged: Arc::new(Logged::new(core, log, backing)),
            cache,
            blocks: AtomicU64::new(blocks),
            discards,
            options,
            runtime: Mutex::new(None),
            accounts: Accounts::default(),
            report,
            partial: Default::default(),
            record: Mutex::new(None),
            noted: Arc::default(),
            alarm: Arc::default(),
            drives,
            count_changes: Mutex::new(None),
            object: OnceLock::new(),
        }))
    }

    /// Starts the threads that commit and write back, and waits until the log has taken what
    /// another process left in memory. The log's drive is read and written through `ring`, which
    /// must belong to that drive; without it, by threads.
    ///
    /// # Errors
    /// A thread cannot be started; or the log fails before it has taken what is in memory, which
    /// then stays there.
    pub fn start(&self, ring: Option<Ring>) -> Result<()> {
        let LogOptions { policy, algorithm, sync_remote, .. } = self.options;
        if sync_remote {
            self.logged.expect_remote();
        }
        *self.runtime.lock() = Some(Runtime::start(&self.logged, policy, algorithm, ring)?);
        self.logged.recommit().context("what was in memory cannot be brought to the log")
    }

    /// Sets the function that reads the backing store's change counters when the volume closes.
    /// They show later whether the backing store was written to since.
    pub fn set_change_counter(&self, count: CountChanges) {
        *self.count_changes.lock() = Some(count);
    }

    /// Notes that the backing store is a store of objects, which may get another owner.
    pub(super) fn set_object(&self, object: Arc<ObjectDrive>) {
        let _ = self.object.set(object); // called once
        self.logged.note_commits(stored::noting);
    }

    /// Refuses a request of a volume that has another owner by now: the log would keep a change,
    /// and never bring it anywhere.
    fn refuse_over(&self, action: Action, at: u64) -> std::result::Result<(), IoError> {
        let Some(object) = self.object.get() else { return Ok(()) };
        object.refuse_over(action, at).map_err(|e| IoError::Drive(e.errno))
    }

    /// Tells the log which identity of the backing store is in its superblock; from now on the log
    /// keeps it true. `drive` is the backing store itself.
    pub(super) fn watch(&self, identity: Identity, id: StableId, drive: Arc<dyn Drive>) {
        self.logged.watch(identity, id, drive);
    }

    /// Keeps this machine's record of the backing store true from now on.
    pub(super) fn keep(&self, book: Book, record: Record) -> Result<()> {
        let first = record.after(&self.logged.standing());
        book.save(&first)?;
        self.noted.lock().clone_from(&first.noted);
        let record = Arc::new(Mutex::new(first));
        let (listener, last) = (book.clone(), Arc::clone(&record));
        let still_noted = self.watch_losses();
        self.logged.listen(Box::new(move |standing| {
            let mut last = last.lock();
            let now = Record { noted: still_noted(&standing.lost), ..last.after(standing) };
            // After a failed save the older record stays, as after a crash.
            if now != *last && listener.save(&now).is_ok() {
                *last = now;
            }
        }));
        *self.record.lock() = Some((book, record));
        Ok(())
    }

    /// Returns a function of the lost blocks. It calls the alarm when there are more than before,
    /// and returns the noted ones. A block written since is no longer noted: it may be lost again.
    fn watch_losses(&self) -> impl Fn(&[(u64, u64)]) -> Vec<(u64, u64)> + Send + Sync + use<> {
        let (noted, alarm) = (Arc::clone(&self.noted), Arc::clone(&self.alarm));
        let known = AtomicU64::new(0);
        move |lost| {
            let count = lost.iter().map(|(_, count)| count).sum();
            if count > known.swap(count, Ordering::Relaxed)
                && let Some(alarm) = alarm.get()
            {
                alarm();
            }
            let mut noted = noted.lock();
            *noted = common(&noted, lost);
            noted.clone()
        }
    }

    /// What recovery found.
    pub fn report(&self) -> &log::Report {
        &self.report
    }

    /// Starts or stops to write back at once all that the log holds now. The backing store has it
    /// when the log's tail reaches the returned segment.
    pub fn drain(&self, on: bool) -> u64 {
        self.runtime.lock().as_ref().map_or(0, |runtime| runtime.drain(on))
    }

    /// Makes everything durable and ends the threads. The volume must not be used after this.
    ///
    /// # Errors
    /// The log has failed.
    pub fn close(&self) -> std::result::Result<(), Fault> {
        let runtime = self.runtime.lock().take();
        let count = self.count_changes.lock().take();
        let count = move || count.as_ref().map(|count| count()).unwrap_or_default();
        let closed = runtime.map_or(Ok(()), |runtime| runtime.close(&count));
        if let Some((book, record)) = self.record.lock().take() {
            let standing = self.logged.standing();
            let noted = common(&self.noted.lock(), &standing.lost);
            let mut now = Record { noted, ..record.lock().after(&standing) };
            now.dirty &= !(standing.stats.clean && standing.lost.is_empty());
            let core = self.logged.core();
            if core.is_closed() {
                // Both copies of that superblock are durable.
                let sb = core.superblock();
                (now.generation, now.at_unix_s) = (sb.generation, sb.at_s);
            }
            drop(core);
            // If this fails, the older record stays, which is safe: it says that the log may hold
            // data.
            let _ = book.save(&now);
        }
        if let Some(object) = self.object.get() {
            // The log keeps what the store has not got.
            let _ = object.close();
        }
        closed
    }

    /// The failures of the volume's drives.
    fn failures(&self) -> impl Iterator<Item = (Role, &Failures)> {
        self.drives.iter().filter_map(|(role, drive)| Some((*role, drive.failures()?)))
    }

    /// All counters, now. Fields of a memory engine are 0.
    pub fn stats(&self) -> Stats {
        let Standing { stats: log, lost, .. } = self.logged.standing();
        let [written_back_bytes, zeroed_back_bytes] = self.logged.brought_back();
        let log = LogStats {
            reads_partial: self.partial[0].load(Ordering::Relaxed),
            writes_partial: self.partial[1].load(Ordering::Relaxed),
            written_back_bytes,
            zeroed_back_bytes,
            ..log
        };
        let object = self.object.get().map(|object| object.stats());
        let kept = object.as_ref().map_or(0, |object| object.index_bytes + object.waiting_bytes);
        Stats {
            disk_size_bytes: self.size(),
            mem_used_bytes: kept,
            object,
            corrupt_records: self.logged.damaged_reads(),
            log: Some(log),
            log_loss_noted: !lost.is_empty() && common(&self.noted.lock(), &lost) == lost,
            log_lost_blocks: lost,
            drives: self.failures().filter_map(|(role, f)| drives::failing(role, f)).collect(),
            not_exclusive: self.cache.as_ref().and_then(|cache| cache.unfollowed()),
            ..self.accounts.totals().stats()
        }
        .with_cache(self.cache.as_ref().map(|cache| cache.stats()))
    }
}

impl From<Fault> for IoError {
    fn from(fault: Fault) -> Self {
        match fault {
            Fault::Drive(e) => Self::Drive(e.errno),
            Fault::Damaged(block) => Self::Corrupt(block),
            Fault::Failed => Self::Drive(5), // EIO
        }
    }
}

impl Device for LogVolume {
    fn size(&self) -> u64 {
        self.blocks.load(Ordering::Acquire) * BLOCK
    }

    /// A discarded block must read as zeros, also in the backing store alone. If the drive can only
    /// write these zeros, a discard does more harm than good.
    fn discards(&self) -> bool {
        self.discards
    }

    fn waits(&self) -> bool {
        true
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        ready_to_wait();
        let counters = self.accounts.enter();
        let io = LogIoContext::new(self.options.algorithm);
        Box::new(Front::new(LogChannel { volume: self, io }, counters))
    }
}

impl Serving for LogVolume {
    fn read_cache(&self) -> Option<&Arc<Cached>> {
        self.cache.as_ref()
    }

    fn heed(&self, alarm: &Alarm) {
        self.failures().for_each(|(_, failures)| drives::heed(failures, alarm));
        let _ = self.alarm.set(Arc::clone(alarm)); // the first one stays
    }

    fn stats(&self) -> Stats {
        self.stats()
    }

    fn latencies(&self) -> Latencies {
        self.accounts.totals().latencies()
    }

    fn made_for(&self) -> Option<MadeFor> {
        let (mut io, block) = (LogIoContext::new(self.options.algorithm), BLOCK_SIZE as u64);
        MadeFor::of(self.size(), &mut |range| {
            let blocks = range.start / block..range.end.div_ceil(block);
            let mut bytes = Vec::new();
            for number in blocks.clone() {
                let mut whole = [[0; BLOCK_SIZE]];
                self.logged.read(&mut io, number, &mut whole).ok()?;
                bytes.extend_from_slice(&whole[0]);
            }
            let from = (range.start - blocks.start * block) as usize;
            bytes.get(from..from + (range.end - range.start) as usize).map(<[u8]>::to_vec)
        })
    }

    fn set_ram_limit(&self, bytes: u64) -> Result<()> {
        match &self.cache {
            Some(cache) => cache.set_limit(bytes),
            None => Err(super::contract::no_copies()),
        }
    }

    /// Only in a store: a drive has its own size. The store comes first, then the log's superblock,
    /// then requests: whenever the daemon dies, the log is no larger than its store, which is what
    /// opening asks of it, and no change lies beyond the end of the store.
    fn grow(&self, size: u64) -> Result<()> {
        let object = self.object.get().ok_or_else(super::contract::fixed_size)?;
        object.grow(size)?;
        self.logged.grow(size / BLOCK);
        self.blocks.store(size / BLOCK, Ordering::Release);
        Ok(())
    }

    fn close(&self) -> Result<()> {
        self.close().context("the log could not be closed in order")
    }

    fn log(&self) -> Option<&dyn LogControl> {
        Some(self)
    }
}

impl LogControl for LogVolume {
    fn tune(&self, tuning: &Tuning) {
        self.logged.core().set_idle_ms(tuning.commit_interval_ms);
        self.logged.keep(tuning.keep_percent);
        if let Some(runtime) = &*self.runtime.lock() {
            runtime.set_policy(tuning.policy);
        }
    }

    fn drain(&self, on: bool) -> u64 {
        self.drain(on)
    }

    fn secure(&self) -> Result<()> {
        self.logged.flush().context("what was written can't be made durable")
    }

    fn note_loss(&self) -> Result<u64> {
        let kept = self.record.lock();
        // While the record is locked, the listener leaves the note alone.
        let mut kept = kept.as_ref().map(|(book, record)| (book, record.lock()));
        let lost = self.logged.standing().lost;
        if let Some((book, record)) = &mut kept {
            let now = Record { noted: lost.clone(), ..Record::clone(record) };
            book.save(&now)?;
            **record = now;
        }
        let count = lost.iter().map(|(_, count)| count).sum();
        *self.noted.lock() = lost;
        Ok(count)
    }
}

/// One thread's access to a logged volume.
struct LogChannel {
    volume: Arc<LogVolume>,
    io: LogIoContext,
}

impl Engine for LogChannel {
    fn size(&self) -> u64 {
        self.volume.size()
    }

    fn discards(&self) -> bool {
        self.volume.discards
    }

    fn is_sync(&self) -> bool {
        self.volume.options.sync
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> std::result::Result<(), IoError> {
        let (volume, io) = (&self.volume, &mut self.io);
        volume.refuse_over(Action::Read, offset)?;
        let logged = &volume.logged;
        each_mut(offset, buf, |piece, now| match piece {
            Piece::Blocks { first, .. } => {
                Ok(logged.read(io, first, now.as_chunks_mut::<BLOCK_SIZE>().0)?)
            }
            Piece::Part { block, from, len } => {
                volume.partial[0].fetch_add(1, Ordering::Relaxed);
                let mut whole = [0; BLOCK_SIZE];
                logged.read(io, block, std::slice::from_mut(&mut whole))?;
                now.copy_from_slice(&whole[from..from + len]);
                Ok(())
            }
        })
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> std::result::Result<(), IoError> {
        let (volume, io) = (&self.volume, &mut self.io);
        volume.refuse_over(Action::Write, offset)?;
        let logged = &volume.logged;
        each(offset, data, |piece, now| match piece {
            Piece::Blocks { first, .. } => {
                Ok(logged.write(io, first, now.as_chunks::<BLOCK_SIZE>().0)?)
            }
            Piece::Part { block, from, len } => {
                volume.partial[1].fetch_add(1, Ordering::Relaxed);
                Ok(logged.modify(io, block, |b| b[from..from + len].copy_from_slice(now))?)
            }
        })
    }

    fn zero(&mut self, offset: u64, len: u64, _keep: bool) -> std::result::Result<(), IoError> {
        self.volume.refuse_over(Action::Zero, offset)?;
        let logged = &self.volume.logged;
        let Split { blocks, parts } = Split::new(offset, len);
        for (block, bytes) in parts.into_iter().flatten() {
            logged.modify(&mut self.io, block, |b| b[bytes.clone()].fill(0))?;
        }
        match blocks.is_empty() {
            true => Ok(()),
            false => Ok(logged.discard(blocks.start, blocks.end - blocks.start)?),
        }
    }

    fn flush(&mut self) -> std::result::Result<(), IoError> {
        self.volume.refuse_over(Action::Flush, 0)?;
        match self.volume.options.sync_remote {
            true => Ok(self.volume.logged.flush_remote()?),
            false => Ok(self.volume.logged.flush()?),
        }
    }

    fn leave(&mut self, counters: &Arc<Counters>) {
        self.volume.accounts.leave(counters);
    }
}

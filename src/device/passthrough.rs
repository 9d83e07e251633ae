//! A passthrough volume: it passes requests to its backing store, with or without a read cache.
//!
//! Invariants: the drive itself serves the whole request before the request returns; a flush
//! flushes the drive. A write of a part of a block changes no other byte of the block, and reaches
//! the drive as sectors if the drive can take them: such a write locks its stripe exclusively.
//! Writes of whole blocks lock it shared.

use super::contract::{Channel, Device, IoError, Serving, fixed_size};
use super::counters::{Accounts, Counters};
use super::drives::{self, Alarm};
use super::front::{Engine, Front};
use super::object_setup::{self, StoreOptions};
use super::record::{Book, Record};
use super::split::Split;
use crate::BLOCK_SIZE;
use crate::cache::Cached;
use crate::error::{Context, Error, Result};
use crate::log::{self, Kept};
use crate::media::{Access, Action, Drive, DriveError, FileDrive, Memory};
use crate::object::{ObjectDrive, VolumeFound};
use crate::remedy;
use crate::stats::drives::Role;
use crate::stats::{Latencies, Stats};
use crate::sync::ready_to_wait;
use parking_lot::{RwLock, RwLockReadGuard};
use std::ops::Range;
use std::path::Path;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;
const STRIPES: usize = 64;
/// Bytes of a stripe: neighbouring bytes under one lock.
const STRIPE: u64 = 1 << 20;

/// A passthrough volume.
pub struct PassthroughVolume {
    backing: Arc<dyn Drive>,
    /// `backing` again, if it is a read cache.
    cache: Option<Arc<Cached>>,
    /// The drive below, if it is a store of objects.
    object: Option<Arc<ObjectDrive>>,
    discards: bool,
    stripes: Vec<RwLock<()>>,
    accounts: Accounts,
}

impl PassthroughVolume {
    /// The size of a passthrough volume over `backing`, in bytes.
    ///
    /// # Errors
    /// The drive cannot be read, or its size is no multiple of 4096.
    pub fn size_of(backing: &Path) -> Result<u64> {
        let drive = FileDrive::open(backing, Access::ReadOnly)?;
        drive.require_whole()?;
        Ok(drive.size())
    }

    /// Opens `backing` exclusively, with a read cache. `memory` is what a log of this volume would
    /// use; it must be empty. `state` is the directory with this machine's records of backing
    /// stores. `ram_limit` is the limit of the read cache and `most` the highest limit that it can
    /// get, both in bytes. With `abandon` it goes on without a log that is gone, and the second
    /// result says what the store is then.
    ///
    /// # Errors
    /// The drive cannot be used; or its log, or `memory`, holds or may hold what it lacks; or with
    /// `abandon` it lacks nothing.
    pub fn open(
        backing: &Path,
        memory: &Memory,
        state: &Path,
        (ram_limit, most): (u64, u64),
        abandon: bool,
    ) -> Result<(Arc<Self>, Option<String>)> {
        refuse_kept(backing, memory)?;
        let drive = FileDrive::take(backing, memory.is_inherited())?;
        let book = Book::of(state, &drive);
        book.refuse_beside(backing)?;
        let given_up = match abandon {
            true => Some(give_up(backing, &book)?),
            false => refuse_lacking(backing, &book).map(|()| None)?,
        };
        Ok((Self::cached(Cached::over(Arc::new(drive), ram_limit, most)?), given_up))
    }

    /// Takes over a volume in a store of objects, with the other arguments of [`Self::open`].
    /// `progress` hears the number of objects that were read.
    ///
    /// # Errors
    /// As [`Self::open`]; or the store fails, or the volume in it is in use, damaged, or another
    /// one.
    pub fn in_store(
        options: &StoreOptions,
        memory: &Memory,
        state: &Path,
        (ram_limit, most): (u64, u64),
        progress: &dyn Fn(u64),
    ) -> Result<Arc<Self>> {
        refuse_kept(&options.place, memory)?;
        let approve = |found: &VolumeFound| {
            refuse_lacking(&options.place, &Book::of_volume(state, found.volume))
        };
        let drive = object_setup::open(options, &approve, progress)?;
        let cache = Cached::over(Arc::clone(&drive) as Arc<dyn Drive>, ram_limit, most)?;
        Ok(Self::made(Arc::clone(&cache) as Arc<dyn Drive>, Some(cache), Some(drive)))
    }

    /// A volume over any drive, without a read cache.
    pub fn over(backing: Arc<dyn Drive>) -> Arc<Self> {
        Self::made(backing, None, None)
    }

    /// A volume over a read cache.
    pub fn cached(cache: Arc<Cached>) -> Arc<Self> {
        Self::made(Arc::clone(&cache) as Arc<dyn Drive>, Some(cache), None)
    }

    fn made(
        backing: Arc<dyn Drive>,
        cache: Option<Arc<Cached>>,
        object: Option<Arc<ObjectDrive>>,
    ) -> Arc<Self> {
        Arc::new(Self {
            discards: backing.zeroes_quickly(),
            backing,
            cache,
            object,
            stripes: (0..STRIPES).map(|_| RwLock::default()).collect(),
            accounts: Accounts::default(),
        })
    }

    /// All counters, now. Fields of a memory engine or a log are 0.
    pub fn stats(&self) -> Stats {
        let failing = |failures| drives::failing(Role::Backing, failures);
        let object = self.object.as_ref().map(|object| object.stats());
        let kept = object.as_ref().map_or(0, |object| object.index_bytes + object.waiting_bytes);
        let stats = Stats {
            disk_size_bytes: self.backing.size(),
            drives: self.backing.failures().and_then(failing).into_iter().collect(),
            mem_used_bytes: kept,
            object,
            not_exclusive: self.cache.as_ref().and_then(|cache| cache.unfollowed()),
            ..self.accounts.totals().stats()
        };
        stats.with_cache(self.cache.as_ref().map(|cache| cache.stats()))
    }

    /// Locks the stripes of a range in shared mode, as every writer of whole blocks does. The range
    /// has at least one byte.
    fn share(&self, bytes: &Range<u64>) -> Vec<RwLockReadGuard<'_, ()>> {
        let all = bytes.start / STRIPE..=(bytes.end - 1) / STRIPE;
        let mut stripes: Vec<usize> =
            all.take(STRIPES).map(|stripe| stripe as usize % STRIPES).collect();
        stripes.sort_unstable();
        stripes.into_iter().map(|stripe| self.stripes[stripe].read()).collect()
    }

    /// Refuses a request of a volume that has another owner by now.
    fn refuse_over(&self, action: Action, at: u64) -> Result<(), DriveError> {
        self.object.as_ref().map_or(Ok(()), |object| object.refuse_over(action, at))
    }

    /// Writes a part of a block, with its stripe locked exclusively.
    fn write_part(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        let _alone = self.stripes[(at / STRIPE) as usize % STRIPES].write();
        self.backing.write_part(at, data)
    }
}

impl Device for PassthroughVolume {
    fn size(&self) -> u64 {
        self.backing.size()
    }

    fn discards(&self) -> bool {
        self.discards
    }

    fn waits(&self) -> bool {
        true
    }

    fn writes_through(&self) -> bool {
        true
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        ready_to_wait();
        let counters = self.accounts.enter();
        Box::new(Front::new(
            PassthroughChannel { volume: self, page: Box::new([0; BLOCK_SIZE]) },
            counters,
        ))
    }
}

impl Serving for PassthroughVolume {
    fn read_cache(&self) -> Option<&Arc<Cached>> {
        self.cache.as_ref()
    }

    fn stats(&self) -> Stats {
        self.stats()
    }

    fn latencies(&self) -> Latencies {
        self.accounts.totals().latencies()
    }

    fn set_ram_limit(&self, bytes: u64) -> Result<()> {
        match &self.cache {
            Some(cache) => cache.set_limit(bytes),
            None => Err(super::contract::no_copies()),
        }
    }

    fn grow(&self, size: u64) -> Result<()> {
        match &self.object {
            Some(object) => object.grow(size),
            None => Err(fixed_size()),
        }
    }

    fn heed(&self, alarm: &Alarm) {
        if let Some(failures) = self.backing.failures() {
            drives::heed(failures, alarm);
        }
    }

    fn close(&self) -> Result<()> {
        self.backing.close().context("the backing store could not be flushed")
    }
}

/// Refuses a backing store of which memory has what a log has not got.
fn refuse_kept(backing: &Path, memory: &Memory) -> Result<()> {
    match Kept::new(memory)?.is_empty() {
        true => Ok(()),
        false => Err(Error::would_lose(format!(
            "{} lacks what is in memory of its log",
            backing.display()
        ))
        .hint(remedy::MEMORY_OF_LOG)),
    }
}

/// Refuses a backing store whose log holds what it lacks.
fn refuse_lacking(backing: &Path, book: &Book) -> Result<()> {
    match book.load()? {
        Some(record) if record.dirty => Err(Error::would_lose(format!(
            "{} lacks what its log on {} holds",
            backing.display(),
            record.log.display()
        ))
        .hint(format!(
            "{} ({})",
            remedy::LOG_MISSED_PASSTHROUGH.on(backing, None),
            record.state()
        ))),
        _ => Ok(()),
    }
}

/// Gives up the log that holds what a backing store lacks, and remembers that: it is refused later.
/// Returns what the store is then, in words.
///
/// # Errors
/// It lacks nothing, or the log is there.
fn give_up(backing: &Path, book: &Book) -> Result<String> {
    let shown = backing.display();
    let Some(record) = book.load()?.filter(|record| record.dirty) else {
        return Err(
            Error::usage(format!("{shown} lacks nothing of a log")).hint("leave out --discard-log")
        );
    };
    let log = record.log.display();
    let there = FileDrive::open(&record.log, Access::ReadOnly).ok();
    let there = there.and_then(|drive| log::read_superblock(&drive).ok());
    if there.is_some_and(|(sb, ..)| sb.uuid == record.uuid) {
        return Err(Error::would_lose(format!(
            "the log on {log} is there, and holds what {shown} lacks"
        ))
        .hint("bring the volume up with that --log; `ztier restart NAME --log none` drains it"));
    }
    let text = format!("{shown} goes on without what its log on {log} held: {}", record.state());
    let gone = record.seen();
    book.save(&Record { dirty: false, ..record.without(gone) })?;
    Ok(text)
}

/// One thread's access to a passthrough volume.
struct PassthroughChannel {
    volume: Arc<PassthroughVolume>,
    page: Box<[u8; BLOCK_SIZE]>,
}

/// The place of `bytes` in a buffer whose first byte is at `offset`.
fn within(offset: u64, bytes: &Range<u64>) -> Range<usize> {
    (bytes.start - offset) as usize..(bytes.end - offset) as usize
}

impl PassthroughChannel {
    fn read_parts(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        let split = Split::new(offset, buf.len() as u64);
        let backing = &self.volume.backing;
        for (block, bytes) in split.parts.iter().flatten() {
            let at = block * BLOCK;
            backing.read(at, &mut self.page[..])?;
            let part = at + bytes.start as u64..at + bytes.end as u64;
            buf[within(offset, &part)].copy_from_slice(&self.page[bytes.clone()]);
        }
        let Some(whole) = split.whole() else { return Ok(()) };
        backing.read(whole.start, &mut buf[within(offset, &whole)])
    }

    fn write_parts(&mut self, offset: u64, data: &[u8]) -> Result<(), DriveError> {
        let split = Split::new(offset, data.len() as u64);
        for (block, bytes) in split.parts.iter().flatten() {
            let at = block * BLOCK + bytes.start as u64;
            let part = at..at + bytes.len() as u64;
            self.volume.write_part(at, &data[within(offset, &part)])?;
        }
        let Some(whole) = split.whole() else { return Ok(()) };
        let _shared = self.volume.share(&whole);
        self.volume.backing.write(whole.start, &data[within(offset, &whole)])
    }

    fn zero_parts(&mut self, offset: u64, len: u64) -> Result<(), DriveError> {
        let split = Split::new(offset, len);
        for (block, bytes) in split.parts.iter().flatten() {
            let at = block * BLOCK + bytes.start as u64;
            self.volume.write_part(at, &[0; BLOCK_SIZE][bytes.clone()])?;
        }
        let Some(whole) = split.whole() else { return Ok(()) };
        let _shared = self.volume.share(&whole);
        self.volume.backing.zero(whole.start, whole.end - whole.start)
    }
}

impl From<DriveError> for IoError {
    fn from(error: DriveError) -> Self {
        Self::Drive(error.errno)
    }
}

impl Engine for PassthroughChannel {
    fn size(&self) -> u64 {
        self.volume.backing.size()
    }

    fn discards(&self) -> bool {
        self.volume.discards
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.volume.refuse_over(Action::Read, offset)?;
        Ok(self.read_parts(offset, buf)?)
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        self.volume.refuse_over(Action::Write, offset)?;
        Ok(self.write_parts(offset, data)?)
    }

    fn zero(&mut self, offset: u64, len: u64, _keep: bool) -> Result<(), IoError> {
        self.volume.refuse_over(Action::Zero, offset)?;
        Ok(self.zero_parts(offset, len)?)
    }

    fn flush(&mut self) -> Result<(), IoError> {
        Ok(self.volume.backing.flush()?)
    }

    fn leave(&mut self, counters: &Arc<Counters>) {
        self.volume.accounts.leave(counters);
    }
}

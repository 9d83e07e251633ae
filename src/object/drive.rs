//! The drive that a store of objects is for the layers above.
//!
//! Writes gather in the open window. A flush seals it, and so does its size or age; sealed windows
//! are uploaded in order, by [`UPLOADERS`] threads ([`super::uploads`]).
//!
//! Invariants: a read sees the open window, then sealed ones, the newest first, then the index; a
//! window leaves memory when it is in the index, and gets there when all its parts, and all objects
//! before them, are in the store; a flush returns when that is so of all that was written before.

use super::checkpointing::keep_checkpoints;
use super::counted::Counted;
use super::format::{Seed, Session};
use super::index::Place;
use super::opening::Opened;
use super::packer::Packer;
use super::state::{Stage, State};
use super::store::{Failure, Store, slot};
use super::uploads::{Shared, UPLOADERS, beat, upload};
use super::window::Had;
use crate::BLOCK_SIZE;
use crate::codec::Algorithm;
use crate::error::{Context, Result as Checked};
use crate::media::{Action, Blocks, Commit, Drive, DriveError, Failures, PackedBlock};
use crate::stats::ObjectStats;
use parking_lot::{Mutex, MutexGuard};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Longest wait before a look at what has changed.
const LOOK: Duration = Duration::from_millis(500);
/// Most bytes that one request reads of an object.
const READ_MAX: u64 = 1 << 20;
/// How long the end of a drive waits for its store.
const LAST: Duration = Duration::from_secs(5);
/// How long it then tries to say that it has ended in order, without a log.
const LAST_WORD: Duration = Duration::from_secs(10);

/// See the module.
pub struct ObjectDrive {
    pub(super) shared: Arc<Shared>,
    /// With this many bytes in memory, writers wait; a window of half of it is sealed.
    waiting_max: usize,
    algorithm: Algorithm,
    packers: Mutex<Vec<Packer>>,
    failures: Failures,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

/// Where a block of a read comes from.
enum Source {
    Zeros,
    Lost,
    Memory(PackedBlock),
    Store(Place, Session),
}

impl ObjectDrive {
    /// A drive over a volume that was opened. `owner` is its name in the store. Writes that the
    /// store has not got yet take `waiting_max` bytes of memory, and as much again while they are
    /// sent.
    ///
    /// # Errors
    /// A thread can't be started.
    pub fn over(
        store: Arc<Counted>,
        opened: Opened,
        owner: &str,
        (algorithm, waiting_max): (Algorithm, usize),
    ) -> Checked<Arc<Self>> {
        let failures = Failures::new(Path::new(&store.place()));
        let shared = Arc::new(Shared::new(store, opened, owner.to_owned()));
        let mut threads = Vec::new();
        for number in 0..UPLOADERS + 2 {
            let shared = Arc::clone(&shared);
            let (name, work): (_, fn(&Shared)) = match number {
                0 => ("ztier-beat", beat),
                1 => ("ztier-index", keep_checkpoints),
                _ => ("ztier-upload", upload),
            };
            let thread = std::thread::Builder::new().name(name.into()).spawn(move || work(&shared));
            threads.push(thread.context("cannot start a thread")?);
        }
        let (packers, threads) = (Mutex::default(), Mutex::new(threads));
        Ok(Arc::new(Self { shared, waiting_max, algorithm, packers, failures, threads }))
    }

    /// Refuses all requests once the volume has another owner: what is here may be old.
    ///
    /// # Errors
    /// It has.
    pub fn refuse_over(&self, action: Action, at: u64) -> Result<(), DriveError> {
        if self.shared.is_over() { Err(self.over_error((action, at, 0))) } else { Ok(()) }
    }

    /// The error of a request once the volume has another owner.
    pub(super) fn over_error(&self, (action, at, len): (Action, u64, usize)) -> DriveError {
        self.error(action, at, len, rustix::io::Errno::STALE.raw_os_error())
    }

    /// Makes the volume larger.
    ///
    /// # Errors
    /// It would not be larger; or the store fails, or has another owner.
    pub fn grow(&self, size: u64) -> Checked<()> {
        self.shared.grow(size)
    }

    /// Counters, now.
    pub fn stats(&self) -> ObjectStats {
        self.shared.stats()
    }

    /// Ends the threads. What they send is of no use any more: a log has it, or a flush has failed.
    fn end(&self, threads: impl Iterator<Item = JoinHandle<()>>) {
        self.shared.store.hurry(LAST);
        self.shared.stop();
        for thread in threads {
            let _ = thread.join(); // it returns nothing
        }
    }

    fn packer<T>(&self, work: impl FnOnce(&mut Packer) -> T) -> T {
        let spare = self.packers.lock().pop();
        let mut packer = spare.unwrap_or_else(|| Packer::new(self.algorithm));
        let done = work(&mut packer);
        self.packers.lock().push(packer);
        done
    }

    pub(super) fn error(&self, action: Action, at: u64, len: usize, errno: i32) -> DriveError {
        let error = DriveError { action, at, len: len as u64, errno };
        self.failures.note(&error);
        error
    }

    /// Waits until `ready`, as long as the store works or has failed for less than [`PATIENCE`].
    fn wait(
        &self,
        (action, at, len): (Action, u64, usize),
        ready: impl Fn(&State) -> bool,
    ) -> Result<MutexGuard<'_, State>, DriveError> {
        let began = Instant::now();
        let mut state = self.shared.state.lock();
        loop {
            if self.shared.is_over() {
                drop(state);
                return Err(self.over_error((action, at, len)));
            }
            if ready(&state) {
                return Ok(state);
            }
            if let Some(errno) = state.trouble_since(Some(began)) {
                drop(state);
                return Err(self.error(action, at, len, errno));
            }
            self.shared.changed.wait_for(&mut state, LOOK);
        }
    }

    /// Waits until there is room for more writes.
    fn room(&self, request: (Action, u64, usize)) -> Result<MutexGuard<'_, State>, DriveError> {
        let of_log = |state: &State| state.stage() == Stage::Open;
        self.wait(request, |state| of_log(state) || state.waiting_bytes() < self.waiting_max)
    }

    /// Where each of `count` blocks from `first` on comes from.
    fn sources(&self, first: u64, count: u64) -> Vec<Source> {
        let state = self.shared.state.lock();
        let source = |block| match state.get(block) {
            Some(Had::Payload(payload)) => Source::Memory(payload),
            Some(Had::Zeros) => Source::Zeros,
            None => match state.contents.index.get(block) {
                Some(place) => Source::Store(place, state.contents.sessions.of(place.slot())),
                None if state.contents.index.is_lost(block) => Source::Lost,
                None => Source::Zeros,
            },
        };
        (first..first + count).map(source).collect()
    }

    /// Reads the run of blocks that begins with `place`, as far as their payloads follow each other
    /// in one object. Returns how many they are.
    fn read_run(
        &self,
        (first, at): (u64, u64),
        run: &[Source],
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> Result<usize, DriveError> {
        let failed = |errno| self.error(Action::Read, at, BLOCK_SIZE, errno);
        let damaged = || failed(rustix::io::Errno::IO.raw_os_error());
        let Some(Source::Store(begin, session)) = run.first() else { return Ok(0) };
        let start = u64::from(begin.offset());
        let mut end = start;
        let places: Vec<Place> = run
            .iter()
            .map_while(|source| match source {
                Source::Store(place, _)
                    if place.slot() == begin.slot()
                        && u64::from(place.offset()) == end
                        && end + u64::from(place.len) <= start + READ_MAX =>
                {
                    end += u64::from(place.len);
                    Some(*place)
                }
                _ => None,
            })
            .collect();
        let key = slot(begin.slot());
        let bytes = self.shared.store.get_range(&key, start..end).map_err(|failure| {
            match failure {
                // An object that is gone is damage: the store works.
                Failure::Missing => self.shared.note_damage(begin.at),
                _ => self.shared.note_failure(&failure),
            }
            failed(super::uploads::errno(&failure))
        })?;
        let seed = Seed { volume: self.shared.volume, session: *session, slot: begin.slot() };
        self.packer(|Packer { codec, .. }| {
            for (i, place) in places.iter().enumerate() {
                let from = (place.offset() - begin.offset()) as usize;
                let payload = bytes.get(from..from + usize::from(place.len)).unwrap_or_default();
                let fits = seed.payload(first + i as u64, place.coding, payload) == place.check;
                if !fits || !codec.decode(place.coding, payload, &mut out[i]) {
                    self.shared.note_damage(place.at);
                    return Err(damaged());
                }
                self.shared.note_whole(place.at);
            }
            Ok(places.len())
        })
    }

    /// Something was added to the open window.
    fn written(&self, state: &mut State) {
        if state.written().is_some_and(|bytes| bytes >= self.waiting_max / 2) {
            self.shared.seal(state);
        }
    }

    /// Waits until `ready`, which may issue parts, at most for the time `most`; returns whether it
    /// is. Fails with the store's trouble when that has lasted too long.
    fn wait_some(
        &self,
        most: Duration,
        mut ready: impl FnMut(&mut State) -> bool,
    ) -> Result<bool, DriveError> {
        let until = Instant::now() + most;
        let mut state = self.shared.state.lock();
        loop {
            if self.shared.is_over() {
                drop(state);
                return Err(self.over_error((Action::Flush, 0, 0)));
            }
            if ready(&mut state) {
                return Ok(true);
            }
            self.shared.changed.notify_all();
            if let Some(errno) = state.trouble_since(None) {
                drop(state);
                return Err(self.error(Action::Flush, 0, 0, errno));
            }
            if self.shared.changed.wait_until(&mut state, until).timed_out() {
                return Ok(ready(&mut state));
            }
        }
    }
}

impl Drive for ObjectDrive {
    fn size(&self) -> u64 {
        self.shared.size.load(Ordering::Acquire)
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        let (blocks, _) = buf.as_chunks_mut::<BLOCK_SIZE>();
        let first = at / BLOCK;
        let sources = self.sources(first, blocks.len() as u64);
        let mut done = 0;
        while done < sources.len() {
            let here = at + done as u64 * BLOCK;
            match &sources[done] {
                Source::Zeros => blocks[done].fill(0),
                Source::Lost => {
                    let errno = rustix::io::Errno::IO.raw_os_error();
                    return Err(self.error(Action::Read, here, BLOCK_SIZE, errno));
                }
                Source::Memory(PackedBlock { coding, bytes }) => {
                    if !self.packer(|packer| packer.codec.decode(*coding, bytes, &mut blocks[done]))
                    {
                        let errno = rustix::io::Errno::IO.raw_os_error();
                        return Err(self.error(Action::Read, here, BLOCK_SIZE, errno));
                    }
                }
                Source::Store(..) => {
                    let block = first + done as u64;
                    done += self.read_run((block, here), &sources[done..], &mut blocks[done..])?;
                    continue;
                }
            }
            done += 1;
        }
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        self.write_packed(at, Blocks::plain(data.as_chunks().0))
    }

    fn write_packed(&self, at: u64, blocks: Blocks<'_>) -> Result<(), DriveError> {
        let payloads = self.packer(|packer| packer.pack(blocks));
        let mut state = self.room((Action::Write, at, blocks.count() * BLOCK_SIZE))?;
        for (block, payload) in (at / BLOCK..).zip(payloads) {
            match payload {
                Some(payload) => state.open.write(block, payload),
                None => state.open.zero(block..block + 1),
            }
        }
        self.written(&mut state);
        Ok(())
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        let mut state = self.room((Action::Zero, at, 0))?;
        state.open.zero(at / BLOCK..(at + len) / BLOCK);
        self.written(&mut state);
        Ok(())
    }

    fn failures(&self) -> Option<&Failures> {
        Some(&self.failures)
    }

    fn flush(&self) -> Result<(), DriveError> {
        let next = self.shared.seal(&mut self.shared.state.lock());
        self.wait((Action::Flush, 0, 0), |state| state.has_sent_before(next)).map(drop)
    }

    fn is_atomic(&self) -> bool {
        true
    }

    fn begin(&self) {
        self.shared.state.lock().begin_window();
        self.shared.changed.notify_all();
    }

    fn settle(&self, most: Duration) -> Result<bool, DriveError> {
        self.wait_some(most, State::settle_window)
    }

    fn commit(&self, commit: &Commit, most: Duration) -> Result<bool, DriveError> {
        self.wait_some(most, |state| state.commit_window(commit))
    }

    fn close(&self) -> Result<(), DriveError> {
        // What a log has not committed it still has.
        let of_log = self.shared.state.lock().stage() != Stage::None;
        let flushed = if of_log { Ok(()) } else { self.flush() };
        self.end(self.threads.lock().drain(..));
        flushed?;
        // The store has just answered, but the threads may have used up the time.
        self.shared.give_up(if of_log { Duration::ZERO } else { LAST_WORD });
        Ok(())
    }
}

impl Drop for ObjectDrive {
    fn drop(&mut self) {
        let threads = std::mem::take(self.threads.get_mut());
        self.end(threads.into_iter());
    }
}

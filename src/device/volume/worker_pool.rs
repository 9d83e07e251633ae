//! Helpers for large requests: idle processors compress and decompress parts of a request that one
//! thread received, and move its bytes if the front-end has them elsewhere.
//!
//! The thread that received the request still serves it from one end; helpers that are awake take
//! pieces as that thread does. It waits only for pieces that a helper has begun, never for a helper
//! to wake up, so nothing is lost if all processors are busy. A request allocates nothing.
//!
//! Invariants:
//! - one request is shared at a time; other requests are served by their own threads alone;
//! - a helper touches a request's memory only while it is counted in `inside`, and enters `inside`
//!   only while the request is shown; the request's thread leaves [`WorkerPool::share`], also on a
//!   panic, only after it has withdrawn the request and `inside` is 0.

use super::Volume;
use super::io_context::IoContext;
use crate::device::contract::{DataMover, IoError, Way};
use crate::error::{Context, Result};
use crate::ram::Ram;
use crate::ram::store::Session;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// The least size of a shared request: below, waking a helper costs more than it saves.
pub(super) const WORTH_SHARING: usize = 256 << 10;
/// Bytes that a helper takes at a time, aligned on the device.
pub(super) const PIECE: usize = 64 << 10;
/// The most helpers: more would find nothing to do in the largest usual request.
pub(super) const HELPERS_MAX: usize = 3;

/// A request to share.
pub(super) enum Work<'a> {
    /// Fill `buf` from `offset` on.
    Read { offset: u64, buf: &'a mut [u8] },
    /// Store `data` from `offset` on.
    Write { offset: u64, data: &'a [u8] },
    /// Move `len` bytes from `offset` on between the volume and `mover`, through `scratch` of at
    /// least [`PIECE`] bytes.
    Move { way: Way, offset: u64, len: usize, mover: &'a dyn DataMover, scratch: &'a mut [u8] },
}

/// A [`Work`] as helpers see it.
#[derive(Clone, Copy)]
struct Job {
    offset: u64,
    len: usize,
    place: Place,
}

/// Source or destination of the bytes of a request.
#[derive(Clone, Copy)]
enum Place {
    To(*mut u8),
    From(*const u8),
    DataMover(Way, *const dyn DataMover),
}

// SAFETY: only `Shared::take_pieces` follows the pointers, and its callers make sure that they are
// valid; threads reach the memory in disjoint pieces, and a `DataMover` is `Sync`.
unsafe impl Send for Job {}

/// The helpers of one volume. Dropping it ends them.
pub(super) struct WorkerPool {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    /// Locked by the thread whose request is shared.
    turn: Mutex<()>,
    call: Mutex<Call>,
    called: Condvar,
    /// Helpers that may use the request; grows only under the lock of `call`.
    inside: AtomicUsize,
    /// The next piece that no thread has taken.
    next: AtomicUsize,
    failed: Mutex<Option<IoError>>,
}

#[derive(Default)]
struct Call {
    /// Number of requests shared so far.
    number: u64,
    /// The request, while helpers may join.
    job: Option<Job>,
    stop: bool,
}

impl WorkerPool {
    /// Starts a helper for each processor but one, at most [`HELPERS_MAX`].
    ///
    /// # Errors
    /// A thread cannot be started.
    pub(super) fn start(volume: &Arc<Volume>) -> Result<Option<Self>> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let helpers = (processors - 1).min(HELPERS_MAX);
        if helpers == 0 {
            return Ok(None);
        }
        let pool = Self { shared: Arc::default(), threads: Mutex::default() };
        for _ in 0..helpers {
            let session = volume.ram().session()?;
            let (shared, volume) = (Arc::clone(&pool.shared), Arc::downgrade(volume));
            let thread = std::thread::Builder::new()
                .name("ztier-helper".into())
                .spawn(move || help(&shared, &volume, session))
                .context("cannot start a helper thread")?;
            pool.threads.lock().push(thread);
        }
        Ok(Some(pool))
    }

    /// Serves a request on this thread, with the helpers that are awake.
    ///
    /// # Errors
    /// The first error of any piece.
    pub(super) fn share(
        &self,
        ram: &Ram,
        io: &mut IoContext,
        work: Work<'_>,
    ) -> std::result::Result<(), IoError> {
        let shared = &*self.shared;
        let Some(_turn) = shared.turn.try_lock() else {
            return match work {
                Work::Read { offset, buf } => io.read(ram, offset, buf),
                Work::Write { offset, data } => io.write(ram, offset, data),
                Work::Move { way, offset, len, mover, scratch } => {
                    (0..len).step_by(PIECE).try_for_each(|at| {
                        let part = &mut scratch[..PIECE.min(len - at)];
                        io.ship(ram, way, offset, mover, at, part)
                    })
                }
            };
        };
        let (job, scratch) = work.job();
        shared.next.store(0, Ordering::Relaxed);
        *shared.failed.lock() = None;
        let shown = Shown::new(shared, job);

        // SAFETY: `work` borrowed what the job names for longer than this function, and this
        // function returns only after `shown` is dropped; no helper touches it after that.
        unsafe { shared.take_pieces(job, ram, io, scratch) };

        drop(shown);
        let failed = shared.failed.lock().take();
        failed.map_or(Ok(()), Err)
    }
}

impl<'a> Work<'a> {
    /// The job, and the scratch memory for this thread's pieces.
    fn job(self) -> (Job, &'a mut [u8]) {
        match self {
            Self::Read { offset, buf } => {
                let place = Place::To(buf.as_mut_ptr());
                (Job { offset, len: buf.len(), place }, &mut [])
            }
            Self::Write { offset, data } => {
                (Job { offset, len: data.len(), place: Place::From(data.as_ptr()) }, &mut [])
            }
            Self::Move { way, offset, len, mover, scratch } => {
                // SAFETY: this extends only the lifetime, which `Job` cannot name; `share` keeps to
                // the real one.
                let mover: &'static dyn DataMover = unsafe { std::mem::transmute(mover) };
                (Job { offset, len, place: Place::DataMover(way, mover) }, scratch)
            }
        }
    }
}

impl Shared {
    /// Serves pieces of the request until all are taken.
    ///
    /// # Safety
    /// What the job names must stay valid until this returns, and only threads that take pieces may
    /// use it.
    unsafe fn take_pieces(&self, job: Job, ram: &Ram, io: &mut IoContext, scratch: &mut [u8]) {
        let Job { offset, len, place } = job;
        let end = offset + len as u64;
        let first = offset / PIECE as u64;
        loop {
            let piece = first + self.next.fetch_add(1, Ordering::AcqRel) as u64;
            let from = (piece * PIECE as u64).max(offset);
            let to = ((piece + 1) * PIECE as u64).min(end);
            if from >= to {
                return;
            }
            let (at, n) = ((from - offset) as usize, (to - from) as usize);
            let result = match place {
                Place::To(base) => {
                    // SAFETY: within the request's buffer; pieces are disjoint, and each is taken
                    // once.
                    io.read(ram, from, unsafe { std::slice::from_raw_parts_mut(base.add(at), n) })
                }
                Place::From(base) => {
                    // SAFETY: within the request's data, which no thread changes meanwhile.
                    io.write(ram, from, unsafe { std::slice::from_raw_parts(base.add(at), n) })
                }
                Place::DataMover(way, mover) => {
                    // SAFETY: the caller guarantees that it is valid.
                    let mover = unsafe { &*mover };
                    io.ship(ram, way, offset, mover, at, &mut scratch[..n])
                }
            };
            if let Err(e) = result {
                self.failed.lock().get_or_insert(e);
                return;
            }
        }
    }
}

fn help(shared: &Shared, volume: &Weak<Volume>, session: Session) {
    let mut io = IoContext::new(session);
    // The kernel gives the memory at the first use.
    let mut scratch = vec![0; PIECE];
    let mut counted = false;
    let mut seen = 0;
    loop {
        let inside = {
            let mut call = shared.call.lock();
            while call.number == seen && !call.stop {
                shared.called.wait(&mut call);
            }
            if call.stop {
                break;
            }
            seen = call.number;
            call.job.map(|job| Inside::enter(shared, job))
        };
        let Some(inside) = inside else { continue };
        let Some(volume) = volume.upgrade() else { return };
        volume.precedence.take();
        if matches!(inside.job.place, Place::DataMover(..))
            && !std::mem::replace(&mut counted, true)
        {
            volume.ram().store().budget().add(PIECE as u64);
        }
        // SAFETY: this helper is counted in `inside` since the request was shown, so the request's
        // thread waits.
        unsafe { shared.take_pieces(inside.job, volume.ram(), &mut io, &mut scratch) };
    }
    if let Some(volume) = volume.upgrade() {
        let store = volume.ram().store();
        store.budget().give(if counted { PIECE as u64 } else { 0 });
        store.leave(&io.session);
    }
}

impl WorkerPool {
    /// Ends the helpers. Later requests are served by their own threads alone.
    pub(super) fn stop(&self) {
        self.shared.call.lock().stop = true;
        self.shared.called.notify_all();
        for thread in self.threads.lock().drain(..) {
            // A helper may own the volume last, and a thread cannot join itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for WorkerPool {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A request that helpers see. Dropping it withdraws the request and waits for the helpers inside,
/// also when the request's thread panics: its memory is about to be freed.
struct Shown<'a>(&'a Shared);

impl<'a> Shown<'a> {
    fn new(shared: &'a Shared, job: Job) -> Self {
        {
            let mut call = shared.call.lock();
            call.number += 1;
            call.job = Some(job);
        }
        shared.called.notify_all();
        Self(shared)
    }
}

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        self.0.call.lock().job = None;
        let mut round = 0;
        while self.0.inside.load(Ordering::Acquire) > 0 {
            crate::sync::relax(round);
            round = round.saturating_add(1);
        }
    }
}

/// A helper that is counted in `inside`, and the request that it helps with.
struct Inside<'a> {
    shared: &'a Shared,
    job: Job,
}

impl<'a> Inside<'a> {
    /// Counts the helper. The caller holds the lock of `call`.
    fn enter(shared: &'a Shared, job: Job) -> Self {
        shared.inside.fetch_add(1, Ordering::AcqRel);
        Self { shared, job }
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The helper's piece is lost; the request's thread must neither hang nor report
            // success.
            let first = self.job.offset / crate::BLOCK_SIZE as u64;
            self.shared.failed.lock().get_or_insert(IoError::Corrupt(first));
        }
        self.shared.inside.fetch_sub(1, Ordering::AcqRel);
    }
}

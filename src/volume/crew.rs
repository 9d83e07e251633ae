//! Helpers for large requests: idle processors compress and decompress parts of a request that one
//! thread received.
//!
//! The thread that received the request still serves it, from one end; helpers that are awake take
//! pieces as it does. It waits only for pieces that a helper has begun, never for a helper to wake
//! up, so where all processors are busy nothing is lost. Nothing is allocated for a request.
//!
//! Invariants:
//! - one request is shared at a time; others are served by their own threads alone;
//! - a helper touches a request's memory only while it is counted in `inside` and saw `open` after
//!   it was counted; the request's thread does not return before `open` is false and `inside` is 0.

use super::hand::Hand;
use super::{IoError, Ram, Volume};
use crate::error::{Context, Result};
use crate::store::Session;
use parking_lot::{Condvar, Mutex};
use std::sync::atomic::{AtomicBool, AtomicPtr, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// Requests from this size on are shared: below, waking a helper costs more than it does.
pub(super) const WORTH_SHARING: usize = 256 << 10;
/// What a helper takes at a time, aligned on the device.
const PIECE: u64 = 64 << 10;
/// More helpers than this find nothing to do in the largest usual request.
const HELPERS_MAX: usize = 3;

/// A request that is worth sharing.
pub(super) enum Work<'a> {
    /// Fill `buf` from `offset` on.
    Read { offset: u64, buf: &'a mut [u8] },
    /// Store `data` from `offset` on.
    Write { offset: u64, data: &'a [u8] },
}

/// The helpers of one volume. Dropping it ends them.
pub(super) struct Crew {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
}

#[derive(Default)]
struct Shared {
    /// Held by the thread whose request is shared.
    turn: Mutex<()>,
    call: Mutex<Call>,
    called: Condvar,
    /// The request may be helped with.
    open: AtomicBool,
    /// Helpers that may be looking at the request.
    inside: AtomicUsize,
    /// The next piece that nobody has taken.
    next: AtomicUsize,
    write: AtomicBool,
    offset: AtomicU64,
    base: AtomicPtr<u8>,
    len: AtomicUsize,
    failed: Mutex<Option<IoError>>,
}

#[derive(Default)]
struct Call {
    /// Counts requests that were shared.
    number: u64,
    stop: bool,
}

impl Crew {
    /// Starts a helper for each processor but one.
    ///
    /// # Errors
    /// When a thread cannot be started.
    pub(super) fn start(volume: &Arc<Volume>) -> Result<Option<Self>> {
        let processors = std::thread::available_parallelism().map_or(1, usize::from);
        let helpers = (processors - 1).min(HELPERS_MAX);
        if helpers == 0 {
            return Ok(None);
        }
        let crew = Self { shared: Arc::default(), threads: Mutex::default() };
        for _ in 0..helpers {
            let session = volume.ram().session()?;
            let (shared, volume) = (Arc::clone(&crew.shared), Arc::downgrade(volume));
            let thread = std::thread::Builder::new()
                .name("ztier-helper".into())
                .spawn(move || help(&shared, &volume, session))
                .context("cannot start a helper thread")?;
            crew.threads.lock().push(thread);
        }
        Ok(Some(crew))
    }

    /// Serves a request on this thread, with what help there is.
    ///
    /// # Errors
    /// The first one that any piece met.
    pub(super) fn share(
        &self,
        ram: &Ram,
        hand: &mut Hand,
        work: Work<'_>,
    ) -> std::result::Result<(), IoError> {
        let shared = &*self.shared;
        let Some(_turn) = shared.turn.try_lock() else {
            return match work {
                Work::Read { offset, buf } => hand.read(ram, offset, buf),
                Work::Write { offset, data } => hand.write(ram, offset, data),
            };
        };
        let (write, offset, base, len) = match work {
            Work::Read { offset, buf } => (false, offset, buf.as_mut_ptr(), buf.len()),
            Work::Write { offset, data } => (true, offset, data.as_ptr().cast_mut(), data.len()),
        };
        shared.write.store(write, Ordering::Relaxed);
        shared.offset.store(offset, Ordering::Relaxed);
        shared.base.store(base, Ordering::Relaxed);
        shared.len.store(len, Ordering::Relaxed);
        shared.next.store(0, Ordering::Relaxed);
        *shared.failed.lock() = None;
        shared.open.store(true, Ordering::SeqCst);
        shared.call.lock().number += 1;
        shared.called.notify_all();

        // SAFETY: `work` borrows the memory until this function returns, and no helper touches it
        // after that (below).
        unsafe { shared.take_pieces(ram, hand) };

        shared.open.store(false, Ordering::SeqCst);
        let mut round = 0;
        while shared.inside.load(Ordering::SeqCst) > 0 {
            crate::sync::relax(round);
            round = round.saturating_add(1);
        }
        let failed = shared.failed.lock().take();
        failed.map_or(Ok(()), Err)
    }
}

impl Shared {
    /// Serves pieces of the request until all are taken.
    ///
    /// # Safety
    /// The request's memory must stay valid, and used by nobody but those who take pieces, until
    /// this returns.
    unsafe fn take_pieces(&self, ram: &Ram, hand: &mut Hand) {
        let (offset, len) =
            (self.offset.load(Ordering::Relaxed), self.len.load(Ordering::Relaxed) as u64);
        let (base, write) = (self.base.load(Ordering::Relaxed), self.write.load(Ordering::Relaxed));
        let first = offset / PIECE;
        loop {
            let piece = first + self.next.fetch_add(1, Ordering::AcqRel) as u64;
            let from = (piece * PIECE).max(offset);
            let to = ((piece + 1) * PIECE).min(offset + len);
            if from >= to {
                return;
            }
            let (at, n) = ((from - offset) as usize, (to - from) as usize);
            let result = if write {
                // SAFETY: within the request's data, which nobody changes meanwhile.
                hand.write(ram, from, unsafe { std::slice::from_raw_parts(base.add(at), n) })
            } else {
                // SAFETY: within the request's buffer; pieces are disjoint, and each is taken once.
                hand.read(ram, from, unsafe { std::slice::from_raw_parts_mut(base.add(at), n) })
            };
            if let Err(e) = result {
                self.failed.lock().get_or_insert(e);
                return;
            }
        }
    }
}

fn help(shared: &Shared, volume: &Weak<Volume>, session: Session) {
    let mut hand = Hand::new(session);
    let mut seen = 0;
    loop {
        {
            let mut call = shared.call.lock();
            while call.number == seen && !call.stop {
                shared.called.wait(&mut call);
            }
            if call.stop {
                break;
            }
            seen = call.number;
        }
        let Some(volume) = volume.upgrade() else { return };
        let _inside = Inside::enter(shared);
        if shared.open.load(Ordering::SeqCst) {
            // SAFETY: we were counted before we saw the request open, so its thread waits for us.
            unsafe { shared.take_pieces(volume.ram(), &mut hand) };
        }
    }
    if let Some(volume) = volume.upgrade() {
        volume.ram().store().leave(&hand.session);
    }
}

impl Crew {
    /// Ends the helpers. Requests after this are served by their own threads alone.
    pub(super) fn stop(&self) {
        self.shared.call.lock().stop = true;
        self.shared.called.notify_all();
        for thread in self.threads.lock().drain(..) {
            // The last owner of the volume may be a helper, which cannot wait for itself.
            if thread.thread().id() != std::thread::current().id() {
                let _ = thread.join();
            }
        }
    }
}

impl Drop for Crew {
    fn drop(&mut self) {
        self.stop();
    }
}

/// A helper that is counted as inside.
struct Inside<'a>(&'a Shared);

impl<'a> Inside<'a> {
    fn enter(shared: &'a Shared) -> Self {
        shared.inside.fetch_add(1, Ordering::SeqCst);
        Self(shared)
    }
}

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // The piece that it had taken is lost, and its thread must neither hang nor believe it.
            let first = self.0.offset.load(Ordering::Relaxed) / crate::BLOCK_SIZE as u64;
            self.0.failed.lock().get_or_insert(IoError::Corrupt(first));
        }
        self.0.inside.fetch_sub(1, Ordering::SeqCst);
    }
}

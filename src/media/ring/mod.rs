//! Many reads, writes, zeroes and flushes of one drive in flight at once: what a log needs.
//!
//! Invariants:
//! - every submission gives exactly one [`Completion`], in any order, however it ends;
//! - its memory stays alive until then, even when the [`Ring`] is dropped before;
//! - the ring orders nothing: a [`Op::Flush`] covers the writes whose completion the caller has
//!   seen before it submits the flush, and no others;
//! - waiting is bounded, and [`Waker::wake`] ends it from any thread.
//!
//! io_uring does the work where the kernel and the container allow it. Elsewhere
//! ([`Ring::fallback`] says why), and for drives that are not files, a few threads do it.

#[cfg(shuttle)]
#[path = "explored.rs"]
mod pool;
#[cfg(not(shuttle))]
mod pool;
mod uring;

use super::buffer::Buffer;
use super::drive::{ALIGN, Action, Drive, DriveError};
use super::file_drive::FileDrive;
use super::transfer::{check, failed};
use crate::error::Result;
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::ops::Range;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

/// How long a dropped ring waits for requests in flight.
const FAREWELL: Duration = Duration::from_secs(10);

/// The longest single wait; for more, the caller waits again.
const WAIT_MAX: Duration = Duration::from_secs(3600);

/// The operation of a request.
#[derive(Debug)]
pub enum Op {
    /// Fill the buffer, which comes back with the completion.
    Read(Buffer),
    /// Store the range of the buffer; the range begins and ends at multiples of [`ALIGN`].
    Write(Arc<Buffer>, Range<usize>),
    /// Make a range read as zeros.
    Zero {
        /// Its bytes, a multiple of [`ALIGN`].
        len: u64,
    },
    /// Make completed writes survive a loss of power.
    Flush,
}

impl Op {
    fn action(&self) -> Action {
        match self {
            Self::Read(_) => Action::Read,
            Self::Write(..) => Action::Write,
            Self::Zero { .. } => Action::Zero,
            Self::Flush => Action::Flush,
        }
    }

    /// Bytes; 0 for a flush.
    fn bytes(&self) -> u64 {
        match self {
            Self::Read(buffer) => buffer.len() as u64,
            Self::Write(_, range) => range.len() as u64,
            Self::Zero { len } => *len,
            Self::Flush => 0,
        }
    }
}

/// A request to a drive.
#[derive(Debug)]
pub struct Submission {
    /// The caller's own number, given back with the completion.
    pub id: u64,
    /// The operation.
    pub action: Op,
    /// The offset, in bytes; ignored for a flush.
    pub at: u64,
}

impl Submission {
    /// The error of this request for the reason `errno`.
    fn fail(&self, errno: Errno) -> DriveError {
        let at = if matches!(self.action, Op::Flush) { 0 } else { self.at };
        failed(self.action.action(), at, self.action.bytes())(errno)
    }

    /// Refuses a request that no drive of `size` bytes can carry out.
    fn check(&self, size: u64) -> Result<(), DriveError> {
        if let Op::Write(buffer, range) = &self.action {
            let inside = range.start <= range.end && range.end <= buffer.len();
            if !inside || !range.start.is_multiple_of(ALIGN) {
                return Err(self.fail(Errno::INVAL));
            }
        }
        match self.action {
            Op::Flush => Ok(()),
            _ => check(self.action.action(), self.at, self.action.bytes(), size),
        }
    }

    /// Completes the request with `result`; a read gets its buffer back.
    fn finish(self, result: Result<(), DriveError>) -> Completion {
        let buffer = match self.action {
            Op::Read(buffer) => Some(buffer),
            _ => None,
        };
        Completion { id: self.id, result: result.map(|()| buffer) }
    }
}

/// How a submission ended.
#[derive(Debug)]
pub struct Completion {
    /// The number of the submission.
    pub id: u64,
    /// The filled buffer of a read, nothing for the others; or what failed.
    pub result: Result<Option<Buffer>, DriveError>,
}

/// Ends a [`Ring::wait`], from any thread.
#[derive(Clone, Debug)]
pub struct Waker(Bell);

#[derive(Clone, Debug)]
enum Bell {
    Event(Arc<OwnedFd>),
    Channel(Sender<pool::Event>),
}

impl Waker {
    /// Makes the present wait, or else the next one, return at once. Several calls before that may
    /// count as one.
    pub fn wake(&self) {
        // Either fails only when it changes nothing: the bell rings already, or the ring is gone.
        let _ = match &self.0 {
            Bell::Event(event) => rustix::io::write(event, &1u64.to_ne_bytes()).is_ok(),
            Bell::Channel(events) => events.send(pool::Event::Wake).is_ok(),
        };
    }
}

#[derive(Debug)]
enum Engine {
    Uring(Box<uring::Uring>),
    Pool(pool::Pool),
}

/// The executor. One thread uses it at a time. Dropping it waits a while for requests in flight,
/// and discards those that have not begun.
#[derive(Debug)]
pub struct Ring {
    engine: Engine,
    size: u64,
    ready: Vec<Completion>,
    fallback: Option<String>,
}

impl Ring {
    /// A ring on `drive` with at most `depth` requests in flight (1 to 4096); further requests
    /// queue.
    ///
    /// # Errors
    /// Neither io_uring nor threads can be had.
    pub fn new(drive: Arc<FileDrive>, depth: u32) -> Result<Self> {
        let depth = depth.clamp(1, 4096);
        let size = drive.size();
        match uring::Uring::new(Arc::clone(&drive), depth) {
            Ok(ring) => Ok(Self::with(Engine::Uring(Box::new(ring)), size, None)),
            Err(why) => Ok(Self { fallback: Some(why), ..Self::with_threads(drive, depth)? }),
        }
    }

    /// A ring that uses threads, for a drive of any kind.
    ///
    /// # Errors
    /// The threads can't be started.
    pub fn with_threads(drive: Arc<dyn Drive>, depth: u32) -> Result<Self> {
        let size = drive.size();
        let pool = pool::Pool::new(drive, depth.clamp(1, 4096))?;
        Ok(Self::with(Engine::Pool(pool), size, Some("threads were asked for".into())))
    }

    fn with(engine: Engine, size: u64, fallback: Option<String>) -> Self {
        Self { engine, size, ready: Vec::new(), fallback }
    }

    /// Why io_uring does not do the work; `None` when it does.
    pub fn fallback(&self) -> Option<&str> {
        self.fallback.as_deref()
    }

    /// Takes a request. It begins at the latest with the next [`Ring::kick`] or [`Ring::wait`].
    pub fn submit(&mut self, submission: Submission) {
        let allowed = submission.check(self.size);
        let idle = submission.action.bytes() == 0 && !matches!(submission.action, Op::Flush);
        if idle || allowed.is_err() {
            self.ready.push(submission.finish(allowed));
            return;
        }
        match &mut self.engine {
            Engine::Uring(ring) => ring.submit(submission),
            Engine::Pool(pool) => pool.submit(submission),
        }
    }

    /// Begins submitted requests, as far as the depth allows. Does not wait.
    pub fn kick(&mut self) {
        if let Engine::Uring(ring) = &mut self.engine {
            ring.kick();
        }
    }

    /// Waits until a request has ended, a [`Waker`] wakes the ring, or `timeout` is over. Returns
    /// all completions so far, perhaps none.
    pub fn wait(&mut self, timeout: Duration) -> Vec<Completion> {
        let timeout = if self.ready.is_empty() { timeout.min(WAIT_MAX) } else { Duration::ZERO };
        let mut ended = std::mem::take(&mut self.ready);
        match &mut self.engine {
            Engine::Uring(ring) => ring.wait(timeout, &mut ended),
            Engine::Pool(pool) => pool.wait(timeout, &mut ended),
        }
        ended
    }

    /// Requests whose completion [`Ring::wait`] has not given yet.
    pub fn in_flight(&self) -> usize {
        let running = match &self.engine {
            Engine::Uring(ring) => ring.in_flight(),
            Engine::Pool(pool) => pool.in_flight(),
        };
        running + self.ready.len()
    }

    /// A handle that ends a wait from another thread.
    pub fn waker(&self) -> Waker {
        Waker(match &self.engine {
            Engine::Uring(ring) => Bell::Event(ring.bell()),
            Engine::Pool(pool) => Bell::Channel(pool.bell()),
        })
    }
}

#[cfg(all(test, not(miri), not(shuttle)))]
mod tests;

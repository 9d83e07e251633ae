//! Threads beside a queue's own, for requests that wait for a drive: reads and flushes of a volume
//! that has drives. The queue serves other requests meanwhile.
//!
//! Invariants: every submitted job comes back, at the latest when the offload pool is closed;
//! submitting and collecting allocate nothing.

use super::io_slot::IoSlot;
use super::params::Asked;
use parking_lot::{Condvar, Mutex};
use rustix::event::{EventfdFlags, eventfd};
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use std::collections::VecDeque;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Instant;

/// The tag under which a flush comes back: no request has it.
pub(super) const FLUSH: u16 = u16::MAX;

/// The result of a request for the kernel.
pub(super) struct Answer {
    pub tag: u16,
    pub result: i32,
}

/// Ends the process when its thread panics.
pub(super) struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Without this queue all requests would wait for ever. When the whole process is gone,
            // the next daemon takes the device over, with every request in it.
            std::process::abort();
        }
    }
}

struct Job {
    tag: u16,
    asked: Asked,
    arrived: Instant,
}

struct Jobs {
    waiting: VecDeque<Job>,
    closed: bool,
}

struct Shared {
    jobs: Mutex<Jobs>,
    work: Condvar,
    done: Mutex<Vec<Answer>>,
    /// Readable when jobs are done.
    done_event: OwnedFd,
}

/// The threads, and what they share with the queue.
pub(super) struct OffloadPool {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl OffloadPool {
    /// An offload pool of one thread for each slot, for up to `depth` requests and a flush at once.
    pub(super) fn open(queue: u16, depth: u16, slots: Vec<IoSlot>) -> std::io::Result<Self> {
        let most = usize::from(depth) + 1;
        let shared = Arc::new(Shared {
            jobs: Mutex::new(Jobs { waiting: VecDeque::with_capacity(most), closed: false }),
            work: Condvar::new(),
            done: Mutex::new(Vec::with_capacity(most)),
            done_event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?,
        });
        let mut offload = Self { shared, threads: Vec::with_capacity(slots.len()) };
        for (n, slot) in slots.into_iter().enumerate() {
            let shared = Arc::clone(&offload.shared);
            let name = format!("ztier-ublk-{queue}.{n}");
            let thread =
                std::thread::Builder::new().name(name).spawn(move || shared.serve(slot))?;
            offload.threads.push(thread);
        }
        Ok(offload)
    }

    /// Readable when jobs are done.
    pub(super) fn done_event(&self) -> BorrowedFd<'_> {
        self.shared.done_event.as_fd()
    }

    /// Submits a request.
    pub(super) fn serve(&self, tag: u16, asked: Asked, arrived: Instant) {
        self.shared.jobs.lock().waiting.push_back(Job { tag, asked, arrived });
        self.shared.work.notify_one();
    }

    /// Submits a flush; it goes before all waiting jobs.
    pub(super) fn flush(&self, arrived: Instant) {
        let job = Job { tag: FLUSH, asked: Asked::Flush, arrived };
        self.shared.jobs.lock().waiting.push_front(job);
        self.shared.work.notify_one();
    }

    /// Moves the answers of finished jobs to `done`.
    pub(super) fn collect(&self, done: &mut Vec<Answer>) {
        // Reset the event first: answers that come later make it readable again.
        let _ = rustix::io::read(&self.shared.done_event, &mut [0; 8]);
        done.append(&mut self.shared.done.lock());
    }

    /// Ends the threads when all jobs are finished, and moves the answers to `done`.
    pub(super) fn close(mut self, done: &mut Vec<Answer>) {
        self.end();
        done.append(&mut self.shared.done.lock());
    }

    fn end(&mut self) {
        self.shared.jobs.lock().closed = true;
        self.shared.work.notify_all();
        for thread in self.threads.drain(..) {
            let _ = thread.join(); // its panic would have ended the process
        }
    }
}

impl Drop for OffloadPool {
    fn drop(&mut self) {
        self.end();
    }
}

impl Shared {
    fn serve(&self, mut slot: IoSlot) {
        let _guard = Guard;
        while let Some(Job { tag, asked, arrived }) = self.next() {
            let result = match tag {
                FLUSH => slot.flush(arrived),
                _ => slot.serve(tag, asked, arrived),
            };
            let mut done = self.done.lock();
            done.push(Answer { tag, result });
            // `OffloadPool::collect` takes all answers at once: only the first needs a signal.
            let first = done.len() == 1;
            drop(done);
            if first {
                // The counter of the event is never so high that this fails.
                let _ = rustix::io::write(&self.done_event, &1u64.to_ne_bytes());
            }
        }
    }

    /// Waits for the next job; `None` when no more will come.
    fn next(&self) -> Option<Job> {
        let mut jobs = self.jobs.lock();
        loop {
            if let Some(job) = jobs.waiting.pop_front() {
                return Some(job);
            }
            if jobs.closed {
                return None;
            }
            self.work.wait(&mut jobs);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::device::{Channel, Device, Extent, IoError, Request};
    use crate::export::ublk::io_slot::Shape;

    /// Discards of odd blocks fail, flushes succeed.
    struct Picky;

    impl Device for Picky {
        fn size(&self) -> u64 {
            1 << 20
        }

        fn channel(self: Arc<Self>) -> Box<dyn Channel> {
            Box::new(Self)
        }

        fn extents(&self, _: u64, _: u64, _: usize) -> Result<Vec<Extent>, IoError> {
            Ok(Vec::new())
        }
    }

    impl Channel for Picky {
        fn submit(&mut self, request: Request<'_>, _: Instant) -> Result<(), IoError> {
            std::thread::sleep(std::time::Duration::from_millis(1));
            match request {
                Request::Discard { offset, .. } if offset / 4096 % 2 == 1 => Err(IoError::NoSpace),
                _ => Ok(()),
            }
        }
    }

    #[test]
    fn every_job_comes_back_once() {
        let shape = Shape { depth: 64, max_io: 4096, user_copy: true, plain: false, helpers: 3 };
        let node = Arc::new(OwnedFd::from(std::fs::File::open("/dev/null").unwrap()));
        let slots = (0..3)
            .map(|_| IoSlot::new(0, shape, Arc::clone(&node), Arc::new(Picky)).unwrap())
            .collect();
        let offload = OffloadPool::open(0, 64, slots).unwrap();
        let now = Instant::now();
        for tag in 0..64u16 {
            let asked = Asked::Discard { offset: u64::from(tag) * 4096, len: 4096 };
            offload.serve(tag, asked, now);
        }
        offload.flush(now);
        let mut done = Vec::new();
        offload.collect(&mut done);
        offload.close(&mut done);
        done.sort_by_key(|answer| answer.tag);
        assert_eq!(done.len(), 65);
        for (tag, answer) in (0..64u16).zip(&done) {
            let result = if tag % 2 == 1 { -libc::ENOSPC } else { 0 };
            assert_eq!((answer.tag, answer.result), (tag, result));
        }
        assert_eq!((done[64].tag, done[64].result), (FLUSH, 0));
    }
}

//! The executor for where io_uring is missing or forbidden: a few threads that call the drive.
//!
//! Invariant: a thread owns the request that it works on, with its memory, so that it may outlive
//! the pool without harm.

use super::{Completion, FAREWELL, Op, Submission};
use crate::error::{Context, Result};
use crate::media::drive::{Drive, DriveError};
use crate::patience::eventually;
use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SendError, Sender, channel};
use std::thread::JoinHandle;
use std::time::Duration;

/// The most threads: more requests at once would gain nothing.
const THREADS_MAX: u32 = 8;

/// What comes back from the threads.
#[derive(Debug)]
pub(super) enum Event {
    Done(Completion),
    Wake,
}

/// The threads, and the channels to and from them.
#[derive(Debug)]
pub(super) struct Pool {
    /// `None` only while it is being dropped.
    jobs: Option<Sender<Submission>>,
    events: Receiver<Event>,
    bell: Sender<Event>,
    stop: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
    in_flight: usize,
}

impl Pool {
    pub(super) fn new(drive: Arc<dyn Drive>, depth: u32) -> Result<Self> {
        let (jobs, taken) = channel();
        let (bell, events) = channel();
        let taken = Arc::new(Mutex::new(taken));
        let stop = Arc::new(AtomicBool::new(false));
        let mut pool =
            Self { jobs: Some(jobs), events, bell, stop, threads: Vec::new(), in_flight: 0 };
        for n in 0..depth.min(THREADS_MAX) {
            let (drive, taken) = (Arc::clone(&drive), Arc::clone(&taken));
            let (events, stop) = (pool.bell.clone(), Arc::clone(&pool.stop));
            let thread = std::thread::Builder::new()
                .name(format!("drive{n}"))
                .spawn(move || work(&*drive, &taken, &events, &stop))
                .context("cannot start a thread for a drive")?;
            pool.threads.push(thread);
        }
        Ok(pool)
    }

    pub(super) fn submit(&mut self, submission: Submission) {
        let Some(jobs) = &self.jobs else { return };
        self.in_flight += 1;
        // Fails only when a drive that panics has ended every thread.
        if let Err(SendError(lost)) = jobs.send(submission) {
            let error = lost.fail(Errno::IO);
            let _ = self.bell.send(Event::Done(lost.finish(Err(error))));
        }
    }

    pub(super) fn wait(&mut self, timeout: Duration, ended: &mut Vec<Completion>) {
        let first = self.events.recv_timeout(timeout).ok();
        for event in first.into_iter().chain(self.events.try_iter()) {
            if let Event::Done(completion) = event {
                self.in_flight -= 1;
                ended.push(completion);
            }
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.in_flight
    }

    pub(super) fn bell(&self) -> Sender<Event> {
        self.bell.clone()
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.jobs = None;
        let ended = || self.threads.iter().all(|thread| thread.is_finished());
        eventually(FAREWELL, Duration::from_millis(1), ended);
        for thread in self.threads.drain(..).filter(|thread| thread.is_finished()) {
            let _ = thread.join();
        }
    }
}

fn work(
    drive: &dyn Drive,
    jobs: &Mutex<Receiver<Submission>>,
    events: &Sender<Event>,
    stop: &AtomicBool,
) {
    loop {
        // The thread that has the lock waits for the next request, the others for the lock.
        let Ok(job) = jobs.lock().recv() else { return };
        if stop.load(Ordering::Relaxed) {
            return;
        }
        if events.send(Event::Done(perform(drive, job))).is_err() {
            return;
        }
    }
}

fn perform(drive: &dyn Drive, mut job: Submission) -> Completion {
    let at = job.at;
    let result: Result<(), DriveError> = match &mut job.action {
        Op::Read(buffer) => drive.read(at, buffer),
        Op::Write(buffer, range) => drive.write(at, &buffer[range.clone()]),
        Op::Zero { len } => drive.zero(at, *len),
        Op::Flush => drive.flush(),
    };
    job.finish(result)
}

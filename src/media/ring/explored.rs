//! The executor for the schedule explorer: the waiting thread carries out the submitted requests,
//! so that threads are switched only where the drive allows it.

use super::{Completion, Op, Submission};
use crate::error::Result;
use crate::media::drive::{Drive, DriveError};
use crate::sync::sleep;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// An event that ends a wait.
#[derive(Debug)]
pub(super) enum Event {
    Wake,
}

/// Submitted requests, and their drive.
pub(super) struct Pool {
    drive: Arc<dyn Drive>,
    jobs: Vec<Submission>,
    woken: Receiver<Event>,
    bell: Sender<Event>,
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").field("jobs", &self.jobs).finish_non_exhaustive()
    }
}

impl Pool {
    pub(super) fn new(drive: Arc<dyn Drive>, _: u32) -> Result<Self> {
        let (bell, woken) = channel();
        Ok(Self { drive, jobs: Vec::new(), woken, bell })
    }

    pub(super) fn submit(&mut self, submission: Submission) {
        self.jobs.push(submission);
    }

    pub(super) fn wait(&mut self, timeout: Duration, ended: &mut Vec<Completion>) {
        if self.jobs.is_empty() && self.woken.try_iter().count() == 0 {
            sleep(timeout);
        }
        for mut job in self.jobs.drain(..) {
            let at = job.at;
            let result: std::result::Result<(), DriveError> = match &mut job.action {
                Op::Read(buffer) => self.drive.read(at, buffer),
                Op::Write(buffer, range) => self.drive.write(at, &buffer[range.clone()]),
                Op::Zero { len } => self.drive.zero(at, *len),
                Op::Flush => self.drive.flush(),
            };
            ended.push(job.finish(result));
        }
    }

    pub(super) fn in_flight(&self) -> usize {
        self.jobs.len()
    }

    pub(super) fn bell(&self) -> Sender<Event> {
        self.bell.clone()
    }
}

//! One thread's access to a volume in memory: shares large requests with helpers, counts the
//! front-end's buffers.

use super::Volume;
use super::io_context::IoContext;
use super::worker_pool::{WORTH_SHARING, Work};
use crate::device::contract::{Channel, IoError, Load, Request};
use crate::device::counters::Counters;
use crate::device::front::Engine;
use crate::ram::store::Session;
use crate::ram::{NoSpace, Unread};
use crate::sync::ready_to_wait;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A thread of a [`Volume`].
pub(super) struct VolumeThread {
    volume: Arc<Volume>,
    io: IoContext,
    /// Bytes of the front-end's buffers, as counted in the budget.
    buffers: u64,
}

impl From<NoSpace> for IoError {
    fn from(_: NoSpace) -> Self {
        Self::NoSpace
    }
}

impl From<Unread> for IoError {
    fn from(unread: Unread) -> Self {
        match unread {
            Unread::Damaged(block) => Self::Corrupt(block),
            Unread::Drive(block) => Self::Lost(block),
        }
    }
}

impl Engine for VolumeThread {
    fn size(&self) -> u64 {
        self.volume.size_now()
    }

    fn discards(&self) -> bool {
        true
    }

    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        let Self { volume, io, .. } = self;
        volume.precedence.take();
        match volume.pool() {
            Some(pool) if buf.len() >= WORTH_SHARING => {
                pool.share(volume.ram(), io, Work::Read { offset, buf })
            }
            _ => io.read(volume.ram(), offset, buf),
        }
    }

    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), IoError> {
        let Self { volume, io, .. } = self;
        volume.precedence.take();
        match volume.pool() {
            Some(pool) if data.len() >= WORTH_SHARING => {
                pool.share(volume.ram(), io, Work::Write { offset, data })
            }
            _ => io.write(volume.ram(), offset, data),
        }
    }

    fn zero(&mut self, offset: u64, len: u64, keep: bool) -> Result<(), IoError> {
        self.io.zero(self.volume.ram(), offset, len, keep)
    }

    /// Memory is as durable as this volume gets. Every later read on any thread sees an
    /// acknowledged write.
    fn flush(&mut self) -> Result<(), IoError> {
        Ok(())
    }

    fn ship(&mut self, load: Load<'_>, scratch: &mut [u8]) -> Result<(), IoError> {
        let Self { volume, io, .. } = self;
        let Load { way, offset, len, mover } = load;
        volume.precedence.take();
        let pool = volume.pool().ok_or(IoError::Unsupported)?;
        pool.share(volume.ram(), io, Work::Move { way, offset, len, mover, scratch })
    }

    fn count_buffers(&mut self, bytes: u64) {
        if bytes != self.buffers {
            let ram = self.volume.ram();
            // Exceed the limit if necessary: a client must be able to discard.
            if bytes > self.buffers {
                ram.make_room(bytes - self.buffers);
            }
            let budget = ram.store().budget();
            budget.add(bytes);
            budget.give(std::mem::replace(&mut self.buffers, bytes));
        }
    }

    fn take_stalled(&mut self) -> Duration {
        std::mem::take(&mut self.io.session.stalled)
    }

    fn leave(&mut self, counters: &Arc<Counters>) {
        self.volume.leave(&self.io.session, counters);
    }
}

impl VolumeThread {
    /// The context of the calling thread.
    pub(super) fn new(volume: Arc<Volume>, session: Session) -> Self {
        ready_to_wait();
        Self { volume, io: IoContext::new(session), buffers: 0 }
    }
}

/// The channel if the store has no place for one more thread: every request fails.
pub(super) struct Refused;

impl Channel for Refused {
    fn submit(&mut self, _: Request<'_>, _: Instant) -> Result<(), IoError> {
        Err(IoError::Busy)
    }
}

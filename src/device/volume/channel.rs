//! One thread's way into a volume: range check, the choice to share the work, counters, latency.

use super::Volume;
use super::io_context::IoContext;
use super::worker_pool::{WORTH_SHARING, Work};
use crate::device::contract::{Channel, IoError, Load, Request, Way};
use crate::device::counters::{Counters, Kind, Outcome};
use crate::ram::store::Session;
use crate::ram::{NoSpace, Unread};
use crate::sync::ready_to_wait;
use std::sync::Arc;
use std::time::Instant;

/// A [`Channel`] of a [`Volume`], in cache lines that no other thread writes to.
#[repr(align(128))]
pub(super) struct VolumeChannel {
    volume: Arc<Volume>,
    io: IoContext,
    counters: Arc<Counters>,
    /// Bytes of the front-end's buffers.
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

impl Channel for VolumeChannel {
    fn submit(&mut self, request: Request<'_>, arrived: Instant) -> Result<(), IoError> {
        let (kind, offset, len) = Kind::of(&request);
        self.count(kind, offset, len, arrived, |channel| channel.serve(request))
    }

    fn ship(
        &mut self,
        load: Load<'_>,
        scratch: &mut [u8],
        arrived: Instant,
    ) -> Result<(), IoError> {
        let Load { way, offset, len, mover } = load;
        let kind = if way == Way::In { Kind::Write } else { Kind::Read };
        self.count(kind, offset, len as u64, arrived, |Self { volume, io, .. }| {
            let pool = volume.pool().ok_or(IoError::Unsupported)?;
            let work = Work::Move { way, offset, len, mover, scratch };
            pool.share(volume.ram(), io, work)
        })
    }

    fn count_buffers(&mut self, bytes: u64) {
        if bytes != self.buffers {
            let ram = self.volume.ram();
            // Without room they are had all the same: a client must be able to discard.
            if bytes > self.buffers {
                ram.make_room(bytes - self.buffers);
            }
            let budget = ram.store().budget();
            budget.add(bytes);
            budget.give(std::mem::replace(&mut self.buffers, bytes));
        }
    }
}

impl VolumeChannel {
    /// For the thread that calls this.
    pub(super) fn new(volume: Arc<Volume>, session: Session, counters: Arc<Counters>) -> Self {
        ready_to_wait();
        Self { volume, io: IoContext::new(session), counters, buffers: 0 }
    }

    /// Has a request served if it is one, and counts how that went.
    fn count(
        &mut self,
        kind: Kind,
        offset: u64,
        len: u64,
        arrived: Instant,
        serve: impl FnOnce(&mut Self) -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        let start = Instant::now();
        let size = self.volume.size_now();
        let result = if offset.checked_add(len).is_none_or(|end| end > size) {
            self.counters.count_invalid();
            Err(IoError::OutOfRange)
        } else {
            serve(self)
        };
        let stalled = std::mem::take(&mut self.io.session.stalled);
        self.counters.count(
            kind,
            Outcome {
                bytes: len,
                failed: result.is_err(),
                waiting: start.saturating_duration_since(arrived) + stalled,
                serving: start.elapsed().saturating_sub(stalled),
            },
        );
        result
    }

    fn serve(&mut self, request: Request<'_>) -> Result<(), IoError> {
        let Self { volume, io, .. } = self;
        let ram = volume.ram();
        match request {
            Request::Read { offset, buf } => match volume.pool() {
                Some(pool) if buf.len() >= WORTH_SHARING => {
                    pool.share(ram, io, Work::Read { offset, buf })
                }
                _ => io.read(ram, offset, buf),
            },
            // Memory is as durable as this volume gets: FUA and flush have nothing to wait for.
            // What a write acknowledged, every later read on any thread sees.
            Request::Write { offset, data, fua: _ } => match volume.pool() {
                Some(pool) if data.len() >= WORTH_SHARING => {
                    pool.share(ram, io, Work::Write { offset, data })
                }
                _ => io.write(ram, offset, data),
            },
            Request::Flush => Ok(()),
            Request::Discard { offset, len } => io.zero(ram, offset, len, false),
            Request::WriteZeroes { offset, len, no_hole, fua: _ } => {
                io.zero(ram, offset, len, no_hole)
            }
        }
    }
}

impl Drop for VolumeChannel {
    fn drop(&mut self) {
        self.count_buffers(0);
        self.volume.leave(&self.io.session, &self.counters);
    }
}

/// A channel of a volume that has no place for one more thread: every request fails.
pub(super) struct Refused;

impl Channel for Refused {
    fn submit(&mut self, _: Request<'_>, _: Instant) -> Result<(), IoError> {
        Err(IoError::Busy)
    }
}

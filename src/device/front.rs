//! The one front of all engines: range check, counters, latency, and the flush of what has to be
//! durable before a request is acknowledged.
//!
//! Invariants: every request is counted exactly once, whether it succeeds or fails; an engine sees
//! only ranges inside the device.

use super::contract::{Channel, IoError, Load, Request, Way, inside};
use super::counters::{Counters, Kind, Outcome};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One thread's access to an engine. Every range that it gets is inside the device.
pub(super) trait Engine: Send {
    /// Size of the device in bytes, now.
    fn size(&self) -> u64;

    /// Whether the engine takes discards.
    fn discards(&self) -> bool;

    /// Whether every change has to be durable before it is acknowledged.
    fn is_sync(&self) -> bool {
        false
    }

    /// Fills `buf` from `offset` on.
    fn read(&mut self, offset: u64, buf: &mut [u8]) -> Result<(), IoError>;

    /// Stores `data` from `offset` on.
    fn write(&mut self, offset: u64, data: &[u8]) -> Result<(), IoError>;

    /// Zeroes a range; with `keep` it stays allocated, if the engine tracks that.
    fn zero(&mut self, offset: u64, len: u64, keep: bool) -> Result<(), IoError>;

    /// Makes all requests that ended before as durable as this engine can.
    fn flush(&mut self) -> Result<(), IoError>;

    /// As [`Channel::ship`].
    fn ship(&mut self, _load: Load<'_>, _scratch: &mut [u8]) -> Result<(), IoError> {
        Err(IoError::Unsupported)
    }

    /// As [`Channel::count_buffers`].
    fn count_buffers(&mut self, _bytes: u64) {}

    /// How long the requests since the last call waited for room.
    fn take_stalled(&mut self) -> Duration {
        Duration::ZERO
    }

    /// The thread ends; what its `counters` have counted stays counted.
    fn leave(&mut self, counters: &Arc<Counters>);
}

/// A [`Channel`] over an engine, in cache lines that no other thread writes to.
#[repr(align(128))]
pub(super) struct Front<E: Engine> {
    engine: E,
    counters: Arc<Counters>,
}

impl<E: Engine> Front<E> {
    pub(super) fn new(engine: E, counters: Arc<Counters>) -> Self {
        Self { engine, counters }
    }

    /// Serves a request that is inside the device, and counts its result.
    fn count(
        &mut self,
        (kind, offset, len): (Kind, u64, u64),
        arrived: Instant,
        serve: impl FnOnce(&mut E) -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        let start = Instant::now();
        let result = match inside(offset, len, self.engine.size()) {
            Ok(()) if kind == Kind::Discard && !self.engine.discards() => Err(IoError::Unsupported),
            Ok(()) => serve(&mut self.engine),
            Err(outside) => {
                self.counters.count_invalid();
                Err(outside)
            }
        };
        let stalled = self.engine.take_stalled();
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
}

/// Serves a request that is inside the device.
fn serve<E: Engine>(engine: &mut E, request: Request<'_>) -> Result<(), IoError> {
    let durable = match request {
        Request::Read { offset, buf } => return engine.read(offset, buf),
        Request::Flush => return engine.flush(),
        Request::Write { offset, data, fua } => {
            engine.write(offset, data)?;
            fua
        }
        Request::Discard { offset, len } => {
            engine.zero(offset, len, false)?;
            false
        }
        Request::WriteZeroes { offset, len, no_hole, fua } => {
            engine.zero(offset, len, no_hole)?;
            fua
        }
    };
    if durable || engine.is_sync() { engine.flush() } else { Ok(()) }
}

impl<E: Engine> Channel for Front<E> {
    fn submit(&mut self, request: Request<'_>, arrived: Instant) -> Result<(), IoError> {
        self.count(Kind::of(&request), arrived, |engine| serve(engine, request))
    }

    fn ship(
        &mut self,
        load: Load<'_>,
        scratch: &mut [u8],
        arrived: Instant,
    ) -> Result<(), IoError> {
        let kind = if load.way == Way::In { Kind::Write } else { Kind::Read };
        let what = (kind, load.offset, load.len as u64);
        self.count(what, arrived, |engine| engine.ship(load, scratch))
    }

    fn count_buffers(&mut self, bytes: u64) {
        self.engine.count_buffers(bytes);
    }
}

impl<E: Engine> Drop for Front<E> {
    fn drop(&mut self) {
        self.engine.count_buffers(0);
        self.engine.leave(&self.counters);
    }
}

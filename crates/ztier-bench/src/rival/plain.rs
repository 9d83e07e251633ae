//! Plain memory behind ztier's front-ends: the cost of an export without an engine.

use crate::sys::map::AlignedBuf;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Instant;
use ztier::device::{Channel, Device, Extent, ExtentKind, IoError, Request};
use ztier::error::Result;

/// Bytes under one lock: large enough that requests rarely cross locks, and small enough that
/// requests rarely share one.
const CHUNK: usize = 2 << 20;

/// A device that copies to and from memory, all of it allocated from the start.
pub struct PlainMemory {
    chunks: Vec<RwLock<AlignedBuf>>,
}

impl PlainMemory {
    /// At least `size` bytes (whole chunks of 2 MiB).
    pub fn new(size: u64) -> Result<Arc<Self>> {
        let count = size.div_ceil(CHUNK as u64);
        let chunk = || {
            let mut memory = AlignedBuf::new(CHUNK)?;
            // Touched now, so that no page faults are measured.
            memory.fill(1);
            Ok(RwLock::new(memory))
        };
        Ok(Arc::new(Self { chunks: (0..count).map(|_| chunk()).collect::<Result<_>>()? }))
    }

    /// Calls `f` with each piece of a range: chunk, range in the chunk, place in the request.
    fn each(
        &self,
        offset: u64,
        len: u64,
        mut f: impl FnMut(&RwLock<AlignedBuf>, std::ops::Range<usize>, usize),
    ) -> std::result::Result<(), IoError> {
        let end = offset.checked_add(len).filter(|&end| end <= self.bytes());
        let end = end.ok_or(IoError::OutOfRange)?;
        let mut at = offset;
        while at < end {
            let (chunk, from) = (at / CHUNK as u64, (at % CHUNK as u64) as usize);
            let n = (CHUNK - from).min((end - at) as usize);
            f(&self.chunks[chunk as usize], from..from + n, (at - offset) as usize);
            at += n as u64;
        }
        Ok(())
    }

    fn bytes(&self) -> u64 {
        self.chunks.len() as u64 * CHUNK as u64
    }
}

impl Device for PlainMemory {
    fn size(&self) -> u64 {
        self.bytes()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        Box::new(Lane(self))
    }

    fn extents(
        &self,
        offset: u64,
        len: u64,
        _: usize,
    ) -> std::result::Result<Vec<Extent>, IoError> {
        match offset.checked_add(len) {
            Some(end) if end <= self.bytes() => Ok(vec![Extent { len, kind: ExtentKind::Data }]),
            _ => Err(IoError::OutOfRange),
        }
    }
}

struct Lane(Arc<PlainMemory>);

impl Channel for Lane {
    fn submit(&mut self, request: Request<'_>, _: Instant) -> std::result::Result<(), IoError> {
        // A poisoned lock only means that another thread panicked between two copies.
        match request {
            Request::Read { offset, buf } => {
                self.0.each(offset, buf.len() as u64, |chunk, range, at| {
                    let len = range.len();
                    let memory = chunk.read().unwrap_or_else(PoisonError::into_inner);
                    buf[at..at + len].copy_from_slice(&memory[range]);
                })
            }
            Request::Write { offset, data, .. } => {
                self.0.each(offset, data.len() as u64, |chunk, range, at| {
                    let len = range.len();
                    let mut memory = chunk.write().unwrap_or_else(PoisonError::into_inner);
                    memory[range].copy_from_slice(&data[at..at + len]);
                })
            }
            Request::Flush => Ok(()),
            Request::Discard { offset, len } | Request::WriteZeroes { offset, len, .. } => {
                self.0.each(offset, len, |chunk, range, _| {
                    chunk.write().unwrap_or_else(PoisonError::into_inner)[range].fill(0);
                })
            }
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn requests_across_chunks_read_back_and_ranges_are_checked() {
        let device = PlainMemory::new(2 * CHUNK as u64).unwrap();
        let mut lane = Arc::clone(&device).channel();
        let offset = CHUNK as u64 - 5;
        let now = Instant::now();
        lane.submit(Request::Write { offset, data: b"0123456789", fua: false }, now).unwrap();
        let mut buf = [0; 10];
        lane.submit(Request::Read { offset, buf: &mut buf }, now).unwrap();
        assert_eq!(&buf, b"0123456789");
        lane.submit(Request::Discard { offset: offset + 4, len: 2 }, now).unwrap();
        lane.submit(Request::Read { offset, buf: &mut buf }, now).unwrap();
        assert_eq!(&buf, b"0123\0\x006789");
        let offset = device.size() - 4;
        let outside = lane.submit(Request::Read { offset, buf: &mut buf }, now);
        assert_eq!(outside, Err(IoError::OutOfRange));
        assert!(device.extents(u64::MAX, 1, 1).is_err());
    }
}

//! A device that records its requests, and what the page cache above it drops.

use super::trace::{Kind, Step};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
use ztier::BLOCK_SIZE;
use ztier::device::{Channel, Device, Extent, IoError, Request};

const BLOCK: u64 = BLOCK_SIZE as u64;

/// Wraps another device, and records its requests in order of arrival.
pub struct Noting {
    inner: Arc<dyn Device>,
    on: AtomicBool,
    noted: Mutex<Noted>,
}

#[derive(Default)]
struct Noted {
    steps: Vec<Step>,
    /// The last block that was read or written with content of this hash.
    blocks: HashMap<u64, u64>,
}

impl Noted {
    /// Notes what blocks from `first` on have.
    fn learn(&mut self, first: u64, content: &[u8]) {
        for (block, content) in (first..).zip(content.as_chunks::<BLOCK_SIZE>().0) {
            self.blocks.insert(hash(content), block);
        }
    }
}

/// Of a block's content, to find the block by.
fn hash(content: &[u8; BLOCK_SIZE]) -> u64 {
    let mut hasher = DefaultHasher::new();
    content.hash(&mut hasher);
    hasher.finish()
}

impl Noting {
    /// Wraps `inner`; records nothing yet.
    pub fn new(inner: Arc<dyn Device>) -> Arc<Self> {
        Arc::new(Self { inner, on: AtomicBool::new(false), noted: Mutex::default() })
    }

    /// Starts recording.
    pub fn start(&self) {
        self.on.store(true, Ordering::Relaxed);
    }

    /// Stops recording; returns what was recorded.
    pub fn stop(&self) -> Vec<Step> {
        self.on.store(false, Ordering::Relaxed);
        std::mem::take(&mut *self.noted()).steps
    }

    fn noted(&self) -> MutexGuard<'_, Noted> {
        self.noted.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn is_on(&self) -> bool {
        self.on.load(Ordering::Relaxed)
    }

    /// The page cache has dropped a page.
    pub fn dropped(&self, page: &[u8; BLOCK_SIZE]) {
        if !self.is_on() {
            return;
        }
        let mut noted = self.noted();
        let Some(&block) = noted.blocks.get(&hash(page)) else { return };
        match noted.steps.last_mut() {
            Some(Step { kind: Kind::Drop, first, count })
                if *first + u64::from(*count) == block && *count < u32::MAX =>
            {
                *count += 1;
            }
            _ => noted.steps.push(Step { kind: Kind::Drop, first: block, count: 1 }),
        }
    }

    fn note(&self, kind: Kind, offset: u64, len: u64) {
        if len == 0 || !self.is_on() {
            return;
        }
        let first = offset / BLOCK;
        let count = (offset + len).div_ceil(BLOCK) - first;
        let step = Step { kind, first, count: u32::try_from(count).unwrap_or(u32::MAX) };
        self.noted().steps.push(step);
    }
}

impl Device for Noting {
    fn size(&self) -> u64 {
        self.inner.size()
    }

    fn discards(&self) -> bool {
        self.inner.discards()
    }

    fn flushes(&self) -> bool {
        self.inner.flushes()
    }

    fn waits(&self) -> bool {
        self.inner.waits()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        let inner = Arc::clone(&self.inner).channel();
        Box::new(NotingChannel { noting: self, inner })
    }

    fn extents(&self, offset: u64, len: u64, most: usize) -> Result<Vec<Extent>, IoError> {
        self.inner.extents(offset, len, most)
    }
}

struct NotingChannel {
    noting: Arc<Noting>,
    inner: Box<dyn Channel>,
}

impl Channel for NotingChannel {
    fn submit(&mut self, request: Request<'_>, arrived: Instant) -> Result<(), IoError> {
        let (kind, offset, len) = match &request {
            Request::Read { offset, buf } => (Kind::Read, *offset, buf.len() as u64),
            Request::Write { offset, data, .. } => (Kind::Write, *offset, data.len() as u64),
            Request::Discard { offset, len } | Request::WriteZeroes { offset, len, .. } => {
                (Kind::Discard, *offset, *len)
            }
            Request::Flush => (Kind::Read, 0, 0),
        };
        self.noting.note(kind, offset, len);
        let learns = self.noting.is_on() && offset.is_multiple_of(BLOCK);
        match request {
            Request::Read { offset, buf } if learns => {
                self.inner.submit(Request::Read { offset, buf: &mut *buf }, arrived)?;
                self.noting.noted().learn(offset / BLOCK, buf);
                Ok(())
            }
            Request::Write { offset, data, .. } if learns => {
                self.noting.noted().learn(offset / BLOCK, data);
                self.inner.submit(request, arrived)
            }
            _ => self.inner.submit(request, arrived),
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::model::{self, ModelDrive, Name};
    use crate::rival::raw::RawDevice;

    #[test]
    fn requests_are_noted_while_that_is_wanted_and_served_as_ever() {
        let name = Name { kind: model::Kind::SsdNull, size: 1 << 20 };
        let drive = Arc::new(ModelDrive::virtual_time(name));
        let noting = Noting::new(Arc::new(RawDevice(drive)));
        let mut lane = Arc::clone(&noting).channel();
        let now = Instant::now();
        let data = [7; 8192];
        lane.submit(Request::Write { offset: 0, data: &data, fua: false }, now).unwrap();
        noting.start();
        lane.submit(Request::Write { offset: 4096, data: &data, fua: false }, now).unwrap();
        let mut back = [0; 4096];
        lane.submit(Request::Read { offset: 8192, buf: &mut back }, now).unwrap();
        lane.submit(Request::Flush, now).unwrap();
        lane.submit(Request::Discard { offset: 0, len: 12288 }, now).unwrap();
        assert_eq!(back, [7; 4096]);
        let step = |kind, first, count| Step { kind, first, count };
        // Of blocks with the same content, the last that was asked for; nothing else is known.
        noting.dropped(&[7; BLOCK_SIZE]);
        noting.dropped(&[8; BLOCK_SIZE]);
        let expected = [
            step(Kind::Write, 1, 2),
            step(Kind::Read, 2, 1),
            step(Kind::Discard, 0, 3),
            step(Kind::Drop, 2, 1),
        ];
        assert_eq!(noting.stop(), expected);
        lane.submit(Request::Read { offset: 8192, buf: &mut back }, now).unwrap();
        assert!(noting.stop().is_empty());
    }
}

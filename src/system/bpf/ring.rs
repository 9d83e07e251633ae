//! The reader's end of a ring of records that programs in the kernel write.
//!
//! Layout: the kernel's `Documentation/bpf/ringbuf.rst`. Invariants: one thread reads a ring; a
//! record is read only after the kernel has marked it as complete, and its place is given back
//! after that.

use super::ring as make;
use crate::error::{Context, Result};
use crate::media::{MappedFor, Mapping, PAGE};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

/// Bytes before each record.
const HEADER: usize = 8;
/// In a record's first word, above its length: it is not complete, it does not count.
const BUSY: u32 = 1 << 31;
const DISCARDED: u32 = 1 << 30;

/// See the module.
pub struct Ring {
    file: OwnedFd,
    /// The position up to which records were read.
    read: Mapping,
    /// The position up to which there are records, and from the second page on the records, twice,
    /// so that each lies in one piece.
    written: Mapping,
    bytes: usize,
}

impl Ring {
    /// A ring of `bytes` bytes, a power of two of pages.
    ///
    /// # Errors
    /// The kernel refuses it.
    pub fn new(bytes: u32) -> Result<Self> {
        let what = "cannot map a ring of the kernel";
        let (file, bytes) = (make(bytes)?, bytes as usize);
        let read = Mapping::shared(&file, MappedFor::Writing, 0, PAGE).context(what)?;
        let len = PAGE + 2 * bytes;
        let written = Mapping::shared(&file, MappedFor::Reading, PAGE as u64, len).context(what)?;
        Ok(Self { file, read, written, bytes })
    }

    /// Its descriptor, for programs.
    pub fn fd(&self) -> RawFd {
        self.file.as_raw_fd()
    }

    /// Waits for a record, at most for `time`.
    pub fn wait(&self, time: Duration) {
        let time = Timespec { tv_sec: time.as_secs() as i64, tv_nsec: time.subsec_nanos().into() };
        // An interruption ends the wait early.
        let _ = poll(&mut [PollFd::new(&self.file, PollFlags::IN)], Some(&time));
    }

    fn position(map: &Mapping) -> &AtomicU64 {
        // SAFETY: the first 8 bytes of a mapping that lives as long as the reference; the kernel
        // and this code use them atomically only.
        unsafe { AtomicU64::from_ptr(map.at(0).cast()) }
    }

    /// Has `take` the complete records of `N` bytes, oldest first; returns their number.
    pub fn take<const N: usize>(&mut self, mut take: impl FnMut(&[u8; N])) -> usize {
        let mut count = 0;
        loop {
            let at = Self::position(&self.read).load(Ordering::Relaxed);
            if at >= Self::position(&self.written).load(Ordering::Acquire) {
                return count;
            }
            let place = PAGE + (at as usize & (self.bytes - 1));
            // SAFETY: inside the mapping, which has the records twice, and aligned to 8 bytes; the
            // kernel changes a header atomically.
            let header = unsafe { AtomicU32::from_ptr(self.written.at(place).cast()) };
            let header = header.load(Ordering::Acquire);
            if header & BUSY != 0 {
                return count;
            }
            let len = (header & !DISCARDED) as usize;
            if header & DISCARDED == 0 && len == N {
                let begin = self.written.at(place + HEADER);
                // Its end is inside, too.
                let _ = self.written.at(place + HEADER + N - 1);
                // SAFETY: `N` bytes inside the mapping. The kernel does not change a complete
                // record before its place is given back, below.
                take(unsafe { &*begin.cast::<[u8; N]>() });
                count += 1;
            }
            let next = at + (HEADER + len).next_multiple_of(8) as u64;
            Self::position(&self.read).store(next, Ordering::Release);
        }
    }
}

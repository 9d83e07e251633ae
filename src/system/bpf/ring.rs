//! The reader's end of a ring of records that programs in the kernel write.
//!
//! Layout: the kernel's `Documentation/bpf/ringbuf.rst`. Invariants: one thread reads a ring; a
//! record is read only after the kernel has marked it as complete, and its place is given back
//! after that; a look at the ring ends, however fast programs write.

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
/// Most records that are read at once: 2 MiB of pages, in some milliseconds.
const AT_ONCE: usize = 512;

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

    /// Has `take` the complete records of `N` bytes, oldest first, and no more than [`AT_ONCE`];
    /// returns their number.
    pub fn take<const N: usize>(&mut self, mut take: impl FnMut(&[u8; N])) -> usize {
        let mut count = 0;
        for _ in 0..AT_ONCE {
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
        count
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::{MemfdFlags, memfd_create};
    use std::fs::File;
    use std::os::unix::fs::FileExt;

    /// Bytes of a test's ring, and of a record in it, with its header.
    const BYTES: usize = 4 * PAGE;
    const RECORD: usize = HEADER + 8;

    /// A ring in a file, full of complete records of 8 bytes, none of which counts yet.
    fn ring() -> (File, Ring) {
        let file = File::from(memfd_create("ring", MemfdFlags::CLOEXEC).unwrap());
        file.set_len((2 * PAGE + 2 * BYTES) as u64).unwrap();
        for record in 0..2 * BYTES / RECORD {
            let at = 2 * PAGE + record * RECORD;
            file.write_all_at(&8u32.to_ne_bytes(), at as u64).unwrap();
        }
        let map = |what, at, len| Mapping::shared(&file, what, at, len).unwrap();
        let read = map(MappedFor::Writing, 0, PAGE);
        let written = map(MappedFor::Reading, PAGE as u64, PAGE + 2 * BYTES);
        let ring = Ring { file: file.try_clone().unwrap().into(), read, written, bytes: BYTES };
        (file, ring)
    }

    /// Writes records up to the `count`-th.
    fn write(file: &File, count: usize) {
        let position = (count * RECORD) as u64;
        file.write_all_at(&position.to_ne_bytes(), PAGE as u64).unwrap();
    }

    #[test]
    fn a_ring_that_is_refilled_as_fast_as_it_is_read_is_left_after_a_while() {
        let (file, mut ring) = ring();
        assert_eq!(ring.take(|_: &[u8; 8]| ()), 0);
        write(&file, 3);
        assert_eq!(ring.take(|_: &[u8; 8]| ()), 3);
        let mut written = 4;
        write(&file, written);
        let refill = |_: &[u8; 8]| {
            assert!(written < 5000, "it never returns");
            written += 1;
            write(&file, written);
        };
        assert_eq!(ring.take(refill), AT_ONCE);
        // Goes on where it was.
        assert_eq!(ring.take(|_: &[u8; 8]| ()), 1);
        // Records of another length count as none, and for the bound.
        write(&file, written + 1000);
        assert_eq!(ring.take(|_: &[u8; 4]| ()), 0);
        assert_eq!(ring.take(|_: &[u8; 8]| ()), 1000 - AT_ONCE);
    }
}

//! The log's head: where the next record goes.
//!
//! One word holds the open segment, the bytes reserved in it, and whether only the cleaner may
//! append. [`LogBuffer::reserve`] moves it by compare-and-swap; only the reserving thread may fill
//! a reservation. [`LogBuffer::seal`] swaps in the next segment and returns the exact end of the
//! last one, whose range is immutable once `filled == end`.
//!
//! Invariants:
//! - reservations of one segment are disjoint, in the order of their making, without gaps;
//! - nothing is reserved in a segment after it was sealed.

use super::format::{SEGMENT_MAX, SEGMENTS_MAX};
use crate::sync::atomic::{AtomicU64, Ordering};

const OFFSET_BITS: u32 = 25;
const SEGMENT_SHIFT: u32 = OFFSET_BITS;
const CLEANER_ONLY: u64 = 1 << 63;
const NO_SEGMENT: u32 = (1 << 25) - 1;

const _: () = assert!((SEGMENT_MAX as u64) < 1 << OFFSET_BITS);
const _: () = assert!(SEGMENTS_MAX < NO_SEGMENT);

/// A range of the log that only the thread which reserved it may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reservation {
    /// Logical segment.
    pub segment: u32,
    /// Bytes from the segment's start.
    pub offset: u32,
    /// Bytes.
    pub len: u32,
}

/// Why nothing could be reserved: this segment is full or the cleaner's, or none is open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full(Option<u32>);

/// The head of the log. Has cache lines of its own, because every writer changes it, while its
/// neighbours in memory are read with every request.
#[derive(Debug)]
#[repr(align(128))]
pub struct LogBuffer {
    head: AtomicU64,
    segment_size: u32,
}

fn pack(segment: u32, offset: u32, cleaner_only: bool) -> u64 {
    let flag = if cleaner_only { CLEANER_ONLY } else { 0 };
    flag | u64::from(segment) << SEGMENT_SHIFT | u64::from(offset)
}

fn segment_of(head: u64) -> u32 {
    (head >> SEGMENT_SHIFT) as u32 & NO_SEGMENT
}

fn offset_of(head: u64) -> u32 {
    head as u32 & ((1 << OFFSET_BITS) - 1)
}

impl LogBuffer {
    /// A log without an open segment.
    pub fn new(segment_size: u32) -> Self {
        Self { head: AtomicU64::new(pack(NO_SEGMENT, segment_size, false)), segment_size }
    }

    /// Reserves `len` bytes at the end of the log.
    ///
    /// # Errors
    /// [`Full`]: another segment has to be opened first.
    pub fn reserve(&self, len: u32, cleaner: bool) -> Result<Reservation, Full> {
        let mut head = self.head.load(Ordering::Acquire);
        loop {
            let (segment, offset) = (segment_of(head), offset_of(head));
            let refused = head & CLEANER_ONLY != 0 && !cleaner;
            if refused || len > self.segment_size - offset {
                return Err(Full((segment != NO_SEGMENT).then_some(segment)));
            }
            match self.head.compare_exchange_weak(
                head,
                head + u64::from(len),
                Ordering::AcqRel,
                Ordering::Acquire,
            ) {
                Ok(_) => return Ok(Reservation { segment, offset, len }),
                Err(now) => head = now,
            }
        }
    }

    /// The open segment and the bytes reserved in it.
    pub fn open(&self) -> Option<(u32, u32)> {
        let head = self.head.load(Ordering::Acquire);
        (segment_of(head) != NO_SEGMENT).then(|| (segment_of(head), offset_of(head)))
    }

    /// Whether `len` bytes could be reserved now.
    pub fn fits(&self, len: u32, cleaner: bool) -> bool {
        let head = self.head.load(Ordering::Acquire);
        (head & CLEANER_ONLY == 0 || cleaner) && len <= self.segment_size - offset_of(head)
    }

    /// Seals the open segment and goes on in `next`. Returns the old segment and its end. The
    /// caller serializes calls.
    pub fn seal(&self, next: u32, cleaner_only: bool) -> Option<(u32, u32)> {
        let old = self.head.swap(pack(next, 0, cleaner_only), Ordering::AcqRel);
        (segment_of(old) != NO_SEGMENT).then(|| (segment_of(old), offset_of(old)))
    }

    /// Lets all threads append to the open segment again.
    pub fn share(&self) {
        self.head.fetch_and(!CLEANER_ONLY, Ordering::AcqRel);
    }
}

impl Full {
    /// The segment that was full.
    pub fn segment(self) -> Option<u32> {
        self.0
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn reservations_follow_each_other_and_end_with_the_segment() {
        let log = LogBuffer::new(SEGMENT_MAX);
        assert_eq!(log.reserve(1, false), Err(Full(None)));
        assert_eq!(log.seal(7, false), None);
        let a = log.reserve(SEGMENT_MAX - 10, false).unwrap();
        let b = log.reserve(10, false).unwrap();
        assert_eq!((a.offset, b.offset, b.segment), (0, SEGMENT_MAX - 10, 7));
        assert_eq!(log.reserve(1, false), Err(Full(Some(7))));
        assert_eq!(log.seal(8, true), Some((7, SEGMENT_MAX)));
        assert_eq!(log.reserve(5, false), Err(Full(Some(8))));
        assert_eq!(log.reserve(5, true).unwrap().offset, 0);
        log.share();
        assert_eq!(log.reserve(5, false).unwrap().offset, 5);
        assert_eq!(log.open(), Some((8, 10)));
    }
}

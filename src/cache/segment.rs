//! A segment: memory of a shard with records side by side, from its begin up to `used`.
//!
//! Invariant: the live records of a segment are those that the index names in it.

use super::policy::Queue;
use super::record::Header;
use crate::media::Frame;

/// A segment of records.
#[derive(Debug)]
pub struct Segment {
    pub(super) frame: Frame,
    pub(super) used: usize,
    /// Records that the index names, and their bytes.
    pub(super) live: u32,
    pub(super) live_bytes: usize,
    pub(super) queue: Queue,
}

impl Segment {
    /// The queue in which it stands.
    pub fn queue(&self) -> Queue {
        self.queue
    }

    /// Records that the index names.
    pub fn live(&self) -> u32 {
        self.live
    }

    /// The header of the record at byte `at`, if there is one.
    pub fn header(&self, at: usize) -> Option<Header> {
        Header::read(self.frame.bytes().get(at..self.used)?)
    }

    /// The bytes of the record at byte `at`, which has this header.
    pub fn bytes(&self, at: usize, header: &Header) -> &[u8] {
        &self.frame.bytes()[at..at + header.record_len()]
    }

    /// Begins to compact the segment: it counts as empty, and [`Self::move_down`] fills it again.
    pub fn begin_again(&mut self) {
        (self.used, self.live, self.live_bytes) = (0, 0, 0);
    }

    /// Moves one of its own records down to the end of the used part; returns its new place.
    pub fn move_down(&mut self, at: usize, header: &Header) -> usize {
        let to = self.used;
        self.frame.bytes_mut().copy_within(at..at + header.record_len(), to);
        self.took(header);
        to
    }

    /// The header at byte `at`, if its record ends before `end`; also behind the used part.
    pub fn header_in(&self, at: usize, end: usize) -> Option<Header> {
        Header::read(self.frame.bytes().get(at..end)?)
    }

    /// Bytes that live and dead records take.
    pub fn used(&self) -> usize {
        self.used
    }

    /// Bytes of the segment.
    pub fn len(&self) -> usize {
        self.frame.bytes().len()
    }

    /// Whether there is room for `space` bytes.
    pub fn fits(&self, space: usize) -> bool {
        self.used + space <= self.len()
    }

    /// Appends a record, for which there is room; returns its place.
    pub fn append(&mut self, record: &[u8], header: &Header) -> usize {
        let at = self.used;
        self.frame.bytes_mut()[at..at + record.len()].copy_from_slice(record);
        self.took(header);
        at
    }

    fn took(&mut self, header: &Header) {
        self.used += header.space();
        self.live += 1;
        self.live_bytes += header.space();
    }
}

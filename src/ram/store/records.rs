//! The records of a segment, one after the other.

use super::format::{HEADER, Header, Location};

/// Which live records to move.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Which {
    /// All of them; hot records stay hot.
    All,
    /// Only the hot ones; they become cold.
    Hot,
}

/// The records of a segment, in order. Ends at the segment's end, or where the chain of lengths is
/// broken: records behind that cannot be found this way.
pub(super) struct Records<'a> {
    bytes: &'a [u8],
    offset: u32,
    segment: u32,
}

impl<'a> Records<'a> {
    /// The records of `segment`, whose bytes are `bytes`.
    pub(super) fn of(segment: u32, bytes: &'a [u8]) -> Self {
        Self { bytes, offset: 0, segment }
    }
}

impl Iterator for Records<'_> {
    type Item = (Header, Location);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.offset as usize..)?;
        let header = Header::decode(*rest.first_chunk::<HEADER>()?)?;
        let parts = header.coding.parts();
        let at = Location { segment: self.segment, offset: self.offset, len: header.len, parts };
        let end = self.offset + at.record_len();
        if end as usize > self.bytes.len() {
            return None;
        }
        self.offset = end;
        Some((header, at))
    }
}

//! The summary of a segment: the tables of all its chunks, in the first chunk of the next segment.
//!
//! With a summary, recovery reads one place for a segment of many small chunks, instead of each
//! chunk. Invariants: a summary describes the whole segment right before its own; it only repeats
//! the chunks' tables, so without it recovery reads those; recovery believes it only for chunks
//! that were certainly durable.

use super::chunk::{Sealed, read_entries};
use super::options::CHUNK_MAX;
use crate::log::disk::format::{ENTRY, Entry, Header};
use crate::log::planted::mark;

/// A segment with fewer chunks is read as fast without a summary; the simulator's segments are
/// small.
const CHUNKS_MIN: usize = if cfg!(sim) { 2 } else { 4 };
/// A summary takes at most `1 / PART` of its segment.
const PART: u32 = 8;
/// Bytes before the list of chunks.
const FRONT: usize = 40;
/// Bytes of a chunk in that list.
const CHUNK: usize = 12;

/// The summary of the segment that is being filled.
#[derive(Debug)]
struct Growing {
    segment: u64,
    epoch: u64,
    chunk: u64,
    prev: u32,
    /// Bytes of the segment that its chunks take.
    used: u32,
    chunks: Vec<[u32; 3]>,
    tables: Vec<u8>,
    /// A chunk does not fit, or does not follow the one before: no summary is made.
    is_spoiled: bool,
}

/// The summaries that a log makes.
#[derive(Debug, Default)]
pub(super) struct Summaries {
    growing: Option<Growing>,
    due: Option<Vec<u8>>,
}

impl Summaries {
    /// Begins the summary of a segment that is taken into use; that of the segment before is due.
    pub(super) fn begin(&mut self, segment: u64, epoch: u64, chunk: u64, prev: u32, size: u32) {
        let (chunks, tables) = (Vec::new(), Vec::new());
        let fresh =
            Growing { segment, epoch, chunk, prev, used: 0, chunks, tables, is_spoiled: false };
        let before = self.growing.replace(fresh);
        self.due = before.filter(|s| s.segment + 1 == segment).and_then(|s| s.finish(size));
    }

    /// Adds a closed chunk.
    pub(super) fn add(&mut self, sealed: &Sealed, size: u32) {
        let Some(growing) = &mut self.growing else { return };
        let header = &sealed.header;
        let follows = header.segment == growing.segment
            && header.offset == growing.used
            && header.chunk == growing.chunk + growing.chunks.len() as u64;
        let table = &sealed.table;
        let len = growing.len() + CHUNK + table.len();
        if !follows || growing.is_spoiled || len > most(size) {
            growing.is_spoiled = true;
            return;
        }
        growing.used += header.len;
        growing.chunks.push([header.offset, header.len, header.entries]);
        growing.tables.extend_from_slice(table);
    }

    /// The summary for the first chunk of the new segment, if one is due.
    pub(super) fn take(&mut self) -> Option<Vec<u8>> {
        self.due.take()
    }
}

/// Bytes of the longest summary in segments of `size` bytes; its chunk has room for more.
fn most(size: u32) -> usize {
    (size / PART).min(CHUNK_MAX / 2) as usize
}

impl Growing {
    fn len(&self) -> usize {
        FRONT + self.chunks.len() * CHUNK + self.tables.len()
    }

    fn finish(self, size: u32) -> Option<Vec<u8>> {
        if self.is_spoiled || self.chunks.len() < CHUNKS_MIN || self.len() > most(size) {
            return None;
        }
        mark("summary.made");
        let mut bytes = Vec::with_capacity(self.len());
        bytes.extend(self.segment.to_le_bytes());
        bytes.extend(self.epoch.to_le_bytes());
        bytes.extend(self.chunk.to_le_bytes());
        bytes.extend(self.prev.to_le_bytes());
        bytes.extend((self.chunks.len() as u32).to_le_bytes());
        bytes.extend([0; FRONT - 32]);
        bytes.extend(self.chunks.iter().flatten().flat_map(|n| n.to_le_bytes()));
        bytes.extend(self.tables);
        Some(bytes)
    }
}

/// A decoded summary.
#[derive(Debug)]
pub(in crate::log) struct Summary {
    /// The segment that it describes.
    pub segment: u64,
    /// Its epoch.
    pub epoch: u64,
    /// Its first chunk.
    pub chunk: u64,
    /// CRC of the header before that chunk.
    pub prev: u32,
    /// Its chunks. Their headers lack what a summary does not repeat: `table`, `prev`, `durable`.
    pub chunks: Vec<(Header, Vec<Entry>)>,
}

impl Summary {
    /// Decodes a summary; `None` if the bytes are invalid.
    pub(in crate::log) fn read(bytes: &[u8]) -> Option<Self> {
        let (front, rest) = bytes.split_at_checked(FRONT)?;
        let get8 = |at: usize| Some(u64::from_le_bytes(front.get(at..at + 8)?.try_into().ok()?));
        let (segment, epoch, chunk) = (get8(0)?, get8(8)?, get8(16)?);
        let (prev, count) = (get8(24)? as u32, (get8(24)? >> 32) as usize);
        let (list, mut tables) = rest.split_at_checked(count.checked_mul(CHUNK)?)?;
        let mut chunks = Vec::with_capacity(count);
        let mut used = 0;
        for (i, numbers) in list.chunks_exact(CHUNK).enumerate() {
            let get4 = |at: usize| numbers.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
            let (offset, len, entries) = (get4(0)?, get4(4)?, get4(8)?);
            let chunk = chunk.checked_add(i as u64)?;
            let header = Header {
                epoch,
                chunk,
                segment,
                offset,
                len,
                entries,
                table: 0,
                prev: 0,
                durable: 0,
            };
            let (table, after) = tables.split_at_checked(entries as usize * ENTRY)?;
            tables = after;
            if offset != used {
                return None;
            }
            used = offset.checked_add(len)?;
            chunks.push((header, read_entries(&header, table)?));
        }
        (!chunks.is_empty()).then_some(Self { segment, epoch, chunk, prev, chunks })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::chunk::{Closing, Open};
    use super::*;
    use crate::log::disk::format::Kind;
    use crate::media::Buffer;

    #[test]
    fn a_summary_says_what_the_chunks_said() {
        let mut summaries = Summaries::default();
        summaries.begin(7, 99, 20, 5, 1 << 20);
        let (mut offset, mut chunks) = (0, Vec::new());
        for chunk in 20..26 {
            let mut open = Open::new(7, offset, 99, Buffer::new(32 << 10));
            for block in 0..chunk {
                open.push_range(Entry::Range { kind: Kind::Zeros, block, count: chunk });
            }
            let sealed = open.close(Closing { chunk, prev: 1, durable: 2 });
            summaries.add(&sealed, 1 << 20);
            offset += sealed.header.len;
            chunks.push(sealed);
        }
        summaries.begin(8, 99, 26, 1, 1 << 20);
        let bytes = summaries.take().unwrap();
        let read = Summary::read(&bytes).unwrap();
        assert_eq!((read.segment, read.epoch, read.chunk, read.prev), (7, 99, 20, 5));
        assert_eq!(read.chunks.len(), 6);
        for ((header, entries), sealed) in read.chunks.iter().zip(&chunks) {
            assert_eq!((header.chunk, header.len), (sealed.header.chunk, sealed.header.len));
            assert_eq!(entries, &sealed.entries);
        }
        for len in 0..bytes.len() {
            assert!(Summary::read(&bytes[..len]).is_none(), "{len} bytes");
        }
        assert!(summaries.take().is_none());
    }

    #[test]
    fn a_segment_of_few_chunks_or_with_a_gap_has_none() {
        let mut summaries = Summaries::default();
        for gap in [0, 4096] {
            summaries.begin(1, 9, 0, 0, 1 << 20);
            let mut offset = 0;
            for chunk in 0..if gap == 0 { 3 } else { 6 } {
                let closing = Closing { chunk, prev: 0, durable: 0 };
                let sealed = Open::new(1, offset, 9, Buffer::new(8192)).close(closing);
                summaries.add(&sealed, 1 << 20);
                offset += sealed.header.len + gap;
            }
            summaries.begin(2, 9, 6, 0, 1 << 20);
            assert!(summaries.take().is_none());
        }
    }
}

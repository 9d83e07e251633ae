//! A chunk while it takes changes, and after it was closed.
//!
//! Invariants: payloads lie one after the other behind the header, at multiples of [`GRANULE`]; the
//! table fills the end of the chunk; what is between them is zero. A closed chunk takes no change;
//! when all its payloads are there, its bytes are completed, and never change again. A chunk that
//! has to be written elsewhere is made anew.

use super::fill::{Filling, Fills};
use super::kept::{Kept, Left};
use crate::log::disk::format::{CLUSTER, Data, ENTRY, Entry, GRANULE, HEADER, Header, Kind, Seed};
use crate::log::planted::{self, Bug};
use crate::media::{ALIGN, Buffer};
use std::sync::Arc;

/// A chunk that takes changes.
pub struct Open {
    /// The segment that it is in.
    pub segment: u64,
    /// Where in the segment it begins, in bytes.
    pub offset: u32,
    /// Epoch of the segment.
    pub epoch: u64,
    capacity: usize,
    used: usize,
    entries: Vec<Entry>,
    /// Whether an entry is not a copy.
    changes: bool,
    bytes: Filling,
}

/// What the header of a closing chunk needs.
#[derive(Clone, Copy, Debug)]
pub struct Closing {
    /// Number of the chunk.
    pub chunk: u64,
    /// CRC of the header before.
    pub prev: u32,
    /// Chunks below this are durable.
    pub durable: u64,
}

/// A closed chunk.
pub struct Sealed {
    /// Its header.
    pub header: Header,
    /// CRC of the header, for the next one.
    pub sum: u32,
    /// Its changes and copies, in log order.
    pub entries: Vec<Entry>,
    /// The entries as they are on the drive.
    pub table: Vec<u8>,
    front: [u8; HEADER],
    /// Its payloads, and where they end, until all are there.
    filling: Option<(Filling, usize)>,
    /// The whole chunk, once all payloads are there; its first `header.len` bytes count.
    bytes: Option<Arc<Buffer>>,
}

/// A payload in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Payload<'a> {
    /// The payload is there.
    Filled(&'a [u8]),
    /// The writer has not copied the payload yet.
    Filling,
}

impl<'a> From<Option<&'a [u8]>> for Payload<'a> {
    fn from(bytes: Option<&'a [u8]>) -> Self {
        bytes.map_or(Self::Filling, Self::Filled)
    }
}

impl Open {
    /// An empty chunk that takes at most `bytes`.
    pub fn new(segment: u64, offset: u32, epoch: u64, bytes: Buffer) -> Self {
        let (capacity, entries) = (bytes.len(), Vec::new());
        let bytes = Filling::new(bytes);
        let (used, changes) = (HEADER, false);
        Self { segment, offset, epoch, capacity, used, entries, changes, bytes }
    }

    /// Whether it holds no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Whether the chunk has changes, not only copies.
    pub fn has_changes(&self) -> bool {
        self.changes
    }

    /// Whether some payload is not there yet; then [`Fills::finish`] will report a waiter.
    pub fn awaits_fill(&self) -> bool {
        self.bytes.awaits()
    }

    /// Length of the chunk if it were closed now, in bytes.
    pub fn len(&self) -> usize {
        (self.used + self.entries.len() * ENTRY).next_multiple_of(ALIGN)
    }

    /// Whether a payload of `payload` bytes, and its entry, fit.
    pub fn has_room(&self, payload: usize) -> bool {
        self.has_room_for(payload, 1)
    }

    /// Whether a payload of `payload` bytes, and the entries of its `blocks`, fit.
    pub fn has_room_for(&self, payload: usize, blocks: usize) -> bool {
        let len = payload.next_multiple_of(GRANULE as usize);
        let fits = self.used + len + (self.entries.len() + blocks) * ENTRY <= self.capacity;
        fits && (payload == 0 || self.bytes.has_slot())
    }

    /// Offset of the next payload in the segment, in bytes.
    pub fn next_offset(&self) -> u32 {
        self.offset + self.used as u32
    }

    /// Adds the entry of a payload of this length and CRC, for which [`Self::has_room`], and
    /// reserves its place, which is to be filled.
    pub fn reserve(
        &mut self,
        block: u64,
        kind: Kind,
        (len, crc): (usize, u32),
        fills: &mut Fills,
    ) -> Data {
        let offset = self.next_offset();
        let seed = Seed { epoch: self.epoch, segment: self.segment, offset, block };
        let (len, check) = (len as u32, seed.check(crc));
        let data = Data { block, kind, len, offset, check, copy: false };
        self.push(data, fills);
        data
    }

    /// Adds a copy of what the backing store has, with its payload.
    pub fn append_copy(&mut self, block: u64, kind: Kind, payload: &[u8], crc: u32) -> Data {
        let offset = self.next_offset();
        let seed = Seed { epoch: self.epoch, segment: self.segment, offset, block };
        let (len, check) = (payload.len() as u32, seed.check(crc));
        let data = Data { block, kind, len, offset, check, copy: true };
        let mut fills = Fills::default();
        self.push(data, &mut fills);
        fills.fill(payload);
        fills.finish();
        data
    }

    /// Adds a cluster of the blocks from `first` on, for which [`Self::has_room_for`]: reserves the
    /// place of its payload, of this length and CRC, and adds an entry for each block.
    pub fn reserve_cluster(
        &mut self,
        first: u64,
        (len, crc): (usize, u32),
        fills: &mut Fills,
    ) -> [Data; CLUSTER] {
        let (offset, epoch, segment) = (self.next_offset(), self.epoch, self.segment);
        let all = std::array::from_fn(|i| {
            let block = first + i as u64;
            let check = Seed { epoch, segment, offset, block }.check(crc);
            let (kind, len) = (Kind::Cluster, len as u32);
            Data { block, kind, len, offset, check, copy: false }
        });
        self.take(len, fills);
        self.changes = true;
        self.entries.extend(all.map(Entry::Data));
        all
    }

    /// Like [`Self::reserve`], with the payload filled.
    pub fn append(&mut self, block: u64, kind: Kind, payload: &[u8], crc: u32) {
        let mut fills = Fills::default();
        self.reserve(block, kind, (payload.len(), crc), &mut fills);
        fills.fill(payload);
    }

    fn push(&mut self, data: Data, fills: &mut Fills) {
        debug_assert!(self.has_room(data.len as usize) && data.offset == self.next_offset());
        self.take(data.len as usize, fills);
        self.changes |= !data.copy;
        self.entries.push(Entry::Data(data));
    }

    /// Reserves the place of a payload.
    fn take(&mut self, len: usize, fills: &mut Fills) {
        let from = self.used;
        self.used = (from + len).next_multiple_of(GRANULE as usize);
        fills.reserve(&mut self.bytes, from..self.used);
    }

    /// Adds an entry without payload.
    pub fn push_range(&mut self, entry: Entry) {
        debug_assert!(self.has_room(0));
        self.changes = true;
        self.entries.push(entry);
    }

    /// The bytes at an offset of the segment, if they are in this chunk.
    pub fn payload(&self, segment: u64, offset: u32, len: u32) -> Option<Payload<'_>> {
        let from = offset.checked_sub(self.offset)? as usize;
        let end = from + len as usize;
        (segment == self.segment && end <= self.used).then(|| self.bytes.read(from..end).into())
    }

    /// Returns the memory that the chunk does not use: the chunk grows no more.
    pub fn settle(&mut self, kept: &mut Kept) {
        let len = self.len();
        kept.close(&mut self.bytes, len);
    }

    /// Closes the chunk, of which some payloads may not be there yet.
    pub fn close(self, closing: Closing) -> Sealed {
        let (len, place) = (self.len(), (self.segment, self.offset, self.epoch));
        let filling = Some((self.bytes, self.used));
        Sealed { filling, ..Sealed::without_bytes(len, place, self.entries, closing) }
    }
}

impl Sealed {
    fn without_bytes(
        len: usize,
        (segment, offset, epoch): (u64, u32, u64),
        entries: Vec<Entry>,
        closing: Closing,
    ) -> Self {
        let mut header = Header {
            epoch,
            chunk: closing.chunk,
            segment,
            offset,
            len: len as u32,
            entries: entries.len() as u32,
            table: 0,
            prev: closing.prev,
            durable: closing.durable,
        };
        let table: Vec<u8> = entries.iter().flat_map(Entry::encode).collect();
        header.table = header.table_check(&table);
        let (front, sum) = header.encode();
        Self { header, sum, entries, table, front, filling: None, bytes: None }
    }

    /// Completes the bytes; `false` while some payload is not there yet, and [`Fills::finish`] will
    /// report a waiter.
    pub fn complete(&mut self) -> bool {
        let Some((filling, used)) = self.filling.take() else { return true };
        let len = self.header.len as usize;
        let mut bytes = match filling.into_filled() {
            Ok(bytes) => bytes,
            Err(filling) if planted::on(Bug::WriteUnfilled) => filling.snapshot(),
            Err(filling) => {
                self.filling = Some((filling, used));
                return false;
            }
        };
        let table = self.header.table_at();
        bytes[used..table].fill(0);
        bytes[table..len].copy_from_slice(&self.table);
        bytes[..HEADER].copy_from_slice(&self.front);
        self.bytes = Some(Arc::new(bytes));
        true
    }

    /// Its bytes, if they are complete; `header.len` of them count.
    pub fn bytes(&self) -> Option<&Arc<Buffer>> {
        self.bytes.as_ref()
    }

    /// The bytes at an offset of the segment, if they are in this chunk.
    pub fn payload(&self, segment: u64, offset: u32, len: u32) -> Option<Payload<'_>> {
        let from = offset.checked_sub(self.header.offset)? as usize;
        let end = from + len as usize;
        let ours = segment == self.header.segment && end <= self.header.len as usize;
        ours.then(|| match (&self.filling, &self.bytes) {
            (Some((filling, _)), _) => filling.read(from..end).into(),
            (None, bytes) => bytes.as_ref().map(|bytes| &bytes[from..end]).into(),
        })
    }

    /// The `i`-th chunk that another process left, at a new place.
    pub(super) fn again(
        left: &Left,
        (kept, i): (&mut Kept, usize),
        (segment, offset, epoch): (u64, u32, u64),
        closing: Closing,
    ) -> Self {
        let len = left.len() as usize;
        let mut bytes = Buffer::new(len);
        let mut entries = Vec::with_capacity(left.entries.len());
        for entry in &left.entries {
            entries.push(match entry {
                Entry::Data(data) => {
                    let from = data.offset as usize;
                    if let Some(payload) = kept.payload(i, data) {
                        bytes[from..from + payload.len()].copy_from_slice(payload);
                    }
                    let seed =
                        Seed { epoch, segment, offset: offset + data.offset, block: data.block };
                    let check = seed.check(data.check);
                    Entry::Data(Data { offset: seed.offset, check, ..*data })
                }
                range @ Entry::Range { .. } => *range,
            });
        }
        let again = Self::without_bytes(len, (segment, offset, epoch), entries, closing);
        bytes[..HEADER].copy_from_slice(&again.front);
        bytes[again.header.table_at()..].copy_from_slice(&again.table);
        Self { bytes: Some(Arc::new(bytes)), ..again }
    }

    /// This chunk at another place; `bytes` are its complete bytes.
    pub fn moved(
        &self,
        bytes: &Buffer,
        (segment, offset, epoch): (u64, u32, u64),
        closing: Closing,
    ) -> Self {
        let from = &self.header;
        let seed =
            |epoch, segment, d: &Data, offset| Seed { epoch, segment, offset, block: d.block };
        let entries = self.entries.iter().map(|entry| match entry {
            Entry::Data(d) => {
                let to = d.offset - from.offset + offset;
                let old = seed(from.epoch, from.segment, d, d.offset);
                let later = d.kind == Kind::Cluster && !d.block.is_multiple_of(CLUSTER as u64);
                let check = if later && planted::on(Bug::MoveFirstOfCluster) {
                    d.check
                } else {
                    old.moved(d.check, &seed(epoch, segment, d, to))
                };
                Entry::Data(Data { offset: to, check, ..*d })
            }
            range @ Entry::Range { .. } => *range,
        });
        let len = from.len as usize;
        let moved = Self::without_bytes(len, (segment, offset, epoch), entries.collect(), closing);
        let mut copy = Buffer::new(len);
        copy.copy_from_slice(&bytes[..len]);
        copy[..HEADER].copy_from_slice(&moved.front);
        copy[moved.header.table_at()..].copy_from_slice(&moved.table);
        Self { bytes: Some(Arc::new(copy)), ..moved }
    }
}

/// Decodes a table; `None` if the table is not the header's, or invalid.
pub fn read_table(header: &Header, table: &[u8]) -> Option<Vec<Entry>> {
    (header.table_check(table) == header.table).then(|| read_entries(header, table))?
}

/// Decodes a table that certainly is the header's; `None` if it is invalid.
pub fn read_entries(header: &Header, table: &[u8]) -> Option<Vec<Entry>> {
    let end = header.offset.checked_add(header.len)?;
    let inside = |d: &Data| {
        d.offset >= header.offset + HEADER as u32
            && d.offset.is_multiple_of(GRANULE)
            && d.offset.checked_add(d.len).is_some_and(|to| to <= end)
    };
    let read = |b| match Entry::decode(b)? {
        Entry::Data(d) => inside(&d).then_some(Entry::Data(d)),
        range @ Entry::Range { .. } => Some(range),
    };
    table.chunks_exact(ENTRY).map(read).collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::options::CHUNK_MIN;
    use super::*;
    use crate::log::disk::format::crc;

    fn filled() -> Open {
        let mut open = Open::new(7, 4096, 99, Buffer::new(32 << 10));
        for block in 0..3 {
            let payload = vec![block as u8 + 1; 1000];
            open.append(block, Kind::Lz4, &payload, crc(&payload));
        }
        open.push_range(Entry::Range { kind: Kind::Zeros, block: 50, count: 9 });
        open
    }

    /// The chunk, complete.
    fn closed(open: Open, closing: Closing) -> Sealed {
        let mut sealed = open.close(closing);
        assert!(sealed.complete());
        sealed
    }

    fn check(sealed: &Sealed) {
        let bytes = sealed.bytes().unwrap();
        let (header, sum) = Header::decode(bytes).unwrap();
        assert_eq!((header, sum), (sealed.header, sealed.sum));
        let table = &bytes[header.table_at()..header.len as usize];
        assert_eq!(read_table(&header, table).unwrap(), sealed.entries);
        for entry in &sealed.entries {
            let Entry::Data(d) = entry else { continue };
            let found = sealed.payload(header.segment, d.offset, d.len);
            let Some(Payload::Filled(payload)) = found else { panic!("{d:?}") };
            let Header { epoch, segment, .. } = header;
            let seed = Seed { epoch, segment, offset: d.offset, block: d.block };
            assert!(seed.fits(payload, d.check));
            assert_eq!(payload, vec![d.block as u8 + 1; 1000]);
        }
    }

    #[test]
    fn a_chunk_says_what_was_put_into_it_also_elsewhere() {
        let open = filled();
        assert_eq!(open.payload(7, 4096 + 128, 4), Some(Payload::Filled(&[1; 4])));
        let sealed = closed(open, Closing { chunk: 5, prev: 6, durable: 4 });
        assert_eq!(sealed.header.len, 4096);
        check(&sealed);
        let closing = Closing { chunk: 5, prev: 6, durable: 4 };
        let moved = sealed.moved(sealed.bytes().unwrap(), (9, 12288, 100), closing);
        assert_eq!(moved.header.offset, 12288);
        check(&moved);
    }

    #[test]
    fn the_blocks_of_a_cluster_share_a_payload_and_no_check_word() {
        let mut open = Open::new(7, 4096, 99, Buffer::new(32 << 10));
        let payload = [5; 3 * GRANULE as usize];
        let mut fills = Fills::default();
        let all = open.reserve_cluster(8, (payload.len(), crc(&payload)), &mut fills);
        fills.fill(&payload);
        fills.finish();
        open.append(2, Kind::Raw, &[6; 100], crc(&[6; 100]));
        let closing = Closing { chunk: 5, prev: 6, durable: 4 };
        let sealed = closed(open, closing);
        let moved = sealed.moved(sealed.bytes().unwrap(), (9, 12288, 100), closing);
        for (sealed, epoch) in [(&sealed, 99), (&moved, 100)] {
            let segment = sealed.header.segment;
            for (i, entry) in sealed.entries[..CLUSTER].iter().enumerate() {
                let Entry::Data(d) = *entry else { panic!("{entry:?}") };
                assert_eq!((d.block, d.kind, d.len), (8 + i as u64, Kind::Cluster, 48));
                let found = sealed.payload(segment, d.offset, d.len);
                let Some(Payload::Filled(bytes)) = found else { panic!("{d:?}") };
                assert_eq!(bytes, payload);
                let seed = Seed { epoch, segment, offset: d.offset, block: d.block };
                assert!(seed.fits(bytes, d.check));
                assert!(!Seed { block: d.block ^ 1, ..seed }.fits(bytes, d.check));
            }
        }
        assert!(all.iter().all(|d| d.offset == all[0].offset));
    }

    #[test]
    fn a_chunk_takes_what_fits_and_no_more() {
        let mut open = Open::new(0, 0, 1, Buffer::new(CHUNK_MIN as usize));
        assert!(open.has_room(4096));
        let mut blocks = 0;
        while open.has_room(100) {
            open.append(blocks, Kind::Lz4, &[1; 100], 0);
            blocks += 1;
        }
        assert_eq!(blocks, (8192 - 128) / (112 + 16));
        let sealed = closed(open, Closing { chunk: 0, prev: 0, durable: 0 });
        assert_eq!(sealed.header.len, CHUNK_MIN);
    }

    #[test]
    fn an_empty_chunk_is_a_mark() {
        let open = Open::new(0, 0, 1, Buffer::new(CHUNK_MIN as usize));
        assert!(open.is_empty());
        let sealed = closed(open, Closing { chunk: 8, prev: 0, durable: 8 });
        assert_eq!((sealed.header.len, sealed.header.entries), (4096, 0));
        check(&sealed);
    }

    #[test]
    fn a_closed_chunk_is_complete_when_its_last_payload_is_there() {
        let (mut open, mut fills) = (filled(), [Fills::default(), Fills::default()]);
        let payloads = [[7; 1000], [8; 1000]];
        for ((block, fills), payload) in (6..).zip(&mut fills).zip(&payloads) {
            open.reserve(block, Kind::Lz4, (1000, crc(payload)), fills);
        }
        let Some(Entry::Data(last)) = open.entries.last().copied() else { panic!("no entry") };
        assert_eq!(open.payload(7, last.offset, 1000), Some(Payload::Filling));
        assert!(open.awaits_fill());
        let mut sealed = open.close(Closing { chunk: 5, prev: 6, durable: 4 });
        assert!(!sealed.complete() && sealed.bytes().is_none());
        assert_eq!(sealed.payload(7, 4096 + 128, 4), Some(Payload::Filled(&[1; 4])));
        assert_eq!(sealed.payload(7, last.offset, 1000), Some(Payload::Filling));
        for (fills, payload) in fills.iter_mut().zip(&payloads).rev() {
            assert!(!sealed.complete());
            fills.fill(payload);
            assert_eq!(fills.finish(), payload[0] == 7, "the last one tells");
        }
        assert!(sealed.complete());
        check(&sealed);
    }
}

//! A chunk while it is filled, and after it was closed.
//!
//! Invariants: payloads lie one after the other behind the header, at multiples of [`GRANULE`]; the
//! table fills the end of the chunk; what is between them is zero. A closed chunk never changes;
//! one that has to be written elsewhere is made anew.

use super::format::{CLUSTER, Data, ENTRY, Entry, GRANULE, HEADER, Header, Kind, Stamp};
use super::planted::{self, Bug};
use crate::media::{ALIGN, Buffer};
use std::sync::Arc;

/// Most bytes in a chunk.
pub const CHUNK_MAX: u32 = 1 << 20;
/// With less room than this a segment is finished: the least chunk with one incompressible block.
pub const CHUNK_MIN: u32 = 8192;

/// A chunk that is being filled.
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
    bytes: Buffer,
}

/// What a closing chunk is told.
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
#[derive(Clone, Debug)]
pub struct Sealed {
    /// Its header.
    pub header: Header,
    /// CRC of the header, for the next one.
    pub sum: u32,
    /// What it changes.
    pub entries: Vec<Entry>,
    /// Its bytes; `header.len` of them count.
    pub bytes: Arc<Buffer>,
}

impl Open {
    /// An empty chunk with room for `capacity` bytes; `bytes` is memory to use, if there is some.
    pub fn new(
        segment: u64,
        offset: u32,
        epoch: u64,
        capacity: u32,
        bytes: Option<Buffer>,
    ) -> Self {
        let capacity = capacity as usize;
        let bytes = bytes.filter(|b| b.len() >= capacity);
        Self {
            segment,
            offset,
            epoch,
            capacity,
            used: HEADER,
            entries: Vec::new(),
            bytes: bytes.unwrap_or_else(|| Buffer::new(capacity)),
        }
    }

    /// Whether it holds no entry.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Bytes that it would take if it were closed now.
    pub fn len(&self) -> usize {
        (self.used + self.entries.len() * ENTRY).next_multiple_of(ALIGN)
    }

    /// Whether a payload of so many bytes, and its entry, fit.
    pub fn has_room(&self, payload: usize) -> bool {
        self.has_room_for(payload, 1)
    }

    /// Whether a payload of so many bytes, and the entries of all blocks in it, fit.
    pub fn has_room_for(&self, payload: usize, blocks: usize) -> bool {
        let payload = payload.next_multiple_of(GRANULE as usize);
        self.used + payload + (self.entries.len() + blocks) * ENTRY <= self.capacity
    }

    /// Where the next payload goes, in bytes from the segment's begin.
    pub fn next_offset(&self) -> u32 {
        self.offset + self.used as u32
    }

    /// Adds a payload, for which [`Self::has_room`], with its CRC, and the entry that describes it.
    pub fn append(&mut self, block: u64, kind: Kind, payload: &[u8], crc: u32) -> Data {
        let offset = self.next_offset();
        let stamp = Stamp { epoch: self.epoch, segment: self.segment, offset, block };
        let check = stamp.check(crc);
        let data = Data { block, kind, len: payload.len() as u32, offset, check };
        self.push(data, payload);
        data
    }

    /// Adds the payload of a cluster whose blocks are from `first` on, for which
    /// [`Self::has_room_for`], and an entry for each of them.
    pub fn append_cluster(&mut self, first: u64, payload: &[u8], crc: u32) -> [Data; CLUSTER] {
        let (offset, epoch, segment) = (self.next_offset(), self.epoch, self.segment);
        let all = std::array::from_fn(|i| {
            let block = first + i as u64;
            let check = Stamp { epoch, segment, offset, block }.check(crc);
            Data { block, kind: Kind::Cluster, len: payload.len() as u32, offset, check }
        });
        self.put(payload);
        self.entries.extend(all.map(Entry::Data));
        all
    }

    /// Adds a payload, for which [`Self::has_room`], and the entry that describes it.
    pub fn push(&mut self, data: Data, payload: &[u8]) {
        debug_assert!(self.has_room(payload.len()) && data.offset == self.next_offset());
        self.put(payload);
        self.entries.push(Entry::Data(data));
    }

    fn put(&mut self, payload: &[u8]) {
        let end = self.used + payload.len();
        self.bytes[self.used..end].copy_from_slice(payload);
        self.used = end.next_multiple_of(GRANULE as usize);
        self.bytes[end..self.used].fill(0);
    }

    /// Adds an entry without payload.
    pub fn push_range(&mut self, entry: Entry) {
        debug_assert!(self.has_room(0));
        self.entries.push(entry);
    }

    /// The bytes at an offset of the segment, if they are in this chunk.
    pub fn payload(&self, segment: u64, offset: u32, len: u32) -> Option<&[u8]> {
        let from = offset.checked_sub(self.offset)? as usize;
        let end = from + len as usize;
        (segment == self.segment && end <= self.used).then(|| &self.bytes[from..end])
    }

    /// Closes the chunk. Memory that it does not need is handed back.
    pub fn close(mut self, closing: Closing) -> (Sealed, Option<Buffer>) {
        let len = self.len();
        let table_at = len - self.entries.len() * ENTRY;
        self.bytes[self.used..table_at].fill(0);
        let (bytes, spare) = if len * 4 <= self.bytes.len() {
            let mut own = Buffer::new(len);
            own[..self.used].copy_from_slice(&self.bytes[..self.used]);
            (own, Some(self.bytes))
        } else {
            (self.bytes, None)
        };
        let place = (self.segment, self.offset, self.epoch);
        (finish(bytes, len, place, self.entries, closing), spare)
    }
}

/// Writes table and header into the bytes of a chunk.
fn finish(
    mut bytes: Buffer,
    len: usize,
    (segment, offset, epoch): (u64, u32, u64),
    entries: Vec<Entry>,
    closing: Closing,
) -> Sealed {
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
    let table = header.table_at();
    for (slot, entry) in bytes[table..len].chunks_exact_mut(ENTRY).zip(&entries) {
        slot.copy_from_slice(&entry.encode());
    }
    header.table = header.table_check(&bytes[table..len]);
    let (front, sum) = header.encode();
    bytes[..HEADER].copy_from_slice(&front);
    Sealed { header, sum, entries, bytes: Arc::new(bytes) }
}

impl Sealed {
    /// The bytes at an offset of the segment, if they are in this chunk.
    pub fn payload(&self, segment: u64, offset: u32, len: u32) -> Option<&[u8]> {
        let from = offset.checked_sub(self.header.offset)? as usize;
        let end = from + len as usize;
        let ours = segment == self.header.segment && end <= self.header.len as usize;
        ours.then(|| &self.bytes[from..end])
    }

    /// The same changes at another place.
    pub fn moved(&self, segment: u64, offset: u32, epoch: u64, closing: Closing) -> Self {
        let from = &self.header;
        let stamp =
            |epoch, segment, d: &Data, offset| Stamp { epoch, segment, offset, block: d.block };
        let entries = self.entries.iter().map(|entry| match entry {
            Entry::Data(d) => {
                let to = d.offset - from.offset + offset;
                let old = stamp(from.epoch, from.segment, d, d.offset);
                let later = d.kind == Kind::Cluster && !d.block.is_multiple_of(CLUSTER as u64);
                let check = if later && planted::on(Bug::MoveFirstOfCluster) {
                    d.check
                } else {
                    old.moved(d.check, &stamp(epoch, segment, d, to))
                };
                Entry::Data(Data { offset: to, check, ..*d })
            }
            range @ Entry::Range { .. } => *range,
        });
        let len = from.len as usize;
        let mut bytes = Buffer::new(len);
        bytes.copy_from_slice(&self.bytes[..len]);
        finish(bytes, len, (segment, offset, epoch), entries.collect(), closing)
    }
}

/// The entries of a table; `None` if it is not the header's, or says what cannot be.
pub fn read_table(header: &Header, table: &[u8]) -> Option<Vec<Entry>> {
    (header.table_check(table) == header.table).then(|| read_entries(header, table))?
}

/// The entries of a table that is the header's for certain; `None` if it says what cannot be.
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
    use super::super::format::crc;
    use super::*;

    fn filled() -> Open {
        let mut open = Open::new(7, 4096, 99, 32 << 10, None);
        for block in 0..3 {
            let payload = vec![block as u8 + 1; 1000];
            let offset = open.next_offset();
            let stamp = Stamp { epoch: 99, segment: 7, offset, block };
            let check = stamp.check(crc(&payload));
            open.push(Data { block, kind: Kind::Lz4, len: 1000, offset, check }, &payload);
        }
        open.push_range(Entry::Range { kind: Kind::Zeros, block: 50, count: 9 });
        open
    }

    fn check(sealed: &Sealed) {
        let (header, sum) = Header::decode(&sealed.bytes).unwrap();
        assert_eq!((header, sum), (sealed.header, sealed.sum));
        let table = &sealed.bytes[header.table_at()..header.len as usize];
        assert_eq!(read_table(&header, table).unwrap(), sealed.entries);
        for entry in &sealed.entries {
            let Entry::Data(d) = entry else { continue };
            let payload = sealed.payload(header.segment, d.offset, d.len).unwrap();
            let Header { epoch, segment, .. } = header;
            let stamp = Stamp { epoch, segment, offset: d.offset, block: d.block };
            assert!(stamp.fits(payload, d.check));
            assert_eq!(payload, vec![d.block as u8 + 1; 1000]);
        }
    }

    #[test]
    fn a_chunk_says_what_was_put_into_it_also_elsewhere() {
        let open = filled();
        assert_eq!(open.payload(7, 4096 + 128, 4), Some(&[1u8; 4][..]));
        let (sealed, spare) = open.close(Closing { chunk: 5, prev: 6, durable: 4 });
        assert_eq!((sealed.header.len, spare.map(|b| b.len())), (4096, Some(32 << 10)));
        check(&sealed);
        let moved = sealed.moved(9, 12288, 100, Closing { chunk: 5, prev: 6, durable: 4 });
        assert_eq!(moved.header.offset, 12288);
        check(&moved);
    }

    #[test]
    fn the_blocks_of_a_cluster_share_a_payload_and_no_check_word() {
        let mut open = Open::new(7, 4096, 99, 32 << 10, None);
        let payload = [5; 3 * GRANULE as usize];
        let all = open.append_cluster(8, &payload, crc(&payload));
        open.append(2, Kind::Raw, &[6; 100], crc(&[6; 100]));
        let (sealed, _) = open.close(Closing { chunk: 5, prev: 6, durable: 4 });
        let moved = sealed.moved(9, 12288, 100, Closing { chunk: 5, prev: 6, durable: 4 });
        for (sealed, epoch) in [(&sealed, 99), (&moved, 100)] {
            let segment = sealed.header.segment;
            for (i, entry) in sealed.entries[..CLUSTER].iter().enumerate() {
                let Entry::Data(d) = *entry else { panic!("{entry:?}") };
                assert_eq!((d.block, d.kind, d.len), (8 + i as u64, Kind::Cluster, 48));
                let bytes = sealed.payload(segment, d.offset, d.len).unwrap();
                assert_eq!(bytes, payload);
                let stamp = Stamp { epoch, segment, offset: d.offset, block: d.block };
                assert!(stamp.fits(bytes, d.check));
                assert!(!Stamp { block: d.block ^ 1, ..stamp }.fits(bytes, d.check));
            }
        }
        assert!(all.iter().all(|d| d.offset == all[0].offset));
    }

    #[test]
    fn a_chunk_takes_what_fits_and_no_more() {
        let mut open = Open::new(0, 0, 1, CHUNK_MIN, None);
        assert!(open.has_room(4096));
        let mut blocks = 0;
        while open.has_room(100) {
            let offset = open.next_offset();
            let data = Data { block: blocks, kind: Kind::Lz4, len: 100, offset, check: 0 };
            open.push(data, &[1; 100]);
            blocks += 1;
        }
        assert_eq!(blocks, (8192 - 128) / (112 + 16));
        let (sealed, _) = open.close(Closing { chunk: 0, prev: 0, durable: 0 });
        assert_eq!(sealed.header.len, CHUNK_MIN);
    }

    #[test]
    fn an_empty_chunk_is_a_mark() {
        let open = Open::new(0, 0, 1, CHUNK_MIN, None);
        assert!(open.is_empty());
        let (sealed, _) = open.close(Closing { chunk: 8, prev: 0, durable: 8 });
        assert_eq!((sealed.header.len, sealed.header.entries), (4096, 0));
        check(&sealed);
    }
}

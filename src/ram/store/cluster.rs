//! Clusters: up to four neighbours compressed together in one record.
//!
//! The payload is a byte that says which of the group's blocks are in it (bits 0 to 3) and which of
//! those *own* it (bits 4 to 7), a byte with the length of the padding, one zstd frame of the
//! blocks in order, and the padding. A block that is in the record but does not own it had been
//! replaced when the record was copied.
//!
//! A read of one block decodes all of them, so a few places that all readers share keep the
//! clusters decoded last. Such a cluster is named by its segment's sequence and its offset, which
//! together are never reused, so it is never out of date.
//!
//! Invariants:
//! - all memory for clusters is made before the first cluster, and is in the budget;
//! - a thread that holds a [`ClusterBuilder`] or a reader's place never waits for a thread that
//!   could wait for it: reading and compressing take no other lock, and stripe locks are taken
//!   inside and never around.

use super::format::{CLUSTER_MAX, CLUSTER_UNIT, HEADER, Header, Location, RECORD_MAX, digest};
use super::planted::{Bug, on};
use crate::BLOCK_SIZE;
use crate::codec::{CLUSTER, Codec, Coding};
use crate::sync::{Mutex, MutexGuard};
use std::num::NonZero;

/// Level of zstd where a request may be waiting; `docs/recompress.md` compares levels.
const QUICK: i32 = 3;
/// Level of zstd where there is time.
const THOROUGH: i32 = 6;
/// Least and most places where readers decode; between these, one a processor.
const READERS: (usize, usize) = if cfg!(shuttle) { (1, 1) } else { (2, 8) };

const PARTS: u8 = (1 << CLUSTER) - 1;
const OWNERS_SHIFT: u32 = CLUSTER as u32;
/// Where the frame begins.
const FRAME: usize = HEADER + 2;

const _: () = assert!(CLUSTER_MAX > RECORD_MAX);

type Blocks = Box<[[u8; BLOCK_SIZE]; CLUSTER]>;

fn blocks() -> Blocks {
    Box::new([[0; BLOCK_SIZE]; CLUSTER])
}

/// The blocks of the group that own a record, one bit each. `None` if it is no cluster.
pub(super) fn owners_of(record: &[u8]) -> Option<u8> {
    record.get(HEADER).map(|first| first >> OWNERS_SHIFT)
}

/// The blocks that are in a record, one bit each, and its zstd frame; `None` if it is no cluster.
fn frame_in(record: &[u8]) -> Option<(u8, &[u8])> {
    let parts = record.get(HEADER)? & PARTS;
    let padding = usize::from(*record.get(HEADER + 1)?);
    Some((parts, record.get(FRAME..record.len().checked_sub(padding)?)?))
}

/// Checks a cluster's record in a segment of `sequence` and decodes it into `out`, block after
/// block. Returns which of the group's blocks those are, one bit each.
fn unpack(
    codec: &mut Codec,
    record: &[u8],
    (first, sequence): (u64, u64),
    out: &mut [[u8; BLOCK_SIZE]; CLUSTER],
) -> Option<u8> {
    let (header, payload) = record.split_first_chunk::<HEADER>()?;
    let header = Header::decode(*header)?;
    if header.coding.parts() == 0 || !header.fits(payload, first, sequence) {
        return None;
    }
    let (parts, frame) = frame_in(record)?;
    let out = &mut out[..parts.count_ones() as usize];
    (!out.is_empty() && codec.decode_together(frame, out)).then_some(parts)
}

/// The first block of the group that `block` belongs to.
pub(super) fn group_of(block: u64) -> u64 {
    block / CLUSTER as u64 * CLUSTER as u64
}

/// The index of `block` among the blocks that [`unpack`] returned.
fn rank(parts: u8, block: u64) -> Option<usize> {
    let bit = 1 << (block % CLUSTER as u64);
    (parts & bit != 0).then(|| (parts & (bit - 1)).count_ones() as usize)
}

/// The cluster that a reader decoded last.
struct Decoded {
    codec: Codec,
    blocks: Blocks,
    /// Sequence of the segment, and offset; a sequence of 0: nothing.
    name: (u64, u32),
    parts: u8,
}

/// The memory for reading and cleaning clusters.
pub(super) struct Pool {
    readers: Box<[Mutex<Decoded>]>,
    cleaner: Mutex<ClusterBuilder>,
}

impl Pool {
    pub(super) fn new() -> Self {
        let reader = |_| {
            let codec = Codec::for_clusters(&[]);
            Mutex::new(Decoded { codec, blocks: blocks(), name: (0, 0), parts: 0 })
        };
        let (least, most) = READERS;
        let processors = std::thread::available_parallelism().map_or(least, NonZero::get);
        let readers = (0..processors.clamp(least, most)).map(reader).collect();
        Self { readers, cleaner: Mutex::new(ClusterBuilder::new()) }
    }

    /// Bytes of memory of the whole pool.
    pub(super) fn memory(&self) -> u64 {
        let plain = CLUSTER * BLOCK_SIZE;
        let reader = |reader: &Mutex<Decoded>| reader.lock().codec.memory() + plain;
        let readers = self.readers.iter().map(reader).sum::<usize>();
        readers as u64 + self.cleaner.lock().memory()
    }

    /// The builder that the cleaner uses.
    pub(super) fn builder(&self) -> MutexGuard<'_, ClusterBuilder> {
        self.cleaner.lock()
    }

    /// Reads a block from its cluster's record, in a segment of `sequence`. `false` when the record
    /// is damaged.
    pub(super) fn read(
        &self,
        record: &[u8],
        at: Location,
        (block, sequence): (u64, u64),
        out: &mut [u8; BLOCK_SIZE],
    ) -> bool {
        let number = if on(Bug::ClusterByNumber) { u64::from(at.segment) + 1 } else { sequence };
        let name = (number, at.offset);
        // A cluster has one preferred place. If another reader holds that, any place will do.
        let count = self.readers.len();
        let place = (name.0 as usize).wrapping_add(at.offset as usize / 512) % count;
        let readers = (0..count).map(|n| &self.readers[(place + n) % count]);
        let mut free = readers.filter_map(Mutex::try_lock);
        let mut decoded = free.next().unwrap_or_else(|| self.readers[place].lock());
        let Decoded { codec, blocks, name: known, parts } = &mut *decoded;
        if *known != name {
            *known = (0, 0);
            let from = (group_of(block), sequence);
            let Some(found) = unpack(codec, record, from, blocks) else { return false };
            (*known, *parts) = (name, found);
        }
        let Some(rank) = rank(*parts, block) else { return false };
        out.copy_from_slice(&blocks[rank]);
        true
    }
}

/// The memory for compressing blocks together, and the record compressed last.
pub(super) struct ClusterBuilder {
    codec: Codec,
    /// Whether the level is [`THOROUGH`].
    thorough: bool,
    /// A decoded cluster.
    whole: Blocks,
    /// The blocks to compress.
    plain: Blocks,
    /// Which blocks of the group those are, one bit each.
    parts: u8,
    packed: Box<[u8; CLUSTER_MAX]>,
}

/// A record that a [`ClusterBuilder`] made, without its header.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Packed {
    pub(super) record_len: u32,
    pub(super) coding: Coding,
    pub(super) digest: u32,
}

impl ClusterBuilder {
    pub(super) fn new() -> Self {
        Self {
            codec: Codec::for_clusters(&[THOROUGH, QUICK]),
            thorough: false,
            whole: blocks(),
            plain: blocks(),
            parts: 0,
            packed: Box::new([0; CLUSTER_MAX]),
        }
    }

    pub(super) fn memory(&self) -> u64 {
        (self.codec.memory() + 2 * size_of_val(&*self.whole) + CLUSTER_MAX) as u64
    }

    /// Sets the zstd level for the next records.
    pub(super) fn try_hard(&mut self, thorough: bool) {
        if self.thorough != thorough {
            self.thorough = thorough;
            self.codec.set_level(if thorough { THOROUGH } else { QUICK });
        }
    }

    /// Removes all blocks.
    pub(super) fn clear(&mut self) {
        self.parts = 0;
    }

    /// Which blocks of the group were added, one bit each.
    pub(super) fn parts(&self) -> u8 {
        self.parts
    }

    /// Adds a block from its record in a segment of `sequence`. Blocks are added in order. `false`
    /// when the record is damaged.
    pub(super) fn add(&mut self, record: &[u8], (block, sequence): (u64, u64)) -> bool {
        let at = self.parts.count_ones() as usize;
        let bit = 1 << (block % CLUSTER as u64);
        debug_assert!(self.parts < bit, "blocks come in order");
        let Some((header, payload)) = record.split_first_chunk::<HEADER>() else { return false };
        let Some(header) = Header::decode(*header) else { return false };
        if header.coding.parts() == 0 {
            let done = header.fits(payload, block, sequence)
                && self.codec.decode(header.coding, payload, &mut self.plain[at]);
            self.parts |= if done { bit } else { 0 };
            return done;
        }
        let from = (group_of(block), sequence);
        let parts = unpack(&mut self.codec, record, from, &mut self.whole);
        let Some(rank) = parts.and_then(|parts| rank(parts, block)) else { return false };
        self.plain[at] = self.whole[rank];
        self.parts |= bit;
        true
    }

    /// Replaces the blocks by those of a cluster that `keep` has a bit for. `false` when the
    /// cluster is damaged, or lacks one of them.
    pub(super) fn take(&mut self, record: &[u8], from: (u64, u64), keep: u8) -> bool {
        self.parts = 0;
        let Some(parts) = unpack(&mut self.codec, record, from, &mut self.whole) else {
            return false;
        };
        let kept = (0..CLUSTER as u64).filter(|n| keep & 1 << n != 0);
        for (at, n) in kept.enumerate() {
            let Some(rank) = rank(parts, n) else { return false };
            self.plain[at] = self.whole[rank];
        }
        self.parts = keep;
        true
    }

    /// Compresses the blocks into one record; a single block that does not shrink is kept raw.
    /// `None` if that would take more than `most` bytes.
    pub(super) fn pack(&mut self, most: u32) -> Option<Packed> {
        let count = self.parts.count_ones() as usize;
        let room = (most as usize).min(CLUSTER_MAX) / CLUSTER_UNIT as usize * CLUSTER_UNIT as usize;
        if count == 0 || room <= FRAME {
            return None;
        }
        let frame = &mut self.packed[FRAME..room];
        let Some(len) = self.codec.shrink_together(&self.plain[..count], frame) else {
            return self.keep_one(most);
        };
        let used = FRAME + len;
        let record_len = used.next_multiple_of(CLUSTER_UNIT as usize);
        self.packed[used..record_len].fill(0);
        self.packed[HEADER] = self.parts | self.parts << OWNERS_SHIFT;
        self.packed[HEADER + 1] = (record_len - used) as u8;
        Some(self.packed_as(record_len, Coding::Cluster(count as u8)))
    }

    fn keep_one(&mut self, most: u32) -> Option<Packed> {
        if self.parts.count_ones() != 1 || RECORD_MAX > most as usize {
            return None;
        }
        self.packed[HEADER..RECORD_MAX].copy_from_slice(&self.plain[0]);
        Some(self.packed_as(RECORD_MAX, Coding::Raw))
    }

    /// Keeps a cluster's record, but with the blocks in `owners` as its owners, one bit each.
    pub(super) fn keep(&mut self, record: &[u8], owners: u8) -> Packed {
        self.packed[..record.len()].copy_from_slice(record);
        self.packed[HEADER] = self.packed[HEADER] & PARTS | owners << OWNERS_SHIFT;
        self.packed_as(record.len(), Coding::Cluster(owners.count_ones() as u8))
    }

    fn packed_as(&self, record_len: usize, coding: Coding) -> Packed {
        let digest = digest(&self.packed[HEADER..record_len], coding);
        Packed { record_len: record_len as u32, coding, digest }
    }

    /// The payload of the record `packed`.
    pub(super) fn payload(&self, packed: &Packed) -> &[u8] {
        &self.packed[HEADER..packed.record_len as usize]
    }
}

impl std::fmt::Debug for Pool {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Pool").finish_non_exhaustive()
    }
}

/// A cluster's record in the bytes of a segment that is being cleaned.
pub(super) struct Cluster<'a> {
    pub(super) header: &'a Header,
    pub(super) at: Location,
    /// All bytes of the segment.
    pub(super) bytes: &'a [u8],
    /// The segment's sequence.
    pub(super) sequence: u64,
}

impl Cluster<'_> {
    /// The bytes of the record.
    pub(super) fn record(&self) -> &[u8] {
        &self.bytes[self.at.offset as usize..][..self.at.record_len() as usize]
    }
}

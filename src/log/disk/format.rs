//! Every byte of a durable log: superblock, chunk header, entry. `docs/format.md` draws them.
//!
//! Invariants: numbers are little-endian; a structure is believed only when its CRC32C fits, and
//! the CRC of a chunk is mixed with the epoch and the number of the chunk, so that one of an
//! earlier lap, or of another log, does not pass. Nothing here does I/O.

use crate::BLOCK_SIZE;
use crate::GROUP;
pub use crate::media::Tail;
use crate::media::{ChangeCounter, Identity};

/// First bytes of a superblock.
pub const MAGIC: [u8; 8] = *b"ztierLOG";
/// Version of the format of superblocks. 1 and 2, of ztier 0.1, had a smaller identity of the
/// backing store.
pub const VERSION: u32 = 3;
/// Version of the format of chunks.
const CHUNK_VERSION: u32 = 1;
/// Bytes in a superblock.
pub const SUPER: usize = 4096;
/// Where the two copies of the superblock are, in bytes.
pub const SUPER_AT: [u64; 2] = [0, 64 << 10];
/// The first byte behind the superblocks: here the two areas for checkpoints begin, or the
/// segments of a log that has none.
pub const DATA_MIN: u64 = 128 << 10;
/// Smallest area for a checkpoint that a new log is given, in bytes; the simulator's is too small
/// for some volumes.
pub const AREA_MIN: u64 = if cfg!(sim) { 16 << 10 } else { 32 << 10 };
/// A new log gives this part of its drive to each of the two areas.
const AREA_PART: u64 = 64;
/// Smallest and largest page of a checkpoint, in bytes.
pub const PAGE_SIZES: [u32; 2] = [4096, 256 << 10];
/// Smallest segment, in bytes.
pub const SEGMENT_MIN: u32 = 32 << 10;
/// Largest segment, in bytes.
pub const SEGMENT_MAX: u32 = 16 << 20;
/// Fewest segments of a log.
pub const SEGMENTS_MIN: u64 = 8;
/// Most segments of a log.
pub const SEGMENTS_MAX: u64 = 1 << 22;
/// Most blocks of a volume with a log: 1 PiB.
pub const BLOCKS_MAX: u64 = 1 << 38;
/// Bytes in the identity of a backing store, as the superblock keeps it.
pub const IDENTITY: usize = Identity::STORED;
/// Bytes in a chunk's header.
pub const HEADER: usize = 128;
/// Bytes in an entry.
pub const ENTRY: usize = 16;
/// Payloads begin at multiples of this, in bytes.
pub const GRANULE: u32 = 16;
/// Blocks of a cluster; the first one's number is a multiple of it.
pub const CLUSTER: usize = 4;
/// Longest payload of a cluster, in bytes: a granule less than its blocks.
pub const CLUSTER_MAX: u32 = (CLUSTER * BLOCK_SIZE) as u32 - GRANULE;
/// Most epochs and lost ranges that a superblock names, together.
pub const EPOCHS_MAX: usize = 200;
/// Most lost ranges that a superblock names; few for the simulator, which loses few.
pub const LOST_MAX: usize = if cfg!(sim) { 4 } else { 100 };

/// Bits of an entry, here and in a checkpoint, that hold the length of a payload.
pub(in crate::log) const LEN_BITS: u32 = 12;
/// The bit of an entry's first word that marks a copy.
const COPY_BIT: u32 = 56;
const CHUNK_MAGIC: u32 = u32::from_le_bytes(*b"zCHK");
const POINTER_AT: usize = 192;
const EPOCHS_AT: usize = 256;
const IDENTITY_AT: usize = EPOCHS_AT + EPOCHS_MAX * 16;
const SUPER_CRC_AT: usize = SUPER - 4;
const HEADER_CRC_AT: usize = HEADER - 4;

const _: () = assert!(IDENTITY_AT + IDENTITY <= SUPER_CRC_AT);
const _: () = assert!(LOST_MAX < EPOCHS_MAX);
const _: () = assert!(SUPER_AT[1] + SUPER as u64 <= DATA_MIN);
const _: () = assert!(CLUSTER.is_power_of_two() && GROUP.is_multiple_of(CLUSTER));
// The length of a cluster's payload, in granules, fits the same bits as a block's, in bytes.
const _: () =
    assert!(CLUSTER_MAX.is_multiple_of(GRANULE) && CLUSTER_MAX / GRANULE <= 1 << LEN_BITS);
const _: () = assert!(BLOCK_SIZE == 1 << LEN_BITS);

/// Why a structure is refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unfit {
    /// Not a structure of ztier.
    Foreign,
    /// A structure of ztier, of a version that this code does not know.
    Version(u32),
    /// A structure of ztier, damaged.
    Damaged,
}

/// An epoch: a random number, and the chunk from which on it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Epoch {
    /// Number of the first chunk.
    pub from: u64,
    /// The random number.
    pub id: u64,
}

/// Where the segments of a new log begin that takes `size` bytes of its drive.
pub fn data_at(size: u64, segment: u32) -> u64 {
    let area = (size / AREA_PART).max(AREA_MIN).next_multiple_of(BLOCK_SIZE as u64);
    (DATA_MIN + 2 * area).next_multiple_of(u64::from(segment))
}

/// Where a checkpoint is, and from which chunk on to replay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pointer {
    /// Random, not 0; each of its pages has it.
    pub seed: u64,
    /// Which of the two areas it is in.
    pub area: u32,
    /// Bytes of a page.
    pub page: u32,
    /// Number of pages.
    pub count: u32,
    /// The first `whole` pages are a copy of the whole index; the others are increments.
    pub whole: u32,
    /// The chained check words of all pages; 0 when they were not noted.
    pub sum: u32,
    /// The segment where the whole copy began.
    pub origin: u64,
    /// The first chunk to replay.
    pub chunk: u64,
    /// CRC of the header before that chunk.
    pub prev: u32,
    /// The segment of that chunk, unless the chunk begins a later segment.
    pub segment: u64,
    /// Offset in that segment, in bytes.
    pub offset: u32,
}

impl Pointer {
    fn encode(&self, b: &mut [u8]) {
        put8(b, 0, self.seed);
        put4(b, 8, self.area);
        put4(b, 12, self.page);
        put4(b, 16, self.count);
        put4(b, 20, self.prev);
        put8(b, 24, self.chunk);
        put8(b, 32, self.segment);
        put4(b, 40, self.offset);
        put4(b, 44, self.whole);
        put8(b, 48, self.origin);
        put4(b, 56, self.sum);
    }

    fn decode(b: &[u8]) -> Option<Self> {
        let found = Self {
            seed: get8(b, 0),
            area: get4(b, 8),
            page: get4(b, 12),
            count: get4(b, 16),
            prev: get4(b, 20),
            chunk: get8(b, 24),
            segment: get8(b, 32),
            offset: get4(b, 40),
            whole: get4(b, 44),
            origin: get8(b, 48),
            sum: get4(b, 56),
        };
        (found.seed != 0).then_some(found)
    }

    /// Whether the log's tail has passed the first chunk to replay: then the checkpoint is of no
    /// use.
    pub fn is_passed(&self, tail: &Tail) -> bool {
        self.chunk < tail.chunk || self.segment < tail.segment
    }
}

/// What a log says of itself; stored twice.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Superblock {
    /// The volume's id: random, made with the log.
    pub uuid: [u8; 16],
    /// Grows with every write of a superblock.
    pub generation: u64,
    /// Bytes in a segment.
    pub segment: u32,
    /// Number of segments.
    pub segments: u64,
    /// Where the first segment is, in bytes.
    pub data_at: u64,
    /// Blocks of the volume.
    pub blocks: u64,
    /// A volume is at work on this log, or was when power failed.
    pub open: bool,
    /// The oldest segment in use.
    pub tail: Tail,
    /// Everything before this is in the backing store, too; never before `tail`.
    pub written: Tail,
    /// Copies in segments before this one do not count: the backing store may have changed since.
    pub void: u64,
    /// When a superblock was written last, in seconds since 1970; 0: unknown.
    pub at_s: u64,
    /// The change counters of the backing store when the log was closed; zeros while a volume is at
    /// work.
    pub change_counter: ChangeCounter,
    /// There may be copies from `written` on.
    pub copies: bool,
    /// Every chunk with a lower number was durable.
    pub durable: u64,
    /// Which backing store belongs to this log.
    pub identity: [u8; IDENTITY],
    /// The newest checkpoint.
    pub checkpoint: Option<Pointer>,
    /// An upper bound of the time of the last past state of the volume that the backing store alone
    /// was in, in seconds since 1970; 0: unknown.
    pub past_s: u64,
    /// Since when the backing store alone is a mixture of states, in seconds since 1970; 0: it is
    /// none.
    pub mixture_s: u64,
    /// The log had failed, and the backing store went on without it.
    pub spent: bool,
    /// The epochs of the chunks in the log, oldest first.
    pub epochs: Vec<Epoch>,
    /// Blocks whose content was damaged before it reached the backing store, as first block and
    /// count: as if the log began with records that say so.
    pub lost: Vec<(u64, u64)>,
}

fn get4(bytes: &[u8], at: usize) -> u32 {
    bytes.get(at..at + 4).map_or(0, |b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]))
}

fn get8(bytes: &[u8], at: usize) -> u64 {
    u64::from(get4(bytes, at)) | u64::from(get4(bytes, at + 4)) << 32
}

fn put4(bytes: &mut [u8], at: usize, value: u32) {
    bytes[at..at + 4].copy_from_slice(&value.to_le_bytes());
}

fn put8(bytes: &mut [u8], at: usize, value: u64) {
    bytes[at..at + 8].copy_from_slice(&value.to_le_bytes());
}

/// CRC32C of some bytes.
pub fn crc(bytes: &[u8]) -> u32 {
    crc_fast::crc32_iscsi(bytes)
}

/// Spreads two numbers over 32 bits: the finalizer of `SplitMix64` (Steele, Lea, Flood 2014) on a
/// combination of both.
pub(super) fn mix(a: u64, b: u64) -> u32 {
    let mut z = a.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ b.rotate_left(32);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^= z >> 31;
    (z ^ (z >> 32)) as u32
}

impl Superblock {
    /// The bytes of a copy.
    pub fn encode(&self) -> [u8; SUPER] {
        let mut b = [0; SUPER];
        b[..8].copy_from_slice(&MAGIC);
        put4(&mut b, 8, VERSION);
        put4(&mut b, 12, self.segment);
        b[16..32].copy_from_slice(&self.uuid);
        put8(&mut b, 32, self.generation);
        put8(&mut b, 40, self.segments);
        put8(&mut b, 48, self.data_at);
        put8(&mut b, 56, self.blocks);
        put4(&mut b, 64, u32::from(self.open));
        put4(&mut b, 68, self.epochs.len() as u32);
        put8(&mut b, 72, self.written.segment);
        put8(&mut b, 80, self.written.chunk);
        put4(&mut b, 88, self.written.prev);
        put4(&mut b, 92, u32::from(self.copies));
        put8(&mut b, 96, self.durable);
        put8(&mut b, 104, self.past_s);
        put8(&mut b, 112, self.mixture_s);
        put4(&mut b, 120, u32::from(self.spent));
        put8(&mut b, 128, self.at_s);
        put8(&mut b, 136, self.change_counter.scope);
        put8(&mut b, 144, self.change_counter.sure);
        put8(&mut b, 152, self.change_counter.written);
        put8(&mut b, 160, self.tail.segment);
        put8(&mut b, 168, self.tail.chunk);
        put4(&mut b, 176, self.tail.prev);
        put8(&mut b, 184, self.void);
        b[IDENTITY_AT..IDENTITY_AT + IDENTITY].copy_from_slice(&self.identity);
        if let Some(pointer) = &self.checkpoint {
            pointer.encode(&mut b[POINTER_AT..EPOCHS_AT]);
        }
        for (i, epoch) in self.epochs.iter().take(EPOCHS_MAX).enumerate() {
            put8(&mut b, EPOCHS_AT + 16 * i, epoch.from);
            put8(&mut b, EPOCHS_AT + 16 * i + 8, epoch.id);
        }
        let room = EPOCHS_MAX.saturating_sub(self.epochs.len());
        put4(&mut b, 124, self.lost.len().min(room) as u32);
        for (i, (block, count)) in self.lost.iter().take(room).enumerate() {
            let at = EPOCHS_AT + 16 * (self.epochs.len() + i);
            put8(&mut b, at, *block);
            put8(&mut b, at + 8, *count);
        }
        let sum = crc(&b[..SUPER_CRC_AT]);
        put4(&mut b, SUPER_CRC_AT, sum);
        b
    }

    /// Decodes a copy.
    ///
    /// # Errors
    /// [`Unfit`]: other bytes, another version, damage.
    pub fn decode(b: &[u8]) -> Result<Self, Unfit> {
        if b.len() < SUPER || b[..8] != MAGIC {
            return Err(Unfit::Foreign);
        }
        if get4(b, SUPER_CRC_AT) != crc(&b[..SUPER_CRC_AT]) {
            return Err(Unfit::Damaged);
        }
        let version = get4(b, 8);
        if version != VERSION {
            return Err(Unfit::Version(version));
        }
        let (count, lost) = (get4(b, 68) as usize, get4(b, 124) as usize);
        if count + lost > EPOCHS_MAX {
            return Err(Unfit::Damaged);
        }
        let pairs = |range: std::ops::Range<usize>| {
            range.map(|i| EPOCHS_AT + 16 * i).map(|at| (get8(b, at), get8(b, at + 8)))
        };
        let mut uuid = [0; 16];
        uuid.copy_from_slice(&b[16..32]);
        let mut identity = [0; IDENTITY];
        identity.copy_from_slice(&b[IDENTITY_AT..IDENTITY_AT + IDENTITY]);
        let found = Self {
            uuid,
            generation: get8(b, 32),
            segment: get4(b, 12),
            segments: get8(b, 40),
            data_at: get8(b, 48),
            blocks: get8(b, 56),
            open: get4(b, 64) != 0,
            tail: Tail { segment: get8(b, 160), chunk: get8(b, 168), prev: get4(b, 176) },
            written: Tail { segment: get8(b, 72), chunk: get8(b, 80), prev: get4(b, 88) },
            void: get8(b, 184),
            at_s: get8(b, 128),
            change_counter: ChangeCounter {
                scope: get8(b, 136),
                sure: get8(b, 144),
                written: get8(b, 152),
            },
            copies: get4(b, 92) != 0,
            durable: get8(b, 96),
            identity,
            checkpoint: Pointer::decode(&b[POINTER_AT..EPOCHS_AT]),
            past_s: get8(b, 104),
            mixture_s: get8(b, 112),
            spent: get4(b, 120) != 0,
            epochs: pairs(0..count).map(|(from, id)| Epoch { from, id }).collect(),
            lost: pairs(count..count + lost).collect(),
        };
        if found.is_sane() { Ok(found) } else { Err(Unfit::Damaged) }
    }

    fn is_sane(&self) -> bool {
        let rising = self.epochs.windows(2).all(|pair| pair[0].from < pair[1].from);
        let inside = |&(block, count): &(u64, u64)| {
            count > 0 && block.checked_add(count).is_some_and(|end| end <= self.blocks)
        };
        self.segment.is_power_of_two()
            && (SEGMENT_MIN..=SEGMENT_MAX).contains(&self.segment)
            && (SEGMENTS_MIN..=SEGMENTS_MAX).contains(&self.segments)
            && self.data_at >= DATA_MIN
            && self.data_at.is_multiple_of(BLOCK_SIZE as u64)
            && self.segments.checked_mul(u64::from(self.segment)).is_some()
            && (1..=BLOCKS_MAX).contains(&self.blocks)
            && rising
            && (self.tail.segment, self.tail.chunk) <= (self.written.segment, self.written.chunk)
            && self.lost.iter().all(inside)
            && self.checkpoint.is_none_or(|at| {
                at.area < 2
                    && at.page.is_power_of_two()
                    && (PAGE_SIZES[0]..=PAGE_SIZES[1]).contains(&at.page)
                    && u64::from(at.count) * u64::from(at.page) <= self.area()
                    && at.whole <= at.count
                    && at.origin <= at.segment
            })
    }

    /// Bytes of one of the two areas for checkpoints.
    pub fn area(&self) -> u64 {
        (self.data_at - DATA_MIN) / 2 / BLOCK_SIZE as u64 * BLOCK_SIZE as u64
    }

    /// Where an area is, in bytes.
    pub fn area_at(&self, area: u32) -> u64 {
        DATA_MIN + u64::from(area) * self.area()
    }

    /// Bytes that the log takes on its drive.
    pub fn end(&self) -> u64 {
        self.data_at + self.segments * u64::from(self.segment)
    }

    /// Where a segment is on the drive, in bytes.
    pub fn place(&self, segment: u64) -> u64 {
        self.data_at + segment % self.segments * u64::from(self.segment)
    }

    /// The epoch that a chunk of this number must have; `None` if the chunk is older than all
    /// epochs that the superblock names.
    pub fn epoch_of(&self, chunk: u64) -> Option<u64> {
        self.epochs.iter().rev().find(|e| e.from <= chunk).map(|e| e.id)
    }
}

/// The front of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// The epoch in which it was written.
    pub epoch: u64,
    /// Number of the chunk; each is one more than the one before.
    pub chunk: u64,
    /// The segment that it is in.
    pub segment: u64,
    /// Where in the segment it begins, in bytes.
    pub offset: u32,
    /// Its length in bytes, header and padding included: a multiple of 4096.
    pub len: u32,
    /// Entries in the table at its end.
    pub entries: u32,
    /// Check word of that table.
    pub table: u32,
    /// CRC of the header before.
    pub prev: u32,
    /// Every chunk with a lower number was durable when this one was closed.
    pub durable: u64,
}

impl Header {
    /// The bytes, and their CRC, which the next header names.
    pub fn encode(&self) -> ([u8; HEADER], u32) {
        let mut b = [0; HEADER];
        put4(&mut b, 0, CHUNK_MAGIC);
        put4(&mut b, 4, CHUNK_VERSION);
        put8(&mut b, 8, self.epoch);
        put8(&mut b, 16, self.chunk);
        put8(&mut b, 24, self.segment);
        put4(&mut b, 32, self.offset);
        put4(&mut b, 36, self.len);
        put4(&mut b, 40, self.entries);
        put4(&mut b, 44, self.table);
        put4(&mut b, 48, self.prev);
        put8(&mut b, 56, self.durable);
        let sum = crc(&b[..HEADER_CRC_AT]) ^ mix(self.epoch, self.chunk);
        put4(&mut b, HEADER_CRC_AT, sum);
        (b, sum)
    }

    /// Decodes a header, and its CRC; `None` if the bytes are no header, or a damaged one.
    pub fn decode(b: &[u8]) -> Option<(Self, u32)> {
        if b.len() < HEADER || get4(b, 0) != CHUNK_MAGIC || get4(b, 4) != CHUNK_VERSION {
            return None;
        }
        let found = Self {
            epoch: get8(b, 8),
            chunk: get8(b, 16),
            segment: get8(b, 24),
            offset: get4(b, 32),
            len: get4(b, 36),
            entries: get4(b, 40),
            table: get4(b, 44),
            prev: get4(b, 48),
            durable: get8(b, 56),
        };
        let sum = get4(b, HEADER_CRC_AT);
        let fits = sum == crc(&b[..HEADER_CRC_AT]) ^ mix(found.epoch, found.chunk);
        let room = u64::from(found.entries) * ENTRY as u64 + HEADER as u64;
        let sane = (found.len as usize).is_multiple_of(BLOCK_SIZE)
            && room <= u64::from(found.len)
            && u64::from(found.offset) + u64::from(found.len) <= u64::from(SEGMENT_MAX);
        (fits && sane).then_some((found, sum))
    }

    /// Where in the chunk its table is, in bytes.
    pub fn table_at(&self) -> usize {
        self.len as usize - self.entries as usize * ENTRY
    }

    /// The check word of a table of this chunk.
    pub fn table_check(&self, table: &[u8]) -> u32 {
        crc(table) ^ mix(self.epoch ^ 1, self.chunk)
    }
}

/// How to decode an entry's payload.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// 4096 bytes as they are.
    Raw = 1,
    /// One LZ4 block.
    Lz4 = 2,
    /// One zstd frame.
    Zstd = 3,
    /// Eight bytes that fill the block.
    Same = 4,
    /// No payload: `count` blocks read as zeros.
    Zeros = 5,
    /// No payload: `count` blocks whose data was damaged before it reached the backing store.
    Lost = 6,
    /// The `block`-th piece of the summary of the segment before. No change of the volume.
    Summary = 7,
    /// One zstd frame of [`CLUSTER`] neighbouring blocks, and padding. Each block has an entry of
    /// its own; its number modulo [`CLUSTER`] is its position in the frame.
    Cluster = 8,
}

impl Kind {
    /// The kind of a number.
    pub fn from_bits(bits: u64) -> Option<Self> {
        Some(match bits {
            1 => Self::Raw,
            2 => Self::Lz4,
            3 => Self::Zstd,
            4 => Self::Same,
            5 => Self::Zeros,
            6 => Self::Lost,
            7 => Self::Summary,
            8 => Self::Cluster,
            _ => return None,
        })
    }

    /// The unit in which the length of a payload is counted, in bytes, and the longest, in units.
    const fn lengths(self) -> (u32, u32) {
        match self {
            Self::Cluster => (GRANULE, CLUSTER_MAX / GRANULE),
            _ => (1, BLOCK_SIZE as u32),
        }
    }

    /// The length of a payload in [`LEN_BITS`] bits.
    pub(in crate::log) fn len_bits(self, len: u32) -> u64 {
        u64::from(len / self.lengths().0 - 1)
    }

    /// The length of a payload from its bits; `None` if it is longer than it can be.
    pub(in crate::log) fn len_of(self, bits: u64) -> Option<u32> {
        let (unit, most) = self.lengths();
        let units = (bits & ((1 << LEN_BITS) - 1)) as u32 + 1;
        (units <= most).then_some(units * unit)
    }
}

/// One change of the volume, in a chunk's table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A block and where its payload is.
    Data(Data),
    /// Blocks without a payload: [`Kind::Zeros`] or [`Kind::Lost`].
    Range {
        /// Which of the two.
        kind: Kind,
        /// First block.
        block: u64,
        /// Number of blocks.
        count: u64,
    },
}

/// A block that is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Data {
    /// The block.
    pub block: u64,
    /// How to decode its payload: one of the kinds that have one.
    pub kind: Kind,
    /// Bytes of payload, 1 to 4096; of a cluster multiples of [`GRANULE`] up to [`CLUSTER_MAX`].
    pub len: u32,
    /// Where the payload is, in bytes from the segment's begin: a multiple of [`GRANULE`].
    pub offset: u32,
    /// Check word of the payload, made by [`Seed::check`].
    pub check: u32,
    /// A copy: the block and the backing store hold this already, so it is no change, only another
    /// place to read from. Never of a [`Kind::Cluster`].
    pub copy: bool,
}

impl Entry {
    /// Encodes the entry.
    pub fn encode(&self) -> [u8; ENTRY] {
        let (block, kind, len, word) = match *self {
            Self::Data(d) => {
                let word = u64::from(d.offset) | u64::from(d.check) << 32;
                let copy = u64::from(d.copy) << (COPY_BIT - 44);
                (d.block, d.kind, d.kind.len_bits(d.len) | copy, word)
            }
            Self::Range { kind, block, count } => (block, kind, 0, count),
        };
        let mut b = [0; ENTRY];
        put8(&mut b, 0, block | (kind as u64) << 40 | len << 44);
        put8(&mut b, 8, word);
        b
    }

    /// Decodes an entry; `None` if the bytes are invalid.
    pub fn decode(b: &[u8]) -> Option<Self> {
        let (first, word) = (get8(b, 0), get8(b, 8));
        let block = first & ((1 << 40) - 1);
        let kind = Kind::from_bits(first >> 40 & 15)?;
        Some(match kind {
            Kind::Zeros | Kind::Lost => {
                block.checked_add(word).filter(|&end| word > 0 && end <= BLOCKS_MAX)?;
                Self::Range { kind, block, count: word }
            }
            _ => Self::Data(Data {
                block,
                kind,
                len: kind.len_of(first >> 44)?,
                offset: word as u32,
                check: (word >> 32) as u32,
                copy: first >> COPY_BIT & 1 == 1 && kind != Kind::Cluster,
            }),
        })
    }
}

/// Where and when a payload was written: mixed into its check word, so that bytes of another place,
/// lap or block do not pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// Epoch of the segment.
    pub epoch: u64,
    /// The segment.
    pub segment: u64,
    /// Offset of the payload in the segment, in bytes.
    pub offset: u32,
    /// The block.
    pub block: u64,
}

impl Seed {
    fn mark(&self) -> u32 {
        mix(self.epoch ^ self.block.rotate_left(20), self.segment << 24 ^ u64::from(self.offset))
    }

    /// The check word of a payload with this CRC.
    pub fn check(&self, crc: u32) -> u32 {
        crc ^ self.mark()
    }

    /// The check word of the same payload at another place.
    pub fn moved(&self, check: u32, to: &Self) -> u32 {
        check ^ self.mark() ^ to.mark()
    }

    /// Whether a payload is the one that was written.
    pub fn fits(&self, payload: &[u8], check: u32) -> bool {
        self.check(crc(payload)) == check
    }
}

/// Verifies payloads one after the other; computes the CRC of one that several blocks share once.
#[derive(Debug, Default)]
pub struct Sums(Option<([u64; 3], u32)>);

impl Sums {
    /// Whether a payload is the one that was written.
    pub fn fits(&mut self, seed: &Seed, payload: &[u8], check: u32) -> bool {
        let place = [seed.segment, seed.offset.into(), payload.len() as u64];
        let known = self.0.filter(|(known, _)| *known == place);
        let (_, sum) = *self.0.insert(known.unwrap_or_else(|| (place, crc(payload))));
        seed.check(sum) == check
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn superblock() -> Superblock {
        Superblock {
            uuid: *b"0123456789abcdef",
            generation: 7,
            segment: 1 << 20,
            segments: 1000,
            data_at: 1 << 20,
            blocks: 1 << 30,
            open: true,
            tail: Tail { segment: 17, chunk: 99, prev: 0xdead_beef },
            written: Tail { segment: 19, chunk: 130, prev: 0xdead_bee5 },
            void: 18,
            at_s: 1_700_000_002,
            change_counter: ChangeCounter { scope: 1, sure: 0x1234_5678_9abc, written: 3 },
            copies: true,
            durable: 120,
            checkpoint: Some(Pointer {
                seed: 1,
                area: 1,
                page: 4096,
                count: 3,
                whole: 2,
                sum: 9,
                origin: 5,
                chunk: 4,
                prev: 5,
                segment: 6,
                offset: 4096,
            }),
            identity: [3; IDENTITY],
            past_s: 1_700_000_000,
            mixture_s: 1_700_000_001,
            spent: true,
            epochs: vec![Epoch { from: 5, id: 55 }, Epoch { from: 90, id: 66 }],
            lost: vec![(3, 1), ((1 << 30) - 1, 1)],
        }
    }

    #[test]
    fn superblocks_survive_the_bytes_and_damage_is_seen() {
        let bytes = superblock().encode();
        assert_eq!(Superblock::decode(&bytes), Ok(superblock()));
        for at in [9, 40, 300, 4000, 4095] {
            let mut bad = bytes;
            bad[at] ^= 4;
            assert_eq!(Superblock::decode(&bad), Err(Unfit::Damaged), "byte {at}");
        }
        assert_eq!(Superblock::decode(&[0; SUPER]), Err(Unfit::Foreign));
        assert_eq!(superblock().epoch_of(4), None);
        assert_eq!(superblock().epoch_of(89), Some(55));
        assert_eq!(superblock().epoch_of(90), Some(66));
    }

    #[test]
    fn another_version_is_said_to_be_one() {
        for version in [1, 2, 9] {
            let mut bytes = superblock().encode();
            bytes[8] = version;
            let sum = crc(&bytes[..SUPER_CRC_AT]);
            put4(&mut bytes, SUPER_CRC_AT, sum);
            assert_eq!(Superblock::decode(&bytes), Err(Unfit::Version(version.into())));
        }
    }

    #[test]
    fn headers_and_entries_survive_the_bytes() {
        let header = Header {
            epoch: 1,
            chunk: 2,
            segment: 3,
            offset: 4096,
            len: 8192,
            entries: 5,
            table: 6,
            prev: 7,
            durable: 8,
        };
        let (bytes, sum) = header.encode();
        assert_eq!(Header::decode(&bytes), Some((header, sum)));
        for bit in 0..HEADER * 8 {
            let mut bad = bytes;
            bad[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Header::decode(&bad), None, "bit {bit}");
        }
        let block = BLOCKS_MAX - 1;
        let (kind, check) = (Kind::Raw, 0xffff_fff0);
        let data = Data { block, kind, len: 4096, offset: 1 << 23, check, copy: false };
        let range = Entry::Range { kind: Kind::Zeros, block: 9, count: 1 << 37 };
        let cluster = |len| Entry::Data(Data { kind: Kind::Cluster, len, ..data });
        let copy = Entry::Data(Data { copy: true, ..data });
        for entry in [Entry::Data(data), copy, range, cluster(GRANULE), cluster(CLUSTER_MAX)] {
            assert_eq!(Entry::decode(&entry.encode()), Some(entry));
        }
        assert_eq!(Entry::decode(&cluster(CLUSTER_MAX + GRANULE).encode()), None);
        assert_eq!(Entry::decode(&[0; ENTRY]), None);
    }

    #[test]
    fn a_check_word_moves_with_its_payload() {
        let here = Seed { epoch: 1, segment: 2, offset: 128, block: 4 };
        let there = Seed { segment: 3, offset: 4224, ..here };
        let check = here.check(crc(b"payload"));
        assert!(here.fits(b"payload", check));
        assert!(!there.fits(b"payload", check));
        assert!(there.fits(b"payload", here.moved(check, &there)));
        assert!(!Seed { block: 5, ..here }.fits(b"payload", check));
    }
}

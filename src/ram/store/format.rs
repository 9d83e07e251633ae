//! The layout of an index entry and of a record in memory. Pure: bytes in, values out.
//!
//! `docs/format.md` has the diagrams; the constants here are tied to each other below.

use crate::BLOCK_SIZE;
use crate::codec::{CLUSTER, Coding};
use rapidhash::v3::{DEFAULT_RAPID_SECRETS, rapidhash_v3_micro_inline};

/// Bytes of a record before its payload.
pub const HEADER: usize = 10;
/// The longest record: a block that did not shrink.
pub const RECORD_MAX: usize = HEADER + BLOCK_SIZE;
/// The length of a cluster's record is a multiple of this, so that two, three or four owners each
/// own the same whole number of bytes.
pub const CLUSTER_UNIT: u32 = 12;
/// The longest record of a cluster.
pub const CLUSTER_MAX: usize = 16380;
/// The smallest and the largest segment, in bytes.
pub const SEGMENT_MIN: u32 = 32 << 10;
/// See [`SEGMENT_MIN`].
pub const SEGMENT_MAX: u32 = 16 << 20;
/// Blocks that can be numbered: a header holds 32 bits of block number.
pub const BLOCKS_MAX: u64 = 1 << 32;

const OFFSET_BITS: u32 = 24;
const SEGMENT_BITS: u32 = 24;
const LEN_BITS: u32 = 12;
/// Segments that an entry can name.
pub const SEGMENTS_MAX: u32 = 1 << SEGMENT_BITS;

const KIND_SHIFT: u32 = 62;
const HOT: u64 = 1 << 61;
/// In an entry of a record: always 0.
const UNUSED: u64 = 1 << 60;
const LEN_SHIFT: u32 = OFFSET_BITS + SEGMENT_BITS;
/// In an entry of a cluster: the number of owners minus 1, above a shorter length field.
const PARTS_SHIFT: u32 = 59;

const _: () = assert!(SEGMENT_MAX as u64 <= 1 << OFFSET_BITS);
const _: () = assert!(BLOCK_SIZE == 1 << LEN_BITS);
const _: () = assert!(LEN_SHIFT + LEN_BITS <= 61);
const _: () = assert!(RECORD_MAX as u32 <= SEGMENT_MIN / 2);
const _: () = assert!(CLUSTER_MAX as u32 <= SEGMENT_MIN / 2);
const _: () = assert!(CLUSTER_MAX as u32 / CLUSTER_UNIT <= 1 << (PARTS_SHIFT - LEN_SHIFT));
const _: () = assert!((CLUSTER_MAX as u32).is_multiple_of(CLUSTER_UNIT));

/// One word of the index: where the newest version of a block is.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Entry(pub u64);

/// What an [`Entry`] means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Home {
    /// Nothing is stored: the block reads as zeros.
    Hole,
    /// The block is this 4-byte word, repeated.
    Same(u32),
    /// The block is in a record, alone or as one of a cluster.
    Record(Location),
    /// The block was lost with its spill device ([`Entry::LOST`]), or memory was damaged.
    Damaged,
}

/// Where a record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Location {
    /// Logical segment.
    pub segment: u32,
    /// Bytes from the segment's start to the record's header.
    pub offset: u32,
    /// Bytes of payload, 1 to 4096; of a cluster, up to [`CLUSTER_MAX`] with the header.
    pub len: u32,
    /// Blocks that own the record, if it is a cluster; 0 for a record of one block.
    pub parts: u8,
}

impl Location {
    /// Header and payload.
    pub fn record_len(self) -> u32 {
        HEADER as u32 + self.len
    }

    /// Bytes of the record that one block owns: all, or its part of a cluster.
    pub fn share(self) -> u32 {
        self.record_len() / self.owners()
    }

    /// Blocks that own the record.
    pub fn owners(self) -> u32 {
        u32::from(self.parts).max(1)
    }
}

impl Entry {
    /// No record: the initial content of an index.
    pub const HOLE: Self = Self(0);
    /// A block of written zeros.
    pub const ZERO: Self = Self::same(0);
    /// A block that was only on a spill device that was given up: reading it fails.
    pub const LOST: Self = Self(1);

    /// A block that repeats one 4-byte word.
    pub const fn same(word: u32) -> Self {
        Self(2 << KIND_SHIFT | same_check(word) << 32 | word as u64)
    }

    /// A block in a record.
    pub fn record(at: Location) -> Self {
        debug_assert!(at.segment < SEGMENTS_MAX && at.offset < SEGMENT_MAX);
        let place = u64::from(at.segment) << OFFSET_BITS | u64::from(at.offset);
        if at.parts > 0 {
            debug_assert!(at.parts as usize <= CLUSTER && at.record_len() as usize <= CLUSTER_MAX);
            debug_assert!(at.record_len().is_multiple_of(CLUSTER_UNIT));
            let units = u64::from(at.record_len() / CLUSTER_UNIT - 1);
            let parts = u64::from(at.parts - 1);
            return Self(3 << KIND_SHIFT | parts << PARTS_SHIFT | units << LEN_SHIFT | place);
        }
        debug_assert!((1..=BLOCK_SIZE as u32).contains(&at.len));
        Self(1 << KIND_SHIFT | u64::from(at.len - 1) << LEN_SHIFT | place)
    }

    /// Decodes the entry. An entry with one flipped bit never decodes to other content: the record
    /// there checks a place, and this function checks all else.
    pub fn home(self) -> Home {
        let segment = (self.0 >> OFFSET_BITS) as u32 & (SEGMENTS_MAX - 1);
        let offset = self.0 as u32 & ((1 << OFFSET_BITS) - 1);
        let bits = |shift: u32, count: u32| (self.0 >> shift) as u32 & ((1 << count) - 1);
        match self.0 >> KIND_SHIFT {
            1 if self.0 & UNUSED == 0 => {
                let len = bits(LEN_SHIFT, LEN_BITS) + 1;
                Home::Record(Location { segment, offset, len, parts: 0 })
            }
            3 => {
                let units = bits(LEN_SHIFT, PARTS_SHIFT - LEN_SHIFT) + 1;
                let len = cluster_len(units);
                let parts = bits(PARTS_SHIFT, 2) as u8 + 1;
                Home::Record(Location { segment, offset, len, parts })
            }
            2 if self.same_place(Self::same(self.0 as u32)) => Home::Same(self.0 as u32),
            0 if self.same_place(Self::HOLE) => Home::Hole,
            _ => Home::Damaged,
        }
    }

    /// The same entry, marked as read since it was made or moved last.
    pub fn hot(self) -> Self {
        Self(self.0 | HOT)
    }

    /// Whether the block was read since its entry was made or moved last.
    pub fn is_hot(self) -> bool {
        self.0 & HOT != 0
    }

    /// The same entry, marked as not read.
    pub fn cold(self) -> Self {
        Self(self.0 & !HOT)
    }

    /// Whether both entries name the same place; the hot bit is ignored.
    pub fn same_place(self, other: Self) -> bool {
        self.0 & !HOT == other.0 & !HOT
    }

    /// Whether nothing is stored.
    pub fn is_hole(self) -> bool {
        self.home() == Home::Hole
    }
}

/// The check of a word that a block repeats: 29 bits. Each bit of the word changes it.
const fn same_check(word: u32) -> u64 {
    (word as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 35
}

/// Bytes of payload of a cluster's record of `units` [`CLUSTER_UNIT`]s.
fn cluster_len(units: u32) -> u32 {
    units * CLUSTER_UNIT - HEADER as u32
}

impl Coding {
    /// The coding as the four bits in a header.
    fn code(self) -> u16 {
        match self {
            Self::Raw => 1,
            Self::Lz4 => 2,
            Self::Zstd => 3,
            Self::Fill => 4,
            Self::Cluster(parts) => 4 + u16::from(parts),
        }
    }

    /// The inverse of [`Coding::code`].
    fn of(code: u16) -> Option<Self> {
        match code {
            1 => Some(Self::Raw),
            2 => Some(Self::Lz4),
            3 => Some(Self::Zstd),
            4 => Some(Self::Fill),
            5..=8 => Some(Self::Cluster((code - 4) as u8)),
            _ => None,
        }
    }

    /// See [`Location::parts`].
    pub fn parts(self) -> u8 {
        if let Self::Cluster(parts) = self { parts } else { 0 }
    }
}

/// The first bytes of a record: the coding of its payload, its block, and a check of both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// Bytes of payload: see [`Location::len`].
    pub len: u32,
    /// How the payload is coded.
    pub coding: Coding,
    /// The block that the payload is a version of; of a cluster, the first block of its group.
    /// Below [`BLOCKS_MAX`].
    pub block: u64,
    /// See [`check_word`].
    pub check: u32,
}

impl Header {
    /// The header's bytes in a segment.
    pub fn encode(self) -> [u8; HEADER] {
        debug_assert!(self.block < BLOCKS_MAX);
        let mut bytes = [0; HEADER];
        bytes[..2].copy_from_slice(&self.shape().to_le_bytes());
        bytes[2..6].copy_from_slice(&(self.block as u32).to_le_bytes());
        bytes[6..].copy_from_slice(&self.check.to_le_bytes());
        bytes
    }

    /// The inverse of [`Header::encode`]; `None` for a coding that does not exist, such as the 0 of
    /// zeroed memory.
    pub fn decode(bytes: [u8; HEADER]) -> Option<Self> {
        let [s0, s1, b0, b1, b2, b3, c0, c1, c2, c3] = bytes;
        let shape = u16::from_le_bytes([s0, s1]);
        let coding = Coding::of(shape >> LEN_BITS)?;
        let len = u32::from(shape & ((1 << LEN_BITS) - 1)) + 1;
        Some(Self {
            len: if coding.parts() > 0 { cluster_len(len) } else { len },
            coding,
            block: u32::from_le_bytes([b0, b1, b2, b3]).into(),
            check: u32::from_le_bytes([c0, c1, c2, c3]),
        })
    }

    /// Whether this is the header of `block`'s record in a segment of `sequence`, and `payload` is
    /// the one that was written with it.
    pub fn fits(self, payload: &[u8], block: u64, sequence: u64) -> bool {
        let digest = digest(payload, self.coding);
        self.len as usize == payload.len()
            && self.block == block
            && self.check == check_word(digest, block, sequence)
    }

    /// The header of the same record in another segment. Does not read the payload: a damaged one
    /// still does not match its check word after the move.
    pub fn moved(self, from: u64, to: u64) -> Self {
        Self { check: self.check ^ scramble(from) ^ scramble(to), ..self }
    }

    /// Length and coding in one 16-bit word.
    fn shape(self) -> u16 {
        let len = match self.coding.parts() {
            0 => self.len,
            _ => (HEADER as u32 + self.len) / CLUSTER_UNIT,
        };
        debug_assert!((1..=BLOCK_SIZE as u32).contains(&len));
        (len - 1) as u16 | self.coding.code() << LEN_BITS
    }
}

/// A hash over a payload (rapidhash, version 3, micro) and its shape: the part of the check word
/// that does not depend on the place. Not a CRC: in memory a wrong page is as likely as one wrong
/// bit, and on processors without carry-less multiplication a CRC takes as long as decompressing.
pub fn digest(payload: &[u8], coding: Coding) -> u32 {
    let shape = payload.len() as u32 | u32::from(coding.code()) << 16;
    // Multiplied so that neighbouring shapes differ in many bits (2^32 divided by the golden
    // ratio).
    let hash = rapidhash_v3_micro_inline::<true, false>(payload, &DEFAULT_RAPID_SECRETS);
    hash as u32 ^ shape.wrapping_mul(0x9e37_79b9)
}

/// The check word combines the digest, the block's number and the segment's sequence, so that it
/// detects damage, a record of another block, and a record of an earlier lap of the same frame.
pub fn check_word(digest: u32, block: u64, sequence: u64) -> u32 {
    digest ^ block as u32 ^ scramble(sequence)
}

/// Spreads a sequence number over 32 bits (the finalizer of MurmurHash3, 64-bit), so that records
/// of neighbouring laps differ in many bits.
fn scramble(sequence: u64) -> u32 {
    let mut x = sequence;
    x ^= x >> 33;
    x = x.wrapping_mul(0xff51_afd7_ed55_8ccd);
    x ^= x >> 33;
    x = x.wrapping_mul(0xc4ce_b9fe_1a85_ec53);
    (x ^ (x >> 33)) as u32
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn entries_round_trip(
            segment in 0..SEGMENTS_MAX, offset in 0..SEGMENT_MAX, len in 1..=4096u32,
            parts in 0..=CLUSTER as u8,
        ) {
            let len = if parts > 0 { cluster_len(len.min(1365)) } else { len };
            let at = Location { segment, offset, len, parts };
            prop_assert_eq!(at.share() * at.owners(), at.record_len());
            let entry = Entry::record(at);
            prop_assert_eq!(entry.home(), Home::Record(at));
            prop_assert!(entry.same_place(entry.hot()));
            prop_assert_eq!(entry.hot().home(), entry.home());
            prop_assert!(entry.hot().is_hot() && !entry.is_hot());
            prop_assert!(entry.hot().cold() == entry);
            prop_assert!(!entry.is_hole());
        }

        #[test]
        fn same_words_round_trip(word: u32) {
            prop_assert_eq!(Entry::same(word).home(), Home::Same(word));
        }

        #[test]
        fn a_flipped_bit_is_never_another_word_or_a_hole(word: u32, bit in 0..64) {
            let home = Entry(Entry::same(word).0 ^ (1_u64 << bit)).home();
            let right = matches!(home, Home::Same(found) if found == word);
            let zeros = word == 0 && home == Home::Hole;
            prop_assert!(right || zeros || matches!(home, Home::Damaged | Home::Record(_)));
        }

        #[test]
        fn any_word_decodes_to_something(word: u64) {
            let _ = Entry(word).home();
        }

        #[test]
        fn headers_round_trip(
            len in 1u32..=4096, code in 1u16..=8, block in 0..BLOCKS_MAX, check: u32,
        ) {
            let coding = Coding::of(code).unwrap();
            let len = if coding.parts() > 0 { cluster_len(len.min(1365)) } else { len };
            let header = Header { len, coding, block, check };
            prop_assert_eq!(Header::decode(header.encode()), Some(header));
        }

        #[test]
        fn any_bytes_decode_to_something_or_nothing(bytes: [u8; HEADER]) {
            let _ = Header::decode(bytes);
        }

        #[test]
        fn a_header_fits_its_own_record_only(
            payload in proptest::collection::vec(any::<u8>(), 1..200),
            block in 0..BLOCKS_MAX,
            sequence: u64,
            flip in 0usize..1600,
            together: bool,
        ) {
            let coding = if together { Coding::Cluster(3) } else { Coding::Lz4 };
            let unit = CLUSTER_UNIT as usize;
            let mut payload = payload;
            if together {
                payload.resize((HEADER + payload.len()).next_multiple_of(unit) - HEADER, 0);
            }
            let check = check_word(digest(&payload, coding), block, sequence);
            let header = Header { len: payload.len() as u32, coding, block, check };
            prop_assert!(header.fits(&payload, block, sequence));
            prop_assert!(!header.fits(&payload, block ^ 1, sequence));
            let moved = header.moved(sequence, sequence ^ 5);
            prop_assert!(moved.fits(&payload, block, sequence ^ 5));
            let mut bad = payload.clone();
            bad[flip / 8 % payload.len()] ^= 1 << (flip % 8);
            prop_assert!(!header.fits(&bad, block, sequence));
            prop_assert!(!moved.fits(&bad, block, sequence ^ 5));
            let mut bytes = header.encode();
            bytes[flip / 8 % HEADER] ^= 1 << (flip % 8);
            if let Some(bad) = Header::decode(bytes) {
                prop_assert!(!bad.fits(&payload, block, sequence));
            }
        }
    }

    #[test]
    fn zeroed_memory_is_no_record() {
        assert_eq!(Header::decode([0; HEADER]), None);
        assert_eq!(Entry(0).home(), Home::Hole);
    }

    #[test]
    fn an_earlier_lap_does_not_pass() {
        let d = digest(b"abc", Coding::Lz4);
        for lap in 0..1000 {
            assert_ne!(check_word(d, 5, lap), check_word(d, 5, lap + 1));
        }
    }
}

//! A record: the copy of a block, as a header of 16 bytes and a payload.
//!
//! Invariant: nothing in a record is trusted before [`Header::verify`] has accepted it; until then
//! its length serves only to stay inside the segment.

use super::numbers;
use super::table::UNIT;
use crate::BLOCK_SIZE;
use crate::codec::{Codec, Coding};
use crate::media::{Given, PackedBlock};
use rapidhash::v3::{DEFAULT_RAPID_SECRETS, rapidhash_v3_micro_inline};

/// Bytes of a header.
pub const HEADER: usize = 16;
/// Bits of the last byte of a header.
const AHEAD: u8 = 1;
const GIVEN_SHIFT: u32 = 1;
/// Bytes of the largest record.
pub const RECORD_MAX: usize = HEADER + BLOCK_SIZE;

/// How a payload is encoded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
enum Kind {
    Raw,
    Lz4,
    /// A word that the block repeats.
    Fill,
}

/// The header of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    check: u64,
    /// The block's key in its shard.
    pub key: u32,
    /// Bytes of the payload.
    len: u16,
    kind: u8,
    /// The block was read ahead and not requested so far. Not in the check word, because it
    /// changes.
    pub ahead: bool,
    /// How often in a row the page cache above got the block from copies before this one. Not in
    /// the check word, because it is known late.
    pub given: u8,
}

impl Header {
    /// The header at the begin of `bytes`, if `bytes` can hold its record.
    pub fn read(bytes: &[u8]) -> Option<Self> {
        let (check, rest) = bytes.split_first_chunk::<8>()?;
        let (key, rest) = rest.split_first_chunk::<4>()?;
        let (len, rest) = rest.split_first_chunk::<2>()?;
        let (kind, bits) = (*rest.first()?, *rest.get(1)?);
        let header = Self {
            check: u64::from_le_bytes(*check),
            key: u32::from_le_bytes(*key),
            len: u16::from_le_bytes(*len),
            kind,
            ahead: bits & AHEAD != 0,
            given: bits >> GIVEN_SHIFT & numbers::MOST,
        };
        let payload = HEADER..HEADER + usize::from(header.len);
        let fits = usize::from(header.len) <= BLOCK_SIZE && bytes.len() >= payload.end;
        fits.then_some(header)
    }

    /// Stores the header at the begin of `bytes`.
    pub fn write(&self, bytes: &mut [u8]) {
        bytes[..8].copy_from_slice(&self.check.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.key.to_le_bytes());
        bytes[12..14].copy_from_slice(&self.len.to_le_bytes());
        bytes[14] = self.kind;
        bytes[15] = (u8::from(self.ahead) * AHEAD) | (self.given << GIVEN_SHIFT);
    }

    /// Bytes of header and payload.
    pub fn record_len(&self) -> usize {
        HEADER + usize::from(self.len)
    }

    /// Bytes that the record takes in a segment.
    pub fn space(&self) -> usize {
        self.record_len().next_multiple_of(UNIT)
    }

    /// Whether `record`, which begins with this header, is undamaged and a copy of `block`.
    pub fn verify(&self, record: &[u8], block: u64) -> bool {
        let payload = record.get(HEADER..self.record_len());
        payload.is_some_and(|payload| check(payload, block, self.kind) == self.check)
    }

    /// Decodes the payload; `false` when it is no encoding of a block.
    pub fn decode(&self, codec: &mut Codec, record: &[u8], out: &mut [u8; BLOCK_SIZE]) -> bool {
        let Some(payload) = record.get(HEADER..self.record_len()) else { return false };
        let coding = match self.kind {
            kind if kind == Kind::Raw as u8 => Coding::Raw,
            kind if kind == Kind::Lz4 as u8 => Coding::Lz4,
            kind if kind == Kind::Fill as u8 => Coding::Fill,
            _ => return false,
        };
        codec.decode(coding, payload, out)
    }
}

/// Notes in the record at the begin of `bytes` that its block was requested.
pub fn asked_for(bytes: &mut [u8]) {
    bytes[15] &= !AHEAD;
}

/// Notes in the record at the begin of `bytes` how often its block was given; see
/// [`Header::given`].
pub fn note_given(bytes: &mut [u8], given: u8) {
    bytes[15] = (bytes[15] & AHEAD) | (given.min(numbers::MOST) << GIVEN_SHIFT);
}

/// Makes the record of a block, which may be packed already, at the begin of `out`, which must have
/// room for the largest one, and returns its header; `None` when it does not decode, or is packed
/// by zstd: the state for that is larger than all else of an I/O context, which counts in the limit
/// without it.
pub fn encode(
    codec: &mut Codec,
    (block, key): (u64, u32),
    given: Given<'_>,
    ahead: bool,
    out: &mut [u8],
) -> Option<Header> {
    let (head, payload) = out.split_at_mut(HEADER);
    let (len, kind) = match given {
        Given::Plain(data) => pack(codec, data, payload),
        Given::Packed(PackedBlock { coding: coding @ (Coding::Lz4 | Coding::Raw), bytes }) => {
            payload[..bytes.len()].copy_from_slice(bytes);
            (bytes.len(), if *coding == Coding::Raw { Kind::Raw } else { Kind::Lz4 })
        }
        Given::Packed(PackedBlock { coding: Coding::Zstd | Coding::Cluster(_), .. }) => {
            return None;
        }
        Given::Packed(PackedBlock { coding, bytes }) => {
            let mut data = [0; BLOCK_SIZE];
            if !codec.decode(*coding, bytes, &mut data) {
                return None;
            }
            pack(codec, &data, payload)
        }
    };
    let kind = kind as u8;
    let check = check(&payload[..len], block, kind);
    let header = Header { check, key, len: len as u16, kind, ahead, given: 0 };
    header.write(head);
    Some(header)
}

/// Packs a block; returns the number of bytes of the payload.
fn pack(codec: &mut Codec, data: &[u8; BLOCK_SIZE], payload: &mut [u8]) -> (usize, Kind) {
    match codec.encode(data, payload).spelled(payload) {
        (len, Coding::Lz4) => (len, Kind::Lz4),
        (len, Coding::Fill) => (len, Kind::Fill),
        (len, Coding::Raw) => (len, Kind::Raw),
        // The cache uses no other algorithm; whatever came out, the block itself is always right.
        _ => {
            payload[..BLOCK_SIZE].copy_from_slice(data);
            (BLOCK_SIZE, Kind::Raw)
        }
    }
}

/// The check word of a payload: it covers the bytes, their number, the kind and the block.
fn check(payload: &[u8], block: u64, kind: u8) -> u64 {
    let shape = block << 24 ^ (payload.len() as u64) << 8 ^ u64::from(kind);
    let hash = rapidhash_v3_micro_inline::<true, false>(payload, &DEFAULT_RAPID_SECRETS);
    hash ^ shape.wrapping_mul(0x9e37_79b9_7f4a_7c15)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::codec::{Algorithm, Encoded, fill};

    fn blocks() -> [[u8; BLOCK_SIZE]; 4] {
        let (mut text, mut noise, mut same) = ([0; BLOCK_SIZE], [0; BLOCK_SIZE], [0; BLOCK_SIZE]);
        let mut x = 88_172_645_463_325_252u64;
        for i in 0..BLOCK_SIZE {
            text[i] = b"so it goes, "[i % 12] ^ (i / 300) as u8;
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            noise[i] = x as u8;
        }
        fill(&mut same, 0x0102_0304_0506_0708);
        [[0; BLOCK_SIZE], text, noise, same]
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls the C library")]
    fn a_block_comes_back_and_damage_does_not() {
        let mut codec = Codec::new(Algorithm::Lz4);
        for block in blocks() {
            let mut out = vec![0xaa; RECORD_MAX];
            let made = encode(&mut codec, (77, 5), Given::Plain(&block), true, &mut out).unwrap();
            let header = Header::read(&out).unwrap();
            assert_eq!(header, made);
            assert!(header.ahead && header.key == 5);
            let record = &mut out[..header.record_len()];
            let mut back = Box::new([1; BLOCK_SIZE]);
            assert!(header.verify(record, 77) && header.decode(&mut codec, record, &mut back));
            assert!(*back == block);
            assert!(!header.verify(record, 78));
            for bit in 0..record.len() * 8 {
                record[bit / 8] ^= 1 << (bit % 8);
                let found = Header::read(record).is_some_and(|h| h.verify(record, 77));
                // The lookup checks the key itself, and the byte of `ahead` may change.
                let free = (64..96).contains(&bit) || (120..128).contains(&bit);
                assert_eq!(found, free, "bit {bit}");
                record[bit / 8] ^= 1 << (bit % 8);
            }
            note_given(record, 2);
            let header = Header::read(record).unwrap();
            assert!(header.ahead && header.given == 2);
            asked_for(record);
            note_given(record, 9);
            let header = Header::read(record).unwrap();
            assert!(!header.ahead && header.given == 3 && header.verify(record, 77));
            let mut copy = record.to_vec();
            header.write(&mut copy);
            assert!(copy == record);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls the C library")]
    fn a_block_that_is_packed_is_not_packed_again() {
        let mut codec = Codec::new(Algorithm::Lz4);
        let mut room = vec![0; RECORD_MAX];
        for block in blocks() {
            let Encoded::Payload(len, coding @ (Coding::Lz4 | Coding::Raw)) =
                codec.encode(&block, &mut room)
            else {
                continue; // one word
            };
            let packed = PackedBlock { coding, bytes: room[..len].to_vec().into() };
            let (mut one, mut two) = (vec![0; RECORD_MAX], vec![0; RECORD_MAX]);
            let whole = encode(&mut codec, (7, 5), Given::Plain(&block), false, &mut one);
            let made = encode(&mut codec, (7, 5), Given::Packed(&packed), false, &mut two);
            assert!(made.is_some() && (made, two) == (whole, one));
        }
    }

    /// A log by zstd before a store writes such blocks.
    #[test]
    #[cfg_attr(miri, ignore = "calls the C library")]
    fn a_block_that_is_packed_by_zstd_is_not_kept_and_takes_no_memory() {
        let (mut codec, mut zstd) = (Codec::new(Algorithm::Lz4), Codec::new(Algorithm::Zstd));
        let (memory, mut room) = (codec.memory(), vec![0; RECORD_MAX]);
        let [_, text, ..] = blocks();
        let Encoded::Payload(len, coding @ Coding::Zstd) = zstd.encode(&text, &mut room) else {
            panic!("it does not shrink")
        };
        let packed = PackedBlock { coding, bytes: room[..len].to_vec().into() };
        let made = encode(&mut codec, (7, 5), Given::Packed(&packed), false, &mut room);
        assert_eq!((made, codec.memory()), (None, memory));
    }

    #[test]
    fn what_is_no_header_is_refused() {
        assert_eq!(Header::read(&[0; 15]), None);
        let mut bytes = [0xff; 64];
        assert_eq!(Header::read(&bytes), None, "longer than a block");
        bytes[12..14].copy_from_slice(&49u16.to_le_bytes());
        assert_eq!(Header::read(&bytes), None, "longer than what is there");
        bytes[12..14].copy_from_slice(&48u16.to_le_bytes());
        assert!(Header::read(&bytes).is_some());
    }
}

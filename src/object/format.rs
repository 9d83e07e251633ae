//! The objects of a chain, fence and part of a window, and pieces of a checkpoint.
//! `docs/object-format.md` draws them. Pure: bytes in, values out.
//!
//! Invariants: numbers are little-endian; an object is believed only if its check words fit, which
//! are seeded with the volume's identity, the session that made it, and its slot.

use crate::BLOCK_SIZE;
use crate::codec::Coding;
use crc_fast::{CrcAlgorithm, Digest};
use std::ops::Range;

/// First bytes of every object.
pub const MAGIC: [u8; 8] = *b"ztierOBJ";
/// Version of the format.
pub const VERSION: u16 = 3;
/// Bytes of a head.
pub const HEAD: usize = 80;
/// Bytes of an entry.
pub const ENTRY: usize = 16;
/// Most entries of a part.
pub const ENTRIES_MAX: usize = 1 << 16;
/// Most bytes of payloads in a part.
pub const PAYLOADS_MAX: usize = 8 << 20;
/// Bits of an offset in an object.
pub const OFFSET_BITS: u32 = 24;
/// Slots of a chain.
pub const SLOTS_MAX: u64 = 1 << 40;
const _: () = assert!(HEAD + ENTRIES_MAX * ENTRY + PAYLOADS_MAX <= 1 << OFFSET_BITS);
/// Slots that an owner may have issued beyond the first one that is not durable; a fence continues
/// the chain at its own slot plus this. Few for the simulator, which then meets the end often.
pub const WIDTH: u64 = if cfg!(sim) { 2 } else { 16 };

const TABLE_CRC_AT: usize = 68;
const BEFORE_AT: usize = 72;
const HEAD_CRC_AT: usize = HEAD - 4;
const KIND_PART: u8 = 1;
const KIND_FENCE: u8 = 2;
/// That of a root.
pub const KIND_ROOT: u8 = 3;
const KIND_PIECE: u8 = 4;
/// A part: it is the last one of its window, which counts from here on. So with pieces.
const COMMITS: u8 = 1;

/// A number that is unique to a volume.
pub type Identity = [u8; 16];
/// A number that is unique to an owner's time with a volume.
pub type Session = [u8; 16];

/// What an object was made for, and by which session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed {
    /// The volume.
    pub volume: Identity,
    /// The session that made it.
    pub session: Session,
    /// Its slot.
    pub slot: u64,
}

impl Seed {
    /// The check word of `bytes` in an object of this seed.
    fn check(&self, what: u64, bytes: &[u8]) -> u32 {
        let mut digest = Digest::new(CrcAlgorithm::Crc32Iscsi);
        for part in [&self.volume[..], &self.session, &self.slot.to_le_bytes(), &what.to_le_bytes()]
        {
            digest.update(part);
        }
        digest.update(bytes);
        digest.finalize() as u32
    }

    /// The check word of the payload of `block`.
    pub fn payload(&self, block: u64, coding: Coding, payload: &[u8]) -> u32 {
        self.check(block << 8 | u64::from(code(coding)), payload)
    }

    /// The check word of a log's mark.
    pub fn mark(&self, mark: &[u8]) -> u32 {
        self.check(u64::MAX - 2, mark)
    }
}

/// How much of a window an object is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The window's number in its session.
    pub window: u64,
    /// The part's number in its window, from 0 on.
    pub part: u32,
    /// Whether it is the last part.
    pub commits: bool,
    /// [`check_of`] the part before it; 0 for the first one. Parts of two windows with one number,
    /// by two copies of one process, so never make a window together.
    pub before: u32,
}

/// What an entry of a part says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Entry {
    /// The block has this payload; payloads follow each other in the order of their entries.
    Block {
        /// The block's number.
        block: u64,
        /// How the payload is coded.
        coding: Coding,
        /// Bytes of the payload.
        len: u16,
        /// See [`Seed::payload`].
        check: u32,
    },
    /// These blocks read as zeros.
    Zeros {
        /// The first of them.
        first: u64,
        /// Their number.
        count: u32,
    },
    /// The content of these blocks is lost.
    Lost {
        /// The first of them.
        first: u64,
        /// Their number.
        count: u32,
    },
    /// A log has made this window; the payload is a [`Mark`](super::Mark).
    Mark {
        /// Bytes of the payload.
        len: u16,
        /// See [`Seed::mark`].
        check: u32,
    },
}

/// The number of a coding.
pub fn code(coding: Coding) -> u8 {
    match coding {
        Coding::Raw => 0,
        Coding::Lz4 => 1,
        Coding::Zstd => 2,
        Coding::Fill => 3,
        // Each block has a payload of its own.
        Coding::Cluster(_) => NONE,
    }
}

/// The coding of a number.
pub fn coding(code: u8) -> Option<Coding> {
    Some(match code {
        0 => Coding::Raw,
        1 => Coding::Lz4,
        2 => Coding::Zstd,
        3 => Coding::Fill,
        _ => return None,
    })
}

/// In place of a coding: an entry of zeros, of what is lost, and of a mark; and no coding.
const ZEROS: u8 = 255;
const LOST: u8 = 253;
const MARK: u8 = 252;
const NONE: u8 = 254;

impl Entry {
    /// Bytes of its payload.
    fn payload_len(&self) -> u16 {
        match self {
            Self::Block { len, .. } | Self::Mark { len, .. } => *len,
            Self::Zeros { .. } | Self::Lost { .. } => 0,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        let (block, len, code, word) = match *self {
            Self::Block { block, coding, len, check } => (block, len, code(coding), check),
            Self::Zeros { first, count } => (first, 0, ZEROS, count),
            Self::Lost { first, count } => (first, 0, LOST, count),
            Self::Mark { len, check } => (0, len, MARK, check),
        };
        out.extend_from_slice(&block.to_le_bytes());
        out.extend_from_slice(&len.to_le_bytes());
        out.extend_from_slice(&[code, 0]);
        out.extend_from_slice(&word.to_le_bytes());
    }

    fn decode(bytes: &[u8; ENTRY]) -> Option<Self> {
        let (block, word) = (get8(bytes, 0), get4(bytes, 12));
        let len = u16::from_le_bytes([bytes[8], bytes[9]]);
        match bytes[10] {
            ZEROS if len == 0 => Some(Self::Zeros { first: block, count: word }),
            LOST if len == 0 => Some(Self::Lost { first: block, count: word }),
            MARK => Some(Self::Mark { len, check: word }),
            ZEROS | LOST => None,
            code => {
                let coding = coding(code)?;
                let fits = usize::from(len) <= BLOCK_SIZE && len > 0;
                fits.then_some(Self::Block { block, coding, len, check: word })
            }
        }
    }
}

/// The object in a slot of the chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Object {
    /// Ends the time of earlier sessions: the chain continues [`WIDTH`] slots on.
    Fence {
        /// The session that begins here.
        session: Session,
    },
    /// A part of a window.
    Part {
        /// The session that made it.
        session: Session,
        /// How much of a window it is.
        part: Part,
        /// What it says.
        entries: Vec<Entry>,
        /// Its own check word: [`check_of`] it.
        check: u32,
    },
}

/// Why an object is not believed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Damage {
    /// It is none of ours.
    #[error("is no object of ztier")]
    Foreign,
    /// This version can't read it.
    #[error("was made by a newer ztier (format {0})")]
    Newer(u16),
    /// It is another volume's, or that of a session which does not count there.
    #[error("belongs to another volume")]
    Other,
    /// A check word does not fit.
    #[error("is damaged")]
    Damaged,
    /// It was made for another slot.
    #[error("is of another slot")]
    Misplaced,
}

/// A fence.
pub fn fence(seed: &Seed) -> Vec<u8> {
    let none = Part { window: 0, part: 0, commits: false, before: 0 };
    head(KIND_FENCE, seed, none, 0, HEAD, 0)
}

/// A part of a window: `payloads` are those of the entries, one after the other.
pub fn part(seed: &Seed, of: Part, entries: &[Entry], payloads: &[u8]) -> Vec<u8> {
    let mut out = table(seed, of, entries);
    out.extend_from_slice(payloads);
    out
}

/// Head and entries of a part of a window, with room for the payloads, which come next.
pub fn table(seed: &Seed, of: Part, entries: &[Entry]) -> Vec<u8> {
    let mut table = Vec::with_capacity(entries.len() * ENTRY);
    entries.iter().for_each(|entry| entry.encode(&mut table));
    let payloads: usize = entries.iter().map(|entry| usize::from(entry.payload_len())).sum();
    let len = HEAD + table.len() + payloads;
    let check = seed.check(u64::MAX, &table);
    let mut out = head(KIND_PART, seed, of, entries.len() as u32, len, check);
    out.extend_from_slice(&table);
    out
}

/// A piece of a checkpoint, which `of` places in it: its window is the checkpoint's generation.
pub fn piece(seed: &Seed, of: Part, units: &[[u8; ENTRY]]) -> Vec<u8> {
    let body = units.as_flattened();
    let check = seed.check(u64::MAX, body);
    let mut out = head(KIND_PIECE, seed, of, units.len() as u32, HEAD + body.len(), check);
    out.extend_from_slice(body);
    out
}

/// Reads a piece that [`piece`] has made.
///
/// # Errors
/// It is another, or damaged.
pub fn read_piece<'a>(bytes: &'a [u8], seed: &Seed, of: Part) -> Result<&'a [[u8; ENTRY]], Damage> {
    let kind = known(bytes, &seed.volume)?;
    let (units, rest) = bytes[HEAD..].as_chunks::<ENTRY>();
    let expected = head(
        KIND_PIECE,
        seed,
        of,
        units.len() as u32,
        bytes.len(),
        seed.check(u64::MAX, units.as_flattened()),
    );
    // All but the version, and the check word that has it in.
    let same = bytes[10..HEAD_CRC_AT] == expected[10..HEAD_CRC_AT];
    let whole = seed.check(u64::MAX - 1, &bytes[..HEAD_CRC_AT]) == get4(bytes, HEAD_CRC_AT);
    if kind != KIND_PIECE || !rest.is_empty() || !same || !whole {
        return Err(Damage::Damaged);
    }
    Ok(units)
}

fn head(kind: u8, seed: &Seed, part: Part, entries: u32, len: usize, table: u32) -> Vec<u8> {
    let mut out = Vec::with_capacity(len);
    out.extend_from_slice(&MAGIC);
    out.extend_from_slice(&VERSION.to_le_bytes());
    out.extend_from_slice(&[kind, if part.commits { COMMITS } else { 0 }]);
    out.extend_from_slice(&entries.to_le_bytes());
    out.extend_from_slice(&seed.volume);
    out.extend_from_slice(&seed.session);
    out.extend_from_slice(&seed.slot.to_le_bytes());
    out.extend_from_slice(&(part.window << 16 | u64::from(part.part)).to_le_bytes());
    out.extend_from_slice(&(len as u32).to_le_bytes());
    out.extend_from_slice(&table.to_le_bytes());
    out.extend_from_slice(&part.before.to_le_bytes());
    let check = seed.check(u64::MAX - 1, &out);
    out.extend_from_slice(&check.to_le_bytes());
    out
}

/// The check word of an object's head; 0 without one.
pub fn check_of(object: &[u8]) -> u32 {
    if object.len() < HEAD { 0 } else { get4(object, HEAD_CRC_AT) }
}

/// Bytes of an object's head and table, given its head; at least [`HEAD`].
pub fn table_end(head: &[u8]) -> usize {
    let entries = if head.len() < HEAD { 0 } else { get4(head, 12) as usize };
    HEAD + entries.min(ENTRIES_MAX) * ENTRY
}

/// Reads the head and table of the object in `slot` of `volume`.
///
/// # Errors
/// It is not that object.
pub fn decode(bytes: &[u8], volume: &Identity, slot: u64) -> Result<Object, Damage> {
    let kind = known(bytes, volume)?;
    let end = table_end(bytes);
    if bytes.len() < end {
        return Err(Damage::Damaged);
    }
    let session = array(bytes, 32);
    let found = Seed { volume: *volume, session, slot: get8(bytes, 48) };
    if get4(bytes, HEAD_CRC_AT) != found.check(u64::MAX - 1, &bytes[..HEAD_CRC_AT]) {
        return Err(Damage::Damaged);
    }
    if found.slot != slot {
        return Err(Damage::Misplaced);
    }
    let table = &bytes[HEAD..end];
    match kind {
        KIND_FENCE => Ok(Object::Fence { session }),
        KIND_PART if get4(bytes, TABLE_CRC_AT) == found.check(u64::MAX, table) => {
            let entries = table.as_chunks::<ENTRY>().0.iter().map(Entry::decode);
            let entries: Vec<Entry> = entries.collect::<Option<_>>().ok_or(Damage::Damaged)?;
            let payloads: usize =
                entries.iter().map(|entry| usize::from(entry.payload_len())).sum();
            if payloads > PAYLOADS_MAX || get4(bytes, 12) as usize > ENTRIES_MAX {
                return Err(Damage::Damaged);
            }
            let number = get8(bytes, 56);
            let (window, commits) = (number >> 16, bytes[11] & COMMITS != 0);
            let before = get4(bytes, BEFORE_AT);
            let part = Part { window, part: number as u32 & 0xffff, commits, before };
            Ok(Object::Part { session, part, entries, check: check_of(bytes) })
        }
        _ => Err(Damage::Damaged),
    }
}

/// The kind of an object of `volume`.
pub fn known(bytes: &[u8], volume: &Identity) -> Result<u8, Damage> {
    if bytes.len() < HEAD || bytes[..8] != MAGIC {
        return Err(Damage::Foreign);
    }
    match u16::from_le_bytes([bytes[8], bytes[9]]) {
        1..=VERSION => {}
        newer if newer > VERSION => return Err(Damage::Newer(newer)),
        _ => return Err(Damage::Damaged),
    }
    if array::<16>(bytes, 16) != *volume {
        return Err(Damage::Other);
    }
    Ok(bytes[10])
}

/// The ranges of the payloads of a part, in the whole object, in the order of their entries.
pub fn payloads(entries: &[Entry]) -> impl Iterator<Item = (&Entry, Range<u32>)> {
    let mut at = (HEAD + entries.len() * ENTRY) as u32;
    entries.iter().map(move |entry| {
        let len = u32::from(entry.payload_len());
        at += len;
        (entry, at - len..at)
    })
}

/// Bytes from `at` on.
pub fn array<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

/// The number in eight bytes from `at` on.
pub fn get8(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(array(bytes, at))
}

/// The number in four bytes from `at` on.
pub fn get4(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(array(bytes, at))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const SEED: Seed = Seed { volume: [1; 16], session: [2; 16], slot: 0x1234 };
    const PART: Part = Part { window: 7, part: 3, commits: true, before: 0x5678 };

    fn entries() -> Vec<Entry> {
        let block = |block, len| {
            let check = SEED.payload(block, Coding::Lz4, &vec![9; usize::from(len)]);
            Entry::Block { block, coding: Coding::Lz4, len, check }
        };
        let zeros = Entry::Zeros { first: 5, count: 1 << 30 };
        let (lost, mark) = (Entry::Lost { first: 9, count: 2 }, Entry::Mark { len: 56, check: 8 });
        vec![zeros, block(6, 100), block(1 << 33, 4096), lost, mark]
    }

    #[test]
    fn objects_are_read_as_they_were_made() {
        let bytes = part(&SEED, PART, &entries(), &[9; 4252]);
        assert_eq!(bytes.len(), HEAD + 5 * ENTRY + 4252);
        assert_eq!(table_end(&bytes), HEAD + 5 * ENTRY);
        // Head and table are enough.
        let found = decode(&bytes[..HEAD + 5 * ENTRY], &SEED.volume, SEED.slot);
        let (session, part, check) = (SEED.session, PART, check_of(&bytes));
        assert_ne!(check, 0);
        assert_eq!(found, Ok(Object::Part { session, part, entries: entries(), check }));
        let ranges: Vec<_> = payloads(&entries()).map(|(_, range)| range).collect();
        assert_eq!(ranges, [160..160, 160..260, 260..4356, 4356..4356, 4356..4412]);
        let fence = fence(&SEED);
        assert_eq!(fence.len(), HEAD);
        assert_eq!(decode(&fence, &SEED.volume, SEED.slot), Ok(Object::Fence { session }));
    }

    #[test]
    fn what_was_changed_anywhere_is_not_believed() {
        let good = part(&SEED, PART, &entries(), &[9; 4252]);
        for at in 0..HEAD + 5 * ENTRY {
            for bit in 0..8 {
                let mut bad = good.clone();
                bad[at] ^= 1 << bit;
                assert!(decode(&bad, &SEED.volume, SEED.slot).is_err(), "byte {at}, bit {bit}");
            }
        }
        for len in 0..HEAD + 5 * ENTRY {
            assert!(decode(&good[..len], &SEED.volume, SEED.slot).is_err(), "{len}");
        }
        assert_eq!(decode(&good, &[3; 16], SEED.slot), Err(Damage::Other));
        assert_eq!(decode(&good, &SEED.volume, 1), Err(Damage::Misplaced));
    }

    #[test]
    fn a_payload_is_of_its_block_slot_and_session() {
        let check = SEED.payload(6, Coding::Lz4, b"abc");
        assert_ne!(check, SEED.payload(7, Coding::Lz4, b"abc"));
        assert_ne!(check, SEED.payload(6, Coding::Raw, b"abc"));
        assert_ne!(check, Seed { slot: 1, ..SEED }.payload(6, Coding::Lz4, b"abc"));
        assert_ne!(check, Seed { session: [3; 16], ..SEED }.payload(6, Coding::Lz4, b"abc"));
    }

    #[test]
    fn a_piece_is_of_its_place_in_its_checkpoint() {
        let of = Part { window: 7, part: 3, commits: true, before: 9 };
        let units = [[1; ENTRY], [2; ENTRY]];
        let good = piece(&SEED, of, &units);
        assert_eq!(read_piece(&good, &SEED, of), Ok(&units[..]));
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 2;
            assert!(read_piece(&bad, &SEED, of).is_err(), "byte {at}");
        }
        (0..good.len()).for_each(|len| assert!(read_piece(&good[..len], &SEED, of).is_err()));
        for other in [
            Part { window: 8, ..of },
            Part { part: 4, ..of },
            Part { commits: false, ..of },
            Part { before: 8, ..of },
        ] {
            assert_eq!(read_piece(&good, &SEED, other), Err(Damage::Damaged));
        }
        assert!(read_piece(&good, &Seed { slot: 1, ..SEED }, of).is_err());
        assert!(decode(&good, &SEED.volume, SEED.slot).is_err(), "it is no object of a chain");
    }
}

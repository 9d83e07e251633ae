//! What tells one backing drive from another, and from itself after somebody else wrote to it.
//!
//! An identity is the drive's own id, its size, and checksums of eight samples of its content: the
//! first 128 KiB in four parts, where file systems keep their superblocks, which a mount changes
//! (ext4 at 1024, XFS at 0, btrfs at 64 KiB); three samples inside; and the last one, where copies
//! of partition tables and RAID superblocks are.
//!
//! Invariants:
//! - it is made through [`Drive`] alone, so every drive has one;
//! - the stored form is [`Identity::STORED`] bytes, little-endian, with a version and a checksum;
//!   what it does not understand, it refuses;
//! - a sample that is not known on both sides is not compared.
//!
//! The samples are of the drive as it is. Whoever writes to a drive whose identity is stored either
//! stores a new one, or calls [`Identity::forget`] for what it may have written, before comparing.
//! The superblocks have samples of one block each, so that little is forgotten with them.

use super::buffer::Buffer;
use super::drive::{ALIGN, Drive, DriveError};
use super::stable_id::{IdKind, StableId};
use std::ops::Range;

/// Samples in an identity.
const SAMPLES: usize = 8;
/// Bytes of the samples that are not at the beginning.
const SAMPLE: u64 = 16 << 10;
const VERSION: u8 = 1;
const BLOCK: u64 = ALIGN as u64;

/// What each sample is of, in words.
const NAMES: [&str; SAMPLES] = [
    "the first block (superblock of ext4, XFS, swap and others)",
    "the block at 64 KiB (superblock of btrfs)",
    "the first 64 KiB",
    "the first 128 KiB",
    "the data at a quarter",
    "the data at half",
    "the data at three quarters",
    "the end",
];

/// The identity of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Identity {
    kind: IdKind,
    id: u64,
    size: u64,
    /// Bit `n`: whether `sums[n]` is known.
    known: u8,
    sums: [u32; SAMPLES],
}

/// How a drive compares with the one whose identity was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// It is the same one, and nobody has changed it.
    Same,
    /// It has the content, and another id: a copy, or the same drive on a system that names it
    /// otherwise.
    Moved,
    /// It is the same one, and somebody has written to it.
    Changed {
        /// What is different, in words: `the end and its size (4096 bytes then, 8192 now)`.
        what: String,
    },
    /// It is another one.
    Other {
        /// What is different, in words.
        what: String,
    },
}

impl Identity {
    /// Bytes of the stored form.
    pub const STORED: usize = 64;

    /// The identity of `drive` as it is now, of which `id` is known.
    ///
    /// A sample that can't be read is not known.
    ///
    /// # Errors
    /// The drive's, if none can be read.
    pub fn of(drive: &dyn Drive, id: &StableId) -> Result<Self, DriveError> {
        let size = drive.size();
        let mut made =
            Self { kind: id.kind(), id: id.number(), size, known: 0, sums: [0; SAMPLES] };
        let (mut buffer, mut unread) = (Buffer::new(64 << 10), None);
        for (n, range) in Self::samples(size).into_iter().enumerate() {
            let Some(range) = range else { continue };
            let bytes = &mut buffer[..(range.end - range.start) as usize];
            match drive.read(range.start, bytes) {
                Ok(()) => {
                    made.sums[n] = crc_fast::crc32_iscsi(bytes);
                    made.known |= 1 << n;
                }
                Err(e) => unread = Some(e),
            }
        }
        match unread {
            Some(e) if made.known == 0 => Err(e),
            _ => Ok(made),
        }
    }

    /// The ranges, in bytes, of which a drive of `size` bytes gives samples; `None` for those that
    /// it is too small for.
    pub fn samples(size: u64) -> [Option<Range<u64>>; SAMPLES] {
        let head = |from: u64, to: u64| (from < size).then(|| from..to.min(size));
        let len = SAMPLE.min(size);
        let inner = |quarters: u64| {
            let at = size / 4 * quarters / BLOCK * BLOCK;
            (len > 0).then(|| at.min(size - len)..at.min(size - len) + len)
        };
        [
            head(0, BLOCK),
            head(64 << 10, (64 << 10) + BLOCK),
            head(BLOCK, 64 << 10),
            head((64 << 10) + BLOCK, 128 << 10),
            inner(1),
            inner(2),
            inner(3),
            inner(4),
        ]
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Drops the samples of which `changed` says that we may have written to them ourselves.
    pub fn forget(&mut self, changed: impl Fn(Range<u64>) -> bool) {
        for (n, range) in Self::samples(self.size).into_iter().enumerate() {
            if range.is_some_and(&changed) {
                self.known &= !(1 << n);
            }
        }
    }

    /// How the drive with the identity `now` compares with this one, stored earlier.
    pub fn compare(&self, now: &Self) -> Match {
        let mut different = Vec::new();
        let common = self.known & now.known;
        if self.size == now.size {
            different.extend(
                (0..SAMPLES)
                    .filter(|n| common >> n & 1 == 1 && self.sums[*n] != now.sums[*n])
                    .map(|n| NAMES[n].to_owned()),
            );
        } else {
            different.push(format!("its size ({} bytes then, {} now)", self.size, now.size));
        }
        let named = self.kind != IdKind::Unknown && now.kind != IdKind::Unknown;
        let same_name = (self.kind, self.id) == (now.kind, now.id);
        if different.is_empty() {
            return match (same_name || !named, common) {
                (true, _) => Match::Same,
                // Nothing speaks for it.
                (false, 0) => Match::Other { what: "its id".into() },
                (false, _) => Match::Moved,
            };
        }
        if named && !same_name {
            different.insert(0, "its id".into());
            return Match::Other { what: different.join(" and ") };
        }
        Match::Changed { what: different.join(" and ") }
    }

    /// The stored form: version, kind of id, known samples, 0; 4 bytes of 0; size; id; sums; 4
    /// bytes of 0; 4 bytes of CRC32C over all before.
    pub fn encode(&self) -> [u8; Self::STORED] {
        let mut out = [0; Self::STORED];
        out[..3].copy_from_slice(&[VERSION, self.kind as u8, self.known]);
        out[8..16].copy_from_slice(&self.size.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.to_le_bytes());
        for (place, sum) in out[24..56].chunks_exact_mut(4).zip(self.sums) {
            place.copy_from_slice(&sum.to_le_bytes());
        }
        let crc = crc_fast::crc32_iscsi(&out[..60]);
        out[60..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the stored form; `None` for what is damaged or of another version.
    pub fn decode(stored: &[u8; Self::STORED]) -> Option<Self> {
        let u32_at = |at: usize| stored[at..at + 4].try_into().ok().map(u32::from_le_bytes);
        let u64_at = |at: usize| stored[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        if stored[0] != VERSION || u32_at(60)? != crc_fast::crc32_iscsi(&stored[..60]) {
            return None;
        }
        let mut sums = [0; SAMPLES];
        for (n, sum) in sums.iter_mut().enumerate() {
            *sum = u32_at(24 + 4 * n)?;
        }
        let kind = IdKind::from_number(stored[1])?;
        Some(Self { kind, id: u64_at(16)?, size: u64_at(8)?, known: stored[2], sums })
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::sync::Mutex;

    const SIZE: usize = 1 << 20;

    /// A drive in memory.
    struct Memory(Mutex<Vec<u8>>);

    impl Memory {
        fn new(size: usize) -> Self {
            Self(Mutex::new((0..size).map(|i| (i / 1000) as u8).collect()))
        }

        fn identity(&self, id: &str) -> Identity {
            let id = if id.is_empty() { StableId::unknown() } else { StableId::given(id) };
            Identity::of(self, &id).unwrap()
        }
    }

    impl Drive for Memory {
        fn size(&self) -> u64 {
            self.0.lock().len() as u64
        }

        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
            assert!(at.is_multiple_of(4096) && buf.len().is_multiple_of(4096));
            buf.copy_from_slice(&self.0.lock()[at as usize..][..buf.len()]);
            Ok(())
        }

        fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
            self.0.lock()[at as usize..][..data.len()].copy_from_slice(data);
            Ok(())
        }

        fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
            self.write(at, &vec![0; len as usize])
        }

        fn flush(&self) -> Result<(), DriveError> {
            Ok(())
        }
    }

    fn what(found: &Match) -> &str {
        match found {
            Match::Changed { what } | Match::Other { what } => what,
            _ => "",
        }
    }

    #[test]
    fn one_bit_in_a_sample_is_a_change_and_elsewhere_is_not() {
        let drive = Memory::new(SIZE);
        let before = drive.identity("a");
        assert_eq!(before.compare(&drive.identity("a")), Match::Same);
        for (at, part) in [
            (1024, "superblock of ext4"),
            (5000, "first 64 KiB"),
            (65536 + 64, "btrfs"),
            (131071, "first 128 KiB"),
            (SIZE / 4, "a quarter"),
            (SIZE / 2 + 16383, "at half"),
            (SIZE / 4 * 3, "three quarters"),
            (SIZE - 1, "the end"),
        ] {
            drive.0.lock()[at] ^= 1;
            let found = before.compare(&drive.identity("a"));
            assert!(matches!(found, Match::Changed { .. }), "{at}: {found:?}");
            assert!(what(&found).contains(part), "{at}: {found:?}");
            drive.0.lock()[at] ^= 1;
        }
        drive.0.lock()[200_000] ^= 1;
        assert_eq!(before.compare(&drive.identity("a")), Match::Same);
    }

    #[test]
    fn names_decide_between_changed_and_other() {
        let (one, two) = (Memory::new(SIZE), Memory::new(SIZE));
        two.0.lock()[1080] = 99;
        let before = one.identity("one");
        assert_eq!(before.compare(&one.identity("two")), Match::Moved);
        assert_eq!(before.compare(&one.identity("")), Match::Same);
        assert!(matches!(before.compare(&two.identity("one")), Match::Changed { .. }));
        assert!(matches!(before.compare(&two.identity("two")), Match::Other { .. }));
        assert!(matches!(before.compare(&two.identity("")), Match::Changed { .. }));
        let larger = before.compare(&Memory::new(2 * SIZE).identity("one"));
        assert!(what(&larger).contains("1048576 bytes then, 2097152 now"), "{larger:?}");
    }

    #[test]
    fn what_was_forgotten_is_not_compared() {
        let drive = Memory::new(SIZE);
        let mut before = drive.identity("a");
        drive.0.lock()[100] ^= 1;
        drive.0.lock()[SIZE - 1] ^= 1;
        let now = drive.identity("a");
        before.forget(|range| range.contains(&100));
        let found = before.compare(&now);
        assert!(what(&found).contains("the end") && !what(&found).contains("first"), "{found:?}");
        before.forget(|range| range.end == SIZE as u64);
        assert_eq!(before.compare(&now), Match::Same);
        before.forget(|_| true);
        assert_eq!(before.compare(&now), Match::Same);
        assert!(matches!(before.compare(&drive.identity("b")), Match::Other { .. }));
    }

    #[test]
    fn small_drives_have_an_identity_too() {
        for size in [4096, 8192, 65536, 69632, 131072, 143360] {
            let drive = Memory::new(size);
            let before = drive.identity("a");
            for at in [0, size - 1] {
                drive.0.lock()[at] ^= 1;
                assert_ne!(before.compare(&drive.identity("a")), Match::Same, "{size} {at}");
                drive.0.lock()[at] ^= 1;
            }
        }
    }

    #[test]
    fn the_stored_form_comes_back_and_damage_does_not() {
        let identity = Memory::new(SIZE).identity("a");
        let stored = identity.encode();
        assert_eq!(Identity::decode(&stored), Some(identity));
        for bit in 0..stored.len() * 8 {
            let mut damaged = stored;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Identity::decode(&damaged), None, "bit {bit}");
        }
        assert_eq!(Identity::decode(&[0; Identity::STORED]), None);
    }
}

//! Tells one backing drive from another, and from itself after a write by another program.
//!
//! An identity is the drive's own id, its size, and checksums of samples of its content. Eight
//! samples have the same place on every drive: the first 128 KiB in four parts, which hold
//! partition tables and the superblocks that a mount changes (ext4 at 1024, XFS at 0, btrfs at 64
//! KiB); three samples inside; and the end, which holds copies of partition tables and RAID
//! superblocks. The other samples are where [`super::contents`] finds superblocks: of partitions,
//! logical volumes, and file systems that begin elsewhere.
//!
//! Invariants:
//! - an identity is made through [`Drive`] alone, so every drive has one;
//! - the stored form is [`Identity::STORED`] bytes, little-endian, with a version and a checksum; a
//!   form of another version, or a damaged one, is refused;
//! - a sample that is not known on both sides is not compared.
//!
//! The samples are of the drive's present content. Before ztier writes to a drive whose identity is
//! stored, it calls [`Identity::forget`] for the range, and when the data is durable,
//! [`Identity::renewed`]. Superblocks have samples of their own, so a write to one drops little.

use super::buffer::Buffer;
use super::contents::{self, Kind, REGIONS, Region};
use super::drive::{ALIGN, Drive, DriveError};
use super::stable_id::{IdKind, StableId};
use std::ops::Range;

/// Samples that every identity has.
const SAMPLES: usize = 8;
/// Bytes of each sample inside; `END` are those of the sample at the end.
const SAMPLE: u64 = 16 << 10;
const END: u64 = 64 << 10;
const VERSION: u8 = 2;
const BLOCK: u64 = ALIGN as u64;

/// Offsets in the stored form: of the sums, of the other samples, and of the checksum.
const SUMS_AT: usize = 24;
const REGIONS_AT: usize = SUMS_AT + 4 * SAMPLES;
const REGION: usize = 12;
const CRC_AT: usize = Identity::STORED - 4;

const _: () = assert!(REGIONS_AT + REGION * REGIONS <= CRC_AT);

/// The content of each sample, in words.
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
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    kind: IdKind,
    id: u64,
    size: u64,
    /// Checksums of the fixed samples; `None`: not known.
    sums: [Option<u32>; SAMPLES],
    /// The other samples, with their sums.
    regions: Vec<(Region, Option<u32>)>,
}

/// How a drive compares with the one whose identity was stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Match {
    /// The same drive, with no sample changed.
    Same,
    /// A drive with another id, and equal in all that can be compared: a copy, or the same drive on
    /// a system that gives it another id.
    Moved {
        /// Samples that were compared; 0: only the size was.
        compared: usize,
    },
    /// The same drive, and another program has written to it.
    Changed {
        /// What is different, in words: `the end and its size (4096 bytes then, 8192 now)`.
        what: String,
    },
    /// The same drive in an older state than its log has brought it to.
    Behind {
        /// How that shows, in words.
        what: String,
    },
    /// Another drive.
    Other {
        /// What is different, in words.
        what: String,
    },
}

impl Identity {
    /// Bytes of the stored form.
    pub const STORED: usize = 632;

    /// The identity of `drive` as it is now; `id` is the drive's own id.
    ///
    /// A sample that can't be read is not known.
    ///
    /// # Errors
    /// The drive's, if no sample can be read.
    pub fn of(drive: &dyn Drive, id: &StableId) -> Result<Self, DriveError> {
        let regions = contents::regions(drive, None).into_iter().map(|region| (region, None));
        let size = drive.size();
        let (kind, id, regions) = (id.kind(), id.number(), regions.collect());
        Self { kind, id, size, sums: [None; SAMPLES], regions }.measured(drive)
    }

    /// The identity of a drive with samples at the places of this one, to be compared with it.
    ///
    /// # Errors
    /// As [`Identity::of`].
    pub fn alike(&self, drive: &dyn Drive, id: &StableId) -> Result<Self, DriveError> {
        let regions = self.regions.iter().map(|(region, _)| (*region, None)).collect();
        let (kind, id, size) = (id.kind(), id.number(), drive.size());
        Self { kind, id, size, sums: [None; SAMPLES], regions }.measured(drive)
    }

    /// This identity, with forgotten samples and new superblocks read from the drive.
    ///
    /// # Errors
    /// As [`Identity::of`].
    pub fn renewed(&self, drive: &dyn Drive) -> Result<Self, DriveError> {
        let known: Vec<_> = self.regions.iter().map(|(region, _)| *region).collect();
        let sum_of = |region: &Region| self.regions.iter().find(|(r, _)| r == region)?.1;
        let regions = contents::regions(drive, Some(&known));
        let regions = regions.into_iter().map(|region| (region, sum_of(&region)));
        Self { regions: regions.collect(), ..self.clone() }.measured(drive)
    }

    /// Reads the samples that are not known.
    fn measured(mut self, drive: &dyn Drive) -> Result<Self, DriveError> {
        let (mut buffer, mut unread) = (Buffer::new(64 << 10), None);
        for (sum, range) in self.sums.iter_mut().zip(Self::samples(self.size)) {
            let Some(range) = range.filter(|_| sum.is_none()) else { continue };
            let bytes = &mut buffer[..(range.end - range.start) as usize];
            match drive.read(range.start, bytes) {
                Ok(()) => *sum = Some(crc_fast::crc32_iscsi(bytes)),
                Err(e) => unread = Some(e),
            }
        }
        for (region, sum) in self.regions.iter_mut().filter(|(_, sum)| sum.is_none()) {
            let pieces: Option<Vec<_>> =
                region.pieces(self.size).map(|piece| contents::bytes(drive, piece)).collect();
            *sum = pieces.map(|pieces| crc_fast::crc32_iscsi(&pieces.concat()));
        }
        match unread {
            Some(e) if self.sums.iter().all(Option::is_none) => Err(e),
            _ => Ok(self),
        }
    }

    /// The fixed ranges, in bytes, on a drive of `size` bytes; `None` where it is too small.
    fn samples(size: u64) -> [Option<Range<u64>>; SAMPLES] {
        let head = |from: u64, to: u64| (from < size).then(|| from..to.min(size));
        let inner = |quarters: u64| {
            let len = SAMPLE.min(size);
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
            (size > 0).then(|| size - END.min(size)..size),
        ]
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// Whether all of its samples are known.
    pub fn is_whole(&self) -> bool {
        let mut places = Self::samples(self.size).into_iter().zip(&self.sums);
        places.all(|(range, sum)| range.is_none() || sum.is_some())
            && self.regions.iter().all(|(_, sum)| sum.is_some())
    }

    /// The ranges, in bytes, of the samples that are known.
    pub fn ranges(&self) -> Vec<Range<u64>> {
        let known = Self::samples(self.size).into_iter().zip(&self.sums);
        let known = known.filter_map(|(range, sum)| sum.and(range));
        let others = self.regions.iter().filter(|(_, sum)| sum.is_some());
        known.chain(others.flat_map(|(region, _)| region.pieces(self.size))).collect()
    }

    /// Drops the samples that ztier itself may have written to, as `changed` says of their ranges.
    pub fn forget(&mut self, changed: impl Fn(Range<u64>) -> bool) {
        for (sum, range) in self.sums.iter_mut().zip(Self::samples(self.size)) {
            *sum = sum.filter(|_| !range.is_some_and(&changed));
        }
        for (region, sum) in &mut self.regions {
            *sum = sum.filter(|_| !region.pieces(self.size).any(&changed));
        }
    }

    /// How the drive with the identity `now` compares with this one, stored earlier. Places where
    /// `now` has no sample, because it was not made [`alike`](Self::alike), do not count.
    pub fn compare(&self, now: &Self) -> Match {
        let (mut different, mut compared) = (Vec::new(), 0);
        if self.size == now.size {
            let mut compare = |name: &dyn Fn() -> String, then: &Option<u32>, now: &Option<u32>| {
                if let (Some(then), Some(now)) = (then, now) {
                    compared += 1;
                    different.extend((then != now).then(name));
                }
            };
            for (n, (then, now)) in self.sums.iter().zip(&now.sums).enumerate() {
                compare(&|| NAMES[n].to_owned(), then, now);
            }
            for (region, then) in &self.regions {
                let name = || format!("{} at byte {}", region.kind.name(), region.sector * 512);
                let now = now.regions.iter().find(|(r, _)| r == region);
                compare(&name, then, &now.and_then(|(_, sum)| *sum));
            }
        } else {
            different.push(format!("its size ({} bytes then, {} now)", self.size, now.size));
        }
        let named = self.kind != IdKind::Unknown && now.kind != IdKind::Unknown;
        let same_name = (self.kind, self.id) == (now.kind, now.id);
        if different.is_empty() {
            return if same_name || !named { Match::Same } else { Match::Moved { compared } };
        }
        if named && !same_name {
            different.insert(0, "its id".into());
            return Match::Other { what: different.join(" and ") };
        }
        Match::Changed { what: different.join(" and ") }
    }

    /// The stored form, as `docs/format.md` draws it.
    pub fn encode(&self) -> [u8; Self::STORED] {
        let mut out = [0; Self::STORED];
        out[..3].copy_from_slice(&[VERSION, self.kind as u8, self.regions.len() as u8]);
        out[8..16].copy_from_slice(&self.size.to_le_bytes());
        out[16..24].copy_from_slice(&self.id.to_le_bytes());
        for (n, sum) in self.sums.iter().enumerate() {
            out[3] |= u8::from(sum.is_some()) << n;
            let at = SUMS_AT + 4 * n;
            out[at..at + 4].copy_from_slice(&sum.unwrap_or(0).to_le_bytes());
        }
        let places = out[REGIONS_AT..CRC_AT].chunks_exact_mut(REGION);
        for (place, (region, sum)) in places.zip(&self.regions) {
            place[..6].copy_from_slice(&region.sector.to_le_bytes()[..6]);
            place[6..8].copy_from_slice(&[region.kind as u8, u8::from(sum.is_some())]);
            place[8..].copy_from_slice(&sum.unwrap_or(0).to_le_bytes());
        }
        let crc = crc_fast::crc32_iscsi(&out[..CRC_AT]);
        out[CRC_AT..].copy_from_slice(&crc.to_le_bytes());
        out
    }

    /// Reads the stored form; `None` if it is damaged or of another version.
    pub fn decode(stored: &[u8; Self::STORED]) -> Option<Self> {
        let u32_at = |at: usize| stored[at..at + 4].try_into().ok().map(u32::from_le_bytes);
        let u64_at = |at: usize| stored[at..at + 8].try_into().ok().map(u64::from_le_bytes);
        let count = usize::from(stored[2]);
        let fits = stored[0] == VERSION && count <= REGIONS;
        if !fits || u32_at(CRC_AT)? != crc_fast::crc32_iscsi(&stored[..CRC_AT]) {
            return None;
        }
        let mut sums = [None; SAMPLES];
        for (n, sum) in sums.iter_mut().enumerate() {
            *sum = u32_at(SUMS_AT + 4 * n).filter(|_| stored[3] >> n & 1 == 1);
        }
        let places = stored[REGIONS_AT..].chunks_exact(REGION).take(count);
        let regions = places.enumerate().map(|(n, place)| {
            let at = REGIONS_AT + REGION * n;
            let sector = u64_at(at)? & 0xffff_ffff_ffff;
            let region = Region { sector, kind: Kind::from_number(place[6])? };
            Some((region, u32_at(at + 8).filter(|_| place[7] == 1)))
        });
        let regions = regions.collect::<Option<_>>()?;
        let kind = IdKind::from_number(stored[1])?;
        Some(Self { kind, id: u64_at(16)?, size: u64_at(8)?, sums, regions })
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
        assert_eq!(before.compare(&one.identity("two")), Match::Moved { compared: 8 });
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
        // Only the size was compared.
        assert_eq!(before.compare(&drive.identity("b")), Match::Moved { compared: 0 });
        assert!(before.ranges().is_empty() && !before.is_whole());
    }

    /// A drive with a file system at each of these bytes, and a partition table that names those
    /// that are not at a round place.
    fn with_file_systems(at: &[usize]) -> Memory {
        let drive = Memory(Mutex::new(vec![0; 16 << 20]));
        for (n, &at) in at.iter().enumerate() {
            let mut bytes = drive.0.lock();
            bytes[at + 1080..at + 1082].copy_from_slice(&[0x53, 0xef]);
            bytes[at + 1048] = 1;
            if !at.is_power_of_two() {
                let entry = 446 + 16 * n;
                bytes[entry + 4] = 0x83;
                bytes[entry + 8..entry + 12].copy_from_slice(&(at as u32 / 512).to_le_bytes());
                bytes[entry + 12..entry + 16].copy_from_slice(&2048u32.to_le_bytes());
                bytes[510..512].copy_from_slice(&[0x55, 0xaa]);
            }
        }
        drive
    }

    #[test]
    fn a_mount_of_a_part_of_the_drive_is_a_change() {
        let starts = [3 << 20, (5 << 20) + 512, 2 << 20];
        let drive = with_file_systems(&starts);
        let before = drive.identity("a");
        for at in starts {
            // Its mount count, and a byte far from any superblock.
            for (byte, changes) in [(at + 1076, true), (at + 20_000, false)] {
                drive.0.lock()[byte] ^= 1;
                let now = before.alike(&drive, &StableId::given("a")).unwrap();
                let found = before.compare(&now);
                let said = what(&found).contains("superblock of the");
                assert_eq!(said, changes, "{byte}: {found:?}");
                drive.0.lock()[byte] ^= 1;
            }
        }
        assert_eq!(Identity::decode(&before.encode()), Some(before));
    }

    #[test]
    fn what_was_forgotten_is_renewed_with_what_is_new() {
        let drive = with_file_systems(&[3 << 20, 2 << 20]);
        let mut identity = drive.identity("a");
        assert!(identity.is_whole());
        let touched = |range: Range<u64>| range.contains(&((3 << 20) + 1024));
        identity.forget(touched);
        assert!(!identity.is_whole() && !identity.ranges().into_iter().any(touched));
        assert!(identity.ranges().iter().any(|range| range.start == 2 << 20));
        // Another partition was made meanwhile, and one of them was mounted.
        {
            let other = with_file_systems(&[3 << 20, 7 << 20]);
            let mut bytes = drive.0.lock();
            bytes[..512].copy_from_slice(&other.0.lock()[..512]);
            bytes[(7 << 20) + 1080..(7 << 20) + 1082].copy_from_slice(&[0x53, 0xef]);
            bytes[(3 << 20) + 1076] = 5;
        }
        identity.forget(|range| range.start == 0);
        let renewed = identity.renewed(&drive).unwrap();
        assert_eq!(renewed, drive.identity("a"));
        assert!(renewed.ranges().iter().any(|range| range.start == 7 << 20));
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
        for bit in (0..REGIONS_AT * 8).chain(CRC_AT * 8..stored.len() * 8) {
            let mut damaged = stored;
            damaged[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Identity::decode(&damaged), None, "bit {bit}");
        }
        assert_eq!(Identity::decode(&[0; Identity::STORED]), None);
    }
}

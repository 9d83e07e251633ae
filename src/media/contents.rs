//! Finds the superblocks on a drive: of partitions, logical volumes, encrypted and mirrored data,
//! and file systems at round offsets. A mount for writing changes them: mount counts and times,
//! generations, sequence numbers.
//!
//! Invariants: the drive is only read; at most [`REGIONS`] places are found, with a few blocks read
//! for each; unreadable or senseless bytes yield no place; offsets and lengths from the drive's
//! content are clipped to the drive's size.
//!
//! Our own parser: only offsets are needed, from tables that `gpt`, `mbrman` and bindings to LVM
//! cover in part each, on a drive that may hold any bytes. `blkid` knows no logical volumes, and
//! this runs after every window of writeback.

use super::drive::{ALIGN, Drive};
use std::collections::VecDeque;
use std::ops::Range;

/// Most places in an identity.
pub(super) const REGIONS: usize = 47;
/// Levels of nested tables.
const DEEP: u32 = 4;
/// The two pieces of a place, in bytes from its start: known superblocks are in the first two
/// blocks, that of btrfs is at 64 KiB.
const PIECES: [Range<u64>; 2] = [0..8192, 65_536..69_632];
/// Bytes of a backup GPT: entries and header.
const TABLE: u64 = 20 << 10;
/// Most partitions of one table.
const ENTRIES: u64 = 256;
/// Offsets at which a file system may begin without a table: 63 sectors, and powers of two.
const ODD_START: u64 = 63 * 512;
const ROUND_STARTS: Range<u32> = 15..42;
/// The longest metadata of LVM that is read, in bytes.
const TEXT_MAX: u64 = 1 << 20;

/// The content that begins at a place. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum Kind {
    /// A partition.
    Partition = 1,
    /// A logical volume of LVM.
    Logical = 2,
    /// The data area of LUKS.
    Encrypted = 3,
    /// The data of a RAID 1.
    Mirrored = 4,
    /// A file system outside of any table.
    Lone = 5,
    /// The second copy of a GPT.
    Table = 6,
}

impl Kind {
    /// The kind with this stored number.
    pub fn from_number(number: u8) -> Option<Self> {
        use Kind::{Encrypted, Logical, Lone, Mirrored, Partition, Table};
        let all = [Partition, Logical, Encrypted, Mirrored, Lone, Table];
        all.into_iter().find(|kind| *kind as u8 == number)
    }

    /// The name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Self::Partition => "the superblock of the partition",
            Self::Logical => "the superblock of the logical volume",
            Self::Encrypted => "the encrypted data",
            Self::Mirrored => "the superblock on the RAID 1",
            Self::Lone => "the superblock of the file system",
            Self::Table => "the second copy of the partition table",
        }
    }
}

/// A place where a superblock is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Region {
    /// Where it begins, in sectors of 512 bytes.
    pub sector: u64,
    pub kind: Kind,
}

impl Region {
    /// The ranges, in bytes, that are compared on a drive of `size` bytes.
    pub fn pieces(&self, size: u64) -> impl Iterator<Item = Range<u64>> + use<> {
        let pieces = if self.kind == Kind::Table { [0..TABLE, 0..0] } else { PIECES };
        let start = self.sector.saturating_mul(512);
        let within = move |piece: Range<u64>| {
            start.saturating_add(piece.start).min(size)..start.saturating_add(piece.end).min(size)
        };
        pieces.into_iter().map(within).filter(|piece| !piece.is_empty())
    }
}

/// Reads any bytes of a drive; `None` if it fails.
pub(super) fn bytes(drive: &dyn Drive, range: Range<u64>) -> Option<Vec<u8>> {
    if range.start > range.end || range.end > drive.size() {
        return None;
    }
    let align = ALIGN as u64;
    let from = range.start / align * align;
    let mut whole = super::Buffer::new((range.end.next_multiple_of(align) - from) as usize);
    drive.read(from, &mut whole).ok()?;
    Some(whole[(range.start - from) as usize..(range.end - from) as usize].to_vec())
}

/// The places on a drive, outer ones first. File systems outside of tables are searched for, or
/// taken from `known`.
pub(super) fn regions(drive: &dyn Drive, known: Option<&[Region]>) -> Vec<Region> {
    let mut search = Search { drive, found: Vec::new(), next: VecDeque::new() };
    let size = drive.size();
    search.look(0, size, 0);
    match known {
        None => search.look_at_round_places(),
        Some(known) => {
            for region in known.iter().filter(|region| region.kind == Kind::Lone) {
                search.add(Kind::Lone, region.sector * 512, size, (&(0..size), 0));
            }
        }
    }
    while let Some((at, len, depth)) = search.next.pop_front() {
        search.look(at, len, depth);
    }
    search.found
}

struct Search<'a> {
    drive: &'a dyn Drive,
    found: Vec<Region>,
    /// Ranges to search: first byte, length, depth.
    next: VecDeque<(u64, u64, u32)>,
}

impl Search<'_> {
    /// Adds the place at byte `at`, with `len` bytes, if it is inside of `within`.
    fn add(&mut self, kind: Kind, at: u64, len: u64, (within, depth): (&Range<u64>, u32)) {
        let region = Region { sector: at / 512, kind };
        let fits = at > within.start && at < within.end && at.is_multiple_of(512);
        let known = self.found.iter().any(|r| r.sector == region.sector);
        if !fits || known || self.found.len() >= REGIONS {
            return;
        }
        self.found.push(region);
        if depth < DEEP && !matches!(kind, Kind::Encrypted | Kind::Table) {
            self.next.push_back((at, len.min(within.end - at), depth + 1));
        }
    }

    /// Searches `len` bytes from `at` on for tables and headers.
    fn look(&mut self, at: u64, len: u64, depth: u32) {
        let within = at..at.saturating_add(len).min(self.drive.size());
        let Some(head) = bytes(self.drive, at..within.end.min(at + 8192)) else { return };
        let place = (&within, depth);
        if !self.gpt(&head, place) {
            self.mbr(&head, place);
        }
        self.luks(&head, place);
        self.raid(&head, place);
        self.lvm(&head, place);
    }

    fn look_at_round_places(&mut self) {
        let size = self.drive.size();
        let all = std::iter::once(ODD_START).chain(ROUND_STARTS.map(|n| 1 << n));
        for at in all.filter(|at| *at < size) {
            let head = bytes(self.drive, at..size.min(at + 8192)).unwrap_or_default();
            let far = at + PIECES[1].start;
            let far = bytes(self.drive, far.min(size)..(far + 4096).min(size)).unwrap_or_default();
            if is_known(&head, &far) {
                self.add(Kind::Lone, at, size - at, (&(0..size), 0));
            }
        }
    }

    /// Partitions of a GPT, in sectors of 512 or 4096 bytes.
    fn gpt(&mut self, head: &[u8], place: (&Range<u64>, u32)) -> bool {
        let within = place.0.clone();
        let first = [512, 4096].into_iter().find(|&sector| is_gpt(head.get(sector..)));
        let header = first.map(|sector| (sector as u64, head[sector..].to_vec()));
        // The second copy is in the last sector.
        let last = |sector: u64| {
            let found = bytes(self.drive, within.end.checked_sub(sector)?..within.end)?;
            is_gpt(Some(&found)).then_some((sector, found))
        };
        let Some((sector, header)) = header.or_else(|| last(512).or_else(|| last(4096))) else {
            return false;
        };
        self.gpt_entries(&header, sector, place);
        let other = within.start.saturating_add(le8(&header, 32).saturating_mul(sector));
        let other = bytes(self.drive, other..other.saturating_add(sector));
        if let Some(other) = other.filter(|other| is_gpt(Some(other))) {
            let entries = within.start.saturating_add(le8(&other, 72).saturating_mul(sector));
            self.add(Kind::Table, entries, TABLE, place);
        }
        true
    }

    fn gpt_entries(&mut self, header: &[u8], sector: u64, place: (&Range<u64>, u32)) {
        let start = place.0.start;
        let (count, size) = (u64::from(le4(header, 80)), u64::from(le4(header, 84)));
        if !(128..=4096).contains(&size) {
            return;
        }
        let at = start.saturating_add(le8(header, 72).saturating_mul(sector));
        let end = at.saturating_add(size * count.min(ENTRIES));
        let Some(table) = bytes(self.drive, at..end) else { return };
        for entry in table.chunks_exact(size as usize).filter(|e| e[..16] != [0; 16]) {
            let (first, last) = (le8(entry, 32), le8(entry, 40));
            let len = last.saturating_sub(first).saturating_add(1).saturating_mul(sector);
            let at = start.saturating_add(first.saturating_mul(sector));
            self.add(Kind::Partition, at, len, place);
        }
    }

    /// Partitions of an MBR, with sectors of 512 and of 4096 bytes.
    fn mbr(&mut self, head: &[u8], place: (&Range<u64>, u32)) {
        let start = place.0.start;
        for (kind, first, count) in mbr_entries(head) {
            for sector in [512, 4096] {
                let at = start.saturating_add(first.saturating_mul(sector));
                if [0x05, 0x0f, 0x85].contains(&kind) {
                    self.extended(at, sector, place);
                } else {
                    self.add(Kind::Partition, at, count.saturating_mul(sector), place);
                }
            }
        }
    }

    /// The chain of logical partitions in an extended one.
    fn extended(&mut self, base: u64, sector: u64, place: (&Range<u64>, u32)) {
        let mut at = base;
        for _ in 0..ENTRIES {
            let Some(head) = bytes(self.drive, at..at.saturating_add(512)) else { return };
            let mut entries = mbr_entries(&head);
            if let Some((_, first, count)) = entries.next() {
                let from = at.saturating_add(first.saturating_mul(sector));
                self.add(Kind::Partition, from, count.saturating_mul(sector), place);
            }
            match entries.next() {
                Some((_, first, _)) => at = base.saturating_add(first.saturating_mul(sector)),
                None => return,
            }
        }
    }

    fn luks(&mut self, head: &[u8], place: (&Range<u64>, u32)) {
        if !head.starts_with(b"LUKS\xba\xbe") {
            return;
        }
        let start = place.0.start;
        let offset = match head.get(6..8) {
            Some([0, 1]) => be4(head, 104).checked_mul(512),
            Some([0, 2]) => self.luks2_offset(start, be8(head, 8)),
            _ => None,
        };
        if let Some(offset) = offset {
            self.add(Kind::Encrypted, start.saturating_add(offset), u64::MAX, place);
        }
    }

    /// The offset of the first segment in the JSON of LUKS 2.
    fn luks2_offset(&self, start: u64, header: u64) -> Option<u64> {
        let end = start.checked_add(header.min(4 << 20))?;
        let text = bytes(self.drive, start.checked_add(4096)?..end)?;
        let text = text.split(|byte| *byte == 0).next()?;
        let json: serde_json::Value = serde_json::from_slice(text).ok()?;
        let segments = json.get("segments")?.as_object()?.values();
        segments.filter_map(|segment| segment.get("offset")?.as_str()?.parse().ok()).min()
    }

    /// The data of a RAID 1, which begins behind its superblock.
    fn raid(&mut self, head: &[u8], place: (&Range<u64>, u32)) {
        for at in [0, 4096] {
            let Some(sb) = head.get(at..at + 256) else { continue };
            if le4(sb, 0) == 0xa92b_4efc && le4(sb, 72) == 1 {
                let offset = le8(sb, 128).saturating_mul(512);
                self.add(Kind::Mirrored, place.0.start.saturating_add(offset), u64::MAX, place);
            }
        }
    }

    /// The logical volumes of a physical one.
    fn lvm(&mut self, head: &[u8], place: (&Range<u64>, u32)) {
        let labels = head.chunks_exact(512).take(4);
        let Some(label) = labels.clone().find(|l| l.starts_with(b"LABELONE")) else { return };
        let Some(pv) = label.get(le4(label, 20) as usize..) else { return };
        let uuid = String::from_utf8_lossy(&pv[..pv.len().min(32)]).into_owned();
        let start = place.0.start;
        let areas = pv.get(40..).unwrap_or_default().chunks_exact(16);
        // The data areas end with an area of zeros; the metadata areas follow.
        let area = areas.skip_while(|area| le8(area, 0) != 0).nth(1);
        let Some(area) = area.map(|area| start.saturating_add(le8(area, 0))) else { return };
        let Some(text) = self.lvm_text(area) else { return };
        for sector in logical_volumes(&text, &uuid) {
            let at = start.saturating_add(sector.saturating_mul(512));
            self.add(Kind::Logical, at, u64::MAX, place);
        }
    }

    /// The newest text in an area of metadata, which is a ring behind a header of 512 bytes.
    fn lvm_text(&self, area: u64) -> Option<String> {
        let header = bytes(self.drive, area..area.checked_add(512)?)?;
        if header.get(4..20) != Some(b" LVM2 x[5A%r0N*>") {
            return None;
        }
        let (ring, at, len) = (le8(&header, 32), le8(&header, 40), le8(&header, 48));
        let inside = at >= 512 && at < ring && len <= TEXT_MAX.min(ring);
        let first = len.min(ring.checked_sub(at).filter(|_| inside)?);
        let from = area.checked_add(at)?;
        let mut text = bytes(self.drive, from..from.checked_add(first)?)?;
        text.extend(bytes(self.drive, area + 512..area + 512 + (len - first))?);
        Some(String::from_utf8_lossy(&text).into_owned())
    }
}

/// The first sectors of the logical volumes in a text of LVM, on the physical volume with this id.
fn logical_volumes(text: &str, uuid: &str) -> Vec<u64> {
    let (mut names, mut own, mut found) = (Vec::new(), None, Vec::new());
    let (mut extent, mut base, mut is_first) = (0u64, 0u64, false);
    for line in text.lines().map(|line| line.split('#').next().unwrap_or_default().trim()) {
        if let Some(name) = line.strip_suffix('{') {
            names.push(name.trim().to_owned());
        } else if line == "}" {
            names.pop();
        } else if let Some((key, value)) = line.split_once(" = ") {
            let number = value.parse::<u64>().unwrap_or(0);
            match key {
                "extent_size" => extent = number,
                "id" if value.replace(['-', '"'], "") == uuid => own = names.last().cloned(),
                "pe_start" if own.is_some() && own.as_ref() == names.last() => base = number,
                "start_extent" => is_first = number == 0,
                _ => {}
            }
        } else if let Some((volume, at)) = line.split_once(',').filter(|_| is_first) {
            // The first of the stripes of a volume's first segment: `"pv0", 7`.
            let on_own = own.as_ref().is_some_and(|own| volume.trim_matches('"') == own);
            let at = at.trim().trim_end_matches(',').parse::<u64>();
            if let Some(at) = at.ok().filter(|_| on_own) {
                found.push(base.saturating_add(at.saturating_mul(extent)));
            }
            is_first = false;
        }
    }
    found
}

/// Whether `head` is the start of known content; `far` is 64 KiB behind it.
pub(super) fn is_known(head: &[u8], far: &[u8]) -> bool {
    let at = |at: usize, magic: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(magic));
    let ext = at(1080, &[0x53, 0xef]) && le4(head, 1024 + 24) <= 6;
    let swap = at(4086, b"SWAPSPACE2") || at(4086, b"SWAP-SPACE");
    let lvm = head.chunks_exact(512).take(4).any(|sector| sector.starts_with(b"LABELONE"));
    let table = is_gpt(head.get(512..)) || is_gpt(head.get(4096..));
    let others =
        at(0, b"XFSB") || at(0, b"LUKS\xba\xbe") || at(1024, &0xf2f5_2010u32.to_le_bytes());
    let btrfs = far.get(64..).is_some_and(|rest| rest.starts_with(b"_BHRfS_M"));
    ext || swap || lvm || table || others || btrfs
}

pub(super) fn is_gpt(sector: Option<&[u8]>) -> bool {
    sector.is_some_and(|sector| sector.starts_with(b"EFI PART"))
}

/// Kind, first sector and sectors of the partitions in an MBR, if it is one.
pub(super) fn mbr_entries(sector: &[u8]) -> impl Iterator<Item = (u8, u64, u64)> + use<'_> {
    let is_mbr = sector.get(510..512) == Some(&[0x55, 0xaa]);
    let table = sector.get(446..510).filter(|_| is_mbr).unwrap_or_default();
    // A boot sector of a file system has other things there.
    let sane = table.chunks_exact(16).all(|entry| entry[0] & 0x7f == 0);
    let entries = table.chunks_exact(16).filter(move |_| sane);
    let entries = entries.map(|e| (e[4], u64::from(le4(e, 8)), u64::from(le4(e, 12))));
    entries.filter(|&(kind, first, count)| kind != 0 && kind != 0xee && first > 0 && count > 0)
}

pub(super) fn le4(bytes: &[u8], at: usize) -> u32 {
    let found = bytes.get(at..).and_then(|rest| rest.first_chunk());
    found.map_or(0, |found| u32::from_le_bytes(*found))
}

pub(super) fn le8(bytes: &[u8], at: usize) -> u64 {
    u64::from(le4(bytes, at)) | u64::from(le4(bytes, at + 4)) << 32
}

pub(super) fn be4(bytes: &[u8], at: usize) -> u64 {
    u64::from(le4(bytes, at).swap_bytes())
}

fn be8(bytes: &[u8], at: usize) -> u64 {
    be4(bytes, at) << 32 | be4(bytes, at + 4)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::media::DriveError;

    const MIB: usize = 1 << 20;

    /// A drive with this content.
    struct Image(Vec<u8>);

    impl Image {
        fn new(mib: usize) -> Self {
            Self(vec![0; mib * MIB])
        }

        fn put(&mut self, at: usize, bytes: &[u8]) {
            self.0[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn put4(&mut self, at: usize, value: u32) {
            self.put(at, &value.to_le_bytes());
        }

        fn put8(&mut self, at: usize, value: u64) {
            self.put(at, &value.to_le_bytes());
        }

        /// An entry of an MBR at `at`.
        fn entry(&mut self, (at, n): (usize, usize), kind: u8, first: u32, count: u32) {
            self.put(at + 510, &[0x55, 0xaa]);
            self.put(at + 446 + 16 * n + 4, &[kind]);
            self.put4(at + 446 + 16 * n + 8, first);
            self.put4(at + 446 + 16 * n + 12, count);
        }

        /// A GPT with partitions from these sectors on, each of 100, in the bytes of a region.
        fn gpt(&mut self, region: Range<usize>, sector: usize, firsts: &[u64]) {
            let (last, table) = ((region.len() / sector - 1) as u64, 32 * 512 / sector as u64);
            for (own, other, entries) in [(1, last, 2), (last, 1, last - table)] {
                let at = region.start + own as usize * sector;
                self.put(at, b"EFI PART");
                self.put8(at + 32, other);
                self.put8(at + 72, entries);
                self.put4(at + 80, 128);
                self.put4(at + 84, 128);
                for (n, first) in firsts.iter().enumerate() {
                    let at = region.start + entries as usize * sector + 128 * n;
                    self.put(at, &[7; 16]);
                    self.put8(at + 32, *first);
                    self.put8(at + 40, first + 99);
                }
            }
        }

        fn found(&self) -> Vec<(Kind, u64)> {
            regions(self, None).into_iter().map(|r| (r.kind, r.sector * 512)).collect()
        }

        fn all(&self, kind: Kind) -> Vec<u64> {
            self.found().into_iter().filter(|(k, _)| *k == kind).map(|(_, at)| at).collect()
        }
    }

    impl Drive for Image {
        fn size(&self) -> u64 {
            self.0.len() as u64
        }

        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
            assert!(at.is_multiple_of(4096) && buf.len().is_multiple_of(4096));
            buf.copy_from_slice(&self.0[at as usize..][..buf.len()]);
            Ok(())
        }

        fn write(&self, _: u64, _: &[u8]) -> Result<(), DriveError> {
            panic!("a drive is only read");
        }

        fn zero(&self, at: u64, _: u64) -> Result<(), DriveError> {
            self.write(at, &[])
        }

        fn flush(&self) -> Result<(), DriveError> {
            self.write(0, &[])
        }
    }

    #[test]
    fn an_empty_drive_has_none() {
        assert_eq!(Image::new(64).found(), []);
        assert_eq!(Image(vec![0; 4096]).found(), []);
        assert_eq!(Image(Vec::new()).found(), []);
    }

    #[test]
    fn partitions_of_a_gpt_and_its_second_copy() {
        for sector in [512, 4096] {
            let mut drive = Image::new(64);
            drive.entry((0, 0), 0xee, 1, u32::MAX);
            drive.gpt(0..64 * MIB, sector, &[300, 400, 5001]);
            let at = |n: usize| (n * sector) as u64;
            assert_eq!(drive.all(Kind::Partition), [at(300), at(400), at(5001)]);
            let table = 64 * MIB as u64 - at(1) - 16384;
            assert_eq!(drive.all(Kind::Table), [table], "{sector}");
            // The first copy is damaged.
            drive.put(sector, &[0]);
            assert_eq!(drive.all(Kind::Partition), [at(300), at(400), at(5001)]);
        }
        // A larger drive that the table was copied to.
        let mut drive = Image::new(64);
        drive.gpt(0..32 * MIB, 512, &[300]);
        assert_eq!(drive.all(Kind::Table), [32 * MIB as u64 - 512 - 16384]);
    }

    #[test]
    fn partitions_of_an_mbr_and_logical_ones() {
        let mut drive = Image::new(64);
        drive.entry((0, 0), 0x83, 63, 2000);
        drive.entry((0, 1), 0x05, 4096, 90_000);
        // Each place in the chain has a partition, relative to itself, and the next place.
        let chain = 4096 * 512;
        drive.entry((chain, 0), 0x83, 100, 1000);
        drive.entry((chain, 1), 0x05, 20_000, 1000);
        drive.entry((chain + 20_000 * 512, 0), 0x82, 200, 1000);
        let sectors: Vec<_> = drive.all(Kind::Partition).iter().map(|at| at / 512).collect();
        for sector in [63, 4196, 24_296] {
            assert!(sectors.contains(&sector), "{sector} of {sectors:?}");
        }
        // In sectors of 4096 bytes, too, if they are inside.
        assert!(sectors.contains(&(63 * 8)), "{sectors:?}");
        // A chain that leads to itself ends.
        drive.entry((chain + 20_000 * 512, 1), 0x05, 20_000, 1000);
        assert!(drive.found().len() < 10);
        // A boot sector of a file system is no table.
        drive.put(446, &[0x31]);
        assert!(drive.all(Kind::Partition).is_empty());
    }

    #[test]
    fn what_is_encrypted_or_mirrored_begins_behind_its_header() {
        let mut drive = Image::new(64);
        drive.put(0, b"LUKS\xba\xbe\0\x01");
        drive.put(104, &5000u32.to_be_bytes());
        assert_eq!(drive.found(), [(Kind::Encrypted, 5000 * 512)]);
        let mut drive = Image::new(64);
        drive.put(0, b"LUKS\xba\xbe\0\x02");
        drive.put(8, &16384u64.to_be_bytes());
        let json = r#"{"keyslots":{},"segments":{"0":{"type":"crypt","offset":"17301504"}}}"#;
        drive.put(4096, json.as_bytes());
        assert_eq!(drive.found(), [(Kind::Encrypted, 17_301_504)]);
        drive.put(4096, b"{\"segments\":7}\0");
        assert_eq!(drive.found(), []);
        for at in [0, 4096] {
            let mut drive = Image::new(64);
            drive.put4(at, 0xa92b_4efc);
            drive.put4(at + 72, 1);
            drive.put8(at + 128, 3000);
            assert_eq!(drive.found(), [(Kind::Mirrored, 3000 * 512)]);
            // Stripes begin elsewhere.
            drive.put4(at + 72, 5);
            assert_eq!(drive.found(), []);
        }
    }

    /// As LVM 2.03 writes it.
    const VOLUMES: &str = r#"vg0 {
id = "Vp5bch-gswe-RtZ0-ufg1-Yzue-nk3y-Fml3LF"
seqno = 4
status = ["RESIZEABLE", "READ", "WRITE"]
extent_size = 8192
physical_volumes {
pv0 {
id = "000000-0000-0000-0000-0000-0000-000000"
device = "/dev/sda"
pe_start = 9999
}
pv1 {
id = "KczP1z-Mmdh-f2Lx-rZP6-AqFc-afde-Sx6SDb"
device = "/dev/sdb"	# Hint only

status = ["ALLOCATABLE"]
pe_start = 2048
pe_count = 15
}
}

logical_volumes {
one {
id = "JePl0r-IdQd-LooF-cQmm-YZd3-i5QW-wG5Utn"
segment1 {
start_extent = 0
type = "striped"
stripe_count = 1
stripes = [
"pv1", 3
]
}
segment2 {
start_extent = 2
stripes = [
"pv1", 7
]
}
}
elsewhere {
segment1 {
start_extent = 0
stripes = [
"pv0", 2
]
}
}
striped {
segment1 {
start_extent = 0
stripes = [
"pv1", 5,
"pv0", 5
]
}
}
}
}
"#;

    fn physical_volume(drive: &mut Image, start: usize, ring: u64, at: u64) {
        let label = start + 512;
        drive.put(label, b"LABELONE");
        drive.put4(label + 20, 32);
        drive.put(label + 24, b"LVM2 001");
        drive.put(label + 32, b"KczP1zMmdhf2LxrZP6AqFcafdeSx6SDb");
        for (n, word) in [64 << 20, 1 << 20, 0, 0, 0, 4096, ring, 0, 0].into_iter().enumerate() {
            drive.put8(label + 64 + 8 * n, word);
        }
        let area = start + 4096;
        drive.put(area + 4, b" LVM2 x[5A%r0N*>");
        drive.put8(area + 32, ring);
        drive.put8(area + 40, at);
        drive.put8(area + 48, VOLUMES.len() as u64);
        let first = VOLUMES.len().min(ring.saturating_sub(at) as usize);
        drive.put(area + at as usize, &VOLUMES.as_bytes()[..first]);
        drive.put(area + 512, &VOLUMES.as_bytes()[first..]);
    }

    #[test]
    fn logical_volumes_are_found_on_the_physical_one() {
        // Also where the text goes on at the ring's start.
        for at in [512, 1 << 19, (1 << 20) - 600] {
            let mut drive = Image::new(64);
            physical_volume(&mut drive, 0, 1 << 20, at);
            let extent = |n: u64| (2048 + n * 8192) * 512;
            assert_eq!(drive.all(Kind::Logical), [extent(3), extent(5)], "{at}");
        }
        let mut drive = Image::new(64);
        physical_volume(&mut drive, 0, 1 << 20, 2 << 20);
        assert!(drive.all(Kind::Logical).is_empty(), "outside of the ring");
    }

    #[test]
    fn tables_are_followed_into_each_other() {
        let mut drive = Image::new(64);
        // A partition that is a physical volume, and a volume that has partitions itself.
        drive.gpt(0..64 * MIB, 512, &[4096]);
        drive.put8(1024 + 40, 100_000);
        physical_volume(&mut drive, 2 * MIB, 1 << 20, 512);
        let volume = 2 * MIB + (2048 + 3 * 8192) * 512;
        drive.entry((volume, 0), 0x83, 2048, 2048);
        let found = drive.found();
        for place in [
            (Kind::Partition, 2 * MIB as u64),
            (Kind::Logical, volume as u64),
            (Kind::Partition, (volume + 2048 * 512) as u64),
        ] {
            assert!(found.contains(&place), "{place:?} of {found:?}");
        }
    }

    #[test]
    fn file_systems_without_a_table_are_found_at_round_places() {
        for at in [63 * 512, 32 << 10, MIB, 16 * MIB] {
            let mut drive = Image::new(64);
            drive.put(at + 1080, &[0x53, 0xef]);
            assert_eq!(drive.found(), [(Kind::Lone, at as u64)]);
            let mut drive = Image::new(64);
            drive.put(at + 65_536 + 64, b"_BHRfS_M");
            assert!(drive.all(Kind::Lone).contains(&(at as u64)), "btrfs at {at}");
        }
        // A later search keeps the known file systems, and looks for no others.
        let mut drive = Image::new(64);
        drive.put(MIB, b"XFSB");
        let known = regions(&drive, None);
        drive.put(2 * MIB, b"XFSB");
        assert_eq!(regions(&drive, Some(&known)), known);
        assert_eq!(regions(&drive, Some(&[])), []);
        // A file system at the start of a partition belongs to the partition.
        drive.gpt(0..64 * MIB, 512, &[2048]);
        assert_eq!(drive.all(Kind::Lone), [2 * MIB as u64]);
    }

    #[test]
    fn any_bytes_are_read_and_named_within_bounds() {
        let mut state = 1u64;
        let mut next = || {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state
        };
        for _ in 0..300 {
            let mut drive = Image::new(2);
            drive.gpt(0..2 * MIB, 512, &[34, 40, 3000]);
            physical_volume(&mut drive, 34 * 512, 1 << 18, 512);
            drive.entry((0, 0), 0x05, 50, 60);
            drive.put(40 * 512, b"LUKS\xba\xbe\0\x02");
            for _ in 0..40 {
                let at = (next() % (64 << 10)) as usize;
                drive.put(at, &next().to_le_bytes()[..(next() % 8) as usize]);
            }
            let found = regions(&drive, None);
            assert!(found.len() <= REGIONS);
            for region in found {
                assert!(region.pieces(drive.size()).all(|piece| piece.end <= drive.size()));
            }
        }
        // A table that is full.
        let mut drive = Image::new(64);
        drive.gpt(0..64 * MIB, 512, &(0..128).map(|n| 100 + 8 * n).collect::<Vec<_>>());
        assert_eq!(drive.found().len(), REGIONS);
    }
}

//! The logical sector of a block device: the unit of its partition tables, and the least that a
//! user of it can read or write.
//!
//! Content made for one sector is often unusable with the other: a partition table is expected in
//! the second sector and counts in sectors; a file system refuses blocks that are smaller than a
//! sector. A device with sectors of 512 bytes takes all other content, but its users write parts of
//! blocks.

use super::contents::{be4, is_gpt, is_known, le4, le8, mbr_entries};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::ops::Range;

/// Bytes from the start of a drive that tell its sector.
const HEAD: u64 = 8192;
/// Where ISO 9660 has its descriptor.
const ISO: u64 = 32 << 10;

/// A logical sector; a number of bytes where it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "u32", into = "u32")]
pub enum Sector {
    /// 512 bytes, that of most disks.
    Small,
    /// 4096 bytes, a block of ztier.
    Block,
}

impl Sector {
    /// The number of bytes.
    pub fn bytes(self) -> u32 {
        match self {
            Self::Small => 512,
            Self::Block => 4096,
        }
    }

    /// The sector for a drive whose smallest request has `bytes` bytes.
    pub(super) fn of_requests(bytes: u32) -> Self {
        if bytes < Self::Block.bytes() { Self::Small } else { Self::Block }
    }
}

impl fmt::Display for Sector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.bytes())
    }
}

impl TryFrom<u32> for Sector {
    type Error = String;

    fn try_from(bytes: u32) -> Result<Self, String> {
        match bytes {
            512 => Ok(Self::Small),
            4096 => Ok(Self::Block),
            _ => Err(format!("a sector of {bytes} bytes; sectors have 512 or 4096")),
        }
    }
}

impl From<Sector> for u32 {
    fn from(sector: Sector) -> Self {
        sector.bytes()
    }
}

/// Content that tells the sector of a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Made {
    /// The sector that the content was made for.
    pub sector: Sector,
    /// `GPT`, `XFS`, …
    pub content: &'static str,
}

impl Made {
    fn new(content: &'static str, sector: Sector) -> Self {
        Self { sector, content }
    }

    /// The sector for which the content of a drive of `size` bytes was made; `read` returns bytes
    /// of the drive. `None` without known content, and for content that does not depend on the
    /// sector.
    pub fn of(size: u64, read: &mut dyn FnMut(Range<u64>) -> Option<Vec<u8>>) -> Option<Self> {
        let head = read(0..size.min(HEAD))?;
        let iso = |read: &mut dyn FnMut(Range<u64>) -> Option<Vec<u8>>| {
            let found = read(ISO..ISO + 8).filter(|_| size >= ISO + 8)?;
            found[1..].starts_with(b"CD001").then(|| Self::new("ISO 9660", Sector::Small))
        };
        gpt(&head)
            .or_else(|| file_system(&head))
            .or_else(|| container(&head))
            .or_else(|| mbr(&head, size, read))
            .or_else(|| iso(read))
    }
}

/// A GPT, whose header is in the second sector and says so.
fn gpt(head: &[u8]) -> Option<Made> {
    let has = |sector: Sector| {
        let header = head.get(sector.bytes() as usize..);
        is_gpt(header) && header.is_some_and(|header| le8(header, 24) == 1)
    };
    let sector = [Sector::Small, Sector::Block].into_iter().find(|sector| has(*sector))?;
    Some(Made::new("GPT", sector))
}

/// A file system that states its sector, or whose blocks are smaller than a block of ztier.
fn file_system(head: &[u8]) -> Option<Made> {
    let at = |at: usize, magic: &[u8]| head.get(at..).is_some_and(|rest| rest.starts_with(magic));
    let log = |shift: u32| Sector::of_requests(1_u32.checked_shl(shift).unwrap_or(u32::MAX));
    let two = |at: usize| le4(head, at) & 0xffff;
    let boots = at(510, &[0x55, 0xaa]) && (at(0, &[0xeb]) || at(0, &[0xe9]));
    if at(0, b"XFSB") {
        return Some(Made::new("XFS", Sector::of_requests(be4(head, 102) as u32 >> 16)));
    }
    if boots && at(3, b"EXFAT   ") {
        return Some(Made::new("exFAT", log(u32::from(head[108]))));
    }
    if boots && [512, 1024, 2048, 4096].contains(&two(11)) {
        let content = if at(3, b"NTFS") { "NTFS" } else { "FAT" };
        return Some(Made::new(content, Sector::of_requests(two(11))));
    }
    if at(1024, &0xf2f5_2010_u32.to_le_bytes()) {
        return Some(Made::new("F2FS", log(le4(head, 1024 + 8))));
    }
    let small_ext = at(1080, &[0x53, 0xef]) && le4(head, 1024 + 24) < 2;
    small_ext.then(|| Made::new("ext with small blocks", Sector::Small))
}

/// A container of any content: gets the sector that takes all of it.
fn container(head: &[u8]) -> Option<Made> {
    let content = if head.starts_with(b"LUKS\xba\xbe") {
        "LUKS"
    } else if head.chunks_exact(512).take(4).any(|sector| sector.starts_with(b"LABELONE")) {
        "LVM"
    } else if [0, 4096].into_iter().any(|at| le4(head, at) == 0xa92b_4efc) {
        "RAID"
    } else {
        return None;
    };
    Some(Made::new(content, Sector::Small))
}

/// An MBR, which counts in sectors but does not state their size: the size with which a partition
/// has known content, else 512.
fn mbr(
    head: &[u8],
    size: u64,
    read: &mut dyn FnMut(Range<u64>) -> Option<Vec<u8>>,
) -> Option<Made> {
    let firsts: Vec<u64> = mbr_entries(head).map(|(_, first, _)| first).collect();
    if firsts.is_empty() {
        return None;
    }
    let mut fits = |sector: Sector| {
        firsts.iter().any(|first| {
            let at = first.saturating_mul(sector.bytes().into());
            let inside = at.checked_add(HEAD).is_some_and(|end| end <= size);
            let head = inside.then(|| read(at..at + HEAD)).flatten();
            head.is_some_and(|head| is_known(&head, &[]) || file_system(&head).is_some())
        })
    };
    let block = !fits(Sector::Small) && fits(Sector::Block);
    Some(Made::new("MBR", if block { Sector::Block } else { Sector::Small }))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn made(image: &[u8]) -> Option<Made> {
        Made::of(image.len() as u64, &mut |range| {
            image.get(range.start as usize..range.end as usize).map(<[u8]>::to_vec)
        })
    }

    fn image(parts: &[(usize, &[u8])]) -> Vec<u8> {
        let mut image = vec![0; 1 << 20];
        for (at, bytes) in parts {
            image[*at..at + bytes.len()].copy_from_slice(bytes);
        }
        image
    }

    fn mbr_of(first: u32) -> Vec<u8> {
        let mut sector = vec![0; 512];
        sector[510..].copy_from_slice(&[0x55, 0xaa]);
        sector[450] = 0x83;
        sector[454..458].copy_from_slice(&first.to_le_bytes());
        sector[458..462].copy_from_slice(&8_u32.to_le_bytes());
        sector
    }

    #[test]
    fn content_tells_its_sector() {
        let (small, block) = (Some(Sector::Small), Some(Sector::Block));
        let header = [&b"EFI PART"[..], &[0; 16], &1_u64.to_le_bytes()].concat();
        let ext = |log: u32| [&log.to_le_bytes()[..], &[0; 28], &[0x53, 0xef]].concat();
        let fat = |bytes: u16| [&[0xeb, 0, 0][..], b"MSDOS5.0", &bytes.to_le_bytes()].concat();
        let boot: &[u8] = &[0x55, 0xaa];
        let f2fs =
            |log: u32| [&0xf2f5_2010_u32.to_le_bytes()[..], &[0; 4], &log.to_le_bytes()].concat();
        for (what, parts, expected) in [
            ("nothing", vec![], None),
            ("GPT", vec![(512, &header[..])], small),
            ("GPT", vec![(4096, &header[..])], block),
            ("a second copy", vec![(512, &b"EFI PART"[..])], None),
            ("XFS", vec![(0, &b"XFSB"[..]), (102, &512_u16.to_be_bytes())], small),
            ("XFS", vec![(0, &b"XFSB"[..]), (102, &4096_u16.to_be_bytes())], block),
            ("ext", vec![(1048, &ext(0)[..])], small),
            ("ext", vec![(1048, &ext(2)[..])], None),
            ("FAT", vec![(0, &fat(512)[..]), (510, boot)], small),
            ("FAT", vec![(0, &fat(4096)[..]), (510, boot)], block),
            ("F2FS", vec![(1024, &f2fs(9)[..])], small),
            ("F2FS", vec![(1024, &f2fs(12)[..])], block),
            ("LUKS", vec![(0, &b"LUKS\xba\xbe"[..])], small),
            ("LVM", vec![(512, &b"LABELONE"[..])], small),
            ("swap", vec![(4086, &b"SWAPSPACE2"[..])], None),
            ("MBR", vec![(0, &mbr_of(8)[..])], small),
            ("MBR", vec![(0, &mbr_of(8)[..]), (4096, b"XFSB")], small),
            ("MBR", vec![(0, &mbr_of(8)[..]), (32768, b"XFSB")], block),
            ("ISO 9660", vec![(32769, &b"CD001"[..])], small),
        ] {
            let found = made(&image(&parts));
            assert_eq!(found.map(|made| made.sector), expected, "{what}: {found:?}");
        }
    }

    #[test]
    fn a_small_or_unreadable_drive_tells_nothing() {
        assert_eq!(made(&[0; 4096]), None);
        assert_eq!(Made::of(1 << 20, &mut |_| None), None);
    }
}

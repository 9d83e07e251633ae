//! The stable id of a drive, independent of the name or number that the system gives it today.
//!
//! Invariants: the same drive has the same id after a restart, on another port, and by each path to
//! it: a loop device on a whole file has the file's id, a partition of that device the id of that
//! part of the file. The id is read from `/sys` and from the file's own attributes, never from the
//! drive's content, which [`super::Identity`] adds. A drive without such an id (a virtual disk
//! without a serial number) has the id [`IdKind::Unknown`], which says nothing.

use super::file_drive::FileDrive;
use super::layers::{Base, Layer};
use super::sysfs;
use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use serde::{Deserialize, Serialize};
use std::path::Path;

/// Where an id comes from. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IdKind {
    /// No source: nothing is known.
    Unknown = 0,
    /// From the code that made the drive, for example a simulation.
    Given = 1,
    /// The world-wide name or the serial number of a disk.
    Disk = 2,
    /// A place on a disk, or the unique id of a partition.
    Partition = 3,
    /// A part of a regular file, behind a loop device.
    Loop = 4,
    /// A regular file: inode and birth time.
    File = 5,
}

impl IdKind {
    pub(super) fn from_number(number: u8) -> Option<Self> {
        [Self::Unknown, Self::Given, Self::Disk, Self::Partition, Self::Loop, Self::File]
            .into_iter()
            .find(|kind| *kind as u8 == number)
    }
}

/// The id of a drive.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StableId {
    kind: IdKind,
    text: String,
}

impl StableId {
    /// The id of a drive about which nothing is known.
    pub fn unknown() -> Self {
        Self { kind: IdKind::Unknown, text: String::new() }
    }

    /// The id `text`, of a drive that the system does not know.
    pub fn given(text: &str) -> Self {
        Self { kind: IdKind::Given, text: text.to_owned() }
    }

    /// The id of a block device or file, as well as this system tells.
    pub fn of(drive: &FileDrive) -> Self {
        let found = lowest(drive).and_then(|lowest| layer_id(drive, lowest));
        found.map_or_else(Self::unknown, |(kind, text)| Self { kind, text })
    }

    /// Where the id comes from.
    pub fn kind(&self) -> IdKind {
        self.kind
    }

    /// The id in words, for messages. Not for storing: the words may change.
    pub fn text(&self) -> &str {
        &self.text
    }

    /// The id as a number, for storing; 0 when unknown.
    pub fn number(&self) -> u64 {
        match self.kind {
            IdKind::Unknown => 0,
            _ => crc_fast::crc64_nvme(self.text.as_bytes()),
        }
    }
}

/// The bytes of a disk or file that a drive is, to find overlaps between drives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Place {
    /// The id of a disk or file, as a number.
    pub of: u64,
    /// The first byte.
    pub from: u64,
    /// The byte behind the last one.
    pub to: u64,
}

impl Place {
    /// The place of a drive, if its disk or file has an id.
    pub fn of(drive: &FileDrive) -> Option<Self> {
        let lowest = lowest(drive)?;
        let of = crc_fast::crc64_nvme(base_id(drive, lowest)?.as_bytes());
        Some(Self { of, from: lowest.bytes.start, to: lowest.bytes.end })
    }

    /// Whether two have bytes in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.of == other.of && self.from < other.to && other.from < self.to
    }
}

/// The lowest layer whose bytes belong to this drive alone.
fn lowest(drive: &FileDrive) -> Option<&Layer> {
    drive.layers().iter().take_while(|layer| !layer.shared).last()
}

/// The id of a layer's base.
fn base_id(drive: &FileDrive, layer: &Layer) -> Option<String> {
    match layer.base {
        Base::File(_, inode) if drive.device_number().is_none() => {
            file_id(drive.fd(), Path::new(""), inode)
        }
        Base::File(_, inode) => file_id(CWD, &layer.name, inode),
        Base::Disk(number) => {
            let dir = sysfs::dir_of(number)?;
            let names = [
                "wwid",
                "device/wwid",
                "serial",
                "device/serial",
                "device/cid",
                "dm/uuid",
                "md/uuid",
            ];
            names.iter().find_map(|name| sysfs::line(&dir.join(name)))
        }
    }
}

fn layer_id(drive: &FileDrive, layer: &Layer) -> Option<(IdKind, String)> {
    let start = layer.bytes.start;
    let base = base_id(drive, layer);
    match (layer.base, base) {
        (Base::File(..), Some(file)) if start == 0 => Some((IdKind::File, file)),
        (Base::File(..), Some(file)) => Some((IdKind::Loop, format!("{file} from {start}"))),
        // By its place if the disk is known. `PARTUUID` is newer than many kernels, and an id must
        // not change because the kernel did.
        (Base::Disk(_), Some(disk)) if layer.number.is_some_and(is_part) || start > 0 => {
            Some((IdKind::Partition, format!("{disk} from {}", start / 512)))
        }
        (Base::Disk(_), Some(disk)) => Some((IdKind::Disk, disk)),
        (Base::Disk(_), None) => {
            let part = sysfs::dir_of(layer.number.filter(|number| is_part(*number))?)?;
            Some((IdKind::Partition, sysfs::event(&part, "PARTUUID")?))
        }
        (Base::File(..), None) => None,
    }
}

fn is_part(number: u64) -> bool {
    sysfs::dir_of(number).is_some_and(|dir| sysfs::is_partition(&dir))
}

/// Inode and birth time, which no other file shares. Without a birth time, the device number, which
/// a restart may change, takes its place. `None` if the name leads to another file.
fn file_id(at: impl rustix::fd::AsFd, path: &Path, inode: u64) -> Option<String> {
    let want = StatxFlags::INO | StatxFlags::BTIME;
    let found = statx(at, path, AtFlags::EMPTY_PATH, want).ok().filter(|f| f.stx_ino == inode)?;
    let born = found.stx_btime;
    Some(if StatxFlags::from_bits_retain(found.stx_mask).contains(StatxFlags::BTIME) {
        format!("inode {inode} of {}.{:09}", born.tv_sec, born.tv_nsec)
    } else {
        let device = sysfs::text_of(makedev(found.stx_dev_major, found.stx_dev_minor));
        format!("inode {inode} on {device}")
    })
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::media::Access;
    use std::fs;

    #[test]
    fn a_file_keeps_its_id_and_a_copy_has_another() {
        let dir = tempfile::tempdir().unwrap();
        let id = |name: &str| {
            let drive = FileDrive::open(&dir.path().join(name), Access::ReadOnly).unwrap();
            StableId::of(&drive)
        };
        fs::write(dir.path().join("a"), [1; 8192]).unwrap();
        let first = id("a");
        assert_eq!(first.kind(), IdKind::File);
        fs::write(dir.path().join("a"), [2; 12288]).unwrap();
        assert_eq!(id("a"), first);
        fs::rename(dir.path().join("a"), dir.path().join("b")).unwrap();
        assert_eq!(id("b"), first);
        fs::copy(dir.path().join("b"), dir.path().join("c")).unwrap();
        assert_ne!(id("c"), first);
        assert_ne!(id("c").number(), first.number());
    }

    #[test]
    fn kinds_are_their_numbers() {
        for number in 0..=u8::MAX {
            let kind = IdKind::from_number(number);
            assert_eq!(kind.map(|k| k as u8), (number <= 5).then_some(number));
        }
        assert_eq!(StableId::unknown().number(), 0);
        assert_ne!(StableId::given("a").number(), StableId::given("b").number());
    }
}

//! What a drive is called by itself, whatever name or number the system gives it today.
//!
//! Invariants: the same drive has the same id after a restart and on another port; the id is read
//! from `/sys` and from the file's own attributes, never from the drive's content, which
//! [`super::Identity`] adds. A drive that has no such name (a virtual disk without a serial number)
//! has the id [`IdKind::Unknown`], which says nothing.

use super::file_drive::FileDrive;
use super::sysfs;
use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, statx};
use std::path::Path;

/// Where an id comes from. The numbers are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum IdKind {
    /// Nowhere: nothing is known.
    Unknown = 0,
    /// From whoever made the drive, a simulation for example.
    Given = 1,
    /// The world-wide name or the serial number of a disk.
    Disk = 2,
    /// A place on a disk, or the unique id of a partition.
    Partition = 3,
    /// The file behind a loop device.
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

    /// The id `text`, of a drive that nobody can look up.
    pub fn given(text: &str) -> Self {
        Self { kind: IdKind::Given, text: text.to_owned() }
    }

    /// The id of a block device or file, as well as this system tells.
    pub fn of(drive: &FileDrive) -> Self {
        let found = match drive.device_number() {
            Some(number) => sysfs::dir_of(number).and_then(|dir| device_id(&dir)),
            None => file_id(drive.fd(), Path::new("")).map(|text| (IdKind::File, text)),
        };
        found.map_or_else(Self::unknown, |(kind, text)| Self { kind, text })
    }

    /// Where the id comes from.
    pub fn kind(&self) -> IdKind {
        self.kind
    }

    /// The id in words, for people; it changes with the words, so it is not for storing.
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

/// The id of the device that a directory of `/sys` describes.
fn device_id(dir: &Path) -> Option<(IdKind, String)> {
    if !sysfs::is_partition(dir) {
        return disk_id(dir);
    }
    // By its place if the disk is known. `PARTUUID` is newer than many kernels, and an id must not
    // change because the kernel did.
    let start = sysfs::line(&dir.join("start"))?;
    let placed = dir.parent().and_then(disk_id).map(|(_, disk)| format!("{disk} from {start}"));
    let text = placed.or_else(|| sysfs::event(dir, "PARTUUID"))?;
    Some((IdKind::Partition, text))
}

fn disk_id(dir: &Path) -> Option<(IdKind, String)> {
    if let Some(file) = sysfs::loop_file(dir) {
        let offset = sysfs::line(&dir.join("loop/offset")).unwrap_or_default();
        return Some((IdKind::Loop, format!("{} from {offset}", file_id(CWD, &file)?)));
    }
    let names =
        ["wwid", "device/wwid", "serial", "device/serial", "device/cid", "dm/uuid", "md/uuid"];
    let text = names.iter().find_map(|name| sysfs::line(&dir.join(name)))?;
    Some((IdKind::Disk, text))
}

/// Inode and birth time, which no other file shares. Without a birth time, the device number, which
/// a restart may change, has to do.
fn file_id(at: impl rustix::fd::AsFd, path: &Path) -> Option<String> {
    let want = StatxFlags::INO | StatxFlags::BTIME;
    let found = statx(at, path, AtFlags::EMPTY_PATH, want).ok()?;
    let (inode, born) = (found.stx_ino, found.stx_btime);
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

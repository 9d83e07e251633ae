//! The mounts: `/proc/self/mountinfo`, as the kernel writes it.
//!
//! Invariant: nothing here touches a mounted file system, so that nothing hangs on a dead server.

use super::sysfs;
use crate::kernel_text::kernel_text;
use std::ffi::OsString;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// The source of our FUSE mounts, in the mount table and in `df`.
pub const SOURCE: &str = "ztier";

/// File systems on local drives or in memory: no server has to answer.
const LOCAL: [&str; 17] = [
    "ext2", "ext3", "ext4", "xfs", "btrfs", "f2fs", "tmpfs", "devtmpfs", "ramfs", "overlay",
    "vfat", "exfat", "ntfs3", "zfs", "bcachefs", "squashfs", "erofs",
];

/// One line of a mountinfo file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MountEntry {
    /// Device number of the mounted file system.
    pub device: (u32, u32),
    /// The part of the file system that is mounted.
    pub root: PathBuf,
    /// The mount point.
    pub point: PathBuf,
    /// The options of the mount, with commas between.
    pub options: String,
    /// File system type, with the subtype of FUSE (`fuse.sshfs`).
    pub kind: String,
    /// The source: a device path, or any text.
    pub source: PathBuf,
    /// The options of the file system, with commas between.
    pub super_options: String,
}

impl MountEntry {
    /// Whether this is a mount of ours: FUSE, with our source.
    pub fn is_ours(&self) -> bool {
        self.is_fuse() && self.source == Path::new(SOURCE)
    }

    /// Whether a process serves it.
    pub fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.")
    }

    /// Whether it is a mount of the block device with this number.
    pub fn is_of(&self, number: (u32, u32)) -> bool {
        self.device == number || self.source_number() == Some(number)
    }

    /// The number of the block device that it is a mount of. File systems such as btrfs have other
    /// numbers of their own.
    pub fn source_number(&self) -> Option<(u32, u32)> {
        self.source.starts_with("/dev").then(|| number_of(&self.source)).flatten()
    }

    /// Whether a request to it waits for no server.
    pub fn is_local(&self) -> bool {
        LOCAL.contains(&self.kind.as_str())
    }

    /// A line: `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAGS…] - TYPE SOURCE SUPER-OPTIONS`.
    pub fn parse(line: &str) -> Option<Self> {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let device = sysfs::numbers(left.next()?)?;
        let mut right = right.split(' ');
        Some(Self {
            device,
            root: unescape(left.next()?),
            point: unescape(left.next()?),
            options: left.next()?.to_owned(),
            kind: right.next()?.to_owned(),
            source: unescape(right.next()?),
            super_options: right.next()?.to_owned(),
        })
    }
}

/// Major and minor number of the node of a block device.
pub fn number_of(node: &Path) -> Option<(u32, u32)> {
    let meta = fs::metadata(node).ok()?;
    let number = (rustix::fs::major(meta.rdev()), rustix::fs::minor(meta.rdev()));
    meta.file_type().is_block_device().then_some(number)
}

/// All mounts that this process sees, in the order in which they were made; empty if they cannot be
/// read.
pub fn mounts() -> Vec<MountEntry> {
    mounts_in(Path::new("/proc/self/mountinfo"))
}

/// All mounts in a mountinfo file (another process's, for example).
pub fn mounts_in(file: &Path) -> Vec<MountEntry> {
    kernel_text(file)
        .map(|text| text.lines().filter_map(MountEntry::parse).collect())
        .unwrap_or_default()
}

/// Which of these mounts a path without links leads to, by its name alone.
pub fn mount_of<'a>(mounts: &'a [MountEntry], path: &Path) -> Option<&'a MountEntry> {
    let above = mounts.iter().filter(|m| path.starts_with(&m.point));
    // Of several mounts at one point, only the last one is visible.
    above.max_by_key(|m| m.point.components().count())
}

/// Undoes the octal escapes (`\040`) of the kernel's tables.
pub fn unescape(text: &str) -> PathBuf {
    let bytes = text.as_bytes();
    let mut out = Vec::with_capacity(bytes.len());
    let mut at = 0;
    while at < bytes.len() {
        let escape = bytes
            .get(at + 1..at + 4)
            .filter(|_| bytes[at] == b'\\')
            .and_then(|digits| std::str::from_utf8(digits).ok())
            .and_then(|digits| u8::from_str_radix(digits, 8).ok());
        match escape {
            Some(byte) => {
                out.push(byte);
                at += 4;
            }
            None => {
                out.push(bytes[at]);
                at += 1;
            }
        }
    }
    PathBuf::from(OsString::from_vec(out))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_mountinfo_line_is_taken_apart() {
        let m = MountEntry::parse(
            r"36 35 98:0 /mnt1 /mnt/two\040words rw,noatime master:1 shared:2 - fuse.ztier ztier rw,x",
        )
        .unwrap();
        assert_eq!(m.device, (98, 0));
        assert_eq!((&*m.root, &*m.point), (Path::new("/mnt1"), Path::new("/mnt/two words")));
        assert_eq!((&*m.options, &*m.super_options), ("rw,noatime", "rw,x"));
        assert_eq!(m.kind, "fuse.ztier");
        assert!(m.is_ours());
    }

    #[test]
    fn broken_lines_and_escapes_are_not_a_panic() {
        for line in ["", " - ", "1 2 x:y / / rw - a b", "1 2 3:4 /", "1 2 3:4 / /p rw -"] {
            assert_eq!(MountEntry::parse(line), None, "{line}");
        }
        assert_eq!(unescape(r"a\9z\04"), Path::new(r"a\9z\04"));
        assert_eq!(unescape(r"\134"), Path::new(r"\"));
    }

    #[test]
    fn a_path_is_on_the_innermost_mount() {
        let mounts = mounts();
        assert_eq!(mount_of(&mounts, Path::new("/proc/self/stat")).unwrap().kind, "proc");
        assert_eq!(mount_of(&mounts, Path::new("/")).unwrap().point, Path::new("/"));
    }
}

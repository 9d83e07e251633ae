//! What is mounted: `/proc/self/mountinfo` and `/proc/swaps`, read as the kernel writes them.
//!
//! Invariant: nothing here touches a mounted file system, so that nothing hangs on a dead server.

use super::swaps::Swapped;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

/// What our FUSE mounts name as their source, in the mount table and in `df`.
pub(super) const SOURCE: &str = "ztier";

/// One line of a mountinfo file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MountEntry {
    /// Device number of what is mounted.
    pub device: (u32, u32),
    /// Where.
    pub point: PathBuf,
    /// File system type, with the subtype of FUSE (`fuse.sshfs`).
    pub kind: String,
    /// What is mounted: a device path, or any text.
    pub source: PathBuf,
}

impl MountEntry {
    /// Whether this is a mount of ours: FUSE, with our source.
    pub(super) fn is_ours(&self) -> bool {
        (self.kind == "fuse" || self.kind.starts_with("fuse.")) && self.source == Path::new(SOURCE)
    }
}

/// All mounts that this process sees, in the order in which they were made; empty if the kernel
/// does not say.
pub(super) fn mounts() -> Vec<MountEntry> {
    mounts_in(Path::new("/proc/self/mountinfo"))
}

/// All mounts in a mountinfo file (another process's, for example).
pub(super) fn mounts_in(file: &Path) -> Vec<MountEntry> {
    std::fs::read_to_string(file)
        .map(|text| text.lines().filter_map(parse_mount).collect())
        .unwrap_or_default()
}

/// Whether one of our FUSE file systems is what is mounted (last) on `point`.
pub(super) fn ours_on(point: &Path) -> bool {
    mounted_on(point).is_some_and(|m| m.is_ours())
}

/// What is mounted on `point`: the last mount, which hides the others.
pub(super) fn mounted_on(point: &Path) -> Option<MountEntry> {
    mounts().into_iter().rev().find(|m| m.point == point)
}

/// `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAGS…] - TYPE SOURCE SUPER-OPTIONS`
fn parse_mount(line: &str) -> Option<MountEntry> {
    let (left, right) = line.split_once(" - ")?;
    let mut left = left.split(' ').skip(2);
    let (major, minor) = left.next()?.split_once(':')?;
    let point = left.nth(1)?;
    let mut right = right.split(' ');
    Some(MountEntry {
        device: (major.parse().ok()?, minor.parse().ok()?),
        point: unescape(point),
        kind: right.next()?.to_owned(),
        source: unescape(right.next()?),
    })
}

/// A mounted tree of cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// Whether it is of version 2.
    pub unified: bool,
    /// What it controls, of version 1.
    pub controllers: Vec<String>,
    /// Where it is mounted.
    pub point: PathBuf,
    /// Which of its cgroups is seen there.
    root: String,
}

impl Hierarchy {
    /// The directory of the cgroup that `/proc/PID/cgroup` calls `path`.
    pub fn directory(&self, path: &str) -> PathBuf {
        let path = Path::new(path);
        self.point.join(path.strip_prefix(&self.root).or(path.strip_prefix("/")).unwrap_or(path))
    }
}

/// All trees of cgroups in a mountinfo file.
pub(super) fn hierarchies(file: &Path) -> Vec<Hierarchy> {
    std::fs::read_to_string(file)
        .map(|text| text.lines().filter_map(parse_hierarchy).collect())
        .unwrap_or_default()
}

fn parse_hierarchy(line: &str) -> Option<Hierarchy> {
    let MountEntry { point, kind, .. } = parse_mount(line)?;
    let root = unescape(line.split(' ').nth(3)?).to_str()?.to_owned();
    let options = line.rsplit(' ').next()?.split(',').map(str::to_owned);
    let unified = kind == "cgroup2";
    (unified || kind == "cgroup").then(|| Hierarchy {
        unified,
        controllers: if unified { Vec::new() } else { options.collect() },
        point,
        root,
    })
}

/// The devices and files that the kernel swaps to.
pub(super) fn swaps() -> Vec<PathBuf> {
    swap_areas().into_iter().map(|(path, _)| path).collect()
}

/// The same, with how full they are.
pub(super) fn swap_areas() -> Vec<(PathBuf, Swapped)> {
    std::fs::read_to_string("/proc/swaps")
        .map(|text| text.lines().skip(1).filter_map(parse_swap).collect())
        .unwrap_or_default()
}

/// `NAME TYPE SIZE USED PRIORITY`, sizes in KiB.
fn parse_swap(line: &str) -> Option<(PathBuf, Swapped)> {
    let mut words = line.split_whitespace();
    let path = unescape(words.next()?);
    let kib = |word: Option<&str>| Some(word?.parse::<u64>().ok()? << 10);
    let (size, used) = (kib(words.nth(1))?, kib(words.next())?);
    Some((path, Swapped { size, used, priority: words.next()?.parse().ok()? }))
}

/// Undoes the octal escapes (`\040`) of the kernel's tables.
fn unescape(text: &str) -> PathBuf {
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
        let m = parse_mount(
            r"36 35 98:0 /mnt1 /mnt/two\040words rw,noatime master:1 shared:2 - fuse.ztier ztier rw",
        )
        .unwrap();
        assert_eq!(m.device, (98, 0));
        assert_eq!(m.point, Path::new("/mnt/two words"));
        assert_eq!(m.kind, "fuse.ztier");
        assert!(m.is_ours());
    }

    #[test]
    fn broken_lines_and_escapes_are_not_a_panic() {
        for line in ["", " - ", "1 2 x:y / / rw - a b", "1 2 3:4 /", "1 2 3:4 / /p rw -"] {
            assert_eq!(parse_mount(line), None, "{line}");
        }
        assert_eq!(unescape(r"a\9z\04"), Path::new(r"a\9z\04"));
        assert_eq!(unescape(r"\134"), Path::new(r"\"));
    }

    #[test]
    fn a_line_of_swap_is_taken_apart() {
        let line = "/dev/two\\040words                 partition\t4194300\t\t1024\t\t-2";
        let (path, area) = parse_swap(line).unwrap();
        assert_eq!(path, Path::new("/dev/two words"));
        assert_eq!(area, Swapped { size: 4_194_300 << 10, used: 1 << 20, priority: -2 });
        assert_eq!(parse_swap("/dev/x partition 1"), None);
    }

    #[test]
    fn the_root_is_mounted() {
        assert!(mounted_on(Path::new("/")).is_some());
        assert!(!ours_on(Path::new("/")));
    }
}

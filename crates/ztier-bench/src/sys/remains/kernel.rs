//! The kernel's tables of mounts, loop devices, swap and control groups.
//!
//! Invariant: all data comes from tables in `/proc` and `/sys`, whose reads cannot block; an
//! unreadable entry counts as absent.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

const BLOCK: &str = "/sys/block";

/// A mount.
#[derive(Debug, PartialEq, Eq)]
pub struct Mount {
    /// Mount point.
    pub point: PathBuf,
    /// File system type, with the subtype of FUSE.
    pub kind: String,
    /// The device, or any text.
    source: PathBuf,
}

impl Mount {
    /// Whether a process serves it.
    pub fn is_fuse(&self) -> bool {
        self.kind == "fuse" || self.kind.starts_with("fuse.")
    }
}

/// A loop device.
pub struct Loop {
    /// The device.
    pub device: PathBuf,
    /// The backing file, as the kernel names it.
    pub backing: PathBuf,
}

/// All mounts, in the order in which they were made.
pub fn mounts() -> Vec<Mount> {
    let text = fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    text.lines().filter_map(mount).collect()
}

/// `ID PARENT MAJOR:MINOR ROOT POINT OPTIONS [TAGS…] - TYPE SOURCE SUPER-OPTIONS`
fn mount(line: &str) -> Option<Mount> {
    let (left, right) = line.split_once(" - ")?;
    let (point, mut right) = (left.split(' ').nth(4)?, right.split(' '));
    Some(Mount {
        point: unescaped(point),
        kind: right.next()?.to_owned(),
        source: unescaped(right.next()?),
    })
}

/// Decodes a path from the kernel's tables, which have blanks as octal numbers.
fn unescaped(text: &str) -> PathBuf {
    let known = [("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")];
    known.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to)).into()
}

/// All loop devices with a backing file.
pub fn loops() -> Vec<Loop> {
    let of = |name: String| {
        let text = fs::read_to_string(Path::new(BLOCK).join(&name).join("loop/backing_file"));
        let backing = PathBuf::from(text.ok()?.trim_end_matches('\n'));
        Some(Loop { device: Path::new("/dev").join(name), backing })
    };
    devices("loop").into_iter().filter_map(of).collect()
}

fn devices(kind: &str) -> Vec<String> {
    let all = fs::read_dir(BLOCK).into_iter().flatten().flatten();
    let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(kind)).collect()
}

/// The swap devices and files.
pub fn swaps() -> Vec<PathBuf> {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let first = |line: &str| line.split_whitespace().next().map(unescaped);
    text.lines().skip(1).filter_map(first).collect()
}

/// The zram devices that hold data and are neither mounted nor swap.
pub fn unused_zram() -> Vec<String> {
    let mut used: BTreeSet<PathBuf> = swaps().into_iter().collect();
    used.extend(mounts().into_iter().map(|mount| mount.source));
    let holds_data = |name: &String| {
        let text = fs::read_to_string(Path::new(BLOCK).join(name).join("mm_stat"));
        text.is_ok_and(|text| text.split_whitespace().next().is_some_and(|bytes| bytes != "0"))
    };
    let is_used = |name: &String| used.contains(&Path::new("/dev").join(name));
    devices("zram").into_iter().filter(|name| holds_data(name) && !is_used(name)).collect()
}

/// The control groups in which this process could make its own groups: its own and all above it.
pub fn groups() -> BTreeSet<PathBuf> {
    let own = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let paths: Vec<&Path> =
        own.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(Path::new).collect();
    let trees = mounts().into_iter().filter(|mount| mount.kind.starts_with("cgroup"));
    let above = |tree: Mount| {
        let join = move |path: &Path| tree.point.join(path.strip_prefix("/").unwrap_or(path));
        paths.iter().flat_map(|path| path.ancestors()).map(join).collect::<Vec<_>>()
    };
    trees.flat_map(above).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_line_of_the_table_of_mounts_is_read() {
        let line = "43 27 0:40 / /run/a\\040b rw,nosuid shared:3 - fuse.x ztier rw,user_id=0";
        let found = mount(line).unwrap();
        let expected =
            Mount { point: "/run/a b".into(), kind: "fuse.x".into(), source: "ztier".into() };
        assert_eq!(found, expected);
        assert!(found.is_fuse());
        assert!(!mount(&line.replace("fuse.x", "fuseblk")).unwrap().is_fuse());
        assert_eq!(mount("43 27 0:40"), None);
    }

    #[test]
    fn this_machine_says_what_it_has() {
        assert!(mounts().iter().any(|mount| mount.point == Path::new("/")));
        assert!(groups().iter().all(|dir| dir.is_absolute()));
    }
}

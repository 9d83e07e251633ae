//! Mounts, mounts of ztier's FUSE, cgroup hierarchies and swap areas, from the kernel's tables.
//!
//! Invariant: nothing here touches a mounted file system, so a dead server blocks nothing.

use super::swaps::Swapped;
use crate::media::mounts::unescape;
pub(crate) use crate::media::mounts::{MountEntry, mounts, mounts_in};
use std::path::{Path, PathBuf};

/// Whether the last mount on `point` is a FUSE file system of ztier.
pub(crate) fn ours_on(point: &Path) -> bool {
    mounted_on(point).is_some_and(|m| m.is_ours())
}

/// The last mount on `point`, which hides earlier ones.
pub(crate) fn mounted_on(point: &Path) -> Option<MountEntry> {
    mounts().into_iter().rev().find(|m| m.point == point)
}

/// A mounted hierarchy of cgroups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Hierarchy {
    /// Whether it is of version 2.
    pub unified: bool,
    /// Its controllers; empty in version 2.
    pub controllers: Vec<String>,
    /// Where it is mounted.
    pub point: PathBuf,
    /// Path, within the hierarchy, of the cgroup at the mount point.
    root: String,
}

impl Hierarchy {
    /// The directory of the cgroup that `/proc/PID/cgroup` calls `path`.
    pub fn directory(&self, path: &str) -> PathBuf {
        let path = Path::new(path);
        self.point.join(path.strip_prefix(&self.root).or(path.strip_prefix("/")).unwrap_or(path))
    }
}

/// All cgroup hierarchies in a mountinfo file.
pub(super) fn hierarchies(file: &Path) -> Vec<Hierarchy> {
    std::fs::read_to_string(file)
        .map(|text| text.lines().filter_map(parse_hierarchy).collect())
        .unwrap_or_default()
}

fn parse_hierarchy(line: &str) -> Option<Hierarchy> {
    let MountEntry { point, kind, .. } = MountEntry::parse(line)?;
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

/// As [`swaps`], with how full each is.
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

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

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

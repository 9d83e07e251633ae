//! Mounts, mounts of ztier's FUSE, cgroup hierarchies and swap areas, from the kernel's tables.
//!
//! Invariant: nothing here touches a mounted file system, so a dead server blocks nothing.

use crate::media::mounts::unescape;
pub(crate) use crate::media::mounts::{MountEntry, mounts, mounts_in, number_of};
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
    root: PathBuf,
}

impl Hierarchy {
    /// The directory of the cgroup that `/proc/PID/cgroup` calls `path`.
    pub fn directory(&self, path: &str) -> PathBuf {
        let path = &unescape(path);
        self.point.join(path.strip_prefix(&self.root).or(path.strip_prefix("/")).unwrap_or(path))
    }
}

/// All cgroup hierarchies in a mountinfo file.
pub(super) fn hierarchies(file: &Path) -> Vec<Hierarchy> {
    mounts_in(file).into_iter().filter_map(hierarchy).collect()
}

fn hierarchy(mount: MountEntry) -> Option<Hierarchy> {
    let MountEntry { root, point, kind, super_options, .. } = mount;
    let options = super_options.split(',').map(str::to_owned);
    let unified = kind == "cgroup2";
    (unified || kind == "cgroup").then(|| Hierarchy {
        unified,
        controllers: if unified { Vec::new() } else { options.collect() },
        point,
        root,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn the_root_is_mounted() {
        assert!(mounted_on(Path::new("/")).is_some());
        assert!(!ours_on(Path::new("/")));
    }
}

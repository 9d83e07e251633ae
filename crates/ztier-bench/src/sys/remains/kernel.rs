//! The kernel's tables of loop devices, zram devices and control groups.
//!
//! Invariant: all data comes from tables in `/proc` and `/sys`, whose reads cannot block; an
//! unreadable entry counts as absent.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use ztier::kernel_text::kernel_text;
use ztier::media::loop_file;
use ztier::media::mounts::{MountEntry, mounts, unescape};
use ztier::media::swap_areas::swaps;

const BLOCK: &str = "/sys/block";

/// A loop device.
pub struct Loop {
    /// The device.
    pub device: PathBuf,
    /// The backing file, as the kernel names it.
    pub backing: PathBuf,
}

/// All loop devices with a backing file.
pub fn loops() -> Vec<Loop> {
    let of = |name: String| {
        let backing = loop_file(&Path::new(BLOCK).join(&name))?;
        Some(Loop { device: Path::new("/dev").join(name), backing })
    };
    devices("loop").into_iter().filter_map(of).collect()
}

fn devices(kind: &str) -> Vec<String> {
    let all = fs::read_dir(BLOCK).into_iter().flatten().flatten();
    let names = all.map(|entry| entry.file_name().to_string_lossy().into_owned());
    names.filter(|name| name.starts_with(kind)).collect()
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
    let own = kernel_text("/proc/self/cgroup").unwrap_or_default();
    let paths: Vec<PathBuf> =
        own.lines().filter_map(|line| line.splitn(3, ':').nth(2)).map(unescape).collect();
    let trees = mounts().into_iter().filter(|mount| mount.kind.starts_with("cgroup"));
    let above = |tree: MountEntry| {
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
    fn this_machine_says_what_it_has() {
        assert!(mounts().iter().any(|mount| mount.point == Path::new("/")));
        assert!(groups().iter().all(|dir| dir.is_absolute()));
    }
}

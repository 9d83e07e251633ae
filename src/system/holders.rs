//! The holders of a block device or a file: mounts, swap, stacked devices, processes.
//!
//! Invariant: this module looks only at `/proc`, `/sys` and device nodes. It names files of mounted
//! file systems by their links in `/proc/PID/fd`, and never opens them or asks for attributes, so a
//! dead or slow server can't stop the search. It finds a mount in another mount namespace through
//! the mount table of a process there.

use super::mounts::{MountEntry, mounted_on, mounts, mounts_in, number_of};
use crate::media::process_name;
use crate::media::swap_areas::swaps;
use crate::media::sysfs::{entries, is_partition, loop_file, name, number_in};
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The holders of the block device `device` or a partition of it, except this process, in words
/// (`mounted on /mnt`, `swap`, `process 123 (fio)`). Best effort: only root sees the holders of
/// other users.
pub(crate) fn of_block_device(device: &Path) -> Vec<String> {
    let nodes = nodes(device);
    let is_mount = |m: &MountEntry| nodes.iter().any(|n| is_mount_of(m, &n.path, n.number));
    let mut held = BTreeSet::new();
    for m in mounts().iter().filter(|m| is_mount(m)) {
        held.insert(format!("mounted on {}", m.point.display()));
    }
    if held.is_empty() {
        held.extend(foreign_mounts(is_mount));
    }
    if !swaps_on(device).is_empty() {
        held.insert("swap".to_owned());
    }
    for node in &nodes {
        let above = entries(&node.sys.join("holders"));
        held.extend(above.map(|entry| format!("device {}", name(&entry))));
        let loops = loops_over(&node.path);
        held.extend(loops.into_iter().map(|l| format!("loop device {}", l.display())));
    }
    held.extend(processes(|link| nodes.iter().any(|node| node.is(link))));
    held.into_iter().collect()
}

/// How long processes that only look at a device keep it, mostly.
pub(crate) const LOOK: Duration = Duration::from_millis(500);
/// The same for udev's workers, which no user can end and which a busy machine delays.
const LOOK_OF_UDEV: Duration = Duration::from_secs(10);

/// How long `holder`, a process, may look at a device before it counts as a user of it.
pub(crate) fn patience_with(holder: &str) -> Duration {
    let is_udev = ["((udev-worker))", "(systemd-udevd)"].iter().any(|name| holder.ends_with(name));
    if is_udev { LOOK_OF_UDEV } else { LOOK }
}

/// The first of `holders` that stays until a user ends it. A process may only look for a moment, as
/// those do that probe new devices.
pub(crate) fn lasting(holders: &[String]) -> Option<&String> {
    holders.iter().find(|holder| !holder.starts_with("process"))
}

/// Whether the kernel swaps to `device`.
pub fn is_swap(device: &Path) -> bool {
    swaps().iter().any(|s| is_same_device(s, device))
}

/// The swap areas on `device`: the device itself, or partitions of it.
pub(crate) fn swaps_on(device: &Path) -> Vec<PathBuf> {
    let nodes = nodes(device);
    swaps().into_iter().filter(|swap| nodes.iter().any(|node| node.is(swap))).collect()
}

/// A block device, or a partition of it.
struct Node {
    path: PathBuf,
    number: Option<(u32, u32)>,
    /// Its directory below `/sys`.
    sys: PathBuf,
}

impl Node {
    fn is(&self, path: &Path) -> bool {
        let number = self.number.filter(|_| path.starts_with("/dev"));
        path == self.path || (number.is_some() && number_of(path) == number)
    }
}

/// A block device and its partitions: a holder of a partition holds the whole device.
fn nodes(device: &Path) -> Vec<Node> {
    let sys = Path::new("/sys/block").join(device.file_name().unwrap_or_default());
    let parts = entries(&sys).filter(|dir| is_partition(dir));
    let parts: Vec<_> = parts.map(|dir| (Path::new("/dev").join(name(&dir)), dir)).collect();
    let all = std::iter::once((device.to_owned(), sys)).chain(parts);
    // A node in the `/dev` of a container may be missing, or lead to another device.
    let in_sys = |sys: &Path| number_in(sys).map(|n| (rustix::fs::major(n), rustix::fs::minor(n)));
    let node = |(path, sys): (PathBuf, PathBuf)| {
        let number = in_sys(&sys).or_else(|| number_of(&path));
        Node { path, number, sys }
    };
    all.map(node).collect()
}

/// Whether `node` is the block device `device`, perhaps under another name.
pub(super) fn is_same_device(node: &Path, device: &Path) -> bool {
    let number = number_of(device);
    node == device || (number.is_some() && number_of(node) == number)
}

/// Whether the file system mounted on `point` is on `device`.
pub(super) fn mounted_at(device: &Path, point: &Path) -> bool {
    mounted_on(point).is_some_and(|m| is_mount_of(&m, device, number_of(device)))
}

/// The holders of the file `file` or of its directory, which is a mount of its own, except this
/// process and the loop device `ours`.
#[cfg(feature = "fuse")]
pub(crate) fn of_file(file: &Path, ours: Option<&Path>) -> Vec<String> {
    let mut held: BTreeSet<String> = loops_over(file)
        .into_iter()
        .filter(|l| Some(l.as_path()) != ours)
        .map(|l| format!("loop device {}", l.display()))
        .collect();
    if swaps().iter().any(|s| s == file) {
        held.insert("swap".to_owned());
    }
    let dir = file.parent().unwrap_or(file);
    held.extend(processes(|link| link == file || link == dir));
    held.into_iter().collect()
}

/// The loop devices whose backing file is `file`.
pub(super) fn loops_over(file: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    for entry in entries(Path::new("/sys/block")) {
        if name(&entry).starts_with("loop") {
            let device = Path::new("/dev").join(name(&entry));
            if backing_file(&device).is_some_and(|b| b == file) {
                found.push(device);
            }
        }
    }
    found
}

/// The backing file of a loop device, as the kernel names it; `None` if the device has none.
pub(crate) fn backing_file(device: &Path) -> Option<PathBuf> {
    let file = loop_file(&Path::new("/sys/block").join(device.file_name()?))?;
    let bytes = file.as_os_str().as_bytes();
    // The kernel appends this if the file or its mount was removed from the tree.
    let path = bytes.strip_suffix(b" (deleted)").unwrap_or(bytes);
    Some(PathBuf::from(OsStr::from_bytes(path)))
}

fn is_mount_of(m: &MountEntry, device: &Path, number: Option<(u32, u32)>) -> bool {
    number.is_some_and(|number| m.is_of(number)) || m.source == device
}

/// Mounts in other mount namespaces that satisfy `is_mount`, one line each.
fn foreign_mounts(is_mount: impl Fn(&MountEntry) -> bool) -> Vec<String> {
    let own = fs::read_link("/proc/self/ns/mnt").ok();
    let mut seen = BTreeSet::new();
    let mut held = Vec::new();
    for (pid, dir) in pids() {
        let Ok(namespace) = fs::read_link(dir.join("ns/mnt")) else { continue };
        if Some(&namespace) == own.as_ref() || !seen.insert(namespace) {
            continue;
        }
        for m in mounts_in(&dir.join("mountinfo")) {
            if is_mount(&m) {
                let (point, name) = (m.point.display(), name_of(&dir));
                held.push(format!("mounted on {point} in the namespace of process {pid} ({name})"));
            }
        }
    }
    held
}

/// The processes, except this one, with an open file, working directory or root directory whose
/// link satisfies `is_it`.
fn processes(is_it: impl Fn(&Path) -> bool) -> Vec<String> {
    let me = std::process::id();
    pids()
        .filter(|(pid, _)| *pid != me)
        .filter(|(_, dir)| {
            let places = ["cwd", "root"].map(|place| dir.join(place));
            let mut all = entries(&dir.join("fd")).chain(places);
            all.any(|place| fs::read_link(place).is_ok_and(|link| is_it(&link)))
        })
        .map(|(pid, dir)| format!("process {pid} ({})", name_of(&dir)))
        .collect()
}

fn pids() -> impl Iterator<Item = (u32, PathBuf)> {
    entries(Path::new("/proc")).filter_map(|dir| Some((name(&dir).parse().ok()?, dir)))
}

fn name_of(proc_dir: &Path) -> String {
    process_name(proc_dir).unwrap_or_else(|| "?".to_owned())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[cfg(feature = "fuse")]
    #[test]
    fn another_process_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().canonicalize().unwrap().join("file");
        fs::write(&path, "x").unwrap();
        assert_eq!(of_file(&path, None), Vec::<String>::new());
        let mut child = std::process::Command::new("sleep")
            .arg("20")
            .stdin(fs::File::open(&path).unwrap())
            .spawn()
            .unwrap();
        let held = of_file(&path, None);
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(held, [format!("process {} (sleep)", child.id())]);
    }

    #[test]
    fn what_does_not_exist_has_no_holders() {
        assert_eq!(of_block_device(Path::new("/dev/loop-none")), Vec::<String>::new());
        assert_eq!(backing_file(Path::new("/dev/loop-none")), None);
    }

    #[test]
    fn a_process_may_only_look() {
        let held = ["process 1 (blkid)", "swap"].map(str::to_owned);
        assert_eq!(lasting(&held), Some(&held[1]));
        assert_eq!(lasting(&held[..1]), None);
        assert_eq!(patience_with(&held[0]), LOOK);
        for udev in ["process 524 ((udev-worker))", "process 5 (systemd-udevd)"] {
            assert!(patience_with(udev) > LOOK);
        }
    }
}

//! Who keeps a drive from being opened: a mount, swap, a stacked device, a process. For error
//! texts.
//!
//! Invariant: only `/proc`, `/sys` and device nodes are looked at, so that a dead file server can't
//! stop the search. Best effort: other users' processes and other mount namespaces may stay unseen.

use super::sysfs::{self, entries, name};
use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What holds the block device `number`, one of its partitions, or the disk that it is a part of,
/// in words: `mounted on /mnt`, `swap`, `device dm-0`, `process 123 (fio)`.
pub(super) fn of_device(number: u64) -> Option<String> {
    let mut numbers = vec![number];
    if let Some(dir) = sysfs::dir_of(number) {
        let parts = entries(&dir).filter(|d| sysfs::is_partition(d));
        numbers.extend(parts.filter_map(|d| sysfs::number_in(&d)));
        if sysfs::is_partition(&dir) {
            numbers.extend(dir.parent().and_then(sysfs::number_in));
        }
    }
    let stacked = numbers.iter().find_map(|n| claim_on(*n));
    stacked.or_else(|| {
        process(1, |link| {
            link.starts_with("/dev") && is_node(link, |found| numbers.contains(&found))
        })
    })
}

/// What shows a regular file as something else: `swap`, `loop device /dev/loop0`. `file` is its
/// canonical name.
pub(super) fn over_file(file: &Path) -> Option<String> {
    if swaps().any(|s| s == file) {
        return Some("swap".to_owned());
    }
    let mut disks = entries(Path::new("/sys/block"));
    let found = disks.find(|d| sysfs::loop_file(d).is_some_and(|f| f == file))?;
    Some(format!("loop device /dev/{}", name(&found)))
}

/// The process that has a regular file open, besides the descriptor that the caller looks for it
/// with.
pub(super) fn process_on_file(file: &Path) -> Option<String> {
    process(2, |link| link == file)
}

/// What the kernel itself has put on a device.
fn claim_on(number: u64) -> Option<String> {
    let dir = sysfs::dir_of(number)?;
    let node = Path::new("/dev").join(name(&dir));
    if let Some(point) = mount_of(&sysfs::text_of(number), &node) {
        return Some(format!("mounted on {point}"));
    }
    if swaps().any(|s| s == node || is_node(&s, |found| found == number)) {
        return Some("swap".to_owned());
    }
    if let Some(holder) = entries(&dir.join("holders")).next() {
        return Some(format!("device {}", name(&holder)));
    }
    over_file(&node)
}

/// Where a device is mounted. Some file systems (btrfs) have device numbers of their own, so it
/// goes by the source as well.
fn mount_of(number: &str, node: &Path) -> Option<String> {
    let text = fs::read_to_string("/proc/self/mountinfo").ok()?;
    text.lines().find_map(|line| {
        let (left, right) = line.split_once(" - ")?;
        let mut left = left.split(' ').skip(2);
        let own = left.next()? == number;
        let point = left.nth(1)?;
        let source = right.split(' ').nth(1)?;
        (own || Path::new(source) == node).then(|| point.replace("\\040", " "))
    })
}

/// The devices and files that the kernel swaps to.
fn swaps() -> impl Iterator<Item = PathBuf> {
    let text = fs::read_to_string("/proc/swaps").unwrap_or_default();
    let first = |l: &str| l.split_whitespace().next().map(|s| s.replace("\\040", " "));
    text.lines().skip(1).filter_map(first).map(PathBuf::from).collect::<Vec<_>>().into_iter()
}

/// Whether a path is a block device whose number satisfies `is_it`.
fn is_node(path: &Path, is_it: impl Fn(u64) -> bool) -> bool {
    let dev = path.starts_with("/dev").then(|| fs::metadata(path).ok()).flatten();
    dev.is_some_and(|m| m.file_type().is_block_device() && is_it(m.rdev()))
}

/// A process that has something open whose link satisfies `is_it`: another one if possible, or this
/// one with at least `own` descriptors.
fn process(own: usize, is_it: impl Fn(&Path) -> bool) -> Option<String> {
    let count = |dir: &Path| {
        let links = entries(&dir.join("fd")).filter_map(|fd| fs::read_link(fd).ok());
        links.filter(|link| is_it(link)).count()
    };
    let me = std::process::id();
    let other = entries(Path::new("/proc")).find_map(|dir| {
        let pid = name(&dir).parse::<u32>().ok().filter(|pid| *pid != me)?;
        let comm = sysfs::line(&dir.join("comm")).unwrap_or_else(|| "?".to_owned());
        (count(&dir) > 0).then(|| format!("process {pid} ({comm})"))
    });
    let twice = || "given twice to this command".to_owned();
    other.or_else(|| (count(Path::new("/proc/self")) >= own).then(twice))
}

//! Finds the holder that keeps a drive from being opened: a mount, swap, a stacked device, a
//! volume, a process. For error texts.
//!
//! Invariant: this module looks only at `/proc`, `/sys` and device nodes, so that a dead file
//! server cannot stop the search. Best effort: other users' processes and other mount namespaces
//! may stay unseen.

use super::mounts::{MountEntry, mount_of, mounts};
use super::swap_areas::swaps;
use super::sysfs::{self, entries, name};
use crate::kernel_text::kernel_text;
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// What holds the block device `number`, one of its partitions, or the disk that it is a part of,
/// in words: `mounted on /mnt`, `swap`, `device dm-0`, ``volume `data` (process 123)``, `process
/// 123 (fio)`.
pub(super) fn of_device(number: u64) -> Option<String> {
    let mut numbers = vec![number];
    if let Some(dir) = sysfs::dir_of(number) {
        let parts = entries(&dir).filter(|d| sysfs::is_partition(d));
        numbers.extend(parts.filter_map(|d| sysfs::number_in(&d)));
        if sysfs::is_partition(&dir) {
            numbers.extend(dir.parent().and_then(sysfs::number_in));
        }
    }
    let mounts = mounts();
    let stacked = numbers.iter().find_map(|n| claim_on(*n, &mounts));
    stacked.or_else(|| {
        // Nodes may be anywhere.
        let answers = |link: &Path| mount_of(&mounts, link).is_some_and(MountEntry::is_local);
        process(1, |link| answers(link) && is_node(link, |found| numbers.contains(&found)))
    })
}

/// The holder of bytes of a regular file with the canonical name `file`: swap, or a process.
pub(super) fn of_file(file: &Path, inode: u64, bytes: &Range<u64>) -> Option<String> {
    if is_swap(file) {
        return Some("swap".to_owned());
    }
    // This process has one descriptor of the file open already: that of the caller.
    lock_on(file, inode, bytes).or_else(|| process(2, |link| link == file))
}

/// Whether the kernel swaps to a file.
pub(super) fn is_swap(file: &Path) -> bool {
    swaps().iter().any(|s| s == file)
}

/// The process that has a lock on bytes of a file, under any name of it.
pub(super) fn lock_on(file: &Path, inode: u64, bytes: &Range<u64>) -> Option<String> {
    let mounts = mounts();
    let (major, minor) = mount_of(&mounts, file)?.device;
    let place = format!("{major:02x}:{minor:02x}:{inode}");
    let holds = |info: &str| info.lines().any(|line| is_lock(line, &place, bytes));
    let has = |dir: &Path| {
        entries(&dir.join("fdinfo")).filter(|fd| fs::read_to_string(fd).is_ok_and(|i| holds(&i)))
    };
    let me = std::process::id();
    let all = entries(Path::new("/proc")).filter_map(|dir| Some((name(&dir).parse().ok()?, dir)));
    let other = all.filter(|(pid, _): &(u32, _)| *pid != me);
    let other = other.filter(|(_, dir)| has(dir).next().is_some()).map(|(pid, _)| in_words(pid));
    let twice = || has(Path::new("/proc/self")).next().map(|_| TWICE.to_owned());
    other.into_iter().next().or_else(twice)
}

/// The holder if that is this process.
const TWICE: &str = "given twice to this command";

/// Whether a line of `fdinfo` is a lock on bytes there: `lock: 1: OFDLCK ADVISORY WRITE -1
/// fe:01:1234 0 EOF`.
fn is_lock(line: &str, place: &str, bytes: &Range<u64>) -> bool {
    let mut words = line.split_whitespace();
    if words.next() != Some("lock:") {
        return false;
    }
    let mut words = words.skip_while(|word| *word != place).skip(1);
    let from = words.next().and_then(|word| word.parse::<u64>().ok());
    // The line has the last byte, not the one behind it.
    let to = words.next().map(|word| word.parse::<u64>().map_or(u64::MAX, |n| n.saturating_add(1)));
    matches!((from, to), (Some(from), Some(to)) if from < bytes.end && bytes.start < to)
}

/// The kernel's own use of a device: a mount, swap, a stacked device, or a loop device.
fn claim_on(number: u64, mounts: &[MountEntry]) -> Option<String> {
    let dir = sysfs::dir_of(number)?;
    let node = sysfs::node_of(&dir);
    // Some file systems (btrfs) have device numbers of their own, so the source counts as well.
    let own = (rustix::fs::major(number), rustix::fs::minor(number));
    if let Some(mount) = mounts.iter().find(|m| m.device == own || m.source == node) {
        return Some(format!("mounted on {}", mount.point.display()));
    }
    let same = |s: &Path| s.starts_with("/dev") && is_node(s, |found| found == number);
    if swaps().iter().any(|s| *s == node || same(s)) {
        return Some("swap".to_owned());
    }
    if let Some(holder) = entries(&dir.join("holders")).next() {
        return Some(format!("device {}", name(&holder)));
    }
    let mut disks = entries(Path::new("/sys/block"));
    let above = disks.find(|d| sysfs::loop_file(d).is_some_and(|f| f == node))?;
    // The user of that loop device says more.
    let further = sysfs::number_in(&above).and_then(of_device);
    further.or_else(|| Some(format!("loop device {}", sysfs::node_of(&above).display())))
}

/// Whether a path is a block device whose number satisfies `is_it`.
fn is_node(path: &Path, is_it: impl Fn(u64) -> bool) -> bool {
    fs::metadata(path).is_ok_and(|m| m.file_type().is_block_device() && is_it(m.rdev()))
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
        (count(&dir) > 0).then(|| in_words(pid))
    });
    other.or_else(|| (count(Path::new("/proc/self")) >= own).then(|| TWICE.to_owned()))
}

/// A process in words: a daemon by the volume that it serves.
fn in_words(pid: u32) -> String {
    let dir = PathBuf::from(format!("/proc/{pid}"));
    let line = kernel_text(dir.join("cmdline")).unwrap_or_default();
    if let Some(volume) = volume_of(&line) {
        return format!("volume `{volume}` (process {pid})");
    }
    format!("process {pid} ({})", process_name(&dir).unwrap_or_else(|| "?".to_owned()))
}

/// The name of a process, from its directory in `/proc`. The process may have chosen it: any bytes.
pub fn process_name(proc_dir: &Path) -> Option<String> {
    let name = fs::read(proc_dir.join("comm")).ok()?;
    let name = String::from_utf8_lossy(name.strip_suffix(b"\n").unwrap_or(&name));
    Some(name.into_owned())
}

/// The volume of a daemon with this command line.
fn volume_of(line: &str) -> Option<&str> {
    let mut words = line.split('\0');
    let program = Path::new(words.next()?).file_name()?;
    let (command, name) = (words.next()?, words.next()?);
    let daemon = program == "ztier" && ["daemon", "up"].contains(&command);
    // Other processes choose their command lines freely.
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    (daemon && !name.starts_with('-') && !name.is_empty() && name.chars().all(plain))
        .then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_daemon_is_called_by_its_volume() {
        assert_eq!(volume_of("ztier\0daemon\0data\0"), Some("data"));
        assert_eq!(volume_of("/usr/bin/ztier\0up\0data\0--foreground\0"), Some("data"));
        let others =
            ["ztier\0up\0--size\x001G\0", "fio\0daemon\0data\0", "ztier\0daemon\0\x1b[2J\0"];
        for line in ["", "ztier\0"].into_iter().chain(others) {
            assert_eq!(volume_of(line), None, "{line:?}");
        }
    }

    #[test]
    fn a_lock_is_one_on_these_bytes_of_this_file() {
        let lock = |range: &str| format!("lock:\t1: OFDLCK ADVISORY  WRITE -1 fe:01:1234 {range}");
        let of = |line: &str, bytes| is_lock(line, "fe:01:1234", &bytes);
        assert!(of(&lock("0 EOF"), 0..u64::MAX) && of(&lock("0 EOF"), 4096..8192));
        assert!(of(&lock("4096 8191"), 8191..u64::MAX) && !of(&lock("4096 8191"), 8192..u64::MAX));
        assert!(!of(&lock("4096 8191"), 0..4096));
        assert!(!is_lock(&lock("0 EOF"), "fe:01:123", &(0..1)));
        assert!(!of("pos:\t0", 0..1) && !of("", 0..1) && !of("lock:", 0..1));
    }
}

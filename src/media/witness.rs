//! What shows that nobody has written to a drive since we let go of it.
//!
//! The content of a drive can't be compared without reading it. But within one boot the kernel
//! counts what is written to a block device, and notes when a file was changed. A witness is a
//! number that stands for all of that: if it is the same later, nothing was written. Invariants:
//! where something is not known for certain there is no witness; so there is none of drives that
//! other machines can write to, of files on file systems that do not tell all changes, and across
//! a boot, because what was noted before a crash may have been lost while what was written was not.

use super::buffer::Buffer;
use super::drive::{ALIGN, Drive};
use super::file_drive::FileDrive;
use super::sysfs;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// File systems that note each change of a file at once, also one through mapped memory: ext2 to 4,
/// XFS, btrfs and F2FS, by their numbers.
const NOTING: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
/// A file that was changed less than this ago could be changed again without that being noted: the
/// kernel's clock for it ticks at least each 10 ms.
const TICKS: Duration = Duration::from_millis(50);
/// Names of devices that another machine may write to.
const SHARED: [&str; 3] = ["nbd", "rbd", "drbd"];
/// Parts of the path of such a device: iSCSI, Fibre Channel.
const SHARED_WAYS: [&str; 2] = ["/session", "/rport-"];
/// Devices that lie above each other, at most.
const DEEP: u32 = 8;
/// Times that counters are read, until they stand still.
const TRIES: u32 = 5;

/// The witness of a drive that has nothing to write any more; `None`: nothing would show a change.
/// Waits a moment if the drive was changed just now.
#[must_use]
pub fn witness(drive: &FileDrive) -> Option<u64> {
    let boot = sysfs::line(Path::new("/proc/sys/kernel/random/boot_id"))?;
    let text = match drive.device_number() {
        None => of_file(&fs::File::from(drive.reopen().ok()?))?,
        Some(number) => {
            let dir = sysfs::dir_of(number)?;
            if sysfs::loop_file(disk_of(&dir)).is_none() && !counts(drive, &dir) {
                return None;
            }
            of_device(&dir, DEEP)?
        }
    };
    // 0 means that there is none.
    Some(crc_fast::crc64_nvme(format!("{boot} {} {text}", drive.size()).as_bytes()).max(1))
}

/// What a file is, and when it was changed.
fn of_file(file: &fs::File) -> Option<String> {
    if !NOTING.contains(&(rustix::fs::fstatfs(file).ok()?.f_type as u64)) {
        return None;
    }
    let found = || {
        let stat = file.metadata().ok()?;
        // A file system that notes seconds is no witness.
        let fine = stat.ctime_nsec() != 0 && stat.mtime_nsec() != 0;
        fine.then_some(stat)
    };
    let changed = Duration::new(found()?.ctime() as u64, found()?.ctime_nsec() as u32);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    // A clock that was put back says nothing.
    let ago = now.checked_sub(changed)?;
    std::thread::sleep(TICKS.saturating_sub(ago));
    let stat = found()?;
    let disk = sysfs::dir_of(stat.dev()).map(|dir| sequence(&dir)).unwrap_or_default();
    Some(format!(
        "file {} {} {} {}.{} {}.{} {disk}",
        stat.dev(),
        stat.ino(),
        stat.size(),
        stat.mtime(),
        stat.mtime_nsec(),
        stat.ctime(),
        stat.ctime_nsec()
    ))
}

/// Which of the disks it is that there were since the boot.
fn sequence(dir: &Path) -> String {
    sysfs::line(&disk_of(dir).join("diskseq")).unwrap_or_default()
}

/// The disk that a device is, or is a partition of.
fn disk_of(dir: &Path) -> &Path {
    if sysfs::is_partition(dir) { dir.parent().unwrap_or(dir) } else { dir }
}

/// What was written to a device so far, and to those below it.
fn of_device(dir: &Path, deep: u32) -> Option<String> {
    let path = dir.to_string_lossy();
    let name = sysfs::name(dir);
    let shared = SHARED.iter().any(|kind| name.starts_with(kind))
        || SHARED_WAYS.iter().any(|way| path.contains(way));
    if shared || deep == 0 {
        return None;
    }
    let disk = disk_of(dir);
    if let Some(file) = sysfs::loop_file(disk) {
        return of_file(&fs::File::open(file).ok()?);
    }
    if sysfs::line(&disk.join("queue/iostats"))? != "1" {
        return None;
    }
    let seq = sysfs::line(&disk.join("diskseq"))?;
    let mut text = format!("device {path} {seq} {:?}", written(dir)?);
    if disk != dir {
        text += &format!(" past it {:?}", past_partitions(disk)?);
    }
    for below in sysfs::entries(&disk.join("slaves")) {
        text += &format!(" over {}", of_device(&fs::canonicalize(below).ok()?, deep - 1)?);
    }
    Some(text)
}

/// Writes, sectors of them, discards, sectors of those.
fn written(dir: &Path) -> Option<[u64; 4]> {
    let all = numbers(dir)?;
    Some([*all.get(4)?, *all.get(6)?, *all.get(11)?, *all.get(13)?])
}

fn numbers(dir: &Path) -> Option<Vec<u64>> {
    let line = sysfs::line(&dir.join("stat"))?;
    line.split_whitespace().map(|number| number.parse().ok()).collect()
}

/// What was written to a disk and not to one of its partitions.
fn past_partitions(disk: &Path) -> Option<[i64; 4]> {
    let once = || {
        let mut past = written(disk)?.map(u64::cast_signed);
        for part in sysfs::entries(disk).filter(|dir| sysfs::is_partition(dir)) {
            for (past, part) in past.iter_mut().zip(written(&part)?) {
                *past -= part.cast_signed();
            }
        }
        Some(past)
    };
    let mut last = once()?;
    for _ in 0..TRIES {
        let now = once()?;
        if now == last {
            return Some(now);
        }
        last = now;
    }
    None
}

/// Whether the kernel counts what is asked of a device.
fn counts(drive: &FileDrive, dir: &Path) -> bool {
    let read = || numbers(dir).and_then(|all| all.get(2).copied());
    let before = read();
    let asked = drive.is_direct() && drive.read(0, &mut Buffer::new(ALIGN)).is_ok();
    asked && before.zip(read()).is_some_and(|(before, after)| after > before)
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::media::Access;
    use std::os::unix::fs::FileExt;

    fn of(path: &Path) -> Option<u64> {
        witness(&FileDrive::open(path, Access::ReadOnly).unwrap())
    }

    #[test]
    fn a_file_that_was_changed_has_another_witness() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        let file = fs::File::create(&path).unwrap();
        file.write_all_at(&[1; 8192], 0).unwrap();
        let Some(first) = of(&path) else {
            eprintln!("skipped: this file system tells nothing of changes");
            return;
        };
        assert_eq!(of(&path), Some(first));
        fs::read(&path).unwrap();
        assert_eq!(of(&path), Some(first), "reading changes nothing");
        // At once, and the same bytes.
        file.write_all_at(&[1], 8191).unwrap();
        let second = of(&path);
        assert!(second.is_some() && second != Some(first));
        // Whoever sets the times back changes the file, too.
        let times = fs::FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_millis(1));
        file.set_times(times).unwrap();
        assert!(of(&path).is_some() && of(&path) != second);
    }

    /// A directory like the kernel's for a device, with reads, writes, and discards so far.
    fn device(dir: &Path, counts: [u64; 3]) {
        let [reads, writes, discards] = counts;
        let (read, written, gone) = (reads * 8, writes * 8, discards * 2048);
        let stat = format!(
            "{reads:>8} 0 {read} 12 {writes} 0 {written} 34 0 7 50 {discards} 0 {gone} 4 3 1\n"
        );
        fs::create_dir_all(dir.join("queue")).unwrap();
        fs::write(dir.join("stat"), stat).unwrap();
        fs::write(dir.join("queue/iostats"), "1\n").unwrap();
        fs::write(dir.join("diskseq"), "9\n").unwrap();
    }

    #[test]
    fn whatever_is_written_to_a_device_shows_in_its_counters() {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("sda");
        device(&dir, [100, 50, 5]);
        let before = of_device(&dir, DEEP);
        assert!(before.is_some());
        device(&dir, [200, 50, 5]);
        assert_eq!(of_device(&dir, DEEP), before, "reading changes nothing");
        for changed in [[100, 51, 5], [100, 50, 6]] {
            device(&dir, changed);
            assert_ne!(of_device(&dir, DEEP), before, "{changed:?}");
        }
        device(&dir, [100, 50, 5]);
        fs::write(dir.join("diskseq"), "10\n").unwrap();
        assert_ne!(of_device(&dir, DEEP), before, "another disk in the same place");
    }

    #[test]
    fn a_partition_shows_what_was_written_past_it_and_nothing_of_its_neighbours() {
        let root = tempfile::tempdir().unwrap();
        let disk = root.path().join("sda");
        let (one, two) = (disk.join("sda1"), disk.join("sda2"));
        // What is written to a partition counts for its disk, too.
        let counts = |[first, second, past]: [u64; 3]| {
            device(&disk, [0, first + second + past, 0]);
            device(&one, [0, first, 0]);
            device(&two, [0, second, 0]);
            fs::write(one.join("partition"), "1\n").unwrap();
            fs::write(two.join("partition"), "2\n").unwrap();
            of_device(&one, DEEP)
        };
        let before = counts([10, 20, 3]);
        assert!(before.is_some());
        assert_eq!(counts([10, 25, 3]), before, "the neighbour");
        assert_ne!(counts([11, 20, 3]), before);
        assert_ne!(counts([10, 20, 4]), before, "past its partitions");
    }

    #[test]
    fn what_lies_below_a_device_is_part_of_its_witness() {
        let root = tempfile::tempdir().unwrap();
        let (above, below) = (root.path().join("dm-0"), root.path().join("sda"));
        device(&above, [0, 5, 0]);
        device(&below, [0, 7, 0]);
        fs::create_dir(above.join("slaves")).unwrap();
        std::os::unix::fs::symlink(&below, above.join("slaves/sda")).unwrap();
        let before = of_device(&above, DEEP);
        assert!(before.is_some());
        device(&below, [0, 8, 0]);
        assert_ne!(of_device(&above, DEEP), before, "written to past the one above");
        assert_eq!(of_device(&above, 1), None, "deeper than is looked");
    }

    #[test]
    fn a_device_that_does_not_tell_all_has_no_witness() {
        let root = tempfile::tempdir().unwrap();
        for shared in ["nbd0", "rbd1", "drbd0", "platform/host2/session1/target/sdb", "rport-1/sdc"]
        {
            let dir = root.path().join(shared);
            device(&dir, [1, 1, 1]);
            assert_eq!(of_device(&dir, DEEP), None, "{shared}");
        }
        let dir = root.path().join("sda");
        device(&dir, [1, 1, 1]);
        assert!(of_device(&dir, DEEP).is_some());
        fs::write(dir.join("queue/iostats"), "0\n").unwrap();
        assert_eq!(of_device(&dir, DEEP), None, "nothing is counted");
        device(&dir, [1, 1, 1]);
        fs::remove_file(dir.join("diskseq")).unwrap();
        assert_eq!(of_device(&dir, DEEP), None, "a kernel that does not number disks");
        device(&dir, [1, 1, 1]);
        fs::write(dir.join("stat"), "1 2 3\n").unwrap();
        assert_eq!(of_device(&dir, DEEP), None, "a kernel that does not count discards");
    }
}

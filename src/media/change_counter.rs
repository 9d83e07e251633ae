//! Change counters: whether a drive was written to since the last volume on it went down.
//!
//! Comparing the content would mean to read all of it. But within one boot the kernel counts the
//! sectors that are written to a block device, and notes when a file was changed. A change counter
//! gives two answers, and neither is the negation of the other:
//!
//! - *sure*: nothing was written, also not past the device or through mapped memory. Given only
//!   where that is certain: not for drives that other machines may write to, nor for files on file
//!   systems that do not note every change.
//! - *changed*: this drive was written to. Given only where nothing else explains it: a stacked
//!   device goes by its own counters, a file by the time of its content, not of its inode.
//!
//! Invariant: after a reboot, or on another drive, it gives neither answer: a crash may lose a
//! time stamp and keep the write.

use super::buffer::Buffer;
use super::drive::{ALIGN, Drive};
use super::file_drive::FileDrive;
use super::layers::Base;
use super::sysfs::{self, disk_of};
use std::fs;
use std::iter;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// File systems that note each change of a file at once, also one through mapped memory: ext2 to 4,
/// XFS, btrfs and F2FS, by their numbers.
const NOTING: [u64; 4] = [0xef53, 0x5846_5342, 0x9123_683e, 0xf2f5_2010];
/// Other local file systems, on which a changed time means a write, but not every write changes it:
/// tmpfs, overlayfs.
const TELLING: [u64; 2] = [0x0102_1994, 0x794c_7630];
/// A file that was changed less than this ago could be changed again without that being noted: the
/// kernel's clock for it ticks at least each 10 ms.
const TICKS: Duration = Duration::from_millis(50);
/// Buses of SCSI adapters; those of SATA are ports. Not FireWire, which takes several machines, nor
/// the kernel's own target.
const BUSES: [&str; 5] = ["pci", "platform", "usb", "virtio", "vmbus"];
/// The most devices that are stacked above each other.
const DEEP: u32 = 8;
/// How often counters are read, at most, until two readings are equal.
const TRIES: u32 = 5;

/// The change counters of a drive at one moment, each as a checksum of a text; 0: unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ChangeCounter {
    /// The boot, and the object whose changes are counted.
    pub scope: u64,
    /// Equal only if nothing was written.
    pub sure: u64,
    /// Different, in the same scope, only if something was written.
    pub written: u64,
}

impl ChangeCounter {
    /// The counters of a drive. Waits up to 50 ms if the drive was changed just now.
    #[must_use]
    pub fn of(drive: &FileDrive) -> Self {
        let Some(boot) = sysfs::line(Path::new("/proc/sys/kernel/random/boot_id")) else {
            return Self::default();
        };
        let sure = sure(drive).map(|text| format!("{} {text}", drive.size()));
        let (scope, written) = changes(drive).unzip();
        Self {
            scope: number(&boot, scope),
            sure: number(&boot, sure),
            written: number(&boot, written),
        }
    }

    /// Whether it is certain that nothing was written between the two.
    #[must_use]
    pub fn is_sure(&self, now: &Self) -> bool {
        self.sure != 0 && self.sure == now.sure
    }

    /// Whether it is certain that something was written between the two.
    #[must_use]
    pub fn is_changed(&self, now: &Self) -> bool {
        let counted = self.written != 0 && now.written != 0;
        counted && self.scope != 0 && self.scope == now.scope && self.written != now.written
    }
}

fn number(boot: &str, text: Option<String>) -> u64 {
    // 0 means that there is none.
    text.map_or(0, |text| crc_fast::crc64_nvme(format!("{boot} {text}").as_bytes()).max(1))
}

/// The text behind [`ChangeCounter::sure`].
fn sure(drive: &FileDrive) -> Option<String> {
    let Some(number) = drive.device_number() else {
        return of_file(&fs::File::from(drive.reopen().ok()?));
    };
    let dir = sysfs::dir_of(number)?;
    if sysfs::loop_file(disk_of(&dir)).is_none() && !counts(drive, &dir) {
        return None;
    }
    of_device(&dir, DEEP)
}

/// The texts behind [`ChangeCounter::scope`] and [`ChangeCounter::written`].
fn changes(drive: &FileDrive) -> Option<(String, String)> {
    let lowest = drive.layers().last()?;
    let is_file = matches!(lowest.base, Base::File(..)) && lowest.bytes == (0..u64::MAX);
    if is_file && !lowest.shared {
        let file = match drive.device_number() {
            None => fs::File::from(drive.reopen().ok()?),
            Some(_) => fs::File::open(&lowest.name).ok()?,
        };
        return file_changes(&file, lowest.base);
    }
    // Other programs may write to other parts of a file, a disk, or a member of a stacked device.
    device_changes(&sysfs::dir_of(drive.device_number()?)?)
}

fn file_changes(file: &fs::File, base: Base) -> Option<(String, String)> {
    let kind = rustix::fs::fstatfs(file).ok()?.f_type as u64;
    let found = || {
        let stat = file.metadata().ok()?;
        (Base::File(stat.dev(), stat.ino()) == base).then_some(stat)
    };
    if !NOTING.contains(&kind) && !TELLING.contains(&kind) {
        return None;
    }
    let stat = found()?;
    settle(stat.mtime(), stat.mtime_nsec());
    let stat = found()?;
    let scope = format!("file {} {}", stat.dev(), stat.ino());
    Some((scope, format!("{} {}.{}", stat.size(), stat.mtime(), stat.mtime_nsec())))
}

fn device_changes(dir: &Path) -> Option<(String, String)> {
    // Not the counters of the rest of the disk: under load they cannot be read at one moment.
    Some((format!("device {} {}", dir.display(), life(dir)?), format!("{:?}", written(dir)?)))
}

/// Changes when counters start again at 0: with the disk, the partition, or its neighbours. `None`
/// if the counters do not cover every change.
fn life(dir: &Path) -> Option<String> {
    let disk = disk_of(dir);
    let zoned = sysfs::line(&disk.join("queue/zoned"));
    // Zones are reset without a sector being written.
    let counts = zoned.is_none_or(|kind| kind == "none");
    if !counts || sysfs::line(&disk.join("queue/iostats"))? != "1" {
        return None;
    }
    let mut text = sysfs::line(&disk.join("diskseq"))?;
    if disk != dir {
        let parts = sysfs::entries(disk).filter(|dir| sysfs::is_partition(dir));
        let mut inodes: Vec<_> = parts.map(|dir| Some(fs::metadata(dir).ok()?.ino())).collect();
        inodes.sort_unstable();
        text += &format!(" {inodes:?}");
    }
    Some(text)
}

/// The counters of a device; for a partition, also of the rest of its disk.
fn own_changes(dir: &Path) -> Option<String> {
    let mut text = format!("{:?}", written(dir)?);
    if disk_of(dir) != dir {
        text += &format!(" past it {:?}", past_partitions(disk_of(dir))?);
    }
    Some(text)
}

/// Waits until the next change of a file will have a later time than the last one.
fn settle(seconds: i64, nanoseconds: i64) -> Option<()> {
    let changed = Duration::new(seconds as u64, nanoseconds as u32);
    let now = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    // A clock that was put back says nothing.
    std::thread::sleep(TICKS.saturating_sub(now.checked_sub(changed)?));
    Some(())
}

/// The file's numbers, size and times.
fn of_file(file: &fs::File) -> Option<String> {
    if !NOTING.contains(&(rustix::fs::fstatfs(file).ok()?.f_type as u64)) {
        return None;
    }
    let found = || {
        let stat = file.metadata().ok()?;
        // A file system that notes only seconds has no change counter.
        let fine = stat.ctime_nsec() != 0 && stat.mtime_nsec() != 0;
        fine.then_some(stat)
    };
    settle(found()?.ctime(), found()?.ctime_nsec())?;
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

/// The number of the disk among all disks since the boot.
fn sequence(dir: &Path) -> String {
    sysfs::line(&disk_of(dir).join("diskseq")).unwrap_or_default()
}

/// The counters of a device and of those below it.
fn of_device(dir: &Path, deep: u32) -> Option<String> {
    if deep == 0 {
        return None;
    }
    let disk = disk_of(dir);
    if let Some(file) = sysfs::loop_file(disk) {
        return of_file(&fs::File::open(file).ok()?);
    }
    if !is_own(disk) {
        return None;
    }
    let mut text = format!("device {} {} {}", dir.display(), life(dir)?, own_changes(dir)?);
    for below in sysfs::entries(&disk.join("slaves")) {
        text += &format!(" over {}", of_device(&fs::canonicalize(below).ok()?, deep - 1)?);
    }
    Some(text)
}

/// Whether only this machine writes to a disk, as its bus tells. Only known buses are trusted:
/// disks on any network have counters, too, and those count what this machine writes.
fn is_own(disk: &Path) -> bool {
    let device = disk.join("device");
    match kind(&device).as_deref() {
        // What a hypervisor gives is as good as a disk: the hypervisor decides which machines may
        // write to it.
        Some("virtio" | "xen" | "mmc") => true,
        Some("scsi") => has_own_adapter(&device).unwrap_or(false),
        Some("nvme") => are_pcie(iter::once(device)),
        // The paths to the drive are below the subsystem: all of them count.
        Some("nvme-subsystem") => {
            are_pcie(sysfs::entries(&device).filter(|dir| kind(dir).as_deref() == Some("nvme")))
        }
        Some(_) => false,
        // The members of a stacked device are checked themselves. Other devices keep their data
        // elsewhere, or in memory, which they empty without a write.
        None => {
            let stacked = ["dm", "md"].iter().any(|kind| disk.join(kind).exists());
            stacked && sysfs::entries(&disk.join("slaves")).next().is_some()
        }
    }
}

/// The bus or class of a device.
fn kind(device: &Path) -> Option<String> {
    Some(sysfs::name(&fs::read_link(device.join("subsystem")).ok()?))
}

/// Whether a SCSI device is directly below an adapter without a transport. With iSCSI and Fibre
/// Channel there is a session or a remote port between them, with SAS an end device, which may be
/// in an enclosure of several machines; for SRP, only the adapter shows the transport.
fn has_own_adapter(device: &Path) -> Option<bool> {
    let device = fs::canonicalize(device).ok()?;
    let host = device.ancestors().nth(2)?;
    let bus = host.parent()?;
    let plugged = sysfs::name(bus).starts_with("ata") || BUSES.contains(&kind(bus)?.as_str());
    let mut ways = sysfs::entries(host).filter(|dir| sysfs::name(dir).ends_with("_host"));
    let plain = ways.next().is_some_and(|way| sysfs::name(&way) == "scsi_host");
    Some(sysfs::name(host).starts_with("host") && plugged && plain && ways.next().is_none())
}

/// Whether all NVMe controllers, at least one, are in this machine: any other is on some network.
fn are_pcie(controllers: impl Iterator<Item = PathBuf>) -> bool {
    let mut ways = controllers.map(|dir| sysfs::line(&dir.join("transport"))).peekable();
    ways.peek().is_some() && ways.all(|way| way.as_deref() == Some("pcie"))
}

/// Sectors written, and sectors discarded. Not the number of writes: a flush counts as a write of
/// no sectors.
fn written(dir: &Path) -> Option<[u64; 2]> {
    let all = numbers(dir)?;
    Some([*all.get(6)?, *all.get(13)?])
}

fn numbers(dir: &Path) -> Option<Vec<u64>> {
    let line = sysfs::line(&dir.join("stat"))?;
    line.split_whitespace().map(|number| number.parse().ok()).collect()
}

/// Sectors written and discarded on a disk outside of its partitions.
fn past_partitions(disk: &Path) -> Option<[i64; 2]> {
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

/// Whether the kernel counts requests to a device; a read of one block tells.
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
    use std::os::unix::fs::{FileExt, PermissionsExt, symlink};

    fn of(path: &Path) -> Option<u64> {
        let counter = ChangeCounter::of(&FileDrive::open(path, Access::ReadOnly).unwrap());
        (counter.sure != 0).then_some(counter.sure)
    }

    #[test]
    fn a_file_that_was_changed_has_another_change_counter() {
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
        // Setting the times back changes the file, too.
        let times = fs::FileTimes::new().set_modified(UNIX_EPOCH + Duration::from_millis(1));
        file.set_times(times).unwrap();
        assert!(of(&path).is_some() && of(&path) != second);
    }

    #[test]
    fn a_file_is_changed_by_what_is_written_and_not_by_its_name_mode_or_owner() {
        for dir in [tempfile::tempdir(), tempfile::tempdir_in("/dev/shm")].into_iter().flatten() {
            let (path, other) = (dir.path().join("a"), dir.path().join("b"));
            let file = fs::File::create(&path).unwrap();
            file.write_all_at(&[1; 8192], 0).unwrap();
            let of =
                |path: &Path| ChangeCounter::of(&FileDrive::open(path, Access::ReadOnly).unwrap());
            let first = of(&path);
            if first.written == 0 {
                eprintln!("skipped: this file system tells nothing of changes");
                continue;
            }
            fs::read(&path).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
            fs::rename(&path, &other).unwrap();
            fs::hard_link(&other, &path).unwrap();
            assert!(!first.is_changed(&of(&other)) && !first.is_changed(&of(&path)));
            // At once, and the same bytes.
            file.write_all_at(&[1], 8191).unwrap();
            let second = of(&path);
            assert!(first.is_changed(&second) && !first.is_sure(&second));
            file.set_len(12288).unwrap();
            assert!(second.is_changed(&of(&path)));
            // A copy is another file.
            fs::copy(&other, dir.path().join("c")).unwrap();
            assert!(!second.is_changed(&of(&dir.path().join("c"))));
        }
    }

    #[test]
    fn a_device_is_changed_by_what_is_counted_on_itself() {
        let root = tempfile::tempdir().unwrap();
        let (above, below) = (root.path().join("dm-0"), root.path().join("sda"));
        device(&below, [0, 7, 0]);
        stack(&above, "dm", &[&below]);
        let of = |dir: &Path| {
            let (scope, written) = device_changes(dir).unwrap();
            ChangeCounter {
                scope: number("b", Some(scope)),
                sure: 0,
                written: number("b", Some(written)),
            }
        };
        let before = of(&above);
        // A write to a sibling on the same disk.
        device(&below, [0, 8, 0]);
        assert!(!before.is_changed(&of(&above)));
        counted(&above, [9, 5, 0]);
        assert!(!before.is_changed(&of(&above)), "reading changes nothing");
        for changed in [[0, 6, 0], [0, 5, 1]] {
            counted(&above, changed);
            assert!(before.is_changed(&of(&above)), "{changed:?}");
        }
        // A partition that was removed and added again starts at 0.
        let (disk, part) = (root.path().join("vda"), root.path().join("vda/vda1"));
        device(&disk, [0, 30, 0]);
        let make = |written: u64| {
            counted(&part, [0, written, 0]);
            fs::write(part.join("partition"), "1\n").unwrap();
            of(&part)
        };
        let one = make(10);
        assert!(one.is_changed(&make(11)));
        fs::rename(&part, disk.join("away")).unwrap();
        let again = make(0);
        fs::remove_dir_all(disk.join("away")).unwrap();
        assert!(!one.is_changed(&again));
        // A device with the same name is another one.
        fs::write(above.join("diskseq"), "10\n").unwrap();
        assert!(!before.is_changed(&of(&above)));
        fs::write(above.join("queue/iostats"), "0\n").unwrap();
        assert_eq!(device_changes(&above), None);
    }

    /// A directory like the kernel's for a virtual machine's disk.
    fn device(dir: &Path, counts: [u64; 3]) {
        counted(dir, counts);
        put_on(&dir.join("device"), "virtio");
    }

    /// A directory of a device that is on a bus, or in a class.
    fn put_on(dir: &Path, kind: &str) {
        fs::create_dir_all(dir).unwrap();
        let link = dir.join("subsystem");
        if !link.is_symlink() {
            symlink(Path::new("/sys/bus").join(kind), link).unwrap();
        }
    }

    /// A directory like the kernel's for a disk of no kind, with reads, writes, and discards so
    /// far.
    fn counted(dir: &Path, counts: [u64; 3]) {
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
        // A flush is counted as a write, of nothing.
        let flushed = |dir: &Path| {
            let stat = fs::read_to_string(dir.join("stat")).unwrap();
            let flushed = stat.replace(" 50 0 ", " 51 0 ");
            assert_ne!(stat, flushed);
            fs::write(dir.join("stat"), flushed).unwrap();
        };
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("sda");
        device(&dir, [100, 50, 5]);
        let before = of_device(&dir, DEEP);
        assert!(before.is_some());
        device(&dir, [200, 50, 5]);
        assert_eq!(of_device(&dir, DEEP), before, "reading changes nothing");
        flushed(&dir);
        assert_eq!(of_device(&dir, DEEP), before, "flushing changes nothing");
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

    /// A device of the device mapper, or of md, above others.
    fn stack(above: &Path, kind: &str, below: &[&Path]) {
        counted(above, [0, 5, 0]);
        fs::create_dir(above.join(kind)).unwrap();
        fs::create_dir(above.join("slaves")).unwrap();
        for dir in below {
            symlink(dir, above.join("slaves").join(sysfs::name(dir))).unwrap();
        }
    }

    #[test]
    fn what_lies_below_a_device_is_part_of_its_change_counter() {
        let root = tempfile::tempdir().unwrap();
        let (above, below) = (root.path().join("dm-0"), root.path().join("sda"));
        device(&below, [0, 7, 0]);
        stack(&above, "dm", &[&below]);
        let before = of_device(&above, DEEP);
        assert!(before.is_some());
        device(&below, [0, 8, 0]);
        assert_ne!(of_device(&above, DEEP), before, "written to past the one above");
        assert_eq!(of_device(&above, 1), None, "deeper than is looked");
    }

    #[test]
    fn a_device_that_does_not_tell_all_has_no_change_counter() {
        let root = tempfile::tempdir().unwrap();
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
        device(&dir, [1, 1, 1]);
        fs::write(dir.join("queue/zoned"), "host-aware\n").unwrap();
        assert_eq!(of_device(&dir, DEEP), None, "zones are reset without a count");
        fs::write(dir.join("queue/zoned"), "none\n").unwrap();
        assert!(of_device(&dir, DEEP).is_some());
    }

    fn has_change_counter(dir: &Path) -> bool {
        of_device(dir, DEEP).is_some()
    }

    #[test]
    fn a_device_has_a_change_counter_only_if_its_kind_is_known() {
        let root = tempfile::tempdir().unwrap();
        for kind in ["virtio", "xen", "mmc", "rbd", "ccw", "nd", "ublk-char", "drbd"] {
            let dir = root.path().join(kind);
            counted(&dir, [1, 1, 1]);
            put_on(&dir.join("device"), kind);
            assert_eq!(
                has_change_counter(&dir),
                ["virtio", "xen", "mmc"].contains(&kind),
                "{kind}"
            );
        }
        for bare in ["nbd0", "rnbd0", "drbd0", "etherd!e0.1", "zd0", "ublkb0", "zram0", "ram0"] {
            let dir = root.path().join(bare);
            counted(&dir, [1, 1, 1]);
            assert!(!has_change_counter(&dir), "{bare}");
        }
    }

    #[test]
    fn a_scsi_disk_has_a_change_counter_only_if_its_adapter_is_alone() {
        // The adapter and its bus, the host's transport, what is between host and target.
        let cases = [
            (true, "0000:00:1f.2/ata1", "ata", "", ""),
            (true, "0000:03:00.0", "pci", "", ""),
            (true, "1d84000.ufshc", "platform", "", ""),
            (true, "usb1/1-1/1-1:1.0", "usb", "", ""),
            (true, "0000:00:04.0/virtio1", "virtio", "", ""),
            (true, "VMBUS:00/f8b3781b", "vmbus", "", ""),
            (false, "platform", "", "iscsi_host", "session1"),
            (false, "0000:04:00.0", "pci", "iscsi_host", "session2"),
            (false, "0000:05:00.0", "pci", "fc_host", "rport-0:0-1"),
            (false, "VMBUS:00/f912ad6d", "vmbus", "fc_host", ""),
            (false, "0000:06:00.0", "pci", "sas_host", "port-0:0/end_device-0:0"),
            (false, "0000:07:00.0", "pci", "sas_host", "port-0:0/expander-0:0/end_device-0:0:1"),
            (false, "0000:08:00.0", "pci", "srp_host", ""),
            (false, "0000:09:00.0", "pci", "", "snic_sas_tgt:0:0-1"),
            (false, "tcm_loop_0/tcm_loop_adapter_0", "tcm_loop_bus", "", ""),
            (false, "fw1/fw1.0", "firewire", "", ""),
        ];
        let root = tempfile::tempdir().unwrap();
        for (own, adapter, bus, transport, between) in cases {
            let adapter = root.path().join(adapter);
            let host = adapter.join("host0");
            if !bus.is_empty() {
                put_on(&adapter, bus);
            }
            fs::create_dir_all(host.join("scsi_host")).unwrap();
            fs::create_dir_all(host.join(transport)).unwrap();
            let device = host.join(between).join("target0:0:0/0:0:0:0");
            put_on(&device, "scsi");
            let disk = device.join("block/sda");
            counted(&disk, [1, 1, 1]);
            symlink("../..", disk.join("device")).unwrap();
            assert_eq!(has_change_counter(&disk), own, "{}", disk.display());
        }
    }

    #[test]
    fn an_nvme_drive_has_a_change_counter_only_if_every_way_to_it_is_in_the_machine() {
        let root = tempfile::tempdir().unwrap();
        let controller = |name: &str, transport: &str| {
            let dir = root.path().join(name);
            put_on(&dir, "nvme");
            fs::write(dir.join("transport"), format!("{transport}\n")).unwrap();
            dir
        };
        for (name, transport) in [("nvme0", "pcie"), ("nvme1", "tcp"), ("nvme2", "rdma")] {
            let disk = controller(name, transport).join(format!("{name}n1"));
            counted(&disk, [1, 1, 1]);
            symlink("..", disk.join("device")).unwrap();
            assert_eq!(has_change_counter(&disk), transport == "pcie", "{transport}");
        }
        let subsystem = root.path().join("nvme-subsys0");
        put_on(&subsystem, "nvme-subsystem");
        let disk = subsystem.join("nvme0n1");
        counted(&disk, [1, 1, 1]);
        put_on(&disk, "block");
        symlink("..", disk.join("device")).unwrap();
        assert!(!has_change_counter(&disk), "no way to it is known");
        for (name, own) in [("nvme0", true), ("nvme1", false)] {
            symlink(root.path().join(name), subsystem.join(name)).unwrap();
            assert_eq!(has_change_counter(&disk), own, "{name}");
        }
        controller("nvme1", "pcie");
        assert!(has_change_counter(&disk), "both are in the machine");
    }

    #[test]
    fn what_is_above_others_has_a_change_counter_only_if_all_below_have() {
        let root = tempfile::tempdir().unwrap();
        let at = |name: &str| root.path().join(name);
        device(&at("vda"), [1, 1, 1]);
        device(&at("vdb"), [1, 1, 1]);
        counted(&at("nbd0"), [1, 1, 1]);
        stack(&at("md0"), "md", &[&at("vda"), &at("vdb")]);
        stack(&at("md1"), "md", &[&at("vda"), &at("nbd0")]);
        stack(&at("bcache0"), "bcache", &[&at("vda")]);
        stack(&at("dm-9"), "dm", &[]);
        for (below, own) in [("md0", true), ("md1", false), ("bcache0", false), ("dm-9", false)] {
            let above = at(&format!("dm-{below}"));
            stack(&above, "dm", &[&at(below)]);
            assert_eq!(
                (has_change_counter(&at(below)), has_change_counter(&above)),
                (own, own),
                "{below}"
            );
        }
    }
}

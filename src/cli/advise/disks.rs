//! The disks of `/proc/diskstats`: what was asked of each, what it is, and what is mounted on it.
//!
//! Invariant: a request counts at one disk, the lowest one of this machine.

use super::figures::{Disk, DiskKind, Requests, Target};
use crate::limit::pressure::{is_at_bottom, is_partition};
use crate::media::mounts::{MountEntry, mount_of};
use crate::media::sysfs;
use std::fs;
use std::path::{Path, PathBuf};

const SECTOR: f64 = 512.0;
/// Vendors of SCSI disks of hypervisors.
const HYPERVISORS: [&str; 4] = ["QEMU", "VMware", "Msft", "Google"];
/// Drives that are no disks for us, and our own devices.
const OTHERS: [&str; 3] = ["sr", "fd", "ublkb"];
/// Layers of devices above a disk that are looked through.
const LAYERS: usize = 4;

/// A line of `/proc/diskstats`.
#[derive(Clone, Debug, PartialEq)]
pub struct Counters {
    numbers: (u32, u32),
    name: String,
    /// The numbers behind the name; kernels before 5.5 have fewer.
    values: Vec<u64>,
}

/// Requests, requests joined to others, sectors and milliseconds among the values.
#[derive(Clone, Copy)]
struct Places {
    count: usize,
    merged: Option<usize>,
    sectors: Option<usize>,
    ms: usize,
}

const READS: Places = Places { count: 0, merged: Some(1), sectors: Some(2), ms: 3 };
const WRITES: Places = Places { count: 4, merged: Some(5), sectors: Some(6), ms: 7 };
const FLUSHES: Places = Places { count: 15, merged: None, sectors: None, ms: 16 };
/// Milliseconds in which requests were under way.
const BUSY: usize = 9;

/// The counters of all devices.
pub fn counters(text: &str) -> Vec<Counters> {
    let line = |line: &str| {
        let mut words = line.split_ascii_whitespace();
        let numbers = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
        let name = words.next()?.to_owned();
        let values: Vec<u64> = words.map_while(|word| word.parse().ok()).collect();
        (values.len() > BUSY).then_some(Counters { numbers, name, values })
    };
    text.lines().filter_map(line).collect()
}

impl Counters {
    /// How much one value grew since `before`.
    fn since(&self, before: Option<&Self>, place: usize) -> u64 {
        let value = |counters: &Self| counters.values.get(place).copied().unwrap_or(0);
        value(self).saturating_sub(before.map_or(0, value))
    }

    fn requests(&self, before: Option<&Self>, places: Places, seconds: f64) -> Requests {
        let grown = |place: Option<usize>| place.map_or(0.0, |n| self.since(before, n) as f64);
        let count = self.since(before, places.count);
        let each = |sum: f64| if count > 0 { sum / count as f64 } else { 0.0 };
        Requests {
            count,
            per_second: count as f64 / seconds,
            mean_bytes: each(grown(places.sectors) * SECTOR),
            mean_ms: each(grown(Some(places.ms))),
            merged: each(grown(places.merged)),
        }
    }
}

/// What was asked of each disk between two looks.
pub fn figures(
    before: &[Counters],
    after: &[Counters],
    seconds: f64,
    mounts: &[MountEntry],
    sys: &Path,
) -> Vec<Disk> {
    // A disk that appeared meanwhile has its whole life in its counters: it is left out.
    let past = |of: &Counters| {
        before.iter().find(|other| other.name == of.name && other.numbers == of.numbers)
    };
    let mut last = "";
    let mut found = Vec::new();
    for line in after {
        if is_partition(&line.name, last) {
            continue;
        }
        last = &line.name;
        let (Some(kind), Some(before)) = (kind_of(&line.name, mounts, sys), past(line)) else {
            continue;
        };
        let requests = |places| line.requests(Some(before), places, seconds);
        let target = members(&line.name, after, sys)
            .into_iter()
            .filter_map(|member| {
                let moved = [READS, WRITES].map(|p| member.since(past(member), p.count));
                Some((moved.iter().sum::<u64>(), mounted(member, mounts)?))
            })
            // Of those with the same use, the first.
            .reduce(|most, next| if next.0 > most.0 { next } else { most });
        found.push(Disk {
            name: line.name.clone(),
            kind,
            reads: requests(READS),
            writes: requests(WRITES),
            flushes: requests(FLUSHES),
            busy: (line.since(Some(before), BUSY) as f64 / 1000.0 / seconds).min(1.0),
            target: target.map(|(_, target)| target),
        });
    }
    found
}

fn line_of(path: &Path) -> String {
    fs::read_to_string(path).map(|text| text.trim().to_owned()).unwrap_or_default()
}

/// What the disk of a name is; `None` if it is none of its own.
fn kind_of(name: &str, mounts: &[MountEntry], sys: &Path) -> Option<DiskKind> {
    let begins = |kinds: &[&str]| kinds.iter().any(|kind| name.starts_with(kind));
    let block = sys.join("block").join(name);
    if name.starts_with("loop") {
        let file = sysfs::loop_file(&block)?;
        let mount = mount_of(mounts, &file).filter(|_| file.is_absolute())?;
        let is_far = !mount.is_local() && !mount.is_ours();
        return is_far.then_some(DiskKind::Network);
    }
    // The second is a path to an NVMe disk that is listed, too.
    let is_path = name.strip_prefix("nvme").is_some_and(|rest| rest.contains('c'));
    if !is_at_bottom(name, "") || is_path || begins(&OTHERS) {
        return None;
    }
    let is_rotating = line_of(&block.join("queue/rotational")) == "1";
    let vendor = line_of(&block.join("device/vendor"));
    Some(match name {
        _ if begins(&["nvme"]) => DiskKind::Nvme,
        _ if begins(&["mmcblk"]) => DiskKind::Card,
        _ if begins(&["vd", "xvd"]) || HYPERVISORS.contains(&&*vendor) => DiskKind::Virtual,
        _ if begins(&["nbd", "rbd"]) => DiskKind::Network,
        _ if begins(&["sd"]) && is_rotating => DiskKind::Platters,
        _ if begins(&["sd"]) => DiskKind::Flash,
        _ => DiskKind::Other,
    })
}

/// A disk, its partitions, and devices above any of them.
fn members<'a>(disk: &str, all: &'a [Counters], sys: &Path) -> Vec<&'a Counters> {
    let is_own = |line: &&Counters| line.name == disk || is_partition(&line.name, disk);
    let mut found: Vec<&Counters> = all.iter().filter(is_own).collect();
    for _ in 0..LAYERS {
        let is_above = |line: &&Counters| {
            let mut below = sysfs::entries(&sys.join("block").join(&line.name).join("slaves"));
            below.any(|dir| found.iter().any(|member| member.name == sysfs::name(&dir)))
        };
        let is_new = |line: &&Counters| !found.iter().any(|member| member.name == line.name);
        let above: Vec<&Counters> = all.iter().filter(is_new).filter(is_above).collect();
        if above.is_empty() {
            break;
        }
        found.extend(above);
    }
    found
}

/// A device's node and mount point, if a file system on it is mounted.
fn mounted(device: &Counters, mounts: &[MountEntry]) -> Option<Target> {
    let node = Path::new("/dev").join(device.name.replace('!', "/"));
    let is_it = |mount: &&MountEntry| {
        // btrfs has device numbers of its own.
        let by_source = || mount.kind == "btrfs" && real(&mount.source) == node;
        mount.is_local() && (mount.device == device.numbers || by_source())
    };
    let mount = mounts.iter().find(is_it)?;
    let named = mount.source.starts_with("/dev") && real(&mount.source) == node;
    let free_bytes = rustix::fs::statvfs(&mount.point)
        .map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize))
        .unwrap_or(0);
    // The name of a mapped device says more than its number.
    let device = if named { mount.source.clone() } else { node };
    Some(Target { device, point: mount.point.clone(), free_bytes })
}

/// A node without links; as it is, if there is none.
fn real(path: &Path) -> PathBuf {
    let is_node = path.starts_with("/dev");
    is_node.then(|| fs::canonicalize(path).ok()).flatten().unwrap_or_else(|| path.to_owned())
}

/// The disk below a path, by its mount.
pub fn below(path: &Path, disks: &[Disk], mounts: &[MountEntry]) -> Option<String> {
    let path = fs::canonicalize(path).ok()?;
    let point = &mount_of(mounts, &path)?.point;
    let is_there = |disk: &&Disk| disk.target.as_ref().is_some_and(|t| t.point == *point);
    disks.iter().find(is_there).map(|disk| disk.name.clone())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use proptest::prelude::*;

    fn mount(line: &str) -> MountEntry {
        MountEntry::parse(line).unwrap()
    }

    #[test]
    fn disks_are_those_at_the_bottom() {
        let sys = tempfile::tempdir().unwrap();
        let put = |name: &str, text: &str| {
            let path = sys.path().join("block").join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("sda/queue/rotational", "1\n");
        put("sdb/queue/rotational", "0\n");
        put("sdc/device/vendor", "QEMU    \n");
        put("loop0/loop/backing_file", "/far/image\n");
        put("loop1/loop/backing_file", "/image\n");
        put("loop2/loop/backing_file", "/ours/x\n");
        let mounts = [
            mount("1 1 8:1 / / rw - ext4 /dev/sda1 rw"),
            mount("2 1 0:9 / /far rw - fuse.sshfs host rw"),
            mount("3 1 0:8 / /ours rw - fuse ztier rw"),
        ];
        for (name, kind) in [
            ("sda", Some(DiskKind::Platters)),
            ("sdb", Some(DiskKind::Flash)),
            ("sdc", Some(DiskKind::Virtual)),
            ("vda", Some(DiskKind::Virtual)),
            ("nvme0n1", Some(DiskKind::Nvme)),
            ("nvme0c0n1", None),
            ("mmcblk0", Some(DiskKind::Card)),
            ("nbd3", Some(DiskKind::Network)),
            ("pmem0", Some(DiskKind::Other)),
            ("loop0", Some(DiskKind::Network)),
            ("loop1", None),
            ("loop2", None),
            ("loop9", None),
            ("dm-0", None),
            ("md0", None),
            ("zram0", None),
            ("ublkb1", None),
            ("sr0", None),
        ] {
            assert_eq!(kind_of(name, &mounts, sys.path()), kind, "{name}");
        }
    }

    /// The device with a mounted file system may be above the disk.
    #[test]
    fn the_most_used_mounted_device_is_the_target() {
        let sys = tempfile::tempdir().unwrap();
        fs::create_dir_all(sys.path().join("block/dm-0/slaves/sda2")).unwrap();
        fs::create_dir_all(sys.path().join("block/dm-1/slaves/dm-0")).unwrap();
        let text = |reads: [u64; 5]| {
            let names = ["8 0 sda", "8 1 sda1", "8 2 sda2", "253 0 dm-0", "253 1 dm-1"];
            let line = |(name, reads): (&str, u64)| format!("{name} {reads} 0 0 0 0 0 0 0 0 0 0\n");
            counters(&names.into_iter().zip(reads).map(line).collect::<String>())
        };
        let mounts = [
            mount("1 1 8:1 / /boot rw - ext4 /dev/sda1 rw"),
            mount("2 1 253:1 / /home rw - xfs /dev/mapper/vg-home rw"),
        ];
        let of = |reads| {
            let disks = figures(&text([0; 5]), &text(reads), 1.0, &mounts, sys.path());
            assert_eq!(disks.len(), 1, "{disks:?}");
            disks[0].target.clone().unwrap().point
        };
        assert_eq!(of([9, 1, 8, 8, 8]), Path::new("/home"));
        assert_eq!(of([9, 8, 1, 1, 1]), Path::new("/boot"));
        assert_eq!(of([0; 5]), Path::new("/boot"));
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "[a-z 0-9-\n]{0,200}") {
            let found = counters(&text);
            let _ = figures(&found, &found, 1.0, &[], Path::new("/nonexistent"));
        }
    }
}

//! The layers below a drive: the disk of a partition, the file or device behind a loop device, the
//! members of a device-mapper or RAID device; and other loop devices that show the same bytes.
//!
//! The kernel excludes a disk from its partitions, and a member from the device above it. A loop
//! device claims nothing of its backing file. So the same bytes could be opened twice below loop
//! devices, and [`super::claims`] claims the layers that this module finds there.
//!
//! Invariants: this module writes nothing and claims nothing. Each layer has the range of bytes
//! that the drive can reach. Below a stacked device (`slaves`) that is all of each member, marked
//! `shared`, because sibling devices use other parts of it. The search asks only local file systems
//! and those that the drive itself needs, so a dead file server cannot stop it.

use super::ioctls::{LoopInfo, loop_info};
use super::mounts::{MountEntry, mount_of, mounts};
use super::sysfs::{self, SYS, disk_of, entries, is_partition, name, node_of, number_in};
use rustix::fs::{Mode, OFlags};
use std::fs;
use std::ops::Range;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

/// More layers than any drive has; ends the search in a tree with a cycle.
const MOST: usize = 64;
const SECTOR: u64 = 512;

/// The object that a layer is a part of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Base {
    /// A block device that is no partition, by its number.
    Disk(u64),
    /// A regular file, by the numbers of its file system and inode.
    File(u64, u64),
}

/// The drive itself, or a layer below it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Layer {
    pub base: Base,
    /// The bytes of the base.
    pub bytes: Range<u64>,
    /// A device's node, or the file's name.
    pub name: PathBuf,
    /// The block device's own number; for a partition, its base is the disk.
    pub number: Option<u64>,
    /// It is directly below a loop device, so the kernel does not claim it.
    pub shown: bool,
    /// It is below a stacked device: siblings may use other parts of `bytes`.
    pub shared: bool,
}

impl Layer {
    /// Whether both have bytes in common.
    pub fn overlaps(&self, other: &Self) -> bool {
        self.base == other.base
            && self.bytes.start < other.bytes.end
            && other.bytes.start < self.bytes.end
    }
}

/// The layer of `one` in which two drives have bytes in common. Siblings on a stacked device count
/// as separate.
pub(super) fn common<'a>(one: &'a [Layer], other: &[Layer]) -> Option<&'a Layer> {
    let meets = |a: &&Layer| other.iter().any(|b| a.overlaps(b) && !(a.shared && b.shared));
    one.iter().find(meets)
}

/// A tree of devices like the kernel's.
pub(super) struct Tree<'a> {
    sys: &'a Path,
}

/// The backing file of a loop device.
struct Shown {
    name: PathBuf,
    offset: u64,
    limited: bool,
    what: What,
}

enum What {
    Device(u64),
    File(u64, u64),
    /// It is not visible here.
    Hidden,
}

impl Tree<'static> {
    /// The kernel's own.
    pub fn of_machine() -> Self {
        Self { sys: Path::new(SYS) }
    }
}

impl Tree<'_> {
    /// A block device and the layers below it, from top to bottom.
    pub fn device(&self, number: u64) -> Vec<Layer> {
        let mut found = Vec::new();
        let bytes = 0..self.extent(number);
        self.descend(number, bytes, (false, false), &mut found);
        found
    }

    /// A regular file. Its file system claims the layers below.
    pub fn file((device, inode): (u64, u64), name: &Path) -> Vec<Layer> {
        let base = Base::File(device, inode);
        let (bytes, name) = (0..u64::MAX, name.to_owned());
        vec![Layer { base, bytes, name, number: None, shown: false, shared: false }]
    }

    fn dir(&self, number: u64) -> Option<PathBuf> {
        sysfs::dir_in(self.sys, number)
    }

    /// The size of a partition; for a disk, which may grow, no limit.
    fn extent(&self, number: u64) -> u64 {
        let dir = self.dir(number).filter(|dir| is_partition(dir));
        let sectors = dir.and_then(|dir| sysfs::count(&dir.join("size")));
        sectors.map_or(u64::MAX, |sectors| sectors.saturating_mul(SECTOR))
    }

    /// Adds the part `bytes` of a device and the layers below it.
    fn descend(
        &self,
        number: u64,
        bytes: Range<u64>,
        (shown, shared): (bool, bool),
        found: &mut Vec<Layer>,
    ) {
        if found.len() >= MOST {
            return;
        }
        let dir = self.dir(number);
        let disk = dir.as_deref().map(disk_of);
        let start = match &dir {
            Some(dir) if is_partition(dir) => sysfs::count(&dir.join("start")).unwrap_or(0),
            _ => 0,
        };
        let bytes = shifted(&bytes, start.saturating_mul(SECTOR));
        let base = Base::Disk(disk.and_then(number_in).unwrap_or(number));
        let name = dir.as_deref().map_or_else(|| sysfs::text_of(number).into(), node_of);
        let layer = Layer { base, bytes, name, number: Some(number), shown, shared };
        let bytes = layer.bytes.clone();
        found.push(layer);
        let Some(disk) = disk else { return };
        if sysfs::loop_file(disk).is_some() {
            if let Some(file) = self.shown_by(disk) {
                self.descend_shown(disk, &file, &bytes, shared, found);
            }
            return;
        }
        for below in entries(&disk.join("slaves")).filter_map(|dir| number_in(&dir)) {
            self.descend(below, 0..self.extent(below), (false, true), found);
        }
    }

    /// Adds the backing file of a loop device for the part `bytes`, and the layers below it.
    fn descend_shown(
        &self,
        disk: &Path,
        file: &Shown,
        bytes: &Range<u64>,
        shared: bool,
        found: &mut Vec<Layer>,
    ) {
        let mut bytes = bytes.clone();
        if file.limited {
            let size = sysfs::count(&disk.join("size")).map_or(u64::MAX, |n| n * SECTOR);
            bytes.end = bytes.end.min(size);
        }
        let bytes = shifted(&bytes, file.offset);
        match file.what {
            What::Device(number) => {
                let end = bytes.end.min(self.extent(number));
                self.descend(number, bytes.start..end, (true, shared), found);
            }
            What::File(device, inode) => {
                let (base, name) = (Base::File(device, inode), file.name.clone());
                found.push(Layer { base, bytes, name, number: None, shown: true, shared });
            }
            What::Hidden => {}
        }
    }

    /// The backing file of the loop device whose directory in `/sys` is `disk`.
    fn shown_by(&self, disk: &Path) -> Option<Shown> {
        let name = sysfs::loop_file(disk)?;
        let asked = (self.sys == Path::new(SYS)).then(|| ask(disk)).flatten();
        let what = match (&asked, fs::metadata(&name)) {
            (Some(info), _) => info
                .block_device()
                .map_or_else(|| What::File(info.file().0, info.file().1), What::Device),
            (None, Ok(found)) if found.file_type().is_block_device() => What::Device(found.rdev()),
            (None, Ok(found)) => What::File(found.dev(), found.ino()),
            (None, Err(_)) => self.numbered(&name).map_or(What::Hidden, What::Device),
        };
        let number = |file: &str| sysfs::count(&disk.join("loop").join(file)).unwrap_or(0);
        let offset = asked.as_ref().map_or_else(|| number("offset"), |info| info.offset);
        let limit = asked.as_ref().map_or_else(|| number("sizelimit"), |info| info.size_limit);
        Some(Shown { name, offset, limited: limit > 0, what })
    }

    /// The number of a device whose node does not exist here.
    fn numbered(&self, node: &Path) -> Option<u64> {
        let name = node.strip_prefix("/dev").ok()?.to_str()?.replace('/', "!");
        number_in(&self.sys.join("class/block").join(name))
    }

    /// A loop device outside of the layers that shows bytes of one of them: its number, its node,
    /// and that layer.
    pub fn shown_elsewhere<'l>(&self, layers: &'l [Layer]) -> Option<(u64, PathBuf, &'l Layer)> {
        let is_own = |number| layers.iter().any(|layer| layer.base == Base::Disk(number));
        let mounts = mounts();
        entries(&self.sys.join("block")).find_map(|dir| {
            let number = number_in(&dir).filter(|number| !is_own(*number))?;
            let file = name(&dir).starts_with("loop").then(|| sysfs::loop_file(&dir)).flatten()?;
            let mut candidates = layers.iter().filter(|l| may_be(&mounts, &file, l)).peekable();
            candidates.peek()?;
            let mut below = Vec::new();
            self.descend_shown(&dir, &self.shown_by(&dir)?, &(0..u64::MAX), false, &mut below);
            let first = below.first()?;
            let layer = candidates.find(|layer| layer.overlaps(first))?;
            Some((number, node_of(&dir), layer))
        })
    }
}

/// Whether `file` may be this layer, and can be looked at without waiting for a server.
fn may_be(mounts: &[MountEntry], file: &Path, layer: &Layer) -> bool {
    if file == layer.name {
        return true;
    }
    let Some(mount) = mount_of(mounts, file) else { return false };
    match layer.base {
        Base::Disk(_) => mount.is_local(),
        // It has to be on the same file system.
        Base::File(..) => {
            mount_of(mounts, &layer.name).is_some_and(|own| own.device == mount.device)
        }
    }
}

/// The status of the loop device whose directory in `/sys` is `disk`.
fn ask(disk: &Path) -> Option<LoopInfo> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let node = rustix::fs::open(node_of(disk), flags, Mode::empty()).ok()?;
    let is_it = rustix::fs::fstat(&node).is_ok_and(|stat| Some(stat.st_rdev) == number_in(disk));
    if is_it { loop_info(&node).ok() } else { None }
}

fn shifted(bytes: &Range<u64>, by: u64) -> Range<u64> {
    bytes.start.saturating_add(by)..bytes.end.saturating_add(by)
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use rustix::fs::makedev;
    use std::os::unix::fs::symlink;

    const MIB: u64 = 1 << 20;

    /// A tree like the kernel's, and backing files of its loop devices.
    struct Fake(tempfile::TempDir);

    impl Fake {
        fn new() -> Self {
            let fake = Self(tempfile::tempdir().unwrap());
            for dir in ["dev/block", "block", "class/block", "devices"] {
                fs::create_dir_all(fake.0.path().join(dir)).unwrap();
            }
            fake
        }

        fn tree(&self) -> Tree<'_> {
            Tree { sys: self.0.path() }
        }

        /// A device below a directory of `devices`, with its size.
        fn add(&self, dir: &str, (major, minor): (u32, u32), size: u64) -> u64 {
            let root = self.0.path();
            let real = root.join("devices").join(dir);
            let name = real.file_name().unwrap().to_str().unwrap().to_owned();
            fs::create_dir_all(&real).unwrap();
            fs::write(real.join("dev"), format!("{major}:{minor}\n")).unwrap();
            fs::write(real.join("size"), format!("{}\n", size / 512)).unwrap();
            symlink(&real, root.join(format!("dev/block/{major}:{minor}"))).unwrap();
            symlink(&real, root.join("class/block").join(&name)).unwrap();
            if !dir.contains('/') {
                symlink(&real, root.join("block").join(&name)).unwrap();
            }
            makedev(major, minor)
        }

        fn disk(&self, name: &str, minor: u32) -> u64 {
            self.add(name, (8, minor), 1 << 30)
        }

        fn part(&self, dir: &str, minor: u32, start: u64, size: u64) -> u64 {
            let number = self.add(dir, (259, minor), size);
            let real = self.0.path().join("devices").join(dir);
            fs::write(real.join("partition"), "1\n").unwrap();
            fs::write(real.join("start"), format!("{}\n", start / 512)).unwrap();
            number
        }

        fn show(&self, minor: u32, file: &Path, offset: u64, limit: u64) -> u64 {
            let size = if limit > 0 { limit } else { 1 << 30 };
            let number = self.add(&format!("loop{minor}"), (7, minor), size);
            let dir = self.0.path().join(format!("devices/loop{minor}/loop"));
            fs::create_dir(&dir).unwrap();
            fs::write(dir.join("backing_file"), format!("{}\n", file.display())).unwrap();
            fs::write(dir.join("offset"), format!("{offset}\n")).unwrap();
            fs::write(dir.join("sizelimit"), format!("{limit}\n")).unwrap();
            number
        }

        fn stack(&self, name: &str, minor: u32, below: &[&str]) -> u64 {
            let number = self.add(name, (253, minor), 1 << 30);
            let devices = self.0.path().join("devices");
            fs::create_dir(devices.join(name).join("slaves")).unwrap();
            for dir in below {
                let link = devices.join(name).join("slaves").join(dir.rsplit('/').next().unwrap());
                symlink(devices.join(dir), link).unwrap();
            }
            number
        }

        fn file(&self, name: &str) -> (PathBuf, Base) {
            let path = self.0.path().join(name);
            fs::write(&path, "").unwrap();
            let stat = fs::metadata(&path).unwrap();
            (path, Base::File(stat.dev(), stat.ino()))
        }

        /// Name, bytes, and whether it is shared, of each layer.
        fn layers(&self, number: u64) -> Vec<(String, Range<u64>, bool)> {
            let all = self.tree().device(number).into_iter();
            all.map(|l| (name(&l.name), l.bytes, l.shared)).collect()
        }
    }

    fn layer(name: &str, bytes: Range<u64>, shared: bool) -> (String, Range<u64>, bool) {
        (name.to_owned(), bytes, shared)
    }

    #[test]
    fn a_partition_is_a_part_of_its_disk() {
        let fake = Fake::new();
        let disk = fake.disk("sda", 0);
        let (one, two) =
            (fake.part("sda/sda1", 1, MIB, 4 * MIB), fake.part("sda/sda2", 2, 5 * MIB, 2 * MIB));
        assert_eq!(fake.layers(disk), [layer("sda", 0..u64::MAX, false)]);
        assert_eq!(fake.layers(one), [layer("sda1", MIB..5 * MIB, false)]);
        let [disk, one, two] = [disk, one, two].map(|number| fake.tree().device(number));
        assert_eq!(one[0].base, disk[0].base);
        assert!(common(&disk, &one).is_some() && common(&two, &disk).is_some());
        assert_eq!(common(&one, &two), None);
    }

    #[test]
    fn the_way_down_keeps_track_of_bytes() {
        let fake = Fake::new();
        let (path, base) = fake.file("image");
        // A partition of a loop device on a part of a partition of a loop device on a file.
        let lower = fake.show(0, &path, 8 * MIB, 0);
        fake.part("loop0/loop0p1", 1, 2 * MIB, 64 * MIB);
        fake.show(1, Path::new("/dev/loop0p1"), 4 * MIB, 32 * MIB);
        let top = fake.part("loop1/loop1p2", 2, MIB, 16 * MIB);
        assert_eq!(
            fake.layers(top),
            [
                layer("loop1p2", MIB..17 * MIB, false),
                layer("loop0p1", 7 * MIB..23 * MIB, false),
                layer("image", 15 * MIB..31 * MIB, false),
            ]
        );
        let layers = fake.tree().device(top);
        assert_eq!(layers[2].base, base);
        assert_eq!(layers.iter().map(|l| l.shown).collect::<Vec<_>>(), [false, true, true]);
        let [all, file] = [fake.tree().device(lower), Tree::file(number_of(&path), &path)];
        assert_eq!(all[1].bytes, 8 * MIB..u64::MAX, "as far as the file may grow");
        for other in [&all, &file] {
            assert!(common(&layers, other).is_some() && common(other, &layers).is_some());
        }
    }

    fn number_of(path: &Path) -> (u64, u64) {
        let stat = fs::metadata(path).unwrap();
        (stat.dev(), stat.ino())
    }

    #[test]
    fn parts_of_one_file_that_are_apart_have_nothing_in_common() {
        let fake = Fake::new();
        let (path, _) = fake.file("image");
        let one = fake.tree().device(fake.show(0, &path, 0, 8 * MIB));
        let two = fake.tree().device(fake.show(1, &path, 8 * MIB, 8 * MIB));
        let both = fake.tree().device(fake.show(2, &path, 4 * MIB, 8 * MIB));
        assert_eq!(common(&one, &two), None);
        assert!(common(&one, &both).is_some() && common(&both, &two).is_some());
    }

    #[test]
    fn what_is_made_of_several_shares_all_of_them() {
        let fake = Fake::new();
        let (path, _) = fake.file("image");
        fake.show(0, &path, 0, 0);
        fake.part("loop0/loop0p1", 1, MIB, 64 * MIB);
        fake.disk("sda", 0);
        let raid = fake.stack("md0", 0, &["loop0/loop0p1", "sda"]);
        let (one, two) = (fake.stack("dm-0", 1, &["md0"]), fake.stack("dm-1", 2, &["md0"]));
        let found = fake.layers(raid);
        assert_eq!((found.len(), &found[0]), (4, &layer("md0", 0..u64::MAX, false)));
        for below in [
            layer("loop0p1", MIB..65 * MIB, true),
            layer("image", MIB..65 * MIB, true),
            layer("sda", 0..u64::MAX, true),
        ] {
            assert!(found.contains(&below), "{found:?}");
        }
        let [one, two] = [one, two].map(|number| fake.tree().device(number));
        assert!(one.iter().any(|layer| layer.base == Base::Disk(makedev(8, 0)) && layer.shared));
        assert_eq!(common(&one, &two), None, "volumes of one group");
        // The file below both.
        let file = Tree::file(number_of(&path), &path);
        assert!(common(&one, &file).is_some() && common(&file, &two).is_some());
    }

    #[test]
    fn another_loop_device_on_the_same_bytes_is_found() {
        let fake = Fake::new();
        let (path, _) = fake.file("image");
        let tree = fake.tree();
        let elsewhere = |layers: &[Layer]| {
            tree.shown_elsewhere(layers).map(|(number, node, _)| (number, name(&node)))
        };
        let file = Tree::file(number_of(&path), &path);
        assert_eq!(elsewhere(&file), None);
        let first = fake.show(0, &path, 0, 8 * MIB);
        assert_eq!(elsewhere(&file), Some((first, "loop0".into())));
        // The loop device is among its own layers.
        assert_eq!(elsewhere(&tree.device(first)), None);
        let second = fake.show(1, &path, 8 * MIB, 8 * MIB);
        assert_eq!(elsewhere(&tree.device(first)), None, "it shows other bytes");
        assert_eq!(elsewhere(&tree.device(second)), None);
        let third = fake.show(2, Path::new("/dev/loop1"), 0, 0);
        assert_eq!(elsewhere(&tree.device(second)), Some((third, "loop2".into())));
        assert_eq!(elsewhere(&tree.device(third)), None);
        // By another name of the file.
        let link = fake.0.path().join("link");
        fs::hard_link(&path, &link).unwrap();
        let fourth = fake.show(3, &link, 4 * MIB, MIB);
        assert_eq!(elsewhere(&tree.device(first)), Some((fourth, "loop3".into())));
    }

    #[test]
    fn a_tree_that_is_none_ends() {
        let fake = Fake::new();
        let one = fake.stack("dm-0", 0, &["dm-1"]);
        fake.stack("dm-1", 1, &["dm-0"]);
        assert_eq!(fake.layers(one).len(), MOST);
        // An unknown device.
        assert_eq!(fake.layers(makedev(8, 9)), [layer("8:9", 0..u64::MAX, false)]);
    }
}

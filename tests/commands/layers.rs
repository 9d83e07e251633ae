//! A drive in use is refused by any other path: loop devices, partitions, other names and nodes, in
//! any order, for drives and for volumes. The record of a backing store is found by any path.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::files::{dir, exclusive, file};
use crate::support::loops::{Loop, lacks_loops};
use crate::support::mounted::Mounted;
use crate::support::place::{BLOCK, BLOCKS, Place, content};
use crate::support::sandbox::{Done, eventually};
use crate::support::shell::{ok, ok_once_free, run};
use std::any::Any;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use ztier::media::mounts::{mount_of, mounts};
use ztier::media::{Access, Drive, FileDrive};

const MIB: u64 = 1 << 20;

#[track_caller]
fn refused(path: &Path, parts: &[&str]) {
    for access in [Access::Exclusive, Access::Still] {
        let error = FileDrive::open(path, access).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with(path.to_str().unwrap()) && !text.contains('\n'), "{text}");
        assert!(text.contains("is in use"), "{text}");
        assert!(parts.iter().all(|p| text.contains(p)), "{text}: {parts:?}");
        assert_eq!(error.exit_status(), 4, "{text}");
    }
}

/// Another name of a file or device, removed when dropped.
struct Name(PathBuf);

impl Drop for Name {
    fn drop(&mut self) {
        fs::remove_file(&self.0).unwrap();
    }
}

/// The layers between a drive and a file; dropped from the last one on.
#[derive(Default)]
struct Way(Vec<Box<dyn Any>>);

impl Drop for Way {
    fn drop(&mut self) {
        while self.0.pop().is_some() {}
    }
}

/// The paths: each ends at all of the file, or at a part of it.
const WAYS: [&str; 7] =
    ["loop", "loop loop", "part", "part loop", "node", "link loop", "bind loop"];

impl Way {
    /// Builds the layers `steps` on `path`, in its own directory; returns the path to open at the
    /// end.
    fn to(path: &Path, steps: &str, dir: &Path) -> (Self, PathBuf) {
        fs::create_dir_all(dir).unwrap();
        let (mut way, mut at) = (Self::default(), path.to_owned());
        for (n, step) in steps.split(' ').enumerate() {
            at = match step {
                "loop" => {
                    let device = Loop::on(&at, &[]);
                    way.add(device.0.clone(), device)
                }
                "part" => {
                    let device = Loop::on(&at, &[]);
                    let part = device.part(1, MIB..8 * MIB);
                    way.0.push(Box::new(device));
                    way.add(part.node.clone(), part)
                }
                // Another device node of a loop device.
                "node" => {
                    let device = Loop::on(&at, &[]);
                    let node = dir.join(format!("node{n}"));
                    let minor = device.path().trim_start_matches("/dev/loop").to_owned();
                    ok(20, "mknod", &[node.to_str().unwrap(), "b", "7", &minor]);
                    way.0.push(Box::new(device));
                    way.add(node.clone(), Name(node))
                }
                "link" => {
                    let link = dir.join(format!("link{n}"));
                    fs::hard_link(&at, &link).unwrap();
                    way.add(link.clone(), Name(link))
                }
                "bind" => {
                    let from = at.parent().unwrap().to_str().unwrap();
                    let point = dir.join(format!("bind{n}"));
                    let file = point.join(at.file_name().unwrap());
                    way.add(file, Mounted::new(&["--bind", from], &point))
                }
                _ => panic!("{step}"),
            };
        }
        (way, at)
    }

    fn add(&mut self, end: PathBuf, step: impl Any) -> PathBuf {
        self.0.push(Box::new(step));
        end
    }
}

#[test]
fn a_file_belongs_to_one_whatever_way_it_is_reached() {
    if lacks_loops(&["mknod"]) {
        return;
    }
    let (_dir, here) = dir();
    for steps in WAYS {
        let image = file(&here.join("image"), 16 * MIB);
        let named = image.to_str().unwrap();
        // The file first.
        let mine = exclusive(&image);
        let (way, end) = Way::to(&image, steps, &here.join("one"));
        refused(&end, &["given twice to this command"]);
        drop(mine);
        // The other path first; a loop device is on the file in any case.
        let mine = exclusive(&end);
        refused(&image, &["loop device", "/dev/loop"]);
        // By another path of the same kind, and by all others.
        for other in WAYS {
            let (other, end) = Way::to(&image, other, &here.join("two"));
            refused(&end, &[]);
            drop(other);
        }
        drop(mine);
        drop(exclusive(&end));
        drop(way);
        drop(exclusive(&image));
        assert!(fs::read(&image).unwrap().iter().all(|b| *b == 0), "{named}: nothing was written");
        fs::remove_file(&image).unwrap();
    }
}

#[test]
fn parts_that_are_apart_belong_to_several() {
    if lacks_loops(&[]) {
        return;
    }
    let (_dir, here) = dir();
    let image = file(&here.join("image"), 64 * MIB);
    // Partitions, at two levels.
    let whole = Loop::on(&image, &[]);
    let (one, two) = (whole.part(1, MIB..16 * MIB), whole.part(2, 16 * MIB..64 * MIB));
    let inner = Loop::on(&two.node, &[]);
    let (three, four) = (inner.part(1, MIB..8 * MIB), inner.part(2, 8 * MIB..40 * MIB));
    let all = [&one.node, &three.node, &four.node].map(|path| exclusive(path));
    for (n, drive) in (1u8..).zip(&all) {
        drive.write(0, &vec![n; MIB as usize]).unwrap();
        drive.flush().unwrap();
    }
    for (n, drive) in (1u8..).zip(&all) {
        let mut found = vec![0; MIB as usize];
        drive.read(0, &mut found).unwrap();
        assert!(found.iter().all(|b| *b == n), "{n}");
    }
    refused(&two.node, &[]);
    refused(&whole.0, &[]);
    drop(all);
    drop((three, four));
    drop(inner);
    drop((one, two));
    drop(whole);

    // Loop devices on parts of the file.
    let part = |offset: u64, size: u64| {
        let (offset, size) = (format!("{}M", offset), format!("{}M", size));
        Loop::on(&image, &["--offset", &offset, "--sizelimit", &size])
    };
    let (one, two, both) = (part(0, 16), part(16, 16), part(8, 16));
    refused(&one.0, &["by way of", "image", "loop device", both.path()]);
    drop(both);
    let mine = [exclusive(&one.0), exclusive(&two.0)];
    let both = part(8, 16);
    refused(&both.0, &["by way of", "image", "given twice"]);
    drop(mine);
}

/// A mount on a directory whose name is not UTF-8.
fn odd_mount(dir: &Path) -> Mounted {
    Mounted::new(&["-t", "tmpfs", "ztier-test"], &dir.join(OsStr::from_bytes(b"\xe9tat")))
}

/// Names of any bytes: every table of the kernel that has them is read all the same.
#[test]
fn names_that_are_not_utf_8_are_read() {
    if lacks_loops(&[]) {
        return;
    }
    let (_dir, here) = dir();
    let mount = odd_mount(&here);
    let all = mounts();
    assert_eq!(mount_of(&all, &mount.0.join("file")).unwrap().point, mount.0);
    let image = file(&here.join(OsStr::from_bytes(b"dr\xefve")), 16 * MIB);
    let mine = exclusive(&image);
    let device = Loop::on(&image, &[]);
    refused(&device.0, &["given twice"]);
    drop(mine);
    let error = FileDrive::open(&image, Access::Exclusive).unwrap_err();
    assert!(error.to_string().contains(device.path()), "{error}");
}

/// Mounts and swap on any layer count as use, whatever names other mounts have.
#[test]
fn a_mount_or_swap_on_a_layer_is_named() {
    if lacks_loops(&["mkfs.ext4", "mkswap", "swapon", "swapoff"]) {
        return;
    }
    let (_dir, here) = dir();
    let _odd = odd_mount(&here);
    let image = file(&here.join("image"), 32 * MIB);
    let device = Loop::on(&image, &[]);
    ok_once_free("mkfs.ext4", &["-q", "-F", device.path()]);
    let mount = Mounted::new(&[device.path()], &here.join("point"));
    let on = format!("mounted on {}", mount.0.display());
    refused(&image, &["loop device", device.path(), &on]);
    let above = Loop::on(&device.0, &[]);
    refused(&above.0, &["by way of", device.path(), &on, "unmount it first"]);
    let beside = Loop::on(&image, &[]);
    refused(&beside.0, &["by way of", "image", "loop device", device.path(), &on]);
    drop(mount);
    drop((above, beside));

    ok_once_free("mkswap", &[device.path()]);
    struct Swap<'a>(&'a str);
    impl Drop for Swap<'_> {
        fn drop(&mut self) {
            assert!(run(60, "swapoff", &[self.0]).status.success(), "{} was left", self.0);
        }
    }
    if !run(20, "swapon", &["-p", "0", device.path()]).status.success() {
        println!("skipped: no swap here");
        return;
    }
    let swap = Swap(device.path());
    let above = Loop::on(&device.0, &[]);
    refused(&above.0, &["by way of", device.path(), "swap"]);
    let beside = Loop::on(&image, &[]);
    refused(&beside.0, &["loop device", device.path(), "swap"]);
    drop(swap);
}

/// Tries to bring up a second volume.
fn second(place: &Place, args: &[&str]) -> Done {
    let segment: &[&str] = if args.contains(&"--log") { &["--segment", "64K"] } else { &[] };
    place.sandbox.ztier(&[&["up", "two", "--export", "nbd"], segment, args].concat())
}

/// The UUID of the log in a file.
fn uuid(path: &str) -> [u8; 16] {
    let mut bytes = [0; 16];
    File::open(path).unwrap().read_exact_at(&mut bytes, 16).unwrap();
    bytes
}

#[test]
fn a_drive_of_a_volume_is_not_had_again_by_another_way() {
    if lacks_loops(&["mknod"]) {
        return;
    }
    let place = Place::new();
    let (log, backing) = (place.log.clone(), place.backing.clone());
    let other = file(&place.sandbox.path().join("other"), 16 * MIB);
    let other = other.to_str().unwrap();
    let mut disk = place.up_with_a_write();
    let (before, volume) = (uuid(&log), "volume `vol` (process ");
    for (n, steps) in WAYS.into_iter().enumerate() {
        let (way, end) = Way::to(Path::new(&log), steps, &place.sandbox.path().join("log"));
        let end = end.to_str().unwrap();
        let says = [end, "is in use", volume, "take that volume down"];
        match n % 4 {
            0 => second(&place, &["--backing", other, "--log", end]).refused(4, &says),
            1 => second(&place, &["--backing", end, "--log", other]).refused(4, &says),
            2 => second(&place, &["--size", "16M", "--spill", end]).refused(4, &says),
            _ => place.sandbox.ztier(&["log", "check", end]).refused(4, &says),
        };
        drop(way);
        let (_way, end) = Way::to(Path::new(&backing), steps, &place.sandbox.path().join("back"));
        let end = end.to_str().unwrap();
        let says = [end, "is in use", volume];
        match n % 2 {
            0 => second(&place, &["--backing", end, "--ram-limit", "0"]).refused(4, &says),
            _ => second(&place, &["--backing", other, "--log", end, "--wipe"]).refused(4, &says),
        };
    }
    assert!(uuid(&log) == before && fs::read(other).unwrap().iter().all(|b| *b == 0));
    assert_eq!(disk.read(0, BLOCK as usize), content(0, 1));
    drop(disk);
    place.sandbox.ztier(&["down", "vol"]).ok();

    // The volume is on top of the layers, and the second one names the file below.
    let logs = Way::to(Path::new(&log), "loop loop", &place.sandbox.path().join("log"));
    let backs = Way::to(Path::new(&backing), "node", &place.sandbox.path().join("back"));
    let (log_end, back_end) = (logs.1.to_str().unwrap(), backs.1.to_str().unwrap());
    let up = ["up", "vol", "--export", "nbd", "--backing", back_end, "--log", log_end];
    place.sandbox.ztier(&up).ok();
    // The backing store is the same as before.
    assert_eq!(place.connect().read(0, BLOCK as usize), content(0, 1));
    let before = uuid(&log);
    second(&place, &["--backing", other, "--log", &log]).refused(4, &[&log, "loop device", volume]);
    let says = [backing.as_str(), "loop device", volume];
    second(&place, &["--backing", &backing, "--log", other]).refused(4, &says);
    let (_way, end) = Way::to(Path::new(&log), "loop", &place.sandbox.path().join("two"));
    let end = end.to_str().unwrap();
    let says = [end, "by way of", &log, volume];
    second(&place, &["--backing", other, "--log", end]).refused(4, &says);
    assert!(uuid(&log) == before);
    // A killed process holds nothing any more.
    place.sandbox.kill_both("vol");
    place.sandbox.ztier(&["down", "vol", "--discard"]).ok();
    drop(_way);
    drop((logs, backs));
    place.sandbox.ztier(&place.up()).ok();
    assert_eq!(place.connect().read(0, BLOCK as usize), content(0, 1));
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

#[test]
fn one_thing_is_not_log_and_backing_store_at_once() {
    if lacks_loops(&["mknod"]) {
        return;
    }
    let place = Place::new();
    let image = file(&place.sandbox.path().join("image"), 32 * MIB);
    for steps in WAYS {
        let (_way, end) = Way::to(&image, steps, &place.sandbox.path().join("one"));
        for drives in [[&image, &end], [&end, &image]] {
            let [backing, log] = drives.map(|path| path.to_str().unwrap());
            let both = ["--backing", backing, "--log", log];
            second(&place, &both).refused(2, &["at once", "both have bytes of", "image"]);
        }
    }
    // A disk and a partition of it.
    let disk = Loop::on(&image, &[]);
    let (one, two) = (disk.part(1, MIB..17 * MIB), disk.part(2, 17 * MIB..32 * MIB));
    let both = ["--backing", disk.path(), "--log", one.path()];
    second(&place, &both).refused(2, &["at once", disk.path()]);
    assert!(fs::read(&image).unwrap().iter().all(|b| *b == 0), "nothing was written");
    // Two partitions of the disk are two drives.
    second(&place, &["--backing", one.path(), "--log", two.path()]).ok();
    place.sandbox.ztier(&["down", "two", "--drain"]).ok();
}

/// At most one of two volumes comes up.
#[test]
fn of_two_that_come_at_once_by_two_ways_one_comes_up() {
    if lacks_loops(&[]) {
        return;
    }
    let place = Place::new();
    let others = ["a", "b"].map(|name| {
        let path = file(&place.sandbox.path().join(name), BLOCKS * BLOCK);
        path.to_str().unwrap().to_owned()
    });
    for round in 0..6 {
        let log = file(&place.sandbox.path().join(format!("log{round}")), 16 * MIB);
        let dir = place.sandbox.path().join("way");
        // Two loop devices on a file, or one on the other.
        let (first, one) = Way::to(&log, "loop", &dir);
        let (second, two) = Way::to(if round % 2 == 0 { &log } else { &one }, "loop", &dir);
        let ends = [one.to_str().unwrap(), two.to_str().unwrap()];
        let done: Vec<Done> = std::thread::scope(|scope| {
            let names = ["one", "two"];
            let runs = [0, 1].map(|n| {
                let (sandbox, name, backing, log) = (&place.sandbox, names[n], &others[n], ends[n]);
                scope.spawn(move || {
                    let up = ["up", name, "--export", "nbd", "--backing", backing, "--log", log];
                    sandbox.ztier(&up)
                })
            });
            runs.into_iter().map(|run| run.join().unwrap()).collect()
        });
        let up = done.iter().filter(|done| done.status == 0).count();
        assert!(up <= 1, "{done:?}");
        for refused in done.iter().filter(|done| done.status != 0) {
            assert!(refused.status == 4 && refused.err.contains("is in use"), "{done:?}");
        }
        for name in ["one", "two"] {
            if place.sandbox.files().contains(&format!("{name}.json")) {
                place.sandbox.ztier(&["down", name]).ok();
            }
        }
        drop((second, first));
    }
}

/// A loop device appears between the two: no order admits both.
#[test]
fn a_file_and_what_comes_above_it_meanwhile_meet_at_its_lock() {
    if lacks_loops(&[]) {
        return;
    }
    let (_dir, here) = dir();
    let image = file(&here.join("image"), 16 * MIB);
    for _ in 0..20 {
        let taken = std::thread::scope(|scope| {
            let direct = scope.spawn(|| FileDrive::open(&image, Access::Exclusive).ok());
            let above = scope.spawn(|| {
                let device = Loop::on(&image, &[]);
                let drive = FileDrive::open(&device.0, Access::Exclusive).ok();
                (drive, device)
            });
            let (direct, (above, device)) = (direct.join().unwrap(), above.join().unwrap());
            let taken = usize::from(direct.is_some()) + usize::from(above.is_some());
            drop((direct, above));
            drop(device);
            taken
        });
        assert!(taken <= 1);
    }
    eventually("it is free", || FileDrive::open(&image, Access::Exclusive).is_ok());
}

#[test]
fn what_a_backing_store_lacks_is_known_whatever_way_it_is_given() {
    if lacks_loops(&["mknod"]) {
        return;
    }
    let place = Place::new();
    drop(place.up_with_a_write());
    place.sandbox.ztier(&["down", "vol"]).ok();
    let dir = place.sandbox.path().join("way");
    for steps in ["loop", "loop loop", "node", "bind loop"] {
        let (_way, end) = Way::to(Path::new(&place.backing), steps, &dir);
        let end = end.to_str().unwrap();
        let bare = ["--backing", end, "--ram-limit", "0"];
        second(&place, &bare).refused(5, &[end, "lacks what its log on", &place.log]);
        // With its log it is the same backing store, not a copy.
        let up = ["up", "vol", "--export", "nbd", "--backing", end, "--log", &place.log];
        place.sandbox.ztier(&up).ok();
        assert_eq!(place.connect().read(0, BLOCK as usize), content(0, 1), "{steps}");
        place.sandbox.ztier(&["down", "vol"]).ok();
    }
    // A part of it lacks the same data; so may the whole disk of which it is a part.
    let disk = Loop::on(Path::new(&place.backing), &[]);
    let part = disk.part(1, MIB..4 * MIB);
    let bare = ["--backing", part.path(), "--ram-limit", "0"];
    let says = [part.path(), "has bytes of", "which lacks what its log on", &place.log];
    second(&place, &bare).refused(5, &says);
    drop(part);
    drop(disk);
    place.sandbox.ztier(&place.up()).ok();
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    let disk = Loop::on(Path::new(&place.backing), &[]);
    let part = disk.part(1, MIB..4 * MIB);
    let log = file(&place.sandbox.path().join("small"), 16 * MIB);
    let log = log.to_str().unwrap();
    second(&place, &["--backing", part.path(), "--log", log, "--writeback", "off"]).ok();
    let mut disk_of_part =
        crate::support::disk::Disk::open(&place.sandbox.run_dir().join("two.nbd"), "two");
    disk_of_part.write(0, &content(0, 2));
    disk_of_part.flush();
    drop(disk_of_part);
    place.sandbox.ztier(&["down", "two"]).ok();
    let whole = ["--backing", disk.path(), "--ram-limit", "0"];
    second(&place, &whole).refused(5, &[disk.path(), "has bytes of", part.path(), "lacks", log]);
}

/// A volume on another one's device, which is a loop device on a file of its FUSE file system.
#[test]
fn a_volume_may_be_above_another_and_lets_go_of_it() {
    if let Err(why) = ztier::export::fuse::available(true) {
        println!("skipped: {why}");
        return;
    }
    if lacks_loops(&[]) {
        return;
    }
    let place = Place::new();
    let name = place.sandbox.device_name("lower");
    let lower = ["up", &name, "--export", "fuse", "--backing", &place.backing];
    let device = place.sandbox.ztier(&lower).ok();
    let device = device.lines().next().unwrap();
    let up = ["up", "vol", "--export", "nbd", "--backing", device, "--log", &place.log];
    place.sandbox.ztier(&up).ok();
    let mut disk = place.connect();
    disk.write(0, &content(0, 1));
    disk.flush();
    drop(disk);
    // Neither the device nor the file below the lower volume.
    second(&place, &["--backing", device, "--ram-limit", "0"]).refused(4, &["volume `vol`"]);
    let named = format!("volume `{name}`");
    second(&place, &["--backing", &place.backing, "--ram-limit", "0"]).refused(4, &[&named]);
    let down = place.sandbox.ztier(&["down", &name]);
    assert!(down.status != 0 && down.err.contains("in use"), "{down:?}");
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    place.sandbox.ztier(&["down", &name]).ok();
    assert_eq!(fs::read(&place.backing).unwrap()[..BLOCK as usize], content(0, 1));
}

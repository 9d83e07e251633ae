//! Backing stores that were used without their log, which had newer data: detected by the kernel's
//! counters, and after a reboot or a kill by samples in each superblock. An unchanged backing store
//! is not refused. Also copies that replace a backing store.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::loops::{Loop, lacks_loops};
use crate::support::place::{BLOCK, Place, content};
use crate::support::sandbox::{Done, eventually};
use crate::support::shell::{ok, run, unmount};
use crate::support::superblock;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, PermissionsExt};
use std::path::Path;
use ztier::media::{Access, ChangeCounter, FileDrive, Identity};

const MIB: u64 = 1 << 20;
/// A block that the volume writes: it contains no superblock and no sample.
const DIRTY: u64 = 2 * MIB / BLOCK + 7;

/// A place with a backing store of `size` bytes.
fn place(size: u64) -> Place {
    let place = Place::new();
    File::options().write(true).open(&place.backing).unwrap().set_len(size).unwrap();
    place
}

fn try_up(place: &Place, more: &[&str]) -> Done {
    let up = ["--writeback", "off", "--ram-limit", "0"];
    place.sandbox.ztier(&[&place.up()[..], &up, more].concat())
}

#[track_caller]
fn up(place: &Place, more: &[&str]) -> String {
    let done = try_up(place, more);
    let said = done.err.clone();
    done.ok();
    said
}

fn down(place: &Place) {
    place.sandbox.ztier(&["down", "vol"]).ok();
}

/// Simulates a power failure of the machine.
fn die(place: &Place) {
    place.sandbox.kill_both("vol");
    place.sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

/// Brings the volume up and writes a block, durably, that the backing store lacks.
fn up_dirty(place: &Place, version: u64) {
    up(place, &[]);
    write(place, version);
}

fn write(place: &Place, version: u64) {
    let mut disk = place.connect();
    disk.write(DIRTY * BLOCK, &content(DIRTY, version));
    disk.flush();
}

#[track_caller]
fn check(place: &Place, version: u64) {
    assert_eq!(place.connect().read(DIRTY * BLOCK, BLOCK as usize), content(DIRTY, version));
}

/// Whether the kernel counts changes of the backing store's file here.
fn is_counted(place: &Place) -> bool {
    let drive = FileDrive::open(Path::new(&place.backing), Access::ReadOnly).unwrap();
    let counted = ChangeCounter::of(&drive).written != 0;
    if !counted {
        println!("skipped: this file system tells nothing of changes");
    }
    counted
}

/// A file system in a file, from offset `at` on.
struct Inside<'a> {
    file: &'a str,
    at: u64,
    size: u64,
    kind: &'a str,
}

impl Inside<'_> {
    fn device(&self) -> Loop {
        let (offset, size) = (self.at.to_string(), self.size.to_string());
        Loop::on(Path::new(self.file), &["--offset", &offset, "--sizelimit", &size])
    }

    fn make(&self) {
        let force = if self.kind == "ext4" { "-F" } else { "-f" };
        let program = format!("mkfs.{}", self.kind);
        ok(60, &program, &["-q", force, self.device().path()]);
    }

    /// Mounts the file system without ztier, and works there.
    fn mounted(&self, options: &str, point: &Path, work: impl FnOnce(&Path)) {
        let device = self.device();
        fs::create_dir_all(point).unwrap();
        ok(60, "mount", &["-o", options, device.path(), point.to_str().unwrap()]);
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| work(point)));
        unmount(point.to_str().unwrap());
        done.unwrap();
    }

    /// Writes 40 files.
    fn used(&self, point: &Path) {
        self.mounted("rw", point, |dir| {
            for n in 0..40 {
                fs::write(dir.join(n.to_string()), [n; 5000]).unwrap();
            }
        });
    }

    fn has_all(&self, point: &Path) {
        self.mounted("ro", point, |dir| {
            for n in 0..40 {
                assert_eq!(fs::read(dir.join(n.to_string())).unwrap(), [n; 5000], "file {n}");
            }
        });
    }
}

/// Lays out a place for the file system: its first byte, and its name in the message.
fn lay_out(place: &Place, how: &str) -> (u64, &'static str) {
    let file = &place.backing;
    let table = |script: &str| {
        ok(60, "sh", &["-c", &format!("printf '{script}' | sfdisk -q {file}")]);
    };
    match how {
        "whole" => (0, "superblock of ext4"),
        "gpt" => {
            table("label: gpt\\nstart=2048,size=16384\\nstart=81920\\n");
            (40 * MIB, "superblock of the partition at byte 41943040")
        }
        "mbr" => {
            table(
                "label: dos\\nstart=2048,size=16384,type=83\\nstart=40960,type=5\\nstart=83968,type=83\\n",
            );
            (41 * MIB, "superblock of the partition at byte 42991616")
        }
        "lone" => (16 * MIB, "superblock of the file system at byte 16777216"),
        "lvm" => {
            logical_volumes(place);
            // Behind 1 MiB and a volume of 8 MiB.
            (9 * MIB, "superblock of the logical volume at byte 9437184")
        }
        _ => panic!("{how}"),
    }
}

/// Makes two logical volumes in the backing store, without the device mapper.
fn logical_volumes(place: &Place) {
    let device = Loop::on(Path::new(&place.backing), &[]);
    let dir = place.sandbox.path().join("lvm");
    fs::create_dir(&dir).unwrap();
    let node = device.path();
    let settings = format!(
        "devices {{ use_devicesfile=0 filter=[\"a|^{node}$|\",\"r|.*|\"] }}\n\
         activation {{ udev_sync=0 udev_rules=0 monitoring=0 }}\n\
         backup {{ backup=0 archive=0 }}\nglobal {{ use_lvmpolld=0 locking_dir=\"{0}\" }}\n",
        dir.display()
    );
    fs::write(dir.join("lvm.conf"), settings).unwrap();
    let name = format!("ztier{}", std::process::id());
    let volume = ["-an", "-Zn", "-Wn", "-n"];
    for args in [
        vec!["pvcreate", node],
        vec!["vgcreate", &name, node],
        [&["lvcreate"], &volume[..], &["one", "-L", "8M", &name]].concat(),
        [&["lvcreate"], &volume[..], &["two", "-L", "40M", &name]].concat(),
    ] {
        let own = format!("LVM_SYSTEM_DIR={}", dir.display());
        let env = [own.as_str(), "DM_DISABLE_UDEV=1", "lvm", args[0], "--driverloaded", "n"];
        ok(60, "env", &[&env, &args[1..]].concat());
    }
}

/// Every place where a file system may be, and every kind that can be mounted here.
#[test]
fn a_file_system_that_was_used_by_itself_is_a_change_wherever_it_is() {
    if lacks_loops(&["sfdisk"]) {
        return;
    }
    for (how, kind, size, needs) in [
        ("whole", "ext4", 64, "mkfs.ext4"),
        ("gpt", "ext4", 64, "mkfs.ext4"),
        ("mbr", "ext4", 64, "mkfs.ext4"),
        ("lone", "ext4", 64, "mkfs.ext4"),
        ("lvm", "ext4", 64, "lvm"),
        ("gpt", "xfs", 400, "mkfs.xfs"),
        ("lone", "btrfs", 200, "mkfs.btrfs"),
    ] {
        let known = fs::read_to_string("/proc/filesystems").unwrap().contains(kind);
        if crate::support::shell::missing(&[needs]) || !known {
            println!("skipped: no {kind} by {needs} here");
            continue;
        }
        let place = place(size * MIB);
        if kind == "btrfs" && crate::support::shell::lacks_btrfs(place.sandbox.path()) {
            continue;
        }
        let (at, name) = lay_out(&place, how);
        let end = if how == "lvm" { at + 40 * MIB } else { (size - 1) * MIB };
        let inside = Inside { file: &place.backing, at, size: end - at, kind };
        inside.make();
        up_dirty(&place, 1);
        down(&place);
        let point = place.sandbox.path().join("point");
        inside.used(&point);
        let says = ["was changed while", "held newer data", "--accept-changed-backing"];
        if is_counted(&place) && how != "whole" {
            let parts = [&says[..], &["after the log was closed in a state of 20"]].concat();
            try_up(&place, &[]).refused(5, &parts);
        }
        superblock::reboot(&place.log);
        let parts = [&says[..], &["it differs in", name, "--discard-log"]].concat();
        let text = try_up(&place, &[]).refused(5, &parts);
        println!("{how} {kind}: {text}");
        // The user decides.
        if how == "gpt" {
            let said = up(&place, &["--accept-changed-backing"]);
            assert!(said.contains("which was changed meanwhile"), "{said}");
            check(&place, 1);
        } else {
            up(&place, &["--discard-log"]);
        }
        place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
        inside.has_all(&point);
    }
}

/// Ranges written by a window have samples again at its end, so they count after a kill.
#[test]
fn samples_of_what_was_written_back_count_after_a_kill() {
    if lacks_loops(&["sfdisk", "mkfs.ext4"]) {
        return;
    }
    let place = place(64 * MIB);
    let (at, name) = lay_out(&place, "gpt");
    let inside = Inside { file: &place.backing, at, size: 20 * MIB, kind: "ext4" };
    inside.make();
    up_dirty(&place, 1);
    // Writes each sampled range with its own content.
    let identity = Identity::decode(&superblock::read(&place.log).identity).unwrap();
    assert!(identity.is_whole());
    let mut disk = place.connect();
    for range in identity.ranges() {
        let (start, end) = (range.start / BLOCK * BLOCK, range.end.next_multiple_of(BLOCK));
        let bytes = disk.read(start, (end - start) as usize);
        disk.write(start, &bytes);
    }
    disk.flush();
    drop(disk);
    place.sandbox.ztier(&["drain", "vol"]).ok();
    let identity = Identity::decode(&superblock::read(&place.log).identity).unwrap();
    assert!(identity.is_whole(), "{identity:?}");
    write(&place, 2);
    die(&place);
    assert!(superblock::read(&place.log).open);
    let point = place.sandbox.path().join("point");
    inside.used(&point);
    try_up(&place, &[]).refused(5, &["was changed while", name, "after a state of the log of 20"]);
    up(&place, &["--discard-log"]);
    down(&place);
    inside.has_all(&point);
}

#[test]
fn what_writes_nothing_is_no_change() {
    if lacks_loops(&["sfdisk", "mkfs.ext4", "blkid"]) {
        return;
    }
    let place = place(64 * MIB);
    let (at, _) = lay_out(&place, "gpt");
    let inside = Inside { file: &place.backing, at, size: 20 * MIB, kind: "ext4" };
    inside.make();
    up_dirty(&place, 1);
    down(&place);
    inside.mounted("ro,noload", &place.sandbox.path().join("point"), |dir| {
        fs::read_dir(dir).unwrap().count();
    });
    run(20, "blkid", &["-p", &place.backing]);
    fs::set_permissions(&place.backing, fs::Permissions::from_mode(0o640)).unwrap();
    let away = format!("{}.away", place.backing);
    fs::rename(&place.backing, &away).unwrap();
    fs::rename(&away, &place.backing).unwrap();
    fs::read(&place.backing).unwrap();
    up(&place, &[]);
    check(&place, 1);
    // A restart has two daemons, one after the other.
    place.sandbox.ztier(&["restart", "vol"]).ok();
    check(&place, 1);
    down(&place);
    // In another boot, too.
    superblock::reboot(&place.log);
    up(&place, &[]);
    check(&place, 1);
    down(&place);
}

/// Within one boot a change need not be near a sample.
#[test]
fn one_byte_is_counted_wherever_it_is() {
    let place = place(64 * MIB);
    if !is_counted(&place) {
        return;
    }
    up_dirty(&place, 1);
    down(&place);
    let file = File::options().write(true).open(&place.backing).unwrap();
    file.write_all_at(&[0], 23 * MIB + 77).unwrap();
    let says = ["was changed while", "the kernel counted changes, which no sample shows"];
    try_up(&place, &[]).refused(5, &says);
    // A log without unwritten changes accepts it.
    up(&place, &["--accept-changed-backing"]);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    file.write_all_at(&[7], 23 * MIB + 77).unwrap();
    up(&place, &[]);
    assert_eq!(place.connect().read(23 * MIB + 77, 1), [7]);
    // After a kill the change is not detected: see `docs/durability.md`.
    write(&place, 2);
    die(&place);
    file.write_all_at(&[8], 23 * MIB + 77).unwrap();
    up(&place, &[]);
    check(&place, 2);
    down(&place);
}

/// Writes to other parts of a disk count as no change.
#[test]
fn a_neighbour_on_the_disk_changes_nothing() {
    if lacks_loops(&[]) {
        return;
    }
    let place = place(64 * MIB);
    let disk = Loop::on(Path::new(&place.backing), &[]);
    let (own, other) = (disk.part(1, MIB..33 * MIB), disk.part(2, 33 * MIB..63 * MIB));
    let up = |more: &[&str]| {
        let drives = ["--backing", own.path(), "--log", &place.log, "--writeback", "off"];
        let first = ["up", "vol", "--export", "nbd", "--segment", "64K"];
        place.sandbox.ztier(&[&first[..], &drives, more].concat())
    };
    up(&[]).ok();
    write(&place, 1);
    down(&place);
    let write_to = |path: &str| {
        let file = File::options().write(true).open(path).unwrap();
        file.write_all_at(&[9; 4096], 20 * MIB).unwrap();
        file.sync_all().unwrap();
    };
    write_to(other.path());
    up(&[]).ok();
    check(&place, 1);
    down(&place);
    write_to(own.path());
    up(&[]).refused(5, &["was changed while", "the kernel counted changes"]);
    up(&["--accept-changed-backing"]).ok();
    down(&place);
    // The disk outside of its partitions.
    let file = File::options().write(true).open(disk.path()).unwrap();
    file.write_all_at(&[9; 4096], 0).unwrap();
    file.sync_all().unwrap();
    up(&[]).ok();
    check(&place, 1);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

/// The drive has another id, and a window that did not end has written to every sampled range.
#[test]
fn a_copy_of_which_no_sample_is_left_may_take_its_place() {
    let place = place(16 * MIB);
    up_dirty(&place, 1);
    die(&place);
    superblock::forget_samples(&place.log);
    let copy = format!("{}.copy", place.backing);
    fs::copy(&place.backing, &copy).unwrap();
    let with = |backing: &str, more: &[&str]| {
        let drives = ["--backing", backing, "--log", &place.log];
        place.sandbox.ztier(&[&["up", "vol", "--export", "nbd"], &drives[..], more].concat())
    };
    with(&copy, &[]).refused(5, &["no sample of that left to compare", "--moved", "certain"]);
    // The size has to match.
    let large = format!("{}.large", place.backing);
    File::create(&large).unwrap().set_len(32 * MIB).unwrap();
    with(&large, &["--moved"]).refused(5, &["log of another drive", "its size"]);
    // No record may contradict the copy.
    let other = format!("{}.other", place.log);
    File::create(&other).unwrap().set_len(16 << 20).unwrap();
    let busy = ["up", "two", "--export", "nbd", "--backing", &copy, "--log", &other];
    place.sandbox.ztier(&[&busy[..], &["--writeback", "off"]].concat()).ok();
    let mut disk =
        crate::support::disk::Disk::open(&place.sandbox.run_dir().join("two.nbd"), "two");
    disk.write(0, &content(0, 5));
    disk.flush();
    drop(disk);
    place.sandbox.ztier(&["down", "two"]).ok();
    with(&copy, &["--moved"]).refused(5, &["lacks what its log on", &other]);
    place
        .sandbox
        .ztier(&["up", "two", "--export", "nbd", "--backing", &copy, "--log", &other])
        .ok();
    place.sandbox.ztier(&["down", "two", "--drain"]).ok();
    let said = with(&copy, &["--moved"]);
    assert!(said.err.contains("that is all that could be compared"), "{said:?}");
    said.ok();
    check(&place, 1);
    down(&place);
    // From then on the copy is the backing store.
    with(&copy, &[]).ok();
    check(&place, 1);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    assert_eq!(fs::read(&copy).unwrap()[(DIRTY * BLOCK) as usize..][..4096], content(DIRTY, 1));
}

/// The same with kills during windows; `ZTIER_KILLS` sets the number.
#[test]
fn a_copy_may_take_the_place_whenever_the_daemon_was_killed() {
    let place = place(16 * MIB);
    let kills = std::env::var("ZTIER_KILLS").map_or(10, |text| text.parse().unwrap());
    let (mut current, mut unproven) = (place.backing.clone(), 0);
    for round in 0..kills {
        let up = |more: &[&str]| {
            let drives = ["--backing", &current, "--log", &place.log, "--segment", "64K"];
            let first = ["up", "vol", "--export", "nbd", "--writeback-threshold", "0"];
            place.sandbox.ztier(&[&first[..], &drives, more].concat())
        };
        up(if round == 0 { &[] } else { &["--moved"] }).ok();
        let mut disk = place.connect();
        for block in 0..16 * MIB / BLOCK {
            disk.write(block * BLOCK, &content(block, round + 1));
        }
        disk.flush();
        drop(disk);
        let written = || place.log_of("vol")["written_back_bytes"].as_u64().unwrap();
        eventually("a window is at work", || written() > 0);
        std::thread::sleep(std::time::Duration::from_millis(round * 7 % 40));
        die(&place);
        let next = format!("{}.{round}", place.backing);
        fs::copy(&current, &next).unwrap();
        current = next;
        let identity = Identity::decode(&superblock::read(&place.log).identity).unwrap();
        unproven += u64::from(identity.ranges().is_empty());
    }
    println!("{unproven} of {kills} had no sample left");
    let drives = ["--backing", &current, "--log", &place.log, "--moved"];
    place.sandbox.ztier(&[&["up", "vol", "--export", "nbd"], &drives[..]].concat()).ok();
    let mut disk = place.connect();
    for block in 0..16 * MIB / BLOCK {
        assert!(disk.read(block * BLOCK, BLOCK as usize) == content(block, kills), "block {block}");
    }
    drop(disk);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

/// The log's data is that of no other drive: to give it up must not be the first advice.
#[test]
fn a_backing_store_that_was_resized_with_data_in_its_log_gets_its_size_back() {
    for size in [24 * MIB, 12 * MIB] {
        let place = place(16 * MIB);
        up_dirty(&place, 1);
        down(&place);
        let file = File::options().write(true).open(&place.backing).unwrap();
        file.set_len(size).unwrap();
        let says = ["had 16777216 bytes when", "give it that size back", "--drain`; change its"];
        let now = format!("has {size} now");
        let text = try_up(&place, &[]).refused(5, &[&says[..], &[now.as_str()]].concat());
        assert!(text.find("--drain") < text.find("--discard-log"), "{text}");
        try_up(&place, &["--accept-changed-backing"]).refused(5, &says);
        file.set_len(16 * MIB).unwrap();
        // The kernel counts a file's resizing as a change.
        let counted: &[&str] = if is_counted(&place) { &["--accept-changed-backing"] } else { &[] };
        up(&place, counted);
        check(&place, 1);
        place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
        // Drained, it may have any size.
        file.set_len(24 * MIB).unwrap();
        let drives = ["--backing", &place.backing, "--segment", "64K", &place.log];
        place.sandbox.ztier(&[&["log", "format"], &drives[..]].concat()).ok();
        up(&place, &[]);
        check(&place, 1);
        down(&place);
    }
}

/// An SSD that has become read-only still has the log, which knows its UUID but not its drive.
#[test]
fn a_log_that_can_only_be_read_goes_on_as_a_copy() {
    if lacks_loops(&[]) {
        return;
    }
    let place = place(16 * MIB);
    up_dirty(&place, 1);
    down(&place);
    let on = |log: &str, more: &[&str]| {
        let drives = ["--backing", &place.backing, "--log", log, "--writeback", "off"];
        let first = ["up", "vol", "--export", "nbd", "--segment", "64K"];
        place.sandbox.ztier(&[&first[..], &drives, more].concat())
    };
    let device = Loop::on(Path::new(&place.log), &["--read-only"]);
    on(device.path(), &[]).refused(1, &["is read-only", "copy the drive whole", "--log"]);
    drop(device);
    let copy = format!("{}.copy", place.log);
    fs::copy(&place.log, &copy).unwrap();
    File::options().write(true).open(&copy).unwrap().set_len(20 * MIB).unwrap();
    on(&copy, &[]).ok();
    check(&place, 1);
    write(&place, 2);
    down(&place);
    on(&place.log, &[]).refused(5, &["in an older state", "give the newer log"]);
    on(&copy, &[]).ok();
    check(&place, 2);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

//! The logical sector of a volume's block device: that of its content, of its drive, or 4096. A
//! table or file system made on the disk alone is the same through ztier, and vice versa.
//!
//! Needs root, `/dev/fuse`, loop devices and the programs that each test names; otherwise a test
//! prints `skipped:` and the reason. Every command has a time limit.
#![cfg(feature = "fuse")]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::loops::{Loop, lacks_loops};
use crate::support::sandbox::Sandbox;
use crate::support::shell::{ok, unmount};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, Stdio};

const MIB: u64 = 1 << 20;
/// Size of a backing store: the minimum of mkfs.xfs.
const SIZE: u64 = 320 * MIB;

/// A place for a volume with a block device.
struct Place {
    sandbox: Sandbox,
    name: String,
}

impl Place {
    /// `None`, with a message, where there can be no device or a program is missing.
    fn new(programs: &[&str]) -> Option<Self> {
        if lacks_loops(programs) {
            return None;
        }
        if let Err(why) = ztier::export::fuse::available(true) {
            println!("skipped: {why}");
            return None;
        }
        let sandbox = Sandbox::new();
        let name = sandbox.device_name("sectors");
        Some(Self { sandbox, name })
    }

    /// A sparse file.
    fn file(&self, name: &str, size: u64) -> PathBuf {
        let path = self.sandbox.path().join(name);
        File::create(&path).unwrap().set_len(size).unwrap();
        path
    }

    /// Brings the volume up; returns its device.
    fn up(&self, flags: &[&str]) -> String {
        let up = ["up", &self.name, "--export", "fuse"];
        let out = self.sandbox.ztier(&[&up[..], flags].concat()).ok();
        out.lines().next().unwrap().to_owned()
    }

    fn down(&self) {
        self.sandbox.ztier(&["down", &self.name, "--discard"]).ok();
    }

    /// The plan that `up --dry-run` prints: sector size and text.
    fn plan(&self, flags: &[&str]) -> (u64, String) {
        let up = ["up", &self.name, "--export", "fuse", "--dry-run", "--json"];
        let plan = self.sandbox.ztier(&[&up[..], flags].concat()).json();
        let why = plan["sector_reason"].as_str().unwrap().to_owned();
        (plan["sector_bytes"].as_u64().unwrap(), why)
    }
}

/// The logical sector of a device.
fn sector(device: &str) -> u64 {
    ok(10, "blockdev", &["--getss", device]).trim().parse().unwrap()
}

/// Makes a GPT with one partition from the first MiB on.
fn part(device: &str) {
    let mut sfdisk = Command::new("sfdisk");
    sfdisk.args(["--quiet", "--no-reread", "--no-tell-kernel", device]);
    let child = sfdisk.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped()).spawn();
    let mut child = child.unwrap();
    child.stdin.take().unwrap().write_all(b"label: gpt\nstart=1MiB, size=64MiB\n").unwrap();
    let out = child.wait_with_output().unwrap();
    assert!(out.status.success(), "{out:?}");
}

/// First byte and length in bytes of each partition in the table of a device or file.
fn table(device: &str) -> Vec<(u64, u64)> {
    let table: serde_json::Value =
        serde_json::from_str(&ok(20, "sfdisk", &["--json", device])).unwrap();
    let table = &table["partitiontable"];
    let sector = table["sectorsize"].as_u64().unwrap();
    let partitions = table["partitions"].as_array().unwrap().iter();
    let bytes = |part: &serde_json::Value, key: &str| part[key].as_u64().unwrap() * sector;
    partitions.map(|part| (bytes(part, "start"), bytes(part, "size"))).collect()
}

const PARTITION: [(u64, u64); 1] = [(MIB, 64 * MIB)];

#[test]
fn a_drive_without_content_decides_itself_and_a_flag_decides_for_all() {
    let Some(place) = Place::new(&["blockdev"]) else { return };
    let small = Loop::on(&place.file("small", 64 * MIB), &["--sector-size", "512"]);
    let block = Loop::on(&place.file("block", 64 * MIB), &["--sector-size", "4096"]);
    let file = place.file("file", 64 * MIB);
    let file = file.to_str().unwrap();
    for (flags, expected, why) in [
        (&["--backing", small.path()][..], 512, "that of the drive"),
        (&["--backing", block.path()], 4096, "that of the drive"),
        (&["--backing", file], 4096, "a file"),
        (&["--size", "64M"], 4096, "a block"),
        (&["--size", "64M", "--sector", "512"], 512, "asked for"),
        (&["--backing", file, "--sector", "512"], 512, "asked for"),
        (&["--backing", small.path(), "--sector", "4096"], 4096, "asked for"),
    ] {
        assert_eq!(place.plan(flags), (expected, why.to_owned()), "{flags:?}");
        let device = place.up(flags);
        assert_eq!(sector(&device), expected, "{flags:?}");
        // An earlier daemon of the volume may have died.
        place.sandbox.kill(&place.name);
        place.sandbox.ztier(&["restart", &place.name]).ok();
        assert_eq!(sector(&device), expected, "{flags:?} after a restart");
        place.down();
    }
}

#[test]
fn a_partition_table_is_the_same_with_and_without_ztier() {
    let Some(place) = Place::new(&["sfdisk", "blockdev"]) else { return };
    let disk = Loop::on(&place.file("disk", SIZE), &["--sector-size", "512"]);
    // Made on the disk alone; then through ztier.
    part(disk.path());
    let device = place.up(&["--backing", disk.path(), "--ram-limit", "4M"]);
    assert_eq!((sector(&device), table(&device)), (512, PARTITION.to_vec()));
    ok(20, "wipefs", &["--all", "--quiet", &device]);
    part(&device);
    place.down();
    assert_eq!(table(disk.path()), PARTITION);
    drop(disk);
    // Most programs assume sectors of 512 bytes in a file.
    let file = place.file("file", SIZE);
    let file = file.to_str().unwrap();
    part(file);
    assert_eq!(place.plan(&["--backing", file]), (512, "GPT".to_owned()));
    let device = place.up(&["--backing", file]);
    assert_eq!((sector(&device), table(&device)), (512, PARTITION.to_vec()));
    place.down();
}

/// A table in the log counts, not the old one in the backing store.
#[test]
fn content_in_the_log_decides_and_a_restart_keeps_the_sector() {
    let Some(place) = Place::new(&["sfdisk", "blockdev"]) else { return };
    let (file, log) = (place.file("slow", SIZE), place.file("fast", 32 * MIB));
    fs::set_permissions(&log, std::os::unix::fs::PermissionsExt::from_mode(0o600)).unwrap();
    let (file, log) = (file.to_str().unwrap(), log.to_str().unwrap());
    let flags = ["--backing", file, "--log", log, "--writeback", "off", "--segment", "64K"];
    let device = place.up(&[&flags[..], &["--sector", "512"]].concat());
    part(&device);
    place.sandbox.ztier(&["down", &place.name]).ok();
    let mut head = [0; 1024];
    File::open(file).unwrap().read_exact_at(&mut head, 0).unwrap();
    assert_eq!(head, [0; 1024], "the table is in the log alone");
    let device = place.up(&flags);
    assert_eq!((sector(&device), table(&device)), (512, PARTITION.to_vec()));
    // With 4096 bytes the table is invalid.
    ok(20, "wipefs", &["--all", "--quiet", &device]);
    place.sandbox.ztier(&["restart", &place.name]).ok();
    assert_eq!(sector(&device), 512);
    place.sandbox.ztier(&["down", &place.name, "--drain"]).ok();
}

/// File systems with blocks smaller than those of ztier, in each role.
#[test]
fn file_systems_with_small_blocks_are_used_through_ztier_and_alone() {
    let Some(place) = Place::new(&["mkfs.ext4", "e2fsck", "mkfs.xfs", "xfs_repair"]) else {
        return;
    };
    let mnt = place.sandbox.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    let mnt = mnt.to_str().unwrap();
    let ext4 = (&["mkfs.ext4", "-q", "-F", "-b", "1024"][..], &["e2fsck", "-f", "-n"][..]);
    let xfs = (&["mkfs.xfs", "-q", "-f", "-s", "size=512"][..], &["xfs_repair", "-f", "-n"][..]);
    for (round, (make, check)) in [ext4, xfs, ext4, xfs].into_iter().enumerate() {
        let file = place.file(&format!("slow{round}"), SIZE);
        let file = file.to_str().unwrap();
        let with = |command: &[&str]| {
            ok(60, command[0], &[&command[1..], &[file]].concat());
        };
        with(make);
        let flags = ["--backing", file, "--ram-limit", "4M"];
        let log = place.file(&format!("fast{round}"), 64 * MIB);
        let logged = ["--log", log.to_str().unwrap(), "--segment", "64K"];
        let device =
            if round < 2 { place.up(&flags) } else { place.up(&[&flags[..], &logged].concat()) };
        if ok(5, "cat", &["/proc/filesystems"]).contains(&make[0][5..]) {
            ok(20, "mount", &[&device, mnt]);
            for i in 0..300_usize {
                let path = format!("{mnt}/{i}");
                fs::write(&path, vec![i as u8; i * 37]).unwrap();
            }
            unmount(mnt);
            ok(20, "mount", &[&device, mnt]);
            for i in 0..300_usize {
                let path = format!("{mnt}/{i}");
                assert_eq!(fs::read(&path).unwrap(), vec![i as u8; i * 37], "{path}");
            }
            unmount(mnt);
        } else {
            println!("skipped: this kernel mounts no {}", &make[0][5..]);
        }
        place.sandbox.ztier(&["down", &place.name, "--drain"]).ok();
        with(check);
    }
}

/// The last sectors would be missing: the second copy of a GPT, for instance.
#[test]
fn a_backing_store_that_is_no_multiple_of_a_block_is_refused() {
    let Some(place) = Place::new(&[]) else { return };
    let file = place.file("slow", 16 * MIB + 512);
    let log = place.file("fast", 16 * MIB);
    let disk = Loop::on(&file, &["--sector-size", "512"]);
    for (path, remedy) in
        [(file.to_str().unwrap(), "truncate -s %4096"), (disk.path(), "partition")]
    {
        let parts = [path, "16777728 bytes", "no multiple of 4096", remedy];
        let bare = ["up", &place.name, "--export", "nbd", "--backing", path];
        let logged = [&bare[..], &["--log", log.to_str().unwrap(), "--segment", "64K"]].concat();
        if path == disk.path() {
            place.sandbox.ztier(&bare).refused(1, &parts);
            place.sandbox.ztier(&logged).refused(1, &parts);
        } else {
            // The loop device has the content; its sectors are checked all the same.
            place.sandbox.ztier(&bare).refused(1, &parts);
        }
    }
    drop(disk);
    let path = file.to_str().unwrap();
    ok(10, "truncate", &["-s", "%4096", path]);
    place.sandbox.ztier(&["up", &place.name, "--export", "nbd", "--backing", path]).ok();
    place.down();
}

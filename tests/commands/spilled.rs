//! `--spill` by its commands: refusals before a byte is written, what a killed daemon leaves to the
//! next, devices that are changed or fail meanwhile.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::loops::Loop;
use crate::support::sandbox::Sandbox;
use crate::support::shell::{missing, ok, ok_once_free};
use crate::support::worn;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const BLOCK: u64 = 4096;
const UP: [&str; 10] =
    ["up", "vol", "--size", "32M", "--export", "nbd", "--segment", "64K", "--ram-limit", "5M"];

fn file(sandbox: &Sandbox, bytes: u64) -> PathBuf {
    let path = sandbox.path().join("below");
    File::create(&path).unwrap().set_len(bytes).unwrap();
    path
}

fn up(sandbox: &Sandbox, path: &std::path::Path, more: &[&str]) -> crate::support::sandbox::Done {
    sandbox.ztier(&[&UP[..], &["--spill", path.to_str().unwrap()], more].concat())
}

fn connect(sandbox: &Sandbox) -> Disk {
    Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol")
}

/// Writes blocks of noise, so that most of them are spilled.
fn fill(sandbox: &Sandbox, blocks: u64) {
    let mut disk = connect(sandbox);
    for block in 0..blocks {
        assert!(
            disk.try_write(block * BLOCK, &crate::support::place::content(block, 1)),
            "{block}"
        );
    }
}

fn check(sandbox: &Sandbox, blocks: u64) {
    let mut disk = connect(sandbox);
    for block in 0..blocks {
        let found = disk.read(block * BLOCK, BLOCK as usize);
        assert!(found == crate::support::place::content(block, 1), "block {block}");
    }
}

#[test]
fn more_than_memory_holds_is_there_and_told() {
    let sandbox = Sandbox::new();
    let path = file(&sandbox, 64 << 20);
    let shown = path.to_str().unwrap();
    let told = sandbox.ztier(&[&UP[..], &["--spill", shown, "--dry-run"]].concat()).ok();
    assert!(told.contains(shown) && told.contains("nothing known is"), "{told}");
    up(&sandbox, &path, &["--save", "--spill-daily", "1G"]).ok();
    fill(&sandbox, 4000);
    check(&sandbox, 4000);
    let status = sandbox.status("vol");
    let stats = &status["stats"];
    let count = |name: &str| stats[name].as_u64().unwrap_or_else(|| panic!("{name}: {stats}"));
    assert_eq!(count("no_space"), 0);
    assert!(count("spilled_blocks") > 2500 && count("spilled_segments") > 100, "{stats}");
    assert!(count("spill_device_reads") > 0 && count("spill_device_writes") > 100, "{stats}");
    assert!(count("spill_slots_used") * 2 < count("spill_slots"), "{stats}");
    assert!(count("spill_written_bytes") < 5000 * BLOCK, "{stats}");
    assert!(count("spill_allowed_bytes") < 1 << 30, "{stats}");
    assert!(count("mem_used_max_bytes") <= 5 << 20, "{stats}");
    let text = sandbox.ztier(&["status", "vol"]).looked();
    for part in
        [shown, "slots of 64K", "1 GiB a day on average", "takes what memory has no room for"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
    // The settings are complete; the volume takes its own device again.
    sandbox.ztier(&["up", "vol"]).ok();
    assert_eq!(sandbox.status("vol")["stats"]["spilled_blocks"], 0);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

#[test]
fn what_cannot_be_spilled_to_is_refused_and_untouched() {
    let sandbox = Sandbox::new();
    let missing = sandbox.path().join("missing");
    up(&sandbox, &missing, &[]).refused(1, &["does not exist"]);
    let small = file(&sandbox, 4 * (64 << 10));
    up(&sandbox, &small, &[]).refused(1, &["too small to spill to", "the least is 327680"]);
    let path = file(&sandbox, 16 << 20);
    let made = Command::new("mkswap").arg(&path).output().unwrap();
    assert!(made.status.success());
    let before = std::fs::read(&path).unwrap();
    up(&sandbox, &path, &[]).refused(5, &["holds swap", "--wipe"]);
    up(&sandbox, &path, &["--dry-run"]).refused(5, &["holds swap", "--wipe"]);
    assert!(std::fs::read(&path).unwrap() == before);
    up(&sandbox, &path, &["--wipe", "--dry-run"]).ok();
    assert!(std::fs::read(&path).unwrap() == before);
    up(&sandbox, &path, &["--wipe"]).ok();
    let shown = path.to_str().unwrap();
    let other = ["up", "two", "--size", "32M", "--export", "nbd", "--spill", shown];
    sandbox.ztier(&other).refused(4, &["below is in use"]);
    sandbox.kill_both("vol");
    sandbox.ztier(&other).refused(5, &["holds what volume `vol` spilled", "--wipe"]);
    up(&sandbox, &path, &[]).ok();
    let slow = sandbox.path().join("slow");
    File::create(&slow).unwrap().set_len(16 << 20).unwrap();
    let slow = slow.to_str().unwrap();
    sandbox.kill("vol");
    let as_log = ["up", "two", "--backing", slow, "--log", shown, "--export", "nbd"];
    let spilled = ["holds what volume `vol` spilled", "--wipe"];
    sandbox.ztier(&as_log).refused(5, &spilled);
    sandbox.ztier(&["log", "format", shown, "--backing", slow]).refused(5, &spilled);
    sandbox.ztier(&["restart", "vol"]).ok();
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
    // A log that is unusable here still counts as a log.
    sandbox.ztier(&["log", "format", shown, "--backing", slow]).ok();
    File::options().write(true).open(&path).unwrap().set_len(12 << 20).unwrap();
    up(&sandbox, &path, &["--wipe"]).refused(5, &["is a log of ztier", "another device"]);
    File::create(&path).unwrap().set_len(16 << 20).unwrap();
    up(&sandbox, &path, &[]).ok();
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
    // An orderly `down` leaves no valid spill data: another volume takes the device.
    sandbox.ztier(&other).ok();
    sandbox.ztier(&["down", "two", "--discard"]).ok();
    let low = ["up", "vol", "--size", "32M", "--ram-limit", "1M", "--spill", shown];
    sandbox.ztier(&low).refused(2, &["memory limit", "give at least"]);
    let bare = ["up", "vol", "--backing", shown, "--spill", shown];
    sandbox.ztier(&bare).refused(2, &["spill is for a volume in memory alone"]);
    let daily = ["up", "vol", "--size", "32M", "--spill-daily", "1G"];
    sandbox.ztier(&daily).refused(2, &["give --spill"]);
}

/// An action that is undone when dropped, also if a test fails.
struct Undo(&'static str, String);

impl Undo {
    fn now(self) {
        ok(20, self.0, &[&self.1]);
        std::mem::forget(self);
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        crate::support::shell::run(20, self.0, &[&self.1]);
    }
}

#[test]
fn a_device_in_use_is_refused_and_its_user_named() {
    let root = rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists();
    if !root || missing(&["losetup", "mkfs.ext4", "mkswap", "swapon"]) {
        println!("skipped: no loop devices");
        return;
    }
    let sandbox = Sandbox::new();
    let path = file(&sandbox, 16 << 20);
    let device = Loop::on(&path, &[]);
    let node = device.path();
    // --wipe overrides the content of a device, not the use of a device.
    let refused = |parts: &[&str]| {
        for more in [&["--wipe"][..], &["--wipe", "--dry-run"]] {
            up(&sandbox, &device.0, more).refused(4, &[&[node], parts].concat());
        }
    };
    up(&sandbox, &path, &["--wipe"]).refused(4, &["below is in use: loop device", node]);

    ok_once_free("mkfs.ext4", &["-q", "-F", node]);
    up(&sandbox, &device.0, &[]).refused(5, &["holds ext4", "--wipe"]);
    let point = sandbox.path().join("mnt");
    std::fs::create_dir(&point).unwrap();
    let point = point.to_str().unwrap();
    ok(20, "mount", &[node, point]);
    let mounted = Undo("umount", point.to_owned());
    refused(&[&format!("mounted on {point}"), "unmount it first"]);
    mounted.now();

    ok_once_free("mkswap", &["-q", "-f", node]);
    // With the lowest priority, and only for a moment: nothing is swapped out to it.
    ok(20, "swapon", &["--priority", "0", node]);
    let swap = Undo("swapoff", node.to_owned());
    refused(&["swap"]);
    swap.now();

    let two = ["up", "two", "--size", "32M", "--export", "nbd", "--segment", "64K", "--wipe"];
    sandbox.ztier(&[&two[..], &["--ram-limit", "5M", "--spill", node]].concat()).ok();
    refused(&["is in use", "process", "ztier"]);
    sandbox.ztier(&["down", "two", "--discard"]).ok();

    up(&sandbox, &device.0, &["--wipe"]).ok();
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

#[test]
fn after_a_kill_only_the_same_device_goes_on() {
    let sandbox = Sandbox::new();
    let path = file(&sandbox, 64 << 20);
    up(&sandbox, &path, &[]).ok();
    fill(&sandbox, 4000);
    sandbox.kill("vol");
    let label = |bytes: Option<&[u8]>| {
        let drive = File::options().read(true).write(true).open(&path).unwrap();
        let mut before = vec![0; BLOCK as usize];
        drive.read_exact_at(&mut before, 0).unwrap();
        drive.write_all_at(bytes.unwrap_or(&[0; BLOCK as usize]), 0).unwrap();
        before
    };
    let before = label(None);
    let refused = ["does not hold what was spilled any more", "ztier restart vol --discard-spill"];
    up(&sandbox, &path, &[]).refused(5, &refused);
    label(Some(&before));
    let away = sandbox.path().join("away");
    std::fs::rename(&path, &away).unwrap();
    up(&sandbox, &path, &[]).refused(5, &["is gone"]);
    file(&sandbox, 64 << 20);
    up(&sandbox, &path, &[]).refused(5, &refused[..1]);
    std::fs::rename(&away, &path).unwrap();
    // An `up` with another device gets the message that the device stays the same.
    let other = sandbox.path().join("other");
    File::create(&other).unwrap().set_len(64 << 20).unwrap();
    up(&sandbox, &other, &[]).ok();
    assert_eq!(sandbox.status("vol")["spill"]["device"], path.to_str().unwrap());
    check(&sandbox, 4000);
    sandbox.ztier(&["restart", "vol"]).ok();
    check(&sandbox, 4000);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
    assert!(std::fs::read(&other).unwrap().iter().all(|byte| *byte == 0));
}

/// A device whose file loses its bytes: its content can't be read, all other blocks can.
#[test]
fn a_device_that_is_cut_off_costs_what_was_on_it() {
    let sandbox = Sandbox::new();
    let path = file(&sandbox, 64 << 20);
    up(&sandbox, &path, &[]).ok();
    fill(&sandbox, 4000);
    File::options().write(true).open(&path).unwrap().set_len(0).unwrap();
    let mut disk = connect(&sandbox);
    let (mut lost, mut read) = (0, 0);
    for block in (0..4000).rev() {
        match disk.try_read(block * BLOCK, BLOCK as usize) {
            Some(found) => {
                assert!(found == crate::support::place::content(block, 1), "block {block}");
                read += 1;
            }
            None => lost += 1,
        }
    }
    assert!(lost > 2000 && read > 300, "{lost} {read}");
    let text = sandbox.ztier(&["status", "vol"]).looked();
    assert!(text.contains("failed reads"), "{text}");
    drop(disk);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

/// A device that accepts no writes from some byte on: spilling pauses, which `status` reports, and
/// no written data is lost.
#[test]
fn a_device_that_fails_is_told_and_costs_nothing() {
    let sandbox = Sandbox::new();
    let path = file(&sandbox, 64 << 20);
    worn::up(&sandbox, &[&UP[..], &["--spill", path.to_str().unwrap()]].concat());
    worn::limit(&sandbox, "vol", Some(4 << 20));
    let mut disk = connect(&sandbox);
    let write = |block| crate::support::place::content(block, 1);
    let full = (0..4000).find(|n| disk.write_error(n * BLOCK, &write(*n)) != 0).unwrap();
    drop(disk);
    // The spilled data, and that in memory.
    assert!(full > 1000 && full < 3000, "{full}");
    check(&sandbox, full);
    let text = sandbox.ztier(&["status", "vol"]).looked();
    assert!(
        text.contains("takes nothing for now, and is tried again in at most a minute"),
        "{text}"
    );
    assert!(text.contains("writes without space"), "{text}");
    // Discards make room, in memory only.
    let mut disk = connect(&sandbox);
    (100..full).for_each(|block| disk.write(block * BLOCK, &[0; BLOCK as usize]));
    (0..100).for_each(|block| disk.write(block * BLOCK, &write(block)));
    drop(disk);
    check(&sandbox, 100);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

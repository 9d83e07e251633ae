//! The read cache as users see it: the commands and their refusals, kills, and real clients.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::place::{BLOCK, BLOCKS, Place, content};
use crate::support::sandbox::Sandbox;
use crate::support::shell::{missing, ok, unmount};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;

/// A place whose backing store has a version of each block.
fn filled() -> Place {
    let place = Place::new();
    let all: Vec<u8> = (0..BLOCKS).flat_map(|block| content(block, 1)).collect();
    fs::write(&place.backing, all).unwrap();
    place
}

fn up<'a>(place: &'a Place, more: &[&'a str]) -> Vec<&'a str> {
    let first = ["up", "vol", "--export", "nbd", "--backing", &place.backing];
    [&first[..], more].concat()
}

fn cache(sandbox: &Sandbox) -> Value {
    sandbox.status("vol")["stats"]["cache"].clone()
}

/// Memory files of a volume's daemon, in KiB.
fn memory(sandbox: &Sandbox) -> u64 {
    let pid = sandbox.pid("vol").as_raw_nonzero();
    let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssShmem:")).unwrap();
    line.trim().trim_end_matches(" kB").parse().unwrap()
}

fn read_all(place: &Place) {
    let mut disk = place.connect();
    for block in 0..BLOCKS {
        let found = disk.read(block * BLOCK, BLOCK as usize);
        assert!(found == content(block, 1), "block {block}");
    }
}

#[test]
fn what_was_read_is_read_from_memory() {
    let place = filled();
    let said = place.sandbox.ztier(&up(&place, &["--ram-limit", "16M"]));
    assert!(said.err.contains("copies in at most 16 MiB of memory"), "{said:?}");
    said.ok();
    read_all(&place);
    let first = cache(&place.sandbox);
    read_all(&place);
    let second = cache(&place.sandbox);
    assert_eq!(second["missed_blocks"], first["missed_blocks"], "{second}");
    assert_eq!(second["blocks"], BLOCKS);
    let hits = second["hit_blocks"].as_u64().unwrap() - first["hit_blocks"].as_u64().unwrap();
    assert_eq!(hits, BLOCKS);
    assert!(second["used_bytes"].as_u64().unwrap() <= 16 << 20, "{second}");
    let said = place.sandbox.ztier(&["status", "vol"]).looked();
    assert!(said.contains("holds 8 MiB in ") && said.contains("were hits"), "{said}");
    let memory = memory(&place.sandbox);
    assert!(memory > 8 << 10, "{memory} KiB");
    let said = place.sandbox.ztier(&["stats", "vol"]).ok();
    assert!(said.contains("blocks with a copy") && said.contains("  useless"), "{said}");

    // A lower limit takes effect at once, no limit ends it, and a higher one takes effect again.
    let said = place.sandbox.ztier(&["set", "vol", "ram-limit=1M"]).ok();
    assert!(said.contains("ram-limit=1M"), "{said}");
    assert!(cache(&place.sandbox)["used_bytes"].as_u64().unwrap() <= 1 << 20);
    read_all(&place);
    place.sandbox.ztier(&["set", "vol", "ram-limit=0"]).ok();
    assert_eq!(cache(&place.sandbox)["blocks"], 0);
    let said = place.sandbox.ztier(&["status", "vol"]).looked();
    assert!(
        said.lines().any(|line| line.starts_with("cache") && line.ends_with(" none")),
        "{said}"
    );
    let memory = self::memory(&place.sandbox);
    assert!(memory < 2 << 10, "{memory} KiB are not given back");
    read_all(&place);
    place.sandbox.ztier(&["set", "vol", "ram-limit=32M"]).ok();
    read_all(&place);
    assert_eq!(cache(&place.sandbox)["blocks"], BLOCKS);
    place.sandbox.ztier(&["down", "vol"]).ok();
}

#[test]
fn a_killed_daemon_leaves_a_cache_that_is_empty_and_right() {
    for log in [false, true] {
        let place = filled();
        let logged = ["--log", &place.log, "--segment", "64K"];
        let more: &[&str] = if log { &logged } else { &[] };
        place.sandbox.ztier(&up(&place, more)).ok();
        read_all(&place);
        let mut disk = place.connect();
        for block in (0..BLOCKS).step_by(3) {
            disk.write(block * BLOCK, &content(block, 2));
        }
        disk.flush();
        drop(disk);
        place.sandbox.kill("vol");
        place.sandbox.ztier(&["restart", "vol"]).ok();
        let now = cache(&place.sandbox);
        assert!(now["limit_bytes"].as_u64().unwrap() > 1 << 20, "{now}");
        assert!(now["hit_blocks"] == 0 && now["blocks"].as_u64().unwrap() < 64, "{now}");
        let check = |disk: &mut crate::support::disk::Disk, block: u64| {
            let version = if block.is_multiple_of(3) { 2 } else { 1 };
            let found = disk.read(block * BLOCK, BLOCK as usize);
            assert!(found == content(block, version), "block {block}");
        };
        let mut disk = place.connect();
        (0..BLOCKS).for_each(|block| check(&mut disk, block));
        drop(disk);
        if log {
            // After writeback reads return the written content, from copies and from the drive.
            place.sandbox.ztier(&["drain", "vol"]).ok();
            let mut disk = place.connect();
            (0..BLOCKS).for_each(|block| check(&mut disk, block));
            let before = cache(&place.sandbox)["hit_blocks"].as_u64().unwrap();
            (0..BLOCKS).for_each(|block| check(&mut disk, block));
            let hits = cache(&place.sandbox)["hit_blocks"].as_u64().unwrap() - before;
            assert!(hits > BLOCKS / 10 * 9, "{hits} hits");
        }
        place.sandbox.ztier(&["down", "vol"]).ok();
        assert!(place.sandbox.files().is_empty(), "{:?}", place.sandbox.files());
        if !log {
            let backing = fs::read(&place.backing).unwrap();
            for block in 0..BLOCKS {
                let version = if block.is_multiple_of(3) { 2 } else { 1 };
                let at = (block * BLOCK) as usize;
                assert!(backing[at..at + 4096] == content(block, version), "block {block}");
            }
        }
    }
}

#[test]
fn limits_that_cannot_be_are_refused() {
    let place = filled();
    let refused = |more: &[&str], says: &[&str]| {
        place.sandbox.ztier(&up(&place, more)).refused(2, says);
    };
    refused(&["--ram-limit", "1000K"], &["ram-limit 1024000 is too little", "give at least 1M"]);
    refused(&["--ram-limit", "15T"], &["is more than the", "of memory", "like 10%"]);
    refused(&["--size", "1G"], &["leave out size"]);
    refused(&["--log", &place.log, "--size", "1G"], &["leave out size"]);
    refused(&["--log", &place.log, "--ram-limit", "4K"], &["too little"]);
    let said = place.sandbox.ztier(&up(&place, &["--dry-run"])).ok();
    assert!(said.contains("compressed read cache"), "{said}");
    let said = place.sandbox.ztier(&up(&place, &["--dry-run", "--ram-limit", "0"])).ok();
    assert!(said.contains("a backing store alone") && said.contains("none"), "{said}");

    place.sandbox.ztier(&up(&place, &["--ram-limit", "2M"])).ok();
    let set = |limit: &str| place.sandbox.ztier(&["set", "vol", &format!("ram-limit={limit}")]);
    set("1").refused(2, &["too little"]);
    set("15T").refused(2, &["is more than the"]);
    assert_eq!(cache(&place.sandbox)["limit_bytes"], 2 << 20);
    // No other volume may use the backing store meanwhile.
    let again = ["up", "two", "--export", "nbd", "--backing", &place.backing, "--ram-limit", "2M"];
    place.sandbox.ztier(&again).refused(4, &["is in use", "volume `vol`"]);
    place.sandbox.ztier(&["down", "vol"]).ok();
}

#[test]
fn a_backing_store_that_shrinks_is_served_as_far_as_there_are_copies() {
    let place = filled();
    place.sandbox.ztier(&up(&place, &["--ram-limit", "16M"])).ok();
    let mut disk = place.connect();
    for block in (0..BLOCKS / 2).step_by(2) {
        disk.read(block * BLOCK, BLOCK as usize);
    }
    File::options().write(true).open(&place.backing).unwrap().set_len(4096).unwrap();
    assert!(disk.read(2 * BLOCK, BLOCK as usize) == content(2, 1));
    let lost = (BLOCKS - 1) * BLOCK;
    assert!(disk.try_read(lost, BLOCK as usize).is_none());
    assert!(disk.read(100 * BLOCK, BLOCK as usize) == content(100, 1));
    let said = place.sandbox.ztier(&["status", "vol"]).looked();
    assert!(said.contains("1 errors of the backing store"), "{said}");
    drop(disk);
    place.sandbox.ztier(&["down", "vol"]).ok();
}

/// A block device over a backing file, if this machine supports that.
fn block_device(sandbox: &Sandbox, backing: &str, more: &[&str]) -> Option<String> {
    if let Err(why) = ztier::export::fuse::available(true) {
        println!("skipped: {why}");
        return None;
    }
    let name = sandbox.device_name("copies");
    let args = ["up", &name, "--export", "fuse", "--backing", backing, "--ram-limit", "4M"];
    let device = sandbox.ztier(&[&args[..], more].concat()).ok();
    Some(device.lines().next().unwrap().to_owned())
}

/// A loop device keeps its last user's setting: each volume sets its own, and restores the
/// kernel's.
#[test]
fn readahead_is_not_that_of_the_volume_before() {
    if let Err(why) = ztier::export::fuse::available(true) {
        println!("skipped: {why}");
        return;
    }
    let sandbox = Sandbox::new();
    let backing = sandbox.path().join("slow");
    File::create(&backing).unwrap().set_len(16 << 20).unwrap();
    let name = sandbox.device_name("ahead");
    let first = ["up", &name, "--export", "fuse"];
    for (more, expected) in [
        (["--size", "16M"], "1024"),
        (["--backing", backing.to_str().unwrap()], "128"),
        (["--size", "16M"], "1024"),
    ] {
        let out = sandbox.ztier(&[&first[..], &more].concat()).ok();
        let device = fs::canonicalize(out.lines().next().unwrap()).unwrap();
        let disk = Path::new("/sys/block").join(device.file_name().unwrap());
        let found = || fs::read_to_string(disk.join("queue/read_ahead_kb")).unwrap();
        assert_eq!(found().trim(), expected, "{more:?}");
        sandbox.ztier(&["down", &name, "--discard"]).ok();
        let free = || !disk.join("loop").exists();
        let (before, left, after) = (free(), found(), free());
        if before && after {
            assert_eq!(left.trim(), "128", "after {more:?}");
        } else {
            println!("skipped: what is left on {}: another process has it", disk.display());
        }
    }
}

#[test]
fn fio_and_ext4_get_back_what_they_wrote() {
    if missing(&["fio", "mkfs.ext4", "e2fsck", "fstrim"]) {
        return;
    }
    let sandbox = Sandbox::new();
    let backing = sandbox.path().join("slow");
    File::create(&backing).unwrap().set_len(64 << 20).unwrap();
    let backing = backing.to_str().unwrap();
    let Some(device) = block_device(&sandbox, backing, &[]) else { return };
    let name = sandbox.device_name("copies");
    let file = format!("--filename={device}");
    let fio = [
        &file,
        "--direct=1",
        "--verify_state_save=0",
        "--ioengine=libaio",
        "--iodepth=8",
        "--verify=crc32c",
        "--buffer_compress_percentage=50",
        "--name=mixed",
        "--rw=randrw",
        "--bsrange=4k-256k",
        "--blockalign=4k",
        "--size=32m",
        "--name=small",
        "--rw=randrw",
        "--bs=4k",
        "--offset=32m",
        "--size=16m",
    ];
    let out = ok(90, "fio", &fio);
    assert!(!out.contains("verify failed"), "{out}");

    ok(30, "mkfs.ext4", &["-q", "-F", &device]);
    let mnt = sandbox.path().join("mnt");
    fs::create_dir(&mnt).unwrap();
    let at = mnt.to_str().unwrap();
    let file =
        |i: u32| -> Vec<u8> { (0..400_000u32).flat_map(|n| (n / 7 * i).to_le_bytes()).collect() };
    ok(20, "mount", &[&device, at]);
    (1..9).for_each(|i| fs::write(mnt.join(i.to_string()), file(i)).unwrap());
    (1..4).for_each(|i| fs::remove_file(mnt.join(i.to_string())).unwrap());
    ok(30, "fstrim", &[at]);
    unmount(at);
    ok(30, "e2fsck", &["-f", "-n", &device]);
    ok(20, "mount", &["-o", "ro", &device, at]);
    for round in 0..2 {
        (4..9).for_each(|i| {
            assert!(fs::read(mnt.join(i.to_string())).unwrap() == file(i), "{i}, {round}");
        });
        unmount(at);
        ok(20, "mount", &["-o", "ro", &device, at]);
    }
    unmount(at);
    let stats = sandbox.status(&name)["stats"]["cache"].clone();
    assert!(stats["hit_blocks"].as_u64().unwrap() > 100, "{stats}");
    assert!(stats["damaged_copies"] == 0 && stats["backing_errors"] == 0, "{stats}");
    sandbox.ztier(&["down", &name]).ok();
    // Without ztier the backing store has the content of the volume.
    ok(30, "e2fsck", &["-f", "-n", backing]);
}

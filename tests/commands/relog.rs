//! Another log under a running volume, or no log: nothing is missing, and the old one may come
//! back. Also the volume without a log: it is its backing store.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::place::{BLOCK, BLOCKS, Place, content};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::Command;
use ztier::log::disk::format::data_at;

/// Writes a version of every fourth block, from `first` on, without a flush.
fn write(place: &Place, first: u64, version: u64) {
    let mut disk = place.connect();
    for block in (first..BLOCKS).step_by(4) {
        disk.write(block * BLOCK, &content(block, version));
    }
}

fn check(place: &Place, versions: [u64; 4]) {
    let mut disk = place.connect();
    for block in 0..BLOCKS {
        let found = disk.read(block * BLOCK, BLOCK as usize);
        let version = versions[block as usize % 4];
        let expected = match version {
            0 => vec![0; BLOCK as usize],
            version => content(block, version),
        };
        assert!(found == expected, "block {block} is not of version {version}");
    }
}

/// A file as large as the log's.
fn another(place: &Place, name: &str) -> String {
    let path = place.sandbox.path().join(name);
    let size = fs::metadata(&place.log).unwrap().len();
    File::create(&path).unwrap().set_len(size).unwrap();
    path.to_str().unwrap().to_owned()
}

#[test]
fn a_log_is_changed_under_a_volume() {
    let place = Place::new();
    let second = another(&place, "second");
    place.sandbox.ztier(&[&place.up()[..], &["--save"]].concat()).ok();
    write(&place, 0, 1);
    let restarted = place.sandbox.ztier(&["restart", "vol", "--log", &second]);
    // The user has to change the saved settings.
    assert!(restarted.err.contains(&format!("still says log {}", place.log)), "{restarted:?}");
    restarted.ok();
    check(&place, [1, 0, 0, 0]);
    let status = place.sandbox.status("vol");
    assert_eq!(status["log"]["log"], second.as_str(), "{status}");
    let out = place.sandbox.ztier(&["log", "check", &place.log]).ok();
    assert!(out.contains("closed in order: 0 changes"), "{out}");
    // Data that the new log has not made durable survives the daemon, too.
    write(&place, 1, 2);
    place.sandbox.kill("vol");
    place.sandbox.ztier(&["restart", "vol"]).ok();
    check(&place, [1, 2, 0, 0]);

    place.sandbox.ztier(&["restart", "vol", "--log", "none"]).ok();
    let status = place.sandbox.status("vol");
    assert_eq!(status["backing"], place.backing.as_str(), "{status}");
    check(&place, [1, 2, 0, 0]);
    write(&place, 2, 3);
    let said = place.sandbox.ztier(&["status", "vol"]).ok();
    assert!(said.contains("log") && said.contains("none"), "{said}");

    // The first log is back: none of its records could overwrite later writes.
    let restarted = place.sandbox.ztier(&["restart", "vol", "--log", &place.log]);
    assert!(!restarted.err.contains("still says"), "{restarted:?}");
    restarted.ok();
    check(&place, [1, 2, 3, 0]);
    write(&place, 3, 4);
    place.sandbox.kill("vol");
    place.sandbox.ztier(&["restart", "vol"]).ok();
    check(&place, [1, 2, 3, 4]);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    let backing = fs::read(&place.backing).unwrap();
    for block in 0..BLOCKS as usize {
        let at = block * BLOCK as usize;
        let version = [1, 2, 3, 4][block % 4];
        assert!(backing[at..at + 4096] == content(block as u64, version), "block {block}");
    }
}

#[test]
fn a_log_that_cannot_be_had_changes_nothing() {
    let place = Place::new();
    place.sandbox.ztier(&place.up()).ok();
    write(&place, 0, 1);
    let refused = |log: &str, status: i32, says: &[&str]| {
        place.sandbox.ztier(&["restart", "vol", "--log", log]).refused(status, says);
        check(&place, [1, 0, 0, 0]);
    };
    refused("/nonexistent/log", 1, &["/nonexistent/log"]);
    refused(&place.backing, 2, &["at once"]);
    let small = another(&place, "small");
    File::options().write(true).open(&small).unwrap().set_len(256 << 10).unwrap();
    refused(&small, 1, &["a log takes", "larger"]);
    refused(&place.log, 4, &["its log already"]);
    let used = another(&place, "used");
    let mkfs = Command::new("mkfs.ext4").args(["-q", "-F", &used]).status();
    if mkfs.is_ok_and(|status| status.success()) {
        refused(&used, 5, &["holds ext4", "--wipe"]);
    } else {
        println!("skipped: no mkfs.ext4 here");
    }
    place.sandbox.ztier(&["restart", "vol", "--log", &used, "--wipe"]).ok();
    check(&place, [1, 0, 0, 0]);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();

    place.sandbox.ztier(&["up", "ram", "--size", "16M", "--export", "nbd"]).ok();
    let none = ["restart", "ram", "--log", "none"];
    place.sandbox.ztier(&none).refused(2, &["no backing store"]);
}

/// Only the log knows that a block is lost: without the log, the block would read as an old
/// version.
#[test]
fn lost_blocks_are_not_forgotten_with_the_log() {
    let place = Place::new();
    let second = another(&place, "second");
    place.sandbox.ztier(&place.up()).ok();
    place.write_one_by_one(8);
    place.sandbox.ztier(&["down", "vol"]).ok();
    // In the payload of the first block.
    let log = File::options().write(true).open(&place.log).unwrap();
    log.write_at(&[0xff; 4], data_at(16 << 20, 64 << 10) + 300).unwrap();
    place.sandbox.ztier(&[&place.up()[..], &["--accept-loss"]].concat()).ok();
    let lost = || place.connect().read_error(0, BLOCK as u32);
    assert_ne!(lost(), 0);
    assert_eq!(place.sandbox.ztier(&["drain", "vol"]).status, 6);
    for other in [&second, "none"] {
        let refused = ["blocks are lost (1)", "write or discard them"];
        place.sandbox.ztier(&["restart", "vol", "--log", other]).refused(5, &refused);
    }
    assert_eq!(place.connect().read(BLOCK, BLOCK as usize), content(1, 1));
    assert_eq!(place.sandbox.ztier(&["down", "vol"]).status, 6);
    let bare = ["up", "vol", "--backing", &place.backing, "--export", "nbd"];
    place.sandbox.ztier(&bare).refused(5, &["lacks what its log on"]);
    assert_eq!(place.sandbox.ztier(&place.up()).status, 6);
    assert_ne!(lost(), 0);
    place.connect().write(0, &content(0, 2));
    place.sandbox.ztier(&["restart", "vol", "--log", &second]).ok();
    assert_eq!(place.connect().read(0, BLOCK as usize), content(0, 2));
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

#[test]
fn a_backing_store_alone_is_a_volume() {
    let place = Place::new();
    place.sandbox.ztier(&place.up()).ok();
    write(&place, 0, 1);
    // The backing store lacks what its log holds.
    place.sandbox.ztier(&["down", "vol"]).ok();
    let bare = ["up", "vol", "--backing", &place.backing, "--export", "nbd"];
    place.sandbox.ztier(&bare).refused(5, &["lacks what its log on", "--log"]);
    place.sandbox.ztier(&place.up()).ok();
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    place.sandbox.ztier(&[&bare[..], &["--size", "3G"]].concat()).refused(2, &["leave out size"]);

    place.sandbox.ztier(&bare).ok();
    check(&place, [1, 0, 0, 0]);
    let mut disk = place.connect();
    // Parts of blocks, and more than one block, not aligned.
    disk.write(100, &[7; 50]);
    disk.write(3 * BLOCK - 10, &[8; 20]);
    disk.write(5 * BLOCK - 1, &vec![9; 2 * BLOCK as usize + 2]);
    assert_eq!(disk.read(99, 52)[1..51], [7; 50]);
    assert_eq!(disk.read(3 * BLOCK - 10, 20), [8; 20]);
    assert_eq!(disk.read(5 * BLOCK - 1, 2 * BLOCK as usize + 2), vec![9; 2 * BLOCK as usize + 2]);
    assert_eq!(disk.read(0, 100), content(0, 1)[..100]);
    assert_eq!(disk.read(7 * BLOCK + 1, 10), [0; 10]);
    disk.flush();
    drop(disk);
    place.sandbox.kill("vol");
    place.sandbox.ztier(&["restart", "vol"]).ok();
    assert_eq!(place.connect().read(100, 50), [7; 50]);
    place.sandbox.ztier(&["drain", "vol"]).refused(2, &["no log"]);
    place.sandbox.ztier(&["set", "vol", "writeback=off"]).refused(2, &["no log"]);
    place.sandbox.ztier(&["down", "vol"]).ok();
    let backing = fs::read(&place.backing).unwrap();
    assert_eq!(backing[100..150], [7; 50]);
}

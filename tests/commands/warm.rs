//! A log's copies of its backing store: where reads come from, also after a restart, and that no
//! copy is served after another program has written to the backing store.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::loops::Loop;
use crate::support::pair::{Pair, SEGMENT, drain};
use crate::support::place::{BLOCK, BLOCKS, Place, content};
use crate::support::sandbox::{Sandbox, eventually};
use crate::support::shell::{missing, ok, unmount};
use serde_json::Value;
use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use ztier::device::{Channel, Device, LogOptions, LogVolume, Request};
use ztier::log;
use ztier::log::disk::format::data_at;
use ztier::media::{Access, ChangeCounter, Drive, FileDrive};
use ztier::stats::LogStats;

/// Blocks that are read again and again.
const HOT: u64 = 1000;

fn options(keep_percent: u64) -> LogOptions {
    let log = log::Options { keep_percent, ..log::Options::default() };
    LogOptions { log, ..LogOptions::default() }
}

fn log_of(volume: &LogVolume) -> LogStats {
    volume.stats().log.unwrap()
}

fn read(from: &mut dyn Channel, block: u64) -> Vec<u8> {
    let mut buf = vec![0xa5; BLOCK as usize];
    let request = Request::Read { offset: block * BLOCK, buf: &mut buf };
    from.submit(request, Instant::now()).unwrap();
    buf
}

fn check_all(volume: &std::sync::Arc<LogVolume>, version: u64) {
    let mut channel = std::sync::Arc::clone(volume).channel();
    for block in 0..HOT {
        assert!(read(&mut *channel, block) == content(block, version), "block {block}");
    }
}

fn fill(drive: &dyn Drive, version: u64) {
    for block in 0..BLOCKS {
        drive.write(block * BLOCK, &content(block, version)).unwrap();
    }
}

#[test]
fn what_was_written_back_is_still_read_from_the_log() {
    let mut pair = Pair::new(16 << 20);
    let volume = pair.open_with(options(50));
    let mut channel = std::sync::Arc::clone(&volume).channel();
    for block in 0..HOT {
        let data = content(block, 1);
        let request = Request::Write { offset: block * BLOCK, data: &data, fua: false };
        channel.submit(request, Instant::now()).unwrap();
    }
    drain(&volume);
    let before = pair.backing.reads.load(Ordering::SeqCst);
    check_all(&volume, 1);
    assert_eq!(pair.backing.reads.load(Ordering::SeqCst), before);
    let stats = log_of(&volume);
    assert_eq!((stats.blocks_dirty, stats.blocks_clean), (0, HOT), "{stats:?}");
    assert!(stats.reads_clean >= HOT, "{stats:?}");

    // A block unreadable in the log is read from the backing store, without an error.
    assert!(pair.backing.content()[..BLOCK as usize] == content(0, 1));
    for at in (data_at(16 << 20, SEGMENT) + 2000..16 << 20).step_by(2 * BLOCK as usize) {
        pair.log.damage(at);
    }
    check_all(&volume, 1);
    let damaged = log_of(&volume).copies_damaged;
    assert!(damaged > HOT / 4 && damaged < HOT, "{damaged}");
    pair.log.deaf.store(true, Ordering::SeqCst);
    check_all(&volume, 1);
    pair.log.deaf.store(false, Ordering::SeqCst);
    let stats = log_of(&volume);
    assert!(stats.copies_damaged > damaged && stats.blocks_clean < HOT, "{stats:?}");
    assert!(volume.stats().log_lost_blocks.is_empty());
    drop(channel);
    volume.close().unwrap();
}

#[test]
fn without_a_share_nothing_stays() {
    let mut pair = Pair::new(16 << 20);
    let volume = pair.open_with(options(0));
    let mut channel = std::sync::Arc::clone(&volume).channel();
    let data = content(7, 1);
    channel
        .submit(Request::Write { offset: 7 * BLOCK, data: &data, fua: true }, Instant::now())
        .unwrap();
    drain(&volume);
    for _ in 0..4 {
        assert!(read(&mut *channel, 7) == data);
    }
    std::thread::sleep(Duration::from_millis(300));
    let stats = log_of(&volume);
    assert_eq!((stats.blocks_clean, stats.copies_kept, stats.segments_clean), (0, 0, 0));
    drop(channel);
    volume.close().unwrap();
}

#[test]
fn what_is_read_again_is_kept_and_what_is_written_replaces_it() {
    let mut pair = Pair::new(16 << 20);
    fill(&*pair.backing, 1);
    let volume = pair.open_with(options(50));
    for _ in 0..3 {
        check_all(&volume, 1);
    }
    eventually("copies", || log_of(&volume).copies_kept >= HOT * 9 / 10);
    let before = pair.backing.reads.load(Ordering::SeqCst);
    check_all(&volume, 1);
    let asked = pair.backing.reads.load(Ordering::SeqCst) - before;
    assert!(asked <= HOT / 10, "{asked} reads of the backing store");
    eventually("all is in the backing store", || log_of(&volume).clean);

    // Enough to fill the log several times: copies make room, and no old content is read.
    let mut channel = std::sync::Arc::clone(&volume).channel();
    for version in 2..8 {
        for block in 0..BLOCKS {
            let data = content(block, version);
            let request = Request::Write { offset: block * BLOCK, data: &data, fua: false };
            channel.submit(request, Instant::now()).unwrap();
            if block % 64 == 0 {
                let other = block * 7 % HOT;
                let known = if other <= block { version } else { version - 1 };
                assert!(read(&mut *channel, other) == content(other, known), "block {other}");
            }
        }
    }
    check_all(&volume, 7);
    drain(&volume);
    check_all(&volume, 7);
    // The remaining copies take at most their share, and not nothing.
    eventually("room", || {
        let stats = log_of(&volume);
        (1..=stats.segments / 2).contains(&stats.segments_clean)
    });
    check_all(&volume, 7);
    drop(channel);
    volume.close().unwrap();
    // Nothing proves that the backing store is unchanged.
    let volume = pair.open_with(options(50));
    assert_eq!(log_of(&volume).blocks_clean, 0);
    check_all(&volume, 7);
    volume.close().unwrap();
}

/// Whether changes of a file can be detected here.
fn has_change_counter(file: &str) -> bool {
    let drive = FileDrive::open(Path::new(file), Access::ReadOnly).unwrap();
    let known = ChangeCounter::of(&drive).sure != 0;
    if !known {
        println!("skipped: nothing here shows whether a file was changed");
    }
    known
}

fn up(place: &Place) {
    let more = ["--log-cache", "50", "--ram-limit", "0"];
    place.sandbox.ztier(&[&place.up()[..], &more].concat()).ok();
}

fn number(log: &Value, key: &str) -> u64 {
    log[key].as_u64().unwrap()
}

fn read_hot(place: &Place, version: impl Fn(u64) -> u64) {
    let mut disk = place.connect();
    for block in 0..HOT {
        let found = disk.read(block * BLOCK, BLOCK as usize);
        assert!(found == content(block, version(block)), "block {block}");
    }
}

/// Reads everything; returns the number of blocks that the log did not have.
fn missed(place: &Place, version: impl Fn(u64) -> u64) -> u64 {
    let lacked = || {
        let log = place.log_of("vol");
        number(&log, "reads_backing") - number(&log, "reads_clean")
    };
    let before = lacked();
    read_hot(place, version);
    lacked() - before
}

/// A place whose log has most of the blocks that are read again and again; every tenth block has
/// version 2, which the backing store lacks.
fn warmed() -> Option<Place> {
    let place = Place::new();
    let all: Vec<u8> = (0..BLOCKS).flat_map(|block| content(block, 1)).collect();
    fs::write(&place.backing, all).unwrap();
    if !has_change_counter(&place.backing) {
        return None;
    }
    up(&place);
    for _ in 0..3 {
        read_hot(&place, |_| 1);
    }
    eventually("copies", || number(&place.log_of("vol"), "copies_kept") >= HOT * 9 / 10);
    place.sandbox.ztier(&["set", "vol", "writeback=off"]).ok();
    let mut disk = place.connect();
    for block in (0..HOT).step_by(10) {
        disk.write(block * BLOCK, &content(block, 2));
    }
    disk.flush();
    Some(place)
}

fn version(block: u64) -> u64 {
    if block.is_multiple_of(10) { 2 } else { 1 }
}

#[test]
fn a_restart_is_warm_at_once_and_a_kill_is_right() {
    let Some(place) = warmed() else { return };
    assert!(missed(&place, version) <= HOT / 10);
    let said = place.sandbox.ztier(&["status", "vol"]).ok();
    assert!(said.lines().any(|line| line.starts_with("kept")), "{said}");
    place.sandbox.ztier(&["down", "vol"]).ok();
    up(&place);
    assert_eq!(place.log_of("vol")["warm"], true);
    let misses = missed(&place, version);
    assert!(misses <= HOT / 10, "{misses} of {HOT}");
    place.sandbox.ztier(&["restart", "vol"]).ok();
    assert_eq!(place.log_of("vol")["warm"], true);
    assert!(missed(&place, version) <= HOT / 10);

    // Events after a daemon's death are unknown.
    place.sandbox.kill("vol");
    place.sandbox.ztier(&["restart", "vol"]).ok();
    assert_eq!(place.log_of("vol")["warm"], false);
    assert!(missed(&place, version) >= HOT * 8 / 10);
    // The log gets the lost copies again; its old ones stay void.
    read_hot(&place, version);
    eventually("copies", || number(&place.log_of("vol"), "copies_kept") >= HOT * 8 / 10);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    up(&place);
    assert_eq!(place.log_of("vol")["warm"], true);
    assert!(missed(&place, version) <= HOT / 10);
    place.sandbox.ztier(&["down", "vol"]).ok();
}

/// Writes one block of a drive behind ztier's back.
fn write_bare(path: &str, block: u64, version: u64) {
    let file = OpenOptions::new().write(true).open(path).unwrap();
    file.write_all_at(&content(block, version), block * BLOCK).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn one_block_that_was_written_bare_is_noticed() {
    let Some(place) = warmed() else { return };
    for (round, how) in [["down", "vol", "--drain"], ["kill", "", ""]].into_iter().enumerate() {
        match how[0] {
            "down" => place.sandbox.ztier(&how).ok(),
            _ => {
                place.sandbox.ztier(&["drain", "vol"]).ok();
                read_hot(&place, |b| if b == 777 { 9 } else { version(b) });
                place.sandbox.kill_both("vol");
                String::new()
            }
        };
        // In no sample of the identity, and in no superblock.
        let block = 777 - round as u64;
        write_bare(&place.backing, block, 9);
        up(&place);
        assert_eq!(place.log_of("vol")["warm"], false, "{how:?}");
        let changed = |b| if b <= 777 && b >= block { 9 } else { version(b) };
        assert!(missed(&place, changed) >= HOT * 8 / 10, "{how:?}");
        for _ in 0..2 {
            read_hot(&place, changed);
        }
    }
    place.sandbox.ztier(&["down", "vol"]).ok();
}

#[test]
fn a_file_system_that_was_mounted_bare_is_read_as_it_is() {
    if missing(&["mkfs.ext4", "mount", "losetup"]) || !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let backing = fs::File::options().write(true).open(&place.backing).unwrap();
    backing.set_len(32 << 20).unwrap();
    ok(60, "mkfs.ext4", &["-q", "-F", &place.backing]);
    if !has_change_counter(&place.backing) {
        return;
    }
    let blocks = (32 << 20) / BLOCK;
    let compare = |sandbox: &Sandbox| {
        let all = fs::read(&place.backing).unwrap();
        let mut disk = place.connect();
        for (block, expected) in (0..blocks).zip(all.chunks_exact(BLOCK as usize)) {
            assert!(disk.read(block * BLOCK, BLOCK as usize) == expected, "block {block}");
        }
        sandbox.status("vol")["stats"]["log"].clone()
    };
    up(&place);
    for _ in 0..3 {
        compare(&place.sandbox);
    }
    eventually("copies", || number(&place.log_of("vol"), "copies_kept") > 1000);
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    let mount = place.sandbox.path().join("mnt");
    fs::create_dir(&mount).unwrap();
    let (mount, bare) = (mount.to_str().unwrap(), Loop::on(Path::new(&place.backing), &[]));
    ok(60, "mount", &[bare.path(), mount]);
    let written = fs::write(Path::new(mount).join("a"), vec![7; 1 << 20]);
    unmount(mount);
    written.unwrap();
    drop(bare);
    up(&place);
    let log = compare(&place.sandbox);
    assert_eq!(log["warm"], false, "{log}");
    place.sandbox.ztier(&["down", "vol"]).ok();
}

#[test]
fn a_loop_device_is_known_by_its_file() {
    if missing(&["losetup"]) || !rustix::process::geteuid().is_root() {
        return;
    }
    let Some(place) = warmed() else { return };
    place.sandbox.ztier(&["down", "vol", "--drain"]).ok();
    let device = Loop::on(Path::new(&place.backing), &[]);
    let of = || ChangeCounter::of(&FileDrive::open(&device.0, Access::ReadOnly).unwrap());
    let first = of();
    assert!(first.is_sure(&of()) && !first.is_changed(&of()));
    // In the page cache of the device until it is dropped from there.
    write_bare(device.path(), 500, 9);
    assert!(!first.is_sure(&of()) && first.is_changed(&of()));
    let second = of();
    write_bare(&place.backing, 501, 9);
    assert!(!second.is_sure(&of()) && second.is_changed(&of()));
}

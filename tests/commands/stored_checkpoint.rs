//! Checkpoints of a volume in a store: the next owner reads the chain from the newest one on; a
//! checkpoint that is damaged costs time alone; deaths leave nothing behind for long.
#![allow(clippy::unwrap_used)]

use crate::support::disk::Disk;
use crate::support::sandbox::eventually;
use crate::support::shell::missing;
use crate::support::stored::{BLOCK, Stored, check, read_independently, write};
use std::fs;
use std::time::Duration;

/// `count` windows of one block each, in blocks from `first` on.
fn windows(disk: &mut Disk, first: u64, count: u64) {
    for block in first..first + count {
        write(disk, block..=block, 1);
        disk.flush();
    }
}

/// A volume with blocks 0 to 79 in the checkpoint, and 100 to 109 behind it.
fn with_checkpoint(stored: &Stored) {
    stored.up(0, &["--size", "1T"]).ok();
    let mut disk = stored.disk(0);
    windows(&mut disk, 0, 80);
    stored.await_checkpoint(0);
    windows(&mut disk, 100, 10);
    drop(disk);
    stored.hosts[0].kill("vol");
}

#[test]
fn a_takeover_reads_the_chain_from_the_checkpoint_on() {
    let stored = Stored::new();
    with_checkpoint(&stored);
    if !missing(&["python3"]) {
        let told = read_independently(&stored.dir);
        assert!(told.checkpoint.is_some() && told.blocks.len() == 90);
    }
    // What is before it is away: nothing but reads of its blocks misses it.
    let objects = stored.objects();
    let away: Vec<_> =
        objects[1..50].iter().map(|path| (path, path.with_extension("away"))).collect();
    away.iter().for_each(|(path, away)| fs::rename(path, away).unwrap());
    stored.up(1, &["--force", "--ram-limit", "0"]).ok();
    let mut disk = stored.disk(1);
    check(&mut disk, 100..110, 1);
    check(&mut disk, 60..80, 1);
    check(&mut disk, 200..210, 0);
    assert!(disk.try_read(10 * BLOCK, 4096).is_none());
    away.iter().for_each(|(path, away)| fs::rename(away, path).unwrap());
    check(&mut disk, 0..80, 1);
    assert!(stored.counted(1)["walk_objects"].as_u64().unwrap() < 64);
    assert_eq!(stored.counted(1)["blocks"], 90);
}

#[test]
fn a_checkpoint_that_is_gone_or_damaged_costs_a_walk() {
    let stored = Stored::new();
    with_checkpoint(&stored);
    let piece = stored.pieces().remove(0);
    let good = fs::read(&piece).unwrap();
    let mut bad = good.clone();
    bad[100] ^= 1;
    fs::write(&piece, &bad).unwrap();
    for host in [1, 0] {
        stored.up(host, &["--force"]).ok();
        let mut disk = stored.disk(host);
        check(&mut disk, (0..80).chain(100..110), 1);
        drop(disk);
        // With so long a walk behind it, the owner makes another checkpoint.
        stored.await_checkpoint(host);
        let replaced = || stored.pieces().len() == 1 && stored.pieces()[0] != piece;
        eventually("the old pieces are removed", replaced);
        stored.hosts[host].kill("vol");
        stored.pieces().iter().for_each(|piece| fs::remove_file(piece).unwrap());
    }
}

#[test]
fn a_branch_has_no_checkpoint_of_later_windows() {
    let stored = Stored::new();
    stored.up_logged(0, &["--log-size", "64M", "--size", "1G"]).ok();
    let mut disk = stored.disk(0);
    write(&mut disk, 0..10, 1);
    disk.flush();
    stored.hosts[0].ztier(&["drain", "vol"]).ok();
    write(&mut disk, 10..20, 1);
    disk.flush();
    drop(disk);
    stored.hosts[0].kill("vol");
    // Another owner goes on, and makes a checkpoint of that.
    stored.up(1, &["--force"]).ok();
    let mut disk = stored.disk(1);
    (0..70).for_each(|version| {
        write(&mut disk, 0..1, 2 + version);
        disk.flush();
    });
    drop(disk);
    stored.await_checkpoint(1);
    stored.hosts[1].ztier(&["down", "vol"]).ok();
    let branch = stored.dir.with_extension("branch");
    let place = format!("file://{}", branch.display());
    let log = stored.log(0);
    let from = stored.place();
    let args = ["log", "branch", &log, "--backing", &from, "--to", &place];
    stored.hosts[0].ztier(&args).ok();
    // Of another name: a daemon that died keeps its drives.
    let up = ["up", "branch", "--export", "nbd", "--backing", &place, "--log", &log];
    stored.hosts[0].ztier(&up).ok();
    let mut disk = Disk::open(&stored.hosts[0].run_dir().join("branch.nbd"), "branch");
    check(&mut disk, 0..20, 1);
}

#[test]
fn a_log_fits_a_store_whose_newest_window_is_in_the_checkpoint() {
    let stored = Stored::new();
    stored.up_logged(0, &["--log-size", "64M", "--size", "1G", "--sync-remote"]).ok();
    let mut disk = stored.disk(0);
    windows(&mut disk, 0, 80);
    stored.await_checkpoint(0);
    stored.hosts[0].kill("vol");
    let told = read_independently_if_possible(&stored);
    drop(disk);
    stored.up_logged(0, &[]).ok();
    let mut disk = stored.disk(0);
    check(&mut disk, 0..80, 1);
    windows(&mut disk, 80, 10);
    drop(disk);
    stored.hosts[0].ztier(&["down", "vol", "--drain"]).ok();
    // The store alone has it all, from the same checkpoint.
    stored.up(1, &["--force"]).ok();
    check(&mut stored.disk(1), 0..90, 1);
    assert_eq!(told, read_independently_if_possible(&stored));
}

/// The slot of the checkpoint, told by the reader of the format.
fn read_independently_if_possible(stored: &Stored) -> Option<u64> {
    (!missing(&["python3"])).then(|| read_independently(&stored.dir).checkpoint.unwrap())
}

#[test]
fn deaths_leave_no_pieces_of_checkpoints_for_long() {
    let stored = Stored::new();
    let mut version = 0;
    for round in 0..12_u64 {
        let host = (round % 2) as usize;
        stored.up(host, &["--force", "--size", "1G"][..if round == 0 { 3 } else { 1 }]).ok();
        let mut disk = stored.disk(host);
        for _ in 0..90 {
            version += 1;
            write(&mut disk, 0..2, version);
            disk.flush();
        }
        // Some die before, some while, some after it makes its checkpoint.
        std::thread::sleep(Duration::from_millis(round * 61));
        stored.hosts[host].kill("vol");
    }
    stored.up(0, &["--force"]).ok();
    let mut disk = stored.disk(0);
    check(&mut disk, 0..2, version);
    windows(&mut disk, 10, 70);
    stored.await_checkpoint(0);
    eventually("the pieces of the dead are removed", || stored.pieces().len() == 1);
}

//! A volume in a store that grows while a log has changes which the store lacks: here, on another
//! host, and whenever its daemon dies between the steps of that.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::fault_fs::{Fault, FaultFs, Op};
use crate::support::sandbox::{Sandbox, eventually, finish};
use crate::support::stored::{BLOCK, Stored, check, write};
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const GIB: u64 = 1 << 30;
/// Blocks that only the log has.
const UNSENT: u64 = 50;

/// The volume is up on host 0; its log has [`UNSENT`] blocks of `version` that the store lacks.
fn unsent(version: u64) -> Stored {
    let stored = Stored::new();
    let settings = ["--size", "1G", "--log-size", "64M", "--writeback", "off"];
    stored.up_logged(0, &settings).ok();
    write(&mut stored.disk(0), 0..10, 1);
    stored.hosts[0].ztier(&["drain", "vol"]).ok();
    let mut disk = stored.disk(0);
    write(&mut disk, 0..UNSENT, version);
    disk.flush();
    stored
}

fn up_again(stored: &Stored) {
    stored.up_logged(0, &["--writeback", "off"]).ok();
}

fn resize(stored: &Stored, host: usize, size: &str) {
    stored.hosts[host].ztier(&["set", "vol", &format!("size={size}")]).ok();
}

fn root(stored: &Stored) -> PathBuf {
    stored.dir.join("root")
}

/// The root with another size, as `docs/object-format.md` describes it.
fn resized(root: &[u8], size: u64) -> Vec<u8> {
    let mut root = root.to_vec();
    root[48..56].copy_from_slice(&size.to_le_bytes());
    root[56] += 1;
    let check = crc_fast::crc32_iscsi(&root[..508]);
    root[508..].copy_from_slice(&check.to_le_bytes());
    root
}

/// The size that the log's superblock says.
fn noted(stored: &Stored) -> Option<u64> {
    let check: Value = stored.hosts[0].ztier(&["log", "check", &stored.log(0), "--json"]).json();
    check["size_bytes"].as_u64()
}

/// The UUID of the log, which one that is made anew does not keep.
fn uuid(stored: &Stored) -> [u8; 16] {
    let mut uuid = [0; 16];
    fs::File::open(stored.log(0)).unwrap().read_exact_at(&mut uuid, 16).unwrap();
    uuid
}

fn state_file(host: &Sandbox) -> PathBuf {
    host.run_dir().join("vol.json")
}

/// The volume on host 0 has this size and the unsent blocks, and takes writes at its end.
fn is_whole(stored: &Stored, size: u64, version: u64) {
    let mut disk = stored.disk(0);
    assert_eq!(disk.size, size);
    check(&mut disk, 0..UNSENT, version);
    let end = size / BLOCK;
    write(&mut disk, end - 3..end, version);
    disk.flush();
    check(&mut disk, end - 3..end, version);
    assert_eq!(disk.try_read(size, 4096), None, "beyond the end");
}

#[test]
fn a_volume_in_use_grows_with_its_log() {
    let stored = unsent(2);
    let mut before = stored.disk(0);
    resize(&stored, 0, "2G");
    // A client of before may use the new range at once.
    write(&mut before, (2 * GIB / BLOCK) - 9..2 * GIB / BLOCK, 3);
    before.flush();
    drop(before);
    is_whole(&stored, 2 * GIB, 2);
    assert_eq!(stored.hosts[0].status("vol")["stats"]["disk_size_bytes"], 2 * GIB);
    stored.hosts[0].ztier(&["set", "vol", "size=1G"]).refused(2, &["sizes grow, never shrink"]);
    stored.hosts[0].kill_both("vol");
    let made = uuid(&stored);
    up_again(&stored);
    is_whole(&stored, 2 * GIB, 2);
    resize(&stored, 0, "3G");
    stored.hosts[0].ztier(&["restart", "vol"]).ok();
    is_whole(&stored, 3 * GIB, 2);
    stored.hosts[0].ztier(&["down", "vol", "--drain"]).ok();
    assert_eq!((noted(&stored), uuid(&stored)), (Some(3 * GIB), made));
    stored.up(1, &[]).ok();
    let mut other = stored.disk(1);
    assert_eq!(other.size, 3 * GIB);
    check(&mut other, 0..UNSENT, 2);
    check(&mut other, (2 * GIB / BLOCK) - 9..(2 * GIB / BLOCK) - 3, 3);
}

/// A store in its new size with a log that has not noted it: what a death after the first step
/// leaves.
#[test]
fn a_daemon_that_dies_before_the_log_notes_the_size_leaves_the_larger_volume() {
    let stored = unsent(2);
    stored.hosts[0].kill_both("vol");
    let small = fs::read(root(&stored)).unwrap();
    fs::write(root(&stored), resized(&small, 2 * GIB)).unwrap();
    assert_eq!(noted(&stored), Some(GIB));
    up_again(&stored);
    is_whole(&stored, 2 * GIB, 2);
    // And with what only memory had.
    write(&mut stored.disk(0), 20..30, 3);
    stored.hosts[0].kill("vol");
    fs::write(root(&stored), resized(&fs::read(root(&stored)).unwrap(), 3 * GIB)).unwrap();
    up_again(&stored);
    check(&mut stored.disk(0), 20..30, 3);
    write(&mut stored.disk(0), 20..30, 2);
    is_whole(&stored, 3 * GIB, 2);
    stored.hosts[0].ztier(&["down", "vol"]).looked();
    assert_eq!(noted(&stored), Some(3 * GIB));
}

/// Blocks of the volume in both copies of a log's superblock.
fn copies(log: &[u8]) -> [u64; 2] {
    [0, 64 << 10].map(|at| u64::from_le_bytes(log[at + 56..at + 64].try_into().unwrap()))
}

/// The daemon dies while the log's drive is at its `step`-th operation since the store has the new
/// size; that operation, and what came behind it, is lost. Returns how many copies of the
/// superblock have the new size.
fn dies_at(step: u64) -> usize {
    let (stored, drives) = (Stored::new(), FaultFs::mount(&[("log", 64 << 20)]));
    let (place, log) = (stored.place(), drives.path("log").display().to_string());
    let up = ["up", "vol", "--export", "nbd", "--backing", &place, "--log", &log];
    let up = [&up[..], &["--writeback", "off"]].concat();
    stored.hosts[0].ztier(&[&up[..], &["--size", "1G"]].concat()).ok();
    let mut disk = stored.disk(0);
    write(&mut disk, 0..UNSENT, 2);
    disk.flush();
    drop(disk);
    for op in [Op::Write, Op::Flush] {
        drives.fail("log", op, Fault::Slow(Duration::from_millis(500)));
    }
    let (before, pid) = (drives.struck("log"), stored.hosts[0].pid("vol"));
    let set = stored.hosts[0].command(&["set", "vol", "size=2G"]);
    let setting = std::thread::spawn(move || finish(set));
    let size = |root: Vec<u8>| u64::from_le_bytes(root[48..56].try_into().unwrap());
    eventually("the store has the size", || size(fs::read(root(&stored)).unwrap()) == 2 * GIB);
    eventually("the log is on its way", || {
        drives.struck("log") - before >= step || setting.is_finished()
    });
    let mut there = Vec::new();
    drives.damage("log", |bytes| there = bytes.to_vec());
    kill_process(pid, Signal::KILL).unwrap();
    setting.join().unwrap();
    drives.heal();
    std::thread::sleep(Duration::from_millis(700));
    drives.damage("log", |bytes| bytes.copy_from_slice(&there));
    eventually("the daemon is gone", || {
        stored.hosts[0].ztier(&["status", "vol"]).err.contains("the daemon of volume")
    });
    stored.hosts[0].ztier(&up).ok();
    is_whole(&stored, 2 * GIB, 2);
    stored.hosts[0].ztier(&["down", "vol", "--drain"]).ok();
    copies(&there).iter().filter(|blocks| **blocks == 2 * GIB / BLOCK).count()
}

#[test]
fn a_daemon_that_dies_at_any_operation_of_its_log_leaves_the_larger_volume() {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("skipped: no /dev/fuse, or not root");
        return;
    }
    // Writes and flushes of both copies, and the end of it.
    let found: Vec<_> = (1..=5).map(dies_at).collect();
    assert!([0, 1, 2].iter().all(|copies| found.contains(copies)), "{found:?}");
}

/// Both have the new size, and the state file has the old one: the last gap.
#[test]
fn a_daemon_that_dies_before_its_state_file_has_the_size_leaves_the_larger_volume() {
    let stored = unsent(2);
    let state = state_file(&stored.hosts[0]);
    let before = fs::read(&state).unwrap();
    resize(&stored, 0, "2G");
    stored.hosts[0].kill("vol");
    assert_ne!(fs::read(&state).unwrap(), before);
    fs::write(&state, before).unwrap();
    stored.hosts[0].ztier(&["restart", "vol"]).ok();
    is_whole(&stored, 2 * GIB, 2);
}

/// The order that never comes about by a death: then the store is an older one.
#[test]
fn a_store_that_is_smaller_than_its_log_went_back() {
    let stored = unsent(2);
    let small = fs::read(root(&stored)).unwrap();
    resize(&stored, 0, "2G");
    is_whole(&stored, 2 * GIB, 2);
    stored.hosts[0].kill_both("vol");
    fs::write(root(&stored), &small).unwrap();
    let older = ["is in an older state than ", "it has 1073741824 bytes, and had 2147483648"];
    stored.up_logged(0, &[]).refused(5, &older);
    stored.up_logged(0, &["--accept-changed-backing", "--writeback", "off"]).ok();
    is_whole(&stored, 2 * GIB, 2);
    stored.hosts[0].ztier(&["down", "vol", "--drain"]).ok();
    // Also a log that holds nothing tells.
    let large = fs::read(root(&stored)).unwrap();
    fs::write(root(&stored), resized(&large, GIB)).unwrap();
    stored.up_logged(0, &[]).refused(5, &older);
    fs::write(root(&stored), large).unwrap();
    stored.up(1, &[]).ok();
    assert_eq!(stored.disk(1).size, 2 * GIB);
    check(&mut stored.disk(1), 0..UNSENT, 2);
}

/// A log that holds nothing is not made anew: it goes on, with what it keeps for reads.
#[test]
fn an_empty_log_follows_a_volume_that_grew_without_it() {
    let stored = unsent(2);
    stored.hosts[0].ztier(&["down", "vol", "--drain"]).ok();
    let made = uuid(&stored);
    stored.up(0, &[]).ok();
    resize(&stored, 0, "2G");
    write(&mut stored.disk(0), 90..99, 2);
    stored.hosts[0].ztier(&["down", "vol"]).ok();
    stored.up_logged(0, &[]).ok();
    is_whole(&stored, 2 * GIB, 2);
    check(&mut stored.disk(0), 90..99, 2);
    stored.hosts[0].ztier(&["down", "vol", "--drain"]).ok();
    assert_eq!((noted(&stored), uuid(&stored)), (Some(2 * GIB), made));
    // By a restart, too, which looks at the log before the volume leaves.
    stored.up(0, &[]).ok();
    resize(&stored, 0, "3G");
    stored.hosts[0].ztier(&["restart", "vol", "--log", &stored.log(0)]).ok();
    is_whole(&stored, 3 * GIB, 2);
}

#[test]
fn a_volume_that_grows_outlives_its_daemon_at_any_moment() {
    let stored = unsent(2);
    let began = Instant::now();
    resize(&stored, 0, "2G");
    let (takes, mut size, mut seen) = (began.elapsed(), 2 * GIB, [0; 2]);
    for round in 0.. {
        if round >= 24 && (round >= 200 || seen.iter().all(|seen| *seen > 0)) {
            break;
        }
        let (pid, next) = (stored.hosts[0].pid("vol"), size + GIB);
        let asked = format!("size={}G", next / GIB);
        let set = stored.hosts[0].command(&["set", "vol", &asked]);
        let setting = std::thread::spawn(move || finish(set));
        std::thread::sleep(takes * (round % 24) / 16);
        kill_process(pid, Signal::KILL).unwrap();
        setting.join().unwrap();
        eventually("the daemon is gone", || {
            stored.hosts[0].ztier(&["status", "vol"]).err.contains("the daemon of volume")
        });
        up_again(&stored);
        let found = stored.disk(0).size;
        assert!(found == size || found == next, "{size} to {next}: {found}");
        seen[usize::from(found == next)] += 1;
        is_whole(&stored, found, 2);
        size = found;
    }
    assert!(seen[0] > 0 && seen[1] > 0, "killed always before or always behind: {seen:?}");
    stored.hosts[0].ztier(&["down", "vol", "--drain"]).ok();
    stored.up(1, &[]).ok();
    assert_eq!(stored.disk(1).size, size);
    check(&mut stored.disk(1), 0..UNSENT, 2);
}

/// The host of the log died or went away; another one has made the volume larger, and written
/// nothing.
#[test]
fn a_log_fits_a_volume_that_another_host_enlarged() {
    for dies in [true, false] {
        let stored = unsent(2);
        if dies {
            stored.hosts[0].kill_both("vol");
        } else {
            stored.hosts[0].ztier(&["down", "vol"]).looked();
        }
        // It may have a log of its own.
        let more = ["--force", "--log-size", "64M"];
        if dies {
            stored.up(1, &more[..1]).ok()
        } else {
            stored.up_logged(1, &more).ok()
        };
        check(&mut stored.disk(1), 0..10, 1);
        resize(&stored, 1, "2G");
        stored.hosts[1].ztier(&["down", "vol"]).ok();
        up_again(&stored);
        is_whole(&stored, 2 * GIB, 2);
        stored.hosts[0].ztier(&["down", "vol", "--drain"]).ok();
        stored.up(1, &[]).ok();
        check(&mut stored.disk(1), 0..UNSENT, 2);
    }
}

#[test]
fn a_log_is_refused_by_a_larger_volume_that_went_on_and_fits_its_branch() {
    let stored = unsent(2);
    stored.hosts[0].ztier(&["down", "vol"]).looked();
    stored.up(1, &[]).ok();
    resize(&stored, 1, "2G");
    write(&mut stored.disk(1), 5..6, 7);
    stored.hosts[1].ztier(&["down", "vol"]).ok();
    stored.up_logged(0, &[]).refused(5, &["is not of that log", "--discard-log"]);
    let (log, place) = (stored.log(0), format!("{}-branch", stored.place()));
    stored.hosts[0]
        .ztier(&["log", "branch", &log, "--backing", &stored.place(), "--to", &place])
        .ok();
    let up = ["up", "vol", "--export", "nbd", "--backing", &place, "--log", &log];
    stored.hosts[0].ztier(&up).ok();
    is_whole(&stored, GIB, 2);
    stored.hosts[0].ztier(&["down", "vol"]).looked();
    stored.up_logged(0, &["--discard-log"]).ok();
    let mut disk = stored.disk(0);
    assert_eq!(disk.size, 2 * GIB);
    check(&mut disk, 5..6, 7);
}

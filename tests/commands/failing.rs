//! Failing drives: `status`, `list`, `top`, metrics and the daemon's log name the drive, operation,
//! place and error. A drive that works again is used again, and no advice loses data.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::fault_fs::{Fault, FaultFs, Op};
use crate::support::place::{BLOCK, content};
use crate::support::sandbox::{Sandbox, eventually};
use fuser::Errno;
use std::fs;
use std::path::Path;
use std::time::Duration;

const MIB: u64 = 1 << 20;

/// A sandbox, and drives that fail on demand; `None` where FUSE is missing.
fn rig(drives: &[(&str, u64)]) -> Option<(Sandbox, FaultFs)> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("skipped: no /dev/fuse, or not root");
        return None;
    }
    let sandbox = Sandbox::new();
    let drives = FaultFs::mount(drives);
    Some((sandbox, drives))
}

fn path(drives: &FaultFs, name: &str) -> String {
    drives.path(name).to_str().unwrap().to_owned()
}

fn connect(sandbox: &Sandbox) -> Disk {
    Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol")
}

/// All displays of the volume report this about a drive.
#[track_caller]
fn all_say(sandbox: &Sandbox, parts: &[&str], role: &str) {
    let status = sandbox.ztier(&["status", "vol"]);
    let list = sandbox.ztier(&["list"]);
    assert_eq!((status.status, list.status), (6, 6), "{status:?} {list:?}");
    assert!(list.out.lines().nth(1).unwrap().starts_with("vol   degraded"), "{list:?}");
    let top =
        sandbox.command(&["top", "--once", "--interval", "0.1"]).env("COLUMNS", "400").output();
    let top = String::from_utf8(top.unwrap().stdout).unwrap();
    let log = || fs::read_to_string(sandbox.run_dir().join("vol.log")).unwrap();
    let said = |text: &str| parts.iter().all(|part| text.contains(part));
    eventually("the daemon's log says so", || said(&log()));
    for text in [&status.out, &status.err, &list.err, &top] {
        assert!(said(text), "{parts:?} in {text}");
    }
    let errors = status.out.lines().find(|line| line.starts_with("errors")).unwrap();
    assert!(!errors.ends_with("none"), "{errors}");
    assert!(!status.out.contains("1970"), "{}", status.out);
    let metrics = sandbox.ztier(&["metrics", "--once"]).ok();
    let counted = format!("ztier_drive_errors_total{{volume=\"vol\",drive=\"{role}\"");
    assert!(metrics.contains(&counted), "{metrics}");
}

fn up(sandbox: &Sandbox, drives: &FaultFs) {
    let (log, backing) = (path(drives, "log"), path(drives, "backing"));
    let place = ["up", "vol", "--export", "nbd", "--backing", &backing, "--log", &log];
    let more = ["--segment", "64K", "--ram-limit", "0", "--writeback", "off"];
    sandbox.ztier(&[&place[..], &more].concat()).ok();
}

#[test]
fn a_log_that_fails_once_is_named_with_reason_and_place() {
    let Some((sandbox, drives)) = rig(&[("log", 16 * MIB), ("backing", 8 * MIB)]) else { return };
    up(&sandbox, &drives);
    let mut disk = connect(&sandbox);
    drives.fail("log", Op::Write, Fault::Once(Errno::EIO));
    disk.write(0, &content(0, 1));
    disk.flush();
    let log = path(&drives, "log");
    let words = [log.as_str(), "write failed (EIO: Input/output error) at byte", "bytes"];
    all_say(&sandbox, &words, "log");
    let status = sandbox.ztier(&["status", "vol", "--json"]);
    let status: serde_json::Value = serde_json::from_str(&status.out).unwrap();
    let failure = &status["stats"]["drives"][0]["failures"][0];
    assert_eq!((&failure["errno"], &failure["count"]), (&5.into(), &1.into()), "{status}");
    assert_eq!(status["stats"]["health"], "degraded");
    // A command does its work all the same.
    sandbox.ztier(&["drain", "vol"]).ok();
    drop(disk);
    sandbox.ztier(&["down", "vol"]).ok();
}

#[test]
fn a_backing_store_that_is_full_or_unreadable_is_named() {
    let Some((sandbox, drives)) = rig(&[("log", 16 * MIB), ("backing", 8 * MIB)]) else { return };
    up(&sandbox, &drives);
    let mut disk = connect(&sandbox);
    drives.fail("backing", Op::Read, Fault::Once(Errno::EIO));
    assert_ne!(disk.read_error(4 * MIB, 4096), 0);
    let backing = path(&drives, "backing");
    let words = ["read failed (EIO: Input/output error) at byte 4194304", &backing];
    all_say(&sandbox, &words, "backing");
    // As a file with holes on a full file system.
    drives.fail("backing", Op::Write, Fault::Full);
    disk.write(0, &content(0, 1));
    disk.flush();
    let drain = sandbox.ztier(&["drain", "vol"]);
    assert_eq!(drain.status, 6, "{drain:?}");
    assert!(drain.err.contains("ENOSPC: No space left on device"), "{drain:?}");
    assert!(drain.err.contains(&backing) && !drain.err.contains("--discard-log"), "{drain:?}");
    all_say(&sandbox, &["write failed (ENOSPC: No space left on device)", &backing], "backing");
    drives.heal();
    sandbox.ztier(&["drain", "vol"]).ok();
    drop(disk);
    sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

#[test]
fn the_drive_of_a_read_cache_is_named() {
    let Some((sandbox, drives)) = rig(&[("backing", 8 * MIB)]) else { return };
    let backing = path(&drives, "backing");
    sandbox.ztier(&["up", "vol", "--export", "nbd", "--backing", &backing]).ok();
    let mut disk = connect(&sandbox);
    drives.fail("backing", Op::Flush, Fault::Once(Errno::EIO));
    disk.write(0, &content(0, 1));
    assert_ne!(disk.flush_error(), 0);
    all_say(&sandbox, &["flush failed (EIO: Input/output error)", &backing], "backing");
    drop(disk);
    sandbox.ztier(&["down", "vol"]).ok();
}

/// After an outage of the log's drive nothing is lost, and no advice would lose data.
#[test]
fn an_outage_of_the_log_that_passes_loses_nothing_and_advises_nothing_that_does() {
    let Some((sandbox, drives)) = rig(&[("log", 16 * MIB), ("backing", 8 * MIB)]) else { return };
    up(&sandbox, &drives);
    let mut disk = connect(&sandbox);
    for block in 0..512 {
        disk.write(block * BLOCK, &content(block, 1));
    }
    disk.flush();
    for op in [Op::Read, Op::Write, Op::Flush] {
        drives.fail("log", op, Fault::Always(Errno::EIO));
    }
    disk.write(0, &content(0, 2));
    assert_ne!(disk.flush_error(), 0);
    let careful = |text: &str| {
        assert!(!text.contains("--discard-log") && !text.contains("--discard"), "{text}");
        assert!(!text.contains("blocks are lost"), "{text}");
    };
    let status = sandbox.ztier(&["status", "vol"]);
    assert_eq!(status.status, 6, "{status:?}");
    careful(&format!("{status:?}"));
    let lost = status.out.lines().find(|line| line.starts_with("lost blocks")).unwrap();
    assert!(lost.ends_with("none"), "{lost}");
    let list = sandbox.ztier(&["list"]);
    careful(&format!("{list:?}"));
    drives.heal();
    // In both cases: the volume goes on by itself, or the next daemon has everything.
    eventually("it goes on", || disk.flush_error() == 0);
    careful(&sandbox.ztier(&["status", "vol"]).out);
    assert_eq!(disk.read(0, BLOCK as usize), content(0, 2));
    for block in 1..512 {
        assert!(disk.read(block * BLOCK, BLOCK as usize) == content(block, 1), "block {block}");
    }
    drop(disk);
    sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

/// Data that can't be made durable survives a restart during an outage.
#[test]
fn a_restart_in_an_outage_keeps_what_is_not_durable() {
    let Some((sandbox, drives)) = rig(&[("log", 16 * MIB), ("backing", 8 * MIB)]) else { return };
    up(&sandbox, &drives);
    let mut disk = connect(&sandbox);
    disk.write(0, &content(0, 1));
    disk.flush();
    for name in ["log", "backing"] {
        drives.fail(name, Op::Write, Fault::Always(Errno::EIO));
        drives.fail(name, Op::Flush, Fault::Always(Errno::EIO));
    }
    disk.write(BLOCK, &content(1, 1));
    assert_ne!(disk.flush_error(), 0);
    drop(disk);
    eventually("the client is gone", || {
        let status = sandbox.ztier(&["status", "vol", "--json"]);
        let status: serde_json::Value = serde_json::from_str(&status.out).unwrap();
        status["holders"][0].is_null()
    });
    let down = sandbox.ztier(&["down", "vol"]);
    down.refused(5, &["would lose data", "have the drive work again"]);
    sandbox.ztier(&["restart", "vol"]).refused(1, &["can't be made durable", "--force"]);
    // The next daemon can't open the log yet: the content of memory stays.
    let restart = sandbox.ztier(&["restart", "vol", "--force"]);
    assert_ne!(restart.status, 0, "{restart:?}");
    drives.heal();
    sandbox.ztier(&["restart", "vol"]).ok();
    let mut disk = connect(&sandbox);
    assert_eq!(disk.read(0, BLOCK as usize), content(0, 1));
    assert_eq!(disk.read(BLOCK, BLOCK as usize), content(1, 1));
    drop(disk);
    sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

/// The log's drive is away for longer than any wait for it, and then the daemon is killed.
#[test]
fn memory_outlives_a_daemon_killed_in_a_long_outage() {
    let Some((sandbox, drives)) = rig(&[("log", 16 * MIB), ("backing", 8 * MIB)]) else { return };
    up(&sandbox, &drives);
    let mut disk = connect(&sandbox);
    disk.write(0, &content(0, 1));
    disk.flush();
    for op in [Op::Read, Op::Write, Op::Flush] {
        drives.fail("log", op, Fault::Always(Errno::EIO));
    }
    disk.write(BLOCK, &content(1, 1));
    assert_ne!(disk.flush_error(), 0);
    std::thread::sleep(Duration::from_secs(22));
    sandbox.kill("vol");
    drives.heal();
    sandbox.ztier(&["restart", "vol"]).ok();
    let mut disk = connect(&sandbox);
    disk.flush();
    for block in 0..2 {
        assert!(disk.read(block * BLOCK, BLOCK as usize) == content(block, 1), "block {block}");
    }
    drop(disk);
    sandbox.ztier(&["down", "vol", "--drain"]).ok();
}

/// A spill file with holes on a file system that was full for a while is used again.
#[test]
fn a_spill_device_that_was_full_is_used_again_by_itself() {
    let Some((sandbox, drives)) = rig(&[("spill", 64 * MIB)]) else { return };
    let spill = path(&drives, "spill");
    let place = ["up", "vol", "--export", "nbd", "--size", "64M", "--spill", &spill];
    let more = ["--ram-limit", "12M", "--segment", "64K", "--algorithm", "none"];
    sandbox.ztier(&[&place[..], &more].concat()).ok();
    let mut disk = connect(&sandbox);
    drives.fail("spill", Op::Write, Fault::Full);
    let mut block = 0;
    while disk.write_error(block * BLOCK, &content(block, 1)) == 0 {
        block += 1;
        assert!(block < 8192, "a limit that holds everything");
    }
    let words = ["write failed (ENOSPC: No space left on device) at byte", &spill];
    all_say(&sandbox, &words, "spill");
    let status = sandbox.ztier(&["status", "vol"]);
    assert!(status.out.contains("takes nothing for now"), "{status:?}");
    drives.heal();
    let until = block + 2048;
    while block < until {
        eventually("it is taken", || disk.write_error(block * BLOCK, &content(block, 1)) == 0);
        block += 1;
    }
    for block in 0..until {
        assert!(disk.read(block * BLOCK, BLOCK as usize) == content(block, 1), "block {block}");
    }
    let stats = sandbox.ztier(&["stats", "vol", "--format", "json"]).json();
    assert_eq!(stats["spill_failed"], false);
    assert!(stats["spilled_segments"].as_u64() > Some(0), "{stats}");
    drop(disk);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

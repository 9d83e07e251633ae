//! `ztier advise` beside real loads: a disk that is slow by 8 ms a request, and a control group
//! that is short of memory.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::fault_fs::{Fault, FaultFs, Op};
use crate::support::group::Group;
use crate::support::loops::{Loop, lacks_loops};
use crate::support::mounted::Mounted;
use crate::support::place::content;
use crate::support::sandbox::{Guard, Sandbox, eventually};
use crate::support::shell::ok;
use rustix::fs::{Advice, fadvise};
use serde_json::Value;
use std::fs::{self, File};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
const SLOW: Duration = Duration::from_millis(8);

/// What is said about a role for a disk.
fn about<'a>(report: &'a Value, role: &str, disk: &str) -> &'a Value {
    let advice = report["advice"].as_array().unwrap().iter();
    let mut about = advice.filter(|a| a["role"] == role && a["disk"] == disk);
    about.next().unwrap_or_else(|| panic!("{role} for {disk}: {report:#}"))
}

fn figures<'a>(report: &'a Value, disk: &str) -> &'a Value {
    let disks = report["figures"]["disks"].as_array().unwrap().iter();
    disks.clone().find(|d| d["name"] == disk).unwrap_or_else(|| panic!("{disk}: {report:#}"))
}

/// A block of which half is noise.
fn half(block: u64) -> Vec<u8> {
    let mut data = content(block, 1);
    data[2048..].fill(b'x');
    data
}

/// A file system on a device, and on it a file whose pages no control group has yet.
fn with_file(device: &Loop, point: &Path) -> Mounted {
    ok(60, "mkfs.ext4", &["-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", device.path()]);
    let mounted = Mounted::new(&[device.path()], point);
    let large = point.join("large");
    let blocks = 80 * MIB / 4096;
    fs::write(&large, (0..blocks).flat_map(half).collect::<Vec<_>>()).unwrap();
    let file = File::open(&large).unwrap();
    file.sync_all().unwrap();
    fadvise(&file, 0, None, Advice::DontNeed).unwrap();
    mounted
}

/// Reads a file over and over in a group that is smaller, and writes another one in steps that are
/// durable.
fn load(group: &Group, point: &Path) -> [Guard; 2] {
    let mut read = Command::new("sh");
    let large = point.join("large");
    read.args(["-c", &format!("while cat {} > /dev/null; do :; done", large.display())]);
    let mut write = Command::new("dd");
    let of = format!("of={}", point.join("synced").display());
    write.args(["if=/dev/zero", &of, "bs=4k", "count=100000", "oflag=dsync", "status=none"]);
    [Guard(group.command(&read).spawn().unwrap()), Guard(write.spawn().unwrap())]
}

#[test]
fn a_slow_disk_whose_files_are_read_again_wants_a_cache() {
    if lacks_loops(&["mkfs.ext4"]) || !Path::new("/dev/fuse").exists() {
        println!("skipped: loop devices, mkfs.ext4 or /dev/fuse are missing");
        return;
    }
    let Some(group) = Group::new("advise", 40 * MIB) else { return };
    let sandbox = Sandbox::new();
    let drives = FaultFs::mount(&[("slow", 160 * MIB)]);
    let device = Loop::on(&drives.path("slow"), &[]);
    let disk = device.path().trim_start_matches("/dev/").to_owned();
    let point = sandbox.path().join("slow");
    let _mounted = with_file(&device, &point);
    for op in [Op::Read, Op::Write, Op::Flush] {
        drives.fail("slow", op, Fault::Slow(SLOW));
    }
    let load = load(&group, &point);
    let began = Instant::now();
    let large = point.join("large").display().to_string();
    let report = sandbox.ztier(&["advise", "--seconds", "12", "--json", &large]).json();
    assert!(began.elapsed() < Duration::from_secs(40), "{:?}", began.elapsed());

    let seen = figures(&report, &disk);
    assert_eq!(seen["kind"], "network", "{seen}");
    assert!(seen["reads"]["mean_ms"].as_f64().unwrap() >= 8.0, "{seen}");
    assert!(seen["writes"]["mean_ms"].as_f64().unwrap() >= 8.0, "{seen}");
    assert!(seen["busy"].as_f64().unwrap() > 0.5, "{seen}");
    let ratio = report["figures"]["of_files"]["ratio"].as_f64().unwrap();
    assert!((1.8..2.1).contains(&ratio), "{ratio}");
    let cache = about(&report, "cache", &disk);
    assert_eq!(cache["verdict"], "helps", "{report:#}");
    let commands: Vec<_> =
        cache["commands"].as_array().unwrap().iter().map(|c| c.as_str().unwrap()).collect();
    assert_eq!(commands[0], format!("umount {}", point.display()));
    let up = format!("ztier up {disk} --backing /dev/{disk} --ram-limit ");
    assert!(commands[1].starts_with(&up), "{commands:?}");
    assert_eq!(commands[2], format!("mount /dev/ztier/{disk} {}", point.display()));
    // Whether there is a drive for a log depends on the machine.
    let log = about(&report, "log", &disk);
    let is_advised = log["verdict"] == "helps" || log["short"] == "no faster drive is here";
    assert!(is_advised && log["why"][0].as_str().unwrap().contains("flushes/s"), "{log:#}");

    // The same disk at rest.
    drop(load);
    drives.heal();
    ok(60, "sync", &["--file-system", point.to_str().unwrap()]);
    // The last reader goes on to the end of the file.
    eventually("nothing is advised for it", || {
        let report = sandbox.ztier(&["advise", "--seconds", "1", "--json"]).json();
        ["cache", "log"].iter().all(|role| about(&report, role, &disk)["verdict"] == "no")
    });
}

#[test]
fn the_table_fits_and_says_what_was_seen() {
    let sandbox = Sandbox::new();
    let done = sandbox.ztier(&["advise", "--seconds", "1"]);
    let text = done.ok();
    for part in ["watched", "available", "ROLE", "RAM disk", "compressed swap", "swap that spills"]
    {
        assert!(text.contains(part), "{part}: {text}");
    }
    for line in text.lines().filter(|line| !line.starts_with("  # ")) {
        let is_word = line.split_whitespace().any(|word| word.chars().count() > 60);
        assert!(line.chars().count() <= 80 || is_word, "{line}");
    }
    sandbox.ztier(&["advise", "--seconds", "0"]).refused(2, &["--seconds"]);
    sandbox.ztier(&["advise", "/nonexistent"]).refused(1, &["/nonexistent"]);
    assert_eq!(sandbox.files(), [""; 0], "something was made");
}

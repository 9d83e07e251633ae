//! A limit that adapts, as users see it: the commands and their refusals, restarts, and a real
//! control group that is short of memory.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::group::Group;
use crate::support::place::{BLOCK, content};
use crate::support::sandbox::{Guard, Sandbox, eventually, finish};
use crate::support::shell::{missing, ok};
use serde_json::Value;
use std::fs::{self, File};
use std::process::Command;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// From one look of the thread that adapts the limit to the next.
const STEP: Duration = Duration::from_secs(1);

fn up<'a>(more: &[&'a str]) -> Vec<&'a str> {
    let first = ["up", "vol", "--export", "nbd", "--size", "64M", "--segment", "64K"];
    [&first[..], more].concat()
}

/// The adaptive limit in the volume's status, once the controller has run.
fn adapting(sandbox: &Sandbox) -> Value {
    let mut said = Value::Null;
    eventually("it has looked", || {
        said = sandbox.status("vol")["adapting"].clone();
        said.is_object()
    });
    said
}

#[test]
fn bounds_are_kept_and_changed_at_work() {
    let sandbox = Sandbox::new();
    let args = up(&["--ram-limit", "auto", "--ram-min", "16M", "--ram-max", "48M", "--save"]);
    let said = sandbox.ztier(&args);
    assert!(said.err.contains("in at most 48 MiB of memory, as it adapts"), "{said:?}");
    said.ok();
    let first = adapting(&sandbox);
    assert_eq!(
        (&first["min_bytes"], &first["max_bytes"]),
        (&(16 * MIB).into(), &(48 * MIB).into())
    );
    assert_eq!(first["changes"], 0, "{first}");
    assert!(first["why"].is_string() && first["reason"]["kind"].is_string(), "{first}");
    let text = sandbox.ztier(&["status", "vol"]).ok();
    assert!(text.contains("auto, adapts between 16 MiB and 48 MiB"), "{text}");
    assert!(text.contains("last change") && text.contains("waited for"), "{text}");
    assert_eq!(sandbox.status("vol")["plan"]["ram_limit_bytes"], Value::Null, "flattened");
    assert_eq!(sandbox.status("vol")["ram_limit_bytes"], 48 * MIB);

    // A lower bound takes effect at once.
    let said = sandbox.ztier(&["set", "vol", "ram-max=24M"]).ok();
    assert!(said.contains("ram-limit=auto ram-min=16M ram-max=24M"), "{said}");
    assert_eq!(sandbox.status("vol")["stats"]["ram_limit_bytes"], 24 * MIB);
    // A fixed limit ends the adaptation, and the adaptation can begin again.
    let said = sandbox.ztier(&["set", "vol", "ram-limit=30M"]).ok();
    assert!(said.contains("ram-limit=30M") && !said.contains("ram-min"), "{said}");
    assert_eq!(sandbox.status("vol")["adapting"], Value::Null);
    let said = sandbox.ztier(&["set", "vol", "ram-limit=auto", "ram-min=20M"]).ok();
    assert!(said.contains("ram-limit=auto ram-min=20M ram-max="), "{said}");
    assert_eq!(adapting(&sandbox)["min_bytes"], 20 * MIB);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();

    // The configuration file has the same effect as the flags.
    sandbox.ztier(&["up", "vol", "--export", "nbd"]).ok();
    assert_eq!(adapting(&sandbox)["max_bytes"], 48 * MIB);
}

/// A change that fails half-way leaves a limit that is what the plan says: fixed, or adapting.
#[test]
fn a_limit_is_as_planned_also_after_a_change_that_failed() {
    if missing(&["mkfs.ext4"]) {
        return;
    }
    let sandbox = Sandbox::new();
    let used = sandbox.path().join("used");
    File::create(&used).unwrap().set_len(64 * MIB).unwrap();
    ok(20, "mkfs.ext4", &["-q", "-F", used.to_str().unwrap()]);
    let spill = format!("spill={}", used.display());
    let set = |changes: &[&str]| sandbox.ztier(&[&["set", "vol"], changes].concat());
    let args = up(&["--ram-limit", "auto", "--ram-min", "16M", "--ram-max", "48M"]);
    sandbox.ztier(&args).ok();
    adapting(&sandbox);
    let says = ["only ram-limit is changed: ", "ext4", "--wipe"];
    set(&["ram-limit=32M", &spill]).refused(5, &says);
    let status = sandbox.status("vol");
    let found = (&status["adapting"], status["ram_limit_bytes"].as_u64());
    assert_eq!(found, (&Value::Null, Some(32 * MIB)));
    std::thread::sleep(STEP * 2);
    set(&["ram-limit=auto", "ram-min=20M", "ram-max=40M"]).ok();
    assert_eq!(adapting(&sandbox)["min_bytes"], 20 * MIB);
    // From a fixed limit to one that adapts.
    set(&["ram-limit=32M"]).ok();
    set(&["ram-limit=auto", "ram-min=24M", &spill]).refused(5, &says);
    assert_eq!(adapting(&sandbox)["min_bytes"], 24 * MIB);
    // A refusal that nothing precedes names nothing.
    let said = set(&[&spill]).refused(5, &["ext4"]);
    assert!(!said.contains("is changed"), "{said}");
    sandbox.ztier(&["down", "vol"]).ok();
}

#[test]
fn what_adapts_still_does_after_a_kill() {
    let sandbox = Sandbox::new();
    let args = up(&["--ram-limit", "auto", "--ram-min", "16M", "--ram-max", "48M"]);
    sandbox.ztier(&args).ok();
    let mut disk = Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol");
    (0..64).for_each(|block| disk.write(block * BLOCK, &content(block, 1)));
    drop(disk);
    adapting(&sandbox);
    sandbox.kill("vol");
    sandbox.ztier(&args).ok();
    assert_eq!(adapting(&sandbox)["max_bytes"], 48 * MIB);
    let mut disk = Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol");
    assert!((0..64).all(|n| disk.read(n * BLOCK, BLOCK as usize) == content(n, 1)));
}

#[test]
fn what_contradicts_itself_is_refused_before_anything_is_made() {
    let sandbox = Sandbox::new();
    let slow = sandbox.path().join("slow");
    File::create(&slow).unwrap().set_len(8 * MIB).unwrap();
    let backing = ["up", "vol", "--export", "nbd", "--backing", slow.to_str().unwrap()];
    let auto = |more: &[&'static str]| up(&[&["--ram-limit", "auto"], more].concat());
    for (args, parts) in [
        (up(&["--ram-min", "16M"]), ["ram-min is for a ram-limit that adapts", "ram-limit auto"]),
        (
            up(&["--ram-limit", "32M", "--ram-max", "48M"]),
            ["ram-max is for a ram-limit that adapts", "leave out ram-max"],
        ),
        (
            auto(&["--ram-min", "40M", "--ram-max", "20M"]),
            ["ram-min 40M is above ram-max 20M", "give a lower ram-min"],
        ),
        (auto(&["--ram-min", "64K"]), ["ram-min 64K is below the least", "give at least"]),
        (auto(&["--ram-max", "64K"]), ["ram-max 64K is below the least", "give at least"]),
        (auto(&["--ram-max", "9999G"]), ["ram-max 9999G is more than the", "give less"]),
        (
            [&backing[..], &["--ram-limit", "auto", "--ram-min", "64K"]].concat(),
            ["ram-min 64K is below the least", "give at least 1M"],
        ),
    ] {
        sandbox.ztier(&args).refused(2, &parts);
        assert!(sandbox.files().is_empty());
    }
    sandbox.ztier(&up(&["--ram-limit", "32M"])).ok();
    for (changes, part) in [
        (&["ram-min=16M"][..], "ram-min is for a ram-limit that adapts"),
        (&["ram-limit=20M", "ram-max=30M"], "ram-max is for a ram-limit that adapts"),
        (&["ram-limit=auto", "ram-min=30M", "ram-max=20M"], "ram-min 30M is above ram-max 20M"),
        (&["ram-limit=auto", "ram-min=1K"], "below the least"),
    ] {
        let args = [&["set", "vol"], changes].concat();
        sandbox.ztier(&args).refused(2, &[part]);
        assert_eq!(sandbox.status("vol")["ram_limit_bytes"], 32 * MIB);
    }
    let dry = ["up", "other", "--export", "nbd", "--size", "64M", "--ram-limit", "auto"];
    let said = sandbox.ztier(&[&dry[..], &["--dry-run"]].concat()).ok();
    assert!(said.contains("adapts between"), "{said}");
}

/// A group in which a file larger than the group is read over and over, beside copies that are no
/// longer read: the cache shrinks, and `status` and the log say why.
#[test]
fn copies_that_are_not_read_give_way_to_files() {
    let Some(group) = Group::new("auto", 160 * MIB) else { return };
    let sandbox = Sandbox::new();
    let tmpfs = 0x0102_1994;
    if rustix::fs::statfs(sandbox.path()).unwrap().f_type as u64 == tmpfs {
        println!("skipped: temporary files are memory here, which can't be dropped");
        return;
    }
    let path = |name: &str| sandbox.path().join(name).to_str().unwrap().to_owned();
    let (slow, large) = (path("slow"), path("large"));
    let blocks = 64 * MIB / BLOCK;
    let all: Vec<u8> = (0..blocks).flat_map(|block| content(block, 1)).collect();
    fs::write(&slow, all).unwrap();
    let args = ["up", "vol", "--export", "nbd", "--backing", &slow, "--ram-limit", "64M"];
    let up = finish(group.command(&sandbox.command(&args)));
    up.ok();
    let mut disk = Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol");
    for at in (0..64 * MIB).step_by(MIB as usize) {
        disk.read(at, MIB as usize);
    }
    let used = sandbox.status("vol")["stats"]["cache"]["used_bytes"].as_u64().unwrap();
    assert!(used > 40 * MIB, "{used}");

    // The file's pages have to belong to the group from the start.
    let mut make = Command::new("dd");
    let of = format!("of={large}");
    make.args(["if=/dev/zero", &of, "bs=1M", "count=240", "conv=fsync", "status=none"]);
    finish(group.command(&make)).ok();
    let mut read = Command::new("sh");
    read.args(["-c", &format!("while cat {large} > /dev/null; do :; done")]);
    let _reader = Guard(group.command(&read).spawn().unwrap());
    sandbox.ztier(&["set", "vol", "ram-limit=auto", "ram-min=4M", "ram-max=64M"]).ok();

    // More changes than a ramp has log lines; a single change can halve the cache.
    let mut status = Value::Null;
    eventually("files get memory", || {
        status = sandbox.status("vol");
        let limit = status["stats"]["ram_limit_bytes"].as_u64().unwrap();
        limit <= used / 2 && status["adapting"]["changes"].as_u64().unwrap() >= 3
    });
    let change = &status["adapting"]["last_change"];
    assert_eq!(change["reason"]["kind"], "file_cache", "{status}");
    assert!(change["from_bytes"].as_u64() > change["to_bytes"].as_u64(), "{status}");
    let cache = &status["stats"]["cache"];
    assert!(cache["used_bytes"].as_u64() <= status["stats"]["ram_limit_bytes"].as_u64());
    let text = sandbox.ztier(&["status", "vol"]).ok();
    assert!(text.contains("files that the machine had to drop are waited for"), "{text}");
    let log = fs::read_to_string(sandbox.run_dir().join("vol.log")).unwrap();
    let lines = log.lines().filter(|line| line.contains("ram-limit ")).count();
    let changes = status["adapting"]["changes"].as_u64().unwrap();
    assert!(lines >= 1 && (lines as u64) < changes, "{changes} changes: {log}");
    // Evicted blocks are still readable.
    assert!(disk.read(5 * BLOCK, BLOCK as usize) == content(5, 1));
    assert!(disk.read((blocks - 1) * BLOCK, BLOCK as usize) == content(blocks - 1, 1));
}

//! Another spill device under a volume at work, or none: nothing acknowledged is lost, also when
//! the daemon dies in the middle. And a spill device that died: what is next if it is back, was
//! replaced, or stays away, while the volume is up and when it comes up.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::disk::Disk;
use crate::support::fault_fs::{Fault, FaultFs, Op};
use crate::support::place::{BLOCK, content};
use crate::support::sandbox::{Guard, Sandbox, eventually, finish, wait};
use crate::support::shell::{missing, ok, ok_once_free, unmount};
use fuser::Errno;
use std::fs::{self, File};
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Blocks that are written: three times what memory holds.
const BLOCKS: u64 = 6144;
const UP: [&str; 11] = [
    "up",
    "vol",
    "--export",
    "nbd",
    "--size",
    "64M",
    "--segment",
    "64K",
    "--algorithm",
    "none",
    "--ram-limit",
];

/// Drives that fail on demand, and a sandbox; `None` where FUSE is missing.
fn rig(drives: &[(&str, u64)]) -> Option<(Sandbox, FaultFs)> {
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        println!("skipped: no /dev/fuse, or not root");
        return None;
    }
    Some((Sandbox::new(), FaultFs::mount(drives)))
}

fn path(drives: &FaultFs, name: &str) -> String {
    drives.path(name).to_str().unwrap().to_owned()
}

/// A volume with less memory than data, and the rest on `spill`.
fn filled(sandbox: &Sandbox, spill: &str) -> Disk {
    sandbox.ztier(&[&UP[..], &["12M", "--spill", spill]].concat()).ok();
    let mut disk = connect(sandbox);
    write(&mut disk, 1);
    assert!(spilled(sandbox) > BLOCKS / 3);
    disk
}

fn connect(sandbox: &Sandbox) -> Disk {
    Disk::open(&sandbox.run_dir().join("vol.nbd"), "vol")
}

fn write(disk: &mut Disk, version: u64) {
    (0..BLOCKS).for_each(|block| disk.write(block * BLOCK, &content(block, version)));
}

/// Everything reads as it was written.
fn check(disk: &mut Disk, version: u64) {
    assert_eq!(readable(disk, version), BLOCKS);
}

/// The number of blocks that can be read, each of which is as it was written.
fn readable(disk: &mut Disk, version: u64) -> u64 {
    let mut readable = 0;
    for block in 0..BLOCKS {
        if let Some(found) = disk.try_read(block * BLOCK, BLOCK as usize) {
            assert!(found == content(block, version), "block {block}");
            readable += 1;
        }
    }
    readable
}

fn spilled(sandbox: &Sandbox) -> u64 {
    sandbox.status("vol")["stats"]["spilled_blocks"].as_u64().unwrap()
}

/// Blocks that were given up, by the counter that is there without a spill device, too.
fn lost(sandbox: &Sandbox) -> u64 {
    sandbox.status("vol")["stats"]["spill_lost_blocks"].as_u64().unwrap()
}

fn device(sandbox: &Sandbox) -> String {
    sandbox.status("vol")["spill"]["device"].as_str().unwrap_or("none").to_owned()
}

fn file(sandbox: &Sandbox, name: &str, mib: u64) -> String {
    let path = sandbox.path().join(name);
    File::create(&path).unwrap().set_len(mib * MIB).unwrap();
    path.to_str().unwrap().to_owned()
}

fn has_label(path: &str) -> bool {
    fs::read(path).unwrap().starts_with(b"ztierspl")
}

/// The bytes of the files, past the page cache. What a mounted file system has beside them changes
/// by itself.
fn sum(point: &str) -> String {
    let command = format!(
        "for f in a b; do dd if={point}/$f bs=1M iflag=direct status=none; done | sha256sum"
    );
    ok(120, "sh", &["-c", &command])
}

#[test]
fn a_mounted_file_system_gets_another_spill_device_and_none() {
    if let Err(why) = ztier::export::fuse::available(true) {
        return println!("skipped: {why}");
    }
    if missing(&["mkfs.ext4", "dd", "sha256sum"]) {
        return;
    }
    let sandbox = Sandbox::new();
    let [one, two] = ["one", "two"].map(|name| file(&sandbox, name, 128));
    let (name, mount) = (sandbox.device_name("respill"), sandbox.path().join("mnt"));
    let up = ["up", &name, "--export", "fuse", "--size", "96M", "--segment", "64K"];
    let node = sandbox.ztier(&[&up[..], &["--ram-limit", "24M"]].concat()).ok();
    let (node, point) = (node.trim(), mount.to_str().unwrap());
    fs::create_dir(&mount).unwrap();
    ok_once_free("mkfs.ext4", &["-q", node]);
    ok(20, "mount", &[node, point]);
    let write = |name: &str, mib: u64| {
        let of = format!("of={point}/{name}");
        let count = format!("count={mib}");
        ok(120, "dd", &["if=/dev/urandom", &of, "bs=1M", &count, "conv=fsync", "status=none"]);
    };
    write("a", 4);
    let set = |changes: &[&str]| sandbox.ztier(&[&["set", &name], changes].concat());
    set(&[&format!("spill={one}")]).ok();
    write("b", 40);
    let spilled = || sandbox.status(&name)["stats"]["spilled_blocks"].as_u64().unwrap();
    assert!(spilled() > 4000);
    let before = sum(point);
    let said = set(&[&format!("spill={two}")]).ok();
    assert!(said.contains(&format!("spill={two}")), "{said}");
    assert!(!has_label(&one) && has_label(&two) && spilled() > 4000);
    assert_eq!(sum(point), before);
    set(&["spill=none"]).refused(1, &["memory has no room for what is spilled", "ram-limit"]);
    assert_eq!(sum(point), before);
    set(&["ram-limit=96M", "spill=none"]).ok();
    assert_eq!((spilled(), has_label(&two)), (0, false));
    assert_eq!(sum(point), before);
    // Once more, after it had none.
    set(&["ram-limit=40M", &format!("spill={one}")]).refused(5, &["ram-limit"]);
    set(&[&format!("spill={one}")]).ok();
    set(&["ram-limit=24M"]).ok();
    assert!(spilled() > 4000);
    assert_eq!(sum(point), before);
    unmount(point);
    sandbox.ztier(&["down", &name, "--discard"]).ok();
}

#[test]
fn what_cannot_be_the_spill_device_is_refused_and_changes_nothing() {
    let sandbox = Sandbox::new();
    let [one, small, tiny] =
        [("one", 64), ("small", 8), ("tiny", 0)].map(|(name, mib)| file(&sandbox, name, mib));
    let mut disk = filled(&sandbox, &one);
    let refused = |spill: &str, more: &[&str], status: i32, says: &[&str]| {
        let spill = format!("spill={spill}");
        let set = [&["set", "vol", &spill], more].concat();
        sandbox.ztier(&set).refused(status, says);
        assert_eq!(device(&sandbox), one);
    };
    refused(&one, &[], 4, &["its spill device already"]);
    refused(&small, &[], 1, &["too small to take what is spilled", "larger"]);
    refused(&tiny, &[], 1, &["too small"]);
    refused("/nonexistent/spill", &[], 1, &["/nonexistent/spill"]);
    sandbox
        .ztier(&["set", "vol", "ram-limit=13M", "--wipe"])
        .refused(2, &["--wipe is for a spill"]);
    let used = file(&sandbox, "used", 64);
    fs::write(&used, [&[0; 1024][..], &superblock()].concat()).unwrap();
    File::options().write(true).open(&used).unwrap().set_len(64 * MIB).unwrap();
    refused(&used, &[], 5, &["ext", "--wipe"]);
    check(&mut disk, 1);
    sandbox.ztier(&["set", "vol", &format!("spill={used}"), "--wipe"]).ok();
    assert_eq!(device(&sandbox), used);
    check(&mut disk, 1);
    write(&mut disk, 2);
    check(&mut disk, 2);
    drop(disk);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

/// An ext4 superblock, as far as signatures tell.
fn superblock() -> Vec<u8> {
    let mut bytes = vec![0; 1024];
    bytes[0x38..0x3a].copy_from_slice(&[0x53, 0xef]);
    bytes[0x5c] = 4;
    bytes[0x60] = 0x40;
    bytes
}

#[test]
fn the_change_is_saved_for_the_next_up() {
    let sandbox = Sandbox::new();
    let [one, two] = ["one", "two"].map(|name| file(&sandbox, name, 64));
    let up = [&UP[..], &["12M", "--spill", &one, "--spill-daily", "20G", "--save"]].concat();
    sandbox.ztier(&up).ok();
    let settings = || fs::read_to_string(sandbox.config_dir().join("vol.toml")).unwrap();
    sandbox.ztier(&["set", "vol", &format!("spill={two}"), "--save"]).ok();
    assert!(settings().contains(&two) && settings().contains("spill-daily"), "{}", settings());
    sandbox.ztier(&["set", "vol", "spill=none", "--save"]).ok();
    assert!(settings().contains("spill = \"none\""), "{}", settings());
    assert!(!settings().contains("spill-daily"), "{}", settings());
    sandbox.ztier(&["up", "vol", "--ensure"]).ok();
    sandbox.ztier(&["down", "vol"]).ok();
    sandbox.ztier(&["up", "vol"]).ok();
    assert_eq!(device(&sandbox), "none");
    sandbox.ztier(&["down", "vol"]).ok();
}

/// A move takes long: what is written to the file meanwhile stays.
#[test]
fn the_change_is_saved_in_the_file_as_it_is_after_the_move() {
    let Some((sandbox, drives)) = rig(&[("one", 64 * MIB), ("two", 64 * MIB)]) else { return };
    let (one, two) = (path(&drives, "one"), path(&drives, "two"));
    sandbox.ztier(&[&UP[..], &["12M", "--spill", &one, "--save"]].concat()).ok();
    let mut disk = connect(&sandbox);
    write(&mut disk, 1);
    drives.fail("two", Op::Write, Fault::Slow(Duration::from_millis(200)));
    let mut set = sandbox.command(&["set", "vol", &format!("spill={two}"), "--save"]);
    let set = set.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut set = Guard(set);
    eventually("the move is at work", || drives.struck("two") > 0);
    // Without a systemctl: that of this machine has nothing to do with the volume.
    let mut disable = sandbox.command(&["disable", "vol"]);
    disable.env("PATH", sandbox.path());
    finish(disable).ok();
    assert!(matches!(set.0.try_wait(), Ok(None)), "the move was over before");
    drives.heal();
    assert_eq!(wait(&mut set.0), 0);
    let settings = fs::read_to_string(sandbox.config_dir().join("vol.toml")).unwrap();
    let spill = format!("spill = \"{two}\"\n");
    assert!(settings.contains(&spill) && settings.contains("boot = false\n"), "{settings}");
    check(&mut disk, 1);
    drop(disk);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

#[test]
fn the_bytes_a_day_change_while_the_volume_is_up() {
    let sandbox = Sandbox::new();
    let one = file(&sandbox, "one", 64);
    let set = |changes: &[&str]| sandbox.ztier(&[&["set", "vol"], changes].concat());
    sandbox.ztier(&[&UP[..], &["12M", "--save"]].concat()).ok();
    set(&["spill-daily=4M"]).refused(2, &["spill-daily", "give spill=DEV"]);
    let spill = format!("spill={one}");
    set(&[&spill, "spill-daily=5%"]).refused(2, &["spill-daily is a number of bytes"]);
    set(&["spill=none", "spill-daily=4M"]).refused(2, &["give spill=DEV"]);
    let said = set(&[&spill, "spill-daily=4M", "--save"]).ok();
    assert!(said.contains("spill-daily=4M"), "{said}");
    let mut disk = connect(&sandbox);
    let taken = |disk: &mut Disk| {
        (0..BLOCKS).filter(|n| disk.write_error(n * BLOCK, &content(*n, 1)) == 0).count()
    };
    // Memory and a day's bytes: 24 MiB do not fit into 12 and 4.
    assert!((taken(&mut disk) as u64) < BLOCKS * 3 / 4);
    let allowed = sandbox.status("vol")["stats"]["spill_allowed_bytes"].as_u64().unwrap();
    assert!(allowed < MIB, "{allowed}");
    set(&["spill-daily=0"]).ok();
    assert_eq!(taken(&mut disk) as u64, BLOCKS);
    check(&mut disk, 1);
    set(&["spill-daily=3G", "--save"]).ok();
    drop(disk);
    sandbox.ztier(&["restart", "vol"]).ok();
    assert_eq!(sandbox.status("vol")["spill"]["daily_bytes"], 3u64 << 30);
    let settings = fs::read_to_string(sandbox.config_dir().join("vol.toml")).unwrap();
    assert!(settings.contains("spill-daily = \"3G\""), "{settings}");
    sandbox.ztier(&["up", "vol", "--ensure"]).ok();
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

/// Kills the daemon at moments while what is spilled moves to another device, or back to memory.
#[test]
fn a_daemon_that_dies_in_the_middle_loses_nothing() {
    let Some((sandbox, drives)) = rig(&[("one", 64 * MIB), ("two", 64 * MIB)]) else { return };
    let devices = [path(&drives, "one"), path(&drives, "two")];
    let mut disk = filled(&sandbox, &devices[0]);
    for (op, slow) in [(Op::Write, "two"), (Op::Write, "one"), (Op::Read, "one"), (Op::Read, "two")]
    {
        let now = device(&sandbox);
        let other = devices.iter().find(|device| **device != now).unwrap();
        drives.fail(slow, op, Fault::Slow(Duration::from_millis(20)));
        for after in [30, 200, 700] {
            let set = ["set", "vol", &format!("spill={other}")];
            let mut child = sandbox.command(&set);
            let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
            std::thread::sleep(Duration::from_millis(after));
            drop(disk);
            sandbox.kill("vol");
            wait(&mut child);
            sandbox.ztier(&["restart", "vol"]).ok();
            disk = connect(&sandbox);
            drives.heal();
            check(&mut disk, 1);
            drives.fail(slow, op, Fault::Slow(Duration::from_millis(20)));
        }
        drives.heal();
        let set = sandbox.ztier(&["set", "vol", &format!("spill={other}")]);
        assert!(set.status == 0 || set.err.contains("already"), "{set:?}");
        check(&mut disk, 1);
    }
    let now = device(&sandbox);
    let name = if now == devices[0] { "one" } else { "two" };
    drives.fail(name, Op::Read, Fault::Slow(Duration::from_millis(20)));
    let mut child = sandbox.command(&["set", "vol", "ram-limit=64M", "spill=none"]);
    let mut child = child.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    std::thread::sleep(Duration::from_millis(400));
    drop(disk);
    sandbox.kill("vol");
    wait(&mut child);
    drives.heal();
    sandbox.ztier(&["restart", "vol"]).ok();
    disk = connect(&sandbox);
    check(&mut disk, 1);
    sandbox.ztier(&["set", "vol", "ram-limit=64M", "spill=none"]).ok();
    check(&mut disk, 1);
    drop(disk);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

/// The limit goes down while what no longer fits is spilled, which takes long here.
#[test]
fn what_users_open_is_told_also_while_the_volume_changes() {
    let Some((sandbox, drives)) = rig(&[("one", 64 * MIB)]) else { return };
    sandbox.ztier(&[&UP[..], &["40M", "--spill", &path(&drives, "one")]].concat()).ok();
    let mut disk = connect(&sandbox);
    write(&mut disk, 1);
    let one = path(&drives, "one");
    let ensure = ["up", "vol", "--export", "nbd", "--size", "64M", "--spill", &one, "--ensure"];
    let open = sandbox.ztier(&ensure).ok();
    assert!(open.contains("vol.nbd"), "{open}");
    drives.fail("one", Op::Write, Fault::Slow(Duration::from_millis(20)));
    let mut set = sandbox.command(&["set", "vol", "ram-limit=12M"]);
    let set = set.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
    let mut set = Guard(set);
    while set.0.try_wait().unwrap().is_none() {
        assert_eq!(sandbox.ztier(&ensure).ok(), open);
        assert_eq!(sandbox.status("vol")["endpoints"][0], open.trim());
    }
    assert_eq!(wait(&mut set.0), 0);
    assert!(drives.struck("one") > 20, "{}", drives.struck("one"));
    drives.heal();
    check(&mut disk, 1);
    drop(disk);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

#[test]
fn a_device_that_died_below_a_volume_at_work() {
    let Some((sandbox, drives)) = rig(&[("one", 64 * MIB), ("two", 64 * MIB)]) else { return };
    let (one, two) = (path(&drives, "one"), path(&drives, "two"));
    let mut disk = filled(&sandbox, &one);
    let fails = |op| drives.fail("one", op, Fault::Always(Errno::EIO));
    // Reads work: all of it goes to another device.
    fails(Op::Write);
    disk.write_error(0, &content(0, 1));
    while sandbox.ztier(&["status", "vol"]).status == 0 {
        write_some(&mut disk);
    }
    let next = "`ztier set vol spill=DEV` goes on with another device, `ztier set vol spill=none`";
    let said = sandbox.ztier(&["status", "vol"]);
    assert!(said.err.contains(next), "{said:?}");
    sandbox.ztier(&["set", "vol", &format!("spill={two}")]).ok();
    check(&mut disk, 1);
    // Back again: nothing has to be done.
    drives.heal();
    sandbox.ztier(&["set", "vol", &format!("spill={one}")]).ok();
    fails(Op::Read);
    let while_dead = readable(&mut disk, 1);
    assert!(while_dead < BLOCKS, "{while_dead}");
    drives.heal();
    check(&mut disk, 1);
    // Replaced.
    fails(Op::Read);
    fails(Op::Write);
    let replaced = ["set", "vol", &format!("spill={two}")];
    let says = ["are only on the spill device", "have the drive work again", "--accept-loss"];
    sandbox.ztier(&replaced).refused(5, &says);
    assert_eq!(device(&sandbox), one);
    sandbox.ztier(&[&replaced[..], &["--accept-loss"]].concat()).looked();
    let left = readable(&mut disk, 1);
    assert!((BLOCKS / 4..BLOCKS).contains(&left), "{left}");
    assert_eq!(lost(&sandbox), BLOCKS - left);
    write(&mut disk, 2);
    check(&mut disk, 2);
    // None at all.
    drives.fail("two", Op::Read, Fault::Always(Errno::EIO));
    let none = ["set", "vol", "spill=none"];
    sandbox.ztier(&none).refused(1, &["memory has no room"]);
    sandbox.ztier(&["set", "vol", "ram-limit=64M"]).looked();
    sandbox.ztier(&none).refused(5, &says);
    sandbox.ztier(&[&none[..], &["--accept-loss"]].concat()).looked();
    assert_eq!(device(&sandbox), "none");
    assert!(readable(&mut disk, 2) < BLOCKS);
    write(&mut disk, 3);
    check(&mut disk, 3);
    drop(disk);
    sandbox.ztier(&["down", "vol", "--discard"]).looked();
}

/// Writes what is there anew, so that something has to be spilled.
fn write_some(disk: &mut Disk) {
    for block in 0..512 {
        disk.write_error(block * BLOCK, &content(block, 1));
    }
}

#[test]
fn a_device_that_is_gone_when_the_volume_comes_up() {
    let sandbox = Sandbox::new();
    let one = file(&sandbox, "one", 64);
    let two = file(&sandbox, "two", 64);
    let away = format!("{one}.away");
    drop(filled(&sandbox, &one));
    let restart = ["restart", "vol"];
    let discard = ["restart", "vol", "--discard-spill"];
    sandbox.ztier(&discard).refused(2, &["is up", "`ztier set vol spill=none`"]);
    sandbox.kill("vol");
    // It is there.
    sandbox.ztier(&discard).refused(4, &["is there, with what was spilled"]);
    fs::rename(&one, &away).unwrap();
    let says = [
        "is gone; bring back the device that `vol` had, then `ztier restart vol`; only if",
        "`ztier restart vol --discard-spill`",
        "`ztier set vol spill=DEV`",
    ];
    sandbox.ztier(&restart).refused(5, &says);
    // Back.
    fs::rename(&away, &one).unwrap();
    sandbox.ztier(&restart).ok();
    check(&mut connect(&sandbox), 1);
    // Replaced by an empty one of the same name.
    sandbox.kill("vol");
    fs::rename(&one, &away).unwrap();
    file(&sandbox, "one", 64);
    sandbox.ztier(&restart).refused(5, &["does not hold what was spilled any more", says[1]]);
    let said = sandbox.ztier(&discard);
    assert!(said.err.contains("blocks were only on the spill device, and are lost"), "{said:?}");
    assert_eq!(device(&sandbox), "none");
    let mut disk = connect(&sandbox);
    let left = readable(&mut disk, 1);
    assert!((BLOCKS / 4..BLOCKS).contains(&left), "{left}");
    assert_eq!(lost(&sandbox), BLOCKS - left);
    sandbox.ztier(&["set", "vol", &format!("spill={two}")]).ok();
    write(&mut disk, 2);
    check(&mut disk, 2);
    // What was lost stays so over a restart without the device, and nothing more is.
    drop(disk);
    sandbox.kill("vol");
    sandbox.ztier(&restart).ok();
    eventually("it is read again", || readable(&mut connect(&sandbox), 2) == BLOCKS);
    sandbox.ztier(&["down", "vol", "--discard"]).ok();
}

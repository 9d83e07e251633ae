//! Volumes that are put to use automatically: swap space and a mounted file system, made anew when
//! they come up empty and ended by `down`.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::machine::Turn;
use crate::support::sandbox::{Guard, Sandbox, eventually};
use crate::support::shell::{missing, ok, unmount};
use std::fs;
use std::path::PathBuf;
use std::process::Command;
use ztier::kernel_text::kernel_text;

/// Whether block devices can't be made here; prints the reason.
fn no_block_device(sandbox: &Sandbox) -> bool {
    let plan = sandbox.ztier(&["up", "vol", "--size", "1M", "--export", "fuse", "--dry-run"]);
    if plan.status != 0 {
        println!("skipped: {}", plan.err.trim());
    }
    plan.status != 0
}

/// The line of a kernel table that names `what`.
fn line_of(table: &str, what: &str) -> Option<String> {
    let text = kernel_text(table).unwrap();
    text.lines().find(|line| line.split_whitespace().any(|w| w == what)).map(str::to_owned)
}

/// A name unique to this test, since all tests share `/dev/ztier`.
fn name(what: &str) -> String {
    format!("use-{what}-{}", std::process::id())
}

#[test]
fn ext4_is_made_mounted_and_ended() {
    let sandbox = Sandbox::new();
    if no_block_device(&sandbox) || missing(&["mkfs.ext4"]) {
        return;
    }
    let name = name("ext4");
    let point = sandbox.path().join("a place");
    let at = point.to_str().unwrap();
    let up = [
        "up", &name, "--size", "64M", "--export", "fuse", "--use", "ext4", "--mount", at, "--save",
    ];
    sandbox.ztier(&up).ok();
    let mounted = line_of("/proc/mounts", &at.replace(' ', "\\040")).unwrap();
    assert!(mounted.contains(" ext4 ") && mounted.contains("discard"), "{mounted}");
    fs::write(point.join("file"), "content").unwrap();

    sandbox.ztier(&["down", &name]).refused(5, &["exist nowhere else", "--discard"]);
    let held = fs::File::open(point.join("file")).unwrap();
    sandbox
        .ztier(&["down", &name, "--discard"])
        .refused(4, &["umount", "busy", "end what uses it"]);
    assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "content");
    drop(held);
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    assert_eq!(fs::read_dir(&point).unwrap().count(), 0);

    // Up again by its file, and without its former content.
    sandbox.ztier(&["up", &name]).ok();
    assert!(!point.join("file").exists() && point.join("lost+found").exists());
    // The mount point is in use now.
    let second = format!("{name}-2");
    let up = ["up", &second, "--size", "64M", "--use", "ext4", "--mount", at];
    sandbox.ztier(&up).refused(4, &["is mounted on", "already"]);
    assert!(!sandbox.run_dir().join(format!("{second}.json")).exists());
    sandbox.ztier(&["down", &name, "--discard"]).ok();
}

/// Files there would be hidden, and `down` would not find a mount by another name.
#[test]
fn a_mount_point_that_holds_something_or_leads_elsewhere_is_refused() {
    let sandbox = Sandbox::new();
    if no_block_device(&sandbox) || missing(&["mkfs.ext4"]) {
        return;
    }
    let name = name("place");
    let dir = fs::canonicalize(sandbox.path()).unwrap();
    let at = |below: &str| dir.join(below).to_str().unwrap().to_owned();
    fs::create_dir_all(at("full/sub")).unwrap();
    fs::create_dir(at("empty")).unwrap();
    std::os::unix::fs::symlink(at("empty"), at("link")).unwrap();
    fs::write(at("file"), "").unwrap();
    let leads = |to: &str| format!("leads to {}", at(to));
    for (place, parts) in [
        ("full", [format!("{}: it holds sub", at("full")), "another directory".into()]),
        ("file", [format!("{}: it is no directory", at("file")), "give an empty".into()]),
        ("link", [format!("{} {};", at("link"), leads("empty")), "itself".into()]),
        ("link/x", [format!("{} {};", at("link/x"), leads("empty/x")), "itself".into()]),
    ] {
        let parts = parts.each_ref().map(String::as_str);
        let mount = at(place);
        let flags = ["up", &name, "--size", "64M", "--export", "fuse", "--use", "ext4", "--mount"];
        let flags = [&flags[..], &[&mount]].concat();
        sandbox.ztier(&flags).refused(2, &parts);
        sandbox.ztier(&[&flags[..], &["--dry-run"]].concat()).refused(2, &parts);
        fs::create_dir_all(sandbox.config_dir()).unwrap();
        let settings =
            format!("size = \"64M\"\nexport = \"fuse\"\nuse = \"ext4\"\nmount = \"{mount}\"\n");
        fs::write(sandbox.config_dir().join(format!("{name}.toml")), settings).unwrap();
        sandbox.ztier(&["up", &name]).refused(2, &parts);
        sandbox.ztier(&["up", &name, "--foreground"]).refused(2, &parts);
    }
    assert_eq!(sandbox.files(), [""; 0]);
    assert!(fs::symlink_metadata(format!("/dev/ztier/{name}")).is_err());

    // The volume's own mount there does not count, also when its daemon is gone.
    let mount = at("empty");
    let up = ["up", &name, "--size", "64M", "--export", "fuse", "--use", "ext4", "--mount", &mount];
    sandbox.ztier(&up).ok();
    fs::write(at("empty/inside"), "content").unwrap();
    sandbox.ztier(&["restart", &name]).ok();
    assert_eq!(fs::read_to_string(at("empty/inside")).unwrap(), "content");
    sandbox.kill(&name);
    sandbox.ztier(&["restart", &name]).ok();
    assert_eq!(fs::read_to_string(at("empty/inside")).unwrap(), "content");
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    assert_eq!(fs::read_dir(at("empty")).unwrap().count(), 0);
}

/// Unmounting first, and refusing then, would leave the volume up without its use.
#[test]
fn a_use_goes_on_if_the_volume_does() {
    let sandbox = Sandbox::new();
    if no_block_device(&sandbox) || missing(&["mkfs.ext4"]) {
        return;
    }
    let name = name("on");
    let dir = fs::canonicalize(sandbox.path()).unwrap();
    let (point, second) = (dir.join("mnt"), dir.join("second"));
    let at = point.to_str().unwrap();
    let up = ["up", &name, "--size", "64M", "--export", "fuse", "--use", "ext4", "--mount", at];
    sandbox.ztier(&up).ok();
    fs::write(point.join("file"), "content").unwrap();
    let is_there = || assert_eq!(fs::read_to_string(point.join("file")).unwrap(), "content");
    let down = ["down", &name, "--discard"];

    fs::create_dir(&second).unwrap();
    ok(20, "mount", &["--bind", at, second.to_str().unwrap()]);
    let mounted = format!("mounted on {}", second.display());
    sandbox.ztier(&down).refused(4, &["is in use", &mounted, "end that first"]);
    is_there();
    unmount(&second);

    // Where another process has it mounted shows only once this mount is gone.
    if !missing(&["unshare"]) {
        let mut apart = Command::new("unshare");
        apart.args(["--mount", "--propagation", "private", "sleep", "60"]);
        let apart = Guard(apart.spawn().unwrap());
        let process = PathBuf::from(format!("/proc/{}", apart.0.id()));
        let sleeps = || fs::read_to_string(process.join("comm")).is_ok_and(|s| s == "sleep\n");
        eventually("it has mounts of its own", sleeps);
        sandbox.ztier(&down).refused(4, &["in the namespace of process"]);
        is_there();
    }
    // A namespace, and its mounts, go a moment after its last process.
    eventually("it is down", || sandbox.ztier(&down).status == 0);
    assert!(!point.join("file").exists());
}

/// With force, the user of the device would keep an open device that returns errors, without a
/// daemon.
#[test]
fn a_device_that_cannot_wait_is_not_taken_from_who_holds_it() {
    let sandbox = Sandbox::new();
    if no_block_device(&sandbox) {
        return;
    }
    let name = name("held");
    sandbox.ztier(&["up", &name, "--size", "16M", "--export", "fuse"]).ok();
    let pid = sandbox.pid(&name);
    let held = fs::File::open(format!("/dev/ztier/{name}")).unwrap();
    for force in [&[][..], &["--force"]] {
        let restart = sandbox.ztier(&[&["restart", &name], force].concat());
        assert!(!restart.err.contains("--force"), "{restart:?}");
        restart.refused(4, &["is in use", "end that first"]);
    }
    assert_eq!(sandbox.pid(&name), pid);
    drop(held);
    sandbox.ztier(&["restart", &name, "--force"]).ok();
    sandbox.ztier(&["down", &name, "--discard"]).ok();
}

#[test]
fn what_is_in_it_outlives_the_daemon() {
    let sandbox = Sandbox::new();
    if no_block_device(&sandbox) || missing(&["mkfs.ext4"]) {
        return;
    }
    let name = name("dead");
    let point = sandbox.path().join("mnt");
    let at = point.to_str().unwrap();
    let up = ["up", &name, "--size", "64M", "--export", "fuse", "--use", "ext4", "--mount", at];
    sandbox.ztier(&up).ok();
    let file = point.join("file");
    fs::write(&file, "content").unwrap();
    sandbox.ztier(&["restart", &name]).ok();
    assert_eq!(fs::read_to_string(&file).unwrap(), "content");
    let held = fs::File::open(&file).unwrap();
    sandbox.ztier(&["restart", &name]).refused(4, &["umount", "busy"]);
    held.sync_all().unwrap();
    drop(held);
    // The next daemon unmounts what the dead one had mounted, checks it, and mounts it again.
    sandbox.kill(&name);
    sandbox.ztier(&up).ok();
    let text = kernel_text("/proc/mounts").unwrap();
    assert_eq!(text.lines().filter(|l| l.contains(at)).count(), 1, "{text}");
    assert_eq!(fs::read_to_string(&file).unwrap(), "content");
    fs::write(&file, "other").unwrap();
    sandbox.kill(&name);
    sandbox.ztier(&["down", &name, "--discard"]).ok();
    assert!(!file.exists());
}

#[test]
fn swap_is_made_enabled_and_ended() {
    let (_turn, sandbox) = (Turn::wait(), Sandbox::new());
    if no_block_device(&sandbox) || missing(&["mkswap", "swapon"]) {
        return;
    }
    let name = name("swap");
    let up = ["up", &name, "--size", "16M", "--export", "fuse", "--use", "swap", "--priority", "7"];
    let done = sandbox.ztier(&up);
    if done.status != 0 && done.err.contains("must not carry swap") {
        println!("skipped: {}", done.err.trim());
        return;
    }
    let device = PathBuf::from(done.ok().trim());
    let device = fs::canonicalize(device).unwrap();
    let swap = line_of("/proc/swaps", device.to_str().unwrap()).unwrap();
    assert_eq!(swap.split_whitespace().last(), Some("7"), "{swap}");
    assert!(sandbox.status(&name)["holders"].to_string().contains("swap"));
    // Swapped-out pages come back to memory, so no data is given up.
    sandbox.ztier(&["down", &name]).ok();
    assert_eq!(line_of("/proc/swaps", device.to_str().unwrap()), None);
}

#[test]
fn what_makes_no_sense_is_refused() {
    let sandbox = Sandbox::new();
    let sized = |more: &[&str]| {
        sandbox.ztier(&[&["up", "vol", "--size", "64M", "--dry-run"], more].concat())
    };
    sized(&["--use", "ext4"]).refused(2, &["needs a place", "mount = "]);
    sized(&["--use", "ext4", "--mount", "x"]).refused(2, &["begin with /"]);
    sized(&["--use", "swap", "--mount", "/x"]).refused(2, &["mount is for use = \"ext4\""]);
    sized(&["--mount", "/x"]).refused(2, &["mount is for use = \"ext4\""]);
    sized(&["--priority", "3"]).refused(2, &["priority is for use = \"swap\""]);
    sized(&["--use", "swap", "--priority", "99999"]).refused(2, &["99999", "0 to 32767"]);
    sized(&["--use", "swap", "--export", "nbd"])
        .refused(2, &["block device", "--export ublk or fuse"]);
    let (log, backing) = (sandbox.path().join("log"), sandbox.path().join("backing"));
    for file in [&log, &backing] {
        fs::File::create(file).unwrap().set_len(64 << 20).unwrap();
    }
    let (log, backing) = (log.to_str().unwrap(), backing.to_str().unwrap());
    let up = ["up", "vol", "--log", log, "--backing", backing, "--use", "ext4", "--mount", "/x"];
    sandbox.ztier(&up).refused(2, &["would destroy what its backing store has", "/etc/fstab"]);
}

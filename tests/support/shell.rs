//! Programs of the machine, each with a time limit.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// Runs a program for at most `seconds`.
pub fn run(seconds: u32, program: &str, args: &[&str]) -> Output {
    Command::new("timeout")
        .args(["-k", "2", &seconds.to_string(), program])
        .args(args)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// All output of a program.
pub fn text(out: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr))
}

/// Runs a program that has to succeed. Returns its output.
#[track_caller]
pub fn ok(seconds: u32, program: &str, args: &[&str]) -> String {
    let out = run(seconds, program, args);
    assert!(out.status.success(), "{program} {args:?}: {:?}: {}", out.status, text(&out));
    text(&out)
}

/// As [`ok`], for a program that takes a device. A child between its fork and its program, or
/// an `io_uring` that was just closed, may still hold the device for a moment.
#[track_caller]
pub fn ok_once_free(program: &str, args: &[&str]) -> String {
    let deadline = Instant::now() + Duration::from_secs(10);
    while Instant::now() < deadline {
        let out = run(60, program, args);
        if out.status.success() {
            return text(&out);
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    ok(60, program, args)
}

/// Unmounts. A program that has just ended, or an `io_uring` that was just closed, may still hold a
/// file for a moment.
///
/// # Errors
/// What `umount` says, when it still fails after some seconds.
pub fn try_unmount(point: impl AsRef<Path>) -> Result<(), String> {
    let deadline = Instant::now() + Duration::from_secs(10);
    loop {
        let mut command = Command::new("timeout");
        let out = command.args(["-k", "2", "20", "umount"]).arg(point.as_ref()).output().unwrap();
        match out.status.success() {
            true => return Ok(()),
            false if Instant::now() > deadline => return Err(text(&out)),
            false => std::thread::sleep(Duration::from_millis(20)),
        }
    }
}

/// As [`try_unmount`], which has to succeed.
#[track_caller]
pub fn unmount(point: impl AsRef<Path>) {
    try_unmount(point).unwrap();
}

/// Whether this machine lacks one of the programs; prints which.
pub fn missing(programs: &[&str]) -> bool {
    for p in programs {
        if !run(5, "sh", &["-c", &format!("command -v {p}")]).status.success() {
            println!("skipped: no {p}");
            return true;
        }
    }
    false
}

/// Whether `mkfs.btrfs` is missing or refuses every file: it looks at all mounts and loop devices
/// of the machine, also at those of a server that was killed. Prints which.
pub fn lacks_btrfs(directory: &Path) -> bool {
    if missing(&["mkfs.btrfs"]) {
        return true;
    }
    let probe = directory.join("btrfs.probe");
    std::fs::File::create(&probe).unwrap().set_len(128 << 20).unwrap();
    let deadline = Instant::now() + Duration::from_secs(20);
    let out = loop {
        let out = run(20, "mkfs.btrfs", &["-q", probe.to_str().unwrap()]);
        if out.status.success() || Instant::now() > deadline {
            break out;
        }
        std::thread::sleep(Duration::from_millis(200));
    };
    std::fs::remove_file(probe).unwrap();
    if !out.status.success() {
        println!("skipped: mkfs.btrfs works on no file here: {}", text(&out).trim());
    }
    !out.status.success()
}

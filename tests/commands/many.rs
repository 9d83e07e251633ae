//! Many volumes on one machine: the cost of listing them grows no faster than their number.
//!
//! The test counts work, not time; `docs/outlive.md` has the times.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use crate::support::sandbox::{Guard, Sandbox, eventually, finish, stop};
use crate::support::shell::missing;
use rustix::process::{Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const VOLUMES: usize = 6;

/// Brings up volumes `v0`, `v1`, …, by NBD and, where that works, by FUSE.
fn up(sandbox: &Sandbox) -> Vec<String> {
    let names: Vec<String> = (0..VOLUMES).map(|n| format!("v{n}")).collect();
    for (n, name) in names.iter().enumerate() {
        let by = |export| sandbox.ztier(&["up", name, "--size", "1M", "--export", export]);
        if n % 2 == 1 || by("fuse").status != 0 {
            by("nbd").ok();
        }
    }
    names
}

/// The lines of a system call log that search for open files of processes.
fn looks_at_processes(log: &str) -> Vec<&str> {
    let is_process = |line: &&str| {
        let mut paths = line.split('"').skip(1).step_by(2);
        paths.any(|path| {
            let below = path.strip_prefix("/proc/").unwrap_or_default();
            below.starts_with(|c: char| c.is_ascii_digit()) && below.contains("/fd")
        })
    };
    log.lines().filter(is_process).collect()
}

#[test]
fn a_list_asks_each_daemon_once_and_looks_at_no_process() {
    let sandbox = Sandbox::new();
    if missing(&["strace"]) {
        return;
    }
    let names = up(&sandbox);
    let log = |name: &str| sandbox.path().join(name).display().to_string();
    let calls = ["-f", "-e", "trace=connect,openat,readlink,readlinkat", "-o"];
    // Daemons, too: work of one daemon for its answer is work of all.
    let mut watched: Vec<Guard> = names
        .iter()
        .map(|name| {
            let mut strace = Command::new("strace");
            strace.args(calls).args([&log(name), "-p"]);
            strace.arg(sandbox.pid(name).as_raw_nonzero().to_string());
            Guard(strace.stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap())
        })
        .collect();
    for (name, strace) in names.iter().zip(&mut watched) {
        // Once strace is attached, the file exists.
        eventually("a daemon is watched", || {
            assert!(strace.0.try_wait().unwrap().is_none(), "strace can't watch {name}");
            let status = format!("/proc/{}/status", sandbox.pid(name).as_raw_nonzero());
            !fs::read_to_string(status).unwrap().contains("TracerPid:\t0\n")
        });
    }
    for name in &names {
        fs::write(log(name), "").unwrap();
    }
    for args in [&["list"][..], &["list", "--json"], &["status"]] {
        let mut strace = Command::new("strace");
        strace.args(calls).arg(log("list")).arg(env!("CARGO_BIN_EXE_ztier")).args(args);
        let envs = sandbox.command(&[]);
        strace.envs(envs.get_envs().filter_map(|(key, value)| Some((key, value?))));
        let done = finish(strace);
        assert!(names.iter().all(|name| done.out.contains(name.as_str())), "{done:?}");
        let text = fs::read_to_string(log("list")).unwrap();
        for name in &names {
            let socket = format!("/{name}.sock\"");
            let connects = text.lines().filter(|line| line.contains("connect("));
            assert_eq!(connects.filter(|line| line.contains(&socket)).count(), 1, "{text}");
        }
        assert_eq!(looks_at_processes(&text), [""; 0], "{args:?}");
    }
    for (name, strace) in names.iter().zip(watched) {
        drop(strace);
        let text = fs::read_to_string(log(name)).unwrap();
        assert_eq!(looks_at_processes(&text), [""; 0], "the daemon of {name}");
    }
    // The check can fail.
    let line = "7 readlink(\"/proc/123/fd/4\", \"/dev/x\", 9) = 6";
    assert_eq!(looks_at_processes(line), [line]);
}

#[test]
fn daemons_that_do_not_answer_are_waited_for_together() {
    let sandbox = Sandbox::new();
    let names = up(&sandbox);
    for name in &names[..4] {
        stop(sandbox.pid(name));
    }
    let begun = Instant::now();
    let rows: Value = serde_json::from_str(&sandbox.ztier(&["list", "--json"]).looked()).unwrap();
    let took = begun.elapsed();
    let states: Vec<_> = (0..VOLUMES).map(|n| rows[n]["state"].as_str().unwrap()).collect();
    assert_eq!(states, ["busy", "busy", "busy", "busy", "up", "up"]);
    // Ten seconds each, one after the other, would be forty.
    assert!(took < Duration::from_secs(25), "{took:?}");
}

#[test]
fn a_daemon_that_was_killed_is_dead_at_the_next_look() {
    let sandbox = Sandbox::new();
    let names = up(&sandbox);
    for name in &names[..4] {
        kill_process(sandbox.pid(name), Signal::KILL).unwrap();
        let rows: Value =
            serde_json::from_str(&sandbox.ztier(&["list", "--json"]).looked()).unwrap();
        let row = rows.as_array().unwrap().iter().find(|row| row["name"] == **name).unwrap();
        assert_eq!(row["state"], "dead", "{row}");
        assert_eq!(row["kept"], true);
    }
}

//! `ztier-bench object`: figures of the smallest run, a machine without a server of S3, and runs
//! that are interrupted or killed.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

mod support;

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use support::{Running, until};

/// Where the bench keeps large files.
const LARGE: &str = "/var/tmp";

/// Whether there is a `ztier` for the bench; prints a message if not.
fn is_built() -> bool {
    let built = Path::new(env!("CARGO_BIN_EXE_ztier-bench")).with_file_name("ztier").is_file();
    if !built {
        println!("skipped: there is no ztier beside the bench; build the workspace");
    }
    built
}

/// The bench with temporary files below `work`, and no server of S3 that was not built before.
fn object(work: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_ztier-bench"));
    command.args(["object", "--quick"]).args(args).current_dir(work);
    command.env("TMPDIR", work.join("tmp"));
    fs::create_dir_all(work.join("tmp")).unwrap();
    command
}

/// An empty cache of servers, and no way to fill it.
fn without_servers(command: &mut Command, work: &Path) {
    command.env("ZTIER_S3_CACHE", work.join("servers")).env("GOPROXY", "off");
    command.env("GOMODCACHE", work.join("modules")).env("GOFLAGS", "-mod=mod");
}

/// What a run has left.
fn left(work: &Path, run: u32) -> Vec<String> {
    let of = format!("ztier-bench-{run}-");
    let entries = |dir: &Path| fs::read_dir(dir).unwrap().flatten().map(|entry| entry.path());
    let all = entries(&work.join("tmp")).chain(entries(Path::new(LARGE)));
    let all = all.map(|path: PathBuf| path.to_str().unwrap().to_owned());
    all.filter(|path| path.rsplit('/').next().unwrap().starts_with(&of)).collect()
}

/// Processes whose command line or environment names a directory of a run.
fn processes(run: u32) -> Vec<String> {
    let of = format!("/ztier-bench-{run}-");
    let all = fs::read_dir("/proc").unwrap().flatten().filter_map(|entry| {
        let read = |name: &str| fs::read(entry.path().join(name)).unwrap_or_default();
        let text = [read("cmdline"), read("environ")].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        text.contains(&of).then(|| entry.file_name().to_string_lossy().into_owned())
    });
    all.collect()
}

/// Starts a run, and waits until a daemon of it is up and gets writes.
fn begun(work: &Path) -> Running {
    let mut command = object(work, &["--only", "upload", "--latency", "0"]);
    without_servers(&mut command, work);
    let running = Running::start(command, work);
    let run = running.id();
    let is_up = |path: &String| Path::new(path).join("run/vol.nbd").exists();
    until("a daemon is up", || left(work, run).iter().any(is_up));
    running
}

#[test]
fn the_smallest_run_has_figures_and_leaves_nothing() {
    if !is_built() {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let args = ["--only", "takeover", "--volume", "64M", "--latency", "0,20", "--json", "a.json"];
    let mut command = object(work.path(), &args);
    // Building it takes longer than a test may.
    if !ztier_s3::Kind::Versitygw.is_built() {
        println!("skipped: buckets, as versitygw was not built here before");
        without_servers(&mut command, work.path());
    }
    let running = Running::start(command, work.path());
    let run = running.id();
    let ended = running.end();
    assert!(ended.status.success(), "{}{}", ended.stdout, ended.stderr);
    let text = fs::read_to_string(work.path().join("a.json")).unwrap();
    let figures: Value = serde_json::from_str(&text).unwrap();
    let ratio = |name: &str| figures["ratios"][name].as_f64();
    assert!(ratio("takeover_s_directory").unwrap() > 0.0, "{text}");
    // Where there is a server, requests take their time; else the reason is there.
    let rows = figures["rows"].as_array().unwrap();
    let missing = rows.iter().any(|row| row["system"] == "s3" && row["missing"].is_string());
    match ratio("takeover_s_20ms") {
        Some(seconds) => assert!(seconds > 0.04 && !missing, "{seconds}"),
        None => assert!(missing, "{text}"),
    }
    assert!(ended.stdout.lines().any(|line| line.starts_with("target: ")), "{}", ended.stdout);
    assert_eq!(left(work.path(), run), [""; 0]);
    assert_eq!(processes(run), [""; 0]);
}

#[test]
fn without_a_server_the_reason_is_said_and_the_directory_is_measured() {
    if !is_built() {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let mut command = object(work.path(), &["--only", "takeover", "--volume", "64M"]);
    without_servers(&mut command, work.path());
    let ended = Running::start(command, work.path()).end();
    assert!(ended.status.success(), "{}{}", ended.stdout, ended.stderr);
    assert!(ended.stdout.contains("skipped: no versitygw: "), "{}", ended.stdout);
    assert!(ended.stdout.contains("takeover_s_directory"), "{}", ended.stdout);
}

#[test]
fn an_interrupted_run_leaves_nothing() {
    if !is_built() {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    let running = begun(work.path());
    let run = running.id();
    kill_process(Pid::from_raw(i32::try_from(run).unwrap()).unwrap(), Signal::INT).unwrap();
    let ended = running.end();
    assert_eq!(ended.status.code(), Some(1), "{}", ended.stderr);
    assert_eq!(left(work.path(), run), [""; 0], "{}", ended.stderr);
    assert_eq!(processes(run), [""; 0]);
}

#[test]
fn what_a_killed_run_has_left_is_removed_by_the_next() {
    if !is_built() {
        return;
    }
    let work = tempfile::tempdir().unwrap();
    // A child that is just being made has the lock of the killed run for a moment.
    let next = || {
        let mut command = Command::new(env!("CARGO_BIN_EXE_ztier-bench"));
        command.args(["models", "--wait"]).current_dir(work.path());
        command.env("TMPDIR", work.path().join("tmp"));
        Running::start(command, work.path()).end()
    };
    let running = begun(work.path());
    let run = running.id();
    running.kill();
    let before = (processes(run), left(work.path(), run));
    let ended = next();
    assert!(!before.0.is_empty() && !before.1.is_empty(), "{before:?}");
    assert!(ended.status.success(), "{}", ended.stderr);
    assert!(ended.stderr.contains("volume vol"), "{}", ended.stderr);
    assert_eq!(left(work.path(), run), [""; 0], "{}", ended.stderr);
    assert_eq!(processes(run), [""; 0]);
}

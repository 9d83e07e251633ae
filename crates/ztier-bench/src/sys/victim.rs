//! For tests: a process of this very program that is killed in the middle of what it does.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Says which test's work a process has to do.
const WORK: &str = "ZTIER_BENCH_VICTIM";
const READY: &str = "ready to be killed";

/// Runs `work` in a process of its own, which has a directory for temporary files, and kills it
/// there; the directory and its id, or why there is none. `test` is the full name of the test that
/// calls this first of all: the process runs that again, and ends up here.
pub fn killed<T>(
    test: &str,
    work: impl FnOnce() -> Result<T, String>,
) -> (TempDir, Result<u32, String>) {
    if std::env::var(WORK).is_ok_and(|name| name == test) {
        let made = work();
        crate::report::print(&match &made {
            Ok(_) => format!("\n{READY}"),
            Err(e) => format!("\n{READY}: {e}"),
        });
        loop {
            std::thread::park();
        }
    }
    let dir = tempfile::tempdir().unwrap();
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", test, "--nocapture"])
        .env(WORK, test)
        .env("TMPDIR", dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let output = BufReader::new(child.stdout.take().unwrap());
    let last = output.lines().map_while(Result::ok).find(|line| line.starts_with(READY)).unwrap();
    let id = child.id();
    child.kill().unwrap();
    child.wait().unwrap();
    (dir, last.split_once(": ").map_or(Ok(id), |(_, why)| Err(why.to_owned())))
}

/// The id of a process that is gone.
pub fn gone() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

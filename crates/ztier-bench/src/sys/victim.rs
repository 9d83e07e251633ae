//! For tests: a process of this program that is killed in the middle of its work.

#![allow(clippy::unwrap_used)]

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// Variable that names the test whose work a process has to do.
const WORK: &str = "ZTIER_BENCH_VICTIM";
const READY: &str = "ready to be killed";

/// Runs `work` in a separate process with its own directory for temporary files, and kills the
/// process there. Returns the directory and the process id, or why there is none. `test` is the
/// full name of the test that calls this before anything else: the process runs that test again,
/// and arrives here.
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

/// The id of a dead process.
pub fn gone() -> u32 {
    let mut child = Command::new("true").spawn().unwrap();
    child.wait().unwrap();
    child.id()
}

//! The environment of a run: this program, the system, versions of the rivals.

use crate::sys::command::{exists, run_any};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::time::Duration;
use ztier::error::{Context, Result};
use ztier::log::disk::format::crc;

/// The variable with which `./bench` passes the commit that it builds.
const COMMIT: &str = "ZTIER_BENCH_COMMIT";
/// Limit on the time that a program takes to print its version.
const LIMIT: Duration = Duration::from_secs(10);
/// The programs used, and the option that prints the version of each.
const PROGRAMS: [(&str, &str); 9] = [
    ("fio", "--version"),
    ("nbdkit", "--version"),
    ("s3backer", "--version"),
    ("mkfs.ext4", "-V"),
    ("qemu-system-x86_64", "--version"),
    ("sqlite3", "--version"),
    ("tar", "--version"),
    ("make-bcache", "--version"),
    ("blkid", "--version"),
];

/// The build: version, commit, and a checksum of this program and of the `ztier` next to it, which
/// distinguishes builds of a commit with uncommitted changes.
///
/// # Errors
/// The programs can't be read.
pub fn build() -> Result<String> {
    let own = std::env::current_exe().context("cannot find out where this program is")?;
    let bytes = std::fs::read(&own).context(format!("cannot read {}", own.display()))?;
    let mut sum = crc(&bytes);
    // Tables that need `ztier` report its absence themselves.
    if let Ok(bytes) = std::fs::read(own.with_file_name("ztier")) {
        sum ^= crc(&bytes).rotate_left(1);
    }
    let commit = std::env::var(COMMIT).ok().filter(|commit| !commit.is_empty());
    let commit = commit.map_or(String::new(), |commit| format!(", commit {commit}"));
    Ok(format!("ztier {}{commit}, programs {sum:08x}", env!("CARGO_PKG_VERSION")))
}

/// The system and its programs; reports absent ones as missing.
pub fn versions() -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    if let Ok(text) = std::fs::read_to_string("/etc/os-release") {
        let name = text.lines().find_map(|line| line.strip_prefix("PRETTY_NAME="));
        let name = name.map_or(String::new(), |name| name.trim_matches('"').to_owned());
        all.insert("system".to_owned(), name);
    }
    for (program, option) in PROGRAMS {
        let found = if exists(program) { asked(program, option) } else { "not installed".into() };
        all.insert(program.to_owned(), found);
    }
    all
}

/// A program's version, in a line.
fn asked(program: &str, option: &str) -> String {
    match run_any(OsStr::new(program), &[option], LIMIT, true) {
        Ok(output) if output.status.success() => output.first_line(),
        // Some programs have no such option.
        Ok(_) => "installed".to_owned(),
        Err(e) => format!("unknown: {e}"),
    }
}

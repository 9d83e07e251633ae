//! Programs of this machine, each with a time limit.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use ztier::error::{Context, Error, Result};

/// Further directories of programs, for a user whose path lacks those of the system.
const PLACES: [&str; 3] = ["/usr/local/sbin", "/usr/sbin", "/sbin"];

/// The path of a program.
pub fn find(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let places = std::env::split_paths(&path).chain(PLACES.iter().map(PathBuf::from));
    places.map(|place| place.join(program)).find(|path| path.is_file())
}

/// Runs a program that has to succeed within `seconds`; returns its output.
///
/// # Errors
/// It cannot be started, failed, or took too long.
pub fn run(seconds: u32, program: &str, args: &[&str]) -> Result<String> {
    run_in(Path::new("/"), seconds, program, args)
}

/// Runs a program as [`run`] does, in `directory`.
///
/// # Errors
/// As [`run`].
pub fn run_in(directory: &Path, seconds: u32, program: &str, args: &[&str]) -> Result<String> {
    let path = find(program).ok_or_else(|| Error::failure(format!("there is no {program}")))?;
    let out = Command::new("timeout")
        .args(["-k", "2", &seconds.to_string()])
        .arg(path)
        .args(args)
        .current_dir(directory)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .output()
        .context(format_args!("cannot run {program}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    if out.status.code() == Some(124) {
        return Err(Error::failure(format!("{program} did not end within {seconds} s")));
    }
    let said = String::from_utf8_lossy(&out.stderr);
    let last: Vec<_> = said.lines().filter(|line| !line.trim().is_empty()).collect();
    let last = last.iter().rev().take(2).rev().copied().collect::<Vec<_>>().join("; ");
    Err(Error::failure(format!("{program} failed ({}): {last}", out.status)))
}

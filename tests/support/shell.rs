//! Programs of the machine, each with a time limit.
#![allow(clippy::unwrap_used, clippy::print_stdout, dead_code)]

use std::process::{Command, Output, Stdio};

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

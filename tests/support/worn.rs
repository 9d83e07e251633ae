//! Volumes whose daemon may not write to any file beyond a given size: such writes fail with EFBIG,
//! as on a log or spill drive that is worn out from there on.
#![allow(clippy::unwrap_used)]

use super::sandbox::{Sandbox, finish};
use rustix::process::{Resource, Rlimit, prlimit};
use std::process::{Command, Stdio};

/// Runs a command that brings a volume up whose daemon survives such writes.
pub fn up(sandbox: &Sandbox, args: &[&str]) {
    let ztier = sandbox.command(args);
    // A write beyond the limit first raises SIGXFSZ, which ends a process that does not ignore it.
    let mut shell = Command::new("sh");
    shell.args(["-c", "trap '' XFSZ; exec \"$0\" \"$@\""]).arg(ztier.get_program());
    shell.args(ztier.get_args()).stdin(Stdio::null());
    ztier.get_envs().for_each(|(key, value)| {
        value.map(|value| shell.env(key, value));
    });
    finish(shell).ok();
}

/// Sets the offset from which on the daemon of volume `name` may not write; `None`: no limit.
pub fn limit(sandbox: &Sandbox, name: &str, bytes: Option<u64>) {
    let limit = Rlimit { current: bytes, maximum: None };
    prlimit(Some(sandbox.pid(name)), Resource::Fsize, limit).unwrap();
}

//! The service of a volume, `ztier@NAME.service`, by `systemctl`.
//!
//! Invariants: each call has a time limit; what was not done because systemd does not run, or is
//! not there, is said in one line.

use super::output;
use crate::error::{Error, Result};
use crate::escape::join_lines;
use crate::system::within::{self, Output};
use std::fmt::Write;
use std::process::Command;
use std::time::Duration;

/// The program.
const SYSTEMCTL: &str = "systemctl";
/// How long a question, or a change of links, may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long a service may take to come up: longer than its own `TimeoutStartSec=`.
const PATIENCE_TO_START: Duration = Duration::from_secs(150);

/// What there is of systemd.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Manager {
    /// It manages this machine.
    Runs,
    /// It is installed, for the next boot.
    Installed,
    /// It is not there.
    Missing,
}

impl Manager {
    /// Looks.
    pub fn find() -> Self {
        match call(&["is-system-running"], PATIENCE) {
            Err(_) => Self::Missing,
            Ok(done) => match done.out.trim() {
                "" | "offline" | "unknown" => Self::Installed,
                _ => Self::Runs,
            },
        }
    }
}

/// The name of the service of the volume `name`.
pub(super) fn unit(name: &str) -> String {
    let mut escaped = String::new();
    for c in name.chars() {
        match c {
            'a'..='z' | 'A'..='Z' | '0'..='9' | '_' | '.' => escaped.push(c),
            // Writing to a string can't fail.
            other => drop(write!(escaped, "\\x{:02x}", u32::from(other))),
        }
    }
    format!("ztier@{escaped}.service")
}

/// Has the volume `name`, which is up and whose settings are saved, come up with the machine, and
/// its service take it over.
///
/// # Errors
/// The service can't be enabled, or does not take it over.
pub(super) fn enable(name: &str) -> Result<()> {
    let unit = unit(name);
    let manager = Manager::find();
    if manager == Manager::Missing {
        output::remark(&format!(
            "{name}: saved, and not enabled: there is no systemctl; let `ztier up --all` run at boot"
        ));
        return Ok(());
    }
    systemctl(&["enable", &unit], PATIENCE)?;
    if manager == Manager::Installed {
        output::remark(&format!(
            "{name}: comes up at the next boot, as {unit}; until then no service watches it, because \
             systemd does not run"
        ));
        return Ok(());
    }
    systemctl(&["start", &unit], PATIENCE_TO_START).map_err(|e| {
        e.after(format_args!("volume `{name}` is up and comes up at the next boot, but "))
            .hint(format!("`journalctl -u {unit}` says why it did not take the volume over"))
    })?;
    output::remark(&format!("{name}: comes up with the machine, and is now {unit}"));
    Ok(())
}

/// Has systemd read `/etc/fstab` anew, if it runs.
///
/// # Errors
/// It refuses.
pub(super) fn reload() -> Result<()> {
    match Manager::find() {
        Manager::Runs => systemctl(&["daemon-reload"], PATIENCE),
        Manager::Installed | Manager::Missing => Ok(()),
    }
}

/// Undoes `enable`, except that the volume stays up.
///
/// # Errors
/// The service can't be disabled.
pub(super) fn disable(name: &str) -> Result<()> {
    if Manager::find() == Manager::Missing {
        return Ok(());
    }
    match systemctl(&["disable", &unit(name)], PATIENCE) {
        // Without a unit nothing was enabled.
        Err(e) if e.to_string().contains("does not exist") => Ok(()),
        done => done,
    }
}

/// Calls `systemctl`, which has to succeed.
fn systemctl(args: &[&str], limit: Duration) -> Result<()> {
    let done = call(args, limit)?;
    if done.status.success() {
        return Ok(());
    }
    let said = join_lines(done.err.trim());
    let error = Error::failure(format!("`{SYSTEMCTL} {}` failed: {said}", args.join(" ")));
    Err(match said.contains("does not exist") {
        true => error.hint("scripts/install or the Debian package installs ztier@.service"),
        false => error,
    })
}

/// Calls `systemctl`, at most for `limit`.
fn call(args: &[&str], limit: Duration) -> Result<Output> {
    let mut command = Command::new(SYSTEMCTL);
    command.arg("--no-ask-password").args(args).env("LC_ALL", "C");
    within::output(&mut command, &format!("`{SYSTEMCTL} {}`", args.join(" ")), limit, |_| {})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn units_are_escaped_as_by_systemd() {
        assert_eq!(unit("disk"), "ztier@disk.service");
        assert_eq!(unit("my-disk_2.a"), "ztier@my\\x2ddisk_2.a.service");
    }
}

//! `ztier generator`: at boot, and at each `systemctl daemon-reload`, has systemd want the service
//! of each volume that comes up with the machine. systemd calls it as a generator.
//!
//! Invariants: it waits for nothing and asks no daemon; a file that can't be used costs one line in
//! the kernel's log, and no other volume; it never fails.

use super::{all, output, service};
use crate::config::Paths;
use crate::error::{Context, Result};
use clap::Args;
use std::fs;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// The unit that each service is an instance of.
const TEMPLATE: &str = "/usr/lib/systemd/system/ztier@.service";
/// The links of the target that all mounts, swap and services come after.
const WANTS: &str = "sysinit.target.wants";

/// Have systemd bring up the volumes of this machine; called by it
#[derive(Args)]
#[command(hide = true)]
pub struct Generator {
    /// Where units go that those in /etc override
    normal: PathBuf,
    /// Not used
    _early: Option<PathBuf>,
    /// Not used
    _late: Option<PathBuf>,
}

impl Generator {
    /// Runs the command. What goes wrong is only said.
    pub fn run(self) -> Result<()> {
        let Ok(paths) = Paths::of_this_user() else { return Ok(()) };
        let (names, wrong) = all::at_boot(&paths);
        for error in wrong {
            say(&format!("{error}; the volume does not come up with the machine"));
        }
        for name in names {
            if let Err(e) = self.want(&name) {
                say(&e.to_string());
            }
        }
        Ok(())
    }

    fn want(&self, name: &str) -> Result<()> {
        let dir = self.normal.join(WANTS);
        let link = dir.join(service::unit(name));
        let what = || format!("cannot make {}", link.display());
        fs::create_dir_all(&dir).context(what())?;
        match symlink(Path::new(TEMPLATE), &link) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => Ok(()),
            made => made.context(what()),
        }
    }
}

/// Says a line: called by systemd, when no journal may run yet, in the kernel's log.
fn say(line: &str) {
    let line = format!("ztier-generator: {line}");
    let called = std::env::var_os("SYSTEMD_SCOPE").is_some();
    let log = || fs::OpenOptions::new().write(true).open("/dev/kmsg");
    // `<4>` is a warning. One write is one message.
    if !(called
        && log().is_ok_and(|mut log| log.write_all(format!("<4>{line}").as_bytes()).is_ok()))
    {
        output::remark(&line);
    }
}

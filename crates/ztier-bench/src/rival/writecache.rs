//! dm-writecache: the device mapper's write cache, on two devices of the caller.

use super::Disk;
use crate::report::warn;
use crate::sys::command::{run, undo};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ztier::error::{Context, Error, Result};

/// Name in reports.
pub const NAME: &str = "dm-writecache";
const LIMIT: Duration = Duration::from_secs(120);

/// A mapping; dropping it removes it, with the content of the cache.
pub struct Writecache {
    name: String,
    device: PathBuf,
}

impl Writecache {
    /// Puts `log` in front of `backing`, with blocks of 4 KiB. Both are overwritten.
    ///
    /// # Errors
    /// No root, no such target, no `dmsetup`, a device in use.
    pub fn new(log: &Path, backing: &Path) -> Result<Self> {
        let log = std::fs::canonicalize(log).context("cannot find the log's device")?;
        let backing = std::fs::canonicalize(backing).context("cannot find the backing device")?;
        let size = run("blockdev", &["--getsz", &backing.to_string_lossy()], LIMIT)?;
        let name = format!("ztier-bench-{}", std::process::id());
        let table = format!(
            "0 {} writecache s {} {} 4096 0",
            size.trim(),
            backing.display(),
            log.display()
        );
        run("dmsetup", &["create", &name, "--table", &table], LIMIT)?;
        let device = PathBuf::from(format!("/dev/mapper/{name}"));
        let made = Self { name, device };
        // Without udev dmsetup has to make the node.
        run("dmsetup", &["mknodes", &made.name], LIMIT)?;
        if !made.device.exists() {
            return Err(Error::failure(format!("{} did not appear", made.device.display())));
        }
        Ok(made)
    }
}

impl Disk for Writecache {
    fn path(&self) -> &Path {
        &self.device
    }

    fn about(&self) -> String {
        "writecache s, blocks of 4 KiB".into()
    }
}

impl Drop for Writecache {
    fn drop(&mut self) {
        if let Err(e) = undo("dmsetup", &["remove", "--retry", &self.name], LIMIT) {
            warn(&format!("left {}: {e}", self.device.display()));
        }
    }
}

//! The kernel's RAM disk (`brd`), by its module, which this process loads and unloads.

use super::Disk;
use crate::report::warn;
use crate::sys::command::{run, undo};
use std::path::{Path, PathBuf};
use std::time::Duration;
use ztier::error::{Error, Result};

const LIMIT: Duration = Duration::from_secs(20);

/// `/dev/ram0` of a module that this process has loaded.
pub struct Brd(PathBuf);

impl Brd {
    /// A RAM disk of `size` bytes.
    ///
    /// # Errors
    /// No root, no such module, or a loaded one: its devices belong to another process.
    pub fn new(size: u64) -> Result<Self> {
        let device = PathBuf::from("/dev/ram0");
        if device.exists() {
            return Err(Error::failure("brd is loaded, and its devices are not ours"));
        }
        run("modprobe", &["brd", "rd_nr=1", &format!("rd_size={}", size >> 10)], LIMIT)?;
        if !device.exists() {
            return Err(Error::failure("brd is loaded, but there is no /dev/ram0"));
        }
        Ok(Self(device))
    }
}

impl Disk for Brd {
    fn path(&self) -> &Path {
        &self.0
    }

    fn about(&self) -> String {
        format!("{} (brd)", self.0.display())
    }
}

impl Drop for Brd {
    fn drop(&mut self) {
        if let Err(e) = undo("modprobe", &["-r", "brd"], LIMIT) {
            warn(&format!("left brd loaded: {e}"));
        }
    }
}

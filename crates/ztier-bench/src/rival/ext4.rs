//! ext4 on a device, mounted in its own directory.

use crate::report::warn;
use crate::sys::command::run;
use crate::sys::workdir::WorkDir;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::path::Path;
use std::time::Duration;
use ztier::error::{Context, Result};

/// A mounted ext4; unmounted when dropped.
pub struct Ext4 {
    dir: WorkDir,
}

impl Ext4 {
    /// Makes and mounts an ext4, with the blocks of an ordinary disk, also below 512 MiB. No
    /// initialisation is deferred into the middle of a test.
    ///
    /// # Errors
    /// No `mkfs.ext4`, no root, a device that fails.
    pub fn new(device: &Path) -> Result<Self> {
        let path = device.to_string_lossy();
        let lazy = "lazy_itable_init=0,lazy_journal_init=0";
        run("mkfs.ext4", &["-q", "-F", "-b", "4096", "-E", lazy, &path], Duration::from_secs(120))?;
        let dir = WorkDir::new("mnt")?;
        mount(device, dir.path(), "ext4", MountFlags::empty(), None)
            .context(format!("cannot mount {path} on {}", dir.path().display()))?;
        Ok(Self { dir })
    }

    /// The root directory.
    pub fn path(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        for _ in 0..100 {
            match unmount(self.dir.path(), UnmountFlags::empty()) {
                Err(rustix::io::Errno::BUSY) => std::thread::sleep(Duration::from_millis(100)),
                Ok(()) => return,
                Err(e) => return warn(&format!("cannot unmount {}: {e}", self.path().display())),
            }
        }
        warn(&format!("{} is busy; detaching it", self.path().display()));
        let _ = unmount(self.dir.path(), UnmountFlags::DETACH);
    }
}

//! bcache in writeback mode, on two devices of the caller.

use super::Disk;
use crate::report::warn;
use crate::sys::command::run;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};

/// Name in reports.
pub const NAME: &str = "bcache";
const LIMIT: Duration = Duration::from_secs(120);
const SETS: &str = "/sys/fs/bcache";

/// A cached device; stopped when dropped.
pub struct Bcache {
    device: PathBuf,
    sysfs: PathBuf,
    sets: Vec<PathBuf>,
}

impl Bcache {
    /// Puts `log` in front of `backing`; every write goes to the cache, sequential ones, too. Both
    /// are overwritten.
    ///
    /// # Errors
    /// No root, no such module, no `make-bcache`, a device in use.
    pub fn new(log: &Path, backing: &Path) -> Result<Self> {
        let log = fs::canonicalize(log).context("cannot find the log's device")?;
        let backing = fs::canonicalize(backing).context("cannot find the backing device")?;
        let [from, to] = [&log, &backing].map(|path| path.to_string_lossy().into_owned());
        run("make-bcache", &["--writeback", "--wipe-bcache", "-C", &from, "-B", &to], LIMIT)?;
        for device in [&from, &to] {
            // With udev, the device is registered already.
            if let Err(e) = fs::write(format!("{SETS}/register_quiet"), device) {
                return Err(Error::failure(format!("cannot register {device}: {e}")));
            }
        }
        let name = backing.file_name().unwrap_or_default();
        let sysfs = Path::new("/sys/block").join(name).join("bcache");
        let mut made = Self { device: PathBuf::new(), sysfs, sets: Vec::new() };
        made.attached()?;
        made.set("cache_mode", "writeback")?;
        made.set("sequential_cutoff", "0")?;
        for set in &made.sets {
            for file in ["congested_read_threshold_us", "congested_write_threshold_us"] {
                fs::write(set.join(file), "0").context(format!("cannot set {file} of bcache"))?;
            }
        }
        Ok(made)
    }

    /// Waits until the device exists, with its cache.
    fn attached(&mut self) -> Result<()> {
        let end = Instant::now() + LIMIT;
        loop {
            let state = fs::read_to_string(self.sysfs.join("state")).unwrap_or_default();
            let device = fs::read_link(self.sysfs.join("dev"));
            if let (Ok(device), false) = (device, state.trim() == "no cache" || state.is_empty()) {
                self.device = Path::new("/dev").join(device.file_name().unwrap_or_default());
                let sets = fs::read_dir(SETS).into_iter().flatten().flatten();
                self.sets = sets.map(|e| e.path()).filter(|p| p.join("stop").exists()).collect();
                return Ok(());
            }
            if Instant::now() > end {
                return Err(Error::failure(format!("bcache did not attach: {state:?}")));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.sysfs.join(file);
        fs::write(&path, value).context(format!("cannot set {}", path.display()))
    }
}

impl Disk for Bcache {
    fn path(&self) -> &Path {
        &self.device
    }

    fn about(&self) -> String {
        "writeback, no sequential cutoff, no congestion thresholds".into()
    }
}

impl Drop for Bcache {
    fn drop(&mut self) {
        let stop = |path: &Path| fs::write(path.join("stop"), "1");
        let mut done = stop(&self.sysfs);
        for set in &self.sets {
            done = done.and(stop(set));
        }
        let end = Instant::now() + LIMIT;
        let gone = || !self.sysfs.exists() && self.sets.iter().all(|set| !set.exists());
        while !gone() {
            if Instant::now() > end {
                return warn(&format!("left {}: {done:?}", self.device.display()));
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

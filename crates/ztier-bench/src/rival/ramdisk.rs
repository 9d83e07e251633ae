//! A RAM disk: a loop device on a file in its own tmpfs.

use super::Disk;
use crate::report::{available_bytes, warn};
use crate::sys::command::{run, undo};
use crate::sys::workdir::WorkDir;
use rustix::fs::{FallocateFlags, fallocate};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::Duration;
use ztier::error::{Context, Error, Result};

const LIMIT: Duration = Duration::from_secs(20);
/// Memory that must stay free.
const SPARE: u64 = 512 << 20;

/// A loop device with all of its memory allocated. Fields are dropped in order: device, tmpfs,
/// directory.
pub struct RamDisk {
    loop_device: Loop,
    _tmpfs: Tmpfs,
    _dir: WorkDir,
}

struct Tmpfs(PathBuf);

struct Loop {
    device: PathBuf,
    direct: bool,
}

impl RamDisk {
    /// Makes a RAM disk of `size` bytes; takes all of its memory at once.
    ///
    /// # Errors
    /// No root, no loop devices, not enough memory.
    pub fn new(size: u64) -> Result<Self> {
        let available = available_bytes();
        if available < size + SPARE {
            return Err(Error::failure(format!(
                "a RAM disk of {} MiB does not fit: {} MiB of memory are available",
                size >> 20,
                available >> 20
            )));
        }
        let dir = WorkDir::new("ram")?;
        let tmpfs = Tmpfs::new(dir.path(), size)?;
        let file = dir.path().join("disk");
        let disk = File::create_new(&file).context("cannot make a file in tmpfs")?;
        fallocate(&disk, FallocateFlags::empty(), 0, size)
            .context(format!("cannot allocate {size} bytes in tmpfs"))?;
        Ok(Self { loop_device: Loop::new(&file)?, _tmpfs: tmpfs, _dir: dir })
    }
}

impl Disk for RamDisk {
    fn path(&self) -> &Path {
        &self.loop_device.device
    }

    fn about(&self) -> String {
        let how = if self.loop_device.direct { "on" } else { "off" };
        format!("{}: loop on a tmpfs file, direct-io={how}", self.path().display())
    }
}

impl Tmpfs {
    fn new(at: &Path, size: u64) -> Result<Self> {
        let options = std::ffi::CString::new(format!("size={}", size + (16 << 20)))
            .context("cannot write the options of tmpfs")?;
        mount("ztier-bench", at, "tmpfs", MountFlags::empty(), options.as_c_str())
            .context(format!("cannot mount tmpfs on {} (needs root)", at.display()))?;
        Ok(Self(at.to_owned()))
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let busy = || unmount(&self.0, UnmountFlags::empty()).is_err();
        // A loop device releases its file only after it was detached.
        for _ in 0..50 {
            if !busy() {
                return;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        warn(&format!("cannot unmount {}", self.0.display()));
    }
}

impl Loop {
    fn new(file: &Path) -> Result<Self> {
        let file = file.to_string_lossy();
        let attach = |mode: &str| run("losetup", &["--find", "--show", mode, &file], LIMIT);
        let (text, direct) = match attach("--direct-io=on") {
            Ok(text) => (text, true),
            Err(_) => (attach("--direct-io=off")?, false),
        };
        Ok(Self { device: PathBuf::from(text.trim()), direct })
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        let device = self.device.to_string_lossy();
        if let Err(e) = undo("losetup", &["--detach", &device], LIMIT) {
            warn(&e.to_string());
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::rival::ext4::Ext4;
    use crate::sys::direct;

    /// Where a RAM disk is impossible, the refusal must name the requirement.
    #[test]
    fn a_disk_takes_a_file_system_and_leaves_nothing() {
        let disk = match RamDisk::new(64 << 20) {
            Ok(disk) => disk,
            Err(e) => {
                let text = e.to_string();
                let known =
                    ["needs root", "does not fit", "unused loop device", "failed to set up"];
                return assert!(known.iter().any(|part| text.contains(part)), "{text}");
            }
        };
        direct::probe(disk.path()).unwrap();
        let fs = Ext4::new(disk.path()).unwrap();
        let (mount, device) = (fs.path().to_owned(), disk.path().to_owned());
        std::fs::write(mount.join("file"), "content").unwrap();
        drop(fs);
        assert!(!mount.exists());
        drop(disk);
        // The device node may serve another program by now, but not this test's file.
        let name = device.file_name().unwrap().to_string_lossy().into_owned();
        let backing = std::fs::read_to_string(format!("/sys/block/{name}/loop/backing_file"));
        let own = format!("ztier-bench-{}-", std::process::id());
        assert!(!backing.unwrap_or_default().contains(&own));
    }

    #[test]
    fn a_disk_larger_than_memory_is_refused() {
        let error = RamDisk::new(1 << 50).err().unwrap();
        assert!(error.to_string().contains("does not fit"), "{error}");
    }
}

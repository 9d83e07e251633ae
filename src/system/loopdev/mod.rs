//! Loop devices: attaching one to a file, growing it, and detaching it, whichever process attached
//! it. Every call here may wait for requests to the file.
//!
//! Invariants: no descriptor of a loop device is kept, so a dead process does not keep it attached;
//! a device is changed only if its backing file is the expected one; a detach first claims the
//! device exclusively, so that it can't be mounted meanwhile; a detached device has no partitions.

mod attach;
mod partitions;
mod queue;

#[cfg(feature = "fuse")]
pub(crate) use attach::open_control;
pub(super) use attach::{attach, grow};
pub(super) use queue::tune;

use super::holders::{backing_file, lasting, of_block_device};
use crate::error::{Context, Error, Result};
use crate::media::ioctls;
use crate::patience::eventually;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// How long a detach waits for processes that only probe (udev, blkid); later they count as
/// holders.
const PROBE_WAIT: Duration = Duration::from_secs(1);

/// How long the kernel may take to detach.
const DETACH_WAIT: Duration = Duration::from_secs(5);

/// The default readahead of a loop device, in KiB (Linux: `VM_READAHEAD_PAGES`).
const USUAL_READ_AHEAD: &str = "128";

/// Opens a device to control it.
fn open(device: &Path, extra: OFlags) -> rustix::io::Result<OwnedFd> {
    // Read-only: closing a writable descriptor makes udev probe the device again.
    rustix::fs::open(device, OFlags::RDONLY | OFlags::CLOEXEC | extra, Mode::empty())
}

/// Whether `device` is attached; fails if it is attached to another file than `file`.
fn is_attached(device: &Path, file: &Path) -> Result<bool> {
    match backing_file(device) {
        Some(b) if b == file => Ok(true),
        Some(b) => Err(Error::failure(format!(
            "{} shows {} now, not {}",
            device.display(),
            b.display(),
            file.display()
        ))),
        None => Ok(false),
    }
}

/// Detaches `device` from its file, after a short wait for processes that only probe it (udev,
/// blkid). Writes dirty pages of the page cache first. A device that is not attached stays so: the
/// helper of a dead daemon, which undoes what it did, may have been first.
///
/// # Errors
/// The device has another backing file; or it is held and stays attached: the text names a holder.
pub(crate) fn detach(device: &Path, file: &Path) -> Result<()> {
    if !is_attached(device, file)? {
        return Ok(());
    }
    let node = claim(device, Instant::now() + PROBE_WAIT)?;
    // Before the claim another process may have detached the device, and attached another file.
    if !is_attached(device, file)? {
        return Ok(());
    }
    forget(device);
    if let Err(e) = partitions::remove(&node, device) {
        drop(node);
        partitions::read(device);
        return Err(e);
    }
    match ioctls::detach_loop(&node) {
        Ok(()) | Err(Errno::NXIO) => {} // another process has detached it
        Err(e) => return Err(e).context(format!("cannot detach {}", device.display())),
    }
    drop(node);
    // The kernel detaches at the last close, which a reader that opened the device meanwhile
    // delays.
    let is_free = || backing_file(device).is_none_or(|b| b != file);
    if eventually(DETACH_WAIT, Duration::from_millis(5), is_free) {
        return Ok(());
    }
    keep(device);
    partitions::read(device);
    Err(held(device))
}

/// Restores the readahead, which a loop device keeps for its next user. Best effort. Writes below
/// `bdi`, because files in `queue` wait for all requests.
fn forget(device: &Path) {
    let _ = std::fs::write(sys(device).join("bdi/read_ahead_kb"), USUAL_READ_AHEAD);
}

/// The `/sys/block` directory of the device.
fn sys(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default())
}

/// Opens the device exclusively; fails at once if it is mounted or swap.
fn claim(device: &Path, deadline: Instant) -> Result<OwnedFd> {
    loop {
        match open(device, OFlags::EXCL) {
            Ok(node) => {
                if of_block_device(device).is_empty() {
                    return Ok(node);
                }
            }
            Err(Errno::BUSY) => {}
            Err(e) => return Err(e).context(format!("cannot open {}", device.display())),
        }
        // A mount stays; a probing process soon closes the device.
        let lasting = lasting(&of_block_device(device)).is_some();
        if lasting || Instant::now() >= deadline {
            return Err(held(device));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The error for a detach of a device that is in use.
fn held(device: &Path) -> Error {
    let holder = of_block_device(device).into_iter().next();
    let holder = holder.unwrap_or_else(|| "held by something invisible from here".to_owned());
    in_use(device, &holder)
}

/// The error for the removal of `device` while `holder` (`mounted on /mnt`, `process 1 (fio)`)
/// holds it.
pub(crate) fn in_use(device: &Path, holder: &str) -> Error {
    let hint = match holder.split(' ').next() {
        Some("mounted") => "unmount it first",
        Some("swap") => "swapoff it first",
        _ => "end that first",
    };
    Error::busy(format!("{} is in use: {holder}", device.display())).hint(hint)
}

/// Cancels a detach that still waits for the last user, so that this user does not lose the device.
fn keep(device: &Path) {
    let Ok(node) = open(device, OFlags::empty()) else { return };
    if let Ok(mut info) = ioctls::loop_info(&node)
        && info.flags & LO_FLAGS_AUTOCLEAR != 0
    {
        info.flags &= !LO_FLAGS_AUTOCLEAR;
        // If this fails, the kernel detaches the device at its last close, as first requested.
        let _ = ioctls::set_loop_info(&node, info);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, clippy::print_stdout)]
    use super::*;
    use std::ffi::OsStr;
    use std::fs::File;
    use std::os::unix::ffi::OsStrExt;

    #[test]
    fn a_file_whose_name_is_not_utf_8_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join(OsStr::from_bytes(b"dr\xefve"));
        File::create(&file).unwrap().set_len(1 << 20).unwrap();
        match attach(&file, 4096) {
            Ok(device) => {
                let found = backing_file(&device);
                detach(&device, &file).unwrap();
                assert_eq!(found, Some(file));
            }
            Err(e) => println!("skipped: {e}"),
        }
    }

    #[test]
    fn of_several_that_detach_at_once_each_succeeds() {
        let files = [0, 1].map(|_| tempfile::NamedTempFile::new().unwrap());
        files.iter().for_each(|file| file.as_file().set_len(1 << 20).unwrap());
        let path = |n: usize| files[n].path();
        for _ in 0..20 {
            let device = match attach(path(0), 4096) {
                Ok(device) => device,
                Err(e) => return println!("skipped: {e}"),
            };
            std::thread::scope(|scope| {
                for _ in 0..4 {
                    scope.spawn(|| {
                        // By now another test may have attached the device to its file.
                        if let Err(e) = detach(&device, path(0)) {
                            assert!(e.to_string().contains(" now, not "), "{e}");
                        }
                    });
                }
            });
            assert_ne!(backing_file(&device).as_deref(), Some(path(0)));
        }
        let device = attach(path(0), 4096).unwrap();
        let refused = detach(&device, path(1)).unwrap_err().to_string();
        assert!(refused.contains(" now, not "), "{refused}");
        assert_eq!(backing_file(&device).as_deref(), Some(path(0)));
        detach(&device, path(0)).unwrap();
    }
}

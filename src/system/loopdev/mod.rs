//! Loop devices: making one on a file, growing it, and taking one off its file, whichever
//! process attached it. Every call here may wait for requests of the file.
//!
//! Invariants: no descriptor of a loop device is kept, so a dead process leaves nothing that keeps
//! it attached; before anything is changed on a device, the file behind it must be the expected
//! one; detaching first claims the device exclusively, so that it can't be mounted meanwhile; a
//! device that is detached has no partitions.

mod attach;
mod partitions;
mod queue;

#[cfg(feature = "fuse")]
pub(crate) use attach::open_control;
pub(super) use attach::{attach, grow};
pub(super) use queue::tune;

use super::holders::{backing_file, of_block_device};
use crate::error::{Context, Error, Result};
use crate::media::LoopInfo;
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use rustix::ioctl::{NoArg, Opcode, Setter, ioctl};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LOOP_CLR_FD: Opcode = 0x4C01;
const LOOP_SET_STATUS64: Opcode = 0x4C04;

const LO_FLAGS_AUTOCLEAR: u32 = 4;

/// How long a detach waits for processes that only look (udev, blkid); then they count as holders.
const PROBE_WAIT: Duration = Duration::from_secs(1);

/// How long the kernel may take to detach once it was told to.
const DETACH_WAIT: Duration = Duration::from_secs(5);

/// The default readahead of a loop device, in KiB (Linux: `VM_READAHEAD_PAGES`).
const USUAL_READ_AHEAD: &str = "128";

/// Opens a device to control it.
fn open(device: &Path, extra: OFlags) -> rustix::io::Result<OwnedFd> {
    // Read-only: closing a descriptor that could write makes udev look at the device again.
    rustix::fs::open(device, OFlags::RDONLY | OFlags::CLOEXEC | extra, Mode::empty())
}

/// Fails unless `device` shows `file`.
fn require_backing(device: &Path, file: &Path) -> Result<()> {
    match backing_file(device) {
        Some(b) if b == file => Ok(()),
        Some(b) => Err(Error::failure(format!(
            "{} shows {} now, not {}",
            device.display(),
            b.display(),
            file.display()
        ))),
        None => Err(Error::failure(format!("{} is not attached", device.display()))),
    }
}

/// Detaches `device` from its file, after a short wait for processes that only look at it (udev,
/// blkid). Dirty pages of the page cache are written first.
///
/// # Errors
/// The device shows another file, or is held (then it stays attached): the text names a holder.
pub(crate) fn detach(device: &Path, file: &Path) -> Result<()> {
    require_backing(device, file)?;
    let node = claim(device, Instant::now() + PROBE_WAIT)?;
    forget(device);
    if let Err(e) = partitions::remove(&node, device) {
        drop(node);
        partitions::read(device);
        return Err(e);
    }
    let deadline = Instant::now() + DETACH_WAIT;
    // SAFETY: LOOP_CLR_FD takes no argument and touches no memory of ours.
    match unsafe { ioctl(&node, NoArg::<LOOP_CLR_FD>::new()) } {
        Ok(()) | Err(Errno::NXIO) => {} // something else was faster
        Err(e) => return Err(e).context(format!("cannot detach {}", device.display())),
    }
    drop(node);
    // The kernel detaches at the last close. A reader that came in between delays that.
    while backing_file(device).is_some_and(|b| b == file) {
        if Instant::now() >= deadline {
            keep(device);
            partitions::read(device);
            return Err(held(device));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(())
}

/// Puts back what was set on the queue, which a loop device keeps for its next user. Best effort.
/// The directory `bdi` is taken because files in `queue` wait for all requests.
fn forget(device: &Path) {
    let _ = std::fs::write(sys(device).join("bdi/read_ahead_kb"), USUAL_READ_AHEAD);
}

/// What the kernel shows of the device.
fn sys(device: &Path) -> PathBuf {
    Path::new("/sys/block").join(device.file_name().unwrap_or_default())
}

/// Opens the device as its only exclusive user; a mount or swap makes this fail at once.
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
        // A mount stays; a process that probes goes away soon.
        let holders = of_block_device(device);
        let lasting = holders.iter().any(|h| !h.starts_with("process"));
        if lasting || Instant::now() >= deadline {
            return Err(held(device));
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// The refusal to detach a device that is in use.
fn held(device: &Path) -> Error {
    let holder = of_block_device(device).into_iter().next();
    let holder = holder.unwrap_or_else(|| "held by something invisible from here".to_owned());
    in_use(device, &holder)
}

/// The refusal to take away `device` because of `holder` (`mounted on /mnt`, `process 1 (fio)`).
pub(crate) fn in_use(device: &Path, holder: &str) -> Error {
    let hint = match holder.split(' ').next() {
        Some("mounted") => "unmount it first",
        Some("swap") => "swapoff it first",
        _ => "end that first",
    };
    Error::busy(format!("{} is in use: {holder}", device.display())).hint(hint)
}

/// Undoes a detach that is still waiting for the last user, so that the device is not lost under
/// it.
fn keep(device: &Path) {
    let Ok(node) = open(device, OFlags::empty()) else { return };
    if let Ok(mut info) = LoopInfo::of(&node)
        && info.flags & LO_FLAGS_AUTOCLEAR != 0
    {
        info.flags &= !LO_FLAGS_AUTOCLEAR;
        // SAFETY: LOOP_SET_STATUS64 reads one `struct loop_info64`. If it fails, the device goes at
        // its last close, which is what was asked for in the first place.
        let _ = unsafe { ioctl(&node, Setter::<LOOP_SET_STATUS64, LoopInfo>::new(info)) };
    }
}

//! Claims a block device before it is taken away.
//!
//! Invariants: a claimed device has no other user, and no user begins while the claim lasts; all
//! that was written to it has reached it.

use super::{holders, loopdev};
use crate::error::{Context, Result};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;
use std::path::Path;
use std::time::{Duration, Instant};

/// Interval between attempts.
const LOOK: Duration = Duration::from_millis(50);

/// Waits a little for processes that only look, then refuses because of the first holder. `shown`
/// is what errors call the device. The returned descriptor is the claim; `None`: the device is
/// gone, because the kernel has completed a late stop.
///
/// # Errors
/// The device is held, or can't be opened or flushed.
pub(super) fn claim(device: &Path, shown: &Path) -> Result<Option<OwnedFd>> {
    let claimed = claimed(device, shown)?;
    if let Some(node) = &claimed {
        // What a process wrote and closed may still be in the page cache.
        rustix::fs::fsync(node).context(format!("cannot flush {}", device.display()))?;
    }
    Ok(claimed)
}

fn claimed(device: &Path, shown: &Path) -> Result<Option<OwnedFd>> {
    let begun = Instant::now();
    loop {
        let claimed = open(device);
        let held = holders::of_block_device(device);
        let lasting = holders::lasting(&held);
        match (lasting.or(held.first()), claimed) {
            (None, Ok(node)) => return Ok(Some(node)),
            (None, Err(e)) if is_gone(e) && !exists(device) => return Ok(None),
            (None, Err(Errno::BUSY)) if begun.elapsed() >= holders::LOOK => {
                return Err(loopdev::in_use(shown, "something invisible from here"));
            }
            (None, Err(e)) if e != Errno::BUSY => {
                return Err(e).context(format!("cannot open {}", shown.display()));
            }
            (Some(h), _) if lasting.is_some() || begun.elapsed() >= holders::patience_with(h) => {
                return Err(loopdev::in_use(shown, h));
            }
            _ => std::thread::sleep(LOOK),
        }
    }
}

/// Opens the device exclusively; a mount or swap makes this fail at once.
fn open(device: &Path) -> rustix::io::Result<OwnedFd> {
    // Read-only: closing a descriptor that could write makes udev look at the device again.
    rustix::fs::open(device, OFlags::RDONLY | OFlags::CLOEXEC | OFlags::EXCL, Mode::empty())
}

/// Whether a block device could not be opened because it does not exist.
fn is_gone(why: Errno) -> bool {
    matches!(why, Errno::NOENT | Errno::NXIO | Errno::NODEV)
}

fn exists(device: &Path) -> bool {
    device.file_name().is_some_and(|name| Path::new("/sys/block").join(name).exists())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_device_that_is_gone_need_not_be_claimed() {
        // A number that the driver never gives away.
        let device = Path::new("/dev/ublkb4294967295");
        assert!(claim(device, Path::new("/dev/ztier/v")).unwrap().is_none());
        assert!(is_gone(Errno::NXIO) && !is_gone(Errno::ACCESS));
    }
}

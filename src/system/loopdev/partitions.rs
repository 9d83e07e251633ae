//! The partitions of a loop device.
//!
//! The kernel reads the partition table when the device is attached, and again when a program asks
//! for it (`partprobe`, `sfdisk`). Partitions that a program added itself, on a device without
//! scanning, stay after a detach: the next user of the device would have them, at places without
//! meaning in its content.
//!
//! Invariant: a partition that is in use is never removed.

use super::{held, open, sys};
use crate::error::{Context, Result};
use crate::media::ioctls;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::path::Path;

/// Removes all partitions of `device`, of which `node` is an open descriptor.
///
/// # Errors
/// A partition is in use: the text says so, and the partitions before it are removed.
pub(super) fn remove(node: &OwnedFd, device: &Path) -> Result<()> {
    for number in numbers(device) {
        match ioctls::remove_partition(node, number) {
            Ok(()) | Err(Errno::NXIO) => {} // the partition is gone already
            Err(Errno::BUSY) => return Err(held(device)),
            Err(e) => {
                return Err(e)
                    .context(format!("cannot remove partition {number} of {}", device.display()));
            }
        }
    }
    Ok(())
}

/// Makes the kernel read the partition table of `device` again. Best effort: a program can ask,
/// too.
pub(super) fn read(device: &Path) {
    if let Ok(node) = open(device, OFlags::empty()) {
        let _ = ioctls::read_partitions(&node);
    }
}

/// The numbers of the partitions of `device`.
fn numbers(device: &Path) -> Vec<i32> {
    let entries = std::fs::read_dir(sys(device)).into_iter().flatten().flatten();
    let number = |text: String| text.trim().parse().ok();
    entries
        .filter_map(|e| number(std::fs::read_to_string(e.path().join("partition")).ok()?))
        .collect()
}

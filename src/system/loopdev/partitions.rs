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
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::io::Errno;
use rustix::ioctl::{NoArg, Opcode, Setter, ioctl};
use std::path::Path;

const BLKRRPART: Opcode = 0x125F;
const BLKPG: Opcode = 0x1269;

const BLKPG_DEL_PARTITION: i32 = 2;

/// `struct blkpg_ioctl_arg` of the kernel's ABI.
#[repr(C)]
struct Argument {
    op: i32,
    flags: i32,
    len: i32,
    data: *mut Partition,
}

/// `struct blkpg_partition` of the kernel's ABI.
#[repr(C)]
struct Partition {
    start: i64,
    length: i64,
    number: i32,
    device_name: [u8; 64],
    volume_name: [u8; 64],
}

const _: () = assert!(size_of::<Partition>() == 152);
#[cfg(target_pointer_width = "64")]
const _: () = assert!(size_of::<Argument>() == 24);

/// Removes all partitions of `device`, of which `node` is an open descriptor.
///
/// # Errors
/// A partition is in use: the text says so, and the partitions before it are removed.
pub(super) fn remove(node: &OwnedFd, device: &Path) -> Result<()> {
    for number in numbers(device) {
        match delete(node, number) {
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
        // SAFETY: BLKRRPART takes no argument and touches no memory of ours.
        let _ = unsafe { ioctl(&node, NoArg::<BLKRRPART>::new()) };
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

fn delete(node: &OwnedFd, number: i32) -> rustix::io::Result<()> {
    let mut partition =
        Partition { start: 0, length: 0, number, device_name: [0; 64], volume_name: [0; 64] };
    let data = &raw mut partition;
    let argument =
        Argument { op: BLKPG_DEL_PARTITION, flags: 0, len: size_of::<Partition>() as i32, data };
    // SAFETY: BLKPG reads one `struct blkpg_ioctl_arg` and the `struct blkpg_partition` that it
    // points to, which these are, byte for byte (sizes are checked above); `partition` lives until
    // the call has returned.
    unsafe { ioctl(node, Setter::<BLKPG, Argument>::new(argument)) }
}

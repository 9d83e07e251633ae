//! Block devices, opened for direct I/O.

use super::map::AlignedBuf;
use rustix::fs::OFlags;
use rustix::ioctl::{Setter, ioctl, opcode};
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use ztier::error::{Context, Result};

/// `_IO(0x12, 119)` of `linux/fs.h`.
const BLKDISCARD: rustix::ioctl::Opcode = opcode::none(0x12, 119);

/// Opens a device for direct reads and writes.
pub fn open(path: &Path) -> Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(i32::try_from(OFlags::DIRECT.bits()).unwrap_or(0))
        .open(path)
        .context(format!("cannot open {} for direct I/O", path.display()))
}

/// Discards a range of a block device.
pub fn discard(device: &File, offset: u64, len: u64) -> Result<()> {
    // SAFETY: BLKDISCARD reads two u64 (offset, length) through the pointer, which is what is
    // passed.
    unsafe { ioctl(device, Setter::<BLKDISCARD, [u64; 2]>::new([offset, len])) }
        .context("cannot discard a range of the device")
}

/// Reads the first block directly: proves that a device serves requests.
pub fn probe(path: &Path) -> Result<()> {
    let mut buf = AlignedBuf::new(ztier::BLOCK_SIZE)?;
    open(path)?.read_exact_at(&mut buf, 0).context(format!("cannot read {}", path.display()))
}

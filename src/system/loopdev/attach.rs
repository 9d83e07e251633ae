//! Attaches a loop device to a file, and grows it.
//!
//! Invariants: the device has direct I/O or is not attached at all; it has the partitions of its
//! own content and none of an earlier user; no descriptor of it is kept.

use super::{backing_file, detach, held, is_attached, open, partitions, sys};
use crate::error::{Context, Error, Result};
use crate::media::ioctls::{self, LoopInfo};
use crate::system::device_node;
use rustix::fd::{AsFd, BorrowedFd, OwnedFd};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const LO_FLAGS_PARTSCAN: u32 = 8;
const LO_FLAGS_DIRECT_IO: u32 = 16;

/// How long a free loop device may be in use by another process.
const FREE_WAIT: Duration = Duration::from_secs(5);
/// Interval between attempts.
const RETRY: Duration = Duration::from_millis(1);

/// Opens `/dev/loop-control`, which makes and finds loop devices.
pub(crate) fn open_control() -> rustix::io::Result<OwnedFd> {
    rustix::fs::open("/dev/loop-control", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

/// Attaches a loop device to `file`, with blocks of `block_size` bytes, direct I/O, and the
/// partitions in the file. Returns the path of the device.
pub(crate) fn attach(file: &Path, block_size: u32) -> Result<PathBuf> {
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let opened = rustix::fs::open(file, flags, Mode::empty())
        .context(format!("cannot open {}", file.display()))?;
    let control = open_control().context("cannot open /dev/loop-control")?;
    let deadline = Instant::now() + FREE_WAIT;
    loop {
        let number = ioctls::free_loop(&control).context("cannot get a free loop device")?;
        let device = node_of(number)?;
        match configure(&device, opened.as_fd(), file, block_size) {
            Ok(()) => {
                require_direct(&device, file)?;
                return Ok(device);
            }
            // Another process has taken this free device, and there is another one; or a partition
            // of an earlier user is in use.
            Err(Errno::BUSY) if Instant::now() < deadline => std::thread::sleep(RETRY),
            Err(Errno::BUSY) => return Err(held(&device)),
            Err(Errno::INVAL | Errno::NOTTY) => {
                return Err(Error::failure(format!(
                    "cannot attach {}: the kernel refuses LOOP_CONFIGURE with blocks of {block_size} bytes",
                    device.display()
                ))
                .hint("use Linux 5.8 or newer, or --export nbd"));
            }
            Err(e) => return Err(e).context(format!("cannot attach {}", device.display())),
        }
    }
}

/// The node of loop device `number`; made here if nothing else (devtmpfs, udev) makes it. With the
/// module's `max_part`, its minor number is not `number`.
fn node_of(number: u32) -> Result<PathBuf> {
    let path = PathBuf::from(format!("/dev/loop{number}"));
    let mode = Mode::RUSR | Mode::WUSR | Mode::RGRP | Mode::WGRP;
    device_node::make_missing(&path, &sys(&path), FileType::BlockDevice, mode)?;
    Ok(path)
}

fn configure(
    device: &Path,
    file: BorrowedFd<'_>,
    name: &Path,
    block_size: u32,
) -> rustix::io::Result<()> {
    // While this process claims the device, no other process attaches it.
    let flags = OFlags::RDWR | OFlags::EXCL | OFlags::CLOEXEC;
    let node = rustix::fs::open(device, flags, Mode::empty())?;
    if backing_file(device).is_some() {
        return Err(Errno::BUSY);
    }
    // Partitions of an earlier user.
    partitions::remove(&node, device).map_err(|_| Errno::BUSY)?;
    let mut info = LoopInfo::ZERO;
    info.flags = LO_FLAGS_DIRECT_IO | LO_FLAGS_PARTSCAN;
    let text = name.as_os_str().as_bytes();
    let len = text.len().min(info.file_name.len() - 1);
    info.file_name[..len].copy_from_slice(&text[..len]);
    ioctls::attach_loop(&node, file, block_size, info)
}

/// Without direct I/O, which the kernel may decline silently, every block would be kept twice, and
/// the device could deadlock when memory is short.
fn require_direct(device: &Path, file: &Path) -> Result<()> {
    let dio = sys(device).join("loop/dio");
    if std::fs::read_to_string(dio).is_ok_and(|t| t.trim() == "1") {
        return Ok(());
    }
    detach(device, file)?;
    Err(Error::failure(format!(
        "cannot attach {}: no direct I/O on the FUSE file",
        device.display()
    ))
    .hint("use --export nbd"))
}

/// Grows the device to the present size of its file.
pub(crate) fn grow(device: &Path, file: &Path) -> Result<()> {
    if !is_attached(device, file)? {
        return Err(Error::failure(format!("{} is not attached", device.display())));
    }
    // Makes the kernel fetch the file's size, which the loop device then takes.
    std::fs::metadata(file).context(format!("cannot stat {}", file.display()))?;
    let node =
        open(device, OFlags::empty()).context(format!("cannot open {}", device.display()))?;
    ioctls::grow_loop(&node).context(format!("cannot grow {}", device.display()))
}

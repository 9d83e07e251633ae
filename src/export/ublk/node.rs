//! The files of a device: `/dev/ublkcN`, `/dev/ublkbN`, and what `/sys` has of it.
//!
//! Invariant: no descriptor of the block device is kept.

use crate::error::{Context, Result};
use crate::system::device_node;
use rustix::fd::OwnedFd;
use rustix::fs::{FileType, Mode, OFlags};
use std::fs;
use std::path::{Path, PathBuf};

/// In KiB. With the default, 128 KiB, requests spend much of their time in transit.
const READ_AHEAD: &str = "1024";

/// The block device of number `id`.
pub(super) fn block(id: u32) -> PathBuf {
    PathBuf::from(format!("/dev/ublkb{id}"))
}

fn sys_of_block(id: u32) -> PathBuf {
    PathBuf::from(format!("/sys/block/ublkb{id}"))
}

/// Whether the block device that `device` names is there.
pub(super) fn exists(device: &Path) -> bool {
    device.file_name().is_some_and(|name| Path::new("/sys/block").join(name).exists())
}

/// Whether `device` is a ublk device that is there.
pub(crate) fn is_there(device: &Path) -> bool {
    let ublk = device.strip_prefix("/dev").ok().and_then(Path::to_str);
    ublk.is_some_and(|name| name.starts_with("ublkb")) && exists(device)
}

/// Opens the character device, through which requests come.
pub(super) fn open_character(id: u32) -> Result<OwnedFd> {
    let path = PathBuf::from(format!("/dev/ublkc{id}"));
    let sys = PathBuf::from(format!("/sys/class/ublk-char/ublkc{id}"));
    make_missing(&path, &sys, FileType::CharacterDevice)?;
    rustix::fs::open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
        .context(format!("cannot open {}", path.display()))
}

/// Makes the node of the block device when nothing else (devtmpfs, udev) makes it.
pub(super) fn make_missing_block(id: u32) -> Result<()> {
    make_missing(&block(id), &sys_of_block(id), FileType::BlockDevice)
}

fn make_missing(path: &Path, sys: &Path, kind: FileType) -> Result<()> {
    device_node::make_missing(path, sys, kind, Mode::RUSR | Mode::WUSR)
}

/// Tunes the block device. Best effort: without one of the files the device is only slower. A write
/// to a file in `queue`, even of the same value, stops all requests until the kernel sees that none
/// is in flight. `waits`: requests may wait for a drive; then the kernel's default readahead stays
/// (`docs/notes/exports-2026-11.md` has the figures).
pub(super) fn tune(id: u32, waits: bool) {
    let device = sys_of_block(id);
    let scheduler = device.join("queue/scheduler");
    // With one queue the kernel would choose another scheduler, and so do udev rules of
    // distributions.
    if !fs::read_to_string(&scheduler).is_ok_and(|text| text.contains("[none]")) {
        let _ = fs::write(scheduler, "none");
    }
    if !waits {
        let _ = fs::write(device.join("bdi/read_ahead_kb"), READ_AHEAD)
            .or_else(|_| fs::write(device.join("queue/read_ahead_kb"), READ_AHEAD));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_there_does_not_exist() {
        assert!(!exists(&block(u32::MAX)) && !exists(Path::new("/")));
    }
}

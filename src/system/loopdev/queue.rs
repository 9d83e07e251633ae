//! The queue settings of the loop device (`docs/notes/exports-2026-11.md` has the measurements).
//!
//! Invariant: best effort. Without one of the files the device is only slower.

use super::{USUAL_READ_AHEAD, sys};
use std::path::Path;

/// Readahead in KiB if requests never wait for a drive.
const READ_AHEAD: &str = "1024";

/// Tunes the queue of the loop device `device`; `waits`: requests may wait for a drive.
pub(crate) fn tune(device: &Path, waits: bool) {
    let dir = sys(device).join("queue");
    // This is the kernel's default for loop devices, but some distributions' udev rules change it.
    let _ = std::fs::write(dir.join("scheduler"), "none");
    // In a sequential read, requests of the default size wait for FUSE too often. But the kernel
    // reads the same length around each missing page of a mapped file, which is expensive on a slow
    // drive. The default is written as well: a killed daemon did not restore it.
    let ahead = if waits { USUAL_READ_AHEAD } else { READ_AHEAD };
    let _ = std::fs::write(dir.join("read_ahead_kb"), ahead);
}

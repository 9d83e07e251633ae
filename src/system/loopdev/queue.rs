//! The queue settings of the loop device (`docs/notes/exports-2026-11.md` has what was measured).
//!
//! Invariant: best effort. A kernel without one of the files has a slower device, nothing else.

use super::{USUAL_READ_AHEAD, sys};
use std::path::Path;

/// What is read ahead where requests never wait for a drive, in KiB.
const READ_AHEAD: &str = "1024";

/// Tunes the queue of the loop device `device`; `waits`: requests may wait for a drive.
pub(crate) fn tune(device: &Path, waits: bool) {
    let dir = sys(device).join("queue");
    // The kernel's default for loop devices, but udev rules of distributions choose others.
    let _ = std::fs::write(dir.join("scheduler"), "none");
    // Requests of the default's size wait for FUSE too often when read in order. But as much is
    // read around each page that a mapped file lacks, which a slow drive makes dear. The default is
    // written as well: a daemon that was killed did not put it back.
    let ahead = if waits { USUAL_READ_AHEAD } else { READ_AHEAD };
    let _ = std::fs::write(dir.join("read_ahead_kb"), ahead);
}

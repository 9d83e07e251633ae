//! The queue settings of the loop device, as measured (`docs/fuse.md` has the figures).
//!
//! Invariant: best effort. A kernel without one of the files has a slower device, nothing else.

use super::attach;
use std::path::Path;

/// File in `/sys/block/loopN/queue`, and what it is set to.
const SETTINGS: [(&str, &str); 2] = [
    // The kernel's default for loop devices, but udev rules of distributions choose others.
    ("scheduler", "none"),
    // In KiB. Requests of 128 KiB, the default, wait for FUSE too often when read in order.
    ("read_ahead_kb", "1024"),
];

/// Tunes the queue of the loop device `device`.
pub(super) fn tune(device: &Path) {
    let dir = attach::sys(device).join("queue");
    for (file, value) in SETTINGS {
        let _ = std::fs::write(dir.join(file), value);
    }
}

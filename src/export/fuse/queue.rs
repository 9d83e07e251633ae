//! The queue settings of the loop device, as measured (`docs/fuse.md` has the figures).
//!
//! Invariant: best effort. A kernel without one of the files has a slower device, nothing else.

use crate::export::loopdev;
use std::path::Path;

/// File in `/sys/block/loopN/queue`, and what it is set to.
const SETTINGS: [(&str, &str); 3] = [
    // No reordering of what is memory in the end.
    ("scheduler", "none"),
    // One FUSE request each; the default of 1280 KiB makes two, a large and a small one.
    ("max_sectors_kb", "1024"),
    ("read_ahead_kb", "1024"),
];

/// Tunes the queue of the loop device `device`.
pub(super) fn tune(device: &Path) {
    let dir = loopdev::sys(device).join("queue");
    for (file, value) in SETTINGS {
        let _ = std::fs::write(dir.join(file), value);
    }
}

//! The read-ahead thread: brings what streams of reads in spilled data will want next.

use super::Volume;
use crate::device::worker::Worker;
use crate::error::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

/// Starts the thread.
///
/// # Errors
/// See [`Worker::start`].
pub(super) fn start(volume: &Arc<Volume>) -> Result<Worker> {
    Worker::start("ztier-readahead", Arc::downgrade(volume), read_ahead)
}

fn read_ahead(volume: &Weak<Volume>, stop: &AtomicBool) {
    if let Some(volume) = volume.upgrade() {
        volume.ram().serve_streams();
    }
    while !stop.load(Ordering::Acquire) {
        let Some(volume) = volume.upgrade() else { return };
        let has_read = volume.ram().read_ahead();
        drop(volume);
        if !has_read {
            // Reads wake the thread.
            std::thread::park();
        }
    }
}

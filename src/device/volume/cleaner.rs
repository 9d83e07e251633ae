//! The cleaner thread: cleans while no request writes, and returns unused memory.

use super::Volume;
use crate::device::worker::Worker;
use crate::error::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Interval between checks.
const TICK: Duration = Duration::from_millis(100);
/// A volume that opened no segment for this long is quiet.
const QUIET: Duration = Duration::from_millis(500);
/// After this long without a new segment all cleaning is done, and the thread checks less often.
const IDLE: Duration = Duration::from_secs(20);
/// Interval between checks of an idle volume: an idle machine should stay idle.
const IDLE_TICK: Duration = Duration::from_secs(1);

/// Starts the thread.
///
/// # Errors
/// See [`Worker::start`].
pub(super) fn start(volume: &Arc<Volume>) -> Result<Worker> {
    Worker::start("ztier-cleaner", Arc::downgrade(volume), clean)
}

fn clean(volume: &Weak<Volume>, stop: &AtomicBool) {
    let mut opened = 0;
    let mut since = Instant::now();
    while !stop.load(Ordering::Acquire) {
        std::thread::park_timeout(if since.elapsed() < IDLE { TICK } else { IDLE_TICK });
        let Some(volume) = volume.upgrade() else { return };
        let now = volume.ram().opened();
        if now != opened {
            (opened, since) = (now, Instant::now());
        }
        let _turn = volume.turn();
        volume.ram().maintain(since.elapsed() >= QUIET, &|| {
            stop.load(Ordering::Acquire) || volume.ram().opened() != opened
        });
    }
}

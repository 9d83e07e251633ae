//! The thread that gets memory from the machine for a volume that carries swap.

use super::Volume;
use crate::device::worker::Worker;
use crate::error::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the thread looks by itself. Writers wake it up when they take from the mempool.
const TICK: Duration = Duration::from_millis(500);

/// Starts the thread.
///
/// # Errors
/// See [`Worker::start`].
pub(super) fn start(volume: &Arc<Volume>) -> Result<Worker> {
    Worker::start("ztier-refill", Arc::downgrade(volume), refill)
}

/// Has this thread served before others, also with memory: the kernel leaves a part of what it
/// keeps free to threads of a real-time class, and lets all others wait. Otherwise the
/// processes that use up the machine's memory would take every page that is swapped out, and the
/// mempool get none.
fn hurry() {
    let first = libc::sched_param { sched_priority: 1 };
    // SAFETY: the call reads one structure, which lives, and changes how this thread is scheduled.
    // Without the right to that it fails and changes nothing; the user is told before the device
    // carries swap.
    let _ = unsafe { libc::sched_setscheduler(0, libc::SCHED_RR, &first) };
}

fn refill(volume: &Weak<Volume>, stop: &AtomicBool) {
    // Of all threads this one may wait for pages that are swapped out: what it waits for does not
    // wait for it. Without the right to be an exception, it is none.
    let _ = rustix::process::configure_io_flusher_behavior(false);
    hurry();
    if let Some(volume) = volume.upgrade() {
        volume.ram().serve_mempool();
    }
    while !stop.load(Ordering::Acquire) {
        let Some(volume) = volume.upgrade() else { return };
        while volume.ram().refill() && !stop.load(Ordering::Acquire) {}
        let has_mempool = volume.ram().has_mempool();
        drop(volume);
        if has_mempool {
            std::thread::park_timeout(TICK);
        } else {
            std::thread::park();
        }
    }
}

//! The thread that allocates memory from the machine for the mempool of a volume that carries swap.

use super::Volume;
use crate::device::worker::Worker;
use crate::error::Result;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Interval between checks. Writers wake the thread when they take from the mempool.
const TICK: Duration = Duration::from_millis(500);

/// Starts the thread.
///
/// # Errors
/// See [`Worker::start`].
pub(super) fn start(volume: &Arc<Volume>) -> Result<Worker> {
    Worker::start("ztier-refill", Arc::downgrade(volume), refill)
}

/// Makes this thread a real-time thread, for the processor and for memory: of the pages that the
/// kernel keeps free, it leaves a part to real-time threads, and lets all other threads wait.
/// Otherwise the processes that use up the machine's memory would take every page that is swapped
/// out, and the mempool would get none. Returns whether that worked.
fn hurry() -> bool {
    // `sched_param`. The system call itself, because musl's function for it refuses every call.
    let first: libc::c_int = 1;
    // SAFETY: the call reads one number, which lives, and changes how this thread is scheduled.
    // Without the right to do so the call fails and changes nothing; the user is told before the
    // device carries swap.
    unsafe { libc::syscall(libc::SYS_sched_setscheduler, 0, libc::SCHED_RR, &raw const first) == 0 }
}

fn refill(volume: &Weak<Volume>, stop: &AtomicBool) {
    // Of all threads only this one may wait for pages to be swapped out: swapping out does not wait
    // for this thread. Without the right to configure it, the thread stays as it is.
    let _ = rustix::process::configure_io_flusher_behavior(false);
    let is_first = hurry();
    if let Some(volume) = volume.upgrade() {
        volume.ram().serve_mempool(is_first);
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

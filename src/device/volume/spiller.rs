//! The spiller thread: keeps memory free on a volume with a spill device, so that writers need not.

use super::Volume;
use crate::device::worker::Worker;
use crate::error::Result;
use crate::ram::store::Session;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

/// Interval between checks. Writers wake the thread when they take from the reserve.
const TICK: Duration = Duration::from_millis(200);

/// Starts the thread.
///
/// # Errors
/// See [`Worker::start`]; or too many threads use the volume.
pub(super) fn start(volume: &Arc<Volume>) -> Result<Worker> {
    let session = volume.ram().session()?;
    Worker::start("ztier-spiller", Arc::downgrade(volume), move |volume, stop| {
        spill(volume, stop, &session)
    })
}

fn spill(volume: &Weak<Volume>, stop: &AtomicBool, session: &Session) {
    if let Some(volume) = volume.upgrade() {
        volume.ram().keep_awake();
    }
    let mut busy = false;
    while !stop.load(Ordering::Acquire) {
        if !busy {
            std::thread::park_timeout(TICK);
        }
        let Some(volume) = volume.upgrade() else { return };
        let _turn = volume.turn();
        busy = volume.ram().keep_reserve(session, &|| stop.load(Ordering::Acquire));
    }
    if let Some(volume) = volume.upgrade() {
        volume.ram().store().leave(session);
    }
}

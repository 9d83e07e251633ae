//! The thread that keeps memory free on a volume with a spill device, so that writers need not.

use super::Volume;
use crate::error::{Context, Result};
use crate::store::Session;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

/// How often the thread looks by itself. Writers wake it up when they take of the reserve.
const TICK: Duration = Duration::from_millis(200);

/// The thread; dropping it ends it.
pub(super) struct Spiller {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Spiller {
    pub(super) fn start(volume: &Arc<Volume>) -> Result<Self> {
        let session = volume.ram().session()?;
        let stop = Arc::new(AtomicBool::new(false));
        let (volume, stopping) = (Arc::downgrade(volume), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name("ztier-spiller".into())
            .spawn(move || spill(&volume, &stopping, &session))
            .context("cannot start the spilling thread")?;
        Ok(Self { stop, thread: Some(thread) })
    }
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
        busy = volume.ram().keep_reserve(session, &|| stop.load(Ordering::Acquire));
    }
    if let Some(volume) = volume.upgrade() {
        volume.ram().store().leave(session);
    }
}

impl Drop for Spiller {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // The last owner of the volume may be the thread itself, which cannot wait for itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

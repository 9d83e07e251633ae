//! A thread of a volume's own, which ends with it.
//!
//! Invariant: the thread holds the volume only while it works for it, so it keeps no volume alive.

use super::Volume;
use crate::error::{Context, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// The thread; dropping it ends it.
pub(super) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread called `name`. It returns when the flag is set, or the volume is gone, and
    /// is unparked when that is to be looked at.
    ///
    /// # Errors
    /// It can't be started.
    pub(super) fn start(
        name: &str,
        volume: &Arc<Volume>,
        work: impl FnOnce(&Weak<Volume>, &AtomicBool) + Send + 'static,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let (volume, stopping) = (Arc::downgrade(volume), Arc::clone(&stop));
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || work(&volume, &stopping))
            .context(format!("cannot start the thread {name}"))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Worker {
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

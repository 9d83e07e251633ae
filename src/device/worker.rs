//! A thread of something's own, which ends with it.
//!
//! Invariant: the thread holds its owner only while it works for it, so it keeps none alive.

use crate::error::{Context, Result};
use crate::sync::ready_to_wait;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// The thread; dropping it ends it.
pub(crate) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread called `name` for `owner`. It returns when the flag is set, or the owner is
    /// gone, and is unparked when that is to be looked at.
    ///
    /// # Errors
    /// It can't be started.
    pub(crate) fn start<T: Send + Sync + 'static>(
        name: &str,
        owner: Weak<T>,
        work: impl FnOnce(&Weak<T>, &AtomicBool) + Send + 'static,
    ) -> Result<Self> {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = Arc::clone(&stop);
        let thread = std::thread::Builder::new()
            .name(name.into())
            .spawn(move || {
                ready_to_wait();
                work(&owner, &stopping);
            })
            .context(format!("cannot start the thread {name}"))?;
        Ok(Self { stop, thread: Some(thread) })
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // The last reference to the owner may be this thread's own: a thread cannot join itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

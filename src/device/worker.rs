//! A background thread of an owner, such as a volume, that ends with it.
//!
//! Invariant: the thread holds a strong reference to its owner only while it works, so it never
//! keeps the owner alive.

use crate::error::{Context, Result};
use crate::sync::ready_to_wait;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;

/// The thread; dropping this ends it.
pub(crate) struct Worker {
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl Worker {
    /// Starts a thread called `name` for `owner`. `work` must return when the flag is set or the
    /// owner is gone; the thread is unparked when the flag changes.
    ///
    /// # Errors
    /// The thread cannot be started.
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

    /// Whether the thread has ended by itself.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Release);
        let Some(thread) = self.thread.take() else { return };
        thread.thread().unpark();
        // This thread may drop the last reference to the owner, and a thread cannot join itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

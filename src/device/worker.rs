//! A background thread of an owner, such as a volume, that ends with it.
//!
//! Invariant: the thread holds a strong reference to its owner only while it works, so it never
//! keeps the owner alive.

use crate::error::{Context, Result};
use crate::patience::eventually;
use crate::sync::ready_to_wait;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

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

    /// Whether the thread has ended.
    pub(crate) fn has_ended(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Ends the thread, but does not wait for it longer than `most`. `false`: it still works; it
    /// ends by itself, or with the process.
    pub(crate) fn end_within(mut self, most: Duration) -> bool {
        self.tell();
        let ended = eventually(most, Duration::from_millis(1), || self.has_ended());
        if !ended {
            self.thread = None;
        }
        ended
    }

    /// Tells the thread to end.
    fn tell(&self) {
        self.stop.store(true, Ordering::Release);
        self.thread.iter().for_each(|thread| thread.thread().unpark());
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        self.tell();
        let Some(thread) = self.thread.take() else { return };
        // This thread may drop the last reference to the owner, and a thread cannot join itself.
        if thread.thread().id() != std::thread::current().id() {
            let _ = thread.join();
        }
    }
}

#[cfg(all(test, not(miri), not(shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc;

    #[test]
    fn a_thread_that_does_not_end_is_waited_for_no_longer_than_asked() {
        let (go, gone) = mpsc::channel::<()>();
        let owner = Arc::new(());
        // Deaf until the channel ends.
        let deaf = move |_: &Weak<()>, _: &AtomicBool| _ = gone.recv();
        let deaf = Worker::start("deaf", Arc::downgrade(&owner), deaf).unwrap();
        assert!(!deaf.end_within(Duration::from_millis(5)));
        drop(go);
        let parked = |_: &Weak<()>, stop: &AtomicBool| {
            while !stop.load(Ordering::Acquire) {
                std::thread::park();
            }
        };
        let parked = Worker::start("parked", Arc::downgrade(&owner), parked).unwrap();
        assert!(parked.end_within(Duration::from_secs(60)));
    }
}

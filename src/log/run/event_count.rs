//! Waiting until another thread has done something, without a lock to come back through: all
//! waiters go on at once.
//!
//! Invariant: a thread that reads [`EventCount::seen`] before it looks for what to wait for misses
//! no event that is notified afterwards.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{wait_on, wake_all};
use std::time::Duration;

/// The events so far.
#[derive(Default)]
pub(super) struct EventCount {
    count: AtomicU32,
    waiting: AtomicU32,
}

impl EventCount {
    /// What to give to [`Self::wait`].
    pub(super) fn seen(&self) -> u32 {
        self.count.load(Ordering::SeqCst)
    }

    /// Wakes all waiters.
    pub(super) fn notify(&self) {
        self.count.fetch_add(1, Ordering::SeqCst);
        if self.waiting.load(Ordering::SeqCst) > 0 {
            wake_all(&self.count);
        }
    }

    /// Waits until there is an event that was not `seen`, but no longer than `most`; may end early.
    pub(super) fn wait(&self, seen: u32, most: Duration) {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        wait_on(&self.count, seen, most);
        self.waiting.fetch_sub(1, Ordering::SeqCst);
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use std::time::Instant;

    #[test]
    fn news_end_a_wait_also_if_they_came_before_it() {
        let events = EventCount::default();
        let start = Instant::now();
        let seen = events.seen();
        events.notify();
        events.wait(seen, Duration::from_secs(60));
        std::thread::scope(|scope| {
            let (events, seen) = (&events, events.seen());
            for _ in 0..4 {
                scope.spawn(move || events.wait(seen, Duration::from_secs(60)));
            }
            while events.waiting.load(Ordering::SeqCst) < 4 {
                std::thread::yield_now();
            }
            events.notify();
        });
        assert!(start.elapsed() < Duration::from_secs(30));
        let start = Instant::now();
        events.wait(events.seen(), Duration::from_millis(20));
        assert!(start.elapsed() >= Duration::from_millis(20));
    }
}

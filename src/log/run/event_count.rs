//! An event count: threads wait until another thread notifies them. Unlike with a condition
//! variable, no waiter takes a lock again, so all continue at once.
//!
//! Invariant: a thread that reads [`EventCount::seen`] before it checks its condition misses no
//! event that is notified afterwards.

use crate::sync::atomic::{AtomicU32, Ordering};
use crate::sync::{wait_on, wake_all};
use std::time::Duration;

/// Counts events, and the threads that wait for one.
#[derive(Default)]
pub(super) struct EventCount {
    count: AtomicU32,
    waiting: AtomicU32,
}

impl EventCount {
    /// The count of events so far, for [`Self::wait`].
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

    /// Waits for an event after `seen`, at most for `most`. May return early.
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

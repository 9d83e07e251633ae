//! How the writers of a nearly full log share out what room there is.
//!
//! Room comes a window of writeback at a time, and a window may take a minute. A writer that took
//! what is there at once would then wait for the whole of the next window, and would look hung. So
//! beyond seven tenths of the log writers advance as the window does: a part of the room at once,
//! the rest as blocks reach the backing store. What is taken in all is the same, and a burst that
//! finds more room than a window makes is hardly held.
//! Invariant: no writer is held unless a window is at work, and at its end none is.

use std::sync::atomic::{AtomicU64, Ordering};

/// Percent of the log from which on writers are held: less than there is after the largest window.
const FROM_PERCENT: u64 = 70;
/// Which part of the room may be taken before the window has done anything.
const AHEAD: u64 = 8;
/// Steps of a window's way.
pub(super) const WAY: u64 = 1024;

/// How far writers may go.
#[derive(Debug)]
pub(super) struct WriteThrottle {
    /// Segments that may be in use.
    most: AtomicU64,
    /// Segments in use when the window began, and free ones.
    used: AtomicU64,
    free: AtomicU64,
}

impl Default for WriteThrottle {
    fn default() -> Self {
        let zero = AtomicU64::default;
        Self { most: AtomicU64::new(u64::MAX), used: zero(), free: zero() }
    }
}

/// Segments of `free` that may be taken when a window has gone so much of its [`WAY`].
fn share(free: u64, gone: u64) -> u64 {
    let ahead = free.div_ceil(AHEAD);
    ahead + (free - ahead) * gone.min(WAY) / WAY
}

impl WriteThrottle {
    /// A window begins, of a log of which so many segments are in use.
    pub(super) fn begin(&self, (used, segments): (u64, u64)) {
        let free = segments.saturating_sub(used);
        self.used.store(used, Ordering::Relaxed);
        self.free.store(free, Ordering::Relaxed);
        self.most.store(used + share(free, 0), Ordering::Relaxed);
    }

    /// The window has gone so much of its [`WAY`]; whether that lets a writer go on.
    pub(super) fn advance(&self, gone: u64) -> bool {
        let taken = share(self.free.load(Ordering::Relaxed), gone);
        let most = self.used.load(Ordering::Relaxed) + taken;
        self.most.fetch_max(most, Ordering::Relaxed) < most
    }

    /// The window has ended.
    pub(super) fn end(&self) {
        self.most.store(u64::MAX, Ordering::Relaxed);
    }

    /// Whether a writer waits, when so many segments of so many are in use.
    pub(super) fn holds(&self, (used, segments): (u64, u64)) -> bool {
        used * 100 >= segments * FROM_PERCENT && used > self.most.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn writers_advance_as_the_window_does() {
        let throttle = WriteThrottle::default();
        assert!(!throttle.holds((100, 100)), "no window is at work");
        throttle.begin((60, 100));
        assert!(!throttle.holds((69, 100)), "there is room");
        assert!(throttle.holds((70, 100)));
        assert!(throttle.advance(WAY * 3 / 4));
        assert!(!throttle.holds((91, 100)) && throttle.holds((92, 100)));
        assert!(!throttle.advance(WAY / 2), "nothing is taken back");
        assert!(throttle.holds((92, 100)));
        assert!(throttle.advance(2 * WAY));
        assert!(!throttle.holds((100, 100)));
        throttle.begin((100, 100));
        assert!(!throttle.holds((100, 100)), "that is for the log to refuse");
        throttle.begin((99, 100));
        assert!(!throttle.holds((100, 100)), "one segment is no room to share out");
        throttle.begin((92, 100));
        assert!(!throttle.holds((93, 100)) && throttle.holds((94, 100)));
        throttle.end();
        assert!(!throttle.holds((100, 100)));
    }

    #[test]
    fn all_of_the_room_is_shared_out() {
        for free in [0, 1, 7, 8, 9, 1000] {
            assert_eq!(share(free, WAY), free);
            assert!((0..WAY).all(|gone| share(free, gone) <= share(free, gone + 1)));
        }
    }
}

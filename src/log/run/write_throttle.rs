//! The write throttle: how the writers of a nearly full log share the room that is left.
//!
//! Writeback makes room one window at a time, and a window may take a minute. A writer that took
//! all room at once would then wait for the whole next window, and would look hung. So from 70
//! percent of the log on writers advance as the window does: they get a part of the room at once,
//! and the rest as blocks reach the backing store. In total they get the same, and a burst that
//! finds more room than a window makes is hardly held.
//! Invariant: writers are held only while a window is at work.

use std::sync::atomic::{AtomicU64, Ordering};

/// Percent of the log in use from which on writers are held: less than the largest window leaves of
/// a full log.
const FROM_PERCENT: u64 = 70;
/// One in this many segments of the room is given out before the window has done anything.
const AHEAD: u64 = 8;
/// Steps by which a window's progress is measured.
pub(super) const WAY: u64 = 1024;

/// How many segments writers may use.
#[derive(Debug)]
pub(super) struct WriteThrottle {
    /// Most segments that may be in use; `u64::MAX` without a window.
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

/// Segments of `free` that writers may take when a window has done `gone` of [`WAY`] steps.
fn share(free: u64, gone: u64) -> u64 {
    let ahead = free.div_ceil(AHEAD);
    ahead + (free - ahead) * gone.min(WAY) / WAY
}

impl WriteThrottle {
    /// A window begins, with `used` of `segments` in use.
    pub(super) fn begin(&self, (used, segments): (u64, u64)) {
        let free = segments.saturating_sub(used);
        self.used.store(used, Ordering::Relaxed);
        self.free.store(free, Ordering::Relaxed);
        self.most.store(used + share(free, 0), Ordering::Relaxed);
    }

    /// The window has done `gone` of [`WAY`] steps; whether writers may take more room.
    pub(super) fn advance(&self, gone: u64) -> bool {
        let taken = share(self.free.load(Ordering::Relaxed), gone);
        let most = self.used.load(Ordering::Relaxed) + taken;
        self.most.fetch_max(most, Ordering::Relaxed) < most
    }

    /// The window has ended.
    pub(super) fn end(&self) {
        self.most.store(u64::MAX, Ordering::Relaxed);
    }

    /// Whether a writer must wait while `used` of `segments` are in use.
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

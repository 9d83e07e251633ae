//! The writeback throttle: writeback gives way to readers that wait for the backing store.
//!
//! It compares the latency of reads during writeback with that of reads without. When the slowest
//! tenth of recent reads takes more than three times the usual latency, it halves the commands of
//! writeback that may be in flight, down to none; after each calm period it allows one more.
//! Without reads, nothing is throttled. While there are reads, the drive's cache is flushed often:
//! a drive serves no request while it empties its cache, which can take a second at the end of a
//! window.
//! Invariant: only [`WritebackThrottle::admits`] throttles; a thread that must not wait ignores it.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Latencies that are remembered, and the fewest to judge by.
const RECENT: usize = 16;
const ENOUGH: usize = 4;
/// A read is too slow if it takes more than this many times the usual latency.
const TIMES: u64 = 3;
/// Least usual latency to compare with, in microseconds.
const FAST_US: u64 = 500;
/// Milliseconds without a change after which one more command is allowed.
const CALM_MS: u64 = 100;
/// Writes after which the drive's cache is flushed while there are reads.
const UNFLUSHED: usize = 32;
/// Milliseconds after the last read from which on nothing is throttled.
const ALONE_MS: u64 = 200;

/// Read latencies, and how many commands of writeback may be in flight.
pub(super) struct WritebackThrottle {
    /// Commands that may be in flight when nothing is throttled.
    most: usize,
    /// Commands of writeback on the backing store in flight.
    moving: AtomicUsize,
    /// Writes since the last flush that was asked for.
    unflushed: AtomicUsize,
    state: Mutex<State>,
}

struct State {
    depth: usize,
    /// Moving mean of the read latency without writeback, in microseconds; 0: unknown.
    usual_us: u64,
    /// The last read latencies during writeback, in microseconds.
    recent: Vec<u64>,
    read_ms: u64,
    changed_ms: u64,
}

impl WritebackThrottle {
    pub(super) fn new(most: usize) -> Self {
        let state = State {
            depth: most,
            usual_us: 0,
            recent: Vec::with_capacity(RECENT),
            read_ms: 0,
            changed_ms: 0,
        };
        let (moving, unflushed) = (AtomicUsize::new(0), AtomicUsize::new(0));
        Self { most, moving, unflushed, state: Mutex::new(state) }
    }

    /// Whether writeback is at work on the backing store.
    pub(super) fn is_moving(&self) -> bool {
        self.moving.load(Ordering::Relaxed) > 0
    }

    /// A command of writeback on the backing store begins.
    pub(super) fn begin(&self) {
        self.moving.fetch_add(1, Ordering::Relaxed);
    }

    /// A command of writeback on the backing store has ended.
    pub(super) fn end(&self) {
        self.moving.fetch_sub(1, Ordering::Relaxed);
    }

    /// A write to the backing store has ended; whether to flush the drive now.
    pub(super) fn wants_flush(&self, now_ms: u64) -> bool {
        let unflushed = self.unflushed.fetch_add(1, Ordering::Relaxed) + 1;
        let wanted = unflushed >= UNFLUSHED && !self.state.lock().is_alone(now_ms);
        if wanted {
            self.unflushed.store(0, Ordering::Relaxed);
        }
        wanted
    }

    /// Notes a read of the backing store that `took` this long; `moving`: during writeback.
    pub(super) fn note(&self, took: Duration, moving: bool, now_ms: u64) {
        let took = took.as_micros() as u64;
        let mut state = self.state.lock();
        state.read_ms = now_ms;
        if !moving {
            let usual = state.usual_us;
            state.usual_us = if usual == 0 { took } else { usual - usual / 8 + took / 8 };
            return;
        }
        if state.recent.len() == RECENT {
            state.recent.remove(0);
        }
        state.recent.push(took);
        let mut sorted = state.recent.clone();
        sorted.sort_unstable();
        let high = sorted[sorted.len() - 1 - sorted.len() / 10];
        if sorted.len() >= ENOUGH && high > TIMES * state.usual_us.max(FAST_US) {
            let depth = state.depth / 2;
            state.set(depth, now_ms);
        }
    }

    /// Whether one more command of writeback may begin now.
    pub(super) fn admits(&self, now_ms: u64) -> bool {
        let mut state = self.state.lock();
        if state.is_alone(now_ms) {
            state.set(self.most, now_ms);
        } else if state.depth < self.most && now_ms.saturating_sub(state.changed_ms) >= CALM_MS {
            let depth = state.depth + 1;
            state.set(depth, now_ms);
        }
        self.moving.load(Ordering::Relaxed) < state.depth
    }
}

impl State {
    fn is_alone(&self, now_ms: u64) -> bool {
        now_ms.saturating_sub(self.read_ms) >= ALONE_MS
    }

    fn set(&mut self, depth: usize, now_ms: u64) {
        (self.depth, self.changed_ms) = (depth, now_ms);
        self.recent.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: fn(u64) -> Duration = Duration::from_millis;

    /// How many commands may be in flight.
    fn depth(throttle: &WritebackThrottle, now_ms: u64) -> usize {
        let begun = std::iter::repeat_with(|| throttle.admits(now_ms)).take_while(|more| {
            if *more {
                throttle.begin();
            }
            *more
        });
        let count = begun.count();
        (0..count).for_each(|_| throttle.end());
        count
    }

    #[test]
    fn slow_reads_halve_what_is_out_and_calm_brings_it_back() {
        let throttle = WritebackThrottle::new(4);
        (0..20).for_each(|n| throttle.note(MS(10), false, 1000 + n));
        assert_eq!(depth(&throttle, 1020), 4);
        // Twice the latency is the price of sharing.
        (0..40).for_each(|_| throttle.note(MS(20), true, 1020));
        assert_eq!(depth(&throttle, 1020), 4);
        for expected in [2, 1, 0] {
            (0..ENOUGH).for_each(|_| throttle.note(MS(50), true, 1030));
            assert_eq!(depth(&throttle, 1030), expected);
        }
        // One more at a time while there are reads.
        for (now, expected) in [(1129, 0), (1130, 1), (1131, 1), (1230, 2)] {
            throttle.note(MS(10), false, now);
            assert_eq!(depth(&throttle, now), expected, "at {now}");
        }
        assert_eq!(depth(&throttle, 1500), 4, "no reads");
    }

    #[test]
    fn one_slow_read_of_many_is_no_reason_and_the_first_reads_are_learned_from() {
        let throttle = WritebackThrottle::new(4);
        (0..20).for_each(|n| throttle.note(MS(10), false, 1000 + n));
        (0..RECENT).for_each(|_| throttle.note(MS(15), true, 1020));
        throttle.note(MS(500), true, 1020);
        assert_eq!(depth(&throttle, 1020), 4);
        throttle.note(MS(500), true, 1020);
        assert_eq!(depth(&throttle, 1020), 2);
        // The usual latency of a slow drive that was never read without writeback is learned when
        // writeback gives way.
        let throttle = WritebackThrottle::new(4);
        (0..3 * ENOUGH).for_each(|_| throttle.note(MS(15), true, 1000));
        assert_eq!(depth(&throttle, 1000), 0);
        throttle.note(MS(12), false, 1001);
        (0..40).for_each(|_| throttle.note(MS(15), true, 1099));
        assert_eq!(depth(&throttle, 1100), 1);
    }

    #[test]
    fn the_cache_is_flushed_often_while_there_are_reads() {
        let throttle = WritebackThrottle::new(4);
        assert!((0..100).all(|_| !throttle.wants_flush(1000)), "no reads");
        throttle.note(MS(10), true, 1000);
        assert!(throttle.wants_flush(1010));
        assert_eq!((0..UNFLUSHED * 2).filter(|_| throttle.wants_flush(1010)).count(), 2);
        assert!((0..100).all(|_| !throttle.wants_flush(1000 + ALONE_MS)));
    }
}

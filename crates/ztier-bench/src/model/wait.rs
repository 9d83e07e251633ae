//! The machine's clock, and waits for a point in time.
//!
//! Invariant: no wait returns early. A wait of a single thread ends within a few microseconds of
//! its time, because the thread spins at the end. With many waiting threads, spinning would take
//! the processors from other threads, and the queue hides the lateness of a plain sleep.

use super::Nanos;
use rustix::thread::{clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::cell::Cell;
use std::num::NonZeroU64;

/// Time that a thread spins: longer than a sleep is usually late (`ztier-bench models --real-time`
/// prints that).
const SPUN: Nanos = 80_000;
/// Limit below which a sleep does not pay, as it would be late by more.
const SHORT: Nanos = 10_000;

/// Nanoseconds of the monotonic clock.
pub fn now() -> Nanos {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

/// Waits until `at`: with a spin at the end if `precise`.
pub fn until(at: Nanos, precise: bool) {
    let spun = if precise { SPUN } else { SHORT };
    if at > now() + spun {
        sleep(if precise { at - spun } else { at });
    }
    while now() < at {
        if precise {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }
}

fn sleep(at: Nanos) {
    thread_local!(static EXACT: Cell<bool> = const { Cell::new(false) });
    if !EXACT.replace(true) {
        // The kernel may end a sleep 50 us late by default; where the slack can't be set, waits are
        // late by that.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
    }
    let (seconds, rest) = (at / 1_000_000_000, at % 1_000_000_000);
    let time = Timespec { tv_sec: seconds.cast_signed(), tv_nsec: rest.cast_signed() };
    // A signal interrupts the sleep; then the thread sleeps again.
    while now() < at && clock_nanosleep_absolute(ClockId::Monotonic, &time).is_err() {}
}

/// Lateness of `count` consecutive waits of this length, in nanoseconds.
pub fn lateness(length: Nanos, count: usize, precise: bool) -> Vec<f64> {
    let late = |_| {
        let at = now() + length;
        until(at, precise);
        (now() - at) as f64
    };
    (0..count).map(late).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_wait_returns_early() {
        for (length, precise) in [(0, true), (5_000, false), (50_000, true), (300_000, false)] {
            assert!(lateness(length, 5, precise).iter().all(|&late| late >= 0.0));
        }
        let before = now();
        until(before.saturating_sub(1), true);
    }
}

//! The machine's clock, and waiting for a point of it.
//!
//! Invariant: no wait returns early. Alone, a wait ends within a few microseconds of its time
//! because its last stretch is spun; where threads wait in numbers, spinning would take the
//! processors from the others, and the queue hides what a plain sleep is late.

use super::Nanos;
use rustix::thread::{clock_nanosleep_absolute, set_current_timer_slack};
use rustix::time::{ClockId, Timespec, clock_gettime};
use std::cell::Cell;
use std::num::NonZeroU64;

/// The stretch that is spun: longer than a sleep is late, as a rule (`ztier-bench models
/// --real-time` prints that).
const SPUN: Nanos = 80_000;
/// Less than this is not worth a sleep, which would be late by more.
const SHORT: Nanos = 10_000;

/// Nanoseconds of the monotonic clock.
pub fn now() -> Nanos {
    let t = clock_gettime(ClockId::Monotonic);
    t.tv_sec.unsigned_abs() * 1_000_000_000 + t.tv_nsec.unsigned_abs()
}

/// Waits until `at`: `precise`ly, or without spinning.
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
        // The kernel may end a sleep 50 us late unless told otherwise; where it can't be told,
        // waits are late by that.
        let _ = set_current_timer_slack(NonZeroU64::new(1));
    }
    let (seconds, rest) = (at / 1_000_000_000, at % 1_000_000_000);
    let time = Timespec { tv_sec: seconds.cast_signed(), tv_nsec: rest.cast_signed() };
    // A signal interrupts the sleep; then the thread sleeps again.
    while now() < at && clock_nanosleep_absolute(ClockId::Monotonic, &time).is_err() {}
}

/// By how much `count` waits of this length are late, one after the other, in nanoseconds.
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

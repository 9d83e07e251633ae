//! The write budget of a day: a token bucket that holds a day's bytes and fills up evenly. Pure:
//! the caller passes the time.
//!
//! Invariant: at most two days' bytes are taken in any 24 hours, and in the long run one day's
//! bytes a day.

use std::time::Duration;

const DAY_S: u64 = 24 * 60 * 60;

/// The token bucket. It begins full.
#[derive(Clone, Copy, Debug)]
pub(super) struct TokenBucket {
    /// Bytes a day; 0: no limit.
    daily: u64,
    /// Bytes in the bucket, times the seconds of a day, so that nothing is lost by rounding.
    level: u128,
    /// The time of `level`.
    at: Duration,
}

impl TokenBucket {
    pub(super) fn new(daily: u64, now: Duration) -> Self {
        Self { daily, level: full(daily), at: now }
    }

    /// Changes the bytes a day. What was written in the last day counts.
    pub(super) fn set_daily(&mut self, daily: u64, now: Duration) {
        self.fill(now);
        let taken = full(self.daily).saturating_sub(self.level);
        self.daily = daily;
        self.level = full(daily).saturating_sub(taken);
    }

    fn fill(&mut self, now: Duration) {
        let passed = now.saturating_sub(self.at).as_nanos();
        let more = u128::from(self.daily) * passed / 1_000_000_000;
        // An interval too short to add anything is counted later.
        if more > 0 || self.daily == 0 {
            self.level = (self.level + more).min(full(self.daily));
            self.at = now;
        }
    }

    /// Whether `bytes` bytes may be written now.
    pub(super) fn has(&mut self, bytes: u64, now: Duration) -> bool {
        self.fill(now);
        self.daily == 0 || self.level >= full(bytes)
    }

    /// Takes the bytes of a write that happens now.
    pub(super) fn take(&mut self, bytes: u64, now: Duration) {
        self.fill(now);
        self.level = self.level.saturating_sub(full(bytes));
    }

    /// Bytes that may be written now; `None` when there is no limit.
    pub(super) fn left(&mut self, now: Duration) -> Option<u64> {
        self.fill(now);
        (self.daily > 0).then_some((self.level / u128::from(DAY_S)) as u64)
    }
}

fn full(bytes: u64) -> u128 {
    u128::from(bytes) * u128::from(DAY_S)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: Duration = Duration::from_secs(3600);

    #[test]
    fn a_day_has_its_bytes_and_they_come_evenly() {
        let mut a = TokenBucket::new(24_000, Duration::ZERO);
        assert!(a.has(24_000, Duration::ZERO) && !a.has(24_001, Duration::ZERO));
        a.take(24_000, Duration::ZERO);
        assert!(!a.has(1, Duration::ZERO));
        assert!(a.has(1_000, HOUR) && !a.has(1_001, HOUR));
        a.take(1_000, HOUR);
        assert_eq!(a.left(HOUR * 3), Some(2_000));
        assert_eq!(a.left(HOUR * 100), Some(24_000), "it holds a day's");
        assert_eq!(a.left(HOUR * 50), Some(24_000), "a clock that goes back takes nothing");
    }

    #[test]
    fn another_limit_counts_what_was_written() {
        let mut a = TokenBucket::new(24_000, Duration::ZERO);
        a.take(20_000, Duration::ZERO);
        a.set_daily(48_000, Duration::ZERO);
        assert_eq!(a.left(Duration::ZERO), Some(28_000));
        a.set_daily(12_000, Duration::ZERO);
        assert_eq!(a.left(Duration::ZERO), Some(0));
        assert_eq!(a.left(HOUR * 2), Some(1_000));
        a.set_daily(0, HOUR * 2);
        assert_eq!(a.left(HOUR * 2), None);
        a.take(1 << 40, HOUR * 2);
        a.set_daily(24_000, HOUR * 2);
        assert_eq!(a.left(HOUR * 2), Some(24_000), "nothing was counted");
    }

    #[test]
    fn short_whiles_add_up() {
        let mut a = TokenBucket::new(24, Duration::ZERO);
        a.take(24, Duration::ZERO);
        let step = Duration::from_nanos(10);
        for n in 1..1000 {
            assert!(!a.has(1, step * n));
        }
        assert!(a.has(1, HOUR));
    }

    #[test]
    fn without_a_limit_all_may_go() {
        let mut a = TokenBucket::new(0, Duration::ZERO);
        a.take(1 << 60, Duration::ZERO);
        assert!(a.has(1 << 60, Duration::ZERO));
        assert_eq!(a.left(HOUR), None);
    }
}

//! The limit on memory: a volume adds all memory here before it takes it.
//!
//! Invariant: `used` never passes the limit in force when it was taken, and ordinary takers leave
//! [`Budget::reserve`] bytes to the cleaner, so that a full store can always make room.

use crate::sync::atomic::{AtomicU64, Ordering};

/// The kind of thread that asks for memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taker {
    /// A write: may not touch the reserve.
    Ordinary,
    /// The cleaner: frees more than it takes, so it may use the reserve.
    Cleaner,
}

/// Bytes used, their highest mark, and their limit.
#[derive(Debug)]
pub struct Budget {
    limit: AtomicU64,
    used: AtomicU64,
    peak: AtomicU64,
    reserve: u64,
}

impl Budget {
    /// `limit` and `reserve` in bytes; the reserve is part of the limit.
    pub fn new(limit: u64, reserve: u64) -> Self {
        let zero = || AtomicU64::new(0);
        Self { limit: AtomicU64::new(limit), used: zero(), peak: zero(), reserve }
    }

    /// The limit in bytes.
    pub fn limit(&self) -> u64 {
        self.limit.load(Ordering::Relaxed)
    }

    /// Changes the limit. What is used already stays used.
    pub fn set_limit(&self, bytes: u64) {
        self.limit.store(bytes, Ordering::Relaxed);
    }

    /// Bytes in use.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// The most that was ever in use.
    pub fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    /// Bytes that only the cleaner may take.
    pub fn reserve(&self) -> u64 {
        self.reserve
    }

    /// Whether `bytes` would fit now.
    pub fn fits(&self, bytes: u64, who: Taker) -> bool {
        self.used() + bytes <= self.ceiling(who)
    }

    fn ceiling(&self, who: Taker) -> u64 {
        match who {
            Taker::Ordinary => self.limit().saturating_sub(self.reserve),
            Taker::Cleaner => self.limit(),
        }
    }

    /// Takes `bytes` if they fit.
    pub fn take(&self, bytes: u64, who: Taker) -> bool {
        let ceiling = self.ceiling(who);
        let taken = self.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |used| {
            used.checked_add(bytes).filter(|sum| *sum <= ceiling)
        });
        match taken {
            Ok(before) => {
                self.peak.fetch_max(before + bytes, Ordering::Relaxed);
                true
            }
            Err(_) => false,
        }
    }

    /// Adds memory that is needed whatever the limit is: fixed tables, a thread's buffers.
    pub fn add(&self, bytes: u64) {
        let before = self.used.fetch_add(bytes, Ordering::Relaxed);
        self.peak.fetch_max(before + bytes, Ordering::Relaxed);
    }

    /// Gives bytes back.
    pub fn give(&self, bytes: u64) {
        let before = self.used.fetch_sub(bytes, Ordering::Relaxed);
        debug_assert!(before >= bytes, "gave back more than was taken");
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn the_reserve_is_the_cleaners() {
        let budget = Budget::new(100, 30);
        assert!(budget.take(70, Taker::Ordinary));
        assert!(!budget.take(1, Taker::Ordinary));
        assert!(budget.take(30, Taker::Cleaner));
        assert!(!budget.take(1, Taker::Cleaner));
        budget.give(50);
        assert_eq!((budget.used(), budget.peak()), (50, 100));
        budget.set_limit(20);
        assert!(!budget.take(1, Taker::Cleaner));
    }
}

//! A frequency sketch: roughly how often blocks were read lately.
//!
//! Counters have two bits, and blocks share them at random, as in TinyLFU (Einziger, Friedman and
//! Manes 2017). A scan leaves ones, which count for nothing. When half of the counters have been
//! touched, all are halved, so blocks that were hot once are forgotten. Invariant: nothing depends
//! on a counter being right; blocks that share one are not told apart.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counters in a word.
const PER_WORD: u64 = 32;
/// Fewest and most counters: 16 KiB to 16 MiB.
const COUNTERS: (u64, u64) = (1 << 16, 1 << 26);
/// Counters for each block that is to be told from others.
const PER_BLOCK: u64 = 4;
/// The lower bit of each counter.
const LOW: u64 = 0x5555_5555_5555_5555;

/// The counters.
pub(super) struct FrequencySketch {
    words: Vec<AtomicU64>,
    /// Counters that have become one since the last halving.
    touched: AtomicU64,
}

impl FrequencySketch {
    /// Counters for about `blocks` blocks.
    pub(super) fn new(blocks: u64) -> Self {
        let counters = (blocks * PER_BLOCK).clamp(COUNTERS.0, COUNTERS.1).next_power_of_two();
        let words = (0..counters / PER_WORD).map(|_| AtomicU64::new(0)).collect();
        Self { words, touched: AtomicU64::new(0) }
    }

    fn place(&self, block: u64) -> (&AtomicU64, u64) {
        // Fibonacci hashing: the highest bits are spread best.
        let hash = block.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let at = hash & (self.words.len() as u64 * PER_WORD - 1);
        (&self.words[(at / PER_WORD) as usize], at % PER_WORD * 2)
    }

    /// Counts a read of `block`; returns the count before it, 0 to 3.
    pub(super) fn touch(&self, block: u64) -> u64 {
        let (word, shift) = self.place(block);
        let old = word.load(Ordering::Relaxed);
        let before = old >> shift & 3;
        if before < 3 {
            // When two threads change a word at the same moment, one of their reads is not counted.
            let new = old + (1 << shift);
            let _ = word.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
        }
        if before == 0 && self.touched.fetch_add(1, Ordering::Relaxed) + 1 == self.most() {
            self.age();
        }
        before
    }

    fn most(&self) -> u64 {
        self.words.len() as u64 * PER_WORD / 2
    }

    fn age(&self) {
        for word in &self.words {
            let halved = word.load(Ordering::Relaxed) >> 1 & LOW;
            word.store(halved, Ordering::Relaxed);
        }
        self.touched.store(0, Ordering::Relaxed);
    }

    /// Whether a block was read since the last call, or often before. Halves its counter.
    pub(super) fn cool(&self, block: u64) -> bool {
        let (word, shift) = self.place(block);
        let old = word.load(Ordering::Relaxed);
        let before = old >> shift & 3;
        let new = old & !(3 << shift) | (before >> 1) << shift;
        let _ = word.compare_exchange(old, new, Ordering::Relaxed, Ordering::Relaxed);
        before > 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_read_again_is_told_from_what_is_not() {
        let frequency = FrequencySketch::new(1000);
        let again = (0..1000).filter(|block| frequency.touch(*block) > 0).count();
        assert!(again < 50, "{again} share a counter");
        assert!((0..1000).all(|block| frequency.touch(block) > 0));
    }

    #[test]
    fn what_was_hot_is_forgotten() {
        let frequency = FrequencySketch::new(1);
        for _ in 0..5 {
            frequency.touch(7);
        }
        assert_eq!(frequency.touch(7), 3);
        assert!(frequency.cool(7) && frequency.cool(7) && !frequency.cool(7));
        frequency.touch(7);
        for block in 100..200_000 {
            frequency.touch(block);
        }
        assert!(
            (0..64).any(|block| frequency.touch(block) == 0),
            "all counters are halved in time"
        );
    }
}

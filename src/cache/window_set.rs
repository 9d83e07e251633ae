//! Which blocks of a request are meant, as bits.

use super::shard;
use std::ops::Range;

/// Blocks of a request that are looked up together, before any of them is read: 4 MiB.
pub const WINDOW: usize = 1024;

/// A set of blocks of a window.
#[derive(Default)]
pub struct Set([u64; WINDOW / 64 + 1]);

impl Set {
    /// Whether it has the block at `at`.
    pub fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    /// Adds the blocks whose bits are set in `bits`, of up to 64 from `at` on.
    pub fn add(&mut self, at: usize, bits: u64) {
        self.0[at / 64] |= bits << (at % 64);
        if !at.is_multiple_of(64) {
            self.0[at / 64 + 1] |= bits >> (64 - at % 64);
        }
    }

    /// Which of up to 64 blocks from `at` on are in the set, as bits.
    pub fn bits(&self, at: usize, count: u64) -> u64 {
        let low = self.0[at / 64] >> (at % 64);
        let high = if at.is_multiple_of(64) { 0 } else { self.0[at / 64 + 1] << (64 - at % 64) };
        (low | high) & shard::all(count)
    }

    /// The number of blocks.
    pub fn len(&self) -> u64 {
        self.0.iter().map(|word| u64::from(word.count_ones())).sum()
    }

    /// The next run from `from` on, of a window of `end` blocks, with holes of at most `hole`.
    pub fn run(&self, from: usize, end: usize, hole: usize) -> Option<Range<usize>> {
        let start = (from..end).find(|at| self.has(*at))?;
        let mut run = start..start + 1;
        for at in start + 1..end {
            if self.has(at) {
                run.end = at + 1;
            } else if at - run.end >= hole {
                break;
            }
        }
        Some(run)
    }
}

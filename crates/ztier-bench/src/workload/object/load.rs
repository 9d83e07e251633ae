//! Writes of 4 KiB blocks over NBD, a batch at a time, at a steady rate or as fast as they go.

use super::BLOCK;
use crate::data::{Pool, Rng};
use crate::rival::nbd::Client;
use crate::sys::interrupt;
use std::time::{Duration, Instant};
use ztier::BLOCK_SIZE;
use ztier::error::Result;

/// Writes in flight.
pub const BATCH: usize = 32;
/// Odd, so that a multiple of it is a permutation of the numbers below a power of two.
const SCATTER: u64 = 0x9e37_79b1;

/// The `n`th of `blocks` in scattered order; `blocks` is a power of two.
pub fn scattered(n: u64, blocks: u64) -> u64 {
    debug_assert!(blocks.is_power_of_two());
    n.wrapping_mul(SCATTER) & (blocks - 1)
}

/// A block of a load in which a fifth of the blocks gets four fifths of the writes.
pub fn skewed(rng: &mut Rng, blocks: u64) -> u64 {
    let hot = blocks / 5;
    let n = if rng.below(10) < 8 { rng.below(hot) } else { hot + rng.below(blocks - hot) };
    scattered(n, blocks)
}

/// Bytes a second, kept over the whole time.
pub struct Pace {
    begun: Instant,
    bytes: u64,
    rate: f64,
}

impl Pace {
    /// Begins now.
    pub fn new(rate: f64) -> Self {
        Self { begun: Instant::now(), bytes: 0, rate }
    }

    /// Waits until `bytes` more are due.
    ///
    /// # Errors
    /// Interrupted.
    pub fn keep(&mut self, bytes: u64) -> Result<()> {
        self.bytes += bytes;
        let due = Duration::from_secs_f64(self.bytes as f64 / self.rate);
        interrupt::sleep(due.saturating_sub(self.begun.elapsed()))
    }
}

/// Writes each of `blocks` once, in scattered order, with generation 0, and flushes.
///
/// # Errors
/// The volume fails; interrupted.
pub fn fill(client: &mut Client, pool: &mut Pool, blocks: u64) -> Result<()> {
    let mut batch = Vec::with_capacity(BATCH);
    for first in (0..blocks).step_by(BATCH) {
        interrupt::check()?;
        batch.clear();
        batch.extend((first..blocks.min(first + BATCH as u64)).map(|n| scattered(n, blocks)));
        write(client, pool, &batch, 0)?;
    }
    client.flush()
}

/// Writes blocks of a generation, all at once.
///
/// # Errors
/// The volume fails.
pub fn write(client: &mut Client, pool: &mut Pool, blocks: &[u64], generation: u32) -> Result<()> {
    client.write_blocks(blocks, |n, data| {
        data.copy_from_slice(pool.record(blocks[n] * BLOCK, generation, BLOCK_SIZE));
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scattered_blocks_are_all_blocks_once() {
        let blocks = 1 << 12;
        let mut all: Vec<u64> = (0..blocks).map(|n| scattered(n, blocks)).collect();
        let near = all.windows(2).filter(|two| two[0].abs_diff(two[1]) < 16).count();
        assert!(near < 64, "{near}");
        all.sort_unstable();
        assert!(all.iter().copied().eq(0..blocks));
    }

    #[test]
    fn a_fifth_gets_four_fifths() {
        let (mut rng, blocks) = (Rng::new(1), 1 << 10);
        let mut counts = vec![0_u32; blocks as usize];
        for _ in 0..100_000 {
            counts[skewed(&mut rng, blocks) as usize] += 1;
        }
        counts.sort_unstable_by(|a, b| b.cmp(a));
        let hot: u32 = counts[..blocks as usize / 5].iter().sum();
        assert!((79_000..83_000).contains(&hot), "{hot}");
    }

    #[test]
    fn a_pace_is_kept() {
        let mut pace = Pace::new(1e6);
        (0..5).try_for_each(|_| pace.keep(10_000)).expect("not interrupted");
        assert!(pace.begun.elapsed() >= Duration::from_millis(50));
    }
}

//! Synthetic blocks: random bytes between copies of recent bytes.
//!
//! A block consists of pieces of varying length; a share of each piece is new (random), the rest
//! repeats an earlier part of the block. Compressing samples yields the share, so that LZ4's
//! overhead is part of the ratio.

use super::{Rng, compressed_len};
use ztier::BLOCK_SIZE;

/// Fills whole blocks that all compress about `ratio`:1.
pub fn fill_uniform(bytes: &mut [u8], ratio: f64, seed: u64) {
    let share = share_for(BLOCK_SIZE as f64 / ratio, seed);
    let mut rng = Rng::new(seed);
    for block in bytes.chunks_exact_mut(BLOCK_SIZE) {
        fill_block(block, share, &mut rng);
    }
}

/// Fills whole blocks with compressed lengths spread evenly around 4096 ÷ `ratio`, as widely as a
/// block allows (from about a fiftieth to the whole).
pub fn fill_mixed(bytes: &mut [u8], ratio: f64, seed: u64) {
    const STEPS: u32 = 64;
    let mean = BLOCK_SIZE as f64 / ratio;
    let half = (mean - 80.0).min(BLOCK_SIZE as f64 - mean);
    let shares: Vec<f64> = (0..STEPS)
        .map(|i| mean - half + 2.0 * half * (f64::from(i) + 0.5) / f64::from(STEPS))
        .map(|len| share_for(len, seed))
        .collect();
    let mut rng = Rng::new(seed);
    for block in bytes.chunks_exact_mut(BLOCK_SIZE) {
        let share = shares[rng.below(STEPS.into()) as usize];
        fill_block(block, share, &mut rng);
    }
}

/// Fills whole blocks with random bytes at the front and zeros behind them.
pub fn fill_runs(bytes: &mut [u8], ratio: f64, seed: u64) {
    // Bytes that LZ4 needs for the run of zeros.
    const RUN: f64 = 16.0;
    let random = (BLOCK_SIZE as f64 / ratio - RUN) as usize;
    let mut rng = Rng::new(seed);
    for block in bytes.chunks_exact_mut(BLOCK_SIZE) {
        rng.fill(&mut block[..random]);
        block[random..].fill(0);
    }
}

/// The share of new bytes with which blocks compress to `len` bytes, by bisection.
fn share_for(len: f64, seed: u64) -> f64 {
    const SAMPLES: usize = 24;
    let mean = |share: f64| {
        let mut rng = Rng::new(seed ^ 0x5a5a);
        let mut block = [0u8; BLOCK_SIZE];
        let total: usize = (0..SAMPLES)
            .map(|_| {
                fill_block(&mut block, share, &mut rng);
                // In place of the stamp that a pool writes here later.
                rng.fill(&mut block[..8]);
                compressed_len(&block)
            })
            .sum();
        total as f64 / SAMPLES as f64
    };
    let (mut low, mut high) = (0.0, 1.0);
    for _ in 0..12 {
        let middle = f64::midpoint(low, high);
        if mean(middle) < len {
            low = middle;
        } else {
            high = middle;
        }
    }
    f64::midpoint(low, high)
}

fn fill_block(block: &mut [u8], share: f64, rng: &mut Rng) {
    // Random bytes at the block's beginning, for the first copies.
    rng.fill(&mut block[..16]);
    let mut at = 16;
    // Carries fractions of bytes over, so that small shares are met, too.
    let mut owed = 0.0;
    while at < block.len() {
        let piece = (48 + rng.below(208) as usize).min(block.len() - at);
        owed += share * piece as f64;
        let fresh = (owed as usize).min(piece);
        owed -= fresh as f64;
        rng.fill(&mut block[at..at + fresh]);
        at += fresh;
        let copied = piece - fresh;
        let back = 1 + rng.below(at.min(1024) as u64 - 1) as usize;
        for i in at..at + copied {
            block[i] = block[i - back];
        }
        at += copied;
    }
}

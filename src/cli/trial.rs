//! How blocks that are shown compress, and how far that holds for those that were not shown.
//!
//! Invariant: what a trial counts depends only on the blocks, not on their order.

use crate::BLOCK_SIZE;
use crate::codec::{Codec, Encoded};
use crate::device::Algorithm;
use crate::ram::store::format::HEADER;

/// Bytes of index that every block takes.
const INDEX_ENTRY: u64 = 8;
/// The least and the most bytes that a block takes.
const LEAST: f64 = INDEX_ENTRY as f64;
const MOST: f64 = (INDEX_ENTRY as usize + HEADER + BLOCK_SIZE) as f64;
/// Standard errors on both sides of a mean within which the true one is, 95 times of 100.
const CONFIDENT: f64 = 1.96;
/// Of blocks of a kind that none of `n` shown ones has, there may be this part in `n`, 95 times of
/// 100.
const UNSEEN: f64 = 3.0;

/// How one algorithm compresses the blocks that it is shown.
pub struct Trial {
    codec: Codec,
    out: Box<[u8; BLOCK_SIZE]>,
    /// Blocks shown.
    pub blocks: u64,
    /// Same-filled blocks, which need no record.
    pub same: u64,
    /// Blocks stored uncompressed.
    pub raw: u64,
    /// Bytes of memory: records with their headers, and index entries.
    pub memory: u64,
    /// The sum of the squares of each block's bytes.
    squares: f64,
}

/// A ratio of data to the memory that it takes, and the range in which it is, 95 times of 100.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Ratio {
    /// By the sample.
    pub measured: f64,
    /// The least that is likely.
    pub low: f64,
    /// The most that is likely.
    pub high: f64,
}

impl Trial {
    /// A trial of `algorithm`.
    pub fn new(algorithm: Algorithm) -> Self {
        Self {
            codec: Codec::new(algorithm),
            out: Box::new([0; BLOCK_SIZE]),
            blocks: 0,
            same: 0,
            raw: 0,
            memory: 0,
            squares: 0.0,
        }
    }

    /// Compresses a block, and counts the result.
    pub fn show(&mut self, block: &[u8; BLOCK_SIZE]) {
        let mut bytes = INDEX_ENTRY;
        match self.codec.encode(block, &mut self.out[..]) {
            Encoded::Same(_) => self.same += 1,
            Encoded::Payload(payload, _) => {
                self.raw += u64::from(payload == BLOCK_SIZE);
                bytes += (HEADER + payload) as u64;
            }
        }
        self.blocks += 1;
        self.memory += bytes;
        self.squares += (bytes * bytes) as f64;
    }

    /// The ratio of `all` blocks, of which those shown are an even sample; at least one was shown.
    pub fn ratio(&self, all: u64) -> Ratio {
        let shown = self.blocks as f64;
        let mean = self.memory as f64 / shown;
        let variance = (self.squares / shown - mean * mean).max(0.0);
        let unshown = all.saturating_sub(self.blocks) as f64 / all.max(1) as f64;
        let by_spread = CONFIDENT * (variance / shown).sqrt();
        let error = by_spread.max(UNSEEN / shown * MOST) * unshown.sqrt();
        let of = |bytes: f64| BLOCK_SIZE as f64 / bytes.clamp(LEAST, MOST);
        Ratio { measured: of(mean), low: of(mean + error), high: of(mean - error) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::sampler::scatter;

    fn noise() -> [u8; BLOCK_SIZE] {
        let mut noise = [0u8; BLOCK_SIZE];
        for (n, word) in noise.chunks_exact_mut(8).enumerate() {
            word.copy_from_slice(&scatter(n as u64).to_le_bytes());
        }
        noise
    }

    fn half() -> [u8; BLOCK_SIZE] {
        let mut half = noise();
        half[BLOCK_SIZE / 2..].fill(7);
        half
    }

    #[test]
    fn what_blocks_become() {
        let mut trial = Trial::new(Algorithm::Lz4);
        for block in [&[0; BLOCK_SIZE], &[9; BLOCK_SIZE], &noise(), &half()] {
            trial.show(block);
        }
        assert_eq!((trial.blocks, trial.same, trial.raw), (4, 2, 1));
        let least = 4 * 8 + 2 * 6 + 4096 + 2048;
        assert!((least..least + 100).contains(&trial.memory), "{}", trial.memory);
    }

    /// Samples of blocks of which a known part is noise: the range has the true ratio nearly
    /// always, is narrower with more blocks, and has no width when all were shown.
    #[test]
    fn the_range_has_the_true_ratio() {
        let (noise, half) = (noise(), half());
        let all = 20_000;
        let is_noise = |n: u64| scatter(n).is_multiple_of(3);
        let ratio_of = |numbers: &mut dyn Iterator<Item = u64>| {
            let mut trial = Trial::new(Algorithm::Lz4);
            numbers.for_each(|n| trial.show(if is_noise(n) { &noise } else { &half }));
            trial.ratio(all)
        };
        let truth = ratio_of(&mut (0..all));
        assert_eq!((truth.low, truth.high), (truth.measured, truth.measured));
        let (mut missed, mut width) = (0, 0.0);
        for round in 0..100 {
            let few = ratio_of(&mut (0..200).map(|n| scatter(round * 1000 + n) % all));
            missed += usize::from(!(few.low..=few.high).contains(&truth.measured));
            width += (few.high - few.low) / 100.0;
        }
        assert!(missed <= 12, "{missed} of 100");
        let many = ratio_of(&mut (0..2000).map(|n| scatter(n) % all));
        assert!(many.high - many.low < width / 2.0, "{many:?}, {width}");
    }

    /// A few blocks of zeros do not show that there is nothing else.
    #[test]
    fn what_was_not_seen_counts() {
        let mut trial = Trial::new(Algorithm::Lz4);
        (0..30).for_each(|_| trial.show(&[0; BLOCK_SIZE]));
        assert_eq!(trial.ratio(30).low, 512.0);
        assert!(trial.ratio(1 << 20).low < 12.0);
    }
}

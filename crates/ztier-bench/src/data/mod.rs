//! Write data: blocks of known compressibility, the same in every run with the same seed.
//!
//! Invariants: the content of a block is a function of (pool, block number, generation). Its first
//! eight bytes name block and generation, so that a reader can tell a right block from a misplaced,
//! stale or damaged one. No block of a pool is one repeated word, which stores keep without
//! compressing it.

pub mod files;
mod lz4;
mod synth;

pub use lz4::compressed_len;

use crate::sys::map::AlignedBuf;
use std::fmt;
use std::str::FromStr;
use ztier::BLOCK_SIZE;
use ztier::error::{Error, Result};

/// Length of the longest record that a pool returns in one piece.
pub const RECORD_MAX: usize = 16 << 20;
/// Default bytes of distinct blocks in a pool: far beyond any processor cache.
pub const POOL_BYTES: usize = 48 << 20;
/// Blocks by which each generation rotates the pool (a prime).
const TURN: u64 = 2659;
/// Bits of the stamp that hold the block number; the generation is above them.
const BLOCK_BITS: u32 = 40;

/// A kind of data.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Kind {
    /// IOzone's: one word a page, the rest zeros. Compresses by more than 100:1.
    Iozone,
    /// All blocks compress about equally: LZ4 at 4 KiB reaches this ratio.
    Ratio(f64),
    /// Blocks compress between almost completely and not at all; this ratio in the mean.
    Mix(f64),
    /// As fio's compressible data: each block has random bytes, then zeros; this ratio.
    Runs(f64),
    /// Blocks of real files of the machine: programs, libraries, documentation.
    Files,
}

impl FromStr for Kind {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let ratio = |text: &str| {
            let number: f64 = text.strip_suffix(":1")?.parse().ok()?;
            (1.0..=20.0).contains(&number).then_some(number)
        };
        match text {
            "iozone" => Ok(Self::Iozone),
            "files" => Ok(Self::Files),
            _ => match text.split_once('-') {
                Some(("mix", rest)) => ratio(rest).filter(|&r| r <= 4.0).map(Self::Mix),
                Some(("runs", rest)) => ratio(rest).map(Self::Runs),
                _ => ratio(text).map(Self::Ratio),
            }
            .ok_or_else(|| {
                Error::usage(format!("unknown data {text:?}")).hint(
                    "give iozone, files, N:1 or runs-N:1 with N from 1 to 20, or mix-N:1 with N up to 4",
                )
            }),
        }
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Iozone => f.write_str("iozone"),
            Self::Ratio(r) => write!(f, "{r}:1"),
            Self::Mix(r) => write!(f, "mix-{r}:1"),
            Self::Runs(r) => write!(f, "runs-{r}:1"),
            Self::Files => f.write_str("files"),
        }
    }
}

/// The blocks from which all data of a workload is cut.
pub struct Pool {
    /// `distinct` blocks, then a copy of the first ones so that a record never wraps.
    bytes: AlignedBuf,
    distinct: u64,
    /// The kind of data.
    pub kind: Kind,
    /// LZ4's ratio, block by block, with the stamps in place.
    pub ratio: f64,
}

impl Pool {
    /// Makes `bytes` of distinct blocks. A pool smaller than [`RECORD_MAX`] returns records of at
    /// most its own size.
    ///
    /// # Errors
    /// No memory; no readable files for [`Kind::Files`].
    pub fn build(kind: Kind, bytes: usize, seed: u64) -> Result<Self> {
        let distinct = bytes / BLOCK_SIZE;
        let most = RECORD_MAX.min(distinct * BLOCK_SIZE);
        let mut buf = AlignedBuf::new(distinct * BLOCK_SIZE + most)?;
        let (body, tail) = buf.split_at_mut(distinct * BLOCK_SIZE);
        match kind {
            // Touches every page now: later its memory would count as the workload's.
            Kind::Iozone => body.fill(0),
            Kind::Ratio(ratio) => synth::fill_uniform(body, ratio, seed),
            Kind::Mix(ratio) => synth::fill_mixed(body, ratio, seed),
            Kind::Runs(ratio) => synth::fill_runs(body, ratio, seed),
            Kind::Files => files::fill(body, seed)?,
        }
        tail.copy_from_slice(&body[..most]);
        let mut pool = Self { bytes: buf, distinct: distinct as u64, kind, ratio: 1.0 };
        pool.ratio = pool.measure();
        Ok(pool)
    }

    /// A copy for another thread (stamps are written in place).
    pub fn duplicate(&self) -> Result<Self> {
        Ok(Self { bytes: self.bytes.duplicate()?, ..*self })
    }

    /// Locks the pool in memory.
    ///
    /// # Errors
    /// The pool is larger than this process may lock.
    pub fn lock(&self) -> Result<()> {
        self.bytes.lock()
    }

    /// The data for `len` bytes from `offset` on (both multiples of 4096, `len` ≤ [`RECORD_MAX`]).
    pub fn record(&mut self, offset: u64, generation: u32, len: usize) -> &[u8] {
        let block = offset / BLOCK_SIZE as u64;
        let at = self.place(block, generation);
        let record = &mut self.bytes[at..at + len];
        for (number, bytes) in (block..).zip(record.chunks_exact_mut(BLOCK_SIZE)) {
            bytes[..8].copy_from_slice(&stamp(number, generation).to_le_bytes());
        }
        record
    }

    /// Whether `data`, read from `offset`, equals [`Pool::record`] of the same place, byte for
    /// byte.
    pub fn matches(&mut self, offset: u64, generation: u32, data: &[u8]) -> bool {
        self.record(offset, generation, data.len()) == data
    }

    /// The mean length of a block after LZ4, in bytes; an incompressible block counts whole.
    pub fn mean_compressed(&self) -> f64 {
        BLOCK_SIZE as f64 / self.ratio
    }

    fn place(&self, block: u64, generation: u32) -> usize {
        let turned = block + u64::from(generation) * TURN;
        usize::try_from(turned % self.distinct).unwrap_or(0) * BLOCK_SIZE
    }

    /// Compresses at most 2048 blocks, evenly spread.
    fn measure(&mut self) -> f64 {
        let step = (self.distinct / 2048).max(1);
        let (mut blocks, mut bytes) = (0usize, 0usize);
        for block in (0..self.distinct).step_by(usize::try_from(step).unwrap_or(1)) {
            bytes += compressed_len(self.record(block * BLOCK_SIZE as u64, 0, BLOCK_SIZE));
            blocks += 1;
        }
        (blocks * BLOCK_SIZE) as f64 / bytes.max(1) as f64
    }
}

impl fmt::Display for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let what = match self.kind {
            Kind::Iozone => "IOzone's own pattern, one word a page and zeros".to_owned(),
            Kind::Ratio(r) => format!("synthetic blocks made for {r}:1"),
            Kind::Mix(r) => format!("synthetic blocks of varying size made for {r}:1 in the mean"),
            Kind::Runs(r) => format!("blocks of random bytes, then zeros, made for {r}:1"),
            Kind::Files => "blocks of real files (/usr/bin, /usr/lib, /usr/share)".to_owned(),
        };
        write!(f, "{what}; LZ4 at 4 KiB shrinks it {:.2}:1", self.ratio)
    }
}

/// The word at the start of a block. Generation 0 of block 0 is not zero either.
fn stamp(block: u64, generation: u32) -> u64 {
    ((u64::from(generation) << BLOCK_BITS) | block) ^ 0x9e37_79b9_7f4a_7c15
}

/// The block and generation in a block's stamp.
pub fn claim(block: &[u8]) -> Option<(u64, u32)> {
    let word = u64::from_le_bytes(block.get(..8)?.try_into().ok()?) ^ 0x9e37_79b9_7f4a_7c15;
    let generation = u32::try_from(word >> BLOCK_BITS).ok()?;
    Some((word & ((1 << BLOCK_BITS) - 1), generation))
}

/// Checks the stamps of a record that was read from `offset`: cheap enough for timed regions.
///
/// # Errors
/// Names the first block that is not the requested one.
pub fn check_stamps(offset: u64, generation: u32, data: &[u8]) -> Result<()> {
    let first = offset / BLOCK_SIZE as u64;
    for (block, bytes) in (first..).zip(data.chunks_exact(BLOCK_SIZE)) {
        if claim(bytes) != Some((block, generation)) {
            let found = claim(bytes);
            return Err(Error::failure(format!(
                "block {block} should hold generation {generation}, but reads as {found:?}"
            )));
        }
    }
    Ok(())
}

/// A small, fast generator of random numbers (xorshift64*): the same numbers for the same seed.
#[derive(Clone, Debug)]
pub struct Rng(u64);

impl Rng {
    /// Starts from any seed.
    pub fn new(seed: u64) -> Self {
        // SplitMix64's finaliser: similar seeds must not give similar streams.
        let mut z = seed.wrapping_add(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        Self((z ^ (z >> 31)) | 1)
    }

    /// The next 64 bits.
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// A number below `bound` (> 0).
    pub fn below(&mut self, bound: u64) -> u64 {
        // Multiply-shift: the bias at these bounds is far below what any figure shows.
        ((u128::from(self.next()) * u128::from(bound)) >> 64) as u64
    }

    /// Fills a slice.
    pub fn fill(&mut self, bytes: &mut [u8]) {
        for chunk in bytes.chunks_mut(8) {
            chunk.copy_from_slice(&self.next().to_le_bytes()[..chunk.len()]);
        }
    }

    /// Puts a slice into random order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for i in (1..items.len()).rev() {
            let j = usize::try_from(self.below(i as u64 + 1)).unwrap_or(0);
            items.swap(i, j);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn ratios_come_out_as_asked_and_no_block_is_one_word() {
        for text in ["2:1", "1.3:1", "4:1", "mix-2:1", "mix-3:1", "runs-2:1", "runs-3:1"] {
            let kind: Kind = text.parse().unwrap();
            let mut pool = Pool::build(kind, RECORD_MAX, 7).unwrap();
            let (Kind::Ratio(asked) | Kind::Mix(asked) | Kind::Runs(asked)) = kind else {
                unreachable!()
            };
            assert!((pool.ratio / asked - 1.0).abs() < 0.06, "{text}: {}", pool.ratio);
            for block in 0..256 {
                let data = pool.record(block * 4096, 0, 4096).to_vec();
                assert!(data[8..].chunks_exact(8).any(|w| w != &data[8..16]), "{text} {block}");
            }
        }
    }

    #[test]
    fn mixed_blocks_differ_in_size_and_change_it_with_the_generation() {
        let mut pool = Pool::build(Kind::Mix(2.0), RECORD_MAX, 7).unwrap();
        let sizes: Vec<usize> =
            (0..512).map(|b| compressed_len(pool.record(b * 4096, 0, 4096))).collect();
        assert!(*sizes.iter().min().unwrap() < 1000 && *sizes.iter().max().unwrap() > 3000);
        let later: Vec<usize> =
            (0..512).map(|b| compressed_len(pool.record(b * 4096, 1, 4096))).collect();
        assert!(sizes.iter().zip(&later).filter(|(a, b)| a.abs_diff(**b) > 100).count() > 256);
    }

    #[test]
    fn iozone_pattern_shrinks_more_than_a_hundred_times() {
        let pool = Pool::build(Kind::Iozone, RECORD_MAX, 1).unwrap();
        assert!(pool.ratio > 100.0, "{}", pool.ratio);
    }

    #[test]
    fn files_of_the_machine_are_neither_empty_nor_random() {
        let pool = Pool::build(Kind::Files, RECORD_MAX, 1).unwrap();
        assert!((1.05..10.0).contains(&pool.ratio), "{}", pool.ratio);
    }

    #[test]
    fn the_same_seed_gives_the_same_data_and_another_does_not() {
        let record = |seed| {
            let mut pool = Pool::build(Kind::Ratio(2.0), RECORD_MAX, seed).unwrap();
            pool.record(40960, 3, 65536).to_vec()
        };
        assert_eq!(record(1), record(1));
        assert_ne!(record(1)[8..], record(2)[8..]);
    }

    #[test]
    fn a_damaged_a_stale_and_a_misplaced_block_are_found() {
        let mut pool = Pool::build(Kind::Ratio(2.0), RECORD_MAX, 1).unwrap();
        // The last record reaches beyond the end of the distinct blocks.
        let offset = RECORD_MAX as u64 - 8192;
        let mut data = pool.record(offset, 0, 65536).to_vec();
        check_stamps(offset, 0, &data).unwrap();
        assert!(pool.matches(offset, 0, &data));
        assert!(check_stamps(offset, 1, &data).is_err());
        assert!(check_stamps(offset + 4096, 0, &data).is_err());
        data[5000] ^= 1;
        assert!(!pool.matches(offset, 0, &data));
        assert!(check_stamps(0, 0, &[0; 4096]).is_err());
    }

    #[test]
    fn data_kinds_read_back_as_they_print() {
        for text in ["iozone", "files", "1:1", "2:1", "1.5:1", "mix-2:1", "runs-2:1"] {
            assert_eq!(text.parse::<Kind>().unwrap().to_string(), text);
        }
        for text in ["", "2", "0:1", "mix-9:1", "runs-", "zeros"] {
            assert!(text.parse::<Kind>().is_err(), "{text}");
        }
    }
}

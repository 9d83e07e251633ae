//! Observations while a load runs: swap in use, memory of the compressed pages.

use super::swap::SwapOn;
use super::system::Contender;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One sample.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Time since the first sample.
    pub at: Duration,
    /// Bytes of swap in use.
    pub swap: u64,
    /// Bytes of memory of the compressed pages, where that is cheap to read.
    pub memory: Option<u64>,
}

/// Samples every `each` until the load has ended.
pub fn watch(
    contender: &Contender,
    swap: &SwapOn,
    each: Duration,
    ended: &AtomicBool,
) -> Vec<Sample> {
    let begun = Instant::now();
    let mut samples = Vec::new();
    while !ended.load(Ordering::Relaxed) {
        let at = begun.elapsed();
        if let Some(swap) = swap.used() {
            samples.push(Sample { at, swap, memory: contender.memory() });
        }
        std::thread::park_timeout(each);
    }
    samples
}

/// Swap in use, in bytes: minimum, mean, maximum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// Minimum.
    pub least: f64,
    /// The mean.
    pub mean: f64,
    /// Maximum.
    pub most: f64,
}

/// The range in the last `time`: during the passes, without the fill before them.
pub fn range(samples: &[Sample], time: Duration) -> Option<Range> {
    let from = samples.last()?.at.saturating_sub(time);
    let late: Vec<f64> = samples.iter().filter(|s| s.at >= from).map(|s| s.swap as f64).collect();
    Some(Range {
        least: late.iter().copied().reduce(f64::min)?,
        mean: late.iter().sum::<f64>() / late.len() as f64,
        most: late.iter().copied().reduce(f64::max)?,
    })
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn filling_does_not_count() {
        let sample = |s, swap| Sample { at: Duration::from_secs(s), swap, memory: None };
        let samples = [sample(0, 0), sample(1, 50), sample(2, 100), sample(3, 80), sample(4, 90)];
        let found = range(&samples, Duration::from_secs(2)).unwrap();
        assert_eq!(found, Range { least: 80.0, mean: 90.0, most: 100.0 });
        assert_eq!(range(&samples, Duration::from_secs(9)).unwrap().least, 0.0);
        assert_eq!(range(&[], Duration::from_secs(1)), None);
    }
}

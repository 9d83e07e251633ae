//! What happens while a load runs: swap in use, memory of the compressed pages.

use super::swap::SwapOn;
use super::system::Contender;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// One look.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Sample {
    /// Since the first.
    pub at: Duration,
    /// Bytes of swap in use.
    pub swap: u64,
    /// Bytes of memory that the compressed pages take, where that costs nothing to ask.
    pub memory: Option<u64>,
}

/// Looks every `each` until it is told that the load has ended.
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

/// Swap in use, in bytes: least, mean, most.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Range {
    /// The least.
    pub least: f64,
    /// The mean.
    pub mean: f64,
    /// The most.
    pub most: f64,
}

/// Of the last `time` that was watched: while passes ran, without the filling before them.
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

//! Latency histograms that one thread fills and others read: buckets with a relative width of 1/8.
//!
//! The layout is that of HdrHistogram (Tene) with one significant octal digit: values below 8 have
//! a bucket each, every later octave has eight. `hdrhistogram`'s own recorder needs a lock or a
//! queue between the writer and its readers; here a counter that its one writer adds to is enough.

use super::{Distribution, Latency};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Octaves after the first: up to 2^37 ns, over two minutes.
const OCTAVES: usize = 34;
const BUCKETS: usize = 8 + OCTAVES * 8;

/// One distribution, written by one thread.
#[derive(Debug)]
pub struct Histogram {
    buckets: [AtomicU64; BUCKETS],
    sum_ns: AtomicU64,
    max_ns: AtomicU64,
}

/// Distributions added up.
#[derive(Clone, Debug)]
pub struct Sum {
    buckets: [u64; BUCKETS],
    sum_ns: u64,
    max_ns: u64,
}

impl Default for Histogram {
    fn default() -> Self {
        let zero = || AtomicU64::new(0);
        Self { buckets: std::array::from_fn(|_| zero()), sum_ns: zero(), max_ns: zero() }
    }
}

impl Default for Sum {
    fn default() -> Self {
        Self { buckets: [0; BUCKETS], sum_ns: 0, max_ns: 0 }
    }
}

fn bucket(ns: u64) -> usize {
    if ns < 8 {
        return ns as usize;
    }
    let octave = ns.ilog2() as usize - 3;
    let step = (ns >> octave) as usize & 7;
    (8 + octave * 8 + step).min(BUCKETS - 1)
}

/// The largest value of a bucket.
fn upper(bucket: usize) -> u64 {
    if bucket < 8 {
        return bucket as u64;
    }
    let (octave, step) = ((bucket - 8) / 8, (bucket - 8) % 8);
    ((8 + step as u64 + 1) << octave) - 1
}

impl Histogram {
    /// Records one value. Only the histogram's own thread calls this.
    pub fn record(&self, took: Duration) {
        let ns = u64::try_from(took.as_nanos()).unwrap_or(u64::MAX);
        let add = |to: &AtomicU64, n: u64| {
            to.store(to.load(Ordering::Relaxed).saturating_add(n), Ordering::Relaxed);
        };
        add(&self.buckets[bucket(ns)], 1);
        add(&self.sum_ns, ns);
        if ns > self.max_ns.load(Ordering::Relaxed) {
            self.max_ns.store(ns, Ordering::Relaxed);
        }
    }

    /// Mean, percentiles, maximum of this one.
    pub fn latency(&self) -> Latency {
        let mut sum = Sum::default();
        sum.add(self);
        sum.latency()
    }
}

impl Sum {
    /// Adds a thread's distribution.
    pub fn add(&mut self, other: &Histogram) {
        for (to, from) in self.buckets.iter_mut().zip(&other.buckets) {
            *to += from.load(Ordering::Relaxed);
        }
        self.sum_ns = self.sum_ns.saturating_add(other.sum_ns.load(Ordering::Relaxed));
        self.max_ns = self.max_ns.max(other.max_ns.load(Ordering::Relaxed));
    }

    /// Mean, percentiles, maximum.
    pub fn latency(&self) -> Latency {
        let count: u64 = self.buckets.iter().sum();
        if count == 0 {
            return Latency::default();
        }
        let at = |permille: u64| {
            let rank = (count * permille).div_ceil(1000).max(1);
            let mut seen = 0;
            let found = self.buckets.iter().position(|n| {
                seen += n;
                seen >= rank
            });
            upper(found.unwrap_or(BUCKETS - 1)).min(self.max_ns)
        };
        Latency {
            count,
            sum_ns: self.sum_ns,
            mean_ns: self.sum_ns / count,
            p50_ns: at(500),
            p99_ns: at(990),
            p999_ns: at(999),
            max_ns: self.max_ns,
        }
    }

    /// Everything that was counted.
    pub fn distribution(&self) -> Distribution {
        let all = self.buckets.iter().enumerate().filter(|(_, count)| **count > 0);
        let buckets = all.map(|(at, count)| (upper(at), *count)).collect();
        Distribution { sum_ns: self.sum_ns, buckets }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_in_order_and_narrow() {
        let mut last = 0;
        for ns in 0..1_000_000u64 {
            let b = bucket(ns);
            assert!(b >= last && upper(b) >= ns, "{ns}");
            assert!(upper(b) - ns <= ns / 8, "{ns}");
            last = b;
        }
        assert_eq!(bucket(u64::MAX), BUCKETS - 1);
    }

    #[test]
    fn percentiles_are_where_they_should_be() {
        let histogram = Histogram::default();
        for ns in 1..=1000 {
            histogram.record(Duration::from_nanos(ns));
        }
        let mut sum = Sum::default();
        sum.add(&histogram);
        let latency = sum.latency();
        assert_eq!((latency.count, latency.mean_ns, latency.max_ns), (1000, 500, 1000));
        assert!((500..=570).contains(&latency.p50_ns), "{latency:?}");
        assert!((990..=1000).contains(&latency.p99_ns), "{latency:?}");
        assert_eq!(Sum::default().latency(), Latency::default());
        let all = sum.distribution();
        assert_eq!((all.count(), all.sum_ns), (1000, 500_500));
        assert!(all.buckets.is_sorted_by(|a, b| a.0 < b.0 && a.1 > 0), "{all:?}");
        assert_eq!(all.percentile(500), Some(latency.p50_ns));
        // Buckets end where powers of two begin, which other programs' buckets rely on.
        assert!(
            (3..40)
                .all(|power| (0..BUCKETS).any(|b| upper(b) == (1 << power) - 1) == (power <= 37))
        );
    }
}

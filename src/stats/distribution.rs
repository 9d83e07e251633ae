//! Latencies as they go to other processes: a count for every length. Histograms of other programs,
//! and percentiles of the time between two looks, are made from them.
//!
//! Invariant: bounds ascend, and no bucket is empty, so that two distributions of one histogram can
//! be subtracted, whatever was counted between.

use serde::{Deserialize, Serialize};

/// How many latencies ended in each bucket of a histogram.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Distribution {
    /// The sum of all latencies, in nanoseconds.
    pub sum_ns: u64,
    /// The largest value of a bucket, in nanoseconds, and how many it has.
    pub buckets: Vec<(u64, u64)>,
}

/// How long requests of one kind took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    /// See [`super::Requests::waiting`].
    pub waiting: Distribution,
    /// See [`super::Requests::serving`].
    pub serving: Distribution,
}

/// How long requests of every kind took.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Latencies {
    /// Read requests.
    pub read: Spent,
    /// Write requests.
    pub write: Spent,
    /// Flush requests.
    pub flush: Spent,
    /// Discard requests.
    pub discard: Spent,
    /// Write-zeroes requests.
    pub write_zeroes: Spent,
}

impl Latencies {
    /// All kinds by their names.
    pub fn kinds(&self) -> [(&'static str, &Spent); 5] {
        [
            ("read", &self.read),
            ("write", &self.write),
            ("flush", &self.flush),
            ("discard", &self.discard),
            ("write_zeroes", &self.write_zeroes),
        ]
    }
}

impl Distribution {
    /// The number of latencies.
    pub fn count(&self) -> u64 {
        self.buckets.iter().map(|(_, count)| count).sum()
    }

    /// The latencies since `before`, an earlier state of the same histogram; `None` if it has begun
    /// anew.
    #[must_use]
    pub fn since(&self, before: &Self) -> Option<Self> {
        let mut then = before.buckets.iter().copied().peekable();
        let mut buckets = Vec::new();
        for &(bound, count) in &self.buckets {
            let old = match then.next_if(|(old, _)| *old <= bound) {
                Some((old, n)) if old == bound => n,
                Some(_) => return None, // a bucket that had something is gone
                None => 0,
            };
            match count.checked_sub(old)? {
                0 => {}
                new => buckets.push((bound, new)),
            }
        }
        let sum_ns = self.sum_ns.checked_sub(before.sum_ns)?;
        then.peek().is_none().then_some(Self { sum_ns, buckets })
    }

    /// The latency in nanoseconds that `permille` of 1000 did not exceed, to the width of a bucket;
    /// `None` without any.
    pub fn percentile(&self, permille: u64) -> Option<u64> {
        let rank = (self.count() * permille).div_ceil(1000).max(1);
        let mut seen = 0;
        let found = self.buckets.iter().find(|(_, count)| {
            seen += count;
            seen >= rank
        });
        found.map(|(bound, _)| *bound)
    }

    /// The sum of this distribution and another.
    #[must_use]
    pub fn with(&self, other: &Self) -> Self {
        let mut all = std::collections::BTreeMap::new();
        for &(bound, count) in self.buckets.iter().chain(&other.buckets) {
            *all.entry(bound).or_insert(0) += count;
        }
        Self { sum_ns: self.sum_ns + other.sum_ns, buckets: all.into_iter().collect() }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn of(sum_ns: u64, buckets: &[(u64, u64)]) -> Distribution {
        Distribution { sum_ns, buckets: buckets.to_vec() }
    }

    #[test]
    fn what_came_since_is_the_difference() {
        let before = of(100, &[(7, 2), (15, 1)]);
        let after = of(400, &[(7, 2), (9, 3), (15, 4), (31, 1)]);
        let since = after.since(&before).unwrap();
        assert_eq!(since, of(300, &[(9, 3), (15, 3), (31, 1)]));
        assert_eq!(since.percentile(500), Some(15));
        assert_eq!(since.percentile(10), Some(9));
        assert_eq!(since.percentile(990), Some(31));
        assert_eq!(after.since(&after).unwrap().percentile(500), None);
        assert_eq!(before.with(&since), after);
        // A restarted daemon.
        assert_eq!(before.since(&after), None);
        assert_eq!(of(0, &[]).since(&before), None);
        assert_eq!(of(200, &[(9, 3)]).since(&before), None);
        assert_eq!(of(200, &[(7, 1), (15, 9)]).since(&before), None);
    }
}

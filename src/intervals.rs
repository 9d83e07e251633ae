//! A set of whole numbers kept as disjoint, non-adjacent half-open ranges. Pure.

use std::collections::BTreeMap;
use std::ops::Range;

/// Estimated memory of one range, in bytes: two words in a B-tree node that is two thirds full on
/// average, and its share of the edges.
pub const BYTES_PER_RANGE: usize = 48;

/// The set. Each operation takes time logarithmic in the number of ranges, and linear in the number
/// of ranges that it touches.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Intervals {
    /// Start of each range to its end.
    ranges: BTreeMap<u64, u64>,
    total: u64,
}

impl Intervals {
    /// The number of ranges.
    pub fn ranges(&self) -> usize {
        self.ranges.len()
    }

    /// The number of numbers in the set.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Whether `n` is in the set.
    pub fn contains(&self, n: u64) -> bool {
        self.ranges.range(..=n).next_back().is_some_and(|(_, end)| n < *end)
    }

    /// Whether any number of `range` is in the set.
    pub fn meets(&self, range: &Range<u64>) -> bool {
        let last = self.ranges.range(..range.end).next_back();
        !range.is_empty() && last.is_some_and(|(_, end)| range.start < *end)
    }

    /// Whether all numbers of `range` are in the set.
    pub fn covers(&self, range: &Range<u64>) -> bool {
        let last = self.ranges.range(..=range.start).next_back();
        range.is_empty() || last.is_some_and(|(_, end)| range.end <= *end)
    }

    /// The ranges, ascending.
    pub fn iter(&self) -> impl Iterator<Item = Range<u64>> + '_ {
        self.ranges.iter().map(|(start, end)| *start..*end)
    }

    /// Removes and returns the first range, or its first `most` numbers if it is longer.
    pub fn take_first(&mut self, most: u64) -> Option<Range<u64>> {
        let (start, end) = self.ranges.pop_first()?;
        let to = end.min(start.saturating_add(most));
        if to < end {
            self.ranges.insert(to, end);
        }
        self.total -= to - start;
        Some(start..to)
    }

    /// Adds all numbers of `range`.
    pub fn insert(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        let Range { mut start, mut end } = range;
        // Merge every range that overlaps or touches the new one into it.
        while let Some((s, e)) = self.ranges.range(..=end).next_back().map(|(s, e)| (*s, *e)) {
            if e < start {
                break;
            }
            self.ranges.remove(&s);
            self.total -= e - s;
            start = start.min(s);
            end = end.max(e);
        }
        self.ranges.insert(start, end);
        self.total += end - start;
    }

    /// Removes all numbers of `range`.
    pub fn remove(&mut self, range: Range<u64>) {
        if range.is_empty() {
            return;
        }
        while let Some((s, e)) = self.ranges.range(..range.end).next_back().map(|(s, e)| (*s, *e)) {
            if e <= range.start {
                break;
            }
            self.ranges.remove(&s);
            self.total -= e - s;
            for part in [s..range.start.max(s), range.end.min(e)..e] {
                if !part.is_empty() {
                    self.total += part.end - part.start;
                    self.ranges.insert(part.start, part.end);
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 4 } else { 256 }))]
        #[test]
        fn it_is_a_set(
            steps in proptest::collection::vec((any::<bool>(), 0u64..60, 0u64..20), 0..60),
        ) {
            let (mut set, mut model) = (Intervals::default(), BTreeSet::new());
            for (add, start, len) in steps {
                if add {
                    set.insert(start..start + len);
                    model.extend(start..start + len);
                } else {
                    set.remove(start..start + len);
                    model.retain(|n| !(start..start + len).contains(n));
                }
                prop_assert_eq!(set.total(), model.len() as u64);
                for n in 0..90 {
                    prop_assert_eq!(set.contains(n), model.contains(&n));
                    let meets = model.range(n..n + len).next().is_some();
                    prop_assert_eq!(set.meets(&(n..n + len)), meets);
                    let covers = (n..n + len).all(|n| model.contains(&n));
                    prop_assert_eq!(set.covers(&(n..n + len)), covers);
                }
                let runs = model.iter().filter(|n| **n == 0 || !model.contains(&(**n - 1))).count();
                prop_assert_eq!(set.ranges(), runs);
            }
            let mut last = 0;
            while let Some(first) = set.take_first(7) {
                prop_assert!(first.start >= last && (1..=7).contains(&(first.end - first.start)));
                prop_assert!(first.clone().all(|n| model.remove(&n)));
                prop_assert_eq!(set.total(), model.len() as u64);
                last = first.end;
            }
            prop_assert!(model.is_empty());
        }
    }
}

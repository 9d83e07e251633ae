//! Policies that the product lacks, for comparison: LRU, SIEVE, random, and the optimum.

use super::Cache;
use super::lists::Lists;
use super::trace::{Kind, Replay};
use crate::data::Rng;
use std::collections::BTreeSet;

/// Evicts the block used longest ago.
pub struct Lru {
    list: Lists<1>,
    most: usize,
}

impl Lru {
    /// A cache of at most `most` blocks, for blocks below `blocks`.
    pub fn new(blocks: u32, most: usize) -> Self {
        Self { list: Lists::new(blocks), most }
    }
}

impl Cache for Lru {
    fn read(&mut self, block: u32) -> bool {
        let hit = self.list.of(block).is_some();
        self.write(block);
        hit
    }

    fn write(&mut self, block: u32) {
        self.list.take(block);
        if self.list.len(0) >= self.most {
            self.list.pop(0);
        }
        self.list.push(0, block);
    }

    fn discard(&mut self, block: u32) {
        self.list.take(block);
    }

    fn len(&self) -> usize {
        self.list.len(0)
    }

    fn has(&self, block: u32) -> bool {
        self.list.of(block).is_some()
    }
}

/// SIEVE (Zhang, Yang, Yue, Vigfusson, Rashmi, NSDI 2024): a queue, a bit for each block, and a
/// hand that moves from old to new and leaves spared blocks in place.
pub struct Sieve {
    list: Lists<1>,
    visited: Vec<bool>,
    hand: Option<u32>,
    most: usize,
}

impl Sieve {
    /// A cache of at most `most` blocks, for blocks below `blocks`.
    pub fn new(blocks: u32, most: usize) -> Self {
        Self { list: Lists::new(blocks), visited: vec![false; blocks as usize], hand: None, most }
    }

    fn evict(&mut self) {
        let Some(mut at) = self.hand.or_else(|| self.list.first(0)) else { return };
        while std::mem::take(&mut self.visited[at as usize]) {
            match self.list.after(at).or_else(|| self.list.first(0)) {
                Some(next) => at = next,
                None => return,
            }
        }
        self.hand = self.list.after(at);
        self.list.take(at);
    }
}

impl Cache for Sieve {
    fn read(&mut self, block: u32) -> bool {
        let hit = self.list.of(block).is_some();
        self.write(block);
        hit
    }

    fn write(&mut self, block: u32) {
        if self.list.of(block).is_some() {
            self.visited[block as usize] = true;
            return;
        }
        if self.list.len(0) >= self.most {
            self.evict();
        }
        self.visited[block as usize] = false;
        self.list.push(0, block);
    }

    fn discard(&mut self, block: u32) {
        if self.hand == Some(block) {
            self.hand = self.list.after(block);
        }
        self.list.take(block);
    }

    fn len(&self) -> usize {
        self.list.len(0)
    }

    fn has(&self, block: u32) -> bool {
        self.list.of(block).is_some()
    }
}

/// Evicts a random block.
pub struct Random {
    kept: Vec<u32>,
    /// Index of a block in `kept`; [`u32::MAX`]: not kept.
    at: Vec<u32>,
    most: usize,
    rng: Rng,
}

impl Random {
    /// A cache of at most `most` blocks, for blocks below `blocks`.
    pub fn new(blocks: u32, most: usize) -> Self {
        let rng = Rng::new(u64::from(blocks) << 32 | most as u64);
        Self { kept: Vec::new(), at: vec![u32::MAX; blocks as usize], most, rng }
    }
}

impl Cache for Random {
    fn read(&mut self, block: u32) -> bool {
        let hit = self.at[block as usize] != u32::MAX;
        self.write(block);
        hit
    }

    fn write(&mut self, block: u32) {
        if self.at[block as usize] != u32::MAX {
            return;
        }
        if self.kept.len() >= self.most {
            let victim = self.kept[self.rng.below(self.kept.len() as u64) as usize];
            self.discard(victim);
        }
        self.at[block as usize] = self.kept.len() as u32;
        self.kept.push(block);
    }

    fn discard(&mut self, block: u32) {
        let at = std::mem::replace(&mut self.at[block as usize], u32::MAX);
        if at != u32::MAX {
            self.kept.swap_remove(at as usize);
            if let Some(&moved) = self.kept.get(at as usize) {
                self.at[moved as usize] = at;
            }
        }
    }

    fn len(&self) -> usize {
        self.kept.len()
    }

    fn has(&self, block: u32) -> bool {
        self.at[block as usize] != u32::MAX
    }
}

/// For each access after which a cache can have the block (a read or write, or, if it is
/// `exclusive`, a drop), the next read of it, unless a write or discard comes first: only then is a
/// copy useful.
pub fn next_reads(replay: &Replay, exclusive: bool) -> Vec<Option<u32>> {
    let mut next: Vec<Option<u32>> = vec![None; replay.blocks as usize];
    let mut found = vec![None; replay.accesses.len()];
    for (i, access) in replay.accesses.iter().enumerate().rev() {
        let next = &mut next[access.block() as usize];
        found[i] = next.filter(|_| match access.kind() {
            Kind::Read | Kind::Write => !exclusive,
            Kind::Discard => false,
            Kind::Drop => exclusive,
        });
        match access.kind() {
            Kind::Read => *next = Some(i as u32),
            Kind::Write | Kind::Discard => *next = None,
            Kind::Drop => {}
        }
    }
    found
}

/// The maximal number of hits in a cache of this size (Belady 1966, MIN, with the option not to
/// keep a block at all): evicts the copy that is read last. Each copy is an interval up to its next
/// read, and choosing by the intervals' ends keeps the most of them.
pub fn optimum(next_reads: &[Option<u32>], most: usize) -> u64 {
    let mut kept = BTreeSet::<u32>::new();
    let mut hits = 0;
    for (i, next) in next_reads.iter().enumerate() {
        hits += u64::from(kept.remove(&(i as u32)));
        kept.extend(next);
        if kept.len() > most {
            kept.pop_last();
        }
    }
    hits
}

#[cfg(test)]
mod tests {
    use super::super::trace::Trace;
    use super::super::{hits, small_traces};
    use super::*;

    /// The best result, by trying all choices.
    fn by_force(replay: &Replay, most: u32, exclusive: bool) -> u64 {
        let states = 1usize << replay.blocks;
        let mut best: Vec<Option<u64>> = vec![None; states];
        best[0] = Some(0);
        for access in &replay.accesses {
            let bit = 1usize << access.block();
            let mut after = vec![None; states];
            for (state, hits) in best.iter().enumerate().filter_map(|(s, h)| Some((s, (*h)?))) {
                let hits = hits + u64::from(access.kind() == Kind::Read && state & bit != 0);
                let all = match access.kind() {
                    Kind::Discard => state & !bit,
                    Kind::Read | Kind::Write if exclusive => state & !bit,
                    Kind::Drop if !exclusive => state,
                    _ => state | bit,
                };
                // Any cached block may be dropped.
                let fits = |s: &usize| s & !all == 0 && s.count_ones() <= most;
                for s in (0..states).filter(fits) {
                    after[s] = after[s].max(Some(hits));
                }
            }
            best = after;
        }
        best.into_iter().flatten().max().unwrap_or(0)
    }

    #[test]
    fn nothing_beats_the_optimum_and_something_reaches_it() {
        let mut differ = 0;
        for trace in small_traces(5, 14, 60) {
            let replay = trace.replay();
            for (most, exclusive) in [1, 2, 3].into_iter().flat_map(|n| [(n, false), (n, true)]) {
                let best = optimum(&next_reads(&replay, exclusive), most as usize);
                assert_eq!(best, by_force(&replay, most, exclusive), "{most} of {trace:?}");
                if !exclusive {
                    let lru = hits(&mut Lru::new(replay.blocks, most as usize), &replay);
                    differ += u32::from(lru < best);
                }
            }
        }
        assert!(differ > 20, "the traces are too easy");
    }

    #[test]
    fn lru_and_sieve_do_what_they_are_known_for() {
        let mut trace = Trace::new("a", "");
        trace.reads([0, 1, 0, 2, 0, 3, 0, 1]);
        let replay = trace.replay();
        assert_eq!(hits(&mut Lru::new(replay.blocks, 2), &replay), 3);
        // Blocks accessed once leave at once.
        assert_eq!(hits(&mut Sieve::new(replay.blocks, 2), &replay), 3);
        let mut scan = Trace::new("b", "");
        scan.reads([0, 1, 0, 1, 2, 3, 0, 1]);
        let replay = scan.replay();
        assert_eq!(hits(&mut Lru::new(replay.blocks, 2), &replay), 2);
        assert!(hits(&mut Sieve::new(replay.blocks, 3), &replay) > 2);
    }
}

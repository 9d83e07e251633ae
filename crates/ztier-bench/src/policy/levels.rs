//! An exclusive cache: it has what the page cache above has dropped, and no longer what that has
//! got back.
//!
//! Invariant: no block is cached that was read or written after its last drop.

use super::{Cache, Dropped};

/// The product has two bits for it.
const GIVEN_MOST: u8 = 3;

/// Any policy, below a page cache.
pub struct Exclusive<'a> {
    inner: &'a mut dyn Cache,
    /// How often in a row the page cache has got a block from a copy, at most [`GIVEN_MOST`].
    given: Vec<u8>,
    /// Numbers of blocks on the device.
    numbers: Vec<u64>,
}

impl<'a> Exclusive<'a> {
    /// A cache with the policy of `inner`, which is empty, for blocks with these numbers on the
    /// device.
    pub fn new(inner: &'a mut dyn Cache, numbers: &[u64]) -> Self {
        Self { inner, given: vec![0; numbers.len()], numbers: numbers.to_vec() }
    }

    /// Gives a copy away; whether there was one.
    fn give(&mut self, block: u32) -> bool {
        let has = self.inner.has(block);
        if has {
            self.inner.discard(block);
        }
        has
    }
}

impl Cache for Exclusive<'_> {
    fn read(&mut self, block: u32) -> bool {
        let hit = self.give(block);
        let given = &mut self.given[block as usize];
        *given = if hit { (*given + 1).min(GIVEN_MOST) } else { 0 };
        hit
    }

    fn write(&mut self, block: u32) {
        self.give(block);
        self.given[block as usize] = 0;
    }

    fn discard(&mut self, block: u32) {
        self.inner.discard(block);
        self.given[block as usize] = 0;
    }

    fn len(&self) -> usize {
        self.inner.len()
    }

    fn has(&self, block: u32) -> bool {
        self.inner.has(block)
    }

    fn dropped(&mut self, block: u32) {
        let given = self.given[block as usize];
        if !self.inner.has(block) {
            let number = self.numbers[block as usize];
            self.inner.keep_dropped(block, Dropped { given, number });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::rivals::Lru;
    use super::super::trace::{Kind, Trace};
    use super::super::{hits, small_traces, step};
    use super::*;
    use crate::policy::product::{Blocks, Segments};
    use ztier::cache::policy::Rules;

    #[test]
    fn a_copy_is_there_between_a_drop_and_the_next_read() {
        let mut trace = Trace::new("a", "");
        trace.reads([0, 1, 0]);
        trace.push(Kind::Drop, 0, 1);
        trace.reads([0, 0]);
        trace.push(Kind::Drop, 0, 2);
        trace.push(Kind::Write, 1, 1);
        trace.reads([1, 0]);
        let replay = trace.replay();
        let mut lru = Lru::new(replay.blocks, 2);
        assert_eq!(hits(&mut Exclusive::new(&mut lru, &replay.numbers), &replay), 2);
    }

    #[test]
    fn nothing_is_there_twice_or_takes_more_than_its_size() {
        for trace in small_traces(40, 400, 20) {
            let replay = trace.replay();
            let rules = Rules::default();
            let inner: [Box<dyn Cache>; 2] = [
                Box::new(Blocks::new(rules, replay.blocks, 8)),
                Box::new(Segments::new(rules, replay.blocks, 8, 4)),
            ];
            for mut inner in inner {
                let mut cache = Exclusive::new(&mut *inner, &replay.numbers);
                for access in &replay.accesses {
                    step(&mut cache, *access);
                    let kept = (0..replay.blocks).filter(|block| cache.has(*block)).count();
                    assert!(kept <= cache.len() && cache.len() <= 8);
                    assert!(access.kind() == Kind::Drop || !cache.has(access.block()));
                }
            }
        }
    }
}

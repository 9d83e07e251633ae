//! What a lookup of a piece has found, as bits of its blocks.
//!
//! Invariant: a lookup drops no sound copy: those that the page cache is to get are only noted, and
//! go when the request has all of its blocks.

use super::numbers::{self, Numbers};
use super::record::Header;

/// Blocks that were read from copies which are to go to the page cache.
#[derive(Clone, Copy, Debug, Default)]
pub struct Hits {
    blocks: u64,
    /// How often in a row the page cache got each of them from a copy that did not come by
    /// readahead.
    times: Numbers,
}

impl Hits {
    /// Adds the `at`-th block, which was read from the copy with this header.
    pub fn add(&mut self, at: u64, header: &Header) {
        self.blocks |= 1 << at;
        let times = if header.ahead { 0 } else { header.given + 1 };
        self.times.set(at, times.min(numbers::MOST));
    }

    /// The same, without the blocks whose bits are set in `which`.
    #[must_use]
    pub fn without(self, which: u64) -> Self {
        Self { blocks: self.blocks & !which, times: self.times.without(which) }
    }

    /// Whether the `at`-th block is one.
    pub fn has(&self, at: u64) -> bool {
        self.blocks >> at & 1 == 1
    }

    /// How often in a row the page cache got the `at`-th block from a copy.
    pub fn times(&self, at: u64) -> u8 {
        self.times.of(at)
    }

    /// As bits of the blocks.
    pub fn bits(&self) -> [u64; 3] {
        let [low, high] = self.times.0;
        [self.blocks, low, high]
    }

    /// Those with these [`Self::bits`].
    pub fn of([blocks, low, high]: [u64; 3]) -> Self {
        Self { blocks, times: Numbers([low, high]) }
    }
}

/// See the module.
#[derive(Clone, Copy, Debug)]
pub struct Found {
    /// Blocks without a sound copy.
    pub missed: u64,
    /// Those of which a fill has begun, which [`super::shard::Shard::end`] ends: blocks without a
    /// copy, and those whose copy is to go to the page cache, and which get a seal.
    pub begun: u64,
    /// The latter.
    pub hits: Hits,
}

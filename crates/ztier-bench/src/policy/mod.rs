//! Compares cache policies: traces are replayed through each policy at several sizes, next to the
//! optimum.
//!
//! Invariants: the simulation of the product's policies calls the product's own functions. No
//! policy but the optimum knows future accesses. A hit is a read of a cached block; a write counts
//! as neither hit nor miss.

mod levels;
mod lists;
mod note;
mod product;
mod record;
mod recorded;
mod rivals;
mod synth;
mod table;
mod trace;

pub use record::all as record;
pub use table::{Choice, run};

use trace::{Access, Kind, Replay};

/// A cache of a fixed size.
trait Cache {
    /// Reads a block; returns whether it was cached. The policy decides whether to cache it now.
    fn read(&mut self, block: u32) -> bool;
    /// Writes a block. The policy decides whether to cache it.
    fn write(&mut self, block: u32);
    /// Discards a block.
    fn discard(&mut self, block: u32);
    /// Blocks that take room in the cache, garbage included.
    fn len(&self) -> usize;
    /// Whether a block is cached.
    fn has(&self, block: u32) -> bool;
    /// The page cache above drops a block that is not cached. The policy decides whether to cache
    /// it; `dropped` has what it may know.
    fn keep_dropped(&mut self, block: u32, _dropped: Dropped) {
        self.write(block);
    }
    /// The page cache above drops a block. Only an exclusive cache has a use for that.
    fn dropped(&mut self, _block: u32) {}
}

/// What an exclusive cache knows of a block that the page cache drops.
#[derive(Clone, Copy)]
struct Dropped {
    /// How often in a row the page cache has got the block from a copy, at most 3.
    given: u8,
    /// Its number on the device.
    number: u64,
}

/// Applies one access; returns whether it was a hit.
fn step(cache: &mut dyn Cache, access: Access) -> bool {
    match access.kind() {
        Kind::Read => return cache.read(access.block()),
        Kind::Write => cache.write(access.block()),
        Kind::Discard => cache.discard(access.block()),
        Kind::Drop => cache.dropped(access.block()),
    }
    false
}

/// Number of reads that were hits.
fn hits(cache: &mut dyn Cache, replay: &Replay) -> u64 {
    replay.accesses.iter().map(|access| u64::from(step(cache, *access))).sum()
}

/// Random requests on few blocks, for exhaustive tests.
#[cfg(test)]
fn small_traces(blocks: u64, len: usize, count: u64) -> Vec<trace::Trace> {
    let make = |seed| {
        let mut rng = crate::data::Rng::new(seed);
        let mut trace = trace::Trace::new("small", format!("seed {seed}"));
        for _ in 0..len {
            let kind = match rng.below(9) {
                0 => Kind::Discard,
                8 => Kind::Drop,
                1 | 2 => Kind::Write,
                _ => Kind::Read,
            };
            trace.push(kind, rng.below(blocks), 1);
        }
        trace
    };
    (0..count).map(make).collect()
}

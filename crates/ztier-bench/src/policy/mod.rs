//! Which copies a cache should keep: traces are replayed through policies of several sizes, beside
//! the optimum.
//!
//! Invariants: the product's policies are simulated by the functions that the product decides
//! with; no policy but the optimum knows what comes; a hit is a block that is read and was kept,
//! and what is written counts as neither hit nor miss.

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
    /// A block is read; whether it was there. It is kept now, as far as the policy wants that.
    fn read(&mut self, block: u32) -> bool;
    /// A block is written, and kept, as far as the policy wants that.
    fn write(&mut self, block: u32);
    /// A block is worth nothing any more.
    fn discard(&mut self, block: u32);
    /// Blocks that it takes room for.
    fn len(&self) -> usize;
}

/// One access; whether it was a hit.
fn step(cache: &mut dyn Cache, access: Access) -> bool {
    match access.kind() {
        Kind::Read => return cache.read(access.block()),
        Kind::Write => cache.write(access.block()),
        Kind::Discard => cache.discard(access.block()),
    }
    false
}

/// Blocks that were there when they were read.
fn hits(cache: &mut dyn Cache, replay: &Replay) -> u64 {
    replay.accesses.iter().map(|access| u64::from(step(cache, *access))).sum()
}

/// Random requests on few blocks, for tests that try everything.
#[cfg(test)]
fn small_traces(blocks: u64, len: usize, count: u64) -> Vec<trace::Trace> {
    let make = |seed| {
        let mut rng = crate::data::Rng::new(seed);
        let mut trace = trace::Trace::new("small", format!("seed {seed}"));
        for _ in 0..len {
            let kind = match rng.below(8) {
                0 => Kind::Discard,
                1 | 2 => Kind::Write,
                _ => Kind::Read,
            };
            trace.push(kind, rng.below(blocks), 1);
        }
        trace
    };
    (0..count).map(make).collect()
}

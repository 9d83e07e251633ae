//! Blocks whose content their owner has given up: the swap slots that the kernel has freed.
//!
//! The owner sets the bit of such a block in a shared array, at any time and without a lock. The
//! store later makes the block a hole ([`Store::drop_freed`]). A write that the owner sends after
//! it has set the bit must stay, so each write takes the bits of its blocks back.
//!
//! Invariant: bits are taken, by writes and by [`Store::drop_freed`], only under the stripe lock of
//! their blocks.

use super::planted::{Bug, on};
use super::{Session, Store, format::Entry};
use crate::GROUP;
use crate::media::Words;
use crate::stats::Counts;
use crate::sync::atomic::Ordering;
use std::sync::Arc;

/// Bits in a word of the array.
const BITS: u64 = 64;

/// One bit a block, in the order of blocks; an owner outside the store sets them.
pub type FreedBits = Arc<Words>;

/// The bits of `count` blocks from `first` on, which are in one word.
fn mask(first: u64, count: usize) -> u64 {
    debug_assert!(count <= GROUP && first % BITS + count as u64 <= BITS);
    ((1 << count) - 1) << (first % BITS)
}

/// Takes the bits in `mask` out of a word. Returns those that were set.
fn take(bits: &Words, word: u64, mask: u64) -> u64 {
    // A device that has grown has more blocks than bits.
    if word as usize >= bits.len() {
        return 0;
    }
    let word = bits.get(word as usize);
    // Most writes find no bit, and then leave the cache line to its writers.
    match word.load(Ordering::Acquire) & mask {
        0 => 0,
        _ => word.fetch_and(!mask, Ordering::AcqRel) & mask,
    }
}

/// Whether any of a word's blocks is freed.
pub fn has_freed(bits: &Words, word: u64) -> bool {
    bits.get(word as usize).load(Ordering::Relaxed) != 0
}

/// Takes back the bits of `count` blocks from `first` on, all of one group, that are written now.
/// The caller holds their stripe lock, which has `bits`.
pub(super) fn keep(bits: Option<&FreedBits>, first: u64, count: usize) {
    if let Some(bits) = bits
        && !on(Bug::KeepFreedBits)
    {
        take(bits, first / BITS, mask(first, count));
    }
}

impl Store {
    /// Follows the news in `bits` from now on, or none. No bit is set before this returns.
    pub fn follow_freed(&self, bits: Option<&FreedBits>) {
        for stripe in &self.stripes {
            *stripe.0.lock() = bits.cloned();
        }
    }

    /// Makes the blocks of a word holes whose bits are set. Returns how many had content. Needs no
    /// memory.
    pub fn drop_freed(&self, session: &mut Session, word: u64) -> u64 {
        let groups = (word * BITS..(word + 1) * BITS).step_by(GROUP);
        groups.map(|first| self.drop_freed_of_group(session, first)).sum()
    }

    fn drop_freed_of_group(&self, session: &mut Session, first: u64) -> u64 {
        let mut early = 0;
        if on(Bug::TakeFreedBeforeLock) {
            let bits = self.stripe(first).clone();
            early = bits.map_or(0, |bits| take(&bits, first / BITS, mask(first, GROUP)));
        }
        let _pin = session.pin(self);
        // In an absent leaf all blocks are holes, and a write takes its bits back.
        let Some(leaf) = self.index.retain_present(first) else { return 0 };
        let (mut delta, mut counts) = (0, Counts::default());
        let guard = self.stripe(first);
        let taken = guard.as_ref().map_or(0, |bits| take(bits, first / BITS, mask(first, GROUP)));
        let freed = (taken | early) >> (first % BITS);
        for block in (0..GROUP as u64).filter(|n| freed >> n & 1 == 1).map(|n| first + n) {
            self.drop_block(&leaf, block, Entry::HOLE, (&mut delta, &mut counts));
        }
        drop(guard);
        self.index.release(&leaf, delta);
        counts.freed_slots = std::mem::take(&mut counts.blocks_discarded);
        session.count(&counts);
        counts.freed_slots as u64
    }
}

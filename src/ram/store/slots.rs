//! Slots: segment-sized places on a spill device. This module knows only their numbers and when
//! they were visited.
//!
//! The clock counts bytes spilled and read back, in quarters of the memory limit. If a slot is read
//! again only after memory was turned over, bringing its data back would not have helped: the data
//! would be gone by now, and would have evicted what is read next.
//!
//! Invariant: a slot is free, or taken by a thread that writes to it, or named by one segment.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Two visits at most this many quarters apart read data that could have stayed in memory
/// meanwhile.
const SOON: u16 = 3;
/// Set in each stored time, to tell it from 0 (never).
const ROUND: u16 = 1 << 15;

/// All slots of a store.
#[derive(Debug)]
pub struct Slots {
    /// Free slots, the lowest number last.
    free: Mutex<Vec<u32>>,
    /// Times of the last two visits of each slot: the last in the high half, the one before in the
    /// low half. 0: never.
    visits: Box<[AtomicU32]>,
    /// Bytes that were spilled or read back so far.
    turned: AtomicU64,
}

impl Slots {
    /// `count` free slots.
    pub(super) fn new(count: u32) -> Self {
        Self {
            free: Mutex::new((0..count).rev().collect()),
            visits: (0..count).map(|_| AtomicU32::new(0)).collect(),
            turned: AtomicU64::new(0),
        }
    }

    /// Takes over the slots that another process had taken.
    pub(super) fn adopt(&self, mut taken: Vec<u32>) {
        taken.sort_unstable();
        self.free.lock().retain(|slot| taken.binary_search(slot).is_err());
    }

    /// Bytes of memory that the lists take.
    pub fn memory(&self) -> u64 {
        u64::from(self.count()) * (size_of::<u32>() + size_of::<AtomicU32>()) as u64
    }

    /// How many slots there are.
    pub fn count(&self) -> u32 {
        self.visits.len() as u32
    }

    /// How many are free.
    pub fn free(&self) -> u32 {
        self.free.lock().len() as u32
    }

    /// Takes a free slot.
    pub fn take(&self) -> Option<u32> {
        self.free.lock().pop()
    }

    /// Gives a slot back.
    pub fn give(&self, slot: u32) {
        let mut free = self.free.lock();
        debug_assert!(free.len() < self.visits.len(), "a slot too many");
        self.visits[slot as usize].store(0, Ordering::Relaxed);
        free.push(slot);
    }

    /// Notes that `bytes` bytes were spilled.
    pub(super) fn turn(&self, bytes: u32) {
        self.turned.fetch_add(u64::from(bytes), Ordering::Relaxed);
    }

    /// Notes a visit that reads `bytes` bytes, with a limit of `memory` bytes. Returns whether the
    /// visit before was recent enough that its data could have stayed in memory; `true` without
    /// one.
    pub(super) fn visit(&self, slot: u32, bytes: u32, memory: u64) -> bool {
        let turned = self.turned.fetch_add(u64::from(bytes), Ordering::Relaxed);
        // 0 means never. The clock wraps, so a visit a whole round ago may count as recent.
        let now = (turned / (memory / 4).max(1)) as u16 | ROUND;
        let visits = &self.visits[slot as usize];
        let (last, before) = halves(visits.load(Ordering::Relaxed));
        let before = if last == now { before } else { last };
        // Two concurrent calls may count as one, which is good enough.
        visits.store(u32::from(now) << 16 | u32::from(before), Ordering::Relaxed);
        before == 0 || now.wrapping_sub(before) & !ROUND <= SOON
    }
}

fn halves(visits: u32) -> (u16, u16) {
    ((visits >> 16) as u16, visits as u16)
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn what_comes_back_late_is_known() {
        let slots = Slots::new(2);
        let (turn, visit) = (|bytes| slots.turn(bytes), || slots.visit(1, 0, 400));
        assert!(visit() && visit(), "the first time");
        turn(300);
        assert!(visit() && visit(), "memory has not been turned over");
        turn(400);
        assert!(!visit() && !visit(), "it has");
        turn(100);
        assert!(visit(), "what goes on is soon");
        turn(1000);
        assert!(!visit());
        slots.free.lock().retain(|slot| *slot != 1);
        slots.give(1);
        assert!(visit(), "another one is in the slot now");
    }
}

//! Slots: segment-sized places on a spill device, of which only their numbers and their visits are
//! known here.
//!
//! Time is what came and went since, in quarters of what memory holds. What is visited again so
//! late that memory has been turned over meanwhile would not have been there, if it had been
//! brought back; it would only have driven out what is read next.
//!
//! Invariant: a slot is free, or taken by a thread that writes to it, or named by one segment.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU32, AtomicU64, Ordering};

/// Visits so many quarters apart are of what could have been in memory all the time.
const SOON: u16 = 3;
/// Tells a time from never.
const ROUND: u16 = 1 << 15;

/// All slots of a store.
#[derive(Debug)]
pub struct Slots {
    /// The lowest last.
    free: Mutex<Vec<u32>>,
    /// When each was visited last, and when before that: high and low half. 0: never.
    visits: Box<[AtomicU32]>,
    /// Bytes that went down or were read here.
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

    /// Goes on with the slots that another process had taken.
    pub(super) fn adopt(&self, mut taken: Vec<u32>) {
        taken.sort_unstable();
        self.free.lock().retain(|slot| taken.binary_search(slot).is_err());
    }

    /// Bytes of memory that the lists take.
    pub fn memory(&self) -> u64 {
        u64::from(self.count()) * (size_of::<u32>() + size_of::<AtomicU32>()) as u64
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.visits.len() as u32
    }

    /// How many are free.
    pub fn free(&self) -> u32 {
        self.free.lock().len() as u32
    }

    /// Takes a free one.
    pub fn take(&self) -> Option<u32> {
        self.free.lock().pop()
    }

    /// Gives one back.
    pub fn give(&self, slot: u32) {
        let mut free = self.free.lock();
        debug_assert!(free.len() < self.visits.len(), "a slot too many");
        self.visits[slot as usize].store(0, Ordering::Relaxed);
        free.push(slot);
    }

    /// Notes that so many bytes went down.
    pub(super) fn turn(&self, bytes: u32) {
        self.turned.fetch_add(u64::from(bytes), Ordering::Relaxed);
    }

    /// Notes a visit that reads so many `bytes`, where `memory` bytes are above. Says whether the
    /// one before was so short a time ago that what was read then could have stayed in memory;
    /// it does when there was none.
    pub(super) fn visit(&self, slot: u32, bytes: u32, memory: u64) -> bool {
        let turned = self.turned.fetch_add(u64::from(bytes), Ordering::Relaxed);
        // 0 is never; what is as long ago as it takes to come round is long ago.
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

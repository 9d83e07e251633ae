//! Slots: segment-sized places on a spill device, of which only the numbers are known here.
//!
//! Invariant: a slot is free, or taken by somebody who writes to it, or named by one segment.

use crate::sync::Mutex;

/// All slots of a store.
#[derive(Debug)]
pub struct Slots {
    /// The lowest last.
    free: Mutex<Vec<u32>>,
    count: u32,
}

impl Slots {
    /// `count` free slots.
    pub(super) fn new(count: u32) -> Self {
        Self { free: Mutex::new((0..count).rev().collect()), count }
    }

    /// Goes on with the slots that another process had taken.
    pub(super) fn adopt(&self, mut taken: Vec<u32>) {
        taken.sort_unstable();
        self.free.lock().retain(|slot| taken.binary_search(slot).is_err());
    }

    /// Bytes of memory that the list takes.
    pub fn memory(&self) -> u64 {
        u64::from(self.count) * size_of::<u32>() as u64
    }

    /// How many there are.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// How many nobody has.
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
        debug_assert!(free.len() < self.count as usize, "a slot too many");
        free.push(slot);
    }
}

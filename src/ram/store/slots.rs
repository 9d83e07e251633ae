//! Slots: segment-sized places on a spill device. This module knows only their numbers and when
//! they were visited.
//!
//! Slots are taken in order, round the device: what is spilled together lies together, a disk seeks
//! less, and flash whose controller maps units of some MiB writes whole ones.
//!
//! The clock counts bytes spilled and read back, in quarters of the memory limit. If a slot is read
//! again only after memory was turned over, bringing its data back would not have helped: the data
//! would be gone by now, and would have evicted what is read next.
//!
//! Invariant: a slot is free, or taken by a thread that writes to it, or named by one segment.
//! While slots are closed, none is taken: their device is about to be replaced, or to go.

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
    free: Mutex<Free>,
    count: AtomicU32,
    /// Bytes that were spilled or read back so far.
    turned: AtomicU64,
}

/// The free slots.
#[derive(Debug)]
struct Free {
    /// A bit for each slot, from the lowest of the first word on: whether the slot is free.
    words: Box<[u64]>,
    /// How many are free.
    count: u32,
    /// The slot after the one taken last.
    next: u32,
    /// Slots that a thread writes to.
    going: u32,
    /// Whether none is given out.
    closed: bool,
    /// Times of the last two visits of each slot: the last in the high half, the one before in the
    /// low half. 0: never.
    visits: Box<[u32]>,
}

impl Free {
    fn new(count: u32) -> Self {
        let mut words = vec![u64::MAX; count.div_ceil(64) as usize];
        if let Some(last) = words.last_mut() {
            *last >>= 63 - (count - 1) % 64;
        }
        let visits = vec![0; count as usize].into();
        Self { words: words.into(), count, next: 0, going: 0, closed: false, visits }
    }

    /// The first free slot from `next` on, or from the beginning.
    fn take(&mut self) -> Option<u32> {
        if self.closed {
            return None;
        }
        let first = self.next as usize / 64;
        let here = *self.words.get(first)? & u64::MAX << (self.next % 64);
        let words = self.words.len();
        let (word, bits) = if here != 0 {
            (first, here)
        } else {
            let others = (1..=words).map(|n| (first + n) % words);
            others.map(|n| (n, self.words[n])).find(|(_, bits)| *bits != 0)?
        };
        let bit = bits.trailing_zeros();
        self.words[word] &= !(1 << bit);
        self.count -= 1;
        self.going += 1;
        let slot = word as u32 * 64 + bit;
        self.next = (slot + 1) % (words as u32 * 64);
        Some(slot)
    }

    fn is_free(&self, slot: u32) -> bool {
        self.words[slot as usize / 64] >> (slot % 64) & 1 == 1
    }

    fn give(&mut self, slot: u32) {
        debug_assert!(!self.is_free(slot), "slot {slot} is free already");
        self.words[slot as usize / 64] |= 1 << (slot % 64);
        self.count += 1;
    }
}

impl Slots {
    /// `count` free slots.
    pub(super) fn new(count: u32) -> Self {
        Self {
            free: Mutex::new(Free::new(count)),
            count: AtomicU32::new(count),
            turned: AtomicU64::new(0),
        }
    }

    /// Gives out no slot any more, or again.
    pub fn close(&self, closed: bool) {
        self.free.lock().closed = closed;
    }

    /// Whether slots are given out, as long as some are free.
    pub fn is_open(&self) -> bool {
        !self.free.lock().closed
    }

    /// Whether a thread writes to a slot.
    pub fn is_written(&self) -> bool {
        self.free.lock().going > 0
    }

    /// Has `count` free slots from now on, unless a slot is taken: then nothing changes. Returns
    /// whether it has.
    pub(super) fn replace(&self, count: u32) -> bool {
        let mut free = self.free.lock();
        let is_free = free.count == self.count();
        if is_free {
            *free = Free::new(count);
            self.count.store(count, Ordering::Release);
        }
        is_free
    }

    /// Notes that a thread has written to a slot that it took, or does not write to it.
    pub(super) fn written(&self) {
        self.free.lock().going -= 1;
    }

    /// Takes over the slots that another process had taken.
    pub(super) fn adopt(&self, taken: &[u32]) {
        let mut free = self.free.lock();
        for slot in taken {
            if free.is_free(*slot) {
                free.words[*slot as usize / 64] &= !(1 << (slot % 64));
                free.count -= 1;
            }
        }
    }

    /// Bytes of memory that the lists take.
    pub fn memory(&self) -> u64 {
        Self::memory_of(self.count())
    }

    /// Bytes of memory that the lists of `count` slots take.
    pub(super) fn memory_of(count: u32) -> u64 {
        u64::from(count) * size_of::<u32>() as u64 + u64::from(count).div_ceil(8)
    }

    /// How many slots there are.
    pub fn count(&self) -> u32 {
        self.count.load(Ordering::Acquire)
    }

    /// How many are free.
    pub fn free(&self) -> u32 {
        self.free.lock().count
    }

    /// Takes the next free slot.
    pub fn take(&self) -> Option<u32> {
        self.free.lock().take()
    }

    /// Gives a slot back.
    pub fn give(&self, slot: u32) {
        let mut free = self.free.lock();
        free.visits[slot as usize] = 0;
        free.give(slot);
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
        let mut free = self.free.lock();
        // The device may have gone since the reader looked.
        let Some(visits) = free.visits.get_mut(slot as usize) else { return true };
        let (last, before) = halves(*visits);
        let before = if last == now { before } else { last };
        *visits = u32::from(now) << 16 | u32::from(before);
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
        slots.adopt(&[1]);
        slots.give(1);
        assert!(visit(), "another one is in the slot now");
    }

    #[test]
    fn they_are_taken_in_order_round_the_device() {
        for count in [1, 63, 64, 65, 200] {
            let slots = Slots::new(count);
            let all: Vec<u32> = std::iter::from_fn(|| slots.take()).collect();
            assert_eq!(all, (0..count).collect::<Vec<_>>());
            assert_eq!(slots.free(), 0);
            all.iter().rev().for_each(|slot| slots.give(*slot));
            assert_eq!((slots.free(), slots.take()), (count, Some(0)), "from the beginning");
        }
        assert_eq!(Slots::new(0).take(), None);
        let slots = Slots::new(200);
        slots.adopt(&[3, 70, 3]);
        let first: Vec<u32> = (0..69).filter_map(|_| slots.take()).collect();
        assert!(!first.contains(&3) && first.last() == Some(&69));
        slots.give(5);
        assert_eq!((slots.take(), slots.free()), (Some(71), 129), "not back at once");
        let rest: Vec<u32> = std::iter::from_fn(|| slots.take()).collect();
        assert_eq!(rest.last(), Some(&5));
    }
}

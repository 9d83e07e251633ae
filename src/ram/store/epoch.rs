//! Epochs: tell when memory that readers might still look at can be used again.
//!
//! A reader pins: it writes the current epoch into its own slot, looks things up without a lock,
//! and unpins. A thread that takes something out of the index then takes a [`Stamp`]. Once no slot
//! holds that epoch or an earlier one, no reader can still see what was taken out. The algorithm is
//! Fraser's epoch-based reclamation (*Practical lock-freedom*, 2004, §5.2.3) with one counter for
//! each retirement.
//!
//! A library (`crossbeam-epoch`) was considered. It decides by itself when to run deferred work. A
//! store that must answer «is this frame free *now*» at its memory limit has to ask, and a schedule
//! explorer has to see the atomics.
//!
//! Invariants:
//! - a slot belongs to one [`Participant`], which one thread uses at a time;
//! - whatever a pinned thread read from the index stays readable until it unpins.

use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering, fence};

/// How many threads can take part at once: 256 that serve requests, and the volume's own.
pub const PARTICIPANTS_MAX: usize = if cfg!(shuttle) { 9 } else { 265 };

const IDLE: u64 = u64::MAX;

/// A slot in a cache line of its own.
#[repr(align(128))]
#[derive(Debug)]
struct Slot(AtomicU64);

/// The epochs of one store.
#[derive(Debug)]
pub struct Epochs {
    global: AtomicU64,
    slots: Box<[Slot]>,
    free: Mutex<FreeSlots>,
    /// Slots at and above this were never used, so [`Epochs::horizon`] skips them.
    used: AtomicU64,
}

#[derive(Debug, Default)]
struct FreeSlots {
    returned: Vec<usize>,
    fresh: usize,
}

/// A moment of retirement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Stamp(u64);

/// A thread's membership; give it back with [`Epochs::leave`].
#[derive(Clone, Copy, Debug)]
pub struct Participant(usize);

impl Default for Epochs {
    fn default() -> Self {
        Self {
            global: AtomicU64::new(0),
            slots: (0..PARTICIPANTS_MAX).map(|_| Slot(AtomicU64::new(IDLE))).collect(),
            free: Mutex::new(FreeSlots::default()),
            used: AtomicU64::new(0),
        }
    }
}

impl Epochs {
    /// Bytes of memory that the slots take.
    pub fn memory(&self) -> usize {
        self.slots.len() * size_of::<Slot>()
    }

    /// Joins; `None` when [`PARTICIPANTS_MAX`] threads already take part.
    pub fn join(&self) -> Option<Participant> {
        let mut free = self.free.lock();
        if let Some(slot) = free.returned.pop() {
            return Some(Participant(slot));
        }
        if free.fresh == self.slots.len() {
            return None;
        }
        free.fresh += 1;
        self.used.store(free.fresh as u64, Ordering::SeqCst);
        Some(Participant(free.fresh - 1))
    }

    /// Gives a membership back.
    pub fn leave(&self, who: &Participant) {
        self.slots[who.0].0.store(IDLE, Ordering::Release);
        self.free.lock().returned.push(who.0);
    }

    /// From here to [`Epochs::unpin`], whatever the index names stays where it is.
    pub fn pin(&self, who: &Participant) {
        let now = self.global.load(Ordering::Relaxed);
        self.slots[who.0].0.store(now, Ordering::Relaxed);
        // Orders the slot's store before every load that follows: either `passed` sees the slot, or
        // those loads see what was published before the stamp was taken.
        fence(Ordering::SeqCst);
    }

    /// Ends a pin.
    pub fn unpin(&self, who: &Participant) {
        self.slots[who.0].0.store(IDLE, Ordering::Release);
    }

    /// The stamp of everything taken out of the index up to now.
    pub fn stamp(&self) -> Stamp {
        fence(Ordering::SeqCst);
        Stamp(self.global.fetch_add(1, Ordering::SeqCst))
    }

    /// The bound of passed stamps: every stamp below it has passed, so no reader can see what was
    /// retired under such a stamp.
    pub fn horizon(&self) -> Stamp {
        fence(Ordering::SeqCst);
        let used = self.used.load(Ordering::SeqCst) as usize;
        let oldest = self.slots[..used].iter().map(|slot| slot.0.load(Ordering::Acquire)).min();
        Stamp(oldest.unwrap_or(IDLE))
    }

    /// Waits until all threads that are pinned now have unpinned. The caller is not pinned. Pins
    /// are short, so this wait is short too.
    pub fn wait(&self) {
        let stamp = self.stamp();
        let mut round = 0;
        while !self.passed(stamp) {
            crate::sync::relax(round);
            round = round.saturating_add(1);
        }
    }

    /// Whether no reader can still see what was retired under `stamp`.
    pub fn passed(&self, stamp: Stamp) -> bool {
        stamp < self.horizon()
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_pin_holds_back_later_stamps_only() {
        let epochs = Epochs::default();
        let (a, b) = (epochs.join().unwrap(), epochs.join().unwrap());
        let early = epochs.stamp();
        assert!(epochs.passed(early));
        epochs.pin(&a);
        let late = epochs.stamp();
        assert!(epochs.passed(early));
        assert!(!epochs.passed(late));
        epochs.pin(&b);
        epochs.unpin(&a);
        assert!(epochs.passed(late));
        epochs.unpin(&b);
        epochs.leave(&a);
        epochs.leave(&b);
        assert!(epochs.join().is_some());
    }

    #[test]
    fn memberships_are_bounded_and_come_back() {
        let epochs = Epochs::default();
        let all: Vec<_> = (0..PARTICIPANTS_MAX).map(|_| epochs.join().unwrap()).collect();
        assert!(epochs.join().is_none());
        epochs.leave(&all[3]);
        assert!(epochs.join().is_some());
    }
}

//! Locks of a daemon, in the order in which a thread may take them.
//!
//! Invariant: a thread takes a lock only while it holds none of the same or a later rank, so no two
//! threads wait for each other's locks; and it waits for another thread to end, or for its turn,
//! only while it holds none. Builds with debug assertions check this.

use parking_lot::{Mutex, MutexGuard};
use std::cell::Cell;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

/// What a lock protects, in the order of taking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Rank {
    /// The volume's sizes, while a thread changes them.
    Sizes,
    /// The export.
    Export,
    /// The content of the state file.
    State,
    /// The threads that work for the volume.
    Threads,
}

impl Rank {
    const fn bit(self) -> u8 {
        1 << self as u8
    }
}

thread_local! {
    /// The ranks of the locks that this thread holds, as bits.
    static HELD: Cell<u8> = const { Cell::new(0) };
}

fn check(rank: Rank) {
    let later = HELD.get() >> rank as u8;
    debug_assert!(later == 0, "takes {rank:?} while it holds {:#06b}", HELD.get());
}

/// Asserts that this thread holds none of these locks, because it is about to wait for a thread
/// that may need one.
pub(super) fn none_held() {
    debug_assert!(HELD.get() == 0, "waits while it holds {:#06b}", HELD.get());
}

/// A lock with a rank.
pub(super) struct Ranked<T> {
    rank: Rank,
    mutex: Mutex<T>,
}

impl<T> Ranked<T> {
    pub fn new(rank: Rank, value: T) -> Self {
        Self { rank, mutex: Mutex::new(value) }
    }

    pub fn lock(&self) -> Guard<'_, T> {
        check(self.rank);
        self.held(self.mutex.lock())
    }

    /// The lock, if no other thread has it.
    pub fn try_lock(&self) -> Option<Guard<'_, T>> {
        self.mutex.try_lock().map(|guard| self.held(guard))
    }

    /// The lock, unless other threads have it for all of `time`.
    pub fn try_lock_for(&self, time: Duration) -> Option<Guard<'_, T>> {
        check(self.rank);
        self.mutex.try_lock_for(time).map(|guard| self.held(guard))
    }

    fn held<'a>(&self, guard: MutexGuard<'a, T>) -> Guard<'a, T> {
        HELD.set(HELD.get() | self.rank.bit());
        Guard { rank: self.rank, guard }
    }
}

/// A lock that this thread holds.
pub(super) struct Guard<'a, T> {
    rank: Rank,
    guard: MutexGuard<'a, T>,
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        HELD.set(HELD.get() & !self.rank.bit());
    }
}

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.guard
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.guard
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::panic::{AssertUnwindSafe, catch_unwind};

    fn panics(work: impl FnOnce()) -> bool {
        catch_unwind(AssertUnwindSafe(work)).is_err()
    }

    #[test]
    fn locks_are_taken_in_their_order_and_no_thread_waits_with_one() {
        let (export, state) = (Ranked::new(Rank::Export, 1), Ranked::new(Rank::State, 2));
        {
            let (held, later) = (export.lock(), state.try_lock_for(Duration::ZERO).unwrap());
            assert_eq!((*held, *later), (1, 2));
            assert!(panics(|| drop(export.lock())), "the same lock twice");
            assert!(panics(none_held));
        }
        {
            let _later = state.try_lock().unwrap();
            assert!(panics(|| drop(export.lock())));
            // A thread that does not wait breaks no order.
            assert!(export.try_lock().is_some());
            assert!(panics(|| drop(export.try_lock_for(Duration::ZERO))));
        }
        none_held();
        drop(export.lock());
    }
}

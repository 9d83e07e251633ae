//! The slots that an owner writes to, and which of them are durable. Pure.
//!
//! Invariants: a slot is issued only while it is less than [`WIDTH`] beyond the first one that is
//! not durable, so that no object of an owner lies where the chain continues behind a fence; a slot
//! is durable when its object was created, and all before it.

use super::format::{Object, SLOTS_MAX, Session, WIDTH};
use super::planted::{Bug, on};
use std::collections::BTreeSet;

/// See the module.
#[derive(Clone, Debug)]
pub struct Issuer {
    next: u64,
    /// All slots below are durable.
    durable: u64,
    /// Created slots beyond.
    created: BTreeSet<u64>,
}

impl Issuer {
    /// Of an owner whose first slot is `first`.
    pub fn new(first: u64) -> Self {
        Self { next: first, durable: first, created: BTreeSet::new() }
    }

    /// The next slot; `None` while too many are not durable.
    pub fn issue(&mut self) -> Option<u64> {
        let most = self.durable + WIDTH + u64::from(on(Bug::OneAhead));
        let slot = self.next;
        (slot < most.min(SLOTS_MAX)).then(|| {
            self.next += 1;
            slot
        })
    }

    /// The object of `slot` is in the store.
    pub fn created(&mut self, slot: u64) {
        self.created.insert(slot);
        if on(Bug::DurableWithHole) {
            self.durable = slot + 1;
        }
        while self.created.remove(&self.durable) {
            self.durable += 1;
        }
    }

    /// All slots below this one are durable.
    pub fn durable(&self) -> u64 {
        self.durable
    }

    /// The slot that comes next, whenever it is issued.
    pub fn next(&self) -> u64 {
        self.next
    }
}

/// What is in a slot that was taken when this owner's part was to be created there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Taken {
    /// That part, by a request whose answer was lost.
    Ours,
    /// The fence of the next owner.
    Fence(Session),
    /// An object that does not belong there.
    Other,
}

/// Judges what was `found` in the slot of the part `ours`.
pub fn judge(found: &Object, ours: &Object) -> Taken {
    match (found, ours) {
        (Object::Fence { .. }, _) if on(Bug::IgnoreFence) => Taken::Ours,
        (Object::Fence { session }, _) => Taken::Fence(*session),
        (found, ours) if found == ours => Taken::Ours,
        (Object::Part { session: a, .. }, Object::Part { session: b, .. })
            if a == b && on(Bug::SessionIsEnough) =>
        {
            Taken::Ours
        }
        _ => Taken::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slot_is_durable_with_all_before_it() {
        let mut issuer = Issuer::new(100);
        let slots: Vec<u64> = std::iter::from_fn(|| issuer.issue()).collect();
        assert_eq!(slots, (100..100 + WIDTH).collect::<Vec<_>>());
        issuer.created(101);
        assert_eq!((issuer.durable(), issuer.issue()), (100, None));
        issuer.created(100);
        assert_eq!((issuer.durable(), issuer.next()), (102, 100 + WIDTH));
        assert_eq!(issuer.issue(), Some(100 + WIDTH));
        assert_eq!(issuer.issue(), Some(101 + WIDTH));
        assert_eq!(issuer.issue(), None);
    }
}

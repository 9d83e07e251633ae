//! Makes windows of the parts of a chain. Pure.
//!
//! Invariant: a window counts when all its parts are there, in order, of one session, and each made
//! after the one before it, up to the one that commits it; other parts are void.

use super::format::{Entry, Object, Part, Session};
use super::planted::{Bug, on};

/// A part that waits for the end of its window.
type Waiting = (u64, Vec<Entry>);

/// See the module.
#[derive(Clone, Debug, Default)]
pub struct Adoption {
    open: Option<(Session, u64)>,
    parts: Vec<Waiting>,
    /// The check word of the last of them; 0 without any.
    last: u32,
}

impl Adoption {
    /// Takes the next part. Returns the parts of the window that it ends, each with its slot.
    pub fn take(&mut self, slot: u64, object: Object) -> Vec<Waiting> {
        let Object::Part { session, part, entries, check } = object else { return Vec::new() };
        let Part { window, part: number, commits, before } = part;
        let next =
            number as usize == self.parts.len() && (before == self.last || on(Bug::IgnoreBefore));
        let same = next && self.open == Some((session, window));
        if !same && !on(Bug::ReviveParts) {
            self.parts.clear();
            let first = number == 0 && before == 0;
            self.open = first.then_some((session, window));
        }
        if self.open.is_none() && !on(Bug::ReviveParts) {
            return Vec::new();
        }
        self.parts.push((slot, entries));
        self.last = check;
        if !commits && !on(Bug::CommitByPart) {
            return Vec::new();
        }
        (self.open, self.last) = (None, 0);
        std::mem::take(&mut self.parts)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn part(session: u8, window: u64, part: u32, commits: bool) -> Object {
        let entries = vec![Entry::Zeros { first: window, count: part }];
        let check = |part: u32| u32::from(session) << 16 | (window as u32) << 8 | (part + 1);
        let before = if part == 0 { 0 } else { check(part - 1) };
        let of = Part { window, part, commits, before };
        Object::Part { session: [session; 16], part: of, entries, check: check(part) }
    }

    #[test]
    fn a_window_counts_with_its_end() {
        let mut adoption = Adoption::default();
        let slots =
            |parts: Vec<Waiting>| parts.into_iter().map(|(slot, _)| slot).collect::<Vec<_>>();
        assert_eq!(slots(adoption.take(1, part(1, 0, 0, true))), [1]);
        assert!(adoption.take(2, part(1, 1, 0, false)).is_empty());
        assert_eq!(slots(adoption.take(3, part(1, 1, 1, true))), [2, 3]);
    }

    #[test]
    fn parts_without_the_end_of_their_window_are_void() {
        let mut adoption = Adoption::default();
        let slots =
            |parts: Vec<Waiting>| parts.into_iter().map(|(slot, _)| slot).collect::<Vec<_>>();
        // Its session ended here.
        assert!(adoption.take(1, part(1, 7, 0, false)).is_empty());
        assert_eq!(slots(adoption.take(20, part(2, 7, 0, true))), [20]);
        // The first part is not there, or one between.
        assert!(adoption.take(21, part(2, 8, 1, true)).is_empty());
        assert!(adoption.take(22, part(2, 9, 0, false)).is_empty());
        assert!(adoption.take(23, part(2, 9, 2, true)).is_empty());
        assert_eq!(slots(adoption.take(24, part(2, 10, 0, true))), [24]);
        // The part before is one of the same number by a copy of the process.
        assert!(adoption.take(25, part(2, 11, 0, false)).is_empty());
        let Object::Part { session, part: mut of, entries, check } = part(2, 11, 1, true) else {
            panic!()
        };
        of.before += 1;
        let other = Object::Part { session, part: of, entries, check };
        assert!(adoption.take(26, other).is_empty());
    }
}

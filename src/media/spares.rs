//! Spare arenas: emptied memory files of sets that are gone, for sets to come.
//!
//! To make, map and unmap a memory file takes longer than to use a small one. A process that opens
//! one log after another, as the simulator does, takes the same files again and again.
//!
//! Invariants:
//! - nothing refers to the file of a spare arena but the arena;
//! - all bytes of a spare arena are zeros, as those of a new one are;
//! - a spare arena is taken under the name and with the length that it was made for. So the code
//!   that takes it is the code that had it: advice and locks, which stay, are what it asks for.

use super::Arena;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Spare arenas, by name.
#[derive(Debug, Default)]
pub struct Spares(Mutex<Vec<(String, Arena)>>);

impl Spares {
    /// Takes a spare arena of this name and length.
    pub(super) fn take(&self, name: &str, len: usize) -> Option<Arena> {
        let mut spares = self.0.lock();
        let at = spares.iter().position(|(known, a)| known == name && a.len() == len)?;
        Some(spares.swap_remove(at).1)
    }
}

/// The spares that an arena becomes one of when it ends.
#[derive(Debug)]
pub(super) struct Home {
    spares: Arc<Spares>,
    name: String,
    /// Whether the arena's set has given its files out.
    given: Arc<AtomicBool>,
}

impl Home {
    pub fn new(spares: Arc<Spares>, name: &str, given: Arc<AtomicBool>) -> Self {
        Self { spares, name: name.to_owned(), given }
    }

    /// Whether another process, or another set, may have the arena's file. The caller has seen
    /// that the arena's set is gone: only a set gives files out.
    pub fn is_shared(&self) -> bool {
        self.given.load(Ordering::Relaxed)
    }

    /// Keeps an emptied arena.
    pub fn keep(self, arena: Arena) {
        self.spares.0.lock().push((self.name, arena));
    }
}

#[cfg(all(test, not(miri), not(shuttle)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Memory, PAGE};
    use super::*;

    const LEN: usize = 4 << 20;

    fn spares() -> (Arc<Spares>, usize) {
        let spares = Arc::default();
        let arena = Memory::of_spares(&spares).arena("a", LEN).unwrap();
        let at = arena.at(0) as usize;
        drop(arena);
        (spares, at)
    }

    fn fill(arena: &Arena, from: usize, len: usize) {
        // SAFETY: inside (`at` checks the end, too), and ours alone.
        unsafe { arena.at(from).write_bytes(0xa5, len) };
        arena.at(from + len - 1);
    }

    fn bytes(arena: &Arena) -> &[u8] {
        // SAFETY: the arena is ours alone, and nothing writes to it.
        unsafe { std::slice::from_raw_parts(arena.at(0), arena.len()) }
    }

    #[test]
    fn a_file_that_is_used_again_is_empty() {
        let (spares, at) = spares();
        for dirty in [vec![], vec![(0, 1)], vec![(PAGE - 1, 2), (LEN - 1, 1)], vec![(0, LEN)]] {
            let arena = Memory::of_spares(&spares).arena("a", LEN).unwrap();
            assert_eq!(arena.at(0) as usize, at, "the same file");
            dirty.iter().for_each(|(from, len)| fill(&arena, *from, *len));
            drop(arena);
            let again = Memory::of_spares(&spares).arena("a", LEN).unwrap();
            assert_eq!(again.at(0) as usize, at);
            let there: usize = again.present().map(|range| range.len()).sum();
            assert!(there <= 256 << 10, "{there} bytes stay");
            assert!(bytes(&again).iter().all(|byte| *byte == 0), "{dirty:?}");
        }
    }

    #[test]
    fn what_is_referred_to_is_not_spare() {
        let (spares, _) = spares();
        let count = || spares.0.lock().len();
        let memory = Memory::of_spares(&spares);
        let arena = memory.arena("a", LEN).unwrap();
        assert_eq!(count(), 0);
        drop(arena);
        assert_eq!(count(), 0, "its set could still give it out");
        let memory = Memory::of_spares(&spares);
        let arena = memory.arena("a", LEN).unwrap();
        let file = memory.files().remove(0).1.try_clone().unwrap();
        drop(memory);
        drop(arena);
        assert_eq!(count(), 0, "another process can have it");
        let next = Memory::inherited(vec![("a".into(), file)]);
        drop(next.arena("a", LEN).unwrap());
        assert_eq!(count(), 0, "it was taken over");
    }

    #[test]
    fn another_name_or_length_is_another_file() {
        let (spares, _) = spares();
        let memory = Memory::of_spares(&spares);
        memory.arena("b", LEN).unwrap();
        memory.arena("a", LEN + PAGE).unwrap();
        assert_eq!(spares.0.lock().len(), 1);
    }
}

//! A part of a memory file that one value alone has, like a boxed slice.

use super::Arena;
use std::ops::{Deref, DerefMut};

/// The bytes of a part; `keeper` keeps the memory mapped, and the part from others.
#[derive(Debug)]
pub(super) struct Part<K> {
    start: *mut u8,
    len: usize,
    keeper: K,
}

// SAFETY: it is the only way to its bytes, which live as long as `keeper`, like a `Box` of bytes.
unsafe impl<K: Send> Send for Part<K> {}
// SAFETY: as above: through a shared reference they are only read.
unsafe impl<K: Sync> Sync for Part<K> {}

impl<K> Part<K> {
    /// `len` bytes of `arena` from `at` on.
    ///
    /// # Safety
    /// As long as the part lives, `keeper` keeps `arena` mapped, and no other code accesses these
    /// bytes.
    ///
    /// # Panics
    /// When they are outside.
    pub unsafe fn new(arena: &Arena, at: usize, len: usize, keeper: K) -> Self {
        assert!(at + len <= arena.len(), "a part outside an arena of {} bytes", arena.len());
        Self { start: arena.at(at), len, keeper }
    }

    pub fn keeper(&self) -> &K {
        &self.keeper
    }

    pub fn address(&self) -> *const u8 {
        self.start
    }

    /// Keeps the first `len` bytes.
    pub fn truncate(&mut self, len: usize) {
        self.len = self.len.min(len);
    }
}

impl<K> Deref for Part<K> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: inside an arena that is mapped (see `new`); memory of a file is always
        // initialised; only the exclusive holder of `self` writes to it.
        unsafe { std::slice::from_raw_parts(self.start, self.len) }
    }
}

impl<K> DerefMut for Part<K> {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above; the borrow of `self` is exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.start, self.len) }
    }
}

#[cfg(all(test, not(shuttle)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::Memory;
    use super::*;
    use std::sync::Arc;

    #[test]
    fn a_part_is_its_bytes_and_no_others() {
        let arena = Arc::new(Memory::default().arena("test", 8192).unwrap());
        let part = |at, len| {
            // SAFETY: the keeper is the arena itself, and the parts below do not overlap.
            unsafe { Part::new(&arena, at, len, Arc::clone(&arena)) }
        };
        let (mut one, mut other) = (part(0, 4096), part(4096, 4096));
        one.fill(1);
        other.fill(2);
        other.truncate(7);
        assert_eq!((one.len(), &other[..]), (4096, &[2; 7][..]));
        assert!(one.iter().all(|byte| *byte == 1));
    }

    #[test]
    #[should_panic(expected = "outside")]
    fn a_part_outside_is_refused() {
        let arena = Memory::default().arena("test", 4096).unwrap();
        // SAFETY: refused.
        let _ = unsafe { Part::new(&arena, 1, 4096, ()) };
    }
}

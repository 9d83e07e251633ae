//! The ring buffer pool: a memory file that is lent piece by piece, as buffers.
//!
//! Invariants:
//! - each piece lies behind the one that was lent before, or at the start; pieces are taken back in
//!   the order in which they were lent;
//! - a place is lent again only when it was taken back *and* its [`Buffer`] is gone;
//! - a piece that was not taken back keeps its content when its buffer is gone, so that another
//!   process can read it after the end of this one.

use super::part::Part;
use super::{ALIGN, Arena, Buffer};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;

/// A ring of buffers in one memory file.
#[derive(Debug)]
pub struct RingBuffers {
    arena: Arc<Arena>,
    /// Nothing is lent from this offset on.
    most: usize,
    /// Lent pieces that may be in use, oldest first.
    pieces: VecDeque<Piece>,
    /// How many of the pieces, the newest ones, were not taken back.
    kept: usize,
    /// Where the newest piece ends.
    head: usize,
}

#[derive(Debug)]
struct Piece {
    at: usize,
    /// Its buffer has the other reference.
    lease: Arc<Lease>,
}

/// Keeps the memory mapped, and lent to no other buffer.
#[derive(Debug)]
pub(super) struct Lease {
    _arena: Arc<Arena>,
}

/// The memory of a lent buffer.
pub(super) type Lent = Part<Arc<Lease>>;

impl RingBuffers {
    /// A ring over a memory file. `kept` are the pieces that another process had lent and not taken
    /// back, oldest first. `None` if no process can have lent them.
    pub fn new(arena: Arena, kept: &[Range<usize>]) -> Option<Self> {
        let (most, arena) = (arena.len(), Arc::new(arena));
        let mut ring = Self { arena, most, pieces: VecDeque::new(), kept: 0, head: 0 };
        for (i, piece) in kept.iter().enumerate() {
            let fits = piece.start < piece.end && piece.end <= ring.arena.len();
            let apart = |other: &Range<usize>| other.end <= piece.start || piece.end <= other.start;
            if !fits || !piece.start.is_multiple_of(ALIGN) || !kept[..i].iter().all(apart) {
                return None;
            }
            ring.push(piece.start);
            ring.head = piece.end.next_multiple_of(ALIGN);
        }
        Some(ring)
    }

    /// From now on, only the first `most` bytes are lent.
    pub fn limit(&mut self, most: usize) {
        self.most = most.min(self.arena.len());
    }

    /// Lends `len` bytes; returns their offset and buffer. `None` while there is no room.
    pub fn lend(&mut self, len: usize) -> Option<(usize, Buffer)> {
        let len = len.next_multiple_of(ALIGN);
        self.reclaim();
        let at = self.place(len)?;
        let lease = self.push(at);
        self.head = at + len;
        // SAFETY: the lease keeps the arena, and while it lives the bytes are lent to no other
        // buffer and read by no other code.
        let lent = unsafe { Part::new(&self.arena, at, len, lease) };
        Some((at, Buffer::lent(lent)))
    }

    fn push(&mut self, at: usize) -> Arc<Lease> {
        let lease = Arc::new(Lease { _arena: Arc::clone(&self.arena) });
        self.pieces.push_back(Piece { at, lease: Arc::clone(&lease) });
        self.kept += 1;
        lease
    }

    fn place(&self, len: usize) -> Option<usize> {
        let Some(tail) = self.pieces.front().map(|piece| piece.at) else {
            return (len <= self.most).then_some(0);
        };
        if self.head <= tail {
            return (self.head + len <= tail).then_some(self.head);
        }
        if self.head + len <= self.most {
            return Some(self.head);
        }
        (len <= tail).then_some(0)
    }

    /// Forgets pieces that were taken back and whose buffers are gone.
    fn reclaim(&mut self) {
        while self.pieces.len() > self.kept
            && self.pieces.front_mut().is_some_and(|piece| Arc::get_mut(&mut piece.lease).is_some())
        {
            self.pieces.pop_front();
        }
    }

    /// Keeps only the first `len` bytes of the buffer that was lent last; the next piece begins
    /// behind them.
    pub fn settle(&mut self, buffer: &mut Buffer, len: usize) {
        let len = len.next_multiple_of(ALIGN);
        let Some(last) = self.pieces.back().filter(|_| self.kept > 0) else { return };
        let start = self.arena.at(last.at).cast_const();
        let is_it = |lent: &&mut Lent| lent.address() == start && lent.len() >= len;
        if let Some(lent) = buffer.as_lent().filter(is_it) {
            lent.truncate(len);
            self.head = last.at + len;
        }
    }

    /// Takes the oldest piece back.
    pub fn take_back(&mut self) {
        self.kept = self.kept.saturating_sub(1);
    }

    /// Takes back the newest piece, whose buffer is gone.
    pub fn take_back_newest(&mut self) {
        let gone = self.pieces.back_mut().is_some_and(|p| Arc::get_mut(&mut p.lease).is_some());
        if self.kept > 0
            && gone
            && let Some(piece) = self.pieces.pop_back()
        {
            self.kept -= 1;
            self.head = piece.at;
        }
    }

    /// The range `bytes` of the `i`-th piece that was not taken back; `None` while the piece has a
    /// buffer.
    pub fn left(&mut self, i: usize, bytes: Range<usize>) -> Option<&[u8]> {
        let first = self.pieces.len() - self.kept;
        let next = self.pieces.get(first + i + 1).map(|piece| piece.at);
        let piece = self.pieces.get_mut(first + i)?;
        Arc::get_mut(&mut piece.lease)?;
        let end = match next {
            Some(next) if next > piece.at => next,
            Some(_) => self.arena.len(),
            None => self.head,
        };
        let (from, to) = (piece.at.checked_add(bytes.start)?, piece.at.checked_add(bytes.end)?);
        if from > to || to > end {
            return None;
        }
        // SAFETY: inside the arena, which lives as long as `self`, and initialised, as memory of a
        // file is. No other piece has them: the next one begins behind them, and what is not taken
        // back is not lent again. This one has no buffer, and gets none.
        Some(unsafe { std::slice::from_raw_parts(self.arena.at(from), to - from) })
    }

    /// Gives the memory beyond the first `bytes` bytes back to the machine, if nothing is lent.
    pub fn rest(&mut self, bytes: usize) {
        self.reclaim();
        if self.pieces.is_empty() {
            let from = bytes.next_multiple_of(ALIGN).min(self.arena.len());
            self.arena.remove(from, self.arena.len() - from);
        }
    }
}

#[cfg(all(test, not(shuttle)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::Memory;
    use super::*;

    fn ring(most: usize) -> RingBuffers {
        let arena = Memory::default().arena("test", 1 << 20).unwrap();
        let mut ring = RingBuffers::new(arena, &[]).unwrap();
        ring.limit(most);
        ring
    }

    #[test]
    fn pieces_follow_each_other_and_wrap() {
        let mut ring = ring(10 * ALIGN);
        let (at, mut first) = ring.lend(4 * ALIGN).unwrap();
        assert_eq!((at, first.len()), (0, 4 * ALIGN));
        ring.settle(&mut first, 2 * ALIGN - 100);
        assert_eq!(first.len(), 2 * ALIGN);
        let (at, second) = ring.lend(6 * ALIGN).unwrap();
        assert_eq!(at, 2 * ALIGN);
        assert!(ring.lend(3 * ALIGN).is_none(), "no room at the end, and none at the begin");
        ring.take_back();
        assert!(ring.lend(3 * ALIGN).is_none(), "its buffer is there");
        drop(first);
        assert!(ring.lend(3 * ALIGN).is_none(), "two are not enough");
        let (at, third) = ring.lend(2 * ALIGN).unwrap();
        assert_eq!(at, 8 * ALIGN);
        let (at, fourth) = ring.lend(2 * ALIGN).unwrap();
        assert_eq!(at, 0);
        assert!(ring.lend(ALIGN).is_none(), "it is full");
        drop((second, third, fourth));
        assert!(ring.lend(ALIGN).is_none(), "gone is not taken back");
        for _ in 0..3 {
            ring.take_back();
        }
        assert_eq!(ring.lend(10 * ALIGN).unwrap().0, 0);
    }

    #[test]
    #[cfg(not(miri))]
    fn what_was_not_taken_back_is_found() {
        let memory = Memory::default();
        let mut ring = RingBuffers::new(memory.arena("test", 64 * ALIGN).unwrap(), &[]).unwrap();
        for value in 1..4 {
            let (_, mut buffer) = ring.lend(2 * ALIGN).unwrap();
            buffer.fill(value);
            ring.settle(&mut buffer, ALIGN);
        }
        ring.take_back();
        assert_eq!(ring.left(0, 5..7), Some(&[2; 2][..]));
        assert_eq!(ring.left(1, 0..ALIGN), Some(&[3; ALIGN][..]));
        assert_eq!(ring.left(0, 0..ALIGN + 1), None, "another's");
        assert_eq!(ring.left(2, 0..1), None);
        ring.take_back_newest();
        let (at, held) = ring.lend(ALIGN).unwrap();
        assert_eq!(at, 2 * ALIGN);
        assert_eq!(ring.left(1, 0..1), None, "it is lent");
        drop(held);

        let files = memory.files().into_iter();
        let files = files.map(|(name, file)| (name, file.try_clone().unwrap())).collect();
        let arena = || Memory::inherited(files).arena("test", 64 * ALIGN).unwrap();
        let left = std::slice::from_ref(&(ALIGN..2 * ALIGN));
        let mut next = RingBuffers::new(arena(), left).unwrap();
        assert_eq!(next.left(0, 0..3), Some(&[2; 3][..]));
        assert_eq!(next.lend(ALIGN).unwrap().0, 2 * ALIGN);
    }

    #[test]
    fn what_cannot_have_been_lent_is_refused() {
        let arena = || Memory::default().arena("test", 4 * ALIGN).unwrap();
        for (first, second) in [
            (0..5 * ALIGN, 0..ALIGN),
            (100..ALIGN, 2 * ALIGN..3 * ALIGN),
            (ALIGN..ALIGN, 2 * ALIGN..3 * ALIGN),
            (0..2 * ALIGN, ALIGN..3 * ALIGN),
        ] {
            assert!(RingBuffers::new(arena(), &[first, second]).is_none());
        }
    }

    #[test]
    #[cfg(not(miri))]
    fn memory_goes_when_nothing_is_lent() {
        let mut ring = ring(1 << 20);
        let (_, mut buffer) = ring.lend(1 << 20).unwrap();
        buffer.fill(7);
        ring.take_back();
        ring.rest(ALIGN);
        assert_eq!(ring.arena.present().next(), Some(0..1 << 20), "it is lent");
        drop(buffer);
        ring.rest(ALIGN);
        let left: Vec<_> = ring.arena.present().collect();
        assert_eq!((left.len(), &left[0]), (1, &(0..ALIGN)));
    }
}

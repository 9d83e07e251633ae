//! The bytes of a chunk while several threads fill it.
//!
//! The owner of the chunk reserves ranges under the core's lock; the holder of a [`Fill`] fills its
//! range without that lock. Invariants: ranges are reserved in ascending order, so no two overlap
//! and no byte is reserved twice; until its `Fill` is dropped, only the holder accesses a range;
//! the buffer is handed on as a whole when no `Fill` is left.

use crate::log::disk::format::GRANULE;
use crate::media::{Buffer, RingBuffers};
use std::cell::UnsafeCell;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Most ranges that are filled at the same time: all bits of a word but one.
const SLOTS: usize = 63;
/// The bit that says that a thread waits until no range is being filled.
const AWAITED: u64 = 1 << SLOTS;

/// State that the owner and the holders of [`Fill`] share.
struct Shared {
    /// The memory of `buffer`. Until the buffer is handed on, only this pointer accesses its bytes:
    /// a reference to the buffer would be one to all of them.
    start: *mut u8,
    len: usize,
    /// `None` after it is handed on; only the owner accesses this.
    buffer: UnsafeCell<Option<Buffer>>,
    /// A bit for each range that is being filled, and [`AWAITED`].
    busy: AtomicU64,
}

// SAFETY: `start` is the memory of `buffer`, which goes with it from thread to thread, and is used
// only as `Filling` and `Fill` say.
unsafe impl Send for Shared {}
// SAFETY: through a shared reference only disjoint parts of that memory are written, each by the
// one holder of its `Fill`; the owner reads none of them before it has seen that holder go. Only
// the owner touches `buffer`, and there is one owner.
unsafe impl Sync for Shared {}

/// The owner's side of a chunk's bytes.
pub(super) struct Filling {
    shared: Arc<Shared>,
    /// Bytes from here on are not reserved yet.
    end: usize,
    ranges: Box<[(u32, u32); SLOTS]>,
}

/// A reserved range of a chunk, for the holder to fill; dropped, it counts as filled.
struct Fill {
    /// `None` only after `end`.
    shared: Option<Arc<Shared>>,
    slot: usize,
    /// What is left to fill.
    range: Range<usize>,
}

impl Filling {
    pub(super) fn new(mut buffer: Buffer) -> Self {
        let (start, len) = (buffer.as_mut_ptr(), buffer.len());
        let buffer = UnsafeCell::new(Some(buffer));
        let shared = Shared { start, len, buffer, busy: AtomicU64::new(0) };
        Self { shared: Arc::new(shared), end: 0, ranges: Box::new([(0, 0); SLOTS]) }
    }

    /// Bytes of the chunk's memory.
    pub(super) fn len(&self) -> usize {
        self.shared.len
    }

    /// Returns the memory from `len` on, where no range will be reserved.
    pub(super) fn settle(&mut self, buffers: &mut RingBuffers, len: usize) {
        assert!(self.end <= len);
        // SAFETY: only the owner touches this, and it is `self`.
        if let Some(buffer) = unsafe { &mut *self.shared.buffer.get() } {
            // This shortens the buffer, and reads none of its bytes.
            buffers.settle(buffer, len);
        }
    }

    /// Whether a range is being filled; then the thread that fills the last one learns that it has
    /// a waiter.
    pub(super) fn awaits(&self) -> bool {
        let filled = || self.shared.busy.load(Ordering::Acquire) & !AWAITED == 0;
        !filled() && self.shared.busy.fetch_or(AWAITED, Ordering::AcqRel) & !AWAITED != 0
    }

    /// Whether one more range can be reserved.
    pub(super) fn has_slot(&self) -> bool {
        self.shared.busy.load(Ordering::Relaxed) | AWAITED != u64::MAX
    }

    /// Reserves a range that lies behind all others, if [`Self::has_slot`]. `kept` is the filling
    /// thread's reference to the chunk that it filled last: mostly this one, which saves a new
    /// reference.
    fn reserve(&mut self, range: Range<usize>, kept: Option<Arc<Shared>>) -> Option<Fill> {
        assert!(self.end <= range.start && range.start <= range.end && range.end <= self.len());
        let slot = self.shared.busy.load(Ordering::Relaxed).trailing_ones() as usize;
        *self.ranges.get_mut(slot)? = (range.start as u32, range.end as u32);
        self.end = range.end;
        // Only the owner sets a slot's bit, and this is the owner.
        self.shared.busy.fetch_or(1 << slot, Ordering::Relaxed);
        let kept = kept.filter(|kept| Arc::ptr_eq(kept, &self.shared));
        Some(Fill { shared: Some(kept.unwrap_or_else(|| self.shared.clone())), slot, range })
    }

    /// Extends the range of `fill` by `to`, if `to` follows it and no range behind it is reserved;
    /// returns whether it did.
    fn extend(&mut self, fill: &mut Fill, to: Range<usize>) -> bool {
        let ours = fill.shared.as_ref().is_some_and(|shared| Arc::ptr_eq(&self.shared, shared));
        let last = fill.range.end == self.end && to.start == self.end;
        if !ours || !last || to.end < to.start || to.end > self.len() {
            return false;
        }
        self.ranges[fill.slot].1 = to.end as u32;
        (fill.range.end, self.end) = (to.end, to.end);
        true
    }

    /// Reserved bytes; `None` while some of them are being filled.
    pub(super) fn read(&self, range: Range<usize>) -> Option<&[u8]> {
        assert!(range.start <= range.end && range.end <= self.end);
        let mut busy = self.shared.busy.load(Ordering::Acquire) & !AWAITED;
        while busy != 0 {
            let (from, to) = self.ranges[busy.trailing_zeros() as usize];
            if (from as usize) < range.end && range.start < to as usize {
                return None;
            }
            busy &= busy - 1;
        }
        // SAFETY: the range lies in the memory, which was made of initialised bytes and stays while
        // `self` does. No thread writes to it: if a part of it had a `Fill`, that `Fill` is gone,
        // because its end has cleared the bit (`Release`, read by `Acquire`), so what it wrote is
        // seen; and a new `Fill` needs `&mut self`.
        Some(unsafe { std::slice::from_raw_parts(self.shared.start.add(range.start), range.len()) })
    }

    /// A copy of the filled bytes, for a planted bug.
    pub(super) fn snapshot(&self) -> Buffer {
        let mut copy = Buffer::new(self.len());
        for (at, to) in copy[..self.end].chunks_mut(GRANULE as usize).enumerate() {
            let from = at * GRANULE as usize;
            to.copy_from_slice(self.read(from..from + to.len()).unwrap_or(&[0; GRANULE as usize]));
        }
        copy
    }

    /// The buffer, if all reserved ranges are filled; else see [`Self::awaits`].
    pub(super) fn into_filled(self) -> Result<Buffer, Self> {
        if self.awaits() {
            return Err(self);
        }
        // SAFETY: only the owner touches this, and it is `self`. Every `Fill` is gone (as in
        // `read`), so nothing uses the memory; what is kept of `shared` is only compared.
        unsafe { (*self.shared.buffer.get()).take() }.ok_or(self)
    }
}

/// The ranges that a request has to fill, in the order in which it reserved them.
#[derive(Default)]
pub struct Fills {
    fills: Vec<Fill>,
    next: usize,
    /// The chunk that was filled last.
    kept: Option<Arc<Shared>>,
}

impl Fills {
    /// Reserves one more range, of a chunk that [`Filling::has_slot`].
    pub(super) fn reserve(&mut self, filling: &mut Filling, range: Range<usize>) {
        let grown = self.fills.last_mut().is_some_and(|last| filling.extend(last, range.clone()));
        if !grown {
            self.fills.extend(filling.reserve(range, self.kept.take()));
        }
    }

    /// Copies the next payload to its place.
    pub fn fill(&mut self, payload: &[u8]) {
        self.next += usize::from(self.fills.get(self.next).is_some_and(Fill::is_full));
        if let Some(fill) = self.fills.get_mut(self.next) {
            fill.push(payload);
        }
    }

    /// Marks all ranges as filled. Returns whether a thread waits for that, and has to be woken.
    pub fn finish(&mut self) -> bool {
        let mut awaited = false;
        for mut fill in self.fills.drain(..) {
            let (shared, tell) = fill.end();
            self.kept = shared;
            awaited |= tell;
        }
        self.next = 0;
        awaited
    }
}

impl Fill {
    /// Copies a payload to the begin of the unfilled part, with zeros up to the next granule.
    fn push(&mut self, payload: &[u8]) {
        let len = payload.len().next_multiple_of(GRANULE as usize);
        assert!(len <= self.range.len());
        let Some(shared) = &self.shared else { return };
        // SAFETY: the range lies in the memory. It was given out only once, and the owner does not
        // read it while this `Fill` is there; so this is the only reference to it.
        let to = unsafe { std::slice::from_raw_parts_mut(shared.start.add(self.range.start), len) };
        let (bytes, rest) = to.split_at_mut(payload.len());
        bytes.copy_from_slice(payload);
        rest.fill(0);
        self.range.start += len;
    }

    /// Whether nothing is left to fill.
    fn is_full(&self) -> bool {
        self.range.is_empty()
    }
}

impl Fill {
    /// Marks the range as filled: from here on the owner may read it. Returns the reference to the
    /// chunk, for reuse, and whether a thread waits for all ranges and this was the last.
    fn end(&mut self) -> (Option<Arc<Shared>>, bool) {
        let Some(shared) = self.shared.take() else { return (None, false) };
        let bit = 1 << self.slot;
        let before = shared.busy.fetch_and(!bit, Ordering::AcqRel);
        (Some(shared), before == bit | AWAITED)
    }
}

impl Drop for Fill {
    fn drop(&mut self) {
        self.end();
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read_when_they_are_filled() {
        let mut filling = Filling::new(Buffer::new(4096));
        let mut first = filling.reserve(128..160, None).unwrap();
        let mut second = filling.reserve(160..176, None).unwrap();
        assert_eq!(filling.read(128..160), None);
        second.push(&[2; 10]);
        drop(second);
        assert_eq!(filling.read(160..170), Some(&[2; 10][..]));
        assert_eq!(filling.read(159..170), None);
        assert!(!filling.extend(&mut first, 176..192), "another one is behind it");
        first.push(&[1; 16]);
        assert!(!first.is_full());
        filling = filling.into_filled().err().unwrap();
        first.push(&[1; 16]);
        assert!(first.is_full());
        drop(first);
        assert_eq!(filling.read(128..160), Some(&[1; 32][..]));
        let bytes = filling.into_filled().ok().unwrap();
        assert_eq!((bytes[127], bytes[159], bytes[169], bytes[170]), (0, 1, 2, 0));
    }

    #[test]
    fn a_range_grows_while_it_is_the_last() {
        let (mut filling, mut other) =
            (Filling::new(Buffer::new(4096)), Filling::new(Buffer::new(4096)));
        let mut fill = filling.reserve(0..16, None).unwrap();
        assert!(filling.extend(&mut fill, 16..48));
        assert!(!filling.extend(&mut fill, 64..80), "not right behind it");
        assert!(!filling.extend(&mut fill, 48..5000), "no room");
        assert!(!other.extend(&mut fill, 48..64), "not its own");
        assert_eq!(filling.read(32..48), None);
        fill.push(&[7; 48]);
        drop(fill);
        assert_eq!(filling.read(0..48), Some(&[7; 48][..]));
    }

    #[test]
    fn no_more_ranges_than_there_are_slots() {
        let mut filling = Filling::new(Buffer::new(4096));
        let mut fills: Vec<Fill> =
            (0..SLOTS).map(|n| filling.reserve(n * 16..n * 16 + 16, None).unwrap()).collect();
        assert!(!filling.has_slot() && filling.reserve(2048..2064, None).is_none());
        fills.swap_remove(7);
        assert!(filling.has_slot());
        fills.push(filling.reserve(2048..2064, None).unwrap());
        assert!(filling.read(7 * 16..8 * 16).is_some() && filling.read(2048..2050).is_none());
    }

    #[test]
    fn threads_fill_while_the_owner_reads_and_reserves() {
        let mut filling = Filling::new(Buffer::new(64 << 10));
        let (give, take) = std::sync::mpsc::channel::<(Fill, u8)>();
        let take = std::sync::Mutex::new(take);
        std::thread::scope(|scope| {
            for _ in 0..2 {
                scope.spawn(|| {
                    while let Ok((mut fill, value)) = { take.lock().unwrap().recv() } {
                        fill.push(&[value; 90]);
                    }
                });
            }
            for n in 0..64usize {
                let fill = loop {
                    match filling.reserve(n * 96..(n + 1) * 96, None) {
                        Some(fill) => break fill,
                        None => std::thread::yield_now(),
                    }
                };
                give.send((fill, n as u8 + 1)).unwrap();
                for before in 0..n {
                    if let Some(bytes) = filling.read(before * 96..before * 96 + 90) {
                        assert_eq!(bytes, [before as u8 + 1; 90]);
                    }
                }
            }
            drop(give);
        });
        let bytes = filling.into_filled().ok().unwrap();
        assert!((0..64).all(|n| bytes[n * 96..n * 96 + 90] == [n as u8 + 1; 90]));
    }
}

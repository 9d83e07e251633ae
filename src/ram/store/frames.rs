//! RAM frames: segment-sized pieces of one arena.
//!
//! A frame is *cold* (no memory behind it), *ready* (memory behind it, unused) or taken. Ready and
//! taken frames are in the budget.
//!
//! Usually the thread that needs a frame gets its memory from the machine. Where the machine may be
//! waiting for that thread to free memory (swap), a *mempool* of ready frames is kept instead, and
//! only [`Frames::refill`] asks the machine for memory.

use super::RESERVE_SEGMENTS;
use crate::error::{Error, Result};
use crate::media::budget::{Budget, Taker};
use crate::media::{Arena, Memory};
use crate::remedy;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicUsize, Ordering};

/// The name of the memory file of the frames, which has exactly their bytes.
pub const FILE: &str = "frames";

/// All frames of a store.
#[derive(Debug)]
pub struct Frames {
    arena: Arena,
    frame_size: usize,
    count: u32,
    free: Mutex<Free>,
    /// Frames to keep ready, so that only [`Frames::refill`] asks the machine for memory; 0: every
    /// taker does.
    mempool: AtomicUsize,
}

#[derive(Debug)]
struct Free {
    ready: Vec<u32>,
    cold: Vec<u32>,
    /// Frames from this number on were never used.
    fresh: u32,
}

impl Frames {
    /// Room for `count` frames; none has memory behind it yet.
    ///
    /// # Errors
    /// See [`Memory::arena`].
    pub fn new(memory: &Memory, count: u32, frame_size: u32) -> Result<Self> {
        let frame_size = frame_size as usize;
        let arena = memory.arena(FILE, count as usize * frame_size)?;
        arena.prefer_huge_pages();
        // Room for all frames, so that the lists never grow. The room costs no memory until it is
        // used.
        let list = || Vec::with_capacity(count as usize);
        let free = Mutex::new(Free { ready: list(), cold: list(), fresh: 0 });
        Ok(Self { arena, frame_size, count, free, mempool: AtomicUsize::new(0) })
    }

    /// See [`Arena::lock`].
    ///
    /// # Errors
    /// See [`Arena::lock`].
    pub fn lock(&self) -> Result<()> {
        self.arena.lock()
    }

    /// Takes over the frames that another process had taken; returns the memory of all others to
    /// the machine.
    ///
    /// # Errors
    /// When a taken frame does not exist.
    pub(super) fn adopt(&self, mut taken: Vec<u32>, budget: &Budget) -> Result<()> {
        taken.sort_unstable();
        let fresh = taken.last().map_or(0, |last| last + 1);
        if fresh > self.count {
            return Err(Error::would_lose(
                "the memory that was kept names frames that are not there",
            )
            .hint(remedy::KEPT_BROKEN));
        }
        let there: Vec<_> = self.arena.present().collect();
        let is_taken = |frame: usize| taken.binary_search(&(frame as u32)).is_ok();
        for bytes in there {
            let frames = bytes.start / self.frame_size..bytes.end.div_ceil(self.frame_size);
            for frame in frames.filter(|frame| !is_taken(*frame)) {
                self.arena.remove(frame * self.frame_size, self.frame_size);
            }
        }
        let mut free = self.free.lock();
        free.cold.extend((0..fresh).filter(|frame| !is_taken(*frame as usize)));
        free.fresh = fresh;
        budget.add((taken.len() * self.frame_size) as u64);
        Ok(())
    }

    /// How many frames there can be.
    pub fn count(&self) -> u32 {
        self.count
    }

    /// How many frames to keep ready from now on; see [`Frames::refill`].
    pub fn keep(&self, mempool: usize) {
        self.mempool.store(mempool, Ordering::Release);
    }

    /// Frames to keep ready; 0 without a mempool.
    pub fn mempool(&self) -> usize {
        self.mempool.load(Ordering::Acquire)
    }

    /// Takes a frame with memory behind it; `None` when the budget or the machine has none left, or
    /// the mempool has none for this taker.
    pub fn take(&self, budget: &Budget, who: Taker) -> Option<u32> {
        let size = self.frame_size as u64;
        let has_mempool = self.mempool() > 0;
        {
            let mut free = self.free.lock();
            // A ready frame is paid for already, but an ordinary taker leaves the reserve alone.
            let others = budget.used().saturating_sub(size * free.ready.len() as u64);
            let ordinary = others + size + budget.reserve() <= budget.limit()
                && (!has_mempool || free.ready.len() > RESERVE_SEGMENTS as usize);
            if (who == Taker::Cleaner || ordinary)
                && let Some(frame) = free.ready.pop()
            {
                return Some(frame);
            }
        }
        if has_mempool { None } else { self.warm_up(budget, |bytes| budget.take(bytes, who)) }
    }

    /// A frame beyond the limit, for the cleaner of a store that was taken over too full to have a
    /// frame left. The first segment that the cleaner empties pays the frame back.
    pub(super) fn lend(&self, budget: &Budget) -> Option<u32> {
        self.warm_up(budget, |bytes| {
            budget.add(bytes);
            true
        })
    }

    /// Gets one more frame ready if the mempool is not full. `false` when it is full, or the budget
    /// or the machine has no memory for another.
    pub fn refill(&self, budget: &Budget) -> bool {
        if self.ready() >= self.mempool() {
            return false;
        }
        // The first frames are the reserve and paid for, so the budget need not keep the reserve
        // free as well. An ordinary taker leaves these frames alone.
        let frame = self.warm_up(budget, |bytes| budget.take(bytes, Taker::Cleaner));
        frame.map(|frame| self.give(frame)).is_some()
    }

    /// Puts memory behind a cold frame, if `pay` charges the budget for it.
    fn warm_up(&self, budget: &Budget, pay: impl FnOnce(u64) -> bool) -> Option<u32> {
        let size = self.frame_size as u64;
        let frame = {
            let mut free = self.free.lock();
            if !pay(size) {
                return None;
            }
            match free.cold.pop() {
                Some(frame) => frame,
                None if free.fresh < self.count => {
                    free.fresh += 1;
                    free.fresh - 1
                }
                None => {
                    budget.give(size);
                    return None;
                }
            }
        };
        if self.arena.populate(frame as usize * self.frame_size, self.frame_size).is_err() {
            // A part of the frame may have memory by now.
            self.arena.remove(frame as usize * self.frame_size, self.frame_size);
            self.cool(frame, budget);
            return None;
        }
        Some(frame)
    }

    /// Makes sure that a frame is ready, if the budget allows one more, so that the thread that
    /// opens the next segment under a lock need not wait for the machine to clear its pages.
    pub fn prepare(&self, budget: &Budget) {
        if self.mempool() == 0
            && self.free.lock().ready.is_empty()
            && let Some(frame) = self.take(budget, Taker::Ordinary)
        {
            self.give(frame);
        }
    }

    /// Gives a frame back; it stays ready.
    pub fn give(&self, frame: u32) {
        self.free.lock().ready.push(frame);
    }

    /// Gives back the memory of ready frames beyond `keep` and beyond the mempool; returns their
    /// number.
    pub fn trim(&self, budget: &Budget, keep: usize) -> usize {
        self.trim_to(budget, keep.max(self.mempool()))
    }

    /// The same, down to `keep` frames even below the mempool, for a caller that needs budget more
    /// than frames. The frames of the cleaner's reserve stay if the budget has no room for the
    /// reserve beside what is taken: without them nothing would fit either.
    pub fn trim_to(&self, budget: &Budget, keep: usize) -> usize {
        let size = self.frame_size as u64;
        let surplus = || {
            let mut free = self.free.lock();
            let others = budget.used().saturating_sub(size * free.ready.len() as u64);
            let is_short = others + RESERVE_SEGMENTS * size > budget.limit();
            let keep = if is_short { keep.max(RESERVE_SEGMENTS as usize) } else { keep };
            if free.ready.len() > keep { free.ready.pop() } else { None }
        };
        // One at a time: a list of frames would need memory, which the caller is short of.
        let mut trimmed = 0;
        while let Some(frame) = surplus() {
            self.arena.remove(frame as usize * self.frame_size, self.frame_size);
            self.cool(frame, budget);
            trimmed += 1;
        }
        trimmed
    }

    /// Takes back a frame without memory. Adds the frame before its bytes: a thread that gets bytes
    /// for a frame has to find one.
    fn cool(&self, frame: u32, budget: &Budget) {
        self.free.lock().cold.push(frame);
        budget.give(self.frame_size as u64);
    }

    /// Frames that have memory behind them, ready or taken.
    pub fn warm(&self) -> usize {
        let free = self.free.lock();
        free.fresh as usize - free.cold.len()
    }

    /// Frames that are ready.
    pub fn ready(&self) -> usize {
        self.free.lock().ready.len()
    }

    /// The bytes of a published record. The caller keeps the frame from being reused, by an epoch
    /// or as its only cleaner.
    ///
    /// # Panics
    /// When the range leaves the frame; offsets come from checked index entries.
    pub fn bytes(&self, frame: u32, offset: u32, len: u32) -> &[u8] {
        assert!(offset as usize + len as usize <= self.frame_size, "record leaves its frame");
        let at = self.arena.at(frame as usize * self.frame_size + offset as usize);
        // SAFETY: inside the arena (frame numbers come from `take`; the range was checked). The
        // range was filled before it was published and no thread writes to it again before the
        // frame is reused, which the caller prevents, so it is immutable while the slice
        // lives.
        unsafe { std::slice::from_raw_parts(at, len as usize) }
    }

    /// Copies `parts`, one after the other, into a reserved range that starts at `offset`.
    ///
    /// # Panics
    /// When the parts leave the frame.
    pub fn fill(&self, frame: u32, offset: u32, parts: &[&[u8]]) {
        let len: usize = parts.iter().map(|part| part.len()).sum();
        assert!(offset as usize + len <= self.frame_size, "reservation leaves its frame");
        let mut at = self.arena.at(frame as usize * self.frame_size + offset as usize);
        for part in parts {
            // SAFETY: the range was checked to be inside the frame; it was reserved by the caller
            // alone and is not published yet, so no other thread reads or writes it.
            unsafe {
                std::ptr::copy_nonoverlapping(part.as_ptr(), at, part.len());
                at = at.add(part.len());
            }
        }
    }
}

#[cfg(all(test, not(shuttle)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::error::Status;

    /// The table of segments is checked before; this is the last check before frames are used.
    #[test]
    fn frames_that_are_not_there_are_refused_and_the_memory_stays() {
        let (size, limit) = (64 << 10, 1 << 20);
        let memory = Memory::default();
        let frames = Frames::new(&memory, 4, size).unwrap();
        let budget = Budget::new(limit, 0);
        let taken: Vec<_> = (0..4).map(|_| frames.take(&budget, Taker::Cleaner).unwrap()).collect();
        frames.fill(taken[3], 0, &[b"kept"]);
        let files = memory.files().into_iter();
        let files = files.map(|(name, file)| (name, file.try_clone().unwrap()));
        let next = Frames::new(&Memory::inherited(files.collect()), 4, size).unwrap();
        let budget = Budget::new(limit, 0);
        for wrong in [4, 100, u32::MAX - 1] {
            let refused = next.adopt(vec![wrong, 1], &budget).unwrap_err();
            assert!(refused.to_string().contains("names frames that are not there"), "{refused}");
            assert_eq!(refused.status(), Status::WouldLose);
            assert_eq!((budget.used(), next.warm()), (0, 0));
        }
        next.adopt(vec![taken[3], taken[0]], &budget).unwrap();
        assert_eq!((budget.used(), next.warm()), (2 * u64::from(size), 2));
        assert_eq!(next.bytes(taken[3], 0, 4), b"kept");
        // The memory of the others went back to the machine, and they can be taken again.
        assert_eq!((0..5).filter_map(|_| next.take(&budget, Taker::Cleaner)).count(), 2);
    }
}

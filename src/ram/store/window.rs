//! What was read of slots: a few windows, which all threads share.
//!
//! A read that comes to a record in a slot looks for it in the windows. If it is in none, a part of
//! the slot is brought into the one that was not used for longest. A stream that goes through a
//! slot, or from one into the next, is known by a window that it has come to the end of, whichever
//! thread reads: each time it reads on, twice as much is brought, into a window that has room for
//! that. They are of different sizes, so that one stream can have half of all that there is.
//!
//! How large they are goes with the limit on memory, roughly: each change of that would otherwise
//! throw away what was brought.
//!
//! Invariants:
//! - a window names its bytes by the sequence of their segment, which never comes back, so it is
//!   never out of date;
//! - a window is locked while it is filled, and other readers do not wait for it then: they look
//!   past it;
//! - what was brought stays until a read has looked at it, or it is clear that no read comes.

use super::format::{CLUSTER_MAX, HEADER, Location};
use crate::BLOCK_SIZE;
use crate::media::{ALIGN, Buffer};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use std::cmp::Reverse;
use std::ops::Range;

/// How many there are at least, and at most.
const COUNT: Range<usize> = if cfg!(shuttle) { 2..2 } else { 3..6 };
/// The least that is brought where more than the record follows, and the most.
const LEAST: u32 = 16 << 10;
/// See [`LEAST`].
const MOST: u32 = 1 << 20;
/// Which part of the limit on memory they take, as far as the least that is of use is no more.
const PART: u64 = 44;
/// A read so far behind the end of a window goes on from there.
const NEAR: u32 = 64 << 10;
/// After so many rounds of waiting, a few milliseconds, no read comes any more for what was
/// brought: the block that was wanted is elsewhere by now.
const PATIENCE: u32 = if cfg!(shuttle) { 2 } else { 100 };

const _: () = assert!(CLUSTER_MAX + 2 * ALIGN <= 2 * LEAST as usize);

/// All of them.
#[derive(Debug)]
pub(super) struct Windows {
    /// The largest first; those beyond what there is memory for have none.
    windows: Box<[Shared]>,
    /// Bytes that all of them have room for; locked while that changes.
    room: Mutex<usize>,
    /// The most that one of them is of use for.
    most: usize,
    /// Bytes that the first of them has room for.
    largest: AtomicU32,
    /// Counts uses.
    clock: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    window: Mutex<Window>,
    /// A thread waits for the device to fill this one.
    is_filling: AtomicBool,
}

/// A part of a segment, as it is in a slot.
struct Window {
    buffer: Buffer,
    /// The sequence of the segment; 0: there is nothing.
    name: u64,
    /// Which part it is.
    range: Range<u32>,
    /// How much would have been brought, if the segment did not end.
    reach: u32,
    /// The block after the last that was read from it.
    next: u64,
    /// When it was used last.
    used: u64,
    /// No read has looked at what was brought.
    awaited: bool,
}

/// What is to be read of a slot for a record, and where to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    /// The most to bring, in bytes.
    pub most: u32,
    /// It goes on where the last one ended: what follows in the slot is wanted too.
    pub is_stream: bool,
    /// The window that has served.
    place: Option<usize>,
}

impl Wish {
    /// The same for so many bytes and nothing behind them.
    pub(super) fn cut(self, most: u32) -> Self {
        Self { most, is_stream: false, ..self }
    }
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("name", &self.name).field("range", &self.range).finish()
    }
}

impl Windows {
    /// Empty ones, for slots of segments of `segment` bytes, below a `limit` on memory.
    pub(super) fn new(segment: u32, limit: u64) -> Self {
        // A record that begins in a page and ends in another needs both.
        let most = MOST.min(segment).max(2 * LEAST) as usize;
        let sizes = sizes((limit / PART) as usize, 2 * LEAST as usize..most);
        let shared = |len: &usize| Shared {
            window: Mutex::new(Window::new(*len)),
            is_filling: AtomicBool::new(false),
        };
        let windows = sizes.iter().map(shared).collect();
        let room = Mutex::new(sizes.iter().sum());
        let largest = AtomicU32::new(sizes[0] as u32);
        Self { windows, room, most, largest, clock: AtomicU64::new(1) }
    }

    /// Resizes the windows to what a `limit` asks for, if they are at least twice or at most half
    /// as large, and `take` has the bytes for those that grow. They lose their contents then. Waits
    /// for threads that hold a window. Says by how many bytes they shrank.
    pub(super) fn fit(&self, limit: u64, take: impl Fn(u64) -> bool) -> u64 {
        let sizes = sizes((limit / PART) as usize, 2 * LEAST as usize..self.most);
        let mut room = self.room.lock();
        let (wanted, now) = (sizes.iter().sum::<usize>(), *room);
        let is_near = wanted > now / 2 && wanted < now * 2;
        if is_near || wanted > now && !take((wanted - now) as u64) {
            return 0;
        }
        *room = wanted;
        for (shared, len) in self.windows.iter().zip(&sizes) {
            // Memory is asked for and given back without the lock of the window.
            let mut other = Window::new(*len);
            std::mem::swap(&mut *shared.window.lock(), &mut other);
        }
        self.largest.store(sizes[0] as u32, Ordering::Release);
        now.saturating_sub(wanted) as u64
    }

    /// Bytes of memory.
    pub(super) fn memory(&self) -> usize {
        *self.room.lock()
    }

    /// Has `work` look at the record of `block`, if a window has it. What `work` finds damaged is
    /// forgotten: the device may say something else next time.
    pub(super) fn look(
        &self,
        name: u64,
        (block, at): (u64, Location),
        work: impl FnOnce(&[u8]) -> bool,
    ) -> Option<bool> {
        for shared in &self.windows {
            let Some(mut window) = shared.lock_filled() else { continue };
            let Some(record) = window.record(name, at) else { continue };
            let is_good = work(record);
            window.awaited = false;
            if is_good {
                window.next = block + 1;
                window.used = self.clock.fetch_add(1, Ordering::Relaxed);
            } else {
                window.name = 0;
            }
            return Some(is_good);
        }
        None
    }

    /// What to bring for the record of `block`, when `count` blocks from there on are wanted.
    pub(super) fn wish(&self, name: u64, (block, at): (u64, Location), count: usize) -> Wish {
        for (place, shared) in self.windows.iter().enumerate() {
            let Some(window) = shared.lock_filled() else { continue };
            if window.ends_before(name, block, at.offset) {
                let most = (2 * window.reach).clamp(LEAST, self.largest());
                return Wish { most, is_stream: true, place: Some(place) };
            }
        }
        let blocks = (count * (HEADER + BLOCK_SIZE)).min(self.largest() as usize) as u32;
        Wish { most: LEAST.max(blocks), is_stream: false, place: None }
    }

    fn largest(&self) -> u32 {
        self.largest.load(Ordering::Acquire)
    }

    /// Has `fill` bring a part of the segment `name` into a window, or as much of it as fits in one
    /// that is free. `false` if it fails, and nothing is there.
    pub(super) fn fill(
        &self,
        name: u64,
        range: Range<u32>,
        wish: Wish,
        fill: impl FnOnce(&mut [u8]) -> bool,
    ) -> bool {
        let mut round = 0;
        let (place, mut window) = loop {
            if let Some(found) = self.choose((range.end - range.start) as usize, wish, round) {
                break found;
            }
            // More threads than windows: the threads that hold one wait for the device only.
            crate::sync::rest(round);
            round = round.saturating_add(1);
        };
        let is_filling = &self.windows[place].is_filling;
        is_filling.store(true, Ordering::Release);
        (window.name, window.awaited) = (0, false);
        let len = (range.end - range.start).min(window.buffer.len() as u32);
        let filled = fill(&mut window.buffer[..len as usize]);
        if filled {
            let range = range.start..range.start + len;
            (window.name, window.range, window.next) = (name, range, u64::MAX);
            window.reach = if wish.is_stream { wish.most } else { len };
            window.used = self.clock.fetch_add(1, Ordering::Relaxed);
            window.awaited = true;
        }
        is_filling.store(false, Ordering::Release);
        filled
    }

    /// The window that the wish is about, if it has room for `len` bytes; or else, of those that
    /// have, the one that was not used for longest; or else the largest. Those that a read is about
    /// to look at only if that takes too long: else readers would take what they have brought from
    /// each other, again and again.
    fn choose(
        &self,
        len: usize,
        wish: Wish,
        round: u32,
    ) -> Option<(usize, MutexGuard<'_, Window>)> {
        let lock = |place: usize| {
            let window = self.windows[place].window.try_lock()?;
            (!window.awaited || round > PATIENCE).then_some((place, window))
        };
        let wished = wish.place.and_then(lock).filter(|(_, window)| window.buffer.len() >= len);
        wished.or_else(|| {
            (0..self.windows.len())
                .filter_map(lock)
                .filter(|(_, window)| !window.buffer.is_empty())
                .max_by_key(|(_, window)| (window.buffer.len().min(len), Reverse(window.used)))
        })
    }
}

/// How large the windows are, each in bytes in the `range`: in all about `all`, half of what is
/// left each, but so that there are enough. Those that are too many have none.
fn sizes(all: usize, range: Range<usize>) -> Vec<usize> {
    let mut sizes = Vec::with_capacity(COUNT.end);
    let mut left = all;
    while sizes.len() < COUNT.start || sizes.len() < COUNT.end && left >= range.start {
        let others = COUNT.start.saturating_sub(sizes.len() + 1) * range.start;
        let len = (left / 2).min(left.saturating_sub(others)) / ALIGN * ALIGN;
        let len = len.clamp(range.start, range.end);
        sizes.push(len);
        left = left.saturating_sub(len);
    }
    sizes.resize(COUNT.end, 0);
    sizes
}

impl Shared {
    /// The window, unless it is being filled. A thread that has it otherwise waits for nothing.
    fn lock_filled(&self) -> Option<MutexGuard<'_, Window>> {
        let mut round = 0;
        loop {
            if let Some(window) = self.window.try_lock() {
                return Some(window);
            }
            if self.is_filling.load(Ordering::Acquire) {
                return None;
            }
            crate::sync::relax(round);
            round = round.saturating_add(1);
        }
    }
}

impl Window {
    /// With room for so many bytes, and nothing in it.
    fn new(len: usize) -> Self {
        Self {
            buffer: Buffer::new(len),
            name: 0,
            range: 0..0,
            reach: 0,
            next: u64::MAX,
            used: 0,
            awaited: false,
        }
    }

    fn record(&self, name: u64, at: Location) -> Option<&[u8]> {
        let end = at.offset + at.record_len();
        let has = self.name == name && at.offset >= self.range.start;
        let start = (has && end <= self.range.end).then(|| at.offset - self.range.start)?;
        self.buffer.get(start as usize..(start + at.record_len()) as usize)
    }

    /// Whether a read of `block`, `offset` bytes into the segment `name`, goes on where reads of
    /// this window have come to.
    fn ends_before(&self, name: u64, block: u64, offset: u32) -> bool {
        let behind = self.name == name
            && offset + ALIGN as u32 >= self.range.end
            && offset < self.range.end + NEAR;
        self.name != 0 && (behind || self.next == block)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn at(offset: u32) -> Location {
        Location { segment: 1, offset, len: 100, parts: 0 }
    }

    fn bring(windows: &Windows, name: u64, range: Range<u32>, wish: Wish) {
        assert!(windows.fill(name, range, wish, |bytes| {
            bytes.fill(name as u8);
            true
        }));
    }

    #[test]
    fn streams_bring_more_and_more_into_one_window() {
        let windows = Windows::new(1 << 20, 1 << 30);
        let first = windows.wish(7, (10, at(0)), 1);
        assert_eq!((first.most, first.is_stream), (LEAST, false));
        bring(&windows, 7, 0..LEAST, first);
        assert_eq!(windows.look(7, (10, at(0)), |bytes| bytes[0] == 7), Some(true));
        assert_eq!(windows.look(8, (10, at(0)), |_| true), None, "of another segment");
        let mut end = LEAST;
        for most in [32, 64, 128, 256, 512, 1024, 1024].map(|kib| kib << 10) {
            // The last one of a window.
            assert_eq!(windows.look(7, (10, at(end - 200)), |_| true), Some(true));
            let wish = windows.wish(7, (11, at(end)), 1);
            assert_eq!(
                (wish.most, wish.is_stream, wish.place),
                (most, true, place_of(&windows, 7))
            );
            bring(&windows, 7, end..end + most, wish);
            end += most;
        }
        // Into the next slot, by the number of the block.
        assert_eq!(windows.look(7, (90, at(end - 200)), |_| true), Some(true));
        assert!(windows.wish(9, (91, at(500_000)), 1).is_stream);
        assert!(!windows.wish(9, (92, at(500_000)), 1).is_stream);
    }

    fn place_of(windows: &Windows, name: u64) -> Option<usize> {
        windows.windows.iter().position(|shared| shared.window.lock().name == name)
    }

    #[test]
    fn the_largest_is_half_of_all_and_others_are_there_for_what_is_short() {
        let least = 2 * LEAST as usize;
        let kib = |all: usize| {
            let mut sizes = sizes(all << 10, least..MOST as usize);
            sizes.retain(|len| *len > 0);
            sizes
        };
        assert_eq!(kib(1536), [768, 384, 192, 96, 48, 32].map(|kib| kib << 10));
        assert_eq!(kib(64 << 10), [MOST as usize; 6]);
        assert_eq!(kib(128), [64 << 10, 32 << 10, 32 << 10]);
        assert_eq!(kib(110), [44 << 10, 32 << 10, 32 << 10]);
        assert_eq!(kib(0), [least; 3]);
        // Where all large ones are taken, less is brought.
        let windows = Windows::new(1 << 20, PART * (1536 << 10));
        let all: Vec<_> = windows.windows[..2].iter().map(|shared| shared.window.lock()).collect();
        bring(&windows, 7, 0..MOST, Wish { most: MOST, is_stream: true, place: None });
        assert_eq!(windows.windows[2].window.lock().range, 0..192 << 10);
        drop(all);
    }

    #[test]
    fn they_go_with_the_limit_but_not_with_each_step_of_it() {
        let memory = |windows: &Windows| {
            let sizes = windows.windows.iter().map(|shared| shared.window.lock().buffer.len());
            assert_eq!(sizes.sum::<usize>(), windows.memory());
            windows.memory()
        };
        let windows = Windows::new(1 << 20, 256 << 20);
        let before = memory(&windows);
        let least = 3 * 2 * LEAST as usize;
        bring(&windows, 7, 0..LEAST, windows.wish(7, (10, at(0)), 1));
        assert_eq!(windows.fit(200 << 20, |_| true), 0);
        assert_eq!(windows.fit(400 << 20, |_| true), 0);
        assert!(windows.look(7, (10, at(0)), |_| true).is_some(), "still there");
        assert_eq!(windows.fit(1 << 20, |_| false), (before - least) as u64);
        assert_eq!((memory(&windows), windows.largest()), (least, 2 * LEAST));
        assert!(windows.look(7, (10, at(0)), |_| true).is_none());
        // Those that have no room are not taken for one that has.
        let all: Vec<_> = windows.windows[..2].iter().map(|shared| shared.window.lock()).collect();
        bring(&windows, 8, 0..LEAST, Wish { most: LEAST, is_stream: true, place: Some(4) });
        assert_eq!(windows.windows[2].window.lock().name, 8);
        drop(all);
        // Larger only if there are bytes for it.
        assert_eq!(windows.fit(256 << 20, |_| false), 0);
        assert_eq!(memory(&windows), least);
        let paid = std::cell::Cell::new(0);
        let pay = |bytes| {
            paid.set(bytes);
            true
        };
        assert_eq!(windows.fit(256 << 20, pay), 0);
        assert_eq!((paid.get(), memory(&windows)), ((before - least) as u64, before));
        bring(&windows, 9, 0..MOST, Wish { most: MOST, is_stream: true, place: Some(0) });
        assert_eq!(windows.windows[0].window.lock().range, 0..MOST);
    }

    #[test]
    fn as_much_as_is_asked_for_is_brought_at_once() {
        let windows = Windows::new(1 << 20, 1 << 30);
        assert_eq!(windows.wish(1, (0, at(0)), 32).most, 32 * (HEADER + BLOCK_SIZE) as u32);
        assert_eq!(windows.wish(1, (0, at(0)), 1000).most, MOST);
    }

    #[test]
    fn what_was_brought_stays_until_a_read_has_looked_at_it() {
        let windows = Windows::new(1 << 20, 1 << 30);
        let count = windows.windows.len() as u64;
        for name in 1..=count {
            bring(&windows, name, 0..LEAST, windows.wish(name, (1000 * name, at(0)), 1));
        }
        let wish = windows.wish(99, (9, at(0)), 1);
        let choose = |round| windows.choose(4096, wish, round).map(|(place, _)| place);
        assert_eq!(choose(0), None);
        assert_eq!(windows.look(2, (2000, at(0)), |_| true), Some(true));
        assert_eq!(choose(0), place_of(&windows, 2));
        // A read that never comes does not hold up others for long.
        assert_eq!(choose(PATIENCE + 1), place_of(&windows, 1));
        for name in 100..100 + count {
            bring(&windows, name, 0..LEAST, wish);
        }
    }

    #[test]
    fn the_one_that_was_not_used_for_longest_goes() {
        let windows = Windows::new(1 << 20, 1 << 30);
        for name in 1..=windows.windows.len() as u64 {
            bring(&windows, name, 0..LEAST, windows.wish(name, (1000 * name, at(0)), 1));
            assert_eq!(windows.look(name, (1000 * name, at(0)), |_| true), Some(true));
        }
        assert_eq!(windows.look(1, (1000, at(0)), |_| true), Some(true));
        bring(&windows, 99, 0..LEAST, windows.wish(99, (9, at(0)), 1));
        let has = |name| windows.look(name, (1, at(0)), |_| true).is_some();
        assert!(has(1) && has(99) && !has(2));
        // What is damaged, or could not be read, is not there.
        assert_eq!(windows.look(1, (1, at(0)), |_| false), Some(false));
        assert!(!has(1));
        let wish = windows.wish(50, (9, at(900_000)), 1);
        assert!(!windows.fill(50, 0..LEAST, wish, |_| false));
        assert!(!has(50));
    }
}

//! Windows: parts of slots that were read lately, shared by all threads.
//!
//! A read that comes to a record in a slot looks for it in the windows. If none has it, the read
//! brings a part of the slot into the window that was not used for longest. A window whose end a
//! read has come to marks a stream, whichever thread reads, through a slot or from one slot into
//! the next. Each time a stream reads on, it brings twice as much, into a window with room for
//! that. Windows differ in size, so that one stream can have half of all their memory.
//!
//! Their sizes follow the limit on memory roughly: to follow each change would throw away what was
//! brought.
//!
//! Invariants:
//! - a window names its bytes by the sequence of their segment, which is never reused, so a window
//!   is never out of date;
//! - a window is locked while it is filled; other readers then skip it and do not wait;
//! - what was brought stays until a read has looked at it, or no read can be expected any more.

use super::format::{CLUSTER_MAX, HEADER, Location};
use crate::BLOCK_SIZE;
use crate::media::{ALIGN, Buffer};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use std::cmp::Reverse;
use std::ops::Range;

/// The least and the most windows.
const COUNT: Range<usize> = if cfg!(shuttle) { 2..2 } else { 3..6 };
/// The least that is brought where more than the record follows.
const LEAST: u32 = 16 << 10;
/// The most that is brought at once.
const MOST: u32 = 1 << 20;
/// Windows take one part in this many of the limit on memory, unless the least useful size is more.
const PART: u64 = 44;
/// A read less than this far behind the end of a window goes on from that window.
const NEAR: u32 = 64 << 10;
/// Rounds of waiting, a few milliseconds together, after which no read is expected any more for
/// what was brought: the wanted block is elsewhere by now.
const PATIENCE: u32 = if cfg!(shuttle) { 2 } else { 100 };

const _: () = assert!(CLUSTER_MAX + 2 * ALIGN <= 2 * LEAST as usize);

/// All windows of a store.
#[derive(Debug)]
pub(super) struct Windows {
    /// The largest first; windows without memory come last and have size 0.
    windows: Box<[Shared]>,
    /// Bytes of all windows together; locked while sizes change.
    room: Mutex<usize>,
    /// The largest useful size of one window.
    most: usize,
    /// Bytes of the first, the largest, window.
    largest: AtomicU32,
    /// Counts uses of windows.
    clock: AtomicU64,
}

#[derive(Debug)]
struct Shared {
    window: Mutex<Window>,
    /// A thread waits for the device to fill this window.
    is_filling: AtomicBool,
}

/// A part of a segment, read from its slot.
struct Window {
    buffer: Buffer,
    /// The sequence of the segment; 0: the window is empty.
    name: u64,
    /// The range of bytes in the segment.
    range: Range<u32>,
    /// Bytes that would have been brought if the segment did not end.
    reach: u32,
    /// The block after the last one that was read from it.
    next: u64,
    /// Time of the last use.
    used: u64,
    /// No read has looked at the bytes yet.
    awaited: bool,
}

/// What to read of a slot for a record, and into which window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Wish {
    /// The most to bring, in bytes.
    pub most: u32,
    /// The read goes on where the last one ended: what follows in the slot is wanted too.
    pub is_stream: bool,
    /// The window that the stream has used so far.
    place: Option<usize>,
}

impl Wish {
    /// The same wish for `most` bytes and nothing behind them.
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
    /// Empty windows for slots of `segment` bytes, below a `limit` on memory.
    pub(super) fn new(segment: u32, limit: u64) -> Self {
        // A record that begins in one page and ends in another needs both.
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

    /// Resizes the windows to what a `limit` asks for, if that is at least twice or at most half of
    /// their size, and `take` has the bytes for growth. Resized windows lose their contents. Waits
    /// for threads that hold a window. Returns the bytes by which the windows shrank.
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
            // Memory is allocated and freed without the lock of the window.
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

    /// Passes the record of `block` to `work` if a window has it. Drops the window if `work` finds
    /// the record damaged: the device may return something else next time.
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

    /// Has `fill` read a part of the segment `name` into a window, or as much of it as fits into a
    /// free one. `false` if it fails; then the window is empty.
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
            // More threads than windows: the threads that hold one wait only for the device.
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

    /// The window of the wish, if it has room for `len` bytes; else, of those with room, the one
    /// that was not used for longest; else the largest. Skips windows that a read is about to look
    /// at, until that takes too long: otherwise readers would take from each other what they have
    /// brought, again and again.
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

/// Sizes of the windows in bytes, each in `range`, about `all` together. Each window gets half of
/// what is left, but leaves enough for the least number of windows. The rest have size 0.
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
    /// The window, unless it is being filled. A thread that holds it otherwise waits for nothing.
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
    /// An empty window of `len` bytes.
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
    /// this window ended.
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
        // Into the next slot, recognized by the number of the block.
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
        // Where all large windows are taken, less is brought.
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
        // A window of size 0 is not taken for one that has room.
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
        // Nothing damaged, and nothing that could not be read, is in a window.
        assert_eq!(windows.look(1, (1, at(0)), |_| false), Some(false));
        assert!(!has(1));
        let wish = windows.wish(50, (9, at(900_000)), 1);
        assert!(!windows.fill(50, 0..LEAST, wish, |_| false));
        assert!(!has(50));
    }
}

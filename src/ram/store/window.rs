//! Windows: parts of slots that were read lately, shared by all threads.
//!
//! A read that comes to a record in a slot looks for it in the windows. If none has it, the read
//! brings a part of the slot into the window that was not used for longest. A window whose end a
//! read has come to marks a stream, whichever thread reads, through a slot or from one slot into
//! the next. Each time a stream reads on, it brings twice as much, and at least as much as the
//! device reads in the time of a seek.
//!
//! The threads that serve a stream are not in its order, and its blocks may be in two segments by
//! turns. So a stream goes on where its last window ended, not at the first record that is missed,
//! into another window, and stops where a third goes on; and a thread whose record is on its way
//! waits for that.
//!
//! Their sizes follow the limit on memory roughly: to follow each change would throw away what was
//! brought.
//!
//! Invariants:
//! - a window names its bytes by the sequence of their segment, which is never reused, so a window
//!   is never out of date;
//! - a window is locked while it is filled; other readers then skip it, and wait only for a record
//!   that it is going to have, with no other lock;
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
/// Windows unless memory is very much or very little: enough for two streams, each with a window
/// that is read and one that is filled.
const USUAL: usize = 4;
/// The least that is brought where more than the record follows.
const LEAST: u32 = 16 << 10;
/// The most that is brought at once.
const MOST: u32 = 1 << 20;
/// Windows take one part in this many of the limit on memory, unless the least useful size is more.
const PART: u64 = 16;
/// A read less than this far behind the end of a window goes on from that window.
const NEAR: u32 = 64 << 10;
/// Rounds of waiting, a few milliseconds together, after which no read is expected any more for
/// what was brought: the wanted block is elsewhere by now.
const PATIENCE: u32 = if cfg!(shuttle) { 2 } else { 100 };

const _: () = assert!(CLUSTER_MAX + 2 * ALIGN <= 2 * LEAST as usize);

/// All windows of a store.
#[derive(Debug)]
pub(super) struct Windows {
    /// All of one size; windows without memory come last and have size 0.
    windows: Box<[Shared]>,
    /// Bytes of all windows together; locked while sizes change.
    room: Mutex<usize>,
    /// The largest useful size of one window.
    most: usize,
    /// Bytes of a window with memory.
    largest: AtomicU32,
    /// Counts uses of windows.
    clock: AtomicU64,
    /// Held to choose a window and say what comes into it, so that no two threads bring the same.
    choosing: Mutex<()>,
    /// Bytes that the device reads in the time of a seek.
    seek: AtomicU32,
}

#[derive(Debug)]
struct Shared {
    window: Mutex<Window>,
    /// A thread waits for the device to fill this window.
    is_filling: AtomicBool,
    /// What it will have then.
    coming: Mutex<Coming>,
}

/// What a thread has asked the device for.
#[derive(Debug, Default)]
struct Coming {
    /// The sequence of the segment; 0: nothing.
    name: u64,
    range: Range<u32>,
    /// As [`Window::reach`].
    reach: u32,
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
    /// Where to begin, in bytes from the start of the segment; a multiple of [`ALIGN`].
    pub from: u32,
    /// The most to bring, in bytes.
    pub most: u32,
    /// Where another window goes on.
    pub ahead: u32,
    /// The read goes on where the last one ended: what follows in the slot is wanted too.
    pub is_stream: bool,
}

impl Wish {
    /// The same wish for a record alone, in `range`.
    pub(super) fn alone(self, range: &Range<u32>) -> Self {
        Self { from: range.start, most: range.end - range.start, is_stream: false, ..self }
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
            coming: Mutex::default(),
        };
        let windows = sizes.iter().map(shared).collect();
        let room = Mutex::new(sizes.iter().sum());
        let largest = AtomicU32::new(sizes[0] as u32);
        let clock = AtomicU64::new(1);
        let (choosing, seek) = (Mutex::new(()), AtomicU32::new(0));
        Self { windows, room, most, largest, clock, choosing, seek }
    }

    /// Notes how many bytes the device reads in the time of a seek.
    pub(super) fn note_seek(&self, bytes: u32) {
        self.seek.store(bytes, Ordering::Relaxed);
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
        let own = at.offset / ALIGN as u32 * ALIGN as u32;
        let blocks = (count * (HEADER + BLOCK_SIZE)).min(self.largest() as usize) as u32;
        let most = LEAST.max(blocks);
        let mut wish = Wish { from: own, most, ahead: u32::MAX, is_stream: false };
        for shared in &self.windows {
            let (last, range, reach) = match shared.lock_filled() {
                Some(window) if window.name == 0 => continue,
                Some(window) => {
                    (window.end_before(name, block, own), window.range_of(name), window.reach)
                }
                None => {
                    let coming = shared.coming.lock();
                    let range = (coming.name == name).then(|| coming.range.clone());
                    (range.as_ref().and_then(|range| end_behind(range, own)), range, coming.reach)
                }
            };
            if let Some(range) = range.filter(|range| range.start > own) {
                wish.ahead = wish.ahead.min(range.start);
            }
            // Of several windows, the one that ends last.
            if let Some(end) = last.filter(|end| !wish.is_stream || *end > wish.from) {
                let most = (2 * reach).max(self.seek.load(Ordering::Relaxed));
                let most = most.clamp(LEAST, self.largest()) / ALIGN as u32 * ALIGN as u32;
                wish = Wish { from: end, most, is_stream: true, ..wish };
            }
        }
        wish
    }

    fn largest(&self) -> u32 {
        self.largest.load(Ordering::Acquire)
    }

    /// Has `fill` read a part of the segment `name` into a window, or as much of it as fits into a
    /// free one, but at least `needed`. If another thread is about to bring that, waits for it.
    /// `false` if it fails; then the window is empty.
    pub(super) fn fill(
        &self,
        name: u64,
        range: Range<u32>,
        needed: &Range<u32>,
        wish: Wish,
        fill: impl FnOnce(u32, &mut [u8]) -> bool,
    ) -> bool {
        let mut round = 0;
        let (place, range, mut window) = loop {
            let choosing = self.choosing.lock();
            let awaits = |shared: &&Shared| shared.awaits(name, needed);
            if let Some(shared) = self.windows.iter().find(awaits) {
                drop(choosing);
                drop(shared.window.lock());
                return true;
            }
            if let Some((place, window)) = self.choose(range.len(), round) {
                let range = fitting(&range, needed, window.buffer.len() as u32);
                self.windows[place].expect(name, &range, wish);
                break (place, range, window);
            }
            drop(choosing);
            // More threads than windows: the threads that hold one wait only for the device.
            crate::sync::rest(round);
            round = round.saturating_add(1);
        };
        (window.name, window.awaited) = (0, false);
        let filled = fill(range.start, &mut window.buffer[..range.len()]);
        if filled {
            let reach = if wish.is_stream { wish.most } else { range.len() as u32 };
            (window.name, window.range, window.next) = (name, range, u64::MAX);
            window.reach = reach;
            window.used = self.clock.fetch_add(1, Ordering::Relaxed);
            window.awaited = true;
        }
        self.windows[place].expect_nothing();
        filled
    }

    /// Of the windows with room for `len` bytes, the one that was not used for longest; without
    /// such a window, the largest. Skips windows that a read is about to look at, until that takes
    /// too long: otherwise readers would take from each other what they have brought, again and
    /// again.
    fn choose(&self, len: usize, round: u32) -> Option<(usize, MutexGuard<'_, Window>)> {
        let lock = |place: usize| {
            let window = self.windows[place].window.try_lock()?;
            (!window.awaited || round > PATIENCE).then_some((place, window))
        };
        (0..self.windows.len())
            .filter_map(lock)
            .filter(|(_, window)| !window.buffer.is_empty())
            .max_by_key(|(_, window)| (window.buffer.len().min(len), Reverse(window.used)))
    }
}

/// Of `range`, what fits into `room` bytes; without its beginning if `needed` would not fit.
fn fitting(range: &Range<u32>, needed: &Range<u32>, room: u32) -> Range<u32> {
    let start = if needed.end - range.start <= room { range.start } else { needed.start };
    start..range.end.min(start + room)
}

/// The end of `range`, or `offset` if that is in its last page, where what begins at `offset` goes
/// on behind it.
fn end_behind(range: &Range<u32>, offset: u32) -> Option<u32> {
    let goes_on = offset + ALIGN as u32 >= range.end && offset < range.end + NEAR;
    goes_on.then(|| range.end.min(offset))
}

/// Sizes of the windows in bytes, in `range` and all the same, about `all` together. Windows that
/// are not needed have size 0.
fn sizes(all: usize, range: Range<usize>) -> Vec<usize> {
    let few = (all / range.start).clamp(COUNT.start, COUNT.end.min(USUAL));
    let count = if all >= COUNT.end * range.end { COUNT.end } else { few };
    let len = (all / count / ALIGN * ALIGN).clamp(range.start, range.end);
    let mut sizes = vec![len; count];
    sizes.resize(COUNT.end, 0);
    sizes
}

impl Shared {
    /// Says what a thread is about to fill the window with. That thread holds its lock.
    fn expect(&self, name: u64, range: &Range<u32>, wish: Wish) {
        *self.coming.lock() = Coming { name, range: range.clone(), reach: wish.most };
        self.is_filling.store(true, Ordering::Release);
    }

    fn expect_nothing(&self) {
        self.coming.lock().name = 0;
        self.is_filling.store(false, Ordering::Release);
    }

    /// Whether it is being filled with all of `needed`.
    fn awaits(&self, name: u64, needed: &Range<u32>) -> bool {
        let coming = self.coming.lock();
        coming.name == name && coming.range.start <= needed.start && needed.end <= coming.range.end
    }

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

    /// What it has of the segment `name`.
    fn range_of(&self, name: u64) -> Option<Range<u32>> {
        (self.name == name).then(|| self.range.clone())
    }

    /// Where to go on if a read of `block`, `offset` bytes into the segment `name`, goes on where
    /// reads of this window ended.
    fn end_before(&self, name: u64, block: u64, offset: u32) -> Option<u32> {
        let behind = self.range_of(name).and_then(|range| end_behind(&range, offset));
        // At the start of another segment, its first records are wanted, too.
        let other = (self.next == block).then_some(if offset < NEAR { 0 } else { offset });
        behind.or(other)
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    fn at(offset: u32) -> Location {
        Location { segment: 1, offset, len: 100, parts: 0 }
    }

    /// Brings `range`, of which the window takes only so much.
    fn bring_some(windows: &Windows, name: u64, range: Range<u32>, most: u32) {
        let needed = range.start..range.start + LEAST;
        assert!(windows.fill(name, range, &needed, stream(MOST), |_, bytes| {
            assert_eq!(bytes.len(), most as usize);
            true
        }));
    }

    fn stream(most: u32) -> Wish {
        Wish { from: 0, most, ahead: u32::MAX, is_stream: true }
    }

    fn bring(windows: &Windows, name: u64, range: Range<u32>, wish: Wish) {
        assert!(windows.fill(name, range.clone(), &range, wish, |from, bytes| {
            assert_eq!(from, range.start);
            bytes.fill(name as u8);
            true
        }));
    }

    #[test]
    fn streams_bring_more_and_more() {
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
            assert_eq!((wish.from, wish.most, wish.is_stream), (end, most, true));
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
    fn they_share_the_memory() {
        let least = 2 * LEAST as usize;
        let kib = |all: usize| {
            let mut sizes = sizes(all << 10, least..MOST as usize);
            sizes.retain(|len| *len > 0);
            sizes
        };
        assert_eq!(kib(1536), [384 << 10; 4]);
        assert_eq!(kib(64 << 10), [MOST as usize; 6]);
        assert_eq!(kib(128), [32 << 10; 4]);
        assert_eq!(kib(110), [36 << 10; 3]);
        assert_eq!(kib(0), [least; 3]);
        // A window has no more than it can.
        let windows = Windows::new(1 << 20, PART * (1536 << 10));
        bring_some(&windows, 7, 0..MOST, 384 << 10);
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
        bring(&windows, 8, 0..LEAST, stream(LEAST));
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
        bring(&windows, 9, 0..MOST, stream(MOST));
        assert!(windows.windows.iter().any(|shared| shared.window.lock().range == (0..MOST)));
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
        let choose = |round| windows.choose(4096, round).map(|(place, _)| place);
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
        assert!(!windows.fill(50, 0..LEAST, &(0..LEAST), wish, |_, _| false));
        assert!(!has(50));
    }

    #[test]
    fn a_stream_leaves_no_gap_and_reads_nothing_twice() {
        let windows = Windows::new(1 << 20, 1 << 30);
        bring(&windows, 7, 0..LEAST, windows.wish(7, (10, at(0)), 1));
        // The thread that serves what comes later is the first.
        let page = ALIGN as u32;
        let wish = windows.wish(7, (20, at(LEAST + 5 * page + 8)), 1);
        assert_eq!((wish.from, wish.is_stream), (LEAST, true));
        // A record over the end begins in the last page.
        assert_eq!(windows.wish(7, (20, at(LEAST - 8)), 1).from, LEAST - page);
        // Far behind the end.
        let far = LEAST + NEAR + 8;
        let wish = windows.wish(7, (20, at(far)), 1);
        assert_eq!((wish.from, wish.is_stream), (far / page * page, false));
        bring(&windows, 7, far / page * page..far / page * page + LEAST, wish);
        let wish = windows.wish(7, (20, at(LEAST)), 1);
        assert_eq!(wish.ahead, far / page * page);
        assert_eq!(windows.wish(8, (90, at(LEAST)), 1).ahead, u32::MAX, "another segment");
        // The first records of the next segment are wanted, too.
        assert_eq!(windows.look(7, (89, at(0)), |_| true), Some(true));
        assert_eq!(windows.wish(9, (90, at(3 * page)), 1).from, 0);
        assert_eq!(windows.wish(9, (90, at(2 * NEAR)), 1).from, 2 * NEAR);
    }

    #[test]
    fn at_least_as_much_is_brought_as_a_seek_costs() {
        let windows = Windows::new(1 << 20, 1 << 30);
        windows.note_seek(700_000);
        assert_eq!(windows.wish(7, (10, at(0)), 1).most, LEAST, "one block that was asked for");
        bring(&windows, 7, 0..LEAST, windows.wish(7, (10, at(0)), 1));
        assert_eq!(windows.wish(7, (11, at(LEAST)), 1).most, 700_000 / 4096 * 4096);
        windows.note_seek(u32::MAX);
        assert_eq!(windows.wish(7, (11, at(LEAST)), 1).most, MOST);
    }

    #[test]
    fn what_fits_has_what_is_needed() {
        assert_eq!(fitting(&(0..100), &(40..60), 100), 0..100);
        assert_eq!(fitting(&(0..100), &(40..60), 60), 0..60);
        assert_eq!(fitting(&(0..100), &(40..60), 50), 40..90);
    }

    #[test]
    fn a_record_that_is_on_its_way_is_brought_once() {
        let windows = &Windows::new(1 << 20, 1 << 30);
        let (begun, go_on) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let wish = stream(MOST);
                windows.fill(7, 0..MOST, &(0..LEAST), wish, |_, bytes| {
                    begun.wait();
                    go_on.wait();
                    bytes.fill(7);
                    true
                })
            });
            begun.wait();
            let wish = windows.wish(7, (10, at(LEAST)), 1);
            // Another part of the segment does not wait, and goes on behind it.
            let next = windows.wish(7, (900, at(MOST)), 1);
            assert_eq!((next.from, next.is_stream), (MOST, true));
            bring(windows, 7, MOST..MOST + LEAST, next);
            let late = scope.spawn(move || {
                let needed = LEAST..2 * LEAST;
                windows.fill(7, needed.clone(), &needed, wish, |_, _| unreachable!("read twice"))
            });
            std::thread::sleep(std::time::Duration::from_millis(50));
            assert!(!late.is_finished());
            go_on.wait();
            assert!(late.join().unwrap());
            assert_eq!(windows.look(7, (10, at(LEAST)), |bytes| bytes[0] == 7), Some(true));
        });
    }
}

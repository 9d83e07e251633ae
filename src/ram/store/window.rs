//! Windows: parts of slots that were read lately, shared by all threads.
//!
//! A read that comes to a record in a slot looks for it in the windows. If none has it, the read
//! brings a part of the slot into a window, or waits for the thread that is bringing it. What a
//! stream of reads will want next, another thread brings meanwhile ([`super::ahead`]).
//!
//! Their sizes follow the limit on memory roughly: to follow each change would throw away what was
//! brought.
//!
//! Invariants:
//! - a window names its bytes by the sequence of their segment, which is never reused, so a window
//!   is never out of date;
//! - a window is locked while it is filled; other readers then skip it, and wait only for a record
//!   that it is going to have, with no other lock;
//! - no two windows are filled with the same record at once;
//! - what a read has brought stays until that has looked at it, or no read can be expected any
//!   more; what is brought ahead takes the place of nothing that is still read.

use super::format::{CLUSTER_MAX, Location, RECORD_MAX};
use crate::media::{ALIGN, Buffer};
use crate::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::sync::{Mutex, MutexGuard};
use std::cmp::Reverse;
use std::ops::Range;

/// The least and the most windows.
const COUNT: Range<usize> = if cfg!(shuttle) { 2..2 } else { 3..6 };
/// Windows unless memory is very much or very little: enough for a stream whose blocks are in two
/// segments by turns, and for what comes next.
const USUAL: usize = 4;
/// The least that is brought where more than the record follows.
const LEAST: u32 = 16 << 10;
/// The most that is brought at once.
const MOST: u32 = 1 << 20;
/// Windows take one part in this many of the limit on memory, unless the least useful size is more.
const PART: u64 = 10;
/// How far windows overlap, for a record that begins in one and ends in the next.
const OVER: u32 = (RECORD_MAX as u32).next_multiple_of(ALIGN as u32);
/// Rounds of waiting, a few milliseconds together, after which no read is expected any more for
/// what was brought: the wanted block is elsewhere by now.
const PATIENCE: u32 = if cfg!(shuttle) { 2 } else { 100 };
/// As [`PATIENCE`], for a window to bring something ahead into.
const AHEAD_PATIENCE: u32 = 4 * PATIENCE;
/// Uses of other windows after which no read is expected any more for what was brought: two streams
/// come to fewer records before its turn comes.
const EXPECTED: u64 = 2048;
/// A window with something that no read has looked at is still read if it was used fewer than this
/// many uses ago.
const RECENT: u64 = if cfg!(shuttle) { 1 } else { 64 };

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
    coming: Mutex<Part>,
}

/// A part of a segment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Part {
    /// The sequence of the segment; 0: none.
    pub name: u64,
    /// Bytes from the segment's start.
    pub range: Range<u32>,
}

impl Part {
    /// Whether it has all of `range` of the segment `name`.
    pub(super) fn has(&self, name: u64, range: &Range<u32>) -> bool {
        self.name == name && self.range.start <= range.start && range.end <= self.range.end
    }
}

/// A part of a segment, read from its slot.
struct Window {
    buffer: Buffer,
    part: Part,
    /// Time of the last use.
    used: u64,
    /// No read has looked at the bytes yet.
    awaited: bool,
    /// They were brought ahead.
    is_ahead: bool,
    /// Bytes of records that reads have looked at.
    seen: u32,
}

/// How much a window is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Need {
    None,
    /// A stream may come to it.
    Ahead,
    /// Reads look at it.
    Read,
    /// A read is about to look at what it has brought.
    Awaited,
}

/// A part of a slot to bring.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    /// What to bring; multiples of [`ALIGN`].
    pub part: Part,
    /// What of that is needed.
    pub needed: Range<u32>,
}

impl std::fmt::Debug for Window {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Window").field("part", &self.part).finish()
    }
}

/// A part of a slot that has to be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Below {
    /// The slot.
    pub slot: u32,
    /// The block that needs it.
    pub(super) block: u64,
    pub(super) order: Order,
}

impl Below {
    /// The needed part alone, without neighbours; `None` where that is all.
    pub fn alone(&self) -> Option<Self> {
        let Order { part: Part { name, range }, needed } = &self.order;
        let part = Part { name: *name, range: needed.clone() };
        let order = Order { part, needed: needed.clone() };
        (range != needed).then_some(Self { order, ..*self })
    }
}

impl Windows {
    /// Empty windows for slots of `segment` bytes, below a `limit` on memory.
    pub(super) fn new(segment: u32, limit: u64) -> Self {
        let most = most(segment);
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

    /// Bytes of memory that windows like these take.
    pub(super) fn bytes(segment: u32, limit: u64) -> u64 {
        let sizes = sizes((limit / PART) as usize, 2 * LEAST as usize..most(segment));
        sizes.iter().sum::<usize>() as u64
    }

    /// Notes how many bytes the device reads in the time of a seek.
    pub(super) fn note_seek(&self, bytes: u32) {
        self.seek.store(bytes, Ordering::Relaxed);
    }

    /// Bytes that the device reads in the time of a seek; 0 if that is unknown.
    pub(super) fn seek(&self) -> u32 {
        self.seek.load(Ordering::Relaxed)
    }

    /// How much to bring at once for reads that will look at about `bytes`, in bytes.
    pub(super) fn worth(&self, bytes: u64) -> u32 {
        let most = u64::from(self.largest.load(Ordering::Acquire));
        bytes.clamp(LEAST.into(), most) as u32 / ALIGN as u32 * ALIGN as u32
    }

    /// Whether reads look at a window with another part of the segment `name`, or wait for one.
    pub(super) fn is_read(&self, name: u64) -> bool {
        let now = self.clock.load(Ordering::Relaxed);
        self.windows.iter().any(|shared| match shared.lock_filled() {
            Some(window) => window.part.name == name && now.saturating_sub(window.used) < RECENT,
            None => shared.coming.lock().name == name,
        })
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

    /// Passes the record at `at` of the segment `name` to `work` if a window has it. Drops the
    /// window if `work` finds the record damaged: the device may return something else next time.
    pub(super) fn look(
        &self,
        name: u64,
        at: Location,
        work: impl FnOnce(&[u8]) -> bool,
    ) -> Option<bool> {
        for shared in &self.windows {
            let Some(mut window) = shared.lock_filled() else { continue };
            let Some(record) = window.record(name, at) else { continue };
            let is_good = work(record);
            window.awaited = false;
            if is_good {
                window.seen = window.seen.saturating_add(at.record_len());
                window.used = self.clock.fetch_add(1, Ordering::Relaxed);
            } else {
                window.part.name = 0;
            }
            return Some(is_good);
        }
        None
    }

    /// Has `fill` read what is ordered into a window, or as much of it as fits into a free one and
    /// no other window has, but at least what is needed. If another thread is about to bring that,
    /// waits for it. `false` if it fails; then the window is empty.
    pub(super) fn fill(&self, order: &Order, fill: impl FnOnce(u32, &mut [u8]) -> bool) -> bool {
        let mut round = 0;
        loop {
            let choosing = self.choosing.lock();
            let awaits = |shared: &&Shared| shared.coming(&order.needed, order.part.name);
            if let Some(shared) = self.windows.iter().find(awaits) {
                drop(choosing);
                drop(shared.window.lock());
                return true;
            }
            let most = if round > PATIENCE { Need::Awaited } else { Need::Read };
            let Some(order) = self.missing(order) else { return true };
            if let Some(mut chosen) = self.choose(&order, most) {
                drop(choosing);
                return self.fill_one(&mut chosen, false, fill);
            }
            drop(choosing);
            // More threads than windows: the threads that hold one wait only for the device.
            crate::sync::rest(round);
            round = round.saturating_add(1);
        }
    }

    /// As [`Windows::fill`] for what a stream will want, which no thread waits for yet. Brings
    /// nothing where a window has that or is about to, nor while no window can be spared; gives up
    /// when that takes too long, or it is not `wanted` any more.
    pub(super) fn fill_ahead(
        &self,
        order: &Order,
        wanted: impl Fn() -> bool,
        fill: impl FnOnce(u32, &mut [u8]) -> bool,
    ) {
        for round in 0..AHEAD_PATIENCE {
            if !wanted() {
                return;
            }
            let choosing = self.choosing.lock();
            let Some(order) = self.missing(order) else { return };
            if let Some(mut chosen) = self.choose(&order, Need::None) {
                drop(choosing);
                self.fill_one(&mut chosen, true, fill);
                return;
            }
            drop(choosing);
            crate::sync::rest(round);
        }
    }

    /// Of what is ordered, the part around what is needed that no window has or is about to have.
    /// `None` if one has all that is needed.
    fn missing(&self, order: &Order) -> Option<Order> {
        let Order { part: Part { name, range }, needed } = order;
        let Range { mut start, mut end } = range.clone();
        for shared in &self.windows {
            let has = match shared.lock_filled() {
                Some(window) => window.part.clone(),
                None => shared.coming.lock().clone(),
            };
            if has.name != *name {
                continue;
            }
            match has.range {
                _ if has.has(*name, needed) => return None,
                has if has.start > needed.start => {
                    end = end.min((has.start + OVER).max(needed.end));
                }
                has => start = start.max((has.end.saturating_sub(OVER)).min(needed.start)),
            }
        }
        let part = Part { name: *name, range: start..end };
        Some(Order { part, needed: needed.clone() })
    }

    /// Of the windows that are needed at most so much, the one that has the most room up to what is
    /// ordered, is needed least, and was not used for longest. Says what comes into it.
    fn choose(&self, order: &Order, most: Need) -> Option<Chosen<'_>> {
        let now = self.clock.load(Ordering::Relaxed);
        let len = order.part.range.len();
        let mut found: Option<(_, &Shared, MutexGuard<'_, Window>)> = None;
        for shared in &self.windows {
            let Some(window) = shared.window.try_lock() else { continue };
            let need = window.need(now);
            let worth = (window.buffer.len().min(len), Reverse(need), Reverse(window.used));
            let is_better = found.as_ref().is_none_or(|(best, ..)| worth > *best);
            if need <= most && !window.buffer.is_empty() && is_better {
                found = Some((worth, shared, window));
            }
        }
        let (_, shared, window) = found?;
        let room = window.buffer.len() as u32;
        let part = Part { range: fitting(&order.part.range, &order.needed, room), ..order.part };
        *shared.coming.lock() = part.clone();
        shared.is_filling.store(true, Ordering::Release);
        Some(Chosen { shared, window, part })
    }

    fn fill_one(
        &self,
        chosen: &mut Chosen<'_>,
        is_ahead: bool,
        fill: impl FnOnce(u32, &mut [u8]) -> bool,
    ) -> bool {
        let Chosen { shared, window, part } = chosen;
        window.part.name = 0;
        let filled = fill(part.range.start, &mut window.buffer[..part.range.len()]);
        if filled {
            window.part = part.clone();
            (window.awaited, window.is_ahead, window.seen) = (true, is_ahead, 0);
            window.used = self.clock.fetch_add(1, Ordering::Relaxed);
        } else {
            window.awaited = false;
        }
        shared.is_filling.store(false, Ordering::Release);
        shared.coming.lock().name = 0;
        filled
    }
}

/// A window that is about to be filled.
struct Chosen<'a> {
    shared: &'a Shared,
    window: MutexGuard<'a, Window>,
    part: Part,
}

/// Of `range`, what fits into `room` bytes: without its end, or, where what is needed would not
/// fit, without its beginning.
fn fitting(range: &Range<u32>, needed: &Range<u32>, room: u32) -> Range<u32> {
    let start = if needed.end - range.start <= room { range.start } else { needed.start };
    start..range.end.min(start + room)
}

/// The largest window for slots of `segment` bytes, in bytes.
fn most(segment: u32) -> usize {
    // A record that begins in one page and ends in another needs both.
    MOST.min(segment).max(2 * LEAST) as usize
}

/// Sizes of the windows in bytes, in `range` and all the same, about `all` together. Windows that
/// are not needed have size 0.
fn sizes(all: usize, range: Range<usize>) -> Vec<usize> {
    let few = (all / range.start).clamp(COUNT.start, COUNT.end.min(USUAL));
    // Fewer, if they have room for all of a segment then.
    let count = match all / range.end {
        whole if whole >= COUNT.end => COUNT.end,
        whole if whole >= COUNT.start => whole.min(few),
        _ => few,
    };
    let len = (all / count / ALIGN * ALIGN).clamp(range.start, range.end);
    let mut sizes = vec![len; count];
    sizes.resize(COUNT.end, 0);
    sizes
}

impl Shared {
    /// Whether it is being filled with all of `needed`.
    fn coming(&self, needed: &Range<u32>, name: u64) -> bool {
        self.coming.lock().has(name, needed)
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
            part: Part::default(),
            used: 0,
            awaited: false,
            is_ahead: false,
            seen: 0,
        }
    }

    fn record(&self, name: u64, at: Location) -> Option<&[u8]> {
        let range = at.offset..at.offset + at.record_len();
        let start = self.part.has(name, &range).then(|| at.offset - self.part.range.start)?;
        self.buffer.get(start as usize..(start + at.record_len()) as usize)
    }

    /// How much it is needed at the time `now`.
    fn need(&self, now: u64) -> Need {
        let age = now.saturating_sub(self.used);
        if self.part.name == 0 {
            return Need::None;
        }
        if self.awaited && age < EXPECTED {
            return if self.is_ahead { Need::Ahead } else { Need::Awaited };
        }
        let is_unfinished = self.seen < self.part.range.len() as u32 / 16 * 15;
        if is_unfinished && age < RECENT { Need::Read } else { Need::None }
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::sync::Barrier;

    fn at(offset: u32) -> Location {
        Location { segment: 1, offset, len: 100, parts: 0 }
    }

    fn order(name: u64, range: Range<u32>) -> Order {
        let needed = range.start..range.start + ALIGN as u32;
        Order { part: Part { name, range }, needed }
    }

    fn bring(windows: &Windows, name: u64, range: Range<u32>) {
        assert!(windows.fill(&order(name, range.clone()), |from, bytes| {
            assert_eq!(from..from + bytes.len() as u32, range);
            bytes.fill(name as u8);
            true
        }));
    }

    /// Brings `range` ahead; returns what was read.
    fn bring_ahead(windows: &Windows, name: u64, range: Range<u32>) -> Option<Range<u32>> {
        let mut read = None;
        windows.fill_ahead(
            &order(name, range),
            || true,
            |from, bytes| {
                bytes.fill(name as u8);
                read = Some(from..from + bytes.len() as u32);
                true
            },
        );
        read
    }

    /// A good read of a record; `false` if no window has it.
    fn look(windows: &Windows, name: u64, offset: u32) -> bool {
        windows
            .look(name, at(offset), |bytes| bytes[0] == name as u8)
            .inspect(|good| assert!(good))
            .is_some()
    }

    fn has(windows: &Windows, name: u64) -> bool {
        windows.windows.iter().any(|shared| shared.window.lock().part.name == name)
    }

    #[test]
    fn what_was_brought_is_found() {
        let windows = Windows::new(1 << 20, 1 << 30);
        bring(&windows, 7, LEAST..2 * LEAST);
        assert!(look(&windows, 7, LEAST) && look(&windows, 7, 2 * LEAST - 200));
        assert!(!look(&windows, 8, LEAST), "of another segment");
        assert!(!look(&windows, 7, 0) && !look(&windows, 7, 2 * LEAST - 20), "not all of it");
        // Nothing damaged, and nothing that could not be read, is in a window.
        assert_eq!(windows.look(7, at(LEAST), |_| false), Some(false));
        assert!(!look(&windows, 7, LEAST));
        assert!(!windows.fill(&order(50, 0..LEAST), |_, _| false));
        assert!(!look(&windows, 50, 0));
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
        assert_eq!((kib(5900), kib(4000)), (vec![MOST as usize; 4], vec![MOST as usize; 3]));
        assert_eq!(kib(3000), [748 << 10; 4]);
        assert_eq!(kib(128), [32 << 10; 4]);
        assert_eq!(kib(110), [36 << 10; 3]);
        assert_eq!(kib(0), [least; 3]);
        // A window has no more than it can.
        let windows = Windows::new(1 << 20, PART * (1536 << 10));
        assert_eq!(bring_ahead(&windows, 7, 0..MOST), Some(0..384 << 10));
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
        bring(&windows, 7, 0..LEAST);
        assert_eq!(windows.fit(200 << 20, |_| true), 0);
        assert_eq!(windows.fit(400 << 20, |_| true), 0);
        assert!(look(&windows, 7, 0), "still there");
        assert_eq!(windows.fit(1 << 20, |_| false), (before - least) as u64);
        assert_eq!((memory(&windows), windows.worth(1 << 30)), (least, 2 * LEAST));
        assert!(!look(&windows, 7, 0));
        // A window of size 0 is not taken for one that has room.
        let all: Vec<_> = windows.windows[..2].iter().map(|shared| shared.window.lock()).collect();
        windows.windows[..2]
            .iter()
            .for_each(|shared| shared.is_filling.store(true, Ordering::Release));
        bring(&windows, 8, 0..LEAST);
        assert_eq!(windows.windows[2].window.lock().part.name, 8);
        drop(all);
        windows.windows[..2]
            .iter()
            .for_each(|shared| shared.is_filling.store(false, Ordering::Release));
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
        bring(&windows, 9, 0..MOST);
    }

    /// Four windows.
    fn four() -> Windows {
        let windows = Windows::new(1 << 20, PART * (4 << 20));
        assert_eq!(windows.memory(), 4 << 20);
        windows
    }

    /// Four windows, of which each has been read a little.
    fn four_in_use() -> Windows {
        let windows = four();
        for name in 1..5 {
            bring(&windows, name, 0..LEAST);
            assert!(look(&windows, name, 0));
        }
        windows
    }

    #[test]
    fn what_was_brought_stays_until_a_read_has_looked_at_it() {
        let windows = four();
        (1..5).for_each(|name| bring(&windows, name, 0..LEAST));
        let choose = || {
            windows.choose(&order(9, 0..LEAST), Need::Read).map(|chosen| chosen.window.part.name)
        };
        assert_eq!(choose(), None);
        assert!(look(&windows, 2, 0));
        assert_eq!(choose(), Some(2));
        windows.windows.iter().for_each(|shared| shared.is_filling.store(false, Ordering::Release));
        // Nor is it there for ever.
        (0..EXPECTED).for_each(|_| assert!(look(&windows, 3, 0)));
        assert_eq!(choose(), Some(1));
        // A read that never comes does not hold up others for long.
        (100..110).for_each(|name| bring(&windows, name, 0..LEAST));
    }

    #[test]
    fn the_one_that_is_needed_least_goes() {
        let windows = four_in_use();
        bring(&windows, 5, 0..LEAST);
        assert!(!has(&windows, 1), "that was not used for longest");
        assert!(look(&windows, 5, 0));
        // One that has been read goes before those that still are, and before what comes.
        windows.windows.iter().for_each(|shared| {
            let mut window = shared.window.lock();
            window.seen = if window.part.name == 5 { LEAST } else { 0 };
        });
        assert_eq!(bring_ahead(&windows, 6, 0..LEAST), Some(0..LEAST));
        assert!(!has(&windows, 5));
        // What was brought ahead goes before what is read.
        bring(&windows, 7, 0..LEAST);
        assert!(!has(&windows, 6) && has(&windows, 2) && has(&windows, 3) && has(&windows, 4));
    }

    #[test]
    fn what_is_brought_ahead_takes_the_place_of_nothing_that_is_read() {
        // Four streams that are read by turns.
        let windows = four_in_use();
        assert_eq!(bring_ahead(&windows, 1, LEAST..2 * LEAST), None);
        windows.fill_ahead(&order(9, 0..LEAST), || false, |_, _| unreachable!("not wanted"));
        // Only the first goes on.
        (0..RECENT).for_each(|_| assert!(look(&windows, 1, 0)));
        assert_eq!(bring_ahead(&windows, 1, LEAST..2 * LEAST), Some(LEAST..2 * LEAST));
        assert!(!has(&windows, 2), "that was not used for longest");
        assert!(look(&windows, 1, LEAST));
    }

    #[test]
    fn nothing_is_brought_twice() {
        let windows = four();
        bring(&windows, 1, LEAST..2 * LEAST);
        assert_eq!(bring_ahead(&windows, 1, LEAST..3 * LEAST), None);
        // What is needed, without what others have on both sides.
        bring(&windows, 1, 3 * LEAST..4 * LEAST);
        let wide = Order {
            part: Part { name: 1, range: 0..4 * LEAST },
            needed: 2 * LEAST..2 * LEAST + 4096,
        };
        let read = RefCell::new(None);
        assert!(windows.fill(&wide, |from, bytes| {
            *read.borrow_mut() = Some((from, bytes.len() as u32));
            true
        }));
        assert_eq!(read.take(), Some((2 * LEAST - OVER, LEAST + 2 * OVER)));
        // A larger record over the end of one is read whole.
        let over = Order {
            part: Part { name: 1, range: 0..8 * LEAST },
            needed: 4 * LEAST - 4096..4 * LEAST + OVER + 4096,
        };
        assert!(windows.fill(&over, |from, bytes| {
            *read.borrow_mut() = Some((from, bytes.len() as u32));
            true
        }));
        assert_eq!(read.take(), Some((4 * LEAST - OVER, 4 * LEAST + OVER)));
        // Some other thread has brought it by now.
        assert!(windows.fill(&order(1, LEAST..2 * LEAST), |_, _| unreachable!("read twice")));
    }

    #[test]
    fn what_fits_has_what_is_needed() {
        assert_eq!(fitting(&(0..100), &(40..60), 100), 0..100);
        assert_eq!(fitting(&(0..100), &(40..60), 60), 0..60);
        assert_eq!(fitting(&(0..100), &(40..60), 50), 40..90);
    }

    #[test]
    fn a_record_that_is_on_its_way_is_brought_once() {
        for is_ahead in [false, true] {
            let windows = &Windows::new(1 << 20, 1 << 30);
            let (begun, go_on) = (Barrier::new(2), Barrier::new(2));
            let slowly = |_: u32, bytes: &mut [u8]| {
                begun.wait();
                go_on.wait();
                bytes.fill(7);
                true
            };
            std::thread::scope(|scope| {
                scope.spawn(|| match is_ahead {
                    true => windows.fill_ahead(&order(7, 0..8 * LEAST), || true, slowly),
                    false => assert!(windows.fill(&order(7, 0..8 * LEAST), slowly)),
                });
                begun.wait();
                // Another part of the segment does not wait.
                bring(windows, 7, 8 * LEAST..9 * LEAST);
                assert_eq!(bring_ahead(windows, 7, LEAST..2 * LEAST), None, "on its way");
                let late = scope.spawn(move || {
                    windows.fill(&order(7, LEAST..9 * LEAST), |_, _| unreachable!("read twice"))
                });
                std::thread::sleep(std::time::Duration::from_millis(50));
                assert!(!late.is_finished());
                go_on.wait();
                assert!(late.join().unwrap());
                assert!(look(windows, 7, LEAST));
            });
        }
    }
}

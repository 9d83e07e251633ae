//! Streams: reads that go on where others ended; and what reads want of slots: what a read brings
//! for itself, and what a thread of the volume brings before a stream comes to it.
//!
//! A stream is told by the numbers of its blocks, whichever thread reads, so also one that comes
//! from memory to a slot. The index tells where its next blocks are: in which segments, and between
//! which bytes, because they are not in order there. Of a segment with few of them, only those that
//! lie together are brought. For each stream two parts at most are asked for; the next one once it
//! has come to the first.
//!
//! Invariants:
//! - what is asked for is a hint: it may be out of date, be dropped, or never be brought;
//! - a part names its segment, so it is never taken for another one's.

use super::format::{HEADER, Home, Location};
use super::window::Below;
use super::window::{Order, Part, Windows};
use super::{Session, Store};
use crate::BLOCK_SIZE;
use crate::media::ALIGN;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, Ordering};
use std::ops::Range;

/// Streams that are told apart.
const STREAMS: usize = 8;
/// The most parts that are remembered: those of two streams.
const ASKED: usize = 4;
/// A read goes on with a stream if it begins fewer than this many blocks before or behind its end:
/// several threads serve a stream, not quite in its order.
const NEAR: u64 = 64;
/// Blocks of a large request, of which the end may be read while the stream has not come to it.
const REQUEST: u64 = 256;
/// Blocks that a stream has to have read in order before more is brought for it than is asked for.
const PROOF: u64 = if cfg!(shuttle) { 2 } else { 32 };
/// How many blocks before a stream the index is looked at.
const SIGHT: u64 = 1024;
/// Records so far apart lie together.
const GAP: u32 = 64 << 10;

const PAGE: u32 = ALIGN as u32;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Ahead {
    /// Those that went on last come last.
    streams: Mutex<[Stream; STREAMS]>,
    /// Parts to bring, older ones first.
    asked: Mutex<[Option<Below>; ASKED]>,
    any: AtomicBool,
}

/// Reads in order.
#[derive(Clone, Debug, Default)]
struct Stream {
    /// The block after the last that was read.
    next: u64,
    /// Reads that went on, and the blocks by which they did. Reads of the same blocks again and
    /// again are no stream.
    reads: u64,
    run: u64,
    /// All blocks before this are in memory, or have been asked for.
    known: u64,
    /// What was asked for last, each with the block for which it was.
    parts: [(u64, Part); 2],
}

/// What a part is brought for.
#[derive(Clone, Copy, Debug)]
enum Reader {
    /// One read, of this many blocks.
    Alone(usize),
    /// A stream that has read this many blocks: the more, the more it will want.
    Stream(u64),
    /// Reads that come to a segment again and again, not in the order of blocks.
    Segment,
}

impl Stream {
    fn goes_on_with(&self, first: u64, more: u64) -> bool {
        self.reads > 0 && first + NEAR >= self.next && first < self.next + NEAR + more
    }

    fn is_proven(&self) -> bool {
        self.reads > 1 && self.run >= PROOF
    }

    /// Whether it has not come to the older of the parts that were asked for last.
    fn is_before_both_parts(&self) -> bool {
        let [(first, part), _] = &self.parts;
        part.name != 0 && *first >= self.next
    }
}

impl Ahead {
    /// Asks for a part; drops the oldest where there are too many.
    fn ask(&self, below: Below) {
        let mut asked = self.asked.lock();
        if asked.iter().all(Option::is_some) {
            asked.rotate_left(1);
            asked[ASKED - 1] = None;
        }
        if let Some(free) = asked.iter_mut().find(|place| place.is_none()) {
            *free = Some(below);
        }
        self.any.store(true, Ordering::Release);
    }

    /// Whether a stream is still going to come to `block`.
    fn is_before(&self, block: u64) -> bool {
        let streams = self.streams.lock();
        streams.iter().any(|stream| (stream.next..stream.next + SIGHT).contains(&block))
    }

    fn take(&self) -> Option<Below> {
        let mut asked = self.asked.lock();
        let first = asked.iter().position(Option::is_some)?;
        asked.rotate_left(first);
        let next = asked[0].take();
        asked.rotate_left(1);
        self.any.store(asked.iter().any(Option::is_some), Ordering::Release);
        next
    }

    /// Blocks that the stream has read that comes to `block`, if one does.
    fn run_at(&self, block: u64) -> Option<u64> {
        let streams = self.streams.lock();
        let comes = |stream: &&Stream| stream.is_proven() && stream.goes_on_with(block, REQUEST);
        streams.iter().filter(comes).map(|stream| stream.run).max()
    }
}

/// Notes that the blocks from `first` on were read, and returns their stream, if it is one.
fn follow(streams: &mut [Stream; STREAMS], first: u64, count: u64) -> Option<&mut Stream> {
    let found = streams.iter().rposition(|stream| stream.goes_on_with(first, 0));
    streams[found.unwrap_or(0)..].rotate_left(1);
    let stream = &mut streams[STREAMS - 1];
    if found.is_none() {
        *stream = Stream { next: first, ..Stream::default() };
    }
    let gain = (first + count).saturating_sub(stream.next);
    stream.reads += u64::from(gain > 0);
    stream.run += gain.min(count);
    stream.next += gain;
    stream.is_proven().then_some(stream)
}

/// The bytes of a segment that have some records, and the bytes of those; whole pages.
#[derive(Clone, Debug)]
struct Spread {
    range: Range<u32>,
    wanted: u32,
}

impl Spread {
    fn of(at: Location) -> Self {
        Self { range: pages(at), wanted: at.share() }
    }

    /// Adds a record, unless the range would have more than `most` bytes then.
    fn add(&mut self, at: Location, most: u32) -> bool {
        let own = pages(at);
        let range = self.range.start.min(own.start)..self.range.end.max(own.end);
        let fits = range.end - range.start <= most;
        if fits {
            self.range = range;
            self.wanted = self.wanted.saturating_add(at.share());
        }
        fits
    }

    fn is_near(&self, at: Location) -> bool {
        at.offset < self.range.end.saturating_add(GAP)
            && at.offset.saturating_add(GAP) > self.range.start
    }

    /// Whether all of it is worth bringing, where a seek costs as much as `seek` bytes.
    fn is_dense(&self, seek: u32) -> bool {
        self.range.len() as u32 <= self.wanted.saturating_add(self.wanted.max(seek))
    }
}

/// The pages that have a record.
fn pages(at: Location) -> Range<u32> {
    at.offset / PAGE * PAGE..(at.offset + at.record_len()).next_multiple_of(PAGE)
}

impl Store {
    /// Whether something has to be brought ahead.
    pub fn has_ahead(&self) -> bool {
        self.ahead.any.load(Ordering::Acquire)
    }

    /// The next part to bring ahead, with [`Store::bring_ahead`].
    pub fn next_ahead(&self) -> Option<Below> {
        self.ahead.take()
    }

    /// Has `read` fill a window with a part that was asked for; waits for the device. Does nothing
    /// where the part is there or on its way, its stream has passed, or every window is in use.
    pub fn bring_ahead(&self, below: &Below, read: impl FnOnce(u32, &mut [u8]) -> bool) {
        if let Some(windows) = self.windows.get() {
            windows.fill_ahead(&below.order, || self.ahead.is_before(below.block), read);
        }
    }

    /// Notes that the blocks from `first` on were read, and asks for what their stream, if it is
    /// one, will want next of slots.
    pub fn look_ahead(&self, session: &Session, first: u64, count: u64) {
        let Some(windows) = self.windows.get().filter(|_| self.slots.count() > 0) else { return };
        // Many threads that read single blocks do not wait for each other: a stream of those bears
        // that some are not noted.
        let streams = &self.ahead.streams;
        let locked = if count > 1 { Some(streams.lock()) } else { streams.try_lock() };
        let Some(mut streams) = locked else { return };
        let Some(stream) = follow(&mut streams, first, count) else { return };
        let end = (stream.next + SIGHT).min(self.index.blocks_max());
        stream.known = stream.known.max(stream.next);
        // The pin is for the index, and for the segments that it names.
        let _pin = session.pin(self);
        while stream.known < end {
            if let Home::Record(at) = self.index.load(stream.known).home()
                && let Some(slot) = self.segments.slot(at.segment)
                && !self.is_asked(stream, at)
            {
                if stream.is_before_both_parts() {
                    return;
                }
                let below =
                    self.part(windows, (stream.known, at), slot, Reader::Stream(stream.run));
                stream.parts.rotate_left(1);
                stream.parts[1] = (stream.known, below.order.part.clone());
                self.ahead.ask(below);
            }
            stream.known += 1;
        }
    }

    fn is_asked(&self, stream: &Stream, at: Location) -> bool {
        let (name, range) = (self.window_name(at.segment), at.offset..at.offset + at.record_len());
        stream.parts.iter().any(|(_, part)| part.has(name, &range))
    }

    /// What to read of a slot for the record at `at` of `block`, when `count` blocks from there on
    /// are wanted. The caller is pinned.
    pub(super) fn wanted(
        &self,
        windows: &Windows,
        (block, count): (u64, usize),
        at: Location,
        slot: u32,
    ) -> Below {
        let reader = match self.ahead.run_at(block) {
            Some(run) => Reader::Stream(run),
            None if windows.is_read(self.window_name(at.segment)) => Reader::Segment,
            None => Reader::Alone(count),
        };
        self.part(windows, (block, at), slot, reader)
    }

    /// The part of a slot to bring for a reader that comes to the record at `at` of `block`.
    fn part(
        &self,
        windows: &Windows,
        (block, at): (u64, Location),
        slot: u32,
        reader: Reader,
    ) -> Below {
        let seek = windows.seek();
        let spread = match reader {
            Reader::Alone(count) => {
                self.together(block, at, windows.worth((count * (HEADER + BLOCK_SIZE)) as u64))
            }
            Reader::Stream(run) => {
                let most = windows.worth((run * BLOCK_SIZE as u64 / 2).max(seek.into()));
                let all = self.in_sight(block, at, most);
                if all.is_dense(seek) { all } else { self.together(block, at, most) }
            }
            Reader::Segment => self.around(at, windows.worth(seek.into())),
        };
        let part = Part { name: self.window_name(at.segment), range: spread.range };
        Below { slot, block, order: Order { part, needed: pages(at) } }
    }

    /// What is around a record: what follows, and at the end of the segment what is before.
    fn around(&self, at: Location, most: u32) -> Spread {
        let Range { start, end } = pages(at);
        let end = start.saturating_add(most).min(self.end_below(at.segment)).max(end);
        Spread { range: start.min(end.saturating_sub(most))..end, wanted: at.share() }
    }

    /// The end of a spilled segment's bytes; a multiple of [`ALIGN`]. 0 if it is not spilled.
    fn end_below(&self, segment: u32) -> u32 {
        self.segments.spilled(segment).map_or(0, |spilled| spilled.end.next_multiple_of(PAGE))
    }

    /// The blocks behind `block` whose records lie together with its own.
    fn together(&self, block: u64, at: Location, most: u32) -> Spread {
        let mut spread = Spread::of(at);
        for next in block + 1..self.index.blocks_max() {
            match self.index.load(next).home() {
                Home::Record(next) if next.segment == at.segment && spread.is_near(next) => {
                    if !spread.add(next, most) {
                        break;
                    }
                }
                _ => break,
            }
        }
        spread
    }

    /// The blocks of a stream in the segment of `block`, as far as they fit, nearer ones first.
    /// Those before it, too, which another thread may be about to read.
    fn in_sight(&self, block: u64, at: Location, most: u32) -> Spread {
        let mut spread = Spread::of(at);
        let end = (block + SIGHT).min(self.index.blocks_max());
        for other in (block + 1..end).chain(block.saturating_sub(NEAR)..block) {
            match self.index.load(other).home() {
                Home::Record(other) if other.segment == at.segment => {
                    spread.add(other, most);
                }
                _ => {}
            }
        }
        spread
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_stream_is_told_by_its_blocks() {
        let mut streams = Default::default();
        let mut follow = |first, count| follow(&mut streams, first, count).map(|s| s.next);
        assert_eq!(follow(1000, 32), None, "one read alone");
        assert_eq!(follow(1032, 32), Some(1064));
        // Another one beside it, and its threads are not in order.
        assert_eq!(follow(9000, 200), None);
        assert_eq!(follow(9264, 32), None, "too far");
        assert_eq!(follow(1128, 32), None, "too far");
        assert_eq!(follow(1072, 24), Some(1096));
        assert_eq!(follow(1064, 8), Some(1096));
        // Reads by chance are none, and push out what has not gone on for longest.
        for n in 0..STREAMS as u64 {
            assert_eq!(follow(100_000 + 1000 * n, 1), None);
        }
        assert_eq!(follow(1096, 32), None);
        // Nor is one block that is read again and again, or a few that are.
        assert_eq!((0..100).find_map(|n| follow(7000 + 7 * n % 31, 1)), None);
        // Single blocks have to prove it.
        assert_eq!((0..31).find_map(|n| follow(5000 + n, 1)), None);
        assert_eq!(follow(5031, 1), Some(5032));
    }

    #[test]
    fn the_oldest_part_is_dropped() {
        let ahead = Ahead::default();
        let part = |slot| {
            let part = Part { name: 1, range: 0..0 };
            Below { slot, block: 0, order: Order { part, needed: 0..0 } }
        };
        assert_eq!(ahead.take(), None);
        (1..7).for_each(|slot| ahead.ask(part(slot)));
        assert_eq!([ahead.take(), ahead.take()], [Some(part(3)), Some(part(4))]);
        ahead.ask(part(7));
        assert!(ahead.any.load(Ordering::Acquire));
        let rest = [5, 6, 7].map(|slot| Some(part(slot)));
        assert_eq!([ahead.take(), ahead.take(), ahead.take()], rest);
        assert_eq!(ahead.take(), None);
        assert!(!ahead.any.load(Ordering::Acquire));
    }

    #[test]
    fn few_records_far_apart_are_not_worth_it() {
        let at = |offset| Location { segment: 1, offset, len: 2000, parts: 0 };
        let mut spread = Spread::of(at(5000));
        assert_eq!(spread.range, 4096..8192);
        assert!(spread.is_near(at(60_000)) && !spread.is_near(at(80_000)));
        assert!(!spread.add(at(80_000), 64 << 10));
        assert!(spread.add(at(80_000), 128 << 10));
        assert_eq!(spread.range, 4096..86_016);
        assert!(!spread.is_dense(0) && spread.is_dense(80_000));
        (1..30).for_each(|n| assert!(spread.add(at(5000 + 2500 * n), 128 << 10)));
        assert!(spread.is_dense(0));
    }
}

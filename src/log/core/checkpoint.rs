//! Checkpoints: the index on the log's drive, so that recovery replays only what came after.
//!
//! A checkpoint is a run of [pages](crate::log::disk::checkpoint_page) in one of two areas; the
//! superblock names the newest. It begins with a whole copy of the index. *Increments* follow, each
//! with what has changed since the last, until they have become large: the next whole copy goes to
//! the other area. Pages are made piece by piece while changes go on, so a page may be newer than
//! the one before; replaying every chunk from [`Pointer::chunk`] on brings all pages to the same
//! state. That is the fuzzy checkpoint of databases (Gray and Reuter 1992, 11.3); runs of changes
//! beside a base are those of a log-structured merge tree (O'Neil et al. 1996).
//!
//! Invariants: the pages that the superblock names are never written; a checkpoint is named only
//! when its pages are durable, and every chunk that they may know of; nothing depends on a
//! checkpoint, because each of its entries is also in a chunk. A page's entries name slots as they
//! were used when the page was begun, which its `first` says; entries of segments that were freed
//! since are dropped. Nothing is copied while the index forgets a window whose end is no durable
//! tail yet: a later, smaller window from the same tail would set the backing store back to a state
//! before what was forgotten.

use super::checkpoint_state::Stage;
use super::command::{Command, Device, Op};
use super::commit_state::Flight;
use super::state::Core;
use super::window_state::After;
use crate::log::disk::checkpoint_page::{Content, Draft, ITEM, chain};
use crate::log::disk::format::{ENTRY, PAGE_SIZES, Pointer};
use crate::log::planted::{self, Bug, mark};
use std::sync::Arc;

/// Bytes of log for a byte of a whole copy: copies cost less than 1 / `RATIO` of the log's writes.
const RATIO: u64 = 32;
/// Increments take at most 1 / `PART` of their whole copy: more would cost more reading than they
/// save writing.
const PART: u64 = 4;
/// Pages that increments may take in any case.
const INCREMENT_MIN: u64 = 8;
/// A checkpoint is hurried when more bytes were written since it began than 1 / `LATE_PART` of the
/// distance between two checkpoints, plus `LATE_MIN`.
const LATE_PART: u64 = 8;
const LATE_MIN: u64 = 256 << 10;
/// Most pages in flight.
const DEPTH: u32 = 4;
/// Least number of pages that an area should have room for.
const PAGES_MIN: u64 = 64;
/// Items that one step visits, so that no request waits long.
const STEP: usize = if cfg!(sim) { 24 } else { 16 << 10 };

/// Bytes of a page in an area of `area` bytes.
fn page_size(area: u64) -> u32 {
    let most = (area / PAGES_MIN).clamp(u64::from(PAGE_SIZES[0]), u64::from(PAGE_SIZES[1])) as u32;
    1 << most.ilog2()
}

impl Core {
    /// Begins a checkpoint if one is due and fits; has the superblock name one that is durable.
    pub(super) fn step_checkpoint(&mut self) {
        match self.checkpoint.stage {
            Stage::Idle => self.begin_checkpoint(),
            Stage::Ending if self.checkpoint.flying == 0 => {
                self.checkpoint.stage = Stage::Unflushed;
            }
            Stage::Durable => {
                let covered = self.commit.durable() >= self.checkpoint.end
                    || planted::on(Bug::CheckpointBeforeDurable);
                if covered && self.is_written() {
                    self.checkpoint.stage = Stage::Naming;
                    let pointer = self.checkpoint.pointer;
                    let late = planted::on(Bug::CheckpointFromEnd);
                    self.sb.checkpoint =
                        Some(if late { self.starting_here(pointer) } else { pointer });
                    self.write_superblock(After::Checkpoint);
                }
            }
            _ => {}
        }
    }

    fn begin_checkpoint(&mut self) {
        let least = self.options.checkpoint;
        // While a superblock is being written, the one on the drive may name the other area.
        let may = least > 0 && self.is_written() && self.checkpoint.flying == 0;
        if !may || self.checkpoint.grown[0] < least {
            return;
        }
        let increment = self.increment();
        self.checkpoint.since = increment.map(|named| named.segment);
        let Some(pointer) = increment.or_else(|| self.whole_copy()) else { return };
        self.checkpoint.grown[0] = 0;
        self.checkpoint.entries[1] = self.checkpoint.entries[0];
        let mut pointer = self.starting_here(pointer);
        if let Some(since) = &mut self.checkpoint.since {
            mark("checkpoint.increment");
            *since += u64::from(planted::on(Bug::IncrementMissesSegment));
        } else {
            mark("checkpoint.begun");
            self.checkpoint.grown[1] = 0;
            self.checkpoint.spoilt[1] = false;
            pointer.origin = pointer.segment;
        }
        self.checkpoint.pointer = pointer;
        let from = self.checkpoint.since.unwrap_or(0);
        self.checkpoint.stage = Stage::Copying(Content::Segments, from);
    }

    /// The named checkpoint, if what has changed since fits behind it and is little.
    fn increment(&self) -> Option<Pointer> {
        if self.checkpoint.spoilt[0] {
            mark("checkpoint.spoilt");
            return None;
        }
        let named = self.sb.checkpoint.filter(|named| !named.is_passed(&self.sb.tail))?;
        let segments = self.first + self.segments.len() as u64 - named.segment;
        let more = Content::Blocks.pages(self.checkpoint.entries[0], named.page)
            + Content::Ranges.pages(self.holes.len(), named.page)
            + Content::Segments.pages(segments as usize, named.page);
        let all = u64::from(named.count) + more;
        let most = (u64::from(named.whole) / PART).max(INCREMENT_MIN);
        let fits = all * u64::from(named.page) <= self.sb.area();
        (fits && all - u64::from(named.whole) <= most).then_some(named)
    }

    /// A whole copy of the index in the other area, if it fits there and is worth it.
    fn whole_copy(&mut self) -> Option<Pointer> {
        let area = self.sb.area();
        let page = page_size(area);
        let needed = Content::Blocks.pages(self.map.len(), page)
            + Content::Ranges.pages(self.holes.len(), page)
            + Content::Segments.pages(self.segments.len(), page);
        let items = self.map.len() * ENTRY + (self.holes.len() + self.segments.len()) * ITEM;
        if self.checkpoint.grown[1] < items as u64 * RATIO {
            return None;
        }
        if area < needed * u64::from(page) {
            mark("checkpoint.too_large");
            self.checkpoint.grown[0] = 0;
            return None;
        }
        self.checkpoint.attempts += 1;
        Some(Pointer {
            seed: (self.epoch() ^ self.checkpoint.attempts.rotate_left(48)).max(1),
            area: 1 - self.sb.checkpoint.map_or(1, |named| named.area),
            page,
            ..Pointer::default()
        })
    }

    /// This checkpoint, replayed from the chunk on that is closed next.
    fn starting_here(&self, pointer: Pointer) -> Pointer {
        let (segment, offset) = match (&self.open, self.segments.back()) {
            (Some(open), _) => (open.segment, open.offset),
            (None, Some(last)) => (self.first + self.segments.len() as u64 - 1, last.used),
            (None, None) => (self.first, 0),
        };
        Pointer { chunk: self.next_chunk, prev: self.prev, segment, offset, ..pointer }
    }

    /// Whether the checkpoint is late, so that its pages go before chunks.
    pub(super) fn is_checkpoint_late(&self) -> bool {
        self.checkpoint.grown[0] > self.options.checkpoint / LATE_PART + LATE_MIN
    }

    /// The next page to write, if there is one now.
    pub(super) fn next_page(&mut self) -> Option<Command> {
        let Stage::Copying(content, from) = self.checkpoint.stage else { return None };
        let torn = self.is_moving_tail() && !planted::on(Bug::CheckpointForgets);
        if self.checkpoint.flying >= DEPTH || torn {
            return None;
        }
        let Pointer { page, count, .. } = self.checkpoint.pointer;
        if u64::from(count + 1) * u64::from(page) > self.sb.area() {
            mark("checkpoint.no_room");
            self.checkpoint.abort();
            return None;
        }
        // Segments that were freed since need no description.
        let from = if content == Content::Segments { from.max(self.first) } else { from };
        let draft = self.checkpoint.draft.take();
        let mut draft = draft.unwrap_or_else(|| Draft::new(content, self.first, from, page));
        // Its entries name slots as they were used when it was begun.
        let stale = draft.first() != self.first;
        let next = if stale { Some(from) } else { self.fill(content, from, &mut draft) };
        self.checkpoint.stage = match (next, content) {
            (Some(next), _) => Stage::Copying(content, next),
            (None, Content::Segments) => Stage::Copying(Content::Ranges, 0),
            (None, Content::Ranges) => Stage::Copying(Content::Blocks, 0),
            (None, Content::Blocks) => {
                let open = self.open.as_ref().is_some_and(|open| !open.is_empty());
                self.checkpoint.end = self.next_chunk + u64::from(open);
                Stage::Ending
            }
        };
        if next.is_some() && !stale && !draft.is_full() {
            mark("checkpoint.goes_on");
            self.checkpoint.draft = Some(draft);
            return None;
        }
        Some(self.write_page(draft))
    }

    fn write_page(&mut self, draft: Draft) -> Command {
        let pointer = &mut self.checkpoint.pointer;
        let (bytes, check) = draft.finish(pointer.seed, pointer.count);
        let at = self.sb.area_at(pointer.area) + u64::from(pointer.count) * bytes.len() as u64;
        pointer.count += 1;
        pointer.sum = chain(pointer.sum, check);
        if self.checkpoint.since.is_none() {
            pointer.whole = pointer.count;
        }
        self.checkpoint.flying += 1;
        self.counts.written_bytes += bytes.len() as u64;
        self.counts.checkpoint_bytes += bytes.len() as u64;
        let id = self.commit.launch(Flight::CheckpointPage);
        let all = 0..bytes.len();
        Command { id, device: Device::Log, at, op: Op::Write(Arc::new(bytes), all) }
    }

    /// Whether a checkpoint has more to copy before there is something to write: a thread that
    /// drives the core, and waits for nothing else, asks for a command again at once.
    pub fn is_copying(&self) -> bool {
        let copying = matches!(self.checkpoint.stage, Stage::Copying(..));
        copying && self.checkpoint.flying < DEPTH && !self.is_moving_tail()
    }

    /// Takes the end of a page's write.
    pub(super) fn page_written(&mut self, well: bool) {
        self.checkpoint.flying -= 1;
        if !well {
            // The log itself is well as long as its chunks are.
            mark("checkpoint.write_failed");
            self.checkpoint.abort();
        }
    }

    /// Puts items from `from` on into a page, as many as one step may visit; returns the next item.
    fn fill(&self, content: Content, from: u64, out: &mut Draft) -> Option<u64> {
        let since = self.checkpoint.since.unwrap_or(0);
        match content {
            Content::Segments => return self.fill_segments(from, out),
            Content::Ranges => {
                for (i, (start, end, hole)) in self.holes.from(from).enumerate() {
                    if i == STEP || out.is_full() {
                        return Some(start);
                    }
                    if hole.segment >= since {
                        out.push(&hole.item(start, end));
                    }
                }
            }
            Content::Blocks => {
                for (i, item) in self.map.packed_from(from).enumerate() {
                    if i == STEP || out.is_full() {
                        return Some(item.block());
                    }
                    if since == 0 || self.segment_of(item.slot()) >= since {
                        out.push(&item.words());
                    }
                }
            }
        }
        None
    }

    /// Puts the segments up to the one where replay begins into a page; returns the next one.
    fn fill_segments(&self, from: u64, out: &mut Draft) -> Option<u64> {
        let end = self.checkpoint.pointer.segment + 1;
        let skip = from.saturating_sub(self.first) as usize;
        let there = (from..end).zip(self.segments.iter().skip(skip));
        for (number, s) in there {
            if out.is_full() {
                return Some(number);
            }
            out.push(&[s.epoch, s.chunk, u64::from(s.prev) | u64::from(s.used) << 32]);
        }
        None
    }
}

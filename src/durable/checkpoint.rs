//! Checkpoints: the index on the log's drive, so that recovery replays only what came after.
//!
//! A checkpoint is a run of *sheets* in one of two areas; the superblock names the newest. It is
//! copied piece by piece while changes go on: a sheet may say more than the one before, and
//! replaying every chunk from [`Pointer::chunk`] on brings all of them to the same state. That is
//! the fuzzy checkpoint of databases (Gray and Reuter 1992, 11.3).
//!
//! Invariants: the area that the superblock names is never written; a checkpoint is named only when
//! its sheets are durable, and every chunk that they could know of; nothing depends on having one,
//! because each of its entries is also in a chunk. A sheet's entries speak of slots as they were
//! used when it was made, which its `first` says: those of segments that were freed since are
//! dropped. Nothing is copied while the index forgets a window whose end is no durable tail yet: a
//! later, smaller window from the same tail would take the backing store behind what was forgotten.

use super::command::{Command, Device, Op};
use super::commit::Flight;
use super::core::{Core, Segment};
use super::format::{ENTRY, Kind, Pointer, SHEETS, crc, mix};
use super::holes::Hole;
use super::map::{Map, Packed, Pages};
use super::planted::{self, Bug, mark};
use super::window::After;
use crate::media::Buffer;
use std::sync::Arc;

/// Bytes of log for a byte of checkpoint: what checkpoints cost is less than one part of this.
const RATIO: u64 = 32;
/// Sheets in flight at once.
const DEPTH: u32 = 4;
/// Sheets that an area should have room for at least.
const SHEETS_MIN: u64 = 64;

const MAGIC: u32 = u32::from_le_bytes(*b"zCKP");
/// Bytes before the items of a sheet.
const FRONT: usize = 64;
/// Bytes that describe a segment, or a range.
const ITEM: usize = 24;

/// What the items of a sheet are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub(super) enum Content {
    Segments = 1,
    Ranges = 2,
    Blocks = 3,
}

/// How far a checkpoint has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Idle,
    /// Sheets are made; the next one begins with this item.
    Copying(Content, u64),
    /// All sheets are made, and some are being written.
    Ending,
    /// The drive has to be flushed, then is.
    Unflushed,
    Flushing,
    /// The sheets are durable; all chunks below `end` have to be.
    Durable,
    /// The superblock that names it is being written.
    Naming,
}

/// The checkpoint that is being made.
#[derive(Debug)]
pub(super) struct Checkpoint {
    stage: Stage,
    pointer: Pointer,
    /// Sheets in flight, also of one that was given up.
    flying: u32,
    /// Chunks below this are in it, at most.
    end: u64,
    /// Bytes of chunks closed since the last one began.
    since: u64,
    attempts: u64,
    /// How many were made.
    pub(super) made: u64,
}

impl Checkpoint {
    pub(super) fn new() -> Self {
        let pointer = Pointer {
            stamp: 0,
            area: 1,
            sheet: 0,
            count: 0,
            chunk: 0,
            prev: 0,
            segment: 0,
            offset: 0,
        };
        Self { stage: Stage::Idle, pointer, flying: 0, end: 0, since: 0, attempts: 0, made: 0 }
    }

    /// A chunk of so many bytes was closed.
    pub(super) fn grow(&mut self, bytes: u32) {
        self.since += u64::from(bytes);
    }

    /// Gives up the one that is being made, unless it is whole already.
    pub(super) fn abort(&mut self) {
        if !matches!(self.stage, Stage::Idle | Stage::Naming) {
            mark("checkpoint.aborted");
            self.stage = Stage::Idle;
        }
    }

    /// Whether a flush of the drive is wanted; it counts from here on as begun.
    pub(super) fn take_unflushed(&mut self) -> bool {
        let wanted = self.stage == Stage::Unflushed;
        if wanted {
            self.stage = Stage::Flushing;
        }
        wanted
    }

    /// The flush has ended well.
    pub(super) fn flushed(&mut self) {
        if self.stage == Stage::Flushing {
            self.stage = Stage::Durable;
        }
    }

    /// The superblock names it.
    pub(super) fn named(&mut self) {
        mark("checkpoint.ended");
        self.made += 1;
        self.stage = Stage::Idle;
    }
}

/// Bytes of a sheet in an area of this size.
fn sheet_size(area: u64) -> u32 {
    let most = (area / SHEETS_MIN).clamp(u64::from(SHEETS[0]), u64::from(SHEETS[1])) as u32;
    1 << most.ilog2()
}

impl Core {
    /// Begins a checkpoint if one is due and fits, and carries one that is whole to the superblock.
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
        let area = self.sb.area();
        let items =
            (self.map.len() * ENTRY + (self.holes.len() + self.segments.len()) * ITEM) as u64;
        let due = self.options.checkpoint.max(items * RATIO);
        // While a superblock is on its way, the one on the drive may name the other area.
        let may = self.options.checkpoint > 0 && self.is_written() && self.checkpoint.flying == 0;
        if !may || self.checkpoint.since < due {
            return;
        }
        self.checkpoint.since = 0;
        let sheet = sheet_size(area);
        let sheets = |count: usize, size| count.div_ceil((sheet as usize - FRONT) / size).max(1);
        let needed = sheets(self.map.len(), ENTRY)
            + sheets(self.holes.len(), ITEM)
            + sheets(self.segments.len(), ITEM);
        if area < needed as u64 * u64::from(sheet) {
            mark("checkpoint.too_large");
            return;
        }
        let named = self.sb.checkpoint.map_or(1, |pointer| pointer.area);
        self.checkpoint.attempts += 1;
        self.checkpoint.pointer = self.starting_here(Pointer {
            stamp: (self.epoch() ^ self.checkpoint.attempts.rotate_left(48)).max(1),
            area: 1 - named,
            sheet,
            ..Checkpoint::new().pointer
        });
        mark("checkpoint.begun");
        self.checkpoint.stage = Stage::Copying(Content::Segments, self.first);
    }

    /// The same checkpoint, replayed from the chunk on that is closed next.
    fn starting_here(&self, pointer: Pointer) -> Pointer {
        let (segment, offset) = match (&self.open, self.segments.back()) {
            (Some(open), _) => (open.segment, open.offset),
            (None, Some(last)) => (self.first + self.segments.len() as u64 - 1, last.used),
            (None, None) => (self.first, 0),
        };
        Pointer { chunk: self.next_chunk, prev: self.prev, segment, offset, ..pointer }
    }

    /// The next sheet to write, if there is one now.
    pub(super) fn next_sheet(&mut self) -> Option<Command> {
        let Stage::Copying(content, from) = self.checkpoint.stage else { return None };
        let torn = self.is_moving_tail() && !planted::on(Bug::CheckpointForgets);
        if self.checkpoint.flying >= DEPTH || torn {
            return None;
        }
        let pointer = self.checkpoint.pointer;
        let sheet = pointer.sheet as usize;
        let used = u64::from(pointer.count) * u64::from(pointer.sheet);
        if used + sheet as u64 > self.sb.area() {
            mark("checkpoint.no_room");
            self.checkpoint.abort();
            return None;
        }
        let mut bytes = Buffer::new(sheet);
        let (base, count, next) = self.fill(content, from, &mut bytes[FRONT..]);
        let front = Front { content, count, first: self.first, base };
        front.encode(&mut bytes, pointer.stamp, pointer.count);
        self.checkpoint.pointer.count += 1;
        self.checkpoint.flying += 1;
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
        self.counts.written_bytes += sheet as u64;
        self.counts.checkpoint_bytes += sheet as u64;
        let at = self.sb.area_at(pointer.area) + used;
        let id = self.commit.launch(Flight::Sheet);
        let all = 0..sheet;
        Some(Command { id, device: Device::Log, at, op: Op::Write(Arc::new(bytes), all) })
    }

    /// A sheet's write has ended.
    pub(super) fn sheet_written(&mut self, well: bool) {
        self.checkpoint.flying -= 1;
        if !well {
            // The log itself is well as long as its chunks are.
            mark("checkpoint.write_failed");
            self.checkpoint.abort();
        }
    }

    /// Puts items from one on into a sheet: the number of the first, how many, and the one that
    /// comes next.
    fn fill(&self, content: Content, from: u64, out: &mut [u8]) -> (u64, u32, Option<u64>) {
        match content {
            Content::Segments => self.fill_segments(from, out),
            Content::Ranges => self.fill_ranges(from, out),
            Content::Blocks => {
                let mut items = self.map.packed_from(from);
                let mut count = 0;
                for (slot, item) in out.chunks_exact_mut(ENTRY).zip(&mut items) {
                    put(slot, &item.words());
                    count += 1;
                }
                (from, count, items.next().map(|item| item.block()))
            }
        }
    }

    /// The segments before the one where replaying begins, and that one.
    fn fill_segments(&self, from: u64, out: &mut [u8]) -> (u64, u32, Option<u64>) {
        let from = from.max(self.first);
        let end =
            (self.checkpoint.pointer.segment + 1).min(self.first + self.segments.len() as u64);
        let items = self.segments.iter().skip((from - self.first) as usize);
        let wanted = end.saturating_sub(from) as usize;
        let mut count = 0;
        for (slot, s) in out.chunks_exact_mut(ITEM).zip(items.take(wanted)) {
            put(slot, &[s.epoch, s.chunk, u64::from(s.prev) | u64::from(s.used) << 32]);
            count += 1;
        }
        let next = from + u64::from(count);
        (from, count, (next < end).then_some(next))
    }

    fn fill_ranges(&self, from: u64, out: &mut [u8]) -> (u64, u32, Option<u64>) {
        let mut items = self.holes.from(from);
        let mut count = 0;
        for (slot, (start, end, hole)) in out.chunks_exact_mut(ITEM).zip(&mut items) {
            put(slot, &[start | (hole.kind as u64) << 40, end - start, hole.segment]);
            count += 1;
        }
        (from, count, items.next().map(|(start, ..)| start))
    }
}

fn put(out: &mut [u8], words: &[u64]) {
    for (slot, word) in out.chunks_exact_mut(8).zip(words) {
        slot.copy_from_slice(&word.to_le_bytes());
    }
}

fn get8(b: &[u8], at: usize) -> u64 {
    b.get(at..at + 8).and_then(|b| b.try_into().ok()).map_or(0, u64::from_le_bytes)
}

fn get4(b: &[u8], at: usize) -> u32 {
    b.get(at..at + 4).and_then(|b| b.try_into().ok()).map_or(0, u32::from_le_bytes)
}

/// What is before the items of a sheet.
#[derive(Clone, Copy, Debug)]
struct Front {
    content: Content,
    count: u32,
    /// The oldest segment in use when the sheet was made.
    first: u64,
    /// Number of the first segment that it describes.
    base: u64,
}

impl Front {
    fn encode(&self, b: &mut [u8], stamp: u64, index: u32) {
        put(&mut b[..8], &[u64::from(MAGIC)]);
        put(&mut b[8..16], &[stamp]);
        put(&mut b[16..24], &[u64::from(index) | (self.content as u64) << 32]);
        put(&mut b[24..48], &[u64::from(self.count), self.first, self.base]);
        let sum = crc(&b[8..]) ^ mix(stamp, u64::from(index));
        b[4..8].copy_from_slice(&sum.to_le_bytes());
    }

    fn decode(b: &[u8], stamp: u64, index: u32) -> Option<Self> {
        let sum = crc(b.get(8..)?) ^ mix(stamp, u64::from(index));
        if get4(b, 0) != MAGIC || get4(b, 4) != sum || get8(b, 8) != stamp || get4(b, 16) != index {
            return None;
        }
        let content = match get4(b, 20) {
            1 => Content::Segments,
            2 => Content::Ranges,
            3 => Content::Blocks,
            _ => return None,
        };
        Some(Self { content, count: get4(b, 24), first: get8(b, 32), base: get8(b, 40) })
    }
}

/// A checkpoint that is read: what was in use of the log when it was made, and still is.
#[derive(Debug)]
pub(super) struct Loading {
    stamp: u64,
    /// Segments of the log.
    slots: u64,
    /// The oldest segment that is still in use.
    tail: u64,
    /// From the tail on.
    pub segments: Vec<Segment>,
    /// Ranges: first block, end, what covers it.
    pub ranges: Vec<(u64, u64, Hole)>,
}

/// A sheet that is what it should be.
pub(super) enum Sheet {
    /// Its items as they are: segments from a number on, or ranges.
    Items(Content, u64, Vec<u8>),
    /// Pages of the index.
    Blocks(Vec<Vec<Packed>>),
}

impl Loading {
    pub(super) fn new(pointer: &Pointer, slots: u64, tail: u64) -> Self {
        let (segments, ranges) = (Vec::new(), Vec::new());
        Self { stamp: pointer.stamp, slots, tail, segments, ranges }
    }

    /// Verifies a sheet. `None` when it is not what it should be.
    pub(super) fn read(&self, index: u32, sheet: &[u8]) -> Option<Sheet> {
        let front = Front::decode(sheet, self.stamp, index)?;
        let items = sheet.get(FRONT..)?;
        let size = if front.content == Content::Blocks { ENTRY } else { ITEM };
        let items = items.get(..(front.count as usize).checked_mul(size)?)?;
        Some(match front.content {
            Content::Blocks => Sheet::Blocks(self.read_blocks(front.first, items)?),
            content => Sheet::Items(content, front.base, items.to_vec()),
        })
    }

    /// Takes the sheets in order; blocks go to `map`. `None` when one does not fit to those before.
    pub(super) fn take(&mut self, sheet: Sheet, map: &mut Map) -> Option<()> {
        match sheet {
            Sheet::Items(Content::Segments, base, items) => self.take_segments(base, &items),
            Sheet::Items(_, _, items) => self.take_ranges(&items),
            Sheet::Blocks(pages) => pages.into_iter().try_for_each(|page| map.push_page(page)),
        }
    }

    fn take_segments(&mut self, base: u64, items: &[u8]) -> Option<()> {
        for (number, item) in (base..).zip(items.chunks_exact(ITEM)) {
            let (epoch, chunk, rest) = (get8(item, 0), get8(item, 8), get8(item, 16));
            if number < self.tail {
                continue;
            }
            if number != self.tail + self.segments.len() as u64 {
                return None;
            }
            let (prev, used) = (rest as u32, (rest >> 32) as u32);
            self.segments.push(Segment { epoch, chunk, prev, used, pins: 0, finished: true });
        }
        Some(())
    }

    fn take_ranges(&mut self, items: &[u8]) -> Option<()> {
        for item in items.chunks_exact(ITEM) {
            let (first, count, segment) = (get8(item, 0), get8(item, 8), get8(item, 16));
            let kind = Kind::from_bits(first >> 40 & 15)?;
            let start = first & ((1 << 40) - 1);
            if segment >= self.tail {
                self.ranges.push((start, start.checked_add(count)?, Hole { segment, kind }));
            }
        }
        Some(())
    }

    /// The entries of a sheet whose segments are in use, as pages.
    fn read_blocks(&self, first: u64, items: &[u8]) -> Option<Vec<Vec<Packed>>> {
        let (slots, at) = (self.slots, first % self.slots);
        let mut pages = Pages::default();
        for item in items.chunks_exact(ENTRY) {
            let packed = Packed::from_words([get8(item, 0), get8(item, 8)])?;
            let slot = u64::from(packed.slot());
            let segment = first + if slot >= at { slot - at } else { slot + slots - at };
            if segment >= self.tail || planted::on(Bug::CheckpointKeepsFreed) {
                pages.push(packed)?;
            } else {
                mark("recover.checkpoint_freed");
            }
        }
        Some(pages.into_inner())
    }
}

//! The state of a log (index, open chunk, segments), and the calls of its volume.
//!
//! The core does no I/O, reads no clock and starts no thread: changes go in, [`Core::next_command`]
//! gives commands, [`Core::complete`] takes their outcomes. So a simulator can drive it through
//! every order of events. Threads share the core under one lock. They compress payloads and compute
//! their CRCs before they take the lock, and copy payloads after they leave it: the core reserves
//! the place of a write, and the writer fills that place without the lock, then acknowledges the
//! write.
//!
//! Invariants: log order is index order, because one step gives a change its place and indexes it.
//! A chunk is given to the drive, and a payload read, only when the payload is there. A slot is
//! reused only when nothing needs its content: its changes are durable in the backing store, a
//! durable superblock says so, and no reader holds a pin.

use super::answer::{Found, Reading, Refused};
use super::checkpoint_state::Checkpoint;
use super::chunk::{Closing, Open, Payload, Sealed};
use super::commit_state::Commit;
use super::fill::Fills;
use super::holes::{Hole, Holes};
use super::kept::Kept;
use super::map::{Map, Place};
use super::options::{CHUNK_MAX, CHUNK_MIN};
use super::options::{MEMORY_MAX, Options, RESERVE};
use super::release::Release;
use super::rescue_state::Rescue;
use super::segment::Segment;
use super::summary::Summaries;
use super::window_state::{After, Window};
use crate::log::disk::format::{CLUSTER, Data, Entry, Epoch, Kind, Seed, Superblock, crc};
use crate::log::planted::mark;
use crate::stats::LogStats;
use std::collections::VecDeque;

/// Most blocks, and most ranges, that the index forgets in one discard.
const DISCARDED: usize = if cfg!(sim) { 4 } else { 1024 };

/// The state machine of a log.
pub struct Core {
    pub(super) options: Options,
    /// The superblock, as it is or as it will be written next.
    pub(in crate::log) sb: Superblock,
    pub(in crate::log) map: Map,
    pub(in crate::log) holes: Holes,
    /// Number of the oldest segment in use.
    pub(super) first: u64,
    /// Segments before this one may have been freed although readers pinned them.
    pub(super) forced: u64,
    /// Segments before this one are written back, and a durable superblock says so.
    pub(super) written: u64,
    /// Dirty blocks: those that the backing store lacks.
    pub(super) dirty: u64,
    /// The segments in use, oldest first.
    pub(in crate::log) segments: VecDeque<Segment>,
    pub(super) open: Option<Open>,
    /// The memory of chunks that are not durable.
    pub(super) kept: Kept,
    /// Chunks that another process left in `kept` wait for room; until then the core takes no
    /// changes.
    pub(super) recommits: bool,
    /// Free segments that those chunks wait for.
    pub(super) recommits_into: Option<u64>,
    /// Changes that were taken over from those chunks.
    pub(super) recommitted: u64,
    /// Closed chunks that are not durable, oldest first.
    pub(super) sealed: VecDeque<Sealed>,
    /// Bytes of `sealed`.
    pub(super) sealed_bytes: u64,
    /// Number of the chunk that is closed next.
    pub(super) next_chunk: u64,
    /// CRC of the header of the chunk closed last.
    pub(super) prev: u32,
    pub(super) commit: Commit,
    pub(super) window: Window,
    pub(in crate::log) checkpoint: Checkpoint,
    pub(super) summaries: Summaries,
    pub(super) rescue: Rescue,
    pub(super) release: Release,
    /// See [`Core::set_unsent_max`].
    unsent_max: Option<(u64, u64)>,
    pub(in crate::log) counts: LogStats,
}

impl Core {
    /// A core for the superblock that recovery found; the next chunk gets the number `next_chunk`.
    pub(in crate::log) fn new(
        sb: Superblock,
        options: Options,
        (next_chunk, prev): (u64, u32),
        mut kept: Kept,
    ) -> Self {
        let options = Options { memory: options.memory.min(MEMORY_MAX), ..options };
        kept.fit(&options, sb.segment);
        Self {
            options,
            first: sb.tail.segment,
            forced: sb.tail.segment,
            written: sb.written.segment,
            dirty: 0,
            commit: Commit::new(next_chunk, prev),
            sb,
            map: Map::default(),
            holes: Holes::default(),
            segments: VecDeque::new(),
            open: None,
            kept,
            recommits: false,
            recommits_into: None,
            recommitted: 0,
            sealed: VecDeque::new(),
            sealed_bytes: 0,
            next_chunk,
            prev,
            window: Window::default(),
            checkpoint: Checkpoint::new(),
            summaries: Summaries::default(),
            rescue: Rescue::default(),
            release: Release::default(),
            unsent_max: None,
            counts: LogStats::default(),
        }
    }

    /// Blocks of the volume.
    pub fn blocks(&self) -> u64 {
        self.sb.blocks
    }

    /// The superblock, as it is or as it will be written next.
    pub fn superblock(&self) -> &Superblock {
        &self.sb
    }

    /// State and counters of the log.
    pub fn stats(&self) -> LogStats {
        LogStats {
            segments: self.sb.segments,
            segments_used: self.fullness().0,
            segments_clean: self.written - self.first,
            blocks_dirty: self.dirty,
            blocks_zeroed: self.holes.unwritten_blocks(),
            blocks_clean: self.map.len() as u64 - self.dirty,
            index_bytes: (self.map.memory() + self.holes.memory()) as u64,
            checkpoints: self.checkpoint.made,
            since_checkpoint_bytes: self.checkpoint.grown(),
            failed: self.is_failed(),
            rescuing: self.is_rescuing(),
            through: self.is_through(),
            segment_tail: self.written,
            segment_newest: self.first + (self.segments.len() as u64).saturating_sub(1),
            segment_durable: self.segment_durable(),
            past_unix_s: self.past_s(),
            mixture_since_unix_s: self.sb.mixture_s,
            unsent_age_s: self.unsent().1 / 1000,
            clean: self.is_clean(),
            commits: self.commit.took.latency(),
            ..self.counts
        }
    }

    /// The newest segment of which everything is durable.
    fn segment_durable(&self) -> u64 {
        let end = self.first + self.segments.len() as u64;
        let open = self.open.as_ref().map_or(end, |open| open.segment);
        self.sealed.front().map_or(open, |s| s.header.segment).saturating_sub(1)
    }

    /// Sets the milliseconds without a change after which the log commits by itself.
    pub fn set_idle_ms(&mut self, idle_ms: u64) {
        self.options.idle_ms = idle_ms;
    }

    /// Chunks closed so far.
    pub fn chunks(&self) -> u64 {
        self.counts.chunks
    }

    /// Segments that are not written back, and segments of the log in all.
    pub fn fullness(&self) -> (u64, u64) {
        (self.first + self.segments.len() as u64 - self.written, self.sb.segments)
    }

    /// The number of the segment that comes after the newest one.
    pub fn end(&self) -> u64 {
        self.first + self.segments.len() as u64
    }

    /// Windows that failed, and are taken again.
    pub fn windows_failed(&self) -> u64 {
        self.counts.windows_failed
    }

    /// Segments before this one are written back.
    pub fn written(&self) -> u64 {
        self.written
    }

    /// Whether the backing store lacks nothing that the log has, except that blocks are lost.
    pub fn is_clean(&self) -> bool {
        self.dirty == 0 && self.holes.are_written(self.written) && self.window.is_idle()
    }

    /// Appends a block whose payload, encoded as `kind`, has `len` bytes and this CRC, and reserves
    /// the place of the payload. The write must not be acknowledged before `fills` are filled and
    /// finished, which needs nothing else of the core.
    ///
    /// # Errors
    /// [`Refused`]; then nothing has changed.
    pub fn reserve(
        &mut self,
        block: u64,
        kind: Kind,
        (len, crc): (usize, u32),
        fills: &mut Fills,
    ) -> Result<(), Refused> {
        self.check_health()?;
        self.commit.touch();
        let open = self.open_for(len, RESERVE)?;
        let data = open.reserve(block, kind, (len, crc), fills);
        let (segment, offset) = (open.segment, data.offset - open.offset);
        self.kept.add(&Entry::Data(Data { offset, check: crc, ..data }));
        self.index_data(segment, data);
        self.counts.blocks_appended += 1;
        self.counts.asked_bytes += crate::BLOCK_SIZE as u64;
        Ok(())
    }

    /// Like [`Self::reserve`] for the blocks of a cluster, `block` first, which share a payload.
    /// `false`, and nothing has changed, where the open chunk has no room for it: each block alone
    /// finds some.
    ///
    /// # Errors
    /// [`Refused`]; then nothing has changed.
    pub fn reserve_cluster(
        &mut self,
        block: u64,
        (len, crc): (usize, u32),
        fills: &mut Fills,
    ) -> Result<bool, Refused> {
        self.check_health()?;
        self.commit.touch();
        let open = self.open_for(0, RESERVE)?;
        if !open.has_room_for(len, CLUSTER) {
            mark("append.cluster_apart");
            return Ok(false);
        }
        mark("append.cluster");
        let all = open.reserve_cluster(block, (len, crc), fills);
        let (segment, offset) = (open.segment, all[0].offset - open.offset);
        self.kept.add(&Entry::Data(Data { offset, check: crc, ..all[0] }));
        for data in all {
            self.index_data(segment, data);
        }
        self.counts.blocks_appended += CLUSTER as u64;
        self.counts.blocks_clustered += CLUSTER as u64;
        self.counts.cluster_bytes += len as u64;
        self.counts.asked_bytes += (CLUSTER * crate::BLOCK_SIZE) as u64;
        Ok(true)
    }

    /// Bytes of closed chunks that the log's drive has not written, and the most that memory may
    /// hold.
    pub fn backlog(&self) -> (u64, u64) {
        (self.commit.unwritten(), self.options.memory)
    }

    /// Makes blocks from `block` on read as zeros, and returns their number: all `count` of them,
    /// unless the index has too many entries there: other threads wait while it forgets them.
    ///
    /// # Errors
    /// [`Refused`]; then nothing has changed.
    pub fn discard(&mut self, block: u64, count: u64) -> Result<u64, Refused> {
        self.check_health()?;
        let mut end = block + count;
        if count > DISCARDED as u64 {
            let named = self.map.block_after(block, DISCARDED);
            let covered = self.holes.from(block).nth(DISCARDED).map(|(start, ..)| start);
            end = end.min(named.unwrap_or(end)).min(covered.unwrap_or(end));
            if end < block + count {
                mark("discard.in_parts");
            }
        }
        self.append_range(Kind::Zeros, block, end - block, RESERVE)?;
        Ok(end - block)
    }

    /// Appends a record without payload, as long as `reserve` segments stay free.
    pub(super) fn append_range(
        &mut self,
        kind: Kind,
        block: u64,
        count: u64,
        reserve: u64,
    ) -> Result<(), Refused> {
        let entry = Entry::Range { kind, block, count };
        self.commit.touch();
        let open = self.open_for(0, reserve)?;
        open.push_range(entry);
        let chunk = (open.segment, open.offset);
        self.kept.add(&entry);
        self.index(chunk, &entry);
        Ok(())
    }

    /// Indexes an entry of the chunk that begins at `offset` of `segment`.
    pub(super) fn index(&mut self, (segment, offset): (u64, u32), entry: &Entry) {
        match *entry {
            Entry::Data(data) => self.index_data(segment, data),
            Entry::Range { kind, block, count } => {
                self.window.changed(segment, self.written, self.commit.now_ms());
                self.forget_range(block, block + count);
                self.holes.insert(block, block + count, Hole { segment, offset, kind });
            }
        }
    }

    /// Indexes an entry with a payload, of a chunk in `segment`.
    pub(super) fn index_data(&mut self, segment: u64, data: Data) {
        let Data { block, kind, len, offset, check, copy } = data;
        if kind == Kind::Summary {
            return;
        }
        let slot = (segment % self.sb.segments) as u32;
        let place = Place { slot, offset, len, kind, check, copy };
        if copy && !self.takes_copy(segment, block) {
            return;
        }
        if !copy {
            self.window.changed(segment, self.written, self.commit.now_ms());
        }
        match self.name(block, place) {
            _ if copy => {}
            None => self.counts.writes_new += 1,
            Some(old) if self.is_durable(&old) => self.counts.writes_over_log += 1,
            Some(_) => self.counts.writes_over_memory += 1,
        }
    }

    /// The open chunk, with room for `payload` bytes; opens a new chunk if needed, as long as
    /// `reserve` segments stay free.
    pub(super) fn open_for(&mut self, payload: usize, reserve: u64) -> Result<&mut Open, Refused> {
        if reserve == RESERVE && self.is_behind() {
            self.commit.want(self.next_chunk);
            return Err(Refused::Full);
        }
        let (own, open) = (reserve != RESERVE, self.open.as_ref());
        let records = self.kept.has_room(2, own);
        if open.is_some_and(|open| !open.has_room(payload)) || !records {
            self.seal();
        }
        if !records {
            mark("append.records_full");
            self.commit.want(self.next_chunk);
            return Err(Refused::Full);
        }
        if self.open.is_none() {
            if reserve == RESERVE && self.sealed_bytes >= self.options.memory {
                mark("append.memory_full");
                self.commit.want(self.next_chunk);
                return Err(Refused::Full);
            }
            self.open = Some(self.open_chunk(reserve)?);
        }
        self.open.as_mut().ok_or(Refused::Full)
    }

    fn open_chunk(&mut self, reserve: u64) -> Result<Open, Refused> {
        if self.recommits {
            return Err(Refused::Full);
        }
        let size = self.sb.segment;
        let (segment, offset) = match self.segments.back() {
            Some(last) if !last.finished && last.used + CHUNK_MIN <= size => {
                (self.first + self.segments.len() as u64 - 1, last.used)
            }
            _ => (self.open_segment(reserve)?, 0),
        };
        let capacity = (size - offset).min(CHUNK_MAX);
        let Some(bytes) = self.kept.open(self.next_chunk, capacity) else {
            self.commit.want(self.next_chunk);
            return Err(Refused::Full);
        };
        let mut open = Open::new(segment, offset, self.epoch(), bytes);
        if let Some(summary) = self.summaries.take() {
            for (block, piece) in (0..).zip(summary.chunks(crate::BLOCK_SIZE)) {
                open.append(block, Kind::Summary, piece, crc(piece));
            }
        }
        Ok(open)
    }

    /// Takes a free segment into use, as long as `reserve` others stay free; returns its number.
    pub(super) fn open_segment(&mut self, reserve: u64) -> Result<u64, Refused> {
        if self.segments.len() as u64 + reserve >= self.sb.segments {
            mark("append.log_full");
            self.commit.want(self.next_chunk);
            return Err(Refused::Full);
        }
        if let Some(last) = self.segments.back_mut() {
            last.finished = true;
        }
        if self.first + self.segments.len() as u64 >= self.sb.segments {
            mark("segment.next_lap");
        }
        let (epoch, chunk, prev) = (self.epoch(), self.next_chunk, self.prev);
        let number = self.first + self.segments.len() as u64;
        self.summaries.begin(number, epoch, chunk, prev, self.sb.segment);
        let (used, pins, changes, finished) = (0, 0, 0, false);
        self.segments.push_back(Segment { epoch, chunk, prev, used, pins, changes, finished });
        Ok(number)
    }

    /// Bytes of changes that the backing store lacks, at most, and the age of the oldest in
    /// milliseconds; that of an earlier process counts from the opening on. Copies do not count.
    pub fn unsent(&self) -> (u64, u64) {
        if self.dirty == 0 && self.holes.are_written(self.written) {
            return (0, 0);
        }
        let oldest = self.window.changed_ms.iter().find(|(segment, _)| *segment >= self.written);
        let age = self.commit.now_ms().saturating_sub(oldest.map_or(0, |(_, ms)| *ms));
        let most = self.fullness().0 * u64::from(self.sb.segment);
        (most.min(self.dirty * crate::BLOCK_SIZE as u64), age)
    }

    /// Sets what the backing store may lack before changes are refused as if the log were full:
    /// bytes, and milliseconds. `None`: no bound but the log.
    pub fn set_unsent_max(&mut self, most: Option<(u64, u64)>) {
        self.unsent_max = most;
    }

    /// Whether the backing store lacks more than it may.
    fn is_behind(&self) -> bool {
        let Some((bytes, ms)) = self.unsent_max else { return false };
        let (unsent, age) = self.unsent();
        unsent > bytes || age > ms
    }

    /// The epoch of new chunks.
    pub(super) fn epoch(&self) -> u64 {
        self.sb.epochs.last().map_or(0, |e: &Epoch| e.id)
    }

    /// Closes the open chunk, if there is one; it will be written.
    pub(super) fn seal(&mut self) {
        let Some(mut open) = self.open.take() else { return };
        let closing =
            Closing { chunk: self.next_chunk, prev: self.prev, durable: self.commit.durable() };
        if open.is_empty() {
            mark("seal.mark");
        }
        self.counts.chunks_partial += u64::from(open.has_room(crate::BLOCK_SIZE));
        open.settle(&mut self.kept);
        let mut sealed = open.close(closing);
        if !sealed.complete() {
            mark("seal.before_filled");
        }
        self.push_sealed(sealed);
        // One flush should cover as much as possible, but begin before memory is full. While a
        // commit is at work the next is not requested, or each chunk would get its own.
        let nearly_full = self.sealed_bytes * 4 >= self.options.memory * 3;
        if (nearly_full || self.kept.is_nearly_full()) && !self.commit.is_busy() {
            mark("seal.self_commit");
            self.commit.want(self.next_chunk);
        }
    }

    pub(super) fn push_sealed(&mut self, sealed: Sealed) {
        if let Some(at) = self.segment_mut(sealed.header.segment) {
            at.used = sealed.header.offset + sealed.header.len;
        }
        self.summaries.add(&sealed, self.sb.segment);
        self.checkpoint.grow(sealed.header.len, sealed.entries.len());
        self.prev = sealed.sum;
        self.next_chunk = sealed.header.chunk + 1;
        self.commit.sealed(&sealed);
        self.window.sealed(sealed.header.segment);
        self.counts.chunks += 1;
        self.sealed_bytes += u64::from(sealed.header.len);
        self.sealed.push_back(sealed);
    }

    /// Closes the open chunk, or an empty one if there is none.
    pub(super) fn seal_mark(&mut self) -> Result<(), Refused> {
        if self.open.is_none() {
            self.open = Some(self.open_chunk(RESERVE)?);
        }
        self.seal();
        Ok(())
    }

    pub(super) fn segment_mut(&mut self, number: u64) -> Option<&mut Segment> {
        self.segments.get_mut(number.checked_sub(self.first)? as usize)
    }

    /// The segment in use that has this slot.
    pub(super) fn segment_of(&self, slot: u32) -> u64 {
        let first = self.first % self.sb.segments;
        self.first + (u64::from(slot) + self.sb.segments - first) % self.sb.segments
    }

    /// Where the current content of a block is. Copies a payload in memory to `out`; pins one on
    /// the drive until [`Self::release`].
    pub fn locate(&mut self, block: u64, out: &mut Vec<u8>) -> Found {
        self.locate_at(block, self.map.get(block), out)
    }

    /// Like [`Self::locate`] for neighbouring blocks from `first` on. Blocks of one cluster share a
    /// payload: after the first of them the others are [`Found::Before`].
    pub fn locate_all<'a>(
        &mut self,
        first: u64,
        out: impl Iterator<Item = &'a mut Vec<u8>>,
        found: &mut Vec<Found>,
    ) {
        let (mut last, mut is_memory) = (None, false);
        for (block, out) in (first..).zip(out) {
            let place = self.map.get(block);
            let dirty = |p: &Place| p.kind == Kind::Cluster && !self.is_clean_at(p);
            let cluster = place.filter(dirty);
            let now = cluster.map(|p| (p.slot, p.offset));
            let here = match cluster {
                Some(place) if now == last => {
                    mark("read.cluster_at_once");
                    self.counts.reads_memory += u64::from(is_memory);
                    self.counts.reads_log += u64::from(!is_memory);
                    Found::Before(place.check)
                }
                _ => {
                    let here = self.locate_at(block, place, out);
                    is_memory = matches!(here, Found::Memory(_));
                    here
                }
            };
            found.push(here);
            last = now;
        }
    }

    fn locate_at(&mut self, block: u64, place: Option<Place>, out: &mut Vec<u8>) -> Found {
        let Some(place) = place else {
            return match self.holes.get(block).map(|hole| hole.kind) {
                None => {
                    self.counts.reads_backing += 1;
                    Found::Backing
                }
                Some(Kind::Lost) => {
                    mark("read.lost");
                    Found::Lost
                }
                Some(_) => {
                    mark("read.zeros");
                    self.counts.reads_zeros += 1;
                    Found::Zeros
                }
            };
        };
        if self.is_clean_at(&place) {
            // A reader of the backing store asks `locate_copy` first, which finds this place.
            self.counts.reads_backing += 1;
            return Found::Backing;
        }
        let found = self.locate_place(block, place, out);
        match found {
            Found::Memory(_) => self.counts.reads_memory += 1,
            Found::Log(_) => self.counts.reads_log += 1,
            _ => {}
        }
        found
    }

    /// Locates the payload of an index entry: in memory, or, pinned, on the log's drive.
    pub(super) fn locate_place(&mut self, block: u64, place: Place, out: &mut Vec<u8>) -> Found {
        if place.kind == Kind::Cluster {
            mark("read.cluster");
        }
        let segment = self.segment_of(place.slot);
        match self.in_memory(segment, place.offset, place.len) {
            None => {}
            Some(Payload::Filling) => {
                mark("read.waits_for_fill");
                return Found::Filling;
            }
            Some(Payload::Filled(payload)) => {
                mark("read.memory");
                out.clear();
                out.extend_from_slice(payload);
                return Found::Memory(place.kind);
            }
        }
        let at = self.sb.place(segment) + u64::from(place.offset);
        let Some(found) = self.segment_mut(segment) else { return Found::Lost };
        found.pins += 1;
        let seed = Seed { epoch: found.epoch, segment, offset: place.offset, block };
        mark("read.log");
        let Place { len, kind, check, .. } = place;
        Found::Log(Reading { at, len, kind, check, seed })
    }

    fn in_memory(&self, segment: u64, offset: u32, len: u32) -> Option<Payload<'_>> {
        if let Some(found) = self.open.as_ref().and_then(|o| o.payload(segment, offset, len)) {
            return Some(found);
        }
        let from = (segment, offset);
        let after = self.sealed.partition_point(|s| (s.header.segment, s.header.offset) <= from);
        self.sealed.get(after.checked_sub(1)?)?.payload(segment, offset, len)
    }

    /// Whether the segment of a reading left the log although it was pinned: then the block has
    /// another place, or is lost.
    pub fn has_left(&self, reading: &Reading) -> bool {
        reading.seed.segment < self.forced
    }

    /// Unpins the segment of a reading.
    pub fn release(&mut self, reading: &Reading) {
        if let Some(segment) = self.segment_mut(reading.seed.segment) {
            segment.pins = segment.pins.saturating_sub(1);
        }
    }

    /// Advances the clock to `now_ms`, which never falls. Commits an idle log; retries a rescue.
    pub fn tick(&mut self, now_ms: u64) {
        self.clock(now_ms * 1000);
        self.retry_rescue();
        if !self.commit.is_idle(self.options.idle_ms) || self.check_health().is_err() {
            return;
        }
        self.rest();
        if self.open.as_ref().is_some_and(|open| !open.is_empty()) || !self.sealed.is_empty() {
            mark("tick.commit");
            self.flush_for(0);
        } else if self.commit.lacks_mark() && self.seal_mark().is_err() {
            // A full log has no room for a mark; the superblock says it as well.
            mark("tick.marked_by_superblock");
            self.commit.note_marked();
            self.write_superblock(After::Identity);
        }
    }
}

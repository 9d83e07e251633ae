//! Walks the chain of chunks: which of them count, and which segments they are in.
//!
//! Invariants: a chunk counts if it follows the one before (number, CRC of the header before,
//! epoch); unless it was durable for certain, all its payloads must verify as well. Nothing is
//! written. Reading ahead and summaries change how fast a result comes, never the result.

use super::report::Report;
use crate::log::core::chunk::read_table;
use crate::log::core::commit::JOINED;
use crate::log::core::commit_state::REWRITES;
use crate::log::core::options::{CHUNK_MIN, MEMORY_MAX};
use crate::log::core::segment::Segment;
use crate::log::core::summary::Summary;
use crate::log::disk::format::{
    Data, ENTRY, Entry, HEADER, Header, Kind, Pointer, Seed, Sums, Superblock,
};
use crate::log::disk::open_error::OpenError;
use crate::log::planted::{self, Bug, mark};
use crate::media::{ALIGN, Buffer, Drive, DriveError};
use std::cell::Cell;
use std::collections::BTreeMap;
use std::ops::{Deref, Range};

/// Segments behind the end of the chain that are searched for the next chunk, or for a sign of
/// damage: this many, or as many as take [`AHEAD_BYTES`] if these are more.
const AHEAD: u64 = 64;
/// Chunks that are not durable take at most [`MEMORY_MAX`]. The log lays them out, and up to
/// [`REWRITES`] times anew behind the earlier places, until the drive takes them: each time in up
/// to twice their room.
const AHEAD_BYTES: u64 = 8 * MEMORY_MAX;
const _: () = assert!(AHEAD_BYTES >= 2 * (1 + REWRITES as u64) * MEMORY_MAX);
/// Bytes that are read ahead from the begin of each segment: the first chunk there has a summary if
/// the segment before has small chunks.
const FRONT: usize = 16 << 10;
/// Segments that are read ahead at once: at first, and at most.
const BATCH: [u64; 2] = [4, 512];

/// A walk along the chain.
pub(super) struct Walk<'a> {
    sb: &'a Superblock,
    accept_loss: bool,
    /// Number of the chunk that comes next.
    pub next: u64,
    /// CRC of the header of the chunk before.
    pub prev: u32,
    /// Where the next chunk should be.
    segment: u64,
    offset: u32,
    /// Chunks below this were durable.
    durable: u64,
    /// The chunks that were found, with their entries.
    pub chunks: Vec<(Header, Vec<Entry>)>,
    /// CRCs of the headers of `chunks`; 0 where only a summary was read.
    sums: Vec<u32>,
    /// Number of the first chunk, and CRC of the header of the chunk before it.
    start: (u64, u32),
    /// The segments in use, from the tail on.
    pub segments: Vec<Segment>,
    report: Report,
    /// Failed reads, if losses are accepted.
    unread: Cell<u64>,
    ahead: Ahead<'a>,
    /// Summaries are read in place of the chunks that they cover.
    quick: bool,
    /// Called with the segments passed so far, and the most that there can be.
    progress: &'a dyn Fn(u64, u64),
}

/// What is at a place where a chunk could be.
enum Here {
    Chunk(Header, u32, Vec<Entry>),
    /// A header that fits, whose table is damaged.
    Torn,
    Nothing,
}

/// Readahead of the log: fronts of segments, and tables of their first chunks.
struct Ahead<'a> {
    log: &'a dyn Drive,
    sb: &'a Superblock,
    segments: Range<u64>,
    batch: u64,
    parts: BTreeMap<u64, Buffer>,
    /// A segment that was read whole, with its byte offset on the drive.
    whole: Option<(u64, Buffer)>,
    /// A header that was read ahead says that chunks below this are durable.
    durable: u64,
}

/// Bytes of the log.
enum Bytes<'a> {
    /// They were read ahead.
    There(&'a [u8]),
    /// They have been read now.
    Read(Buffer),
}

impl Deref for Bytes<'_> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::There(bytes) => bytes,
            Self::Read(buffer) => buffer,
        }
    }
}

impl Ahead<'_> {
    /// Bytes of the log, from the readahead if that has them; `at` and `len` are aligned.
    fn read(&self, at: u64, len: usize) -> Result<Bytes<'_>, DriveError> {
        let before = self.parts.range(..=at).next_back().map(|(from, part)| (*from, part));
        let whole = self.whole.iter().map(|(from, segment)| (*from, segment));
        let there = before.into_iter().chain(whole).find_map(|(from, part)| {
            let from = usize::try_from(at.checked_sub(from)?).ok()?;
            part.get(from..)?.get(..len)
        });
        if let Some(bytes) = there {
            return Ok(Bytes::There(bytes));
        }
        let mut buffer = Buffer::new(len);
        self.log.read(at, &mut buffer)?;
        Ok(Bytes::Read(buffer))
    }

    /// Reads this segment and the next one ahead, if they are not there yet, but nothing behind
    /// `last`. What fails is left to [`Self::read`].
    fn prepare(&mut self, segment: u64, last: u64) {
        let next = (segment + 1).min(last);
        if self.segments.contains(&segment) && self.segments.contains(&next) {
            return;
        }
        self.segments = segment..(segment + self.batch).min(last + 1);
        self.batch = (self.batch * 2).min(BATCH[1]);
        self.parts.clear();
        let size = FRONT.min(self.sb.segment as usize);
        let fronts = self.segments.clone().map(|s| (self.sb.place(s), Buffer::new(size)));
        self.parts.extend(self.log.read_many(fronts.collect()).into_iter().flatten());
        let mut tables = Vec::new();
        for segment in self.segments.clone() {
            let at = self.sb.place(segment);
            let Some(front) = self.parts.get(&at) else { continue };
            let Some((header, _)) = Header::decode(&front[..HEADER]) else { continue };
            if header.segment != segment || header.offset + header.len > self.sb.segment {
                continue;
            }
            // A header is beyond doubt if the superblock names its epoch.
            if self.sb.epoch_of(header.chunk) == Some(header.epoch) {
                self.durable = self.durable.max(header.durable);
            }
            let from = header.table_at() / ALIGN * ALIGN;
            if header.len as usize > size {
                tables.push((at + from as u64, Buffer::new(header.len as usize - from)));
            }
        }
        self.parts.extend(self.log.read_many(tables).into_iter().flatten());
    }

    /// Reads a segment whole, if it is not there yet: with damage in many places, the search for
    /// evidence begins at each of them.
    fn load(&mut self, segment: u64) {
        let at = self.sb.place(segment);
        if self.whole.as_ref().is_some_and(|(there, _)| *there == at) {
            return;
        }
        let earlier = self.whole.take().map(|(_, bytes)| bytes);
        let mut bytes = earlier.unwrap_or_else(|| Buffer::new(self.sb.segment as usize));
        self.whole = self.log.read(at, &mut bytes).is_ok().then_some((at, bytes));
    }
}

impl<'a> Walk<'a> {
    /// A walk from the tail.
    pub fn new(
        log: &'a dyn Drive,
        sb: &'a Superblock,
        accept_loss: bool,
        progress: &'a dyn Fn(u64, u64),
    ) -> Self {
        let (segments, parts) = (0..0, BTreeMap::new());
        let ahead = Ahead { log, sb, segments, batch: BATCH[0], parts, whole: None, durable: 0 };
        Self {
            sb,
            accept_loss,
            start: (sb.tail.chunk, sb.tail.prev),
            next: sb.tail.chunk,
            prev: sb.tail.prev,
            segment: sb.tail.segment,
            offset: 0,
            durable: sb.durable,
            chunks: Vec::new(),
            sums: Vec::new(),
            segments: Vec::new(),
            report: Report::default(),
            unread: Cell::new(0),
            ahead,
            quick: false,
            progress,
        }
    }

    /// The same walk, which trusts summaries.
    #[must_use]
    pub fn quick(self) -> Self {
        Self { quick: true, ..self }
    }

    /// The same walk, from where a checkpoint begins. `segments` are those that the checkpoint
    /// knows.
    #[must_use]
    pub fn from(self, pointer: &Pointer, segments: Vec<Segment>) -> Self {
        Self {
            start: (pointer.chunk, pointer.prev),
            next: pointer.chunk,
            prev: pointer.prev,
            segment: pointer.segment,
            offset: pointer.offset,
            segments,
            ..self
        }
    }

    /// What [`Self::run`] has found.
    pub fn report(&self) -> Report {
        Report {
            closed: !self.sb.open,
            chunks: self.chunks.len() as u64,
            entries: self.chunks.iter().map(|(_, entries)| entries.len() as u64).sum(),
            unread: self.unread.get(),
            ..self.report.clone()
        }
    }

    /// Walks to the end of the chain.
    ///
    /// # Errors
    /// The drive fails, or durable chunks are missing and that is not accepted.
    pub fn run(&mut self) -> Result<(), OpenError> {
        let first = self.segment;
        loop {
            (self.progress)(self.segment - first, self.last() + 1 - first);
            while let Some((header, sum, entries)) = self.find_next()? {
                self.accept(header, sum, entries);
                self.accept_rest();
                (self.progress)(self.segment - first, self.last() + 1 - first);
            }
            if self.is_end() {
                break;
            }
            let Some((header, sum, entries)) = self.find_evidence()? else { break };
            if !self.accept_loss {
                return Err(OpenError::Lost { chunk: self.next, segment: self.segment });
            }
            mark("recover.loss_accepted");
            self.report.missing.push((self.next, header.chunk - self.next));
            (self.next, self.prev) = (header.chunk, header.prev);
            self.accept(header, sum, entries);
        }
        self.cut_torn()?;
        if self.next < self.sb.durable {
            if !self.accept_loss {
                return Err(OpenError::Lost { chunk: self.next, segment: self.segment });
            }
            mark("recover.end_lost");
            self.report.missing.push((self.next, self.sb.durable - self.next));
        }
        self.note_segments();
        Ok(())
    }

    /// Whether nothing can come after what was found: the log was closed there.
    fn is_end(&self) -> bool {
        !self.sb.open && self.next == self.sb.durable
    }

    fn accept(&mut self, header: Header, sum: u32, entries: Vec<Entry>) {
        if header.segment > self.segment {
            mark("recover.next_segment");
        }
        if header.segment > self.segment + 1 {
            mark("recover.segments_skipped");
        }
        self.durable = self.durable.max(header.durable);
        (self.next, self.prev) = (header.chunk + 1, sum);
        (self.segment, self.offset) = (header.segment, header.offset + header.len);
        self.chunks.push((header, entries));
        self.sums.push(sum);
    }

    /// Accepts the other chunks of a segment from its summary, if the chunk accepted last is the
    /// first of the segment, the next segment has the summary, and all of the segment was durable.
    fn accept_rest(&mut self) {
        let Some((first, _)) = self.chunks.last() else { return };
        if !self.quick || first.offset > 0 {
            return;
        }
        let Some((summary, following)) = self.summary_of(first) else { return };
        let durable = self.durable.max(self.ahead.durable) >= following.chunk;
        if !durable && !planted::on(Bug::TrustSummary) {
            mark("recover.summary_not_durable");
            return;
        }
        if durable {
            self.durable = self.durable.max(following.chunk);
        }
        mark("recover.summary");
        for (header, entries) in summary.chunks.into_iter().skip(1) {
            self.accept(header, 0, entries);
        }
        (self.prev, self.offset) = (following.prev, self.sb.segment);
        if let Some(sum) = self.sums.last_mut() {
            *sum = following.prev;
        }
    }

    /// The summary of the segment that begins with chunk `first`, and the header of the next
    /// segment's first chunk, which has the summary.
    fn summary_of(&self, first: &Header) -> Option<(Summary, Header)> {
        let at = self.sb.place(first.segment + 1);
        let front = self.ahead.read(at, ALIGN).ok()?;
        let (header, _) = Header::decode(&front[..HEADER])?;
        let placed = header.segment == first.segment + 1
            && header.offset == 0
            && header.len <= self.sb.segment
            && self.sb.epoch_of(header.chunk) == Some(header.epoch);
        if !placed {
            return None;
        }
        let entries = self.table(&header, at, &front).ok()??;
        let mut bytes = Vec::new();
        for entry in &entries {
            let Entry::Data(data @ Data { kind: Kind::Summary, .. }) = entry else { break };
            bytes.extend(self.payload(&header, at, data)?);
        }
        let summary = Summary::read(&bytes)?;
        let count = summary.chunks.len() as u64;
        let (last, _) = summary.chunks.last()?;
        let fits = (summary.segment, summary.epoch) == (first.segment, first.epoch)
            && (summary.chunk, summary.prev) == (first.chunk, first.prev)
            && summary.chunk.checked_add(count) == Some(header.chunk)
            && last.offset + last.len <= self.sb.segment
            && self.sb.epoch_of(last.chunk) == Some(first.epoch);
        fits.then_some((summary, header))
    }

    /// A payload of the chunk at byte `at` of the drive, if it verifies.
    fn payload(&self, header: &Header, at: u64, data: &Data) -> Option<Vec<u8>> {
        let from = data.offset as usize;
        let aligned = from / ALIGN * ALIGN;
        let end = from + data.len as usize;
        let len = end.next_multiple_of(ALIGN) - aligned;
        let bytes = self.ahead.read(at + aligned as u64, len).ok()?;
        let payload = bytes.get(from - aligned..end - aligned)?;
        let Header { epoch, segment, .. } = *header;
        let seed = Seed { epoch, segment, offset: data.offset, block: data.block };
        seed.fits(payload, data.check).then(|| payload.to_vec())
    }

    /// The next chunk: in the same segment, or the first one of a later segment.
    fn find_next(&mut self) -> Result<Option<(Header, u32, Vec<Entry>)>, OpenError> {
        if self.is_end() {
            return Ok(None);
        }
        let (last, end) = (self.last_ahead(), self.last());
        let here = (self.segment, self.offset);
        let mut ahead = (self.segment + 1..=last).map(|segment| (segment, 0));
        // Where hardly anything fits any more there is most likely no chunk: look ahead first.
        let full = self.offset + CHUNK_MIN > self.sb.segment;
        let first = if full { ahead.next() } else { None };
        for (segment, offset) in first.into_iter().chain([here]).chain(ahead) {
            if offset == 0 {
                self.ahead.prepare(segment, end);
            }
            if let Here::Chunk(header, sum, entries) = self.look(segment, offset, true)? {
                return Ok(Some((header, sum, entries)));
            }
        }
        Ok(None)
    }

    /// The last segment that can be in use.
    fn last(&self) -> u64 {
        self.sb.tail.segment + self.sb.segments - 1
    }

    fn last_ahead(&self) -> u64 {
        let ahead = AHEAD.max(AHEAD_BYTES / u64::from(self.sb.segment));
        (self.segment + ahead).min(self.last())
    }

    /// Bytes of the log; `None` if the read fails and losses are accepted.
    fn get(&self, at: u64, len: usize) -> Result<Option<Bytes<'_>>, OpenError> {
        match self.ahead.read(at, len) {
            Ok(bytes) => Ok(Some(bytes)),
            Err(_) if self.accept_loss => {
                self.unread.set(self.unread.get() + 1);
                Ok(None)
            }
            Err(e) => Err(OpenError::Unread(e)),
        }
    }

    /// What is at a place: if `chained`, the chunk that follows the last one; else any later chunk.
    fn look(&self, segment: u64, offset: u32, chained: bool) -> Result<Here, OpenError> {
        if offset + ALIGN as u32 > self.sb.segment {
            return Ok(Here::Nothing);
        }
        let at = self.sb.place(segment) + u64::from(offset);
        let Some(front) = self.get(at, ALIGN)? else { return Ok(Here::Nothing) };
        let Some((mut header, sum)) = Header::decode(&front[..HEADER]) else {
            return Ok(Here::Nothing);
        };
        if planted::on(Bug::AcceptOldLap) {
            header.segment = segment;
        }
        if !self.follows(&header, segment, offset, chained) {
            return Ok(Here::Nothing);
        }
        Ok(match self.table(&header, at, &front)? {
            Some(entries) => Here::Chunk(header, sum, entries),
            None => Here::Torn,
        })
    }

    /// The table of the chunk at byte `at` of the drive, which begins with `front`; `None` if it is
    /// damaged.
    fn table(
        &self,
        header: &Header,
        at: u64,
        front: &[u8],
    ) -> Result<Option<Vec<Entry>>, OpenError> {
        let len = header.len as usize;
        if len == ALIGN {
            return Ok(read_table(header, &front[header.table_at()..]));
        }
        let from = header.table_at() / ALIGN * ALIGN;
        let Some(end) = self.get(at + from as u64, len - from)? else { return Ok(None) };
        Ok(read_table(header, &end[header.table_at() - from..]))
    }

    fn follows(&self, header: &Header, segment: u64, offset: u32, chained: bool) -> bool {
        let fits = header.offset == offset && offset + header.len <= self.sb.segment;
        if planted::on(Bug::AcceptOldLap) && chained {
            return fits;
        }
        let known = self.sb.epoch_of(header.chunk);
        let epoch = known.is_none_or(|id| id == header.epoch) || planted::on(Bug::AcceptOldEpoch);
        let placed = fits && header.segment == segment && epoch;
        if chained {
            placed && header.chunk == self.next && header.prev == self.prev
        } else {
            // A sign of damage must be beyond doubt: the superblock must name its epoch.
            placed && known.is_some() && header.chunk > self.next
        }
    }

    /// Evidence of damage: a chunk behind the end of the chain that says that the missing one was
    /// durable. It may be anywhere in the segments that may hold missing chunks; of a later
    /// segment, the first chunk must be there. Missing chunks are in the segment where the chain
    /// ends, in the next one and as many more as one write covers, or, if their epoch begins with
    /// them, behind those whose write failed.
    fn find_evidence(&mut self) -> Result<Option<(Header, u32, Vec<Entry>)>, OpenError> {
        let before = self.next.checked_sub(1).and_then(|chunk| self.sb.epoch_of(chunk));
        let joined = 1 + (JOINED as u64).div_ceil(u64::from(self.sb.segment));
        let anew = before != self.sb.epoch_of(self.next);
        for segment in self.segment..=self.last_ahead() {
            let here = anew || segment <= self.segment + joined;
            if here {
                self.ahead.load(segment);
            }
            let mut offset = if segment == self.segment { self.offset } else { 0 };
            while offset < self.sb.segment {
                match self.look(segment, offset, false)? {
                    Here::Chunk(header, sum, entries) if header.durable > self.next => {
                        return Ok(Some((header, sum, entries)));
                    }
                    Here::Chunk(header, ..) => offset += header.len,
                    Here::Torn | Here::Nothing if here => offset += ALIGN as u32,
                    Here::Torn | Here::Nothing => break,
                }
            }
        }
        Ok(None)
    }

    /// Cuts the chain before the first chunk that may not be durable and has a payload that does
    /// not verify.
    fn cut_torn(&mut self) -> Result<(), OpenError> {
        let durable = self.durable;
        let sure = self.chunks.partition_point(|(header, _)| header.chunk < durable);
        for i in sure..self.chunks.len() {
            if planted::on(Bug::AcceptTornTail) || self.unfit(i)?.is_empty() {
                continue;
            }
            mark("recover.torn_tail");
            self.report.torn = true;
            let (header, _) = &self.chunks[i];
            (self.next, self.prev) = (header.chunk, header.prev);
            (self.segment, self.offset) = (header.segment, header.offset);
            self.chunks.truncate(i);
            self.sums.truncate(i);
            break;
        }
        Ok(())
    }

    /// The payloads of the `i`-th chunk that do not verify.
    pub fn unfit(&self, i: usize) -> Result<Vec<Data>, OpenError> {
        let (header, entries) = &self.chunks[i];
        let at = self.sb.place(header.segment) + u64::from(header.offset);
        let bytes = self.get(at, header.len as usize)?;
        let Header { epoch, segment, .. } = *header;
        let mut sums = Sums::default();
        let unfit = entries.iter().filter_map(|entry| {
            let Entry::Data(d) = entry else { return None };
            let from = (d.offset - header.offset) as usize;
            let seed = Seed { epoch, segment, offset: d.offset, block: d.block };
            let payload = bytes.as_ref().and_then(|bytes| bytes.get(from..from + d.len as usize));
            let fits = payload.is_some_and(|payload| sums.fits(&seed, payload, d.check));
            (!fits).then_some(*d)
        });
        Ok(unfit.collect())
    }

    /// Notes the segments from the tail to the last chunk.
    fn note_segments(&mut self) {
        let tail = &self.sb.tail;
        let (mut chunk, mut prev) = self.start;
        for ((header, _), sum) in self.chunks.iter().zip(&self.sums) {
            let at = (header.segment - tail.segment) as usize;
            // Segments without a chunk that counts may lie between the others.
            while self.segments.len() <= at {
                let (used, pins, changes, finished) = (0, 0, 0, true);
                let none = Segment { epoch: 0, chunk, prev, used, pins, changes, finished };
                self.segments.push(none);
            }
            let segment = &mut self.segments[at];
            if segment.used == 0 {
                (segment.epoch, segment.chunk) = (header.epoch, header.chunk);
                segment.prev = header.prev;
            }
            segment.used = header.offset + header.len;
            (chunk, prev) = (header.chunk + 1, *sum);
        }
    }
}

const _: () = assert!(HEADER + ENTRY <= ALIGN);

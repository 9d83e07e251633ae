//! Making a log, and opening one: which chunks count, and what they say.
//!
//! Invariants: opening changes nothing but superblocks, and only after everything was read; done
//! twice, also when power went in between, it ends in the same state. Chunks count from the tail
//! on, each following the one before (number, CRC of the header before, epoch); one that was not
//! durable for certain counts only if all its payloads fit. Where the chain ends, a later chunk
//! that says that the missing one was durable makes the end *damage*, else it is the torn tail that
//! every cut leaves.

use super::chunk::read_table;
use super::core::{Core, MEMORY_MAX, Options, Segment};
use super::format::{
    DATA_MIN, ENTRY, Entry, Epoch, HEADER, Header, IDENTITY, Kind, SEGMENT_MAX, SEGMENT_MIN,
    SEGMENTS_MAX, SEGMENTS_MIN, SUPER, SUPER_AT, Stamp, Superblock, Tail, Unfit,
};
use super::planted::{self, Bug, mark};
use crate::media::{ALIGN, Buffer, Drive, DriveError};
use std::fmt;

/// Segments behind the end of the chain that are searched for the next chunk, or for a sign of
/// damage: so many, or as many as take [`AHEAD_BYTES`].
const AHEAD: u64 = 64;
/// What is in flight when a drive fails is at most [`MEMORY_MAX`]; what is written after that
/// begins behind it.
const AHEAD_BYTES: u64 = 2 * MEMORY_MAX;

/// Why a log cannot be made or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The drive failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// No copy of a superblock is on the drive.
    #[error("no log is on it")]
    NoLog,
    /// Both copies of the superblock are damaged.
    #[error("both copies of the superblock are damaged")]
    Damaged,
    /// It was made by a newer version.
    #[error("its format has version {0}, which this program does not know")]
    Version(u32),
    /// The drive is smaller than the log.
    #[error("it has {has} bytes, and the log takes {needs}")]
    Shrunk {
        /// Size of the drive in bytes.
        has: u64,
        /// Bytes that the log takes.
        needs: u64,
    },
    /// The segment size is not one.
    #[error("segment {0} is not usable: give a power of two from 32K to 16M")]
    Segment(u32),
    /// The drive has room for too few segments, or the log would have too many.
    #[error("{0} segments fit, and a log has from {SEGMENTS_MIN} to {SEGMENTS_MAX}")]
    Segments(u64),
    /// A durable chunk is missing: data was lost that had been acknowledged.
    #[error("chunk {chunk} in segment {segment} was durable and is damaged")]
    Lost {
        /// Number of the first chunk that is missing.
        chunk: u64,
        /// The segment in which it should be.
        segment: u64,
    },
}

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// The log had been closed in order.
    pub closed: bool,
    /// A copy of the superblock was damaged and is mended.
    pub mended: bool,
    /// Chunks that count.
    pub chunks: u64,
    /// Entries in them.
    pub entries: u64,
    /// Whether something behind the last chunk was cut off.
    pub torn: bool,
    /// Chunks missing in the midst, if that was accepted: number of the first, and how many.
    pub missing: Vec<(u64, u64)>,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let how = if self.closed { "closed in order" } else { "not closed" };
        write!(f, "log {how}: {} changes in {} chunks", self.entries, self.chunks)?;
        if self.torn {
            f.write_str("; a torn end was cut off")?;
        }
        if self.mended {
            f.write_str("; one superblock was damaged")?;
        }
        for (first, count) in &self.missing {
            write!(f, "; {count} chunks from {first} on are missing")?;
        }
        Ok(())
    }
}

/// Makes an empty log.
///
/// # Errors
/// A segment size that is none, a drive that is too small or fails.
pub fn format(
    log: &dyn Drive,
    uuid: [u8; 16],
    identity: [u8; IDENTITY],
    blocks: u64,
    segment: u32,
) -> Result<(), OpenError> {
    if !segment.is_power_of_two() || !(SEGMENT_MIN..=SEGMENT_MAX).contains(&segment) {
        return Err(OpenError::Segment(segment));
    }
    let data_at = DATA_MIN.next_multiple_of(u64::from(segment));
    let segments = log.size().saturating_sub(data_at) / u64::from(segment);
    if !(SEGMENTS_MIN..=SEGMENTS_MAX).contains(&segments) {
        return Err(OpenError::Segments(segments));
    }
    // What an earlier log left must not be taken for a copy of this one.
    for at in SUPER_AT {
        log.write(at, &Buffer::new(SUPER))?;
    }
    log.flush()?;
    let sb = Superblock {
        uuid,
        generation: 1,
        segment,
        segments,
        data_at,
        blocks,
        open: false,
        tail: Tail::default(),
        durable: 0,
        identity,
        past_s: 0,
        mixture_s: 0,
        spent: false,
        // The chunks of an earlier log on this drive are of another epoch.
        epochs: vec![Epoch { from: 0, id: first_epoch(&uuid) }],
        lost: Vec::new(),
    };
    write_superblock(log, &sb, 0)
}

/// The epoch in which a new log is until it is opened: as random as its UUID.
fn first_epoch(uuid: &[u8; 16]) -> u64 {
    uuid.iter().fold(0, |id, byte| id << 8 | u64::from(*byte))
}

/// Writes both copies, the one that matters less first.
fn write_superblock(log: &dyn Drive, sb: &Superblock, first: usize) -> Result<(), OpenError> {
    let mut bytes = Buffer::new(SUPER);
    bytes.copy_from_slice(&sb.encode());
    for copy in [first, 1 - first] {
        log.write(SUPER_AT[copy], &bytes)?;
        if !planted::on(Bug::SuperblocksTogether) {
            log.flush()?;
        }
    }
    Ok(log.flush()?)
}

/// The newest superblock, which copy it is in, and whether the other is damaged.
///
/// # Errors
/// None is there, or none that can be used.
pub fn read_superblock(log: &dyn Drive) -> Result<(Superblock, usize, bool), OpenError> {
    if log.size() < DATA_MIN {
        return Err(OpenError::NoLog);
    }
    let mut bytes = Buffer::new(SUPER);
    let mut copies = Vec::new();
    for at in SUPER_AT {
        log.read(at, &mut bytes)?;
        copies.push(Superblock::decode(&bytes));
    }
    let newest = match (&copies[0], &copies[1]) {
        (Ok(a), Ok(b)) => usize::from(b.generation > a.generation),
        (Ok(_), Err(_)) => 0,
        (Err(_), Ok(_)) => 1,
        (Err(Unfit::Version(v)), _) | (_, Err(Unfit::Version(v))) => {
            return Err(OpenError::Version(*v));
        }
        (Err(Unfit::Foreign), Err(Unfit::Foreign)) => return Err(OpenError::NoLog),
        _ => return Err(OpenError::Damaged),
    };
    if let Err(Unfit::Version(v)) = copies[1 - newest] {
        return Err(OpenError::Version(v));
    }
    let mended = copies[1 - newest].is_err();
    let Ok(sb) = copies.swap_remove(newest) else { return Err(OpenError::Damaged) };
    if sb.end() > log.size() {
        return Err(OpenError::Shrunk { has: log.size(), needs: sb.end() });
    }
    Ok((sb, newest, mended))
}

/// A look at a log: all that is needed to open it.
#[derive(Clone, Debug)]
pub struct Inspection {
    /// What its superblock says.
    pub superblock: Superblock,
    /// What was found.
    pub report: Report,
    /// The chunks that count, with what they change.
    pub chunks: Vec<(Header, Vec<Entry>)>,
    /// Blocks with a damaged record, and in which chunk; empty unless payloads were looked at.
    pub damaged: Vec<(u64, u64)>,
    /// Which copy of the superblock is the newest.
    newest: usize,
    segments: Vec<Segment>,
    /// Number of the chunk that comes next.
    next: u64,
    /// CRC of the header before.
    prev: u32,
}

/// Finds what counts in a log, and changes nothing. With `accept_loss` chunks that are missing are
/// passed over and reported; with `payloads` every record is verified.
///
/// # Errors
/// The drive fails, there is no log, it cannot be used, or durable chunks are missing.
pub fn inspect(
    log: &dyn Drive,
    accept_loss: bool,
    payloads: bool,
) -> Result<Inspection, OpenError> {
    let (superblock, newest, mended) = read_superblock(log)?;
    let mut walk = Walk::new(log, &superblock, accept_loss);
    walk.run()?;
    let mut damaged = Vec::new();
    for i in 0..if payloads { walk.chunks.len() } else { 0 } {
        let chunk = walk.chunks[i].0.chunk;
        damaged.extend(walk.unfit(i)?.into_iter().map(|block| (block, chunk)));
    }
    let report = walk.report(mended);
    let Walk { chunks, segments, next, prev, .. } = walk;
    Ok(Inspection { superblock, report, chunks, damaged, newest, segments, next, prev })
}

impl Inspection {
    /// Makes the log that was looked at ready for work in a new `epoch`, which must be a random
    /// number. Nobody may have written to it since.
    ///
    /// # Errors
    /// The drive fails.
    pub fn open(self, log: &dyn Drive, options: Options, epoch: u64) -> Result<Core, OpenError> {
        if self.report.mended {
            mark("recover.superblock_mended");
        }
        if self.report.closed {
            mark("recover.closed");
        }
        let (mut sb, next) = (self.superblock, self.next);
        sb.generation += 1;
        let in_order = !sb.open;
        (sb.open, sb.spent) = (true, false);
        let mut core = Core::new(sb, options, next, self.prev);
        core.segments = self.segments.into();
        core.resume(in_order);
        for (block, count) in core.sb.lost.clone() {
            let entry = Entry::Range { kind: Kind::Lost, block, count };
            core.index(core.sb.tail.segment, &entry);
        }
        for (header, entries) in &self.chunks {
            for entry in entries {
                core.index(header.segment, entry);
            }
        }
        if !planted::on(Bug::KeepEpoch) || core.sb.epochs.is_empty() {
            core.begin_epoch(next, epoch);
        }
        core.sb.durable = next;
        core.counts.writes_new = 0;
        core.counts.writes_over_log = 0;
        core.counts.writes_over_memory = 0;
        // After a mere end of the process, what was read may still be in the drive's cache.
        log.flush()?;
        // The copy that holds what is known so far is written last.
        write_superblock(log, &core.sb, 1 - self.newest)?;
        Ok(core)
    }
}

/// Looks at a log and opens it at once: see [`inspect`] and [`Inspection::open`].
///
/// # Errors
/// Those of both.
pub fn open(
    log: &dyn Drive,
    options: Options,
    epoch: u64,
    accept_loss: bool,
) -> Result<(Core, Report), OpenError> {
    let found = inspect(log, accept_loss, false)?;
    let report = found.report.clone();
    Ok((found.open(log, options, epoch)?, report))
}

/// The way along the chain.
struct Walk<'a> {
    log: &'a dyn Drive,
    sb: &'a Superblock,
    accept_loss: bool,
    /// Number of the chunk that comes next.
    next: u64,
    /// CRC of the header before.
    prev: u32,
    /// Where it should be.
    segment: u64,
    offset: u32,
    /// Chunks below this were durable.
    durable: u64,
    chunks: Vec<(Header, Vec<Entry>)>,
    segments: Vec<Segment>,
    report: Report,
}

/// What is at a place where a chunk could be.
enum Here {
    Chunk(Header, u32, Vec<Entry>),
    /// A header of the right number, whose table is damaged.
    Torn,
    Nothing,
}

impl<'a> Walk<'a> {
    fn new(log: &'a dyn Drive, sb: &'a Superblock, accept_loss: bool) -> Self {
        Self {
            log,
            sb,
            accept_loss,
            next: sb.tail.chunk,
            prev: sb.tail.prev,
            segment: sb.tail.segment,
            offset: 0,
            durable: sb.durable,
            chunks: Vec::new(),
            segments: Vec::new(),
            report: Report::default(),
        }
    }

    /// What was found, once it has run.
    fn report(&self, mended: bool) -> Report {
        Report {
            closed: !self.sb.open,
            mended,
            chunks: self.chunks.len() as u64,
            entries: self.chunks.iter().map(|(_, entries)| entries.len() as u64).sum(),
            ..self.report.clone()
        }
    }

    fn run(&mut self) -> Result<(), OpenError> {
        loop {
            while let Some((header, sum, entries)) = self.find_next()? {
                self.accept(header, sum, entries);
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
        if self.next < self.sb.durable && !self.accept_loss {
            return Err(OpenError::Lost { chunk: self.next, segment: self.segment });
        }
        self.note_segments();
        Ok(())
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
    }

    /// The chunk that follows: in the same segment, or first in one of the next ones.
    fn find_next(&self) -> Result<Option<(Header, u32, Vec<Entry>)>, OpenError> {
        let last = self.last_ahead();
        let here = (self.segment, self.offset);
        let ahead = (self.segment + 1..=last).map(|segment| (segment, 0));
        for (segment, offset) in std::iter::once(here).chain(ahead) {
            if let Here::Chunk(header, sum, entries) = self.look(segment, offset, true)? {
                return Ok(Some((header, sum, entries)));
            }
        }
        Ok(None)
    }

    fn last_ahead(&self) -> u64 {
        let ahead = AHEAD.max(AHEAD_BYTES / u64::from(self.sb.segment));
        (self.segment + ahead).min(self.sb.tail.segment + self.sb.segments - 1)
    }

    /// What is at a place: the chunk that follows the last, or (not `chained`) any later one.
    fn look(&self, segment: u64, offset: u32, chained: bool) -> Result<Here, OpenError> {
        if offset + ALIGN as u32 > self.sb.segment {
            return Ok(Here::Nothing);
        }
        let at = self.sb.place(segment) + u64::from(offset);
        let mut front = Buffer::new(ALIGN);
        self.log.read(at, &mut front)?;
        let Some((header, sum)) = Header::decode(&front[..HEADER]) else {
            return Ok(Here::Nothing);
        };
        if !self.follows(&header, segment, offset, chained) {
            return Ok(Here::Nothing);
        }
        let len = header.len as usize;
        let from = header.table_at() / ALIGN * ALIGN;
        let entries = if len == ALIGN {
            read_table(&header, &front[header.table_at()..])
        } else {
            let mut end = Buffer::new(len - from);
            self.log.read(at + from as u64, &mut end)?;
            read_table(&header, &end[header.table_at() - from..])
        };
        Ok(match entries {
            Some(entries) => Here::Chunk(header, sum, entries),
            None => Here::Torn,
        })
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
            // A sign of damage must be beyond doubt: of an epoch that the superblock names.
            placed && known.is_some() && header.chunk > self.next
        }
    }

    /// A chunk behind the end of the chain that says that the missing one was durable. In the
    /// segment of the end, and in the next two, which may begin with the missing chunk and with
    /// the one that was written in its place, it may be anywhere; of later ones the first chunk
    /// must be there.
    fn find_evidence(&self) -> Result<Option<(Header, u32, Vec<Entry>)>, OpenError> {
        for segment in self.segment..=self.last_ahead() {
            let here = segment <= self.segment + 2;
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

    /// Cuts the chain before the first chunk that was not durable and has a payload that does not
    /// fit.
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
            break;
        }
        Ok(())
    }

    /// The blocks of a chunk whose payloads do not fit.
    fn unfit(&self, i: usize) -> Result<Vec<u64>, OpenError> {
        let (header, entries) = &self.chunks[i];
        let mut bytes = Buffer::new(header.len as usize);
        let at = self.sb.place(header.segment) + u64::from(header.offset);
        self.log.read(at, &mut bytes)?;
        let Header { epoch, segment, .. } = *header;
        let unfit = entries.iter().filter_map(|entry| {
            let Entry::Data(d) = entry else { return None };
            let from = (d.offset - header.offset) as usize;
            let stamp = Stamp { epoch, segment, offset: d.offset, block: d.block };
            let payload = bytes.get(from..from + d.len as usize);
            let fits = payload.is_some_and(|payload| stamp.fits(payload, d.check));
            (!fits).then_some(d.block)
        });
        Ok(unfit.collect())
    }

    /// The segments from the tail to the last chunk.
    fn note_segments(&mut self) {
        let (mut chunk, mut prev) = (self.sb.tail.chunk, self.sb.tail.prev);
        let mut rest = self.chunks.iter().peekable();
        let Some(last) = self.chunks.last().map(|(header, _)| header.segment) else { return };
        for number in self.sb.tail.segment..=last {
            let mut segment = Segment { epoch: 0, chunk, prev, used: 0, pins: 0, finished: true };
            let mut first = true;
            while let Some((header, _)) = rest.next_if(|(header, _)| header.segment == number) {
                if std::mem::take(&mut first) {
                    (segment.chunk, segment.prev) = (header.chunk, header.prev);
                    segment.epoch = header.epoch;
                }
                segment.used = header.offset + header.len;
                chunk = header.chunk + 1;
                prev = header.encode().1;
            }
            self.segments.push(segment);
        }
    }
}

/// The least bytes that a log of this segment size takes.
pub fn least_size(segment: u32) -> u64 {
    DATA_MIN.next_multiple_of(u64::from(segment)) + SEGMENTS_MIN * u64::from(segment)
}

const _: () = assert!(HEADER + ENTRY <= ALIGN);

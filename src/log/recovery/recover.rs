//! Makes a log, and opens one: which chunks count, and what they change.
//!
//! Invariants: opening changes nothing but superblocks, and only after everything was read; done
//! twice, also with a power cut in between, it ends in the same state. Chunks count from the tail
//! on, or from where a checkpoint begins. The end of the chain is *damage* if a later chunk says
//! that the missing one was durable; else it is the torn tail that every cut leaves.

use super::load::{Loaded, load, usable};
use super::report::{Accepted, Report};
use super::step::Step;
use super::walk::Walk;
use crate::log::core::segment::Segment;
use crate::log::core::{Core, Kept, Options};
use crate::log::disk::format::{
    DATA_MIN, Data, Entry, Epoch, Header, IDENTITY, Kind, SEGMENT_MAX, SEGMENT_MIN, SEGMENTS_MAX,
    SEGMENTS_MIN, SUPER, SUPER_AT, Superblock, Tail, Unfit, data_at,
};
use crate::log::disk::open_error::OpenError;
use crate::log::planted::{self, Bug, mark};
use crate::media::{Buffer, ChangeCounter, Commit, Drive};

/// Makes an empty log.
///
/// # Errors
/// `segment` is no valid segment size, or the drive is too small, too large, or fails.
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
    let data_at = data_at(log.size(), segment);
    let segments = log.size().saturating_sub(data_at) / u64::from(segment);
    if !(SEGMENTS_MIN..=SEGMENTS_MAX).contains(&segments) {
        return Err(OpenError::Segments(segments));
    }
    // A superblock of an earlier log must not be taken for a copy of this one's.
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
        written: Tail::default(),
        void: 0,
        at_s: 0,
        change_counter: ChangeCounter::default(),
        copies: false,
        durable: 0,
        identity,
        checkpoint: None,
        past_s: 0,
        mixture_s: 0,
        spent: false,
        // The chunks of an earlier log on this drive are of another epoch.
        epochs: vec![Epoch { from: 0, id: first_epoch(&uuid) }],
        lost: Vec::new(),
    };
    write_superblock(log, &sb, 0)
}

/// The epoch of a new log until it is opened: as random as its UUID.
fn first_epoch(uuid: &[u8; 16]) -> u64 {
    uuid.iter().fold(0, |id, byte| id << 8 | u64::from(*byte))
}

/// Writes both copies of the superblock, `first` first: the one that matters less.
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
/// There is no superblock, or none that can be used, or the drive has shrunk.
pub fn read_superblock(log: &dyn Drive) -> Result<(Superblock, usize, bool), OpenError> {
    let found = newest_superblock(log)?;
    let needs = found.0.end();
    if needs > log.size() {
        return Err(OpenError::Shrunk { has: log.size(), needs });
    }
    Ok(found)
}

/// As [`read_superblock`], also of a log whose drive has shrunk.
///
/// # Errors
/// There is no superblock, or none that can be used.
pub fn newest_superblock(log: &dyn Drive) -> Result<(Superblock, usize, bool), OpenError> {
    if log.size() < DATA_MIN {
        return Err(OpenError::NoLog);
    }
    let mut bytes = Buffer::new(SUPER);
    let mut copies = Vec::new();
    let mut unread = None;
    for at in SUPER_AT {
        // A copy that cannot be read counts as damaged: the other one is there for that.
        copies.push(match log.read(at, &mut bytes) {
            Ok(()) => Superblock::decode(&bytes),
            Err(e) => {
                unread = Some(e);
                Err(Unfit::Damaged)
            }
        });
    }
    if let Some(e) = unread.filter(|_| copies.iter().all(Result::is_err)) {
        return Err(e.into());
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
    Ok((sb, newest, mended))
}

/// What inspecting a log found: all that is needed to open it.
pub struct Inspection {
    /// What its superblock says.
    pub superblock: Superblock,
    /// What was found.
    pub report: Report,
    /// The chunks that count and that no checkpoint covers, with their entries.
    pub chunks: Vec<(Header, Vec<Entry>)>,
    /// Blocks with a damaged record, each with the number of the chunk; empty unless payloads were
    /// verified.
    pub damaged: Vec<(u64, u64)>,
    /// Clean blocks in the log count, too: the backing store was not written since the log was
    /// closed.
    pub warm: bool,
    /// Which copy of the superblock is the newest.
    newest: usize,
    loaded: Loaded,
    segments: Vec<Segment>,
    /// Number of the chunk that comes next.
    next: u64,
    /// CRC of the last chunk's header.
    prev: u32,
}

/// Finds the chunks of a log that count, and changes nothing. With `accept_loss` it skips and
/// reports missing chunks. With `payloads` it reads every chunk and verifies every record, as if
/// there were no checkpoint.
///
/// # Errors
/// The drive fails, there is no log, it cannot be used, or durable chunks are missing.
pub fn inspect(
    log: &dyn Drive,
    accept_loss: bool,
    payloads: bool,
) -> Result<Inspection, OpenError> {
    inspect_telling(log, accept_loss, payloads, &|_| ())
}

/// As [`inspect`], and calls `progress` again and again.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_telling(
    log: &dyn Drive,
    accept_loss: bool,
    payloads: bool,
    progress: &dyn Fn(Step),
) -> Result<Inspection, OpenError> {
    look(log, (accept_loss, payloads), false, None, progress)
}

/// As [`inspect`], for a log whose atomic backing store has this commit of the log as its newest:
/// what is before the commit's tail does not count.
///
/// # Errors
/// As [`inspect`].
pub fn inspect_committed(
    log: &dyn Drive,
    accept_loss: bool,
    committed: &Commit,
    progress: &dyn Fn(Step),
) -> Result<Inspection, OpenError> {
    let committed = (!planted::on(Bug::RepeatCommitted)).then_some(committed);
    look(log, (accept_loss, false), false, committed, progress)
}

/// As [`inspect`], for a log whose backing store was not written since the log was closed: clean
/// blocks in the log count, too, if all of them are there. If not, exactly as [`inspect`].
///
/// # Errors
/// As [`inspect`].
pub fn inspect_warm(
    log: &dyn Drive,
    accept_loss: bool,
    progress: &dyn Fn(Step),
) -> Result<Inspection, OpenError> {
    match look(log, (false, false), true, None, progress) {
        Ok(found) if found.is_whole() => Ok(found),
        _ => {
            mark("recover.cold");
            look(log, (accept_loss, false), false, None, progress)
        }
    }
}

fn look(
    log: &dyn Drive,
    (accept_loss, payloads): (bool, bool),
    warm: bool,
    committed: Option<&Commit>,
    progress: &dyn Fn(Step),
) -> Result<Inspection, OpenError> {
    let (mut superblock, newest, mended) = read_superblock(log)?;
    let written = superblock.written.segment;
    if let Some(later) = committed.filter(|commit| commit.tail.segment > written) {
        mark("recover.committed");
        superblock.written = later.tail;
        (superblock.past_s, superblock.mixture_s) = (later.at_s, later.mixture_s);
        // What is still lost has records behind that tail, or is lost in the commit.
        superblock.lost.clear();
    }
    if !warm && !planted::on(Bug::ServeVoid) {
        (superblock.tail, superblock.void) = (superblock.written, u64::MAX);
    }
    let checkpoint = usable(&superblock);
    let found = checkpoint.map(|pointer| load(log, &superblock, &pointer, progress));
    let lost = matches!(found, Some(None));
    let chain = |done, most| progress(Step::Chain { done, most });
    let mut walk = Walk::new(log, &superblock, accept_loss, &chain);
    let mut loaded = Loaded::new(&superblock);
    let mut known = 0;
    match (found.flatten(), checkpoint) {
        (Some((there, segments)), Some(pointer)) if !payloads => {
            mark("recover.checkpoint");
            known = there.map.len() as u64;
            loaded = there;
            walk = walk.quick().from(&pointer, segments);
        }
        _ if payloads => {}
        _ => walk = walk.quick(),
    }
    walk.run()?;
    let mut damaged = Vec::new();
    for i in 0..if payloads { walk.chunks.len() } else { 0 } {
        let chunk = walk.chunks[i].0.chunk;
        progress(Step::Records { done: i as u64, of: walk.chunks.len() as u64 });
        // A damaged summary or copy loses no data.
        let lost = |data: &Data| data.kind != Kind::Summary && !data.copy;
        let unfit = walk.unfit(i)?.into_iter().filter(lost);
        damaged.extend(unfit.map(|data| (data.block, chunk)));
    }
    let report = Report { mended, known, checkpoint_lost: lost, ..walk.report() };
    if !payloads {
        progress(Step::Index { changes: report.entries });
    }
    let Walk { chunks, segments, next, prev, .. } = walk;
    if lost || !report.missing.is_empty() {
        superblock.checkpoint = None;
    }
    Ok(Inspection {
        superblock,
        report,
        chunks,
        damaged,
        warm,
        newest,
        loaded,
        segments,
        next,
        prev,
    })
}

impl Inspection {
    /// Whether the log holds changes that the backing store lacks.
    pub fn holds_changes(&self) -> bool {
        let sb = &self.superblock;
        let change = |entry: &Entry| match entry {
            Entry::Data(data) => !data.copy && data.kind != Kind::Summary,
            Entry::Range { .. } => true,
        };
        let (tail, written) = (sb.tail.segment, sb.written.segment);
        let segment =
            |slot: u32| tail + (u64::from(slot) + sb.segments - tail % sb.segments) % sb.segments;
        let late = |(header, entries): &(Header, Vec<Entry>)| {
            header.segment >= written && entries.iter().any(change)
        };
        let Loaded { map, holes } = &self.loaded;
        self.chunks.iter().any(late)
            || map.iter().any(|(_, place)| !place.copy && segment(place.slot) >= written)
            || !holes.are_written(written)
    }

    /// Whether all losses are among the `known` ones.
    pub fn lacks_only(&self, known: &Accepted) -> bool {
        self.report.missing.iter().all(|range| known.has(range))
            && self.report.unread <= known.unread
    }

    /// Whether the chain reaches at least to `written`, from where on the backing store lacks
    /// changes, and no lost block contradicts it.
    fn is_whole(&self) -> bool {
        let sb = &self.superblock;
        let reach = sb.tail.segment + self.segments.len() as u64;
        // Lost blocks of a superblock take effect at `written`, not at the earlier begin of a warm
        // log.
        sb.lost.is_empty() && self.next >= sb.written.chunk && reach >= sb.written.segment
    }

    /// Checks that `kept`, the memory of a dead process, fits this log as it is.
    ///
    /// # Errors
    /// Why it does not.
    pub fn fits(&self, kept: &Kept) -> Result<(), OpenError> {
        kept.check(&self.superblock, self.next)
    }

    /// Opens the inspected log in a new `epoch`, which must be a random number. Nothing may have
    /// written to the log since the inspection. The log takes what another process left in `kept`,
    /// at the latest when [`Core::is_recommitting`] ends.
    ///
    /// # Errors
    /// The drive fails, or `kept` does not fit this log as it is.
    pub fn open(
        mut self,
        log: &dyn Drive,
        options: Options,
        epoch: u64,
        mut kept: Kept,
    ) -> Result<(Core, Report), OpenError> {
        self.fits(&kept)?;
        kept.belong(&self.superblock);
        self.cut(&kept)?;
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
        let mut core = Core::new(sb, options, (next, self.prev), kept);
        core.segments = self.segments.into();
        core.resume(in_order);
        (core.map, core.holes) = (self.loaded.map, self.loaded.holes);
        core.count_all();
        if self.report.known > 0
            && let Some(pointer) = &core.sb.checkpoint
        {
            let segments = pointer.segment - pointer.origin;
            core.checkpoint.loaded(segments * u64::from(core.sb.segment));
        }
        core.replay(&self.chunks);
        if !planted::on(Bug::KeepEpoch) || core.sb.epochs.is_empty() {
            core.begin_epoch(next, epoch);
        }
        core.sb.durable = next;
        (core.sb.change_counter, core.counts.warm) = (ChangeCounter::default(), self.warm);
        core.sb.copies |= options.keep_percent > 0;
        if !self.warm && !planted::on(Bug::ServeVoid) {
            core.void();
        }
        core.counts.writes_new = 0;
        core.counts.writes_over_log = 0;
        core.counts.writes_over_memory = 0;
        // If only the process ended, chunks that were read may still be in the drive's cache alone.
        log.flush()?;
        // The copy with the newest superblock so far is overwritten last.
        write_superblock(log, &core.sb, 1 - self.newest)?;
        core.begin_recommit();
        let recommitted = core.recommitted();
        let missing = self.report.missing.iter().copied().filter(|(first, _)| *first < next);
        let accepted = Accepted { missing: missing.collect(), unread: self.report.unread };
        Ok((core, Report { recommitted, accepted, ..self.report }))
    }

    /// Drops the chunks that are kept in memory. The drive may have them in a cache that does not
    /// become durable, because a flush has failed: they are written anew.
    fn cut(&mut self, kept: &Kept) -> Result<(), OpenError> {
        let first = kept.first().unwrap_or(self.next);
        if first == self.next || planted::on(Bug::RecommitAll) {
            return Ok(());
        }
        let at = self.chunks.partition_point(|(header, _)| header.chunk < first);
        let found = self.chunks.get(at).filter(|(header, _)| header.chunk == first);
        let Some((header, _)) = found else { return Err(OpenError::GoneOn) };
        mark("recover.written_anew");
        (self.next, self.prev) = (header.chunk, header.prev);
        let segment = (header.segment - self.superblock.tail.segment) as usize;
        self.segments.truncate(segment + usize::from(header.offset > 0));
        if let Some(segment) = self.segments.get_mut(segment) {
            segment.used = header.offset;
        }
        self.chunks.truncate(at);
        self.report.chunks = at as u64;
        self.report.entries = self.chunks.iter().map(|(_, entries)| entries.len() as u64).sum();
        Ok(())
    }
}

/// Inspects a log and opens it: see [`inspect`] and [`Inspection::open`].
///
/// # Errors
/// As [`inspect`] and [`Inspection::open`].
pub fn open(
    log: &dyn Drive,
    options: Options,
    epoch: u64,
    accept_loss: bool,
    kept: Kept,
) -> Result<(Core, Report), OpenError> {
    let found = inspect(log, accept_loss, false)?;
    found.open(log, options, epoch, kept)
}

/// Bytes of the smallest log with segments of `segment` bytes.
pub fn least_size(segment: u32) -> u64 {
    let mut size = SEGMENTS_MIN * u64::from(segment);
    // The areas for checkpoints grow with the drive.
    while size < data_at(size, segment) + SEGMENTS_MIN * u64::from(segment) {
        size = data_at(size, segment) + SEGMENTS_MIN * u64::from(segment);
    }
    size
}

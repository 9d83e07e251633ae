//! Kept memory: what a log has taken and not made durable, for another process to take over.
//!
//! Two memory files: the memory of the chunks, which payloads are copied to in any case; and
//! records of 16 bytes that describe each chunk and change, in log order. A process that takes the
//! files over knows every acknowledged change, at whichever instruction the other was killed.
//! `docs/format.md` describes every word.
//!
//! Invariants: one step reserves the place of a change and records the change, before its payload
//! is filled or its write acknowledged; a record counts when `end`, which is stored last, is beyond
//! it. Chunks are let go in order, when they are durable on the log's drive (or in the backing
//! store, and the log is given up); only then is their memory used again. A chunk has the same
//! number here as on the drive, also when it is laid out anew: so one number says what the drive
//! has. A payload counts only if it has the recorded CRC, so a payload that was not filled does not
//! count.

use super::fill::Filling;
use super::options::CHUNK_MAX;
use super::options::{MEMORY_MAX, Options};
use crate::error::{Error, Result};
use crate::log::disk::format::{
    CLUSTER, Data, ENTRY, Entry, GRANULE, HEADER, Kind, Superblock, crc,
};
use crate::log::disk::open_error::OpenError;
use crate::log::planted::{self, Bug, mark};
use crate::media::{ALIGN, Buffer, Memory, RingBuffers, Words};
use crate::remedy;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::atomic::Ordering;

/// The first word: magic and version.
const MAGIC: u64 = u64::from_le_bytes(*b"zTkept\0\x01");
/// Words before the records.
const FRONT: usize = 16;
const UUID_AT: usize = 1;
const EPOCHS_AT: usize = 3;
/// Epochs that are noted: more than can follow each other before one is on the drive.
const EPOCHS: usize = 4;
const BEGIN_AT: usize = 8;
const END_AT: usize = 9;

/// Bytes of chunks for each record that fits; the memories of the simulator and of the schedule
/// explorer are small.
const PER_RECORD: u64 = if cfg!(shuttle) {
    16 << 10
} else if cfg!(sim) {
    512
} else {
    128
};
/// Records that fit beyond that.
const MORE: u64 = if cfg!(sim) { 96 } else { 256 };
/// Records that only the core's own changes may take.
const RESERVE: u64 = 64;
const RECORDS: u64 = MEMORY_MAX / PER_RECORD + MORE;
/// Chunks beyond the log's memory that fit: the open one, those that the core itself adds, and what
/// is left unused at the ring's end.
const CHUNKS: u64 = 4;
const ARENA: u64 = MEMORY_MAX + CHUNKS * CHUNK_MAX as u64;

// The first word of a chunk's record is its offset in the ring, below this limit; that of an entry
// has a kind, which is never 0, in the bits from 40 on.
const _: () = assert!(ARENA < 1 << 40);

/// The memory of a log's chunks, and the records of what is in it.
#[derive(Debug)]
pub struct Kept {
    words: Words,
    buffers: RingBuffers,
    /// Chunks that were not let go, oldest first.
    chunks: VecDeque<Chunk>,
    /// Number of the next record.
    end: u64,
    /// Limit on the records that are not let go.
    most: u64,
    /// Index of the newest epoch.
    epoch: usize,
}

#[derive(Clone, Copy, Debug)]
struct Chunk {
    number: u64,
    /// Number of its first record, which is that of the chunk itself.
    begin: u64,
}

/// A chunk that a process left.
#[derive(Debug)]
pub(super) struct Left {
    /// Its changes. Their offsets count from the chunk's begin; their check words are CRCs of
    /// payloads.
    pub entries: Vec<Entry>,
    /// Where its payloads end.
    pub used: usize,
}

impl Left {
    /// Bytes that it takes as a chunk.
    pub fn len(&self) -> u32 {
        (self.used + self.entries.len() * ENTRY).next_multiple_of(ALIGN) as u32
    }
}

impl Kept {
    /// Opens kept memory: empty, for a new log, or with what another process left.
    ///
    /// # Errors
    /// The system gives no memory, or what is there is of another version.
    pub fn new(memory: &Memory) -> Result<Self> {
        let words = Words::new(memory, "log-records", FRONT + 2 * RECORDS as usize)?;
        let arena = memory.arena("log-chunks", ARENA as usize)?;
        let strange = |why: &str| {
            let text = format!("the memory that was kept of the log is {why}");
            Error::would_lose(text).hint(remedy::KEPT_ELSEWHERE)
        };
        let word = |at: usize| words.get(at).load(Ordering::Acquire);
        let (begin, end) = (word(BEGIN_AT), word(END_AT));
        if word(0) != MAGIC && (word(0), begin, end) != (0, 0, 0) {
            return Err(strange("of another version"));
        }
        words.get(0).store(MAGIC, Ordering::Release);
        let (chunks, pieces) = find(&words, begin..end).ok_or_else(|| strange("damaged"))?;
        let buffers = RingBuffers::new(arena, &pieces).ok_or_else(|| strange("damaged"))?;
        Ok(Self { words, buffers, chunks, end, most: RECORDS, epoch: 0 })
    }

    /// Limits chunks and records to what a log of these options and of this segment size may take.
    pub(super) fn fit(&mut self, options: &Options, segment: u32) {
        let chunks = CHUNKS * u64::from(CHUNK_MAX.min(segment));
        self.buffers.limit((options.memory + chunks) as usize);
        self.most = RECORDS.min(options.memory / PER_RECORD + MORE);
    }

    /// Whether all that was taken is durable.
    pub fn is_empty(&self) -> bool {
        self.chunks.is_empty()
    }

    /// Number of the oldest chunk that is not durable, if there is one.
    pub(in crate::log) fn first(&self) -> Option<u64> {
        self.chunks.front().map(|chunk| chunk.number)
    }

    /// Checks that the kept chunks may be recommitted to a log with this superblock, of which
    /// recovery found the chunks below `next`. Changes nothing.
    pub(in crate::log) fn check(&self, sb: &Superblock, next: u64) -> Result<(), OpenError> {
        let Some(first) = self.chunks.front() else { return Ok(()) };
        let (low, high) = halves(&sb.uuid);
        if (self.word(UUID_AT), self.word(UUID_AT + 1)) != (low, high) {
            return Err(OpenError::OtherMemory);
        }
        let epoch = sb.epochs.last().map_or(0, |epoch| epoch.id);
        if self.epoch_at(epoch).is_none() {
            return Err(OpenError::GoneOn);
        }
        if first.number > next { Err(OpenError::Forgotten { chunk: next }) } else { Ok(()) }
    }

    /// Assigns the kept memory to this log; [`Self::note`] adds the log's later epochs.
    pub(in crate::log) fn belong(&mut self, sb: &Superblock) {
        let (low, high) = halves(&sb.uuid);
        self.set(UUID_AT, low);
        self.set(UUID_AT + 1, high);
        // The epoch that the drive names now stays noted until the drive names another.
        let epoch = sb.epochs.last().map_or(0, |epoch| epoch.id);
        match self.epoch_at(epoch) {
            Some(at) => self.epoch = at,
            None => self.note(epoch),
        }
    }

    /// Notes an epoch, before a superblock that names it is written.
    pub(super) fn note(&mut self, epoch: u64) {
        if self.epoch_at(epoch).is_some() {
            return;
        }
        self.epoch = (self.epoch + 1) % EPOCHS;
        self.set(EPOCHS_AT + self.epoch, epoch);
    }

    fn epoch_at(&self, epoch: u64) -> Option<usize> {
        (0..EPOCHS).find(|at| self.word(EPOCHS_AT + at) == epoch)
    }

    /// Whether records of `changes` fit; the core's `own` changes may use the reserve, too.
    pub(super) fn has_room(&self, changes: u64, own: bool) -> bool {
        let reserve = if own { 0 } else { RESERVE };
        self.records() + changes + reserve < self.most
    }

    /// Whether a quarter of the room for changes is left, or less.
    pub(super) fn is_nearly_full(&self) -> bool {
        self.records() * 4 >= self.most * 3
    }

    fn records(&self) -> u64 {
        self.chunks.front().map_or(0, |chunk| self.end - chunk.begin)
    }

    /// Records a chunk that is opened, and lends its memory; `None` while there is no room.
    pub(super) fn open(&mut self, number: u64, capacity: u32) -> Option<Buffer> {
        let (at, bytes) = self.buffers.lend(capacity as usize)?;
        self.chunks.push_back(Chunk { number, begin: self.end });
        self.push([at as u64, number]);
        Some(bytes)
    }

    /// Records an entry of the open chunk: its `offset` counts from the chunk's begin, its `check`
    /// is the CRC of the payload. Of a cluster only the first entry is recorded.
    pub(super) fn add(&mut self, entry: &Entry) {
        let bytes = entry.encode();
        let (words, _) = bytes.as_chunks::<8>();
        self.push([u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1])]);
    }

    fn push(&mut self, record: [u64; 2]) {
        let at = record_at(self.end);
        self.set(at, record[0]);
        self.set(at + 1, record[1]);
        self.end += 1;
        self.words.get(END_AT).store(self.end, Ordering::Release);
    }

    /// Closes the open chunk, which keeps its first `len` bytes of memory.
    pub(super) fn close(&mut self, filling: &mut Filling, len: usize) {
        filling.settle(&mut self.buffers, len);
    }

    /// Forgets the open chunk, which changes nothing, instead of closing it.
    pub(super) fn forget(&mut self) {
        self.buffers.take_back_newest();
        if let Some(chunk) = self.chunks.pop_back() {
            self.end = chunk.begin;
            self.words.get(END_AT).store(self.end, Ordering::Release);
        }
    }

    /// Lets go of the chunks below `number`, which need no memory any more.
    pub(super) fn let_go(&mut self, number: u64) {
        while self.chunks.front().is_some_and(|chunk| chunk.number < number) {
            self.chunks.pop_front();
            self.buffers.take_back();
        }
        let begin = self.chunks.front().map_or(self.end, |chunk| chunk.begin);
        self.words.get(BEGIN_AT).store(begin, Ordering::Release);
    }

    /// Lets go of everything: no later process takes it over.
    pub fn give_up(&mut self) {
        self.let_go(u64::MAX);
    }

    /// Gives memory back beyond the first `bytes`, if all that was taken is durable.
    pub(super) fn rest(&mut self, bytes: usize) {
        self.buffers.rest(bytes);
    }

    /// The chunks that were not let go: another process left them, and they are unchanged since.
    pub(super) fn left(&mut self) -> Vec<Left> {
        let ends = self.chunks.iter().skip(1).map(|chunk| chunk.begin).chain([self.end]);
        let spans: Vec<Range<u64>> =
            self.chunks.iter().zip(ends).map(|(chunk, end)| chunk.begin + 1..end).collect();
        let mut left: Vec<Left> = Vec::new();
        for (i, span) in spans.into_iter().enumerate() {
            let mut chunk = Left { entries: Vec::new(), used: HEADER };
            for at in span {
                let Some(entry) = read(&self.words, at) else { continue };
                if self.is_whole(i, &entry) {
                    chunk.take(entry);
                } else {
                    mark("kept.unfilled");
                }
            }
            left.push(chunk);
        }
        left
    }

    /// Whether an entry has no payload, or its payload was filled.
    fn is_whole(&mut self, chunk: usize, entry: &Entry) -> bool {
        let Entry::Data(data) = entry else { return true };
        let payload = self.payload(chunk, data);
        payload.is_some_and(|payload| crc(payload) == data.check) || planted::on(Bug::TrustUnfilled)
    }

    /// The payload of an entry of the `i`-th of these chunks.
    pub(super) fn payload(&mut self, i: usize, data: &Data) -> Option<&[u8]> {
        let from = data.offset as usize;
        self.buffers.left(i, from..from + data.len as usize)
    }

    fn word(&self, at: usize) -> u64 {
        self.words.get(at).load(Ordering::Acquire)
    }

    /// Stores a word; it counts only after a later store to [`END_AT`] or [`BEGIN_AT`].
    fn set(&self, at: usize, value: u64) {
        self.words.get(at).store(value, Ordering::Relaxed);
    }
}

impl Left {
    /// Adds the entry of a record; for a cluster, an entry for each of its blocks.
    fn take(&mut self, entry: Entry) {
        match entry {
            // A copy is no change, and the backing store may have changed since.
            Entry::Data(data) if data.copy && !planted::on(Bug::RecommitCopies) => {
                mark("kept.copy");
            }
            Entry::Data(data) => {
                let end = (data.offset + data.len).next_multiple_of(GRANULE) as usize;
                self.used = self.used.max(end);
                let blocks = if data.kind == Kind::Cluster { CLUSTER as u64 } else { 1 };
                let all = (0..blocks).map(|i| Entry::Data(Data { block: data.block + i, ..data }));
                self.entries.extend(all);
            }
            range @ Entry::Range { .. } => self.entries.push(range),
        }
    }
}

fn halves(uuid: &[u8; 16]) -> (u64, u64) {
    let whole = u128::from_le_bytes(*uuid);
    (whole as u64, (whole >> 64) as u64)
}

fn record_at(number: u64) -> usize {
    FRONT + 2 * (number % RECORDS) as usize
}

fn words_of(words: &Words, number: u64) -> [u64; 2] {
    let at = record_at(number);
    [at, at + 1].map(|at| words.get(at).load(Ordering::Relaxed))
}

/// Decodes a record as an entry; `None` for the record of a chunk.
fn read(words: &Words, number: u64) -> Option<Entry> {
    let mut bytes = [0; ENTRY];
    for (to, word) in bytes.as_chunks_mut::<8>().0.iter_mut().zip(words_of(words, number)) {
        *to = word.to_le_bytes();
    }
    Entry::decode(&bytes)
}

/// Chunks, and their pieces of the memory, oldest first.
type Found = (VecDeque<Chunk>, Vec<Range<usize>>);

/// The chunks of these records; `None` if the records are invalid.
fn find(words: &Words, records: Range<u64>) -> Option<Found> {
    if records.end.checked_sub(records.start).is_none_or(|count| count > RECORDS) {
        return None;
    }
    let (mut chunks, mut pieces) = (VecDeque::<Chunk>::new(), Vec::<Range<usize>>::new());
    for at in records {
        match read(words, at) {
            None => {
                let [from, number] = words_of(words, at);
                let from = usize::try_from(from).ok().filter(|from| (*from as u64) < ARENA)?;
                if chunks.back().is_some_and(|last| last.number.checked_add(1) != Some(number)) {
                    return None;
                }
                chunks.push_back(Chunk { number, begin: at });
                pieces.push(from..from + ALIGN);
            }
            Some(Entry::Data(data)) => {
                let piece = pieces.last_mut()?;
                let end = data.offset.checked_add(data.len).filter(|end| *end <= CHUNK_MAX)?;
                piece.end = piece.end.max((piece.start + end as usize).next_multiple_of(ALIGN));
            }
            Some(Entry::Range { .. }) if chunks.is_empty() => return None,
            Some(Entry::Range { .. }) => {}
        }
    }
    Some((chunks, pieces))
}

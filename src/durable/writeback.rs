//! One window of writeback: read the segments, keep the last writer of each block, write sorted.
//!
//! Like the core, this does no I/O: commands come out, outcomes go in. Invariants: every payload is
//! verified before it is written; zeroed ranges reach the backing store before newer data of the
//! same blocks; the backing store is flushed after the last write has ended; only then is the
//! window over. What cannot be verified is not written, and is reported.

use super::chunk::read_table;
use super::cluster::Unpacked;
use super::command::{Command, Device, Op, Outcome};
use super::format::{CLUSTER, Data, Entry, HEADER, Header, Kind, SUPER_AT, Stamp, Sums};
use super::holes::Tombstone;
use super::planted::{self, Bug, mark};
use super::window::{Ended, Part, Plan, Planned};
use crate::BLOCK_SIZE;
use crate::media::{ALIGN, Action, Buffer};
use crate::store::codec::{self, Algorithm, Codec};
use crate::store::format::Coding;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Most blocks in a write to the backing store: 1 MiB.
const RUN: usize = 256;
/// Commands that are out at once.
const DEPTH: usize = 16;
/// How often a read or a write is repeated that failed.
const REPEATS: u32 = 2;

/// Decodes a block's own payload; `false` when it does not decode.
pub fn decode(codec: &mut Codec, kind: Kind, payload: &[u8], out: &mut [u8; BLOCK_SIZE]) -> bool {
    match kind {
        Kind::Raw => codec.decode(Coding::Raw, payload, out),
        Kind::Lz4 => codec.decode(Coding::Lz4, payload, out),
        Kind::Zstd => codec.decode(Coding::Zstd, payload, out),
        Kind::Same => match payload.try_into() {
            Ok(word) => {
                codec::fill(out, u64::from_le_bytes(word));
                true
            }
            Err(_) => false,
        },
        Kind::Zeros | Kind::Lost | Kind::Summary | Kind::Cluster => false,
    }
}

/// A command that is out.
struct Flight {
    command: Command,
    /// The part of a segment that it reads.
    part: Option<(usize, Range<u32>)>,
    /// How often it was repeated.
    repeats: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Whether the log's drive answers at all.
    Probe,
    Read,
    /// It will change what somebody watches, and waits until he lets it.
    Held,
    Zero,
    Write,
    Flush,
    Over,
}

/// A window at work.
pub struct Writeback {
    plan: Vec<Planned>,
    images: Vec<Option<Buffer>>,
    phase: Phase,
    codec: Codec,
    unpacked: Unpacked,
    /// The last record of each block: index of its segment in the plan, and where.
    blocks: BTreeMap<u64, (usize, Data)>,
    /// Zeroed ranges, first block to end; may overlap.
    zeros: VecDeque<(u64, u64)>,
    /// Discards whose turn has not come yet, the oldest first.
    stones: VecDeque<Tombstone>,
    /// Records that are known without their chunks.
    records: Vec<(usize, Data)>,
    /// Blocks not written yet.
    queue: VecDeque<(u64, usize, Data)>,
    /// Blocks with copies, which the backing store has.
    copies: Vec<u64>,
    damaged: Vec<(u64, Data)>,
    unreadable: Vec<Part>,
    /// Parts to read yet: segment, from which byte to which.
    reads: VecDeque<(usize, Range<u32>)>,
    flights: BTreeMap<u64, Flight>,
    /// What failed and is to be repeated.
    again: Vec<Flight>,
    next_id: u64,
    /// Where to probe the log's drive.
    probes: VecDeque<u64>,
    answers: bool,
    /// A failing read ends the window; else it is done without what cannot be read.
    patient: bool,
    failed: bool,
    /// It has failed because the log could not be read.
    unread: bool,
    flush_out: bool,
    watched: Vec<Range<u64>>,
}

impl Writeback {
    /// Begins to carry out a plan.
    pub fn new(plan: Plan) -> Self {
        mark("writeback.begun");
        let Plan { segments, patient, images, stones, records } = plan;
        let records = records.into_iter().filter_map(|(number, data)| {
            Some((segments.iter().position(|planned| planned.number == number)?, data))
        });
        let records = records.collect();
        let mut images: Vec<_> = images.into_iter().map(Some).collect();
        images.resize_with(segments.len(), || None);
        let missing = |(i, p): (usize, &Planned)| (images[i].is_none() && p.used > 0).then_some(i);
        let reads = segments.iter().enumerate().filter_map(missing);
        Self {
            reads: reads.map(|i| (i, 0..segments[i].used)).collect(),
            images,
            plan: segments,
            phase: Phase::Probe,
            codec: Codec::new(Algorithm::None),
            unpacked: Unpacked::default(),
            blocks: BTreeMap::new(),
            zeros: VecDeque::new(),
            stones: stones.into(),
            records,
            queue: VecDeque::new(),
            copies: Vec::new(),
            damaged: Vec::new(),
            unreadable: Vec::new(),
            patient,
            unread: false,
            flights: BTreeMap::new(),
            again: Vec::new(),
            next_id: 0,
            probes: if patient { VecDeque::new() } else { SUPER_AT.into() },
            answers: patient,
            failed: false,
            flush_out: false,
            watched: Vec::new(),
        }
    }

    /// The same, and it will be held before it changes any of these ranges of blocks.
    #[must_use]
    pub fn watching(self, watched: Vec<Range<u64>>) -> Self {
        Self { watched, ..self }
    }

    /// Whether it waits for [`Self::proceed`].
    pub fn is_held(&self) -> bool {
        self.phase == Phase::Held && self.flights.is_empty()
    }

    /// Whether it will change a block of this range. Known once it is held.
    pub fn changes(&self, range: &Range<u64>) -> bool {
        let written = self.blocks.range(range.clone()).next().is_some();
        written || self.zeros.iter().any(|&(from, to)| from < range.end && range.start < to)
    }

    /// Lets it go on.
    pub fn proceed(&mut self) {
        if self.phase == Phase::Held {
            self.phase =
                if planted::on(Bug::DiscardOutOfOrder) { Phase::Write } else { Phase::Zero };
        }
    }

    fn launch(
        &mut self,
        device: Device,
        at: u64,
        op: Op,
        part: Option<(usize, Range<u32>)>,
    ) -> Command {
        let command = Command { id: 0, device, at, op };
        self.send(Flight { command, part, repeats: 0 })
    }

    fn send(&mut self, mut flight: Flight) -> Command {
        let id = self.next_id;
        self.next_id += 1;
        flight.command.id = id;
        let command = flight.command.clone();
        self.flights.insert(id, flight);
        command
    }

    /// The next thing to do, if there is one now.
    pub fn next_command(&mut self) -> Option<Command> {
        if self.failed || self.flights.len() >= DEPTH {
            return None;
        }
        if let Some(flight) = self.again.pop() {
            mark("writeback.repeats");
            return Some(self.send(flight));
        }
        loop {
            let command = match self.phase {
                Phase::Probe => self.next_probe(),
                Phase::Read => self.next_read(),
                Phase::Zero => self.next_zero(),
                Phase::Write => self.next_write(),
                Phase::Flush => self.next_flush(),
                Phase::Held | Phase::Over => None,
            };
            let waits = matches!(self.phase, Phase::Held | Phase::Over);
            if command.is_some() || !self.flights.is_empty() || waits || self.failed {
                return command;
            }
            self.advance();
        }
    }

    /// What was to be done in this phase is done.
    fn advance(&mut self) {
        self.phase = match self.phase {
            Phase::Probe if !self.answers => {
                mark("writeback.silent");
                (self.failed, self.unread) = (true, true);
                Phase::Over
            }
            Phase::Probe => Phase::Read,
            Phase::Read => {
                self.gather();
                self.phase = Phase::Held;
                if !self.watched.iter().any(|range| self.changes(range)) {
                    self.proceed();
                }
                self.phase
            }
            Phase::Held => Phase::Held,
            Phase::Zero if planted::on(Bug::DiscardOutOfOrder) => Phase::Flush,
            Phase::Zero => Phase::Write,
            Phase::Write if planted::on(Bug::DiscardOutOfOrder) => Phase::Zero,
            Phase::Write => Phase::Flush,
            Phase::Flush | Phase::Over => Phase::Over,
        };
    }

    /// What cannot be read is lost where the drive gives other parts, and not if it gives nothing:
    /// then it may come back with all of it.
    fn next_probe(&mut self) -> Option<Command> {
        let at = self.probes.pop_front()?;
        Some(self.launch(Device::Log, at, Op::Read(ALIGN), None))
    }

    fn next_read(&mut self) -> Option<Command> {
        let (i, part) = self.reads.pop_front()?;
        let at = self.plan.get(i)?.at + u64::from(part.start);
        let op = Op::Read(part.len());
        Some(self.launch(Device::Log, at, op, Some((i, part))))
    }

    fn next_zero(&mut self) -> Option<Command> {
        let (start, end) = self.zeros.pop_front()?;
        mark("writeback.zeros");
        let (at, len) = (start * BLOCK_SIZE as u64, (end - start) * BLOCK_SIZE as u64);
        Some(self.launch(Device::Backing, at, Op::Zero(len), None))
    }

    fn next_write(&mut self) -> Option<Command> {
        let &(first, _, _) = self.queue.front()?;
        let follows =
            |(i, (block, _, _)): &(usize, &(u64, usize, Data))| *block == first + *i as u64;
        let count = self.queue.iter().take(RUN).enumerate().take_while(follows).count();
        let mut bytes = Buffer::new(count * BLOCK_SIZE);
        let (blocks, _) = bytes.as_chunks_mut::<BLOCK_SIZE>();
        let mut good = 0;
        while good < count {
            let Some(&(block, segment, data)) = self.queue.front() else { break };
            // What is left of a cluster is decoded once.
            let shares = |(_, other, at): &&(u64, usize, Data)| {
                (*other, at.offset) == (segment, data.offset) && at.kind == Kind::Cluster
            };
            let some = self.queue.iter().take(count - good).take_while(shares).count().max(1);
            let payload = payload(&self.images, segment, &data).unwrap_or_default();
            let (codec, out) = (&mut self.codec, &mut blocks[good..good + some]);
            if !self.unpacked.decode(codec, data.kind, payload, block, out) {
                break;
            }
            if data.kind == Kind::Cluster {
                mark(if some < CLUSTER { "writeback.cluster_part" } else { "writeback.cluster" });
            }
            self.queue.drain(..some);
            good += some;
        }
        if good == 0 {
            // Its check word fits, yet it does not decode: as bad as damaged.
            mark("writeback.undecodable");
            let (_, segment, data) = self.queue.pop_front()?;
            self.damaged.push((self.plan[segment].number, data));
            return self.next_write();
        }
        mark(if good > 1 { "writeback.merged" } else { "writeback.single" });
        let op = Op::Write(Arc::new(bytes), 0..good * BLOCK_SIZE);
        Some(self.launch(Device::Backing, first * BLOCK_SIZE as u64, op, None))
    }

    fn next_flush(&mut self) -> Option<Command> {
        if self.flush_out || planted::on(Bug::ForgetBackingFlush) {
            return None;
        }
        self.flush_out = true;
        Some(self.launch(Device::Backing, 0, Op::Flush, None))
    }

    /// Says what became of a command.
    pub fn complete(&mut self, id: u64, outcome: Outcome) {
        let Some(flight) = self.flights.remove(&id) else { return };
        if let Outcome::Failed(e) = &outcome
            // A flush that fails may have lost what was written before.
            && e.action != Action::Flush
            && flight.repeats < REPEATS
        {
            self.again.push(Flight { repeats: flight.repeats + 1, ..flight });
            return;
        }
        if self.phase == Phase::Probe {
            self.answers |= matches!(outcome, Outcome::Bytes(_));
            return;
        }
        match (outcome, flight.part) {
            (Outcome::Failed(_), Some((i, part))) if !self.patient => self.read_failed(i, part),
            (Outcome::Failed(_), part) => {
                mark("writeback.failed");
                self.failed = true;
                self.unread |= part.is_some();
            }
            (Outcome::Bytes(bytes), Some((i, part))) => match &mut self.images[i] {
                None => self.images[i] = Some(bytes),
                Some(image) => {
                    let place = part.start as usize..part.end as usize;
                    image[place].copy_from_slice(&bytes);
                }
            },
            _ => {}
        }
    }

    /// Reads the blocks of a part one by one; of those that fail nothing is known.
    fn read_failed(&mut self, i: usize, part: Range<u32>) {
        if part.len() <= ALIGN {
            mark("writeback.unread");
            return;
        }
        let used = self.plan[i].used as usize;
        self.images[i].get_or_insert_with(|| Buffer::new(used));
        let pieces = part.step_by(ALIGN).map(|at| (i, at..at + ALIGN as u32));
        self.reads.extend(pieces);
    }

    /// How much of its way it has gone, of `way`: reading and the flush count as a tenth each, and
    /// the rest goes by blocks that are written.
    pub fn gone(&self, way: u64) -> u64 {
        let part =
            |left: usize, all: usize, of: u64| of - of * left.min(all) as u64 / all.max(1) as u64;
        let tenth = way / 10;
        match self.phase {
            Phase::Probe => 0,
            Phase::Read => part(self.reads.len(), self.plan.len(), tenth),
            Phase::Held | Phase::Zero => tenth,
            Phase::Write => tenth + part(self.queue.len(), self.blocks.len(), way - 2 * tenth),
            Phase::Flush => way - tenth,
            Phase::Over => way,
        }
    }

    /// Whether nothing is left to do, for better or worse.
    pub fn is_over(&self) -> bool {
        self.flights.is_empty() && (self.failed || self.phase == Phase::Over)
    }

    /// What became of the window, when it is over.
    pub fn ended(&mut self) -> Option<Ended> {
        if !self.is_over() {
            return None;
        }
        if self.failed {
            return Some(Ended::Badly { unread: self.unread });
        }
        Some(Ended::Well {
            blocks: std::mem::take(&mut self.blocks)
                .into_keys()
                .chain(self.copies.drain(..))
                .collect(),
            damaged: std::mem::take(&mut self.damaged),
            unreadable: std::mem::take(&mut self.unreadable),
        })
    }

    /// Finds the last record of each block, and verifies it.
    fn gather(&mut self) {
        const END: (u64, u32) = (u64::MAX, 0);
        if planted::on(Bug::LostDiscardFirst) {
            self.take_stones(END);
        }
        for i in 0..self.plan.len() {
            self.gather_segment(i);
        }
        self.take_stones(END);
        // The index names nothing of which there is anything newer.
        for (i, data) in std::mem::take(&mut self.records) {
            mark("writeback.by_index");
            self.blocks.insert(data.block, (i, data));
        }
        let all = self.blocks.iter().map(|(&block, &(i, data))| (block, i, data));
        let mut sums = Sums::default();
        let (good, bad): (Vec<_>, Vec<_>) = all.partition(|(_, i, data)| {
            let Planned { epoch, number, .. } = self.plan[*i];
            let stamp = Stamp { epoch, segment: number, offset: data.offset, block: data.block };
            payload(&self.images, *i, data).is_some_and(|p| sums.fits(&stamp, p, data.check))
        });
        for (_, i, data) in bad {
            mark("writeback.damaged");
            self.damaged.push((self.plan[i].number, data));
        }
        self.queue = good.into();
    }

    fn gather_segment(&mut self, i: usize) {
        let Planned { number, from, used, chunk, prev, .. } = self.plan[i];
        let mut at = from;
        let mut after = (chunk, Some(prev));
        let mut broken = None;
        while at < used {
            let Some((header, sum, entries)) = self.read_chunk(i, at, after) else {
                // Chunks behind a damaged one are good for themselves.
                broken = broken.or(Some(at));
                after.1 = None;
                at += ALIGN as u32;
                continue;
            };
            if let Some(from) = broken.take() {
                mark("writeback.resumed");
                self.unreadable.push((number, from..at));
            }
            self.take_stones((number, at));
            for entry in &entries {
                self.note(i, entry);
            }
            at += header.len;
            after = (header.chunk + 1, Some(sum));
        }
        if let Some(from) = broken {
            mark("writeback.unreadable");
            self.unreadable.push((number, from..used));
        }
    }

    /// The chunk at a place: of the number and after the header that are given, or, without a
    /// header, of any later number.
    fn read_chunk(
        &self,
        i: usize,
        at: u32,
        (chunk, prev): (u64, Option<u32>),
    ) -> Option<(Header, u32, Vec<Entry>)> {
        let planned = &self.plan[i];
        let image = self.images[i].as_ref()?.get(at as usize..planned.used as usize)?;
        let (header, sum) = Header::decode(image.get(..HEADER)?)?;
        let follows = match prev {
            Some(prev) => header.chunk == chunk && header.prev == prev,
            None => header.chunk > chunk,
        };
        let expected = follows
            && header.segment == planned.number
            && header.offset == at
            && header.epoch == planned.epoch;
        let table = image.get(header.table_at()..header.len as usize)?;
        let entries = expected.then(|| read_table(&header, table))??;
        (header.len as usize >= ALIGN).then_some((header, sum, entries))
    }

    fn note(&mut self, segment: usize, entry: &Entry) {
        match *entry {
            Entry::Data(Data { kind: Kind::Summary, .. }) => {}
            Entry::Data(data) if data.copy && !planted::on(Bug::WriteCopies) => {
                mark("writeback.copy");
                self.copies.push(data.block);
            }
            Entry::Data(data) => {
                if planted::on(Bug::OldestWins) {
                    self.blocks.entry(data.block).or_insert((segment, data));
                } else {
                    self.blocks.insert(data.block, (segment, data));
                }
            }
            Entry::Range { kind, block, count } => {
                self.forget(block, block + count);
                if kind == Kind::Zeros {
                    self.zeros.push_back((block, block + count));
                }
            }
        }
    }

    /// Older data of a range must not come after its zeros.
    fn forget(&mut self, start: u64, end: u64) {
        let mut newer = self.blocks.split_off(&start);
        self.blocks.append(&mut newer.split_off(&end));
    }

    /// Takes the discards that have no record before a chunk: segment, and where in it.
    fn take_stones(&mut self, chunk: (u64, u32)) {
        while let Some(&Tombstone { segment, offset, start, end }) = self.stones.front()
            && (segment, offset) <= chunk
        {
            self.stones.pop_front();
            self.forget(start, end);
            self.zeros.push_back((start, end));
        }
    }
}

fn payload<'a>(images: &'a [Option<Buffer>], segment: usize, data: &Data) -> Option<&'a [u8]> {
    let from = data.offset as usize;
    images.get(segment)?.as_ref()?.get(from..from + data.len as usize)
}

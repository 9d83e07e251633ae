//! One window of writeback: read the segments, keep the last writer of each block, write sorted.
//!
//! Like the core, this does no I/O: commands come out, outcomes go in. Invariants: every payload is
//! verified before it is written; zeroed ranges, adjacent and overlapping ones as one, reach the
//! backing store before newer data of the same blocks; the backing store is flushed after the last
//! write has ended, and only then is the window over. What cannot be verified is reported, not
//! written. Each call does a bounded part of the work, so the thread that drives a window can check
//! between two calls whether it is to stop.

use super::command::{Command, Device, Op, Outcome};
use super::gather::Gathering;
use super::window_state::{Ended, Plan, Planned};
use crate::BLOCK_SIZE;
use crate::codec::{Algorithm, Codec, Coding};
use crate::log::disk::cluster::Unpacked;
use crate::log::disk::format::{CLUSTER, Data, Kind, SUPER_AT, Seed, Sums};
use crate::log::planted::{self, Bug, mark, visits};
use crate::media::{ALIGN, Action, Buffer, PackedBlock, PackedRun};
use bytes::Bytes;
use std::collections::{BTreeMap, VecDeque};
use std::ops::Range;
use std::sync::Arc;

/// Most blocks in a write to the backing store: 1 MiB.
const RUN: usize = 256;
/// Most blocks that one command zeroes, 64 MiB: a drive that has to write the zeros takes half a
/// second for them.
const ZEROED: u64 = if cfg!(sim) { 8 } else { 16 << 10 };
/// Most damaged blocks that one step skips.
const DAMAGED: usize = if cfg!(sim) { 1 } else { 64 };
/// Most commands in flight.
const DEPTH: usize = 16;
/// How often a failed read or write is repeated.
const REPEATS: u32 = 2;
/// Most bytes of segments, but at least one segment, that are read before they are gathered: a
/// window that then has enough is not read to its end.
const BATCH: u64 = if cfg!(sim) { 1 } else { 32 << 20 };

/// A command in flight.
struct Flight {
    command: Command,
    /// The part of a segment that it reads: index of the segment in the plan, bytes in it.
    part: Option<(usize, Range<u32>)>,
    /// How often it was repeated.
    repeats: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Reads show whether the log's drive answers at all.
    Probe,
    /// A batch of segments is read.
    Read,
    /// The batch is gathered.
    Gather,
    /// The window will change a watched range, and waits for [`Writeback::proceed`].
    Held,
    Zero,
    Write,
    Flush,
    Over,
}

/// A window that is being carried out.
pub struct Writeback {
    plan: Vec<Planned>,
    images: Vec<Option<Bytes>>,
    /// Images of segments that are read in pieces, by their index in the plan.
    pieced: BTreeMap<usize, Buffer>,
    phase: Phase,
    codec: Codec,
    unpacked: Unpacked,
    sums: Sums,
    gathered: Gathering,
    /// Commands that zero ranges, in all: an upper bound.
    zeros: u64,
    /// Blocks before `next` are written: `written` of them.
    next: u64,
    written: usize,
    /// The neighbouring blocks that are written next: block, index of its segment, record.
    run: Vec<(u64, usize, Data)>,
    damaged: Vec<(u64, Data)>,
    /// Parts still to read: index of the segment in the plan, bytes in it.
    reads: VecDeque<(usize, Range<u32>)>,
    /// Segments of the plan up to the end of the batch at work.
    batch: usize,
    /// Bytes of all segments of the plan, and those that were read.
    bytes: u64,
    read: u64,
    flights: BTreeMap<u64, Flight>,
    /// Failed commands to repeat.
    again: Vec<Flight>,
    next_id: u64,
    /// Offsets at which the log's drive is probed.
    probes: VecDeque<u64>,
    answers: bool,
    /// Whether a failing read ends the window; else the window goes on without what cannot be read.
    patient: bool,
    /// Whether the backing store takes blocks as they are packed.
    packs: bool,
    failed: bool,
    /// The window has failed because the log could not be read.
    unread: bool,
    flush_out: bool,
    /// The window ends before this segment, because it has enough.
    cut: Option<u64>,
    /// There is more to do that needs no drive.
    steps: bool,
    watched: Vec<Range<u64>>,
}

impl Writeback {
    /// A window that carries out `plan`.
    pub fn new(plan: Plan) -> Self {
        mark("writeback.begun");
        let Plan { segments, patient, packs, images, stones, records } = plan;
        let is_read = images.is_empty();
        let mut known: Vec<_> = images.into_iter().map(|i| Some(Bytes::from_owner(i))).collect();
        known.resize_with(segments.len(), || None);
        Self {
            // Content that is only in memory is written in one window: there is little of it.
            gathered: Gathering::new(&segments, stones, &records, is_read),
            bytes: segments.iter().map(|p| u64::from(p.used)).sum(),
            read: 0,
            images: known,
            pieced: BTreeMap::new(),
            plan: segments,
            phase: Phase::Probe,
            codec: Codec::new(Algorithm::None),
            unpacked: Unpacked::default(),
            sums: Sums::default(),
            zeros: 0,
            next: 0,
            written: 0,
            run: Vec::new(),
            damaged: Vec::new(),
            reads: VecDeque::new(),
            batch: 0,
            patient,
            packs,
            unread: false,
            flights: BTreeMap::new(),
            again: Vec::new(),
            next_id: 0,
            probes: if patient { VecDeque::new() } else { SUPER_AT.into() },
            answers: patient,
            failed: false,
            flush_out: false,
            cut: None,
            steps: false,
            watched: Vec::new(),
        }
    }

    /// This window, held before it changes any of these ranges of blocks.
    #[must_use]
    pub fn watching(self, watched: Vec<Range<u64>>) -> Self {
        Self { watched, ..self }
    }

    /// Whether the window waits for [`Self::proceed`].
    pub fn is_held(&self) -> bool {
        self.phase == Phase::Held && self.flights.is_empty()
    }

    /// Whether the window will change a block of `range`. Known once it is held.
    pub fn changes(&self, range: &Range<u64>) -> bool {
        let written = self.gathered.blocks.range(range.clone()).next().is_some();
        written || self.gathered.zeros.meets(range)
    }

    /// Lets a held window go on.
    pub fn proceed(&mut self) {
        if self.phase == Phase::Held {
            self.zeros = self.zeros_left();
            self.phase =
                if planted::on(Bug::DiscardOutOfOrder) { Phase::Write } else { Phase::Zero };
        }
    }

    /// Whether there is more to do that needs no drive, although there was no command: the thread
    /// that drives the window asks again at once.
    pub fn is_stepping(&self) -> bool {
        self.steps
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

    /// The next command, if there is one now.
    pub fn next_command(&mut self) -> Option<Command> {
        self.steps = false;
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
                Phase::Gather => {
                    self.steps = !self.gather();
                    None
                }
                Phase::Zero => self.next_zero(),
                Phase::Write => self.next_write(),
                Phase::Flush => self.next_flush(),
                Phase::Held | Phase::Over => None,
            };
            let waits = matches!(self.phase, Phase::Held | Phase::Over) || self.steps;
            if command.is_some() || !self.flights.is_empty() || waits || self.failed {
                return command;
            }
            self.advance();
        }
    }

    /// Ends this phase, and begins the next.
    fn advance(&mut self) {
        self.phase = match self.phase {
            Phase::Probe if !self.answers => {
                mark("writeback.silent");
                (self.failed, self.unread) = (true, true);
                Phase::Over
            }
            Phase::Probe => Phase::Read,
            Phase::Read => {
                for (i, image) in std::mem::take(&mut self.pieced) {
                    self.images[i] = Some(Bytes::from_owner(image));
                }
                Phase::Gather
            }
            Phase::Gather if self.batch < self.plan.len() => Phase::Read,
            Phase::Gather => {
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

    /// Parts that cannot be read count as lost only if the drive reads other parts. A drive that
    /// reads nothing may come back with all of its content.
    fn next_probe(&mut self) -> Option<Command> {
        let at = self.probes.pop_front()?;
        Some(self.launch(Device::Log, at, Op::Read(ALIGN), None))
    }

    fn next_read(&mut self) -> Option<Command> {
        if self.batch == self.gathered.segments {
            self.next_batch();
        }
        let (i, part) = self.reads.pop_front()?;
        let at = self.plan.get(i)?.at + u64::from(part.start);
        let op = Op::Read(part.len());
        Some(self.launch(Device::Log, at, op, Some((i, part))))
    }

    /// Begins to read the next segments.
    fn next_batch(&mut self) {
        let mut bytes = 0;
        while let Some(&Planned { used, .. }) = self.plan.get(self.batch)
            && (bytes == 0 || bytes + u64::from(used) <= BATCH)
        {
            if self.images[self.batch].is_none() && used > 0 {
                self.reads.push_back((self.batch, 0..used));
                bytes += u64::from(used);
            }
            self.batch += 1;
        }
    }

    /// Gathers some of the batch; returns whether that is done.
    fn gather(&mut self) -> bool {
        if !self.gathered.step(&self.plan, &self.images, self.batch) {
            return false;
        }
        let taken = self.gathered.segments;
        if taken < self.plan.len() {
            if !self.gathered.is_full() {
                return true;
            }
            mark("writeback.cut_short");
            self.cut = self.plan.get(taken).map(|planned| planned.number);
            self.plan.truncate(taken);
            self.images.truncate(taken);
            self.batch = taken;
        }
        let last = self.plan.last().map_or(0, |planned| planned.number);
        self.gathered.close(last)
    }

    fn next_zero(&mut self) -> Option<Command> {
        let Range { start, end } = self.gathered.zeros.take_first(ZEROED)?;
        mark("writeback.zeros");
        let (at, len) = (start * BLOCK_SIZE as u64, (end - start) * BLOCK_SIZE as u64);
        Some(self.launch(Device::Backing, at, Op::Zero(len), None))
    }

    /// Commands that still have to zero ranges: an upper bound.
    fn zeros_left(&self) -> u64 {
        self.gathered.zeros.ranges() as u64 + self.gathered.zeros.total() / ZEROED
    }

    fn next_write(&mut self) -> Option<Command> {
        for _ in 0..DAMAGED {
            let fits = self.next_run();
            let &(first, segment, data) = self.run.first()?;
            let (good, op) = match (fits, self.packs) {
                (false, _) => (0, Op::Flush),
                (true, true) => self.pack_run(),
                (true, false) => self.decode_run(),
            };
            self.next = first + good.max(1) as u64;
            self.written += good.max(1);
            if good > 0 {
                mark(if good > 1 { "writeback.merged" } else { "writeback.single" });
                return Some(self.launch(Device::Backing, first * BLOCK_SIZE as u64, op, None));
            }
            // The check word may fit, and the payload still not decode.
            mark(if fits { "writeback.undecodable" } else { "writeback.damaged" });
            self.damaged.push((self.plan[segment].number, data));
        }
        mark("writeback.damaged_on");
        self.steps = true;
        None
    }

    /// Finds the blocks to write next: neighbours whose check words fit. If the check word of the
    /// first does not fit, `run` has that block alone, and this returns `false`.
    fn next_run(&mut self) -> bool {
        let Self { gathered, images, plan, sums, run, .. } = self;
        run.clear();
        for (&block, &(segment, data)) in gathered.blocks.range(self.next..).take(RUN) {
            if run.last().is_some_and(|(last, ..)| last + 1 != block) {
                break;
            }
            let Planned { epoch, number, .. } = plan[segment];
            let seed = Seed { epoch, segment: number, offset: data.offset, block };
            let payload = payload(images, segment, &data);
            let fits = payload.is_some_and(|payload| sums.fits(&seed, payload, data.check));
            let first = run.is_empty();
            if fits || first {
                run.push((block, segment, data));
            }
            if !fits {
                return !first;
            }
        }
        visits(run.len());
        true
    }

    /// The write of the blocks of `run` up to the first that does not decode, and their number.
    fn decode_run(&mut self) -> (usize, Op) {
        let mut bytes = Buffer::new(self.run.len() * BLOCK_SIZE);
        let (blocks, _) = bytes.as_chunks_mut::<BLOCK_SIZE>();
        let mut good = 0;
        while let Some(some) = self.decode(good, &mut blocks[good..]) {
            good += some;
        }
        (good, Op::Write(Arc::new(bytes), 0..good * BLOCK_SIZE))
    }

    /// The same for a store that takes blocks as they are packed. Those of a cluster are packed
    /// together, and those of one repeated word are quickly packed anew: they are decoded.
    fn pack_run(&mut self) -> (usize, Op) {
        mark("writeback.packed");
        let plain = self.run.iter().filter(|(.., data)| coding(data.kind).is_none()).count();
        let mut plain = Buffer::new(plain * BLOCK_SIZE);
        let (mut blocks, _) = plain.as_chunks_mut::<BLOCK_SIZE>();
        let mut packed = Vec::with_capacity(self.run.len());
        while let Some(own) = self.run.get(packed.len()) {
            if let Some(coding) = coding(own.2.kind) {
                let (_, segment, data) =
                    if planted::on(Bug::FirstPacked) { &self.run[0] } else { own };
                let from = data.offset as usize;
                let image = self.images[*segment].as_ref();
                let bytes = image.map(|image| image.slice(from..from + data.len as usize));
                packed.push(Some(PackedBlock { coding, bytes: bytes.unwrap_or_default() }));
                continue;
            }
            let Some(some) = self.decode(packed.len(), blocks) else { break };
            packed.resize(packed.len() + some, None);
            blocks = &mut blocks[some..];
        }
        (packed.len(), Op::WritePacked(Arc::new(PackedRun::new(packed, plain))))
    }

    /// Decodes the block at index `at` of `run`, and all others of its cluster behind it; returns
    /// their number. `None`: there is none, or they do not decode.
    fn decode(&mut self, at: usize, out: &mut [[u8; BLOCK_SIZE]]) -> Option<usize> {
        let &(block, segment, data) = self.run.get(at)?;
        let shares = |(_, other, at): &&(u64, usize, Data)| {
            (*other, at.offset) == (segment, data.offset) && at.kind == Kind::Cluster
        };
        let some = self.run[at..].iter().take_while(shares).count().max(1);
        let payload = payload(&self.images, segment, &data)?;
        let (codec, out) = (&mut self.codec, out.get_mut(..some)?);
        if !self.unpacked.decode(codec, data.kind, payload, block, out) {
            return None;
        }
        if data.kind == Kind::Cluster {
            mark(if some < CLUSTER { "writeback.cluster_part" } else { "writeback.cluster" });
        }
        Some(some)
    }

    fn next_flush(&mut self) -> Option<Command> {
        if self.flush_out || planted::on(Bug::ForgetBackingFlush) {
            return None;
        }
        self.flush_out = true;
        Some(self.launch(Device::Backing, 0, Op::Flush, None))
    }

    /// Takes the outcome of a command.
    pub fn complete(&mut self, id: u64, outcome: Outcome) {
        let Some(flight) = self.flights.remove(&id) else { return };
        if let Outcome::Failed(e) = &outcome
            // A failed flush may have lost earlier writes.
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
            (Outcome::Bytes(bytes), Some((i, part))) => {
                self.read += part.len() as u64;
                match self.pieced.get_mut(&i) {
                    None => self.images[i] = Some(Bytes::from_owner(bytes)),
                    Some(image) => {
                        let place = part.start as usize..part.end as usize;
                        image[place].copy_from_slice(&bytes);
                    }
                }
            }
            _ => {}
        }
    }

    /// Reads a part that failed in pieces of [`ALIGN`] bytes; a piece that fails stays unread.
    fn read_failed(&mut self, i: usize, part: Range<u32>) {
        if part.len() <= ALIGN {
            mark("writeback.unread");
            self.read += part.len() as u64;
            return;
        }
        let used = self.plan[i].used as usize;
        self.pieced.entry(i).or_insert_with(|| Buffer::new(used));
        let pieces = part.step_by(ALIGN).map(|at| (i, at..at + ALIGN as u32));
        self.reads.extend(pieces);
    }

    /// Progress of the window, as a part of `way`: reading, gathering and the flush count a tenth
    /// each, and the rest goes by the blocks and ranges that are zeroed and written.
    pub fn gone(&self, way: u64) -> u64 {
        let part = |done: u64, all: u64, of: u64| of * done.min(all) / all.max(1);
        let tenth = way / 10;
        match self.phase {
            Phase::Probe => 0,
            Phase::Read | Phase::Gather => {
                let gathered = part(self.gathered.bytes, self.bytes, tenth);
                part(self.read, self.bytes, tenth) + gathered
            }
            Phase::Held => 2 * tenth,
            Phase::Zero | Phase::Write => {
                let zeroed = self.zeros.saturating_sub(self.zeros_left());
                let all = self.zeros + self.gathered.blocks.len() as u64;
                2 * tenth + part(zeroed + self.written as u64, all, way - 3 * tenth)
            }
            Phase::Flush => way - tenth,
            Phase::Over => way,
        }
    }

    /// Whether the window is over, done or failed.
    pub fn is_over(&self) -> bool {
        self.flights.is_empty() && (self.failed || self.phase == Phase::Over)
    }

    /// How the window ended, once it is over.
    pub fn ended(&mut self) -> Option<Ended> {
        if !self.is_over() {
            return None;
        }
        if self.failed {
            return Some(Ended::Badly { unread: self.unread });
        }
        let Gathering { blocks, copies, unreadable, mut lost, .. } =
            std::mem::take(&mut self.gathered);
        for (_, data) in &self.damaged {
            lost.insert(data.block..data.block + 1);
        }
        Some(Ended::Well {
            cut: self.cut,
            blocks: blocks.into_keys().chain(copies).collect(),
            damaged: std::mem::take(&mut self.damaged),
            unreadable,
            lost: lost.iter().map(|range| (range.start, range.end - range.start)).collect(),
        })
    }
}

fn payload<'a>(images: &'a [Option<Bytes>], segment: usize, data: &Data) -> Option<&'a [u8]> {
    let from = data.offset as usize;
    images.get(segment)?.as_ref()?.get(from..from + data.len as usize)
}

/// How a payload is coded that is of one block, and can be stored as it is.
fn coding(kind: Kind) -> Option<Coding> {
    kind.coding().filter(|coding| *coding != Coding::Fill)
}

//! Blocks in a durable log before a backing store: the log's core, its drives, and who moves them.
//!
//! The core does no I/O; here is who does. Whoever waits for a commit carries commands out himself,
//! so a small synced write needs no other thread; a few threads of the log's own write what nobody
//! waits for. A write reserves its places under the core's lock, and fills them without it.
//!
//! Invariants: the core's lock is held neither during I/O nor while payloads are copied; a block's
//! stripe is held from before its place is reserved, or from the read of a read-modify-write, until
//! it is filled; who has reserved waits for nobody before he has filled; who takes several stripes
//! takes them in order; none of the log's own threads takes one.

use super::brake::Brake;
use super::news::News;
use super::pace::Pace;
use super::tending::MOVERS;
use crate::BLOCK_SIZE;
use crate::durable::format::{Kind, crc};
use crate::durable::{
    Command, Core, Device, Fills, Found, Op, Outcome, Progress, Reading, Refused, decode, join,
};
use crate::media::{ALIGN, Buffer, Drive, DriveError, Identity, StableId, Waker};
use crate::stats::LogStats;
use crate::store::GROUP;
use crate::store::codec::{self, Algorithm, Codec, Encoded};
use crate::store::format::Coding;
use parking_lot::{Mutex, MutexGuard};
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

const STRIPES: usize = 256;
/// After so many blocks in a row that did not shrink, only one in [`RETRY`] is tried.
const HOPELESS: u32 = 16;
/// See [`HOPELESS`].
const RETRY: u32 = 64;
/// How long to wait for news before looking again.
const WAIT: Duration = Duration::from_millis(50);

/// How long a reader waits for the stripe of a payload that is being copied before looking again.
const FILL: Duration = Duration::from_millis(1);

/// Why a request on a logged volume failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A drive failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// This block's only copy is damaged.
    #[error("block {0} is damaged")]
    Damaged(u64),
    /// The log's drive failed; nothing more is taken.
    #[error("the log has failed")]
    Failed,
}

/// A payload on its way from a block, or to one.
struct Payload {
    kind: Kind,
    /// Bytes that count, of one that was encoded.
    len: usize,
    bytes: Vec<u8>,
}

/// One thread's memory for requests.
pub struct LogHand {
    codec: Codec,
    /// Payloads of a group; of no length where the block is its own.
    payloads: Vec<Payload>,
    /// Blocks in a row that did not shrink, or were not tried.
    unshrunk: u32,
    fills: Fills,
    found: Vec<Found>,
    buffer: Buffer,
    block: Box<[u8; BLOCK_SIZE]>,
}

impl LogHand {
    /// Memory for one thread; what it writes is compressed as `algorithm` says.
    pub fn new(algorithm: Algorithm) -> Self {
        Self {
            codec: Codec::new(algorithm),
            payloads: (0..GROUP)
                .map(|_| Payload { kind: Kind::Raw, len: 0, bytes: vec![0; BLOCK_SIZE] })
                .collect(),
            unshrunk: 0,
            fills: Fills::default(),
            found: Vec::with_capacity(GROUP),
            buffer: Buffer::new(2 * ALIGN),
            block: Box::new([0; BLOCK_SIZE]),
        }
    }

    /// Encodes a block as the `i`-th payload. One that is kept as it is, is not copied.
    fn encode(&mut self, i: usize, block: &[u8; BLOCK_SIZE]) {
        let Payload { kind, len: used, bytes: out } = &mut self.payloads[i];
        // Shorter only after a read.
        out.resize(BLOCK_SIZE, 0);
        let encoded = codec::fold(block, out).or_else(|| {
            let tries = self.unshrunk < HOPELESS || self.unshrunk.is_multiple_of(RETRY);
            let shrunk = if tries { self.codec.shrink(block, out) } else { None };
            self.unshrunk = if shrunk.is_some() { 0 } else { self.unshrunk.wrapping_add(1) };
            shrunk
        });
        let (now, len) = match encoded {
            Some(Encoded::Same(0)) => (Kind::Zeros, 0),
            Some(Encoded::Same(word)) => {
                let word = u64::from(word) << 32 | u64::from(word);
                out[..8].copy_from_slice(&word.to_le_bytes());
                (Kind::Same, 8)
            }
            Some(Encoded::Payload(len, Coding::Lz4)) => (Kind::Lz4, len),
            Some(Encoded::Payload(len, Coding::Zstd)) => (Kind::Zstd, len),
            Some(Encoded::Payload(len, Coding::Fill)) => (Kind::Same, len),
            None | Some(Encoded::Payload(_, Coding::Raw)) => (Kind::Raw, 0),
        };
        (*kind, *used) = (now, len);
    }
}

/// Hears what a log has become.
pub type Listener = Box<dyn Fn(&LogStats) + Send + Sync>;

/// A log, its backing store, and their state.
pub struct Logged {
    core: Mutex<Core>,
    /// Something was completed, or there is something to do.
    news: News,
    /// Chunks below this are durable; never ahead of the core.
    durable: AtomicU64,
    log: Arc<dyn Drive>,
    backing: Arc<dyn Drive>,
    stripes: Vec<Mutex<()>>,
    stopping: AtomicBool,
    /// Milliseconds since `began` at the last request.
    last_request_ms: AtomicU64,
    began: Instant,
    damaged_reads: AtomicU64,
    written_back: AtomicU64,
    /// What identifies the backing store, as the log's superblock has it.
    identity: Mutex<Option<(Identity, StableId)>>,
    /// Lets writeback give way to reads of the backing store.
    brake: Brake,
    /// Lets writers of a nearly full log wait a little instead of long.
    pace: Pace,
    /// Hears what became of the backing store, when a window begins and ends.
    listener: OnceLock<Listener>,
    /// Ends the sleep of the thread that writes what nobody waits for.
    waker: OnceLock<Waker>,
}

impl Logged {
    /// A log that was opened, with its drives.
    pub fn new(mut core: Core, log: Arc<dyn Drive>, backing: Arc<dyn Drive>) -> Self {
        core.wall(crate::stats::time::now());
        Self {
            core: Mutex::new(core),
            news: News::default(),
            durable: AtomicU64::new(0),
            log,
            backing,
            stripes: (0..STRIPES).map(|_| Mutex::new(())).collect(),
            stopping: AtomicBool::new(false),
            last_request_ms: AtomicU64::new(0),
            began: Instant::now(),
            damaged_reads: AtomicU64::new(0),
            written_back: AtomicU64::new(0),
            identity: Mutex::new(None),
            brake: Brake::new(MOVERS),
            pace: Pace::default(),
            listener: OnceLock::new(),
            waker: OnceLock::new(),
        }
    }

    pub(super) fn log_drive(&self) -> Arc<dyn Drive> {
        Arc::clone(&self.log)
    }

    pub(super) fn wakes(&self, waker: Waker) {
        let _ = self.waker.set(waker);
    }

    /// Says what became of a command of the core.
    pub(super) fn completed(&self, id: u64, outcome: &Outcome) {
        self.note(&mut self.core.lock(), id, outcome);
    }

    fn note(&self, core: &mut Core, id: u64, outcome: &Outcome) {
        core.clock(self.now_us());
        if core.complete(id, outcome) {
            self.durable.store(core.durable(), Ordering::Release);
            self.news.tell();
        }
    }

    pub(super) fn brake(&self) -> &Brake {
        &self.brake
    }

    pub(super) fn pace(&self) -> &Pace {
        &self.pace
    }

    /// A window has gone so much of its way.
    pub(super) fn advance(&self, gone: u64) {
        if self.pace.advance(gone) {
            self.news.tell();
        }
    }

    /// Whoever wants to know what becomes of the backing store, before it changes and after.
    pub fn listen(&self, listener: Listener) {
        let _ = self.listener.set(listener);
    }

    /// Tells the listener how the backing store stands.
    pub(super) fn note_backing(&self) {
        if let Some(listener) = self.listener.get() {
            let stats = self.core.lock().stats();
            listener(&stats);
        }
    }

    fn wake(&self) {
        if let Some(waker) = self.waker.get() {
            waker.wake();
        }
    }

    /// Says what the superblock has of the backing store's identity: from now on it is kept true.
    pub fn watch(&self, identity: Identity, id: StableId) {
        *self.identity.lock() = Some((identity, id));
    }

    /// Notes on the log's drive what identifies the backing store.
    ///
    /// # Errors
    /// The log has failed.
    fn identify(&self, identity: Identity, id: StableId) -> Result<(), Fault> {
        *self.identity.lock() = Some((identity, id));
        self.core.lock().identify(identity.encode());
        // Of a log that has failed it is tried: to save its content is worth more.
        self.settle(|core| core.is_written().then_some(Ok(())))
    }

    /// The parts of the backing store that its identity has samples of, as blocks.
    pub(super) fn samples(&self) -> Vec<Range<u64>> {
        if self.identity.lock().is_none() {
            return Vec::new();
        }
        let ranges = Identity::samples(self.backing.size()).into_iter().flatten();
        ranges.map(|r| r.start / BLOCK_SIZE as u64..r.end.div_ceil(BLOCK_SIZE as u64)).collect()
    }

    /// Before the backing store changes where `changes` says: the identity in the log forgets it.
    ///
    /// # Errors
    /// The log has failed.
    pub(super) fn forget(&self, changes: impl Fn(&Range<u64>) -> bool) -> Result<(), Fault> {
        let Some((mut identity, id)) = self.identity.lock().clone() else { return Ok(()) };
        let before = identity;
        identity.forget(|bytes| {
            changes(&(bytes.start / BLOCK_SIZE as u64..bytes.end.div_ceil(BLOCK_SIZE as u64)))
        });
        if identity == before { Ok(()) } else { self.identify(identity, id) }
    }

    /// When nothing will be written to the backing store any more: its identity as it is now.
    ///
    /// # Errors
    /// A drive fails.
    pub(super) fn renew_identity(&self) -> Result<(), Fault> {
        let Some((_, id)) = self.identity.lock().clone() else { return Ok(()) };
        let identity = Identity::of(&*self.backing, &id)?;
        self.identify(identity, id)
    }

    /// The core, for questions.
    pub fn core(&self) -> MutexGuard<'_, Core> {
        self.core.lock()
    }

    /// Reads of damaged blocks.
    pub fn damaged_reads(&self) -> u64 {
        self.damaged_reads.load(Ordering::Relaxed)
    }

    /// Bytes that writeback wrote to the backing store.
    pub fn written_back_bytes(&self) -> u64 {
        self.written_back.load(Ordering::Relaxed)
    }

    pub(super) fn now_ms(&self) -> u64 {
        self.began.elapsed().as_millis() as u64
    }

    fn now_us(&self) -> u64 {
        self.began.elapsed().as_micros() as u64
    }

    /// How long nobody has asked for anything.
    pub(super) fn idle(&self) -> Duration {
        let last = self.last_request_ms.load(Ordering::Relaxed);
        Duration::from_millis(self.now_ms().saturating_sub(last))
    }

    fn touch(&self) {
        self.last_request_ms.store(self.now_ms(), Ordering::Relaxed);
    }

    pub(super) fn is_stopping(&self) -> bool {
        self.stopping.load(Ordering::Acquire)
    }

    pub(super) fn stop_threads(&self) {
        self.stopping.store(true, Ordering::Release);
        let _core = self.core.lock();
        self.news.tell();
        self.wake();
    }

    fn stripe(&self, block: u64) -> &Mutex<()> {
        &self.stripes[(block / GROUP as u64) as usize % STRIPES]
    }

    /// Reads up to [`GROUP`] blocks that share a stripe.
    ///
    /// # Errors
    /// A drive fails, or a block is damaged; what was read before that is in `out`.
    pub fn read(
        &self,
        hand: &mut LogHand,
        first: u64,
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> Result<(), Fault> {
        self.touch();
        self.locate(hand, first, out.len());
        while hand.found.contains(&Found::Filling) {
            // Its writer holds the stripe until it is there; longer, if he then waits for room.
            let _stripe = self.stripe(first).try_lock_for(FILL);
            let mut core = self.core.lock();
            for (i, found) in hand.found.iter_mut().enumerate() {
                if *found == Found::Filling {
                    *found = core.locate(first + i as u64, &mut hand.payloads[i].bytes);
                }
            }
        }
        self.fetch_all(hand, first, out)
    }

    fn locate(&self, hand: &mut LogHand, first: u64, count: usize) {
        hand.found.clear();
        let mut core = self.core.lock();
        for (block, payload) in (first..).zip(&mut hand.payloads).take(count) {
            hand.found.push(core.locate(block, &mut payload.bytes));
        }
    }

    /// Gets everything that was located.
    fn fetch_all(
        &self,
        hand: &mut LogHand,
        first: u64,
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> Result<(), Fault> {
        let mut result = Ok(());
        let mut i = 0;
        while i < out.len() {
            let here = hand.found[i];
            let mut count = 1;
            if here == Found::Backing {
                count = hand.found[i..].iter().take_while(|f| **f == Found::Backing).count();
            }
            let blocks = &mut out[i..i + count];
            let done = self.fetch(hand, i, here, first + i as u64, blocks);
            if let (Ok(()), Err(fault)) = (&result, done) {
                result = Err(fault);
            }
            i += count;
        }
        result
    }

    /// Gets what was located: one block, or a run of blocks from the backing store.
    fn fetch(
        &self,
        hand: &mut LogHand,
        i: usize,
        found: Found,
        block: u64,
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> Result<(), Fault> {
        match found {
            Found::Zeros => out.as_flattened_mut().fill(0),
            // Nobody fills who does not hold the stripe.
            Found::Lost | Found::Filling => return Err(self.damaged(block)),
            Found::Backing => {
                let (began, moving) = (Instant::now(), self.brake.is_moving());
                self.backing.read(block * BLOCK_SIZE as u64, out.as_flattened_mut())?;
                let moving = moving || self.brake.is_moving();
                self.brake.note(began.elapsed(), moving, self.now_ms());
            }
            Found::Memory(kind) => {
                let payload = &hand.payloads[i].bytes;
                if !decode(&mut hand.codec, kind, payload, &mut out[0]) {
                    return Err(self.damaged(block));
                }
            }
            Found::Log(reading) => {
                let result = self.read_log(hand, &reading, &mut out[0]);
                self.core.lock().release(&reading);
                result?;
            }
        }
        Ok(())
    }

    fn read_log(
        &self,
        hand: &mut LogHand,
        reading: &Reading,
        out: &mut [u8; BLOCK_SIZE],
    ) -> Result<(), Fault> {
        let skip = (reading.at % ALIGN as u64) as usize;
        let end = skip + reading.len as usize;
        let aligned = &mut hand.buffer[..end.next_multiple_of(ALIGN)];
        self.log.read(reading.at - skip as u64, aligned)?;
        let payload = &aligned[skip..end];
        if !reading.stamp.fits(payload, reading.check)
            || !decode(&mut hand.codec, reading.kind, payload, out)
        {
            return Err(self.damaged(reading.stamp.block));
        }
        Ok(())
    }

    fn damaged(&self, block: u64) -> Fault {
        self.damaged_reads.fetch_add(1, Ordering::Relaxed);
        Fault::Damaged(block)
    }

    /// Writes up to [`GROUP`] blocks that share a stripe.
    ///
    /// # Errors
    /// The log has failed; some of the blocks may have been taken.
    pub fn write(
        &self,
        hand: &mut LogHand,
        first: u64,
        blocks: &[[u8; BLOCK_SIZE]],
    ) -> Result<(), Fault> {
        self.touch();
        for (i, block) in blocks.iter().enumerate() {
            hand.encode(i, block);
        }
        let _stripe = self.stripe(first).lock();
        if self.append(hand, first, blocks)? {
            return Ok(());
        }
        self.write_through(first, blocks)
    }

    /// Writes blocks to the backing store, because the log has failed.
    fn write_through(&self, first: u64, blocks: &[[u8; BLOCK_SIZE]]) -> Result<(), Fault> {
        self.refuse_lost(first, blocks.len() as u64)?;
        Ok(self.backing.write(first * BLOCK_SIZE as u64, blocks.as_flattened())?)
    }

    /// Nothing durable could say any more that a lost block has been written.
    fn refuse_lost(&self, first: u64, count: u64) -> Result<(), Fault> {
        let lost = self.core.lock().first_lost(first, count);
        lost.map_or(Ok(()), |block| Err(self.damaged(block)))
    }

    /// Writes blocks that were encoded, whose stripe the caller holds; `false` if they must go to
    /// the backing store.
    fn append(
        &self,
        hand: &mut LogHand,
        first: u64,
        blocks: &[[u8; BLOCK_SIZE]],
    ) -> Result<bool, Fault> {
        let LogHand { payloads, fills, .. } = hand;
        let payloads = || {
            payloads.iter().zip(blocks).map(|(payload, block)| match payload.kind {
                Kind::Raw => (Kind::Raw, &block[..]),
                kind => (kind, &payload.bytes[..payload.len]),
            })
        };
        let mut sums = [0; GROUP];
        for (sum, (_, payload)) in sums.iter_mut().zip(payloads()) {
            *sum = crc(payload);
        }
        let mut done = 0;
        loop {
            let from = done;
            let (refused, sealed) = self.settle(|core| {
                if self.pace.holds(core.fullness()) {
                    return None;
                }
                let chunks = core.chunks();
                let mut refused = None;
                for (kind, payload) in payloads().skip(done) {
                    let block = first + done as u64;
                    let taken = match kind {
                        Kind::Zeros => core.discard(block, 1),
                        _ => core.reserve(block, kind, (payload.len(), sums[done]), fills),
                    };
                    refused = taken.err();
                    if refused.is_some() {
                        break;
                    }
                    done += 1;
                }
                // Who waits for room must not keep others waiting for what he fills.
                let waits = refused == Some(Refused::Full) && done == from;
                (!waits).then(|| (refused, core.chunks() > chunks))
            });
            let reserved = payloads().take(done).skip(from);
            for (_, payload) in reserved.filter(|(kind, _)| *kind != Kind::Zeros) {
                fills.fill(payload);
            }
            let awaited = fills.finish();
            if awaited {
                self.news.tell();
            }
            if awaited || sealed {
                self.wake();
            }
            match refused {
                None => return Ok(true),
                Some(Refused::Full) => {}
                Some(Refused::Through) => return Ok(false),
                Some(Refused::Failed) => return Err(Fault::Failed),
            }
        }
    }

    /// Reads a block, changes it and writes it, as one step for everybody else.
    ///
    /// # Errors
    /// As [`Self::read`] and [`Self::write`].
    pub fn modify(
        &self,
        hand: &mut LogHand,
        block: u64,
        change: impl FnOnce(&mut [u8; BLOCK_SIZE]),
    ) -> Result<(), Fault> {
        let _stripe = self.stripe(block).lock();
        let mut content = std::mem::replace(&mut hand.block, Box::new([0; BLOCK_SIZE]));
        self.touch();
        self.locate(hand, block, 1);
        let read = self.fetch_all(hand, block, std::slice::from_mut(&mut *content));
        let result = read.and_then(|()| {
            change(&mut content);
            hand.encode(0, &content);
            match self.append(hand, block, std::slice::from_ref(&content))? {
                true => Ok(()),
                false => self.write_through(block, std::slice::from_ref(&content)),
            }
        });
        hand.block = content;
        result
    }

    /// Makes `count` blocks, at least one, read as zeros.
    ///
    /// # Errors
    /// The log has failed.
    pub fn discard(&self, first: u64, count: u64) -> Result<(), Fault> {
        self.touch();
        // A read-modify-write of a block in the range must come before or after, not around.
        let groups = first / GROUP as u64..=(first + count - 1) / GROUP as u64;
        let mut stripes: Vec<usize> =
            groups.take(STRIPES).map(|group| group as usize % STRIPES).collect();
        stripes.sort_unstable();
        let _stripes: Vec<_> = stripes.iter().map(|&i| self.stripes[i].lock()).collect();
        let taken = self.settle(|core| match core.discard(first, count) {
            Ok(()) => Some(Ok(true)),
            Err(Refused::Full) => None,
            Err(Refused::Through) => Some(Ok(false)),
            Err(Refused::Failed) => Some(Err(Fault::Failed)),
        })?;
        if taken {
            return Ok(());
        }
        self.refuse_lost(first, count)?;
        Ok(self.backing.zero(first * BLOCK_SIZE as u64, count * BLOCK_SIZE as u64)?)
    }

    /// Makes everything durable that was acknowledged before.
    ///
    /// # Errors
    /// The log has failed, and what it held is not in the backing store.
    pub fn flush(&self) -> Result<(), Fault> {
        self.touch();
        let mut core = self.core.lock();
        if core.is_through() {
            drop(core);
            return Ok(self.backing.flush()?);
        }
        core.clock(self.now_us());
        let ticket = core.flush();
        let mut worked = false;
        loop {
            match core.progress(ticket) {
                Progress::Pending => {}
                progress => {
                    self.hand_over(worked);
                    return if progress == Progress::Done { Ok(()) } else { Err(Fault::Failed) };
                }
            }
            worked = self.act(&mut core);
            if !worked {
                let soon = core.patience_us().map_or(WAIT, Duration::from_micros);
                let seen = self.news.seen();
                drop(core);
                self.news.wait(seen, soon.min(WAIT));
                if ticket.is_done(self.durable.load(Ordering::Acquire)) {
                    return Ok(());
                }
                core = self.core.lock();
            }
        }
    }

    /// Carries out the core's commands until `ready` says something.
    pub(super) fn settle<T>(&self, mut ready: impl FnMut(&mut Core) -> Option<T>) -> T {
        let mut core = self.core.lock();
        let mut worked = false;
        loop {
            if let Some(value) = ready(&mut core) {
                self.hand_over(worked);
                return value;
            }
            worked = self.act(&mut core);
            if !worked && core.is_forgetting() {
                // In steps, so that others have their turn between them.
                MutexGuard::bump(&mut core);
            } else if !worked {
                let seen = self.news.seen();
                MutexGuard::unlocked(&mut core, || self.news.wait(seen, WAIT));
            }
        }
    }

    /// Carries out a command of the core; `false` if there is none.
    fn act(&self, core: &mut MutexGuard<'_, Core>) -> bool {
        core.clock(self.now_us());
        let Some(command) = core.next_command() else { return false };
        let outcome = MutexGuard::unlocked(core, || self.carry_out(&command));
        self.note(core, command.id, &outcome);
        true
    }

    /// Who has worked and goes may leave something to do of which nobody has been told.
    fn hand_over(&self, worked: bool) {
        if worked {
            self.news.tell();
        }
    }

    /// Flushes the backing store.
    pub(super) fn flush_backing(&self) -> Outcome {
        self.backing.flush().map_or_else(Outcome::Failed, |()| Outcome::Done)
    }

    /// Does what a command says.
    pub(super) fn carry_out(&self, command: &Command) -> Outcome {
        let drive = match command.device {
            Device::Log => &self.log,
            Device::Backing => &self.backing,
        };
        let done = match &command.op {
            Op::Read(len) => {
                let mut bytes = Buffer::new(*len);
                return match drive.read(command.at, &mut bytes) {
                    Ok(()) => Outcome::Bytes(bytes),
                    Err(e) => Outcome::Failed(e),
                };
            }
            Op::Join(parts) => drive.write(command.at, &join(parts)),
            Op::Write(bytes, range) => {
                if command.device == Device::Backing {
                    self.written_back.fetch_add(range.len() as u64, Ordering::Relaxed);
                }
                drive.write(command.at, &bytes[range.clone()])
            }
            Op::Zero(len) => drive.zero(command.at, *len),
            Op::Flush => drive.flush(),
        };
        done.map_or_else(Outcome::Failed, |()| Outcome::Done)
    }
}

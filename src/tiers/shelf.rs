//! A backing store, with what the log has of it as well.
//!
//! A drive below the read cache: a block that was written back and is still in the log, or that
//! the log has a copy of, is read from there, and all others from the backing store. Invariants:
//! it is the core that says where a block is, under its lock; what is read from the log is
//! verified, and what cannot be is read from the backing store, which has the same; writes, zeroes
//! and flushes go to the backing store alone.

use crate::BLOCK_SIZE;
use crate::durable::cluster::Unpacked;
use crate::durable::{Core, Found, Reading};
use crate::media::{ALIGN, Buffer, Drive, DriveError};
use crate::store::codec::{Algorithm, Codec};
use parking_lot::Mutex;
use std::sync::Arc;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks that are looked up at once: 1 MiB.
const PART: usize = 256;
/// Bytes that nobody wants and that are read along between two places in the log.
const GAP: u64 = 4096;
/// Most bytes of a read of the log.
const RUN: u64 = 256 << 10;

/// The drive.
pub struct Shelf {
    core: Arc<Mutex<Core>>,
    log: Arc<dyn Drive>,
    backing: Arc<dyn Drive>,
    /// What threads decode with that have nothing to decode now.
    hands: Mutex<Vec<Hand>>,
}

/// What is needed to decode payloads.
struct Hand {
    codec: Codec,
    unpacked: Unpacked,
    found: Vec<Place>,
}

/// Where the log has a block: which of those that are wanted.
enum Place {
    Memory(usize, crate::durable::format::Kind, Vec<u8>),
    Log(usize, Reading),
}

impl Shelf {
    /// What `core` and its drive `log` have of `backing`, and that.
    pub fn new(core: Arc<Mutex<Core>>, log: Arc<dyn Drive>, backing: Arc<dyn Drive>) -> Self {
        Self { core, log, backing, hands: Mutex::default() }
    }

    fn hand(&self) -> Hand {
        self.hands.lock().pop().unwrap_or_else(|| {
            let (codec, unpacked) = (Codec::new(Algorithm::None), Unpacked::default());
            Hand { codec, unpacked, found: Vec::new() }
        })
    }

    /// Looks up which of the blocks the log has.
    fn locate(&self, first: u64, count: usize, found: &mut Vec<Place>) {
        found.clear();
        let mut core = self.core.lock();
        if !core.has_copies() {
            return;
        }
        let mut payload = Vec::new();
        for (i, block) in (first..).take(count).enumerate() {
            match core.locate_copy(block, &mut payload) {
                Some(Found::Memory(kind)) => {
                    found.push(Place::Memory(i, kind, std::mem::take(&mut payload)));
                }
                Some(Found::Log(reading)) => found.push(Place::Log(i, reading)),
                _ => {}
            }
        }
    }

    /// Reads up to [`PART`] blocks; whether the backing store was asked.
    fn read_part(&self, first: u64, out: &mut [[u8; BLOCK_SIZE]]) -> Result<bool, DriveError> {
        let mut hand = self.hand();
        self.locate(first, out.len(), &mut hand.found);
        let mut missing = vec![true; out.len()];
        let found = std::mem::take(&mut hand.found);
        let mut readings = Vec::new();
        for place in &found {
            match place {
                Place::Memory(i, kind, payload) => {
                    let (block, out) = (first + *i as u64, std::slice::from_mut(&mut out[*i]));
                    let Hand { codec, unpacked, .. } = &mut hand;
                    missing[*i] = !unpacked.decode(codec, *kind, payload, block, out);
                }
                Place::Log(i, reading) => readings.push((*i, *reading)),
            }
        }
        self.read_log(&mut hand, &mut readings, out, &mut missing);
        hand.found = found;
        self.hands.lock().push(hand);
        let mut asked = false;
        let mut from = 0;
        while let Some(start) = (from..out.len()).find(|i| missing[*i]) {
            let end = (start..out.len()).find(|i| !missing[*i]).unwrap_or(out.len());
            let at = (first + start as u64) * BLOCK;
            self.backing.read(at, out[start..end].as_flattened_mut())?;
            (asked, from) = (true, end);
        }
        Ok(asked)
    }

    /// Reads what the log's drive has: neighbours there in one go.
    fn read_log(
        &self,
        hand: &mut Hand,
        readings: &mut [(usize, Reading)],
        out: &mut [[u8; BLOCK_SIZE]],
        missing: &mut [bool],
    ) {
        if readings.is_empty() {
            return;
        }
        readings.sort_unstable_by_key(|(_, reading)| reading.at);
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (_, Reading { at, len, .. }) in readings.iter() {
            let from = at / ALIGN as u64 * ALIGN as u64;
            let to = (at + u64::from(*len)).next_multiple_of(ALIGN as u64);
            match runs.last_mut() {
                Some((start, end)) if from <= *end + GAP && to - *start <= RUN => {
                    *end = to.max(*end);
                }
                _ => runs.push((from, to)),
            }
        }
        let buffer = |(from, to): (u64, u64)| (from, Buffer::new((to - from) as usize));
        let read: Vec<Result<(u64, Buffer), DriveError>> = match runs[..] {
            [run] => {
                let (at, mut bytes) = buffer(run);
                vec![self.log.read(at, &mut bytes).map(|()| (at, bytes))]
            }
            _ => self.log.read_many(runs.into_iter().map(buffer).collect()),
        };
        let mut bad = Vec::new();
        for (i, reading) in readings.iter() {
            let holds = |(at, bytes): &&(u64, Buffer)| {
                *at <= reading.at && reading.at + u64::from(reading.len) <= at + bytes.len() as u64
            };
            let part = read.iter().flatten().find(holds).map(|(at, bytes)| {
                let from = (reading.at - at) as usize;
                &bytes[from..from + reading.len as usize]
            });
            let Hand { codec, unpacked, .. } = hand;
            let block = reading.stamp.block;
            let whole = std::slice::from_mut(&mut out[*i]);
            let fine = part.is_some_and(|payload| {
                reading.stamp.fits(payload, reading.check)
                    && unpacked.decode(codec, reading.kind, payload, block, whole)
            });
            missing[*i] = !fine;
            if !fine {
                bad.push(*reading);
            }
        }
        let mut core = self.core.lock();
        readings.iter().for_each(|(_, reading)| core.release(reading));
        bad.iter().for_each(|reading| core.drop_copy(reading, reading.stamp.block));
    }
}

impl Drive for Shelf {
    fn size(&self) -> u64 {
        self.backing.size()
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.read_noting(at, buf).map(|_| ())
    }

    fn read_noting(&self, at: u64, buf: &mut [u8]) -> Result<bool, DriveError> {
        if !self.core.lock().has_copies() {
            return self.backing.read_noting(at, buf);
        }
        let parts = buf.as_chunks_mut::<BLOCK_SIZE>().0.chunks_mut(PART);
        (at / BLOCK..).step_by(PART).zip(parts).try_fold(false, |asked, (first, part)| {
            self.read_part(first, part).map(|more| asked | more)
        })
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        self.backing.write(at, data)
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        self.backing.zero(at, len)
    }

    fn zeroes_quickly(&self) -> bool {
        self.backing.zeroes_quickly()
    }

    fn flush(&self) -> Result<(), DriveError> {
        self.backing.flush()
    }
}

//! The log read drive: a backing store whose blocks are read from the log where that has them.
//!
//! It is below the read cache. A block that was written back and is still in the log, or of which
//! the log has a copy, is read from the log, all others from the backing store. Invariants: only
//! the core says where a block is, under its lock; payloads from the log are verified, and blocks
//! whose payload does not verify are read from the backing store, which has the same content;
//! writes, zeroes and flushes go to the backing store alone.

use super::coalesce::{GAP, aligned};
use crate::BLOCK_SIZE;
use crate::codec::{Algorithm, Codec};
use crate::log::core::{Core, Found, Reading};
use crate::log::disk::cluster::Unpacked;
use crate::log::disk::format::Kind;
use crate::media::{Blocks, Buffer, Commit, Drive, DriveError, Failures};
use crate::sync::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

const BLOCK: u64 = BLOCK_SIZE as u64;
/// Blocks that are looked up at once: 1 MiB.
const PART: usize = 256;
/// Most bytes of a read of the log.
const RUN: u64 = 256 << 10;

/// The log read drive.
pub struct LogReadDrive {
    core: Arc<Mutex<Core>>,
    log: Arc<dyn Drive>,
    backing: Arc<dyn Drive>,
    /// Decoders that no thread uses now.
    decoders: Mutex<Vec<Decoder>>,
}

/// A codec, and memory for payloads.
struct Decoder {
    codec: Codec,
    unpacked: Unpacked,
    /// Payloads that the log has in memory, each with the index of its block in the request.
    found: Vec<(usize, Kind, Vec<u8>)>,
}

/// Pinned payloads on the log's drive, each with the index of its block in the request. Dropping
/// this unpins them, also after a panic.
struct Pins<'a> {
    core: &'a Mutex<Core>,
    readings: Vec<(usize, Reading)>,
}

impl Drop for Pins<'_> {
    fn drop(&mut self) {
        if !self.readings.is_empty() {
            let mut core = self.core.lock();
            self.readings.iter().for_each(|(_, reading)| core.release(reading));
        }
    }
}

impl LogReadDrive {
    /// Reads from `log` what `core` locates there, and all else from `backing`.
    pub fn new(core: Arc<Mutex<Core>>, log: Arc<dyn Drive>, backing: Arc<dyn Drive>) -> Self {
        Self { core, log, backing, decoders: Mutex::default() }
    }

    fn decoder(&self) -> Decoder {
        self.decoders.lock().pop().unwrap_or_else(|| {
            let (codec, unpacked) = (Codec::new(Algorithm::None), Unpacked::default());
            Decoder { codec, unpacked, found: Vec::new() }
        })
    }

    /// Looks up which of the blocks the log has: payloads in memory go to `found`, others are
    /// pinned.
    fn locate(
        &self,
        first: u64,
        count: usize,
        found: &mut Vec<(usize, Kind, Vec<u8>)>,
    ) -> Pins<'_> {
        found.clear();
        let mut pins = Pins { core: &self.core, readings: Vec::new() };
        let mut core = self.core.lock();
        if !core.has_copies() {
            return pins;
        }
        let mut payload = Vec::new();
        for (i, block) in (first..).take(count).enumerate() {
            match core.locate_copy(block, &mut payload) {
                Some(Found::Memory(kind)) => found.push((i, kind, std::mem::take(&mut payload))),
                Some(Found::Log(reading)) => pins.readings.push((i, reading)),
                _ => {}
            }
        }
        pins
    }

    /// Reads up to [`PART`] blocks; whether it read the backing store.
    fn read_part(&self, first: u64, out: &mut [[u8; BLOCK_SIZE]]) -> Result<bool, DriveError> {
        let mut decoder = self.decoder();
        let pins = self.locate(first, out.len(), &mut decoder.found);
        let mut missing = vec![true; out.len()];
        let Decoder { codec, unpacked, found } = &mut decoder;
        for (i, kind, payload) in found.iter() {
            let (block, out) = (first + *i as u64, std::slice::from_mut(&mut out[*i]));
            missing[*i] = !unpacked.decode(codec, *kind, payload, block, out);
        }
        self.read_log(&mut decoder, pins, out, &mut missing);
        self.decoders.lock().push(decoder);
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

    /// Reads pinned payloads from the log's drive, with one read for neighbours. Those that verify
    /// are no longer `missing`.
    fn read_log(
        &self,
        decoder: &mut Decoder,
        mut pins: Pins<'_>,
        out: &mut [[u8; BLOCK_SIZE]],
        missing: &mut [bool],
    ) {
        let readings = &mut pins.readings;
        if readings.is_empty() {
            return;
        }
        readings.sort_unstable_by_key(|(_, reading)| reading.at);
        let mut runs: Vec<(u64, u64)> = Vec::new();
        for (_, reading) in readings.iter() {
            let Range { start: from, end: to } = aligned(reading);
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
        // Reads and payloads are both in the order of places on the drive.
        let mut read = read.iter().flatten().peekable();
        for (i, reading) in readings.iter() {
            let end = reading.at + u64::from(reading.len);
            while read.next_if(|(at, bytes)| at + (bytes.len() as u64) < end).is_some() {}
            let part = read.peek().filter(|(at, _)| *at <= reading.at).map(|(at, bytes)| {
                let from = (reading.at - at) as usize;
                &bytes[from..from + reading.len as usize]
            });
            let Decoder { codec, unpacked, .. } = decoder;
            let block = reading.seed.block;
            let whole = std::slice::from_mut(&mut out[*i]);
            let fine = part.is_some_and(|payload| {
                reading.seed.fits(payload, reading.check)
                    && unpacked.decode(codec, reading.kind, payload, block, whole)
            });
            missing[*i] = !fine;
            if !fine {
                bad.push(*reading);
            }
        }
        if !bad.is_empty() {
            let mut core = self.core.lock();
            bad.iter().for_each(|reading| core.drop_copy(reading, reading.seed.block));
        }
    }
}

impl Drive for LogReadDrive {
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

    fn write_packed(&self, at: u64, blocks: Blocks<'_>) -> Result<(), DriveError> {
        self.backing.write_packed(at, blocks)
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        self.backing.zero(at, len)
    }

    fn zeroes_quickly(&self) -> bool {
        self.backing.zeroes_quickly()
    }

    fn failures(&self) -> Option<&Failures> {
        self.backing.failures()
    }

    fn is_atomic(&self) -> bool {
        self.backing.is_atomic()
    }

    fn begin(&self) {
        self.backing.begin();
    }

    fn settle(&self, most: Duration) -> Result<bool, DriveError> {
        self.backing.settle(most)
    }

    fn commit(&self, commit: &Commit, most: Duration) -> Result<bool, DriveError> {
        self.backing.commit(commit, most)
    }

    fn flush(&self) -> Result<(), DriveError> {
        self.backing.flush()
    }

    fn close(&self) -> Result<(), DriveError> {
        self.backing.close()
    }
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::logged::{LogIoContext, Logged};
    use super::super::runtime::{Policy, Runtime};
    use super::*;
    use crate::log::core::{Kept, Options};
    use crate::log::disk::format::IDENTITY;
    use crate::log::recovery::{format, open};
    use crate::media::{Access, FileDrive, Memory};
    use std::panic::{AssertUnwindSafe, catch_unwind};
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::Instant;

    /// A drive whose readers panic once it strikes.
    struct Deadly {
        drive: FileDrive,
        strikes: AtomicBool,
    }

    impl Drive for Deadly {
        fn size(&self) -> u64 {
            self.drive.size()
        }

        fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
            assert!(!self.strikes.load(Ordering::SeqCst), "it strikes");
            self.drive.read(at, buf)
        }

        fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
            self.drive.write(at, data)
        }

        fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
            self.drive.zero(at, len)
        }

        fn flush(&self) -> Result<(), DriveError> {
            self.drive.flush()
        }
    }

    fn eventually(what: &str, is_so: impl Fn() -> bool) {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(60), "{what}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    #[test]
    fn a_reader_that_ends_early_keeps_nothing_in_the_log() {
        let dir = tempfile::tempdir().unwrap();
        let drive = |name, bytes| {
            let path = dir.path().join(name);
            std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
            FileDrive::open(&path, Access::Exclusive).unwrap()
        };
        let (drive, backing) = (drive("log", 16 << 20), Arc::new(drive("backing", 1 << 20)));
        let log = Arc::new(Deadly { drive, strikes: AtomicBool::new(false) });
        format(&*log, [7; 16], [0; IDENTITY], 256, 64 << 10).unwrap();
        let kept = Kept::new(&Memory::default()).unwrap();
        let options = Options { keep_percent: 50, ..Options::default() };
        let (core, _) = open(&*log, options, 1000, false, kept).unwrap();
        let core = Arc::new(Mutex::new(core));
        let [log_too, below]: [Arc<dyn Drive>; 2] = [log.clone(), backing.clone()];
        let logged = Logged::new(Arc::clone(&core), Arc::clone(&log_too), Arc::clone(&below));
        let (drive, logged) =
            (LogReadDrive::new(Arc::clone(&core), log_too, below), Arc::new(logged));
        let none = Algorithm::None;
        let runtime = Runtime::start(&logged, Policy::default(), none, None).unwrap();
        logged.write(&mut LogIoContext::new(none), 3, &[[5; BLOCK_SIZE]]).unwrap();
        runtime.drain(true);
        eventually("it is not written back", || core.lock().is_clean());
        // The backing store gets other content, to show that the log was read.
        backing.write(3 * BLOCK, &[6; BLOCK_SIZE]).unwrap();
        let mut out = [0; BLOCK_SIZE];
        drive.read(3 * BLOCK, &mut out).unwrap();
        assert_eq!(out, [5; BLOCK_SIZE]);
        log.strikes.store(true, Ordering::SeqCst);
        let ended = catch_unwind(AssertUnwindSafe(|| drive.read(3 * BLOCK, &mut out)));
        assert!(ended.is_err());
        assert!(core.lock().stats().segments_clean > 0);
        logged.keep(0);
        eventually("the segment is still pinned", || core.lock().stats().segments_clean == 0);
        runtime.close(&crate::media::ChangeCounter::default).unwrap();
    }
}

//! Schedules of a log's threads while drives fail, under [shuttle](https://docs.rs/shuttle). The
//! tests wait with the product's code, and a drive failure is an event like any other. A cycle of
//! waits shows as a schedule that never ends; bugs of that kind are planted and must be found.
//!
//! Built only with `scripts/rustc-shuttle`; a failure prints the schedule that replays it.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used)]

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU8, Ordering};
use shuttle::thread;
use std::sync::Arc;
use std::time::Instant;
use ztier::device::{Algorithm, Channel, Device, IoError, LogOptions, LogVolume, Request};
use ztier::log;
use ztier::log::Policy;
use ztier::log::disk::format::{DATA_MIN, IDENTITY};
use ztier::log::run::planted::{Bug, plant};
use ztier::media::{Action, Drive, DriveError};
use ztier_schedules::hold_and_find;

const BLOCK: usize = 4096;
const BLOCKS: u64 = 64;
const SEGMENT: u32 = 32 << 10;
/// Segments of the log: the log reserves two, and seven blocks fill one.
const SEGMENTS: u64 = 10;

const READS: u8 = 1;
const WRITES: u8 = 2;
const FLUSHES: u8 = 4;
const ALL: u8 = READS | WRITES | FLUSHES;

/// A drive that fails while its switch is set. shuttle may switch threads before and after each
/// action.
struct Faulty {
    bytes: Mutex<Vec<u8>>,
    fails: AtomicU8,
}

impl Faulty {
    fn new(size: u64) -> Arc<Self> {
        let bytes = Mutex::new(vec![0; size as usize]);
        Arc::new(Self { bytes, fails: AtomicU8::new(0) })
    }

    fn fail(&self, what: u8) {
        self.fails.store(what, Ordering::SeqCst);
    }

    fn act(
        &self,
        (action, bit): (Action, u8),
        (at, len): (u64, usize),
        act: impl FnOnce(&mut [u8]),
    ) -> Result<(), DriveError> {
        let mut bytes = self.bytes.lock().unwrap();
        if self.fails.load(Ordering::SeqCst) & bit != 0 {
            return Err(DriveError { action, at, len: len as u64, errno: 5 });
        }
        act(&mut bytes[at as usize..at as usize + len]);
        Ok(())
    }
}

impl Drive for Faulty {
    fn size(&self) -> u64 {
        self.bytes.lock().unwrap().len() as u64
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.act((Action::Read, READS), (at, buf.len()), |bytes| buf.copy_from_slice(bytes))
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        self.act((Action::Write, WRITES), (at, data.len()), |bytes| bytes.copy_from_slice(data))
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        self.act((Action::Zero, WRITES), (at, len as usize), |bytes| bytes.fill(0))
    }

    fn flush(&self) -> Result<(), DriveError> {
        self.act((Action::Flush, FLUSHES), (0, 0), |_| {})
    }
}

/// A volume on two such drives.
struct Rig {
    log: Arc<Faulty>,
    backing: Arc<Faulty>,
    volume: Arc<LogVolume>,
}

impl Rig {
    fn new(enabled: bool) -> Self {
        let log = Faulty::new(DATA_MIN + SEGMENTS * u64::from(SEGMENT));
        let backing = Faulty::new(BLOCKS * BLOCK as u64);
        log::format(&*log, [7; 16], [0; IDENTITY], BLOCKS, SEGMENT).unwrap();
        let volume = Self::open(&log, &backing, enabled);
        Self { log, backing, volume }
    }

    fn open(log: &Arc<Faulty>, backing: &Arc<Faulty>, enabled: bool) -> Arc<LogVolume> {
        let options = LogOptions {
            algorithm: Algorithm::None,
            policy: Policy { enabled, ..Policy::default() },
            log: log::Options { gather_part: 0, ..log::Options::default() },
            ..LogOptions::default()
        };
        let (log, backing) = (Arc::clone(log) as Arc<dyn Drive>, Arc::clone(backing));
        let volume = LogVolume::open(log, backing, options, 1000).unwrap();
        volume.start(None).unwrap();
        volume
    }

    /// Starts a thread that writes each of its own blocks twice, and flushes. It returns the
    /// version that its last flush covers.
    fn writer(&self, first: u64, count: u64) -> thread::JoinHandle<u64> {
        let volume = Arc::clone(&self.volume);
        thread::spawn(move || {
            let mut channel = volume.channel();
            let mut covered = 0;
            for version in 1..=2 {
                let written = (first..first + count)
                    .all(|block| write(&mut *channel, block, version).is_ok());
                if written && flush(&mut *channel).is_ok() {
                    covered = version;
                }
            }
            covered
        })
    }

    /// Asserts that no block is older than the version that a flush has covered.
    fn holds(&self, first: u64, count: u64, covered: u64) {
        let mut channel = Arc::clone(&self.volume).channel();
        for block in first..first + count {
            let version = read(&mut *channel, block).unwrap();
            assert!((covered..=2).contains(&version), "block {block}: {version} of {covered}");
        }
    }
}

/// Bytes that encode block and version and differ for each.
fn content(block: u64, version: u64) -> Vec<u8> {
    let words = (0..BLOCK as u64 / 8).map(|i| match i {
        0 => version,
        _ => (block << 32 | version << 16 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15),
    });
    words.flat_map(u64::to_le_bytes).collect()
}

fn write(channel: &mut dyn Channel, block: u64, version: u64) -> Result<(), IoError> {
    let data = content(block, version);
    let offset = block * BLOCK as u64;
    channel.submit(Request::Write { offset, data: &data, fua: false }, Instant::now())
}

fn flush(channel: &mut dyn Channel) -> Result<(), IoError> {
    channel.submit(Request::Flush, Instant::now())
}

/// The version that a block has.
fn read(channel: &mut dyn Channel, block: u64) -> Result<u64, IoError> {
    let mut buf = vec![0; BLOCK];
    let offset = block * BLOCK as u64;
    channel.submit(Request::Read { offset, buf: &mut buf }, Instant::now())?;
    let version = u64::from_le_bytes(buf[..8].try_into().unwrap());
    assert!(version == 0 || buf == content(block, version), "block {block} is torn");
    Ok(version)
}

/// Waits for a drain, as `ztier drain` does.
fn drain(volume: &LogVolume) {
    let until = volume.drain(true);
    let before = volume.stats().log.unwrap().windows_failed;
    loop {
        let log = volume.stats().log.unwrap();
        let failed = log.failed && !log.rescuing || log.windows_failed > before + 3;
        if log.clean || log.segment_tail >= until || failed {
            return;
        }
        thread::yield_now();
    }
}

/// Two writers, a drain, and a log that fails at any time: all three calls return.
fn a_drain_while_the_log_fails() {
    let rig = Rig::new(false);
    let writers = [rig.writer(0, 3), rig.writer(16, 3)];
    let log = Arc::clone(&rig.log);
    let breaker = thread::spawn(move || log.fail(WRITES | FLUSHES));
    drain(&rig.volume);
    let covered = writers.map(|writer| writer.join().unwrap());
    breaker.join().unwrap();
    rig.holds(0, 3, covered[0]);
    rig.holds(16, 3, covered[1]);
    let _ = rig.volume.close();
}

/// A writer fills the log while the backing store fails: the write returns.
fn a_full_log_while_the_backing_store_fails() {
    let rig = Rig::new(true);
    let backing = Arc::clone(&rig.backing);
    let breaker = thread::spawn(move || backing.fail(WRITES));
    let writer = rig.writer(0, 40);
    let covered = writer.join().unwrap();
    breaker.join().unwrap();
    rig.backing.fail(0);
    rig.holds(0, 40, covered);
    rig.volume.close().unwrap();
}

/// Either drive fails for a while, at any request: flushed data is there, and the volume goes on.
fn drives_that_come_back() {
    let rig = Rig::new(true);
    let writer = rig.writer(0, 9);
    let (log, backing) = (Arc::clone(&rig.log), Arc::clone(&rig.backing));
    let breaker = thread::spawn(move || {
        log.fail(ALL);
        thread::yield_now();
        log.fail(0);
        backing.fail(ALL);
        thread::yield_now();
        backing.fail(0);
    });
    let covered = writer.join().unwrap();
    breaker.join().unwrap();
    rig.holds(0, 9, covered);
    let mut channel = Arc::clone(&rig.volume).channel();
    while write(&mut *channel, 30, 1).and_then(|()| flush(&mut *channel)).is_err() {
        thread::yield_now();
    }
    assert_eq!(read(&mut *channel, 30), Ok(1));
    drop(channel);
    rig.volume.close().unwrap();
}

/// A volume shuts down while its log fails: the shutdown ends, and no flushed data is lost.
fn down_while_the_log_fails() {
    let rig = Rig::new(true);
    let covered = rig.writer(0, 9).join().unwrap();
    let log = Arc::clone(&rig.log);
    let breaker = thread::spawn(move || log.fail(ALL));
    let closed = rig.volume.close();
    breaker.join().unwrap();
    rig.log.fail(0);
    if closed.is_err() {
        let again = Rig::open(&rig.log, &rig.backing, true);
        let rig = Rig { volume: again, ..rig };
        rig.holds(0, 9, covered);
        rig.volume.close().unwrap();
    }
}

#[test]
fn threads_of_a_log_never_wait_for_each_other_and_bugs_are_found() {
    hold_and_find(
        &[
            a_drain_while_the_log_fails,
            a_full_log_while_the_backing_store_fails,
            drives_that_come_back,
            down_while_the_log_fails,
        ],
        &[
            (Bug::DrainAwaitsRescue, a_drain_while_the_log_fails as fn()),
            (Bug::WaitForRoomForEver, a_full_log_while_the_backing_store_fails),
            (Bug::ForgetFailedWindows, a_full_log_while_the_backing_store_fails),
            (Bug::CloseAwaitsRescue, down_while_the_log_fails),
        ],
        plant,
    );
}

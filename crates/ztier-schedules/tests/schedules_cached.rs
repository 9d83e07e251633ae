//! Schedules of the read cache: misses, writes, eviction and zeroing of one block in thousands of
//! interleavings; each planted bug must be found.
//!
//! Built only with `scripts/rustc-shuttle`; a failure prints the schedule that replays it.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used)]

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;
use std::sync::Arc;
use ztier::cache::Cached;
use ztier::cache::planted::{Bug, plant};
use ztier::media::{Action, Drive, DriveError};
use ztier_schedules::hold_and_find;

const BLOCK: usize = 4096;
/// The smallest limit with room for several requests at once.
const LIMIT: u64 = 2 << 20;
const BLOCKS: usize = 1024;

/// A drive that yields to other threads before and after every request, and fails writes of one
/// block, and flushes after which it lacks what was written to one block.
struct Slow {
    /// The version of each block.
    versions: Mutex<Vec<u32>>,
    fails: usize,
    forgets: usize,
}

/// A block that no drive has.
const NONE: usize = BLOCKS;

impl Slow {
    /// A point at which shuttle may switch threads.
    fn pause(&self) {
        drop(self.versions.lock().unwrap());
    }
}

impl Drive for Slow {
    fn size(&self) -> u64 {
        (BLOCKS * BLOCK) as u64
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        for (i, out) in buf.chunks_mut(BLOCK).enumerate() {
            let block = at as usize / BLOCK + i;
            let version = self.versions.lock().unwrap()[block];
            out.copy_from_slice(&content(block, version));
        }
        self.pause();
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        for (i, data) in data.chunks(BLOCK).enumerate() {
            let block = at as usize / BLOCK + i;
            if block == self.fails {
                let len = data.len() as u64;
                return Err(DriveError { action: Action::Write, at, len, errno: 5 });
            }
            self.versions.lock().unwrap()[block] = version(data, block);
        }
        self.pause();
        Ok(())
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        for block in at as usize / BLOCK..(at + len) as usize / BLOCK {
            self.versions.lock().unwrap()[block] = 0;
        }
        self.pause();
        Ok(())
    }

    fn flush(&self) -> Result<(), DriveError> {
        if self.forgets == NONE {
            return Ok(());
        }
        self.versions.lock().unwrap()[self.forgets] = 0;
        self.pause();
        Err(DriveError { action: Action::Flush, at: 0, len: 0, errno: 5 })
    }
}

/// Incompressible, so that few blocks fill a segment. Version 0 is zeros.
fn content(block: usize, version: u32) -> Vec<u8> {
    if version == 0 {
        return vec![0; BLOCK];
    }
    let mut x = (block as u64) << 32 | u64::from(version);
    let mut data = Vec::with_capacity(BLOCK);
    data.extend_from_slice(&x.to_le_bytes());
    while data.len() < BLOCK {
        x = x.wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(17) ^ 0x5555;
        data.extend_from_slice(&x.to_le_bytes());
    }
    data
}

fn version(data: &[u8], block: usize) -> u32 {
    let word = u64::from_le_bytes(data[..8].try_into().unwrap());
    assert!(data == content(block, word as u32), "block {block} is torn or another's");
    word as u32
}

fn drive(fails: usize) -> (Arc<Slow>, Arc<Cached>) {
    cache_of(Slow { versions: Mutex::new(vec![0; BLOCKS]), fails, forgets: NONE })
}

fn cache_of(slow: Slow) -> (Arc<Slow>, Arc<Cached>) {
    let drive = Arc::new(slow);
    let cached = Cached::over(Arc::clone(&drive) as Arc<dyn Drive>, LIMIT, LIMIT).unwrap();
    (drive, cached)
}

fn write(cached: &Cached, block: usize, version: u32) -> bool {
    cached.write((block * BLOCK) as u64, &content(block, version)).is_ok()
}

fn read(cached: &Cached, block: usize) -> u32 {
    let mut buf = vec![0; BLOCK];
    cached.read((block * BLOCK) as u64, &mut buf).unwrap();
    version(&buf, block)
}

/// When all threads have ended: reads return what the drive has, and nothing is in flight.
fn check(drive: &Slow, cached: &Cached, blocks: &[usize]) {
    cached.audit().unwrap();
    for block in blocks {
        let there = drive.versions.lock().unwrap()[*block];
        assert_eq!(read(cached, *block), there, "block {block} is stale");
    }
}

/// One thread writes versions in order, two read and miss: no read returns a version older than the
/// last one acknowledged before it began.
fn readers_beside_a_writer() {
    let (drive, cached) = drive(NONE);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let reader = {
        let (cached, acknowledged) = (Arc::clone(&cached), Arc::clone(&acknowledged));
        move || {
            for _ in 0..2 {
                let least = acknowledged.load(Ordering::SeqCst);
                assert!(u64::from(read(&cached, 5)) >= least, "stale");
                // Misses and hits in one request.
                let mut buf = vec![0; 3 * BLOCK];
                cached.read(4 * BLOCK as u64, &mut buf).unwrap();
                assert!(u64::from(version(&buf[BLOCK..2 * BLOCK], 5)) >= least, "stale");
            }
        }
    };
    let readers = [thread::spawn(reader.clone()), thread::spawn(reader)];
    for version in 1..3 {
        assert!(write(&cached, 5, version));
        acknowledged.store(u64::from(version), Ordering::SeqCst);
    }
    readers.into_iter().for_each(|reader| reader.join().unwrap());
    check(&drive, &cached, &[4, 5, 6]);
}

/// Two threads write the same blocks; the drive decides which write is last.
fn writers_of_the_same_blocks() {
    let (drive, cached) = drive(NONE);
    let writers = [1, 2].map(|version| {
        let cached = Arc::clone(&cached);
        thread::spawn(move || {
            let first = version as usize;
            let both = [content(first, version), content(first + 1, version)].concat();
            cached.write((first * BLOCK) as u64, &both).unwrap();
            assert!(write(&cached, 2, version + 2));
        })
    });
    read(&cached, 2);
    writers.into_iter().for_each(|writer| writer.join().unwrap());
    check(&drive, &cached, &[1, 2, 3]);
}

/// Blocks come and go at the same memory addresses while other blocks are read, written and zeroed.
fn eviction_beside_everything() {
    let (drive, cached) = drive(NONE);
    drive.versions.lock().unwrap()[110..115].fill(1);
    for block in 100..106 {
        assert!(write(&cached, block, 1));
    }
    let evictor = {
        let cached = Arc::clone(&cached);
        thread::spawn(move || {
            cached.set_limit(0).unwrap();
            cached.set_limit(LIMIT).unwrap();
            for block in 110..115 {
                read(&cached, block);
            }
        })
    };
    let zeroer = {
        let cached = Arc::clone(&cached);
        thread::spawn(move || {
            cached.zero(104 * BLOCK as u64, BLOCK as u64).unwrap();
            assert_eq!(read(&cached, 104), 0, "zeros are read at once");
            assert!(write(&cached, 103, 2));
        })
    };
    for block in [100, 101, 103, 104] {
        read(&cached, block);
    }
    evictor.join().unwrap();
    zeroer.join().unwrap();
    assert_eq!((read(&cached, 103), read(&cached, 104)), (2, 0));
    check(&drive, &cached, &[100, 101, 102, 103, 104, 105, 110, 114]);
}

/// A thread zeroes the whole drive while another reads and writes a block.
fn zeroes_of_everything() {
    let (drive, cached) = drive(NONE);
    assert!(write(&cached, 7, 1));
    let zeroer = {
        let cached = Arc::clone(&cached);
        thread::spawn(move || cached.zero(0, (BLOCKS * BLOCK) as u64).unwrap())
    };
    let writer = {
        let cached = Arc::clone(&cached);
        thread::spawn(move || assert!(write(&cached, 8, 1)))
    };
    read(&cached, 7);
    read(&cached, 8);
    zeroer.join().unwrap();
    writer.join().unwrap();
    assert_eq!(read(&cached, 7), 0);
    check(&drive, &cached, &[7, 8]);
}

/// A write fails while threads read the block.
fn a_write_that_fails() {
    let (drive, cached) = drive(9);
    let reader = {
        let cached = Arc::clone(&cached);
        thread::spawn(move || assert_eq!((read(&cached, 9), read(&cached, 9)), (0, 0)))
    };
    assert!(!write(&cached, 9, 1));
    assert_eq!(read(&cached, 9), 0, "it was never stored");
    reader.join().unwrap();
    check(&drive, &cached, &[9]);
}

/// Pages of each version are dropped by the page cache while the block is written, read and zeroed.
fn dropped_pages_beside_a_writer() {
    let (drive, cached) = drive(NONE);
    cached.follow(0).unwrap();
    let acknowledged = Arc::new(AtomicU64::new(0));
    let dropper = {
        let cached = Arc::clone(&cached);
        thread::spawn(move || {
            for version in [0, 1, 2, 1] {
                cached.dropped(&content(5, version).try_into().unwrap());
            }
        })
    };
    let reader = {
        let (cached, acknowledged) = (Arc::clone(&cached), Arc::clone(&acknowledged));
        thread::spawn(move || {
            for _ in 0..2 {
                let least = acknowledged.load(Ordering::SeqCst);
                assert!(u64::from(read(&cached, 5)) >= least, "stale");
            }
        })
    };
    for version in 1..3 {
        assert!(write(&cached, 5, version));
        acknowledged.store(u64::from(version), Ordering::SeqCst);
    }
    [dropper, reader].into_iter().for_each(|thread| thread.join().unwrap());
    check(&drive, &cached, &[5]);
    cached.zero(5 * BLOCK as u64, BLOCK as u64).unwrap();
    cached.dropped(&content(5, 2).try_into().unwrap());
    check(&drive, &cached, &[5]);
}

/// A copy goes to the page cache while the block is written; then its page is dropped.
fn a_copy_that_goes_beside_a_writer() {
    let (drive, cached) = drive(NONE);
    cached.follow(0).unwrap();
    assert!(write(&cached, 5, 1));
    let old = content(5, 1).try_into().unwrap();
    assert!(cached.dropped(&old));
    let reader = {
        let cached = Arc::clone(&cached);
        thread::spawn(move || assert!(read(&cached, 5) >= 1))
    };
    assert!(write(&cached, 5, 2));
    reader.join().unwrap();
    assert!(!cached.dropped(&old), "the block has something else");
    check(&drive, &cached, &[5]);
}

/// A page with what a write was to store, which failed, is dropped.
fn a_dropped_page_of_a_write_that_failed() {
    let (drive, cached) = drive(9);
    cached.follow(0).unwrap();
    assert_eq!(read(&cached, 9), 0);
    let dropper = {
        let cached = Arc::clone(&cached);
        thread::spawn(move || cached.dropped(&content(9, 1).try_into().unwrap()))
    };
    assert!(!write(&cached, 9, 1));
    dropper.join().unwrap();
    cached.dropped(&content(9, 1).try_into().unwrap());
    assert_eq!(read(&cached, 9), 0, "it was never stored");
    check(&drive, &cached, &[9]);
}

/// A page is dropped while its block is zeroed with all others.
fn a_dropped_page_of_a_zeroed_block() {
    let (drive, cached) = drive(NONE);
    cached.follow(0).unwrap();
    assert!(write(&cached, 7, 1));
    let page = content(7, 1).try_into().unwrap();
    let zeroer = {
        let cached = Arc::clone(&cached);
        thread::spawn(move || cached.zero(0, (BLOCKS * BLOCK) as u64).unwrap())
    };
    cached.dropped(&page);
    zeroer.join().unwrap();
    assert!(!cached.dropped(&page), "the block has zeros");
    check(&drive, &cached, &[7]);
}

/// A flush fails, and the drive lacks what was written, while the block is read and its page is
/// dropped.
fn a_flush_that_fails() {
    let versions = Mutex::new(vec![0; BLOCKS]);
    let (drive, cached) = cache_of(Slow { versions, fails: NONE, forgets: 5 });
    cached.follow(0).unwrap();
    assert!(write(&cached, 5, 1));
    let page = content(5, 1).try_into().unwrap();
    let reader = {
        let cached = Arc::clone(&cached);
        thread::spawn(move || read(&cached, 5))
    };
    let dropper = {
        let cached = Arc::clone(&cached);
        thread::spawn(move || cached.dropped(&page))
    };
    assert!(cached.flush().is_err());
    assert!(reader.join().unwrap() <= 1);
    dropper.join().unwrap();
    assert!(!cached.dropped(&page), "the block has something else");
    check(&drive, &cached, &[5]);
}

/// A page is dropped, and its block is written before the page is kept.
fn a_dropped_page_beside_a_writer() {
    let (drive, cached) = drive(NONE);
    cached.follow(0).unwrap();
    assert!(write(&cached, 5, 1));
    let dropper = {
        let cached = Arc::clone(&cached);
        thread::spawn(move || cached.dropped(&content(5, 1).try_into().unwrap()))
    };
    assert!(write(&cached, 5, 2));
    dropper.join().unwrap();
    check(&drive, &cached, &[5]);
}

const TESTS: [fn(); 11] = [
    dropped_pages_beside_a_writer,
    readers_beside_a_writer,
    writers_of_the_same_blocks,
    eviction_beside_everything,
    zeroes_of_everything,
    a_write_that_fails,
    a_dropped_page_of_a_write_that_failed,
    a_copy_that_goes_beside_a_writer,
    a_dropped_page_of_a_zeroed_block,
    a_flush_that_fails,
    a_dropped_page_beside_a_writer,
];

/// One test function: a planted bug holds for the whole process, so no other test may run
/// meanwhile.
#[test]
fn every_schedule_holds_and_every_planted_bug_is_found() {
    let bugs: [(Bug, fn()); 15] = [
        (Bug::SealOverWrite, TESTS[0]),
        (Bug::SealGivenOverWrite, TESTS[7]),
        (Bug::SealOverZero, TESTS[8]),
        (Bug::SealOverFailedFlush, TESTS[9]),
        (Bug::KeepOverFailedFlush, TESTS[9]),
        (Bug::KeepDroppedOverWrite, TESTS[10]),
        (Bug::FillOverWrite, TESTS[0]),
        (Bug::FillBesideWriter, TESTS[0]),
        (Bug::FillOverWrite, TESTS[1]),
        (Bug::FillBesideWriter, TESTS[1]),
        (Bug::KeepOverlappingWrites, TESTS[2]),
        (Bug::ServeWhateverIsThere, TESTS[3]),
        (Bug::KeepZeroed, TESTS[4]),
        (Bug::KeepFailedWrite, TESTS[5]),
        (Bug::KeepFailedWrite, TESTS[6]),
    ];
    hold_and_find(&TESTS, &bugs, plant);
}

//! The read cache against its drive alone: with tiny limits, with failures at any moment, with real
//! threads.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used)]

use crate::support::ram_drive::RamDrive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use ztier::cache::Cached;
use ztier::cache::policy::Rules;
use ztier::device::{Device, IoError, PassthroughVolume, Request};
use ztier::media::{Action, Drive, DriveError};
use ztier::stats::CacheStats;

const BLOCK: u64 = 4096;
const BLOCKS: u64 = 4096;
const MIB: u64 = 1 << 20;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Content that encodes block and version; some blocks compress, some do not, some are one repeated
/// word.
fn fill(out: &mut [u8], block: u64, version: u64) {
    let mut x = (block << 32 | version).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let noise = [0, 64, 128, 255][(block.wrapping_mul(7) % 4) as usize];
    for (i, word) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let noisy = random(&mut x) >> 56 < noise && i > 1;
        *word = if noisy { x } else { block << 32 | version }.to_le_bytes();
    }
}

fn content(block: u64, version: u64) -> Vec<u8> {
    let mut out = vec![0; BLOCK as usize];
    fill(&mut out, block, version);
    out
}

/// The version of a block; panics unless all of it has the same version.
fn version(data: &[u8], block: u64) -> u64 {
    let word = u64::from_le_bytes(data[..8].try_into().unwrap());
    if word == 0 {
        assert!(data.iter().all(|b| *b == 0), "block {block} is torn");
        return 0;
    }
    assert!(data == content(block, word & 0xffff_ffff), "block {block} is torn or another's");
    word & 0xffff_ffff
}

/// A drive whose requests fail now and then: a failed write has stored some of its blocks.
struct Flaky {
    bytes: Mutex<Vec<u8>>,
    rng: Mutex<u64>,
    /// One request in `every` fails; 0: none.
    every: AtomicU64,
}

impl Flaky {
    fn new(every: u64) -> Self {
        let bytes = Mutex::new(vec![0; (BLOCKS * BLOCK) as usize]);
        Self { bytes, rng: Mutex::new(0x5eed), every: AtomicU64::new(every) }
    }

    fn fails(&self) -> bool {
        let every = self.every.load(Ordering::Relaxed);
        every > 0 && random(&mut self.rng.lock().unwrap()).is_multiple_of(every)
    }

    /// Changes block after block, so that other threads may run in between.
    fn change(
        &self,
        action: Action,
        at: u64,
        len: u64,
        data: Option<&[u8]>,
    ) -> Result<(), DriveError> {
        let fails = self.fails();
        for from in (0..len as usize).step_by(BLOCK as usize) {
            if fails && random(&mut self.rng.lock().unwrap()).is_multiple_of(2) {
                continue;
            }
            let mut bytes = self.bytes.lock().unwrap();
            let out = &mut bytes[at as usize + from..][..BLOCK as usize];
            match data {
                Some(data) => out.copy_from_slice(&data[from..from + BLOCK as usize]),
                None => out.fill(0),
            }
        }
        if fails { Err(DriveError { action, at, len, errno: 5 }) } else { Ok(()) }
    }
}

impl Drive for Flaky {
    fn size(&self) -> u64 {
        BLOCKS * BLOCK
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        if self.fails() {
            return Err(DriveError { action: Action::Read, at, len: buf.len() as u64, errno: 5 });
        }
        for (i, out) in buf.chunks_mut(BLOCK as usize).enumerate() {
            let from = at as usize + i * BLOCK as usize;
            out.copy_from_slice(&self.bytes.lock().unwrap()[from..from + out.len()]);
        }
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        self.change(Action::Write, at, data.len() as u64, Some(data))
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        self.change(Action::Zero, at, len, None)
    }

    fn flush(&self) -> Result<(), DriveError> {
        match self.fails() {
            true => Err(DriveError { action: Action::Flush, at: 0, len: 0, errno: 5 }),
            false => Ok(()),
        }
    }
}

fn range(rng: &mut u64) -> (u64, u64) {
    // Half of all requests go to a small part, so that there are hits.
    let most = if random(rng).is_multiple_of(2) { BLOCKS / 8 } else { BLOCKS };
    let first = random(rng) % most;
    let count = match random(rng) % 16 {
        0 => random(rng) % 1500,
        1..4 => random(rng) % 100,
        _ => random(rng) % 8,
    };
    (first, (count + 1).min(BLOCKS - first))
}

/// One thread makes random requests for whole blocks and parts of blocks, while the limit changes:
/// reads return the content of the drive.
///
/// If the cache `follows` the page cache, pages that were read at any time before come back to it.
fn model(seed: u64, limit: u64, rules: Rules, every: u64, follows: bool) {
    let drive = Arc::new(Flaky::new(every));
    let cached = Cached::with(Arc::clone(&drive) as Arc<dyn Drive>, rules, limit, 8 * MIB).unwrap();
    let volume = PassthroughVolume::cached(Arc::clone(&cached));
    let mut channel = Arc::clone(&volume).channel();
    let mut rng = seed;
    let mut pages: Vec<[u8; BLOCK as usize]> = Vec::new();
    if follows {
        cached.follow(0).unwrap();
    }
    let (mut buf, mut failed, mut now) = (vec![0; (BLOCKS * BLOCK) as usize], 0, limit);
    for step in 1..4000u64 {
        let (first, count) = range(&mut rng);
        let parts = random(&mut rng).is_multiple_of(4);
        let skew = if parts { random(&mut rng) % 4095 } else { 0 };
        let (offset, len) = (first * BLOCK + skew, (count * BLOCK - skew * 2 % 4096).min(6 * MIB));
        let len = len.min(BLOCKS * BLOCK - offset);
        let part = &mut buf[..len as usize];
        let result = match random(&mut rng) % 16 {
            0..4 => {
                (first..).zip(part.chunks_mut(BLOCK as usize)).for_each(|(b, c)| fill(c, b, step));
                channel.submit(Request::Write { offset, data: part, fua: false }, Instant::now())
            }
            4 => channel.submit(Request::Discard { offset, len }, Instant::now()),
            5 if step.is_multiple_of(16) => channel.submit(Request::Flush, Instant::now()),
            6 if step.is_multiple_of(32) => {
                now = [0, limit, 2 * limit, MIB][(random(&mut rng) % 4) as usize];
                cached.set_limit(now).unwrap();
                Ok(())
            }
            _ => {
                let read = channel.submit(Request::Read { offset, buf: part }, Instant::now());
                let there = &drive.bytes.lock().unwrap()[offset as usize..][..len as usize];
                assert!(read.is_err() || *part == *there, "step {step}: not what the drive has");
                if read.is_ok() && follows {
                    pages.extend(part.as_chunks().0.iter().take(64));
                }
                read
            }
        };
        for _ in 0..pages.len().min(32) {
            let at = random(&mut rng) as usize % pages.len();
            cached.dropped(&pages[at]);
            if random(&mut rng).is_multiple_of(4) {
                pages.swap_remove(at);
            }
        }
        pages.truncate(2000);
        failed += u64::from(result.is_err());
        assert!(matches!(result, Ok(()) | Err(IoError::Drive(5))), "{result:?}");
        if step.is_multiple_of(16) {
            cached.audit().unwrap();
            assert!(cached.used() <= now.max(64 << 10), "{} of {now}", cached.used());
        }
    }
    let stats = cached.stats();
    assert!(stats.hit_blocks > 1000 && stats.evicted_blocks > 1000, "{stats:?}");
    let returned = stats.dropped_pages.min(stats.given_blocks);
    assert!(stats.exclusive == follows && (returned > 1000) == follows, "{stats:?}");
    assert!(stats.damaged_copies == 0 && (failed > 0) == (every > 0));
}

#[test]
fn what_is_read_is_what_the_drive_has() {
    for (seed, limit) in [(1, MIB), (2, 2 * MIB + 5000), (3, 4 * MIB), (4, 6 * MIB)] {
        model(seed, limit, Rules::S3_FIFO, 0, false);
        model(seed + 10, limit, Rules::CLOCK, 0, false);
        model(seed + 20, limit, Rules::default(), 0, true);
    }
}

#[test]
fn whatever_fails() {
    for (seed, limit) in [(5, MIB), (6, 4 * MIB)] {
        model(seed, limit, Rules::S3_FIFO, 20, false);
        model(seed + 20, limit, Rules::default(), 20, true);
    }
}

/// Threads write their own blocks and overlapping ranges, all at the same time, and read the blocks
/// of all threads: no read returns a version older than the last one acknowledged before it began.
#[test]
fn threads_see_what_was_acknowledged() {
    const THREADS: u64 = 4;
    for (limit, every, follows) in
        [(MIB, 0, false), (4 * MIB, 0, false), (4 * MIB, 50, false), (4 * MIB, 50, true)]
    {
        let drive = Arc::new(Flaky::new(every));
        let drive_too = Arc::clone(&drive) as Arc<dyn Drive>;
        let cached = Cached::over(drive_too, limit, 8 * MIB).unwrap();
        let acknowledged: Vec<AtomicU64> = (0..BLOCKS).map(|_| AtomicU64::new(0)).collect();
        let done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (cached, acknowledged, done) = (&cached, &acknowledged, &done);
            for t in 0..THREADS {
                scope.spawn(move || user(cached, acknowledged, t, THREADS));
            }
            if follows {
                cached.follow(0).unwrap();
                scope.spawn(move || dropper(cached));
            }
            scope.spawn(move || {
                let mut limits = [MIB, limit, 0, limit].into_iter().cycle();
                while !done.load(Ordering::Relaxed) {
                    std::thread::sleep(Duration::from_millis(20));
                    cached.set_limit(limits.next().unwrap()).unwrap();
                }
            });
            std::thread::sleep(Duration::from_millis(1500));
            // More, if other processes used the machine meanwhile.
            let end = Instant::now() + Duration::from_secs(60);
            while !had_enough(&cached.stats()) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
            done.store(true, Ordering::Relaxed);
            STOP.store(true, Ordering::Relaxed);
        });
        STOP.store(false, Ordering::Relaxed);
        drive.every.store(0, Ordering::Relaxed);
        cached.audit().unwrap();
        let mut all = vec![0; (BLOCKS * BLOCK) as usize];
        cached.read(0, &mut all).unwrap();
        assert!(all == *drive.bytes.lock().unwrap(), "a copy is not what the drive has");
        let stats = cached.stats();
        assert!(had_enough(&stats) && stats.damaged_copies == 0, "{stats:?}");
    }
}

/// A page cache that reads blocks, and drops them a little later.
fn dropper(cached: &Cached) {
    let (mut rng, mut pages) = (5, std::collections::VecDeque::new());
    while !STOP.load(Ordering::Relaxed) {
        let mut page = [0; BLOCK as usize];
        let block = random(&mut rng) % (BLOCKS / 64);
        if cached.read(block * BLOCK, &mut page).is_ok() {
            pages.push_back(page);
        }
        if pages.len() > 20
            && let Some(page) = pages.pop_front()
        {
            cached.dropped(&page);
        }
    }
}

/// Whether threads have met often enough.
fn had_enough(stats: &CacheStats) -> bool {
    stats.hit_blocks > 1000 && stats.evicted_blocks > 100 && stats.lost_blocks > 0
}

static STOP: AtomicBool = AtomicBool::new(false);

/// A thread owns the `t`-th of `threads` neighbouring blocks: only that thread writes versions
/// there, in order. All threads write to the second half of the drive.
fn user(cached: &Cached, acknowledged: &[AtomicU64], t: u64, threads: u64) {
    let mut rng = 77 + t;
    let mut buf = vec![0; 256 * BLOCK as usize];
    let mut next = 1u64;
    while !STOP.load(Ordering::Relaxed) {
        let shared = BLOCKS / 2;
        match random(&mut rng) % 8 {
            0 | 1 => {
                let block = random(&mut rng) % (shared / 64 / threads) * threads + t;
                let new = content(block, next);
                // A failed write may have been stored or not.
                if cached.write(block * BLOCK, &new).is_ok() {
                    acknowledged[block as usize].store(next, Ordering::SeqCst);
                }
                next += 1;
            }
            2 => {
                let first = shared + random(&mut rng) % 300;
                let count = 1 + random(&mut rng) % 200;
                let out = &mut buf[..(count * BLOCK) as usize];
                let chunks = out.chunks_mut(BLOCK as usize);
                chunks.enumerate().for_each(|(i, c)| fill(c, first + i as u64, next << 3 | t));
                next += 1;
                let _ = cached.write(first * BLOCK, out);
            }
            3 if random(&mut rng).is_multiple_of(16) => {
                let _ = cached.zero((shared + random(&mut rng) % 300) * BLOCK, 64 * BLOCK);
                if random(&mut rng).is_multiple_of(8) {
                    let _ = cached.zero(shared * BLOCK, 1500 * BLOCK);
                }
            }
            4 => {
                let first = shared + random(&mut rng) % 400;
                let out = &mut buf[..100 * BLOCK as usize];
                if cached.read(first * BLOCK, out).is_ok() {
                    let chunks = out.chunks(BLOCK as usize);
                    for (i, chunk) in chunks.enumerate() {
                        version(chunk, first + i as u64);
                    }
                }
            }
            _ => {
                let first = random(&mut rng) % (shared / 64);
                let count = 1 + random(&mut rng) % 8;
                let least: Vec<u64> = (first..first + count)
                    .map(|block| acknowledged[block as usize].load(Ordering::SeqCst))
                    .collect();
                let out = &mut buf[..(count * BLOCK) as usize];
                if cached.read(first * BLOCK, out).is_ok() {
                    for (i, chunk) in out.chunks(BLOCK as usize).enumerate() {
                        let found = version(chunk, first + i as u64);
                        assert!(found >= least[i], "{found} is older than {}", least[i]);
                    }
                }
            }
        }
    }
}

fn ram(limit: u64, size: u64) -> (Arc<RamDrive>, Arc<Cached>) {
    let drive = Arc::new(RamDrive::new(size));
    let cached = Cached::over(Arc::clone(&drive) as Arc<dyn Drive>, limit, limit).unwrap();
    (drive, cached)
}

fn touch(cached: &Cached, block: u64) -> u64 {
    let mut buf = [0; BLOCK as usize];
    cached.read(block * BLOCK, &mut buf).unwrap();
    version(&buf, block)
}

/// A cache that follows the page cache has what that has dropped, and nothing else.
#[test]
fn what_the_page_cache_has_has_no_copy() {
    let (drive, cached) = ram(16 * MIB, 64 * MIB);
    let blocks = 2000;
    for block in 0..blocks {
        drive.write(block * BLOCK, &content(block, 1)).unwrap();
    }
    cached.follow(0).unwrap();
    let page = |block, version| content(block, version).try_into().unwrap();
    (0..blocks).for_each(|block| assert_eq!(touch(&cached, block * 37 % blocks), 1));
    assert_eq!(cached.stats().blocks, 0, "the page cache has them");
    assert!(cached.dropped(&page(7, 1)) && cached.has(7) && cached.stats().blocks == 1);
    assert!(!cached.dropped(&page(7, 2)) && !cached.dropped(&page(blocks + 1, 1)));
    let reads = drive.reads.load(Ordering::SeqCst);
    assert!(touch(&cached, 7) == 1 && !cached.has(7), "it goes with its hit");
    assert_eq!(drive.reads.load(Ordering::SeqCst), reads);
    assert!(cached.dropped(&page(7, 1)) && cached.has(7));
    // What was written counts, however late a page is.
    cached.write(7 * BLOCK, &content(7, 2)).unwrap();
    assert!(!cached.has(7) && !cached.dropped(&page(7, 1)) && !cached.has(7));
    assert!(cached.dropped(&page(7, 2)) && cached.has(7) && touch(&cached, 7) == 2);
    cached.zero(7 * BLOCK, BLOCK).unwrap();
    assert!(!cached.dropped(&page(7, 2)) && !cached.has(7) && touch(&cached, 7) == 0);
    let mut channel = PassthroughVolume::cached(Arc::clone(&cached)).channel();
    channel
        .submit(Request::Write { offset: 9 * BLOCK, data: &[0; 512], fua: false }, Instant::now())
        .unwrap();
    assert!(!cached.dropped(&page(9, 1)) && !cached.has(9), "a part of it was written");
    drive.broken.store(true, Ordering::SeqCst);
    cached.write(8 * BLOCK, &content(8, 2)).unwrap_err();
    drive.broken.store(false, Ordering::SeqCst);
    assert!(!cached.dropped(&page(8, 1)) && !cached.dropped(&page(8, 2)) && !cached.has(8));
    // Dropped pages fill it as read blocks would, within the limit.
    (100..blocks).for_each(|block| assert!(cached.dropped(&page(block, 1)), "{block}"));
    let stats = cached.stats();
    assert!(stats.blocks > 1800 && stats.used_bytes <= 16 * MIB, "{stats:?}");
    cached.audit().unwrap();
    // What is known outlives small steps of the limit, and no large ones.
    for (limit, is_known) in [(14 * MIB, true), (16 * MIB, true), (8 * MIB, false)] {
        assert_eq!(touch(&cached, 150), 1);
        cached.set_limit(limit).unwrap();
        assert_eq!(cached.dropped(&page(150, 1)), is_known, "{limit}");
        assert!(cached.used() <= limit);
        cached.audit().unwrap();
    }
    cached.unfollow(None);
    assert!(!cached.dropped(&page(50, 1)) && touch(&cached, 200) == 1 && cached.has(200));
    assert!(touch(&cached, 50) == 1 && cached.has(50));
    cached.audit().unwrap();
}

/// What is read past the page cache again and again gets copies that stay.
#[test]
fn blocks_that_are_read_past_the_page_cache_stay() {
    let (_, cached) = ram(16 * MIB, 64 * MIB);
    cached.follow(0).unwrap();
    for block in 0..500 {
        cached.write(block * BLOCK, &content(block, 1)).unwrap();
    }
    for _ in 0..3 {
        (0..500).for_each(|n| assert_eq!(touch(&cached, n * 37 % 500), 1));
    }
    let stats = cached.stats();
    assert!(stats.hit_blocks > 400 && stats.blocks > 450 && stats.given_blocks < 50, "{stats:?}");
}

#[test]
fn a_scan_does_not_empty_it() {
    let (drive, cached) = ram(8 * MIB, 256 * MIB);
    for block in 0..256 * MIB / BLOCK {
        drive.write(block * BLOCK, &content(block, 1)).unwrap();
    }
    // About half of the cache's capacity, read several times.
    let hot: Vec<u64> = (0..1500).map(|i| i * 37).collect();
    for _ in 0..5 {
        hot.iter().for_each(|block| assert_eq!(touch(&cached, *block), 1));
    }
    let room =
        cached.stats().limit_bytes * cached.stats().original_bytes / cached.stats().used_bytes;
    let mut buf = vec![0; 128 << 10];
    for at in (64 * MIB..64 * MIB + 4 * room.max(32 * MIB)).step_by(128 << 10) {
        cached.read(at, &mut buf).unwrap();
    }
    let there = hot.iter().filter(|block| cached.has(**block)).count();
    assert!(there * 10 >= hot.len() * 9, "{there} of {} are left: {:?}", hot.len(), cached.stats());
    cached.audit().unwrap();
}

#[test]
fn damage_is_found_and_read_again() {
    let (drive, cached) = ram(4 * MIB, 16 * MIB);
    for block in 0..64 {
        cached.write(block * BLOCK, &content(block, 3)).unwrap();
    }
    for block in 0..64 {
        assert!(cached.damage(block, (block * 131) as u32), "block {block} has a copy");
    }
    let before = drive.reads.load(Ordering::SeqCst);
    for block in 0..64 {
        assert_eq!(touch(&cached, block), 3);
    }
    let stats = cached.stats();
    // One header bit of 128 only marks readahead, seven others are unused.
    assert!(stats.damaged_copies >= 60, "{stats:?}");
    assert!(drive.reads.load(Ordering::SeqCst) - before >= 60);
    cached.audit().unwrap();
    // Eviction goes on in spite of the damage.
    for block in 100..3000 {
        cached.write(block * BLOCK, &content(block, 4)).unwrap();
        cached.damage(block, (block * 7919) as u32);
        cached.damage(block, (64 + block % 48) as u32);
    }
    for block in 100..3000 {
        assert_eq!(touch(&cached, block), 4);
    }
    assert!((0..4096).all(|block| touch(&cached, block)
        == [0, 3, 4][usize::from(block < 64) + 2 * usize::from((100..3000).contains(&block))]));
}

#[test]
fn a_drive_that_is_deaf_is_still_served_as_far_as_there_are_copies() {
    let (drive, cached) = ram(4 * MIB, 16 * MIB);
    for block in 0..100 {
        cached.write(block * BLOCK, &content(block, 1)).unwrap();
    }
    drive.deaf.store(true, Ordering::SeqCst);
    let mut buf = vec![0; 100 * BLOCK as usize];
    cached.read(0, &mut buf).unwrap();
    assert!((0..100).all(|b| version(&buf[b * 4096..][..4096], b as u64) == 1));
    assert_eq!(cached.read(99 * BLOCK, &mut buf[..8192]).unwrap_err().errno, 5);
    // A failed write leaves no copy of the old content.
    drive.broken.store(true, Ordering::SeqCst);
    cached.write(5 * BLOCK, &content(5, 2)).unwrap_err();
    assert!(!cached.has(5) && cached.has(4));
    cached.read(5 * BLOCK, &mut buf[..4096]).unwrap_err();
    assert_eq!(touch(&cached, 4), 1);
    assert_eq!(cached.stats().backing_errors, 3);
    // After a failed flush the content of the drive is unknown.
    cached.flush().unwrap_err();
    assert!((0..100).all(|block| !cached.has(block)));
    drive.deaf.store(false, Ordering::SeqCst);
    drive.broken.store(false, Ordering::SeqCst);
    assert_eq!(touch(&cached, 5), 1);
    cached.audit().unwrap();
}

#[test]
fn neighbours_that_are_missed_are_one_read() {
    let (drive, cached) = ram(16 * MIB, 64 * MIB);
    let reads = |from: u64, count: u64| {
        let before = drive.reads.load(Ordering::SeqCst);
        let mut buf = vec![1; (count * BLOCK) as usize];
        cached.read(from * BLOCK, &mut buf).unwrap();
        assert!(buf.iter().all(|b| *b == 0));
        drive.reads.load(Ordering::SeqCst) - before
    };
    assert_eq!(reads(1000, 256), 1);
    assert_eq!(reads(1000, 256), 0);
    // A read of misses includes a small hole between them, but not a large one.
    assert_eq!(reads(2002, 2), 1);
    assert_eq!(reads(2000, 10), 1);
    assert_eq!(reads(3010, 60), 1);
    assert_eq!(reads(3000, 100), 2);
    assert_eq!(cached.stats().requests_mixed, 2);
}

#[test]
fn a_stream_is_read_ahead_and_random_reads_are_not() {
    let (drive, cached) = ram(32 * MIB, 64 * MIB);
    let mut buf = vec![0; 16 << 10];
    for at in (0..16 * MIB).step_by(16 << 10) {
        cached.read(at, &mut buf).unwrap();
    }
    let reads = drive.reads.load(Ordering::SeqCst);
    assert!(reads < 60, "{reads} reads for 1024 requests");
    let stats = cached.stats();
    assert!(stats.ahead_used_blocks > 3500 && stats.ahead_useless_blocks == 0, "{stats:?}");
    assert!(stats.ahead_blocks - stats.ahead_used_blocks <= 512, "{stats:?}");
    let mut rng = 99;
    for _ in 0..2000 {
        touch(&cached, 4096 + random(&mut rng) % 12_000);
    }
    assert_eq!(cached.stats().ahead_blocks, stats.ahead_blocks);
    // The end of the device also ends a window.
    for at in (63 * MIB..64 * MIB).step_by(16 << 10) {
        cached.read(at, &mut buf).unwrap();
    }
    cached.audit().unwrap();
}

#[test]
fn the_limit_holds_for_everything_and_memory_goes_back() {
    for limit in [MIB, 3 * MIB, 16 * MIB, 64 * MIB] {
        let (_, cached) = ram(limit, 256 * MIB);
        let mut buf = vec![0; MIB as usize];
        for at in (0..256 * MIB).step_by(MIB as usize) {
            (at / BLOCK..).zip(buf.chunks_mut(4096)).for_each(|(b, c)| fill(c, b, 1));
            cached.write(at, &buf).unwrap();
            assert!(cached.used() <= limit, "{} of {limit}", cached.used());
        }
        let stats = cached.stats();
        assert!(stats.used_bytes * 10 >= limit * 7, "{stats:?}");
        assert!(limit < 3 * MIB || stats.index_bytes <= stats.blocks * 24, "{stats:?}");
        cached.audit().unwrap();
        cached.set_limit(MIB).unwrap();
        assert!(cached.used() <= MIB);
        cached.audit().unwrap();
        cached.set_limit(0).unwrap();
        assert_eq!(cached.stats().blocks, 0);
        assert!(cached.used() < 64 << 10, "{}", cached.used());
        cached.set_limit(limit).unwrap();
        assert!((0..500).all(|block| touch(&cached, block) == 1));
        assert!(cached.set_limit(MIB - 1).is_err());
    }
}

/// The cache gets full however much of the limit is reserved for more than one reader.
#[test]
fn it_is_full_once_something_has_to_go() {
    let drive = Arc::new(RamDrive::new(128 * MIB));
    let blocks = 128 * MIB / BLOCK;
    for block in 0..blocks {
        drive.write(block * BLOCK, &content(block, 1)).unwrap();
    }
    for (begun, limit) in [(16, 16), (8, 8), (64, 16), (64, 4)] {
        let drive = Arc::clone(&drive) as Arc<dyn Drive>;
        let cached = Cached::over(drive, begun * MIB, 64 * MIB).unwrap();
        let mut rng = 5;
        for limit in [limit, 2 * limit, limit] {
            cached.set_limit(limit * MIB).unwrap();
            let before = cached.stats();
            let is_wider = before.used_bytes * 2 < before.limit_bytes + MIB;
            assert!(!(is_wider && before.full), "there is room: {before:?}");
            let goes = (0..100_000).any(|_| {
                touch(&cached, random(&mut rng) % blocks);
                cached.stats().evicted_blocks > before.evicted_blocks
            });
            let stats = cached.stats();
            assert!(goes && stats.full, "begun at {begun} MiB: {stats:?}");
        }
    }
}

/// A drive that can't be read: neighbours that were never written may be unreadable.
struct Blind(Mutex<Vec<(u64, usize)>>);

impl Drive for Blind {
    fn size(&self) -> u64 {
        BLOCKS * BLOCK
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        Err(DriveError { action: Action::Read, at, len: buf.len() as u64, errno: 5 })
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        self.write_part(at, data)
    }

    fn write_part(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        self.0.lock().unwrap().push((at, data.len()));
        Ok(())
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        self.0.lock().unwrap().push((at, len as usize));
        Ok(())
    }

    fn flush(&self) -> Result<(), DriveError> {
        Ok(())
    }
}

#[test]
fn a_part_of_a_block_reaches_the_drive_as_it_is() {
    let drive = Arc::new(Blind(Mutex::default()));
    let cached = Cached::over(Arc::clone(&drive) as Arc<dyn Drive>, MIB, MIB).unwrap();
    for volume in
        [PassthroughVolume::cached(cached), PassthroughVolume::over(Arc::clone(&drive) as _)]
    {
        let mut channel = volume.channel();
        let mut submit = |request| channel.submit(request, Instant::now()).unwrap();
        submit(Request::Write { offset: 3584, data: &[7; 5120], fua: true });
        submit(Request::Write { offset: 1024, data: &[7; 512], fua: false });
        submit(Request::WriteZeroes { offset: 512, len: 1024, no_hole: true, fua: false });
        let parts = std::mem::take(&mut *drive.0.lock().unwrap());
        assert_eq!(parts, [(3584, 512), (8192, 512), (4096, 4096), (1024, 512), (512, 1024)]);
    }
}

/// Another thread may have changed the rest of the block: no copy may claim its content.
#[test]
fn no_copy_is_left_of_a_block_of_which_a_part_is_written() {
    let (drive, cached) = ram(4 * MIB, 16 * MIB);
    cached.write(8192, &content(2, 1)).unwrap();
    assert_eq!(touch(&cached, 2), 1);
    let mut expected = content(2, 1);
    expected[512..1024].fill(9);
    cached.write_part(8192 + 512, &[9; 512]).unwrap();
    let mut found = vec![0; BLOCK as usize];
    cached.read(8192, &mut found).unwrap();
    assert!(found == expected);
    drive.read(8192, &mut found).unwrap();
    assert!(found == expected);
}

/// A drive with one bad block: a read of that block fails, and leaves arbitrary bytes in its
/// buffer.
struct Scratched {
    drive: RamDrive,
    bad: AtomicU64,
    /// This cache loses its copies while a read fails.
    above: Mutex<Option<Arc<Cached>>>,
}

impl Drive for Scratched {
    fn size(&self) -> u64 {
        self.drive.size()
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        let len = buf.len() as u64;
        if !(at..at + len).contains(&(self.bad.load(Ordering::SeqCst) * BLOCK)) {
            return self.drive.read(at, buf);
        }
        buf.fill(0xee);
        if let Some(cached) = self.above.lock().unwrap().take() {
            cached.set_limit(0).unwrap();
            cached.set_limit(4 * MIB).unwrap();
        }
        Err(DriveError { action: Action::Read, at, len, errno: 5 })
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

#[test]
fn what_was_read_along_in_vain_is_not_believed() {
    let none = AtomicU64::new(u64::MAX >> 12);
    let (drive, above) = (RamDrive::new(16 * MIB), Mutex::new(None));
    let drive = Arc::new(Scratched { drive, bad: none, above });
    let over = Arc::clone(&drive) as Arc<dyn Drive>;
    let cached = Cached::over(over, 4 * MIB, 4 * MIB).unwrap();
    for block in 0..100 {
        drive.write(block * BLOCK, &content(block, 1)).unwrap();
    }
    // Copies of every third pair, so that there are several holes.
    let copies = || (0..100u64).filter(|block| block / 2 % 3 == 1);
    copies().for_each(|block| assert_eq!(touch(&cached, block), 1));
    drive.bad.store(51, Ordering::SeqCst);
    let mut buf = vec![0; 100 * BLOCK as usize];
    cached.read(0, &mut buf).unwrap();
    for (block, data) in (0..).zip(buf.chunks(BLOCK as usize)) {
        assert_eq!(version(data, block), 1, "block {block}");
    }
    cached.audit().unwrap();

    // For blocks without a copy the drive returns the content, or an error.
    cached.set_limit(0).unwrap();
    cached.set_limit(4 * MIB).unwrap();
    drive.bad.store(u64::MAX >> 12, Ordering::SeqCst);
    copies().for_each(|block| assert_eq!(touch(&cached, block), 1));
    drive.bad.store(51, Ordering::SeqCst);
    *drive.above.lock().unwrap() = Some(Arc::clone(&cached));
    assert_eq!(cached.read(0, &mut buf).unwrap_err().errno, 5);
    assert!(drive.above.lock().unwrap().is_none(), "the copies went meanwhile");
    cached.audit().unwrap();
}

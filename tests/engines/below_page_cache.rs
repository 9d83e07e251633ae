//! A read cache below a page cache that it follows: what it spares the drive.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used)]

use crate::support::ram_drive::RamDrive;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use ztier::cache::Cached;
use ztier::media::{Drive, DriveError};

const BLOCK: u64 = 4096;
const MIB: u64 = 1 << 20;
/// Blocks that are read, and dropped, with one another: 128 KiB, as the kernel reads a file ahead.
const RUN: u64 = 32;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A block that shrinks to half.
fn content(block: u64) -> [u8; BLOCK as usize] {
    let (mut state, mut out) = (block + 1, [0; BLOCK as usize]);
    for word in &mut out.as_chunks_mut::<8>().0[..256] {
        *word = random(&mut state).to_le_bytes();
    }
    out
}

/// A page cache of some runs, the least recently used of which it drops.
struct PageCache {
    cached: Arc<Cached>,
    /// The newest last.
    runs: VecDeque<u64>,
    room: usize,
    /// Pages that were not known.
    unknown: u64,
    dropped: u64,
}

impl PageCache {
    fn read(&mut self, run: u64) {
        let there = self.runs.iter().position(|one| *one == run);
        there.and_then(|at| self.runs.remove(at));
        self.runs.push_back(run);
        if there.is_some() {
            return;
        }
        let mut data = vec![0; (RUN * BLOCK) as usize];
        self.cached.read(run * RUN * BLOCK, &mut data).unwrap();
        for (block, data) in (run * RUN..).zip(data.as_chunks().0) {
            assert!(*data == content(block), "block {block}");
        }
        if self.runs.len() > self.room {
            self.drop_oldest();
        }
    }

    fn drop_oldest(&mut self) {
        let Some(gone) = self.runs.pop_front() else { return };
        for block in gone * RUN..(gone + 1) * RUN {
            self.unknown += u64::from(!self.cached.dropped(&content(block)));
            self.dropped += 1;
        }
    }

    /// Drops all, as `/proc/sys/vm/drop_caches` does.
    fn drop_all(&mut self) {
        while !self.runs.is_empty() {
            self.drop_oldest();
        }
    }
}

/// A drive of `runs` runs, and a page cache with room for `room` above a cache of `limit` bytes.
fn rig(runs: u64, room: usize, limit: u64) -> (Arc<RamDrive>, PageCache) {
    let drive = Arc::new(RamDrive::new(runs * RUN * BLOCK));
    for block in 0..runs * RUN {
        drive.write(block * BLOCK, &content(block)).unwrap();
    }
    let cached = Cached::over(Arc::clone(&drive) as Arc<dyn Drive>, limit, limit).unwrap();
    cached.follow(0).unwrap();
    (drive, PageCache { cached, runs: VecDeque::new(), room, unknown: 0, dropped: 0 })
}

/// Reads blocks and compares them.
fn read(cached: &Cached, first: u64, count: u64) -> Result<(), DriveError> {
    let mut data = vec![0; (count * BLOCK) as usize];
    cached.read(first * BLOCK, &mut data)?;
    for (block, data) in (first..).zip(data.as_chunks().0) {
        assert!(*data == content(block), "block {block}");
    }
    Ok(())
}

/// A cache that follows a page cache, with copies of `blocks`.
fn with_copies(blocks: &[u64]) -> (Arc<RamDrive>, Arc<Cached>) {
    let (drive, PageCache { cached, .. }) = rig(4, 0, 8 * MIB);
    // Backward, so that nothing is read ahead.
    for block in blocks.iter().rev() {
        read(&cached, *block, 1).unwrap();
        assert!(cached.dropped(&content(*block)) && cached.has(*block), "block {block}");
    }
    (drive, cached)
}

/// Threads change the limit and follow the page cache at the same time: the last limit stays.
#[test]
fn a_limit_that_is_set_while_following_begins_is_not_undone() {
    let (_, PageCache { cached, .. }) = rig(4, 0, 8 * MIB);
    for round in 0..200 {
        let last = [4, 6][round % 2] * MIB;
        std::thread::scope(|scope| {
            let sets = scope.spawn(|| {
                (0..20).for_each(|n| cached.set_limit((n % 3 + 1) * MIB).unwrap());
                cached.set_limit(last).unwrap();
            });
            while !sets.is_finished() {
                cached.follow(0).unwrap();
                cached.unfollow(None);
            }
        });
        assert_eq!(cached.limit(), last, "round {round}");
    }
    cached.audit().unwrap();
}

/// The drive can't read a block below a copy, along with blocks that have none.
#[test]
fn a_bad_block_below_a_copy_is_not_needed() {
    let copies: Vec<u64> = (0..100).filter(|block| block / 2 % 3 == 1).collect();
    let (drive, cached) = with_copies(&copies);
    assert!(copies.contains(&51));
    drive.bad.store(51 * BLOCK, Ordering::SeqCst);
    read(&cached, 0, 100).unwrap();
    assert_eq!(cached.stats().given_blocks, copies.len() as u64);
    assert!(!copies.iter().any(|block| cached.has(*block)), "the page cache has them");
    // They are known when they are dropped there.
    for block in copies {
        assert!(cached.dropped(&content(block)));
        read(&cached, block, 1).unwrap();
    }
    cached.audit().unwrap();
}

/// A request that fails gives nothing to the page cache, so the copies stay.
#[test]
fn a_read_that_fails_leaves_the_copies_that_it_hit() {
    for (lacks, bad) in [(&[7][..], None), (&[7, 20], Some(20))] {
        let copies: Vec<u64> = (0..RUN).filter(|block| !lacks.contains(block)).collect();
        let (drive, cached) = with_copies(&copies);
        match bad {
            Some(bad) => drive.bad.store(bad * BLOCK, Ordering::SeqCst),
            None => drive.deaf.store(true, Ordering::SeqCst),
        }
        for _ in 0..3 {
            assert_eq!(read(&cached, 0, RUN).unwrap_err().errno, 5);
        }
        assert_eq!(cached.stats().given_blocks, 0);
        drive.deaf.store(true, Ordering::SeqCst);
        for block in &copies {
            read(&cached, *block, 1).unwrap_or_else(|e| panic!("block {block}: {e}"));
        }
        assert_eq!(cached.stats().given_blocks, copies.len() as u64);
        cached.audit().unwrap();
    }
}

/// A file that is larger than page cache and pool together, read in random order, all of it once in
/// each round: nearly all that is dropped is known, requests find all of a run or nothing, and the
/// drive has fewer reads than if the page cache had all the memory.
#[test]
fn a_file_about_as_large_as_memory_is_read_less_from_the_drive() {
    let (runs, room, limit) = (1024u64, 700, 12 * MIB);
    let drive = Arc::new(RamDrive::new(runs * RUN * BLOCK));
    for block in 0..runs * RUN {
        drive.write(block * BLOCK, &content(block)).unwrap();
    }
    let cached = Cached::over(Arc::clone(&drive) as Arc<dyn Drive>, limit, limit).unwrap();
    cached.follow(0).unwrap();
    let mut above = PageCache {
        cached: Arc::clone(&cached),
        runs: VecDeque::new(),
        room,
        unknown: 0,
        dropped: 0,
    };
    let (mut order, mut rng) = ((0..runs).collect::<Vec<_>>(), 7);
    let mut round = |above: &mut PageCache| {
        (1..order.len()).rev().for_each(|n| order.swap(n, random(&mut rng) as usize % (n + 1)));
        order.iter().for_each(|run| above.read(*run));
    };
    (0..3).for_each(|_| round(&mut above));
    let (before, reads) = (cached.stats(), drive.reads.load(Ordering::SeqCst));
    (above.unknown, above.dropped) = (0, 0);
    (0..4).for_each(|_| round(&mut above));
    let after = cached.stats();
    assert!(above.unknown * 200 < above.dropped, "{} of {}", above.unknown, above.dropped);
    let hits = (after.hit_blocks - before.hit_blocks) / RUN;
    let mixed = after.requests_mixed - before.requests_mixed;
    assert!(mixed * 6 < hits, "{mixed} requests found a part, {hits} all");
    // What a page cache with the pool's memory would ask for: d × (1 + ln(n ÷ d)), where d of n
    // runs do not fit.
    let lacks = (runs - room as u64 - limit / (RUN * BLOCK)) as f64;
    let others = 4.0 * lacks * (1.0 + (runs as f64 / lacks).ln());
    let reads = (drive.reads.load(Ordering::SeqCst) - reads) as f64;
    assert!(reads < 0.85 * others, "{reads} reads, {others:.0} without");
    cached.audit().unwrap();
}

/// A limit that adapts grows by what was evicted not long before it was missed.
#[test]
fn misses_of_what_was_evicted_count() {
    let (_, mut above) = rig(512, 150, 8 * MIB);
    let round = |above: &mut PageCache| (0..512).for_each(|run| above.read(run * 197 % 512));
    round(&mut above);
    let ghosts = |above: &PageCache| above.cached.stats().ghosts_hit_blocks;
    // Some are taken for others.
    assert!(ghosts(&above) < 100, "each block was missed for the first time");
    (0..3).for_each(|_| round(&mut above));
    let stats = above.cached.stats();
    assert!(stats.ghosts_hit_blocks * 10 > stats.missed_blocks, "{stats:?}");
    assert!(stats.ghosts_hit_blocks < stats.evicted_blocks, "{stats:?}");
}

/// What is read again and again stays when a scan of much that is read once is dropped, a part at a
/// time as by reclaim, or all at once as by `drop_caches`.
#[test]
fn dropping_all_that_a_scan_has_read_leaves_hot_copies() {
    for at_once in [false, true] {
        let (hot, scanned) = (100, 1500);
        let (drive, mut above) = rig(hot + scanned, 200, 12 * MIB);
        for _ in 0..4 {
            (0..hot).for_each(|run| above.read(run));
            above.drop_all();
        }
        for run in hot..hot + scanned {
            above.read(run);
            if at_once && run % 150 == 0 {
                above.drop_all();
            }
        }
        above.drop_all();
        let reads = drive.reads.load(Ordering::SeqCst);
        (0..hot).for_each(|run| above.read(run));
        let lost = drive.reads.load(Ordering::SeqCst) - reads;
        assert!(lost * 10 <= hot, "{lost} of {hot} came from the drive, at once: {at_once}");
    }
}

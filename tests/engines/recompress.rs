//! Recompression: clusters read as before, take less memory, are split when their blocks are used
//! again, and are not made where they save nothing.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used, dead_code)]

use crate::support::ram_drive::RamDrive;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use ztier::device::{
    Algorithm, Channel, Device, IoError, Options, Recompress, Request, SpillTo, Volume,
    min_ram_limit_above,
};
use ztier::media::Memory;
use ztier::stats::Stats;

const BLOCKS: u64 = 4096;
const BLOCK: usize = 4096;

fn options(ram_limit: u64, segment: u32) -> Options {
    Options {
        size: BLOCKS * BLOCK as u64,
        ram_limit,
        ram_limit_max: ram_limit,
        segment,
        algorithm: Algorithm::Lz4,
        lock_memory: false,
    }
}

/// Text that shares much with its neighbours; LZ4 compresses it to about half.
fn text(block: u64, version: u64) -> Vec<u8> {
    const WORDS: [&str; 16] = [
        "memory", "is", "a", "log", "cut", "into", "segments", "which", "never", "change", "block",
        "reader", "of", "cluster", "and", "epoch",
    ];
    let mut x = block * 31 + version * 1_000_003 + 17;
    let mut text = format!("{block} {version} ").into_bytes();
    while text.len() < BLOCK {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        text.extend_from_slice(WORDS[(x >> 60) as usize].as_bytes());
        text.extend_from_slice(if x >> 40 & 7 == 0 { b"\n\t" } else { b" " });
    }
    text.truncate(BLOCK);
    text
}

fn noise(block: u64, version: u64) -> Vec<u8> {
    let mut x = block * 977 + version * 7 + 1;
    let mut word = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x.to_le_bytes()
    };
    (0..BLOCK / 8).flat_map(|_| word()).collect()
}

type Content = fn(u64, u64) -> Vec<u8>;

struct Rig {
    volume: Arc<Volume>,
    channel: Box<dyn Channel>,
}

impl Rig {
    fn new(options: &Options, memory: &Memory, below: Option<SpillTo>) -> Self {
        let volume = Arc::new(Volume::new_over(options, memory, below).unwrap());
        let channel = Arc::clone(&volume).channel();
        Self { volume, channel }
    }

    fn plain() -> Self {
        Self::new(&options(64 << 20, 64 << 10), &Memory::default(), None)
    }

    fn write(&mut self, block: u64, data: &[u8]) -> Result<(), IoError> {
        let write = Request::Write { offset: block * BLOCK as u64, data, fua: false };
        self.channel.submit(write, Instant::now())
    }

    fn fill(&mut self, blocks: impl Iterator<Item = u64>, content: Content, version: u64) {
        blocks.for_each(|block| self.write(block, &content(block, version)).unwrap());
    }

    fn read(&mut self, block: u64, count: u64) -> Result<Vec<u8>, IoError> {
        let mut buf = vec![0xee; count as usize * BLOCK];
        let read = Request::Read { offset: block * BLOCK as u64, buf: &mut buf };
        self.channel.submit(read, Instant::now()).map(|()| buf)
    }

    fn discard(&mut self, block: u64) {
        let discard = Request::Discard { offset: block * BLOCK as u64, len: BLOCK as u64 };
        self.channel.submit(discard, Instant::now()).unwrap();
    }

    fn check(&mut self, blocks: impl Iterator<Item = u64>, content: Content, version: u64) {
        for block in blocks {
            assert!(self.read(block, 1).unwrap() == content(block, version), "block {block}");
        }
    }

    fn stats(&self) -> Stats {
        self.volume.stats()
    }

    fn recompress(&self) -> Stats {
        self.volume.recompress_now();
        self.volume.audit().unwrap();
        self.stats()
    }
}

/// Everything is put into clusters, takes a quarter less, and reads as before: one by one, some
/// blocks at a time, and parts of blocks.
#[test]
fn what_is_together_takes_less_and_reads_the_same() {
    let mut rig = Rig::plain();
    rig.fill(0..BLOCKS, text, 1);
    let before = rig.stats();
    let after = rig.recompress();
    assert!(after.blocks_clustered > BLOCKS * 9 / 10, "{after:?}");
    assert_eq!(after.blocks_recompressed, after.blocks_clustered);
    assert!(after.compr_data_bytes * 4 < before.compr_data_bytes * 3, "{after:?}");
    let saved = before.compr_data_bytes + before.record_headers_bytes
        - after.compr_data_bytes
        - after.record_headers_bytes;
    assert_eq!(after.recompress_saved_bytes, saved);
    rig.volume.clean_now();
    let cleaned = rig.stats();
    assert!(cleaned.mem_used_bytes < before.mem_used_bytes, "{before:?} {cleaned:?}");
    assert!(cleaned.frames_bytes < cleaned.compr_data_bytes * 11 / 10 + (3 << 16), "{cleaned:?}");
    rig.check(0..BLOCKS, text, 1);
    for (block, count) in [(0, 16), (3, 7), (1, 2), (17, 64)] {
        let expected: Vec<u8> = (block..block + count).flat_map(|b| text(b, 1)).collect();
        assert!(rig.read(block, count).unwrap() == expected);
    }
    let mut part = [0; 100];
    let read = Request::Read { offset: 5 * BLOCK as u64 + 77, buf: &mut part };
    rig.channel.submit(read, Instant::now()).unwrap();
    assert!(part == text(5, 1)[77..177]);
    rig.volume.audit().unwrap();
}

/// Clusters lose blocks one by one, are rebuilt from the rest, and become garbage at last.
#[test]
fn what_is_left_of_a_cluster_is_made_anew() {
    for discards in [false, true] {
        let mut rig = Rig::plain();
        rig.fill(0..BLOCKS, text, 1);
        rig.recompress();
        let full = rig.stats();
        for gone in 0..4 {
            for block in (0..BLOCKS).filter(|block| block % 4 == gone) {
                match discards {
                    true => rig.discard(block),
                    false => rig.write(block, &[block as u8; BLOCK]).unwrap(),
                }
            }
            (0..20).for_each(|_| rig.volume.clean_now());
            rig.volume.audit().unwrap();
            // Each block once: a second read would promote it.
            let part = |block: &u64| block / 16 % 4 == gone && block % 4 > gone;
            rig.check((0..BLOCKS).filter(part), text, 1);
            let stats = rig.stats();
            // The rest shrinks, and all garbage is counted.
            let most = full.compr_data_bytes * (3 - gone) / 4 * 13 / 10;
            assert!(stats.compr_data_bytes <= most, "{gone} gone of {full:?}: {stats:?}");
            let frames = stats.compr_data_bytes * 11 / 10 + (3 << 16);
            assert!(stats.frames_bytes <= frames, "{gone} gone: {stats:?}");
        }
        assert_eq!(rig.stats().blocks_clustered, 0);
    }
}

/// A segment of clusters that was sealed for its garbage long before it was full holds little, but
/// occupies all of its memory: it is cleaned, however little of it is garbage.
#[test]
fn what_was_sealed_early_takes_no_memory_for_long() {
    const ROUNDS: u64 = 12;
    const SEGMENT: u64 = 256 << 10;
    let mut rig = Rig::new(&options(64 << 20, SEGMENT as u32), &Memory::default(), None);
    let (own, fillers) = (16, SEGMENT / BLOCK as u64);
    for round in 0..ROUNDS {
        let first = round * (own + fillers);
        rig.fill(first..first + own, text, 1);
        // Otherwise it would still be in the open segment, where no clusters are made.
        rig.fill(first + own..first + own + fillers, noise, 1);
        rig.recompress();
        (first + own..first + own + fillers).for_each(|block| rig.discard(block));
        (first..first + own).step_by(3).for_each(|block| rig.discard(block));
        (0..3).for_each(|_| rig.volume.clean_now());
        rig.volume.audit().unwrap();
    }
    let stats = rig.stats();
    assert!(stats.blocks_recompressed >= ROUNDS * own, "{stats:?}");
    let frames = stats.compr_data_bytes * 11 / 10 + 3 * SEGMENT;
    assert!(stats.frames_bytes <= frames, "{stats:?}");
}

/// Incompressible blocks are left, and not tried again; compressible ones beside them are found.
#[test]
fn what_does_not_pay_is_left_alone() {
    let mut rig = Rig::plain();
    rig.fill(0..BLOCKS / 2, noise, 1);
    let tried = rig.recompress();
    assert_eq!(tried.blocks_clustered, 0);
    // Not all of a hopeless segment is tried, either.
    assert!(tried.recompress_in_vain > 0);
    let again = rig.recompress();
    assert_eq!(again.recompress_in_vain, tried.recompress_in_vain, "tried twice");
    rig.fill(BLOCKS / 2..BLOCKS, text, 1);
    let after = rig.recompress();
    assert!(after.blocks_clustered > BLOCKS / 2 * 9 / 10, "{after:?}");
    rig.check(0..BLOCKS / 2, noise, 1);
    rig.check(BLOCKS / 2..BLOCKS, text, 1);
    // Compressible blocks are put together without an incompressible one between them.
    let mut rig = Rig::plain();
    let mixed: Content = |b, v| if b % 4 == 2 { noise(b, v) } else { text(b, v) };
    rig.fill(0..BLOCKS, mixed, 1);
    let after = rig.recompress();
    assert!(after.blocks_clustered > BLOCKS * 3 / 4 * 9 / 10, "{after:?}");
    assert!(after.blocks_raw > BLOCKS / 5, "{after:?}");
    rig.check(0..BLOCKS, mixed, 1);
}

/// A first read leaves a block in its cluster; a second one promotes it, while there is room, and
/// never beyond that.
#[test]
fn a_second_read_promotes_within_the_limit() {
    let mut rig = Rig::plain();
    rig.fill(0..BLOCKS, text, 1);
    let all = rig.recompress().blocks_clustered;
    rig.check(0..400, text, 1);
    assert_eq!(rig.stats().blocks_clustered, all);
    rig.check(0..400, text, 1);
    let after = rig.stats();
    assert_eq!(after.recompress_promoted_blocks, all - after.blocks_clustered);
    assert!(after.recompress_promoted_blocks > 300, "{after:?}");
    rig.volume.audit().unwrap();
    // At the limit no block is promoted, however often it is read.
    let limit = rig.stats().mem_used_bytes + (3 << 16);
    let mut options = options(limit, 64 << 10);
    options.size = BLOCKS * 2 * BLOCK as u64;
    let mut rig = Rig::new(&options, &Memory::default(), None);
    rig.fill(0..BLOCKS / 2, text, 1);
    rig.recompress();
    let mut end = BLOCKS / 2;
    while rig.write(end, &noise(end, 1)).is_ok() {
        end += 1;
    }
    let before = rig.stats();
    assert!(before.blocks_clustered > BLOCKS / 4, "{before:?}");
    (0..4).for_each(|_| rig.check(0..BLOCKS / 2, text, 1));
    let after = rig.stats();
    assert!(after.mem_used_max_bytes <= limit, "{after:?}");
    assert!(after.recompress_promoted_blocks < 64, "{after:?}");
    assert_eq!(after.no_space, before.no_space);
    rig.check(BLOCKS / 2..end, noise, 1);
}

/// A block that was read since its write is spared once.
#[test]
fn what_is_hot_is_not_cold() {
    let mut rig = Rig::plain();
    rig.volume.set_recompress(Recompress::Idle).unwrap();
    rig.fill(0..BLOCKS, text, 1);
    rig.check(0..BLOCKS / 2, text, 1);
    let after = rig.recompress();
    assert!(after.blocks_clustered <= BLOCKS / 2, "{after:?}");
    assert!(after.blocks_clustered > BLOCKS / 2 * 9 / 10, "{after:?}");
    let after = rig.recompress();
    assert!(after.blocks_clustered > BLOCKS * 9 / 10, "{after:?}");
    rig.check(0..BLOCKS, text, 1);
}

/// Any damage to a cluster shows in each of its blocks and nowhere else, stays damage when the
/// cluster is moved, and is repaired block by block.
#[test]
fn a_damaged_cluster_is_never_served() {
    let mut rig = Rig::plain();
    rig.fill(0..BLOCKS, text, 1);
    rig.recompress();
    let damaged: Vec<u64> = (0..BLOCKS).step_by(64).collect();
    for (n, block) in (0..).zip(&damaged) {
        // Header, parts, frame, in turn.
        let bit = if n % 2 == 0 { n } else { 80 + n * 29 };
        assert!(rig.volume.damage(*block, bit));
    }
    let is_damaged = |block: u64| block % 64 < 4;
    let check = |rig: &mut Rig| {
        for block in 0..BLOCKS {
            match rig.read(block, 1) {
                Ok(data) => assert!(data == text(block, 1) && !is_damaged(block), "{block}"),
                Err(e) => assert!(e == IoError::Corrupt(block) && is_damaged(block), "{block}"),
            }
        }
    };
    check(&mut rig);
    // Garbage everywhere, so that all that can be moved is moved.
    for block in (0..BLOCKS).filter(|block| block % 8 == 6) {
        rig.write(block, &text(block, 1)).unwrap();
    }
    (0..20).for_each(|_| rig.volume.clean_now());
    check(&mut rig);
    for block in (0..BLOCKS).filter(|block| is_damaged(*block)) {
        rig.write(block, &text(block, 2)).unwrap();
        assert!(rig.read(block, 1).unwrap() == text(block, 2));
    }
}

/// A process that takes over another's memory finds its clusters, and one that was being filled.
#[test]
fn clusters_outlive_their_process() {
    let (options, mut memory) = (options(64 << 20, 64 << 10), Memory::default());
    let mut rig = Rig::new(&options, &memory, None);
    rig.fill(0..BLOCKS, text, 1);
    let mut before = rig.recompress().blocks_clustered;
    assert!(before > BLOCKS * 9 / 10);
    for round in 0..3 {
        drop(rig);
        let dup = |file: &OwnedFd| file.try_clone().unwrap();
        let files = memory.files().into_iter().map(|(name, file)| (name, dup(&file)));
        memory = Memory::inherited(files.collect());
        rig = Rig::new(&options, &memory, None);
        rig.volume.audit().unwrap();
        assert_eq!(rig.stats().blocks_clustered, before);
        rig.check((0..BLOCKS).filter(|block| block % 64 > 3 || round == 0), text, 1);
        for block in (round..BLOCKS).step_by(64) {
            rig.write(block, &text(block, 9)).unwrap();
        }
        rig.volume.clean_now();
        before = rig.recompress().blocks_clustered;
    }
}

/// Spilled blocks were put into clusters first, where that pays, and come back.
#[test]
fn what_is_spilled_was_recompressed_first() {
    let segment = 64 << 10;
    let size = BLOCKS * 4 * BLOCK as u64;
    let mut options = options(min_ram_limit_above(size, segment) + (2 << 20), segment);
    options.size = size;
    let slots = (size / u64::from(segment)) as u32;
    let spill = |by_itself| {
        let drive = RamDrive::new((u64::from(slots) + 1) * u64::from(segment));
        let below = SpillTo { drive: Arc::new(drive), slots, daily: 0 };
        let mut rig = Rig::new(&options, &Memory::default(), Some(below));
        if by_itself {
            rig.volume.set_recompress(Recompress::Idle).unwrap();
        }
        for block in 0..BLOCKS * 4 {
            rig.write(block, &text(block, 1)).unwrap();
            // As the thread does that keeps memory free.
            if block % 16 == 0 {
                rig.volume.clean_now();
            }
        }
        let stats = rig.stats();
        assert!(stats.mem_used_max_bytes <= options.ram_limit, "{stats:?}");
        rig.volume.audit().unwrap();
        rig.check(0..BLOCKS * 4, text, 1);
        rig.volume.audit().unwrap();
        for block in (0..BLOCKS * 4).step_by(3) {
            rig.write(block, &text(block, 2)).unwrap();
        }
        rig.volume.clean_now();
        rig.check((0..BLOCKS * 4).filter(|block| block % 3 != 0), text, 1);
        rig.check((0..BLOCKS * 4).step_by(3), text, 2);
        rig.volume.audit().unwrap();
        stats
    };
    let (apart, together) = (spill(false), spill(true));
    assert_eq!(apart.blocks_clustered, 0);
    assert!(together.blocks_clustered * 10 > together.blocks_stored * 7, "{together:?}");
    assert!(together.spilled_segments > 20, "{together:?}");
    assert!(
        together.spill_written_bytes * 10 < apart.spill_written_bytes * 8,
        "{} and {}",
        together.spill_written_bytes,
        apart.spill_written_bytes
    );
}

/// The volume's own thread recompresses on request, and on its own when the volume is idle.
#[test]
fn the_thread_recompresses_when_it_is_asked_and_when_it_is_idle() {
    let volume = Volume::create(&options(64 << 20, 64 << 10)).unwrap();
    let channel = Arc::clone(&volume).channel();
    let mut rig = Rig { volume, channel };
    rig.fill(0..BLOCKS / 2, text, 1);
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(rig.stats().blocks_recompressed, 0, "without a request");
    let until = |rig: &Rig, what: &dyn Fn(&Stats) -> bool| {
        let began = Instant::now();
        while !what(&rig.stats()) {
            assert!(began.elapsed() < Duration::from_secs(200), "{:?}", rig.stats());
            std::thread::sleep(Duration::from_millis(20));
        }
    };
    rig.volume.recompress().unwrap();
    until(&rig, &|stats| !stats.recompressing);
    assert!(rig.stats().blocks_clustered > BLOCKS / 2 * 9 / 10, "{:?}", rig.stats());
    rig.volume.set_recompress(Recompress::Idle).unwrap();
    let before = rig.stats().blocks_clustered;
    let began = Instant::now();
    rig.fill(BLOCKS / 2..BLOCKS, text, 1);
    // More than can be left of the first half; the time until everything is done depends on other
    // work of the machine.
    until(&rig, &|stats| stats.blocks_clustered > before + BLOCKS / 16);
    assert!(began.elapsed() > Duration::from_secs(30), "it was not cold yet");
    rig.check(0..BLOCKS, text, 1);
    rig.volume.close();
    rig.volume.audit().unwrap();
}

//! Clusters of neighbouring blocks in a log, with real threads: read in parts, overwritten in
//! parts, damaged, written back.
#![allow(clippy::unwrap_used)]

use crate::support::pair::{BLOCK, BLOCKS, Pair, SEGMENT, drain};
use crate::support::ram_drive::RamDrive;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;
use ztier::device::{Algorithm, Channel, Device, IoError, LogOptions, LogVolume, Request};
use ztier::log::disk::format::{CLUSTER, IDENTITY, data_at};
use ztier::log::{self, Options, Policy};
use ztier::media::Drive;
use ztier::stats::LogStats;

/// Opens the log with `memory` bytes of memory, and without automatic writeback.
fn open(pair: &mut Pair, algorithm: Algorithm, memory: u64) -> Arc<LogVolume> {
    let policy = Policy { enabled: false, ..Policy::default() };
    let log = Options { memory, ..Options::default() };
    pair.open_with(LogOptions { algorithm, policy, log, ..LogOptions::default() })
}

fn stats(volume: &LogVolume) -> LogStats {
    volume.stats().log.unwrap()
}

fn write(to: &mut dyn Channel, offset: u64, data: &[u8]) {
    to.submit(Request::Write { offset, data, fua: false }, Instant::now()).unwrap();
}

fn flush(to: &mut dyn Channel) {
    to.submit(Request::Flush, Instant::now()).unwrap();
}

fn read(from: &mut dyn Channel, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
    let mut buf = vec![0xa5; len];
    from.submit(Request::Read { offset, buf: &mut buf }, Instant::now())?;
    Ok(buf)
}

/// Text in which all lines are different, but similar.
fn text(seed: u64, len: usize) -> Vec<u8> {
    let line = |n: u64| format!("line {} of the text, sum {:x}\n", n, n.wrapping_mul(seed | 1));
    (0..).flat_map(|n| line(n).into_bytes()).take(len).collect()
}

#[test]
fn clusters_are_read_and_overwritten_in_parts_and_reach_the_backing_store() {
    let mut pair = Pair::new(8 << 20);
    let mut volume = open(&mut pair, Algorithm::Zstd, 64 << 20);
    let mut channel = Arc::clone(&volume).channel();
    let mut model = text(5, (BLOCKS * BLOCK) as usize);
    write(&mut *channel, 0, &model);
    let log = stats(&volume);
    assert!(log.blocks_clustered > BLOCKS * 9 / 10, "{log:?}");
    assert!(log.cluster_bytes < log.blocks_clustered * BLOCK / 3, "{log:?}");
    // The last blocks of a segment find no room for a cluster.
    assert!(log.blocks_clustered < BLOCKS && log.blocks_appended == BLOCKS, "{log:?}");
    for round in 0..3 {
        let mut change = |at: u64, len: usize, seed| {
            let data = text(seed, len);
            write(&mut *channel, at, &data);
            model[at as usize..at as usize + len].copy_from_slice(&data);
        };
        // A middle block, parts of two blocks, two clusters from the middle of one on, a whole one.
        change(5 * BLOCK, 4096, 11 + round);
        change(22 * BLOCK + 100, 5000, 12 + round);
        change((42 + round) * BLOCK, 7 * 4096, 13 + round);
        change(100 * BLOCK, CLUSTER * 4096, 14 + round);
        let (offset, len) = (202 * BLOCK, BLOCK);
        channel.submit(Request::Discard { offset, len }, Instant::now()).unwrap();
        model[offset as usize..(offset + len) as usize].fill(0);
        for (at, len) in [(0, 1), (1, 1), (3, 2), (0, 4), (2, 30), (200, 4), (0, BLOCKS)] {
            let (at, len) = (at * BLOCK, (len * BLOCK) as usize);
            let found = read(&mut *channel, at, len).unwrap();
            assert!(found == model[at as usize..at as usize + len], "{len} at {at}");
        }
        let part = read(&mut *channel, 6 * BLOCK + 17, 9000).unwrap();
        assert!(part == model[6 * 4096 + 17..][..9000]);
        // In memory the first time, then on the drive, then after a restart, and last after a kill.
        flush(&mut *channel);
        if round > 0 {
            drop(channel);
            if round == 1 {
                volume.close().unwrap();
            }
            drop(volume);
            volume = open(&mut pair, Algorithm::Lz4, 64 << 20);
            channel = Arc::clone(&volume).channel();
        }
    }
    assert!(read(&mut *channel, 0, model.len()).unwrap() == model);
    drain(&volume);
    assert!(pair.backing.content() == model, "the backing store is the volume");
    drop(channel);
    volume.close().unwrap();
}

#[test]
fn neighbours_are_fetched_once() {
    let mut pair = Pair::new(8 << 20);
    let volume = open(&mut pair, Algorithm::Zstd, 64 << 20);
    let mut channel = Arc::clone(&volume).channel();
    write(&mut *channel, 0, &text(5, 64 << 10));
    flush(&mut *channel);
    let before = pair.log.reads.load(Ordering::SeqCst);
    read(&mut *channel, 0, 64 << 10).unwrap();
    assert_eq!(pair.log.reads.load(Ordering::SeqCst) - before, 1, "they lie side by side");
    assert_eq!(stats(&volume).reads_log, 16);
    drop(channel);
    volume.close().unwrap();
}

#[test]
fn a_damaged_cluster_is_an_error_for_its_blocks_and_no_other() {
    let mut pair = Pair::new(8 << 20);
    let volume = open(&mut pair, Algorithm::Zstd, 64 << 20);
    let mut channel = Arc::clone(&volume).channel();
    let model = text(9, 16 * 4096);
    write(&mut *channel, 0, &model);
    write(&mut *channel, 2 * BLOCK, &text(10, 4096));
    flush(&mut *channel);
    // Makes the preceding records count as durable, not as a torn end.
    write(&mut *channel, 100 * BLOCK, &text(11, 4096));
    flush(&mut *channel);
    assert!(stats(&volume).blocks_clustered >= 12);
    // The first payload of the first chunk: blocks 0 to 3, of which 2 was overwritten.
    pair.log.damage(data_at(pair.log.size(), SEGMENT) + 200);
    let found = log::inspect(&*pair.log, false, true).unwrap();
    let damaged: Vec<u64> = found.damaged.iter().map(|(block, _)| *block).collect();
    assert_eq!(damaged, [0, 1, 2, 3], "by `ztier log check`, also what is not current");
    let check = |channel: &mut dyn Channel| {
        for block in 0..16 {
            let found = read(channel, block * BLOCK, 4096);
            match block {
                0 | 1 | 3 => assert_eq!(found, Err(IoError::Corrupt(block))),
                2 => assert!(found.unwrap() == text(10, 4096)),
                _ => assert!(found.unwrap() == model[block as usize * 4096..][..4096]),
            }
        }
        assert!(read(channel, 0, 16 * 4096).is_err());
    };
    check(&mut *channel);
    drain(&volume);
    check(&mut *channel);
    assert!(pair.backing.content()[4 * 4096..16 * 4096] == model[4 * 4096..]);
    write(&mut *channel, 0, &model[..4096]);
    assert!(read(&mut *channel, 0, 4096).unwrap() == model[..4096], "until it is written");
    drop(channel);
    volume.close().unwrap();
}

/// Blocks in clusters after 8 MiB of text on a drive whose writes take `write_ms`.
fn clustered(algorithm: Algorithm, write_ms: u64) -> u64 {
    let mut pair = Pair::new(8 << 20);
    let volume = open(&mut pair, algorithm, 1 << 20);
    pair.log.write_ms.store(write_ms, Ordering::SeqCst);
    let mut channel = Arc::clone(&volume).channel();
    let model = text(21, (BLOCKS * BLOCK) as usize);
    for (at, part) in (0..).step_by(64 << 10).zip(model.chunks(64 << 10)) {
        write(&mut *channel, at, part);
    }
    assert!(read(&mut *channel, 0, model.len()).unwrap() == model);
    let found = stats(&volume).blocks_clustered;
    pair.log.write_ms.store(0, Ordering::SeqCst);
    drop(channel);
    volume.close().unwrap();
    found
}

#[test]
fn lz4_gives_way_to_clusters_only_where_the_drive_is_slow() {
    assert!(clustered(Algorithm::Lz4, 20) > 0, "a slow drive");
    assert_eq!(clustered(Algorithm::None, 20), 0);
    assert!(clustered(Algorithm::Zstd, 0) > BLOCKS * 9 / 10);
}

const GOLDEN: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/log-v3-clusters.img");
const GOLDEN_BYTES: u64 = 448 << 10;

/// The content of the golden image.
fn golden() -> Vec<u8> {
    let mut model = text(31, 64 * 4096);
    model[5 * 4096..6 * 4096].copy_from_slice(&text(32, 4096));
    model[9 * 4096..10 * 4096].fill(0);
    model
}

/// Writes the golden image, with clusters in a checkpoint and some behind it.
fn write_golden() {
    let log = Arc::new(RamDrive::new(GOLDEN_BYTES));
    let backing = Arc::new(RamDrive::new(BLOCKS * BLOCK));
    log::format(&*log, [1; 16], [2; IDENTITY], BLOCKS, 32 << 10).unwrap();
    let policy = Policy { enabled: false, ..Policy::default() };
    let checkpoint = Options { checkpoint: 1, ..Options::default() };
    let (algorithm, log_options) = (Algorithm::Zstd, checkpoint);
    let options = LogOptions { algorithm, policy, log: log_options, ..LogOptions::default() };
    let volume = LogVolume::open(Arc::clone(&log) as _, backing, options, 77).unwrap();
    volume.start(None).unwrap();
    let mut channel = Arc::clone(&volume).channel();
    for (at, part) in (0..).step_by(16 << 10).zip(text(31, 64 * 4096).chunks(16 << 10)) {
        write(&mut *channel, at, part);
        flush(&mut *channel);
        // Leaves time for checkpoints.
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    write(&mut *channel, 5 * BLOCK, &text(32, 4096));
    let (offset, len) = (9 * BLOCK, BLOCK);
    channel.submit(Request::Discard { offset, len }, Instant::now()).unwrap();
    flush(&mut *channel);
    std::fs::write(GOLDEN, log.content()).unwrap();
}

/// `ZTIER_GOLDEN=write` makes the image anew.
#[test]
fn a_log_with_clusters_stays_readable() {
    if std::env::var("ZTIER_GOLDEN").is_ok_and(|what| what == "write") {
        write_golden();
    }
    let image = std::fs::read(GOLDEN).unwrap();
    let mut pair = Pair::new(8 << 20);
    pair.log = Arc::new(RamDrive::new(GOLDEN_BYTES));
    pair.log.write(0, &image).unwrap();
    let found = log::inspect(&*pair.log, false, true).unwrap();
    assert!(found.damaged.is_empty() && !found.report.torn, "{:?}", found.report);
    let known = log::inspect(&*pair.log, false, false).unwrap().report.known;
    assert!(known >= CLUSTER as u64, "blocks of a checkpoint: {known}");
    let volume = open(&mut pair, Algorithm::Lz4, 64 << 20);
    let mut channel = Arc::clone(&volume).channel();
    assert!(read(&mut *channel, 0, 64 * 4096).unwrap() == golden());
    drain(&volume);
    assert!(pair.backing.content()[..64 * 4096] == golden());
    drop(channel);
    volume.close().unwrap();
}

//! The logged volume with real threads: compared with an array of bytes, through restarts, damage
//! and failures.
#![allow(clippy::unwrap_used)]

use crate::support::pair::{BLOCK, BLOCKS, Pair, SEGMENT, drain};
use crate::support::ram_drive::RamDrive;
use proptest::prelude::*;
use proptest::test_runner::RngSeed;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};
use ztier::device::{Channel, Device, IoError, LogOptions, LogVolume, Request};
use ztier::log::disk::format::{IDENTITY, data_at};
use ztier::log::{self, Policy, Step as At};
use ztier::media::{Access, Drive, FileDrive, Memory};
use ztier::stats::Latency;

fn write(to: &mut dyn Channel, offset: u64, data: &[u8]) -> Result<(), IoError> {
    to.submit(Request::Write { offset, data, fua: false }, Instant::now())
}

fn read(from: &mut dyn Channel, offset: u64, len: usize) -> Result<Vec<u8>, IoError> {
    let mut buf = vec![0xa5; len];
    from.submit(Request::Read { offset, buf: &mut buf }, Instant::now())?;
    Ok(buf)
}

/// Bytes that depend on the seed: of four kinds, from zeros to incompressible.
fn bytes(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed | 1;
    let mut next = move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len)
        .map(|i| match seed % 4 {
            0 => 0,
            1 => seed as u8,
            2 if i % 2 == 0 => 7,
            _ => next(),
        })
        .collect()
}

#[derive(Clone, Debug)]
enum Step {
    Write(u64, usize, u64),
    Read(u64, usize),
    Discard(u64, u64),
    Flush,
    Drain,
    /// Closed in order, and opened again.
    Restart,
    /// Opened again as after a kill; flushed data must be there, and here all data is flushed.
    Kill,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let end = BLOCKS * BLOCK;
    let range = (0..end - (200 << 10), prop_oneof![1usize..9000, 1usize..200 << 10]);
    let blocks =
        range.clone().prop_map(|(at, len)| (at / BLOCK * BLOCK, len.next_multiple_of(4096)));
    let place = prop_oneof![range, blocks];
    let step = prop_oneof![
        12 => (place.clone(), any::<u64>())
            .prop_map(|((at, len), seed)| Step::Write(at, len, seed)),
        4 => place.clone().prop_map(|(at, len)| Step::Read(at, len)),
        2 => place.prop_map(|(at, len)| Step::Discard(at, len as u64)),
        1 => Just(Step::Flush),
        1 => Just(Step::Drain),
        1 => Just(Step::Restart),
        1 => Just(Step::Kill),
    ];
    prop::collection::vec(step, 1..60)
}

fn run(steps: &[Step]) {
    let mut pair = Pair::new(4 << 20);
    let mut model = vec![0; (BLOCKS * BLOCK) as usize];
    let mut volume = pair.open();
    let mut channel = Arc::clone(&volume).channel();
    for step in steps {
        match *step {
            Step::Write(at, len, seed) => {
                let data = bytes(seed, len);
                write(&mut *channel, at, &data).unwrap();
                model[at as usize..at as usize + len].copy_from_slice(&data);
            }
            Step::Read(at, len) => {
                assert!(read(&mut *channel, at, len).unwrap() == model[at as usize..][..len]);
            }
            Step::Discard(offset, len) => {
                channel.submit(Request::Discard { offset, len }, Instant::now()).unwrap();
                model[offset as usize..(offset + len) as usize].fill(0);
            }
            Step::Flush => channel.submit(Request::Flush, Instant::now()).unwrap(),
            Step::Drain => {
                drain(&volume);
                assert!(pair.backing.content() == model, "the backing store is the volume");
            }
            Step::Restart | Step::Kill => {
                drop(channel);
                if matches!(step, Step::Restart) {
                    volume.close().unwrap();
                } else {
                    // Threads end without any request to the log's drive.
                    let mut last = Arc::clone(&volume).channel();
                    last.submit(Request::Flush, Instant::now()).unwrap();
                }
                drop(volume);
                volume = pair.open();
                assert_eq!(volume.report().closed, matches!(step, Step::Restart));
                channel = Arc::clone(&volume).channel();
            }
        }
    }
    assert!(read(&mut *channel, 0, model.len()).unwrap() == model);
    drop(channel);
    volume.close().unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24, rng_seed: RngSeed::Fixed(11), failure_persistence: None,
        ..ProptestConfig::default()
    })]
    #[test]
    fn it_is_an_array_of_bytes_through_drains_and_restarts(steps in steps()) {
        run(&steps);
    }
}

#[test]
fn more_is_written_than_the_log_holds_by_several_threads() {
    let mut pair = Pair::new(2 << 20);
    let volume = pair.open();
    std::thread::scope(|scope| {
        for thread in 0..3u64 {
            let volume = &volume;
            scope.spawn(move || {
                let mut channel = Arc::clone(volume).channel();
                for round in 0..8u64 {
                    for block in (thread..BLOCKS).step_by(3) {
                        let data = bytes(block * 31 + round * 4 + 3, 4096);
                        write(&mut *channel, block * BLOCK, &data).unwrap();
                        if block % 97 == 0 {
                            channel.submit(Request::Flush, Instant::now()).unwrap();
                        }
                    }
                }
            });
        }
    });
    let mut channel = Arc::clone(&volume).channel();
    for block in 0..BLOCKS {
        let found = read(&mut *channel, block * BLOCK, 4096).unwrap();
        assert!(found == bytes(block * 31 + 7 * 4 + 3, 4096), "block {block}");
    }
    let stats = volume.stats().log.unwrap();
    assert!(stats.windows > 0, "{stats:?}");
    drop(channel);
    volume.close().unwrap();
    assert!(pair.open().report().closed);
}

/// Number of drive flushes for ten flushes of each of four threads.
fn drive_flushes_of_four() -> u64 {
    let mut pair = Pair::new(4 << 20);
    let volume = pair.open();
    // Long enough that the log waits for others for its maximal time.
    pair.log.flush_ms.store(80, Ordering::SeqCst);
    std::thread::scope(|scope| {
        for thread in 0..4u64 {
            let volume = &volume;
            scope.spawn(move || {
                let mut channel = Arc::clone(volume).channel();
                for i in 0..10 {
                    let block = (thread * 200 + i) * BLOCK;
                    write(&mut *channel, block, &bytes(i, 4096)).unwrap();
                    channel.submit(Request::Flush, Instant::now()).unwrap();
                }
            });
        }
    });
    let stats = volume.stats().log.unwrap();
    assert_eq!(stats.flushes, 40);
    let Latency { count, p50_ns, max_ns, .. } = stats.commits;
    assert!(count >= 10 && count <= stats.drive_flushes, "{stats:?}");
    assert!(p50_ns >= 80_000_000 && p50_ns <= max_ns, "{stats:?}");
    volume.close().unwrap();
    stats.drive_flushes
}

#[test]
fn flushes_of_several_threads_share_commits() {
    // 10 commits of all four; with alternating commits of one and three there would be 20. Other
    // work on the machine may spoil some attempts.
    let tries = || (0..8).map(|_| drive_flushes_of_four());
    assert!(tries().any(|flushes| flushes <= 15), "{:?}", tries().collect::<Vec<_>>());
}

/// Writes of the backing store while a thread reads from it, or only sleeps, for some time.
fn written_while(reads: bool) -> u64 {
    let mut pair = Pair::new(4 << 20);
    let policy = Policy { threshold_percent: 0, ..Policy::default() };
    let volume = pair.open_with(LogOptions { policy, ..LogOptions::default() });
    pair.backing.write_ms.store(5, Ordering::SeqCst);
    let mut channel = Arc::clone(&volume).channel();
    // Half of the log, in blocks that are not neighbours; the odd ones are in the backing store.
    for block in (0..1000).step_by(2) {
        write(&mut *channel, block * BLOCK, &bytes(block * 4 + 3, 4096)).unwrap();
    }
    channel.submit(Request::Flush, Instant::now()).unwrap();
    let began = Instant::now();
    for block in (1..).step_by(2) {
        if began.elapsed().as_millis() >= 600 {
            break;
        }
        if reads {
            read(&mut *channel, block % 1000 * BLOCK, 4096).unwrap();
        } else {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
    }
    let writes = pair.backing.writes.load(Ordering::SeqCst);
    pair.backing.write_ms.store(0, Ordering::SeqCst);
    drain(&volume);
    volume.close().unwrap();
    writes
}

#[test]
fn writeback_gives_way_to_readers() {
    // Other work on the machine may spoil one attempt.
    let tries = || (0..4).map(|_| (written_while(true), written_while(false)));
    assert!(tries().any(|(read, alone)| read * 2 < alone), "{:?}", tries().collect::<Vec<_>>());
}

/// The longest write to a full log, and the duration of a window.
fn waits_of_a_full_log() -> (Duration, Duration) {
    let mut pair = Pair::new(4 << 20);
    let volume = pair.open_with(LogOptions::default());
    pair.backing.write_ms.store(4, Ordering::SeqCst);
    let mut channel = Arc::clone(&volume).channel();
    let windows = || volume.stats().log.unwrap().windows;
    let (mut longest, mut began) = (Duration::ZERO, Instant::now());
    let mut full = false;
    for i in 0.. {
        // The first windows begin before the log is full.
        if !full && windows() >= 2 {
            (full, began, longest) = (true, Instant::now(), Duration::ZERO);
        }
        if windows() >= 5 {
            break;
        }
        let now = Instant::now();
        write(&mut *channel, i * 389 % 1000 * BLOCK, &bytes(i * 4 + 3, 4096)).unwrap();
        longest = longest.max(now.elapsed());
    }
    let window = began.elapsed() / 3;
    pair.backing.write_ms.store(0, Ordering::SeqCst);
    drop(channel);
    drain(&volume);
    volume.close().unwrap();
    (longest, window)
}

#[test]
fn writers_of_a_full_log_wait_for_a_part_of_a_window() {
    // Other work on the machine may spoil some attempts.
    let tries = || (0..8).map(|_| waits_of_a_full_log());
    let is_part = |(longest, window): (Duration, Duration)| longest * 3 < window;
    assert!(tries().any(is_part), "{:?}", tries().collect::<Vec<_>>());
}

/// Writes 64 durable incompressible blocks, and damages the first in the log.
fn damage_the_first(pair: &Pair, channel: &mut dyn Channel) {
    for block in 0..64 {
        write(channel, block * BLOCK, &bytes(block * 4 + 3, 4096)).unwrap();
    }
    channel.submit(Request::Flush, Instant::now()).unwrap();
    // The first payload of the first chunk.
    pair.log.damage(data_at(pair.log.size(), SEGMENT) + 200);
}

#[test]
fn a_damaged_record_is_an_error_and_no_other_block_suffers() {
    let mut pair = Pair::new(4 << 20);
    let volume = pair.open();
    let mut channel = Arc::clone(&volume).channel();
    damage_the_first(&pair, &mut *channel);
    assert_eq!(read(&mut *channel, 0, 4096), Err(IoError::Corrupt(0)));
    assert!(read(&mut *channel, BLOCK, 4096).unwrap() == bytes(7, 4096));
    drain(&volume);
    assert_eq!(read(&mut *channel, 0, 4096), Err(IoError::Corrupt(0)), "it stays an error");
    assert!(read(&mut *channel, BLOCK, 4096).unwrap() == bytes(7, 4096));
    drop(channel);
    volume.close().unwrap();
    drop(volume);
    let volume = pair.open();
    let mut channel = Arc::clone(&volume).channel();
    assert_eq!(read(&mut *channel, 0, 4096), Err(IoError::Corrupt(0)), "also after a restart");
    write(&mut *channel, 0, &bytes(3, 4096)).unwrap();
    assert!(read(&mut *channel, 0, 4096).unwrap() == bytes(3, 4096), "until it is written");
    drop(channel);
    volume.close().unwrap();
}

#[test]
fn a_log_drive_that_fails_for_good_is_an_error_and_no_request_hangs() {
    let mut pair = Pair::new(4 << 20);
    let volume = pair.open();
    let mut channel = Arc::clone(&volume).channel();
    write(&mut *channel, 0, &bytes(3, 4096)).unwrap();
    channel.submit(Request::Flush, Instant::now()).unwrap();
    pair.log.broken.store(true, Ordering::SeqCst);
    write(&mut *channel, BLOCK, &bytes(7, 4096)).unwrap();
    assert!(channel.submit(Request::Flush, Instant::now()).is_err());
    assert!(write(&mut *channel, 0, &bytes(11, 4096)).is_err());
    assert!(read(&mut *channel, 0, 4096).unwrap() == bytes(3, 4096));
    assert!(read(&mut *channel, BLOCK, 4096).unwrap() == bytes(7, 4096));
    let log = volume.stats().log.unwrap();
    assert!(log.failed && !log.through && !log.rescuing, "{log:?}");
    let saved = pair.backing.content();
    assert!(saved[..4096] == bytes(3, 4096), "what was durable in the log is saved");
    assert!(saved[4096..8192] == [0; 4096], "what was not would mix two states");
    drop(channel);
    assert!(volume.close().is_err());
    pair.log.broken.store(false, Ordering::SeqCst);
    drop(volume);
    let volume = pair.open();
    let mut channel = Arc::clone(&volume).channel();
    assert!(read(&mut *channel, 0, 4096).unwrap() == bytes(3, 4096));
    drop(channel);
    volume.close().unwrap();
}

/// Makes all writes to the log fail, except to its superblocks, once blocks 0 to 7 are flushed and
/// block 8 is not.
fn wear_out(pair: &mut Pair) -> (Arc<LogVolume>, Box<dyn Channel>) {
    let volume = pair.open();
    let mut channel = Arc::clone(&volume).channel();
    for block in 0..8 {
        write(&mut *channel, block * BLOCK, &bytes(block * 4 + 3, 4096)).unwrap();
    }
    let (offset, len) = (5 * BLOCK, BLOCK);
    channel.submit(Request::Discard { offset, len }, Instant::now()).unwrap();
    channel.submit(Request::Flush, Instant::now()).unwrap();
    pair.log.worn_from.store(data_at(pair.log.size(), SEGMENT), Ordering::SeqCst);
    write(&mut *channel, 8 * BLOCK, &bytes(7, 4096)).unwrap();
    (volume, channel)
}

#[test]
fn a_log_that_takes_nothing_is_closed_and_writes_go_through() {
    let mut pair = Pair::new(4 << 20);
    pair.backing.write(5 * BLOCK, &[9; 4096]).unwrap();
    let (volume, mut channel) = wear_out(&mut pair);
    channel.submit(Request::Flush, Instant::now()).unwrap();
    let log = volume.stats().log.unwrap();
    assert!(log.failed && log.through && log.clean && !log.rescuing, "{log:?}");
    let stale = Arc::new(RamDrive::new(4 << 20));
    stale.write(0, &pair.log.content()).unwrap();
    write(&mut *channel, 0, &bytes(11, 4096)).unwrap();
    write(&mut *channel, 3 * BLOCK + 100, &[1; 50]).unwrap();
    let (offset, len) = (2 * BLOCK, BLOCK);
    channel.submit(Request::Discard { offset, len }, Instant::now()).unwrap();
    let flushes = pair.backing.flushes.load(Ordering::SeqCst);
    channel.submit(Request::Flush, Instant::now()).unwrap();
    assert_eq!(pair.backing.flushes.load(Ordering::SeqCst), flushes + 1);
    let mut expected: Vec<u8> = (0..8).flat_map(|block| bytes(block * 4 + 3, 4096)).collect();
    expected.extend(bytes(7, 4096));
    expected[..4096].copy_from_slice(&bytes(11, 4096));
    expected[3 * 4096 + 100..3 * 4096 + 150].fill(1);
    expected[2 * 4096..3 * 4096].fill(0);
    expected[5 * 4096..6 * 4096].fill(0);
    assert!(read(&mut *channel, 0, 9 * 4096).unwrap() == expected);
    assert!(pair.backing.content()[..9 * 4096] == expected);
    drop(channel);
    volume.close().unwrap();
    // The log as it was at the first write-through is void.
    pair.log = stale;
    let volume = pair.open();
    assert!(volume.report().closed && volume.report().entries == 0, "{}", volume.report());
    let mut channel = Arc::clone(&volume).channel();
    assert!(read(&mut *channel, 0, 9 * 4096).unwrap() == expected);
    drop(channel);
    volume.close().unwrap();
}

#[test]
fn what_a_failed_log_cannot_give_back_stays_an_error() {
    let mut pair = Pair::new(4 << 20);
    let volume = pair.open();
    let mut channel = Arc::clone(&volume).channel();
    damage_the_first(&pair, &mut *channel);
    pair.log.worn_from.store(data_at(pair.log.size(), SEGMENT), Ordering::SeqCst);
    write(&mut *channel, 64 * BLOCK, &bytes(7, 4096)).unwrap();
    channel.submit(Request::Flush, Instant::now()).unwrap();
    assert!(volume.stats().log.unwrap().through);
    assert_eq!(volume.stats().log_lost_blocks, [(0, 1)]);
    assert_eq!(read(&mut *channel, 0, 4096), Err(IoError::Corrupt(0)));
    assert_eq!(write(&mut *channel, 0, &bytes(3, 4096)), Err(IoError::Corrupt(0)));
    write(&mut *channel, BLOCK, &bytes(3, 4096)).unwrap();
    drop(channel);
    volume.close().unwrap();
    pair.log.worn_from.store(u64::MAX, Ordering::SeqCst);
    for _ in 0..2 {
        let volume = pair.open();
        let mut channel = Arc::clone(&volume).channel();
        assert_eq!(read(&mut *channel, 0, 4096), Err(IoError::Corrupt(0)), "after a restart, too");
        assert!(read(&mut *channel, BLOCK, 4096).unwrap() == bytes(3, 4096));
        write(&mut *channel, 2 * BLOCK, &bytes(3, 4096)).unwrap();
        drain(&volume);
        assert_eq!(read(&mut *channel, 0, 4096), Err(IoError::Corrupt(0)));
        drop(channel);
        volume.close().unwrap();
    }
    let volume = pair.open();
    let mut channel = Arc::clone(&volume).channel();
    write(&mut *channel, 0, &bytes(3, 4096)).unwrap();
    assert!(read(&mut *channel, 0, 4096).unwrap() == bytes(3, 4096), "until it is written");
    drop(channel);
    volume.close().unwrap();
}

/// A reader has located a block in the log. Before it reads the bytes, the log is given up, and the
/// block, which is damaged there, is lost: the backing store has older content.
#[test]
fn a_reader_of_what_is_lost_meanwhile_gets_nothing_older() {
    let mut pair = Pair::new(4 << 20);
    let volume = pair.open();
    let mut channel = Arc::clone(&volume).channel();
    damage_the_first(&pair, &mut *channel);
    let before = pair.log.reads.load(Ordering::SeqCst);
    pair.log.read_ms.store(1000, Ordering::SeqCst);
    let late = Arc::clone(&volume);
    let reader = std::thread::spawn(move || read(&mut *late.channel(), 0, 4096));
    while pair.log.reads.load(Ordering::SeqCst) == before {
        std::thread::sleep(Duration::from_millis(1));
    }
    std::thread::sleep(Duration::from_millis(50)); // it has looked how long it is to wait
    pair.log.read_ms.store(0, Ordering::SeqCst);
    pair.log.worn_from.store(data_at(pair.log.size(), SEGMENT), Ordering::SeqCst);
    write(&mut *channel, 64 * BLOCK, &bytes(7, 4096)).unwrap();
    channel.submit(Request::Flush, Instant::now()).unwrap();
    assert!(volume.stats().log.unwrap().through);
    assert_eq!(reader.join().unwrap(), Err(IoError::Corrupt(0)));
    assert!(read(&mut *channel, BLOCK, 4096).unwrap() == bytes(7, 4096));
    drop(channel);
    volume.close().unwrap();
}

#[test]
fn a_failed_log_and_a_failing_backing_store_are_an_error_until_that_is_mended() {
    let mut pair = Pair::new(4 << 20);
    pair.backing.broken.store(true, Ordering::SeqCst);
    let (volume, mut channel) = wear_out(&mut pair);
    assert!(channel.submit(Request::Flush, Instant::now()).is_err(), "no flush waits for ever");
    assert!(write(&mut *channel, 0, &bytes(11, 4096)).is_err());
    assert!(volume.stats().log.unwrap().rescuing);
    pair.backing.broken.store(false, Ordering::SeqCst);
    let began = Instant::now();
    while !volume.stats().log.unwrap().through {
        assert!(began.elapsed().as_secs() < 60, "{:?}", volume.stats().log);
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    write(&mut *channel, 0, &bytes(11, 4096)).unwrap();
    channel.submit(Request::Flush, Instant::now()).unwrap();
    assert!(pair.backing.content()[..4096] == bytes(11, 4096));
    drop(channel);
    volume.close().unwrap();
}

fn kept() -> log::Kept {
    log::Kept::new(&Memory::default()).unwrap()
}

#[test]
fn logs_that_cannot_be_opened_say_why() {
    let log = RamDrive::new(4 << 20);
    let open = |log: &RamDrive| {
        log::open(log, log::Options::default(), 1, false, kept()).map(|_| ()).unwrap_err()
    };
    assert_eq!(open(&log).to_string(), "no log is on it");
    log::format(&log, [1; 16], [0; IDENTITY], BLOCKS, SEGMENT).unwrap();
    log.damage(100);
    assert!(log::open(&log, log::Options::default(), 1, false, kept()).unwrap().1.mended);
    log.damage(100);
    log.damage((64 << 10) + 100);
    assert_eq!(open(&log).to_string(), "both copies of the superblock are damaged");
    let small = RamDrive::new(256 << 10);
    let refused = log::format(&small, [1; 16], [0; IDENTITY], BLOCKS, SEGMENT).unwrap_err();
    assert!(refused.to_string().contains("segments fit"), "{refused}");
    let refused = log::format(&log, [1; 16], [0; IDENTITY], BLOCKS, 48 << 10).unwrap_err();
    assert!(refused.to_string().contains("power of two"), "{refused}");
    assert!(small.size() > 0);
}

#[test]
fn opening_says_how_far_it_is() {
    let mut pair = Pair::new(8 << 20);
    let volume = pair.open();
    let mut channel = Arc::clone(&volume).channel();
    for block in 0..300 {
        write(&mut *channel, block * BLOCK, &bytes(block, 4096)).unwrap();
    }
    channel.submit(Request::Flush, Instant::now()).unwrap();
    drop(channel);
    volume.close().unwrap();
    let steps = std::cell::RefCell::new(Vec::new());
    let told = |step| steps.borrow_mut().push(step);
    let found = log::inspect_telling(&*pair.log, false, true, &told).unwrap();
    let (mut chain, mut records) = (Vec::new(), Vec::new());
    for step in steps.take() {
        match step {
            At::Chain { done, most } => {
                assert!(done <= most && most <= found.superblock.segments);
                chain.push(done);
            }
            At::Records { done, of } => {
                assert_eq!(of, found.report.chunks);
                records.push(done);
            }
            At::Index { .. } | At::Checkpoint { .. } => panic!("there is none"),
        }
    }
    let last = found.chunks.last().unwrap().0.segment - found.chunks[0].0.segment;
    assert!(last > 3 && chain.is_sorted() && chain.first() == Some(&0), "{chain:?}");
    assert_eq!(chain.last(), Some(&last));
    assert_eq!(records, (0..found.report.chunks).collect::<Vec<_>>());
    log::inspect_telling(&*pair.log, false, false, &told).unwrap();
    let changes = found.report.entries;
    assert_eq!(steps.take().last(), Some(&At::Index { changes }));
    let image =
        std::fs::read(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/log-v3-checkpoint.img"));
    pair.log.write(0, &image.unwrap()).unwrap();
    log::inspect_telling(&*pair.log, false, false, &told).unwrap();
    assert!(matches!(steps.take()[0], At::Checkpoint { done: 0, of } if of > 0));
}

#[test]
fn a_log_that_is_made_over_another_is_empty() {
    let mut pair = Pair::new(4 << 20);
    let volume = pair.open();
    let mut channel = Arc::clone(&volume).channel();
    write(&mut *channel, 0, &bytes(3, 4096)).unwrap();
    channel.submit(Request::Flush, Instant::now()).unwrap();
    drop(channel);
    volume.close().unwrap();
    log::format(&*pair.log, [8; 16], [0; IDENTITY], BLOCKS, SEGMENT).unwrap();
    let volume = pair.open();
    assert_eq!(volume.report().chunks, 0, "{}", volume.report());
    let mut channel = Arc::clone(&volume).channel();
    assert!(read(&mut *channel, 0, 4096).unwrap() == [0; 4096]);
    drop(channel);
    volume.close().unwrap();
}

/// The content of the golden image: each kind of record, a discard, and a block written twice.
fn golden_blocks() -> Vec<(u64, Vec<u8>)> {
    let mut blocks: Vec<_> = (0..12).map(|i| (i * 3, bytes(i * 5 + 1, 4096))).collect();
    blocks.push((100, vec![0; 4096]));
    blocks.push((101, vec![0; 4096]));
    blocks
}

/// Writes the golden image, if `ZTIER_GOLDEN=write` requests one of this version; returns its
/// content.
fn golden_image(name: &str, size: u64, checkpoint: u64) -> Vec<u8> {
    let path = format!("{}/tests/golden/{name}", env!("CARGO_MANIFEST_DIR"));
    if std::env::var("ZTIER_GOLDEN").is_ok_and(|what| what == "write") {
        let (log, backing) =
            (Arc::new(RamDrive::new(size)), Arc::new(RamDrive::new(BLOCKS * BLOCK)));
        log::format(&*log, [1; 16], [2; IDENTITY], BLOCKS, 32 << 10).unwrap();
        let log_options = log::Options { checkpoint, ..log::Options::default() };
        let policy = Policy { enabled: false, ..Policy::default() };
        let options = LogOptions { log: log_options, policy, ..LogOptions::default() };
        let volume = LogVolume::open(Arc::clone(&log) as _, backing, options, 77).unwrap();
        volume.start(None).unwrap();
        let mut channel = Arc::clone(&volume).channel();
        write(&mut *channel, 101 * BLOCK, &bytes(7, 4096)).unwrap();
        for (block, data) in golden_blocks() {
            write(&mut *channel, block * BLOCK, &bytes(block + 2, 4096)).unwrap();
            write(&mut *channel, block * BLOCK, &data).unwrap();
            channel.submit(Request::Flush, Instant::now()).unwrap();
            // Leaves time for checkpoints.
            std::thread::sleep(Duration::from_millis(20));
        }
        let (offset, len) = (101 * BLOCK, BLOCK);
        channel.submit(Request::Discard { offset, len }, Instant::now()).unwrap();
        channel.submit(Request::Flush, Instant::now()).unwrap();
        std::fs::write(&path, log.content()).unwrap();
    }
    std::fs::read(&path).unwrap()
}

/// Checks that an image is readable; returns whether it has a checkpoint.
fn golden_is_readable(image: &[u8]) -> bool {
    let log = Arc::new(RamDrive::new(image.len() as u64));
    log.write(0, image).unwrap();
    let found = log::inspect(&*log, false, true).unwrap();
    assert!(found.damaged.is_empty() && found.report.chunks >= 14, "{:?}", found.report);
    let known = log::inspect(&*log, false, false).unwrap().report.known;
    let backing = Arc::new(RamDrive::new(BLOCKS * BLOCK));
    let volume = LogVolume::open(log, Arc::clone(&backing) as _, LogOptions::default(), 78);
    let volume = volume.unwrap();
    volume.start(None).unwrap();
    let mut channel = Arc::clone(&volume).channel();
    for (block, data) in golden_blocks() {
        assert!(read(&mut *channel, block * BLOCK, 4096).unwrap() == data, "block {block}");
    }
    drain(&volume);
    let drained = backing.content();
    for (block, data) in golden_blocks() {
        assert!(drained[(block * BLOCK) as usize..][..4096] == data, "block {block}");
    }
    drop(channel);
    volume.close().unwrap();
    known > 0
}

/// The first image has segments right behind the superblocks, and nothing else.
#[test]
fn the_first_format_stays_readable() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/log-v3.img");
    assert!(!golden_is_readable(&std::fs::read(path).unwrap()));
}

/// The second has summaries, and a checkpoint without increments that does not cover everything.
#[test]
fn a_log_with_a_checkpoint_stays_readable() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/golden/log-v3-checkpoint.img");
    assert!(golden_is_readable(&std::fs::read(path).unwrap()));
}

/// The third has a checkpoint with increments.
#[test]
fn a_log_with_increments_stays_readable() {
    let image = golden_image("log-v3-increment.img", 448 << 10, 1);
    let log = RamDrive::new(image.len() as u64);
    log.write(0, &image).unwrap();
    let (superblock, ..) = log::read_superblock(&log).unwrap();
    assert!(superblock.checkpoint.is_some_and(|named| named.whole < named.count));
    assert!(golden_is_readable(&image));
}

#[test]
fn zeros_that_the_backing_store_lacks_are_counted_until_it_has_them() {
    let mut pair = Pair::new(4 << 20);
    let policy = Policy { enabled: false, ..Policy::default() };
    let options = LogOptions { policy, ..LogOptions::default() };
    let counted = |volume: &LogVolume| {
        let log = volume.stats().log.unwrap();
        (log.blocks_zeroed, log.zeroed_back_bytes, log.written_back_bytes)
    };
    let volume = pair.open_with(options);
    let mut channel = Arc::clone(&volume).channel();
    let (offset, len) = (8 * BLOCK, 100 * BLOCK);
    channel.submit(Request::Discard { offset, len }, Instant::now()).unwrap();
    write(&mut *channel, 200 * BLOCK, &bytes(3, 4096)).unwrap();
    channel.submit(Request::Flush, Instant::now()).unwrap();
    assert_eq!(counted(&volume), (100, 0, 0));
    assert_eq!(volume.stats().log.unwrap().left_bytes(), 101 * BLOCK);
    drop(channel);
    volume.close().unwrap();
    drop(volume);
    let volume = pair.open_with(options);
    assert_eq!(counted(&volume), (100, 0, 0), "also in the next process");
    pair.backing.broken.store(true, Ordering::SeqCst);
    volume.drain(true);
    let began = Instant::now();
    while volume.stats().log.unwrap().windows_failed == 0 {
        assert!(began.elapsed().as_secs() < 60, "{:?}", volume.stats().log);
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(counted(&volume), (100, 0, 0), "what failed does not count");
    pair.backing.broken.store(false, Ordering::SeqCst);
    drain(&volume);
    assert_eq!(counted(&volume), (0, 100 * BLOCK, BLOCK));
    volume.close().unwrap();
}

#[test]
fn zeros_written_one_after_the_other_take_hardly_any_memory() {
    const MANY: u64 = 1 << 18;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("backing");
    std::fs::File::create(&path).unwrap().set_len(MANY * BLOCK).unwrap();
    let log = Arc::new(RamDrive::new(16 << 20));
    log::format(&*log, [7; 16], [0; IDENTITY], MANY, SEGMENT).unwrap();
    let open = |epoch| {
        let backing = Arc::new(FileDrive::open(&path, Access::Exclusive).unwrap());
        let options = LogOptions::default();
        let volume = LogVolume::open(Arc::clone(&log) as _, backing, options, epoch).unwrap();
        volume.start(None).unwrap();
        volume
    };
    let check = |volume: &LogVolume, when: &str| {
        let log = volume.stats().log.unwrap();
        assert!(log.index_bytes < MANY, "less than a byte a block {when}: {log:?}");
    };
    let volume = open(1);
    let mut channel = Arc::clone(&volume).channel();
    let zeros = vec![0; 64 << 10];
    for at in (0..MANY * BLOCK).step_by(zeros.len()) {
        write(&mut *channel, at, &zeros).unwrap();
    }
    check(&volume, "when they are written");
    drop(channel);
    volume.close().unwrap();
    drop(volume);
    let volume = open(2);
    check(&volume, "in the next process");
    drain(&volume);
    check(&volume, "when they are written back");
    let mut channel = Arc::clone(&volume).channel();
    assert!(read(&mut *channel, (MANY - 16) * BLOCK, 64 << 10).unwrap() == zeros);
    drop(channel);
    volume.close().unwrap();
}

/// Whether the backing store gets a single flushed write within this time, without more requests.
fn is_written_back_alone(policy: Policy, within: Duration) -> bool {
    let mut pair = Pair::new(4 << 20);
    let volume = pair.open_with(LogOptions { policy, ..LogOptions::default() });
    let mut channel = Arc::clone(&volume).channel();
    write(&mut *channel, 7 * BLOCK, &bytes(3, 4096)).unwrap();
    channel.submit(Request::Flush, Instant::now()).unwrap();
    let (began, mut clean) = (Instant::now(), false);
    while !clean && began.elapsed() < within {
        std::thread::sleep(Duration::from_millis(5));
        clean = volume.stats().log.unwrap().clean;
    }
    assert_eq!(pair.backing.content()[7 * 4096..8 * 4096] == bytes(3, 4096), clean);
    drop(channel);
    volume.close().unwrap();
    clean
}

#[test]
fn with_a_threshold_of_0_nothing_stays_in_the_newest_segment() {
    let (soon, late) = (Duration::from_millis(700), Duration::from_secs(60));
    for idle in [Duration::ZERO, Duration::from_millis(300)] {
        let policy = Policy { threshold_percent: 0, idle, ..Policy::default() };
        assert!(is_written_back_alone(policy, late), "{idle:?}");
    }
    let idle = Duration::ZERO;
    let absorbs = Policy { threshold_percent: 1, idle, ..Policy::default() };
    assert!(!is_written_back_alone(absorbs, soon), "no write wakes a slow disk");
    let off = Policy { threshold_percent: 0, idle, enabled: false, ..Policy::default() };
    assert!(!is_written_back_alone(off, soon), "without writeback nothing is written back");
}

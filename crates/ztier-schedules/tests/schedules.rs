//! Schedules of the memory engine: [shuttle](https://docs.rs/shuttle) runs each test under
//! thousands of thread interleavings, and must find each planted bug.
//!
//! Built only with `scripts/rustc-shuttle`; a failure prints the schedule that replays it.
#![cfg(shuttle)]
#![allow(clippy::unwrap_used)]

use shuttle::sync::Mutex;
use shuttle::sync::atomic::{AtomicU64, Ordering};
use shuttle::thread;
use std::sync::Arc;
use std::time::Instant;
use ztier::device::{
    Algorithm, Channel, Device, IoError, Options, Recompress, Request, Serving, SpillTo, Volume,
};
use ztier::media::{Drive, DriveError, Memory, Words};
use ztier::ram::store::FreedBits;
use ztier::ram::store::log::Reservation;
use ztier::ram::store::planted::{Bug, plant};
use ztier::ram::store::segment::Segments;
use ztier_schedules::hold_and_find;

const SEGMENT: u32 = 32 << 10;
/// Multiplier for incompressible blocks: seven fill a segment.
const NOISE: u64 = 0x9e37_79b9_7f4a_7c15;

/// Memory for recompression, in bytes.
const PACKING: u64 = 1 << 20;

/// A spill device that yields to other threads at every block.
struct Slow(Mutex<Vec<u8>>);

impl Drive for Slow {
    fn size(&self) -> u64 {
        self.0.lock().unwrap().len() as u64
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        for (at, buf) in (at as usize..).step_by(4096).zip(buf.chunks_mut(4096)) {
            buf.copy_from_slice(&self.0.lock().unwrap()[at..at + buf.len()]);
        }
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        for (at, data) in (at as usize..).step_by(4096).zip(data.chunks(4096)) {
            self.0.lock().unwrap()[at..at + data.len()].copy_from_slice(data);
        }
        Ok(())
    }

    fn zero(&self, _: u64, _: u64) -> Result<(), DriveError> {
        Ok(())
    }

    fn flush(&self) -> Result<(), DriveError> {
        Ok(())
    }
}

fn volume(blocks: u64, segments: u64) -> Arc<Volume> {
    Arc::new(Volume::new(&options(blocks, segments)).unwrap())
}

/// A volume with memory for recompression besides its segments.
fn packing(blocks: u64, segments: u64) -> Arc<Volume> {
    let options = options(blocks, segments);
    let ram_limit = options.ram_limit + PACKING;
    Arc::new(Volume::new(&Options { ram_limit, ..options }).unwrap())
}

/// A volume with a spill device of `slots` slots.
fn above(blocks: u64, segments: u64, slots: u32) -> Arc<Volume> {
    above_of(&options(blocks, segments), slots)
}

fn above_of(options: &Options, slots: u32) -> Arc<Volume> {
    let bytes = vec![0; (slots as usize + 1) * SEGMENT as usize];
    let below = SpillTo { drive: Arc::new(Slow(Mutex::new(bytes))), slots, daily: 0 };
    Arc::new(Volume::new_over(options, &Memory::default(), Some(below)).unwrap())
}

fn options(blocks: u64, segments: u64) -> Options {
    Options {
        size: blocks * 4096,
        // The size of fixed tables is constant; only segments are scarce.
        ram_limit: (1 << 20) + segments * u64::from(SEGMENT),
        ram_limit_max: 0,
        segment: SEGMENT,
        algorithm: Algorithm::None,
        lock_memory: false,
    }
}

/// A block that encodes its number and version.
fn block(number: u64, version: u64) -> Vec<u8> {
    let mut x = number << 32 | version | 1;
    let mut data: Vec<u8> = [number, version].iter().flat_map(|n| n.to_le_bytes()).collect();
    // The same bytes eight times: compresses alone, so the block is not put into a cluster.
    while data.len() < 512 {
        x = x.wrapping_mul(NOISE).rotate_left(17);
        data.extend_from_slice(&x.to_le_bytes());
    }
    data.repeat(8)
}

fn write(channel: &mut dyn Channel, number: u64, version: u64) -> Result<(), IoError> {
    let data = block(number, version);
    channel
        .submit(Request::Write { offset: number * 4096, data: &data, fua: false }, Instant::now())
}

/// The version that block `number` has; panics unless all of its bytes are of one version.
fn read(channel: &mut dyn Channel, number: u64) -> u64 {
    let mut buf = vec![0; 4096];
    let request = Request::Read { offset: number * 4096, buf: &mut buf };
    channel.submit(request, Instant::now()).unwrap();
    if buf.iter().all(|b| *b == 0) {
        return 0;
    }
    let version = u64::from_le_bytes(buf[8..16].try_into().unwrap());
    assert!(buf == block(number, version), "block {number} is torn or another's");
    version
}

/// What must hold when all threads have ended: counters, order, and no segment is lost.
fn check(volume: &Arc<Volume>) {
    volume.audit().unwrap();
    let mut channel = Arc::clone(volume).channel();
    let discard = Request::Discard { offset: 0, len: volume.size() };
    channel.submit(discard, Instant::now()).unwrap();
    volume.clean_now();
    volume.audit().unwrap();
    assert!(volume.stats().segments <= 1, "a segment of an empty volume is in use");
}

/// Two threads write the same two blocks: the last write in the log must be last in the index.
fn writers_of_the_same_block() {
    let volume = volume(32, 12);
    let threads: Vec<_> = (0..2u64)
        .map(|t| {
            let volume = Arc::clone(&volume);
            thread::spawn(move || {
                let mut channel = volume.channel();
                for i in 0..3 {
                    write(&mut *channel, i % 2, 1 + t * 10 + i).unwrap();
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    check(&volume);
}

/// One thread writes versions in order, another reads: a read never returns a version older than
/// the last one acknowledged before the read began, while the cleaner moves records.
fn a_reader_beside_a_writer_and_the_cleaner() {
    let volume = volume(32, 8);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let writer = {
        let (volume, acknowledged) = (Arc::clone(&volume), Arc::clone(&acknowledged));
        thread::spawn(move || {
            let mut channel = volume.channel();
            for version in 1..6 {
                for number in 0..4 {
                    write(&mut *channel, number, version).unwrap();
                }
                acknowledged.store(version, Ordering::SeqCst);
            }
        })
    };
    let cleaner = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || (0..4).for_each(|_| volume.clean_now()))
    };
    let mut channel = Arc::clone(&volume).channel();
    for number in [0, 3, 0, 1] {
        let least = acknowledged.load(Ordering::SeqCst);
        assert!(read(&mut *channel, number) >= least, "block {number} is stale");
    }
    writer.join().unwrap();
    cleaner.join().unwrap();
    for number in 0..4 {
        assert_eq!(read(&mut *channel, number), 5);
    }
    check(&volume);
}

/// Two writers fill a volume whose limit is so low that each makes room for the other.
fn writers_at_the_limit() {
    let volume = volume(16, 6);
    let threads: Vec<_> = (0..2u64)
        .map(|t| {
            let volume = Arc::clone(&volume);
            thread::spawn(move || {
                let mut channel = volume.channel();
                for version in 1..5 {
                    for number in 0..5 {
                        write(&mut *channel, t * 8 + number, version).unwrap();
                    }
                }
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let mut channel = Arc::clone(&volume).channel();
    for number in (0..5).chain(8..13) {
        assert_eq!(read(&mut *channel, number), 4);
    }
    check(&volume);
}

/// Two threads change different halves of one block: neither change is lost.
fn modifiers_of_one_block() {
    let volume = volume(16, 8);
    let threads: Vec<_> = (0..2u64)
        .map(|t| {
            let volume = Arc::clone(&volume);
            thread::spawn(move || {
                let mut channel = volume.channel();
                let data = [t as u8 + 1; 100];
                let write = Request::Write { offset: t * 2048, data: &data, fua: false };
                channel.submit(write, Instant::now()).unwrap();
            })
        })
        .collect();
    threads.into_iter().for_each(|t| t.join().unwrap());
    let mut channel = Arc::clone(&volume).channel();
    for t in 0..2 {
        let mut buf = [0; 100];
        let read = Request::Read { offset: t * 2048, buf: &mut buf };
        channel.submit(read, Instant::now()).unwrap();
        assert!(buf.iter().all(|b| u64::from(*b) == t + 1), "a change was lost");
    }
    check(&volume);
}

/// One thread discards the last block of an index leaf and has the leaf freed while another writes
/// to the leaf.
fn a_leaf_that_leaves_while_it_is_written() {
    let volume = volume(512, 8);
    let mut channel = Arc::clone(&volume).channel();
    write(&mut *channel, 1, 1).unwrap();
    let dropper = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || {
            let mut channel = Arc::clone(&volume).channel();
            let discard = Request::Discard { offset: 4096, len: 4096 };
            channel.submit(discard, Instant::now()).unwrap();
            volume.clean_now();
        })
    };
    write(&mut *channel, 2, 7).unwrap();
    dropper.join().unwrap();
    volume.clean_now();
    assert_eq!(read(&mut *channel, 2), 7);
    assert_eq!(read(&mut *channel, 1), 0);
    check(&volume);
}

/// Between any two steps of a write the other thread seals the segment with the block's old
/// version, and cleans that segment.
fn a_writer_that_is_overtaken() {
    // Blocks of two groups: blocks of one group share a lock, and no writer could overtake.
    let volume = volume(32, 8);
    let mut channel = Arc::clone(&volume).channel();
    write(&mut *channel, 0, 1).unwrap();
    // All of the segment but the first block is garbage, so that cleaning it pays.
    (1..8).for_each(|version| write(&mut *channel, 16, version).unwrap());
    let slow = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || write(&mut *volume.channel(), 0, 2).unwrap())
    };
    write(&mut *channel, 16, 8).unwrap();
    volume.clean_now();
    slow.join().unwrap();
    assert_eq!((read(&mut *channel, 0), read(&mut *channel, 16)), (2, 8));
    check(&volume);
}

/// A reader beside a writer and the cleaner, while segments are spilled and promoted all the time;
/// slots are few, so that they are reused.
fn a_reader_beside_what_goes_down_and_up() {
    let volume = above(32, 12, 5);
    let acknowledged = Arc::new(AtomicU64::new(0));
    let mut channel = Arc::clone(&volume).channel();
    // More than a segment, so that some of it can be spilled at once.
    for number in (0..4).chain(16..22) {
        write(&mut *channel, number, 1).unwrap();
    }
    let writer = {
        let (volume, acknowledged) = (Arc::clone(&volume), Arc::clone(&acknowledged));
        thread::spawn(move || {
            let mut channel = volume.channel();
            for version in 2..6 {
                for number in 0..4 {
                    write(&mut *channel, number, version).unwrap();
                }
                acknowledged.store(version, Ordering::SeqCst);
            }
        })
    };
    let mover = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || {
            for _ in 0..3 {
                volume.spill_now();
                volume.compact_now();
                volume.clean_now();
            }
        })
    };
    for number in [0, 0, 3, 0, 3, 1] {
        let least = acknowledged.load(Ordering::SeqCst);
        assert!(read(&mut *channel, number) >= least, "block {number} is stale");
    }
    writer.join().unwrap();
    mover.join().unwrap();
    volume.spill_now();
    for (number, version) in (0..4).map(|n| (n, 5)).chain((16..22).map(|n| (n, 1))) {
        assert_eq!(read(&mut *channel, number), version);
    }
    check(&volume);
}

/// Readers in order, and the thread that reads ahead of them, while slots are reused.
fn a_stream_beside_what_goes_down_and_up() {
    let volume = above(32, 12, 5);
    let mut channel = Arc::clone(&volume).channel();
    for number in 0..10 {
        write(&mut *channel, number, 1).unwrap();
    }
    volume.spill_now();
    let mover = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || {
            let mut channel = Arc::clone(&volume).channel();
            for version in 2..4 {
                (0..10).for_each(|number| write(&mut *channel, number, version).unwrap());
                volume.spill_now();
                volume.compact_now();
                volume.clean_now();
            }
        })
    };
    let ahead = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || (0..6).filter(|_| volume.read_ahead_now()).count())
    };
    let mut least = [1; 10];
    for number in (0..10).chain(0..10) {
        let version = read(&mut *channel, number);
        assert!(version >= least[number as usize], "block {number} is stale");
        least[number as usize] = version;
    }
    mover.join().unwrap();
    ahead.join().unwrap();
    while volume.read_ahead_now() {}
    (0..10).for_each(|number| assert_eq!(read(&mut *channel, number), 3));
    check(&volume);
}

/// One thread reads a spilled block twice, which promotes it, while another writes it.
fn a_block_that_is_read_again_while_it_is_written() {
    let volume = above(32, 12, 5);
    let mut channel = Arc::clone(&volume).channel();
    for number in (0..4).chain(16..22) {
        write(&mut *channel, number, 1).unwrap();
    }
    volume.spill_now();
    assert_eq!(read(&mut *channel, 0), 1);
    let writer = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || write(&mut *volume.channel(), 0, 2).unwrap())
    };
    read(&mut *channel, 0);
    writer.join().unwrap();
    assert_eq!(read(&mut *channel, 0), 2);
    check(&volume);
}

/// Recompression builds, moves and splits clusters while other threads write and discard their
/// blocks.
fn a_group_that_is_written_while_it_is_recompressed() {
    let volume = packing(32, 12);
    let mut channel = Arc::clone(&volume).channel();
    for number in (0..4).chain(16..22) {
        write(&mut *channel, number, 1).unwrap();
    }
    let packer = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || {
            for _ in 0..2 {
                volume.recompress_now();
                volume.clean_now();
            }
        })
    };
    let writer = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || {
            let mut channel = volume.channel();
            write(&mut *channel, 1, 2).unwrap();
            let discard = Request::Discard { offset: 3 * 4096, len: 4096 };
            channel.submit(discard, Instant::now()).unwrap();
            write(&mut *channel, 2, 3).unwrap();
        })
    };
    for number in [0, 2, 0, 1] {
        assert!(read(&mut *channel, number) >= 1, "block {number} is lost");
    }
    writer.join().unwrap();
    packer.join().unwrap();
    volume.recompress_now();
    for (number, version) in [(0, 1), (1, 2), (2, 3), (3, 0), (16, 1), (21, 1)] {
        assert_eq!(read(&mut *channel, number), version, "block {number}");
    }
    check(&volume);
}

/// Clusters come and go at the same memory addresses while a thread reads them.
fn a_reader_beside_clusters_that_come_and_go() {
    let volume = packing(32, 12);
    let mut channel = Arc::clone(&volume).channel();
    let acknowledged = Arc::new(AtomicU64::new(0));
    let writer = {
        let (volume, acknowledged) = (Arc::clone(&volume), Arc::clone(&acknowledged));
        thread::spawn(move || {
            let mut channel = Arc::clone(&volume).channel();
            for version in 1..7 {
                // As many as fill a segment, so that it is sealed.
                for number in (0..4).chain(16..20) {
                    write(&mut *channel, number, version).unwrap();
                }
                acknowledged.store(version, Ordering::SeqCst);
                volume.recompress_now();
                if version % 3 == 1 {
                    assert_eq!(read(&mut *channel, 1), version);
                }
                // None of these blocks is live any more, and their segment is reused.
                let discard = Request::Discard { offset: 0, len: 32 * 4096 };
                channel.submit(discard, Instant::now()).unwrap();
                (0..2).for_each(|_| volume.clean_now());
            }
            write(&mut *channel, 1, 7).unwrap();
        })
    };
    for number in [1, 2, 1, 3, 0, 1] {
        let least = acknowledged.load(Ordering::SeqCst);
        let version = read(&mut *channel, number);
        assert!(version == 0 || version >= least, "block {number} is stale");
    }
    writer.join().unwrap();
    assert_eq!(read(&mut *channel, 1), 7);
    check(&volume);
}

/// Spilling builds clusters while threads write and read their blocks.
fn clusters_that_go_down_and_up() {
    let options = options(32, 12);
    let ram_limit = options.ram_limit + PACKING;
    let volume = above_of(&Options { ram_limit, ..options }, 5);
    volume.set_recompress(Recompress::Idle).unwrap();
    let mut channel = Arc::clone(&volume).channel();
    for number in (0..4).chain(16..22) {
        write(&mut *channel, number, 1).unwrap();
    }
    let mover = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || {
            for _ in 0..2 {
                volume.recompress_now();
                volume.clean_now();
                volume.spill_now();
                volume.compact_now();
            }
        })
    };
    let writer = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || {
            let mut channel = volume.channel();
            for version in 2..4 {
                write(&mut *channel, 1, version).unwrap();
                write(&mut *channel, 17, version).unwrap();
            }
        })
    };
    for number in [0, 1, 0, 2, 0, 17] {
        assert!(read(&mut *channel, number) >= 1, "block {number} is lost");
    }
    writer.join().unwrap();
    mover.join().unwrap();
    volume.spill_now();
    for (number, version) in [(0, 1), (1, 3), (2, 1), (3, 1), (16, 1), (17, 3), (21, 1)] {
        assert_eq!(read(&mut *channel, number), version, "block {number}");
    }
    check(&volume);
}

/// Two threads free dead slots, and a writer reuses their segments at once.
fn two_who_free_slots_beside_a_writer() {
    let volume = above(32, 12, 5);
    let mut channel = Arc::clone(&volume).channel();
    for number in (0..4).chain(16..22) {
        write(&mut *channel, number, 1).unwrap();
    }
    volume.spill_now();
    let discard = Request::Discard { offset: 0, len: 32 * 4096 };
    channel.submit(discard, Instant::now()).unwrap();
    let cleaner = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || volume.clean_now())
    };
    let spiller = {
        let volume = Arc::clone(&volume);
        thread::spawn(move || volume.compact_now())
    };
    for number in (0..4).chain(16..24) {
        write(&mut *channel, number, 2).unwrap();
    }
    cleaner.join().unwrap();
    spiller.join().unwrap();
    volume.clean_now();
    for number in (0..4).chain(16..24) {
        assert_eq!(read(&mut *channel, number), 2, "block {number}");
    }
    check(&volume);
}

/// A thread claims a segment that it looked up earlier. Meanwhile another segment has this number;
/// only one thread can claim that segment.
fn a_claim_that_comes_too_late() {
    let segments = Segments::new(&Memory::default(), 1, 0).unwrap();
    let (segment, _) = segments.open(0).unwrap();
    let before = segments.sequence(segment);
    let segments = Arc::new(segments);
    let late = {
        let segments = Arc::clone(&segments);
        thread::spawn(move || assert_eq!(segments.claim(segment, before), None))
    };
    // As an empty segment.
    segments.free(segment);
    assert_eq!(segments.open(0), Some((segment, false)));
    segments.seal(segment, 100);
    segments.filled(Reservation { segment, offset: 0, len: 100 });
    let now = segments.sequence(segment);
    let claim = move |segments: &Segments| u32::from(segments.claim(segment, now).is_some());
    let other = {
        let segments = Arc::clone(&segments);
        thread::spawn(move || claim(&segments))
    };
    let claims = claim(&segments) + other.join().unwrap();
    late.join().unwrap();
    assert_eq!(claims, 1);
    // The thread with the claim can release it for others.
    segments.unclaim(segment);
    assert_eq!(claim(&segments), 1);
}

/// A block that its owner gives up, and writes again while the store drops it.
fn a_block_that_is_given_up_and_written_again() {
    let volume = volume(32, 12);
    let mut channel = Arc::clone(&volume).channel();
    let bits: FreedBits = Arc::new(Words::new(&Memory::default(), "freed", 1).unwrap());
    let memory = volume.in_memory().unwrap();
    memory.follow_freed(Some(&bits));
    (0..3).for_each(|number| write(&mut *channel, number, 1).unwrap());
    bits.get(0).fetch_or(0b011, Ordering::AcqRel);
    let dropping = {
        let (volume, bits) = (Arc::clone(&volume), Arc::clone(&bits));
        thread::spawn(move || volume.in_memory().unwrap().drop_freed(&bits, &|| false))
    };
    write(&mut *channel, 0, 2).unwrap();
    dropping.join().unwrap();
    volume.in_memory().unwrap().drop_freed(&bits, &|| false);
    let versions = [0, 1, 2].map(|number| read(&mut *channel, number));
    assert_eq!(versions, [2, 0, 1]);
    volume.in_memory().unwrap().follow_freed(None);
    check(&volume);
}

const TESTS: [fn(); 15] = [
    writers_of_the_same_block,
    a_reader_beside_a_writer_and_the_cleaner,
    writers_at_the_limit,
    modifiers_of_one_block,
    a_leaf_that_leaves_while_it_is_written,
    a_writer_that_is_overtaken,
    a_reader_beside_what_goes_down_and_up,
    a_block_that_is_read_again_while_it_is_written,
    a_group_that_is_written_while_it_is_recompressed,
    a_reader_beside_clusters_that_come_and_go,
    clusters_that_go_down_and_up,
    two_who_free_slots_beside_a_writer,
    a_claim_that_comes_too_late,
    a_block_that_is_given_up_and_written_again,
    a_stream_beside_what_goes_down_and_up,
];

/// One test function: a planted bug holds for the whole process, so no other test may run
/// meanwhile.
#[test]
fn every_schedule_holds_and_every_planted_bug_is_found() {
    let bugs: [(Bug, fn()); 18] = [
        (Bug::ReserveBeforeLock, TESTS[0]),
        (Bug::CopyWithoutCheck, TESTS[1]),
        (Bug::FreeBeforeReadersLeave, TESTS[1]),
        (Bug::ModifyWithoutCheck, TESTS[3]),
        (Bug::DropRetainedLeaf, TESTS[4]),
        (Bug::JudgeWithoutWaiting, TESTS[5]),
        (Bug::ForgetFrameFirst, TESTS[6]),
        (Bug::WindowByNumber, TESTS[6]),
        (Bug::SpillBeforeWritten, TESTS[6]),
        (Bug::WindowByNumber, TESTS[14]),
        (Bug::PromoteWithoutCheck, TESTS[7]),
        (Bug::PressWithoutCheck, TESTS[8]),
        (Bug::ForgetPartsThatChanged, TESTS[8]),
        (Bug::ClusterByNumber, TESTS[9]),
        (Bug::ClaimLate, TESTS[11]),
        (Bug::UnclaimWhatever, TESTS[12]),
        (Bug::KeepFreedBits, TESTS[13]),
        (Bug::TakeFreedBeforeLock, TESTS[13]),
    ];
    hold_and_find(&TESTS, &bugs, plant);
}

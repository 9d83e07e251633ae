//! Real threads on small volumes: versioned blocks that each read checks, limits that change, and
//! conditions that must hold when all threads have ended.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use ztier::device::{Algorithm, Channel, Device, IoError, Options, Request, Volume, min_ram_limit};
use ztier::ram::Ram;
use ztier::ram::store::Shape;

const SEGMENT: u32 = 32 << 10;
const LEAF_BYTES: u64 = 512 * 4096;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// A block that encodes its number and version, of which about `noise` in 256 bytes do not
/// compress.
fn block(number: u64, version: u64, noise: u64) -> [u8; 4096] {
    let mut data = [0; 4096];
    let mut x = (number << 32 | version) + 0x9e37_79b9_7f4a_7c15;
    for word in data.as_chunks_mut::<8>().0 {
        random(&mut x);
        *word = if x >> 56 < noise { x } else { number }.to_le_bytes();
    }
    data[..8].copy_from_slice(&number.to_le_bytes());
    data[8..16].copy_from_slice(&version.to_le_bytes());
    data[16..24].copy_from_slice(&noise.to_le_bytes());
    data
}

/// The version of a block, 0 for zeros; panics unless all of it has the same version.
fn version_of(number: u64, data: &[u8]) -> u64 {
    if data.iter().all(|b| *b == 0) {
        return 0;
    }
    let word = |i: usize| u64::from_le_bytes(data[i * 8..i * 8 + 8].try_into().unwrap());
    assert!(data == block(number, word(1), word(2)), "block {number} is torn or another's");
    word(1)
}

fn volume(size: u64, limit: u64) -> Arc<Volume> {
    let options = Options {
        size,
        ram_limit: limit,
        ram_limit_max: 2 * limit,
        segment: SEGMENT,
        algorithm: Algorithm::Lz4,
        lock_memory: false,
    };
    Arc::new(Volume::new(&options).unwrap())
}

fn submit(channel: &mut dyn Channel, request: Request<'_>) -> Result<(), IoError> {
    channel.submit(request, Instant::now())
}

fn write(channel: &mut dyn Channel, number: u64, data: &[u8]) -> Result<(), IoError> {
    submit(channel, Request::Write { offset: number * 4096, data, fua: false })
}

/// Writes noise from block `first` on until nothing fits; returns the first block that did not fit.
fn fill(channel: &mut dyn Channel, first: u64) -> u64 {
    (first..).find(|number| write(channel, *number, &block(*number, 1, 256)).is_err()).unwrap()
}

/// The final state of every volume when all of it is discarded and no thread reads it: only the
/// open segment is left.
fn comes_back_empty(volume: &Arc<Volume>) {
    volume.audit().unwrap();
    let mut channel = Arc::clone(volume).channel();
    submit(&mut *channel, Request::Discard { offset: 0, len: volume.size() }).unwrap();
    for _ in 0..3 {
        volume.clean_now();
    }
    volume.audit().unwrap();
    let stats = volume.stats();
    assert_eq!((stats.blocks_stored, stats.blocks_same, stats.compr_data_bytes), (0, 0, 0));
    assert!(stats.segments <= 1, "{} segments of an empty volume", stats.segments);
}

/// Each thread has blocks that no other thread writes, so it knows their versions. All threads read
/// everything.
fn work(volume: &Arc<Volume>, thread: u64, threads: u64, blocks: u64, stop: &AtomicBool) -> u64 {
    let mut channel = Arc::clone(volume).channel();
    let mut versions = vec![0u64; blocks as usize];
    let mut rng = 0x1234_5678_9abc_def1 + thread;
    let (mut next, mut refused) = (1, 0);
    let mut buf = vec![0; 16 * 4096];
    while !stop.load(Ordering::Relaxed) {
        let r = random(&mut rng);
        let number = (r >> 8) % (blocks / threads) * threads + thread;
        match r % 16 {
            0..8 => {
                let data = block(number, next, random(&mut rng) % 257);
                match write(&mut *channel, number, &data) {
                    Ok(()) => versions[number as usize] = next,
                    Err(IoError::NoSpace) => refused += 1,
                    Err(e) => panic!("{e}"),
                }
                next += 1;
            }
            8..10 => {
                let request = if r & 256 == 0 {
                    Request::Discard { offset: number * 4096, len: 4096 }
                } else {
                    let (offset, len) = (number * 4096, 4096);
                    Request::WriteZeroes { offset, len, no_hole: r & 512 == 0, fua: false }
                };
                submit(&mut *channel, request).unwrap();
                versions[number as usize] = 0;
            }
            10..13 => {
                let first = (r >> 8) % (blocks - 16);
                submit(&mut *channel, Request::Read { offset: first * 4096, buf: &mut buf })
                    .unwrap();
                for (i, data) in buf.chunks_exact(4096).enumerate() {
                    version_of(first + i as u64, data);
                }
            }
            _ => {
                let buf = &mut buf[..4096];
                submit(&mut *channel, Request::Read { offset: number * 4096, buf }).unwrap();
                assert_eq!(version_of(number, buf), versions[number as usize], "block {number}");
            }
        }
    }
    refused
}

/// Many threads, a limit of about half of their data, and a thread that changes it.
#[test]
fn versions_hold_while_the_limit_moves() {
    const THREADS: u64 = 6;
    let size = 4 * LEAF_BYTES;
    let least = min_ram_limit(size, SEGMENT);
    let volume = volume(size, least);
    let stop = AtomicBool::new(false);
    let blocks = size / 4096;
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (volume, stop) = (&volume, &stop);
            scope.spawn(move || work(volume, thread, THREADS, blocks, stop));
        }
        let end = Instant::now() + Duration::from_secs(3);
        let mut rng = 99;
        while Instant::now() < end {
            match random(&mut rng) % 5 {
                0 => drop(volume.set_ram_limit(least + random(&mut rng) % least)),
                1 => volume.clean_now(),
                2 => volume.recompress_now(),
                3 => drop(volume.extents(0, size, 50).unwrap()),
                _ => std::thread::sleep(Duration::from_millis(5)),
            }
        }
        stop.store(true, Ordering::Relaxed);
    });
    comes_back_empty(&volume);
}

/// More threads than processors overwrite few blocks with much room: cleaning meets writers between
/// any two of their steps, and no segment may be lost.
#[test]
fn no_segment_is_lost_between_writers_and_the_cleaner() {
    const BLOCKS: u64 = 64;
    let volume = volume(LEAF_BYTES, 16 << 20);
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..8u64 {
            let (volume, stop) = (&volume, &stop);
            scope.spawn(move || {
                let mut channel = Arc::clone(volume).channel();
                let mut rng = thread + 7;
                while !stop.load(Ordering::Relaxed) {
                    let number = random(&mut rng) % BLOCKS;
                    write(&mut *channel, number, &block(number, 1 + rng % 1000, 256)).unwrap();
                }
            });
        }
        let end = Instant::now() + Duration::from_secs(3);
        while Instant::now() < end {
            volume.clean_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    comes_back_empty(&volume);
}

/// The same with blocks that compress only together, beside a thread that recompresses them all the
/// time: readers, writers, the cleaner and recompression meet in the same clusters.
#[test]
fn no_version_is_lost_between_writers_and_the_recompressor() {
    const BLOCKS: u64 = 256;
    const THREADS: u64 = 4;
    let volume = volume(LEAF_BYTES, 16 << 20);
    let stop = AtomicBool::new(false);
    // The same noise in all blocks, so that they compress only together.
    let content = |number: u64, version: u64| {
        let mut data = block(7, 7, 256);
        data[..8].copy_from_slice(&number.to_le_bytes());
        data[8..16].copy_from_slice(&version.to_le_bytes());
        data
    };
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (volume, stop, content) = (&volume, &stop, &content);
            scope.spawn(move || {
                let mut channel = Arc::clone(volume).channel();
                let (mut rng, mut versions) = (thread + 7, vec![0; BLOCKS as usize]);
                let mut buf = [0; 4096];
                while !stop.load(Ordering::Relaxed) {
                    let number = random(&mut rng) % (BLOCKS / THREADS) * THREADS + thread;
                    let version = &mut versions[number as usize];
                    let read = Request::Read { offset: number * 4096, buf: &mut buf };
                    submit(&mut *channel, read).unwrap();
                    let is = if *version == 0 { [0; 4096] } else { content(number, *version) };
                    assert!(buf == is, "block {number} is not version {version}");
                    if rng >> 40 & 3 == 0 {
                        *version = 1 + rng % 1000;
                        write(&mut *channel, number, &content(number, *version)).unwrap();
                    }
                }
            });
        }
        let had_enough = || {
            let stats = volume.stats();
            stats.blocks_recompressed > 1000 && stats.recompress_promoted_blocks > 100
        };
        let (least, most) = (Duration::from_secs(4), Duration::from_secs(60));
        let begun = Instant::now();
        // Longer than the minimum if other processes use the machine meanwhile.
        while begun.elapsed() < least || begun.elapsed() < most && !had_enough() {
            volume.recompress_now();
            volume.clean_now();
        }
        stop.store(true, Ordering::Relaxed);
    });
    let stats = volume.stats();
    assert!(stats.blocks_recompressed > 1000, "{stats:?}");
    assert!(stats.recompress_promoted_blocks > 100, "{stats:?}");
    comes_back_empty(&volume);
}

/// Idle cleaning accepts less garbage than writers do; its list of segments must not impede
/// writers.
#[test]
fn writes_after_a_quiet_time_leave_no_more_garbage_than_others() {
    let blocks = 16384;
    let volume = volume(64 << 20, 256 << 20);
    let mut channel = Arc::clone(&volume).channel();
    let mut versions = 1..;
    let mut write_where = |chosen: &dyn Fn(u64) -> bool, most: &mut f64| {
        let version = versions.next().unwrap();
        for number in (0..blocks).filter(|number| chosen(*number)) {
            write(&mut *channel, number, &block(number, version, 128)).unwrap();
            let stats = volume.stats();
            let slack = 16 * u64::from(SEGMENT);
            let used = stats.frames_bytes.saturating_sub(slack) as f64;
            *most = most.max(used / stats.compr_data_bytes as f64);
        }
    };
    write_where(&|_| true, &mut 0.0);
    for round in 0..3 {
        // Too little garbage in each segment for writers, and enough overall that idle cleaning
        // uses it.
        write_where(&|number| number.is_multiple_of(12 - round % 3), &mut 0.0);
        volume.clean_now();
        // No segment is freed for being all garbage.
        let mut most = 0.0;
        write_where(&|number| !number.is_multiple_of(16), &mut most);
        assert!(most < 1.25, "round {round}: memory is {most:.2} times the payload");
    }
    volume.audit().unwrap();
}

/// Memory that is being returned to the machine can be taken back at any moment.
#[test]
fn returning_memory_refuses_no_write() {
    let volume = volume(256 << 20, 48 << 20);
    let done = AtomicU64::new(0);
    let refused = AtomicU64::new(0);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while done.load(Ordering::Relaxed) == 0 {
                volume.clean_now();
            }
        });
        let mut channel = Arc::clone(&volume).channel();
        let fits = fill(&mut *channel, 0) * 3 / 4;
        for round in 0..10 {
            submit(&mut *channel, Request::Discard { offset: 0, len: volume.size() }).unwrap();
            std::thread::sleep(Duration::from_micros(300 * (round % 20)));
            for number in 0..fits {
                if write(&mut *channel, number, &block(number, round + 2, 256)).is_err() {
                    refused.fetch_add(1, Ordering::Relaxed);
                }
            }
        }
        done.store(1, Ordering::Relaxed);
    });
    assert_eq!(refused.into_inner(), 0, "writes were refused with a quarter of memory free");
    comes_back_empty(&volume);
}

/// A block that was dropped and written again at the same place counts as changed.
#[test]
fn a_block_that_returned_to_its_place_has_changed() {
    let shape = Shape {
        blocks_max: 512,
        segment: SEGMENT,
        frames: 64,
        slots: 0,
        algorithm: Algorithm::None,
    };
    let ram = Ram::new(&ztier::media::Memory::default(), shape, 8 << 20).unwrap();
    let mut session = ram.store().session().unwrap();
    let mut buf = [0; 4096];
    // Seven blocks fill a segment.
    (0..7).for_each(|n| ram.write(&mut session, n, &[block(n, 1, 256)]).unwrap());
    let place = ram.store().entry(&session, 0);
    let seen = ram.store().read(&mut session, 0, &mut buf).unwrap();
    (0..7).for_each(|n| ram.write(&mut session, n, &[block(n, 2, 256)]).unwrap());
    // Makes room for itself first: cleans the first segment, and reopens it.
    ram.write(&mut session, 0, &[block(0, 3, 256)]).unwrap();
    assert!(ram.store().entry(&session, 0) == place, "the test does not test what it should");
    buf[100] ^= 1;
    assert_eq!(ram.write_if(&mut session, 0, &buf, seen), Ok(false), "version 3 would be lost");
    let seen = ram.store().read(&mut session, 0, &mut buf).unwrap();
    assert_eq!(version_of(0, &buf), 3);
    assert_eq!(ram.write_if(&mut session, 0, &buf, seen), Ok(true));
    ram.store().leave(&session);
}

/// Frames that wait for a pinned thread, such as another writer that cleans, become free without
/// more cleaning.
#[test]
fn a_pinned_thread_makes_writers_clean_no_more() {
    let blocks = 4096;
    let shape = Shape {
        blocks_max: blocks,
        segment: SEGMENT,
        frames: 4096,
        slots: 0,
        algorithm: Algorithm::None,
    };
    let ram = Ram::new(&ztier::media::Memory::default(), shape, 64 << 20).unwrap();
    let (mut writer, reader) = (ram.store().session().unwrap(), ram.store().session().unwrap());
    let mut x = 1;
    let cleaned = || ram.store().counters().sum().segments_cleaned;
    // Random blocks, with a pin held for a few segments.
    let mut overwrite = |pinned: bool| {
        let before = cleaned();
        for round in 0..400 {
            let _pin = pinned.then(|| reader.pin(ram.store()));
            for _ in 0..28 {
                let number = random(&mut x) % blocks;
                ram.write(&mut writer, number, &[block(number, round, 256)]).unwrap();
            }
        }
        cleaned() - before
    };
    overwrite(false);
    let (alone, beside) = (overwrite(false), overwrite(true));
    assert!(alone > 1000 && beside * 10 <= alone * 11, "{alone} segments, {beside} with a pin");
    ram.store().leave(&writer);
    ram.store().leave(&reader);
}

/// The room of two discarded segments suffices for a leaf.
#[test]
fn a_leaf_fits_where_little_was_discarded() {
    let volume = volume(64 << 20, min_ram_limit(64 << 20, SEGMENT));
    let mut channel = Arc::clone(&volume).channel();
    fill(&mut *channel, 0);
    // Only a leaf is needed: a same-filled block has no record.
    let mut number = 1 << 13;
    while write(&mut *channel, number, &[7; 4096]).is_ok() {
        number += 512;
    }
    submit(&mut *channel, Request::Discard { offset: 0, len: 2 * u64::from(SEGMENT) }).unwrap();
    write(&mut *channel, number, &[7; 4096]).unwrap();
    let stats = volume.stats();
    assert!(stats.mem_used_bytes <= stats.ram_limit_bytes);
}

/// A limit below the stored data is refused, and does not count as a refused write.
#[test]
fn a_limit_that_is_too_low_changes_nothing() {
    let least = min_ram_limit(64 << 20, SEGMENT);
    let volume = volume(64 << 20, least + (8 << 20));
    let mut channel = Arc::clone(&volume).channel();
    let end = fill(&mut *channel, 0);
    let before = volume.stats();
    assert!(volume.set_ram_limit(least).is_err());
    let after = volume.stats();
    assert_eq!(after.ram_limit_bytes, before.ram_limit_bytes);
    assert_eq!((after.no_space, after.stalls), (before.no_space, before.stalls));
    submit(&mut *channel, Request::Discard { offset: 0, len: end * 4096 }).unwrap();
    volume.set_ram_limit(least).unwrap();
    assert!(volume.stats().mem_used_bytes <= least);
}

/// Tables of a larger device and buffers of more threads count against the limit: room is made for
/// them, and a size whose tables cannot fit is refused.
#[test]
fn sizes_and_threads_are_within_the_limit() {
    let size = 64 << 20;
    let limit = min_ram_limit(size, SEGMENT);
    let volume = volume(size, limit);
    let mut channel = Arc::clone(&volume).channel();
    assert!(volume.grow(16 << 40).is_err(), "64 MiB of tables in {limit} bytes");
    assert_eq!(volume.size(), size);
    volume.grow(size + 4096).unwrap();
    let end = fill(&mut *channel, 0);
    submit(&mut *channel, Request::Discard { offset: 0, len: end / 2 * 4096 }).unwrap();
    let more: Vec<_> = (0..8).map(|_| Arc::clone(&volume).channel()).collect();
    let stats = volume.stats();
    assert!(stats.mem_used_bytes <= limit, "{} of {limit}", stats.mem_used_bytes);
    assert!(stats.mem_used_max_bytes <= limit, "{} of {limit}", stats.mem_used_max_bytes);
    drop(more);
    for number in 0..end / 4 {
        write(&mut *channel, number, &block(number, 2, 256)).unwrap();
    }
    comes_back_empty(&volume);
}

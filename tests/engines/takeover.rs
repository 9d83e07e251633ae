//! Limits with additional memory: memory from another process with another limit; buffers of
//! front-ends.
#![allow(clippy::unwrap_used)]

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Instant;
use ztier::device::{Algorithm, Channel, Device, IoError, Options, Request, Volume};
use ztier::media::Memory;

const MIB: u64 = 1 << 20;
const BLOCK: u64 = 4096;
const SEGMENT: u32 = 64 << 10;

fn options(ram_limit: u64, ram_limit_max: u64) -> Options {
    Options {
        size: 64 * MIB,
        ram_limit,
        ram_limit_max,
        segment: SEGMENT,
        algorithm: Algorithm::Lz4,
        lock_memory: false,
    }
}

/// The same memory as another process gets it.
fn taken_over(memory: &Memory) -> Memory {
    let files = memory.files();
    let files = files.iter().map(|(name, file): &(String, Arc<OwnedFd>)| {
        (name.clone(), file.as_ref().try_clone().unwrap())
    });
    Memory::inherited(files.collect())
}

fn up(options: &Options, memory: &Memory) -> (Arc<Volume>, Box<dyn Channel>) {
    let volume = Arc::new(Volume::new_in(options, memory).unwrap());
    let channel = Arc::clone(&volume).channel();
    (volume, channel)
}

/// The content of block `n`: incompressible.
fn content(n: u64, version: u64) -> Vec<u8> {
    let mut word = (n << 8 | version) + 1;
    let words = (0..BLOCK / 8).flat_map(|_| {
        word ^= word << 13;
        word ^= word >> 7;
        word ^= word << 17;
        word.to_le_bytes()
    });
    words.collect()
}

fn write(channel: &mut dyn Channel, block: u64, version: u64) -> Result<(), IoError> {
    let data = content(block, version);
    let offset = block * BLOCK;
    channel.submit(Request::Write { offset, data: &data, fua: false }, Instant::now())
}

fn is(channel: &mut dyn Channel, block: u64, version: u64) -> bool {
    let mut buf = vec![0; BLOCK as usize];
    let offset = block * BLOCK;
    channel.submit(Request::Read { offset, buf: &mut buf }, Instant::now()).unwrap();
    buf == content(block, version)
}

fn discard(channel: &mut dyn Channel, block: u64) {
    let offset = block * BLOCK;
    channel.submit(Request::Discard { offset, len: BLOCK }, Instant::now()).unwrap();
}

/// Memory made for more than the machine has now, or for less, is taken over as it is.
#[test]
fn the_limit_fits_what_the_memory_was_made_for() {
    for ([was, was_max], [now, now_max], limit, most) in
        [([32, 16], [16, 16], 16, 32), ([16, 16], [32, 32], 16, 16), ([16, 64], [32, 32], 32, 64)]
    {
        let memory = Memory::default();
        let (volume, mut channel) = up(&options(was * MIB, was_max * MIB), &memory);
        write(&mut *channel, 7, 1).unwrap();
        drop((volume, channel));
        let memory = taken_over(&memory);
        let (volume, mut channel) = up(&options(now * MIB, now_max * MIB), &memory);
        assert!(is(&mut *channel, 7, 1));
        assert_eq!(volume.stats().ram_limit_bytes, limit * MIB);
        volume.set_ram_limit(most * MIB).unwrap();
        let text = volume.set_ram_limit((most + 1) * MIB).unwrap_err().to_string();
        assert!(text.contains(&format!("at most {} bytes", most * MIB)), "{text}");
        volume.audit().unwrap();
    }
}

/// The stored data exceeds the limit, but its live part does not.
#[test]
fn more_garbage_than_the_limit_is_cleaned() {
    let memory = Memory::default();
    let (volume, mut channel) = up(&options(16 * MIB, 16 * MIB), &memory);
    let blocks = 10 * MIB / BLOCK;
    for block in 0..blocks {
        write(&mut *channel, block, 0).unwrap();
    }
    let dead = |block: u64| !block.is_multiple_of(4);
    for block in (0..blocks).filter(|block| dead(*block)) {
        discard(&mut *channel, block);
    }
    drop((volume, channel));
    let memory = taken_over(&memory);
    let (volume, mut channel) = up(&options(8 * MIB, 8 * MIB), &memory);
    for block in (0..blocks / 4).filter(|block| dead(*block)) {
        write(&mut *channel, block, 1).unwrap();
    }
    assert!(volume.stats().mem_used_bytes <= 8 * MIB);
    for block in 0..blocks {
        let version = u64::from(block < blocks / 4 && dead(block));
        assert!(is(&mut *channel, block, version) || block >= blocks / 4 && dead(block), "{block}");
    }
    volume.audit().unwrap();
}

/// The maximal number of threads of a plan, each with its buffers, leaves room for a write.
#[test]
fn buffers_that_the_least_limit_counts_leave_room() {
    let (buffer, threads) = (2 * (MIB + BLOCK), 16);
    let segment = 1 << 20;
    let least = ztier::device::min_ram_limit(24 * MIB, segment) + threads * buffer;
    let options = Options { size: 24 * MIB, segment, ..options(least, least) };
    let volume = Volume::create_in(&options, &Memory::default()).unwrap();
    let mut channels: Vec<_> = (0..threads).map(|_| Arc::clone(&volume).channel()).collect();
    channels.iter_mut().for_each(|channel| channel.count_buffers(buffer));
    for (block, channel) in (0..).zip(&mut channels) {
        write(&mut **channel, block, 1).unwrap();
    }
}

/// Buffers that are added when all memory is full of garbage cause cleaning, not refused writes.
#[test]
fn buffers_find_room_where_there_is_garbage() {
    let options = options(16 * MIB, 16 * MIB);
    let volume = Arc::new(Volume::new_in(&options, &Memory::default()).unwrap());
    let mut channel = Arc::clone(&volume).channel();
    let blocks = (0..).take_while(|block| write(&mut *channel, *block, 0).is_ok()).count() as u64;
    for block in (0..blocks).filter(|block| !block.is_multiple_of(3)) {
        discard(&mut *channel, block);
    }
    let mut other = Arc::clone(&volume).channel();
    other.count_buffers(4 * MIB);
    assert!(volume.stats().mem_used_bytes <= 16 * MIB);
    write(&mut *channel, 1, 1).unwrap();
}

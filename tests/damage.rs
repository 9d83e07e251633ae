//! Damaged memory is detected on every read, never served, does not spread, and survives cleaning
//! as damage.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;
use ztier::volume::{Algorithm, Channel, Device, IoError, Options, Request, Volume};

const BLOCKS: u64 = 512;

fn volume() -> Arc<Volume> {
    let options = Options {
        size: BLOCKS * 4096,
        ram_limit: 64 << 20,
        ram_limit_max: 0,
        segment: 32 << 10,
        algorithm: Algorithm::Lz4,
        lock_memory: false,
    };
    Arc::new(Volume::new(&options).unwrap())
}

fn content(block: u64, version: u64) -> Vec<u8> {
    let mut x = block * 977 + version + 1;
    (0..4096)
        .map(|i| {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            if i % 3 == 0 { (x >> 56) as u8 } else { block as u8 }
        })
        .collect()
}

fn write(channel: &mut dyn Channel, block: u64, version: u64) {
    let data = content(block, version);
    let request = Request::Write { offset: block * 4096, data: &data, fua: false };
    channel.submit(request, Instant::now()).unwrap();
}

fn read(channel: &mut dyn Channel, block: u64) -> Result<Vec<u8>, IoError> {
    let mut buf = vec![0; 4096];
    let request = Request::Read { offset: block * 4096, buf: &mut buf };
    channel.submit(request, Instant::now()).map(|()| buf)
}

#[test]
fn every_flipped_bit_is_found() {
    let volume = volume();
    let mut channel = Arc::clone(&volume).channel();
    for block in 0..BLOCKS {
        write(&mut *channel, block, 0);
    }
    for block in 0..BLOCKS {
        // Header and payload in turn.
        let bit = if block % 4 == 0 { block as u32 / 4 % 80 } else { 80 + block as u32 * 13 };
        assert!(volume.damage(block, bit));
        assert_eq!(read(&mut *channel, block), Err(IoError::Corrupt(block)), "bit {bit}");
        if block + 1 < BLOCKS {
            assert_eq!(read(&mut *channel, block + 1).unwrap(), content(block + 1, 0));
        }
    }
    assert_eq!(volume.stats().corrupt_records, BLOCKS);
    assert_eq!(volume.stats().read.failed, BLOCKS);
}

#[test]
fn cleaning_keeps_damage_where_it_is_and_the_rest_whole() {
    let volume = volume();
    let mut channel = Arc::clone(&volume).channel();
    for block in 0..BLOCKS {
        write(&mut *channel, block, 0);
    }
    let damaged: Vec<u64> = (0..BLOCKS).filter(|block| block % 50 == 7).collect();
    for block in &damaged {
        assert!(volume.damage(*block, 80 + *block as u32));
    }
    // Make garbage everywhere, so that every segment is worth cleaning.
    for block in (0..BLOCKS).filter(|block| block % 3 == 0 && !damaged.contains(block)) {
        write(&mut *channel, block, 1);
    }
    for _ in 0..20 {
        volume.clean_now();
    }
    for block in 0..BLOCKS {
        let got = read(&mut *channel, block);
        if damaged.contains(&block) {
            assert_eq!(got, Err(IoError::Corrupt(block)));
        } else {
            assert_eq!(got.unwrap(), content(block, u64::from(block % 3 == 0)));
        }
    }
    // Writing a damaged block anew mends it.
    for block in &damaged {
        write(&mut *channel, *block, 2);
        assert_eq!(read(&mut *channel, *block).unwrap(), content(*block, 2));
    }
}

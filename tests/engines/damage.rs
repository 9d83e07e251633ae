//! Damaged memory is detected on every read, never served, does not spread, and stays damage when
//! the cleaner moves it.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;
use ztier::device::{Algorithm, Channel, Device, IoError, Options, Request, Volume};

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
    // Makes garbage everywhere, so that cleaning every segment pays.
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
    // Overwriting a damaged block repairs it.
    for block in &damaged {
        write(&mut *channel, *block, 2);
        assert_eq!(read(&mut *channel, *block).unwrap(), content(*block, 2));
    }
}

/// Blocks of every kind in one leaf: a hole, written zeros, a word, a record, a part of a cluster.
fn kinds() -> (Arc<Volume>, Vec<Vec<u8>>) {
    let volume = volume();
    let mut channel = Arc::clone(&volume).channel();
    let mut contents = vec![vec![0; 4096]; BLOCKS as usize];
    for block in 0..BLOCKS {
        let data = match block / 8 % 4 {
            0 => continue,
            1 => vec![0; 4096],
            2 => (block as u32).wrapping_mul(0x0102_0305).to_le_bytes().repeat(1024),
            _ => content(block, 0),
        };
        let request = Request::Write { offset: block * 4096, data: &data, fua: false };
        channel.submit(request, Instant::now()).unwrap();
        contents[block as usize] = data;
    }
    volume.recompress_now();
    for block in (0..BLOCKS).filter(|block| block % 32 >= 28) {
        contents[block as usize] = content(block, 1);
        write(&mut *channel, block, 1);
    }
    let stats = volume.stats();
    assert!(stats.blocks_recompressed > 0, "{stats:?}");
    (volume, contents)
}

#[test]
fn a_flipped_bit_of_the_index_makes_no_other_content() {
    let (volume, contents) = kinds();
    let mut channel = Arc::clone(&volume).channel();
    let mut refused = 0;
    for block in 0..64_u64 {
        for bit in 0..64 {
            volume.damage_index(block, bit, false);
            match read(&mut *channel, block) {
                Ok(found) => assert!(found == contents[block as usize], "{block}, bit {bit}"),
                Err(e) => {
                    assert_eq!(e, IoError::Corrupt(block), "bit {bit}");
                    refused += 1;
                }
            }
            volume.damage_index(block, bit, false);
            assert!(read(&mut *channel, block).unwrap() == contents[block as usize]);
        }
    }
    assert!(refused > 64 * 48, "{refused}");
}

/// A leaf that is not found, or is freed because its count is wrong, would read as zeros.
#[test]
fn a_flipped_bit_of_the_directory_loses_no_block() {
    for bit in 0..64 {
        let (volume, contents) = kinds();
        let mut channel = Arc::clone(&volume).channel();
        volume.damage_index(0, bit, true);
        // Discards as many blocks as make the damaged count that of an empty leaf.
        for block in (0..BLOCKS).rev() {
            let left = |at: u64| read(channel.as_mut(), at).unwrap() == contents[at as usize];
            if block < 16 || block % 64 == 0 {
                assert!((0..block).step_by(7).all(left), "bit {bit}, {block} blocks");
            }
            let discard = Request::Discard { offset: block * 4096, len: 4096 };
            channel.submit(discard, Instant::now()).unwrap();
            volume.clean_now();
        }
        write(&mut *channel, 3, 9);
        assert!(read(&mut *channel, 3).unwrap() == content(3, 9), "bit {bit}");
    }
}

/// Overwriting a damaged block repairs it, and the cleaner copes with its old entry, although the
/// bytes of its record never count as dead.
#[test]
fn a_damaged_entry_is_mended_by_a_write() {
    let (volume, _) = kinds();
    let mut channel = Arc::clone(&volume).channel();
    for bit in [0, 23, 40, 62] {
        for block in 0..BLOCKS {
            volume.damage_index(block, (bit + block as u32) % 64, false);
        }
        for block in 0..BLOCKS {
            write(&mut *channel, block, u64::from(bit));
        }
        volume.clean_now();
        for block in 0..BLOCKS {
            assert!(read(&mut *channel, block).unwrap() == content(block, u64::from(bit)));
        }
    }
}

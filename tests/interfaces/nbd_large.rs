//! Large NBD requests: served in pieces, within memory that all clients share, and cut off where
//! they delay other clients.
#![allow(clippy::unwrap_used)]

use crate::support::nbd::{Client, Fixture, Watched, volume};
use std::io::Read;
use std::sync::Arc;
use std::time::Duration;
use ztier::device::{Device, IoError};
use ztier::export::nbd::Limits;
use ztier::export::nbd::proto::{self, cmd, errno};

/// Bytes that do not compress.
fn noise(len: usize, seed: u64) -> Vec<u8> {
    let mut state = seed;
    let mut byte = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state as u8
    };
    (0..len).map(|_| byte()).collect()
}

#[test]
fn the_largest_write_needs_no_memory_beside_its_data() {
    let max = proto::MAX_PAYLOAD as usize;
    // The memory of the data, the minimum of any volume, and little more.
    let device = volume(64 << 20);
    let f = Fixture::new(Arc::clone(&device) as Arc<dyn Device>);
    let mut c = f.transmit(true);
    let data = noise(max, 1);
    for flags in [0, cmd::FLAG_FUA] {
        let most = device.stats().mem_used_max_bytes;
        assert_eq!(c.write(flags, 4097, &data), 0);
        let grown = device.stats().mem_used_max_bytes - most;
        assert!(grown < (max + max / 4) as u64, "{grown}");
    }
    c.request(cmd::READ, 0, 5, 4097, max as u32);
    let mut read = Vec::new();
    loop {
        let chunk = c.chunk();
        assert_eq!((chunk.kind, chunk.cookie), (proto::chunk::OFFSET_DATA, 5));
        let at = u64::from_be_bytes(chunk.data[..8].try_into().unwrap());
        assert_eq!(at, 4097 + read.len() as u64);
        read.extend_from_slice(&chunk.data[8..]);
        if chunk.done {
            break;
        }
    }
    assert!(read == data);
}

#[test]
fn an_error_within_a_large_read_or_write_ends_it_and_the_connection_goes_on() {
    let device = Watched::new();
    let f = Fixture::new(Arc::clone(&device) as Arc<dyn Device>);
    let mut c = f.transmit(true);
    // The third piece fails.
    *device.fault.lock() = Some((2 << 20, IoError::Corrupt(1)));
    assert_eq!(c.write(cmd::FLAG_FUA, 0, &vec![3; 4 << 20]), errno::EIO);
    assert!(!device.taken().iter().any(|seen| seen.contains("flush")));
    c.request(cmd::READ, 0, 6, 0, 4 << 20);
    let mut bytes = 0;
    let error = loop {
        let chunk = c.chunk();
        if chunk.done {
            break chunk;
        }
        bytes += chunk.data.len() - 8;
    };
    assert_eq!((error.kind, bytes), (proto::chunk::ERROR, 2 << 20));
    *device.fault.lock() = None;
    assert_eq!(c.write(cmd::FLAG_FUA, 0, &vec![3; 4 << 20]), 0);
    c.request(cmd::READ, 0, 7, 0, 4096);
    assert_eq!(c.chunk().data[8..], [3; 4096]);
}

/// Clients that send half of a large write or never read a large reply.
#[test]
fn clients_that_stand_still_have_bounded_memory_and_hold_up_no_other_for_long() {
    let device = volume(64 << 20);
    let limits = Limits { stall: Duration::from_secs(1), ..Limits::default() };
    let f = Fixture::with(Arc::clone(&device) as Arc<dyn Device>, 64, limits);
    let mut others: Vec<Client> = Vec::new();
    for i in 0..48 {
        let mut c = f.transmit(false);
        match i % 2 {
            0 => {
                c.request(cmd::WRITE, 0, 1, 0, 32 << 20);
                c.send(&[1; 1000]);
            }
            _ => c.request(cmd::READ, 0, 1, 0, 32 << 20),
        }
        others.push(c);
    }
    // Small requests do not wait.
    let mut c = f.transmit(true);
    for i in 0..64 {
        assert_eq!(c.write(0, i * 4096, &noise(4096, i + 1)), 0);
    }
    // Base buffers of 49 connections, and the shares.
    let most = 49 * (600 << 10) + (52 << 20);
    assert!(device.stats().buffers_bytes < most, "{}", device.stats().buffers_bytes);
    // A large request gets its share.
    c.stream.set_read_timeout(Some(Duration::from_secs(120))).unwrap();
    c.stream.set_write_timeout(Some(Duration::from_secs(120))).unwrap();
    assert_eq!(c.write(0, 1 << 20, &noise(4 << 20, 9)), 0);
    assert!(device.stats().buffers_bytes < most, "{}", device.stats().buffers_bytes);
    // Data sent before the cut is read first: as much as a socket holds, and no more, as more would
    // mean a client that progresses.
    let cut = others.iter().filter(|other| {
        other.stream.set_nonblocking(true).unwrap();
        let mut bytes = vec![0; 64 << 10];
        let ended = |read: std::io::Result<usize>| match read {
            Ok(n) => (n == 0).then_some(true),
            Err(e) => Some(e.kind() == std::io::ErrorKind::ConnectionReset),
        };
        (0..16).find_map(|_| ended((&other.stream).read(&mut bytes))).unwrap_or(false)
    });
    assert!(cut.count() > 0, "some were cut off");
}

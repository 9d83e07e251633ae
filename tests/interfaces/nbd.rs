//! The NBD server message by message: every feature, and every error of a client.
#![allow(clippy::unwrap_used)]

use crate::support::nbd::{Client, Fixture, SIZE, Watched, contexts, go, request, string, volume};
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ztier::device::{Device, Extent, ExtentKind, IoError};
use ztier::export::nbd::proto::{self, chunk, cmd, errno, info, opt, rep};
use ztier::export::nbd::{Limits, Listen, Options, Server};
use ztier::export::{Export, Leftover};

/// Transmission flags for a client that has not asked for structured replies.
const SIMPLE_FLAGS: u16 = proto::TRANSMISSION_FLAGS & !proto::SEND_DF;

fn fixture() -> Fixture {
    Fixture::new(volume(SIZE))
}

fn pattern(len: usize, seed: u8) -> Vec<u8> {
    (0..len).map(|i| (i / 7 + i) as u8 ^ seed).collect()
}

/// The server still serves others.
fn still_serves(f: &Fixture) {
    let mut c = f.transmit(false);
    assert_eq!(c.write(0, 4096, b"still here"), 0);
    assert_eq!(c.read(4096, 10).unwrap(), b"still here");
}

fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(10);
    while !holds() {
        assert!(Instant::now() < end, "not within 10 s: {what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

// Handshake.

#[test]
fn export_name_with_and_without_zeroes() {
    let f = fixture();
    for (flags, zeroes) in [(1, 124), (3, 0), (0, 124)] {
        for name in ["", "disk"] {
            let mut c = f.connect();
            c.greet(flags);
            c.option(opt::EXPORT_NAME, name.as_bytes());
            assert_eq!(u64::from_be_bytes(c.take()), SIZE);
            assert_eq!(u16::from_be_bytes(c.take()), SIMPLE_FLAGS);
            assert_eq!(c.bytes(zeroes), vec![0; zeroes]);
            assert_eq!(c.write(0, 0, b"data"), 0);
            assert_eq!(c.read(0, 4).unwrap(), b"data");
        }
    }
    let mut c = f.connect();
    c.greet(3);
    c.option(opt::EXPORT_NAME, b"other");
    assert!(c.is_closed());
}

#[test]
fn info_says_what_was_asked_and_go_transmits() {
    let f = fixture();
    let mut c = f.connect();
    c.greet(3);
    c.option(opt::INFO, &go("", &[info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, 999]));
    let answers = c.answers();
    assert_eq!(answers.iter().map(|a| a.0).collect::<Vec<_>>(), [3, 3, 3, 3, 1]);
    assert_eq!(answers[0].1, proto::info_export(SIZE, SIMPLE_FLAGS));
    assert_eq!(answers[1].1, b"\x00\x01disk");
    assert_eq!(&answers[2].1[..2], [0, 2]);
    assert_eq!(answers[3].1, [0, 3, 0, 0, 0, 1, 0, 0, 16, 0, 2, 0, 0, 0]);
    assert_eq!(c.answer(opt::GO, &go("other", &[])), rep::ERR_UNKNOWN);
    assert_eq!(c.answer(opt::STRUCTURED_REPLY, b""), rep::ACK);
    c.option(opt::INFO, &go("", &[]));
    assert_eq!(c.answers()[0].1, proto::info_export(SIZE, proto::TRANSMISSION_FLAGS));
    assert_eq!(c.answer(opt::INFO, b"\0\0\0\x09short"), rep::ERR_INVALID);
    assert_eq!(c.answer(opt::GO, &[go("disk", &[]), vec![0]].concat()), rep::ERR_INVALID);
    c.option(opt::GO, &go("disk", &[]));
    assert_eq!(c.answers().len(), 2);
    assert_eq!(c.ask(cmd::FLUSH, 0, 0, 0), 0);
}

#[test]
fn list_names_and_describes_the_export_and_abort_is_acknowledged() {
    let f = fixture();
    let mut c = f.connect();
    c.greet(3);
    c.option(opt::LIST, &[]);
    let listed = [string("disk"), b"ztier volume".to_vec()].concat();
    assert_eq!(c.answers(), [(rep::SERVER, listed), (rep::ACK, vec![])]);
    assert_eq!(c.answer(opt::LIST, b"x"), rep::ERR_INVALID);
    assert_eq!(c.answer(opt::ABORT, &[]), rep::ACK);
    assert!(c.is_closed());
}

#[test]
fn unknown_options_and_tls_are_refused_and_the_client_may_go_on() {
    let f = fixture();
    let mut c = f.connect();
    c.greet(3);
    for option in [opt::STARTTLS, 4, 11, 12345] {
        assert_eq!(c.answer(option, b""), rep::ERR_UNSUP);
        assert_eq!(c.answer(option, &[7; 1000]), rep::ERR_UNSUP);
    }
    assert_eq!(c.answer(opt::STRUCTURED_REPLY, b"x"), rep::ERR_INVALID);
    assert_eq!(c.answer(opt::STRUCTURED_REPLY, b""), rep::ACK);
}

#[test]
fn meta_contexts() {
    let f = fixture();
    let mut c = f.connect();
    c.greet(3);
    let all = contexts("", &[]);
    assert_eq!(c.answer(opt::LIST_META_CONTEXT, &all), rep::ERR_INVALID, "not structured yet");
    assert_eq!(c.answer(opt::STRUCTURED_REPLY, b""), rep::ACK);
    let named = |id: u32| [&id.to_be_bytes()[..], b"base:allocation"].concat();
    for listed in [all, contexts("disk", &["base:"]), contexts("", &["x:", "base:allocation"])] {
        c.option(opt::LIST_META_CONTEXT, &listed);
        assert_eq!(c.answers(), [(rep::META_CONTEXT, named(0)), (rep::ACK, vec![])]);
    }
    for nothing in [contexts("", &[]), contexts("", &["base:", "qemu:dirty-bitmap:b"])] {
        assert_eq!(c.answer(opt::SET_META_CONTEXT, &nothing), rep::ACK);
    }
    assert_eq!(c.answer(opt::SET_META_CONTEXT, &contexts("no", &[])), rep::ERR_UNKNOWN);
    assert_eq!(c.answer(opt::SET_META_CONTEXT, b"\0\0\0\0\xff\xff\xff\xff"), rep::ERR_INVALID);
    c.option(opt::SET_META_CONTEXT, &contexts("", &["base:allocation"]));
    assert_eq!(c.answers(), [(rep::META_CONTEXT, named(1)), (rep::ACK, vec![])]);
    // Chosen for the default name, not for this one.
    c.option(opt::GO, &go("disk", &[]));
    c.answers();
    c.request(cmd::BLOCK_STATUS, 0, 5, 0, 4096);
    assert_eq!(c.chunk_error(5), errno::EINVAL);
}

#[test]
fn malformed_handshakes_end_the_connection() {
    let f = fixture();
    let long = (proto::MAX_OPTION + 1) as usize;
    let option = |flags: u32, bytes: &[u8]| {
        let mut c = f.connect();
        c.greet(flags);
        c.send(bytes);
        assert!(c.is_closed(), "{flags} {:?}", &bytes[..bytes.len().min(20)]);
    };
    option(4, b"");
    option(3, b"IHAVEOPX\0\0\0\x03\0\0\0\0");
    option(0, b"IHAVEOPT\0\0\0\x03\0\0\0\0");
    option(3, b"IHAVEOPT\0\0\0\x06\xff\xff\xff\xff");
    option(3, b"IHAVEOPT\0\0\0\x01\0\x02\0\0");
    option(3, b"IHAVEOPT\0\0\0\x01\0\0\0\x02\xff\xfe");
    let mut c = f.connect();
    c.greet(3);
    assert_eq!(c.answer(opt::INFO, &vec![0; long]), rep::ERR_TOO_BIG);
    assert_eq!(c.answer(opt::INFO, &go("disk", &[])[..3]), rep::ERR_INVALID, "goes on");
    still_serves(&f);
}

#[test]
fn too_many_options_end_the_connection() {
    let f = fixture();
    let mut c = f.connect();
    c.greet(3);
    for _ in 0..1024 {
        assert_eq!(c.answer(opt::STRUCTURED_REPLY, &[]), rep::ACK);
    }
    assert!(c.is_closed());
}

#[test]
fn an_idle_handshake_is_cut_off_but_an_idle_client_is_not() {
    let limits = Limits { handshake: Duration::from_secs(2), ..Limits::default() };
    let f = Fixture::with(volume(SIZE), 16, limits);
    let mut client = f.transmit(false);
    let begun = Instant::now();
    let mut idle = [f.connect(), f.connect()];
    idle[1].greet(3);
    idle[1].send(b"IHAVEOPT");
    for c in &mut idle {
        c.stream.set_read_timeout(Some(Duration::from_secs(10))).unwrap();
        eventually("hangs up", || c.is_closed());
    }
    // By now the other client has been idle for as long.
    assert!(begun.elapsed() >= Duration::from_millis(1990));
    assert_eq!(client.write(0, 0, b"patience"), 0);
}

#[test]
fn connections_are_limited() {
    let f = Fixture::with(volume(SIZE), 2, Limits::default());
    let mut a = f.transmit(false);
    let b = f.transmit(false);
    assert!(f.connect().is_closed());
    drop(b);
    eventually("a place is free", || {
        let mut c = f.connect();
        let mut greeting = [0; 18];
        std::io::Read::read_exact(&mut c.stream, &mut greeting).is_ok()
    });
    assert_eq!(a.write(0, 0, b"first"), 0);
}

// Transmission.

#[test]
fn every_command_reaches_the_device_as_it_was_meant() {
    let device = Watched::new();
    let f = Fixture::new(Arc::clone(&device) as Arc<dyn Device>);
    let mut c = f.transmit(false);
    let data = pattern(5000, 3);
    assert_eq!(c.write(0, 1000, &data), 0);
    assert_eq!(c.write(cmd::FLAG_FUA, 9000, b"x"), 0);
    assert_eq!(c.read(1000, 5000).unwrap(), data);
    assert_eq!(c.ask(cmd::FLUSH, 0, 0, 0), 0);
    assert_eq!(c.ask(cmd::TRIM, 0, 2000, 1000), 0);
    assert_eq!(c.ask(cmd::TRIM, cmd::FLAG_FUA, 9000, 1), 0);
    assert_eq!(c.ask(cmd::WRITE_ZEROES, cmd::FLAG_FAST_ZERO, 4000, 10), 0);
    let flags = cmd::FLAG_NO_HOLE | cmd::FLAG_FUA;
    assert_eq!(c.ask(cmd::WRITE_ZEROES, flags, 0, SIZE as u32), 0);
    assert_eq!(c.ask(cmd::CACHE, 0, 0, 1 << 20), 0);
    assert_eq!(
        device.taken(),
        [
            "write 1000+5000 fua=false",
            "write 9000+1 fua=true",
            "read 1000+5000",
            "flush",
            "discard 2000+1000",
            "discard 9000+1",
            "flush",
            "zeroes 4000+10 no_hole=false fua=false",
            &format!("zeroes 0+{SIZE} no_hole=true fua=true"),
        ]
    );
    assert_eq!(c.read(1000, 5000).unwrap(), vec![0; 5000]);
    // A request of length 0 completes at once.
    assert_eq!(c.write(0, 0, b""), 0);
    assert_eq!(c.ask(cmd::TRIM, 0, SIZE, 0), 0);
    assert_eq!(c.read(SIZE, 0).unwrap(), b"");
    c.request(cmd::DISC, 0, 1, 0, 0);
    assert!(c.is_closed());
}

#[test]
fn the_largest_requests_work_and_larger_ones_do_not() {
    let f = fixture();
    let max = proto::MAX_PAYLOAD as usize;
    for structured in [false, true] {
        let mut c = f.transmit(structured);
        let data = pattern(max, u8::from(structured));
        assert_eq!(c.write(0, 1, &data), 0);
        assert_eq!(c.write(0, 0, &vec![1; max + 1]), errno::EINVAL, "drained and refused");
        if structured {
            c.request(cmd::READ, cmd::FLAG_DF, 9, 1, max as u32);
            let chunk = c.chunk();
            assert!(chunk.done && chunk.data[..8] == 1u64.to_be_bytes());
            assert!(chunk.data[8..] == data);
            c.request(cmd::READ, cmd::FLAG_DF, 9, 0, max as u32 + 1);
            assert_eq!(c.chunk_error(9), errno::EOVERFLOW);
            c.request(cmd::READ, 0, 9, 0, max as u32 + 1);
            assert_eq!(c.chunk_error(9), errno::EINVAL);
        } else {
            assert!(c.read(1, max as u32).unwrap() == data);
            assert_eq!(c.read(0, max as u32 + 1), Err(errno::EINVAL));
        }
        assert_eq!(c.write(0, 0, b"g"), 0, "the connection goes on");
    }
    let mut c = f.transmit(false);
    c.request(cmd::WRITE, 0, 1, 0, u32::MAX);
    assert!(c.is_closed(), "absurd");
}

#[test]
fn ranges_are_checked() {
    let device = Watched::new();
    let f = Fixture::new(Arc::clone(&device) as Arc<dyn Device>);
    let mut c = f.transmit(false);
    for (offset, len) in [(SIZE, 1), (SIZE - 1, 2), (u64::MAX, 1), (u64::MAX - 4095, 4096)] {
        assert_eq!(c.write(0, offset, &vec![1; len]), errno::ENOSPC);
        assert_eq!(c.read(offset, len as u32), Err(errno::EINVAL));
        assert_eq!(c.ask(cmd::TRIM, 0, offset, len as u32), errno::EINVAL);
        assert_eq!(c.ask(cmd::CACHE, 0, offset, len as u32), errno::EINVAL);
        assert_eq!(c.ask(cmd::WRITE_ZEROES, 0, offset, len as u32), errno::ENOSPC);
    }
    assert_eq!(device.taken(), [""; 0], "none of them reached the device");
    assert_eq!(c.write(0, SIZE - 1, b"z"), 0);
    let mut s = f.transmit(true);
    s.request(cmd::READ, 0, 3, SIZE, 1);
    assert_eq!(s.chunk_error(3), errno::EINVAL);
    s.request(cmd::BLOCK_STATUS, 0, 3, SIZE, 1);
    assert_eq!(s.chunk_error(3), errno::EINVAL);
    s.request(cmd::BLOCK_STATUS, 0, 3, 0, 0);
    assert_eq!(s.chunk_error(3), errno::EINVAL);
}

#[test]
fn unknown_commands_and_flags_are_invalid() {
    let f = fixture();
    let mut c = f.transmit(false);
    for command in [8, 100, u16::MAX] {
        assert_eq!(c.ask(command, 0, 0, 0), errno::EINVAL);
    }
    assert_eq!(c.write(1 << 9, 0, b"flagged"), errno::EINVAL);
    assert_eq!(c.ask(cmd::READ, cmd::FLAG_DF, 0, 1), errno::EINVAL, "not structured");
    assert_eq!(c.ask(cmd::TRIM, cmd::FLAG_NO_HOLE, 0, 1), errno::EINVAL);
    assert_eq!(c.ask(cmd::FLUSH, 0, 1, 1), errno::EINVAL);
    assert_eq!(c.ask(cmd::BLOCK_STATUS, 0, 0, 4096), errno::EINVAL, "not negotiated");
    assert_eq!(c.read(0, 7).unwrap(), [0; 7], "the refused write left nothing");
}

#[test]
fn bad_magic_closes_after_what_was_right_is_answered() {
    let f = fixture();
    let mut c = f.transmit(false);
    let mut two = request(cmd::WRITE, 0, 77, 0, 4);
    two.extend(b"kept");
    two.extend([0x5a; proto::REQUEST_LEN]);
    c.send(&two);
    assert_eq!(c.simple(77), 0);
    assert!(c.is_closed());
    assert_eq!(f.transmit(false).read(0, 4).unwrap(), b"kept");
}

#[test]
fn a_client_that_hangs_up_within_a_request_loses_only_that_request() {
    let f = fixture();
    let mut c = f.transmit(false);
    assert_eq!(c.write(0, 0, &[1; 8192]), 0);
    // Within a header, within a small and within a large payload.
    for (len, sent) in [(4096u32, None), (4096, Some(100)), (8 << 20, Some(1 << 19))] {
        let mut c = f.transmit(false);
        let head = request(cmd::WRITE, 0, 1, 0, len);
        match sent {
            None => c.send(&head[..11]),
            Some(n) => {
                c.send(&head);
                c.send(&vec![2; n]);
            }
        }
    }
    // A client that never reads its replies, and goes.
    let mut c = f.transmit(false);
    for i in 0..64 {
        let _ = c.stream.write_all(&request(cmd::READ, 0, i, 0, 1 << 20));
    }
    drop(c);
    eventually("only the first client is left", || {
        f.server.holders().first().is_some_and(|h| h.starts_with("1 NBD client "))
    });
    assert_eq!(f.transmit(false).read(0, 8192).unwrap(), [1; 8192]);
}

#[test]
fn pipelined_requests_are_answered_in_order() {
    let f = fixture();
    let mut c = f.transmit(false);
    let mut reader = Client { stream: c.stream.try_clone().unwrap() };
    let sizes = [1usize, 512, 4096, 4097, 70_000, 300_000, 13];
    let writer = std::thread::spawn(move || {
        let mut offset = 0;
        for i in 0..210u64 {
            let len = sizes[i as usize % sizes.len()];
            c.request(cmd::WRITE, 0, 2 * i, offset, len as u32);
            c.send(&pattern(len, i as u8));
            c.request(cmd::READ, 0, 2 * i + 1, offset, len as u32);
            offset += len as u64;
        }
        c
    });
    for i in 0..210u64 {
        let len = sizes[i as usize % sizes.len()];
        assert_eq!(reader.simple(2 * i), 0);
        assert_eq!(reader.simple(2 * i + 1), 0);
        assert!(reader.bytes(len) == pattern(len, i as u8), "request {i}");
    }
    writer.join().unwrap();
}

#[test]
fn replies_do_not_wait_for_what_the_client_has_not_sent_yet() {
    let f = fixture();
    let mut c = f.transmit(false);
    // Half a header, a small, a large and a refused payload.
    for (offset, len, error) in [(0, 8, 0), (0, 1 << 20, 0), (SIZE, 9000, errno::ENOSPC)] {
        let write = request(cmd::WRITE, 0, 2, offset, len);
        let (half, rest) = write.split_at(13);
        c.send(&[&request(cmd::READ, 0, 1, 0, 4096), half].concat());
        assert_eq!(c.simple(1), 0);
        c.bytes(4096);
        c.send(&[rest, &vec![7; len as usize]].concat());
        assert_eq!(c.simple(2), error);
        c.send(&[request(cmd::READ, 0, 3, 0, 4096), write].concat());
        assert_eq!(c.simple(3), 0);
        c.bytes(4096);
        c.send(&vec![8; len as usize]);
        assert_eq!(c.simple(2), error);
    }
}

#[test]
fn connections_see_each_others_writes() {
    let f = fixture();
    let (mut a, mut b) = (f.transmit(false), f.transmit(true));
    for i in 0..50u8 {
        assert_eq!(a.write(0, 4096, &[i; 100]), 0);
        b.request(cmd::READ, 0, 1, 4096, 100);
        assert_eq!(b.chunk().data[8..], [i; 100]);
    }
}

#[test]
fn device_errors_become_errors_of_the_request() {
    let device = Watched::new();
    let f = Fixture::new(Arc::clone(&device) as Arc<dyn Device>);
    let (mut c, mut s) = (f.transmit(false), f.transmit(true));
    *device.map.lock() = vec![Extent { len: 1 << 20, kind: ExtentKind::Hole }];
    // A bad sector, a lost path, a write-protected drive: no errors of the client.
    let (sector, path, protected) = (IoError::Drive(61), IoError::Drive(67), IoError::Drive(30));
    for (error, told) in [
        (IoError::NoSpace, errno::ENOSPC),
        (IoError::Corrupt(1), errno::EIO),
        (sector, errno::EIO),
        (path, errno::EIO),
        (protected, errno::EPERM),
        (IoError::Busy, errno::EIO),
    ] {
        *device.fault.lock() = Some((4096, error));
        assert_eq!(c.write(0, 4096, b"x"), told);
        assert_eq!(c.read(4096, 10), Err(told));
        assert_eq!(c.ask(cmd::TRIM, cmd::FLAG_FUA, 4096, 10), told);
        assert_eq!(c.ask(cmd::WRITE_ZEROES, 0, 4096, 10), told);
        for len in [10, 2 << 20] {
            s.request(cmd::READ, 0, 8, 4096, len);
            assert_eq!(s.chunk_error(8), told);
        }
        assert_eq!(c.write(0, 0, b"others work"), 0);
    }
}

#[test]
fn zeroes_are_not_called_fast_where_they_have_to_be_written() {
    let device = Watched::without_discards();
    let f = Fixture::new(Arc::clone(&device) as Arc<dyn Device>);
    let mut c = f.connect();
    c.greet(3);
    c.option(opt::INFO, &go("", &[]));
    let slow = proto::SEND_TRIM | proto::SEND_FAST_ZERO;
    let flags = SIMPLE_FLAGS & !slow;
    assert_eq!(c.answers()[0].1, proto::info_export(SIZE, flags));
    let mut c = f.transmit(false);
    assert_eq!(c.ask(cmd::WRITE_ZEROES, cmd::FLAG_FAST_ZERO, 0, 1 << 20), errno::ENOTSUP);
    assert_eq!(device.taken(), [""; 0]);
    assert_eq!(c.ask(cmd::WRITE_ZEROES, 0, 0, 4096), 0);
    assert_eq!(device.taken(), ["zeroes 0+4096 no_hole=false fua=false"]);
}

#[test]
fn a_large_reply_is_counted_until_it_is_sent() {
    let device = volume(SIZE);
    let f = Fixture::new(Arc::clone(&device) as Arc<dyn Device>);
    let mut c = f.transmit(false);
    assert_eq!(c.ask(cmd::FLUSH, 0, 0, 0), 0);
    let before = device.stats().buffers_bytes;
    let mut s = f.transmit(true);
    s.request(cmd::READ, cmd::FLAG_DF, 1, 0, proto::MAX_PAYLOAD);
    s.chunk();
    assert_eq!(c.read(0, proto::MAX_PAYLOAD).unwrap().len(), proto::MAX_PAYLOAD as usize);
    eventually("what the replies took is free", || {
        device.stats().buffers_bytes <= before + (4 << 20)
    });
    assert_eq!(c.ask(cmd::FLUSH, 0, 0, 0), 0, "both are still connected");
}

// Structured replies and extents.

const K: u64 = 1 << 10;

fn mapped() -> (Arc<Watched>, Fixture) {
    let device = Watched::new();
    let f = Fixture::new(Arc::clone(&device) as Arc<dyn Device>);
    let run = |len, kind| Extent { len, kind };
    *device.map.lock() = vec![
        run(64 * K, ExtentKind::Data),
        run(128 * K, ExtentKind::Hole),
        run(4 * K, ExtentKind::Data),
        run(60 * K, ExtentKind::Zero),
        run(4 * K, ExtentKind::Hole),
    ];
    let mut c = f.transmit(false);
    assert_eq!(c.write(0, 0, &pattern(64 << 10, 1)), 0);
    assert_eq!(c.write(0, 192 * K, &pattern(4 << 10, 2)), 0);
    assert_eq!(c.write(0, 260 * K, &pattern(4 << 10, 3)), 0);
    device.taken();
    (device, f)
}

#[test]
fn reads_leave_out_holes() {
    let (device, f) = mapped();
    let mut s = f.transmit(true);
    s.request(cmd::READ, 0, 42, 32 * K, 232 << 10);
    let hole =
        |offset: u64, len: u64| [&offset.to_be_bytes()[..], &(len as u32).to_be_bytes()].concat();
    let data = |offset: u64, bytes: &[u8]| [&offset.to_be_bytes()[..], bytes].concat();
    let expected = [
        (chunk::OFFSET_DATA, data(32 * K, &pattern(64 << 10, 1)[32 << 10..])),
        (chunk::OFFSET_HOLE, hole(64 * K, 128 * K)),
        (chunk::OFFSET_DATA, data(192 * K, &pattern(4 << 10, 2))),
        (chunk::OFFSET_HOLE, hole(196 * K, 64 * K)),
        (chunk::OFFSET_DATA, data(260 * K, &pattern(4 << 10, 3))),
    ];
    for (i, (kind, data)) in expected.into_iter().enumerate() {
        let c = s.chunk();
        assert_eq!((c.kind, c.cookie, c.done), (kind, 42, i == 4), "chunk {i}");
        assert!(c.data == data, "chunk {i}");
    }
    assert_eq!(device.taken(), ["read 32768+237568"], "one request, counted as one");

    // Unfragmented: one chunk of data, or one hole.
    s.request(cmd::READ, cmd::FLAG_DF, 43, 0, 264 << 10);
    let c = s.chunk();
    assert_eq!((c.kind, c.done, c.data.len()), (chunk::OFFSET_DATA, true, 8 + (264 << 10)));
    s.request(cmd::READ, cmd::FLAG_DF, 44, 70 * K, 100 << 10);
    let c = s.chunk();
    assert_eq!((c.kind, c.done, c.data), (chunk::OFFSET_HOLE, true, hole(70 * K, 100 * K)));

    // Small reads, and an empty one.
    s.request(cmd::READ, 0, 45, 64 * K, 4096);
    assert_eq!(s.chunk().data, data(64 * K, &[0; 4096]));
    s.request(cmd::READ, 0, 46, 0, 0);
    let c = s.chunk();
    assert_eq!((c.kind, c.done, c.data.len()), (chunk::NONE, true, 0));
}

#[test]
fn block_status_describes_the_range() {
    let (_device, f) = mapped();
    let mut s = f.transmit(true);
    let mut status = |flags, offset, len| {
        s.request(cmd::BLOCK_STATUS, flags, 6, offset, len);
        let c = s.chunk();
        assert_eq!((c.kind, c.cookie, c.done), (chunk::BLOCK_STATUS, 6, true));
        let word = |w: &[u8]| u32::from_be_bytes(w.try_into().unwrap());
        assert_eq!(word(&c.data[..4]), proto::CONTEXT_ID);
        c.data[4..].chunks_exact(8).map(|d| (word(&d[..4]), word(&d[4..]))).collect::<Vec<_>>()
    };
    let k = |n: u32| n << 10;
    assert_eq!(
        status(0, 0, k(300)),
        [(k(64), 0), (k(128), 3), (k(4), 0), (k(60), 2), (k(4), 3), (k(40), 0)]
    );
    assert_eq!(status(cmd::FLAG_REQ_ONE, 65 * K, k(300)), [(k(127), 3)]);
    assert_eq!(status(0, 65 * K, 512), [(512, 3)]);
}

// The server itself.

#[test]
fn stop_refuses_while_clients_are_connected() {
    let mut f = fixture();
    assert!(f.server.holders().is_empty());
    let mut half_open = f.connect();
    half_open.greet(3);
    let mut c = f.transmit(false);
    let me = std::process::id();
    let holders = f.server.holders();
    assert_eq!(holders.len(), 1);
    assert!(holders[0].starts_with("1 NBD client ("), "{holders:?}");
    assert!(holders[0].ends_with(&format!("process {me})")), "{holders:?}");
    let e = f.server.stop().unwrap_err().to_string();
    assert!(e.contains("1 NBD client") && e.contains(&format!("process {me}")), "{e}");
    assert_eq!(c.write(0, 0, b"goes on"), 0);
    c.request(cmd::DISC, 0, 1, 0, 0);
    assert!(c.is_closed());
    eventually("the client is gone", || f.server.holders().is_empty());
    // A client that only negotiates does not count.
    f.server.stop().unwrap();
    assert!(!f.path.exists());
    assert!(half_open.is_closed());
}

#[test]
fn shutdown_cuts_clients_and_lets_go_of_the_device() {
    let device = volume(SIZE);
    let mut f = Fixture::new(Arc::clone(&device) as Arc<dyn Device>);
    let mut clients: Vec<Client> = (0..4).map(|_| f.transmit(false)).collect();
    // A client that does not read its replies: the server's thread is blocked in sending.
    for i in 0..8 {
        clients[0].request(cmd::READ, 0, i, 0, 16 << 20);
    }
    std::thread::sleep(Duration::from_millis(50));
    assert!(f.server.holders()[0].starts_with("4 NBD clients"));
    f.server.shutdown();
    assert!(!f.path.exists());
    assert!(f.server.holders().is_empty());
    assert!(clients[1..].iter_mut().all(Client::is_closed));
    drop(f.server);
    assert_eq!(Arc::strong_count(&device), 1);
}

/// As with a full log and a backing store that accepts no writes.
#[test]
fn a_request_that_does_not_end_does_not_hold_up_a_shutdown() {
    let device = Watched::new();
    let limits = Limits { closing: Duration::from_secs(1), ..Limits::default() };
    let mut f = Fixture::with(Arc::clone(&device) as Arc<dyn Device>, 16, limits);
    let stuck = device.stuck.lock();
    let mut c = f.transmit(false);
    for cookie in 1..100 {
        c.request(cmd::TRIM, 0, cookie, 0, 4096);
    }
    eventually("the request is there", || !device.seen.lock().is_empty());
    let (ended, is_ended) = std::sync::mpsc::channel();
    let stopping = std::thread::spawn(move || {
        f.server.shutdown();
        ended.send(()).unwrap();
        f
    });
    is_ended.recv_timeout(Duration::from_secs(15)).unwrap();
    assert!(c.is_closed(), "without an answer");
    drop(stuck);
    drop(stopping.join().unwrap());
    eventually("its thread is gone", || Arc::strong_count(&device) == 1);
    assert_eq!(device.seen.lock().len(), 1, "nothing more is begun");
}

/// However long the payload takes to arrive.
#[test]
fn a_payload_counts_as_soon_as_it_has_a_place() {
    let device = volume(64 << 20);
    let f = Fixture::new(Arc::clone(&device) as Arc<dyn Device>);
    let mut c = f.transmit(false);
    assert_eq!(c.ask(cmd::FLUSH, 0, 0, 0), 0);
    let before = device.stats().buffers_bytes;
    c.request(cmd::WRITE, 0, 1, 0, 1 << 20);
    c.send(&vec![1; 1 << 19]);
    eventually("it counts", || device.stats().buffers_bytes >= before + (3 << 18));
    c.send(&vec![1; 1 << 19]);
    assert_eq!(c.simple(1), 0);
    // An unused buffer is returned.
    eventually("it is free", || device.stats().buffers_bytes <= before + (1 << 17));
}

#[test]
fn growing_is_seen_at_once_and_by_new_clients() {
    let device = volume(SIZE);
    let f = Fixture::new(Arc::clone(&device) as Arc<dyn Device>);
    let mut c = f.transmit(false);
    assert_eq!(c.write(0, SIZE, b"new"), errno::ENOSPC);
    device.grow(2 * SIZE).unwrap();
    f.server.resized().unwrap();
    assert_eq!(c.write(0, SIZE, b"new"), 0);
    let mut c = f.connect();
    c.greet(3);
    c.option(opt::INFO, &go("disk", &[]));
    assert_eq!(c.answers()[0].1, proto::info_export(2 * SIZE, SIMPLE_FLAGS));
}

fn options(listen: Vec<Listen>) -> Options {
    Options { name: "disk".into(), listen, max_connections: 4 }
}

#[test]
fn unix_sockets_are_private_and_only_stale_ones_are_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a b&c.sock");
    let listen = || vec![Listen::Unix(path.clone())];
    drop(std::os::unix::net::UnixListener::bind(&path).unwrap());
    assert!(path.exists(), "stale");
    let server = Server::start(volume(SIZE), options(listen())).unwrap();
    let metadata = path.metadata().unwrap();
    assert!(metadata.file_type().is_socket());
    assert_eq!(metadata.permissions().mode() & 0o777, 0o600);
    assert_eq!(server.leftovers(), [Leftover::Socket(path.clone())]);
    assert_eq!(options(listen()).leftovers(), server.leftovers());
    let uri = server.endpoints().remove(0);
    assert!(
        uri.starts_with("nbd+unix:///disk?socket=/") && uri.ends_with("/a%20b%26c.sock"),
        "{uri}"
    );

    let refused = |listen| Server::start(volume(SIZE), options(listen)).err().unwrap().to_string();
    assert!(refused(listen()).contains("another process serves"));
    Client::connect(&path).greet(3);
    // A server removes only its own socket.
    std::fs::remove_file(&path).unwrap();
    std::fs::write(&path, "precious").unwrap();
    drop(server);
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");
    assert!(refused(listen()).contains("is not a socket"));
    assert_eq!(std::fs::read(&path).unwrap(), b"precious");

    let long = directory.path().join("x".repeat(120));
    assert!(refused(vec![Listen::Unix(long)]).contains("more than 107"));
    let nowhere = directory.path().join("no/such/dir.sock");
    assert!(refused(vec![Listen::Unix(nowhere)]).contains("make that directory first"));
    assert!(refused(vec![]).contains("a place to listen"));
}

#[test]
fn tcp_serves_and_a_taken_port_is_named() {
    let any = "127.0.0.1:0".parse().unwrap();
    let server = Server::start(volume(SIZE), options(vec![Listen::Tcp(any)])).unwrap();
    let uri = server.endpoints().remove(0);
    let port: u16 = uri
        .strip_prefix("nbd://127.0.0.1:")
        .unwrap()
        .strip_suffix("/disk")
        .unwrap()
        .parse()
        .unwrap();
    let mut stream = std::net::TcpStream::connect(("127.0.0.1", port)).unwrap();
    let mut greeting = [0; 18];
    std::io::Read::read_exact(&mut stream, &mut greeting).unwrap();
    assert_eq!(greeting, proto::greeting());
    stream.write_all(&3u32.to_be_bytes()).unwrap();
    stream.write_all(b"IHAVEOPT\0\0\0\x01\0\0\0\0").unwrap();
    std::io::Read::read_exact(&mut stream, &mut [0; 10]).unwrap();
    assert_eq!(server.holders(), ["1 NBD client (127.0.0.1)"]);
    let taken = Listen::Tcp(std::net::SocketAddr::new("127.0.0.1".parse().unwrap(), port));
    let e = Server::start(volume(SIZE), options(vec![taken])).err().unwrap().to_string();
    assert!(e.contains(&port.to_string()) && e.contains("choose another port"), "{e}");
    assert!(server.leftovers().is_empty());
}

#[test]
fn impossible_options_are_usage_errors() {
    let somewhere = || vec![Listen::Tcp("127.0.0.1:0".parse().unwrap())];
    for bad in [
        Options { name: "x".repeat(4097), ..options(somewhere()) },
        Options { max_connections: 0, ..options(somewhere()) },
    ] {
        assert_eq!(Server::start(volume(SIZE), bad).err().unwrap().exit_status(), 2);
    }
    let e = Server::start(volume(SIZE), options(vec![Listen::Inherited])).err().unwrap();
    assert!(e.to_string().contains("no listening socket"), "{e}");
}

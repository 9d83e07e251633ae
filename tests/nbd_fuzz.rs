//! Arbitrary bytes for the NBD server: no thread panics, no allocation exceeds its bound, and other
//! clients are served as before.
#![allow(clippy::unwrap_used)]

#[path = "support/nbd.rs"]
#[allow(dead_code)]
mod support;

use proptest::prelude::*;
use std::alloc::{GlobalAlloc, Layout, System};
use std::io::{Read, Write};
use std::net::Shutdown;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard};
use support::{Client, Fixture, contexts, go, request, volume};
use ztier::export::nbd::proto::{self, cmd, opt};

/// Small, so that random ranges are often inside.
const SIZE: u64 = 64 << 10;

/// The system's allocator, with a record of the largest request since the last reset.
struct Largest;

static LARGEST: AtomicUsize = AtomicUsize::new(0);
static PANICS: AtomicUsize = AtomicUsize::new(0);
/// One test at a time: the two statics above belong to the process.
static ALONE: Mutex<()> = Mutex::new(());

// SAFETY: every call goes to the system's allocator as it is.
unsafe impl GlobalAlloc for Largest {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the system's.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        LARGEST.fetch_max(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, p: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        LARGEST.fetch_max(size, Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.realloc(p, layout, size) }
    }

    unsafe fn dealloc(&self, p: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(p, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Largest = Largest;

/// Counts panics of the server's threads, which would go unnoticed otherwise.
fn watch_panics() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    ONCE.call_once(|| {
        let former = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if std::thread::current().name().is_some_and(|n| n.starts_with("nbd-")) {
                PANICS.fetch_add(1, Ordering::Relaxed);
            }
            former(info);
        }));
    });
}

/// Sends `bytes`, shuts the sending side down, and reads until the server hangs up.
fn speak(mut c: Client, bytes: Vec<u8>) {
    let mut writer = c.stream.try_clone().unwrap();
    let sender = std::thread::spawn(move || {
        // The server may hang up in the middle.
        let _ = writer.write_all(&bytes);
        let _ = writer.shutdown(Shutdown::Write);
    });
    let mut sink = [0; 64 << 10];
    while c.stream.read(&mut sink).is_ok_and(|n| n > 0) {}
    sender.join().unwrap();
}

/// Sends bytes to the server, and checks that it survives without panics or large allocations.
fn survives(f: &Fixture, client: Client, bytes: Vec<u8>, largest: usize) {
    LARGEST.store(0, Ordering::Relaxed);
    speak(client, bytes);
    assert_eq!(PANICS.load(Ordering::Relaxed), 0);
    let seen = LARGEST.load(Ordering::Relaxed);
    assert!(seen <= largest, "{seen} bytes at once");
    let mut c = f.transmit(false);
    assert_eq!(c.write(0, 0, b"others"), 0);
    assert_eq!(c.read(0, 6).unwrap(), b"others");
}

fn noise(most: usize) -> impl Strategy<Value = Vec<u8>> {
    proptest::collection::vec(any::<u8>(), 0..most)
}

/// A valid or nearly valid option.
fn option() -> impl Strategy<Value = Vec<u8>> {
    let data = prop_oneof![
        noise(40),
        Just(Vec::new()),
        Just(go("disk", &[3])),
        Just(contexts("disk", &["base:allocation"])),
        (0usize..200_000).prop_map(|n| vec![0xff; n]),
    ];
    let number = prop_oneof![4 => opt::LIST..=opt::SET_META_CONTEXT, 1 => any::<u32>()];
    let magic = prop_oneof![20 => Just(proto::OPTION_MAGIC), 1 => any::<u64>()];
    let lie = prop_oneof![9 => Just(None), 1 => any::<u32>().prop_map(Some)];
    (magic, number, lie, data).prop_map(|(magic, number, lie, data)| {
        let len = lie.unwrap_or(data.len() as u32);
        [&magic.to_be_bytes()[..], &number.to_be_bytes(), &len.to_be_bytes(), &data].concat()
    })
}

/// A valid or nearly valid request.
fn anything() -> impl Strategy<Value = Vec<u8>> {
    let command = prop_oneof![8 => 0u16..9, 1 => any::<u16>()];
    let flags = prop_oneof![4 => Just(0), 2 => 0u16..32, 1 => any::<u16>()];
    let offset = prop_oneof![6 => 0..SIZE, 1 => any::<u64>()];
    let len = prop_oneof![6 => 0..(SIZE as u32), 1 => 0..(40u32 << 20), 1 => any::<u32>()];
    let missing = prop_oneof![9 => Just(false), 1 => Just(true)];
    (command, flags, any::<u64>(), offset, len, missing).prop_map(
        |(command, flags, cookie, offset, len, missing)| {
            let mut bytes = request(command, flags, cookie, offset, len);
            if command == cmd::WRITE && !missing && len < 1 << 20 {
                bytes.resize(bytes.len() + len as usize, 0x5a);
            }
            bytes
        },
    )
}

fn config() -> ProptestConfig {
    ProptestConfig { cases: 48, failure_persistence: None, ..Default::default() }
}

/// Held for a whole test, because making inputs allocates, too.
fn alone() -> MutexGuard<'static, ()> {
    ALONE.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

#[test]
fn handshakes() {
    let _alone = alone();
    watch_panics();
    let flags = prop_oneof![8 => 0u32..4, 1 => any::<u32>()];
    let options = proptest::collection::vec(option(), 0..12);
    proptest!(config(), |(flags in flags, options in options, tail in noise(60))| {
        let f = Fixture::new(volume(SIZE));
        let mut bytes = flags.to_be_bytes().to_vec();
        options.iter().for_each(|o| bytes.extend(o));
        bytes.extend(tail);
        // The largest allocation is that of the test's own bytes, or else that of the server's
        // buffers.
        let own = bytes.capacity().max(512 << 10);
        survives(&f, f.connect(), bytes, own);
    });
}

#[test]
fn transmissions() {
    let _alone = alone();
    watch_panics();
    let structured = any::<bool>();
    let requests = proptest::collection::vec(anything(), 0..24);
    proptest!(config(), |(structured in structured, requests in requests, tail in noise(60))| {
        let f = Fixture::new(volume(SIZE));
        let client = f.transmit(structured);
        let mut bytes: Vec<u8> = requests.concat();
        bytes.extend(tail);
        // No request longer than the device is carried out, so no buffer grows beyond its size.
        survives(&f, client, bytes, (1 << 20) + SIZE as usize);
    });
}

/// The bound of a single request is the payload that the protocol allows, for any device.
#[test]
fn the_largest_buffer_is_that_of_the_largest_payload() {
    let _alone = alone();
    let f = Fixture::new(volume(1 << 40));
    let max = proto::MAX_PAYLOAD;
    let mut c = f.transmit(false);
    LARGEST.store(0, Ordering::Relaxed);
    for len in [max + 1, u32::MAX] {
        assert!(c.read(0, len).is_err());
    }
    assert!(LARGEST.load(Ordering::Relaxed) < 1 << 20);
    c.request(cmd::READ, 0, 9, 0, max);
    assert_eq!(c.simple(9), 0);
    let mut left = max as usize;
    let mut sink = [0; 64 << 10];
    while left > 0 {
        left -= c.stream.read(&mut sink[..left.min(64 << 10)]).unwrap();
    }
    let seen = LARGEST.load(Ordering::Relaxed);
    assert!(seen >= max as usize && seen <= max as usize + 8192, "{seen}");
    assert_eq!(c.ask(cmd::FLUSH, 0, 0, 0), 0);
}

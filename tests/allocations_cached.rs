//! The read cache is in the path of writes that free memory of the machine. Once each thread has
//! begun, hits, misses, writes and evictions allocate nothing, at a limit that is always full.
//!
//! The test counts every allocation of this process. It is in its own file, and the only test
//! there: nothing else allocates meanwhile.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use ztier::cache::Cached;
use ztier::media::{Drive, DriveError};
use ztier::sync::ready_to_wait;

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
static BYTES: AtomicU64 = AtomicU64::new(0);

/// Whether this is the process's first thread. It runs the harness, which still allocates for a
/// moment after it has started the test.
fn is_harness() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

struct Counted;

fn note(layout: Layout) {
    if COUNTING.load(Ordering::Relaxed) && !is_harness() {
        ALLOCATIONS.fetch_add(1, Ordering::Relaxed);
        BYTES.fetch_add(layout.size() as u64, Ordering::Relaxed);
    }
}

// SAFETY: all is done by the system's allocator, with what its callers promise; counting touches
// atomics only, and allocates nothing.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        note(layout);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

const BLOCK: u64 = 4096;
const SIZE: u64 = 64 << 20;
const THREADS: u64 = 3;

/// A drive of bytes in memory.
struct Plain(Mutex<Vec<u8>>);

impl Drive for Plain {
    fn size(&self) -> u64 {
        SIZE
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        buf.copy_from_slice(&self.0.lock().unwrap()[at as usize..][..buf.len()]);
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        self.0.lock().unwrap()[at as usize..][..data.len()].copy_from_slice(data);
        Ok(())
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        self.0.lock().unwrap()[at as usize..][..len as usize].fill(0);
        Ok(())
    }

    fn flush(&self) -> Result<(), DriveError> {
        Ok(())
    }
}

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Random requests and streams; about half of the data does not compress.
fn use_it(cached: &Cached, rng: &mut u64, buf: &mut [u8]) {
    for round in 0..6000 {
        let blocks = if round % 16 == 0 { 64 } else { 1 + random(rng) % 4 };
        let at = random(rng) % (SIZE / BLOCK - 80) * BLOCK;
        let part = &mut buf[..(blocks * BLOCK) as usize];
        match round % 8 {
            0 | 1 => {
                for word in part.as_chunks_mut::<8>().0 {
                    let x = random(rng);
                    *word = if x & 1 == 0 { x } else { 7 }.to_le_bytes();
                }
                cached.write(at, part).unwrap();
            }
            2 if round % 64 == 2 => cached.zero(at, 64 * BLOCK).unwrap(),
            3 => (0..8).for_each(|i| cached.read(at + i * 8 * BLOCK, &mut buf[..32768]).unwrap()),
            _ => cached.read(at, part).unwrap(),
        }
    }
}

#[test]
fn a_full_cache_allocates_nothing() {
    let drive = Arc::new(Plain(Mutex::new(vec![0; SIZE as usize])));
    let cached = Cached::over(drive, 12 << 20, 12 << 20).unwrap();
    let begun = Barrier::new(THREADS as usize + 1);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let (cached, begun) = (&cached, &begun);
            scope.spawn(move || {
                ready_to_wait();
                let (mut rng, mut buf) = (0x1234_5678 + number, vec![0; 64 * BLOCK as usize]);
                (0..4).for_each(|_| use_it(cached, &mut rng, &mut buf));
                begun.wait();
                begun.wait();
                use_it(cached, &mut rng, &mut buf);
                begun.wait();
            });
        }
        begun.wait();
        COUNTING.store(true, Ordering::Relaxed);
        begun.wait();
        begun.wait();
        COUNTING.store(false, Ordering::Relaxed);
    });
    let stats = cached.stats();
    assert!(stats.evicted_blocks > 20_000 && stats.hit_blocks > 5000, "{stats:?}");
    assert!(stats.ahead_blocks > 1000, "{stats:?}");
    let (allocations, bytes) = (ALLOCATIONS.load(Ordering::Relaxed), BYTES.load(Ordering::Relaxed));
    assert_eq!(allocations, 0, "{bytes} bytes: {stats:?}");
    cached.audit().unwrap();
}

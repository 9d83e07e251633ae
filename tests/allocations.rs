//! Requests of a volume in memory, also at its limit, allocate nothing once each thread has begun:
//! swap has to be written while the machine has no memory.
//!
//! The test counts every allocation of this process, in any thread but the harness's, the volume's
//! own threads included. It is in its own file, and the only test there: nothing else allocates
//! meanwhile.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use ztier::device::{Algorithm, Channel, Device, IoError, Options, Request, Volume};
use ztier::sync::{Mutex, ready_to_wait};

static COUNTING: AtomicBool = AtomicBool::new(false);
static ALLOCATIONS: AtomicU64 = AtomicU64::new(0);
/// The sizes of the first allocations, which help to find them.
static SIZES: [AtomicU64; 8] = [const { AtomicU64::new(0) }; 8];

/// Whether this is the process's first thread. It runs the harness, which still allocates for a
/// moment after it has started the test.
fn is_harness() -> bool {
    rustix::thread::gettid() == rustix::process::getpid()
}

struct Counted;

impl Counted {
    fn note(layout: Layout) {
        if COUNTING.load(Ordering::Relaxed) && !is_harness() {
            let at = ALLOCATIONS.fetch_add(1, Ordering::Relaxed) as usize;
            if let Some(size) = SIZES.get(at) {
                size.store(layout.size() as u64, Ordering::Relaxed);
            }
        }
    }
}

// SAFETY: all is done by the system's allocator, with what its callers promise; counting touches
// atomics only, and allocates nothing.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        Self::note(layout);
        // SAFETY: the caller's promises are passed on.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(memory, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        Self::note(layout);
        // SAFETY: as above.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        Self::note(layout);
        // SAFETY: as above.
        unsafe { System.realloc(memory, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counted = Counted;

const SIZE: u64 = 64 << 20;
const LIMIT: u64 = 24 << 20;
const THREADS: u64 = 2;
/// Pages of the largest request here: the kernel merges this many swapped-out neighbours.
const CLUSTER: u64 = 64;

fn random(state: &mut u64) -> u64 {
    *state ^= *state << 13;
    *state ^= *state >> 7;
    *state ^= *state << 17;
    *state
}

/// Fills `data` with new content, of which about `noise` of 256 words do not compress.
fn fill(data: &mut [u8], rng: &mut u64, noise: u64) {
    for word in data.as_chunks_mut::<8>().0 {
        let x = random(rng);
        *word = if x >> 56 < noise { x } else { 7 }.to_le_bytes();
    }
}

/// One thread's channel to the volume, with all memory for its requests.
struct User {
    volume: Arc<Volume>,
    channel: Box<dyn Channel>,
    data: Vec<u8>,
    rng: u64,
    refused: u64,
}

impl User {
    fn new(volume: &Arc<Volume>, number: u64) -> Self {
        let channel = Arc::clone(volume).channel();
        let data = vec![0; (CLUSTER * 4096) as usize];
        let volume = Arc::clone(volume);
        Self { volume, channel, data, rng: 0x1234_5678_9abc + number, refused: 0 }
    }

    /// Writes, reads and discards for some rounds; about `noise` of 256 words do not compress.
    fn swap(&mut self, rounds: u64, noise: u64) {
        for round in 0..rounds {
            let pages = if round % 16 == 0 { CLUSTER } else { 1 };
            let page = random(&mut self.rng) % (SIZE / 4096 - CLUSTER);
            let (offset, len) = (page * 4096, (pages * 4096) as usize);
            fill(&mut self.data[..len], &mut self.rng, noise);
            let data = &self.data[..len];
            let now = Instant::now();
            match self.channel.submit(Request::Write { offset, data, fua: false }, now) {
                Err(IoError::NoSpace) => self.refused += 1,
                written => written.unwrap(),
            }
            let back = random(&mut self.rng) % (SIZE / 4096);
            let buf = &mut self.data[..4096];
            self.channel.submit(Request::Read { offset: back * 4096, buf }, now).unwrap();
            if round % 4 == 0 {
                let offset = random(&mut self.rng) % (SIZE / 4096 - 16) * 4096;
                let discard = Request::Discard { offset, len: 16 * 4096 };
                self.channel.submit(discard, now).unwrap();
            }
            if round % 512 == 0 {
                // Another thread of the volume recompresses meanwhile.
                self.volume.recompress().unwrap();
            }
            if round % 64 == 0 {
                self.channel.submit(Request::Flush, now).unwrap();
            }
        }
    }

    /// The phases: enough room, full of compressible data, full of incompressible data.
    fn all(&mut self) {
        self.swap(1000, 40);
        self.swap(6000, 140);
        self.swap(6000, 256);
    }
}

/// Starts to count allocations of all threads, until the next [`counted`].
fn count() {
    ALLOCATIONS.store(0, Ordering::Relaxed);
    COUNTING.store(true, Ordering::Relaxed);
}

/// The number of allocations, and the sizes of the first.
fn counted() -> (u64, Vec<u64>) {
    COUNTING.store(false, Ordering::Relaxed);
    let sizes = SIZES.iter().map(|size| size.load(Ordering::Relaxed)).collect();
    (ALLOCATIONS.load(Ordering::Relaxed), sizes)
}

/// A thread's first wait for a lock allocates nothing, either, if the thread was prepared for that;
/// how many threads ever wait for a lock at the same time is random.
fn a_first_wait_allocates_nothing() {
    const WAITING: usize = 24;
    let (begun, lock) = (Barrier::new(WAITING + 1), Mutex::new(()));
    let (allocations, sizes) = std::thread::scope(|scope| {
        for _ in 0..WAITING {
            scope.spawn(|| {
                ready_to_wait();
                begun.wait();
                begun.wait();
                drop(lock.lock());
                begun.wait();
                begun.wait();
            });
        }
        begun.wait();
        let held = lock.lock();
        count();
        begun.wait();
        // Long enough for most threads to go to sleep; a thread that does not sleep shows nothing.
        std::thread::sleep(Duration::from_millis(100));
        drop(held);
        begun.wait();
        let counted = counted();
        begun.wait();
        counted
    });
    assert_eq!(allocations, 0, "of {sizes:?} bytes, by those who wait for a lock");
}

#[test]
fn requests_allocate_nothing_also_at_the_limit() {
    a_first_wait_allocates_nothing();
    for algorithm in [Algorithm::Lz4, Algorithm::Zstd] {
        let volume = Volume::create(&Options {
            size: SIZE,
            ram_limit: LIMIT,
            ram_limit_max: 0,
            segment: 256 << 10,
            algorithm,
            lock_memory: false,
        })
        .unwrap();
        let begun = Barrier::new(THREADS as usize + 1);
        let ((allocations, sizes), refused) = std::thread::scope(|scope| {
            let (volume, begun) = (&volume, &begun);
            let run = move |number| {
                let mut user = User::new(volume, number);
                user.all();
                begun.wait();
                begun.wait();
                user.refused = 0;
                user.all();
                begun.wait();
                begun.wait();
                user.refused
            };
            let users: Vec<_> = (0..THREADS).map(|n| scope.spawn(move || run(n))).collect();
            begun.wait();
            count();
            begun.wait();
            begun.wait();
            let counted = counted();
            begun.wait();
            (counted, users.into_iter().map(|user| user.join().unwrap()).sum::<u64>())
        });
        let stats = volume.stats();
        // The volume was at its limit: cleaning made room, and in the end there was none.
        assert!(refused > 0 && stats.segments_cleaned > 20 && stats.write.requests > 10_000);
        assert!(stats.blocks_recompressed > 100, "{stats:?}");
        assert_eq!(allocations, 0, "of {sizes:?} bytes, by {algorithm:?}");
    }
}

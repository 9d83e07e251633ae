//! Large requests, which several threads serve together: the same bytes and errors, whichever
//! threads help.
#![allow(clippy::unwrap_used, clippy::print_stdout)]

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use std::time::{Duration, Instant};
use ztier::config::plan::MOST_THREADS;
use ztier::device::{
    Algorithm, Channel, DataMover, Device, IoError, Load, Options, Request, Volume, Way,
};

const MIB: u64 = 1 << 20;

fn volume(size: u64, ram_limit: u64) -> Arc<Volume> {
    Volume::create(&Options {
        size,
        ram_limit,
        ram_limit_max: 0,
        segment: 256 << 10,
        algorithm: Algorithm::Lz4,
        lock_memory: false,
    })
    .unwrap()
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}

fn fill(data: &mut [u8], rng: &mut Rng) {
    let seed = rng.next();
    for (i, byte) in data.iter_mut().enumerate() {
        *byte = if i % 5 < 3 { (i / 300) as u8 } else { (rng.0 >> (i % 57)) as u8 ^ seed as u8 };
        if i % 64 == 0 {
            rng.next();
        }
    }
}

fn submit(channel: &mut dyn Channel, request: Request<'_>) -> Result<(), IoError> {
    channel.submit(request, Instant::now())
}

#[test]
fn large_requests_of_several_threads_keep_their_bytes() {
    const AREA: u64 = 6 * MIB;
    let volume = volume(3 * AREA, 64 * MIB);
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let volume = Arc::clone(&volume);
            scope.spawn(move || {
                let mut channel = volume.channel();
                let mut rng = Rng(0x1234_5678_9abc + thread);
                let mut model = vec![0; AREA as usize];
                for _ in 0..60 {
                    let from = rng.next() % (AREA - 1);
                    let len = (200_000 + rng.next() % (4 * MIB)).min(AREA - from);
                    let range = from as usize..(from + len) as usize;
                    fill(&mut model[range.clone()], &mut rng);
                    let offset = thread * AREA + from;
                    let data = &model[range];
                    submit(&mut *channel, Request::Write { offset, data, fua: false }).unwrap();
                    let mut buf = vec![0xee; AREA as usize];
                    let offset = thread * AREA;
                    submit(&mut *channel, Request::Read { offset, buf: &mut buf }).unwrap();
                    assert!(buf == model, "thread {thread} reads something else");
                }
            });
        }
    });
    volume.close();
    volume.audit().unwrap();
    // It still works after the helpers have gone.
    let mut channel = Arc::clone(&volume).channel();
    let mut buf = vec![0; 4 * MIB as usize];
    submit(&mut *channel, Request::Read { offset: 0, buf: &mut buf }).unwrap();
}

#[test]
fn what_does_not_fit_and_what_is_damaged_is_told() {
    let volume = volume(64 * MIB, 16 * MIB);
    let mut channel = Arc::clone(&volume).channel();
    let mut rng = Rng(99);
    let noise: Vec<u8> = (0..4 * MIB).map(|_| rng.next() as u8).collect();
    let mut refused = 0;
    for i in 0..16 {
        let write = Request::Write { offset: i * 4 * MIB, data: &noise, fua: false };
        match submit(&mut *channel, write) {
            Ok(()) => assert_eq!(refused, 0, "a write fitted after one did not"),
            Err(e) => {
                assert_eq!(e, IoError::NoSpace);
                refused += 1;
            }
        }
    }
    assert!((12..16).contains(&refused), "{refused} of 16 were refused");
    let stats = volume.stats();
    assert!(stats.mem_used_bytes <= stats.ram_limit_bytes);
    assert_eq!(stats.write.failed, refused);

    assert!(volume.damage(700, 4000));
    let mut buf = vec![0; 4 * MIB as usize];
    let read = submit(&mut *channel, Request::Read { offset: 0, buf: &mut buf });
    assert_eq!(read, Err(IoError::Corrupt(700)));
    volume.close();
    volume.audit().unwrap();
}

/// Bytes behind a lock; moving fails from `broken` on.
struct Elsewhere {
    bytes: Mutex<Vec<u8>>,
    broken: usize,
}

impl Elsewhere {
    fn check(&self, at: usize) -> Result<(), IoError> {
        if at >= self.broken { Err(IoError::Drive(14)) } else { Ok(()) }
    }
}

impl DataMover for Elsewhere {
    fn copy_in(&self, at: usize, part: &mut [u8]) -> Result<(), IoError> {
        self.check(at)?;
        part.copy_from_slice(&self.bytes.lock().unwrap()[at..at + part.len()]);
        Ok(())
    }

    fn copy_out(&self, at: usize, part: &[u8]) -> Result<(), IoError> {
        self.check(at)?;
        self.bytes.lock().unwrap()[at..at + part.len()].copy_from_slice(part);
        Ok(())
    }
}

#[test]
fn what_is_elsewhere_is_moved_in_parts() {
    const AREA: u64 = 6 * MIB;
    let volume = volume(3 * AREA, 64 * MIB);
    let Some(least) = volume.worth_shipping() else {
        println!("skipped: one processor, so no helpers");
        return;
    };
    std::thread::scope(|scope| {
        for thread in 0..3 {
            let volume = Arc::clone(&volume);
            scope.spawn(move || {
                let mut channel = volume.channel();
                let mut scratch = vec![0; least];
                let mut rng = Rng(0x9abc_def0_1234 + thread);
                let mut model = vec![0; AREA as usize];
                for _ in 0..60 {
                    let from = rng.next() % (AREA - 1);
                    let len = (200_000 + rng.next() % (4 * MIB)).min(AREA - from);
                    let range = from as usize..(from + len) as usize;
                    fill(&mut model[range.clone()], &mut rng);
                    let bytes = Mutex::new(model[range].to_vec());
                    let mover = &Elsewhere { bytes, broken: usize::MAX };
                    let (way, offset, len) = (Way::In, thread * AREA + from, len as usize);
                    let load = Load { way, offset, len, mover };
                    channel.ship(load, &mut scratch, Instant::now()).unwrap();

                    let bytes = Mutex::new(vec![0xee; AREA as usize]);
                    let mover = &Elsewhere { bytes, broken: usize::MAX };
                    let (way, offset, len) = (Way::Out, thread * AREA, AREA as usize);
                    let load = Load { way, offset, len, mover };
                    channel.ship(load, &mut scratch, Instant::now()).unwrap();
                    let found = mover.bytes.lock().unwrap();
                    assert!(*found == model, "thread {thread} reads something else");
                }
            });
        }
    });
    let mut channel = Arc::clone(&volume).channel();
    let len = 2 * MIB as usize;
    let mover = &Elsewhere { bytes: Mutex::new(vec![1; len]), broken: MIB as usize };
    for way in [Way::In, Way::Out] {
        let load = Load { way, offset: 0, len, mover };
        let shipped = channel.ship(load, &mut vec![0; least], Instant::now());
        assert_eq!(shipped, Err(IoError::Drive(14)));
    }
    let beyond = Load { way: Way::In, offset: 3 * AREA - MIB, len, mover };
    let shipped = channel.ship(beyond, &mut vec![0; least], Instant::now());
    assert_eq!(shipped, Err(IoError::OutOfRange));
    volume.close();
    volume.audit().unwrap();
}

/// Bytes at which the request's own thread panics while a helper is at work.
struct Treacherous {
    own: ThreadId,
    panics: AtomicUsize,
    begun: AtomicUsize,
    done: AtomicUsize,
}

fn await_one(count: &AtomicUsize) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while count.load(Ordering::Relaxed) == 0 {
        assert!(Instant::now() < deadline, "the other thread does not come");
        std::thread::yield_now();
    }
}

impl DataMover for Treacherous {
    fn copy_in(&self, _: usize, part: &mut [u8]) -> Result<(), IoError> {
        if std::thread::current().id() == self.own {
            await_one(&self.begun);
            self.panics.fetch_add(1, Ordering::Relaxed);
            panic!("on purpose");
        }
        self.begun.fetch_add(1, Ordering::Relaxed);
        await_one(&self.panics);
        std::thread::sleep(Duration::from_millis(100));
        part.fill(7);
        self.done.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    fn copy_out(&self, _: usize, _: &[u8]) -> Result<(), IoError> {
        Ok(())
    }
}

#[test]
fn no_thread_helps_any_more_when_one_has_panicked() {
    let volume = volume(16 * MIB, 64 * MIB);
    let Some(least) = volume.worth_shipping() else {
        println!("skipped: one processor, so no helpers");
        return;
    };
    let mut channel = Arc::clone(&volume).channel();
    let (panics, begun, done) = (0.into(), 0.into(), 0.into());
    let own = std::thread::current().id();
    // Leaked, because a helper still uses it if the test fails.
    let mover: &'static _ = Box::leak(Box::new(Treacherous { own, panics, begun, done }));
    let load = Load { way: Way::In, offset: 0, len: least, mover };
    let mut scratch = vec![0; least];
    let ship = AssertUnwindSafe(|| channel.ship(load, &mut scratch, Instant::now()));
    assert!(catch_unwind(ship).is_err());
    let [begun, done] = [&mover.begun, &mover.done].map(|n| n.load(Ordering::Relaxed));
    assert_eq!(begun, done, "a helper is still at it");
    // Helpers take part in the next request again.
    let bytes = Mutex::new(vec![9; least]);
    let mover = &Elsewhere { bytes, broken: usize::MAX };
    let load = Load { way: Way::In, offset: 0, len: least, mover };
    channel.ship(load, &mut scratch, Instant::now()).unwrap();
    let mut buf = vec![0; least];
    submit(&mut *channel, Request::Read { offset: 0, buf: &mut buf }).unwrap();
    assert!(buf.iter().all(|byte| *byte == 9));
    volume.close();
    volume.audit().unwrap();
}

#[test]
fn as_many_threads_as_may_serve_find_a_place() {
    let volume = volume(16 * MIB, 64 * MIB);
    // Makes the recompression thread take its place.
    volume.recompress().unwrap();
    // One more thread joins when a daemon leaves.
    let threads = 0..=MOST_THREADS;
    let mut channels: Vec<_> = threads.map(|_| Arc::clone(&volume).channel()).collect();
    for channel in &mut channels {
        submit(&mut **channel, Request::Flush).unwrap();
    }
}

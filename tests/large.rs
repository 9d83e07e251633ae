//! Large requests, which several threads serve together: the same bytes, the same errors, whoever
//! helps.
#![allow(clippy::unwrap_used)]

use std::sync::Arc;
use std::time::Instant;
use ztier::volume::{Algorithm, Channel, Device, IoError, Options, Request, Volume};

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
    // After the helpers have gone it still works.
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

//! The ring on temporary files, with io_uring where there is one, and with threads.
#![allow(clippy::unwrap_used)]

use super::*;
use crate::media::Access;
use std::collections::BTreeMap;
use std::time::Instant;

const MIB: u64 = 1 << 20;

/// A drive that answers only when it is allowed to.
struct Stuck(parking_lot::Mutex<()>);

impl Drive for Stuck {
    fn size(&self) -> u64 {
        MIB
    }
    fn read(&self, _: u64, _: &mut [u8]) -> Result<(), DriveError> {
        drop(self.0.lock());
        Ok(())
    }
    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        Err(failed(Action::Write, at, data.len() as u64)(Errno::IO))
    }
    fn zero(&self, _: u64, _: u64) -> Result<(), DriveError> {
        Ok(())
    }
    fn flush(&self) -> Result<(), DriveError> {
        Ok(())
    }
}

fn drive(dir: &tempfile::TempDir) -> Arc<FileDrive> {
    let path = dir.path().join("drive");
    std::fs::File::create(&path).unwrap().set_len(8 * MIB).unwrap();
    Arc::new(FileDrive::open(&path, Access::Exclusive).unwrap())
}

/// Runs `test` on both engines, on a fresh drive each.
fn both(depth: u32, test: impl Fn(Ring)) {
    let dir = tempfile::tempdir().unwrap();
    let ring = Ring::new(drive(&dir), depth).unwrap();
    match ring.fallback() {
        None => test(ring),
        Some(why) => eprintln!("skipped: {why}"),
    }
    let dir = tempfile::tempdir().unwrap();
    test(Ring::with_threads(drive(&dir), depth).unwrap());
}

fn filled(len: usize, with: impl Fn(usize) -> u8) -> Arc<Buffer> {
    let mut buffer = Buffer::new(len);
    buffer.iter_mut().enumerate().for_each(|(i, b)| *b = with(i));
    Arc::new(buffer)
}

/// Waits for all completions, by number.
fn all(ring: &mut Ring) -> BTreeMap<u64, Result<Option<Buffer>, DriveError>> {
    let deadline = Instant::now() + Duration::from_secs(30);
    let mut found = BTreeMap::new();
    while ring.in_flight() > 0 {
        assert!(Instant::now() < deadline, "{} never ended", ring.in_flight());
        for completion in ring.wait(Duration::from_secs(1)) {
            assert!(found.insert(completion.id, completion.result).is_none());
        }
    }
    found
}

fn write(id: u64, buffer: &Arc<Buffer>, range: Range<usize>, at: u64) -> Submission {
    Submission { id, action: Op::Write(Arc::clone(buffer), range), at }
}

fn read(ring: &mut Ring, at: u64, len: usize) -> Buffer {
    ring.submit(Submission { id: 0, action: Op::Read(Buffer::new(len)), at });
    all(ring).remove(&0).unwrap().unwrap().unwrap()
}

#[test]
fn more_than_the_depth_all_end_and_come_back() {
    both(4, |mut ring| {
        let data = filled(64 * 4096, |i| (i / 4096 * 3 + i % 7) as u8);
        for n in 0..64 {
            let from = n as usize * 4096;
            // Backwards, so that nothing is in order by chance.
            ring.submit(write(n, &data, from..from + 4096, (63 - n) * 8192));
        }
        ring.kick();
        assert_eq!(ring.in_flight(), 64);
        let ended = all(&mut ring);
        assert_eq!(ended.len(), 64);
        assert!(ended.values().all(|r| matches!(r, Ok(None))));
        ring.submit(Submission { id: 9, action: Op::Flush, at: 77 });
        assert!(matches!(all(&mut ring)[&9], Ok(None)));
        for n in 0..64 {
            let back = read(&mut ring, (63 - n) * 8192, 4096);
            assert!(back[..] == data[n as usize * 4096..][..4096], "{n}");
        }
    });
}

#[test]
fn zeroed_ranges_read_as_zeros() {
    both(8, |mut ring| {
        let data = filled(MIB as usize, |_| 7);
        ring.submit(write(1, &data, 0..MIB as usize, 0));
        assert!(all(&mut ring)[&1].is_ok());
        ring.submit(Submission { id: 2, action: Op::Zero { len: 40960 }, at: 4096 });
        ring.submit(Submission { id: 3, action: Op::Zero { len: 0 }, at: 4096 });
        assert!(all(&mut ring).values().all(|r| matches!(r, Ok(None))));
        let back = read(&mut ring, 0, MIB as usize);
        assert!(back[4096..45056].iter().all(|b| *b == 0));
        assert!(back[..4096].iter().chain(&back[45056..]).all(|b| *b == 7));
    });
}

#[test]
fn what_no_drive_can_do_is_refused_as_a_completion() {
    both(2, |mut ring| {
        let data = filled(8192, |_| 7);
        ring.submit(write(1, &data, 0..4096, 8 * MIB));
        ring.submit(write(2, &data, 100..4196, 0));
        ring.submit(write(3, &data, 4096..12288, 0));
        #[allow(clippy::reversed_empty_ranges)]
        ring.submit(write(4, &data, 8192..4096, 0));
        ring.submit(Submission { id: 5, action: Op::Read(Buffer::new(4096)), at: 1 });
        ring.submit(Submission { id: 6, action: Op::Zero { len: u64::MAX - 4095 }, at: 4096 });
        let ended = all(&mut ring);
        assert_eq!(ended.len(), 6);
        for (id, result) in ended {
            assert_eq!(result.unwrap_err().errno, 22, "{id}");
        }
    });
}

#[test]
fn waiting_ends_by_time_and_by_waking() {
    both(2, |mut ring| {
        let start = Instant::now();
        assert!(ring.wait(Duration::from_millis(20)).is_empty());
        assert!(start.elapsed() >= Duration::from_millis(20));
        assert!(ring.wait(Duration::ZERO).is_empty());
        // Before the wait, and during it; and once more, to show that the bell can ring twice.
        for delay in [0, 50, 0, 50] {
            let waker = ring.waker();
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(delay));
                waker.wake();
            });
            let start = Instant::now();
            assert!(ring.wait(Duration::from_secs(30)).is_empty());
            assert!(start.elapsed() < Duration::from_secs(20));
            thread.join().unwrap();
        }
    });
}

#[test]
fn dropping_a_ring_leaves_whole_writes() {
    both(4, |mut ring| {
        let data = filled(MIB as usize, |_| 7);
        for n in 0..8 {
            ring.submit(write(n, &data, 0..MIB as usize, n * MIB));
        }
        ring.submit(Submission { id: 9, action: Op::Read(Buffer::new(MIB as usize)), at: 0 });
        ring.kick();
        drop(ring);
        assert_eq!(Arc::strong_count(&data), 1, "the memory is not used any more");
    });
}

#[test]
fn a_drive_that_fails_or_hangs_does_so_alone() {
    let drive = Arc::new(Stuck(parking_lot::Mutex::new(())));
    let mut ring = Ring::with_threads(Arc::clone(&drive) as Arc<dyn Drive>, 4).unwrap();
    assert!(ring.fallback().is_some());
    let held = drive.0.lock();
    ring.submit(Submission { id: 1, action: Op::Read(Buffer::new(4096)), at: 0 });
    ring.submit(write(2, &filled(4096, |_| 1), 0..4096, 4096));
    let mut ended = Vec::new();
    while ended.is_empty() {
        ended = ring.wait(Duration::from_secs(20));
    }
    assert_eq!(ended[0].id, 2);
    let error = ended[0].result.as_ref().unwrap_err();
    assert_eq!((error.action, error.at, error.errno), (Action::Write, 4096, 5));
    assert_eq!(ring.in_flight(), 1);
    assert!(ring.wait(Duration::from_millis(10)).is_empty());
    drop(held);
    assert!(all(&mut ring)[&1].as_ref().unwrap().is_some());
}

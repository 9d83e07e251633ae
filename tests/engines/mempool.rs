//! Swap has to be written while the machine has no memory: the memory for a volume's requests is
//! allocated in advance.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used, dead_code)]

use crate::support::ram_drive::RamDrive;
use std::sync::Arc;
use std::time::{Duration, Instant};
use ztier::device::{
    Algorithm, Channel, Device, InMemory, IoError, Options, Request, SpillTo, Volume,
    min_ram_limit_above,
};
use ztier::media::Memory;

const MIB: u64 = 1 << 20;
const SIZE: u64 = 256 * MIB;
const LIMIT: u64 = 96 * MIB;
/// Bytes of an index that is allocated as a whole.
const INDEX: u64 = SIZE / 4096 * 8;

/// Options of a volume of `size` bytes with at most `ram_limit` bytes of memory.
fn options(size: u64, ram_limit: u64) -> Options {
    Options {
        size,
        ram_limit,
        ram_limit_max: 0,
        segment: MIB as u32,
        algorithm: Algorithm::Lz4,
        lock_memory: false,
    }
}

fn volume() -> Arc<Volume> {
    Volume::create(&options(SIZE, LIMIT)).unwrap()
}

/// A volume with a spill device of twice its size.
fn spilling(options: &Options) -> Arc<Volume> {
    const SLOTS: u32 = 512;
    let drive = Arc::new(RamDrive::new((u64::from(SLOTS) + 1) * MIB));
    let below = SpillTo { drive, slots: SLOTS, daily: 0 };
    Volume::create_over(options, &Memory::default(), Some(below)).unwrap()
}

/// Page faults of this thread on memory that was not allocated yet.
fn faults() -> i64 {
    // SAFETY: all of the structure is plain numbers, which the call fills in.
    let usage = unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_THREAD, &mut usage), 0);
        usage
    };
    usage.ru_minflt + usage.ru_majflt
}

struct Writer {
    channel: Box<dyn Channel>,
    data: Vec<u8>,
    rng: u64,
    /// Whether all pages of a write have the same words.
    alike: bool,
}

impl Writer {
    fn new(volume: &Arc<Volume>) -> Self {
        let channel = Arc::clone(volume).channel();
        Self { channel, data: vec![1; 64 << 10], rng: 0x9e37_79b9, alike: false }
    }

    /// Writes 64 KiB of which half does not compress.
    fn write(&mut self, offset: u64) -> Result<(), IoError> {
        let first = self.rng;
        for (n, page) in self.data.chunks_exact_mut(4096).enumerate() {
            if self.alike {
                self.rng = first;
                page[2048..2056].copy_from_slice(&(n as u64).to_le_bytes());
            }
            for word in page[..2048].as_chunks_mut::<8>().0 {
                self.rng ^= self.rng << 13;
                self.rng ^= self.rng >> 7;
                self.rng ^= self.rng << 17;
                *word = self.rng.to_le_bytes();
            }
        }
        let request = Request::Write { offset, data: &self.data, fua: false };
        self.channel.submit(request, Instant::now())
    }

    fn fill(&mut self, bytes: std::ops::Range<u64>) {
        let end = Instant::now() + Duration::from_secs(60);
        for offset in bytes.step_by(64 << 10) {
            // The mempool may be exhausted for a moment, as users of swap must expect.
            while let Err(e) = self.write(offset) {
                assert!(e == IoError::NoSpace && Instant::now() < end, "{e} at {offset}");
            }
        }
    }

    fn discard(&mut self, bytes: std::ops::Range<u64>) {
        let (offset, len) = (bytes.start, bytes.end - bytes.start);
        self.channel.submit(Request::Discard { offset, len }, Instant::now()).unwrap();
    }
}

/// Waits until `holds` returns `true`; for as long as other tests may keep this machine busy.
fn eventually(what: &str, holds: impl Fn() -> bool) {
    let end = Instant::now() + Duration::from_secs(20);
    while !holds() {
        assert!(Instant::now() < end, "never: {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn writes_ask_the_machine_for_nothing() {
    let volume = volume();
    let mut writer = Writer::new(&volume);
    let faults_of = |writer: &mut Writer, range| {
        let before = faults();
        writer.fill(range);
        faults() - before
    };
    // Memory that is touched once and stays: code, stack, buffers.
    writer.fill(0..4 * MIB);
    assert!(faults_of(&mut writer, 4 * MIB..36 * MIB) > 100, "memory came from somewhere else");
    volume.carry_swap(true).unwrap();
    assert_eq!(faults_of(&mut writer, 36 * MIB..100 * MIB), 0);
    // Freed, and allocated again, also where all of a leaf was free.
    writer.discard(0..100 * MIB);
    assert_eq!(faults_of(&mut writer, 0..100 * MIB), 0);
    volume.audit().unwrap();
}

#[test]
fn the_mempool_is_there_and_goes() {
    let volume = volume();
    let mut writer = Writer::new(&volume);
    writer.fill(0..16 * MIB);
    writer.discard(0..16 * MIB);
    eventually("memory is given back", || volume.stats().mem_used_bytes < 8 * MIB);
    volume.carry_swap(true).unwrap();
    let used = volume.stats().mem_used_bytes;
    assert!((INDEX + 6 * MIB..INDEX + 16 * MIB).contains(&used), "{used} bytes");
    // The memory stays, also after idle time and discards.
    writer.fill(0..16 * MIB);
    writer.discard(0..SIZE);
    std::thread::sleep(Duration::from_secs(1));
    assert!(volume.stats().mem_used_bytes >= INDEX + 6 * MIB);
    volume.carry_swap(false).unwrap();
    eventually("all of it goes", || volume.stats().mem_used_bytes < 3 * MIB);
    writer.fill(0..16 * MIB);
    volume.audit().unwrap();
}

#[test]
fn a_full_volume_refuses_and_goes_on() {
    let volume = volume();
    let mut writer = Writer::new(&volume);
    volume.carry_swap(true).unwrap();
    let mut refused = 0;
    let end = Instant::now() + Duration::from_secs(20);
    // While there is room, only the mempool can be exhausted for a moment.
    let is_full = || volume.stats().compr_data_bytes > LIMIT * 9 / 10 || Instant::now() > end;
    for offset in (0..SIZE).step_by(64 << 10) {
        while let Err(e) = writer.write(offset) {
            assert_eq!(e, IoError::NoSpace);
            if is_full() {
                refused += 1;
                break;
            }
        }
    }
    let stats = volume.stats();
    assert!(refused > 0 && stats.mem_used_max_bytes <= LIMIT, "{refused}, {stats:?}");
    // All memory but the cleaning reserve holds data: the mempool costs no capacity.
    assert!(stats.compr_data_bytes > LIMIT * 9 / 10, "{} bytes", stats.compr_data_bytes);
    writer.discard(0..SIZE / 2);
    writer.fill(0..16 * MIB);
    volume.audit().unwrap();
}

/// The smallest limit leaves room for a handful of segments, of which one is being filled with
/// clusters: one more can always be spilled, and a writer makes progress.
#[test]
fn the_least_limit_never_ends_in_refusals() {
    let options = Options { ram_limit_max: LIMIT, ..options(SIZE, LIMIT) };
    let volume = spilling(&options);
    let mut writer = Writer::new(&volume);
    volume.carry_swap(true).unwrap();
    // Pages of the same words, which compress further only together.
    writer.alike = true;
    writer.fill(0..8 * MIB);
    // Recompression leaves the last frames of the mempool to writers.
    eventually("blocks are recompressed", || {
        volume.recompress_now();
        volume.stats().blocks_recompressed > 100
    });
    volume.set_ram_limit(min_ram_limit_above(SIZE, MIB as u32)).unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    for offset in (0..SIZE).step_by(64 << 10) {
        // The mempool may be exhausted for a moment, as users of swap must expect.
        while let Err(e) = writer.write(offset) {
            assert_eq!(e, IoError::NoSpace);
            assert!(Instant::now() < end, "refused at {offset}: {:?}", volume.stats());
        }
    }
    volume.audit().unwrap();
}

/// A slot to which a thread of the volume writes is neither free nor named by a segment. The audit
/// has to wait for that thread.
#[test]
fn an_audit_waits_for_the_threads_of_the_volume() {
    let volume = spilling(&options(SIZE, 32 * MIB));
    let mut writer = Writer::new(&volume);
    writer.fill(0..96 * MIB);
    let mut audits = 0;
    for offset in (0..96 * MIB).step_by(MIB as usize) {
        writer.fill(offset..offset + MIB);
        for _ in 0..8 {
            volume.audit().unwrap_or_else(|e| panic!("{e}, after {audits} audits"));
            audits += 1;
        }
    }
    assert!(volume.stats().spill_device_writes > 50, "{:?}", volume.stats());
}

#[test]
fn a_limit_too_low_for_the_index_is_an_error_that_changes_nothing() {
    let volume = Volume::create(&options(64 << 30, 32 * MIB)).unwrap();
    let error = volume.carry_swap(true).unwrap_err().to_string();
    assert_eq!(
        error,
        "no room for an index of 134217728 bytes; give a higher ram-limit (ztier set NAME \
         ram-limit=…), or a smaller volume"
    );
    eventually("what was made of it goes", || volume.stats().mem_used_bytes < 6 * MIB);
    Writer::new(&volume).fill(0..4 * MIB);
    volume.audit().unwrap();
}

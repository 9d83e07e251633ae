//! Volumes with a spill device compared with a plain array of bytes, with so little memory that
//! most of their data is in slots.
#![allow(clippy::unwrap_used)]

use crate::support::ram_drive::RamDrive;
use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};
use ztier::device::{
    Algorithm, Channel, Device, IoError, Options, Recompress, Request, SpillTo, Volume,
    min_ram_limit,
};
use ztier::media::Memory;

const SIZE: u64 = 24 << 20;
const BLOCK: u64 = 4096;

/// xorshift64: the tests are the same every time.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, n: u64) -> u64 {
        (self.next() >> 11) % n
    }

    /// Bytes of which `noise` of 8 are noise.
    fn bytes(&mut self, len: u64, noise: u64) -> Vec<u8> {
        let word = self.next();
        let each = (0..len.div_ceil(8)).flat_map(|i| {
            let word = if i % 8 < noise { self.next() } else { word };
            word.to_le_bytes()
        });
        each.take(len as usize).collect()
    }
}

/// The memory files, as a process gets them that takes over.
fn inherited(memory: &Memory) -> Memory {
    let dup = |file: &OwnedFd| file.try_clone().unwrap();
    let files = memory.files().into_iter().map(|(name, file)| (name, dup(&file)));
    Memory::inherited(files.collect())
}

struct Rig {
    drive: Arc<RamDrive>,
    slots: u32,
    memory: Memory,
    options: Options,
    up: Option<(Arc<Volume>, Box<dyn Channel>)>,
    model: Vec<u8>,
    dice: Dice,
    refused: u64,
    daily: u64,
}

impl Rig {
    /// With as little memory as there can be, and a segment.
    fn new(segment: u32, slots: u32, seed: u64) -> Self {
        Self::with_room(segment, slots, seed, 1)
    }

    /// With as little memory as there can be, and room for `segments`.
    fn with_room(segment: u32, slots: u32, seed: u64, segments: u64) -> Self {
        let ram_limit = min_ram_limit(SIZE, segment) + segments * u64::from(segment);
        let options = Options {
            size: SIZE,
            ram_limit,
            ram_limit_max: ram_limit,
            segment,
            algorithm: Algorithm::Lz4,
            lock_memory: false,
        };
        let drive = Arc::new(RamDrive::new((u64::from(slots) + 1) * u64::from(segment)));
        let mut rig = Self {
            drive,
            slots,
            memory: Memory::default(),
            options,
            up: None,
            model: vec![0; SIZE as usize],
            dice: Dice(seed | 1),
            refused: 0,
            daily: 0,
        };
        rig.start();
        rig
    }

    fn start(&mut self) {
        let below = SpillTo { drive: self.drive.clone(), slots: self.slots, daily: self.daily };
        let volume = Volume::new_over(&self.options, &self.memory, Some(below)).unwrap();
        let volume = Arc::new(volume);
        let channel = Arc::clone(&volume).channel();
        self.up = Some((volume, channel));
    }

    /// Makes a new volume take over the memory files and the device.
    fn succeed(&mut self) {
        self.up = None;
        self.memory = inherited(&self.memory);
        self.start();
        self.volume().audit().unwrap();
    }

    fn volume(&self) -> &Arc<Volume> {
        &self.up.as_ref().unwrap().0
    }

    fn submit(&mut self, request: Request<'_>) -> Result<(), IoError> {
        self.up.as_mut().unwrap().1.submit(request, Instant::now())
    }

    fn write(&mut self, offset: u64, data: &[u8]) {
        match self.submit(Request::Write { offset, data, fua: false }) {
            Ok(()) => self.model[offset as usize..][..data.len()].copy_from_slice(data),
            Err(IoError::NoSpace) => {
                self.refused += 1;
                self.learn(offset, data);
            }
            Err(e) => panic!("{e}"),
        }
    }

    /// After a refusal each block has its old or its new content; the model adopts it.
    fn learn(&mut self, offset: u64, data: &[u8]) {
        let mut got = vec![0; data.len()];
        self.submit(Request::Read { offset, buf: &mut got }).unwrap();
        let mut at = 0;
        while at < data.len() {
            let pos = offset as usize + at;
            let n = (4096 - pos % 4096).min(data.len() - at);
            let (old, new) = (&self.model[pos..pos + n], &data[at..at + n]);
            assert!(got[at..at + n] == *old || got[at..at + n] == *new, "block at {pos} is torn");
            self.model[pos..pos + n].copy_from_slice(&got[at..at + n]);
            at += n;
        }
    }

    fn check(&mut self, offset: u64, len: u64) {
        let mut buf = vec![0xee; len as usize];
        self.submit(Request::Read { offset, buf: &mut buf }).unwrap();
        assert!(buf == self.model[offset as usize..][..len as usize], "{len} at {offset}");
    }

    fn discard(&mut self, offset: u64, len: u64) {
        self.zeroed(Request::Discard { offset, len }, offset, len);
    }

    fn zeroed(&mut self, request: Request<'_>, offset: u64, len: u64) {
        match self.submit(request) {
            Ok(()) => self.model[offset as usize..][..len as usize].fill(0),
            // Zeroing a part of a block rewrites the block.
            Err(IoError::NoSpace) => self.learn(offset, &vec![0; len as usize]),
            Err(e) => panic!("{e}"),
        }
    }

    fn range(&mut self) -> (u64, u64) {
        let (offset, len) = match self.dice.below(4) {
            0 => (self.dice.below(SIZE), 1 + self.dice.below(20_000)),
            1 => (self.dice.below(64) * BLOCK, BLOCK),
            _ => (self.dice.below(SIZE / BLOCK) * BLOCK, (1 + self.dice.below(64)) * BLOCK),
        };
        (offset, len.min(SIZE - offset))
    }

    fn step(&mut self) {
        let (offset, len) = self.range();
        match self.dice.below(32) {
            0..12 => {
                let noise = [0, 1, 3, 5, 8, 8][self.dice.below(6) as usize];
                let data = self.dice.bytes(len, noise);
                self.write(offset, &data);
            }
            12..26 => self.check(offset, len),
            26..28 => self.discard(offset, len),
            28 => {
                let no_hole = self.dice.below(2) == 0;
                let zero = Request::WriteZeroes { offset, len, no_hole, fua: false };
                self.zeroed(zero, offset, len);
            }
            29 => self.volume().clean_now(),
            30 => self.volume().recompress_now(),
            _ if self.dice.below(8) == 0 => self.succeed(),
            _ => {}
        }
        let stats = self.volume().stats();
        assert!(stats.mem_used_bytes <= self.options.ram_limit, "{}", stats.mem_used_bytes);
    }

    /// Writes everything up to `end`, with various compressibility.
    fn fill(&mut self, end: u64) {
        for offset in (0..end).step_by(256 << 10) {
            let noise = 2 + self.dice.below(7);
            let data = self.dice.bytes(256 << 10, noise);
            self.write(offset, &data);
        }
    }

    /// Discards everything; no memory and no slot may stay in use.
    fn empty(&mut self) {
        self.discard(0, SIZE);
        self.volume().clean_now();
        self.volume().clean_now();
        self.check_all();
        let stats = self.volume().stats();
        assert_eq!((stats.blocks_stored, stats.compr_data_bytes), (0, 0));
        assert_eq!((stats.spill_slots_used, stats.spilled_blocks), (0, 0), "{stats:?}");
    }

    fn check_all(&mut self) {
        self.volume().audit().unwrap();
        for offset in (0..SIZE).step_by(1 << 20) {
            self.check(offset, 1 << 20);
        }
        self.volume().audit().unwrap();
    }
}

fn run(segment: u32, slots: u32, seed: u64) -> Rig {
    let mut rig = Rig::new(segment, slots, seed);
    // So that most of it has to be spilled.
    rig.fill(SIZE);
    rig.check_all();
    let stats = rig.volume().stats();
    let (below, all) = (stats.spilled_blocks, stats.blocks_stored);
    assert!(below > all / 3 && below < all, "{stats:?}");
    for _ in 0..1500 {
        rig.step();
    }
    rig.check_all();
    rig.succeed();
    rig.check_all();
    rig
}

#[test]
fn most_is_below_and_all_is_what_was_written() {
    for (segment, seed) in [(32 << 10, 1), (128 << 10, 2), (1 << 20, 3), (32 << 10, 4)] {
        let slots = (SIZE * 2 / u64::from(segment)) as u32;
        let mut rig = run(segment, slots, seed);
        assert_eq!(rig.refused, 0);
        rig.empty();
    }
}

/// Memory and slots together hold less than the device: writes are refused, never lost, and
/// discards make room again.
#[test]
fn everything_full_is_refused_and_discards_make_room() {
    for (segment, seed) in [(32 << 10, 5), (256 << 10, 6)] {
        let slots = (6 << 20) / segment;
        let mut rig = run(segment, slots, seed);
        assert!(rig.refused > 0);
        // Recompression left room meanwhile.
        rig.fill(SIZE);
        let stats = rig.volume().stats();
        assert!(stats.spill_slots_used + 1 >= slots.into(), "{stats:?}");
        // The rest is spread over all slots, so that compaction has to merge them.
        for block in (0..SIZE / BLOCK).filter(|block| block % 3 != 0) {
            rig.discard(block * BLOCK, BLOCK);
        }
        let before = rig.refused;
        for block in (0..SIZE / BLOCK).filter(|block| block % 8 == 1) {
            let data = rig.dice.bytes(BLOCK, 8);
            rig.write(block * BLOCK, &data);
        }
        assert_eq!(rig.refused, before, "there was room for these");
        rig.check_all();
        rig.empty();
    }
}

/// With all slots taken, a write that is refused copies nothing: copies of what was read lately
/// would take the memory that cleaning needs after discards.
#[test]
fn a_refused_write_copies_nothing() {
    let segment = 32 << 10;
    let mut rig = Rig::with_room(segment, 64, 21, 128);
    let mut end = 0;
    while rig.refused == 0 {
        let data = rig.dice.bytes(BLOCK, 8);
        rig.write(end * BLOCK, &data);
        end += 1;
    }
    let stats = rig.volume().stats();
    assert_eq!(stats.spill_slots_used, stats.spill_slots, "{stats:?}");
    let (before, refused) = (stats.bytes_moved, rig.refused);
    for round in 0..100 {
        // One block of each segment, which holds seven.
        for block in (round % 7..end - 1).step_by(7) {
            rig.check(block * BLOCK, BLOCK);
        }
        let data = rig.dice.bytes(BLOCK, 8);
        rig.write((end + round) * BLOCK, &data);
    }
    let moved = rig.volume().stats().bytes_moved - before;
    let refused = rig.refused - refused;
    assert!(refused > 90 && moved < 4 * u64::from(segment), "{refused}, {moved} bytes");
    for block in (0..end).step_by(2) {
        rig.discard(block * BLOCK, BLOCK);
    }
    let refused = rig.refused;
    for block in (0..end).step_by(4) {
        let data = rig.dice.bytes(BLOCK, 8);
        rig.write(block * BLOCK, &data);
    }
    assert_eq!(rig.refused, refused, "there was room for these");
    rig.check_all();
    rig.empty();
}

/// A device that accepts no more writes: its content is readable, nothing is lost, and only memory
/// has room.
#[test]
fn a_device_that_fails_takes_nothing_with_it() {
    let mut rig = Rig::new(64 << 10, 400, 7);
    rig.fill(SIZE / 2);
    rig.drive.broken.store(true, Ordering::SeqCst);
    let failed = Instant::now();
    rig.fill(SIZE);
    let stats = rig.volume().stats();
    // It is tried again after a second, which a busy machine may take for all of this.
    assert!(stats.spill_failed || is_late(failed), "{stats:?}");
    assert!(stats.spill_errors == 1 || is_late(failed), "{stats:?}");
    assert!(rig.refused > 0);
    let writes = rig.drive.writes.load(Ordering::SeqCst);
    rig.drive.broken.store(false, Ordering::SeqCst);
    rig.check_all();
    rig.discard(0, SIZE / 2);
    rig.fill(SIZE);
    rig.check_all();
    let stays = rig.drive.writes.load(Ordering::SeqCst) == writes;
    assert!(stays || is_late(failed), "it stays failed");
    rig.empty();
}

/// Whether a device that failed after this moment may be tried again.
fn is_late(failed: Instant) -> bool {
    failed.elapsed() >= Duration::from_secs(1)
}

/// Blocks whose device does not answer can't be read; all others can, and new content repairs them.
#[test]
fn what_cannot_be_read_fails_alone() {
    let mut rig = Rig::new(64 << 10, 400, 8);
    rig.fill(SIZE);
    rig.drive.deaf.store(true, Ordering::SeqCst);
    let (mut lost, mut read) = (0, 0);
    for offset in (0..SIZE).step_by(BLOCK as usize) {
        let mut buf = vec![0; BLOCK as usize];
        match rig.submit(Request::Read { offset, buf: &mut buf }) {
            Ok(()) => {
                read += 1;
                assert!(buf == rig.model[offset as usize..][..BLOCK as usize]);
            }
            Err(e) => {
                assert_eq!((e, e.errno()), (IoError::Lost(offset / BLOCK), 5));
                lost += 1;
                if lost % 64 == 0 {
                    let data = rig.dice.bytes(BLOCK, 4);
                    rig.write(offset, &data);
                    rig.check(offset, BLOCK);
                }
            }
        }
    }
    assert!(lost > 1000 && read > 100, "{lost} {read}");
    rig.drive.deaf.store(false, Ordering::SeqCst);
    rig.check_all();
    rig.empty();
}

/// A sector that can't be read fails no block with its record elsewhere, though a read would
/// include that sector: neither single blocks, nor many at once, nor a stream.
#[test]
fn a_bad_sector_fails_alone() {
    let mut rig = Rig::new(64 << 10, 400, 14);
    for offset in (0..SIZE).step_by(256 << 10) {
        let data = rig.dice.bytes(256 << 10, 4);
        rig.write(offset, &data);
    }
    let slot = 64 << 10;
    rig.drive.bad.store(6 * slot + slot / 2 + 600, Ordering::SeqCst);
    let lost = |rig: &mut Rig, blocks: &mut dyn Iterator<Item = u64>| -> Vec<u64> {
        let mut lost = Vec::new();
        for block in blocks {
            let mut buf = vec![0; BLOCK as usize];
            match rig.submit(Request::Read { offset: block * BLOCK, buf: &mut buf }) {
                Ok(()) => assert!(buf == rig.model[(block * BLOCK) as usize..][..buf.len()]),
                Err(e) => {
                    assert_eq!(e, IoError::Lost(block));
                    lost.push(block);
                }
            }
        }
        lost
    };
    // Records of about 2 KiB, and of the page of 4 KiB that has the byte.
    let up = lost(&mut rig, &mut (0..SIZE / BLOCK));
    assert!((1..=4).contains(&up.len()), "{up:?}");
    let down = lost(&mut rig, &mut (0..SIZE / BLOCK).rev());
    assert_eq!(down.into_iter().rev().collect::<Vec<_>>(), up);
    // As many blocks at once as a file system reads: the first lost block is named.
    for first in (up[0].saturating_sub(40)..up[0] + 40).step_by(16) {
        let mut buf = vec![0; 16 * BLOCK as usize];
        let read = rig.submit(Request::Read { offset: first * BLOCK, buf: &mut buf });
        let is_whole = up.iter().all(|block| !(first..first + 16).contains(block));
        assert_eq!(read.is_ok(), is_whole, "{first}: {read:?}, lost {up:?}");
    }
    rig.drive.bad.store(u64::MAX, Ordering::SeqCst);
    rig.check_all();
    rig.empty();
}

/// A device that fails reads for a while keeps its slots: none is set aside, and they are emptied
/// when it can be read again.
#[test]
fn slots_that_could_not_be_read_are_emptied_later() {
    let mut rig = Rig::with_room(64 << 10, 400, 22, 64);
    rig.fill(SIZE);
    rig.volume().spill_now();
    for block in (0..SIZE / BLOCK).filter(|block| block % 4 != 0) {
        rig.discard(block * BLOCK, BLOCK);
    }
    let before = rig.volume().stats();
    rig.drive.deaf.store(true, Ordering::SeqCst);
    let deaf = Instant::now();
    for _ in 0..20 {
        rig.volume().compact_now();
    }
    let after = rig.volume().stats();
    assert_eq!(after.spilled_blocks, before.spilled_blocks);
    let errors = after.spill_errors - before.spill_errors;
    assert!(errors == 1 || errors > 0 && is_late(deaf), "{errors}");
    rig.drive.deaf.store(false, Ordering::SeqCst);
    let end = Instant::now() + Duration::from_secs(60);
    while rig.volume().stats().spill_slots_used > before.spill_slots_used / 2 {
        assert!(Instant::now() < end, "{:?}", rig.volume().stats());
        rig.volume().compact_now();
        rig.volume().clean_now();
        std::thread::sleep(Duration::from_millis(1));
    }
    rig.check_all();
    rig.empty();
}

/// A slot that can't be read keeps no other from being emptied, and is emptied when it can be.
#[test]
fn one_bad_slot_holds_up_no_other() {
    let segment = 64 << 10;
    let mut rig = Rig::with_room(segment, 400, 23, 64);
    rig.fill(SIZE / 4);
    rig.volume().spill_now();
    for block in (0..SIZE / BLOCK).filter(|block| block % 4 != 0) {
        rig.discard(block * BLOCK, BLOCK);
    }
    let slot = u64::from(segment);
    for (bad, left) in [(6 * slot + slot / 2, 1), (u64::MAX, 0)] {
        rig.drive.bad.store(bad, Ordering::SeqCst);
        let end = Instant::now() + Duration::from_secs(60);
        while rig.volume().stats().spill_slots_used > left {
            assert!(Instant::now() < end, "{:?}", rig.volume().stats());
            rig.volume().compact_now();
            std::thread::sleep(Duration::from_millis(1));
        }
        assert!(rig.volume().stats().spill_errors > 0);
    }
    rig.check_all();
    rig.empty();
}

/// Content of the device is checked like that of memory.
#[test]
fn damage_on_the_device_is_never_served() {
    let mut rig = Rig::new(64 << 10, 400, 9);
    rig.fill(SIZE);
    for slot in 0..64 {
        rig.drive.damage((slot + 1) * (64 << 10) + 5000);
    }
    let mut corrupt = 0;
    for block in 0..SIZE / BLOCK {
        let mut buf = vec![0; BLOCK as usize];
        match rig.submit(Request::Read { offset: block * BLOCK, buf: &mut buf }) {
            Ok(()) => assert!(buf == rig.model[(block * BLOCK) as usize..][..BLOCK as usize]),
            Err(e) => {
                assert_eq!(e, IoError::Corrupt(block));
                corrupt += 1;
            }
        }
    }
    assert!((32..=64).contains(&corrupt), "{corrupt}");
    rig.empty();
}

/// Blocks that are read again are promoted, and blocks that are read often stay: reads of few
/// blocks among many stop reading from the device.
#[test]
fn what_is_hot_is_in_memory() {
    // Room for what is promoted.
    let mut rig = Rig::with_room(64 << 10, 600, 10, 2);
    rig.fill(SIZE);
    let hot: Vec<u64> = (0..200).map(|i| i * 23 % (SIZE / BLOCK)).collect();
    for round in 0..6 {
        let before = rig.drive.reads.load(Ordering::SeqCst);
        for block in &hot {
            rig.check(block * BLOCK, BLOCK);
        }
        let reads = rig.drive.reads.load(Ordering::SeqCst) - before;
        assert!(round < 3 || reads < 20, "{reads} in round {round}");
        // Cold data passes through meanwhile.
        for _ in 0..16 {
            let data = rig.dice.bytes(16 * BLOCK, 5);
            let at = SIZE / 2 + rig.dice.below(SIZE / 2 / (16 * BLOCK)) * 16 * BLOCK;
            rig.write(at, &data);
        }
        rig.volume().clean_now();
    }
    assert!(rig.volume().stats().spill_promoted_blocks > 50);
    rig.check_all();
}

/// Neighbours are read along: reading everything in order reads many blocks at once from the
/// device.
#[test]
fn neighbours_are_read_together() {
    let mut rig = Rig::new(256 << 10, 200, 11);
    rig.fill(SIZE);
    let below = rig.volume().stats().spilled_blocks;
    for offset in (0..SIZE).step_by(BLOCK as usize) {
        rig.check(offset, BLOCK);
    }
    let stats = rig.volume().stats();
    assert!(stats.spill_device_reads * 4 < below, "{} for {below}", stats.spill_device_reads);
    let (read, spilled) = (stats.spill_read_blocks, stats.spilled_blocks);
    assert!(read >= spilled && read <= below, "{read} of {below}, {spilled} in the end");
    assert!(stats.spill_read_bytes < below * BLOCK * 5 / 4, "{}", stats.spill_read_bytes);
}

/// What a reader in order will want next is read before, also in the next slot: the reader itself
/// waits for few reads of the device.
#[test]
fn what_follows_is_read_before_it_is_wanted() {
    let mut rig = Rig::new(256 << 10, 200, 19);
    rig.fill(SIZE);
    let reads = |rig: &Rig| rig.drive.reads.load(Ordering::SeqCst);
    let (mut own, mut ahead) = (0, 0);
    for offset in (0..SIZE).step_by(BLOCK as usize) {
        let before = reads(&rig);
        rig.check(offset, BLOCK);
        let between = reads(&rig);
        while rig.volume().read_ahead_now() {}
        own += between - before;
        ahead += reads(&rig) - between;
    }
    assert!(own * 6 < ahead, "{own} of the reader, {ahead} ahead");
    let stats = rig.volume().stats();
    let below = stats.spilled_blocks * BLOCK;
    assert!(stats.spill_read_bytes < below * 5 / 4, "{} for {below}", stats.spill_read_bytes);
    // Reads that are not in order ask for nothing.
    let before = reads(&rig);
    for block in (0..200).map(|i| i * 391 % (SIZE / BLOCK)) {
        rig.check(block * BLOCK, BLOCK);
        assert!(!rig.volume().read_ahead_now());
    }
    assert!(reads(&rig) - before > 100);
}

/// The same by the thread of the volume: the device reads while no request does.
#[test]
fn the_volumes_thread_reads_ahead() {
    let mut rig = Rig::new(256 << 10, 200, 20);
    rig.fill(SIZE);
    rig.up = None;
    let below = SpillTo { drive: rig.drive.clone(), slots: rig.slots, daily: 0 };
    let memory = inherited(&rig.memory);
    let volume = Volume::create_over(&rig.options, &memory, Some(below)).unwrap();
    let mut channel = Arc::clone(&volume).channel();
    let reads_alone = (0..SIZE).step_by(BLOCK as usize).any(|offset| {
        let mut buf = vec![0; BLOCK as usize];
        channel.submit(Request::Read { offset, buf: &mut buf }, Instant::now()).unwrap();
        assert!(buf == rig.model[offset as usize..][..buf.len()]);
        let before = rig.drive.reads.load(Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(2));
        rig.drive.reads.load(Ordering::SeqCst) > before
    });
    assert!(reads_alone);
    volume.close();
}

/// Many more threads than windows, and a slow device: each thread finds what it has read, and no
/// thread reads it twice from the device.
#[test]
fn many_readers_take_nothing_from_each_other() {
    const READERS: u64 = 16;
    const EACH: u64 = 40;
    let mut rig = Rig::new(64 << 10, 400, 15);
    for offset in (0..SIZE).step_by(256 << 10) {
        let data = rig.dice.bytes(256 << 10, 8);
        rig.write(offset, &data);
    }
    rig.drive.read_ms.store(2, Ordering::SeqCst);
    let before = rig.drive.reads.load(Ordering::SeqCst);
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (mut channel, model) = (Arc::clone(rig.volume()).channel(), &rig.model);
            scope.spawn(move || {
                let mut dice = Dice(reader * 991 + 7);
                for _ in 0..EACH {
                    let offset = dice.below(SIZE / BLOCK) * BLOCK;
                    let mut buf = vec![0; BLOCK as usize];
                    let read = Request::Read { offset, buf: &mut buf };
                    channel.submit(read, Instant::now()).unwrap();
                    assert!(buf == model[offset as usize..][..buf.len()]);
                }
            });
        }
    });
    let reads = rig.drive.reads.load(Ordering::SeqCst) - before;
    assert!(reads * 100 <= READERS * EACH * 105, "{reads} reads of the device");
}

/// No more than the daily limit is written in a day; then only memory has room.
#[test]
fn a_daily_limit_is_kept() {
    let mut rig = Rig::new(64 << 10, 400, 12);
    let daily = 2 << 20;
    rig.daily = daily;
    rig.memory = Memory::default();
    rig.start();
    rig.fill(SIZE);
    let stats = rig.volume().stats();
    assert!(rig.refused > 0 && !stats.spill_failed, "{stats:?}");
    assert!(stats.spill_written_bytes <= daily, "{stats:?}");
    assert!(stats.spill_written_bytes + (64 << 10) > daily - (64 << 10), "{stats:?}");
    assert!(stats.spill_allowed_bytes.is_some_and(|left| left < 128 << 10), "{stats:?}");
    rig.check_all();
}

/// A lower memory limit is reached by spilling.
#[test]
fn a_lower_limit_sends_more_down() {
    let mut rig = Rig::new(64 << 10, 800, 13);
    let least = rig.options.ram_limit;
    rig.options.ram_limit_max = 64 << 20;
    rig.options.ram_limit = 64 << 20;
    rig.memory = Memory::default();
    rig.start();
    rig.fill(SIZE);
    assert_eq!(rig.volume().stats().spilled_blocks, 0);
    rig.volume().set_ram_limit(least).unwrap();
    rig.options.ram_limit = least;
    let stats = rig.volume().stats();
    assert!(stats.mem_used_bytes <= least && stats.spilled_blocks > 1000, "{stats:?}");
    rig.check_all();
}

/// Threads that write, read and discard their own blocks, beside the volume's own threads, with
/// memory for a fraction of the data, and a slow device.
#[test]
fn threads_beside_the_volumes_own() {
    let segment = 64 << 10;
    // The memory for recompression has to fit, too.
    let ram_limit = min_ram_limit(SIZE, segment) + (2 << 20) + (1400 << 10);
    let options = Options {
        size: SIZE,
        ram_limit,
        ram_limit_max: ram_limit,
        segment,
        algorithm: Algorithm::Lz4,
        lock_memory: false,
    };
    // Hardly enough for everything, so that compaction empties slots, too.
    let slots = 340;
    let drive = Arc::new(RamDrive::new((u64::from(slots) + 1) * u64::from(segment)));
    drive.write_ms.store(1, Ordering::SeqCst);
    let below = SpillTo { drive: drive.clone(), slots, daily: 0 };
    let volume = Volume::create_over(&options, &Memory::default(), Some(below)).unwrap();
    volume.set_recompress(Recompress::Idle).unwrap();
    // A thread's own memory is taken regardless of the limit: before the others have filled it.
    let all_there = Barrier::new(THREADS as usize);
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (volume, all_there) = (Arc::clone(&volume), &all_there);
            scope.spawn(move || {
                let channel = volume.channel();
                all_there.wait();
                work(channel, thread);
            });
        }
    });
    let stats = volume.stats();
    assert!(stats.mem_used_max_bytes <= ram_limit, "{stats:?}");
    assert!(stats.spilled_segments > 200 && stats.spill_promoted_blocks > 0, "{stats:?}");
    assert!(stats.blocks_recompressed + stats.recompress_in_vain > 0, "{stats:?}");
    volume.close();
    volume.audit().unwrap();
}

const THREADS: u64 = 4;
const OWN: u64 = SIZE / BLOCK / THREADS;

/// The work of thread number `thread` on its blocks.
fn work(mut channel: Box<dyn Channel>, thread: u64) {
    let mut dice = Dice(thread * 77 + 5);
    let mut seeds = vec![None; OWN as usize];
    let content = |seed: Option<u64>| match seed {
        None => vec![0; BLOCK as usize],
        Some(seed) => Dice(seed | 1).bytes(BLOCK, 3 + seed % 5),
    };
    let check = |channel: &mut dyn Channel, own: u64, seed| {
        let mut buf = vec![1; BLOCK as usize];
        let read = Request::Read { offset: (thread * OWN + own) * BLOCK, buf: &mut buf };
        channel.submit(read, Instant::now()).unwrap();
        assert!(buf == content(seed), "block {own} of thread {thread}");
    };
    for _ in 0..12_000 {
        let own = dice.below(OWN);
        let offset = (thread * OWN + own) * BLOCK;
        let seed = &mut seeds[own as usize];
        match dice.below(8) {
            0..4 => {
                *seed = Some(dice.next());
                let data = content(*seed);
                let write = Request::Write { offset, data: &data, fua: false };
                channel.submit(write, Instant::now()).unwrap();
            }
            4 => {
                *seed = None;
                let discard = Request::Discard { offset, len: BLOCK };
                channel.submit(discard, Instant::now()).unwrap();
            }
            _ => check(&mut *channel, own, *seed),
        }
    }
    for (own, seed) in (0..).zip(&seeds) {
        check(&mut *channel, own, *seed);
    }
}

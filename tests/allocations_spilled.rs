//! Swap must not need memory while memory is short: writes at the limit, spilling, reads of spilled
//! segments, and discards allocate nothing.
#![allow(clippy::unwrap_used, dead_code)]

mod support {
    pub mod ram_drive;
}

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::sync::Arc;
use std::time::Instant;
use support::ram_drive::RamDrive;
use ztier::device::{
    Algorithm, Device, Options, Recompress, Request, SpillTo, Volume, min_ram_limit_above,
};
use ztier::media::Memory;

/// Counts the allocations of the calling thread.
struct Counting;

thread_local! {
    static ASKED: Cell<u64> = const { Cell::new(0) };
}

// SAFETY: everything is the system's; only a number of the thread's own is changed beside it.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ASKED.set(ASKED.get() + 1);
        // SAFETY: the caller keeps the contract, which is the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        // SAFETY: as above.
        unsafe { System.dealloc(at, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

const SIZE: u64 = 24 << 20;
const BLOCK: u64 = 4096;

/// Incompressible blocks; those of every other seed compress together, because they are the same.
fn fill(data: &mut [u8], seed: u64) {
    if seed & 2 == 2 {
        let (first, rest) = data.split_at_mut(BLOCK as usize);
        fill(first, seed & !2);
        for (n, block) in (1u8..).zip(rest.chunks_mut(BLOCK as usize)) {
            block.copy_from_slice(first);
            block[5] ^= n;
        }
        return;
    }
    let mut x = seed | 1;
    for (at, word) in data.chunks_mut(8).enumerate() {
        x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        let word_of = if at % 3 == 0 { seed } else { x };
        word.copy_from_slice(&word_of.to_le_bytes());
    }
}

#[test]
fn at_the_limit_nothing_is_asked_for() {
    let segment = 64 << 10;
    let ram_limit = min_ram_limit_above(SIZE, segment);
    let options = Options {
        size: SIZE,
        ram_limit,
        ram_limit_max: ram_limit,
        segment,
        algorithm: Algorithm::Lz4,
        lock_memory: false,
    };
    let slots = 400;
    let drive = RamDrive::new((u64::from(slots) + 1) * u64::from(segment));
    let below = SpillTo { drive: Arc::new(drive), slots, daily: 1 << 40 };
    let volume = Volume::new_over(&options, &Memory::default(), Some(below)).unwrap();
    let volume = Arc::new(volume);
    volume.set_recompress(Recompress::Idle).unwrap();
    let mut channel = Arc::clone(&volume).channel();
    let (mut data, mut found) = (vec![0; 4 * BLOCK as usize], vec![0; 4 * BLOCK as usize]);
    let mut dice = 1u64;
    let mut asked = 0;
    assert!(ASKED.get() > 10, "what it took to get here is counted");
    for round in 0..12_000u64 {
        // Lists reach their final capacity in the first rounds.
        if round == 6000 {
            asked = ASKED.get();
        }
        dice = dice.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(99);
        let offset = if round < 1536 { round } else { (dice >> 33) % 1536 } * 4 * BLOCK;
        if round < 1536 || round % 4 < 2 {
            fill(&mut data, offset | 1 | (offset / BLOCK / 2) & 2);
            let write = Request::Write { offset, data: &data, fua: false };
            channel.submit(write, Instant::now()).unwrap();
        } else if round % 16 == 6 {
            // Another thread does this as soon as memory runs low: this thread can be counted.
            volume.clean_now();
        } else if round % 16 == 2 {
            let discard = Request::Discard { offset, len: BLOCK };
            channel.submit(discard, Instant::now()).unwrap();
        } else {
            let read = Request::Read { offset, buf: &mut found };
            channel.submit(read, Instant::now()).unwrap();
        }
    }
    let asked = ASKED.get() - asked;
    let stats = volume.stats();
    assert!(stats.spilled_segments > 400 && stats.spill_device_reads > 1000, "{stats:?}");
    assert!(stats.blocks_recompressed > 1000 && stats.spilled_blocks > 500, "{stats:?}");
    assert_eq!(asked, 0);
}

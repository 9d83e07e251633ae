//! Changes that a log had not made durable when its process died, and their takeover: the real
//! recovery and volume over memory files, and every refusal.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used)]

use crate::support::pair::{BLOCK, BLOCKS, Pair, SEGMENT};
use crate::support::ram_drive::RamDrive;
use std::sync::Arc;
use std::time::Instant;
use ztier::device::{Channel, Device, LogOptions, LogVolume, Request};
use ztier::log::disk::format::{IDENTITY, Kind, crc};
use ztier::log::{self, Core, Fills, Kept, OpenError, Options};
use ztier::media::{Drive, Memory};

/// The files as the next process gets them.
fn inherited(memory: &Memory) -> Memory {
    let files = memory.files().into_iter();
    Memory::inherited(files.map(|(name, file)| (name, file.try_clone().unwrap())).collect())
}

/// A core without threads: dropping it simulates a killed process.
fn open(log: &RamDrive, epoch: u64, memory: &Memory) -> Result<Core, OpenError> {
    let kept = Kept::new(memory).unwrap();
    log::open(log, Options::default(), epoch, false, kept).map(|(core, _)| core)
}

fn write(core: &mut Core, block: u64, byte: u8) {
    let mut fills = Fills::default();
    let payload = [byte; BLOCK as usize];
    core.reserve(block, Kind::Raw, (payload.len(), crc(&payload)), &mut fills).unwrap();
    fills.fill(&payload);
    fills.finish();
}

/// First byte of a block.
fn read(channel: &mut dyn Channel, block: u64) -> u8 {
    let mut buf = [0; BLOCK as usize];
    channel.submit(Request::Read { offset: block * BLOCK, buf: &mut buf }, Instant::now()).unwrap();
    assert!(buf.iter().all(|byte| *byte == buf[0]), "block {block} is torn");
    buf[0]
}

fn take_over(pair: &Pair, epoch: u64, memory: &Memory) -> Arc<LogVolume> {
    let (log, backing) = (Arc::clone(&pair.log), Arc::clone(&pair.backing));
    let volume = LogVolume::open_in(log, backing, LogOptions::default(), epoch, memory).unwrap();
    volume.start(None).unwrap();
    volume
}

#[test]
fn what_was_not_flushed_is_there_after_a_death() {
    let (pair, memory) = (Pair::new(4 << 20), Memory::default());
    let mut core = open(&pair.log, 1, &memory).unwrap();
    for block in 0..200 {
        write(&mut core, block, block as u8);
    }
    core.discard(50, 10).unwrap();
    write(&mut core, 55, 255);
    // Reserved, and never filled: the write was not acknowledged.
    let mut fills = Fills::default();
    core.reserve(7, Kind::Raw, (BLOCK as usize, 1234), &mut fills).unwrap();
    write(&mut core, 8, 88);
    drop(core);

    let memory = inherited(&memory);
    let volume = take_over(&pair, 2, &memory);
    assert_eq!(volume.report().recommitted, 203);
    let mut channel = Arc::clone(&volume).channel();
    for block in 0..200 {
        let expected = match block {
            8 => 88,
            55 => 255,
            50..60 => 0,
            _ => block as u8,
        };
        assert_eq!(read(&mut *channel, block), expected, "block {block}");
    }
    // A log closed in order leaves nothing for the next process.
    drop(channel);
    volume.close().unwrap();
    assert!(Kept::new(&inherited(&memory)).unwrap().is_empty());
}

#[test]
fn a_second_death_on_the_way_changes_nothing() {
    let (pair, mut memory) = (Pair::new(4 << 20), Memory::default());
    let mut core = open(&pair.log, 1, &memory).unwrap();
    for n in 0..48 {
        write(&mut core, n % 16, n as u8);
    }
    drop(core);
    for epoch in 2..12 {
        memory = inherited(&memory);
        let mut core = open(&pair.log, epoch, &memory).unwrap();
        assert_eq!(core.recommitted(), 48 + (epoch - 2));
        write(&mut core, 20 + epoch, epoch as u8);
        // The next write of a chunk is in flight, and may have reached the drive or not.
        let command = core.next_command();
        if let (Some(command), true) = (command, epoch % 2 == 0)
            && let log::Op::Write(bytes, range) = command.op
        {
            pair.log.write(command.at, &bytes[range]).unwrap();
        }
    }
    let volume = take_over(&pair, 20, &inherited(&memory));
    let mut channel = Arc::clone(&volume).channel();
    for block in 0..16 {
        assert_eq!(u64::from(read(&mut *channel, block)), 32 + block, "block {block}");
    }
    for epoch in 2..12 {
        assert_eq!(u64::from(read(&mut *channel, 20 + epoch)), epoch);
    }
}

#[test]
fn memory_of_another_log_or_another_past_is_refused() {
    let (pair, memory) = (Pair::new(4 << 20), Memory::default());
    let mut core = open(&pair.log, 1, &memory).unwrap();
    write(&mut core, 1, 1);
    drop(core);
    let refused = |log: &RamDrive| open(log, 9, &inherited(&memory)).map(|_| ()).unwrap_err();

    let other = RamDrive::new(4 << 20);
    log::format(&other, [8; 16], [0; IDENTITY], BLOCKS, SEGMENT).unwrap();
    assert_eq!(refused(&other), OpenError::OtherMemory);

    let none = RamDrive::new(4 << 20);
    assert_eq!(refused(&none), OpenError::NoLog);

    // The log was opened without the memory meanwhile: the memory belongs to another history.
    drop(open(&pair.log, 2, &Memory::default()).unwrap());
    assert_eq!(refused(&pair.log), OpenError::GoneOn);
    // A damaged superblock is repaired, and none of that has changed the memory: it can be
    // discarded.
    let next = inherited(&memory);
    let mut kept = Kept::new(&next).unwrap();
    assert!(!kept.is_empty());
    kept.give_up();
    drop(kept);
    pair.log.damage(100);
    open(&pair.log, 9, &inherited(&memory)).unwrap();
}

#[test]
fn a_log_that_lacks_what_was_durable_is_refused() {
    let (pair, memory) = (Pair::new(4 << 20), Memory::default());
    let mut core = open(&pair.log, 1, &memory).unwrap();
    write(&mut core, 1, 1);
    core.flush();
    // The drive reports success, and does nothing.
    while let Some(command) = core.next_command() {
        core.complete(command.id, &log::Outcome::Done);
    }
    write(&mut core, 2, 2);
    drop(core);
    assert!(pair.log.content()[256 << 10..].iter().all(|byte| *byte == 0));
    let found = open(&pair.log, 2, &inherited(&memory)).map(|_| ()).unwrap_err();
    assert_eq!(found, OpenError::Forgotten { chunk: 0 });
}

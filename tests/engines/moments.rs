//! The log's core without threads: events happen at the worst moment, between two of its steps.
#![cfg(not(shuttle))]
#![allow(clippy::unwrap_used)]

use crate::support::ram_drive::RamDrive;
use std::sync::atomic::Ordering;
use ztier::log::disk::format::{IDENTITY, Kind, SUPER_AT, crc, data_at};
use ztier::log::{
    self, Command, Core, Fills, Found, Kept, OpenError, Options, Outcome, Progress, Reading,
    Refused, Writeback,
};
use ztier::media::{ChangeCounter, Drive, Memory};

const BLOCK: usize = 4096;
const BLOCKS: u64 = 1024;
const SEGMENT: u32 = 64 << 10;
const SEGMENTS: u64 = 16;

/// A log without threads: only explicit calls do work.
struct Machine {
    core: Core,
    log: RamDrive,
    backing: RamDrive,
}

fn open(log: &RamDrive, keep_percent: u64, epoch: u64) -> Core {
    let options = Options { keep_percent, checkpoint: 0, ..Options::default() };
    let kept = Kept::new(&Memory::default()).unwrap();
    log::open(log, options, epoch, false, kept).unwrap().0
}

fn write(core: &mut Core, block: u64, byte: u8) -> Result<(), Refused> {
    let mut fills = Fills::default();
    let payload = [byte; BLOCK];
    core.reserve(block, Kind::Raw, (BLOCK, crc(&payload)), &mut fills)?;
    fills.fill(&payload);
    fills.finish();
    Ok(())
}

impl Machine {
    fn new(keep_percent: u64) -> Self {
        let size = (1..)
            .map(|mib| mib << 18)
            .find(|&size| size > data_at(size, SEGMENT) + SEGMENTS * u64::from(SEGMENT));
        Self::of(size.unwrap(), BLOCKS, SEGMENT, keep_percent)
    }

    /// A log of `size` bytes in segments of `segment`, for a backing store of `blocks` blocks.
    fn of(size: u64, blocks: u64, segment: u32, keep_percent: u64) -> Self {
        let (log, backing) = (RamDrive::new(size), RamDrive::new(blocks * BLOCK as u64));
        log::format(&log, [7; 16], [0; IDENTITY], blocks, segment).unwrap();
        Self { core: open(&log, keep_percent, 1), log, backing }
    }

    /// Cuts the power: everything that was not written is lost.
    fn cut(&mut self) {
        self.core = open(&self.log, 0, 2);
    }

    fn perform(&self, command: &Command) -> Outcome {
        command.carry_out(&self.log, &self.backing)
    }

    /// Carries out all commands of the log.
    fn work(&mut self) {
        loop {
            while let Some(command) = self.core.next_command() {
                let outcome = self.perform(&command);
                self.core.complete(command.id, &outcome);
            }
            if !self.core.is_stepping() {
                return;
            }
        }
    }

    fn write(&mut self, block: u64, byte: u8) -> Result<(), Refused> {
        write(&mut self.core, block, byte)
    }

    fn flush(&mut self) {
        let ticket = self.core.flush();
        self.work();
        assert_eq!(self.core.progress(ticket), Progress::Done);
    }

    fn write_back(&mut self) {
        self.core.finish_segment();
        self.flush();
        self.window();
    }

    fn window(&mut self) {
        assert!(self.try_window());
    }

    /// Carries out the next window, if there is one; returns whether there was.
    fn try_window(&mut self) -> bool {
        let Some(plan) = self.core.begin_window(u64::MAX) else { return false };
        let mut writeback = Writeback::new(plan);
        let ended = loop {
            while let Some(command) = writeback.next_command() {
                let outcome = self.perform(&command);
                writeback.complete(command.id, outcome);
            }
            if let Some(ended) = writeback.ended() {
                break ended;
            }
            writeback.proceed();
        };
        self.core.end_window(ended);
        self.work();
        true
    }

    /// Offset of the first segment.
    fn segments_at(&self) -> u64 {
        data_at(self.log.size(), SEGMENT)
    }

    /// Makes changes durable in a chunk of their own; returns the chunk's offset.
    fn chunk_of(&mut self, changes: impl FnOnce(&mut Core)) -> u64 {
        let before = self.log.content();
        changes(&mut self.core);
        self.flush();
        let after = self.log.content();
        let changed = |i: &usize| before[*i] != after[*i];
        (self.segments_at() as usize..after.len()).find(changed).unwrap() as u64
    }

    /// Discards a block, durably, in a chunk that is unreadable afterwards.
    fn discard_and_damage(&mut self, block: u64) {
        let chunk = self.chunk_of(|core| assert_eq!(core.discard(block, 1), Ok(1)));
        self.log.damage(chunk);
    }

    /// Damages the payload of a block.
    fn damage_payload(&mut self, block: u64) {
        let Found::Log(reading) = self.core.locate(block, &mut Vec::new()) else {
            panic!("it is not in the log");
        };
        self.core.release(&reading);
        self.log.damage(reading.at + 100);
    }

    /// Makes all writes to the log fail from this byte on.
    fn wear_out(&mut self, from: u64) {
        self.log.worn_from.store(from, Ordering::SeqCst);
        self.core.flush();
        self.work();
        assert!(self.core.is_failed() && self.core.is_rescuing());
    }

    /// Writes back everything that can be written back.
    fn rescue(&mut self) {
        while self.core.is_rescuing() {
            self.try_window();
            self.work();
        }
    }

    /// Reads a block as a reader of the volume does.
    fn read(&mut self, block: u64) -> u8 {
        let mut out = Vec::new();
        match self.core.locate(block, &mut out) {
            Found::Memory(_) => {}
            Found::Log(reading) => {
                out = self.read_log(&reading);
                self.core.release(&reading);
            }
            Found::Backing => {
                out = vec![0; BLOCK];
                self.backing.read(block * BLOCK as u64, &mut out).unwrap();
            }
            found => panic!("{found:?}"),
        }
        assert!(out.iter().all(|byte| *byte == out[0]), "block {block} is torn");
        out[0]
    }

    fn read_log(&self, reading: &Reading) -> Vec<u8> {
        let from = reading.at as usize;
        self.log.content()[from..from + reading.len as usize].to_vec()
    }
}

#[test]
fn copies_make_room_for_what_is_laid_out_anew() {
    let mut machine = Machine::new(50);
    let (_, segments) = machine.core.fullness();
    // Four segments that the backing store has, too, and a reader that pins the oldest.
    for block in 0..60 {
        machine.write(block, 1).unwrap();
    }
    machine.write_back();
    let copies = machine.core.stats().blocks_clean;
    assert!(copies >= 45, "{copies}");
    let mut out = Vec::new();
    let first = (0..60).find_map(|block| match machine.core.locate_copy(block, &mut out) {
        Some(Found::Log(reading)) => Some(reading),
        _ => None,
    });
    let reading = first.unwrap();
    // Changes until nothing more fits: the copies cannot leave, because the reader pins them. The
    // last changes, from the middle of a segment on, are only in memory.
    let mut next = 100;
    while machine.core.head() + 4 < segments {
        machine.write(next, 2).unwrap();
        machine.work();
        next += 1;
    }
    for _ in 0..7 {
        machine.write(next, 2).unwrap();
        next += 1;
    }
    machine.flush();
    let durable = next;
    while machine.write(next, 3).is_ok() {
        next += 1;
    }
    assert!(next > durable + 32 && machine.core.head() + 2 == segments, "{next} blocks");
    assert!(machine.core.stats().segments_clean > 0, "the copies have left");
    let before = machine.core.stats().errors;

    machine.log.broken.store(true, Ordering::SeqCst);
    let ticket = machine.core.flush();
    let command = machine.core.next_command().unwrap();
    let outcome = machine.perform(&command);
    machine.core.complete(command.id, &outcome);
    machine.log.broken.store(false, Ordering::SeqCst);
    machine.work();

    assert_eq!(machine.core.progress(ticket), Progress::Done);
    assert!(machine.core.stats().errors > before && !machine.core.is_failed());
    assert_eq!(machine.core.stats().segments_clean, 0, "they were in the way");
    assert!(machine.core.is_counted());
    for block in 0..60 {
        assert_eq!(machine.read(block), 1, "block {block}");
    }
    for block in 100..next {
        let expected = if block < durable { 2 } else { 3 };
        assert_eq!(machine.read(block), expected, "block {block}");
    }
    // The reader finds other content at the place that it pinned, and detects that.
    assert!(machine.core.has_left(&reading));
    machine.core.release(&reading);
    let found = machine.read_log(&reading);
    assert!(!reading.seed.fits(&found, reading.check) || found == [1; BLOCK]);
}

#[test]
fn a_window_waits_for_what_is_newer_than_what_it_lacks() {
    let mut machine = Machine::new(0);
    machine.write(7, 1).unwrap();
    machine.write_back();
    machine.write(7, 2).unwrap();
    machine.core.finish_segment();
    machine.flush();
    // A durable record is damaged, and its successor is only in memory.
    machine.damage_payload(7);
    machine.write(7, 3).unwrap();
    machine.window();
    assert_eq!(machine.core.fullness().0, 1, "the tail has moved");
    machine.cut();
    assert_eq!(machine.read(7), 3, "neither an older one nor an error");
}

#[test]
fn a_window_without_room_carries_a_discard_out_in_its_turn() {
    let mut machine = Machine::new(0);
    let (_, segments) = machine.core.fullness();
    machine.write(7, 1).unwrap();
    machine.flush();
    machine.discard_and_damage(7);
    let mut next = 100;
    while machine.core.head() + 4 < segments {
        machine.write(next, 2).unwrap();
        machine.work();
        next += 1;
    }
    machine.core.finish_segment();
    machine.flush();
    // The following changes are laid out anew, at a place reserved for that, and fill it.
    while machine.write(next, 3).is_ok() {
        next += 1;
    }
    machine.log.broken.store(true, Ordering::SeqCst);
    machine.core.flush();
    let command = machine.core.next_command().unwrap();
    let outcome = machine.perform(&command);
    machine.core.complete(command.id, &outcome);
    machine.log.broken.store(false, Ordering::SeqCst);
    machine.work();
    assert_eq!(machine.core.fullness(), (segments, segments), "there is no room");

    machine.window();
    assert_eq!(machine.core.stats().windows_failed, 1, "the discard cannot be repeated");
    machine.window();
    assert_eq!(machine.core.fullness().0, 1, "the tail has moved");
    assert_eq!(machine.read(7), 0);
    for block in 100..next {
        assert!([2, 3].contains(&machine.read(block)), "block {block}");
    }
}

#[test]
fn a_rescue_carries_a_discard_out_in_its_turn() {
    for (stranded, expected) in [(true, 2), (false, 3)] {
        let mut machine = Machine::new(0);
        machine.write(7, 1).unwrap();
        machine.write(8, 1).unwrap();
        machine.flush();
        machine.discard_and_damage(7);
        machine.discard_and_damage(8);
        machine.write(7, 2).unwrap();
        machine.flush();
        machine.write(7, 3).unwrap();
        let from = if stranded { 0 } else { machine.segments_at() };
        machine.wear_out(from);
        machine.rescue();
        assert_eq!(machine.core.is_through(), !stranded);
        let content = machine.backing.content();
        assert_eq!(content[7 * BLOCK], expected, "what was flushed, or is newer");
        assert_eq!(content[8 * BLOCK], 0, "discarded");
        assert!(machine.core.lost().is_empty());
    }
}

/// The chunk is unreadable as such, but the index knows its content.
#[test]
fn a_chunk_without_its_header_costs_no_more_than_what_is_damaged() {
    for (rescues, sector) in [(false, false), (false, true), (true, false), (true, true)] {
        let mut machine = Machine::new(0);
        machine.write(3, 1).unwrap();
        machine.flush();
        let chunk = machine.chunk_of(|core| {
            core.discard(3, 1).unwrap();
            (4..8).for_each(|block| write(core, block, 1).unwrap());
        });
        machine.write(5, 2).unwrap();
        machine.flush();
        let lost = if sector {
            // The first payload begins in the header's sector.
            machine.log.bad.store(chunk, Ordering::SeqCst);
            4
        } else {
            machine.damage_payload(6);
            machine.log.damage(chunk);
            6
        };
        if rescues {
            machine.write(9, 1).unwrap();
            machine.wear_out(machine.segments_at());
            machine.rescue();
            assert!(machine.core.is_through());
        } else {
            machine.write_back();
            assert!((0..20).any(|_| !machine.try_window()), "it ends");
            // The discard was recorded again.
            machine.write_back();
        }
        let content = machine.backing.content();
        for (block, byte) in [(3, 0), (4, 1), (5, 2), (6, 1), (7, 1)] {
            if block != lost {
                assert_eq!(content[block * BLOCK], byte, "block {block}, {rescues}, {sector}");
            }
        }
        assert_eq!(machine.core.lost(), [(lost as u64, 1)], "{rescues}, {sector}");
    }
}

#[test]
fn what_is_written_between_two_tries_counts_and_is_durable_first() {
    let mut machine = Machine::new(0);
    let chunk = machine.chunk_of(|core| (4..6).for_each(|block| write(core, block, 1).unwrap()));
    machine.log.damage(chunk);
    machine.write_back();
    assert_eq!(machine.core.fullness().0, 1, "the index knows what is in it");
    machine.write(4, 2).unwrap();
    machine.window();
    assert!(machine.core.lost().is_empty());
    machine.cut();
    assert_eq!((machine.read(4), machine.read(5)), (2, 1));
    assert_eq!(machine.backing.content()[5 * BLOCK], 1);
}

#[test]
fn what_memory_owes_is_lost_until_it_is_in_the_backing_store() {
    let mut machine = Machine::new(0);
    machine.write(7, 1).unwrap();
    machine.write_back();
    machine.write(7, 2).unwrap();
    machine.flush();
    machine.damage_payload(7);
    machine.write(7, 3).unwrap();
    machine.wear_out(machine.segments_at());
    machine.window();
    assert!(!machine.try_window() && !machine.core.is_spent());
    machine.work();
    assert!(machine.core.is_spent());
    let left = RamDrive::new(machine.log.size());
    left.write(0, &machine.log.content()).unwrap();
    let mut later = open(&left, 0, 2);
    assert_eq!(later.locate(7, &mut Vec::new()), Found::Lost, "not what was there before");

    assert_eq!(machine.read(7), 3);
    machine.rescue();
    assert!(machine.core.is_through() && machine.core.lost().is_empty());
    machine.cut();
    assert_eq!(machine.read(7), 3);
}

#[test]
fn what_was_laid_out_anew_three_times_is_found_after_a_cut() {
    const SIZE: u64 = 300 << 20;
    let mut machine = Machine::of(SIZE, 32 << 10, 1 << 20, 0);
    machine.write(0, 1).unwrap();
    machine.flush();
    let mut next = 1;
    while machine.write(next, 2).is_ok() {
        next += 1;
    }
    assert!(next > 8 << 10, "{next} blocks in memory");
    // Superblocks can be written, chunks cannot.
    machine.log.worn_from.store(data_at(SIZE, 1 << 20), Ordering::SeqCst);
    let ticket = machine.core.flush();
    let mut failures = 0;
    while let Some(command) = machine.core.next_command() {
        let outcome = machine.perform(&command);
        failures += u32::from(matches!(outcome, Outcome::Failed(_)));
        if failures == 3 {
            machine.log.worn_from.store(u64::MAX, Ordering::SeqCst);
        }
        machine.core.complete(command.id, &outcome);
    }
    assert_eq!((failures, machine.core.progress(ticket)), (3, Progress::Done));
    machine.cut();
    for block in [1, next / 2, next - 1] {
        assert_eq!(machine.read(block), 2, "block {block}");
    }
}

#[test]
fn what_was_dropped_does_not_come_back_as_something_older() {
    let mut machine = Machine::new(50);
    let options = Options { keep_percent: 50, checkpoint: 40 << 10, ..Options::default() };
    let kept = || Kept::new(&Memory::default()).unwrap();
    machine.core = log::open(&machine.log, options, 2, false, kept()).unwrap().0;
    machine.write(7, 1).unwrap();
    (100..112).for_each(|block| machine.write(block, 1).unwrap());
    machine.write_back();
    assert_eq!(machine.core.stats().checkpoints, 1, "the whole copy");
    machine.write(7, 2).unwrap();
    machine.write_back();
    assert_eq!(machine.core.stats().checkpoints, 1);
    // The newest record is damaged; a read finds the block in the backing store.
    let mut out = Vec::new();
    let Some(Found::Log(reading)) = machine.core.locate_copy(7, &mut out) else { panic!() };
    machine.log.damage(reading.at + 100);
    machine.core.drop_copy(&reading, 7);
    machine.core.release(&reading);
    (100..112).for_each(|block| machine.write(block, 3).unwrap());
    machine.write_back();
    let found = log::inspect_warm(&machine.log, false, &|_| ()).unwrap();
    assert!(found.warm);
    machine.core = found.open(&machine.log, options, 3, kept()).unwrap().0;
    if let Some(Found::Log(reading)) = machine.core.locate_copy(7, &mut out) {
        let bytes = machine.read_log(&reading);
        assert!(!reading.seed.fits(&bytes, reading.check), "{:?}", bytes[0]);
    }
}

#[test]
fn a_chunk_has_room_for_the_summary_of_a_large_segment() {
    let mut machine = Machine::of(200 << 20, 1 << 18, 16 << 20, 0);
    let payload = [3; 200];
    for block in 0..90_000 {
        let mut fills = Fills::default();
        let sum = (payload.len(), crc(&payload));
        machine.core.reserve(block, Kind::Lz4, sum, &mut fills).unwrap();
        fills.fill(&payload);
        fills.finish();
        if block % 1000 == 0 {
            machine.work();
        }
    }
    machine.flush();
    assert!(machine.core.head() > 1, "a second segment was opened");
}

#[test]
fn one_sector_that_cannot_be_read_does_not_keep_a_log_closed() {
    let opened = |machine: &Machine, accept_loss| {
        let (options, kept) = (Options::default(), Kept::new(&Memory::default()).unwrap());
        log::open(&machine.log, options, 9, accept_loss, kept)
    };
    let two_chunks = || {
        let mut machine = Machine::new(0);
        machine.write(3, 1).unwrap();
        machine.core.finish_segment();
        machine.flush();
        machine.write(4, 2).unwrap();
        machine.flush();
        machine
    };
    for superblock in SUPER_AT {
        let mut machine = two_chunks();
        machine.log.bad.store(superblock, Ordering::SeqCst);
        let (core, report) = opened(&machine, false).unwrap();
        assert!(report.mended && report.unread == 0);
        machine.core = core;
        assert_eq!((machine.read(3), machine.read(4)), (1, 2));
    }
    // The header of the first chunk: only an open that accepts the loss goes on with the second.
    let mut machine = two_chunks();
    machine.log.bad.store(machine.segments_at(), Ordering::SeqCst);
    assert!(matches!(opened(&machine, false), Err(OpenError::Unread(_))));
    let (core, report) = opened(&machine, true).unwrap();
    assert_eq!((report.missing.len(), report.unread > 0), (1, true));
    machine.core = core;
    assert_eq!((machine.read(3), machine.read(4)), (0, 2));
    // An empty segment: a log that was closed certainly ends before it.
    let mut machine = two_chunks();
    machine.core.close(ChangeCounter::default());
    machine.work();
    let free = machine.segments_at() + 4 * u64::from(SEGMENT);
    machine.log.bad.store(free, Ordering::SeqCst);
    let (core, report) = opened(&machine, false).unwrap();
    assert!(report.closed && report.unread == 0);
    machine.core = core;
    assert_eq!((machine.read(3), machine.read(4)), (1, 2));
}

#[test]
fn a_damaged_end_is_told_where_it_is_accepted() {
    let mut machine = Machine::new(0);
    machine.write(3, 1).unwrap();
    machine.flush();
    machine.core.close(ChangeCounter::default());
    machine.work();
    machine.log.damage(machine.segments_at() + 16);
    let look = |accept_loss| log::inspect(&machine.log, accept_loss, true);
    assert!(matches!(look(false), Err(OpenError::Lost { .. })));
    assert_eq!(look(true).unwrap().report.missing.len(), 1);
}

#[test]
fn what_is_discarded_while_a_loss_is_said_again_is_not_lost() {
    // With one more damaged block the check of a window pauses between finding a lost range and
    // recording it again.
    for damaged in 0..2 {
        let mut machine = Machine::of(16 << 20, 4 * BLOCKS, SEGMENT, 0);
        let spoil = |machine: &mut Machine, blocks: std::ops::Range<u64>| {
            // Neighbours would be one range.
            blocks.step_by(2).for_each(|block| machine.write(block, 7).unwrap());
            machine.core.finish_segment();
            machine.flush();
            let content = machine.log.content();
            for at in (machine.segments_at()..machine.log.size()).step_by(BLOCK / 2) {
                if content[at as usize..][..64] == [7; 64] {
                    machine.log.damage(at);
                }
            }
        };
        spoil(&mut machine, 0..1400);
        machine.window();
        assert_eq!(machine.core.lost().len(), 700);
        spoil(&mut machine, 2000..2000 + damaged);
        let plan = machine.core.begin_window(u64::MAX).unwrap();
        let mut writeback = Writeback::new(plan);
        let ended = loop {
            while let Some(command) = writeback.next_command() {
                let outcome = machine.perform(&command);
                writeback.complete(command.id, outcome);
            }
            match writeback.ended() {
                Some(ended) => break ended,
                None => writeback.proceed(),
            }
        };
        machine.core.end_window(ended);
        assert!(machine.core.is_stepping(), "the window is looked through in steps");
        assert_eq!(machine.core.discard(0, 1400), Ok(1400));
        machine.work();
        let lost: Vec<_> = (0..damaged).map(|i| (2000 + i, 1)).collect();
        assert_eq!(machine.core.lost(), lost);
    }
}

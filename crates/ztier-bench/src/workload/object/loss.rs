//! What the store lacks when a host dies in the middle of its writes, and its log with it: blocks
//! have the number of their batch, so the loss is counted from what a second host finds.
//!
//! Invariants: a batch is a run of blocks that are written at once, so their order is unknown; the
//! next batch begins when all of them were acknowledged. What is found must be the state behind a
//! batch, in part of it at most; anything else fails the section. With `--sync-remote`, each batch
//! is flushed, and none may be lacking.

use super::load::{BATCH, Pace, scattered};
use super::place::{Spot, Stores};
use super::{BLOCK, MIB, Plan, cell, figure, note, step};
use crate::data::{Kind, POOL_BYTES, Pool};
use crate::report::{Report, Table, Target as Goal, print};
use crate::rival::stored::{Host, Volume};
use crate::sys::interrupt;
use crate::workload::SEED;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use ztier::BLOCK_SIZE;
use ztier::error::{Error, Result};

const SECTION: &str = "loss";
/// Bytes a second of the load.
const RATE: f64 = 24.0 * MIB;
/// Bytes of the volume: all of it is read at the end.
const SPAN: u64 = 256 << 20;
/// `--max-unsent` counts bytes of the log: these take as many there as were written.
const DATA: Kind = Kind::Ratio(1.0);
const LOG: u64 = 512 << 20;
/// Blocks of a batch, which follow each other.
const RUN: u64 = BATCH as u64;
/// Bytes of a batch.
const RUN_BYTES: u64 = RUN * BLOCK;
/// Where a block has the number of its batch.
const STAMP: std::ops::Range<usize> = 8..16;
/// The bound of `--max-unsent`.
const BOUND_BYTES: u64 = 64 << 20;
const BOUND_S: u64 = 5;

/// What bounds the loss.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    /// `--max-unsent`, which holds while the store keeps up.
    Bound,
    /// The same, with writers that wait.
    Wait,
    /// A flush returns when the store has it.
    SyncRemote,
}

impl Mode {
    fn name(self) -> String {
        let bound = format!("{}M,{BOUND_S}s", BOUND_BYTES >> 20);
        match self {
            Self::Bound => bound,
            Self::Wait => format!("{bound},wait"),
            Self::SyncRemote => "--sync-remote".into(),
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::Bound => "bound",
            Self::Wait => "wait",
            Self::SyncRemote => "sync_remote",
        }
    }
}

/// A batch that was written.
#[derive(Clone, Copy, Debug, Default)]
struct Batch {
    /// Its run of blocks.
    run: u64,
    /// When all of it was acknowledged.
    acknowledged: Option<Instant>,
    /// It was flushed, too.
    flushed: bool,
}

/// What is lacking.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
struct Lost {
    /// Batches that were acknowledged, and the first of them.
    batches: u64,
    first: Option<usize>,
    /// Of those, flushed ones.
    flushed: u64,
}

/// The deaths of one mode at one store.
#[derive(Default)]
struct Runs {
    bytes: Vec<f64>,
    seconds: Vec<f64>,
    flushed: Vec<f64>,
}

/// Measures all stores.
pub fn run(report: &mut Report, plan: &Plan, stores: &Stores) -> Result<()> {
    let mut pool = Pool::build(DATA, POOL_BYTES, SEED)?;
    let about = format!(
        "{:.0} MiB/s of 4 KiB, {} KiB at once in scattered order over {} MiB, until SIGKILL; \
         another host takes over without the log; {} deaths each, the worst counts",
        RATE / MIB,
        RUN_BYTES >> 10,
        SPAN >> 20,
        plan.deaths
    );
    note(report, SECTION, "load", about);
    note(report, SECTION, "data", format!("{pool}; max-unsent counts bytes of the log"));
    let modes: &[Mode] = match plan.quick {
        true => &[Mode::Bound, Mode::SyncRemote],
        false => &[Mode::Bound, Mode::Wait, Mode::SyncRemote],
    };
    let table = Table::new(&[
        ("store", 9),
        ("max-unsent", 13),
        ("lost MiB", 8),
        ("÷ bound", 7),
        ("lost s", 6),
        ("÷ bound", 7),
        ("flushed lost", 12),
    ]);
    print(&table.head());
    for spot in stores.buckets() {
        for mode in modes {
            step(&format!("loss, {}, {}", spot.name(), mode.name()))?;
            let mut runs = Runs::default();
            for death in 0..plan.deaths {
                one(stores, spot, *mode, &mut pool, death, &mut runs)?;
            }
            let line = state(report, spot, *mode, &runs);
            print(&table.line(&line));
        }
    }
    print("What was found was the state behind a batch each time.");
    Ok(())
}

fn one(
    stores: &Stores,
    spot: Spot,
    mode: Mode,
    pool: &mut Pool,
    death: u32,
    runs: &mut Runs,
) -> Result<()> {
    let log = stores.file("log", LOG)?;
    let (here, there) = (stores.host()?, stores.host()?);
    let (place, log, size) = (stores.place(spot), log.text(), SPAN.to_string());
    let bound = Mode::name(if mode == Mode::Wait { mode } else { Mode::Bound });
    let mut args = vec!["--backing", &place, "--log", &log, "--size", &size];
    args.extend(["--max-unsent", &bound]);
    args.extend((mode == Mode::SyncRemote).then_some("--sync-remote"));
    stores.enter(Spot::Bucket(0));
    let volume = here.up(&args)?;
    stores.enter(spot);
    // Beyond the bound, and not always as far.
    let time = Duration::from_millis(1000 * BOUND_S + 2500 + 700 * u64::from(death % 4));
    let (batches, killed) = write(&volume, mode, pool, time, death)?;
    volume.wait_for_death()?;
    let found = found_by(&there, stores, &place, pool)?;
    let lost = judge(&batches, &found)?;
    let age = lost.first.and_then(|first| batches[first].acknowledged);
    runs.bytes.push((lost.batches * RUN_BYTES) as f64);
    runs.seconds.push(age.map_or(0.0, |at| killed.saturating_duration_since(at).as_secs_f64()));
    runs.flushed.push(lost.flushed as f64);
    Ok(())
}

/// Writes batches until the daemon is killed, after `time`; returns them, and when that was. The
/// first is none: numbers begin with 1.
fn write(
    volume: &Volume<'_>,
    mode: Mode,
    pool: &mut Pool,
    time: Duration,
    death: u32,
) -> Result<(Vec<Batch>, Instant)> {
    let mut client = volume.connect()?;
    volume.pid()?;
    let mut pace = Pace::new(RATE);
    let mut batches = vec![Batch::default()];
    let dies = AtomicBool::new(false);
    std::thread::scope(|scope| -> Result<_> {
        let killer = scope.spawn(|| -> Result<Instant> {
            let slept = interrupt::sleep(time);
            dies.store(true, Ordering::Release);
            volume.kill()?;
            slept.map(|()| Instant::now())
        });
        loop {
            let number = batches.len() as u64;
            // None is written again before all were: what is overwritten would be lost twice.
            let run = scattered(number + u64::from(death) * 101, SPAN / RUN_BYTES);
            batches.push(Batch { run, ..Batch::default() });
            let blocks: Vec<u64> = (run * RUN..(run + 1) * RUN).collect();
            let written = client.write_blocks(&blocks, |n, data| {
                data.copy_from_slice(pool.record(blocks[n] * BLOCK, 0, BLOCK_SIZE));
                data[STAMP].copy_from_slice(&number.to_le_bytes());
            });
            let mut ended = written.err();
            if let (None, Some(batch)) = (&ended, batches.last_mut()) {
                batch.acknowledged = Some(Instant::now());
                if mode == Mode::SyncRemote {
                    ended = client.flush().err();
                    batch.flushed = ended.is_none();
                }
            }
            match ended {
                None => pace.keep(RUN_BYTES)?,
                Some(_) if dies.load(Ordering::Acquire) => break,
                Some(e) => return Err(e),
            }
        }
        let killed = killer.join().map_err(|_| Error::failure("the killer panicked"))??;
        Ok((batches, killed))
    })
}

/// The batch of each block, by the run, as a host finds it that takes over without the log; 0 where
/// the volume was never written.
fn found_by(
    host: &Host,
    stores: &Stores,
    place: &str,
    pool: &mut Pool,
) -> Result<Vec<[u64; BATCH]>> {
    let volume = host.up(&["--backing", place, "--log", "none", "--force"])?;
    // Only what is found counts from here on.
    stores.enter(Spot::Bucket(0));
    let mut client = volume.connect()?;
    let (mut found, mut data) = (Vec::new(), vec![0; RUN_BYTES as usize]);
    for run in 0..SPAN / RUN_BYTES {
        interrupt::check()?;
        client.read(run * RUN_BYTES, &mut data)?;
        let mut numbers = [0; BATCH];
        for (n, block) in data.chunks_exact(BLOCK_SIZE).enumerate() {
            let offset = run * RUN_BYTES + n as u64 * BLOCK;
            numbers[n] = number_of(block, offset, pool)?;
        }
        found.push(numbers);
    }
    Ok(found)
}

/// The number of a block's batch, once the rest of it is as it was written.
fn number_of(block: &[u8], offset: u64, pool: &mut Pool) -> Result<u64> {
    if block.iter().all(|byte| *byte == 0) {
        return Ok(0);
    }
    let expected = pool.record(offset, 0, BLOCK_SIZE);
    let stamp: [u8; 8] = block[STAMP].try_into().unwrap_or_default();
    if block[..STAMP.start] != expected[..STAMP.start]
        || block[STAMP.end..] != expected[STAMP.end..]
    {
        let text = format!("the block at {offset} is none that was written there");
        return Err(Error::failure(text));
    }
    Ok(u64::from_le_bytes(stamp))
}

/// What is lacking of the batches, if what was found is the state behind one of them.
fn judge(batches: &[Batch], found: &[[u64; BATCH]]) -> Result<Lost> {
    let newest = found.iter().flatten().copied().max().unwrap_or(0) as usize;
    let wrong = |run: usize, number: u64| {
        let text =
            format!("run {run} is of batch {number}, which is no state behind batch {newest}");
        Err(Error::failure(text))
    };
    if newest >= batches.len() {
        return wrong(batches[0].run as usize, newest as u64);
    }
    // The last batch before the newest of each run.
    let mut before = vec![0; found.len()];
    for (number, batch) in batches.iter().enumerate().take(newest).skip(1) {
        before[batch.run as usize] = number as u64;
    }
    let mut in_part = false;
    for (run, numbers) in found.iter().enumerate() {
        let is_newest = newest > 0 && batches[newest].run as usize == run;
        for number in numbers {
            match *number {
                n if is_newest && n == newest as u64 => {}
                n if n == before[run] => in_part |= is_newest,
                n => return wrong(run, n),
            }
        }
    }
    let from = if in_part { newest } else { newest + 1 };
    let lost = (from..batches.len()).filter(|n| batches[*n].acknowledged.is_some());
    let first = lost.clone().next();
    let flushed = lost.clone().filter(|n| batches[*n].flushed).count() as u64;
    Ok(Lost { batches: lost.count() as u64, first, flushed })
}

/// Adds the figures; returns the line of the table.
fn state(report: &mut Report, spot: Spot, mode: Mode, runs: &Runs) -> [String; 7] {
    let most = |all: &[f64]| all.iter().copied().fold(0.0, f64::max);
    let mib: Vec<f64> = runs.bytes.iter().map(|bytes| bytes / MIB).collect();
    for (what, unit, runs) in [
        ("acknowledged writes lost", "MiB", &mib),
        ("age of the oldest", "s", &runs.seconds),
        ("flushed batches lost", "", &runs.flushed),
    ] {
        let case = format!("{what}, {}", mode.name());
        figure(report, SECTION, &spot.name(), &case, unit, runs);
    }
    let (bytes, seconds) = (most(&runs.bytes), most(&runs.seconds));
    let of_bytes = bytes / BOUND_BYTES as f64;
    let of_seconds = seconds / BOUND_S as f64;
    let mut cells = [spot.name(), mode.name(), cell(bytes / MIB, 1), String::new()]
        .into_iter()
        .chain([cell(seconds, 1), String::new(), cell(most(&runs.flushed), 0)])
        .collect::<Vec<_>>();
    let name = |what: &str| format!("{}_{what}_{}", mode.word(), spot.word());
    if mode == Mode::SyncRemote {
        report.ratio(&name("flushed_lost"), most(&runs.flushed), Goal::AtMost(0.0));
    } else {
        report.ratio(&name("lost_bytes_vs_max_unsent"), of_bytes, Goal::AtMost(1.0));
        report.ratio(&name("lost_s_vs_max_unsent"), of_seconds, Goal::AtMost(1.0));
        (cells[3], cells[5]) = (cell(of_bytes, 2), cell(of_seconds, 2));
        cells[6] = "–".into();
    }
    std::array::from_fn(|n| cells[n].clone())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Batches 1, 2, … of these runs, acknowledged but for the last.
    fn written(runs: &[u64]) -> Vec<Batch> {
        let mut all = vec![Batch::default()];
        all.extend(runs.iter().map(|run| Batch {
            run: *run,
            acknowledged: Some(Instant::now()),
            flushed: true,
        }));
        let last = all.last_mut().unwrap();
        (last.acknowledged, last.flushed) = (None, false);
        all
    }

    #[test]
    fn what_is_behind_the_newest_found_is_lost() {
        let batches = written(&[0, 1, 0, 2, 1]);
        let lost = judge(&batches, &[[3; BATCH], [2; BATCH], [0; BATCH]]).unwrap();
        assert_eq!(lost, Lost { batches: 1, first: Some(4), flushed: 1 });
        let lost = judge(&batches, &[[0; BATCH]; 3]).unwrap();
        assert_eq!(lost, Lost { batches: 4, first: Some(1), flushed: 4 });
        // The last was not acknowledged, and may be there.
        let lost = judge(&batches, &[[3; BATCH], [5; BATCH], [4; BATCH]]).unwrap();
        assert_eq!(lost, Lost::default());
    }

    #[test]
    fn a_batch_may_be_there_in_part_and_is_lost_then() {
        let batches = written(&[0, 1, 0, 2, 1]);
        let mut part = [1; BATCH];
        part[7] = 3;
        let lost = judge(&batches, &[part, [2; BATCH], [0; BATCH]]).unwrap();
        assert_eq!(lost, Lost { batches: 2, first: Some(3), flushed: 2 });
    }

    #[test]
    fn a_mixture_of_states_is_found() {
        let batches = written(&[0, 1, 0, 2, 1]);
        for found in [
            // Batch 2 is lacking behind batch 3.
            [[3; BATCH], [0; BATCH], [0; BATCH]],
            // Batch 1 stands where batch 3 should.
            [[1; BATCH], [2; BATCH], [4; BATCH]],
            // There was no such batch.
            [[9; BATCH], [2; BATCH], [0; BATCH]],
        ] {
            assert!(judge(&batches, &found).is_err(), "{found:?}");
        }
        let mut part = [2; BATCH];
        part[0] = 0;
        assert!(judge(&batches, &[[3; BATCH], part, [0; BATCH]]).is_err());
    }
}

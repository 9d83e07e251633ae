//! Every short sequence of operations, cut at every step, with every subset of unflushed writes.
//!
//! Two blocks and nine operations, on a new log and on one that has just wrapped around.
//! Operations before the last run to their end; the last is cut after each of its events. Of the
//! writes that a cut may keep, every subset is tried if there are at most [`SUBSETS_OF`] of them.
//! Of more writes, every subset of the last ones is tried, with the others kept and dropped.

use crate::content::Flavour;
use crate::cut::{Tearing, keep};
use crate::drive::{Power, SimDrive};
use crate::oracle;
use crate::program::{Order, Program, Setup, Slow, Step};
use crate::rng::Rng;
use crate::trouble::{Kind, Trouble};
use crate::volume::{Opening, Volume};
use crate::world::{Stats, World};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use ztier::codec::Algorithm;
use ztier::log::disk::format::data_at;

/// Limit on the writes of which every subset is tried.
const SUBSETS_OF: usize = 6;
/// Operations to choose from.
pub const OPERATIONS: u8 = 9;
/// Keeps a copy of a block in the log; a sequence without it keeps no copies.
const COPY: u8 = 8;
/// Limit on the events of one operation.
const EVENTS_MAX: u32 = 200;

/// A sequence and its environment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sequence {
    /// Numbers below [`OPERATIONS`].
    pub operations: Vec<u8>,
    /// Whether the log has wrapped around.
    pub wrapped: bool,
    /// Whether commands end in reverse order.
    pub reverse: bool,
}

impl fmt::Display for Sequence {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for operation in &self.operations {
            write!(f, "{operation}")?;
        }
        f.write_str(if self.wrapped { "w" } else { "f" })?;
        f.write_str(if self.reverse { "r" } else { "l" })
    }
}

impl FromStr for Sequence {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("{text:?} is no sequence: digits 0 to 8, f or w, l or r");
        let (text, order) = text.split_at_checked(text.len().wrapping_sub(1)).ok_or_else(wrong)?;
        let (text, log) = text.split_at_checked(text.len().wrapping_sub(1)).ok_or_else(wrong)?;
        let digit =
            |c: char| c.to_digit(10).map(|d| d as u8).filter(|d| *d < OPERATIONS).ok_or_else(wrong);
        if !["f", "w"].contains(&log) || !["l", "r"].contains(&order) {
            return Err(wrong());
        }
        let operations = text.chars().map(digit).collect::<Result<_, _>>()?;
        Ok(Self { operations, wrapped: log == "w", reverse: order == "r" })
    }
}

/// Every sequence of 1 to `length` operations, on every kind of log.
pub fn all(length: u32) -> impl Iterator<Item = Sequence> {
    let counts = (1..=length).map(|length| (length, u64::from(OPERATIONS).pow(length)));
    counts.flat_map(|(length, count)| (0..count * 4).map(move |number| sequence(length, number)))
}

fn sequence(length: u32, number: u64) -> Sequence {
    let mut rest = number / 4;
    let mut digit = || {
        let digit = rest % u64::from(OPERATIONS);
        rest /= u64::from(OPERATIONS);
        digit as u8
    };
    let operations = (0..length).map(|_| digit()).collect();
    Sequence { operations, wrapped: number & 1 == 1, reverse: number & 2 == 2 }
}

fn setup(sequence: &Sequence) -> Setup {
    let tearing = Tearing::choose(&mut Rng::new(1));
    Setup {
        seed: 1,
        log: data_at(0, 32 << 10) + 8 * (32 << 10),
        segment: 32 << 10,
        blocks: 4,
        window: 1 << 20,
        memory: 64 << 10,
        idle_ms: 100,
        checkpoint: 1,
        algorithm: Algorithm::Lz4,
        patience: u32::MAX,
        preload: 500,
        order: if sequence.reverse { Order::Last } else { Order::First },
        slow: Slow::Nothing,
        depth: 16,
        writers: 1,
        filled: 0,
        keep: if sequence.operations.contains(&COPY) { 50 } else { 0 },
        log_tearing: tearing,
        backing_tearing: tearing,
    }
}

/// Runs a sequence and cuts it in every way.
///
/// # Errors
/// The first trouble.
pub fn check(sequence: &Sequence, trace: bool) -> Result<Stats, Trouble> {
    let program = Program { setup: setup(sequence), faults: Vec::new(), steps: Vec::new() };
    let mut world = World::new(&program, trace)?;
    if sequence.wrapped {
        // Each write takes a segment; then the next chunk overwrites an old one.
        for i in 0..8 {
            world.step(&Step::Write(i % 2, Flavour::Stamp(9)))?;
            world.step(&Step::Drain)?;
        }
    }
    let Some((last, before)) = sequence.operations.split_last() else {
        return Ok(world.stats());
    };
    let mut cuts = Stats::default();
    for operation in before {
        perform(&mut world, *operation, &mut |_| Ok(()))?;
    }
    perform(&mut world, *last, &mut |world| cut_everywhere(world, &mut cuts))?;
    cuts.add(&world.stats());
    Ok(cuts)
}

/// Runs after each event.
type Watch<'a> = &'a mut dyn FnMut(&mut World<'_>) -> Result<(), Trouble>;

/// Runs an operation, event by event.
fn perform(world: &mut World<'_>, operation: u8, after: Watch<'_>) -> Result<(), Trouble> {
    let first = match operation {
        0 | 7 => Step::Write(0, Flavour::Stamp(9)),
        1 => Step::Write(1, Flavour::Stamp(255)),
        2 => Step::Discard(0, 1),
        3 => Step::Discard(0, 2),
        4 => Step::Flush,
        5 => Step::Tick(1000),
        COPY => Step::Copy(0),
        _ => {
            world.volume.core.finish_segment();
            Step::Flush
        }
    };
    world.step(&first)?;
    after(world)?;
    match operation {
        0 | 1 => {
            world.step(&Step::Fill(0))?;
            after(world)?;
        }
        4..=6 => run_out(world, after)?,
        COPY => {
            world.step(&Step::Store(0))?;
            after(world)?;
        }
        // A write is filled when nothing else can go on without it.
        _ => {}
    }
    if operation == 6 {
        world.begin_window(u64::MAX);
        run_out(world, after)?;
    }
    Ok(())
}

/// Lets the media work until they have nothing to do.
fn run_out(world: &mut World<'_>, after: Watch<'_>) -> Result<(), Trouble> {
    for _ in 0..EVENTS_MAX {
        world.take(usize::MAX);
        let next = match (world.flying.is_empty(), world.writers.is_empty()) {
            (false, _) => Step::Media(0, 0),
            (true, false) => Step::Fill(0),
            (true, true) => return Ok(()),
        };
        after(world)?;
        world.step(&next)?;
    }
    Err(Trouble::new(Kind::Hang, "an operation never ends"))
}

/// Cuts copies of the drives in every way, and checks what recovery finds.
fn cut_everywhere(world: &mut World<'_>, stats: &mut Stats) -> Result<(), Trouble> {
    let (log, backing) = (world.log.exposed(), world.backing.exposed());
    let writes: Vec<_> = (log.writes.iter().map(|w| (true, w)))
        .chain(backing.writes.iter().map(|w| (false, w)))
        .collect();
    let free = writes.len().min(SUBSETS_OF);
    let older = writes.len() - free;
    let others: &[bool] = if older > 0 { &[false, true] } else { &[false] };
    let openings: &[Opening] =
        if world.setup.keep > 0 { &[Opening::Cold, Opening::Warm] } else { &[Opening::Cold] };
    let ways = (0..1u32 << free).flat_map(|mask| others.iter().map(move |older| (mask, *older)));
    for ((mask, keep_older), opening) in
        ways.flat_map(|way| openings.iter().map(move |opening| (way, *opening)))
    {
        let (mut log, mut backing) = (log.durable.clone(), backing.durable.clone());
        for (i, (on_log, write)) in writes.iter().enumerate() {
            let kept = match i.checked_sub(older) {
                None => keep_older,
                Some(bit) => mask >> bit & 1 == 1,
            };
            if kept {
                keep(if *on_log { &mut log } else { &mut backing }, write);
            }
        }
        let power = Arc::new(Power::default());
        let log = SimDrive::holding("log", log, power.clone());
        let backing = SimDrive::holding("backing", backing, power);
        let opening = (opening, None);
        stats.cuts += 1;
        let which = |why: String| format!("of {} writes, {mask:#b}: {why}", writes.len());
        let mut volume = Volume::open(world.setup, &log, u64::from(mask) + 77, opening)
            .map_err(|why| Trouble::new(Kind::Refused, which(why.to_string())))?;
        let seen = volume.look(world.setup.blocks, &log, &backing);
        oracle::prefix(&world.history, &seen)
            .map_err(|why| Trouble::new(Kind::Prefix, which(why)))?;
        stats.recoveries += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_sequences_are_there_once() {
        let mut names: Vec<String> = all(3).map(|sequence| sequence.to_string()).collect();
        assert_eq!(names.len(), 4 * (9 + 81 + 729));
        names.sort();
        names.dedup();
        assert_eq!(names.len(), 4 * (9 + 81 + 729));
        for name in names {
            assert_eq!(name.parse::<Sequence>().map(|s| s.to_string()), Ok(name));
        }
        for wrong in ["", "f", "fl0", "9fl", "0xl", "0fx"] {
            wrong.parse::<Sequence>().unwrap_err();
        }
    }
}

//! A volume on simulated drives, the actors around it, and the state of each.
//!
//! This module has the state of a run and its steps. The actors are in `actors.rs`, power cuts in
//! `outage.rs`. Nothing here is random: every choice is in the program, or follows from its seed.

use crate::content::Value;
use crate::drive::{Power, SimDrive};
use crate::fault::{Fault, Kind as FaultKind};
use crate::history::History;
use crate::image::{Image, PAGE, Page};
use crate::program::{Program, Setup, Side, Step};
use crate::rng::Rng;
use crate::trouble::{Kind, Trouble, caught};
use crate::volume::{Source, Volume, new_memory};
use crate::writers::Writer;
use std::cell::Cell;
use std::sync::Arc;
use ztier::log::{Reading, Ticket, Token};
use ztier::media::Memory;

/// Counters of a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Power cuts, nested ones included.
    pub cuts: u64,
    /// Deaths of the process, nested ones included.
    pub kills: u64,
    /// Changes taken over from a dead process.
    pub recommitted: u64,
    /// Recoveries that have ended.
    pub recoveries: u64,
    /// Steps.
    pub steps: u64,
    /// Block writes that the log took.
    pub writes: u64,
    /// Changes whose writer waited until they were durable, on volumes with `--sync`.
    pub synced: u64,
    /// Commands that the drives have carried out.
    pub commands: u64,
    /// Reads that were compared.
    pub reads: u64,
    /// Blocks reported lost.
    pub lost: u64,
    /// Recoveries, drains and reads that ended in an error which the faults explain.
    pub errors: u64,
    /// Runs that ended because a refused open detected a lie.
    pub detected: u64,
    /// Operations of the log and of the backing store, to sweep over.
    pub operations: [u64; 2],
}

impl Stats {
    /// Adds the counters of another run.
    pub const fn add(&mut self, other: &Self) {
        self.cuts += other.cuts;
        self.kills += other.kills;
        self.recommitted += other.recommitted;
        self.recoveries += other.recoveries;
        self.steps += other.steps;
        self.writes += other.writes;
        self.synced += other.synced;
        self.commands += other.commands;
        self.reads += other.reads;
        self.lost += other.lost;
        self.errors += other.errors;
        self.detected += other.detected;
    }
}

/// A command in flight on a drive.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Flying {
    pub source: Source,
    /// Its number at its source.
    pub id: u64,
    pub side: Side,
    /// Its number at its drive.
    pub ticket: u64,
    pub is_read: bool,
    /// Whether other commands overtake it.
    pub is_slow: bool,
}

/// A read in flight.
#[derive(Clone, Debug)]
pub(crate) struct Reader {
    pub block: u32,
    /// Where the payload is on the log; `None`: on the backing store.
    pub reading: Option<Reading>,
    /// Whether the backing store has the block, too.
    pub copy: bool,
    /// Position of the write that the read has located.
    pub written: u64,
    /// Values that the read may return.
    pub allowed: Vec<Value>,
}

/// The state of a run.
pub struct World<'p> {
    pub(crate) setup: &'p Setup,
    pub(crate) power: Arc<Power>,
    pub(crate) log: SimDrive,
    pub(crate) backing: SimDrive,
    /// State that outlives the process, but no power cut. Above the volume, so that it ends first:
    /// then nothing refers to the volume's files any more, and the next run uses them.
    pub(crate) memory: Memory,
    pub(crate) volume: Volume,
    pub(crate) history: History,
    /// Writers between reserving and filling.
    pub(crate) writers: Vec<Writer>,
    pub(crate) readers: Vec<Reader>,
    /// Blocks that the admission thread has read and not stored: block, token, content.
    pub(crate) copies: Vec<(u32, Token, Box<Page>)>,
    /// Whether another program has written to the backing store since the log was opened.
    pub(crate) is_bare: bool,
    /// Flushes that wait, with the position that each covers.
    pub(crate) flushes: Vec<(Ticket, u64)>,
    pub(crate) flying: Vec<Flying>,
    pub(crate) next_ticket: u64,
    pub(crate) now_ms: u64,
    /// Choices of steps that take several: those that wait.
    pub(crate) choices: Rng,
    pub(crate) page: Box<Page>,
    /// When a commit that has failed is tried again.
    pub(crate) commit_at_ms: u64,
    /// The past of an atomic backing store: every state of it is one of the volume's.
    pub(crate) past: Option<History>,
    /// Operations that faults had changed before the last recovery.
    pub(crate) forgiven: u64,
    /// Whether a drive lies in this run: data may then be lost, if the loss is reported.
    pub(crate) lies: bool,
    /// Position of the last write before the last lie: later writes cannot be lost.
    pub(crate) lied_at: u64,
    /// Windows begun since the log failed.
    pub(crate) rescues: u32,
    /// The faults of each drive.
    pub(crate) faults: &'p [(Side, Fault)],
    /// The log stays full, explained by a lie and an error together: writers do not wait any more.
    pub(crate) is_stuck: bool,
    /// Blocks that the volume has durably, at least.
    pub(crate) durable_blocks: u64,
    /// Whether the last flush that the flusher waited for succeeded.
    pub(crate) is_secured: bool,
    pub(crate) stats: Stats,
    /// Operations of each drive before the first step.
    before: [u64; 2],
    pub(crate) trace: bool,
}

/// Runs a program.
///
/// # Errors
/// The first trouble, with the step that found it.
pub fn run(program: &Program, trace: bool) -> Result<Stats, Trouble> {
    let at = Cell::new(0);
    let result = caught(|| {
        let mut world = World::new(program, trace)?;
        for (i, step) in program.steps.iter().enumerate() {
            at.set(i);
            match world.step(step) {
                Err(found) if found.kind == Kind::Detected => {
                    world.stats.detected += 1;
                    world.salvage()?;
                    break;
                }
                other => other?,
            }
        }
        Ok(world.stats())
    });
    result.map_err(|trouble| Trouble { step: at.get(), ..trouble })
}

/// The initial content of the backing store's blocks.
fn preloaded(setup: &Setup) -> Vec<Value> {
    let mut rng = Rng::new(setup.seed ^ 1);
    let value = |_| match rng.chance(setup.preload) {
        true => Value::Stamp { version: 0, noise: rng.below(256) as u8 },
        false => Value::Zero,
    };
    (0..setup.blocks).map(value).collect()
}

/// An image of a whole volume.
fn image_of(state: &[Value]) -> Image {
    let mut image = Image::new((state.len() * PAGE) as u64);
    for (block, value) in state.iter().enumerate().filter(|(_, v)| **v != Value::Zero) {
        value.fill(block as u32, image.page_mut(block));
    }
    image
}

impl<'p> World<'p> {
    /// Makes the drives, formats the log and opens it.
    ///
    /// # Errors
    /// If that fails, although no drive does.
    pub fn new(program: &'p Program, trace: bool) -> Result<Self, Trouble> {
        let setup = &program.setup;
        if trace {
            eprintln!("{setup:?}\nfaults: {:?}", program.faults);
        }
        let power = Arc::new(Power::default());
        let state = preloaded(setup);
        let log = SimDrive::new("log", setup.log, power.clone());
        let mut backing = SimDrive::holding("backing", image_of(&state), power.clone());
        if setup.is_atomic() {
            backing = backing.atomic(None);
        }
        let memory = new_memory();
        let volume = Volume::create(setup, &log, &memory)
            .map_err(|e| Trouble::new(Kind::Refused, format!("the first time: {e}")))?;
        let before = [log.counts().0, backing.counts().0];
        for (side, Fault { nth, kind }) in &program.faults {
            match side {
                Side::Log => log.plan(Fault { nth: nth + before[0], kind: *kind }),
                Side::Backing => backing.plan(Fault { nth: nth + before[1], kind: *kind }),
            }
        }
        Ok(Self {
            setup,
            power,
            log,
            backing,
            volume,
            memory,
            past: setup.is_atomic().then(|| History::new(state.clone(), 0)),
            commit_at_ms: 0,
            history: History::new(state, 0),
            writers: Vec::new(),
            readers: Vec::new(),
            copies: Vec::new(),
            is_bare: false,
            flushes: Vec::new(),
            flying: Vec::new(),
            next_ticket: 0,
            now_ms: 0,
            choices: Rng::new(setup.seed ^ 2),
            page: Box::new([0; PAGE]),
            forgiven: 0,
            lies: program.faults.iter().any(|(_, fault)| fault.kind.is_lie()),
            lied_at: 0,
            rescues: 0,
            faults: &program.faults,
            is_stuck: false,
            durable_blocks: u64::from(setup.blocks),
            is_secured: false,
            stats: Stats::default(),
            before,
            trace,
        })
    }

    /// The counters so far.
    pub fn stats(&self) -> Stats {
        let [log, backing] = self.before;
        let operations = [self.log.counts().0 - log, self.backing.counts().0 - backing];
        Stats { operations, ..self.stats }
    }

    /// The drive of a side.
    pub(crate) const fn drive(&self, side: Side) -> &SimDrive {
        match side {
            Side::Log => &self.log,
            Side::Backing => &self.backing,
        }
    }

    /// Operations that faults have changed so far.
    pub(crate) fn fired(&self) -> u64 {
        self.log.counts().1 + self.backing.counts().1
    }

    /// Whether a fault since the last recovery explains a failure.
    pub(crate) fn is_troubled(&self) -> bool {
        self.lies || self.fired() > self.forgiven
    }

    /// Whether a drive that keeps failing explains that something never ends. A fault that passes
    /// does not explain it: all waits have to end after such a fault.
    pub(crate) fn is_broken(&self) -> bool {
        let stays = |(_, fault): &(Side, Fault)| !fault.kind.passes();
        self.lies || self.is_troubled() && self.faults.iter().any(stays)
    }

    /// Notes whether a fault has struck since the count of faults was `before`.
    pub(crate) fn note_faults(&mut self, before: u64) {
        if self.fired() > before {
            self.lied_at = self.history.submitted();
            self.say(|| "a fault has struck".into());
        }
    }

    /// Prints what happens, if the run is traced.
    pub(crate) fn say(&self, text: impl FnOnce() -> String) {
        if self.trace {
            eprintln!("  {}", text());
        }
    }

    /// With `--sync`, the writer of a change requests a flush and waits for it, concurrently with
    /// the setup's other writers. From then on the oracle requires what that flush covers.
    pub(crate) fn sync_change(&mut self) -> Result<(), Trouble> {
        let Some(writers) = self.setup.synced_writers() else { return Ok(()) };
        self.flush();
        let ended = self.wait("a synced write", |world| world.flushes.len() < writers)?;
        self.stats.synced += u64::from(ended);
        Ok(())
    }

    /// Both drives work again.
    fn repair(&self) {
        self.log.repair();
        self.backing.repair();
    }

    /// Takes one step of the program.
    ///
    /// # Errors
    /// The trouble that the step found.
    pub fn step(&mut self, step: &Step) -> Result<(), Trouble> {
        if self.trace {
            eprintln!("{step:?}");
        }
        self.stats.steps += 1;
        match step {
            Step::Write(block, flavour) => self.write(*block, *flavour),
            Step::Cluster(block, flavour) => self.write_cluster(*block, *flavour),
            Step::Fill(choice) => {
                self.fill(*choice);
                Ok(())
            }
            Step::Discard(block, count) => self.discard(*block, *count),
            Step::Flush => {
                self.flush();
                Ok(())
            }
            Step::Sync => self.sync(),
            Step::Media(take, choice) => {
                self.take(usize::from(*take));
                self.finish(*choice)
            }
            Step::Take(count) => {
                self.take(usize::from(*count));
                Ok(())
            }
            Step::Window(bytes) => {
                self.begin_window(u64::from(*bytes));
                Ok(())
            }
            Step::Read(block) => self.begin_read(*block),
            Step::Finish(choice) => self.end_read(*choice),
            Step::Tick(ms) => {
                self.tick(u64::from(*ms));
                self.grow();
                Ok(())
            }
            Step::Copy(_) | Step::Store(_) | Step::Leave => {
                self.keep(step);
                Ok(())
            }
            Step::Bare(block, flavour, choice) => self.bare(*block, *flavour, *choice),
            Step::Drain => self.drain(),
            Step::Settle => self.settle(),
            Step::Forgetting => self.work_until_stepping(),
            Step::Close => self.close(),
            Step::Cut(cut) => self.cut(cut),
            Step::Kill(kill) => self.kill(kill),
            Step::Miscompress(block) => self.miscompress(*block),
            Step::Flip(..) | Step::Behead(_) | Step::Curtail(_) => {
                self.damage(step);
                Ok(())
            }
            Step::Wear => {
                self.log.plan(Fault { nth: 0, kind: FaultKind::Worn });
                Ok(())
            }
            Step::Repair => {
                self.repair();
                Ok(())
            }
        }?;
        match self.log.complaint().or_else(|| self.backing.complaint()) {
            None => Ok(()),
            Some(why) => Err(Trouble::new(Kind::Misuse, why)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::program;

    #[test]
    fn the_same_seed_is_the_same_run() {
        for seed in 0..10 {
            let program = program::cuts(seed, 5);
            let first = run(&program, false).unwrap();
            assert_eq!(run(&program, false).unwrap(), first);
            assert!(first.cuts >= 5 && first.recoveries >= 5, "{first:?}");
        }
    }

    /// After each write of a volume with `--sync` the oracle requires that write, without a flush.
    #[test]
    fn synced_writes_are_acknowledged_when_they_are_durable() {
        let mut program = program::workload(0);
        let mut some = 0;
        for (seed, writers) in [(42, Some(1)), (45, Some(4)), (6, None)] {
            program.setup.seed = seed;
            assert_eq!(program.setup.synced_writers(), writers);
            let mut world = World::new(&program, false).unwrap();
            for block in 0..8 {
                let flavour = crate::content::Flavour::Stamp(9);
                world.step(&Step::Write(block, flavour)).unwrap();
                let behind = world.history.submitted() - world.history.floor();
                assert!(behind < writers.unwrap_or(9) as u64, "{writers:?}: {behind}");
            }
            some += world.stats().synced;
            let cut = program::Cut { seed: 1, nested: vec![], again: false };
            world.step(&Step::Cut(cut)).unwrap();
        }
        assert_eq!(some, 16);
    }

    /// A world that forgets a flush is in trouble, because the history judges.
    #[test]
    fn a_volume_that_lost_what_was_flushed_is_trouble() {
        let program = program::workload(0);
        let mut world = World::new(&program, false).unwrap();
        let value = world.history.draw(3, crate::content::Flavour::Word);
        world.history.write(3, value);
        world.history.acknowledge(1);
        let cut = program::Cut { seed: 1, nested: vec![], again: false };
        let found = world.step(&Step::Cut(cut)).unwrap_err();
        assert_eq!(found.kind, Kind::Prefix, "{found}");
    }

    #[test]
    fn reads_see_what_was_written_and_nothing_else() {
        let program = program::workload(0);
        let mut world = World::new(&program, false).unwrap();
        let flavour = crate::content::Flavour::Stamp(9);
        world.step(&Step::Write(3, flavour)).unwrap();
        world.step(&Step::Read(3)).unwrap();
        assert_eq!(world.stats().reads, 1);
        let other = world.history.draw(3, flavour);
        world.history.write(3, other);
        let found = world.step(&Step::Read(3)).unwrap_err();
        assert_eq!(found.kind, Kind::Read, "{found}");
    }
}

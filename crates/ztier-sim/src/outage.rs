//! A power cut and the recovery: what the recovery must find.
//!
//! After every cut the run reads the volume, block by block, through the recovered core. The
//! content must be the state after some prefix of the block writes that covers every acknowledged
//! flush. The power may go again during the recovery, up to three times; that changes nothing of
//! the result.

use crate::content::Flavour;
use crate::drive::{Power, SimDrive};
use crate::image::PAGE;
use crate::oracle::{self, Seen};
use crate::program::{Cut, Side, Step};
use crate::rng::Rng;
use crate::trouble::{Kind, Trouble};
use crate::volume::{Opening, Volume, new_memory, on_backing};
use crate::world::World;
use std::sync::Arc;
use ztier::log::OpenError;
use ztier::log::disk::format::{Header, SUPER_AT, Superblock};
use ztier::media::ChangeCounter;

impl World<'_> {
    /// The power goes and comes back.
    pub(crate) fn cut(&mut self, cut: &Cut) -> Result<(), Trouble> {
        let mut rng = Rng::new(cut.seed);
        let spent = self.volume.core.is_spent();
        self.forget();
        self.lose_power(&mut rng);
        let first = if cut.again { self.rehearse(&mut rng)? } else { None };
        for operations in &cut.nested {
            let fired = self.fired();
            let operations = match u64::try_from(*operations) {
                Ok(operations) => operations,
                Err(_) => self.operations().saturating_sub(operations.unsigned_abs()),
            };
            self.power.on(Some(operations));
            let opening = (self.opening(), self.backing.newest());
            let result = Volume::open(self.setup, &self.log, rng.bits(), opening);
            let off = self.power.is_off();
            self.power.on(None);
            if let Some(why) = result.err().filter(|_| !off && self.fired() == fired) {
                return Err(self.refused(&why));
            }
            self.lose_power(&mut rng);
        }
        self.say_log();
        self.judge_store()?;
        self.recover(&mut rng)?;
        let seen = self.look();
        self.check_copies(&seen)?;
        if let Some(first) = first {
            oracle::same(&first, &seen).map_err(|why| Trouble::new(Kind::Twice, why))?;
        }
        if spent { self.judge_blocks(&seen) } else { self.judge(&seen) }
    }

    /// Prints which superblocks and chunks are on the log, if the run is traced.
    pub(crate) fn say_log(&self) {
        if !self.trace {
            return;
        }
        let log = self.log.current();
        for page in 0..log.len() {
            let (at, bytes) = (page * PAGE, log.page(page));
            if SUPER_AT.contains(&(at as u64)) {
                self.say(|| format!("at {at}: {:?}", Superblock::decode(bytes)));
            } else if let Some((header, _)) = Header::decode(bytes) {
                self.say(|| format!("at {at}: {header:?}"));
            }
        }
    }

    /// Forgets everything that was in flight.
    pub(crate) fn forget(&mut self) {
        self.writers.clear();
        self.readers.clear();
        self.copies.clear();
        self.flushes.clear();
        self.flying.clear();
    }

    pub(crate) fn lose_power(&mut self, rng: &mut Rng) {
        self.stats.cuts += 1;
        self.memory = new_memory();
        self.log.cut(rng, &self.setup.log_tearing);
        self.backing.cut(rng, &self.setup.backing_tearing);
    }

    /// Opens a log with missing durable chunks, as if the user accepted the loss: each block is old
    /// or reported lost, and never holds anything that was not written.
    pub(crate) fn salvage(&mut self) -> Result<(), Trouble> {
        self.log.repair();
        let mut volume = match Volume::open(
            self.setup,
            &self.log,
            self.setup.seed ^ 3,
            (Opening::Lossy, self.backing.newest()),
        ) {
            Ok(volume) => volume,
            Err(OpenError::Damaged | OpenError::NoLog) => return Ok(()),
            Err(why) => return Err(Trouble::new(Kind::Refused, format!("salvage: {why}"))),
        };
        let seen = volume.look(self.setup.blocks, &self.log, &self.backing);
        self.volume = volume;
        match seen.iter().position(|seen| *seen == Seen::Foreign) {
            None => self.drain(),
            Some(block) => {
                let text = format!("salvage: block {block} holds what was never written");
                Err(Trouble::new(Kind::Read, text))
            }
        }
    }

    /// Opens the log. If a fault prevents that, the fault is repaired and the open repeated.
    pub(crate) fn recover(&mut self, rng: &mut Rng) -> Result<(), Trouble> {
        let fired = self.fired();
        let opening = || (self.opening(), self.backing.newest());
        let mut result =
            Volume::open_in(self.setup, &self.log, rng.bits(), opening(), &self.memory);
        if result.is_err() && self.fired() > fired {
            self.stats.errors += 1;
            self.log.repair();
            self.backing.repair();
            self.inherit();
            let opening = (self.opening(), self.backing.newest());
            result = Volume::open_in(self.setup, &self.log, rng.bits(), opening, &self.memory);
        }
        self.note_faults(fired);
        let mut volume = result.map_err(|why| self.refused(&why))?;
        volume.take_codec(&mut self.volume);
        let last = std::mem::replace(&mut self.volume, volume);
        self.judge_size(&last.core)?;
        self.stats.recoveries += 1;
        self.is_bare = false;
        self.forgiven = self.fired();
        self.rescues = 0;
        (self.now_ms, self.commit_at_ms) = (0, 0);
        let report = &self.volume.report;
        self.say(|| format!("{report:?}"));
        Ok(())
    }

    /// The log could not be opened: that is how a lie may be detected; otherwise it is wrong.
    pub(crate) fn refused(&self, why: &OpenError) -> Trouble {
        let kind = if self.lies { Kind::Detected } else { Kind::Refused };
        Trouble::new(kind, why.to_string())
    }

    /// Number of operations that a recovery takes now.
    pub(crate) fn operations(&self) -> u64 {
        let log = SimDrive::holding("log", self.log.durable(), Arc::default());
        // Errors do not matter here: the real recovery finds them too.
        let _ = Volume::open(self.setup, &log, 0, (self.opening(), self.backing.newest()));
        log.power().blocking()
    }

    /// The content that a recovery of copies of the drives finds. The power goes right after that
    /// recovery, and another recovery must find the same.
    fn rehearse(&mut self, rng: &mut Rng) -> Result<Option<Vec<Seen>>, Trouble> {
        if self.is_troubled() {
            return Ok(None);
        }
        let power = Arc::new(Power::default());
        let log = SimDrive::holding("log", self.log.durable(), power.clone());
        let backing = SimDrive::holding("backing", self.backing.durable(), power);
        let mut found = Vec::new();
        for _ in 0..2 {
            let opening = (self.opening(), self.backing.newest());
            let mut volume = Volume::open(self.setup, &log, rng.bits(), opening)
                .map_err(|why| self.refused(&why))?;
            found.push(volume.look(self.setup.blocks, &log, &backing));
            self.stats.cuts += 1;
            log.cut(rng, &self.setup.log_tearing);
        }
        oracle::same(&found[0], &found[1]).map_err(|why| Trouble::new(Kind::Twice, why))?;
        Ok(found.pop())
    }

    /// The content of the volume.
    pub(crate) fn look(&mut self) -> Vec<Seen> {
        self.volume.look(self.setup.blocks, &self.log, &self.backing)
    }

    /// Whether faults explain the lost blocks of a volume that is in the state at `position`.
    pub(crate) fn judge_lost(&mut self, seen: &[Seen], position: u64) -> Result<(), Trouble> {
        for (block, _) in seen.iter().enumerate().filter(|(_, seen)| **seen == Seen::Lost) {
            self.lost(block as u32, self.history.written_by(block as u32, position))?;
        }
        Ok(())
    }

    /// Whether the volume may hold `seen` after its log had failed and the backing store went on
    /// alone. There, an unflushed write may be torn; its writer writes it again.
    fn judge_blocks(&mut self, seen: &[Seen]) -> Result<(), Trouble> {
        self.judge_lost(seen, self.history.submitted())?;
        let mut seen = seen.to_vec();
        let mut torn: Vec<u32> = self.history.recent().map(|(block, _)| block).collect();
        torn.sort_unstable();
        torn.dedup();
        torn.retain(|&block| seen[block as usize] == Seen::Foreign);
        for &block in &torn {
            seen[block as usize] = Seen::Value(self.history.now()[block as usize]);
        }
        oracle::blocks(&self.history, &seen).map_err(|why| Trouble::new(Kind::Prefix, why))?;
        let now = self.history.now().iter().zip(&seen);
        let state = now.map(|(now, seen)| match seen {
            Seen::Value(value) => *value,
            Seen::Lost | Seen::Foreign => *now,
        });
        let state: Vec<_> = state.collect();
        if let Some(past) = &mut self.past {
            past.adopt(state.clone(), &torn);
        }
        self.history.adopt(state, &torn);
        self.write_again(&torn)
    }

    /// The writers of torn blocks write them again.
    fn write_again(&mut self, torn: &[u32]) -> Result<(), Trouble> {
        torn.iter().try_for_each(|block| self.write(*block, Flavour::Word))
    }

    /// Whether the volume may hold `seen`; the history goes on from there.
    pub(crate) fn judge(&mut self, seen: &[Seen]) -> Result<(), Trouble> {
        let (floor, submitted) = (self.history.floor(), self.history.submitted());
        if self.lies && !self.is_secured {
            // The log has failed as well: no mark follows what it had made durable. A power cut
            // takes unflushed writes in memory; then a block is as at the last flush, and that
            // content can be what the lie has destroyed.
            self.judge_lost(seen, floor)?;
            self.history.acknowledge(submitted);
            return Ok(());
        }
        let (first, k) = oracle::prefixes(&self.history, seen).map_err(|why| {
            let alone = match oracle::blocks(&self.history, seen) {
                Ok(()) => "each block alone may hold what it holds".into(),
                Err(why) => why,
            };
            Trouble::new(Kind::Prefix, format!("{why}; {alone}"))
        })?;
        // A lost block matches any value; the fewer writes there were, the older is what it lost.
        self.judge_lost(seen, first)?;
        self.say(|| format!("recovered write {k} of {floor}..={submitted}"));
        self.history.restart(k);
        if let Some(past) = &mut self.past {
            past.forget_after(k);
        }
        let torn = (0..self.history.blocks()).filter(|block| self.history.is_torn(*block, k));
        let torn: Vec<u32> = torn.collect();
        self.write_again(&torn)
    }

    /// Whether an atomic backing store holds a past state of the volume, not before the one that it
    /// held last. It need not while it says that it does not, nor after a lie.
    pub(crate) fn judge_store(&mut self) -> Result<(), Trouble> {
        let newest = self.backing.newest();
        let whole = newest.is_some_and(|commit| commit.mixture_s == 0);
        let Some(past) = self.past.as_mut().filter(|_| whole && !self.lies) else { return Ok(()) };
        let durable = self.backing.durable();
        let seen: Vec<Seen> = (0..past.blocks()).map(|block| on_backing(&durable, block)).collect();
        let first = oracle::prefixes(past, &seen).map_err(|why| {
            Trouble::new(Kind::Backing, format!("the store holds no past state: {why}"))
        })?;
        past.acknowledge(first.0);
        Ok(())
    }

    /// Cuts the power after a close, whatever its outcome: no process uses a log after its close.
    pub(crate) fn cut_closed(&mut self) -> Result<(), Trouble> {
        let seed = self.choices.fork().bits();
        self.cut(&Cut { seed, nested: Vec::new(), again: false })
    }

    /// Closes the log in order and opens it again: nothing may be missing.
    pub(crate) fn close(&mut self) -> Result<(), Trouble> {
        self.sync()?;
        self.settle()?;
        if self.is_troubled() {
            return Ok(());
        }
        self.finish_windows()?;
        self.volume.core.close(ChangeCounter::default());
        self.wait("closing", |world| world.volume.core.is_closed())?;
        if self.is_troubled() {
            return self.cut_closed();
        }
        self.settle()?;
        self.forget();
        self.history.acknowledge(self.history.submitted());
        let mut rng = self.choices.fork();
        self.lose_power(&mut rng);
        let fired = self.fired();
        self.recover(&mut rng)?;
        // A failed attempt to open the log has marked it open all the same.
        if !self.volume.report.closed && self.fired() == fired {
            return Err(Trouble::new(Kind::Refused, "a closed log is said to be open"));
        }
        let seen = self.look();
        self.check_copies(&seen)?;
        self.judge(&seen)
    }

    /// Damages the content of a drive, as `step` says.
    pub(crate) fn damage(&mut self, step: &Step) {
        self.lies = true;
        self.lied_at = self.history.submitted();
        let log = self.log.current();
        let mut heads: Vec<(u64, usize)> = (0..log.len())
            .filter_map(|page| Some((Header::decode(log.page(page))?.0.chunk, page)))
            .collect();
        match step {
            Step::Flip(side, choice) => self.flip(*side, *choice),
            Step::Behead(choice) => {
                heads.truncate(2);
                let head = heads.get(*choice as usize % heads.len().max(1));
                self.flip_header(head.copied(), *choice);
            }
            // A chunk that no superblock calls durable can vanish without a trace.
            Step::Curtail(choice) => {
                let superblocks =
                    SUPER_AT.map(|at| Superblock::decode(log.page(at as usize / PAGE)));
                let durable = superblocks.into_iter().flatten().map(|sb| sb.durable).max();
                let newest = heads.into_iter().max();
                self.flip_header(newest.filter(|(chunk, _)| Some(*chunk) < durable), *choice);
            }
            _ => {}
        }
    }

    /// Flips a bit in the header of a chunk on the log's drive.
    fn flip_header(&self, head: Option<(u64, usize)>, choice: u64) {
        if let Some((chunk, page)) = head {
            self.say(|| format!("the header of chunk {chunk} in page {page} is damaged"));
            self.log.flip((page * PAGE) as u64 + 16 + choice / 2 % 16, 3);
        }
    }

    /// Flips a bit in a page that has been written.
    fn flip(&self, side: Side, choice: u64) {
        let mut rng = Rng::new(choice);
        let drive = self.drive(side);
        let current = drive.current();
        let written = |page: &usize| current.slot(*page).is_some();
        let used: Vec<usize> = (0..current.len()).filter(written).collect();
        if used.is_empty() {
            return;
        }
        let at = rng.pick(&used) as u64 * PAGE as u64 + rng.below(PAGE as u64);
        let bit = rng.below(8) as u8;
        self.say(|| format!("bit {bit} of byte {at} flips"));
        drive.flip(at, bit);
    }
}

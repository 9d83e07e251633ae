//! The admission thread, which stores copies of the backing store's blocks in the log, and another
//! program that writes to the backing store.
//!
//! The admission thread reads a block, and gives it to the log some time later: only the log knows
//! whether this still is the block's content. No other program writes to the backing store while
//! the volume is up or its log holds changes; when the volume is down and the log holds none, any
//! program may. A log that is opened after that must not serve a byte of its former content.

use crate::atomic::is_lost;
use crate::content::Flavour;
use crate::drive::Request;
use crate::image::{PAGE, Page};
use crate::oracle::Seen;
use crate::program::{SECURE, Setup, Step};
use crate::rng::{Rng, mix};
use crate::trouble::{Kind, Trouble};
use crate::volume::Opening;
use crate::world::World;
use ztier::media::{ChangeCounter, Drive};

/// The steps, with steps of the admission thread between them, and of another program, which writes
/// to the backing store where that is allowed.
pub fn with_copies(setup: &Setup, steps: Vec<Step>) -> Vec<Step> {
    let mut rng = Rng::new(setup.seed ^ 6);
    let (often, bare) = (rng.pick(&[50, 200, 500]), rng.pick(&[0, 3, 10]));
    // The end of a program whose drives fail stays as it is. All others go on with more cuts, as
    // they are here.
    let fails = steps.iter().any(|step| matches!(step, Step::Repair | Step::Wear));
    let ends = fails || !matches!(steps.last(), Some(Step::Cut(_)));
    let end = steps.len() - if ends { steps.len().min(SECURE.len() + 3) } else { 0 };
    let (mut all, mut recent) = (Vec::with_capacity(steps.len() * 2), Vec::new());
    for (i, step) in steps.into_iter().enumerate() {
        if let Step::Write(block, _) | Step::Cluster(block, _) | Step::Read(block) = step {
            recent.push(block);
        }
        all.push(step);
        if i >= end {
            continue;
        }
        if rng.chance(often) {
            let old = rng.chance(600) && !recent.is_empty();
            let near = recent.len().saturating_sub(40)..recent.len();
            let block =
                if old { rng.pick(&recent[near]) } else { rng.bits() as u32 % setup.blocks };
            all.push(Step::Copy(block));
        }
        if rng.chance(often) {
            all.push(Step::Store(rng.bits() as u32));
        }
        if rng.chance(often / 4) {
            all.push(Step::Leave);
        }
        if rng.chance(bare) {
            // The admission thread's content is older than what is written back.
            let block = rng.bits() as u32 % setup.blocks;
            all.extend([Step::Copy(block), Step::Write(block, Flavour::Stamp(20)), Step::Drain]);
            all.extend((0..4).map(|_| Step::Store(rng.bits() as u32)));
        }
        if rng.chance(bare) {
            let old = rng.chance(700) && !recent.is_empty();
            let block = if old { rng.pick(&recent) } else { rng.bits() as u32 % setup.blocks };
            let flavour = rng.pick(&[Flavour::Stamp(9), Flavour::Word, Flavour::Zero]);
            all.push(Step::Bare(block, flavour, rng.bits() as u32));
        }
    }
    all
}

impl World<'_> {
    /// How a log may be opened: warm whenever no other program has written to the backing store,
    /// and sometimes cold then, too.
    pub(crate) fn opening(&self) -> Opening {
        let cold = mix(self.setup.seed ^ self.stats.recoveries).is_multiple_of(4);
        let warm = self.setup.keep > 0 && !cold;
        if warm && !self.is_bare { Opening::Warm } else { Opening::Cold }
    }

    /// A step of the admission thread.
    pub(crate) fn keep(&mut self, step: &Step) {
        match step {
            Step::Copy(block) => self.copy(*block),
            Step::Store(choice) => self.store(*choice),
            _ => self.let_leave(),
        }
    }

    /// The admission thread reads a block from the backing store, if the log has no change of it.
    fn copy(&mut self, block: u32) {
        let core = &self.volume.core;
        if core.lacks_copy(block.into()) || core.has_clean(block.into()) {
            let page: Page = *self.backing.current().page(block as usize);
            if is_lost(&page) {
                return;
            }
            self.copies.push((block, core.token(), Box::new(page)));
        }
    }

    /// The admission thread gives the log a block that it read earlier.
    fn store(&mut self, choice: u32) {
        if self.copies.is_empty() {
            return;
        }
        let (block, token, page) = self.copies.swap_remove(choice as usize % self.copies.len());
        let kept = self.volume.keep(block, token, &page);
        self.say(|| format!("a copy of {block} is {}", if kept { "kept" } else { "refused" }));
    }

    /// The admission thread asks which copies leave the log next, keeps some of them, and lets the
    /// others leave.
    fn let_leave(&mut self) {
        let (mut from, mut blocks) = (Some(0), Vec::new());
        while let Some(at) = from {
            from = self.volume.core.leaving(at, &mut blocks);
        }
        for block in blocks.into_iter().filter(|block| mix(*block).is_multiple_of(2)) {
            self.copy(block as u32);
            self.store(u32::MAX);
        }
        self.volume.core.let_leave();
    }

    /// Asserts that the log's copies equal the blocks of the backing store.
    pub(crate) fn check_copies(&mut self, seen: &[Seen]) -> Result<(), Trouble> {
        if !self.volume.core.is_counted() {
            return Err(Trouble::new(Kind::Read, "blocks are counted wrong"));
        }
        if self.lies {
            return Ok(());
        }
        let backing = self.backing.current();
        for (block, seen) in (0..).zip(seen) {
            if !self.volume.core.has_clean(block.into()) {
                continue;
            }
            let there = backing.value(block);
            if there.map(Seen::Value) != Some(*seen) {
                let text = format!("the copy of {block} is {seen:?}, and there is {there:?}");
                return Err(Trouble::new(Kind::Read, text));
            }
        }
        Ok(())
    }

    /// The volume is drained and goes down, in one of several ways. Then another program writes a
    /// block of the backing store, and the volume comes up again.
    pub(crate) fn bare(
        &mut self,
        block: u32,
        flavour: Flavour,
        choice: u32,
    ) -> Result<(), Trouble> {
        let gone = |world: &Self| world.is_troubled() || world.volume.core.is_failed();
        if gone(self) {
            return Ok(());
        }
        self.drain()?;
        // There may be copies of blocks that were written back.
        while !gone(self) && !self.copies.is_empty() {
            self.store(choice);
        }
        self.copy(block);
        self.store(u32::MAX);
        if choice.is_multiple_of(2) {
            self.sync()?;
            self.settle()?;
        }
        if gone(self) || !self.volume.core.is_clean() {
            return Ok(());
        }
        let mut rng = self.choices.fork();
        match choice / 2 % 3 {
            0 => {
                self.sync()?;
                self.settle()?;
                self.finish_windows()?;
                self.volume.core.close(ChangeCounter::default());
                self.wait("closing", |world| world.volume.core.is_closed())?;
                if gone(self) {
                    return self.cut_closed();
                }
                self.settle()?;
                self.forget();
                self.lose_power(&mut rng);
            }
            1 => {
                self.forget();
                self.lose_power(&mut rng);
            }
            _ => _ = self.die(&mut rng),
        }
        let value = self.history.draw(block, flavour);
        value.fill(block, &mut self.page);
        self.say(|| format!("another program writes {value:?} to {block}"));
        let request = Request::write(u64::from(block) * PAGE as u64, &self.page[..]);
        // Retries a write that fails.
        loop {
            let ticket = self.next_ticket;
            self.next_ticket += 1;
            self.backing.begin(ticket, request.clone());
            if self.backing.finish(ticket).is_ok() && Drive::flush(&self.backing).is_ok() {
                break;
            }
            self.backing.repair();
        }
        self.history.write(block, value);
        if let Some(past) = &mut self.past {
            past.write(block, value);
        }
        self.history.acknowledge(self.history.submitted());
        self.is_bare = true;
        self.recover(&mut rng)?;
        let seen = self.look();
        self.check_copies(&seen)?;
        self.judge(&seen)
    }
}

//! The process dies, and another one takes over its memory and its drives.
//!
//! Of the drives' commands, those that had returned are done whole, also where no flush covered
//! them; a command in flight may be done in part. The next process must find every acknowledged
//! change, durable or not; a block with an unacknowledged change is as before or after it. The next
//! process may die during its recovery. A later power cut takes the memory, and leaves the contract
//! of every cut.

use crate::content::Value;
use crate::oracle::Seen;
use crate::program::Cut;
use crate::rng::Rng;
use crate::trouble::{Kind, Trouble};
use crate::volume::Volume;
use crate::world::World;
use std::os::fd::AsFd;
use ztier::log;
use ztier::media::{Drive, Memory};

impl World<'_> {
    /// The process dies, and another one takes over.
    pub(crate) fn kill(&mut self, kill: &Cut) -> Result<(), Trouble> {
        let mut rng = Rng::new(kill.seed);
        let unanswered = self.die(&mut rng);
        // Before the next process opens the log: after that the log is not spent any more.
        self.flush_spent();
        for operations in &kill.nested {
            let fired = self.fired();
            let operations = match u64::try_from(*operations) {
                Ok(operations) => operations,
                Err(_) => self.operations().saturating_sub(operations.unsigned_abs()),
            };
            self.power.on(Some(operations));
            let opening = (self.opening(), self.backing.newest());
            let result = Volume::open_in(self.setup, &self.log, rng.bits(), opening, &self.memory);
            let off = self.power.is_off();
            self.power.on(None);
            if let Some(why) = result.err().filter(|_| !off && self.fired() == fired) {
                return Err(self.refused(&why));
            }
            self.stats.kills += 1;
            self.inherit();
        }
        self.say_log();
        self.judge_store()?;
        self.recover(&mut rng)?;
        self.stats.recommitted += self.volume.core.recommitted();
        if !self.make_room()? {
            return Ok(());
        }
        let seen = self.look();
        self.judge_kept(&seen, &unanswered)
    }

    /// Everything in flight ends at once. Returns the blocks of unacknowledged writes.
    pub(crate) fn die(&mut self, rng: &mut Rng) -> Vec<u32> {
        self.stats.kills += 1;
        let mut unanswered = Vec::new();
        for writer in std::mem::take(&mut self.writers) {
            unanswered.extend(writer.blocks);
            match rng.below(3) {
                0 => self.volume.fill(writer.reserved),
                1 => self.volume.fill_partly(writer.reserved, rng.bits() as u8),
                _ => {}
            }
        }
        while !self.flying.is_empty() {
            let flying = self.flying.swap_remove(rng.index(self.flying.len()));
            self.drive(flying.side).interrupt(flying.ticket, rng);
        }
        self.backing.abandon(rng);
        self.forget();
        self.inherit();
        unanswered
    }

    /// A spent log has no record of writes that went past it to the backing store.
    fn flush_spent(&self) {
        if log::read_superblock(&self.log).is_ok_and(|(sb, ..)| sb.spent)
            && Drive::flush(&self.backing).is_err()
        {
            self.backing.repair();
            let _ = Drive::flush(&self.backing);
        }
    }

    /// The next process takes the memory over.
    pub(crate) fn inherit(&mut self) {
        let files = self.memory.files().into_iter();
        let files = files.map(|(name, file)| {
            (name, file.as_fd().try_clone_to_owned().expect("a descriptor can be copied"))
        });
        self.memory = Memory::inherited(files.collect());
    }

    /// Where there is no room for what the dead process left, writeback makes room; returns whether
    /// there is room.
    fn make_room(&mut self) -> Result<bool, Trouble> {
        let mut rounds = 0;
        while self.volume.core.is_recommitting() {
            self.begin_window(self.setup.window);
            self.finish_windows()?;
            // Without a window only commands can make progress.
            self.take(1);
            self.settle()?;
            rounds += 1;
            if rounds > 20 {
                return match self.is_troubled() {
                    true => Ok(false),
                    false => Err(Trouble::new(Kind::Hang, "what was kept finds no room")),
                };
            }
        }
        Ok(true)
    }

    /// Checks that every acknowledged change is there.
    fn judge_kept(&mut self, seen: &[Seen], unanswered: &[u32]) -> Result<(), Trouble> {
        self.judge_lost(seen, self.history.submitted())?;
        for &block in unanswered {
            let (before, found) = (self.history.before(block), seen[block as usize]);
            let now = self.history.now()[block as usize];
            if found != Seen::Value(now) && before.map(Seen::Value) == Some(found) {
                self.history.undo(block);
                if let Some(past) = &mut self.past {
                    past.undo(block);
                }
            }
        }
        for (block, (value, found)) in self.history.now().iter().zip(seen).enumerate() {
            if *found != Seen::Lost && *found != Seen::Value(*value) {
                let value: &Value = value;
                let text = format!("block {block} was {value:?}, acknowledged, and is {found:?}");
                return Err(Trouble::new(Kind::Kept, text));
            }
        }
        Ok(())
    }
}

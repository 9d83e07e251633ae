//! A volume that grows: its log has the size that was durable last, or a later one that was asked
//! for, whatever happened meanwhile. The backing store is larger from the start.

use crate::trouble::{Kind, Trouble};
use crate::world::World;
use ztier::log::Core;

impl World<'_> {
    /// In runs that grow, the volume gets a block more.
    pub(crate) fn grow(&mut self) {
        if self.setup.grows() {
            let core = &mut self.volume.core;
            self.durable_blocks = self.durable_blocks.max(durable(core));
            core.grow(core.blocks() + 1);
            self.say(|| "the volume grows".into());
        }
    }

    /// Whether a log that was opened may have its size; `last` is the core before. A lie may have
    /// taken a newer superblock.
    pub(crate) fn judge_size(&mut self, last: &Core) -> Result<(), Trouble> {
        let found = self.volume.core.blocks();
        let least = self.durable_blocks.max(durable(last));
        if !self.lies && !(least..=last.blocks()).contains(&found) {
            let text = format!("it has {found} blocks, not {least} to {}", last.blocks());
            return Err(Trouble::new(Kind::Size, text));
        }
        self.durable_blocks = found;
        Ok(())
    }
}

/// The size that both superblocks have, if it is known; else 0.
fn durable(core: &Core) -> u64 {
    if core.is_written() && !core.is_failed() { core.blocks() } else { 0 }
}

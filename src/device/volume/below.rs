//! Another spill device for a volume that is up, or none; and the threads that a spill device
//! needs.
//!
//! Invariant: whenever the process dies, the device that the caller has noted last has the label
//! that the volume's memory has a copy of, and all that is in slots.

use super::{Volume, min_ram_limit_above, readahead, spiller, too_little};
use crate::device::contract::SpillChange;
use crate::device::drives::{self, Alarm};
use crate::device::spill_setup::LabelCopy;
use crate::error::{Error, Result};
use crate::ram::Change;
use crate::sync::Mutex;
use std::sync::{Arc, OnceLock, Weak};

/// What a change of the spill device needs to know.
#[derive(Default)]
pub(super) struct Below {
    volume: OnceLock<Weak<Volume>>,
    label: OnceLock<LabelCopy>,
    alarm: OnceLock<Alarm>,
    /// Whether the threads run. Its lock is held by a change.
    spills: Mutex<bool>,
}

impl Below {
    pub(super) fn begin(&self, volume: &Arc<Volume>) {
        self.volume.get_or_init(|| Arc::downgrade(volume));
    }

    pub(super) fn heed(&self, alarm: &Alarm) {
        self.alarm.get_or_init(|| Arc::clone(alarm));
    }
}

impl Volume {
    /// Keeps the copy of the label for changes of the spill device.
    pub fn keep_label(&self, label: LabelCopy) {
        self.below.label.get_or_init(|| label);
    }

    /// Blocks that were given up with a spill device so far.
    pub fn lost_below(&self) -> u64 {
        self.ram.lost_below()
    }

    /// Starts the threads for a spill device, if they do not run.
    pub(super) fn start_spilling(&self) -> Result<()> {
        self.start(&mut self.below.spills.lock())
    }

    fn start(&self, spills: &mut bool) -> Result<()> {
        let Some(volume) = self.below.volume.get().and_then(Weak::upgrade).filter(|_| !*spills)
        else {
            return Ok(());
        };
        self.workers.lock().push(spiller::start(&volume)?);
        self.workers.lock().push(readahead::start(&volume)?);
        *spills = true;
        Ok(())
    }

    /// See [`crate::device::InMemory::change_spill`].
    ///
    /// # Errors
    /// See there.
    pub fn change_spill(&self, change: SpillChange<'_>) -> Result<u64> {
        let mut spills = self.below.spills.lock();
        let store = self.ram.store();
        let label = self.below.label.get();
        let to = match change.device {
            None if !store.segments().may_change() => return Err(made_without()),
            None => None,
            Some(device) => {
                let label = label.filter(|label| label.is_there()).ok_or_else(made_without)?;
                let least = min_ram_limit_above(self.size_now(), store.segment_size());
                let limit = store.budget().limit();
                if limit < least {
                    return Err(too_little(limit, least));
                }
                self.start(&mut spills)?;
                let has_one = store.slots().count() > 0;
                Some(match has_one {
                    true => device.succeed(label)?,
                    false => device.begin(label, store.segments().slots_max())?,
                })
            }
        };
        let session = self.ram.session()?;
        let SpillChange { gives_up, stop, commit, .. } = change;
        let changed = self.ram.change_below(&session, Change { to, gives_up, stop, commit });
        store.leave(&session);
        if let Some(alarm) = self.below.alarm.get() {
            self.ram.spill_failures(|failures| drives::heed(failures, alarm));
        }
        changed
    }

    /// See [`crate::device::InMemory::set_spill_daily`].
    ///
    /// # Errors
    /// See there.
    pub fn set_spill_daily(&self, bytes: u64) -> Result<()> {
        // No other spill device comes meanwhile.
        let _spills = self.below.spills.lock();
        if self.ram.set_spill_daily(bytes) { Ok(()) } else { Err(no_spill_device()) }
    }
}

/// `spill-daily` is given for a volume without a spill device.
pub(crate) fn no_spill_device() -> Error {
    Error::usage("spill-daily is for a volume with a spill device")
        .hint("leave out spill-daily, or give spill=DEV")
}

fn made_without() -> Error {
    Error::failure("the memory of this volume was made by a ztier that could not do this")
        .hint("copy what you need, then take the volume down and up again")
}

//! Gives a volume at work another spill device, or none.
//!
//! Invariant: the state file names the device that has what is spilled: it changes after the new
//! device, or memory, has everything, and before anything is written to the new device alone.

use super::log;
use super::running::Running;
use crate::config::Plan;
use crate::config::plan::SpillPlan;
use crate::control::{Asking, EventKind, NewSpill};
use crate::device::{SpillChange, SpillDevice};
use crate::error::{Error, Result};

impl Running {
    /// Changes the spill device as asked; the caller has agreed, and holds the lock of sizes.
    pub(super) fn respill(&self, new: &NewSpill, asking: &Asking<'_>) -> Result<()> {
        let before = self.served.plan();
        let present = before.spill.as_ref().map(|spill| spill.device.as_path());
        if present == new.device.as_deref() {
            return match present {
                Some(path) => {
                    Err(Error::busy(format!("{} is its spill device already", path.display()))
                        .hint("give another one, or `none`"))
                }
                None => Ok(()),
            };
        }
        let memory = self.served.volume.in_memory();
        let memory = memory.ok_or_else(|| Error::usage("spill is for a volume in memory alone"))?;
        let next = new.device.as_ref().map(|device| SpillPlan {
            device: device.clone(),
            daily_bytes: before.spill.as_ref().map_or(0, |spill| spill.daily_bytes),
            wipe: false,
            gone: false,
        });
        let device = next.as_ref().map(|next| spill_device(&before, next, new.wipe));
        let mut commit = || self.note_spill(next.clone());
        let lost = memory.change_spill(SpillChange {
            device: device.as_ref(),
            gives_up: new.accept_loss,
            stop: &|| asking.is_gone(),
            commit: &mut commit,
        })?;
        self.tell_spill(&before, next.as_ref(), lost);
        Ok(())
    }

    /// Changes the bytes that may be spilled a day; the caller holds the lock of sizes.
    pub(super) fn spill_daily(&self, bytes: u64) -> Result<()> {
        let memory = self.served.volume.in_memory().ok_or_else(crate::device::no_spill_device)?;
        memory.set_spill_daily(bytes)?;
        let mut state = self.served.state.lock();
        if let Some(spill) = &mut state.plan.spill {
            spill.daily_bytes = bytes;
        }
        state.write(&self.served.files)
    }

    /// Notes the spill device where the next daemon finds it.
    fn note_spill(&self, next: Option<SpillPlan>) -> Result<()> {
        let mut state = self.served.state.lock();
        let before = std::mem::replace(&mut state.plan.spill, next);
        let written = state.write(&self.served.files);
        if written.is_err() {
            state.plan.spill = before;
        }
        written
    }

    fn tell_spill(&self, before: &Plan, now: Option<&SpillPlan>, lost: u64) {
        let about = Some("spill");
        if let Some(old) = &before.spill {
            let text = format!("{} is no longer its spill device", old.device.display());
            self.served.history.add(EventKind::SpillDetached, about, &text);
            log::line(&text);
        }
        if let Some(new) = now {
            let text = format!("{} is its spill device from now on", new.device.display());
            self.served.history.add(EventKind::SpillAttached, about, &text);
            log::line(&text);
        }
        if lost > 0 {
            log::line(&format!("{lost} blocks were only on the spill device, and are given up"));
        }
    }
}

/// The spill device of the volume of `plan`, as `spill` says.
pub(super) fn spill_device(plan: &Plan, spill: &SpillPlan, wipe: bool) -> SpillDevice {
    SpillDevice {
        path: spill.device.clone(),
        volume: plan.name.clone(),
        segment: plan.segment_bytes,
        daily: spill.daily_bytes,
        wipe,
    }
}

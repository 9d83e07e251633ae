//! Makes a volume's device swap on request, and ends that; also ends a job that uses it.
//!
//! Invariants: a setting of the machine is in the state file before it is set; a device with
//! holders never becomes swap, and a device with content only by force; swap ends only if memory
//! seems to have room for its content, or by force; no plan tells that a device holds nothing but
//! swap: the device itself does.

use super::log;
use super::resident;
use super::running::Running;
use super::signals::Event;
use super::state;
use super::using;
use crate::config::size::human;
use crate::config::{Plan, Usage};
use crate::control::{Asking, Swapon, Swapping};
use crate::error::{Error, Result};
use crate::media::{Access, FileDrive, Signature};
use crate::remedy;
use crate::system::reclaim::make_present;
use crate::system::usage::{self, Room, Tuned};
use rustix::event::{PollFd, PollFlags, poll};
use std::path::{Path, PathBuf};
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// Stands for the priority of a device that the daemon has not made swap.
const NO_PRIORITY: i32 = -1;

impl Running {
    /// Makes the device swap space, and makes the kernel use it.
    pub(super) fn swapon(&self, ask: &Swapon, asking: &mut Asking<'_>) -> Result<Swapping> {
        let name = &self.served.name;
        let plan = self.served.plan();
        refuse_kind(&plan)?;
        let device = self.served.device()?;
        if usage::is_swap(&device) {
            return Err(Error::busy(format!("volume `{name}` is swap already"))
                .hint(format!("end that with `ztier swapoff {name}`")));
        }
        self.served.refuse_holders("end that first")?;
        if !ask.force {
            self.refuse_unsafe()?;
            self.refuse_content(&device)?;
        }
        asking.agree()?;
        let before = self.served.usage();
        if before.is_some() {
            // A user has ended swap by hand. What went with it has not ended, and the settings that
            // it found would be forgotten.
            self.threads.end_swap();
            state::untune(&self.served.files, before.as_ref());
        }
        let mut notes = Vec::new();
        let mut usage = Usage::Swap {
            priority: ask.priority,
            page_cluster: ask.page_cluster,
            swappiness: ask.swappiness,
            tuned: Vec::new(),
            ballast: ask.ballast,
            freed_slots: ask.freed_slots,
            on_full: ask.on_full.clone(),
            forced: ask.force,
        };
        state::plan_settings(&self.served.files, &mut usage, &mut notes);
        self.carry_swap(true)?;
        resident::begin(&self.served.files);
        make_present();
        if let Err(e) = self.served.note_usage(Some(usage.clone())) {
            self.carry_none()?;
            return Err(e);
        }
        let homes = self.homes();
        let made = (true, homes.announced());
        if let Err(e) = usage::begin(&usage, &device, made, &|what| log::line(what)) {
            self.carry_none()?;
            self.served.note_usage(before)?;
            return Err(e);
        }
        notes.extend(usage::tune(&usage));
        self.threads.follow_swap(&self.served, &usage, &device);
        notes.extend(homes.about());
        log::line(&format!("{name} is swap, by {}", device.display()));
        Ok(self.swapping(&device, &usage, notes))
    }

    fn carry_swap(&self, on: bool) -> Result<()> {
        self.served.volume.in_memory().map_or(Ok(()), |memory| memory.carry_swap(on))
    }

    /// Ends what this process does while its volume carries swap.
    pub(super) fn carry_none(&self) -> Result<()> {
        self.carry_swap(false)?;
        resident::end();
        Ok(())
    }

    /// Ends the use of the device as swap.
    pub(super) fn swapoff(&self, force: bool, asking: &mut Asking<'_>) -> Result<Swapping> {
        let name = &self.served.name;
        let usage = self.served.usage();
        let device = self.served.device()?;
        let usage = match usage {
            Some(usage @ Usage::Swap { .. }) => usage,
            // A user has made it swap by hand.
            None if usage::is_swap(&device) => Usage::bare_swap(NO_PRIORITY, false),
            _ => {
                return Err(Error::busy(format!("volume `{name}` is not swap"))
                    .hint(format!("`ztier swapon {name}` makes it that")));
            }
        };
        if let Some(job) =
            self.served.state.lock().plan.job.as_ref().filter(|job| !force && job.exists())
        {
            return Err(using::busy(name, job));
        }
        if !force {
            self.refuse_full(&device)?;
        }
        asking.agree()?;
        let was = self.swapping(&device, &usage, Vec::new());
        self.look_how_it_compresses();
        self.end_within(&usage, &device, usage::END_ALONE)?;
        self.carry_none()?;
        state::untune(&self.served.files, Some(&usage));
        self.served.note_usage(None)?;
        let changed = |t: &Tuned| t.now().is_ok_and(|now| now != t.before);
        let stay = was.settings.iter().filter(|t| changed(t));
        let notes = stay.map(|t| match t.now() {
            Ok(now) if now == t.set => format!("{} stays {now}, which another volume needs", t.key),
            Ok(now) => format!("{} stays {now}, which another process set", t.key),
            Err(e) => e.to_string(),
        });
        Ok(Swapping { notes: notes.collect(), ..was })
    }

    fn swapping(&self, device: &Path, usage: &Usage, notes: Vec<String>) -> Swapping {
        let area = usage::swapped(device);
        let priority = match usage {
            Usage::Swap { priority, .. } => *priority,
            Usage::Ext4 { .. } => NO_PRIORITY,
        };
        Swapping {
            device: device.to_owned(),
            size_bytes: area.map_or(0, |area| area.size),
            used_bytes: area
                .map_or(0, |area| area.used.saturating_sub(self.threads.ballast_bytes())),
            priority,
            settings: usage::tuned(usage).to_vec(),
            notes,
        }
    }

    /// Refuses to end swap if memory and other swap lack the room for its content.
    fn refuse_full(&self, device: &Path) -> Result<()> {
        let (Some(area), Some(room)) = (usage::swapped(device), usage::room(device)) else {
            return Ok(());
        };
        refuse_short(
            &self.served.name,
            area.used.saturating_sub(self.threads.ballast_bytes()),
            room,
        )
    }

    fn refuse_unsafe(&self) -> Result<()> {
        let Some(why) = &self.unsafe_for_swap else { return Ok(()) };
        Err(Error::failure(format!(
            "the daemon of volume `{}` must not carry swap: {why}",
            self.served.name
        ))
        .hint(remedy::SWAP_UNSAFE))
    }

    /// Refuses a device that has content.
    fn refuse_content(&self, device: &Path) -> Result<()> {
        let Some(what) = self.other_than_swap(device)? else { return Ok(()) };
        Err(Error::would_lose(format!("volume `{}` holds {what}", self.served.name))
            .hint(remedy::SWAP_HOLDS))
    }

    /// What a device holds beside swap, in words; `None`: nothing. The pages of a device that is
    /// swap come back to memory when that ends; the content of a swap area that is not in use is
    /// worthless.
    ///
    /// # Errors
    /// The content can't be determined.
    pub(super) fn other_than_swap(&self, device: &Path) -> Result<Option<String>> {
        let bytes = self.served.volume.volatile_bytes();
        if bytes == 0 || usage::is_swap(device) {
            return Ok(None);
        }
        Ok(match Signature::of(&FileDrive::open(device, Access::ReadOnly)?)? {
            Some(found) if found.kind == "swap" => None,
            Some(found) => Some(found.to_string()),
            None => Some(format!("{} of something unknown", human(bytes))),
        })
    }

    /// Whether the plan has the device as swap, and it holds nothing else: a user may have ended
    /// swap by hand, and have made a file system there.
    pub(super) fn holds_only_swap(&self) -> bool {
        let is_planned = matches!(self.served.usage(), Some(Usage::Swap { .. }));
        // Not by the export's lock, which a change of sizes holds for long.
        let device = self.served.endpoints().into_iter().next().map(PathBuf::from);
        let only = |device: PathBuf| self.other_than_swap(&device).is_ok_and(|it| it.is_none());
        is_planned && device.is_some_and(only)
    }
}

/// Refuses volumes that can't be swap at all.
fn refuse_kind(plan: &Plan) -> Result<()> {
    let name = &plan.name;
    if !plan.export.is_block_device() {
        let kind = plan.export.kind();
        return Err(Error::usage(format!(
            "volume `{name}` is offered by {kind}, which is no block device"
        ))
        .hint("make it with --export ublk or fuse, as root"));
    }
    if !plan.is_volatile() {
        return Err(Error::would_lose(format!(
            "volume `{name}` has a backing store, whose content swap would destroy"
        ))
        .hint("use a volume in memory (ztier up NAME --size BYTES)"));
    }
    match &plan.usage {
        Some(Usage::Ext4 { mount }) => Err(Error::busy(format!(
            "volume `{name}` is a file system, mounted on {}",
            mount.display()
        ))
        .hint("use another volume")),
        _ => Ok(()),
    }
}

fn refuse_short(name: &str, used: u64, room: Room) -> Result<()> {
    if used <= room.memory.saturating_add(room.swap) {
        return Ok(());
    }
    Err(Error::failure(format!(
        "{} are swapped out to volume `{name}`, and there is room for {} in memory and {} in other \
         swap",
        human(used),
        human(room.memory),
        human(room.swap)
    ))
    .hint(remedy::SWAP_FULL))
}

/// Sends an event when the runner of the plan's job ends.
pub(super) fn watch(plan: &Plan, events: SyncSender<Event>) {
    let Some(job) = plan.job.clone() else { return };
    let wait = move || {
        if let Some(runner) = job.runner() {
            while poll(&mut [PollFd::new(&runner, PollFlags::IN)], None).is_err() {
                std::thread::sleep(Duration::from_millis(100));
            }
        }
        // Without a receiver the daemon is already ending.
        let _ = events.send(Event::Abandoned);
    };
    if let Err(e) = std::thread::Builder::new().name("ztier-runner".into()).spawn(wait) {
        log::line(&format!("cannot watch `ztier run`: {e}"));
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_has_no_room_in_memory_stays_swapped_out() {
        let room = Room { memory: 300 << 20, swap: 100 << 20 };
        refuse_short("x", 400 << 20, room).unwrap();
        let error = refuse_short("x", (400 << 20) + 1, room).unwrap_err().to_string();
        assert_eq!(
            error,
            "400 MiB are swapped out to volume `x`, and there is room for 300 MiB in memory and \
             100 MiB in other swap; end some programs, or try all the same with --force"
        );
    }
}

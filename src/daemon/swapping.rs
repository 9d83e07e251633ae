//! Makes a volume's device swap on request, and ends that; also ends a job that uses it.
//!
//! Invariants: a setting of the machine is in the state file before it is set; a device with
//! holders never becomes swap, and a device with content only by force; swap ends only if memory
//! seems to have room for its content, or by force.

use super::freed_slots::FreedSlots;
use super::log;
use super::resident;
use super::running::Running;
use super::signals::Event;
use super::state;
use super::swap_thread::SwapThread;
use crate::config::size::human;
use crate::config::{Ballast, Job, Plan, Usage};
use crate::control::{Asking, Swapon, Swapping};
use crate::error::{Error, Result};
use crate::media::{Access, FileDrive, Signature};
use crate::remedy;
use crate::stats::Stats;
use crate::system::reclaim::make_present;
use crate::system::usage::{self, PAGE_CLUSTER, Room, SWAPPINESS, SlotNews, Tuned};
use rustix::event::{PollFd, PollFlags, poll};
use std::path::Path;
use std::sync::mpsc::SyncSender;
use std::time::Duration;

/// Stands for the priority of a device that the daemon has not made swap.
const NO_PRIORITY: i32 = -1;
/// The assumed compression ratio before any page was swapped out, in percent.
const ASSUMED: u64 = 300;
/// Fewer bytes than this do not predict a compression ratio.
const TELLING: u64 = 16 << 20;

impl Running {
    /// Makes the device swap space, and makes the kernel use it.
    pub(super) fn swapon(&self, ask: &Swapon, asking: &mut Asking<'_>) -> Result<Swapping> {
        let name = &self.name;
        let plan = self.state.lock().plan.clone();
        refuse_kind(&plan)?;
        let device = self.device()?;
        if usage::is_swap(&device) {
            return Err(Error::busy(format!("volume `{name}` is swap already"))
                .hint(format!("end that with `ztier swapoff {name}`")));
        }
        self.refuse_holders("end that first")?;
        if !ask.force {
            self.refuse_unsafe()?;
            self.refuse_content(&device)?;
        }
        asking.agree()?;
        let mut notes = Vec::new();
        let wanted = [(PAGE_CLUSTER, ask.page_cluster), (SWAPPINESS, ask.swappiness)];
        let tuned = state::settings(&self.files, &wanted, &mut notes);
        let usage = Usage::Swap {
            priority: ask.priority,
            tuned,
            ballast: ask.ballast,
            freed_slots: ask.freed_slots,
            on_full: ask.on_full.clone(),
            forced: ask.force,
        };
        self.carry_swap(true)?;
        resident::begin(&self.files);
        make_present();
        self.note_usage(Some(usage.clone()))?;
        let homes = self.homes();
        let made = (true, homes.announced());
        if let Err(e) = usage::begin(&usage, &device, made, &|what| log::line(what)) {
            self.carry_swap(false)?;
            resident::end();
            self.note_usage(None)?;
            return Err(e);
        }
        notes.extend(usage::tune(&usage));
        self.follow_swap(&usage, &device);
        notes.extend(homes.about());
        log::line(&format!("{name} is swap, by {}", device.display()));
        Ok(self.swapping(&device, &usage, notes))
    }

    fn carry_swap(&self, on: bool) -> Result<()> {
        self.volume.in_memory().map_or(Ok(()), |memory| memory.carry_swap(on))
    }

    /// Ends the use of the device as swap.
    pub(super) fn swapoff(&self, force: bool, asking: &mut Asking<'_>) -> Result<Swapping> {
        let name = &self.name;
        let usage = self.state.lock().plan.usage.clone();
        let device = self.device()?;
        let usage = match usage {
            Some(usage @ Usage::Swap { .. }) => usage,
            // A user has made it swap by hand.
            None if usage::is_swap(&device) => Usage::Swap {
                priority: NO_PRIORITY,
                tuned: Vec::new(),
                ballast: Ballast::Off,
                freed_slots: SlotNews::Off,
                on_full: None,
                forced: false,
            },
            _ => {
                return Err(Error::busy(format!("volume `{name}` is not swap"))
                    .hint(format!("`ztier swapon {name}` makes it that")));
            }
        };
        if let Some(job) = self.state.lock().plan.job.as_ref().filter(|job| !force && job.exists())
        {
            return Err(busy(name, job));
        }
        if !force {
            self.refuse_full(&device)?;
        }
        asking.agree()?;
        let was = self.swapping(&device, &usage, Vec::new());
        self.look_how_it_compresses();
        self.end_within(&usage, &device, usage::END_ALONE)?;
        self.carry_swap(false)?;
        resident::end();
        state::untune(&self.files, Some(&usage));
        self.note_usage(None)?;
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
            used_bytes: area.map_or(0, |area| area.used.saturating_sub(self.ballast_bytes())),
            priority,
            settings: usage::tuned(usage).to_vec(),
            notes,
        }
    }

    /// Begins to fit the volume to carrying swap. Without that, swap works, but takes more memory.
    pub(super) fn follow_swap(&self, usage: &Usage, device: &Path) {
        let Usage::Swap { ballast, freed_slots, on_full, .. } = usage else { return };
        match SwapThread::start(self, device.to_owned(), *ballast, on_full.as_deref()) {
            Ok(thread) => *self.swap_thread.lock() = Some(thread),
            Err(e) => log::line(&e.to_string()),
        }
        if *freed_slots == SlotNews::Off {
            return;
        }
        match FreedSlots::start(self, device.to_owned()) {
            Ok(thread) => *self.freed_slots.lock() = Some(thread),
            Err(e) => log::line(&e.to_string()),
        }
    }

    /// Bytes of the swap area that are ballast.
    pub(super) fn ballast_bytes(&self) -> u64 {
        self.swap_thread.lock().as_ref().map_or(0, SwapThread::ballast_bytes)
    }

    /// Bytes of pages for which the machine has room, and whether it is nearly full; `None` while
    /// the volume is no swap.
    pub(super) fn swap_room(&self) -> Option<(u64, bool)> {
        self.swap_thread.lock().as_ref().and_then(SwapThread::room)
    }

    /// Ends the use `usage` of the device within `limit`, and first its ballast, which must not
    /// come back to memory.
    pub(super) fn end_within(&self, usage: &Usage, device: &Path, limit: Duration) -> Result<()> {
        let swap_thread = self.swap_thread.lock().take();
        drop(swap_thread);
        let freed_slots = self.freed_slots.lock().take();
        drop(freed_slots);
        usage::end_within(usage, device, limit).inspect_err(|_| self.follow_swap(usage, device))
    }

    /// Refuses to end swap if memory and other swap lack the room for its content.
    fn refuse_full(&self, device: &Path) -> Result<()> {
        let (Some(area), Some(room)) = (usage::swapped(device), usage::room(device)) else {
            return Ok(());
        };
        refuse_short(&self.name, area.used.saturating_sub(self.ballast_bytes()), room)
    }

    /// Remembers the present compression ratio, if enough is stored to tell.
    fn look_how_it_compresses(&self) {
        if let Some(percent) = measured(&self.volume.stats()) {
            self.state.lock().compresses_percent = Some(percent);
        }
    }

    /// The room for pages that are swapped out.
    pub(super) fn homes(&self) -> Homes {
        self.look_how_it_compresses();
        let (stats, size) = (self.volume.stats(), self.volume.size());
        let state = self.state.lock();
        let below = stats.spill_slots * u64::from(state.plan.segment_bytes);
        let measured = state.compresses_percent;
        let most = state.plan.ram_auto.map(|bounds| bounds.max_bytes);
        Homes { size, memory: most.unwrap_or(stats.ram_limit_bytes), below, measured }
    }

    fn note_usage(&self, usage: Option<Usage>) -> Result<()> {
        let mut state = self.state.lock();
        state.plan.usage = usage;
        state.write(&self.files)
    }

    fn refuse_unsafe(&self) -> Result<()> {
        let Some(why) = &self.unsafe_for_swap else { return Ok(()) };
        Err(Error::failure(format!(
            "the daemon of volume `{}` must not carry swap: {why}",
            self.name
        ))
        .hint(remedy::SWAP_UNSAFE))
    }

    /// Refuses a device that has content.
    fn refuse_content(&self, device: &Path) -> Result<()> {
        let bytes = self.volume.volatile_bytes();
        if bytes == 0 {
            return Ok(());
        }
        let found = Signature::of(&FileDrive::open(device, Access::ReadOnly)?)?;
        let what = match found {
            // A swap area that is not in use: its content is worthless.
            Some(found) if found.kind == "swap" => return Ok(()),
            Some(found) => format!("holds {found}"),
            None => format!("holds {} of something unknown", human(bytes)),
        };
        Err(Error::would_lose(format!("volume `{}` {what}", self.name)).hint(remedy::SWAP_HOLDS))
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

/// The compression ratio of swapped-out data, in percent; `None` while there is too little.
fn measured(stats: &Stats) -> Option<u64> {
    let taken = stats.compr_data_bytes + stats.record_headers_bytes;
    (stats.orig_data_bytes >= TELLING).then(|| stats.orig_data_bytes * 100 / taken.max(1))
}

/// The room for pages that are swapped out.
pub(super) struct Homes {
    /// Size of the device in bytes.
    size: u64,
    /// The memory limit, or the highest one that adapting may reach, in bytes.
    memory: u64,
    /// Size of the spill device's slots, in bytes.
    below: u64,
    /// The measured compression ratio of pages, in percent, if known.
    measured: Option<u64>,
}

impl Homes {
    /// The expected capacity as swap space, in bytes. A kernel that is told of more finds out only
    /// when it is too late.
    pub(super) fn announced(&self) -> u64 {
        let hold = (self.memory + self.below) / 100 * self.measured.unwrap_or(ASSUMED).max(100);
        self.size.min(hold.next_multiple_of(1 << 20))
    }

    /// A note if the capacity is less than the device.
    pub(super) fn about(&self) -> Option<String> {
        let announced = self.announced();
        let percent = self.measured.unwrap_or(ASSUMED) as f64;
        let known = match self.measured {
            Some(_) => "as measured",
            None => "which is assumed until it is known",
        };
        (announced < self.size).then(|| {
            format!(
                "swap is {} of its {}: what {} of memory{} hold at {:.1} : 1, {known}",
                human(announced),
                human(self.size),
                human(self.memory),
                match self.below {
                    0 => String::new(),
                    below => format!(" and {} of the spill device", human(below)),
                },
                percent / 100.0,
            )
        })
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

/// The error for a volume that a job needs.
pub(super) fn busy(name: &str, job: &Job) -> Error {
    Error::busy(format!("volume `{name}` is that of `ztier run` (process {})", job.pid))
        .hint("end that, and the volume goes with it")
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
    fn swap_is_no_larger_than_what_its_homes_hold() {
        let homes = Homes { size: 4 << 30, memory: 256 << 20, below: 0, measured: None };
        assert_eq!(homes.announced(), 768 << 20);
        assert_eq!(
            homes.about().unwrap(),
            "swap is 768 MiB of its 4 GiB: what 256 MiB of memory hold at 3.0 : 1, which is assumed \
             until it is known"
        );
        let homes = Homes { below: 1 << 30, measured: Some(200), ..homes };
        assert_eq!(homes.announced(), 2560 << 20);
        let said = homes.about().unwrap();
        let text = "256 MiB of memory and 1 GiB of the spill device hold at 2.0 : 1, as measured";
        assert!(said.ends_with(text), "{said}");
        let homes = Homes { size: 1 << 30, ..homes };
        assert_eq!((homes.announced(), homes.about()), (1 << 30, None));
        // Compressed data may take more than its size, but a page never counts as more than a page.
        let homes = Homes { size: 1 << 30, memory: 64 << 20, below: 0, measured: Some(90) };
        assert_eq!(homes.announced(), 64 << 20);
    }

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

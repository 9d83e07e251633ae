//! Makes a volume from its plan.
//!
//! Invariant: a volume that is swap is ready to carry swap before it is served.

use super::evicted;
use super::log;
use super::memory_holder::Kept;
use super::opening::Opening;
use super::respill::spill_device;
use crate::config::log::LogPlan;
use crate::config::{Exclusive, Paths, Plan, Usage, machine, plan, size};
use crate::device::{self, LogControl, Sector, Serving, Volume};
use crate::error::{Error, Result};
use crate::log::Accepted;
use crate::media::Memory;
use std::path::Path;
use std::sync::Arc;

/// A new volume, and notes for the user.
pub(super) struct Made {
    pub volume: Arc<dyn Serving>,
    pub notes: Vec<String>,
    /// Why its memory is not locked; `None` if it is.
    pub unlocked: Option<String>,
    /// The losses with which its log was opened.
    pub accepted: Accepted,
}

impl Made {
    fn new(volume: Arc<dyn Serving>, notes: Vec<String>) -> Self {
        Self { volume, notes, unlocked: None, accepted: Accepted::default() }
    }
}

/// What a volume is made from, beside its plan.
pub(super) struct Origin<'a> {
    pub paths: &'a Paths,
    pub kept: &'a Kept,
    /// The session that must have had a volume in a store last; `None`: any.
    pub after: Option<String>,
}

/// Makes the volume, with the memory that was kept of it.
///
/// # Errors
/// A drive is not what the plan says, or the machine refuses memory.
pub(super) fn create(plan: &Plan, origin: &Origin<'_>, progress: &dyn Fn(&str)) -> Result<Made> {
    if plan.exclusive == Exclusive::On {
        evicted::available().map_err(|e| e.hint("give --exclusive auto, or see ztier doctor"))?;
    }
    let mut made = create_anew(plan, origin, progress)?;
    if let Some(memory) = made.volume.in_memory() {
        // The volume is usable without recompression.
        let recompress = memory.set_recompress(plan.recompress);
        made.notes.extend(recompress.err().map(|e| e.to_string()));
        if matches!(plan.usage, Some(Usage::Swap { .. })) {
            // The machine may swap to the device as soon as it is served.
            memory.carry_swap(true)?;
        }
    }
    Ok(made)
}

fn create_anew(plan: &Plan, origin: &Origin<'_>, progress: &dyn Fn(&str)) -> Result<Made> {
    let Origin { paths, kept, .. } = *origin;
    if let Some(log) = &plan.log {
        return open_log(plan, log, origin, progress);
    }
    if let Some(place) = plan.backing.as_ref().filter(|place| device::is_store(place)) {
        return in_store(plan, place, origin, progress);
    }
    if let Some(backing) = &plan.backing {
        let limits = (plan.ram_limit_bytes, machine::memory_bytes());
        let (volume, given_up) = device::PassthroughVolume::open(
            backing,
            &kept.memory,
            &paths.state,
            limits,
            plan.abandon_log,
        )?;
        return Ok(Made::new(volume, given_up.into_iter().collect()));
    }
    let (memory, most) = (&kept.memory, kept.manifest.ram_limit_max_bytes);
    let options = device::Options {
        size: plan.size_bytes,
        ram_limit: plan.ram_limit_bytes,
        ram_limit_max: most,
        segment: plan.segment_bytes,
        algorithm: plan.algorithm,
        // Memory that carries swap must not be swapped out itself.
        lock_memory: carries_swap(plan),
    };
    let label = device::LabelCopy::of(memory)?;
    let below = spill(plan, memory, &label)?;
    let large = too_large(plan, below.as_ref());
    let gone = below.is_none() && plan.spill.as_ref().is_some_and(|spill| spill.gone);
    let volume = match gone {
        true => Volume::create_without_spill(&options, memory)?,
        false => Volume::create_over(&options, memory, below)?,
    };
    volume.keep_label(label);
    let notes = large.into_iter().chain(lost_below(&volume)).collect();
    // A user may give any other block device to swapon. If memory can't be locked, the volume still
    // works for other uses.
    let may_carry = plan.export.is_block_device() && !options.lock_memory;
    let refused = if may_carry { volume.lock_memory().err() } else { None };
    let unlocked = refused.map(|e| format!("memory is not locked: {e}"));
    if let Some(why) = &unlocked {
        log::line(why);
    }
    Ok(Made { unlocked, ..Made::new(volume, notes) })
}

/// How to open the store of a volume.
fn store_options(plan: &Plan, place: &Path, origin: &Origin<'_>) -> device::StoreOptions {
    device::StoreOptions {
        place: place.to_owned(),
        size: plan.size_bytes,
        owner: owner(&plan.name, origin.paths),
        force: plan.take_over,
        after: origin.after.clone(),
        algorithm: plan.algorithm,
        waiting_max: plan::store_waiting_bytes() as usize,
    }
}

/// Takes over a volume in a store.
fn in_store(
    plan: &Plan,
    place: &Path,
    origin: &Origin<'_>,
    progress: &dyn Fn(&str),
) -> Result<Made> {
    let options = store_options(plan, place, origin);
    let limits = (plan.ram_limit_bytes, machine::memory_bytes());
    let opening = Opening::new(progress);
    let heard = |read| opening.objects(read);
    let (memory, state) = (&origin.kept.memory, &origin.paths.state);
    let volume = device::PassthroughVolume::in_store(&options, memory, state, limits, &heard)?;
    Ok(Made::new(volume, Vec::new()))
}

/// The name of this daemon as an owner. While a daemon holds the volume's lock in this run
/// directory since this boot, no other one has that name.
pub(super) fn owner(volume: &str, paths: &Paths) -> String {
    let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let host = rustix::system::uname();
    format!(
        "{volume} on {} ({}, boot {})",
        host.nodename().to_string_lossy(),
        paths.run.display(),
        boot.get(..8).unwrap_or_default()
    )
}

/// The logical sector of the volume: as the plan says, or that of its content.
///
/// # Errors
/// The backing store can't be opened.
pub(super) fn sector(plan: &Plan, volume: &dyn Serving) -> Result<Sector> {
    match (plan.sector_bytes, &plan.log) {
        (None, Some(log)) if !plan.is_in_store() => {
            Ok(device::sector::of_volume(volume, &log.backing)?.0)
        }
        _ => Ok(plan.sector()?.0),
    }
}

fn spill(
    plan: &Plan,
    memory: &Memory,
    label: &device::LabelCopy,
) -> Result<Option<device::SpillTo>> {
    let Some(spill) = &plan.spill else { return Ok(None) };
    let opened = spill_device(plan, spill, spill.wipe).open(memory, label);
    match (opened, spill.gone && memory.is_inherited()) {
        (opened, false) => opened.map(Some),
        (Err(_), true) => Ok(None),
        (Ok(_), true) => Err(Error::busy(format!(
            "the spill device {} is there, with what was spilled",
            spill.device.display()
        ))
        .hint("go on with it: leave out --discard-spill")),
    }
}

/// A note if blocks were given up with a spill device.
fn lost_below(volume: &Volume) -> Option<String> {
    let lost = volume.lost_below();
    (lost > 0).then(|| {
        format!(
            "{lost} blocks were only on the spill device, and are lost: reading them fails until \
             they are written"
        )
    })
}

/// A note if the device is larger than the data that it can be expected to hold. For swap,
/// `Homes::about` has the note.
fn too_large(plan: &Plan, below: Option<&device::SpillTo>) -> Option<String> {
    let most = plan.ram_auto.map_or(plan.ram_limit_bytes, |bounds| bounds.max_bytes);
    let slots = below.map_or(0, |below| u64::from(below.slots));
    let held = device::held_in_full(most.saturating_sub(plan.limits().least));
    let homes = held + slots * u64::from(plan.segment_bytes);
    let (homes_of, least) = match below {
        Some(_) => ("memory and spill device together hold", homes * 2),
        None if matches!(plan.usage, Some(Usage::Swap { .. })) => return None,
        None => ("its memory holds at most", homes),
    };
    let percent = (u128::from(homes) * 100 / u128::from(plan.size_bytes.max(1))) as u64;
    (plan.size_bytes > least).then(|| {
        format!(
            "its size is {}, and {homes_of} {}: it is full before its end unless data shrinks to \
             {percent} %",
            size::human(plan.size_bytes),
            size::human(homes)
        )
    })
}

fn carries_swap(plan: &Plan) -> bool {
    matches!(plan.usage, Some(Usage::Swap { forced: false, .. }))
}

fn open_log(
    plan: &Plan,
    log: &LogPlan,
    origin: &Origin<'_>,
    progress: &dyn Fn(&str),
) -> Result<Made> {
    let (paths, memory) = (origin.paths, &origin.kept.memory);
    let (drives, state) = ((log.log.clone(), log.backing.clone()), paths.state.clone());
    let pair = device::Pair {
        wipe: log.wipe,
        moved: log.moved,
        abandon: log.abandon,
        accept_changed: log.accept_changed,
        accept_older: log.accept_older,
        accepted: log.accepted.clone(),
        ..device::Pair::new(drives.0, drives.1, plan.segment_bytes, state)
    };
    let options = device::LogOptions {
        algorithm: plan.algorithm,
        sync: log.sync,
        sync_remote: log.sync_remote,
        policy: log.policy(),
        accept_loss: log.accept_loss,
        ram_limit: plan.ram_limit_bytes,
        ram_limit_max: machine::memory_bytes(),
        log: crate::log::Options {
            memory: LogPlan::waiting_bytes(),
            idle_ms: log.commit_interval_ms,
            keep_percent: log.keep_percent,
            ..crate::log::Options::default()
        },
    };
    let opening = Opening::new(progress);
    let steps = |step| opening.at(step);
    let device::Opened { volume, notes } = if plan.is_in_store() {
        let store = store_options(plan, &log.backing, origin);
        pair.open_in_store(&store, options, memory, (&steps, &|read| opening.objects(read)))?
    } else {
        pair.open(options, memory, &steps)?
    };
    log::line(&volume.report().to_string());
    notes.iter().for_each(|note| log::line(note));
    let report = volume.report();
    let accepted = report.accepted.clone();
    let gone = !report.missing.is_empty() || report.unread > 0;
    let lost = gone.then(|| format!("what was lost is given up: {report}"));
    if log.accept_loss {
        volume.note_loss()?;
    }
    let notes = notes.into_iter().chain(lost.filter(|_| log.accept_loss)).collect();
    Ok(Made { accepted, ..Made::new(volume, notes) })
}

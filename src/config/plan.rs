//! A volume's settings, resolved: every default filled in, every limit checked.

use super::exclusive::Exclusive;
use super::export::{Export, Kind};
use super::limit::{Bounds, Given, Range};
use super::log::LogPlan;
use super::machine;
use super::name;
use super::paths::{Paths, full};
use super::settings::Settings;
use super::size::{Amount, exact, human};
use super::usage::{self, Job, Usage};
use crate::BLOCK_SIZE;
use crate::device::{self, Algorithm, Recompress, Sector};
use crate::error::{Error, Result};
use crate::export::buffers;
use crate::log::Accepted;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// The largest device, in bytes.
pub const LARGEST_SIZE: u64 = 16 << 40;
/// The smallest segment, in bytes.
pub const SMALLEST_SEGMENT: u32 = 32 << 10;
/// The largest segment, in bytes.
pub const LARGEST_SEGMENT: u32 = 16 << 20;
/// The default segment, in bytes.
pub const DEFAULT_SEGMENT: u32 = 1 << 20;
/// The fewest threads that serve a volume whose misses and writes wait for a slow drive: with
/// fewer, a few of those would hold up hits in memory.
const WAITING_THREADS: u32 = 8;
/// The most threads that serve one volume.
pub const MOST_THREADS: u32 = 256;
const _: () = assert!(cfg!(shuttle) || MOST_THREADS as usize <= device::THREADS_MAX);
/// Bytes of memory that a daemon takes outside of `ram-limit`: its program and stacks, and answers
/// to commands.
const HEADROOM: u64 = 8 << 20;
/// Most bytes of writes that wait for a store, and the part of memory that they are at most. While
/// they are sent they take as much again.
const STORE_WAITING: u64 = 64 << 20;
const STORE_WAITING_PART: u64 = 16;
/// The longest path of a Unix socket, in bytes.
const LONGEST_SOCKET: usize = 107;

/// A volume as it will be made.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Plan {
    /// A name that [`name::check`] let through.
    pub name: String,
    /// Size of the device in bytes: a multiple of 4096, up to [`LARGEST_SIZE`].
    pub size_bytes: u64,
    /// Limit on all memory of the volume, in bytes; of one with a backing store, on the memory for
    /// copies of its blocks.
    pub ram_limit_bytes: u64,
    /// The bounds of a limit that adapts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ram_auto: Option<Bounds>,
    /// Bytes in a segment: a power of two, [`SMALLEST_SEGMENT`] to [`LARGEST_SEGMENT`].
    pub segment_bytes: u32,
    /// The logical sector of the device; `None`: making the volume decides.
    #[serde(default = "sector_of_old")]
    pub sector_bytes: Option<Sector>,
    /// How blocks are compressed.
    pub algorithm: Algorithm,
    /// When cold data is recompressed, on a volume in memory.
    #[serde(default)]
    pub recompress: Recompress,
    /// How the volume is offered.
    pub export: Export,
    /// Threads that serve requests, 1 to [`MOST_THREADS`].
    pub threads: u32,
    /// The durable log, for a volume that has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub log: Option<LogPlan>,
    /// The drive of a passthrough volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub backing: Option<PathBuf>,
    /// Whether the read cache holds what the page cache drops, and not what that has.
    #[serde(default)]
    pub exclusive: Exclusive,
    /// Take a volume in a store from an owner that may be alive.
    #[serde(default)]
    pub take_over: bool,
    /// Go on without a log that is gone, with the backing store alone.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub abandon_log: bool,
    /// The spill device, which takes the coldest data when memory is full.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spill: Option<SpillPlan>,
    /// How a volume in memory is used: as swap or as a file system.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Usage>,
    /// The program that `ztier run` made the volume for; the volume ends with it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub job: Option<Job>,
    /// The program that is run for each event of the volume.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_event: Option<PathBuf>,
}

/// The spill device of a plan.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SpillPlan {
    /// The device.
    pub device: PathBuf,
    /// Bytes that may be written in a day; 0: no limit.
    pub daily_bytes: u64,
    /// Overwrite what is on the device.
    pub wipe: bool,
    /// Go on without the device, which is gone, and what only it held.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub gone: bool,
}

impl Plan {
    /// Checks `settings` and fills in what they leave out. `kind` is how the volume is offered.
    ///
    /// # Errors
    /// One line (usage) that names the value, its limit, and what to give instead.
    pub fn resolve(volume: &str, settings: &Settings, kind: Kind, paths: &Paths) -> Result<Self> {
        name::check(volume).map_err(Error::usage)?;
        let on_event = usage::absolute("on-event", settings.on_event.as_deref())?;
        let plan = match settings.backing.is_some() || settings.log.is_some() {
            true => Self::resolve_logged(volume, settings, kind, paths)?,
            false => Self::resolve_volatile(volume, settings, kind, paths)?,
        };
        let plan = Self { on_event, ..plan };
        plan.check_memory().map(|()| plan)
    }

    /// Resolves a volume in memory.
    fn resolve_volatile(
        volume: &str,
        settings: &Settings,
        kind: Kind,
        paths: &Paths,
    ) -> Result<Self> {
        refuse_of_log(settings)?;
        let size = settings.size.ok_or_else(|| {
            Error::usage(format!("volume `{volume}` has no size"))
                .hint("add --size, like --size 3G")
        })?;
        let size_bytes = size_of(size);
        check_size(size_bytes)?;
        let segment_bytes = check_segment(settings)?;
        let threads = check_threads(settings, 2)?;
        let buffers = buffers(kind, threads);
        let range =
            Range::in_memory(size_bytes, segment_bytes, settings.spill_drive().is_some(), buffers);
        let limit = Given::of(settings).resolve(&range)?;
        let spill = spill(settings)?;
        let export = export(volume, settings, kind, paths)?;
        Ok(Self {
            segment_bytes,
            recompress: recompress(settings),
            spill,
            usage: usage::resolve(settings, &export)?,
            ..Self::base(volume, settings, (size_bytes, limit), export, threads)
        })
    }

    /// A plan with the settings that all volumes have, and nothing of any one kind. It has the
    /// given size and limit.
    fn base(
        volume: &str,
        settings: &Settings,
        (size_bytes, (ram_limit_bytes, ram_auto)): (u64, (u64, Option<Bounds>)),
        export: Export,
        threads: u32,
    ) -> Self {
        Self {
            name: volume.to_owned(),
            size_bytes,
            ram_limit_bytes,
            ram_auto,
            segment_bytes: DEFAULT_SEGMENT,
            sector_bytes: settings.sector,
            algorithm: settings.algorithm.unwrap_or(Algorithm::Lz4),
            recompress: Recompress::Off,
            export,
            threads,
            log: None,
            backing: None,
            exclusive: Exclusive::Off,
            take_over: false,
            abandon_log: false,
            spill: None,
            usage: None,
            job: None,
            on_event: None,
        }
    }

    /// The limits that the volume can have.
    pub fn limits(&self) -> Range {
        if !self.is_volatile() {
            return Range::of_copies();
        }
        let kind = match self.export {
            Export::Ublk => Kind::Ublk,
            Export::Fuse => Kind::Fuse,
            Export::Nbd { .. } => Kind::Nbd,
        };
        let (buffers, spills) = (buffers(kind, self.threads), self.spill.is_some());
        Range::in_memory(self.size_bytes, self.segment_bytes, spills, buffers)
    }

    /// Checks the limit on memory, for each role: the volume works with it, and there is enough
    /// memory for it beside what daemon and log take.
    ///
    /// # Errors
    /// One line (usage) with the nearest limit that would do.
    pub fn check_memory(&self) -> Result<()> {
        let (limit, least) = (self.ram_limit_bytes, self.limits().least);
        if !self.is_volatile() {
            device::check_cache_limit(limit)?;
        } else if limit < least {
            return Err(below_minimum(limit, least, self.size_bytes, self.segment_bytes));
        }
        let (memory, log) = (machine::memory_bytes(), self.log.as_ref());
        let store = if self.is_in_store() { 2 * store_waiting_bytes() } else { 0 };
        let beside = HEADROOM + log.map_or(0, LogPlan::memory_bytes) + store;
        let most = memory.saturating_sub(beside);
        if limit <= most {
            return Ok(());
        }
        let from = machine::cgroup_limit().filter(|group| group.bytes == memory);
        let from = from.map_or(String::new(), |group| format!(" ({})", group.file.display()));
        Err(Error::usage(format!(
            "ram-limit {} is more than the {} that are left of {} of memory{from}: {} {}",
            exact(limit),
            human(most),
            human(memory),
            if log.is_some() { "daemon and log take" } else { "the daemon takes" },
            human(beside)
        ))
        .hint("give less, like 10%"))
    }

    /// Whether the volume is in a store of objects.
    pub fn is_in_store(&self) -> bool {
        self.backing_store().is_some_and(device::is_store)
    }

    /// The drive that is the backing store.
    pub fn backing_store(&self) -> Option<&Path> {
        let backing = self.log.as_ref().map(|log| &log.backing).or(self.backing.as_ref());
        backing.map(PathBuf::as_path)
    }

    /// The logical sector that the device will have, and why, as far as that is known before the
    /// volume is made.
    ///
    /// # Errors
    /// The backing store can't be opened.
    pub fn sector(&self) -> Result<(Sector, &'static str)> {
        match (self.sector_bytes, self.backing_store()) {
            (Some(sector), _) => Ok((sector, "asked for")),
            (None, Some(store)) if device::is_store(store) => Ok(device::sector::IN_MEMORY),
            (None, Some(backing)) => device::sector::of_drive(backing),
            (None, None) => Ok(device::sector::IN_MEMORY),
        }
    }

    /// Whether all that the volume holds is in memory.
    pub fn is_volatile(&self) -> bool {
        self.log.is_none() && self.backing.is_none()
    }

    /// Clears the settings that were meant once, for the drives as they were when the volume was
    /// made, not for those that the next daemon finds. The losses in `accepted` were accepted when
    /// its log was opened.
    pub fn made(&mut self, accepted: Accepted) {
        if let Some(log) = &mut self.log {
            log.opened(accepted);
        }
        self.spill = self.spill.take().filter(|spill| !spill.gone);
        if let Some(spill) = &mut self.spill {
            spill.wipe = false;
        }
        (self.take_over, self.abandon_log) = (false, false);
    }

    /// The same volume, used as `settings` say.
    ///
    /// # Errors
    /// The settings contradict each other.
    pub fn with_use(&self, settings: &Settings) -> Result<Self> {
        Ok(Self { usage: usage::resolve(settings, &self.export)?, ..self.clone() })
    }

    /// The same volume with a log on another drive, or none.
    ///
    /// # Errors
    /// It has no backing store.
    pub fn with_log(&self, log: Option<(&Path, bool)>) -> Result<Self> {
        let backing = self.backing_store().ok_or_else(|| {
            Error::usage(format!(
                "volume `{}` has no backing store that a log could be for",
                self.name
            ))
        })?;
        let plan = Self { log: None, backing: None, ..self.clone() };
        let Some((log, wipe)) = log else {
            return Ok(Self { backing: Some(backing.to_owned()), ..plan });
        };
        let before =
            self.log.clone().unwrap_or_else(|| LogPlan::new(log.into(), backing.to_owned()));
        let mut next = LogPlan { log: log.into(), ..before };
        next.opened(Accepted::default());
        next.wipe = wipe;
        Ok(Self { log: Some(next), ..plan })
    }

    /// Resolves a volume with a backing store, with or without a log.
    fn resolve_logged(
        volume: &str,
        settings: &Settings,
        kind: Kind,
        paths: &Paths,
    ) -> Result<Self> {
        let (log, backing) = match (settings.log_drive(), &settings.backing) {
            (log, Some(store)) if device::is_store(store) => {
                return Self::resolve_in_store(volume, settings, kind, (log, store, paths));
            }
            (Some(log), Some(backing)) => (full(log)?, full(backing)?),
            (None, Some(backing)) => {
                return Self::resolve_passthrough(volume, settings, kind, (full(backing)?, paths));
            }
            (_, None) => {
                return Err(Error::usage("--log needs a backing store")
                    .hint("give --backing, the slow drive that the log stands before"));
            }
        };
        if settings.size.is_some() {
            let text = "a volume with a log has the size of its backing store";
            return Err(Error::usage(text).hint("leave out size"));
        }
        usage::refuse_with_log(settings)?;
        refuse_of_spill(settings)?;
        let remote = settings.sync_remote == Some(true);
        if settings.max_unsent.is_some() || remote {
            let key = if remote { "sync-remote" } else { "max-unsent" };
            return Err(Error::usage(format!("{key} is for a log before a store"))
                .hint(format!("leave out {key}")));
        }
        let plan = LogPlan::of(settings, log.clone(), backing.clone())?;
        let segment_bytes = check_segment(settings)?;
        let pair = device::Pair::new(log, backing, segment_bytes, paths.state.clone());
        let limit = cache_limit(settings)?;
        let size_bytes = pair.size()?;
        let exclusive = exclusive(settings, kind)?;
        let export = export(volume, settings, kind, paths)?;
        let threads = check_threads(settings, 2)?;
        Ok(Self {
            exclusive,
            segment_bytes,
            log: Some(plan),
            ..Self::base(volume, settings, (size_bytes, limit), export, threads)
        })
    }

    /// Resolves a passthrough volume.
    fn resolve_passthrough(
        volume: &str,
        settings: &Settings,
        kind: Kind,
        (backing, paths): (PathBuf, &Paths),
    ) -> Result<Self> {
        refuse_of_log(settings)?;
        refuse_of_spill(settings)?;
        usage::refuse_with_log(settings)?;
        if settings.size.is_some() || settings.segment.is_some() || settings.algorithm.is_some() {
            return Err(Error::usage(
                "with --backing alone a volume has the size of that drive, and stores nothing itself",
            )
            .hint("leave out size, segment and algorithm"));
        }
        let limit = cache_limit(settings)?;
        let size_bytes = device::PassthroughVolume::size_of(&backing)?;
        let exclusive = exclusive(settings, kind)?;
        let export = export(volume, settings, kind, paths)?;
        let threads = check_threads(settings, WAITING_THREADS)?;
        Ok(Self {
            backing: Some(backing),
            exclusive,
            ..Self::base(volume, settings, (size_bytes, limit), export, threads)
        })
    }

    /// Resolves a volume in a store of objects.
    fn resolve_in_store(
        volume: &str,
        settings: &Settings,
        kind: Kind,
        (log, store, paths): (Option<&Path>, &Path, &Paths),
    ) -> Result<Self> {
        if settings.log.is_none() {
            let text = "without a log, each flush of a volume in a store waits for that store";
            return Err(Error::usage(text)
                .hint("give --log DEV on a fast local disk, or --log none if that is meant"));
        }
        if log.is_none() {
            refuse_of_log(&Settings { log: None, ..settings.clone() })?;
        }
        refuse_of_spill(settings)?;
        usage::refuse_with_log(settings)?;
        let size_bytes = match (settings.size, device::store_size(store)?) {
            (Some(Amount::Bytes(asked)), Some(size)) if asked != size => {
                return Err(Error::usage(format!(
                    "the volume in {} has {}, not {}",
                    store.display(),
                    exact(size),
                    exact(asked)
                ))
                .hint("leave out --size"));
            }
            (_, Some(size)) => size,
            (Some(Amount::Bytes(size)), None) => size,
            (_, None) => {
                return Err(Error::usage(format!("{} has no volume yet", store.display()))
                    .hint("give its size, like --size 1T"));
            }
        };
        check_size(size_bytes)?;
        let limit = cache_limit(settings)?;
        let log = match log {
            Some(log) => Some(LogPlan::of(settings, full(log)?, store.to_owned())?),
            None => None,
        };
        let exclusive = exclusive(settings, kind)?;
        let (segment_bytes, least) = match &log {
            Some(_) => (check_segment(settings)?, 2),
            None => (DEFAULT_SEGMENT, WAITING_THREADS),
        };
        let export = export(volume, settings, kind, paths)?;
        let threads = check_threads(settings, least)?;
        Ok(Self {
            exclusive,
            segment_bytes,
            backing: log.is_none().then(|| store.to_owned()),
            log,
            ..Self::base(volume, settings, (size_bytes, limit), export, threads)
        })
    }
}

/// Most bytes of writes that wait for a store.
pub fn store_waiting_bytes() -> u64 {
    STORE_WAITING.min(machine::memory_bytes() / STORE_WAITING_PART)
}

/// The sector of all volumes from before it was a setting.
fn sector_of_old() -> Option<Sector> {
    Some(Sector::Block)
}

/// Bytes of memory that a front-end takes, as far as that is known beforehand: NBD connections come
/// and go, and most are small.
fn buffers(kind: Kind, threads: u32) -> u64 {
    match kind {
        Kind::Ublk => buffers::ublk(threads.into()),
        Kind::Fuse => buffers::fuse(threads.into()),
        Kind::Nbd => 0,
    }
}

/// Bytes of memory that a block device's front-end takes by default, whichever kind it is.
pub fn block_device_buffers() -> u64 {
    let threads = default_threads(2);
    buffers(Kind::Ublk, threads).max(buffers(Kind::Fuse, threads))
}

/// The limit on copies of a backing store's blocks.
fn cache_limit(settings: &Settings) -> Result<(u64, Option<Bounds>)> {
    Given::of(settings).resolve(&Range::of_copies())
}

/// Whether the cache is to hold what the page cache drops. Only this machine's tells.
fn exclusive(settings: &Settings, kind: Kind) -> Result<Exclusive> {
    match (kind, settings.exclusive.unwrap_or_default()) {
        (Kind::Nbd, Exclusive::On) => {
            Err(Error::usage("exclusive needs a block device of this machine, not NBD")
                .hint("leave out exclusive, or give --export ublk or fuse"))
        }
        (Kind::Nbd, _) => Ok(Exclusive::Off),
        (_, wanted) => Ok(wanted),
    }
}

/// The number of threads; at least `least` of them unless the settings say otherwise.
fn check_threads(settings: &Settings, least: u32) -> Result<u32> {
    let threads = settings.threads.unwrap_or_else(|| default_threads(least));
    if (1..=MOST_THREADS).contains(&threads) {
        return Ok(threads);
    }
    Err(Error::usage(format!("{threads} threads can't serve a volume"))
        .hint(format!("give 1 to {MOST_THREADS}")))
}

fn export(volume: &str, settings: &Settings, kind: Kind, paths: &Paths) -> Result<Export> {
    check_socket(&paths.volume(volume).control, "set ZTIER_RUN_DIR to a shorter path")?;
    match kind {
        Kind::Ublk => return Ok(Export::Ublk),
        Kind::Fuse => return Ok(Export::Fuse),
        Kind::Nbd => {}
    }
    let socket = match &settings.socket {
        Some(path) => full(path)?,
        None => paths.volume(volume).nbd,
    };
    check_socket(&socket, "give a shorter --socket")?;
    if socket == paths.volume(volume).control {
        let text = format!("{} is the control socket of the volume", socket.display());
        return Err(Error::usage(text).hint("give another --socket, like NAME.nbd"));
    }
    let tcp = settings.nbd_listen.iter().flatten().map(|address| address.0).collect();
    Ok(Export::Nbd { socket: Some(socket), tcp, inherited: false })
}

fn check_socket(path: &std::path::Path, hint: &str) -> Result<()> {
    let long = path.as_os_str().len();
    if long <= LONGEST_SOCKET {
        return Ok(());
    }
    Err(Error::usage(format!(
        "socket path {} has {long} bytes, the most is {LONGEST_SOCKET}",
        path.display()
    ))
    .hint(hint))
}

fn default_threads(least: u32) -> u32 {
    let cpus = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cpus).unwrap_or(MOST_THREADS).clamp(least, 16)
}

/// The size of a device in bytes. A share of memory is rounded down to whole blocks.
pub fn size_of(size: Amount) -> u64 {
    match size {
        Amount::Bytes(bytes) => bytes,
        share @ Amount::Percent(_) => {
            share.of(machine::memory_bytes()) / BLOCK_SIZE as u64 * BLOCK_SIZE as u64
        }
    }
}

/// Checks the size of a device in bytes.
///
/// # Errors
/// When it is 0, not a multiple of 4096, or above [`LARGEST_SIZE`].
pub fn check_size(bytes: u64) -> Result<()> {
    let block = BLOCK_SIZE as u64;
    if bytes == 0 {
        return Err(Error::usage("size 0 makes no device").hint("give at least 4096"));
    }
    if bytes > LARGEST_SIZE {
        return Err(Error::usage(format!(
            "size {bytes} is more than can be addressed, which is {LARGEST_SIZE} (16T)"
        ))
        .hint("give less"));
    }
    if !bytes.is_multiple_of(block) {
        let (below, above) = (bytes / block * block, bytes.next_multiple_of(block));
        let hint =
            if below == 0 { format!("give {above}") } else { format!("give {below} or {above}") };
        return Err(Error::usage(format!("size {bytes} is not a multiple of 4096")).hint(hint));
    }
    Ok(())
}

/// Refuses settings of a log: a volume in memory writes nothing back, and is never durable.
fn refuse_of_log(settings: &Settings) -> Result<()> {
    if settings.exclusive == Some(Exclusive::On) && settings.backing.is_none() {
        return Err(Error::usage("exclusive is for a cache of a backing store")
            .hint("leave out exclusive, or give --backing"));
    }
    let given = [
        ("sync", settings.sync == Some(true)),
        ("writeback", settings.writeback.is_some()),
        ("writeback-threshold", settings.writeback_threshold.is_some()),
        ("writeback-window", settings.writeback_window.is_some()),
        ("writeback-idle", settings.writeback_idle.is_some()),
        ("commit-interval", settings.commit_interval.is_some()),
        ("max-unsent", settings.max_unsent.is_some()),
        ("sync-remote", settings.sync_remote == Some(true)),
        ("log-cache", settings.log_cache.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((key, _)) => Err(Error::usage(format!("{key} is for a volume with a log"))
            .hint(format!("leave out {key}, or give --backing and --log"))),
    }
}

/// When cold data is recompressed; with algorithm `none` only on request.
fn recompress(settings: &Settings) -> Recompress {
    settings.recompress.unwrap_or(match settings.algorithm {
        Some(Algorithm::None) => Recompress::Off,
        _ => Recompress::Idle,
    })
}

/// Refuses settings of spilling and recompressing: a volume with a backing store does neither.
fn refuse_of_spill(settings: &Settings) -> Result<()> {
    if settings.recompress.is_some() {
        return Err(Error::usage("recompress is for a volume in memory alone")
            .hint("leave out recompress, or --backing and --log"));
    }
    if settings.spill_drive().is_none() && settings.spill_daily.is_none() {
        return Ok(());
    }
    Err(Error::usage("spill is for a volume in memory alone")
        .hint("leave out spill, or --backing and --log"))
}

fn spill(settings: &Settings) -> Result<Option<SpillPlan>> {
    let daily_bytes = spill_daily(settings)?.unwrap_or(0);
    let Some(device) = settings.spill_drive() else {
        return match settings.spill_daily {
            Some(_) => Err(Error::usage("spill-daily is for a volume with a spill device")
                .hint("leave out spill-daily, or give --spill")),
            None => Ok(None),
        };
    };
    Ok(Some(SpillPlan { device: full(device)?, daily_bytes, wipe: false, gone: false }))
}

/// Bytes that may be spilled a day, where `settings` say so; 0: no limit.
///
/// # Errors
/// It is a share of something.
pub fn spill_daily(settings: &Settings) -> Result<Option<u64>> {
    match settings.spill_daily {
        Some(Amount::Percent(_)) => Err(Error::usage("spill-daily is a number of bytes, like 20G")),
        Some(Amount::Bytes(bytes)) => Ok(Some(bytes)),
        None => Ok(None),
    }
}

fn check_segment(settings: &Settings) -> Result<u32> {
    let Some(segment) = settings.segment else { return Ok(DEFAULT_SEGMENT) };
    let wrong = |why: &str| {
        Error::usage(format!("segment {segment} {why}"))
            .hint("give a power of two from 32K to 16M, like 1M")
    };
    let Amount::Bytes(bytes) = segment else {
        return Err(wrong("is a share, not a number of bytes"));
    };
    if !(u64::from(SMALLEST_SEGMENT)..=u64::from(LARGEST_SEGMENT)).contains(&bytes) {
        return Err(wrong("is outside 32K to 16M"));
    }
    if !bytes.is_power_of_two() {
        return Err(wrong("is not a power of two"));
    }
    u32::try_from(bytes).map_err(|_| wrong("is outside 32K to 16M"))
}

fn below_minimum(limit: u64, least: u64, size: u64, segment: u32) -> Error {
    let least = least.next_multiple_of(1 << 10);
    Error::usage(format!(
        "memory limit {limit} ({}) is below the minimum for {} in segments of {}",
        human(limit),
        human(size),
        exact(u64::from(segment)),
    ))
    .hint(format!("give at least {}, or a smaller --segment", exact(least)))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::config::{Amount, Limit};

    fn paths() -> Paths {
        Paths { run: "/run/x".into(), config: "/etc/x".into(), state: "/var/x".into() }
    }

    fn sized(bytes: u64) -> Settings {
        Settings { size: Some(Amount::Bytes(bytes)), ..Settings::default() }
    }

    #[test]
    fn defaults() {
        let plan = Plan::resolve("x", &sized(3 << 30), Kind::Nbd, &paths()).unwrap();
        assert_eq!(plan.segment_bytes, 1 << 20);
        assert_eq!(plan.algorithm, Algorithm::Lz4);
        assert_eq!(plan.ram_limit_bytes, plan.limits().default);
        let socket = Some(PathBuf::from("/run/x/x.nbd"));
        assert_eq!(plan.export, Export::Nbd { socket, tcp: vec![], inherited: false });
        let settings = Settings { socket: Some("/run/x/x.sock".into()), ..sized(4096) };
        let refused = Plan::resolve("x", &settings, Kind::Nbd, &paths()).unwrap_err();
        assert!(refused.to_string().contains("is the control socket of the volume"), "{refused}");
        let fuse = Plan::resolve("x", &sized(4096), Kind::Fuse, &paths()).unwrap();
        assert_eq!(fuse.export, Export::Fuse);
        assert!(fuse.ram_limit_bytes >= device::min_ram_limit(4096, 1 << 20));
    }

    #[test]
    fn limits_are_named() {
        for (settings, error) in [
            (Settings::default(), "volume `x` has no size; add --size, like --size 3G"),
            (sized(0), "size 0 makes no device; give at least 4096"),
            (sized(100), "size 100 is not a multiple of 4096; give 4096"),
            (sized(5000), "size 5000 is not a multiple of 4096; give 4096 or 8192"),
            (
                sized((16 << 40) + 4096),
                "size 17592186048512 is more than can be addressed, which is 17592186044416 (16T); give less",
            ),
            (
                Settings { sync: Some(true), ..sized(4096) },
                "sync is for a volume with a log; leave out sync, or give --backing and --log",
            ),
            (
                Settings { writeback_threshold: Some(10), ..sized(4096) },
                "writeback-threshold is for a volume with a log; leave out writeback-threshold, or give --backing and --log",
            ),
            (
                Settings { spill_daily: Some(Amount::Bytes(1)), ..sized(4096) },
                "spill-daily is for a volume with a spill device; leave out spill-daily, or give --spill",
            ),
            (
                Settings { threads: Some(0), ..sized(4096) },
                "0 threads can't serve a volume; give 1 to 256",
            ),
            (
                Settings { segment: Some(Amount::Bytes(48 << 10)), ..sized(4096) },
                "segment 48K is not a power of two; give a power of two from 32K to 16M, like 1M",
            ),
            (
                Settings { segment: Some(Amount::Bytes(32 << 20)), ..sized(4096) },
                "segment 32M is outside 32K to 16M; give a power of two from 32K to 16M, like 1M",
            ),
        ] {
            let found = Plan::resolve("x", &settings, Kind::Nbd, &paths()).unwrap_err();
            assert_eq!(found.to_string(), error);
            assert_eq!(found.exit_status(), 2);
        }
        let low = Settings { ram_limit: Some(Limit::At(Amount::Bytes(4096))), ..sized(1 << 30) };
        let found = Plan::resolve("x", &low, Kind::Nbd, &paths()).unwrap_err().to_string();
        assert!(found.starts_with("memory limit 4096 (4 KiB) is below the minimum"), "{found}");
        let deep = Paths {
            run: format!("/{}", "d".repeat(110)).into(),
            config: "/".into(),
            state: "/".into(),
        };
        let found = Plan::resolve("x", &sized(4096), Kind::Fuse, &deep).unwrap_err().to_string();
        assert!(found.contains("ZTIER_RUN_DIR"), "{found}");
    }

    #[test]
    fn the_least_limit_that_an_error_names_is_accepted() {
        let low = Settings { ram_limit: Some(Limit::At(Amount::Bytes(1))), ..sized(3 << 30) };
        let found = Plan::resolve("x", &low, Kind::Nbd, &paths()).unwrap_err().to_string();
        let least = found.split("at least ").nth(1).unwrap().split(',').next().unwrap();
        let enough = Settings { ram_limit: Some(least.parse().unwrap()), ..low };
        Plan::resolve("x", &enough, Kind::Nbd, &paths()).unwrap();
    }

    #[test]
    fn what_a_front_end_takes_is_part_of_the_limit() {
        let settings = |limit: Option<u64>| Settings {
            ram_limit: limit.map(|limit| Limit::At(Amount::Bytes(limit))),
            threads: Some(16),
            ..sized(24 << 20)
        };
        let resolve = |limit, kind| Plan::resolve("x", &settings(limit), kind, &paths());
        resolve(Some(24 << 20), Kind::Nbd).unwrap();
        let found = resolve(Some(24 << 20), Kind::Fuse).unwrap_err().to_string();
        assert!(
            found.starts_with("memory limit 25165824 (24 MiB) is below the minimum"),
            "{found}"
        );
        // The default limit is enough.
        let plan = resolve(None, Kind::Fuse).unwrap();
        let beside = device::min_ram_limit(24 << 20, 1 << 20);
        plan.check_memory().unwrap();
        let least = plan.limits().least;
        assert_eq!(least, beside + 16 * 2 * ((1 << 20) + 4096));
        let with = |ram_limit_bytes| Plan { ram_limit_bytes, ..plan.clone() };
        with(least).check_memory().unwrap();
        with(least - 1).check_memory().unwrap_err();
    }
}

//! The thread that fits a volume that carries swap to the machine: what makes the kernel free slots
//! ([`Lever`]) to the use of swap, the emergency reserve to the memory that the machine has. It
//! also warns when memory and swap are nearly full ([`Shortage`]).
//!
//! Invariants: without a look at the machine's memory the reserve is a large one; the thread waits
//! for nothing but ballast.

use super::ballast::{Capacity, Fitting};
use super::hook::{Hook, News};
use super::room::room;
use super::served::Served;
use super::shortage::{Room, Shortage};
use super::signals::Event;
use super::swap_high::SwapHigh;
use crate::BLOCK_SIZE;
use crate::device::{Worker, come_first};
use crate::error::Result;
use crate::limit::Sampler;
use crate::system::usage::{Ballast, swap_with};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::SyncSender;
use std::time::{Duration, Instant};

/// Interval between looks at the machine's memory, and the longest between looks at its swap.
const LOOK: Duration = Duration::from_millis(250);
/// Interval between looks at the room for pages while half of all is free.
const FAR: Duration = Duration::from_secs(1);
/// How long a volume counts as one that refuses pages.
const LATELY: Duration = Duration::from_secs(2);
/// Memory is plenty if this part of it is available, and [`PLENTY`].
const PLENTY_PART: u64 = 4;
/// Bytes; more than programs take between two looks.
const PLENTY: u64 = 1 << 30;

/// What makes the kernel free the slots of pages that are read back.
enum Lever {
    None,
    Ballast(Fitting),
    SwapHigh(SwapHigh),
}

impl Lever {
    /// That of `served`, whose `device` is swap. `ballast` will have the bytes of its ballast.
    fn of(served: &Served, device: PathBuf, when: Ballast, ballast: Arc<AtomicU64>) -> Self {
        let job = served.state.lock().plan.job.clone();
        // A program of `ztier run` is going to swap.
        let early = job.is_some();
        match (when, job.and_then(|job| SwapHigh::of(&job.cgroup))) {
            (Ballast::Off, _) => Self::None,
            (Ballast::Auto, Some(of_group)) => Self::SwapHigh(of_group),
            _ => Self::Ballast(Fitting::new(served.name.clone(), device, (when, early), ballast)),
        }
    }

    /// Fits it to the present use of swap, and ballast to what the volume can hold. Returns the
    /// time until the next look.
    fn step(&mut self, capacity: Capacity) -> Duration {
        match self {
            Self::None => LOOK,
            Self::Ballast(fitting) => fitting.step(capacity),
            Self::SwapHigh(following) => following.step(),
        }
    }
}

/// What other threads read of this one's.
#[derive(Debug)]
struct Seen {
    /// Bytes of the swap area that are ballast.
    ballast: Arc<AtomicU64>,
    /// Bytes of pages for which there is room; [`UNKNOWN`] before the first look.
    room: AtomicU64,
    nearly_full: AtomicBool,
}

/// See [`Seen`].
const UNKNOWN: u64 = u64::MAX;

/// The thread; dropping this ends it, and the ballast.
pub(super) struct SwapThread {
    seen: Arc<Seen>,
    _thread: Worker,
}

impl SwapThread {
    /// Starts the thread for `served`, whose `device` is swap. `on_full` is run when memory and
    /// swap are nearly full, and when that is over.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(
        served: &Arc<Served>,
        device: PathBuf,
        when: Ballast,
        on_full: Option<&Path>,
    ) -> Result<Self> {
        let ballast = Arc::default();
        let mut lever = Lever::of(served, device.clone(), when, Arc::clone(&ballast));
        let seen = Seen { ballast, room: UNKNOWN.into(), nearly_full: false.into() };
        let seen = Arc::new(seen);
        let name = served.name.clone();
        let hook = on_full.map(|program| Hook::start(program.to_owned(), name)).transpose()?;
        let events = served.events.clone();
        let mut machine = Watch::new(device, Arc::clone(&seen), hook, events);
        let thread = Worker::start("ztier-swap", Arc::downgrade(served), move |served, stop| {
            // When swap fills beside busy processors, ballast has to give way in time.
            come_first(true);
            while !stop.load(Ordering::Acquire) {
                if machine.is_due() {
                    let Some(served) = served.upgrade() else { return };
                    machine.look(&served);
                }
                std::thread::park_timeout(lever.step(machine.capacity).min(LOOK));
            }
        })?;
        Ok(Self { seen, _thread: thread })
    }

    /// Bytes of the swap area that are ballast now.
    pub(super) fn ballast_bytes(&self) -> u64 {
        self.seen.ballast.load(Ordering::Acquire)
    }

    /// Bytes of pages for which memory and swap have room, and whether they are nearly full; `None`
    /// while that is unknown.
    pub(super) fn room(&self) -> Option<(u64, bool)> {
        let room = Some(self.seen.room.load(Ordering::Acquire)).filter(|room| *room != UNKNOWN)?;
        Some((room, self.seen.nearly_full.load(Ordering::Acquire)))
    }
}

/// Looks at the memory of the machine, or of the control group of this process, and at its swap.
struct Watch {
    device: PathBuf,
    sampler: Sampler,
    looked: Option<Instant>,
    plenty: bool,
    shortage: Shortage,
    /// Until when there is too much room to look at it.
    far: Option<Instant>,
    /// What the volume could hold at the last look.
    capacity: Capacity,
    /// Writes that it had refused by then, and when the last was seen.
    refused: (u64, Option<Instant>),
    seen: Arc<Seen>,
    hook: Option<Hook>,
    events: SyncSender<Event>,
}

impl Watch {
    fn new(
        device: PathBuf,
        seen: Arc<Seen>,
        hook: Option<Hook>,
        events: SyncSender<Event>,
    ) -> Self {
        Self {
            device,
            sampler: Sampler::of_this_machine(),
            looked: None,
            plenty: false,
            shortage: Shortage::default(),
            far: None,
            capacity: Capacity::default(),
            refused: (0, None),
            seen,
            hook,
            events,
        }
    }

    fn is_due(&self) -> bool {
        self.looked.is_none_or(|looked| looked.elapsed() >= LOOK)
    }

    fn look(&mut self, served: &Served) {
        self.looked = Some(Instant::now());
        let machine = self.sampler.memory();
        self.plenty = machine
            .available_bytes
            .is_some_and(|bytes| is_plenty(bytes, machine.total_bytes, self.plenty));
        if let Some(memory) = served.volume.in_memory() {
            memory.memory_is_plenty(self.plenty);
        }
        let far = self.far.is_some_and(|until| Instant::now() < until);
        if let Some(available) = machine.available_bytes.filter(|_| !far) {
            self.warn(served, (machine.total_bytes, available));
        }
    }

    /// What the volume can hold now, and whether it has refused pages lately.
    fn capacity_of(&mut self, served: &Served) -> Capacity {
        // A change of a limit has this lock while it spills, for seconds in which ballast has to go
        // on giving way.
        let Some(state) = served.state.try_lock() else { return self.capacity };
        let stats = served.volume.stats();
        let room = room(&stats, &state.plan);
        drop(state);
        // Blocks of slots that were freed are overwritten: they count as room.
        let stored = stats.orig_data_bytes + stats.blocks_same * BLOCK_SIZE as u64;
        let now = Instant::now();
        let (refusals, last) = self.refused;
        let last = if stats.no_space > refusals { Some(now) } else { last };
        self.refused = (stats.no_space, last);
        Capacity {
            holds: room.map(|room| room.saturating_add(stored)),
            refuses: last.is_some_and(|last| now < last + LATELY),
        }
    }

    /// Says when memory and swap are nearly full, and when they are no longer.
    fn warn(&mut self, served: &Served, memory: (u64, u64)) {
        let swap = swap_with(&self.device);
        if let Some(memory) = served.volume.in_memory() {
            memory.swap_rests(swap.is_none());
        }
        let Some(swap) = swap else { return };
        self.capacity = self.capacity_of(served);
        let ballast = self.seen.ballast.load(Ordering::Acquire);
        let used = swap.used.saturating_sub(ballast);
        let takes = self.capacity.holds.map(|holds| holds.saturating_sub(used));
        let room = Room::of(memory, &swap, (ballast, takes));
        let full = self.shortage.look(room, self.sampler.stalled_us(), Instant::now());
        self.seen.room.store(room.free, Ordering::Release);
        self.far = (room.free > room.total / 2).then(|| Instant::now() + FAR);
        if self.seen.nearly_full.swap(full, Ordering::AcqRel) == full {
            return;
        }
        if let Some(hook) = &self.hook {
            hook.tell(News { full, room: room.free });
        }
        // If the queue is full, the main thread is about to look anyway.
        let _ = self.events.try_send(Event::Trouble);
    }
}

/// Whether `available` of `total` bytes are plenty, if they `were` at the last look.
fn is_plenty(available: u64, total: u64, were: bool) -> bool {
    let least = (total / PLENTY_PART).max(PLENTY);
    available >= if were { least } else { least + least / 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plenty_is_a_part_and_more_than_a_burst() {
        const GIB: u64 = 1 << 30;
        assert!(!is_plenty(GIB, GIB, false), "a small machine never has plenty");
        assert!(is_plenty(GIB * 5 / 4, 2 * GIB, false) && is_plenty(GIB, 2 * GIB, true));
        assert!(!is_plenty(GIB, 2 * GIB, false) && !is_plenty(GIB - 1, 2 * GIB, true));
        assert!(is_plenty(20 * GIB, 64 * GIB, false) && !is_plenty(15 * GIB, 64 * GIB, true));
    }
}

//! The thread that adapts a volume's memory limit, and its report.
//!
//! Invariant: the thread changes the limit only while no other thread changes the volume's sizes,
//! and meanwhile holds no lock that requests or control requests need.

use super::history::{History, record};
use super::log;
use super::served::Served;
use crate::BLOCK_SIZE;
use crate::config::{Bounds, Plan, Usage};
use crate::control::EventKind;
use crate::device::{InMemory, Recompress, Worker};
use crate::error::{Error, Result};
use crate::limit::{
    Change, Controller, Decision, DiskReads, Machine, Ours, Ramp, Reason, Report, Role, STEP,
    Sample, Sampler, Shown,
};
use crate::stats::Stats;
use crate::system::usage;
use parking_lot::Mutex;
use std::os::linux::fs::MetadataExt;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// A volume in memory counts as full when less than this number of segments, and a part of the
/// limit, is left. These are kept free for writers.
const SPARE_SEGMENTS: u64 = 6;
/// This part of the limit; see [`SPARE_SEGMENTS`].
const SPARE_PART: u64 = 8;
/// The least number of free slots with which a spill device counts as taking data.
const SLOTS_LEAST: u64 = 4;
/// Pause after a failed change.
const REST: Duration = Duration::from_secs(60);
/// After a failed change, the least limit is the used memory and this part of it.
const TIGHT_PART: u64 = 16;
/// Steps from one check whether the device is swap to the next.
const LOOK: u32 = 10;

/// The limiter thread; dropping this ends it.
pub(super) struct Limiter {
    report: Arc<Mutex<Option<Report>>>,
    thread: Worker,
}

impl Limiter {
    /// Starts the thread for a volume.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(volume: Weak<Served>) -> Result<Self> {
        let report = Arc::default();
        let latest = Arc::clone(&report);
        let thread = Worker::start("ztier-limiter", volume, |volume, stop| {
            let mut adapting = Adapting::new(latest);
            while !stop.load(Ordering::Acquire) && adapting.step(volume) {
                std::thread::park_timeout(STEP);
            }
        })?;
        Ok(Self { report, thread })
    }

    /// Whether the thread has ended by itself.
    pub(super) fn has_ended(&self) -> bool {
        self.thread.has_ended()
    }

    /// The present report; `None` before the first step.
    pub(super) fn report(&self) -> Option<Report> {
        self.report.lock().clone()
    }
}

/// The state of the thread.
struct Adapting {
    sampler: Sampler,
    controller: Controller,
    ramp: Ramp,
    began: Instant,
    /// A limit that the stored data probably does not fit below, and until when to assume that.
    least: Option<(u64, Duration)>,
    /// Whether a failure was logged; reset by the next change that works.
    told_of_failure: bool,
    /// The volume's device, as of the last check. `is_swap`: whether it is swap.
    device: Option<(u32, u32)>,
    is_swap: bool,
    steps: u32,
    changes: u64,
    last: Option<Change>,
    latest: Arc<Mutex<Option<Report>>>,
}

impl Adapting {
    fn new(latest: Arc<Mutex<Option<Report>>>) -> Self {
        Self {
            sampler: Sampler::of_this_machine(),
            controller: Controller::default(),
            ramp: Ramp::default(),
            began: Instant::now(),
            least: None,
            told_of_failure: false,
            device: None,
            is_swap: false,
            steps: 0,
            changes: 0,
            last: None,
            latest,
        }
    }

    /// Takes a sample, decides, and sets the limit. Returns `false` if the volume is gone.
    fn step(&mut self, served: &Weak<Served>) -> bool {
        let Some(served) = served.upgrade() else { return false };
        let plan = served.plan();
        let Some(bounds) = plan.ram_auto else {
            // A change is fixing the limit. It ends this thread, unless it adapts again by then.
            *self.latest.lock() = None;
            return true;
        };
        if self.steps.is_multiple_of(LOOK) {
            self.look_at_device(&served, &plan);
        }
        self.steps = self.steps.wrapping_add(1);
        let shown = self.device.map(|numbers| Shown { numbers, is_swap: self.is_swap });
        let machine = self.sampler.sample(shown);
        let ours = ours(&served.volume.stats(), plan.segment_bytes.into(), self.is_swap);
        let now = self.began.elapsed();
        let possible = self.possible(now, &bounds);
        let decision = self.controller.decide(now, &Sample { machine, ours }, &possible);
        if let Some(limit) = decision.limit_bytes {
            let from = ours.limit_bytes;
            match served.adapt(&bounds, limit) {
                Ok(false) => return true, // another change was faster
                Ok(true) => {
                    self.changed(&served.history, now, (from, limit), decision.reason);
                }
                Err(e) => self.failed(now, &ours, &e),
            }
        } else if let Some(text) = self.ramp.unchanged(now) {
            record(&served.history, EventKind::LimitChanged, Some("memory"), &text);
        }
        if decision.recompress && plan.recompress == Recompress::Idle {
            // If recompression gains nothing, or has no memory, the data stays as it is.
            let _ = served.volume.in_memory().map(InMemory::recompress);
        }
        self.tell(&machine, &bounds, decision);
        true
    }

    fn look_at_device(&mut self, served: &Served, plan: &Plan) {
        self.is_swap = matches!(plan.usage, Some(Usage::Swap { .. }));
        let Some(device) = served.device().ok().filter(|_| plan.export.is_block_device()) else {
            return;
        };
        self.is_swap |= usage::is_swap(&device);
        let number = std::fs::metadata(&device).map(|meta| meta.st_rdev()).ok();
        self.device = number.map(|number| (rustix::fs::major(number), rustix::fs::minor(number)));
    }

    /// The bounds, with the minimum raised to what the stored data needs.
    fn possible(&self, now: Duration, bounds: &Bounds) -> Bounds {
        let least = self.least.filter(|(_, until)| now < *until).map_or(0, |(least, _)| least);
        Bounds { min_bytes: bounds.min_bytes.max(least.min(bounds.max_bytes)), ..*bounds }
    }

    /// The stored data did not fit. The least limit becomes a little more than the used memory; if
    /// that failed already, the present limit.
    fn failed(&mut self, now: Duration, ours: &Ours, error: &Error) {
        let Ours { limit_bytes: limit, used_bytes: used, .. } = *ours;
        let again = self.least.is_some_and(|(_, until)| now < until);
        let least = if again { limit } else { limit.min(used + used / TIGHT_PART) };
        self.least = Some((least, now + REST));
        if !std::mem::replace(&mut self.told_of_failure, true) {
            log::line(&format!("ram-limit stays: {error}"));
        }
    }

    fn changed(
        &mut self,
        history: &History,
        now: Duration,
        (from, to): (u64, u64),
        reason: Reason,
    ) {
        self.changes += 1;
        self.told_of_failure = false;
        let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        self.last = Some(Change { from_bytes: from, to_bytes: to, unix_s, reason });
        for text in self.ramp.changed(now, (from, to), reason).into_iter().flatten() {
            record(history, EventKind::LimitChanged, Some("memory"), &text);
        }
    }

    fn tell(&self, machine: &Machine, bounds: &Bounds, decision: Decision) {
        *self.latest.lock() = Some(Report {
            bounds: *bounds,
            reason: decision.reason,
            why: decision.reason.to_string(),
            last_change: self.last,
            changes: self.changes,
            turns: self.controller.turns(),
            waits: self.controller.waits(),
            available_bytes: machine.available_bytes,
            floor_bytes: Controller::floor(machine),
            stalled: self.controller.stalled(),
            missing: Sampler::missing(machine),
        });
    }
}

impl Served {
    /// Sets the limit that was decided within `bounds`. Returns `false` if the plan has other
    /// bounds by now, or another thread is changing the volume's sizes.
    fn adapt(&self, bounds: &Bounds, limit: u64) -> Result<bool> {
        let Some(_sizes) = self.sizes.try_lock() else { return Ok(false) };
        if self.state.lock().plan.ram_auto.as_ref() != Some(bounds) {
            return Ok(false);
        }
        self.volume.set_ram_limit(limit)?;
        // The state file may hold an older limit: a next daemon starts adapting anew.
        self.state.lock().plan.ram_limit_bytes = limit;
        Ok(true)
    }
}

/// The controller's input from a volume's statistics.
fn ours(stats: &Stats, segment: u64, is_swap: bool) -> Ours {
    if let Some(cache) = &stats.cache {
        return Ours::of_copies(cache);
    }
    let takes = !stats.spill_failed
        && stats.spill_slots - stats.spill_slots_used >= SLOTS_LEAST
        && stats.spill_allowed_bytes.is_none_or(|left| left >= SLOTS_LEAST * segment);
    let (limit, used) = (stats.ram_limit_bytes, stats.mem_used_bytes);
    let here = stats.blocks_stored.saturating_sub(stats.spilled_blocks) + stats.blocks_same;
    Ours {
        role: match (takes, is_swap) {
            (false, false) => Role::Sole,
            (false, true) => Role::SoleSwap,
            (true, false) => Role::Spills,
            (true, true) => Role::SpillsSwap,
        },
        limit_bytes: limit,
        used_bytes: used,
        is_full: used + limit / SPARE_PART + SPARE_SEGMENTS * segment >= limit,
        data_bytes: here * BLOCK_SIZE as u64,
        read_blocks: stats.read.bytes / BLOCK_SIZE as u64,
        misses: stats.spill_device_reads,
        miss_ns: stats.spill_reading_ns,
        regretted: None,
        leaving_ns: stats.spill_writing_ns,
        own_reads: DiskReads { bytes: stats.spill_read_bytes, ns: stats.spill_reading_ns },
    }
}

//! Decides what the limit is: a function of its inputs, time included.
//!
//! It compares two waits: for files that the machine dropped, and for data that this volume
//! evicted. Memory goes to the side with the longer wait, as it does between files and programs in
//! the kernel. Only trying it shows what a lower limit costs, so a step is small unless the waits
//! are far apart. As an upper bound, the coldest twentieth of a volume is assumed to be read as
//! often as the rest.
//!
//! Invariants: a decided limit is inside the bounds. Waits of less than [`WORTH`] change nothing. A
//! limit changes its direction only when [`Turns`] allows that, except for the floor, which holds
//! at once.

use super::reason::Reason;
use super::sample::{Machine, Ours, Role, Sample, Waits};
use crate::config::Bounds;
use std::time::Duration;

/// How often a decision is made.
pub const STEP: Duration = Duration::from_secs(1);
/// Samples that are further apart than this are not compared: the machine or this process slept.
const GAP: Duration = Duration::from_secs(15);
/// Waits below this share of the time are worth no change.
const WORTH: f64 = 0.01;
/// One wait must be at least this many times the other.
const CLEAR: f64 = 1.5;
/// Weight of the newest sample in a moving average.
const NEWEST: f64 = 0.3;
/// The share of a volume that counts as its coldest.
const COLDEST: f64 = 0.05;
/// The smallest step down, as a share of the memory in use, and the largest: of data that has not
/// been read for seconds. Then the same for steps up, as shares of the limit.
const DOWN: (f64, f64) = (0.02, 0.50);
const UP: (f64, f64) = (0.02, 0.25);
/// A step down to the floor is at least this share of the memory in use, whatever the waits.
const DOWN_TO_FLOOR: f64 = 0.10;
/// A step up is computed as if the limit were at least the highest one divided by this.
const UP_PART: u64 = 4;
/// The floor, which is to stay available: all memory divided by `FLOOR_PART`, within these bounds.
const FLOOR_PART: u64 = 20;
const FLOOR: (u64, u64) = (16 << 20, 512 << 20);
/// If other tasks wait for memory for this share of the time, the limit does not grow at their
/// expense.
const OTHERS_STALL: f64 = 0.10;
/// A machine that scanned for memory within this time is short of it.
const SHORT: Duration = Duration::from_secs(5);
/// Data that is spilled this soon after the limit was lowered is spilled because of that.
const OUR_DOING: Duration = Duration::from_secs(3);
/// Swapped-out pages free more memory than they take if they shrink to this, in percent.
const SHRINKS: u64 = 80;
/// What a read is assumed to take until one was measured.
const READ_ASSUMED_NS: f64 = 100_000.0;
/// How long a limit stays before it changes direction: at first, and at most.
const HOLD: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(160));
/// After this long without a change of direction, the earlier ones are forgotten.
const CALM: Duration = Duration::from_secs(300);
/// How often data that has no other place is recompressed, at most.
const RECOMPRESS_EVERY: Duration = Duration::from_secs(60);
/// Where data has no other place, changes of less than the limit divided by this are not made.
const SLIGHT_PART: u64 = 32;
/// Bytes in a page.
const PAGE: f64 = 4096.0;

/// A decision about the limit.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// The new limit in bytes; `None`: it stays.
    pub limit_bytes: Option<u64>,
    /// Whether stored data is to be recompressed now, because nothing else helps.
    pub recompress: bool,
    /// Why the limit changes, or stays.
    pub reason: Reason,
}

/// The direction of a change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Down,
    Up,
}

/// Keeps a limit from oscillating: with each change of direction the time doubles that it stays
/// before the next one.
#[derive(Debug, Default)]
struct Turns {
    last: Option<(Way, Duration)>,
    turned: Option<Duration>,
    hold: Duration,
    count: u64,
}

impl Turns {
    fn may(&self, way: Way, now: Duration) -> bool {
        match self.last {
            Some((last, at)) if last != way => now.saturating_sub(at) >= self.hold.max(HOLD.0),
            _ => true,
        }
    }

    fn went(&mut self, way: Way, now: Duration) {
        if self.turned.is_some_and(|at| now.saturating_sub(at) >= CALM) {
            (self.hold, self.turned) = (Duration::ZERO, None);
        }
        if self.last.is_some_and(|(last, _)| last != way) {
            self.hold = (self.hold * 2).clamp(HOLD.0 * 2, HOLD.1);
            self.turned = Some(now);
            self.count += 1;
        }
        self.last = Some((way, now));
    }
}

/// A controller and its memory of earlier samples and decisions.
#[derive(Debug, Default)]
pub struct Controller {
    before: Option<(Duration, Sample)>,
    waits: Waits,
    stalled: Option<f64>,
    /// Time to read a page of a file, in nanoseconds; 0: not known.
    page_ns: f64,
    /// Time of a miss, in nanoseconds; 0: not known.
    miss_ns: f64,
    scanned: Option<Duration>,
    lowered: Option<Duration>,
    recompressed: Option<Duration>,
    turns: Turns,
}

impl Controller {
    /// The waits, as far as they are known.
    pub fn waits(&self) -> Waits {
        self.waits
    }

    /// The share of the time in which some task waited for memory, if the machine reports it.
    pub fn stalled(&self) -> Option<f64> {
        self.stalled
    }

    /// How often the limit has changed its direction.
    pub fn turns(&self) -> u64 {
        self.turns.count
    }

    /// The floor of a machine: bytes of memory that must stay available.
    pub fn floor(machine: &Machine) -> u64 {
        (machine.total_bytes / FLOOR_PART).clamp(FLOOR.0, FLOOR.1)
    }

    /// Decides about the limit; called about every [`STEP`], with `now` since any fixed moment. The
    /// next sample shows whether the limit was changed.
    pub fn decide(&mut self, now: Duration, sample: &Sample, bounds: &Bounds) -> Decision {
        let known = self.look(now, sample);
        let limit = sample.ours.limit_bytes;
        if bounds.clamp(limit) != limit {
            return go(bounds.clamp(limit), Reason::Bounds);
        }
        if !known {
            return stay(Reason::Starting);
        }
        match sample.ours.role {
            Role::SoleSwap => self.keep_swap(now, sample, bounds),
            Role::Sole => self.leave_room(now, sample, bounds),
            Role::Spills | Role::SpillsSwap | Role::Copies => self.weigh(now, sample, bounds),
        }
    }

    /// Takes in a sample; `false` when there is no earlier one to compare it with.
    fn look(&mut self, now: Duration, sample: &Sample) -> bool {
        let Some((then, before)) = self.before.replace((now, *sample)) else { return false };
        let passed = now.saturating_sub(then);
        if passed > GAP || passed.is_zero() || before.ours.role != sample.ours.role {
            self.waits = Waits::default();
            return false;
        }
        let (machine, ours) = (&sample.machine, &sample.ours);
        let seconds = passed.as_secs_f64();
        let since = |then: Option<u64>, now: Option<u64>| Some(now?.saturating_sub(then?));
        if since(before.machine.scanned, machine.scanned).is_some_and(|pages| pages > 0) {
            self.scanned = Some(now);
        }
        self.learn_costs(&before, sample);
        let refaults = since(before.machine.refaults, machine.refaults).unwrap_or(0) as f64;
        let is_short = match machine.scanned {
            Some(_) => self.scanned.is_some_and(|at| now.saturating_sub(at) < SHORT),
            None => true,
        };
        let page_ns = if self.page_ns > 0.0 { self.page_ns } else { READ_ASSUMED_NS };
        let files = if is_short { refaults * page_ns / 1e9 / seconds } else { 0.0 };
        let misses = ours.misses.saturating_sub(before.ours.misses) as f64;
        let miss_ns = ours.miss_ns.saturating_sub(before.ours.miss_ns) as f64;
        let regret = match since(before.ours.regretted, ours.regretted) {
            Some(regretted) => regretted as f64 * self.miss_ns,
            None => miss_ns,
        };
        let own_doing = self.lowered.is_some_and(|at| now.saturating_sub(at) < OUR_DOING);
        let leaving = ours.leaving_ns.saturating_sub(before.ours.leaving_ns) as f64;
        let leaving = if own_doing { 0.0 } else { leaving };
        let hits =
            (ours.read_blocks.saturating_sub(before.ours.read_blocks) as f64 - misses).max(0.0);
        let cost = if self.miss_ns > 0.0 { self.miss_ns } else { page_ns };
        let smooth = |old: &mut f64, new: f64| *old += (new - *old) * NEWEST;
        smooth(&mut self.waits.files, files);
        smooth(&mut self.waits.missed, (regret + leaving) / 1e9 / seconds);
        smooth(&mut self.waits.coldest, hits * COLDEST * cost / 1e9 / seconds);
        self.stalled = since(before.machine.stalled_us, machine.stalled_us).map(|us| {
            let mut stalled = self.stalled.unwrap_or(0.0);
            smooth(&mut stalled, us as f64 / 1e6 / seconds);
            stalled
        });
        true
    }

    /// Measures what reads take. This volume's own reads are not reads of files.
    fn learn_costs(&mut self, before: &Sample, sample: &Sample) {
        let smooth = |old: &mut f64, new: f64| {
            *old = if *old > 0.0 { *old + (new - *old) * NEWEST } else { new };
        };
        if let (Some(then), Some(now)) = (before.machine.disk_reads, sample.machine.disk_reads) {
            let (own_then, own) = (before.ours.own_reads, sample.ours.own_reads);
            let others = |then: u64, now: u64, own_then: u64, own: u64| {
                now.saturating_sub(then).saturating_sub(own.saturating_sub(own_then)) as f64
            };
            let bytes = others(then.bytes, now.bytes, own_then.bytes, own.bytes);
            let ns = others(then.ns, now.ns, own_then.ns, own.ns);
            // The disk counts each queued request for its whole time in the queue. Requests that
            // wait at the same time wait once, for no longer than the disk was busy.
            let busy = (before.machine.disk_busy_ns, sample.machine.disk_busy_ns);
            let ns = match busy {
                (Some(then), Some(now)) => ns.min(now.saturating_sub(then) as f64),
                _ => ns,
            };
            if bytes >= 16.0 * PAGE && ns > 0.0 {
                smooth(&mut self.page_ns, ns / (bytes / PAGE));
            }
        }
        let (then, now) = (&before.ours, &sample.ours);
        let misses = now.misses.saturating_sub(then.misses);
        if misses > 0 {
            let ns = now.miss_ns.saturating_sub(then.miss_ns);
            smooth(&mut self.miss_ns, ns as f64 / misses as f64);
        }
    }

    /// The highest limit: swapped-out pages have no other place, and refusing them frees nothing.
    fn keep_swap(&mut self, now: Duration, sample: &Sample, bounds: &Bounds) -> Decision {
        let recompress = self.is_to_recompress(now, sample);
        let limit = sample.ours.limit_bytes;
        if limit < bounds.max_bytes {
            return go(bounds.max_bytes, Reason::KeepsSwap);
        }
        Decision { recompress, ..stay(Reason::KeepsSwap) }
    }

    /// Data without another place can't be given up; new data may take the memory that others
    /// leave.
    fn leave_room(&mut self, now: Duration, sample: &Sample, bounds: &Bounds) -> Decision {
        let recompress = self.is_to_recompress(now, sample);
        let Some(available) = sample.machine.available_bytes else { return stay(Reason::Idle) };
        let Ours { limit_bytes: limit, used_bytes: used, .. } = sample.ours;
        let room = available.saturating_sub(Self::floor(&sample.machine));
        let wanted = bounds.clamp(used.saturating_add(room));
        let reason = Reason::Room { available };
        let slight = limit / SLIGHT_PART;
        let is_edge = wanted == bounds.max_bytes || wanted == bounds.min_bytes;
        if wanted == limit || !is_edge && wanted.abs_diff(limit) <= slight {
            return Decision { recompress, ..stay(reason) };
        }
        Decision { recompress, ..go(wanted, reason) }
    }

    /// Whether memory is so short that stored data should be recompressed.
    fn is_to_recompress(&mut self, now: Duration, sample: &Sample) -> bool {
        let floor = Self::floor(&sample.machine);
        let short = sample.machine.available_bytes.is_some_and(|bytes| bytes < floor);
        let missed = self.waits.files >= WORTH;
        let due = self.recompressed.is_none_or(|at| now.saturating_sub(at) >= RECOMPRESS_EVERY);
        let recompress = due && (short || missed);
        if recompress {
            self.recompressed = Some(now);
        }
        recompress
    }

    /// Compares the waits for files and for this volume's data.
    fn weigh(&mut self, now: Duration, sample: &Sample, bounds: &Bounds) -> Decision {
        let (machine, ours) = (&sample.machine, &sample.ours);
        let floor = Self::floor(machine);
        // Memory of swap that frees more than it takes is not missing elsewhere.
        let gives = ours.role.is_swap() && ours.used_bytes <= ours.data_bytes / 100 * SHRINKS
            || ours.role.is_swap() && !ours.is_full;
        let available = machine.available_bytes.filter(|_| !gives);
        let Waits { files, missed, coldest } = self.waits;
        let own = missed + coldest;
        if let Some(available) = available.filter(|bytes| *bytes < floor) {
            let reason = Reason::Floor { available, floor };
            return self.shrink(now, ours, bounds, reason, Some(floor - available));
        }
        if files >= WORTH && files > CLEAR * own {
            if !self.turns.may(Way::Down, now) {
                return stay(Reason::Waiting);
            }
            return self.shrink(now, ours, bounds, Reason::FileCache { files, own }, None);
        }
        if missed >= WORTH && missed > CLEAR * files && ours.is_full {
            if !self.turns.may(Way::Up, now) {
                return stay(Reason::Waiting);
            }
            let room = available.map(|bytes| bytes - floor);
            let others_stall = !gives && self.stalled.is_some_and(|part| part >= OTHERS_STALL);
            return self.grow(now, sample, bounds, (room, others_stall));
        }
        stay(match () {
            () if files < WORTH && missed < WORTH => Reason::Idle,
            () => Reason::Balanced { files, own },
        })
    }

    fn shrink(
        &mut self,
        now: Duration,
        ours: &Ours,
        bounds: &Bounds,
        reason: Reason,
        deficit: Option<u64>,
    ) -> Decision {
        let part = match reason {
            Reason::FileCache { files, own } => step(DOWN, files, own),
            _ => DOWN_TO_FLOOR,
        };
        // Lowering a limit that is not used up frees nothing, so the step begins at the memory in
        // use.
        let base = ours.limit_bytes.min(ours.used_bytes);
        let less = ((base as f64 * part) as u64).max(deficit.unwrap_or(0));
        let wanted = bounds.clamp(base.saturating_sub(less));
        if wanted >= ours.limit_bytes {
            return stay(Reason::AtLeast);
        }
        self.lowered = Some(now);
        self.turns.went(Way::Down, now);
        go(wanted, reason)
    }

    fn grow(
        &mut self,
        now: Duration,
        sample: &Sample,
        bounds: &Bounds,
        (room, others_stall): (Option<u64>, bool),
    ) -> Decision {
        let Waits { files, missed, .. } = self.waits;
        let limit = sample.ours.limit_bytes;
        if limit >= bounds.max_bytes {
            return stay(Reason::AtMost);
        }
        let base = limit.max(bounds.max_bytes / UP_PART);
        let step = (base as f64 * step(UP, missed, files)) as u64;
        let step = if others_stall { 0 } else { step.min(room.map_or(step, |room| room / 2)) };
        let wanted = bounds.clamp(limit.saturating_add(step));
        if step < limit / SLIGHT_PART / 4 || wanted == limit {
            let floor = Self::floor(&sample.machine);
            let available = sample.machine.available_bytes.unwrap_or(0);
            return stay(Reason::NoRoom { available, floor });
        }
        self.turns.went(Way::Up, now);
        go(wanted, Reason::Missed { own: missed, files })
    }
}

/// A step between the smallest and the largest: the larger, the longer the `wait` and the larger
/// its ratio to the `other` wait.
fn step((least, most): (f64, f64), wait: f64, other: f64) -> f64 {
    let (times, worth) = (wait / (CLEAR * other.max(f64::MIN_POSITIVE)), wait / WORTH);
    (least * times.min(worth)).clamp(least, most)
}

fn go(limit: u64, reason: Reason) -> Decision {
    Decision { limit_bytes: Some(limit), recompress: false, reason }
}

fn stay(reason: Reason) -> Decision {
    Decision { limit_bytes: None, recompress: false, reason }
}

//! Decides what the limit is to be: a function of what is given, time included.
//!
//! Two waits are compared: for files that the machine had to drop, and for data that this volume
//! had to. Memory goes to whichever is longer, as it does between files and programs in the kernel.
//! What a lower limit would cost is known only when it is tried, so that a step is small unless the
//! waits are far apart. As an upper bound, the coldest twentieth of a volume is taken to be read as
//! often as the rest of it.
//!
//! Invariants: a limit that is decided is inside the bounds. Nothing is changed by what is less
//! than [`WORTH`]. A limit turns round only after [`Turns`] lets it, but for the floor, which is
//! held at once.

use super::reason::Reason;
use super::sample::{Machine, Ours, Role, Sample, Waits};
use crate::config::Bounds;
use std::time::Duration;

/// How often a decision is made.
pub const STEP: Duration = Duration::from_secs(1);
/// Samples that are further apart than this say nothing: the machine slept, or this process did.
const GAP: Duration = Duration::from_secs(15);
/// Waits below this part of the time are worth no change.
const WORTH: f64 = 0.01;
/// One wait has to be so many times the other.
const CLEAR: f64 = 1.5;
/// How much the newest sample counts.
const NEWEST: f64 = 0.3;
/// The part of a volume that is taken for its coldest.
const COLDEST: f64 = 0.05;
/// The smallest step down, as a part of what is in use, and the largest: of data that has not been
/// read for seconds. The same up, of the limit.
const DOWN: (f64, f64) = (0.02, 0.50);
const UP: (f64, f64) = (0.02, 0.25);
/// A step down to the floor is at least this part, whatever is waited for.
const DOWN_TO_FLOOR: f64 = 0.10;
/// A step up is as if the limit were at least this part of the highest.
const UP_PART: u64 = 4;
/// What is to stay available: this part of all memory, within these bounds.
const FLOOR_PART: u64 = 20;
const FLOOR: (u64, u64) = (16 << 20, 512 << 20);
/// Where others wait for memory for this part of the time, a limit does not grow at their expense.
const OTHERS_STALL: f64 = 0.10;
/// A machine that looked for memory so long ago is short of it.
const SHORT: Duration = Duration::from_secs(5);
/// Data that goes down so soon after the limit was lowered went because of that.
const OUR_DOING: Duration = Duration::from_secs(3);
/// Pages that are swapped out free more than they take if they shrink to this, in percent.
const SHRINKS: u64 = 80;
/// What a read takes where nothing is known of it.
const READ_ASSUMED_NS: f64 = 100_000.0;
/// How long a limit stays before it turns round: first, and at most.
const HOLD: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(160));
/// After so long without turning round, all is forgotten of that.
const CALM: Duration = Duration::from_secs(300);
/// How often data that has no other place is compressed anew.
const RECOMPRESS_EVERY: Duration = Duration::from_secs(60);
/// Changes of less than this part are not made where data has no other place.
const SLIGHT_PART: u64 = 32;
/// Bytes in a page.
const PAGE: f64 = 4096.0;

/// What is to be done.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Decision {
    /// The limit that is to be, if another one, in bytes.
    pub limit_bytes: Option<u64>,
    /// Whether what is stored should be compressed more now: nothing else helps.
    pub recompress: bool,
    /// Why, or why nothing.
    pub reason: Reason,
}

/// Which way a limit goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Down,
    Up,
}

/// Keeps a limit from going to and fro: each time that it turns round, it stays twice as long
/// before it may again.
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

/// A controller and what it remembers.
#[derive(Debug, Default)]
pub struct Controller {
    before: Option<(Duration, Sample)>,
    waits: Waits,
    stalled: Option<f64>,
    /// What a page of a file takes to read, in nanoseconds; 0: not known.
    page_ns: f64,
    /// What a miss takes, in nanoseconds; 0: not known.
    miss_ns: f64,
    scanned: Option<Duration>,
    lowered: Option<Duration>,
    recompressed: Option<Duration>,
    turns: Turns,
}

impl Controller {
    /// For what is waited, as far as it is known.
    pub fn waits(&self) -> Waits {
        self.waits
    }

    /// The part of the time in which some task waited for memory, where the machine tells.
    pub fn stalled(&self) -> Option<f64> {
        self.stalled
    }

    /// How often the limit has turned round.
    pub fn turns(&self) -> u64 {
        self.turns.count
    }

    /// What is to stay available on a machine, in bytes.
    pub fn floor(machine: &Machine) -> u64 {
        (machine.total_bytes / FLOOR_PART).clamp(FLOOR.0, FLOOR.1)
    }

    /// Decides, about every [`STEP`], at a time since whenever. That the limit was changed is seen
    /// in the next sample.
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

    /// Takes in a sample; `false` when there is none to compare it with.
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

    /// Learns what reads take. What this volume read itself is not what files took.
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
            // Of requests that stand in a queue each is counted for all of its time there: what
            // many asked for at once is waited for once, as long as the disk had to do with it.
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

    /// What is swapped out has no other place, and to refuse it frees nothing: the highest limit.
    fn keep_swap(&mut self, now: Duration, sample: &Sample, bounds: &Bounds) -> Decision {
        let recompress = self.is_to_recompress(now, sample);
        let limit = sample.ours.limit_bytes;
        if limit < bounds.max_bytes {
            return go(bounds.max_bytes, Reason::KeepsSwap);
        }
        Decision { recompress, ..stay(Reason::KeepsSwap) }
    }

    /// What has no other place can't be given up; what comes may take what others leave.
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

    /// Whether memory is missed so much that what is stored should be compressed more.
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

    /// Compares what is missed here and there.
    fn weigh(&mut self, now: Duration, sample: &Sample, bounds: &Bounds) -> Decision {
        let (machine, ours) = (&sample.machine, &sample.ours);
        let floor = Self::floor(machine);
        // Memory that makes room for pages is not what others lack.
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
        // A limit that is not used up gives nothing when it is lowered.
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

/// A step between the smallest and the largest: the larger, the longer something is waited for, and
/// the longer than for something else.
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

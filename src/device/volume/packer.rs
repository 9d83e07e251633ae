//! The thread that recompresses cold data: when the volume and the machine are idle, and on request
//! of a command.
//!
//! Idle means few requests and no new segment for a while. The thread leaves alone what was written
//! or read lately. It has the lowest priority. It pauses as soon as requests come, or when other
//! processes leave it less than half of the processor time that it needs.

use super::Volume;
use crate::device::worker::Worker;
use crate::error::Result;
use crate::ram::store::Session;
use crate::ram::{Pass, Recompressed};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock, Weak};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Interval between checks whether the volume is idle.
const TICK: Duration = Duration::from_secs(1);
/// The most requests in a tick of an idle volume.
const FEW: u64 = 32;
/// How long a volume has to be idle first.
const IDLE: Duration = Duration::from_secs(5);
/// The least age of cold data. Data that was not written or read for twice as long is certainly
/// cold.
const COLD: Duration = Duration::from_secs(30);
/// Period over which the thread measures its share of the processor.
const SLICE: Duration = Duration::from_millis(50);
/// Groups of blocks compressed between two looks at the number of requests.
const GLANCE: u32 = 16;
/// Pause while another thread recompresses.
const MOMENT: Duration = Duration::from_millis(5);
/// The lowest priority.
const NICEST: i32 = 19;

/// Requests to the thread.
#[derive(Default)]
pub(super) struct Orders {
    thread: OnceLock<Thread>,
    asked: AtomicBool,
}

impl Orders {
    /// Wakes the thread, so that it checks for work.
    pub(super) fn wake(&self) {
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    /// Asks for one pass over all cold data.
    pub(super) fn ask(&self) {
        self.asked.store(true, Ordering::Release);
        self.wake();
    }

    /// Whether such a pass was requested and is not done.
    pub(super) fn is_under_way(&self) -> bool {
        self.asked.load(Ordering::Acquire)
    }
}

/// Starts the thread.
///
/// # Errors
/// See [`Worker::start`].
pub(super) fn start(volume: &Arc<Volume>) -> Result<Worker> {
    Worker::start("ztier-packer", Arc::downgrade(volume), |volume, stop| {
        if let Some(volume) = volume.upgrade() {
            volume.orders.thread.get_or_init(std::thread::current);
        }
        // Lowering the priority takes no privilege; on failure the priority stays.
        let _ = rustix::process::setpriority_process(None, NICEST);
        Packer { session: None, watch: Watch::new() }.run(volume, stop);
    })
}

struct Packer {
    /// Made when there is work for the first time.
    session: Option<Session>,
    watch: Watch,
}

impl Packer {
    fn run(&mut self, volume: &Weak<Volume>, stop: &AtomicBool) {
        let stops = || stop.load(Ordering::Acquire);
        while !stops() {
            let Some(here) = volume.upgrade() else { return };
            if here.orders.is_under_way() {
                self.everything(&here, &stops);
                here.orders.asked.store(false, Ordering::Release);
                continue;
            }
            if !here.ram().recompresses() {
                drop(here);
                std::thread::park();
                continue;
            }
            if let Some(before) = self.watch.look(&here, Instant::now()) {
                self.while_idle(&here, before, &stops);
            }
            drop(here);
            std::thread::park_timeout(TICK);
        }
        if let (Some(volume), Some(session)) = (volume.upgrade(), self.session.take()) {
            volume.ram().store().leave(&session);
        }
    }

    /// One pass over everything.
    fn everything(&mut self, volume: &Volume, stops: &dyn Fn() -> bool) {
        self.prepare(volume);
        let Some(session) = &self.session else { return };
        let ram = volume.ram();
        let mut pass = Pass::over_all(ram);
        while !stops() {
            // A writer without room waits for every thread that may be making room.
            let stalls = ram.stalls();
            let is_waited_for = || ram.stalls() != stalls;
            let turn = volume.turn();
            let done = ram.recompress_one(session, &mut pass, &|| stops() || is_waited_for());
            drop(turn);
            match done {
                Recompressed::On => {}
                Recompressed::Busy => std::thread::sleep(MOMENT),
                Recompressed::Stopped if is_waited_for() => std::thread::sleep(MOMENT),
                Recompressed::Over | Recompressed::Stopped => return,
            }
        }
    }

    /// One pass over data older than sequence `before`, until the volume or the machine is busy.
    fn while_idle(&mut self, volume: &Volume, before: u64, stops: &dyn Fn() -> bool) {
        let ram = volume.ram();
        let (mut pass, mut slice) = (Pass::over(before), Slice::new());
        if !ram.has_cold(&pass) {
            return self.watch.is_done(before);
        }
        self.prepare(volume);
        let Some(session) = self.session.as_ref().filter(|_| ram.can_recompress()) else { return };
        let (opened, requests) = (ram.opened(), volume.requests());
        let (calls, wanted) = (Cell::new(0), Cell::new(false));
        let stop = || {
            calls.set(calls.get() + 1);
            let busy = ram.opened() != opened
                || calls.get() % GLANCE == 0 && volume.requests() > requests + FEW;
            wanted.set(wanted.get() || busy);
            busy || stops() || volume.orders.is_under_way()
        };
        loop {
            let _turn = volume.turn();
            match ram.recompress_one(session, &mut pass, &stop) {
                Recompressed::On if !slice.is_short() => {}
                Recompressed::Over => return self.watch.is_done(before),
                _ => break,
            }
        }
        if wanted.get() || !volume.orders.is_under_way() {
            self.watch.was_disturbed(Instant::now());
        }
    }

    fn prepare(&mut self, volume: &Volume) {
        if self.session.is_none() {
            self.session = volume.ram().session().ok();
        }
    }
}

/// Recent activity of a volume.
struct Watch {
    requests: u64,
    opened: u64,
    idle_since: Instant,
    /// Two times, at least [`COLD`] apart, each with the sequence of the next segment at that time.
    marks: [(Instant, u64); 2],
    /// The sequence before which everything was tried.
    done: u64,
}

impl Watch {
    fn new() -> Self {
        let now = Instant::now();
        Self { requests: 0, opened: 0, idle_since: now, marks: [(now, 0); 2], done: 0 }
    }

    /// The sequence at which cold data ends, if the volume is idle and there may be work.
    fn look(&mut self, volume: &Volume, now: Instant) -> Option<u64> {
        let (requests, opened) = (volume.requests(), volume.ram().opened());
        if requests > self.requests + FEW || opened != self.opened {
            self.idle_since = now;
        }
        (self.requests, self.opened) = (requests, opened);
        self.age(now, volume.ram().store().segments().next_sequence());
        let [_, (_, before)] = self.marks;
        (now - self.idle_since >= IDLE && self.done < before).then_some(before)
    }

    /// Moves the marks at most every [`COLD`].
    fn age(&mut self, now: Instant, next: u64) {
        if now - self.marks[0].0 >= COLD {
            self.marks = [(now, next), self.marks[0]];
            // Data that was read before may be cold by now.
            self.done = 0;
        }
    }

    fn is_done(&mut self, before: u64) {
        self.done = before;
    }

    fn was_disturbed(&mut self, now: Instant) {
        self.idle_since = now;
    }
}

/// Measures the thread's share of the processor.
struct Slice {
    began: Instant,
    used: Duration,
}

impl Slice {
    fn new() -> Self {
        Self { began: Instant::now(), used: processor_time() }
    }

    /// Whether the share was less than half, in the period since the last measurement.
    fn is_short(&mut self) -> bool {
        let passed = self.began.elapsed();
        if passed < SLICE {
            return false;
        }
        let used = processor_time().saturating_sub(self.used);
        *self = Self::new();
        used < passed / 2
    }
}

fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec.unsigned_abs(), time.tv_nsec as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cold_is_as_old_as_it_has_to_be() {
        let mut watch = Watch::new();
        let began = watch.marks[0].0;
        let mut before = |seconds: u64, next| {
            watch.age(began + Duration::from_secs(seconds), next);
            watch.marks[1].1
        };
        // Sequence 10 comes after 10 seconds, and so on.
        let found: Vec<u64> = (1..=120).map(|s| before(s, s)).collect();
        for (second, before) in (1..).zip(found) {
            assert!(before == 0 || before + 30 <= second, "{before} at {second}");
            assert!(second < 60 || before + 60 >= second, "{before} at {second}");
        }
    }

    #[test]
    fn the_share_of_the_processor_is_measured() {
        let later = Instant::now() + Duration::from_secs(60);
        assert!(!Slice { began: later, ..Slice::new() }.is_short(), "too early to say");
        let mut slice = Slice::new();
        std::thread::sleep(SLICE);
        assert!(slice.is_short(), "it slept");
    }
}

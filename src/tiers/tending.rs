//! The threads of a logged volume: commits that nobody waits for, and writeback.
//!
//! Invariant: a writeback reads and writes without the core's lock; only where a window begins and ends
//! does it hold it.

use super::logged::{Fault, Logged};
use crate::durable::{Ended, Writeback};
use crate::error::{Context, Result};
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Threads that write chunks nobody waits for.
const WRITERS: usize = 3;
/// Threads that carry out a window.
const MOVERS: usize = 4;
/// How often the clock of the core is moved.
const TICK: Duration = Duration::from_millis(100);
/// A volume of which nobody asked anything for this long is idle.
const IDLE: Duration = Duration::from_millis(500);
/// How long writeback waits after a drive has failed.
const PAUSE: Duration = Duration::from_secs(1);
/// The largest window, in bytes.
const WINDOW_MAX: u64 = 256 << 20;

/// How writeback behaves.
#[derive(Clone, Copy, Debug)]
pub struct Policy {
    /// Percent of the log that may fill before writeback runs beside foreground work.
    pub threshold_percent: u64,
    /// Bytes of a window while the log is nearly empty; it grows to four times this as it fills.
    pub window: u64,
}

impl Default for Policy {
    fn default() -> Self {
        Self { threshold_percent: 50, window: 64 << 20 }
    }
}

/// The threads; dropping it ends them.
pub struct Tending {
    logged: Arc<Logged>,
    draining: Arc<AtomicBool>,
    threads: Vec<JoinHandle<()>>,
}

impl Tending {
    /// Starts the threads of a log.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(logged: &Arc<Logged>, policy: Policy) -> Result<Self> {
        let mut tending = Self {
            logged: Arc::clone(logged),
            draining: Arc::new(AtomicBool::new(false)),
            threads: Vec::new(),
        };
        for i in 0..WRITERS {
            let logged = Arc::clone(logged);
            tending.spawn("ztier-log", move || commit(&logged, i == 0))?;
        }
        let (logged, draining) = (Arc::clone(logged), Arc::clone(&tending.draining));
        tending.spawn("ztier-writeback", move || write_back(&logged, &draining, policy))?;
        Ok(tending)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = std::thread::Builder::new().name(name.into());
        self.threads.push(thread.spawn(work).context("cannot start a thread of the log")?);
        Ok(())
    }

    /// Begins to bring everything to the backing store, or stops hurrying to.
    pub fn hurry(&self, on: bool) {
        self.draining.store(on, Ordering::Release);
    }

    /// Brings everything to the backing store, which then is the volume, and waits for it.
    /// `progress` hears from time to time how many segments are left; it says whether to go on.
    ///
    /// # Errors
    /// The log has failed.
    pub fn drain(&self, mut progress: impl FnMut(u64) -> bool) -> std::result::Result<bool, Fault> {
        self.logged.flush()?;
        self.hurry(true);
        let clean = loop {
            let (left, clean) = {
                let mut core = self.logged.core();
                core.finish_segment();
                (core.fullness().0, core.is_clean())
            };
            if clean || !progress(left) {
                break clean;
            }
            self.logged.notify();
            std::thread::sleep(TICK);
            self.logged.flush()?;
        };
        self.hurry(false);
        Ok(clean)
    }

    /// Makes everything durable, says on the log's drive that it was closed in order, and ends the
    /// threads. Nothing may be asked of the volume any more.
    ///
    /// # Errors
    /// The log has failed; it is then as after a cut of power.
    pub fn close(mut self) -> std::result::Result<(), Fault> {
        self.logged.stop_threads();
        self.join();
        self.logged.flush()?;
        let end = |done: bool, failed: bool| match (done, failed) {
            (true, _) => Some(Ok(())),
            (false, true) => Some(Err(Fault::Failed)),
            (false, false) => None,
        };
        self.logged.settle(|core| end(core.is_quiet(), core.is_failed()))?;
        self.logged.core().close();
        self.logged.settle(|core| end(core.is_closed(), core.is_failed()))
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Tending {
    fn drop(&mut self) {
        self.logged.stop_threads();
        self.join();
    }
}

/// Carries out commands until the end; one of the threads moves the core's clock too.
fn commit(logged: &Logged, clock: bool) {
    let mut ticked = 0;
    logged.settle(|core| {
        let now = logged.now_ms();
        if clock && now - ticked >= TICK.as_millis() as u64 {
            ticked = now;
            core.tick(now);
        }
        logged.is_stopping().then_some(())
    });
}

fn write_back(logged: &Logged, draining: &AtomicBool, policy: Policy) {
    while !logged.is_stopping() {
        let hurry = draining.load(Ordering::Acquire);
        let (used, segments) = logged.core().fullness();
        let percent = used * 100 / segments.max(1);
        let idle = logged.idle() >= IDLE;
        if !hurry && !idle && percent < policy.threshold_percent {
            std::thread::sleep(TICK);
            continue;
        }
        let bytes = (policy.window * (25 + percent * 3 / 4) / 25).min(WINDOW_MAX);
        let Some(plan) = logged.core().begin_window(bytes) else {
            std::thread::sleep(TICK);
            continue;
        };
        let ended = carry(logged, Writeback::new(plan));
        let failed = matches!(ended, Ended::Badly);
        logged.core().end_window(ended);
        logged.settle(|core| (core.is_between_windows() || logged.is_stopping()).then_some(()));
        if failed {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Carries out a window by several threads.
fn carry(logged: &Logged, writeback: Writeback) -> Ended {
    let (writeback, news) = (Mutex::new(writeback), Condvar::new());
    let mover = || {
        let mut work = writeback.lock();
        loop {
            if let Some(command) = work.next() {
                let outcome = MutexGuard::unlocked(&mut work, || logged.carry_out(&command));
                work.complete(command.id, outcome);
                news.notify_all();
            } else if work.is_over() {
                return;
            } else {
                news.wait_for(&mut work, TICK);
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..MOVERS {
            scope.spawn(mover);
        }
        mover();
    });
    writeback.into_inner().ended().unwrap_or(Ended::Badly)
}

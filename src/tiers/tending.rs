//! The threads of a logged volume: commits that nobody waits for, and writeback.
//!
//! Invariant: a writeback reads and writes without the core's lock; only where a window begins and
//! ends does it hold it.

use super::keeper::Keeper;
use super::logged::{Fault, Logged};
use super::pace::WAY;
use crate::durable::{Command, Device, Ended, Op, Outcome, Progress, Writeback, join};
use crate::error::{Context, Result};
use crate::media::{Buffer, Completion, Ring, Submission, ring};
use crate::store::codec::Algorithm;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

/// Writes of the log that are in flight at once.
const DEPTH: u32 = 32;
/// Threads that carry out a window.
pub(super) const MOVERS: usize = 4;
/// How often the clock of the core is moved.
const TICK: Duration = Duration::from_millis(100);
/// A volume of which nobody asked anything for this long is idle.
const IDLE: Duration = Duration::from_millis(500);
/// How long a mover that gives way to readers waits before it asks again.
const GIVE_WAY: Duration = Duration::from_millis(5);
/// Percent of the log from which on writeback gives way to nobody.
const PRESSED_PERCENT: u64 = 90;
/// How long writeback waits after a drive has failed.
const PAUSE: Duration = Duration::from_secs(1);
/// Percent of the log, and free segments, at which writeback runs although it is switched off.
const URGENT: u64 = 90;
const NEARLY_FULL: u64 = 3;
/// The largest window, in bytes.
const WINDOW_MAX: u64 = 256 << 20;
/// Which part of the log a window is at most: else writers and writeback would take turns.
const WINDOW_PART: u64 = 4;

/// How writeback behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Percent of the log that may fill before writeback runs beside foreground work.
    pub threshold_percent: u64,
    /// Bytes of a window while the log is nearly empty; it grows to four times this as it fills.
    pub window: u64,
    /// Writeback runs by itself; else only when somebody drains, or the log is nearly full.
    pub enabled: bool,
}

impl Default for Policy {
    fn default() -> Self {
        Self { threshold_percent: 50, window: 64 << 20, enabled: true }
    }
}

/// The threads; dropping it ends them.
pub struct Tending {
    logged: Arc<Logged>,
    draining: Arc<AtomicBool>,
    policy: Arc<Mutex<Policy>>,
    threads: Vec<JoinHandle<()>>,
}

impl Tending {
    /// Starts the threads of a log. Its drive is asked through `ring`, or else by threads; copies
    /// are compressed as `algorithm` says.
    ///
    /// # Errors
    /// The system gives no thread.
    pub fn start(
        logged: &Arc<Logged>,
        policy: Policy,
        algorithm: Algorithm,
        ring: Option<Ring>,
    ) -> Result<Self> {
        let ring = match ring {
            Some(ring) => ring,
            None => Ring::with_threads(logged.log_drive(), DEPTH)?,
        };
        logged.wakes(ring.waker());
        let mut tending = Self {
            logged: Arc::clone(logged),
            draining: Arc::new(AtomicBool::new(false)),
            policy: Arc::new(Mutex::new(policy)),
            threads: Vec::new(),
        };
        let own = Arc::clone(logged);
        tending.spawn("ztier-log", move || commit(&own, ring))?;
        let own = Arc::clone(logged);
        tending.spawn("ztier-keeper", move || Keeper::new(&own, algorithm).run())?;
        let (logged, draining) = (Arc::clone(logged), Arc::clone(&tending.draining));
        let policy = Arc::clone(&tending.policy);
        tending.spawn("ztier-writeback", move || write_back(&logged, &draining, &policy))?;
        Ok(tending)
    }

    fn spawn(&mut self, name: &str, work: impl FnOnce() + Send + 'static) -> Result<()> {
        let thread = Builder::new().name(name.into());
        self.threads.push(thread.spawn(work).context("cannot start a thread of the log")?);
        Ok(())
    }

    /// Begins to bring everything to the backing store, which then is the volume until the next
    /// write; or stops hurrying to.
    pub fn drain(&self, on: bool) {
        self.draining.store(on, Ordering::Release);
    }

    /// How writeback shall behave from now on.
    pub fn set_policy(&self, policy: Policy) {
        *self.policy.lock() = policy;
    }

    /// Makes everything durable, says on the log's drive that it was closed in order, and ends the
    /// threads. Nothing may be asked of the volume any more. `witness` says what is known of the
    /// backing store then, see [`crate::durable::Core::close`].
    ///
    /// # Errors
    /// The log has failed; it is then as after a cut of power.
    pub fn close(mut self, witness: &dyn Fn() -> u64) -> std::result::Result<(), Fault> {
        // If the log has failed, this waits until all is in the backing store.
        let _ = self.logged.flush();
        self.logged.stop_threads();
        self.join();
        if self.logged.core().is_through() {
            return self.logged.flush();
        }
        let ticket = self.logged.core().flush();
        self.logged.settle(|core| match core.progress(ticket) {
            Progress::Done => Some(Ok(())),
            Progress::Pending if !core.is_failed() => None,
            // There is nobody left who could save what it holds.
            Progress::Pending | Progress::Failed => Some(Err(Fault::Failed)),
        })?;
        let end = |done: bool, failed: bool| match (done, failed) {
            (true, _) => Some(Ok(())),
            (false, true) => Some(Err(Fault::Failed)),
            (false, false) => None,
        };
        self.logged.settle(|core| end(core.is_quiet(), core.is_failed()))?;
        self.logged.renew_identity()?;
        // What others may have in the page cache counts as written before, not after.
        let flushed = matches!(self.logged.flush_backing(), Outcome::Done);
        let witness = if flushed { witness() } else { 0 };
        self.logged.core().close(witness);
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

/// Carries out what nobody waits for, several commands at once, and moves the core's clock.
fn commit(logged: &Logged, mut ring: Ring) {
    loop {
        let patience = {
            let mut core = logged.core();
            core.tick(logged.now_ms());
            core.wall(crate::stats::time::now());
            while let Some(Command { id, at, op, .. }) = core.next_command() {
                let action = MutexGuard::unlocked(&mut core, || match op {
                    Op::Read(len) => ring::Op::Read(Buffer::new(len)),
                    Op::Write(bytes, range) => ring::Op::Write(bytes, range),
                    Op::Join(parts) => {
                        let whole = join(&parts);
                        let len = whole.len();
                        ring::Op::Write(Arc::new(whole), 0..len)
                    }
                    Op::Zero(len) => ring::Op::Zero { len },
                    Op::Flush => ring::Op::Flush,
                });
                ring.submit(Submission { id, action, at });
            }
            let more = core.is_copying() || core.is_forgetting_copies();
            if more { Duration::ZERO } else { TICK }
        };
        if logged.is_stopping() && ring.in_flight() == 0 {
            return;
        }
        for Completion { id, result } in ring.wait(patience) {
            let outcome = match result {
                Ok(Some(bytes)) => Outcome::Bytes(bytes),
                Ok(None) => Outcome::Done,
                Err(e) => Outcome::Failed(e),
            };
            logged.completed(id, &outcome);
        }
    }
}

fn write_back(logged: &Logged, draining: &AtomicBool, policy: &Mutex<Policy>) {
    while !logged.is_stopping() {
        let policy = *policy.lock();
        let hurry = draining.load(Ordering::Acquire);
        if hurry && finish(logged) {
            draining.store(false, Ordering::Release);
        }
        let (used, segments, log_bytes) = {
            let core = logged.core();
            let (used, segments) = core.fullness();
            (used, segments, segments * u64::from(core.superblock().segment))
        };
        let percent = used * 100 / segments.max(1);
        let rescuing = {
            let core = logged.core();
            core.is_rescuing() || core.is_recommitting()
        };
        let due = match policy.enabled {
            true => logged.idle() >= IDLE || percent >= policy.threshold_percent,
            // Who writes must not wait for ever.
            false => percent >= URGENT || used + NEARLY_FULL >= segments,
        };
        if !hurry && !rescuing && !due {
            std::thread::sleep(TICK);
            continue;
        }
        let bytes = (policy.window * (25 + percent * 3 / 4) / 25).min(WINDOW_MAX);
        let Some(plan) = logged.core().begin_window(bytes.min(log_bytes / WINDOW_PART)) else {
            std::thread::sleep(TICK);
            continue;
        };
        logged.pace().begin((used, segments));
        let pressed = || {
            let core = logged.core();
            let (used, segments) = core.fullness();
            let full = used * 100 >= segments * PRESSED_PERCENT || core.is_rescuing();
            full || draining.load(Ordering::Acquire) || logged.is_stopping()
        };
        logged.note_backing();
        let ended = carry(logged, Writeback::new(plan).watching(logged.samples()), &pressed);
        let failed = matches!(ended, Ended::Badly { .. });
        logged.pace().end();
        logged.core().end_window(ended);
        logged.settle(|core| (core.is_between_windows() || logged.is_stopping()).then_some(()));
        logged.note_backing();
        if failed {
            std::thread::sleep(PAUSE);
        }
    }
}

/// Makes everything ready to be written back. Whether nothing is left, or nothing can be done.
fn finish(logged: &Logged) -> bool {
    let failed = logged.flush().is_err();
    let mut core = logged.core();
    core.finish_segment();
    failed || core.is_clean()
}

/// Whether writeback has to hurry, whoever reads.
type Pressed<'a> = dyn Fn() -> bool + Sync + 'a;

/// Carries out a window: first what is read, then, when the log knows that samples of the backing
/// store's identity no longer count, what is written.
fn carry(logged: &Logged, writeback: Writeback, pressed: &Pressed<'_>) -> Ended {
    let writeback = Mutex::new(writeback);
    move_blocks(logged, &writeback, pressed);
    let held = writeback.lock().is_held();
    if held {
        if logged.forget(|blocks| writeback.lock().changes(blocks)).is_err() {
            return Ended::Badly { unread: false };
        }
        writeback.lock().proceed();
        move_blocks(logged, &writeback, pressed);
    }
    writeback.into_inner().ended().unwrap_or(Ended::Badly { unread: false })
}

/// Carries out commands by several threads, until there are no more or it is held.
fn move_blocks(logged: &Logged, writeback: &Mutex<Writeback>, pressed: &Pressed<'_>) {
    let news = Condvar::new();
    let mover = || {
        let mut work = writeback.lock();
        loop {
            // The log keeps what this window would have moved; nobody waits for a slow disk.
            if logged.is_stopping() {
                return;
            }
            let ends = work.is_over() || work.is_held();
            let brake = logged.brake();
            if !ends && !brake.admits(logged.now_ms()) && !pressed() {
                news.wait_for(&mut work, GIVE_WAY);
                continue;
            }
            if let Some(command) = work.next_command() {
                let moves = command.device == Device::Backing;
                if moves {
                    brake.begin();
                }
                let outcome = MutexGuard::unlocked(&mut work, || {
                    let outcome = logged.carry_out(&command);
                    let wants = moves && brake.wants_flush(logged.now_ms()) && !pressed();
                    let flush = wants && matches!(outcome, Outcome::Done);
                    if flush { logged.flush_backing() } else { outcome }
                });
                if moves {
                    brake.end();
                }
                work.complete(command.id, outcome);
                logged.advance(work.gone(WAY));
                news.notify_all();
            } else if work.is_over() || work.is_held() {
                return;
            } else {
                news.wait_for(&mut work, TICK);
            }
        }
    };
    std::thread::scope(|scope| {
        // As many as the system gives; without any, this one moves everything.
        for _ in 1..MOVERS {
            if Builder::new().spawn_scoped(scope, mover).is_err() {
                break;
            }
        }
        mover();
    });
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::logged::LogHand;
    use super::*;
    use crate::BLOCK_SIZE;
    use crate::durable::{Kept, Options, format, open};
    use crate::media::{Access, Drive, FileDrive, Memory};
    use crate::threadless::is_alone;

    #[test]
    fn a_window_ends_also_without_threads() {
        if !is_alone(module_path!(), "a_window_ends_also_without_threads") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let drive = |name, bytes| {
            let path = dir.path().join(name);
            std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
            Arc::new(FileDrive::open(&path, Access::Exclusive).unwrap())
        };
        let (log, backing) = (drive("log", 16 << 20), drive("backing", 1 << 20));
        format(&*log, [7; 16], [0; 64], 256, 64 << 10).unwrap();
        let kept = Kept::new(&Memory::default()).unwrap();
        let (core, _) = open(&*log, Options::default(), 1000, false, kept).unwrap();
        let below = Arc::clone(&backing) as Arc<dyn Drive>;
        let logged = Logged::new(Arc::new(Mutex::new(core)), log, below);
        let mut hand = LogHand::new(Algorithm::None);
        let content = |block| [[block as u8 + 1; BLOCK_SIZE]];
        for block in 0..40 {
            logged.write(&mut hand, block, &content(block)).unwrap();
        }
        assert!(!finish(&logged));
        let plan = logged.core().begin_window(1 << 20).unwrap();
        let ended = carry(&logged, Writeback::new(plan), &|| true);
        assert!(!matches!(ended, Ended::Badly { .. }), "{ended:?}");
        for block in 0..40 {
            let mut bytes = Buffer::new(BLOCK_SIZE);
            backing.read(block * BLOCK_SIZE as u64, &mut bytes).unwrap();
            assert!(bytes[..] == content(block)[0], "block {block}");
        }
    }
}

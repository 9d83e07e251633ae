//! The threads of a logged volume: commits that no request waits for, and writeback.
//!
//! Invariants: a writeback reads and writes without the core's lock; only where a window begins and
//! ends does it hold it. What each thread may wait for is in [`super::waits`]: the thread that
//! writes back makes room and rescues a log that has failed, so it waits for neither.

use super::admission::Admission;
use super::logged::{Fault, Logged};
use super::planted::{self, Bug};
use super::waits::{self, Awaited, Role};
use super::write_throttle::WAY;
use crate::codec::Algorithm;
use crate::error::{Context, Result};
use crate::log::core::{Command, Core, Device, Ended, Op, Outcome, Writeback, join};
use crate::media::{Buffer, ChangeCounter, Completion, Ring, Submission, ring};
use crate::sync::atomic::{AtomicU64, Ordering};
use crate::sync::{Condvar, JoinHandle, Mutex, scope, sleep, spawn, spawn_scoped, step_aside};
use std::sync::Arc;
use std::time::Duration;

/// Writes of the log that are in flight at once.
const DEPTH: u32 = 32;
/// Threads that carry out a window.
pub(super) const MOVERS: usize = 4;
/// How often the clock of the core is moved.
const TICK: Duration = Duration::from_millis(100);
/// A volume that gets no request for this long is idle.
const IDLE: Duration = Duration::from_millis(500);
/// How long a mover that gives way to readers waits before it asks again.
const GIVE_WAY: Duration = Duration::from_millis(5);
/// Percent of the log from which on writeback gives way to no reads.
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
    /// Writeback runs by itself; else only for a drain, or when the log is nearly full.
    pub enabled: bool,
}

impl Policy {
    /// Bytes of a window when so many percent of the log are in use.
    fn window_at(&self, percent: u64) -> u64 {
        (self.window * (25 + percent * 3 / 4) / 25).min(WINDOW_MAX)
    }

    /// The most bytes that a window can have.
    pub fn largest_window(&self) -> u64 {
        self.window_at(100)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self { threshold_percent: 50, window: 64 << 20, enabled: true }
    }
}

/// How far a drain has to come: the segments before this one, 0 for not at all.
#[derive(Debug, Default)]
struct Goal(AtomicU64);

impl Goal {
    fn set(&self, end: u64) {
        self.0.store(end, Ordering::Release);
    }

    /// Whether there is something to hurry for when the segments before `written` are written back.
    fn is_ahead_of(&self, written: u64) -> bool {
        self.0.load(Ordering::Acquire) > written
    }
}

/// The threads; dropping it ends them.
pub struct Runtime {
    logged: Arc<Logged>,
    draining: Arc<Goal>,
    policy: Arc<Mutex<Policy>>,
    threads: Vec<JoinHandle<()>>,
}

impl Runtime {
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
        let mut runtime = Self {
            logged: Arc::clone(logged),
            draining: Arc::default(),
            policy: Arc::new(Mutex::new(policy)),
            threads: Vec::new(),
        };
        let own = Arc::clone(logged);
        runtime.spawn("ztier-log", Role::Commit, move || commit(&own, ring))?;
        let own = Arc::clone(logged);
        let admit = move || Admission::new(&own, algorithm).run();
        runtime.spawn("ztier-admission", Role::Admission, admit)?;
        let (logged, draining) = (Arc::clone(logged), Arc::clone(&runtime.draining));
        let policy = Arc::clone(&runtime.policy);
        let move_back = move || write_back(&logged, &draining, &policy);
        runtime.spawn("ztier-writeback", Role::Writeback, move_back)?;
        Ok(runtime)
    }

    fn spawn(
        &mut self,
        name: &str,
        role: Role,
        work: impl FnOnce() + Send + 'static,
    ) -> Result<()> {
        let work = move || {
            waits::begin(role);
            work();
        };
        self.threads.push(spawn(name, work).context("cannot start a thread of the log")?);
        Ok(())
    }

    /// Hurries to bring everything to the backing store that the log has now, or stops hurrying to.
    /// It is there when the log's tail has come to the segment that is returned. What the log takes
    /// meanwhile does not count: under a load that would never end.
    pub fn drain(&self, on: bool) -> u64 {
        let end = if on { self.logged.core().end() } else { 0 };
        self.draining.set(end);
        end
    }

    /// How writeback shall behave from now on.
    pub fn set_policy(&self, policy: Policy) {
        *self.policy.lock() = policy;
    }

    /// Makes everything durable, says on the log's drive that it was closed in order, and ends the
    /// threads. Nothing may be asked of the volume any more. `count` reads the change counter of
    /// the backing store then, see [`crate::log::Core::close`].
    ///
    /// # Errors
    /// The log has failed; it is then as after a cut of power.
    pub fn close(mut self, count: &dyn Fn() -> ChangeCounter) -> std::result::Result<(), Fault> {
        // If the log has failed, this waits until all is in the backing store.
        let _ = self.logged.flush();
        self.logged.stop_threads();
        self.join();
        if self.logged.core().is_through() {
            return self.logged.flush();
        }
        // The threads are gone that could rescue what a log holds that fails now.
        match planted::on(Bug::CloseAwaitsRescue) {
            true => self.logged.flush()?,
            false => self.logged.commit()?,
        }
        let end = |done: bool, failed: bool| match (done, failed) {
            (true, _) => Some(Ok(())),
            (false, true) => Some(Err(Fault::Failed)),
            (false, false) => None,
        };
        let settle = |done: fn(&Core) -> bool| {
            self.logged.settle(Awaited::Commit, |core| end(done(core), core.is_failed()))
        };
        settle(Core::is_quiet)?;
        self.logged.renew_identity()?;
        // What others may have in the page cache counts as written before, not after.
        let flushed = matches!(self.logged.flush_backing(), Outcome::Done);
        let counter = if flushed { count() } else { ChangeCounter::default() };
        self.logged.core().close(counter);
        settle(Core::is_closed)
    }

    fn join(&mut self) {
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

impl Drop for Runtime {
    fn drop(&mut self) {
        self.logged.stop_threads();
        self.join();
    }
}

/// Carries out commands that no request waits for, several at once, and moves the core's clock.
fn commit(logged: &Logged, mut ring: Ring) {
    loop {
        let patience = {
            let mut core = logged.core();
            core.tick(logged.now_ms());
            core.wall(crate::stats::time::now());
            while let Some(Command { id, at, op, .. }) = core.next_command() {
                drop(core);
                let action = match op {
                    Op::Read(len) => ring::Op::Read(Buffer::new(len)),
                    Op::Write(bytes, range) => ring::Op::Write(bytes, range),
                    Op::Join(parts) => {
                        let whole = join(&parts);
                        let len = whole.len();
                        ring::Op::Write(Arc::new(whole), 0..len)
                    }
                    Op::Zero(len) => ring::Op::Zero { len },
                    Op::Flush => ring::Op::Flush,
                };
                ring.submit(Submission { id, action, at });
                core = logged.core();
            }
            let more = core.is_copying() || core.is_stepping();
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

fn write_back(logged: &Logged, draining: &Goal, policy: &Mutex<Policy>) {
    while !logged.is_stopping() {
        let policy = *policy.lock();
        let hurry = hurries(logged, draining);
        if hurry {
            close_segment(logged, draining);
        }
        let Some((bytes, fullness)) = due(logged, policy, hurry) else {
            sleep(TICK);
            continue;
        };
        let Some(plan) = logged.core().begin_window(bytes) else {
            sleep(TICK);
            continue;
        };
        logged.write_throttle().begin(fullness);
        let pressed = || {
            let core = logged.core();
            let (used, segments) = core.fullness();
            let full = used * 100 >= segments * PRESSED_PERCENT || core.is_rescuing();
            drop(core);
            full || hurries(logged, draining) || logged.is_stopping()
        };
        logged.note_backing();
        let before = logged.core().windows_failed();
        let ended = carry(logged, Writeback::new(plan).watching(logged.samples()), &pressed);
        if matches!(ended, Ended::Well { .. }) {
            logged.remember();
        }
        logged.write_throttle().end();
        logged.core().end_window(ended);
        let between = |core: &mut Core| core.is_between_windows() || logged.is_stopping();
        logged.settle(Awaited::Commit, |core| between(core).then_some(()));
        let failed = logged.core().windows_failed() > before;
        logged.note_window(!failed || planted::on(Bug::ForgetFailedWindows));
        logged.note_backing();
        if failed {
            sleep(PAUSE);
        }
    }
}

/// Whether a drain is under way.
fn hurries(logged: &Logged, draining: &Goal) -> bool {
    let core = logged.core();
    draining.is_ahead_of(core.written()) && !core.is_clean()
}

/// How many bytes the next window has, and how full the log is; `None` if it is not time for one.
fn due(logged: &Logged, policy: Policy, hurry: bool) -> Option<(u64, (u64, u64))> {
    let core = logged.core();
    let (used, segments) = core.fullness();
    let log_bytes = segments * u64::from(core.superblock().segment);
    let must = hurry || core.is_rescuing() || core.is_recommitting();
    drop(core);
    let percent = used * 100 / segments.max(1);
    let due = match policy.enabled {
        true => logged.idle() >= IDLE || percent >= policy.threshold_percent,
        // Requests must not wait for room for ever.
        false => percent >= URGENT || used + NEARLY_FULL >= segments,
    };
    let bytes = policy.window_at(percent);
    (must || due).then(|| (bytes.min(log_bytes / WINDOW_PART), (used, segments)))
}

/// Makes everything ready to be written back that a drain is for.
fn close_segment(logged: &Logged, draining: &Goal) {
    // Of a log that fails meanwhile the rescue takes all.
    let _ = match planted::on(Bug::DrainAwaitsRescue) {
        true => logged.flush(),
        false => logged.commit(),
    };
    let mut core = logged.core();
    // The last segment of the goal may still be open.
    if draining.is_ahead_of(core.end() - 1) {
        core.finish_segment();
    }
}

/// Whether writeback has to hurry, and gives way to no reads.
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

/// Carries out one command of a window.
fn move_one(logged: &Logged, command: &Command, pressed: &Pressed<'_>) -> Outcome {
    let (throttle, moves) = (logged.writeback_throttle(), command.device == Device::Backing);
    if moves {
        throttle.begin();
    }
    let outcome = logged.carry_out(command);
    let wants = moves && throttle.wants_flush(logged.now_ms()) && !pressed();
    let flush = wants && matches!(outcome, Outcome::Done);
    let outcome = if flush { logged.flush_backing() } else { outcome };
    if moves {
        throttle.end();
    }
    if let Outcome::Failed(e) = outcome {
        logged.note_failure(e);
    }
    outcome
}

/// Carries out commands by several threads, until there are no more or it is held.
fn move_blocks(logged: &Logged, writeback: &Mutex<Writeback>, pressed: &Pressed<'_>) {
    let changed = Condvar::default();
    let mover = || {
        waits::begin(Role::Writeback);
        let mut work = writeback.lock();
        loop {
            // The log keeps what this window would have moved; a stop must not wait for a slow
            // disk.
            if logged.is_stopping() {
                return;
            }
            let ends = work.is_over() || work.is_held();
            if !ends && !logged.writeback_throttle().admits(logged.now_ms()) && !pressed() {
                work = changed.wait_for(writeback, work, GIVE_WAY);
            } else if let Some(command) = work.next_command() {
                drop(work);
                let outcome = move_one(logged, &command, pressed);
                work = writeback.lock();
                work.complete(command.id, outcome);
                logged.advance(work.gone(WAY));
                changed.notify_all();
            } else if work.is_stepping() {
                // In steps, so that it is seen between them that the volume goes down.
                logged.advance(work.gone(WAY));
                work = step_aside(writeback, work);
            } else if work.is_over() || work.is_held() {
                return;
            } else {
                work = changed.wait_for(writeback, work, TICK);
            }
        }
    };
    scope(|scope| {
        // As many as the system gives; without any, this one moves everything.
        for _ in 1..MOVERS {
            if spawn_scoped(scope, mover).is_err() {
                break;
            }
        }
        mover();
    });
}

#[cfg(all(test, not(miri)))]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::super::logged::LogIoContext;
    use super::*;
    use crate::BLOCK_SIZE;
    use crate::log::core::{Kept, Options};
    use crate::log::disk::format::IDENTITY;
    use crate::log::recovery::{format, open};
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
        format(&*log, [7; 16], [0; IDENTITY], 256, 64 << 10).unwrap();
        let kept = Kept::new(&Memory::default()).unwrap();
        let (core, _) = open(&*log, Options::default(), 1000, false, kept).unwrap();
        let below = Arc::clone(&backing) as Arc<dyn Drive>;
        let logged = Logged::new(Arc::new(Mutex::new(core)), log, below);
        let mut io = LogIoContext::new(Algorithm::None);
        let content = |block| [[block as u8 + 1; BLOCK_SIZE]];
        for block in 0..40 {
            logged.write(&mut io, block, &content(block)).unwrap();
        }
        logged.commit().unwrap();
        logged.core().finish_segment();
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

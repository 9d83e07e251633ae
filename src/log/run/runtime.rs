//! The threads of a logged volume: background commits, admission of copies, writeback.
//!
//! Invariants: writeback does no I/O under the core's lock; a window needs that lock only where it
//! begins and ends. [`super::waits`] says what each thread may wait for: the writeback thread makes
//! room and rescues a failed log, so it waits for neither.

use super::admission::Admission;
use super::goal::Goal;
use super::logged::{Fault, Logged, MOVERS};
use super::planted::{self, Bug};
use super::waits::{self, Awaited, Role};
use super::write_throttle::WAY;
use crate::codec::Algorithm;
use crate::error::{Context, Result};
use crate::log::core::{Command, Core, Device, Ended, Op, Outcome, Writeback, join};
use crate::media::{
    Action, Buffer, ChangeCounter, Commit, Completion, DriveError, Ring, Submission, ring,
};
use crate::sync::{Condvar, JoinHandle, Mutex, scope, sleep, spawn, spawn_scoped, step_aside};
use std::sync::Arc;
use std::time::Duration;

/// Depth of the log drive's ring, if [`Runtime::start`] makes it.
const DEPTH: u32 = 32;
/// Period of the core's clock tick, and of the checks whether a window is due.
const TICK: Duration = Duration::from_millis(100);
/// How long a throttled thread of a window waits before it asks again.
const GIVE_WAY: Duration = Duration::from_millis(5);
/// Percent of the log in use from which on writeback is not throttled for readers.
const PRESSED_PERCENT: u64 = 90;
/// How long writeback waits after a failed window.
const PAUSE: Duration = Duration::from_secs(1);
/// Percent of the log in use, and free segments left, at which writeback runs even if disabled.
const URGENT: u64 = 90;
const NEARLY_FULL: u64 = 3;
/// The largest window, in bytes.
const WINDOW_MAX: u64 = 256 << 20;
/// The largest window of an atomic drive, which keeps all of it in memory until the commit.
const ATOMIC_WINDOW_MAX: u64 = 32 << 20;
/// A window is at most one in this many of the log: else writers and writeback would take turns.
const WINDOW_PART: u64 = 4;

/// How writeback behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Percent of the log that may fill before writeback runs beside foreground work. At 0 the
    /// backing store gets everything: also what is only in the newest segment, once its oldest
    /// change is [`Self::idle`] old.
    pub threshold_percent: u64,
    /// Bytes of a window while the log is nearly empty; it grows to four times this as it fills.
    pub window: u64,
    /// Time without a request after which writeback runs.
    pub idle: Duration,
    /// Writeback runs by itself. If false, it runs only for a drain, a rescue, a recommit, or when
    /// the log is nearly full.
    pub enabled: bool,
    /// What the backing store may lack, if it is a store of objects: this instead of idle times
    /// says when a window is due.
    pub unsent: Option<Unsent>,
}

/// What a store of objects may lack of its log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsent {
    /// Bytes of segments.
    pub bytes: u64,
    /// Age of the oldest change.
    pub age: Duration,
    /// Beyond that, writers wait.
    pub waits: bool,
}

impl Unsent {
    /// Whether a window is due when the store lacks these bytes, the oldest for this time in
    /// milliseconds. Half of what may be unsent is left for the time that the window takes.
    fn is_due(&self, (bytes, age_ms): (u64, u64)) -> bool {
        bytes >= ATOMIC_WINDOW_MAX.min(self.bytes / 2) || self.is_aged(age_ms)
    }

    fn is_aged(&self, age_ms: u64) -> bool {
        Duration::from_millis(age_ms) >= self.age / 2
    }
}

impl Policy {
    /// Bytes of a window when `percent` of the log is in use.
    fn window_at(&self, percent: u64) -> u64 {
        let most = if self.unsent.is_some() { ATOMIC_WINDOW_MAX } else { WINDOW_MAX };
        (self.window * (25 + percent * 3 / 4) / 25).min(most)
    }

    /// Bytes of the largest window, that of a full log.
    pub fn largest_window(&self) -> u64 {
        self.window_at(100)
    }
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            threshold_percent: 50,
            window: 64 << 20,
            idle: Duration::from_millis(500),
            enabled: true,
            unsent: None,
        }
    }
}

/// The threads of a log. Dropping it ends them.
pub struct Runtime {
    logged: Arc<Logged>,
    draining: Arc<Goal>,
    policy: Arc<Mutex<Policy>>,
    threads: Vec<JoinHandle<()>>,
}

impl Runtime {
    /// Starts the threads of a log. Log I/O goes through `ring`, or, if there is none, through a
    /// ring of threads. Copies are compressed by `algorithm`.
    ///
    /// # Errors
    /// A thread cannot be started.
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
        bound(logged, &policy);
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

    /// Starts (`on`) or stops a drain: writeback hurries until the backing store has all that the
    /// log holds now. The drain is done when all segments before the returned one are written back.
    /// Later writes do not count: under load a drain would never end.
    pub fn drain(&self, on: bool) -> u64 {
        let end = if on { self.logged.core().end() } else { 0 };
        self.draining.set(end);
        end
    }

    /// Replaces the writeback policy.
    pub fn set_policy(&self, policy: Policy) {
        *self.policy.lock() = policy;
        bound(&self.logged, &policy);
    }

    /// Makes everything durable, ends the threads, and marks the log as closed in order. The caller
    /// sends no more requests. `count` reads the change counter of the backing store, which goes
    /// into the mark; see [`crate::log::Core::close`].
    ///
    /// # Errors
    /// The log has failed; it is left as after a power cut.
    pub fn close(mut self, count: &dyn Fn() -> ChangeCounter) -> std::result::Result<(), Fault> {
        // If the log has failed, this waits for its rescue: all of it is in the backing store.
        let _ = self.logged.flush();
        self.logged.stop_threads();
        self.join();
        if self.logged.core().is_through() {
            return self.logged.flush();
        }
        // No thread is left to rescue a log that fails from here on: wait for a commit only.
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
            self.logged.settle(Awaited::Commit, |core| {
                // A window may be judged only now, and the thread that would have an atomic backing
                // store commit it has ended.
                core.leave_commit();
                end(done(core), core.is_failed())
            })
        };
        settle(Core::is_quiet)?;
        self.logged.renew_identity()?;
        // Flushed first: what other programs have in the page cache counts as written before.
        let backing = self.logged.backing();
        let flushed = !backing.is_atomic() && backing.flush().is_ok();
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

/// Has writers wait for a store, as the policy says.
fn bound(logged: &Logged, policy: &Policy) {
    let most = policy.unsent.filter(|unsent| unsent.waits);
    let most = most.map(|unsent| (unsent.bytes, unsent.age.as_millis() as u64));
    logged.core().set_unsent_max(most);
}

/// The commit thread: carries out commands that no request waits for, several in flight at once,
/// and moves the core's clock.
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
                    Op::WritePacked(_) => unreachable!("no log takes packed blocks"),
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
        } else if policy.enabled && ages(logged, &policy) {
            close_aged(logged);
        }
        let Some((bytes, fullness)) = due(logged, policy, hurry) else {
            logged.pause();
            continue;
        };
        let Some(plan) = logged.core().begin_window(bytes) else {
            logged.pause();
            continue;
        };
        // Before writers are held: the listener may write to a file system on the volume itself.
        logged.note_backing();
        logged.write_throttle().begin(fullness);
        let pressed = || {
            let core = logged.core();
            let (used, segments) = core.fullness();
            let full = used * 100 >= segments * PRESSED_PERCENT || core.is_rescuing();
            drop(core);
            full || hurries(logged, draining) || logged.is_stopping()
        };
        logged.backing().begin();
        let before = logged.core().windows_failed();
        let ended = carry(logged, Writeback::new(plan).watching(logged.samples()), &pressed);
        if matches!(ended, Ended::Well { .. }) {
            logged.remember();
        }
        logged.write_throttle().end();
        logged.core().end_window(ended);
        let ready = |core: &mut Core| {
            let due = core.commit_due();
            (due.is_some() || core.is_between_windows() || logged.is_stopping()).then_some(due)
        };
        if let Some(due) = logged.settle(Awaited::Commit, ready) {
            bring(logged, &due);
            logged.settle(Awaited::Commit, |core| ready(core).map(drop));
        }
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
    let ahead = draining.is_ahead_of(core.written()) || logged.remote().is_ahead_of(core.brought());
    ahead && !core.is_clean()
}

/// Bytes of the next window, and the log's fullness (segments in use, all segments). `None`: no
/// window is due.
fn due(logged: &Logged, policy: Policy, hurry: bool) -> Option<(u64, (u64, u64))> {
    let core = logged.core();
    let (used, segments) = core.fullness();
    let log_bytes = segments * u64::from(core.superblock().segment);
    let must = hurry || core.is_rescuing() || core.is_recommitting();
    let unsent = core.unsent();
    drop(core);
    let percent = used * 100 / segments.max(1);
    let waits = match policy.unsent {
        Some(most) => most.is_due(unsent),
        None => logged.idle() >= policy.idle,
    };
    let due = match policy.enabled {
        true => waits || percent >= policy.threshold_percent,
        // Even if disabled: requests must not wait for room for ever.
        false => percent >= URGENT || used + NEARLY_FULL >= segments,
    };
    let bytes = policy.window_at(percent);
    (must || due).then(|| (bytes.min(log_bytes / WINDOW_PART), (used, segments)))
}

/// Commits what a drain is to write back, and closes the open segment if the drain needs it.
fn close_segment(logged: &Logged, draining: &Goal) {
    // If the log fails here, the rescue writes everything back.
    let _ = match planted::on(Bug::DrainAwaitsRescue) {
        true => logged.flush(),
        false => logged.commit(),
    };
    let mut core = logged.core();
    // The last segment of the goal may still be open.
    let last = core.end() - 1;
    if draining.is_ahead_of(last) || logged.remote().is_ahead_of(last) {
        core.finish_segment();
    }
}

/// The failure of a flush that the end of the volume has cut short.
fn interrupted() -> DriveError {
    let errno = rustix::io::Errno::INTR.raw_os_error();
    DriveError { action: Action::Flush, at: 0, len: 0, errno }
}

/// Whether the oldest change is so old that a window is due, even if only the open segment has it.
/// Before a drive only a threshold of 0 asks for that: it costs the rest of the segment, and a log
/// that absorbs writes would wake a slow disk for each of them.
fn ages(logged: &Logged, policy: &Policy) -> bool {
    let core = logged.core();
    let (age_ms, alone) = (core.unsent().1, core.fullness().0 == 1);
    let aged = match policy.unsent {
        Some(unsent) => unsent.is_aged(age_ms),
        None => {
            let aged = Duration::from_millis(age_ms) >= policy.idle;
            policy.threshold_percent == 0 && alone && aged
        }
    };
    aged && !core.is_clean()
}

/// Commits what is to be sent, and closes the open segment if only that has it.
fn close_aged(logged: &Logged) {
    // If the log fails here, the rescue writes everything back.
    let _ = logged.commit();
    let mut core = logged.core();
    if core.fullness().0 == 1 {
        core.finish_segment();
    }
}

/// Whether writeback must hurry, and so ignores the throttle.
type Pressed<'a> = dyn Fn() -> bool + Sync + 'a;

/// Carries out a window: reads; then, if it changes ranges with samples of the backing store's
/// identity, makes a superblock without these samples durable; then writes.
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

/// Has an atomic backing store commit a window, until it has done so or the volume stops.
fn bring(logged: &Logged, commit: &Commit) {
    match patiently(logged, || logged.backing().commit(commit, TICK)) {
        true => logged.committed(commit),
        // It may be done all the same: the next process finds out.
        false => logged.core().leave_commit(),
    }
}

/// Asks an atomic backing store again and again, through outages: what it has of a window stays.
/// Returns whether it did its part before the volume stopped.
fn patiently(logged: &Logged, ask: impl Fn() -> std::result::Result<bool, DriveError>) -> bool {
    while !logged.is_stopping() {
        match ask() {
            Ok(true) => return true,
            Ok(false) => {}
            Err(e) => {
                logged.note_failure(e);
                logged.note_window(false);
                sleep(PAUSE);
            }
        }
    }
    false
}

/// Carries out one command of a window.
fn move_one(logged: &Logged, command: &Command, pressed: &Pressed<'_>) -> Outcome {
    let (throttle, moves) = (logged.writeback_throttle(), command.device == Device::Backing);
    if moves {
        throttle.begin();
    }
    let outcome = match command.op {
        Op::Flush if moves && logged.backing().is_atomic() => {
            match patiently(logged, || logged.backing().settle(TICK)) {
                true => Outcome::Done,
                false => Outcome::Failed(interrupted()),
            }
        }
        _ => logged.carry_out(command),
    };
    // Of an atomic drive, flushed parts of a window are of no use to readers.
    let wants = moves && !logged.backing().is_atomic() && throttle.wants_flush(logged.now_ms());
    let flush = wants && !pressed() && matches!(outcome, Outcome::Done);
    let outcome = if flush { logged.flush_backing() } else { outcome };
    if moves {
        throttle.end();
    }
    if let Outcome::Failed(e) = outcome {
        logged.note_failure(e);
    }
    outcome
}

/// Carries out commands with up to [`MOVERS`] threads, until the window is over or held.
fn move_blocks(logged: &Logged, writeback: &Mutex<Writeback>, pressed: &Pressed<'_>) {
    let changed = Condvar::default();
    let mover = || {
        waits::begin(Role::Writeback);
        let mut work = writeback.lock();
        loop {
            // A window that is given up loses nothing, as the log keeps it. A stop must not wait
            // for a slow disk.
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
                // In steps: between two of them this thread checks whether the volume stops.
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
        // As many threads as the system gives; without any, this one moves everything.
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
    use crate::log::disk::format::{IDENTITY, data_at};
    use crate::log::recovery::{format, open};
    use crate::media::{ALIGN, Access, Drive, FileDrive, Memory};
    use crate::threadless::is_alone;
    use std::path::Path;
    use std::sync::atomic::{AtomicBool, Ordering};

    const SEGMENT: u32 = 64 << 10;

    /// A log of 256 blocks, without threads, and its drives, which are files in `dir`.
    fn logged_in(dir: &Path, options: Options) -> (Arc<Logged>, [Arc<FileDrive>; 2]) {
        let drive = |name, bytes| {
            let path = dir.join(name);
            std::fs::File::create(&path).unwrap().set_len(bytes).unwrap();
            Arc::new(FileDrive::open(&path, Access::Exclusive).unwrap())
        };
        let (log, backing) = (drive("log", 16 << 20), drive("backing", 1 << 20));
        format(&*log, [7; 16], [0; IDENTITY], 256, SEGMENT).unwrap();
        let kept = Kept::new(&Memory::default()).unwrap();
        let (core, _) = open(&*log, options, 1000, false, kept).unwrap();
        let drives = [Arc::clone(&log), Arc::clone(&backing)];
        (Arc::new(Logged::new(Arc::new(Mutex::new(core)), log, backing)), drives)
    }

    #[test]
    fn a_window_ends_also_without_threads() {
        if !is_alone(module_path!(), "a_window_ends_also_without_threads") {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let (logged, [_, backing]) = logged_in(dir.path(), Options::default());
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

    /// A window with a damaged block is committed only when the record that the block is lost is
    /// durable. Here the writeback thread has ended before that.
    #[test]
    fn a_volume_that_stops_while_a_window_is_judged_can_be_closed() {
        let dir = tempfile::tempdir().unwrap();
        let options = Options { atomic: true, ..Options::default() };
        let (logged, [log, _]) = logged_in(dir.path(), options);
        let mut io = LogIoContext::new(Algorithm::None);
        let content = std::array::from_fn(|i| (i % 251) as u8);
        logged.write(&mut io, 0, &[content]).unwrap();
        logged.commit().unwrap();
        logged.core().finish_segment();
        // In the payload.
        let (at, mut page) = (data_at(log.size(), SEGMENT), Buffer::new(ALIGN));
        log.read(at, &mut page).unwrap();
        page[200] ^= 0x40;
        log.write(at, &page).unwrap();
        let plan = logged.core().begin_window(1 << 20).unwrap();
        let ended = carry(&logged, Writeback::new(plan), &|| true);
        assert!(matches!(&ended, Ended::Well { damaged, .. } if damaged.len() == 1), "{ended:?}");
        logged.core().end_window(ended);
        assert!(logged.core().commit_due().is_none(), "the window is judged");
        let policy = Arc::new(Mutex::new(Policy::default()));
        let runtime = Runtime { logged, draining: Arc::default(), policy, threads: Vec::new() };
        let (done, closed) = std::sync::mpsc::channel();
        std::thread::spawn(move || done.send(runtime.close(&ChangeCounter::default)));
        assert_eq!(closed.recv_timeout(Duration::from_secs(60)), Ok(Ok(())));
    }

    /// This machine's record may be in a file system on the volume itself.
    #[test]
    fn no_writer_is_held_while_the_state_of_the_backing_store_is_noted() {
        let dir = tempfile::tempdir().unwrap();
        let (logged, _) = logged_in(dir.path(), Options::default());
        let (own, held) = (Arc::downgrade(&logged), Arc::new(AtomicBool::new(false)));
        let seen = Arc::clone(&held);
        logged.listen(Box::new(move |_| {
            let holds = own.upgrade().is_some_and(|log| log.write_throttle().holds((99, 100)));
            seen.fetch_or(holds, Ordering::SeqCst);
        }));
        let runtime = Runtime::start(&logged, Policy::default(), Algorithm::None, None).unwrap();
        let mut io = LogIoContext::new(Algorithm::None);
        logged.write(&mut io, 0, &[[1; BLOCK_SIZE]]).unwrap();
        runtime.drain(true);
        let began = std::time::Instant::now();
        while !logged.core().is_clean() {
            assert!(began.elapsed().as_secs() < 60, "{:?}", logged.core().stats());
            std::thread::sleep(Duration::from_millis(5));
        }
        runtime.close(&ChangeCounter::default).unwrap();
        assert!(logged.core().stats().windows > 0 && !held.load(Ordering::SeqCst));
    }
}

//! The daemon itself, from taking the lock to removing the last file.

use super::freed_slots::FreedSlots;
use super::limiter::Limiter;
use super::making::{self, Made};
use super::memory_holder::MemoryHolder;
use super::presence::Presence;
use super::signals::{self, Event};
use super::state::{self, Found, Lock, State};
use super::swap_thread::SwapThread;
use super::takeover::Inherited;
use super::troubles::Troubles;
use super::{events, log, notify, opening, resident, serve, swapping};
use crate::config::paths::VolumeFiles;
use crate::config::{Paths, Plan, Usage};
use crate::control::{Handler, Server};
use crate::device::{Device, Serving};
use crate::error::{Error, Result};
use crate::escape::escape;
use crate::export::{Export, Leftover};
use crate::system::reclaim::make_present;
use crate::system::usage;
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a process that only checks the lock may hold it.
pub const LOOKERS: Duration = Duration::from_millis(300);
/// How long a request waits while the export is being stopped.
pub(super) const BUSY: Duration = Duration::from_secs(2);
/// How long a client that has hung up may still count as a holder.
const LEAVING: Duration = Duration::from_secs(1);
/// The most queued events; their memory is allocated at the start.
const EVENTS: usize = 64;
/// Interval between checks whether the device is still held, for a daemon that was asked to end.
const RETRY: Duration = Duration::from_millis(250);

/// A daemon's report once its device is usable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// The paths or addresses that users open.
    pub endpoints: Vec<String>,
    /// The daemon's process.
    pub pid: u32,
    /// The plan as carried out.
    pub plan: Plan,
    /// Removed leftovers of an earlier daemon of this volume, in words.
    pub removed: Vec<String>,
    /// Further notes for the user.
    pub notes: Vec<String>,
    /// Lost data that no user has noted yet, in words.
    #[serde(default)]
    pub loss: Option<String>,
}

/// A volume that is up.
pub(super) struct Running {
    pub(super) name: String,
    pub(super) volume: Arc<dyn Serving>,
    /// Why the device must not be swap; `None` if it may.
    pub(super) unsafe_for_swap: Option<String>,
    /// This object, for threads that work for it.
    pub(super) me: Weak<Self>,
    /// Lock for changes of the volume's sizes; taken before `state`.
    pub(super) changing: Mutex<()>,
    /// Adapts the memory limit; `None` if the limit is fixed.
    pub(super) limiter: Mutex<Option<Limiter>>,
    /// Fits the volume to carrying swap; `None` if it carries none.
    pub(super) swap_thread: Mutex<Option<SwapThread>>,
    /// Drops blocks of freed swap slots; `None` if the volume carries no swap.
    pub(super) freed_slots: Mutex<Option<FreedSlots>>,
    /// Lock for changes of the device's use.
    using: Mutex<()>,
    /// `None` once the export is stopped.
    pub(super) export: Mutex<Option<Box<dyn Export>>>,
    pub(super) state: Mutex<State>,
    pub(super) files: VolumeFiles,
    pub(super) events: Mutex<SyncSender<Event>>,
    pub(super) memory_holder: Mutex<Option<MemoryHolder>>,
    /// Directory with this machine's records of backing stores.
    pub(super) records: PathBuf,
    /// The plan of the next daemon, if another one.
    pub(super) next: Mutex<Option<Plan>>,
    /// The number of control requests that wait for the log to be drained.
    pub(super) draining: Mutex<usize>,
}

/// How a daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The volume is down, and nothing of it is left.
    Down,
    /// The volume waits for its next daemon.
    Left,
    /// The volume waits for its next daemon, which this process becomes.
    Again,
}

/// A daemon's order.
pub struct Order<'a> {
    /// The volume's plan.
    pub plan: Plan,
    /// Its directories.
    pub paths: &'a Paths,
    /// How long to wait for another daemon to release the volume.
    pub patience: Duration,
    /// Whether a supervisor watches this process.
    pub foreground: bool,
    /// Whether there must be an earlier daemon to take over from.
    pub follows: bool,
    /// Whether the daemon is still wanted; called while another daemon has the volume.
    pub wanted: &'a dyn Fn() -> bool,
}

/// Runs a daemon in this process until it is told to end. `ready` is called once the device is
/// usable. If that fails, the daemon of a new volume ends (no user would know that it runs), but
/// one that took a volume over serves it. `progress` is called now and then while the volume comes
/// up.
///
/// # Errors
/// The reason why the volume did not come up; then only the leftovers of an earlier daemon remain.
/// Later trouble is logged.
pub fn run(
    order: Order<'_>,
    progress: &dyn Fn(&str),
    ready: impl FnOnce(&Ready) -> Result<()>,
) -> Result<End> {
    let Order { plan, paths, patience, foreground, follows, wanted } = order;
    let unprepared = serve::prepare(&plan)?;
    let files = files_of(&plan, paths)?;
    let (events, inbox) = mpsc::sync_channel(EVENTS);
    let Some(lock) = Lock::acquire_while(&files, patience, wanted)? else {
        return Err(already_up(paths, &plan.name));
    };
    signals::watch(events.clone())?;
    let inherited = Inherited::find(&files, &plan.name)?;
    if follows && inherited.is_nothing() {
        state::clean(lock, &files)?;
        return Err(Error::not_found(format!("volume `{}` was taken down meanwhile", plan.name))
            .hint("bring it up with `ztier up`"));
    }
    let goes_on = inherited.goes_on();
    let (plan, mut notes) = inherited.fit(plan);
    let removed = inherited.clean(&files, &plan)?;
    let name = plan.name.clone();
    if plan.job.is_some() {
        notes.extend(
            unprepared.as_ref().map(|why| {
                format!("not safe should the machine itself run short of memory: {why}")
            }),
        );
    }
    let progress = |what: &str| {
        opening::note(&files, what);
        progress(what);
    };
    let bringing =
        Bringing { plan, paths, files: &files, foreground, progress: &progress, unprepared };
    let up = bringing.up(inherited, events, &mut notes);
    opening::forget(&files);
    let (running, control) = match up {
        Ok(up) => up,
        Err(e) => {
            if goes_on {
                log::line("what the last daemon left is kept");
            } else if let Err(left) = state::clean(lock, &files) {
                // The first error is reported; what can't be removed stays in the state file.
                log::line(&left.to_string());
            }
            return Err(e);
        }
    };
    for what in &removed {
        log::line(&format!("removed {what}, left by an earlier daemon"));
    }
    let now = running.ready(removed, notes);
    let endpoints = now.endpoints.join(" ");
    log::line(&format!("{name} is up: {endpoints}"));
    notify::send(&format!("READY=1\nMAINPID={}\nSTATUS={}\n", now.pid, escape(&endpoints)));
    let mut presence = Presence { control, lock };
    let end = match ready(&now) {
        Ok(()) => wait(&running, &inbox, &mut presence),
        Err(e) => {
            log::line(&e.to_string());
            // A volume that existed before does not end with its caller.
            if goes_on { wait(&running, &inbox, &mut presence) } else { running.give_up() }
        }
    };
    running.end(end, presence);
    Ok(end)
}

/// The files of a volume, in a directory that is there.
fn files_of(plan: &Plan, paths: &Paths) -> Result<VolumeFiles> {
    paths.prepare()?;
    let files = paths.volume(&plan.name);
    if matches!(plan.usage, Some(Usage::Swap { .. })) {
        resident::begin(&files);
    }
    Ok(files)
}

fn already_up(paths: &Paths, name: &str) -> Error {
    let error = match state::find(paths, name) {
        Found::Up(Some(state)) => {
            Error::busy(format!("volume `{name}` is already up (process {})", state.pid))
        }
        _ => Error::busy(format!("volume `{name}` is already up")),
    };
    error.hint(format!("use another name, or `ztier down {name}` first"))
}

/// The error for a request that comes while another thread changes the volume.
pub(super) fn being_changed(running: &Running) -> Error {
    Error::busy(format!("volume `{}` is being changed", running.name)).hint("try again soon")
}

/// The input for bringing a volume up.
struct Bringing<'a> {
    plan: Plan,
    paths: &'a Paths,
    files: &'a VolumeFiles,
    foreground: bool,
    progress: &'a dyn Fn(&str),
    /// Why this process must not carry swap; `None` if it may.
    unprepared: Option<String>,
}

impl Bringing<'_> {
    fn up(
        self,
        inherited: Inherited,
        events: SyncSender<Event>,
        notes: &mut Vec<String>,
    ) -> Result<(Arc<Running>, Server)> {
        let Self { mut plan, paths, files, .. } = self;
        if let Some(bounds) = plan.ram_auto.filter(|_| plan.is_volatile()) {
            // The limit that the last daemon had adapted may no longer fit the machine.
            plan.ram_limit_bytes = bounds.max_bytes;
        }
        let again = inherited.taken_up(&plan);
        // A device that waited is still mounted.
        if let Some(usage) = plan.usage.as_ref().filter(|_| again.is_empty()) {
            usage::refuse_place(usage)?;
        }
        let (restarts, compresses_percent) = (inherited.restarts(), inherited.compresses());
        let kept = inherited.into_memory(&plan);
        let Made { volume, notes: said, unlocked, accepted } =
            making::create(&plan, paths, &kept, self.progress)?;
        notes.extend(said);
        plan.made(accepted);
        plan.sector_bytes = Some(making::sector(&plan, &*volume)?);
        swapping::watch(&plan, events.clone());
        // Before anything can be written to the memory.
        let holder = MemoryHolder::start(kept, files.keep.clone())?;
        let control = Leftover::Socket(files.control.clone());
        let with_control = |mut leftovers: Vec<Leftover>| {
            leftovers.push(control.clone());
            leftovers
        };
        let mut state = State {
            pid: std::process::id(),
            started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
            leftovers: with_control([again.clone(), serve::planned(&plan, paths)].concat()),
            kept: true,
            restarts,
            compresses_percent,
            foreground: self.foreground,
            plan,
        };
        state.write(files)?;
        events::look_again(&state.plan);
        let before: Vec<Leftover> =
            state.leftovers.iter().filter(|l| l.exists()).cloned().collect();
        let device = Arc::clone(&volume) as Arc<dyn Device>;
        let export = match serve::start(&state.plan, paths, device, &again) {
            Ok(export) => export,
            Err(e) => {
                // Older leftovers are not this daemon's, and may be the reason of the failure.
                state.leftovers.retain(|left| again.contains(left) || !before.contains(left));
                if let Err(second) = state.write(files) {
                    log::line(&second.to_string());
                }
                return Err(e);
            }
        };
        state.leftovers = with_control(export.leftovers());
        state.write(files)?;
        let unsafe_for_swap = self.unprepared.or(unlocked);
        let export = Some(export);
        let running =
            Running::new(volume, export, state, (files, paths), (events, holder), unsafe_for_swap);
        notes.extend(running.begin_use(self.progress)?);
        running.follow_limit()?;
        let server = Server::start(&files.control, Arc::clone(&running) as Arc<dyn Handler>)?;
        Ok((running, server))
    }
}

/// Waits until the export is stopped: by `down`, `restart` or a signal. On a signal, a device that
/// can wait is left to the next daemon. Any other device is stopped once it is released, or on a
/// second signal even while it is held.
fn wait(running: &Arc<Running>, inbox: &Receiver<Event>, presence: &mut Presence) -> End {
    let mut troubles = Troubles::new();
    running.volume.heed(&troubles.alarm(running.events.lock().clone()));
    let mut asked = false;
    loop {
        troubles.look(|| running.stats());
        let patience = [asked.then_some(RETRY), troubles.patience()].into_iter().flatten().min();
        let event = match patience {
            Some(patience) => inbox.recv_timeout(patience),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(Event::Trouble) => troubles.hear(),
            Ok(Event::Restore) => running.restore(presence),
            Err(RecvTimeoutError::Timeout) if !asked => {}
            Ok(Event::Down) => return End::Down,
            Ok(Event::Left) => return running.after_leaving(),
            // A device that waits for its next daemon is never taken from its holders.
            Ok(Event::Signal) if asked && !running.waits_for_next() => {
                return running.end_by_force();
            }
            // Abandoned: the `ztier run` that has this volume ended without taking it down.
            Ok(Event::Signal | Event::Abandoned) | Err(RecvTimeoutError::Timeout) => {
                match running.end_by_signal() {
                    Ok(end) => return end,
                    Err(e) if !asked => {
                        log::line(&format!("asked to end, but {e}"));
                        if !running.waits_for_next() {
                            log::line("ending when it is released; a second signal ends at once");
                        }
                        asked = true;
                    }
                    Err(_) => {}
                }
            }
            Err(RecvTimeoutError::Disconnected) => return End::Down,
        }
    }
}

/// Closes the volume's drives once no other thread has the volume: a thread that just answered may.
fn let_go(volume: Arc<dyn Serving>) {
    let until = Instant::now() + LEAVING;
    while Arc::strong_count(&volume) > 1 {
        if Instant::now() >= until {
            return log::line("a thread still has the volume: its drives stay open until the end");
        }
        std::thread::sleep(LEAVING / 1000);
    }
}

impl Running {
    fn new(
        volume: Arc<dyn Serving>,
        export: Option<Box<dyn Export>>,
        state: State,
        (files, paths): (&VolumeFiles, &Paths),
        (events, memory_holder): (SyncSender<Event>, MemoryHolder),
        unsafe_for_swap: Option<String>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            name: state.plan.name.clone(),
            volume,
            unsafe_for_swap,
            changing: Mutex::new(()),
            limiter: Mutex::new(None),
            swap_thread: Mutex::new(None),
            freed_slots: Mutex::new(None),
            using: Mutex::new(()),
            export: Mutex::new(export),
            state: Mutex::new(state),
            files: files.clone(),
            events: Mutex::new(events),
            memory_holder: Mutex::new(Some(memory_holder)),
            records: paths.state.clone(),
            next: Mutex::new(None),
            draining: Mutex::new(0),
        })
    }

    /// The report for users, now that the device is usable.
    fn ready(&self, removed: Vec<String>, notes: Vec<String>) -> Ready {
        // `stats` locks `state` itself.
        let loss = self.stats().loss();
        Ready {
            endpoints: self.export.lock().as_ref().map(|e| e.endpoints()).unwrap_or_default(),
            pid: std::process::id(),
            plan: self.state.lock().plan.clone(),
            removed,
            notes,
            loss,
        }
    }

    /// The export, unless it is stopped, or another thread stops or changes it for longer than
    /// [`BUSY`].
    pub(super) fn export(&self) -> Result<MutexGuard<'_, Option<Box<dyn Export>>>> {
        match self.export.try_lock_for(BUSY) {
            Some(export) if export.is_some() => Ok(export),
            Some(_) => Err(Error::busy(format!("volume `{}` is being taken down", self.name))),
            None => Err(being_changed(self)),
        }
    }

    fn after_leaving(&self) -> End {
        if self.state.lock().foreground { End::Again } else { End::Left }
    }

    /// Ends everything else after the export was stopped. If the volume is down, its drives are
    /// closed before the lock is released: a process that finds the lock free may use them. A next
    /// daemon gets the lock first: it waits for the drives itself, and need not wait while this
    /// process unmaps memory.
    fn end(self: Arc<Self>, end: End, presence: Presence) {
        let Presence { control, lock } = presence;
        let limiter = self.limiter.lock().take();
        drop(limiter);
        let swap_thread = self.swap_thread.lock().take();
        drop(swap_thread);
        let freed_slots = self.freed_slots.lock().take();
        drop(freed_slots);
        if end != End::Again {
            notify::send("STOPPING=1\n");
        }
        match (self.volume.close(), self.next.lock().take()) {
            (Err(e), _) => log::line(&e.to_string()),
            (Ok(()), Some(next)) => {
                // Only after the close: before it, the new plan would forget a log that still holds
                // data.
                let mut state = self.state.lock();
                state.plan = next;
                if let Err(e) = state.write(&self.files) {
                    log::line(&e.to_string());
                }
            }
            (Ok(()), None) => {}
        }
        control.stop();
        drop(self.memory_holder.lock().take());
        let name = self.name.clone();
        if end != End::Down {
            return log::line(&format!("{name} waits for its next daemon"));
        }
        if let Some(memory) = self.volume.in_memory() {
            memory.disown();
        }
        let (plan, files) = (self.state.lock().plan.clone(), self.files.clone());
        let volume = Arc::clone(&self.volume);
        drop(self);
        let_go(volume);
        match state::clean(lock, &files) {
            Ok(_) => log::line(&format!("{name} is down")),
            Err(e) => log::line(&e.to_string()),
        }
        events::look_again(&plan);
    }

    /// The holders of the device that do not release it within `LEAVING`.
    pub(super) fn holders_that_stay(&self) -> Result<Vec<String>> {
        let until = Instant::now() + LEAVING;
        loop {
            let holders = self.export()?.as_ref().map(|e| e.holders()).unwrap_or_default();
            if holders.is_empty() || Instant::now() >= until {
                return Ok(holders);
            }
            std::thread::sleep(LEAVING / 20);
        }
    }

    /// Refuses while the device is held.
    pub(super) fn refuse_holders(&self, hint: impl Into<String>) -> Result<()> {
        let holders = self.holders_that_stay()?;
        if holders.is_empty() {
            return Ok(());
        }
        let (name, holders) = (&self.name, holders.join(", "));
        Err(Error::busy(format!("volume `{name}` is in use: {holders}")).hint(hint))
    }

    /// Starts the device's use that the plan says. Returns a note for the user.
    pub(super) fn begin_use(&self, progress: &dyn Fn(&str)) -> Result<Option<String>> {
        let progress = |what: &str| {
            notify::extend(what);
            progress(what);
        };
        let Some(usage) = self.state.lock().plan.usage.clone() else { return Ok(None) };
        let (empty, homes) = (self.volume.volatile_bytes() == 0, self.homes());
        let is_swap = matches!(usage, Usage::Swap { .. });
        if is_swap {
            make_present();
        }
        let device = self.device()?;
        usage::begin(&usage, &device, (empty, homes.announced()), &progress)?;
        usage::tune(&usage).iter().for_each(|failed| log::line(failed));
        self.follow_swap(&usage, &device);
        Ok(homes.about().filter(|_| is_swap && empty))
    }

    /// Ends the device's use.
    pub(super) fn end_use(&self) -> Result<()> {
        let Some(usage) = self.state.lock().plan.usage.clone() else { return Ok(()) };
        self.end_within(&usage, &self.device()?, usage::END)?;
        state::untune(&self.files, Some(&usage));
        Ok(())
    }

    /// Ends the processes of a job whose runner has ended; with `force` even if it has not.
    pub(super) fn end_job(&self, force: bool) -> Result<()> {
        self.refuse_job(force)?;
        let Some(job) = self.state.lock().plan.job.clone() else { return Ok(()) };
        match job.clear()? {
            0 => {}
            n => log::line(&format!("{n} processes that `ztier run` had left were ended")),
        }
        Ok(())
    }

    pub(super) fn refuse_job(&self, force: bool) -> Result<()> {
        let job = self.state.lock().plan.job.clone();
        match job.filter(|job| !force && job.exists() && job.runner().is_some()) {
            Some(job) => Err(swapping::busy(&self.name, &job)),
            None => Ok(()),
        }
    }

    /// Path of the block device.
    pub(super) fn device(&self) -> Result<PathBuf> {
        let first = self.export()?.as_ref().and_then(|e| e.endpoints().into_iter().next());
        first.map(PathBuf::from).ok_or_else(|| {
            Error::busy(format!("volume `{}` has no device now", self.name))
                .hint("it is coming up or going down: try again soon")
        })
    }

    /// Locks the device's use against other changes.
    pub(super) fn turn(&self) -> Result<MutexGuard<'_, ()>> {
        self.using.try_lock_for(BUSY).ok_or_else(|| being_changed(self))
    }
}

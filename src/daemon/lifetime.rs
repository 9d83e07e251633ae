//! The daemon itself, from taking the lock to removing the last file.

use super::event_hook::EventHook;
use super::history::record;
use super::making::{self, Made, Origin};
use super::memory_holder::MemoryHolder;
use super::phase::{End, Ended};
use super::presence::Presence;
use super::running::Running;
use super::served::Served;
use super::signals::{self, Event};
use super::state::{self, Found, Lock, State};
use super::takeover::Inherited;
use super::troubles::Troubles;
use super::{events, log, notify, opening, resident, serve, swapping};
use crate::config::paths::VolumeFiles;
use crate::config::{Paths, Plan, Usage};
use crate::control::{EventKind, Handler, Server};
use crate::device::{Device, Serving};
use crate::error::{Error, Result};
use crate::escape::escape;
use crate::export::{Export, Leftover};
use crate::patience::eventually;
use crate::system::usage;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, SyncSender};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long a process that only checks the lock may hold it.
pub const LOOKERS: Duration = Duration::from_millis(300);
/// How long a thread that just answered may still have the volume.
const ANSWERED: Duration = Duration::from_secs(1);
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
    let mut inherited = Inherited::find(&files, &plan.name)?;
    if follows && inherited.is_nothing() {
        state::clean(lock, &files)?;
        return Err(Error::not_found(format!("volume `{}` was taken down meanwhile", plan.name))
            .hint("bring it up with `ztier up`"));
    }
    inherited.compare_store(&making::owner(&plan.name, paths))?;
    let goes_on = inherited.goes_on();
    let (plan, mut notes) = inherited.fit(plan);
    let removed = inherited.clean(&files, &plan, progress)?;
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
            not_up(goes_on, lock, &files);
            return Err(e);
        }
    };
    for what in &removed {
        log::line(&format!("removed {what}, left by an earlier daemon"));
    }
    let now = ready_of(&running, removed, notes);
    let endpoints = now.endpoints.join(" ");
    let up = format!("{name} is up: {endpoints}");
    record(&running.served.history, EventKind::Up, None, &up);
    let hook = start_hook(&running);
    notify::send(&format!("READY=1\nMAINPID={}\nSTATUS={}\n", now.pid, escape(&endpoints)));
    let mut presence = Presence { control, lock };
    match ready(&now) {
        Ok(()) => wait(&running, &inbox, &mut presence),
        Err(e) => {
            log::line(&e.to_string());
            // A volume that existed before does not end with its caller.
            if goes_on { wait(&running, &inbox, &mut presence) } else { running.give_up() }
        }
    }
    Ok(end(running, presence, hook))
}

/// Removes what a volume that did not come up has, unless it is that of an earlier daemon.
fn not_up(goes_on: bool, lock: Lock, files: &VolumeFiles) {
    if goes_on {
        log::line("what the last daemon left is kept");
    } else if let Err(left) = state::clean(lock, files) {
        // The first error is reported; what can't be removed stays in the state file.
        log::line(&left.to_string());
    }
}

/// Runs the program for events, if there is one. Without it, the volume goes on.
fn start_hook(running: &Running) -> Option<EventHook> {
    let program = running.served.plan().on_event?;
    let hook = EventHook::start(program, &running.served.history);
    hook.map_err(|e| log::line(&e.to_string())).ok()
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
        let after = inherited.session(&plan);
        let kept = inherited.into_memory(&plan);
        let origin = Origin { paths, kept: &kept, after };
        let Made { volume, notes: said, unlocked, accepted } =
            making::create(&plan, &origin, self.progress)?;
        notes.extend(said);
        plan.made(accepted);
        plan.sector_bytes = Some(making::sector(&plan, &*volume)?);
        // A store's volume may have been made larger by another owner.
        plan.size_bytes = volume.size();
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
            session: volume.stats().object.map(|object| object.session),
            foreground: self.foreground,
            plan,
        };
        state.write(files)?;
        events::look_again(&state.plan);
        let device = Arc::clone(&volume) as Arc<dyn Device>;
        let export = export(&mut state, (paths, files), device, &again, self.progress)?;
        state.leftovers = with_control(export.leftovers());
        state.write(files)?;
        let unsafe_for_swap = self.unprepared.or(unlocked);
        let served = Served::new(volume, export, state, (files, paths), events);
        let running = Running::new(served, holder, unsafe_for_swap);
        notes.extend(running.begin_use(self.progress)?);
        running.threads.follow_limit(&running.served)?;
        running.threads.follow_page_cache(&running.served);
        let server = Server::start(&files.control, Arc::clone(&running) as Arc<dyn Handler>)?;
        Ok((running, server))
    }
}

/// Starts the export of a volume. If there can be none, its state file has what is left.
fn export(
    state: &mut State,
    (paths, files): (&Paths, &VolumeFiles),
    device: Arc<dyn Device>,
    again: &[Leftover],
    progress: &dyn Fn(&str),
) -> Result<Box<dyn Export>> {
    let before: Vec<Leftover> = state.leftovers.iter().filter(|l| l.exists()).cloned().collect();
    serve::start(&state.plan, paths, device, again, progress).inspect_err(|_| {
        // Older leftovers are not this daemon's, and may be the reason of the failure.
        state.leftovers.retain(|left| again.contains(left) || !before.contains(left));
        if let Err(second) = state.write(files) {
            log::line(&second.to_string());
        }
    })
}

/// Waits until the daemon ends: by `down`, `restart` or a signal. On a signal, a device that can
/// wait is left to the next daemon. Any other device is stopped once it is released, or on a second
/// signal even while it is held.
fn wait(running: &Arc<Running>, inbox: &Receiver<Event>, presence: &mut Presence) {
    let mut troubles = Troubles::new();
    running.served.volume.heed(&troubles.alarm(running.served.events.clone()));
    let mut asked = false;
    loop {
        troubles.look(|| running.stats(), &running.served.history);
        let patience = [asked.then_some(RETRY), troubles.patience()].into_iter().flatten().min();
        let event = match patience {
            Some(patience) => inbox.recv_timeout(patience),
            None => inbox.recv().map_err(|_| RecvTimeoutError::Disconnected),
        };
        match event {
            Ok(Event::Trouble) => troubles.hear(),
            Ok(Event::Restore) => running.restore(presence),
            Err(RecvTimeoutError::Timeout) if !asked => {}
            Ok(Event::Ended) => return,
            // A device that waits for its next daemon is never taken from its holders.
            Ok(Event::Signal) if asked && !running.waits_for_next() => {
                return running.end_by_force();
            }
            // Abandoned: the `ztier run` that has this volume ended without taking it down.
            Ok(Event::Signal | Event::Abandoned) | Err(RecvTimeoutError::Timeout) => {
                match running.end_by_signal() {
                    Ok(()) => return,
                    Err(e) if !asked => {
                        log::line(&format!("asked to end, but {e}"));
                        if !running.waits_for_next() {
                            log::line("ending when that is over; a second signal ends at once");
                        }
                        asked = true;
                    }
                    Err(_) => {}
                }
            }
            Err(RecvTimeoutError::Disconnected) => return running.give_up(),
        }
    }
}

/// Closes the volume's drives once no other thread has the volume: a thread that just answered may.
fn let_go(volume: Arc<dyn Serving>) {
    if !eventually(ANSWERED, ANSWERED / 1000, || Arc::strong_count(&volume) == 1) {
        log::line("a thread still has the volume: its drives stay open until the end");
    }
}

/// The report for users, now that the device is usable.
fn ready_of(running: &Running, removed: Vec<String>, notes: Vec<String>) -> Ready {
    let served = &running.served;
    Ready {
        endpoints: served.endpoints(),
        pid: std::process::id(),
        plan: served.plan(),
        removed,
        notes,
        loss: running.stats().loss(),
    }
}

/// Ends everything else after the export was stopped. If the volume is down, its drives are closed
/// before the lock is released: a process that finds the lock free may use them. A next daemon gets
/// the lock first: it waits for the drives itself, and need not wait while this process unmaps
/// memory. The program for events comes last, when no other process waits for this one.
fn end(running: Arc<Running>, presence: Presence, hook: Option<EventHook>) -> End {
    let Presence { control, lock } = presence;
    let Ended { how, next } = running.phase.finish();
    running.served.history.close(match how {
        End::Down => "the daemon ends: the volume goes down",
        End::Left | End::Again => "the daemon ends: the volume waits for its next daemon",
    });
    let end_hook = |waits| hook.map(|hook| hook.end(waits));
    running.threads.end();
    if how != End::Again {
        notify::send("STOPPING=1\n");
    }
    let served = &running.served;
    match (served.volume.close(), next) {
        (Err(e), _) => log::line(&e.to_string()),
        // Only after the close: before it, the new plan would forget a log that still holds data.
        (Ok(()), Some(next)) => served.note_plan(next),
        (Ok(()), None) => {}
    }
    control.stop();
    running.threads.leave_memory_holder();
    let name = served.name.clone();
    if how != End::Down {
        log::line(&format!("{name} waits for its next daemon"));
        drop((running, lock));
        end_hook(how == End::Left);
        return how;
    }
    if let Some(memory) = served.volume.in_memory() {
        memory.disown();
    }
    let (plan, files, volume) = (served.plan(), served.files.clone(), Arc::clone(&served.volume));
    drop(running);
    let_go(volume);
    match state::clean(lock, &files) {
        Ok(_) => log::line(&format!("{name} is down")),
        Err(e) => log::line(&e.to_string()),
    }
    events::look_again(&plan);
    end_hook(true);
    how
}

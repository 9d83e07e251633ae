//! The daemon itself, from the lock to the last file removed.

use super::opening::Opening;
use super::signals::{self, Event};
use super::state::{self, Found, Lock, State};
use super::{log, notify, serve};
use crate::config::paths::VolumeFiles;
use crate::config::{Paths, Plan, machine, plan, size};
use crate::control::{Handler, LogChange, Request, Server, Status, Version};
use crate::durable;
use crate::error::{Context, Error, Result};
use crate::export::{Export, Leftover};
use crate::stats::Stats;
use crate::volume::{self, Device, Serving, Volume};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a lock that somebody only looks at may be in the way.
const LOOKERS: Duration = Duration::from_millis(300);
/// How long a question waits while the export is being stopped.
const BUSY: Duration = Duration::from_secs(2);
/// How long a client that has hung up may take to be gone.
const LEAVING: Duration = Duration::from_secs(1);
/// How often a daemon that was asked to end looks whether its device is still held.
const RETRY: Duration = Duration::from_millis(250);

/// What a daemon says once its device is usable.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ready {
    /// What users open.
    pub endpoints: Vec<String>,
    /// The daemon's process.
    pub pid: u32,
    /// What an earlier daemon of that name had left, and is now removed.
    pub removed: Vec<String>,
    /// What else whoever asked should know.
    pub notes: Vec<String>,
}

/// A volume that is up.
struct Running {
    name: String,
    volume: Arc<dyn Serving>,
    /// `None` once it is stopped.
    export: Mutex<Option<Box<dyn Export>>>,
    state: Mutex<State>,
    files: VolumeFiles,
    events: Mutex<Sender<Event>>,
}

/// Runs a daemon in this process until it is told to end. `ready` hears what users may know once
/// the device is usable; if that fails, the daemon ends (nobody would know that it runs). `told`
/// hears now and then how far a volume is that takes its time.
///
/// # Errors
/// Whatever kept the volume from coming up; then nothing is left behind. Later trouble is logged.
pub fn run(
    plan: Plan,
    paths: &Paths,
    told: &dyn Fn(&str),
    ready: impl FnOnce(&Ready) -> Result<()>,
) -> Result<()> {
    serve::prepare(&plan);
    paths.prepare()?;
    let files = paths.volume(&plan.name);
    let (events, inbox) = mpsc::channel();
    let Some(lock) = Lock::acquire(&files, LOOKERS)? else {
        return Err(already_up(paths, &plan.name));
    };
    signals::watch(events.clone())?;
    let removed = clean_before(&files)?;
    let name = plan.name.clone();
    let (running, control, notes) = match bring_up(plan, paths, &files, events, told) {
        Ok(up) => up,
        Err(e) => {
            // The error to tell is the first; whatever can't be removed stays in the state file.
            if let Err(left) = state::clean(lock, &files) {
                log::line(&left.to_string());
            }
            return Err(e);
        }
    };
    for what in &removed {
        log::line(&format!("removed {what}, left by an earlier daemon"));
    }
    let endpoints = running.export.lock().as_ref().map(|e| e.endpoints()).unwrap_or_default();
    let pid = std::process::id();
    log::line(&format!("{name} is up: {}", endpoints.join(" ")));
    notify::send(&format!("READY=1\nMAINPID={pid}\nSTATUS={}\n", endpoints.join(" ")));
    match ready(&Ready { endpoints, pid, removed, notes }) {
        Ok(()) => wait(&running, &inbox),
        Err(e) => {
            log::line(&e.to_string());
            end_by_force(&running);
        }
    }
    notify::send("STOPPING=1\n");
    if let Err(e) = running.volume.close() {
        log::line(&e.to_string());
    }
    control.stop();
    match state::clean(lock, &files) {
        Ok(_) => log::line(&format!("{name} is down")),
        Err(e) => log::line(&e.to_string()),
    }
    Ok(())
}

fn already_up(paths: &Paths, name: &str) -> Error {
    let error = match state::find(paths, name) {
        Found::Up(Some(state)) => {
            Error::failure(format!("volume `{name}` is already up (process {})", state.pid))
        }
        _ => Error::failure(format!("volume `{name}` is already up")),
    };
    error.mend(format!("use another name, or `ztier down {name}` first"))
}

/// Removes what an earlier daemon of that name left, under the lock that the caller has.
fn clean_before(files: &VolumeFiles) -> Result<Vec<String>> {
    state::clean_leftovers(files).map_err(|e| {
        Error::failure(format!("an earlier daemon of this volume left something behind: {e}"))
    })
}

fn bring_up(
    plan: Plan,
    paths: &Paths,
    files: &VolumeFiles,
    events: Sender<Event>,
    told: &dyn Fn(&str),
) -> Result<(Arc<Running>, Server, Vec<String>)> {
    let (volume, notes) = create(&plan, paths, told)?;
    let control = Leftover::Socket(files.control.clone());
    let with_control = |mut leftovers: Vec<Leftover>| {
        leftovers.push(control.clone());
        leftovers
    };
    let mut state = State {
        pid: std::process::id(),
        started_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs()),
        leftovers: with_control(serve::planned(&plan, paths)),
        plan,
    };
    state.write(files)?;
    let before: Vec<Leftover> = state.leftovers.iter().filter(|l| l.exists()).cloned().collect();
    let export = match serve::start(&state.plan, paths, Arc::clone(&volume) as Arc<dyn Device>) {
        Ok(export) => export,
        Err(e) => {
            // What was there before is somebody else's, and may be the reason of the failure.
            state.leftovers.retain(|leftover| !before.contains(leftover));
            if let Err(second) = state.write(files) {
                log::line(&second.to_string());
            }
            return Err(e);
        }
    };
    state.leftovers = with_control(export.leftovers());
    state.write(files)?;
    let running = Arc::new(Running {
        name: state.plan.name.clone(),
        volume,
        export: Mutex::new(Some(export)),
        state: Mutex::new(state),
        files: files.clone(),
        events: Mutex::new(events),
    });
    let server = Server::start(&files.control, Arc::clone(&running) as Arc<dyn Handler>)?;
    Ok((running, server, notes))
}

/// Makes the volume, with what is to be said of it.
fn create(
    plan: &Plan,
    paths: &Paths,
    told: &dyn Fn(&str),
) -> Result<(Arc<dyn Serving>, Vec<String>)> {
    if let Some(log) = &plan.log {
        return open_log(plan, log, paths, told);
    }
    let mut options = volume::Options {
        size: plan.size_bytes,
        ram_limit: plan.ram_limit_bytes,
        ram_limit_max: machine::memory_bytes(),
        segment: plan.segment_bytes,
        algorithm: plan.algorithm,
        // A block device may be given to swapon; what carries swap must not be swapped out itself.
        lock_memory: matches!(plan.export, plan::Export::Fuse),
    };
    match Volume::create(&options) {
        Err(e) if options.lock_memory => {
            // Without the right to lock memory the device is good for everything else.
            options.lock_memory = false;
            let volume = Volume::create(&options)?;
            log::line(&format!("memory is not locked, so don't use the device as swap: {e}"));
            Ok((volume, Vec::new()))
        }
        created => Ok((created?, Vec::new())),
    }
}

fn open_log(
    plan: &Plan,
    log: &plan::LogPlan,
    paths: &Paths,
    told: &dyn Fn(&str),
) -> Result<(Arc<dyn Serving>, Vec<String>)> {
    let pair = volume::Pair {
        log: log.log.clone(),
        backing: log.backing.clone(),
        segment: plan.segment_bytes,
        wipe: log.wipe,
        moved: log.moved,
        force: false,
        abandon: log.abandon,
        state: paths.state.clone(),
    };
    let options = volume::LogOptions {
        algorithm: plan.algorithm,
        sync: log.sync,
        policy: volume::Policy {
            threshold_percent: log.writeback_threshold_percent,
            window: log.writeback_window_bytes,
            enabled: log.writeback,
        },
        accept_loss: log.accept_loss,
        log: durable::Options { idle_ms: log.commit_interval_ms, ..durable::Options::default() },
    };
    let opening = Opening::new(told);
    let volume::Opened { volume, abandoned } = pair.open(options, &|step| opening.at(step))?;
    log::line(&volume.report().to_string());
    if let Some(text) = &abandoned {
        log::line(text);
    }
    Ok((volume, abandoned.into_iter().collect()))
}

/// Waits until the export is stopped: by `down`, or by a signal once nobody holds the device, or by
/// a second signal whoever holds it.
fn wait(running: &Running, inbox: &Receiver<Event>) {
    let mut asked = false;
    loop {
        let event = if asked {
            inbox.recv_timeout(RETRY)
        } else {
            inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match event {
            Ok(Event::Down) => return,
            Ok(Event::Signal) if asked => return end_by_force(running),
            Ok(Event::Signal) | Err(RecvTimeoutError::Timeout) => match running.stop(false) {
                Ok(()) => return,
                Err(e) if !asked => {
                    log::line(&format!("asked to end, but {e}"));
                    log::line("ending when it is released; a second signal ends at once");
                    asked = true;
                }
                Err(_) => {}
            },
            Err(RecvTimeoutError::Disconnected) => return,
        }
    }
}

fn end_by_force(running: &Running) {
    if let Err(e) = running.stop(true) {
        log::line(&e.to_string());
    }
}

impl Running {
    /// The export, unless it is stopped, or being stopped or changed for longer than [`BUSY`].
    fn export(&self) -> Result<MutexGuard<'_, Option<Box<dyn Export>>>> {
        match self.export.try_lock_for(BUSY) {
            Some(export) if export.is_some() => Ok(export),
            Some(_) => Err(Error::failure(format!("volume `{}` is being taken down", self.name))),
            None => Err(Error::failure(format!("volume `{}` is being changed", self.name))
                .mend("try again soon")),
        }
    }

    /// Stops the export. `force`: also when somebody holds the device.
    fn stop(&self, force: bool) -> Result<()> {
        let mut slot = self.export()?;
        let Some(export) = slot.as_mut() else { return Ok(()) };
        match export.stop() {
            Ok(()) => {}
            Err(e) if force => log::line(&format!("forced: {e}")),
            Err(e) => return Err(e),
        }
        *slot = None; // dropping it stops what `stop` refused to
        Ok(())
    }

    /// Who holds the device, and still does in a moment.
    fn holders_that_stay(&self) -> Result<Vec<String>> {
        let until = Instant::now() + LEAVING;
        loop {
            let holders = self.export()?.as_ref().map(|e| e.holders()).unwrap_or_default();
            if holders.is_empty() || Instant::now() >= until {
                return Ok(holders);
            }
            std::thread::sleep(LEAVING / 20);
        }
    }

    fn down(&self, discard: bool, force: bool) -> Result<()> {
        let name = &self.name;
        let holders = if force { Vec::new() } else { self.holders_that_stay()? };
        if !holders.is_empty() {
            return Err(Error::failure(format!(
                "volume `{name}` is in use: {}",
                holders.join(", ")
            ))
            .mend("end that first, or take it away with --force"));
        }
        let volatile = self.volume.volatile_bytes();
        if volatile > 0 && !discard {
            return Err(Error::failure(format!(
                "volume `{name}` holds {} that exist nowhere else",
                size::human(volatile)
            ))
            .mend("copy what you need, then add --discard"));
        }
        self.stop(force)
    }

    fn set(&self, size: Option<u64>, ram_limit: Option<u64>, log: LogChange) -> Result<()> {
        let export = self.export()?;
        let mut state = self.state.lock();
        let (old, plan) = (state.plan.clone(), &mut state.plan);
        plan.size_bytes = size.unwrap_or(old.size_bytes);
        plan.ram_limit_bytes = ram_limit.unwrap_or(old.ram_limit_bytes);
        let checked = check_change(&old, plan).and_then(|()| change_log(plan, log));
        let new = plan.clone();
        state.plan = old.clone();
        checked?;
        if let Some(log) = new.log.as_ref().filter(|_| new.log != old.log) {
            self.volume.tune(&tuning(log))?;
            state.plan.log = new.log.clone();
        }
        if new.ram_limit_bytes != old.ram_limit_bytes {
            self.volume.set_ram_limit(new.ram_limit_bytes)?;
            state.plan.ram_limit_bytes = new.ram_limit_bytes;
        }
        if new.size_bytes != old.size_bytes {
            self.volume.grow(new.size_bytes)?;
            state.plan.size_bytes = new.size_bytes;
            export.as_ref().map_or(Ok(()), |export| export.resized())?;
        }
        state.write(&self.files)
    }

    fn status(&self) -> Result<Status> {
        let (endpoints, holders) = {
            let export = self.export()?;
            export.as_ref().map(|e| (e.endpoints(), e.holders())).unwrap_or_default()
        };
        let state = self.state.lock();
        Ok(Status {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: state.pid,
            started_unix_s: state.started_unix_s,
            plan: Plan { size_bytes: self.volume.size(), ..state.plan.clone() },
            endpoints,
            holders,
            stats: self.stats(),
        })
    }

    fn stats(&self) -> Stats {
        self.volume.stats()
    }
}

/// Checks a change of the log's ways, and makes it in the plan.
fn change_log(plan: &mut Plan, change: LogChange) -> Result<()> {
    if change == LogChange::default() {
        return Ok(());
    }
    let Some(log) = &mut plan.log else {
        return Err(Error::usage("the volume has no log, so nothing of one can be set"));
    };
    let LogChange { writeback, writeback_threshold_percent, .. } = change;
    log.writeback = writeback.unwrap_or(log.writeback);
    let percent = writeback_threshold_percent.unwrap_or(log.writeback_threshold_percent);
    plan::check_threshold(percent)?;
    log.writeback_threshold_percent = percent;
    let window = change.writeback_window_bytes.unwrap_or(log.writeback_window_bytes);
    log.writeback_window_bytes = window;
    let interval = change.commit_interval_ms.unwrap_or(log.commit_interval_ms);
    plan::check_interval(interval)?;
    log.commit_interval_ms = interval;
    Ok(())
}

fn tuning(log: &plan::LogPlan) -> volume::Tuning {
    volume::Tuning {
        policy: volume::Policy {
            threshold_percent: log.writeback_threshold_percent,
            window: log.writeback_window_bytes,
            enabled: log.writeback,
        },
        commit_interval_ms: log.commit_interval_ms,
    }
}

fn check_change(old: &Plan, new: &Plan) -> Result<()> {
    plan::check_size(new.size_bytes)?;
    if new.size_bytes < old.size_bytes {
        return Err(Error::usage(format!(
            "size {} is below the present {}",
            size::exact(new.size_bytes),
            size::exact(old.size_bytes)
        ))
        .mend("sizes grow, never shrink; make a new volume instead"));
    }
    if new.log.is_some() && new.ram_limit_bytes == old.ram_limit_bytes {
        return Ok(());
    }
    plan::check_ram_limit(new.ram_limit_bytes, new.size_bytes, new.segment_bytes)
}

impl Handler for Running {
    fn handle(&self, request: Request) -> Result<serde_json::Value> {
        let value = match request {
            Request::Ping => serde_json::to_value(Version {
                version: env!("CARGO_PKG_VERSION").into(),
                pid: std::process::id(),
            }),
            Request::Status => serde_json::to_value(self.status()?),
            Request::Stats => serde_json::to_value(self.stats()),
            Request::Holders => serde_json::to_value(self.status()?.holders),
            Request::Drain { on } => {
                self.volume.drain(on)?;
                serde_json::to_value(())
            }
            Request::Set { size_bytes, ram_limit_bytes, log } => {
                self.set(size_bytes, ram_limit_bytes, log)?;
                serde_json::to_value(self.status()?)
            }
            Request::Down { discard, force } => {
                self.down(discard, force)?;
                serde_json::to_value(())
            }
        };
        value.context("cannot encode the answer")
    }

    fn answered(&self, request: &Request) {
        let stopped = self.export.try_lock().is_some_and(|export| export.is_none());
        if stopped && matches!(request, Request::Down { .. }) {
            // If nobody listens, the daemon is ending anyway.
            let _ = self.events.lock().send(Event::Down);
        }
    }
}

//! The daemon itself, from the lock to the last file removed.

use super::heritage::Heritage;
use super::keeper::{Keeper, Kept};
use super::limiter::Limiter;
use super::making::{self, Made};
use super::signals::{self, Event};
use super::state::{self, Found, Lock, State};
use super::{draining, events, log, notify, opening, relog, serve, swapping};
use crate::config::paths::VolumeFiles;
use crate::config::{Paths, Plan, Usage, plan, size};
use crate::control::{
    After, Draining, Handler, LeftInLog, NewLog, Request, Sample, Server, Status, Version,
};
use crate::error::{Context, Error, Result};
use crate::export::reclaim::make_present;
use crate::export::{Export, Leftover, usage};
use crate::stats::Stats;
use crate::volume::{self, Device, Serving};
use parking_lot::{Mutex, MutexGuard};
use serde::{Deserialize, Serialize};
use serde_json::value::{RawValue, to_raw_value};
use std::path::PathBuf;
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How long a lock that somebody only looks at may be in the way.
pub const LOOKERS: Duration = Duration::from_millis(300);
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
    /// The volume as it is.
    pub plan: Plan,
    /// What an earlier daemon of that name had left, and is now removed.
    pub removed: Vec<String>,
    /// What else whoever asked should know.
    pub notes: Vec<String>,
}

/// A volume that is up.
pub(super) struct Running {
    pub(super) name: String,
    pub(super) volume: Arc<dyn Serving>,
    /// Why the device must not be swap, if that is so.
    pub(super) unsafe_for_swap: Option<String>,
    /// Itself, for threads that work for it.
    pub(super) me: Weak<Self>,
    /// Held by whoever changes the volume's sizes, before `state`.
    pub(super) changing: Mutex<()>,
    /// Has the limit on memory adapt, if it does.
    pub(super) limiter: Mutex<Option<Limiter>>,
    /// Held by whoever changes what the device is used for.
    using: Mutex<()>,
    /// `None` once it is stopped.
    export: Mutex<Option<Box<dyn Export>>>,
    pub(super) state: Mutex<State>,
    pub(super) files: VolumeFiles,
    events: Mutex<Sender<Event>>,
    keeper: Mutex<Option<Keeper>>,
    /// Where this machine keeps what it knows of backing stores.
    records: PathBuf,
    /// What the next daemon is to serve, if that is something else.
    next: Mutex<Option<Plan>>,
}

/// How a daemon ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The volume is down, and nothing of it is left.
    Down,
    /// The volume waits for its next daemon.
    Left,
    /// The same, and this process is to be that daemon.
    Again,
}

/// What a daemon is to do, and where.
pub struct Order<'a> {
    /// The volume.
    pub plan: Plan,
    /// Its files.
    pub paths: &'a Paths,
    /// How long another daemon may still have the volume.
    pub patience: Duration,
    /// Whether somebody else watches this process.
    pub foreground: bool,
    /// Whether there has to be something to go on with.
    pub follows: bool,
}

/// Runs a daemon in this process until it is told to end. `ready` hears what users may know once
/// the device is usable; if that fails, the daemon of a new volume ends (nobody would know that it
/// runs), and one that goes on with what was kept serves that. `told` hears now and then how far a
/// volume is that takes its time.
///
/// # Errors
/// Whatever kept the volume from coming up; then nothing is left behind but what an earlier daemon
/// left for this one. Later trouble is logged.
pub fn run(
    order: Order<'_>,
    told: &dyn Fn(&str),
    ready: impl FnOnce(&Ready) -> Result<()>,
) -> Result<End> {
    let Order { plan, paths, patience, foreground, follows } = order;
    let unprepared = serve::prepare(&plan)?;
    paths.prepare()?;
    let files = paths.volume(&plan.name);
    let (events, inbox) = mpsc::channel();
    let Some(lock) = Lock::acquire(&files, patience)? else {
        return Err(already_up(paths, &plan.name));
    };
    signals::watch(events.clone())?;
    let heritage = Heritage::find(&files, &plan.name)?;
    if follows && heritage.is_nothing() {
        state::clean(lock, &files)?;
        return Err(Error::not_found(format!("volume `{}` was taken down meanwhile", plan.name))
            .mend("bring it up with `ztier up`"));
    }
    let goes_on = heritage.goes_on();
    let (plan, mut notes) = heritage.fit(plan);
    let removed = heritage.clean(&files, &plan)?;
    let name = plan.name.clone();
    if plan.job.is_some() {
        notes.extend(
            unprepared.as_ref().map(|why| {
                format!("not safe should the machine itself run short of memory: {why}")
            }),
        );
    }
    let told = |what: &str| {
        opening::note(&files, what);
        told(what);
    };
    let bringing = Bringing { plan, paths, files: &files, foreground, told: &told, unprepared };
    let up = bringing.up(heritage, events, &mut notes);
    opening::forget(&files);
    let (running, control) = match up {
        Ok(up) => up,
        Err(e) => {
            if goes_on {
                log::line("what the last daemon left is kept");
            } else if let Err(left) = state::clean(lock, &files) {
                // The error to tell is the first; what can't be removed stays in the state file.
                log::line(&left.to_string());
            }
            return Err(e);
        }
    };
    for what in &removed {
        log::line(&format!("removed {what}, left by an earlier daemon"));
    }
    let endpoints = running.export.lock().as_ref().map(|e| e.endpoints()).unwrap_or_default();
    let (pid, plan) = (std::process::id(), running.state.lock().plan.clone());
    log::line(&format!("{name} is up: {}", endpoints.join(" ")));
    notify::send(&format!("READY=1\nMAINPID={pid}\nSTATUS={}\n", endpoints.join(" ")));
    let end = match ready(&Ready { endpoints, pid, plan, removed, notes }) {
        Ok(()) => wait(&running, &inbox),
        Err(e) => {
            log::line(&e.to_string());
            // What there was before is not whoever's that asked for its next daemon.
            if goes_on { wait(&running, &inbox) } else { end_by_force(&running) }
        }
    };
    running.end(end, control, lock);
    Ok(end)
}

fn already_up(paths: &Paths, name: &str) -> Error {
    let error = match state::find(paths, name) {
        Found::Up(Some(state)) => {
            Error::busy(format!("volume `{name}` is already up (process {})", state.pid))
        }
        _ => Error::busy(format!("volume `{name}` is already up")),
    };
    error.mend(format!("use another name, or `ztier down {name}` first"))
}

/// What it takes to bring a volume up.
struct Bringing<'a> {
    plan: Plan,
    paths: &'a Paths,
    files: &'a VolumeFiles,
    foreground: bool,
    told: &'a dyn Fn(&str),
    /// Why this process must not carry swap, if that is so.
    unprepared: Option<String>,
}

impl Bringing<'_> {
    fn up(
        self,
        heritage: Heritage,
        events: Sender<Event>,
        notes: &mut Vec<String>,
    ) -> Result<(Arc<Running>, Server)> {
        let Self { mut plan, paths, files, .. } = self;
        if let Some(bounds) = plan.ram_auto.filter(|_| plan.is_volatile()) {
            // What the last daemon had come to, it had come to by what was true then.
            plan.ram_limit_bytes = bounds.max_bytes;
        }
        let again = heritage.taken_up(&plan);
        let (restarts, compresses_percent) = (heritage.restarts(), heritage.compresses());
        let kept = heritage.into_memory(&plan);
        let Made { volume, notes: said, unlocked, accepted } =
            making::create(&plan, paths, &kept, self.told)?;
        notes.extend(said);
        plan.made(accepted);
        swapping::watch(&plan, events.clone());
        // Before anything can be written into it.
        let keeper = Keeper::start(kept, files.keep.clone())?;
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
                // What was there before is somebody else's, and may be the reason of the failure.
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
            Running::new(volume, export, state, (files, paths), (events, keeper), unsafe_for_swap);
        notes.extend(running.begin_use(self.told)?);
        running.follow_limit()?;
        let server = Server::start(&files.control, Arc::clone(&running) as Arc<dyn Handler>)?;
        Ok((running, server))
    }
}

/// Waits until the export is stopped: by `down` or `restart`, or by a signal. Upon that a device
/// that can wait is left to the next daemon; any other is stopped once nobody holds it, or by a
/// second signal whoever holds it.
fn wait(running: &Running, inbox: &Receiver<Event>) -> End {
    let mut asked = false;
    loop {
        let event = if asked {
            inbox.recv_timeout(RETRY)
        } else {
            inbox.recv().map_err(|_| RecvTimeoutError::Disconnected)
        };
        match event {
            Ok(Event::Down) => return End::Down,
            Ok(Event::Left) => return running.after_leaving(),
            // What waits for its next daemon is never taken from whoever has it open.
            Ok(Event::Signal) if asked && !running.waits_for_next() => {
                return end_by_force(running);
            }
            // The one for whom the volume is has ended without a word.
            Ok(Event::Signal | Event::Abandoned) | Err(RecvTimeoutError::Timeout) => {
                match running.ask_to_end() {
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

fn end_by_force(running: &Running) -> End {
    if let Err(e) = running.stop(true) {
        log::line(&e.to_string());
    }
    End::Down
}

/// Lets the volume's drives go, once nobody else has it: a thread that answered a moment ago may.
fn let_go(volume: Arc<dyn Serving>) {
    let until = Instant::now() + LEAVING;
    while Arc::strong_count(&volume) > 1 {
        if Instant::now() >= until {
            return log::line("somebody still has the volume: its drives stay open until the end");
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
        (events, keeper): (Sender<Event>, Keeper),
        unsafe_for_swap: Option<String>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: me.clone(),
            name: state.plan.name.clone(),
            volume,
            unsafe_for_swap,
            changing: Mutex::new(()),
            limiter: Mutex::new(None),
            using: Mutex::new(()),
            export: Mutex::new(export),
            state: Mutex::new(state),
            files: files.clone(),
            events: Mutex::new(events),
            keeper: Mutex::new(Some(keeper)),
            records: paths.state.clone(),
            next: Mutex::new(None),
        })
    }

    /// The export, unless it is stopped, or being stopped or changed for longer than [`BUSY`].
    pub(super) fn export(&self) -> Result<MutexGuard<'_, Option<Box<dyn Export>>>> {
        match self.export.try_lock_for(BUSY) {
            Some(export) if export.is_some() => Ok(export),
            Some(_) => Err(Error::busy(format!("volume `{}` is being taken down", self.name))),
            None => Err(Error::busy(format!("volume `{}` is being changed", self.name))
                .mend("try again soon")),
        }
    }

    /// Does what may end the export. If it has, however well, and nobody else has before, the
    /// daemon ends by `event` once the answer is out.
    fn ending(
        &self,
        event: Event,
        after: &mut After,
        work: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let _turn = self.turn()?;
        let is_there = || self.export.lock().is_some();
        let was_there = is_there();
        let done = work();
        if was_there && !is_there() {
            let events = self.events.lock().clone();
            // If nobody listens, the daemon is ending anyway.
            *after = Some(Box::new(move || {
                let _ = events.send(event);
            }));
        }
        done
    }

    /// Ends the export because somebody outside wants that, unless somebody inside changes it now.
    fn ask_to_end(&self) -> Result<End> {
        let _turn = self.turn()?;
        if self.waits_for_next() {
            return self.leave().map(|()| End::Left);
        }
        self.keep_all()?;
        self.stop(false).map(|()| End::Down)
    }

    /// Makes everything durable that can be, before the volume ends for good.
    fn keep_all(&self) -> Result<()> {
        let name = &self.name;
        flush(&self.volume).map_err(|e| {
            Error::would_lose(format!("volume `{name}` would lose data: {e}")).mend(format!(
                "mend the drive, or give up what is not durable with `ztier down {name} --discard`"
            ))
        })
    }

    /// Ends the device's use and stops the export. `force`: also when somebody holds the device.
    fn stop(&self, force: bool) -> Result<()> {
        match self.end_job(force).and_then(|()| self.end_use()) {
            Err(e) if force => log::line(&format!("forced: {e}")),
            ended => ended?,
        }
        let mut slot = self.export()?;
        let Some(export) = slot.as_mut() else { return Ok(()) };
        match export.stop() {
            Ok(()) => {}
            Err(e) if force => {
                log::line(&format!("forced: {e}"));
                export.stop_by_force()?;
            }
            Err(e) => return Err(e),
        }
        *slot = None; // dropping it stops what `stop` refused to
        Ok(())
    }

    /// Whether it is to wait for the next daemon when this one is told to end.
    fn waits_for_next(&self) -> bool {
        self.state.lock().plan.job.is_none() && self.waits()
    }

    /// Whether the device waits for the next daemon.
    fn waits(&self) -> bool {
        self.export.lock().as_ref().is_some_and(|export| export.waits())
    }

    /// Makes everything durable that can be, and ends the export in a way that the next daemon
    /// takes it up.
    fn leave(&self) -> Result<()> {
        let mut slot = self.export()?;
        let Some(export) = slot.as_mut() else { return Ok(()) };
        flush(&self.volume)?;
        export.leave()?;
        let mut state = self.state.lock();
        state.leftovers = export.leftovers();
        *slot = None;
        // Too late to stay. What is written there names what was left, too, and more.
        if let Err(e) = state.write(&self.files) {
            log::line(&e.to_string());
        }
        Ok(())
    }

    /// Leaves the volume to a daemon that is about to start, with another log if one is given.
    /// `force`: also when its device can't wait and somebody holds it.
    fn restart(&self, force: bool, log: Option<NewLog>) -> Result<()> {
        // Whoever watches over a job takes a daemon that leaves for one that died.
        self.refuse_job(force)?;
        self.refuse_unkept()?;
        let Some(log) = log else { return self.make_way(force) };
        let next = relog::plan(&self.state.lock().plan, &log, &self.records)?;
        relog::refuse_lost(&*self.volume)?;
        self.make_way(force)?;
        draining::drain(&*self.volume)?;
        *self.next.lock() = Some(next);
        Ok(())
    }

    /// The next daemon has to find what is in memory only.
    fn refuse_unkept(&self) -> Result<()> {
        if self.volume.volatile_bytes() == 0 || Kept::is_there(&self.files.keep) {
            return Ok(());
        }
        let (name, socket) = (&self.name, self.files.keep.display());
        Err(Error::would_lose(format!(
            "nobody keeps the memory of `{name}`: {socket} does not answer"
        ))
        .mend("copy what you need, then take the volume down and up again"))
    }

    /// Ends the use of a device that can't wait, which the next daemon begins again, and leaves.
    fn make_way(&self, force: bool) -> Result<()> {
        if self.waits() {
            return self.let_go(force);
        }
        self.end_job(force)?;
        self.end_use()?;
        let left = self.let_go(force);
        if left.is_err()
            && let Err(e) = self.begin_use(&|_| {})
        {
            log::line(&e.to_string());
        }
        left
    }

    fn let_go(&self, force: bool) -> Result<()> {
        let export = self.state.lock().plan.export.clone();
        // Nobody can take a loop device away from who holds it.
        let by_fuse = export == plan::Export::Fuse;
        let force = force && !by_fuse;
        let holders = if force || self.waits() { Vec::new() } else { self.holders_that_stay()? };
        if holders.is_empty() {
            return self.leave().or_else(|e| if force { self.stop(true) } else { Err(e) });
        }
        let (name, kind) = (&self.name, export.kind());
        Err(Error::busy(format!(
            "volume `{name}` is in use ({}), and a device by {kind} can't wait for its daemon",
            holders.join(", ")
        ))
        .mend(match by_fuse {
            true => "end that first",
            false => "end that first, or add --force and connect again afterwards",
        }))
    }

    fn after_leaving(&self) -> End {
        if self.state.lock().foreground { End::Again } else { End::Left }
    }

    /// Ends everything else once the export is stopped. Of a volume that is down, the drives go
    /// before the lock: whoever finds that gone may use them. A next daemon gets the lock first: it
    /// waits for the drives by itself, and not for memory that is unmapped meanwhile.
    fn end(self: Arc<Self>, end: End, control: Server, lock: Lock) {
        let limiter = self.limiter.lock().take();
        drop(limiter);
        if end != End::Again {
            notify::send("STOPPING=1\n");
        }
        match (self.volume.close(), self.next.lock().take()) {
            (Err(e), _) => log::line(&e.to_string()),
            (Ok(()), Some(next)) => {
                // Only now: until here a log that holds something would have been forgotten.
                let mut state = self.state.lock();
                state.plan = next;
                if let Err(e) = state.write(&self.files) {
                    log::line(&e.to_string());
                }
            }
            (Ok(()), None) => {}
        }
        control.stop();
        drop(self.keeper.lock().take());
        let name = self.name.clone();
        if end != End::Down {
            return log::line(&format!("{name} waits for its next daemon"));
        }
        self.volume.disown();
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

    /// Who holds the device, and still does in a moment.
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

    fn down(&self, discard: bool, force: bool) -> Result<()> {
        let name = &self.name;
        let usage = self.state.lock().plan.usage.clone();
        // A use of our own is ended below; who else holds the device then is found there.
        let look = !force && usage.is_none();
        let holders = if look { self.holders_that_stay()? } else { Vec::new() };
        if !holders.is_empty() {
            return Err(Error::busy(format!("volume `{name}` is in use: {}", holders.join(", ")))
                .mend("end that first, or take it away with --force"));
        }
        let volatile = self.volume.volatile_bytes();
        // What is swapped out goes back to memory, and nothing is lost.
        let swap = matches!(usage, Some(Usage::Swap { .. }));
        if volatile > 0 && !discard && !swap {
            return Err(Error::would_lose(format!(
                "volume `{name}` holds {} that exist nowhere else",
                size::human(volatile)
            ))
            .mend("copy what you need, then add --discard"));
        }
        if !discard {
            self.keep_all()?;
        }
        self.stop(force)
    }

    /// What only the log has, of a volume to which nobody writes any more.
    fn left_in_log(&self) -> Option<LeftInLog> {
        let log = self.stats().log.filter(|log| !log.clean)?;
        let plan = self.state.lock().plan.log.clone()?;
        let bytes = log.blocks_dirty * crate::BLOCK_SIZE as u64;
        Some(LeftInLog { bytes, log: plan.log, backing: plan.backing })
    }

    /// Puts the device to the use that its owner gave it. Says what he should know of that.
    fn begin_use(&self, told: &dyn Fn(&str)) -> Result<Option<String>> {
        let told = |what: &str| {
            notify::extend(what);
            told(what);
        };
        let Some(usage) = self.state.lock().plan.usage.clone() else { return Ok(None) };
        let (empty, homes) = (self.volume.volatile_bytes() == 0, self.homes());
        let is_swap = matches!(usage, Usage::Swap { .. });
        if is_swap {
            make_present();
        }
        usage::begin(&usage, &self.device()?, (empty, homes.announced()), &told)?;
        usage::tune(&usage).iter().for_each(|failed| log::line(failed));
        Ok(homes.about().filter(|_| is_swap && empty))
    }

    /// Takes the device out of that use again.
    fn end_use(&self) -> Result<()> {
        let Some(usage) = self.state.lock().plan.usage.clone() else { return Ok(()) };
        usage::end(&usage, &self.device()?)?;
        state::untune(&self.files, Some(&usage));
        Ok(())
    }

    /// Ends what is left of a job whose runner has ended. `force`: also when it has not.
    fn end_job(&self, force: bool) -> Result<()> {
        self.refuse_job(force)?;
        let Some(job) = self.state.lock().plan.job.clone() else { return Ok(()) };
        match job.clear()? {
            0 => {}
            n => log::line(&format!("{n} processes that `ztier run` had left were ended")),
        }
        Ok(())
    }

    fn refuse_job(&self, force: bool) -> Result<()> {
        let job = self.state.lock().plan.job.clone();
        match job.filter(|job| !force && job.exists() && job.runner().is_some()) {
            Some(job) => Err(swapping::busy(&self.name, &job)),
            None => Ok(()),
        }
    }

    /// The block device.
    pub(super) fn device(&self) -> Result<PathBuf> {
        let first = self.export()?.as_ref().and_then(|e| e.endpoints().into_iter().next());
        first.map(PathBuf::from).ok_or_else(|| {
            Error::busy(format!("volume `{}` has no device now", self.name))
                .mend("it is coming up or going down: try again soon")
        })
    }

    /// The right to change what the device is used for.
    fn turn(&self) -> Result<MutexGuard<'_, ()>> {
        self.using.try_lock_for(BUSY).ok_or_else(|| {
            Error::busy(format!("volume `{}` is being changed", self.name)).mend("try again soon")
        })
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
            restarts: state.restarts,
            plan: Plan { size_bytes: self.volume.size(), ..state.plan.clone() },
            endpoints,
            holders,
            adapting: self.limiter.lock().as_ref().and_then(Limiter::report),
            stats: self.stats(),
        })
    }

    fn stats(&self) -> Stats {
        self.volume.stats()
    }

    fn sample(&self) -> Sample {
        // Whoever stops the export has it for as long as that takes.
        let endpoints = self.export.try_lock().and_then(|e| e.as_ref().map(|e| e.endpoints()));
        let state = self.state.lock();
        Sample {
            version: env!("CARGO_PKG_VERSION").into(),
            pid: state.pid,
            started_unix_s: state.started_unix_s,
            restarts: state.restarts,
            plan: Plan { size_bytes: self.volume.size(), ..state.plan.clone() },
            endpoints: endpoints.unwrap_or_default(),
            adapting: self.limiter.lock().as_ref().and_then(Limiter::report),
            stats: self.stats(),
            latencies: self.volume.latencies(),
        }
    }
}

/// Makes everything durable that was written before.
fn flush(volume: &Arc<dyn Serving>) -> Result<()> {
    let device = Arc::clone(volume) as Arc<dyn Device>;
    device
        .channel()
        .submit(volume::Request::Flush, Instant::now())
        .map_err(|e| Error::failure(format!("what was written can't be made durable: {e}")))
}

impl Handler for Running {
    fn handle(&self, request: Request, after: &mut After) -> Result<Box<RawValue>> {
        let value = match request {
            Request::Ping => to_raw_value(&Version {
                version: env!("CARGO_PKG_VERSION").into(),
                pid: std::process::id(),
            }),
            Request::Status => to_raw_value(&self.status()?),
            Request::Stats => to_raw_value(&self.stats()),
            Request::Sample => to_raw_value(&self.sample()),
            Request::Holders => to_raw_value(&self.status()?.holders),
            Request::Drain { on } => {
                to_raw_value(&Draining { until_segment: self.volume.drain(on)? })
            }
            Request::Set { size_bytes, ram_limit_bytes, adapt, log, recompress } => {
                self.set(size_bytes, (ram_limit_bytes, adapt), log, recompress)?;
                to_raw_value(&self.status()?)
            }
            Request::Swapon(ask) => {
                let _turn = self.turn()?;
                to_raw_value(&self.swapon(&ask)?)
            }
            Request::Swapoff { force } => {
                let _turn = self.turn()?;
                to_raw_value(&self.swapoff(force)?)
            }
            Request::Restart { force, log } => {
                self.ending(Event::Left, after, || self.restart(force, log))?;
                to_raw_value(&())
            }
            Request::Down { discard, force, drain } => {
                let mut left = None;
                self.ending(Event::Down, after, || {
                    self.down(discard, force)?;
                    if drain {
                        draining::drain(&*self.volume)?;
                    }
                    left = self.left_in_log();
                    Ok(())
                })?;
                to_raw_value(&left)
            }
        };
        value.context("cannot encode the answer")
    }
}

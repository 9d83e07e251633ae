//! `ztier restart`: another daemon for a volume that is up, or whose daemon died.

use super::drain::drain_most;
use super::progress_line::ProgressLine;
use super::{PATIENCE, files, output, sound, unknown};
use crate::config::lasting::lasting;
use crate::config::paths::full;
use crate::config::{Paths, Plan, Settings, name};
use crate::control::{Client, NewLog, Request, Status};
use crate::daemon::state::State;
use crate::daemon::{self, Found};
use crate::device::Marks;
use crate::error::{Error, Result};
use crate::remedy;
use clap::{Args, ValueHint};
use serde_json::json;
use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// How long the present daemon may take to leave.
const PATIENCE_TO_LEAVE: Duration = Duration::from_secs(60);
/// How long the next daemon waits for the present one to end: longer, because ending takes time
/// after the answer, and a daemon that does not answer may leave all the same.
const PATIENCE_TO_FOLLOW: Duration = Duration::from_secs(180);
/// How long a daemon that replaces itself may take to answer again.
const PATIENCE_TO_RETURN: Duration = Duration::from_secs(60);
/// The time between two questions.
const GLANCE: Duration = Duration::from_millis(5);

/// Replace the daemon of a volume, or start one where it died
///
/// The volume keeps its data, also what is only in memory. A ublk device stays, with its mounts:
/// requests wait for the new daemon. Open or mount a FUSE or NBD device again. The new daemon is
/// the program that is installed now.
#[derive(Args)]
pub struct Restart {
    /// Name of the volume
    name: String,
    /// Also while NBD clients are connected, whose requests fail; and although the log's drive does
    /// not take what is in memory, which stays there for the next daemon. A FUSE device that is
    /// held is refused all the same
    #[arg(long)]
    force: bool,
    /// Change the log's drive, or go on without a log (`none`): the old log is drained first, while
    /// the volume works
    #[arg(long, value_name = "DEV|none", value_hint = ValueHint::AnyPath)]
    log: Option<PathBuf>,
    /// Overwrite what is on the new log's drive, unless it is a log with data
    #[arg(long, requires = "log")]
    wipe: bool,
    /// Accept a file for the new log that other users can read or write
    #[arg(long, requires = "log")]
    allow_readable: bool,
    /// After the daemon died: go on without a spill device that is gone for good. What only it held
    /// is lost
    #[arg(long, conflicts_with = "log")]
    discard_spill: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

/// A volume that is served again.
struct Served {
    endpoints: Vec<String>,
    pid: u32,
    notes: Vec<String>,
    loss: Option<String>,
}

impl Restart {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let name = self.name.clone();
        self.act().map_err(|e| e.of(&name))
    }

    fn act(self) -> Result<()> {
        name::check(&self.name).map_err(Error::usage)?;
        let paths = Paths::of_this_user()?;
        if !paths.exists()? {
            return Err(unknown(&paths, &self.name));
        }
        let begun = Instant::now();
        let served = match daemon::settled(&paths, &self.name) {
            Found::Up(Some(_)) if self.discard_spill => {
                return Err(Error::usage(format!("the daemon of volume `{}` is up", self.name))
                    .hint(remedy::SPILL_FAILS.of(&self.name)));
            }
            Found::Up(Some(state)) => self.replace(&paths, &state)?,
            Found::Up(None) => {
                return Err(Error::busy(format!(
                    "volume `{}` is coming up or going down",
                    self.name
                ))
                .hint("look with `ztier list`, then try again"));
            }
            Found::Dead(_) if self.log.is_some() => {
                return Err(Error::degraded(format!("the daemon of volume `{}` died", self.name))
                    .hint("go on without --log first: then its log can be drained"));
            }
            Found::Dead(state) => self.again(&paths, &state)?,
            Found::Broken(e) => return Err(e),
            Found::Nothing => return Err(unknown(&paths, &self.name)),
        };
        self.print(&served, begun.elapsed())
    }

    /// Has the present daemon leave, and another take over. The next daemon starts first, so that
    /// requests wait only for what it can't do earlier.
    fn replace(&self, paths: &Paths, state: &State) -> Result<Served> {
        let client = Client::new(&paths.volume(&self.name).control);
        let log = self.new_log()?;
        let plan = match &log {
            None => state.plan.clone(),
            Some(NewLog::None) => state.plan.with_log(None)?,
            Some(NewLog::On { path, wipe }) => state.plan.with_log(Some((path, *wipe)))?,
        };
        let changes = log.is_some();
        if changes && state.plan.log.is_some() {
            drain_most(paths, &self.name)?;
        }
        let request = Request::Restart { force: self.force, log };
        let leave =
            |open: &dyn Fn(bool)| client.ask_telling::<()>(&request, PATIENCE_TO_LEAVE, open);
        let mut served = match state.foreground {
            true => leave(&|_| {}).and_then(|()| self.returned(&client, state.restarts))?,
            false => self.follow(&plan, paths, leave, || changes && self.has_left(&client))?,
        };
        if changes && self.plan_of(paths)? == state.plan {
            return Err(Error::failure(format!("volume `{}` has the log that it had", self.name))
                .hint("see what its daemon says"));
        }
        served.notes.extend(changes.then(|| self.outdated(paths)).flatten());
        Ok(served)
    }

    /// Starts the next daemon, and has the present one `leave`. If `leave` fails, but `has_left`
    /// says that the daemon is gone, the next daemon serves the volume, and the error is returned.
    /// A daemon that was told to go ahead, and does not answer, leaves as soon as it can.
    fn follow(
        &self,
        plan: &Plan,
        paths: &Paths,
        leave: impl Fn(&dyn Fn(bool)) -> Result<()>,
        has_left: impl Fn() -> bool,
    ) -> Result<Served> {
        let next = daemon::Starting::begin(plan, paths, PATIENCE_TO_FOLLOW, true)?;
        let unanswered = Cell::new(false);
        let left = leave(&|open| {
            if open {
                // If this process ends now, the volume still gets its daemon.
                next.stays();
            }
            unanswered.set(open);
        });
        match left {
            Ok(()) => self.come(next),
            Err(e) if has_left() => self.come(next).and(Err(e)),
            Err(e) if unanswered.get() => self.come_late(next, paths, e),
            Err(e) => Err(e),
        }
    }

    /// The log that `--log` asks for.
    fn new_log(&self) -> Result<Option<NewLog>> {
        let Some(log) = &self.log else { return Ok(None) };
        if log.as_os_str() == "none" {
            return Ok(Some(NewLog::None));
        }
        if !self.allow_readable {
            files::refuse_readable([log.as_path()])?;
        }
        Ok(Some(NewLog::On { path: full(log)?, wipe: self.wipe }))
    }

    fn has_left(&self, client: &Client) -> bool {
        client.ask::<Status>(&Request::Status, PATIENCE).is_err()
    }

    fn plan_of(&self, paths: &Paths) -> Result<Plan> {
        match daemon::find(paths, &self.name) {
            Found::Up(Some(state)) => Ok(state.plan),
            _ => Err(unknown(paths, &self.name)),
        }
    }

    /// A note if the saved settings name another log than the volume has now.
    fn outdated(&self, paths: &Paths) -> Option<String> {
        let file = paths.settings(&self.name);
        let saved = Settings::load(&file).ok()??;
        let wanted = self.log.as_ref().filter(|log| log.as_os_str() != "none");
        let absolute = |path: &PathBuf| lasting(path).unwrap_or_else(|_| path.clone());
        let says = match (&saved.log, &saved.log_uuid) {
            (log, _) if log.as_ref().map(absolute) != wanted.map(absolute) => {
                log.as_ref().map_or("no log".into(), |log| format!("log {}", log.display()))
            }
            (Some(log), Some(uuid)) if Marks::of(Some(log), None).log.as_ref() != Some(uuid) => {
                format!("log-uuid {uuid}, which the log on {} has no longer", log.display())
            }
            _ => return None,
        };
        Some(format!("{} still says {says}: the next `ztier up` goes by it", file.display()))
    }

    /// Starts a daemon that goes on with what a dead one left.
    fn again(&self, paths: &Paths, state: &State) -> Result<Served> {
        let mut plan = state.plan.clone();
        if self.discard_spill {
            let spill = plan.spill.as_mut().ok_or_else(|| {
                Error::usage(format!("volume `{}` has no spill device", self.name))
                    .hint("leave out --discard-spill")
            })?;
            spill.gone = true;
        }
        self.come(daemon::Starting::begin(&plan, paths, daemon::LOOKERS, true)?)
    }

    /// Waits for a daemon whose predecessor does not answer. That is no refusal: if this command
    /// ended the next daemon, none would serve the volume once the present one leaves.
    fn come_late(
        &self,
        next: daemon::Starting<'_>,
        paths: &Paths,
        unanswered: Error,
    ) -> Result<Served> {
        output::remark(&format!(
            "{}: its daemon does not answer; the next one waits for it to end",
            self.name
        ));
        self.come(next).map_err(|e| match daemon::find(paths, &self.name) {
            Found::Up(_) => unanswered,
            _ => e,
        })
    }

    fn come(&self, next: daemon::Starting<'_>) -> Result<Served> {
        let progress_line = ProgressLine::new();
        let progress = |what: &str| progress_line.show(&format_args!("{}: {what}", self.name));
        let ready = next.finish(&progress)?;
        progress_line.end();
        let daemon::Ready { endpoints, pid, notes, loss, .. } = ready;
        Ok(Served { endpoints, pid, notes, loss })
    }

    /// Waits until a daemon that replaces itself answers again.
    fn returned(&self, client: &Client, before: u64) -> Result<Served> {
        let deadline = Instant::now() + PATIENCE_TO_RETURN;
        loop {
            match client.ask::<Status>(&Request::Status, PATIENCE) {
                Ok(status) if status.restarts > before => {
                    let Status { endpoints, pid, stats, .. } = status;
                    return Ok(Served { endpoints, pid, notes: Vec::new(), loss: stats.loss() });
                }
                answer if Instant::now() >= deadline => {
                    let why = answer.err().map_or("it stays".into(), |e| e.to_string());
                    return Err(Error::failure(format!(
                        "the daemon of volume `{}` does not come back: {why}",
                        self.name
                    ))
                    .hint("see what it says where it was started"));
                }
                _ => std::thread::sleep(GLANCE),
            }
        }
    }

    fn print(&self, served: &Served, took: Duration) -> Result<()> {
        let Served { endpoints, pid, notes, loss } = served;
        for note in notes {
            output::remark(note);
        }
        if self.json {
            output::json(&json!({
                "name": self.name,
                "endpoints": endpoints,
                "pid": pid,
                "seconds": took.as_secs_f64(),
            }))?;
            return sound(&self.name, loss.as_deref());
        }
        let seconds = took.as_secs_f64();
        output::remark(&format!("{}: served by process {pid} after {seconds:.2} s", self.name));
        output::list(endpoints)?;
        sound(&self.name, loss.as_deref())
    }
}

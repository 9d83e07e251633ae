//! `ztier down`: end a volume, or remove what a dead daemon left.
//!
//! Invariant: with --drain, success means that the backing store lacks nothing, as far as this
//! machine has recorded.

use super::{all, drain, output, sound, unknown};
use crate::config::log::LogPlan;
use crate::config::size::human;
use crate::config::{Paths, Usage, name};
use crate::control::{Client, Ended, LeftInLog, Request};
use crate::daemon::memory_holder::Kept;
use crate::daemon::process::Condition;
use crate::daemon::silent::{self, Answering};
use crate::daemon::state::{self, Lock, State};
use crate::daemon::{self, Found};
use crate::device::{self, Known};
use crate::error::{Error, Result};
use crate::export::Leftover;
use crate::patience::eventually;
use crate::remedy;
use clap::Args;
use serde_json::json;
use std::path::Path;
use std::time::Duration;

/// How long the daemon may take to answer at all.
const PATIENCE_TO_ANSWER: Duration = Duration::from_secs(10);
/// How long the export may take to end.
const PATIENCE: Duration = Duration::from_secs(60);
/// How long the process may take after that.
const PATIENCE_TO_EXIT: Duration = Duration::from_secs(20);

/// Take a volume down, or clean up after a daemon that died
///
/// Refuses while the device is held, and while the volume holds data that exists nowhere else.
#[derive(Args)]
pub struct Down {
    /// Name of the volume
    #[arg(required_unless_present = "all")]
    name: Option<String>,
    /// Every volume that is up, or left by a daemon that died
    #[arg(long, conflicts_with_all = ["name", "json"])]
    all: bool,
    /// Give up the data that exists only in memory
    #[arg(long)]
    discard: bool,
    /// First bring everything in the log to the backing store, which then can be used alone
    #[arg(long)]
    drain: bool,
    /// Take the device away from its holders; their requests fail
    #[arg(long)]
    force: bool,
    /// Succeed also if there is no such volume
    #[arg(long)]
    if_exists: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
    /// Standard output belongs to another command's result.
    #[arg(skip)]
    quiet: bool,
}

impl Down {
    /// Runs the command.
    pub fn run(self) -> Result<()> {
        let paths = Paths::of_this_user()?;
        if self.all {
            let names = if paths.exists()? { daemon::names(&paths) } else { Vec::new() };
            let flags = (self.discard, self.drain, self.force);
            return all::each(names, |name| Self::of(name, flags).run());
        }
        name::check(self.name()).map_err(Error::usage)?;
        if !paths.exists()? {
            return self.none(&paths);
        }
        match daemon::reach(&paths, self.name()) {
            Found::Up(state) => self.end_or_force(&paths, state.as_deref()),
            Found::Dead(_) | Found::Broken(_) => self.end_dead(&paths, None),
            Found::Nothing => {
                state::forget(&paths.volume(self.name()));
                self.none(&paths)
            }
        }
    }

    /// There is no such volume: an error, unless that was asked for.
    fn none(&self, paths: &Paths) -> Result<()> {
        let unknown = unknown(paths, self.name());
        if !self.if_exists {
            return Err(unknown);
        }
        output::remark(&unknown.to_string());
        if self.json {
            output::json(&json!({"name": self.name(), "changed": false}))
        } else {
            Ok(())
        }
    }

    /// Prints what was done: `removed` of what a dead daemon had left, or how the volume ended.
    fn print(&self, text: &str, removed: &[String], ended: &Ended) -> Result<()> {
        let line = format!("{}{text}", self.name());
        if self.quiet {
            output::remark(&line);
            return Ok(());
        }
        if !self.json {
            return output::print(&format!("{line}\n"));
        }
        output::json(&json!({
            "name": self.name(),
            "changed": true,
            "removed": removed,
            "left": ended.left,
            "undrained": ended.undrained,
            "loss": ended.loss,
        }))
    }

    /// Ends a daemon that is alive or that the kernel is just ending.
    fn end_or_force(&self, paths: &Paths, state: Option<&State>) -> Result<()> {
        let files = paths.volume(self.name());
        let process = match silent::answering(&files, PATIENCE_TO_ANSWER) {
            Answering::Yes => return self.end(paths, state),
            Answering::Gone => return self.end_dead(paths, state),
            Answering::No(process) => process,
        };
        // A dying daemon serves nothing any more: ending it needs no `--force`.
        if !self.force && process.condition() != Condition::Dying {
            return Err(silent::refusal(&files, &process));
        }
        // Users of a device that waits for its next daemon are cut off only if none is to come.
        let cuts = self.discard || !Kept::is_there(&files.keep);
        silent::end(&files, &process, cuts, &output::remark)?;
        self.end_dead(paths, state)
    }

    /// Cleans up after a dead daemon, unless that would give up memory that is kept, or the log
    /// was to be drained and may not be. `before` is the daemon's state when it was last seen.
    fn end_dead(&self, paths: &Paths, before: Option<&State>) -> Result<()> {
        let found = daemon::find(paths, self.name());
        let state = match &found {
            Found::Dead(state) | Found::Up(Some(state)) => Some(&**state),
            Found::Up(None) | Found::Broken(_) | Found::Nothing => before,
        };
        let has_cleaned_up = matches!(found, Found::Nothing);
        if !has_cleaned_up {
            self.refuse_kept(paths)?;
        }
        if self.drain {
            self.refuse_undrained(paths, state, &found)?;
        }
        match has_cleaned_up {
            true => self.print(" is down", &[], &Ended::default())?,
            false => self.clean(paths)?,
        }
        // Not earlier: a drive that fails may be slow to open.
        if !self.drain
            && let Ok(Some(log)) = lacking(paths, state)
        {
            output::remark(&self.not_alone(&may_hold(log), &log.backing));
        }
        Ok(())
    }

    fn end(&self, paths: &Paths, state: Option<&State>) -> Result<()> {
        // A passthrough volume has no log to drain.
        let is_passthrough =
            state.is_some_and(|s| s.plan.backing.is_some() && s.plan.log.is_none());
        if self.drain && !is_passthrough {
            drain::drain_most(paths, self.name())?;
        }
        let ended = self.stop(paths)?;
        if let Found::Dead(_) | Found::Broken(_) = daemon::find(paths, self.name()) {
            // The daemon could not remove everything: a device taken by force is still held, or the
            // kernel took too long.
            let name = self.name();
            self.remove(paths).map_err(|e| {
                e.after(format_args!("volume `{name}` is stopped, but "))
                    .and(format!("then `ztier down {name}` again"))
            })?;
        }
        self.print(" is down", &[], &ended)?;
        let lost = sound(self.name(), ended.loss.as_deref());
        let Some(left) = &ended.left else { return lost };
        if self.drain {
            lost.unwrap_or_else(|e| output::remark(&e.to_string()));
            let why = ended.undrained.map(|why| format!(", because {why}")).unwrap_or_default();
            return Err(Error::degraded(format!("{}{why}", self.about(left))));
        }
        output::remark(&self.about(left));
        lost
    }

    /// What the user must know before the backing store is used alone.
    fn about(&self, left: &LeftInLog) -> String {
        let what = format!("{} are on {} only", human(left.bytes), left.log.display());
        self.not_alone(&what, &left.backing)
    }

    /// As [`Self::about`], for the reason `why`.
    fn not_alone(&self, why: &str, backing: &Path) -> String {
        let (name, backing) = (self.name(), backing.display());
        format!(
            "{name}: {why}; before {backing} is used alone, bring the volume up again and take it \
             down with --drain"
        )
    }

    /// Asks the daemon to end and waits until it has. Returns what became of the volume.
    fn stop(&self, paths: &Paths) -> Result<Ended> {
        let files = paths.volume(self.name());
        let (discard, force, drain) = (self.discard, self.force, self.drain);
        let request = Request::Down { discard, force, drain };
        let ended = Client::new(&files.control).ask(&request, PATIENCE)?;
        if eventually(PATIENCE_TO_EXIT, Duration::from_millis(5), || !Lock::is_held(&files)) {
            return Ok(ended);
        }
        let name = self.name();
        let text = format!("volume `{name}` is stopped, but its daemon does not end");
        Err(Error::busy(text).hint(format!("see `ztier list`, then `ztier down {name}` again")))
    }

    /// Takes the volume `name` down, with or without a daemon, and prints nothing. Discards its
    /// data.
    ///
    /// # Errors
    /// As the command.
    pub(super) fn quietly(paths: &Paths, name: &str) -> Result<()> {
        let down = Self::discarding(name);
        if let Found::Up(_) = daemon::find(paths, name) {
            down.stop(paths)?;
        }
        match daemon::find(paths, name) {
            Found::Dead(_) | Found::Broken(_) => down.remove(paths).map(drop),
            _ => Ok(()),
        }
    }

    /// Removes what the dead daemon of the volume `name` left, and discards its data. Returns
    /// descriptions of what was removed.
    ///
    /// # Errors
    /// As the command.
    pub(super) fn after_death(paths: &Paths, name: &str) -> Result<Vec<String>> {
        Self::discarding(name).remove(paths)
    }

    /// Like `after_death`, even if the device is held: its holders get errors.
    ///
    /// # Errors
    /// As the command.
    pub(super) fn by_force(paths: &Paths, name: &str) -> Result<Vec<String>> {
        Self { force: true, ..Self::discarding(name) }.remove(paths)
    }

    fn discarding(name: &str) -> Self {
        Self::of(name, (true, false, false))
    }

    /// The command for a volume that is forgotten afterwards. Its log is drained, if it has one.
    /// If `quiet`, it prints nothing to standard output.
    pub(super) fn to_forget(name: &str, discard: bool, has_log: bool, quiet: bool) -> Self {
        Self { quiet, ..Self::of(name, (discard, has_log && !discard, false)) }
    }

    fn of(name: &str, (discard, drain, force): (bool, bool, bool)) -> Self {
        let (if_exists, all, json, quiet) = (true, false, false, false);
        Self { name: Some(name.to_owned()), all, discard, drain, force, if_exists, json, quiet }
    }

    fn name(&self) -> &str {
        self.name.as_deref().unwrap_or_default()
    }

    /// Refuses to give up the memory that is kept of a dead daemon, without `--discard`.
    fn refuse_kept(&self, paths: &Paths) -> Result<()> {
        let name = self.name();
        if self.discard || !Kept::is_there(&paths.volume(name).keep) {
            return Ok(());
        }
        Err(Error::would_lose(format!(
            "the daemon of volume `{name}` died, and what it had in memory is kept"
        ))
        .hint(remedy::KEPT.of(name)))
    }

    /// Refuses to remove what is left of a volume whose log should be drained, which only a daemon
    /// can do, unless the log certainly holds nothing that its backing store lacks.
    fn refuse_undrained(&self, paths: &Paths, state: Option<&State>, found: &Found) -> Result<()> {
        let why = match lacking(paths, state) {
            Ok(None) => return Ok(()),
            Ok(Some(log)) => may_hold(log),
            Err(e) => format!("what its log holds is not known: {}", e.text()),
        };
        let name = self.name();
        let up = match found {
            Found::Dead(_) => "restart",
            _ => "up",
        };
        let text = format!("the daemon of volume `{name}` is gone, and {why}");
        let next =
            format!("bring it up with `ztier {up} {name}`, then `ztier down {name} --drain`");
        Err(Error::degraded(text).hint(next))
    }

    fn clean(&self, paths: &Paths) -> Result<()> {
        let removed = self.remove(paths)?;
        let what = if removed.is_empty() { "nothing was left".into() } else { removed.join(", ") };
        let text = format!(": its daemon was gone; removed: {what}");
        self.print(&text, &removed, &Ended::default())
    }

    /// Removes what a dead daemon left.
    fn remove(&self, paths: &Paths) -> Result<Vec<String>> {
        let files = paths.volume(self.name());
        if let Found::Dead(state) = daemon::find(paths, self.name())
            && swap_waits(&state)
            && Kept::is_there(&files.keep)
        {
            match self.serve_to_the_end(paths, &state) {
                Err(e) if self.force && self.discard => output::remark(&format!("forced: {e}")),
                done => return done,
            }
        }
        let Some(lock) = Lock::acquire(&files, Duration::from_secs(1))? else {
            return Err(Error::busy(format!("volume `{}` came up just now", self.name()))
                .hint("look with `ztier list`"));
        };
        if self.force { state::clean_by_force(lock, &files) } else { state::clean(lock, &files) }
    }

    /// Starts another daemon to end what the dead one left: pages that are swapped out to a waiting
    /// device can be read only through a daemon.
    fn serve_to_the_end(&self, paths: &Paths, state: &State) -> Result<Vec<String>> {
        let mut plan = state.plan.clone();
        let job = plan.job.take();
        daemon::spawn(&plan, paths, &|_| {})?;
        // Not earlier: a process that waits for such a page can't end before a daemon serves it.
        let cleared = job.map_or(Ok(0), |job| job.clear());
        self.stop(paths)?;
        cleared?;
        let removed = state.leftovers.iter().map(Leftover::describe);
        Ok(removed.chain(["the memory that was kept".to_owned()]).collect())
    }
}

/// The log of a volume without a daemon, if it may hold what its backing store lacks.
///
/// # Errors
/// That can't be known.
fn lacking<'a>(paths: &Paths, state: Option<&'a State>) -> Result<Option<&'a LogPlan>> {
    let Some(state) = state else {
        return Err(Error::failure("its state file can't be read"));
    };
    let Some(log) = &state.plan.log else { return Ok(None) };
    let known = device::known(&paths.state, &log.backing)?;
    Ok(matches!(known, Known::Lacking(_)).then_some(log))
}

/// What a log may hold, in words.
fn may_hold(log: &LogPlan) -> String {
    format!("{} may hold what {} lacks", log.log.display(), log.backing.display())
}

/// Whether a device that may carry swap waits for its daemon.
fn swap_waits(state: &State) -> bool {
    let swap = matches!(state.plan.usage, Some(Usage::Swap { .. }));
    swap && state.leftovers.iter().any(Leftover::waits)
}

//! All tables in one run, each as a separate process.
//!
//! Invariants: the run's state is saved after each step, so that no result is lost, whatever ends
//! the run. A failed table does not end the run. One table runs at a time on a machine, also of
//! other runs. This module does not interpret figures: the report is made of the files.

mod about;
mod child;
mod left;
pub mod plan;
mod progress;
mod record;
mod turn;

pub use child::tie;
pub use left::words;
pub use record::{Folder, Part, Run, State};
pub use turn::Turn;

use crate::report::machine;
use crate::sys::cpu::Stopwatch;
use crate::sys::interrupt;
use child::Child;
use left::{Stretch, left};
use plan::Entry;
use progress::Progress;
use std::cell::OnceCell;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use ztier::error::{Error, Result};
use ztier::stats::time::{now, rfc3339};
use ztier_vm::{Lab, Trouble};

/// Directory of all runs, below the one in which `./bench` was called.
const RESULTS: &str = "bench-results";
/// Interval between checks of a table.
const LOOK: Duration = Duration::from_millis(200);
/// Time for which the machine's load is measured before a table.
const WATCH: Duration = Duration::from_millis(500);
/// A table that takes this many times its expected time, plus `REST`, hangs.
const PATIENCE: f64 = 6.0;
const REST: Duration = Duration::from_secs(900);

/// Options of the command line.
#[derive(Clone, Debug, Default)]
pub struct Choice {
    /// The short form.
    pub quick: bool,
    /// The only parts to run.
    pub only: Vec<String>,
    /// Parts to leave out.
    pub skip: Vec<String>,
    /// Working directory; below [`RESULTS`] by default.
    pub dir: Option<PathBuf>,
    /// Resume a run: the newest, or the one in this directory.
    pub resume: Option<Option<PathBuf>>,
    /// Repeat the output of the tables.
    pub verbose: bool,
    /// The command line as typed.
    pub command: String,
}

impl Choice {
    /// The chosen parts.
    fn entries(&self, quick: bool) -> Result<Vec<&'static Entry>> {
        let wanted = |entry: &&Entry| {
            let named = |names: &[String]| names.iter().any(|name| name == entry.name);
            (self.only.is_empty() || named(&self.only)) && !named(&self.skip)
        };
        let entries: Vec<&Entry> = plan::entries(quick).iter().filter(wanted).collect();
        if entries.is_empty() {
            return Err(Error::usage("no table is left to run").hint("skip fewer"));
        }
        Ok(entries)
    }

    /// The run and its directory.
    fn open(&self) -> Result<(Folder, Run)> {
        let build = about::build()?;
        let (folder, mut run) = match &self.resume {
            Some(which) => {
                let folder = match which {
                    Some(dir) => Folder::of(dir.clone()),
                    None => Folder::newest(Path::new(RESULTS))?,
                };
                let mut run = folder.load()?;
                if self.quick && !run.quick {
                    let text = format!("{} is not a quick run", folder.path().display());
                    return Err(Error::usage(text).hint("leave --quick out, or begin a new run"));
                }
                let mut entries = self.entries(run.quick)?;
                if self.only.is_empty() {
                    entries.retain(|entry| run.parts.iter().any(|part| part.name == entry.name));
                }
                run.renew(&entries, &build);
                (folder, run)
            }
            None => {
                let begun = rfc3339(now());
                let run = Run::new(begun.clone(), self.quick, build, &self.entries(self.quick)?);
                let usual = || Path::new(RESULTS).join(begun.replace(':', "-"));
                (Folder::create(self.dir.clone().unwrap_or_else(usual))?, run)
            }
        };
        run.commands.push(self.command.clone());
        run.move_to(machine());
        run.versions = about::versions();
        Ok((folder, run))
    }
}

/// A run that no other process works on.
pub struct Session {
    /// The directory of its figures and logs.
    pub folder: Folder,
    /// Its state.
    pub run: Run,
    verbose: bool,
    turn: Turn,
    _lock: File,
}

impl Session {
    /// Begins a run, or opens one to resume, in this turn.
    ///
    /// # Errors
    /// No part is chosen; there is no such run, or another process works on it; the directory can't
    /// be written.
    pub fn open(choice: &Choice, turn: Turn) -> Result<Self> {
        let (folder, run) = choice.open()?;
        let lock = folder.lock()?;
        folder.save(&run)?;
        Ok(Self { folder, run, verbose: choice.verbose, turn, _lock: lock })
    }

    /// Runs the parts that still have to run.
    ///
    /// # Errors
    /// A table has failed; the run was interrupted; the directory can't be written.
    pub fn work(&mut self) -> Result<()> {
        let Self { folder, run, verbose, turn, .. } = self;
        let mut progress = Progress::new();
        let dir = folder.path().display();
        let again = run.parts.iter().filter(|part| part.is_to_run()).count();
        let (all, time) = (run.parts.len(), words(left(&stretches(run, 0, 0.0))));
        progress.say(&format!("{again} of {all} tables to run in {dir}, about {time}"));
        let start = |part: &Part, args: &[String]| {
            Child::start(&part.name, args, &folder.file(&part.name, "log"), *verbose, turn)
        };
        let done = each(run, folder, &mut progress, &start);
        if interrupt::requested() {
            let text = format!("interrupted; what has ended is in {dir}");
            let hint = format!("go on with ./bench all --resume {dir}");
            return Err(Error::failure(text).hint(hint));
        }
        done?;
        let failed = run.parts.iter().filter(|part| part.state == State::Failed);
        let failed: Vec<&str> = failed.map(|part| part.name.as_str()).collect();
        if failed.is_empty() {
            return Ok(());
        }
        let text = format!("failed: {}", failed.join(", "));
        Err(Error::failure(text).hint(format!("the report and logs in {dir} say why")))
    }
}

/// Starts a part with given arguments.
type Start<'a> = &'a dyn Fn(&Part, &[String]) -> Result<Child>;

/// Runs one part after the other.
fn each(run: &mut Run, folder: &Folder, progress: &mut Progress, start: Start<'_>) -> Result<()> {
    let machines = OnceCell::new();
    for n in 0..run.parts.len() {
        if !run.parts[n].is_to_run() {
            continue;
        }
        interrupt::check()?;
        if let Some(reason) = absent(&run.parts[n], &machines) {
            progress.say(&format!("{}: {reason}", run.parts[n].name));
            (run.parts[n].state, run.parts[n].reason) = (State::Absent, Some(reason));
            folder.save(run)?;
            continue;
        }
        let watch = Stopwatch::start();
        interrupt::sleep(WATCH)?;
        let (build, machine, all) = (run.build.clone(), run.machine.clone(), run.parts.len());
        let part = &mut run.parts[n];
        part.busy_percent = Some(watch.stop().machine_percent);
        part.begun = Some(rfc3339(now()));
        part.state = State::Running;
        (part.build, part.machine) = (Some(build), Some(machine));
        folder.save(run)?;
        let begun = Instant::now();
        let ended = one(run, n, folder, progress, start);
        let part = &mut run.parts[n];
        part.seconds = Some(begun.elapsed().as_secs_f64());
        let ended = match ended {
            Ok(ended) => ended,
            Err(e) => {
                part.state = State::Failed;
                part.reason = Some(e.to_string());
                folder.save(run)?;
                return Err(e);
            }
        };
        (part.state, part.status, part.reason) = ended;
        let reason = part.reason.as_deref().map_or(String::new(), |why| format!(", failed: {why}"));
        let (name, took) = (&part.name, words(begun.elapsed().as_secs_f64()));
        progress.say(&format!("[{} of {all}] {name}: {took}{reason}", n + 1));
        folder.save(run)?;
    }
    Ok(())
}

/// Reason why a table can't run here, if it needs a virtual machine and there can be none;
/// determined once.
fn absent(part: &Part, machines: &OnceCell<Option<String>>) -> Option<String> {
    let inside = part.args.iter().any(|arg| arg == "--vm") || part.name == "worst-case";
    let none = || match Lab::open(&["ztier", "ztier-bench"]) {
        Err(Trouble::Absent(why)) => Some(why),
        // The table itself reports any other failure.
        Ok(_) | Err(Trouble::Failed(_)) => None,
    };
    if inside { machines.get_or_init(none).clone() } else { None }
}

/// State, exit status and reason of a part that has ended.
type Ended = (State, Option<i32>, Option<String>);

/// Runs a part to its end.
fn one(
    run: &Run,
    n: usize,
    folder: &Folder,
    progress: &mut Progress,
    start: Start<'_>,
) -> Result<Ended> {
    let part = &run.parts[n];
    let mut args = part.args.clone();
    for (option, end) in [("--json", "json"), ("--csv", "csv")] {
        let file = folder.file(&part.name, end);
        // Figures of an earlier try do not belong to this one.
        let _ = std::fs::remove_file(&file);
        args.extend([option.to_owned(), file.display().to_string()]);
    }
    let begun = Instant::now();
    let limit = Duration::from_secs_f64(part.typical_s * PATIENCE) + REST;
    let mut child = start(part, &args)?;
    loop {
        if let Some(status) = child.look()? {
            let why = || child.last().trim_start_matches("ztier-bench: ").to_owned();
            return Ok(match status.success() {
                true => (State::Done, Some(0), None),
                false => (State::Failed, status.code(), Some(why())),
            });
        }
        let been = begun.elapsed();
        if been > limit {
            child.end();
            let why = format!("did not end within {}", words(limit.as_secs_f64()));
            return Ok((State::Failed, None, Some(why)));
        }
        let rest = left(&stretches(run, n, been.as_secs_f64()));
        let what = format!(
            "[{} of {}] {}, {}; about {} left",
            n + 1,
            run.parts.len(),
            part.name,
            words(been.as_secs_f64()),
            words(rest)
        );
        progress.show(&what, child.last());
        if let Err(e) = interrupt::sleep(LOOK) {
            progress.say(&format!("ending {}", part.name));
            return Err(e);
        }
    }
}

/// The times of all parts; the `n`th has run for `been` seconds.
fn stretches(run: &Run, n: usize, been: f64) -> Vec<Stretch> {
    let of = |(i, part): (usize, &Part)| match (part.state, part.seconds) {
        (State::Waiting, _) if part.is_to_run() => Stretch::ToCome(part.typical_s),
        (State::Running, _) if i == n => Stretch::AtWork(part.typical_s, been),
        (State::Done, Some(took)) => Stretch::Over(part.typical_s, took),
        // A part that failed early says nothing about the machine.
        _ => Stretch::Over(0.0, 0.0),
    };
    run.parts.iter().enumerate().map(of).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_chosen_by_name() {
        let names = |only: &[&str], skip: &[&str]| {
            let words = |words: &[&str]| words.iter().map(|&w| w.to_owned()).collect();
            let choice = Choice { only: words(only), skip: words(skip), ..Choice::default() };
            let entries = choice.entries(true).ok()?;
            Some(entries.iter().map(|entry| entry.name).collect::<Vec<_>>())
        };
        assert_eq!(names(&[], &[]), Some(plan::NAMES.to_vec()));
        assert_eq!(names(&["scan", "zram"], &["scan"]), Some(vec!["zram"]));
        assert_eq!(names(&[], &plan::NAMES), None);
    }

    #[test]
    fn only_what_ended_well_says_how_long_others_take() {
        let entries: Vec<&Entry> = plan::entries(true).iter().take(4).collect();
        let mut run = Run::new(String::new(), true, String::new(), &entries);
        for (part, state) in
            run.parts.iter_mut().zip([State::Done, State::Failed, State::Running, State::Waiting])
        {
            (part.state, part.seconds, part.typical_s) = (state, Some(20.0), 10.0);
        }
        use Stretch::{AtWork, Over, ToCome};
        let expected = [Over(10.0, 20.0), Over(0.0, 0.0), AtWork(10.0, 3.0), ToCome(10.0)];
        assert_eq!(stretches(&run, 2, 3.0), expected);
    }
}

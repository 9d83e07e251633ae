//! The state of a run: `run.json` in its directory, beside the figures and logs of its parts.
//!
//! Invariant: each change replaces the file as a whole and durably, so that a run that was
//! interrupted at any moment can be resumed.

use super::plan::{Entry, NAMES};
use rustix::fs::{Mode, OFlags};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::path::{Path, PathBuf};
use ztier::error::{Context, Error, Result};

const FILE: &str = "run.json";
const FORMAT: u32 = 1;

/// The state of a part.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Not started.
    Waiting,
    /// Running, or interrupted while running.
    Running,
    /// Ended successfully.
    Done,
    /// Failed, in part or as a whole; its figures count.
    Failed,
    /// This machine lacks a prerequisite.
    Absent,
}

/// A table of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// Name, also in the names of its files.
    pub name: String,
    /// Arguments of the program, without those for output files.
    pub args: Vec<String>,
    /// Expected time in seconds.
    pub typical_s: f64,
    /// Its state.
    pub state: State,
    /// Time at which it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<String>,
    /// Duration in seconds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// Load of other processes just before it, in percent of one CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_percent: Option<f64>,
    /// The program's exit status; `None` if a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// Reason for missing figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// The build that made its figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// CPUs, memory and kernel of its machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Value>,
    /// Other parts were chosen this time.
    #[serde(skip)]
    pub left_out: bool,
}

impl Part {
    /// A part that has not started.
    pub fn new(entry: &Entry) -> Self {
        Self {
            name: entry.name.to_owned(),
            args: entry.args.split_whitespace().map(str::to_owned).collect(),
            typical_s: entry.typical_s,
            state: State::Waiting,
            begun: None,
            seconds: None,
            busy_percent: None,
            status: None,
            reason: None,
            build: None,
            machine: None,
            left_out: false,
        }
    }

    /// Whether it still has to run this time.
    pub fn is_to_run(&self) -> bool {
        self.state == State::Waiting && !self.left_out
    }

    /// Whether the part need not run again for `wanted`: it has ended successfully, as the same
    /// build with the same arguments.
    pub fn serves(&self, wanted: &Self, build: &str) -> bool {
        self.state == State::Done
            && self.args == wanted.args
            && self.build.as_deref() == Some(build)
    }
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Version of the file format.
    format: u32,
    /// Time at which it began.
    pub begun: String,
    /// Whether it is the quick plan.
    pub quick: bool,
    /// The commands that began and resumed it.
    pub commands: Vec<String>,
    /// The program: its version, the commit, and checksums of its files.
    pub build: String,
    /// CPUs, memory and kernel of the machine where it was last resumed.
    pub machine: Value,
    /// Versions of the programs used.
    pub versions: BTreeMap<String, String>,
    /// All parts, in their order.
    pub parts: Vec<Part>,
}

impl Run {
    /// A run of which no part has started.
    pub fn new(begun: String, quick: bool, build: String, entries: &[&Entry]) -> Self {
        Self {
            format: FORMAT,
            begun,
            quick,
            commands: Vec::new(),
            build,
            machine: Value::Null,
            versions: BTreeMap::new(),
            parts: entries.iter().map(|entry| Part::new(entry)).collect(),
        }
    }

    /// Resumes the run on `machine`. Parts without a machine ran on the former one.
    pub fn move_to(&mut self, machine: Value) {
        let before = std::mem::replace(&mut self.machine, machine);
        for part in self.parts.iter_mut().filter(|part| part.begun.is_some()) {
            part.machine.get_or_insert_with(|| before.clone());
        }
    }

    /// Resets the chosen parts that did not succeed, or whose arguments or build differ now; leaves
    /// out all others.
    pub fn renew(&mut self, entries: &[&Entry], build: &str) {
        self.parts.iter_mut().for_each(|part| part.left_out = true);
        for entry in entries {
            let wanted = Part::new(entry);
            match self.parts.iter_mut().find(|part| part.name == entry.name) {
                Some(part) if part.serves(&wanted, build) => part.left_out = false,
                Some(part) => *part = wanted,
                None => self.parts.push(wanted),
            }
        }
        self.parts.sort_by_key(|part| NAMES.iter().position(|name| *name == part.name));
        build.clone_into(&mut self.build);
    }
}

/// The directory of a run.
#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

impl Folder {
    /// Makes a new directory.
    ///
    /// # Errors
    /// It can't be made, or exists already.
    pub fn create(path: PathBuf) -> Result<Self> {
        let what = || format!("cannot make {}", path.display());
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).context(what())?;
        }
        std::fs::create_dir(&path).context(what())?;
        Ok(Self(path))
    }

    /// An existing directory.
    pub fn of(path: PathBuf) -> Self {
        Self(path)
    }

    /// The newest run below `dir`, by its name.
    ///
    /// # Errors
    /// There is no run.
    pub fn newest(dir: &Path) -> Result<Self> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let runs = entries.map(|entry| entry.path()).filter(|path| path.join(FILE).is_file());
        let none = || {
            Error::failure(format!("there is no run in {}", dir.display()))
                .hint("name its directory, or begin one without --resume")
        };
        runs.max().map(Self).ok_or_else(none)
    }

    /// Its path.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// The path of a part's file.
    pub fn file(&self, name: &str, end: &str) -> PathBuf {
        self.0.join(format!("{name}.{end}"))
    }

    /// Keeps other processes from working in the directory until the returned lock is dropped.
    ///
    /// # Errors
    /// Another process works in it.
    pub fn lock(&self) -> Result<File> {
        let path = self.0.display();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let dir = rustix::fs::open(&self.0, flags, Mode::empty());
        let dir = File::from(dir.context(format!("cannot open {path}"))?);
        dir.try_lock().map_err(|_| {
            Error::failure(format!("another ./bench all works in {path}"))
                .hint("wait until it has ended")
        })?;
        Ok(dir)
    }

    /// The state of the run.
    ///
    /// # Errors
    /// There is no state file, or none that this program understands.
    pub fn load(&self) -> Result<Run> {
        let path = self.0.join(FILE);
        let text = std::fs::read_to_string(&path)
            .context(format!("cannot read {}", path.display()))
            .map_err(|e| e.hint("name the directory of a run"))?;
        let run: Run = serde_json::from_str(&text)
            .context(format!("{} is not of a run", path.display()))
            .map_err(|e| e.hint("begin a new one"))?;
        if run.format != FORMAT {
            let text = format!("{} has format {}, not {FORMAT}", path.display(), run.format);
            return Err(Error::failure(text).hint("begin a new run"));
        }
        Ok(run)
    }

    /// Saves the state.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn save(&self, run: &Run) -> Result<()> {
        let text = serde_json::to_string_pretty(run).context("cannot make JSON")? + "\n";
        self.replace(FILE, text.as_bytes())
    }

    /// Writes a file as a whole: a reader sees the old content or the new one.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn replace(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let (path, new) = (self.0.join(name), self.0.join(format!("{name}.new")));
        let write = || {
            let mut file = File::create(&new)?;
            file.write_all(bytes)?;
            file.sync_all()?;
            std::fs::rename(&new, &path)
        };
        write().context(format!("cannot write {}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::plan::entries;
    use super::*;

    fn run() -> Run {
        let few: Vec<&Entry> = entries(true).iter().take(2).collect();
        Run::new("2026-01-02T03:04:05Z".into(), true, "a".into(), &few)
    }

    #[test]
    fn what_was_saved_is_loaded_and_others_are_kept_out() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::create(dir.path().join("runs/one")).unwrap();
        assert!(Folder::create(dir.path().join("runs/one")).is_err());
        let mut run = run();
        run.parts[0].state = State::Failed;
        run.parts[0].reason = Some("no root".into());
        folder.save(&run).unwrap();
        assert_eq!(folder.load().unwrap(), run);
        let _lock = folder.lock().unwrap();
        assert!(folder.lock().unwrap_err().to_string().contains("another ./bench all"));
        // Only complete files.
        let names = std::fs::read_dir(folder.path()).unwrap().flatten();
        assert_eq!(names.map(|e| e.file_name()).collect::<Vec<_>>(), [FILE]);
    }

    #[test]
    fn the_newest_run_is_the_one_with_the_last_name() {
        let dir = tempfile::tempdir().unwrap();
        assert!(Folder::newest(dir.path()).is_err());
        for name in ["2026-01-02", "2026-01-03"] {
            Folder::create(dir.path().join(name)).unwrap().save(&run()).unwrap();
        }
        std::fs::create_dir(dir.path().join("2027-empty")).unwrap();
        assert!(Folder::newest(dir.path()).unwrap().path().ends_with("2026-01-03"));
    }

    #[test]
    fn a_file_of_another_format_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let folder = Folder::of(dir.path().into());
        assert!(folder.load().is_err());
        let text = serde_json::to_string(&Run { format: 2, ..run() }).unwrap();
        std::fs::write(dir.path().join(FILE), text).unwrap();
        assert!(folder.load().unwrap_err().to_string().contains("format 2"));
        std::fs::write(dir.path().join(FILE), "{}").unwrap();
        assert!(folder.load().unwrap_err().to_string().contains("not of a run"));
    }

    #[test]
    fn only_what_ended_well_as_it_would_now_is_not_run_again() {
        let all: Vec<&Entry> = entries(true).iter().take(3).collect();
        let done = |run: &mut Run, n: usize, build: &str| {
            run.parts[n].state = State::Done;
            run.parts[n].build = Some(build.into());
        };
        let mut one = run();
        done(&mut one, 0, "a");
        done(&mut one, 1, "before");
        one.renew(&all, "a");
        let states: Vec<State> = one.parts.iter().map(|part| part.state).collect();
        assert_eq!(states, [State::Done, State::Waiting, State::Waiting]);
        let mut other = run();
        done(&mut other, 0, "a");
        other.parts[0].args.push("--else".into());
        other.parts[1].state = State::Failed;
        other.renew(&all[..1], "a");
        // The second part was not chosen.
        let states: Vec<State> = other.parts.iter().map(|part| part.state).collect();
        assert_eq!(states, [State::Waiting, State::Failed]);
        let mut waiting = run();
        waiting.renew(&all[1..2], "a");
        let to_run: Vec<bool> = waiting.parts.iter().map(Part::is_to_run).collect();
        assert_eq!(to_run, [false, true]);
        // A part that is added later gets its place in the order.
        let mut late = Run { parts: vec![Part::new(all[2])], ..run() };
        late.renew(&all[..2], "a");
        assert!(late.parts.iter().map(|part| part.name.as_str()).eq(NAMES[..3].iter().copied()));
    }
}

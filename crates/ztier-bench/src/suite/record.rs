//! What is known of a run: `run.json` in its directory, beside the figures and logs of its parts.
//!
//! Invariant: the file is replaced as a whole and durably whenever something has changed, so that a
//! run that was cut off at any moment can be gone on with.

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

/// How far a part is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// To come.
    Waiting,
    /// At work, or cut off there.
    Running,
    /// It has ended well.
    Done,
    /// It has failed, in part or as a whole; the figures that it has left count.
    Failed,
    /// This machine lacks what it needs.
    Absent,
}

/// A table of the run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Part {
    /// What it is called, also in the names of its files.
    pub name: String,
    /// Arguments of the program, without those that say where figures go.
    pub args: Vec<String>,
    /// Seconds that it should take.
    pub typical_s: f64,
    /// How far it is.
    pub state: State,
    /// When it began.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub begun: Option<String>,
    /// How long it took.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seconds: Option<f64>,
    /// What others did on the machine just before it, percent of one CPU.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub busy_percent: Option<f64>,
    /// The program's exit status; none if a signal ended it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<i32>,
    /// Why there is nothing, or not all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    /// What made its figures.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<String>,
    /// CPUs, memory and kernel of where it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<Value>,
}

impl Part {
    /// One that is to come.
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
        }
    }

    /// Whether it need not run again for `wanted`: it has ended well, as the same build with the
    /// same arguments.
    pub fn serves(&self, wanted: &Self, build: &str) -> bool {
        self.state == State::Done
            && self.args == wanted.args
            && self.build.as_deref() == Some(build)
    }
}

/// A run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Run {
    /// Of this file.
    format: u32,
    /// When it began.
    pub begun: String,
    /// Whether it is the short form.
    pub quick: bool,
    /// What was typed: to begin it, and to go on each time.
    pub commands: Vec<String>,
    /// The program: its version, the commit, and sums of its files.
    pub build: String,
    /// CPUs, memory and kernel of where it was last gone on with.
    pub machine: Value,
    /// Versions of what was used.
    pub versions: BTreeMap<String, String>,
    /// All parts, in their order.
    pub parts: Vec<Part>,
}

impl Run {
    /// One of which nothing is done.
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

    /// Goes on with it on a machine. Parts that do not say where they ran did so where it was
    /// before.
    pub fn move_to(&mut self, machine: Value) {
        let before = std::mem::replace(&mut self.machine, machine);
        for part in self.parts.iter_mut().filter(|part| part.begun.is_some()) {
            part.machine.get_or_insert_with(|| before.clone());
        }
    }

    /// Lets the parts that are wanted run again which did not end well, or not as they would now.
    pub fn renew(&mut self, entries: &[&Entry], build: &str) {
        for entry in entries {
            let wanted = Part::new(entry);
            match self.parts.iter_mut().find(|part| part.name == entry.name) {
                Some(part) if part.serves(&wanted, build) => {}
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
    /// Makes a new one.
    ///
    /// # Errors
    /// It can't be made, or is there already.
    pub fn create(path: PathBuf) -> Result<Self> {
        let what = || format!("cannot make {}", path.display());
        if let Some(parent) = path.parent() {
            std::fs::create_dir_all(parent).context(what())?;
        }
        std::fs::create_dir(&path).context(what())?;
        Ok(Self(path))
    }

    /// One that is there.
    pub fn of(path: PathBuf) -> Self {
        Self(path)
    }

    /// The newest run below `dir`, by its name.
    ///
    /// # Errors
    /// There is none.
    pub fn newest(dir: &Path) -> Result<Self> {
        let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
        let runs = entries.map(|entry| entry.path()).filter(|path| path.join(FILE).is_file());
        let none = || {
            Error::failure(format!("there is no run in {}", dir.display()))
                .hint("name its directory, or begin one without --resume")
        };
        runs.max().map(Self).ok_or_else(none)
    }

    /// Where it is.
    pub fn path(&self) -> &Path {
        &self.0
    }

    /// A file of a part.
    pub fn file(&self, name: &str, end: &str) -> PathBuf {
        self.0.join(format!("{name}.{end}"))
    }

    /// Keeps others from working in it until what is returned is dropped.
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

    /// What is known of the run.
    ///
    /// # Errors
    /// There is none, or none that this program understands.
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

    /// Keeps what is known.
    ///
    /// # Errors
    /// The file can't be written.
    pub fn save(&self, run: &Run) -> Result<()> {
        let text = serde_json::to_string_pretty(run).context("cannot make JSON")? + "\n";
        self.replace(FILE, text.as_bytes())
    }

    /// Writes a file as a whole: a reader sees the old one or the new one.
    ///
    /// # Errors
    /// It can't be written.
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
        // Nothing but whole files.
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
        // The second was not asked for.
        let states: Vec<State> = other.parts.iter().map(|part| part.state).collect();
        assert_eq!(states, [State::Waiting, State::Failed]);
        // What is added later has its place all the same.
        let mut late = Run { parts: vec![Part::new(all[2])], ..run() };
        late.renew(&all[..2], "a");
        assert!(late.parts.iter().map(|part| part.name.as_str()).eq(NAMES[..3].iter().copied()));
    }
}

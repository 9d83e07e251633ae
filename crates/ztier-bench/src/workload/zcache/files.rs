//! Files that are read through the page cache: at random by fio, a tree of real files, a database.
//!
//! Invariants: a task makes its files in the memory that they are read with, and reads once before
//! what is measured; systems take turns, a task each.

use super::plan::Plan;
use super::system::{Machine, System};
use super::{Progress, Target};
use crate::data::{Rng, files};
use crate::report::{Report, Row};
use crate::sys::command::{exists, run as command};
use crate::sys::interrupt;
use crate::sys::workdir::Tree;
use crate::workload::SEED;
use crate::workload::iozone::Place;
use serde_json::Value;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use ztier::error::{Context as _, Error, Result};

const SECTION: &str = "files";
/// Limit on the time of a script.
const LIMIT: Duration = Duration::from_secs(1200);
/// Seconds of a run of fio.
const SECONDS: u32 = 20;
/// Bytes of a row of the database, and queries of a pass.
const ROW: u64 = 512;
const QUERIES: u64 = 5000;
/// Removes what the tasks have made.
const CLEAN: &str = "rm -rf file tree base";
/// Directories with real files on any Linux machine, and limit on the bytes of one of them.
const SOURCES: [&str; 2] = ["/usr/share", "/usr/lib"];
const FILE_MAX: u64 = 1 << 20;

/// Work on the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// fio reads 4 KiB at random, all of a file alike.
    Uniform,
    /// The same by Zipf's law.
    Zipf,
    /// All files of a tree are read in the order of their directories.
    Tree,
    /// Rows of a table are asked for at random.
    Database,
}

impl Task {
    const ALL: [Self; 4] = [Self::Uniform, Self::Zipf, Self::Tree, Self::Database];

    fn word(self) -> &'static str {
        match self {
            Self::Uniform => "uniform",
            Self::Zipf => "zipf",
            Self::Tree => "tree",
            Self::Database => "database",
        }
    }

    fn case(self) -> String {
        match self {
            Self::Uniform => "4 KiB at random, fio".into(),
            Self::Zipf => "4 KiB by Zipf's law (1.2), fio".into(),
            Self::Tree => format!("a tree of files from {}, cat", SOURCES.join(" and ")),
            Self::Database => format!("{QUERIES} rows of an SQLite table at random"),
        }
    }

    fn unit(self) -> &'static str {
        match self {
            Self::Uniform | Self::Zipf => "reads/s",
            Self::Tree => "MiB/s",
            Self::Database => "rows/s",
        }
    }

    /// The program that it needs.
    fn program(self) -> &'static str {
        match self {
            Self::Uniform | Self::Zipf => "fio",
            Self::Tree => "tar",
            Self::Database => "sqlite3",
        }
    }

    /// The script that makes its files of `bytes` bytes; `list` names those of the tree.
    fn make(self, bytes: u64, list: &Path) -> String {
        match self {
            Self::Uniform | Self::Zipf => format!(
                "fio --name=f --filename=file --size={bytes} --rw=write --bs=1M --end_fsync=1 \
                 --ioengine=psync --thread=1 --refill_buffers=1 --buffer_compress_percentage=50 \
                 >/dev/null"
            ),
            Self::Tree => format!(
                "mkdir tree && tar --ignore-failed-read -C / -cf - --null -T '{}' | \
                 tar -xf - -C tree && sync -f tree",
                list.display()
            ),
            Self::Database => format!(
                "sqlite3 -bail base 'PRAGMA journal_mode=OFF; PRAGMA synchronous=OFF; \
                 CREATE TABLE t(n INTEGER PRIMARY KEY, text TEXT); \
                 INSERT INTO t WITH RECURSIVE c(n) AS (SELECT 0 UNION ALL SELECT n + 1 FROM c \
                 WHERE n + 1 < {}) SELECT n, hex(randomblob({})) FROM c;' >/dev/null && \
                 sync -f base",
                bytes / ROW,
                (ROW - 12) / 2
            ),
        }
    }

    /// The script of a pass; `asked` has the queries of the database.
    fn read(self, bytes: u64, pass: u32, asked: &Path) -> String {
        let law = if self == Self::Zipf { "zipf:1.2" } else { "random" };
        match self {
            Self::Uniform | Self::Zipf => format!(
                "fio --name=r --filename=file --size={bytes} --rw=randread --bs=4k \
                 --ioengine=psync --thread=1 --fadvise_hint=0 --invalidate=0 --norandommap=1 \
                 --random_distribution={law} --randseed={} --runtime={SECONDS} --time_based=1 \
                 --output-format=json",
                pass + 1
            ),
            Self::Tree => "find tree -type f -print0 | xargs -0 cat >/dev/null".into(),
            Self::Database => format!("sqlite3 -bail base '.read {}' >/dev/null", asked.display()),
        }
    }
}

/// What the tasks of all systems use.
struct Bench<'a> {
    plan: &'a Plan,
    bytes: u64,
    dir: Tree,
    /// Bytes of the tree.
    tree: u64,
}

impl Bench<'_> {
    fn list(&self) -> PathBuf {
        self.dir.path().join("list")
    }

    fn asked(&self) -> PathBuf {
        self.dir.path().join("asked")
    }

    /// Passes of a task on a system; the first one is not among the figures.
    fn passes(&self, task: Task, machine: &Machine) -> Result<Vec<f64>> {
        let place = machine.place()?;
        inside(&place, &task.make(self.bytes, &self.list()))?;
        let passes = (0..=self.plan.runs).map(|pass| self.pass(task, &place, pass));
        let found = passes.collect::<Result<Vec<f64>>>();
        inside(&place, CLEAN)?;
        Ok(found?.split_off(1))
    }

    fn pass(&self, task: Task, place: &Place, pass: u32) -> Result<f64> {
        interrupt::check()?;
        if task == Task::Database {
            let mut random = Rng::new(SEED + u64::from(pass));
            let mut text = String::new();
            for _ in 0..QUERIES {
                let row = random.below(self.bytes / ROW);
                let _ = writeln!(text, "SELECT length(text) FROM t WHERE n = {row};");
            }
            fs::write(self.asked(), text).context("cannot write the queries")?;
        }
        let begun = Instant::now();
        let said = inside(place, &task.read(self.bytes, pass, &self.asked()))?;
        let seconds = begun.elapsed().as_secs_f64();
        match task {
            Task::Uniform | Task::Zipf => iops(&said),
            Task::Tree => Ok(self.tree as f64 / 1_048_576.0 / seconds),
            Task::Database => Ok(QUERIES as f64 / seconds),
        }
    }
}

/// Runs a script in the directory and the memory of a system.
fn inside(place: &Place, script: &str) -> Result<String> {
    let join = place
        .join
        .as_ref()
        .map_or(String::new(), |join| format!("echo 0 >'{}' || exit 1; ", join.display()));
    let script = format!("{join}cd '{}' || exit 1; {script}", place.dir.display());
    command("sh", &["-c", &script], LIMIT)
}

/// Reads a second, of fio's own report.
fn iops(text: &str) -> Result<f64> {
    // Warnings may come first.
    let json = text.find('{').map_or("", |at| &text[at..]);
    let report: Value = serde_json::from_str(json).context("cannot read what fio found")?;
    let found = report["jobs"][0]["read"]["iops"].as_f64();
    found.ok_or_else(|| Error::failure("fio says nothing of its reads"))
}

/// Writes the names of real files with about `bytes` bytes, for tar; returns their bytes.
fn list(path: &Path, bytes: u64) -> Result<u64> {
    let (mut names, mut sum) = (Vec::new(), 0);
    for name in files::names(&SOURCES) {
        let len = fs::metadata(&name).map_or(0, |about| about.len());
        if (1..=FILE_MAX).contains(&len) && sum + len <= bytes {
            sum += len;
            names.extend_from_slice(name.as_os_str().as_encoded_bytes());
            names.push(0);
        }
    }
    fs::write(path, names).context("cannot write the list of files")?;
    Ok(sum)
}

/// Runs the section.
///
/// # Errors
/// The errors of its systems.
pub fn run(report: &mut Report, plan: &Plan, progress: &mut Progress) -> Result<()> {
    let shape = plan.small_shape();
    let dir = Tree::new("files")?;
    // Blocks of small files are not full: they take more than they have.
    let tree = list(&dir.path().join("list"), shape.file / 4 * 3)?;
    let bench = Bench { plan, bytes: shape.file, dir, tree };
    report.note(SECTION, "tree", format!("{} MiB of real files", tree >> 20));
    let mut machines = Vec::new();
    for system in std::iter::once(System::Bare).chain(plan.swept()) {
        let machine = Machine::up(system, &shape)?;
        machine.describe(report, SECTION);
        machines.push(machine);
    }
    for task in Task::ALL {
        if !exists(task.program()) {
            let why = format!("{} is not installed", task.program());
            report.missing(SECTION, &task.case(), why);
            continue;
        }
        let mut bare = None;
        for machine in &machines {
            let begun = Instant::now();
            let runs = bench.passes(task, machine)?;
            let found = report.row(Row {
                section: SECTION.into(),
                system: machine.system.name().into(),
                case: task.case(),
                unit: task.unit(),
                runs,
                ..Row::default()
            });
            let what = format!("{SECTION}, {}, {}", machine.system.name(), task.word());
            progress.next(&what, begun.elapsed().as_secs_f64());
            let Some(bare) = bare else {
                bare = Some(found);
                continue;
            };
            let exclusive = if machine.system == System::Exclusive { "_exclusive" } else { "" };
            let name = format!("files_{}{exclusive}", task.word());
            report.ratio(&name, found / bare, Target::None);
        }
    }
    Ok(())
}

/// Number of tasks.
pub const TASKS: usize = Task::ALL.len();

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_fio_says_is_read() {
        let text = "fio: a warning\n{ \"jobs\": [ { \"read\": { \"iops\": 12.5 } } ] }";
        assert_eq!(iops(text).unwrap(), 12.5);
        for bad in ["", "{}", "{ \"jobs\": [] }"] {
            assert!(iops(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_list_has_no_more_than_it_is_to() {
        let dir = Tree::new("list").unwrap();
        let path = dir.path().join("list");
        let sum = list(&path, 1 << 20).unwrap();
        let names = fs::read(&path).unwrap();
        assert!((1..=1 << 20).contains(&sum));
        assert!(names.split(|byte| *byte == 0).count() > 2 && names[0] == b'/');
    }

    /// All tasks, in a directory and without a limit.
    #[test]
    fn tasks_read_what_they_have_made() {
        let (dir, place) = (Tree::new("tasks").unwrap(), Tree::new("place").unwrap());
        let tree = list(&dir.path().join("list"), 1 << 20).unwrap();
        for task in [Task::Tree, Task::Database] {
            if !exists(task.program()) {
                crate::report::print(&format!("skipped: no {}", task.program()));
                continue;
            }
            let here = Place { dir: place.path().into(), ..Place::default() };
            let list = dir.path().join("list");
            inside(&here, &task.make(1 << 20, &list)).unwrap();
            let asked = dir.path().join("asked");
            fs::write(&asked, "SELECT count(*) FROM t;\n").unwrap();
            inside(&here, &task.read(1 << 20, 0, &asked)).unwrap();
            let found = inside(&here, "du -sb --apparent-size . | cut -f 1").unwrap();
            assert!(found.trim().parse::<u64>().unwrap() >= tree.min(1 << 19), "{found}");
            inside(&here, CLEAN).unwrap();
        }
    }
}

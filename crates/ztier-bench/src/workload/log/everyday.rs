//! Everyday work on ext4: SQLite commits, and unpacking a tree of files; on the volume and on its
//! backing store alone, both behind the same export.

use super::Plan;
use super::own::OwnLog;
use crate::report::{Report, Row, Target as Goal, say};
use crate::rival::ext4::Ext4;
use crate::rival::raw::RawDevice;
use crate::rival::served::Served;
use crate::sys::command::{exists, run};
use crate::sys::workdir::WorkDir;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ztier::device::Device;
use ztier::error::{Context as _, Result};

const SECTION: &str = "everyday";
/// Limit on the time of each program.
const LIMIT: Duration = Duration::from_secs(900);
/// Trees of many small files on most machines; the first that exists is used.
const TREES: [&str; 4] = ["/usr/include", "/usr/src", "/usr/share/doc", "/usr/lib/python3"];
/// The same for `--quick`.
const SMALL_TREES: [&str; 3] = ["/usr/include/linux", "/usr/share/perl", "/etc"];

/// Work on a file system.
enum Task {
    /// This number of transactions of one row, with this journal mode.
    Commits(u32, &'static str),
    /// Unpacking this archive.
    Untar(PathBuf),
}

impl Task {
    fn run(&self, at: &Path) -> Result<f64> {
        let start = Instant::now();
        match self {
            Self::Commits(count, journal) => commits(at, *count, journal)?,
            Self::Untar(tar) => {
                let (tar, at) = (tar.to_string_lossy(), at.to_string_lossy());
                run("tar", &["-xf", &tar, "-C", &at], LIMIT)?;
            }
        }
        let at = std::fs::File::open(at).context("cannot open the file system")?;
        rustix::fs::syncfs(at).context("cannot bring the file system to its device")?;
        Ok(start.elapsed().as_secs_f64())
    }
}

/// Inserts one row a transaction, each durable before the next.
fn commits(at: &Path, count: u32, journal: &str) -> Result<()> {
    let mut script = format!(
        "PRAGMA journal_mode={journal};\nPRAGMA synchronous=FULL;\nCREATE TABLE t(n INTEGER PRIMARY \
         KEY, text TEXT);\n"
    );
    for n in 0..count {
        script += &format!("INSERT INTO t VALUES({n}, hex(randomblob(50)));\n");
    }
    let (file, database) = (at.join("script"), at.join(format!("{journal}.db")));
    std::fs::write(&file, script).context("cannot write the script")?;
    let read = format!(".read {}", file.display());
    run("sqlite3", &["-bail", &database.to_string_lossy(), &read], LIMIT).map(|_| ())
}

/// An archive, removed with its directory.
struct Tar {
    _file: Unlink,
    _dir: WorkDir,
}

struct Unlink(PathBuf);

impl Drop for Unlink {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

impl Tar {
    /// Archives the first existing tree of `trees`; returns the archive, the tree and a
    /// description.
    fn new(trees: &[&str]) -> Result<Option<(Self, PathBuf, String)>> {
        let Some(tree) = trees.iter().find(|tree| Path::new(tree).is_dir()) else {
            return Ok(None);
        };
        let dir = WorkDir::new("tar")?;
        let file = Unlink(dir.path().join("tree.tar"));
        let path = file.0.clone();
        // Files that this user may not read are left out.
        run(
            "tar",
            &["--ignore-failed-read", "-cf", &path.to_string_lossy(), "-C", tree, "."],
            LIMIT,
        )?;
        let bytes = std::fs::metadata(&path).context("no archive")?.len();
        let list = run("tar", &["-tf", &path.to_string_lossy()], LIMIT)?;
        let about = format!("{tree}, {} entries, {} MiB", list.lines().count(), bytes >> 20);
        Ok(Some((Self { _file: file, _dir: dir }, path, about)))
    }
}

impl Plan<'_> {
    /// Measures the tasks on the volume and without it.
    pub(super) fn everyday(&self, report: &mut Report, quick: bool) -> Result<()> {
        if let Err(reason) = ztier::export::fuse::available(true) {
            report.missing(SECTION, "all", reason);
            return Ok(());
        }
        if !exists("mkfs.ext4") {
            report.missing(SECTION, "all", "mkfs.ext4 is not installed");
            return Ok(());
        }
        let size = if quick { 512 << 20 } else { 4 << 30 };
        let mut tasks = Vec::new();
        if exists("sqlite3") {
            let count = if quick { 20 } else { 300 };
            let case = |journal| format!("{count} SQLite commits, journal {journal}");
            tasks.push(("sqlite", case("DELETE"), Task::Commits(count, "DELETE")));
            tasks.push(("sqlite_wal", case("WAL"), Task::Commits(count, "WAL")));
        } else {
            report.missing(SECTION, "SQLite commits", "sqlite3 is not installed");
        }
        let tar = Tar::new(if quick { &SMALL_TREES } else { &TREES })?;
        match &tar {
            Some((_, path, about)) => {
                report.note(SECTION, "tree", about);
                tasks.push(("untar", "tar unpacked and synced".into(), Task::Untar(path.clone())));
            }
            None => report.missing(SECTION, "tar", "none of the known trees is on this machine"),
        }
        let mut times: Vec<[Vec<f64>; 2]> = tasks.iter().map(|_| Default::default()).collect();
        for round in 0..self.rounds {
            let backing = self.drives.backing.open(size)?.drive;
            let alone: Arc<dyn Device> = Arc::new(RawDevice(backing));
            on_ext4(alone, "alone", &tasks, times.iter_mut().map(|t| &mut t[0]))?;
            let backing = self.drives.backing.open(size)?.drive;
            let log = OwnLog::on(&self.drives.log.open(self.log_bytes)?, backing, self.segment)?;
            on_ext4(log.device(), "ours", &tasks, times.iter_mut().map(|t| &mut t[1]))?;
            say(&format!("round {} of {}", round + 1, self.rounds));
        }
        for ((name, case, _), [alone, ours]) in tasks.iter().zip(times) {
            let mut row = |system: &str, runs| {
                report.row(Row {
                    section: SECTION.into(),
                    system: system.into(),
                    case: case.clone(),
                    unit: "s",
                    runs,
                    ..Row::default()
                })
            };
            let (alone, ours) = (row("backing alone, ext4", alone), row("ztier, ext4", ours));
            report.ratio(&format!("{name}_vs_backing"), alone / ours, Goal::None);
        }
        Ok(())
    }
}

/// Runs the tasks on a new file system on the exported device.
fn on_ext4<'a>(
    device: Arc<dyn Device>,
    name: &str,
    tasks: &[(&str, String, Task)],
    times: impl Iterator<Item = &'a mut Vec<f64>>,
) -> Result<()> {
    let served = Served::new(device, name)?;
    let fs = Ext4::new(served.path())?;
    for ((_, _, task), times) in tasks.iter().zip(times) {
        times.push(task.run(fs.path())?);
    }
    Ok(())
}

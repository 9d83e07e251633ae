//! Names that only this program uses, and the runs that they belong to.
//!
//! Invariant: a run only counts as dead if no process has its id, or a process of another program.

use std::collections::BTreeSet;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

/// Prefix of all names that this program makes; the process id follows.
const PREFIX: &str = "ztier-bench-";
/// Suffix of the directory of each volume of a run.
const STATE: &str = "-state";
/// Suffix of the directory of each host that a run has played.
const HOST: &str = "-host";

/// What is known of volumes of dead runs.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Runs that had volumes of this machine.
    pub runs: BTreeSet<u32>,
    /// Directories of hosts that they have played, whose volumes are below them.
    pub hosts: Vec<(u32, PathBuf)>,
}

/// The process id in a name.
pub fn run_of(name: &str) -> Option<u32> {
    let rest = name.strip_prefix(PREFIX)?;
    let end = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    let (id, rest) = rest.split_at(end);
    if rest.is_empty() || rest.starts_with(['-', '.']) { id.parse().ok() } else { None }
}

/// Whether no process of this program has the id, which another program may have reused.
pub fn is_gone(id: u32) -> bool {
    match std::fs::read_link(format!("/proc/{id}/exe")) {
        // Tests of this program make the same things, under the other program name.
        Ok(path) => {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            !["ztier-bench", "ztier_bench"].iter().any(|own| name.starts_with(own))
        }
        Err(e) => e.kind() == ErrorKind::NotFound,
    }
}

/// Directories where runs leave files, except those of spared runs.
pub struct Places {
    dirs: Vec<PathBuf>,
    spared: BTreeSet<u32>,
}

impl Places {
    /// The existing ones of these directories, as the kernel names them.
    pub fn new(dirs: &[PathBuf]) -> Self {
        let dirs: BTreeSet<PathBuf> =
            dirs.iter().filter_map(|dir| std::fs::canonicalize(dir).ok()).collect();
        Self { dirs: dirs.into_iter().collect(), spared: BTreeSet::new() }
    }

    /// Spares a run from now on: something else needs its files.
    pub fn spare(&mut self, id: u32) {
        self.spared.insert(id);
    }

    /// The dead run that has left this path, or a directory above it.
    pub fn left(&self, path: &Path) -> Option<u32> {
        let first = |dir: &PathBuf| path.strip_prefix(dir).ok()?.components().next();
        let name = self.dirs.iter().find_map(first)?;
        self.run(name.as_os_str().to_str()?)
    }

    /// Leftovers of dead runs. None of them is accessed: that might block for ever.
    pub fn entries(&self) -> Vec<(u32, PathBuf)> {
        let all =
            self.dirs.iter().filter_map(|dir| std::fs::read_dir(dir).ok()).flatten().flatten();
        let of =
            |entry: std::fs::DirEntry| Some((self.run(entry.file_name().to_str()?)?, entry.path()));
        all.filter_map(of).collect()
    }

    /// What dead runs had of volumes.
    pub fn known(&self) -> Known {
        let mut known = Known::default();
        for (id, path) in self.entries() {
            let name = path.to_string_lossy();
            if name.ends_with(STATE) {
                known.runs.insert(id);
            } else if name.ends_with(HOST) {
                known.hosts.push((id, path));
            }
        }
        known
    }

    fn run(&self, name: &str) -> Option<u32> {
        run_of(name).filter(|&id| !self.spared.contains(&id) && is_gone(id))
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn only_names_of_this_program_have_a_run() {
        for (name, expected) in [
            ("ztier-bench-12-swap", Some(12)),
            ("ztier-bench-12.bin", Some(12)),
            ("ztier-bench-12", Some(12)),
            ("ztier-bench-12-0-x (deleted)", Some(12)),
            ("ztier-bench-12x", None),
            ("ztier-bench-", None),
            ("ztier-bench-log", None),
            ("ztier-bench-99999999999-x", None),
            ("my-ztier-bench-12-x", None),
        ] {
            assert_eq!(run_of(name), expected, "{name}");
        }
    }

    #[test]
    fn who_lives_or_is_spared_has_left_nothing() {
        let own = std::process::id();
        let mut child = std::process::Command::new("sleep").arg("60").spawn().unwrap();
        let other = child.id();
        // The id belongs to another program as soon as the process has executed that program.
        while !is_gone(other) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        child.kill().unwrap();
        child.wait().unwrap();
        assert!(is_gone(other) && !is_gone(own));

        let dir = tempfile::tempdir().unwrap();
        for id in [own, other] {
            std::fs::write(dir.path().join(format!("ztier-bench-{id}-0-state")), "").unwrap();
        }
        let mut places = Places::new(&[dir.path().into(), "/nonexistent".into()]);
        let root = std::fs::canonicalize(dir.path()).unwrap();
        let below = |id: u32| root.join(format!("ztier-bench-{id}-0-mnt/a/b"));
        assert_eq!((places.left(&below(own)), places.left(&below(other))), (None, Some(other)));
        assert_eq!(places.left(&root), None);
        assert_eq!(places.entries().len(), 1);
        assert_eq!(places.known().runs, BTreeSet::from([other]));
        places.spare(other);
        assert_eq!((places.left(&below(other)), places.entries()), (None, vec![]));
    }
}

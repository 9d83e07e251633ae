//! A setting of the system in a file, changed while a run needs it.
//!
//! Invariants: dropping the guard restores the former value, in every case. While the setting is
//! changed, a note in a file records that, so that the next run can restore the setting after a
//! killed run. A setting that can't be noted is changed all the same.

use super::remains::is_gone;
use crate::report::{say, warn};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use ztier::error::{Context, Result};

/// Directory of the notes: lost at a reboot, as the values are.
const NOTES: &str = "/run/ztier-bench";
static NEXT: AtomicU32 = AtomicU32::new(0);

/// A changed setting.
#[derive(Debug)]
pub struct Knob {
    path: PathBuf,
    before: String,
    note: PathBuf,
}

impl Knob {
    /// Changes the setting.
    ///
    /// # Errors
    /// There is no such setting, or the system refuses the value.
    pub fn set(path: impl AsRef<Path>, value: &str) -> Result<Self> {
        Self::set_at(Path::new(NOTES), path.as_ref(), value)
    }

    fn set_at(notes: &Path, path: &Path, value: &str) -> Result<Self> {
        let before = read(path)?;
        let n = NEXT.fetch_add(1, Ordering::Relaxed);
        let note = notes.join(format!("{}-{n}", std::process::id()));
        let _ = std::fs::create_dir_all(notes)
            .and_then(|()| std::fs::write(&note, format!("{before}\n{}", path.display())));
        let knob = Self { path: path.to_owned(), before, note };
        std::fs::write(path, value)
            .context(format_args!("cannot set {} to {value}", path.display()))?;
        Ok(knob)
    }
}

impl Drop for Knob {
    fn drop(&mut self) {
        match std::fs::write(&self.path, &self.before) {
            Ok(()) => drop(std::fs::remove_file(&self.note)),
            // The note stays for the next run.
            Err(e) => {
                warn(&format!("{} was {} and is not again: {e}", self.path.display(), self.before));
            }
        }
    }
}

/// Restores settings that killed runs have changed.
pub fn put_back() {
    put_back_at(Path::new(NOTES));
}

fn put_back_at(notes: &Path) {
    let of = |entry: std::fs::DirEntry| {
        let name = entry.file_name();
        let (run, n) = name.to_str()?.split_once('-')?;
        let (run, n) = (run.parse::<u32>().ok()?, n.parse::<u32>().ok()?);
        is_gone(run).then(|| (run, n, entry.path()))
    };
    let entries = std::fs::read_dir(notes).into_iter().flatten().flatten();
    let mut left: Vec<(u32, u32, PathBuf)> = entries.filter_map(of).collect();
    // The first change of a setting is undone last: its note has the machine's own value.
    left.sort_by(|a, b| b.cmp(a));
    for (_, _, note) in left {
        let text = std::fs::read_to_string(&note).unwrap_or_default();
        // A run that was killed while it wrote the note has not changed anything yet.
        if let Some((before, path)) = text.split_once('\n') {
            // A removed device has no settings.
            let file = std::fs::File::options().write(true).open(path);
            match file.and_then(|mut file| file.write_all(before.as_bytes())) {
                Ok(()) => say(&format!("{path} is {before} again, after a run that was killed")),
                Err(e) if Path::new(path).exists() => {
                    warn(&format!("{path} was {before} before a run that was killed: {e}"));
                    continue;
                }
                Err(_) => {}
            }
        }
        let _ = std::fs::remove_file(note);
    }
}

/// The value of a setting.
///
/// # Errors
/// There is no such setting.
pub fn read(path: &Path) -> Result<String> {
    let text = std::fs::read_to_string(path)
        .context(format_args!("cannot read the setting {}", path.display()))?;
    Ok(chosen(&text).to_owned())
}

/// The choice in brackets of a list of choices.
fn chosen(text: &str) -> &str {
    let bracketed = text.split_once('[').and_then(|(_, rest)| rest.split_once(']'));
    bracketed.map_or(text.trim(), |(word, _)| word)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn what_was_there_comes_back() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "a [b] c\n").unwrap();
        let knob = Knob::set(file.path(), "c").unwrap();
        assert_eq!(read(file.path()).unwrap(), "c");
        drop(knob);
        assert_eq!(std::fs::read_to_string(file.path()).unwrap(), "b");
        assert!(Knob::set("/nonexistent", "1").is_err());
    }

    #[test]
    fn what_a_killed_run_has_changed_is_put_back_by_the_next() {
        let test = "sys::knob::tests::what_a_killed_run_has_changed_is_put_back_by_the_next";
        let (notes, knob) = (|dir: &Path| dir.join("notes"), |dir: &Path| dir.join("knob"));
        let (dir, killed) = crate::sys::victim::killed(test, || {
            let dir = std::env::temp_dir();
            std::fs::write(knob(&dir), "3").unwrap();
            let set = |value: &str| Knob::set_at(&notes(&dir), &knob(&dir), value).unwrap();
            let device = dir.join("device");
            std::fs::write(&device, "1").unwrap();
            let all = [set("5"), set("0"), Knob::set_at(&notes(&dir), &device, "2").unwrap()];
            std::fs::remove_file(device).unwrap();
            Ok(all)
        });
        killed.unwrap();
        let names = || std::fs::read_dir(notes(dir.path())).unwrap().count();
        assert_eq!((read(&knob(dir.path())).unwrap().as_str(), names()), ("0", 3));
        // A live process keeps its change until it drops the knob.
        let own = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(own.path(), "a").unwrap();
        let kept = Knob::set_at(&notes(dir.path()), own.path(), "b").unwrap();
        put_back_at(&notes(dir.path()));
        assert_eq!((read(&knob(dir.path())).unwrap().as_str(), names()), ("3", 1));
        assert_eq!(read(own.path()).unwrap(), "b");
        assert!(!dir.path().join("device").exists());
        drop(kept);
        assert_eq!(names(), 0);
    }
}

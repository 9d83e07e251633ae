//! `/etc/fstab` as its administrator wrote it, and another device in single lines of it.
//!
//! Invariants: comments, order and spacing are kept; the file is replaced in one step, and its
//! content before that is beside it.

use crate::error::{Context, Error, Result};
use crate::media::mounts::unescape;
use crate::private;
use std::fs::{self, File, Permissions};
use std::io::{ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::{MetadataExt, PermissionsExt, fchown};
use std::path::{Path, PathBuf};

/// Lets the machine boot without the device.
const NOFAIL: &str = "nofail";
/// The most backups that are kept of one file.
const BACKUPS: u32 = 100;

/// The file.
pub struct Fstab {
    path: PathBuf,
    text: String,
    /// What holds `text` since the file was changed.
    backup: Option<PathBuf>,
}

/// A line that mounts something.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// The line, as it is in the file.
    pub line: String,
    /// What is mounted: a path, or `UUID=…` and its like.
    pub spec: String,
    /// Where.
    pub point: PathBuf,
    /// The file system's type.
    pub kind: String,
}

impl Fstab {
    /// Reads the file, or what it is a link to; one that is missing is empty.
    ///
    /// # Errors
    /// It can't be read.
    pub fn read(path: &Path) -> Result<Self> {
        let path = fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
        match fs::read_to_string(&path) {
            Ok(text) => Ok(Self { path, text, backup: None }),
            Err(e) if e.kind() == ErrorKind::NotFound => {
                Ok(Self { path, text: String::new(), backup: None })
            }
            Err(e) => Err(e).context(format!("cannot read {}", path.display())),
        }
    }

    /// The lines that mount something.
    pub fn entries(&self) -> impl Iterator<Item = Entry> {
        self.text.lines().filter_map(entry)
    }

    /// Replaces each of the `lines` by the other one. Returns the backup.
    ///
    /// # Errors
    /// A file can't be written; then the old one is still there.
    pub fn replace(&mut self, lines: &[(String, String)]) -> Result<PathBuf> {
        let mut text = String::with_capacity(self.text.len() + 64);
        for line in self.text.split_inclusive('\n') {
            let (bare, end) = line.strip_suffix('\n').map_or((line, ""), |bare| (bare, "\n"));
            let new = lines.iter().find(|(old, _)| old == bare);
            text.push_str(new.map_or(bare, |(_, new)| new));
            text.push_str(end);
        }
        let what = || format!("cannot write {}", self.path.display());
        let backup = self.back_up()?;
        self.write(&text).context(what()).inspect_err(|_| drop(fs::remove_file(&backup)))?;
        Ok(self.backup.insert(backup).clone())
    }

    /// Puts back what the file was when it was read, and removes the backup.
    ///
    /// # Errors
    /// It can't be written.
    pub fn restore(&mut self) -> Result<()> {
        self.write(&self.text).context(format!("cannot write {}", self.path.display()))?;
        if let Some(backup) = self.backup.take() {
            // It is no longer of use.
            let _ = fs::remove_file(backup);
        }
        Ok(())
    }

    fn back_up(&self) -> Result<PathBuf> {
        for n in 0..BACKUPS {
            let number = if n == 0 { String::new() } else { format!(".{n}") };
            let path = self.beside(&format!(".before-ztier{number}"));
            let made = File::options().write(true).create_new(true).open(&path);
            let done = made.and_then(|mut file| {
                file.write_all(self.text.as_bytes())?;
                self.dress(&file)?;
                file.sync_all()
            });
            match done {
                Err(e) if e.kind() == ErrorKind::AlreadyExists => {}
                done => {
                    return done.context(format!("cannot write {}", path.display())).map(|()| path);
                }
            }
        }
        let name = self.beside(".before-ztier");
        Err(Error::failure(format!("there are {BACKUPS} backups {}*", name.display()))
            .hint("remove some"))
    }

    fn beside(&self, end: &str) -> PathBuf {
        let mut name = self.path.clone().into_os_string();
        name.push(end);
        name.into()
    }

    /// Gives a new file owner and mode of the old one.
    fn dress(&self, file: &File) -> std::io::Result<()> {
        let Ok(old) = fs::metadata(&self.path) else { return Ok(()) };
        fchown(file, Some(old.uid()), Some(old.gid()))?;
        file.set_permissions(Permissions::from_mode(old.mode() & 0o7777))
    }

    fn write(&self, text: &str) -> std::io::Result<()> {
        let new = self.beside(".ztier-new");
        let dress = |file: &File| self.dress(file);
        private::replace_dressed(&self.path, &new, text.as_bytes(), true, dress)
    }
}

impl Entry {
    /// The line with another device, which may be missing at boot.
    pub fn on(&self, device: &str) -> String {
        let words = words(&self.line);
        let mut line = self.line.clone();
        match words.get(3) {
            Some(options) => {
                let has = self.line[options.clone()].split(',').any(|word| word == NOFAIL);
                if !has {
                    line.insert_str(options.end, &format!(",{NOFAIL}"));
                }
            }
            None => {
                let end = words.last().map_or(line.len(), |word| word.end);
                line.insert_str(end, &format!(" defaults,{NOFAIL}"));
            }
        }
        if let Some(spec) = words.first() {
            line.replace_range(spec.clone(), device);
        }
        line
    }
}

fn entry(line: &str) -> Option<Entry> {
    let words = words(line);
    let word = |n: usize| words.get(n).map(|word: &Range<usize>| &line[word.clone()]);
    let spec = word(0).filter(|spec| !spec.starts_with('#'))?;
    Some(Entry {
        line: line.to_owned(),
        spec: spec.to_owned(),
        point: unescape(word(1)?),
        kind: word(2)?.to_owned(),
    })
}

/// Where the words of a line are.
fn words(line: &str) -> Vec<Range<usize>> {
    let start = |word: &str| word.as_ptr() as usize - line.as_ptr() as usize;
    line.split([' ', '\t'])
        .filter(|word| !word.is_empty())
        .map(|word| start(word)..start(word) + word.len())
        .collect()
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    const TEXT: &str = "# a comment\n\nUUID=1-2\t/data   ext4  defaults\t0 2 # why\n\
                        /dev/sdc /with\\040space xfs noauto,nofail\n  /dev/sdd /d ext4\ntmpfs /tmp";

    fn fstab() -> (tempfile::TempDir, Fstab) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("fstab");
        fs::write(&path, TEXT).unwrap();
        (dir, Fstab::read(&path).unwrap())
    }

    #[test]
    fn lines_that_mount_are_found_and_changed_as_they_are_written() {
        let (_dir, fstab) = fstab();
        let all: Vec<Entry> = fstab.entries().collect();
        let points: Vec<_> = all.iter().map(|entry| entry.point.to_str().unwrap()).collect();
        assert_eq!(points, ["/data", "/with space", "/d"]);
        assert_eq!((all[0].spec.as_str(), all[0].kind.as_str()), ("UUID=1-2", "ext4"));
        let on: Vec<String> = all.iter().map(|entry| entry.on("/dev/ztier/x")).collect();
        assert_eq!(on[0], "/dev/ztier/x\t/data   ext4  defaults,nofail\t0 2 # why");
        assert_eq!(on[1], "/dev/ztier/x /with\\040space xfs noauto,nofail");
        assert_eq!(on[2], "  /dev/ztier/x /d ext4 defaults,nofail");
    }

    #[test]
    fn all_else_stays_and_the_old_file_is_beside() {
        let (dir, mut fstab) = fstab();
        let path = dir.path().join("fstab");
        fs::set_permissions(&path, Permissions::from_mode(0o640)).unwrap();
        let entry = fstab.entries().next().unwrap();
        let lines = [(entry.line.clone(), entry.on("/dev/ztier/x"))];
        let backups = [fstab.replace(&lines).unwrap(), fstab.replace(&lines).unwrap()];
        assert_ne!(backups[0], backups[1]);
        assert_eq!(fs::read_to_string(&backups[0]).unwrap(), TEXT);
        let now = fs::read_to_string(&path).unwrap();
        assert_eq!(now, TEXT.replace(&lines[0].0, &lines[0].1));
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o640);
        fstab.restore().unwrap();
        assert_eq!(fs::read_to_string(&path).unwrap(), TEXT);
        assert!(backups[0].exists() && !backups[1].exists());
        let missing = Fstab::read(&dir.path().join("none")).unwrap();
        assert_eq!(missing.entries().count(), 0);
    }
}

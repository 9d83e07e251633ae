//! `NAME.toml` as its user wrote it, and changes of single keys in it.
//!
//! Invariants: comments, order, spelling of values that stay, and keys that ztier does not know are
//! kept; a file is replaced in one step, or not at all; one that has changed since it was read is
//! not replaced.

use super::file;
use super::paths::Paths;
use super::settings::{KEYS, Key, Settings};
use crate::error::{Context, Error, Result};
use crate::private;
use std::path::{Path, PathBuf};
use toml_edit::{DocumentMut, Item, Value};

/// Keys that say which drives a volume had: they come and go by themselves.
const MARKS: [&str; 2] = ["log-uuid", "backing-id"];
/// The key that says whether the volume comes up with the machine.
pub const BOOT: &str = "boot";

/// What saving changed in a file.
#[derive(Debug, PartialEq, Eq)]
pub struct Change {
    /// Whether the file is another one.
    pub is_other: bool,
    /// The settings that it does not say any more.
    pub gone: Vec<&'static str>,
}

/// The settings of a volume, to be changed and written.
pub struct Saved {
    path: PathBuf,
    /// What was in the file when it was read, if it was there.
    before: Option<String>,
    document: DocumentMut,
}

impl Saved {
    /// Reads the file; one that is missing is empty.
    ///
    /// # Errors
    /// The file can't be read, or is not TOML.
    pub fn open(path: &Path) -> Result<Self> {
        let before = file::read(path)?;
        let text = before.as_deref().unwrap_or_default();
        let document = text
            .parse::<DocumentMut>()
            .map_err(|e| file::refused(path, text, e.span(), e.message()))?;
        Ok(Self { path: path.to_owned(), before, document })
    }

    /// Reads the file of the volume `name`, which must be there.
    ///
    /// # Errors
    /// As [`Saved::open`]; or there is no such file.
    pub fn of(paths: &Paths, name: &str) -> Result<Self> {
        let path = paths.settings(name);
        if path.symlink_metadata().is_ok() {
            return Self::open(&path);
        }
        let text = format!("volume `{name}` has no configuration {}", path.display());
        Err(Error::usage(text).hint(format!(
            "`ztier up {name} … --save` makes it; while the volume is up, with --ensure"
        )))
    }

    /// Whether nothing is in the file but comments.
    pub fn is_empty(&self) -> bool {
        self.document.is_empty()
    }

    /// Sets the keys that `settings` have. All others stay.
    ///
    /// # Errors
    /// A value can't be written.
    pub fn put(&mut self, settings: &Settings) -> Result<()> {
        let what = || format!("cannot write {}", self.path.display());
        let values = toml::Table::try_from(settings).context(what())?;
        for key in KEYS {
            let Some(value) = values.get(key.name) else { continue };
            let at = self.name_of(key);
            let new = value.to_string().parse::<Value>().context(what())?;
            match self.document.get_mut(at).and_then(Item::as_value_mut) {
                Some(old) if is_same(key, old, value) => {}
                Some(old) => {
                    let decor = old.decor().clone();
                    *old = new;
                    *old.decor_mut() = decor;
                }
                None => drop(self.document.insert(at, Item::Value(new))),
            }
        }
        Ok(())
    }

    /// Makes the file say `settings` and nothing else of what ztier knows. Returns the keys that
    /// it does not say any more. Whether the volume comes up with the machine stays.
    ///
    /// # Errors
    /// As [`Saved::put`].
    pub fn replace(&mut self, settings: &Settings) -> Result<Vec<&'static str>> {
        self.put(settings)?;
        let what = || format!("cannot write {}", self.path.display());
        let values = toml::Table::try_from(settings).context(what())?;
        let gone = KEYS.iter().filter(|key| key.name != BOOT && !values.contains_key(key.name));
        let removed: Vec<_> = gone.map(|key| key.name).filter(|key| self.remove(key)).collect();
        Ok(removed.into_iter().filter(|key| !MARKS.contains(key)).collect())
    }

    /// Removes a key. Returns whether it was there.
    pub fn remove(&mut self, key: &str) -> bool {
        let known = KEYS.iter().find(|known| known.name == key);
        let name = known.map_or(key, |known| self.name_of(known));
        self.document.remove(name).is_some()
    }

    /// The settings that the file says now.
    ///
    /// # Errors
    /// As [`Settings::load`].
    pub fn settings(&self) -> Result<Settings> {
        Settings::parse(&self.document.to_string(), &self.path)
    }

    /// Writes the file in one step, making its directory if need be. Returns whether it changed.
    ///
    /// # Errors
    /// When the directory or file can't be written, or the file is not what it was when it was read
    /// (busy); then the present file is still there.
    pub fn write(&self) -> Result<bool> {
        let path = &self.path;
        let text = self.document.to_string();
        let what = || format!("cannot write {}", path.display());
        if file::read(path)? != self.before {
            return Err(Error::busy(format!("{}: it was changed just now", what()))
                .hint("look at it, then try again"));
        }
        if self.before.as_ref() == Some(&text) {
            return Ok(false);
        }
        let hint = |e: Error| e.hint("make its directory writable, or set ZTIER_CONFIG_DIR");
        if let Some(dir) = path.parent() {
            private::make_directory(dir).context(what()).map_err(hint)?;
        }
        let new = path.with_extension("toml.new");
        private::replace(path, &new, text.as_bytes(), true).context(what()).map_err(hint)?;
        Ok(true)
    }

    /// The name by which the file has a key: its present one, or an earlier one.
    fn name_of(&self, key: &Key) -> &'static str {
        let mut former = key.formerly.iter().copied();
        former.find(|name| self.document.contains_key(name)).unwrap_or(key.name)
    }
}

/// Whether the text of a value means the same as `new`: `3072M` and `3G`.
fn is_same(key: &Key, old: &Value, new: &toml::Value) -> bool {
    let line = format!("{} = {}", key.name, old.to_string().trim());
    let read = toml::from_str::<Settings>(&line).ok();
    let again = read.and_then(|settings| toml::Table::try_from(settings).ok());
    again.is_some_and(|table| table.get(key.name) == Some(new))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::error::Status;
    use std::fs;
    use std::os::unix::fs::MetadataExt;

    const BEFORE: &str = "\
# The disk of the archive.
size = \"3072M\"   # enough until next year
log-keep = 10

# It shares the machine.
ram-limit = '25%'
colour = \"blue\" # not one of ours
threads = 4

[future]
answer = 42
";

    fn settings(text: &str) -> Settings {
        toml::from_str(text).unwrap()
    }

    fn file() -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.toml");
        fs::write(&path, BEFORE).unwrap();
        (dir, path)
    }

    #[test]
    fn only_what_is_asked_for_changes() {
        let (_dir, path) = file();
        let mut saved = Saved::open(&path).unwrap();
        saved.put(&settings("size = '3G'\nram-limit = '1G'\nlog-cache = 20\nsync = true")).unwrap();
        saved.write().unwrap();
        let after = BEFORE
            .replace("= 10", "= 20")
            .replace("'25%'", "\"1G\"")
            .replace("threads = 4\n", "threads = 4\nsync = true\n");
        assert_eq!(fs::read_to_string(&path).unwrap(), after);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn what_was_changed_meanwhile_is_not_written_over() {
        let (_dir, path) = file();
        let change = |saved: &mut Saved| saved.put(&settings("threads = 5")).unwrap();
        let mut saved = Saved::open(&path).unwrap();
        change(&mut saved);
        let other = format!("boot = false\n{BEFORE}");
        fs::write(&path, &other).unwrap();
        let error = saved.write().unwrap_err();
        assert_eq!(error.status(), Status::Busy);
        assert!(error.to_string().contains("x.toml: it was changed just now; "), "{error}");
        assert_eq!(fs::read_to_string(&path).unwrap(), other);
        // Also if it would say the same as before.
        assert!(Saved { document: BEFORE.parse().unwrap(), ..saved }.write().is_err());
        // It is gone, or there is one.
        let mut saved = Saved::open(&path).unwrap();
        change(&mut saved);
        fs::remove_file(&path).unwrap();
        assert!(saved.write().is_err() && !path.exists());
        let mut saved = Saved::open(&path).unwrap();
        change(&mut saved);
        fs::write(&path, &other).unwrap();
        assert!(saved.write().is_err());
        assert_eq!(fs::read_to_string(&path).unwrap(), other);
    }

    #[test]
    fn what_a_volume_has_no_longer_is_named() {
        let (_dir, path) = file();
        let mut saved = Saved::open(&path).unwrap();
        assert!(saved.settings().is_err(), "it has keys that are not ztier's");
        saved.put(&settings("boot = false\nlog-uuid = '00'")).unwrap();
        let gone = saved.replace(&settings("size = '4G'\nram-limit = '25%'")).unwrap();
        assert_eq!(gone, ["log-cache", "threads"]);
        saved.write().unwrap();
        let text = fs::read_to_string(&path).unwrap();
        for part in ["\"4G\"   # enough", "boot = false", "# It shares", "'25%'", "[future]"] {
            assert!(text.contains(part), "{part}: {text}");
        }
        assert!(text.contains("blue") && !text.contains("log-"), "{text}");
        assert!(saved.remove(BOOT) && !saved.remove(BOOT));
    }

    #[test]
    fn a_file_without_a_last_newline_and_one_that_is_missing_are_extended() {
        let (_dir, path) = file();
        fs::write(&path, "size = 4096").unwrap();
        let mut saved = Saved::open(&path).unwrap();
        saved.put(&settings("threads = 3")).unwrap();
        assert_eq!(saved.document.to_string(), "size = 4096\nthreads = 3\n");
        let below = path.with_file_name("below").join("y.toml");
        let mut saved = Saved::open(&below).unwrap();
        assert!(saved.is_empty());
        saved.put(&settings("threads = 3")).unwrap();
        saved.write().unwrap();
        assert_eq!(Settings::load(&below).unwrap().unwrap().threads, Some(3));
    }

    #[test]
    fn errors_say_where_and_what_to_do() {
        let (dir, path) = file();
        fs::write(&path, "size = 1\n\nsize = 2\n").unwrap();
        let error = Saved::open(&path).err().unwrap().to_string();
        assert!(error.starts_with(&format!("{}:3: ", path.display())), "{error}");
        let paths = Paths { run: "/x".into(), config: dir.path().into(), state: "/x".into() };
        let error = Saved::of(&paths, "y").err().unwrap().to_string();
        assert!(error.contains("y.toml; `ztier up y … --save` makes it"), "{error}");
        let saved = Saved::open(Path::new("/proc/x/y.toml")).unwrap();
        let error = saved.write().unwrap_err().to_string();
        assert!(error.contains("/proc/x/y.toml") && error.contains("ZTIER_CONFIG_DIR"), "{error}");
    }
}

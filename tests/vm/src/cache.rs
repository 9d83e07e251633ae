//! The directory that keeps downloads and builds, for all runs of this user.
//!
//! Invariant: an entry is complete or absent: a caller makes it under another name, under a lock,
//! and renames it.

use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File, OpenOptions};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use ztier::error::{Context, Error, Result};

/// A cache directory.
#[derive(Clone, Debug)]
pub struct Cache {
    directory: PathBuf,
}

/// A lock that is released when it is dropped, or when its process dies.
#[derive(Debug)]
pub struct Lock {
    _file: File,
}

impl Cache {
    /// `$ZTIER_VM_CACHE`, or `ztier/vm` in the user's cache directory.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn of_user() -> Result<Self> {
        let variable = |name| std::env::var_os(name).filter(|v| !v.is_empty()).map(PathBuf::from);
        let directory = variable("ZTIER_VM_CACHE")
            .or_else(|| Some(variable("XDG_CACHE_HOME")?.join("ztier/vm")))
            .or_else(|| Some(variable("HOME")?.join(".cache/ztier/vm")))
            .unwrap_or_else(|| std::env::temp_dir().join("ztier-vm"));
        Self::at(&directory)
    }

    /// The cache in `directory`, which is made if it is missing.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn at(directory: &Path) -> Result<Self> {
        fs::create_dir_all(directory)
            .context(format_args!("cannot make the cache {}", directory.display()))?;
        let directory = directory.canonicalize().context("cannot find the cache")?;
        Ok(Self { directory })
    }

    /// The path of the entry `name`, whether it exists or not.
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    /// Waits, at most for `patience`, until the lock `name` is free.
    ///
    /// # Errors
    /// Another process holds it for longer, or it cannot be made.
    pub fn lock(&self, name: &str, patience: Duration) -> Result<Lock> {
        let path = self.path(&format!("{name}.lock"));
        let what = format!("cannot lock {}", path.display());
        let file = OpenOptions::new().create(true).truncate(false).write(true).open(&path);
        let file = file.context(&what)?;
        let end = Instant::now() + patience;
        while flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
            if Instant::now() >= end {
                return Err(Error::failure(format!("{what}: another process has it"))
                    .hint("wait until that one ends"));
            }
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(Lock { _file: file })
    }

    /// The entry `name`. If it is missing, `make` makes it, a file or a directory, at the path in
    /// its argument; no other caller makes it meanwhile.
    ///
    /// # Errors
    /// Those of `make`.
    pub fn get(&self, name: &str, make: impl FnOnce(&Path) -> Result<()>) -> Result<PathBuf> {
        let path = self.path(name);
        if path.exists() {
            return Ok(path);
        }
        let _lock = self.lock("making", Duration::from_secs(600))?;
        if path.exists() {
            return Ok(path);
        }
        let work = tempfile::Builder::new().prefix("new-").tempdir_in(&self.directory);
        let work = work.context("cannot make a directory in the cache")?;
        let made = work.path().join("made");
        make(&made)?;
        fs::rename(&made, &path).context(format_args!("cannot keep {}", path.display()))?;
        Ok(path)
    }

    /// All entries whose name begins with `prefix`.
    pub fn names(&self, prefix: &str) -> Vec<String> {
        let entries = fs::read_dir(&self.directory).into_iter().flatten().flatten();
        let names = entries.map(|entry| entry.file_name().to_string_lossy().into_owned());
        names.filter(|name| name.starts_with(prefix)).collect()
    }

    /// Removes the entries whose name begins with `prefix`, except the newest `keep`. A process
    /// that has a file open keeps it.
    pub fn trim(&self, prefix: &str, keep: usize) {
        let age = |name: &String| fs::metadata(self.path(name)).and_then(|m| m.modified()).ok();
        let mut names = self.names(prefix);
        names.retain(|name| !name.ends_with(".lock"));
        names.sort_by_key(age);
        let old = names.len().saturating_sub(keep);
        for name in &names[..old] {
            // A later call removes what can't be removed now.
            let _ = fs::remove_file(self.path(name));
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_thing_is_made_once_and_whole() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        let failed = cache.get("thing", |path| {
            fs::write(path, "half").unwrap();
            Err(Error::failure("no more room"))
        });
        assert!(failed.is_err() && cache.names("").iter().all(|name| name == "making.lock"));
        let made: Vec<_> = std::thread::scope(|scope| {
            let make = || cache.get("thing", |path| fs::write(path, "x").context("no"));
            let threads: Vec<_> = (0..4).map(|_| scope.spawn(make)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap().unwrap()).collect()
        });
        assert!(made.iter().all(|path| fs::read(path).unwrap() == b"x"));
    }

    #[test]
    fn a_lock_that_is_held_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let cache = Cache::at(directory.path()).unwrap();
        let lock = cache.lock("one", Duration::ZERO).unwrap();
        let error = cache.lock("one", Duration::from_millis(60)).unwrap_err().to_string();
        assert!(error.contains("one.lock"), "{error}");
        drop(lock);
        cache.lock("one", Duration::ZERO).unwrap();
    }
}

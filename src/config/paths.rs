//! Where the files of volumes are.
//!
//! Invariant: only this user and root can write to a run directory that [`Paths::prepare`] let
//! through, so what is read from it was written by us.

use crate::device;
use crate::error::{Context, Error, Result};
use crate::private;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// The directories of this user's volumes.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
pub struct Paths {
    /// Sockets, locks and state of running volumes; empty after a reboot.
    pub run: PathBuf,
    /// `NAME.toml` files.
    pub config: PathBuf,
    /// Records about drives, which survive a reboot.
    pub state: PathBuf,
}

/// The files of one volume in the run directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFiles {
    /// The volume's name.
    pub name: String,
    /// The run directory.
    pub run: PathBuf,
    /// Locked as long as the daemon lives.
    pub lock: PathBuf,
    /// What the daemon is and what it leaves behind, see [`crate::daemon::state`].
    pub state: PathBuf,
    /// The control socket.
    pub control: PathBuf,
    /// The socket of the volume's memory holder.
    pub keep: PathBuf,
    /// Messages of a detached daemon.
    pub log: PathBuf,
    /// Progress of a daemon that takes time to come up.
    pub step: PathBuf,
    /// The NBD socket, unless another is asked for.
    pub nbd: PathBuf,
}

impl Paths {
    /// The directories: `ZTIER_RUN_DIR`, `ZTIER_CONFIG_DIR` and `ZTIER_STATE_DIR` if set; for root
    /// `/run/ztier`, `/etc/ztier` and `/var/lib/ztier`; for others below `$XDG_RUNTIME_DIR` (or
    /// `/tmp/ztier-UID`), `$XDG_CONFIG_HOME` (or `~/.config`) and `$XDG_STATE_HOME` (or
    /// `~/.local/state`).
    ///
    /// # Errors
    /// When a variable does not hold an absolute path.
    pub fn of_this_user() -> Result<Self> {
        let uid = rustix::process::geteuid();
        let run = match (absolute("ZTIER_RUN_DIR")?, uid.is_root()) {
            (Some(dir), _) => dir,
            (None, true) => PathBuf::from("/run/ztier"),
            (None, false) => match absolute("XDG_RUNTIME_DIR")? {
                Some(dir) => dir.join("ztier"),
                None => PathBuf::from(format!("/tmp/ztier-{}", uid.as_raw())),
            },
        };
        let config = own("ZTIER_CONFIG_DIR", "/etc/ztier", "XDG_CONFIG_HOME", ".config")?;
        let state = own("ZTIER_STATE_DIR", "/var/lib/ztier", "XDG_STATE_HOME", ".local/state")?;
        Ok(Self { run, config, state })
    }

    /// Makes the run directory and checks that it is this user's alone. One that others can read
    /// gets mode 0700.
    ///
    /// # Errors
    /// The run directory can't be made, is a symbolic link or no directory, or belongs to another
    /// user; or others can write to it and it is not empty; or others can read it and it holds
    /// files that no volume has.
    pub fn prepare(&self) -> Result<()> {
        let dir = &self.run;
        private::make_directory(dir)
            .context(format!("cannot make the run directory {}", dir.display()))?;
        let mode = self.check()?;
        let what = || format!("cannot look at {}", dir.display());
        if private::narrow(dir, is_of_a_volume).context(what())? {
            return Ok(());
        }
        Err(unfit(dir, &format!("has mode {mode:o} and holds files of others")))
    }

    /// Whether the run directory exists; if so, it is checked as in [`Paths::prepare`].
    ///
    /// # Errors
    /// As [`Paths::prepare`].
    pub fn exists(&self) -> Result<bool> {
        if self.run.symlink_metadata().is_err() {
            return Ok(false);
        }
        self.check().map(|_| true)
    }

    /// The mode of the run directory, if only this user can have put something into it.
    fn check(&self) -> Result<u32> {
        let dir = &self.run;
        let bad = |why: String| unfit(dir, &why);
        let meta =
            fs::symlink_metadata(dir).context(format!("cannot look at {}", dir.display()))?;
        if meta.is_symlink() {
            let to = fs::read_link(dir).unwrap_or_default();
            return Err(bad(format!("is a symbolic link to {}", to.display())));
        }
        if !meta.is_dir() {
            return Err(bad("is not a directory".into()));
        }
        if meta.uid() != rustix::process::geteuid().as_raw() {
            return Err(bad(format!("belongs to user {}", meta.uid())));
        }
        let mode = meta.mode() & 0o7777;
        if mode & 0o022 != 0 && fs::read_dir(dir).is_ok_and(|mut all| all.next().is_some()) {
            return Err(bad(format!("is writable for others (mode {mode:o})")));
        }
        Ok(mode)
    }

    /// The files of the volume `name`.
    pub fn volume(&self, name: &str) -> VolumeFiles {
        let file = |end: &str| self.run.join(format!("{name}.{end}"));
        VolumeFiles {
            name: name.to_owned(),
            run: self.run.clone(),
            lock: file("lock"),
            state: file("json"),
            control: file("sock"),
            keep: file("keep"),
            log: file("log"),
            step: file("step"),
            nbd: file("nbd"),
        }
    }

    /// Where the settings of the volume `name` are kept.
    pub fn settings(&self, name: &str) -> PathBuf {
        self.config.join(format!("{name}.toml"))
    }

    /// Where the credentials for the store of the volume `name` may be.
    pub fn credentials(&self, name: &str) -> PathBuf {
        self.config.join(format!("{name}.env"))
    }

    /// The names with a file `NAME.END` in `dir`, for any of `ends`: each once, sorted.
    pub fn names_in(dir: &Path, ends: &[&str]) -> Vec<String> {
        let mut names: Vec<String> = fs::read_dir(dir)
            .into_iter()
            .flatten()
            .flatten()
            .filter_map(|entry| {
                let name = entry.file_name().into_string().ok()?;
                let (name, _) = name.rsplit_once('.').filter(|(_, end)| ends.contains(end))?;
                super::name::check(name).is_ok().then(|| name.to_owned())
            })
            .collect();
        names.sort();
        names.dedup();
        names
    }
}

fn unfit(run: &Path, why: &str) -> Error {
    Error::failure(format!("run directory {} {why}", run.display()))
        .hint("remove it, or set ZTIER_RUN_DIR to a directory of your own")
}

/// Whether a name in a run directory is one of [`VolumeFiles`], or of such a file while it is
/// written.
fn is_of_a_volume(file: &str) -> bool {
    const ENDS: [&str; 8] = ["lock", "json", "sock", "keep", "log", "step", "nbd", "fuse"];
    let file = file.strip_suffix(".new").unwrap_or(file);
    let parts = file.rsplit_once('.');
    parts.is_some_and(|(name, end)| ENDS.contains(&end) && super::name::check(name).is_ok())
}

/// The directory that `variable` names; else `system` for root; else one below the directory that
/// the variable `xdg` names, or below the home directory.
fn own(variable: &str, system: &str, xdg: &str, below_home: &str) -> Result<PathBuf> {
    if let Some(dir) = absolute(variable)? {
        return Ok(dir);
    }
    if rustix::process::geteuid().is_root() {
        return Ok(PathBuf::from(system));
    }
    Ok(match (absolute(xdg)?, absolute("HOME")?) {
        (Some(dir), _) => dir.join("ztier"),
        (None, Some(home)) => home.join(below_home).join("ztier"),
        (None, None) => PathBuf::from(system),
    })
}

/// The absolute path of something that a volume uses. A daemon, its state file and the records of
/// drives hold it as text.
///
/// # Errors
/// It is empty, or not UTF-8.
pub fn full(path: &Path) -> Result<PathBuf> {
    if device::is_store(path) {
        return Ok(path.to_owned());
    }
    let full = std::path::absolute(path)
        .map_err(|e| Error::usage(format!("`{}` is no path: {e}", path.display())))?;
    if full.to_str().is_some() {
        return Ok(full);
    }
    Err(Error::usage(format!("path {} is not UTF-8", path.display()))
        .hint("rename it, or give a symbolic link to it"))
}

fn absolute(variable: &str) -> Result<Option<PathBuf>> {
    let Some(value) = std::env::var_os(variable).filter(|v| !v.is_empty()) else { return Ok(None) };
    let path = PathBuf::from(value);
    if path.is_absolute() {
        return full(&path).map(Some);
    }
    Err(Error::usage(format!("{variable} is {}, not an absolute path", path.display()))
        .hint("let it begin with /, or unset it"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_run_directory_is_narrowed_or_refused() {
        let dir = tempfile::tempdir().unwrap();
        let paths = Paths {
            run: dir.path().join("a/run"),
            config: dir.path().into(),
            state: dir.path().into(),
        };
        assert!(!paths.exists().unwrap());
        paths.prepare().unwrap();
        assert!(paths.exists().unwrap());
        assert_eq!(fs::metadata(&paths.run).unwrap().mode() & 0o777, 0o700);
        let mode = |mode| {
            fs::set_permissions(&paths.run, fs::Permissions::from_mode(mode)).unwrap();
        };
        let narrowed = || {
            paths.prepare().unwrap();
            assert_eq!(fs::metadata(&paths.run).unwrap().mode() & 0o777, 0o700);
        };
        let refused = |why: &str| {
            let error = paths.prepare().unwrap_err().to_string();
            assert!(error.contains(why) && error.contains("ZTIER_RUN_DIR"), "{error}");
        };
        mode(0o777);
        narrowed();
        fs::write(paths.run.join("v.json.new"), "").unwrap();
        fs::write(paths.run.join("v.lock"), "").unwrap();
        mode(0o755);
        narrowed();
        mode(0o770);
        refused("is writable for others (mode 770)");
        mode(0o755);
        fs::write(paths.run.join("v.conf"), "").unwrap();
        refused("has mode 755 and holds files of others");
        fs::remove_dir_all(&paths.run).unwrap();
        std::os::unix::fs::symlink(dir.path(), &paths.run).unwrap();
        refused("is a symbolic link to ");
        fs::remove_file(&paths.run).unwrap();
        fs::write(&paths.run, "").unwrap();
        assert!(paths.exists().unwrap_err().to_string().contains("is not a directory"));
    }

    #[test]
    fn names_come_from_whole_endings() {
        let dir = tempfile::tempdir().unwrap();
        for file in ["b.json", "a.json", "a.sock", ".json", "json", "x.json.new"] {
            fs::write(dir.path().join(file), "").unwrap();
        }
        assert_eq!(Paths::names_in(dir.path(), &["json"]), ["a", "b"]);
        assert_eq!(Paths::names_in(dir.path(), &["sock", "json"]), ["a", "b"]);
    }
}

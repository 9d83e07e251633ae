//! A daemon's files in the run directory, and what they tell after it has died.
//!
//! Invariants: the daemon holds `NAME.lock` (`flock`) while it serves, so a process number never
//! decides whether it lives; the lock also counts after its file was removed; `NAME.json` is
//! replaced in one step; files are removed only under the lock.

use super::memory_holder::{self, Kept};
use super::process::{Process, RESTORE};
use super::{log, opening, resident, serve};
use crate::config::paths::VolumeFiles;
use crate::config::{Paths, Plan, Usage};
use crate::control::{Client, Request};
use crate::error::{Context, Error, Result};
use crate::export::Leftover;
use crate::patience::eventually;
use crate::private;
use crate::remedy;
use crate::system::usage;
use crate::system::usage::Tuned;
use rustix::fs::{FlockOperation, Mode, OFlags, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::fs;
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long the kernel may take to end a killed process.
const DYING: Duration = Duration::from_secs(2);

/// The state file of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct State {
    /// The daemon's process; only for display.
    pub pid: u32,
    /// When it started, in seconds since 1970.
    pub started_unix_s: u64,
    /// The plan that the daemon carries out.
    pub plan: Plan,
    /// Whether a memory holder has the volume's memory.
    #[serde(default)]
    pub kept: bool,
    /// The number of daemons that have taken this volume over from an earlier one.
    #[serde(default)]
    pub restarts: u64,
    /// The compression ratio when swap last ended, in percent: bytes swapped out for 100 bytes of
    /// memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub compresses_percent: Option<u64>,
    /// The daemon's session with the volume's store, if it is in one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<String>,
    /// Whether a supervisor watches this process: then the daemon replaces itself by `exec`.
    #[serde(default)]
    pub foreground: bool,
    /// What has to be removed if the daemon dies, in this order.
    pub leftovers: Vec<Leftover>,
}

impl State {
    /// Replaces the state file in one step.
    ///
    /// # Errors
    /// It can't be written; then the old one is still there.
    pub fn write(&self, files: &VolumeFiles) -> Result<()> {
        let what = || format!("cannot write {}", files.state.display());
        let new = unfinished(&files.state);
        let text = serde_json::to_vec(self).context(what())?;
        private::replace(&files.state, &new, &text, false).context(what())?;
        resident::state_written(&files.state);
        Ok(())
    }

    /// Reads the state file; `None` if there is none.
    ///
    /// # Errors
    /// It can't be read.
    pub fn read(files: &VolumeFiles) -> Result<Option<Self>> {
        let what = || format!("cannot read {}", files.state.display());
        match fs::read(&files.state) {
            Ok(text) => {
                let mut state: Self = serde_json::from_slice(&text).context(what())?;
                if let Some(log) = &mut state.plan.log {
                    // These flags apply once; older daemons stored them.
                    (log.moved, log.abandon) = (false, false);
                }
                Ok(Some(state))
            }
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(e).context(what()),
        }
    }
}

/// The lock of one volume, held until it is dropped or the process ends.
pub struct Lock {
    path: PathBuf,
    file: OwnedFd,
}

impl Lock {
    /// Takes the lock of a volume. Returns `Ok(None)` if another process still holds it after
    /// `patience`, even in a removed file. (A process that only checks whether a daemon lives holds
    /// it for an instant.)
    ///
    /// # Errors
    /// The lock file can't be made.
    pub fn acquire(files: &VolumeFiles, patience: Duration) -> Result<Option<Self>> {
        Self::acquire_while(files, patience, &|| true)
    }

    /// As [`Lock::acquire`], but gives up when `wanted` returns `false`.
    ///
    /// # Errors
    /// As [`Lock::acquire`].
    pub fn acquire_while(
        files: &VolumeFiles,
        patience: Duration,
        wanted: &dyn Fn() -> bool,
    ) -> Result<Option<Self>> {
        let path = &files.lock;
        let what = || format!("cannot lock {}", path.display());
        let deadline = Instant::now() + patience;
        loop {
            let (file, is_new) = open_lock(path).context(what())?;
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if is_new && has_traces(files) && Process::beside_me(files).is_some() => {
                    let _ = fs::remove_file(path); // it would hide the lock that the daemon holds
                    if Instant::now() >= deadline {
                        return Ok(None);
                    }
                    std::thread::sleep(Duration::from_millis(50));
                }
                // The file may have been removed between open and lock; then the lock is worth
                // nothing.
                Ok(()) if same_file(&file, path) => {
                    return Ok(Some(Self { path: path.clone(), file }));
                }
                Ok(()) | Err(Errno::INTR) => {}
                Err(Errno::WOULDBLOCK) if Instant::now() >= deadline || !wanted() => {
                    return Ok(None);
                }
                Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(5)),
                Err(e) => return Err(e).context(what()),
            }
        }
    }

    /// Whether a living daemon holds the lock.
    pub fn is_held(files: &VolumeFiles) -> bool {
        // Read access is enough, and works where a service manager has made everything read-only.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        match rustix::fs::open(&files.lock, flags, Mode::empty()) {
            Ok(file) => {
                flock(&file, FlockOperation::NonBlockingLockShared) == Err(Errno::WOULDBLOCK)
            }
            Err(Errno::NOENT) => has_traces(files) && Process::of(files).is_some(),
            Err(_) => false,
        }
    }

    /// Makes the lock file anew if it was removed.
    ///
    /// # Errors
    /// The file can't be made.
    pub(super) fn restore(&mut self) -> Result<()> {
        let what = || format!("cannot make {} anew", self.path.display());
        if same_file(&self.file, &self.path) {
            return Ok(());
        }
        let new = unfinished(&self.path);
        let _ = fs::remove_file(&new);
        let (file, _) = open_lock(&new).context(what())?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).context(what())?;
        fs::rename(&new, &self.path).context(what())?;
        self.file = file; // only now drop the old lock: the volume stays locked throughout
        Ok(())
    }

    /// Removes the lock file and releases the lock.
    fn remove(self) {
        // A file that stays is not locked.
        let _ = fs::remove_file(&self.path);
    }
}

/// The temporary name of a file of the run directory until it is complete.
fn unfinished(file: &Path) -> PathBuf {
    let mut name = file.as_os_str().to_owned();
    name.push(".new");
    name.into()
}

/// Opens a lock file. Returns whether it was made just now.
fn open_lock(path: &Path) -> std::io::Result<(OwnedFd, bool)> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    loop {
        match rustix::fs::open(path, flags, Mode::empty()) {
            Err(Errno::NOENT) => {}
            there => return Ok((there?, false)),
        }
        match private::create_new(path) {
            Err(e) if e.kind() == ErrorKind::AlreadyExists => {} // another process made it just now
            made => return made.map(|file| (file.into(), true)),
        }
    }
}

/// Whether a volume has any other files, devices or sockets than its lock.
fn has_traces(files: &VolumeFiles) -> bool {
    let there = |file: &PathBuf| fs::symlink_metadata(file).is_ok();
    [&files.state, &files.control, &files.keep].into_iter().any(there)
        || !serve::traces(files).is_empty()
}

fn same_file(file: &OwnedFd, path: &Path) -> bool {
    match (rustix::fs::fstat(file), rustix::fs::stat(path)) {
        (Ok(ours), Ok(there)) => (ours.st_dev, ours.st_ino) == (there.st_dev, there.st_ino),
        _ => false,
    }
}

/// The state of a volume of this user.
#[derive(Debug)]
pub enum Found {
    /// Its daemon lives.
    Up(Option<Box<State>>),
    /// Its daemon died and left its state file.
    Dead(Box<State>),
    /// Its daemon died, and its state file can't be read, or is missing although memory was kept.
    Broken(Error),
    /// There is no such volume.
    Nothing,
}

/// Looks a volume up in the run directory.
pub fn find(paths: &Paths, name: &str) -> Found {
    let files = paths.volume(name);
    let held = Lock::is_held(&files);
    match State::read(&files) {
        Ok(state) if held => Found::Up(state.map(Box::new)),
        Ok(Some(state)) => Found::Dead(Box::new(state)),
        Ok(None) if Kept::is_there(&files.keep) => Found::Broken(
            Error::degraded(format!(
                "the memory of volume `{name}` is kept, but there is no {}",
                files.state.display()
            ))
            .hint(remedy::KEPT_IN_VAIN.of(name)),
        ),
        Ok(None) if !serve::traces(&files).is_empty() => Found::Broken(
            Error::failure(format!(
                "the daemon of volume `{name}` is gone, and so is {}",
                files.state.display()
            ))
            .hint(format!("`ztier down {name}` removes what is left")),
        ),
        Ok(None) => Found::Nothing,
        Err(_) if held => Found::Up(None),
        Err(e) => Found::Broken(e),
    }
}

/// As [`reach`], for a command that brings the volume up. A killed daemon holds its lock until the
/// kernel has freed all of its memory, and does not answer: this waits for its end.
pub fn settled(paths: &Paths, name: &str) -> Found {
    let client = Client::new(&paths.volume(name).control);
    let answers = || client.ask::<serde_json::Value>(&Request::Ping, DYING).is_ok();
    let deadline = Instant::now() + DYING;
    loop {
        let found = reach(paths, name);
        if !matches!(found, Found::Up(_)) || answers() || Instant::now() >= deadline {
            return found;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// As [`find`], for a command that needs the daemon. If a living daemon lacks a file in the run
/// directory by which others find it, it is asked to make the file anew.
pub fn reach(paths: &Paths, name: &str) -> Found {
    let files = paths.volume(name);
    let found = find(paths, name);
    let whole = || [&files.lock, &files.state, &files.control].iter().all(|file| file.exists());
    if !matches!(found, Found::Up(_)) || whole() || opening::noted(&files).is_some() {
        return found;
    }
    let Some(daemon) = Process::of(&files).filter(Process::restores) else { return found };
    daemon.signal(RESTORE);
    eventually(DYING, Duration::from_millis(5), || whole() || !Lock::is_held(&files));
    find(paths, name)
}

/// Names of all volumes that are up or left something.
pub fn names(paths: &Paths) -> Vec<String> {
    Paths::names_in(&paths.run, &["json", "sock", "keep", "fuse"])
}

/// Removes the leftovers of a dead daemon, the kept memory, and the volume's files. Returns in
/// words what was removed.
///
/// # Errors
/// Something is held or can't be removed; then the state file stays, so that a later call can try
/// again.
pub fn clean(lock: Lock, files: &VolumeFiles) -> Result<Vec<String>> {
    clean_all(lock, files, false)
}

/// As [`clean`], but also removes a device that waits for its daemon while it is held: requests of
/// its holders fail.
///
/// # Errors
/// As [`clean`], for everything else.
pub fn clean_by_force(lock: Lock, files: &VolumeFiles) -> Result<Vec<String>> {
    clean_all(lock, files, true)
}

fn clean_all(lock: Lock, files: &VolumeFiles, force: bool) -> Result<Vec<String>> {
    let mut removed = remove_leftovers(files, |_| true, force)?;
    let kept = Kept::is_there(&files.keep);
    memory_holder::end(&files.keep)?;
    removed.extend(kept.then(|| "the memory that was kept".to_owned()));
    remove_files(lock, files);
    Ok(removed)
}

/// Removes the leftovers of a dead daemon that satisfy `which`, with `force` also a device that is
/// held. The caller holds the lock and keeps it.
///
/// # Errors
/// As [`clean`].
pub(super) fn remove_leftovers(
    files: &VolumeFiles,
    which: impl Fn(&Leftover) -> bool,
    force: bool,
) -> Result<Vec<String>> {
    let state = match State::read(files) {
        Ok(Some(state)) => state,
        Ok(None) => return remove_traces(files, &which, force),
        Err(e) => {
            let mut removed = remove_traces(files, &which, force)?;
            removed.push(format!("its unreadable state file ({e})"));
            return Ok(removed);
        }
    };
    let State { leftovers, plan, .. } = &state;
    // A device that waits and is not removed will be taken over, with all its users.
    let goes_on = leftovers.iter().any(|left| !which(left) && left.waits());
    let ended = if goes_on { Ok(()) } else { end_use(&state) };
    // With `force` this is tried again below: a process that waits for the device cannot exit
    // before its request fails.
    if !force {
        ended?;
    }
    let removed = remove_all(leftovers, which, force)?;
    if force {
        end_use(&state)?;
    }
    if !leftovers.iter().any(Leftover::waits) {
        untune(files, plan.usage.as_ref());
    }
    Ok(removed)
}

/// Removes what belongs to this volume by its name alone.
fn remove_traces(
    files: &VolumeFiles,
    which: impl Fn(&Leftover) -> bool,
    force: bool,
) -> Result<Vec<String>> {
    remove_all(&serve::traces(files), which, force)
}

fn remove_all(
    leftovers: &[Leftover],
    which: impl Fn(&Leftover) -> bool,
    force: bool,
) -> Result<Vec<String>> {
    let mut removed = Vec::new();
    for leftover in leftovers.iter().filter(|left| which(left) && left.exists()) {
        let gone = if force { leftover.remove_by_force() } else { leftover.remove() };
        gone?;
        if !leftover.exists() {
            removed.push(leftover.describe());
        }
    }
    Ok(removed)
}

/// Restores the machine's settings after a use, except those that other volumes need.
pub(super) fn untune(files: &VolumeFiles, usage: Option<&Usage>) {
    for failed in usage.map(|usage| usage::untune(usage, |t| shared(files, t))).unwrap_or_default()
    {
        log::line(&failed);
    }
}

/// Whether another volume of this user needs the setting as it is.
fn shared(files: &VolumeFiles, tuned: &Tuned) -> bool {
    others(files).iter().any(|other| (&other.key, other.set) == (&tuned.key, tuned.set))
}

/// Plans the changes of the machine's settings for this volume; a setting that can't be read
/// becomes a note. If another volume has already changed a setting to the same value, the value
/// before that change counts as the earlier one.
pub(super) fn settings(
    files: &VolumeFiles,
    wanted: &[(&str, Option<u64>)],
    notes: &mut Vec<String>,
) -> Vec<Tuned> {
    let others = others(files);
    let mut changes = Vec::new();
    for (key, set) in wanted.iter().filter_map(|(key, set)| Some((*key, (*set)?))) {
        match Tuned::plan(key, set) {
            Ok(mut change) => {
                let same = |t: &&Tuned| t.key == key && t.set == change.before;
                if let Some(other) = others.iter().find(same) {
                    change.before = other.before;
                }
                changes.extend((change.before != set).then_some(change));
            }
            Err(e) => notes.push(e.to_string()),
        }
    }
    changes
}

/// As [`settings`], for a use whose settings are not planned yet.
pub fn plan_settings(files: &VolumeFiles, usage: &mut Usage, notes: &mut Vec<String>) {
    let wanted = usage::wanted(usage);
    if let Usage::Swap { tuned, .. } = usage
        && tuned.is_empty()
    {
        *tuned = settings(files, &wanted, notes);
    }
}

/// The machine's settings that other volumes of this user have changed.
fn others(files: &VolumeFiles) -> Vec<Tuned> {
    let states = files.state.parent().map(|run| {
        Paths::names_in(run, &["json"]).into_iter().map(move |name| run.join(name + ".json"))
    });
    let others = states.into_iter().flatten().filter(|path| *path != files.state);
    let plans =
        others.filter_map(|path| serde_json::from_slice::<State>(&fs::read(path).ok()?).ok());
    plans
        .filter_map(|state| state.plan.usage)
        .flat_map(|usage| usage::tuned(&usage).to_vec())
        .collect()
}

/// Ends the job of a dead daemon and the use of its device.
fn end_use(state: &State) -> Result<()> {
    if let Some(job) = &state.plan.job {
        job.clear()?;
    }
    let Some(usage) = &state.plan.usage else { return Ok(()) };
    for leftover in state.leftovers.iter().filter(|leftover| leftover.exists()) {
        if let Leftover::Loop { device, .. } = leftover {
            usage::end(usage, device)?;
        }
    }
    Ok(())
}

/// Removes the files of a daemon that was killed before it had a volume, or after it had removed
/// everything else.
pub fn forget(files: &VolumeFiles) {
    let files_there = [&files.lock, &files.log, &files.step, &files.keep];
    if files_there.iter().any(|file| file.exists())
        && let Ok(Some(lock)) = Lock::acquire(files, Duration::ZERO)
    {
        if !Kept::is_there(&files.keep) {
            let _ = fs::remove_file(&files.keep); // the socket of a memory holder that died
        }
        remove_files(lock, files);
    }
}

/// Removes the volume's files from the run directory, the lock last.
pub fn remove_files(lock: Lock, files: &VolumeFiles) {
    let unfinished = [&files.state, &files.lock].map(|file| unfinished(file));
    let whole = [&files.control, &files.log, &files.step, &files.state];
    for file in whole.into_iter().chain(&unfinished) {
        // Most of them are gone already, and a failure at the very end is no error.
        let _ = fs::remove_file(file);
    }
    lock.remove();
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    fn files(dir: &Path) -> VolumeFiles {
        Paths { run: dir.into(), config: dir.into(), state: dir.into() }.volume("x")
    }

    #[test]
    fn one_holder_at_a_time_also_while_the_file_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let inside = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..50 {
                        let lock = Lock::acquire(&files, Duration::from_secs(20)).unwrap().unwrap();
                        assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                        assert!(Lock::is_held(&files));
                        inside.fetch_sub(1, Ordering::SeqCst);
                        remove_files(lock, &files);
                    }
                });
            }
        });
        assert!(!Lock::is_held(&files));
        let _lock = Lock::acquire(&files, Duration::ZERO).unwrap().unwrap();
        assert!(Lock::acquire(&files, Duration::from_millis(20)).unwrap().is_none());
    }

    #[test]
    fn cleaning_removes_what_the_state_names() {
        let dir = tempfile::tempdir().unwrap();
        let files = files(dir.path());
        let left = dir.path().join("left");
        fs::create_dir(&left).unwrap();
        let plan = serde_json::json!({
            "name": "x", "size_bytes": 4096, "ram_limit_bytes": 4096, "segment_bytes": 32768,
            "algorithm": "lz4", "export": "fuse", "threads": 1,
        });
        let state = State {
            pid: 1,
            started_unix_s: 2,
            kept: false,
            restarts: 0,
            compresses_percent: None,
            session: None,
            foreground: false,
            plan: serde_json::from_value(plan).unwrap(),
            leftovers: vec![
                Leftover::Directory(left.clone()),
                Leftover::Directory(dir.path().join("never made")),
            ],
        };
        state.write(&files).unwrap();
        let paths =
            Paths { run: dir.path().into(), config: dir.path().into(), state: dir.path().into() };
        assert!(matches!(find(&paths, "x"), Found::Dead(found) if *found == state));
        let lock = Lock::acquire(&files, Duration::ZERO).unwrap().unwrap();
        assert!(matches!(find(&paths, "x"), Found::Up(Some(_))));
        assert_eq!(clean(lock, &files).unwrap(), [format!("directory {}", left.display())]);
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(matches!(find(&paths, "x"), Found::Nothing));
        fs::write(&files.state, "{").unwrap();
        assert!(matches!(find(&paths, "x"), Found::Broken(_)));
    }
}

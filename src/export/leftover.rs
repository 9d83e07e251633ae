//! Removing what a dead front-end left in the system.
//!
//! Invariants: only what is provably ours is touched (a loop device that shows the named file, a
//! mount of our FUSE file system, a ublk device with our mark, a link to a device of our kinds, a
//! socket no process listens on, an empty directory); nothing that is held is taken away, except by
//! force a device whose users would wait for ever; every wait has a bound. The server must be dead:
//! while it lives, stop its export instead.

use super::Leftover;
use super::ublk;
use crate::error::{Context, Error, Result};
use crate::media::sysfs;
use crate::system::holders::{backing_file, lasting, of_block_device};
use crate::system::link::{device_of, is_device_of_ours};
use crate::system::loopdev;
use crate::system::mounts::{mounted_on, mounts, ours_on};
use crate::system::within::output;
use rustix::mount::{UnmountFlags, unmount};
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::mpsc;
use std::time::Duration;

/// The most that one removal may take, except of a ublk device.
const LIMIT: Duration = Duration::from_secs(10);

impl Leftover {
    /// Whether this is a device that waits for the next daemon, with its users and their requests,
    /// or the link to such a device.
    pub fn waits(&self) -> bool {
        match self {
            Self::Ublk { mark, .. } => ublk::find(*mark).is_some(),
            Self::Link(path) => device_of(path).is_some_and(|to| ublk::is_there(&to)),
            _ => false,
        }
    }

    /// Whether it is (still) there, and ours.
    pub fn exists(&self) -> bool {
        match self {
            Self::Loop { device, backing } => backing_file(device).as_deref() == Some(backing),
            Self::Mount(point) => ours_on(point),
            Self::Ublk { mark, .. } => ublk::find(*mark).is_some(),
            Self::Link(path) => device_of(path).is_some_and(|to| is_device_of_ours(&to)),
            Self::Socket(path) => {
                fs::symlink_metadata(path).is_ok_and(|m| m.file_type().is_socket())
            }
            // The table of mounts tells without asking the file system, whose server may be dead.
            Self::Directory(path) => {
                mounted_on(path).is_some() || fs::symlink_metadata(path).is_ok_and(|m| m.is_dir())
            }
        }
    }

    /// Removes the leftover; one that is not there, or no longer ours, is left alone without an
    /// error. Takes at most 10 s, even if the process that served the device died in the middle of
    /// a request; a minute where a ublk device had as many of them as it can have.
    ///
    /// # Errors
    /// It is held (the text names a holder and nothing was changed), or the privilege is missing.
    pub fn remove(&self) -> Result<()> {
        self.remove_and(false)
    }

    /// Like [`Leftover::remove`], but also removes a held device that waits for the next daemon:
    /// its holders can't release it before their requests fail, which they do from then on.
    ///
    /// # Errors
    /// As [`Leftover::remove`], of anything else.
    pub fn remove_by_force(&self) -> Result<()> {
        self.remove_and(true)
    }

    fn remove_and(&self, force: bool) -> Result<()> {
        if !self.exists() {
            return Ok(());
        }
        let what = self.clone();
        let limit = if let Self::Ublk { .. } = self { ublk::REMOVAL } else { LIMIT };
        let removed = within(limit, move || what.remove_now(force)).unwrap_or_else(|| {
            let (what, seconds) = (self.describe(), limit.as_secs());
            Err(Error::failure(format!("removing {what} takes longer than {seconds} s"))
                .hint("try again, or reboot"))
        });
        // A helper of the dead server may have removed it meanwhile.
        removed.or_else(|e| if self.exists() { Err(e) } else { Ok(()) })
    }

    /// In words: `loop device /dev/loop3`, `FUSE mount /run/ztier/a.fuse`, …
    pub fn describe(&self) -> String {
        match self {
            Self::Loop { device, .. } => format!("loop device {}", device.display()),
            Self::Mount(point) => format!("FUSE mount {}", point.display()),
            Self::Ublk { name, mark } => match ublk::find(*mark) {
                Some(id) => format!("ublk device {id} of {name}"),
                None => format!("ublk device of {name}"),
            },
            Self::Link(path) => format!("link {}", path.display()),
            Self::Socket(path) => format!("socket {}", path.display()),
            Self::Directory(path) => format!("directory {}", path.display()),
        }
    }

    /// Ends the connection between the kernel and the process that serves the device, whatever that
    /// process does: all requests fail, now and later. A ublk device that is held, or that the
    /// kernel takes for served, keeps it. Returns in words what was done, if anything.
    pub fn abort(&self) -> Option<&'static str> {
        match self {
            Self::Mount(point) if ours_on(point) => {
                abort(point);
                Some("its FUSE connection is aborted")
            }
            Self::Ublk { mark, .. } if ublk::cut_off(*mark) => Some("its ublk device is stopped"),
            _ => None,
        }
    }

    fn remove_now(&self, force: bool) -> Result<()> {
        let cannot = || format!("cannot remove {}", self.describe());
        match self {
            Self::Loop { device, backing } => remove_loop(device, backing),
            Self::Mount(point) => remove_mount(point),
            Self::Ublk { mark, .. } => ublk::remove(*mark, force),
            Self::Link(path) => absent_is_fine(fs::remove_file(path)).context(cannot()),
            Self::Socket(path) => remove_socket(path),
            Self::Directory(path) => match fs::remove_dir(path) {
                Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
                done => absent_is_fine(done).context(cannot()),
            },
        }
    }
}

/// What a front-end of the volume `name` has left, found by the name alone, in the order of
/// removal: for a volume whose state file is gone.
pub fn traces(name: &str, run_dir: &Path, link_dir: &Path) -> Vec<Leftover> {
    let run_dir = fs::canonicalize(run_dir).unwrap_or_else(|_| run_dir.to_owned());
    let (point, link) = (mount_point(&run_dir, name), link_dir.join(name));
    let (file, mark) = (point.join(name), ublk::mark(&run_dir, name));
    // A link of that name may belong to a volume in another run directory.
    let is_ours = |device: &PathBuf| {
        backing_file(device).is_some_and(|b| b == file)
            || ublk::device(mark).as_ref() == Some(device)
    };
    let link = device_of(&link).filter(is_ours).map(|_| Leftover::Link(link));
    let rest = [
        Leftover::Mount(point.clone()),
        Leftover::Directory(point),
        Leftover::Ublk { name: name.to_owned(), mark },
    ];
    // A device that stays keeps its link.
    rest.into_iter().chain(link).filter(Leftover::exists).collect()
}

/// Where the FUSE file system of the volume `name` is mounted.
pub(super) fn mount_point(run_dir: &Path, name: &str) -> PathBuf {
    run_dir.join(format!("{name}.fuse"))
}

/// Runs `work` on a thread of its own and waits at most `limit` for it. A late thread is left
/// alone: it can't be stopped while it waits in the kernel.
pub(super) fn within<T: Send + 'static>(
    limit: Duration,
    work: impl FnOnce() -> T + Send + 'static,
) -> Option<T> {
    let (tell, told) = mpsc::channel();
    let run = move || {
        let _ = tell.send(work()); // a late result has no receiver
    };
    std::thread::Builder::new().name("ztier-remove".to_owned()).spawn(run).ok()?;
    told.recv_timeout(limit).ok()
}

fn absent_is_fine(done: std::io::Result<()>) -> std::io::Result<()> {
    match done {
        Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
        done => done,
    }
}

fn remove_loop(device: &Path, backing: &Path) -> Result<()> {
    // Refused before the connection is cut: a holder of the device may still save something.
    if let Some(holder) = lasting(&of_block_device(device)) {
        return Err(loopdev::in_use(device, holder));
    }
    if let Some(point) = backing.parent() {
        abort(point);
    }
    loopdev::detach(device, backing)
}

fn remove_mount(point: &Path) -> Result<()> {
    // If the daemon died between attaching a device and reporting it, only the device's file leads
    // to it.
    for (device, file) in loops_in(point) {
        remove_loop(&device, &file)?;
    }
    abort(point);
    if !ours_on(point) {
        return Ok(());
    }
    match unmount(point, UnmountFlags::DETACH | UnmountFlags::NOFOLLOW) {
        Ok(()) => Ok(()),
        Err(rustix::io::Errno::PERM) => fusermount(point, true),
        Err(e) => Err(e).context(format!("cannot unmount {}", point.display())),
    }
}

/// The loop devices that show a file of the mount on `point`.
fn loops_in(point: &Path) -> Vec<(PathBuf, PathBuf)> {
    sysfs::entries(Path::new("/sys/block"))
        .map(|dir| Path::new("/dev").join(sysfs::name(&dir)))
        .filter_map(|device| Some((backing_file(&device)?, device)))
        .filter(|(file, _)| file.parent() == Some(point))
        .map(|(file, device)| (device, file))
        .collect()
}

/// Ends the FUSE connection of our mount on `point`: every request in it, and every later one,
/// fails at once, even if a process still has its descriptors. Other mounts are left alone.
fn abort(point: &Path) {
    let Some(m) = mounted_on(point).filter(crate::system::mounts::MountEntry::is_ours) else {
        return;
    };
    let connection = format!("/sys/fs/fuse/connections/{}/abort", m.device.1);
    if fs::write(connection, "1").is_err() {
        // No fusectl here. A forced unmount ends the connection, too. It fails while a loop device
        // or a process has the file open; the caller then unmounts once more.
        let _ = unmount(point, UnmountFlags::FORCE | UnmountFlags::NOFOLLOW);
    }
}

/// Unmounts as a user other than root; with `lazy` also while files in it are open.
pub(super) fn fusermount(point: &Path, lazy: bool) -> Result<()> {
    let mut command = Command::new("fusermount3");
    command.args(if lazy { ["-u", "-q", "-z", "--"].as_slice() } else { &["-u", "-q", "--"] });
    let done = output(command.arg(point), "`fusermount3`", LIMIT, |_| {})?;
    if done.status.success() || !mounts().iter().any(|m| m.point == point) {
        return Ok(());
    }
    Err(Error::failure(format!("cannot unmount {}: fusermount3 refused", point.display()))
        .hint("end what uses it, or run as root"))
}

fn remove_socket(path: &Path) -> Result<()> {
    if UnixStream::connect(path).is_ok() {
        return Err(Error::busy(format!(
            "socket {} is in use: something listens on it",
            path.display()
        ))
        .hint("end that first"));
    }
    absent_is_fine(fs::remove_file(path))
        .context(format!("cannot remove socket {}", path.display()))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn what_is_absent_is_removed_already() {
        let gone = PathBuf::from("/nonexistent/ztier");
        for l in [
            Leftover::Loop { device: "/dev/loop-none".into(), backing: gone.clone() },
            Leftover::Mount(gone.clone()),
            Leftover::Ublk { name: "gone".into(), mark: 0 },
            Leftover::Link(gone.clone()),
            Leftover::Socket(gone.clone()),
            Leftover::Directory(gone),
        ] {
            assert!(!l.exists(), "{}", l.describe());
            l.remove().unwrap();
        }
    }

    #[test]
    fn what_is_not_ours_stays() {
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink("/etc/passwd", &link).unwrap();
        Leftover::Link(link.clone()).remove().unwrap();
        assert!(link.is_symlink());

        let file = dir.path().join("file");
        fs::write(&file, "x").unwrap();
        Leftover::Socket(file.clone()).remove().unwrap();
        Leftover::Directory(dir.path().into()).remove().unwrap();
        Leftover::Mount("/".into()).remove().unwrap();
        assert!(file.exists() && !Leftover::Mount("/".into()).exists());
    }

    #[test]
    fn a_dead_socket_goes_and_a_live_one_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let left = Leftover::Socket(path.clone());
        assert!(left.remove().unwrap_err().to_string().contains("listens"));
        drop(listener);
        left.remove().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn late_work_is_given_up() {
        let (hold, held) = mpsc::channel::<()>();
        let late = move || held.recv().is_ok();
        assert_eq!(within(Duration::from_millis(20), late), None);
        drop(hold);
        assert_eq!(within(Duration::from_secs(60), || 7), Some(7));
    }
}

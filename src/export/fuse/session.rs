//! One FUSE mount and the threads that serve it.
//!
//! Invariant: no thread of this process sends a request to the mount, not even by closing a file in
//! it: a thread that waits for the answer could not be killed (see [`crate::system::helper`]).
//! Mounting and unmounting wait for no request.

use super::file::{BlockFile, FILE};
use crate::error::{Context, Error, Result};
use crate::export::leftover::fusermount;
use crate::media::mounts::SOURCE;
use crate::patience::eventually;
use crate::system::mounts::ours_on;
use fuser::{BackgroundSession, Config, MountOption, Notifier, Session};
use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How long an unmount waits for processes that only look (`df`, indexers).
const UNMOUNT_WAIT: Duration = Duration::from_secs(2);

/// How long the serving threads may take to end after the unmount.
const JOIN_WAIT: Duration = Duration::from_secs(10);

pub(super) struct Mounted {
    point: PathBuf,
    notifier: Notifier,
    session: Option<BackgroundSession>,
}

impl Mounted {
    /// Mounts `file_system` on the directory `point` and serves it with `threads` threads.
    pub(super) fn new(file_system: BlockFile, point: &Path, threads: usize) -> Result<Self> {
        let mut config = Config::default();
        config.mount_options = vec![
            MountOption::FSName(SOURCE.to_owned()),
            MountOption::NoSuid,
            MountOption::NoDev,
            MountOption::NoExec,
            MountOption::NoAtime,
            MountOption::DefaultPermissions,
        ];
        config.n_threads = Some(threads.max(1));
        config.clone_fd = true;
        let session = Session::new(file_system, point, &config)
            .and_then(Session::spawn)
            .context(format!("cannot mount FUSE on {}", point.display()))
            .map_err(|e| e.hint("see `ztier doctor`, or use --export nbd"))?;
        let notifier = session.notifier();
        Ok(Self { point: point.to_owned(), notifier, session: Some(session) })
    }

    /// Makes the kernel forget the file's cached size. Any thread may call this.
    pub(super) fn forget_size(&self) -> std::io::Result<()> {
        // A negative offset: attributes only.
        self.notifier.inval_inode(FILE, -1, 0)
    }

    /// Whether it is mounted.
    pub(super) fn is_there(&self) -> bool {
        ours_on(&self.point)
    }

    /// Unmounts and ends the threads. When it fails because the file is open, serving goes on.
    pub(super) fn unmount(&mut self) -> Result<()> {
        if self.is_there() {
            self.unmount_point()?;
        }
        let Some(session) = self.session.take() else { return Ok(()) };
        if !eventually(JOIN_WAIT, Duration::from_millis(2), || session.guard.is_finished()) {
            return Err(Error::failure(format!(
                "{} is unmounted, but requests in it don't end",
                self.point.display()
            )));
        }
        session.join().context(format!("serving {} ended badly", self.point.display()))
    }

    fn unmount_point(&self) -> Result<()> {
        let deadline = Instant::now() + UNMOUNT_WAIT;
        loop {
            match unmount(&self.point, UnmountFlags::NOFOLLOW) {
                Ok(()) => return Ok(()),
                Err(Errno::PERM) => return fusermount(&self.point, false),
                Err(Errno::BUSY) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                Err(e) => {
                    return Err(e).context(format!("cannot unmount {}", self.point.display()));
                }
            }
        }
    }
}

//! The keeper's own process: `ztier keeper NAME`, started by a daemon.
//!
//! One thread, one loop: it waits for the daemon's end and for connections. Before it answers the
//! first message it has everything that it needs; nothing later can fail for want of memory or
//! files.

use super::wire::{bound, receive, send};
use super::{Answer, Manifest, Say};
use crate::daemon::itself;
use crate::error::{Context, Error, Result};
use crate::private;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::{MapFlags, MlockAllFlags, MlockFlags, ProtFlags};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, SocketType, accept_with, listen};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// How often one without a daemon looks whether the next could still find it.
const LOOK: Timespec = Timespec { tv_sec: 5, tv_nsec: 0 };
/// How long one who connects may take to say what he wants.
const PATIENCE: Duration = Duration::from_secs(2);

/// Runs the keeper in this process, whose standard input is a socket to the daemon.
///
/// # Errors
/// When what it shall keep does not arrive, or its socket can't be made.
pub fn main() -> Result<()> {
    // Fails only for a process that leads its group already, which is as good.
    let _ = rustix::process::setsid();
    let daemon = std::io::stdin().as_fd().try_clone_to_owned().context("cannot use the input")?;
    bound(&daemon, PATIENCE)?;
    let Some((Say::Keep { manifest, names, socket }, files)) = receive(&daemon)? else {
        return Err(Error::failure("nothing to keep").mend("`ztier up` starts a volume's keeper"));
    };
    if files.len() != names.len() {
        return Err(Error::failure("the daemon sent other files than it named"));
    }
    itself::call("zkeep", &manifest.volume);
    itself::keep_out_of_dumps();
    itself::outlive_limits()?;
    let mut keeping = match Keeping::new(manifest, names, files, socket, daemon) {
        Ok(keeping) => keeping,
        Err((e, daemon)) => {
            send(&daemon, Answer::Failed { why: e.to_string() }, &[])?;
            return Err(e);
        }
    };
    crate::export::reclaim::prepare_for_reclaim();
    // It must answer also when swap is what it keeps the memory of. Without the right to, it is
    // as good for everything else.
    let _ = rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT);
    let told = keeping.daemon.iter().try_for_each(|daemon| send(daemon, Answer::Done, &[]));
    match told {
        Ok(()) => keeping.serve(),
        // A daemon that died by now had nothing in memory yet, and what it left may be removed
        // already.
        Err(_) => keeping.vanish(),
    }
    told
}

struct Keeping {
    manifest: Manifest,
    names: Vec<String>,
    files: Vec<OwnedFd>,
    path: PathBuf,
    socket: OwnedFd,
    /// Device and inode of the socket's file, by which others come.
    place: (u64, u64),
    /// The daemon's end, while there is a daemon.
    daemon: Option<OwnedFd>,
    /// Keeps the memory from being swapped out while there is no daemon that does.
    locked: Vec<Locked>,
}

impl Keeping {
    fn new(
        manifest: Manifest,
        names: Vec<String>,
        files: Vec<OwnedFd>,
        path: PathBuf,
        daemon: OwnedFd,
    ) -> std::result::Result<Self, (Error, OwnedFd)> {
        match listen_on(&path) {
            Ok((socket, place)) => {
                let (daemon, locked) = (Some(daemon), Vec::new());
                Ok(Self { manifest, names, files, path, socket, place, daemon, locked })
            }
            Err(e) => Err((e, daemon)),
        }
    }

    /// Serves until it is told to end, or no daemon can find it any more: its socket was removed.
    fn serve(&mut self) {
        loop {
            let mut fds = vec![PollFd::new(&self.socket, PollFlags::IN)];
            fds.extend(self.daemon.iter().map(|d| PollFd::new(d, PollFlags::IN)));
            match poll(&mut fds, self.daemon.is_none().then_some(&LOOK)) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
                Ok(0) if place_of(&self.path) != Some(self.place) => return,
                Ok(_) => {}
            }
            let (asked, gone) = (!fds[0].revents().is_empty(), fds.get(1).map(PollFd::revents));
            if gone.is_some_and(|events| !events.is_empty()) {
                // It says nothing on this connection as long as it lives.
                self.daemon = None;
                self.lock();
            }
            if asked && self.answer().is_ok_and(|end| end) {
                return;
            }
        }
    }

    /// Removes the socket, if it still is this one's.
    fn vanish(&self) {
        if place_of(&self.path) == Some(self.place) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Hears one who connects. Says whether that was the end.
    fn answer(&mut self) -> Result<bool> {
        let what = "cannot hear who connects";
        let peer = accept_with(&self.socket, SocketFlags::CLOEXEC).context(what)?;
        bound(&peer, PATIENCE)?;
        let said = receive(&peer)?;
        if let Err(e) = admit(&peer) {
            send(&peer, Answer::Failed { why: e.to_string() }, &[])?;
            return Ok(false);
        }
        match said {
            Some((Say::Give, _)) => {
                let (manifest, names) = (self.manifest.clone(), self.names.clone());
                let files: Vec<_> = self.files.iter().map(AsFd::as_fd).collect();
                send(&peer, Answer::Given { manifest, names }, &files)?;
                self.daemon = Some(peer);
                self.locked.clear();
                Ok(false)
            }
            Some((Say::End, _)) => {
                // Gone for good before it is said to be.
                let _ = std::fs::remove_file(&self.path);
                self.locked.clear();
                self.files.clear();
                send(&peer, Answer::Done, &[])?;
                Ok(true)
            }
            Some((Say::Keep { .. }, _)) => {
                send(&peer, Answer::Failed { why: "it keeps something already".into() }, &[])?;
                Ok(false)
            }
            None => Ok(false),
        }
    }

    /// Locks all memory, where it could be swapped out otherwise. Best effort: without the right to
    /// lock, the daemon could not either.
    fn lock(&mut self) {
        if !self.manifest.resident {
            self.locked = self.files.iter().filter_map(Locked::new).collect();
        }
    }
}

/// A whole memory file, mapped and locked. Nothing reads or writes through the mapping.
struct Locked {
    base: *mut std::ffi::c_void,
    len: usize,
}

impl Locked {
    fn new(file: &OwnedFd) -> Option<Self> {
        let len = rustix::fs::fstat(file).ok()?.st_size as usize;
        let flags = MapFlags::SHARED | MapFlags::NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice overlaps nothing.
        let base =
            unsafe { rustix::mm::mmap(std::ptr::null_mut(), len, ProtFlags::READ, flags, file, 0) }
                .ok()?;
        let locked = Self { base, len };
        // SAFETY: advice on our own mapping changes no contents.
        let _ = unsafe { rustix::mm::madvise(base, len, rustix::mm::Advice::LinuxDontDump) };
        // Only what there is: locking the whole range would fill the file's holes.
        // SAFETY: our own mapping; locking changes no contents.
        unsafe { rustix::mm::mlock_with(base, len, MlockFlags::ONFAULT) }.ok()?;
        let mut at = 0;
        while let Ok(start) = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
            let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start)).ok()?;
            let advice = rustix::mm::Advice::LinuxPopulateRead;
            let run = base.wrapping_byte_add(start as usize);
            // SAFETY: inside our own mapping; populating changes no contents.
            unsafe { rustix::mm::madvise(run, (end - start) as usize, advice) }.ok()?;
            at = end;
        }
        Some(locked)
    }
}

impl Drop for Locked {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours and unused.
        let _ = unsafe { rustix::mm::munmap(self.base, self.len) };
    }
}

/// Refuses everybody but the owner and root.
fn admit(peer: &OwnedFd) -> Result<()> {
    let uid = socket_peercred(peer).context("cannot see who asks")?.uid;
    if uid.is_root() || uid == rustix::process::geteuid() {
        return Ok(());
    }
    Err(Error::failure(format!("user {} may not have this volume's memory", uid.as_raw()))
        .mend("ask as the user who started it, or as root"))
}

fn place_of(path: &Path) -> Option<(u64, u64)> {
    rustix::fs::lstat(path).ok().map(|stat| (stat.st_dev, stat.st_ino))
}

fn listen_on(path: &Path) -> Result<(OwnedFd, (u64, u64))> {
    let what = || format!("cannot listen on {}", path.display());
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != ErrorKind::NotFound => return Err(e).context(what()),
        _ => {}
    }
    let socket =
        private::socket(path, SocketType::SEQPACKET, SocketFlags::empty()).context(what())?;
    listen(&socket, 8).context(what())?;
    let place = place_of(path).ok_or_else(|| Error::failure(what()))?;
    Ok((socket, place))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::process::{Uid, geteuid};
    use std::os::linux::net::SocketAddrExt;
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::net::{SocketAddr, UnixListener, UnixStream};

    #[test]
    fn only_the_owner_may_connect_from_the_first_moment_on() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("v.keep");
        let (_socket, place) = listen_on(&path).unwrap();
        assert_eq!(path.metadata().unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(place_of(&path), Some(place));
    }

    #[test]
    fn the_owner_is_admitted_and_others_are_refused() {
        if !geteuid().is_root() {
            eprintln!("skipped: only root can become another user");
            return;
        }
        let name = format!("ztier-admit-{}", std::process::id());
        let address = SocketAddr::from_abstract_name(name).unwrap();
        let listener = UnixListener::bind_addr(&address).unwrap();
        let admitted = |uid: u32| {
            let address = address.clone();
            // This changes the user of that thread alone.
            let stranger = std::thread::spawn(move || {
                rustix::thread::set_thread_uid(Uid::from_raw(uid)).unwrap();
                UnixStream::connect_addr(&address).unwrap()
            });
            let stream = stranger.join().unwrap();
            let (peer, _) = listener.accept().unwrap();
            drop(stream);
            admit(&peer.into())
        };
        admitted(0).unwrap();
        let refused = admitted(65534).unwrap_err().to_string();
        assert!(refused.contains("user 65534 may not have"), "{refused}");
    }
}

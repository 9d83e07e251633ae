//! The memory holder's own process: `ztier keeper NAME`, started by a daemon.
//!
//! A loop in one thread waits for the daemon's end, for connections, and for their messages. Before
//! it answers the first message it has all that it needs; nothing later can fail for lack of memory
//! or files.
//!
//! Invariant: it never waits for a client. A silent client has a place; if none is left, the oldest
//! client loses its place to the next.

use super::wire::{bound, receive, send};
use super::{Answer, Manifest, Say};
use crate::daemon::itself;
use crate::error::{Context, Error, Result};
use crate::media::{Hint, MappedFor, Mapping};
use crate::private;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::mm::MlockAllFlags;
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, SocketType, accept_with, listen};
use std::io::ErrorKind;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between checks, without a daemon, whether the next daemon could still find it.
const LOOK: Duration = Duration::from_secs(5);
/// How long a client may take to send its message, and to receive the answer.
const PATIENCE: Duration = Duration::from_secs(2);
/// The most clients that may be silent at once.
const MOST_CLIENTS: usize = 16;
/// The most connections that wait to be accepted.
const BACKLOG: i32 = 128;
/// How long the memory holder accepts no client after an accept failed.
const PAUSE: Duration = Duration::from_millis(100);

/// Runs the memory holder in this process, whose standard input is a socket to the daemon.
///
/// # Errors
/// The memory files do not arrive, or its socket can't be made.
pub fn main() -> Result<()> {
    // Fails only for a process that already leads its group, which is equivalent.
    let _ = rustix::process::setsid();
    let daemon = std::io::stdin().as_fd().try_clone_to_owned().context("cannot use the input")?;
    bound(&daemon, PATIENCE)?;
    let Some((Say::Keep { manifest, names, socket }, files)) = receive(&daemon)? else {
        return Err(
            Error::failure("nothing to keep").hint("`ztier up` starts a volume's memory holder")
        );
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
    crate::system::reclaim::prepare_for_reclaim();
    // The memory holder must answer even if it keeps the memory of swap. Without the right to lock
    // memory it still works for other uses.
    let _ = rustix::mm::mlockall(MlockAllFlags::CURRENT | MlockAllFlags::ONFAULT);
    let sent = keeping.daemon.iter().try_for_each(|daemon| send(daemon, Answer::Done, &[]));
    match sent {
        Ok(()) => keeping.serve(),
        // A daemon that died by now had nothing in memory yet, and its leftovers may be removed
        // already.
        Err(_) => keeping.vanish(),
    }
    sent
}

struct Keeping {
    manifest: Manifest,
    names: Vec<String>,
    files: Vec<OwnedFd>,
    path: PathBuf,
    socket: OwnedFd,
    /// Device and inode of the socket's file, by which others connect.
    place: (u64, u64),
    /// The daemon's connection; `None` while there is no daemon.
    daemon: Option<OwnedFd>,
    /// Clients that have sent nothing yet, and their deadlines.
    silent: Vec<(OwnedFd, Instant)>,
    /// Keeps the memory from being swapped out while no daemon does.
    locked: Vec<Mapping>,
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
                let silent = Vec::with_capacity(MOST_CLIENTS);
                Ok(Self { manifest, names, files, path, socket, place, daemon, silent, locked })
            }
            Err(e) => Err((e, daemon)),
        }
    }

    /// Serves until it is asked to end, or no daemon can find it any more: its socket was removed.
    fn serve(&mut self) {
        loop {
            let mut fds = vec![PollFd::new(&self.socket, PollFlags::IN)];
            fds.extend(self.silent.iter().map(|(peer, _)| PollFd::new(peer, PollFlags::IN)));
            fds.extend(self.daemon.iter().map(|d| PollFd::new(d, PollFlags::IN)));
            match poll(&mut fds, self.patience().as_ref()) {
                Err(rustix::io::Errno::INTR) => continue,
                Err(_) => return,
                Ok(0) if self.daemon.is_none() && place_of(&self.path) != Some(self.place) => {
                    return;
                }
                Ok(_) => {}
            }
            let happened = |fd: &PollFd<'_>| !fd.revents().is_empty();
            let connects = happened(&fds[0]);
            let speak: Vec<bool> = fds[1..=self.silent.len()].iter().map(happened).collect();
            if fds.get(1 + speak.len()).is_some_and(happened) {
                // A living daemon sends nothing on this connection.
                self.daemon = None;
                self.lock();
            }
            if self.hear(&speak) {
                return;
            }
            if connects {
                self.accept();
            }
        }
    }

    /// How long to wait for the next event; `None`: without limit.
    fn patience(&self) -> Option<Timespec> {
        let until = self.silent.first().map(|(_, until)| *until);
        let left = until.map(|until| until.saturating_duration_since(Instant::now()));
        // One millisecond more, so that the deadline has passed by then.
        let left = left.map(|left| left + Duration::from_millis(1));
        let looks = self.daemon.is_none().then_some(LOOK);
        let wait = left.into_iter().chain(looks).min()?;
        Timespec::try_from(wait).ok()
    }

    /// Answers the clients that `speak`, and hangs up on those whose deadline has passed. Returns
    /// whether one of them has ended this memory holder.
    fn hear(&mut self, speak: &[bool]) -> bool {
        let now = Instant::now();
        let all = std::mem::replace(&mut self.silent, Vec::with_capacity(MOST_CLIENTS));
        for ((peer, until), speaks) in all.into_iter().zip(speak) {
            if *speaks {
                if self.answer(peer).is_ok_and(|end| end) {
                    return true;
                }
            } else if now < until {
                self.silent.push((peer, until));
            }
        }
        false
    }

    /// Accepts one client.
    fn accept(&mut self) {
        if self.silent.len() == MOST_CLIENTS {
            self.silent.remove(0);
        }
        match accept_with(&self.socket, SocketFlags::CLOEXEC) {
            Ok(peer) if bound(&peer, PATIENCE).is_ok() => {
                self.silent.push((peer, Instant::now() + PATIENCE));
            }
            Ok(_) => {}
            // Without a free descriptor: cut off a silent client, which has one.
            Err(_) if !self.silent.is_empty() => drop(self.silent.remove(0)),
            Err(_) => std::thread::sleep(PAUSE),
        }
    }

    /// Removes the socket, if it still is this process's.
    fn vanish(&self) {
        if place_of(&self.path) == Some(self.place) {
            let _ = std::fs::remove_file(&self.path);
        }
    }

    /// Answers a client that has sent a packet. Returns whether this ends the memory holder.
    fn answer(&mut self, peer: OwnedFd) -> Result<bool> {
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
                // Gone for good before the answer says so.
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

    /// Locks all memory that could be swapped out otherwise. Best effort: without the right to
    /// lock, the daemon could not lock it either.
    fn lock(&mut self) {
        if !self.manifest.resident {
            self.locked = self.files.iter().filter_map(locked).collect();
        }
    }
}

/// A whole memory file, mapped and locked. No access goes through the mapping.
fn locked(file: &OwnedFd) -> Option<Mapping> {
    let len = rustix::fs::fstat(file).ok()?.st_size as usize;
    let mapping = Mapping::shared(file, MappedFor::Reading, 0, len).ok()?;
    mapping.prefer(Hint::DontDump);
    // Lock only what is allocated: locking the whole range would fill the file's holes.
    mapping.lock_on_fault().ok()?;
    let mut at = 0;
    while let Ok(start) = rustix::fs::seek(file, rustix::fs::SeekFrom::Data(at)) {
        let end = rustix::fs::seek(file, rustix::fs::SeekFrom::Hole(start)).ok()?;
        mapping.hint(start as usize..end as usize, Hint::PopulateRead).ok()?;
        at = end;
    }
    Some(mapping)
}

/// Refuses all users but the owner and root.
fn admit(peer: &OwnedFd) -> Result<()> {
    let uid = socket_peercred(peer).context("cannot see who asks")?.uid;
    if uid.is_root() || uid == rustix::process::geteuid() {
        return Ok(());
    }
    Err(Error::failure(format!("user {} may not have this volume's memory", uid.as_raw()))
        .hint("ask as the user who started it, or as root"))
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
        private::socket(path, SocketType::SEQPACKET, SocketFlags::NONBLOCK).context(what())?;
    listen(&socket, BACKLOG).context(what())?;
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

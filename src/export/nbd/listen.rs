//! Where clients find the server: Unix sockets, TCP, sockets handed over by a service manager.
//!
//! Invariants: only its owner can connect to a Unix socket, from the first moment on; only sockets
//! that no process serves are replaced; only the socket that we made is removed; a socket that was
//! handed over stays with the process, also when that becomes another program.

use super::uri;
use crate::error::{Context, Error, Result};
use crate::private;
use parking_lot::Mutex;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::io::{Errno, FdFlags};
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType, sockopt};
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::os::fd::{AsFd, BorrowedFd, FromRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Connections that may wait to be accepted.
const BACKLOG: i32 = 128;
/// The first descriptor that a service manager hands over.
const INHERITED_FIRST: i32 = 3;
/// Most descriptors that are taken over.
const INHERITED_MAX: i32 = 64;

/// The sockets that were handed over, with the descriptor numbers that they came with.
static HANDED: OnceLock<Vec<OwnedFd>> = OnceLock::new();

/// One place to listen at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Listen {
    /// A Unix socket with this path, mode 0600. A socket that no process serves is replaced.
    Unix(PathBuf),
    /// A TCP port (0: any free one). NBD here has neither encryption nor passwords: any client that
    /// reaches the address can read and write the volume.
    Tcp(SocketAddr),
    /// The sockets that `LISTEN_FDS` and `LISTEN_PID` announce (systemd's socket activation, also
    /// used by libnbd's tools for `[ COMMAND… ]`).
    Inherited,
}

/// A socket that accepts connections. Dropping it removes what it left in the file system.
pub(super) struct Listener {
    fd: OwnedFd,
    address: Address,
}

enum Address {
    /// A socket of ours: its path, and the device and inode number that it had when it was made.
    Unix {
        path: PathBuf,
        identity: (u64, u64),
    },
    /// A Unix socket that was handed over: never removed.
    UnixInherited(PathBuf),
    Tcp(SocketAddr),
    Nameless,
}

impl Listener {
    /// Opens all sockets that `listen` stands for, at least one.
    pub fn open(listen: &Listen) -> Result<Vec<Self>> {
        match listen {
            Listen::Unix(path) => Ok(vec![unix(path)?]),
            Listen::Tcp(address) => Ok(vec![tcp(*address)?]),
            Listen::Inherited => inherited(),
        }
    }

    /// The URI for clients, if there is one.
    pub fn endpoint(&self, name: &str) -> String {
        match &self.address {
            Address::Unix { path, .. } | Address::UnixInherited(path) => uri::unix(name, path),
            Address::Tcp(address) => uri::tcp(name, *address),
            Address::Nameless => "an inherited socket without an address".to_owned(),
        }
    }

    /// Takes one waiting connection; `None` if it went away meanwhile.
    pub fn accept(&self) -> std::result::Result<Option<OwnedFd>, Errno> {
        let socket = match rustix::net::accept_with(&self.fd, SocketFlags::CLOEXEC) {
            Ok(socket) => socket,
            Err(Errno::AGAIN | Errno::INTR | Errno::CONNABORTED | Errno::PROTO) => return Ok(None),
            Err(e) => return Err(e),
        };
        if matches!(self.address, Address::Tcp(_)) {
            // Only speed and the discovery of dead peers depend on these.
            let _ = sockopt::set_tcp_nodelay(&socket, true);
            let _ = sockopt::set_socket_keepalive(&socket, true);
            let _ = sockopt::set_tcp_keepidle(&socket, Duration::from_secs(60));
            let _ = sockopt::set_tcp_keepintvl(&socket, Duration::from_secs(15));
            let _ = sockopt::set_tcp_keepcnt(&socket, 4);
        } else {
            // Large replies then leave in few pieces. The system may grant less.
            let _ = sockopt::set_socket_send_buffer_size(&socket, 1 << 20);
        }
        Ok(Some(socket))
    }
}

impl AsFd for Listener {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        if let Address::Unix { path, identity } = &self.address
            && path.symlink_metadata().is_ok_and(|m| (m.dev(), m.ino()) == *identity)
        {
            // No caller is left to hear an error; `ztier down` finds the path among the leftovers.
            let _ = std::fs::remove_file(path);
        }
    }
}

/// The path that a Unix socket will have, as it is listed among leftovers and in URIs.
pub(super) fn absolute(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_owned())
}

fn socket(family: AddressFamily) -> Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socket_with(family, SocketType::STREAM, flags, None)
        .context("cannot make a socket")
}

fn unix(path: &Path) -> Result<Listener> {
    let path = absolute(path);
    let shown = path.display();
    let address = SocketAddrUnix::new(path.as_path()).map_err(|_| {
        let len = path.as_os_str().as_bytes().len();
        Error::usage(format!("the socket path {shown} has {len} bytes, more than 107"))
            .hint("choose a shorter one")
    })?;
    let fd = socket(AddressFamily::UNIX)?;
    // Held until we are bound: two servers that find the same stale socket can't both replace it.
    let _lock = lock_directory(&path)?;
    match private::bind_private(&fd, &address) {
        Err(Errno::ADDRINUSE) => {
            remove_stale(&path, &address)?;
            private::bind_private(&fd, &address)
        }
        bound => bound,
    }
    .context(format_args!("cannot make the socket {shown}"))?;
    let identity = path
        .symlink_metadata()
        .map(|m| (m.dev(), m.ino()))
        .context(format_args!("cannot look at the socket {shown}"))?;
    let listener = Listener { fd, address: Address::Unix { path: path.clone(), identity } };
    rustix::net::listen(&listener.fd, BACKLOG).context(format_args!("cannot listen at {shown}"))?;
    Ok(listener)
}

/// An exclusive lock on the directory of `path`, waited for at most a second.
fn lock_directory(path: &Path) -> Result<OwnedFd> {
    let directory = path.parent().unwrap_or(Path::new("/"));
    let what = format!("cannot make a socket in {}", directory.display());
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let fd = rustix::fs::open(directory, flags, Mode::empty()).map_err(|e| {
        let error = Error::failure(format!("{what}: {e}"));
        if e == Errno::NOENT { error.hint("make that directory first") } else { error }
    })?;
    for _ in 0..50 {
        match rustix::fs::flock(&fd, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(Duration::from_millis(20)),
            locked => return locked.map(|()| fd).context(what),
        }
    }
    Err(Error::busy(format!("{what}: another process keeps that directory locked"))
        .hint("end that process (`fuser` names it), then try again"))
}

/// Removes the socket at `path` if no process listens there any more.
fn remove_stale(path: &Path, address: &SocketAddrUnix) -> Result<()> {
    let shown = path.display();
    let is_socket = match path.symlink_metadata() {
        Ok(found) => found.file_type().is_socket(),
        // Its process removed it meanwhile, without the lock.
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        Err(_) => false,
    };
    if !is_socket {
        return Err(Error::failure(format!("{shown} exists and is not a socket"))
            .hint("choose another path, or remove it"));
    }
    // Not blocking: a server whose backlog is full counts as alive.
    match rustix::net::connect(socket(AddressFamily::UNIX)?, address) {
        Err(Errno::CONNREFUSED) => match std::fs::remove_file(path) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            removed => removed.context(format_args!("cannot remove the stale socket {shown}")),
        },
        Err(Errno::NOENT) => Ok(()),
        _ => Err(Error::busy(format!("another process serves the socket {shown}"))
            .hint("choose another path, or end that process")),
    }
}

fn tcp(address: SocketAddr) -> Result<Listener> {
    let what = format!("cannot listen at {address}");
    let v4 = address.is_ipv4();
    let fd = socket(if v4 { AddressFamily::INET } else { AddressFamily::INET6 })?;
    sockopt::set_socket_reuseaddr(&fd, true).context(&what)?;
    rustix::net::bind(&fd, &address).map_err(|e| {
        let text = format!("{what}: {e}");
        match e {
            Errno::ADDRINUSE => Error::busy(text).hint("choose another port"),
            _ => Error::failure(text),
        }
    })?;
    rustix::net::listen(&fd, BACKLOG).context(&what)?;
    let bound = rustix::net::getsockname(&fd)
        .ok()
        .and_then(|bound| SocketAddr::try_from(bound).ok())
        .unwrap_or(address);
    Ok(Listener { fd, address: Address::Tcp(bound) })
}

/// Takes over the sockets of `LISTEN_FDS`. Must come before this process starts another one, which
/// would inherit them, and keep them after this process has died.
///
/// # Errors
/// None were handed over, or something else was.
pub fn take_over() -> Result<()> {
    handed().map(drop)
}

/// The sockets that were handed over; taken over once in the life of this process.
fn handed() -> Result<&'static [OwnedFd]> {
    static TURN: Mutex<()> = Mutex::new(());
    let _turn = TURN.lock();
    if let Some(handed) = HANDED.get() {
        return Ok(handed);
    }
    let variable = |name| std::env::var(name).ok().and_then(|v| v.parse::<i32>().ok());
    let ours = variable("LISTEN_PID") == i32::try_from(std::process::id()).ok();
    let count = match variable("LISTEN_FDS") {
        Some(count @ 1..=INHERITED_MAX) if ours => count,
        _ => {
            return Err(Error::failure("no listening socket was handed to this process")
                .hint("start it by socket activation (LISTEN_FDS and LISTEN_PID)"));
        }
    };
    let numbers = INHERITED_FIRST..INHERITED_FIRST + count;
    numbers.clone().try_for_each(check)?;
    // SAFETY: they were open when this program began (`check`), so nothing in it has made them. By
    // the protocol of socket activation, in which LISTEN_PID names this process, they were opened
    // for the code that takes them over, and HANDED, empty in our turn, makes that this call, once.
    let own = |raw| unsafe { OwnedFd::from_raw_fd(raw) };
    let handed = HANDED.get_or_init(|| numbers.map(own).collect());
    for fd in handed {
        rustix::io::fcntl_setfd(fd, FdFlags::CLOEXEC).context("cannot use an inherited socket")?;
    }
    Ok(handed)
}

/// Listeners on the sockets that were handed over, for one export.
fn inherited() -> Result<Vec<Listener>> {
    static TAKEN: AtomicBool = AtomicBool::new(false);
    let handed = handed()?;
    if TAKEN.swap(true, Ordering::AcqRel) {
        return Err(Error::busy("the inherited sockets are in use by another export"));
    }
    handed.iter().map(serve).collect()
}

/// Refuses a descriptor that was not handed over, or is no socket to accept from.
fn check(raw: RawFd) -> Result<()> {
    // SAFETY: it is only looked at. Where nothing is open under that number, the first look says
    // so; whatever else it is, its owner keeps it.
    let fd = unsafe { BorrowedFd::borrow_raw(raw) };
    if listens(fd).unwrap_or(false) {
        return Ok(());
    }
    let what = format!("descriptor {raw} was not handed over as a listening stream socket");
    Err(Error::failure(what).hint("set LISTEN_FDS to how many were, from descriptor 3 on"))
}

/// Whether a descriptor is a listening socket and was open when this program began: descriptors
/// that the program opens itself close when the process becomes another program.
fn listens(fd: BorrowedFd<'_>) -> rustix::io::Result<bool> {
    Ok(!rustix::io::fcntl_getfd(fd)?.contains(FdFlags::CLOEXEC)
        && sockopt::socket_type(fd)? == SocketType::STREAM
        && sockopt::socket_acceptconn(fd)?)
}

/// A listener on a duplicate of a socket that was handed over; the original stays.
fn serve(handed: &OwnedFd) -> Result<Listener> {
    let what = "cannot use an inherited socket";
    let flags = rustix::fs::fcntl_getfl(handed).context(what)?;
    rustix::fs::fcntl_setfl(handed, flags | OFlags::NONBLOCK).context(what)?;
    let fd = handed.try_clone().context(what)?;
    let address = inherited_address(&fd);
    Ok(Listener { fd, address })
}

/// Leaves the sockets that were handed over to the program that this process is about to become,
/// with their descriptor numbers. Clients that connect meanwhile wait for that program.
///
/// # Errors
/// The system's.
pub fn hand_on() -> Result<()> {
    let mut handed = HANDED.get().into_iter().flatten();
    handed
        .try_for_each(|fd| rustix::io::fcntl_setfd(fd, FdFlags::empty()))
        .context("cannot hand the inherited sockets on")
}

fn inherited_address(fd: &OwnedFd) -> Address {
    let Ok(any) = rustix::net::getsockname(fd) else { return Address::Nameless };
    if let Ok(address) = SocketAddr::try_from(any.clone()) {
        return Address::Tcp(address);
    }
    let unix = SocketAddrUnix::try_from(any).ok();
    match unix.as_ref().and_then(SocketAddrUnix::path_bytes) {
        Some(path) => {
            Address::UnixInherited(absolute(Path::new(std::ffi::OsStr::from_bytes(path))))
        }
        None => Address::Nameless,
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::os::fd::AsRawFd;

    #[test]
    fn what_we_have_opened_was_not_handed_over() {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        assert!(check(listener.as_raw_fd()).is_err());
        rustix::io::fcntl_setfd(&listener, FdFlags::empty()).unwrap();
        check(listener.as_raw_fd()).unwrap();
        let file = tempfile::tempfile().unwrap();
        rustix::io::fcntl_setfd(&file, FdFlags::empty()).unwrap();
        let refused = check(file.as_raw_fd()).unwrap_err().to_string();
        assert!(refused.contains("was not handed over") && refused.contains("LISTEN_FDS"));
        assert!(check(RawFd::MAX).is_err(), "nothing is open there");
        file.metadata().unwrap();
    }

    /// A server that ends, or `ztier down`, removes its socket without the lock.
    #[test]
    fn a_stale_socket_that_goes_away_is_as_good_as_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.nbd");
        let address = SocketAddrUnix::new(path.as_path()).unwrap();
        remove_stale(&path, &address).unwrap();
        let removes = AtomicBool::new(true);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while removes.load(Ordering::Relaxed) {
                    let _ = std::fs::remove_file(&path);
                }
            });
            let found: Vec<_> = (0..2000)
                .map(|_| {
                    // Bound, and closed without being removed.
                    let _ = private::bind_private(&socket(AddressFamily::UNIX).unwrap(), &address);
                    remove_stale(&path, &address)
                })
                .collect();
            removes.store(false, Ordering::Relaxed);
            found.into_iter().for_each(|one| one.unwrap());
        });
        assert!(!path.exists());
        std::fs::write(&path, "x").unwrap();
        let refused = remove_stale(&path, &address).unwrap_err();
        assert!(refused.to_string().contains("is not a socket"), "{refused}");
        assert_eq!(std::fs::read(&path).unwrap(), b"x");
    }
}

//! The daemon's side: the connection to the memory holder, and the memory that was kept.

use super::wire::{bound, receive, send, unbound};
use super::{Answer, Manifest, Say};
use crate::daemon::spawn::shown_as;
use crate::error::{Context, Error, Result};
use crate::media::Memory;
use parking_lot::Mutex;
use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketAddrUnix, SocketFlags, SocketType, connect, recv,
    shutdown, socket_with, socketpair,
};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// How long a memory holder may take to answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// Pause before a memory holder that can't be started is tried again.
const RETRY: Duration = Duration::from_secs(1);

/// The memory of a volume, with its description.
pub struct Kept {
    /// Describes the files.
    pub manifest: Manifest,
    /// The files themselves.
    pub memory: Memory,
    /// The connection to the memory holder, if there is one.
    link: Option<OwnedFd>,
}

impl Kept {
    /// Memory that no memory holder has yet.
    pub fn fresh(manifest: Manifest, memory: Memory) -> Self {
        Self { manifest, memory, link: None }
    }

    /// Asks the memory holder that listens on `socket` for its memory; `None` if there is none.
    /// From now on the memory holder takes this process for the daemon, as long as the connection
    /// lasts.
    ///
    /// # Errors
    /// The memory holder does not answer, or uses another version.
    pub fn find(socket: &Path) -> Result<Option<Self>> {
        let Some(link) = reach(socket)? else { return Ok(None) };
        send(&link, Say::Give, &[])?;
        let what = || format!("the memory holder on {} does not answer", socket.display());
        match receive(&link)? {
            Some((Answer::Given { manifest, names }, files)) if names.len() == files.len() => {
                let memory = Memory::inherited(names.into_iter().zip(files).collect());
                Ok(Some(Self { manifest, memory, link: Some(link) }))
            }
            Some((Answer::Failed { why }, _)) => Err(Error::failure(why)),
            _ => Err(Error::failure(what())),
        }
    }

    /// Whether a memory holder listens on `socket`. Does not block: a busy memory holder counts,
    /// too.
    pub fn is_there(socket: &Path) -> bool {
        use rustix::io::Errno;
        let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
        let link = socket_with(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None);
        let (Ok(link), Ok(address)) = (link, SocketAddrUnix::new(socket)) else { return false };
        matches!(connect(&link, &address), Ok(()) | Err(Errno::AGAIN))
    }
}

/// Ends the memory holder that listens on `socket`, and so frees its memory.
///
/// # Errors
/// The memory holder does not answer.
pub fn end(socket: &Path) -> Result<()> {
    let Some(link) = reach(socket)? else {
        let _ = std::fs::remove_file(socket); // the socket of a memory holder that died
        return Ok(());
    };
    send(&link, Say::End, &[])?;
    match receive(&link)? {
        Some((Answer::Failed { why }, _)) => Err(Error::failure(why)),
        _ => Ok(()),
    }
}

fn reach(socket: &Path) -> Result<Option<OwnedFd>> {
    use rustix::io::Errno;
    let what = || format!("cannot reach the memory holder on {}", socket.display());
    let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
    let link = socket_with(kind.0, kind.1, kind.2, None).context(what())?;
    let address = SocketAddrUnix::new(socket).context(what())?;
    // Connecting waits, too, while too many others do.
    bound(&link, PATIENCE)?;
    match rustix::io::retry_on_intr(|| connect(&link, &address)) {
        Err(Errno::NOENT | Errno::CONNREFUSED) => Ok(None),
        Err(e) => Err(e).context(what()),
        Ok(()) => Ok(Some(link)),
    }
}

/// The memory holder of a running daemon. If it dies, another one is started.
pub struct MemoryHolder {
    watch: Arc<Watch>,
    thread: Option<JoinHandle<()>>,
}

struct Watch {
    manifest: Manifest,
    memory: Memory,
    socket: PathBuf,
    now: Mutex<Option<Link>>,
}

/// A connection to a memory holder; it ends when either side ends.
struct Link {
    socket: Arc<OwnedFd>,
    /// `None` if an earlier daemon started the memory holder.
    child: Option<Child>,
}

impl Link {
    /// Ends a memory holder that is dead or no longer needed. One that an earlier daemon started
    /// ends by itself: it has neither a daemon nor a socket for the next one.
    fn end(&mut self) {
        let _ = shutdown(&*self.socket, Shutdown::Both); // the memory holder may be gone
        if let Some(child) = &mut self.child {
            let _ = child.kill(); // it may be gone, too
            let _ = child.wait();
        }
    }
}

impl MemoryHolder {
    /// Has memory kept: by the memory holder that it came from, or by a new one.
    ///
    /// # Errors
    /// The memory holder can't be started or reached.
    pub fn start(kept: Kept, socket: PathBuf) -> Result<Self> {
        let Kept { manifest, memory, link } = kept;
        let watch = Watch { manifest, memory, socket, now: Mutex::new(None) };
        let link = match link {
            Some(socket) => Link { socket: Arc::new(socket), child: None },
            None => watch.launch()?,
        };
        unbound(&link.socket)?;
        *watch.now.lock() = Some(link);
        let watch = Arc::new(watch);
        let watching = Arc::clone(&watch);
        let thread = std::thread::Builder::new()
            .name("ztier-holder".into())
            .spawn(move || watching.run())
            .context("cannot start a thread")?;
        Ok(Self { watch, thread: Some(thread) })
    }
}

impl MemoryHolder {
    /// Starts another memory holder if the socket of the present one was removed, because no later
    /// daemon would find it.
    ///
    /// # Errors
    /// No process can be started; then the present one goes on.
    pub fn renew(&self) -> Result<()> {
        self.watch.renew()
    }
}

impl Drop for MemoryHolder {
    /// Stops watching. The memory holder stays, and sees that the daemon is gone.
    fn drop(&mut self) {
        if let Some(link) = self.watch.now.lock().take() {
            let _ = shutdown(&*link.socket, Shutdown::Both); // the memory holder may be gone
        }
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            let _ = thread.join(); // the thread returns nothing
        }
    }
}

impl Watch {
    fn run(&self) {
        loop {
            let Some(socket) = self.now.lock().as_ref().map(|link| link.socket.clone()) else {
                return;
            };
            // The memory holder sends nothing here: only the end of the connection comes.
            match recv(&*socket, &mut [0u8; 1], RecvFlags::empty()) {
                Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
                _ => self.replace(&socket),
            }
        }
    }

    /// Starts another memory holder in place of the dead one behind `socket`, unless another thread
    /// has done so or watching has ended.
    fn replace(&self, socket: &Arc<OwnedFd>) {
        let mut now = self.now.lock();
        let Some(dead) = now.as_mut().filter(|link| Arc::ptr_eq(&link.socket, socket)) else {
            return;
        };
        dead.end();
        match self.launch() {
            Ok(link) => {
                let _ = unbound(&link.socket); // on failure, `recv` times out and is repeated
                crate::daemon::log::line("the memory holder was gone; there is another");
                *now = Some(link);
            }
            Err(e) => {
                crate::daemon::log::line(&format!("the memory holder is gone: {e}"));
                drop(now);
                std::thread::park_timeout(RETRY);
            }
        }
    }

    /// Replaces a memory holder whose socket was removed.
    fn renew(&self) -> Result<()> {
        let mut now = self.now.lock();
        if Kept::is_there(&self.socket) {
            return Ok(());
        }
        let Some(link) = now.as_mut() else { return Ok(()) };
        // The new memory holder starts first: until then the old one keeps the memory, although no
        // other process can find it.
        let new = self.launch()?;
        unbound(&new.socket)?;
        std::mem::replace(link, new).end();
        Ok(())
    }

    fn launch(&self) -> Result<Link> {
        let volume = &self.manifest.volume;
        let what = || format!("cannot start the memory holder of volume `{volume}`");
        let kind = (AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC);
        let (ours, theirs) = socketpair(kind.0, kind.1, kind.2, None).context(what())?;
        let mut child = Command::new("/proc/self/exe")
            .arg0(shown_as())
            .args(["keeper", volume])
            .current_dir("/")
            .stdin(theirs)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .env_remove("NOTIFY_SOCKET")
            .spawn()
            .context(what())?;
        match self.deposit(&ours) {
            Ok(()) => Ok(Link { socket: Arc::new(ours), child: Some(child) }),
            Err(e) => {
                let _ = child.kill(); // the memory holder may have ended
                let _ = child.wait();
                Err(Error::failure(format!("{}: {e}", what())))
            }
        }
    }

    fn deposit(&self, link: &OwnedFd) -> Result<()> {
        bound(link, PATIENCE)?;
        let files = self.memory.files();
        let names = files.iter().map(|(name, _)| name.clone()).collect();
        let (manifest, socket) = (self.manifest.clone(), self.socket.clone());
        let descriptors: Vec<_> = files.iter().map(|(_, file)| file.as_fd()).collect();
        send(link, Say::Keep { manifest, names, socket }, &descriptors)?;
        match receive(link)? {
            Some((Answer::Done, _)) => Ok(()),
            Some((Answer::Failed { why }, _)) => Err(Error::failure(why)),
            _ => Err(Error::failure("it ended at once")),
        }
    }
}

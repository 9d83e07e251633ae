//! The side that answers: one thread that accepts, one short-lived thread for each connection.

use super::protocol::{Envelope, LONGEST_REQUEST, Reply, Request, VERSION, receive, send};
use crate::error::{Context, Error, Result};
use rustix::event::{PollFd, PollFlags, poll};
use std::io::ErrorKind;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// How long a client may take to ask, and to take the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// How many clients are heard at once; more have to wait.
const MOST_CLIENTS: usize = 16;

/// How long nobody is heard after one could not be.
const PAUSE: Duration = Duration::from_millis(100);

/// What is to be done once an answer is out, or could not be delivered.
pub type After = Option<Box<dyn FnOnce()>>;

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    /// Answers one request, and says in `after` what that leads to, well or not.
    ///
    /// # Errors
    /// Whatever the person who asked shall read.
    fn handle(&self, request: Request, after: &mut After) -> Result<serde_json::Value>;
}

/// A listening control socket. It lives until [`Server::stop`].
pub struct Server {
    thread: thread::JoinHandle<()>,
    stop: rustix::fd::OwnedFd,
}

impl Server {
    /// Listens on `path` (mode 0600). The caller makes sure that no living daemon does.
    ///
    /// # Errors
    /// When the socket can't be made.
    pub fn start(path: &Path, handler: Arc<dyn Handler>) -> Result<Self> {
        let what = || format!("cannot listen on {}", path.display());
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e).context(what()),
            _ => {}
        }
        let listener = UnixListener::bind(path).context(what())?;
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(0o600)).context(what())?;
        listener.set_nonblocking(true).context(what())?;
        let (stopped, stop) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context(what())?;
        let thread = thread::Builder::new()
            .name("ztier-control".into())
            .spawn(move || accept(&listener, &stopped, &handler))
            .context(what())?;
        Ok(Self { thread, stop })
    }

    /// Takes no more requests; those under way are still answered.
    pub fn stop(self) {
        drop(self.stop);
        // A panic in that thread has been printed already and takes nothing else with it.
        let _ = self.thread.join();
    }
}

fn accept(listener: &UnixListener, stopped: &rustix::fd::OwnedFd, handler: &Arc<dyn Handler>) {
    let clients = Arc::new(AtomicUsize::new(0));
    loop {
        let mut fds =
            [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::empty())];
        match poll(&mut fds, None) {
            Ok(_) if !fds[1].revents().is_empty() => return,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
            Err(_) => {
                // Short of descriptors or memory, it would fail again at once.
                thread::sleep(PAUSE);
                continue;
            }
        };
        if clients.fetch_add(1, Ordering::AcqRel) >= MOST_CLIENTS {
            clients.fetch_sub(1, Ordering::AcqRel);
            // Closing tells the client; waiting here would let silent ones lock out the others.
            drop(stream);
            continue;
        }
        let (handler, count) = (Arc::clone(handler), Arc::clone(&clients));
        let spawned = thread::Builder::new().name("ztier-client".into()).spawn(move || {
            let _leave = Leave(count);
            serve(stream, handler.as_ref());
        });
        if spawned.is_err() {
            clients.fetch_sub(1, Ordering::AcqRel);
        }
    }
}

struct Leave(Arc<AtomicUsize>);

impl Drop for Leave {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn serve(mut stream: UnixStream, handler: &dyn Handler) {
    let reply = |stream: &mut UnixStream, result| {
        // A client that has gone does not want to know.
        let deadline = Instant::now() + PATIENCE;
        let _ = send(stream, &Envelope { v: VERSION, body: Reply::of(result) }, deadline);
    };
    if let Err(e) = admit(&stream) {
        return reply(&mut stream, Err(e));
    }
    match receive::<Request>(&mut stream, LONGEST_REQUEST, Instant::now() + PATIENCE) {
        Ok(request) => {
            let mut after = None;
            let result = handler.handle(request, &mut after);
            reply(&mut stream, result);
            if let Some(after) = after {
                after();
            }
        }
        Err(e) => reply(&mut stream, Err(e)),
    }
}

fn admit(stream: &UnixStream) -> Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream).context("cannot see who asks")?;
    if peer.uid.is_root() || peer.uid == rustix::process::geteuid() {
        return Ok(());
    }
    Err(Error::failure(format!("user {} may not control this volume", peer.uid.as_raw()))
        .mend("ask as the user who started it, or as root"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::{Client, Version};
    use super::*;
    use std::io::{Read, Write};

    struct Echo;

    impl Handler for Echo {
        fn handle(&self, request: Request, _: &mut After) -> Result<serde_json::Value> {
            match request {
                Request::Ping => {
                    let version = Version { version: "1".into(), pid: 7 };
                    serde_json::to_value(version).context("encode")
                }
                Request::Holders => Err(Error::usage("wrong").mend("right")),
                _ => Err(Error::failure("broken")),
            }
        }
    }

    fn raw(path: &Path, text: &[u8]) -> String {
        let mut stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        let _ = stream.write_all(text);
        let mut reply = String::new();
        let _ = stream.read_to_string(&mut reply);
        reply
    }

    #[test]
    fn questions_and_answers() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let server = Server::start(&path, Arc::new(Echo)).unwrap();
        let client = Client::new(&path);
        let patience = Duration::from_secs(20);
        let version: Version = client.ask(&Request::Ping, patience).unwrap();
        assert_eq!(version.pid, 7);
        let error = client.ask::<Vec<String>>(&Request::Holders, patience).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.exit_status()), ("wrong; right", 2));
        let down = Request::Down { discard: true, force: false };
        assert_eq!(client.ask::<()>(&down, patience).unwrap_err().exit_status(), 1);

        assert!(raw(&path, b"{\"v\":2,\"op\":\"ping\"}\n").contains("version 2"));
        assert!(raw(&path, b"{\"v\":1,\"op\":\"fly\"}\n").contains("not understood"));
        assert!(raw(&path, b"\n").contains("not understood"));
        let more = b"{\"v\":1,\"op\":\"down\",\"discard\":true,\"force\":true,\"x\":1}\n";
        assert!(raw(&path, more).contains("not understood"));
        assert!(raw(&path, &vec![b'x'; LONGEST_REQUEST + 4097]).contains("longer than"));
        server.stop();
        assert!(client.ask::<Version>(&Request::Ping, patience).is_err());
    }
}

//! The side that answers: a thread that accepts, a permanent thread that answers, and a short-lived
//! thread for each connection that arrives while that one is busy. Most connections come one at a
//! time, from a client that watches, and a new thread costs as much as the answer.

use super::asking::Asking;
use super::kind::MOST_CLIENTS;
use super::protocol::{Envelope, Reply, Request, send};
use crate::error::{Context, Error, Result};
use crate::places::{Place, Places};
use crate::private;
use rustix::event::{PollFd, PollFlags, poll};
use rustix::fd::OwnedFd;
use rustix::net::{SocketFlags, SocketType};
use serde_json::value::RawValue;
use std::io::ErrorKind;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{TrySendError, sync_channel};
use std::thread;
use std::time::{Duration, Instant};

/// How long a client may take to send its request, and to receive the answer.
const PATIENCE: Duration = Duration::from_secs(5);
/// The most connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Name of the threads that answer.
const CLIENT: &str = "ztier-client";
/// How long the server accepts no client after an accept failed.
const PAUSE: Duration = Duration::from_millis(100);

/// Carries requests out.
pub trait Handler: Send + Sync + 'static {
    /// Carries one request out, and returns the answer. A request that changes something
    /// ([`Request::changes`]) does so only after [`Asking::agree`].
    ///
    /// # Errors
    /// Any failure; its text is for the user.
    fn handle(&self, request: Request, asking: &mut Asking<'_>) -> Result<Box<RawValue>>;
}

/// A listening control socket. It lives until [`Server::stop`].
pub struct Server {
    thread: thread::JoinHandle<()>,
    stop: OwnedFd,
}

impl Server {
    /// Listens on `path` (mode 0600). The caller makes sure that no living daemon does.
    ///
    /// # Errors
    /// The socket can't be made.
    pub fn start(path: &Path, handler: Arc<dyn Handler>) -> Result<Self> {
        let what = || format!("cannot listen on {}", path.display());
        match std::fs::remove_file(path) {
            Err(e) if e.kind() != ErrorKind::NotFound => return Err(e).context(what()),
            _ => {}
        }
        let kind = (SocketType::STREAM, SocketFlags::NONBLOCK);
        let socket = private::socket(path, kind.0, kind.1).context(what())?;
        rustix::net::listen(&socket, BACKLOG).context(what())?;
        let listener = UnixListener::from(socket);
        let (stopped, stop) =
            rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).context(what())?;
        let thread = thread::Builder::new()
            .name("ztier-control".into())
            .spawn(move || accept(&listener, &stopped, &handler))
            .context(what())?;
        Ok(Self { thread, stop })
    }

    /// Accepts no more requests; those being carried out are still answered.
    pub fn stop(self) {
        drop(self.stop);
        // A panic in that thread was printed already and affects nothing else.
        let _ = self.thread.join();
    }
}

fn accept(listener: &UnixListener, stopped: &OwnedFd, handler: &Arc<dyn Handler>) {
    let places = Places::new(MOST_CLIENTS);
    let mut spare = Spare::new(listener);
    // A channel of capacity 0: after a successful send the thread serves the caller at once.
    let (usual, given) = sync_channel::<Caller>(0);
    let own = Arc::clone(handler);
    let stays = move || given.iter().for_each(|caller| serve(&caller, own.as_ref()));
    // If this thread cannot be started, each connection gets its own.
    let _ = thread::Builder::new().name(CLIENT.into()).spawn(stays);
    loop {
        let mut fds =
            [PollFd::new(listener, PollFlags::IN), PollFd::new(stopped, PollFlags::empty())];
        match poll(&mut fds, None) {
            Ok(_) if !fds[1].revents().is_empty() => return,
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(_) => return,
        }
        if !places.make_room() {
            continue;
        }
        let stream = match listener.accept() {
            Ok((stream, _)) => stream,
            Err(e) if e.kind() == ErrorKind::WouldBlock => continue,
            Err(_) => {
                if !places.give_up_one() && !spare.refuse(listener) {
                    // Short of descriptors or memory, the next accept would fail, too.
                    thread::sleep(PAUSE);
                }
                continue;
            }
        };
        if let Err(TrySendError::Full(caller) | TrySendError::Disconnected(caller)) =
            usual.try_send(places.take(stream))
        {
            let handler = Arc::clone(handler);
            let serve = move || serve(&caller, handler.as_ref());
            // If no thread can be started, the connection is closed.
            let _ = thread::Builder::new().name(CLIENT.into()).spawn(serve);
        }
    }
}

/// A descriptor in reserve: closed for a moment to accept and refuse a client when no other is
/// free.
struct Spare(Option<UnixListener>);

impl Spare {
    /// The reserve may be any descriptor.
    fn new(listener: &UnixListener) -> Self {
        Self(listener.try_clone().ok())
    }

    /// Refuses a client. Returns whether one was refused. Does not read its request: it may be
    /// silent.
    fn refuse(&mut self, listener: &UnixListener) -> bool {
        let refused = self.0.take().and_then(|spare| {
            drop(spare);
            listener.accept().ok()
        });
        if let Some((stream, _)) = &refused {
            let full = Error::degraded("the daemon has no file descriptor left")
                .hint("end connections to it, or raise its limit (`ulimit -n`, LimitNOFILE)");
            let deadline = Instant::now() + PAUSE;
            let _ = send(stream, &Envelope::new(Reply::of(Err(full))), deadline);
        }
        let done = refused.is_some();
        drop(refused);
        *self = Self::new(listener);
        done
    }
}

/// A client that has a place.
type Caller = Place<UnixStream>;

fn serve(caller: &Caller, handler: &dyn Handler) {
    let deadline = Instant::now() + PATIENCE;
    let admitted = admit(caller.socket());
    let mut after = None;
    let answer = admitted.and_then(|()| {
        let (request, mut asking) = Asking::hear(caller, deadline)?;
        let answer = handler.handle(request, &mut asking);
        after = asking.into_after();
        answer
    });
    caller.answers();
    let deadline = Instant::now() + PATIENCE;
    // A client that has gone needs no answer.
    let _ = send(caller.socket(), &Envelope::new(Reply::of(answer)), deadline);
    if let Some(after) = after {
        after();
    }
}

fn admit(stream: &UnixStream) -> Result<()> {
    let peer = rustix::net::sockopt::socket_peercred(stream).context("cannot see who asks")?;
    if peer.uid.is_root() || peer.uid == rustix::process::geteuid() {
        return Ok(());
    }
    Err(Error::failure(format!("user {} may not control this volume", peer.uid.as_raw()))
        .hint("ask as the user who started it, or as root"))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::kind::MOST_ALIKE;
    use super::super::protocol::{LONGEST_REQUEST, boot_ms};
    use super::super::{Client, Version};
    use super::*;
    use std::io::{Read, Write};
    use std::sync::atomic::{AtomicUsize, Ordering};

    /// Counts the changes that it carries out. A drain lasts as long as its caller waits.
    #[derive(Default)]
    struct Echo(AtomicUsize);

    impl Handler for Echo {
        fn handle(&self, request: Request, asking: &mut Asking<'_>) -> Result<Box<RawValue>> {
            match request {
                Request::Ping => {
                    let version = Version { version: "1".into(), pid: 7 };
                    serde_json::value::to_raw_value(&version).context("encode")
                }
                Request::Holders => Err(Error::usage("wrong").hint("right")),
                Request::Swapoff { .. } => {
                    asking.agree()?;
                    self.0.fetch_add(1, Ordering::AcqRel);
                    serde_json::value::to_raw_value(&()).context("encode")
                }
                Request::Drain => {
                    self.0.fetch_add(1, Ordering::AcqRel);
                    while !asking.is_gone() {
                        thread::sleep(Duration::from_millis(1));
                    }
                    Err(Error::failure("gone"))
                }
                _ => Err(Error::failure("broken")),
            }
        }
    }

    #[test]
    fn requests_that_last_leave_places_and_keep_theirs() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let echo = Arc::new(Echo::default());
        let server = Server::start(&path, Arc::clone(&echo) as Arc<dyn Handler>).unwrap();
        let client = Client::new(&path);
        let patience = Duration::from_secs(20);
        let drains: Vec<_> = (0..MOST_ALIKE)
            .map(|_| {
                let mut stream = UnixStream::connect(&path).unwrap();
                stream.write_all(b"{\"v\":3,\"op\":\"drain\"}\n").unwrap();
                stream
            })
            .collect();
        let until = Instant::now() + patience;
        while echo.0.load(Ordering::Acquire) < MOST_ALIKE {
            assert!(Instant::now() < until);
            thread::sleep(Duration::from_millis(1));
        }
        let refused = client.ask::<()>(&Request::Drain, patience).unwrap_err();
        assert_eq!(refused.status(), crate::error::Status::Busy, "{refused}");
        // Silent clients take no place from requests being carried out.
        let silent: Vec<_> = (0..100).map(|_| UnixStream::connect(&path).unwrap()).collect();
        client.ask::<Version>(&Request::Ping, patience).unwrap();
        client.ask::<()>(&Request::Swapoff { force: true }, patience).unwrap();
        for mut drain in drains {
            drain.set_nonblocking(true).unwrap();
            let kind = drain.read(&mut [0]).unwrap_err().kind();
            assert_eq!(kind, ErrorKind::WouldBlock, "it was cut off");
        }
        drop(silent);
        server.stop();
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
        let server = Server::start(&path, Arc::new(Echo::default())).unwrap();
        let client = Client::new(&path);
        let patience = Duration::from_secs(20);
        let version: Version = client.ask(&Request::Ping, patience).unwrap();
        assert_eq!(version.pid, 7);
        let error = client.ask::<Vec<String>>(&Request::Holders, patience).unwrap_err();
        assert_eq!((error.to_string().as_str(), error.exit_status()), ("wrong; right", 2));
        let down = Request::Down { discard: true, force: false, drain: false };
        assert_eq!(client.ask::<()>(&down, patience).unwrap_err().exit_status(), 1);

        // Two silent clients, one of them on the permanent thread, delay no other client.
        let silent = [(); 2].map(|()| UnixStream::connect(&path).unwrap());
        let begun = Instant::now();
        client.ask::<Version>(&Request::Ping, patience).unwrap();
        assert!(begun.elapsed() < PATIENCE / 2);
        drop(silent);

        assert!(raw(&path, b"{\"v\":9,\"op\":\"ping\"}\n").contains("version 9"));
        assert!(raw(&path, b"{\"v\":3,\"op\":\"fly\"}\n").contains("not understood"));
        assert!(raw(&path, b"\n").contains("not understood"));
        let more = b"{\"v\":3,\"op\":\"down\",\"discard\":true,\"force\":true,\"x\":1}\n";
        assert!(raw(&path, more).contains("not understood"));
        assert!(raw(&path, &vec![b'x'; LONGEST_REQUEST + 4097]).contains("longer than"));
        server.stop();
        assert!(client.ask::<Version>(&Request::Ping, patience).is_err());
    }

    /// Cases: what the caller sends before it hangs up, whether it waits for `ready`, and whether
    /// the request is carried out.
    #[test]
    fn what_was_given_up_is_not_carried_out() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let echo = Arc::new(Echo::default());
        let server = Server::start(&path, Arc::clone(&echo) as Arc<dyn Handler>).unwrap();
        let carried_out = |n: usize| {
            let until = Instant::now() + Duration::from_secs(20);
            while echo.0.load(Ordering::Acquire) < n && Instant::now() < until {
                std::thread::sleep(Duration::from_millis(1));
            }
            // Wait a moment: no more than `n` may be carried out.
            std::thread::sleep(Duration::from_millis(50));
            assert_eq!(echo.0.load(Ordering::Acquire), n);
        };
        let ask = |until: &str| {
            let mut stream = UnixStream::connect(&path).unwrap();
            stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
            let line = format!("{{\"v\":3,{until}\"op\":\"swapoff\",\"force\":true}}\n");
            stream.write_all(line.as_bytes()).unwrap();
            stream
        };
        let hear = |stream: &mut UnixStream| {
            let mut line = Vec::new();
            let mut byte = [0];
            while stream.read(&mut byte).unwrap() > 0 && byte[0] != b'\n' {
                line.push(byte[0]);
            }
            String::from_utf8(line).unwrap()
        };
        let go = b"{\"v\":3,\"op\":\"go\"}\n";
        // The caller hangs up before it has sent `go`.
        let mut stream = ask("");
        assert_eq!(hear(&mut stream), "{\"v\":3,\"ready\":null}");
        drop(stream);
        carried_out(0);
        let mut stream = ask("");
        hear(&mut stream);
        stream.write_all(b"{\"v\":3,\"op\":\"ping\"}\n").unwrap();
        assert!(hear(&mut stream).contains("nothing was changed"));
        carried_out(0);
        // An early `go` counts until the deadline.
        let mut stream = ask(&format!("\"until_ms\":{},", boot_ms()));
        let _ = stream.write_all(go); // the server may have hung up
        assert!(hear(&mut stream).contains("the deadline of the request has passed"));
        carried_out(0);
        let mut stream = ask(&format!("\"until_ms\":{},", boot_ms() + 20_000));
        stream.write_all(go).unwrap();
        hear(&mut stream);
        assert_eq!(hear(&mut stream), "{\"v\":3,\"ok\":null}");
        carried_out(1);
        // After `go`, hanging up cancels nothing.
        let mut stream = ask("");
        hear(&mut stream);
        stream.write_all(go).unwrap();
        drop(stream);
        carried_out(2);
        Client::new(&path).ask::<()>(&Request::Swapoff { force: true }, PATIENCE).unwrap();
        carried_out(3);
        server.stop();
    }
}

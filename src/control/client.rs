//! The side that asks.

use super::protocol::{Envelope, LONGEST_REPLY, Reply, Request, Word, boot_ms, receive_next, send};
use crate::error::{Context, Error, Result};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Interval between attempts to reach a daemon whose queue is full.
const RETRY: Duration = Duration::from_millis(5);

/// A client of one daemon; every request uses its own connection.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// A client of the daemon that listens on `socket`.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// Sends `request`, and waits at most `patience` for the answer; if the request changes
    /// something, as long again after `go`.
    ///
    /// # Errors
    /// The daemon's own error; or it can't be reached or does not answer in time. The error says
    /// whether anything was changed.
    pub fn ask<T: DeserializeOwned>(&self, request: &Request, patience: Duration) -> Result<T> {
        self.ask_telling(request, patience, &|_| {})
    }

    /// As [`Self::ask`]. Calls `open(true)` right before `go`, and `open(false)` after the answer.
    /// Between the two, the request may be carried out even if no answer arrives.
    ///
    /// # Errors
    /// As [`Self::ask`].
    pub fn ask_telling<T: DeserializeOwned>(
        &self,
        request: &Request,
        patience: Duration,
        open: &dyn Fn(bool),
    ) -> Result<T> {
        let what = || format!("cannot ask the daemon on {}", self.socket.display());
        let deadline = Instant::now() + patience;
        let stream = self.reach(deadline).context(what())?;
        let changes = request.changes();
        let until_ms = changes.then(|| boot_ms() + patience.as_millis() as u64);
        let question = Envelope { until_ms, ..Envelope::new(request) };
        let mut rest = Vec::new();
        let mut hear =
            |deadline| receive_next::<Reply>(&stream, &mut rest, LONGEST_REPLY, deadline);
        let sent = send(&stream, &question, deadline);
        // A daemon that refuses before it reads has sent its reason.
        let first = hear(deadline)
            .map_err(|e| sent.err().unwrap_or(e))
            .context(what())
            // Dropping the connection revokes the request.
            .map_err(|e| if changes { e.but("nothing was changed") } else { e })?;
        let last = match first {
            Reply::Ready(()) => {
                open(true);
                let deadline = Instant::now() + patience;
                send(&stream, &Envelope::new(Word::Go {}), deadline)
                    .and_then(|()| hear(deadline))
                    .inspect(|_| open(false))
                    .map_err(|e| self.begun(&e))?
            }
            reply => reply,
        };
        serde_json::from_str(last.into_result()?.get()).context(what())
    }

    /// The error of a request that got its `go`, but no answer.
    fn begun(&self, e: &Error) -> Error {
        let socket = self.socket.display();
        Error::busy(format!("the daemon on {socket} was told to go ahead, and then: {e}"))
            .hint("it does that as soon as it can: look with `ztier list` what came of it")
    }

    /// Connects as soon as the daemon's queue has room.
    fn reach(&self, deadline: Instant) -> rustix::io::Result<UnixStream> {
        loop {
            match connect(&self.socket) {
                // The queue is full for now.
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(RETRY),
                connected => {
                    let stream = connected?;
                    // Each wait has its own bound.
                    rustix::io::ioctl_fionbio(&stream, false)?;
                    return Ok(stream);
                }
            }
        }
    }
}

/// Connects at once or fails (`EAGAIN`: the queue is full). The returned socket does not block.
pub(super) fn connect(socket: &Path) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let ours = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&ours, &SocketAddrUnix::new(socket)?)?;
    Ok(ours.into())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::error::Status;
    use std::cell::Cell;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;

    #[test]
    fn an_error_says_whether_anything_was_changed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let patience = Duration::from_millis(100);
        let client = Client::new(&path);
        let ask = || {
            let unanswered = Cell::new(false);
            let request = Request::Swapoff { force: false };
            let error = client
                .ask_telling::<()>(&request, patience, &|open| unanswered.set(open))
                .unwrap_err();
            (error, unanswered.get())
        };
        // The daemon takes the request, and sends nothing.
        let (error, unanswered) = ask();
        assert!(error.to_string().contains("in time, and nothing was changed; "), "{error}");
        assert_eq!((error.status(), unanswered), (Status::Failed, false));
        drop(listener.accept().unwrap());
        // The daemon sends `ready`, receives `go`, and sends nothing more.
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut said = Vec::new();
            let mut bytes = [0; 4096];
            let mut hear = |stream: &mut UnixStream| {
                let n = stream.read(&mut bytes).unwrap();
                said.extend_from_slice(&bytes[..n]);
            };
            hear(&mut stream);
            stream.write_all(b"{\"v\":3,\"ready\":null}\n").unwrap();
            hear(&mut stream);
            // Waits until the client has gone.
            hear(&mut stream);
            String::from_utf8(said).unwrap()
        });
        let (error, unanswered) = ask();
        assert!(error.to_string().contains("was told to go ahead, and then: no answer"), "{error}");
        assert_eq!((error.status(), unanswered), (Status::Busy, true));
        let said = server.join().unwrap();
        assert!(said.ends_with("{\"v\":3,\"op\":\"go\"}\n"), "{said}");
        // Both sides use the same clock.
        assert!(said.starts_with("{\"v\":3,\"until_ms\":"), "{said}");
    }
}

//! A non-blocking question to a daemon: asked at once, answered later or never.
//!
//! Invariant: nothing here blocks, whatever the daemon does: a stopped daemon queues connections
//! until its queue is full, and answers none.

use super::client::connect;
use super::protocol::{Envelope, LONGEST_REPLY, Request, VERSION};
use crate::error::{Context, Error, Result, Status};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Instant;

/// The most bytes of a usual answer.
const USUAL: usize = 8 << 10;

/// An open question. Dropping it hangs up.
#[derive(Debug)]
pub struct Question {
    stream: UnixStream,
    received: Vec<u8>,
    asked: Instant,
}

/// An answer on the wire.
#[derive(Deserialize)]
struct Answer<T> {
    v: u32,
    ok: Option<T>,
    error: Option<Refusal>,
}

#[derive(Deserialize)]
struct Refusal {
    status: Status,
    text: String,
}

impl Question {
    /// Sends `request` to the daemon that listens on `socket`.
    ///
    /// # Errors
    /// The daemon can't be reached, or its queue is full.
    pub fn ask(socket: &Path, request: &Request) -> Result<Self> {
        let what = || format!("cannot ask the daemon on {}", socket.display());
        let mut stream = connect(socket).context(what())?;
        let mut line = serde_json::to_vec(&Envelope::new(request)).context(what())?;
        line.push(b'\n');
        // An empty socket has room for the whole line; otherwise something is very wrong.
        match stream.write_all(&line) {
            // A daemon that refuses before it reads has sent its reason.
            Err(e) if matches!(e.kind(), ErrorKind::BrokenPipe | ErrorKind::ConnectionReset) => {}
            written => written.context(what())?,
        }
        Ok(Self { stream, received: Vec::with_capacity(USUAL), asked: Instant::now() })
    }

    /// The time when it was asked.
    pub fn asked(&self) -> Instant {
        self.asked
    }

    /// Reads what has arrived; `None` while the answer is incomplete. After an answer or an error
    /// there is nothing more to read.
    ///
    /// # Errors
    /// The daemon's own error; or it has hung up, or its answer is not understood.
    pub fn answer<T: DeserializeOwned>(&mut self) -> Result<Option<T>> {
        let begin = self.received.len();
        let read = (&self.stream).take(LONGEST_REPLY as u64 + 1).read_to_end(&mut self.received);
        if let Some(end) = self.received[begin..].iter().position(|byte| *byte == b'\n') {
            return understand(&self.received[..begin + end]).map(Some);
        }
        if self.received.len() > LONGEST_REPLY {
            return Err(Error::failure(format!(
                "a control message is longer than {LONGEST_REPLY} bytes"
            )));
        }
        match read {
            Ok(_) => Err(Error::failure("the daemon hung up before it had answered")),
            Err(e) if e.kind() == ErrorKind::WouldBlock => Ok(None),
            Err(e) => Err(e).context("control socket"),
        }
    }
}

impl AsFd for Question {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.stream.as_fd()
    }
}

fn understand<T: DeserializeOwned>(line: &[u8]) -> Result<T> {
    #[derive(Deserialize)]
    struct Spoken {
        v: u32,
    }
    let answer = match serde_json::from_slice::<Answer<T>>(line) {
        Ok(answer) if answer.v == VERSION => answer,
        found => {
            let spoken = serde_json::from_slice::<Spoken>(line).map(|spoken| spoken.v);
            if let Some(v) = spoken.ok().filter(|v| *v != VERSION) {
                return Err(Error::failure(format!(
                    "its daemon speaks version {v} of the control protocol, this ztier {VERSION}"
                ))
                .hint("use the ztier that started the volume, or take it down with that one"));
            }
            found.context("the daemon's answer is not understood")?
        }
    };
    match answer {
        Answer { ok: Some(value), .. } => Ok(value),
        Answer { error: Some(Refusal { status, text }), .. } => Err(Error::new(status, text)),
        _ => Err(Error::failure("the daemon's answer is not understood")),
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Version;
    use super::*;
    use std::os::unix::net::UnixListener;

    #[test]
    fn answers_in_pieces_and_none_at_all() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x.sock");
        assert!(Question::ask(&path, &Request::Ping).is_err());
        let listener = UnixListener::bind(&path).unwrap();
        let ask = || Question::ask(&path, &Request::Ping);
        let answered = |text: &[u8]| {
            let mut question = ask().unwrap();
            let (mut theirs, _) = listener.accept().unwrap();
            assert!(theirs.read(&mut [0; 256]).unwrap() > 10);
            for part in text.chunks(7) {
                assert!(question.answer::<Version>().unwrap().is_none());
                theirs.write_all(part).unwrap();
            }
            drop(theirs);
            question.answer::<Version>().map_err(|e| e.to_string())
        };
        let version =
            answered(b"{\"v\":3,\"ok\":{\"version\":\"9\",\"pid\":7}}\n").unwrap().unwrap();
        assert_eq!((version.pid, version.version.as_str()), (7, "9"));
        let error = answered(b"{\"v\":3,\"error\":{\"status\":\"failed\",\"text\":\"busy\"}}\n");
        assert_eq!(error.unwrap_err(), "busy");
        assert!(answered(b"{\"v\":4,\"ok\":{}}\n").unwrap_err().contains("version 4"));
        assert!(answered(b"{\"v\":3,\"ok\":{}}\n").unwrap_err().contains("not understood"));
        assert!(answered(b"{\"v\":3,").unwrap_err().contains("hung up"));
        assert!(answered(&vec![b'x'; LONGEST_REPLY + 1]).unwrap_err().contains("longer than"));
        // A daemon that accepts nothing is asked until its queue is full; then asking fails at
        // once.
        let asked: Vec<_> = std::iter::from_fn(|| ask().ok()).take(5000).collect();
        assert!(!asked.is_empty() && asked.len() < 5000);
    }
}

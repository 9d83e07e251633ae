//! The side that asks.

use super::protocol::{Envelope, LONGEST_REPLY, Reply, Request, VERSION, receive, send};
use crate::error::{Context, Result};
use rustix::io::Errno;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use serde::de::DeserializeOwned;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// How often a daemon is tried whose queue is full.
const RETRY: Duration = Duration::from_millis(5);

/// A way to ask one daemon; every question is a connection of its own.
#[derive(Clone, Debug)]
pub struct Client {
    socket: PathBuf,
}

impl Client {
    /// Asks the daemon that listens on `socket`.
    pub fn new(socket: &Path) -> Self {
        Self { socket: socket.to_owned() }
    }

    /// Asks, and waits at most `patience` for the answer.
    ///
    /// # Errors
    /// The daemon's own error, or that it can't be reached or does not answer in time.
    pub fn ask<T: DeserializeOwned>(&self, request: &Request, patience: Duration) -> Result<T> {
        let what = || format!("cannot ask the daemon on {}", self.socket.display());
        let deadline = Instant::now() + patience;
        let mut stream = loop {
            match connect(&self.socket) {
                // It takes no more for now.
                Err(Errno::AGAIN) if Instant::now() < deadline => std::thread::sleep(RETRY),
                connected => break connected.context(what())?,
            }
        };
        stream.set_nonblocking(false).context(what())?;
        send(&mut stream, &Envelope { v: VERSION, body: request }, deadline).context(what())?;
        let reply: Reply = receive(&mut stream, LONGEST_REPLY, deadline).context(what())?;
        serde_json::from_str(reply.into_result()?.get()).context(what())
    }
}

/// Connects at once or not at all (`EAGAIN`: too many others wait there). What comes of it does not
/// block either.
pub(super) fn connect(socket: &Path) -> rustix::io::Result<UnixStream> {
    let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
    let ours = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    rustix::net::connect(&ours, &SocketAddrUnix::new(socket)?)?;
    Ok(ours.into())
}

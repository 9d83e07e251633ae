//! The side that asks.

use super::protocol::{Envelope, LONGEST_REPLY, Reply, Request, VERSION, receive, send};
use crate::error::{Context, Result};
use serde::de::DeserializeOwned;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

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
        let mut stream = UnixStream::connect(&self.socket).context(what())?;
        send(&mut stream, &Envelope { v: VERSION, body: request }, deadline).context(what())?;
        let reply: Reply = receive(&mut stream, LONGEST_REPLY, deadline).context(what())?;
        serde_json::from_value(reply.into_result()?).context(what())
    }
}

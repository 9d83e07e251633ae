//! The NBD export: our own server of the NBD protocol, one thread a connection, run to completion.
//!
//! A request is received, carried out by the volume and answered on one thread; nothing is handed
//! over. `docs/nbd.md` says what of the protocol is supported.
//!
//! Invariants:
//! - The number of connections, of threads and of buffered bytes is bounded: a base for each
//!   connection, and one share for the large requests of all.
//! - A client that has not finished its handshake is cut off after [`Limits::handshake`]; one that
//!   stands still within a large request, after [`Limits::stall`] if others wait for the memory.
//! - A client enters transmission under the lock under which [`Server::stop`] looks for clients:
//!   after a granted stop no client enters, and a refused stop changes nothing for any client.
//! - When `stop` has returned, no thread of the server touches the device any more, but for one
//!   that was cut off within a request that takes longer than [`Limits::closing`]: it ends with
//!   the process, and does not tell the client that the request was carried out.

mod connection;
mod handshake;
mod listen;
pub mod proto;
mod share;
mod transmission;
mod uri;
mod wire;

pub use listen::{Listen, hand_on, take_over};

use crate::device::{Device, THREADS_MAX};
use crate::error::{Context, Error, Result};
use crate::export::{Export, Leftover};
use connection::Clients;
use listen::Listener;
use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec};
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// The default limit of connections.
pub const MAX_CONNECTIONS: usize = 64;
const _: () = assert!(cfg!(shuttle) || MAX_CONNECTIONS <= THREADS_MAX);

/// What is served, and where.
#[derive(Clone, Debug)]
pub struct Options {
    /// The name of the export, at most 4096 bytes; clients that name none get it too.
    pub name: String,
    /// Where clients find it, at least one place.
    pub listen: Vec<Listen>,
    /// Most connections at a time, at least 1 ([`MAX_CONNECTIONS`]); more are closed at once.
    pub max_connections: usize,
}

impl Options {
    /// What a server with these options will leave in the system; the caller notes it first.
    pub fn leftovers(&self) -> Vec<Leftover> {
        let unix = self.listen.iter().filter_map(|listen| match listen {
            Listen::Unix(path) => Some(Leftover::Socket(listen::absolute(path))),
            _ => None,
        });
        unix.collect()
    }

    fn check(&self) -> Result<()> {
        if proto::decode_name(self.name.as_bytes()).is_none() {
            return Err(Error::usage(format!(
                "the export name has {} bytes or holds a NUL",
                self.name.len()
            ))
            .hint(format!("choose one of at most {} bytes", proto::MAX_STRING)));
        }
        if self.listen.is_empty() {
            return Err(Error::usage("an NBD export needs a place to listen at"));
        }
        if self.max_connections == 0 {
            return Err(Error::usage("an NBD export needs at least 1 connection"));
        }
        Ok(())
    }
}

/// The time limits of a server.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// From the acceptance of a connection to the end of its handshake.
    pub handshake: Duration,
    /// How long a client may stand still within a large request, while others wait for the memory
    /// that it takes.
    pub stall: Duration,
    /// How long the server waits for requests after it has cut all connections: a drive may hold
    /// them up.
    pub closing: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            handshake: Duration::from_secs(30),
            stall: Duration::from_secs(30),
            closing: Duration::from_secs(10),
        }
    }
}

/// A running NBD server of one device.
pub struct Server {
    endpoints: Vec<String>,
    leftovers: Vec<Leftover>,
    clients: Arc<Clients>,
    /// Wakes the thread that accepts.
    wake: Arc<OwnedFd>,
    acceptor: Option<JoinHandle<()>>,
}

impl Server {
    /// Serves `device`; when this returns, clients can connect.
    ///
    /// # Errors
    /// An invalid name, place or limit; a place that is taken; an error of the system.
    pub fn start(device: Arc<dyn Device>, options: Options) -> Result<Self> {
        Self::start_with(device, options, Limits::default())
    }

    /// Like [`Server::start`], with other limits.
    ///
    /// # Errors
    /// As [`Server::start`].
    pub fn start_with(device: Arc<dyn Device>, options: Options, limits: Limits) -> Result<Self> {
        options.check()?;
        let leftovers = options.leftovers();
        let mut listeners = Vec::new();
        for listen in &options.listen {
            listeners.extend(Listener::open(listen)?);
        }
        let endpoints = listeners.iter().map(|l| l.endpoint(&options.name)).collect();
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        let wake = Arc::new(rustix::event::eventfd(0, flags).context("cannot make an eventfd")?);
        let clients = Arc::new(Clients::new(device, options.name, options.max_connections, limits));
        let acceptor = {
            let (clients, wake) = (Arc::clone(&clients), Arc::clone(&wake));
            std::thread::Builder::new()
                .name("nbd-accept".into())
                .spawn(move || accept_all(&listeners, &clients, &wake))
                .context("cannot start the NBD thread")?
        };
        Ok(Self { endpoints, leftovers, clients, wake, acceptor: Some(acceptor) })
    }

    /// Ends service at once, also while clients are connected: connections are cut (a request that
    /// is being carried out ends, and counts), sockets are removed, and no thread is left when this
    /// returns, but for those that a drive holds up.
    pub fn shutdown(&mut self) {
        self.clients.close();
        self.finish();
    }

    /// Ends all threads. The clients have been closed before.
    fn finish(&mut self) {
        if let Some(acceptor) = self.acceptor.take() {
            // An eventfd takes any number of ones; it can't be full.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
            // A panic there was reported when it happened.
            let _ = acceptor.join();
        }
        self.clients.wait();
    }
}

impl Export for Server {
    fn endpoints(&self) -> Vec<String> {
        self.endpoints.clone()
    }

    fn holders(&self) -> Vec<String> {
        self.clients.describe().into_iter().collect()
    }

    /// NBD can't announce a new size: clients that connect from now on see it, and requests beyond
    /// the old size are served at once.
    fn resized(&self) -> Result<()> {
        Ok(())
    }

    fn leftovers(&self) -> Vec<Leftover> {
        self.leftovers.clone()
    }

    fn stop(&mut self) -> Result<()> {
        if !self.clients.close_if_unused() {
            let holders = self.clients.describe().unwrap_or_else(|| "NBD clients".into());
            return Err(Error::busy(format!("the volume is in use by {holders}"))
                .hint("disconnect them first"));
        }
        self.finish();
        Ok(())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.shutdown();
    }
}

/// Accepts connections until the clients are closed. Drops the listeners, and with them their
/// sockets, when it returns.
fn accept_all(listeners: &[Listener], clients: &Arc<Clients>, wake: &OwnedFd) {
    // If the system is short of descriptors or memory, accepting fails at once, so the next try
    // comes after a pause.
    let pause = Timespec { tv_sec: 0, tv_nsec: 100_000_000 };
    let mut failing = false;
    while !clients.are_closed() {
        let mut polled = vec![PollFd::new(wake, PollFlags::IN)];
        if !failing {
            polled.extend(listeners.iter().map(|l| PollFd::new(l, PollFlags::IN)));
        }
        match rustix::event::poll(&mut polled, failing.then_some(&pause)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
        failing = false;
        for listener in listeners {
            match listener.accept() {
                Ok(Some(socket)) => Clients::admit(clients, socket),
                Ok(None) => {}
                Err(_) => failing = true,
            }
        }
    }
}

//! The connected clients of a server, and the thread that serves each.
//!
//! Invariant: a connection is in the table from before its thread starts until after that thread
//! has let go of the device; a closed table has no device.

use super::share::Shares;
use super::wire::{Hangup, Hold, Input, Outcome, Output};
use super::{Limits, handshake, proto, transmission};
use crate::device::Device;
use crate::media::process_name;
use parking_lot::{Condvar, Mutex};
use rustix::net::{Shutdown, sockopt};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Most clients that are named one by one.
const NAMED_MAX: usize = 4;

/// All connections of a server.
pub struct Clients {
    name: String,
    most: usize,
    limits: Limits,
    /// Memory for large requests.
    shares: Shares,
    table: Mutex<Table>,
    /// Once set, no connection begins another request.
    closed: AtomicBool,
    /// Notified when a connection leaves the table.
    left: Condvar,
}

struct Table {
    /// `None`: no client is admitted any more.
    device: Option<Arc<dyn Device>>,
    next: u64,
    connections: BTreeMap<u64, Connection>,
}

struct Connection {
    socket: Arc<OwnedFd>,
    /// The handshake is over: this client holds the device.
    transmits: bool,
    peer: Option<String>,
}

impl Clients {
    pub fn new(device: Arc<dyn Device>, name: String, most: usize, limits: Limits) -> Self {
        let table = Table { device: Some(device), next: 0, connections: BTreeMap::new() };
        let (table, closed, left) = (Mutex::new(table), AtomicBool::new(false), Condvar::new());
        Self { name, most, limits, shares: Shares::default(), table, closed, left }
    }

    /// Serves a new connection on a thread of its own, or closes it when there are too many.
    pub fn admit(self: &Arc<Self>, socket: OwnedFd) {
        let socket = Arc::new(socket);
        let (id, device) = {
            let mut table = self.table.lock();
            let Some(device) = table.device.clone() else { return };
            if table.connections.len() >= self.most {
                return;
            }
            let id = table.next;
            table.next += 1;
            let connection =
                Connection { socket: Arc::clone(&socket), transmits: false, peer: peer(&socket) };
            table.connections.insert(id, connection);
            (id, device)
        };
        let entry = Entry { clients: Arc::clone(self), id };
        // If no thread can be made, the entry goes and the client sees a closed connection.
        let _ = std::thread::Builder::new().name(format!("nbd-{id}")).spawn(move || {
            // How a connection ends is the client's business; its requests were all answered.
            let _ = entry.serve(socket, device);
        });
    }

    /// Admits no more clients and cuts all connections.
    pub fn close(&self) {
        self.close_table(&mut self.table.lock());
    }

    /// Closes all connections if no client transmits; otherwise changes nothing and returns
    /// `false`.
    pub fn close_if_unused(&self) -> bool {
        let mut table = self.table.lock();
        if table.connections.values().any(|c| c.transmits) {
            return false;
        }
        self.close_table(&mut table);
        true
    }

    fn close_table(&self, table: &mut Table) {
        self.closed.store(true, Ordering::Relaxed);
        table.device = None;
        for connection in table.connections.values() {
            // It may be closed already by the other side.
            let _ = rustix::net::shutdown(&connection.socket, Shutdown::Both);
        }
    }

    /// Whether the clients are closed.
    pub fn are_closed(&self) -> bool {
        self.table.lock().device.is_none()
    }

    /// Waits until no connection is left, at most for [`Limits::closing`]: a drive may hold one up
    /// for ever. The caller has closed the connections.
    pub fn wait(&self) {
        let until = Instant::now() + self.limits.closing;
        let mut table = self.table.lock();
        while !table.connections.is_empty() {
            if self.left.wait_until(&mut table, until).timed_out() {
                return;
            }
        }
    }

    /// The clients that transmit: `2 NBD clients (fio, process 12; 192.0.2.7)`; `None`: no client.
    pub fn describe(&self) -> Option<String> {
        let table = self.table.lock();
        let holders: Vec<_> = table.connections.values().filter(|c| c.transmits).collect();
        let mut names: Vec<&str> = holders.iter().filter_map(|c| c.peer.as_deref()).collect();
        names.sort_unstable();
        names.dedup();
        let more = names.len() > NAMED_MAX;
        names.truncate(NAMED_MAX);
        if more {
            names.push("…");
        }
        let count = match holders.len() {
            0 => return None,
            1 => "1 NBD client".to_owned(),
            n => format!("{n} NBD clients"),
        };
        Some(if names.is_empty() { count } else { format!("{count} ({})", names.join("; ")) })
    }
}

/// A connection's place in the table, which it leaves when dropped, also by a panic.
struct Entry {
    clients: Arc<Clients>,
    id: u64,
}

impl Drop for Entry {
    fn drop(&mut self) {
        self.clients.table.lock().connections.remove(&self.id);
        self.clients.left.notify_all();
    }
}

impl Entry {
    fn serve(&self, socket: Arc<OwnedFd>, device: Arc<dyn Device>) -> Outcome<()> {
        let clients = &*self.clients;
        let limit = clients.limits.handshake;
        let system = Hangup::System;
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(limit))
            .map_err(system)?;
        let mut input = Input::new(Arc::clone(&socket), Instant::now() + limit);
        let mut output = Output::new(Arc::clone(&socket));
        let export = handshake::Export {
            name: &clients.name,
            description: "ztier volume",
            size: device.size(),
            flags: proto::transmission_flags(device.discards()),
        };
        let agreed =
            handshake::negotiate(&mut input, &mut output, &export, || self.begin_transmission())?;
        let Some(agreed) = agreed else { return Ok(()) };
        // From here on a client may be slow: it may be busy.
        sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, None).map_err(system)?;
        input.lift_deadline();
        let hold = Hold::new(&clients.shares, clients.limits.stall, &clients.closed);
        let end = transmission::serve(&device, &mut input, &mut output, hold, agreed);
        if end == Err(Hangup::Refused) {
            // Requests from before the violation are still answered, if the client listens.
            let _ = output.flush();
        }
        end
    }

    /// Makes this connection one that holds the device, unless the server is stopping.
    fn begin_transmission(&self) -> bool {
        let mut table = self.clients.table.lock();
        if table.device.is_none() {
            return false;
        }
        table.connections.get_mut(&self.id).is_some_and(|connection| {
            connection.transmits = true;
            true
        })
    }
}

/// The peer: a process (Unix sockets) or an address.
fn peer(socket: &OwnedFd) -> Option<String> {
    let address = rustix::net::getpeername(socket).ok().flatten();
    if let Some(Ok(address)) = address.map(SocketAddr::try_from) {
        return Some(address.ip().to_string());
    }
    let pid = peer_pid(socket)?;
    match process_name(Path::new(&format!("/proc/{pid}"))) {
        Some(name) => Some(format!("{name}, process {pid}")),
        None => Some(format!("process {pid}")),
    }
}

/// The process that connected; `None` if it is in another pid namespace.
fn peer_pid(socket: &OwnedFd) -> Option<i32> {
    let mut cred = libc::ucred { pid: 0, uid: 0, gid: 0 };
    let mut len = size_of::<libc::ucred>() as libc::socklen_t;
    // SAFETY: the descriptor is open, and the kernel writes at most `len` bytes of plain integers
    // to `cred`. (The wrapper in rustix has a pid that can't be 0, which is what the kernel
    // says of a process that it can't name to us.)
    let result = unsafe {
        libc::getsockopt(
            socket.as_raw_fd(),
            libc::SOL_SOCKET,
            libc::SO_PEERCRED,
            (&raw mut cred).cast(),
            &raw mut len,
        )
    };
    (result == 0 && cred.pid > 0).then_some(cred.pid)
}

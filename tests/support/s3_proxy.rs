//! A proxy on loopback before a server of S3, with the faults of a network: delays, refusals,
//! resets before and after a request was carried out, answers that are cut, requests that arrive
//! twice, the second time late, and outages.
//!
//! Each connection carries one request. What happens to it is drawn from a seed.
#![allow(clippy::unwrap_used, dead_code)]

use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Limit on each read and write.
const PATIENCE: Duration = Duration::from_secs(10);
/// A second arrival is at most so late, in milliseconds.
const LATE_MS: u64 = 300;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    Delay,
    SlowDown,
    TooMany,
    ResetBefore,
    ResetAfter,
    Cut,
    Twice,
}

pub const FAULTS: [Fault; 7] = [
    Fault::Delay,
    Fault::SlowDown,
    Fault::TooMany,
    Fault::ResetBefore,
    Fault::ResetAfter,
    Fault::Cut,
    Fault::Twice,
];

/// A status and the word of an error.
pub type Refusal = (u16, &'static str);

struct Shared {
    upstream: SocketAddr,
    random: Mutex<u64>,
    /// One request in this many gets a fault; 0: none does.
    rarity: AtomicU64,
    outage: AtomicBool,
    refusal: Mutex<Option<Refusal>>,
    happened: Mutex<BTreeMap<Fault, u64>>,
    /// Requests that arrive a second time later.
    late: Mutex<Vec<JoinHandle<()>>>,
    stop: AtomicBool,
}

/// See the module; dropping it ends it.
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    accepting: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Before the server at `upstream`, without faults.
    pub fn new(upstream: SocketAddr, seed: u64) -> Self {
        let shared = Arc::new(Shared {
            upstream,
            random: Mutex::new(seed | 1),
            rarity: AtomicU64::new(0),
            outage: AtomicBool::new(false),
            refusal: Mutex::new(None),
            happened: Mutex::default(),
            late: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let of_thread = Arc::clone(&shared);
        let accepting = std::thread::spawn(move || accept(&of_thread, &listener));
        Self { shared, address, accepting: Some(accepting) }
    }

    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on one request in `rarity` gets a fault; 0: none does.
    pub fn faults(&self, rarity: u64) {
        self.shared.rarity.store(rarity, Ordering::Relaxed);
    }

    /// Begins or ends an outage: all connections are reset.
    pub fn outage(&self, out: bool) {
        self.shared.outage.store(out, Ordering::Relaxed);
    }

    /// Answers all requests so, from now on.
    pub fn refuse(&self, refusal: Option<Refusal>) {
        *self.shared.refusal.lock() = refusal;
    }

    /// How often each fault has happened.
    pub fn happened(&self) -> BTreeMap<Fault, u64> {
        self.shared.happened.lock().clone()
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.stop.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address); // wakes the thread that accepts
        let _ = self.accepting.take().map(JoinHandle::join);
        for late in std::mem::take(&mut *self.shared.late.lock()) {
            let _ = late.join();
        }
    }
}

fn accept(shared: &Arc<Shared>, listener: &TcpListener) {
    for client in listener.incoming().flatten() {
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        let shared = Arc::clone(shared);
        // A client that hangs up has its reasons.
        std::thread::spawn(move || drop(serve(&shared, client)));
    }
}

impl Shared {
    fn random(&self, end: u64) -> u64 {
        let mut random = self.random.lock();
        *random ^= *random << 13;
        *random ^= *random >> 7;
        *random ^= *random << 17;
        *random % end
    }

    fn fault(&self) -> Option<Fault> {
        let rarity = self.rarity.load(Ordering::Relaxed);
        if rarity == 0 || self.random(rarity) != 0 {
            return None;
        }
        let fault = FAULTS[self.random(FAULTS.len() as u64) as usize];
        *self.happened.lock().entry(fault).or_default() += 1;
        Some(fault)
    }

    /// Has the server carry out a request. Returns its whole answer.
    fn forward(&self, request: &[u8]) -> std::io::Result<Vec<u8>> {
        let mut server = TcpStream::connect(self.upstream)?;
        server.set_read_timeout(Some(PATIENCE))?;
        server.set_write_timeout(Some(PATIENCE))?;
        server.write_all(request)?;
        let mut answer = Vec::new();
        server.read_to_end(&mut answer)?;
        Ok(answer)
    }
}

fn serve(shared: &Arc<Shared>, mut client: TcpStream) -> std::io::Result<()> {
    client.set_read_timeout(Some(PATIENCE))?;
    client.set_write_timeout(Some(PATIENCE))?;
    if shared.outage.load(Ordering::Relaxed) {
        return reset(client);
    }
    let request = receive(&mut client)?;
    if let Some(refusal) = *shared.refusal.lock() {
        return client.write_all(&refused(refusal));
    }
    let answer = match shared.fault() {
        Some(Fault::SlowDown) => refused((503, "SlowDown")),
        Some(Fault::TooMany) => refused((429, "TooManyRequests")),
        Some(Fault::ResetBefore) => return reset(client),
        Some(Fault::ResetAfter) => {
            shared.forward(&request)?;
            return reset(client);
        }
        Some(Fault::Cut) => {
            let answer = shared.forward(&request)?;
            // Within the body, if there is one.
            let head = head_of(&answer).unwrap_or(0);
            answer[..head + (answer.len() - head) / 2].to_vec()
        }
        Some(Fault::Twice) => {
            let answer = shared.forward(&request)?;
            let (again, late) = (Arc::clone(shared), shared.random(LATE_MS));
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(late));
                let _ = again.forward(&request);
            });
            shared.late.lock().push(thread);
            answer
        }
        Some(Fault::Delay) => {
            std::thread::sleep(Duration::from_millis(shared.random(LATE_MS)));
            shared.forward(&request)?
        }
        None => shared.forward(&request)?,
    };
    client.write_all(&answer)
}

/// Where the body of a message begins.
fn head_of(message: &[u8]) -> Option<usize> {
    message.windows(4).position(|four| four == b"\r\n\r\n").map(|at| at + 4)
}

/// A whole request, after which the server is to close the connection.
fn receive(client: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let (mut request, mut piece) = (Vec::new(), [0; 16 << 10]);
    loop {
        if let Some(head) = head_of(&request) {
            let text = String::from_utf8_lossy(&request[..head]).to_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length:"));
            let length: usize = length.map_or(0, |length| length.trim().parse().unwrap());
            if request.len() >= head + length {
                let mut closing = request[..head - 2].to_vec();
                closing.extend_from_slice(b"Connection: close\r\n\r\n");
                closing.extend_from_slice(&request[head..]);
                return Ok(closing);
            }
        }
        match client.read(&mut piece)? {
            0 => return Err(std::io::ErrorKind::UnexpectedEof.into()),
            n => request.extend_from_slice(&piece[..n]),
        }
    }
}

/// An answer that refuses.
fn refused((status, word): Refusal) -> Vec<u8> {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{word}</Code></Error>");
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    (head + &body).into_bytes()
}

/// Closes a connection without the usual end.
fn reset(client: TcpStream) -> std::io::Result<()> {
    rustix::net::sockopt::set_socket_linger(&client, Some(Duration::ZERO))?;
    Ok(())
}

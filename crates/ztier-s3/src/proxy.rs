//! A proxy on loopback before a server of S3: the latency of a store, the faults of a network
//! (delays, refusals, resets before and after a request was carried out, answers that are cut,
//! requests that arrive twice, the second time late), outages, and counts of what passed.
//!
//! A connection carries requests one after the other, each with a fault or none, drawn from a seed.

use crate::http::Message;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{self, BufRead, BufReader, ErrorKind, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

/// Limit on each read and write of a request.
const PATIENCE: Duration = Duration::from_secs(10);
/// Interval at which a connection without a request looks whether the proxy is still there.
const LOOK: Duration = Duration::from_millis(500);
/// A second arrival is at most so late, in milliseconds.
const LATE_MS: u64 = 300;
/// Bytes of a connection's buffer.
const BUFFER: usize = 256 << 10;

/// What happens to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// It is late.
    Delay,
    /// 503 in place of an answer.
    SlowDown,
    /// 429 in place of an answer.
    TooMany,
    /// The connection is reset before it is carried out.
    ResetBefore,
    /// The connection is reset behind it.
    ResetAfter,
    /// Half of its answer arrives.
    Cut,
    /// It arrives again, later.
    Twice,
}

/// All of them.
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

/// What passed, of requests that the server has answered.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// PUT requests.
    pub puts: u64,
    /// Bytes of their bodies.
    pub put_bytes: u64,
    /// GET requests, lists included.
    pub gets: u64,
    /// Bytes of the bodies of their answers.
    pub get_bytes: u64,
    /// All other requests.
    pub others: u64,
}

impl Counts {
    /// What passed since `before`.
    #[must_use]
    pub fn since(self, before: Self) -> Self {
        Self {
            puts: self.puts - before.puts,
            put_bytes: self.put_bytes - before.put_bytes,
            gets: self.gets - before.gets,
            get_bytes: self.get_bytes - before.get_bytes,
            others: self.others - before.others,
        }
    }

    fn add(&mut self, method: &str, up: usize, down: usize) {
        match method {
            "PUT" => {
                self.puts += 1;
                self.put_bytes += up as u64;
            }
            "GET" => {
                self.gets += 1;
                self.get_bytes += down as u64;
            }
            _ => self.others += 1,
        }
    }
}

struct Shared {
    upstream: SocketAddr,
    random: Mutex<u64>,
    /// One request in this many gets a fault; 0: none does.
    rarity: AtomicU64,
    /// Microseconds that each request takes before the server gets it.
    latency_us: AtomicU64,
    outage: AtomicBool,
    refusal: Mutex<Option<Refusal>>,
    happened: Mutex<BTreeMap<Fault, u64>>,
    counts: Mutex<Counts>,
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
    /// Before the server at `upstream`, without faults or latency.
    ///
    /// # Errors
    /// There is no free port.
    pub fn new(upstream: SocketAddr, seed: u64) -> io::Result<Self> {
        let shared = Arc::new(Shared {
            upstream,
            random: Mutex::new(seed | 1),
            rarity: AtomicU64::new(0),
            latency_us: AtomicU64::new(0),
            outage: AtomicBool::new(false),
            refusal: Mutex::new(None),
            happened: Mutex::default(),
            counts: Mutex::default(),
            late: Mutex::default(),
            stop: AtomicBool::new(false),
        });
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let of_thread = Arc::clone(&shared);
        let accepting = std::thread::spawn(move || accept(&of_thread, &listener));
        Ok(Self { shared, address, accepting: Some(accepting) })
    }

    /// Its URL.
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// From now on one request in `rarity` gets a fault; 0: none does.
    pub fn faults(&self, rarity: u64) {
        self.shared.rarity.store(rarity, Ordering::Relaxed);
    }

    /// Each request takes this time more from now on. Connections take nothing.
    pub fn latency(&self, time: Duration) {
        self.shared.latency_us.store(time.as_micros() as u64, Ordering::Relaxed);
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

    /// What has passed so far.
    pub fn counts(&self) -> Counts {
        *self.shared.counts.lock()
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
        std::thread::spawn(move || drop(serve(&shared, &client)));
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
    fn forward(&self, server: &mut Server, request: &Message) -> io::Result<Message> {
        let latency = Duration::from_micros(self.latency_us.load(Ordering::Relaxed));
        if !latency.is_zero() {
            std::thread::sleep(latency);
        }
        let answer = server.ask(self.upstream, request)?;
        let (up, down) = (request.body.len(), answer.body.len());
        self.counts.lock().add(request.method(), up, down);
        Ok(answer)
    }
}

/// The connection to the server of a client's connection.
#[derive(Default)]
struct Server(Option<BufReader<TcpStream>>);

impl Server {
    fn ask(&mut self, upstream: SocketAddr, request: &Message) -> io::Result<Message> {
        let mut server = match self.0.take().filter(is_open) {
            Some(server) => server,
            None => {
                let server = TcpStream::connect(upstream)?;
                server.set_nodelay(true)?;
                server.set_read_timeout(Some(PATIENCE))?;
                server.set_write_timeout(Some(PATIENCE))?;
                BufReader::with_capacity(BUFFER, server)
            }
        };
        send(server.get_ref(), request)?;
        let answer = Message::answer(&mut server, request.method())?;
        if !answer.closes {
            self.0 = Some(server);
        }
        Ok(answer)
    }
}

/// Whether a connection without a request has not been closed by the other side.
fn is_open(server: &BufReader<TcpStream>) -> bool {
    let stream = server.get_ref();
    let nothing = stream.set_nonblocking(true).is_ok()
        && matches!(stream.peek(&mut [0]), Err(e) if e.kind() == ErrorKind::WouldBlock);
    nothing && stream.set_nonblocking(false).is_ok()
}

/// Head and body, together if they are small, or the body would wait for the other side.
fn send(mut to: &TcpStream, message: &Message) -> io::Result<()> {
    if message.body.len() < BUFFER {
        return to.write_all(&[&message.head[..], &message.body].concat());
    }
    to.write_all(&message.head)?;
    to.write_all(&message.body)
}

/// Carries out the requests of a client until it hangs up.
fn serve(shared: &Arc<Shared>, client: &TcpStream) -> io::Result<()> {
    client.set_nodelay(true)?;
    client.set_write_timeout(Some(PATIENCE))?;
    let mut from = BufReader::with_capacity(BUFFER, client.try_clone()?);
    let mut server = Server::default();
    loop {
        if shared.outage.load(Ordering::Relaxed) {
            return reset(client);
        }
        if !comes(shared, &mut from)? {
            return Ok(());
        }
        client.set_read_timeout(Some(PATIENCE))?;
        let go_on = || { client }.write_all(b"HTTP/1.1 100 Continue\r\n\r\n");
        let request = Message::request(&mut from, go_on)?;
        if shared.outage.load(Ordering::Relaxed) {
            return reset(client);
        }
        if let Some(refusal) = *shared.refusal.lock() {
            return send(client, &refused(refusal));
        }
        let answer = match carried_out(shared, &mut server, &request)? {
            Some(answer) => answer,
            None => return reset(client),
        };
        send(client, &answer)?;
        if answer.closes || request.closes {
            return Ok(());
        }
    }
}

/// Waits for the next request; `false`: there will be none.
fn comes(shared: &Shared, from: &mut BufReader<TcpStream>) -> io::Result<bool> {
    from.get_ref().set_read_timeout(Some(LOOK))?;
    loop {
        match from.fill_buf() {
            Ok(bytes) => return Ok(!bytes.is_empty()),
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                if shared.stop.load(Ordering::Relaxed) {
                    return Ok(false);
                }
            }
            Err(e) if e.kind() == ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
}

/// The answer to a request, with a fault or none; `None`: the connection is to be reset.
fn carried_out(
    shared: &Arc<Shared>,
    server: &mut Server,
    request: &Message,
) -> io::Result<Option<Message>> {
    Ok(Some(match shared.fault() {
        Some(Fault::SlowDown) => refused((503, "SlowDown")),
        Some(Fault::TooMany) => refused((429, "TooManyRequests")),
        Some(Fault::ResetBefore) => return Ok(None),
        Some(Fault::ResetAfter) => {
            shared.forward(server, request)?;
            return Ok(None);
        }
        Some(Fault::Cut) => {
            let mut answer = shared.forward(server, request)?;
            // Within the body, if there is one.
            match answer.body.len() {
                0 => answer.head.truncate(answer.head.len() / 2),
                len => answer.body.truncate(len / 2),
            }
            Message { closes: true, ..answer }
        }
        Some(Fault::Twice) => {
            let answer = shared.forward(server, request)?;
            let (again, late) = (Arc::clone(shared), shared.random(LATE_MS));
            let request = request.clone();
            let thread = std::thread::spawn(move || {
                std::thread::sleep(Duration::from_millis(late));
                let _ = again.forward(&mut Server::default(), &request);
            });
            shared.late.lock().push(thread);
            answer
        }
        Some(Fault::Delay) => {
            std::thread::sleep(Duration::from_millis(shared.random(LATE_MS)));
            shared.forward(server, request)?
        }
        None => shared.forward(server, request)?,
    }))
}

/// An answer that refuses.
fn refused((status, word): Refusal) -> Message {
    let body = format!("<?xml version=\"1.0\"?><Error><Code>{word}</Code></Error>");
    let head = format!(
        "HTTP/1.1 {status} X\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    );
    Message { head: head.into_bytes(), body: body.into_bytes(), closes: true }
}

/// Closes a connection without the usual end.
fn reset(client: &TcpStream) -> io::Result<()> {
    rustix::net::sockopt::set_socket_linger(client, Some(Duration::ZERO))?;
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Read;
    use std::time::Instant;

    /// A server that answers each request of one connection with its path.
    fn echo() -> SocketAddr {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                std::thread::spawn(move || {
                    let mut from = BufReader::new(client.try_clone().unwrap());
                    while let Ok(request) = Message::request(&mut from, || Ok(())) {
                        let text = String::from_utf8_lossy(&request.head).into_owned();
                        let path = text.split(' ').nth(1).unwrap().to_owned();
                        let head =
                            format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", path.len());
                        let (head, body) = (head.into_bytes(), path.into_bytes());
                        send(&client, &Message { head, body, closes: false }).unwrap();
                    }
                });
            }
        });
        address
    }

    fn get(client: &mut BufReader<TcpStream>, path: &str) -> io::Result<Message> {
        client.get_ref().write_all(format!("GET {path} HTTP/1.1\r\n\r\n").as_bytes())?;
        Message::answer(client, "GET")
    }

    fn connect(proxy: &Proxy) -> BufReader<TcpStream> {
        let client = TcpStream::connect(proxy.address).unwrap();
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        BufReader::new(client)
    }

    #[test]
    fn requests_of_a_connection_pass_late_and_are_counted() {
        let proxy = Proxy::new(echo(), 1).unwrap();
        let mut client = connect(&proxy);
        assert_eq!(get(&mut client, "/one").unwrap().body, b"/one");
        proxy.latency(Duration::from_millis(30));
        let (begun, before) = (Instant::now(), proxy.counts());
        for path in ["/two", "/three"] {
            assert_eq!(get(&mut client, path).unwrap().body, path.as_bytes());
        }
        assert!(begun.elapsed() >= Duration::from_millis(60));
        let put = b"PUT /four HTTP/1.1\r\nContent-Length: 7\r\n\r\ncontent";
        client.get_ref().write_all(put).unwrap();
        assert_eq!(Message::answer(&mut client, "PUT").unwrap().body, b"/four");
        let counts = proxy.counts().since(before);
        let expected = Counts { puts: 1, put_bytes: 7, gets: 2, get_bytes: 10, others: 0 };
        assert_eq!(counts, expected);
    }

    #[test]
    fn an_outage_resets_a_connection_that_is_there_already() {
        let proxy = Proxy::new(echo(), 1).unwrap();
        let mut client = connect(&proxy);
        get(&mut client, "/one").unwrap();
        proxy.outage(true);
        get(&mut client, "/two").unwrap_err();
        proxy.outage(false);
        assert_eq!(get(&mut connect(&proxy), "/three").unwrap().body, b"/three");
        proxy.refuse(Some((503, "SlowDown")));
        let mut client = connect(&proxy);
        let refused = get(&mut client, "/four").unwrap();
        assert!(refused.head.starts_with(b"HTTP/1.1 503") && refused.closes);
        assert_eq!(client.read(&mut [0]).unwrap(), 0);
    }
}

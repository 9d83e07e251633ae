//! An NBD client that can send any bytes, a device that records its requests, and a server over
//! both.
#![allow(clippy::unwrap_used)]

use parking_lot::Mutex;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use ztier::device::{self, Channel, Device, Extent, ExtentKind, IoError, Request, Volume};
use ztier::export::nbd::{Limits, Listen, Options, Server, proto};

pub const SIZE: u64 = 64 << 20;

/// A real volume of `size` bytes.
pub fn volume(size: u64) -> Arc<Volume> {
    Volume::create(&device::Options {
        size,
        ram_limit: 1 << 30,
        ram_limit_max: 0,
        segment: 1 << 20,
        algorithm: device::Algorithm::Lz4,
        lock_memory: false,
    })
    .unwrap()
}

/// A server on a Unix socket in its own directory.
pub struct Fixture {
    pub server: Server,
    pub path: PathBuf,
    pub directory: tempfile::TempDir,
}

impl Fixture {
    pub fn new(device: Arc<dyn Device>) -> Self {
        Self::with(device, 16, Limits::default())
    }

    pub fn with(device: Arc<dyn Device>, max_connections: usize, limits: Limits) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("nbd.sock");
        let listen = vec![Listen::Unix(path.clone())];
        let options = Options { name: "disk".into(), listen, max_connections };
        let server = Server::start_with(device, options, limits).unwrap();
        Self { server, path, directory }
    }

    /// A connected client before the negotiation.
    pub fn connect(&self) -> Client {
        Client::connect(&self.path)
    }

    /// A client in transmission, with structured replies and `base:allocation` if `structured`.
    pub fn transmit(&self, structured: bool) -> Client {
        let mut c = self.connect();
        c.greet(3);
        if structured {
            c.option(proto::opt::STRUCTURED_REPLY, &[]);
            assert_eq!(c.answers(), [(proto::rep::ACK, vec![])]);
            c.option(proto::opt::SET_META_CONTEXT, &contexts("disk", &["base:allocation"]));
            assert_eq!(c.answers().len(), 2);
        }
        c.option(proto::opt::GO, &go("disk", &[]));
        assert_eq!(c.answers().last().unwrap().0, proto::rep::ACK);
        c
    }
}

/// The data of `NBD_OPT_GO` and `NBD_OPT_INFO`.
pub fn go(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut b = string(name);
    b.extend((kinds.len() as u16).to_be_bytes());
    kinds.iter().for_each(|k| b.extend(k.to_be_bytes()));
    b
}

/// The data of `NBD_OPT_{LIST,SET}_META_CONTEXT`.
pub fn contexts(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut b = string(name);
    b.extend((queries.len() as u32).to_be_bytes());
    queries.iter().for_each(|q| b.extend(string(q)));
    b
}

pub fn string(s: &str) -> Vec<u8> {
    [&(s.len() as u32).to_be_bytes()[..], s.as_bytes()].concat()
}

/// A chunk of a structured reply.
#[derive(Debug, PartialEq, Eq)]
pub struct Chunk {
    pub done: bool,
    pub kind: u16,
    pub cookie: u64,
    pub data: Vec<u8>,
}

pub struct Client {
    pub stream: UnixStream,
}

impl Client {
    pub fn connect(path: &Path) -> Self {
        let stream = UnixStream::connect(path).unwrap();
        stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
        stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
        Self { stream }
    }

    pub fn send(&mut self, bytes: &[u8]) {
        self.stream.write_all(bytes).unwrap();
    }

    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut b = [0; N];
        self.stream.read_exact(&mut b).unwrap();
        b
    }

    pub fn bytes(&mut self, n: usize) -> Vec<u8> {
        let mut b = vec![0; n];
        self.stream.read_exact(&mut b).unwrap();
        b
    }

    pub fn greet(&mut self, flags: u32) {
        assert_eq!(self.take(), proto::greeting());
        self.send(&flags.to_be_bytes());
    }

    pub fn option(&mut self, option: u32, data: &[u8]) {
        self.send(&proto::OPTION_MAGIC.to_be_bytes());
        self.send(&option.to_be_bytes());
        self.send(&(data.len() as u32).to_be_bytes());
        self.send(data);
    }

    /// All replies to one option: the last is an ACK or an error.
    pub fn answers(&mut self) -> Vec<(u32, Vec<u8>)> {
        let mut all = Vec::new();
        loop {
            assert_eq!(u64::from_be_bytes(self.take()), proto::OPTION_REPLY_MAGIC);
            let _option: [u8; 4] = self.take();
            let kind = u32::from_be_bytes(self.take());
            let len = u32::from_be_bytes(self.take());
            all.push((kind, self.bytes(len as usize)));
            if kind == proto::rep::ACK || kind >> 31 == 1 {
                return all;
            }
        }
    }

    /// The only reply to one option.
    pub fn answer(&mut self, option: u32, data: &[u8]) -> u32 {
        self.option(option, data);
        let all = self.answers();
        assert_eq!(all.len(), 1, "{all:?}");
        all[0].0
    }

    pub fn request(&mut self, command: u16, flags: u16, cookie: u64, offset: u64, len: u32) {
        self.send(&request(command, flags, cookie, offset, len));
    }

    /// The error of a simple reply without data.
    pub fn simple(&mut self, cookie: u64) -> u32 {
        assert_eq!(u32::from_be_bytes(self.take()), proto::SIMPLE_REPLY_MAGIC);
        let error = u32::from_be_bytes(self.take());
        assert_eq!(u64::from_be_bytes(self.take()), cookie);
        error
    }

    pub fn chunk(&mut self) -> Chunk {
        assert_eq!(u32::from_be_bytes(self.take()), proto::STRUCTURED_REPLY_MAGIC);
        let flags = u16::from_be_bytes(self.take());
        let kind = u16::from_be_bytes(self.take());
        let cookie = u64::from_be_bytes(self.take());
        let len = u32::from_be_bytes(self.take());
        Chunk { done: flags == 1, kind, cookie, data: self.bytes(len as usize) }
    }

    /// The error of a reply that is one structured error.
    pub fn chunk_error(&mut self, cookie: u64) -> u32 {
        let c = self.chunk();
        assert_eq!((c.done, c.kind, c.cookie), (true, proto::chunk::ERROR, cookie));
        assert_eq!(&c.data[4..], [0, 0], "no text");
        u32::from_be_bytes(c.data[..4].try_into().unwrap())
    }

    /// Sends a write; returns the error of its reply.
    pub fn write(&mut self, flags: u16, offset: u64, data: &[u8]) -> u32 {
        self.request(proto::cmd::WRITE, flags, 77, offset, data.len() as u32);
        self.send(data);
        self.simple(77)
    }

    /// Sends a request without data; returns the error of its simple reply.
    pub fn ask(&mut self, command: u16, flags: u16, offset: u64, len: u32) -> u32 {
        self.request(command, flags, 78, offset, len);
        self.simple(78)
    }

    /// A read with a simple reply.
    pub fn read(&mut self, offset: u64, len: u32) -> Result<Vec<u8>, u32> {
        match self.ask(proto::cmd::READ, 0, offset, len) {
            0 => Ok(self.bytes(len as usize)),
            error => Err(error),
        }
    }

    /// Whether the server has closed the connection, with nothing left to receive.
    pub fn is_closed(&mut self) -> bool {
        match self.stream.read(&mut [0; 1]) {
            Ok(n) => n == 0,
            Err(e) => e.kind() == std::io::ErrorKind::ConnectionReset,
        }
    }
}

pub fn request(command: u16, flags: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut b = proto::REQUEST_MAGIC.to_be_bytes().to_vec();
    b.extend(flags.to_be_bytes());
    b.extend(command.to_be_bytes());
    b.extend(cookie.to_be_bytes());
    b.extend(offset.to_be_bytes());
    b.extend(len.to_be_bytes());
    b
}

/// A volume that records the requests that reach it, returns given extents, and fails at a given
/// offset.
pub struct Watched {
    volume: Arc<Volume>,
    pub seen: Mutex<Vec<String>>,
    /// Extents from byte 0 on; behind them everything is data.
    pub map: Mutex<Vec<Extent>>,
    /// Requests that begin at this offset fail with this error.
    pub fault: Mutex<Option<(u64, IoError)>>,
    /// Requests wait for this lock.
    pub stuck: Mutex<()>,
    discards: bool,
}

impl Watched {
    pub fn new() -> Arc<Self> {
        Self::made(true)
    }

    pub fn without_discards() -> Arc<Self> {
        Self::made(false)
    }

    fn made(discards: bool) -> Arc<Self> {
        Arc::new(Self {
            volume: volume(SIZE),
            seen: Mutex::default(),
            map: Mutex::default(),
            fault: Mutex::default(),
            stuck: Mutex::default(),
            discards,
        })
    }

    pub fn taken(&self) -> Vec<String> {
        std::mem::take(&mut self.seen.lock())
    }
}

impl Device for Watched {
    fn size(&self) -> u64 {
        self.volume.size()
    }

    fn channel(self: Arc<Self>) -> Box<dyn Channel> {
        let inner = Arc::clone(&self.volume).channel();
        Box::new(WatchedChannel { device: self, inner })
    }

    fn discards(&self) -> bool {
        self.discards
    }

    fn extents(&self, offset: u64, len: u64, most: usize) -> Result<Vec<Extent>, IoError> {
        let mut runs = self.map.lock().clone();
        let known = runs.iter().map(|r| r.len).sum::<u64>();
        runs.push(Extent { len: self.size() - known, kind: ExtentKind::Data });
        let (mut at, mut found) = (0, Vec::new());
        for run in runs {
            let (from, to) = (offset.max(at), (offset + len).min(at + run.len));
            at += run.len;
            if from < to && found.len() < most {
                found.push(Extent { len: to - from, kind: run.kind });
            }
        }
        Ok(found)
    }
}

struct WatchedChannel {
    device: Arc<Watched>,
    inner: Box<dyn Channel>,
}

impl Channel for WatchedChannel {
    fn submit(&mut self, request: Request<'_>, arrived: Instant) -> Result<(), IoError> {
        assert!(arrived <= Instant::now());
        let (text, at) = match &request {
            Request::Read { offset, buf } => (format!("read {offset}+{}", buf.len()), *offset),
            Request::Write { offset, data, fua } => {
                (format!("write {offset}+{} fua={fua}", data.len()), *offset)
            }
            Request::Flush => ("flush".to_owned(), u64::MAX),
            Request::Discard { offset, len } => (format!("discard {offset}+{len}"), *offset),
            Request::WriteZeroes { offset, len, no_hole, fua } => {
                (format!("zeroes {offset}+{len} no_hole={no_hole} fua={fua}"), *offset)
            }
        };
        self.device.seen.lock().push(text);
        drop(self.device.stuck.lock());
        match *self.device.fault.lock() {
            Some((offset, error)) if offset == at => return Err(error),
            _ => {}
        }
        self.inner.submit(request, arrived)
    }
}

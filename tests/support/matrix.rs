//! One cell of the error matrix: a real daemon, a load, a failing drive, a command, and the
//! conditions that must hold then.
#![allow(clippy::unwrap_used)]

use super::fault_fs::{Fault, FaultFs, Op};
use super::nbd::{go, request};
use super::place::{BLOCK, content};
use super::sandbox::{Done, Sandbox, try_finish};
use fuser::Errno;
use serde_json::Value;
use std::fmt;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};
use ztier::export::nbd::proto;

/// Limit on the time of every request and every command.
pub const BOUND: Duration = Duration::from_secs(30);

const LOG_BYTES: u64 = 8 << 20;
const BACKING_BYTES: u64 = 32 << 20;
/// Blocks that one connection of the load writes to.
const SHARE: u64 = 3000;
/// Connections of the load.
const LOADS: u64 = 2;

/// How a drive fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Failure {
    EioOnce,
    EioAlways,
    EioOneInSeven,
    Enospc,
    Slow,
}

pub const FAILURES: [Failure; 5] =
    [Failure::EioOnce, Failure::EioAlways, Failure::EioOneInSeven, Failure::Enospc, Failure::Slow];

impl Failure {
    fn fault(self, op: Op) -> Fault {
        match self {
            Self::EioOnce => Fault::Once(Errno::EIO),
            Self::EioAlways => Fault::Always(Errno::EIO),
            Self::EioOneInSeven => Fault::OneIn(7, Errno::EIO),
            Self::Enospc if op == Op::Write => Fault::Full,
            Self::Enospc => Fault::Always(Errno::ENOSPC),
            Self::Slow => Fault::Slow(Duration::from_millis(40)),
        }
    }
}

/// The drive that fails, and at which operation.
pub const SPOTS: [(&str, Op); 6] = [
    ("log", Op::Write),
    ("log", Op::Read),
    ("log", Op::Flush),
    ("backing", Op::Write),
    ("backing", Op::Read),
    ("backing", Op::Flush),
];

/// The state or command of the volume during the failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum During {
    Running,
    Drain,
    Down,
    DownDrain,
    Restart,
    RestartWithoutLog,
    Set,
    Status,
    Resize,
}

pub const DURINGS: [During; 9] = [
    During::Running,
    During::Drain,
    During::Down,
    During::DownDrain,
    During::Restart,
    During::RestartWithoutLog,
    During::Set,
    During::Status,
    During::Resize,
];

impl During {
    fn command(self) -> &'static [&'static str] {
        match self {
            Self::Running => &[],
            Self::Drain => &["drain", "v"],
            Self::Down => &["down", "v", "--force"],
            Self::DownDrain => &["down", "v", "--drain", "--force"],
            Self::Restart => &["restart", "v", "--force"],
            Self::RestartWithoutLog => &["restart", "v", "--force", "--log", "none"],
            Self::Set => &["set", "v", "writeback=on", "commit-interval=100"],
            Self::Status => &["status", "v"],
            Self::Resize => &["set", "v", "size=64M"],
        }
    }
}

/// A cell of the matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Case {
    pub failure: Failure,
    pub spot: (&'static str, Op),
    pub during: During,
    /// Whether writeback runs on its own.
    pub writeback: bool,
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { failure, spot: (drive, op), during, writeback } = self;
        let writeback = if *writeback { "on" } else { "off" };
        write!(f, "{failure:?} at {op:?} of {drive} during {during:?}, writeback {writeback}")
    }
}

/// The results of a cell.
#[derive(Debug, Default)]
pub struct Found {
    /// Violated conditions.
    pub faults: Vec<String>,
    /// The longest time to a reply, of requests and of commands.
    pub longest_request: Duration,
    pub longest_command: Duration,
    /// Exit status of the command.
    pub status: Option<i32>,
    pub text: String,
    /// Number of times that the fault struck.
    pub struck: u64,
}

/// The versions that a block may hold: they count up from 1, and 0 is zeros.
#[derive(Clone, Copy, Debug, Default)]
struct Known {
    /// The last version that a flush covers.
    durable: u64,
    /// The last version that was acknowledged.
    acknowledged: u64,
    /// The last version that was sent.
    sent: u64,
}

/// A connection that accepts errors and hang-ups as answers.
struct Connection {
    stream: UnixStream,
    longest: Duration,
}

/// Reason for a missing answer.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Silence {
    /// The server has hung up.
    Gone,
    /// No reply within [`BOUND`].
    Late,
}

impl From<std::io::Error> for Silence {
    fn from(e: std::io::Error) -> Self {
        let late = matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut);
        if late { Self::Late } else { Self::Gone }
    }
}

impl Connection {
    fn open(socket: &Path) -> Result<Self, Silence> {
        let mut stream = UnixStream::connect(socket)?;
        stream.set_read_timeout(Some(BOUND))?;
        stream.set_write_timeout(Some(BOUND))?;
        stream.read_exact(&mut [0; 18])?;
        stream.write_all(&3u32.to_be_bytes())?;
        let name = go("v", &[]);
        stream.write_all(&proto::OPTION_MAGIC.to_be_bytes())?;
        stream.write_all(&proto::opt::GO.to_be_bytes())?;
        stream.write_all(&(name.len() as u32).to_be_bytes())?;
        stream.write_all(&name)?;
        loop {
            let mut head = [0; 20];
            stream.read_exact(&mut head)?;
            let word = |at: usize| u32::from_be_bytes(head[at..at + 4].try_into().unwrap());
            stream.read_exact(&mut vec![0; word(16) as usize])?;
            match word(12) {
                proto::rep::ACK => return Ok(Self { stream, longest: Duration::ZERO }),
                kind if kind >> 31 == 1 => return Err(Silence::Gone),
                _ => {}
            }
        }
    }

    /// The error of a request, 0 on success, and the bytes read.
    fn ask(
        &mut self,
        command: u16,
        block: u64,
        len: usize,
        data: &[u8],
    ) -> Result<(u32, Vec<u8>), Silence> {
        let began = Instant::now();
        let head = request(command, 0, 7, block * BLOCK, len as u32);
        self.stream.write_all(&[&head, data].concat())?;
        let mut reply = [0; 16];
        self.stream.read_exact(&mut reply)?;
        let error = u32::from_be_bytes(reply[4..8].try_into().unwrap());
        let mut bytes = Vec::new();
        if command == proto::cmd::READ && error == 0 {
            bytes.resize(len, 0);
            self.stream.read_exact(&mut bytes)?;
        }
        self.longest = self.longest.max(began.elapsed());
        Ok((error, bytes))
    }
}

/// One connection's load on its own blocks.
struct Load {
    first: u64,
    blocks: Vec<Known>,
    random: u64,
    faults: Vec<String>,
    longest: Duration,
}

impl Load {
    fn new(number: u64) -> Self {
        let blocks = vec![Known::default(); SHARE as usize];
        let (first, random) = (number * SHARE, number + 1);
        Self { first, blocks, random, faults: Vec::new(), longest: Duration::ZERO }
    }

    fn random(&mut self, below: u64) -> u64 {
        self.random ^= self.random << 13;
        self.random ^= self.random >> 7;
        self.random ^= self.random << 17;
        self.random % below
    }

    /// Writes, reads and flushes until `stop` is set or the server has gone.
    fn run(&mut self, socket: &Path, stop: &AtomicBool) {
        let ended = Connection::open(socket).and_then(|mut c| {
            let ended = self.steps(&mut c, stop);
            self.longest = self.longest.max(c.longest);
            ended
        });
        if ended == Err(Silence::Late) {
            self.faults.push(format!("HANG: a request had no answer in {BOUND:?}"));
        }
    }

    fn steps(&mut self, c: &mut Connection, stop: &AtomicBool) -> Result<(), Silence> {
        while !stop.load(Ordering::Relaxed) {
            match self.random(10) {
                0 => {
                    self.flush(c)?;
                }
                1..=3 => {
                    let at = self.random(SHARE);
                    self.read(c, at)?;
                }
                _ => {
                    let count = 1 + self.random(64);
                    let at = self.random(SHARE - count);
                    self.write(c, at, count)?;
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, c: &mut Connection, at: u64, count: u64) -> Result<u32, Silence> {
        let mut data = Vec::new();
        for i in at..at + count {
            let known = &mut self.blocks[i as usize];
            known.sent += 1;
            data.extend(content(self.first + i, known.sent));
        }
        let (error, _) = c.ask(proto::cmd::WRITE, self.first + at, data.len(), &data)?;
        if error == 0 {
            let written = &mut self.blocks[at as usize..(at + count) as usize];
            written.iter_mut().for_each(|known| known.acknowledged = known.sent);
        }
        Ok(error)
    }

    fn flush(&mut self, c: &mut Connection) -> Result<u32, Silence> {
        let (error, _) = c.ask(proto::cmd::FLUSH, 0, 0, &[])?;
        if error == 0 {
            self.blocks.iter_mut().for_each(|known| known.durable = known.acknowledged);
        }
        Ok(error)
    }

    /// While the daemon lives, a block holds the version acknowledged last, or one sent since.
    fn read(&mut self, c: &mut Connection, at: u64) -> Result<(), Silence> {
        let (error, bytes) = c.ask(proto::cmd::READ, self.first + at, BLOCK as usize, &[])?;
        let known = self.blocks[at as usize];
        if error == 0 {
            let least = known.acknowledged;
            self.judge(at, &bytes, least);
        }
        Ok(())
    }

    fn judge(&mut self, at: u64, bytes: &[u8], least: u64) {
        let known = self.blocks[at as usize];
        if let Some(fault) = wrong(self.first + at, bytes, least..=known.sent) {
            self.faults.push(format!("WRONG DATA: {fault}, known {known:?}"));
        }
    }
}

/// Why the content of a block is wrong, if it should have one of these versions.
fn wrong(block: u64, bytes: &[u8], versions: std::ops::RangeInclusive<u64>) -> Option<String> {
    let version = u64::from_le_bytes(bytes[8..16].try_into().unwrap());
    let whole = match version {
        0 => bytes.iter().all(|byte| *byte == 0),
        _ => *bytes == *content(block, version),
    };
    if !whole {
        return Some(format!("block {block} is torn or another's"));
    }
    (!versions.contains(&version)).then(|| format!("block {block} has version {version}"))
}

/// A volume on drives that fail.
struct Rig {
    case: Case,
    sandbox: Sandbox,
    drives: FaultFs,
    found: Found,
}

impl Rig {
    fn new(case: Case) -> Self {
        let sandbox = Sandbox::new();
        let drives = FaultFs::mount(&[("log", LOG_BYTES), ("backing", BACKING_BYTES)]);
        Self { case, sandbox, drives, found: Found::default() }
    }

    fn up(&self) -> Vec<String> {
        let path = |name| self.drives.path(name).to_str().unwrap().to_owned();
        let writeback = if self.case.writeback { "on" } else { "off" };
        let (backing, log) = (path("backing"), path("log"));
        let words = ["up", "v", "--backing", &backing, "--log", &log, "--export", "nbd"];
        let more = ["--segment", "64K", "--ram-limit", "0", "--commit-interval", "10000"];
        let last = ["--writeback", writeback];
        [&words[..], &more, &last].concat().into_iter().map(str::to_owned).collect()
    }

    fn socket(&self) -> PathBuf {
        self.sandbox.run_dir().join("v.nbd")
    }

    /// Runs a command, which has to end in time, successfully or not.
    fn command(&mut self, args: &[&str]) -> Option<Done> {
        let command = self.sandbox.command(args);
        let began = Instant::now();
        let done = try_finish(command, BOUND);
        self.found.longest_command = self.found.longest_command.max(began.elapsed());
        let Some(done) = done else {
            self.found.faults.push(format!("HANG: `{}` did not end in {BOUND:?}", args.join(" ")));
            return None;
        };
        if done.status != 0 && done.err.lines().filter(|l| l.starts_with("ztier: ")).count() != 1 {
            self.found
                .faults
                .push(format!("`{}` failed without a reason: {done:?}", args.join(" ")));
        }
        Some(done)
    }

    fn is_up(&self) -> bool {
        UnixStream::connect(self.socket()).is_ok()
    }

    /// Runs `ztier up`, again while another process changes the volume.
    fn bring_up(&mut self) -> bool {
        let words = self.up();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let done = match self.command(&["restart", "v"]) {
            Some(done) if matches!(done.status, 0 | 6) => Some(done),
            _ => self.command(&words),
        };
        match done {
            // The volume is up and reports lost blocks.
            Some(done) if matches!(done.status, 0 | 6) => true,
            Some(done) => {
                self.found.faults.push(format!("not up again after the drives heal: {done:?}"));
                false
            }
            None => false,
        }
    }

    /// The blocks that the daemon reports lost, as first block and count.
    fn lost(&mut self) -> Vec<(u64, u64)> {
        let Some(done) = self.command(&["status", "v", "--json"]) else { return Vec::new() };
        let status: Value = serde_json::from_str(&done.out).unwrap_or_default();
        serde_json::from_value(status["stats"]["log_lost_blocks"].clone()).unwrap_or_default()
    }
}

/// Runs a cell.
pub fn run(case: Case) -> Found {
    let mut rig = Rig::new(case);
    let words = rig.up();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    rig.sandbox.ztier(&words).ok();
    let mut loads: Vec<Load> = (0..LOADS).map(Load::new).collect();
    for load in &mut loads {
        let mut c = Connection::open(&rig.socket()).unwrap();
        for at in (0..512).step_by(16) {
            assert_eq!(load.write(&mut c, at, 16), Ok(0));
        }
        assert_eq!(load.flush(&mut c), Ok(0));
        assert_eq!(load.write(&mut c, 600, 64), Ok(0));
    }
    let (drive, op) = case.spot;
    rig.drives.fail(drive, op, case.failure.fault(op));
    let stop = AtomicBool::new(false);
    let socket = rig.socket();
    thread::scope(|scope| {
        for load in &mut loads {
            let (socket, stop) = (&socket, &stop);
            scope.spawn(move || load.run(socket, stop));
        }
        thread::sleep(Duration::from_millis(500));
        if case.during.command().is_empty() {
            thread::sleep(Duration::from_secs(2));
        } else if let Some(done) = rig.command(case.during.command()) {
            rig.found.status = Some(done.status);
            rig.found.text = done.err;
        }
        if rig.is_up() {
            let _ = rig.command(&["status", "v"]);
        }
        thread::sleep(Duration::from_millis(500));
        stop.store(true, Ordering::Relaxed);
    });
    rig.found.struck = rig.drives.struck(drive);
    rig.drives.heal();
    judge(&mut rig, &mut loads);
    let Rig { mut found, .. } = rig;
    for load in loads {
        found.longest_request = found.longest_request.max(load.longest);
        found.faults.extend(load.faults);
    }
    found.faults.sort();
    found.faults.dedup();
    found
}

/// The drives work again: the volume goes on or reports why not, holds what it must hold, and shuts
/// down in order.
fn judge(rig: &mut Rig, loads: &mut [Load]) {
    let was_up = rig.is_up();
    if was_up && !goes_on(rig, loads) {
        // The message has to suffice to get the volume up again.
        let Some(done) = rig.command(&["down", "v"]) else { return };
        if !matches!(done.status, 0 | 6) {
            rig.found.faults.push(format!("does not go on, nor down: {done:?}"));
            return;
        }
    }
    if !rig.is_up() && !rig.bring_up() {
        return;
    }
    let lost = rig.lost();
    for load in loads.iter_mut() {
        let Ok(mut c) = Connection::open(&rig.socket()) else {
            rig.found.faults.push("no connection after the drives heal".into());
            return;
        };
        for at in 0..SHARE {
            let block = load.first + at;
            let known = load.blocks[at as usize];
            match c.ask(proto::cmd::READ, block, BLOCK as usize, &[]) {
                Ok((0, bytes)) => load.judge(at, &bytes, known.durable),
                Ok((error, _)) => {
                    let told = lost.iter().any(|&(f, n)| (f..f + n).contains(&block));
                    if !told {
                        load.faults.push(format!("LOST AND NOT TOLD: read error {error}"));
                    }
                }
                Err(silence) => {
                    load.faults.push(format!("HANG: a read after the drives heal: {silence:?}"));
                    return;
                }
            }
        }
    }
    let down = rig.command(&["down", "v", "--drain"]);
    match down {
        Some(done) if done.status == 0 || done.status == 6 && !lost.is_empty() => {}
        Some(done) => rig.found.faults.push(format!("not down after the drives heal: {done:?}")),
        None => {}
    }
}

/// Whether the volume takes and keeps a write again, or reports the failure.
fn goes_on(rig: &mut Rig, loads: &mut [Load]) -> bool {
    let until = Instant::now() + BOUND;
    while Instant::now() < until {
        let asked = Connection::open(&rig.socket()).and_then(|mut c| {
            let written = loads[0].write(&mut c, 0, 1)?;
            let flushed = loads[0].flush(&mut c)?;
            Ok(written == 0 && flushed == 0)
        });
        match asked {
            Ok(true) => return true,
            Ok(false) | Err(Silence::Gone) => thread::sleep(Duration::from_millis(100)),
            Err(Silence::Late) => {
                rig.found.faults.push("HANG: a write after the drives heal".into());
                return false;
            }
        }
    }
    let Some(done) = rig.command(&["status", "v"]) else { return false };
    let says = ["failed", "lost"].iter().any(|word| done.out.contains(word));
    if !says {
        rig.found.faults.push(format!("does not go on, and does not say why: {done:?}"));
    }
    rig.found.text = format!("{} | does not go on: {}", rig.found.text, done.out);
    false
}

//! The messages, and how they travel.

use crate::config::Plan;
use crate::error::{self, Context, Error, Result};
use crate::limit::Report;
use crate::stats::Stats;
use crate::system::usage::Tuned;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::value::RawValue;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// The version of the protocol; both sides refuse any other.
pub const VERSION: u32 = 3;

/// The longest request line in bytes.
pub(crate) const LONGEST_REQUEST: usize = 16 << 10;
/// The longest reply line in bytes.
pub(crate) const LONGEST_REPLY: usize = 1 << 20;

/// What can be asked of a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Nothing: is it there? Answer: [`Version`].
    Ping,
    /// Answer: [`Status`].
    Status,
    /// Answer: [`Stats`].
    Stats,
    /// What changes from moment to moment. Answer: [`super::Sample`].
    Sample,
    /// The holders of the device. Answer: a list of strings.
    Holders,
    /// Bring to the backing store what the log holds now. Answered when that is done, with
    /// [`Stats`]; a caller that hangs up before has it hurry no more.
    Drain,
    /// Take note of all blocks that are lost: from then on users are not told of these. Answer:
    /// [`Noted`].
    #[serde(rename = "accept-loss")]
    AcceptLoss,
    /// Change a running volume. Answer: [`Status`].
    Set {
        /// The new size in bytes, not below the present one.
        size_bytes: Option<u64>,
        /// The new limit on memory in bytes, which is fixed from then on.
        ram_limit_bytes: Option<u64>,
        /// How it shall adapt.
        #[serde(default)]
        adapt: AdaptChange,
        /// How the log shall work.
        #[serde(default)]
        log: LogChange,
        /// When cold data shall be recompressed.
        #[serde(default)]
        recompress: Option<RecompressChange>,
    },
    /// Make the device swap space, and use it. Answer: [`Swapping`].
    Swapon(Swapon),
    /// Take the device out of use as swap; what is swapped out comes back to memory. Answer:
    /// [`Swapping`], as it was.
    Swapoff {
        /// Although memory seems to have no room for it.
        force: bool,
    },
    /// Make everything durable that can be, and leave the volume to the next daemon. Answered when
    /// the export is gone, or waits, and just before the process is.
    Restart {
        /// Although a device that can't wait is held.
        force: bool,
        /// The log that the volume has from then on; without a word it keeps its own.
        #[serde(default)]
        log: Option<NewLog>,
    },
    /// End. Answered when the export is gone and just before the process is, with [`Ended`].
    Down {
        /// Although data is lost by it.
        discard: bool,
        /// Although the device is held.
        force: bool,
        /// Bring what was written last to the backing store, too.
        #[serde(default)]
        drain: bool,
    },
}

impl Request {
    /// Whether it changes something, and so waits for its caller's `go`.
    pub fn changes(&self) -> bool {
        match self {
            Self::Ping | Self::Status | Self::Stats | Self::Sample | Self::Holders => false,
            // It ends with its connection.
            Self::Drain => false,
            Self::AcceptLoss
            | Self::Set { .. }
            | Self::Swapon(_)
            | Self::Swapoff { .. }
            | Self::Restart { .. }
            | Self::Down { .. } => true,
        }
    }
}

/// What a caller says while its request is at work.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Word {
    /// Carry it out.
    Go {},
}

/// A loss of which note was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// So many blocks are lost.
    pub lost_blocks: u64,
}

/// A volume that has gone down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// What only the log has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<LeftInLog>,
    /// Why it was not drained to the end, if that was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undrained: Option<String>,
    /// What of it is lost that no user has taken note of.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
}

/// What only the log has of a volume that has gone down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftInLog {
    /// So many bytes of its blocks.
    pub bytes: u64,
    /// The log's drive.
    pub log: PathBuf,
    /// The drive that lacks them.
    pub backing: PathBuf,
}

/// How a device is to be used as swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swapon {
    /// Higher ones are used first.
    pub priority: i32,
    /// What `vm.page-cluster` is to be meanwhile; without a word it stays.
    #[serde(default)]
    pub page_cluster: Option<u64>,
    /// What `vm.swappiness` is to be meanwhile; without a word it stays.
    #[serde(default)]
    pub swappiness: Option<u64>,
    /// Although something is on the device, or this process can't be made safe for swap.
    pub force: bool,
}

/// A device that is used as swap, or was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swapping {
    /// The device.
    pub device: PathBuf,
    /// How much may be swapped out to it.
    pub size_bytes: u64,
    /// How much is, or was.
    pub used_bytes: u64,
    /// Higher ones are used first.
    pub priority: i32,
    /// What was changed on the machine for it.
    pub settings: Vec<Tuned>,
    /// What else the user should know.
    pub notes: Vec<String>,
}

/// The log that a volume is to have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NewLog {
    /// None: the volume is its backing store.
    None,
    /// One on this drive.
    On {
        /// The drive.
        path: PathBuf,
        /// What is on it may be overwritten, if it is no log.
        wipe: bool,
    },
}

/// When cold data shall be recompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecompressChange {
    /// Now, once; the stats say when that is done.
    Now,
    /// By itself.
    Idle,
    /// Not any more.
    Off,
}

/// How a limit on memory shall adapt; what is left out stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptChange {
    /// From now on it does.
    pub auto: bool,
    /// The lowest that it may be, in bytes.
    pub min_bytes: Option<u64>,
    /// The highest.
    pub max_bytes: Option<u64>,
}

/// What changes of how a log works; what is left out stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogChange {
    /// Whether writeback runs by itself.
    pub writeback: Option<bool>,
    /// Percent of the log that may fill before writeback runs beside foreground work.
    pub writeback_threshold_percent: Option<u64>,
    /// Bytes of a window of writeback while the log is nearly empty.
    pub writeback_window_bytes: Option<u64>,
    /// Milliseconds without a change after which what is in memory is made durable.
    pub commit_interval_ms: Option<u64>,
    /// Percent of the log for what the backing store has, too.
    pub keep_percent: Option<u64>,
}

/// The program and the process that answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Version {
    /// The program's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
}

/// A running volume.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Status {
    /// The program's version.
    pub version: String,
    /// The daemon's process.
    pub pid: u32,
    /// When it became usable, in seconds since 1970.
    pub started_unix_s: u64,
    /// How many daemons have gone on with what an earlier one had in memory.
    #[serde(default)]
    pub restarts: u64,
    /// What was asked for, as it is now.
    #[serde(flatten)]
    pub plan: Plan,
    /// What users open.
    pub endpoints: Vec<String>,
    /// The holders of the device.
    ///
    /// `None` where they were not looked up: that goes through all processes of the machine.
    pub holders: Option<Vec<String>>,
    /// How the limit on memory adapts, where it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapting: Option<Report>,
    /// All counters.
    pub stats: Stats,
}

/// A message with the protocol's version beside it.
#[derive(Serialize, Deserialize)]
pub(crate) struct Envelope<T> {
    pub v: u32,
    /// Of a request: when its caller gives up, in milliseconds of `CLOCK_BOOTTIME`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until_ms: Option<u64>,
    #[serde(flatten)]
    pub body: T,
}

impl<T> Envelope<T> {
    /// A message of this program.
    pub fn new(body: T) -> Self {
        Self { v: VERSION, until_ms: None, body }
    }
}

/// The time since the machine started, in milliseconds: one clock for all its processes, which
/// also goes while it sleeps.
pub(crate) fn boot_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1000 + u64::try_from(now.tv_nsec).unwrap_or_default() / 1_000_000
}

/// How an answer travels.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reply {
    /// Everything is checked, nothing was changed: the caller is to say whether it still wants it.
    Ready(()),
    Ok(Box<RawValue>),
    Error {
        status: error::Status,
        text: String,
    },
}

impl Reply {
    pub fn of(result: Result<Box<RawValue>>) -> Self {
        match result {
            Ok(value) => Self::Ok(value),
            Err(e) => Self::Error { status: e.status(), text: e.to_string() },
        }
    }

    pub fn into_result(self) -> Result<Box<RawValue>> {
        match self {
            Self::Ok(value) => Ok(value),
            Self::Error { status, text } => Err(Error::new(status, text)),
            Self::Ready(()) => Err(Error::failure("the daemon's answer is not understood")),
        }
    }
}

/// Sends `message` as one line, at the latest by `deadline`.
pub(crate) fn send(stream: &UnixStream, message: &impl Serialize, deadline: Instant) -> Result<()> {
    let mut line = serde_json::to_vec(message).context("cannot encode a control message")?;
    line.push(b'\n');
    let mut rest = &line[..];
    while !rest.is_empty() {
        stream.set_write_timeout(Some(left(deadline)?)).context("control socket")?;
        match (&*stream).write(rest) {
            Ok(0) => return Err(Error::failure("the control socket closed")),
            Ok(n) => rest = &rest[n..],
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(patience(e)),
        }
    }
    Ok(())
}

/// Receives one line of at most `longest` bytes, at the latest by `deadline`. Further lines may
/// follow: what came of them is kept in `rest` for the next call.
pub(crate) fn receive_next<T: DeserializeOwned>(
    stream: &UnixStream,
    rest: &mut Vec<u8>,
    longest: usize,
    deadline: Instant,
) -> Result<T> {
    receive_whole(stream, rest, longest, deadline).map(|envelope| envelope.body)
}

/// The same, with what is beside the message.
pub(crate) fn receive_whole<T: DeserializeOwned>(
    stream: &UnixStream,
    rest: &mut Vec<u8>,
    longest: usize,
    deadline: Instant,
) -> Result<Envelope<T>> {
    let mut seen = 0;
    let mut chunk = [0; 4096];
    let end = loop {
        if let Some(at) = rest[seen..].iter().position(|byte| *byte == b'\n') {
            break seen + at;
        }
        seen = rest.len();
        if seen > longest {
            return Err(Error::failure(format!(
                "a control message is longer than {longest} bytes"
            )));
        }
        stream.set_read_timeout(Some(left(deadline)?)).context("control socket")?;
        match (&*stream).read(&mut chunk) {
            Ok(0) => return Err(Error::failure("the control socket closed before a whole line")),
            Ok(n) => rest.extend_from_slice(&chunk[..n]),
            Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
            Err(e) => return Err(patience(e)),
        }
    };
    let line: Vec<u8> = rest.drain(..=end).collect();
    let envelope: Envelope<serde_json::Value> =
        serde_json::from_slice(&line[..end]).context("a control message is not understood")?;
    if envelope.v != VERSION {
        return Err(Error::failure(format!(
            "the other side speaks version {} of the control protocol, this one {VERSION}",
            envelope.v
        ))
        .hint("use the ztier that started the volume, or take it down with that one"));
    }
    let Envelope { v, until_ms, body } = envelope;
    let body = serde_json::from_value(body).context("a control message is not understood")?;
    Ok(Envelope { v, until_ms, body })
}

fn left(deadline: Instant) -> Result<Duration> {
    let left = deadline.saturating_duration_since(Instant::now());
    if left.is_zero() { Err(late()) } else { Ok(left) }
}

fn late() -> Error {
    Error::failure("no answer on the control socket in time")
        .hint("the daemon is stopped, or waits for a drive: see its log, and `dmesg`")
}

fn patience(e: std::io::Error) -> Error {
    match e.kind() {
        std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut => late(),
        _ => Error::failure(format!("control socket: {e}")),
    }
}

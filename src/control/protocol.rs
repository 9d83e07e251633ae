//! The messages, and their encoding on the wire.

use super::event::Since;
use crate::config::Plan;
use crate::config::log::LogChange;
use crate::error::{self, Context, Error, Result};
use crate::limit::Report;
use crate::stats::Stats;
use crate::system::usage::{Ballast, SlotNews, Tuned};
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

/// A request to a daemon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub enum Request {
    /// Check whether the daemon answers. Answer: [`Version`].
    Ping,
    /// Answer: [`Status`].
    Status,
    /// Answer: [`Stats`].
    Stats,
    /// All values that change from moment to moment. Answer: [`super::Sample`].
    Sample,
    /// What has happened. Waits for it, if there is nothing yet. Answer: [`super::Events`].
    Events(Since),
    /// The holders of the device. Answer: a list of strings.
    Holders,
    /// Write back all that the log holds now. Answered when that is done, with [`Stats`]; if the
    /// caller hangs up earlier, the log drains no further.
    Drain,
    /// Mark all lost blocks as known to the user, so that they are reported no longer. Answer:
    /// [`Noted`].
    #[serde(rename = "accept-loss")]
    AcceptLoss,
    /// Change a running volume. Answer: [`Status`].
    Set(VolumeChange),
    /// Make the device swap space, and swap to it. Answer: [`Swapping`].
    Swapon(Swapon),
    /// End the use of the device as swap; swapped-out pages return to memory. Answer: [`Swapping`],
    /// as it was before.
    Swapoff {
        /// Even if memory seems to lack the room for them.
        force: bool,
    },
    /// Make everything durable that can be, and leave the volume to the next daemon. Answered when
    /// the export is gone, or waits, just before the process ends.
    Restart {
        /// Even if a device that can't wait is held.
        force: bool,
        /// The log of the volume from then on; `None`: it keeps its own.
        #[serde(default)]
        log: Option<NewLog>,
    },
    /// Take the volume down. Answered when the export is gone, just before the process ends, with
    /// [`Ended`].
    Down {
        /// Even if data is lost.
        discard: bool,
        /// Even if the device is held.
        force: bool,
        /// First write everything back to the backing store.
        #[serde(default)]
        drain: bool,
    },
}

impl Request {
    /// Whether the request changes something, and so waits for its caller's `go`.
    pub fn changes(&self) -> bool {
        match self {
            Self::Ping | Self::Status | Self::Stats | Self::Sample | Self::Holders => false,
            // They end with their connections.
            Self::Drain | Self::Events(_) => false,
            Self::AcceptLoss
            | Self::Set(_)
            | Self::Swapon(_)
            | Self::Swapoff { .. }
            | Self::Restart { .. }
            | Self::Down { .. } => true,
        }
    }
}

/// Changes of a running volume; what is left out stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct VolumeChange {
    /// The new size in bytes, at least the present one.
    pub size_bytes: Option<u64>,
    /// The new limit on memory in bytes; from then on the limit is fixed.
    pub ram_limit_bytes: Option<u64>,
    /// Changes of how the limit adapts.
    pub adapt: AdaptChange,
    /// Changes of the log's settings.
    pub log: LogChange,
    /// A change of when cold data is recompressed.
    pub recompress: Option<RecompressChange>,
    /// Another spill device, or none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill: Option<NewSpill>,
    /// Another number of bytes that may be spilled a day; 0: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub spill_daily_bytes: Option<u64>,
}

/// Another spill device for a volume in memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NewSpill {
    /// The device; `None`: the volume is to have none.
    pub device: Option<PathBuf>,
    /// Overwrite what is on it.
    #[serde(default)]
    pub wipe: bool,
    /// Give up the blocks that can't be read from the present device.
    #[serde(default)]
    pub accept_loss: bool,
}

/// A caller's message while its request is being carried out.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
#[serde(tag = "op", rename_all = "lowercase", deny_unknown_fields)]
pub(crate) enum Word {
    /// Carry it out.
    Go {},
}

/// Lost blocks that were noted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Noted {
    /// The number of lost blocks.
    pub lost_blocks: u64,
}

/// A volume that has gone down.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ended {
    /// The data that remains only in the log.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub left: Option<LeftInLog>,
    /// Why the drain did not finish, if one was requested.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub undrained: Option<String>,
    /// Lost data that no user has noted yet, in words.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub loss: Option<String>,
}

/// The data of a volume that has gone down and that only its log has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct LeftInLog {
    /// Bytes of its blocks.
    pub bytes: u64,
    /// The log's drive.
    pub log: PathBuf,
    /// The drive that lacks them.
    pub backing: PathBuf,
}

/// Settings of a device as swap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swapon {
    /// The kernel uses swap of higher priority first.
    pub priority: i32,
    /// The value of `vm.page-cluster` meanwhile; `None`: unchanged.
    #[serde(default)]
    pub page_cluster: Option<u64>,
    /// The value of `vm.swappiness` meanwhile; `None`: unchanged.
    #[serde(default)]
    pub swappiness: Option<u64>,
    /// Whether blocks of freed slots are dropped.
    #[serde(default, skip_serializing_if = "SlotNews::is_auto")]
    pub freed_slots: SlotNews,
    /// A program that is run when memory and swap are nearly full, and when that is over.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on_full: Option<PathBuf>,
    /// When the swap area has ballast.
    #[serde(default, skip_serializing_if = "Ballast::is_auto")]
    pub ballast: Ballast,
    /// Even if the device has content, or this process can't be made safe for swap.
    pub force: bool,
}

/// A device that is or was used as swap.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Swapping {
    /// The device.
    pub device: PathBuf,
    /// Bytes that the kernel may swap out to it.
    pub size_bytes: u64,
    /// Bytes that are or were swapped out to it, without ballast.
    pub used_bytes: u64,
    /// The kernel uses swap of higher priority first.
    pub priority: i32,
    /// The machine's settings that were changed for it.
    pub settings: Vec<Tuned>,
    /// Further notes for the user.
    pub notes: Vec<String>,
}

/// A volume's new log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum NewLog {
    /// No log: the volume becomes a passthrough volume.
    None,
    /// A log on this drive.
    On {
        /// The drive.
        path: PathBuf,
        /// Overwrite any content of the drive except a log.
        wipe: bool,
    },
}

/// A change of when cold data is recompressed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RecompressChange {
    /// Now, once; the statistics show when that is done.
    Now,
    /// From now on, whenever the volume is idle.
    Idle,
    /// No longer.
    Off,
}

/// A change of how the memory limit adapts; fields left out stay.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct AdaptChange {
    /// The limit adapts from now on.
    pub auto: bool,
    /// The lowest limit, in bytes.
    pub min_bytes: Option<u64>,
    /// The highest limit, in bytes.
    pub max_bytes: Option<u64>,
}

/// The version and the process that answer.
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
    /// When the daemon became usable, in seconds since 1970.
    pub started_unix_s: u64,
    /// The number of daemons that have taken this volume over from an earlier one.
    #[serde(default)]
    pub restarts: u64,
    /// The plan as carried out.
    #[serde(flatten)]
    pub plan: Plan,
    /// The paths or addresses that users open.
    pub endpoints: Vec<String>,
    /// The holders of the device.
    ///
    /// `None` if they were not looked up: that goes through all processes of the machine, and waits
    /// while another command changes the volume.
    pub holders: Option<Vec<String>>,
    /// How the memory limit adapts; `None` if it is fixed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub adapting: Option<Report>,
    /// Bytes of the swap area that are ballast.
    #[serde(default)]
    pub ballast_bytes: u64,
    /// All counters.
    pub stats: Stats,
}

/// A message with the protocol's version.
#[derive(Serialize, Deserialize)]
pub(crate) struct Envelope<T> {
    pub v: u32,
    /// In a request: when its caller gives up, in milliseconds of `CLOCK_BOOTTIME`.
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

/// Milliseconds since the machine started: the same clock in all processes, which also runs while
/// the machine sleeps.
pub(crate) fn boot_ms() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Boottime);
    let seconds = u64::try_from(now.tv_sec).unwrap_or_default();
    seconds * 1000 + u64::try_from(now.tv_nsec).unwrap_or_default() / 1_000_000
}

/// An answer on the wire.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum Reply {
    /// Everything is checked, nothing was changed: the caller must confirm with `go`.
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

/// Sends `message` as one line, by `deadline`.
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

/// Receives one line of at most `longest` bytes, by `deadline`. Bytes of further lines are kept in
/// `rest` for the next call.
pub(crate) fn receive_next<T: DeserializeOwned>(
    stream: &UnixStream,
    rest: &mut Vec<u8>,
    longest: usize,
    deadline: Instant,
) -> Result<T> {
    receive_whole(stream, rest, longest, deadline).map(|envelope| envelope.body)
}

/// As [`receive_next`], with the whole envelope.
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

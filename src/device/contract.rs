//! What a front-end sees of a volume: requests in, results out, nothing else.
//!
//! A [`Device`] is shared; every thread of a front-end serves requests through a [`Channel`] of its
//! own, run to completion: when `submit` returns, the request is done.

use super::drives::Alarm;
use super::front::inside;
use crate::error::{Error, Result as Outcome};
use crate::log::Policy;
use crate::media::MadeFor;
use crate::ram::Recompress;
use crate::stats::{Latencies, Stats};
use std::sync::Arc;
use std::time::Instant;

/// One request of a front-end, any byte range inside the device.
#[derive(Debug)]
pub enum Request<'a> {
    /// Fill `buf` from `offset` on.
    Read {
        /// First byte.
        offset: u64,
        /// Where the bytes go.
        buf: &'a mut [u8],
    },
    /// Store `data` from `offset` on; with `fua` as durable as a flush makes it.
    Write {
        /// First byte.
        offset: u64,
        /// What to store.
        data: &'a [u8],
        /// Durable before it returns, as far as this volume can.
        fua: bool,
    },
    /// Make all that ended before as durable as this volume can.
    Flush,
    /// Forget the range; it reads as zeros at once.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// The range reads as zeros at once. `no_hole`: keep it allocated (`base:allocation` says so).
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Keep the range allocated.
        no_hole: bool,
        /// Durable before it returns, as far as this volume can.
        fua: bool,
    },
}

/// Which way bytes go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Into the volume: a write.
    In,
    /// Out of it: a read.
    Out,
}

/// A request whose bytes the front-end has elsewhere.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    /// A read, or a write.
    pub way: Way,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// What moves them.
    pub mover: &'a dyn DataMover,
}

/// Moves the bytes of a request; any thread may call it.
pub trait DataMover: Sync {
    /// Fills `part` with what begins `at` bytes into the request.
    ///
    /// # Errors
    /// [`IoError::Drive`] with the errno.
    fn copy_in(&self, at: usize, part: &mut [u8]) -> Result<(), IoError>;

    /// Brings `part`, which begins `at` bytes into the request.
    ///
    /// # Errors
    /// [`IoError::Drive`] with the errno.
    fn copy_out(&self, at: usize, part: &[u8]) -> Result<(), IoError>;
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// The range leaves the device.
    #[error("outside the device")]
    OutOfRange,
    /// Nothing more fits under the limit.
    #[error("no space left under the memory limit")]
    NoSpace,
    /// The record of this block is damaged.
    #[error("block {0} is damaged")]
    Corrupt(u64),
    /// The spill device does not give this block back.
    #[error("block {0} can't be read from the spill device")]
    Lost(u64),
    /// A drive, or the kernel that moves bytes, failed with this errno.
    #[error("a drive failed (errno {0})")]
    Drive(i32),
    /// This device does not do that.
    #[error("not supported by this volume")]
    Unsupported,
    /// More threads than the volume has room for.
    #[error("too many threads use this volume")]
    Busy,
}

impl IoError {
    /// The errno that the kernel or a client is told.
    pub fn errno(self) -> i32 {
        match self {
            Self::OutOfRange => 22,                // EINVAL
            Self::NoSpace => 28,                   // ENOSPC
            Self::Corrupt(_) | Self::Lost(_) => 5, // EIO
            Self::Drive(errno) => errno,
            Self::Unsupported => 95, // EOPNOTSUPP
            Self::Busy => 16,        // EBUSY
        }
    }
}

/// What is behind a range of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Stored data.
    Data,
    /// Zeros that a client wrote and wants kept.
    Zero,
    /// Nothing was ever written, or it was discarded.
    Hole,
}

/// A run of bytes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// What is behind it.
    pub kind: ExtentKind,
}

/// A block device that front-ends can serve.
pub trait Device: Send + Sync + 'static {
    /// Size in bytes, a multiple of 4096; it may grow.
    fn size(&self) -> u64;

    /// Whether it takes [`Request::Discard`].
    fn discards(&self) -> bool {
        true
    }

    /// Whether a flush makes anything more durable than it is. Without a log or a backing store
    /// there is nothing for it to do, and users that are told so need not wait for one.
    fn flushes(&self) -> bool {
        true
    }

    /// Whether requests may wait for a drive, so that it pays to have several under way.
    fn waits(&self) -> bool {
        false
    }

    /// From how many bytes on a request goes faster through [`Channel::ship`]; `None`: none does.
    fn worth_shipping(&self) -> Option<usize> {
        None
    }

    /// A way in for one thread: made when the thread starts, kept, never shared.
    fn channel(self: Arc<Self>) -> Box<dyn Channel>;

    /// What is behind `len` bytes from `offset` on: at least one and at most `most` runs, in order,
    /// together at most `len` bytes (fewer when `most` runs do not reach that far, or to look at
    /// all of it would hold up others). What a drive holds is unknown without reading it, and is
    /// all data.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`].
    fn extents(&self, offset: u64, len: u64, most: usize) -> Result<Vec<Extent>, IoError> {
        let _ = most;
        inside(offset, len, self.size())?;
        Ok(vec![Extent { len, kind: ExtentKind::Data }])
    }
}

/// How a log works, as far as that can be changed while it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// When and how much is written back.
    pub policy: Policy,
    /// Milliseconds without a change after which what is there is made durable.
    pub commit_interval_ms: u64,
    /// Percent of the log for what the backing store has, too.
    pub keep_percent: u64,
}

/// A device that a daemon runs.
pub trait Serving: Device {
    /// All counters, now.
    fn stats(&self) -> Stats;

    /// How long requests took, to the last bucket.
    fn latencies(&self) -> Latencies;

    /// What the content was made for, where no drive alone tells; counted as no request.
    fn made_for(&self) -> Option<MadeFor> {
        None
    }

    /// Changes the limit on memory, in bytes.
    ///
    /// # Errors
    /// A limit that cannot be; then nothing changes.
    fn set_ram_limit(&self, bytes: u64) -> Outcome<()>;

    /// Has `alarm` called whenever a drive below has failed a request, or blocks turn out to be
    /// lost. It must neither wait nor allocate.
    fn heed(&self, alarm: &Alarm);

    /// Ends the volume's own work; what can be durable is.
    ///
    /// # Errors
    /// Something that was acknowledged could not be made durable.
    fn close(&self) -> Outcome<()>;

    /// What only a volume without a backing store can do.
    fn in_memory(&self) -> Option<&dyn InMemory> {
        None
    }

    /// What only a volume with a log can do.
    fn log(&self) -> Option<&dyn LogControl> {
        None
    }

    /// Bytes of data that exist nowhere else and end with [`Self::close`].
    fn volatile_bytes(&self) -> u64 {
        self.in_memory().map_or(0, InMemory::stored_bytes)
    }
}

/// A volume whose data is in memory and on a spill device, and nowhere else.
pub trait InMemory {
    /// Bytes of data that is stored.
    fn stored_bytes(&self) -> u64;

    /// Makes the device larger, at once.
    ///
    /// # Errors
    /// A size that cannot be; then nothing changes.
    fn grow(&self, size: u64) -> Outcome<()>;

    /// Changes when cold data is recompressed.
    ///
    /// # Errors
    /// There is no memory for that.
    fn set_recompress(&self, when: Recompress) -> Outcome<()>;

    /// Begins to recompress everything that was not read lately.
    ///
    /// # Errors
    /// As [`Self::set_recompress`].
    fn recompress(&self) -> Outcome<()>;

    /// Prepares for the machine to swap to the device, which may then be short of memory itself; or
    /// ends that.
    ///
    /// # Errors
    /// There is no room for what that needs.
    fn carry_swap(&self, on: bool) -> Outcome<()>;

    /// Takes the volume's name off what means nothing without it, once it is gone for good: others
    /// may use that then.
    fn disown(&self);
}

/// A volume with a log before its backing store.
pub trait LogControl {
    /// Changes how the log works.
    fn tune(&self, tuning: &Tuning);

    /// Hurries to bring to the backing store what the log holds now, or stops hurrying to. It is
    /// there when the log's tail has come to the segment that is returned.
    fn drain(&self, on: bool) -> u64;

    /// Takes note of all blocks that are lost: no user needs to be told of these any more. How
    /// many they are.
    ///
    /// # Errors
    /// That can't be written down.
    fn note_loss(&self) -> Outcome<u64>;
}

/// One thread's way into a device: owns the scratch memory and the counters of that thread.
pub trait Channel: Send {
    /// Serves one request of any byte range, run to completion on this thread. `arrived` is when
    /// the front-end took it in (for the latency histograms).
    ///
    /// # Errors
    /// See [`IoError`]; a request that failed may have been carried out for some of its blocks.
    fn submit(&mut self, request: Request<'_>, arrived: Instant) -> Result<(), IoError>;

    /// Serves a read or a write whose bytes are not in memory yet, or have to go elsewhere: several
    /// threads may move parts of it at the same time, this one through `scratch`, which has at
    /// least [`Device::worth_shipping`] bytes.
    ///
    /// # Errors
    /// As [`Channel::submit`]; [`IoError::Unsupported`] where nothing is worth shipping.
    fn ship(
        &mut self,
        load: Load<'_>,
        scratch: &mut [u8],
        arrived: Instant,
    ) -> Result<(), IoError> {
        let (_, _, _) = (load, scratch, arrived);
        Err(IoError::Unsupported)
    }

    /// Counts `bytes` of memory that the front-end holds for this channel's requests (in place of
    /// what it counted before), where the device has a limit on memory.
    fn count_buffers(&mut self, bytes: u64) {
        let _ = bytes;
    }
}

/// A setting of a log, where there is none.
pub fn no_log() -> Error {
    Error::usage("the volume has no log, and this is a setting of one").hint("leave it out")
}

/// A limit on copies, where none are kept.
pub(super) fn no_copies() -> Error {
    Error::usage("the volume came up with --ram-limit 0 and keeps no copies")
        .hint("take it down, and up with another --ram-limit")
}

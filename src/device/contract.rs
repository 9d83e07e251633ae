//! What a front-end sees of a volume: requests in, results out, nothing else.
//!
//! All threads share a [`Device`]. Each thread of a front-end submits requests through its own
//! [`Channel`], run to completion: when `submit` returns, the request is done.

use super::drives::Alarm;
use super::spill_setup::SpillDevice;
use crate::cache::Cached;
use crate::error::{Error, Result as Outcome};
use crate::log::Policy;
use crate::media::MadeFor;
use crate::ram::Recompress;
use crate::ram::store::FreedBits;
use crate::stats::{Latencies, Stats};
use std::sync::Arc;
use std::time::Instant;

/// A request of a front-end, for any byte range inside the device.
#[derive(Debug)]
pub enum Request<'a> {
    /// Fill `buf` from `offset` on.
    Read {
        /// First byte.
        offset: u64,
        /// Destination of the bytes.
        buf: &'a mut [u8],
    },
    /// Store `data` from `offset` on. With `fua`, `data` is as durable as after a flush.
    Write {
        /// First byte.
        offset: u64,
        /// The bytes to store.
        data: &'a [u8],
        /// Make it durable before returning, as far as this volume can.
        fua: bool,
    },
    /// Make all requests that ended before as durable as this volume can.
    Flush,
    /// Discard the range; it reads as zeros at once.
    Discard {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
    },
    /// Zero the range; it reads as zeros at once. `no_hole`: `base:allocation` reports it as
    /// allocated.
    WriteZeroes {
        /// First byte.
        offset: u64,
        /// Bytes.
        len: u64,
        /// Keep the range allocated.
        no_hole: bool,
        /// Make it durable before returning, as far as this volume can.
        fua: bool,
    },
}

/// Direction of a transfer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Into the volume: a write.
    In,
    /// Out of the volume: a read.
    Out,
}

/// A read or write whose bytes are not in a buffer of this process: `mover` moves them.
#[derive(Clone, Copy)]
pub struct Load<'a> {
    /// A read, or a write.
    pub way: Way,
    /// First byte on the device.
    pub offset: u64,
    /// Bytes.
    pub len: usize,
    /// Moves the bytes.
    pub mover: &'a dyn DataMover,
}

/// Moves the bytes of a request. Any thread may call it.
pub trait DataMover: Sync {
    /// Copies from the front-end: fills `part` with the bytes that begin `at` bytes into the
    /// request.
    ///
    /// # Errors
    /// [`IoError::Drive`] with the errno.
    fn copy_in(&self, at: usize, part: &mut [u8]) -> Result<(), IoError>;

    /// Copies to the front-end: `part` holds the bytes that begin `at` bytes into the request.
    ///
    /// # Errors
    /// [`IoError::Drive`] with the errno.
    fn copy_out(&self, at: usize, part: &[u8]) -> Result<(), IoError>;
}

/// Why a request failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum IoError {
    /// The range exceeds the device.
    #[error("outside the device")]
    OutOfRange,
    /// No room is left under the memory limit.
    #[error("no space left under the memory limit")]
    NoSpace,
    /// The record of this block is damaged.
    #[error("block {0} is damaged")]
    Corrupt(u64),
    /// The spill device cannot return this block.
    #[error("block {0} can't be read from the spill device")]
    Lost(u64),
    /// A drive, or the kernel when it moved bytes, failed with this errno.
    #[error("a drive failed (errno {0})")]
    Drive(i32),
    /// This device does not support the request.
    #[error("not supported by this volume")]
    Unsupported,
    /// More threads than the volume has room for.
    #[error("too many threads use this volume")]
    Busy,
}

impl IoError {
    /// The errno for the kernel or a client.
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

/// What an extent of the device holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExtentKind {
    /// Stored data.
    Data,
    /// Zeros that a client wrote with `no_hole`.
    Zero,
    /// Never written, or discarded.
    Hole,
}

/// A run of bytes of one kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Length in bytes.
    pub len: u64,
    /// What it holds.
    pub kind: ExtentKind,
}

/// A block device that front-ends can serve.
pub trait Device: Send + Sync + 'static {
    /// Size in bytes, a multiple of 4096; it may grow.
    fn size(&self) -> u64;

    /// Whether the device takes [`Request::Discard`].
    fn discards(&self) -> bool {
        true
    }

    /// Whether a flush makes anything more durable. Without a log or a backing store it does not,
    /// and a front-end that reports this saves its clients the wait.
    fn flushes(&self) -> bool {
        true
    }

    /// Whether requests may wait for a drive, so that several in flight are faster.
    fn waits(&self) -> bool {
        false
    }

    /// Whether what is written goes to a drive as it is: then memory that begins at a multiple of a
    /// block is written without a copy, in one piece.
    fn writes_through(&self) -> bool {
        false
    }

    /// The least request size in bytes that is faster through [`Channel::ship`]; `None`: no size
    /// is.
    fn worth_shipping(&self) -> Option<usize> {
        None
    }

    /// A channel for one thread: made when the thread starts, kept, never shared.
    fn channel(self: Arc<Self>) -> Box<dyn Channel>;

    /// The extents of `len` bytes from `offset` on: at least one and at most `most`, in order. They
    /// cover at most `len` bytes; fewer if `most` extents do not reach that far, or if looking at
    /// all of it would delay others. Only a read shows what a drive holds, so all of it counts as
    /// data.
    ///
    /// # Errors
    /// [`IoError::OutOfRange`].
    fn extents(&self, offset: u64, len: u64, most: usize) -> Result<Vec<Extent>, IoError> {
        let _ = most;
        inside(offset, len, self.size())?;
        Ok(vec![Extent { len, kind: ExtentKind::Data }])
    }
}

/// Settings of a log that can change while it runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tuning {
    /// When and how much is written back.
    pub policy: Policy,
    /// Milliseconds without a change after which the log commits what is in memory.
    pub commit_interval_ms: u64,
    /// Percent of the log that may hold copies of what the backing store has, too.
    pub keep_percent: u64,
}

/// A device that a daemon runs.
pub trait Serving: Device {
    /// All counters, now.
    fn stats(&self) -> Stats;

    /// How long requests took, with all buckets.
    fn latencies(&self) -> Latencies;

    /// The sector that the content was made for, where the drive alone does not tell. Not counted
    /// as a request.
    fn made_for(&self) -> Option<MadeFor> {
        None
    }

    /// Changes the limit on memory, in bytes.
    ///
    /// # Errors
    /// The limit is invalid or cannot be reached; then nothing changes.
    fn set_ram_limit(&self, bytes: u64) -> Outcome<()>;

    /// Has `alarm` called whenever a drive below fails a request, or blocks turn out to be lost.
    /// `alarm` must neither wait nor allocate.
    fn heed(&self, alarm: &Alarm);

    /// Makes the device larger, at once.
    ///
    /// # Errors
    /// The size is invalid, or that of a drive below; then nothing changes.
    fn grow(&self, size: u64) -> Outcome<()> {
        match self.in_memory() {
            Some(memory) => memory.grow(size),
            None => Err(fixed_size()),
        }
    }

    /// Ends the volume's own threads, after they have made durable what can be.
    ///
    /// # Errors
    /// Acknowledged data could not be made durable.
    fn close(&self) -> Outcome<()>;

    /// Operations of a volume without a backing store.
    fn in_memory(&self) -> Option<&dyn InMemory> {
        None
    }

    /// The read cache of a volume that has one.
    fn read_cache(&self) -> Option<&Arc<Cached>> {
        None
    }

    /// Operations of a volume with a log.
    fn log(&self) -> Option<&dyn LogControl> {
        None
    }

    /// Bytes of data that exist nowhere else and that [`Self::close`] loses.
    fn volatile_bytes(&self) -> u64 {
        self.in_memory().map_or(0, InMemory::stored_bytes)
    }
}

/// The error for a volume that is as large as its drive.
pub(super) fn fixed_size() -> Error {
    Error::usage("the volume has the size of its backing store")
        .hint("make that larger, then take the volume down and up")
}

/// A volume whose data exists only in memory and on a spill device.
pub trait InMemory {
    /// Bytes of stored data.
    fn stored_bytes(&self) -> u64;

    /// Makes the device larger, at once.
    ///
    /// # Errors
    /// The size is invalid; then nothing changes.
    fn grow(&self, size: u64) -> Outcome<()>;

    /// Changes when cold data is recompressed.
    ///
    /// # Errors
    /// There is no memory for it.
    fn set_recompress(&self, when: Recompress) -> Outcome<()>;

    /// Starts to recompress everything that was not read lately.
    ///
    /// # Errors
    /// As [`Self::set_recompress`].
    fn recompress(&self) -> Outcome<()>;

    /// Prepares for the machine to swap to the device, or ends that. While it swaps, the machine
    /// may itself be short of memory.
    ///
    /// # Errors
    /// There is no room for the emergency reserve.
    fn carry_swap(&self, on: bool) -> Outcome<()>;

    /// Whether the machine has plenty of memory: then a small emergency reserve is enough. Until
    /// this is called it has not.
    fn memory_is_plenty(&self, plenty: bool);

    /// Whether the machine does not swap to the device now, although [`Self::carry_swap`] is on:
    /// then writes wait longer for memory before they are refused.
    fn swap_rests(&self, rests: bool);

    /// Follows from now on which blocks' content is given up, as `bits` tell, or none.
    fn follow_freed(&self, bits: Option<&FreedBits>);

    /// Makes holes of the blocks that the followed bits give up. `stop` ends it early.
    fn drop_freed(&self, bits: &FreedBits, stop: &dyn Fn() -> bool);

    /// Gives the volume another spill device, or none, while it works. What is spilled is copied
    /// to the new device, or comes back to memory. Returns the number of blocks that were given up.
    ///
    /// # Errors
    /// The new device can't be used, memory lacks room, or blocks can't be read from the present
    /// device. Then the volume keeps it.
    fn change_spill(&self, change: SpillChange<'_>) -> Outcome<u64>;

    /// Changes the bytes that may be written to the spill device a day; 0: no limit.
    ///
    /// # Errors
    /// There is no spill device.
    fn set_spill_daily(&self, bytes: u64) -> Outcome<()>;

    /// Removes the volume's label from its spill device, once the volume is gone for good. Others
    /// may then use the device.
    fn disown(&self);
}

/// A change of the spill device.
pub struct SpillChange<'a> {
    /// The new device; `None`: there is to be none.
    pub device: Option<&'a SpillDevice>,
    /// Whether blocks that can't be read from the present device are given up.
    pub gives_up: bool,
    /// Whether the caller does not want it any more.
    pub stop: &'a dyn Fn() -> bool,
    /// Notes the change where a next process finds it. If that fails, the volume keeps its device.
    pub commit: &'a mut dyn FnMut() -> Outcome<()>,
}

/// A volume with a log in front of its backing store.
pub trait LogControl {
    /// Changes settings of the running log.
    fn tune(&self, tuning: &Tuning);

    /// Starts or stops to write back at once all that the log holds now. The backing store has it
    /// when the log's tail reaches the returned segment.
    fn drain(&self, on: bool) -> u64;

    /// Makes all earlier writes durable in the log, also when the volume has another owner by now
    /// and serves no request any more.
    ///
    /// # Errors
    /// The log has failed, and what it held is not in the backing store.
    fn secure(&self) -> Outcome<()>;

    /// Marks all lost blocks as known to the user, so that they are reported no longer. Returns how
    /// many blocks these are.
    ///
    /// # Errors
    /// The note cannot be written.
    fn note_loss(&self) -> Outcome<u64>;
}

/// One thread's access to a device: owns the scratch memory and the counters of that thread.
pub trait Channel: Send {
    /// Serves a request of any byte range, run to completion on this thread. `arrived` is when the
    /// front-end received it (for the latency histograms).
    ///
    /// # Errors
    /// See [`IoError`]. A failed request may have been carried out for some of its blocks.
    fn submit(&mut self, request: Request<'_>, arrived: Instant) -> Result<(), IoError>;

    /// Serves a read or a write whose bytes `load.mover` moves. Several threads may move parts of
    /// it at the same time; this thread moves its parts through `scratch`, which has at least
    /// [`Device::worth_shipping`] bytes.
    ///
    /// # Errors
    /// As [`Channel::submit`]; [`IoError::Unsupported`] if the device ships nothing.
    fn ship(
        &mut self,
        load: Load<'_>,
        scratch: &mut [u8],
        arrived: Instant,
    ) -> Result<(), IoError> {
        let (_, _, _) = (load, scratch, arrived);
        Err(IoError::Unsupported)
    }

    /// Counts `bytes` of memory that the front-end holds for this channel's requests, in place of
    /// the number counted before, if the device has a limit on memory.
    fn count_buffers(&mut self, bytes: u64) {
        let _ = bytes;
    }
}

/// The error for a setting of a log on a volume without a log.
pub fn no_log() -> Error {
    Error::usage("the volume has no log, and this is a setting of one").hint("leave it out")
}

/// The error for a limit on copies on a volume that keeps none.
pub(super) fn no_copies() -> Error {
    Error::usage("the volume came up with --ram-limit 0 and keeps no copies")
        .hint("take it down, and up with another --ram-limit")
}

/// Whether a range is inside a device of `size` bytes.
///
/// # Errors
/// [`IoError::OutOfRange`].
pub(super) fn inside(offset: u64, len: u64, size: u64) -> Result<(), IoError> {
    match offset.checked_add(len) {
        Some(end) if end <= size => Ok(()),
        _ => Err(IoError::OutOfRange),
    }
}

//! The interface of a log's drive or a backing store: bytes at offsets, and a flush.
//!
//! Invariants that every drive keeps: stored data is read back at once; it survives a loss of power
//! only after a [`Drive::flush`] that began after the write had returned; a write that failed, or
//! that a power cut interrupted, may have stored any of its sectors, each of them whole or torn.

use super::{Blocks, Buffer, Commit, Failures, PAGE};
use std::fmt;
use std::time::Duration;

/// Alignment of every offset, length and buffer, in bytes.
pub const ALIGN: usize = PAGE;

/// The kind of a request to a drive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    /// Bytes from the drive.
    Read,
    /// Bytes to the drive.
    Write,
    /// A range made to read as zeros.
    Zero,
    /// The volatile cache emptied.
    Flush,
}

impl fmt::Display for Action {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
            Self::Zero => "zero",
            Self::Flush => "flush",
        })
    }
}

/// An action that failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{action} of {len} bytes at {at} failed (errno {errno})")]
pub struct DriveError {
    /// The kind of the request.
    pub action: Action,
    /// Its offset, in bytes.
    pub at: u64,
    /// Its length, in bytes; 0 for a flush.
    pub len: u64,
    /// The system's error number.
    pub errno: i32,
}

/// A drive: a disk, a partition, a file, or a simulated one. Shared by all threads.
///
/// Offsets and lengths, except in [`Drive::write_part`], are multiples of [`ALIGN`] and inside
/// [`Drive::size`]. Buffers from [`super::Buffer`] are aligned as well, which saves a copy.
///
/// # Errors
/// Every method fails with a [`DriveError`]; parts of the request may have been done.
pub trait Drive: Send + Sync {
    /// Usable size in bytes, a multiple of [`ALIGN`].
    fn size(&self) -> u64;

    /// Fills `buf` from `at` on.
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError>;

    /// Like [`Drive::read`]. Returns whether the drive itself was asked: `false` if all bytes were
    /// in memory, and the caller waited for nothing.
    fn read_noting(&self, at: u64, buf: &mut [u8]) -> Result<bool, DriveError> {
        self.read(at, buf).map(|()| true)
    }

    /// Reads into each buffer from its offset on, several at once where the drive gains by it. Each
    /// buffer has a result of its own.
    fn read_many(&self, wanted: Vec<(u64, Buffer)>) -> Vec<Result<(u64, Buffer), DriveError>> {
        let read = |(at, mut buffer): (u64, Buffer)| {
            self.read(at, &mut buffer)?;
            Ok((at, buffer))
        };
        wanted.into_iter().map(read).collect()
    }

    /// Stores `data` from `at` on.
    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError>;

    /// Like [`Drive::write`], of blocks that may be packed already. An atomic drive may store those
    /// as they are: what does not decode then fails to be read.
    fn write_packed(&self, at: u64, blocks: Blocks<'_>) -> Result<(), DriveError> {
        if let Some(plain) = blocks.as_plain() {
            return self.write(at, plain.as_flattened());
        }
        let (whole, good) = blocks.unpack();
        if good.contains(&false) {
            let (action, len) = (Action::Write, whole.len() as u64);
            return Err(DriveError {
                action,
                at,
                len,
                errno: rustix::io::Errno::IO.raw_os_error(),
            });
        }
        self.write(at, &whole)
    }

    /// Stores `data` from `at` on, any bytes within one block, and changes no other byte of the
    /// block. The caller keeps other threads from writing the block meanwhile.
    ///
    /// Writes only the sectors of `data` if the drive can; otherwise reads and writes the whole
    /// block.
    fn write_part(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        write_part_as_block(self, at, data)
    }

    /// Makes `len` bytes from `at` on read as zeros, and gives their space back where it can.
    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError>;

    /// Whether [`Drive::zero`] costs much less than writing as many zeros.
    fn zeroes_quickly(&self) -> bool {
        true
    }

    /// The failures so far, if the drive records them.
    fn failures(&self) -> Option<&Failures> {
        None
    }

    /// Makes every write that has returned survive a loss of power.
    fn flush(&self) -> Result<(), DriveError>;

    /// Whether a log's windows count as a whole: what was written since [`Drive::begin`] is durable
    /// with [`Drive::commit`], and until then after a restart as if it had not been written.
    fn is_atomic(&self) -> bool {
        false
    }

    /// A window begins. An atomic drive drops what was written to a window that was not committed.
    fn begin(&self) {}

    /// Prepares the commit of what was written, at most for the time `most`. Returns whether that
    /// is done; if not, or after an error, it goes on with the next call. A drive that is not
    /// atomic makes all writes durable, as [`Drive::flush`] does.
    fn settle(&self, most: Duration) -> Result<bool, DriveError> {
        let _ = most;
        self.flush().map(|()| true)
    }

    /// Makes what was written since [`Drive::begin`], and `commit` with it, the durable state of an
    /// atomic drive; at most for the time `most`. Returns whether that is done.
    ///
    /// If not, or after an error, it may be done or not: the next request that changes the drive
    /// must be the same commit again.
    fn commit(&self, commit: &Commit, most: Duration) -> Result<bool, DriveError> {
        let _ = (commit, most);
        Ok(true)
    }

    /// Flushes, and ends what the drive does by itself. No request follows.
    fn close(&self) -> Result<(), DriveError> {
        self.flush()
    }
}

/// Stores `data`, within one block, by reading and writing the whole block.
pub(super) fn write_part_as_block<D: Drive + ?Sized>(
    drive: &D,
    at: u64,
    data: &[u8],
) -> Result<(), DriveError> {
    let within = (at % ALIGN as u64) as usize;
    let mut block = Buffer::new(ALIGN);
    drive.read(at - within as u64, &mut block)?;
    block[within..within + data.len()].copy_from_slice(data);
    drive.write(at - within as u64, &block)
}

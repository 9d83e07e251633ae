//! What a log or a backing store is to the layers above: bytes at offsets, and a flush.
//!
//! Invariants that every drive keeps: what a write stored is read back at once; it survives a loss
//! of power only after a [`Drive::flush`] that began after the write had returned; a write that
//! failed, or that the power cut, may have stored any of its sectors, each of them whole or torn.

use super::{Buffer, Failures, PAGE};
use std::fmt;

/// Alignment of every offset, length and buffer, in bytes.
pub const ALIGN: usize = PAGE;

/// What was asked of a drive.
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
    /// What was asked.
    pub action: Action,
    /// From where on, in bytes.
    pub at: u64,
    /// How much, in bytes; 0 for a flush.
    pub len: u64,
    /// The system's number for the reason.
    pub errno: i32,
}

/// A drive: a disk, a partition, a file, or a simulated one. Shared by all threads.
///
/// Offsets and lengths, but those of a part, are multiples of [`ALIGN`] and inside [`Drive::size`];
/// buffers begin at multiples of it too when they come from [`super::Buffer`], which costs no copy.
///
/// # Errors
/// Every method says what failed as a [`DriveError`]; parts of it may have been done.
pub trait Drive: Send + Sync {
    /// Usable size in bytes, a multiple of [`ALIGN`].
    fn size(&self) -> u64;

    /// Fills `buf` from `at` on.
    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError>;

    /// The same; whether the drive itself was asked: `false` where all of it was in memory, and the
    /// caller waited for nothing.
    fn read_noting(&self, at: u64, buf: &mut [u8]) -> Result<bool, DriveError> {
        self.read(at, buf).map(|()| true)
    }

    /// Reads into each buffer from its offset on, several at once where the drive gains by it. What
    /// became of each is said for itself.
    fn read_many(&self, wanted: Vec<(u64, Buffer)>) -> Vec<Result<(u64, Buffer), DriveError>> {
        let read = |(at, mut buffer): (u64, Buffer)| {
            self.read(at, &mut buffer)?;
            Ok((at, buffer))
        };
        wanted.into_iter().map(read).collect()
    }

    /// Stores `data` from `at` on.
    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError>;

    /// Stores `data` from `at` on, any bytes within one block, and changes nothing else of it. The
    /// caller keeps others from writing the block meanwhile.
    ///
    /// A drive that can writes only the sectors of `data`. Else the whole block is read and
    /// written.
    fn write_part(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        write_part_as_block(self, at, data)
    }

    /// Makes `len` bytes from `at` on read as zeros, and gives their space back where it can.
    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError>;

    /// Whether [`Drive::zero`] costs much less than writing as many zeros.
    fn zeroes_quickly(&self) -> bool {
        true
    }

    /// What has failed on it so far, of a drive that keeps that.
    fn failures(&self) -> Option<&Failures> {
        None
    }

    /// Makes every write that has returned survive a loss of power.
    fn flush(&self) -> Result<(), DriveError>;
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

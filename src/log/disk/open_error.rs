//! Why a log cannot be made or opened.

use super::format::{SEGMENTS_MAX, SEGMENTS_MIN};
use crate::media::DriveError;

/// Why a log cannot be made or opened.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OpenError {
    /// The drive failed.
    #[error(transparent)]
    Drive(#[from] DriveError),
    /// A place where a chunk may be cannot be read.
    #[error("what it holds cannot be read: {0}")]
    Unread(DriveError),
    /// No copy of a superblock is on the drive.
    #[error("no log is on it")]
    NoLog,
    /// Both copies of the superblock are damaged.
    #[error("both copies of the superblock are damaged")]
    Damaged,
    /// Its format is of another version.
    #[error("its format has version {0}, which this program does not know")]
    Version(u32),
    /// The drive is smaller than the log.
    #[error("it has {has} bytes, and the log takes {needs}")]
    Shrunk {
        /// Size of the drive in bytes.
        has: u64,
        /// Bytes that the log takes.
        needs: u64,
    },
    /// The segment size is invalid.
    #[error("segment {0} is not usable: give a power of two from 32K to 16M")]
    Segment(u32),
    /// The drive has room for too few segments, or the log would have too many.
    #[error("{0} segments fit, and a log has from {SEGMENTS_MIN} to {SEGMENTS_MAX}")]
    Segments(u64),
    /// There is no memory for its chunks, or what another process left there is of another version.
    #[error("{0}")]
    Memory(String),
    /// What another process left in memory is of another log.
    #[error("what is kept in memory is of another log")]
    OtherMemory,
    /// The log was written after a process left something in memory.
    #[error("it has gone on without what is kept of it in memory")]
    GoneOn,
    /// Chunks are neither in memory nor on the drive.
    #[error("chunk {chunk} was durable and is not there, and what is in memory follows it")]
    Forgotten {
        /// Number of the first missing chunk.
        chunk: u64,
    },
    /// A durable chunk is missing: data was lost that had been acknowledged.
    #[error("chunk {chunk} in segment {segment} was durable and is damaged")]
    Lost {
        /// Number of the first chunk that is missing.
        chunk: u64,
        /// The segment in which it should be.
        segment: u64,
    },
}

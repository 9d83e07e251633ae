//! Settings of a log, and sizes that its parts share.

use crate::log::disk::format::Superblock;

/// Largest [`Options::memory`], in bytes.
pub const MEMORY_MAX: u64 = 64 << 20;

/// Segments that only the core itself may open, for records that it appends to make room.
pub(super) const RESERVE: u64 = 2;

/// Most bytes in a chunk.
pub const CHUNK_MAX: u32 = 1 << 20;
/// A segment with less room than this is finished: the smallest chunk with one incompressible
/// block.
pub const CHUNK_MIN: u32 = 8192;

/// Settings of a log.
#[derive(Clone, Copy, Debug)]
pub struct Options {
    /// Most bytes in the log's memory that are not durable; the log commits by itself at three
    /// quarters of it.
    pub memory: u64,
    /// Most bytes of segments in one window of writeback.
    pub window: u64,
    /// Milliseconds without a change after which the log commits by itself.
    pub idle_ms: u64,
    /// Least bytes of chunks between two checkpoints; 0: no checkpoints.
    pub checkpoint: u64,
    /// How long a commit waits at most for the flushers that the last commit served: the time that
    /// the last commit took, divided by this; 0: it does not wait.
    pub gather_part: u64,
    /// Percent of the log that may hold copies of the backing store's blocks; 0: none.
    pub keep_percent: u64,
    /// Whether the backing store is atomic: [`Drive::is_atomic`](crate::media::Drive::is_atomic).
    pub atomic: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self {
            memory: 64 << 20,
            window: 64 << 20,
            idle_ms: 1000,
            checkpoint: 4 << 30,
            gather_part: 8,
            keep_percent: 0,
            atomic: false,
        }
    }
}

impl Options {
    /// These options, fitted to a log: in a small log only a part may wait to become durable,
    /// because writeback takes durable segments only.
    #[must_use]
    pub fn fitted(self, sb: &Superblock) -> Self {
        let part = (sb.segments / 8).max(2) * u64::from(sb.segment);
        Self { memory: self.memory.min(part), ..self }
    }
}

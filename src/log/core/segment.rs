//! A segment of the log, as the core knows it.

/// A segment in use.
#[derive(Clone, Copy, Debug)]
pub(in crate::log) struct Segment {
    pub epoch: u64,
    /// Number of its first chunk, or of the next one if it has none.
    pub chunk: u64,
    /// CRC of the header before that chunk.
    pub prev: u32,
    /// Bytes that its chunks take.
    pub used: u32,
    /// Readers that pin the segment.
    pub pins: u32,
    /// Blocks whose newest change is in this segment.
    pub changes: u32,
    /// It takes no more chunks.
    pub finished: bool,
}

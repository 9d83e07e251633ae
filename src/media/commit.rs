//! What an atomic drive keeps beside the content of each of its states.

/// Where a log begins.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tail {
    /// The oldest segment.
    pub segment: u64,
    /// Number of its first chunk.
    pub chunk: u64,
    /// CRC of the header before that chunk.
    pub prev: u32,
}

/// A state of the volume that a log brings to an atomic drive; see
/// [`Drive::commit`](super::Drive::commit).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Commit {
    /// The log's UUID.
    pub log: [u8; 16],
    /// With this commit the drive has everything before this tail of the log.
    pub tail: Tail,
    /// The time of the state, in seconds since 1970; 0: unknown.
    pub at_s: u64,
    /// Since when the drive holds a mixture of states, in seconds since 1970; 0: it holds a past
    /// state of the volume.
    pub mixture_s: u64,
    /// Blocks whose content is lost in this state, as first block and count.
    pub lost: Vec<(u64, u64)>,
}

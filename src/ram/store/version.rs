//! What tells two contents of a block apart.

use super::format::Home;

/// The state of a block when it was read. Equal versions have equal content. An entry alone would
/// not do: a segment's number is reused, with other records at the same places.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Version {
    pub(super) home: Home,
    /// The segment's sequence; 0 outside of any existing segment.
    pub(super) sequence: u64,
}

impl Version {
    /// Bytes of its record that the block owns.
    pub(super) fn share(self) -> u32 {
        if let Home::Record(at) = self.home { at.share() } else { 0 }
    }
}

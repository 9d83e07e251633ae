//! How the oldest segments leave the log; the steps: [`super::copies`].

/// When content was read: valid until a window is written back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token(pub(super) u64);

/// How the oldest segments leave the log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Release {
    #[default]
    Idle,
    /// The index forgets the ranges before segment `to`.
    Retiring { to: u64 },
    /// The index forgets the blocks before segment `to`, from block `at` on.
    Forgetting { to: u64, at: u64 },
    /// All segments that are written back are dropped at once, because changes need their room:
    /// first the ranges, then what the index names, from block `at` on.
    Dropping { at: Option<u64> },
    /// The superblock with the new tail is written.
    Moving { to: u64 },
    /// Readers still hold slots before segment `to`.
    Leaving { to: u64 },
}

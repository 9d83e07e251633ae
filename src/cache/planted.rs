//! Bugs that can be planted, to show that the schedule explorer finds them.
//!
//! They exist only in builds with `--cfg shuttle`; in all others [`on`] is `false` at compile time.

/// A mistake that is possible here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A fill keeps what it read before a write that began meanwhile.
    FillOverWrite = 1,
    /// A fill that begins while a write is under way keeps what it reads.
    FillBesideWriter,
    /// Each of two writes that overlap in time keeps a copy of what it wrote.
    KeepOverlappingWrites,
    /// A record that took the place of a copy after the lookup is served as that copy.
    ServeWhateverIsThere,
    /// A write that failed keeps a copy.
    KeepFailedWrite,
    /// A range that is zeroed keeps its copies.
    KeepZeroed,
    /// A write leaves the seal of what its block had before.
    SealOverWrite,
    /// A block whose copy goes to the page cache is sealed although it was written meanwhile.
    SealGivenOverWrite,
    /// Blocks that are zeroed keep their seals.
    SealOverZero,
    /// After a failed flush, which may have changed blocks, seals are kept.
    SealOverFailedFlush,
    /// After a failed flush, what was under way is kept.
    KeepOverFailedFlush,
    /// A write can begin and end between the comparison of a dropped page and the flight that keeps
    /// it.
    KeepDroppedOverWrite,
}

crate::planted::plantable!(Bug, shuttle);

//! Bugs that can be planted, to show that the schedule explorer finds them.
//!
//! They exist only in builds with `--cfg shuttle`; in all others [`on`] is `false` at compile time.

/// A mistake that a programmer could make here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// Room in the log is reserved before the stripe lock is taken, so log order is not index
    /// order.
    ReserveBeforeLock = 1,
    /// The cleaner publishes its copy without looking whether the block is still there.
    CopyWithoutCheck = 2,
    /// A frame is used again while readers may still be looking at it.
    FreeBeforeReadersLeave = 3,
    /// A read-modify-write publishes what it made of an old version.
    ModifyWithoutCheck = 4,
    /// A leaf of the index is taken out although a thread has just retained it.
    DropRetainedLeaf = 5,
    /// The cleaner takes a record whose death is not counted yet for a damaged one.
    JudgeWithoutWaiting = 6,
    /// A segment that goes down has no place for a moment.
    ForgetFrameFirst = 7,
    /// What was read of a slot is known by the number of its segment, which comes back.
    WindowByNumber = 8,
    /// A segment that goes down is named in its slot before its bytes are there.
    SpillBeforeWritten = 9,
    /// What a read of a slot brought is taken for the block's content without looking whether the
    /// block is still there.
    PromoteWithoutCheck = 10,
    /// A cluster takes the place of blocks without looking whether they still are what it was made
    /// of.
    PressWithoutCheck = 11,
    /// A block that changed while its cluster was made owns a part of that for ever.
    ForgetPartsThatChanged = 12,
    /// A cluster that was decoded is known by the number of its segment, which comes back.
    ClusterByNumber = 13,
    /// A thread that frees what is dead in slots claims a segment as it is after looking at it,
    /// and not as it was before.
    ClaimLate = 14,
    /// A thread that claims a segment too late, when another one has its number, ends the claim on
    /// that one.
    UnclaimWhatever = 15,
}

crate::planted::plantable!(Bug, shuttle);

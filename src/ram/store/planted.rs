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
    /// The cleaner publishes its copy without checking that the block is still there.
    CopyWithoutCheck = 2,
    /// A frame is used again while readers may still be looking at it.
    FreeBeforeReadersLeave = 3,
    /// A read-modify-write publishes data made from an old version.
    ModifyWithoutCheck = 4,
    /// A leaf of the index is taken out although a thread has just retained it.
    DropRetainedLeaf = 5,
    /// The cleaner judges a segment damaged while the death of one of its records is not counted
    /// yet.
    JudgeWithoutWaiting = 6,
    /// A segment that is spilled has no place for a moment.
    ForgetFrameFirst = 7,
    /// A window names its bytes by the segment's number, which is reused, and not by its sequence.
    WindowByNumber = 8,
    /// A spilled segment's slot is named before its bytes are there.
    SpillBeforeWritten = 9,
    /// A promotion appends what a read of a slot brought without checking that the block is still
    /// there.
    PromoteWithoutCheck = 10,
    /// A cluster replaces blocks without checking that they are still the versions that it was made
    /// from.
    PressWithoutCheck = 11,
    /// A block that changed while its cluster was made owns a part of that cluster forever.
    ForgetPartsThatChanged = 12,
    /// A decoded cluster is known by its segment's number, which is reused, and not by its
    /// sequence.
    ClusterByNumber = 13,
    /// A thread that frees dead slots claims a segment by the claim word read after its look at the
    /// segment, and not by the one read before.
    ClaimLate = 14,
    /// A thread whose claim came too late ends the claim on whichever segment has the number now.
    UnclaimWhatever = 15,
    /// A write does not take back the bits of blocks that were freed before it.
    KeepFreedBits = 16,
    /// The bits of freed blocks are taken before the stripe lock is, so a write comes between.
    TakeFreedBeforeLock = 17,
}

crate::planted::plantable!(Bug, shuttle);

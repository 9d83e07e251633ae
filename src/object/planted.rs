//! Bugs that can be planted, to show that the simulator finds them (builds with `--cfg sim`).

/// A mistake that a programmer could make here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A newcomer whose fence found the slot taken tries the next slot, and does not look at what
    /// is there.
    TryNextSlot = 1,
    /// A part counts as durable while one before it does not.
    DurableWithHole = 2,
    /// A newcomer takes the first slot without an object before one with an object for a hole in
    /// the chain, and fences behind it.
    FenceAboveHole = 3,
    /// A daemon goes on with the session of the one before.
    KeepSession = 4,
    /// A session takes itself for the owner although the root had changed.
    IgnoreChangedRoot = 5,
    /// A taken slot counts as this owner's part if the session fits, whatever the content.
    SessionIsEnough = 6,
    /// A window counts with its first part.
    CommitByPart = 7,
    /// Parts of a window without its end count when a later window of another session ends.
    ReviveParts = 8,
    /// One slot more than the width is issued.
    OneAhead = 9,
    /// The chain continues one slot too early behind a fence.
    ContinueEarly = 10,
    /// A failed read counts as a free slot.
    FailureIsFree = 11,
    /// The root is read for the swap after the walk, and not before.
    RootAfterWalk = 12,
    /// An owner whose slot is taken by a fence issues beyond it.
    IgnoreFence = 13,
    /// A swap of the root without an answer counts as done.
    AssumeSwapped = 14,
    /// A part counts whatever part it was made after.
    IgnoreBefore = 15,
    /// An owner whose change of the root failed puts it in the place of another owner's.
    ChangeAnothersRoot = 16,
    /// A checkpoint is for a slot later than the one behind its last window.
    CheckpointAhead = 17,
    /// A checkpoint does not say whose parts count behind it.
    CheckpointOfNone = 18,
    /// An owner removes the fence before its own (in the simulator's store: nothing here removes a
    /// fence).
    RemoveFence = 19,
    /// A store lets a second object take the place of one that was created (in the simulator's
    /// store: the probe refuses such a store).
    CreateReplaces = 20,
    /// A store answers with a part of an object (in the simulator's store).
    CutAnswer = 21,
}

crate::planted::plantable!(Bug, sim);

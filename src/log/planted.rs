//! Bugs that can be planted, to show that the simulator finds them, and marks that a run must pass.
//!
//! Both exist only in builds with `--cfg sim`; in all others [`on`] is `false` at compile time and
//! [`mark`] does nothing. Visits of loops are counted there and in unit tests: that work grows no
//! faster than it may is a matter of counting, not of time.

/// A possible mistake in this code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// A flush is acknowledged when the chunks are written, before the drive's own flush.
    AcknowledgeUnflushed = 1,
    /// The drive is flushed while chunks that count as covered are still being written.
    FlushBeforeWritten,
    /// Slots are used again before the superblock that moves the tail is durable.
    ReuseBeforeSuperblock,
    /// The tail moves although the backing store was not flushed.
    ForgetBackingFlush,
    /// Recovery takes chunks past the durable mark without verifying their payloads.
    AcceptTornTail,
    /// Recovery takes chunks of an epoch that ended before them.
    AcceptOldEpoch,
    /// Recovery takes whatever chunk lies at a place, from whichever lap.
    AcceptOldLap,
    /// Writeback zeroes discarded ranges after it has written newer data to them.
    DiscardOutOfOrder,
    /// Discarded ranges are forgotten when their window begins, not when it has ended.
    DropTombstone,
    /// A lost block is declared lost again although it was written since.
    CopyWithoutCheck,
    /// Of several records of a block in a window, writeback keeps the oldest.
    OldestWins,
    /// Work after a recovery goes on in the epoch of before.
    KeepEpoch,
    /// A window takes segments that are not durable yet.
    WindowBeforeDurable,
    /// Chunks that are written again elsewhere keep their epoch.
    RewriteInOldEpoch,
    /// Both copies of the superblock are written at once.
    SuperblocksTogether,
    /// Slots are used again while a read from them is under way.
    IgnorePins,
    /// The backing store goes on without a log that has failed before that one says so.
    ThroughBeforeSpent,
    /// The index forgets the blocks of a window before the zeroed ranges under them.
    ForgetBeforeRetiring,
    /// A checkpoint is named before the chunks that its pages know of are durable.
    CheckpointBeforeDurable,
    /// Entries of a checkpoint are kept though their slots were freed and used again.
    CheckpointKeepsFreed,
    /// A checkpoint is replayed from its end on, not from its begin.
    CheckpointFromEnd,
    /// A checkpoint is copied while the index forgets what is before no durable tail yet.
    CheckpointForgets,
    /// An increment lacks what changed in the segment where the checkpoint before it began.
    IncrementMissesSegment,
    /// What an increment says was discarded is kept as the runs before it have it.
    IncrementIgnoresRanges,
    /// A summary is believed of chunks that may not be durable.
    TrustSummary,
    /// Whatever block of a cluster is read, it is the first one.
    FirstOfCluster,
    /// Of a cluster that is written elsewhere only the first check word moves along.
    MoveFirstOfCluster,
    /// A closed chunk is written although some of its payloads are not there yet.
    WriteUnfilled,
    /// What is kept of a chunk is let go when the drive has been told to write it.
    LetGoEarly,
    /// What a process that died had reserved and not filled is recommitted.
    TrustUnfilled,
    /// The chunk that was open when the process died is not recommitted.
    SkipOpen,
    /// The chunks that a process left are recommitted in the opposite order.
    RecommitBackwards,
    /// Chunks that a process left are recommitted behind themselves, where the drive has them.
    RecommitAll,
    /// What is kept is not let go when the log has failed and the backing store goes on alone.
    KeepThrough,
    /// What was read of the backing store is taken for its content, whatever was written since.
    CopyWithoutToken,
    /// A copy is appended of a block that has changed in the log.
    CopyOverChange,
    /// Copies that may be older than the backing store count when a log is opened.
    ServeVoid,
    /// Copies that a dead process left in memory are recommitted.
    RecommitCopies,
    /// Writeback writes copies to the backing store.
    WriteCopies,
    /// The index still names what was in slots that are used again.
    ReleaseKeepsIndex,
    /// Discarded ranges are forgotten when the backing store has them, while older copies stay.
    RetireBeforeCopies,
    /// A discard that cannot be read is carried out before what it discards.
    LostDiscardFirst,
    /// The tail moves past a damaged record before the newer one of its block is durable.
    TailBeforeSuccessor,
}

/// All of them.
pub const BUGS: [Bug; 43] = [
    Bug::AcknowledgeUnflushed,
    Bug::FlushBeforeWritten,
    Bug::ReuseBeforeSuperblock,
    Bug::ForgetBackingFlush,
    Bug::AcceptTornTail,
    Bug::AcceptOldEpoch,
    Bug::AcceptOldLap,
    Bug::DiscardOutOfOrder,
    Bug::DropTombstone,
    Bug::CopyWithoutCheck,
    Bug::OldestWins,
    Bug::KeepEpoch,
    Bug::WindowBeforeDurable,
    Bug::RewriteInOldEpoch,
    Bug::SuperblocksTogether,
    Bug::IgnorePins,
    Bug::ForgetBeforeRetiring,
    Bug::CheckpointBeforeDurable,
    Bug::CheckpointKeepsFreed,
    Bug::CheckpointFromEnd,
    Bug::CheckpointForgets,
    Bug::IncrementMissesSegment,
    Bug::IncrementIgnoresRanges,
    Bug::TrustSummary,
    Bug::ThroughBeforeSpent,
    Bug::FirstOfCluster,
    Bug::MoveFirstOfCluster,
    Bug::WriteUnfilled,
    Bug::LetGoEarly,
    Bug::TrustUnfilled,
    Bug::SkipOpen,
    Bug::RecommitBackwards,
    Bug::RecommitAll,
    Bug::KeepThrough,
    Bug::CopyWithoutToken,
    Bug::CopyOverChange,
    Bug::ServeVoid,
    Bug::RecommitCopies,
    Bug::WriteCopies,
    Bug::ReleaseKeepsIndex,
    Bug::RetireBeforeCopies,
    Bug::LostDiscardFirst,
    Bug::TailBeforeSuccessor,
];

crate::planted::plantable!(Bug, sim);

#[cfg(any(test, sim))]
thread_local! {
    static VISITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Notes that a loop over blocks, ranges or segments has come to another one.
#[inline]
pub fn visit() {
    visits(1);
}

/// The same of so many.
#[inline]
pub fn visits(count: usize) {
    #[cfg(any(test, sim))]
    VISITS.with(|visits| visits.set(visits.get() + count as u64));
    #[cfg(not(any(test, sim)))]
    let _ = count;
}

/// How many were noted by this thread, to compare with before.
#[cfg(any(test, sim))]
pub fn visited() -> u64 {
    VISITS.with(std::cell::Cell::get)
}

/// The marks passed so far in this process, with how often.
#[cfg(sim)]
static PASSED: std::sync::Mutex<std::collections::BTreeMap<&'static str, u64>> =
    std::sync::Mutex::new(std::collections::BTreeMap::new());

/// Notes that a run came by here.
#[cfg(sim)]
pub fn mark(name: &'static str) {
    let mut passed = PASSED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    *passed.entry(name).or_insert(0) += 1;
}

/// Notes that a run came by here: nothing, in this build.
#[cfg(not(sim))]
pub const fn mark(_: &'static str) {}

/// The marks passed so far in this process, with how often.
#[cfg(sim)]
pub fn passed() -> std::collections::BTreeMap<&'static str, u64> {
    PASSED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
}

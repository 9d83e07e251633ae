//! Bugs that can be planted, to show that the simulator finds them, and marks that a run must pass.
//!
//! Both exist only in builds with `--cfg sim`; in all others [`on`] is `false` at compile time and
//! [`mark`] does nothing. Visits of loops are counted there and in unit tests: tests bound the
//! growth of work by counts, not by time.

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
    /// Recovery takes any chunk that lies at a place, whatever its lap.
    AcceptOldLap,
    /// Writeback zeroes discarded ranges after it has written newer data to them.
    DiscardOutOfOrder,
    /// Tombstones are forgotten when their window begins, not when it has ended.
    DropTombstone,
    /// A lost block is declared lost again although it was written since.
    CopyWithoutCheck,
    /// Of several records of a block in a window, writeback keeps the oldest.
    OldestWins,
    /// After a recovery the log continues in its old epoch.
    KeepEpoch,
    /// A window takes segments that are not durable yet.
    WindowBeforeDurable,
    /// Chunks that are written again elsewhere keep their epoch.
    RewriteInOldEpoch,
    /// Both copies of the superblock are written at once.
    SuperblocksTogether,
    /// Slots are used again while a read from them is under way.
    IgnorePins,
    /// Writes bypass a failed log before its superblocks say that it is spent.
    ThroughBeforeSpent,
    /// The index forgets the blocks of a window before the zeroed ranges under them.
    ForgetBeforeRetiring,
    /// A checkpoint is named before the chunks that its pages know of are durable.
    CheckpointBeforeDurable,
    /// Entries of a checkpoint are kept though their slots were freed and used again.
    CheckpointKeepsFreed,
    /// A checkpoint is replayed from its end on, not from its begin.
    CheckpointFromEnd,
    /// A checkpoint is copied while the index forgets segments that no durable tail has passed yet.
    CheckpointForgets,
    /// An increment lacks what changed in the segment where the checkpoint before it began.
    IncrementMissesSegment,
    /// Blocks that an increment says were discarded are kept as earlier runs have them.
    IncrementIgnoresRanges,
    /// Recovery trusts a summary of chunks that may not be durable.
    TrustSummary,
    /// A read of any block of a cluster returns the first one.
    FirstOfCluster,
    /// When a cluster is written elsewhere, only its first check word is adapted.
    MoveFirstOfCluster,
    /// A closed chunk is written before all of its payloads are filled in.
    WriteUnfilled,
    /// A chunk's kept memory is released when the chunk is being written, not when it is durable.
    LetGoEarly,
    /// Payloads that a dead process had reserved but not filled are recommitted.
    TrustUnfilled,
    /// The chunk that was open when a process died is not recommitted.
    SkipOpen,
    /// The chunks that a dead process left are recommitted in the opposite order.
    RecommitBackwards,
    /// Chunks that a dead process left, and that the drive has, are recommitted behind themselves.
    RecommitAll,
    /// Kept memory is not released when writes bypass a failed log.
    KeepThrough,
    /// A copy is appended of what was read, whatever was written to the backing store since.
    CopyWithoutToken,
    /// A copy is appended of a block that has changed in the log.
    CopyOverChange,
    /// Copies that may be older than the backing store count after opening.
    ServeVoid,
    /// Copies that a dead process left in memory are recommitted.
    RecommitCopies,
    /// Writeback writes copies to the backing store.
    WriteCopies,
    /// The index still names records of slots that are used again.
    ReleaseKeepsIndex,
    /// Discarded ranges are forgotten when the backing store has them, while older copies stay.
    RetireBeforeCopies,
    /// A discard that cannot be read is carried out before what it discards.
    LostDiscardFirst,
    /// The tail moves past a damaged record before the newer one of its block is durable.
    TailBeforeSuccessor,
    /// The tail moves though an atomic backing store has not committed the window.
    TailBeforeCommit,
    /// A commit does not say what is lost.
    CommitWithoutLost,
    /// A window is committed before what it could not do is judged.
    CommitBeforeJudging,
    /// A log is opened from its own tail though the backing store has committed a later one.
    RepeatCommitted,
    /// Of blocks that go to an atomic backing store as they are packed, the first is taken for all.
    FirstPacked,
    /// A volume has grown before a superblock says so.
    GrowUnwritten,
}

/// All bugs.
pub const BUGS: [Bug; 49] = [
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
    Bug::TailBeforeCommit,
    Bug::CommitWithoutLost,
    Bug::CommitBeforeJudging,
    Bug::RepeatCommitted,
    Bug::FirstPacked,
    Bug::GrowUnwritten,
];

crate::planted::plantable!(Bug, sim);

#[cfg(any(test, sim))]
thread_local! {
    static VISITS: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts one visit of a loop over blocks, ranges or segments.
#[inline]
pub fn visit() {
    visits(1);
}

/// Counts `count` visits.
#[inline]
pub fn visits(count: usize) {
    #[cfg(any(test, sim))]
    VISITS.with(|visits| visits.set(visits.get() + count as u64));
    #[cfg(not(any(test, sim)))]
    let _ = count;
}

/// Visits that this thread has counted so far.
#[cfg(any(test, sim))]
pub fn visited() -> u64 {
    VISITS.with(std::cell::Cell::get)
}

/// The marks passed so far in this process, with their counts.
#[cfg(sim)]
static PASSED: std::sync::Mutex<std::collections::BTreeMap<&'static str, u64>> =
    std::sync::Mutex::new(std::collections::BTreeMap::new());

/// Counts that a run passed this mark.
#[cfg(sim)]
pub fn mark(name: &'static str) {
    let mut passed = PASSED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
    *passed.entry(name).or_insert(0) += 1;
}

/// Does nothing in this build.
#[cfg(not(sim))]
pub const fn mark(_: &'static str) {}

/// The marks passed so far in this process, with their counts.
#[cfg(sim)]
pub fn passed() -> std::collections::BTreeMap<&'static str, u64> {
    PASSED.lock().unwrap_or_else(std::sync::PoisonError::into_inner).clone()
}

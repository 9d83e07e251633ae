//! Bugs that can be planted, to show that the schedule explorer finds them.
//!
//! They exist only in builds with `--cfg shuttle`; in all others [`on`] is `false` at compile time.

/// A mistake that could be made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// The writeback thread flushes for a drain as requests do, and so waits for the rescue of a
    /// log that has failed, which is its own work.
    DrainAwaitsRescue = 1,
    /// A request waits for room also when writeback fails for good.
    WaitForRoomForEver,
    /// A log that goes down waits for the rescue after its writeback thread has ended.
    CloseAwaitsRescue,
    /// A window that has failed is not counted.
    ForgetFailedWindows,
}

crate::planted::plantable!(Bug, shuttle);

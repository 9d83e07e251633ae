//! Bugs that can be planted, to show that the schedule explorer finds them.
//!
//! They exist only in builds with `--cfg shuttle`; in all others [`on`] is `false` at compile time.

/// A mistake that could be made here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Bug {
    /// For a drain, the writeback thread flushes as requests do, and so waits for the rescue of a
    /// failed log, which is its own work.
    DrainAwaitsRescue = 1,
    /// A request waits for room for ever when writeback fails for good.
    WaitForRoomForEver,
    /// Closing a log waits for the rescue after the writeback thread has ended.
    CloseAwaitsRescue,
    /// A failed window is not counted.
    ForgetFailedWindows,
}

crate::planted::plantable!(Bug, shuttle);

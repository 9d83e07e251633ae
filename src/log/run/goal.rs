//! How far writeback is to hurry.

use crate::sync::atomic::{AtomicU64, Ordering};

/// What writeback is to bring to the backing store at once: all segments before this one. 0:
/// nothing.
#[derive(Debug, Default)]
pub(super) struct Goal(AtomicU64);

impl Goal {
    pub(super) fn set(&self, end: u64) {
        self.0.store(end, Ordering::Release);
    }

    pub(super) fn raise(&self, end: u64) {
        self.0.fetch_max(end, Ordering::AcqRel);
    }

    /// Whether there are segments to bring when those before `written` are there.
    pub(super) fn is_ahead_of(&self, written: u64) -> bool {
        self.0.load(Ordering::Acquire) > written
    }
}

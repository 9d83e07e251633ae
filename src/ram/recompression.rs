//! The setting, state and costs of recompression; which segments, and when: [`super::recompress`].

use super::policy;
use crate::ram::store::{Pack, Tried};
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use serde::{Deserialize, Serialize};
use std::time::Instant;

/// When cold data is recompressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Recompress {
    /// When the volume and the machine are idle, and before data is spilled: the default.
    #[default]
    Idle,
    /// Only on a user's request.
    Off,
}

/// Costs of recompression, and blocks that left clusters again.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RecompressCounts {
    /// Blocks that left their clusters because they were read again.
    pub promoted: u64,
    /// Nanoseconds that recompression took.
    pub spent_ns: u64,
}

/// State of recompression, and its recent results.
#[derive(Default)]
pub(super) struct Recompression {
    pub(super) work: Mutex<Option<Work>>,
    pub(super) by_itself: AtomicBool,
    pub(super) promoted: AtomicU64,
    pub(super) spent_ns: AtomicU64,
}

pub(super) struct Work {
    pub(super) pack: Pack,
    /// Segments in a row for which nothing paid.
    pub(super) in_vain: u32,
    /// The count of segments opened by writers at which recompression is tried again.
    pub(super) rests_until: u64,
}

impl Recompression {
    pub(super) fn count_promoted(&self) -> u64 {
        self.promoted.fetch_add(1, Ordering::Relaxed)
    }

    pub(super) fn count_spent(&self, since: Instant) {
        let spent = since.elapsed().as_nanos() as u64;
        self.spent_ns.fetch_add(spent, Ordering::Relaxed);
    }
}

impl Work {
    /// Updates the counts of vain tries after a segment was tried.
    pub(super) fn note(&mut self, tried: &Tried, opened: u64) {
        if tried.blocks > 0 {
            self.in_vain = 0;
        } else if tried.in_vain > 0 {
            self.in_vain += 1;
        }
        if self.in_vain >= policy::HOPELESS_SEGMENTS {
            self.in_vain = 0;
            self.rests_until = opened + u64::from(policy::HOPELESS_SEGMENTS);
        }
    }
}

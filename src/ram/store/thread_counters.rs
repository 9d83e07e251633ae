//! Counters of what is stored: one set for each thread that stores, summed on demand.
//!
//! A number may go below zero in one set (a block written through one channel and discarded through
//! another); only the sums have a meaning.

use super::format::{HEADER, Home};
use crate::BLOCK_SIZE;
use crate::stats::Counts;
use crate::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Payloads up to this count as good compression (`GoodCompress`): half a block.
const GOOD_MAX: u32 = BLOCK_SIZE as u32 / 2;
/// Payloads above this count as incompressible (`NoCompress`): three quarters of a block.
const POOR_ABOVE: u32 = BLOCK_SIZE as u32 / 4 * 3;
/// No codec makes a payload this short, except for the 8-byte word of a same-filled block.
const FILL_LEN: u32 = 8;

/// The numbers of one thread, which alone writes them.
#[derive(Debug)]
#[repr(align(128))]
pub struct ThreadCounters([AtomicI64; Counts::LEN]);

impl Default for ThreadCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicI64::new(0)))
    }
}

impl ThreadCounters {
    /// Adds changes. Only the thread of these counters calls this, so a load and a store suffice.
    pub fn add(&self, change: &Counts) {
        change.each(|at, by| {
            if by != 0 {
                let now = self.0[at].load(Ordering::Relaxed);
                self.0[at].store(now + by, Ordering::Relaxed);
            }
        });
    }

    /// The current numbers.
    pub fn counts(&self) -> Counts {
        Counts::of(self.0.each_ref().map(|counter| counter.load(Ordering::Relaxed)))
    }
}

/// Counts a block that came (`by` = 1) or went (-1).
pub fn count_block(counts: &mut Counts, home: Home, by: i64) {
    match home {
        // Its former home is unknown, so the counters keep that.
        Home::Hole | Home::Damaged => {}
        Home::Same(word) => {
            counts.blocks_same += by;
            counts.blocks_zero += if word == 0 { by } else { 0 };
        }
        Home::Record(at) => {
            if at.parts > 0 {
                // Header and payload of a cluster are not told apart: all of it counts as
                // payload.
                counts.compr_data_bytes += by * i64::from(at.share());
                counts.blocks_clustered += by;
                counts.cluster_bytes += by * i64::from(at.share());
                counts.blocks_stored += by;
                counts.blocks_good += if at.share() <= GOOD_MAX { by } else { 0 };
                counts.blocks_poor += if at.share() > POOR_ABOVE { by } else { 0 };
                return;
            }
            counts.compr_data_bytes += by * i64::from(at.len);
            counts.record_headers_bytes += by * HEADER as i64;
            if at.len == FILL_LEN {
                counts.blocks_same += by;
                return;
            }
            counts.blocks_stored += by;
            counts.blocks_good += if at.len <= GOOD_MAX { by } else { 0 };
            counts.blocks_poor += if at.len > POOR_ABOVE { by } else { 0 };
            counts.blocks_raw += if at.len as usize == BLOCK_SIZE { by } else { 0 };
        }
    }
}

/// All counters of a store.
#[derive(Debug, Default)]
pub struct CounterSet {
    live: Mutex<Vec<Arc<ThreadCounters>>>,
    past: Mutex<Counts>,
}

impl CounterSet {
    /// Starts from the counts of another process.
    pub(super) fn begin_with(&self, counts: &Counts) {
        *self.past.lock() += counts;
    }

    /// Counters for one more thread.
    pub fn join(&self) -> Arc<ThreadCounters> {
        let counters = Arc::new(ThreadCounters::default());
        self.live.lock().push(Arc::clone(&counters));
        counters
    }

    /// Keeps a thread's numbers after it has gone.
    pub fn leave(&self, counters: &Arc<ThreadCounters>) {
        let mut live = self.live.lock();
        *self.past.lock() += &counters.counts();
        live.retain(|other| !Arc::ptr_eq(other, counters));
    }

    /// The sum over all threads, past and present.
    pub fn sum(&self) -> Counts {
        let live = self.live.lock();
        let mut sum = *self.past.lock();
        for counters in live.iter() {
            sum += &counters.counts();
        }
        sum
    }
}

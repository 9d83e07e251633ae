//! Counters of what is stored: one set for each thread that stores, summed on demand.
//!
//! A number may go below zero in one set (a block written through one channel and discarded through
//! another); only the sums have a meaning.

use super::format::{HEADER, Home};
use crate::BLOCK_SIZE;
use crate::sync::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

/// Payloads up to this count as good compression (`GoodCompress`): half a block.
const GOOD_MAX: u32 = BLOCK_SIZE as u32 / 2;
/// Payloads above this count as incompressible (`NoCompress`): three quarters of a block.
const POOR_ABOVE: u32 = BLOCK_SIZE as u32 / 4 * 3;
/// No codec makes a payload this short, except for the 8-byte word of a same-filled block.
const FILL_LEN: u32 = 8;

macro_rules! counts {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// The numbers of one thread, or their sum over all threads.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
        pub struct Counts { $($(#[$doc])* pub $name: i64,)* }

        /// The numbers of one thread, which alone writes them.
        #[derive(Debug, Default)]
        #[repr(align(128))]
        pub struct ThreadCounters { $($name: AtomicI64,)* }

        impl ThreadCounters {
            /// Adds changes. Only the thread of these counters calls this, so a load and a store
            /// suffice.
            pub fn add(&self, change: &Counts) {
                $(if change.$name != 0 {
                    let now = self.$name.load(Ordering::Relaxed);
                    self.$name.store(now + change.$name, Ordering::Relaxed);
                })*
            }

            /// The current numbers.
            pub fn counts(&self) -> Counts {
                Counts { $($name: self.$name.load(Ordering::Relaxed),)* }
            }
        }

        impl std::ops::AddAssign<&Counts> for Counts {
            fn add_assign(&mut self, other: &Counts) {
                $(self.$name += other.$name;)*
            }
        }
    };
}

counts! {
    /// Blocks in records, same-filled ones not counted.
    stored,
    /// Blocks that repeat a word, zeros included.
    same,
    /// Blocks of written zeros.
    zero,
    /// Stored blocks of at most half a block.
    good,
    /// Stored blocks of more than three quarters of a block.
    poor,
    /// Stored blocks that are kept uncompressed.
    raw,
    /// Blocks ever kept uncompressed.
    raw_total,
    /// Bytes of payload in records.
    payload,
    /// Bytes of headers of live records.
    headers,
    /// Blocks freed by discards and write-zeroes.
    discarded,
    /// Blocks freed because their owner had given them up.
    freed,
    /// Records that were damaged when read.
    corrupt,
    /// Blocks moved by the cleaner.
    moved,
    /// Bytes moved by the cleaner.
    moved_bytes,
    /// Segments emptied by the cleaner.
    cleaned,
    /// Segments that were spilled.
    spilled,
    /// Blocks in clusters.
    clustered,
    /// Bytes of clusters that these blocks own.
    cluster_bytes,
    /// Blocks ever recompressed.
    recompressed,
    /// Bytes saved by recompression so far.
    recompressed_saved,
    /// Groups of blocks that recompression tried without saving enough.
    recompressed_in_vain,
}

impl Counts {
    /// Counts a block that came (`by` = 1) or went (-1).
    pub fn block(&mut self, home: Home, by: i64) {
        match home {
            // Its former home is unknown, so the counters keep that.
            Home::Hole | Home::Damaged => {}
            Home::Same(word) => {
                self.same += by;
                self.zero += if word == 0 { by } else { 0 };
            }
            Home::Record(at) => {
                if at.parts > 0 {
                    // Header and payload of a cluster are not told apart: all of it counts as
                    // payload.
                    self.payload += by * i64::from(at.share());
                    self.clustered += by;
                    self.cluster_bytes += by * i64::from(at.share());
                    self.stored += by;
                    self.good += if at.share() <= GOOD_MAX { by } else { 0 };
                    self.poor += if at.share() > POOR_ABOVE { by } else { 0 };
                    return;
                }
                self.payload += by * i64::from(at.len);
                self.headers += by * HEADER as i64;
                if at.len == FILL_LEN {
                    self.same += by;
                    return;
                }
                self.stored += by;
                self.good += if at.len <= GOOD_MAX { by } else { 0 };
                self.poor += if at.len > POOR_ABOVE { by } else { 0 };
                self.raw += if at.len as usize == BLOCK_SIZE { by } else { 0 };
            }
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

//! Replay: puts the entries of chunks into the index.
//!
//! Invariant: the index ends as if every entry had been indexed in log order. Between two ranges
//! that order matters only for entries of the same block. So there only the last entry of each
//! block is indexed, in the order of blocks: neighbours lie in the same page of the index.

use super::state::Core;
use crate::log::disk::format::{BLOCKS_MAX, Data, Entry, Header, Kind};

/// Bits of an entry's position among those that are sorted at once.
const BITS: u32 = 20;

const _: () = assert!(BLOCKS_MAX.checked_mul(1 << BITS).is_some());

impl Core {
    /// Indexes the entries of a log's chunks, oldest first.
    pub(in crate::log) fn replay(&mut self, chunks: &[(Header, Vec<Entry>)]) {
        let mut waiting = Vec::new();
        for (header, entries) in chunks {
            self.checkpoint.grow(header.len, entries.len());
            for entry in entries {
                match entry {
                    Entry::Data(Data { kind: Kind::Summary, .. }) => {}
                    Entry::Data(data) => waiting.push((header.segment, *data)),
                    Entry::Range { .. } => {
                        self.replay_sorted(&mut waiting);
                        self.index((header.segment, header.offset), entry);
                    }
                }
                if waiting.len() >> BITS > 0 {
                    self.replay_sorted(&mut waiting);
                }
            }
        }
        self.replay_sorted(&mut waiting);
    }

    fn replay_sorted(&mut self, waiting: &mut Vec<(u64, Data)>) {
        let key = |(place, (_, data)): (u64, &(u64, Data))| data.block << BITS | place;
        let mut order: Vec<u64> = (0..).zip(waiting.iter()).map(key).collect();
        order.sort_unstable();
        for (i, key) in order.iter().enumerate() {
            let newer = order.get(i + 1).is_some_and(|next| next >> BITS == key >> BITS);
            let place = (key & ((1 << BITS) - 1)) as usize;
            if let Some((segment, data)) = waiting.get(place).filter(|_| !newer) {
                self.index_data(*segment, *data);
            }
        }
        waiting.clear();
    }
}

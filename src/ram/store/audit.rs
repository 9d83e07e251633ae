//! The audit: counts again, from the index alone, everything that is counted.
//!
//! Only for a store that nothing changes meanwhile: `Volume::audit` holds back the volume's own
//! threads, tests hold back their requests. A daemon that takes over another's memory recounts the
//! same way.

use super::Store;
use super::format::Home;
use super::segment::Sealed;
use super::thread_counters::count_block;
use crate::stats::Counts;
use std::collections::BTreeMap;

impl Store {
    /// Recounts `blocks` blocks and compares the results with the counters.
    ///
    /// # Errors
    /// The first count that differs, in words.
    pub fn audit(&self, blocks: u64) -> Result<(), String> {
        let mut counts = Counts::default();
        let mut live = BTreeMap::<u32, u64>::new();
        let mut extents = Vec::new();
        for block in 0..blocks {
            let home = self.index.load(block).home();
            count_block(&mut counts, home, 1);
            if let Home::Record(at) = home {
                *live.entry(at.segment).or_default() += u64::from(at.share());
                extents.push((at.segment, at.offset, at.record_len()));
            }
        }
        extents.sort_unstable();
        // All blocks of a cluster name the same record.
        extents.dedup();
        for pair in extents.windows(2) {
            if pair[0].0 == pair[1].0 && pair[0].1 + pair[0].2 > pair[1].1 {
                return Err(format!("records overlap: {pair:?}"));
            }
        }
        self.audit_counts(counts)?;
        self.audit_slots()?;
        for segment in 0..self.segments.used() {
            self.audit_segment(segment, live.get(&segment).copied().unwrap_or(0))?;
        }
        Ok(())
    }

    /// Replays the log, oldest segment first, and compares: the last record of each block must be
    /// the one that the index names, unless the index names none. Recovery from the log alone would
    /// see this.
    ///
    /// # Errors
    /// The first block for which log order is not index order.
    pub fn audit_order(&self) -> Result<(), String> {
        let written = self.segments.all_sealed().filter(|s| !self.segments.is_packed(s.segment));
        let mut segments: Vec<(u64, u32, u32)> =
            written.map(|s| (s.sequence, s.segment, s.end)).collect();
        if let Some((segment, end)) = self.log.open() {
            segments.push((self.segments.sequence(segment), segment, end));
        }
        segments.sort_unstable();
        let mut last = BTreeMap::new();
        for (sequence, segment, end) in segments {
            for (block, at) in self.records(Sealed { segment, end, dead: 0, sequence }) {
                last.insert(block, at);
            }
        }
        for (block, at) in last {
            match self.index.load(block).home() {
                // Its newest record may be in a slot, which the audit does not read.
                Home::Record(indexed) if self.is_newer_below(indexed.segment, at.segment) => {}
                // The block was recompressed since.
                Home::Record(indexed) if self.segments.is_packed(indexed.segment) => {}
                Home::Record(indexed) if indexed != at => {
                    return Err(format!(
                        "block {block}: log ends with {at:?}, index has {indexed:?}"
                    ));
                }
                _ => {}
            }
        }
        Ok(())
    }

    fn is_newer_below(&self, indexed: u32, found: u32) -> bool {
        self.segments.slot(indexed).is_some()
            && self.segments.sequence(indexed) > self.segments.sequence(found)
    }

    /// Each slot is free or belongs to one segment, and none is lost.
    fn audit_slots(&self) -> Result<(), String> {
        let named = (0..self.segments.used()).filter_map(|segment| self.segments.slot(segment));
        let mut named: Vec<u32> = named.collect();
        named.sort_unstable();
        let (free, count) = (self.slots.free() as usize, self.slots.count() as usize);
        match named.windows(2).find(|pair| pair[0] == pair[1]) {
            Some(pair) => Err(format!("slot {} is that of two segments", pair[0])),
            None if named.len() + free != count => {
                Err(format!("{} slots are named and {free} free of {count}", named.len()))
            }
            None => Ok(()),
        }
    }

    fn audit_counts(&self, counts: Counts) -> Result<(), String> {
        let sum = self.counters.sum();
        let unfolded = self.index.unfolded_blocks() as i64;
        let same = |what: &str, counted: i64, found: i64| match counted == found {
            true => Ok(()),
            false => Err(format!("{what}: counted {counted}, found {found}")),
        };
        same("stored", sum.blocks_stored, counts.blocks_stored)?;
        same("same", sum.blocks_same + unfolded, counts.blocks_same)?;
        same("zero", sum.blocks_zero + unfolded, counts.blocks_zero)?;
        same("good", sum.blocks_good, counts.blocks_good)?;
        same("poor", sum.blocks_poor, counts.blocks_poor)?;
        same("raw", sum.blocks_raw, counts.blocks_raw)?;
        same("clustered", sum.blocks_clustered, counts.blocks_clustered)?;
        same("cluster_bytes", sum.cluster_bytes, counts.cluster_bytes)?;
        same("payload", sum.compr_data_bytes, counts.compr_data_bytes)?;
        same("headers", sum.record_headers_bytes, counts.record_headers_bytes)
    }

    fn audit_segment(&self, segment: u32, live: u64) -> Result<(), String> {
        let open = self.log.open().filter(|(open, _)| *open == segment);
        let sealed = self.segments.sealed(segment).or(self.segments.spilled(segment));
        let packing = || self.segments.packing(segment);
        let end = open.map(|(_, end)| end).or(sealed.map(|sealed| sealed.end));
        let Some(end) = end.or_else(packing) else {
            return match live {
                0 => Ok(()),
                _ => Err(format!("segment {segment} is free but holds {live} live bytes")),
            };
        };
        let dead = u64::from(self.segments.dead_bytes(segment));
        match live + dead == u64::from(end) {
            true => Ok(()),
            false => Err(format!("segment {segment}: {live} live + {dead} dead is not {end}")),
        }
    }

    /// Flips one bit of the payload or header of the record of `block`. For tests of damage
    /// detection. `false` when the block has no record in a frame.
    pub fn flip_bit(&self, block: u64, bit: u32) -> bool {
        let Home::Record(at) = self.index.load(block).home() else { return false };
        let Some(frame) = self.segments.frame(at.segment) else { return false };
        let offset = at.offset + bit / 8 % at.record_len();
        let byte = self.frames.bytes(frame, offset, 1)[0] ^ 1 << (bit % 8);
        self.frames.fill(frame, offset, &[&[byte]]);
        true
    }
}

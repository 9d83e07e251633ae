//! The recount: restores from the memory files everything that is not in them.
//!
//! A process that dies leaves its index, its segment table and its frames as they were between two
//! instructions. A record is filled before an index entry names it, so everything that was ever
//! acknowledged is there; a record that no entry names is garbage. All else (counts, lists, the
//! head of the log) follows from that.
//!
//! Invariants:
//! - no entry is changed: what could be read before can be read after;
//! - a segment that a thread was still writing is sealed behind its last live record, and the gaps
//!   between live records become filler records, so that the cleaner can walk the segment.
//!
//! A segment that was being spilled is still in its frame. A segment in a slot was there before the
//! table said so. A slot that no segment names is free.
//!
//! Not kept, because no read depends on it: whether a leaf without entries was zeroed or never
//! written, and the counts of past events.

use super::Store;
use super::format::{BLOCKS_MAX, HEADER, Header, Home, Location, RECORD_MAX};
use super::segment::{BYTES_PER_SEGMENT, Left, Place};
use super::thread_counters::count_block;
use crate::codec::Coding;
use crate::error::Result;
use crate::stats::Counts;
use std::collections::BTreeMap;
use std::ops::Range;

/// The shortest record: a header and one byte.
const SHORTEST: u32 = HEADER as u32 + 1;

/// What the index names in one segment.
#[derive(Clone, Copy, Debug, Default)]
struct Live {
    bytes: u32,
    records: u32,
    end: u32,
}

impl Store {
    /// Restores the counts and lists of a store over the memory of another process. Call this
    /// first. If its spill device is `gone`, [`Store::give_up_slots`] follows.
    ///
    /// # Errors
    /// When the memory contradicts itself.
    pub fn recount(&self, gone: bool) -> Result<()> {
        let spills = self.slots.count() > 0;
        if gone {
            self.slots.replace(self.segments.slots_max());
        }
        let left = self.segments.left(self.slots.count())?;
        let mut live = vec![Live::default(); left.len()];
        let (mut counts, mut clusters) = (Counts::default(), false);
        self.index.recount(&self.budget, |_, entry| {
            let home = entry.home();
            count_block(&mut counts, home, 1);
            if let Home::Record(at) = home
                && let Some(live) = live.get_mut(at.segment as usize)
            {
                live.bytes += at.share();
                live.records += 1;
                clusters |= at.parts > 0;
                live.end = live.end.max(at.offset + at.record_len());
            }
        });
        if clusters {
            self.prepare_clusters();
        }
        self.counters.begin_with(&counts);
        self.budget.add((left.len() * BYTES_PER_SEGMENT) as u64);
        self.seal_open(&left, &live);
        let live = |segment: u32| {
            let Live { bytes, records, .. } = live[segment as usize];
            (bytes, records)
        };
        // Only segments that may be spilled need the number of their records.
        let all = |segment: u32| match self.segments.sealed(segment).filter(|_| spills) {
            Some(sealed) => self.records(sealed).len() as u32,
            None => 0,
        };
        let (frames, slots) = self.segments.adopt(&left, live, all);
        self.slots.adopt(&slots);
        self.frames.adopt(frames, &self.budget)
    }

    /// Seals the segments that a thread was still writing.
    fn seal_open(&self, left: &[Option<Left>], live: &[Live]) {
        let mut open = BTreeMap::new();
        for (segment, left) in left.iter().enumerate() {
            if left.is_some_and(|left| !left.settled) && live[segment].bytes > 0 {
                open.insert(segment as u32, Vec::new());
            }
        }
        if open.is_empty() {
            return;
        }
        self.index.each_present(|_, entry| {
            if let Home::Record(at) = entry.home()
                && let Some(records) = open.get_mut(&at.segment)
            {
                records.push(at);
            }
        });
        for (segment, mut records) in open {
            let Some(Some(Left { place: Place::Frame(frame), .. })) = left.get(segment as usize)
            else {
                continue;
            };
            records.sort_unstable_by_key(|at| at.offset);
            // All blocks of a cluster name the same record.
            records.dedup();
            let whole = self.fill_gaps(*frame, &records);
            self.segments.settle(segment, live[segment as usize].end, whole);
        }
    }

    /// Writes filler records into the gaps between live records. `false` when that is impossible:
    /// then there is damage, and the cleaner must not walk this segment.
    fn fill_gaps(&self, frame: u32, records: &[Location]) -> bool {
        let mut at = 0;
        for record in records {
            if record.offset < at || !self.fill_gap(frame, at..record.offset) {
                return false;
            }
            at = record.offset + record.record_len();
        }
        at <= self.shape.segment
    }

    fn fill_gap(&self, frame: u32, gap: Range<u32>) -> bool {
        let Range { start: mut at, end } = gap;
        while at < end {
            let rest = end - at;
            if rest < SHORTEST {
                return false;
            }
            let longest = RECORD_MAX as u32;
            // The rest behind this record has to be long enough for another.
            let len = match rest.checked_sub(longest) {
                None | Some(0) => rest,
                Some(over) => longest - SHORTEST.saturating_sub(over),
            };
            let (len_of, block) = (len - HEADER as u32, BLOCKS_MAX - 1);
            let header = Header { len: len_of, coding: Coding::Raw, block, check: 0 };
            self.frames.fill(frame, at, &[&header.encode()]);
            at += len;
        }
        true
    }
}

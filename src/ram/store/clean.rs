//! Cleaning: moves the live records out of a segment, so that its memory can be used again.
//!
//! A record names its block, and the index says whether that block is still here. The cleaner does
//! not read payloads: a damaged record moves as it is and still fails its check. A damaged header
//! names a block that is elsewhere: the record is not moved, its bytes never become dead, and the
//! segment is set aside, out of cleaning, for reads to report.
//!
//! Clusters are the exception if not all of their blocks are live (`recompress.rs`): the cleaner
//! makes them anew of the live blocks, because otherwise the garbage in them would stay.

use super::cluster::Cluster;
use super::format::{Entry, HEADER, Header, Location};
use super::planted::{Bug, on};
use super::records::{Records, Which};
use super::segment::{BYTES_PER_SEGMENT, Freed, Sealed};
use super::{Retired, Session, Store};
use crate::media::budget::Taker;
use crate::stats::Counts;

/// How a segment's cleaning ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaned {
    /// The segment is empty and will be free when its last reader is gone.
    Emptied,
    /// There was no room for its live records; some may have moved.
    NoRoom,
    /// Something in the segment is damaged; it is set aside.
    Damaged,
}

/// Records that are looked at together, so that their index words are prefetched when needed.
const BATCH: usize = 16;

impl Store {
    /// Makes room at the end of the log: opens the next segment and seals the one before. `false`
    /// when there is no frame. Opens nothing if `len` bytes fit by now.
    pub fn open_segment(&self, who: Taker, len: u32) -> bool {
        let _rolling = self.rolling.lock();
        let cleaner = who == Taker::Cleaner;
        if self.log.fits(len, cleaner) {
            return true;
        }
        let frame = self.frames.take(&self.budget, who).or_else(|| self.borrow_frame(who));
        let Some(frame) = frame else { return false };
        if !cleaner && self.log.fits(len, true) {
            // The open segment was the cleaner's alone, and there is memory again: keep the frame
            // ready, and let all threads append to the open segment.
            self.frames.give(frame);
            self.log.share();
            return true;
        }
        let Some((next, fresh)) = self.segments.open(frame) else {
            self.frames.give(frame);
            return false;
        };
        if fresh {
            self.budget.add(BYTES_PER_SEGMENT as u64);
        }
        if let Some((sealed, end)) = self.log.seal(next, who == Taker::Cleaner) {
            if end == 0 {
                // No thread has reserved in it, and none can any more.
                self.give(self.segments.free(sealed));
            } else {
                self.segments.seal(sealed, end);
            }
        }
        true
    }

    /// A frame for the cleaner of a store that was taken over. The segments that the reserve was
    /// spent on are sealed by now, and more memory may be in use than the limit allows, so without
    /// this frame nothing could be cleaned. A store with slots makes room by spilling instead.
    fn borrow_frame(&self, who: Taker) -> Option<u32> {
        let is_stuck = || self.log.open().is_none() && self.slots.count() == 0;
        (who == Taker::Cleaner && is_stuck()).then(|| self.frames.lend(&self.budget)).flatten()
    }

    /// Empties a segment that the caller has claimed: moves its live records to the end of the log,
    /// then retires it. An ordinary taker stops and ends the claim when only the reserve is left.
    /// The cleaner, of which there is one at a time, uses the reserve too.
    pub fn clean(&self, session: &Session, victim: Sealed, who: Taker) -> Cleaned {
        let Some(frame) = self.segments.frame(victim.segment) else {
            unreachable!("who is sealed and claimed has a frame")
        };
        let bytes = self.frames.bytes(frame, 0, victim.end);
        self.clean_from(session, victim, bytes, who)
    }

    /// The same with the segment's bytes, from a frame or a slot.
    pub(super) fn clean_from(
        &self,
        session: &Session,
        victim: Sealed,
        bytes: &[u8],
        who: Taker,
    ) -> Cleaned {
        let mut records = Records::of(victim.segment, bytes);
        if self.relocate_all(session, bytes, victim.sequence, &mut records, who, Which::All) {
            return self.finish(session, victim);
        }
        self.segments.unclaim(victim.segment);
        Cleaned::NoRoom
    }

    /// Moves the live records of `which`. `false` when there is no room for all of them.
    pub(super) fn relocate_all(
        &self,
        session: &Session,
        bytes: &[u8],
        sequence: u64,
        records: &mut Records<'_>,
        who: Taker,
        which: Which,
    ) -> bool {
        loop {
            let mut batch = [None; BATCH];
            for slot in &mut batch {
                *slot = records.next();
                if let Some((header, _)) = slot {
                    self.index.prefetch(header.block);
                }
            }
            if batch[0].is_none() {
                return true;
            }
            let alone = |at: &Location| at.parts == 0;
            {
                let _pin = session.pin(self);
                for (header, at) in batch.iter().flatten().filter(|(_, at)| alone(at)) {
                    if !self.relocate(session, bytes, sequence, (header, *at), who, which) {
                        return false;
                    }
                }
            }
            // Compressing a cluster anew takes longer than a thread should stay pinned.
            for (header, at) in batch.iter().flatten().filter(|(_, at)| !alone(at)) {
                let cluster = Cluster { header, at: *at, bytes, sequence };
                if !self.relocate_cluster(session, &cluster, who, which) {
                    return false;
                }
            }
        }
    }

    fn finish(&self, session: &Session, victim: Sealed) -> Cleaned {
        let emptied = || self.segments.dead_bytes(victim.segment) == victim.end;
        if !emptied() && !on(Bug::JudgeWithoutWaiting) {
            // A thread that replaces an entry counts the death of the old record a moment later,
            // still pinned.
            self.epochs.wait();
        }
        if !emptied() {
            self.segments.quarantine(victim.segment);
            return Cleaned::Damaged;
        }
        self.retire(victim.segment);
        session.count(&Counts { segments_cleaned: 1, ..Counts::default() });
        Cleaned::Emptied
    }

    /// Retires an emptied segment; it is free when its last reader is gone.
    pub(super) fn retire(&self, segment: u32) {
        self.segments.retire(segment);
        let mut retired = self.retired.lock();
        retired.segments.push((segment, self.epochs.stamp()));
    }

    /// Moves one record if it is live and one of `which`; the caller is pinned. `false` when there
    /// is no room.
    pub(super) fn relocate(
        &self,
        session: &Session,
        bytes: &[u8],
        sequence: u64,
        (header, at): (&Header, Location),
        who: Taker,
        which: Which,
    ) -> bool {
        let entry = Entry::record(at);
        let block = header.block;
        let here = || {
            let now = self.index.load(block);
            now.same_place(entry) && (which == Which::All || now.is_hot())
        };
        while block < self.index.blocks_max() && here() {
            let Some(leaf) = self.index.retain_present(block) else { return true };
            let guard = self.stripe(block);
            let live = here() || on(Bug::CopyWithoutCheck);
            let room = live.then(|| self.log.reserve(at.record_len(), who == Taker::Cleaner));
            if let Some(Ok(room)) = room {
                let start = at.offset as usize;
                let record = &bytes[start..start + room.len as usize];
                let header = header.moved(sequence, self.segments.sequence(room.segment));
                let Some(frame) = self.segments.frame(room.segment) else {
                    unreachable!("an open segment has a frame")
                };
                self.frames.fill(frame, room.offset, &[&header.encode(), &record[HEADER..]]);
                let to = Location { segment: room.segment, offset: room.offset, ..at };
                let to = Entry::record(to);
                let keeps = which == Which::All && self.index.load(block).is_hot();
                self.index.swap(&leaf, block, if keeps { to.hot() } else { to });
                self.segments.filled(room);
                self.segments.dead(at.segment, room.len);
                let bytes_moved = i64::from(room.len);
                session.count(&Counts { blocks_moved: 1, bytes_moved, ..Counts::default() });
            }
            drop(guard);
            self.index.release(&leaf, 0);
            if !matches!(room, Some(Err(_))) {
                return true;
            }
            if !self.open_for(who, at.record_len()) {
                return false;
            }
        }
        true
    }

    /// Opens a segment for the records that the caller moves. `false` when there is no room.
    pub(super) fn open_for(&self, who: Taker, len: u32) -> bool {
        self.open_segment(Taker::Ordinary, len)
            || who == Taker::Cleaner && self.open_segment(Taker::Cleaner, len)
    }

    /// Frees the retired segments and frames that no reader can see any more; returns their number.
    pub fn collect(&self) -> usize {
        self.index.collect(&self.epochs, &self.budget);
        let mut retired = self.retired.lock();
        let Retired { segments, frames } = &mut *retired;
        let before = segments.len() + frames.len();
        if before == 0 {
            return 0;
        }
        let horizon = self.epochs.horizon();
        let is_visible = |stamp| stamp >= horizon && !on(Bug::FreeBeforeReadersLeave);
        frames.retain(|(frame, stamp)| {
            let is_visible = is_visible(*stamp);
            if !is_visible {
                self.frames.give(*frame);
            }
            is_visible
        });
        segments.retain(|(segment, stamp)| {
            let is_visible = is_visible(*stamp);
            if !is_visible {
                self.give(self.segments.free(*segment));
            }
            is_visible
        });
        before - segments.len() - frames.len()
    }

    pub(super) fn give(&self, freed: Freed) {
        if let Some(frame) = freed.frame {
            self.frames.give(frame);
        }
        if let Some(slot) = freed.slot {
            self.slots.give(slot);
        }
    }

    /// The blocks in the records of a segment, live and dead, in order.
    pub(super) fn records(&self, segment: Sealed) -> Vec<(u64, Location)> {
        let Some(frame) = self.segments.frame(segment.segment) else { return Vec::new() };
        let bytes = self.frames.bytes(frame, 0, segment.end);
        let records = Records::of(segment.segment, bytes);
        let blocks = |(header, at): (Header, Location)| {
            self.owners(&header, at, bytes).map(move |block| (block, at))
        };
        records.flat_map(blocks).collect()
    }

    /// Retired segments and frames that pinned threads may still see.
    pub fn retired(&self) -> usize {
        let retired = self.retired.lock();
        retired.segments.len() + retired.frames.len()
    }

    /// Bytes of memory that are free once no pinned thread can see them any more.
    pub fn retired_bytes(&self) -> u64 {
        let retired = self.retired.lock();
        let has_frame = |retired: &&(u32, _)| self.segments.frame(retired.0).is_some();
        let frames = retired.segments.iter().filter(has_frame).count() + retired.frames.len();
        frames as u64 * u64::from(self.shape.segment)
    }
}

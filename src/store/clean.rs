//! Cleaning: copies what is live out of a segment, so that its memory can be used again.
//!
//! A record names its block; the index says whether that block is still here. Nothing is computed
//! over the payload: a damaged record moves as it is, and its check word goes on saying so. Where
//! the damage is in a header, the record names a block that is elsewhere: it is not moved, its
//! bytes never become dead, and the segment is set aside, out of cleaning, for reads to report.

use super::budget::Taker;
use super::format::{Entry, HEADER, Header, Location};
use super::planted::{Bug, on};
use super::segment::{BYTES_PER_SEGMENT, Sealed};
use super::tally::Counts;
use super::{Session, Store};

/// How a segment's cleaning ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cleaned {
    /// It is empty and will be free when its last reader is gone.
    Emptied,
    /// There was no room for its live records; some may have moved.
    NoRoom,
    /// Something in it is damaged; it is set aside.
    Damaged,
}

/// Records that are looked at together, so that their index words are on their way when they are
/// needed.
const BATCH: usize = 16;

impl Store {
    /// Makes room at the end of the log: opens the next segment, seals the one before. `false` when
    /// there is no frame. Nothing is opened if `len` bytes fit meanwhile.
    pub fn open_segment(&self, who: Taker, len: u32) -> bool {
        let _rolling = self.rolling.lock();
        let cleaner = who == Taker::Cleaner;
        if self.log.fits(len, cleaner) {
            return true;
        }
        let Some(frame) = self.frames.take(&self.budget, who) else { return false };
        if !cleaner && self.log.fits(len, true) {
            // What is open was the cleaner's alone. There is memory again: keep the frame ready
            // and go on in it.
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
                // Nobody ever reserved in it and nobody can any more.
                self.frames.give(frame_of_empty(self.segments.free(sealed)));
            } else {
                self.segments.seal(sealed, end);
            }
        }
        true
    }

    /// Empties a segment that the caller has claimed: moves its live records to the end of the log,
    /// then retires it. An ordinary taker stops, and gives the claim back, where only the reserve
    /// is left; the cleaner, of which there is one at a time, uses that too.
    pub fn clean(&self, session: &Session, victim: Sealed, who: Taker) -> Cleaned {
        let Some(frame) = self.segments.frame(victim.segment) else { return Cleaned::Emptied };
        let bytes = self.frames.bytes(frame, 0, victim.end);
        let mut records = Records { bytes, offset: 0, segment: victim.segment };
        loop {
            let mut batch = [None; BATCH];
            for slot in &mut batch {
                *slot = records.next();
                if let Some((header, _)) = slot {
                    self.index.prefetch(header.block);
                }
            }
            if batch[0].is_none() {
                return self.finish(session, victim);
            }
            let _pin = session.pin(self);
            for (header, at) in batch.iter().flatten() {
                if !self.relocate(session, bytes, victim.sequence, header, *at, who) {
                    self.segments.unclaim(victim.segment);
                    return Cleaned::NoRoom;
                }
            }
        }
    }

    fn finish(&self, session: &Session, victim: Sealed) -> Cleaned {
        let emptied = || self.segments.dead_bytes(victim.segment) == victim.end;
        if !emptied() && !on(Bug::JudgeWithoutWaiting) {
            // Whoever replaces an entry counts the death of the old record a moment later, pinned
            // all the while.
            self.epochs.wait();
        }
        if !emptied() {
            self.segments.quarantine(victim.segment);
            return Cleaned::Damaged;
        }
        self.segments.retire(victim.segment);
        self.retired.lock().push((victim.segment, self.epochs.stamp()));
        session.count(&Counts { cleaned: 1, ..Counts::default() });
        Cleaned::Emptied
    }

    /// Moves one record if it is live; the caller is pinned. `false` when there is no room.
    fn relocate(
        &self,
        session: &Session,
        bytes: &[u8],
        sequence: u64,
        header: &Header,
        at: Location,
        who: Taker,
    ) -> bool {
        let entry = Entry::record(at);
        let block = header.block;
        let here = || self.index.load(block).same_place(entry);
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
                let to = Location { segment: room.segment, offset: room.offset, len: at.len };
                self.index.swap(&leaf, block, Entry::record(to));
                self.segments.filled(room);
                self.segments.dead(at.segment, room.len);
                let moved_bytes = i64::from(room.len);
                session.count(&Counts { moved: 1, moved_bytes, ..Counts::default() });
            }
            drop(guard);
            self.index.release(&leaf, 0);
            if !matches!(room, Some(Err(_))) {
                return true;
            }
            let len = at.record_len();
            let cleaner = who == Taker::Cleaner;
            let opened = self.open_segment(Taker::Ordinary, len)
                || cleaner && self.open_segment(Taker::Cleaner, len);
            if !opened {
                return false;
            }
        }
        true
    }

    /// Frees the retired segments that no reader can see any more. Says how many that were.
    pub fn collect(&self) -> usize {
        self.index.collect(&self.epochs, &self.budget);
        let mut retired = self.retired.lock();
        if retired.is_empty() {
            return 0;
        }
        let horizon = self.epochs.horizon();
        let before = retired.len();
        retired.retain(|(segment, stamp)| {
            let visible = *stamp >= horizon && !on(Bug::FreeBeforeReadersLeave);
            if !visible {
                self.frames.give(frame_of_empty(self.segments.free(*segment)));
            }
            visible
        });
        before - retired.len()
    }

    /// The records of a segment, live and dead, in order.
    pub(super) fn records(&self, segment: Sealed) -> Vec<(u64, Location)> {
        let Some(frame) = self.segments.frame(segment.segment) else { return Vec::new() };
        let bytes = self.frames.bytes(frame, 0, segment.end);
        let records = Records { bytes, offset: 0, segment: segment.segment };
        records.map(|(header, at)| (header.block, at)).collect()
    }

    /// Segments that are empty but may still be seen.
    pub fn retired(&self) -> usize {
        self.retired.lock().len()
    }
}

fn frame_of_empty(frame: Option<u32>) -> u32 {
    let Some(frame) = frame else { unreachable!("a segment in use has a frame") };
    frame
}

/// The records of a segment, one after the other. Ends where it ends, or where the chain of lengths
/// is broken: what follows cannot be found this way.
struct Records<'a> {
    bytes: &'a [u8],
    offset: u32,
    segment: u32,
}

impl Iterator for Records<'_> {
    type Item = (Header, Location);

    fn next(&mut self) -> Option<Self::Item> {
        let rest = self.bytes.get(self.offset as usize..)?;
        let header = Header::decode(*rest.first_chunk::<HEADER>()?)?;
        let at = Location { segment: self.segment, offset: self.offset, len: header.len };
        let end = self.offset + at.record_len();
        if end as usize > self.bytes.len() {
            return None;
        }
        self.offset = end;
        Some((header, at))
    }
}

//! Cleaning: copies what is live out of a segment, so that its memory can be used again.
//!
//! A record does not hold its block's number in the clear. The cleaner computes the record's
//! digest, which it must check anyway before it copies, gets the number out of the check word, and
//! asks the index whether that block is really here. A damaged record answers with some other
//! block's number, which is elsewhere: it is never copied, and because its bytes never become dead,
//! the segment never looks empty and is kept, out of cleaning, for reads to report.

use super::budget::Taker;
use super::format::{Entry, HEADER, Location, block_of, check_word, decode_shape, digest};
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

/// Records that are looked at together, so that the index words are on their way while the next
/// record's digest is computed.
const BATCH: usize = 16;

#[derive(Clone, Copy)]
struct Candidate {
    block: u64,
    at: Location,
    digest: u32,
}

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

    /// Empties one segment: moves its live records to the end of the log, then retires it. Only one
    /// caller at a time. Opens segments with the cleaner's reserve if it has to.
    pub fn clean(&self, session: &mut Session, victim: Sealed) -> Cleaned {
        let Some(frame) = self.segments.frame(victim.segment) else { return Cleaned::Emptied };
        let bytes = self.frames.bytes(frame, 0, victim.end);
        let mut batch = [None; BATCH];
        let mut filled = 0;
        let mut offset = 0;
        while offset < victim.end {
            let Some(found) = candidate(bytes, offset, &victim) else {
                // The chain of lengths is broken; what follows cannot be found this way.
                break;
            };
            offset += found.at.record_len();
            self.index.prefetch(found.block);
            batch[filled] = Some(found);
            filled += 1;
            if filled == BATCH || offset >= victim.end {
                for found in batch[..filled].iter().flatten() {
                    if !self.relocate(session, bytes, found) {
                        return Cleaned::NoRoom;
                    }
                }
                filled = 0;
            }
        }
        for found in batch[..filled].iter().flatten() {
            if !self.relocate(session, bytes, found) {
                return Cleaned::NoRoom;
            }
        }
        self.finish(session, victim)
    }

    fn finish(&self, session: &Session, victim: Sealed) -> Cleaned {
        let emptied =
            || self.segments.sealed(victim.segment).is_some_and(|now| now.dead == now.end);
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

    /// Moves one record if it is live. `false` when there is no room.
    fn relocate(&self, session: &mut Session, bytes: &[u8], found: &Candidate) -> bool {
        let entry = Entry::record(found.at);
        if found.block >= self.index.blocks_max() {
            return true;
        }
        loop {
            let _pin = session.pin(self);
            if !self.index.load(found.block).same_place(entry) {
                return true;
            }
            let Some(leaf) = self.index.retain_present(found.block) else { return true };
            let guard = self.stripe(found.block);
            let still = self.index.load(found.block).same_place(entry) || on(Bug::CopyWithoutCheck);
            let room = still.then(|| self.log.reserve(found.at.record_len(), true));
            let moved = match room {
                None => true,
                Some(Err(_)) => false,
                Some(Ok(room)) => {
                    let start = found.at.offset as usize;
                    let record = &bytes[start..start + room.len as usize];
                    let sequence = self.segments.sequence(room.segment);
                    let check = check_word(found.digest, found.block, sequence).to_le_bytes();
                    let Some(frame) = self.segments.frame(room.segment) else {
                        unreachable!("an open segment has a frame")
                    };
                    let parts = [&record[..2], &check, &record[HEADER..]];
                    self.frames.fill(frame, room.offset, &parts);
                    let at = Location { segment: room.segment, offset: room.offset, ..found.at };
                    self.index.swap(&leaf, found.block, Entry::record(at));
                    self.segments.filled(room);
                    self.segments.dead(found.at.segment, room.len);
                    session.count(&Counts {
                        moved: 1,
                        moved_bytes: i64::from(room.len),
                        ..Counts::default()
                    });
                    true
                }
            };
            drop(guard);
            self.index.release(&leaf, 0);
            if moved {
                return true;
            }
            let len = found.at.record_len();
            if !self.open_segment(Taker::Ordinary, len) && !self.open_segment(Taker::Cleaner, len) {
                return false;
            }
        }
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
        let mut offset = 0;
        std::iter::from_fn(|| {
            let found = candidate(bytes, offset, &segment)?;
            offset += found.at.record_len();
            Some((found.block, found.at))
        })
        .collect()
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

/// The record at `offset`, with the block number that its check word gives; `None` where there is
/// no record.
fn candidate(bytes: &[u8], offset: u32, victim: &Sealed) -> Option<Candidate> {
    let rest = &bytes[offset as usize..];
    let header = rest.first_chunk::<HEADER>()?;
    let shape = [header[0], header[1]];
    let (len, _) = decode_shape(shape)?;
    let payload = rest.get(HEADER..HEADER + len)?;
    let digest = digest(shape, payload);
    let check = u32::from_le_bytes([header[2], header[3], header[4], header[5]]);
    let block = block_of(check, digest, victim.sequence);
    let at = Location { segment: victim.segment, offset, len: len as u32 };
    Some(Candidate { block, at, digest })
}

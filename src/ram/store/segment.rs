//! The segment table: the state of each logical segment.
//!
//! A segment is *free*, *open* (the log appends to it), *sealed* (its end is known; it never
//! changes again), *spilled* (sealed, and in a slot of the spill device instead of a frame) or
//! *retired* (emptied, waiting for the last reader). The table lives in a memory file, eight words
//! a segment, so that another process can find the frames and slots again.
//!
//! Invariants:
//! - the states follow in one order: free, open, sealed, perhaps spilled, retired, free. A spilled
//!   segment never gets a frame again: its live records are appended anew;
//! - a slot is named before the frame is forgotten, so a reader that finds no frame finds the slot;
//! - `dead` only grows while a segment is in use, and reaches `end` exactly when nothing in it is
//!   live;
//! - a sealed segment is *settled* once `filled` has reached `end`. Only then is it cleaned,
//!   because a record that is not published yet looks like a dead one.

use super::format::SEGMENTS_MAX;
use super::log::Reservation;
use super::planted::{Bug, on};
use crate::error::{Error, Result};
use crate::media::{Memory, PAGE, Words};
use crate::remedy;
use crate::sync::Mutex;
use crate::sync::atomic::{AtomicU64, Ordering};
use std::collections::HashSet;

const STRIDE: usize = 8;
/// Frame number + 1; 0: none.
const PLACE: usize = 0;
/// Counts openings over the whole life of the volume; never repeats.
const SEQUENCE: usize = 1;
/// Bytes reserved when it was sealed; 0 until then.
const END: usize = 2;
/// Bytes of records that nothing points to any more; above [`COUNT_SHIFT`], the number of those
/// records.
const DEAD: usize = 3;
/// Bytes of records that are filled in and published.
const FILLED: usize = 4;
/// The sequence, above one bit that is set while a cleaner works on the segment or a thread spills
/// it. The sequence makes a claim hold for one segment only, not for the next with the same number.
const CLAIMED: usize = 5;
/// Slot number + 1; 0: none. Above [`COUNT_SHIFT`], the number of records in it, live and dead.
const SLOT: usize = 6;

/// Notes on its content: [`PACKED`], [`TRIED`], [`UNREAD`].
const NOTES: usize = 7;

/// The segment was made of records of other segments while writes went on: its place in the order
/// of segments says nothing about the order of changes.
const PACKED: u64 = 1;
/// Recompression of the segment was tried, and what is left is not worth another try.
const TRIED: u64 = 2;
/// The last read of the whole segment from its slot failed.
const UNREAD: u64 = 4;

/// In words with two numbers: the shift of the count.
const COUNT_SHIFT: u32 = 32;

/// Rows for the slots of a device that the volume may get later. Address space, not memory.
/// Rows for slots are a multiple of it, which tells a table of another volume.
const SPARE: u32 = if cfg!(shuttle) { 1 } else { 1 << 16 };

/// Bytes of the table for one segment.
pub const BYTES_PER_SEGMENT: usize = STRIDE * 8;
/// Rows in a page, of which memory files have a whole number.
const ROWS: u32 = (PAGE / BYTES_PER_SEGMENT) as u32;

/// The table.
#[derive(Debug)]
pub struct Segments {
    words: Words,
    ids: Mutex<Ids>,
    next_sequence: AtomicU64,
    frames: u32,
    rows: u32,
}

#[derive(Debug, Default)]
struct Ids {
    free: Vec<u32>,
    fresh: u32,
}

/// A sealed, settled segment, as the cleaner's policy sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sealed {
    /// Logical segment.
    pub segment: u32,
    /// Bytes of records in it.
    pub end: u32,
    /// Bytes of dead records.
    pub dead: u32,
    /// Age: lower is older.
    pub sequence: u64,
}

/// Where the bytes of a segment are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// In this frame.
    Frame(u32),
    /// In this slot of the spill device.
    Slot(u32),
}

/// What [`Segments::claim_below`] comes to next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Next {
    /// A segment that the caller has claimed now, and its slot.
    Claimed(Sealed, u32),
    /// A segment with live records that another thread has claimed.
    Taken,
}

/// The place that a freed segment had.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Freed {
    /// Its frame.
    pub frame: Option<u32>,
    /// Its slot.
    pub slot: Option<u32>,
}

/// A segment in use, as another process left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// Where the segment is. A segment whose spill had not ended is still in its frame.
    pub place: Place,
    /// No thread was writing to it: the segment is sealed, or set aside.
    pub settled: bool,
}

/// The rows of a new table.
fn rows_for(frames: u32, slots: u32) -> u32 {
    let slots = slots.max(1).next_multiple_of(SPARE);
    frames.saturating_add(slots).min(SEGMENTS_MAX)
}

/// The rows of a table that was taken over and whose whole pages have room for `there`, if it can
/// be this volume's.
fn rows_left(there: u32, (frames, slots): (u32, u32)) -> u32 {
    let spare = there.saturating_sub(frames) / SPARE * SPARE;
    let spare = (spare > 0).then(|| frames.saturating_add(spare));
    // The table of an older ztier has no spare rows.
    let all = [Some(frames.saturating_add(slots)), spare, Some(SEGMENTS_MAX)];
    let own =
        all.into_iter().flatten().find(|rows| rows.checked_next_multiple_of(ROWS) == Some(there));
    own.unwrap_or_else(|| rows_for(frames, slots))
}

/// Whether a table has rows for other slots.
fn is_spare(rows: u32, frames: u32) -> bool {
    let slots = rows.saturating_sub(frames);
    rows == SEGMENTS_MAX || slots > 0 && slots.is_multiple_of(SPARE)
}

/// The value of [`CLAIMED`] for an unclaimed segment of this sequence.
fn generation(sequence: u64) -> u64 {
    sequence << 1
}

impl Segments {
    /// A table with a row for each of `frames` and `slots`, and spare ones; or with as many rows as
    /// another process left.
    ///
    /// # Errors
    /// See [`Words::new`].
    pub fn new(memory: &Memory, frames: u32, slots: u32) -> Result<Self> {
        let rows = match memory.len_of("segments")? {
            Some(bytes) => rows_left((bytes / BYTES_PER_SEGMENT as u64) as u32, (frames, slots)),
            None => rows_for(frames, slots),
        };
        let count = rows as usize;
        Ok(Self {
            words: Words::new(memory, "segments", count * STRIDE)?,
            // Room for all numbers: memory may be short when a segment is freed.
            ids: Mutex::new(Ids { free: Vec::with_capacity(count), fresh: 0 }),
            next_sequence: AtomicU64::new(1),
            frames,
            rows,
        })
    }

    /// The most segments that can be in use.
    pub fn rows(&self) -> u32 {
        self.rows
    }

    /// Whether the number of slots may change: not in the table of an older ztier.
    pub fn may_change(&self) -> bool {
        is_spare(self.rows, self.frames)
    }

    /// The most slots that a spill device can have.
    pub fn slots_max(&self) -> u32 {
        self.rows.saturating_sub(self.frames)
    }

    /// See [`Words::lock`].
    ///
    /// # Errors
    /// See [`Words::lock`].
    pub fn lock(&self) -> Result<()> {
        self.words.lock()
    }

    /// Makes present what the table needs with `slots` slots, so that no change of it needs memory
    /// any more.
    ///
    /// # Errors
    /// See [`crate::media::Arena::populate`].
    pub fn populate(&self, slots: u32) -> rustix::io::Result<()> {
        let rows = self.frames.saturating_add(slots).min(self.rows);
        self.words.populate(0..rows as usize * STRIDE)
    }

    /// Segments below this number were used at some time, the others never.
    pub fn used(&self) -> u32 {
        self.ids.lock().fresh
    }

    /// Segments in use: open, sealed or retired.
    pub fn in_use(&self) -> u32 {
        let ids = self.ids.lock();
        ids.fresh - ids.free.len() as u32
    }

    /// Whether the table has such a segment: a damaged entry may name one beyond its end.
    pub fn has(&self, segment: u32) -> bool {
        segment < self.rows
    }

    fn word(&self, segment: u32, what: usize) -> &AtomicU64 {
        self.words.get(segment as usize * STRIDE + what)
    }

    /// Opens a free segment in `frame`. Also returns whether its number was never used before;
    /// `None` when all numbers are in use.
    pub fn open(&self, frame: u32) -> Option<(u32, bool)> {
        let (segment, fresh) = {
            let mut ids = self.ids.lock();
            match ids.free.pop() {
                Some(id) => (id, false),
                None if ids.fresh < self.rows.min(SEGMENTS_MAX) => {
                    ids.fresh += 1;
                    (ids.fresh - 1, true)
                }
                None => return None,
            }
        };
        let sequence = self.next_sequence.fetch_add(1, Ordering::Relaxed);
        for what in [END, DEAD, FILLED, NOTES] {
            self.word(segment, what).store(0, Ordering::Relaxed);
        }
        self.word(segment, SEQUENCE).store(sequence, Ordering::Relaxed);
        self.word(segment, CLAIMED).store(generation(sequence), Ordering::Relaxed);
        self.word(segment, PLACE).store(u64::from(frame) + 1, Ordering::Release);
        Some((segment, fresh))
    }

    /// The frame of a segment; `None` when it is free or spilled.
    pub fn frame(&self, segment: u32) -> Option<u32> {
        (self.word(segment, PLACE).load(Ordering::Acquire) as u32).checked_sub(1)
    }

    /// The slot of a segment; `None` when it has none.
    pub fn slot(&self, segment: u32) -> Option<u32> {
        (self.word(segment, SLOT).load(Ordering::Acquire) as u32).checked_sub(1)
    }

    /// Where a segment is; `None` when it is free.
    pub fn place(&self, segment: u32) -> Option<Place> {
        let frame = self.frame(segment).map(Place::Frame);
        frame.or_else(|| self.slot(segment).map(Place::Slot))
    }

    /// Notes that all bytes of a claimed segment are in `slot`, with `records` records, and takes
    /// its frame away. The caller must wait for readers of the frame.
    pub(super) fn spill(&self, segment: u32, slot: u32, records: u32) -> Option<u32> {
        let slot = u64::from(records) << COUNT_SHIFT | (u64::from(slot) + 1);
        let frame = self.frame(segment);
        if on(Bug::ForgetFrameFirst) {
            self.word(segment, PLACE).store(0, Ordering::Release);
        }
        self.word(segment, SLOT).store(slot, Ordering::Release);
        self.word(segment, PLACE).store(0, Ordering::Release);
        frame
    }

    /// The sequence that the next segment gets.
    pub fn next_sequence(&self) -> u64 {
        self.next_sequence.load(Ordering::Relaxed)
    }

    /// Notes that an empty open segment will be filled with records of other segments.
    pub(super) fn note_packed(&self, segment: u32) {
        self.word(segment, NOTES).fetch_or(PACKED, Ordering::Relaxed);
    }

    /// Whether a segment was made of records of other segments.
    pub fn is_packed(&self, segment: u32) -> bool {
        self.word(segment, NOTES).load(Ordering::Relaxed) & PACKED != 0
    }

    /// Notes that recompressing what is left in a segment does not pay.
    pub(super) fn note_tried(&self, segment: u32) {
        self.word(segment, NOTES).fetch_or(TRIED, Ordering::Relaxed);
    }

    /// Whether recompressing a segment may pay.
    pub fn may_shrink(&self, segment: u32) -> bool {
        self.word(segment, NOTES).load(Ordering::Relaxed) == 0
    }

    /// Notes whether the slot of a claimed segment could be read as a whole.
    pub fn note_read(&self, segment: u32, read: bool) {
        let notes = self.word(segment, NOTES);
        match read {
            true => notes.fetch_and(!UNREAD, Ordering::Relaxed),
            false => notes.fetch_or(UNREAD, Ordering::Relaxed),
        };
    }

    /// Whether the last read of a segment's whole slot failed.
    pub fn is_unread(&self, segment: u32) -> bool {
        self.word(segment, NOTES).load(Ordering::Relaxed) & UNREAD != 0
    }

    /// Bytes of published records in a packed segment that is not sealed.
    pub(super) fn packing(&self, segment: u32) -> Option<u32> {
        let is_open = self.word(segment, END).load(Ordering::Acquire) == 0
            && self.frame(segment).is_some()
            && self.is_packed(segment);
        is_open.then(|| self.word(segment, FILLED).load(Ordering::Acquire) as u32)
    }

    /// The sequence of a segment in use.
    pub fn sequence(&self, segment: u32) -> u64 {
        self.word(segment, SEQUENCE).load(Ordering::Relaxed)
    }

    /// Notes that a reservation is filled and its records are published.
    pub fn filled(&self, r: Reservation) {
        self.word(r.segment, FILLED).fetch_add(u64::from(r.len), Ordering::Release);
    }

    /// Notes that nothing points to a record of `len` bytes any more. A thread that sees the
    /// segment empty and frees it is ordered after all threads that removed index entries.
    pub fn dead(&self, segment: u32, len: u32) {
        let one = 1 << COUNT_SHIFT | u64::from(len);
        let before = self.word(segment, DEAD).fetch_add(one, Ordering::Release) as u32;
        debug_assert!(before + len <= super::format::SEGMENT_MAX);
    }

    /// Seals a segment at `end`. The caller frees an empty segment instead.
    pub fn seal(&self, segment: u32, end: u32) {
        self.word(segment, END).store(u64::from(end), Ordering::Release);
    }

    /// Claims the segment if it still has `sequence` and is sealed and settled. From then on only
    /// the caller may clean it. Returns its current content.
    pub fn claim(&self, segment: u32, sequence: u64) -> Option<Sealed> {
        if !self.set_claim(segment, generation(sequence)) {
            return None;
        }
        let claimed = self.sealed(segment).filter(|now| now.sequence == sequence);
        if claimed.is_none() {
            self.end_claim(segment, sequence);
        }
        claimed
    }

    /// The same for a spilled segment; also returns its slot.
    pub fn claim_spilled(&self, segment: u32, sequence: u64) -> Option<(Sealed, u32)> {
        if !self.set_claim(segment, generation(sequence)) {
            return None;
        }
        let claimed = self.spilled(segment).filter(|now| now.sequence == sequence);
        let claimed = claimed.zip(self.slot(segment));
        if claimed.is_none() {
            self.end_claim(segment, sequence);
        }
        claimed
    }

    /// Ends the caller's claim on the segment.
    pub fn unclaim(&self, segment: u32) {
        self.end_claim(segment, self.sequence(segment));
    }

    /// Claims a segment if it still has that generation and is not claimed.
    fn set_claim(&self, segment: u32, generation: u64) -> bool {
        let free = generation & !1;
        let word = self.word(segment, CLAIMED);
        word.compare_exchange(free, free | 1, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }

    /// Ends the claim on the segment of that sequence. If the number has a new segment by now, its
    /// claim is not the caller's and stays.
    fn end_claim(&self, segment: u32, sequence: u64) {
        let (word, free) = (self.word(segment, CLAIMED), generation(sequence));
        if on(Bug::UnclaimWhatever) {
            word.store(word.load(Ordering::Acquire) & !1, Ordering::Release);
            return;
        }
        let _ = word.compare_exchange(free | 1, free, Ordering::AcqRel, Ordering::Relaxed);
    }

    /// The segment, if it is sealed, settled, and in a frame.
    pub fn sealed(&self, segment: u32) -> Option<Sealed> {
        self.settled(segment).filter(|_| self.frame(segment).is_some())
    }

    /// The segment, if it is sealed, settled, and spilled.
    pub fn spilled(&self, segment: u32) -> Option<Sealed> {
        let is_spilled = |_: &_| matches!(self.place(segment), Some(Place::Slot(_)));
        self.settled(segment).filter(is_spilled)
    }

    fn settled(&self, segment: u32) -> Option<Sealed> {
        let end = self.word(segment, END).load(Ordering::Acquire);
        let filled = self.word(segment, FILLED).load(Ordering::Acquire);
        if end == 0 || filled != end {
            return None;
        }
        let dead = self.word(segment, DEAD).load(Ordering::Acquire) as u32;
        Some(Sealed { segment, end: end as u32, dead, sequence: self.sequence(segment) })
    }

    /// All sealed, settled segments in frames that are not claimed.
    pub fn all_sealed(&self) -> impl Iterator<Item = Sealed> {
        self.unclaimed().filter_map(|segment| self.sealed(segment))
    }

    /// All spilled segments that are not claimed.
    pub fn all_spilled(&self) -> impl Iterator<Item = Sealed> {
        self.unclaimed().filter_map(|segment| self.spilled(segment))
    }

    /// Claims a spilled segment that nothing names any more, even one that was set aside: its
    /// records count as dead whether or not their bytes are damaged.
    pub fn claim_dead_below(&self) -> Option<u32> {
        let is_dead = |segment: &u32| {
            let end = self.word(*segment, END).load(Ordering::Acquire);
            end != 0 && u64::from(self.dead_bytes(*segment)) == end
        };
        let is_below = |segment: &u32| matches!(self.place(*segment), Some(Place::Slot(_)));
        let is_gone = |segment: &u32| is_dead(segment) && is_below(segment);
        (0..self.used()).find(|segment| {
            let claim = || self.word(*segment, CLAIMED).load(Ordering::Acquire);
            let before = claim();
            // Meanwhile another thread may free it, and a writer open it again.
            before & 1 == 0
                && is_gone(segment)
                && self.set_claim(*segment, if on(Bug::ClaimLate) { claim() } else { before })
        })
    }

    /// A segment in a slot, even one that was set aside, and its slot.
    fn below(&self, segment: u32) -> Option<(Sealed, u32)> {
        let end = self.word(segment, END).load(Ordering::Acquire) as u32;
        let Some(Place::Slot(slot)) = self.place(segment).filter(|_| end != 0) else {
            return None;
        };
        let (dead, sequence) = (self.dead_bytes(segment), self.sequence(segment));
        Some((Sealed { segment, end, dead, sequence }, slot))
    }

    /// Claims the first segment in a slot from number `first` on, even one that was set aside.
    /// Passes over no segment with live records, also if another thread has claimed it, perhaps
    /// only to look whether it is in a frame.
    pub fn claim_below(&self, first: u32) -> Option<Next> {
        (first..self.used()).find_map(|segment| {
            let before = self.word(segment, CLAIMED).load(Ordering::Acquire);
            let (seen, _) = self.below(segment)?;
            if before & 1 == 1 || !self.set_claim(segment, before) {
                return (seen.dead < seen.end).then_some(Next::Taken);
            }
            let claimed = self.below(segment);
            if claimed.is_none() {
                self.unclaim(segment);
            }
            claimed.map(|(sealed, slot)| Next::Claimed(sealed, slot))
        })
    }

    /// Live bytes and live records in all slots, also of segments that were set aside.
    pub fn live_below(&self) -> (u64, u64) {
        let live = |segment: u32| {
            let (sealed, _) = self.below(segment)?;
            let records = self.word(segment, SLOT).load(Ordering::Relaxed) >> COUNT_SHIFT;
            let dead = self.word(segment, DEAD).load(Ordering::Relaxed);
            let bytes = sealed.end.saturating_sub(dead as u32);
            Some((u64::from(bytes), records.saturating_sub(dead >> COUNT_SHIFT)))
        };
        (0..self.used()).filter_map(live).fold((0, 0), |sum, one| (sum.0 + one.0, sum.1 + one.1))
    }

    fn unclaimed(&self) -> impl Iterator<Item = u32> {
        let is_free = |segment: &u32| self.word(*segment, CLAIMED).load(Ordering::Acquire) & 1 == 0;
        (0..self.used()).filter(is_free)
    }

    /// Bytes in a segment, sealed or not, that nothing points to any more.
    pub fn dead_bytes(&self, segment: u32) -> u32 {
        self.word(segment, DEAD).load(Ordering::Acquire) as u32
    }

    /// Takes a segment out of cleaning for good: something in it is damaged.
    pub fn quarantine(&self, segment: u32) {
        self.word(segment, FILLED).store(u64::MAX, Ordering::Relaxed);
    }

    /// Marks an emptied segment as no longer sealed, so that nothing cleans it again while readers
    /// may still be looking at it.
    pub fn retire(&self, segment: u32) {
        self.word(segment, END).store(0, Ordering::Release);
    }

    /// The place of each segment that another process ever used, in order of number; `None` if
    /// free. There are `most` slots at most.
    ///
    /// # Errors
    /// When rows contradict each other.
    pub(super) fn left(&self, most: u32) -> Result<Vec<Option<Left>>> {
        let rows = self.words.present().map(|words| words.end.div_ceil(STRIDE)).max().unwrap_or(0);
        let used = (0..rows as u32).rev().find(|s| self.sequence(*s) != 0).map_or(0, |s| s + 1);
        let (mut frames, mut slots) = (HashSet::new(), HashSet::new());
        let mut left = Vec::with_capacity(used as usize);
        for segment in 0..used.min(self.rows) {
            let end = self.word(segment, END).load(Ordering::Relaxed);
            let filled = self.word(segment, FILLED).load(Ordering::Relaxed);
            let settled = end != 0 && (filled == end || filled == u64::MAX);
            let place = self.place(segment);
            let (what, is_possible) = match place {
                None => ("", true),
                Some(Place::Frame(frame)) => ("frame", frame < self.frames && frames.insert(frame)),
                Some(Place::Slot(slot)) => ("slot", slot < most && slots.insert(slot)),
            };
            if !is_possible {
                return Err(Error::would_lose(format!(
                    "the memory that was kept contradicts itself: segment {segment} has a {what} \
                     that cannot be"
                ))
                .hint(remedy::KEPT_BROKEN));
            }
            left.push(place.map(|place| Left { place, settled }));
        }
        Ok(left)
    }

    /// Seals at `end` a segment that a thread was writing. Sets it aside unless it is `whole`.
    pub(super) fn settle(&self, segment: u32, end: u32, whole: bool) {
        let end = u64::from(end);
        let filled = if whole { end } else { u64::MAX };
        self.word(segment, END).store(end, Ordering::Relaxed);
        self.word(segment, FILLED).store(filled, Ordering::Relaxed);
    }

    /// Takes over the table of another process. Frees segments without live bytes; in the others,
    /// all that is not live is dead. `live` returns live bytes and records of a segment, `all` the
    /// number of records of a segment in a frame. Returns the frames and the slots that are taken.
    pub(super) fn adopt(
        &self,
        left: &[Option<Left>],
        live: impl Fn(u32) -> (u32, u32),
        all: impl Fn(u32) -> u32,
    ) -> (Vec<u32>, Vec<u32>) {
        let mut ids = self.ids.lock();
        let mut last = 0;
        let (mut frames, mut slots) = (Vec::new(), Vec::new());
        for (segment, left) in (0..).zip(left) {
            let sequence = self.sequence(segment);
            last = last.max(sequence);
            self.word(segment, CLAIMED).store(generation(sequence), Ordering::Relaxed);
            let (bytes, records) = live(segment);
            match left.filter(|_| bytes > 0) {
                Some(left) => {
                    let end = self.word(segment, END).load(Ordering::Relaxed);
                    let all = match left.place {
                        Place::Frame(frame) => {
                            self.word(segment, SLOT).store(0, Ordering::Relaxed);
                            frames.push(frame);
                            all(segment)
                        }
                        Place::Slot(slot) => {
                            slots.push(slot);
                            (self.word(segment, SLOT).load(Ordering::Relaxed) >> COUNT_SHIFT) as u32
                        }
                    };
                    let dead = end.saturating_sub(bytes.into());
                    let dead = dead | u64::from(all.saturating_sub(records)) << COUNT_SHIFT;
                    self.word(segment, DEAD).store(dead, Ordering::Relaxed);
                }
                None => {
                    for what in [PLACE, SLOT, END, DEAD, FILLED, NOTES] {
                        self.word(segment, what).store(0, Ordering::Relaxed);
                    }
                    ids.free.push(segment);
                }
            }
        }
        ids.fresh = left.len() as u32;
        self.next_sequence.store(last + 1, Ordering::Relaxed);
        (frames, slots)
    }

    /// Frees a retired segment that no reader can see any more; returns the place that it had.
    pub fn free(&self, segment: u32) -> Freed {
        let freed = Freed { frame: self.frame(segment), slot: self.slot(segment) };
        self.word(segment, PLACE).store(0, Ordering::Release);
        self.word(segment, SLOT).store(0, Ordering::Release);
        self.ids.lock().free.push(segment);
        freed
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_table_is_known_by_its_pages() {
        let pages = |rows: u32| rows.next_multiple_of(ROWS);
        for frames in [100, 640, 24_101] {
            for slots in [0, 1, 70, SPARE, SPARE + 1] {
                let rows = rows_for(frames, slots);
                assert!(is_spare(rows, frames) && rows - frames >= slots);
                // The volume may have another number of slots since.
                for now in [0, 3, slots] {
                    assert_eq!(rows_left(pages(rows), (frames, now)), rows);
                }
                assert_eq!(rows_left(pages(frames + slots), (frames, slots)), frames + slots);
            }
            // Of another volume: what is made instead does not fit.
            let other = pages(rows_for(frames, 0)) + ROWS;
            assert_ne!(pages(rows_left(other, (frames, 0))), other);
        }
    }
}

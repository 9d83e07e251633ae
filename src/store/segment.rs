//! The segment table: what is known of each logical segment.
//!
//! A segment is *free*, *open* (the log appends to it), *sealed* (its end is known; it never
//! changes again) or *retired* (emptied, waiting for the last reader). It lives in a memory file,
//! eight words a segment, so that another process can find the frames again.
//!
//! Invariants:
//! - `dead` only grows while a segment is in use, and reaches `end` exactly when nothing in it is
//!   live;
//! - a sealed segment is *settled* once `filled` has reached `end`: only then is it cleaned,
//!   because a record that is not published yet looks like one that is dead.

use super::log::Reservation;
use crate::error::{Error, Result};
use crate::media::{Memory, Words};
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
/// Bytes of records that nothing points to any more.
const DEAD: usize = 3;
/// Bytes of records that are filled in and published.
const FILLED: usize = 4;
/// 1 while a cleaner works on it.
const CLAIMED: usize = 5;

/// Bytes of table a segment.
pub const BYTES_PER_SEGMENT: usize = STRIDE * 8;

/// The table.
#[derive(Debug)]
pub struct Segments {
    words: Words,
    ids: Mutex<Ids>,
    next_sequence: AtomicU64,
    count: u32,
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
    /// How many of them are dead.
    pub dead: u32,
    /// Age: lower is older.
    pub sequence: u64,
}

/// A segment in use, as another process left it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Left {
    /// Its frame.
    pub frame: u32,
    /// Nobody was writing in it: it is sealed, or set aside.
    pub settled: bool,
}

impl Segments {
    /// A table for `count` segments.
    ///
    /// # Errors
    /// See [`Words::new`].
    pub fn new(memory: &Memory, count: u32) -> Result<Self> {
        Ok(Self {
            words: Words::new(memory, "segments", count as usize * STRIDE)?,
            ids: Mutex::new(Ids::default()),
            next_sequence: AtomicU64::new(1),
            count,
        })
    }

    /// See [`Words::lock`].
    ///
    /// # Errors
    /// See [`Words::lock`].
    pub fn lock(&self) -> Result<()> {
        self.words.lock()
    }

    /// Segments up to here were used at some time; the others never.
    pub fn used(&self) -> u32 {
        self.ids.lock().fresh
    }

    /// Segments in use: open, sealed or retired.
    pub fn in_use(&self) -> u32 {
        let ids = self.ids.lock();
        ids.fresh - ids.free.len() as u32
    }

    fn word(&self, segment: u32, what: usize) -> &AtomicU64 {
        self.words.get(segment as usize * STRIDE + what)
    }

    /// Makes a free segment of `frame`, and says whether its number was never used before; `None`
    /// when all numbers are in use.
    pub fn open(&self, frame: u32) -> Option<(u32, bool)> {
        let (segment, fresh) = {
            let mut ids = self.ids.lock();
            match ids.free.pop() {
                Some(id) => (id, false),
                None if ids.fresh < self.count => {
                    ids.fresh += 1;
                    (ids.fresh - 1, true)
                }
                None => return None,
            }
        };
        let sequence = self.next_sequence.fetch_add(1, Ordering::Relaxed);
        for what in [END, DEAD, FILLED, CLAIMED] {
            self.word(segment, what).store(0, Ordering::Relaxed);
        }
        self.word(segment, SEQUENCE).store(sequence, Ordering::Relaxed);
        self.word(segment, PLACE).store(u64::from(frame) + 1, Ordering::Release);
        Some((segment, fresh))
    }

    /// The frame of a segment; `None` when it is free.
    pub fn frame(&self, segment: u32) -> Option<u32> {
        (self.word(segment, PLACE).load(Ordering::Acquire) as u32).checked_sub(1)
    }

    /// The sequence of a segment in use.
    pub fn sequence(&self, segment: u32) -> u64 {
        self.word(segment, SEQUENCE).load(Ordering::Relaxed)
    }

    /// Notes that a reservation is filled in and its records are published.
    pub fn filled(&self, r: Reservation) {
        self.word(r.segment, FILLED).fetch_add(u64::from(r.len), Ordering::Release);
    }

    /// Notes that a record of `len` bytes is not pointed to any more.
    pub fn dead(&self, segment: u32, len: u32) {
        let before = self.word(segment, DEAD).fetch_add(u64::from(len), Ordering::Relaxed);
        debug_assert!(before + u64::from(len) <= u64::from(super::format::SEGMENT_MAX));
    }

    /// Seals a segment at `end`. An empty one is freed by the caller instead.
    pub fn seal(&self, segment: u32, end: u32) {
        self.word(segment, END).store(u64::from(end), Ordering::Release);
    }

    /// Makes the caller the only one who cleans this segment, if it is still the one of `sequence`,
    /// and sealed and settled; says what is in it by now.
    pub fn claim(&self, segment: u32, sequence: u64) -> Option<Sealed> {
        let word = self.word(segment, CLAIMED);
        word.compare_exchange(0, 1, Ordering::AcqRel, Ordering::Acquire).ok()?;
        let claimed = self.sealed(segment).filter(|now| now.sequence == sequence);
        if claimed.is_none() {
            self.unclaim(segment);
        }
        claimed
    }

    /// Lets others clean the segment.
    pub fn unclaim(&self, segment: u32) {
        self.word(segment, CLAIMED).store(0, Ordering::Release);
    }

    /// The segment, if it is sealed and settled.
    pub fn sealed(&self, segment: u32) -> Option<Sealed> {
        let end = self.word(segment, END).load(Ordering::Acquire);
        let filled = self.word(segment, FILLED).load(Ordering::Acquire);
        if end == 0 || filled != end || self.frame(segment).is_none() {
            return None;
        }
        let dead = self.word(segment, DEAD).load(Ordering::Relaxed) as u32;
        Some(Sealed { segment, end: end as u32, dead, sequence: self.sequence(segment) })
    }

    /// All sealed, settled segments that nobody cleans.
    pub fn all_sealed(&self) -> impl Iterator<Item = Sealed> {
        let unclaimed = |segment: &u32| self.word(*segment, CLAIMED).load(Ordering::Acquire) == 0;
        (0..self.used()).filter(unclaimed).filter_map(|segment| self.sealed(segment))
    }

    /// Bytes in a segment, sealed or not, that nothing points to any more.
    pub fn dead_bytes(&self, segment: u32) -> u32 {
        self.word(segment, DEAD).load(Ordering::Relaxed) as u32
    }

    /// Takes a segment out of cleaning for ever: something in it is damaged.
    pub fn quarantine(&self, segment: u32) {
        self.word(segment, FILLED).store(u64::MAX, Ordering::Relaxed);
    }

    /// Marks an emptied segment as no longer sealed, so that nothing cleans it again while readers
    /// may still be looking at it.
    pub fn retire(&self, segment: u32) {
        self.word(segment, END).store(0, Ordering::Release);
    }

    /// What another process left: one place a segment that was ever used, in order.
    ///
    /// # Errors
    /// When rows contradict each other.
    pub(super) fn left(&self) -> Result<Vec<Option<Left>>> {
        let rows = self.words.present().map(|words| words.end.div_ceil(STRIDE)).max().unwrap_or(0);
        let used = (0..rows as u32).rev().find(|s| self.sequence(*s) != 0).map_or(0, |s| s + 1);
        let mut frames = HashSet::new();
        let mut left = Vec::with_capacity(used as usize);
        for segment in 0..used.min(self.count) {
            let frame = self.frame(segment);
            if frame.is_some_and(|frame| frame >= self.count || !frames.insert(frame)) {
                return Err(Error::failure(format!(
                    "the memory that was kept contradicts itself: segment {segment} has a frame \
                     that cannot be"
                ))
                .mend("give it up (`ztier down NAME --discard`)"));
            }
            let end = self.word(segment, END).load(Ordering::Relaxed);
            let filled = self.word(segment, FILLED).load(Ordering::Relaxed);
            let settled = end != 0 && (filled == end || filled == u64::MAX);
            left.push(frame.map(|frame| Left { frame, settled }));
        }
        Ok(left)
    }

    /// Seals at `end` what somebody was writing in. Unless it is `whole`, it is set aside.
    pub(super) fn settle(&self, segment: u32, end: u32, whole: bool) {
        let end = u64::from(end);
        let filled = if whole { end } else { u64::MAX };
        self.word(segment, END).store(end, Ordering::Relaxed);
        self.word(segment, FILLED).store(filled, Ordering::Relaxed);
    }

    /// Goes on with what another process left: segments with no live bytes are free, of the others
    /// the dead bytes are what is not live. Says which frames are taken.
    pub(super) fn adopt(&self, left: &[Option<Left>], live: impl Fn(u32) -> u32) -> Vec<u32> {
        let mut ids = self.ids.lock();
        let mut last = 0;
        let mut taken = Vec::new();
        for (segment, left) in (0..).zip(left) {
            last = last.max(self.sequence(segment));
            self.word(segment, CLAIMED).store(0, Ordering::Relaxed);
            match left.filter(|_| live(segment) > 0) {
                Some(left) => {
                    let end = self.word(segment, END).load(Ordering::Relaxed);
                    let dead = end.saturating_sub(live(segment).into());
                    self.word(segment, DEAD).store(dead, Ordering::Relaxed);
                    taken.push(left.frame);
                }
                None => {
                    for what in [PLACE, END, DEAD, FILLED] {
                        self.word(segment, what).store(0, Ordering::Relaxed);
                    }
                    ids.free.push(segment);
                }
            }
        }
        ids.fresh = left.len() as u32;
        self.next_sequence.store(last + 1, Ordering::Relaxed);
        taken
    }

    /// Frees a retired segment that no reader can see any more; says which frame it had.
    pub fn free(&self, segment: u32) -> Option<u32> {
        let frame = self.frame(segment);
        self.word(segment, PLACE).store(0, Ordering::Release);
        self.ids.lock().free.push(segment);
        frame
    }
}

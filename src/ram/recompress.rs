//! Recompression of cold data: which segments, and when.
//!
//! A pass goes over the segments in memory from the oldest on, up to those that were written too
//! recently. In each, blocks that were read since the last pass stay as they are; the others are
//! put together with their neighbours where that pays. If little is left of a segment, it is
//! copied; otherwise it stays and is not tried again. The thread that keeps memory free does the
//! same with segments that are about to be spilled ([`Ram::pack_down`]), as long as no writer would
//! have to wait for that.
//!
//! Invariants:
//! - one thread at a time recompresses, and no thread waits for it;
//! - recompression takes memory like any writer, and never from the reserve.

use super::engine::Ram;
use super::policy;
use super::recompression::{RecompressCounts, Recompression, Work};
use crate::codec::together;
use crate::media::budget::Taker;
use crate::ram::store::segment::Sealed;
use crate::ram::store::{Cleaned, Ended, How, Session, Tried};
use crate::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// The progress of a pass over all segments.
#[derive(Clone, Copy, Debug)]
pub struct Pass {
    /// The sequence of the next segment.
    next: u64,
    /// Segments from this sequence on were written too recently.
    before: u64,
    /// A user asked for it, so the pass tries whatever the recent results were.
    asked: bool,
}

impl Pass {
    /// An automatic pass over segments older than `before`.
    pub fn over(before: u64) -> Self {
        Self { next: 0, before, asked: false }
    }

    /// A pass that a user asked for, over everything that is there now.
    pub fn over_all(ram: &Ram) -> Self {
        Self { next: 0, before: ram.store().segments().next_sequence(), asked: true }
    }
}

/// How a step of a pass went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recompressed {
    /// A segment was tried; there may be more.
    On,
    /// There is nothing more to try.
    Over,
    /// Another thread is recompressing.
    Busy,
    /// `stop` said so, or there is no room now.
    Stopped,
}

impl Ram {
    /// Turns automatic recompression on or off. `false` when there is no memory for it; then
    /// nothing changes. Only a volume that may be short of memory later takes the memory at once.
    pub fn recompress_by_itself(&self, on: bool) -> bool {
        let at_once = self.spills() || self.has_mempool();
        if on && at_once && !self.can_recompress() {
            return false;
        }
        self.recompression().by_itself.store(on, Ordering::Release);
        self.store().watch_reads(on);
        true
    }

    /// Whether automatic recompression is on.
    pub fn recompresses(&self) -> bool {
        self.recompression().by_itself.load(Ordering::Acquire)
    }

    /// Makes the memory that recompression takes, unless it is there. `false` when there is no
    /// memory.
    pub fn can_recompress(&self) -> bool {
        let mut work = self.recompression().work.lock();
        if work.is_none() && self.make_room(self.store().pack_memory()) {
            *work = Some(Work { pack: self.store().pack(), in_vain: 0, rests_until: 0 });
        }
        work.is_some()
    }

    /// See [`RecompressCounts`].
    pub fn recompress_counts(&self) -> RecompressCounts {
        let get = |n: &AtomicU64| n.load(Ordering::Relaxed);
        let Recompression { promoted, spent_ns, .. } = self.recompression();
        RecompressCounts { promoted: get(promoted), spent_ns: get(spent_ns) }
    }

    /// Tries the next segment of a pass. Stops early when `stop` says so.
    pub fn recompress_one(
        &self,
        session: &Session,
        pass: &mut Pass,
        stop: &dyn Fn() -> bool,
    ) -> Recompressed {
        let Some(mut work) = self.recompression().work.try_lock() else {
            return Recompressed::Busy;
        };
        let Some(work) = &mut *work else { return Recompressed::Stopped };
        if !pass.asked && self.opened() < work.rests_until {
            return Recompressed::Over;
        }
        let segments = self.store().segments();
        let Some(oldest) = self.next_of(pass) else { return Recompressed::Over };
        if !self.has_room_to_recompress(session) {
            return Recompressed::Stopped;
        }
        pass.next = oldest.sequence + 1;
        let Some(victim) = segments.claim(oldest.segment, oldest.sequence) else {
            return Recompressed::On;
        };
        let began = Instant::now();
        let (before, patience) = (pass.before, policy::PATIENCE);
        let most = together::most_together;
        let how = How { most, before, cools: true, thorough: true, patience };
        let tried = self.assist(|| {
            let tried =
                self.store().recompress_segment(session, &mut work.pack, victim, &how, stop);
            if !self.clean_pressed(session, victim, policy::PRESSED_PART) {
                self.leave_pressed(victim, &tried);
            }
            tried
        });
        self.store().collect();
        self.look_at_mempool();
        self.recompression().count_spent(began);
        work.note(&tried, self.opened());
        match tried.ended {
            Ended::Tried => Recompressed::On,
            Ended::Stopped | Ended::NoRoom => Recompressed::Stopped,
        }
    }

    /// The segment that a pass tries next.
    pub(super) fn next_of(&self, pass: &Pass) -> Option<Sealed> {
        let segments = self.store().segments();
        let may = |s: &Sealed| {
            (pass.next..pass.before).contains(&s.sequence) && segments.may_shrink(s.segment)
        };
        segments.all_sealed().filter(may).min_by_key(|s| s.sequence)
    }

    /// Whether there is a segment for a pass to try.
    pub fn has_cold(&self, pass: &Pass) -> bool {
        self.next_of(pass).is_some()
    }

    /// Whether there is room for a segment of clusters and for what is left of the segments that
    /// they come from; cleans to make it.
    fn has_room_to_recompress(&self, session: &Session) -> bool {
        let least = policy::TIGHT_SEGMENTS * u64::from(self.store().segment_size());
        if self.is_short_of_frames() {
            return false;
        }
        while self.free() < least {
            if self.clean_one(session, Taker::Ordinary, policy::WORTH_PART).is_none() {
                return false;
            }
            self.settle();
        }
        true
    }

    /// Whether the mempool has so few frames that they are for writers alone.
    fn is_short_of_frames(&self) -> bool {
        let frames = self.store().frames();
        self.has_mempool() && frames.ready() * 2 <= frames.mempool()
    }

    /// Empties a recompressed segment, if at least one part in `worth_part` of it is garbage.
    /// `false`, and the segment stays claimed, when less is.
    fn clean_pressed(&self, session: &Session, victim: Sealed, worth_part: u32) -> bool {
        let dead = u64::from(self.store().segments().dead_bytes(victim.segment));
        if dead * u64::from(worth_part) < u64::from(victim.end) {
            return false;
        }
        match self.store().clean(session, victim, Taker::Ordinary) {
            // Set aside, or left for the thread that cleans when there is room.
            Cleaned::Damaged | Cleaned::NoRoom | Cleaned::Emptied => true,
        }
    }

    /// Leaves a claimed segment as it is, and ends the claim.
    fn leave_pressed(&self, victim: Sealed, tried: &Tried) {
        // Blocks that were read may be cold the next time.
        if tried.ended == Ended::Tried && tried.hot <= tried.in_vain {
            self.store().give_up_on(victim.segment);
        }
        self.store().segments().unclaim(victim.segment);
    }

    /// Recompresses the coldest segment, as long as `least` bytes of memory are free, and spills a
    /// segment that is full of clusters. A segment for which it does not pay is spilled as it is.
    /// `false` when nothing was done.
    pub(super) fn pack_down(&self, session: &Session, least: u64) -> bool {
        let Some(lower) = self.lower().filter(|_| self.can_spill() && self.recompresses()) else {
            return false;
        };
        let Some(mut work) = self.recompression().work.try_lock() else { return false };
        let (Some(Work { pack, .. }), store) = (&mut *work, self.store()) else { return false };
        if store.slots().free() == 0 || self.is_short_of_frames() {
            return false;
        }
        let Some(victim) = self.coldest(&lower, session) else { return false };
        let began = Instant::now();
        let mut shrunk = false;
        if store.segments().may_shrink(victim.segment) {
            let before = victim.sequence + policy::GO_TOGETHER;
            let (most, patience) = (together::most_together, policy::PATIENCE);
            let how = How { most, before, cools: false, thorough: false, patience };
            let hurry = || self.free() < least;
            store.recompress_segment(session, pack, victim, &how, &hurry);
            shrunk = self.clean_pressed(session, victim, policy::SPILL_WORTH_PART);
            self.recompression().count_spent(began);
        }
        let full = store.filled_pack(pack);
        drop(work);
        let mut done = shrunk || self.take_down(session, victim, Taker::Ordinary);
        let full = full.and_then(|full| store.segments().claim(full.segment, full.sequence));
        if let Some(full) = full {
            done |= self.take_down(session, full, Taker::Ordinary);
        }
        done
    }

    /// Seals the segment that is being filled with clusters if much of it is garbage, so that it
    /// can be cleaned. `false` when it is not sealed.
    pub(super) fn seal_clusters(&self) -> bool {
        let Some(mut work) = self.recompression().work.try_lock() else { return false };
        let Some(Work { pack, .. }) = &mut *work else { return false };
        self.store().seal_pack(pack, policy::SPILL_WORTH_PART)
    }

    /// Seals that segment whatever is in it, so that it can be spilled or cleaned: under a limit
    /// with room for few segments, it may be one too many. `false` when there is none.
    pub(super) fn end_clusters(&self) -> bool {
        let Some(mut work) = self.recompression().work.try_lock() else { return false };
        let Some(Work { pack, .. }) = &mut *work else { return false };
        self.store().end_pack(pack)
    }
}

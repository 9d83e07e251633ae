//! Spilling segments to the slots of a spill device and promoting blocks from there: which
//! segments, when, and which thread waits for it.
//!
//! A clock's hand goes over the segments in memory by their age. A segment that the hand comes to
//! is spilled, unless half of it was read since the hand was there before; the hot records of a
//! spilled segment are appended anew. When such choices prove wrong again and again
//! (`refaults.rs`), segments are chosen by chance. A record that is read a second time in its slot
//! is promoted, if there is room.
//!
//! A thread of the volume's own keeps a reserve of free memory ([`Ram::keep_reserve`]), so that
//! writers find room. A writer that finds none spills a segment itself, or is refused. Only that
//! thread also recompresses segments before it spills them, while there is time (`recompress.rs`).
//! Nothing here allocates memory: everything needed was allocated when the volume came up.
//!
//! Invariant: a thread that waits for the device holds no lock of the store and pins no epoch.

use super::engine::Ram;
use super::lower::Lower;
use super::policy::{self};
use super::refaults::Gone;
use super::spill::SpillCounts;
use crate::BLOCK_SIZE;
use crate::media::budget::Taker;
use crate::media::{ALIGN, Failures};
use crate::ram::store::planted::{Bug, on};
use crate::ram::store::segment::Sealed;
use crate::ram::store::{
    Below, Blocked, Cleaned, ReadAgain, Session, Spilled, Stopped, Version, Why,
};
use crate::sync::atomic::Ordering;
use std::sync::Arc;

/// A block could not be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unread {
    /// Its record is not what was written.
    Damaged(u64),
    /// The spill device failed to read it.
    Drive(u64),
}

impl Ram {
    /// Counters of the spill device, if there is one.
    pub fn spill_counts(&self) -> Option<SpillCounts> {
        self.lower().map(|lower| lower.spill.counts())
    }

    /// What `look` makes of the failures of the spill device.
    pub fn spill_failures<T>(&self, look: impl FnOnce(&Failures) -> T) -> Option<T> {
        self.lower().and_then(|lower| lower.spill.failures().map(look))
    }

    /// Whether the last write to the spill device failed.
    pub fn spill_failed(&self) -> bool {
        self.lower().is_some_and(|lower| lower.spill.has_failed())
    }

    /// Bytes that may still be written to the spill device now; `None` when there is no limit.
    pub fn spill_allowed(&self) -> Option<u64> {
        self.lower().and_then(|lower| lower.spill.allowed())
    }

    /// Changes the bytes that may be spilled a day; 0: no limit. `false` without a spill device.
    pub fn set_spill_daily(&self, bytes: u64) -> bool {
        let lower = self.lower();
        lower.iter().for_each(|lower| lower.spill.set_daily(bytes));
        lower.is_some()
    }

    /// Zeroes the label of the device: the content of its slots is worthless from now on.
    pub fn disown(&self) {
        if let Some(lower) = self.lower() {
            lower.spill.disown();
        }
    }

    /// Blocks that were promoted from slots because they were read again.
    pub fn promoted(&self) -> u64 {
        self.lower().map_or(0, |lower| lower.promoted.load(Ordering::Relaxed))
    }

    /// Reads one block as of some moment during the call. Returns its version.
    ///
    /// # Errors
    /// [`Unread`]; then the content of `out` is undefined.
    pub fn read(
        &self,
        session: &mut Session,
        block: u64,
        out: &mut [u8; BLOCK_SIZE],
    ) -> Result<Version, Unread> {
        loop {
            match self.store().read(session, block, out) {
                Ok(version) => {
                    self.look_ahead(session, block, 1);
                    self.promote(session, block, std::slice::from_ref(out));
                    return Ok(version);
                }
                Err(stopped) => self.go_on(block, stopped)?,
            };
        }
    }

    /// Reads consecutive blocks, each as of some moment during the call.
    ///
    /// # Errors
    /// [`Unread`] at the first block that cannot be read; later blocks are not read.
    pub fn read_run(
        &self,
        session: &mut Session,
        first: u64,
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> Result<(), Unread> {
        let mut done = 0;
        while let Err(stopped) =
            self.store().read_run(session, first + done as u64, &mut out[done..])
        {
            done += self.go_on(first + done as u64, stopped)?;
        }
        self.look_ahead(session, first, out.len() as u64);
        self.promote(session, first, out);
        Ok(())
    }

    /// Brings the record at which a read from `first` on stopped; returns how many blocks were
    /// read.
    fn go_on(&self, first: u64, stopped: Stopped) -> Result<usize, Unread> {
        let Stopped { done, why } = stopped;
        let block = first + done as u64;
        match why {
            Why::Damaged => Err(Unread::Damaged(block)),
            Why::Below(below) if self.bring(&below) => Ok(done),
            Why::Below(_) => Err(Unread::Drive(block)),
        }
    }

    fn bring(&self, below: &Below) -> bool {
        // Without slots, the record is in memory by now.
        let Some(lower) = self.lower() else { return !self.spills() };
        let bring = |below: &Below| {
            let read = |from, window: &mut [u8]| lower.spill.read(below.slot, from, window).is_ok();
            self.store().bring(below, read)
        };
        // The failed bytes may be the neighbours that were to be read along.
        let is_there = bring(below) || below.alone().is_some_and(|alone| bring(&alone));
        self.store().note_seek(lower.spill.seek_bytes());
        is_there
    }

    /// Looks what the stream of a read, if it is one, will want next, and has it brought.
    fn look_ahead(&self, session: &Session, first: u64, count: u64) {
        if self.spills() {
            self.store().look_ahead(session, first, count);
            self.wake_for_ahead();
        }
    }

    /// Brings a part of a slot that a stream will want next. `false` when there is none.
    pub fn read_ahead(&self) -> bool {
        let Some(below) = self.store().next_ahead() else { return false };
        let Some(lower) = self.lower() else { return false };
        // Where this fails, the read that wants the part tries again and tells.
        let read = |from, window: &mut [u8]| lower.spill.read(below.slot, from, window).is_ok();
        self.store().bring_ahead(&below, read);
        true
    }

    /// Appends anew the blocks that were read again from a slot or a cluster, if that takes no room
    /// that writers need.
    fn promote(&self, session: &mut Session, first: u64, blocks: &[[u8; BLOCK_SIZE]]) {
        while let Some(ReadAgain { block, version, below }) = session.read_again() {
            let at = block.checked_sub(first).and_then(|at| blocks.get(at as usize));
            let Some(data) = at else { continue };
            if self.free() < policy::TIGHT_SEGMENTS * u64::from(self.store().segment_size()) {
                continue;
            }
            self.store().stage(session, std::slice::from_ref(data));
            let expect = (!on(Bug::PromoteWithoutCheck)).then_some(version);
            let mut progress = self.store().commit(session, block, 0, expect);
            if let Some(Blocked::Segment(len)) = progress.blocked
                && self.store().open_segment(Taker::Ordinary, len)
            {
                progress = self.store().commit(session, block, 0, expect);
            }
            if progress.blocked.is_none() {
                match self.lower().filter(|_| below) {
                    Some(lower) => lower.promoted.fetch_add(1, Ordering::Relaxed),
                    None => self.recompression().count_promoted(),
                };
            }
        }
    }

    /// Spills the coldest segment, and waits for the device to have it. `false` when none can be
    /// spilled now.
    pub(super) fn demote_one(&self, session: &Session, who: Taker) -> bool {
        let Some(lower) = self.lower().filter(|lower| lower.spill.takes()) else { return false };
        let store = self.store();
        if !store.slots().is_open() {
            return false;
        }
        if store.slots().free() == 0 && store.free_dead_slots() > 0 {
            self.settle();
        }
        if store.slots().free() == 0 {
            return false;
        }
        let Some(victim) = self.coldest(&lower, session) else { return false };
        self.take_down(session, victim, who)
    }

    /// Spills a claimed segment, and waits for the device to have it. `false` when that fails.
    pub(super) fn take_down(&self, session: &Session, victim: Sealed, who: Taker) -> bool {
        let store = self.store();
        match store.go_down(session, victim, who) {
            Spilled::Emptied => true,
            Spilled::Not => false,
            Spilled::Going(going) => {
                let Some(lower) = self.lower() else {
                    store.spilled(session, going, false);
                    return false;
                };
                let (slot, bytes) = store.bytes_of(&going);
                let written = lower.spill.write(slot, bytes);
                let live = victim.end.saturating_sub(store.segments().dead_bytes(victim.segment));
                let gone = Gone { segment: victim.segment, sequence: victim.sequence, live };
                store.spilled(session, going, written);
                lower.clock.lock().refaults.note(gone, store.budget().limit());
                written
            }
        }
    }

    /// The segment to spill next, claimed.
    pub(super) fn coldest(&self, lower: &Lower, session: &Session) -> Option<Sealed> {
        let mut clock = lower.clock.lock();
        for _ in 0..2 {
            while let Some(last) = clock.left.checked_sub(1) {
                clock.left = last;
                let Sealed { segment, sequence, .. } = clock.candidates[last].sealed;
                let claimed = self.store().segments().claim(segment, sequence);
                if claimed.is_some() {
                    return claimed;
                }
            }
            lower.look(self.store());
            clock.move_hand(self.store(), session);
        }
        None
    }

    /// Empties the slot with the most garbage, if that is at least one part in `worth_part` of a
    /// segment. `false` when it is less, or there is no room for the slot's live records.
    pub(super) fn compact_one(&self, session: &Session, who: Taker, worth_part: u32) -> bool {
        let Some(lower) = self.lower() else { return false };
        let store = self.store();
        if store.free_dead_slots() > 0 {
            return true;
        }
        let least = store.segment_size() / worth_part;
        let Some(chosen) = self.emptiest(&lower, least) else { return false };
        // A thread that makes room for a writer can do nothing better than wait for the buffer. The
        // thread that holds the buffer waits only for the device.
        let buffer = match who {
            Taker::Cleaner => Some(lower.slot.lock()),
            Taker::Ordinary => lower.slot.try_lock(),
        };
        let Some(mut buffer) = buffer else { return false };
        if !store.slots().is_open() || !self.lower().is_some_and(|now| Arc::ptr_eq(&now, &lower)) {
            return false;
        }
        let claimed = store.segments().claim_spilled(chosen.segment, chosen.sequence);
        let Some((victim, slot)) = claimed else { return true };
        let len = (victim.end as usize).next_multiple_of(ALIGN);
        let again = store.segments().is_unread(victim.segment);
        let read = lower.spill.read_whole(slot, &mut buffer[..len], again);
        store.segments().note_read(victim.segment, read);
        if !read {
            // Only a reader of its blocks has to be told.
            store.segments().unclaim(victim.segment);
            return false;
        }
        match store.take_up(session, victim, &buffer, who) {
            Cleaned::Emptied => true,
            Cleaned::NoRoom => false,
            // Its slot is free when everything in it was written anew.
            Cleaned::Damaged => {
                store.segments().unclaim(victim.segment);
                false
            }
        }
    }

    /// The segment to bring up next: the one with the most garbage, if that is at least `least`
    /// bytes. One that could not be read comes after all others, and not soon.
    fn emptiest(&self, lower: &Lower, least: u32) -> Option<Sealed> {
        let segments = self.store().segments();
        let [may, may_again] = lower.spill.may_empty();
        let ranked = |s: Sealed| (!segments.is_unread(s.segment), s);
        let all = segments.all_spilled().filter(|s| s.dead >= least).map(ranked);
        let allowed = all.filter(|(is_good, _)| if *is_good { may } else { may_again });
        allowed.max_by_key(|(is_good, s)| (*is_good, s.dead)).map(|(_, s)| s)
    }

    /// Spills all sealed segments, however much room there is.
    pub fn spill_all(&self, session: &Session) {
        while self.demote_one(session, Taker::Ordinary) {}
        self.store().collect();
    }

    /// Empties a slot that has any garbage.
    pub fn compact_any(&self, session: &Session) {
        self.compact_one(session, Taker::Ordinary, self.store().segment_size());
        self.store().collect();
    }

    /// The work of the volume's own thread: keeps room for writers, in memory and in slots. Returns
    /// whether there was something to do. Stops early when `stop` says so.
    pub fn keep_reserve(&self, session: &Session, stop: &dyn Fn() -> bool) -> bool {
        let Some(lower) = self.lower() else { return false };
        let (low, high) = self.reserve_marks();
        self.store().collect();
        let mut busy = false;
        if self.free() < low {
            let make = || {
                let part = policy::SPILL_WORTH_PART;
                self.clean_one(session, Taker::Ordinary, part).is_some()
                    || self.free() >= low / 2 && self.pack_down(session, low / 2)
                    || self.demote_one(session, Taker::Ordinary)
            };
            while self.free() < high && !stop() && self.assist(make) {
                busy = true;
                self.settle();
            }
        }
        let slots = self.store().slots();
        if self.can_spill() && policy::few_slots(slots.free(), slots.count()) {
            lower.look(self.store());
            let part = policy::SLOT_WORTH_PART;
            let compact = || self.compact_one(session, Taker::Ordinary, part);
            busy |= !stop() && self.assist(compact);
            self.settle();
        }
        busy
    }

    /// Whether the reserve of free memory has to be refilled.
    pub fn wants_reserve(&self) -> bool {
        self.spills() && self.free() < self.reserve_marks().0
    }

    /// Whether the device takes writes now; there may still be no free slot.
    pub(super) fn can_spill(&self) -> bool {
        self.store().slots().is_open() && self.lower().is_some_and(|lower| lower.spill.takes())
    }

    fn reserve_marks(&self) -> (u64, u64) {
        policy::reserve(self.store().budget().limit(), self.store().segment_size())
    }
}

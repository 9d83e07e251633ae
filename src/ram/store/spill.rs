//! Spilling segments into slots, reading them there, and bringing records back. Nothing here reads
//! or writes a device: the tier above does, as this module directs.
//!
//! Spilling: the thread that has claimed a sealed segment takes a slot, appends the segment's hot
//! records anew, has the frame's bytes written to the slot, and only then calls [`Store::spilled`].
//! The frame is free when its last reader is gone. Until then reads find the frame, afterwards the
//! slot, which holds the same bytes.
//!
//! Reading: a read that comes to a record in a slot stops ([`Below`]). The tier above reads the
//! needed part into a window, and the read begins again at that block, from its entry on. The read
//! does not hold the slot meanwhile. If the slot goes to another segment, nothing names the old
//! segment any more, and no read looks at the bytes that were read for it. So a block that changed
//! meanwhile is read as it is now, and a read returns only what it found while it was pinned.
//!
//! Coming back: live records are appended to the log like new ones, one by one when they are read a
//! second time, or all of a slot when it is mostly garbage.
//!
//! Invariant: a thread that waits for a device has no epoch pinned, and holds no lock but that of
//! the window it fills, which all other readers skip.

use super::clean::Cleaned;
use super::format::{Entry, HEADER, Home, Location};
use super::planted::{Bug, on};
use super::read::Why;
use super::records::{Records, Which};
use super::segment::Sealed;
use super::session::ReadAgain;
use super::slots::Slots;
use super::window::{Below, Windows};
use super::{Session, Store};
use crate::BLOCK_SIZE;
use crate::media::ALIGN;
use crate::media::budget::Taker;
use crate::stats::Counts;

/// A claimed segment that is being spilled, and the slot taken for it.
#[derive(Debug)]
pub struct Going {
    victim: Sealed,
    frame: u32,
    slot: u32,
}

/// How the spill of a segment began.
#[derive(Debug)]
pub enum Spilled {
    /// The segment has to be written.
    Going(Going),
    /// Nothing live is left in the segment; nothing has to be written.
    Emptied,
    /// There is no free slot.
    Not,
}

/// What is in a sealed segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Survey {
    /// Bytes of live records.
    pub live: u32,
    /// Bytes of live records that were read since they were made or surveyed.
    pub hot: u32,
    /// Bytes of live records of blocks that did not shrink.
    pub raw: u32,
}

impl Store {
    /// Reads a record from a window, when `count` blocks from this one on are wanted. The caller is
    /// pinned.
    pub(super) fn read_spilled(
        &self,
        session: &mut Session,
        (block, count): (u64, usize),
        (entry, at): (Entry, Location),
        slot: u32,
        out: &mut [u8; BLOCK_SIZE],
    ) -> Result<(), Why> {
        let Some(windows) = self.windows.get() else { return Err(Why::Damaged) };
        let sequence = self.segments.sequence(at.segment);
        let Session { codec, again, .. } = session;
        let name = self.window_name(at.segment);
        let unpack = |record: &[u8]| self.unpack(codec, record, (block, sequence), at, out);
        match windows.look(name, at, unpack) {
            Some(true) => {}
            Some(false) => return Err(Why::Damaged),
            None => return Err(Why::Below(self.wanted(windows, (block, count), at, slot))),
        }
        let soon = self.slots.visit(slot, at.share(), self.budget.limit());
        if !entry.is_hot() {
            self.index.warm(block, entry, entry.hot());
        } else if soon {
            again.note(ReadAgain { block, version: self.version(entry), below: true });
        }
        session.count(&Counts { spill_read_blocks: 1, ..Counts::default() });
        Ok(())
    }

    /// The name of a segment in windows.
    pub(super) fn window_name(&self, segment: u32) -> u64 {
        match on(Bug::WindowByNumber) {
            true => u64::from(segment) + 1,
            false => self.segments.sequence(segment),
        }
    }

    /// Has `read` fill a window with a part of a slot, from a byte of it on; waits for the device.
    /// `false` if that fails.
    pub fn bring(&self, below: &Below, read: impl FnOnce(u32, &mut [u8]) -> bool) -> bool {
        let fill = |windows: &Windows| windows.fill(&below.order, read);
        self.windows.get().is_some_and(fill)
    }

    /// Notes how many bytes the spill device reads in the time of a seek.
    pub fn note_seek(&self, bytes: u32) {
        if let Some(windows) = self.windows.get() {
            windows.note_seek(bytes);
        }
    }

    /// Resizes the windows to `limit`; see [`Windows::fit`].
    ///
    /// [`Windows::fit`]: super::window::Windows::fit
    pub fn fit_windows(&self, limit: u64) {
        if let Some(windows) = self.windows.get().filter(|_| self.slots.count() > 0) {
            let take = |bytes| self.budget.take(bytes, Taker::Ordinary);
            self.budget.give(windows.fit(limit, take));
        }
    }

    /// Counts the live records of a sealed segment in a frame that the caller has claimed, as of
    /// some moments during the call. With `cool`, makes its hot records cold.
    pub fn survey(&self, session: &Session, sealed: Sealed, cool: bool) -> Survey {
        let mut survey = Survey::default();
        let segment = sealed.segment;
        let Some(frame) = self.segments.frame(segment) else { return survey };
        // The pin is for the index; the claim keeps the frame.
        let _pin = session.pin(self);
        let bytes = self.frames.bytes(frame, 0, sealed.end);
        for (header, at) in Records::of(segment, bytes) {
            for block in self.owners(&header, at, bytes) {
                let now = self.index.load(block);
                if !now.same_place(Entry::record(at)) {
                    continue;
                }
                let len = at.share();
                survey.live += len;
                survey.raw += if at.len as usize == BLOCK_SIZE { len } else { 0 };
                if now.is_hot() {
                    survey.hot += len;
                    if cool {
                        self.index.warm(block, now, now.cold());
                    }
                }
            }
        }
        survey
    }

    /// Begins to spill a segment that the caller has claimed. Takes a slot, then appends hot
    /// records anew, where there is room; the rest has to be written. [`Spilled::Not`] ends the
    /// claim, and nothing has changed.
    pub fn go_down(&self, session: &Session, victim: Sealed, who: Taker) -> Spilled {
        let Some(frame) = self.segments.frame(victim.segment) else {
            unreachable!("who is sealed and claimed has a frame")
        };
        // Without a slot the frame stays, and copies of hot records would only take memory.
        let Some(slot) = self.slots.take() else {
            self.segments.unclaim(victim.segment);
            return Spilled::Not;
        };
        self.keep_hot(session, victim, frame, who);
        if self.segments.dead_bytes(victim.segment) == victim.end {
            self.retire(victim.segment);
            self.slots.give(slot);
            self.slots.written();
            return Spilled::Emptied;
        }
        if on(Bug::SpillBeforeWritten) {
            self.forget_frame(victim.segment, slot, 0);
        }
        Spilled::Going(Going { victim, frame, slot })
    }

    fn keep_hot(&self, session: &Session, victim: Sealed, frame: u32, who: Taker) {
        let bytes = self.frames.bytes(frame, 0, victim.end);
        let mut records = Records::of(victim.segment, bytes);
        self.relocate_all(session, bytes, victim.sequence, &mut records, who, Which::Hot);
    }

    /// The slot of a segment that is being spilled, and the bytes to write from the slot's start
    /// on.
    pub fn bytes_of(&self, going: &Going) -> (u32, &[u8]) {
        // Bytes behind the end have no meaning, and no thread writes there any more.
        let len = going.victim.end.next_multiple_of(ALIGN as u32);
        (going.slot, self.frames.bytes(going.frame, 0, len))
    }

    /// Ends what [`Store::go_down`] began. If `written`, the segment is in its slot from now on;
    /// otherwise it stays in its frame, and the slot is free.
    pub fn spilled(&self, session: &Session, going: Going, written: bool) {
        let Going { victim, frame, slot } = going;
        if written {
            let records = Records::of(victim.segment, self.frames.bytes(frame, 0, victim.end));
            let blocks = records.map(|(_, at)| at.owners()).sum();
            self.forget_frame(victim.segment, slot, blocks);
            self.slots.turn(victim.end.saturating_sub(self.segments.dead_bytes(victim.segment)));
            session.count(&Counts { spilled_segments: 1, ..Counts::default() });
        } else {
            self.slots.give(slot);
        }
        // A thread that has closed the slots looks at all segments once none is written to.
        self.segments.unclaim(victim.segment);
        self.slots.written();
    }

    fn forget_frame(&self, segment: u32, slot: u32, records: u32) {
        if let Some(frame) = self.segments.spill(segment, slot, records) {
            let mut retired = self.retired.lock();
            retired.frames.push((frame, self.epochs.stamp()));
        }
    }

    /// Frees the slots of segments that nothing names any more; returns their number.
    pub fn free_dead_slots(&self) -> usize {
        let mut freed = 0;
        while let Some(dead) = self.segments.claim_dead_below() {
            self.retire(dead);
            freed += 1;
        }
        freed
    }

    /// Has `count` free slots from now on. `false`, and nothing changes, while a slot is taken.
    pub fn set_slots(&self, count: u32) -> bool {
        let before = self.slots.memory();
        if !self.slots.replace(count) {
            return false;
        }
        self.budget.give(before);
        self.budget.add(self.slots.memory());
        match (count, self.windows.get()) {
            (0, None) => {}
            (0, Some(windows)) => self.budget.give(windows.fit(0, |_| false)),
            _ => {
                self.make_windows();
                self.fit_windows(self.budget.limit());
            }
        }
        true
    }

    /// Gives up the blocks whose records are in segments that `is_gone` names: reading them fails
    /// until they are written or discarded. Returns their number. `is_gone` decides last while an
    /// entry names the segment, which keeps its sequence meanwhile.
    pub fn lose(&self, session: &Session, is_gone: impl Fn(u32) -> bool) -> u64 {
        let mut lost = 0;
        self.index.each_present(|block, entry| {
            if matches!(entry.home(), Home::Record(at) if is_gone(at.segment)) {
                lost += u64::from(self.lose_block(session, block, &is_gone));
            }
        });
        lost
    }

    /// Gives up all that memory that was taken over has on a spill device, which the volume has no
    /// more. Returns the number of blocks.
    pub fn give_up_slots(&self, session: &Session) -> u64 {
        if self.slots.replace(0) {
            return 0;
        }
        let lost = self.lose(session, |segment| self.segments.slot(segment).is_some());
        self.free_dead_slots();
        self.epochs.wait();
        self.collect();
        self.slots.replace(0);
        lost
    }

    /// Bytes of memory that `slots` slots take, with the windows for reading them.
    pub fn slots_memory(&self, slots: u32) -> u64 {
        let has_windows = self.windows.get().is_some();
        let windows = Windows::bytes(self.shape.segment, self.budget.limit());
        Slots::memory_of(slots) + if has_windows { 0 } else { windows }
    }

    /// The number of blocks whose records are in segments that `is_gone` names, as for
    /// [`Store::lose`].
    pub fn blocks_in(&self, session: &Session, is_gone: impl Fn(u32) -> bool) -> u64 {
        let goes = |home| matches!(home, Home::Record(at) if is_gone(at.segment));
        let mut blocks = 0;
        self.index.each_present(|block, entry| {
            if goes(entry.home()) {
                // What the index names now is not freed before the pin ends.
                let _pin = session.pin(self);
                blocks += u64::from(goes(self.index.load(block).home()));
            }
        });
        blocks
    }

    fn lose_block(&self, session: &Session, block: u64, is_gone: impl Fn(u32) -> bool) -> bool {
        let _pin = session.pin(self);
        let Some(leaf) = self.index.retain_present(block) else { return false };
        let guard = self.stripe(block);
        let now = self.index.load(block).home();
        let goes = matches!(now, Home::Record(at) if is_gone(at.segment));
        if goes {
            let mut counts = Counts::default();
            self.index.swap(&leaf, block, Entry::LOST);
            self.account(&mut counts, now, Entry::LOST.home());
            session.count(&counts);
        }
        drop(guard);
        self.index.release(&leaf, 0);
        goes
    }

    /// Empties a spilled segment that the caller has claimed, with its bytes: live records are
    /// appended anew, and the slot is free when its last reader is gone.
    pub fn take_up(&self, session: &Session, victim: Sealed, bytes: &[u8], who: Taker) -> Cleaned {
        let end = (victim.end as usize).min(bytes.len());
        self.clean_from(session, victim, &bytes[..end], who)
    }
}

const _: () = assert!(HEADER < ALIGN);

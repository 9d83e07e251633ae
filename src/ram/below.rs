//! A spill device for a volume at work: it gets one, gets another, or gives its own up.
//!
//! Slots are closed first, so that nothing is spilled meanwhile, and reads go on. For another
//! device, used slots are copied to the same places there. Without one, live records come back to
//! memory. Only then the caller notes the change for a next process ([`Change::commit`]); until
//! that is done the old device has everything, and afterwards the new one or memory has.
//!
//! Invariants: an error changes nothing but where records are, and what the caller gave up; a
//! segment in a slot never changes, so its copy is valid until the segment is freed; requests go on
//! meanwhile, so a segment is known by its number and sequence, never by its number alone.

use super::engine::Ram;
use super::lower::Lower;
use super::policy;
use super::spill::{Spill, SpillTo};
use crate::error::{Context, Error, Result};
use crate::media::budget::Taker;
use crate::media::{ALIGN, Buffer};
use crate::ram::store::segment::{Next, Sealed};
use crate::ram::store::{Cleaned, Session};
use crate::remedy;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

/// Interval between two looks whether threads have written what they were about to.
const LOOK: Duration = Duration::from_millis(1);
/// How long a change waits for them: longer than a device that works takes.
const LONGEST: Duration = Duration::from_secs(60);
/// Live records that come back take this part more, for ends of segments.
const ENDS_PART: u64 = 16;

/// The sequences of segments that can't be read, by their numbers. A number may be that of another
/// segment, with other data, before they are given up.
type Unreadable = BTreeMap<u32, u64>;

/// A change of the spill device.
pub struct Change<'a> {
    /// The new device; `None`: the volume is to have none.
    pub to: Option<SpillTo>,
    /// Whether blocks that can't be read from the present device are given up.
    pub gives_up: bool,
    /// Whether the caller does not want it any more.
    pub stop: &'a dyn Fn() -> bool,
    /// Notes the change where a next process finds it. If that fails, nothing changes.
    pub commit: &'a mut dyn FnMut() -> Result<()>,
}

/// Opens the slots again, whatever happens.
struct Closed<'a>(&'a Ram);

impl<'a> Closed<'a> {
    fn new(ram: &'a Ram) -> Self {
        ram.store().slots().close(true);
        Self(ram)
    }
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        self.0.store().slots().close(false);
    }
}

impl Ram {
    /// Changes the spill device. One change at a time. Returns the number of blocks that were
    /// given up.
    ///
    /// # Errors
    /// The new device or memory lacks room, a device fails or hangs, blocks can't be read, or the
    /// caller stops it.
    pub fn change_below(&self, session: &Session, change: Change<'_>) -> Result<u64> {
        let _closed = Closed::new(self);
        let Change { to, gives_up, stop, commit } = change;
        let Some(old) = self.lower() else {
            return match to {
                Some(to) => self.begin_below(to, commit).map(|()| 0),
                None => Ok(0),
            };
        };
        self.await_others(&old, stop)?;
        self.free_slots();
        let mut unread = Unreadable::new();
        match &to {
            Some(to) => self.copy_slots(&old, to, stop, &mut unread)?,
            None => self.empty_slots(session, &old, (gives_up, stop), &mut unread)?,
        }
        let lost = self.give_up(session, &unread, gives_up)?;
        self.free_slots();
        let store = self.store();
        if to.is_none() && store.slots().free() < store.slots().count() {
            return Err(
                Error::failure("what is spilled has not all come back to memory").hint("try again")
            );
        }
        let held = old.slot.lock();
        commit()?;
        store.budget().give(Lower::memory(store));
        if to.is_none() {
            store.set_slots(0);
        }
        self.set_lower(to.map(|to| Arc::new(Lower::new(to, store))));
        drop(held);
        old.spill.disown();
        Ok(lost)
    }

    /// Waits until no thread writes to a slot or empties one; while slots are closed, none begins.
    /// A device that hangs keeps its thread, and the frame that the thread writes from.
    fn await_others(&self, old: &Lower, stop: &dyn Fn() -> bool) -> Result<()> {
        let slots = self.store().slots();
        let are_done = || !slots.is_written() && old.slot.try_lock().is_some();
        wait_until(are_done, stop, || {
            let (name, seconds) = (old.spill.name(), LONGEST.as_secs());
            Error::failure(format!("{name} has not answered a request for {seconds} s"))
                .hint("the kernel's log (dmesg) may say why; try again when it answers or fails")
        })
    }

    /// Takes a first spill device.
    fn begin_below(&self, to: SpillTo, commit: &mut dyn FnMut() -> Result<()>) -> Result<()> {
        let store = self.store();
        let tables = Lower::memory(store) + store.slots_memory(to.slots);
        if !self.make_room(tables) {
            return Err(Error::failure(format!("no room for {tables} bytes of tables"))
                .hint("discard something (fstrim) or give a higher ram-limit first"));
        }
        if self.has_mempool() {
            let rows = store.segments().populate(to.slots);
            rows.context("no memory for the table of segments")?;
        }
        commit()?;
        store.set_slots(to.slots);
        self.set_lower(Some(Arc::new(Lower::new(to, store))));
        Ok(())
    }

    /// Frees the slots in which nothing is live.
    fn free_slots(&self) {
        self.store().free_dead_slots();
        self.settle();
    }

    /// Claims the first segment in a slot from number `first` on; also returns its slot. Waits for
    /// a thread that has claimed it for a moment: its blocks would be lost without it.
    fn claim_next(&self, first: u32, stop: &dyn Fn() -> bool) -> Result<Option<(Sealed, u32)>> {
        let mut next = None;
        let is_free = || {
            next = self.store().segments().claim_below(first);
            next != Some(Next::Taken)
        };
        wait_until(is_free, stop, || {
            Error::failure("another thread is at work on what is spilled").hint("try again")
        })?;
        Ok(match next {
            Some(Next::Claimed(victim, slot)) => Some((victim, slot)),
            Some(Next::Taken) | None => None,
        })
    }

    /// Copies all used slots to the same places of another device. Adds segments that can't be
    /// read to `unread`.
    fn copy_slots(
        &self,
        old: &Lower,
        to: &SpillTo,
        stop: &dyn Fn() -> bool,
        unread: &mut Unreadable,
    ) -> Result<()> {
        let segments = self.store().segments();
        let size = self.store().segment_size();
        let target = Spill::new(SpillTo { daily: 0, ..to.clone() }, size);
        let (mut next, mut buffer) = (0, Buffer::new(size as usize));
        while let Some((victim, slot)) = self.claim_next(next, stop)? {
            next = victim.segment + 1;
            let bytes = &mut buffer[..(victim.end as usize).next_multiple_of(ALIGN)];
            let read = old.spill.read(slot, 0, bytes).is_ok();
            let written = !read || target.write(slot, bytes);
            segments.unclaim(victim.segment);
            if !read {
                unread.insert(victim.segment, victim.sequence);
            }
            if !written {
                return Err(Error::failure("the new spill device does not take what it is given")
                    .hint("give another one"));
            }
            if stop() {
                return Err(hung_up());
            }
        }
        Ok(())
    }

    /// Brings what is live in slots back to memory. Adds segments that can't be read to `unread`.
    fn empty_slots(
        &self,
        session: &Session,
        old: &Lower,
        (gives_up, stop): (bool, &dyn Fn() -> bool),
        unread: &mut Unreadable,
    ) -> Result<()> {
        let segments = self.store().segments();
        let (bytes, _) = segments.live_below();
        // What can't be read needs no room.
        self.find_room(session, if gives_up { 0 } else { bytes + bytes / ENDS_PART })?;
        let (mut next, mut buffer) = (0, Buffer::new(self.store().segment_size() as usize));
        while let Some((victim, slot)) = self.claim_next(next, stop)? {
            let bytes = &mut buffer[..(victim.end as usize).next_multiple_of(ALIGN)];
            next = victim.segment + 1;
            if old.spill.read(slot, 0, bytes).is_err() {
                segments.unclaim(victim.segment);
                unread.insert(victim.segment, victim.sequence);
                continue;
            }
            match self.store().take_up(session, victim, bytes, Taker::Ordinary) {
                Cleaned::Emptied => {}
                // Its claim has ended.
                Cleaned::NoRoom => next = victim.segment,
                Cleaned::Damaged => {
                    segments.unclaim(victim.segment);
                    unread.insert(victim.segment, victim.sequence);
                }
            }
            self.settle();
            self.find_room(session, 0)?;
            if stop() {
                return Err(hung_up());
            }
        }
        Ok(())
    }

    /// Makes room for `bytes` bytes beside what writers need meanwhile.
    fn find_room(&self, session: &Session, bytes: u64) -> Result<()> {
        let beside = (policy::TIGHT_SEGMENTS + 1) * u64::from(self.store().segment_size());
        loop {
            let free = self.free();
            if free >= bytes + beside {
                return Ok(());
            }
            if self.clean_one(session, Taker::Ordinary, policy::WORTH_PART).is_some() {
                self.settle();
                continue;
            }
            let more = (bytes + beside - free).div_ceil(1 << 20);
            return Err(Error::failure(format!(
                "memory has no room for what is spilled: it lacks {more} MiB"
            ))
            .hint("give a higher ram-limit first, or another spill device"));
        }
    }

    /// Gives up what is in segments that can't be read. Returns the number of blocks.
    fn give_up(&self, session: &Session, unread: &Unreadable, agreed: bool) -> Result<u64> {
        let segments = self.store().segments();
        let is_gone = |segment: u32| {
            let noted = unread.get(&segment);
            noted.is_some_and(|sequence| segments.sequence(segment) == *sequence)
        };
        let blocks = match unread.is_empty() {
            true => 0,
            false => self.store().blocks_in(session, is_gone),
        };
        if blocks == 0 {
            return Ok(0);
        }
        if !agreed {
            return Err(Error::would_lose(format!(
                "{blocks} blocks are only on the spill device, and it does not return them"
            ))
            .hint(remedy::SPILL_UNREAD));
        }
        let lost = self.store().lose(session, is_gone);
        self.count_lost_below(lost);
        Ok(lost)
    }
}

/// Waits until `is_so`, but no longer than the caller wants the change, nor than [`LONGEST`].
///
/// # Errors
/// The caller has hung up, or the time has passed: then `late`.
fn wait_until(
    mut is_so: impl FnMut() -> bool,
    stop: &dyn Fn() -> bool,
    late: impl FnOnce() -> Error,
) -> Result<()> {
    let deadline = crate::sync::now() + LONGEST;
    while !is_so() {
        if stop() {
            return Err(hung_up());
        }
        if crate::sync::now() >= deadline {
            return Err(late());
        }
        crate::sync::sleep(LOOK);
    }
    Ok(())
}

fn hung_up() -> Error {
    Error::failure("the caller has hung up")
}

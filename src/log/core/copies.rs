//! What the log has of blocks that the backing store has, too (copies, segments written back), and
//! how that leaves the log.
//!
//! A window that ends leaves its segments where they are: they serve reads until their slots are
//! needed. Blocks that only the backing store has can be added as *copies*: records that repeat
//! what the block holds. A copy is no change of the volume, so writeback, a replay, and a process
//! that takes over what another left may leave it out.
//!
//! Invariants: when a copy is appended, every other record of its block is before
//! [`Superblock::written`](crate::log::disk::format::Superblock::written), durably, or is a copy
//! itself. So a copy never hides anything that the backing store lacks, and may be forgotten at any
//! time. Discarded ranges stay known as long as older records that they hide. Copies take no room
//! that changes need.

use super::answer::{Found, Reading};
use super::chunk::Open;
use super::map::Place;
use super::options::RESERVE;
use super::release::{Release, Token};
use super::segment::Segment;
use super::state::Core;
use super::window_state::After;
use crate::log::disk::format::{Data, Entry, Kind, crc};
use crate::log::planted::{self, Bug, mark, visit};
use std::collections::VecDeque;

/// Index entries that one step visits.
const STEP: usize = if cfg!(sim) { 128 } else { 4096 };
/// Ranges that one step forgets.
const RETIRE: usize = if cfg!(sim) { 2 } else { 1024 };
/// Percent of the log that waits for writeback: from the first on no segment is kept after it is
/// written back, from the second on no copy is added.
const FULL_PERCENT: u64 = 70;
const BUSY_PERCENT: u64 = 50;
/// A release frees at least 1 / `PART` of the log, if the log has that many clean segments.
const PART: u64 = 16;

/// Counts one entry of the index more, or less, in its segment and in `dirty`.
fn count(
    (segments, first): (&mut VecDeque<Segment>, u64),
    (segment, written): (u64, u64),
    dirty: &mut u64,
    more: bool,
) {
    let add = |n: u64| if more { n + 1 } else { n.saturating_sub(1) };
    if segment >= written {
        *dirty = add(*dirty);
    }
    if let Some(found) = segments.get_mut((segment - first) as usize) {
        found.changes = add(found.changes.into()) as u32;
    }
}

impl Core {
    /// Counts a place that the index names, or names no more.
    fn count(&mut self, place: &Place, more: bool) {
        if !place.copy {
            let at = (self.segment_of(place.slot), self.written);
            count((&mut self.segments, self.first), at, &mut self.dirty, more);
        }
    }

    /// Sets the place of a block; returns the old one.
    pub(super) fn name(&mut self, block: u64, place: Place) -> Option<Place> {
        self.count(&place, true);
        let old = self.map.insert(block, place);
        if let Some(old) = &old {
            self.count(old, false);
        }
        old
    }

    /// Whether the counters match the index, for tests: visits all of the index.
    #[doc(hidden)]
    pub fn is_counted(&self) -> bool {
        let dirty = self.map.iter().filter(|(_, place)| !self.is_clean_at(place)).count() as u64;
        let named = self.map.iter().filter(|(_, place)| !place.copy).count() as u64;
        let changes: u64 = self.segments.iter().map(|s| u64::from(s.changes)).sum();
        let zeroed = self
            .holes
            .from(0)
            .filter(|(.., hole)| hole.kind == Kind::Zeros && hole.segment >= self.written);
        let zeroed: u64 = zeroed.map(|(start, end, _)| end - start).sum();
        (dirty, named, zeroed) == (self.dirty, changes, self.holes.unwritten_blocks())
    }

    /// Makes the index forget a block.
    pub(super) fn forget_block(&mut self, block: u64) {
        if let Some(place) = self.map.remove(block) {
            self.count(&place, false);
        }
    }

    /// Makes the index forget the blocks `start..end`.
    pub(super) fn forget_range(&mut self, start: u64, end: u64) {
        let (first, slots, written) = (self.first, self.sb.segments, self.written);
        let Self { map, segments, dirty, .. } = self;
        map.remove_range(start, end, |place| {
            if !place.copy {
                let lap = (u64::from(place.slot) + slots - first % slots) % slots;
                count((segments, first), (first + lap, written), dirty, false);
            }
        });
    }

    /// Counts all that the index names, in a log that was opened. Counts by slot first: that takes
    /// no division for each of many millions of entries, and the table is small enough for a
    /// processor's cache.
    pub(in crate::log) fn count_all(&mut self) {
        let mut named = vec![0u32; self.sb.segments as usize];
        for entry in self.map.packed_from(0).filter(|entry| !entry.is_copy()) {
            if let Some(named) = named.get_mut(entry.slot() as usize) {
                *named += 1;
            }
        }
        // From the slot of the first segment on, slots are in the order of segments.
        named.rotate_left((self.first % self.sb.segments) as usize);
        for (segment, named) in (self.first..).zip(named) {
            if segment >= self.written {
                self.dirty += u64::from(named);
            }
            if let Some(found) = self.segments.get_mut((segment - self.first) as usize) {
                found.changes += named;
            }
        }
        self.holes.wrote(self.written);
    }

    /// Whether the backing store has the content at a place.
    pub(super) fn is_clean_at(&self, place: &Place) -> bool {
        place.copy || self.segment_of(place.slot) < self.written
    }

    /// Whether the backing store has the current content of a block, as far as the log knows.
    fn is_clean_block(&self, block: u64) -> bool {
        let clean = self.map.get(block).is_none_or(|place| self.is_clean_at(&place));
        clean && self.holes.get(block).is_none()
    }

    /// Whether a copy in `segment` counts, when it is appended, replayed or laid out anew.
    pub(super) fn takes_copy(&self, segment: u64, block: u64) -> bool {
        let void = segment < self.sb.void && !planted::on(Bug::ServeVoid);
        if void {
            mark("copy.void");
        }
        !void && (self.is_clean_block(block) || planted::on(Bug::CopyOverChange))
    }

    /// A token for the content that clean blocks have now, in the backing store or in the log: that
    /// content stays current as long as [`Self::keep`] takes the token.
    pub fn token(&self) -> Token {
        Token(self.written)
    }

    /// Whether the log has nothing of a block.
    pub fn lacks_copy(&self, block: u64) -> bool {
        self.map.get(block).is_none() && self.holes.get(block).is_none()
    }

    /// Whether the log has a block that the backing store has, too.
    pub fn has_clean(&self, block: u64) -> bool {
        self.map.get(block).is_some() && self.is_clean_block(block)
    }

    /// Bytes that copies may take.
    pub fn keep_bytes(&self) -> u64 {
        self.sb.segments * self.options.keep_percent / 100 * u64::from(self.sb.segment)
    }

    /// Whether there is room for copies.
    pub fn may_keep(&self) -> bool {
        let (used, segments) = self.fullness();
        let room = self.segments.len() as u64 + RESERVE + 1 < segments;
        room && used * 100 < segments * BUSY_PERCENT
            && self.keep_limit() > 0
            && self.check_health().is_ok()
            && self.release == Release::Idle
            // The index forgets what a window wrote back, and no token says so yet.
            && !self.window_moves()
            && self.is_written()
            && self.kept.has_room(4, false)
            && self.sealed_bytes * 2 < self.options.memory
    }

    /// Appends a copy of a block, whose content was read after the token was taken; returns whether
    /// it did.
    pub fn keep(&mut self, block: u64, token: Token, kind: Kind, payload: &[u8]) -> bool {
        if token != self.token() && !planted::on(Bug::CopyWithoutToken) {
            mark("copy.late");
            return false;
        }
        if !self.may_keep() {
            return false;
        }
        if !self.is_clean_block(block) && !planted::on(Bug::CopyOverChange) {
            mark("copy.changed");
            return false;
        }
        let again = self.map.get(block).is_some();
        mark(if again { "copy.again" } else { "copy.kept" });
        let changes = self.open.as_ref().is_some_and(Open::has_changes);
        let sum = crc(payload);
        let Ok(open) = self.open_for(payload.len(), RESERVE) else { return false };
        let data = open.append_copy(block, kind, payload, sum);
        let (segment, offset) = (open.segment, data.offset - open.offset);
        self.kept.add(&Entry::Data(Data { offset, check: sum, ..data }));
        self.index_data(segment, data);
        if !changes {
            // No request waits for copies to become durable.
            self.commit.touch();
        }
        self.counts.copies_kept += u64::from(!again);
        self.counts.copies_kept_again += u64::from(again);
        self.counts.copies_bytes += payload.len() as u64;
        true
    }

    /// Whether the log has anything that [`Self::locate_copy`] may find.
    pub fn has_copies(&self) -> bool {
        self.map.len() as u64 > self.dirty
    }

    /// Where the log has what the backing store has of a block, too: [`Found::Memory`] or
    /// [`Found::Log`], as from [`Core::locate`]; else `None`.
    pub fn locate_copy(&mut self, block: u64, out: &mut Vec<u8>) -> Option<Found> {
        let place = self.map.get(block).filter(|place| self.is_clean_at(place))?;
        let found = self.locate_place(block, place, out);
        let there = matches!(found, Found::Memory(_) | Found::Log(_));
        self.counts.reads_clean += u64::from(there);
        there.then_some(found)
    }

    /// Drops a block that could not be read from the log: if it is clean, the backing store serves
    /// it from now on.
    pub fn drop_copy(&mut self, reading: &Reading, block: u64) {
        let slot = (reading.seed.segment % self.sb.segments) as u32;
        let there = |place: &Place| (place.slot, place.offset) == (slot, reading.seed.offset);
        let same = self.map.get(block).filter(there);
        if same.is_some_and(|place| self.is_clean_at(&place)) {
            mark("copy.damaged");
            self.counts.copies_damaged += 1;
            self.forget_block(block);
            // An older discard is not what the backing store has.
            self.holes.remove(block, block + 1);
            self.checkpoint.spoil();
        }
    }

    /// Sets the percent of the log that copies may take.
    pub fn set_keep_percent(&mut self, percent: u64) {
        self.options.keep_percent = percent;
        if percent > 0 && !self.sb.copies && !self.is_failed() {
            // A superblock says so before the first copy.
            self.sb.copies = true;
            self.write_superblock(After::Identity);
        }
    }

    /// Segments that may stay after they are written back.
    fn keep_limit(&self) -> u64 {
        let (used, segments) = self.fullness();
        if self.recommits || used * 100 >= segments * FULL_PERCENT {
            return 0;
        }
        // A writer that finds no room finds more clean segments than this, so some leave.
        let free = (segments - used).saturating_sub(RESERVE + 2) / 2;
        free.min(segments * self.options.keep_percent / 100)
    }

    /// Whether the segments of a window are freed as soon as it ends.
    pub(super) fn frees_at_once(&self) -> bool {
        self.first == self.written && self.keep_limit() == 0 && self.release == Release::Idle
    }

    /// Notes that the backing store durably has the segments before `end`.
    pub(super) fn wrote(&mut self, end: u64) {
        let (from, count) = (self.written - self.first, end.saturating_sub(self.written));
        let there = self.segments.iter().skip(from as usize).take(count as usize);
        self.dirty -= there.map(|s| u64::from(s.changes)).sum::<u64>();
        self.written = self.written.max(end);
        self.holes.wrote(self.written);
    }

    /// Looks, from block `from` on, for blocks whose only place in the log is in segments that
    /// leave it next. Adds some to `out`, and returns the block to go on with. `None`: there are no
    /// more, or nothing is about to leave.
    pub fn leaving(&self, from: u64, out: &mut Vec<u64>) -> Option<u64> {
        let to = self.leaves_next()?;
        for (i, entry) in self.map.packed_from(from).enumerate() {
            if i == STEP {
                return Some(entry.block());
            }
            let single = entry.place().kind != Kind::Cluster;
            if single && self.segment_of(entry.slot()) < to {
                out.push(entry.block());
            }
        }
        None
    }

    /// The segment before which all leaves next, when there is hardly any room for more copies.
    fn leaves_next(&self) -> Option<u64> {
        let (limit, part) = (self.keep_limit(), (self.sb.segments / PART).max(1));
        let clean = self.written - self.first;
        let idle = self.release == Release::Idle && !self.window_moves();
        let due = limit > 0 && clean + part >= limit;
        (due && idle && clean > 0).then(|| self.first + clean.min(part))
    }

    /// Bytes of the segments that leave next.
    pub fn leaving_bytes(&self) -> u64 {
        (self.sb.segments / PART).max(1) * u64::from(self.sb.segment)
    }

    /// The number of the segment that is opened next.
    pub fn head(&self) -> u64 {
        self.first + self.segments.len() as u64
    }

    /// Releases the segments whose blocks [`Self::leaving`] has returned.
    pub fn let_leave(&mut self) {
        if let Some(to) = self.leaves_next().filter(|_| self.check_health().is_ok()) {
            self.begin_release(to);
        }
    }

    /// Whether a release is at work, and its next step needs no drive.
    pub(super) fn is_stepping_copies(&self) -> bool {
        match self.release {
            Release::Retiring { .. } | Release::Forgetting { .. } | Release::Dropping { .. } => {
                true
            }
            Release::Leaving { to } => self.leaves_on(to),
            Release::Idle | Release::Moving { .. } => false,
        }
    }

    /// Whether all segments that are written back are being dropped.
    pub(super) fn is_dropping_copies(&self) -> bool {
        matches!(self.release, Release::Dropping { .. })
    }

    /// Whether a release is moving the tail.
    pub(super) fn is_releasing(&self) -> bool {
        !matches!(self.release, Release::Idle | Release::Leaving { .. })
    }

    fn begin_release(&mut self, to: u64) {
        mark("release.begun");
        self.release = Release::Retiring { to };
    }

    /// Releases the oldest segments if their room is needed, one step at a time.
    pub(super) fn step_release(&mut self) {
        match self.release {
            Release::Idle => {
                let (clean, limit) = (self.written - self.first, self.keep_limit());
                let quiet = self.check_health().is_ok() && !self.window_moves();
                if clean > limit && quiet {
                    let part = (self.sb.segments / PART).max(1).min(clean);
                    self.begin_release(self.first + part.max(clean - limit));
                }
            }
            // Ranges first: a block that the index forgets must not uncover an older range.
            Release::Retiring { to } => {
                if self.holes.retire(to, RETIRE) {
                    self.release = Release::Forgetting { to, at: 0 };
                } else {
                    mark("release.retires_on");
                }
            }
            Release::Forgetting { to, at } => {
                let next = self.forget_some(to, at);
                if let Some(at) = next {
                    self.release = Release::Forgetting { to, at };
                    return;
                }
                self.sb.tail = self.tail_at(to);
                self.drop_epochs();
                self.release = Release::Moving { to };
                self.write_superblock(After::Release);
            }
            Release::Moving { .. } | Release::Dropping { .. } => {}
            Release::Leaving { .. } => self.released(),
        }
    }

    /// Makes the index forget some blocks before segment `to`, from block `at` on; returns the
    /// block to go on with.
    fn forget_some(&mut self, to: u64, at: u64) -> Option<u64> {
        let some = self.map.packed_from(at).take(STEP);
        let (mut gone, mut next) = (Vec::new(), None);
        for entry in some {
            visit();
            next = Some(entry.block() + 1);
            if self.segment_of(entry.slot()) < to {
                gone.push(entry.block());
            }
        }
        self.counts.copies_released += gone.len() as u64;
        if !planted::on(Bug::ReleaseKeepsIndex) {
            gone.into_iter().for_each(|block| self.forget_block(block));
        }
        next
    }

    /// The superblock with the new tail is durable: frees slots that no reader holds.
    pub(super) fn released(&mut self) {
        let (Release::Moving { to } | Release::Leaving { to }) = self.release else { return };
        if self.free(to) {
            mark("release.ended");
            self.release = Release::Idle;
        } else {
            mark("release.waits");
            self.release = Release::Leaving { to };
        }
    }

    /// Drops all segments that are written back, because changes need their room; `false` while
    /// that takes more steps, during which the log's drive must get no command. A superblock must
    /// be durable before the room is used. A reader of a dropped segment sees by the check word
    /// that its slot was used again, and looks the block up again.
    pub(super) fn drop_copies(&mut self) -> bool {
        if self.first == self.written {
            // A window that frees segments may have freed the last of them between two steps.
            if self.is_dropping_copies() {
                self.release = Release::Idle;
            }
            return true;
        }
        self.release = match self.release {
            Release::Dropping { at: Some(at) } => match self.forget_some(self.written, at) {
                None => Release::Idle,
                next => Release::Dropping { at: next },
            },
            _ if self.holes.retire(self.written, RETIRE) => Release::Dropping { at: Some(0) },
            _ => Release::Dropping { at: None },
        };
        if self.release != Release::Idle {
            mark("copy.drops_on");
            return false;
        }
        self.sb.tail = self.tail_at(self.written);
        self.drop_epochs();
        self.segments.drain(..(self.written - self.first) as usize);
        (self.first, self.forced) = (self.written, self.written);
        true
    }

    /// Prepares the superblock of a log that is closed: if the log has nothing but copies, it says
    /// that the backing store has everything.
    pub(super) fn settle_copies(&mut self) {
        let open = self.open.as_ref().is_some_and(|open| !open.is_empty());
        let lost = !self.sb.lost.is_empty() || self.holes.has_lost_before(u64::MAX);
        if self.is_clean() && !open && !lost {
            self.seal_open();
            // Whatever comes later is behind what is written back.
            if let Some(last) = self.segments.back_mut() {
                last.finished = true;
            }
            let end = self.first + self.segments.len() as u64;
            self.sb.written = self.tail_at(end);
            self.sb.copies = false;
        }
    }

    /// Voids what the log has of blocks that the backing store has: the backing store may have
    /// changed.
    pub(in crate::log) fn void(&mut self) {
        let end = self.first + self.segments.len() as u64;
        self.sb.void = end;
    }
}

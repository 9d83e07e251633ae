//! The rescue of a log whose drive has failed for good.
//!
//! In this order: the durable content of the log is written back, oldest windows first; both copies
//! of the superblock say that the log is spent; content that never became durable is written back
//! from memory; from then on the backing store alone is the volume. Invariants: until the log is
//! durably spent, the backing store gets nothing that the log does not hold. So a log that is
//! opened later is empty, or its backing store is not ahead of it. While the superblocks cannot be
//! written, the log takes nothing. It tries again every few seconds, because a drive that was gone
//! for a while may come back.

use super::holes::{Hole, Holes, Tombstone};
use super::map::{Map, Place};
use super::rescue_state::{Lost, PATIENCE, Stage, merge};
use super::rewrite::next_epoch;
use super::state::Core;
use super::window_state::{After, Plan, Planned, STEP};
use crate::log::disk::format::{Data, Kind, LOST_MAX, Tail};
use crate::log::planted::{self, Bug, mark, visits};
use crate::media::{Buffer, ChangeCounter};
use std::sync::Arc;

/// Milliseconds until a failed write of the superblocks is tried again.
const RETRY_MS: u64 = 5000;

impl Core {
    /// Whether writes go to the backing store, because the log has failed.
    pub fn is_through(&self) -> bool {
        self.rescue.is_through()
    }

    /// Whether the log has failed, and durably says so: the backing store is ahead of it.
    pub fn is_spent(&self) -> bool {
        matches!(self.rescue.stage, Stage::Memory | Stage::Through)
    }

    /// Whether the log has failed, and its content is being written back.
    pub fn is_rescuing(&self) -> bool {
        self.is_failed() && self.rescue.is_at_work()
    }

    /// Blocks that cannot be read any more, as first block and count.
    pub fn lost(&self) -> Vec<(u64, u64)> {
        let mut lost = Lost::default();
        while self.more_lost(&mut lost) {}
        lost.ranges()
    }

    /// Carries the search for lost blocks one step further; returns whether there may be more. A
    /// block that is written, discarded or lost between two steps may be found or not.
    pub fn more_lost(&self, lost: &mut Lost) -> bool {
        let blocks = self.rescue.lost.range(lost.block..).take(STEP);
        let blocks: Vec<(u64, u64)> = blocks.map(|&block| (block, 1)).collect();
        visits(blocks.len());
        lost.block = blocks.last().map_or(u64::MAX, |(last, _)| last + 1);
        let some = blocks.len() == STEP;
        lost.found.extend(blocks);
        if some {
            return true;
        }
        for _ in 0..STEP {
            visits(1);
            let Some((start, end)) = lost.range.take() else {
                let next = self.holes.next_lost(lost.record);
                let Some((record, range)) = next else { return false };
                lost.record = record.next();
                lost.range = Some((range.start, range.end));
                continue;
            };
            let (part, next) = self.next_unnamed(start, end);
            if !part.is_empty() {
                lost.found.push((part.start, part.end - part.start));
            }
            lost.range = (next < end).then_some((next, end));
        }
        true
    }

    /// The first of `count` blocks from `block` on that cannot be read any more. Called while
    /// writes go to the backing store: then there are no more lost ranges than a superblock has
    /// room for.
    pub fn first_lost(&self, block: u64, count: u64) -> Option<u64> {
        let end = block + count;
        let alone = self.rescue.lost.range(block..end).next().copied();
        let within = self.holes.lost_within(block, end).find_map(|(start, to)| {
            let (mut from, to) = (start.max(block), to.min(end));
            while from < to {
                let (part, next) = self.next_unnamed(from, to);
                if !part.is_empty() {
                    return Some(part.start);
                }
                from = next;
            }
            None
        });
        alone.into_iter().chain(within).min()
    }

    /// The next window of a failed log; `None` while none can begin, or when nothing is left.
    pub(super) fn begin_rescue(&mut self, bytes: u64) -> Option<Plan> {
        if !self.is_between_windows() || !self.is_written() || !self.commit.is_still() {
            return None;
        }
        let plan = match self.rescue.stage {
            Stage::Log => self.plan_log(bytes),
            Stage::Memory => self.plan_memory(),
            Stage::Marking | Stage::Through | Stage::Stranded => None,
        };
        if plan.is_none() && self.rescue.stage == Stage::Log {
            self.spend();
        }
        plan
    }

    /// The segment and the offset from which on nothing is durable.
    pub(super) fn durable_end(&self) -> (u64, u32) {
        self.sealed.front().map_or((u64::MAX, 0), |s| (s.header.segment, s.header.offset))
    }

    fn planned(&self, number: u64) -> Option<Planned> {
        let segment = self.segments.get(number.checked_sub(self.first)? as usize)?;
        Some(Planned {
            number,
            at: self.sb.place(number),
            from: 0,
            used: segment.used,
            epoch: segment.epoch,
            chunk: segment.chunk,
            prev: segment.prev,
        })
    }

    fn plan_log(&mut self, bytes: u64) -> Option<Plan> {
        self.seal_open();
        let most = (bytes / u64::from(self.sb.segment)).max(1) as usize;
        let (last, offset) = self.durable_end();
        let mut end = self.rescue.next.max(self.written);
        let mut segments = Vec::new();
        while segments.len() < most
            && let Some(mut planned) = self.planned(end)
        {
            planned.used = match end.cmp(&last) {
                std::cmp::Ordering::Less => planned.used,
                std::cmp::Ordering::Equal => planned.used.min(offset),
                std::cmp::Ordering::Greater => 0,
            };
            if planned.used > 0 {
                segments.push(planned);
            }
            end += 1;
        }
        if segments.is_empty() {
            return None;
        }
        mark("rescue.log");
        self.rescue_until(end);
        let stones = self.rescue.stones.iter().take_while(|s| s.segment < end);
        let stones: Vec<_> = stones.copied().collect();
        let (_, records) = self.window.unread_parts.before(end);
        let patient = self.is_patient() && stones.is_empty();
        let packs = self.options.atomic;
        Some(Plan { segments, patient, packs, images: Vec::new(), stones, records })
    }

    /// Plans a window of what is only in memory, as images of the segments that it was meant for;
    /// `None` while a payload is not there yet. It is no more than
    /// [`Options::memory`](super::state::Options).
    fn plan_memory(&mut self) -> Option<Plan> {
        let bytes = self.complete_sealed()?;
        mark("rescue.memory");
        let mut plan = Plan {
            segments: Vec::new(),
            patient: true,
            packs: self.options.atomic,
            images: Vec::new(),
            stones: Vec::new(),
            records: Arc::default(),
        };
        for (sealed, bytes) in self.sealed.iter().zip(bytes) {
            let header = &sealed.header;
            let known = plan.segments.last().is_some_and(|s: &Planned| s.number == header.segment);
            if !known && let Some(planned) = self.planned(header.segment) {
                let from = header.offset;
                let (chunk, prev) = (header.chunk, header.prev);
                plan.segments.push(Planned { from, chunk, prev, ..planned });
                plan.images.push(Buffer::new(planned.used as usize));
            }
            let (from, len) = (header.offset as usize, header.len as usize);
            if let Some(image) = plan.images.last_mut().and_then(|i| i.get_mut(from..from + len)) {
                image.copy_from_slice(&bytes[..len]);
            }
        }
        self.rescue_until(u64::MAX);
        Some(plan)
    }

    /// Counts a window of a rescue that ended well or failed.
    pub(super) fn rescue_tried(&mut self, well: bool) {
        if well {
            self.rescue.failures = 0;
        } else {
            mark("rescue.window_failed");
            self.rescue.failures += 1;
        }
    }

    /// Whether the rescue writes back what is only in memory.
    pub(super) fn rescues_memory(&self) -> bool {
        self.rescue.stage == Stage::Memory
    }

    /// Notes a discard whose record cannot be read; returns whether that is new.
    pub(super) fn rescue_discards(&mut self, stone: Tombstone) -> bool {
        self.rescue.stones.insert(stone)
    }

    /// Ends a window of a rescue: all before segment `end` is in the backing store.
    pub(super) fn end_rescue(&mut self, end: u64) {
        self.read_well(end);
        let first = Tombstone { segment: end, offset: 0, start: 0, end: 0 };
        self.rescue.stones = self.rescue.stones.split_off(&first);
        self.rescue.next = end;
        self.mixed(end);
        if self.rescue.stage == Stage::Memory {
            self.rescue.owed.clear();
            // Blocks that did not decode even from memory must be in the superblock, too.
            if self.lost() == self.sb.lost { self.go_through() } else { self.spend() }
        }
    }

    /// Notes that a record of `segment` is damaged.
    pub(super) fn rescue_lacks(&mut self, segment: u64, data: &Data) {
        let slot = (segment % self.sb.segments) as u32;
        let place = self.map.get(data.block);
        if place.is_some_and(|p| p.slot == slot && p.offset == data.offset) {
            mark("rescue.damaged");
            self.rescue.lost.insert(data.block);
        } else if self.is_in_memory(data.block) {
            self.rescue.owed.insert(data.block);
        }
    }

    /// Whether the newest record of a block is in memory alone.
    fn is_in_memory(&self, block: u64) -> bool {
        match (self.map.get(block), self.holes.get(block)) {
            (Some(place), _) => !self.is_durable(&place),
            (None, Some(hole)) => (hole.segment, hole.offset) >= self.durable_end(),
            (None, None) => false,
        }
    }

    /// Whether the payload at a place is durable.
    pub(super) fn is_durable(&self, place: &Place) -> bool {
        (self.segment_of(place.slot), place.offset) < self.durable_end()
    }

    /// Notes that the segments before `end` are in the backing store.
    pub(super) fn rescued(&mut self, end: u64) {
        self.rescue.next = self.rescue.next.max(end);
    }

    /// All durable content is in the backing store: writes superblocks that say so.
    fn spend(&mut self) {
        let mut lost = self.lost();
        lost.extend(self.rescue.owed.iter().map(|&block| (block, 1)));
        let lost = merge(lost);
        // What another process left has found no room: only the next process can recommit it.
        if self.rescue.unmarkable || lost.len() > LOST_MAX || self.recommits {
            return self.strand();
        }
        self.rescue.stage = Stage::Marking;
        let (chunk, prev) = self.commit.durable_end();
        let segment = self.first + self.segments.len() as u64;
        self.sb.tail = Tail { segment, chunk, prev };
        (self.sb.written, self.sb.copies) = (self.sb.tail, false);
        self.sb.change_counter = ChangeCounter::default();
        // Chunks that were written and are not durable must not count behind the new tail.
        let epoch = self.rescue.epoch.unwrap_or_else(|| next_epoch(self.epoch()));
        self.rescue.epoch = Some(epoch);
        self.sb.epochs.clear();
        self.begin_epoch(chunk, epoch);
        (self.sb.open, self.sb.spent, self.sb.lost) = (false, true, lost);
        self.write_superblock(After::Spent);
        if planted::on(Bug::ThroughBeforeSpent) {
            self.rescue.stage = Stage::Memory;
        }
    }

    /// Both superblocks durably say that the log is spent.
    pub(super) fn spent(&mut self) {
        if self.rescue.stage == Stage::Marking {
            mark("rescue.spent");
            self.rescue.stage = Stage::Memory;
        }
    }

    /// Notes that the superblocks of a failed log cannot be written.
    pub(super) fn cannot_mark(&mut self) {
        self.rescue.unmarkable = true;
        self.rescue.unmarkable_ms = self.commit.now_ms();
        if self.rescue.stage == Stage::Marking {
            self.strand();
        }
    }

    /// Retries the rescue of a log whose superblocks could not be written.
    pub(super) fn retry_rescue(&mut self) {
        let rescue = &mut self.rescue;
        let due = self.commit.now_ms() >= rescue.unmarkable_ms + RETRY_MS;
        if rescue.stage == Stage::Stranded && rescue.unmarkable && !self.recommits && due {
            mark("rescue.tries_again");
            (rescue.stage, rescue.unmarkable) = (Stage::Log, false);
            // Until a window succeeds, no request waits for the rescue.
            rescue.failures = PATIENCE;
        }
    }

    fn strand(&mut self) {
        mark("rescue.stranded");
        self.rescue.stage = Stage::Stranded;
    }

    /// Everything is in the backing store: from now on writes go there.
    fn go_through(&mut self) {
        mark("rescue.through");
        self.rescue.stage = Stage::Through;
        self.counts.through_unix_s = self.window.now_s();
        self.mixed(u64::MAX);
        self.rescue.lost.clear();
        self.map = Map::default();
        self.holes = Holes::default();
        for &(block, count) in &self.sb.lost {
            let hole = Hole { segment: self.sb.tail.segment, offset: 0, kind: Kind::Lost };
            self.holes.insert(block, block + count, hole);
        }
        self.open = None;
        self.sealed.clear();
        self.sealed_bytes = 0;
        if !planted::on(Bug::KeepThrough) {
            self.kept.give_up();
        }
        self.segments.clear();
        (self.first, self.forced) = (self.sb.tail.segment, self.sb.tail.segment);
        (self.written, self.dirty) = (self.first, 0);
    }
}

//! Judges what a window left undone, because it could not read all of its segments.
//!
//! Of a chunk that cannot be read, the index knows what still counts. Its records are noted here,
//! and the same window takes them once more. Its discards are appended again at the head of the
//! log. Blocks that are damaged, or were lost before, are appended as lost. A failed log takes no
//! appends, so its windows take discards from here as well. Invariants: all of this is done in
//! steps, each over a bounded number of blocks and ranges, while the volume is at work. The judged
//! segments take no more entries, so nothing comes back behind the point that judging has passed. A
//! block that changes meanwhile has a newer record, which is durable before the tail moves; it is
//! looked up again before a range is appended as lost.

use super::answer::Refused;
use super::commit_state::Ticket;
use super::holes::{ANYWHERE, Hole, Record, Tombstone};
use super::judging::{At, Judging, Part};
use super::map::Packed;
use super::state::Core;
use super::window_state::{Judged, STEP};
use crate::intervals::Intervals;
use crate::log::disk::format::{Data, Kind, LOST_MAX};
use crate::log::planted::{self, Bug, mark, visit};
use std::ops::Range;
use std::sync::Arc;

/// Index entries that one step visits.
const LOOK: usize = if cfg!(sim) { 8 } else { 8192 };

/// The ranges of records that unreadable parts may have, with the records of which only the segment
/// is known.
fn spans(unreadable: &[Part]) -> Vec<(Record, Record)> {
    let mut spans = Vec::new();
    for (i, (segment, part)) in unreadable.iter().enumerate() {
        let [first, last] = [part.start, part.end - 1].map(|at| Record::all_of(*segment, at));
        spans.push((first[0], last[1]));
        if unreadable.get(i + 1).is_none_or(|(next, _)| next != segment) {
            spans.push(Record::all_of(*segment, ANYWHERE).into());
        }
    }
    spans.reverse();
    spans
}

impl Core {
    /// Begins to judge a window that has ended well.
    pub(super) fn begin_judging(
        &self,
        Judged { end, rescues, blocks, lost }: Judged,
        damaged: Vec<(u64, Data)>,
        unreadable: &[Part],
    ) -> Judging {
        let mut unknown = Intervals::default();
        // Content that was never on the drive is all in memory.
        if !rescues || !self.rescues_memory() {
            for (segment, part) in unreadable {
                let begin = segment * u64::from(self.sb.segment);
                let part = begin + u64::from(part.start)..begin + u64::from(part.end);
                if !self.window.unread_parts.parts.covers(&part) {
                    unknown.insert(part);
                }
            }
        }
        let lost_before = self.holes.has_lost_before(end);
        Judging {
            end,
            rescues,
            blocks,
            lost,
            at: if unknown.ranges() == 0 { At::Discards } else { At::Index(0) },
            unknown,
            again: false,
            spans: spans(unreadable),
            judges: lost_before || !damaged.is_empty() || !unreadable.is_empty(),
            damaged,
            range: None,
            full: Ok(()),
        }
    }

    /// Judges a window one step further; `None` when judging is over.
    pub(super) fn judge(&mut self, mut judging: Box<Judging>) -> Option<Box<Judging>> {
        for _ in 0..STEP {
            visit();
            if let Some((range, kind)) = judging.range.take() {
                judging.range = self.say_again(&mut judging, range, kind);
                continue;
            }
            match judging.at {
                At::Index(from) => {
                    self.judge_index(&mut judging, from);
                    if judging.again && !judging.rescues && judging.at == At::Discards {
                        mark("window.reads_by_index");
                        return None;
                    }
                    return Some(judging);
                }
                At::Discards => match self.next_discard(&mut judging) {
                    Some(stone) if judging.rescues => judging.again |= self.rescue_discards(stone),
                    Some(stone) => judging.range = Some((stone, Kind::Zeros)),
                    // Each discard has its place in the order of the log: the same window again.
                    None if judging.again => return None,
                    None => judging.at = At::Damaged,
                },
                At::Damaged => match judging.damaged.pop() {
                    Some((segment, data)) => self.judge_damaged(&mut judging, segment, &data),
                    None if judging.rescues => {
                        let Judging { end, rescues, blocks, lost, .. } = *judging;
                        self.settled(Judged { end, rescues, blocks, lost });
                        return None;
                    }
                    None => judging.at = At::Lost(Record::default()),
                },
                At::Lost(from) => match self.holes.next_lost(from) {
                    Some((record, lost)) if record.segment() < judging.end => {
                        mark("window.lost_again");
                        judging.at = At::Lost(record.next());
                        judging.range = Some((lost, Kind::Lost));
                    }
                    _ => {
                        self.judged(*judging);
                        return None;
                    }
                },
            }
        }
        mark("window.judged_on");
        Some(judging)
    }

    /// Looks up what the index names in parts that cannot be read: notes records for the next
    /// window, and forgets copies, whose content the backing store has.
    fn judge_index(&mut self, judging: &mut Judging, from: u64) {
        let position = |entry: &Packed| {
            let segment = self.segment_of(entry.slot()) * u64::from(self.sb.segment);
            segment + u64::from(entry.place().offset)
        };
        let (mut named, mut next) = (Vec::new(), None);
        for (i, entry) in self.map.packed_from(from).enumerate() {
            if i == LOOK {
                next = Some(entry.block());
                break;
            }
            visit();
            if judging.unknown.contains(position(&entry)) {
                named.push(entry);
            }
        }
        let (copies, records): (Vec<Packed>, Vec<Packed>) =
            named.into_iter().partition(|entry| entry.is_copy());
        for copy in copies {
            mark("window.unreadable_copy");
            self.forget_block(copy.block());
            self.checkpoint.spoil();
        }
        judging.again |= !records.is_empty();
        let of =
            |entry: Packed| (self.segment_of(entry.slot()), entry.place().record(entry.block()));
        let records: Vec<_> = records.into_iter().map(of).collect();
        if !records.is_empty() {
            Arc::make_mut(&mut self.window.unread_parts.records).extend(records);
        }
        judging.at = next.map_or(At::Discards, At::Index);
        if next.is_some() {
            mark("window.asks_index_on");
            return;
        }
        while let Some(part) = judging.unknown.take_first(u64::MAX) {
            self.window.unread_parts.parts.insert(part);
        }
    }

    /// The next discard whose record cannot be read.
    fn next_discard(&self, judging: &mut Judging) -> Option<Tombstone> {
        while let Some((from, last)) = judging.spans.last_mut() {
            visit();
            if let Some((record, stone)) = self.holes.next_discard(*from, *last) {
                *from = record.next();
                return Some(stone);
            }
            judging.spans.pop();
        }
        None
    }

    fn judge_damaged(&mut self, judging: &mut Judging, segment: u64, data: &Data) {
        if judging.rescues {
            return self.rescue_lacks(segment, data);
        }
        let slot = (segment % self.sb.segments) as u32;
        let there = self.map.get(data.block);
        let current = there.is_some_and(|p| p.slot == slot && p.offset == data.offset);
        if current || planted::on(Bug::CopyWithoutCheck) {
            mark("window.lost_block");
            let said = self.repeat_lost(judging.end, data.block, 1);
            judging.full = judging.full.and(said);
        }
    }

    /// Appends again what is true of a range, discarded or lost, for its first part that was not
    /// written since; returns the rest of the range.
    fn say_again(
        &mut self,
        judging: &mut Judging,
        range: Tombstone,
        kind: Kind,
    ) -> Option<(Tombstone, Kind)> {
        // A block of a lost range may have been discarded since the last step: it is lost no more.
        let (start, end) = match kind {
            Kind::Lost => self.holes.lost_within(range.start, range.end).next()?,
            _ => (range.start, range.end),
        };
        let (start, end) = (start.max(range.start), end.min(range.end));
        let (part, next) = match planted::on(Bug::CopyWithoutCheck) {
            true => (start..end, end),
            false => self.next_unnamed(start, end),
        };
        if !part.is_empty() {
            let said = match kind {
                Kind::Lost => self.repeat_lost(judging.end, part.start, part.end - part.start),
                _ => self.repeat_discard(Tombstone { start: part.start, end: part.end, ..range }),
            };
            judging.full = judging.full.and(said);
        }
        (next < range.end).then_some((Tombstone { start: next, ..range }, kind))
    }

    /// The first part of `start..end` that the index does not name, which may be empty, and the
    /// block behind it, with which to go on.
    pub(super) fn next_unnamed(&self, start: u64, end: u64) -> (Range<u64>, u64) {
        let mut from = start;
        for (i, entry) in self.map.packed_from(start).enumerate() {
            if entry.block() > from || entry.block() >= end {
                break;
            }
            if i == STEP {
                return (from..from, from);
            }
            visit();
            from = entry.block() + 1;
        }
        let to = self.map.packed_from(from).next().map_or(end, |entry| entry.block()).min(end);
        (from..to.max(from), to.max(from))
    }

    /// Appends again that blocks are lost; if the log has no segment left, the superblock says so.
    fn repeat_lost(&mut self, end: u64, block: u64, count: u64) -> Result<(), Refused> {
        let kind = Kind::Lost;
        match self.append_range(kind, block, count, 0) {
            Ok(()) => self.counts.repeated += 1,
            Err(_) if self.window.lost.len() < LOST_MAX => {
                mark("window.lost_in_superblock");
                // This change has no record, so a checkpoint at work would have neither the block
                // nor the range.
                self.checkpoint.abort();
                self.window.lost.push((block, count));
                self.forget_range(block, block + count);
                self.holes.insert(block, block + count, Hole { segment: end, offset: 0, kind });
            }
            Err(e) => return Err(e),
        }
        Ok(())
    }

    /// Appends a discard again; if the log has no segment left, the next window carries it out.
    fn repeat_discard(&mut self, stone: Tombstone) -> Result<(), Refused> {
        if self.window.unread_parts.has_carried(&stone) {
            mark("window.zeroed_itself");
            return Ok(());
        }
        mark("window.repeats_discard");
        match self.append_range(Kind::Zeros, stone.start, stone.end - stone.start, 0) {
            Ok(()) => self.counts.repeated += 1,
            Err(e) => {
                mark("window.zeros_itself");
                self.window.unread_parts.stones.insert(stone);
                return Err(e);
            }
        }
        Ok(())
    }

    /// Ends judging a window.
    fn judged(&mut self, judging: Judging) {
        let Judging { end, rescues, blocks, lost, judges, full, .. } = judging;
        if full.is_err() {
            // No room to say what is lost: the window is taken again later.
            mark("window.no_room");
            self.counts.windows_failed += 1;
            return;
        }
        self.window.unread_parts.carried(end);
        if !self.options.atomic {
            self.mixed(end);
        }
        self.read_well(end);
        // Judging may have skipped a record because the index names a newer one: that one has to be
        // durable before the tail moves, too.
        let waits = judges && !planted::on(Bug::TailBeforeSuccessor);
        let ticket = if waits { self.flush() } else { Ticket(0) };
        self.end_judging(ticket, Judged { end, rescues, blocks, lost });
    }
}

//! Recommit: what a process left in memory when it died goes to the log again.
//!
//! Its chunks are laid out anew behind what was durable, like chunks whose write failed
//! (`rewrite`): in order, with their numbers, in a new epoch, whatever the drive has of the first
//! attempt. Invariants: the log takes nothing else before; kept memory stays as it is until the
//! chunks are durable. So a process that dies meanwhile leaves the same again, and a power cut
//! leaves a state that the volume once had.

use super::answer::Refused;
use super::chunk::{Closing, Sealed};
use super::kept::Left;
use super::state::Core;
use crate::log::planted::{self, Bug, mark};
use crate::stats::LogStats;

impl Core {
    /// Whether chunks that another process left in memory still wait for room in the log. Until
    /// there is room the log takes no changes, and reads may return old content; writeback makes
    /// room.
    pub fn is_recommitting(&self) -> bool {
        self.recommits
    }

    /// Changes that were taken over from another process.
    pub fn recommitted(&self) -> u64 {
        self.recommitted
    }

    /// Begins to recommit, after the log was opened.
    pub(in crate::log) fn begin_recommit(&mut self) {
        self.recommits = !self.kept.is_empty();
        self.recommit();
    }

    /// Recommits what another process left, as soon as there is room for all of it.
    pub(super) fn recommit(&mut self) {
        if !self.recommits || self.is_failed() {
            return;
        }
        // The chunks are read when the log is opened and when there is room, not at each attempt
        // without room.
        if self.recommits_into.is_some_and(|segments| !self.has_room_anew(segments)) {
            mark("recommit.waits_for_room");
            return;
        }
        let left = self.kept.left();
        let segments = self.segments_anew(left.iter().map(Left::len));
        if !self.has_room_anew(segments) {
            self.recommits_into = Some(segments);
            return;
        }
        let counts = self.counts;
        if self.lay_out_left(&left).is_err() {
            // Not for lack of room: that was checked.
            return self.fail();
        }
        self.recommits_into = None;
        mark("recommit.done");
        self.counts = LogStats { chunks: self.counts.chunks, ..counts };
        self.recommitted = left.iter().map(|chunk| chunk.entries.len() as u64).sum();
        self.recommits = false;
    }

    fn lay_out_left(&mut self, left: &[Left]) -> Result<(), Refused> {
        self.open_segment(0)?;
        let mut order: Vec<usize> = (0..left.len()).collect();
        if planted::on(Bug::RecommitBackwards) {
            order.reverse();
        }
        if planted::on(Bug::SkipOpen) {
            order.pop();
        }
        for i in order {
            let (segment, offset) = self.place_for(left[i].len())?;
            // Drops a due summary: these chunks are full as they are.
            self.summaries.take();
            let closing =
                Closing { chunk: self.next_chunk, prev: self.prev, durable: self.commit.durable() };
            let place = (segment, offset, self.epoch());
            let sealed = Sealed::again(&left[i], (&mut self.kept, i), place, closing);
            for entry in &sealed.entries {
                self.index((segment, offset), entry);
            }
            self.push_sealed(sealed);
        }
        Ok(())
    }
}

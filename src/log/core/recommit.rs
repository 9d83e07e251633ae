//! What a process left in memory when it died goes to the log again.
//!
//! Its chunks are laid out anew behind what was durable, as those are whose way to the drive had
//! failed (`rewrite`): in order, with their numbers, of a new epoch, whatever the drive may have of
//! the first try. Invariants: nothing else is taken before; what is kept stays as it is until the
//! chunks are durable. So a process that dies meanwhile leaves the same, and power that goes leaves
//! a state that the volume once had.

use super::chunk::{Closing, Sealed};
use super::kept::Left;
use super::state::{Core, Refused};
use crate::log::planted::{self, Bug, mark};
use crate::stats::LogStats;

impl Core {
    /// Whether what another process left in memory still waits for room in the log. Then nothing is
    /// taken, and what is read may be old; windows of writeback make room.
    pub fn is_recommitting(&self) -> bool {
        self.recommits
    }

    /// Changes that were taken over from another process.
    pub fn recommitted(&self) -> u64 {
        self.recommitted
    }

    /// The log was opened.
    pub(in crate::log) fn begin_recommit(&mut self) {
        self.recommits = !self.kept.is_empty();
        self.recommit();
    }

    /// Takes what another process left, as soon as there is room for all of it.
    pub(super) fn recommit(&mut self) {
        if !self.recommits || self.is_failed() {
            return;
        }
        // What was left is looked through when the log is opened and when there is room, not each
        // time that there is none.
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
            // There is room.
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
            // Whatever the summary of a segment before says, these chunks are full as they are.
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

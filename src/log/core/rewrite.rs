//! Chunks whose write or flush failed are laid out anew in other segments.
//!
//! Invariants: nothing is in flight meanwhile; the chunks get a new epoch, and are written only
//! after a superblock names that epoch, so whatever the drive kept of the first attempt never
//! counts; chunks keep their order and what they change.

use super::answer::Refused;
use super::chunk::{Closing, Open, Sealed};
use super::segment::Segment;
use super::state::Core;
use super::window_state::After;
use crate::log::disk::format::{EPOCHS_MAX, Epoch, Header, LOST_MAX};
use crate::log::planted::{self, Bug, mark};
use crate::media::Buffer;
use std::sync::Arc;

impl Core {
    /// After a failure, once nothing is in flight: lays out anew what is not durable.
    pub(super) fn rewrite_if_stuck(&mut self) {
        if !self.commit.is_stuck() {
            return;
        }
        if self.commit.is_hopeless() {
            return self.fail();
        }
        if self.is_dropping_copies() && !self.drop_copies() {
            return;
        }
        // Only a chunk whose payloads are all there can be copied elsewhere.
        let Some(bytes) = self.complete_all() else {
            mark("commit.rewrite_waits_for_fill");
            return;
        };
        let segments = self.segments_anew(self.sealed.iter().map(|sealed| sealed.header.len));
        if !self.has_room_anew(segments) && !self.drop_copies() {
            return;
        }
        if !self.has_room_anew(segments) || self.lay_out_anew(bytes).is_err() {
            // Without room nothing has changed: the chunks in memory are still found there.
            mark("commit.no_room");
            return self.fail();
        }
        mark("commit.rewritten");
        self.commit.rewrites();
        self.write_superblock(After::Rewrite);
    }

    /// Closes the open chunk, and returns the bytes of all that is not durable; `None` while a
    /// payload is not there yet.
    fn complete_all(&mut self) -> Option<Vec<Arc<Buffer>>> {
        // Otherwise each call would close one more chunk.
        if self.open.as_ref().is_some_and(Open::awaits_fill) {
            return None;
        }
        self.seal_open();
        self.complete_sealed()
    }

    /// Lays out all that is not durable, at most [`Options::memory`](super::state::Options). The
    /// caller has checked that there is room.
    fn lay_out_anew(&mut self, bytes: Vec<Arc<Buffer>>) -> Result<(), Refused> {
        let old: Vec<Sealed> = self.sealed.drain(..).collect();
        self.sealed_bytes = 0;
        (self.next_chunk, self.prev) = self.commit.begin_again();
        self.trim(&old);
        if !planted::on(Bug::RewriteInOldEpoch) {
            self.begin_epoch(self.next_chunk, next_epoch(self.epoch()));
        }
        self.open_segment(0)?;
        for (chunk, bytes) in old.into_iter().zip(bytes) {
            let (segment, offset) = self.place_for(chunk.header.len)?;
            // Drops a due summary: these chunks are full as they are.
            self.summaries.take();
            let closing =
                Closing { chunk: self.next_chunk, prev: self.prev, durable: self.commit.durable() };
            let moved = chunk.moved(&bytes, (segment, offset, self.epoch()), closing);
            for entry in &moved.entries {
                self.index((segment, offset), entry);
            }
            self.push_sealed(moved);
        }
        Ok(())
    }

    /// Segments that chunks of these lengths take.
    pub(super) fn segments_anew(&self, lens: impl Iterator<Item = u32>) -> u64 {
        let (mut segments, mut used) = (1, 0);
        for len in lens {
            if used + len > self.sb.segment {
                (segments, used) = (segments + 1, 0);
            }
            used += len;
        }
        segments
    }

    /// Whether this many segments are free.
    pub(super) fn has_room_anew(&self, segments: u64) -> bool {
        self.segments.len() as u64 + segments <= self.sb.segments
    }

    pub(super) fn seal_open(&mut self) {
        match &self.open {
            Some(open) if open.is_empty() => {
                self.open = None;
                self.kept.forget();
            }
            _ => self.seal(),
        }
    }

    /// Takes chunks that move elsewhere out of their segments, and finishes all segments.
    fn trim(&mut self, old: &[Sealed]) {
        let (chunk, prev) = (self.next_chunk, self.prev);
        for segment in self.segments.iter_mut().rev().take_while(|s| s.chunk >= chunk) {
            *segment = Segment { chunk, prev, used: 0, ..*segment };
        }
        if let Some(Header { segment, offset, .. }) = old.first().map(|sealed| sealed.header)
            && let Some(segment) = self.segment_mut(segment)
        {
            segment.used = offset;
        }
        for segment in &mut self.segments {
            segment.finished = true;
        }
    }

    pub(super) fn place_for(&mut self, len: u32) -> Result<(u64, u32), Refused> {
        let size = self.sb.segment;
        let last = self.first + self.segments.len() as u64 - 1;
        match self.segments.back() {
            Some(segment) if segment.used + len <= size => Ok((last, segment.used)),
            _ => Ok((self.open_segment(0)?, 0)),
        }
    }

    /// Begins epoch `id` at chunk `from`.
    pub(in crate::log) fn begin_epoch(&mut self, from: u64, id: u64) {
        let epochs = &mut self.sb.epochs;
        epochs.retain(|epoch| epoch.from < from);
        while epochs.len() + LOST_MAX >= EPOCHS_MAX {
            epochs.remove(0);
        }
        epochs.push(Epoch { from, id });
        self.kept.note(id);
    }
}

/// Derives the next epoch from `epoch`, as random as that one (`SplitMix64`).
pub(super) fn next_epoch(epoch: u64) -> u64 {
    let mut z = epoch.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

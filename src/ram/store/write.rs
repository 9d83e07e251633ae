//! Writes: stage (compress) first, then *check, reserve, fill, publish* under the stripe lock.

use super::format::{Entry, HEADER, Header, Home, Location, RECORD_MAX, check_word, digest};
use super::freed::keep;
use super::index::Retained;
use super::log::Reservation;
use super::planted::{Bug, on};
use super::session::Staged;
use super::thread_counters::count_block;
use super::version::Version;
use super::{Session, Store};
use crate::BLOCK_SIZE;
use crate::GROUP;
use crate::codec::Encoded;
use crate::stats::Counts;

/// Why a commit stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Blocked {
    /// The open segment has no room for the next record, of this many bytes: open another segment.
    Segment(u32),
    /// No memory for a leaf of the index.
    Leaf,
    /// The block is not the version any more that the caller read.
    Changed,
}

/// How far a commit came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Progress {
    /// Blocks that are published, counted from the first staged block.
    pub done: usize,
    /// What stopped the commit; `None` when all blocks are published.
    pub blocked: Option<Blocked>,
}

impl Store {
    /// Encodes up to [`GROUP`] blocks into the session's scratch memory, and replaces what was
    /// staged before.
    ///
    /// # Panics
    /// When there are more than [`GROUP`] blocks.
    pub fn stage(&self, session: &mut Session, blocks: &[[u8; BLOCK_SIZE]]) {
        assert!(blocks.len() <= GROUP, "more than a group of blocks");
        let Session { codec, scratch, staged, staged_count, .. } = session;
        let records = scratch.chunks_exact_mut(RECORD_MAX);
        for ((block, record), staged) in blocks.iter().zip(records).zip(staged.iter_mut()) {
            let payload = &mut record[HEADER..];
            *staged = match codec.encode(block, payload) {
                Encoded::Same(word) => Staged { same: Some(word), ..Staged::default() },
                Encoded::Payload(len, coding) => {
                    let digest = digest(&payload[..len], coding);
                    let record_len = (HEADER + len) as u32;
                    Staged { same: None, record_len, coding: Some(coding), digest }
                }
            };
        }
        *staged_count = blocks.len();
    }

    /// Commits the staged blocks from number `skip` on as the blocks from `first + skip` on. With
    /// `expect`, commits only if the (single) block is still that version.
    ///
    /// Blocks are published in ascending order; a reader sees each block old or new, never half.
    pub fn commit(
        &self,
        session: &mut Session,
        first: u64,
        skip: usize,
        expect: Option<Version>,
    ) -> Progress {
        let count = session.staged_count;
        debug_assert!(first / GROUP as u64 == (first + count as u64 - 1) / GROUP as u64);
        let _pin = session.pin(self);
        let Ok(leaf) = self.index.retain(first, &self.budget) else {
            return Progress { done: skip, blocked: Some(Blocked::Leaf) };
        };
        let (mut done, mut blocked, mut delta) = (skip, None, 0);
        let mut counts = Counts::default();
        let mut early = None;
        if on(Bug::ReserveBeforeLock) {
            early = self.reserve_some(session, done);
        }
        let guard = self.stripe(first);
        let changed = |version| self.version(self.index.load(first)) != version;
        if expect.is_some_and(changed) && !on(Bug::ModifyWithoutCheck) {
            blocked = Some(Blocked::Changed);
        } else {
            keep(guard.as_ref(), first + skip as u64, count - skip);
        }
        while blocked.is_none() && done < count {
            let Some((n, room)) = early.take().or_else(|| self.reserve_some(session, done)) else {
                blocked = Some(Blocked::Segment(session.staged[done].record_len));
                break;
            };
            self.fill(session, first, done..done + n, room);
            let mut offset = room.map_or(0, |r| r.offset);
            for (i, staged) in session.staged[done..done + n].iter().enumerate() {
                let block = first + (done + i) as u64;
                let entry = match (staged.same, room) {
                    (Some(word), _) => Entry::same(word),
                    (None, Some(r)) => {
                        let len = staged.record_len - HEADER as u32;
                        let at = Location { segment: r.segment, offset, len, parts: 0 };
                        offset += staged.record_len;
                        Entry::record(at)
                    }
                    (None, None) => unreachable!("a record without a reservation"),
                };
                let old = self.index.swap(&leaf, block, entry);
                delta += i64::from(old.is_hole());
                self.account(&mut counts, old.home(), entry.home());
            }
            if let Some(room) = room {
                self.segments.filled(room);
            }
            done += n;
        }
        drop(guard);
        self.index.release(&leaf, delta);
        session.count(&counts);
        Progress { done, blocked }
    }

    /// Reserves room for as many staged blocks from `from` on as fit into the open segment, usually
    /// all. `None` when not even the first fits.
    fn reserve_some(&self, session: &Session, from: usize) -> Option<(usize, Option<Reservation>)> {
        let staged = &session.staged[from..session.staged_count];
        let mut n = staged.len();
        let mut bytes: u32 = staged.iter().map(|s| s.record_len).sum();
        loop {
            if bytes == 0 {
                return (n > 0).then_some((n, None));
            }
            if let Ok(room) = self.log.reserve(bytes, false) {
                return Some((n, Some(room)));
            }
            while n > 0 {
                n -= 1;
                if staged[n].record_len > 0 {
                    bytes -= staged[n].record_len;
                    break;
                }
            }
        }
    }

    /// Copies the records of the staged blocks in `range` into their reservation.
    fn fill(
        &self,
        session: &mut Session,
        first: u64,
        range: std::ops::Range<usize>,
        room: Option<Reservation>,
    ) {
        let Some(room) = room else { return };
        let Some(frame) = self.segments.frame(room.segment) else {
            unreachable!("an open segment has a frame")
        };
        let sequence = self.segments.sequence(room.segment);
        let mut offset = room.offset;
        for i in range {
            let staged = session.staged[i];
            let Some(coding) = staged.coding else { continue };
            let len = staged.record_len as usize;
            let record = &mut session.scratch[i * RECORD_MAX..i * RECORD_MAX + len];
            let block = first + i as u64;
            let check = check_word(staged.digest, block, sequence);
            let header = Header { len: (len - HEADER) as u32, coding, block, check };
            record[..HEADER].copy_from_slice(&header.encode());
            self.frames.fill(frame, offset, &[record]);
            offset += staged.record_len;
        }
    }

    /// Counts that a block's home changes from `old` to `new`.
    pub(super) fn account(&self, counts: &mut Counts, old: Home, new: Home) {
        if let Home::Record(at) = old
            && self.segments.has(at.segment)
        {
            self.segments.dead(at.segment, at.share());
        }
        count_block(counts, old, -1);
        count_block(counts, new, 1);
        if let Home::Record(at) = new {
            counts.blocks_raw_total += i64::from(at.len as usize == BLOCK_SIZE);
        }
    }

    /// Makes `count` blocks from `first` on holes, or written zeros with `zeros`. All belong to one
    /// group. Needs no memory: in an absent leaf, blocks stay holes.
    pub fn clear(&self, session: &mut Session, first: u64, count: usize, zeros: bool) {
        debug_assert!(count <= GROUP);
        let _pin = session.pin(self);
        let Some(leaf) = self.index.retain_present(first) else { return };
        let entry = if zeros { Entry::ZERO } else { Entry::HOLE };
        let (mut delta, mut counts) = (0, Counts::default());
        let guard = self.stripe(first);
        keep(guard.as_ref(), first, count);
        for block in first..first + count as u64 {
            self.drop_block(&leaf, block, entry, (&mut delta, &mut counts));
        }
        drop(guard);
        self.index.release(&leaf, delta);
        session.count(&counts);
    }

    /// Makes a block a hole or written zeros, as `entry` says. The caller holds its stripe lock,
    /// and adds up the change of the leaf's entries and the counts.
    pub(super) fn drop_block(
        &self,
        leaf: &Retained,
        block: u64,
        entry: Entry,
        (delta, counts): (&mut i64, &mut Counts),
    ) {
        if self.index.load(block) == entry {
            return;
        }
        let old = self.index.swap(leaf, block, entry);
        *delta += i64::from(old.is_hole()) - i64::from(entry.is_hole());
        counts.blocks_discarded += i64::from(!old.is_hole());
        self.account(counts, old.home(), entry.home());
    }
}

//! One thread's way through a volume: range check, pieces, read-modify-write, counters.

use super::counters::{Counters, Kind, Outcome};
use super::split::{Piece, pieces};
use super::{Channel, IoError, Request, Volume};
use crate::BLOCK_SIZE;
use crate::store::index::LEAF;
use crate::store::{Damaged, GROUP, Session};
use crate::tiers::NoSpace;
use std::sync::Arc;
use std::time::Instant;

/// A [`Channel`] of a [`Volume`].
pub(super) struct VolumeChannel {
    volume: Arc<Volume>,
    session: Session,
    counters: Arc<Counters>,
    /// The block of a read-modify-write.
    block: Box<[u8; BLOCK_SIZE]>,
}

impl From<NoSpace> for IoError {
    fn from(_: NoSpace) -> Self {
        Self::NoSpace
    }
}

impl From<Damaged> for IoError {
    fn from(damaged: Damaged) -> Self {
        Self::Corrupt(damaged.0)
    }
}

impl Channel for VolumeChannel {
    fn submit(&mut self, request: Request<'_>, arrived: Instant) -> Result<(), IoError> {
        let start = Instant::now();
        let (kind, offset, len) = match &request {
            Request::Read { offset, buf } => (Kind::Read, *offset, buf.len() as u64),
            Request::Write { offset, data, .. } => (Kind::Write, *offset, data.len() as u64),
            Request::Flush => (Kind::Flush, 0, 0),
            Request::Discard { offset, len } => (Kind::Discard, *offset, *len),
            Request::WriteZeroes { offset, len, .. } => (Kind::WriteZeroes, *offset, *len),
        };
        let size = self.volume.size_now();
        let result = if offset.checked_add(len).is_none_or(|end| end > size) {
            self.counters.count_invalid();
            Err(IoError::OutOfRange)
        } else {
            self.serve(request)
        };
        let stalled = std::mem::take(&mut self.session.stalled);
        self.counters.count(
            kind,
            Outcome {
                bytes: len,
                failed: result.is_err(),
                waiting: start.saturating_duration_since(arrived) + stalled,
                serving: start.elapsed().saturating_sub(stalled),
            },
        );
        result
    }
}

impl VolumeChannel {
    pub(super) fn new(volume: Arc<Volume>, session: Session, counters: Arc<Counters>) -> Self {
        Self { volume, session, counters, block: Box::new([0; BLOCK_SIZE]) }
    }

    fn serve(&mut self, request: Request<'_>) -> Result<(), IoError> {
        match request {
            Request::Read { offset, buf } => self.read(offset, buf),
            // Memory is as durable as this volume gets: FUA and flush have nothing to wait for. What a
            // write acknowledged, every later read on any thread sees.
            Request::Write { offset, data, fua: _ } => self.write(offset, data),
            Request::Flush => Ok(()),
            Request::Discard { offset, len } => self.zero(offset, len, false),
            Request::WriteZeroes { offset, len, no_hole, fua: _ } => {
                self.zero(offset, len, no_hole)
            }
        }
    }

    fn read(&mut self, offset: u64, mut buf: &mut [u8]) -> Result<(), IoError> {
        for piece in pieces(offset, buf.len() as u64) {
            let (now, rest) = std::mem::take(&mut buf).split_at_mut(piece.bytes());
            buf = rest;
            let store = self.volume.ram().store();
            match piece {
                Piece::Blocks { first, .. } => {
                    let (blocks, _) = now.as_chunks_mut::<BLOCK_SIZE>();
                    store.read_run(&mut self.session, first, blocks)?;
                }
                Piece::Part { block, from, len } => {
                    store.read(&mut self.session, block, &mut self.block)?;
                    now.copy_from_slice(&self.block[from..from + len]);
                }
            }
        }
        Ok(())
    }

    fn write(&mut self, offset: u64, mut data: &[u8]) -> Result<(), IoError> {
        for piece in pieces(offset, data.len() as u64) {
            let (now, rest) = data.split_at(piece.bytes());
            data = rest;
            match piece {
                Piece::Blocks { first, .. } => {
                    let (blocks, _) = now.as_chunks::<BLOCK_SIZE>();
                    self.volume.ram().write(&mut self.session, first, blocks)?;
                }
                Piece::Part { block, from, len } => {
                    self.modify(block, |b| b[from..from + len].copy_from_slice(now))?;
                }
            }
        }
        Ok(())
    }

    /// Read-modify-write: the change is compressed outside of the lock and published only if the block
    /// is still what was read.
    fn modify(
        &mut self,
        block: u64,
        change: impl Fn(&mut [u8; BLOCK_SIZE]),
    ) -> Result<(), IoError> {
        let ram = self.volume.ram();
        loop {
            let entry = ram.store().read(&mut self.session, block, &mut self.block)?;
            change(&mut self.block);
            if ram.write_if(&mut self.session, block, &self.block, entry)? {
                return Ok(());
            }
        }
    }

    /// Makes a range read as zeros: holes, or with `keep` written zeros.
    fn zero(&mut self, offset: u64, len: u64, keep: bool) -> Result<(), IoError> {
        let end = offset + len;
        let mut at = offset;
        while at < end {
            at = match self.zero_leaves(at, end, keep) {
                Some(next) => next,
                None => self.zero_within_leaf(at, end, keep)?,
            };
        }
        Ok(())
    }

    /// Zeroes the whole leaves from `at` on. `None` when `at` begins none.
    fn zero_leaves(&mut self, at: u64, end: u64, keep: bool) -> Option<u64> {
        const LEAF_BYTES: u64 = LEAF * BLOCK_SIZE as u64;
        let leaves = at / LEAF_BYTES..end / LEAF_BYTES;
        if !at.is_multiple_of(LEAF_BYTES) || leaves.is_empty() {
            return None;
        }
        let store = self.volume.ram().store();
        for leaf in leaves.clone() {
            if store.index().is_present(leaf) {
                for group in 0..LEAF / GROUP as u64 {
                    let first = leaf * LEAF + group * GROUP as u64;
                    store.clear(&mut self.session, first, GROUP, false);
                }
            }
        }
        if keep {
            store.index().zero(leaves.clone(), store.epochs(), store.budget());
        } else {
            store.index().unzero(leaves.clone(), store.budget());
        }
        Some(leaves.end * LEAF_BYTES)
    }

    /// Zeroes up to the end of the leaf of `at`, or to `end`.
    fn zero_within_leaf(&mut self, at: u64, end: u64, keep: bool) -> Result<u64, IoError> {
        const LEAF_BYTES: u64 = LEAF * BLOCK_SIZE as u64;
        let stop = end.min((at / LEAF_BYTES + 1) * LEAF_BYTES);
        for piece in pieces(at, stop - at) {
            match piece {
                Piece::Blocks { first, count } => {
                    let store = self.volume.ram().store();
                    store.clear(&mut self.session, first, count, keep);
                }
                Piece::Part { block, from, len } => {
                    let session = &self.session;
                    if !self.volume.ram().store().entry(session, block).is_hole() {
                        self.modify(block, |b| b[from..from + len].fill(0))?;
                    }
                }
            }
        }
        Ok(stop)
    }
}

impl Drop for VolumeChannel {
    fn drop(&mut self) {
        self.volume.leave(&self.session, &self.counters);
    }
}

/// A channel of a volume that has no place for one more thread: every request fails.
pub(super) struct Refused;

impl Channel for Refused {
    fn submit(&mut self, _: Request<'_>, _: Instant) -> Result<(), IoError> {
        Err(IoError::Busy)
    }
}

//! One thread's way through the blocks of a volume: pieces, read-modify-write, zeroing.
//!
//! Invariant: a hand belongs to one thread at a time, and owns all memory that it needs.

use super::device::{Freight, Way};
use super::split::{Piece, each, each_mut, pieces};
use super::{IoError, Ram};
use crate::BLOCK_SIZE;
use crate::store::index::LEAF;
use crate::store::{GROUP, Session};

/// A session, and the block of a read-modify-write.
pub(super) struct Hand {
    pub(super) session: Session,
    block: Box<[u8; BLOCK_SIZE]>,
}

impl Hand {
    pub(super) fn new(session: Session) -> Self {
        Self { session, block: Box::new([0; BLOCK_SIZE]) }
    }

    pub(super) fn read(&mut self, ram: &Ram, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        each_mut(offset, buf, |piece, now| {
            match piece {
                Piece::Blocks { first, .. } => {
                    let (blocks, _) = now.as_chunks_mut::<BLOCK_SIZE>();
                    ram.read_run(&mut self.session, first, blocks)?;
                }
                Piece::Part { block, from, len } => {
                    ram.read(&mut self.session, block, &mut self.block)?;
                    now.copy_from_slice(&self.block[from..from + len]);
                }
            }
            Ok(())
        })
    }

    pub(super) fn write(&mut self, ram: &Ram, offset: u64, data: &[u8]) -> Result<(), IoError> {
        each(offset, data, |piece, now| {
            match piece {
                Piece::Blocks { first, .. } => {
                    let (blocks, _) = now.as_chunks::<BLOCK_SIZE>();
                    ram.write(&mut self.session, first, blocks)?;
                }
                Piece::Part { block, from, len } => {
                    self.modify(ram, block, |b| b[from..from + len].copy_from_slice(now))?;
                }
            }
            Ok(())
        })
    }

    /// Moves the part of a request of `offset` that begins `at` bytes into it, through `part`.
    pub(super) fn ship(
        &mut self,
        ram: &Ram,
        way: Way,
        offset: u64,
        freight: &dyn Freight,
        at: usize,
        part: &mut [u8],
    ) -> Result<(), IoError> {
        let from = offset + at as u64;
        match way {
            Way::Out => {
                self.read(ram, from, part)?;
                freight.give(at, part)
            }
            Way::In => {
                freight.take(at, part)?;
                self.write(ram, from, part)
            }
        }
    }

    /// Read-modify-write: the change is compressed outside of the lock and published only if the
    /// block is still what was read.
    fn modify(
        &mut self,
        ram: &Ram,
        block: u64,
        change: impl Fn(&mut [u8; BLOCK_SIZE]),
    ) -> Result<(), IoError> {
        loop {
            let entry = ram.read(&mut self.session, block, &mut self.block)?;
            change(&mut self.block);
            if ram.write_if(&mut self.session, block, &self.block, entry)? {
                return Ok(());
            }
        }
    }

    /// Makes a range read as zeros: holes, or with `keep` written zeros.
    pub(super) fn zero(
        &mut self,
        ram: &Ram,
        offset: u64,
        len: u64,
        keep: bool,
    ) -> Result<(), IoError> {
        let end = offset + len;
        let mut at = offset;
        while at < end {
            at = match self.zero_leaves(ram, at, end, keep) {
                Some(next) => next,
                None => self.zero_within_leaf(ram, at, end, keep)?,
            };
        }
        Ok(())
    }

    /// Zeroes the whole leaves from `at` on. `None` when `at` begins none.
    fn zero_leaves(&mut self, ram: &Ram, at: u64, end: u64, keep: bool) -> Option<u64> {
        const LEAF_BYTES: u64 = LEAF * BLOCK_SIZE as u64;
        let leaves = at / LEAF_BYTES..end / LEAF_BYTES;
        if !at.is_multiple_of(LEAF_BYTES) || leaves.is_empty() {
            return None;
        }
        let store = ram.store();
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
    fn zero_within_leaf(
        &mut self,
        ram: &Ram,
        at: u64,
        end: u64,
        keep: bool,
    ) -> Result<u64, IoError> {
        const LEAF_BYTES: u64 = LEAF * BLOCK_SIZE as u64;
        let stop = end.min((at / LEAF_BYTES + 1) * LEAF_BYTES);
        for piece in pieces(at, stop - at) {
            match piece {
                Piece::Blocks { first, count } => {
                    let store = ram.store();
                    store.clear(&mut self.session, first, count, keep);
                }
                Piece::Part { block, from, len } => {
                    let session = &self.session;
                    if !ram.store().entry(session, block).is_hole() {
                        self.modify(ram, block, |b| b[from..from + len].fill(0))?;
                    }
                }
            }
        }
        Ok(stop)
    }
}

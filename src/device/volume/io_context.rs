//! One thread's reads and writes on the blocks of a volume: pieces, read-modify-write, zeroing.
//!
//! Invariant: one thread at a time uses an I/O context, which owns all memory that it needs.

use crate::BLOCK_SIZE;
use crate::GROUP;
use crate::device::contract::{DataMover, IoError, Way};
use crate::device::split::{Piece, Split, each, each_mut};
use crate::ram::Ram;
use crate::ram::store::Session;
use crate::ram::store::index::LEAF;
use std::ops::Range;

/// A session, and the buffer for a read-modify-write.
pub(super) struct IoContext {
    pub(super) session: Session,
    block: Box<[u8; BLOCK_SIZE]>,
}

impl IoContext {
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

    /// Moves a part of the request at `offset` through the buffer `part`; it begins `at` bytes into
    /// the request.
    pub(super) fn ship(
        &mut self,
        ram: &Ram,
        way: Way,
        offset: u64,
        mover: &dyn DataMover,
        at: usize,
        part: &mut [u8],
    ) -> Result<(), IoError> {
        let from = offset + at as u64;
        match way {
            Way::Out => {
                self.read(ram, from, part)?;
                mover.copy_out(at, part)
            }
            Way::In => {
                mover.copy_in(at, part)?;
                self.write(ram, from, part)
            }
        }
    }

    /// Read-modify-write: compresses the changed block without the lock, and publishes it only if
    /// the block was not written meanwhile.
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

    /// Zeroes a range: makes holes, or with `keep` written zeros. Whole blocks go first: a partial
    /// block is written anew, and in a full volume the whole blocks free the room for that.
    pub(super) fn zero(
        &mut self,
        ram: &Ram,
        offset: u64,
        len: u64,
        keep: bool,
    ) -> Result<(), IoError> {
        let Split { blocks, parts } = Split::new(offset, len);
        let mut at = blocks.start;
        while at < blocks.end {
            at = match self.zero_leaves(ram, at..blocks.end, keep) {
                Some(next) => next,
                None => self.zero_within_leaf(ram, at..blocks.end, keep),
            };
        }
        for (block, bytes) in parts.into_iter().flatten() {
            if !ram.store().entry(&self.session, block).is_hole() {
                self.modify(ram, block, |b| b[bytes.clone()].fill(0))?;
            }
        }
        Ok(())
    }

    /// Zeroes the whole leaves at the start of `blocks`, and returns the block behind them. `None`
    /// if no whole leaf begins there.
    fn zero_leaves(&mut self, ram: &Ram, blocks: Range<u64>, keep: bool) -> Option<u64> {
        let leaves = blocks.start / LEAF..blocks.end / LEAF;
        if !blocks.start.is_multiple_of(LEAF) || leaves.is_empty() {
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
        Some(leaves.end * LEAF)
    }

    /// Zeroes `blocks` up to the end of the first block's leaf, and returns the block behind them.
    fn zero_within_leaf(&mut self, ram: &Ram, blocks: Range<u64>, keep: bool) -> u64 {
        let end = blocks.end.min((blocks.start / LEAF + 1) * LEAF);
        let mut at = blocks.start;
        while at < end {
            let stop = end.min((at / GROUP as u64 + 1) * GROUP as u64);
            ram.store().clear(&mut self.session, at, (stop - at) as usize, keep);
            at = stop;
        }
        end
    }
}

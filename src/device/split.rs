//! Splits byte ranges into blocks. Pure.

use crate::BLOCK_SIZE;
use crate::GROUP;
use std::ops::Range;

const BLOCK: u64 = BLOCK_SIZE as u64;

/// A piece of a request, served in one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Piece {
    /// Whole blocks of one group.
    Blocks {
        /// The first block.
        first: u64,
        /// Number of blocks, 1 to [`GROUP`].
        count: usize,
    },
    /// Part of one block.
    Part {
        /// The block.
        block: u64,
        /// First byte within it.
        from: usize,
        /// Bytes, fewer than a block.
        len: usize,
    },
}

impl Piece {
    /// Bytes of the request that the piece covers.
    pub fn bytes(self) -> usize {
        match self {
            Self::Blocks { count, .. } => count * BLOCK_SIZE,
            Self::Part { len, .. } => len,
        }
    }
}

/// The pieces of `len` bytes from `offset` on, in order.
pub fn pieces(offset: u64, len: u64) -> impl Iterator<Item = Piece> {
    let end = offset + len;
    let mut at = offset;
    std::iter::from_fn(move || {
        if at >= end {
            return None;
        }
        let (block, from) = (at / BLOCK, (at % BLOCK) as usize);
        let piece = if from != 0 || end - at < BLOCK {
            let len = (BLOCK_SIZE - from).min((end - at) as usize);
            Piece::Part { block, from, len }
        } else {
            let in_group = GROUP - block as usize % GROUP;
            let in_range = ((end - at) / BLOCK).min(GROUP as u64) as usize;
            Piece::Blocks { first: block, count: in_group.min(in_range) }
        };
        at += piece.bytes() as u64;
        Some(piece)
    })
}

/// A range as its whole blocks and what is around them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Split {
    /// The whole blocks of the range.
    pub blocks: Range<u64>,
    /// The partial blocks at its ends: the block, and the bytes of it in the range.
    pub parts: [Option<(u64, Range<usize>)>; 2],
}

impl Split {
    /// The range of `len` bytes from `offset` on.
    pub fn new(offset: u64, len: u64) -> Self {
        let end = offset + len;
        let (first, last) = (offset.div_ceil(BLOCK), end / BLOCK);
        let part = |from: u64, to: u64| {
            let block = from / BLOCK;
            let within = |at: u64| (at - block * BLOCK) as usize;
            (from < to).then(|| (block, within(from)..within(to)))
        };
        if first > last {
            return Self { blocks: 0..0, parts: [part(offset, end), None] };
        }
        let parts = [part(offset, first * BLOCK), part(last * BLOCK, end)];
        Self { blocks: first..last, parts }
    }

    /// The bytes of the whole blocks; `None` without any.
    pub fn whole(&self) -> Option<Range<u64>> {
        let Range { start, end } = self.blocks;
        (start < end).then_some(start * BLOCK..end * BLOCK)
    }
}

/// Calls `serve` with each piece of a range and its part of `buf`, in order, until one fails.
pub fn each_mut<E>(
    offset: u64,
    mut buf: &mut [u8],
    mut serve: impl FnMut(Piece, &mut [u8]) -> Result<(), E>,
) -> Result<(), E> {
    for piece in pieces(offset, buf.len() as u64) {
        let (now, rest) = std::mem::take(&mut buf).split_at_mut(piece.bytes());
        buf = rest;
        serve(piece, now)?;
    }
    Ok(())
}

/// Calls `serve` with each piece of a range and its part of `data`, in order, until one fails.
pub fn each<E>(
    offset: u64,
    mut data: &[u8],
    mut serve: impl FnMut(Piece, &[u8]) -> Result<(), E>,
) -> Result<(), E> {
    for piece in pieces(offset, data.len() as u64) {
        let (now, rest) = data.split_at(piece.bytes());
        data = rest;
        serve(piece, now)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 8 } else { 512 }))]
        #[test]
        fn pieces_cover_the_range_once_in_order(offset in 0u64..1 << 20, len in 0u64..1 << 19) {
            let mut at = offset;
            for piece in pieces(offset, len) {
                prop_assert!(piece.bytes() > 0);
                match piece {
                    Piece::Blocks { first, count } => {
                        prop_assert_eq!(first * BLOCK, at);
                        let group = GROUP as u64;
                        prop_assert_eq!(first / group, (first + count as u64 - 1) / group);
                    }
                    Piece::Part { block, from, len } => {
                        prop_assert_eq!(block * BLOCK + from as u64, at);
                        prop_assert!(from + len <= BLOCK_SIZE && len < BLOCK_SIZE);
                    }
                }
                at += piece.bytes() as u64;
            }
            prop_assert_eq!(at, offset + len);
        }

        #[test]
        fn a_split_range_is_the_range(offset in 0u64..1 << 20, len in 0u64..1 << 15) {
            let split = Split::new(offset, len);
            let mut ranges: Vec<_> = split.whole().into_iter().collect();
            for (block, bytes) in split.parts.into_iter().flatten() {
                prop_assert!(!bytes.is_empty() && bytes.end <= BLOCK_SIZE);
                prop_assert!(bytes.len() < BLOCK_SIZE);
                ranges.push(block * BLOCK + bytes.start as u64..block * BLOCK + bytes.end as u64);
            }
            ranges.retain(|range| !range.is_empty());
            ranges.sort_by_key(|range| range.start);
            let mut at = offset;
            for range in ranges {
                prop_assert_eq!(range.start, at);
                at = range.end;
            }
            prop_assert_eq!(at, offset + len);
        }
    }
}

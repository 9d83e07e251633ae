//! The shard map: which shard has a block, and the block's key there.
//!
//! Groups of [`GROUP`] blocks are distributed in rounds. A round gives each shard one group, in an
//! order of its own, so that no stride falls on one shard only. A key is the round and the place in
//! the group: about a block's number divided by the number of shards, so that 4 bytes are enough
//! for large drives.

use super::flights::GROUP;
use super::table::{KEYS, spread};
use std::ops::Range;

/// How groups are distributed.
#[derive(Clone, Copy, Debug)]
pub struct ShardMap {
    /// There are 2 to the power of `bits` shards.
    bits: u32,
}

/// Neighbouring blocks of one group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece {
    /// The first block.
    pub first: u64,
    /// How many there are.
    pub count: u64,
    /// The shard that has them.
    pub shard: usize,
    /// The shard's key of the first block; the others follow.
    pub key: u32,
}

impl ShardMap {
    /// A map for `shards` shards, a power of two.
    pub fn new(shards: usize) -> Self {
        debug_assert!(shards.is_power_of_two());
        Self { bits: shards.trailing_zeros() }
    }

    /// Blocks from here on belong to no shard: no key is left for them.
    pub fn end(&self) -> u64 {
        (KEYS / GROUP * GROUP) << self.bits
    }

    fn turn(&self, round: u64) -> u64 {
        u64::from(spread(round as u32)) & ((1 << self.bits) - 1)
    }

    /// The pieces of a range, in order, as far as it belongs to shards.
    pub fn pieces(self, blocks: Range<u64>) -> impl Iterator<Item = Piece> {
        let (mut at, end) = (blocks.start, blocks.end.min(self.end()));
        std::iter::from_fn(move || {
            if at >= end {
                return None;
            }
            let (first, group) = (at, at / GROUP);
            at = end.min((group + 1) * GROUP);
            let round = group >> self.bits;
            let shard = (group ^ self.turn(round)) & ((1 << self.bits) - 1);
            let key = (round * GROUP + first % GROUP) as u32;
            Some(Piece { first, count: at - first, shard: shard as usize, key })
        })
    }

    /// The block whose key in `shard` is `key`.
    pub fn block(&self, shard: usize, key: u32) -> u64 {
        let round = u64::from(key) / GROUP;
        let turn = (shard as u64 ^ self.turn(round)) & ((1 << self.bits) - 1);
        (round << self.bits | turn) * GROUP + u64::from(key) % GROUP
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn every_block_has_one_shard_and_key() {
        for shards in [1, 2, 16] {
            let shard_map = ShardMap::new(shards);
            let most = shard_map.end();
            for blocks in [0..1000, 63..65, 5..6, 1 << 30..(1 << 30) + 300, most - 100..most + 100]
            {
                let mut at = blocks.start;
                for piece in shard_map.pieces(blocks.clone()) {
                    assert_eq!(piece.first, at);
                    assert!(piece.count > 0 && piece.shard < shards);
                    assert_eq!(piece.first / GROUP, (piece.first + piece.count - 1) / GROUP);
                    for i in 0..piece.count {
                        assert_eq!(
                            shard_map.block(piece.shard, piece.key + i as u32),
                            piece.first + i
                        );
                    }
                    at += piece.count;
                }
                assert_eq!(at, blocks.end.min(most));
            }
        }
        assert!(
            ShardMap::new(1).end() * 4096 > 15 << 40 && ShardMap::new(16).end() * 4096 > 250 << 40
        );
    }

    #[test]
    fn no_stride_asks_one_shard_only() {
        let shard_map = ShardMap::new(16);
        for stride in [16, 64, 256, 1024] {
            let mut asked = [0; 16];
            for i in 0..1600 {
                let at = i * stride * GROUP;
                asked[shard_map.pieces(at..at + 1).next().unwrap().shard] += 1;
            }
            assert!(asked.iter().all(|n| (50..200).contains(n)), "{stride}: {asked:?}");
        }
    }
}

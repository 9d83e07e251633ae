//! Blocks of a write, some of them as they are stored: compressed.

use super::{Buffer, PAGE};
use crate::codec::{Algorithm, Codec, Coding};
use bytes::Bytes;

/// A compressed block.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PackedBlock {
    /// How it is coded: as a block of its own.
    pub coding: Coding,
    /// The bytes, which may be a part of what was read with them.
    pub bytes: Bytes,
}

/// A block of a write.
#[derive(Clone, Copy, Debug)]
pub enum Given<'a> {
    /// Compressed.
    Packed(&'a PackedBlock),
    /// As it is.
    Plain(&'a [u8; PAGE]),
}

/// The blocks of a write, in order.
///
/// Invariant: for each of `packed` that is none, and for each block beyond, `plain` has one.
#[derive(Clone, Copy, Debug)]
pub struct Blocks<'a> {
    packed: &'a [Option<PackedBlock>],
    plain: &'a [[u8; PAGE]],
}

impl<'a> Blocks<'a> {
    /// Blocks of which none is packed.
    pub fn plain(plain: &'a [[u8; PAGE]]) -> Self {
        Self { packed: &[], plain }
    }

    /// The blocks, if none is packed.
    pub fn as_plain(self) -> Option<&'a [[u8; PAGE]]> {
        self.packed.is_empty().then_some(self.plain)
    }

    /// The number of blocks.
    pub fn count(self) -> usize {
        self.packed.iter().flatten().count() + self.plain.len()
    }

    /// The blocks one by one.
    pub fn iter(self) -> impl Iterator<Item = Given<'a>> {
        (0..self.count()).scan(self, |left, _| {
            let (first, others) = left.split_at(1);
            *left = others;
            Some(first.at(0))
        })
    }

    /// The `n`-th block.
    ///
    /// # Panics
    /// There is none.
    pub fn at(self, n: usize) -> Given<'a> {
        let before = &self.packed[..n.min(self.packed.len())];
        match self.packed.get(n) {
            Some(Some(packed)) => Given::Packed(packed),
            _ => Given::Plain(&self.plain[n - before.iter().flatten().count()]),
        }
    }

    /// The first blocks, `count` of them, and the others.
    pub fn split_at(self, count: usize) -> (Self, Self) {
        let (packed, others) = self.packed.split_at(count.min(self.packed.len()));
        let plain = count - packed.iter().flatten().count();
        let (plain, rest) = self.plain.split_at(plain);
        (Self { packed, plain }, Self { packed: others, plain: rest })
    }

    /// All blocks as they are, each with whether it could be decoded.
    pub fn unpack(self) -> (Buffer, Vec<bool>) {
        let mut whole = Buffer::new(self.count() * PAGE);
        let mut codec = Codec::new(Algorithm::None);
        let decode = |(given, out): (Given<'_>, &mut [u8; PAGE])| match given {
            Given::Packed(PackedBlock { coding, bytes }) => codec.decode(*coding, bytes, out),
            Given::Plain(block) => {
                out.copy_from_slice(block);
                true
            }
        };
        let good = self.iter().zip(whole.as_chunks_mut().0).map(decode).collect();
        (whole, good)
    }
}

/// The blocks of a write, which are kept until it is done.
pub struct PackedRun {
    packed: Vec<Option<PackedBlock>>,
    plain: Buffer,
    /// Blocks of `plain` that count.
    count: usize,
}

impl PackedRun {
    /// Blocks that are packed, and for each of `packed` that is none the next block of `plain`.
    pub fn new(packed: Vec<Option<PackedBlock>>, plain: Buffer) -> Self {
        let count = packed.iter().filter(|packed| packed.is_none()).count();
        debug_assert!(count * PAGE <= plain.len());
        Self { packed, plain, count }
    }

    /// The blocks.
    pub fn blocks(&self) -> Blocks<'_> {
        Blocks { packed: &self.packed, plain: &self.plain.as_chunks().0[..self.count] }
    }
}

impl std::fmt::Debug for PackedRun {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "PackedRun({} blocks)", self.packed.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "calls the C library")]
    fn blocks_stay_in_order() {
        let packed =
            |byte: u8| Some(PackedBlock { coding: Coding::Raw, bytes: vec![byte; PAGE].into() });
        let mut plain = Buffer::new(3 * PAGE);
        plain[..PAGE].fill(2);
        plain[PAGE..2 * PAGE].fill(4);
        let damaged = PackedBlock { coding: Coding::Lz4, bytes: vec![0xff; 3].into() };
        let run = PackedRun::new(vec![packed(1), None, packed(3), None, Some(damaged)], plain);
        let blocks = run.blocks();
        assert_eq!(blocks.count(), 5);
        for mid in 0..=5 {
            let (first, rest) = blocks.split_at(mid);
            assert_eq!((first.count(), rest.count()), (mid, 5 - mid));
            assert!(
                (0..mid).all(|n| matches!(first.at(n), Given::Packed(_)) == (n != 1 && n != 3))
            );
            let ((first, _), (rest, good)) = (first.unpack(), rest.unpack());
            let both = [&first[..], &rest[..]].concat();
            let found: Vec<u8> = both.chunks(PAGE).map(|block| block[0]).take(4).collect();
            assert_eq!(found, [1, 2, 3, 4], "{mid}");
            assert_eq!(good.last(), (mid < 5).then_some(&false));
        }
        let (first, rest) = Blocks::plain(&[[7; PAGE]; 3]).split_at(1);
        assert_eq!((first.count(), rest.iter().count()), (1, 2));
    }
}

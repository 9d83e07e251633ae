//! Clusters: neighbouring blocks that are compressed into one payload, which is smaller.
//!
//! Invariants: a payload is one zstd frame, padded to whole granules with at least one byte: zeros,
//! and in the last byte the number of bytes of padding. So one CRC covers the payload, and entries
//! need not store the length of the frame. A frame this short is one zstd block, which decodes as a
//! whole: to read a part costs what all of it costs.

use super::format::{CLUSTER, CLUSTER_MAX, GRANULE, Kind};
use crate::BLOCK_SIZE;
use crate::codec::{Codec, Coding};
use crate::log::planted::{self, Bug};

const _: () = assert!(GRANULE <= u8::MAX as u32);

impl Kind {
    /// The kind of a block's own payload. One block is never encoded as a cluster.
    pub fn of(coding: Coding) -> Self {
        match coding {
            Coding::Lz4 => Self::Lz4,
            Coding::Zstd => Self::Zstd,
            Coding::Fill => Self::Same,
            Coding::Raw | Coding::Cluster(_) => Self::Raw,
        }
    }

    /// How a block's own payload is coded; `None`: this is no kind of those.
    pub fn coding(self) -> Option<Coding> {
        match self {
            Self::Raw => Some(Coding::Raw),
            Self::Lz4 => Some(Coding::Lz4),
            Self::Zstd => Some(Coding::Zstd),
            Self::Same => Some(Coding::Fill),
            Self::Zeros | Self::Lost | Self::Summary | Self::Cluster => None,
        }
    }
}

/// Decodes a block's own payload; `false` when it does not decode.
pub fn decode(codec: &mut Codec, kind: Kind, payload: &[u8], out: &mut [u8; BLOCK_SIZE]) -> bool {
    kind.coding().is_some_and(|coding| codec.decode(coding, payload, out))
}

/// Compresses neighbouring blocks into the payload of a cluster; `false`, and an empty `out`, if
/// that is not smaller.
pub fn encode(codec: &mut Codec, blocks: &[[u8; BLOCK_SIZE]; CLUSTER], out: &mut Vec<u8>) -> bool {
    out.resize(CLUSTER_MAX as usize, 0);
    let frame = codec.shrink_together(blocks, &mut out[..CLUSTER_MAX as usize - 1]);
    let Some(frame) = frame else {
        out.clear();
        return false;
    };
    let len = (frame + 1).next_multiple_of(GRANULE as usize);
    out.truncate(len);
    out[frame..].fill(0);
    out[len - 1] = (len - frame) as u8;
    true
}

/// The frame in the payload of a cluster; `None` if it is no such payload.
fn frame(payload: &[u8]) -> Option<&[u8]> {
    let padding = usize::from(*payload.last()?);
    if padding == 0 || padding > GRANULE as usize {
        return None;
    }
    let (frame, padding) = payload.split_at_checked(payload.len().checked_sub(padding)?)?;
    let (_, zeros) = padding.split_last()?;
    zeros.iter().all(|byte| *byte == 0).then_some(frame)
}

/// A buffer to decode a cluster of which only a part is wanted.
pub struct Unpacked(Box<[[u8; BLOCK_SIZE]; CLUSTER]>);

impl Default for Unpacked {
    fn default() -> Self {
        Self(Box::new([[0; BLOCK_SIZE]; CLUSTER]))
    }
}

impl Unpacked {
    /// Decodes a payload into neighbouring blocks from `first` on: one, or some of a cluster.
    /// `false` when it does not decode.
    pub fn decode(
        &mut self,
        codec: &mut Codec,
        kind: Kind,
        payload: &[u8],
        first: u64,
        out: &mut [[u8; BLOCK_SIZE]],
    ) -> bool {
        if kind != Kind::Cluster {
            let [block] = out else { return false };
            return decode(codec, kind, payload, block);
        }
        let Some(frame) = frame(payload) else { return false };
        if out.len() == CLUSTER {
            return codec.decode_together(frame, out);
        }
        let at = if planted::on(Bug::FirstOfCluster) { 0 } else { first as usize % CLUSTER };
        if !codec.decode_together(frame, &mut *self.0) {
            return false;
        }
        let part = self.0.get(at..at + out.len());
        part.map(|part| out.copy_from_slice(part)).is_some()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::codec::Algorithm;
    use proptest::prelude::*;

    /// Blocks of which the first `noise` bytes are noise.
    fn blocks(noise: usize, mut x: u64) -> [[u8; BLOCK_SIZE]; CLUSTER] {
        let mut blocks = [[7; BLOCK_SIZE]; CLUSTER];
        for byte in blocks.iter_mut().flat_map(|block| &mut block[..noise]) {
            x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            *byte = (x >> 56) as u8;
        }
        blocks
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 200 }))]
        #[test]
        #[cfg_attr(miri, ignore = "calls the C libraries")]
        fn a_cluster_gives_back_every_part(
            noise in 0usize..4000, seed: u64, at in 0usize..CLUSTER,
        ) {
            let (mut codec, mut unpacked) = (Codec::new(Algorithm::Lz4), Unpacked::default());
            let (blocks, mut payload) = (blocks(noise, seed), Vec::new());
            prop_assert!(encode(&mut codec, &blocks, &mut payload));
            prop_assert!(payload.len().is_multiple_of(GRANULE as usize));
            prop_assert!(payload.len() <= CLUSTER_MAX as usize);
            for len in 1..=CLUSTER - at {
                let mut out = vec![[0; BLOCK_SIZE]; len];
                let first = (CLUSTER * 5 + at) as u64;
                let kind = Kind::Cluster;
                prop_assert!(unpacked.decode(&mut codec, kind, &payload, first, &mut out));
                prop_assert!(out == blocks[at..at + len]);
            }
        }

        #[test]
        #[cfg_attr(miri, ignore = "calls the C libraries")]
        fn malformed_clusters_are_refused_not_followed(
            payload in prop::collection::vec(any::<u8>(), 0..600), flip in any::<(usize, u8)>(),
        ) {
            let (mut codec, mut unpacked) = (Codec::new(Algorithm::Lz4), Unpacked::default());
            let mut out = [[0; BLOCK_SIZE]; 2];
            unpacked.decode(&mut codec, Kind::Cluster, &payload, 1, &mut out);
            let mut damaged = Vec::new();
            encode(&mut codec, &blocks(100, 1), &mut damaged);
            let at = flip.0 % damaged.len();
            damaged[at] ^= flip.1;
            unpacked.decode(&mut codec, Kind::Cluster, &damaged, 1, &mut out);
        }
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls the C libraries")]
    fn what_does_not_shrink_is_no_cluster() {
        let (mut codec, mut out) = (Codec::new(Algorithm::Lz4), vec![1]);
        assert!(!encode(&mut codec, &blocks(BLOCK_SIZE, 3), &mut out) && out.is_empty());
    }

    #[test]
    fn padding_is_all_there_or_the_payload_is_none() {
        assert_eq!(frame(&[9, 9, 1]), Some(&[9, 9][..]));
        assert_eq!(frame(&[9, 0, 0, 3]), Some(&[9][..]));
        for wrong in [&[][..], &[0], &[9, 9, 0], &[9, 5, 0, 3], &[0, 3], &[17; 20]] {
            assert_eq!(frame(wrong), None, "{wrong:?}");
        }
    }
}

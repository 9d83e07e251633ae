//! How blocks are compressed for a log: each by itself, or some together as a cluster.
//!
//! Invariants: a cluster consists of whole, aligned blocks of one request, and is kept only where
//! [`together`] says that it pays; none of its blocks is same-filled. The core knows of nothing
//! here before it is appended.

use crate::BLOCK_SIZE;
use crate::GROUP;
use crate::codec::together;
use crate::codec::{self, Algorithm, Codec, Encoded};
use crate::log::disk::cluster;
use crate::log::disk::format::{CLUSTER, Kind};

/// After this many attempts in a row that did not pay, most attempts are skipped.
const HOPELESS: u32 = 16;
/// Then one attempt in this many is made for single blocks: it costs a tenth of everything else.
const RETRY_ALONE: u32 = 64;
/// Then one attempt in this many is made for clusters.
const RETRY_TOGETHER: u32 = 16;

/// Attempts in a row that did not pay or were skipped.
#[derive(Default)]
struct InVain(u32);

impl InVain {
    fn may_try(&self, retry: u32) -> bool {
        self.0 < HOPELESS || self.0.is_multiple_of(retry)
    }

    fn note(&mut self, paid: bool) {
        self.0 = if paid { 0 } else { self.0.wrapping_add(1) };
    }
}

/// A payload of a block that is written or read.
pub(super) struct Payload {
    kind: Kind,
    /// Bytes of an encoded payload; 0 where the block itself is the payload.
    len: usize,
    pub(super) bytes: Vec<u8>,
}

/// One thread's codec, and the payloads of one group of blocks.
pub(super) struct Packing {
    algorithm: Algorithm,
    pub(super) codec: Codec,
    /// Payloads of the group's blocks.
    pub(super) payloads: Vec<Payload>,
    /// Payloads of the group's clusters; empty where blocks are encoded one by one.
    clusters: [Vec<u8>; GROUP / CLUSTER],
    /// The log's backlog at this thread's last write: bytes that waited for the drive, and the most
    /// that may.
    pub(super) backlog: (u64, u64),
    /// Attempts for single blocks.
    alone: InVain,
    /// Attempts for clusters.
    together: InVain,
}

impl Packing {
    pub(super) fn new(algorithm: Algorithm) -> Self {
        Self {
            algorithm,
            codec: Codec::new(algorithm),
            payloads: (0..GROUP)
                .map(|_| Payload { kind: Kind::Raw, len: 0, bytes: vec![0; BLOCK_SIZE] })
                .collect(),
            clusters: Default::default(),
            backlog: (0, u64::MAX),
            alone: InVain::default(),
            together: InVain::default(),
        }
    }

    /// Encodes blocks of a group, from block `first` on: whole clusters together if that pays.
    pub(super) fn encode_all(&mut self, first: u64, blocks: &[[u8; BLOCK_SIZE]]) {
        let tries = together::tries_together(self.algorithm, self.backlog);
        let mut i = 0;
        while i < blocks.len() {
            let begins = (first + i as u64).is_multiple_of(CLUSTER as u64);
            let whole = blocks[i..].first_chunk().filter(|_| begins);
            match whole {
                Some(whole) if self.algorithm == Algorithm::Zstd => {
                    if !self.encode_together(i, whole, CLUSTER * BLOCK_SIZE) {
                        self.encode_apart(i, whole);
                    }
                    i += CLUSTER;
                }
                Some(whole) => {
                    self.encode_apart(i, whole);
                    let apart = if tries { self.apart(i) } else { None };
                    if let Some(apart) = apart {
                        self.encode_together(i, whole, apart);
                    }
                    i += CLUSTER;
                }
                None => {
                    self.clusters[i / CLUSTER].clear();
                    self.encode(i, &blocks[i]);
                    i += 1;
                }
            }
        }
    }

    /// Encodes the blocks from the `i`-th on one by one.
    pub(super) fn encode_apart(&mut self, i: usize, blocks: &[[u8; BLOCK_SIZE]; CLUSTER]) {
        self.clusters[i / CLUSTER].clear();
        for (i, block) in (i..).zip(blocks) {
            self.encode(i, block);
        }
    }

    /// Bytes that the blocks of a cluster take one by one. `None`: they hardly shrink, or one of
    /// them is same-filled.
    fn apart(&self, i: usize) -> Option<usize> {
        let lens = self.payloads[i..i + CLUSTER].iter().map(|payload| match payload.kind {
            Kind::Raw => Some(BLOCK_SIZE),
            Kind::Lz4 | Kind::Zstd => Some(payload.len),
            _ => None,
        });
        let sum = lens.sum::<Option<usize>>()?;
        together::pays_together(sum, CLUSTER * BLOCK_SIZE).then_some(sum)
    }

    /// Encodes the blocks from the `i`-th on as a cluster, if that pays; whether it does.
    fn encode_together(
        &mut self,
        i: usize,
        blocks: &[[u8; BLOCK_SIZE]; CLUSTER],
        apart: usize,
    ) -> bool {
        let folds = |block| codec::fold(block, &mut [0; 8]).is_some();
        if blocks.iter().any(folds) {
            return false;
        }
        let out = &mut self.clusters[i / CLUSTER];
        let pays = self.together.may_try(RETRY_TOGETHER)
            && cluster::encode(&mut self.codec, blocks, out)
            && together::pays_together(out.len(), apart);
        if !pays {
            out.clear();
        }
        self.together.note(pays);
        pays
    }

    /// The payload of the `i`-th block, with its kind and the number of blocks in it.
    pub(super) fn encoded<'a>(
        &'a self,
        first: u64,
        i: usize,
        block: &'a [u8; BLOCK_SIZE],
    ) -> (Kind, &'a [u8], usize) {
        let cluster = &self.clusters[i / CLUSTER];
        if (first + i as u64).is_multiple_of(CLUSTER as u64) && !cluster.is_empty() {
            return (Kind::Cluster, cluster, CLUSTER);
        }
        match &self.payloads[i] {
            Payload { kind: Kind::Raw, .. } => (Kind::Raw, block, 1),
            Payload { kind, len, bytes } => (*kind, &bytes[..*len], 1),
        }
    }

    /// How many blocks in a row are zeros, from the `i`-th on.
    pub(super) fn zeros(&self, first: u64, i: usize, blocks: &[[u8; BLOCK_SIZE]]) -> u64 {
        let kinds = (i..blocks.len()).map(|i| self.encoded(first, i, &blocks[i]).0);
        kinds.take_while(|kind| *kind == Kind::Zeros).count() as u64
    }

    /// Encodes a block as the `i`-th payload. A block that does not shrink is not copied.
    fn encode(&mut self, i: usize, block: &[u8; BLOCK_SIZE]) {
        let Payload { kind, len: used, bytes: out } = &mut self.payloads[i];
        // Only a read leaves it shorter.
        out.resize(BLOCK_SIZE, 0);
        let encoded = codec::fold(block, out).or_else(|| {
            let may_try = self.alone.may_try(RETRY_ALONE);
            let shrunk = if may_try { self.codec.shrink(block, out) } else { None };
            self.alone.note(shrunk.is_some());
            shrunk
        });
        (*kind, *used) = match encoded {
            Some(Encoded::Same(0)) => (Kind::Zeros, 0),
            Some(encoded) => {
                let (len, coding) = encoded.spelled(out);
                (Kind::of(coding), len)
            }
            None => (Kind::Raw, 0),
        };
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    /// Blocks of text with their numbers, each with `noise` bytes of noise.
    fn blocks(count: usize, noise: usize) -> Vec<[u8; BLOCK_SIZE]> {
        let mut x = 1u64;
        let block = |n: usize| {
            let mut block = [0; BLOCK_SIZE];
            let text = format!("block {n} of many, which differ little; ");
            for (i, (byte, text)) in block.iter_mut().zip(text.bytes().cycle()).enumerate() {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = if i < noise { (x >> 56) as u8 } else { text };
            }
            block
        };
        (0..count).map(block).collect()
    }

    /// The index of the first block of each payload, for blocks from `first` on, and its kind.
    fn kinds(packing: &mut Packing, first: u64, blocks: &[[u8; BLOCK_SIZE]]) -> Vec<(usize, Kind)> {
        packing.encode_all(first, blocks);
        let (mut i, mut kinds) = (0, Vec::new());
        while i < blocks.len() {
            let (kind, _, count) = packing.encoded(first, i, &blocks[i]);
            kinds.push((i, kind));
            i += count;
        }
        assert_eq!(i, blocks.len());
        kinds
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls the C libraries")]
    fn only_whole_aligned_clusters_are_kept_together() {
        let mut packing = Packing::new(Algorithm::Zstd);
        let blocks = blocks(GROUP, 500);
        for _ in 0..2 {
            let found = kinds(&mut packing, 16, &blocks);
            assert_eq!(found, [0, 4, 8, 12].map(|i| (i, Kind::Cluster)));
            let found = kinds(&mut packing, 18, &blocks[..9]);
            let alone = [0, 1, 6, 7, 8].map(|i| (i, Kind::Zstd));
            assert_eq!(found, [&alone[..2], &[(2, Kind::Cluster)], &alone[2..]].concat());
            assert_eq!(kinds(&mut packing, 19, &blocks[..1]), [(0, Kind::Zstd)]);
        }
        packing.encode_all(16, &blocks);
        packing.encode_apart(4, blocks[4..].first_chunk().unwrap());
        assert_eq!(packing.encoded(16, 4, &blocks[4]).0, Kind::Zstd);
        assert_eq!(packing.encoded(16, 8, &blocks[8]).0, Kind::Cluster);
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls the C libraries")]
    fn a_run_of_zeros_ends_where_a_cluster_begins() {
        let mut packing = Packing::new(Algorithm::Zstd);
        let zeros = vec![[0; BLOCK_SIZE]; GROUP];
        packing.encode_all(0, &zeros);
        assert_eq!(packing.zeros(0, 0, &zeros), GROUP as u64);
        assert_eq!(packing.zeros(0, 5, &zeros[..7]), 2);
        // Of blocks in clusters, `payloads` has what was written before.
        let mut mixed = blocks(GROUP, 500);
        mixed[..CLUSTER].fill([0; BLOCK_SIZE]);
        packing.encode_all(0, &mixed);
        assert_eq!(packing.zeros(0, 0, &mixed), CLUSTER as u64);
        assert_eq!(packing.zeros(0, CLUSTER, &mixed), 0);
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls the C libraries")]
    fn with_lz4_they_are_while_the_drive_is_slow_and_it_pays() {
        let mut packing = Packing::new(Algorithm::Lz4);
        let is_together = |packing: &mut Packing, blocks: &[[u8; BLOCK_SIZE]]| {
            kinds(packing, 0, blocks)[0].1 == Kind::Cluster
        };
        let (text, noisy, noise) = (blocks(4, 500), blocks(4, 3000), blocks(4, BLOCK_SIZE));
        assert!(!is_together(&mut packing, &text), "nothing waits");
        packing.backlog = (64 << 20, 64 << 20);
        assert!(is_together(&mut packing, &text));
        assert!(!is_together(&mut packing, &noisy), "hardly smaller than by LZ4");
        assert!(!is_together(&mut packing, &noise), "does not shrink");
        let mut zeros = text.clone();
        zeros[2] = [0; BLOCK_SIZE];
        assert_eq!(kinds(&mut packing, 0, &zeros)[2], (2, Kind::Zeros));
        // After many attempts in vain few are made, and one that pays makes them frequent again.
        (0..HOPELESS + 1).for_each(|_| assert!(!is_together(&mut packing, &noisy)));
        let tries = (0..RETRY_TOGETHER).filter(|_| is_together(&mut packing, &text)).count();
        assert!((1..RETRY_TOGETHER as usize).contains(&tries), "{tries}");
        assert!(is_together(&mut packing, &text));
    }
}

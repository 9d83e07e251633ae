//! Packs the blocks of writes.
//!
//! Payloads lie side by side in chunks of memory, each of which goes back to the kernel with its
//! last payload. Invariant: a payload never has memory of its own: thousands of those, of which a
//! few stay longer, would leave holes in the heap that no other allocation fits.

use crate::BLOCK_SIZE;
use crate::codec::{Algorithm, Codec, Encoded};
use crate::media::{Blocks, Given, PackedBlock};
use bytes::{Bytes, BytesMut};

/// Bytes of a chunk: so large that the C library has the kernel map it alone.
const CHUNK: usize = 256 << 10;

/// See the module.
pub struct Packer {
    pub codec: Codec,
    chunk: BytesMut,
    room: Box<[u8; BLOCK_SIZE]>,
}

impl Packer {
    pub fn new(algorithm: Algorithm) -> Self {
        let (chunk, room) = (BytesMut::new(), Box::new([0; BLOCK_SIZE]));
        Self { codec: Codec::new(algorithm), chunk, room }
    }

    /// Blocks as they are packed already, or are now; `None`: zeros.
    pub fn pack(&mut self, blocks: Blocks<'_>) -> Vec<Option<PackedBlock>> {
        let pack = |given| match given {
            Given::Packed(packed) => Some(packed.clone()),
            Given::Plain(block) => self.encode(block),
        };
        blocks.iter().map(pack).collect()
    }

    fn encode(&mut self, block: &[u8; BLOCK_SIZE]) -> Option<PackedBlock> {
        let encoded = self.codec.encode(block, &mut *self.room);
        if encoded == Encoded::Same(0) {
            return None;
        }
        let (len, coding) = encoded.spelled(&mut *self.room);
        Some(PackedBlock { coding, bytes: self.keep(len) })
    }

    /// The first bytes of the room, `len` of them.
    fn keep(&mut self, len: usize) -> Bytes {
        if self.chunk.capacity() < len {
            self.chunk = BytesMut::with_capacity(CHUNK);
        }
        self.chunk.extend_from_slice(&self.room[..len]);
        self.chunk.split().freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg_attr(miri, ignore = "calls the C library")]
    fn payloads_share_chunks_and_keep_their_content() {
        let mut packer = Packer::new(Algorithm::Lz4);
        let block = |n: usize| {
            let mut block = [0; BLOCK_SIZE];
            let noise = (n * 37) % BLOCK_SIZE;
            let mut x = n as u64 + 1;
            for byte in &mut block[..noise] {
                x = x.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                *byte = (x >> 56) as u8;
            }
            block
        };
        let blocks: Vec<_> = (0..1000).map(block).collect();
        let mut packed = Vec::new();
        for some in blocks.chunks(7) {
            packed.extend(packer.pack(Blocks::plain(some)));
        }
        assert!(packed[0].is_none());
        for (packed, block) in packed.iter().zip(&blocks) {
            let mut out = [0; BLOCK_SIZE];
            if let Some(PackedBlock { coding, bytes }) = packed {
                assert!(packer.codec.decode(*coding, bytes, &mut out));
            }
            assert!(out == *block);
        }
        let places: Vec<_> = packed.iter().flatten().map(|p| p.bytes.as_ptr_range()).collect();
        let side_by_side = places.windows(2).filter(|two| two[0].end == two[1].start).count();
        assert!(side_by_side > places.len() * 9 / 10, "{side_by_side} of {}", places.len());
    }
}

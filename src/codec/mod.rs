//! Compression of blocks, alone or several together, with state that is reused from block to block.
//!
//! LZ4 is used through its C library, which is the fastest, by
//! `LZ4_compress_fast_extState_fastReset`: this call works in memory that is kept from block to
//! block, and not on the stack. (It still clears its table of 16 KiB for each block: the library
//! reuses a table without clearing only for shorter inputs.)

pub mod together;

use crate::BLOCK_SIZE;
use serde::{Deserialize, Serialize};
use std::ffi::{c_char, c_int, c_void};

/// How written blocks are compressed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Algorithm {
    /// LZ4: the fastest, the default.
    #[default]
    Lz4,
    /// Zstandard, level 1: smaller, several times slower.
    Zstd,
    /// Blocks are kept uncompressed (same-filled ones still take no memory).
    None,
}

/// How a payload is coded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Coding {
    /// The block, uncompressed.
    Raw,
    /// One LZ4 block.
    Lz4,
    /// One zstd frame without magic, checksum or size.
    Zstd,
    /// An 8-byte word that the block repeats.
    Fill,
    /// Neighbours compressed together; the number of blocks that own the record (1 to [`CLUSTER`]).
    Cluster(u8),
}

/// The most blocks in a cluster: aligned neighbours.
pub const CLUSTER: usize = 4;
/// A block that would save less than this many bytes is kept raw: reading it is then a copy.
const WORTH: usize = 128;
/// The longest payload that counts as shrunk.
const SHRUNK_MAX: usize = BLOCK_SIZE - WORTH;

const ZSTD_LEVEL: i32 = 1;

// Tests and Miri use `lz4-sys` only to have the C library linked; this is its declaration of
// `lz4.h`'s static section, which the crate leaves out.
unsafe extern "C" {
    fn LZ4_sizeofState() -> c_int;
    fn LZ4_compress_fast_extState_fastReset(
        state: *mut c_void,
        src: *const c_char,
        dst: *mut c_char,
        src_size: c_int,
        dst_capacity: c_int,
        acceleration: c_int,
    ) -> c_int;
}

/// The compressor and decompressor of one thread.
pub struct Codec {
    algorithm: Algorithm,
    /// 8-byte aligned, as the library wants it, and zeroed, which is its initial state.
    lz4: Vec<u64>,
    zstd: Option<Box<Zstd>>,
}

struct Zstd {
    compress: zstd_safe::CCtx<'static>,
    decompress: zstd_safe::DCtx<'static>,
}

/// The result of encoding a block.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoded {
    /// The block repeats a 4-byte word; nothing needs to be stored.
    Same(u32),
    /// This many bytes of payload were written.
    Payload(usize, Coding),
}

impl Encoded {
    /// The length and the coding of the payload; a word that needs none is spelled out in `out`.
    pub fn spelled(self, out: &mut [u8]) -> (usize, Coding) {
        match self {
            Self::Same(word) => {
                out[..8].copy_from_slice(&doubled(word).to_le_bytes());
                (8, Coding::Fill)
            }
            Self::Payload(len, coding) => (len, coding),
        }
    }
}

impl Codec {
    /// State for one thread.
    pub fn new(algorithm: Algorithm) -> Self {
        // SAFETY: a pure function of the library.
        let bytes = unsafe { LZ4_sizeofState() }.max(0) as usize;
        let zstd = (algorithm == Algorithm::Zstd).then(|| Box::new(Zstd::new(ZSTD_LEVEL)));
        let mut codec = Self { algorithm, lz4: vec![0; bytes.div_ceil(8)], zstd };
        if algorithm == Algorithm::Zstd {
            // Contexts allocate their memory at first use: use them now, so that `memory` counts
            // it.
            let block = std::array::from_fn(|i| (i * i / 7) as u8);
            let (mut payload, mut back) = (vec![0; BLOCK_SIZE], Box::new([0; BLOCK_SIZE]));
            if let Encoded::Payload(len, coding) = codec.encode(&block, &mut payload) {
                codec.decode(coding, &payload[..len], &mut back);
            }
        }
        codec
    }

    /// State for clusters alone, with all memory that compressing them by zstd at these levels
    /// takes. With no levels, it is for decoding only.
    pub fn for_clusters(levels: &[i32]) -> Self {
        let zstd = Some(Box::new(Zstd::new(ZSTD_LEVEL)));
        let mut codec = Self { algorithm: Algorithm::None, lz4: Vec::new(), zstd };
        for level in levels {
            codec.set_level(*level);
            let blocks = vec![std::array::from_fn(|i| (i * i / 7) as u8); CLUSTER];
            codec.shrink_together(&blocks, &mut vec![0; CLUSTER * BLOCK_SIZE]);
        }
        codec
    }

    /// Sets the zstd level from now on.
    pub fn set_level(&mut self, level: i32) {
        let zstd = self.zstd.get_or_insert_with(|| Box::new(Zstd::new(level)));
        let set = zstd.compress.set_parameter(zstd_safe::CParameter::CompressionLevel(level));
        debug_assert!(set.is_ok(), "{level}");
    }

    /// Memory that this state takes, in bytes.
    pub fn memory(&self) -> usize {
        let zstd = self.zstd.as_ref().map_or(0, |z| z.compress.sizeof() + z.decompress.sizeof());
        self.lz4.len() * 8 + zstd
    }

    /// Encodes `block` into `out`, which must have room for a whole block.
    pub fn encode(&mut self, block: &[u8; BLOCK_SIZE], out: &mut [u8]) -> Encoded {
        if let Some(encoded) = fold(block, out).or_else(|| self.shrink(block, out)) {
            return encoded;
        }
        out[..BLOCK_SIZE].copy_from_slice(block);
        Encoded::Payload(BLOCK_SIZE, Coding::Raw)
    }

    /// Compresses `block` into `out`, which must have room for a whole block; `None` if that does
    /// not save enough.
    pub fn shrink(&mut self, block: &[u8; BLOCK_SIZE], out: &mut [u8]) -> Option<Encoded> {
        let (len, coding) = match self.algorithm {
            Algorithm::None => None,
            Algorithm::Lz4 => self.lz4(block, out).map(|n| (n, Coding::Lz4)),
            Algorithm::Zstd => self
                .zstd
                .as_mut()
                .and_then(|z| z.compress.compress2(&mut out[..SHRUNK_MAX], block).ok())
                .map(|n| (n, Coding::Zstd)),
        }?;
        Some(Encoded::Payload(len, coding))
    }

    /// Compresses neighbouring blocks into `out` as one zstd frame, whatever the algorithm; `None`
    /// if it does not fit.
    pub fn shrink_together(
        &mut self,
        blocks: &[[u8; BLOCK_SIZE]],
        out: &mut [u8],
    ) -> Option<usize> {
        let zstd = self.zstd.get_or_insert_with(|| Box::new(Zstd::new(ZSTD_LEVEL)));
        zstd.compress.compress2(out, blocks.as_flattened()).ok()
    }

    fn lz4(&mut self, block: &[u8; BLOCK_SIZE], out: &mut [u8]) -> Option<usize> {
        let out = &mut out[..SHRUNK_MAX];
        // SAFETY: the state is of the size that the library asked for, aligned, and was zeroed or
        // left by this same call; source and destination are valid for the lengths given.
        let n = unsafe {
            LZ4_compress_fast_extState_fastReset(
                self.lz4.as_mut_ptr().cast(),
                block.as_ptr().cast(),
                out.as_mut_ptr().cast(),
                BLOCK_SIZE as c_int,
                out.len() as c_int,
                1,
            )
        };
        (n > 0).then_some(n as usize)
    }

    /// Decodes a payload into a block; `false` when it is no encoding of a whole block.
    pub fn decode(&mut self, coding: Coding, payload: &[u8], out: &mut [u8; BLOCK_SIZE]) -> bool {
        match coding {
            Coding::Raw => match payload.try_into() {
                Ok(block) => {
                    *out = block;
                    true
                }
                Err(_) => false,
            },
            Coding::Lz4 => decode_lz4(payload, out),
            Coding::Zstd => {
                let zstd = self.zstd.get_or_insert_with(|| Box::new(Zstd::new(ZSTD_LEVEL)));
                zstd.decompress.decompress(out.as_mut_slice(), payload) == Ok(BLOCK_SIZE)
            }
            Coding::Fill => match payload.try_into() {
                Ok(word) => {
                    fill(out, u64::from_le_bytes(word));
                    true
                }
                Err(_) => false,
            },
            // A cluster's payload is not that of one block.
            Coding::Cluster(_) => false,
        }
    }

    /// Decodes one zstd frame into neighbouring blocks; `false` when it does not encode exactly
    /// `out.len()` blocks.
    pub fn decode_together(&mut self, frame: &[u8], out: &mut [[u8; BLOCK_SIZE]]) -> bool {
        let zstd = self.zstd.get_or_insert_with(|| Box::new(Zstd::new(ZSTD_LEVEL)));
        let len = out.len() * BLOCK_SIZE;
        zstd.decompress.decompress(out.as_flattened_mut(), frame) == Ok(len)
    }
}

impl Zstd {
    fn new(level: i32) -> Self {
        use zstd_safe::{CParameter, DParameter, FrameFormat};
        let mut compress = zstd_safe::CCtx::create();
        let mut decompress = zstd_safe::DCtx::create();
        // These parameters exist in every version of the library that can be linked.
        for parameter in [
            CParameter::CompressionLevel(level),
            CParameter::Format(FrameFormat::Magicless),
            CParameter::ContentSizeFlag(false),
            CParameter::ChecksumFlag(false),
            CParameter::DictIdFlag(false),
        ] {
            let set = compress.set_parameter(parameter);
            debug_assert!(set.is_ok(), "{parameter:?}");
        }
        let set = decompress.set_parameter(DParameter::Format(FrameFormat::Magicless));
        debug_assert!(set.is_ok());
        Self { compress, decompress }
    }
}

/// Encodes a block that repeats a word, into `out` if the word is 8 bytes; `None` for other blocks.
pub fn fold(block: &[u8; BLOCK_SIZE], out: &mut [u8]) -> Option<Encoded> {
    let word = repeated_word(block)?;
    let low = word as u32;
    if doubled(low) == word {
        return Some(Encoded::Same(low));
    }
    out[..8].copy_from_slice(&word.to_le_bytes());
    Some(Encoded::Payload(8, Coding::Fill))
}

fn decode_lz4(payload: &[u8], out: &mut [u8; BLOCK_SIZE]) -> bool {
    // SAFETY: the library reads at most `payload.len()` bytes and writes at most `BLOCK_SIZE`, also
    // for malformed input.
    let n = unsafe {
        lz4_sys::LZ4_decompress_safe(
            payload.as_ptr().cast(),
            out.as_mut_ptr().cast(),
            payload.len() as c_int,
            BLOCK_SIZE as c_int,
        )
    };
    n == BLOCK_SIZE as c_int
}

/// The 8-byte word that repeats a 4-byte word.
pub fn doubled(word: u32) -> u64 {
    u64::from(word) << 32 | u64::from(word)
}

/// Fills `out` with `word`.
pub fn fill(out: &mut [u8; BLOCK_SIZE], word: u64) {
    if word == 0 {
        out.fill(0);
        return;
    }
    let (words, _) = out.as_chunks_mut::<8>();
    words.fill(word.to_le_bytes());
}

/// The 8-byte word that a block repeats, if it does. The last word alone rules out most blocks that
/// do not.
fn repeated_word(block: &[u8; BLOCK_SIZE]) -> Option<u64> {
    let (words, _) = block.as_chunks::<8>();
    let first = words[0];
    if words[words.len() - 1] != first {
        return None;
    }
    // Compared in runs of 32 words without a branch inside, which the compiler vectorizes.
    let uniform =
        words.chunks(32).all(|run| run.iter().fold(true, |same, word| same & (*word == first)));
    uniform.then(|| u64::from_le_bytes(first))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn round_trip(algorithm: Algorithm, block: &[u8; BLOCK_SIZE]) -> Encoded {
        let mut codec = Codec::new(algorithm);
        let mut out = vec![0; BLOCK_SIZE];
        for _ in 0..3 {
            let encoded = codec.encode(block, &mut out);
            let mut back = Box::new([0xa5; BLOCK_SIZE]);
            match encoded {
                Encoded::Same(word) => fill(&mut back, doubled(word)),
                Encoded::Payload(n, coding) => assert!(codec.decode(coding, &out[..n], &mut back)),
            }
            assert!(*back == *block, "{algorithm:?} changed the block");
        }
        codec.encode(block, &mut out)
    }

    fn text() -> [u8; BLOCK_SIZE] {
        let mut block = [0; BLOCK_SIZE];
        for (i, byte) in block.iter_mut().enumerate() {
            *byte = b"the quick brown fox jumps over "[i % 31] ^ (i / 700) as u8;
        }
        block
    }

    fn noise(mut x: u64) -> [u8; BLOCK_SIZE] {
        let mut block = [0; BLOCK_SIZE];
        for byte in &mut block {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            *byte = x as u8;
        }
        block
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls the C libraries")]
    fn every_algorithm_gives_back_what_it_got() {
        for algorithm in [Algorithm::Lz4, Algorithm::Zstd, Algorithm::None] {
            for block in [[0; BLOCK_SIZE], [0xff; BLOCK_SIZE], text(), noise(1)] {
                round_trip(algorithm, &block);
            }
        }
        assert!(matches!(
            round_trip(Algorithm::Lz4, &text()),
            Encoded::Payload(..1000, Coding::Lz4)
        ));
        assert!(matches!(
            round_trip(Algorithm::Zstd, &text()),
            Encoded::Payload(..1000, Coding::Zstd)
        ));
        assert_eq!(
            round_trip(Algorithm::Lz4, &noise(9)),
            Encoded::Payload(BLOCK_SIZE, Coding::Raw)
        );
    }

    #[test]
    #[cfg_attr(miri, ignore = "calls the C libraries")]
    fn repeated_words_need_little() {
        let mut block = [0; BLOCK_SIZE];
        fill(&mut block, 0x0102_0304_0102_0304);
        assert_eq!(round_trip(Algorithm::None, &block), Encoded::Same(0x0102_0304));
        let (mut out, mut back) = ([0xa5; 9], [0; BLOCK_SIZE]);
        assert_eq!(Encoded::Same(0x0102_0304).spelled(&mut out), (8, Coding::Fill));
        assert!(Codec::new(Algorithm::None).decode(Coding::Fill, &out[..8], &mut back));
        assert!(back == block && out[8] == 0xa5);
        fill(&mut block, 0x0102_0304_0506_0708);
        assert_eq!(round_trip(Algorithm::Lz4, &block), Encoded::Payload(8, Coding::Fill));
        block[2048] ^= 1;
        assert_eq!(repeated_word(&block), None);
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 1 } else { 64 }))]
        #[test]
        #[cfg_attr(miri, ignore = "calls the C libraries")]
        fn malformed_payloads_are_refused_not_followed(
            payload in proptest::collection::vec(any::<u8>(), 0..5000), c in 0usize..4,
        ) {
            let coding = [Coding::Raw, Coding::Lz4, Coding::Zstd, Coding::Fill][c];
            let mut out = Box::new([0; BLOCK_SIZE]);
            let whole = Codec::new(Algorithm::Lz4).decode(coding, &payload, &mut out);
            prop_assert!(!whole || !payload.is_empty());
        }
    }
}

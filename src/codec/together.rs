//! Whether it pays to compress neighbouring blocks together. Pure: sizes in, answers out.

use super::Algorithm;

/// Blocks are kept together if that saves at least one part in this many of the bytes that they
/// take apart: a read of one of them decodes all.
const TOGETHER_PART: usize = 8;

/// Whether to try to compress neighbouring blocks together: `backlog` bytes of a log wait for its
/// drive, and `most` may be in memory. Zstd takes longer than LZ4, so it pays while the drive is
/// the bottleneck. A drive that keeps up leaves hardly anything waiting. With a drive that does
/// not, memory is full, and at most half of that waits only for a flush.
pub fn tries_together(algorithm: Algorithm, (backlog, most): (u64, u64)) -> bool {
    match algorithm {
        Algorithm::Zstd => true,
        Algorithm::Lz4 => backlog >= most / 8 * 3,
        Algorithm::None => false,
    }
}

/// Whether `together` bytes for some blocks save enough compared with the `apart` bytes that the
/// blocks take separately.
pub fn pays_together(together: usize, apart: usize) -> bool {
    together <= apart - apart.div_ceil(TOGETHER_PART)
}

/// The most bytes that a cluster may have if its blocks take `apart` bytes separately; as above.
pub fn most_together(apart: u32) -> u32 {
    apart - apart.div_ceil(TOGETHER_PART as u32)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_are_compressed_together_where_the_drive_is_slow_or_zstd_was_asked_for() {
        for (backlog, slow) in [(0, false), (8 << 20, false), (24 << 20, true), (64 << 20, true)] {
            let backlog = (backlog, 64 << 20);
            assert_eq!(tries_together(Algorithm::Lz4, backlog), slow);
            assert!(tries_together(Algorithm::Zstd, backlog));
            assert!(!tries_together(Algorithm::None, backlog));
        }
    }

    #[test]
    fn blocks_stay_together_if_that_saves_an_eighth() {
        assert!(pays_together(7000, 8000) && !pays_together(7001, 8000));
        assert!(pays_together(0, 0) && !pays_together(1, 1));
        for apart in 0..5000 {
            let most = most_together(apart) as usize;
            assert!(
                pays_together(most, apart as usize) && !pays_together(most + 1, apart as usize)
            );
        }
    }
}

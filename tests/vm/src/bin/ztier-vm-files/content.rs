//! What a sector has: zeros, or what names the file, the sector and the version, so that wrong data
//! says where it comes from.

use std::fmt;

/// Bytes of a sector.
pub const SECTOR: usize = 512;
const WORDS: usize = SECTOR / 8;

/// Bits of a version, and of a sector's number.
const VERSION_BITS: u32 = 24;
const SECTOR_BITS: u32 = 24;

/// Fills `out` with a version of a sector of a file; version 0 is zeros. Half of it does not
/// shrink.
pub fn fill(out: &mut [u8; SECTOR], file: u16, sector: u64, version: u32) {
    let tag = tag(file, sector, version);
    let mut state = tag.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    for (at, word) in out.as_chunks_mut::<8>().0.iter_mut().enumerate() {
        let value = match (version, at) {
            (0, _) => 0,
            (_, 1..) if at < WORDS / 2 => {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            }
            _ => tag,
        };
        *word = value.to_le_bytes();
    }
}

fn tag(file: u16, sector: u64, version: u32) -> u64 {
    u64::from(file) << (SECTOR_BITS + VERSION_BITS) | sector << VERSION_BITS | u64::from(version)
}

/// What a sector was found to have.
#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// A version of some sector of some file.
    Version { file: u16, sector: u64, version: u32 },
    /// Zeros.
    Zeros,
    /// Anything else.
    Strange,
}

impl Found {
    /// What these bytes are.
    pub fn in_bytes(bytes: &[u8; SECTOR]) -> Self {
        if *bytes == [0; SECTOR] {
            return Self::Zeros;
        }
        let tag = u64::from_le_bytes(bytes.as_chunks().0[0]);
        let file = (tag >> (SECTOR_BITS + VERSION_BITS)) as u16;
        let sector = tag >> VERSION_BITS & ((1 << SECTOR_BITS) - 1);
        let version = (tag & ((1 << VERSION_BITS) - 1)) as u32;
        let mut wanted = [0; SECTOR];
        fill(&mut wanted, file, sector, version);
        if wanted == *bytes { Self::Version { file, sector, version } } else { Self::Strange }
    }
}

impl fmt::Display for Found {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Version { file, sector, version } => {
                write!(out, "version {version} of sector {sector} of file {file}")
            }
            Self::Zeros => write!(out, "zeros"),
            Self::Strange => write!(out, "something that was never written"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sector_says_where_it_comes_from() {
        let mut bytes = [1; SECTOR];
        assert_eq!(Found::in_bytes(&bytes), Found::Strange);
        fill(&mut bytes, 3, 99, 0);
        assert_eq!(Found::in_bytes(&bytes), Found::Zeros);
        fill(&mut bytes, 3, 99, 7);
        let found = Found::in_bytes(&bytes);
        assert_eq!(found, Found::Version { file: 3, sector: 99, version: 7 });
        assert_eq!(found.to_string(), "version 7 of sector 99 of file 3");
        bytes[SECTOR / 2 - 1] ^= 1;
        assert_eq!(Found::in_bytes(&bytes), Found::Strange);
    }
}

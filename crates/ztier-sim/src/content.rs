//! Contents of blocks in a run: every version of every block is different and identifies itself.
//!
//! A block's bytes are a function of its number and its [`Value`], so a reader can tell which
//! version a block is, or that it is none: a mixture of two versions, another block's content,
//! damage. A run uses a value that names a version only once, also across power cuts. Zeros are
//! always the same.

use crate::image::Page;
use crate::rng::{Rng, mix};

/// What a block holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Value {
    /// Zeros: never written, discarded, or written as zeros.
    Zero,
    /// A repeated 4-byte word, which the log stores in a header.
    Word(u32),
    /// A repeated 8-byte word.
    Double(u64),
    /// A stamp, noise, and then a pattern.
    Stamp {
        /// The version.
        version: u32,
        /// Sixteenths of KiB of noise: 0 compresses best, 255 not at all.
        noise: u8,
    },
}

/// How a write chooses its value, before its version is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// Zeros.
    Zero,
    /// A 4-byte word.
    Word,
    /// An 8-byte word.
    Double,
    /// A stamp with this `noise`.
    Stamp(u8),
}

const MAGIC: u32 = 0x7a74_6965;

/// A word derived from a block, a version and a salt.
const fn tag(block: u32, version: u32, salt: u64) -> u64 {
    mix(mix((block as u64) << 32 | version as u64) ^ salt)
}

/// The second word of a stamp.
const fn named(version: u32, noise: u8) -> u64 {
    (version as u64) << 32 | noise as u64
}

/// Whether all words are `word`. Most are: to look at all of them at once is faster than to stop at
/// the first that is not.
fn repeat(words: &[[u8; 8]], word: u64) -> bool {
    words.iter().fold(0, |differ, bytes| differ | u64::from_le_bytes(*bytes) ^ word) == 0
}

impl Flavour {
    /// The value of `version` of a block.
    pub const fn value(self, block: u32, version: u32) -> Value {
        match self {
            Self::Zero => Value::Zero,
            // Neither word can be zero, nor can the 8-byte word repeat a 4-byte one.
            Self::Word => Value::Word(tag(block, version, 1) as u32 | 1),
            Self::Double => Value::Double(tag(block, version, 2) & !(1 << 32) | 1),
            Self::Stamp(noise) => Value::Stamp { version, noise },
        }
    }
}

impl Value {
    /// Writes the content of `block` with this value into `out`.
    pub fn fill(self, block: u32, out: &mut Page) {
        let words = out.as_chunks_mut::<8>().0;
        match self {
            Self::Zero => words.fill([0; 8]),
            Self::Word(word) => words.fill((u64::from(word) << 32 | u64::from(word)).to_le_bytes()),
            Self::Double(word) => words.fill(word.to_le_bytes()),
            Self::Stamp { version, noise } => {
                words[0] = (u64::from(block) << 32 | u64::from(MAGIC)).to_le_bytes();
                words[1] = named(version, noise).to_le_bytes();
                let (random, pattern) = words[2..].split_at_mut(usize::from(noise) * 2);
                let mut rng = Rng::new(tag(block, version, 3));
                for word in random {
                    *word = rng.bits().to_le_bytes();
                }
                let repeated = rng.bits().to_le_bytes();
                pattern.fill(repeated);
            }
        }
    }

    /// The value that `bytes` encode for `block`, if they are a value of a run.
    pub fn recognise(block: u32, bytes: &Page) -> Option<Self> {
        let words = bytes.as_chunks::<8>().0;
        let (first, second) = (u64::from_le_bytes(words[0]), u64::from_le_bytes(words[1]));
        let value = if first == u64::from(block) << 32 | u64::from(MAGIC) && first != second {
            Self::Stamp { version: (second >> 32) as u32, noise: second as u8 }
        } else if first == 0 {
            Self::Zero
        } else if first as u32 == (first >> 32) as u32 {
            Self::Word(first as u32)
        } else {
            Self::Double(first)
        };
        value.is_in(block, bytes).then_some(value)
    }

    /// Whether `bytes` are the content of `block` with this value, as [`Value::fill`] writes it.
    pub fn is_in(self, block: u32, bytes: &Page) -> bool {
        let words = bytes.as_chunks::<8>().0;
        match self {
            Self::Zero => repeat(words, 0),
            Self::Word(word) => repeat(words, u64::from(word) << 32 | u64::from(word)),
            Self::Double(word) => repeat(words, word),
            Self::Stamp { version, noise } => {
                let stamp = [u64::from(block) << 32 | u64::from(MAGIC), named(version, noise)];
                if words[..2] != stamp.map(u64::to_le_bytes) {
                    return false;
                }
                let (random, pattern) = words[2..].split_at(usize::from(noise) * 2);
                let mut rng = Rng::new(tag(block, version, 3));
                let differ = |all, word: &[u8; 8]| all | u64::from_le_bytes(*word) ^ rng.bits();
                random.iter().fold(0, differ) == 0 && repeat(pattern, rng.bits())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::PAGE;

    fn page(block: u32, value: Value) -> Page {
        let mut out = [0xee; PAGE];
        value.fill(block, &mut out);
        out
    }

    #[test]
    fn every_value_is_recognised_in_its_block_only() {
        let stamps = [0, 1, 100, 255].map(Flavour::Stamp);
        for flavour in [Flavour::Word, Flavour::Double].into_iter().chain(stamps) {
            for version in [1, 2, 70_000] {
                let value = flavour.value(5, version);
                assert_eq!(Value::recognise(5, &page(5, value)), Some(value));
                assert!(!flavour.value(5, version + 1).is_in(5, &page(5, value)));
                assert_ne!(flavour.value(5, version + 1), value);
                if let Value::Stamp { .. } = value {
                    assert_eq!(Value::recognise(6, &page(5, value)), None);
                } else {
                    assert_ne!(flavour.value(6, version), value);
                }
            }
        }
        assert_eq!(Value::recognise(5, &[0; PAGE]), Some(Value::Zero));
        assert_eq!(Flavour::Zero.value(5, 3), Value::Zero);
    }

    #[test]
    fn mixtures_and_damage_are_no_value() {
        let (old, new) = (Flavour::Stamp(40).value(1, 1), Flavour::Stamp(40).value(1, 2));
        for sectors in 1..8 {
            let mut torn = page(1, old);
            torn[..sectors * 512].copy_from_slice(&page(1, new)[..sectors * 512]);
            assert_eq!(Value::recognise(1, &torn), None);
        }
        for byte in [0, 9, 700, PAGE - 1] {
            let mut flipped = page(1, old);
            flipped[byte] ^= 4;
            assert_ne!(Value::recognise(1, &flipped), Some(old));
            assert!(!old.is_in(1, &flipped));
        }
        let mut zeros = [0; PAGE];
        zeros[77] = 1;
        assert_eq!(Value::recognise(1, &zeros), None);
    }
}

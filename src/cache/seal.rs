//! The seal of a block: a keyed hash of its content.
//!
//! Invariant: two seals are equal only if their contents are, as far as 125 bits can tell.

/// Bits of a hash that are not part of the seal: [`super::seals`] has a use for them.
pub const FREE: u128 = 7;

/// The hash of a block's content. Without the key, which is random, content with a given hash
/// can't be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seal(u128);

impl Seal {
    /// Of a hash.
    pub fn new(hash: u128) -> Self {
        Self(hash & !FREE)
    }

    /// The hash, without the bits of [`FREE`].
    pub fn hash(self) -> u128 {
        self.0
    }

    /// Bits that no place in the table depends on.
    pub fn bits(self) -> u64 {
        (self.0 >> 64) as u64
    }
}

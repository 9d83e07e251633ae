//! Numbers of hits, one for each of up to 64 blocks.
//!
//! Invariant: a number is at most [`MOST`].

/// The largest number.
pub const MOST: u8 = 3;

/// See the module. Low bits first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Numbers(pub [u64; 2]);

impl Numbers {
    /// Sets the number of the `at`-th block, which is 0 so far.
    pub fn set(&mut self, at: u64, number: u8) {
        for (bit, all) in self.0.iter_mut().enumerate() {
            *all |= u64::from(number.min(MOST) >> bit & 1) << at;
        }
    }

    /// The same, but 0 for the blocks whose bits are set in `which`.
    #[must_use]
    pub fn without(self, which: u64) -> Self {
        Self(self.0.map(|bits| bits & !which))
    }

    /// The number of the `at`-th block.
    pub fn of(&self, at: u64) -> u8 {
        let bit = |all: u64| (all >> at & 1) as u8;
        bit(self.0[0]) | bit(self.0[1]) << 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_block_has_its_own_number() {
        let mut numbers = Numbers::default();
        (0..64).for_each(|at| numbers.set(at, (at % 5) as u8));
        assert!((0..64).all(|at| numbers.of(at) == ((at % 5) as u8).min(MOST)));
    }
}

//! Random numbers from a seed: the only source of randomness in a run.
//!
//! The same seed gives the same numbers on every machine and in every build; no clock, address or
//! hasher state has an influence.

/// A SplitMix64 generator: one word of state, good enough for choices, and cheap to make.
#[derive(Clone, Debug)]
pub struct Rng(u64);

/// The step between states: 2^64 divided by the golden ratio.
const STEP: u64 = 0x9e37_79b9_7f4a_7c15;

/// Spreads every bit of `x` over the whole word.
pub const fn mix(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    x ^ (x >> 31)
}

impl Rng {
    /// The generator of `seed`; generators of similar seeds are unrelated.
    pub const fn new(seed: u64) -> Self {
        Self(mix(seed ^ STEP))
    }

    /// The next 64 random bits.
    pub const fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(STEP);
        mix(self.0)
    }

    /// A number below `bound`, which is at least 1.
    pub fn below(&mut self, bound: u64) -> u64 {
        assert!(bound > 0, "nothing is below 0");
        ((u128::from(self.bits()) * u128::from(bound)) >> 64) as u64
    }

    /// A number from `least` to `most`, both included.
    pub fn between(&mut self, least: u64, most: u64) -> u64 {
        least + self.below(most - least + 1)
    }

    /// An index below `len`, which is at least 1.
    pub fn index(&mut self, len: usize) -> usize {
        self.below(len as u64) as usize
    }

    /// True with a probability of `permille` in a thousand.
    pub fn chance(&mut self, permille: u32) -> bool {
        self.below(1000) < u64::from(permille)
    }

    /// One of `choices`, which is not empty.
    pub fn pick<T: Copy>(&mut self, choices: &[T]) -> T {
        choices[self.index(choices.len())]
    }

    /// An index into `weights`, drawn in proportion to them; 0 when all are 0.
    pub fn weighted(&mut self, weights: &[u32]) -> usize {
        let total: u64 = weights.iter().map(|w| u64::from(*w)).sum();
        if total == 0 {
            return 0;
        }
        let mut at = self.below(total);
        for (i, weight) in weights.iter().enumerate() {
            match at.checked_sub(u64::from(*weight)) {
                Some(rest) => at = rest,
                None => return i,
            }
        }
        0
    }

    /// An independent generator: its draws do not shift later draws from this one.
    pub const fn fork(&mut self) -> Self {
        Self::new(self.bits())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_seed_is_a_sequence() {
        let draw = |seed| {
            (0..8)
                .map({
                    let mut r = Rng::new(seed);
                    move |_| r.bits()
                })
                .collect()
        };
        let (a, b, c): (Vec<_>, Vec<_>, Vec<_>) = (draw(1), draw(1), draw(2));
        assert_eq!(a, b);
        assert!(a.iter().all(|x| !c.contains(x)));
    }

    #[test]
    fn numbers_stay_in_their_ranges_and_reach_the_ends() {
        let mut rng = Rng::new(3);
        let mut seen = [0u32; 5];
        for _ in 0..1000 {
            seen[rng.below(5) as usize] += 1;
            assert!((3..=4).contains(&rng.between(3, 4)));
            assert!(!rng.chance(0) && rng.chance(1000));
            assert_eq!(rng.weighted(&[0, 0, 7, 0]), 2);
        }
        assert!(seen.iter().all(|n| *n > 100), "{seen:?}");
        assert_eq!(rng.weighted(&[0, 0]), 0);
    }
}

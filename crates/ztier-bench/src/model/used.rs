//! The pages of a drive, or of a part of it, that hold data.
//!
//! Invariant: each page counts once, however often it is set.

/// Bytes in a page.
pub const PAGE: u64 = 4096;

/// A set of pages. Offsets and lengths are in bytes, and multiples of [`PAGE`].
#[derive(Clone, Debug)]
pub struct Used {
    bits: Vec<u64>,
    pages: u64,
}

impl Used {
    /// No page of `size` bytes.
    pub fn none(size: u64) -> Self {
        Self { bits: vec![0; (size / PAGE).div_ceil(64) as usize], pages: 0 }
    }

    /// Every page of `size` bytes.
    pub fn all(size: u64) -> Self {
        let mut all = Self::none(size);
        all.set(0, size, true);
        all
    }

    /// Number of pages in the set.
    pub fn pages(&self) -> u64 {
        self.pages
    }

    /// Adds or removes the pages of a range.
    pub fn set(&mut self, at: u64, len: u64, used: bool) {
        for (word, mask) in words(at, len) {
            let Some(word) = self.bits.get_mut(word) else { return };
            let before = word.count_ones();
            *word = if used { *word | mask } else { *word & !mask };
            self.pages = self.pages + u64::from(word.count_ones()) - u64::from(before);
        }
    }

    /// Number of pages of a range that are in the set.
    pub fn count(&self, at: u64, len: u64) -> u64 {
        let of = |(word, mask): (usize, u64)| self.bits.get(word).map_or(0, |bits| bits & mask);
        words(at, len).map(|part| u64::from(of(part).count_ones())).sum()
    }
}

/// The words of a range of pages, each with a mask of the pages in the range.
fn words(at: u64, len: u64) -> impl Iterator<Item = (usize, u64)> {
    let (mut page, end) = (at / PAGE, (at + len) / PAGE);
    std::iter::from_fn(move || {
        let left = end.checked_sub(page).filter(|&left| left > 0)?;
        let (word, first) = ((page / 64) as usize, page % 64);
        let count = (64 - first).min(left);
        page += count;
        Some((word, (u64::MAX >> (64 - count)) << first))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn pages_in_use_are_counted_once() {
        let mut used = Used::none(MIB);
        used.set(PAGE, 70 * PAGE, true);
        used.set(0, 3 * PAGE, true);
        assert_eq!(used.pages(), 71);
        used.set(2 * PAGE, 64 * PAGE, false);
        assert_eq!(used.pages(), 7);
        assert_eq!(used.count(0, MIB), 7);
        assert_eq!(used.count(PAGE, 66 * PAGE), 2);
        assert_eq!(used.count(67 * PAGE, 4 * MIB), 4);
        used.set(0, MIB, true);
        used.set(0, MIB, true);
        assert_eq!(used.pages(), 256);
        assert_eq!(Used::all(MIB).count(0, MIB), 256);
    }
}

//! The process whose pages show which area is the volume's: `ztier slots NAME`, started by the
//! daemon of a volume.
//!
//! Its first order (see [`crate::daemon::companion`]) is a number: it makes [`PAGES`] pages of the
//! content that follows from that ([`page`]), and has them swapped out. The answer to each order is
//! the entry of each page in `/proc/self/pagemap`. The kernel frees their slots when it ends.

use crate::daemon::companion::{answer, become_one, next_order};
use crate::daemon::swappable::{PAGE, Slot, Swappable};
use crate::error::{Error, Result};

/// The number of pages: several times as many as a processor collects before it frees slots.
pub(super) const PAGES: usize = 512;
/// How often pages are asked to be swapped out that are not.
const TRIES: usize = 4;
/// Words of noise at the beginning of a page. The rest of the page is one value, so that it takes
/// little memory.
const NOISE: usize = 16;

/// The content of page `n`, for a number that the daemon has chosen.
pub(super) fn page(number: u64, n: usize) -> [u8; PAGE] {
    let mut state = number ^ (n as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut page = [n as u8; PAGE];
    for word in page.as_chunks_mut::<8>().0.iter_mut().take(NOISE) {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        *word = state.to_ne_bytes();
    }
    page
}

/// Runs the process.
///
/// # Errors
/// There is no memory, or the input is not a daemon's.
pub fn main(volume: &str) -> Result<()> {
    become_one("zslots", volume);
    let (mut orders, mut answers) = (std::io::stdin().lock(), std::io::stdout().lock());
    let Some(number) = next_order(&mut orders)? else {
        return Err(Error::failure("no pages asked for").hint("`ztier swapon` starts this"));
    };
    let memory = Swappable::new(PAGES * PAGE)?;
    for n in 0..PAGES {
        memory.write(n * PAGE, &page(number, n));
    }
    let mut entries = Vec::new();
    for _ in 0..TRIES {
        memory.page_out(0, PAGES * PAGE)?;
        entries = memory.entries(0, PAGES * PAGE)?;
        if entries.iter().all(|entry| Slot::of(*entry).is_some()) {
            break;
        }
    }
    answer(&mut answers, &entries)?;
    while next_order(&mut orders)?.is_some() {
        answer(&mut answers, &memory.entries(0, PAGES * PAGE)?)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_and_page_has_content_of_its_own() {
        let all = [page(1, 0), page(1, 1), page(2, 0), page(2, 1), page(u64::MAX, 511)];
        for (i, one) in all.iter().enumerate() {
            assert!(all[..i].iter().all(|other| one[..128] != other[..128]));
        }
        assert_eq!(page(7, 3), page(7, 3));
    }
}

//! The process that has the ballast: `ztier ballast NAME`, started by the daemon of a volume.
//!
//! Its orders (see [`crate::daemon::companion`]) are numbers of bytes: first the most that will
//! ever be asked for, then how much to have. The answer is how much is swapped out now. The process
//! ends with its input, and the kernel then frees the slots without reading them.
//!
//! Invariants: its own code and stack are locked in memory; no page of ballast stays in memory; it
//! comes before other processes to give way, and not to grow.

use super::CHUNK;
use crate::daemon::companion::{answer, become_one, next_order};
use crate::daemon::swappable::{PAGE, Slot, Swappable};
use crate::device::come_first;
use crate::error::{Error, Result};
use rustix::mm::{MlockAllFlags, mlockall};

/// How often a chunk is tried.
const TRIES: usize = 4;

/// Runs the process.
///
/// # Errors
/// There is no address space, or the input is not a daemon's.
pub fn main(volume: &str) -> Result<()> {
    become_one("zballast", volume);
    come_first(true);
    // Without the right to lock memory, it answers more slowly.
    let _ = mlockall(MlockAllFlags::CURRENT);
    let (mut orders, mut answers) = (std::io::stdin().lock(), std::io::stdout().lock());
    let Some(most) = next_order(&mut orders)? else {
        return Err(Error::failure("no ballast asked for").hint("`ztier swapon` starts this"));
    };
    let mut pages = Pages::new(most)?;
    while let Some(bytes) = next_order(&mut orders)? {
        answer(&mut answers, &[pages.resize(bytes)?])?;
    }
    Ok(())
}

/// Memory whose first `held` bytes are swapped out.
struct Pages {
    memory: Swappable,
    /// A multiple of [`CHUNK`], like `held`.
    len: u64,
    held: u64,
}

impl Pages {
    fn new(most: u64) -> Result<Self> {
        let len = most / CHUNK * CHUNK;
        Ok(Self { memory: Swappable::new(len as usize)?, len, held: 0 })
    }

    /// Has `bytes` of ballast, or as many as the kernel swaps out. Returns their number.
    fn resize(&mut self, bytes: u64) -> Result<u64> {
        let bytes = bytes.min(self.len) / CHUNK * CHUNK;
        if bytes < self.held {
            self.drop_from(bytes)?;
        }
        come_first(bytes <= self.held);
        while self.held < bytes {
            if !self.page_out(self.held)? {
                // What stays in memory is worse than none.
                self.drop_from(self.held)?;
                break;
            }
            self.held += CHUNK;
        }
        come_first(true);
        Ok(self.held)
    }

    fn drop_from(&mut self, at: u64) -> Result<()> {
        let len = (self.held + CHUNK).min(self.len) - at;
        self.memory.free(at as usize, len as usize)?;
        self.held = at;
        Ok(())
    }

    /// Makes a chunk of zeros, and has it swapped out. Returns whether all of it is.
    fn page_out(&mut self, at: u64) -> Result<bool> {
        let (at, len) = (at as usize, CHUNK as usize);
        let mut missing: Vec<usize> = (at..at + len).step_by(PAGE).collect();
        for _ in 0..TRIES {
            missing.iter().for_each(|page| self.memory.write(*page, &[0]));
            self.memory.page_out(at, len)?;
            let pages = self.memory.entries(at, len)?.into_iter().zip((at..).step_by(PAGE));
            missing = pages.filter(|(e, _)| Slot::of(*e).is_none()).map(|(_, page)| page).collect();
            if missing.is_empty() {
                return Ok(true);
            }
            // The kernel passes over new pages that a processor has not put on its lists yet, and
            // looks at those of this processor alone: pages that were made before the thread moved
            // here are made anew.
            missing.iter().try_for_each(|page| self.memory.free(*page, PAGE))?;
        }
        Ok(false)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    /// Without swap the kernel swaps nothing out; with some, it may.
    #[test]
    fn no_ballast_stays_in_memory() {
        let mut pages = Pages::new(3 * CHUNK + 5).unwrap();
        assert_eq!(pages.len, 3 * CHUNK);
        for bytes in [u64::MAX, CHUNK, 0] {
            let held = pages.resize(bytes).unwrap();
            assert!(held <= bytes.min(3 * CHUNK), "{held}");
            let entries = pages.memory.entries(0, pages.len as usize).unwrap();
            assert!(entries.iter().all(|entry| entry >> 63 == 0), "a page is in memory");
        }
    }
}

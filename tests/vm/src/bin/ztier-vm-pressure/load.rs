//! The load that compares every byte: it writes and reads partly random pages in order, over and
//! over, so that the least recently used page is always the next.

use crate::say;
use std::time::{Duration, Instant};
use ztier::error::{Error, Result};

/// Words of a page.
const WORDS: usize = 512;
/// Pages between two checks of the clock.
const LOOK: u64 = 64;

type Page = [u64; WORDS];

/// How much, and for how long.
#[derive(Clone, Copy, Debug, clap::Args)]
pub struct Load {
    /// Memory in MiB.
    pub mib: usize,
    /// How often all of it is compared and written anew.
    #[arg(long, value_name = "N", default_value_t = u32::MAX, hide_default_value = true)]
    pub passes: u32,
    /// After how many seconds it ends, wherever it is.
    #[arg(long, value_name = "SECONDS")]
    pub seconds: Option<u64>,
    /// Of eight words, how many are noise.
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u8).range(0..=8))]
    pub noise: u8,
}

impl Load {
    /// Runs the load to its end; prints progress.
    ///
    /// # Errors
    /// A page differs from what was last written to it.
    pub fn run(&self) -> Result<()> {
        let begun = Instant::now();
        let limit = self.seconds.map(Duration::from_secs);
        let late = |page: u64| {
            page.is_multiple_of(LOOK) && limit.is_some_and(|limit| begun.elapsed() >= limit)
        };
        // No page is touched before it is filled.
        let mut memory = vec![0u64; (self.mib << 8) * WORDS];
        let mut compared = 0u64;
        let mut passes = 0;
        'all: for pass in 0..=self.passes {
            for (number, page) in (0u64..).zip(memory.as_chunks_mut().0) {
                if late(number) {
                    break 'all;
                }
                if pass > 0 {
                    self.compare(page, number, pass - 1)?;
                    compared += 1;
                }
                self.fill(page, number, pass);
            }
            match pass {
                0 => say(&format!("filled {} MiB", self.mib)),
                _ => say(&format!("pass {pass}")),
            }
            passes = pass;
        }
        say(&format!("compared {compared} pages in {passes} passes"));
        Ok(())
    }

    fn compare(&self, page: &Page, number: u64, pass: u32) -> Result<()> {
        let mut wanted = [0; WORDS];
        self.fill(&mut wanted, number, pass);
        if *page == wanted {
            return Ok(());
        }
        let at = page.iter().zip(&wanted).position(|(found, wanted)| found != wanted);
        let (at, found) = at.map_or((0, 0), |at| (at * 8, page[at]));
        Err(Error::failure(format!(
            "wrong data: page {number} of pass {pass} holds {found:#x} at byte {at}"
        )))
    }

    fn fill(&self, page: &mut Page, number: u64, pass: u32) {
        let seed = number << 32 | u64::from(pass);
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        for (at, word) in page.iter_mut().enumerate() {
            *word = if at % 8 < usize::from(self.noise) {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                state
            } else {
                seed
            };
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    const LOAD: Load = Load { mib: 1, passes: 2, seconds: None, noise: 3 };

    #[test]
    fn a_load_ends() {
        LOAD.run().unwrap();
        Load { passes: u32::MAX, seconds: Some(0), ..LOAD }.run().unwrap();
    }

    #[test]
    fn a_wrong_page_is_named() {
        let mut page = [0; WORDS];
        LOAD.fill(&mut page, 7, 2);
        LOAD.compare(&page, 7, 2).unwrap();
        for (number, pass) in [(8, 2), (7, 1)] {
            assert!(LOAD.compare(&page, number, pass).is_err());
        }
        page[511] ^= 1 << 63;
        let error = LOAD.compare(&page, 7, 2).unwrap_err().to_string();
        assert!(error.contains("page 7 of pass 2") && error.contains("at byte 4088"), "{error}");
    }
}

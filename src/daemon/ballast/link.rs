//! The daemon's link to the process that has the ballast.

use crate::daemon::companion::Companion;
use crate::error::Result;

/// A process with ballast; dropping this ends it.
pub(super) struct Holder {
    process: Companion,
    held: u64,
}

impl Holder {
    /// Starts a process that can have up to `most` bytes of ballast for `volume`.
    ///
    /// # Errors
    /// It can't be started.
    pub fn start(volume: &str, most: u64) -> Result<Self> {
        let mut process = Companion::start(super::WORD, volume, "the process for ballast")?;
        process.order(most)?;
        Ok(Self { process, held: 0 })
    }

    /// Bytes of ballast.
    pub fn held(&self) -> u64 {
        self.held
    }

    /// Makes the ballast `bytes` large, or as large as the kernel swaps out. Returns its size.
    ///
    /// # Errors
    /// The process is gone, or does not answer in time.
    pub fn resize(&mut self, bytes: u64) -> Result<u64> {
        self.process.order(bytes)?;
        self.held = self.process.answer()?;
        Ok(self.held)
    }
}

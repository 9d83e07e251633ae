//! Flushes that wait for the backing store, as `sync-remote` asks for.
//!
//! A flush first makes all earlier writes durable in the log. Then it closes the open segment, asks
//! for a window that has it, and waits until the store has committed that. Flushes that come while
//! a window is under way share the next one.

use super::logged::{Fault, Logged};
use super::waits::Awaited;
use crate::sync::{now, sleep};
use std::time::Duration;

/// The longest pause of writeback.
const PAUSE: Duration = Duration::from_millis(100);

impl Logged {
    /// As [`Self::flush`], and waits until the backing store, which is atomic, has it all.
    ///
    /// # Errors
    /// As [`Self::flush`]; or the store has failed for so long that its failure is reported.
    pub fn flush_remote(&self) -> Result<(), Fault> {
        self.flush()?;
        let end = {
            let mut core = self.core();
            if core.is_clean() || core.is_through() {
                return Ok(());
            }
            if !core.is_failed() {
                core.finish_segment();
            }
            core.end()
        };
        self.remote().raise(end);
        self.events.notify();
        let began = now();
        loop {
            let seen = self.events.seen();
            {
                let core = self.core();
                // Of a failed log the rescue brings all; it may have failed since `flush`.
                if core.brought() >= end || core.is_clean() || core.is_through() {
                    return Ok(());
                }
                if core.is_failed() && !core.is_rescuing() {
                    return Err(Fault::Failed);
                }
            }
            if let Some(fault) = self.gives_up(began) {
                return Err(fault);
            }
            self.wait(Awaited::Writeback, seen, PAUSE);
        }
    }

    /// Pauses writeback while nothing is due. Where flushes wait for it, they end the pause.
    pub(super) fn pause(&self) {
        match self.is_remote() {
            true => self.wait(Awaited::Commit, self.events.seen(), PAUSE),
            false => sleep(PAUSE),
        }
    }
}

//! A drive whose windows count as a whole, as a store of objects is one: what was written to a
//! window is durable with the window's commit, all at once, and gone without it.
//!
//! Outside of windows it is a drive like others: so a failed log leaves it to its volume.

use crate::image::{self, Image, PAGE, Page};
use ztier::media::Commit;

/// The first bytes of a page whose content is lost. No value begins so.
const LOST: &[u8; 8] = b"LOST 33!";

/// The state of such a drive beside its images.
#[derive(Debug, Default)]
pub struct Atomic {
    /// Whether what is written is of a window.
    pub in_window: bool,
    /// The newest commit, unless a change without a log came after it.
    pub newest: Option<Commit>,
    /// A commit that has failed: nothing else may be asked for before it succeeds.
    pub unsettled: Option<Commit>,
}

impl Atomic {
    /// Carries a commit out: what is `current` becomes `durable`, but for what is lost. Committed
    /// twice, a window is as committed once.
    pub fn commit(&mut self, commit: Commit, (current, durable): (&mut Image, &mut Image)) {
        if !self.in_window {
            return;
        }
        for (first, count) in &commit.lost {
            (*first..first + count)
                .for_each(|block| current.set(block as usize, image::slot(lost())));
        }
        durable.clone_from(current);
        (self.in_window, self.newest) = (false, Some(commit));
    }

    /// Drops a window that was not committed: `current` is as what is `durable`. Another one begins
    /// if it `begins`.
    pub fn drop_window(&mut self, (current, durable): (&mut Image, &Image), begins: bool) {
        if self.in_window {
            current.clone_from(durable);
        }
        (self.in_window, self.unsettled) = (begins, None);
    }

    /// Whether a request that changes the drive contradicts the contract.
    pub fn refuses(&self, commit: Option<&Commit>) -> bool {
        match (&self.unsettled, commit) {
            (Some(unsettled), commit) => commit != Some(unsettled),
            (None, commit) => commit.is_some() && !self.in_window,
        }
    }
}

/// A page whose content is lost.
pub fn lost() -> Page {
    let mut page = [0; PAGE];
    page[..LOST.len()].copy_from_slice(LOST);
    page
}

/// Whether a page's content is lost.
pub fn is_lost(page: &Page) -> bool {
    page.starts_with(LOST)
}

//! One transfer that the kernel may do in pieces: its limits and its progress.
//!
//! Invariant: what is left of a transfer always begins at a multiple of [`ALIGN`], because direct
//! I/O takes nothing else. The part of a page that a short transfer did is done again.

use super::drive::{ALIGN, Action, DriveError};
use rustix::io::Errno;

/// How often in a row a transfer may return without a further whole page before it counts as
/// failed.
const STUCK_MAX: u32 = 16;

/// The progress of a transfer.
#[derive(Debug)]
pub(super) struct Progress {
    done: u64,
    whole: u64,
    stuck: u32,
}

impl Progress {
    /// The progress of `whole` bytes, a multiple of [`ALIGN`] or less than that: nothing is done.
    pub fn new(whole: u64) -> Self {
        Self { done: 0, whole, stuck: 0 }
    }

    /// Bytes done: all, or a multiple of [`ALIGN`].
    pub fn done(&self) -> u64 {
        self.done
    }

    /// Bytes to do.
    pub fn left(&self) -> u64 {
        self.whole - self.done
    }

    /// Notes that the kernel has done `got` more bytes; 0 also for «try again».
    ///
    /// # Errors
    /// `EIO` when nothing has moved for too long: a file that was truncated, a broken driver.
    pub fn advance(&mut self, got: u64) -> Result<(), Errno> {
        let done = match self.done + got.min(self.left()) {
            all if all == self.whole => all,
            part => part / ALIGN as u64 * ALIGN as u64,
        };
        if done > self.done {
            self.stuck = 0;
            self.done = done;
        } else if self.left() > 0 {
            self.stuck += 1;
        }
        if self.stuck > STUCK_MAX { Err(Errno::IO) } else { Ok(()) }
    }
}

/// Refuses what a drive of `size` bytes can't do: `EINVAL` outside of it or unaligned.
pub(super) fn check(action: Action, at: u64, len: u64, size: u64) -> Result<(), DriveError> {
    let align = ALIGN as u64;
    let inside = at.checked_add(len).is_some_and(|end| end <= size);
    if inside && at.is_multiple_of(align) && len.is_multiple_of(align) {
        return Ok(());
    }
    Err(failed(action, at, len)(Errno::INVAL))
}

/// Makes the error of a request from the system's number.
pub(super) fn failed(action: Action, at: u64, len: u64) -> impl Fn(Errno) -> DriveError {
    move |errno| DriveError { action, at, len, errno: errno.raw_os_error() }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_torn_page_is_done_again() {
        let mut p = Progress::new(3 * 4096);
        p.advance(4096 + 512).unwrap();
        assert_eq!((p.done(), p.left()), (4096, 8192));
        p.advance(512).unwrap();
        assert_eq!(p.done(), 4096);
        p.advance(8192).unwrap();
        assert_eq!(p.left(), 0);
        p.advance(0).unwrap();
    }

    #[test]
    fn less_than_a_page_is_done_at_once_or_again() {
        let mut p = Progress::new(1536);
        p.advance(512).unwrap();
        assert_eq!(p.done(), 0);
        p.advance(1536).unwrap();
        assert_eq!(p.left(), 0);
    }

    #[test]
    fn what_does_not_move_fails() {
        let mut p = Progress::new(4096);
        for _ in 0..STUCK_MAX {
            p.advance(100).unwrap();
        }
        assert_eq!(p.advance(0), Err(Errno::IO));
    }

    #[test]
    fn outside_and_unaligned_are_refused() {
        let size = 1 << 20;
        check(Action::Read, size - 4096, 4096, size).unwrap();
        for (at, len) in [(size, 4096), (1, 4096), (0, 100), (u64::MAX - 4095, 8192)] {
            let error = check(Action::Read, at, len, size).unwrap_err();
            assert_eq!((error.at, error.errno), (at, 22));
        }
    }
}

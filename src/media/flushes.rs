//! Flushes of one drive by several threads at once.
//!
//! Where writes go through the page cache, the kernel reports once for each open file that some of
//! them were lost, to the first flush. Every flush that was asked for by then has to fail, too: the
//! lost writes may be its own.
//!
//! Invariants: one flush is under way at a time; what it returns is the result of one that began
//! after its caller had asked, or the failure of one that ended after that.

use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};

/// What several flushers have to know of each other.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    failures: AtomicU64,
    /// Locked by the thread that flushes: how the last failure was.
    last: Mutex<Option<Errno>>,
}

/// The moment at which a flush was asked for.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    failures: u64,
}

impl Flushes {
    /// Now: what was written before is to be flushed.
    pub(super) fn ask(&self) -> Asked {
        Asked { failures: self.failures.load(Ordering::Acquire) }
    }

    /// Flushes by `sync`, which no other thread calls meanwhile.
    ///
    /// # Errors
    /// Its own, or that of another flush that ended after this one was `asked` for.
    pub(super) fn run(
        &self,
        asked: Asked,
        sync: impl FnOnce() -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let mut last = self.last.lock();
        if self.failures.load(Ordering::Acquire) != asked.failures {
            return Err(last.unwrap_or(Errno::IO));
        }
        let result = sync();
        if let Err(e) = result {
            *last = Some(e);
            self.failures.fetch_add(1, Ordering::Release);
        }
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_fails_all_flushes_asked_for_before_and_no_later_one() {
        let flushes = Flushes::default();
        let [first, second, third] = std::array::from_fn(|_| flushes.ask());
        assert_eq!(flushes.run(first, || Ok(())), Ok(()));
        assert_eq!(flushes.run(second, || Err(Errno::NOSPC)), Err(Errno::NOSPC));
        let must_not_ask = || panic!("the kernel would say that all is well");
        assert_eq!(flushes.run(third, must_not_ask), Err(Errno::NOSPC));
        // It has been said, and what is written now is another matter.
        assert_eq!(flushes.run(flushes.ask(), || Ok(())), Ok(()));
    }
}

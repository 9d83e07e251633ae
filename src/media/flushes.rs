//! Flushes of one drive by several threads at once.
//!
//! Where writes go through the page cache, the kernel reports lost writes once for each open file,
//! to the first flush. Every flush that was requested by then has to fail, too: the lost writes may
//! be its own.
//!
//! Invariants: one flush runs at a time; a flush returns the result of one that began after its
//! request, or the failure of one that ended after its request.

use parking_lot::Mutex;
use rustix::io::Errno;
use std::sync::atomic::{AtomicU64, Ordering};

/// State that the flushers of one drive share.
#[derive(Debug, Default)]
pub(super) struct Flushes {
    failures: AtomicU64,
    /// The last failure; locked by the thread that flushes.
    last: Mutex<Option<Errno>>,
}

/// The moment of a flush request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked {
    failures: u64,
}

impl Flushes {
    /// Requests a flush of everything that was written before this call.
    pub(super) fn ask(&self) -> Asked {
        Asked { failures: self.failures.load(Ordering::Acquire) }
    }

    /// Flushes by `sync`, which no other thread runs meanwhile.
    ///
    /// # Errors
    /// That of `sync`, or that of another flush that ended after this one was `asked` for.
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
        // That failure has been reported, and later writes are not concerned.
        assert_eq!(flushes.run(flushes.ask(), || Ok(())), Ok(()));
    }
}

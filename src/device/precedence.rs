//! Whether a thread comes before others when processors are busy.
//!
//! Threads that serve a volume that carries swap do: a program that waits for a page waits for
//! them, and memory becomes free as fast as they take pages. The kernel's own swap works likewise
//! in the thread that waits, and for no longer.
//!
//! Invariant: a thread changes its own precedence only.

use std::cell::Cell;
use std::sync::atomic::{AtomicBool, Ordering};

/// The nice value that comes before all others.
const FIRST: i32 = -20;

thread_local! {
    /// The nice value that this thread had before it came first.
    static BEFORE: Cell<Option<i32>> = const { Cell::new(None) };
}

/// Whether the calling thread comes before others. Without the right to, it does not. A process
/// that a thread starts while it comes first must say here that it does not.
pub(crate) fn come_first(first: bool) {
    let now = rustix::process::getpriority_process(None).unwrap_or(0);
    let nice = match (first, BEFORE.get()) {
        (true, Some(_)) => return,
        (true, None) => {
            BEFORE.set(Some(now));
            FIRST
        }
        (false, Some(before)) => {
            BEFORE.set(None);
            before
        }
        // Of the thread that started this process.
        (false, None) if now == FIRST => 0,
        // As the user wants it.
        (false, None) => return,
    };
    let _ = rustix::process::setpriority_process(None, nice);
}

/// The precedence of the threads that serve a volume.
#[derive(Debug, Default)]
pub(super) struct Precedence(AtomicBool);

impl Precedence {
    /// Whether they come first from their next request on.
    pub(super) fn set(&self, first: bool) {
        self.0.store(first, Ordering::Relaxed);
    }

    /// Gives the calling thread, which begins to serve a request, that precedence.
    pub(super) fn take(&self) {
        let first = self.0.load(Ordering::Relaxed);
        if BEFORE.get().is_some() != first {
            come_first(first);
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn a_thread_takes_the_precedence_of_what_it_serves() {
        let nice = || rustix::process::getpriority_process(None).ok();
        let (precedence, before) = (Precedence::default(), nice());
        precedence.take();
        assert_eq!(nice(), before, "a volume that carries no swap changes nothing");
        precedence.set(true);
        precedence.take();
        let capable = rustix::thread::CapabilitySet::SYS_NICE;
        let privileged = rustix::thread::capabilities(None).unwrap().effective.contains(capable);
        assert_eq!(nice() == Some(FIRST), privileged);
        precedence.set(false);
        precedence.take();
        assert!(!privileged || nice() == before);
        // A process inherits the value, and does not know what was before; others keep theirs.
        for (inherited, then) in [(FIRST, 0), (7, 7)] {
            if rustix::process::setpriority_process(None, inherited).is_ok() {
                come_first(false);
                assert_eq!(nice(), Some(then));
            }
        }
    }
}

//! Whether the daemon may read its own volume's device.
//!
//! A read that comes after the export was left is answered by the next daemon, which waits until
//! this one has ended. So reads end before an export is left or stopped, while they are served.
//!
//! Invariant: while reads are held back none is in flight, except one that its drive did not answer
//! in time, and none begins.

use super::super::ranked::none_held;
use parking_lot::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// How long a read may take to end.
const LAST: Duration = Duration::from_secs(10);

/// See the module.
#[derive(Debug)]
pub struct Reads {
    /// How many threads hold reads back.
    held: AtomicUsize,
    /// Locked by the thread that reads.
    reading: Mutex<()>,
}

impl Reads {
    /// None is held back.
    pub const fn new() -> Self {
        Self { held: AtomicUsize::new(0), reading: Mutex::new(()) }
    }

    /// Whether none may begin now.
    pub fn are_held(&self) -> bool {
        self.held.load(Ordering::Acquire) > 0
    }

    /// Runs `read`, which ends soon once [`Self::are_held`]; `None`: it may not read now.
    pub fn run<T>(&self, read: impl FnOnce() -> T) -> Option<T> {
        let _reading = self.reading.lock();
        (!self.are_held()).then(read)
    }

    /// Holds reads back until what this returns is dropped, and waits until the present one has
    /// ended. The caller has no lock of this daemon.
    pub fn hold(&self) -> Held<'_> {
        none_held();
        self.held.fetch_add(1, Ordering::AcqRel);
        let held = Held(self);
        // A read that comes later finds the count raised. One that is late waits for a drive.
        drop(self.reading.try_lock_for(LAST));
        held
    }
}

/// Reads are held back.
#[derive(Debug)]
pub struct Held<'a>(&'a Reads);

impl Held<'_> {
    /// They are until the process ends.
    pub fn for_good(self) {
        std::mem::forget(self);
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::atomic::AtomicBool;
    use std::sync::mpsc;

    #[test]
    fn a_read_ends_before_reads_are_held_and_none_begins_then() {
        let (reads, ended) = (Reads::new(), AtomicBool::new(false));
        let (begun, inside) = mpsc::channel();
        let read = || {
            begun.send(()).unwrap();
            while !reads.are_held() {
                std::thread::yield_now();
            }
            std::thread::sleep(Duration::from_millis(20));
            ended.store(true, Ordering::SeqCst);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| reads.run(read));
            inside.recv().unwrap();
            let held = reads.hold();
            assert!(ended.load(Ordering::SeqCst), "it is still in flight");
            assert_eq!(reads.run(|| ()), None);
            drop(held);
        });
        assert_eq!(reads.run(|| 5), Some(5), "the export was not left");
        reads.hold().for_good();
        assert_eq!(reads.run(|| ()), None);
    }
}

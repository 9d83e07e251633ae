//! The locks and atomics of the concurrent parts, so that a schedule explorer can take them over.
//!
//! Ordinary builds get `parking_lot` and `std`; with `--cfg shuttle` every one of them is a point
//! at which [shuttle](https://docs.rs/shuttle) may switch threads. Code below `volume` that
//! threads share uses only these.

#[cfg(not(shuttle))]
mod plain {
    pub use parking_lot::{Mutex, MutexGuard};
    pub use std::sync::atomic;

    /// Has this thread's first wait for a lock behind it, which allocates: `parking_lot` then makes
    /// a place for the thread, and with every few of them a larger table of those who wait. Who
    /// carries swap can't ask for memory later. Waits for nothing.
    pub fn ready_to_wait() {
        let nobody_holds = Mutex::new(());
        let nobody_calls = parking_lot::Condvar::new();
        let _ = nobody_calls.wait_for(&mut nobody_holds.lock(), std::time::Duration::ZERO);
    }

    /// Lets somebody else run, in a loop that waits for them.
    pub fn relax(round: u32) {
        if round < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }

    /// The same where they wait for a device: the processor is left to others.
    pub fn rest(round: u32) {
        if round < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
}

#[cfg(shuttle)]
mod explored {
    pub use shuttle::sync::MutexGuard;
    pub use shuttle::sync::atomic;

    /// `parking_lot`'s interface (no poisoning) over shuttle's mutex.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// A mutex that nobody holds.
        pub fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }

        /// The lock, if nobody holds it.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// A thread under exploration has nothing to prepare.
    pub fn ready_to_wait() {}

    /// Lets somebody else run.
    pub fn relax(_round: u32) {
        shuttle::thread::yield_now();
    }

    pub use relax as rest;
}

#[cfg(shuttle)]
pub use explored::*;
#[cfg(not(shuttle))]
pub use plain::*;

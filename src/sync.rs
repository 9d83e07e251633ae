//! The locks and atomics of the concurrent parts, so that a schedule explorer can take them over.
//!
//! Ordinary builds get `parking_lot` and `std`; with `--cfg shuttle` every one of them is a point
//! at which [shuttle](https://docs.rs/shuttle) may switch threads. Code below `volume` that
//! threads share uses only these.

#[cfg(not(shuttle))]
mod plain {
    pub use parking_lot::{Mutex, MutexGuard};
    pub use std::sync::atomic;

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

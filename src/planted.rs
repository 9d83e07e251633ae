//! Fault injection: planted bugs show that the simulator and the exploration of schedules find such
//! bugs.
//!
//! Invariant: planted bugs exist only in builds with their `--cfg`; in all other builds none is
//! ever planted, which is known at compile time.

/// Makes the bugs of an enum, numbered from 1 on, plantable in builds with a `--cfg`.
macro_rules! plantable {
    ($bug:ty, $cfg:meta) => {
        #[cfg($cfg)]
        static PLANTED: std::sync::atomic::AtomicU8 = std::sync::atomic::AtomicU8::new(0);

        /// Plants a bug, or none, in the whole process.
        #[cfg($cfg)]
        pub fn plant(bug: Option<$bug>) {
            PLANTED.store(bug.map_or(0, |b| b as u8), std::sync::atomic::Ordering::SeqCst);
        }

        /// Whether this bug is planted.
        #[cfg($cfg)]
        pub fn on(bug: $bug) -> bool {
            PLANTED.load(std::sync::atomic::Ordering::SeqCst) == bug as u8
        }

        /// Whether this bug is planted: never in this build.
        #[cfg(not($cfg))]
        pub const fn on(_: $bug) -> bool {
            false
        }
    };
}

pub(crate) use plantable;

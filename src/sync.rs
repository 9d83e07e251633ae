//! The locks and atomics of the concurrent parts, replaceable by those of a schedule explorer.
//!
//! Ordinary builds use `parking_lot` and `std`; with `--cfg shuttle` each operation is a point
//! where [shuttle](https://docs.rs/shuttle) may switch threads. Below `volume`, code that threads
//! share uses only these.

#[cfg(not(shuttle))]
mod plain {
    pub use parking_lot::{Mutex, MutexGuard};
    use rustix::thread::futex::{self, Flags, Timespec};
    use std::io::Result;
    pub use std::sync::atomic;
    use std::sync::atomic::AtomicU32;
    use std::thread::{Builder, ScopedJoinHandle};
    pub use std::thread::{JoinHandle, Scope, scope, sleep};
    use std::time::Duration;
    pub use std::{thread_local, time::Instant};

    /// The present time.
    pub fn now() -> Instant {
        Instant::now()
    }

    /// A condition variable whose waits are all bounded.
    #[derive(Debug, Default)]
    pub struct Condvar(parking_lot::Condvar);

    impl Condvar {
        /// Ends all waits.
        pub fn notify_all(&self) {
            self.0.notify_all();
        }

        /// Releases the lock until the next notification, but no longer than `most`.
        pub fn wait_for<'a, T>(
            &self,
            _: &'a Mutex<T>,
            mut guard: MutexGuard<'a, T>,
            most: Duration,
        ) -> MutexGuard<'a, T> {
            self.0.wait_for(&mut guard, most);
            guard
        }
    }

    /// Waits until [`wake_all`] is called for `word`, but no longer than `most`. Returns at once if
    /// `word` is no longer `seen`; may end early.
    pub fn wait_on(word: &AtomicU32, seen: u32, most: Duration) {
        let time = Timespec { tv_sec: most.as_secs() as i64, tv_nsec: most.subsec_nanos().into() };
        // An interruption ends the wait early.
        let _ = futex::wait(word, Flags::PRIVATE, seen, Some(&time));
    }

    /// Ends all waits for `word`.
    pub fn wake_all(word: &AtomicU32) {
        // Fails only for an invalid address.
        let _ = futex::wake(word, Flags::PRIVATE, i32::MAX as u32);
    }

    /// Passes the lock to a thread that waits for it, and takes it again.
    pub fn step_aside<'a, T>(_: &'a Mutex<T>, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        MutexGuard::bump(&mut guard);
        guard
    }

    /// Waits for the lock, but no longer than `most`.
    pub fn lock_within<T>(mutex: &Mutex<T>, most: Duration) -> Option<MutexGuard<'_, T>> {
        mutex.try_lock_for(most)
    }

    /// Starts a thread.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
        Builder::new().name(name.into()).spawn(work)
    }

    /// Starts a thread that ends with its scope.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub fn spawn_scoped<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        work: impl FnOnce() + Send + 'scope,
    ) -> Result<ScopedJoinHandle<'scope, ()>> {
        Builder::new().spawn_scoped(scope, work)
    }

    /// Does this thread's first wait for a lock in advance, because it allocates: `parking_lot`
    /// then makes the thread's data, and from time to time a larger table of waiters. A thread that
    /// carries swap can't allocate later. Waits for nothing.
    pub fn ready_to_wait() {
        let free = Mutex::new(());
        let never_signalled = parking_lot::Condvar::new();
        let _ = never_signalled.wait_for(&mut free.lock(), std::time::Duration::ZERO);
    }

    /// Lets another thread run, in a loop that waits for that thread.
    pub fn relax(round: u32) {
        if round < 64 {
            std::hint::spin_loop();
        } else {
            std::thread::yield_now();
        }
    }

    /// As [`relax`], if that thread waits for a device: leaves the processor to others.
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
    use shuttle::thread::ScopedJoinHandle;
    pub use shuttle::thread::{JoinHandle, Scope, scope};
    pub use shuttle::thread_local;
    use std::io::Result;
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::time::Duration;
    pub use std::time::Instant;

    /// Nanoseconds that threads have slept: under exploration only sleeping makes time pass.
    static SLEPT: AtomicU64 = AtomicU64::new(0);
    static BEGAN: OnceLock<Instant> = OnceLock::new();

    /// The present time.
    pub fn now() -> Instant {
        let slept = Duration::from_nanos(SLEPT.load(Ordering::Relaxed));
        *BEGAN.get_or_init(Instant::now) + slept
    }

    /// Makes time pass, and lets other threads run.
    pub fn sleep(time: Duration) {
        SLEPT.fetch_add(time.as_nanos() as u64, Ordering::Relaxed);
        shuttle::thread::yield_now();
    }

    /// A condition variable whose waits are all bounded, and may all end early: a cycle of waits
    /// then goes on for ever, which the explorer's bound on steps finds.
    #[derive(Debug, Default)]
    pub struct Condvar;

    impl Condvar {
        /// Does nothing: waits end by themselves.
        pub fn notify_all(&self) {}

        /// Releases the lock while others run.
        pub fn wait_for<'a, T>(
            &self,
            mutex: &'a Mutex<T>,
            guard: MutexGuard<'a, T>,
            most: Duration,
        ) -> MutexGuard<'a, T> {
            drop(guard);
            sleep(most);
            mutex.lock()
        }
    }

    /// Waits for a change of `word`. Returns at once if it is no longer `seen`; otherwise ends
    /// early.
    pub fn wait_on(word: &atomic::AtomicU32, seen: u32, most: Duration) {
        if word.load(Ordering::SeqCst) == seen {
            sleep(most);
        }
    }

    /// Does nothing: waits end by themselves.
    pub fn wake_all(_: &atomic::AtomicU32) {}

    /// Passes the lock to a thread that waits for it, and takes it again.
    pub fn step_aside<'a, T>(mutex: &'a Mutex<T>, guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        drop(guard);
        shuttle::thread::yield_now();
        mutex.lock()
    }

    /// Waits for the lock, but no longer than `most`.
    pub fn lock_within<T>(mutex: &Mutex<T>, most: Duration) -> Option<MutexGuard<'_, T>> {
        mutex.try_lock().or_else(|| {
            sleep(most);
            mutex.try_lock()
        })
    }

    /// Starts a thread.
    ///
    /// # Errors
    /// None.
    pub fn spawn(_: &str, work: impl FnOnce() + Send + 'static) -> Result<JoinHandle<()>> {
        Ok(shuttle::thread::spawn(work))
    }

    /// Starts a thread that ends with its scope.
    ///
    /// # Errors
    /// None.
    pub fn spawn_scoped<'scope, 'env>(
        scope: &'scope Scope<'scope, 'env>,
        work: impl FnOnce() + Send + 'scope,
    ) -> Result<ScopedJoinHandle<'scope, ()>> {
        Ok(scope.spawn(work))
    }

    /// `parking_lot`'s interface (no poisoning) over shuttle's mutex.
    #[derive(Debug, Default)]
    pub struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        /// An unlocked mutex.
        pub fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        /// Waits for the lock.
        pub fn lock(&self) -> MutexGuard<'_, T> {
            self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
        }

        /// The guarded value.
        pub fn into_inner(self) -> T {
            self.0.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner)
        }

        /// The lock, if it is free.
        pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
            self.0.try_lock().ok()
        }
    }

    /// Does nothing: a thread under exploration has nothing to prepare.
    pub fn ready_to_wait() {}

    /// Lets another thread run.
    pub fn relax(_round: u32) {
        shuttle::thread::yield_now();
    }

    pub use relax as rest;
}

#[cfg(shuttle)]
pub use explored::*;
#[cfg(not(shuttle))]
pub use plain::*;

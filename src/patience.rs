//! Waits for what threads, processes and the kernel do, each with a bound.
//!
//! Invariants: a wait looks at least once, also when its time has passed; a signal does not make it
//! longer.

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::{Errno, Result};
use std::os::fd::AsFd;
use std::time::{Duration, Instant};

/// Waits until `is_so`, for `most` at most, and asks that at intervals of `look`. Returns whether
/// it is so.
pub fn eventually(most: Duration, look: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let deadline = Instant::now() + most;
    while !is_so() {
        if Instant::now() >= deadline {
            return false;
        }
        std::thread::sleep(look);
    }
    true
}

/// Waits until `fd` has something to read, or its end, but not beyond `deadline`. Returns whether
/// it has.
///
/// # Errors
/// The system's.
pub fn readable(fd: impl AsFd, deadline: Instant) -> Result<bool> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        // A time that the kernel can't count is as good as none.
        let left = Timespec::try_from(left).ok();
        match poll(&mut [PollFd::new(&fd, PollFlags::IN)], left.as_ref()) {
            Err(Errno::INTR) => {}
            found => return found.map(|n| n > 0),
        }
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::Write;
    use std::os::unix::net::UnixStream;
    use std::os::unix::thread::JoinHandleExt;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;

    const SOON: Duration = Duration::from_millis(1);

    #[test]
    fn a_wait_ends_with_what_it_is_for_or_with_its_time() {
        let mut looks = 0;
        let third = || {
            looks += 1;
            looks == 3
        };
        assert!(eventually(Duration::from_secs(60), SOON, third));
        assert!(eventually(Duration::ZERO, SOON, || true), "it looks once");
        assert!(!eventually(SOON, SOON, || false));
    }

    #[test]
    fn a_descriptor_is_readable_when_it_has_bytes_or_its_end() {
        let (mut ours, theirs) = UnixStream::pair().unwrap();
        assert!(!readable(&theirs, Instant::now()).unwrap());
        ours.write_all(b"x").unwrap();
        assert!(readable(&theirs, Instant::now()).unwrap());
        let (ours, theirs) = UnixStream::pair().unwrap();
        drop(ours);
        assert!(readable(&theirs, Instant::now() + Duration::from_secs(60)).unwrap());
    }

    #[test]
    fn signals_do_not_make_a_wait_longer() {
        let came = Arc::default();
        signal_hook::flag::register(libc::SIGUSR2, Arc::clone(&came)).unwrap();
        let (_ours, theirs) = UnixStream::pair().unwrap();
        let deadline = Instant::now() + Duration::from_millis(50);
        let waits = std::thread::spawn(move || readable(&theirs, deadline));
        while !waits.is_finished() {
            assert!(Instant::now() < deadline + Duration::from_secs(20));
            // An integer or a pointer, as the C library has it.
            let thread = waits.as_pthread_t() as libc::pthread_t;
            // SAFETY: the thread is not joined yet, so this is its handle.
            unsafe { libc::pthread_kill(thread, libc::SIGUSR2) };
            std::thread::sleep(SOON);
        }
        assert!(!waits.join().unwrap().unwrap());
        assert!(came.load(Ordering::Relaxed));
    }
}

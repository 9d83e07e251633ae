//! SIGINT, SIGTERM and SIGHUP end a run in order.
//!
//! Invariant: a signal only sets a flag. Loops call [`check`] and fail, and guards undo the run's
//! work as the stack unwinds; no handler tears anything down.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use ztier::error::{Context, Error, Result};

static FLAG: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// Installs the handlers; call once, at the start.
pub fn install() -> Result<()> {
    let flag = FLAG.get_or_init(Arc::default);
    for signal in
        [signal_hook::consts::SIGINT, signal_hook::consts::SIGTERM, signal_hook::consts::SIGHUP]
    {
        signal_hook::flag::register(signal, Arc::clone(flag)).context("cannot handle signals")?;
    }
    Ok(())
}

/// Whether a signal has requested the end of the run.
pub fn requested() -> bool {
    FLAG.get().is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// Fails if the run has to end.
///
/// # Errors
/// `interrupted`.
pub fn check() -> Result<()> {
    if requested() { Err(Error::failure("interrupted")) } else { Ok(()) }
}

/// Sleeps; fails at once when the run has to end.
///
/// # Errors
/// `interrupted`.
pub fn sleep(time: std::time::Duration) -> Result<()> {
    let end = std::time::Instant::now() + time;
    loop {
        check()?;
        let left = end.saturating_duration_since(std::time::Instant::now());
        if left.is_zero() {
            return Ok(());
        }
        std::thread::sleep(left.min(std::time::Duration::from_millis(50)));
    }
}

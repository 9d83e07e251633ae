//! The drives below a volume: their failures, and random bytes for what is written to them.

use crate::error::{Context, Error, Result};
use crate::media::{DriveError, Failures};
use crate::stats::drives::{Failing, Role};
use std::path::Path;
use std::sync::Arc;

/// Called when a drive has failed a request, or blocks are lost. Must neither wait nor allocate.
pub type Alarm = Arc<dyn Fn() + Send + Sync>;

/// The failures of a drive; `None` if it has failed no request.
pub(super) fn failing(role: Role, failures: &Failures) -> Option<Failing> {
    let seen = failures.seen();
    let path = failures.path().display().to_string();
    (!seen.is_empty()).then_some(Failing { role, path, failures: seen })
}

/// Has `alarm` called whenever the drive fails a request.
pub(super) fn heed(failures: &Failures, alarm: &Alarm) {
    let alarm = Arc::clone(alarm);
    failures.heed(Box::new(move || alarm()));
}

/// The error of a failed drive, with its path.
pub(super) fn failed(path: &Path, e: &DriveError) -> Error {
    Error::failure(format!("{}: {e}", path.display())).hint("look into the kernel's log")
}

/// `N` random bytes from the kernel.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        at += rustix::rand::getrandom(&mut bytes[at..], flags).context("no random numbers")?;
    }
    Ok(bytes)
}

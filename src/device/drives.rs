//! The drives below a volume: how they have failed, and random bytes for what is written to them.

use crate::error::{Context, Error, Result};
use crate::media::{DriveError, Failures};
use crate::stats::drives::{Failing, Role};
use std::path::Path;
use std::sync::Arc;

/// Called when a drive has failed a request, or blocks are lost. It must neither wait nor allocate.
pub type Alarm = Arc<dyn Fn() + Send + Sync>;

/// What has failed on a drive; `None` if nothing has.
pub(super) fn failing(role: Role, failures: &Failures) -> Option<Failing> {
    let seen = failures.seen();
    let path = failures.path().display().to_string();
    (!seen.is_empty()).then_some(Failing { role, path, failures: seen })
}

/// Has `alarm` called whenever a drive fails.
pub(super) fn heed(failures: &Failures, alarm: &Alarm) {
    let alarm = Arc::clone(alarm);
    failures.heed(Box::new(move || alarm()));
}

/// A drive that failed, named.
pub(super) fn failed(path: &Path, e: &DriveError) -> Error {
    Error::failure(format!("{}: {e}", path.display())).hint("look into the kernel's log")
}

/// Random bytes.
pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut at = 0;
    while at < N {
        let flags = rustix::rand::GetRandomFlags::empty();
        at += rustix::rand::getrandom(&mut bytes[at..], flags).context("no random numbers")?;
    }
    Ok(bytes)
}

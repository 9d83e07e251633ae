//! The drives below a volume, as far as they have failed.

use crate::media::{Drive, Failures};
use crate::stats::drives::{Failing, Role};
use std::sync::Arc;

/// Called when a drive has failed a request, or blocks are lost. It must neither wait nor allocate.
pub type Alarm = Arc<dyn Fn() + Send + Sync>;

/// A drive and what it is to its volume.
pub(super) type Below = (Role, Arc<dyn Drive>);

/// Those of the drives on which something has failed.
pub(super) fn failing(drives: &[Below]) -> Vec<Failing> {
    drives.iter().filter_map(|(role, drive)| failing_as(*role, drive.failures()?)).collect()
}

/// What has failed on a drive; `None` if nothing has.
pub(super) fn failing_as(role: Role, failures: &Failures) -> Option<Failing> {
    let seen = failures.seen();
    let path = failures.path().display().to_string();
    (!seen.is_empty()).then_some(Failing { role, path, failures: seen })
}

/// Has `alarm` called whenever one of the drives fails.
pub(super) fn heed(drives: &[Below], alarm: &Alarm) {
    for failures in drives.iter().filter_map(|(_, drive)| drive.failures()) {
        let alarm = Arc::clone(alarm);
        failures.heed(Box::new(move || alarm()));
    }
}

//! The drives below a volume, as far as they have failed.

use crate::media::Failures;
use crate::stats::drives::{Failing, Role};
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

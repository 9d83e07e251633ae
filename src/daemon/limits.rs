//! Limits of this process that were set where it was started, for programs of another kind.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// How many descriptors this process may have, which is made as many as it is allowed to set.
pub(super) fn descriptors() -> usize {
    raise(Resource::Nofile).and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX)
}

/// Makes a limit what it may be raised to; says what it is then, `None` for no limit.
fn raise(what: Resource) -> Option<u64> {
    let limit = getrlimit(what);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum && setrlimit(what, raised).is_err() {
        return limit.current;
    }
    limit.maximum
}

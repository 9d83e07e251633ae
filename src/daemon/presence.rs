//! What shows in the run directory that a daemon is there.

use super::state::Lock;
use crate::control::Server;

/// The open files of a daemon in the run directory.
pub(super) struct Presence {
    pub control: Server,
    pub lock: Lock,
}

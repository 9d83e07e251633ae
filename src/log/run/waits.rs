//! What a thread of a log may wait for.
//!
//! Invariant: everything in [`Awaited`] needs only what comes before it in order to end, and the
//! threads that bring it about wait for nothing that comes after. So no threads wait for each other
//! in a circle. [`check`] asserts this in builds with debug assertions, and in those of the
//! schedule explorer, which turns a circle that is left into a failing schedule.
//!
//! | thread | brings about | may wait for |
//! |---|---|---|
//! | one that serves a request | its own commit, its own fill | everything |
//! | commits (`ztier-log`) | commits that no request waits for | a drive |
//! | admission (`ztier-admission`) | nothing | a drive |
//! | writeback (`ztier-writeback`) | room, the rescue of a failed log | a drive, fills, commits |
//!
//! A thread that has reserved a place waits for nothing before it has filled it. Stripes of blocks
//! are held by threads that serve requests alone, also while they wait for room, so no other thread
//! takes one.

use crate::sync::thread_local;
use std::cell::Cell;

/// What can be waited for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Awaited {
    /// The end of a drive's command.
    Drive,
    /// Chunks or a superblock are durable, or the log has failed. Needs fills, and commands that
    /// the waiting thread carries out itself.
    Commit,
    /// A window of writeback ends: room in the log, or the rescue of one that has failed.
    Writeback,
}

/// What a thread is there for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Serves requests, or a command.
    Request,
    /// Commits what no request waits for.
    Commit,
    /// Keeps in the log what is read often.
    Admission,
    /// Brings the log's content to the backing store.
    Writeback,
}

impl Role {
    fn may_wait_for(self, awaited: Awaited) -> bool {
        let last = match self {
            Self::Request => Awaited::Writeback,
            Self::Writeback => Awaited::Commit,
            Self::Commit | Self::Admission => Awaited::Drive,
        };
        awaited <= last
    }
}

thread_local! {
    static ROLE: Cell<Role> = const { Cell::new(Role::Request) };
}

/// Says what this thread is there for from now on.
pub(super) fn begin(role: Role) {
    ROLE.with(|own| own.set(role));
}

/// Asserts that this thread may wait for that.
pub(super) fn check(awaited: Awaited) {
    let role = ROLE.with(Cell::get);
    debug_assert!(role.may_wait_for(awaited), "{role:?} waits for {awaited:?}");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_thread_waits_for_what_it_brings_about() {
        assert!(!Role::Writeback.may_wait_for(Awaited::Writeback));
        assert!(!Role::Commit.may_wait_for(Awaited::Commit));
        assert!(Role::Request.may_wait_for(Awaited::Writeback));
    }
}

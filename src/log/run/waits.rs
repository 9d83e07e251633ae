//! What a thread of a log may wait for.
//!
//! Invariant: [`Awaited`] is ordered. Each item depends only on earlier ones, and the threads that
//! bring it about wait for no later one. So there is no cycle of waits. [`check`] asserts this in
//! builds with debug assertions, and in those of the schedule explorer, where a remaining cycle
//! fails a schedule.
//!
//! | thread | brings about | may wait for |
//! |---|---|---|
//! | one that serves a request | its own commit, its own fill | everything |
//! | commits (`ztier-log`) | commits that no request waits for | a drive |
//! | admission (`ztier-admission`) | nothing | a drive |
//! | writeback (`ztier-writeback`) | room, the rescue of a failed log | a drive, fills, commits |
//!
//! A thread must not wait between reserving a place and filling it. Only threads that serve
//! requests take stripe locks, and they hold them while they wait for room, so no other thread
//! takes one.

use crate::sync::thread_local;
use std::cell::Cell;

/// What a thread can wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Awaited {
    /// A drive's command ends.
    Drive,
    /// Chunks or a superblock become durable, or the log fails. Needs fills, and commands that the
    /// waiting thread carries out itself.
    Commit,
    /// A window of writeback ends: it makes room in the log, or rescues a failed one.
    Writeback,
}

/// The role of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    /// Serves requests, or a command.
    Request,
    /// Commits what no request waits for.
    Commit,
    /// Keeps copies of often-read blocks in the log.
    Admission,
    /// Writes the log's content to the backing store.
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

/// Sets the role of this thread.
pub(super) fn begin(role: Role) {
    ROLE.with(|own| own.set(role));
}

/// Asserts that this thread may wait for `awaited`.
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

//! Kinds of requests, by how long they take, and how many of each a daemon carries out at once.

use super::protocol::Request;

/// The most clients that have a place. Others wait until a silent one is cut off.
pub(super) const MOST_CLIENTS: usize = 20;
/// The most drains, and the most changes, that are carried out at once, so that others find a
/// place.
pub(super) const MOST_ALIKE: usize = 6;
/// The most requests that wait for events.
pub(super) const MOST_WATCHING: usize = 4;
const _: () = assert!(MOST_CLIENTS > 2 * MOST_ALIKE + MOST_WATCHING);

/// Kinds of requests, by how long they take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// It only reads.
    Look,
    /// It takes until the log is drained.
    Drain,
    /// It waits for an event.
    Watch,
    /// It waits for other changes, and for its caller.
    Change,
}

impl Kind {
    /// The kind of `request`.
    pub fn of(request: &Request) -> Self {
        match request {
            Request::Drain => Self::Drain,
            Request::Events(_) => Self::Watch,
            request if request.changes() => Self::Change,
            _ => Self::Look,
        }
    }

    /// The most requests of this kind that are carried out at once.
    pub fn most(self) -> usize {
        match self {
            Self::Look => MOST_CLIENTS,
            Self::Watch => MOST_WATCHING,
            Self::Drain | Self::Change => MOST_ALIKE,
        }
    }
}

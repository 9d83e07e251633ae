//! The memory that large requests of all clients of a server share.
//!
//! Invariants:
//! - What is lent is never more than a share has, whatever clients send, ask for, or leave unread.
//! - Parts are lent in the order in which clients ask. A client that asks has none, so no two
//!   clients wait for each other.

use super::proto::MAX_PAYLOAD;
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Writes, and replies in several chunks, beyond this length are carried out piece by piece.
pub const PIECE: usize = 1 << 20;
/// Replies are sent once this many bytes wait, even if more requests are buffered: the client gets
/// to work while we do. The base of the send buffer also has room for a reply of that length.
pub const SEND_AT: usize = 128 << 10;
/// Bytes that a connection takes for a piece in each direction, for what waits to be sent, and for
/// the heads of chunks.
pub const PART: usize = 2 * PIECE + SEND_AT + (64 << 10);
/// Most connections that have a part at the same time.
const PARTS: usize = 8;
/// The largest reply in one piece, what waits to be sent before it, and its head.
const WHOLE: usize = MAX_PAYLOAD as usize + SEND_AT + (64 << 10);
/// How often a client that waits for a part looks whether the server stops.
const LOOK: Duration = Duration::from_millis(100);

/// The memory of a server: for pieces, and for replies that have to be in memory as a whole, so
/// that the latter keep no client with pieces waiting.
pub struct Shares {
    pieces: Arc<Share>,
    whole: Arc<Share>,
}

impl Default for Shares {
    fn default() -> Self {
        Self { pieces: Share::of(PARTS * PART), whole: Share::of(WHOLE) }
    }
}

impl Shares {
    /// The share that lends `bytes` bytes to one connection.
    pub fn of(&self, bytes: usize) -> &Arc<Share> {
        if bytes <= PART { &self.pieces } else { &self.whole }
    }
}

/// Memory that is lent in parts.
pub struct Share {
    most: usize,
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    lent: usize,
    /// Tickets of the clients that wait, oldest first.
    waiting: VecDeque<u64>,
    next: u64,
}

impl Share {
    fn of(most: usize) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default(), changed: Condvar::new() })
    }

    /// Waits for a part of `bytes` bytes, at most all that the share has; `None` if the server
    /// stops.
    pub fn take(self: &Arc<Self>, bytes: usize, closed: &AtomicBool) -> Option<Part> {
        debug_assert!(bytes <= self.most);
        let mut state = self.state.lock();
        let ticket = state.next;
        state.next += 1;
        state.waiting.push_back(ticket);
        while state.waiting.front() != Some(&ticket) || state.lent + bytes > self.most {
            if closed.load(Ordering::Relaxed) {
                state.waiting.retain(|other| *other != ticket);
                self.changed.notify_all();
                return None;
            }
            self.changed.wait_for(&mut state, LOOK);
        }
        state.waiting.pop_front();
        state.lent += bytes;
        // Enough may be left for the next client.
        self.changed.notify_all();
        Some(Part { share: Arc::clone(self), bytes })
    }

    /// Whether a client waits for a part.
    pub fn is_wanted(&self) -> bool {
        !self.state.lock().waiting.is_empty()
    }
}

/// A part of a share; given back when dropped.
pub struct Part {
    share: Arc<Share>,
    bytes: usize,
}

impl Part {
    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The share that it is a part of.
    pub fn share(&self) -> &Share {
        &self.share
    }
}

impl Drop for Part {
    fn drop(&mut self) {
        self.share.state.lock().lent -= self.bytes;
        self.share.changed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::sync::mpsc::channel;

    #[test]
    fn parts_are_lent_in_order_and_never_too_many() {
        let share = Share::of(100);
        let open = AtomicBool::new(false);
        let first = share.take(90, &open).unwrap();
        assert!(!share.is_wanted());
        let (sender, lent) = channel();
        std::thread::scope(|scope| {
            for (waiting, bytes) in [(1, 20), (2, 5)] {
                let (sender, other, open) = (sender.clone(), Arc::clone(&share), &open);
                scope.spawn(move || {
                    let part = other.take(bytes, open).unwrap();
                    sender.send(part.bytes()).unwrap();
                });
                while share.state.lock().waiting.len() < waiting {
                    std::thread::yield_now();
                }
            }
            // The small part would fit, and waits because it was asked for later.
            std::thread::sleep(2 * LOOK);
            assert!(lent.try_recv().is_err() && share.is_wanted());
            drop(first);
            let mut both = [lent.recv().unwrap(), lent.recv().unwrap()];
            both.sort_unstable();
            assert_eq!(both, [5, 20]);
        });
        assert_eq!(share.state.lock().lent, 0);
    }

    #[test]
    fn nothing_is_waited_for_when_the_server_stops() {
        let share = Share::of(100);
        let closed = AtomicBool::new(true);
        let all = share.take(100, &closed).unwrap();
        assert!(share.take(1, &closed).is_none());
        assert!(!share.is_wanted());
        assert_eq!(all.bytes(), 100);
    }
}

//! Places of a server's clients: their number is bounded, and a silent client loses its place to
//! the next one.
//!
//! Invariants:
//! - A connection has a place from before its thread starts until that thread drops it, so places
//!   bound threads and descriptors.
//! - Only a client that the server waits for is cut off: a request that is being carried out never
//!   is.

use parking_lot::{Condvar, Mutex};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{Shutdown, shutdown};
use std::os::fd::AsFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long a client may be silent while others wait: its process may not run at once.
pub const GRACE: Duration = Duration::from_millis(30);
/// How long a client may leave its answer unread while others wait: its network may be slow.
pub const GRACE_TAKING: Duration = Duration::from_secs(1);
/// The longest wait for a place: after it, a server checks whether it should end.
const LOOK: Duration = Duration::from_millis(10);

/// All places of a server.
pub struct Places<S> {
    most: usize,
    table: Mutex<Table<S>>,
    /// Notified when a place becomes free.
    left: Condvar,
}

struct Table<S> {
    next: u64,
    entries: Vec<Entry<S>>,
}

struct Entry<S> {
    id: u64,
    socket: Arc<S>,
    state: State,
}

/// The state of a client's connection.
#[derive(Clone, Copy, PartialEq, Eq)]
enum State {
    /// The server waits for the client's request.
    Asking { since: Instant },
    /// The server waits for the client to receive the answer.
    Taking { since: Instant },
    /// A request of this kind is being carried out.
    AtWork { kind: u8 },
    /// The connection was shut down; its thread is about to notice.
    CutOff,
}

/// The result of [`Place::works`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Heard {
    /// The request may be carried out.
    Begins,
    /// The limit for requests of its kind is reached.
    TooMany,
    /// Its client was cut off meanwhile.
    CutOff,
}

impl<S: AsFd> Places<S> {
    /// A table with `most` places.
    pub fn new(most: usize) -> Arc<Self> {
        let table = Table { next: 0, entries: Vec::with_capacity(most) };
        Arc::new(Self { most, table: Mutex::new(table), left: Condvar::new() })
    }

    /// Whether a place is free. If none is, cuts off a silent client and waits for its place, but
    /// only for a moment: call again.
    pub fn make_room(&self) -> bool {
        let until = Instant::now() + LOOK;
        let mut table = self.table.lock();
        while table.entries.len() >= self.most {
            table.cut_off_one();
            if self.left.wait_until(&mut table, until).timed_out() {
                return table.entries.len() < self.most;
            }
        }
        true
    }

    /// Cuts off a silent client to free its place and descriptor. Returns whether one is free now.
    pub fn give_up_one(&self) -> bool {
        let until = Instant::now() + LOOK;
        let mut table = self.table.lock();
        let before = table.entries.len();
        while table.cut_off_one() && !self.left.wait_until(&mut table, until).timed_out() {
            if table.entries.len() < before {
                return true;
            }
        }
        table.entries.len() < before
    }

    /// Gives a place to a connection whose client will send a request. The caller has made room.
    pub fn take(self: &Arc<Self>, socket: S) -> Place<S> {
        let socket = Arc::new(socket);
        let mut table = self.table.lock();
        let id = table.next;
        table.next += 1;
        let state = State::Asking { since: Instant::now() };
        table.entries.push(Entry { id, socket: Arc::clone(&socket), state });
        drop(table);
        Place { all: Arc::clone(self), id, socket }
    }
}

impl<S: AsFd> Table<S> {
    /// Cuts off the client that has been silent longest, if its grace is over. Returns whether a
    /// place is about to become free.
    fn cut_off_one(&mut self) -> bool {
        if self.entries.iter().any(|entry| entry.state == State::CutOff) {
            return true;
        }
        let silent = self.entries.iter_mut().filter(|entry| entry.is_silent());
        let Some(entry) = silent.min_by_key(|entry| entry.since()) else { return false };
        entry.state = State::CutOff;
        // The client may have hung up already.
        let _ = shutdown(&*entry.socket, Shutdown::Both);
        true
    }
}

impl<S: AsFd> Entry<S> {
    fn since(&self) -> Option<Instant> {
        match self.state {
            State::Asking { since } | State::Taking { since } => Some(since),
            State::AtWork { .. } | State::CutOff => None,
        }
    }

    fn is_silent(&self) -> bool {
        match self.state {
            // Bytes that have arrived are read as soon as the client's thread runs.
            State::Asking { since } => since.elapsed() >= GRACE && !readable(&*self.socket),
            State::Taking { since } => since.elapsed() >= GRACE_TAKING,
            State::AtWork { .. } | State::CutOff => false,
        }
    }
}

fn readable(socket: &impl AsFd) -> bool {
    let mut fds = [PollFd::new(socket, PollFlags::IN)];
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&at_once)).is_ok_and(|n| n > 0)
}

/// The place of one connection. Dropping it, also in a panic, frees the place.
pub struct Place<S: AsFd> {
    all: Arc<Places<S>>,
    id: u64,
    socket: Arc<S>,
}

impl<S: AsFd> Place<S> {
    /// The connection.
    pub fn socket(&self) -> &S {
        &self.socket
    }

    /// From now on the server waits for the client to send something.
    pub fn awaits(&self) {
        self.becomes(State::Asking { since: Instant::now() }, usize::MAX);
    }

    /// From now on the server waits for the client to receive its answer.
    pub fn answers(&self) {
        self.becomes(State::Taking { since: Instant::now() }, usize::MAX);
    }

    /// The client has sent its request: unless it was cut off already, it no longer can be. At most
    /// `most` requests of this `kind` may be carried out.
    pub fn works(&self, kind: u8, most: usize) -> Heard {
        self.becomes(State::AtWork { kind }, most)
    }

    fn becomes(&self, state: State, most: usize) -> Heard {
        let mut table = self.all.table.lock();
        let alike = table.entries.iter().filter(|entry| entry.state == state).count();
        let Some(own) = table.entries.iter_mut().find(|entry| entry.id == self.id) else {
            return Heard::CutOff;
        };
        if own.state == State::CutOff {
            return Heard::CutOff;
        }
        if alike >= most {
            return Heard::TooMany;
        }
        own.state = state;
        Heard::Begins
    }
}

impl<S: AsFd> Drop for Place<S> {
    fn drop(&mut self) {
        self.all.table.lock().entries.retain(|entry| entry.id != self.id);
        self.all.left.notify_all();
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;

    /// Makes room as a server does, within 20 s.
    fn room(places: &Places<UnixStream>) -> bool {
        let until = Instant::now() + Duration::from_secs(20);
        loop {
            if places.make_room() {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
        }
    }

    #[test]
    fn the_client_that_is_silent_for_longest_gives_way() {
        let places = Places::new(3);
        let mut ends: Vec<_> = (0..3).map(|_| UnixStream::pair().unwrap()).collect();
        let mut taken: Vec<_> = ends
            .iter()
            .map(|(_, server)| {
                assert!(places.make_room());
                places.take(server.try_clone().unwrap())
            })
            .collect();
        // The first has sent its request, and bytes of the second have arrived.
        assert_eq!(taken[0].works(0, 1), Heard::Begins);
        ends[1].0.write_all(b"x").unwrap();
        std::thread::scope(|scope| {
            let silent = taken.pop().unwrap();
            scope.spawn(move || {
                // Ends when it is cut off, like a thread that serves.
                let mut socket = silent.socket().try_clone().unwrap();
                socket.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
                assert_eq!(socket.read(&mut [0]).unwrap(), 0);
                assert_eq!(silent.works(0, usize::MAX), Heard::CutOff);
            });
            assert!(room(&places));
        });
        let next = places.take(UnixStream::pair().unwrap().1);
        assert_eq!(next.works(0, 1), Heard::TooMany);
        assert_eq!(next.works(0, 2), Heard::Begins);
        // Arrived bytes keep the second client's place; no client is silent.
        assert!(!places.make_room() && !places.give_up_one());
        taken[0].answers();
        drop(next);
        assert!(places.make_room());
    }
}

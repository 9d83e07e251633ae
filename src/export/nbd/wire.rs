//! A connection's bytes: one large buffer in each direction, so that pipelined requests cost one
//! `recv` and their replies one `send`.
//!
//! Invariants:
//! - A payload lies in one piece in the receive buffer and is served from there; a reply is built
//!   where it is sent from. No payload is copied between buffers of this process.
//! - What is received beyond the present message stays buffered for the next one.
//! - Waiting means sleeping. (Measured: to look again for 20 µs first served no more requests a
//!   second on two processors, and took half as much processor time again for each.)
//! - A buffer is larger than its base only while the connection has a part of the memory that all
//!   clients share; a client that holds up others by it is cut off.

use super::share::{Part, SEND_AT, Share, Shares};
use crate::patience::readable;
use rustix::io::Errno;
use rustix::net::{RecvFlags, SendFlags, sockopt};
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// Most bytes that are received without knowing what they belong to: the base of the receive
/// buffer.
pub const AHEAD: usize = 256 << 10;
/// The rest of a message up to this length moves to the front of the buffer before more is
/// received, even if the message would fit where it is.
const MOVE_ALWAYS: usize = 8 << 10;
const SEND_BASE: usize = 2 * SEND_AT + (64 << 10);
/// Fewest bytes a second that a client has to move while others wait.
const LEAST_RATE: usize = 64 << 10;
/// How long a connection that has a part of the shared memory waits for its client at a time.
const TICK: Duration = Duration::from_millis(100);

/// Why a connection ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hangup {
    /// The client closed it, between messages or within one.
    Closed,
    /// The client broke the protocol, or was too slow, or asked for too much.
    Refused,
    /// The client held up others.
    Stalled,
    /// The system reported an error.
    System(Errno),
}

/// What a connection's functions return.
pub type Outcome<T> = Result<T, Hangup>;

/// The receiving side of a connection.
pub struct Input {
    socket: Arc<OwnedFd>,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    arrived: Instant,
    deadline: Option<Instant>,
    patience: Patience,
}

impl Input {
    /// Begins to receive. Until [`Input::lift_deadline`], waiting beyond `deadline` ends the
    /// connection.
    pub fn new(socket: Arc<OwnedFd>, deadline: Instant) -> Self {
        Self {
            socket,
            buffer: vec![0; AHEAD],
            start: 0,
            end: 0,
            arrived: Instant::now(),
            deadline: Some(deadline),
            patience: None,
        }
    }

    /// Lifts the deadline: from now on the client may be slow.
    pub fn lift_deadline(&mut self) {
        self.deadline = None;
    }

    /// Bytes that were received and not yet consumed.
    pub fn buffered(&self) -> usize {
        self.end - self.start
    }

    /// When the last bytes were received.
    pub fn arrived(&self) -> Instant {
        self.arrived
    }

    /// Waits until `n` bytes are buffered, and returns them without consuming them.
    /// The caller has bounded `n`.
    pub fn fill(&mut self, n: usize) -> Outcome<&[u8]> {
        if self.buffered() < n {
            self.make_room(n);
            let (since, before) = (Instant::now(), self.buffered());
            while self.buffered() < n {
                self.receive(n)?;
                check_patience(&self.patience, since, self.buffered() - before)?;
            }
        }
        Ok(&self.buffer[self.start..self.start + n])
    }

    /// Waits for the first `n` bytes of the next message. `false`: nothing has come for a while,
    /// and others may want the memory that this connection keeps.
    pub fn wait(&mut self, n: usize) -> Outcome<bool> {
        if self.buffered() == 0 && self.patience.is_some() {
            self.make_room(n);
            if !self.receive(n)? {
                return Ok(false);
            }
        }
        self.fill(n).map(|_| true)
    }

    /// The next `N` bytes, consumed.
    pub fn take<const N: usize>(&mut self) -> Outcome<[u8; N]> {
        let mut bytes = [0; N];
        bytes.copy_from_slice(self.fill(N)?);
        self.consume(N);
        Ok(bytes)
    }

    /// Bytes of memory that the buffer takes.
    pub fn memory(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Forgets `n` buffered bytes.
    pub fn consume(&mut self, n: usize) {
        debug_assert!(n <= self.buffered());
        self.start += n;
        if self.start == self.end {
            self.start = 0;
            self.end = 0;
        }
    }

    /// Shrinks the buffer to its base, or to what is buffered if that is more.
    fn shrink(&mut self) {
        if self.buffer.len() > AHEAD {
            let mut base = vec![0; AHEAD.max(self.buffered())];
            base[..self.buffered()].copy_from_slice(&self.buffer[self.start..self.end]);
            (self.start, self.end) = (0, self.buffered());
            self.buffer = base;
        }
    }

    /// Receives `n` bytes and forgets them, in bounded memory.
    pub fn drain(&mut self, mut n: u64) -> Outcome<()> {
        while n > 0 {
            if self.buffered() == 0 {
                self.fill(1)?;
            }
            let piece = n.min(self.buffered() as u64);
            self.consume(piece as usize);
            n -= piece;
        }
        Ok(())
    }

    /// Makes sure that `n` bytes from `start` on fit into the buffer, with room to receive ahead.
    fn make_room(&mut self, n: usize) {
        if self.start + n <= self.buffer.len() && self.buffered() > MOVE_ALWAYS {
            return;
        }
        if n <= self.buffer.len() {
            self.buffer.copy_within(self.start..self.end, 0);
        } else {
            let mut larger = vec![0; n];
            larger[..self.end - self.start].copy_from_slice(&self.buffer[self.start..self.end]);
            self.buffer = larger;
        }
        self.end -= self.start;
        self.start = 0;
    }

    /// One `recv`, towards `wanted` buffered bytes: of a large message exactly the rest, so that
    /// the next message begins at the front of the buffer; otherwise whatever is there. `false` if
    /// nothing came for a [`TICK`].
    fn receive(&mut self, wanted: usize) -> Outcome<bool> {
        let missing = wanted - self.buffered();
        let large = wanted > AHEAD / 4;
        let most = if large { missing } else { AHEAD.min(self.buffer.len() - self.end) };
        let flags = if large { RecvFlags::WAITALL } else { RecvFlags::empty() };
        if let Some(deadline) = self.deadline {
            match readable(&self.socket, deadline) {
                Ok(true) => {}
                Ok(false) => return Err(Hangup::Refused),
                Err(e) => return Err(Hangup::System(e)),
            }
        }
        let target = &mut self.buffer[self.end..self.end + most];
        let n = loop {
            match rustix::net::recv(&self.socket, &mut *target, flags) {
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(Errno::CONNRESET | Errno::PIPE) | Ok((_, 0)) => return Err(Hangup::Closed),
                Err(e) => return Err(Hangup::System(e)),
                Ok((_, n)) => break n,
            }
        };
        self.arrived = Instant::now();
        self.end += n;
        Ok(true)
    }
}

/// The sending side of a connection.
pub struct Output {
    socket: Arc<OwnedFd>,
    /// Initialised over its whole length; `len` bytes of it are waiting to be sent.
    buffer: Vec<u8>,
    len: usize,
    patience: Patience,
}

impl Output {
    /// An empty sending side.
    pub fn new(socket: Arc<OwnedFd>) -> Self {
        Self { socket, buffer: vec![0; SEND_AT], len: 0, patience: None }
    }

    /// Bytes of memory that the buffer takes.
    pub fn memory(&self) -> u64 {
        self.buffer.len() as u64
    }

    /// Appends a few bytes.
    pub fn put(&mut self, bytes: &[u8]) {
        let len = bytes.len();
        self.room(len)[..len].copy_from_slice(bytes);
        self.len += len;
    }

    /// At least `n` writable bytes behind those that wait. [`Output::commit`] adds them to these.
    pub fn room(&mut self, n: usize) -> &mut [u8] {
        if self.buffer.len() - self.len < n {
            let mut larger = vec![0; (self.len + n).next_multiple_of(4096)];
            larger[..self.len].copy_from_slice(&self.buffer[..self.len]);
            self.buffer = larger;
        }
        &mut self.buffer[self.len..]
    }

    /// Adds `n` bytes that were written to [`Output::room`] to those that wait.
    pub fn commit(&mut self, n: usize) {
        debug_assert!(n <= self.buffer.len() - self.len);
        self.len += n;
    }

    /// Sends if at least [`SEND_AT`] bytes wait.
    pub fn flush_if_large(&mut self) -> Outcome<()> {
        if self.len >= SEND_AT { self.flush() } else { Ok(()) }
    }

    /// Sends all bytes that wait.
    pub fn flush(&mut self) -> Outcome<()> {
        let (mut sent, since) = (0, Instant::now());
        while sent < self.len {
            let rest = &self.buffer[sent..self.len];
            match rustix::net::send(&self.socket, rest, SendFlags::NOSIGNAL) {
                Ok(n) => sent += n,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) if self.patience.is_some() => {}
                // The handshake has a time limit.
                Err(Errno::AGAIN) => return Err(Hangup::Refused),
                Err(Errno::CONNRESET | Errno::PIPE) => return Err(Hangup::Closed),
                Err(e) => return Err(Hangup::System(e)),
            }
            check_patience(&self.patience, since, sent)?;
        }
        self.len = 0;
        Ok(())
    }

    /// Shrinks the buffer to its base. Everything must have been sent.
    fn shrink(&mut self) {
        debug_assert_eq!(self.len, 0);
        if self.buffer.len() > SEND_BASE {
            self.buffer = vec![0; SEND_AT];
        }
    }
}

/// The share that a connection has a part of, and how long its client may stand still while others
/// wait; `None` without a part.
type Patience = Option<(Arc<Share>, Duration)>;

/// Ends a connection that holds up others. Since `since` it has `moved` bytes: fewer than a client
/// that stands still for as long as it may and then moves [`LEAST_RATE`] bytes a second. While no
/// other connection waits, a client may be slow.
fn check_patience(patience: &Patience, since: Instant, moved: usize) -> Outcome<()> {
    let Some((share, stall)) = patience else { return Ok(()) };
    let allowed = *stall + Duration::from_secs((moved / LEAST_RATE) as u64);
    if since.elapsed() >= allowed && share.is_wanted() { Err(Hangup::Stalled) } else { Ok(()) }
}

/// A part of the shared memory for a connection's buffers.
pub struct Hold<'a> {
    shares: &'a Shares,
    part: Option<Part>,
    stall: Duration,
    closed: &'a AtomicBool,
}

impl<'a> Hold<'a> {
    /// Holds no part yet. A client that stands still for `stall` while others wait is cut off.
    pub fn new(shares: &'a Shares, stall: Duration, closed: &'a AtomicBool) -> Self {
        Self { shares, part: None, stall, closed }
    }

    /// Whether the server has closed.
    pub fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Relaxed)
    }

    /// Waits for `bytes` bytes of memory for both buffers together, beyond their bases. Sends all
    /// waiting replies before.
    pub fn take(&mut self, bytes: usize, input: &mut Input, output: &mut Output) -> Outcome<()> {
        if self.part.as_ref().is_some_and(|part| part.bytes() >= bytes) {
            return Ok(());
        }
        self.give_back(input, output)?;
        let share = self.shares.of(bytes);
        self.part = Some(share.take(bytes, self.closed).ok_or(Hangup::Closed)?);
        let patience = Some((Arc::clone(share), self.stall));
        (input.patience, output.patience) = (patience.clone(), patience);
        set_timeouts(&input.socket, Some(TICK))
    }

    /// Gives the part back if others wait for memory, or if it has more than `keep` bytes.
    pub fn settle(&mut self, keep: usize, input: &mut Input, output: &mut Output) -> Outcome<()> {
        match &self.part {
            Some(part) if part.bytes() > keep || part.share().is_wanted() => {
                self.give_back(input, output)
            }
            _ => Ok(()),
        }
    }

    /// Sends all waiting replies, and gives the part back.
    pub fn give_back(&mut self, input: &mut Input, output: &mut Output) -> Outcome<()> {
        output.flush()?;
        if self.part.is_some() {
            input.shrink();
            output.shrink();
            self.part = None;
            (input.patience, output.patience) = (None, None);
            set_timeouts(&input.socket, None)?;
        }
        Ok(())
    }
}

/// Sets how long sending and receiving wait at a time.
fn set_timeouts(socket: &OwnedFd, time: Option<Duration>) -> Outcome<()> {
    for which in [sockopt::Timeout::Recv, sockopt::Timeout::Send] {
        sockopt::set_socket_timeout(socket, which, time).map_err(Hangup::System)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use std::io::{Read, Write};
    use std::os::unix::net::UnixStream;
    use std::time::Duration;

    fn pair(deadline: Duration) -> (UnixStream, Input, Output) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let socket = Arc::new(OwnedFd::from(ours));
        let input = Input::new(Arc::clone(&socket), Instant::now() + deadline);
        (theirs, input, Output::new(socket))
    }

    #[test]
    fn a_large_message_grows_the_buffer_and_gives_it_back() {
        let (mut client, mut input, _) = pair(Duration::from_secs(10));
        input.lift_deadline();
        let message: Vec<u8> = (0..3_000_000u32).map(|i| (i % 251) as u8).collect();
        let sent = message.clone();
        let sender = std::thread::spawn(move || {
            client.write_all(b"head").unwrap();
            client.write_all(&sent).unwrap();
            client.write_all(b"tail").unwrap();
            client
        });
        assert_eq!(&input.take::<4>().unwrap(), b"head");
        assert_eq!(input.fill(message.len()).unwrap(), &message[..]);
        input.consume(message.len());
        input.shrink();
        assert_eq!(input.buffer.len(), AHEAD);
        assert_eq!(&input.take::<4>().unwrap(), b"tail");
        drop(sender.join().unwrap());
        assert_eq!(input.fill(1), Err(Hangup::Closed));
    }

    #[test]
    fn what_was_received_too_much_is_the_next_message() {
        let (mut client, mut input, _) = pair(Duration::from_secs(10));
        // More than the buffer holds, in messages that do not divide it.
        let sent: Vec<u8> = (0..1_000_000u32).map(|i| (i % 241) as u8).collect();
        let copy = sent.clone();
        let sender = std::thread::spawn(move || client.write_all(&copy).unwrap());
        let mut got = Vec::new();
        while got.len() + 7777 <= sent.len() {
            got.extend_from_slice(input.fill(7777).unwrap());
            input.consume(7777);
        }
        assert!(got == sent[..got.len()]);
        input.drain((sent.len() - got.len()) as u64).unwrap();
        sender.join().unwrap();
    }

    #[test]
    fn waiting_ends_at_the_deadline() {
        let (_client, mut input, _) = pair(Duration::from_millis(30));
        assert_eq!(input.fill(1), Err(Hangup::Refused));
    }

    #[test]
    fn output_is_one_stream() {
        let (mut client, _, mut output) = pair(Duration::from_secs(10));
        output.put(b"one ");
        output.room(3)[..3].copy_from_slice(b"two");
        output.commit(3);
        output.flush().unwrap();
        let mut b = [0; 7];
        client.read_exact(&mut b).unwrap();
        assert_eq!(&b, b"one two");
        drop(client);
        output.put(b"late");
        assert_eq!(output.flush(), Err(Hangup::Closed));
    }
}

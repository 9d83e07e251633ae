//! The transmission phase: requests in, replies out, in order, run to completion.
//!
//! Invariants:
//! - A request whose range or flags are wrong is not carried out at all. One request of the client
//!   is at most one of the device, carried out when its payload is here; a trim with FUA adds a
//!   flush. Writes and chunked reads of more than [`PIECE`] are carried out piece by piece.
//! - Before this thread waits for the client, it sends all replies.
//! - A reply that claims success is built after the device said so.

use super::handshake::Agreed;
use super::proto::{self, Request, chunk, cmd, errno};
use super::share::{PART, PIECE, SEND_AT};
use super::wire::{AHEAD, Hangup, Hold, Input, Outcome, Output};
use crate::device::{self, Channel, Device, Extent, ExtentKind, IoError};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Instant;

/// Payloads of refused writes up to this length are read and dropped; a longer one ends the
/// connection.
const DRAIN_MAX: u32 = 128 << 20;
/// Reads from this length on say where zeros are instead of sending them.
const HOLES_FROM: u32 = 64 << 10;
/// Most runs that a read looks at.
const READ_EXTENTS: usize = 32;
/// Most runs that one answer to `NBD_CMD_BLOCK_STATUS` describes.
const STATUS_EXTENTS: usize = 2048;
/// Zeros shorter than this are sent: a chunk for a hole would hardly be shorter.
const HOLE_MIN: u64 = 512;
/// Most bytes of the head of any chunk.
const CHUNK_MAX: usize = proto::CHUNK_LEN + 12;

/// Serves one client until it goes, or the server closes: then no further request is begun, even if
/// it has been received.
pub fn serve(
    device: &Arc<dyn Device>,
    input: &mut Input,
    output: &mut Output,
    hold: Hold<'_>,
    agreed: Agreed,
) -> Outcome<()> {
    let channel = Arc::clone(device).channel();
    let mut server = Server { device: &**device, channel, input, output, hold, agreed };
    while !server.hold.is_closed() {
        let head = server.next_head()?;
        let request = Request::decode(&head).ok_or(Hangup::Refused)?;
        if request.command == cmd::DISC {
            return server.output.flush();
        }
        if let Err(error) = server.check(&request) {
            server.refuse(&request, error)?;
        } else if request.command == cmd::WRITE {
            server.write(&request)?;
        } else {
            server.execute(&request)?;
        }
        server.output.flush_if_large()?;
        server.hold.settle(PART, server.input, server.output)?;
        server.count();
    }
    Err(Hangup::Closed)
}

/// The protocol's number of an error. Clients take unknown numbers for EINVAL, that is for their
/// own mistake.
fn errno_of(error: IoError) -> u32 {
    match Errno::from_raw_os_error(error.errno()) {
        Errno::PERM | Errno::ROFS => errno::EPERM,
        Errno::NOMEM => errno::ENOMEM,
        Errno::INVAL => errno::EINVAL,
        Errno::NOSPC | Errno::DQUOT | Errno::FBIG => errno::ENOSPC,
        Errno::OVERFLOW => errno::EOVERFLOW,
        Errno::OPNOTSUPP => errno::ENOTSUP,
        _ => errno::EIO,
    }
}

/// The length of the next piece: up to a multiple of [`PIECE`], so that pieces cut no block.
fn piece(offset: u64, left: usize) -> usize {
    left.min(PIECE - offset as usize % PIECE)
}

struct Server<'a> {
    device: &'a dyn Device,
    channel: Box<dyn Channel>,
    input: &'a mut Input,
    output: &'a mut Output,
    hold: Hold<'a>,
    agreed: Agreed,
}

impl Server<'_> {
    /// Waits for the head of the next request. Before it waits, all replies are sent.
    fn next_head(&mut self) -> Outcome<[u8; proto::REQUEST_LEN]> {
        if self.input.buffered() < proto::REQUEST_LEN {
            self.output.flush()?;
            self.count();
            while !self.input.wait(proto::REQUEST_LEN)? {
                // Other connections may want the memory.
                self.hold.give_back(self.input, self.output)?;
                self.count();
            }
        }
        self.input.take()
    }

    /// Counts the memory of the buffers.
    fn count(&mut self) {
        self.channel.count_buffers(self.input.memory() + self.output.memory());
    }

    /// Waits until `bytes` bytes of a payload are buffered. Before it waits, all replies are sent.
    fn await_payload(&mut self, bytes: usize) -> Outcome<()> {
        if self.input.buffered() >= bytes {
            return Ok(());
        }
        self.output.flush()?;
        // The payload's memory counts from now on, although the payload is still to come.
        let place = self.input.memory().max(bytes as u64);
        self.channel.count_buffers(place + self.output.memory());
        self.input.fill(bytes).map(|_| ())
    }

    /// Drops the payload of a request, and replies with `error`.
    fn refuse(&mut self, r: &Request, error: u32) -> Outcome<()> {
        let payload = r.payload();
        if payload > DRAIN_MAX as usize {
            return Err(Hangup::Refused);
        }
        if self.input.buffered() < payload {
            self.output.flush()?;
        }
        self.input.drain(payload as u64)?;
        self.fail(r, error);
        Ok(())
    }

    /// Carries out a write piece by piece, so that its length takes no memory. If the payload
    /// breaks off, the pieces before are written, and there is no reply.
    fn write(&mut self, r: &Request) -> Outcome<()> {
        let (fua, whole) = (r.has(cmd::FLAG_FUA), r.len as usize <= PIECE);
        if r.payload() > AHEAD {
            self.hold.take(PART, self.input, self.output)?;
        }
        let (mut offset, mut left, mut done) = (r.offset, r.len as usize, Ok(()));
        while left > 0 {
            let len = if whole { left } else { piece(offset, left) };
            self.await_payload(len)?;
            let arrived = self.input.arrived();
            let data = self.input.fill(len)?;
            // After an error the rest is received all the same, because the next request follows
            // it.
            if done.is_ok() {
                let write = device::Request::Write { offset, data, fua: fua && whole };
                done = self.channel.submit(write, arrived);
            }
            self.input.consume(len);
            (offset, left) = (offset + len as u64, left - len);
        }
        if fua && !whole && done.is_ok() {
            done = self.channel.submit(device::Request::Flush, self.input.arrived());
        }
        match done {
            Ok(()) => self.output.put(&proto::simple_reply(0, r.cookie)),
            Err(e) => self.fail(r, errno_of(e)),
        }
        Ok(())
    }

    /// Whether a request may reach the device, and if not, the error for the client.
    fn check(&self, r: &Request) -> Result<(), u32> {
        let (allowed, outside) = match r.command {
            cmd::READ if self.agreed.structured => (cmd::FLAG_DF, errno::EINVAL),
            cmd::READ | cmd::TRIM | cmd::CACHE | cmd::FLUSH => (0, errno::EINVAL),
            cmd::WRITE => (0, errno::ENOSPC),
            // A client that asks for fast zeroes has another way if there are none.
            cmd::WRITE_ZEROES if r.has(cmd::FLAG_FAST_ZERO) && !self.device.discards() => {
                return Err(errno::ENOTSUP);
            }
            cmd::WRITE_ZEROES => (cmd::FLAG_NO_HOLE | cmd::FLAG_FAST_ZERO, errno::ENOSPC),
            cmd::BLOCK_STATUS if self.agreed.allocation && r.len > 0 => {
                (cmd::FLAG_REQ_ONE, errno::EINVAL)
            }
            _ => return Err(errno::EINVAL),
        };
        if r.flags & !(allowed | cmd::FLAG_FUA) != 0 {
            return Err(errno::EINVAL);
        }
        if r.command == cmd::FLUSH && (r.offset, r.len) != (0, 0) {
            return Err(errno::EINVAL);
        }
        if matches!(r.command, cmd::READ | cmd::WRITE) && r.len > proto::MAX_PAYLOAD {
            return Err(if r.has(cmd::FLAG_DF) { errno::EOVERFLOW } else { errno::EINVAL });
        }
        match r.offset.checked_add(u64::from(r.len)) {
            Some(end) if end <= self.device.size() => Ok(()),
            _ => Err(outside),
        }
    }

    /// Carries out a request without payload that passed [`Server::check`] and appends its reply.
    fn execute(&mut self, r: &Request) -> Outcome<()> {
        let (offset, len, arrived) = (r.offset, u64::from(r.len), self.input.arrived());
        let fua = r.has(cmd::FLAG_FUA);
        let done = match r.command {
            cmd::READ => return self.read(r, arrived),
            cmd::BLOCK_STATUS => {
                self.block_status(r);
                return Ok(());
            }
            cmd::FLUSH => self.channel.submit(device::Request::Flush, arrived),
            // A prefetch does nothing: everything is in memory already. An empty request is done at
            // once.
            cmd::CACHE => Ok(()),
            _ if len == 0 => Ok(()),
            cmd::TRIM => self.trim(offset, len, fua, arrived),
            _ => {
                let no_hole = r.has(cmd::FLAG_NO_HOLE);
                let zeroes = device::Request::WriteZeroes { offset, len, no_hole, fua };
                self.channel.submit(zeroes, arrived)
            }
        };
        match done {
            Ok(()) => self.output.put(&proto::simple_reply(0, r.cookie)),
            Err(e) => self.fail(r, errno_of(e)),
        }
        Ok(())
    }

    fn trim(&mut self, offset: u64, len: u64, fua: bool, arrived: Instant) -> Result<(), IoError> {
        self.channel.submit(device::Request::Discard { offset, len }, arrived)?;
        if fua { self.channel.submit(device::Request::Flush, arrived) } else { Ok(()) }
    }

    fn fail(&mut self, r: &Request, error: u32) {
        let chunked = matches!(r.command, cmd::READ | cmd::BLOCK_STATUS) && self.agreed.structured;
        if chunked {
            self.output.put(&proto::chunk_error(error, r.cookie));
        } else {
            self.output.put(&proto::simple_reply(error, r.cookie));
        }
    }

    fn read(&mut self, r: &Request, arrived: Instant) -> Outcome<()> {
        let len = r.len as usize;
        if self.agreed.structured && len == 0 {
            self.output.put(&proto::chunk_head(chunk::FLAG_DONE, chunk::NONE, r.cookie, 0));
            return Ok(());
        }
        let parts = self.agreed.structured && !r.has(cmd::FLAG_DF) && len > PIECE;
        if len > SEND_AT {
            // A reply in one piece on the wire has to be in memory as a whole.
            let bytes = if parts { PART } else { PART.max(len + SEND_AT) };
            self.hold.take(bytes, self.input, self.output)?;
        }
        if !self.agreed.structured {
            self.read_whole(r, &proto::simple_reply(0, r.cookie), arrived);
            return Ok(());
        }
        let (mut offset, mut left) = (r.offset, len);
        while left > 0 {
            let len = if parts { piece(offset, left) } else { left };
            let part = Request { offset, len: len as u32, ..*r };
            if !self.read_chunks(&part, len == left, arrived) {
                break;
            }
            (offset, left) = (offset + len as u64, left - len);
            self.count();
            self.output.flush_if_large()?;
        }
        Ok(())
    }

    /// Builds a reply, or a chunk of one, from `head` and all the data, in one piece. Returns
    /// whether the data could be read.
    fn read_whole(&mut self, r: &Request, head: &[u8], arrived: Instant) -> bool {
        let (start, total) = (head.len(), head.len() + r.len as usize);
        let room = &mut self.output.room(total)[..total];
        room[..start].copy_from_slice(head);
        let (offset, buf) = (r.offset, &mut room[start..]);
        if !buf.is_empty()
            && let Err(e) = self.channel.submit(device::Request::Read { offset, buf }, arrived)
        {
            self.fail(r, errno_of(e));
            return false;
        }
        self.output.commit(total);
        true
    }

    /// Builds chunks that say where holes are; the last one ends the reply if `ends`. Returns
    /// whether the data could be read; if not, an error ends the reply. The device sees one read of
    /// the whole range in any case, so that one read is counted; zeros are only kept off the wire.
    fn read_chunks(&mut self, r: &Request, ends: bool, arrived: Instant) -> bool {
        let end = if ends { chunk::FLAG_DONE } else { 0 };
        let pieces = self.pieces(r);
        if let [Extent { kind: ExtentKind::Data, .. }] = pieces[..] {
            let head = proto::chunk_data(end, r.cookie, r.offset, r.len);
            return self.read_whole(r, &head, arrived);
        }
        // The data lies behind enough space for all heads and moves forward to close up with them:
        // a head never reaches data that has not moved yet.
        let slack = pieces.len() * CHUNK_MAX;
        let room = &mut self.output.room(slack + r.len as usize)[..slack + r.len as usize];
        let (offset, buf) = (r.offset, &mut room[slack..]);
        if let Err(e) = self.channel.submit(device::Request::Read { offset, buf }, arrived) {
            self.fail(r, errno_of(e));
            return false;
        }
        let (mut from, mut to) = (0, 0);
        for (i, piece) in pieces.iter().enumerate() {
            let flags = if i + 1 == pieces.len() { end } else { 0 };
            let (at, len) = (r.offset + from as u64, piece.len as u32);
            if piece.kind == ExtentKind::Data {
                let head = proto::chunk_data(flags, r.cookie, at, len);
                room[to..to + head.len()].copy_from_slice(&head);
                to += head.len();
                let source = slack + from;
                room.copy_within(source..source + len as usize, to);
                to += len as usize;
            } else {
                let head = proto::chunk_hole(flags, r.cookie, at, len);
                room[to..to + head.len()].copy_from_slice(&head);
                to += head.len();
            }
            from += len as usize;
        }
        self.output.commit(to);
        true
    }

    /// The runs of data and of holes that make up a read, at least one, together all of it.
    fn pieces(&self, r: &Request) -> Vec<Extent> {
        let len = u64::from(r.len);
        let data = Extent { len, kind: ExtentKind::Data };
        if r.len < HOLES_FROM {
            return vec![data];
        }
        // Extents are only a hint here: to send all data is right, too.
        let Ok(mut pieces) = self.device.extents(r.offset, len, READ_EXTENTS) else {
            return vec![data];
        };
        for piece in &mut pieces {
            let zero = piece.kind != ExtentKind::Data && piece.len >= HOLE_MIN;
            piece.kind = if zero { ExtentKind::Hole } else { ExtentKind::Data };
        }
        let known: u64 = pieces.iter().map(|piece| piece.len).sum();
        pieces.push(Extent { len: len.saturating_sub(known), kind: ExtentKind::Data });
        let pieces = proto::coalesce(pieces, len);
        if r.has(cmd::FLAG_DF) && pieces.len() > 1 { vec![data] } else { pieces }
    }

    fn block_status(&mut self, r: &Request) {
        let one = r.has(cmd::FLAG_REQ_ONE);
        let len = u64::from(r.len);
        let most = if one { 1 } else { STATUS_EXTENTS };
        let extents = match self.device.extents(r.offset, len, most) {
            Ok(extents) => proto::coalesce(extents, len),
            Err(e) => return self.fail(r, errno_of(e)),
        };
        if extents.is_empty() {
            return self.fail(r, errno::EIO);
        }
        let runs = &extents[..extents.len().min(most)];
        let bytes = 4 + 8 * runs.len() as u32;
        let kind = chunk::BLOCK_STATUS;
        self.output.put(&proto::chunk_head(chunk::FLAG_DONE, kind, r.cookie, bytes));
        self.output.put(&proto::CONTEXT_ID.to_be_bytes());
        for run in runs {
            // No run is longer than the request, whose length has 32 bits.
            self.output.put(&(run.len as u32).to_be_bytes());
            self.output.put(&proto::status_flags(run.kind).to_be_bytes());
        }
    }
}

//! The transmission phase: requests in, replies out, in order, run to completion.
//!
//! Invariants:
//! - A request is carried out whole or (payload missing, range or flags wrong) not at all, and one
//!   request of the client is at most one request of the device (a trim with FUA adds a flush).
//! - Before this thread waits for the client, everything that it has to say was sent.
//! - A reply that claims success is built after the device said so.

use super::handshake::Agreed;
use super::proto::{self, Request, chunk, cmd, errno};
use super::wire::{Hangup, Input, Outcome, Output};
use crate::volume::{self, Channel, Device, Extent, ExtentKind, IoError};
use rustix::io::Errno;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Payloads of refused writes up to this length are read and dropped; beyond it the client is.
const DRAIN_MAX: u32 = 128 << 20;
/// Reads from this length on say where zeros are instead of sending them.
const HOLES_FROM: u32 = 64 << 10;
/// Most runs that a read looks at.
const READ_EXTENTS: usize = 32;
/// Most runs that one answer to `NBD_CMD_BLOCK_STATUS` describes.
const STATUS_EXTENTS: usize = 2048;
/// Zeros shorter than this are sent: saying that they are there would hardly be shorter.
const HOLE_MIN: u64 = 512;
/// Bytes that the head of any chunk takes at most.
const CHUNK_MAX: usize = proto::CHUNK_LEN + 12;

/// Serves one client until it goes, or `closed` says that it has to: of what it has sent already,
/// nothing more is begun then.
pub fn serve(
    device: &Arc<dyn Device>,
    input: &mut Input,
    output: &mut Output,
    agreed: Agreed,
    closed: &AtomicBool,
) -> Outcome<()> {
    let channel = Arc::clone(device).channel();
    let mut server = Server { device: &**device, channel, output, agreed };
    while !closed.load(Ordering::Relaxed) {
        if input.buffered() < proto::REQUEST_LEN {
            server.output.flush()?;
            // A large reply is gone now, and nothing may be counted for long again.
            server.channel.count_buffers(input.memory() + server.output.memory());
        }
        let head = input.take()?;
        let request = Request::decode(&head).ok_or(Hangup::Refused)?;
        if request.command == cmd::DISC {
            return server.output.flush();
        }
        let payload = request.payload();
        let refused = server.check(&request).err();
        if refused.is_some() && payload > DRAIN_MAX as usize {
            return Err(Hangup::Refused);
        }
        if input.buffered() < payload {
            server.output.flush()?;
        }
        if let Some(error) = refused {
            input.drain(payload as u64)?;
            server.fail(&request, error);
        } else {
            // As long as the payload takes to come, it has its place already.
            let place = input.memory().max(payload as u64);
            server.channel.count_buffers(place + server.output.memory());
            input.fill(payload)?;
            let arrived = input.arrived();
            server.execute(&request, input.fill(payload)?, arrived);
            input.consume(payload);
        }
        server.channel.count_buffers(input.memory() + server.output.memory());
        server.output.flush_if_large()?;
    }
    Err(Hangup::Closed)
}

/// An error as the protocol has it. Clients take others for EINVAL, that is for their own mistake.
fn told(error: IoError) -> u32 {
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

struct Server<'a> {
    device: &'a dyn Device,
    channel: Box<dyn Channel>,
    output: &'a mut Output,
    agreed: Agreed,
}

impl Server<'_> {
    /// Whether a request may reach the device, and if not, what the client is told.
    fn check(&self, r: &Request) -> Result<(), u32> {
        let (allowed, outside) = match r.command {
            cmd::READ if self.agreed.structured => (cmd::FLAG_DF, errno::EINVAL),
            cmd::READ | cmd::TRIM | cmd::CACHE | cmd::FLUSH => (0, errno::EINVAL),
            cmd::WRITE => (0, errno::ENOSPC),
            // A client that wants it fast does something else where it is not.
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

    /// Carries out a request that passed [`Server::check`] and appends its reply.
    fn execute(&mut self, r: &Request, data: &[u8], arrived: Instant) {
        let (offset, len) = (r.offset, u64::from(r.len));
        let fua = r.has(cmd::FLAG_FUA);
        let done = match r.command {
            cmd::READ => return self.read(r, arrived),
            cmd::BLOCK_STATUS => return self.block_status(r),
            cmd::FLUSH => self.channel.submit(volume::Request::Flush, arrived),
            // Everything is in memory already; and nothing at all is done at once.
            cmd::CACHE => Ok(()),
            _ if len == 0 => Ok(()),
            cmd::WRITE => {
                self.channel.submit(volume::Request::Write { offset, data, fua }, arrived)
            }
            cmd::TRIM => self.trim(offset, len, fua, arrived),
            _ => {
                let no_hole = r.has(cmd::FLAG_NO_HOLE);
                let zeroes = volume::Request::WriteZeroes { offset, len, no_hole, fua };
                self.channel.submit(zeroes, arrived)
            }
        };
        match done {
            Ok(()) => self.output.put(&proto::simple_reply(0, r.cookie)),
            Err(e) => self.fail(r, told(e)),
        }
    }

    fn trim(&mut self, offset: u64, len: u64, fua: bool, arrived: Instant) -> Result<(), IoError> {
        self.channel.submit(volume::Request::Discard { offset, len }, arrived)?;
        if fua { self.channel.submit(volume::Request::Flush, arrived) } else { Ok(()) }
    }

    fn fail(&mut self, r: &Request, error: u32) {
        let chunked = matches!(r.command, cmd::READ | cmd::BLOCK_STATUS) && self.agreed.structured;
        if chunked {
            self.output.put(&proto::chunk_error(error, r.cookie));
        } else {
            self.output.put(&proto::simple_reply(error, r.cookie));
        }
    }

    fn read(&mut self, r: &Request, arrived: Instant) {
        match (self.agreed.structured, r.len) {
            (true, 0) => {
                self.output.put(&proto::chunk_head(chunk::FLAG_DONE, chunk::NONE, r.cookie, 0));
            }
            (true, _) => self.read_chunks(r, arrived),
            (false, _) => {
                let head = proto::simple_reply(0, r.cookie);
                self.read_whole(r, &head, arrived);
            }
        }
    }

    /// A reply of `head` and all the data, in one piece.
    fn read_whole(&mut self, r: &Request, head: &[u8], arrived: Instant) {
        let (start, total) = (head.len(), head.len() + r.len as usize);
        let room = &mut self.output.room(total)[..total];
        room[..start].copy_from_slice(head);
        let (offset, buf) = (r.offset, &mut room[start..]);
        if !buf.is_empty()
            && let Err(e) = self.channel.submit(volume::Request::Read { offset, buf }, arrived)
        {
            return self.fail(r, told(e));
        }
        self.output.commit(total);
    }

    /// A reply that says where holes are. The device sees one read of the whole range in any case,
    /// so that it is counted as what it is; zeros are only kept off the wire.
    fn read_chunks(&mut self, r: &Request, arrived: Instant) {
        let pieces = self.pieces(r);
        if let [Extent { kind: ExtentKind::Data, .. }] = pieces[..] {
            let head = proto::chunk_data(chunk::FLAG_DONE, r.cookie, r.offset, r.len);
            return self.read_whole(r, &head, arrived);
        }
        // The data lies behind enough space for all heads and moves forward to close up with them:
        // a head never reaches data that has not moved yet.
        let slack = pieces.len() * CHUNK_MAX;
        let room = &mut self.output.room(slack + r.len as usize)[..slack + r.len as usize];
        let (offset, buf) = (r.offset, &mut room[slack..]);
        if let Err(e) = self.channel.submit(volume::Request::Read { offset, buf }, arrived) {
            return self.fail(r, told(e));
        }
        let (mut from, mut to) = (0, 0);
        for (i, piece) in pieces.iter().enumerate() {
            let flags = if i + 1 == pieces.len() { chunk::FLAG_DONE } else { 0 };
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
    }

    /// The runs of data and of holes that make up a read, at least one, together all of it.
    fn pieces(&self, r: &Request) -> Vec<Extent> {
        let len = u64::from(r.len);
        let data = Extent { len, kind: ExtentKind::Data };
        if r.len < HOLES_FROM {
            return vec![data];
        }
        // Extents are advice here: without them the data itself is right too.
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
            Err(e) => return self.fail(r, told(e)),
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

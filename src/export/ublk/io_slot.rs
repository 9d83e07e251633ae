//! What one thread serves requests with: its channel into the volume, and its memory.
//!
//! Invariant: serving allocates nothing and takes no lock of the export.

use super::abi;
use super::memory::Buffers;
use super::params::Asked;
use crate::device::{Channel, DataMover, Device, IoError, Load, Request, Way};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Instant;

/// The properties of a device that its queues need.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub depth: u16,
    /// The most bytes of one request.
    pub max_io: usize,
    /// The daemon moves data by reading and writing the character device; otherwise the kernel
    /// copies it to and from a buffer of each tag.
    pub user_copy: bool,
    /// Commands are plain numbers, as before Linux 6.4.
    pub plain: bool,
    /// Offload threads of each queue, for requests that wait for a drive.
    pub helpers: usize,
}

pub(super) struct IoSlot {
    queue: u16,
    shape: Shape,
    node: Arc<OwnedFd>,
    /// Requests of at least this many bytes go through the channel in parts, on several threads;
    /// buffers are no larger then.
    ships: Option<usize>,
    buffers: Buffers,
    channel: Box<dyn Channel>,
}

/// The bytes of one request, at their place in the character device.
struct Waiting<'a> {
    node: &'a OwnedFd,
    at: u64,
}

impl IoSlot {
    /// A slot for requests of `queue`, to be used by one thread.
    pub(super) fn new(
        queue: u16,
        shape: Shape,
        node: Arc<OwnedFd>,
        device: Arc<dyn Device>,
    ) -> rustix::io::Result<Self> {
        let ships =
            device.worth_shipping().filter(|least| shape.user_copy && *least < shape.max_io);
        let count = if shape.user_copy { 1 } else { usize::from(shape.depth) };
        let buffers = Buffers::new(count, ships.unwrap_or(shape.max_io))?;
        let mut channel = device.channel();
        channel.count_buffers(buffers.len() as u64);
        Ok(Self { queue, shape, node, ships, buffers, channel })
    }

    /// Serves a request without making it durable. Returns the bytes moved, or a negative errno.
    pub(super) fn serve(&mut self, tag: u16, asked: Asked, arrived: Instant) -> i32 {
        let Self { channel, buffers, node, shape, .. } = self;
        let data = Waiting { node, at: abi::data_at(self.queue, tag) };
        let slot = if shape.user_copy { 0 } else { usize::from(tag) };
        let done = match asked {
            Asked::Read { offset, len } | Asked::Write { offset, len, .. }
                if self.ships.is_some_and(|least| len >= least) =>
            {
                let way = if matches!(asked, Asked::Read { .. }) { Way::Out } else { Way::In };
                let load = Load { way, offset, len, mover: &data };
                channel.ship(load, buffers.whole(slot), arrived)
            }
            Asked::Read { offset, len } => {
                let Some(buf) = buffers.get(slot, len) else { return -libc::EINVAL };
                let read = channel.submit(Request::Read { offset, buf }, arrived);
                let copied = |()| if shape.user_copy { data.copy_out(0, buf) } else { Ok(()) };
                read.and_then(copied)
            }
            Asked::Write { offset, len, .. } => {
                let Some(buf) = buffers.get(slot, len) else { return -libc::EINVAL };
                let copied = if shape.user_copy { data.copy_in(0, buf) } else { Ok(()) };
                let write = Request::Write { offset, data: buf, fua: false };
                copied.and_then(|()| channel.submit(write, arrived))
            }
            Asked::Flush => Ok(()),
            Asked::Discard { offset, len } => {
                channel.submit(Request::Discard { offset, len }, arrived)
            }
            Asked::WriteZeroes { offset, len, no_hole, .. } => {
                channel.submit(Request::WriteZeroes { offset, len, no_hole, fua: false }, arrived)
            }
            Asked::Unknown => Err(IoError::Unsupported),
        };
        done.map_or_else(failure, |()| asked.moved())
    }

    /// Makes durable all that was served before. Returns 0 or a negative errno.
    pub(super) fn flush(&mut self, arrived: Instant) -> i32 {
        self.channel.submit(Request::Flush, arrived).map_or_else(failure, |()| 0)
    }

    /// The address to which the kernel copies the data of `tag`, or from it; 0 where it does not
    /// copy.
    pub(super) fn address(&self, tag: u16) -> u64 {
        if self.shape.user_copy { 0 } else { self.buffers.address(usize::from(tag)) }
    }
}

impl DataMover for Waiting<'_> {
    fn copy_in(&self, at: usize, part: &mut [u8]) -> Result<(), IoError> {
        let mut done = 0;
        while done < part.len() {
            match rustix::io::pread(self.node, &mut part[done..], self.at + (at + done) as u64) {
                Ok(0) => return Err(IoError::Drive(libc::EIO)),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(IoError::Drive(e.raw_os_error())),
            }
        }
        Ok(())
    }

    fn copy_out(&self, at: usize, part: &[u8]) -> Result<(), IoError> {
        let mut done = 0;
        while done < part.len() {
            match rustix::io::pwrite(self.node, &part[done..], self.at + (at + done) as u64) {
                Ok(0) => return Err(IoError::Drive(libc::EIO)),
                Ok(n) => done += n,
                Err(Errno::INTR) => {}
                Err(e) => return Err(IoError::Drive(e.raw_os_error())),
            }
        }
        Ok(())
    }
}

fn failure(e: IoError) -> i32 {
    -e.errno()
}

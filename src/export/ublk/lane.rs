//! One thread's way to serve requests: its channel into the volume, and its memory.
//!
//! Invariant: serving allocates nothing and takes no lock of the export.

use super::abi;
use super::memory::Buffers;
use super::params::Asked;
use super::queue::Shape;
use crate::volume::{Channel, Device, IoError, Request};
use rustix::fd::OwnedFd;
use rustix::io::Errno;
use std::sync::Arc;
use std::time::Instant;

pub(super) struct Lane {
    queue: u16,
    shape: Shape,
    node: Arc<OwnedFd>,
    buffers: Buffers,
    channel: Box<dyn Channel>,
}

impl Lane {
    /// A lane for requests of `queue`, to be used by one thread.
    pub(super) fn new(
        queue: u16,
        shape: Shape,
        node: Arc<OwnedFd>,
        device: Arc<dyn Device>,
    ) -> rustix::io::Result<Self> {
        let count = if shape.user_copy { 1 } else { usize::from(shape.depth) };
        let buffers = Buffers::new(count, shape.max_io)?;
        let mut channel = device.channel();
        channel.count_buffers(buffers.len() as u64);
        Ok(Self { queue, shape, node, buffers, channel })
    }

    /// Serves a request, except for making it durable; the bytes that were moved, or an errno.
    pub(super) fn serve(&mut self, tag: u16, asked: Asked, arrived: Instant) -> i32 {
        let data = abi::data_at(self.queue, tag);
        let Self { channel, buffers, node, shape, .. } = self;
        let slot = if shape.user_copy { 0 } else { usize::from(tag) };
        let done = match asked {
            Asked::Read { offset, len } => {
                let Some(buf) = buffers.get(slot, len) else { return -libc::EINVAL };
                match channel.submit(Request::Read { offset, buf }, arrived) {
                    Ok(()) if shape.user_copy => return give(node, buf, data),
                    done => done,
                }
            }
            Asked::Write { offset, len, .. } => {
                let Some(buf) = buffers.get(slot, len) else { return -libc::EINVAL };
                if shape.user_copy
                    && let Err(e) = take(node, buf, data)
                {
                    return -e.raw_os_error();
                }
                channel.submit(Request::Write { offset, data: buf, fua: false }, arrived)
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

    /// Makes durable all that was served before; 0 or an errno.
    pub(super) fn flush(&mut self, arrived: Instant) -> i32 {
        self.channel.submit(Request::Flush, arrived).map_or_else(failure, |()| 0)
    }

    /// Where the kernel moves the data of `tag`; 0 where it does not.
    pub(super) fn address(&self, tag: u16) -> u64 {
        if self.shape.user_copy { 0 } else { self.buffers.address(usize::from(tag)) }
    }
}

/// Moves the data of a read into the request; the bytes moved, or an errno.
fn give(node: &OwnedFd, buf: &[u8], at: u64) -> i32 {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pwrite(node, &buf[done..], at + done as u64) {
            Ok(0) => return -libc::EIO,
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return -e.raw_os_error(),
        }
    }
    i32::try_from(done).unwrap_or(-libc::EINVAL)
}

/// Moves the data of a write out of the request.
fn take(node: &OwnedFd, buf: &mut [u8], at: u64) -> rustix::io::Result<()> {
    let mut done = 0;
    while done < buf.len() {
        match rustix::io::pread(node, &mut buf[done..], at + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(n) => done += n,
            Err(Errno::INTR) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

fn failure(e: IoError) -> i32 {
    -e.errno()
}

//! One queue of the device and the thread that serves it.
//!
//! Invariants: a request is served on the thread that received it, through a [`Channel`] of that
//! thread, without a lock and without an allocation; every request that was taken is answered,
//! failures with their negative errno; a flush is carried out after all that came with it.

use super::abi::{self, IoCommand};
use super::memory::{Buffers, Descriptors};
use super::params::Asked;
use crate::volume::{Channel, Device, IoError, Request};
use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Completion of the wait for the bell.
const BELL: u64 = u64::MAX;

/// Answers are handed to the kernel at the latest when requests of so many bytes were served: users
/// go on while the rest is served.
const ANSWER_AFTER: usize = 128 << 10;

/// For how long no request comes before a thread ends that leaves its device to the next server,
/// and how long it waits for that at most.
const QUIET: Duration = Duration::from_millis(3);
const QUIET_AT_LAST: Duration = Duration::from_millis(200);

/// A device as its queues know it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Shape {
    pub depth: u16,
    /// The most bytes of one request.
    pub max_io: usize,
    /// Data is moved by reading and writing the character device; else the kernel moves it to and
    /// from a buffer of each tag.
    pub user_copy: bool,
    /// Commands are plain numbers, as before Linux 6.4.
    pub plain: bool,
}

/// What the kernel will be told of a request.
struct Answer {
    tag: u16,
    result: i32,
}

/// A queue on its thread.
pub(super) struct Queue {
    id: u16,
    shape: Shape,
    node: Arc<OwnedFd>,
    bell: Arc<OwnedFd>,
    ring: IoUring,
    descriptors: Descriptors,
    buffers: Buffers,
    channel: Box<dyn Channel>,
    /// Tags that were delivered and not yet served.
    batch: Vec<u16>,
    /// Answers that wait for a flush.
    held: Vec<Answer>,
    /// Tags that the kernel will still deliver something for.
    live: u16,
    rung: bool,
    _guard: Guard,
}

impl Queue {
    /// Prepares the queue and asks for requests. It belongs to the calling thread from now on.
    pub(super) fn new(
        id: u16,
        shape: Shape,
        node: Arc<OwnedFd>,
        bell: Arc<OwnedFd>,
        device: Arc<dyn Device>,
    ) -> rustix::io::Result<Self> {
        let depth = usize::from(shape.depth);
        let ring = ring(u32::from(shape.depth) + 1).map_err(|e| errno_of(&e))?;
        ring.submitter().register_files(&[node.as_raw_fd()]).map_err(|e| errno_of(&e))?;
        let descriptors = Descriptors::map(&*node, id, shape.depth)?;
        let buffers = Buffers::new(if shape.user_copy { 1 } else { depth }, shape.max_io)?;
        let mut channel = device.channel();
        channel.count_buffers(buffers.len() as u64);
        let mut queue = Self {
            id,
            shape,
            node,
            bell,
            ring,
            descriptors,
            buffers,
            channel,
            batch: Vec::with_capacity(depth),
            held: Vec::with_capacity(depth),
            live: shape.depth,
            rung: false,
            _guard: Guard,
        };
        let poll = opcode::PollAdd::new(Fd(queue.bell.as_raw_fd()), libc::POLLIN as u32).build();
        queue.push(&poll.user_data(BELL));
        for tag in 0..shape.depth {
            queue.command(abi::fetch(shape.plain), tag, 0);
        }
        queue.ring.submit().map_err(|e| errno_of(&e))?;
        // A fetch that the kernel refuses has failed by now.
        let refused = queue.ring.completion().find(|c| c.user_data() != BELL && c.result() < 0);
        match refused {
            Some(completion) => Err(Errno::from_raw_os_error(-completion.result())),
            None => Ok(queue),
        }
    }

    /// Serves until the device is stopped, or the bell rings. What it returns must be kept until
    /// this thread has ended.
    pub(super) fn serve(mut self) -> Remains {
        while self.live > 0 && !self.rung {
            self.wait(None);
            self.serve_batch();
        }
        if self.live > 0 {
            self.go_quiet();
        }
        let Self { ring, buffers, node, .. } = self;
        Remains { _ring: ring, _buffers: buffers, _node: node }
    }

    /// Hands over the last answers and takes no more requests, until none has come for a moment:
    /// users have as many under way as they ever have then, and wait for the next server, which
    /// gets them all. So nothing is being delivered when this thread ends, which kernels of before
    /// 6.15 are not always up to.
    fn go_quiet(&mut self) {
        let deadline = Instant::now() + QUIET_AT_LAST;
        while Instant::now() < deadline {
            self.batch.clear();
            self.wait(Some(QUIET));
            if self.batch.is_empty() {
                return;
            }
        }
    }

    /// Hands answers to the kernel, and waits for requests, up to `patience` if there is one.
    fn wait(&mut self, patience: Option<Duration>) {
        let time = patience.map(Timespec::from);
        let done = match &time {
            None => self.ring.submit_and_wait(1),
            Some(time) => {
                self.ring.submitter().submit_with_args(1, &SubmitArgs::new().timespec(time))
            }
        };
        match done.map_err(|e| errno_of(&e)) {
            Ok(_) | Err(Errno::INTR | Errno::TIME) => {}
            // The kernel is short of memory.
            Err(Errno::AGAIN | Errno::BUSY) => std::thread::sleep(Duration::from_millis(1)),
            // Nothing of this queue can be answered any more.
            Err(errno) => panic!("the io_uring of ublk queue {} fails: {errno}", self.id),
        }
        self.reap();
    }

    fn reap(&mut self) {
        for completion in self.ring.completion() {
            match (completion.user_data(), completion.result()) {
                (BELL, _) => self.rung = true,
                (tag, 0) => self.batch.push(tag as u16),
                // The device is being stopped, or recovered by somebody else.
                _ => self.live = self.live.saturating_sub(1),
            }
        }
    }

    fn serve_batch(&mut self) {
        let arrived = Instant::now();
        let mut served = 0;
        for at in 0..self.batch.len() {
            let tag = self.batch[at];
            let asked = Asked::of(&self.descriptors.get(tag));
            let result = self.serve_one(tag, asked, arrived);
            match (asked, result) {
                (Asked::Flush | Asked::Write { fua: true, .. }, 0..)
                | (Asked::WriteZeroes { fua: true, .. }, 0..) => {
                    self.held.push(Answer { tag, result });
                }
                _ => self.answer(tag, result),
            }
            served += asked.moved().max(0) as usize;
            if served >= ANSWER_AFTER {
                served = 0;
                self.hand_over();
            }
        }
        self.batch.clear();
        self.flush(arrived);
    }

    /// Makes durable what waits for it: one flush is for all of them.
    fn flush(&mut self, arrived: Instant) {
        if self.held.is_empty() {
            return;
        }
        self.hand_over();
        let flushed = self.channel.submit(Request::Flush, arrived);
        while let Some(Answer { tag, result }) = self.held.pop() {
            self.answer(tag, flushed.map_or_else(failure, |()| result));
        }
    }

    /// Gives the kernel the answers so far. If it can't take them now, they go with the next.
    fn hand_over(&mut self) {
        if !self.ring.submission().is_empty() {
            let _ = self.ring.submit();
        }
    }

    /// Serves a request, except for making it durable; the bytes that were moved, or an errno.
    fn serve_one(&mut self, tag: u16, asked: Asked, arrived: Instant) -> i32 {
        let data = abi::data_at(self.id, tag);
        let slot = if self.shape.user_copy { 0 } else { usize::from(tag) };
        let Self { channel, buffers, node, shape, .. } = self;
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

    fn answer(&mut self, tag: u16, result: i32) {
        self.command(abi::commit_and_fetch(self.shape.plain), tag, result);
    }

    fn command(&mut self, operation: u32, tag: u16, result: i32) {
        let addr = if self.shape.user_copy { 0 } else { self.buffers.address(usize::from(tag)) };
        let command = IoCommand { queue: self.id, tag, result, addr };
        let entry = opcode::UringCmd16::new(Fixed(0), operation).cmd(command.bytes()).build();
        self.push(&entry.user_data(u64::from(tag)));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the memory that a command names is the buffer of its tag, which lives as long as
        // the ring, and which nobody touches from the answer on until the tag is delivered again.
        // Descriptors live as long as `self`.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // There is one place for each tag and one for the bell.
        assert!(pushed.is_ok(), "the submission queue of ublk queue {} is full", self.id);
    }
}

/// What is left of a queue whose thread ends. Commands that are still in the kernel are cancelled
/// by the end of the thread, in its context. When instead a ring is closed under them, the kernel
/// (seen with 6.12) may give one back twice, and crash.
pub(super) struct Remains {
    _ring: IoUring,
    _buffers: Buffers,
    _node: Arc<OwnedFd>,
}

/// Ends the process when its thread panics.
struct Guard;

impl Drop for Guard {
    fn drop(&mut self) {
        if std::thread::panicking() {
            // Without this queue all requests would wait, for good. When the whole process is gone
            // the next daemon takes the device over, with every request in it.
            std::process::abort();
        }
    }
}

/// A ring for one thread, with what the kernel has to make that cheap.
fn ring(entries: u32) -> std::io::Result<IoUring> {
    let best = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .build(entries);
    best.or_else(|_| IoUring::new(entries))
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

fn errno_of(e: &std::io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

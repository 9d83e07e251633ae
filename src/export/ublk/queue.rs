//! One queue of the device and the thread that serves it.
//!
//! Invariants: a request is served on the thread that received it, through a channel of that
//! thread, without a lock and without an allocation, unless the volume has drives that it may wait
//! for; every received request is answered, failures with their negative errno; a flush begins
//! after all that came with it is served.

use super::abi::{self, IoCommand};
use super::io_slot::{IoSlot, Shape};
use super::memory::Descriptors;
use super::offload::{self, Answer, Guard, OffloadPool};
use super::params::Asked;
use crate::device::Device;
use io_uring::types::{Fd, Fixed, SubmitArgs, Timespec};
use io_uring::{IoUring, opcode, squeue};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::io::Errno;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Completion of the poll of the bell.
const BELL: u64 = u64::MAX;

/// Completion of the poll of the offload pool's event.
const OFFLOAD_DONE: u64 = u64::MAX - 1;

/// Answers go to the kernel at the latest when requests of this many bytes were served: users go on
/// while the rest is served.
const ANSWER_AFTER: usize = 128 << 10;

/// Finished reads and flushes of the offload pool are answered after this time at the latest,
/// and the request that the queue's own thread is serving: a write of it may wait for a drive.
const ANSWER_DONE_AFTER: Duration = Duration::from_micros(100);

/// How long no request must come before a thread ends that leaves its device to the next server,
/// and how long it waits for that at most.
const QUIET: Duration = Duration::from_millis(3);
const QUIET_AT_LAST: Duration = Duration::from_millis(200);

/// A queue on its thread.
pub(super) struct Queue {
    id: u16,
    shape: Shape,
    bell: Arc<OwnedFd>,
    ring: IoUring,
    descriptors: Descriptors,
    slot: IoSlot,
    offload: Option<OffloadPool>,
    /// Tags that were delivered and not yet served.
    batch: Vec<u16>,
    /// Answers that wait for the next flush, and those that the flush in flight covers.
    held: Vec<Answer>,
    covered: Vec<Answer>,
    /// Answers from the offload pool.
    done: Vec<Answer>,
    offloaded: usize,
    /// The number of tags for which the kernel may still deliver something.
    live: u16,
    rung: bool,
    done_event: bool,
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
        let ring = ring(u32::from(shape.depth) + 2).map_err(|e| errno_of(&e))?;
        ring.submitter().register_files(&[node.as_raw_fd()]).map_err(|e| errno_of(&e))?;
        let descriptors = Descriptors::map(&*node, id, shape.depth)?;
        let slot = || IoSlot::new(id, shape, Arc::clone(&node), Arc::clone(&device));
        let mut offload = None;
        // If the kernel copies data, it uses the buffers of the queue's thread.
        if shape.helpers > 0 && shape.user_copy {
            let slots = (0..shape.helpers).map(|_| slot()).collect::<Result<_, _>>()?;
            offload = Some(OffloadPool::open(id, shape.depth, slots).map_err(|e| errno_of(&e))?);
        }
        let mut queue = Self {
            id,
            shape,
            bell,
            ring,
            descriptors,
            slot: slot()?,
            offload,
            batch: Vec::with_capacity(depth),
            held: Vec::with_capacity(depth),
            covered: Vec::with_capacity(depth),
            done: Vec::with_capacity(depth + 1),
            offloaded: 0,
            live: shape.depth,
            rung: false,
            done_event: false,
            _guard: Guard,
        };
        let poll = poll(queue.bell.as_fd(), BELL);
        queue.push(&poll);
        queue.listen();
        for tag in 0..shape.depth {
            queue.command(abi::fetch(shape.plain), tag, 0);
        }
        queue.ring.submit().map_err(|e| errno_of(&e))?;
        // A fetch that the kernel refuses has failed by now.
        let refused =
            queue.ring.completion().find(|c| c.user_data() < OFFLOAD_DONE && c.result() < 0);
        match refused {
            Some(completion) => Err(Errno::from_raw_os_error(-completion.result())),
            None => Ok(queue),
        }
    }

    /// Serves until the device is stopped, or the bell rings. The result must be kept until this
    /// thread has ended.
    pub(super) fn serve(mut self) -> Remains {
        while self.live > 0 && !self.rung {
            self.wait(None);
            self.take_done();
            self.serve_batch();
        }
        if let Some(offload) = self.offload.take() {
            offload.close(&mut self.done);
            self.answer_done();
        }
        if self.live > 0 {
            self.go_quiet();
        }
        let Self { ring, slot, .. } = self;
        Remains { _ring: ring, _slot: slot }
    }

    /// Hands over the last answers, and serves no more requests, until none has come for a moment:
    /// then users have all their requests in flight and wait for the next server, which gets them
    /// all. So the kernel delivers nothing while this thread ends, which kernels before 6.15 do not
    /// always survive.
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
                (OFFLOAD_DONE, _) => self.done_event = true,
                (tag, 0) => self.batch.push(tag as u16),
                // The device is being stopped, or recovered by another process.
                _ => self.live = self.live.saturating_sub(1),
            }
        }
    }

    fn serve_batch(&mut self) {
        let arrived = Instant::now();
        self.offload_reads(arrived);
        let (mut served, mut looked) = (0, arrived);
        for at in 0..self.batch.len() {
            let tag = self.batch[at];
            let asked = Asked::of(&self.descriptors.get(tag));
            let result = self.slot.serve(tag, asked, arrived);
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
            if self.offloaded > 0 && looked.elapsed() >= ANSWER_DONE_AFTER {
                self.answer_meanwhile();
                looked = Instant::now();
            }
        }
        self.batch.clear();
        self.flush(arrived);
    }

    /// Gives the reads of the batch to the offload pool, if there is one. They go first, so that
    /// none waits for a write of the batch.
    fn offload_reads(&mut self, arrived: Instant) {
        let Some(offload) = &self.offload else { return };
        // A client with one request at a time is served sooner without a hand-over.
        if self.offloaded == 0 && self.batch.len() == 1 {
            return;
        }
        let (descriptors, offloaded) = (&self.descriptors, &mut self.offloaded);
        self.batch.retain(|tag| {
            let asked = Asked::of(&descriptors.get(*tag));
            let is_read = matches!(asked, Asked::Read { .. });
            if is_read {
                offload.serve(*tag, asked, arrived);
                *offloaded += 1;
            }
            !is_read
        });
    }

    /// Answers what the offload pool has finished, in the middle of a batch.
    fn answer_meanwhile(&mut self) {
        if let Some(offload) = &self.offload {
            // The poll of its event stays: what comes later completes it.
            offload.collect(&mut self.done);
        }
        if !self.done.is_empty() {
            self.answer_done();
            self.hand_over();
        }
    }

    /// Flushes once for all answers that wait for it. With an offload pool, answers that come
    /// during a flush wait for its end, and for the next flush.
    fn flush(&mut self, arrived: Instant) {
        if self.held.is_empty() || !self.covered.is_empty() {
            return;
        }
        std::mem::swap(&mut self.held, &mut self.covered);
        if let Some(offload) = &self.offload {
            self.offloaded += 1;
            return offload.flush(arrived);
        }
        self.hand_over();
        let flushed = self.slot.flush(arrived);
        self.end_flush(flushed);
    }

    fn end_flush(&mut self, flushed: i32) {
        while let Some(Answer { tag, result }) = self.covered.pop() {
            self.answer(tag, if flushed < 0 { flushed } else { result });
        }
    }

    /// Takes answers from the offload pool, if its event says that there are some.
    fn take_done(&mut self) {
        if !std::mem::take(&mut self.done_event) {
            return;
        }
        if let Some(offload) = &self.offload {
            offload.collect(&mut self.done);
        }
        self.answer_done();
        self.listen();
    }

    fn answer_done(&mut self) {
        while let Some(Answer { tag, result }) = self.done.pop() {
            self.offloaded -= 1;
            match tag {
                offload::FLUSH => self.end_flush(result),
                _ => self.answer(tag, result),
            }
        }
    }

    /// Has the ring poll the event of the offload pool.
    fn listen(&mut self) {
        if let Some(offload) = &self.offload {
            let poll = poll(offload.done_event(), OFFLOAD_DONE);
            self.push(&poll);
        }
    }

    /// Gives the kernel the answers so far. If it can't take them now, they go with the next ones.
    fn hand_over(&mut self) {
        if !self.ring.submission().is_empty() {
            let _ = self.ring.submit();
        }
    }

    fn answer(&mut self, tag: u16, result: i32) {
        self.command(abi::commit_and_fetch(self.shape.plain), tag, result);
    }

    fn command(&mut self, operation: u32, tag: u16, result: i32) {
        let addr = self.slot.address(tag);
        let command = IoCommand { queue: self.id, tag, result, addr };
        let entry = opcode::UringCmd16::new(Fixed(0), operation).cmd(command.bytes()).build();
        self.push(&entry.user_data(u64::from(tag)));
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the memory that a command names is the buffer of its tag, which lives as long as
        // the ring, and which no thread touches from the answer on until the tag is delivered
        // again. Descriptors live as long as `self`.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // The queue has an entry for each tag, one for the bell and one for the offload pool.
        assert!(pushed.is_ok(), "the submission queue of ublk queue {} is full", self.id);
    }
}

/// What is left of a queue whose thread ends. The end of the thread cancels commands that are still
/// in the kernel, in the thread's context. If a ring is closed under them instead, the kernel (seen
/// with 6.12) may give one back twice, and crash.
pub(super) struct Remains {
    _ring: IoUring,
    _slot: IoSlot,
}

/// A ring for one thread, with the flags that make it cheap, if the kernel has them.
fn ring(entries: u32) -> std::io::Result<IoUring> {
    let best = IoUring::builder()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .setup_submit_all()
        .build(entries);
    best.or_else(|_| IoUring::new(entries))
}

/// Waits for `fd` to be readable; completes as `data`.
fn poll(fd: BorrowedFd<'_>, data: u64) -> squeue::Entry {
    let fd = Fd(fd.as_raw_fd());
    opcode::PollAdd::new(fd, libc::POLLIN as u32).build().user_data(data)
}

fn errno_of(e: &std::io::Error) -> Errno {
    Errno::from_io_error(e).unwrap_or(Errno::IO)
}

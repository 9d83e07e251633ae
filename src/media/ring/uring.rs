//! The executor over io_uring.
//!
//! Invariants:
//! - a request that the kernel may know of is in `flights`, at the index that is its user data,
//!   until its completion arrives; its memory is not moved, changed or freed before that, and is
//!   leaked if the completion never arrives;
//! - there are never more requests than the submission queue has room for.

use super::{Completion, Drive, FAREWELL, Op, Submission};
use crate::media::buffer::Buffer;
use crate::media::drive::DriveError;
use crate::media::file_drive::{FileDrive, ZERO_MODES, is_unsupported};
use crate::media::transfer::Progress;
use io_uring::types::{Fd, FsyncFlags, SubmitArgs, Timespec};
use io_uring::{IoUring, Probe, opcode, squeue};
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use rustix::fd::{AsRawFd, OwnedFd};
use rustix::io::Errno;
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The user data of the wait for the bell; no index comes near it.
const BELL: u64 = u64::MAX;

/// The most bytes of one request to the kernel, far below its own limit.
const PIECE_MAX: u64 = 1 << 28;

/// Bytes of zeros written at once where the drive refuses all [`ZERO_MODES`].
const ZEROS: usize = 256 << 10;

/// A request that has begun.
#[derive(Debug)]
struct Flight {
    submission: Submission,
    progress: Progress,
    /// How many of [`ZERO_MODES`], from the first on, the drive has refused.
    refused: usize,
}

/// What a completion of the kernel means.
enum Step {
    Again,
    End(Result<(), Errno>),
}

pub(super) struct Uring {
    ring: IoUring,
    drive: Arc<FileDrive>,
    depth: usize,
    flights: Vec<Option<Flight>>,
    free: Vec<usize>,
    queue: VecDeque<Submission>,
    bell: Arc<OwnedFd>,
    /// Whether the kernel watches the bell.
    listening: bool,
    /// Set when the ring itself has failed; every request then fails with it.
    broken: Option<Errno>,
    /// Requests that have ended; [`Uring::wait`] returns them.
    ended: Vec<Completion>,
    zeros: Buffer,
}

impl std::fmt::Debug for Uring {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Uring({} in flight of {})", self.in_flight(), self.depth)
    }
}

impl Uring {
    /// Sets up the ring; the error says why this kernel or container has no io_uring.
    pub(super) fn new(drive: Arc<FileDrive>, depth: u32) -> Result<Self, String> {
        let ring = IoUring::new(depth + 1).map_err(|e| format!("no io_uring: {e}"))?;
        let params = ring.params();
        if !params.is_feature_ext_arg() || !params.is_feature_nodrop() {
            return Err("io_uring of before Linux 5.11".into());
        }
        let mut probe = Probe::new();
        ring.submitter().register_probe(&mut probe).map_err(|e| format!("no io_uring: {e}"))?;
        for code in [
            opcode::Read::CODE,
            opcode::Write::CODE,
            opcode::Fsync::CODE,
            opcode::Fallocate::CODE,
            opcode::PollAdd::CODE,
        ] {
            if !probe.is_supported(code) {
                return Err(format!("io_uring without operation {code}"));
            }
        }
        let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)
            .map_err(|e| format!("no eventfd: {e}"))?;
        Ok(Self {
            ring,
            drive,
            depth: depth as usize,
            flights: (0..depth).map(|_| None).collect(),
            free: (0..depth as usize).rev().collect(),
            queue: VecDeque::new(),
            bell: Arc::new(bell),
            listening: false,
            broken: None,
            ended: Vec::new(),
            zeros: Buffer::new(ZEROS),
        })
    }

    pub(super) fn submit(&mut self, submission: Submission) {
        self.queue.push_back(submission);
    }

    /// Begins queued requests, as far as there is room.
    pub(super) fn kick(&mut self) {
        self.begin();
        if !self.ring.submission().is_empty() {
            self.enter(Duration::ZERO);
        }
    }

    pub(super) fn wait(&mut self, timeout: Duration, ended: &mut Vec<Completion>) {
        let deadline = Instant::now() + timeout;
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            self.begin();
            self.enter(if self.ended.is_empty() { left } else { Duration::ZERO });
            let rung = self.reap();
            for failed in self.ended.iter().filter_map(|end| end.result.as_ref().err()) {
                // The request bypassed the drive's own methods, which note failures.
                self.drive.failures().inspect(|failures| failures.note(failed));
            }
            ended.append(&mut self.ended);
            if rung || !ended.is_empty() || left.is_zero() {
                break;
            }
        }
        // Requests that have room now, or have to be repeated, must not wait for the next call.
        self.kick();
    }

    pub(super) fn in_flight(&self) -> usize {
        self.begun() + self.queue.len() + self.ended.len()
    }

    pub(super) fn bell(&self) -> Arc<OwnedFd> {
        Arc::clone(&self.bell)
    }

    /// Requests that the kernel may know of.
    fn begun(&self) -> usize {
        self.flights.len() - self.free.len()
    }

    /// Puts waiting requests, and the wait for the bell, into the submission queue.
    fn begin(&mut self) {
        if let Some(errno) = self.broken {
            let failed = self.queue.drain(..).map(|s| end(s, Err(errno)));
            self.ended.extend(failed);
            return;
        }
        if !self.listening {
            // Without the C library's types it is unsigned, with them (Miri) signed.
            let events = PollFlags::IN.bits() as u32;
            let entry = opcode::PollAdd::new(Fd(self.bell.as_raw_fd()), events).build();
            self.push(&entry.user_data(BELL));
            self.listening = true;
        }
        while !self.queue.is_empty() {
            let Some(slot) = self.free.pop() else { return };
            let Some(submission) = self.queue.pop_front() else { return };
            let progress = Progress::new(submission.action.bytes());
            self.flights[slot] = Some(Flight { submission, progress, refused: 0 });
            self.continue_flight(slot);
        }
    }

    /// Queues what is left of the request in `slot`.
    fn continue_flight(&mut self, slot: usize) {
        let Some(flight) = &mut self.flights[slot] else { return };
        let fd = Fd(self.drive.fd().as_raw_fd());
        let entry = entry(flight, fd, &self.zeros).user_data(slot as u64);
        self.push(&entry);
    }

    fn push(&mut self, entry: &squeue::Entry) {
        // SAFETY: the entry names either no memory, or the zeros or memory of a flight, both of
        // which stay as they are until its completion came: see the invariants and `Drop`.
        // Descriptors in it live as long as `self`, and the kernel keeps its own reference from the
        // submission on.
        let pushed = unsafe { self.ring.submission().push(entry) };
        // There is one place for each flight and one for the bell.
        debug_assert!(pushed.is_ok(), "the submission queue is full");
        if pushed.is_err() {
            self.break_down(Errno::NOBUFS);
        }
    }

    /// Hands the submission queue to the kernel, and waits up to `patience` for a completion.
    fn enter(&mut self, patience: Duration) {
        if self.broken.is_some() {
            // Only the bell can still ring.
            let mut bell = [PollFd::new(&*self.bell, PollFlags::IN)];
            let time = rustix::event::Timespec {
                tv_sec: patience.as_secs() as i64,
                tv_nsec: patience.subsec_nanos().into(),
            };
            let _ = poll(&mut bell, Some(&time));
            return;
        }
        let time = Timespec::from(patience);
        let args = SubmitArgs::new().timespec(&time);
        let want = usize::from(!patience.is_zero());
        let Err(e) = self.ring.submitter().submit_with_args(want, &args) else { return };
        match Errno::from_io_error(&e).unwrap_or(Errno::IO) {
            Errno::TIME | Errno::INTR => {}
            // The kernel is short of memory, or has completions to give first.
            Errno::AGAIN | Errno::BUSY => {
                std::thread::sleep(patience.min(Duration::from_millis(1)));
            }
            errno => self.break_down(errno),
        }
    }

    /// Takes the kernel's completions; returns whether the bell has rung.
    fn reap(&mut self) -> bool {
        let mut rung = self.broken.is_some() && self.silence();
        let mut again = Vec::new();
        for completion in self.ring.completion() {
            let data = completion.user_data();
            if data == BELL {
                self.listening = false;
                rung = true;
                continue;
            }
            let slot = data as usize;
            // A flight that is gone was given up when the ring broke.
            let Some(Some(flight)) = self.flights.get_mut(slot) else { continue };
            match step(flight, completion.result()) {
                Step::Again => again.push(slot),
                Step::End(result) => {
                    if let Some(flight) = self.flights[slot].take() {
                        self.ended.push(end(flight.submission, result));
                    }
                    self.free.push(slot);
                }
            }
        }
        for slot in again {
            self.continue_flight(slot);
        }
        if rung {
            self.silence();
        }
        rung
    }

    /// Makes the bell ready to ring again; returns whether it had rung.
    fn silence(&self) -> bool {
        rustix::io::read(&*self.bell, &mut [0; 8]).is_ok()
    }

    /// Gives up a ring that does not work any more. The kernel may still use the memory of requests
    /// in flight, so that memory is leaked.
    fn break_down(&mut self, errno: Errno) {
        self.broken = Some(errno);
        for slot in 0..self.flights.len() {
            let Some(flight) = self.flights[slot].take() else { continue };
            let (id, error) = (flight.submission.id, flight.submission.fail(errno));
            self.ended.push(Completion { id, result: Err(error) });
            std::mem::forget(flight);
            self.free.push(slot);
        }
        std::mem::forget(std::mem::replace(&mut self.zeros, Buffer::new(0)));
    }
}

impl Drop for Uring {
    fn drop(&mut self) {
        self.queue.clear();
        let deadline = Instant::now() + FAREWELL;
        while self.begun() > 0 && self.broken.is_none() && Instant::now() < deadline {
            self.enter(Duration::from_millis(100));
            self.reap();
        }
        // The kernel may still write to the memory of requests that have not ended by now.
        if self.begun() > 0 {
            std::mem::forget(std::mem::take(&mut self.flights));
            std::mem::forget(std::mem::replace(&mut self.zeros, Buffer::new(0)));
        }
    }
}

fn end(submission: Submission, result: Result<(), Errno>) -> Completion {
    let result: Result<(), DriveError> = result.map_err(|errno| submission.fail(errno));
    submission.finish(result)
}

/// The kernel's request for what is left of a flight.
fn entry(flight: &mut Flight, fd: Fd, zeros: &Buffer) -> squeue::Entry {
    let done = flight.progress.done();
    let left = flight.progress.left();
    let at = flight.submission.at + done;
    let piece = left.min(PIECE_MAX) as u32;
    match &mut flight.submission.action {
        Op::Read(buffer) => {
            let rest = &mut buffer[done as usize..];
            opcode::Read::new(fd, rest.as_mut_ptr(), piece).offset(at).build()
        }
        Op::Write(buffer, range) => {
            let rest = &buffer[range.start + done as usize..range.end];
            opcode::Write::new(fd, rest.as_ptr(), piece).offset(at).build()
        }
        Op::Zero { .. } => match ZERO_MODES.get(flight.refused) {
            Some(mode) => {
                opcode::Fallocate::new(fd, left).offset(at).mode(mode.bits() as i32).build()
            }
            None => {
                let piece = left.min(zeros.len() as u64) as u32;
                opcode::Write::new(fd, zeros.as_ptr(), piece).offset(at).build()
            }
        },
        Op::Flush => opcode::Fsync::new(fd).flags(FsyncFlags::DATASYNC).build(),
    }
}

/// What to do after the kernel said `result` to the last request of a flight.
fn step(flight: &mut Flight, result: i32) -> Step {
    let zeroing = matches!(flight.submission.action, Op::Zero { .. });
    let at_once = zeroing && flight.refused < ZERO_MODES.len();
    let moved = match u64::try_from(result) {
        Ok(_) if at_once => flight.progress.left(),
        Ok(got) => got,
        Err(_) => match Errno::from_raw_os_error(-result) {
            Errno::INTR | Errno::AGAIN => 0,
            errno if at_once && is_unsupported(errno) => {
                flight.refused += 1;
                return Step::Again;
            }
            errno => return Step::End(Err(errno)),
        },
    };
    let interrupted = result < 0;
    match flight.progress.advance(moved) {
        Err(errno) => Step::End(Err(errno)),
        Ok(()) if flight.progress.left() > 0 || interrupted => Step::Again,
        Ok(()) => Step::End(Ok(())),
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    fn flight(action: Op) -> Flight {
        let progress = Progress::new(action.bytes());
        Flight { submission: Submission { id: 1, action, at: 0 }, progress, refused: 0 }
    }

    fn is_again(step: &Step) -> bool {
        matches!(step, Step::Again)
    }

    #[test]
    fn short_transfers_go_on_and_dead_ones_fail() {
        let mut read = flight(Op::Read(Buffer::new(8192)));
        assert!(is_again(&step(&mut read, 5000)));
        assert_eq!(read.progress.done(), 4096);
        assert!(is_again(&step(&mut read, -libc::EAGAIN)));
        assert!(matches!(step(&mut read, 4096), Step::End(Ok(()))));
        let mut read = flight(Op::Read(Buffer::new(4096)));
        let ends = (0..100).map(|_| step(&mut read, 0)).find(|s| !is_again(s)).unwrap();
        assert!(matches!(ends, Step::End(Err(Errno::IO))));
        let mut write = flight(Op::Write(Arc::new(Buffer::new(4096)), 0..4096));
        assert!(matches!(step(&mut write, -libc::ENOSPC), Step::End(Err(Errno::NOSPC))));
    }

    #[test]
    fn zeroing_goes_down_its_ways() {
        let mut zero = flight(Op::Zero { len: 1 << 20 });
        for n in 1..=ZERO_MODES.len() {
            assert!(is_again(&step(&mut zero, -libc::EOPNOTSUPP)));
            assert_eq!(zero.refused, n);
        }
        for _ in 0..3 {
            assert!(is_again(&step(&mut zero, ZEROS as i32)));
        }
        assert!(matches!(step(&mut zero, ZEROS as i32), Step::End(Ok(()))));
        let mut zero = flight(Op::Zero { len: 1 << 20 });
        assert!(matches!(step(&mut zero, 0), Step::End(Ok(()))));
    }

    #[test]
    fn a_broken_ring_fails_everything_and_still_waits_and_wakes() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("drive");
        std::fs::File::create(&path).unwrap().set_len(1 << 20).unwrap();
        let drive = FileDrive::open(&path, crate::media::Access::Exclusive).unwrap();
        let Ok(mut ring) = Uring::new(Arc::new(drive), 2) else { return };
        let write =
            |id| Submission { id, action: Op::Write(Arc::new(Buffer::new(4096)), 0..4096), at: 0 };
        (0..5).for_each(|id| ring.submit(write(id)));
        ring.kick();
        ring.break_down(Errno::NXIO);
        ring.submit(write(5));
        let mut ended = Vec::new();
        ring.wait(Duration::from_secs(20), &mut ended);
        let mut ids: Vec<_> = ended.iter().map(|c| c.id).collect();
        ids.sort_unstable();
        assert_eq!(ids, [0, 1, 2, 3, 4, 5]);
        assert!(ended.iter().all(|c| c.result.as_ref().is_err_and(|e| e.errno == libc::ENXIO)));
        assert_eq!(ring.in_flight(), 0);

        ended.clear();
        let start = Instant::now();
        ring.wait(Duration::from_millis(30), &mut ended);
        assert!(ended.is_empty() && start.elapsed() >= Duration::from_millis(30));
        rustix::io::write(&*ring.bell(), &1u64.to_ne_bytes()).unwrap();
        let start = Instant::now();
        ring.wait(Duration::from_secs(30), &mut ended);
        assert!(ended.is_empty() && start.elapsed() < Duration::from_secs(20));
    }

    #[test]
    fn a_flush_ends_at_once_and_is_repeated_when_interrupted() {
        let mut flush = flight(Op::Flush);
        assert!(is_again(&step(&mut flush, -libc::EINTR)));
        assert!(matches!(step(&mut flush, 0), Step::End(Ok(()))));
        assert!(matches!(step(&mut flush, -libc::EIO), Step::End(Err(Errno::IO))));
    }
}

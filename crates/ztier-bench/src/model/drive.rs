//! A drive that keeps data in memory and takes the time that its model computes.
//!
//! Requests of several threads are in the model's queue at the same time, as in a real drive's. In
//! virtual time no thread waits: each request is served alone, and advances a readable clock.
//!
//! Invariants: a read sees every write that has returned. A request returns no earlier than it
//! completes in the model. While requests are undecided, exactly one of their threads (the pacer)
//! advances the model's time, and the others sleep until their requests are decided.

use super::pages::Pages;
use super::{Done, Model, Name, Nanos, Request, Ticket, wait};
use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{self, Thread};
use std::time::Duration;
use ztier::media::{ALIGN, Action, Drive, DriveError};
use ztier::sync::Mutex;

/// Errno for "invalid argument".
const EINVAL: i32 = 22;

/// A modelled drive.
pub struct ModelDrive {
    name: Name,
    pages: Pages,
    time: Time,
}

enum Time {
    /// On the machine's clock.
    Real(Box<Queue>),
    /// The model and its virtual clock.
    Virtual(Mutex<(Model, Nanos)>),
}

impl ModelDrive {
    /// A new, empty drive in real time.
    pub fn real_time(name: Name) -> Self {
        Self { name, pages: Pages::new(), time: Time::Real(Box::new(Queue::new(name))) }
    }

    /// A new, empty drive in virtual time, for deterministic tests: its clock begins at 0, and
    /// advances only while a request is served.
    pub fn virtual_time(name: Name) -> Self {
        let time = Time::Virtual(Mutex::new((Model::new(name), 0)));
        Self { name, pages: Pages::new(), time }
    }

    /// The drive's clock, in nanoseconds since the drive was made.
    pub fn now(&self) -> Nanos {
        match &self.time {
            Time::Real(queue) => queue.now(),
            Time::Virtual(state) => state.lock().1,
        }
    }

    /// Allocates memory for `bytes` before they are written, as a real drive has it.
    pub fn reserve(&self, bytes: u64) {
        self.pages.reserve(bytes);
    }

    /// Bytes of memory that the content takes.
    pub fn kept_bytes(&self) -> u64 {
        self.pages.bytes()
    }

    /// Serves a request and runs `work` on the memory meanwhile: the time for copying is a part of
    /// the modelled time, not added to it.
    fn serve(&self, request: Request, work: impl FnOnce()) {
        match &self.time {
            Time::Real(queue) => queue.serve(request, work),
            Time::Virtual(state) => {
                let (model, clock) = &mut *state.lock();
                *clock = model.serve(*clock, request);
                work();
            }
        }
    }

    fn check(&self, action: Action, at: u64, len: u64) -> Result<(), DriveError> {
        let aligned = at.is_multiple_of(ALIGN as u64) && len.is_multiple_of(ALIGN as u64);
        let inside = at.checked_add(len).is_some_and(|end| end <= self.name.size);
        if aligned && inside { Ok(()) } else { Err(DriveError { action, at, len, errno: EINVAL }) }
    }
}

impl Drive for ModelDrive {
    fn size(&self) -> u64 {
        self.name.size
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        let len = buf.len() as u64;
        self.check(Action::Read, at, len)?;
        self.serve(Request::Read { at, len }, || self.pages.read(at, buf));
        Ok(())
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        let len = data.len() as u64;
        self.check(Action::Write, at, len)?;
        self.serve(Request::Write { at, len }, || self.pages.write(at, data));
        Ok(())
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        self.check(Action::Zero, at, len)?;
        self.serve(Request::Zero { at, len }, || self.pages.zero(at, len));
        Ok(())
    }

    fn flush(&self) -> Result<(), DriveError> {
        self.serve(Request::Flush, || ());
        Ok(())
    }
}

/// The requests of all threads in flight.
#[derive(Debug)]
struct Queue {
    /// Start of the model's time, on the machine's clock.
    start: Nanos,
    /// Limit on the threads that spin at a time: one processor stays free for others.
    spinners: usize,
    /// Threads that wait for a known time.
    waiting: AtomicUsize,
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    model: Model,
    ticket: Ticket,
    /// Always empty; kept for its capacity.
    done: Vec<Done>,
    open: HashMap<Ticket, Fate>,
    pacer: Option<Ticket>,
}

/// The state of a request.
#[derive(Debug)]
enum Fate {
    /// Not decided; the thread to wake when its completion time is decided.
    Undecided(Thread),
    /// The time at which it completes.
    Decided(Nanos),
}

impl Queue {
    fn new(name: Name) -> Self {
        let state = State {
            model: Model::new(name),
            ticket: 0,
            done: Vec::new(),
            open: HashMap::new(),
            pacer: None,
        };
        Self {
            start: wait::now(),
            spinners: thread::available_parallelism().map_or(1, |n| n.get() - 1).max(1),
            waiting: AtomicUsize::new(0),
            state: Mutex::new(state),
        }
    }

    fn now(&self) -> Nanos {
        wait::now() - self.start
    }

    fn serve(&self, request: Request, work: impl FnOnce()) {
        let fate = {
            let mut state = self.state.lock();
            state.submit(self.now(), request)
        };
        work();
        let end = self.start + fate.unwrap_or_else(|ticket| self.decided(ticket));
        let others = self.waiting.fetch_add(1, Ordering::Relaxed);
        wait::until(end, others < self.spinners);
        self.waiting.fetch_sub(1, Ordering::Relaxed);
    }

    /// Waits until the completion time of the request is known.
    fn decided(&self, ticket: Ticket) -> Nanos {
        loop {
            let mut state = self.state.lock();
            if let Some(end) = state.take(ticket) {
                return end;
            }
            let now = self.now();
            state.advance(now);
            if let Some(end) = state.take(ticket) {
                return end;
            }
            let paces = *state.pacer.get_or_insert(ticket) == ticket;
            let next = state.model.next();
            drop(state);
            match next {
                Some(next) if paces => {
                    thread::park_timeout(Duration::from_nanos(next.saturating_sub(now)));
                }
                _ => thread::park(),
            }
        }
    }
}

impl State {
    /// Completion time of the request, or the ticket under which it waits for the decision.
    fn submit(&mut self, now: Nanos, request: Request) -> Result<Nanos, Ticket> {
        self.ticket += 1;
        let ticket = self.ticket;
        self.model.submit(now, ticket, request, &mut self.done);
        let own = self.done.iter().position(|done| done.0 == ticket);
        let end = own.map(|own| self.done.swap_remove(own).1);
        if end.is_none() {
            self.open.insert(ticket, Fate::Undecided(thread::current()));
        }
        self.settle();
        end.ok_or(ticket)
    }

    fn advance(&mut self, now: Nanos) {
        self.model.advance(now, &mut self.done);
        self.settle();
    }

    /// Reports decided requests to their threads.
    fn settle(&mut self) {
        for (ticket, end) in self.done.drain(..) {
            let fate = self.open.insert(ticket, Fate::Decided(end));
            if let Some(Fate::Undecided(thread)) = fate
                && thread.id() != thread::current().id()
            {
                thread.unpark();
            }
        }
    }

    /// Removes a decided request; returns its completion time. If no request paces then, another is
    /// woken to pace: also by a request that was woken to pace and was decided before it could
    /// begin.
    fn take(&mut self, ticket: Ticket) -> Option<Nanos> {
        let Some(&Fate::Decided(end)) = self.open.get(&ticket) else { return None };
        self.open.remove(&ticket);
        self.pacer = self.pacer.filter(|&pacer| pacer != ticket);
        if self.pacer.is_none() {
            let undecided = self.open.values().find_map(|fate| match fate {
                Fate::Undecided(thread) => Some(thread),
                Fate::Decided(_) => None,
            });
            if let Some(thread) = undecided {
                thread.unpark();
            }
        }
        Some(end)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::Kind;
    use super::*;

    fn page(n: u8) -> Vec<u8> {
        vec![n; ALIGN]
    }

    #[test]
    fn it_is_a_drive() {
        for kind in Kind::ALL {
            let drive = ModelDrive::virtual_time(Name { kind, size: 1 << 30 });
            assert_eq!(drive.size(), 1 << 30);
            drive.write(8192, &[page(1), page(2)].concat()).unwrap();
            drive.flush().unwrap();
            drive.zero(8192, 4096).unwrap();
            let mut back = [page(9), page(9), page(9)].concat();
            drive.read(4096, &mut back).unwrap();
            assert!(back == [page(0), page(0), page(2)].concat());
            assert_eq!(drive.kept_bytes(), 4096);
            assert_eq!(drive.now() == 0, kind == Kind::SsdNull);

            let errno = |result: Result<(), DriveError>| result.unwrap_err().errno;
            assert_eq!(errno(drive.write(1, &page(1))), EINVAL);
            assert_eq!(errno(drive.read(0, &mut [0; 100])), EINVAL);
            assert_eq!(errno(drive.zero(1 << 30, 4096)), EINVAL);
            assert_eq!(errno(drive.zero(u64::MAX - 4095, 4096)), EINVAL);
        }
    }

    #[test]
    fn virtual_time_is_the_models() {
        let name = Name { kind: Kind::Ssd840Pro, size: 1 << 30 };
        let (drive, mut model) = (ModelDrive::virtual_time(name), Model::new(name));
        drive.write(0, &page(1)).unwrap();
        let first = model.serve(0, Request::Write { at: 0, len: 4096 });
        assert_eq!(drive.now(), first);
        drive.flush().unwrap();
        assert_eq!(drive.now(), model.serve(first, Request::Flush));
    }

    #[test]
    fn real_time_passes_at_least_as_long() {
        let drive = ModelDrive::real_time(Kind::Ssd840Pro.into());
        let start = wait::now();
        drive.write(0, &page(1)).unwrap();
        drive.flush().unwrap();
        assert!(wait::now() - start >= 2_000_000, "a program and a journal");
    }

    #[test]
    fn threads_share_a_disk_and_each_reads_its_own() {
        let drive = ModelDrive::real_time(Kind::Hdd7200.into());
        thread::scope(|scope| {
            for n in 1..=12 {
                let drive = &drive;
                scope.spawn(move || {
                    for round in 0..3 {
                        let at = (u64::from(n) << 30) + round * 4096;
                        drive.write(at, &page(n)).unwrap();
                        if round == 1 {
                            drive.flush().unwrap();
                        }
                        let mut back = page(0);
                        drive.read(at, &mut back).unwrap();
                        assert!(back == page(n));
                        drive.read(at + (1 << 29), &mut back).unwrap();
                        assert!(back == page(0));
                    }
                });
            }
        });
        let Time::Real(queue) = &drive.time else { panic!("in real time") };
        let state = queue.state.lock();
        assert!(state.open.is_empty() && state.pacer.is_none());
    }

    #[test]
    fn who_should_have_paced_and_leaves_at_once_wakes_the_next() {
        let mut state = State {
            model: Model::new(Kind::Hdd7200.into()),
            ticket: 3,
            done: Vec::new(),
            open: HashMap::new(),
            pacer: Some(1),
        };
        let sleeping = thread::spawn(thread::park);
        state.open.insert(1, Fate::Decided(10));
        state.open.insert(2, Fate::Undecided(thread::current()));
        assert_eq!(state.take(1), Some(10));
        // Woken to pace; another thread's request decides this one before it gets the lock.
        thread::park();
        state.open.insert(2, Fate::Decided(20));
        state.open.insert(3, Fate::Undecided(sleeping.thread().clone()));
        assert_eq!(state.take(2), Some(20));
        sleeping.join().unwrap();
    }
}

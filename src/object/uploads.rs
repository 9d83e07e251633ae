//! What the threads of an object drive share, and the work of those that upload.
//!
//! Invariants: parts get slots in the order of their windows; an object that may be in the store is
//! sent again only with the same content; a drive that has a successor sends nothing more.

use super::ahead::look;
use super::change::{Changed, RootChange, What};
use super::counted::Counted;
use super::format::{Identity, OFFSET_BITS, Object, Part, Seed, Session, check_of};
use super::index::place;
use super::issuer::{Taken, judge};
use super::opening::{Opened, root_of, session_name};
use super::root::Root;
use super::state::State;
use super::store::{BEAT, Failure, ROOT, Store, Trouble, slot};
use super::takeover::{Answer, Ask, Owned};
use super::window::Draft;
use super::window_end::WindowEnd;
use crate::BLOCK_SIZE;
use crate::error::{Error, Result as Checked};
use crate::stats::ObjectStats;
use bytes::Bytes;
use parking_lot::{Condvar, Mutex};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Threads that upload.
pub const UPLOADERS: usize = 4;
/// A window of this age is sealed.
const AGE: Duration = Duration::from_secs(5);
/// Interval between signs of life, and looks at the root.
const BEATS: Duration = Duration::from_secs(10);
/// Shortest and longest pause before a store that fails is asked again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(10), Duration::from_secs(5));
/// Longest wait before a look at what has changed.
const LOOK: Duration = Duration::from_millis(500);
/// A part that is sent in less time leaves room for others beside it.
const FAST: Duration = Duration::from_secs(10);

/// See the module.
pub struct Shared {
    pub store: Arc<Counted>,
    pub volume: Identity,
    /// Bytes.
    pub size: AtomicU64,
    session: Session,
    /// The root as this owner left it.
    owned: Mutex<Owned>,
    owner: String,
    /// The check word of the part that was made last; held while a part is made, before `state`.
    last: Mutex<u32>,
    pub state: Mutex<State>,
    /// Notified with each change of the state.
    pub changed: Condvar,
    stop: AtomicBool,
    /// Notified, with the state, when the drive stops.
    ended: Condvar,
    /// Whether a part was not sent in time: on a line that slow, parts are sent one at a time.
    slow: AtomicBool,
    /// Held while a part is sent over a slow line.
    alone: Mutex<()>,
    /// Whether there is a successor.
    over: AtomicBool,
    /// The [`place`] of a payload that is damaged; 0: none, a head is there.
    damaged: AtomicU64,
}

/// The error number of a failure.
pub fn errno(failure: &Failure) -> i32 {
    match failure {
        Failure::Other(trouble) => trouble.errno,
        Failure::Missing | Failure::Exists | Failure::Changed => {
            rustix::io::Errno::IO.raw_os_error()
        }
    }
}

/// A part that is to be in the store.
struct Job {
    slot: u64,
    /// The number of its window.
    window: u64,
    content: Vec<Bytes>,
    object: Object,
}

impl Shared {
    pub fn new(store: Arc<Counted>, opened: Opened, owner: String) -> Self {
        let Opened { owned, contents } = opened;
        let state = State::new(contents, owned.next);
        Self {
            store,
            volume: owned.root.volume,
            size: owned.root.size.into(),
            session: owned.root.session,
            owned: Mutex::new(owned),
            owner,
            last: Mutex::new(0),
            state: Mutex::new(state),
            changed: Condvar::new(),
            stop: AtomicBool::new(false),
            ended: Condvar::new(),
            slow: AtomicBool::new(false),
            alone: Mutex::default(),
            over: AtomicBool::new(false),
            damaged: AtomicU64::new(0),
        }
    }

    /// Seals the open window, if it has something. Returns the number of the next window.
    pub fn seal(&self, state: &mut State) -> u64 {
        let next = state.seal();
        self.changed.notify_all();
        next
    }

    /// Ends the threads.
    pub fn stop(&self) {
        self.stop.store(true, Ordering::Release);
        // A thread that has just looked waits by now, and is woken.
        drop(self.state.lock());
        self.changed.notify_all();
        self.ended.notify_all();
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Acquire)
    }

    /// Whether nothing more is to be sent.
    pub fn ends(&self) -> bool {
        self.stops() || self.is_over()
    }

    /// Waits for `time`, unless the drive stops.
    pub fn pause(&self, time: Duration) {
        let mut state = self.state.lock();
        if !self.stops() {
            self.ended.wait_for(&mut state, time);
        }
    }

    /// Tells the store that this owner has ended in order. Best effort: without it, another host
    /// waits until there were no signs of life for a while; without a log the next daemon here does
    /// not let a device go on. Tries again for the time `most`.
    pub fn give_up(&self, most: Duration) {
        if self.is_over() {
            return;
        }
        if !most.is_zero() {
            self.store.hurry(most);
        }
        let until = Instant::now() + most;
        while matches!(self.change(What::End), Err(Failure::Other(_))) && Instant::now() < until {
            std::thread::sleep(PAUSES.0);
        }
    }

    /// Makes the volume larger.
    ///
    /// # Errors
    /// It would not be larger; or the store fails, or has another owner.
    pub fn grow(&self, size: u64) -> Checked<()> {
        let now = self.size.load(Ordering::Acquire);
        if size < now || !size.is_multiple_of(BLOCK_SIZE as u64) {
            return Err(Error::usage(format!("size {size} is less than the {now} bytes it has"))
                .hint("sizes grow, never shrink"));
        }
        match self.change(What::Grow(size)) {
            Ok(_) => {
                self.size.store(size, Ordering::Release);
                Ok(())
            }
            Err(failure) => {
                if failure != Failure::Changed {
                    self.note_failure(&failure);
                }
                let place = self.store.place();
                Err(Error::failure(format!("cannot change the size in {place}: {failure}")))
            }
        }
    }

    /// Changes the root, and returns it.
    ///
    /// # Errors
    /// [`Failure::Changed`]: the root is another owner's. Or the store fails.
    pub fn change(&self, what: What) -> Result<Root, Failure> {
        let mut owned = self.owned.lock();
        let mut change = RootChange::new(what, (owned.root.clone(), owned.tag.clone()));
        loop {
            let answer = match change.ask() {
                Ask::Swap(root, tag) => {
                    Answer::Swapped(self.store.swap(ROOT, &root.encode(), &tag))
                }
                _ => Answer::Root(root_of(&*self.store, &self.volume)),
            };
            match change.hear(answer) {
                Changed::Next => {}
                Changed::Done(root, tag) => {
                    (owned.root, owned.tag) = (*root, tag);
                    return Ok(owned.root.clone());
                }
                Changed::Over => {
                    drop(owned);
                    self.find_successor();
                    return Err(Failure::Changed);
                }
                Changed::Failed(failure) => return Err(failure),
            }
        }
    }

    /// The root as this owner has left it.
    pub fn root(&self) -> Root {
        self.owned.lock().root.clone()
    }

    /// Counters, now.
    pub fn stats(&self) -> ObjectStats {
        let damaged = self.damaged.load(Ordering::Relaxed);
        let traffic = self.store.traffic();
        let state = self.state.lock();
        ObjectStats {
            place: self.store.place(),
            owner: self.owner.clone(),
            session: session_name(&self.session),
            successor: state.successor.clone(),
            trouble: state.failing.as_ref().map(|(trouble, _)| trouble.text.clone()),
            damaged_object: Some(damaged >> OFFSET_BITS).filter(|_| damaged != 0).map(slot),
            next_slot: state.next_slot(),
            durable_slot: state.durable_slot(),
            blocks: state.contents.index.blocks(),
            live_bytes: state.contents.index.live_bytes(),
            stored_bytes: state.contents.index.stored_bytes(),
            index_bytes: state.contents.index.memory_bytes(),
            waiting_bytes: state.waiting_bytes() as u64,
            lost_blocks: state.contents.index.lost_blocks(),
            walk_objects: state.contents.since.objects,
            windows: state.windows(),
            sent_objects: traffic.sent,
            sent_bytes: traffic.sent_bytes,
            read_requests: traffic.reads,
            read_bytes: traffic.read_bytes,
        }
    }

    /// Notes a failure of the store.
    pub fn note_failure(&self, failure: &Failure) {
        let errno = errno(failure);
        let trouble = match failure {
            Failure::Other(trouble) => trouble.clone(),
            other => Trouble { errno, text: format!("{}: {other}", self.store.place()) },
        };
        let mut state = self.state.lock();
        let since = state.failing.take().map_or_else(Instant::now, |(_, since)| since);
        state.failing = Some((trouble, since));
    }

    /// Notes that what is at a [`place`] is damaged.
    pub fn note_damage(&self, place: u64) {
        self.damaged.store(place, Ordering::Relaxed);
    }

    /// Notes that it is whole: the object may have been restored.
    pub fn note_whole(&self, place: u64) {
        if self.damaged.load(Ordering::Relaxed) == place {
            self.damaged.store(0, Ordering::Relaxed);
        }
    }

    /// Whether the volume has another owner.
    pub fn is_over(&self) -> bool {
        self.over.load(Ordering::Acquire)
    }

    /// Makes the object of a part; `last` is the check word of the one before, and then its own.
    fn make(&self, (draft, number, of): (Draft, u64, Part), last: &mut u32) -> Job {
        let of = Part { before: if of.part == 0 { 0 } else { *last }, ..of };
        let (volume, session) = (self.volume, self.session);
        let seed = Seed { volume, session, slot: number };
        let (entries, content) = draft.encode(&seed, of);
        *last = content.first().map_or(0, |table| check_of(table));
        let object = Object::Part { session, part: of, entries, check: *last };
        Job { slot: number, window: of.window, content, object }
    }

    /// Sends a part until it is in the store, or this owner has a successor.
    fn send(&self, job: Job) {
        let mut pause = PAUSES.0;
        while !self.stops() {
            let done = match self.create(&job) {
                Ok(()) => Ok(true),
                Err(Failure::Exists) => self.is_ours(&job),
                Err(failure) => Err(failure),
            };
            match done {
                Ok(true) => return self.sent(job),
                Ok(false) => return,
                Err(failure) => self.note_failure(&failure),
            }
            self.changed.notify_all();
            std::thread::sleep(pause);
            pause = (pause * 2).min(PAUSES.1);
        }
    }

    /// Makes the object of a part. Several at once share the line, and on a slow one none of them
    /// would end in time.
    fn create(&self, job: &Job) -> Result<(), Failure> {
        let slow = self.slow.load(Ordering::Relaxed);
        let _alone = slow.then(|| self.alone.lock());
        let began = Instant::now();
        let done = self.store.create_large(&slot(job.slot), &job.content);
        match &done {
            Err(Failure::Other(trouble))
                if trouble.errno == rustix::io::Errno::TIMEDOUT.raw_os_error() =>
            {
                self.slow.store(true, Ordering::Relaxed);
            }
            Ok(()) if slow && began.elapsed() < FAST => self.slow.store(false, Ordering::Relaxed),
            _ => {}
        }
        done
    }

    /// Whether the object in the slot of `job` is that of `job`. If it is another's, this owner has
    /// a successor.
    fn is_ours(&self, job: &Job) -> Result<bool, Failure> {
        let found = look(&*self.store, &self.volume, job.slot)?;
        match found.as_ref().map(|found| judge(found, &job.object)) {
            Ok(Taken::Ours) => return Ok(true),
            Ok(Taken::Fence(_)) => self.find_successor(),
            Ok(Taken::Other) | Err(_) => {
                self.note_damage(place(job.slot, 0));
                self.succeeded("an owner that does not keep to the protocol".into());
            }
        }
        Ok(false)
    }

    fn sent(&self, job: Job) {
        let Job { slot, window, object, .. } = job;
        let Object::Part { session, check, entries, .. } = object else { return };
        let end = WindowEnd::new((slot, check), session, &entries);
        let mut state = self.state.lock();
        state.sent(window, end, entries);
        self.changed.notify_all();
    }

    fn find_successor(&self) {
        let root = root_of(&*self.store, &self.volume).ok();
        let other = root.filter(|(root, _)| root.session != self.session);
        self.succeeded(other.map_or_else(|| "another owner".to_owned(), |(root, _)| root.owner));
    }

    fn succeeded(&self, by: String) {
        self.state.lock().successor.get_or_insert(by);
        self.over.store(true, Ordering::Release);
        self.changed.notify_all();
    }

    /// Gives a sign of life, and looks whether the volume has another owner.
    fn beat(&self) {
        match root_of(&*self.store, &self.volume) {
            Ok((root, _)) if root.session != self.session => return self.succeeded(root.owner),
            Ok(_) => {}
            Err(failure) => return self.note_failure(&failure),
        }
        match self.store.put(BEAT, self.owner.as_bytes()) {
            Ok(()) => {
                let mut state = self.state.lock();
                if state.is_settled() {
                    state.failing = None;
                }
            }
            Err(failure) => self.note_failure(&failure),
        }
    }

    /// Waits for a part to send. `None`: none came for a while.
    fn await_job(&self) -> Option<Job> {
        let mut last = self.last.lock();
        let mut state = self.state.lock();
        if state.is_aged(AGE) {
            self.seal(&mut state);
        }
        if let Some(next) = state.next() {
            // Requests go on while the object is made.
            drop(state);
            return Some(self.make(next, &mut last));
        }
        drop(last);
        if !self.stops() {
            self.changed.wait_for(&mut state, LOOK);
        }
        None
    }
}

/// The work of a thread that uploads, until the drive stops.
pub fn upload(shared: &Shared) {
    while !shared.stops() {
        if let Some(job) = shared.await_job() {
            shared.send(job);
        }
    }
}

/// The work of the thread that gives signs of life, until the drive stops. It uploads nothing: a
/// long upload would make the owner look dead.
pub fn beat(shared: &Shared) {
    let mut beaten = Instant::now();
    while !shared.stops() {
        if beaten.elapsed() >= BEATS {
            beaten = Instant::now();
            shared.beat();
        }
        let mut state = shared.state.lock();
        if !shared.stops() {
            shared.changed.wait_for(&mut state, LOOK);
        }
    }
}

//! A drive that loses unflushed writes, reorders commands, and fails and lies on order.
//!
//! Invariants, those of [`Drive`]: a read sees every write that has returned. A write survives a
//! cut once a flush that began after the write returned has returned without error. Nothing more is
//! promised: an unflushed write, and one in flight, may survive a cut whole, in parts, or not at
//! all. After a *failed* flush the writes that it should have covered stay unflushed, whatever
//! later flushes say.

use crate::atomic::Atomic;
use crate::cut::{Pages, Tearing, strike};
use crate::fault::{Effect, Fault, Faults, POWER_CUT};
use crate::image::{self, Image, PAGE, SECTOR, bytes, slots};
use crate::rng::{Rng, mix};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use ztier::media::{ALIGN, Action, Buffer, Commit, Drive, DriveError};

/// The power supply that drives share. It can be set to fail after a number of operations.
#[derive(Debug)]
pub struct Power {
    /// Operations until the power goes.
    left: AtomicU64,
    off: AtomicBool,
    /// Blocking operations since the last [`Power::begin`].
    blocking: AtomicU64,
}

/// Limit on the blocking operations of one recovery: a recovery with more never ends.
const BLOCKING_MAX: u64 = 50_000;

impl Default for Power {
    fn default() -> Self {
        Self {
            left: AtomicU64::new(u64::MAX),
            off: AtomicBool::new(false),
            blocking: AtomicU64::new(0),
        }
    }
}

impl Power {
    /// Switches the power on for `operations` of all drives together; `None`: without a limit.
    pub fn on(&self, operations: Option<u64>) {
        self.left.store(operations.unwrap_or(u64::MAX), Ordering::Relaxed);
        self.off.store(false, Ordering::Relaxed);
    }

    /// A recovery begins.
    pub fn begin(&self) {
        self.blocking.store(0, Ordering::Relaxed);
    }

    /// Blocking operations since the last [`Power::begin`].
    pub fn blocking(&self) -> u64 {
        self.blocking.load(Ordering::Relaxed)
    }

    /// Whether the power is off.
    pub fn is_off(&self) -> bool {
        self.off.load(Ordering::Relaxed)
    }

    /// Counts an operation; returns whether the power lasts until its end.
    fn lasts(&self) -> bool {
        let blocking = self.blocking.fetch_add(1, Ordering::Relaxed);
        assert!(blocking < BLOCKING_MAX, "a recovery never ends");
        let left = self.left.load(Ordering::Relaxed);
        if left == u64::MAX {
            return true;
        }
        self.left.store(left.saturating_sub(1), Ordering::Relaxed);
        if left == 0 {
            self.off.store(true, Ordering::Relaxed);
        }
        left > 0
    }
}

/// An operation of a drive.
#[derive(Clone, Debug)]
pub enum Request {
    /// A read: offset and length in bytes.
    Read(u64, usize),
    /// Pages to store, of a write or of a zeroing.
    Store(Action, Pages),
    /// Make all returned writes durable.
    Flush,
    /// Make the window durable, with this commit.
    Commit(Commit),
}

impl Request {
    /// A write of `data` at `at`.
    pub fn write(at: u64, data: &[u8]) -> Self {
        Self::Store(Action::Write, (first_page(at)..).zip(slots(data)).collect())
    }

    /// A zeroing.
    pub fn zero(at: u64, len: u64) -> Self {
        let pages = first_page(at)..first_page(at + len);
        Self::Store(Action::Zero, pages.map(|page| (page, None)).collect())
    }

    /// Bytes that it reads.
    const fn reads(&self) -> usize {
        match self {
            Self::Read(_, len) => *len,
            _ => 0,
        }
    }

    const fn action(&self) -> Action {
        match self {
            Self::Read(..) => Action::Read,
            Self::Store(action, _) => *action,
            Self::Flush | Self::Commit(_) => Action::Flush,
        }
    }

    fn error(&self, errno: i32) -> DriveError {
        let (at, len) = match self {
            Self::Read(at, len) => (*at, *len as u64),
            Self::Store(_, pages) => (
                pages.first().map_or(0, |(page, _)| u64::from(*page) * PAGE as u64),
                (pages.len() * PAGE) as u64,
            ),
            Self::Flush | Self::Commit(_) => (0, 0),
        };
        DriveError { action: self.action(), at, len, errno }
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let DriveError { action, at, len, .. } = self.error(0);
        write!(f, "{action} of {len} at {at}")
    }
}

fn first_page(at: u64) -> u32 {
    u32::try_from(at / PAGE as u64).expect("simulated drives are small")
}

/// A returned write that is not durable.
#[derive(Clone, Debug)]
struct Unflushed {
    /// Its number in the order of completion.
    order: u64,
    /// A flush that should have covered this write has failed: no later flush covers it.
    doomed: bool,
    pages: Pages,
}

/// An operation in flight.
#[derive(Clone, Debug)]
struct Flight {
    request: Request,
    /// For a flush: number of the last write that had returned when the flush began.
    covers: u64,
}

#[derive(Debug)]
struct State {
    durable: Image,
    /// The image that reads see: the durable image with all returned writes.
    current: Image,
    unflushed: Vec<Unflushed>,
    flying: BTreeMap<u64, Flight>,
    /// Number of writes that have returned.
    order: u64,
    faults: Faults,
    complaint: Option<String>,
    /// What an atomic drive has beside; `None`: the drive is not atomic.
    atomic: Option<Atomic>,
}

/// What a cut finds: the durable image, and the writes that may survive, in order.
#[derive(Clone, Debug)]
pub struct Exposed {
    /// The content that survives for sure.
    pub durable: Image,
    /// Writes that may survive.
    pub writes: Vec<Pages>,
    /// The first `returned` of `writes` had returned; the others may survive in any order.
    pub returned: usize,
}

/// The drive.
#[derive(Debug)]
pub struct SimDrive {
    name: &'static str,
    size: u64,
    power: Arc<Power>,
    state: Mutex<State>,
}

impl SimDrive {
    /// A drive of `size` zero bytes.
    pub fn new(name: &'static str, size: u64, power: Arc<Power>) -> Self {
        Self::holding(name, Image::new(size), power)
    }

    /// A drive that holds `image`, durably.
    pub fn holding(name: &'static str, image: Image, power: Arc<Power>) -> Self {
        let state = State {
            current: image.clone(),
            unflushed: Vec::new(),
            flying: BTreeMap::new(),
            order: 0,
            faults: Faults::default(),
            complaint: None,
            atomic: None,
            durable: image,
        };
        let size = (state.durable.len() * PAGE) as u64;
        Self { name, size, power, state: Mutex::new(state) }
    }

    /// The same, an atomic drive whose newest commit is `newest`.
    #[must_use]
    pub fn atomic(self, newest: Option<Commit>) -> Self {
        self.state.lock().atomic = Some(Atomic { newest, ..Atomic::default() });
        self
    }

    /// The newest commit of an atomic drive.
    pub fn newest(&self) -> Option<Commit> {
        self.state.lock().atomic.as_ref()?.newest.clone()
    }

    /// The process dies: the next one does not see a window that was not committed.
    pub fn abandon(&self, rng: &mut Rng) {
        let mut state = self.state.lock();
        state.cut_commit(rng);
        state.drop_window(false);
    }

    /// Begins an operation that [`SimDrive::finish`] ends. A write that overlaps one in flight is
    /// an error of the caller: the order of the two is undefined.
    pub fn begin(&self, id: u64, request: Request) {
        let mut state = self.state.lock();
        if let Some(why) = self.misuse(&state, &request) {
            state.complaint.get_or_insert(why);
        }
        let covers = state.order;
        let previous = state.flying.insert(id, Flight { request, covers });
        assert!(previous.is_none(), "operation {id} has begun already");
    }

    /// Ends an operation in flight; returns what it has read.
    ///
    /// # Errors
    /// Planned faults.
    pub fn finish(&self, id: u64) -> Result<Buffer, DriveError> {
        let mut state = self.state.lock();
        let flight = state.flying.remove(&id).expect("only what has begun ends");
        let mut data = Buffer::new(flight.request.reads());
        state.carry_out(flight, true, &mut data).map(|()| data)
    }

    /// The process that waits for an operation dies: the operation is done, not done, or done in
    /// part.
    pub fn interrupt(&self, id: u64, rng: &mut Rng) {
        let mut state = self.state.lock();
        let flight = state.flying.remove(&id).expect("only what has begun ends");
        match flight.request {
            Request::Store(..) | Request::Flush | Request::Commit(_) if rng.chance(400) => {
                // An error reaches no caller: the process is dead.
                let _ = state.carry_out(flight, true, &mut []);
            }
            Request::Store(_, mut pages) => {
                pages.truncate(rng.below(pages.len() as u64) as usize);
                if !pages.is_empty() {
                    state.store(pages);
                }
            }
            Request::Read(..) | Request::Flush | Request::Commit(_) => {}
        }
    }

    /// Why an operation is not allowed, if so.
    fn misuse(&self, state: &State, request: &Request) -> Option<String> {
        let error = request.error(0);
        if !error.at.is_multiple_of(ALIGN as u64) || !error.len.is_multiple_of(ALIGN as u64) {
            return Some(format!("{}: unaligned: {error}", self.name));
        }
        if error.at + error.len > self.size {
            return Some(format!("{}: beyond the end: {error}", self.name));
        }
        let commit = if let Request::Commit(commit) = request { Some(commit) } else { None };
        let changes = commit.is_some() || matches!(request, Request::Store(..));
        if changes && state.atomic.as_ref().is_some_and(|atomic| atomic.refuses(commit)) {
            return Some(format!("{}: {request} beside an unsettled commit", self.name));
        }
        let Request::Store(action, pages) = request else {
            return None;
        };
        let overlaps = |flight: &Flight| {
            let Request::Store(other_action, other) = &flight.request else {
                return false;
            };
            // Two zeroings may overlap: their order does not matter.
            if (*action, *other_action) == (Action::Zero, Action::Zero) {
                return false;
            }
            let (Some((a, _)), Some((b, _))) = (pages.first(), other.first()) else {
                return false;
            };
            *a < b + other.len() as u32 && *b < a + pages.len() as u32
        };
        let other = state.flying.values().find(|flight| overlaps(flight))?;
        let other = other.request.error(0);
        Some(format!("{}: {error} overlaps {other}, which has not ended", self.name))
    }

    /// The drive's power supply.
    pub fn power(&self) -> &Power {
        &self.power
    }

    /// The first request that was not allowed, and why.
    pub fn complaint(&self) -> Option<String> {
        self.state.lock().complaint.clone()
    }

    /// Plans a fault.
    pub fn plan(&self, fault: Fault) {
        self.state.lock().faults.plan(fault);
    }

    /// Forgets all faults.
    pub fn repair(&self) {
        self.state.lock().faults.clear();
    }

    /// Operations that have ended, and how many of them a fault has changed.
    pub fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.faults.count(), state.faults.fired())
    }

    /// Flips a bit of the medium, in every version of the byte at `at`.
    pub fn flip(&self, at: u64, bit: u8) {
        let (page, byte) = ((at / PAGE as u64) as usize, (at % PAGE as u64) as usize);
        let mut state = self.state.lock();
        state.durable.page_mut(page)[byte] ^= 1 << bit;
        state.current.page_mut(page)[byte] ^= 1 << bit;
        let versions = state.unflushed.iter_mut().flat_map(|write| &mut write.pages);
        for (_, slot) in versions.filter(|(index, _)| *index as usize == page) {
            let mut flipped = *bytes(slot);
            flipped[byte] ^= 1 << bit;
            *slot = image::slot(flipped);
        }
    }

    /// The image that reads see.
    pub fn current(&self) -> Image {
        self.state.lock().current.clone()
    }

    /// The content that survives for sure.
    pub fn durable(&self) -> Image {
        self.state.lock().durable.clone()
    }

    /// What a cut finds now.
    pub fn exposed(&self) -> Exposed {
        let state = self.state.lock();
        let mut writes: Vec<Pages> = state.unflushed.iter().map(|w| w.pages.clone()).collect();
        let returned = writes.len();
        writes.extend(state.flying.values().filter_map(|flight| match &flight.request {
            Request::Store(_, pages) => Some(pages.clone()),
            _ => None,
        }));
        Exposed { durable: state.durable.clone(), writes, returned }
    }

    /// Cuts the power: the drive holds what the cut leaves, and nothing is in flight.
    pub fn cut(&self, rng: &mut Rng, tearing: &Tearing) {
        self.state.lock().cut_commit(rng);
        let Exposed { mut durable, mut writes, returned } = self.exposed();
        // Writes in flight have no order.
        for i in (returned + 1..writes.len()).rev() {
            let other = returned + rng.index(i - returned + 1);
            writes.swap(i, other);
        }
        strike(&mut durable, &writes, rng, tearing);
        self.hold(durable);
    }

    /// Makes the drive hold `image`, durably, with nothing in flight. Faults stay.
    pub fn hold(&self, image: Image) {
        let mut state = self.state.lock();
        state.current = image.clone();
        state.durable = image;
        state.unflushed.clear();
        state.flying.clear();
        state.drop_window(false);
    }

    /// A blocking operation; a read fills `data`.
    fn perform(&self, request: Request, data: &mut [u8]) -> Result<(), DriveError> {
        let mut state = self.state.lock();
        if let Some(why) = self.misuse(&state, &request) {
            state.complaint.get_or_insert(why);
        }
        let flight = Flight { request, covers: state.order };
        if self.power.is_off() {
            return Err(flight.request.error(POWER_CUT));
        }
        let lasts = self.power.lasts();
        state.carry_out(flight, lasts, data)
    }
}

impl State {
    /// Ends an operation, with its faults. If the power fails before that, any part of a write may
    /// have reached the drive, and a flush guarantees nothing. A read that succeeds fills `data`.
    fn carry_out(
        &mut self,
        flight: Flight,
        lasts: bool,
        data: &mut [u8],
    ) -> Result<(), DriveError> {
        let Flight { request, covers } = flight;
        if !lasts {
            let error = request.error(POWER_CUT);
            if let Request::Store(_, pages) = request {
                self.store(pages);
            }
            return Err(error);
        }
        let DriveError { action, at, len, .. } = request.error(0);
        let effect = self.faults.next(action, at, len);
        let result = match effect {
            Effect::Fails(errno) | Effect::Done(errno) | Effect::Half(errno) => {
                Err(request.error(errno))
            }
            _ => Ok(()),
        };
        match request {
            Request::Commit(commit) => self.commit_as(commit, effect),
            Request::Read(at, len) if result.is_ok() => {
                self.current.read(at, data);
                if effect == Effect::Flipped && len > 0 {
                    let chosen = mix(self.faults.count());
                    data[chosen as usize % len] ^= 1 << (chosen >> 61);
                }
            }
            Request::Read(..) => {}
            Request::Store(_, pages) => self.store_as(pages, effect),
            // What is written to a window waits for its commit.
            Request::Flush if self.is_in_window() => {}
            Request::Flush => self.flush_as(covers, effect),
        }
        result
    }

    fn is_in_window(&self) -> bool {
        self.atomic.as_ref().is_some_and(|atomic| atomic.in_window)
    }

    /// A window that was not committed is dropped, and one begins if it `begins`.
    fn drop_window(&mut self, begins: bool) {
        if let Some(atomic) = &mut self.atomic {
            atomic.drop_window((&mut self.current, &self.durable), begins);
        }
    }

    fn commit_as(&mut self, commit: Commit, effect: Effect) {
        let Some(atomic) = &mut self.atomic else { return };
        match effect {
            Effect::Fails(_) | Effect::Half(_) | Effect::Lost => atomic.unsettled = Some(commit),
            effect => {
                atomic.commit(commit.clone(), (&mut self.current, &mut self.durable));
                atomic.unsettled = matches!(effect, Effect::Done(_)).then_some(commit);
            }
        }
    }

    /// The power goes: a commit in flight, or one that has failed, may be done.
    fn cut_commit(&mut self, rng: &mut Rng) {
        let flying = self.flying.values().find_map(|flight| match &flight.request {
            Request::Commit(commit) => Some(commit.clone()),
            _ => None,
        });
        let unsettled = self.atomic.as_ref().and_then(|atomic| atomic.unsettled.clone());
        if let Some(commit) = flying.or(unsettled).filter(|_| rng.chance(500)) {
            self.commit_as(commit, Effect::None);
        }
        if self.is_in_window() {
            // Nothing of it was durable.
            self.flying.clear();
        }
    }

    fn store_as(&mut self, pages: Pages, effect: Effect) {
        match effect {
            Effect::Fails(_) | Effect::Lost => {}
            Effect::Half(_) => {
                let half = self.half(pages);
                self.store(half);
            }
            Effect::Elsewhere => {
                let len = pages.len();
                let places = (self.current.len() - len + 1) as u64;
                let asked = pages.first().map_or(0, |(page, _)| u64::from(*page));
                let shift = 1 + mix(self.faults.count()) % (places - 1).max(1);
                let first = ((asked + shift) % places) as u32;
                self.store((first..).zip(pages.into_iter().map(|(_, slot)| slot)).collect());
            }
            Effect::None | Effect::Done(_) | Effect::Flipped => self.store(pages),
        }
    }

    /// The first half of a write's sectors, over the old content.
    fn half(&self, mut pages: Pages) -> Pages {
        let sectors = pages.len() * (PAGE / SECTOR) / 2;
        pages.truncate(sectors.div_ceil(PAGE / SECTOR));
        let rest = sectors % (PAGE / SECTOR);
        if let Some((page, slot)) = pages.last_mut().filter(|_| rest > 0) {
            let mut mixed = *self.current.page(*page as usize);
            mixed[..rest * SECTOR].copy_from_slice(&bytes(slot)[..rest * SECTOR]);
            *slot = image::slot(mixed);
        }
        pages
    }

    fn store(&mut self, pages: Pages) {
        crate::cut::keep(&mut self.current, &pages);
        if self.is_in_window() {
            return;
        }
        if let Some(atomic) = &mut self.atomic {
            atomic.newest = None;
        }
        self.order += 1;
        self.unflushed.push(Unflushed { order: self.order, doomed: false, pages });
    }

    fn flush_as(&mut self, covers: u64, effect: Effect) {
        let covered = |w: &Unflushed| w.order <= covers && !w.doomed;
        let whole = match effect {
            Effect::Fails(_) => 0,
            Effect::Half(_) => self.unflushed.iter().filter(|w| covered(w)).count() / 2,
            _ => usize::MAX,
        };
        let mut done = 0;
        let mut left: Vec<Unflushed> = Vec::new();
        for mut write in std::mem::take(&mut self.unflushed) {
            if covered(&write) && done < whole {
                done += 1;
                crate::cut::keep(&mut self.durable, &write.pages);
                // What is durable now is newer than the writes that an earlier failed flush gave
                // up.
                for earlier in &mut left {
                    earlier.pages.retain(|(page, _)| !write.pages.iter().any(|(p, _)| p == page));
                }
            } else {
                write.doomed |= write.order <= covers;
                left.push(write);
            }
        }
        self.unflushed = left;
    }
}

impl Drive for SimDrive {
    fn size(&self) -> u64 {
        self.size
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> Result<(), DriveError> {
        self.perform(Request::Read(at, buf.len()), buf)
    }

    fn write(&self, at: u64, data: &[u8]) -> Result<(), DriveError> {
        self.perform(Request::write(at, data), &mut [])
    }

    fn zero(&self, at: u64, len: u64) -> Result<(), DriveError> {
        self.perform(Request::zero(at, len), &mut [])
    }

    fn flush(&self) -> Result<(), DriveError> {
        self.perform(Request::Flush, &mut [])
    }

    fn is_atomic(&self) -> bool {
        self.state.lock().atomic.is_some()
    }

    fn begin(&self) {
        self.state.lock().drop_window(true);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fault::{EIO, ENOSPC, Kind};

    fn drive() -> SimDrive {
        SimDrive::new("test", 8 * PAGE as u64, Arc::new(Power::default()))
    }

    fn page(byte: u8) -> Vec<u8> {
        vec![byte; PAGE]
    }

    fn at(index: u64) -> u64 {
        index * PAGE as u64
    }

    /// First byte of each page, as read.
    fn look(drive: &SimDrive) -> Vec<u8> {
        (0..8).map(|i| drive.current().page(i)[0]).collect()
    }

    fn lasting(drive: &SimDrive) -> Vec<u8> {
        (0..8).map(|i| drive.durable().page(i)[0]).collect()
    }

    /// Repeats cuts until one leaves the content `want`; returns whether one does.
    fn can_become(drive: &SimDrive, want: &[u8]) -> bool {
        let exposed = drive.exposed();
        (0..500).any(|seed| {
            let mut rng = Rng::new(seed);
            let tearing = Tearing::choose(&mut rng);
            let mut image = exposed.durable.clone();
            strike(&mut image, &exposed.writes, &mut rng, &tearing);
            (0..8).all(|i| image.page(i)[0] == want[i])
        })
    }

    #[test]
    fn what_is_flushed_lasts_and_the_rest_may_not() {
        let drive = drive();
        drive.write(at(1), &page(1)).unwrap();
        drive.flush().unwrap();
        drive.write(at(1), &page(2)).unwrap();
        drive.write(at(2), &page(3)).unwrap();
        drive.zero(at(1), at(1)).unwrap();
        assert_eq!(look(&drive), [0, 0, 3, 0, 0, 0, 0, 0]);
        assert_eq!(lasting(&drive), [0, 1, 0, 0, 0, 0, 0, 0]);
        for (first, second) in [(1, 0), (2, 0), (0, 0), (1, 3), (2, 3), (0, 3)] {
            assert!(can_become(&drive, &[0, first, second, 0, 0, 0, 0, 0]), "{first} {second}");
        }
        assert!(!can_become(&drive, &[0, 9, 0, 0, 0, 0, 0, 0]));
        let mut rng = Rng::new(1);
        let tearing = Tearing::choose(&mut rng);
        drive.cut(&mut rng, &tearing);
        assert_eq!(look(&drive), lasting(&drive));
        assert!(drive.exposed().writes.is_empty());
    }

    #[test]
    fn a_flush_covers_only_what_had_returned_when_it_began() {
        let drive = drive();
        drive.begin(1, Request::write(at(0), &page(1)));
        drive.begin(2, Request::write(at(1), &page(2)));
        drive.finish(1).unwrap();
        drive.begin(3, Request::Flush);
        drive.finish(2).unwrap();
        drive.finish(3).unwrap();
        assert_eq!(look(&drive)[..2], [1, 2]);
        assert_eq!(lasting(&drive)[..2], [1, 0]);
        assert_eq!(drive.exposed().returned, 1);
        assert_eq!(drive.complaint(), None);
    }

    #[test]
    fn what_has_begun_may_survive_a_cut() {
        let drive = drive();
        drive.begin(1, Request::write(at(0), &page(1)));
        assert_eq!(look(&drive)[0], 0);
        assert!(can_become(&drive, &[1, 0, 0, 0, 0, 0, 0, 0]));
        assert!(can_become(&drive, &[0; 8]));
        drive.begin(2, Request::write(at(0), &page(2)));
        assert!(drive.complaint().unwrap().contains("overlaps"));
    }

    #[test]
    fn a_flush_that_failed_is_not_made_good_by_the_next() {
        let drive = drive();
        drive.plan(Fault { nth: 1, kind: Kind::Once });
        drive.write(at(0), &page(1)).unwrap();
        assert_eq!(drive.flush().unwrap_err().errno, EIO);
        drive.write(at(1), &page(2)).unwrap();
        drive.flush().unwrap();
        assert_eq!(lasting(&drive)[..2], [0, 2]);
        assert!(can_become(&drive, &[1, 2, 0, 0, 0, 0, 0, 0]));
        // Its replacement is durable, and the lost version does not come back.
        drive.write(at(0), &page(3)).unwrap();
        drive.flush().unwrap();
        assert_eq!(lasting(&drive)[..2], [3, 2]);
        assert!(!can_become(&drive, &[1, 2, 0, 0, 0, 0, 0, 0]));
    }

    #[test]
    fn honest_faults_do_all_half_or_nothing_and_say_so() {
        let failing = |kind| {
            let drive = drive();
            drive.plan(Fault { nth: 0, kind });
            let errno = drive.write(at(0), &[page(1), page(2)].concat()).unwrap_err().errno;
            (drive, errno)
        };
        let (once, errno) = failing(Kind::Once);
        assert_eq!((errno, look(&once)[0]), (EIO, 0));
        once.write(at(0), &page(1)).unwrap();
        let (applied, errno) = failing(Kind::Applied);
        assert_eq!((errno, &look(&applied)[..2]), (EIO, &[1, 2][..]));
        let (short, errno) = failing(Kind::Short);
        assert_eq!((errno, &look(&short)[..2]), (EIO, &[1, 0][..]));
        let (full, errno) = failing(Kind::NoSpace);
        assert_eq!((errno, look(&full)[0]), (ENOSPC, 0));
        let (read_only, _) = failing(Kind::ReadOnly);
        assert!(read_only.write(at(0), &page(1)).is_err());
        read_only.read(at(0), &mut page(0)).unwrap();
        let (gone, _) = failing(Kind::Forever);
        assert!(gone.read(at(0), &mut page(0)).is_err());
        assert_eq!(gone.counts(), (2, 2));
        gone.repair();
        gone.read(at(0), &mut page(0)).unwrap();
    }

    #[test]
    fn a_short_write_of_one_page_is_half_of_it() {
        let drive = drive();
        drive.plan(Fault { nth: 0, kind: Kind::Short });
        drive.write(at(3), &page(7)).unwrap_err();
        let current = drive.current();
        assert_eq!((current.page(3)[PAGE / 2 - 1], current.page(3)[PAGE / 2]), (7, 0));
    }

    #[test]
    fn lies_are_reported_as_done() {
        let lying = |kind| {
            let drive = drive();
            drive.plan(Fault { nth: 0, kind });
            drive.write(at(2), &page(1)).unwrap();
            drive.flush().unwrap();
            drive
        };
        assert_eq!(lasting(&lying(Kind::Lost)), [0; 8]);
        let elsewhere = lasting(&lying(Kind::Misdirected));
        assert_eq!((elsewhere[2], elsewhere.iter().sum::<u8>()), (0, 1));
        let flipped = lying(Kind::FlippedRead);
        let mut buf = page(0);
        flipped.read(at(2), &mut buf).unwrap();
        assert_eq!(buf.iter().filter(|b| **b != 1).count(), 1);
        flipped.read(at(2), &mut buf).unwrap();
        assert_eq!(buf, page(1), "the medium is good");
    }

    #[test]
    fn a_flipped_bit_is_in_every_version() {
        let drive = drive();
        drive.write(at(1), &page(8)).unwrap();
        drive.flip(at(1) + 5, 0);
        assert_eq!((drive.current().page(1)[5], drive.durable().page(1)[5]), (9, 1));
        drive.flush().unwrap();
        assert_eq!(drive.durable().page(1)[5], 9);
    }

    #[test]
    fn power_goes_after_some_operations_of_both_drives() {
        let power = Arc::new(Power::default());
        let log = SimDrive::new("log", at(8), power.clone());
        let backing = SimDrive::new("backing", at(8), power.clone());
        power.on(Some(2));
        log.write(at(0), &page(1)).unwrap();
        log.flush().unwrap();
        assert!(!power.is_off());
        assert_eq!(backing.write(at(1), &page(2)).unwrap_err().errno, POWER_CUT);
        assert!(power.is_off());
        assert_eq!(log.read(0, &mut page(0)).unwrap_err().errno, POWER_CUT);
        assert!(can_become(&backing, &[0, 2, 0, 0, 0, 0, 0, 0]), "it was under way");
        power.on(None);
        log.read(0, &mut page(0)).unwrap();
    }

    #[test]
    fn misuse_is_noticed() {
        let drive = drive();
        let _ = drive.read(7, &mut page(0));
        assert!(drive.complaint().unwrap().contains("unaligned"));
    }
}

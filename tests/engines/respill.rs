//! A volume's spill device that is changed while requests go on, other threads look at what is
//! spilled, or the device fails or hangs.
#![allow(clippy::unwrap_used)]

use crate::support::ram_drive::RamDrive;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};
use ztier::device::Algorithm;
use ztier::error::Result;
use ztier::media::{Action, Drive, DriveError, Memory};
use ztier::ram::store::Shape;
use ztier::ram::store::format::Home;
use ztier::ram::{Change, Ram, SpillTo};

const SEGMENT: u32 = 32 << 10;
const SLOTS: u32 = 256;
/// Seven of them fill a segment.
const BLOCKS: u64 = 700;

/// Called before each request with its kind and slot; the request fails if it returns `false`.
type Hook = Arc<dyn Fn(Action, u64) -> bool + Send + Sync>;

/// A drive that calls a hook.
struct Hooked {
    below: RamDrive,
    hook: Mutex<Option<Hook>>,
}

impl Hooked {
    fn new() -> Arc<Self> {
        let below = RamDrive::new((u64::from(SLOTS) + 1) * u64::from(SEGMENT));
        Arc::new(Self { below, hook: Mutex::new(None) })
    }

    fn call(&self, hook: impl Fn(Action, u64) -> bool + Send + Sync + 'static) {
        *self.hook.lock().unwrap() = Some(Arc::new(hook));
    }

    fn ask(&self, action: Action, at: u64, len: u64) -> std::result::Result<(), DriveError> {
        let hook = self.hook.lock().unwrap().clone();
        let slot = (at / u64::from(SEGMENT)).checked_sub(1);
        match hook.zip(slot).is_none_or(|(hook, slot)| hook(action, slot)) {
            true => Ok(()),
            false => Err(DriveError { action, at, len, errno: 5 }),
        }
    }

    fn as_spill(self: &Arc<Self>) -> SpillTo {
        SpillTo { drive: Arc::clone(self) as Arc<dyn Drive>, slots: SLOTS, daily: 0 }
    }
}

impl Drive for Hooked {
    fn size(&self) -> u64 {
        self.below.size()
    }

    fn read(&self, at: u64, buf: &mut [u8]) -> std::result::Result<(), DriveError> {
        self.ask(Action::Read, at, buf.len() as u64)?;
        self.below.read(at, buf)
    }

    fn write(&self, at: u64, data: &[u8]) -> std::result::Result<(), DriveError> {
        self.ask(Action::Write, at, data.len() as u64)?;
        self.below.write(at, data)
    }

    fn zero(&self, at: u64, len: u64) -> std::result::Result<(), DriveError> {
        self.below.zero(at, len)
    }

    fn flush(&self) -> std::result::Result<(), DriveError> {
        self.below.flush()
    }
}

fn content(number: u64) -> [u8; 4096] {
    let mut data: [u8; 4096] = std::array::from_fn(|at| (at as u64 * (number + 3)) as u8);
    data[..8].copy_from_slice(&number.to_le_bytes());
    data
}

/// A volume with memory for everything, and its spill device, which has nothing yet.
fn written() -> (Arc<Ram>, Arc<Hooked>) {
    let (segment, algorithm) = (SEGMENT, Algorithm::None);
    let shape = Shape { blocks_max: 1 << 12, segment, frames: 1024, slots: SLOTS, algorithm };
    let drive = Hooked::new();
    let below = (Some(drive.as_spill()), false);
    let ram = Ram::above(&Memory::default(), shape, 24 << 20, below).unwrap();
    let mut session = ram.store().session().unwrap();
    for number in 0..BLOCKS {
        ram.write(&mut session, number, &[content(number)]).unwrap();
    }
    ram.store().leave(&session);
    (Arc::new(ram), drive)
}

/// The same; all but the open segment is spilled.
fn spilled() -> (Arc<Ram>, Arc<Hooked>) {
    let (ram, drive) = written();
    spill(&ram);
    let segments = ram.store().segments();
    assert!(segments.all_spilled().count() as u64 >= BLOCKS / 7 - 1);
    (ram, drive)
}

fn spill(ram: &Ram) {
    let session = ram.store().session().unwrap();
    ram.spill_all(&session);
    ram.store().leave(&session);
}

fn compact(ram: &Ram) {
    let session = ram.store().session().unwrap();
    ram.compact_any(&session);
    ram.store().leave(&session);
}

/// Changes the spill device.
fn change(ram: &Ram, to: Option<SpillTo>, gives_up: bool, stop: &dyn Fn() -> bool) -> Result<u64> {
    let session = ram.store().session().unwrap();
    let change = Change { to, gives_up, stop, commit: &mut || Ok(()) };
    let changed = ram.change_below(&session, change);
    ram.store().leave(&session);
    changed
}

/// Checks that blocks have what was written.
fn check(ram: &Ram, numbers: impl Iterator<Item = u64>) {
    let mut session = ram.store().session().unwrap();
    let is_wrong = |number: &u64| {
        let mut buf = [0; 4096];
        ram.read(&mut session, *number, &mut buf).is_err() || buf != content(*number)
    };
    let wrong: Vec<u64> = numbers.filter(is_wrong).collect();
    ram.store().leave(&session);
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// The blocks that are in a segment.
fn blocks_of(ram: &Ram, segment: u32) -> Vec<u64> {
    let session = ram.store().session().unwrap();
    let home = |number: &u64| ram.store().entry(&session, *number).home();
    let is_in = |number: &u64| matches!(home(number), Home::Record(at) if at.segment == segment);
    let blocks = (0..BLOCKS).filter(is_in).collect();
    ram.store().leave(&session);
    blocks
}

/// Number of the first block that is written during a change.
const NEW: u64 = 2048;

/// Discards the blocks of a spilled segment, and writes new ones until most of the segment with its
/// number is theirs.
fn replace(ram: &Ram, segment: u32, blocks: &[u64]) {
    let mut session = ram.store().session().unwrap();
    blocks.iter().for_each(|number| ram.store().clear(&mut session, *number, 1, false));
    ram.maintain(true, &|| false);
    let mut numbers = NEW..;
    let mut write = || {
        let number = numbers.next().unwrap();
        ram.write(&mut session, number, &[content(number)]).unwrap();
        number
    };
    while ram.store().segments().frame(segment).is_none() {
        assert!(write() < NEW + 1000, "the number was not used again");
    }
    (0..4).for_each(|_| assert!(write() > NEW));
    ram.store().leave(&session);
}

/// How many new blocks there are.
fn new_blocks(ram: &Ram) -> u64 {
    let session = ram.store().session().unwrap();
    let is_there = |number: &u64| ram.store().entry(&session, *number).home() != Home::Hole;
    let count = (NEW..4096).take_while(is_there).count() as u64;
    ram.store().leave(&session);
    count
}

/// What can't be read is given up, and not what is written meanwhile: the number of a segment that
/// could not be read may be that of a new one by then, in memory.
#[test]
fn what_is_given_up_was_on_the_device() {
    for to in [Some(Hooked::new()), None] {
        let (ram, drive) = spilled();
        let bad = ram.store().segments().slot(0).unwrap();
        let blocks = blocks_of(&ram, 0);
        assert_eq!(blocks.len(), 7);
        let (volume, gone) = (Arc::downgrade(&ram), blocks.clone());
        let is_first = AtomicBool::new(true);
        drive.call(move |_, slot| {
            let is_good = slot != u64::from(bad);
            if is_good && is_first.swap(false, Ordering::SeqCst) {
                replace(&volume.upgrade().unwrap(), 0, &gone);
            }
            is_good
        });
        let to = to.as_ref().map(Hooked::as_spill);
        assert_eq!(change(&ram, to, true, &|| false).unwrap(), 0);
        let new = new_blocks(&ram);
        assert!(new >= 5, "{new}");
        check(&ram, (0..BLOCKS).filter(|number| !blocks.contains(number)));
        check(&ram, NEW..NEW + new);
    }
}

/// A thread that comes too late to clean or spill a segment has it claimed for a moment. A copy of
/// all that is spilled waits for that, as long as its caller does.
#[test]
fn a_segment_that_is_claimed_for_a_moment_is_copied_too() {
    let (ram, _) = spilled();
    let segments = ram.store().segments();
    let held = segments.all_spilled().nth(3).unwrap();
    assert!(segments.claim_spilled(held.segment, held.sequence).is_some());
    let to = || Some(Hooked::new().as_spill());
    let asked = AtomicU64::new(0);
    // It is asked once for each segment, too.
    let stop = || asked.fetch_add(1, Ordering::SeqCst) > 2 * BLOCKS / 7;
    let error = change(&ram, to(), false, &stop).unwrap_err().to_string();
    assert!(error.contains("has hung up"), "{error}");
    std::thread::scope(|scope| {
        let changed = scope.spawn(|| change(&ram, to(), false, &|| false).unwrap());
        std::thread::sleep(Duration::from_millis(100));
        segments.unclaim(held.segment);
        assert_eq!(changed.join().unwrap(), 0);
    });
    check(&ram, 0..BLOCKS);
}

/// Discards most blocks, so that each segment has garbage, and something live.
fn leave_one_of_seven(ram: &Ram) {
    let mut session = ram.store().session().unwrap();
    for number in (0..BLOCKS).filter(|number| number % 7 != 3) {
        ram.store().clear(&mut session, number, 1, false);
    }
    ram.store().leave(&session);
}

/// A device that hangs in a write or a read holds a change up no longer than its caller waits, and
/// has its slots afterwards.
#[test]
fn a_device_that_hangs_holds_up_no_caller_that_gives_up() {
    for hangs in [Action::Write, Action::Read] {
        let (ram, drive) = if hangs == Action::Write { written() } else { spilled() };
        leave_one_of_seven(&ram);
        let state = Arc::new((AtomicBool::new(false), AtomicBool::new(true)));
        let (has_come, is_hung) = &*state;
        let of_drive = Arc::clone(&state);
        drive.call(move |action, _| {
            let (has_come, is_hung) = &*of_drive;
            while action == hangs && is_hung.load(Ordering::SeqCst) {
                has_come.store(true, Ordering::SeqCst);
                std::thread::sleep(Duration::from_millis(1));
            }
            true
        });
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| match hangs {
                Action::Write => spill(&ram),
                _ => compact(&ram),
            });
            while !has_come.load(Ordering::SeqCst) {
                assert!(!worker.is_finished(), "no {hangs} came");
                std::thread::sleep(Duration::from_millis(1));
            }
            let began = Instant::now();
            let stop = || began.elapsed() > Duration::from_millis(50);
            let changed = change(&ram, None, true, &stop).map_err(|e| e.to_string());
            let is_open = ram.store().slots().is_open();
            is_hung.store(false, Ordering::SeqCst);
            let error = changed.unwrap_err();
            assert!(error.contains("has hung up") && is_open, "{error}");
        });
        check(&ram, (3..BLOCKS).step_by(7));
        change(&ram, None, false, &|| false).unwrap();
        check(&ram, (3..BLOCKS).step_by(7));
    }
}

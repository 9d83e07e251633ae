//! The drive that a store of objects is, compared with a plain array: over random requests, a store
//! that fails, loses answers and carries out requests late, and owners that end without warning.
//!
//! After each end the next owner has the array as it was after one of the requests since the last
//! flush, and not a mixture.
#![allow(clippy::unwrap_used)]

use parking_lot::Mutex;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use ztier::device::Algorithm;
use ztier::media::Drive;
use ztier::object::{Counted, Directory, Failure, ObjectDrive, Store, Tag, Trouble, Wanted, open};

const BLOCK: usize = 4096;
const BLOCKS: usize = 48;
const SIZE: u64 = (BLOCKS * BLOCK) as u64;

/// A store of which some requests fail, before or after they are carried out.
struct Flaky {
    store: Directory,
    state: Mutex<Faults>,
}

#[derive(Default)]
struct Faults {
    random: u64,
    /// One request in this many fails; 0: none does.
    rarity: u64,
    /// Creations and, with a tag, swaps that failed, and are carried out later.
    late: VecDeque<(String, Vec<u8>, Option<Tag>)>,
}

enum Fault {
    None,
    Before,
    After,
    Late,
}

impl Flaky {
    fn new(store: Directory, random: u64) -> Self {
        let state = Faults { random: random | 1, ..Faults::default() };
        let state = Mutex::new(state);
        Self { store, state }
    }

    fn fault(&self) -> Fault {
        let mut state = self.state.lock();
        let mut next = |end: u64| {
            state.random ^= state.random << 13;
            state.random ^= state.random >> 7;
            state.random ^= state.random << 17;
            state.random % end
        };
        let (which, late) = (next(1 << 20), next(4) == 0);
        if late && let Some((key, content, before)) = state.late.pop_front() {
            let _ = match before {
                None => self.store.create(&key, &content),
                Some(before) => self.store.swap(&key, &content, &before).map(drop),
            };
        }
        match (state.rarity > 0 && which.is_multiple_of(state.rarity.max(1)), which / 7 % 3) {
            (false, _) => Fault::None,
            (true, 0) => Fault::Before,
            (true, 1) => Fault::After,
            (true, _) => Fault::Late,
        }
    }

    /// Carries out a request with a fault.
    fn with<T>(&self, work: impl FnOnce() -> Result<T, Failure>) -> Result<T, Failure> {
        match self.fault() {
            Fault::None => work(),
            Fault::Before | Fault::Late => Err(lost()),
            Fault::After => work().and(Err(lost())),
        }
    }
}

fn lost() -> Failure {
    Failure::Other(Trouble { errno: 5, text: "the answer was lost".into() })
}

impl Store for Flaky {
    fn place(&self) -> String {
        self.store.place()
    }

    fn prepare(&self) -> ztier::error::Result<()> {
        self.store.prepare()
    }

    fn create(&self, key: &str, content: &[u8]) -> Result<(), Failure> {
        match self.fault() {
            Fault::None => self.store.create(key, content),
            Fault::Before => Err(lost()),
            Fault::After => self.store.create(key, content).and(Err(lost())),
            Fault::Late => {
                self.state.lock().late.push_back((key.to_owned(), content.to_vec(), None));
                Err(lost())
            }
        }
    }

    fn get(&self, key: &str) -> Result<(Vec<u8>, Tag), Failure> {
        self.with(|| self.store.get(key))
    }

    fn get_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Failure> {
        self.with(|| self.store.get_range(key, range))
    }

    fn swap(&self, key: &str, content: &[u8], before: &Tag) -> Result<Tag, Failure> {
        match self.fault() {
            Fault::None => self.store.swap(key, content, before),
            Fault::Before => Err(lost()),
            Fault::After => self.store.swap(key, content, before).and(Err(lost())),
            Fault::Late => {
                let late = (key.to_owned(), content.to_vec(), Some(before.clone()));
                self.state.lock().late.push_back(late);
                Err(lost())
            }
        }
    }

    fn put(&self, key: &str, content: &[u8]) -> Result<(), Failure> {
        self.with(|| self.store.put(key, content))
    }

    fn remove(&self, key: &str) -> Result<(), Failure> {
        self.with(|| self.store.remove(key))
    }

    fn age(&self, key: &str) -> Result<Duration, Failure> {
        self.with(|| self.store.age(key))
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        first: usize,
        count: usize,
        seed: u8,
    },
    Zero {
        first: usize,
        count: usize,
    },
    Flush,
    /// The owner ends without a word, and another one takes over.
    Succeed,
    /// The owner ends in order.
    Close,
}

fn step() -> impl Strategy<Value = Step> {
    let range = (0..BLOCKS, 1..8usize).prop_map(|(first, n)| (first, n.min(BLOCKS - first)));
    prop_oneof![
        10 => (range.clone(), any::<u8>())
            .prop_map(|((first, count), seed)| Step::Write { first, count, seed }),
        3 => range.prop_map(|(first, count)| Step::Zero { first, count }),
        4 => Just(Step::Flush),
        2 => Just(Step::Succeed),
        1 => Just(Step::Close),
    ]
}

/// Some content compresses, some does not, and some is one word.
fn fill(seed: u8, block: usize, out: &mut [u8]) {
    let mut word = (usize::from(seed) << 8 | block) as u64 | 1;
    for (i, byte) in out.iter_mut().enumerate() {
        *byte = match seed % 4 {
            0 => seed,
            1 => (i / 64) as u8 ^ seed ^ block as u8,
            2 if i < 100 => 0,
            _ => {
                word ^= word << 13;
                word ^= word >> 7;
                word ^= word << 17;
                word as u8
            }
        };
    }
}

fn owner(store: &Arc<Flaky>) -> Arc<ObjectDrive> {
    let store = Arc::new(Counted::new(Arc::clone(store) as Arc<dyn Store>));
    let wanted = Wanted { owner: "v", size: Some(SIZE), force: false, after: None };
    let opened = open(&*store, &wanted, &|_| Ok(()), &|_| {}).unwrap();
    ObjectDrive::over(store, opened, "v", (Algorithm::Lz4, 64 << 10)).unwrap()
}

fn read(drive: &ObjectDrive) -> Vec<u8> {
    let mut found = vec![1; SIZE as usize];
    // A read of a store that fails is an error, and may be tried again.
    (0..100).find(|_| drive.read(0, &mut found).is_ok()).unwrap();
    found
}

/// Carries out the steps on a store of which one request in `rarity` fails.
fn follow(steps: &[Step], random: u64, rarity: u64) {
    let dir = tempfile::tempdir().unwrap();
    let store = Arc::new(Flaky::new(Directory::open(dir.path()).unwrap(), random));
    // Only a store that works is taken for a new volume.
    let mut drive = owner(&store);
    store.state.lock().rarity = rarity;
    // What the next owner may find, the present content last.
    let mut possible = vec![vec![0_u8; SIZE as usize]];
    for step in steps {
        let mut now = possible.last().unwrap().clone();
        match *step {
            Step::Write { first, count, seed } => {
                let bytes = &mut now[first * BLOCK..(first + count) * BLOCK];
                for (block, out) in (first..).zip(bytes.chunks_exact_mut(BLOCK)) {
                    fill(seed, block, out);
                }
                drive.write((first * BLOCK) as u64, bytes).unwrap();
            }
            Step::Zero { first, count } => {
                now[first * BLOCK..(first + count) * BLOCK].fill(0);
                drive.zero((first * BLOCK) as u64, (count * BLOCK) as u64).unwrap();
            }
            Step::Flush => {
                drive.flush().unwrap();
                possible.clear();
            }
            Step::Succeed | Step::Close => {
                if let Step::Close = step
                    && drive.close().is_ok()
                {
                    possible.drain(..possible.len() - 1);
                }
                drop(drive);
                drive = owner(&store);
                now = read(&drive);
                assert!(possible.contains(&now), "a state that never was");
                possible.clear();
            }
        }
        if possible.last() != Some(&now) {
            possible.push(now);
        }
        assert!(read(&drive) == *possible.last().unwrap(), "after {step:?}");
    }
}

/// A change of the root whose answer is lost, or that is carried out late, is this owner's own: it
/// has no successor by that.
#[test]
fn an_owner_is_not_put_off_by_its_own_late_requests() {
    for random in 1..6 {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Flaky::new(Directory::open(dir.path()).unwrap(), random * 77));
        let drive = owner(&store);
        store.state.lock().rarity = 2;
        for n in 1..60 {
            // It may fail, and may have been done all the same.
            let _ = drive.grow(SIZE + n * BLOCK as u64);
        }
        store.state.lock().rarity = 0;
        drive.grow(SIZE + 60 * BLOCK as u64).unwrap();
        assert_eq!((drive.size(), drive.stats().successor), (SIZE + 60 * BLOCK as u64, None));
        drive.write(0, &[1; BLOCK]).unwrap();
        drive.close().unwrap();
        assert_eq!(owner(&store).size(), SIZE + 60 * BLOCK as u64);
    }
}

/// Checkpoints of owners that end without a word, in a store that fails: what they leave is found.
#[test]
fn checkpoints_survive_a_store_that_fails() {
    for random in 1..4 {
        let dir = tempfile::tempdir().unwrap();
        let store = Arc::new(Flaky::new(Directory::open(dir.path()).unwrap(), random * 99));
        drop(owner(&store));
        store.state.lock().rarity = 20;
        let mut expected = vec![0; SIZE as usize];
        let mut restored = 0;
        for round in 0..4_u8 {
            let drive = owner(&store);
            restored += u64::from(drive.stats().walk_objects < u64::from(round) * 100);
            assert!(read(&drive) == expected, "round {round}");
            for n in 0..120_usize {
                let at = n % BLOCKS * BLOCK;
                fill(n as u8 ^ round, n, &mut expected[at..at + BLOCK]);
                drive.write(at as u64, &expected[at..at + BLOCK]).unwrap();
                drive.flush().unwrap();
            }
            // The thread of checkpoints looks twice a second; some owners end before.
            std::thread::sleep(Duration::from_millis(random * 400));
        }
        store.state.lock().rarity = 0;
        assert!(read(&owner(&store)) == expected);
        assert!(random == 1 || restored > 0, "no takeover began with a checkpoint");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn an_owner_has_what_was_flushed_and_a_state_that_was(
        steps in proptest::collection::vec(step(), 1..30),
        random in any::<u64>(),
        rarity in prop_oneof![Just(0), Just(20), Just(5)],
    ) {
        follow(&steps, random, rarity);
    }
}

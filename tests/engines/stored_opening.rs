//! The opening of a volume in a store, where requests are refused, or another host is quicker; and
//! a line that is too slow for several parts at once.
#![allow(clippy::unwrap_used)]

use std::ops::Range;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use ztier::device::Algorithm;
use ztier::error::Result as Checked;
use ztier::media::Drive;
use ztier::object::{
    Counted, Directory, Failure, ObjectDrive, Opened, Store, Tag, Trouble, Wanted, open,
};

const SIZE: u64 = 64 << 20;

/// A store that does something of its own before it makes an object, and may refuse it.
struct Hooked<F> {
    store: Directory,
    before: F,
}

impl<F: Fn(&str) -> Result<(), Failure> + Send + Sync> Hooked<F> {
    fn new(dir: &Path, before: F) -> Self {
        Self { store: Directory::open(dir).unwrap(), before }
    }
}

impl<F: Fn(&str) -> Result<(), Failure> + Send + Sync> Store for Hooked<F> {
    fn place(&self) -> String {
        self.store.place()
    }

    fn prepare(&self) -> Checked<()> {
        self.store.prepare()
    }

    fn create(&self, key: &str, content: &[u8]) -> Result<(), Failure> {
        (self.before)(key)?;
        self.store.create(key, content)
    }

    fn get(&self, key: &str) -> Result<(Vec<u8>, Tag), Failure> {
        self.store.get(key)
    }

    fn get_range(&self, key: &str, range: Range<u64>) -> Result<Vec<u8>, Failure> {
        self.store.get_range(key, range)
    }

    fn swap(&self, key: &str, content: &[u8], before: &Tag) -> Result<Tag, Failure> {
        self.store.swap(key, content, before)
    }

    fn put(&self, key: &str, content: &[u8]) -> Result<(), Failure> {
        self.store.put(key, content)
    }

    fn remove(&self, key: &str) -> Result<(), Failure> {
        self.store.remove(key)
    }

    fn age(&self, key: &str) -> Result<Duration, Failure> {
        self.store.age(key)
    }
}

fn opened(store: &dyn Store, owner: &str, force: bool) -> Checked<Opened> {
    let wanted = Wanted { owner, size: Some(SIZE), force, after: None };
    open(store, &wanted, &|_| Ok(()), &|_| {})
}

fn failure(errno: i32, text: &str) -> Failure {
    Failure::Other(Trouble { errno, text: text.into() })
}

#[test]
fn a_fence_that_is_refused_is_an_error_and_no_loop() {
    let dir = tempfile::tempdir().unwrap();
    opened(&Directory::open(dir.path()).unwrap(), "v", false).map(drop).unwrap();
    let asked = AtomicU64::new(0);
    let store = Hooked::new(dir.path(), |key| {
        if !key.starts_with("chain/") {
            return Ok(());
        }
        asked.fetch_add(1, Ordering::Relaxed);
        Err(failure(13, "the key needs the right s3:PutObject"))
    });
    let refused = opened(&store, "v", false).map(drop).unwrap_err();
    assert!(refused.to_string().contains("s3:PutObject"), "{refused}");
    assert_eq!(asked.load(Ordering::Relaxed), 1);
}

#[test]
fn a_fence_is_tried_again_for_a_while() {
    let dir = tempfile::tempdir().unwrap();
    opened(&Directory::open(dir.path()).unwrap(), "v", false).map(drop).unwrap();
    let left = AtomicU64::new(5);
    let store = Hooked::new(dir.path(), |key| {
        let count = |n: u64| n.checked_sub(1);
        let fails = key.starts_with("chain/")
            && left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, count).is_ok();
        if fails { Err(failure(28, "no space")) } else { Ok(()) }
    });
    opened(&store, "v", false).map(drop).unwrap();
    assert_eq!(left.load(Ordering::Relaxed), 0);
}

#[test]
fn of_two_hosts_that_come_up_at_once_one_has_the_volume() {
    let dir = tempfile::tempdir().unwrap();
    opened(&Directory::open(dir.path()).unwrap(), "before", false).map(drop).unwrap();
    for force in [false, true] {
        std::fs::remove_file(dir.path().join("beat")).unwrap();
        let once = AtomicBool::new(false);
        let store = Hooked::new(dir.path(), |key| {
            if key.starts_with("chain/") && !once.swap(true, Ordering::Relaxed) {
                let quicker = Directory::open(dir.path()).unwrap();
                opened(&quicker, "quicker", force).map(drop).unwrap();
            }
            Ok(())
        });
        let slower = opened(&store, "slower", force).map(drop);
        match slower {
            Ok(()) => assert!(force),
            Err(e) => {
                assert!(!force && e.to_string().contains("in use by quicker"), "{e}");
            }
        }
    }
}

#[test]
fn a_line_too_slow_for_several_parts_carries_one_after_the_other() {
    let dir = tempfile::tempdir().unwrap();
    let busy = AtomicU64::new(0);
    let refused = Arc::new(AtomicU64::new(0));
    let counts = Arc::clone(&refused);
    let store = Hooked::new(dir.path(), move |key| {
        if !key.starts_with("chain/") {
            return Ok(());
        }
        let beside = busy.fetch_add(1, Ordering::SeqCst);
        std::thread::sleep(Duration::from_millis(100));
        let most = beside.max(busy.fetch_sub(1, Ordering::SeqCst) - 1);
        if most > 0 {
            counts.fetch_add(1, Ordering::Relaxed);
            return Err(failure(110, "no answer in time"));
        }
        Ok(())
    });
    let opened = opened(&store, "v", false).unwrap();
    let store = Arc::new(Counted::new(Arc::new(store)));
    let drive = ObjectDrive::over(store, opened, "v", (Algorithm::None, 64 << 20)).unwrap();
    let mut random = 7u64;
    for at in 0..30 {
        let part: Vec<u8> = (0..1 << 17)
            .flat_map(|_| {
                random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                random.to_le_bytes()
            })
            .collect();
        drive.write(at << 20, &part).unwrap();
    }
    let began = Instant::now();
    drive.flush().unwrap();
    assert!(refused.load(Ordering::Relaxed) > 0, "no parts at once: nothing was shown");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    drive.close().unwrap();
}

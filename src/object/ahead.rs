//! Reads heads and tables of objects: one, or those of a chain in order, several at once where one
//! takes long.
//!
//! Invariants: an object that is there never changes, so one that was read early is as good as one
//! that is read late; that a slot has no object is asked each time, and never remembered.

use super::format::{self, Damage, HEAD, Identity, Object, table_end};
use super::store::{Failure, Store, slot as key};
use std::collections::BTreeMap;
use std::thread::{Builder, Scope, ScopedJoinHandle};
use std::time::{Duration, Instant};

/// Bytes that are read of an object at first: most tables are in them.
const GLANCE: u64 = 64 << 10;
/// Objects that are read at once.
const AT_ONCE: u64 = 64;
/// From this time for one object on, several are read at once: below it, threads cost more.
const SLOW: Duration = Duration::from_millis(1);

/// An object, or why it is not believed.
type Found = Result<Object, Damage>;

/// A thread that reads an object.
type Reader<'s> = ScopedJoinHandle<'s, Result<Found, Failure>>;

/// See the module.
pub struct Ahead<'a> {
    store: &'a dyn Store,
    volume: &'a Identity,
    found: BTreeMap<u64, Found>,
    is_slow: bool,
}

/// Reads head and table of the object in a slot.
pub fn look(store: &dyn Store, volume: &Identity, number: u64) -> Result<Found, Failure> {
    let key = key(number);
    let mut bytes = store.get_range(&key, 0..GLANCE)?;
    let end = table_end(&bytes);
    if bytes.len() == GLANCE as usize && end > bytes.len() {
        bytes = store.get_range(&key, 0..end as u64)?;
    }
    if bytes.len() < HEAD {
        return Ok(Err(Damage::Foreign));
    }
    Ok(format::decode(&bytes, volume, number))
}

impl<'a> Ahead<'a> {
    /// For the chain of `volume`.
    pub fn new(store: &'a dyn Store, volume: &'a Identity) -> Self {
        Self { store, volume, found: BTreeMap::new(), is_slow: false }
    }

    /// Reads head and table of the object in a slot.
    pub fn look(&mut self, slot: u64) -> Result<Found, Failure> {
        if let Some(found) = self.found.remove(&slot) {
            return Ok(found);
        }
        self.found.clear();
        let began = Instant::now();
        let found = if self.is_slow { self.look_on(slot) } else { self.read(slot) };
        self.is_slow |= began.elapsed() >= SLOW;
        found
    }

    fn read(&self, slot: u64) -> Result<Found, Failure> {
        look(self.store, self.volume, slot)
    }

    /// Reads an object and those behind it.
    fn look_on(&mut self, slot: u64) -> Result<Found, Failure> {
        let this = &*self;
        let (own, others) = std::thread::scope(|scope| {
            let read = |slot| (slot, scope_read(scope, this, slot));
            let others: Vec<_> = (slot + 1..slot + AT_ONCE).map(read).collect();
            let own = this.read(slot);
            let join = |(slot, thread): (u64, Option<Reader<'_>>)| {
                Some((slot, thread?.join().ok()?.ok()?))
            };
            (own, others.into_iter().filter_map(join).collect::<Vec<(u64, Found)>>())
        });
        self.found.extend(others);
        own
    }
}

/// Reads an object in a thread of its own; `None`: the system gives no thread.
fn scope_read<'s, 'e: 's>(
    scope: &'s Scope<'s, 'e>,
    ahead: &'s Ahead<'_>,
    slot: u64,
) -> Option<Reader<'s>> {
    Builder::new().spawn_scoped(scope, move || ahead.read(slot)).ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::format::{Seed, fence};
    use super::super::store::Tag;
    use super::*;
    use crate::error::Result as Checked;
    use std::ops::Range;
    use std::sync::atomic::{AtomicU64, Ordering};

    const VOLUME: Identity = [7; 16];

    /// Fences in the slots before `end`; reading one takes a while.
    struct Chain {
        end: u64,
        wait: Duration,
        reads: AtomicU64,
        now: AtomicU64,
        most: AtomicU64,
    }

    impl Chain {
        fn new(end: u64, wait: Duration) -> Self {
            let zero = AtomicU64::default;
            Self { end, wait, reads: zero(), now: zero(), most: zero() }
        }
    }

    impl Store for Chain {
        fn place(&self) -> String {
            "chain".into()
        }

        fn prepare(&self) -> Checked<()> {
            Ok(())
        }

        fn create(&self, _: &str, _: &[u8]) -> Result<(), Failure> {
            Err(Failure::Exists)
        }

        fn get(&self, _: &str) -> Result<(Vec<u8>, Tag), Failure> {
            Err(Failure::Missing)
        }

        fn get_range(&self, name: &str, _: Range<u64>) -> Result<Vec<u8>, Failure> {
            self.reads.fetch_add(1, Ordering::Relaxed);
            let now = 1 + self.now.fetch_add(1, Ordering::Relaxed);
            self.most.fetch_max(now, Ordering::Relaxed);
            std::thread::sleep(self.wait);
            self.now.fetch_sub(1, Ordering::Relaxed);
            let slot = (0..self.end).find(|slot| key(*slot) == name).ok_or(Failure::Missing)?;
            Ok(fence(&Seed { volume: VOLUME, session: [slot as u8; 16], slot }))
        }

        fn swap(&self, _: &str, _: &[u8], _: &Tag) -> Result<Tag, Failure> {
            Err(Failure::Changed)
        }

        fn put(&self, _: &str, _: &[u8]) -> Result<(), Failure> {
            Ok(())
        }

        fn remove(&self, _: &str) -> Result<(), Failure> {
            Ok(())
        }

        fn age(&self, _: &str) -> Result<Duration, Failure> {
            Ok(Duration::ZERO)
        }

        fn needs(&self) -> &'static str {
            ""
        }
    }

    fn walk(chain: &Chain) {
        let mut ahead = Ahead::new(chain, &VOLUME);
        for slot in 0..chain.end {
            let session = [slot as u8; 16];
            assert_eq!(ahead.look(slot), Ok(Ok(Object::Fence { session })));
        }
        assert_eq!(ahead.look(chain.end), Err(Failure::Missing));
        let before = chain.reads.load(Ordering::Relaxed);
        assert_eq!(ahead.look(chain.end), Err(Failure::Missing));
        assert!(chain.reads.load(Ordering::Relaxed) > before, "a free slot is asked again");
    }

    #[test]
    fn slow_objects_are_read_at_once_and_quick_ones_one_by_one() {
        let slow = Chain::new(100, Duration::from_millis(20));
        walk(&slow);
        let most = slow.most.load(Ordering::Relaxed);
        assert!(most > 1 && most <= AT_ONCE, "{most}");
        let quick = Chain::new(3, Duration::ZERO);
        walk(&quick);
        assert!(quick.reads.load(Ordering::Relaxed) <= 3 + 2 * AT_ONCE);
    }
}

//! Whether a store keeps what a chain needs of it, shown by racing writers.
//!
//! A store that says that it has conditional requests may still let two of them succeed.

use super::store::{Failure, Store};
use crate::error::{Error, Result};
use std::time::Duration;

/// Writers that race.
const RACERS: u8 = 8;
/// Races of each kind.
const RACES: u32 = 5;
/// How often a race is tried whose requests fail, and the pause between.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);
/// How often a racer tries: some stores refuse requests that meet, and want them again.
const RACER_TRIES: u32 = 10;
/// The age of an object that was put just now, at most; clocks count whole seconds.
const FRESH: Duration = Duration::from_secs(60);

/// Races writers for objects below `probe`, and reads what they left.
///
/// # Errors
/// The store lacks something, or two of them succeeded.
pub fn probe(store: &dyn Store) -> Result<()> {
    store.prepare()?;
    for race in 0..RACES {
        let key = format!("probe/{race}");
        let raced = patiently(|| {
            store.remove(&key).or_else(missing_is_fine)?;
            probe_key(store, &key)
        });
        raced.map_err(|failure| lacks(store, &failure))??;
        patiently(|| store.remove(&key).or_else(missing_is_fine))
            .map_err(|failure| lacks(store, &failure))?;
    }
    Ok(())
}

/// Tries again what may have failed by chance.
fn patiently<T>(work: impl Fn() -> Done<T>) -> Done<T> {
    for _ in 1..TRIES {
        match work() {
            Err(Failure::Other(trouble)) if !trouble.lasts() => std::thread::sleep(PAUSE),
            done => return done,
        }
    }
    work()
}

/// A racer's request until it has an answer; `other` is that of those that lose. After a failure
/// the object tells whether this racer had won before it lost against itself.
fn insist(
    store: &dyn Store,
    key: &str,
    content: &[u8],
    other: &Failure,
    ask: impl Fn() -> Done<()>,
) -> Done<()> {
    let mut failed = None;
    for _ in 0..RACER_TRIES {
        match ask() {
            Err(Failure::Other(trouble)) if !trouble.lasts() => {
                failed = Some(Failure::Other(trouble));
                std::thread::sleep(PAUSE);
            }
            Err(failure) if failure == *other && failed.is_some() => {
                let (found, _) = patiently(|| store.get(key))?;
                return if found == content { Ok(()) } else { Err(failure) };
            }
            answer => return answer,
        }
    }
    failed.map_or(Ok(()), Err)
}

/// The outcome of a request.
type Done<T> = std::result::Result<T, Failure>;

/// Races for one object, which is not there. A failed request ends it.
fn probe_key(store: &dyn Store, key: &str) -> Done<Result<()>> {
    match store.get(key) {
        Err(Failure::Missing) => {}
        Ok(_) => return Ok(Err(wrong(store, "has an object that was removed"))),
        Err(failure) => return Err(failure),
    }
    let created = race(|racer| {
        let content = [racer; 100];
        let create = || store.create(key, &content);
        insist(store, key, &content, &Failure::Exists, create).map(|()| racer)
    });
    let made = match winners(&created, &Failure::Exists)?[..] {
        [winner] => winner,
        [] => return Ok(Err(wrong(store, "lets no writer create an object"))),
        _ => return Ok(Err(wrong(store, "creates one object twice"))),
    };
    let (content, tag) = store.get(key)?;
    let part = store.get_range(key, 90..200)?;
    if content != [made; 100] || part != [made; 10] {
        return Ok(Err(wrong(store, "reads another object than was created")));
    }
    let swapped = race(|racer| {
        let content = [racer, 1];
        let swap = || store.swap(key, &content, &tag).map(drop);
        insist(store, key, &content, &Failure::Changed, swap).map(|()| racer)
    });
    let made = match winners(&swapped, &Failure::Changed)?[..] {
        [winner] => winner,
        [] => return Ok(Err(wrong(store, "lets no writer swap an object"))),
        _ => return Ok(Err(wrong(store, "swaps one object twice"))),
    };
    if store.get(key)?.0 != [made, 1] {
        return Ok(Err(wrong(store, "reads another object than was swapped")));
    }
    store.put(key, b"put")?;
    if store.get(key)?.0 != b"put" {
        return Ok(Err(wrong(store, "reads another object than was put")));
    }
    if store.age(key)? > FRESH {
        return Ok(Err(wrong(store, "takes a new object for an old one")));
    }
    Ok(Ok(()))
}

fn missing_is_fine(failure: Failure) -> Done<()> {
    if failure == Failure::Missing { Ok(()) } else { Err(failure) }
}

fn race(work: impl Fn(u8) -> Done<u8> + Sync) -> Vec<Done<u8>> {
    std::thread::scope(|scope| {
        let work = &work;
        let racing: Vec<_> = (0..RACERS).map(|racer| scope.spawn(move || work(racer))).collect();
        // A racer that panics has not succeeded.
        racing.into_iter().filter_map(|racer| racer.join().ok()).collect()
    })
}

/// The racers that succeeded, if all others failed by `other`.
fn winners(raced: &[Done<u8>], other: &Failure) -> Done<Vec<u8>> {
    let failed = raced.iter().filter_map(|got| got.as_ref().err());
    match failed.clone().find(|failure| *failure != other) {
        Some(failure) => Err(failure.clone()),
        None => Ok(raced.iter().flatten().copied().collect()),
    }
}

fn lacks(store: &dyn Store, failure: &Failure) -> Error {
    let error = Error::failure(format!("{} can't be used: {failure}", store.place()));
    match failure {
        // It says what is missing.
        Failure::Other(trouble) if trouble.lasts() => error,
        _ => error.hint(store.needs()),
    }
}

fn wrong(store: &dyn Store, what: &str) -> Error {
    Error::failure(format!("{} {what}: a volume there would not be safe", store.place()))
        .hint("use another store")
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::super::store::{Tag, Trouble};
    use super::*;
    use parking_lot::Mutex;
    use std::collections::BTreeMap;
    use std::ops::Range;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// What a bad store gets wrong.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Lie {
        None,
        CreatesTwice,
        SwapsTwice,
        KeepsRemoved,
        LacksSwaps,
        CutsRanges,
        IgnoresPuts,
        OldAtOnce,
        /// No lie: it loses the answers of every other writer, and wants some of them again.
        LosesAnswers,
        /// The same, and it creates twice.
        LosesAnswersCreatesTwice,
    }

    struct Bad(Lie, Mutex<BTreeMap<String, Vec<u8>>>, AtomicU32);

    impl Bad {
        fn loses(&self) -> bool {
            let lossy = matches!(self.0, Lie::LosesAnswers | Lie::LosesAnswersCreatesTwice);
            lossy && self.2.fetch_add(1, Ordering::Relaxed).is_multiple_of(2)
        }
    }

    fn lost() -> Failure {
        Failure::Other(Trouble { errno: 5, text: "ask again".into() })
    }

    impl Store for Bad {
        fn place(&self) -> String {
            "bad://".into()
        }

        fn prepare(&self) -> Result<()> {
            Ok(())
        }

        fn create(&self, key: &str, content: &[u8]) -> std::result::Result<(), Failure> {
            let mut all = self.1.lock();
            let twice = matches!(self.0, Lie::CreatesTwice | Lie::LosesAnswersCreatesTwice);
            if all.contains_key(key) && !twice {
                return Err(if self.loses() { lost() } else { Failure::Exists });
            }
            all.insert(key.to_owned(), content.to_vec());
            if self.loses() { Err(lost()) } else { Ok(()) }
        }

        fn get(&self, key: &str) -> std::result::Result<(Vec<u8>, Tag), Failure> {
            let content = self.1.lock().get(key).cloned().ok_or(Failure::Missing)?;
            let tag = Tag(format!("{content:?}"));
            Ok((content, tag))
        }

        fn get_range(&self, key: &str, range: Range<u64>) -> std::result::Result<Vec<u8>, Failure> {
            let (content, _) = self.get(key)?;
            let end = if self.0 == Lie::CutsRanges { 95 } else { content.len() };
            Ok(content[range.start as usize..end.min(range.end as usize)].to_vec())
        }

        fn swap(
            &self,
            key: &str,
            content: &[u8],
            before: &Tag,
        ) -> std::result::Result<Tag, Failure> {
            if self.0 == Lie::LacksSwaps {
                return Err(Failure::Other(Trouble { errno: 95, text: "no such request".into() }));
            }
            let mut all = self.1.lock();
            let now = all.get_mut(key).ok_or(Failure::Missing)?;
            if self.0 != Lie::SwapsTwice && format!("{now:?}") != before.0 {
                return Err(Failure::Changed);
            }
            *now = content.to_vec();
            if self.loses() { Err(lost()) } else { Ok(Tag(format!("{content:?}"))) }
        }

        fn put(&self, key: &str, content: &[u8]) -> std::result::Result<(), Failure> {
            if self.0 == Lie::IgnoresPuts {
                return Ok(());
            }
            self.1.lock().insert(key.to_owned(), content.to_vec());
            Ok(())
        }

        fn remove(&self, key: &str) -> std::result::Result<(), Failure> {
            match (self.0, self.1.lock()) {
                (Lie::KeepsRemoved, mut all) => {
                    all.insert(key.to_owned(), vec![1]);
                }
                (_, mut all) => drop(all.remove(key).ok_or(Failure::Missing)?),
            }
            Ok(())
        }

        fn age(&self, _: &str) -> std::result::Result<Duration, Failure> {
            Ok(if self.0 == Lie::OldAtOnce { FRESH * 2 } else { Duration::ZERO })
        }
    }

    #[test]
    fn a_store_that_lies_is_found_out() {
        let told = |lie| {
            let bad = Bad(lie, Mutex::default(), AtomicU32::new(0));
            probe(&bad).map_err(|e| e.to_string())
        };
        assert_eq!(told(Lie::None), Ok(()));
        assert_eq!(told(Lie::LosesAnswers), Ok(()));
        for (lie, text) in [
            (Lie::CreatesTwice, "creates one object twice: a volume there would not be safe"),
            (Lie::LosesAnswersCreatesTwice, "creates one object twice"),
            (Lie::SwapsTwice, "swaps one object twice"),
            (Lie::KeepsRemoved, "has an object that was removed"),
            (Lie::LacksSwaps, "can't be used: no such request"),
            (Lie::CutsRanges, "reads another object than was created"),
            (Lie::IgnoresPuts, "reads another object than was put"),
            (Lie::OldAtOnce, "takes a new object for an old one"),
        ] {
            let said = told(lie).unwrap_err();
            assert!(said.contains(text), "{lie:?}: {said}");
        }
    }
}

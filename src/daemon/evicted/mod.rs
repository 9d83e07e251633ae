//! Gives a read cache the pages that the page cache above its volume drops.
//!
//! A cache below the page cache has what that has, too, and the memory that it takes is missing
//! above. Here small programs in the kernel ([`programs`]) copy each clean page of the volume's
//! device, and of the file systems on it, that reclaim drops, and a thread offers the copies to the
//! cache, which then holds what the page cache does not ([`Cached::follow`]).
//!
//! Invariants: a page counts for nothing but its content, which the cache compares with the seals
//! of its blocks; a page that is lost costs a read; a daemon that is slow loses pages and delays no
//! reclaim; without the news the cache is as without this; the device is read only while its
//! requests are served ([`reads`]).

mod calibration;
mod programs;
mod reads;

use super::log;
use super::served::Served;
use crate::cache::Cached;
use crate::device::Worker;
use crate::error::Result;
use crate::system::above;
pub use calibration::News;
use reads::{Held, Reads};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Most bytes of the ring, the least, and the part of the cache's limit that it may be.
const RING: (u64, u64) = (512 << 10, 2 << 20);
const RING_PART: u64 = 32;
/// Pause after a look at the ring that found few pages: more will come.
const PAUSE: Duration = Duration::from_millis(1);
/// Few pages.
const FEW: usize = 32;
/// Attempts to begin, and the time between two: others may use the page that is to be dropped.
const ATTEMPTS: u32 = 5;
const BETWEEN: Duration = Duration::from_millis(500);
/// Longest wait for a page, and the time between looks at a limit of 0.
const WAIT: Duration = Duration::from_millis(500);
/// Interval between looks at what is above the device.
const LOOK: Duration = Duration::from_secs(2);
/// How long the thread may take to end.
const LAST: Duration = Duration::from_secs(10);

/// Reads of the device of this process's volume.
static READS: Reads = Reads::new();

/// Whether this kernel has what the news need; as root it may still refuse them.
///
/// # Errors
/// What it lacks.
pub fn available() -> Result<()> {
    programs::Layout::of_kernel().map(drop)
}

/// Has this process read nothing from its own volume's device until what this returns is dropped.
/// Called before the export is left or stopped, and without a lock.
pub(super) fn hold_reads() -> Held<'static> {
    READS.hold()
}

/// The thread; dropping this ends it, and the news.
pub(super) struct Evicted {
    /// `None` once this is dropped.
    thread: Option<Worker>,
}

impl Evicted {
    /// Starts the thread for `cache`, which is below the page cache of `device`.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(served: Weak<Served>, cache: Arc<Cached>, device: PathBuf) -> Result<Self> {
        let work = move |served: &Weak<Served>, stop: &AtomicBool| {
            let Some(name) = served.upgrade().map(|served| served.name.clone()) else { return };
            let say = |text: &str| log::line(&format!("{name}: {text}"));
            let ended = follow(&cache, &device, stop, say);
            cache.unfollow(ended.as_ref().err().map(ToString::to_string));
            if let Err(e) = ended {
                log::line(&format!("{name}: the cache also holds what the page cache has: {e}"));
            }
        };
        let thread = Worker::start("ztier-evicted", served, work)?;
        Ok(Self { thread: Some(thread) })
    }
}

impl Drop for Evicted {
    fn drop(&mut self) {
        // A late thread waits for a read that a drive does not answer, or that no daemon serves any
        // more: the next one waits for this one.
        if self.thread.take().is_some_and(|thread| !thread.end_within(LAST)) {
            log::line("a read of the volume's device takes long: it ends with the process");
        }
    }
}

/// Bytes of the ring for a cache with this limit.
fn ring_bytes(limit: u64) -> u64 {
    (limit / RING_PART).clamp(RING.0, RING.1).next_power_of_two()
}

/// Whether a ring of `bytes` bytes is to go: a cache with this limit keeps nothing, or half of the
/// ring is enough for it.
fn is_too_large(bytes: u64, limit: u64) -> bool {
    limit == 0 || ring_bytes(limit) <= bytes / 2
}

/// Has the cache follow the page cache until `stop`, and while its limit is not 0. Begins anew with
/// a smaller ring when the limit has fallen far, since the ring counts in it.
fn follow(cache: &Cached, device: &Path, stop: &AtomicBool, say: impl Fn(&str)) -> Result<()> {
    let ends = || stop.load(Ordering::Acquire);
    let mut counted = (0, 0);
    let mut said = false;
    while !ends() {
        let limit = cache.limit();
        if limit == 0 {
            std::thread::park_timeout(WAIT);
            continue;
        }
        let bytes = ring_bytes(limit);
        let begun = begin(&READS, &ends, |may_not| News::begin(device, bytes as u32, may_not))?;
        let Some(mut news) = begun else { return Ok(()) };
        cache.follow(bytes)?;
        if !said {
            say("the cache holds what the page cache drops");
            said = true;
        }
        let goes = || ends() || is_too_large(bytes, cache.limit());
        counted = pass_on(cache, device, (&mut news, counted), goes);
        drop(news);
        cache.unfollow(None);
    }
    Ok(())
}

/// Has `begin` try until it begins the news, or has failed often. It is told whether to end at
/// once. `None`: the thread `ends`.
fn begin<T>(
    reads: &Reads,
    ends: &dyn Fn() -> bool,
    begin: impl Fn(&dyn Fn() -> bool) -> Result<T>,
) -> Result<Option<T>> {
    let mut failed = 0;
    let may_not = || ends() || reads.are_held();
    while !ends() {
        match reads.run(|| begin(&may_not)) {
            Some(Ok(begun)) => return Ok(Some(begun)),
            Some(Err(e)) if !may_not() => {
                failed += 1;
                if failed == ATTEMPTS {
                    return Err(e);
                }
            }
            // An attempt that was told to end says nothing about the kernel.
            _ => {}
        }
        std::thread::park_timeout(BETWEEN);
    }
    Ok(None)
}

/// Gives the cache what the page cache drops until `ends`. Returns the pages that were dropped so
/// far, and those of them that were not copied, with those `counted` before.
fn pass_on(
    cache: &Cached,
    device: &Path,
    (news, counted): (&mut News, (u64, u64)),
    ends: impl Fn() -> bool,
) -> (u64, u64) {
    let all = |(dropped, lost): (u64, u64)| (counted.0 + dropped, counted.1 + lost);
    let mut looked = Instant::now();
    while !ends() {
        news.wait(WAIT);
        let count = news.take(|page| _ = cache.dropped(page));
        if count > 0 {
            let (dropped, lost) = all(news.counts());
            cache.saw_pages(dropped, lost);
        }
        if (1..FEW).contains(&count) {
            std::thread::park_timeout(PAUSE);
        }
        if looked.elapsed() >= LOOK {
            looked = Instant::now();
            news.watch(&above::numbers(device));
        }
    }
    all(news.counts())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::error::Error;
    use std::cell::Cell;

    /// Lets the next park return at once.
    fn go_on() {
        std::thread::current().unpark();
    }

    #[test]
    fn a_thread_that_ends_begins_nothing_more() {
        let (reads, stop, tries) = (Reads::new(), Cell::new(false), Cell::new(0));
        let ends = || stop.get();
        let attempt = |_: &dyn Fn() -> bool| {
            tries.set(tries.get() + 1);
            go_on();
            Err::<(), _>(Error::failure("another process has the page"))
        };
        let last = |may_not: &dyn Fn() -> bool| {
            stop.set(true);
            assert!(may_not(), "it is not told to end");
            attempt(may_not)
        };
        assert!(begin(&reads, &ends, attempt).is_err());
        assert_eq!(tries.replace(0), ATTEMPTS);
        assert_eq!(begin(&reads, &ends, last).unwrap(), None);
        assert_eq!(tries.replace(0), 1, "it ends in its first attempt");
        assert_eq!(begin(&reads, &ends, attempt).unwrap(), None);
        assert_eq!(tries.get(), 0);
    }

    #[test]
    fn attempts_while_reads_are_held_do_not_count() {
        let (reads, tries) = (Reads::new(), Cell::new(0));
        let held = Cell::new(Some(reads.hold()));
        // Before each look, whether the thread ends: it is asked once a round.
        let ends = || {
            go_on();
            tries.set(tries.get() + 1);
            if tries.get() == 3 * ATTEMPTS {
                drop(held.take());
            }
            false
        };
        assert_eq!(begin(&reads, &ends, |_| Ok(7)).unwrap(), Some(7));
        assert_eq!(tries.get(), 3 * ATTEMPTS);
    }

    #[test]
    fn a_ring_goes_when_half_of_it_is_enough() {
        const MIB: u64 = 1 << 20;
        assert_eq!([0, 16 * MIB, 17 * MIB, 1 << 40].map(ring_bytes), [1, 1, 2, 4].map(|n| n << 19));
        assert!([16 * MIB, 0].iter().all(|limit| is_too_large(MIB, *limit)));
        assert!(is_too_large(2 * MIB, 32 * MIB) && is_too_large(MIB / 2, 0));
        let stay = [(MIB, 17 * MIB), (MIB / 2, MIB), (MIB / 2, 1 << 40), (2 * MIB, 33 * MIB)];
        assert!(!stay.iter().any(|(bytes, limit)| is_too_large(*bytes, *limit)));
    }
}

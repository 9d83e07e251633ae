//! Gives a read cache the pages that the page cache above its volume drops.
//!
//! A cache below the page cache has what that has, too, and the memory that it takes is missing
//! above. Here small programs in the kernel ([`programs`]) copy each clean page of the volume's
//! device, and of the file systems on it, that reclaim drops, and a thread offers the copies to the
//! cache, which then holds what the page cache does not ([`Cached::follow`]).
//!
//! Invariants: a page counts for nothing but its content, which the cache compares with the seals
//! of its blocks; a page that is lost costs a read; a daemon that is slow loses pages and delays no
//! reclaim; without the news the cache is as without this.

mod calibration;
mod programs;

use super::log;
use super::served::Served;
use crate::cache::Cached;
use crate::device::Worker;
use crate::error::Result;
use crate::system::above;
pub use calibration::News;
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
/// Longest wait for a page.
const WAIT: Duration = Duration::from_millis(500);
/// Interval between looks at what is above the device.
const LOOK: Duration = Duration::from_secs(2);

/// Whether this kernel has what the news need; as root it may still refuse them.
///
/// # Errors
/// What it lacks.
pub fn available() -> Result<()> {
    programs::Layout::of_kernel().map(drop)
}

/// The thread; dropping this ends it, and the news.
pub(super) struct Evicted {
    _thread: Worker,
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
        Ok(Self { _thread: thread })
    }
}

/// Has the cache follow the page cache until `stop`.
fn follow(cache: &Cached, device: &Path, stop: &AtomicBool, say: impl Fn(&str)) -> Result<()> {
    let bytes = (cache.limit() / RING_PART).clamp(RING.0, RING.1).next_power_of_two();
    let mut attempts = 0;
    let mut news = loop {
        attempts += 1;
        match News::begin(device, bytes as u32) {
            Err(_) if attempts < ATTEMPTS && !stop.load(Ordering::Acquire) => {
                std::thread::park_timeout(BETWEEN);
            }
            begun => break begun?,
        }
    };
    cache.follow(bytes)?;
    say("the cache holds what the page cache drops");
    let mut looked = Instant::now();
    while !stop.load(Ordering::Acquire) {
        news.wait(WAIT);
        let count = news.take(|page| _ = cache.dropped(page));
        if count > 0 {
            let (dropped, lost) = news.counts();
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
    Ok(())
}

//! Drops the blocks of swap slots that the kernel has freed.
//!
//! The kernel discards slots only in whole clusters, so a swap device stores what single freed
//! slots had until they are written again. Here two small programs in the kernel ([`load`]) set a
//! bit for each slot of the volume's area that is freed, and a thread makes these blocks holes.
//!
//! Invariants:
//! - bits count only for the lifetime of the area that was shown to be on this volume ([`link`]):
//!   the kernel gives the number of an area that has ended to another one;
//! - a write that comes after its slot was freed takes the bit back, see
//!   [`crate::ram::store::Store::drop_freed`];
//! - without the news swap works as well, and takes more memory.

mod link;
mod load;
mod process;

pub use process::main;

use super::log;
use super::served::Served;
use crate::device::Worker;
use crate::error::Result;
use crate::system::holders::is_swap;
use load::News;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The word that starts the process: `ztier slots NAME`.
pub const WORD: &str = "slots";
/// How long after swap has begun, so that other areas of the same configuration have begun, too.
const BEGIN: Duration = Duration::from_secs(2);
/// Interval between looks at the bits.
const LOOK: Duration = Duration::from_millis(400);
/// Pause before news that could not be had are tried again.
const RETRY: Duration = Duration::from_secs(60);

/// Whether this kernel has what the news need; as root it may still refuse the programs.
///
/// # Errors
/// What it lacks.
pub fn available() -> Result<()> {
    load::functions().map(drop)
}

/// The thread; dropping this ends it, and the news.
pub(super) struct FreedSlots {
    _thread: Worker,
}

impl FreedSlots {
    /// Starts the thread for `served`, whose `device` is swap.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(served: Weak<Served>, device: PathBuf) -> Result<Self> {
        let work = move |served: &Weak<Served>, stop: &AtomicBool| follow(served, stop, &device);
        let thread = Worker::start("ztier-freed", served, work)?;
        Ok(Self { _thread: thread })
    }
}

/// Follows the news of each area on `device` until `stop`.
fn follow(served: &Weak<Served>, stop: &AtomicBool, device: &Path) {
    let ended = || stop.load(Ordering::Acquire);
    // A kernel without the functions never has the news.
    if let Err(e) = available() {
        let Some(served) = served.upgrade() else { return };
        return log::line(&format!("{}: no news of freed swap slots: {e}", served.name));
    }
    let (mut pause, mut logged) = (BEGIN, false);
    while !waits(pause, stop) {
        // An area that has ended by hand may begin again at any time.
        pause = BEGIN;
        if !is_swap(device) {
            continue;
        }
        let Some(strong) = served.upgrade() else { return };
        match link::begin(&strong.volume, &strong.name, stop) {
            Ok(news) => {
                log::line(&format!("{}: blocks of freed swap slots are dropped", strong.name));
                drop(strong);
                logged = false;
                drop_all(served, &news, stop);
            }
            Err(e) => {
                pause = RETRY;
                if !std::mem::replace(&mut logged, true) && !ended() {
                    log::line(&format!("{}: no news of freed swap slots: {e}", strong.name));
                }
            }
        }
    }
}

/// Drops the blocks of freed slots until the area ends.
fn drop_all(served: &Weak<Served>, news: &News, stop: &AtomicBool) {
    let ended = || stop.load(Ordering::Acquire);
    loop {
        let ends = waits(LOOK, stop);
        let Some(served) = served.upgrade() else { return };
        let Some(memory) = served.volume.in_memory() else { return };
        if ends || !news.watches() {
            return memory.follow_freed(None);
        }
        memory.drop_freed(news.bits(), &ended);
    }
}

/// Waits for `time`. Returns whether the thread has to end.
fn waits(time: Duration, stop: &AtomicBool) -> bool {
    let until = Instant::now() + time;
    while !stop.load(Ordering::Acquire) {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return false;
        }
        std::thread::park_timeout(left);
    }
    true
}

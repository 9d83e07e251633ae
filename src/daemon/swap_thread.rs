//! The thread that fits a volume that carries swap to the machine: what makes the kernel free slots
//! ([`Lever`]) to the use of swap, the emergency reserve to the memory that the machine has.
//!
//! Invariant: without a look at the machine's memory the reserve is a large one.

use super::ballast::Fitting;
use super::itself;
use super::running::Running;
use super::swap_high::SwapHigh;
use crate::device::Worker;
use crate::error::Result;
use crate::limit::Sampler;
use crate::system::usage::Ballast;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Interval between looks at the machine's memory, and the longest between looks at its swap.
const LOOK: Duration = Duration::from_millis(250);
/// Memory is plenty if this part of it is available, and [`PLENTY`].
const PLENTY_PART: u64 = 4;
/// Bytes; more than programs take between two looks.
const PLENTY: u64 = 1 << 30;

/// What makes the kernel free the slots of pages that are read back.
enum Lever {
    None,
    Ballast(Fitting),
    SwapHigh(SwapHigh),
}

impl Lever {
    /// That of `running`, whose `device` is swap. `ballast` will have the bytes of its ballast.
    fn of(running: &Running, device: PathBuf, when: Ballast, ballast: Arc<AtomicU64>) -> Self {
        let job = running.state.lock().plan.job.clone();
        // A program of `ztier run` is going to swap.
        let early = job.is_some();
        match (when, job.and_then(|job| SwapHigh::of(&job.cgroup))) {
            (Ballast::Off, _) => Self::None,
            (Ballast::Auto, Some(of_group)) => Self::SwapHigh(of_group),
            _ => Self::Ballast(Fitting::new(running.name.clone(), device, (when, early), ballast)),
        }
    }

    /// Fits it to the present use of swap. Returns the time until the next look.
    fn step(&mut self) -> Duration {
        match self {
            Self::None => LOOK,
            Self::Ballast(fitting) => fitting.step(),
            Self::SwapHigh(following) => following.step(),
        }
    }
}

/// The thread; dropping this ends it, and the ballast.
pub(super) struct SwapThread {
    ballast: Arc<AtomicU64>,
    _thread: Worker,
}

impl SwapThread {
    /// Starts the thread for `running`, whose `device` is swap.
    ///
    /// # Errors
    /// The thread cannot be started.
    pub(super) fn start(running: &Running, device: PathBuf, when: Ballast) -> Result<Self> {
        let ballast = Arc::default();
        let mut lever = Lever::of(running, device, when, Arc::clone(&ballast));
        let mut memory = MachineMemory::new();
        let thread =
            Worker::start("ztier-swap", Weak::clone(&running.me), move |running, stop| {
                // When swap fills beside busy processors, ballast has to give way in time.
                itself::come_first(true);
                while !stop.load(Ordering::Acquire) {
                    if memory.is_due() {
                        let Some(running) = running.upgrade() else { return };
                        memory.look(&running);
                    }
                    std::thread::park_timeout(lever.step().min(LOOK));
                }
            })?;
        Ok(Self { ballast, _thread: thread })
    }

    /// Bytes of the swap area that are ballast now.
    pub(super) fn ballast_bytes(&self) -> u64 {
        self.ballast.load(Ordering::Acquire)
    }
}

/// Whether the machine, or the control group of this process, has plenty of memory.
struct MachineMemory {
    sampler: Sampler,
    looked: Option<Instant>,
    plenty: bool,
}

impl MachineMemory {
    fn new() -> Self {
        Self { sampler: Sampler::of_this_machine(), looked: None, plenty: false }
    }

    fn is_due(&self) -> bool {
        self.looked.is_none_or(|looked| looked.elapsed() >= LOOK)
    }

    fn look(&mut self, running: &Running) {
        self.looked = Some(Instant::now());
        let machine = self.sampler.memory();
        self.plenty = machine
            .available_bytes
            .is_some_and(|bytes| is_plenty(bytes, machine.total_bytes, self.plenty));
        if let Some(memory) = running.volume.in_memory() {
            memory.memory_is_plenty(self.plenty);
        }
    }
}

/// Whether `available` of `total` bytes are plenty, if they `were` at the last look.
fn is_plenty(available: u64, total: u64, were: bool) -> bool {
    let least = (total / PLENTY_PART).max(PLENTY);
    available >= if were { least } else { least + least / 4 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plenty_is_a_part_and_more_than_a_burst() {
        const GIB: u64 = 1 << 30;
        assert!(!is_plenty(GIB, GIB, false), "a small machine never has plenty");
        assert!(is_plenty(GIB * 5 / 4, 2 * GIB, false) && is_plenty(GIB, 2 * GIB, true));
        assert!(!is_plenty(GIB, 2 * GIB, false) && !is_plenty(GIB - 1, 2 * GIB, true));
        assert!(is_plenty(20 * GIB, 64 * GIB, false) && !is_plenty(15 * GIB, 64 * GIB, true));
    }
}

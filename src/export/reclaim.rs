//! What a process must do before it may carry swap or dirty pages: make progress while the machine
//! reclaims memory.
//!
//! Invariant: called before the first thread is made, since threads inherit what it sets.

use rustix::mm::MlockAllFlags;
use rustix::thread::CapabilitySet;
use std::fmt;

/// What of the preparation took effect. Each part is best effort: without privilege the process
/// works, but must not carry swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaim {
    /// `PR_SET_IO_FLUSHER` (needs `CAP_SYS_RESOURCE`): allocations of this process never wait for
    /// I/O, which may be waiting for this process, and it is not throttled for pages that others
    /// dirty on its device.
    pub io_flusher: bool,
    /// The out-of-memory killer passes this process by (`oom_score_adj` −1000, needs
    /// `CAP_SYS_RESOURCE`).
    pub oom_exempt: bool,
    /// Whatever memory the process touches stays (`mlockall`, needs `CAP_IPC_LOCK`): what is
    /// swapped out to its own device it could wait for forever.
    pub locked: bool,
}

impl Reclaim {
    /// Whether swap on a device of this process is safe as far as these settings go.
    pub fn swap_safe(self) -> bool {
        self.io_flusher && self.oom_exempt && self.locked
    }
}

impl fmt::Display for Reclaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = |yes| if yes { "yes" } else { "no (needs CAP_SYS_RESOURCE)" };
        let locked = if self.locked { "yes" } else { "no (needs CAP_IPC_LOCK)" };
        let (flusher, exempt) = (word(self.io_flusher), word(self.oom_exempt));
        write!(f, "I/O flusher: {flusher}, OOM-exempt: {exempt}, memory locked: {locked}")
    }
}

/// Prepares this process to serve a device under memory pressure. Call it first thing, before any
/// thread exists; there is no need to undo it. What holds a volume's data is locked by that, too.
pub fn prepare_for_reclaim() -> Reclaim {
    Reclaim {
        io_flusher: rustix::process::configure_io_flusher_behavior(true).is_ok(),
        oom_exempt: std::fs::write("/proc/self/oom_score_adj", "-1000").is_ok(),
        locked: lock_memory(),
    }
}

/// Locks what this process touches from now on. `false` where it may not: without the privilege a
/// limit would hold for all memory that it will ever map, and make that fail.
fn lock_memory() -> bool {
    let allowed = rustix::thread::capabilities(None)
        .is_ok_and(|own| own.effective.contains(CapabilitySet::IPC_LOCK));
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    allowed && rustix::mm::mlockall(all).is_ok()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;

    #[test]
    fn says_the_truth() {
        // On a thread of its own: the other tests keep their setting.
        let done = std::thread::spawn(|| {
            let before = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
            let done = prepare_for_reclaim();
            let score = std::fs::read_to_string("/proc/self/oom_score_adj").unwrap();
            assert_eq!(done.oom_exempt, score.trim() == "-1000");
            let _ = std::fs::write("/proc/self/oom_score_adj", before);
            rustix::mm::munlockall().unwrap();
            if done.io_flusher {
                assert!(rustix::process::is_io_flusher().unwrap());
            }
            done
        });
        let done = done.join().unwrap();
        assert_eq!(done.swap_safe(), !done.to_string().contains("no ("));
    }
}

//! Prepares a process to carry swap or dirty pages: it must make progress while the machine
//! reclaims memory.
//!
//! Invariant: called before the process has a second thread, since threads inherit the settings.

use super::footprint::Mapped;
use crate::kernel_text::kernel_text;
use rustix::mm::{Advice, MlockAllFlags, madvise};
use rustix::thread::CapabilitySet;
use std::ffi::c_void;
use std::fmt;
use std::ops::Range;

/// The parts of the preparation that took effect. Each is best effort: without privilege the
/// process works, but must not carry swap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reclaim {
    /// `PR_SET_IO_FLUSHER` (needs `CAP_SYS_RESOURCE`): allocations of this process never wait for
    /// I/O, which may itself wait for this process. The kernel also does not throttle it for pages
    /// that others dirty on its device.
    pub io_flusher: bool,
    /// The out-of-memory killer spares this process (`oom_score_adj` −1000, needs
    /// `CAP_SYS_RESOURCE`).
    pub oom_exempt: bool,
    /// The process may have a real-time thread (needs `CAP_SYS_NICE`). The kernel keeps memory free
    /// for those that remains when other processes take all the rest.
    pub comes_first: bool,
    /// Touched memory stays resident (`mlockall`, needs `CAP_IPC_LOCK`). The process could wait
    /// forever for pages swapped out to its own device.
    pub locked: bool,
}

impl Reclaim {
    /// Whether these settings make swap on a device of this process safe.
    pub fn swap_safe(self) -> bool {
        self.io_flusher && self.oom_exempt && self.comes_first && self.locked
    }
}

impl fmt::Display for Reclaim {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let parts = [
            ("I/O flusher", self.io_flusher, "CAP_SYS_RESOURCE"),
            (", OOM-exempt", self.oom_exempt, "CAP_SYS_RESOURCE"),
            (", memory locked", self.locked, "CAP_IPC_LOCK"),
            (", real-time thread", self.comes_first, "CAP_SYS_NICE"),
        ];
        parts.iter().try_for_each(|(what, yes, needs)| match yes {
            true => write!(f, "{what}: yes"),
            false => write!(f, "{what}: no (needs {needs})"),
        })
    }
}

/// Prepares this process to serve a device under memory pressure. Call it before any other thread
/// exists; it need not be undone. It also locks the volume's data.
pub fn prepare_for_reclaim() -> Reclaim {
    Reclaim {
        io_flusher: rustix::process::configure_io_flusher_behavior(true).is_ok(),
        oom_exempt: std::fs::write("/proc/self/oom_score_adj", "-1000").is_ok(),
        comes_first: has(CapabilitySet::SYS_NICE),
        locked: lock_memory(),
    }
}

/// The capabilities that a process needs to carry swap of a machine that runs short of memory.
pub const NEEDED: [(&str, CapabilitySet); 3] = [
    ("CAP_SYS_RESOURCE", CapabilitySet::SYS_RESOURCE),
    ("CAP_IPC_LOCK", CapabilitySet::IPC_LOCK),
    ("CAP_SYS_NICE", CapabilitySet::SYS_NICE),
];

/// The names of the [`NEEDED`] capabilities that this process lacks.
pub fn lacking() -> Vec<&'static str> {
    NEEDED.iter().filter(|(_, needed)| !has(*needed)).map(|(name, _)| *name).collect()
}

/// Whether this process has a capability.
pub fn has(capability: CapabilitySet) -> bool {
    rustix::thread::capabilities(None).is_ok_and(|own| own.effective.contains(capability))
}

/// Locks memory that this process touches from now on. Returns `false` without the privilege: then
/// a limit would apply to all memory that the process ever maps, and later mappings would fail.
fn lock_memory() -> bool {
    let all = MlockAllFlags::CURRENT | MlockAllFlags::FUTURE | MlockAllFlags::ONFAULT;
    has(CapabilitySet::IPC_LOCK) && rustix::mm::mlockall(all).is_ok()
}

/// The most that a thread uses of its stack, in bytes, with reserve: threads that serve requests
/// use 24 KiB, threads that answer questions 80 KiB.
const STACK: usize = 128 << 10;
/// The largest guard of a stack, in bytes; a range reserved by an allocator is larger.
const GUARD: usize = 64 << 10;
/// Larger mappings are not made present, in bytes: enough for all requests that a kernel without
/// `USER_COPY` could send at once.
const MOST: usize = 16 << 20;

/// Makes the memory and the code of this process present, except the volume's data. While the
/// machine is short of memory, the first access to a page would wait for free memory, and the
/// machine may get that only from this process. Returns the number of bytes.
pub fn make_present() -> usize {
    let Ok(maps) = kernel_text("/proc/self/maps") else { return 0 };
    // This thread may wait for pages to be swapped out: swapping out does not wait for this thread.
    let was = rustix::process::is_io_flusher().unwrap_or(false);
    let set = |on| rustix::process::configure_io_flusher_behavior(on);
    let _ = set(false);
    let mut guard = 0;
    let mut present = 0;
    for mapping in maps.lines().filter_map(Mapped::parse) {
        let Mapped { start, end, access, is_file } = mapping;
        match access {
            "---p" if end - start <= GUARD => guard = end,
            // Below each thread's stack is a guard, which may not be touched.
            "rw-p" if !is_file && start == guard => {
                present += touch(end - STACK.min(end - start)..end, Advice::LinuxPopulateWrite);
            }
            "rw-p" if end - start <= MOST => {
                present += touch(start..end, Advice::LinuxPopulateWrite)
            }
            "r--p" | "r-xp" if is_file => present += touch(start..end, Advice::LinuxPopulateRead),
            _ => {}
        }
    }
    let _ = set(was);
    present
}

/// Makes a range present. It may have been unmapped meanwhile.
fn touch(range: Range<usize>, how: Advice) -> usize {
    // SAFETY: populating changes no contents, wherever it is. For an unmapped range the call fails;
    // a range that another thread has mapped anew is made present, which does no harm.
    let done = unsafe { madvise(range.start as *mut c_void, range.len(), how) };
    if done.is_ok() { range.len() } else { 0 }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]
    use super::*;
    use crate::media::Mapping;

    #[test]
    fn says_the_truth() {
        // On its own thread, so that other tests keep their setting.
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

    #[test]
    fn what_is_mapped_is_made_present() {
        let len = 1 << 20;
        let memory = Mapping::anonymous(len).unwrap();
        let resident = || {
            let mut pages = vec![0_u8; len / 4096];
            // SAFETY: one byte a page of the mapping above.
            assert_eq!(unsafe { libc::mincore(memory.at(0).cast(), len, pages.as_mut_ptr()) }, 0);
            pages.iter().filter(|page| **page & 1 == 1).count()
        };
        assert_eq!(resident(), 0);
        assert!(make_present() >= len);
        assert_eq!(resident(), len / 4096);
    }
}

//! What each process of a volume sets for itself: its name, the content of its core dumps, and the
//! signals and limits that must not end it.
//!
//! Core dumps: a dump of a daemon would contain the volume's content in plain text. Writing it
//! would also touch, and so allocate, each unused page of the memory files. So the kernel leaves
//! all memory out of a dump, which then has registers only (`coredump_filter`; it also applies if a
//! program takes the dump through a pipe). The mappings of memory files are also `MADV_DONTDUMP`,
//! in case an administrator changes the filter to find a fault.

use crate::error::{Context, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use signal_hook::consts::{SIGALRM, SIGIO, SIGPROF, SIGUSR1, SIGUSR2, SIGVTALRM, SIGXCPU, SIGXFSZ};
use std::ffi::CString;
use std::fs;

/// Longest name of a process, in bytes (`TASK_COMM_LEN` without the zero).
const LONGEST: usize = 15;
/// Of all that a core dump may contain, only the ELF headers (`man 5 core`).
const HEADERS: &str = "0x10";
/// Signals whose default action ends a process, but that do not ask it to end: the kernel's signals
/// about limits, timers and files, and those that an administrator sends to make a program reload
/// its configuration.
const STRAY: [i32; 10] = [
    SIGXFSZ,
    SIGXCPU,
    SIGALRM,
    SIGVTALRM,
    SIGPROF,
    SIGIO,
    SIGUSR1,
    SIGUSR2,
    libc::SIGPWR,
    libc::SIGSTKFLT,
];

/// Names this process after its volume, for `ps`, `top` and messages about holders. `role` is
/// `ztier` for a daemon. The first argument stays: service managers read it.
pub(super) fn call(role: &str, volume: &str) {
    let mut name = format!("{role}:{volume}");
    name.truncate(LONGEST); // names of volumes are ASCII
    // A name is for display only.
    let _ = CString::new(name).map(|name| rustix::thread::set_name(&name));
}

/// Keeps the memory of this process out of core dumps.
pub(super) fn keep_out_of_dumps() {
    if fs::write("/proc/self/coredump_filter", HEADERS).is_err() {
        // Then no dump is written; only a program that takes dumps through a pipe still gets one.
        let _ = setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) });
    }
}

/// Makes a write beyond the file size limit fail with `EFBIG`; by default the kernel ends the
/// process. Programs that this process starts keep the default.
///
/// # Errors
/// The signal can't be caught.
pub fn outlive_file_limit() -> Result<()> {
    catch(SIGXFSZ)
}

/// Lifts limits that make no sense for a process that serves or keeps a volume, as far as it may:
/// on CPU time, and on the size of files (memory files are as large as the volume). Catches the
/// signals that must not end it.
///
/// # Errors
/// A signal can't be caught.
pub(super) fn outlive_limits() -> Result<()> {
    let unlimited = Rlimit { current: None, maximum: None };
    for what in [Resource::Cpu, Resource::Rttime, Resource::Fsize] {
        if getrlimit(what).current.is_some() && setrlimit(what, unlimited).is_err() {
            raise(what);
        }
    }
    STRAY.into_iter().try_for_each(catch)
}

/// The most descriptors of this process, after raising its limit as far as allowed.
pub(super) fn descriptors() -> usize {
    raise(Resource::Nofile).and_then(|most| usize::try_from(most).ok()).unwrap_or(usize::MAX)
}

/// Raises a limit to its maximum. Returns the limit; `None`: no limit.
fn raise(what: Resource) -> Option<u64> {
    let limit = getrlimit(what);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    if limit.current != limit.maximum && setrlimit(what, raised).is_err() {
        return limit.current;
    }
    limit.maximum
}

/// Makes a signal do nothing. Uses a handler: programs that this process starts would inherit an
/// ignored signal.
fn catch(signal: i32) -> Result<()> {
    signal_hook::flag::register(signal, std::sync::Arc::default())
        .context("cannot catch signals")
        .map(drop)
}
